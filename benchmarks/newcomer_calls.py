"""Newcomer functions of classic numerics and of calls that few models make: scatters, complex numbers, views, out=.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn
from torch.func import functional_call, grad, jacfwd, stack_module_state, vmap

CASES = Table()

# --- classic numerics ------------------------------------------------------------------------------------------------


@CASES.function(lambda n: (randn(n, n), randn(n)), 6, 9)
def krylov_steps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lanczos on the symmetric part with full orthogonalisation, Arnoldi and a least-squares step of GMRES."""
    symmetric = a + a.mT + 8 * torch.eye(len(a))
    q = torch.zeros(5, len(a))
    alpha, beta = torch.zeros(4), torch.zeros(5)
    q[0] = b / torch.linalg.vector_norm(b)
    for j in range(4):
        w = torch.mv(symmetric, q[j]) - beta[j] * q[j - 1]
        alpha[j] = torch.dot(w, q[j])
        w -= alpha[j] * q[j]
        w -= q[: j + 1].mT @ (q[: j + 1] @ w)
        beta[j + 1] = w.norm()
        q[j + 1] = w / beta[j + 1]
    t = torch.diag(alpha) + torch.diag(beta[1:4], 1) + torch.diag(beta[1:4], -1)
    basis, h = [b / b.norm()], b.new_zeros(4, 3)
    for j in range(3):
        w = symmetric @ basis[j]
        for i in range(j + 1):
            h[i, j] = basis[i] @ w
            w = torch.sub(w, basis[i], alpha=1).add(basis[i]) - h[i, j] * basis[i]
        h[j + 1, j] = w.norm()
        basis.append(w / h[j + 1, j])
    factor, triangle = torch.linalg.qr(h)
    y = torch.linalg.solve_triangular(triangle, factor.mT @ F.pad(b.norm().view(1, 1), (0, 0, 0, 3)), upper=True)
    return torch.linalg.eigvalsh(t), q @ q.mT, torch.stack(basis[:3], 1) @ y


@CASES.function(lambda n: (randn(2, n, n),), 7, 8)
def poisson_by_sines(f: Tensor) -> tuple[Tensor, Tensor]:
    """A Poisson problem solved by a sine transform through an odd extension; its residual by shifted slices."""
    n = f.shape[-1]

    def sines(x: Tensor) -> Tensor:
        zero = x.new_zeros(*x.shape[:-1], 1)
        return -torch.fft.fft(torch.cat([zero, x, zero, -x.flip(-1)], -1)).imag[..., 1 : n + 1] / 2

    k = torch.arange(1, n + 1, dtype=f.dtype)
    eigen = 2 - 2 * torch.cos(math.pi * k / (n + 1))
    spectrum = sines(sines(f).transpose(1, 2)).transpose(1, 2)
    u = sines(sines(spectrum / (eigen[:, None] + eigen)).transpose(1, 2)).transpose(1, 2) * (2 / (n + 1)) ** 2
    p = F.pad(u, (1, 1, 1, 1))
    laplacian = 4 * u - p[:, 2:, 1:-1] - p[:, :-2, 1:-1] - p[:, 1:-1, 2:] - p[:, 1:-1, :-2]
    return u, (laplacian - f).abs().amax((1, 2)).clamp_min(1e-3)


@CASES.function(lambda n: (randn(n), randn(5, n), rand(5, n) + 0.1), 6, 9)
def two_loop_recursion(gradient: Tensor, steps: Tensor, changes: Tensor) -> tuple[Tensor, Tensor]:
    """L-BFGS's direction from kept steps, and a cubic interpolation with its bounds as its line search does."""
    changes = changes * steps.sign()
    rho = 1.0 / torch.linalg.vecdot(changes, steps)
    q, alphas = -gradient, [torch.zeros(())] * 5
    for i in range(4, -1, -1):
        alphas[i] = steps[i].dot(q) * rho[i]
        q = torch.add(q, changes[i] * -alphas[i])
    r = torch.mul(q, (steps[-1] @ changes[-1]) / changes[-1].dot(changes[-1]))
    for i in range(5):
        r = r.add(steps[i] * (alphas[i] - changes[i].dot(r) * rho[i]))
    x1, x2, f1, f2, g1, g2 = 0.0, 1.0, gradient.sum(), r.sum(), gradient.dot(r), -gradient.dot(r) / 2
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
    square = d1**2 - g1 * g2
    d2 = square.clamp_min(0).sqrt()
    place = torch.where(square >= 0, x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2)), torch.tensor(0.5))
    return r, place.clamp(min=0.0, max=1.0)


@CASES.function(lambda n: (torch.arange(n) * 7919 + 3, randint(0, 2**31, (2,))), 5, 12, 1)
def counted_randomness(counter: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Philox 2x32 with 64-bit products, xorshift in int32 that wraps, and uniforms in [0, 1) from the upper bits."""
    mask = 0xFFFFFFFF
    x0, x1, k = counter & mask, (counter >> 32) ^ (counter * 31 & mask), key[0] & mask
    for _ in range(10):
        product = x0 * 0xD256D193
        high, low = (product >> 32) & mask, product & mask
        x0, x1, k = high ^ k ^ x1, low, (k + 0x9E3779B9) & mask
    y = counter.to(torch.int32) + 12345
    for _ in range(3):
        y = y ^ (y << 13)
        y = y ^ ((y >> 17) & 0x7FFF)
        y = y ^ (y << 5)
    uniform = (x0 >> 8).to(torch.float32) * 2.0**-24
    return (
        torch.stack([x0, x1]),
        y,
        torch.sqrt(-2 * torch.log1p(-uniform)) * torch.cos(2 * math.pi * x1.float() / 2**32),
    )


@CASES.function(lambda n: (torch.arange(n) * 86399 * 401 - 10**9,), 9, 30)
def civil_dates(seconds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Years, months, days and weekdays of epochs by integer divisions that floor; a Morton code of the parts."""
    days, rest = torch.div(seconds, 86400, rounding_mode="floor"), torch.remainder(seconds, 86400)
    z = days + 719468
    era = torch.where(z >= 0, z, z - 146096) // 146097
    of_era = z - era * 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + torch.where(month < 10, 3, -9)
    year = year + era * 400 + (month <= 2)
    code = torch.stack([day, month], -1)
    for shift, keep in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        code = (code | code << shift) & keep
    weekday = torch.fmod(days + 4, 7) + torch.where(torch.fmod(days + 4, 7) < 0, 7, 0)
    return (
        torch.stack([year, month, day, weekday], 1),
        code[:, 0] | code[:, 1] << 1,
        rest.view(-1, 1) // torch.tensor([3600, 60, 1]) % torch.tensor([24, 60, 60]),
    )


@CASES.function(lambda n: (torch.linspace(-2, 1, n), torch.linspace(-1.2, 1.2, 7)), 9, 12)
def escape_counts(real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
    """Mandelbrot's iteration on complex numbers by masks, with smooth counts by logarithms of logarithms."""
    c = torch.complex(*torch.meshgrid(real, imaginary, indexing="ij"))
    z, count = torch.zeros_like(c), torch.zeros(c.shape, dtype=torch.int16)
    for _ in range(12):
        inside = z.abs() <= 4
        z = torch.where(inside, z * z + c, z)
        count += inside
    smooth = count - torch.log2(torch.log(z.abs().clamp_min(1.5)))
    return count, torch.where(count < 12, smooth, torch.zeros((), dtype=smooth.dtype))


@CASES.function(lambda n: (torch.arange(n * 24) % 30,), 5, 8)
def sieve_and_totients(x: Tensor) -> tuple[Tensor, ...]:
    """Primes below 30 by strided writes, totients by products, greatest common divisors, a binary power by squaring."""
    prime = torch.ones(30, dtype=torch.bool)
    prime[:2] = False
    for p in range(2, 6):
        prime[p * p :: p] &= ~prime[p]
    totient = torch.arange(30)
    for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29):
        totient[p::p] -= totient[p::p] // p
    power, base, e = torch.ones_like(x), x, 13
    while e:
        if e & 1:
            power = power * base % 1009
        base, e = base * base % 1009, e >> 1
    return prime[x], totient[x], torch.gcd(x, x.flip(0)), torch.lcm(x + 1, x.new_tensor(4)), power


@CASES.function(lambda n: (randn(n, 4, 3), randn(n, 6)), 3, 5)
def triangulated_points(cameras: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """A point from several views by the smallest singular vector, refined by Gauss and Newton with exact Jacobians."""
    p = torch.cat([cameras.mT[:, :, :3], torch.eye(3)[None] * 4 + cameras[:, 3:].mT], 2)[..., 2:6]
    uv = seen.view(-1, 3, 2)[:, 0]
    rows = torch.cat([uv[:, :1, None] * p[:, 2:3] - p[:, 0:1], uv[:, 1:, None] * p[:, 2:3] - p[:, 1:2]], 1)
    _, s, v = torch.linalg.svd(rows.flatten(0, 1))
    x = v[-1] / v[-1].norm() * v[-1, :1].sign()

    def residual(q: Tensor) -> Tensor:
        y = torch.einsum("nij,j->ni", p, q)
        return (y[:, :2] - uv * y[:, 2:]).flatten()

    jacobian = jacfwd(residual)(x)
    step = torch.linalg.solve(jacobian.mT @ jacobian + 0.1 * torch.eye(4), jacobian.mT @ residual(x))
    return (x - step).abs(), s


# --- scatters, orders and sums ---------------------------------------------------------------------------------------


@CASES.function(lambda n: (randn(n, 4), randint(0, 3, (n,)), randn(3, 4)), 6, 11, 1)
def reduced_by_index(x: Tensor, index: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    """``index_reduce`` and ``scatter_reduce`` in every mode, with and without what was there before."""
    modes = ("prod", "mean", "amax", "amin")
    by_row = [start.index_reduce(0, index, x, mode, include_self=s) for mode in modes for s in (True, False)]
    wide = index[:, None].expand(-1, 4)
    by_place = [start.scatter_reduce(0, wide, x, m, include_self=s) for m in ("sum", *modes) for s in (True, False)]
    out = start.clone()
    out.index_put_((index, torch.zeros_like(index)), x[:, 1], accumulate=True)
    out.put_(index * 4 + 3, x[:, 2].contiguous(), accumulate=True)
    return torch.stack(by_row), torch.stack(by_place), out, out.index_fill(1, torch.tensor([1, 2]), -1.0)


@CASES.function(lambda n: (randn(3, n), randn(3 * n + 2), rand(3, n) > 0.4), 5, 8)
def scattered_by_masks(x: Tensor, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """``masked_scatter`` from a longer source, the same through a view, slices and diagonals that are put back."""
    y = x.masked_scatter(mask, source)
    z = x.clone()
    z.t().masked_scatter_(mask.t(), source.flip(0))
    square = torch.zeros(4, 4).diagonal_scatter(source[:3], 1).select_scatter(source[:4], 0, 2)
    return y, z, x.slice_scatter(source[:6].view(3, 2), 1, 1, 5, 2), square, torch.take_along_dim(x, mask.long(), 1)


@CASES.function(lambda n: (randn(2, n), rand(n)), 7, 10, 1)
def running_totals(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Running sums in every form: of logarithms, products, extremes with places, trapezia, from the end."""
    most, where = torch.cummax(x, 1)
    least, there = x.cummin(-1)
    backwards = x.flip(1).cumsum(1).flip(1)
    area = torch.cumulative_trapezoid(F.pad(x, (1, 0)), dim=1)
    difference = torch.diff(x, n=1, dim=1, prepend=x[:, :1] * 0, append=x[:, -1:])
    return (
        torch.logcumsumexp(x, 1), x.cumprod(1), most, where, least, there, backwards, area, difference,
        torch.trapezoid(x, dx=0.5), (x > 0).cumsum(1, dtype=torch.int32), x.bfloat16().cumsum(1), w.cumsum(0) / w.sum(),
    )  # fmt: skip


@CASES.function(lambda n: (randn(n), torch.linspace(-1, 1, 6), rand(n)), 12, 17)
def counted_bins(x: Tensor, edges: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """``histc``, ``bucketize`` from both sides, a sorter, weighted counts, covariances and calibration by bins."""
    bins = torch.bucketize(x, edges)
    right = torch.bucketize(x, edges, right=True, out_int32=True)
    order = torch.argsort(x)
    place = torch.searchsorted(x, edges, sorter=order, side="right")
    counts = torch.bincount(bins, weights, minlength=8)
    mean = torch.zeros(8).index_add(0, bins, weights.sigmoid()) / counts.clamp_min(0.1)
    stacked = torch.stack([x, weights, x * weights])
    return (
        torch.histc(x, 5, -1, 1), bins, right, place, counts, mean, torch.cov(stacked), torch.corrcoef(stacked),
        torch.isin(bins, torch.tensor([1, 3])),
    )  # fmt: skip


# --- numbers of other kinds ------------------------------------------------------------------------------------------


@CASES.function(lambda n: (torch.complex(randn(3, n), randn(3, n)), torch.complex(randn(n, n), randn(n, n))), 4, 6, 1)
def complex_corners(z: Tensor, a: Tensor) -> tuple[Tensor, ...]:
    """Complex powers, logarithms, angles, norms, conjugates in products, running products, a Hermitian solve."""
    hermitian = a @ a.mH + 4 * torch.eye(a.shape[0], dtype=a.dtype)
    return (
        z**2.5, torch.log(z) * 1j, torch.polar(z.abs(), z.angle() / 2), z.sgn(), torch.exp(z).sinh(), z.tanh(),
        torch.vdot(z[0], z[1]), torch.linalg.vector_norm(z, dim=1), torch.view_as_real(z.conj() * 2).sum(0),
        torch.linalg.solve(hermitian, z.mT), torch.einsum("ij,kj->ik", z, z.conj()), z.cumprod(1),
        z.real.sum() + z.imag,
        z.sqrt().reciprocal(), torch.where(z.real > 0, z, z.conj()), z.mean(0, keepdim=True) - z.prod(0),
    )  # fmt: skip


@CASES.function(lambda n: (randn(4, n).half(), randn(n, 4).bfloat16(), randint(-9, 9, (n,), dtype=torch.int8)), 6, 9)
def halves_and_bytes(x: Tensor, y: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Half types where they meet others: promotions, products, sums that keep a type, softmax in another, casts."""
    return (
        x + y.T, x @ y.half(), x.softmax(1, dtype=torch.float32), x.sum(dtype=torch.float64), y.mean(0), x * 3, x * k,
        k.float() @ y.float(), k * k, k.sum(), (x > 0.5) + k, x.to(torch.int8), (k // 3, k % -4)[0], k % -4, -k.abs(),
        F.layer_norm(x, [x.shape[1]]), F.gelu(y), y.exp().log2(), x.amax(1) - x.amin(1), k.to(torch.uint8) >> 2,
        x.view(torch.int16) ^ 1, torch.finfo(x.dtype).max * x.sign(), (x * 1000).clamp(max=2000).to(torch.int16),
    )  # fmt: skip


@CASES.function(lambda n: (randn(n, 3), rand(n, 3) * 4), 6, 1)
def rare_functions(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Parts of floats, signs and neighbours, functions of gamma and of Bessel, norms of odd orders."""
    mantissa, exponent = torch.frexp(x)
    return (
        mantissa, exponent, torch.nextafter(x, y), torch.copysign(y, x), torch.heaviside(x.round(), y),
        torch.logit(y / 5),
        torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.polygamma(1, y + 1), torch.special.gammainc(y + 1, y),
        torch.xlogy(x.relu(), y), torch.sinc(x), torch.special.i0e(x), torch.special.bessel_j0(y), torch.hypot(x, y),
        torch.special.ndtri(y / 5), x.norm(p=3, dim=1), x.norm(p=float("inf")), torch.renorm(x, 2, 0, 1.0),
        x.ldexp(y.int()),
        torch.special.zeta(y + 2, y + 1), torch.signbit(x), torch.nan_to_num(1 / x.round(), 5.0, 6.0, 7.0), y.rsqrt(),
    )  # fmt: skip


# --- views, writes and out= ------------------------------------------------------------------------------------------


@CASES.function(lambda n: (randn(2, n, 6), torch.empty(6)), 4, 7)
def written_into(x: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    """``out=`` into views and into what must grow, writes through transposes, unbound rows and expanded ones."""
    room = torch.zeros(x.shape[1], 8)
    torch.mm(x[0], x[1].T[:, :4].contiguous() if x.shape[1] > 3 else x[1].T, out=room[:, :4])
    torch.add(x[0, :, :4], 1, out=room[:, 4:])
    torch.sum(x, dim=(0, 1), out=kept)
    y = x.clone()
    y.transpose(1, 2)[:, ::2].mul_(2).add_(1)
    for row in y.unbind(1)[1:]:
        row -= y[:, 0]
    first, second = y.chunk(2, dim=-1)
    first.copy_(second.flip(-1).clone())
    y.as_strided((2, 2), (1, 2)).zero_()
    torch.clamp(y, -1, 1, out=y)
    return room, kept, y, first, torch.cat([x, y], out=torch.empty(0))


@CASES.function(lambda n: (torch.zeros(2, 12, 4), randn(2, n, 4), torch.tensor(3)), 2, 4, 1)
def cache_in_place(cache: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """A ring of keys that is rolled, indexed by a tensor's place and read back, written in the caller's memory."""
    place = (at + torch.arange(new.shape[1])) % 12
    cache.index_copy_(1, place, new)
    cache.index_fill_(1, (at.view(1) + new.shape[1]) % 12, -1.0)
    seen = torch.arange(12) < at + new.shape[1]
    score = (new @ cache.mT).masked_fill(~seen, -torch.inf).softmax(-1)
    cache.copy_(torch.roll(cache, shifts=-1, dims=1))
    at += new.shape[1]
    return score @ cache, cache[:, 0]


@CASES.function(lambda n: (randn(n, 4, 4), randn(n, 2)), 3, 0, 1)
def nothing_or_little(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Batches of none and one through reductions with neutral elements, products, concatenations and padding."""
    return (
        x.sum(0), x.prod(0), (y > 0).all(), (y > 0).any(0), torch.cat([y, y.new_zeros(1, 2)]).amax(0), y @ y.T, x @ x,
        F.conv2d(x[:, None], torch.ones(2, 1, 3, 3)), F.pad(y, (1, 1), value=2.0), x.flatten(1).softmax(1), y.cumsum(0),
        x.reshape(-1, 8), torch.einsum("bij,bk->kij", x, y), y.unsqueeze(1).expand(-1, 3, -1).norm(dim=-1),
        y.sort(0)[0],
        F.layer_norm(y, [2]), torch.linalg.det(x), y[y > 9], y.logsumexp(1), F.max_pool2d(x.unsqueeze(1), 2),
    )  # fmt: skip


# --- functions of functions ------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 3), randn(n, 2)), 4, 6)
class EnsembleOfModels(nn.Module):
    """``torch.func``'s ensemble: stacked parameters, ``functional_call`` under ``vmap``, a step of MAML inside."""

    def __init__(self) -> None:
        super().__init__()
        self.models = nn.ModuleList(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        parameters, _ = stack_module_state(list(self.models))
        base = self.models[0]

        def loss(p: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
            return F.mse_loss(functional_call(base, p, (a,)), b)

        def adapted(p: dict[str, Tensor]) -> Tensor:
            half = x.shape[0] // 2
            slope = grad(loss)(p, x[:half], y[:half])
            return loss({k: v - 0.1 * slope[k] for k, v in p.items()}, x[half:], y[half:])

        return vmap(lambda p: functional_call(base, p, (x,)))(parameters), vmap(adapted)(parameters)


@dataclass
class _Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] | None = None
    extra: dict[str, Tensor | None] | None = None


torch.utils._pytree.register_dataclass(_Output, serialized_type_name="benchmarks.newcomer_calls._Output")


@CASES.module(lambda n: (randn(n, 6), None, True, 2, [randn(n, 6), {"scale": randn(6)}]), 3, 5, 1)
class NestedTrees(nn.Module):
    """Inputs of None, a truth, a number and nested containers; an output that is a data class with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None, keep: bool, depth: int, more: list) -> _Output:
        hidden = []
        for layer in self.layers[:depth]:
            x = layer(x) if mask is None else layer(x) * mask
            hidden.append(x)
        x = torch.addcmul(x, more[0], more[1]["scale"], value=0.5)
        return _Output(x, tuple(hidden) if keep else None, {"mask": mask, "norm": x.norm(dim=-1)})
