"""Newcomer models in the manner of well-known libraries: pictures, graphs, forecasts, ranking, control and sound.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()

# --- pictures --------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 8, 6, 6),), 2, 3, 1)
class LambdaLayer(nn.Module):
    """LambdaNetworks: content and place become small linear functions, by a 3-D convolution over the values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(8, 4 * 4, 1, bias=False), nn.Conv2d(8, 4, 1, bias=False)
        self.value = nn.Conv2d(8, 6, 1, bias=False)
        self.norm_query, self.norm_value = nn.BatchNorm2d(16), nn.BatchNorm2d(6)
        self.places = nn.Conv3d(1, 4, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q = self.norm_query(self.query(x)).reshape(b, 4, 4, h * w).transpose(-1, -2)
        v = self.norm_value(self.value(x)).reshape(b, 6, h * w).transpose(-1, -2)
        content = F.softmax(self.key(x).reshape(b, 4, h * w), dim=-1) @ v
        place = self.places(v.transpose(-1, -2).reshape(b, 1, 6, h, w)).reshape(b, 4, 6, h * w).permute(0, 3, 1, 2)
        y = q @ content.unsqueeze(1) + torch.einsum("bhnk,bnkv->bhnv", q, place)
        return y.transpose(-1, -2).reshape(b, -1, h, w)


@CASES.module(lambda n: (randn(n, 3, 16, 16),), 2, 4)
class MaskUnits(nn.Module):
    """Hiera: tokens are unrolled so that a pooling by the maximum of neighbours is a reduction over one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Conv2d(3, 8, 3, 2, 1), nn.Parameter(randn(1, 64, 8) / 50)
        self.norm, self.qkv, self.project = nn.LayerNorm(8), nn.Linear(8, 48), nn.Linear(8, 16)
        self.head = nn.Linear(16, 5)

    @staticmethod
    def _unrolled(x: Tensor, size: list[int], schedule: list[tuple[int, int]]) -> Tensor:
        b, _, c = x.shape
        x = x.view(b, *size, c)
        for strides in schedule:
            size = [i // s for i, s in zip(size, strides, strict=True)]
            shape = [b, *itertools.chain.from_iterable(zip(size, strides, strict=True)), c]
            x = x.view(shape).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
            b *= math.prod(strides)
        return x.reshape(-1, math.prod(s for pair in schedule for s in pair), math.prod(size), c).transpose(1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.place
        x = self._unrolled(x, [8, 8], [(2, 2), (2, 2)]).transpose(1, 2).reshape(x.shape[0], -1, 8)
        y = self.norm(x)
        windows = x.shape[1] // 16
        qkv = self.qkv(y).reshape(x.shape[0], -1, windows, 3, 2, 8).permute(3, 0, 4, 2, 1, 5)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q.view(x.shape[0], 2, windows, 4, -1, 8).amax(dim=3)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 3).reshape(x.shape[0], -1, 16)
        z = z + self.project(y).view(x.shape[0], 4, -1, 16).amax(dim=1)
        return self.head(z.mean(1)), z


@CASES.module(lambda n: (randn(2, 6, n, n),), 8, 11)
class FilterResponse(nn.Module):
    """EvoNorm and filter response norms: statistics without a batch, learned thresholds, an inception of depthwise."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.gain, self.shift = (nn.Parameter(rand(1, 6, 1, 1) + 0.5) for _ in range(3))
        self.tau, self.eps = nn.Parameter(-rand(1, 6, 1, 1)), nn.Parameter(torch.tensor(-6.0))
        self.square = nn.Conv2d(2, 2, 3, padding=1, groups=2)
        self.wide, self.tall = (nn.Conv2d(1, 1, k, padding=(k[0] // 2, k[1] // 2)) for k in ((1, 11), (11, 1)))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        deviation = x.view(b, 2, c // 2, h, w).var(dim=(2, 3, 4), keepdim=True).add(1e-5).sqrt()
        x = (x * torch.sigmoid(self.v * x)).view(b, 2, c // 2, h, w).div(deviation).view(b, c, h, w)
        x = x * self.gain + self.shift
        rest, square, wide, tall = torch.split(x, (2, 2, 1, 1), dim=1)
        x = x + torch.cat((rest, self.square(square), self.wide(wide), self.tall(tall)), dim=1)
        x = x * torch.rsqrt(x.square().mean((2, 3), keepdim=True) + self.eps.exp().abs())
        return torch.maximum(x * self.gain + self.shift, self.tau)


@CASES.module(lambda n: (randn(n, 3, 4, 8, 8), randn(n, 4)), 2, 3)
class PooledVideoAttention(nn.Module):
    """MViT: queries, keys and values are pooled by 3-D convolutions that the class token goes around."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv3d(3, 8, (2, 4, 4), (1, 2, 2), (1, 1, 1)), nn.Parameter(randn(1, 1, 8))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.pools = nn.ModuleList(
            nn.Conv3d(4, 4, 3, s, 1, groups=4, bias=False) for s in ((1, 2, 2), (1, 4, 4), (1, 4, 4))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))
        self.skip = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))

    def _pooled(self, x: Tensor, thw: tuple[int, int, int], index: int) -> Tensor:
        token, x = x[:, :, :1, :], x[:, :, 1:, :]
        b, heads, _, c = x.shape
        x = x.reshape(b * heads, *thw, c).permute(0, 4, 1, 2, 3).contiguous()
        x = self.pools[index](x)
        x = torch.cat((token, x.reshape(b, heads, c, -1).transpose(2, 3)), dim=2)
        return self.norms[index](x)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = self.patch(x)
        thw = (x.shape[2], x.shape[3], x.shape[4])
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)), dim=1)
        qkv = self.qkv(x).reshape(x.shape[0], -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = (self._pooled(part, thw, i) for i, part in enumerate(qkv.unbind(0)))
        y = ((q * 4**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        y[:, :, 1:] += q[:, :, 1:]
        y = self.out(y.transpose(1, 2).flatten(2))
        rest = self.skip(x[:, 1:].transpose(1, 2).reshape(x.shape[0], 8, *thw)).flatten(2).transpose(1, 2)
        return (y + torch.cat((x[:, :1], rest), 1))[:, :2, :4].sum(1) * condition


@CASES.module(lambda n: (randn(n, 4, 8, 8), randn(n, 4, 8, 8)), 2, 1)
class FilteredSkips(nn.Module):
    """FreeU: half of a backbone's channels are scaled by its mean, low frequencies of a skip are scaled in Fourier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 3, padding=1)

    @staticmethod
    def _filtered(x: Tensor, threshold: int, scale: float) -> Tensor:
        b, c, h, w = x.shape
        spectrum = torch.fft.fftshift(torch.fft.fftn(x.float(), dim=(-2, -1)), dim=(-2, -1))
        mask = torch.ones((b, c, h, w))
        row, col = h // 2, w // 2
        mask[..., row - threshold : row + threshold, col - threshold : col + threshold] = scale
        spectrum = torch.fft.ifftshift(spectrum * mask, dim=(-2, -1))
        return torch.fft.ifftn(spectrum, dim=(-2, -1)).real.to(dtype=x.dtype)

    def forward(self, hidden: Tensor, skip: Tensor) -> Tensor:
        mean = hidden.mean(1).unsqueeze(1)
        flat = mean.view(hidden.shape[0], -1)
        low, high = flat.min(dim=-1, keepdim=True).values, flat.max(dim=-1, keepdim=True).values
        share = (mean - low[..., None, None]) / (high - low)[..., None, None]
        hidden = torch.cat([hidden[:, :2] * ((1.4 - 1) * share + 1), hidden[:, 2:]], dim=1)
        return self.conv(torch.cat([hidden, self._filtered(skip, 1, 0.2)], dim=1))


class _CausalConv3d(nn.Conv3d):
    """Pads in front of time only, or takes the frames that the last chunk left."""

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:  # type: ignore[override]
        padding = [self.padding[2], self.padding[2], self.padding[1], self.padding[1], 2 * self.padding[0], 0]
        if before is not None and padding[4] > 0:
            x = torch.cat([before, x], dim=2)
            padding[4] -= before.shape[2]
        return F.conv3d(F.pad(x, padding), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@CASES.module(lambda n: (randn(1, 3, 5, n, n),), 8, 12)
class CausalVideoEncoder(nn.Module):
    """Wan's autoencoder: a video in chunks of 1 and 4 frames, with a list of frames kept for each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _CausalConv3d(3, 6, 3, padding=1), _CausalConv3d(6, 6, 3, padding=1)
        self.gamma = nn.Parameter(torch.ones(6, 1, 1, 1))
        self.down = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(6, 4, 3, stride=2))

    def _chunk(self, x: Tensor, kept: list[Tensor | None]) -> Tensor:
        for k, conv in enumerate((self.first, self.second)):
            x = F.silu(F.normalize(x, dim=1) * 6**0.5 * self.gamma) if k else x
            tail = x[:, :, -2:].clone()
            if tail.shape[2] < 2 and kept[k] is not None:
                tail = torch.cat([kept[k][:, :, -1:], tail], dim=2)
            x, kept[k] = conv(x, kept[k]), tail
        b, c, t, h, w = x.shape
        x = self.down(x.permute(0, 2, 1, 3, 4).reshape(b * t, c, h, w))
        return x.view(b, t, *x.shape[1:]).permute(0, 2, 1, 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor | None] = [None, None]
        chunks = 1 + (x.shape[2] - 1) // 4
        parts = [self._chunk(x[:, :, :1] if i == 0 else x[:, :, 4 * i - 3 : 4 * i + 1], kept) for i in range(chunks)]
        mean, log_variance = torch.cat(parts, 2).chunk(2, dim=1)
        return torch.cat([mean, log_variance.clamp(-30, 20).exp()], 1)


# --- graphs ----------------------------------------------------------------------------------------------------------


def relations(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return randn(n, 6), randint(0, n, (2, 3 * n)), torch.arange(3 * n) % 3


@CASES.module(relations, 6, 9)
class RelationalGraph(nn.Module):
    """PyG's RGCN: weights of relations from few bases, a loop over relations that selects their edges, means."""

    def __init__(self) -> None:
        super().__init__()
        self.bases, self.share = nn.Parameter(randn(2, 6, 8) / 3), nn.Parameter(randn(3, 2))
        self.root, self.bias = nn.Parameter(randn(6, 8) / 3), nn.Parameter(randn(8))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        weight = (self.share @ self.bases.view(2, -1)).view(3, 6, 8)
        out = torch.zeros(x.size(0), 8)
        for i in range(3):
            edges = edge_index[:, edge_type == i]
            messages = x.index_select(0, edges[0])
            total = x.new_zeros(x.size(0), 6).scatter_add_(0, edges[1].view(-1, 1).expand_as(messages), messages)
            count = x.new_zeros(x.size(0)).scatter_add_(0, edges[1], torch.ones_like(edges[1], dtype=x.dtype))
            out = out + (total / count.clamp(min=1).unsqueeze(-1)) @ weight[i]
        return out + x @ self.root + self.bias


@CASES.module(
    lambda n: (
        {"user": randn(n, 4), "item": randn(5, 6)},
        {"buys": (randint(0, n, (7,)), randint(0, 5, (7,))), "bought": (randint(0, 5, (7,)), randint(0, n, (7,)))},
    ),
    4,
    6,
)
class KindsOfNodes(nn.Module):
    """DGL's heterogeneous attention: dictionaries of nodes by kind and edges by relation, softmax over arrivals."""

    ENDS = (("buys", "user", "item"), ("bought", "item", "user"))

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({"user": nn.Linear(4, 8), "item": nn.Linear(6, 8)})
        self.keys = nn.ParameterDict({name: randn(2, 4, 4) / 2 for name, _, _ in self.ENDS})
        self.prior = nn.ParameterDict({name: torch.ones(2) for name, _, _ in self.ENDS})

    def forward(
        self, nodes: dict[str, Tensor], edges: dict[str, tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, Tensor], Tensor]:
        h = {kind: F.gelu(self.embed[kind](x)).view(-1, 2, 4) for kind, x in nodes.items()}
        out, weights = {kind: torch.zeros_like(x) for kind, x in h.items()}, []
        for name, source, target in self.ENDS:
            start, end = edges[name]
            key = torch.einsum("ehd,hdf->ehf", h[source][start], self.keys[name])
            score = (key * h[target][end]).sum(-1) * self.prior[name] / 2.0
            index = end[:, None].expand_as(score)
            largest = score.new_full((h[target].shape[0], 2), -torch.inf).scatter_reduce(0, index, score, "amax")
            score = (score - largest[end]).exp()
            score = score / torch.zeros_like(largest).index_add_(0, end, score)[end].clamp_min(1e-16)
            out[target].index_add_(0, end, score[..., None] * h[source][start])
            weights.append(score)
        return {kind: h[kind].flatten(1) + x.flatten(1) for kind, x in out.items()}, torch.cat(weights)


@CASES.module(lambda n: (randn(2, n, 6), rand(2, n, n) > 0.6), 5, 8)
class SpatialEncodings(nn.Module):
    """Graphormer: shortest paths by Floyd and Warshall, degrees and distances as embeddings, a node for the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.inwards, self.outwards = nn.Linear(6, 8), nn.Embedding(16, 8), nn.Embedding(16, 8)
        self.distance, self.virtual = nn.Embedding(8, 2, padding_idx=7), nn.Embedding(1, 2)
        self.whole, self.attend = nn.Embedding(1, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    @staticmethod
    def _paths(linked: Tensor) -> Tensor:
        n = linked.shape[-1]
        far = torch.full(linked.shape, 510, dtype=torch.long)
        path = torch.where(linked, torch.ones_like(far), far)
        path.diagonal(dim1=1, dim2=2).fill_(0)
        for k in range(n):
            path = torch.minimum(path, path[:, :, k : k + 1] + path[:, k : k + 1, :])
        return path.clamp_max(7)

    def forward(self, x: Tensor, linked: Tensor) -> tuple[Tensor, Tensor | None]:
        b, n = linked.shape[:2]
        h = self.node(x) + self.inwards(linked.long().sum(1)) + self.outwards(linked.long().sum(2))
        h = torch.cat([self.whole.weight.unsqueeze(0).repeat(b, 1, 1), h], dim=1)
        bias = torch.zeros(b, 2, n + 1, n + 1)
        bias[:, :, 1:, 1:] = bias[:, :, 1:, 1:] + self.distance(self._paths(linked)).permute(0, 3, 1, 2)
        t = self.virtual.weight.view(1, 2, 1)
        bias[:, :, 1:, 0] += t
        bias[:, :, 0, :] += t
        y, weights = self.attend(h, h, h, attn_mask=bias.flatten(0, 1), need_weights=True)
        return y[:, 0], weights


@CASES.module(lambda n: (randn(n, 6), randint(0, n, (2, 2 * n)), torch.arange(n) % 2), 6, 10)
class JumpingLayers(nn.Module):
    """GIN with edges' sums, layers weighed by a recurrence over depth, a readout by graph of three moments."""

    def __init__(self) -> None:
        super().__init__()
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6)) for _ in range(3)
        )
        self.eps = nn.Parameter(randn(3) / 10)
        self.depth, self.weigh = nn.LSTM(6, 5, bidirectional=True, batch_first=True), nn.Linear(10, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        start, end = edge_index
        seen = []
        for mlp, eps in zip(self.mlps, self.eps, strict=True):
            total = torch.zeros_like(x).index_add(0, end, F.relu(x[start]))
            x = mlp((1 + eps) * x + total)
            seen.append(x)
        layers = torch.stack(seen, dim=1)
        share = self.weigh(self.depth(layers)[0]).squeeze(-1).softmax(dim=-1)
        x = (layers * share.unsqueeze(-1)).sum(dim=1)
        index = batch[:, None].expand_as(x)
        mean = x.new_zeros(2, 6).scatter_reduce(0, index, x, "mean", include_self=False)
        most = x.new_zeros(2, 6).scatter_reduce(0, index, x, "amax", include_self=False)
        square = x.new_zeros(2, 6).scatter_reduce(0, index, x * x, "mean", include_self=False)
        return torch.cat([mean, most, (square - mean * mean).clamp(min=1e-7).sqrt()], dim=1)


# --- forecasts -------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 24, 4),), 2, 3)
class PeriodsInTwoDimensions(nn.Module):
    """TimesNet: the strongest frequencies give periods, the series is folded by each and convolved in 2-D."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 2 * i + 1, padding=i) for i in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        deviation = torch.sqrt(torch.var(x - mean, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x = (x - mean) / deviation
        b, t, c = x.size()
        spectrum = torch.fft.rfft(x, dim=1)
        strength = spectrum.abs().mean(0).mean(-1)
        strength[0] = 0
        _, top = torch.topk(strength, 2)
        weights = torch.index_select(spectrum.abs().mean(-1), 1, top).softmax(1)
        folded = []
        for frequency in top.tolist():
            period = t // frequency
            length = -(-t // period) * period
            y = F.pad(x, (0, 0, 0, length - t)).reshape(b, length // period, period, c).permute(0, 3, 1, 2)
            y = torch.stack([F.gelu(conv(y.contiguous())) for conv in self.convs], -1).mean(-1)
            folded.append(y.permute(0, 2, 3, 1).reshape(b, -1, c)[:, :t, :])
        y = (torch.stack(folded, -1) * weights[:, None, None, :]).sum(-1) + x
        return y * deviation + mean


@CASES.module(lambda n: (randn(2, 2, n, 8), randn(2, 2, n, 8), randn(2, 2, n, 8)), 12, 20)
class ProbablySparse(nn.Module):
    """Informer: queries with the largest spread attend, the others take running sums; then a pooled convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sample", torch.tensor([0, 3, 5, 7, 11]))
        self.distil = nn.Sequential(
            nn.Conv1d(16, 16, 3, padding=1, padding_mode="circular"),
            nn.BatchNorm1d(16),
            nn.ELU(),
            nn.MaxPool1d(3, 2, 1),
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        b, h, length, d = q.shape
        scores = torch.matmul(q.unsqueeze(-2), k[:, :, self.sample][:, :, None].transpose(-2, -1)).squeeze(-2)
        spread = scores.max(-1)[0] - torch.div(scores.sum(-1), length)
        top = spread.topk(5, sorted=False)[1].sort(-1)[0]
        rows, heads = torch.arange(b)[:, None, None], torch.arange(h)[None, :, None]
        scores = torch.matmul(q[rows, heads, top, :], k.transpose(-2, -1)) / math.sqrt(d)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None, :].expand(b, h, -1, -1)
        scores.masked_fill_(later[rows, heads, top, :], -torch.inf)
        context = v.cumsum(dim=-2)
        context[rows, heads, top, :] = torch.matmul(torch.softmax(scores, dim=-1), v).type_as(context)
        y = context.transpose(1, 2).reshape(b, length, -1)
        return self.distil(y.permute(0, 2, 1)).transpose(1, 2), spread


@CASES.module(lambda n: (randn(n, 16), randn(n, 3, 20)), 3, 5)
class HierarchicalForecast(nn.Module):
    """N-HiTS: pooled inputs, few knots that are interpolated to the horizon, blocks that subtract what they explain."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.ModuleList(nn.MaxPool1d(k, k, ceil_mode=True) for k in (5, 3, 1))
        widths = [-(-16 // k) + 3 * 20 for k in (5, 3, 1)]
        self.layers = nn.ModuleList(nn.Linear(w, 16 + m) for w, m in zip(widths, (1, 2, 4), strict=True))
        self.modes = ("nearest", "linear", "cubic")

    def _knots(self, knots: Tensor, mode: str) -> Tensor:
        if mode == "cubic":
            return F.interpolate(knots[:, None, None, :], size=(1, 4), mode="bicubic")[:, 0, 0]
        return F.interpolate(knots[:, None, :], size=4, mode=mode)[:, 0]

    def forward(self, past: Tensor, covariates: Tensor) -> tuple[Tensor, Tensor]:
        residual, forecast = past.flip(dims=(-1,)), past[:, -1:].repeat(1, 4)
        parts = [forecast]
        for pool, layer, mode in zip(self.pools, self.layers, self.modes, strict=True):
            pooled = pool(residual.unsqueeze(1)).squeeze(1)
            theta = torch.relu(layer(torch.cat([pooled, covariates.reshape(len(past), -1)], dim=1)))
            backcast, knots = theta[:, :16], theta[:, 16:]
            residual = residual - backcast
            parts.append(self._knots(knots, mode))
            forecast = forecast + parts[-1]
        return forecast, torch.stack(parts, 1)


@CASES.module(lambda n: (randn(n, 12).cumsum(1), rand(n, 12) > 0.1), 3, 5)
class QuantisedTokens(nn.Module):
    """Chronos: a series is scaled by its mean, tokenised by boundaries, and its tokens' distribution decoded again."""

    def __init__(self) -> None:
        super().__init__()
        centres = torch.linspace(-4, 4, 21)
        self.register_buffer("centres", centres)
        ends = torch.tensor([-1e20]), torch.tensor([1e20])
        self.register_buffer("boundaries", torch.concat((ends[0], (centres[1:] + centres[:-1]) / 2, ends[1])))
        self.embed, self.cell, self.head = nn.Embedding(24, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 24)

    def forward(self, series: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        series = torch.where(seen, series, torch.nan)
        scale = torch.nansum(series.abs() * seen, dim=-1) / torch.nansum(seen, dim=-1)
        scale = torch.where(scale > 0, scale, 1.0)
        tokens = torch.bucketize(input=series / scale.unsqueeze(-1), boundaries=self.boundaries, right=True) + 2
        tokens = tokens.clamp_(0, 23)
        tokens[~seen] = 0
        tokens = torch.concat((tokens, torch.full((len(tokens), 1), 1)), dim=1)
        logits = self.head(self.cell(self.embed(tokens))[0][:, -1])
        value = self.centres[(logits.topk(3).indices - 3).clamp(0, 20)] * scale[:, None]
        return tokens, value, torch.nanquantile(series, torch.tensor([0.1, 0.5, 0.9]), dim=1).nan_to_num()


# --- ranking ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 10, 8), randint(0, 50, (n, 10)).sort(1)[0], torch.full((n,), 7)), 2, 4)
class SequentialTransducer(nn.Module):
    """HSTU: attention without softmax, gated by silu, with a bias by bucketed logarithms of elapsed time."""

    def __init__(self) -> None:
        super().__init__()
        self.uvqk, self.out = nn.Parameter(randn(8, 4 * 8) / 3), nn.Linear(8, 8)
        self.by_time, self.by_place = nn.Parameter(randn(17)), nn.Parameter(randn(2 * 10 - 1))

    def forward(self, x: Tensor, when: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        b, n, d = x.shape
        u, v, q, k = torch.split(F.silu(torch.mm(F.layer_norm(x, [d]).flatten(0, 1), self.uvqk)), [8, 8, 8, 8], dim=1)
        q, k, v = (t.view(b, n, 2, 4) for t in (q, k, v))
        t = F.pad(self.by_place[: 2 * n - 1], [0, n]).repeat(n)
        place = t[..., :-n].reshape(1, n, 3 * n - 2)[..., n - 1 : 1 - n] if n > 1 else self.by_place[:1].view(1, 1, 1)
        following = torch.cat([when, when[:, n - 1 : n]], dim=1)
        elapsed = following[:, 1:].unsqueeze(2) - following[:, :-1].unsqueeze(1)
        bucket = torch.clamp((torch.log(torch.abs(elapsed).clamp(min=1)) / 0.301).long(), min=0, max=16).detach()
        bias = place + torch.index_select(self.by_time, dim=0, index=bucket.view(-1)).view(b, n, n)
        score = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k) + bias.unsqueeze(1)) / n
        valid = torch.arange(n)[None, :] < lengths[:, None]
        score = score * torch.tril(torch.ones(n, n))[None, None] * valid[:, None, None, :]
        y = torch.einsum("bhnm,bmhd->bnhd", score, v).reshape(b * n, 8)
        y = self.out(u * F.layer_norm(y, [8])).view(b, n, d) + x
        last = y[torch.arange(b), lengths - 1]
        return y * valid.unsqueeze(-1), F.normalize(last, p=2.0, dim=-1, eps=1e-6)


@CASES.module(
    lambda n: (randint(0, 20, (3 * n,)), torch.arange(n + 1).square().clamp(max=3 * n), rand(n, 4), rand(3 * n)), 4, 6
)
class TasksWithExperts(nn.Module):
    """MMoE and PLE over jagged features: weighted bags by offsets, gates by task, a task that scales another."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 4, mode="sum", include_last_offset=True)
        self.largest = nn.EmbeddingBag(20, 4, mode="max", include_last_offset=True)
        self.experts = nn.Parameter(randn(3, 12, 6) / 3)
        self.gates = nn.ModuleList(nn.Linear(12, 3, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(6, 4), nn.PReLU(4), nn.Linear(4, 1)) for _ in range(2))

    def forward(self, values: Tensor, offsets: Tensor, dense: Tensor, weights: Tensor) -> dict[str, Tensor]:
        x = torch.cat([self.bag(values, offsets, weights), self.largest(values, offsets), dense.log1p()], dim=1)
        experts = torch.einsum("bi,eio->beo", x, self.experts).relu()
        mixed = [torch.einsum("be,beo->bo", gate(x).softmax(-1), experts) for gate in self.gates]
        click, buy = (tower(m).squeeze(-1).sigmoid() for tower, m in zip(self.towers, mixed, strict=True))
        return {"click": click, "click_and_buy": click * buy, "auc": (click[:, None] > buy[None, :]).float().mean()}


# --- control ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(4, n, 6), rand(4, n) > 0.7, (randn(1, n, 8), randn(1, n, 8))), 3, 5)
class MaskedRecurrence(nn.Module):
    """CleanRL's recurrent policy: an LSTM step by step, its state zeroed where an episode ended; log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.cell = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.LSTM(8, 8)
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(8, 1)
        for name, weight in self.cell.named_parameters():
            nn.init.constant_(weight, 0.1) if "bias" in name else nn.init.orthogonal_(weight, 1.0)

    def forward(
        self, x: Tensor, done: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        hidden, found = self.body(x), []
        for h, d in zip(hidden, done.to(x.dtype), strict=True):
            keep = (1.0 - d).view(1, -1, 1)
            h, state = self.cell(h.unsqueeze(0), (keep * state[0], keep * state[1]))
            found += [h]
        y = torch.flatten(torch.cat(found), 0, 1)
        policy = torch.distributions.Categorical(logits=self.actor(y))
        return policy.log_prob(policy.logits.argmax(-1)), policy.entropy() + self.critic(y).flatten(), state


@CASES.module(lambda n: (randn(n, 6), rand(n, 5)), 4, 7)
class ImplicitQuantiles(nn.Module):
    """IQN in a running normaliser: cosines of quantiles, noisy layers, Huber loss by quantile, buffers that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))
        self.register_buffer("count", torch.tensor(1e-4))
        self.body, self.cosines, self.head = nn.Linear(6, 8), nn.Linear(16, 8), nn.Linear(8, 3)

    def _update(self, x: Tensor) -> None:
        batch_mean, batch_var, n = x.mean(0), x.var(0, unbiased=False), x.shape[0]
        delta, total = batch_mean - self.mean, self.count + n
        m2 = self.var * self.count + batch_var * n + delta.square() * self.count * n / total
        self.mean.add_(delta * n / total)
        self.var.copy_(m2 / total)
        self.count += n

    def forward(self, x: Tensor, taus: Tensor) -> tuple[Tensor, Tensor]:
        self._update(x)
        x = ((x - self.mean) / torch.sqrt(self.var + 1e-8)).clamp_(-5, 5)
        waves = torch.cos(taus.unsqueeze(-1) * torch.arange(1, 17) * torch.pi)
        h = self.body(x).unsqueeze(1) * F.relu(self.cosines(waves))
        q = self.head(h)
        best = q.mean(1).argmax(1, keepdim=True)
        chosen = q.gather(2, best.unsqueeze(1).expand(-1, q.shape[1], 1)).squeeze(2)
        error = chosen.detach().unsqueeze(1) - chosen.unsqueeze(2)
        loss = (taus.unsqueeze(2) - (error < 0).float()).abs() * F.huber_loss(
            error, torch.zeros_like(error), reduction="none", delta=1.0
        )
        return chosen, loss.sum(2).mean(1)
