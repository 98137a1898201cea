"""Newcomer cases as repositories of vision, speech, diffusion, tables and simulation write their own small parts.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (rand(1, 3, n, n),), 24, 32)
class ResizedPositions(nn.Module):
    """A vision transformer whose grid of positions is resized by the share of the training size."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.positions = nn.Parameter(randn(1, 16, 7, 7) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        at = F.interpolate(self.positions, size=x.shape[-2:], mode="bicubic", align_corners=False)
        return (x + at).flatten(2).transpose(1, 2)


@CASES.module(lambda n: (rand(1, 8, n, n), rand(1, 8, n // 2, n // 2)), 20, 28)
class NearestPyramid(nn.Module):
    """A feature pyramid that mixes scales by nearest elements of odd factors."""

    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.Conv2d(8, 8, 1)

    def forward(self, fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
        up = F.interpolate(coarse, size=fine.shape[-2:], mode="nearest-exact")
        down = F.interpolate(fine, scale_factor=0.6, mode="nearest")
        return self.lateral(fine) + up, down


@CASES.module(lambda n: (randn(2, n, 16),), 10, 15)
class RelativeBias(nn.Module):
    """Swin's second version: cosine attention, biases of a small network over log-spaced distances."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(16, 48), nn.Parameter(torch.zeros(4, 1, 1) + 2.3)
        self.bias = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 4, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * self.scale.clamp(max=math.log(100.0)).exp()
        apart = torch.arange(n)[:, None] - torch.arange(n)[None]
        spaced = torch.sign(apart) * torch.log2(apart.abs() + 1.0) / 3
        scores = scores + 16 * torch.sigmoid(self.bias(spaced[..., None].float())).permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c)


@CASES.module(lambda n: (randn(2, 16, n),), 24, 31)
class SqueezedResidual1d(nn.Module):
    """ECAPA's block: a chain over split channels, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Conv1d(4, 4, 3, dilation=2, padding=2) for _ in range(3))
        self.squeeze = nn.Sequential(nn.Conv1d(16, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.split(4, 1)
        kept, last = [first], torch.zeros_like(first)
        for step, part in zip(self.steps, rest, strict=True):
            last = F.relu(step(part + last))
            kept.append(last)
        y = torch.cat(kept, 1)
        return x + y * self.squeeze(y.mean(-1, keepdim=True))


@CASES.function(lambda n: (randn(2, 4, n, n), randn(2, 4, n, n), torch.tensor([3, 7])), 8, 12)
def ancestral_step(x: Tensor, predicted: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a diffusion sampler by velocity, with dynamic thresholds."""
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 10), 0)
    a, before = kept[t].view(-1, 1, 1, 1), kept[(t - 1).clamp(min=0)].view(-1, 1, 1, 1)
    start = a.sqrt() * x - (1 - a).sqrt() * predicted
    limit = torch.quantile(start.flatten(1).abs(), 0.95, dim=1).clamp(min=1.0).view(-1, 1, 1, 1)
    start = start.clamp(-limit, limit) / limit
    variance = (1 - before) / (1 - a) * (1 - a / before)
    mean = before.sqrt() * (1 - a / before) / (1 - a) * start + (a / before).sqrt() * (1 - before) / (1 - a) * x
    return mean, variance.clamp(min=1e-20).log()


@CASES.function(lambda n: (randn(n, 4).abs(), randn(n, 4).abs()), 9, 14)
def complete_box_loss(a: Tensor, b: Tensor) -> Tensor:
    """Overlap, distance of centres and aspect of boxes by centre and size."""
    low, high = [torch.cat([x[:, :2] - x[:, 2:] / 2, x[:, :2] + x[:, 2:] / 2], 1) for x in (a, b)]
    both = (torch.min(low[:, 2:], high[:, 2:]) - torch.max(low[:, :2], high[:, :2])).clamp(0).prod(1)
    union = a[:, 2:].prod(1) + b[:, 2:].prod(1) - both + 1e-7
    hull = torch.max(low[:, 2:], high[:, 2:]) - torch.min(low[:, :2], high[:, :2])
    aspect = 4 / math.pi**2 * (torch.atan2(a[:, 2], a[:, 3]) - torch.atan2(b[:, 2], b[:, 3])).pow(2)
    overlap = both / union
    distance = (a[:, :2] - b[:, :2]).pow(2).sum(1) / hull.pow(2).sum(1)
    return 1 - (overlap - distance - aspect * aspect / (1 - overlap + aspect + 1e-7))


@CASES.module(lambda n: (randint(0, 30, (2, n)), randint(1, n, (2,))), 11, 17)
class WordsInTime(nn.Module):
    """Sums of character embeddings up to a length, with a highway and masked extremes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gate = nn.Embedding(30, 12, padding_idx=0), nn.Linear(12, 24)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        inside = torch.arange(ids.shape[1])[None] < lengths[:, None]
        x = self.table(ids)
        kept, turned = self.gate(x).chunk(2, -1)
        x = torch.lerp(x, turned.tanh(), kept.sigmoid())
        most = x.masked_fill(~inside[..., None], float("-inf")).amax(1)
        mean = (x * inside[..., None]).sum(1) / lengths[:, None]
        return torch.cat([most, mean], -1)


@CASES.module(lambda n: (randn(n, 6), randint(0, n, (2, 3 * n))), 12, 20)
class GatedGraph(nn.Module):
    """Messages along edges, each node's softmax over its neighbours, a recurrent update."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.score, self.cell = nn.Linear(12, 6), nn.Linear(6, 1), nn.GRUCell(6, 6)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for _ in range(2):
            m = F.leaky_relu(self.message(torch.cat([x[source], x[target]], -1)), 0.2)
            score = self.score(m).squeeze(-1)
            top = score.new_full((x.shape[0],), -1e9).scatter_reduce(0, target, score, "amax")
            weight = (score - top[target]).exp()
            total = torch.zeros(x.shape[0]).index_add(0, target, weight)
            pooled = torch.zeros_like(x).index_add(0, target, m * (weight / (total[target] + 1e-9))[:, None])
            x = self.cell(pooled, x)
        return x


@CASES.function(lambda n: (randn(3, n), rand(3, n)), 16, 21)
def forward_rates(curve: Tensor, dates: Tensor) -> tuple[Tensor, Tensor]:
    """Discount factors by linear interpolation between sorted dates, and what they say of rates."""
    at = torch.sort(dates, -1).values
    wanted = torch.linspace(0.1, 0.9, 7).expand(3, 7).contiguous()
    right = torch.searchsorted(at, wanted).clamp(1, at.shape[-1] - 1)
    t0, t1 = at.gather(-1, right - 1), at.gather(-1, right)
    y0, y1 = curve.gather(-1, right - 1), curve.gather(-1, right)
    level = torch.lerp(y0, y1, ((wanted - t0) / (t1 - t0 + 1e-6)).clamp(0, 1))
    discount = torch.exp(-level * wanted * 0.1)
    return discount, -torch.diff(discount.log(), dim=-1) / 0.1


@CASES.function(lambda n: (randn(n, 3), randn(n, 3)), 10, 13)
def leapfrog_bodies(place: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
    """Three steps of softened gravity, and the energy after them."""
    for _ in range(3):
        apart = place[None] - place[:, None]
        pull = (apart * (apart.square().sum(-1, keepdim=True) + 0.1).rsqrt() ** 3).sum(1)
        speed = speed + 0.005 * pull
        place = place + 0.01 * speed
    distance = torch.cdist(place, place)
    rows = torch.triu_indices(place.shape[0], place.shape[0], 1)
    potential = -(1 / (distance[rows[0], rows[1]] + 0.1)).sum()
    return place, 0.5 * speed.square().sum() + potential


@CASES.module(lambda n: (randn(2, n, 8), rand(2, n)), 12, 18)
class IrregularAttention(nn.Module):
    """Learned sines of time stamps, and attention of fixed queries over them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.waves = nn.Linear(1, 1), nn.Linear(1, 7)
        self.queries, self.keys = nn.Parameter(rand(5)), nn.Linear(8, 8)

    def _times(self, t: Tensor) -> Tensor:
        t = t.unsqueeze(-1)
        return torch.cat([self.linear(t), torch.sin(self.waves(t))], -1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scores = torch.einsum("qd,bnd->bqn", self._times(self.queries), self.keys(self._times(t)))
        return torch.einsum("bqn,bnc->bqc", (scores / 8**0.5).softmax(-1), x)


@CASES.function(lambda n: (rand(2, n, 5) * 4,), 14, 20)
def tabular_bins(x: Tensor) -> tuple[Tensor, Tensor]:
    """Piecewise linear encodings of columns by their quantiles, and ranks of rows."""
    edges = torch.quantile(x.reshape(-1, 5), torch.linspace(0, 1, 5), dim=0).T
    width = (edges[:, 1:] - edges[:, :-1]).clamp(min=1e-3)
    encoded = ((x[..., None] - edges[:, :-1]) / width).clamp(0, 1)
    ranks = x.argsort(dim=1, stable=True).argsort(1)
    return encoded.flatten(2), ranks


@CASES.module(lambda n: (randn(1, 2, n),), 64, 81)
class BandSplit(nn.Module):
    """Bands of a spectrogram, each normalised and projected alone, and a mask back to the wave."""

    def __init__(self) -> None:
        super().__init__()
        self.bands = [4, 5, 8]
        self.norms = nn.ModuleList(nn.LayerNorm(2 * b) for b in self.bands)
        self.maps = nn.ModuleList(nn.Linear(2 * b, 2 * b) for b in self.bands)

    def forward(self, x: Tensor) -> Tensor:
        window = torch.hann_window(32)
        spectrum = torch.stft(x[0], 32, 8, window=window, return_complex=True)
        parts = []
        for norm, linear, part in zip(self.norms, self.maps, spectrum.split(self.bands, 1), strict=True):
            flat = torch.view_as_real(part).permute(0, 2, 1, 3).flatten(2)
            mask = linear(norm(flat)).unflatten(2, (part.shape[1], 2)).permute(0, 2, 1, 3).contiguous()
            parts.append(part * torch.view_as_complex(mask))
        return torch.istft(torch.cat(parts, 1), 32, 8, window=window, length=x.shape[-1])


@CASES.function(lambda n: (randn(n, n), rand(n)), 7, 10)
def graph_laplacian(a: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """A normalised Laplacian, its diffusion by Taylor steps, and what flows to each node."""
    a = ((a + a.T) / 2).abs().fill_diagonal_(0)
    root = a.sum(1).clamp(min=1e-6).rsqrt()
    laplacian = torch.eye(a.shape[0]) - root[:, None] * a * root
    term = flow = torch.diag_embed(weights)
    for k in range(1, 6):
        term = -laplacian @ term / k
        flow = flow + term
    return flow, torch.linalg.matrix_norm(flow, 1)


@CASES.function(lambda n: (rand(2, 1, n, n) > 0.4,), 10, 13)
def distance_to_edge(mask: Tensor) -> tuple[Tensor, Tensor]:
    """City-block distances inside of a mask by repeated erosion, and its filled columns."""
    inside, distance = mask.float(), torch.zeros(mask.shape)
    for _ in range(5):
        distance = distance + inside
        inside = -F.max_pool2d(-F.pad(inside, (1, 1, 1, 1)), 3, 1)
    filled = (mask.long().cummax(2).values & mask.flip(2).long().cummax(2).values.flip(2)).bool()
    return distance, filled


@CASES.module(lambda n: (randn(2, n, 8),), 9, 14)
class RunningMemory(nn.Module):
    """A delta-rule memory with a gate for each step, written and read in a Python loop over chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Linear(8, 26)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, beta, decay = self.maps(x).split([8, 8, 8, 1, 1], -1)
        k, beta, decay = F.normalize(k, dim=-1), beta.sigmoid(), decay.sigmoid()
        state, outs = x.new_zeros(x.shape[0], 8, 8), []
        for t in range(8):
            read = torch.einsum("bij,bi->bj", state, k[:, t])
            state = state * decay[:, t, :, None] + torch.einsum("bi,bj->bij", k[:, t], beta[:, t] * (v[:, t] - read))
            outs.append(torch.einsum("bij,bi->bj", state, q[:, t]))
        return torch.stack(outs, 1)


@CASES.function(lambda n: (randn(n, 5), randint(0, 4, (n,))), 16, 23)
def prototype_margin(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Class means, hardest positives and negatives of each row, and their margin."""
    hot = F.one_hot(labels, 4).float()
    means = hot.T @ x / hot.sum(0).clamp(min=1)[:, None]
    apart = torch.cdist(x, x)
    same = labels[:, None] == labels[None]
    far = apart.masked_fill(~same, -1.0).max(1).values
    near = apart.masked_fill(same, torch.inf).min(1).values
    return F.softplus(far - near.clamp(max=1e3)), (x @ means.T).log_softmax(-1).gather(1, labels[:, None]).squeeze(1)


@CASES.function(lambda n: (randn(n), randn(n)), 33, 50)
def cross_correlated_lag(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The lag of the largest phase correlation, and the autocorrelation of a signal."""
    n = a.shape[0]
    cross = torch.fft.rfft(a, 2 * n) * torch.fft.rfft(b, 2 * n).conj()
    phases = torch.fft.irfft(cross / (cross.abs() + 1e-9), 2 * n)
    auto = torch.fft.irfft(torch.fft.rfft(a, 2 * n).abs().square(), 2 * n)[:n]
    return torch.remainder(phases.argmax() + n, 2 * n) - n, auto / auto[0]
