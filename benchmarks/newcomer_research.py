"""Newcomer models of recent research code: states over time, attention in odd forms, experts, tokenizers, flows.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def _segment_sums(x: Tensor) -> Tensor:
    """Sums of all runs of the last axis, -inf above the diagonal."""
    length = x.shape[-1]
    x = x[..., None].expand(*x.shape, length)
    x = x.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(-1), 0)
    sums = x.cumsum(-2)
    return sums.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -math.inf)


@CASES.module(lambda n: (randn(2, 4 * n, 12),), 3, 5)
class DualityOfStates(nn.Module):
    """Mamba 2: chunks with their own quadratic part, states handed from chunk to chunk, a gated norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(12, 16 + 16 + 2 * 6 + 2, bias=False)
        self.conv = nn.Conv1d(28, 28, 4, groups=28, padding=3)
        self.log_a, self.skip, self.bias = nn.Parameter(rand(2)), nn.Parameter(rand(2)), nn.Parameter(rand(2))
        self.weight, self.out = nn.Parameter(rand(16)), nn.Linear(16, 12, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        gate, xbc, dt = self.inside(u).split([16, 28, 2], -1)
        xbc = F.silu(self.conv(xbc.mT)[..., : u.shape[1]].mT)
        x, b, c = xbc.split([16, 6, 6], -1)
        dt = F.softplus(dt + self.bias)
        x = x.unflatten(-1, (2, 8))
        a = -self.log_a.exp() * dt
        parts = [t.unflatten(1, (-1, 4)) for t in (x * dt[..., None], a, b, c)]
        xs, steps, bs, cs = parts
        steps = steps.permute(0, 3, 1, 2)
        along = steps.cumsum(-1)
        decay = _segment_sums(steps).exp()
        diagonal = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", cs, bs, decay, xs)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", bs, (along[..., -1:] - along).exp(), xs)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        between = _segment_sums(F.pad(along[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        off = torch.einsum("bcln,bchpn,bhcl->bclhp", cs, states, along.exp())
        y = (diagonal + off).flatten(1, 2) + self.skip[:, None] * x
        y = y.flatten(2) * F.silu(gate)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * self.weight
        out: Tensor = self.out(y)
        return out


@CASES.module(lambda n: (randn(2, n, 8), randn(2, 2, 4, 4)), 5, 9)
class GeneralisedDelta(nn.Module):
    """RWKV 7: a state that forgets by vectors, is edited by a rank-one term, and value residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(rand(6, 8))
        self.r, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.w1, self.w2, self.a1, self.a2 = (nn.Parameter(randn(s) / 3) for s in ((8, 3), (3, 8), (8, 3), (3, 8)))
        self.w0, self.a0, self.kk, self.ka = (nn.Parameter(rand(8)) for _ in range(4))
        self.norm, self.out = nn.GroupNorm(2, 8, eps=64e-5), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        n, length, _ = x.shape
        back = F.pad(x, (0, 0, 1, 0))[:, :-1] - x
        xr, xw, xk, xv, xa, xg = (x + back * m for m in self.mix)
        r, k, v = self.r(xr), self.k(xk), self.v(xv)
        w = (-0.606531 * torch.sigmoid(self.w0 + torch.tanh(xw @ self.w1) @ self.w2)).exp()
        a = torch.sigmoid(self.a0 + xa @ self.a1 @ self.a2)
        kk = F.normalize((k * self.kk).view(n, length, 2, 4), dim=-1)
        k = k * (1 + (a - 1) * self.ka)
        r, w, k, v, a = (t.view(n, length, 2, 4) for t in (r, w, k, v, a))
        ys = []
        for t in range(length):
            removed = state @ -kk[:, t, :, :, None] @ (kk[:, t] * a[:, t])[:, :, None]
            state = state * w[:, t, :, None] + removed + v[:, t, :, :, None] @ k[:, t, :, None]
            ys.append(state @ r[:, t, :, :, None])
        y = torch.stack(ys, 1).reshape(n * length, 8)
        y = self.norm(y).view(n, length, 8) * torch.sigmoid(xg)
        return self.out(y), state


@CASES.module(lambda n: (randn(2, n, 8),), 6, 11)
class MatrixMemory(nn.Module):
    """The matrix cell of xLSTM in its parallel form: log gates, a stabiliser by row, a bounded normaliser."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gates, self.norm = nn.Linear(8, 24), nn.Linear(24, 4), nn.LayerNorm(4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        qkv = self.qkv(x)
        i, f = self.gates(qkv).mT.chunk(2, 1)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in qkv.chunk(3, -1))
        log_f = F.logsigmoid(f)
        sums = F.pad(log_f.cumsum(-1), (1, 0))
        decay = (sums[..., :, None] - sums[..., None, :])[..., 1:, 1:]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        log_d = torch.where(causal, decay, -torch.inf) + i[..., None, :]
        top = log_d.amax(-1, keepdim=True)
        scores = (q @ k.mT / 2) * (log_d - top).exp()
        y = scores / torch.maximum(scores.sum(-1, keepdim=True).abs(), (-top).exp() + 1e-6)
        return self.norm((y @ v).transpose(1, 2)).reshape(n, length, 8)


@CASES.module(lambda n: (randn(3, n, 6), torch.linspace(0, 1, 3)), 4, 9)
class ModulatedTransformer(nn.Module):
    """A block of a diffusion transformer: sines of time, six vectors of modulation, norms of queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 6))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(6, 36))
        self.norm1, self.norm2 = (nn.LayerNorm(6, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)
        self.mlp = nn.Sequential(nn.Linear(6, 24), nn.GELU(approximate="tanh"), nn.Linear(24, 6))
        self.qn, self.kn = nn.RMSNorm(3), nn.RMSNorm(3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-math.log(10000.0) * torch.arange(4) / 4) * 1000
        c = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4).unbind(0)
        h = F.scaled_dot_product_attention(self.qn(q), self.kn(k), v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.proj(h)
        out: Tensor = x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return out


@CASES.module(lambda n: (randn(2, n, 8),), 6, 10)
class GatedLinearAttention(nn.Module):
    """Chunks of three with decay by key channel, remainders padded, in f32 between bf16 projections."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.gate = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        x = F.pad(x, (0, 0, 0, -length % 3))
        q, k, v, g = (f(x).view(n, -1, 3, 2, 4).permute(0, 3, 1, 2, 4) for f in (self.q, self.k, self.v, self.gate))
        g = (F.logsigmoid(g) / 16).cumsum(-2)
        state, out = x.new_zeros(n, 2, 4, 4), []
        inside = torch.einsum("bhcik,bhcjk->bhcij", q * g.exp(), k * (-g).exp()).tril()
        for c in range(q.shape[2]):
            last = g[:, :, c, -1:]
            out.append(inside[:, :, c] @ v[:, :, c] + (q[:, :, c] * g[:, :, c].exp()) @ state)
            state = state * last.exp().mT + (k[:, :, c] * (last - g[:, :, c]).exp()).mT @ v[:, :, c]
        return torch.stack(out, 2).permute(0, 2, 3, 1, 4).reshape(n, -1, 8)[:, :length]


@CASES.module(lambda n: (randn(n, 6),), 9, 14)
class ExpertsThatDrop(nn.Module):
    """Top two of four experts with a capacity; tokens beyond it fall out; balancing and z losses."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4, bias=False)
        self.up, self.down = nn.Parameter(randn(4, 6, 10)), nn.Parameter(randn(4, 10, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = x.shape[0]
        capacity = max(int(1.25 * 2 * n / 4), 2)
        logits = self.router(x.float())
        probs = logits.softmax(-1)
        top, which = probs.topk(2)
        chosen = F.one_hot(which, 4)
        flat = chosen.transpose(0, 1).reshape(-1, 4)
        place = (flat.cumsum(0) * flat - 1).view(2, n, 4).transpose(0, 1)
        keep = (place < capacity) & (place >= 0)
        slots = F.one_hot(place.clamp(0, capacity - 1), capacity) * keep[..., None]
        combine = (top[:, :, None, None] * slots).sum(1)
        dispatch = combine.bool().to(x.dtype)
        taken = torch.einsum("nec,nd->ecd", dispatch, x)
        y = torch.bmm(F.relu(torch.bmm(taken, self.up)), self.down)
        balance = 4 * (chosen[:, 0].float().mean(0) * probs.mean(0)).sum()
        return torch.einsum("nec,ecd->nd", combine, y), balance, logits.logsumexp(-1).square().mean()


@CASES.module(lambda n: (randn(2, 3, 4 * n, 8),), 2, 3)
class QuantisedPictures(nn.Module):
    """A tokenizer without a codebook: bits of a latent's signs as a number, entropy losses, codes back to pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 5, 4, 2, 1))
        self.decode = nn.Sequential(nn.Conv2d(5, 16, 3, 1, 1), nn.PixelShuffle(2), nn.ConvTranspose2d(4, 3, 2, 2))
        self.register_buffer("powers", 2 ** torch.arange(5))
        self.register_buffer("book", (torch.arange(32)[:, None] >> torch.arange(5)) % 2 * 2.0 - 1)

    powers: Tensor
    book: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z = self.encode(x)
        code = torch.where(z > 0, 1.0, -1.0)
        index = ((code > 0).permute(0, 2, 3, 1) * self.powers).sum(-1)
        distance = -2 * torch.einsum("bchw,kc->bhwk", z, self.book)
        prob = (-distance).softmax(-1)
        sample = -(prob * prob.clamp(min=1e-5).log()).sum(-1).mean()
        average = prob.mean((0, 1, 2))
        entropy = sample + (average * average.clamp(min=1e-5).log()).sum()
        straight = z + (code - z).detach()
        back = self.book[index].permute(0, 3, 1, 2)
        return self.decode(straight), index, entropy, (back - code).abs().sum()


@CASES.module(lambda n: (randn(n, 6), randint(0, n, (2, 4 * n)), randint(0, 3, (n,))), 7, 11)
class GraphTransformer(nn.Module):
    """Biases by shortest paths (Floyd and Warshall), degrees as embeddings, a virtual token."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.degree, self.far = nn.Embedding(3, 6), nn.Embedding(9, 6), nn.Embedding(6, 2)
        self.token, self.layer = nn.Parameter(randn(1, 6)), nn.Linear(6, 18)

    def forward(self, x: Tensor, edges: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        near = torch.zeros(n, n, dtype=torch.bool)
        near[edges[0], edges[1]] = True
        near |= near.mT.clone()
        near.fill_diagonal_(False)
        d = torch.where(near, 1, 510).fill_diagonal_(0)
        for k in range(n):
            d = torch.minimum(d, d[:, k, None] + d[None, k])
        h = x + self.kind(kinds) + self.degree(near.sum(1).clamp(max=8))
        h = torch.cat([self.token, h])
        bias = F.pad(self.far(d.clamp(max=5)).permute(2, 0, 1), (1, 0, 1, 0))
        q, k_, v = self.layer(h).view(n + 1, 3, 2, 3).permute(1, 2, 0, 3)
        y = ((q @ k_.mT) / 3**0.5 + bias).softmax(-1) @ v
        return y.transpose(0, 1).flatten(1), d


@CASES.module(lambda n: (rand(2, n, 3), randn(2, n, 6)), 9, 13)
class PointTransformer(nn.Module):
    """Vector attention over nearest points with a network of relative positions, then farthest points and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.where = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 6))
        self.weigh = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        n, count, _ = p.shape
        near = torch.cdist(p, p).topk(4, largest=False).indices
        row = torch.arange(n)[:, None, None]
        relative = self.where(p[row, near] - p[:, :, None])
        w = self.weigh(self.k(x)[row, near] - self.q(x)[:, :, None] + relative).softmax(2)
        v = (self.v(x)[row, near] + relative).unflatten(-1, (2, 3))
        y = (v * w[..., None, :]).sum(2).flatten(2)
        far = torch.full((n, count), math.inf)
        at = torch.zeros(n, dtype=torch.long)
        picks = []
        for _ in range(3):
            picks.append(at)
            far = torch.minimum(far, (p - p[torch.arange(n), at][:, None]).square().sum(-1))
            at = far.argmax(1)
        pick = torch.stack(picks, 1)
        return torch.gather(y, 1, pick[..., None].expand(-1, -1, 6)), pick


@CASES.module(lambda n: (randn(2, 5, 8), rand(2, 5, 2), randn(2, 6, n, n + 2), randn(2, 6, 4, 5)), 8, 11)
class DeformableSampling(nn.Module):
    """Offsets from queries on two levels, sampled bilinearly, weights over levels and points together."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.weights, self.out = nn.Linear(8, 2 * 2 * 3 * 2), nn.Linear(8, 2 * 2 * 3), nn.Linear(6, 8)

    def forward(self, q: Tensor, reference: Tensor, fine: Tensor, coarse: Tensor) -> Tensor:
        n, count, _ = q.shape
        offsets = self.offsets(q).view(n, count, 2, 2, 3, 2)
        weights = self.weights(q).view(n, count, 2, 6).softmax(-1).view(n, count, 2, 2, 3)
        sampled = []
        for level, f in enumerate((fine, coarse)):
            size = torch.tensor([f.shape[-1], f.shape[-2]])
            at = reference[:, :, None, None] + offsets[:, :, :, level] / size
            grid = (2 * at - 1).transpose(1, 2).flatten(0, 1)
            v = f.reshape(n * 2, 3, *f.shape[2:])
            sampled.append(F.grid_sample(v, grid, padding_mode="zeros", align_corners=False))
        value = torch.stack(sampled, -2).unflatten(0, (n, 2))
        y = (value * weights.transpose(1, 2)[:, :, None]).sum((-1, -2))
        out: Tensor = self.out(y.flatten(1, 2).mT)
        return out


@CASES.module(lambda n: (randn(2, n, n + 1, 4),), 8, 13)
class FourierNeuralOperator(nn.Module):
    """Two corners of modes written into an empty spectrum, a grid as channels, a bypass by pointwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(randn(6, 6, 3, 3, dtype=torch.cfloat))
        self.high = nn.Parameter(randn(6, 6, 3, 3, dtype=torch.cfloat))
        self.lift, self.bypass, self.out = nn.Linear(6, 6), nn.Conv2d(6, 6, 1), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, _ = x.shape
        rows = torch.linspace(0, 1, h).view(1, h, 1, 1).expand(n, -1, w, -1)
        columns = torch.linspace(0, 1, w).view(1, 1, w, 1).expand(n, h, -1, -1)
        x = self.lift(torch.cat([x, rows, columns], -1)).permute(0, 3, 1, 2)
        f = torch.fft.rfft2(x, norm="ortho")
        out = torch.zeros(n, 6, h, w // 2 + 1, dtype=torch.cfloat)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", f[:, :, :3, :3], self.low)
        out[:, :, -3:, :3] = torch.einsum("bixy,ioxy->boxy", f[:, :, -3:, :3], self.high)
        y = F.gelu(torch.fft.irfft2(out, s=(h, w), norm="ortho") + self.bypass(x))
        result: Tensor = self.out(y.permute(0, 2, 3, 1))
        return result


@CASES.module(lambda n: (randn(n, 3), randn(n, 4), randn(n, 4, 3)), 5, 8)
class TensorFieldLayer(nn.Module):
    """Scalars and vectors with radial weights: products of orders 0, 1 and 2 by spherical harmonics and crosses."""

    def __init__(self) -> None:
        super().__init__()
        self.radial = nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 20))
        self.gate = nn.Linear(4, 4)

    def forward(self, position: Tensor, scalar: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        n = len(position)
        edge = position[:, None] - position[None]
        far = edge.norm(dim=-1)
        unit = edge / far.clamp(min=1e-6)[..., None]
        basis = (math.pi * torch.arange(1, 6) * far[..., None] / 4).sin() / far.clamp(min=0.1)[..., None]
        fade = torch.where(far < 4, 0.5 * ((math.pi * far / 4).cos() + 1), 0.0) * (1 - torch.eye(n))
        w00, w11, w01, w1x, w2 = (self.radial(basis) * fade[..., None]).chunk(5, -1)
        dot = torch.einsum("ijx,jcx->ijc", unit, vector)
        s = (w00 * scalar[None] + w11 * dot).sum(1)
        traceless = unit[..., :, None] * unit[..., None, :] - torch.eye(3) / 3
        v = torch.einsum("ijc,jc,ijx->icx", w01, scalar, unit)
        v = v + (w1x[..., None] * torch.linalg.cross(unit[:, :, None], vector[None])).sum(1)
        v = v + torch.einsum("ijc,ijxy,jcy->icx", w2, traceless, vector)
        return F.silu(s), v * torch.sigmoid(self.gate(s))[..., None]


@CASES.module(lambda n: (randn(n, 3), rand(n, 3), randn(n, 4), rand(n), rand(n, 3)), 6, 9)
class SplattedGaussians(nn.Module):
    """Covariances of quaternions and scales, projected by a Jacobian, conics, radii, order by depth, alpha."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("view", torch.tensor([[0.8, -0.6, 0, 0], [0.6, 0.8, 0, 0], [0, 0, 1, 5], [0, 0, 0, 1.0]]))

    view: Tensor

    def forward(self, mean: Tensor, scale: Tensor, q: Tensor, opacity: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
        w, x, y, z = F.normalize(q, dim=-1).unbind(-1)
        r = torch.stack([
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ], -1).view(-1, 3, 3)  # fmt: skip
        m = r * scale[:, None]
        cov = m @ m.mT
        p = F.pad(mean, (0, 1), value=1.0) @ self.view.T
        tz = p[:, 2].clamp(min=0.2)
        zero = torch.zeros_like(tz)
        j = torch.stack([8 / tz, zero, -8 * p[:, 0] / tz**2, zero, 8 / tz, -8 * p[:, 1] / tz**2], -1).view(-1, 2, 3)
        t = j @ self.view[:3, :3]
        flat = t @ cov @ t.mT + 0.3 * torch.eye(2)
        conic = torch.linalg.inv(flat)
        middle = flat.diagonal(dim1=-2, dim2=-1).mean(-1)
        radius = (3 * (middle + (middle**2 - torch.linalg.det(flat)).clamp(min=0.1).sqrt()).sqrt()).ceil().int()
        at = 8 * p[:, :2] / tz[:, None] + 4
        order = tz.argsort()
        pixel = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
        d = pixel[:, None] - at[order]
        power = -0.5 * torch.einsum("pni,nij,pnj->pn", d, conic[order], d)
        alpha = (opacity[order] * power.exp()).clamp(max=0.99)
        alpha = torch.where(alpha < 1 / 255, 0.0, alpha)
        through = torch.cumprod(F.pad(1 - alpha, (1, 0), value=1.0), -1)
        return (through[:, :-1] * alpha) @ colour[order] + through[:, -1:] * 0.5, radius


@CASES.module(lambda n: (randn(2, n, 6), torch.tensor([n, n - 2])), 6, 9)
class LatentCompressedCache(nn.Module):
    """Multi-head latent attention that absorbs the up-projections into queries and outputs, with a length mask."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.query, self.rope_key = nn.Linear(6, 5), nn.Linear(6, 2 * (4 + 2)), nn.Linear(6, 2)
        self.up_key, self.up_value = nn.Parameter(randn(2, 4, 5)), nn.Parameter(randn(2, 4, 5))
        self.norm, self.out = nn.RMSNorm(5), nn.Linear(8, 6)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        n, length, _ = x.shape
        c = self.norm(self.down(x))
        q, q_rope = self.query(x).view(n, length, 2, 6).split([4, 2], -1)
        angle = torch.arange(length)[:, None] * 0.3
        turn = torch.polar(torch.ones_like(angle), angle)

        def turned(t: Tensor, by: Tensor) -> Tensor:
            return torch.view_as_real(torch.view_as_complex(t.contiguous())[..., None] * by).flatten(-2)

        k_rope = turned(self.rope_key(x), turn)
        q_rope = turned(q_rope, turn[:, None])
        absorbed = torch.einsum("blhd,hdc->blhc", q, self.up_key)
        scores = torch.einsum("blhc,bsc->bhls", absorbed, c) + torch.einsum("blhr,bsr->bhls", q_rope, k_rope)
        seen = torch.arange(length) < lengths[:, None]
        mask = seen[:, None, None] & torch.ones(length, length, dtype=torch.bool).tril()
        p = (scores / 6**0.5).masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        context = torch.einsum("bhls,bsc->blhc", p, c)
        y = torch.einsum("blhc,hdc->blhd", context, self.up_value).flatten(2)
        return self.out(y) * seen[..., None], c


@CASES.function(lambda n: (randn(n, 9), randn(n + 1, 9), randint(0, 9, (n,)), rand(n)), 4, 6)
def verified_draft(draft: Tensor, target: Tensor, tokens: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Drafted tokens kept until the first that is refused; the rest of the distribution there gives the next."""
    n = len(tokens)
    p, q = target.softmax(-1), draft.softmax(-1)
    at = torch.arange(n)
    ratio = p[at, tokens] / q[at, tokens]
    accepted = (noise < ratio.clamp(max=1)).int().cumprod(0)
    count = accepted.sum()
    rest = F.relu(p - F.pad(q, (0, 0, 0, 1)))
    rest = rest / rest.sum(-1, keepdim=True)
    following = rest.gather(0, count.view(1, 1).expand(1, 9)).argmax(-1)
    kept = torch.where(at < count, tokens, -1)
    return torch.cat([kept, following]), count, rest


@CASES.module(lambda n: (randn(2, n, 6),), 5, 9)
class HyperConnections(nn.Module):
    """Several residual streams, mixed by matrices that Sinkhorn's steps make doubly stochastic, around two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.read, self.write = nn.Linear(6, 16), nn.Parameter(rand(2, 4)), nn.Parameter(rand(2, 4))
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))])

    def forward(self, x: Tensor) -> Tensor:
        streams = x[:, :, None].repeat(1, 1, 4, 1)
        for k, layer in enumerate(self.layers):
            h = self.mix(streams.mean(2)).unflatten(-1, (4, 4)).exp()
            for _ in range(3):
                h = h / h.sum(-1, keepdim=True)
                h = h / h.sum(-2, keepdim=True)
            y = layer(torch.einsum("s,blsd->bld", self.read[k].softmax(0), streams))
            streams = h @ streams + self.write[k][:, None] * y[:, :, None]
        return streams.sum(2)


@CASES.module(lambda n: (randn(n, 5),), 6, 9)
class RationalNetwork(nn.Module):
    """Edges as wavelets and as rational functions, groups of channels sharing coefficients (Horner's scheme)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.weight = (nn.Parameter(rand(6, 5) + k) for k in (0.5, -0.5, 0.0))
        self.p, self.q = nn.Parameter(randn(2, 6)), nn.Parameter(randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        t = (x[:, None] - self.shift) / self.scale
        hat = 2 / (3**0.5 * math.pi**0.25) * (t.square() - 1) * (-0.5 * t.square()).exp()
        h = (hat * self.weight).sum(-1)
        g = h.view(-1, 2, 3)
        top = torch.zeros_like(g)
        for k in range(5, -1, -1):
            top = torch.addcmul(self.p[None, :, k, None], top, g)
        powers = torch.stack([g**k for k in range(1, 5)], -1)
        bottom = 1 + (powers * self.q[:, None]).sum(-1).abs()
        return (top / bottom).flatten(1)


@CASES.module(lambda n: (randn(2, 3, n, n),), 9, 14)
class WaveletAttentionUnit(nn.Module):
    """A Haar transform of odd sizes by reflected padding, attention over sub-bands, the inverse cropped."""

    def __init__(self) -> None:
        super().__init__()
        h = torch.tensor([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1.0]]) / 2
        self.register_buffer("filters", h.view(4, 1, 2, 2).repeat(3, 1, 1, 1))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 4, 1), nn.Hardswish(), nn.Conv2d(4, 12, 1))

    filters: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        x = F.pad(x, (0, w % 2, 0, h % 2), mode="reflect")
        bands = F.conv2d(x, self.filters, stride=2, groups=3)
        bands = bands * self.squeeze(bands).sigmoid()
        return F.conv_transpose2d(bands, self.filters, stride=2, groups=3)[..., :h, :w]


@CASES.module(lambda n: (randn(2, n, 6), randn(2, 4, 6)), 5, 8)
class SurpriseMemory(nn.Module):
    """Weights of a two-layer memory updated at each step by the gradient of its own loss, with momentum and decay."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v, self.q, self.rates = nn.Linear(6, 4), nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(6, 3)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        momentum, ys = torch.zeros_like(memory), []
        k, v, q = F.normalize(F.silu(self.k(x)), dim=-1), self.v(x), F.normalize(F.silu(self.q(x)), dim=-1)
        rates = self.rates(x).sigmoid()
        for t in range(x.shape[1]):
            error = (k[:, t, None] @ memory)[:, 0] - v[:, t]
            surprise = torch.einsum("bk,bv->bkv", k[:, t], 2 * error)
            rate, keep, decay = rates[:, t, :, None, None].unbind(1)
            momentum = keep * momentum - rate * surprise
            memory = (1 - decay) * memory + momentum
            ys.append((q[:, t, None] @ memory)[:, 0])
        return torch.stack(ys, 1), memory


@CASES.module(lambda n: (randn(3, n),), 8, 12)
class SoftRanks(nn.Module):
    """Ranks by an isotonic projection (the least of the largest means), Spearman's loss, the last by sorting."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = x.shape[-1]
        s, order = (x / 0.5).sort(descending=True)
        w = torch.arange(n, 0, -1, dtype=x.dtype)
        sums = F.pad((s - w).cumsum(-1), (1, 0))
        first, last = torch.arange(n)[:, None], torch.arange(n)
        width = (last - first + 1).clamp(min=1)
        means = (sums[:, 1:][:, None] - sums[:, :-1, None]) / width
        means = means.masked_fill(last < first, -math.inf)
        latest = means.flip(-1).cummax(-1).values.flip(-1)
        earliest = latest.masked_fill(last < first, math.inf).cummin(-2).values
        solution = earliest.diagonal(dim1=-2, dim2=-1)
        rank = torch.empty_like(x).scatter_(-1, order, s - solution)
        centred = rank - rank.mean(-1, keepdim=True)
        return rank, F.cosine_similarity(centred[:1], centred[1:], dim=-1), rank.argsort(stable=True, dim=-1)[:, -3:]
