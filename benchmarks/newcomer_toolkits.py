"""Newcomer cases as toolkits of graphs, speech, control, recommendation, tables and simulation write their parts.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (randn(n, 6), randint(0, n, (2, 4 * n)), (torch.arange(n) * 3 // n)), 12, 19)
class SetReadout(nn.Module):
    """Set2Set: a recurrent query attends to the nodes of each graph, whose softmax is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.mix = nn.LSTMCell(12, 6), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.epsilon = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        summed = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        x = self.mix((1 + self.epsilon) * x + summed)
        h, c, q = x.new_zeros(3, 6), x.new_zeros(3, 6), x.new_zeros(3, 12)
        for _ in range(3):
            h, c = self.cell(q, (h, c))
            score = (x * h[graph]).sum(-1)
            top = torch.full((3,), -torch.inf).scatter_reduce_(0, graph, score, "amax", include_self=True)
            weight = torch.exp(score - top[graph])
            total = torch.zeros(3).scatter_add_(0, graph, weight)
            read = torch.zeros(3, 6).index_add_(0, graph, x * (weight / total[graph])[:, None])
            q = torch.cat([h, read], -1)
        return q


@CASES.function(lambda n: (randn(n, 5), randint(0, n, (2, 3 * n))), 11, 16)
def personalised_ranks(x: Tensor, edges: Tensor) -> Tensor:
    """APPNP: predictions spread by normalised steps that return to where they began."""
    n = x.shape[0]
    loops = torch.arange(n).expand(2, -1)
    source, target = torch.cat([edges, loops], 1)
    degree = torch.zeros(n).scatter_add_(0, target, torch.ones(target.shape[0]))
    scale = degree.pow(-0.5)
    scale = scale.masked_fill(torch.isinf(scale), 0.0)
    weight = scale[source] * scale[target]
    h = x
    for _ in range(5):
        h = 0.9 * torch.zeros_like(h).index_add(0, target, h[source] * weight[:, None]) + 0.1 * x
    return h.log_softmax(-1)


@CASES.module(lambda n: (randn(n, 3) * 2, randint(0, n, (2, 3 * n)), randint(0, 3 * n, (2, 5 * n))), 9, 13)
class DirectionalMessages(nn.Module):
    """DimeNet: messages on edges, changed by distances in Bessel functions and by angles between edges."""

    def __init__(self) -> None:
        super().__init__()
        self.radial, self.angular, self.up = nn.Linear(6, 8, bias=False), nn.Linear(4, 8), nn.Linear(8, 8)
        self.frequencies = nn.Parameter(math.pi * torch.arange(1, 7).float())

    def forward(self, at: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
        arrow = at[edges[1]] - at[edges[0]]
        length = (arrow.pow(2).sum(-1) + 1e-2).sqrt()
        d = length / 10
        p = 6.0
        a, b, c = -(p + 1) * (p + 2) / 2, p * (p + 2), -p * (p + 1) / 2
        envelope = (1 / d + a * d**5 + b * d**6 + c * d**7) * (d < 1).to(d.dtype)
        m = self.radial(envelope[:, None] * (self.frequencies * d[:, None]).sin())
        one, two = arrow[pairs[0]], arrow[pairs[1]]
        angle = torch.atan2(torch.cross(one, two, dim=-1).pow(2).sum(-1).add(1e-6).sqrt(), (one * two).sum(-1))
        wave = torch.cos(angle[:, None] * torch.arange(4))
        m = m + torch.zeros_like(m).index_add(0, pairs[1], self.angular(wave) * F.silu(self.up(m))[pairs[0]])
        return torch.zeros(at.shape[0], 8).index_add(0, edges[1], m)


@CASES.function(lambda n: (randn(2, 6, n).log_softmax(1), torch.tensor([6, 5]), torch.tensor([n, n - 2])), 10, 14)
def monotonic_path(score: Tensor, n_text: Tensor, n_frames: Tensor) -> Tensor:
    """Glow-TTS: the best path that never goes back, by columns of a table and a walk from its end."""
    _, rows, columns = score.shape
    i = torch.arange(rows)
    inside = (i[None, :, None] < n_text[:, None, None]) & (torch.arange(columns)[None, None] < n_frames[:, None, None])
    score = score.masked_fill(~inside, -1e4)
    best = [torch.where(i[None] == 0, score[:, :, 0], torch.tensor(-1e4))]
    for k in range(1, columns):
        stay, come = best[-1], F.pad(best[-1][:, :-1], (1, 0), value=-1e4)
        best.append(torch.maximum(stay, come) + score[:, :, k])
    at, path = n_text - 1, []
    for k in range(columns - 1, -1, -1):
        runs = k < n_frames
        path.append(F.one_hot(at, rows) * runs[:, None])
        if k > 0:
            here = best[k - 1].gather(1, at[:, None])[:, 0]
            before = best[k - 1].gather(1, (at - 1).clamp(min=0)[:, None])[:, 0]
            at = torch.where(runs & (at > 0) & ((at == k) | (before >= here)), at - 1, at)
    return torch.stack(path[::-1], -1)


@CASES.module(lambda n: (randn(2, n, 8), randint(0, 20, (2, 5))), 12, 18)
class TextToFrames(nn.Module):
    """RAD-TTS: an alignment by distances between encoded text and frames, with a prior of binomial terms."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Embedding(20, 8)
        self.key = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 4, 1))
        self.query = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 4, 1))

    def forward(self, frames: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.query(frames.transpose(1, 2)), self.key(self.text(ids).transpose(1, 2))
        score = -0.5 * ((q[:, :, :, None] - k[:, :, None]) ** 2).sum(1)
        t, s = frames.shape[1], ids.shape[1]
        a = torch.arange(1, t + 1, dtype=torch.float32)[:, None]
        j = torch.arange(s, dtype=torch.float32)[None]
        chosen = torch.lgamma(torch.tensor(float(s))) - torch.lgamma(j + 1) - torch.lgamma(s - j)
        prior = chosen + torch.lgamma(j + a) + torch.lgamma(s - j + t - a) - torch.lgamma(torch.tensor(float(s + t)))
        score = score.log_softmax(-1) + prior[None]
        attention = score.softmax(-1)
        return attention, torch.bmm(attention, k.transpose(1, 2))


@CASES.function(lambda n: (randn(3, n, 7),), 11, 16)
def greedy_transcripts(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CTC's most likely path without repeats and blanks, moved to the left, with lengths and confidence."""
    probability, path = logits.softmax(-1).max(-1)
    is_new = torch.cat([torch.ones_like(path[:, :1], dtype=torch.bool), path[:, 1:] != path[:, :-1]], 1)
    kept = is_new & (path != 0)
    order = torch.argsort((~kept).to(torch.int8), dim=1, stable=True)
    length = kept.sum(1)
    moved = path.gather(1, order).masked_fill(torch.arange(path.shape[1])[None] >= length[:, None], -1)
    return moved, length, torch.where(kept, probability, 1.0).log().sum(1)


@CASES.module(lambda n: (randn(2, n, 4), randint(0, 3, (2, n)), randn(2, n, 1), torch.arange(n).expand(2, n)), 6, 9)
class ReturnConditioned(nn.Module):
    """A decision transformer: returns, states and actions take turns in one causal sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.action, self.goal = nn.Linear(4, 16), nn.Embedding(3, 16), nn.Linear(1, 16)
        self.time, self.norm, self.head = nn.Embedding(30, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")

    def forward(self, states: Tensor, actions: Tensor, returns: Tensor, steps: Tensor) -> Tensor:
        b, n, _ = states.shape
        at = self.time(steps)
        x = torch.stack([self.goal(returns) + at, self.state(states) + at, self.action(actions) + at], 1)
        x = self.norm(x.permute(0, 2, 1, 3).reshape(b, 3 * n, 16))
        mask = torch.triu(torch.full((3 * n, 3 * n), float("-inf")), diagonal=1)
        x = self.block(x, src_mask=mask).reshape(b, n, 3, 16).permute(0, 2, 1, 3)
        return self.head(x[:, 1])


@CASES.module(lambda n: (randn(n, 4, 5), randn(n, 9), randint(0, 3, (n, 4, 1))), 7, 12)
class MonotonicMixer(nn.Module):
    """QMIX: values of agents mixed by weights that the state gives, none of them negative."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
        self.first, self.first_bias = nn.Linear(9, 4 * 8), nn.Linear(9, 8)
        self.second, self.second_bias = nn.Linear(9, 8), nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, seen: Tensor, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        q = self.value(seen)
        chosen = q.gather(2, actions).squeeze(2).unsqueeze(1)
        h = F.elu(torch.bmm(chosen, self.first(state).abs().view(-1, 4, 8)) + self.first_bias(state).view(-1, 1, 8))
        total = torch.bmm(h, self.second(state).abs().view(-1, 8, 1)) + self.second_bias(state).view(-1, 1, 1)
        return total.view(-1), q.argmax(-1)


@CASES.module(lambda n: (randn(n, 3, 4), randn(n, 3, 8)), 5, 8)
class StochasticStates(nn.Module):
    """Dreamer: a recurrent state with categories whose samples are one-hot ahead and probabilities behind."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.enter = nn.GRUCell(12, 12), nn.Sequential(nn.Linear(16 + 4, 12), nn.SiLU())
        self.prior, self.posterior = nn.Linear(12, 16), nn.Linear(20, 16)

    def forward(self, actions: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        h, z, states, divergences = seen.new_zeros(3, 12), seen.new_zeros(3, 16), [], []
        for action, observed in zip(actions, seen, strict=True):
            h = self.cell(self.enter(torch.cat([z, action], -1)), h)
            prior = self._mixed(self.prior(h))
            probability = self._mixed(self.posterior(torch.cat([h, observed], -1)))
            hard = F.one_hot(probability.argmax(-1), 4).to(h.dtype)
            z = (hard + probability - probability.detach()).flatten(1)
            divergences.append((probability * (probability.log() - prior.log())).sum((1, 2)).clamp(min=1.0))
            states.append(torch.cat([h, z], -1))
        return torch.stack(states), torch.stack(divergences)

    @staticmethod
    def _mixed(logits: Tensor) -> Tensor:
        return 0.99 * logits.unflatten(-1, (4, 4)).softmax(-1) + 0.01 / 4


@CASES.module(lambda n: (randint(0, 12, (n, 5)),), 9, 14)
class CompressedInteractions(nn.Module):
    """xDeepFM: products of fields layer by layer, each compressed, beside a deep network and first orders."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first = nn.Embedding(60, 8), nn.EmbeddingBag(60, 1, mode="sum")
        self.layers = nn.ModuleList([nn.Conv1d(25, 6, 1), nn.Conv1d(15, 6, 1)])
        self.deep = nn.Sequential(nn.Linear(40, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.out = nn.Linear(9, 1)
        self.register_buffer("offsets", torch.arange(5) * 12)

    def forward(self, fields: Tensor) -> Tensor:
        ids = fields + self.offsets
        x = self.table(ids)
        h, kept = x, []
        for k, layer in enumerate(self.layers):
            product = torch.einsum("bhd,bmd->bhmd", x, h).flatten(1, 2)
            y = F.relu(layer(product))
            (h, direct) = y.split(3, 1) if k == 0 else (y, y)
            kept.append(direct.sum(-1))
        return torch.sigmoid(self.first(ids) + self.out(torch.cat(kept, 1)) + self.deep(x.flatten(1))).squeeze(1)


@CASES.module(lambda n: (randn(n, 10),), 11, 15)
class ObliviousTrees(nn.Module):
    """NODE: soft oblivious trees whose features sparsemax chooses and whose decisions are two-class entmax."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.threshold = nn.Parameter(randn(10, 4, 3)), nn.Parameter(randn(4, 3))
        self.scale, self.leaves = nn.Parameter(torch.zeros(4, 3)), nn.Parameter(randn(4, 2, 8))
        codes = torch.arange(8)[None] // 2 ** torch.arange(3)[:, None] % 2
        self.register_buffer("codes", torch.stack([codes, 1 - codes], -1).float())

    def forward(self, x: Tensor) -> Tensor:
        z = self.choice.sort(0, descending=True)[0]
        k = torch.arange(1, 11).view(-1, 1, 1)
        support = (1 + k * z > z.cumsum(0)).sum(0, keepdim=True)
        tau = (z.cumsum(0).gather(0, support - 1) - 1) / support
        weights = (self.choice - tau).clamp(min=0)
        value = (torch.einsum("bi,itd->btd", x, weights) - self.threshold) * torch.exp(-self.scale)
        side = (torch.stack([-value, value], -1) * 0.5 + 0.5).clamp(0, 1)
        response = torch.einsum("btds,dcs->btdc", side, self.codes).prod(-2)
        return torch.einsum("btc,tkc->bk", response, self.leaves)


@CASES.function(lambda n: (rand(n, 3) * 8, rand(n) + 0.5), 20, 29)
def particle_mesh(at: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Gravity on a periodic mesh: clouds in cells, Poisson's equation by Fourier transforms, forces read back."""
    low = at.floor()
    part = at - low
    density, corners = torch.zeros(512), []
    for k in range(8):
        corner = torch.tensor([k & 1, k >> 1 & 1, k >> 2])
        place = (low.long() + corner) % 8
        weight = torch.where(corner.bool(), part, 1 - part).prod(1)
        flat = place @ torch.tensor([64, 8, 1])
        density = density.index_add(0, flat, mass * weight)
        corners.append((flat, weight))
    w = torch.fft.fftfreq(8) * 2 * math.pi
    k2 = w[:, None, None] ** 2 + w[None, :, None] ** 2 + w[None, None, : 8 // 2 + 1].abs() ** 2
    kernel = torch.where(k2 > 0, -1 / k2.clamp(min=1e-6), 0.0)
    potential = torch.fft.irfftn(torch.fft.rfftn(density.view(8, 8, 8)) * kernel, s=(8, 8, 8))
    slopes = [(potential.roll(1, d) - potential.roll(-1, d)).flatten() / 2 for d in range(3)]
    force = torch.stack([sum(s[flat] * weight for flat, weight in corners) for s in slopes], -1)
    return force * mass[:, None], density.sum()


@CASES.function(lambda n: (rand(2, 1, n, n),), 12, 17)
def anisotropic_diffusion(x: Tensor) -> tuple[Tensor, Tensor]:
    """Perona and Malik's smoothing, structure tensors and corners of what is left."""
    for _ in range(4):
        steps = [F.pad(x, pad, mode="replicate")[..., r, c] - x for pad, r, c in (
            ((0, 0, 1, 0), slice(None, -1), slice(None)), ((0, 0, 0, 1), slice(1, None), slice(None)),
            ((1, 0, 0, 0), slice(None), slice(None, -1)), ((0, 1, 0, 0), slice(None), slice(1, None)),
        )]  # fmt: skip
        x = x + 0.2 * sum(torch.exp(-((d / 0.1) ** 2)) * d for d in steps)
    dy, dx = torch.gradient(x, dim=(2, 3))
    yy, xx, xy = (F.avg_pool2d(t, 3, 1, 1, count_include_pad=False) for t in (dy * dy, dx * dx, dx * dy))
    corners = yy * xx - xy**2 - 0.05 * (yy + xx) ** 2
    return x, torch.where(corners == F.max_pool2d(corners, 5, 1, 2), corners, 0.0)


@CASES.function(lambda n: (randn(2, n, n), randn(2, n)), 8, 12)
def conjugate_gradients(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobi's preconditioner and steps that stop for each system by itself."""
    a = a @ a.mT / a.shape[-1] + torch.eye(a.shape[-1])
    inverse = 1 / a.diagonal(dim1=-2, dim2=-1)
    x, r = torch.zeros_like(b), b
    z = inverse * r
    p, rz = z, (r * z).sum(-1, keepdim=True)
    for _ in range(6):
        ap = torch.einsum("bij,bj->bi", a, p)
        is_open = rz > 1e-10
        alpha = torch.where(is_open, rz / (p * ap).sum(-1, keepdim=True).clamp(min=1e-12), 0.0)
        x, r = x + alpha * p, r - alpha * ap
        z = inverse * r
        new = (r * z).sum(-1, keepdim=True)
        p, rz = z + torch.where(is_open, new / rz.clamp(min=1e-12), 0.0) * p, new
    return x, (torch.einsum("bij,bj->bi", a, x) - b).norm(dim=-1)


@CASES.function(lambda n: (randn(n, n).sign(), rand(4, n, n)), 8, 12)
def checkerboard_spins(spins: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Metropolis on the squares of one colour after the other, with given numbers; energy and magnetisation."""
    n = spins.shape[0]
    colour = (torch.arange(n)[:, None] + torch.arange(n)[None]) % 2
    for k in range(4):
        around = sum(spins.roll(s, d) for s in (1, -1) for d in (0, 1))
        change = 2 * spins * around
        flips = (colour == k % 2) & (u[k] < torch.exp(-0.4 * change))
        spins = torch.where(flips, -spins, spins)
    return spins, torch.stack([-(spins * (spins.roll(1, 0) + spins.roll(1, 1))).mean(), spins.mean().abs()])
