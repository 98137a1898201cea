"""Newcomer cases of signals, control and tables: filters, codecs, robots, forecasts, recommendations.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def wave(n: int) -> tuple[Tensor]:
    """Two channels of sound."""
    return (randn(2, 1, n),)


def steps(n: int) -> tuple[Tensor]:
    """Two sequences of eight features."""
    return (randn(2, n, 8),)


@CASES.module(wave, 64, 96)
class ResidualCodec(nn.Module):
    """A strided encoder, dilated residual units with ELU, and a decoder of transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv1d(a, b, 4, 2, 1) for a, b in ((1, 8), (8, 12)))
        self.units = nn.ModuleList(nn.Conv1d(12, 12, 3, padding=d, dilation=d) for d in (1, 3, 9))
        self.up = nn.ModuleList(nn.ConvTranspose1d(a, b, 4, 2, 1) for a, b in ((12, 8), (8, 1)))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.down:
            x = F.elu(conv(x))
        for unit in self.units:
            x = x + unit(F.elu(x))
        for conv in self.up:
            x = conv(F.elu(x))
        return x.tanh()


@CASES.module(wave, 80, 120)
class GatedWave(nn.Module):
    """Causal dilated convolutions with gates and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 4, 1)
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**k) for k in range(4))
        self.mixers = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.start(x), 0.0
        for k, (layer, mixer) in enumerate(zip(self.layers, self.mixers, strict=True)):
            a, b = layer(F.pad(x, (2**k, 0))).chunk(2, 1)
            y = a.tanh() * b.sigmoid()
            skips, x = skips + y, x + mixer(y)
        return self.end(F.relu(skips)).log_softmax(1)


@CASES.module(lambda n: (randn(1, n),), 256, 384)
class PitchByCorrelation(nn.Module):
    """Frames by ``unfold``, the difference function by shifts, its normalised running mean."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        frames = x.unfold(-1, 64, 32)
        lags = [(frames[..., :40] - frames[..., k : k + 40]).square().sum(-1) for k in range(1, 20)]
        d = torch.stack(lags, -1)
        mean = d.cumsum(-1) / torch.arange(1, 20)
        normal = d / mean.clamp_min(1e-8)
        return normal, normal.argmin(-1) + 1


@CASES.module(steps, 12, 20)
class ReversibleForecast(nn.Module):
    """Instance normalisation undone at the end, patches as tokens, a mixer of time and features."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.feature, self.head = nn.Linear(4, 4), nn.Linear(8, 8), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        y = (x - mean) / scale
        y = y.reshape(x.shape[0], -1, 4, 8)
        y = y + self.time(y.transpose(2, 3)).transpose(2, 3).relu()
        y = y + F.gelu(self.feature(y))
        return self.head(y.transpose(2, 3)).transpose(2, 3).flatten(1, 2) * scale + mean


@CASES.module(steps, 9, 14)
class SmoothedLevels(nn.Module):
    """Exponential smoothing with a trend, written as a loop over what is known of time."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.full((8,), -1.0))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a.sigmoid(), self.b.sigmoid()
        level, trend = x[:, 0], torch.zeros_like(x[:, 0])
        for t in range(1, 9):
            before = level
            level = a * x[:, t] + (1 - a) * (level + trend)
            trend = b * (level - before) + (1 - b) * trend
        return torch.stack([level + k * trend for k in range(1, 4)], 1)


@CASES.module(steps, 7, 11)
class MinimalGru(nn.Module):
    """A recurrence whose gates see no state, computed in logarithms by a running log-sum."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.gate(x), self.value(x)
        log_keep, log_take = -F.softplus(k), -F.softplus(-k)
        log_value = torch.where(v >= 0, (F.relu(v) + 0.5).log(), -F.softplus(-v))
        star = log_keep.cumsum(1)
        return (star + (log_take + log_value - star).logcumsumexp(1)).exp()


@CASES.module(lambda n: (randn(n, 6), randn(n, 2)), 16, 24)
class TwinCritics(nn.Module):
    """Two critics by one call of ``torch.func``'s stacked weights, the lesser one, and a tanh-normal policy."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(randn(2, 8, 16) / 3), nn.Parameter(randn(2, 16, 1) / 4)
        self.policy = nn.Linear(6, 4)

    def forward(self, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = self.policy(state).chunk(2, -1)
        log_scale = log_scale.clamp(-5, 2)
        raw = mean + log_scale.exp() * noise
        log_p = -0.5 * noise.square() - log_scale - 0.5 * math.log(2 * math.pi)
        log_p = (log_p - 2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1)
        z = torch.cat([state, raw.tanh()], -1).expand(2, -1, -1)
        q = torch.baddbmm(torch.zeros(1, 1, 1), F.relu(z @ self.w1), self.w2).squeeze(-1)
        return q.amin(0), log_p


@CASES.module(lambda n: (randn(n, 7),), 10, 16)
class SixDofArm(nn.Module):
    """Forward kinematics: rotations about axes multiplied along a chain; quaternions to matrices."""

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        quaternion = F.normalize(q[:, :4], dim=-1)
        w, x, y, z = quaternion.unbind(-1)
        rows = [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ]  # fmt: skip
        pose = torch.stack(rows, -1).view(-1, 3, 3)
        places = [torch.zeros(q.shape[0], 3)]
        for k in range(3):
            c, s, o, i = q[:, 4 + k].cos(), q[:, 4 + k].sin(), torch.zeros_like(w), torch.ones_like(w)
            turn = torch.stack([c, -s, o, s, c, o, o, o, i], -1).unflatten(-1, (3, 3))
            pose = pose @ turn.roll((k, k), (1, 2))
            places.append(places[-1] + pose[:, :, 0] * 0.3)
        return pose, torch.stack(places, 1)


@CASES.module(lambda n: (randn(n, 4), randn(n, 2)), 9, 13)
class UnscentedStep(nn.Module):
    """Sigma points through a nonlinear model, their weighted mean and covariance."""

    def forward(self, mean: Tensor, control: Tensor) -> tuple[Tensor, Tensor]:
        spread = torch.linalg.cholesky(torch.eye(4) * 2 + 0.5 * torch.ones(4, 4)).mT
        points = torch.cat([mean[:, None], mean[:, None] + spread, mean[:, None] - spread], 1)
        weights = torch.full((9,), 1 / 12.0)
        weights[0] = 1 - weights[1:].sum()
        px, py, angle, speed = points.unbind(-1)
        speed = speed + control[:, :1] * 0.1
        angle = torch.atan2((angle + control[:, 1:] * 0.1).sin(), (angle + control[:, 1:] * 0.1).cos())
        moved = torch.stack([px + speed * angle.cos(), py + speed * angle.sin(), angle, speed], -1)
        centre = (weights[:, None] * moved).sum(1)
        off = moved - centre[:, None]
        return centre, torch.einsum("p,bpi,bpj->bij", weights, off, off)


@CASES.function(lambda n: (randn(n, 5), rand(n, 5)), 12, 18)
def trajectory_returns(rewards: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Discounted sums from the back, cut at the ends of episodes; advantages standardised where they count."""
    alive = (ends < 0.8).to(rewards.dtype)
    total, out = torch.zeros_like(rewards[:, 0]), []
    for t in reversed(range(5)):
        total = rewards[:, t] + 0.97 * total * alive[:, t]
        out.insert(0, total)
    returns = torch.stack(out, 1)
    mask = alive.cumprod(1)
    mean = (returns * mask).sum() / mask.sum().clamp_min(1)
    return returns, torch.where(mask > 0, returns - mean, 0.0)


@CASES.module(lambda n: (randint(0, 50, (n, 6)), rand(n, 3)), 14, 22)
class CrossNetwork(nn.Module):
    """Embeddings, pairwise products by their squares, low-rank crosses beside a deep branch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.u, self.v = (nn.ParameterList(randn(a, b) / 4 for _ in range(2)) for a, b in ((27, 5), (5, 27)))
        self.deep = nn.Sequential(nn.Linear(27, 16), nn.PReLU(16), nn.Linear(16, 1))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        e = self.table(ids)
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(-1)
        x0 = x = torch.cat([e.flatten(1), numbers.log1p()], -1)
        for u, v in zip(self.u, self.v, strict=True):
            x = x0 * (x @ u @ v) + x
        return (self.deep(x).squeeze(-1) + pairs + x.mean(-1)).sigmoid()


@CASES.module(lambda n: (randint(0, 30, (3, n)), randint(0, 30, (3, 1))), 8, 12)
class InterestAttention(nn.Module):
    """A click history weighed by its fit to the candidate; padding is item 0."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(30, 6, padding_idx=0)
        self.fit = nn.Sequential(nn.Linear(24, 8), nn.Sigmoid(), nn.Linear(8, 1))

    def forward(self, history: Tensor, candidate: Tensor) -> Tensor:
        h, c = self.items(history), self.items(candidate)
        c = c.expand_as(h)
        scores = self.fit(torch.cat([h, c, h - c, h * c], -1)).squeeze(-1)
        scores = scores.masked_fill(history.eq(0), torch.finfo(scores.dtype).min).softmax(-1)
        return (scores.unsqueeze(1) @ h).squeeze(1)


@CASES.function(lambda n: (randn(n, 3), randn(n, 3)), 20, 28)
def robust_alignment(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted least squares of a plane, weights renewed three times by the residuals' median."""
    design = torch.cat([a, torch.ones(a.shape[0], 1)], 1)
    w = torch.ones(a.shape[0], 1)
    for _ in range(3):
        x = torch.linalg.solve(design.T @ (w * design) + 1e-3 * torch.eye(4), design.T @ (w * b))
        r = (design @ x - b).norm(dim=-1, keepdim=True)
        scale = 1.4826 * r.flatten().kthvalue(10).values + 1e-6
        w = torch.where(r < 1.345 * scale, 1.0, 1.345 * scale / r)
    return x, w


@CASES.function(lambda n: (randn(2, n),), 48, 64)
def biquad_cascade(x: Tensor) -> Tensor:
    """A long filter as a convolution with its own response, by Fourier transforms twice as long."""
    k = torch.arange(24.0)
    response = (-0.2 * k).exp() * (0.7 * k).cos()
    n = x.shape[-1] + 24
    y = torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(response, n), n)
    return y[..., : x.shape[-1]]


@CASES.function(lambda n: (randn(3, n),), 40, 56)
def crossings_and_peaks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sign changes counted, local maxima marked, energies of halves that overlap."""
    signs = torch.sign(x)
    crossings = (signs[:, 1:] * signs[:, :-1] < 0).sum(-1)
    inner = x[:, 1:-1]
    peaks = F.pad((inner > x[:, :-2]) & (inner > x[:, 2:]), (1, 1))
    return crossings, peaks, x.unfold(-1, 16, 8).square().mean(-1).add(1e-6).log10() * 10


@CASES.function(lambda n: (randn(n, 4), randint(0, 5, (n,))), 21, 30)
def grouped_softmax(x: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over rows of a group by scatters of maxima and sums; means of groups, some of them empty."""
    index = group[:, None].expand_as(x)
    top = torch.full((5, 4), -torch.inf).scatter_reduce(0, index, x, "amax")
    e = (x - top[group]).exp()
    total = torch.zeros(5, 4).index_add(0, group, e)
    n = torch.bincount(group, minlength=5).clamp_min(1)
    return e / total[group], torch.zeros(5, 4).scatter_add(0, index, x) / n[:, None]


@CASES.function(lambda n: (rand(n, 8), rand(n, 8)), 11, 15)
def optimal_transport_1d(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Earth mover's distance of histograms by cumulative sums, and quantiles by a search."""
    p, q = (x / x.sum(-1, keepdim=True) for x in (a, b))
    cp, cq = p.cumsum(-1), q.cumsum(-1)
    levels = torch.linspace(0.05, 0.95, 7).expand(a.shape[0], 7).contiguous()
    at = torch.searchsorted(cp.contiguous(), levels).clamp_max(7)
    return (cp - cq).abs().sum(-1), at


@CASES.function(lambda n: (randn(n, n), randn(n)), 6, 9)
def implicit_step(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """An implicit Euler step by an LU factorisation, and conjugate gradients for a definite matrix."""
    eye = torch.eye(a.shape[0])
    step = torch.linalg.solve(eye - 0.05 * a, b)
    m = a @ a.T / a.shape[0] + eye
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r, r.dot(r)
    for _ in range(4):
        mp = m.mv(p)
        alpha = rr / p.dot(mp)
        x, r = x + alpha * p, r - alpha * mp
        new = r.dot(r)
        p, rr = r + new / rr * p, new
    return step, x


@CASES.function(lambda n: (randint(0, 256, (2, n), dtype=torch.uint8),), 16, 24)
def checksums(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers that wrap: Fletcher's sums, a parity by halving, bytes joined to words."""
    wide = x.to(torch.int64)
    first = wide.cumsum(-1) % 255
    parity = x
    for shift in (4, 2, 1):
        parity = parity ^ (parity >> shift)
    words = wide.unflatten(-1, (-1, 4)) << torch.tensor([0, 8, 16, 24])
    return torch.stack([first[:, -1], first.sum(-1) % 255], -1), parity & 1, words.sum(-1)


@CASES.function(lambda n: (randn(3, n, 2),), 10, 17)
def polygon_measures(p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Areas by the shoelace formula, perimeters, which corners turn left."""
    q = p.roll(-1, 1)
    cross = p[..., 0] * q[..., 1] - q[..., 0] * p[..., 1]
    edge, after = q - p, q.roll(-1, 1) - q
    turn = edge[..., 0] * after[..., 1] - edge[..., 1] * after[..., 0]
    return cross.sum(-1) / 2, torch.hypot(edge[..., 0], edge[..., 1]).sum(-1), turn > 0
