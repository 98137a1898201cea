"""Newcomer models that lean on an idiom of their repositories: state kept in the module, distributions, transforms.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

CASES = Table()

# --- state of the module --------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 6),), 5, 8)
class MovingCodebook(nn.Module):
    """VQ-VAE 2 while it trains: clusters and their sums move by exponential averages in buffers, then are read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("book", randn(6, 7))
        self.register_buffer("sizes", torch.ones(7))
        self.register_buffer("means", self.book.clone())
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        distance = x.pow(2).sum(1, keepdim=True) - 2 * x @ self.book + self.book.pow(2).sum(0, keepdim=True)
        _, code = (-distance).max(1)
        one_hot = F.one_hot(code, 7).type(x.dtype)
        quantised = F.embedding(code, self.book.transpose(0, 1))
        self.sizes.data.mul_(0.9).add_(one_hot.sum(0), alpha=1 - 0.9)
        self.means.data.mul_(0.9).add_(x.transpose(0, 1) @ one_hot, alpha=1 - 0.9)
        n = self.sizes.sum()
        sizes = (self.sizes + 1e-5) / (n + 7 * 1e-5) * n
        self.book.data.copy_(self.means / sizes.unsqueeze(0))
        self.seen += 1
        diff = (quantised.detach() - x).pow(2).mean()
        return x + (quantised - x).detach(), diff, self.book.norm() + self.seen


class _TrainingNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6, momentum=0.3)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(self.conv(x))
        return F.prelu(y, self.scale / 4), self.norm.running_var + self.norm.num_batches_tracked


@CASES.module(lambda n: (randn(3, 4, n),), 9, 12)
class NormsInTraining(nn.Module):
    """A batch norm that stays in training mode: moving averages in its buffers, read in the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _TrainingNorms()

    def train(self, mode: bool = True) -> NormsInTraining:
        super().train(mode)
        self.inner.train(True)
        return self

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, _ = self.inner(x)
        second, variance = self.inner(x * 2 + 1)
        return first + second, variance


@CASES.module(lambda n: (randn(2, n, 8),), 6, 9)
class GrowingTable(nn.Module):
    """Positions that are made at first use and grown when a sequence is longer; a cached mask by length."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.masks: dict[int, Tensor] = {}
        self.project = nn.Linear(8, 8)

    def _extend(self, x: Tensor) -> Tensor:
        if self.table is None or self.table.size(0) < x.size(1):
            place = torch.arange(0, x.size(1), dtype=torch.float32).unsqueeze(1)
            share = torch.exp(torch.arange(0, 8, 2, dtype=torch.float32) * -(math.log(10000.0) / 8))
            table = torch.zeros(x.size(1), 8)
            table[:, 0::2] = torch.sin(place * share)
            table[:, 1::2] = torch.cos(place * share)
            self.table = table
        return self.table[: x.size(1)]

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        if length not in self.masks:
            self.masks[length] = torch.triu(torch.full((length, length), -torch.inf), 1)
        h = self.project(x) + self._extend(x).to(x.dtype)
        return (h @ h.mT / 8**0.5 + self.masks[length].to(x.dtype)).softmax(-1) @ h


@CASES.module(lambda n: (randn(n, 3, 8, 8),), 2, 3)
class Parametrised(nn.Module):
    """Weights as functions: a spectral norm, an orthogonal one, magnitudes and directions, and one of its own."""

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).transpose(-1, -2)

    def __init__(self) -> None:
        super().__init__()
        self.conv = parametrizations.spectral_norm(nn.Conv2d(3, 4, 3, padding=1))
        self.turn = parametrizations.orthogonal(nn.Linear(4, 4, bias=False))
        self.directed = parametrizations.weight_norm(nn.Linear(4, 5), dim=0)
        self.even = nn.Linear(5, 5)
        parametrize.register_parametrization(self.even, "weight", self.Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.conv(x), 0.2).mean((-1, -2))
        result: Tensor = self.even(self.directed(self.turn(y)))
        return result


# --- distributions --------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 4), rand(n, 2) * 2 - 1), 4, 7)
class MixtureDensity(nn.Module):
    """A mixture density network: ``torch.distributions`` for its log-likelihood, mean, entropy and divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"logits": nn.Linear(4, 3), "mean": nn.Linear(4, 6), "scale": nn.Linear(4, 6)})

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        mean = self.heads["mean"](x).view(-1, 3, 2)
        scale = F.softplus(self.heads["scale"](x)).view(-1, 3, 2) + 1e-3
        weights = Categorical(logits=self.heads["logits"](x), validate_args=False)
        parts = Independent(Normal(mean, scale, validate_args=False), 1, validate_args=False)
        mixed = MixtureSameFamily(weights, parts, validate_args=False)
        prior = Normal(torch.zeros_like(mean), torch.ones_like(scale), validate_args=False)
        return {
            "likelihood": mixed.log_prob(y),
            "mean": mixed.mean,
            "variance": mixed.variance,
            "entropy": weights.entropy(),
            "divergence": kl_divergence(parts.base_dist, prior).sum((-1, -2)),
            "quantile": prior.icdf(prior.cdf(mean).clamp(0.01, 0.99)),
        }


@dataclass
class _State:
    mean: Tensor
    log_var: Tensor

    def blend(self, other: _State, share: float) -> _State:
        return _State(torch.lerp(self.mean, other.mean, share), torch.logaddexp(self.log_var, other.log_var))


@CASES.module(lambda n: (randn(n, 8), randn(n, 8)), 3, 5)
class LadderOfLatents(nn.Module):
    """A ladder VAE: precisions of two Gaussians are added, records go between functions, free bits bound the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(4, 8) for _ in range(3))
        self.decode = nn.Linear(4, 8)

    @staticmethod
    def _merged(a: _State, b: _State) -> _State:
        wa, wb = (-a.log_var).exp(), (-b.log_var).exp()
        return _State((a.mean * wa + b.mean * wb) / (wa + wb), -(wa + wb).log())

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        h, ups = x, []
        for layer in self.up:
            h = F.gelu(layer(h))
            ups.append(_State(*torch.chunk(h, 2, dim=-1)))
        z = torch.zeros_like(noise[:, :4])
        losses: list[Tensor] = []
        for layer, seen in zip(self.down, reversed(ups), strict=True):
            prior = _State(*torch.tensor_split(layer(z), 2, dim=-1))
            posterior = self._merged(seen, prior).blend(prior, 0.25)
            z = posterior.mean + (0.5 * posterior.log_var).exp() * noise[:, 4:]
            divergence = 0.5 * (
                prior.log_var - posterior.log_var - 1
                + (posterior.log_var.exp() + (posterior.mean - prior.mean) ** 2) / prior.log_var.exp()
            )  # fmt: skip
            losses += [divergence.mean(0).clamp_min(0.05).sum()]
        return self.decode(z), functools.reduce(torch.add, losses)


# --- transforms of functions ----------------------------------------------------------------------------------------


@CASES.module(lambda n: (rand(n, 2),), 4, 6)
class PhysicsInformed(nn.Module):
    """Burgers's equation: derivatives of a small network by nested forward and reverse mode, for a batch of points."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 1)

    def field(self, at: Tensor) -> Tensor:
        result: Tensor = self.last(torch.tanh(self.first(at)))
        return result.squeeze(-1)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.func.vmap(self.field)(points)
        slope = torch.func.vmap(torch.func.jacfwd(self.field))(points)
        bend = torch.func.vmap(torch.func.hessian(self.field))(points)
        residual = slope[:, 0] + value * slope[:, 1] - 0.01 / math.pi * bend[:, 1, 1]
        return residual, residual.square().mean()


@CASES.function(lambda n: (randn(n, 3), randn(n), randn(3)), 5, 8)
def gradients_by_sample(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Private learning: a gradient for each sample, clipped by its norm; a Hessian's product with a vector."""

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (torch.tanh(x @ w) - y).square().mean()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(w, x, y)
    clipped = each * (1.0 / each.norm(dim=1, keepdim=True)).clamp(max=1.0)
    total = functools.partial(loss, x=x, y=y)
    _, product = torch.func.jvp(torch.func.grad(total), (w,), (torch.ones_like(w),))
    _, pull = torch.func.vjp(lambda v: torch.softmax(x @ v, 0), w)
    return each, clipped.mean(0), product, pull(y)[0]


@CASES.function(lambda n: (randn(n, 4), rand(n)), 6, 9)
def chosen_branch(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """``torch.cond`` and ``while_loop``: a branch by data, and Newton's steps until all are close."""

    def high(x: Tensor) -> Tensor:
        return x.sin() * 2

    def low(x: Tensor) -> Tensor:
        return x.cos() - 1

    y = torch.cond(x.sum() > 0, high, low, (x,))

    def far(step: Tensor, r: Tensor) -> Tensor:
        return (step < 20) & ((r * r - share).abs().max() > 1e-4)

    def newton(step: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return step + 1, 0.5 * (r + share / r)

    _, root = torch._higher_order_ops.while_loop(far, newton, (torch.tensor(0), torch.ones_like(share)))
    return y, root


# --- other idioms ---------------------------------------------------------------------------------------------------


@CASES.module(
    lambda n: (randn(n, 6, 8), {"mask": torch.arange(6) < torch.arange(n)[:, None] + 3, "scale": rand(n)}), 2, 4
)
class KeywordsAndHooks(nn.Module):
    """Inputs in a dictionary, checkpoints, hooks that change outputs, and layers that are taken by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer_{i}": nn.Linear(8, 8) for i in range(3)})
        self.kept: dict[str, Tensor] = {}
        for name, layer in self.layers.items():
            layer.register_forward_hook(functools.partial(self._keep, name))

    def _keep(self, name: str, layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        self.kept[name] = out.detach()
        return out + args[0] if name != "layer_1" else out

    def forward(self, x: Tensor, extra: dict[str, Tensor]) -> dict[str, Tensor]:
        self.kept.clear()
        for i in range(len(self.layers)):
            layer = getattr(self.layers, f"layer_{i}")
            x = checkpoint(lambda h, layer=layer: F.silu(layer(h)), x, use_reentrant=False)
        x = x * extra["scale"].unflatten(0, (-1, 1, 1))
        lengths = extra["mask"].sum(-1, keepdim=True)
        mean = (x * extra["mask"][..., None]).sum(1) / lengths
        return {"mean": mean, **{k: v.mean((1, 2)) for k, v in sorted(self.kept.items())}}


@CASES.module(lambda n: (randn(n, 4, 10),), 2, 3)
class HalfInside(nn.Module):
    """Autocast around a part, a norm in f32 inside of it, and a product that is kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.conv, self.norm = nn.Linear(10, 16), nn.Conv1d(4, 4, 3, padding=1), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.conv(self.lift(x))
            with torch.autocast("cpu", enabled=False):
                z = self.norm(y.float())
            scores = z @ z.transpose(1, 2)
        return scores.float().softmax(-1).round(decimals=1), y.dtype.itemsize * z.sign()


@CASES.function(lambda n: (randn(2, n, 3), randint(0, 50, (2, n))), 8, 11)
def odd_indexing(x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Ellipses, steps, new axes, negative places, tensors and slices mixed, and the same on the left of a sign."""
    y = x.clone()
    y[..., 0, :] = y[:, -1]
    y[:, 1::3] *= -1
    y[:, [0, 2], 1] = 7.0
    y[torch.tensor([0, 1]), torch.tensor([1, 3])] += torch.tensor([1.0, 2.0, 3.0], dtype=y.dtype)
    y[k > 25] = -y[k > 25].abs()
    y[0, k[0] % 5 == 0, -1] = 0.5
    z = x.new_zeros(2, 50, 3)
    z.scatter_reduce_(1, k[..., None].expand_as(x), x, "amax", include_self=False)
    w = torch.zeros(50, dtype=torch.long).index_put((k[0],), torch.ones_like(k[0]), accumulate=True)
    picked = x[torch.arange(2)[:, None], k.argsort(-1)[:, :4], None, ::2]
    return y, z[:, None, 3:-2:4, ...], w, picked, torch.take_along_dim(x, k[..., None] % 3, -1)


@CASES.function(lambda n: (randn(3, n),), 8, 10)
def shapes_and_names(x: Tensor) -> tuple[Tensor, ...]:
    """Tensors whose shapes come from other shapes' arithmetic, with asserts, tries and early returns on the way."""
    assert x.dim() == 2 and x.shape[1] % 2 == 0, f"even columns are needed, not {tuple(x.shape)}"
    rows, columns = x.shape
    half = math.ceil(columns / 2)
    window = torch.hann_window(half, periodic=False, dtype=x.dtype)
    try:
        square = x.view(rows, half, 2)
    except RuntimeError:
        square = x.reshape(rows, -1, 2)
    if x.numel() > 10_000:
        return (x,)
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(half))
    flat = torch.tensor(x.shape).prod() + torch.numel(square)
    lin = torch.linspace(0, 1, steps=columns // 2 + 1, dtype=x.dtype)
    pairs = torch.combinations(torch.arange(rows), r=2)
    big = torch.vander(lin, N=rows) * (rows / columns)
    return square * window[:, None], grid, flat, lin.outer(window), pairs, big, torch.tril_indices(rows, half, -1)
