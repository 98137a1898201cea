"""Newcomer cases of blocks that vision and language repositories build nets of, the ones of late among them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def image(n: int) -> tuple[Tensor]:
    """One picture of eight channels."""
    return (randn(1, 8, n, n),)


def words(n: int) -> tuple[Tensor]:
    """Two sentences of sixteen channels."""
    return (randn(2, n, 16),)


@CASES.module(image, 12, 16)
class InvertedBottleneck(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation with hard gates, a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = nn.Conv2d(8, 24, 1, bias=False), nn.Conv2d(24, 24, 5, 1, 2, groups=24, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n, eps=1e-3) for n in (24, 24, 8))
        self.down, self.up, self.project = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1), nn.Conv2d(24, 8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.norms[0](self.expand(x)))
        y = F.hardswish(self.norms[1](self.depth(y)))
        y = y * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.norms[2](self.project(y))


@CASES.module(image, 9, 14)
class LargeKernelAttention(nn.Module):
    """A depthwise convolution, one with gaps, a pointwise one; their product gates the input."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = (
            nn.Conv2d(8, 8, 5, padding=2, groups=8),
            nn.Conv2d(8, 8, 7, padding=9, groups=8, dilation=3),
        )
        self.mix = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mix(self.far(self.near(F.gelu(x))))


@CASES.module(image, 8, 12)
class CrossScan(nn.Module):
    """A picture read in four directions, each with a running weighted sum, and put together again."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(rand(4, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        rows, columns = x.flatten(2), x.transpose(2, 3).flatten(2)
        s = torch.stack([rows, columns, rows.flip(-1), columns.flip(-1)], 1)
        t = torch.arange(h * w, dtype=x.dtype)
        weights = (-(t[:, None] - t).abs() * 0.1).exp().tril()
        y = torch.einsum("bkcs,ts->bkct", s * self.decay, weights)
        y = y[:, :2] + y[:, 2:].flip(-1)
        return y[:, 0].view(b, c, h, w) + y[:, 1].view(b, c, w, h).transpose(2, 3)


@CASES.module(image, 10, 14)
class GlobalResponse(nn.Module):
    """Responses normalised by their norm over the picture, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift, self.line = nn.Parameter(rand(8)), nn.Parameter(rand(8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 2, 3, 1)
        y = F.silu(self.line(F.layer_norm(y, (8,))))
        g = torch.linalg.vector_norm(y, dim=(1, 2), keepdim=True)
        y = self.gain * (y * (g / (g.mean(-1, keepdim=True) + 1e-6))) + self.shift + y
        return y.permute(0, 3, 1, 2)


@CASES.module(image, 8, 12)
class SpaceToDepthStem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(32, 8, 3, padding=1, padding_mode="reflect"), nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.norm(self.conv(F.pixel_unshuffle(x, 2))), 0.1)
        y = torch.cat([y, F.max_pool2d(y, 3, 1, 1), F.avg_pool2d(y, 3, 1, 1, count_include_pad=False)], 1)
        return F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)


@CASES.module(image, 9, 13)
class AntialiasedDown(nn.Module):
    """A blur by binomial weights before each step down, as a depthwise convolution of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        row = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
        self.register_buffer("blur", (row[:, None] * row).expand(8, 1, 4, 4))
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(self.conv(x).relu(), (1, 2, 1, 2), mode="replicate")
        return F.conv2d(y, self.blur, stride=2, groups=8)


@CASES.module(image, 12, 16)
class CrissCross(nn.Module):
    """Attention over a pixel's row and its column, both in one softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 8, 1)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        h, w = x.shape[2:]
        along_column = torch.einsum("bchw,bcgw->bhwg", q, k)
        along_column = along_column.masked_fill(torch.eye(h, dtype=torch.bool)[:, None], -torch.inf)
        both = torch.cat([along_column, torch.einsum("bchw,bchg->bhwg", q, k)], -1).softmax(-1)
        a, b = both.split([h, w], -1)
        return x + self.gamma * (torch.einsum("bhwg,bcgw->bchw", a, v) + torch.einsum("bhwg,bchg->bchw", b, v))


@CASES.module(lambda n: (randn(1, 3, n, n), rand(1, 5, 4)), 16, 24)
class BoxPrompts(nn.Module):
    """Boxes as sums of random Fourier features of their corners, and masks as products with them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", randn(2, 4))
        self.kinds, self.net = nn.Embedding(2, 8), nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GELU())

    def _encode(self, xy: Tensor) -> Tensor:
        turned = (2 * xy - 1) @ self.waves * (2 * math.pi)
        return torch.cat([turned.sin(), turned.cos()], -1)

    def forward(self, x: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        f = self.net(x)
        h, w = f.shape[-2:]
        ys, xs = (torch.ones(h, w).cumsum(a) - 0.5 for a in (0, 1))
        f = f + self._encode(torch.stack([xs / w, ys / h], -1)).permute(2, 0, 1)
        corners = self._encode(boxes.reshape(1, 5, 2, 2)) + self.kinds.weight
        masks = torch.einsum("bqc,bchw->bqhw", corners.sum(2), f)
        return masks, (masks > 0).flatten(2).sum(-1)


@CASES.module(words, 6, 10)
class ParallelBlock(nn.Module):
    """Attention and MLP side by side from one norm, queries and keys normalised, biases by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(16, bias=False), nn.Linear(16, 48 + 64)
        self.out, self.qn, self.kn = nn.Linear(16 + 32, 16), nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        qkv, gated = self.inner(self.norm(x)).split([48, 64], -1)
        q, k, v = qkv.unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        i = torch.arange(x.shape[1])
        slopes = 2.0 ** -torch.arange(1.0, 5.0)
        bias = -(i[:, None] - i).clamp_min(0) * slopes[:, None, None]
        bias = bias.masked_fill(i > i[:, None], -torch.inf)
        y = F.scaled_dot_product_attention(self.qn(q), self.kn(k), v, attn_mask=bias)
        a, b = gated.chunk(2, -1)
        return x + self.out(torch.cat([y.transpose(1, 2).flatten(2), F.silu(a) * b], -1))


@CASES.module(words, 7, 11)
class DifferentialAttention(nn.Module):
    """The difference of two softmaxes, with a learned share, and a norm for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.l1, self.l2 = nn.Parameter(randn(4) / 4), nn.Parameter(randn(4) / 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (z.unflatten(-1, (2, 2, 4)).permute(2, 3, 0, 1, 4) for z in (q, k))
        scores = (q @ k.mT / 2).softmax(-1)
        share = (self.l1 * self.l2).sum().exp() - 0.2
        y = (scores[:, 0] - share * scores[:, 1]) @ v.unflatten(-1, (2, 8)).permute(2, 0, 1, 3)
        y = F.rms_norm(y, (8,)) * 0.8
        return self.out(y.permute(1, 2, 0, 3).flatten(2))


@CASES.module(words, 8, 12)
class GatedDecayAttention(nn.Module):
    """Linear attention with a decay that data decide, written with running sums in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.f = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x) / 4, self.v(x)
        g = F.logsigmoid(self.f(x)).cumsum(1)
        scores = ((q * g.exp()) @ (k * (-g).exp()).mT).tril()
        return F.silu(scores @ v)


@CASES.module(words, 6, 9)
class HashedExperts(nn.Module):
    """Tokens routed by the sign pattern of projections; each pattern has a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("planes", randn(16, 2))
        self.weights = nn.Parameter(randn(4, 16, 16) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        bits = (x @ self.planes > 0).long()
        expert = (bits * torch.tensor([1, 2])).sum(-1)
        y = torch.einsum("bnd,bnde->bne", x, self.weights[expert])
        return y, F.one_hot(expert, 4).float().mean((0, 1))


@CASES.module(words, 9, 12)
class TokenMerge(nn.Module):
    """The two most alike tokens of alternate sets become one, three times at once."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, ::2], x[:, 1::2]
        alike = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT
        best, place = alike.max(-1)
        order = best.argsort(-1, descending=True)
        away, kept = order[:, :3, None], order[:, 3:, None]
        target = place.gather(1, order[:, :3])[..., None].expand(-1, -1, 16)
        merged = b.scatter_reduce(1, target, a.gather(1, away.expand(-1, -1, 16)), "mean", include_self=True)
        return torch.cat([a.gather(1, kept.expand(-1, a.shape[1] - 3, 16)), merged], 1)


@CASES.module(lambda n: (randint(0, 40, (2, n)),), 7, 10)
class TiedMaskedModel(nn.Module):
    """Words and positions, a masked convolution block, logits by the table of words itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(40, 16, max_norm=None), nn.LayerNorm(16)
        self.conv = nn.Conv1d(16, 16, 3, padding=1, groups=4)
        self.bias = nn.Parameter(torch.zeros(40))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        seen = ids.ne(0).unsqueeze(-1)
        place = (seen.squeeze(-1).cumsum(1) * seen.squeeze(-1)).float()
        angle = place[..., None] / 100 ** (torch.arange(8) / 8)
        x = self.table(ids) * 4.0 + torch.stack([angle.sin(), angle.cos()], -1).flatten(2)
        x = self.norm(x + self.conv((x * seen).mT).mT) * seen
        logits = F.linear(x, self.table.weight, self.bias)
        return logits, F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=0)


@CASES.function(lambda n: (randn(3, n, 20), randint(0, 20, (3, n))), 6, 9)
def distilled_loss(student: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Divergences of softened distributions, and ranks of the right answers."""
    teacher = (student.detach() * 0.5).roll(1, -1)
    loss = F.kl_div(
        (student / 2).log_softmax(-1), (teacher / 2).log_softmax(-1), reduction="batchmean", log_target=True
    )
    right = student.gather(-1, labels[..., None])
    return loss, (student > right).sum(-1) + 1


@CASES.function(lambda n: (randn(2, n, 24),), 5, 8)
def contrastive_steps(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Min-p and typical filters over sorted probabilities, with the sort undone."""
    p = logits.softmax(-1)
    kept = p >= 0.1 * p.amax(-1, keepdim=True)
    entropy = -(p * p.clamp_min(1e-9).log()).sum(-1, keepdim=True)
    order = (p.clamp_min(1e-9).log().neg() - entropy).abs().argsort(-1)
    typical = p.gather(-1, order).cumsum(-1) < 0.9
    back = torch.zeros_like(typical).scatter(-1, order, typical)
    return logits.masked_fill(~kept, -torch.inf), back


@CASES.function(lambda n: (rand(1, 3, n, n + 2),), 16, 22)
def jpeg_like(x: Tensor) -> Tensor:
    """Luma and chroma, cosine transforms of blocks of eight as a convolution, rounded and turned back."""
    n = x.shape[-2] // 8 * 8
    turn = torch.tensor([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])
    y = torch.einsum("oc,bchw->bohw", turn, x[..., :n, :16]) * 255
    k, i = torch.arange(8.0)[:, None], torch.arange(8.0)
    basis = (math.pi / 8 * (i + 0.5) * k).cos() * torch.where(k == 0, math.sqrt(1 / 8), 0.5)
    blocks = y.unfold(2, 8, 8).unfold(3, 8, 8)
    return torch.round(basis @ blocks @ basis.T / 16 + 0.01)


@CASES.function(lambda n: (rand(2, 3, n, n),), 12, 18)
def colour_jitter(x: Tensor) -> Tensor:
    """Brightness, contrast about the mean grey, saturation, a gamma curve, normalisation."""
    grey = (x * torch.tensor([0.2989, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    y = (1.2 * x).clamp(0, 1)
    y = 0.8 * y + 0.2 * grey.mean((2, 3), keepdim=True)
    y = (1.3 * y - 0.3 * grey).clamp(1e-4, 1) ** 0.8
    return (y - torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)


@CASES.function(lambda n: (randn(2, n, 8), rand(2, n)), 9, 13)
def capsule_routing(votes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Agreement by three rounds of softmax and squashing."""
    v, logits = votes.unflatten(-1, (2, 4)), torch.zeros(votes.shape[0], votes.shape[1], 2)
    out = v[:, 0]
    for _ in range(3):
        c = logits.softmax(-1) * weights[..., None]
        s = (c[..., None] * v).sum(1)
        n2 = s.square().sum(-1, keepdim=True)
        out = s * n2 / ((1 + n2) * (n2 + 1e-8).sqrt())
        logits = logits + (v * out[:, None]).sum(-1)
    return out, out.norm(dim=-1)


def _layer_scale(scale: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * scale


@CASES.module(words, 6, 10)
class WrappedLayers(nn.Module):
    """Hooks, closures and a dictionary of modules, as adapters of pretrained nets are put in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(16, 16) for name in ("query", "value")})
        self.low, self.high = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.layers["query"].register_forward_hook(lambda _, given, y: y + self.high(self.low(given[0])))
        self.scales = {name: _layer_scale(s) for name, s in (("query", 0.5), ("value", 2.0))}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = {name: self.scales[name](layer(x)) for name, layer in self.layers.items()}
        out["both"] = torch.addcmul(out["query"], out["value"], x, value=0.1)
        return out
