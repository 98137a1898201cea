"""Newcomer models of points and graphs, and numerical methods as their repositories write them.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


def points(n: int) -> tuple[Tensor]:
    """Two clouds of points in space."""
    return (randn(2, n, 3),)


@CASES.module(points, 8, 13)
class EdgeConvolution(nn.Module):
    """Nearest neighbours in feature space, convolved differences, the largest of each point."""

    def __init__(self, k: int = 4) -> None:
        super().__init__()
        self.k = k
        self.first = nn.Sequential(nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12), nn.LeakyReLU(0.2))
        self.second = nn.Sequential(nn.Conv2d(24, 16, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2))

    def edges(self, x: Tensor) -> Tensor:
        """Pairs of each point with its neighbours: batch x 2 channels x points x k."""
        b, c, n = x.shape
        square = (x**2).sum(1, keepdim=True)
        index = (2 * x.mT @ x - square - square.mT).topk(self.k, dim=-1)[1]
        flat = (index + torch.arange(b).view(-1, 1, 1) * n).view(-1)
        near = x.mT.reshape(b * n, c)[flat].view(b, n, self.k, c)
        here = x.mT[:, :, None].expand(-1, -1, self.k, -1)
        return torch.cat([near - here, here], 3).permute(0, 3, 1, 2).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(self.edges(x.mT)).amax(-1)
        b = self.second(self.edges(a)).amax(-1)
        pooled = torch.cat([a, b], 1)
        return torch.cat([F.adaptive_max_pool1d(pooled, 1), F.adaptive_avg_pool1d(pooled, 1)], 1).squeeze(-1)


@CASES.module(points, 6, 9)
class KernelPoints(nn.Module):
    """Weights that sit at points in space; each neighbour is weighted by its distance to them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", F.normalize(randn(7, 3), dim=-1) * 0.6)
        self.weights = nn.Parameter(randn(7, 4, 8) * 0.3)
        self.lift = nn.Linear(3, 4)

    def forward(self, p: Tensor) -> Tensor:
        features = self.lift(p)
        offsets = p[:, None] - p[:, :, None]
        apart = torch.cdist(offsets.flatten(0, 2)[None], self.kernel[None]).view(*offsets.shape[:3], 7)
        influence = (1 - apart / 1.2).clamp(min=0) * (offsets.norm(dim=-1, keepdim=True) < 2)
        gathered = torch.einsum("bijk,bjc->bikc", influence, features)
        return torch.einsum("bikc,kco->bio", gathered, self.weights)


@CASES.module(lambda n: (randn(n, 4), randn(n, 3, 3), randint(0, n, (2, 3 * n))), 7, 10)
class VectorsAndScalars(nn.Module):
    """Messages of scalars and vectors along edges; a rotation of the input rotates the vectors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 10))
        self.mix = nn.Parameter(randn(3, 3) * 0.5)
        self.update = nn.Sequential(nn.Linear(7, 8), nn.SiLU(), nn.Linear(8, 7))

    def forward(self, s: Tensor, v: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        m = self.message(torch.cat([s[source], s[target]], -1))
        ds, gate, cross = m.split([4, 3, 3], -1)
        turned = torch.linalg.cross(v[source], v[target], dim=-1)
        s = s.index_add(0, target, ds)
        v = v.index_add(0, target, gate[..., None] * v[source] + cross[..., None] * turned)
        mixed = torch.einsum("nkc,kl->nlc", v, self.mix)
        scale, shift = self.update(torch.cat([s, (mixed**2).sum(-1).add(1e-6).sqrt()], -1)).split([3, 4], -1)
        return s + shift, v + scale[..., None] * mixed


@CASES.module(lambda n: (randn(n, 5), (rand(n, n) > 0.6).float()), 8, 12)
class SpectralPositions(nn.Module):
    """Laplacian eigenvectors (squared, since signs are free) as positions, attention biased by path lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.q, self.k, self.v = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.bias = nn.Embedding(4, 1)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        a = torch.maximum(a, a.T).fill_diagonal_(0)
        scale = a.sum(1).clamp_min(1).rsqrt()
        laplacian = torch.eye(len(a), dtype=x.dtype) - scale[:, None] * a * scale
        _, vectors = torch.linalg.eigh(laplacian + torch.diag(torch.linspace(0, 1, len(a), dtype=x.dtype)))
        reach, hops = torch.eye(len(a), dtype=a.dtype), torch.full(a.shape, 3)
        for k in range(3):
            hops = torch.where((reach > 0) & (hops == 3), k, hops)
            reach = reach @ (a + torch.eye(len(a), dtype=a.dtype))
        h = self.lift(torch.cat([x, vectors[:, :3] ** 2], -1))
        scores = self.q(h) @ self.k(h).T / math.sqrt(12) + self.bias(hops).squeeze(-1)
        return h + scores.softmax(-1) @ self.v(h)


@CASES.module(lambda n: (randn(n, 6), randint(0, n, (2, 2 * n)), randint(0, 3, (n,)).sort()[0]), 9, 14)
class VirtualNode(nn.Module):
    """Sums over neighbours, and one more node in every graph that all of its nodes speak to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6)) for _ in range(2)
        )
        self.eps, self.virtual = nn.Parameter(torch.zeros(2)), nn.Embedding(1, 6)
        self.talk = nn.Linear(6, 6)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        node = self.virtual(torch.zeros(3, dtype=torch.long))
        for layer, eps in zip(self.layers, self.eps, strict=True):
            x = x + node[graph]
            near = torch.zeros_like(x).scatter_add_(0, edges[1][:, None].expand(-1, 6), x[edges[0]].relu())
            node = node + F.relu(self.talk(torch.zeros_like(node).index_add_(0, graph, x)))
            x = layer((1 + eps) * x + near)
        count = torch.bincount(graph, minlength=3).clamp(min=1)
        return torch.zeros_like(node).index_add_(0, graph, x) / count[:, None]


@CASES.function(lambda n: (randn(2, n), randint(0, 8, (2, 12)), rand(2, 12)), 8, 16)
def quantum_circuit(angles: Tensor, wires: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A state of three qubits under rotations and controlled flips, expectations, and amplitudes of a register."""
    state = torch.zeros(2, 2, 2, 2, dtype=torch.complex64)
    state[:, 0, 0, 0] = 1
    for k in range(6):
        half, wire = angles[:, k] / 2, k % 3
        c, s = half.cos().to(torch.complex64), half.sin().to(torch.complex64)
        gate = torch.stack([c, -1j * s, -1j * s, c], -1).view(2, 2, 2)
        moved = torch.einsum("bij,bjkl->bikl", gate, state.movedim(wire + 1, 1))
        state = moved.movedim(1, wire + 1)
        after = state.clone()
        after[:, 1] = state[:, 1].flip(1)
        state = after
    chance = state.abs().square()
    z = torch.stack([chance.sum((2, 3)), chance.sum((1, 3)), chance.sum((1, 2))], 1)
    flat = chance.flatten(1)
    return z[..., 0] - z[..., 1], flat.gather(1, wires) + 0.0 * noise


@CASES.function(lambda n: (randn(n, n) / 4, randn(n)), 5, 8)
def time_evolution(a: Tensor, psi: Tensor) -> tuple[Tensor, Tensor]:
    """A state moved by the exponential of a Hermitian matrix, and what its parts commute to."""
    h = (a + a.T).to(torch.complex64) + 1j * (a - a.T)
    u = torch.matrix_exp(-0.3j * h)
    after = u @ (psi / psi.norm()).to(torch.complex64)
    commutator = h @ u - u @ h.T
    return after.abs().square(), commutator.abs().max()


@CASES.function(lambda n: (randn(2, n, 3), randint(0, 2, (n,))), 7, 9)
def ctc_alphas(scores: Tensor, labels: Tensor) -> Tensor:
    """The forward recursion over labels with blanks between them, in log space, written out by hand."""
    log_p = scores.log_softmax(-1)
    target = labels[:3] + 1
    extended = torch.zeros(7, dtype=torch.long)
    extended[1::2] = target
    skip = F.pad((extended[2:] != extended[:-2]) & (extended[2:] > 0), (2, 0))
    alpha = torch.full((2, 7), -1e4)
    alpha[:, :2] = log_p[:, 0, extended[:2]]
    for t in range(1, scores.shape[1]):
        one = F.pad(alpha[:, :-1], (1, 0), value=-1e4)
        two = torch.where(skip, F.pad(alpha[:, :-2], (2, 0), value=-1e4), torch.tensor(-1e4))
        alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + log_p[:, t, extended]
    return -torch.logaddexp(alpha[:, -1], alpha[:, -2])


@CASES.function(lambda n: (randn(n, 2), rand(n) * 0.1), 6, 9)
def smoothed_track(seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A Kalman filter forwards, Rauch, Tung and Striebel's smoother backwards."""
    eye = torch.eye(4, dtype=seen.dtype)
    f = eye + 0.1 * eye.roll(2, 1).triu()
    h, q, m, p = eye[:2], eye * 1e-2, torch.zeros_like(eye[0]), eye
    means, covariances, predicted = [], [], []
    for y, r in zip(seen, noise, strict=True):
        m, p = f @ m, f @ p @ f.T + q
        predicted.append((m, p))
        s = h @ p @ h.T + (r + 0.1) * eye[:2, :2]
        gain = torch.linalg.solve(s, h @ p).T
        m, p = m + gain @ (y - h @ m), (eye - gain @ h) @ p
        means.append(m)
        covariances.append(p)
    smooth = [means[-1]]
    for k in range(len(means) - 2, -1, -1):
        ahead, spread = predicted[k + 1]
        c = torch.cholesky_solve(f @ covariances[k], torch.linalg.cholesky(spread)).T
        smooth.append(means[k] + c @ (smooth[-1] - ahead))
    return torch.stack(smooth[::-1]), torch.stack(covariances)


@CASES.function(lambda n: (randn(3, n), rand(3, 1)), 20, 31)
def resampled_particles(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of particles, their effective number, systematic resampling by a search in cumulative sums."""
    weight = (-0.5 * (x - 0.3) ** 2 / 0.2).softmax(-1)
    effective = 1 / weight.square().sum(-1)
    n = x.shape[-1]
    places = (torch.arange(n) + start) / n
    index = torch.searchsorted(weight.cumsum(-1), places).clamp(max=n - 1)
    return effective, torch.where(effective[:, None] < n / 2, x.gather(-1, index), x)


@CASES.function(lambda n: (rand(n, 6), rand(n, 4)), 9, 14)
def greedy_matching(queries: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Costs of classes, distances and overlaps of boxes; the cheapest free pair is taken five times."""
    chance = queries[:, 4:].softmax(-1)[:, :1]
    a, b = queries[:, None, :4], targets[None]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    union = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inner
    cost = 5 * torch.cdist(queries[:, :4], targets, p=1) - chance - 2 * inner / (union + 1e-6)
    left, n, total = cost.clone(), targets.shape[0], cost.new_zeros(())
    who = torch.full((n,), -1)
    for _ in range(5):
        at = left.argmin()
        i, j = at // n, at % n
        who[j] = i
        total = total + cost[i, j]
        left[i] = torch.inf
        left[:, j] = torch.inf
    return cost, who, total


@CASES.function(lambda n: (rand(1, 4, n, n), randn(1, 16, n, n)), 4, 6)
def proposals(scores: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
    """Anchors by sizes and ratios, boxes from deltas clipped to the picture, the best ones."""
    n = scores.shape[-1]
    sizes, ratios = torch.tensor([8.0, 16.0]), torch.tensor([0.5, 2.0]).sqrt()
    w, h = (sizes[:, None] / ratios).flatten(), (sizes[:, None] * ratios).flatten()
    base = torch.stack([-w, -h, w, h], 1) / 2
    y, x = torch.meshgrid(torch.arange(n) * 8.0, torch.arange(n) * 8.0, indexing="ij")
    shift = torch.stack([x, y, x, y], -1).view(-1, 1, 4)
    anchors = (shift + base).view(-1, 4)
    d = deltas.view(1, 4, 4, n, n).permute(0, 3, 4, 1, 2).reshape(-1, 4)
    size, centre = anchors[:, 2:] - anchors[:, :2], (anchors[:, 2:] + anchors[:, :2]) / 2
    middle = d[:, :2] * size + centre
    extent = d[:, 2:].clamp(max=math.log(62.5)).exp() * size
    boxes = torch.cat([middle - extent / 2, middle + extent / 2], 1).clamp(0, 8 * n)
    best, at = scores.permute(0, 2, 3, 1).flatten().topk(10)
    return boxes[at], best


@CASES.function(lambda n: (randn(n, 3), F.normalize(randn(n, 4), dim=-1), rand(n, 3) + 0.1, randn(n, 9, 3)), 7, 12)
def projected_splats(x: Tensor, q: Tensor, scale: Tensor, colour: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Covariances projected to a picture, their inverses and radii, colours by spherical harmonics of degree two."""
    w, i, j, k = q.unbind(-1)
    turn = torch.stack(
        [
            *(1 - 2 * (j * j + k * k), 2 * (i * j - w * k), 2 * (i * k + w * j)),
            *(2 * (i * j + w * k), 1 - 2 * (i * i + k * k), 2 * (j * k - w * i)),
            *(2 * (i * k - w * j), 2 * (j * k + w * i), 1 - 2 * (i * i + j * j)),
        ],
        -1,
    ).view(-1, 3, 3)
    root = turn * scale[:, None]
    z = x[:, 2].abs() + 2
    zero = torch.zeros_like(z)
    jacobian = torch.stack([1 / z, zero, -x[:, 0] / z**2, zero, 1 / z, -x[:, 1] / z**2], -1).view(-1, 2, 3)
    flat = jacobian @ (root @ root.mT) @ jacobian.mT + 0.3 * torch.eye(2)
    a, b, c = flat[:, 0, 0], flat[:, 0, 1], flat[:, 1, 1]
    det = a * c - b * b
    middle = (a + c) / 2
    radius = 3 * (middle + (middle**2 - det).clamp_min(0.1).sqrt()).sqrt()
    dx, dy, dz = F.normalize(x, dim=-1).unbind(-1)
    one = torch.full_like(dx, 0.2821)
    first = [one, -0.4886 * dy, 0.4886 * dz, -0.4886 * dx]
    second = [1.0925 * dx * dy, -1.0925 * dy * dz, 0.3154 * (3 * dz**2 - 1), -1.0925 * dx * dz]
    basis = torch.stack([*first, *second, 0.5463 * (dx * dx - dy * dy)], -1)
    return torch.stack([c, -b, a], -1) / det[:, None], radius, (torch.einsum("ns,nsc->nc", basis, colour) + 0.5).relu()


@CASES.function(lambda n: (randint(97, 123, (2, n), dtype=torch.uint8),), 14, 21)
def hashed_ngrams(text: Tensor) -> tuple[Tensor, Tensor]:
    """Windows of three bytes hashed into buckets with wrapping 32-bit products, and counts of buckets."""
    grams = text.to(torch.int32).unfold(-1, 3, 1)
    h = torch.full(grams.shape[:-1], -2128831035, dtype=torch.int32)
    for k in range(3):
        h = (h ^ grams[..., k]) * 16777619
    bucket = (h.long() & 0xFFFFFFFF) % 16
    return bucket, torch.zeros(2, 16, dtype=torch.long).scatter_add_(1, bucket, torch.ones_like(bucket))


@CASES.function(lambda n: (randint(0, 6, (2, n)), randint(0, 6, (2,))), 12, 18)
def merged_pairs(ids: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """One merge of byte pairs: where a pair stands, without overlaps, and the shorter row with padding behind."""
    first = (ids[:, :-1] == pair[0]) & (ids[:, 1:] == pair[1])
    taken = [torch.zeros_like(first[:, 0])]
    for t in range(first.shape[1]):
        taken.append(first[:, t] & ~taken[-1])
    starts = torch.stack([*taken[1:], torch.zeros_like(taken[0])], 1)
    gone = F.pad(starts[:, :-1], (1, 0))
    merged = torch.where(starts, 99, ids)
    order = gone.to(torch.uint8).argsort(dim=1, stable=True)
    kept = (~gone).sum(1, keepdim=True)
    return merged.gather(1, order).masked_fill(torch.arange(ids.shape[1]) >= kept, -1), kept


@CASES.function(lambda n: (randint(0, 256, (n,), dtype=torch.uint8),), 12, 18)
def sextets(x: Tensor) -> tuple[Tensor, Tensor]:
    """Three bytes to four letters of base 64 and back."""
    alphabet = torch.arange(64, dtype=torch.uint8) + 48
    a, b, c = x.view(-1, 3).unbind(1)
    four = torch.stack([a >> 2, ((a & 3) << 4) | (b >> 4), ((b & 15) << 2) | (c >> 6), c & 63], 1)
    p, q, r, s = four.unbind(1)
    back = torch.stack([(p << 2) | (q >> 4), (q << 4) | (r >> 2), (r << 6) | s], 1)
    return alphabet[four.long()].flatten(), back.flatten() == x


@CASES.function(lambda n: (randn(2, n),), 256, 320)
def reconstructed_phase(x: Tensor) -> tuple[Tensor, Tensor]:
    """Griffin and Lim's iterations: magnitudes are kept, phases come from what a transform back and forth gives."""
    window = torch.hann_window(64)
    magnitude = torch.stft(x, 64, 16, window=window, return_complex=True).abs()
    angles = torch.ones_like(magnitude).to(torch.complex64)
    for _ in range(2):
        wave = torch.istft(magnitude * angles, 64, 16, window=window, length=x.shape[-1])
        rebuilt = torch.stft(wave, 64, 16, window=window, return_complex=True)
        angles = rebuilt / (rebuilt.abs() + 1e-3)
    return torch.istft(magnitude * angles, 64, 16, window=window, length=x.shape[-1]), magnitude


@CASES.function(lambda n: (torch.polar(rand(2, 17, n) + 0.1, rand(2, 17, n)),), 10, 15)
def stretched_time(spectrum: Tensor) -> Tensor:
    """A phase vocoder: frames between frames, phases by accumulated advances."""
    advance = torch.linspace(0, math.pi * 8, 17)[:, None]
    steps = torch.arange(0, spectrum.shape[-1], 1.5)
    padded = F.pad(spectrum, (0, 2))
    a, b = padded[..., steps.long()], padded[..., (steps + 1).long()]
    norm_a, norm_b = a.abs(), b.abs()
    phase = b.angle() - a.angle() - advance
    phase = phase - 2 * math.pi * torch.round(phase / (2 * math.pi)) + advance
    total = torch.cat([spectrum.angle()[..., :1], phase[..., :-1]], -1).cumsum(-1)
    alpha = steps % 1.0
    return torch.polar(alpha * norm_b + (1 - alpha) * norm_a, total)


@CASES.function(lambda n: (randn(2, n),), 40, 57)
def predicted_wave(x: Tensor) -> tuple[Tensor, Tensor]:
    """Levinson and Durbin's recursion for linear prediction, and the residue of the prediction."""
    y = F.pad(x[:, 1:] - 0.97 * x[:, :-1], (1, 0))
    r = torch.stack([(y[:, : y.shape[1] - k] * y[:, k:]).sum(-1) for k in range(5)], -1)
    a, error = torch.ones(2, 1), r[:, 0]
    for k in range(1, 5):
        reflect = -(a * r[:, 1 : k + 1].flip(-1)).sum(-1) / error
        longer = F.pad(a, (0, 1))
        a = longer + reflect[:, None] * longer.flip(-1)
        error = error * (1 - reflect**2)
    residue = F.conv1d(y[None], a.flip(-1)[:, None], groups=2, padding=4)[0, :, : y.shape[1]]
    return a, residue


@CASES.function(lambda n: (randn(3, n) * 0.8,), 30, 41)
def companded(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples to eight bits by the mu law and back, energies of tones, zero crossings."""
    x = x.clamp(-1, 1)
    small = x.sign() * torch.log1p(255 * x.abs()) / math.log(256)
    codes = ((small + 1) / 2 * 255 + 0.5).to(torch.uint8)
    back = codes.float() / 255 * 2 - 1
    back = back.sign() * (torch.exp(back.abs() * math.log(256)) - 1) / 255
    n = torch.arange(x.shape[-1], dtype=x.dtype)
    w = 2 * math.pi * torch.tensor([0.1, 0.22])[:, None] * n
    power = (x @ w.cos().T) ** 2 + (x @ w.sin().T) ** 2
    return codes, back, power


@CASES.function(lambda n: (rand(9, n, n) * 0.1 + 0.1,), 6, 9)
def lattice_boltzmann(f: Tensor) -> tuple[Tensor, Tensor]:
    """Two steps of a fluid on a lattice with nine velocities and a wall that reflects."""
    cx = torch.tensor([0, 1, 0, -1, 0, 1, -1, -1, 1])
    cy = torch.tensor([0, 0, 1, 0, -1, 1, 1, -1, -1])
    w = torch.tensor([4 / 9, *[1 / 9] * 4, *[1 / 36] * 4])[:, None, None]
    opposite = torch.tensor([0, 3, 4, 1, 2, 7, 8, 5, 6])
    wall = torch.zeros(f.shape[1:], dtype=torch.bool)
    wall[0] = wall[-1] = True
    for _ in range(2):
        rho = f.sum(0)
        ux, uy = (torch.tensordot(c.to(f.dtype), f, 1) / rho for c in (cx, cy))
        cu = cx[:, None, None] * ux + cy[:, None, None] * uy
        equal = w * rho * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (ux**2 + uy**2))
        f = torch.where(wall, f[opposite], f - (f - equal) / 0.8)
        f = torch.stack([f[k].roll((int(cx[k]), int(cy[k])), (0, 1)) for k in range(9)])
    return rho, ux


@CASES.function(lambda n: (randn(1, 1, 4 * n, 4 * n),), 3, 4)
def multigrid_cycle(b: Tensor) -> tuple[Tensor, Tensor]:
    """A V cycle for Poisson's equation: weighted Jacobi, full weighting down, bilinear up."""
    kernel = b.new_tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]])[None, None]

    def relax(u: Tensor, f: Tensor) -> Tensor:
        for _ in range(2):
            u = u + 0.2 * (f - F.conv2d(u, kernel, padding=1))
        return u

    def cycle(u: Tensor, f: Tensor, depth: int) -> Tensor:
        u = relax(u, f)
        if depth:
            coarse = F.avg_pool2d(f - F.conv2d(u, kernel, padding=1), 2) * 4
            error = cycle(torch.zeros_like(coarse), coarse, depth - 1)
            u = u + F.interpolate(error, scale_factor=2, mode="bilinear", align_corners=False)
        return relax(u, f)

    u = cycle(torch.zeros_like(b), b, 2)
    return u, (b - F.conv2d(u, kernel, padding=1)).norm()


@CASES.function(lambda n: (rand(n, 3) * 5,), 9, 14)
def periodic_energy(x: Tensor) -> tuple[Tensor, Tensor]:
    """Lennard-Jones energies and forces in a box that repeats, by the nearest image."""

    def energy(p: Tensor) -> Tensor:
        d = p[:, None] - p
        d = d - 5 * (d / 5).round()
        square = d.square().sum(-1) + 100 * torch.eye(len(p)) + 0.5
        six = square**-3
        return 2 * ((six**2 - six) * (square < 6.25)).sum()

    return energy(x), -torch.func.grad(energy)(x)


@CASES.function(lambda n: (rand(n) * 50 + 75, rand(n) * 0.3 + 0.1), 6, 11)
def option_prices(spot: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Black and Scholes's formula, its delta by autograd's forward mode, an American put by a tree."""

    def call(s: Tensor) -> Tensor:
        d1 = ((s / 100).log() + (0.02 + sigma**2 / 2) * 0.5) / (sigma * 0.5**0.5)
        normal = torch.distributions.Normal(0.0, 1.0)
        return s * normal.cdf(d1) - 100 * math.exp(-0.01) * normal.cdf(d1 - sigma * 0.5**0.5)

    price, delta = torch.func.jvp(call, (spot,), (torch.ones_like(spot),))
    steps = 8
    up = torch.exp(sigma * math.sqrt(0.5 / steps))[:, None]
    p = (math.exp(0.02 * 0.5 / steps) - 1 / up) / (up - 1 / up)
    value = (100 - spot[:, None] * up ** (2 * torch.arange(steps + 1) - steps)).clamp_min(0)
    for k in range(steps - 1, -1, -1):
        held = math.exp(-0.02 * 0.5 / steps) * (p * value[:, 1:] + (1 - p) * value[:, :-1])
        value = torch.maximum(held, 100 - spot[:, None] * up ** (2 * torch.arange(k + 1) - k))
    return price, delta, value[:, 0]


@CASES.function(lambda n: (randint(0, 4, (n,)), randint(0, 4, (n + 2,))), 6, 8)
def local_alignment(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Smith and Waterman's scores, anti-diagonal by anti-diagonal in a sheared table."""
    n, m = a.shape[0], b.shape[0]
    score = torch.where(a[:, None] == b, 2, -1)
    table = torch.zeros(n + 1, m + 1, dtype=torch.long)
    for d in range(n + m - 1):
        i = torch.arange(max(0, d - m + 1), min(n, d + 1))
        j = d - i
        best = torch.maximum(table[i, j] + score[i, j], torch.maximum(table[i, j + 1], table[i + 1, j]) - 1)
        table[i + 1, j + 1] = best.clamp_min(0)
    return table, table.max()


@CASES.function(lambda n: (rand(n) * 3, rand(n)), 10, 16)
def fitted_curve(t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Levenberg and Marquardt's steps: a Jacobian by forward mode, damped normal equations, a step kept if it helps."""

    def residue(p: Tensor) -> Tensor:
        return p[0] * torch.exp(-p[1] * t) + p[2] - y

    p, damping = torch.tensor([1.0, 0.5, 0.1]), torch.tensor(0.1)
    for _ in range(3):
        jacobian, r = torch.func.jacfwd(residue)(p), residue(p)
        normal = jacobian.T @ jacobian
        step = torch.linalg.solve(normal + damping * torch.diag(normal.diag() + 0.1), jacobian.T @ r)
        better = residue(p - step).square().sum() < r.square().sum()
        p, damping = torch.where(better, p - step, p), torch.where(better, damping / 3, damping * 2)
    return p, residue(p).square().mean()


@CASES.function(lambda n: (F.normalize(randn(n, 4), dim=-1), F.normalize(randn(n, 4), dim=-1), rand(n, 1)), 6, 9)
def turned_frames(a: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Spherical interpolation of quaternions, the logarithm and exponential of rotations, a six-number form."""
    dot = (a * b).sum(-1, keepdim=True)
    b, dot = torch.where(dot < 0, -b, b), dot.abs().clamp(max=0.9995)
    theta = dot.acos()
    q = F.normalize((((1 - t) * theta).sin() * a + (t * theta).sin() * b) / theta.sin(), dim=-1)
    vector = q[:, 1:]
    length = vector.norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(length, q[:, :1]) * vector / length.clamp_min(1e-6)
    zero = torch.zeros_like(angle[:, 0])
    x, y, z = angle.unbind(-1)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(-1, 3, 3)
    size = angle.norm(dim=-1)[:, None, None].clamp_min(1e-4)
    turn = torch.eye(3) + size.sin() / size * skew + (1 - size.cos()) / size**2 * skew @ skew
    return q, turn, turn[..., :2].flatten(1)


@CASES.function(lambda n: (rand(1, 1, n, n),), 8, 11)
def carved_seam(x: Tensor) -> tuple[Tensor, Tensor]:
    """The cheapest path from the top to the bottom by dynamic programming, traced back, and cut out."""
    energy = (F.pad(x, (1, 1, 1, 1), mode="replicate")[..., 1:-1, 2:] - x).abs()[0, 0]
    cost, back = [energy[0]], []
    for row in energy[1:]:
        padded = F.pad(cost[-1], (1, 1), value=1e3)
        best, at = torch.stack([padded[:-2], padded[1:-1], padded[2:]]).min(0)
        cost.append(row + best)
        back.append(at - 1)
    j = cost[-1].argmin()
    seam = [j]
    for at in reversed(back):
        j = j + at[j]
        seam.append(j)
    where = torch.stack(seam[::-1])
    kept = torch.arange(x.shape[-1]) != where[:, None]
    return where, x[0, 0][kept].view(x.shape[-2], x.shape[-1] - 1)


@CASES.function(lambda n: (rand(1, 1, n, n), rand(1, 1, n, n)), 9, 12)
def stereo_census(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Bits of who is darker among neighbours, distances of the bits at shifts, a bilateral filter."""

    def census(x: Tensor) -> Tensor:
        near = F.unfold(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3).view(9, *x.shape[-2:])
        return ((near < x[0]).long() << torch.arange(9)[:, None, None]).sum(0)

    a, b = census(left), census(right)
    costs = []
    for d in range(4):
        differ = a ^ F.pad(b, (d, 0))[..., : b.shape[-1]]
        costs.append(sum((differ >> k) & 1 for k in range(9)))
    disparity = torch.stack(costs).argmin(0)
    patches = F.unfold(left, 3, padding=1).view(9, *left.shape[-2:])
    weight = torch.exp(-((patches - left[0]) ** 2) / 0.1)
    return disparity, (weight * patches).sum(0) / weight.sum(0)


@CASES.function(lambda n: (randn(n, 3), randn(n, 3), randn(4, 3), randint(0, n, (3,))), 6, 9)
def optimiser_steps(p: Tensor, m: Tensor, g: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A layer-wise scaled step, a memory of two differences, and rows that are written in place."""
    grad = torch.zeros_like(p).index_add_(0, at, g[:3])
    m.mul_(0.9).add_(grad, alpha=0.1)
    second = torch.zeros_like(p).addcmul_(grad, grad, value=0.01)
    update = m / 0.1 / ((second / 0.01).sqrt() + 1e-6) + 0.01 * p
    trust = torch.where(update.norm() > 0, p.norm() / update.norm().clamp_min(1e-9), 1.0)
    q, pairs = grad.flatten(), [(p.flatten(), m.flatten() + 3 * p.flatten()), (m.flatten() + 1, 2 * m.flatten() + 2)]
    kept = []
    for s, y in reversed(pairs):
        alpha = s.dot(q) / y.dot(s)
        q = q - alpha * y
        kept.append((s, y, alpha))
    for s, y, alpha in reversed(kept):
        q = q + s * (alpha - y.dot(q) / y.dot(s))
    p[at] -= 0.01 * trust * update[at]
    return trust, q.view_as(p), p.norm(dim=-1)
