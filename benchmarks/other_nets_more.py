"""Nets that are not in the zoo, each of which showed the compiler something, or stood near its peers; random weights.

In: nothing. Out: ``NETS[name]()`` gives a module and its inputs. Not its business: measuring (``other_nets.py``).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
import transformers
from benchmarks.interleaved import Lambda, Tensors
from benchmarks.other_nets_vision import Net, conv
from torch import Tensor, nn, rand, randint, randn


class First(nn.Module):
    """The first tensor that a model of ``transformers`` returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return next(iter(self.model(x, return_dict=True).values()))


class Pyramid(nn.Module):
    """DeepLab's pooling pyramid: dilations near the size of the picture, whose taps mostly lie in the padding."""

    def __init__(self, c: int, out: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([conv(c, out, 1), *(conv(c, out, dilation=d) for d in (6, 12, 18))])
        self.whole, self.join = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(c, out, 1)), conv(5 * out, out, 1)
        self.last = nn.Sequential(conv(out, out), nn.Conv2d(out, 21, 1))

    def forward(self, x: Tensor) -> Tensor:
        whole = F.interpolate(self.whole(x), size=x.shape[-2:], mode="bilinear")
        y = self.last(self.join(torch.cat([*(b(x) for b in self.branches), whole], 1)))
        return F.interpolate(y, scale_factor=8.0, mode="bilinear")


def pyramid() -> tuple[nn.Module, Tensors]:
    return Pyramid(512, 256), (randn(1, 512, 28, 28),)


def squeezebert() -> tuple[nn.Module, Tensors]:
    """Attention over N, C, L: a permutation of the heads, and one of the layout behind it."""
    config = transformers.SqueezeBertConfig(num_hidden_layers=3, vocab_size=5000)
    return First(transformers.SqueezeBertModel(config)), (randint(0, 1000, (1, 128)),)


def cvt() -> tuple[nn.Module, Tensors]:
    """Attention by ``einsum``."""
    return First(transformers.CvtModel(transformers.CvtConfig())), (randn(1, 3, 224, 224),)


def swin_v2() -> tuple[nn.Module, Tensors]:
    """A bias that a small net makes of distances."""
    config = transformers.Swinv2Config(image_size=256, window_size=8)
    return First(transformers.Swinv2Model(config)), (randn(1, 3, 256, 256),)


def distilbert_384() -> tuple[nn.Module, Tensors]:
    config = transformers.DistilBertConfig(n_layers=3)
    return First(transformers.DistilBertModel(config)), (randint(0, 1000, (1, 384)),)


class Modulated(nn.Module):
    """StyleGAN's convolution: its weights are made in the call."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.style, self.weight = nn.Linear(512, c), nn.Parameter(randn(c, c, 3, 3) / 3 / c**0.5)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        w = self.weight * (self.style(z) + 1)[0, None, :, None, None]
        w = w * torch.rsqrt((w * w).sum((1, 2, 3), keepdim=True) + 1e-8)
        return F.leaky_relu(F.conv2d(x, w, padding=1), 0.2)


def modulated() -> tuple[nn.Module, Tensors]:
    return Modulated(128), (randn(1, 128, 32, 32), randn(1, 512))


class Volumes(nn.Module):
    """A UNet of one level over volumes."""

    def __init__(self) -> None:
        super().__init__()

        def layer(c: int, out: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv3d(c, out, 3, padding=1), nn.InstanceNorm3d(out, affine=True), nn.LeakyReLU(0.01)
            )

        self.down, self.bottom, self.up = layer(1, 16), layer(16, 32), nn.ConvTranspose3d(32, 16, 2, 2)
        self.last = nn.Sequential(layer(32, 16), nn.Conv3d(16, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.last(torch.cat([x, self.up(self.bottom(F.max_pool3d(x, 2)))], 1))


def volumes() -> tuple[nn.Module, Tensors]:
    return Volumes(), (randn(1, 1, 32, 32, 32),)


class Towers(nn.Module):
    """Two towers, and the cosine of what they give."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (512, 1024, 512)
        self.towers = nn.ModuleList(
            nn.Sequential(
                *(m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())),
                nn.Linear(512, 128),
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = (F.normalize(tower(v), dim=-1) for tower, v in zip(self.towers, (x, y), strict=True))
        return (a * b).sum(-1)


def towers() -> tuple[nn.Module, Tensors]:
    return Towers(), (randn(256, 512), randn(256, 512))


class DenseGraph(nn.Module):
    """Two layers of a graph net over a matrix of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(512, 64), nn.Linear(64, 7)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return (neighbours @ self.two(F.relu(neighbours @ self.one(x)))).log_softmax(-1)


def dense_graph() -> tuple[nn.Module, Tensors]:
    return DenseGraph(), (randn(700, 512), rand(700, 700))


class Recurrent(nn.Module):
    """An LSTM's outputs."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n, n, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def lstm_batch32() -> tuple[nn.Module, Tensors]:
    return Recurrent(256), (randn(32, 50, 256),)


def dcgan() -> tuple[nn.Module, Tensors]:
    ups = [(100, 256, 1, 0), (256, 128, 2, 1), (128, 64, 2, 1), (64, 32, 2, 1)]
    layers = [
        nn.Sequential(nn.ConvTranspose2d(c, out, 4, s, p), nn.BatchNorm2d(out), nn.ReLU()) for c, out, s, p in ups
    ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, 3, 4, 2, 1), Lambda(torch.tanh)), (randn(4, 100, 1, 1),)


NETS: dict[str, Net] = {
    net.__name__: net
    for net in (
        pyramid, squeezebert, cvt, swin_v2, distilbert_384, modulated, volumes, towers, dense_graph, lstm_batch32,
        dcgan,
    )
}  # fmt: skip
