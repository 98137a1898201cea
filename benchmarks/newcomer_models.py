"""Newcomer models of newer families: state spaces, flows, codebooks, generated weights, sparse layers.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randn

CASES = Table()


def sequence(n: int) -> tuple[Tensor]:
    """Two sequences of sixteen features."""
    return (randn(2, n, 16),)


def rows(n: int) -> tuple[Tensor]:
    """Rows of six features."""
    return (randn(n, 6),)


@CASES.module(sequence, 24, 33)
class DiagonalStateSpace(nn.Module):
    """A kernel as long as the sequence, from complex powers of a diagonal; convolved by Fourier transforms."""

    def __init__(self, n_state: int = 8) -> None:
        super().__init__()
        self.log_step = nn.Parameter(rand(16) * 2 - 4)
        self.c = nn.Parameter(randn(16, n_state, 2) * 0.5)
        self.log_real = nn.Parameter(torch.log(0.5 * torch.ones(16, n_state)))
        self.imaginary = nn.Parameter(math.pi * torch.arange(n_state).float().repeat(16, 1))
        self.skip = nn.Parameter(randn(16))

    def forward(self, u: Tensor) -> Tensor:
        length = u.shape[1]
        step = self.log_step.exp()
        a = torch.complex(-self.log_real.exp(), self.imaginary)
        c = torch.view_as_complex(self.c) * ((a * step[:, None]).exp() - 1) / a
        powers = (a * step[:, None])[..., None] * torch.arange(length)
        kernel = 2 * torch.einsum("hn,hnl->hl", c, powers.exp()).real
        x = u.transpose(1, 2)
        y = torch.fft.irfft(torch.fft.rfft(x, 2 * length) * torch.fft.rfft(kernel, 2 * length), 2 * length)
        return F.gelu((y[..., :length] + x * self.skip[:, None]).transpose(1, 2))


@CASES.module(sequence, 17, 32)
class LinearRecurrentUnit(nn.Module):
    """A complex diagonal recurrence by doubling strides: each pass joins what lies twice as far apart."""

    def __init__(self, n_state: int = 12) -> None:
        super().__init__()
        self.log_nu, self.theta = nn.Parameter(rand(n_state) - 1), nn.Parameter(rand(n_state) * 3)
        self.b = nn.Parameter(randn(n_state, 16, dtype=torch.complex64) * 0.2)
        self.c = nn.Parameter(randn(16, n_state, dtype=torch.complex64) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.exp(torch.complex(-self.log_nu.exp(), self.theta))
        gain = (1 - decay.abs() ** 2).sqrt()
        h = (x.to(self.b.dtype) @ self.b.T) * gain
        stride = 1
        while stride < x.shape[1]:
            h = h + F.pad(h[:, :-stride] * decay**stride, (0, 0, stride, 0))
            stride *= 2
        return (h @ self.c.T).real + x


@CASES.module(sequence, 6, 9)
class WeightedDeltaState(nn.Module):
    """A matrix state that forgets by channel and replaces what a key held, step by step, with shifted inputs."""

    def __init__(self, n_heads: int = 2) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.mix = nn.Parameter(rand(5, 16))
        self.r, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.decay = nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 16))
        self.rate = nn.Linear(16, 16)
        self.norm = nn.GroupNorm(n_heads, 16, eps=64e-5)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        shifted = F.pad(x, (0, 0, 1, -1)) - x
        xr, xw, xk, xv, xa = (x + shifted * m for m in self.mix)
        heads = [y.view(b, t, self.n_heads, -1) for y in (self.r(xr), self.k(xk), self.v(xv), self.rate(xa).sigmoid())]
        r, k, v, a = heads
        w = torch.exp(-math.exp(-0.5) * self.decay(xw).sigmoid()).view_as(r)
        unit = F.normalize(k, dim=-1)
        state = x.new_zeros(b, self.n_heads, c // self.n_heads, c // self.n_heads)
        out = []
        for s in range(t):
            held = torch.einsum("bhij,bhj->bhi", state, unit[:, s])
            state = state * w[:, s, :, None] - held[..., None] * (unit * a)[:, s, :, None]
            state = state + v[:, s, ..., None] * k[:, s, :, None]
            out.append(torch.einsum("bhij,bhj->bhi", state, r[:, s]))
        y = torch.stack(out, 1).reshape(b * t, c)
        return self.o(self.norm(y).view(b, t, c))


@CASES.module(sequence, 12, 19)
class MovingAverageAttention(nn.Module):
    """A damped multi-dimensional average before single-head attention with gates and a Laplace activation."""

    def __init__(self, n: int = 4) -> None:
        super().__init__()
        self.alpha, self.delta = nn.Parameter(randn(16, n)), nn.Parameter(randn(16, n))
        self.beta, self.gamma = nn.Parameter(randn(16, n) * 0.3), nn.Parameter(randn(16, n) * 0.3)
        self.z, self.v, self.gate = nn.Linear(16, 8), nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale, self.shift = nn.Parameter(rand(2, 8)), nn.Parameter(rand(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        p = self.alpha.sigmoid()
        q = (1 - p * self.delta.sigmoid()).log()[..., None] * torch.arange(t, dtype=x.dtype)
        kernel = ((p * self.beta * self.gamma)[..., None] * q.exp()).sum(1)
        y = F.conv1d(F.pad(x.transpose(1, 2), (t - 1, 0)), kernel.flip(-1)[:, None], groups=16).transpose(1, 2)
        z = F.silu(self.z(F.silu(y)))
        queries, keys = (z[..., None, :] * self.scale + self.shift).unbind(-2)
        scores = queries @ keys.mT / t
        attention = 0.5 * (1 + torch.erf((scores - math.sqrt(0.5)) / (math.sqrt(1 / (4 * math.pi)) * math.sqrt(2))))
        return x + self.gate(y).sigmoid() * (attention.tril() @ self.v(x))


@CASES.module(sequence, 7, 10)
class ExponentialGates(nn.Module):
    """A recurrent cell whose gates are exponentials, held in range by a running maximum."""

    def __init__(self, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.inputs = nn.Linear(16, 64)
        self.recurrent = nn.Parameter(randn(4, n_heads, 4, 4) * 0.3)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, _, c = x.shape
        hidden = cell = x.new_zeros(b, c)
        count, highest = x.new_ones(b, c), x.new_zeros(b, c)
        out = []
        for step in self.inputs(x).unbind(1):
            fed = torch.einsum("bhi,ghij->bghj", hidden.view(b, self.n_heads, -1), self.recurrent)
            i, f, z, o = (step + fed.reshape(b, -1)).chunk(4, -1)
            log_f = F.logsigmoid(f)
            top = torch.maximum(log_f + highest, i)
            keep, add = (log_f + highest - top).exp(), (i - top).exp()
            cell, count, highest = keep * cell + add * z.tanh(), keep * count + add, top
            hidden = o.sigmoid() * cell / count.clamp_min(1e-6)
            out.append(hidden)
        return self.norm(torch.stack(out, 1)), highest


@CASES.module(rows, 11, 16)
class SplineNetwork(nn.Module):
    """Kolmogorov-Arnold layers: a B-spline of order three on each edge, and a smooth base beside it."""

    def __init__(self, n_grid: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        h = 2 / n_grid
        self.register_buffer("grid", (torch.arange(-order, n_grid + order + 1) * h - 1).float())
        sizes = [(6, 8), (8, 3)]
        self.base = nn.ParameterList(randn(o, i) * 0.3 for i, o in sizes)
        self.spline = nn.ParameterList(randn(o, i, n_grid + order) * 0.2 for i, o in sizes)

    def basis(self, x: Tensor) -> Tensor:
        """Values of every spline at x, by the recursion of de Boor and Cox."""
        x, grid = x[..., None], self.grid
        bases = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[: -(k + 1)]) / (grid[k:-1] - grid[: -(k + 1)])
            right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k])
            bases = left * bases[..., :-1] + right * bases[..., 1:]
        return bases

    def forward(self, x: Tensor) -> Tensor:
        for base, spline in zip(self.base, self.spline, strict=True):
            x = F.linear(F.silu(x), base) + F.linear(self.basis(x).flatten(-2), spline.flatten(1))
        return x


@CASES.module(rows, 9, 14)
class ChebyshevNetwork(nn.Module):
    """Edges that are sums of Chebyshev polynomials of a squashed input."""

    def __init__(self, degree: int = 4) -> None:
        super().__init__()
        self.register_buffer("orders", torch.arange(degree + 1))
        self.weights = nn.ParameterList(randn(i, o, degree + 1) * 0.3 for i, o in ((6, 7), (7, 2)))

    def forward(self, x: Tensor) -> Tensor:
        for w in self.weights:
            angles = x.tanh().clamp(-1 + 1e-6, 1 - 1e-6)[..., None].expand(-1, -1, len(self.orders)).acos()
            x = torch.einsum("bid,iod->bo", (angles * self.orders).cos(), w)
        return x


@CASES.module(lambda n: (randn(2, n, n, 12),), 4, 6)
class FiniteScalars(nn.Module):
    """Each channel is bounded and rounded to a few levels; the levels together are the code."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("levels", torch.tensor([8, 5, 5, 4]))
        self.register_buffer("basis", torch.cumprod(torch.tensor([1, 8, 5, 5]), 0))
        self.inside, self.outside = nn.Linear(12, 4), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.inside(x)
        half = (self.levels - 1) * (1 + 1e-3) / 2
        offset = torch.where(self.levels % 2 == 0, 0.5, 0.0)
        bounded = (z + (offset / half).atanh()).tanh() * half - offset
        rounded = bounded + (bounded.round() - bounded).detach()
        width = self.levels // 2
        codes = ((rounded / width) * width + width).long()
        return self.outside(rounded / width), (codes * self.basis).sum(-1)


@CASES.module(lambda n: (randn(2, 10, n),), 8, 13)
class SignCodes(nn.Module):
    """Codes by the signs of the channels, entropies of bits, and the squared distance to the codes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", 2 ** torch.arange(9, -1, -1))
        codebook = ((torch.arange(1024)[:, None] & self.mask) != 0).float() * 2 - 1
        self.register_buffer("codebook", codebook, persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.normalize(x.movedim(1, -1), dim=-1)
        codes = torch.where(x > 0, 1.0, -1.0) / math.sqrt(10)
        index = ((x > 0).int() * self.mask.int()).sum(-1)
        chance = (4 * torch.einsum("bnd,cd->bnc", x, self.codebook / math.sqrt(10))).softmax(-1)
        each = -(chance * chance.clamp_min(1e-5).log()).sum(-1).mean()
        mean = chance.flatten(0, 1).mean(0)
        spread = -(mean * mean.clamp_min(1e-5).log()).sum()
        return codes.movedim(-1, 1), index, each - spread + F.mse_loss(x, codes)


class _Velocity(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.exp(-math.log(1e3) * torch.arange(8) / 8))
        self.net = nn.Sequential(nn.Linear(width + 16, 32), nn.SiLU(), nn.Linear(32, width))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * self.frequencies
        return self.net(torch.cat([x, angle.cos(), angle.sin()], -1))


@CASES.module(rows, 5, 8)
class FlowMatching(nn.Module):
    """Samples by Heun's steps through a velocity field, with guidance away from a null condition."""

    def __init__(self) -> None:
        super().__init__()
        self.field, self.null = _Velocity(), nn.Parameter(randn(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        times, path = torch.linspace(0, 1, 5), [x]

        def velocity(y: Tensor, t: Tensor) -> Tensor:
            both = self.field(torch.cat([y, y + self.null]), t.expand(2 * len(y)))
            given, free = both.chunk(2)
            return free + 2.5 * (given - free)

        for a, b in itertools.pairwise(times):
            first = velocity(path[-1], a)
            second = velocity(path[-1] + (b - a) * first, b)
            path.append(path[-1] + (b - a) * (first + second) / 2)
        return path[-1], torch.stack(path)


@CASES.module(rows, 6, 10)
class ContinuousFlow(nn.Module):
    """A neural ODE by classical Runge-Kutta; the log density follows the exact trace of the Jacobian."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 6)

    def rates(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity of each row, and the trace of its Jacobian by two linear layers' chain rule."""
        inner = self.a(y)
        slope = 1 - inner.tanh() ** 2
        return self.b(inner.tanh()), torch.einsum("oi,bi,io->b", self.b.weight, slope, self.a.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, density = 0.25, -0.5 * (x**2 + math.log(2 * math.pi)).sum(-1)
        for _ in range(4):
            k1, d1 = self.rates(x)
            k2, d2 = self.rates(x + h / 2 * k1)
            k3, d3 = self.rates(x + h / 2 * k2)
            k4, d4 = self.rates(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            density = density - h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
        return x, density


@CASES.module(rows, 5, 9)
class MaskedAutoregressiveFlow(nn.Module):
    """Masked layers that give each variable's scale from those before it; inverted one variable at a time."""

    def __init__(self) -> None:
        super().__init__()
        hidden = torch.arange(18) % 5
        self.register_buffer("m1", (hidden[:, None] >= torch.arange(6)).float())
        self.register_buffer("m2", (torch.arange(6).repeat(2)[:, None] > hidden).float())
        self.w1, self.b1 = nn.Parameter(randn(18, 6) * 0.3), nn.Parameter(randn(18) * 0.1)
        self.w2, self.b2 = nn.Parameter(randn(12, 18) * 0.2), nn.Parameter(randn(12) * 0.1)

    def terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and log scale of each variable."""
        h = F.relu(F.linear(x, self.w1 * self.m1, self.b1))
        shift, scale = F.linear(h, self.w2 * self.m2, self.b2).chunk(2, -1)
        return shift, 2 * (scale / 2).tanh()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shift, scale = self.terms(x)
        z = (x - shift) * torch.exp(-scale)
        back = torch.zeros_like(z)
        for i in range(6):
            shift, scale = self.terms(back)
            back[:, i] = z[:, i] * scale[:, i].exp() + shift[:, i]
        return z, -scale.sum(-1), back


@CASES.module(lambda n: (randn(2, 3, 2 * n, 2 * n),), 4, 5)
class InvertiblePictures(nn.Module):
    """Squeeze, per-channel scale, an invertible 1x1 convolution with its determinant, an affine coupling."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(rand(1, 12, 1, 1) + 0.5), nn.Parameter(randn(1, 12, 1, 1))
        self.mixer = nn.Parameter(torch.linalg.qr(randn(12, 12))[0].contiguous())
        self.net = nn.Sequential(nn.Conv2d(6, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.pixel_unshuffle(x, 2)
        n_places = y.shape[2] * y.shape[3]
        y = self.scale * (y + self.shift)
        volume = n_places * (self.scale.abs().log().sum() + torch.slogdet(self.mixer)[1])
        a, b = F.conv2d(y, self.mixer[:, :, None, None]).chunk(2, 1)
        shift, raw = self.net(a).chunk(2, 1)
        gain = torch.sigmoid(raw + 2)
        return torch.cat([a, (b + shift) * gain], 1), volume + gain.log().flatten(1).sum(1)


@CASES.module(sequence, 8, 12)
class JointStreams(nn.Module):
    """Two streams with their own weights and one attention; each is modulated by a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(16, 2 * 6 * 16))
        self.text = nn.Parameter(randn(1, 5, 16))
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16)) for _ in range(2))
        self.norm = nn.LayerNorm(16, elementwise_affine=False, eps=1e-6)
        self.q_norm, self.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        streams = [x, self.text.expand(len(x), -1, -1)]
        parts = self.condition(x.mean(1)).view(len(x), 2, 6, 1, 16).unbind(1)
        heads = []
        for s, p, qkv in zip(streams, parts, self.qkv, strict=True):
            y = qkv(self.norm(s) * (1 + p[:, 1]) + p[:, 0])
            heads.append(y.view(len(x), -1, 3, 4, 4).permute(2, 0, 3, 1, 4))
        q, k, v = torch.cat(heads, 3)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2)
        joint, result = y.split([x.shape[1], 5], 1), []
        for s, p, part, out, mlp in zip(streams, parts, joint, self.out, self.mlp, strict=True):
            mixed = s + p[:, 2] * out(part)
            result.append(mixed + p[:, 5] * mlp(self.norm(mixed) * (1 + p[:, 4]) + p[:, 3]))
        return tuple(result)


@CASES.module(sequence, 16, 24)
class SelectedBlocks(nn.Module):
    """Attention over means of blocks, over the blocks that those choose, and over a window; gates join the three."""

    def __init__(self, block: int = 4) -> None:
        super().__init__()
        self.block = block
        self.qkv, self.gate = nn.Linear(16, 48), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        n = t // self.block
        q, k, v = self.qkv(x).chunk(3, -1)
        blocks_k, blocks_v = (y.view(b, n, self.block, c) for y in (k, v))
        at = torch.arange(t)
        ended = (torch.arange(n) + 1) * self.block - 1 <= at[:, None]
        scores = (q @ blocks_k.mean(2).mT / 4).masked_fill(~ended, -1e9)
        coarse = torch.where(ended.any(-1, keepdim=True), scores.softmax(-1), 0.0)
        chosen = (coarse - 0.01 * torch.arange(n)).topk(2, -1).indices  # of equal weights the earlier block
        rows = torch.arange(b)[:, None, None]
        picked_k, picked_v = blocks_k[rows, chosen].flatten(2, 3), blocks_v[rows, chosen].flatten(2, 3)
        place = (chosen[..., None] * self.block + torch.arange(self.block)).flatten(2)
        fine = torch.einsum("btc,btsc->bts", q, picked_k) / 4
        fine = fine.masked_fill(place > at[:, None], -1e9).softmax(-1)
        near = (at[:, None] - at < 6) & (at <= at[:, None])
        window = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        parts = (coarse @ blocks_v.mean(2), torch.einsum("bts,btsc->btc", fine, picked_v), window)
        return sum(g[..., None] * y for g, y in zip(self.gate(x).sigmoid().unbind(-1), parts, strict=True))


@CASES.module(sequence, 9, 14)
class SlotsOfExperts(nn.Module):
    """Experts that each see weighted means of all tokens, and tokens that see weighted means of all slots."""

    def __init__(self, n_experts: int = 4, n_slots: int = 2) -> None:
        super().__init__()
        self.slots = nn.Parameter(randn(n_experts, n_slots, 16))
        self.scale = nn.Parameter(torch.tensor(4.0))
        self.up, self.down = nn.Parameter(randn(n_experts, 16, 32) * 0.2), nn.Parameter(randn(n_experts, 32, 16) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.einsum("bnd,esd->bnes", F.normalize(x, dim=-1), self.scale * F.normalize(self.slots, dim=-1))
        dispatch, combine = logits.softmax(1), logits.flatten(2).softmax(-1)
        seen = torch.einsum("bnd,bnes->ebsd", x, dispatch).flatten(1, 2)
        made = torch.bmm(F.gelu(torch.bmm(seen, self.up)), self.down).unflatten(1, (x.shape[0], -1))
        return torch.einsum("ebsd,bnes->bnd", made, combine.view_as(logits))


@CASES.module(sequence, 6, 11)
class ProductKeys(nn.Module):
    """A memory addressed by two halves: the best of each are paired, the best pairs' values are summed."""

    def __init__(self, n_keys: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.n_keys = heads, n_keys
        self.query, self.norm = nn.Linear(16, heads * 8), nn.LayerNorm(4)
        self.keys = nn.Parameter(randn(heads, n_keys, 2, 4))
        self.values = nn.EmbeddingBag(n_keys**2, 16, mode="sum")

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.norm(self.query(x).view(b, t, 2, self.heads, 4))
        scores, at = torch.einsum("btphd,hnpd->bthpn", q, self.keys).topk(3, -1)
        pairs = (scores[..., 0, :, None] + scores[..., 1, None, :]).flatten(-2)
        index = (at[..., 0, :, None] * self.n_keys + at[..., 1, None, :]).flatten(-2)
        best, which = pairs.topk(3, -1)
        weights, rows = best.softmax(-1).view(-1, 3 * self.heads), index.gather(-1, which).view(-1, 3 * self.heads)
        return self.values(rows, per_sample_weights=weights).view(b, t, -1)


@CASES.module(lambda n: (randn(3, n, 2), randn(3, 4)), 10, 15)
class GeneratedWeights(nn.Module):
    """A network whose weights another network gives for each sample; run by ``functional_call`` under ``vmap``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)
        self.shapes = {name: p.shape for name, p in self.inner.named_parameters()}
        self.maker = nn.Linear(4, sum(math.prod(s) for s in self.shapes.values()))

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        parts = self.maker(code).split([math.prod(s) for s in self.shapes.values()], -1)
        weights = {n: p.unflatten(-1, s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}
        return torch.vmap(lambda w, y: torch.func.functional_call(self.inner, w, (y,)))(weights, x)


@CASES.module(sequence, 5, 8)
class TrainedAtTestTime(nn.Module):
    """A hidden state that is a linear model, moved by a gradient step of its own loss at every token."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 8, bias=False) for _ in range(3))
        self.rate, self.start = nn.Linear(16, 1), nn.Parameter(randn(8, 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        def step(w: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.func.grad(lambda u: ((F.layer_norm(k @ u, (8,)) - v) ** 2).mean())(w)

        w, out = self.start.expand(len(x), -1, -1), []
        queries, keys, values = self.q(x), self.k(x), self.v(x)
        for t in range(x.shape[1]):
            g = torch.vmap(step)(w, keys[:, t], values[:, t])
            w = w - self.rate(x[:, t]).sigmoid()[..., None] * g
            out.append(torch.einsum("bi,bij->bj", queries[:, t], w))
        return torch.stack(out, 1)


@CASES.module(rows, 7, 12)
class DeepEquilibrium(nn.Module):
    """A fixed point of a contraction by Anderson's acceleration: small systems solved at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.w = nn.Linear(6, 10), nn.Parameter(randn(10, 10) * 0.08)

    def forward(self, x: Tensor, m: int = 3) -> Tensor:
        def f(z: Tensor) -> Tensor:
            return torch.tanh(z @ self.w + self.u(x))

        b = x.shape[0]
        xs, fs = x.new_zeros(b, m, 10), x.new_zeros(b, m, 10)
        fs[:, 0] = f(xs[:, 0])
        xs[:, 1] = fs[:, 0]
        fs[:, 1] = f(xs[:, 1])
        h, y = x.new_zeros(b, m + 1, m + 1), x.new_zeros(b, m + 1, 1)
        h[:, 0, 1:] = h[:, 1:, 0] = 1
        y[:, 0] = 1
        for k in range(2, 6):
            n = min(k, m)
            g = fs[:, :n] - xs[:, :n]
            h[:, 1 : n + 1, 1 : n + 1] = g @ g.mT + 1e-2 * torch.eye(n, dtype=x.dtype)
            alpha = torch.linalg.solve(h[:, : n + 1, : n + 1], y[:, : n + 1])[:, 1:, 0]
            xs[:, k % m] = (alpha[:, None] @ fs[:, :n])[:, 0]
            fs[:, k % m] = f(xs[:, k % m])
        return fs[:, 5 % m]


@CASES.module(lambda n: (randn(2, 8, n, n), randn(2, 5, 8)), 6, 8)
class MaskPrompts(nn.Module):
    """Axial rotary positions, attention both ways between queries and a picture, masks and their stability."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.hyper = nn.Linear(8, 4)

    def forward(self, x: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        b, c, h, w = x.shape
        flat = x.flatten(2).mT
        y, z = torch.arange(h * w) // w, torch.arange(h * w) % w
        angle = torch.cat([torch.outer(p.float(), torch.tensor([1.0, 0.1])) for p in (y, z)], -1)
        turn = torch.polar(torch.ones_like(angle), angle)
        keys = torch.view_as_real(torch.view_as_complex(self.k(flat).unflatten(-1, (-1, 2))) * turn).flatten(2)
        read = F.scaled_dot_product_attention(self.q(queries), keys, flat)
        wrote = flat + F.scaled_dot_product_attention(keys, self.q(read), read)
        masks = torch.einsum("bqc,bchw->bqhw", self.hyper(read), self.up(wrote.mT.view(b, c, h, w)))
        inner, outer = (masks > 0.5).sum((-1, -2)), (masks > -0.5).sum((-1, -2))
        return masks, inner / outer.clamp_min(1)
