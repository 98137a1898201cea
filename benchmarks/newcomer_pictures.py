"""Newcomer cases of pictures and their making: blocks of image networks, decoders of detectors, flows, codecs.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randn

CASES = Table()


def picture(n: int) -> tuple[Tensor]:
    """One image of 8 channels."""
    return (randn(1, 8, n, n + 2),)


@CASES.module(picture, 9, 12)
class ConvNextV2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.gamma, self.beta = nn.Parameter(randn(32)), nn.Parameter(randn(32))

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.up(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        size = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        y = self.gamma * (y * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.beta + y
        return x + self.down(y).permute(0, 3, 1, 2)


@CASES.module(picture, 8, 11)
class ReluLinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(8, 24, 1, bias=False), nn.Conv2d(8, 8, 1)
        self.wide = nn.Conv2d(24, 24, 5, padding=2, groups=24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = (self.qkv(x) + self.wide(self.qkv(x))).reshape(b, 2, 12, h * w).transpose(-1, -2)
        q, k, v = qkv.relu().chunk(3, -1)
        v = F.pad(v, (0, 1), value=1.0)
        mixed = q @ (k.transpose(-1, -2) @ v)
        mixed = mixed[..., :-1] / (mixed[..., -1:] + 1e-3)
        return self.out(mixed.transpose(-1, -2).reshape(b, c, h, w))


@CASES.module(lambda n: (randn(2, 4 * n, 4 * n, 8),), 2, 3)
class WindowAndGridAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local, self.sparse = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        y = y + self.local(y, y, y, need_weights=False)[0]
        x = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        y = x.view(b, 4, h // 4, 4, w // 4, c).permute(0, 2, 4, 1, 3, 5).reshape(-1, 16, c)
        y = y + self.sparse(y, y, y, need_weights=False)[0]
        return y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 3, 1, 4, 2, 5).reshape(b, h, w, c)


@CASES.module(lambda n: (randn(1, n, n, 8),), 8, 12)
class ShiftedWindows(nn.Module):
    def __init__(self, window: int = 4) -> None:
        super().__init__()
        self.window, self.qkv = window, nn.Linear(8, 24)
        self.table = nn.Parameter(randn((2 * window - 1) ** 2, 2))
        y, x = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        apart = torch.stack([y, x]).flatten(1)
        apart = (apart[:, :, None] - apart[:, None]) + window - 1
        self.register_buffer("places", apart[0] * (2 * window - 1) + apart[1])

    def _split(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        k = self.window
        return x.view(b, h // k, k, w // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k * k, c)

    def _mask(self, h: int, w: int) -> Tensor:
        marks, count = torch.zeros(1, h, w, 1), 0
        for rows in (slice(0, -self.window), slice(-self.window, -2), slice(-2, None)):
            for columns in (slice(0, -self.window), slice(-self.window, -2), slice(-2, None)):
                marks[:, rows, columns] = count
                count += 1
        areas = self._split(marks).squeeze(-1)
        return (areas[:, None] - areas[:, :, None]).ne(0) * -100.0

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        windows = self._split(x.roll((-2, -2), (1, 2)))
        q, k, v = self.qkv(windows).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2 + self.table[self.places.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        y = ((scores + self._mask(h, w)[:, None]).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c)
        y = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return y.roll((2, 2), (1, 2))


@CASES.module(picture, 10, 13)
class ShuffleUnit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(True),
            nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        y = torch.cat((kept, self.branch(changed)), 1)
        b, c, h, w = y.size()
        return y.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)


@CASES.module(lambda n: (randn(1, 4, 4 * n, 4 * n),), 4, 5)
class FusedResolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(4, 4, 3, 2, 1) for _ in range(3))
        self.up = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        levels = [x]
        for layer in self.down[:2]:
            levels.append(layer(levels[-1]))
        size = levels[0].shape[-2:]
        high = levels[0] + sum(F.interpolate(self.up(y), size=size, mode="bilinear") for y in levels[1:])
        low = levels[2] + self.down[2](levels[1])
        return [F.relu(high), F.relu(levels[1]), F.relu(low)]


@CASES.module(picture, 9, 14)
class AtrousPyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.paths = nn.ModuleList([nn.Conv2d(8, 4, 1), *(nn.Conv2d(8, 4, 3, padding=r, dilation=r) for r in (2, 4))])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU())
        self.out = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.interpolate(self.pooled(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([*(path(x).relu() for path in self.paths), pooled], 1)).argmax(1)


@CASES.module(lambda n: (randn(1, 6, 8), randn(1, 8, n, n)), 8, 10)
class MaskQueries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.classes = nn.Linear(8, 4)

    def forward(self, queries: Tensor, pixels: Tensor) -> dict[str, Tensor]:
        masks = torch.einsum("bqc,bchw->bqhw", self.embed(queries), pixels).sigmoid()
        scores = self.classes(queries).softmax(-1)[..., :-1]
        segments = torch.einsum("bqk,bqhw->bkhw", scores, masks)
        hidden = F.interpolate(masks, size=(4, 4), mode="bilinear").flatten(2) < 0.5
        hidden[hidden.sum(-1) == hidden.shape[-1]] = False
        return {"segments": segments, "hidden": hidden, "best": segments.argmax(1)}


@CASES.module(lambda n: (rand(2, 3, n, n), randn(2, 2, n, n)), 8, 11)
class HeatmapPeaks(nn.Module):
    def forward(self, heat: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        _b, _, h, w = heat.shape
        score, flat = heat.flatten(1).topk(6)
        place = flat % (h * w)
        shift = offset.flatten(2).gather(2, place[:, None].expand(-1, 2, -1)).transpose(1, 2)
        return score, torch.stack([place % w, place // w], -1) + shift, flat // (h * w)


@CASES.module(lambda n: (randn(1, 4, n, n + 1).exp(), randn(1, 1, n, n + 1)), 6, 9)
class DistancesToBoxes(nn.Module):
    def forward(self, distance: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        h, w = distance.shape[-2:]
        y, x = torch.meshgrid(torch.arange(h) * 8 + 4, torch.arange(w) * 8 + 4, indexing="ij")
        points = torch.stack((x, y), -1).reshape(-1, 2).float()
        left, top, right, bottom = distance.flatten(2)[0].unbind(0)
        boxes = torch.stack([points[:, 0] - left, points[:, 1] - top, points[:, 0] + right, points[:, 1] + bottom], 1)
        boxes[:, 0::2].clamp_(0, w * 8)
        boxes[:, 1::2].clamp_(0, h * 8)
        return boxes, centre.flatten().sigmoid().sqrt()


@CASES.module(lambda n: (randn(1, 4, 2 * n, 2 * n),), 6, 8)
class FourierInpainting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local, self.spectral = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x, norm="ortho")
        y = self.spectral(torch.cat([spectrum.real, spectrum.imag], 1)).relu()
        real, imaginary = y.chunk(2, 1)
        return self.local(x) + torch.fft.irfft2(torch.complex(real, imaginary), s=x.shape[-2:], norm="ortho")


@CASES.module(lambda n: (rand(1, 3, n, n),), 10, 13)
class LightCurves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.curves = nn.Conv2d(3, 12, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.split(torch.tanh(self.curves(x)), 3, 1)
        for r in steps:
            x = x + r * (torch.pow(x, 2) - x)
        return x, F.avg_pool2d(x.mean(1, keepdim=True), 4).std()


@CASES.module(lambda n: (randn(2, 1, n, n),), 12, 15)
class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.affine = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.affine(self.locate(x).flatten(1)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


@CASES.module(lambda n: (randn(n, 8), torch.arange(n) % 5), 6, 9)
class AngularMargin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(5, 8))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1 + 1e-7, 1 - 1e-7)
        sine = (1.0 - cosine.pow(2)).sqrt()
        phi = cosine * math.cos(0.5) - sine * math.sin(0.5)
        phi = torch.where(cosine > math.cos(math.pi - 0.5), phi, cosine - math.sin(math.pi - 0.5) * 0.5)
        one_hot = torch.zeros_like(cosine)
        one_hot.scatter_(1, label.view(-1, 1).long(), 1)
        return F.cross_entropy((one_hot * phi + (1 - one_hot) * cosine) * 16, label)


@CASES.module(picture, 9, 11)
class StandardisedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv2d(8, 6, 3, padding=1), nn.Parameter(torch.ones(6, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.conv.weight
        variance, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True)
        w = (w - mean) * torch.rsqrt(torch.clamp(variance * w[0].numel(), min=1e-4)) * self.gain
        return F.conv2d(F.gelu(x) * 1.7015, w, self.conv.bias, 1, 1)


@CASES.module(lambda n: (randn(1, 4, n, n),), 6, 8)
class LatentAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 4, eps=1e-6), nn.Conv2d(4, 4, 3, padding=1)
        self.down, self.moments, self.up = nn.Conv2d(4, 4, 3, 2), nn.Conv2d(4, 4, 1), nn.Conv2d(2, 4, 3, padding=1)
        self.q, self.k, self.v = (nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.conv(F.silu(self.norm(x)))
        x = self.down(F.pad(x, (0, 1, 0, 1)))
        b, c, h, w = x.shape
        q, k, v = (f(x).reshape(b, c, h * w).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + torch.bmm(torch.bmm(q, k.mT).mul(c**-0.5).softmax(2), v).transpose(1, 2).reshape(b, c, h, w)
        mean, logvar = torch.chunk(self.moments(x), 2, 1)
        logvar = torch.clamp(logvar, -30.0, 20.0)
        kl = 0.5 * torch.sum(mean.pow(2) + logvar.exp() - 1.0 - logvar, dim=[1, 2, 3])
        return self.up(F.interpolate(mean, scale_factor=2.0, mode="nearest")), kl


@CASES.module(lambda n: (randn(n, 6),), 5, 9)
class CouplingFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(3))
        self.mix = nn.Parameter(torch.linalg.qr(randn(6, 6))[0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(x.shape[0])
        for k, net in enumerate(self.nets):
            a, b = (x[:, ::2], x[:, 1::2]) if k % 2 == 0 else (x[:, 1::2], x[:, ::2])
            scale, shift = net(a).chunk(2, -1)
            scale = torch.tanh(scale)
            b = b * scale.exp() + shift
            total = total + scale.sum(-1)
            x = torch.stack((a, b), -1).flatten(-2) @ self.mix
            total += torch.linalg.slogdet(self.mix)[1]
        return x, total - 0.5 * (x**2 + math.log(2 * math.pi)).sum(-1)


@CASES.module(lambda n: (randn(1, 3, n, n),), 6, 8)
class ImplicitSampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(4, 3, 3, padding=1)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

    def forward(self, x: Tensor) -> Tensor:
        for t, before in zip((80, 40, 10), (40, 10, 0), strict=True):
            here, there = self.kept[t], self.kept[before]
            noise = self.net(torch.cat([x, torch.full_like(x[:, :1], t / 100)], 1))
            clean = ((x - (1 - here).sqrt() * noise) / here.sqrt()).clamp(-2, 2)
            x = there.sqrt() * clean + (1 - there).sqrt() * noise
        return (x / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8)


@CASES.module(lambda n: (randn(2, n, 4),), 6, 9)
class ResidualCodebooks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.books = nn.ParameterList(randn(10, 4) / (k + 1) for k in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, total, codes = x, torch.zeros_like(x), []
        for book in self.books:
            distance = left.pow(2).sum(-1, keepdim=True) - 2 * left @ book.t() + book.pow(2).sum(-1)
            code = (-distance).max(-1).indices
            found = F.embedding(code, book)
            left, total = left - found, total + found
            codes.append(code)
        return x + (total - x).detach(), torch.stack(codes, -1)


@CASES.function(lambda n: (rand(1, 1, n, n),), 10, 13)
def opened_and_closed(x: Tensor) -> Tensor:
    def dilate(y: Tensor) -> Tensor:
        return F.max_pool2d(y, 3, 1, 1)

    def erode(y: Tensor) -> Tensor:
        return -F.max_pool2d(-y, 3, 1, 1)

    edge = F.relu(x - dilate(erode(x)))
    for _ in range(3):
        x = erode(x)
        delta = F.relu(x - dilate(erode(x)))
        edge = edge + F.relu(delta - edge * delta)
    return edge


@CASES.function(lambda n: ((rand(n, n) > 0.6).float(),), 8, 11)
def connected_components(mask: Tensor) -> tuple[Tensor, int]:
    h, w = mask.shape
    marks = torch.arange(1, h * w + 1, dtype=torch.float32).view(h, w) * mask
    for _ in range(20):
        marks = F.max_pool2d(marks[None, None], 3, 1, 1)[0, 0] * mask
    found = marks.unique()
    return marks, int((found > 0).sum())


@CASES.function(lambda n: (rand(n, n + 3),), 9, 12)
def box_filter(x: Tensor) -> Tensor:
    table = F.pad(x.cumsum(0).cumsum(1), (1, 0, 1, 0))
    h, w = x.shape
    y0, y1 = (torch.arange(h) - 2).clamp(min=0), (torch.arange(h) + 3).clamp(max=h)
    x0, x1 = (torch.arange(w) - 2).clamp(min=0), (torch.arange(w) + 3).clamp(max=w)
    total = table[y1][:, x1] - table[y0][:, x1] - table[y1][:, x0] + table[y0][:, x0]
    return total / ((y1 - y0)[:, None] * (x1 - x0))


@CASES.function(lambda n: (rand(3, 8 * n, 8),), 2, 3)
def cosine_blocks(x: Tensor) -> Tensor:
    k = torch.arange(8.0)
    basis = torch.cos(math.pi * (2 * k[None] + 1) * k[:, None] / 16) * 0.5
    basis[0] /= math.sqrt(2)
    blocks = x.unfold(1, 8, 8).unfold(2, 8, 8)
    coefficients = torch.einsum("ij,cabjk,lk->cabil", basis, blocks, basis)
    step = 1 + (k[:, None] + k) * 0.02
    back = torch.einsum("ji,cabjk,kl->cabil", basis, torch.round(coefficients / step) * step, basis)
    return back.permute(0, 1, 3, 2, 4).reshape_as(x)


@CASES.function(lambda n: (randn(n, 6),), 5, 8)
def rotations_of_six(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x[..., :3], x[..., 3:]
    first = F.normalize(a, dim=-1)
    second = F.normalize(b - (first * b).sum(-1, keepdim=True) * first, dim=-1)
    matrix = torch.stack((first, second, torch.cross(first, second, dim=-1)), dim=-2)
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    return matrix, torch.acos(((trace - 1) / 2).clamp(-1, 1))


@CASES.function(lambda n: (randn(n, 3), F.normalize(randn(n, 3), dim=-1)), 6, 10)
def rays_through_a_box(origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inverse = 1.0 / torch.where(direction.abs() < 1e-9, torch.full_like(direction, 1e-9), direction)
    low, high = (-1 - origin) * inverse, (1 - origin) * inverse
    near, far = torch.minimum(low, high).amax(-1), torch.maximum(low, high).amin(-1)
    hit = (near <= far) & (far > 0)
    near = torch.where(hit, near.clamp(min=0), torch.inf)
    return near, far[hit], origin[hit] + direction[hit] * near[hit, None]


def entropy(weights: Tensor, bins: Any) -> Tensor:
    """Of a histogram."""
    p = weights / weights.sum()
    return -(p * (p + 1e-9).log()).sum(bins)


@CASES.function(lambda n: (rand(n, n), rand(n, n)), 8, 11)
def mutual_information(a: Tensor, b: Tensor) -> Tensor:
    edges = torch.linspace(0, 1, 9)[1:-1]
    i, j = (torch.bucketize(x.flatten().contiguous(), edges) for x in (a, b))
    joint = torch.zeros(8, 8).index_put_((i, j), torch.ones(i.numel()), accumulate=True)
    return entropy(joint.sum(1), -1) + entropy(joint.sum(0), -1) - entropy(joint, (0, 1))
