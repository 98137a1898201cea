"""Newcomer cases for points, rays, molecules and poses, as their repositories write them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (randn(2, n, 3),), 40, 64)
class PointNetPlus(nn.Module):
    """Farthest points, their nearest neighbours, a shared MLP and a maximum over each group."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        far, nearest = torch.zeros(b, dtype=torch.long), torch.full((b, x.shape[1]), 1e10)
        chosen = []
        for _ in range(6):
            chosen.append(far)
            nearest = nearest.minimum(((x - x[torch.arange(b), far][:, None]) ** 2).sum(-1))
            far = nearest.argmax(-1)
        centre = x.gather(1, torch.stack(chosen, 1)[..., None].expand(-1, -1, 3))
        index = torch.cdist(centre, x).topk(8, largest=False).indices
        group = x.gather(1, index.flatten(1)[..., None].expand(-1, -1, 3)).view(b, 6, 8, 3) - centre[:, :, None]
        return self.mlp(group).max(2).values


@CASES.module(lambda n: (randn(n, 3), randn(n, 3)), 30, 44)
class NerfField(nn.Module):
    """Positional encoding of high frequencies, a density MLP, compositing along rays."""

    def __init__(self, levels: int = 8) -> None:
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(levels))
        self.density = nn.Sequential(nn.Linear(3 + 6 * levels, 32), nn.Softplus(), nn.Linear(32, 17))
        self.colour = nn.Sequential(nn.Linear(19, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid())

    def forward(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        directions = directions / directions.norm(dim=-1, keepdim=True)
        t = torch.linspace(0.5, 3.0, 12)
        points = origins[:, None] + directions[:, None] * t[:, None]
        angles = (points[..., None] * self.freqs).flatten(-2)
        h = self.density(torch.cat([points, angles.sin(), angles.cos()], -1))
        rgb = self.colour(torch.cat([h[..., 1:], directions[:, None].expand_as(points)], -1))
        alpha = 1 - torch.exp(-F.relu(h[..., 0]) * torch.cat([t.diff(), t.new_full((1,), 1e10)]))
        passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * passed
        return (weights[..., None] * rgb).sum(-2), (weights * t).sum(-1)


@CASES.module(lambda n: (rand(1, 3, n, n), randn(1, 24, 2)), 16, 24)
class KeypointMatcher(nn.Module):
    """SuperPoint-like: descriptors sampled at keypoints, normalised, matched both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1))

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        d = F.normalize(self.net(x), p=2, dim=1)
        sampled = F.grid_sample(d, places.tanh().unsqueeze(1), mode="bilinear", align_corners=True)
        sampled = F.normalize(sampled.squeeze(2), dim=1)
        scores = torch.einsum("bdn,bdm->bnm", sampled, d.flatten(2))
        mutual = scores.argmax(1).gather(1, scores.argmax(2)) == torch.arange(24)
        return scores.log_softmax(-1).max(-1).values, mutual


@CASES.module(lambda n: (randn(2, 8, n, n),), 16, 24)
class RaftLookup(nn.Module):
    """All-pairs correlation, a pyramid, and a lookup around a flow."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g, self.flow = nn.Conv2d(8, 8, 3, 4, 1), nn.Conv2d(8, 8, 3, 4, 1), nn.Conv2d(8, 2, 3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        f, g, flow = self.f(x), self.g(x), self.flow(x)
        b, c, h, w = f.shape
        volume = torch.matmul(f.flatten(2).transpose(1, 2), g.flatten(2)).view(b * h * w, 1, h, w) / math.sqrt(c)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centre = (torch.stack([xs, ys]).float() + flow).permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2)
        d = torch.arange(-1, 2)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1).float()
        made = []
        for level in range(2):
            side = torch.tensor([volume.shape[-1], volume.shape[-2]])
            grid = 2 * (centre / 2**level + delta) / (side - 1).clamp(min=1) - 1
            made.append(F.grid_sample(volume, grid, align_corners=True).view(b, h, w, -1))
            volume = F.avg_pool2d(volume, 2, 2)
        return torch.cat(made, -1).permute(0, 3, 1, 2)


@CASES.module(lambda n: (randn(n, 8), randn(n, 3)), 7, 10)
class Egnn(nn.Module):
    """E(n)-equivariant messages: features and coordinates move together."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.coord, self.node = nn.Linear(17, 8), nn.Linear(8, 1), nn.Linear(16, 8)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        n = len(h)
        difference = x[:, None] - x[None]
        d = difference.pow(2).sum(-1, keepdim=True)
        m = F.silu(self.edge(torch.cat([h[:, None].expand(n, n, 8), h[None].expand(n, n, 8), d], -1)))
        off = ~torch.eye(n, dtype=torch.bool)[..., None]
        x = x + (difference / (d.sqrt() + 1) * self.coord(m) * off).sum(1) / (n - 1)
        return h + self.node(torch.cat([h, (m * off).sum(1)], -1)), x


@CASES.module(lambda n: (randn(n, 3), randint(1, 10, (n,))), 8, 11)
class SchNet(nn.Module):
    """Distances, Gaussian smearing, continuous filters, energy as a sum of atoms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.filter, self.out = nn.Embedding(10, 12), nn.Linear(10, 12), nn.Linear(12, 1)
        self.register_buffer("centres", torch.linspace(0, 5, 10))

    def forward(self, r: Tensor, z: Tensor) -> Tensor:
        d = torch.sqrt(((r[:, None] - r) ** 2).sum(-1) + 1e-12)
        smeared = torch.exp(-10 * (d[..., None] - self.centres) ** 2)
        cutoff = 0.5 * (torch.cos(d * math.pi / 5) + 1) * (d < 5) * (1 - torch.eye(len(r)))
        h = self.embed(z)
        h = h + (F.softplus(self.filter(smeared)) * cutoff[..., None] * h).sum(1) - math.log(2)
        return self.out(h).sum()


@CASES.module(lambda n: (randn(2, n, n, 8),), 8, 12)
class TriangleUpdate(nn.Module):
    """AlphaFold's triangle multiplication, outgoing and incoming, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ab, self.gate, self.out = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, z: Tensor) -> Tensor:
        y = self.norm(z)
        g = self.gate(y).sigmoid()
        a, b = (self.ab(y) * g[..., :16]).chunk(2, -1)
        both = torch.einsum("bikc,bjkc->bijc", a, b) + torch.einsum("bkic,bkjc->bijc", a, b)
        return z + self.out(F.layer_norm(both, (8,))) * g[..., 16:]


@CASES.module(lambda n: (randn(n, 3, 6), randn(n, 3, 6)), 3, 5)
class Kabsch(nn.Module):
    """The best rotation between point sets, by SVD with a determinant's sign."""

    def forward(self, p: Tensor, q: Tensor) -> Tensor:
        p, q = p - p.mean(-1, keepdim=True), q - q.mean(-1, keepdim=True)
        u, _, vh = torch.linalg.svd(p @ q.mT)
        sign = torch.det(u @ vh).sign()
        fix = torch.diag_embed(torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1))
        rotated = (u @ fix @ vh).mT @ p
        return (rotated - q).square().sum(1).mean(-1).sqrt()


@CASES.module(lambda n: (randn(n, 4, 4), randn(n, 3)), 3, 6)
class PoseGraph(nn.Module):
    """Rotations by the matrix exponential and quaternions, composed."""

    def forward(self, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        skew = torch.zeros(v.shape[0], 3, 3)
        skew[:, 0, 1], skew[:, 0, 2], skew[:, 1, 2] = -v[:, 2], v[:, 1], -v[:, 0]
        skew = skew - skew.mT
        angle = v.norm(dim=-1)[:, None, None].clamp(min=1e-6)
        r = torch.eye(3) + angle.sin() / angle * skew + (1 - angle.cos()) / angle**2 * skew @ skew
        w = torch.sqrt((1 + r[:, 0, 0] + r[:, 1, 1] + r[:, 2, 2]).clamp(min=1e-8)) / 2
        xyz = torch.stack([r[:, 2, 1] - r[:, 1, 2], r[:, 0, 2] - r[:, 2, 0], r[:, 1, 0] - r[:, 0, 1]], -1) / (
            4 * w[:, None]
        )
        moved = m.clone()
        moved[:, :3, :3] = r @ m[:, :3, :3]
        return moved, torch.cat([w[:, None], xyz], -1)


@CASES.module(lambda n: (randn(n, 5), rand(n, 3) * 4), 12, 20)
class VoxelScatter(nn.Module):
    """Points into pillars by index arithmetic and scatter_reduce, then a map for a convolution (PointPillars)."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.conv = nn.Linear(5, 8), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, features: Tensor, places: Tensor) -> Tensor:
        cell = places[:, :2].floor().long().clamp(0, 3)
        flat = (cell[:, 0] * 4 + cell[:, 1])[:, None].expand(-1, 8)
        pillars = torch.zeros(16, 8).scatter_reduce(0, flat, self.points(features).relu(), "amax", include_self=True)
        return self.conv(pillars.T.reshape(1, 8, 4, 4))


@CASES.module(lambda n: (randn(2, n, 3), randn(2, n + 3, 3)), 9, 14)
class ChamferLoss(nn.Module):
    """Distances to the nearest point, both ways, with normals by a small PCA left out."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        d = (a[:, :, None] - b[:, None]).square().sum(-1)
        forth, back = d.min(2), d.min(1)
        return forth.values.mean(1) + back.values.mean(1), forth.indices


@CASES.module(lambda n: (rand(n, 3),), 10, 24)
class HashGrid(nn.Module):
    """Instant-NGP: trilinear reads from tables that integer hashes address."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.Parameter(randn(3, 64, 2))
        self.register_buffer("corners", torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)]))
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))

    def forward(self, x: Tensor) -> Tensor:
        made = []
        for level, table in enumerate(self.tables):
            y = x * (4 * 2**level)
            low = y.floor().long()
            f = (y - low)[:, None]
            corner = low[:, None] + self.corners
            mixed = corner * self.primes
            index = (mixed[..., 0] ^ mixed[..., 1] ^ mixed[..., 2]) % 64
            weight = torch.where(self.corners.bool(), f, 1 - f).prod(-1, keepdim=True)
            made.append((table[index] * weight).sum(1))
        return torch.cat(made, -1)


@CASES.module(lambda n: (randn(n, 3), rand(n, 3) + 0.2, randn(n, 4)), 6, 10)
class GaussianSplat(nn.Module):
    """Covariances from scales and quaternions, projected, evaluated at pixels, composited by depth."""

    def forward(self, mean: Tensor, scale: Tensor, quaternion: Tensor) -> Tensor:
        w, x, y, z = F.normalize(quaternion, dim=-1).unbind(-1)
        rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
        rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
        rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
        r = torch.stack(rows, -1).view(-1, 3, 3)
        m = r * scale[:, None]
        covariance = (m @ m.mT)[:, :2, :2] + 0.3 * torch.eye(2)
        order = mean[:, 2].argsort()
        places = torch.cartesian_prod(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5))
        d = places[:, None] - mean[order, :2]
        power = -0.5 * torch.einsum("pni,nij,pnj->pn", d, torch.linalg.inv(covariance[order]), d)
        alpha = (0.8 * power.exp()).clamp(max=0.99)
        passed = torch.cumprod(F.pad(1 - alpha[:, :-1], (1, 0), value=1.0), 1)
        return (alpha * passed).sum(1)
