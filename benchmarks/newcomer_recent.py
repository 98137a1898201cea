"""Newcomer models of recent codebases: speech, diffusion, tables, graphs.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()

# --- speech ---------------------------------------------------------------------------------------------------------


def _swoosh(x: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros((), dtype=x.dtype), x - 1.0) - 0.08 * x - 0.313261687


class _BiasNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias, self.log_scale = nn.Parameter(randn(width) / 9), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        scales = (x - self.bias).square().mean(-1, keepdim=True) ** -0.5 * self.log_scale.exp()
        return x * scales


@CASES.module(lambda n: (randn(n, 2, 12), torch.arange(n).expand(2, -1) >= torch.tensor([[n], [n - 2]])), 7, 10)
class DownsampledEncoder(nn.Module):
    """Zipformer: frames paired by learned weights, attention shared by two uses, bypasses, the result repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.bypass = nn.Parameter(randn(2)), nn.Parameter(rand(12))
        self.project, self.values, self.gates = nn.Linear(12, 2 * 2 * 4), nn.Linear(12, 12), nn.Linear(12, 36)
        self.out, self.mixed, self.norm = nn.Linear(12, 12), nn.Linear(12, 12), _BiasNorm(12)
        self.conv = nn.Conv1d(12, 12, 3, padding=1, groups=12)

    def forward(self, source: Tensor, is_padding: Tensor) -> Tensor:
        length, batch, width = source.shape
        x = F.pad(source, (0, 0, 0, 0, 0, length % 2))
        x = torch.cat([x[:length], source[-1:].expand(length % 2, -1, -1)])
        x = x.reshape(-1, 2, batch, width)
        x = (x * self.weights.softmax(0)[:, None, None]).sum(1)
        mask = is_padding[:, ::2]
        q, k = self.project(x).unflatten(-1, (2, 2, 4)).unbind(2)
        scores = torch.einsum("qbhd,kbhd->hbqk", q, k).masked_fill(mask[:, None], -1000)
        attention = scores.softmax(-1).masked_fill(mask[:, None], 0)
        s, y, z = self.gates(x).chunk(3, -1)
        gated = torch.einsum("bqk,kbd->qbd", attention[0], y * s.tanh()) * z
        x = x + self.mixed(gated)
        v = self.values(x).unflatten(-1, (2, -1))
        x = x + self.out(torch.einsum("hbqk,kbhd->qbhd", attention, v).flatten(-2))
        x = x + _swoosh(self.conv(x.permute(1, 2, 0)).permute(2, 0, 1))
        x = self.norm(x).unsqueeze(1).expand(-1, 2, -1, -1).reshape(-1, batch, width)[:length]
        result: Tensor = source + (x - source) * self.bypass
        return result


@CASES.module(lambda n: (randn(2, 6, 4 * n),), 5, 8)
class CodesAtThreeRates(nn.Module):
    """SNAC: residual codes, each level at its own rate; nearest by cosine, looked up, and a straight-through sum."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv1d(6, 3, 1) for _ in range(3))
        self.up = nn.ModuleList(nn.Conv1d(3, 6, 1) for _ in range(3))
        self.books = nn.ParameterList(randn(10, 3) for _ in range(3))

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        rest, total = z, torch.zeros_like(z)
        codes = []
        for stride, down, up, book in zip((4, 2, 1), self.down, self.up, self.books, strict=True):
            x = down(F.avg_pool1d(rest, stride, stride))
            flat = F.normalize(x.transpose(1, 2).flatten(0, 1))
            distance = flat.square().sum(1, keepdim=True) - 2 * flat @ F.normalize(book).t() + 1
            index = (-distance).max(1)[1].view(x.shape[0], -1)
            found = F.embedding(index, book).transpose(1, 2)
            y = up(x + (found - x).detach()).repeat_interleave(stride, -1)
            total, rest = total + y, rest - y
            codes.append(index)
        return total, *codes


@CASES.module(lambda n: (randn(2, 3, 8), randn(2, n, 8), randn(2, 8, 4), torch.tensor(n)), 6, 9)
class StreamingBlock(nn.Module):
    """A chunk of frames against a cache of older ones, relative positions shifted, a causal convolution's own cache."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.p = (nn.Linear(8, 8) for _ in range(4))
        self.u, self.w = nn.Parameter(randn(2, 4)), nn.Parameter(randn(2, 4))
        self.pointwise, self.depthwise = nn.Conv1d(8, 16, 1), nn.Conv1d(8, 8, 5, groups=8)

    def forward(self, x: Tensor, cache: Tensor, past: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        joined = torch.cat([cache, x], 1)
        q, k, v = (
            f(t).unflatten(-1, (2, 4)).transpose(1, 2) for f, t in ((self.q, x), (self.k, joined), (self.v, joined))
        )
        length = joined.shape[1]
        place = torch.arange(length - 1, -x.shape[1], -1, dtype=x.dtype) + offset * 0
        angle = place[:, None] * torch.exp(torch.arange(0, 8, 2, dtype=x.dtype) * (-math.log(1e4) / 8))
        p = self.p(torch.stack([angle.sin(), angle.cos()], -1).flatten(1)).unflatten(-1, (2, 4)).transpose(0, 1)
        moved = F.pad((q + self.w[:, None]) @ p.transpose(-1, -2), (1, 0))
        rows, columns = moved.shape[-2:]
        moved = moved.view(2, 2, columns, rows)[:, :, 1:].view(2, 2, rows, columns - 1)[..., :length]
        scores = ((q + self.u[:, None]) @ k.transpose(-1, -2) + moved) / 2
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) + x
        gated = torch.cat([past, F.glu(self.pointwise(y.mT), 1)], -1)
        return y + F.silu(self.depthwise(gated)).mT, joined[:, x.shape[1] :], gated[..., -4:]


# --- diffusion ------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(1, 4 * n, 8), randn(1, 5, 8), rand(1), rand(1, 5 + 4 * n, 2)), 3, 5)
class JointStream(nn.Module):
    """Flux: text and picture with weights of their own and one attention, rotated by two axes, modulated by time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 8))
        self.change = nn.ModuleList(nn.Linear(8, 6 * 8) for _ in range(2))
        self.qkv, self.out = (nn.ModuleList(nn.Linear(8, k * 8) for _ in range(2)) for k in (3, 1))
        self.norms = nn.ModuleList(nn.RMSNorm(4) for _ in range(4))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 8)) for _ in range(2))

    def forward(self, image: Tensor, text: Tensor, t: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = torch.exp(-math.log(10_000) * torch.arange(8, dtype=torch.float32) / 8)
        angle = t[:, None].float() * 1000 * frequencies[None]
        vec = self.time(torch.cat([angle.cos(), angle.sin()], -1).to(image.dtype))
        changes = [f(F.silu(vec))[:, None].chunk(6, -1) for f in self.change]
        turn = torch.cat([places[..., k, None] * 0.01 ** torch.arange(1, dtype=places.dtype) for k in range(2)], -1)
        turn = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).unflatten(-1, (2, 2))[:, None]
        parts = []
        for k, x in enumerate((text, image)):
            shift, scale = changes[k][:2]
            made = (1 + scale) * F.layer_norm(x, (8,), eps=1e-6) + shift
            q, key, v = self.qkv[k](made).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            parts.append((self.norms[2 * k](q), self.norms[2 * k + 1](key), v))
        q, key, v = (torch.cat(both, 2) for both in zip(*parts, strict=True))
        q, key = ((turn * x.unflatten(-1, (-1, 1, 2))).sum(-1).flatten(-2) for x in (q, key))
        y = F.scaled_dot_product_attention(q, key, v).transpose(1, 2).flatten(2)
        results = []
        for k, (x, own) in enumerate(((text, y[:, : text.shape[1]]), (image, y[:, text.shape[1] :]))):
            gate, shift, scale, last = changes[k][2:]
            x = x + gate * self.out[k](own)
            results.append(x + last * self.mlp[k]((1 + scale) * F.layer_norm(x, (8,), eps=1e-6) + shift))
        return results[0], results[1]


@CASES.function(lambda n: (randn(2, 3, n, n), randn(2, 3, n, n), randn(2, 3, n, n), torch.tensor([3, 7])), 6, 9)
def thresholded_guidance(x: Tensor, eps: Tensor, free: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Guidance rescaled to the deviation of the guided, a bound by quantiles, and one implicit step back in time."""
    steps = torch.linspace(0.00085**0.5, 0.012**0.5, 10, dtype=x.dtype) ** 2
    kept = torch.cumprod(1 - steps, 0)
    now, before = (kept.gather(0, (step - k).clamp(min=0)).view(-1, 1, 1, 1) for k in (0, 1))
    guided = free + 7.5 * (eps - free)
    scaled = guided * (eps.std((1, 2, 3), keepdim=True) / guided.std((1, 2, 3), keepdim=True))
    noise = 0.7 * scaled + 0.3 * guided
    origin = (x - (1 - now).sqrt() * noise) / now.sqrt()
    bound = torch.quantile(origin.flatten(1).abs(), 0.9, 1).clamp(1, 100)[:, None, None, None]
    origin = torch.clamp(origin, -bound, bound) / bound
    deviation = 0.5 * ((1 - before) / (1 - now) * (1 - now / before)).sqrt()
    direction = (1 - before - deviation**2).sqrt() * noise
    return before.sqrt() * origin + direction, origin


@CASES.function(lambda n: (randn(2, n), randn(2, n), randn(2, n), rand(2).sort(descending=True)[0] + 0.1), 9, 14)
def second_order_step(x: Tensor, now: Tensor, last: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """DPM-Solver++ 2M over Karras' spacing, whose nearest level is searched."""
    ramp = torch.linspace(0, 1, 12, dtype=x.dtype)
    low, high = 0.03 ** (1 / 7), 14.6 ** (1 / 7)
    levels = torch.cat([(high + ramp * (low - high)) ** 7, torch.zeros(1, dtype=x.dtype)])
    at = (levels[:-1, None] - sigma).abs().argmin(0).clamp(1, 10)
    s, before, after = (levels[at + k] for k in (0, -1, 1))
    t, t_before, t_after = (-v.log() for v in (s, before, after))
    h, h_last = t_after - t, t - t_before
    ratio = (h_last / h)[:, None]
    mixed = (1 + 1 / (2 * ratio)) * now - 1 / (2 * ratio) * last
    return (after / s)[:, None] * x - torch.expm1(-h)[:, None] * mixed, at


# --- tables ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(3, 5), randint(0, 4, (3,)), randn(n, 5), randint(0, 4, (n,)), randn(n)), 9, 14)
class RetrievedNeighbours(nn.Module):
    """TabR: the nearest rows of a table by learned keys; their labels and differences mixed by similarity."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.offsets = nn.Parameter(randn(5, 3)), nn.Parameter(rand(5, 3))
        self.kind, self.encode, self.key = nn.Embedding(4, 3), nn.Linear(5 * 6 + 3, 8), nn.Linear(8, 8)
        self.label, self.difference = nn.Linear(1, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Sequential(nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))

    def _key(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        angle = 2 * math.pi * self.weights * x[..., None] + self.offsets
        row = torch.cat([angle.cos(), angle.sin()], -1).flatten(-2)
        made = self.encode(torch.cat([row, self.kind(kind)], -1))
        return made, self.key(made)

    def forward(self, x: Tensor, kind: Tensor, table: Tensor, kinds: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        made, k = self._key(x, kind)
        _, keys = self._key(table, kinds)
        distance = torch.cdist(k, keys)
        near = distance.topk(5, largest=False)[1]
        chosen = keys[near]
        close = -k.square().sum(-1, keepdim=True) + 2 * (k[:, None] @ chosen.mT).squeeze(1) - chosen.square().sum(-1)
        weights = F.softmax(close, -1)
        values = self.label(labels[near][..., None]) + self.difference(k[:, None] - chosen)
        context = (weights[:, None] @ values).squeeze(1)
        return self.head(made + context), weights.sort(-1)[0]


@CASES.module(lambda n: (randn(n, 6),), 4, 7)
class RankOneEnsemble(nn.Module):
    """TabM: four models that share a weight, each with scales of its own; bins in pieces; the mean of their chances."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.Parameter(randn(6, 5).sort(-1)[0], requires_grad=False)
        self.weight, self.bias = nn.Parameter(randn(16, 24) / 5), nn.Parameter(randn(4, 16))
        self.r, self.s = nn.Parameter(torch.sign(randn(4, 24))), nn.Parameter(torch.sign(randn(4, 16)))
        self.head = nn.Parameter(randn(4, 16, 3) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.edges[:, :-1], self.edges[:, 1:]
        part = (x[..., None] - low) / (high - low)
        part = torch.cat([part[..., :1].clamp_max(1), part[..., 1:-1].clamp(0, 1), part[..., -1:].clamp_min(0)], -1)
        y = part.flatten(1)[:, None].expand(-1, 4, -1)
        y = F.relu(F.linear(y * self.r, self.weight) * self.s + self.bias)
        chances = torch.einsum("bki,kio->bko", y, self.head).softmax(-1)
        return chances.mean(1), chances.std(1)


@CASES.module(lambda n: (randn(n, 3) * 0.7,), 5, 9)
class SplinesOnEdges(nn.Module):
    """A Kolmogorov-Arnold layer: cubic B-splines by recursion over a grid, and a base function."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2.2, 2.2, 12).expand(3, -1).contiguous())
        self.base, self.spline, self.scale = (nn.Parameter(randn(s) / 3) for s in ((4, 3), (4, 3, 8), (4, 3)))

    def forward(self, x: Tensor) -> Tensor:
        grid, at = self.grid, x[..., None]
        bases = ((at >= grid[:, :-1]) & (at < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (at - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - at) / (grid[:, k + 1 :] - grid[:, 1:-k])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        splines = F.linear(bases.flatten(1), (self.spline * self.scale[..., None]).flatten(1))
        return F.linear(F.silu(x), self.base) + splines


# --- graphs ---------------------------------------------------------------------------------------------------------


def _by_target(values: Tensor, target: Tensor, n: int, how: str) -> Tensor:
    at = target.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    start = torch.zeros(n, *values.shape[1:], dtype=values.dtype)
    return start.scatter_reduce(0, at, values, how, include_self=False)


@CASES.module(lambda n: (randn(6, 5), randint(0, 6, (2, n)), randn(n, 3)), 11, 17)
class DynamicGraphAttention(nn.Module):
    """GATv2 with features of edges: scores behind the activation, a softmax over each node's edges, jumping."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.edge = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(3, 8, bias=False)
        self.score, self.out = nn.Parameter(randn(2, 4)), nn.Linear(13, 4)

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        left = self.left(x)[source].view(-1, 2, 4)
        message = left + self.right(x)[target].view(-1, 2, 4) + self.edge(features).view(-1, 2, 4)
        score = (F.leaky_relu(message, 0.2) * self.score).sum(-1)
        top = _by_target(score, target, x.shape[0], "amax")
        weight = (score - top[target]).exp()
        weight = weight / (_by_target(weight, target, x.shape[0], "sum")[target] + 1e-16)
        y = torch.zeros(x.shape[0], 2, 4, dtype=x.dtype).index_add(0, target, left * weight[..., None])
        return self.out(torch.cat([x, F.elu(y.flatten(1))], -1)), weight


@CASES.module(lambda n: (randn(n, 6), (rand(n, n) < 0.4).float()), 7, 10)
class WalksAndAttention(nn.Module):
    """GraphGPS: returns of random walks as positions, messages beside attention, both normed and added."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.local, self.attend = nn.Linear(10, 8), nn.Linear(8, 8), nn.MultiheadAttention(8, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.mlp, self.eps = (
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
            nn.Parameter(torch.tensor(0.1)),
        )

    def forward(self, x: Tensor, adjacent: Tensor) -> tuple[Tensor, Tensor]:
        adjacent = torch.maximum(adjacent, adjacent.t()).fill_diagonal_(0)
        degree = adjacent.sum(1).clamp(min=1)
        walk = adjacent / degree[:, None]
        power, returns = walk, []
        for _ in range(4):
            power = power @ walk
            returns.append(power.diagonal())
        h = self.project(torch.cat([x, torch.stack(returns, 1)], 1))
        near = self.norms[0](h + F.relu(self.local((1 + self.eps) * h + adjacent @ F.relu(h))))
        far = self.norms[1](h + self.attend(h[:, None], h[:, None], h[:, None], need_weights=False)[0][:, 0])
        h = near + far
        h = self.norms[2](h + self.mlp(h))
        return h, torch.cat([h.mean(0), h.amax(0)])
