"""Nets for points, sets, fields, control and games of a second sweep, written without looking at the compiler.

In: nothing. Out: ``NETS[name]()`` gives a module and its inputs, with random weights. Not its business: measuring
(``other_nets.py``), nets for text and sound (``other_nets_unseen.py``), for images (``other_nets_unseen_vision.py``).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from benchmarks.interleaved import Tensors
from benchmarks.other_nets_unseen_vision import Residual
from benchmarks.other_nets_vision import Net, conv
from torch import Tensor, nn, rand, randint, randn


class Siren(nn.Module):
    """A picture as a function: sines of layers of coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = (
            nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((2, 128, 128, 128))),
            nn.Linear(128, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = 30 * x
        for layer in self.layers:
            x = torch.sin(layer(x))
        return self.out(x)


def siren() -> tuple[nn.Module, Tensors]:
    return Siren(), (rand(4096, 2),)


class Denoiser(nn.Module):
    """Diffusion over rows of a table or actions: sines of the step, four layers that each get the time."""

    def __init__(self, c: int = 256) -> None:
        super().__init__()
        self.enter, self.out, self.time = (
            nn.Linear(20, c),
            nn.Linear(c, 20),
            nn.Sequential(nn.Linear(64, c), nn.Mish(), nn.Linear(c, c)),
        )
        self.layers, self.times = (nn.ModuleList(nn.Linear(c, c) for _ in range(4)) for _ in range(2))
        self.register_buffer("rates", torch.exp(torch.linspace(0, -9.2, 32)))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        angles = step[:, None].float() * self.rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        y = self.enter(x)
        for layer, to in zip(self.layers, self.times, strict=True):
            y = y + F.mish(layer(y) + to(time))
        return self.out(y)


def denoiser() -> tuple[nn.Module, Tensors]:
    return Denoiser(), (randn(64, 20), randint(0, 1000, (64,)))


class Actor(nn.Module):
    """SAC's policy: a mean and a bounded deviation, the action squashed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.scale = (
            nn.Sequential(nn.Linear(17, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()),
            nn.Linear(256, 6),
            nn.Linear(256, 6),
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        y = self.body(x)
        return torch.tanh(self.mean(y) + self.scale(y).clamp(-20, 2).exp() * noise)


def policy() -> tuple[nn.Module, Tensors]:
    return Actor(), (randn(1, 17), randn(1, 6))


def policy_b256() -> tuple[nn.Module, Tensors]:
    return Actor(), (randn(256, 17), randn(256, 6))


class RungeKutta(nn.Module):
    """A neural differential equation: ten steps of the classical method."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(10):
            a = self.slope(x)
            b = self.slope(x + 0.05 * a)
            c = self.slope(x + 0.05 * b)
            x = x + (a + 2 * b + 2 * c + self.slope(x + 0.1 * c)) * (0.1 / 6)
        return x


def neural_ode() -> tuple[nn.Module, Tensors]:
    return RungeKutta(), (randn(64, 32),)


class Coupling(nn.Module):
    """RealNVP: six couplings, each half scaled and moved by a net of the other; the logarithm of the determinant."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(c, 128), nn.ReLU(), nn.Linear(128, 2 * c)) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)
        determinant = torch.zeros(x.shape[0])
        for net in self.nets:
            scale, move = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            a, b = b * scale.exp() + move, a
            determinant = determinant + scale.sum(1)
        return torch.cat([a, b], 1), determinant


def normalizing_flow() -> tuple[nn.Module, Tensors]:
    return Coupling(), (randn(128, 64),)


class SetTransformer(nn.Module):
    """Points attend to 16 learned ones and back, twice; one learned query gathers all."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.enter, self.seeds, self.query = (
            nn.Linear(3, c),
            nn.Parameter(randn(2, 16, c)),
            nn.Parameter(randn(1, 1, c)),
        )
        self.attend = nn.ModuleList(nn.MultiheadAttention(c, 4, batch_first=True) for _ in range(5))
        self.feeds = nn.ModuleList(Residual(nn.Linear(c, c), nn.ReLU()) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for k in range(2):
            seeds = self._step(2 * k, self.seeds[k].expand(x.shape[0], -1, -1), x)
            x = self._step(2 * k + 1, x, seeds)
        return self._step(4, self.query.expand(x.shape[0], -1, -1), x)[:, 0]

    def _step(self, k: int, queries: Tensor, x: Tensor) -> Tensor:
        return self.feeds[k](queries + self.attend[k](queries, x, x, need_weights=False)[0])


def set_transformer() -> tuple[nn.Module, Tensors]:
    return SetTransformer(), (randn(4, 256, 3),)


class Matching(nn.Module):
    """SuperGlue: two sets of descriptors attend to each other, then eight turns of normalising rows and columns."""

    def __init__(self, c: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerDecoderLayer(c, 4, 2 * c, 0.0, batch_first=True) for _ in range(2))
        self.out = nn.Linear(c, c)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x, y = layer(x, y), layer(y, x)
        scores = self.out(x) @ self.out(y).transpose(1, 2) / 11.3
        u, v = torch.zeros(1, x.shape[1], 1), torch.zeros(1, 1, y.shape[1])
        for _ in range(8):
            u = -torch.logsumexp(scores + v, 2, keepdim=True)
            v = -torch.logsumexp(scores + u, 1, keepdim=True)
        return scores + u + v


def matching() -> tuple[nn.Module, Tensors]:
    return Matching(), (randn(1, 256, 128), randn(1, 200, 128))


class EdgeConv(nn.Module):
    """DGCNN: the twenty nearest points of each, a layer of the differences, the largest."""

    def __init__(self, c: int, out: int) -> None:
        super().__init__()
        self.layer = conv(2 * c, out, 1, act=partial(nn.LeakyReLU, 0.2))

    def forward(self, x: Tensor) -> Tensor:
        batch, c, n = x.shape
        squares = (x * x).sum(1)
        near = (2 * x.transpose(1, 2) @ x - squares[:, :, None] - squares[:, None, :]).topk(20, -1)[1]
        neighbours = x.gather(2, near.view(batch, 1, -1).expand(-1, c, -1)).view(batch, c, n, 20)
        centre = x[:, :, :, None].expand(-1, -1, -1, 20)
        return self.layer(torch.cat([neighbours - centre, centre], 1)).max(-1)[0]


def dgcnn() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(EdgeConv(3, 64), EdgeConv(64, 64), EdgeConv(64, 128)), (randn(1, 3, 512),)


def alphazero() -> tuple[nn.Module, Tensors]:
    blocks = [nn.Sequential(Residual(conv(64, 64), conv(64, 64, act=nn.Identity)), nn.ReLU()) for _ in range(5)]
    return nn.Sequential(conv(17, 64), *blocks, conv(64, 2, 1), nn.Flatten(), nn.Linear(722, 362)), (
        randn(8, 17, 19, 19),
    )


class Dueling(nn.Module):
    """An agent that plays Atari: three convolutions, a value and advantages."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.value, self.gain = (nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, n)) for n in (1, 18))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x / 255)
        gain = self.gain(y)
        return self.value(y) + gain - gain.mean(1, keepdim=True)


def atari() -> tuple[nn.Module, Tensors]:
    return Dueling(), (randn(1, 4, 84, 84),)


def atari_b32() -> tuple[nn.Module, Tensors]:
    return Dueling(), (randn(32, 4, 84, 84),)


NETS: dict[str, Net] = {
    net.__name__: net
    for net in (
        siren, denoiser, policy, policy_b256, neural_ode, normalizing_flow, set_transformer, matching, dgcnn,
        alphazero, atari, atari_b32,
    )
}  # fmt: skip
