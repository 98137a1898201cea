"""Newcomer cases as libraries of backbones, detectors, diffusion models and radiance fields write their parts.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (randn(2, n, n, 16),), 8, 11)
class OutlookAttention(nn.Module):
    """VOLO: each place gives the weights of its window, whose weighted values are added up where windows overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.weights, self.out = nn.Linear(16, 16, bias=False), nn.Linear(16, 2 * 81), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        v = F.unfold(self.value(x).permute(0, 3, 1, 2), 3, padding=1)
        v = v.reshape(b, 2, c // 2, 9, h * w).permute(0, 1, 4, 3, 2)
        a = self.weights(x).reshape(b, h * w, 2, 9, 9).permute(0, 2, 1, 3, 4) * (c // 2) ** -0.5
        y = (a.softmax(-1) @ v).permute(0, 1, 4, 3, 2).reshape(b, c * 9, h * w)
        return self.out(F.fold(y, (h, w), 3, padding=1).permute(0, 2, 3, 1))


@CASES.module(lambda n: (randn(2, n, 24),), 16, 21)
class CrossCovariance(nn.Module):
    """XCiT: attention between channels, temperatures of heads, a local convolution over the square of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.temperature = nn.Parameter(torch.ones(3, 1, 1) * 1.3)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 3, c // 3).permute(2, 0, 3, 4, 1)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        return x + self.out((scores.softmax(-1) @ v).permute(0, 3, 1, 2).reshape(b, n, c))


@CASES.module(lambda n: (randn(2, n, n, 12),), 9, 14)
class FocalModulation(nn.Module):
    """FocalNet: contexts of growing depthwise kernels and of the whole picture, gated and gathered for a query."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.gather, self.out = nn.Linear(12, 28), nn.Conv2d(12, 12, 1), nn.Linear(12, 12)
        self.levels = nn.ModuleList(nn.Conv2d(12, 12, k, padding=k // 2, groups=12, bias=False) for k in (3, 5, 7))

    def forward(self, x: Tensor) -> Tensor:
        q, context, gates = self.entry(x).permute(0, 3, 1, 2).split([12, 12, 4], 1)
        total = torch.zeros_like(context)
        for k, level in enumerate(self.levels):
            context = F.gelu(level(context))
            total = total + context * gates[:, k : k + 1]
        total = total + F.gelu(context.mean((2, 3), keepdim=True)) * gates[:, 3:]
        return self.out((q * self.gather(total)).permute(0, 2, 3, 1))


@CASES.module(lambda n: (randn(2, 16, n, n),), 10, 13)
class SplitAttention(nn.Module):
    """ResNeSt: softmax over the radix of grouped features, channels laid out as cardinals."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.squeeze = nn.Sequential(nn.Conv2d(16, 8, 1, groups=2), nn.BatchNorm2d(8), nn.ReLU())
        self.excite = nn.Conv2d(8, 32, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        b, rc, h, w = x.shape
        parts = x.reshape(b, 2, rc // 2, h, w)
        gate = self.excite(self.squeeze(F.adaptive_avg_pool2d(parts.sum(1), 1)))
        gate = gate.view(b, 2, 2, -1).transpose(1, 2).softmax(1).reshape(b, rc, 1, 1)
        return (parts * gate.reshape(b, 2, rc // 2, 1, 1)).sum(1).contiguous()


@CASES.module(lambda n: (randn(1, 16, n, n),), 8, 12)
class FoldedTransformer(nn.Module):
    """MobileViT: pixels of one place in every 2x2 patch attend to each other, at any size of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 24, 1, bias=False))
        self.block = nn.TransformerEncoderLayer(24, 4, 48, activation=F.silu, batch_first=True, norm_first=True)
        self.fuse = nn.Conv2d(40, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.local(x)
        b, c, h, w = y.shape
        new_h, new_w = math.ceil(h / 2) * 2, math.ceil(w / 2) * 2
        if (new_h, new_w) != (h, w):
            y = F.interpolate(y, size=(new_h, new_w), mode="bilinear", align_corners=False)
        rows, columns = new_h // 2, new_w // 2
        y = y.reshape(b * c * rows, 2, columns, 2).transpose(1, 2)
        y = y.reshape(b, c, rows * columns, 4).transpose(1, 3).reshape(b * 4, rows * columns, c)
        y = self.block(y).reshape(b, 4, rows * columns, c).transpose(1, 3)
        y = y.reshape(b * c * rows, columns, 2, 2).transpose(1, 2).reshape(b, c, new_h, new_w)
        return self.fuse(torch.cat([x, y], 1))


@CASES.module(lambda n: (randn(2, n * n, 16),), 4, 6)
class PlaneRotary(nn.Module):
    """EVA: rotary positions of rows and columns in pixel order, for all patches but a class token, SwiGLU behind."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.cls = nn.Linear(16, 48), nn.Parameter(randn(1, 1, 16) * 0.1)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        side = int(n**0.5)
        x = torch.cat([self.cls.expand(b, -1, -1), x], 1)
        q, k, v = self.qkv(x).reshape(b, n + 1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        bands = 1.0 / 100.0 ** (torch.arange(2) / 2)
        grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2, 1)
        angle = (grid * bands).flatten(1).repeat_interleave(2, -1)
        turned = []
        for y in (q, k):
            y, first = y[:, :, 1:], y[:, :, :1]
            other = torch.stack([-y[..., 1::2], y[..., ::2]], -1).reshape(y.shape)
            turned.append(torch.cat([first, y * angle.cos() + other * angle.sin()], 2))
        x = x + F.scaled_dot_product_attention(*turned, v).transpose(1, 2).reshape(b, n + 1, c)
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


@CASES.module(lambda n: (randn(1, 5, 16), randn(1, n * n + (n // 2) ** 2, 16), rand(1, 5, 2, 2)), 8, 10)
class SampledAttention(nn.Module):
    """Deformable DETR: queries sample a few points of several scales, at offsets that they choose."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.offsets, self.weights = nn.Linear(16, 16), nn.Linear(16, 2 * 2 * 3 * 2), nn.Linear(16, 12)

    def forward(self, queries: Tensor, memory: Tensor, reference: Tensor) -> Tensor:
        b, q, c = queries.shape
        total = memory.shape[1]
        side = int((total * 4 / 5) ** 0.5 + 0.5)
        shapes = [(side, side), (side // 2, side // 2)]
        levels = self.value(memory).view(b, total, 2, c // 2).split([h * w for h, w in shapes], 1)
        offsets = self.offsets(queries).view(b, q, 2, 2, 3, 2)
        weights = self.weights(queries).view(b, q, 2, 6).softmax(-1)
        scale = torch.tensor([[w, h] for h, w in shapes], dtype=queries.dtype)
        grid = 2 * (reference[:, :, None, :, None] + offsets / scale[None, None, None, :, None]) - 1
        sampled = []
        for k, (h, w) in enumerate(shapes):
            v = levels[k].flatten(2).transpose(1, 2).reshape(b * 2, c // 2, h, w)
            at = grid[:, :, :, k].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(v, at, mode="bilinear", padding_mode="zeros", align_corners=False))
        values = torch.stack(sampled, -2).flatten(-2)
        weights = weights.transpose(1, 2).reshape(b * 2, 1, q, 6)
        return (values * weights).sum(-1).view(b, c, q).transpose(1, 2)


@CASES.module(lambda n: (randn(2, 8, n, n), randn(2, 1, n, n)), 12, 16)
class PointRefinement(nn.Module):
    """PointRend: the places whose mask is least sure are sampled, judged again and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = nn.Sequential(nn.Conv1d(9, 16, 1), nn.ReLU(), nn.Conv1d(16, 1, 1))

    def forward(self, features: Tensor, coarse: Tensor) -> Tensor:
        mask = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        b, _, h, w = mask.shape
        at = (-mask.abs()).view(b, -1).topk(12, 1)[1]
        x = (at % w).float() / w + 0.5 / w
        y = torch.div(at, w, rounding_mode="floor").float() / h + 0.5 / h
        grid = torch.stack([x, y], -1).unsqueeze(2) * 2 - 1
        seen = [F.grid_sample(t, grid, align_corners=False).squeeze(3) for t in (features, coarse)]
        found = self.judge(torch.cat(seen, 1))
        return mask.reshape(b, 1, -1).scatter(2, at.unsqueeze(1), found).view(b, 1, h, w)


@CASES.function(lambda n: (rand(n, 2) * 40, rand(n, 2) * 60 + 4, randn(4, 8, 16, 16)), 9, 14)
def pooled_by_level(corner: Tensor, size: Tensor, pyramid: Tensor) -> tuple[Tensor, Tensor]:
    """Detectron: each box goes to the level of its area and is read there, results in the boxes' order."""
    boxes = torch.cat([corner, corner + size], 1)
    level = torch.floor(4 + torch.log2(size.prod(1).sqrt() / 224 + 1e-8)).clamp(min=2, max=5).long() - 2
    found = torch.zeros(boxes.shape[0], 8)
    for k in range(4):
        chosen = level == k
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2 / 100 * 2 - 1
        read = F.grid_sample(pyramid[k : k + 1], centre.view(1, -1, 1, 2), align_corners=True)[0, :, :, 0].t()
        found = torch.where(chosen[:, None], read, found)
    return found, torch.bincount(level, minlength=4)


@CASES.function(lambda n: (rand(n, 2) * 20, rand(n) * 3 + 1, randint(0, 3, (n,))), 5, 8)
def drawn_heatmaps(centre: Tensor, radius: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """CenterNet's targets: the greater of Gaussians around whole places, offsets beside them."""
    place = centre.floor()
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    apart = (x - place[:, 0, None, None]) ** 2 + (y - place[:, 1, None, None]) ** 2
    sigma = (2 * radius + 1) / 6
    bell = torch.exp(-apart / (2 * sigma**2)[:, None, None])
    bell = torch.where(bell < torch.finfo(bell.dtype).eps * bell.amax((1, 2), keepdim=True), 0.0, bell)
    maps = torch.zeros(3, 20, 20).scatter_reduce(0, kind[:, None, None].expand(-1, 20, 20), bell, "amax")
    return maps, torch.zeros(2, 400).index_put((torch.tensor([0]), place.long() @ torch.tensor([1, 20])), centre[:, 0])


@CASES.module(lambda n: (randn(2, n, 16), randn(2, 16)), 9, 13)
class AdaptiveNormBlock(nn.Module):
    """A diffusion transformer's block: shifts, scales and gates from the condition, which begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(16, 96))
        self.norms = nn.ModuleList(nn.LayerNorm(16, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        y = self.norms[0](x) * (1 + scale) + shift
        x = x + gate * self.attention(y, y, y, need_weights=False)[0]
        return x + gate2 * self.feed(self.norms[1](x) * (1 + scale2) + shift2)


@CASES.function(lambda n: (randn(2, 3, n, n),), 8, 11)
def karras_sampler(x: Tensor) -> Tensor:
    """Heun's steps over noise levels that Karras spaced, with a denoiser that knows its variance."""
    ramp = torch.linspace(0, 1, 6)
    sigmas = (10.0 ** (1 / 7) + ramp * (0.03 ** (1 / 7) - 10.0 ** (1 / 7))) ** 7
    sigmas = torch.cat([sigmas, sigmas.new_zeros(1)])
    x = x * sigmas[0]

    def slope(y: Tensor, sigma: Tensor) -> Tensor:
        kept = 1 / (sigma**2 + 1)
        return (y - torch.tanh(y * kept)) / sigma

    for k in range(6):
        d = slope(x, sigmas[k])
        step = sigmas[k + 1] - sigmas[k]
        ahead = x + d * step
        x = ahead if k == 5 else x + (d + slope(ahead, sigmas[k + 1])) / 2 * step
    return x


@CASES.module(lambda n: (randn(2, 8, n, 6, 6),), 4, 7)
class FramesInTime(nn.Module):
    """A video diffusion model's layer: pictures one by one, then each pixel over its frames with positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.attention, self.mix = nn.MultiheadAttention(8, 2, batch_first=True), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        b, c, f, h, w = x.shape
        y = self.conv(F.silu(self.norm(x.transpose(1, 2).reshape(b * f, c, h, w))))
        y = y.reshape(b, f, c, h, w).permute(0, 3, 4, 1, 2).reshape(b * h * w, f, c)
        bands = torch.exp(torch.arange(0, c, 2) * (-math.log(1e4) / c))
        angle = torch.arange(f)[:, None] * bands
        y = y + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        y = self.attention(y, y, y, need_weights=False)[0]
        y = y.reshape(b, h, w, f, c).permute(0, 4, 3, 1, 2)
        return torch.lerp(x, y, self.mix.sigmoid())


@CASES.module(lambda n: (randn(2, n, 3), randn(3, 8, 16, 16)), 20, 27)
class ThreePlanes(nn.Module):
    """EG3D: points read three planes of features, a small decoder gives density and colour."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 4))
        orders = torch.tensor([[0, 1, 2], [0, 2, 1], [2, 1, 0]])
        self.register_buffer("axes", torch.eye(3)[orders])

    def forward(self, points: Tensor, planes: Tensor) -> tuple[Tensor, Tensor]:
        b, n, _ = points.shape
        at = points[:, None].expand(-1, 3, -1, -1).reshape(b * 3, n, 3)
        inverse = torch.linalg.inv(self.axes).unsqueeze(0).expand(b, -1, -1, -1).reshape(b * 3, 3, 3)
        flat = torch.bmm(at, inverse)[..., :2].unsqueeze(1)
        planes = planes.unsqueeze(0).expand(b, -1, -1, -1, -1).flatten(0, 1)
        read = F.grid_sample(planes, flat, mode="bilinear", padding_mode="zeros", align_corners=False)
        found = self.decoder(read.permute(0, 3, 2, 1).reshape(b, 3, n, 8).mean(1))
        return F.softplus(found[..., :1] - 1), found[..., 1:].sigmoid() * 1.002 - 0.001


@CASES.function(lambda n: (rand(4, n).cumsum(1), rand(4, n - 1), rand(4, 9)), 12, 17)
def inverse_sampling(edges: Tensor, weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """A radiance field's fine samples: the weights' distribution turned around at given numbers."""
    weights = weights + 1e-5
    density = weights / weights.sum(-1, keepdim=True)
    heights = torch.cumsum(density, -1)
    heights = torch.cat([torch.zeros_like(heights[..., :1]), heights], -1)
    above = torch.searchsorted(heights, u.contiguous(), right=True)
    pair = torch.stack([(above - 1).clamp(min=0), above.clamp(max=heights.shape[-1] - 1)], -1)
    shape = [pair.shape[0], pair.shape[1], heights.shape[-1]]
    h = torch.gather(heights.unsqueeze(1).expand(shape), 2, pair)
    e = torch.gather(edges.unsqueeze(1).expand(shape), 2, pair)
    width = h[..., 1] - h[..., 0]
    t = (u - h[..., 0]) / torch.where(width < 1e-5, torch.ones_like(width), width)
    return e[..., 0] + t * (e[..., 1] - e[..., 0]), above


@CASES.function(lambda n: (randn(n, 3), randn(n, 3, 9)), 10, 16)
def spherical_colours(direction: Tensor, coefficients: Tensor) -> Tensor:
    """Plenoxels: colours by spherical harmonics up to the second degree."""
    x, y, z = F.normalize(direction, dim=-1).unbind(-1)
    basis = torch.stack([
        torch.full_like(x, 0.28209479), -0.48860251 * y, 0.48860251 * z, -0.48860251 * x, 1.09254843 * x * y,
        -1.09254843 * y * z, 0.31539157 * (2.0 * z * z - x * x - y * y), -1.09254843 * x * z,
        0.54627422 * (x * x - y * y),
    ], -1)  # fmt: skip
    return torch.sigmoid((coefficients * basis[:, None]).sum(-1))
