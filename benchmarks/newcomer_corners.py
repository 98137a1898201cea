"""Newcomer cases that lean on rarely used calls: odd windows, orders, integer arithmetic, strided and masked views.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.function(lambda n: (rand(2, 3, n, n),), 13, 18)
def mixed_resamplings(x: Tensor) -> tuple[Tensor, ...]:
    """One image at many scales, in each mode."""
    small = F.interpolate(x, scale_factor=0.4, mode="nearest-exact")
    half = F.interpolate(x, scale_factor=0.5, mode="area")
    up = F.interpolate(x, scale_factor=(1.2, 2.0), mode="bilinear")
    wide = F.interpolate(x, size=(x.shape[2], 2 * x.shape[3]), mode="nearest")
    aligned = F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True)
    return small, half, up, wide, aligned


@CASES.function(lambda n: (randn(2, 4, n),), 17, 24)
def odd_pools(x: Tensor) -> tuple[Tensor, ...]:
    """Pools with ceilings, dilations and powers, and the way back by places."""
    most, at = F.max_pool1d(x, 2, 2, return_indices=True)
    back = F.max_unpool1d(most, at, 2, 2, output_size=x.shape[-1:])
    dilated = F.max_pool1d(x, 3, 2, 1, dilation=2, ceil_mode=True)
    mean = F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    power = F.lp_pool1d(x, 3.0, 4, 3, ceil_mode=True)
    return back, dilated, mean, power, F.adaptive_max_pool1d(x, 5)


@CASES.function(lambda n: (randint(-50, 50, (3, n)), randint(1, 9, (n,))), 12, 19)
def whole_numbers(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Divisions that round three ways, shifts, common divisors, digits and a rolling hash."""
    down, toward = a.div(b, rounding_mode="floor"), a.div(b, rounding_mode="trunc")
    rest = a.remainder(b), a.fmod(b)
    digits = (a.abs()[..., None] // 10 ** torch.arange(3)) % 10
    rolled = torch.zeros(3, dtype=torch.long)
    for k in range(8):
        rolled = (rolled * 31 + a[:, k]) % 10007
    return down, toward, *rest, torch.gcd(a, b), (a << 2) ^ (a >> 1), digits.sum(-1), rolled


@CASES.function(lambda n: (randn(4, n),), 15, 22)
def orders_and_ranks(x: Tensor) -> tuple[Tensor, ...]:
    """Middles, modes of rounded values, the k-th, running extremes and the places of all."""
    whole = (x * 2).round()
    middle, place = x.median(1)
    kth = x.kthvalue(5, 1)
    top = torch.topk(x, 4, 1, largest=False).values
    running = whole.cummin(1)
    return middle, place, *kth, top, *running, whole.mode(1).values, x.nanmedian(0).values, x.msort()


@CASES.function(lambda n: (randn(n, 6),), 9, 16)
def strided_views(x: Tensor) -> tuple[Tensor, ...]:
    """Windows, diagonals and flips of one matrix, each written through a view before it is read."""
    y = x.clone()
    y.diagonal().mul_(-1)
    y[::2, 1::3] = 7
    y.T[2].clamp_(min=0)
    y.view(-1)[::5].zero_()
    return y, y.unfold(0, 4, 2).sum(-1), torch.tril(y, -1).flip(0).roll(2, 1), y.T.reshape(3, -1)


@CASES.function(lambda n: (randn(2, n), rand(2, n) > 0.5), 14, 21)
def masked_writes(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Values put, scattered and filled where a mask says."""
    put = x.masked_scatter(mask, torch.arange(2.0 * x.shape[1]))
    filled = x.index_fill(1, torch.tensor([0, 3]), -1.0)
    copied = x.index_copy(1, torch.tensor([2, 1]), x[:, -2:])
    added = x.index_put((torch.tensor([0, 0, 1]), torch.tensor([1, 1, 2])), torch.ones(3), accumulate=True)
    kept = torch.where(mask, x, torch.nan)
    return put, filled, copied, added, kept.nansum(1), kept.nanmean(1), mask.cumsum(1), mask.float().argmax(1)


@CASES.function(lambda n: (randn(n, n), randn(n, 2)), 5, 8)
def solves_and_factors(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Solutions by four factorisations of one matrix, and its determinant."""
    spd = a @ a.T + 3 * torch.eye(a.shape[0])
    lower = torch.linalg.cholesky(spd)
    by_lower = torch.cholesky_solve(b, lower)
    q, r = torch.linalg.qr(spd)
    by_qr = torch.linalg.solve_triangular(r, q.T @ b, upper=True)
    sign, log = torch.linalg.slogdet(spd)
    return by_lower, by_qr, torch.linalg.solve(spd, b), sign, log, torch.linalg.inv(spd).diagonal()


@CASES.function(lambda n: (rand(3, n) + 0.1, rand(3, n) + 0.1), 11, 16)
def divergences(p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
    """Distances of distributions: entropy, Wasserstein, Rényi, and the divergence of two gammas."""
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    middle = (p + q) / 2
    js = (F.kl_div(middle.log(), p, reduction="none") + F.kl_div(middle.log(), q, reduction="none")).sum(1) / 2
    earth = (p.cumsum(1) - q.cumsum(1)).abs().sum(1)
    renyi = torch.log((p**2 / q).sum(1))
    gamma = (p - q) * torch.digamma(p) - torch.lgamma(p) + torch.lgamma(q)
    return js, earth, renyi, gamma, torch.special.entr(p).sum(1), torch.special.xlog1py(p, q)


@CASES.module(lambda n: (randn(2, 6, n),), 19, 26)
class OddConvolutions(nn.Module):
    """Circular and reflected padding, even kernels that keep the size, groups, and the way back with overlaps."""

    def __init__(self) -> None:
        super().__init__()
        self.circular = nn.Conv1d(6, 6, 5, padding=2, padding_mode="circular", groups=3)
        self.even = nn.Conv1d(6, 4, 4, padding="same", dilation=3)
        self.back = nn.ConvTranspose1d(4, 6, 4, 3, 1, output_padding=2, groups=2, dilation=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.hardswish(self.circular(F.pad(x, (3, 2), "reflect")))
        return self.back(self.even(y)), F.pad(y, (-2, 4), "replicate")


@CASES.module(lambda n: (randn(2, n, 8),), 10, 13)
class NormZoo(nn.Module):
    """Norms that few use: groups over time, instances, root mean squares of a part, weights by length."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm1d(8, affine=True)
        self.rms, self.local = nn.RMSNorm(8), nn.LocalResponseNorm(3)
        self.weighted = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.group(x.mT) + self.instance(x.mT)
        y = self.local(y.unsqueeze(-1)).squeeze(-1).mT
        return F.normalize(self.weighted(self.rms(y)), p=3.0, dim=1) + F.layer_norm(y, y.shape[1:])


@CASES.function(lambda n: (randn(2, n, dtype=torch.complex64),), 12, 20)
def complex_signal(z: Tensor) -> tuple[Tensor, ...]:
    """Angles, unwrapped phase, products with conjugates and a polar form."""
    angle = z.angle()
    step = torch.remainder(angle.diff(dim=1) + torch.pi, 2 * torch.pi) - torch.pi
    unwrapped = torch.cat([angle[:, :1], angle[:, :1] + step.cumsum(1)], 1)
    again = torch.polar(z.abs(), unwrapped)
    return unwrapped, again, torch.view_as_real(z * z.conj().roll(1, 1)), torch.linalg.vecdot(z, again), z.exp().sgn()


@CASES.function(lambda n: (randn(n, 4), torch.sort(randint(0, 5, (n,))).values), 17, 23)
def ragged_groups(x: Tensor, owner: Tensor) -> tuple[Tensor, ...]:
    """Sums, means and places within groups of rows that lie together."""
    counts = torch.zeros(5, dtype=torch.long).index_add(0, owner, torch.ones_like(owner))
    starts = counts.cumsum(0) - counts
    within = torch.arange(x.shape[0]) - starts[owner]
    total = torch.zeros(5, 4).index_reduce(0, owner, x, "mean", include_self=False)
    least = torch.full((5, 4), torch.inf).scatter_reduce(0, owner[:, None].expand(-1, 4), x, "amin")
    first = torch.searchsorted(owner, torch.arange(5))
    product = torch.ones(5, 4).scatter_reduce(0, owner[:, None].expand(-1, 4), x, "prod")
    return counts, within, total, least, first, product


@CASES.function(lambda n: (randn(n), randn(n)), 20, 29)
def fitted_splines(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Trapezoids, gradients on uneven points, polynomials by Vandermonde and by Horner."""
    at = x.cumsum(0) + 4 * torch.arange(x.shape[0])
    area = torch.trapezoid(y, at), torch.cumulative_trapezoid(y, dx=0.5)
    (slope,) = torch.gradient(y, spacing=0.5, edge_order=2)
    powers = torch.linalg.vander(x.tanh(), N=4)
    value = torch.zeros_like(x)
    for k in range(4):
        value = value * x.tanh() + y[k]
    return *area, slope, powers @ y[:4].flip(0), value


@CASES.function(lambda n: (randint(0, 256, (2, n), dtype=torch.uint8),), 16, 25)
def byte_planes(x: Tensor) -> tuple[Tensor, ...]:
    """Packed bits, wrapped sums, parities and a checksum of bytes."""
    bits = (x[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
    packed = (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
    wrapped = x + x.flip(1)
    parity = bits.sum(-1) % 2 == 0
    a = (1 + x.long().cumsum(1)) % 65521
    return packed, wrapped, parity, (a[:, -1] + (a.sum(1) % 65521) * 65536), (~x).to(torch.int8)
