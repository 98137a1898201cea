"""Newcomer models of bodies, scenes and matter: skinned meshes, splats, proteins, particles, spikes, electrons.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()

# --- bodies and scenes ----------------------------------------------------------------------------------------------


def _rodrigues(vectors: Tensor) -> Tensor:
    angle = torch.norm(vectors + 1e-8, dim=1, keepdim=True)
    direction = vectors / angle
    cos, sin = torch.unsqueeze(torch.cos(angle), dim=1), torch.unsqueeze(torch.sin(angle), dim=1)
    x, y, z = torch.split(direction, 1, dim=1)
    zeros = torch.zeros((vectors.shape[0], 1), dtype=vectors.dtype)
    cross = torch.cat([zeros, -z, y, z, zeros, -x, -y, x, zeros], dim=1).view((-1, 3, 3))
    eye = torch.eye(3, dtype=vectors.dtype).unsqueeze(dim=0)
    return eye + sin * cross + (1 - cos) * torch.bmm(cross, cross)


@CASES.module(lambda n: (randn(n, 4), randn(n, 5, 3)), 2, 3)
class SkinnedBody(nn.Module):
    """SMPL: shapes and pose correctives, joints regressed, a chain of rigid transforms, skinning; bent landmarks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("template", randn(20, 3))
        self.register_buffer("shapes", randn(20, 3, 4) / 9)
        self.register_buffer("correctives", randn(36, 60) / 30)
        self.register_buffer("regressor", rand(5, 20).softmax(1))
        self.register_buffer("weights", rand(20, 5).softmax(1))
        self.register_buffer("parents", torch.tensor([-1, 0, 1, 1, 3]))
        self.register_buffer("faces", torch.arange(18).view(6, 3))
        self.register_buffer("corners", rand(6, 3).softmax(1))

    def forward(self, betas: Tensor, pose: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch = betas.shape[0]
        shaped = self.template + torch.einsum("bl,mkl->bmk", [betas, self.shapes])
        joints = torch.einsum("bik,ji->bjk", [shaped, self.regressor])
        rotations = _rodrigues(pose.view(-1, 3)).view([batch, -1, 3, 3])
        features = (rotations[:, 1:, :, :] - torch.eye(3, dtype=betas.dtype)).view([batch, -1])
        posed = shaped + torch.matmul(features, self.correctives).view(batch, -1, 3)
        relative = torch.unsqueeze(joints, dim=-1).clone()
        relative[:, 1:] -= relative[:, self.parents[1:]].clone()
        moves = torch.cat(
            [
                F.pad(rotations.reshape(-1, 3, 3), [0, 0, 0, 1]),
                F.pad(relative.reshape(-1, 3, 1), [0, 0, 0, 1], value=1),
            ],
            dim=2,
        ).reshape(-1, 5, 4, 4)
        chain = [moves[:, 0]]
        for i, parent in enumerate([0, 1, 1, 3], 1):
            chain.append(torch.matmul(chain[parent], moves[:, i]))
        transforms = torch.stack(chain, dim=1)
        homogeneous = F.pad(torch.unsqueeze(joints, dim=-1), [0, 0, 0, 1])
        at_rest = transforms - F.pad(torch.matmul(transforms, homogeneous), [3, 0, 0, 0, 0, 0, 0, 0])
        weights = self.weights.unsqueeze(dim=0).expand([batch, -1, -1])
        blended = torch.matmul(weights, at_rest.view(batch, 5, 16)).view(batch, -1, 4, 4)
        ones = torch.ones([batch, posed.shape[1], 1], dtype=betas.dtype)
        vertices = torch.matmul(blended, torch.unsqueeze(torch.cat([posed, ones], dim=2), dim=-1))[:, :, :3, 0]
        faces = torch.index_select(vertices.view(-1, 3), 0, self.faces.view(-1))
        offsets = torch.arange(batch).view(-1, 1, 1) * 20
        corners = vertices.reshape(-1, 3)[self.faces[None] + offsets]
        landmarks = torch.einsum("blfi,lf->bli", [corners, self.corners])
        return vertices, transforms[:, :, :3, 3], landmarks + 0 * faces.sum()


@CASES.function(lambda n: (rand(n, 2) * 32, rand(n) + 0.5, rand(n) * 5 + 1), 9, 14)
def splats_by_tile(means: Tensor, depths: Tensor, radii: Tensor) -> tuple[Tensor, ...]:
    """gsplat: how many tiles each splat touches, keys of tile and depth bits, their order, where each tile begins."""
    width, tile = 4, 8
    low = ((means - radii[:, None]) / tile).floor().int().clamp(0, width)
    high = ((means + radii[:, None]) / tile).ceil().int().clamp(0, width)
    counts = (high - low).prod(-1)
    ends = counts.cumsum(0)
    total = 9 * means.shape[0]
    places = torch.arange(total)
    owner = torch.searchsorted(ends, places, right=True).clamp(max=means.shape[0] - 1)
    rank = places - (ends - counts)[owner]
    across = (high - low)[owner, 0].clamp(min=1)
    tiles = (low[owner, 1] + rank // across) * width + low[owner, 0] + rank % across
    bits = depths.view(torch.int32).to(torch.int64)[owner] & 0xFFFFFFFF
    keys = torch.where(places < ends[-1], (tiles.to(torch.int64) << 32) | bits, 2**62)
    ordered, order = keys.sort(stable=True)
    begins = torch.searchsorted((ordered >> 32).contiguous(), torch.arange(width * width))
    return counts, owner[order], begins, ordered


@CASES.module(lambda n: (randn(n, 3) * 3, rand(n, 9).cumsum(-1), rand(n, 8)), 3, 5)
class ContractedScene(nn.Module):
    """Mip-NeRF 360: means and covariances contracted by a Jacobian, integrated waves, distortion, a proposal loss."""

    def __init__(self) -> None:
        super().__init__()
        self.density = nn.Sequential(nn.Linear(24, 8), nn.Softplus(), nn.Linear(8, 1))

    @staticmethod
    def contract(x: Tensor) -> Tensor:
        square = (x**2).sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).eps)
        return torch.where(square <= 1, x, ((2 * torch.sqrt(square) - 1) / square) * x)

    def forward(self, directions: Tensor, t: Tensor, proposal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle, half = (t[:, 1:] + t[:, :-1]) / 2, (t[:, 1:] - t[:, :-1]) / 2
        mean = directions[:, None] * middle[..., None]
        outer = directions[:, None, :, None] * directions[:, None, None, :]
        covariance = outer * (half**2 / 3)[..., None, None] + 0.01 * torch.eye(3, dtype=t.dtype)
        jacobian = torch.func.vmap(torch.func.vmap(torch.func.jacrev(self.contract)))(mean)
        mean = self.contract(mean)
        covariance = jacobian @ covariance @ jacobian.mT
        scales = 2.0 ** torch.arange(4, dtype=t.dtype)
        scaled = (mean[..., None, :] * scales[:, None]).flatten(-2)
        variance = (covariance.diagonal(dim1=-2, dim2=-1)[..., None, :] * scales[:, None] ** 2).flatten(-2)
        encoded = torch.exp(-0.5 * variance).repeat(1, 1, 2) * torch.sin(torch.cat([scaled, scaled + math.pi / 2], -1))
        sigma = F.softplus(self.density(encoded)[..., 0] - 1) * (t[:, 1:] - t[:, :-1])
        alpha = 1 - torch.exp(-sigma)
        seen = torch.exp(-torch.cat([torch.zeros_like(sigma[:, :1]), sigma[:, :-1].cumsum(-1)], -1))
        weights = alpha * seen
        between = (middle[..., :, None] - middle[..., None, :]).abs()
        distortion = (weights * (weights[..., None, :] * between).sum(-1)).sum(-1)
        distortion = distortion + (weights**2 * half * 2).sum(-1) / 3
        mass = torch.cat([torch.zeros_like(proposal[:, :1]), proposal.cumsum(-1)], -1)
        first = torch.searchsorted(t, t[:, :-1].contiguous(), right=True) - 1
        last = torch.searchsorted(t, t[:, 1:].contiguous(), right=False)
        bound = mass.gather(-1, last) - mass.gather(-1, first)
        inter = (F.relu(weights - bound) ** 2 / (weights + 1e-7)).sum(-1)
        return weights, distortion, inter


@CASES.function(lambda n: (rand(n, 4, 6) + 1, randn(n, 7)), 2, 3)
def cameras_and_points(depth: Tensor, encoding: Tensor) -> tuple[Tensor, ...]:
    """VGGT and DUSt3R: cameras from codes, depth unprojected to the world, inverse poses, confidence and scale."""
    move, quaternion = encoding[..., :3], encoding[..., 3:]
    i, j, k, r = torch.unbind(quaternion, -1)
    two = 2.0 / (quaternion * quaternion).sum(-1)
    rotation = torch.stack(
        (
            1 - two * (j * j + k * k), two * (i * j - k * r), two * (i * k + j * r),
            two * (i * j + k * r), 1 - two * (i * i + k * k), two * (j * k - i * r),
            two * (i * k - j * r), two * (j * k + i * r), 1 - two * (i * i + j * j),
        ),
        -1,
    ).reshape((*quaternion.shape[:-1], 3, 3))  # fmt: skip
    height, width = depth.shape[-2:]
    intrinsics = torch.zeros((*encoding.shape[:-1], 3, 3), dtype=depth.dtype)
    intrinsics[..., 0, 0] = width / 2 / math.tan(0.5)
    intrinsics[..., 1, 1] = height / 2 / math.tan(0.4)
    intrinsics[..., 0, 2], intrinsics[..., 1, 2] = width / 2, height / 2
    intrinsics[..., 2, 2] = 1.0
    v, u = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack([u, v, torch.ones_like(u)], -1).to(depth.dtype)
    rays = torch.einsum("bij,hwj->bhwi", torch.linalg.inv(intrinsics), pixels)
    inside = rays * depth[..., None]
    back = torch.eye(4, dtype=depth.dtype)[None].repeat(len(encoding), 1, 1)
    back[:, :3, :3] = rotation.transpose(1, 2)
    back[:, :3, 3:] = -torch.bmm(rotation.transpose(1, 2), move[..., None])
    world = torch.einsum("bij,bhwj->bhwi", back[:, :3, :3], inside) + back[:, None, None, :3, 3]
    scale = world.norm(dim=-1).flatten(1).mean(1)
    normals = torch.linalg.cross(world[:, 1:, :-1] - world[:, :-1, :-1], world[:, :-1, 1:] - world[:, :-1, :-1])
    return world / scale[:, None, None, None], F.normalize(normals, dim=-1), back


@CASES.function(lambda n: (randn(n, 3), randint(0, n, (2 * n, 3))), 8, 11)
def mesh_smoothing(vertices: Tensor, faces: Tensor) -> tuple[Tensor, ...]:
    """PyTorch3D: areas and normals of faces, cotangent weights between vertices, smoothed normals, an edge loss."""
    a, b, c = vertices[faces].unbind(1)
    normal = torch.cross(b - a, c - a, dim=1)
    areas = normal.norm(dim=1) / 2
    at_vertex = torch.zeros_like(vertices)
    for corner in range(3):
        at_vertex.index_add_(0, faces[:, corner], normal)
    at_vertex = F.normalize(at_vertex, eps=1e-6, dim=1)
    sides = torch.stack([(b - c).norm(dim=1), (a - c).norm(dim=1), (a - b).norm(dim=1)]).square()
    cot = torch.stack([sides.sum(0) - 2 * sides[i] for i in range(3)], 1) / (4 * areas.clamp(min=1e-3))[:, None]
    n = vertices.shape[0]
    row, column = faces[:, [1, 2, 0]].reshape(-1), faces[:, [2, 0, 1]].reshape(-1)
    matrix = torch.zeros(n * n, dtype=vertices.dtype).scatter_add(0, row * n + column, cot.reshape(-1)).view(n, n)
    matrix = matrix + matrix.t()
    total = matrix.sum(1, keepdim=True)
    moved = torch.where(total.abs() > 1e-3, matrix @ vertices / total, vertices) - vertices
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(dim=1).values
    v0, v1 = vertices[edges].unbind(1)
    return areas, at_vertex, moved.norm(dim=1).mean(), (((v0 - v1).norm(dim=1) - 0.2) ** 2).mean()


# --- molecules and electrons ----------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(1, n, 8), randn(1, n, n, 4), randn(1, n, 3, 3), randn(1, n, 3)), 5, 7)
class PointAttention(nn.Module):
    """AlphaFold 2: frames by Gram and Schmidt, attention of scalars, pairs and points in space, an aligned error."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.points = nn.Linear(8, 24), nn.Linear(8, 2 * 3 * 3 * 2)
        self.bias, self.head_weights = nn.Linear(4, 2), nn.Parameter(torch.full((2,), 0.5413))
        self.out = nn.Linear(8 + 2 * 2 * 4 + 8, 8)
        self.register_buffer("order", torch.arange(3))

    def forward(self, s: Tensor, z: Tensor, axes: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        e0 = axes[..., 0] / torch.sqrt((axes[..., 0] ** 2).sum(-1, keepdim=True) + 1e-8)
        e1 = axes[..., 1] - e0 * (e0 * axes[..., 1]).sum(-1, keepdim=True)
        e1 = e1 / torch.sqrt((e1**2).sum(-1, keepdim=True) + 1e-8)
        rotation = torch.stack([e0, e1, torch.cross(e0, e1, dim=-1)], dim=-1)
        q, k, v = self.qkv(s).view(*s.shape[:-1], 2, 12).split(4, -1)
        points = torch.stack(torch.split(self.points(s), 12, dim=-1), dim=-1)
        points = torch.einsum("bnij,bnpj->bnpi", rotation, points) + origin[..., None, :]
        qp, kp, vp = points.view(*s.shape[:-1], 2, 6, 3).split([2, 2, 2], dim=-2)
        scores = torch.einsum("bihc,bjhc->bhij", q, k) * math.sqrt(1.0 / (3 * 4))
        scores = scores + math.sqrt(1.0 / 3) * self.bias(z).permute(0, 3, 1, 2)
        apart = ((qp.unsqueeze(-4) - kp.unsqueeze(-5)) ** 2).sum(-1)
        weights = F.softplus(self.head_weights).view(*((1,) * len(apart.shape[:-2])), -1, 1)
        scores = scores - 0.5 * (apart * weights * math.sqrt(1.0 / (3 * (2 * 9.0 / 2)))).sum(-1).permute(0, 3, 1, 2)
        a = scores.softmax(-1)
        values = torch.einsum("bhij,bjhc->bihc", a, v).flatten(-2)
        places = torch.einsum("bhij,bjhpx->bihpx", a, vp)
        places = torch.einsum("bnji,bnhpj->bnhpi", rotation, places - origin[..., None, None, :])
        lengths = torch.sqrt((places**2).sum(-1) + 1e-8)
        pairs = torch.einsum("bhij,bijc->bihc", a, z).flatten(-2)
        joined = torch.cat((values, *torch.unbind(places.flatten(-3, -2), -1), lengths.flatten(-2), pairs), -1)
        local = torch.einsum("bfji,bfnj->bfni", rotation, origin[:, None] - origin[:, :, None])
        error = torch.sqrt(((local - local.detach().flip(1)) ** 2).sum(-1) + 1e-4).clamp(max=10.0).mean()
        return self.out(joined), error


@CASES.module(lambda n: (randn(n, 4, 3),), 2, 3)
class Electrons(nn.Module):
    """FermiNet: streams of one and two electrons, envelopes, signed logarithms of determinants by spin."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("atoms", randn(2, 3))
        self.one, self.two = nn.Linear(8 * 3 + 8, 8), nn.Linear(4, 4)
        self.orbitals = nn.ModuleList(nn.Linear(8, 2 * 2) for _ in range(2))
        self.sigma, self.pi = nn.Parameter(rand(2, 2, 4)), nn.Parameter(rand(2, 2, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from_atoms = x[:, :, None] - self.atoms
        distance = from_atoms.norm(dim=-1, keepdim=True)
        h = torch.cat([from_atoms, distance], -1).flatten(-2)
        pair = x[:, None] - x[:, :, None]
        length = (pair + torch.eye(4, dtype=x.dtype)[..., None]).norm(dim=-1, keepdim=True)
        h2 = torch.cat([pair, length * (1 - torch.eye(4, dtype=x.dtype))[..., None]], -1)
        means = [m.mean(1, keepdim=True).expand(-1, 4, -1) for m in h.split(2, dim=1)]
        h = torch.tanh(self.one(torch.cat([h, *means, *(m.mean(1) for m in torch.tanh(self.two(h2)).split(2, 1))], -1)))
        signs, logs = [], []
        for spin, (layer, part) in enumerate(zip(self.orbitals, h.split(2, dim=1), strict=True)):
            r = distance[:, 2 * spin : 2 * spin + 2]
            envelope = (torch.exp(-r * self.sigma[spin].abs()[:, :]) * self.pi[spin]).sum(2)
            sign, log = torch.linalg.slogdet((layer(part) * envelope).view(-1, 2, 2, 2).transpose(1, 2))
            signs.append(sign)
            logs.append(log)
        sign, log = signs[0] * signs[1], logs[0] + logs[1]
        most = log.max(dim=1, keepdim=True).values
        total = (sign * torch.exp(log - most)).sum(1)
        return total.sign(), total.abs().log() + most[:, 0]


@CASES.function(lambda n: (randn(n, n), randn(n, n)), 5, 6)
def self_consistent_field(raw: Tensor, raw_overlap: Tensor) -> tuple[Tensor, Tensor]:
    """Hartree and Fock: a symmetric orthogonaliser, Coulomb and exchange by einsum, occupied orbitals by eigh."""
    n = raw.shape[0]
    core = (raw + raw.T) / 2 + torch.diag(torch.arange(n, dtype=raw.dtype) * 3 - 5)
    overlap = torch.eye(n, dtype=raw.dtype) + 0.02 * (raw_overlap + raw_overlap.T)
    low = 0.1 * torch.einsum("ij,kl->ijkl", overlap, overlap)
    values, vectors = torch.linalg.eigh(overlap)
    x = vectors @ torch.diag(values**-0.5) @ vectors.T
    density = torch.zeros_like(core)
    fock = core
    for _ in range(3):
        coulomb = torch.einsum("pqrs,rs->pq", low, density)
        exchange = torch.einsum("prqs,rs->pq", low, density)
        fock = core + 2 * coulomb - exchange
        _, orbitals = torch.linalg.eigh(x.T @ fock @ x)
        occupied = (x @ orbitals)[:, :2]
        density = 0.5 * density + 0.5 * occupied @ occupied.T
    return (density * (core + fock)).sum(), density


# --- matter ---------------------------------------------------------------------------------------------------------


@CASES.function(lambda n: (rand(n, 2) * 0.6 + 0.2, randn(n, 2), randn(n, 2, 2) / 9), 12, 17)
def material_points(x: Tensor, v: Tensor, affine: Tensor) -> tuple[Tensor, ...]:
    """The material point method: quadratic kernels to a grid and back, walls, an elastic stress by singular values."""
    n_cells, dt = 8, 1e-2
    gradient = torch.eye(2, dtype=x.dtype).expand(x.shape[0], 2, 2)
    for _ in range(2):
        base = (x * n_cells - 0.5).int()
        fx = x * n_cells - base.to(x.dtype)
        w = torch.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2], 1)
        gradient = gradient + dt * affine @ gradient
        u, s, vh = torch.linalg.svd(gradient)
        rotation = u @ vh
        stress = (
            -dt
            * 4
            * n_cells
            * (2 * (gradient - rotation) @ gradient.mT + ((s.prod(-1) - 1) * s.prod(-1))[:, None, None] * torch.eye(2))
        )
        momentum = stress * 0.1 + affine
        offsets = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij"), -1).view(9, 2)
        cells = (base[:, None] + offsets).clamp(0, n_cells - 1)
        flat = (cells[..., 0] * n_cells + cells[..., 1]).long()
        weight = w[:, offsets[:, 0], 0] * w[:, offsets[:, 1], 1]
        away = (offsets.to(x.dtype) - fx[:, None]) / n_cells
        carried = weight[..., None] * (v[:, None] + torch.einsum("nij,noj->noi", momentum, away))
        grid = torch.zeros(n_cells**2, 2, dtype=x.dtype).index_add(0, flat.view(-1), carried.view(-1, 2))
        mass = torch.zeros(n_cells**2, dtype=x.dtype).index_add(0, flat.view(-1), weight.view(-1))
        grid = torch.where(mass[:, None] > 0, grid / mass.clamp(min=1e-12)[:, None], 0.0)
        grid = grid.view(n_cells, n_cells, 2).clone()
        grid[..., 1] -= dt * 9.8
        grid[:1, :, 0] = grid[:1, :, 0].clamp(min=0)
        grid[-1:, :, 0] = grid[-1:, :, 0].clamp(max=0)
        grid[:, 0, 1].clamp_(min=0)
        near = grid.view(-1, 2)[flat]
        v = (weight[..., None] * near).sum(1)
        affine = 4 * n_cells * torch.einsum("no,noi,noj->nij", weight, near, away)
        x = x + dt * v
    return x, v, affine, mass


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


@CASES.module(lambda n: (rand(n, 5, 6),), 3, 4)
class SpikingNet(nn.Module):
    """snnTorch: leaky neurons whose state lives in the module between steps, resets by subtraction, spike counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 3)])
        self.decay = nn.Parameter(torch.tensor([0.9, 0.8]))
        self.membranes: list[Tensor | None] = [None, None]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.membranes = [None, None]
        spikes, traces = [], []
        for t in range(x.shape[1]):
            current = x[:, t]
            for i, layer in enumerate(self.layers):
                current = layer(current) * 2
                state = self.membranes[i]
                if state is None:
                    state = torch.zeros_like(current)
                reset = (state > 1.0).to(state.dtype).detach()
                state = self.decay[i].clamp(0, 1) * state + current - reset * 1.0
                self.membranes[i] = state
                current = _Spike.apply(state - 1.0)
            spikes.append(current)
            traces.append(state)
        return torch.stack(spikes, 0).sum(0), torch.stack(traces, 0)


@CASES.module(lambda n: (rand(1, 8, n, n), rand(2, n, n)), 9, 12)
class GrowingCells(nn.Module):
    """Growing cellular automata: perception by fixed filters, updates by chance, life by a maximum."""

    def __init__(self) -> None:
        super().__init__()
        identity = torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]])
        across = torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([-1.0, 0, 1])) / 8
        self.register_buffer("filters", torch.stack([identity, across, across.T])[:, None].repeat(8, 1, 1, 1))
        self.first, self.last = nn.Conv2d(24, 12, 1), nn.Conv2d(12, 8, 1, bias=False)

    @staticmethod
    def alive(x: Tensor) -> Tensor:
        return F.max_pool2d(x[:, 3:4], kernel_size=3, stride=1, padding=1) > 0.85

    def forward(self, x: Tensor, chance: Tensor) -> Tensor:
        for step in range(2):
            before = self.alive(x)
            y = F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), self.filters, groups=8)
            x = x + self.last(F.relu(self.first(y))) * (chance[step][None, None] <= 0.5).float()
            x = x * (before & self.alive(x)).to(x.dtype)
        return x


@CASES.function(lambda n: (1 + rand(n, n) / 9, randn(2, n, n) / 20), 8, 11)
def shallow_water(height: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    """Lax and Friedrichs's steps of shallow water in conserved form, the rest of the field rolled around."""

    def across(q: Tensor) -> Tensor:
        h, hu, hv = q
        return torch.stack([hu, hu * hu / h + 0.5 * 9.81 * h**2, hu * hv / h])

    def along(q: Tensor) -> Tensor:
        h, hu, hv = q
        return torch.stack((hv, hu * hv / h, hv**2 / h + 0.5 * 9.81 * h.square()))

    q = torch.cat([height[None], height * velocity])
    for _ in range(3):
        mean = sum(q.roll(s, d) for s in (1, -1) for d in (1, 2)) / 4
        q = mean - 0.005 * (
            across(q).roll(-1, dims=1)
            - across(q).roll(1, dims=1)
            + along(q).roll(-1, dims=2)
            - along(q).roll(1, dims=2)
        )
    vorticity = torch.gradient(q[2] / q[0], dim=0)[0] - torch.gradient(q[1] / q[0], dim=1, edge_order=2)[0]
    return q, vorticity


@CASES.function(lambda n: (randint(0, 4, (2, n)),), 7, 7)
def folded_strand(bases: Tensor) -> tuple[Tensor, Tensor]:
    """Nussinov's table of base pairs by growing spans, in whole numbers; how many structures by the same recursion."""
    n = bases.shape[1]
    pairs = (bases[:, :, None] + bases[:, None, :]) == 3
    best = torch.zeros(bases.shape[0], n + 1, n + 1, dtype=torch.int32)
    ways = torch.ones(bases.shape[0], n + 1, n + 1, dtype=torch.int64)
    for span in range(2, n):
        for i in range(n - span):
            j = i + span
            top = best[:, i + 1, j]
            count = ways[:, i + 1, j].clone()
            for k in range(i + 2, j + 1):
                inside, outside = best[:, i + 1, k - 1], best[:, min(k + 1, n), j]
                bound = pairs[:, i, k].int()
                top = torch.maximum(top, (inside + outside + 1) * bound)
                count += pairs[:, i, k] * ways[:, i + 1, k - 1] * ways[:, min(k + 1, n), j]
            best[:, i, j] = top
            ways[:, i, j] = count
    return best, ways[:, 0, n - 1]
