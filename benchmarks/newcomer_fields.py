"""Newcomer models of recent codebases: games, series over time, tracking, reading text, molecules, memories.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()

# --- games ----------------------------------------------------------------------------------------------------------


@CASES.function(lambda n: (randn(n, 2), randn(n + 1, 2), randn(n, 2), randn(n, 2), rand(n, 2) < 0.2), 6, 9)
def importance_targets(reward: Tensor, value: Tensor, new: Tensor, old: Tensor, done: Tensor) -> tuple[Tensor, ...]:
    """V-trace's targets and generalised advantages, backwards over time, and PPO's clipped loss."""
    discount = 0.99 * (~done).to(value.dtype)
    ratio = (new - old).exp()
    rho, c = ratio.clamp(max=1.0), 0.95 * ratio.clamp(max=1.0)
    delta = rho * (reward + discount * value[1:] - value[:-1])
    trace = advantage = torch.zeros_like(reward[0])
    traces, advantages = [], []
    for t in reversed(range(reward.shape[0])):
        trace = delta[t] + discount[t] * c[t] * trace
        advantage = reward[t] + discount[t] * value[t + 1] - value[t] + discount[t] * 0.95 * advantage
        traces.insert(0, trace)
        advantages.insert(0, advantage)
    targets, gae = torch.stack(traces) + value[:-1], torch.stack(advantages)
    gae = (gae - gae.mean()) / (gae.std() + 1e-8)
    loss = torch.max(-gae * ratio, -gae * ratio.clamp(0.8, 1.2)).mean()
    return targets, gae, loss, ((ratio - 1) - ratio.log()).mean()


@CASES.function(lambda n: (randn(n, 3, 11).softmax(-1), randn(n), rand(n) < 0.3, randint(0, 3, (n,))), 5, 8)
def projected_distribution(chances: Tensor, reward: Tensor, done: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """C51: a return's distribution moved, cut and laid onto the atoms on either side."""
    atoms = torch.linspace(-2, 2, 11, dtype=chances.dtype)
    best = (chances * atoms).sum(-1).argmax(-1)
    rows = torch.arange(chances.shape[0])
    following = chances[rows, best]
    moved = (reward[:, None] + 0.9 * (~done)[:, None] * atoms).clamp(-2, 2)
    place = (moved + 2) / 0.4
    low, high = place.floor().long(), place.ceil().long()
    low = torch.where((high > 0) & (low == high), low - 1, low)
    high = torch.where((low < 10) & (low == high), high + 1, high)
    target = torch.zeros_like(following)
    target.scatter_add_(1, low, following * (high - place))
    target.scatter_add_(1, high, following * (place - low))
    return target, -(target * chances[rows, action].clamp_min(1e-5).log()).sum(-1)


@CASES.module(lambda n: (randn(2, n, 4), randn(2, n) * 20, (rand(2, n) < 0.2)), 4, 6)
class SymlogWorld(nn.Module):
    """Dreamer 3: symmetric logarithms, two-hot targets, categories with one per cent of uniform chance, block GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.inside = nn.Parameter(randn(2, 8, 12) / 3), nn.Linear(4, 8)
        self.stochastic, self.reward = nn.Linear(8, 12), nn.Linear(8, 15)
        self.norm = nn.RMSNorm(12)
        self.register_buffer("bins", torch.linspace(-5, 5, 15))

    def forward(self, seen: Tensor, reward: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        symlog = torch.sign(seen) * torch.log1p(seen.abs())
        state = torch.zeros(seen.shape[0], 8, dtype=seen.dtype)
        states = []
        for t in range(seen.shape[1]):
            state = state * (~first[:, t, None]).to(state.dtype)
            joined = torch.cat([state.view(-1, 2, 4), self.inside(symlog[:, t]).view(-1, 2, 4)], -1)
            reset, candidate, update = self.norm(torch.einsum("bgi,gio->bgo", joined, self.blocks)).chunk(3, -1)
            update = torch.sigmoid(update - 1)
            state = (update * torch.tanh(torch.sigmoid(reset) * candidate)).flatten(1) + (1 - update).flatten(1) * state
            states.append(state)
        h = torch.stack(states, 1)
        chances = 0.99 * self.stochastic(h).unflatten(-1, (3, 4)).softmax(-1) + 0.01 / 4
        wanted = torch.sign(reward) * torch.log1p(reward.abs())
        below = ((self.bins <= wanted[..., None]).sum(-1) - 1).clamp(0, 14)
        above = (15 - (self.bins > wanted[..., None]).sum(-1)).clamp(0, 14)
        to_below = torch.where(below == above, 1.0, (self.bins[below] - wanted).abs())
        to_above = torch.where(below == above, 1.0, (self.bins[above] - wanted).abs())
        part = (to_above / (to_below + to_above))[..., None]
        two_hot = F.one_hot(below, 15) * part + F.one_hot(above, 15) * (1 - part)
        loss = -(two_hot * self.reward(h).log_softmax(-1)).sum(-1)
        return h, chances.log(), loss


# --- series ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 24, 3).cumsum(1),), 2, 3)
class PatchedSeries(nn.Module):
    """PatchTST: each channel normed by itself, patches that overlap as tokens, the norm undone behind the head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(rand(3) + 0.5), nn.Parameter(rand(3))
        self.embed, self.place = nn.Linear(8, 8), nn.Parameter(randn(6, 8) / 9)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        deviation = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        y = ((x - mean) / deviation * self.weight + self.bias).permute(0, 2, 1)
        y = F.pad(y, (0, 4), mode="replicate").unfold(-1, 8, 4)[:, :, :6]
        y = self.encoder((self.embed(y) + self.place).flatten(0, 1)).unflatten(0, (-1, 3))
        y = self.head(y.flatten(2)).permute(0, 2, 1)
        return (y - self.bias) / (self.weight + 1e-10) * deviation + mean


@CASES.module(lambda n: (randn(n, 16),), 3, 5)
class BlocksOfBases(nn.Module):
    """N-BEATS and N-HiTS: polynomials, waves and knots between which is interpolated; each block explains a part."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(w, 12), nn.ReLU(), nn.Linear(12, k)) for w, k in ((16, 6), (16, 12), (4, 6))
        )
        back, ahead = torch.arange(16) / 16, torch.arange(6) / 6
        self.register_buffer("trend_back", torch.stack([back**k for k in range(3)]))
        self.register_buffer("trend", torch.stack([ahead**k for k in range(3)]))
        waves = 2 * math.pi * torch.arange(1, 4)[:, None]
        self.register_buffer("wave_back", torch.cat([(waves * back).cos(), (waves * back).sin()]))
        self.register_buffer("wave", torch.cat([(waves * ahead).cos(), (waves * ahead).sin()]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = x[:, -1:]
        rest, total = x, last.repeat(1, 6)
        for k, block in enumerate(self.blocks):
            if k < 2:
                back, ahead = ((self.trend_back, self.trend), (self.wave_back, self.wave))[k]
                theta = block(rest)
                own, found = theta[:, : back.shape[0]] @ back, theta[:, back.shape[0] :] @ ahead
            else:
                theta = block(F.max_pool1d(rest[:, None], 4, ceil_mode=True)[:, 0])[:, None]
                own = F.interpolate(theta[..., :4], size=16, mode="linear", align_corners=False)[:, 0]
                found = F.interpolate(theta[..., 4:], size=6, mode="linear")[:, 0]
            rest, total = rest - own, total + found
        return total, rest


@CASES.module(lambda n: (randn(n, 16, 8), randn(n, 16, 8)), 2, 3)
class SeriesCorrelation(nn.Module):
    """Autoformer: lags of the greatest correlation by a Fourier transform, series rolled by them, trends taken off."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.trend = nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (f(t).transpose(1, 2) for f, t in ((self.q, x), (self.k, memory), (self.v, memory)))
        spectrum = torch.fft.rfft(q) * torch.conj(torch.fft.rfft(k))
        correlation = torch.fft.irfft(spectrum, n=16)
        weights, lags = correlation.mean(1).topk(3)
        weights = weights.softmax(-1)
        twice, places = v.repeat(1, 1, 2), torch.arange(16)
        mixed = torch.zeros_like(v)
        for i in range(3):
            at = (places + lags[:, i, None])[:, None].expand(-1, 8, -1)
            mixed = mixed + twice.gather(-1, at) * weights[:, i, None, None]
        y = x + mixed.transpose(1, 2)
        padded = torch.cat([y[:, :1].repeat(1, 2, 1), y, y[:, -1:].repeat(1, 2, 1)], 1)
        smooth = F.avg_pool1d(padded.transpose(1, 2), 5, 1)
        return y - smooth.transpose(1, 2), self.trend(smooth)


# --- tracking -------------------------------------------------------------------------------------------------------


@CASES.function(lambda n: (randn(n, 8), torch.eye(8).expand(n, -1, -1) * 2, randn(n, 4), rand(5, 4)), 3, 6)
def filtered_boxes(mean: Tensor, spread: Tensor, seen: Tensor, boxes: Tensor) -> tuple[Tensor, ...]:
    """ByteTrack: a constant-velocity filter's step, gates by Mahalanobis, overlaps as costs, the cheapest first."""
    move = torch.eye(8, dtype=mean.dtype) + torch.diag(torch.ones(4, dtype=mean.dtype), 4)
    look = torch.eye(4, 8, dtype=mean.dtype)
    mean = mean @ move.T
    spread = move @ spread @ move.T + 0.1 * torch.eye(8, dtype=mean.dtype)
    projected = look @ spread @ look.T + 0.2 * torch.eye(4, dtype=mean.dtype)
    factor = torch.linalg.cholesky(projected)
    gain = torch.cholesky_solve(look @ spread, factor).mT
    innovation = seen - mean @ look.T
    away = torch.linalg.solve_triangular(factor, innovation[..., None], upper=False).square().sum((1, 2))
    mean = mean + (gain @ innovation[..., None]).squeeze(-1)
    spread = spread - gain @ projected @ gain.mT
    centre, size = mean[:, :2], mean[:, 2:4].abs()
    corners = torch.cat([centre - size / 2, centre + size / 2], 1)
    given = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    low, high = torch.maximum(corners[:, None, :2], given[:, :2]), torch.minimum(corners[:, None, 2:], given[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    overlap = common / (size.prod(-1)[:, None] + boxes[:, 2:].prod(-1) - common)
    cost = torch.where(away[:, None] > 9.4877, 1e5, 1 - overlap)
    return mean, spread, away, cost, cost.flatten().argsort(stable=True)


@CASES.module(lambda n: (randn(1, 3, 6, 8, 8), rand(1, n, 2) * 7, randn(1, n, 6)), 4, 7)
class PointTracker(nn.Module):
    """CoTracker: correlations around each point over a pyramid, sampled at offsets, update by mixing over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2 * 9 + 6 + 8, 12)
        self.time, self.points = (nn.TransformerEncoderLayer(12, 2, 12, batch_first=True) for _ in range(2))
        self.step = nn.Linear(12, 2 + 6)

    def forward(self, maps: Tensor, start: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        batch, frames, _, height, width = maps.shape
        n = start.shape[1]
        at = start[:, None].expand(-1, frames, -1, -1)
        found = feature[:, None].expand(-1, frames, -1, -1)
        grid = torch.stack(torch.meshgrid(*[torch.arange(-1, 2, dtype=maps.dtype)] * 2, indexing="ij"), -1).flip(-1)
        for _ in range(2):
            parts = []
            for level in range(2):
                small = F.avg_pool2d(maps.flatten(0, 1), 2**level, 2**level)
                volume = torch.einsum("tnc,tchw->tnhw", found.flatten(0, 1), small).flatten(0, 1)[:, None] / 6**0.5
                h, w = height // 2**level, width // 2**level
                place = at.reshape(-1, 1, 1, 2) / 2**level + grid
                scaled = 2 * place / torch.tensor([w - 1, h - 1], dtype=maps.dtype) - 1
                parts.append(F.grid_sample(volume, scaled, align_corners=True).view(batch, frames, n, 9))
            moved = at - at[:, :1]
            waves = torch.cat([f(moved * 2.0**k) for k in range(2) for f in (torch.sin, torch.cos)], -1)
            x = self.embed(torch.cat([*parts, found, waves], -1))
            x = self.time(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, n)).transpose(1, 2)
            x = self.points(x.flatten(0, 1)).unflatten(0, (batch, frames))
            change = self.step(x)
            at, found = at + change[..., :2], found + F.group_norm(change[..., 2:].flatten(0, 2), 1).view_as(found)
        return at, torch.sigmoid(torch.einsum("btnc,bnc->btn", found, feature))


# --- reading text ---------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(1, 3, 32, 8 * n),), 5, 7)
class TextRegions(nn.Module):
    """DBNet: a pyramid with squeezed channels, chances and thresholds, and a steep sigmoid of their difference."""

    def __init__(self) -> None:
        super().__init__()

        def stage(a: int, b: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.Hardswish())

        self.stages = nn.ModuleList(stage(a, b) for a, b in ((3, 8), (8, 12), (12, 16)))
        self.inside = nn.ModuleList(nn.Conv2d(c, 8, 1, bias=False) for c in (8, 12, 16))
        self.squeeze = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1)) for _ in range(3))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 1, 2, 2))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = []
        for stage, inside, squeeze in zip(self.stages, self.inside, self.squeeze, strict=True):
            x = stage(x)
            y = inside(x)
            maps.append(y + y * F.hardtanh(0.2 * squeeze(F.adaptive_avg_pool2d(y, 1)) + 0.5, 0, 1))
        for k in (1, 0):
            maps[k] = maps[k] + F.interpolate(maps[k + 1], size=maps[k].shape[2:], mode="nearest")
        chance, threshold = (torch.sigmoid(head(maps[0])) for head in self.heads)
        steep = torch.reciprocal(1 + torch.exp(-50 * (chance - threshold)))
        return chance, threshold, F.max_pool2d(steep, 3, 1, 1) - steep


@CASES.module(lambda n: (randn(n, 1, 16, 32),), 2, 3)
class RectifiedReader(nn.Module):
    """Thin-plate splines from learned control points, columns as a sequence, attention within a window, then CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 16)
        )
        row = torch.linspace(-1, 1, 4)
        points = torch.cat([torch.stack([row, torch.full((4,), v)], 1) for v in (-1.0, 1.0)])
        away = torch.cdist(points, points) + torch.eye(8)
        kernel, ones = away.square() * away.log() * 2, torch.ones(8, 1)
        known = torch.cat(
            [torch.cat([ones, points, kernel], 1), torch.cat([torch.zeros(3, 3), torch.cat([points.T, ones.T])], 1)]
        )
        self.register_buffer("inverse", torch.linalg.inv(known))
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 24), indexing="ij")
        places = torch.stack([xs, ys], -1).view(-1, 2)
        far = torch.cdist(places, points)
        self.register_buffer(
            "basis", torch.cat([torch.ones(192, 1), places, far.square() * torch.log(far + 1e-6) * 2], 1)
        )
        self.register_buffer("base", points)
        self.conv, self.qkv, self.head = nn.Conv2d(1, 8, (8, 3), (1, 2), (0, 1)), nn.Linear(8, 24), nn.Linear(8, 6)
        near = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= 3
        self.register_buffer("window", torch.zeros(12, 12).masked_fill(~near, -torch.inf))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        control = self.base + 0.1 * torch.tanh(self.locate(x)).unflatten(1, (8, 2))
        control = torch.cat([control, control.new_zeros(x.shape[0], 3, 2)], 1)
        places = (self.basis @ (self.inverse @ control)).view(-1, 8, 24, 2)
        flat = F.grid_sample(x, places, padding_mode="border", align_corners=True)
        y = F.relu(self.conv(flat)).squeeze(2).transpose(1, 2)
        q, k, v = self.qkv(y).chunk(3, -1)
        y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=self.window)
        scores = self.head(y).log_softmax(-1)
        best = scores.argmax(-1)
        kept = (best != 0) & (best != F.pad(best, (1, 0))[:, :-1])
        return scores, torch.where(kept, best, -1)


# --- others ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(2, n, n, 6), randn(2, n, 8), rand(2, n) < 0.9), 5, 7)
class TrianglesOfPairs(nn.Module):
    """AlphaFold: outgoing edges multiplied, rows attended with a bias by the third edge, pairs by an outer product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.single, self.after = nn.LayerNorm(6), nn.LayerNorm(8), nn.LayerNorm(4)
        self.left, self.right, self.left_gate, self.right_gate = (nn.Linear(6, 4) for _ in range(4))
        self.gate, self.out = nn.Linear(6, 6), nn.Linear(4, 6)
        self.qkv, self.bias, self.mix = nn.Linear(6, 12, bias=False), nn.Linear(6, 2, bias=False), nn.Linear(4, 6)
        self.outer = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(9, 6)])

    def forward(self, pair: Tensor, single: Tensor, mask: Tensor) -> Tensor:
        both = (mask[:, :, None] & mask[:, None]).to(pair.dtype)
        z = self.norm(pair)
        left, right = (
            both[..., None] * g(z).sigmoid() * f(z)
            for f, g in ((self.left, self.left_gate), (self.right, self.right_gate))
        )
        made = torch.einsum("bikc,bjkc->bijc", left, right)
        pair = pair + self.gate(z).sigmoid() * self.out(self.after(made))
        z = self.norm(pair)
        q, k, v = self.qkv(z).unflatten(-1, (3, 2, 2)).permute(3, 0, 1, 4, 2, 5)
        scores = q @ k.mT / 2**0.5 + self.bias(z).permute(0, 3, 1, 2)[:, None] + (1e9 * (both - 1))[:, :, None, None]
        pair = pair + self.mix((scores.softmax(-1) @ v).transpose(2, 3).flatten(3))
        s = self.single(single) * mask[..., None]
        outer = torch.einsum("bic,bjd->bijcd", self.outer[0](s), self.outer[1](s)).flatten(3)
        return pair + self.outer[2](outer) / (1e-3 + both[..., None])


@CASES.module(lambda n: (randn(2, n, 8),), 5, 8)
class ScalarMemories(nn.Module):
    """xLSTM: scalar cells with exponential gates held in range by a running maximum, heads apart, groups normed."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.again = nn.Linear(8, 32), nn.Parameter(randn(2, 4, 16) / 4)
        self.conv, self.norm = nn.Conv1d(8, 8, 4, groups=8), nn.GroupNorm(2, 8)
        self.up, self.down = nn.Linear(8, 2 * 10), nn.Linear(10, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.silu(self.conv(F.pad(x.mT, (3, 0))).mT)
        h = c = n = x.new_zeros(x.shape[0], 2, 4)
        m = torch.full_like(h, -torch.inf)
        seen = []
        for t in range(x.shape[1]):
            gates = self.inside(y[:, t]).view(-1, 2, 16) + torch.einsum("bhi,hio->bho", h, self.again)
            i, f, z, o = gates.chunk(4, -1)
            f = F.logsigmoid(f)
            top = torch.maximum(f + m, i)
            forget, enter = torch.exp(f + m - top), torch.exp(i - top)
            c, n, m = forget * c + enter * z.tanh(), forget * n + enter, top
            h = o.sigmoid() * c / n.clamp_min(1e-6)
            seen.append(h.flatten(1))
        y = self.norm(torch.stack(seen, 1).flatten(0, 1)).view_as(x) + x
        gate, value = self.up(y).chunk(2, -1)
        return y + self.down(F.gelu(gate) * value), m


@CASES.function(lambda n: (randn(1, n, 4, 6), randn(1, n, 4, 6), randn(1, n, 4, 6), randn(4, 6, 6) / 3), 3, 5)
def learning_while_reading(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Test-time training: a layer whose weight takes a gradient step for every chunk, by closed form."""
    weight, results = w[None], []
    for t in range(q.shape[1]):
        keys, wanted, asked = k[:, t, :, None], v[:, t, :, None], q[:, t, :, None]
        found = keys @ weight
        mean = found.mean(-1, keepdim=True)
        deviation = (found.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()
        normed = (found - mean) / deviation
        off = normed - (wanted - keys)
        grad = (6 * off - off.sum(-1, keepdim=True) - normed * (off * normed).sum(-1, keepdim=True)) / (6 * deviation)
        attention = torch.tril(asked @ keys.mT)
        results.append(asked @ weight - 0.1 * attention @ grad)
        weight = weight - 0.1 * keys.mT @ grad
    return torch.stack(results, 1).squeeze(3), weight
