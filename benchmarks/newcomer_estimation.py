"""Newcomer models of graphs, control, statistics and numerical methods, as their repositories write them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (randn(n, 6), randint(0, n, (2, 3 * n)), randn(3 * n, 4)), 7, 10)
class SegmentSoftmaxGraph(nn.Module):
    """Attention along edges, normalised for each target, several heads, with edge features."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.e = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        n, e = len(x), self.e(features).view(-1, 2, 4)
        q, k, v = (f(x).view(n, 2, 4) for f in (self.q, self.k, self.v))
        score = (q[target] * (k[source] + e)).sum(-1) / 2
        index = target[:, None].expand_as(score)
        top = x.new_full((n, 2), -math.inf).scatter_reduce(0, index, score, "amax")
        weight = (score - top[target]).exp()
        total = x.new_zeros(n, 2).scatter_add(0, index, weight)
        alpha = weight / total[target]
        out = x.new_zeros(n, 2, 4).index_add(0, target, alpha[..., None] * (v[source] + e))
        return out.flatten(1), alpha


@CASES.module(lambda n: (randn(n, 4), randint(0, 3, (n,)).sort()[0]), 8, 13)
class DifferentiablePool(nn.Module):
    """Nodes of several graphs in a dense batch, soft clusters, and an entropy loss."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.assign = nn.Linear(4, 6), nn.Linear(4, 3)

    def forward(self, x: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.bincount(graph, minlength=3)[:3]
        start = F.pad(count.cumsum(0), (1, 0))[:3]
        place = torch.arange(len(x)) - start[graph]
        dense = x.new_zeros(3, len(x), x.shape[1])
        dense[graph, place] = x
        mask = torch.arange(len(x)) < count[:, None]
        s = self.assign(dense).softmax(-1) * mask[..., None]
        pooled = s.mT @ self.lift(dense)
        entropy = -(s * (s + 1e-12).log()).sum(-1)
        return pooled, (entropy * mask).sum(1) / count.clamp(min=1)


@CASES.function(lambda n: (randn(n, 3), randn(n), (rand(n) > 0.8).float()), 9, 15)
def off_policy_returns(logits: Tensor, reward: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """V-trace targets by a reverse loop, with clipped importance weights."""
    value = logits.mean(-1)
    rho = logits.softmax(-1)[:, 0].div(0.4).clamp(max=1.0)
    ahead = torch.cat([value[1:], value[-1:]])
    keep = 0.97 * (1 - done)
    delta = rho * (reward + keep * ahead - value)
    running, targets = torch.zeros_like(reward[0]), []
    for k in reversed(range(len(reward))):
        running = delta[k] + keep[k] * rho[k] * running
        targets.append(value[k] + running)
    target = torch.stack(targets[::-1])
    return target, rho * (reward + keep * torch.cat([target[1:], ahead[-1:]]) - value)


@CASES.function(lambda n: (rand(3, n) + 0.1,), 8, 12)
def backward_sampling(likelihood: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled forward and backward passes of a hidden Markov model, posteriors, expected transitions."""
    move = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=likelihood.dtype)
    a, scales, forward = likelihood[:, 0] / 3, [], []
    for k in range(likelihood.shape[1]):
        if k:
            a = (move.T @ a) * likelihood[:, k]
        scales.append(a.sum())
        a = a / scales[-1]
        forward.append(a)
    b = torch.ones_like(a)
    backward = [b]
    for k in range(likelihood.shape[1] - 1, 0, -1):
        b = move @ (b * likelihood[:, k]) / scales[k]
        backward.append(b)
    f, g = torch.stack(forward), torch.stack(backward[::-1])
    pairs = f[:-1, :, None] * move * (g[1:] * likelihood.T[1:])[:, None] / torch.stack(scales)[1:, None, None]
    return f * g, torch.stack(scales).log().sum(), pairs.sum(0)


@CASES.function(lambda n: (randn(n, 3), randn(5, 3), rand(n)), 8, 11)
def inducing_points(x: Tensor, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A sparse Gaussian process: Cholesky factors, triangular solutions, mean and variance."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        d = torch.cdist(a, b) * math.sqrt(5)
        return (1 + d + d**2 / 3) * torch.exp(-d)

    eye = torch.eye(len(z), dtype=x.dtype)
    low = torch.linalg.cholesky(kernel(z, z) + 1e-4 * eye)
    a = torch.linalg.solve_triangular(low, kernel(z, x), upper=False) / 0.3
    inner = torch.linalg.cholesky(eye + a @ a.T)
    c = torch.linalg.solve_triangular(inner, a @ y[:, None], upper=False) / 0.3
    s = torch.linalg.solve_triangular(low, kernel(z, x), upper=False)
    t = torch.linalg.solve_triangular(inner, s, upper=False)
    return (t.T @ c).squeeze(-1), 1 + (t**2).sum(0) - (s**2).sum(0)


@CASES.function(lambda n: (randn(n, 12),), 5, 8)
def rigid_chain(angles: Tensor) -> tuple[Tensor, Tensor]:
    """A chain of six joints by exponential coordinates, and its Jacobian from the same products."""
    eye = torch.eye(4, dtype=angles.dtype).expand(len(angles), 4, 4)
    pose, axes = eye, []
    for k in range(6):
        w, v = F.normalize(angles[:, k : k + 3] + 2, dim=-1), angles[:, 3 + k : 6 + k]
        zero = torch.zeros_like(w[:, 0])
        hat = torch.stack([zero, -w[:, 2], w[:, 1], w[:, 2], zero, -w[:, 0], -w[:, 1], w[:, 0], zero], -1)
        hat = hat.view(-1, 3, 3)
        theta = angles[:, k, None, None]
        turn = eye[:, :3, :3] + theta.sin() * hat + (1 - theta.cos()) * hat @ hat
        shift = (eye[:, :3, :3] * theta + (1 - theta.cos()) * hat + (theta - theta.sin()) * hat @ hat) @ v[..., None]
        step = torch.cat([torch.cat([turn, shift], -1), eye[:, 3:]], 1)
        axes.append(torch.cat([pose[:, :3, :3] @ w[..., None], pose[:, :3, 3:]], 1).squeeze(-1))
        pose = pose @ step
    return pose, torch.stack(axes, -1)


@CASES.function(lambda n: (randint(0, 200, (n,)), randint(0, 200, (40,)).sort()[0]), 9, 14)
def sparse_rows(wanted: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    """Compressed rows from sorted pairs, a product with a vector, rows looked up by bisection."""
    row, column = keys // 20, keys % 20
    pointer = torch.searchsorted(row.contiguous(), torch.arange(11))
    values = (keys.float() * 0.37).sin()
    y = torch.zeros(10).index_add_(0, row, values * torch.arange(20.0)[column])
    k = torch.bucketize(wanted, keys)
    hit = keys[k.clamp(max=39)] == wanted
    return pointer, y, torch.where(hit, values[k.clamp(max=39)], 0.0), pointer.diff()


@CASES.function(lambda n: (randn(2, n, n) * 0.1,), 6, 9)
def matrix_functions(a: Tensor) -> tuple[Tensor, ...]:
    """An exponential by scaling and squaring, a square root by coupled iterations, a polar factor."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    b, term, total = a / 16, eye.expand_as(a), eye.expand_as(a)
    for k in range(1, 9):
        term = term @ b / k
        total = total + term
    for _ in range(4):
        total = total @ total
    spd = a @ a.mT + eye
    norm = torch.linalg.matrix_norm(spd, keepdim=True)
    y, z = spd / norm, eye.expand_as(spd)
    for _ in range(12):
        t = 1.5 * eye - 0.5 * z @ y
        y, z = y @ t, t @ z
    u, _, v = torch.linalg.svd(spd + a)
    return total, y * norm.sqrt(), u @ v, torch.matrix_exp(a) - total


@CASES.function(lambda n: (torch.randn(n, n, dtype=torch.complex64), torch.randn(n, dtype=torch.complex64)), 6, 9)
def complex_arithmetic(a: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Hermitian products, phases, powers and reductions of complex numbers."""
    h = (a + a.mH) / 2
    w = torch.einsum("ij,j->i", h, v) / (1 + v.abs())
    return (
        torch.vdot(v, w), w.angle(), (w * 1j).exp().real, torch.polar(v.abs(), w.angle()), a.cumsum(0)[-1].imag,
        torch.where(v.real > 0, v, v.conj()), (v**2).sum().abs(), torch.view_as_real(w).norm(dim=-1), w.sgn(),
    )  # fmt: skip


@CASES.module(lambda n: (randn(2, n, 4), rand(2, n).cumsum(1)), 7, 11)
class IrregularSamples(nn.Module):
    """A recurrent cell whose state decays and moves by a solver's steps between uneven samples."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.field = nn.GRUCell(4, 6), nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        h, states = x.new_zeros(len(x), 6), []
        gaps = torch.diff(at, dim=1, prepend=torch.zeros_like(at[:, :1]))
        for k in range(x.shape[1]):
            dt = gaps[:, k, None]
            k1 = self.field(h)
            k2 = self.field(h + 0.5 * dt * k1)
            h = self.cell(x[:, k], h + dt * k2)
            states.append(h)
        path = torch.stack(states, 1)
        return path, torch.trapezoid(path, at[..., None], dim=1)


@CASES.function(lambda n: (randn(2, n).cumsum(1),), 16, 23)
def change_points(x: Tensor) -> tuple[Tensor, ...]:
    """Binary segmentation by cumulative sums, run lengths, turning points and their prominence."""
    n = x.shape[1]
    s, q = F.pad(x.cumsum(1), (1, 0)), F.pad((x**2).cumsum(1), (1, 0))
    k = torch.arange(2, n - 1)
    left = q[:, k] - s[:, k] ** 2 / k
    right = (q[:, -1:] - q[:, k]) - (s[:, -1:] - s[:, k]) ** 2 / (n - k)
    cost, at = (left + right).min(1)
    rising = x[:, 1:] > x[:, :-1]
    turn = (rising[:, 1:] != rising[:, :-1]).nonzero()
    ranks = x.argsort(1).argsort(1)
    low = torch.flip(torch.cummin(torch.flip(x, [1]), 1)[0], [1])
    return cost, k[at], turn, ranks, torch.cummax(x, 1)[0] - low


@CASES.module(lambda n: (randint(0, 9, (2, n)), randint(1, n + 1, (2,))), 6, 10)
class PackedPairs(nn.Module):
    """Embeddings with offsets and lengths, two-way recurrence with reversed valid parts, a masked mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, padding_idx=0)
        self.ahead, self.back = nn.GRU(6, 5, batch_first=True), nn.GRU(6, 5, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        n = ids.shape[1]
        at = torch.arange(n)
        turned = torch.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)
        x = self.words(ids)
        there = self.ahead(x)[0]
        back = self.back(x.gather(1, turned[..., None].expand_as(x)))[0]
        h = torch.cat([there, back.gather(1, turned[..., None].expand_as(back))], -1)
        mask = (at < lengths[:, None])[..., None]
        return (h * mask).sum(1) / lengths[:, None], h[torch.arange(2), lengths - 1]
