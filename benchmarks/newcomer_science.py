"""Newcomer cases for sound, series, graphs, molecules, control and physics, as their repositories write them.

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


def edges(n: int) -> tuple[Tensor, Tensor]:
    """Node features and 2 x 3n edges of a random graph."""
    return randn(n, 8), randint(0, n, (2, 3 * n))


@CASES.module(lambda n: (randn(2, 100 * n),), 8, 11)
class LogMel(nn.Module):
    """STFT by frames and rfft, a filter bank, decibels and per-feature normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.register_buffer("bank", rand(65, 20))

    def forward(self, x: Tensor) -> Tensor:
        frames = F.pad(x[:, None], (64, 64), mode="reflect").squeeze(1).unfold(-1, 128, 50)
        power = torch.fft.rfft(frames * self.window).abs().square()
        y = (power @ self.bank).clamp(min=1e-10).log10().mul(10)
        y = torch.maximum(y, y.amax((1, 2), keepdim=True) - 80)
        return (y - y.mean(1, keepdim=True)) / (y.std(1, keepdim=True) + 1e-5)


@CASES.module(lambda n: (randn(1, 1, 64 * n),), 5, 8)
class ConvTasNet(nn.Module):
    """Encoder, dilated separable blocks with global norms, masks, overlap-add decoder."""

    def __init__(self, c: int = 12) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, c, 16, 8), nn.ConvTranspose1d(c, 1, 16, 8)
        self.norms = nn.ModuleList(nn.GroupNorm(1, c, 1e-8) for _ in range(3))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(c, c, 3, padding=2**i, dilation=2**i, groups=c), nn.PReLU(), nn.Conv1d(c, c, 1))
            for i in range(3)
        )
        self.mask = nn.Conv1d(c, 2 * c, 1)

    def forward(self, x: Tensor) -> Tensor:
        w = self.encoder(x)
        y = w
        for norm, block in zip(self.norms, self.blocks, strict=True):
            y = y + block(norm(y))
        masks = self.mask(y).view(x.shape[0], 2, -1, w.shape[-1]).sigmoid()
        return self.decoder((masks * w[:, None]).flatten(0, 1)).view(x.shape[0], 2, -1)


@CASES.module(lambda n: (randn(2, 1, 32 * n),), 6, 9)
class SincNet(nn.Module):
    """Band-pass kernels computed from learned cut-offs at each call."""

    def __init__(self, k: int = 21) -> None:
        super().__init__()
        self.low, self.band = nn.Parameter(rand(6, 1) * 0.2), nn.Parameter(rand(6, 1) * 0.2)
        self.register_buffer("n", torch.arange(-(k // 2), k // 2 + 1).float())
        self.register_buffer("window", torch.hamming_window(k))

    def forward(self, x: Tensor) -> Tensor:
        low = self.low.abs() + 0.01
        high = (low + self.band.abs()).clamp(max=0.5)
        kernel = (2 * high * torch.sinc(2 * high * self.n) - 2 * low * torch.sinc(2 * low * self.n)) * self.window
        return F.max_pool1d(F.conv1d(x, kernel[:, None], padding="same").abs(), 3)


@CASES.module(lambda n: (randn(2, 8, n),), 20, 27)
class SnakeVocoder(nn.Module):
    """BigVGAN's periodic activations between transposed convolutions with weight normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 6, 8, 4, 2))
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 1, 7, padding=3))
        self.alpha = nn.Parameter(rand(1, 6, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y = y + (1.0 / (self.alpha + 1e-9)) * torch.sin(y * self.alpha).pow(2)
        return torch.tanh(self.conv(y))


@CASES.module(lambda n: (randn(2, n, 8),), 24, 36)
class Dlinear(nn.Module):
    """Trend by a moving average with repeated ends, a linear layer for each part over a fixed look-back."""

    def __init__(self) -> None:
        super().__init__()
        self.trend, self.season = nn.Linear(24, 6), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, -24:]
        padded = torch.cat([x[:, :1].repeat(1, 2, 1), x, x[:, -1:].repeat(1, 2, 1)], 1)
        trend = F.avg_pool1d(padded.permute(0, 2, 1), 5, 1).permute(0, 2, 1)
        return (self.trend(trend.mT) + self.season((x - trend).mT)).mT


@CASES.module(lambda n: (randn(2, 32, n),), 3, 5)
class PatchTst(nn.Module):
    """Instance normalisation, patches of each channel as tokens, a flat head, denormalised."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pos = nn.Linear(8, 16), nn.Parameter(randn(7, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, F.gelu, batch_first=True)
        self.head = nn.Linear(7 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(1, keepdim=True), torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        patches = ((x - mean) / std).permute(0, 2, 1).unfold(-1, 8, 4)
        b, c = patches.shape[:2]
        y = self.layer((self.embed(patches) + self.pos).reshape(b * c, 7, 16))
        return self.head(y.reshape(b, c, -1)).permute(0, 2, 1) * std + mean


@CASES.module(lambda n: (randn(2, n, 4),), 32, 48)
class Autoformer(nn.Module):
    """Auto-correlation by Fourier transforms, the strongest delays by top-k, rolled and summed."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        f = torch.fft.rfft(x, dim=1)
        correlation = torch.fft.irfft(f * f.conj(), n=n, dim=1).mean(-1)
        weights, delays = correlation.topk(3, -1)
        index = (torch.arange(n)[None, None] + delays[..., None]) % n
        rolled = x[:, None].expand(-1, 3, -1, -1).gather(2, index[..., None].expand(-1, -1, -1, x.shape[2]))
        return (rolled * weights.softmax(-1)[..., None, None]).sum(1)


@CASES.module(edges, 9, 14)
class GraphSage(nn.Module):
    """Neighbours' means by index_add over edges, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        degree = x.new_zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype)).clamp(min=1)
        for _ in range(2):
            summed = torch.zeros_like(x).index_add(0, target, x[source])
            x = F.normalize((self.own(x) + self.other(summed / degree[:, None])).relu(), dim=-1)
        return x


@CASES.module(edges, 8, 13)
class Gat(nn.Module):
    """Attention over edges: softmax by scatter_reduce maxima and sums."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.a = nn.Linear(8, 12, bias=False), nn.Parameter(randn(2, 3, 4))

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge[0], edge[1]
        h = self.lin(x).view(-1, 3, 4)
        e = F.leaky_relu((h * self.a[0]).sum(-1)[source] + (h * self.a[1]).sum(-1)[target], 0.2)
        index = target[:, None].expand_as(e)
        top = e.new_full((x.shape[0], 3), -torch.inf).scatter_reduce(0, index, e, "amax")
        w = torch.exp(e - top[target])
        total = torch.zeros_like(top).scatter_add(0, index, w)
        out = torch.zeros_like(h).index_add(0, target, h[source] * (w / total[target])[..., None])
        return F.elu(out.flatten(1))


@CASES.module(lambda n: (randn(n, 4), randn(n, 2)), 6, 9)
class SacActor(nn.Module):
    """A squashed Gaussian policy: action, log-probability with its correction, two critics' minimum."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mu, self.log_std = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 2)
        self.q = nn.ModuleList(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x).relu()
        mu, log_std = self.mu(h), -5 + 3.5 * (self.log_std(h).tanh() + 1)
        u = mu + log_std.exp() * noise
        a = u.tanh()
        logp = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        both = torch.cat([x, a], -1)
        return a, logp, torch.min(self.q[0](both), self.q[1](both))


@CASES.module(lambda n: (rand(n, 3, 36, 36),), 1, 4)
class RainbowAtari(nn.Module):
    """Distributional dueling heads over a convolutional trunk, noisy layers at their means."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 5, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten())
        self.value, self.advantage = nn.Linear(400, 11), nn.Linear(400, 4 * 11)
        self.register_buffer("support", torch.linspace(-10, 10, 11))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x - 0.5)
        v, a = self.value(h).view(-1, 1, 11), self.advantage(h).view(-1, 4, 11)
        q = ((v + a - a.mean(1, keepdim=True)).softmax(-1) * self.support).sum(-1)
        return q, q.argmax(-1)


@CASES.module(lambda n: (randn(n, 2, 16, 16),), 2, 3)
class FourierOperator(nn.Module):
    """A neural operator: low modes of a 2-D spectrum times complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.view_as_real(torch.complex(randn(2, 4, 5, 5), randn(2, 4, 5, 5)) / 4))
        self.local = nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        f = torch.fft.rfft2(x)
        out = torch.zeros(x.shape[0], 4, 16, 9, dtype=torch.cfloat)
        out[:, :, :5, :5] = torch.einsum("bixy,ioxy->boxy", f[:, :, :5, :5], torch.view_as_complex(self.w))
        return F.gelu(torch.fft.irfft2(out, s=(16, 16)) + self.local(x))


@CASES.module(lambda n: (randn(n, 2, 12, 12),), 1, 3)
class WaveStep(nn.Module):
    """A finite-difference wave equation, four steps with damping at the border."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "laplace", torch.tensor([[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]])[None, None]
        )

    def forward(self, state: Tensor) -> Tensor:
        now, before = state[:, :1], state[:, 1:]
        damping = torch.ones(12, 12)
        damping[0], damping[-1], damping[:, 0], damping[:, -1] = 0.5, 0.5, 0.5, 0.5
        for _ in range(4):
            after = (
                2 * now - before + 0.3 * F.conv2d(F.pad(now, (1, 1, 1, 1), mode="circular"), self.laplace)
            ) * damping
            now, before = after, now
        return torch.cat([now, before], 1)


@CASES.module(lambda n: (randn(n, 6), rand(n, 1)), 5, 8)
class ScoreNet(nn.Module):
    """Time embeddings by random Fourier features, a residual MLP with FiLM, scaled by the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", randn(8) * 16)
        self.film, self.inner, self.out = nn.Linear(16, 64), nn.Linear(6, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t * self.w * 2 * math.pi
        scale, shift = self.film(torch.cat([angle.sin(), angle.cos()], -1)).chunk(2, -1)
        h = F.silu(self.inner(x) * (1 + scale) + shift)
        return self.out(h) / torch.sqrt((25 ** (2 * t) - 1) / (2 * math.log(25)) + 1e-5)


@CASES.module(lambda n: (randn(2, 4, n, n), randint(0, 1000, (2,)), randn(2, 5, 16)), 8, 16)
class TinyDiffusion(nn.Module):
    """A conditional UNet step: time embedding, group norms, cross attention, skip."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.conv_in, self.down, self.up = (
            nn.Conv2d(4, c, 3, padding=1),
            nn.Conv2d(c, c, 3, 2, 1),
            nn.ConvTranspose2d(c, c, 4, 2, 1),
        )
        self.time, self.norm = nn.Sequential(nn.Linear(c, c), nn.SiLU(), nn.Linear(c, c)), nn.GroupNorm(4, c)
        self.attention, self.out = nn.MultiheadAttention(c, 4, batch_first=True), nn.Conv2d(2 * c, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(10000) * torch.arange(8) / 8)
        angles = t[:, None].float() * freqs
        emb = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        h = self.conv_in(x)
        y = F.silu(self.norm(self.down(h)) + emb[:, :, None, None])
        tokens = y.flatten(2).transpose(1, 2)
        y = y + self.attention(tokens, text, text)[0].transpose(1, 2).reshape(y.shape)
        return self.out(torch.cat([self.up(y), h], 1))


@CASES.module(lambda n: (randn(n, 10),), 6, 11)
class NeuralSpline(nn.Module):
    """A rational-quadratic spline flow: bins by searchsorted, gathered knots, log-determinants."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 5 * 13)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        params = self.net(a).view(-1, 5, 13)
        w, h = (torch.cumsum(F.pad(p.softmax(-1), (1, 0)), -1) * 6 - 3 for p in (params[..., :4], params[..., 4:8]))
        d = F.softplus(params[..., 8:]) + 1e-3
        inside = (b > -3) & (b < 3)
        y = b.clamp(-2.999, 2.999)
        i = (torch.searchsorted(w, y[..., None].contiguous()) - 1).clamp(0, 3)

        def at(t: Tensor, k: int = 0) -> Tensor:
            return t.gather(-1, i + k).squeeze(-1)

        width, height = at(w, 1) - at(w), at(h, 1) - at(h)
        s, z = height / width, (y - at(w)) / width
        d0, d1 = at(d), at(d, 1)
        bottom = s + (d0 + d1 - 2 * s) * z * (1 - z)
        value = at(h) + height * (s * z**2 + d0 * z * (1 - z)) / bottom
        slope = s**2 * (d1 * z**2 + 2 * s * z * (1 - z) + d0 * (1 - z) ** 2) / bottom**2
        return torch.cat([a, torch.where(inside, value, b)], -1), torch.where(inside, slope.log(), 0.0).sum(-1)


@CASES.module(lambda n: (randn(n, 4), randn(7, 4), randn(7)), 5, 9)
class GaussianProcess(nn.Module):
    """Posterior mean and variance by Cholesky solves."""

    def forward(self, x: Tensor, train: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def kernel(a: Tensor, b: Tensor) -> Tensor:
            return torch.exp(-0.5 * torch.cdist(a, b).square())

        low = torch.linalg.cholesky(kernel(train, train) + 0.1 * torch.eye(7))
        cross = kernel(x, train)
        mean = cross @ torch.cholesky_solve(y[:, None], low).squeeze(-1)
        v = torch.linalg.solve_triangular(low, cross.T, upper=False)
        return mean, 1 - v.square().sum(0)


@CASES.module(lambda n: (randint(0, 20, (n, 6)), randn(n, 4)), 8, 12)
class DeepFm(nn.Module):
    """Factorisation machine over embeddings of fields beside a deep net."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.embed = nn.Embedding(120, 1), nn.Embedding(120, 6)
        self.deep = nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.register_buffer("offsets", torch.arange(6) * 20)

    def forward(self, fields: Tensor, dense: Tensor) -> Tensor:
        ids = fields + self.offsets
        v = self.embed(ids)
        second = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)
        return (self.first(ids).sum(1) + second + self.deep(torch.cat([v.flatten(1), dense], -1))).sigmoid().squeeze(-1)


@CASES.module(lambda n: (randint(0, 30, (3, n)), randint(0, 30, (3,))), 9, 14)
class SasRec(nn.Module):
    """Sequential recommendation: causal attention over items, scores of candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.positions = nn.Embedding(31, 16, padding_idx=0), nn.Embedding(20, 16)
        self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16, eps=1e-8)

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        t = history.shape[1]
        x = self.items(history) * 4 + self.positions(torch.arange(t))
        x = x * (history != 0)[..., None]
        mask = ~torch.tril(torch.ones((t, t), dtype=torch.bool))
        y, _ = self.attention(self.norm(x), x, x, attn_mask=mask, need_weights=False)
        return (y[:, -1] * self.items(item)).sum(-1)


@CASES.module(lambda n: (rand(n, 12),), 8, 16)
class TabNet(nn.Module):
    """Feature masks by sparsemax: sort, cumulative sums, a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend, self.body = nn.BatchNorm1d(12), nn.Linear(12, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, prior, out = self.norm(x), torch.ones_like(x), 0
        for _ in range(2):
            z = self.attend(x) * prior
            s = z.sort(-1, descending=True).values
            k = torch.arange(1, 13)
            support = (1 + k * s > s.cumsum(-1)).sum(-1, keepdim=True)
            tau = (s.cumsum(-1).gather(-1, support - 1) - 1) / support
            mask = (z - tau).clamp(min=0)
            prior = prior * (1.3 - mask)
            out = out + F.glu(self.body(mask * x), -1)
        return out, mask


@CASES.module(lambda n: (randn(n, 8), randn(n, 8)), 6, 10)
class InfoNce(nn.Module):
    """CLIP's symmetric loss with a learned temperature, and accuracies."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.659))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() * self.scale.exp().clamp(max=100)
        labels = torch.arange(len(a))
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        return loss, (logits.argmax(-1) == labels).float().mean()


@CASES.module(lambda n: (randn(n, 16),), 8, 12)
class Barlow(nn.Module):
    """Barlow twins: cross-correlation to the identity, off-diagonals by the flatten trick."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12, affine=False))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.project(x), self.project(x.flip(0))
        c = a.T @ b / x.shape[0]
        off = c.flatten()[:-1].view(11, 13)[:, 1:].flatten()
        return (c.diagonal() - 1).pow(2).sum() + 0.005 * off.pow(2).sum()


@CASES.module(lambda n: (randn(n, 5, 3),), 4, 7)
class HamiltonianNet(nn.Module):
    """Leapfrog steps of a learned potential whose gradient is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(randn(3, 16) / 2), nn.Parameter(randn(16) / 4)

    def force(self, q: Tensor) -> Tensor:
        return -((1 - torch.tanh(q @ self.w) ** 2) * self.v) @ self.w.T

    def forward(self, q: Tensor) -> Tensor:
        p, path = torch.zeros_like(q), [q]
        for _ in range(3):
            p = p + 0.05 * self.force(q)
            q = q + 0.1 * p
            p = p + 0.05 * self.force(q)
            path.append(q)
        return torch.stack(path, 1)


@CASES.module(lambda n: (randn(2, n, 6),), 10, 15)
class StackedTcn(nn.Module):
    """Causal dilated convolutions with chomping, weight norm removed, residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(6, 6, 3, padding=2 * 2**i, dilation=2**i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        for i, conv in enumerate(self.convs):
            y = F.relu(y + F.elu(conv(y)[:, :, : -2 * 2**i].contiguous()))
        return y[:, :, -1]


@CASES.module(lambda n: (randint(0, 2, (n, 20)).float(),), 5, 8)
class Ldpc(nn.Module):
    """Belief propagation over a parity matrix in log space, three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", (rand(10, 20) < 0.3).float())

    def forward(self, bits: Tensor) -> Tensor:
        llr = 1.5 - 3 * bits
        messages = self.h * llr[:, None]
        for _ in range(3):
            t = torch.where(self.h > 0, torch.tanh(messages / 2), 1.0)
            others = t.prod(-1, keepdim=True) / torch.where(t.abs() < 1e-6, 1e-6, t)
            back = 2 * torch.atanh(others.clamp(-0.999, 0.999)) * self.h
            messages = (llr[:, None] + back.sum(1, keepdim=True) - back) * self.h
        return (llr + back.sum(1)) < 0


def multiscale(n: int) -> Any:
    """Two channels of a series whose length is a multiple of 8."""
    return (randn(2, 2, 8 * n),)


@CASES.module(multiscale, 4, 6)
class UNet1d(nn.Module):
    """Strided down, linear interpolation up, skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv1d(a, b, 5, 2, 2) for a, b in ((2, 8), (8, 12), (12, 16)))
        self.up = nn.ModuleList(nn.Conv1d(a, b, 3, 1, 1) for a, b in ((28, 12), (20, 8), (10, 2)))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for conv in self.down:
            skips.append(x)
            x = F.silu(F.instance_norm(conv(x)))
        for conv in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="linear", align_corners=False)
            x = conv(torch.cat([x, skips.pop()], 1))
        return x


@CASES.module(lambda n: (randn(n, 12),), 8, 20)
class VectorQuantizer(nn.Module):
    """Residual quantisation: nearest codes by distances, perplexity of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.books = nn.Parameter(randn(3, 10, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        residual, total, codes = x, torch.zeros_like(x), []
        for book in self.books:
            d = residual.pow(2).sum(1, keepdim=True) + book.pow(2).sum(1) - 2 * residual @ book.t()
            k = d.argmin(1)
            codes.append(k)
            total, residual = total + book[k], residual - book[k]
        used = F.one_hot(torch.stack(codes).flatten(), 10).float().mean(0)
        return total, torch.stack(codes, 1), torch.exp(-(used * torch.log(used + 1e-10)).sum())


@CASES.module(lambda n: (randn(2, n, 32),), 9, 14)
class MambaBlock(nn.Module):
    """A selective state space as a Python loop over time steps with a causal depthwise convolution."""

    def __init__(self, state: int = 4) -> None:
        super().__init__()
        self.inner, self.conv = nn.Linear(32, 2 * 32), nn.Conv1d(32, 32, 4, groups=32, padding=3)
        self.proj, self.dt = nn.Linear(32, 2 * state + 2), nn.Linear(2, 32)
        self.a, self.d = nn.Parameter(rand(32, state)), nn.Parameter(torch.ones(32))
        self.out, self.state = nn.Linear(32, 32), state

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        y, gate = self.inner(x).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., :t].transpose(1, 2))
        dt, b, c = self.proj(y).split([2, self.state, self.state], -1)
        dt = F.softplus(self.dt(dt))
        decay = torch.exp(-dt[..., None] * self.a.exp())
        drive = dt[..., None] * b[:, :, None] * y[..., None]
        # the closed form: products of decays from the first step on
        log = torch.cumsum(decay.log(), 1)
        h = torch.exp(log) * torch.cumsum(drive * torch.exp(-log), 1)
        return self.out(((h * c[:, :, None]).sum(-1) + y * self.d) * F.silu(gate))


@CASES.module(lambda n: (randn(2, n, 32),), 10, 16)
class HyenaFilter(nn.Module):
    """A long convolution through the Fourier domain with an implicit filter."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.filter = (
            nn.Linear(32, 3 * 32),
            nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 32)),
        )

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        t = torch.linspace(0, 1, n)[:, None]
        h = self.filter(torch.cat([t, torch.sin(6.28 * t), torch.cos(6.28 * t)], -1)) * torch.exp(-3 * t)
        a, b, v = self.proj(x).chunk(3, -1)
        y = torch.fft.irfft(torch.fft.rfft(a * v, n=2 * n, dim=1) * torch.fft.rfft(h, n=2 * n, dim=0), n=2 * n, dim=1)[
            :, :n
        ]
        return y * b
