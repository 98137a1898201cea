"""Newcomer cases of speech, of points put on a grid, and of graphs.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def frames(n: int) -> tuple[Tensor]:
    """Two sequences of sixteen channels."""
    return (randn(2, n, 16),)


def graph(n: int) -> tuple[Tensor, Tensor]:
    """Nodes of eight features, and edges as pairs of their places."""
    return randn(n, 8), randint(0, n, (2, 3 * n))


# --- speech ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(2, n),), 800, 1000)
class WaveFeatures(nn.Module):
    """wav2vec 2.0: strided convolutions of the wave, and places by a grouped convolution with normalised weights."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(a, 16, k, s, bias=False) for a, k, s in ((1, 10, 5), (16, 3, 2), (16, 2, 2))
        )
        self.norm, self.after = nn.GroupNorm(16, 16), nn.LayerNorm(16)
        self.place = nn.utils.parametrizations.weight_norm(nn.Conv1d(16, 16, 8, padding=4, groups=4), dim=2)

    def forward(self, wave: Tensor) -> Tensor:
        x = ((wave - wave.mean(-1, keepdim=True)) / (wave.var(-1, keepdim=True) + 1e-7).sqrt())[:, None]
        for k, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(self.norm(x) if k == 0 else x)
        made: Tensor = self.after((x + F.gelu(self.place(x)[:, :, :-1])).transpose(1, 2))
        return made


@CASES.module(frames, 11, 16)
class RelativeShift(nn.Module):
    """Conformer's attention: scores of relative places, shifted by a pad and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.place, self.out = nn.Linear(16, 48), nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.u, self.v = (nn.Parameter(randn(4, 4)) for _ in range(2))

    @staticmethod
    def code(n: int) -> Tensor:
        at = torch.arange(n - 1, -n, -1.0)
        angles = at[:, None] * torch.exp(torch.arange(0, 16, 2.0) * -(math.log(10000.0) / 16))
        made = torch.zeros(2 * n - 1, 16)
        made[:, 0::2] = angles.sin()
        made[:, 1::2] = angles.cos()
        return made

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, 4).unbind(2)
        p = self.place(self.code(n)).view(1, -1, 4, 4).transpose(1, 2)
        content = (q + self.u).transpose(1, 2) @ k.permute(0, 2, 3, 1)
        place = (q + self.v).transpose(1, 2) @ p.transpose(-2, -1)
        padded = F.pad(place, (1, 0)).view(b, 4, -1, n)
        place = padded[:, :, 1:].reshape(b, 4, n, -1)[..., :n]
        weights = torch.softmax((content + place) / 2, -1)
        made: Tensor = self.out((weights @ v.transpose(1, 2)).transpose(1, 2).reshape(b, n, 16))
        return made


@CASES.module(lambda n: (randn(2, 16, n), torch.tensor([n, n - 3])), 12, 17)
class SpeakerStatistics(nn.Module):
    """ECAPA: convolutions of split channels one after the other, squeezing, and mean and deviation by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=d, dilation=d) for d in (1, 2, 3))
        self.squeeze = nn.Sequential(nn.Conv1d(16, 4, 1), nn.ReLU(), nn.Conv1d(4, 16, 1), nn.Sigmoid())
        self.attend = nn.Sequential(nn.Conv1d(48, 8, 1), nn.Tanh(), nn.Conv1d(8, 16, 1))
        self.out = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 10))

    @staticmethod
    def statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        mean = (weights * x).sum(2)
        return mean, ((weights * (x - mean.unsqueeze(2)).pow(2)).sum(2)).clamp(1e-12).sqrt()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        first, *rest = torch.chunk(x, 4, dim=1)
        made, y = [first], first
        for part, conv in zip(rest, self.parts, strict=True):
            y = F.relu(conv(part + y if len(made) > 1 else part))
            made.append(y)
        x = torch.cat(made, 1)
        mask = (torch.arange(x.shape[-1]) < lengths[:, None])[:, None].to(x.dtype)
        x = x * self.squeeze((x * mask).sum(2, keepdim=True) / mask.sum(2, keepdim=True))
        mean, deviation = self.statistics(x, mask / mask.sum(2, keepdim=True))
        around = [s.unsqueeze(2).expand(-1, -1, x.shape[-1]) for s in (mean, deviation)]
        scores = self.attend(torch.cat([x, *around], 1)).masked_fill(mask == 0, float("-inf"))
        return F.normalize(self.out(torch.cat(self.statistics(x, scores.softmax(2)), 1)))


@CASES.module(lambda n: (randn(1, 8, n),), 9, 13)
class ShortTimeVocoder(nn.Module):
    """iSTFTNet: upsampling, residual blocks of several widths, then magnitudes and phases of short frames."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(8, 8, 8, 4, padding=2)
        self.blocks = nn.ModuleList(nn.Conv1d(8, 8, k, padding=(k - 1) // 2) for k in (3, 7))
        self.out = nn.Conv1d(8, 18, 7)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, mel: Tensor) -> Tensor:
        x = self.up(F.leaky_relu(mel, 0.1))
        x = torch.stack([b(F.leaky_relu(x, 0.1)) + x for b in self.blocks]).mean(0)
        x = self.out(F.pad(F.leaky_relu(x), (4, 3), mode="reflect"))
        magnitude, phase = torch.exp(x[:, :9].clamp(max=4.0)), torch.sin(x[:, 9:])
        return torch.istft(magnitude * torch.exp(phase * 1j), 16, 4, 16, self.window)


@CASES.function(lambda n: (randn(2, n, 6).log_softmax(-1), randint(1, 6, (2, 4))), 9, 13)
def transducer_lattice(scores: Tensor, labels: Tensor) -> Tensor:
    """Connectionist losses by the forward recursion over a lattice of labels and blanks."""
    b, t, _ = scores.shape
    states = torch.zeros(b, 2 * labels.shape[1] + 1, dtype=torch.long)
    states[:, 1::2] = labels
    emitted = scores.gather(2, states[:, None].expand(-1, t, -1))
    skips = F.pad((states[:, 2:] != states[:, :-2]) & (states[:, 2:] != 0), (2, 0))
    low = torch.tensor(-1e30)
    alpha = torch.full_like(emitted[:, 0], -1e30)
    alpha[:, :2] = emitted[:, 0, :2]
    for k in range(1, t):
        one = F.pad(alpha[:, :-1], (1, 0), value=-1e30)
        two = torch.where(skips, F.pad(alpha[:, :-2], (2, 0), value=-1e30), low)
        alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + emitted[:, k]
    return -torch.logaddexp(alpha[:, -1], alpha[:, -2])


@CASES.module(lambda n: (randn(1, n, 8), randint(1, 4, (1, n))), 5, 7)
class LengthRegulator(nn.Module):
    """FastSpeech: every phoneme's state as often as its duration says, then a pitch curve quantised by bounds."""

    bins: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.pitch, self.codes, self.out = nn.Linear(8, 1), nn.Embedding(16, 8), nn.Linear(8, 5)
        self.register_buffer("bins", torch.linspace(-2, 2, 15))

    def forward(self, x: Tensor, durations: Tensor) -> Tensor:
        long = torch.repeat_interleave(x[0], durations[0], dim=0)
        pitch = self.pitch(long).squeeze(-1)
        made: Tensor = self.out(long + self.codes(torch.bucketize(pitch, self.bins)))
        return made


# --- points and graphs ---------------------------------------------------------------------------------------------


@CASES.module(lambda n: (rand(n, 4) * 8,), 60, 85)
class PillarScatter(nn.Module):
    """PointPillars: a lidar's points by columns, a maximum for each, put into a picture seen from above."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(9, 12, bias=False), nn.BatchNorm1d(12, eps=1e-3)
        self.backbone = nn.Conv2d(12, 8, 3, padding=1)

    def forward(self, points: Tensor) -> Tensor:
        cell = points[:, :2].floor().long().clamp(0, 7)
        at = cell[:, 1] * 8 + cell[:, 0]
        count = torch.zeros(64).index_add_(0, at, torch.ones(points.shape[0])).clamp_(min=1)
        mean = torch.zeros(64, 3).index_add_(0, at, points[:, :3]) / count[:, None]
        x = torch.cat([points, points[:, :3] - mean[at], points[:, :2] - cell - 0.5], 1)
        x = F.relu(self.norm(self.layer(x)))
        best = torch.zeros(64, 12).scatter_reduce_(0, at[:, None].expand_as(x), x, "amax", include_self=True)
        made: Tensor = self.backbone(best.t().reshape(1, 12, 8, 8))
        return made


@CASES.module(graph, 10, 15)
class GraphConvolution(nn.Module):
    """Messages with both ends' degrees, loops added, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        n = x.size(0)
        loops = torch.arange(n).unsqueeze(0).repeat(2, 1)
        row, col = torch.cat([edges, loops], dim=1)
        degree = torch.zeros(n, dtype=x.dtype).scatter_add_(0, col, torch.ones(row.size(0), dtype=x.dtype))
        root = degree.pow(-0.5).masked_fill_(degree == 0, 0.0)
        weight = root[row] * root[col]
        for layer in (self.first, self.second):
            messages = layer(x)[row] * weight.unsqueeze(-1)
            x = torch.zeros(n, messages.size(-1)).index_add(0, col, messages).relu()
        return F.log_softmax(x, dim=-1)


@CASES.module(graph, 9, 14)
class PrincipalAggregation(nn.Module):
    """Mean, maximum, minimum and deviation of the neighbours, each scaled by the degree in three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 8), nn.Linear(8 * 12, 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        n = x.shape[0]
        messages = self.before(torch.cat([x[source], x[target]], -1))
        at = target[:, None].expand_as(messages)
        parts = [torch.zeros(n, 8).scatter_reduce(0, at, messages, kind, include_self=False)
                 for kind in ("mean", "amax", "amin")]  # fmt: skip
        squares = torch.zeros(n, 8).scatter_reduce(0, at, messages * messages, "mean", include_self=False)
        deviation = (squares - parts[0] ** 2).relu().add(1e-5).sqrt()
        degree = torch.bincount(target, minlength=n)[:n].clamp(min=1).to(x.dtype)
        scale = (degree + 1).log()[:, None] / 1.4
        all_ = torch.cat([*parts, deviation], -1)
        made: Tensor = self.after(torch.cat([all_, all_ * scale, all_ / scale], -1))
        return x + made
