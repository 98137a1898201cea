"""Newcomer models of language decoding, diffusion, audio and time series, as their repositories write them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.function(lambda n: (randn(2, n, 6).log_softmax(-1),), 7, 11)
def prefix_collapse(log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy CTC: repeats and blanks leave, what stays moves to the front; confidences by segment."""
    best, path = log_probs.max(-1)
    keep = (path != 0) & (path != F.pad(path, (1, 0), value=-1)[:, :-1])
    place = keep.cumsum(1) - 1
    out = torch.full_like(path, -1)
    out.scatter_(1, torch.where(keep, place, path.shape[1] - 1), torch.where(keep, path, -1))
    segment = place.clamp(min=0)
    score = torch.zeros_like(best).scatter_add_(1, segment, best)
    return out, keep.sum(1), score


@CASES.module(lambda n: (randint(1, 12, (2, n)),), 5, 8)
class BeamDecoder(nn.Module):
    """Three beams over a small recurrent decoder, with length normalisation and finished beams."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(12, 8), nn.GRUCell(8, 10), nn.Linear(10, 12)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        b, beams = len(source), 3
        h = self.words(source).mean(1)
        h = F.pad(h, (0, 2)).repeat_interleave(beams, 0)
        score = h.new_tensor([0.0, -1e9, -1e9]).repeat(b).view(b, beams)
        tokens = torch.ones(b, beams, 1, dtype=torch.long)
        done = torch.zeros(b, beams, dtype=torch.bool)
        for _ in range(4):
            h = self.cell(self.words(tokens[..., -1].flatten()), h)
            step = self.head(h).log_softmax(-1).view(b, beams, 12)
            only_end = torch.full_like(step, -1e9)
            only_end[..., 0] = 0
            step = torch.where(done[..., None], only_end, step)
            score, flat = (score[..., None] + step).flatten(1).topk(beams)
            parent, word = flat // 12, flat % 12
            tokens = torch.cat([tokens.gather(1, parent[..., None].expand_as(tokens)), word[..., None]], -1)
            done = done.gather(1, parent) | (word == 0)
            h = h.view(b, beams, -1).gather(1, parent[..., None].expand(-1, -1, h.shape[-1])).flatten(0, 1)
        length = (tokens != 0).sum(-1).to(score.dtype)
        return tokens, score / ((5 + length) / 6) ** 0.6


@CASES.module(lambda n: (randn(2, n, 16), torch.arange(n), randn(2, 2, 16, 8), randn(2, 2, 16, 8)), 3, 5)
class SlidingCache(nn.Module):
    """Grouped-query attention over a ring of keys and values that the step writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, x: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, 2, 8).permute(2, 0, 3, 1, 4)
        slot = at % keys.shape[2]
        keys, values = keys.index_copy(2, slot, k), values.index_copy(2, slot, v)
        held = torch.arange(keys.shape[2])
        seen = held <= at[:, None]
        scores = q.view(b, 2, 2, n, 8) @ keys[:, :, None].mT / math.sqrt(8)
        scores = 30 * torch.tanh(scores / 30)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return (weights @ values[:, :, None]).view(b, 4, n, 8).transpose(1, 2).flatten(2), keys, values


@CASES.module(lambda n: (randn(n, 12),), 9, 14)
class CapacityExperts(nn.Module):
    """The two best experts of each token, as many tokens for each as fit, a balance loss."""

    def __init__(self, experts: int = 4, room: int = 5) -> None:
        super().__init__()
        self.gate, self.n, self.room = nn.Linear(12, experts, bias=False), experts, room
        self.up, self.down = nn.Parameter(randn(experts, 12, 16) * 0.2), nn.Parameter(randn(experts, 16, 12) * 0.2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.gate(x).softmax(-1)
        weight, expert = p.topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        onehot = F.one_hot(expert.T.flatten(), self.n)
        place = ((onehot.cumsum(0) - 1) * onehot).sum(-1).view(2, -1).T
        fits = place < self.room
        slot = torch.where(fits, expert * self.room + place, self.n * self.room)
        buffer = x.new_zeros(self.n * self.room + 1, x.shape[1]).index_add(0, slot.flatten(), x.repeat_interleave(2, 0))
        h = F.silu(torch.bmm(buffer[:-1].view(self.n, self.room, -1), self.up))
        out = F.pad(torch.bmm(h, self.down).flatten(0, 1), (0, 0, 0, 1))
        y = (out[slot] * (weight * fits)[..., None]).sum(1)
        load = F.one_hot(expert[:, 0], self.n).to(p.dtype).mean(0)
        return y, self.n * (load * p.mean(0)).sum()


@CASES.function(lambda n: (randn(2, 3, n, n), randn(2, 3, n, n), randn(2, 3, n, n)), 6, 9)
def multistep_solver(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """A second-order multistep sampler over a cosine schedule, with dynamic thresholds."""
    t = torch.linspace(0.9, 0.1, 4, dtype=x.dtype)
    alpha = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    a, s = alpha.sqrt(), (1 - alpha).sqrt()
    log_snr = (a / s).log()
    before = None
    for k in range(3):
        noise = (first if k % 2 == 0 else second) + 0.1 * x
        clean = (x - s[k] * noise) / a[k]
        limit = clean.abs().flatten(1).quantile(0.95, dim=1).clamp(min=1.0)[:, None, None, None]
        clean = torch.clamp(clean, -limit, limit) / limit
        h = log_snr[k + 1] - log_snr[k]
        d = clean if before is None else clean + 0.5 * (clean - before) * h / (log_snr[k] - log_snr[k - 1])
        x = s[k + 1] / s[k] * x - a[k + 1] * torch.expm1(-h) * d
        before = clean
    return x, log_snr


@CASES.module(lambda n: (randn(2, 64 * n),), 4, 6)
class MelCepstra(nn.Module):
    """Framed and windowed sound, power, triangular filters, cepstra with liftering and their differences."""

    def __init__(self) -> None:
        super().__init__()
        edges = torch.linspace(0, 1, 12) ** 1.6 * 64
        bins = torch.arange(65.0)
        width = edges.diff()[:, None]
        up, down = (bins - edges[:-2, None]) / width[:-1], (edges[2:, None] - bins) / width[1:]
        self.register_buffer("filters", torch.minimum(up, down).clamp(min=0))
        k = torch.arange(10.0)
        self.register_buffer("cosines", torch.cos(math.pi / 10 * (k + 0.5) * k[:, None]) * math.sqrt(2 / 10))
        self.register_buffer("window", torch.hann_window(128))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], 1)
        frames = x.unfold(1, 128, 64)
        frames = (frames - frames.mean(-1, keepdim=True)) * self.window
        power = torch.fft.rfft(frames).abs() ** 2 / 128
        mel = (power @ self.filters.T).clamp(min=1e-10).log()
        cepstra = mel @ self.cosines.T * (1 + 11 * torch.sin(math.pi * torch.arange(10) / 22))
        around = F.pad(cepstra.mT, (1, 1), mode="replicate")
        return torch.cat([cepstra, (around[..., 2:] - around[..., :-2]).mT / 2], -1)


@CASES.function(lambda n: (randn(2, 8 * n),), 3, 5)
def lifted_wavelets(x: Tensor) -> tuple[Tensor, ...]:
    """Three levels of a lifting scheme with rounding, forward and back."""
    details, low = [], x
    for _ in range(3):
        even, odd = low[:, ::2], low[:, 1::2]
        d = odd - torch.floor(0.5 * (even + torch.roll(even, -1, 1)) + 0.5)
        low = even + torch.floor(0.25 * (d + torch.roll(d, 1, 1)) + 0.5)
        details.append(d)
    back = low
    for d in reversed(details):
        even = back - torch.floor(0.25 * (d + torch.roll(d, 1, 1)) + 0.5)
        odd = d + torch.floor(0.5 * (even + torch.roll(even, -1, 1)) + 0.5)
        back = torch.stack([even, odd], -1).flatten(1)
    return (low, *details, back)


@CASES.function(lambda n: (rand(n).sort()[0] + torch.arange(n), randn(n), rand(7) * n), 6, 10)
def natural_spline(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """Second derivatives by a tridiagonal system, and the pieces' cubics."""
    h, slope = x.diff(), y.diff() / x.diff()
    m = torch.diag(2 * (h[:-1] + h[1:])) + torch.diag(h[1:-1], 1) + torch.diag(h[1:-1], -1)
    bend = F.pad(torch.linalg.solve(m, 6 * slope.diff()), (1, 1))
    k = (torch.searchsorted(x, at) - 1).clamp(0, len(h) - 1)
    a, b = (x[k + 1] - at) / h[k], (at - x[k]) / h[k]
    return a * y[k] + b * y[k + 1] + ((a**3 - a) * bend[k] + (b**3 - b) * bend[k + 1]) * h[k] ** 2 / 6


@CASES.function(lambda n: (randn(40).sort()[0], randn(n)), 6, 11)
def implicit_tree_search(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """A search tree of fan-out four that lies in one array, walked by gathers."""
    found, span = torch.zeros_like(wanted, dtype=torch.long), 64
    while span >= 4:
        span //= 4
        splits = found[:, None] + span * torch.arange(1, 4)
        inside = splits < len(keys)
        greater = (keys[splits.clamp(max=len(keys) - 1)] < wanted[:, None]) & inside
        found = found + span * greater.sum(1)
    return found, keys[found] - wanted


@CASES.module(lambda n: (randn(2, n, 3),), 12, 20)
class QuantileForecaster(nn.Module):
    """Reversible scaling, gated residual blocks, quantiles that can't cross, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.lstm = nn.Linear(3, 8), nn.LSTM(8, 8, batch_first=True)
        self.gate, self.norm, self.out = nn.Linear(8, 16), nn.LayerNorm(8), nn.Linear(8, 5)
        self.register_buffer("levels", torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        centre, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        h = self.enter((x - centre) / scale)
        h = self.norm(h + F.glu(self.gate(self.lstm(h)[0]), -1))
        raw = self.out(h)
        q = torch.cat([raw[..., :1], raw[..., :1] + F.softplus(raw[..., 1:]).cumsum(-1)], -1)
        q = q * scale[..., :1] + centre[..., :1]
        off = x[:, 1:, :1] - q[:, :-1]
        return q, torch.maximum(self.levels * off, (self.levels - 1) * off).mean((1, 2))


@CASES.module(lambda n: (randn(2, n, 6), rand(2, n)), 8, 13)
class SelectiveScan(nn.Module):
    """A state space whose step data choose, with gaps between samples, scanned by doubling."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.step = nn.Linear(6, 12), nn.Linear(6, 6)
        self.b, self.c = nn.Linear(6, 4), nn.Linear(6, 4)
        self.rate, self.skip = nn.Parameter(torch.arange(1.0, 5).log().repeat(6, 1)), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, gap: Tensor) -> Tensor:
        u, gate = self.enter(x).chunk(2, -1)
        dt = F.softplus(self.step(x)) * gap[..., None]
        decay = torch.exp(dt[..., None] * -self.rate.exp())
        state = (dt * u)[..., None] * self.b(x)[:, :, None]
        reach = 1
        while reach < x.shape[1]:
            before, factor = state, decay
            state = torch.cat([before[:, :reach], before[:, reach:] + factor[:, reach:] * before[:, :-reach]], 1)
            decay = torch.cat([factor[:, :reach], factor[:, reach:] * factor[:, :-reach]], 1)
            reach *= 2
        y = (state * self.c(x)[:, :, None]).sum(-1) + self.skip * u
        return y * F.silu(gate)


@CASES.function(lambda n: (torch.randn(2, n, dtype=torch.complex64), randn(2, n)), 8, 12)
def phase_retrieval(signal: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Alternating projections between measured magnitudes and a support."""
    magnitude = torch.fft.fft(signal).abs()
    guess = torch.complex(mask, mask.flip(1))
    support = torch.arange(signal.shape[1]) < signal.shape[1] // 2
    for _ in range(3):
        f = torch.fft.fft(guess)
        guess = torch.fft.ifft(magnitude * f / f.abs().clamp(min=1e-6))
        guess = torch.where(support, guess, 0.5 * guess.conj())
    return guess, (torch.fft.fft(guess).abs() - magnitude).pow(2).mean(-1)
