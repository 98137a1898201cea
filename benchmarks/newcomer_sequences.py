"""Newcomer cases of sequences: language models of late, their decoding, speech, tables, agents, time series.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def sequence(n: int) -> tuple[Tensor]:
    """Two sequences of 16 channels."""
    return (randn(2, n, 16),)


@CASES.module(sequence, 5, 8)
class TimeMix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay, self.first, self.mix = nn.Parameter(rand(16)), nn.Parameter(rand(16)), nn.Parameter(rand(3, 16))
        self.r, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))

    def forward(self, x: Tensor) -> Tensor:
        before = self.shift(x)
        r, k, v = (f(x * m + before * (1 - m)) for f, m in zip((self.r, self.k, self.v), self.mix, strict=True))
        top, bottom, peak = torch.zeros(2, 16), torch.zeros(2, 16), torch.full((2, 16), -1e38)
        out = []
        for t in range(5):
            q = torch.maximum(peak, self.first + k[:, t])
            a, b = (peak - q).exp(), (self.first + k[:, t] - q).exp()
            out.append((a * top + b * v[:, t]) / (a * bottom + b))
            q = torch.maximum(peak - self.decay, k[:, t])
            a, b = (peak - self.decay - q).exp(), (k[:, t] - q).exp()
            top, bottom, peak = a * top + b * v[:, t], a * bottom + b, q
        return r[:, :5].sigmoid() * torch.stack(out, 1)


@CASES.module(sequence, 6, 9)
class SoftCappedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)
        self.scale = nn.Parameter(torch.zeros(16))

    def _norm(self, x: Tensor) -> Tensor:
        x = x.float()
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.scale)).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = self._norm(x)
        q = self.q(y).view(b, n, 4, 4).transpose(1, 2)
        k, v = (z.view(b, n, 2, 4).transpose(1, 2).repeat_interleave(2, 1) for z in self.kv(y).chunk(2, -1))
        scores = torch.tanh(q @ k.mT * 0.5 / 5.0) * 5.0
        i = torch.arange(n)
        seen = (i[:, None] >= i) & (i[:, None] - i < 4)
        y = (scores + torch.where(seen, 0.0, torch.finfo(x.dtype).min)).softmax(-1, dtype=torch.float32) @ v
        x = x + self._norm(y.transpose(1, 2).reshape(b, n, 16))
        y = self._norm(x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


@CASES.module(sequence, 5, 8)
class LatentAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.down, self.up = nn.Linear(16, 24), nn.Linear(16, 6 + 4), nn.Linear(6, 16)
        self.norm, self.out = nn.RMSNorm(6), nn.Linear(8, 16)

    def _turn(self, x: Tensor) -> Tensor:
        n = x.shape[-2]
        angle = torch.outer(torch.arange(n).float(), 1.0 / 100 ** (torch.arange(0, 4, 2) / 4))
        turns = torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turns).flatten(-2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, n, _ = x.shape
        plain, turned = self.q(x).view(b, n, 2, 12).transpose(1, 2).split([8, 4], -1)
        latent, position = self.down(x).split([6, 4], -1)
        k, v = self.up(self.norm(latent)).view(b, n, 2, 8).transpose(1, 2).split([4, 4], -1)
        key = torch.cat([k, self._turn(position[:, None]).expand(-1, 2, -1, -1)], -1)
        query = torch.cat([plain[..., :4] + plain[..., 4:], self._turn(turned)], -1)
        y = F.scaled_dot_product_attention(query, key, v, is_causal=True, scale=8**-0.5)
        return self.out(y.transpose(1, 2).flatten(2)), latent


@CASES.module(lambda n: (randn(n, 8),), 8, 12)
class SwitchCapacity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.up, self.down = nn.Parameter(randn(3, 8, 12) / 3), nn.Parameter(randn(3, 12, 8) / 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probability = self.gate(x).softmax(-1)
        weight, expert = probability.max(-1)
        one_hot = F.one_hot(expert, 3)
        place = (one_hot.cumsum(0) - 1) * one_hot
        kept = (place < 4) & one_hot.bool()
        dispatch = F.one_hot(place.clamp(max=3), 4).float() * kept[..., None]
        groups = torch.einsum("tec,td->ecd", dispatch, x)
        groups = F.relu(groups @ self.up) @ self.down
        balance = 3 * (probability.mean(0) * one_hot.float().mean(0)).sum()
        return torch.einsum("tec,ecd->td", dispatch, groups) * weight[:, None], balance


@CASES.module(sequence, 6, 9)
class ExpertsWithBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 3), nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.shared = nn.Linear(16, 16)

    def _one(self, k: int, x: Tensor, chosen: Tensor, weight: Tensor, out: Tensor) -> None:
        token, slot = torch.where(chosen == k)
        if token.numel() == 0:
            return
        out.index_add_(0, token, self.experts[k](x[token]) * weight[token, slot, None])

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, 16)
        weight, chosen = self.gate(x).sigmoid().topk(2, dim=-1, sorted=False)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for k in range(3):
            self._one(k, x, chosen, weight, out)
        return (out + self.shared(x)).view(shape)


@CASES.module(sequence, 5, 7)
class DisentangledAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.places = nn.Embedding(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        key, query = (f(self.places.weight).view(8, 2, 8).transpose(0, 1) for f in (self.k, self.q))
        i = torch.arange(n)
        apart = (i[:, None] - i[None]).clamp(-4, 3) + 4
        to_place = (q @ key.mT).gather(-1, apart.expand(b, 2, n, n))
        from_place = (k @ query.mT).gather(-1, (7 - apart).expand(b, 2, n, n)).mT
        return ((q @ k.mT + to_place + from_place) / math.sqrt(24)).softmax(-1) @ v


@CASES.module(lambda n: (randn(1, 1, 8), torch.tensor([n])), 3)
class StaticCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 2, 10, 4))
        self.register_buffer("values", torch.zeros(1, 2, 10, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(1, 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values[:, :, position] = v
        seen = torch.arange(10)[None] <= position[:, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen).transpose(1, 2).flatten(2)


@CASES.function(lambda n: (rand(n, 6).softmax(-1), rand(n, 6).softmax(-1), randint(0, 6, (n,)), rand(n)), 5, 8)
def speculative_acceptance(draft: Tensor, target: Tensor, token: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
    ratio = target.gather(1, token[:, None]) / draft.gather(1, token[:, None])
    accepted = draw < ratio.squeeze(1).clamp(max=1)
    n = accepted.long().cumprod(0).sum()
    left = (target - draft).clamp(min=0)
    return n, left / left.sum(-1, keepdim=True).clamp(min=1e-9)


@CASES.function(lambda n: (randn(n, 4), rand(n) > 0.6), 9, 13)
def pooled_patches(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    starts = starts.clone()
    starts[0] = True
    patch = starts.cumsum(0) - 1
    n = int(patch.max()) + 1
    total = torch.zeros(n, 4).index_add(0, patch, x)
    return total / torch.bincount(patch, minlength=n)[:, None], patch


@CASES.module(sequence, 5, 8)
class DecomposedAdapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(16, 12), nn.Linear(16, 2, bias=False), nn.Linear(2, 12, bias=False)
        self.size = nn.Parameter(rand(12) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        change = self.b.weight @ self.a.weight * 2
        norm = (self.base.weight + change).norm(dim=1).detach()
        scale = (self.size / norm).view(1, -1)
        return self.base(x) * scale + self.b(self.a(x)) * scale * 2


@CASES.module(lambda n: (randn(1, 4 * n, 8), rand(1, 4 * n, 2)), 2, 3)
class ChunkedStateSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b, self.c = nn.Linear(8, 4), nn.Linear(8, 4)

    @staticmethod
    def _sums(x: Tensor) -> Tensor:
        n = x.size(-1)
        x = x[..., None].expand(*x.shape, n)
        x = x.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(-1), 0).cumsum(-2)
        return x.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)

    def forward(self, x: Tensor, decay: Tensor) -> Tensor:
        b, n, _ = x.shape
        values = x.view(b, n // 4, 4, 2, 4)
        left, right = (f(x).view(b, n // 4, 4, 4) for f in (self.b, self.c))
        a = -decay.view(b, n // 4, 4, 2).permute(0, 3, 1, 2)
        total = a.cumsum(-1)
        diagonal = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", right, left, self._sums(a).exp(), values)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", left, (total[..., -1:] - total).exp(), values)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        between = self._sums(F.pad(total[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        off = torch.einsum("bcln,bchpn,bhcl->bclhp", right, states, total.exp())
        return (diagonal + off).reshape(b, n, -1)


@CASES.function(lambda n: (randn(n, 5), randn(5, 5), randn(5)), 6, 9)
def likeliest_path(emission: Tensor, transition: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    score, back = start + emission[0], []
    for t in range(1, 6):
        score, places = (score[:, None] + transition).max(0)
        score = score + emission[t]
        back.append(places)
    best, last = score.max(0)
    path = [last]
    for places in reversed(back):
        path.append(places[path[-1]])
    return best, torch.stack(path[::-1])


@CASES.module(lambda n: (randint(0, 20, (2, n)),), 6, 9)
class TwoDirectionLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.weights, self.out = nn.Parameter(randn(2)), nn.Linear(12, 20)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(tokens)
        y, (h, _) = self.rnn(x)
        w = self.weights.softmax(0)
        mask = (tokens != 0).unsqueeze(-1)
        pooled = (y * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.out(w[0] * y + w[1] * F.pad(x, (0, 4))), torch.cat([pooled, h[-2], h[-1]], -1)


@CASES.module(lambda n: (randn(3, n, 8), randn(3, 5, 8), rand(3, 5) > 0.2), 4, 6)
class LateInteraction(nn.Module):
    def forward(self, query: Tensor, document: Tensor, mask: Tensor) -> Tensor:
        q, d = F.normalize(query, dim=-1), F.normalize(document, dim=-1) * mask.unsqueeze(-1)
        scores = torch.einsum("qid,pjd->qpij", q, d).masked_fill(~mask[None, :, None], -9999.0)
        best = scores.max(-1).values.sum(-1)
        return F.cross_entropy(best, torch.arange(3)) + best.diagonal().mean()


@CASES.module(sequence, 8, 10)
class MixtureOfDepths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.block = nn.Linear(16, 1), nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.router(x).squeeze(-1)
        score, place = weight.topk(x.shape[1] // 2, 1)
        place, order = place.sort(1)
        index = place.unsqueeze(-1).expand(-1, -1, 16)
        y = self.block(x.gather(1, index)) * score.gather(1, order).sigmoid().unsqueeze(-1)
        return x.scatter_add(1, index, y)


@CASES.module(sequence, 9, 12)
class ConformerConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(16), nn.Conv1d(16, 32, 1)
        self.depthwise, self.batch = nn.Conv1d(16, 16, 5, groups=16), nn.BatchNorm1d(16)
        self.out = nn.Conv1d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.tensor([9, 6])
        padding = torch.arange(x.shape[1])[None] >= lengths[:, None]
        y = F.glu(self.wide(self.norm(x).transpose(1, 2)), dim=1).masked_fill(padding[:, None], 0.0)
        y = self.batch(self.depthwise(F.pad(y, (4, 0))))
        return x + self.out(y * y.sigmoid()).transpose(1, 2) * ~padding[..., None]


@CASES.module(sequence, 6, 8)
class LocationAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.query = nn.LSTMCell(16, 12), nn.Linear(12, 8, bias=False)
        self.memory, self.score = nn.Linear(16, 8, bias=False), nn.Linear(8, 1)
        self.where, self.place = nn.Conv1d(2, 4, 3, padding=1), nn.Linear(4, 8)

    def forward(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        b, n, _ = memory.shape
        h, c, context = torch.zeros(b, 12), torch.zeros(b, 12), torch.zeros(b, 16)
        now, total, keys, seen = torch.zeros(b, n), torch.zeros(b, n), self.memory(memory), []
        for _ in range(3):
            h, c = self.cell(context, (h, c))
            place = self.place(self.where(torch.stack([now, total], 1)).transpose(1, 2))
            now = self.score(torch.tanh(self.query(h)[:, None] + keys + place)).squeeze(-1).softmax(-1)
            total = total + now
            context = torch.bmm(now.unsqueeze(1), memory).squeeze(1)
            seen.append(now)
        return context, torch.stack(seen, 1)


@CASES.function(lambda n: (randn(2, n), torch.tensor([0.2, 0.3, 0.1]), torch.tensor([1.0, -0.4, 0.1])), 12, 12)
def recursive_filter(x: Tensor, b: Tensor, a: Tensor) -> Tensor:
    padded, out = F.pad(x, (2, 0)), [torch.zeros(2), torch.zeros(2)]
    for t in range(12):
        forward = padded[:, t] * b[2] + padded[:, t + 1] * b[1] + padded[:, t + 2] * b[0]
        out.append((forward - a[1] * out[-1] - a[2] * out[-2]).clamp(-1, 1))
    return torch.stack(out[2:], -1)


@CASES.module(lambda n: (randn(1, 8, n),), 6, 9)
class InverseFourierHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Conv1d(8, 18, 1)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        size, phase = self.out(x).chunk(2, 1)
        spectrum = size.exp().clip(max=1e2) * (torch.cos(phase) + 1j * torch.sin(phase))
        return torch.istft(spectrum, 16, 4, 16, self.window, center=True)


@CASES.module(lambda n: (randn(n, 24),), 4, 6)
class BasisExpansion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3))
        t = torch.arange(24) / 24
        self.register_buffer("back", torch.stack([t**k for k in range(4)]))
        self.register_buffer("ahead", torch.stack([torch.cos(2 * math.pi * k * t[:6]) for k in range(4)]))

    def forward(self, x: Tensor) -> Tensor:
        left, forecast = x, x[:, -1:]
        for stack in self.stacks:
            theta = stack(left)
            left = left - theta[:, :4] @ self.back
            forecast = forecast + theta[:, 4:] @ self.ahead
        return forecast


@CASES.module(lambda n: (randn(2, n, 6), randn(2, 4)), 6, 8)
class GatedVariables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(1, 8) for _ in range(6))
        self.weights, self.context, self.rnn = (
            nn.Linear(6, 6),
            nn.Linear(4, 6, bias=False),
            nn.GRU(8, 8, batch_first=True),
        )
        self.gate, self.norm = nn.Linear(8, 16), nn.LayerNorm(8)

    def forward(self, x: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
        weight = F.elu(self.weights(x) + self.context(static)[:, None]).softmax(-1)
        embedded = torch.stack([f(x[..., k : k + 1]) for k, f in enumerate(self.each)], -1)
        mixed = (embedded * weight.unsqueeze(-2)).sum(-1)
        y = self.rnn(mixed)[0]
        return torch.quantile(self.norm(mixed + F.glu(self.gate(y))), torch.tensor([0.1, 0.5, 0.9]), dim=1), weight


@CASES.module(lambda n: (randint(0, 7, (2, n)),), 12, 16)
class LightGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(randn(7, 4))

    def forward(self, edges: Tensor) -> Tensor:
        row, column = torch.cat([edges, edges.flip(0)], 1)
        degree = torch.zeros(7).scatter_add_(0, row, torch.ones(row.shape[0]))
        norm = degree.pow(-0.5).masked_fill_(degree == 0, 0)
        x, layers = self.table, [self.table]
        for _ in range(2):
            message = x[column] * (norm[row] * norm[column])[:, None]
            x = torch.zeros_like(x).index_add_(0, row, message)
            layers.append(x)
        mean = torch.stack(layers).mean(0)
        return (mean[edges[0]] * mean[edges[1]]).sum(-1)


@CASES.module(lambda n: (randn(n, 5), randint(0, 4, (n, 3))), 5, 8)
class TableTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.cls = nn.Parameter(randn(5, 8)), nn.Parameter(randn(8, 8)), nn.Parameter(randn(8))
        self.register_buffer("starts", torch.arange(3) * 4)
        self.embed, self.block = (
            nn.Embedding(12, 8),
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True),
        )
        self.head = nn.Linear(8, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        tokens = torch.cat([numbers[..., None] * self.scale, self.embed(kinds + self.starts)], 1) + self.shift
        tokens = torch.cat([self.cls.expand(len(tokens), 1, -1), tokens], 1)
        return self.head(self.block(tokens)[:, 0]).squeeze(-1)


@CASES.module(lambda n: (randn(n, 4), randint(0, 9, (n, 3))), 5, 7)
class DotInteraction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(9, 4, mode="sum") for _ in range(3))
        self.cross, self.top = nn.ModuleList(nn.Linear(10, 10) for _ in range(2)), nn.Linear(10, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        start = torch.arange(dense.shape[0])
        every = torch.stack([dense, *(bag(sparse[:, k], start) for k, bag in enumerate(self.bags))], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, offset=-1)
        x0 = x = torch.cat([dense, products[:, i, j]], 1)
        for layer in self.cross:
            x = x0 * layer(x) + x
        return torch.sigmoid(self.top(x))


@CASES.function(lambda n: (randn(n, 2), torch.eye(4) * 0.1), 6, 6)
def kalman_filter(seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    step = torch.eye(4) + torch.diag(torch.ones(2), 2)
    look = torch.eye(2, 4)
    x, p, out = torch.zeros(4), torch.eye(4), []
    for t in range(6):
        x, p = step @ x, step @ p @ step.T + noise
        s = look @ p @ look.T + torch.eye(2) * 0.5
        gain = torch.linalg.solve(s, look @ p).T
        x = x + gain @ (seen[t] - look @ x)
        p = (torch.eye(4) - gain @ look) @ p
        out.append(x)
    return torch.stack(out), p


@CASES.function(lambda n: (randn(n, 4), randint(0, 4, (n,)), randn(n), randn(n), randn(n)), 8, 11)
def clipped_policy_loss(logits: Tensor, action: Tensor, old: Tensor, gain: Tensor, value: Tensor) -> dict[str, Tensor]:
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(action) - old).exp()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    kl = ((ratio - 1) - ratio.log()).mean()
    return {"loss": loss + 0.5 * F.mse_loss(value, gain) - 0.01 * policy.entropy().mean(), "kl": kl}


@CASES.function(lambda n: (rand(n, 11).softmax(-1), randn(n), (rand(n) > 0.8).float()), 5, 8)
def projected_returns(probability: Tensor, reward: Tensor, done: Tensor) -> Tensor:
    support = torch.linspace(-5, 5, 11)
    target = (reward[:, None] + (1 - done[:, None]) * 0.9 * support).clamp(-5, 5)
    place = target + 5
    low, high = place.floor().long(), place.ceil().long()
    low[(high > 0) & (low == high)] -= 1
    high[(low < 10) & (low == high)] += 1
    offset = (torch.arange(probability.shape[0]) * 11)[:, None]
    out = torch.zeros(probability.numel())
    out.index_add_(0, (low + offset).view(-1), (probability * (high.float() - place)).view(-1))
    out.index_add_(0, (high + offset).view(-1), (probability * (place - low.float())).view(-1))
    return out.view_as(probability)


@CASES.function(lambda n: (randn(n),), 7, 10)
def value_support(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + 0.001 * x
    y = y.clamp(-3, 3)
    low = y.floor()
    logits = x.new_zeros(x.shape[0], 7)
    logits.scatter_(1, (low + 3).long()[:, None], (1 - (y - low))[:, None])
    above = (low + 4).clamp(max=6)
    logits.scatter_add_(1, above.long()[:, None], (y - low)[:, None])
    value = (logits * torch.arange(-3.0, 4.0)).sum(1)
    return logits, torch.sign(value) * ((((1 + 0.004 * (value.abs() + 1.001)).sqrt() - 1) / 0.002) ** 2 - 1)


@CASES.function(lambda n: (randn(n, 2), randn(6, 2)), 5, 5)
def soft_time_warping(a: Tensor, b: Tensor) -> Tensor:
    cost = torch.cdist(a, b) ** 2
    table = torch.full((6, 7), torch.inf)
    table[0, 0] = 0
    for i in range(1, 6):
        for j in range(1, 7):
            before = torch.stack([table[i - 1, j - 1], table[i - 1, j], table[i, j - 1]])
            table[i, j] = cost[i - 1, j - 1] - torch.logsumexp(-before, 0)
    return table[-1, -1]


@CASES.function(lambda n: (randn(n, 2), randn(3, 2)), 10, 14)
def lloyd_steps(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(3):
        nearest = torch.cdist(x, centres).argmin(1)
        for k in range(3):
            mine = x[nearest == k]
            centres[k] = mine.mean(0) if len(mine) else centres[k]
    return centres, nearest


@CASES.function(lambda n: (randint(0, 3, (n,)),), 9, 14)
def run_lengths(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, counts = torch.unique_consecutive(x, return_counts=True)
    longest = values[counts.argmax()] if values.numel() > 2 and counts.max() > 1 else x[0]
    return values, counts, longest


@CASES.function(lambda n: (randint(0, 4, (n,)), randint(0, 4, (n,))), 12, 15)
def confusion_scores(truth: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
    table = torch.bincount(truth * 4 + guess, minlength=16).reshape(4, 4)
    hit = table.diag().float()
    precision, recall = hit / table.sum(0).clamp(min=1), hit / table.sum(1).clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall + 1e-9)
    return table, torch.where((precision + recall) == 0, torch.zeros(()), f1).mean()


@CASES.function(lambda n: (randn(3, n), rand(n) > 0.3), 8, 11)
def gap_filling(x: Tensor, known: Tensor) -> Tensor:
    place = torch.where(known, torch.arange(x.shape[1]), torch.zeros((), dtype=torch.long))
    last = torch.cummax(place, 0).values
    filled = x[:, last]
    filled[:, ~known] *= 0.5
    mean = filled.cumsum(1)
    mean[:, 4:] = mean[:, 4:] - mean[:, :-4].clone()
    return mean / torch.arange(1, x.shape[1] + 1).clamp(max=4)


def tree(n: int) -> tuple[Any, ...]:
    """Visits, values and priors of moves."""
    return randint(0, 9, (n, 4)), randn(n, 4), rand(n, 4).softmax(-1)


@CASES.function(tree, 5, 8)
def chosen_moves(visits: Tensor, value: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    total = visits.sum(1, keepdim=True)
    q = torch.where(visits > 0, value / visits.clamp(min=1), torch.zeros_like(value))
    low, high = q.aminmax(dim=1, keepdim=True)
    q = (q - low) / (high - low).clamp(min=1e-6)
    rate = torch.log((total + 19652 + 1) / 19652) + 1.25
    score = q + rate * prior * total.sqrt() / (1 + visits)
    move = score.argmax(1)
    visits = visits.clone()
    visits[torch.arange(len(move)), move] += 1
    return move, F.normalize(visits.float() ** (1 / 0.5), p=1, dim=1)
