"""Newcomer cases that are functions: what people write between their layers, views and in-place writes among it.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, rand, randint, randn

CASES = Table()


def boxes(n: int) -> Tensor:
    """Corners of boxes, low before high."""
    low = rand(n, 2) * 8
    return torch.cat([low, low + rand(n, 2) * 4 + 0.1], -1)


@CASES.function(lambda n: (boxes(n), boxes(5)), 7, 11)
def box_iou_pairs(a: Tensor, b: Tensor) -> Tensor:
    def area(x: Tensor) -> Tensor:
        return (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])

    low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    return inter / (area(a)[:, None] + area(b) - inter)


@CASES.function(lambda n: (boxes(n), rand(n)), 9, 13)
def greedy_nms(b: Tensor, scores: Tensor) -> Tensor:
    order, kept = scores.argsort(descending=True), []
    while order.numel() > 0:
        i = order[0]
        kept.append(i)
        iou = box_iou_pairs(b[i][None], b[order[1:]])[0]
        order = order[1:][iou <= 0.3]
    return torch.stack(kept)


@CASES.function(lambda n: (boxes(n), rand(n)), 8, 12)
def soft_nms_scores(b: Tensor, scores: Tensor) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    iou = torch.triu(box_iou_pairs(b[order], b[order]), 1)
    compensate = iou.max(0).values
    decay = (torch.exp(-2 * (iou**2 - compensate[:, None] ** 2))).min(0).values
    return scores[order] * decay


@CASES.function(lambda n: (rand(n, 6), rand(n, 6) > 0.2), 5, 8)
def masked_standardise(x: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum(0, keepdim=True).clamp(min=1)
    mean = (x * mask).sum(0, keepdim=True) / count
    var = ((x - mean).square() * mask).sum(0, keepdim=True) / count
    return torch.where(mask, (x - mean) * torch.rsqrt(var + 1e-6), torch.zeros(()))


@CASES.function(lambda n: (randn(n, 8), rand(n, 8), rand(n, 8) < 0.1), 10, 14)
def generalised_advantages(rewards: Tensor, values: Tensor, done: Tensor) -> Tensor:
    advantage, out = torch.zeros(rewards.shape[0]), torch.zeros_like(rewards)
    for t in reversed(range(7)):
        live = 1.0 - done[:, t].float()
        delta = rewards[:, t] + 0.99 * values[:, t + 1] * live - values[:, t]
        advantage = delta + 0.99 * 0.95 * live * advantage
        out[:, t] = advantage
    return out


@CASES.function(lambda n: (randn(2, n, 20),), 3, 5)
def nucleus_filter(logits: Tensor) -> Tensor:
    ordered, index = logits.sort(-1, descending=True)
    drop = ordered.softmax(-1).cumsum(-1) > 0.9
    drop = F.pad(drop[..., :-1], (1, 0), value=False)
    return logits.masked_fill(drop.scatter(-1, index, drop), -torch.inf)


@CASES.function(lambda n: (randn(n, 30), randint(0, 30, (n, 6))), 3, 5)
def repetition_penalty(logits: Tensor, seen: Tensor) -> Tensor:
    score = logits.gather(1, seen)
    return logits.scatter(1, seen, torch.where(score < 0, score * 1.2, score / 1.2)).log_softmax(-1)


@CASES.function(lambda n: (randn(2, 3, n), randn(2, 3)), 8, 12)
def beam_step(logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = scores[..., None] + logits.log_softmax(-1)
    best, flat = total.flatten(1).topk(3)
    return best, flat // logits.shape[-1], flat % logits.shape[-1]


@CASES.function(lambda n: (randn(n, 5),), 6, 9)
def sinkhorn(scores: Tensor) -> Tensor:
    u, v = torch.zeros(scores.shape[0]), torch.zeros(5)
    for _ in range(5):
        u = -torch.logsumexp(scores + v, 1)
        v = -torch.logsumexp(scores + u[:, None], 0)
    return (scores + u[:, None] + v).exp()


@CASES.function(lambda n: (randn(n, n),), 6, 9)
def power_iteration(a: Tensor) -> tuple[Tensor, Tensor]:
    a = a @ a.T + torch.eye(a.shape[0]) * 2
    v = torch.ones(a.shape[0]) / math.sqrt(a.shape[0])
    for _ in range(6):
        v = F.normalize(a @ v, dim=0)
    return v @ a @ v, v


@CASES.function(lambda n: (randn(n, 12),), 8, 12)
def newton_schulz(g: Tensor) -> Tensor:
    x = g / (g.norm() + 1e-7)
    for _ in range(3):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


@CASES.function(lambda n: (randn(n, 4),), 7, 10)
def pairwise_hinge(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(7, 7, 1)
    d = F.pairwise_distance(x[i], x[j])
    return F.relu(1 - d).mean() + F.smooth_l1_loss(x[i].sum(-1), x[j].sum(-1), beta=0.5)


@CASES.function(lambda n: (rand(n, 3) * 0.98 + 0.01,), 8, 12)
def rgb_to_hsv(rgb: Tensor) -> Tensor:
    high, which = rgb.max(-1)
    low = rgb.min(-1).values
    chroma = high - low
    r, g, b = rgb.unbind(-1)
    hues = torch.stack([((g - b) / chroma) % 6, (b - r) / chroma + 2, (r - g) / chroma + 4], -1)
    hue = hues.gather(-1, which[..., None]).squeeze(-1) / 6
    return torch.stack([torch.where(chroma == 0, 0.0, hue), torch.where(high == 0, 0.0, chroma / high), high], -1)


@CASES.function(lambda n: (randn(2, n, n),), 8, 13)
def sobel_edges(x: Tensor) -> Tensor:
    k = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
    g = F.conv2d(F.pad(x[:, None], (1, 1, 1, 1), mode="replicate"), torch.stack([k, k.T])[:, None])
    return torch.atan2(g[:, 1], g[:, 0]), g.norm(dim=1)


@CASES.function(lambda n: (randn(n, 6), randint(0, 4, (n,))), 9, 14)
def segment_statistics(x: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    index = group[:, None].expand_as(x)
    total = torch.zeros(4, 6).scatter_add_(0, index, x)
    count = torch.bincount(group, minlength=4)
    top = torch.full((4, 6), -1e9).scatter_reduce_(0, index, x, "amax", include_self=True)
    return total / count.clamp(min=1)[:, None], count, top


@CASES.function(lambda n: (randn(n),), 12, 17)
def exponential_average(x: Tensor) -> Tensor:
    k = torch.arange(x.shape[0])
    w = torch.where(k[:, None] >= k, 0.2 * 0.8 ** (k[:, None] - k).float(), 0.0)
    return w @ x


@CASES.function(lambda n: (randn(n, 3),), 6, 10)
def in_place_columns(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] *= 2
    y[1::2, 1] = 0
    y[y < -1] = -1
    y[-1] += y[0]
    return y.add_(1).clamp_(max=3)


@CASES.function(lambda n: (randn(n, 4),), 5, 8)
def views_of_one(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    rows, last = y[1:], y[..., -1]
    rows += 1
    return y, rows.T, last


@CASES.function(lambda n: (randn(n),), 6, 9)
def graph_break_alias(x: Tensor) -> Tensor:
    a = x * 2
    b = a[:]
    torch._dynamo.graph_break()
    b += 3
    return a


@CASES.function(lambda n: (randn(n, 4),), 6, 9)
def writes_its_argument(x: Tensor) -> Tensor:
    x.mul_(0.5)
    x[:, 1] = x[:, 0]
    return x.sum(0)


@CASES.function(lambda n: (randn(n, 5),), 6, 8)
def data_decides_branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.relu()
    return x - x.mean(0)


@CASES.function(lambda n: (randn(n, 5),), 8, 12)
def select_rows(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0].mean(0)


@CASES.function(lambda n: (randn(n, 5),), 8, 12)
def nonzero_places(x: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.nonzero(x > 0.5)
    return places, x[places[:, 0], places[:, 1]]


@CASES.function(lambda n: (randint(0, 6, (n,)),), 10, 15)
def unique_counts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.unique(x, return_inverse=True, return_counts=True)


@CASES.function(lambda n: (randn(n, 8),), 7, 11)
def median_filter(x: Tensor) -> Tensor:
    return F.pad(x[None], (1, 1), mode="reflect")[0].unfold(-1, 3, 1).median(-1).values


@CASES.function(lambda n: (rand(n, 8),), 6, 9)
def quantile_clip(x: Tensor) -> Tensor:
    low, high = torch.quantile(x, 0.1), torch.quantile(x, 0.9)
    return (x.clamp(low, high) - low) / (high - low)


@CASES.function(lambda n: (rand(n, 40),), 4, 6)
def histogram_match(x: Tensor) -> Tensor:
    h = torch.stack([torch.histc(row, 8, 0.0, 1.0) for row in x[:4]])
    return h.cumsum(-1) / h.sum(-1, keepdim=True)


@CASES.function(lambda n: (randn(3, n), randn(3, n)), 9, 12)
def pearson_and_rank(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    def correlate(x: Tensor, y: Tensor) -> Tensor:
        x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
        return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))

    ranks = [x.argsort(-1).argsort(-1).float() for x in (a, b)]
    return correlate(a, b), correlate(*ranks)


@CASES.function(lambda n: (randn(n, 4, 4),), 3, 6)
def inverse_and_determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = x @ x.mT + torch.eye(4)
    sign, log = torch.linalg.slogdet(a)
    return torch.linalg.inv(a), sign * log, torch.linalg.solve(a, x[..., 0])


@CASES.function(lambda n: (randn(n, 5),), 9, 14)
def principal_components(x: Tensor) -> Tensor:
    x = x - x.mean(0)
    values, vectors = torch.linalg.eigh(x.T @ x / (x.shape[0] - 1))
    return torch.cat([values, (x @ vectors).square().mean(0)])


@CASES.function(lambda n: (randn(2, n, 4),), 7, 11)
def polynomial_features(x: Tensor) -> Tensor:
    i, j = torch.tril_indices(4, 4)
    return torch.cat([x, x[..., i] * x[..., j], torch.vander(x[0, :, 0], 3)[None].expand(2, -1, -1)], -1)


@CASES.function(lambda n: (randn(n, 16),), 6, 8)
def hadamard_transform(x: Tensor) -> Tensor:
    h = 1
    while h < 16:
        y = x.view(-1, 16 // (2 * h), 2, h)
        x = torch.stack([y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]], 2).reshape(-1, 16)
        h *= 2
    return x / 4


@CASES.function(lambda n: (randn(4 * n),), 6, 10)
def overlap_add(x: Tensor) -> Tensor:
    frames = x.unfold(0, 8, 4) * torch.hann_window(8)
    n = frames.shape[0]
    return F.fold(frames.T[None], (1, 4 * n + 4), (1, 8), stride=(1, 4)).flatten()


@CASES.function(lambda n: (randn(n), randn(n)), 10, 15)
def fft_convolve(a: Tensor, b: Tensor) -> Tensor:
    n = a.shape[0] + b.shape[0] - 1
    return torch.fft.irfft(torch.fft.rfft(a, n) * torch.fft.rfft(b, n), n)


@CASES.function(lambda n: (torch.complex(randn(n, 4), randn(n, 4)),), 6, 9)
def complex_phases(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return z.abs(), z.angle(), (z * z.conj().roll(1, 0)).sum(0)


@CASES.function(lambda n: (torch.complex(randn(n, 4), randn(n, 4)), torch.complex(randn(4, 3), randn(4, 3))), 5, 8)
def beamform(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return 10 * torch.log10(y.real.square() + y.imag.square() + 1e-9)


@CASES.function(lambda n: (randint(0, 255, (n, 4), dtype=torch.uint8),), 8, 11)
def bit_planes(x: Tensor) -> tuple[Tensor, Tensor]:
    bits = (x[..., None].int() >> torch.arange(8)) & 1
    packed = (bits << torch.arange(7, -1, -1)).sum(-1)
    return bits.bool(), packed ^ x


@CASES.function(lambda n: (randint(-100, 100, (n, 5)),), 6, 9)
def integer_division(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.where(x == 0, 7, x)
    return x // 7, x % 7, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, 7), torch.remainder(-x, 7)


@CASES.function(lambda n: (randn(n, 8).to(torch.bfloat16), randn(8, 4).to(torch.bfloat16)), 6, 9)
def mixed_precision(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return y.float().softmax(-1).to(torch.bfloat16), (y.float() * 2).sum()


@CASES.function(lambda n: (randn(2, n, 4),), 6, 9)
def ragged_stack(x: Tensor) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([x[0], x[1, :4], x[0, 1:3]], batch_first=True, padding_value=-1.0)


@CASES.function(lambda n: (randn(n, 6),), 7, 12)
def split_and_swap(x: Tensor) -> Tensor:
    head, tail = torch.tensor_split(x, 2)
    left, right = x.hsplit(2)
    return torch.cat([torch.cat([tail, head]), torch.cat([right, left], 1), x.rot90(2), x.flip(-1)])


@CASES.function(lambda n: (randn(n, 3, 4),), 5, 8)
def shapes_as_numbers(x: Tensor) -> Tensor:
    n, c, w = x.shape
    scale = 1.0 / math.sqrt(n * w) + n % 3
    return x.reshape(n * c, w).sum(-1) * scale + torch.full((n * c,), float(n))


@CASES.function(lambda n: (randn(1, 2, n),), 9, 14)
def pad_to_multiple(x: Tensor) -> Tensor:
    x = F.pad(x, (0, -x.shape[-1] % 4))
    return x.view(1, 2, -1, 4).mean(-1)


@CASES.function(lambda n: (randn(2, n, 6),), 10, 15)
def odd_chunks(x: Tensor) -> list[Tensor]:
    return [part.sum(1) for part in x.chunk(3, 1)]


@CASES.function(lambda n: (randn(2, n),), 10, 17)
def halves_by_ratio(x: Tensor) -> Tensor:
    k = int(x.shape[1] * 0.75)
    return torch.cat([x[:, :k].cumsum(1), x[:, k:].flip(1)], 1)


@CASES.function(lambda n: (randn(n, 4), randn(n)), 6, 9)
def least_squares(a: Tensor, b: Tensor) -> Tensor:
    q, r = torch.linalg.qr(a)
    return torch.linalg.solve_triangular(r, (q.T @ b)[:, None], upper=True)


@CASES.function(lambda n: (randn(n, 5),), 4, 7)
def nested_results(x: Tensor) -> dict[str, Any]:
    top = x.topk(2, -1)
    return {"top": top.values, "where": (top.indices, [x.argmin(-1), {"sum": x.sum()}]), "n": x.shape[0], "none": None}


@CASES.function(lambda n: (randn(n, 4), randn(n, 4)), 6, 8)
def dice_and_focal(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    y, p = (target > 0).float(), logits.sigmoid()
    dice = 1 - (2 * (p * y).sum(0) + 1) / (p.sum(0) + y.sum(0) + 1)
    ce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
    pt = p * y + (1 - p) * (1 - y)
    return dice.mean(), ((0.25 * y + 0.75 * (1 - y)) * (1 - pt) ** 2 * ce).mean()


@CASES.function(lambda n: (rand(n, 4), rand(n, 4)), 6, 9)
def generalised_box_loss(a: Tensor, b: Tensor) -> Tensor:
    a, b = (torch.cat([x[:, :2], x[:, :2] + x[:, 2:] + 0.05], -1) for x in (a, b))
    inter = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    areas = [(x[:, 2:] - x[:, :2]).prod(-1) for x in (a, b)]
    union = areas[0] + areas[1] - inter
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(-1)
    return 1 - (inter / union - (hull - union) / hull)


@CASES.function(lambda n: (rand(n, 2) * 4, rand(2, 5, 5)), 6, 10)
def bilinear_by_hand(points: Tensor, grid: Tensor) -> Tensor:
    low = points.floor().long().clamp(0, 3)
    f = points - low

    def at(dy: int, dx: int) -> Tensor:
        return grid[:, low[:, 1] + dy, low[:, 0] + dx]

    top = at(0, 0) * (1 - f[:, 0]) + at(0, 1) * f[:, 0]
    return top * (1 - f[:, 1]) + (at(1, 0) * (1 - f[:, 0]) + at(1, 1) * f[:, 0]) * f[:, 1]


@CASES.function(lambda n: (randn(n, 6),), 8, 13)
def running_extremes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top = x.cummax(0)
    return top.values, x.logcumsumexp(0), x.cumprod(1)


@CASES.function(lambda n: (randn(n, 6),), 6, 10)
def special_functions(x: Tensor) -> Tensor:
    y = x.abs() + 0.5
    return (
        torch.lgamma(y)
        + torch.digamma(y)
        + torch.special.i0e(x)
        + torch.erf(x)
        + torch.special.entr(y)
        + torch.xlogy(x, y)
    )


@CASES.function(lambda n: (randn(n, 6), randn(n, 6)), 6, 10)
def vmapped_cosines(a: Tensor, b: Tensor) -> Tensor:
    return torch.vmap(lambda u, v: F.cosine_similarity(u, v, dim=0) + torch.dot(u, v))(a, b)


@CASES.function(lambda n: (randn(n, 3),), 5, 8)
def jacobian_of_field(x: Tensor) -> Tensor:
    def field(p: Tensor) -> Tensor:
        return torch.stack([p[0] * p[1], p[1].sin() * p[2], p.square().sum()])

    return torch.vmap(torch.func.jacrev(field))(x).diagonal(dim1=-2, dim2=-1).sum(-1)


@CASES.function(lambda n: (randint(0, 5, (n, 4)), randint(0, 5, (n, 6))), 3, 5)
def edit_distance_rows(a: Tensor, b: Tensor) -> Tensor:
    row = torch.arange(7).expand(a.shape[0], 7)
    for i in range(4):
        cost = (b != a[:, i : i + 1]).long()
        following = [torch.full((a.shape[0],), i + 1)]
        for j in range(6):
            step = torch.minimum(row[:, j] + cost[:, j], row[:, j + 1] + 1)
            following.append(torch.minimum(step, following[-1] + 1))
        row = torch.stack(following, 1)
    return row[:, -1]
