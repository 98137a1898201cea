"""The thirty loop programs of PolyBench/C 4.2, each written in the language for kernels, in f64.

In: nothing. Out: ``PROGRAMS``: kernels by the suite's names, with the shapes of their arguments for a size;
``arguments``, numbers for them. Results are returned, where the suite writes to its arguments. Not its business: right
answers (``tests/language/test_polybench.py``), speed (``polybench_speed.py``).

Reference: L.-N. Pouchet, T. Yuki, PolyBench/C 4.2, for what each program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import lang as tl

ALPHA, BETA = 1.5, 1.2

# --- products -------------------------------------------------------------------------------------------------------


@tw.kernel
def gemm(c: tl.f64("m", "n"), a: tl.f64("m", "k"), b: tl.f64("k", "n")) -> Any:
    (m, n), k = c.shape, a.shape[1]
    ab = tl.compute((m, n), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], k))
    return tl.compute((m, n), lambda i, j: ALPHA * ab[i, j] + BETA * c[i, j])


@tw.kernel
def two_mm(a: tl.f64("i", "k"), b: tl.f64("k", "j"), c: tl.f64("j", "l"), d: tl.f64("i", "l")) -> Any:
    (ni, nl), nk, nj = d.shape, a.shape[1], b.shape[1]
    ab = tl.compute((ni, nj), lambda i, j: ALPHA * tl.sum(lambda p: a[i, p] * b[p, j], nk))
    return tl.compute((ni, nl), lambda i, j: tl.sum(lambda p: ab[i, p] * c[p, j], nj) + BETA * d[i, j])


@tw.kernel
def three_mm(a: tl.f64("i", "k"), b: tl.f64("k", "j"), c: tl.f64("j", "m"), d: tl.f64("m", "l")) -> Any:
    (ni, nk), nj, (nm, nl) = a.shape, b.shape[1], d.shape
    e = tl.compute((ni, nj), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], nk))
    f = tl.compute((nj, nl), lambda i, j: tl.sum(lambda p: c[i, p] * d[p, j], nm))
    return tl.compute((ni, nl), lambda i, j: tl.sum(lambda p: e[i, p] * f[p, j], nj))


@tw.kernel
def doitgen(a: tl.f64("r", "q", "p"), c4: tl.f64("p", "p")) -> Any:
    return tl.compute(a.shape, lambda r, q, p: tl.sum(lambda s: a[r, q, s] * c4[s, p], a.shape[2]))


@tw.kernel
def symm(c: tl.f64("m", "n"), a: tl.f64("m", "m"), b: tl.f64("m", "n")) -> Any:
    """Of a only the lower triangle is read."""
    m, n = c.shape
    whole = tl.compute((m, m), lambda i, p: tl.where(p <= i, a[i, p], a[p, i]))
    ab = tl.compute((m, n), lambda i, j: tl.sum(lambda p: whole[i, p] * b[p, j], m))
    return tl.compute((m, n), lambda i, j: BETA * c[i, j] + ALPHA * ab[i, j])


@tw.kernel
def syrk(c: tl.f64("n", "n"), a: tl.f64("n", "m")) -> Any:
    n, m = a.shape
    made = c.copy()
    for i in tl.loop(n):
        for j in tl.loop(i + 1):
            made[i, j] *= BETA
        for k in tl.loop(m):
            for j in tl.loop(i + 1):
                made[i, j] += ALPHA * a[i, k] * a[j, k]
    return made


@tw.kernel
def syr2k(c: tl.f64("n", "n"), a: tl.f64("n", "m"), b: tl.f64("n", "m")) -> Any:
    n, m = a.shape
    made = c.copy()
    for i in tl.loop(n):
        for j in tl.loop(i + 1):
            made[i, j] *= BETA
        for k in tl.loop(m):
            for j in tl.loop(i + 1):
                made[i, j] += a[j, k] * ALPHA * b[i, k] + b[j, k] * ALPHA * a[i, k]
    return made


@tw.kernel
def trmm(a: tl.f64("m", "m"), b: tl.f64("m", "n")) -> Any:
    """The transpose of a unit lower triangle, times b."""
    m, n = b.shape
    made = b.copy()
    for i in tl.loop(m):
        for j in tl.loop(n):
            for k in tl.loop(i + 1, m):
                made[i, j] += a[k, i] * made[k, j]
            made[i, j] = ALPHA * made[i, j]
    return made


# --- matrices and vectors -------------------------------------------------------------------------------------------


@tw.kernel
def atax(a: tl.f64("m", "n"), x: tl.f64("n")) -> Any:
    m, n = a.shape
    ax = tl.compute(m, lambda i: tl.sum(lambda j: a[i, j] * x[j], n))
    return tl.compute(n, lambda j: tl.sum(lambda i: a[i, j] * ax[i], m))


@tw.kernel
def bicg(a: tl.f64("n", "m"), p: tl.f64("m"), r: tl.f64("n")) -> Any:
    n, m = a.shape
    s = tl.compute(m, lambda j: tl.sum(lambda i: r[i] * a[i, j], n))
    return s, tl.compute(n, lambda i: tl.sum(lambda j: a[i, j] * p[j], m))


@tw.kernel
def mvt(a: tl.f64("n", "n"), x1: tl.f64("n"), x2: tl.f64("n"), y1: tl.f64("n"), y2: tl.f64("n")) -> Any:
    (n,) = x1.shape
    first = tl.compute(n, lambda i: x1[i] + tl.sum(lambda j: a[i, j] * y1[j], n))
    return first, tl.compute(n, lambda i: x2[i] + tl.sum(lambda j: a[j, i] * y2[j], n))


@tw.kernel
def gesummv(a: tl.f64("n", "n"), b: tl.f64("n", "n"), x: tl.f64("n")) -> Any:
    (n,) = x.shape
    ax = tl.compute(n, lambda i: tl.sum(lambda j: a[i, j] * x[j], n))
    bx = tl.compute(n, lambda i: tl.sum(lambda j: b[i, j] * x[j], n))
    return tl.compute(n, lambda i: ALPHA * ax[i] + BETA * bx[i])


@tw.kernel
def gemver(
    a: tl.f64("n", "n"), u1: tl.f64("n"), v1: tl.f64("n"), u2: tl.f64("n"), v2: tl.f64("n"), y: tl.f64("n"),
    z: tl.f64("n"),
) -> Any:  # fmt: skip
    (n,) = y.shape
    made = tl.compute((n, n), lambda i, j: a[i, j] + u1[i] * v1[j] + u2[i] * v2[j])
    x = tl.compute(n, lambda i: BETA * tl.sum(lambda j: made[j, i] * y[j], n) + z[i])
    return made, x, tl.compute(n, lambda i: ALPHA * tl.sum(lambda j: made[i, j] * x[j], n))


# --- solvers --------------------------------------------------------------------------------------------------------


@tw.kernel
def cholesky(a: tl.f64("n", "n")) -> Any:
    n = a.shape[0]
    made = a.copy()
    for i in tl.loop(n):
        for j in tl.loop(i):
            for k in tl.loop(j):
                made[i, j] -= made[i, k] * made[j, k]
            made[i, j] = made[i, j] / made[j, j]
        for k in tl.loop(i):
            made[i, i] -= made[i, k] * made[i, k]
        made[i, i] = tl.sqrt(made[i, i])
    return made


def _factors(a: Any) -> Any:
    """Both triangles of ``a``, of which the lower one has a diagonal of ones, in one tensor."""
    n = a.shape[0]
    made = a.copy()
    for i in tl.loop(n):
        for j in tl.loop(i):
            for k in tl.loop(j):
                made[i, j] -= made[i, k] * made[k, j]
            made[i, j] = made[i, j] / made[j, j]
        for j in tl.loop(i, n):
            for k in tl.loop(i):
                made[i, j] -= made[i, k] * made[k, j]
    return made


@tw.kernel
def lu(a: tl.f64("n", "n")) -> Any:
    return _factors(a)


@tw.kernel
def ludcmp(a: tl.f64("n", "n"), b: tl.f64("n")) -> Any:
    """The same, then both triangles are solved."""
    n, made = a.shape[0], _factors(a)
    x = b.copy()
    for i in tl.loop(n):
        for j in tl.loop(i):
            x[i] -= made[i, j] * x[j]
    for i in tl.loop(n - 1, -1, -1):
        for j in tl.loop(i + 1, n):
            x[i] -= made[i, j] * x[j]
        x[i] = x[i] / made[i, i]
    return x


@tw.kernel
def trisolv(a: tl.f64("n", "n"), b: tl.f64("n")) -> Any:
    (n,) = b.shape
    x = b.copy()
    for i in tl.loop(n):
        for j in tl.loop(i):
            x[i] -= a[i, j] * x[j]
        x[i] = x[i] / a[i, i]
    return x


@tw.kernel
def durbin(r: tl.f64("n")) -> Any:
    """The equations of a Toeplitz matrix, one more of them at a time."""
    (n,) = r.shape
    y, z = tl.zeros(n, tl.f64), tl.zeros(n, tl.f64)
    alpha, beta, total = tl.zeros(1, tl.f64), tl.full(1, 1.0, tl.f64), tl.zeros(1, tl.f64)
    for i in tl.loop(1):
        y[i], alpha[i] = -r[i], -r[i]
    for k in tl.loop(1, n):
        beta[0] = (1 - alpha[0] * alpha[0]) * beta[0]
        total[0] = 0.0
        for i in tl.loop(k):
            total[0] += r[k - i - 1] * y[i]
        alpha[0] = -(r[k] + total[0]) / beta[0]
        for i in tl.loop(k):
            z[i] = y[i] + alpha[0] * y[k - i - 1]
        for i in tl.loop(k):
            y[i] = z[i]
        y[k] = alpha[0]
    return y


@tw.kernel
def gramschmidt(a: tl.f64("m", "n")) -> Any:
    m, n = a.shape
    v, q, r = a.copy(), tl.zeros((m, n), tl.f64), tl.zeros((n, n), tl.f64)
    for k in tl.loop(n):
        for i in tl.loop(m):
            r[k, k] += v[i, k] * v[i, k]
        r[k, k] = tl.sqrt(r[k, k])
        for i in tl.loop(m):
            q[i, k] = v[i, k] / r[k, k]
        for j in tl.loop(k + 1, n):
            for i in tl.loop(m):
                r[k, j] += q[i, k] * v[i, j]
            for i in tl.loop(m):
                v[i, j] -= q[i, k] * r[k, j]
    return q, r


# --- data -----------------------------------------------------------------------------------------------------------


@tw.kernel
def covariance(data: tl.f64("n", "m")) -> Any:
    n, m = data.shape
    mean = tl.compute(m, lambda j: tl.sum(lambda i: data[i, j], n) / n.cast(tl.f64))
    centred = tl.compute((n, m), lambda i, j: data[i, j] - mean[j])
    return tl.compute((m, m), lambda i, j: tl.sum(lambda k: centred[k, i] * centred[k, j], n) / (n - 1).cast(tl.f64))


@tw.kernel
def correlation(data: tl.f64("n", "m")) -> Any:
    n, m = data.shape
    count = n.cast(tl.f64)
    mean = tl.compute(m, lambda j: tl.sum(lambda i: data[i, j], n) / count)
    variance = tl.compute(m, lambda j: tl.sum(lambda i: (data[i, j] - mean[j]) ** 2, n) / count)
    spread = tl.compute(m, lambda j: tl.where(tl.sqrt(variance[j]) <= 0.1, 1.0, tl.sqrt(variance[j])))
    scaled = tl.compute((n, m), lambda i, j: (data[i, j] - mean[j]) / (tl.sqrt(count) * spread[j]))
    return tl.compute(
        (m, m), lambda i, j: tl.where((i <= j) & (j <= i), 1.0, tl.sum(lambda k: scaled[k, i] * scaled[k, j], n))
    )


@tw.kernel
def floyd_warshall(paths: tl.i32("n", "n")) -> Any:
    n = paths.shape[0]
    made = paths.copy()
    for k in tl.loop(n):
        for i, j in tl.grid(n, n):
            made[i, j] = tl.minimum(made[i, j], made[i, k] + made[k, j])
    return made


@tw.kernel
def nussinov(bases: tl.i32("n")) -> Any:
    """The most pairs of bases, 0 to 3, that add to 3, without crossings."""
    (n,) = bases.shape
    most = tl.zeros((n, n), tl.i32)
    for i in tl.loop(n - 1, -1, -1):
        for j in tl.loop(i + 1, n):
            most[i, j] = tl.maximum(most[i, j], most[i, j - 1])
            most[i, j] = tl.maximum(most[i, j], most[i + 1, j])
            pair = (bases[i] + bases[j] == 3).cast(tl.i32)
            apart = tl.where(j - i >= 2, most[i + 1, j - 1] + pair, most[i + 1, j - 1])
            most[i, j] = tl.maximum(most[i, j], apart)
            for k in tl.loop(i + 1, j):
                most[i, j] = tl.maximum(most[i, j], most[i, k] + most[k + 1, j])
    return most


@tw.kernel
def deriche(picture: tl.f64("w", "h")) -> Any:
    """A recursive filter along both axes, in both directions; its coefficients are those of alpha = 0.25."""
    w, h = picture.shape
    alpha = 0.25
    once = exp(-alpha)
    k = (1 - once) ** 2 / (1 + 2 * alpha * once - exp(2 * alpha))
    a1, a2, a3, a4 = k, k * once * (alpha - 1), k * once * (alpha + 1), -k * once**2
    b1, b2 = 2**-alpha, -(once**2)

    def both_ways(x: Any, n: Any, m: Any, at: Callable[..., tuple[Any, Any]]) -> Any:
        """The sum of both filters along the second of two loops, where ``at`` says which axes those are."""
        forth, back = tl.zeros(picture.shape, tl.f64), tl.zeros(picture.shape, tl.f64)
        for i in tl.loop(n):
            for j in tl.loop(m):
                behind = tl.where(j >= 1, a2 * x[at(i, j - 1)] + b1 * forth[at(i, j - 1)], 0.0)
                forth[at(i, j)] = a1 * x[at(i, j)] + behind + tl.where(j >= 2, b2 * forth[at(i, j - 2)], 0.0)
        for i in tl.loop(n):
            for j in tl.loop(m - 1, -1, -1):
                ahead = tl.where(j + 1 < m, a3 * x[at(i, j + 1)] + b1 * back[at(i, j + 1)], 0.0)
                further = tl.where(j + 2 < m, a4 * x[at(i, j + 2)] + b2 * back[at(i, j + 2)], 0.0)
                back[at(i, j)] = ahead + further
        return tl.compute(picture.shape, lambda i, j: forth[i, j] + back[i, j])

    return both_ways(both_ways(picture, w, h, lambda i, j: (i, j)), h, w, lambda i, j: (j, i))


# --- stencils -------------------------------------------------------------------------------------------------------

STEPS = 4
"""Of time: they are a number of the program, as its size is one of the array."""


@tw.kernel
def jacobi_1d(x: tl.f64("n"), steps: int = STEPS) -> Any:
    (n,) = x.shape
    a, b = x.copy(), x.copy()
    for _ in tl.loop(steps):
        for i in tl.loop(1, n - 1):
            b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1])
        for i in tl.loop(1, n - 1):
            a[i] = 0.33333 * (b[i - 1] + b[i] + b[i + 1])
    return a


@tw.kernel
def jacobi_2d(x: tl.f64("n", "n"), steps: int = STEPS) -> Any:
    n = x.shape[0]
    a, b = x.copy(), x.copy()
    for _ in tl.loop(steps):
        for source, target in ((a, b), (b, a)):
            for i in tl.loop(1, n - 1):
                for j in tl.loop(1, n - 1):
                    target[i, j] = 0.2 * (
                        source[i, j] + source[i, j - 1] + source[i, j + 1] + source[i + 1, j] + source[i - 1, j]
                    )
    return a


@tw.kernel
def seidel_2d(x: tl.f64("n", "n"), steps: int = STEPS) -> Any:
    n = x.shape[0]
    a = x.copy()
    for _ in tl.loop(steps):
        for i in tl.loop(1, n - 1):
            for j in tl.loop(1, n - 1):
                around = [a[i + di, j + dj] for di in (-1, 0, 1) for dj in (-1, 0, 1)]
                total = around[0]
                for v in around[1:]:
                    total = total + v
                a[i, j] = total / 9
    return a


@tw.kernel
def heat_3d(x: tl.f64("n", "n", "n"), steps: int = STEPS) -> Any:
    n = x.shape[0]
    a, b = x.copy(), x.copy()
    for _ in tl.loop(steps):
        for s, t in ((a, b), (b, a)):
            for i in tl.loop(1, n - 1):
                for j in tl.loop(1, n - 1):
                    for k in tl.loop(1, n - 1):
                        t[i, j, k] = (
                            0.125 * (s[i + 1, j, k] - 2 * s[i, j, k] + s[i - 1, j, k])
                            + 0.125 * (s[i, j + 1, k] - 2 * s[i, j, k] + s[i, j - 1, k])
                            + 0.125 * (s[i, j, k + 1] - 2 * s[i, j, k] + s[i, j, k - 1])
                            + s[i, j, k]
                        )
    return a


@tw.kernel
def fdtd_2d(ex: tl.f64("n", "m"), ey: tl.f64("n", "m"), hz: tl.f64("n", "m"), source: tl.f64("t")) -> Any:
    n, m = ex.shape
    ex, ey, hz = ex.copy(), ey.copy(), hz.copy()
    for t in tl.loop(source.shape[0]):
        for j in tl.loop(m):
            ey[0, j] = source[t]
        for i in tl.loop(1, n):
            for j in tl.loop(m):
                ey[i, j] -= 0.5 * (hz[i, j] - hz[i - 1, j])
        for i in tl.loop(n):
            for j in tl.loop(1, m):
                ex[i, j] -= 0.5 * (hz[i, j] - hz[i, j - 1])
        for i in tl.loop(n - 1):
            for j in tl.loop(m - 1):
                hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])
    return ex, ey, hz


@tw.kernel
def adi(x: tl.f64("n", "n"), steps: int = STEPS) -> Any:
    """Implicit steps of heat, along columns and then along rows; the steps of space and time are those of 20 and 4."""
    n = x.shape[0]
    u, v, p, q = x.copy(), tl.zeros((n, n), tl.f64), tl.zeros((n, n), tl.f64), tl.zeros((n, n), tl.f64)
    one, other = 2.0 * 0.25 / 0.05**2, 1.0 * 0.25 / 0.05**2
    a, d = -one / 2, -other / 2
    b, e = 1 + one, 1 + other
    for _ in tl.loop(steps):
        for i in tl.loop(1, n - 1):
            v[0, i], p[i, 0], q[i, 0] = 1.0, 0.0, 1.0
            for j in tl.loop(1, n - 1):
                p[i, j] = -a / (a * p[i, j - 1] + b)
                rest = -d * u[j, i - 1] + (1 + 2 * d) * u[j, i] - d * u[j, i + 1]
                q[i, j] = (rest - a * q[i, j - 1]) / (a * p[i, j - 1] + b)
            v[n - 1, i] = 1.0
            for j in tl.loop(n - 2, 0, -1):
                v[j, i] = p[i, j] * v[j + 1, i] + q[i, j]
        for i in tl.loop(1, n - 1):
            u[i, 0], p[i, 0], q[i, 0] = 1.0, 0.0, 1.0
            for j in tl.loop(1, n - 1):
                p[i, j] = -d / (d * p[i, j - 1] + e)
                rest = -a * v[i - 1, j] + (1 + 2 * a) * v[i, j] - a * v[i + 1, j]
                q[i, j] = (rest - d * q[i, j - 1]) / (d * p[i, j - 1] + e)
            u[i, n - 1] = 1.0
            for j in tl.loop(n - 2, 0, -1):
                u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]
    return u


@dataclass(frozen=True)
class Program:
    """A kernel, and the shapes of its arguments for a size."""

    kernel: Any
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]


def _square(k: int, vectors: int = 0) -> Callable[[int], tuple[tuple[int, ...], ...]]:
    """So many matrices and then vectors of one size."""
    return lambda n: ((n, n),) * k + ((n,),) * vectors


PROGRAMS: Mapping[str, Program] = {
    "gemm": Program(gemm, lambda n: ((n, n + 2), (n, n + 1), (n + 1, n + 2))),
    "2mm": Program(two_mm, lambda n: ((n, n + 1), (n + 1, n + 2), (n + 2, n + 3), (n, n + 3))),
    "3mm": Program(three_mm, lambda n: ((n, n + 1), (n + 1, n + 2), (n + 2, n + 3), (n + 3, n + 4))),
    "doitgen": Program(doitgen, lambda n: ((n, n + 1, n + 2), (n + 2, n + 2))),
    "symm": Program(symm, lambda n: ((n, n + 1), (n, n), (n, n + 1))),
    "syrk": Program(syrk, lambda n: ((n, n), (n, n + 1))),
    "syr2k": Program(syr2k, lambda n: ((n, n), (n, n + 1), (n, n + 1))),
    "trmm": Program(trmm, lambda n: ((n, n), (n, n + 1))),
    "atax": Program(atax, lambda n: ((n, n + 1), (n + 1,))),
    "bicg": Program(bicg, lambda n: ((n, n + 1), (n + 1,), (n,))),
    "mvt": Program(mvt, _square(1, 4)),
    "gesummv": Program(gesummv, _square(2, 1)),
    "gemver": Program(gemver, _square(1, 6)),
    "cholesky": Program(cholesky, _square(1)),
    "lu": Program(lu, _square(1)),
    "ludcmp": Program(ludcmp, _square(1, 1)),
    "trisolv": Program(trisolv, _square(1, 1)),
    "durbin": Program(durbin, lambda n: ((n,),)),
    "gramschmidt": Program(gramschmidt, lambda n: ((n + 1, n),)),
    "covariance": Program(covariance, lambda n: ((n + 1, n),)),
    "correlation": Program(correlation, lambda n: ((n + 1, n),)),
    "floyd-warshall": Program(floyd_warshall, _square(1)),
    "nussinov": Program(nussinov, lambda n: ((n,),)),
    "deriche": Program(deriche, lambda n: ((n, n + 1),)),
    "jacobi-1d": Program(jacobi_1d, lambda n: ((n,),)),
    "jacobi-2d": Program(jacobi_2d, _square(1)),
    "seidel-2d": Program(seidel_2d, _square(1)),
    "heat-3d": Program(heat_3d, lambda n: ((n, n, n),)),
    "fdtd-2d": Program(fdtd_2d, lambda n: ((n, n + 1),) * 3 + ((STEPS,),)),
    "adi": Program(adi, _square(1)),
}


def arguments(name: str, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Random arguments of these shapes, with which the program's results are no larger than doubles can tell."""
    rng, n = np.random.default_rng(len(name)), shapes[0][-1]
    if name == "nussinov":
        return [rng.integers(0, 4, shapes[0]).astype(np.int32)]
    if name == "floyd-warshall":
        return [rng.integers(1, 99, shapes[0]).astype(np.int32)]
    made = [rng.uniform(-1, 1, s) for s in shapes]
    if name in ("cholesky", "lu", "ludcmp", "trisolv"):
        made[0] += 4 * sqrt(n) * np.eye(n)
    return [x / (2 * n) for x in made] if name == "durbin" else made
