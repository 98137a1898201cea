"""Nets for text, sound, points, tables and diffusion that are not in the zoo, with random weights.

In: nothing. Out: ``NETS[name]()`` gives a module and its inputs. Not its business: measuring (``other_nets.py``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import transformers
from benchmarks.interleaved import Tensors
from benchmarks.other_nets_vision import Net
from torch import Tensor, nn, randint, randn


class DiffusionResidual(nn.Module):
    """Two normed convolutions, the time added between them."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, c), nn.GroupNorm(32, c)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(256, c)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class DiffusionAttention(nn.Module):
    """Attention over the pixels, four heads."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(32, c), nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x: Tensor) -> Tensor:
        batch, c, h, w = x.shape
        y = self.qkv(self.norm(x).flatten(2).transpose(1, 2))
        y = y.view(batch, h * w, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(y[0], y[1], y[2]).transpose(1, 2).reshape(batch, h * w, c)
        return x + self.out(y).transpose(1, 2).view(batch, c, h, w)


class Diffusion(nn.Module):
    """One level of a denoising UNet."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.stem, self.res1, self.attend = nn.Conv2d(4, c, 3, padding=1), DiffusionResidual(c), DiffusionAttention(c)
        self.down, self.res2 = nn.Conv2d(c, c, 3, 2, 1), DiffusionResidual(c)
        self.up, self.out = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.attend(self.res1(self.stem(x), t))
        y = F.interpolate(self.res2(self.down(x), t), scale_factor=2.0, mode="nearest")
        return self.out(F.silu(x + self.up(y)))


def diffusion() -> tuple[nn.Module, Tensors]:
    return Diffusion(), (randn(1, 4, 32, 32), randn(1, 256))


class DilatedResidual(nn.Module):
    """A vocoder's residual block: dilations 1, 3, 5."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(c, c, k, padding=d * (k // 2), dilation=d) for d in (1, 3, 5)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(F.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    """HiFi-GAN's generator, two steps of upsampling by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv1d(80, 128, 7, padding=3), nn.Conv1d(32, 1, 7, padding=3)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(c, c // 2, 16, 8, 4) for c in (128, 64)])
        self.narrow = nn.ModuleList([DilatedResidual(c, 3) for c in (64, 32)])
        self.wide = nn.ModuleList([DilatedResidual(c, 7) for c in (64, 32)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for up, narrow, wide in zip(self.ups, self.narrow, self.wide, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = (narrow(x) + wide(x)) / 2
        return torch.tanh(self.out(F.leaky_relu(x)))


def hifigan() -> tuple[nn.Module, Tensors]:
    return Vocoder(), (randn(1, 80, 40),)


class PointNet(nn.Module):
    """Layers over points, the largest over all points, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x).max(2)[0])


def pointnet() -> tuple[nn.Module, Tensors]:
    return PointNet(), (randn(2, 3, 1024),)


class Dlrm(nn.Module):
    """Recommendation: numbers and eight categories, products of all pairs, layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(5000, 64) for _ in range(8)])
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())
        i, j = torch.tril_indices(9, 9, -1)
        self.register_buffer("pairs", i * 9 + j)

    def forward(self, x: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(x)
        rows = torch.stack([x, *(t(categories[:, k]) for k, t in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([x, products], 1))


def dlrm() -> tuple[nn.Module, Tensors]:
    return Dlrm(), (randn(128, 13), randint(0, 5000, (128, 8)))


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, a gated convolution of 31 taps."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.feed = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, c))
        self.attend = nn.MultiheadAttention(c, 4, batch_first=True)
        self.norm, self.last = nn.LayerNorm(c), nn.LayerNorm(c)
        self.expand, self.project = nn.Conv1d(c, 2 * c, 1), nn.Conv1d(c, c, 1)
        self.taps = nn.Sequential(nn.Conv1d(c, c, 31, padding=15, groups=c), nn.BatchNorm1d(c), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.feed(x)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        y = F.glu(self.expand(self.norm(x).transpose(1, 2)), 1)
        return self.last(x + self.project(self.taps(y)).transpose(1, 2))


def conformer() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(*[ConformerBlock(144) for _ in range(3)]), (randn(1, 250, 144),)


def distilbert() -> tuple[nn.Module, Tensors]:
    config = transformers.DistilBertConfig(n_layers=3)
    return transformers.DistilBertModel(config), (randint(0, 1000, (1, 64)),)


class TextCnn(nn.Module):
    """Windows of 3, 4 and 5 words, the largest of each, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 128)
        self.windows = nn.ModuleList([nn.Conv1d(128, 100, k) for k in (3, 4, 5)])
        self.out = nn.Linear(300, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x).transpose(1, 2)
        return self.out(torch.cat([F.relu(window(x)).max(2)[0] for window in self.windows], 1))


def textcnn() -> tuple[nn.Module, Tensors]:
    return TextCnn(), (randint(0, 5000, (4, 100)),)


class GraphNet(nn.Module):
    """Two layers over a graph: every node adds up what its neighbours send."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 16)])

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(x)
            x = F.relu(torch.zeros_like(h).index_add(0, target, h[source]))
        return x.log_softmax(1)


def gnn() -> tuple[nn.Module, Tensors]:
    return GraphNet(), (randn(1000, 64), randint(0, 1000, (5000,)), randint(0, 1000, (5000,)))


NETS: dict[str, Net] = {
    net.__name__: net
    for net in (diffusion, hifigan, pointnet, dlrm, conformer, distilbert, textcnn, gnn)
}  # fmt: skip
