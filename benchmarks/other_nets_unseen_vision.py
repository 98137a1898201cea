"""Nets for images and volumes of a second sweep, written without looking at the compiler; random weights.

In: nothing. Out: ``NETS[name]()`` gives a module and its inputs. Not its business: measuring (``other_nets.py``).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
import transformers
from benchmarks.interleaved import Lambda, Tensors
from benchmarks.other_nets_more import First
from benchmarks.other_nets_vision import Net, conv
from torch import Tensor, nn, randn


def lively(module: nn.Module) -> nn.Module:
    """The module with weights that keep the size of what passes: with its own, all results would be near 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out" if isinstance(layer, nn.ConvTranspose2d) else "fan_in")
    return module


class RepVggBlock(nn.Module):
    """RepVGG as it is trained: 3x3, 1x1 and the identity, each with its norm, added."""

    def __init__(self, c: int, out: int, stride: int) -> None:
        super().__init__()
        self.three = conv(c, out, 3, stride, act=nn.Identity)
        self.one = conv(c, out, 1, stride, act=nn.Identity)
        self.same = nn.BatchNorm2d(c) if c == out and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.three(x) + self.one(x)
        return F.relu(y if self.same is None else y + self.same(x))


def repvgg() -> tuple[nn.Module, Tensors]:
    widths = [(3, 48, 2), (48, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 96, 1), (96, 192, 2), (192, 192, 1)]
    return nn.Sequential(*[RepVggBlock(*w) for w in widths]), (randn(1, 3, 224, 224),)


class GridAttention(nn.Module):
    """MaxViT: attention inside of windows of 7x7 pixels, or among pixels that lie a seventh of the image apart."""

    def __init__(self, c: int, *, grid: bool) -> None:
        super().__init__()
        self.grid, self.norm, self.last = grid, nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.feed = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
        self.bias = nn.Parameter(randn(c // 32, 49, 49))

    def forward(self, x: Tensor) -> Tensor:
        batch, h, w, c = x.shape
        shape, order = (batch, h // 7, 7, w // 7, 7, c), (0, 1, 3, 2, 4, 5)
        if self.grid:
            shape, order = (batch, 7, h // 7, 7, w // 7, c), (0, 2, 4, 1, 3, 5)
        y = x.view(shape).permute(order)
        split = y.shape
        y = y.reshape(-1, 49, c)
        q, k, v = self.qkv(self.norm(y)).view(-1, 49, 3, c // 32, 32).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        y = y + self.out(mixed.transpose(1, 2).reshape(-1, 49, c))
        y = y + self.feed(self.last(y))
        return y.view(split).permute([order.index(k) for k in range(6)]).reshape(batch, h, w, c)


class SqueezeExcite(nn.Module):
    """Channels weighted by a small net of their means."""

    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(c, inner, 1), nn.Conv2d(inner, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class MaxVit(nn.Module):
    """A stem and two MaxViT blocks: an inverted bottleneck, window attention, grid attention."""

    def __init__(self, c: int = 64) -> None:
        super().__init__()
        gelu = nn.GELU
        self.stem = nn.Sequential(conv(3, c, 3, 2, act=gelu), conv(c, c, 3, 2, act=gelu))
        self.bottlenecks = nn.ModuleList(
            nn.Sequential(
                conv(c, 4 * c, 1, act=gelu), conv(4 * c, 4 * c, 3, groups=4 * c, act=gelu), SqueezeExcite(4 * c, c),
                nn.Conv2d(4 * c, c, 1),
            )
            for _ in range(2)
        )  # fmt: skip
        self.windows = nn.ModuleList(GridAttention(c, grid=False) for _ in range(2))
        self.grids = nn.ModuleList(GridAttention(c, grid=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for bottleneck, window, grid in zip(self.bottlenecks, self.windows, self.grids, strict=True):
            y = (x + bottleneck(x)).permute(0, 2, 3, 1)
            x = grid(window(y)).permute(0, 3, 1, 2)
        return x.mean((2, 3))


def maxvit() -> tuple[nn.Module, Tensors]:
    return MaxVit(), (randn(1, 3, 224, 224),)


class CrossCovariance(nn.Module):
    """XCiT and EdgeNeXt: attention of channels to channels, over unit vectors, and a depthwise convolution."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.last, self.middle = heads, nn.LayerNorm(c), nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out, self.scale = nn.Linear(c, 3 * c), nn.Linear(c, c), nn.Parameter(torch.ones(heads, 1, 1))
        self.local = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, groups=c), nn.GELU(), nn.BatchNorm2d(c), nn.Conv2d(c, c, 3, 1, 1, groups=c)
        )
        self.feed = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, c = x.shape
        side = int(n**0.5)
        q, k, v = self.qkv(self.norm(x)).view(batch, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 4, 1)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.scale
        x = x + self.out((scores.softmax(-1) @ v).permute(0, 3, 1, 2).reshape(batch, n, c))
        y = self.local(self.middle(x).transpose(1, 2).view(batch, c, side, side))
        x = x + y.flatten(2).transpose(1, 2)
        return x + self.feed(self.last(x))


def xcit() -> tuple[nn.Module, Tensors]:
    stem = [nn.Conv2d(3, 192, 16, 16), nn.Flatten(2), Lambda(lambda x: x.transpose(1, 2))]
    return nn.Sequential(*stem, *[CrossCovariance(192, 4) for _ in range(4)]), (randn(1, 3, 224, 224),)


class SplitAttention(nn.Module):
    """ResNeSt: two groups of convolutions, weighed against each other for every channel."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.convs = conv(c, 2 * c, groups=2)
        self.down = conv(c, c // 2, 1)
        self.up = nn.Conv2d(c // 2, 2 * c, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, c, h, w = x.shape
        y = self.convs(x).view(batch, 2, c, h, w)
        weights = self.up(self.down(y.sum(1).mean((2, 3), keepdim=True))).view(batch, 2, c, 1, 1).softmax(1)
        return (y * weights).sum(1)


class Residual(nn.Module):
    """A net around which the input passes."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def resnest() -> tuple[nn.Module, Tensors]:
    stem = [conv(3, 32, 3, 2), conv(32, 64), nn.MaxPool2d(3, 2, 1), conv(64, 256, 1)]

    def block() -> nn.Module:
        return Residual(conv(256, 64, 1), SplitAttention(64), conv(64, 256, 1, act=nn.Identity))

    return nn.Sequential(*stem, *[block() for _ in range(3)]), (randn(1, 3, 224, 224),)


class HrModule(nn.Module):
    """HRNet: branches at full, half and a quarter of the size, each then the sum of all."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*[Residual(conv(c, c), conv(c, c)) for _ in range(2)]) for c in widths
        )
        self.fuse = nn.ModuleList(
            nn.ModuleList(self._path(widths, source, target) for source in range(len(widths)))
            for target in range(len(widths))
        )

    @staticmethod
    def _path(widths: tuple[int, ...], source: int, target: int) -> nn.Module:
        if source > target:
            up = nn.Upsample(scale_factor=2 ** (source - target), mode="nearest")
            return nn.Sequential(conv(widths[source], widths[target], 1, act=nn.Identity), up)
        steps = [conv(a, b, 3, 2, act=nn.Identity) for a, b in pairwise(widths[source : target + 1])]
        return nn.Sequential(*steps)

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        xs = [branch(x) for branch, x in zip(self.branches, xs, strict=True)]
        return [F.relu(self._sum(paths, xs)) for paths in self.fuse]

    @staticmethod
    def _sum(paths: nn.Module, xs: list[Tensor]) -> Tensor:
        first, *rest = (path(x) for path, x in zip(paths.children(), xs, strict=True))
        return sum(rest, first)


class HrNet(nn.Module):
    """A stem, two modules of three branches, key points from the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.second_branch, self.third_branch = (
            nn.Sequential(conv(3, 64, 3, 2), conv(64, 32, 3, 2)),
            conv(32, 64, 3, 2),
            conv(64, 128, 3, 2),
        )
        self.first, self.second, self.out = HrModule((32, 64, 128)), HrModule((32, 64, 128)), nn.Conv2d(32, 17, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.second_branch(x)
        return self.out(self.second(self.first([x, y, self.third_branch(y)]))[0])


def hrnet() -> tuple[nn.Module, Tensors]:
    return HrNet(), (randn(1, 3, 256, 192),)


class Fpn(nn.Module):
    """A small backbone's four maps, joined from the coarsest to the finest, and a convolution of each."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256, 512)
        self.stages = nn.ModuleList(nn.Sequential(conv(a, b, 3, 2), conv(b, b)) for a, b in pairwise(widths))
        self.sides = nn.ModuleList(nn.Conv2d(w, c, 1) for w in widths[2:])
        self.out = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in self.sides)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [side(m) for side, m in zip(self.sides, maps[1:], strict=True)]
        for k in range(len(levels) - 1, 0, -1):
            levels[k - 1] = levels[k - 1] + F.interpolate(levels[k], scale_factor=2.0, mode="nearest")
        return [out(level) for out, level in zip(self.out, levels, strict=True)]


def fpn() -> tuple[nn.Module, Tensors]:
    return Fpn(), (randn(1, 3, 256, 320),)


class CenterNet(nn.Module):
    """Transposed convolutions up to a quarter of the image, three heads, peaks of the heat map."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        self.body = nn.Sequential(*[nn.Sequential(conv(a, b, 3, 2), conv(b, b)) for a, b in pairwise(widths)])
        self.up = nn.Sequential(*[
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise((256, 128, 64))
        ])  # fmt: skip
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, n, 1)) for n in (20, 2, 2)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.up(self.body(x))
        heat, size, offset = (head(x) for head in self.heads)
        heat = heat.sigmoid()
        peaks = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        scores, places = peaks.flatten(1).topk(50)
        return scores, places, size, offset


def centernet() -> tuple[nn.Module, Tensors]:
    return lively(CenterNet()), (randn(1, 3, 256, 256),)


class Detr(nn.Module):
    """A backbone, an encoder of its pixels, a decoder of 50 learned queries, classes and boxes."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256, 256)
        self.body = nn.Sequential(*[conv(a, b, 3, 2) for a, b in pairwise(widths)], nn.Conv2d(256, c, 1))
        self.places, self.queries = nn.Parameter(randn(1, 100, c)), nn.Parameter(randn(1, 50, c))
        make = partial(nn.TransformerEncoderLayer, c, 8, 512, 0.0, batch_first=True)
        self.encoder = nn.ModuleList(make() for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(c, 8, 512, 0.0, batch_first=True) for _ in range(2))
        self.classes, self.boxes = nn.Linear(c, 92), nn.Sequential(nn.Linear(c, c), nn.ReLU(), nn.Linear(c, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.encoder:
            x = layer(x)
        y = self.queries
        for layer in self.decoder:
            y = layer(y, x)
        return self.classes(y), self.boxes(y).sigmoid()


def detr() -> tuple[nn.Module, Tensors]:
    return Detr(), (randn(1, 3, 320, 320),)


class NestedUnet(nn.Module):
    """UNet++: every skip connection is a chain of convolutions of all that lies before."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.nodes = nn.ModuleDict()
        for i, c in enumerate(widths):
            for j in range(len(widths) - i):
                inputs = (widths[i - 1] if i else 3) if j == 0 else j * c + widths[i + 1]
                self.nodes[f"{i}_{j}"] = nn.Sequential(conv(inputs, c), conv(c, c))
        self.depth, self.out = len(widths), nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        done: dict[tuple[int, int], Tensor] = {}
        for j in range(self.depth):
            for i in range(self.depth - j):
                if j == 0:
                    y = F.max_pool2d(done[i - 1, 0], 2) if i else x
                else:
                    up = F.interpolate(done[i + 1, j - 1], scale_factor=2.0, mode="bilinear", align_corners=True)
                    y = torch.cat([*(done[i, k] for k in range(j)), up], 1)
                done[i, j] = self.nodes[f"{i}_{j}"](y)
        return self.out(done[0, self.depth - 1])


def unet_nested() -> tuple[nn.Module, Tensors]:
    return NestedUnet(), (randn(1, 3, 128, 128),)


class SpatialTransformer(nn.Module):
    """Stable Diffusion: attention over pixels, to 77 words, and a layer gated by GELU."""

    def __init__(self, c: int, words: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.GroupNorm(32, c), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
        self.own = nn.MultiheadAttention(c, 8, batch_first=True, bias=False)
        self.cross = nn.MultiheadAttention(c, 8, batch_first=True, bias=False, kdim=words, vdim=words)
        self.gate, self.out = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.own(z, z, z, need_weights=False)[0]
        y = y + self.cross(self.norms[1](y), words, words, need_weights=False)[0]
        value, gate = self.gate(self.norms[2](y)).chunk(2, -1)
        y = y + self.out(value * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).view(x.shape))


def cross_unet() -> tuple[nn.Module, Tensors]:
    return SpatialTransformer(320, 768), (randn(1, 320, 32, 32), randn(1, 77, 768))


def edsr() -> tuple[nn.Module, Tensors]:
    blocks = [Residual(nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1)) for _ in range(4)]
    up = [nn.Conv2d(64, 256, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(64, 3, 3, 1, 1)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), *blocks, *up), (randn(1, 3, 96, 96),)


class MaskDecoder(nn.Module):
    """Mask2Former: queries attend where their last mask is on; masks are products of queries and pixels."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.pixels, self.sides = conv(64, c), nn.ModuleList(nn.Conv2d(64, c, 1) for _ in range(2))
        self.queries, self.heads = nn.Parameter(randn(1, 60, c)), 4
        self.qs, self.kvs = (nn.ModuleList(nn.Linear(c, n) for _ in range(2)) for n in (c, 2 * c))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(c, 512), nn.ReLU(), nn.Linear(512, c), nn.LayerNorm(c)) for _ in range(2)
        )
        self.embed, self.classes = nn.Sequential(nn.Linear(c, c), nn.ReLU(), nn.Linear(c, c)), nn.Linear(c, 81)

    def forward(self, fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
        pixels, q = self.pixels(fine), self.queries
        size = coarse.shape[-2:]
        for side, to_q, to_kv, feed in zip(self.sides, self.qs, self.kvs, self.feeds, strict=True):
            masks = torch.einsum("bqc,bchw->bqhw", self.embed(q), pixels)
            hidden = F.interpolate(masks, size=size, mode="bilinear", align_corners=False).flatten(2).unsqueeze(1)
            bias = torch.where(hidden.sigmoid() < 0.5, -1e4, 0.0)
            k, v = to_kv(side(coarse).flatten(2).transpose(1, 2)).chunk(2, -1)
            heads = [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (to_q(q), k, v)]
            q = q + F.scaled_dot_product_attention(*heads, attn_mask=bias).transpose(1, 2).flatten(2)
            q = feed(q)
        return self.classes(q), torch.einsum("bqc,bchw->bqhw", self.embed(q), pixels)


def mask_decoder() -> tuple[nn.Module, Tensors]:
    return MaskDecoder(), (randn(1, 64, 64, 64), randn(1, 64, 32, 32))


def convmixer() -> tuple[nn.Module, Tensors]:
    def norm() -> nn.Module:
        return nn.Sequential(nn.GELU(), nn.BatchNorm2d(256))

    def block() -> nn.Module:
        near = nn.Conv2d(256, 256, 9, padding=4, groups=256)
        return nn.Sequential(Residual(near, norm()), nn.Conv2d(256, 256, 1), norm())

    return nn.Sequential(nn.Conv2d(3, 256, 7, 7), norm(), *[block() for _ in range(6)]), (randn(1, 3, 224, 224),)


def replknet() -> tuple[nn.Module, Tensors]:
    """Depthwise kernels of 31x31."""

    def block(k: int) -> nn.Module:
        return nn.Sequential(
            Residual(conv(96, 96, 1), conv(96, 96, k, groups=96), conv(96, 96, 1, act=nn.Identity)),
            Residual(nn.BatchNorm2d(96), nn.Conv2d(96, 384, 1), nn.GELU(), nn.Conv2d(384, 96, 1)),
        )

    return nn.Sequential(conv(3, 96, 4, 4), block(31), block(13)), (randn(1, 3, 224, 224),)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of N, C, H, W."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, c, 1, 1)), nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-6) * self.weight + self.bias


class Naf(nn.Module):
    """NAFNet's block: halves multiplied instead of an activation, channels weighted by their means."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            ChannelNorm(c), nn.Conv2d(c, 2 * c, 1), nn.Conv2d(2 * c, 2 * c, 3, 1, 1, groups=2 * c)
        )
        self.weigh, self.middle, self.leave = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.wide = nn.Sequential(ChannelNorm(c), nn.Conv2d(c, 2 * c, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.enter(x).chunk(2, 1)
        y = a * b
        x = x + self.middle(y * self.weigh(y.mean((2, 3), keepdim=True)))
        a, b = self.wide(x).chunk(2, 1)
        return x + self.leave(a * b)


def nafnet() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), *[Naf(32) for _ in range(4)], nn.Conv2d(32, 3, 3, 1, 1)), (
        randn(1, 3, 128, 128),
    )


class LinearAttention(nn.Module):
    """EfficientViT: attention of ReLU kernels, whose cost does not grow with the square of the pixels."""

    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads, self.out = heads, conv(c, c, 1, act=nn.Identity)
        self.qkv = nn.Sequential(nn.Conv2d(c, 3 * c, 1), nn.Conv2d(3 * c, 3 * c, 5, padding=2, groups=3 * c))

    def forward(self, x: Tensor) -> Tensor:
        batch, c, h, w = x.shape
        q, k, v = self.qkv(x).view(batch, 3, self.heads, c // self.heads, h * w).transpose(3, 4).unbind(1)
        q, k = F.relu(q), F.relu(k)
        y = q @ (k.transpose(2, 3) @ v) / (q @ k.sum(2, keepdim=True).transpose(2, 3) + 1e-6)
        return x + self.out(y.transpose(2, 3).reshape(batch, c, h, w))


def efficientvit() -> tuple[nn.Module, Tensors]:
    hard = nn.Hardswish

    def feed() -> nn.Module:
        return Residual(
            conv(128, 512, 1, act=hard), conv(512, 512, 3, groups=512, act=hard), conv(512, 128, 1, act=nn.Identity)
        )

    stem = [conv(3, 32, 3, 2, act=hard), conv(32, 64, 3, 2, act=hard), conv(64, 128, 3, 2, act=hard)]
    return nn.Sequential(*stem, LinearAttention(128, 8), feed(), LinearAttention(128, 8), feed()), (
        randn(1, 3, 224, 224),
    )


class Correlation(nn.Module):
    """Optical flow: products of features and of shifted features, a decoder, the second image warped by the flow."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 32, 3, 2), conv(32, 64, 3, 2), conv(64, 64))
        self.decoder = nn.Sequential(conv(81 + 64, 96), conv(96, 64), nn.Conv2d(64, 2, 3, 1, 1))
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64), indexing="ij")
        self.register_buffer("places", torch.stack([columns, rows], -1)[None])

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.features(first), self.features(second)
        padded = F.pad(b, (4, 4, 4, 4))
        shifts = [padded[:, :, i : i + 64, j : j + 64] for i in range(9) for j in range(9)]
        costs = torch.cat([(a * s).mean(1, keepdim=True) for s in shifts], 1)
        flow = self.decoder(torch.cat([F.leaky_relu(costs, 0.1), a], 1))
        return flow, F.grid_sample(b, self.places + flow.permute(0, 2, 3, 1), align_corners=True)


def optical_flow() -> tuple[nn.Module, Tensors]:
    return Correlation(), (randn(1, 3, 256, 256), randn(1, 3, 256, 256))


def x3d() -> tuple[nn.Module, Tensors]:
    """Depthwise 3x3x3 convolutions between pointwise ones, over 8 frames."""

    def pointwise(c: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Conv3d(c, out, 1, bias=False), nn.BatchNorm3d(out))

    def block() -> nn.Module:
        near = nn.Conv3d(108, 108, 3, 1, 1, groups=108, bias=False)
        return Residual(pointwise(48, 108), nn.ReLU(), near, nn.BatchNorm3d(108), nn.SiLU(), pointwise(108, 48))

    stem = [nn.Conv3d(3, 24, (1, 3, 3), (1, 2, 2), (0, 1, 1)), nn.Conv3d(24, 48, (3, 1, 1), (1, 2, 2), (1, 0, 0))]
    return nn.Sequential(*stem, nn.ReLU(), *[block() for _ in range(3)]), (randn(1, 3, 8, 128, 128),)


class VqVae(nn.Module):
    """An encoder, the nearest of 512 codes for every pixel, a decoder."""

    def __init__(self, c: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv(3, c, 4, 2), conv(c, c, 4, 2), Residual(conv(c, c), nn.Conv2d(c, c, 1)))
        self.codes = nn.Embedding(512, c)
        self.decoder = nn.Sequential(
            Residual(conv(c, c), nn.Conv2d(c, c, 1)), nn.ConvTranspose2d(c, c, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(c, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x).permute(0, 2, 3, 1)
        codes = self.codes.weight
        nearest = ((z * z).sum(-1, keepdim=True) - 2 * z @ codes.T + (codes * codes).sum(1)).argmin(-1)
        return self.decoder(self.codes(nearest).permute(0, 3, 1, 2))


def vqvae() -> tuple[nn.Module, Tensors]:
    return VqVae(), (randn(1, 3, 128, 128),)


def mobilevit_v2() -> tuple[nn.Module, Tensors]:
    config = transformers.MobileViTV2Config(width_multiplier=0.5, image_size=256)
    return lively(First(transformers.MobileViTV2Model(config))), (randn(1, 3, 256, 256),)


def convnext_v2() -> tuple[nn.Module, Tensors]:
    config = transformers.ConvNextV2Config(hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 3, 2])
    return First(transformers.ConvNextV2Model(config)), (randn(1, 3, 224, 224),)


def beit() -> tuple[nn.Module, Tensors]:
    config = transformers.BeitConfig(
        hidden_size=384,
        num_hidden_layers=3,
        num_attention_heads=6,
        intermediate_size=1536,
        use_relative_position_bias=True,
    )
    return First(transformers.BeitModel(config)), (randn(1, 3, 224, 224),)


def sam_encoder() -> tuple[nn.Module, Tensors]:
    """Windows of 14 in an image of 32x32 patches, with biases by row and column that depend on the queries."""
    config = transformers.SamVisionConfig(
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=6,
        image_size=512,
        global_attn_indexes=[2],
        mlp_dim=768,
    )
    return lively(First(transformers.SamVisionModel(config))), (randn(1, 3, 512, 512),)


def hiera() -> tuple[nn.Module, Tensors]:
    config = transformers.HieraConfig(embed_dim=64, depths=[1, 2, 2, 1], num_heads=[1, 2, 4, 8])
    return First(transformers.HieraModel(config)), (randn(1, 3, 224, 224),)


NETS: dict[str, Net] = {
    net.__name__: net
    for net in (
        repvgg, maxvit, xcit, resnest, hrnet, fpn, centernet, detr, unet_nested, cross_unet, edsr, mask_decoder,
        convmixer, replknet, nafnet, efficientvit, optical_flow, x3d, vqvae,
        mobilevit_v2, convnext_v2, beit, sam_encoder, hiera,
    )
}  # fmt: skip
