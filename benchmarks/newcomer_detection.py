"""Newcomer models of detection, tracking, rendering and estimation, as their repositories write them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (randn(2, 8, n, n),), 8, 12)
class AnchorFreeHead(nn.Module):
    """Scores, distances and centredness of every place; the best places of each picture, with their boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 5, 1))
        self.box, self.centre = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, w = x.shape[-2:]
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        at = torch.stack([xs, ys], -1).reshape(-1, 2).to(x.dtype) * 8 + 4
        scores = self.score(x).flatten(2).sigmoid() * self.centre(x).flatten(2).sigmoid()
        reach = (self.box(x).flatten(2) * self.scale).exp().mT
        best, label = scores.max(1)
        top, place = best.topk(6)
        near = reach.gather(1, place[..., None].expand(-1, -1, 4))
        centres = at[place]
        boxes = torch.cat([centres - near[..., :2], centres + near[..., 2:]], -1)
        return top, label.gather(1, place), boxes.clamp(0, 8 * w)


@CASES.module(lambda n: (rand(n, 4) * 20, rand(6, 4) * 20), 9, 14)
class AnchorMatcher(nn.Module):
    """Anchors to the objects that they cover most; every object keeps its best anchor; regression targets."""

    def forward(self, anchors: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.cat([anchors[:, :2], anchors[:, :2] + anchors[:, 2:] + 1], 1)
        o = torch.cat([objects[:, :2], objects[:, :2] + objects[:, 2:] + 1], 1)
        low, high = torch.maximum(a[:, None, :2], o[None, :, :2]), torch.minimum(a[:, None, 2:], o[None, :, 2:])
        joint = (high - low).clamp(min=0).prod(-1)
        area_a, area_o = (a[:, 2:] - a[:, :2]).prod(-1), (o[:, 2:] - o[:, :2]).prod(-1)
        overlap = joint / (area_a[:, None] + area_o - joint)
        best, match = overlap.max(1)
        match = torch.where(best < 0.3, -1, torch.where(best < 0.5, -2, match))
        match[overlap.argmax(0)] = torch.arange(len(o))
        chosen = o[match.clamp(min=0)]
        size = (a[:, 2:] - a[:, :2]).log()
        shift = (chosen[:, :2] - a[:, :2]) / (a[:, 2:] - a[:, :2])
        return match, torch.cat([shift, (chosen[:, 2:] - chosen[:, :2]).log() - size], 1) * (match >= 0)[:, None]


@CASES.function(lambda n: (rand(2, n, 5), randn(2, n, 3)), 10, 15)
def matrix_suppression(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """All boxes' scores decay at once by how much better ones cover them."""
    order = scores.amax(-1).sort(dim=-1, descending=True, stable=True)[1]
    sorted_boxes = boxes.gather(1, order[..., None].expand_as(boxes))[..., :4]
    low, size = sorted_boxes[..., :2], sorted_boxes[..., 2:] + 0.1
    joint = (
        (torch.minimum((low + size)[:, :, None], (low + size)[:, None]) - torch.maximum(low[:, :, None], low[:, None]))
        .clamp(min=0)
        .prod(-1)
    )
    area = size.prod(-1)
    overlap = (joint / (area[:, :, None] + area[:, None] - joint)).triu(1)
    most = overlap.amax(1)
    decay = ((1 - overlap) / (1 - most[:, :, None]).clamp(min=1e-3)).amin(1)
    return order, scores.amax(-1).gather(1, order) * decay


@CASES.module(lambda n: (rand(2, n, 4), randn(2, n, 5), rand(2, 3, 4), randint(0, 5, (2, 3))), 7, 11)
class SetMatchingCost(nn.Module):
    """Costs between predictions and objects, and a greedy assignment of the cheapest pairs."""

    def forward(self, boxes: Tensor, logits: Tensor, objects: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        p = logits.sigmoid()
        focal = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log() - 0.75 * p**2 * -(1 - p + 1e-8).log()
        cost = focal.gather(2, labels[:, None].expand(-1, boxes.shape[1], -1)) + 5 * torch.cdist(boxes, objects, p=1)
        free, chosen = cost.clone(), []
        for _ in range(objects.shape[1]):
            flat = free.flatten(1).argmin(1)
            row, column = flat // free.shape[2], flat % free.shape[2]
            chosen.append(torch.stack([row, column], -1))
            taken = F.one_hot(row, free.shape[1])[..., None] + F.one_hot(column, free.shape[2])[:, None]
            free = free.masked_fill(taken > 0, math.inf)
        return cost, torch.stack(chosen, 1)


@CASES.function(lambda n: (randn(n, 4).cumsum(0),), 9, 16)
def constant_velocity_tracks(seen: Tensor) -> tuple[Tensor, Tensor]:
    """A box tracker's filter: predicted and corrected states, with the log-likelihood of each observation."""
    step = torch.eye(8, dtype=seen.dtype) + torch.diag(torch.ones(4, dtype=seen.dtype), 4)
    look = torch.eye(4, 8, dtype=seen.dtype)
    mean, spread = torch.cat([seen[0], torch.zeros(4, dtype=seen.dtype)]), torch.eye(8, dtype=seen.dtype) * 2
    states, surprise = [], []
    for z in seen[1:]:
        mean, spread = step @ mean, step @ spread @ step.T + 0.1 * torch.eye(8, dtype=seen.dtype)
        s = look @ spread @ look.T + torch.eye(4, dtype=seen.dtype)
        gain = torch.linalg.solve(s, look @ spread).T
        off = z - look @ mean
        mean, spread = mean + gain @ off, spread - gain @ s @ gain.T
        states.append(mean)
        surprise.append(off @ torch.linalg.solve(s, off) + torch.logdet(s))
    return torch.stack(states), torch.stack(surprise)


@CASES.module(lambda n: (randn(n, 3), F.normalize(randn(n, 3), dim=-1)), 6, 10)
class SignedDistanceMarcher(nn.Module):
    """Rays that walk to a learned surface, and its normals by central differences."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Softplus(beta=100), nn.Linear(24, 24), nn.Softplus(beta=100))
        self.out = nn.Linear(24, 1)

    def distance(self, p: Tensor) -> Tensor:
        return p.norm(dim=-1) - 1 + 0.05 * self.out(self.net(p)).squeeze(-1).tanh()

    def forward(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = torch.zeros_like(origins[:, 0])
        for _ in range(8):
            d = self.distance(origins + t[:, None] * directions)
            t = torch.where((d.abs() > 1e-3) & (t < 6), t + d, t)
        at = origins + t[:, None] * directions
        shift = torch.eye(3, dtype=at.dtype) * 0.05
        ahead, behind = (self.distance(at[:, None] + s * shift) for s in (1, -1))
        normal = F.normalize(ahead - behind, dim=-1)
        return t, normal, (normal * -directions).sum(-1).clamp(min=0)


@CASES.function(lambda n: (rand(n, 6) * 3, rand(n, 6, 3)), 5, 9)
def volume_weights(density: Tensor, colour: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Alpha compositing along rays, and a finer sampling of where the weight lies."""
    edges = torch.linspace(0, 1, 7, dtype=density.dtype)
    alpha = 1 - torch.exp(-density * edges.diff())
    clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    weights = alpha * clear
    bins = weights + 1e-5
    cumulative = F.pad((bins / bins.sum(-1, keepdim=True)).cumsum(-1), (1, 0)).clamp(max=1)
    u = torch.linspace(0.05, 0.95, 5, dtype=density.dtype).expand(len(density), 5).contiguous()
    above = torch.searchsorted(cumulative, u, right=True).clamp(1, 6)
    low, high = cumulative.gather(1, above - 1), cumulative.gather(1, above)
    part = (u - low) / (high - low).clamp(min=1e-5)
    depths = torch.lerp(edges[above - 1], edges[above], part)
    return (weights[..., None] * colour).sum(1), depths, (weights * edges[:-1]).sum(1)


@CASES.module(lambda n: (randn(2, n, 3), rand(2, n)), 8, 13)
class BirdEyeColumns(nn.Module):
    """Points into a grid seen from above: counts, the highest point and the mean intensity of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, points: Tensor, intensity: Tensor) -> Tensor:
        b = len(points)
        at = ((points[..., :2].clamp(-2, 1.99) + 2) * 1.5).long()
        cell = (at[..., 1] * 6 + at[..., 0]) + 36 * torch.arange(b)[:, None]
        flat = cell.flatten()
        count = torch.zeros(36 * b, dtype=points.dtype).index_add(0, flat, torch.ones_like(intensity).flatten())
        high = torch.full((36 * b,), -3.0, dtype=points.dtype)
        high = high.scatter_reduce(0, flat, points[..., 2].flatten(), "amax", include_self=True)
        light = torch.zeros_like(count).scatter_reduce(0, flat, intensity.flatten(), "mean", include_self=False)
        return self.head(torch.stack([count.log1p(), high, light]).view(3, b, 6, 6).transpose(0, 1))


@CASES.function(lambda n: (randn(n, 2), randn(n)), 7, 12)
def particle_step(particles: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights by a bearing, systematic resampling by a cumulative sum, roughening."""
    bearing = torch.atan2(particles[:, 1], particles[:, 0])
    logw = -((bearing - 0.4) ** 2) / 0.5
    w = logw.softmax(0)
    effective = 1 / (w**2).sum()
    n = len(w)
    places = (torch.arange(n, dtype=w.dtype) + 0.5) / n
    index = torch.searchsorted(w.cumsum(0), places).clamp(max=n - 1)
    again = torch.where(effective < 0.7 * n, index, torch.arange(n))
    moved = particles[again] + 0.1 * torch.stack([noise, -noise], -1)
    return moved, effective, torch.bincount(again, minlength=n)


@CASES.function(lambda n: (randn(2, n, 4), randn(2, n + 2, 4)), 6, 9)
def unbalanced_transport(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sinkhorn steps in logarithms with masses that may be left over, and the plan's barycentres."""
    cost = torch.cdist(x, y) ** 2
    f, g = x.new_zeros(x.shape[:2]), y.new_zeros(y.shape[:2])
    damp, eps = 1 / (1 + 0.5), 0.5
    for _ in range(12):
        f = damp * -eps * torch.logsumexp((g[:, None] - cost) / eps - math.log(y.shape[1]), 2)
        g = damp * -eps * torch.logsumexp((f[:, :, None] - cost) / eps - math.log(x.shape[1]), 1)
    plan = ((f[:, :, None] + g[:, None] - cost) / eps).exp() / (x.shape[1] * y.shape[1])
    return plan, plan @ y / plan.sum(2, keepdim=True).clamp(min=1e-12)


@CASES.function(lambda n: (randn(n, 3), randn(n, 3)), 8, 15)
def robust_rotation(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Reweighted least squares over rotations by the quaternion of the largest eigenvalue."""
    w = a.new_ones(len(a))
    for _ in range(3):
        ca, cb = (w @ a) / w.sum(), (w @ b) / w.sum()
        m = torch.einsum("n,ni,nj->ij", w, a - ca, b - cb)
        trace = m.trace()
        skew = torch.stack([m[1, 2] - m[2, 1], m[2, 0] - m[0, 2], m[0, 1] - m[1, 0]])
        lower = m + m.T - trace * torch.eye(3, dtype=m.dtype)
        k = torch.cat([torch.cat([trace[None], skew])[None], torch.cat([skew[:, None], lower], 1)])
        q = torch.linalg.eigh(k)[1][:, -1]
        q0, v = q[0], q[1:]
        cross = torch.stack([torch.stack([0 * q0, -v[2], v[1]]), torch.stack([v[2], 0 * q0, -v[0]]),
                             torch.stack([-v[1], v[0], 0 * q0])])  # fmt: skip
        r = (q0**2 - v @ v) * torch.eye(3, dtype=m.dtype) + 2 * torch.outer(v, v) + 2 * q0 * cross
        off = ((b - cb) - (a - ca) @ r.T).norm(dim=-1)
        w = 1 / (1 + off**2)
    return r, w


@CASES.module(lambda n: (randn(2, 3, n, n), randn(2, 2, n, n)), 9, 12)
class WarpedCostVolume(nn.Module):
    """Features displaced by a flow, correlations within a radius, and what is occluded."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        h, w = x.shape[-2:]
        f = self.lift(x)
        ys, xs = torch.meshgrid(torch.arange(h, dtype=x.dtype), torch.arange(w, dtype=x.dtype), indexing="ij")
        to = torch.stack([xs, ys]) + flow
        grid = torch.stack([2 * to[:, 0] / (w - 1) - 1, 2 * to[:, 1] / (h - 1) - 1], -1)
        moved = F.grid_sample(f, grid, padding_mode="border", align_corners=True)
        inside = F.grid_sample(torch.ones_like(f[:, :1]), grid, align_corners=True) > 0.99
        padded = F.pad(moved, (2, 2, 2, 2))
        near = [(f * padded[:, :, i : i + h, j : j + w]).mean(1) for i in range(5) for j in range(5)]
        return torch.stack(near, 1) * inside, inside.float().mean((1, 2, 3))
