"""Newcomer cases for images and geometry: blocks, heads and whole small nets as vision repositories write them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def images(channels: int = 3, batch: int = 2) -> Any:
    """Square images whose side is the case's size."""
    return lambda n: (randn(batch, channels, n, n),)


@CASES.module(images(), 32, 48)
class PatchMergingSwin(nn.Module):
    """Swin's stem: patches, a window partition with padding, and merging of 2x2 neighbours that pads odd sides."""

    def __init__(self, c: int = 16, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.embed, self.norm = nn.Conv2d(3, c, 4, 4), nn.LayerNorm(4 * c)
        self.attention = nn.MultiheadAttention(c, 4, batch_first=True)
        self.reduce = nn.Linear(4 * c, 2 * c, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        k = self.window
        x = F.pad(x, (0, 0, 0, (k - w % k) % k, 0, (k - h % k) % k))
        hp, wp = x.shape[1], x.shape[2]
        windows = x.view(b, hp // k, k, wp // k, k, c).transpose(2, 3).reshape(-1, k * k, c)
        windows = self.attention(windows, windows, windows, need_weights=False)[0]
        x = windows.view(b, hp // k, wp // k, k, k, c).transpose(2, 3).reshape(b, hp, wp, c)[:, :h, :w]
        if h % 2 or w % 2:
            x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.reduce(self.norm(x))


@CASES.module(images(), 32, 64)
class GhostBottleneck(nn.Module):
    """GhostNet: half of the channels by cheap depthwise convolutions, trimmed to the wanted number."""

    def __init__(self, wanted: int = 21) -> None:
        super().__init__()
        self.wanted, first = wanted, math.ceil(wanted / 2)
        self.primary = nn.Sequential(nn.Conv2d(3, first, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU(inplace=True))
        self.cheap = nn.Sequential(
            nn.Conv2d(first, first, 3, 1, 1, groups=first, bias=False), nn.BatchNorm2d(first), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary(x)
        return torch.cat([x1, self.cheap(x1)], 1)[:, : self.wanted]


@CASES.module(images(12), 10, 15)
class CoordinateAttention(nn.Module):
    """Pools along each axis, one squeeze for both, gates along each axis (CoordAttention)."""

    def __init__(self, c: int = 12) -> None:
        super().__init__()
        self.pool_h, self.pool_w = nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveAvgPool2d((1, None))
        self.squeeze, self.act = nn.Sequential(nn.Conv2d(c, 8, 1), nn.BatchNorm2d(8)), nn.Hardswish()
        self.gate_h, self.gate_w = nn.Conv2d(8, c, 1), nn.Conv2d(8, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        y = self.act(self.squeeze(torch.cat([self.pool_h(x), self.pool_w(x).permute(0, 1, 3, 2)], 2)))
        y_h, y_w = torch.split(y, [h, w], 2)
        return x * self.gate_h(y_h).sigmoid() * self.gate_w(y_w.permute(0, 1, 3, 2)).sigmoid()


@CASES.module(images(16), 14, 20)
class Cbam(nn.Module):
    """Channel gates from both pools, then a spatial gate from mean and maximum over channels."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Flatten(), nn.Linear(c, c // 4), nn.ReLU(), nn.Linear(c // 4, c))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        pooled = [F.avg_pool2d(x, x.shape[2:]), F.max_pool2d(x, x.shape[2:]), F.lp_pool2d(x, 2.0, tuple(x.shape[2:]))]
        gate = torch.stack([self.mlp(p) for p in pooled]).sum(0).sigmoid()
        x = x * gate[:, :, None, None].expand_as(x)
        return x * self.spatial(torch.cat([x.max(1, keepdim=True).values, x.mean(1, keepdim=True)], 1)).sigmoid()


@CASES.module(images(16), 12, 17)
class NonLocal(nn.Module):
    """Embedded Gaussian non-local block with sub-sampled keys."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(c, c // 2, 1) for _ in range(3))
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(c // 2, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q = self.theta(x).flatten(2).transpose(1, 2)
        k, v = self.pool(self.phi(x)).flatten(2), self.pool(self.g(x)).flatten(2).transpose(1, 2)
        y = torch.bmm(torch.bmm(q, k).softmax(-1), v)
        return x + self.out(y.transpose(1, 2).contiguous().view(b, -1, h, w))


@CASES.module(lambda n: (randn(1, 8, n, n), randn(1, 16, n // 2, n // 2), randn(1, 32, n // 4, n // 4)), 32, 48)
class BiFpn(nn.Module):
    """EfficientDet's weighted feature fusion, one layer down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, 8, 1) for c in (8, 16, 32))
        self.weights = nn.ParameterList(nn.Parameter(rand(k)) for k in (2, 2, 3, 2))
        self.convs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 8, 1)) for _ in range(4)
        )

    def fuse(self, i: int, *xs: Tensor) -> Tensor:
        w = F.relu(self.weights[i])
        w = w / (w.sum() + 1e-4)
        return self.convs[i](F.silu(sum(w[k] * x for k, x in enumerate(xs))))

    def forward(self, p3: Tensor, p4: Tensor, p5: Tensor) -> tuple[Tensor, ...]:
        p3, p4, p5 = (lateral(p) for lateral, p in zip(self.lateral, (p3, p4, p5), strict=True))
        m4 = self.fuse(0, p4, F.interpolate(p5, size=p4.shape[-2:], mode="nearest"))
        o3 = self.fuse(1, p3, F.interpolate(m4, scale_factor=2, mode="nearest"))
        o4 = self.fuse(2, p4, m4, F.max_pool2d(o3, 3, 2, 1))
        return o3, o4, self.fuse(3, p5, F.max_pool2d(o4, 3, 2, 1))


@CASES.module(lambda n: (randn(2, 8, n, n), randn(2, 8, 4, 4)), 18, 22)
class SiamRpnHead(nn.Module):
    """Depthwise cross-correlation: the template's features are the kernels of a grouped convolution."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.template, self.search = nn.Conv2d(c, c, 3), nn.Conv2d(c, c, 3)
        self.head = nn.Sequential(nn.Conv2d(c, c, 1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 10, 1))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        kernel, search = self.template(z), self.search(x)
        b, c = kernel.shape[:2]
        y = F.conv2d(search.view(1, b * c, *search.shape[2:]), kernel.view(b * c, 1, *kernel.shape[2:]), groups=b * c)
        return self.head(y.view(b, c, *y.shape[2:]))


@CASES.module(lambda n: (randn(2, 8, n, n), rand(2, 16)), 8, 12)
class StyleConv(nn.Module):
    """StyleGAN2: modulated and demodulated weights, transposed for upsampling, blur, noise."""

    def __init__(self, c: int = 8, o: int = 6) -> None:
        super().__init__()
        self.style, self.weight = nn.Linear(16, c), nn.Parameter(randn(o, c, 3, 3) / 8)
        self.register_buffer(
            "blur", torch.tensor([1.0, 3.0, 3.0, 1.0])[:, None] * torch.tensor([1.0, 3.0, 3.0, 1.0]) / 16
        )

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        b, c, h, width = x.shape
        weight = self.weight[None] * self.style(w)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        o = weight.shape[1]
        kernels = weight.transpose(1, 2).reshape(b * c, o, 3, 3)
        y = F.conv_transpose2d(x.reshape(1, b * c, h, width), kernels, stride=2, groups=b)
        y = F.pad(y.view(b, o, *y.shape[2:]), (1, 1, 1, 1))
        return F.conv2d(y, self.blur[None, None].repeat(o, 1, 1, 1), groups=o)


@CASES.module(lambda n: (randn(1, 4, 6, n, n),), 12, 18)
class SlowFast(nn.Module):
    """Two pathways over clips, the fast one strided into the slow one."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = nn.Conv3d(4, 8, (1, 3, 3), padding=(0, 1, 1)), nn.Conv3d(4, 2, 3, padding=1)
        self.lateral = nn.Conv3d(2, 4, (5, 1, 1), (2, 1, 1), (2, 0, 0), bias=False)
        self.head = nn.Linear(14, 5)

    def forward(self, x: Tensor) -> Tensor:
        slow, fast = self.slow(x[:, :, ::2]).relu(), self.fast(x).relu()
        slow = torch.cat([slow, self.lateral(fast)], 1)
        return self.head(torch.cat([slow.mean([2, 3, 4]), fast.mean([2, 3, 4])], 1))


@CASES.module(images(6), 9, 14)
class Involution(nn.Module):
    """Kernels of a place are computed from that place: unfold, multiply, sum."""

    def __init__(self, c: int = 6, k: int = 3, groups: int = 2) -> None:
        super().__init__()
        self.k, self.groups = k, groups
        self.reduce, self.span = nn.Conv2d(c, 4, 1), nn.Conv2d(4, k * k * groups, 1)
        self.unfold = nn.Unfold(k, padding=k // 2)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        kernel = self.span(self.reduce(x).relu()).view(b, self.groups, self.k**2, h, w).unsqueeze(2)
        patches = self.unfold(x).view(b, self.groups, c // self.groups, self.k**2, h, w)
        return (kernel * patches).sum(3).view(b, c, h, w)


@CASES.module(images(4), 8, 13)
class DeformableConv(nn.Module):
    """Offsets move the taps, which are read by grid_sample."""

    def __init__(self, c: int = 4) -> None:
        super().__init__()
        self.offsets, self.weight = nn.Conv2d(c, 18, 3, padding=1), nn.Parameter(randn(5, c, 9) / 6)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        offsets = self.offsets(x).view(b, 9, 2, h, w).permute(0, 1, 3, 4, 2)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        taps = torch.stack([torch.arange(9) % 3 - 1, torch.arange(9) // 3 - 1], -1)
        places = torch.stack([xs, ys], -1)[None] + taps[:, None, None] + offsets
        scale = torch.tensor([max(w - 1, 1), max(h - 1, 1)]) / 2
        grid = (places / scale - 1).view(b, 9 * h, w, 2)
        sampled = F.grid_sample(x, grid, align_corners=True, padding_mode="border").view(b, c, 9, h, w)
        return torch.einsum("bckhw,ock->bohw", sampled, self.weight)


@CASES.module(lambda n: (randn(2, 20, n, n), rand(2, 6, 4)), 16, 20)
class RoiAlignHead(nn.Module):
    """Crops of boxes by an affine grid, then a small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(20 * 9, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x: Tensor, boxes: Tensor) -> Tensor:
        b, k = boxes.shape[:2]
        low, high = boxes[..., :2].minimum(boxes[..., 2:]), boxes[..., :2].maximum(boxes[..., 2:])
        theta = torch.zeros(b, k, 2, 3)
        theta[..., 0, 0], theta[..., 1, 1] = (high - low).unbind(-1)
        theta[..., :, 2] = low + high - 1
        grid = F.affine_grid(theta.flatten(0, 1), [b * k, x.shape[1], 3, 3], align_corners=False)
        crops = F.grid_sample(x.repeat_interleave(k, 0), grid, align_corners=False)
        return self.fc(crops.flatten(1)).view(b, k, -1)


@CASES.module(images(9), 12, 20)
class PixelShuffleUpscaler(nn.Module):
    """ESPCN-like with a global skip by bicubic enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(9, 12, 3, padding=1), nn.PReLU(12), nn.Conv2d(12, 36, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        skip = F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        return (F.pixel_shuffle(self.body(x), 2) + skip).clamp(-3, 3)


@CASES.module(images(), 32, 40)
class MobileOneBlock(nn.Module):
    """Many parallel branches with batch norms, as before they are merged."""

    def __init__(self) -> None:
        super().__init__()

        def branch(k: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(3, 8, k, 2, k // 2, bias=False), nn.BatchNorm2d(8))

        self.branches = nn.ModuleList([branch(3), branch(3), branch(1)])
        self.depth = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)) for _ in range(2)
        )
        self.skip = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(sum(b(x) for b in self.branches))
        return torch.relu(self.skip(x) + sum(d(x) for d in self.depth))


@CASES.module(images(8), 8, 11)
class Halo(nn.Module):
    """Attention of blocks to their surroundings with relative positions, as in HaloNet."""

    def __init__(self, c: int = 8, block: int = 4, halo: int = 1) -> None:
        super().__init__()
        self.block, self.halo, self.k = block, halo, block + 2 * halo
        self.qkv = nn.Conv2d(c, 3 * c, 1, bias=False)
        self.rel = nn.Parameter(randn(block * block, self.k * self.k) / 4)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        s = self.block
        x = F.pad(x, (0, -w % s, 0, -h % s))
        hp, wp = x.shape[2:]
        q, k, v = self.qkv(x).chunk(3, 1)
        q = q.view(b, c, hp // s, s, wp // s, s).permute(0, 2, 4, 3, 5, 1).flatten(3, 4)
        around = F.unfold(torch.cat([k, v], 1), self.k, stride=s, padding=self.halo)
        k, v = around.view(b, 2, c, self.k**2, hp // s, wp // s).permute(1, 0, 4, 5, 3, 2)
        y = (q @ k.transpose(-1, -2) * c**-0.5 + self.rel).softmax(-1) @ v
        y = y.view(b, hp // s, wp // s, s, s, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, hp, wp)
        return y[:, :, :h, :w]


@CASES.module(images(), 28, 42)
class DinoEncoder(nn.Module):
    """A vision transformer with registers, layer scale and positions that are interpolated to the image."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.patch, self.cls, self.registers = (
            nn.Conv2d(3, c, 7, 7),
            nn.Parameter(randn(1, 1, c)),
            nn.Parameter(randn(1, 4, c)),
        )
        self.positions = nn.Parameter(randn(1, 17, c) * 0.1)
        self.norms, self.norms2 = (nn.ModuleList(nn.LayerNorm(c) for _ in range(2)) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(c, 3 * c) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)) for _ in range(2))
        self.scales = nn.ParameterList(nn.Parameter(torch.full((c,), 0.1)) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.patch(x)
        h, w = y.shape[2:]
        y = y.flatten(2).transpose(1, 2)
        grid = self.positions[:, 1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(h, w), mode="bicubic", antialias=False).permute(0, 2, 3, 1).flatten(1, 2)
        y = torch.cat([self.cls.expand(y.shape[0], -1, -1) + self.positions[:, :1], y + grid], 1)
        y = torch.cat([y[:, :1], self.registers.expand(y.shape[0], -1, -1), y[:, 1:]], 1)
        for i in range(2):
            b, n, c = y.shape
            q, k, v = self.qkv[i](self.norms[i](y)).reshape(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
            a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
            y = y + a * self.scales[2 * i]
            y = y + self.mlp[i](self.norms2[i](y)) * self.scales[2 * i + 1]
        return {"cls": y[:, 0], "patches": y[:, 5:], "registers": y[:, 1:5]}


@CASES.module(lambda n: (randn(2, n, 16), randn(2, 5, 16), rand(2, n) > 0.3), 12, 18)
class DetrDecoder(nn.Module):
    """Queries attend to themselves and to masked memory."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
        self.decoder, self.classes, self.boxes = nn.TransformerDecoder(layer, 2), nn.Linear(16, 7), nn.Linear(16, 4)

    def forward(self, memory: Tensor, queries: Tensor, keep: Tensor) -> dict[str, Tensor]:
        y = self.decoder(queries, memory, memory_key_padding_mask=~keep)
        return {"logits": self.classes(y), "boxes": self.boxes(y).sigmoid()}


@CASES.module(images(), 32, 64)
class YoloHead(nn.Module):
    """Anchor-free decoding with a distribution over distances (DFL), strides and concatenated levels."""

    def __init__(self, classes: int = 5, bins: int = 8) -> None:
        super().__init__()
        self.bins = bins
        self.stem = nn.Conv2d(3, 8, 3, 4, 1)
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.heads = nn.ModuleList(nn.Conv2d(8, 4 * bins + classes, 1) for _ in range(2))
        self.register_buffer("values", torch.arange(bins, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        p = self.stem(x).relu()
        levels, made = [(p, 4), (self.down(p).relu(), 8)], []
        for head, (level, stride) in zip(self.heads, levels, strict=True):
            h, w = level.shape[2:]
            y = head(level).flatten(2).transpose(1, 2)
            distances = y[..., : 4 * self.bins].unflatten(-1, (4, self.bins)).softmax(-1) @ self.values
            gy, gx = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
            centre = torch.stack([gx, gy], -1).view(-1, 2)
            low, high = centre - distances[..., :2], centre + distances[..., 2:]
            boxes = torch.cat([(low + high) / 2, high - low], -1) * stride
            made.append(torch.cat([boxes, y[..., 4 * self.bins :].sigmoid()], -1))
        return torch.cat(made, 1)


@CASES.module(images(4), 16, 20)
class WaveletUNet(nn.Module):
    """Haar wavelets as strided slices, a convolution per band, and the inverse by a transposed layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]
        bands = torch.cat([a + b + c + d, -a - b + c + d, -a + b - c + d, a - b - c + d], 1) / 2
        ll, hl, lh, hh = self.conv(F.leaky_relu(bands, 0.2)).chunk(4, 1)
        out = torch.zeros_like(x)
        out[..., ::2, ::2], out[..., 1::2, ::2] = ll - hl - lh + hh, ll - hl + lh - hh
        out[..., ::2, 1::2], out[..., 1::2, 1::2] = ll + hl - lh - hh, ll + hl + lh + hh
        return out / 2


@CASES.module(images(), 24, 30)
class FourierMixer(nn.Module):
    """GFNet: a learned filter in the Fourier domain, interpolated to the spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(randn(3, 8, 5, 2) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        f = torch.fft.rfft2(x, norm="ortho")
        weight = F.interpolate(
            self.filter.permute(0, 3, 1, 2), size=tuple(f.shape[-2:]), mode="bilinear", align_corners=True
        )
        weight = torch.view_as_complex(weight.permute(0, 2, 3, 1).contiguous())
        return torch.fft.irfft2(f * weight, s=tuple(x.shape[-2:]), norm="ortho")


@CASES.module(images(8), 7, 16)
class SpatialPyramid(nn.Module):
    """Adaptive pools of several sizes, flattened together: any image gives one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8 * (1 + 4 + 9 + 25), 6)

    def forward(self, x: Tensor) -> Tensor:
        pools = [F.adaptive_avg_pool2d(x, k).flatten(1) for k in (1, 2)] + [
            F.adaptive_max_pool2d(x, k).flatten(1) for k in (3, 5)
        ]
        return self.fc(torch.cat(pools, 1))


@CASES.module(images(), 20, 28)
class PerceptualLoss(nn.Module):
    """LPIPS-like distances of unit-length features at three depths, against a shifted copy."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1)])

    def forward(self, x: Tensor) -> Tensor:
        y, total = x.roll((1, -2), (2, 3)), []
        for block in self.blocks:
            x, y = block(x).relu(), block(y).relu()
            nx, ny = (f / (f.norm(dim=1, keepdim=True) + 1e-10) for f in (x, y))
            total.append((nx - ny).square().mean((1, 2, 3)))
        return torch.stack(total).sum(0)


@CASES.module(lambda n: (rand(1, 3, n, n), rand(1, 3, n, n)), 24, 32)
class Ssim(nn.Module):
    """Structural similarity by Gaussian windows."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.exp(-((torch.arange(7) - 3.0) ** 2) / 4.5)
        self.register_buffer("window", (g[:, None] * g)[None, None].expand(3, 1, 7, 7) / g.sum() ** 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def blur(z: Tensor) -> Tensor:
            return F.conv2d(z, self.window, groups=3)

        mx, my = blur(x), blur(y)
        vx, vy, c = blur(x * x) - mx**2, blur(y * y) - my**2, blur(x * y) - mx * my
        s = (2 * mx * my + 1e-4) * (2 * c + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
        return s.flatten(1).mean(-1)


@CASES.module(lambda n: (randn(1, 16, n, n),), 12, 18)
class CondInst(nn.Module):
    """Instances bring their own mask heads: dynamic weights split out of one vector, in grouped convolutions."""

    def __init__(self, instances: int = 3) -> None:
        super().__init__()
        self.n = instances
        self.controller = nn.Linear(16, instances * (10 * 8 + 8 + 8 + 1))
        self.reduce = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        params = self.controller(x.mean((2, 3))).view(self.n, -1)
        w1, b1, w2, b2 = params.split([80, 8, 8, 1], 1)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        y = torch.cat([self.reduce(x), torch.stack([xs, ys])[None]], 1).repeat(1, self.n, 1, 1)
        y = F.conv2d(y, w1.reshape(self.n * 8, 10, 1, 1), b1.flatten(), groups=self.n).relu()
        return F.conv2d(y, w2.reshape(self.n, 8, 1, 1), b2.flatten(), groups=self.n).sigmoid()


@CASES.module(lambda n: (randint(0, 256, (2, n, n, 3), dtype=torch.uint8),), 20, 26)
class Preprocess(nn.Module):
    """Bytes to normalised planes, resized and centre-cropped."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 3, 1, 2).to(torch.float32).div(255)
        y = F.interpolate(y, size=(18, 18), mode="bilinear", antialias=True)
        return (y[..., 1:17, 1:17] - self.mean) / self.std


@CASES.module(images(6), 13, 21)
class GatedPixelCnn(nn.Module):
    """Masked convolutions, vertical and horizontal stacks with gates."""

    def __init__(self, c: int = 6) -> None:
        super().__init__()
        self.vertical, self.horizontal = nn.Conv2d(c, 2 * c, (2, 3)), nn.Conv2d(c, 2 * c, (1, 2))
        self.cross = nn.Conv2d(2 * c, 2 * c, 1)
        self.register_buffer("mask", torch.tensor([1.0, 0.0]).view(1, 1, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        v = self.vertical(F.pad(x, (1, 1, 1, 0)))
        h = F.conv2d(F.pad(x, (1, 0, 0, 0)), self.horizontal.weight * self.mask, self.horizontal.bias)
        a, b = (h + self.cross(v)).chunk(2, 1)
        return x + torch.tanh(a) * torch.sigmoid(b)


@CASES.module(images(), 24, 40)
class DepthAnythingHead(nn.Module):
    """A dense prediction head: tokens to maps, reassembled at scales, fused from the coarsest."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, c, 4, 4)
        self.up, self.same, self.down = nn.ConvTranspose2d(c, 8, 2, 2), nn.Conv2d(c, 8, 1), nn.Conv2d(c, 8, 3, 2, 1)
        self.fuse = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.out = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x)
        fine, middle, coarse = self.up(y), self.same(y), self.down(y)
        z = self.fuse[0](coarse.relu())
        z = F.interpolate(z, size=middle.shape[2:], mode="bilinear", align_corners=True) + self.fuse[1](middle)
        z = F.interpolate(z, size=fine.shape[2:], mode="bilinear", align_corners=True) + self.fuse[2](fine)
        return F.relu(F.interpolate(self.out(z), size=x.shape[2:], mode="bilinear", align_corners=True)).squeeze(1)
