"""The thirty programs of PolyBench against plain Python or NumPy, with sizes that only a call knows."""

from math import exp

import numpy as np
import pytest
from benchmarks.polybench import ALPHA, BETA, PROGRAMS, STEPS, arguments

N = 7


def lower_product(c, product):
    """c * BETA plus a product, in the lower triangle alone."""
    return np.where(np.tri(len(c), dtype=bool), BETA * c + product, c)


def trmm(a, b):
    return ALPHA * ((np.tril(a, -1) + np.eye(len(a))).T @ b)


def gemver(a, u1, v1, u2, v2, y, z):
    made = a + np.outer(u1, v1) + np.outer(u2, v2)
    x = BETA * made.T @ y + z
    return made, x, ALPHA * made @ x


def cholesky(a):
    return np.tril(np.linalg.cholesky(np.tril(a) + np.tril(a, -1).T)) + np.triu(a, 1)


def lu(a):
    made = a.copy()
    for k in range(len(a)):
        made[k + 1 :, k] /= made[k, k]
        made[k + 1 :, k + 1 :] -= np.outer(made[k + 1 :, k], made[k, k + 1 :])
    return made


def durbin(r):
    """The Yule-Walker equations that the recursion solves."""
    n = len(r)
    first = np.concatenate([[1.0], r[:-1]])
    return np.linalg.solve(first[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))], -r)


def gramschmidt(a):
    q, r = np.linalg.qr(a)
    signs = np.sign(np.diag(r))
    return q * signs, r * signs[:, None]


def correlation(x):
    made = np.corrcoef(x.T)
    np.fill_diagonal(made, 1)
    return made


def floyd_warshall(paths):
    made = paths.copy()
    for k in range(len(made)):
        made = np.minimum(made, made[:, k : k + 1] + made[k : k + 1])
    return made


def nussinov(bases):
    n = len(bases)
    most = np.zeros((n + 1, n + 1), np.int32)
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            pair = most[i + 1, j - 1] + (bases[i] + bases[j] == 3) * (i < j - 1)
            split = [most[i, k] + most[k + 1, j] for k in range(i + 1, j)]
            most[i, j] = max(most[i, j - 1], most[i + 1, j], pair, *split)
    return most[:n, :n]


def deriche(x):
    alpha = 0.25
    k = (1 - exp(-alpha)) ** 2 / (1 + 2 * alpha * exp(-alpha) - exp(2 * alpha))
    a = k, k * exp(-alpha) * (alpha - 1), k * exp(-alpha) * (alpha + 1), -k * exp(-2 * alpha)
    b = 2**-alpha, -exp(-2 * alpha)

    def along_columns(x):
        n, m = x.shape
        forth, back, wide = np.zeros((n + 2, m)), np.zeros((n + 2, m)), np.pad(x, ((2, 2), (0, 0)))
        for j in range(n):
            forth[j] = a[0] * wide[j + 2] + a[1] * wide[j + 1] + b[0] * forth[j - 1] + b[1] * forth[j - 2]
        for j in reversed(range(n)):
            back[j] = a[2] * wide[j + 3] + a[3] * wide[j + 4] + b[0] * back[j + 1] + b[1] * back[j + 2]
        return forth[:n] + back[:n]

    return along_columns(along_columns(x.T).T)


def inner(rank):
    return (slice(1, -1),) * rank


def neighbours(x):
    """The inner elements shifted by one along each axis, back and forth."""
    return [np.roll(x, s, d)[inner(x.ndim)] for d in range(x.ndim) for s in (1, -1)]


def jacobi(weight):
    def program(x):
        a = x.copy()
        for _ in range(2 * STEPS):
            total = a[inner(a.ndim)] + sum(neighbours(a))
            a = a.copy()
            a[inner(a.ndim)] = weight * total
        return a

    return program


def heat(x):
    a = x.copy()
    for _ in range(2 * STEPS):
        here = a[inner(3)]
        change = 0.125 * (sum(neighbours(a)) - 6 * here)
        a = a.copy()
        a[inner(3)] = here + change
    return a


def seidel(x):
    a = x.copy()
    for _ in range(STEPS):
        for i in range(1, len(a) - 1):
            for j in range(1, len(a) - 1):
                a[i, j] = a[i - 1 : i + 2, j - 1 : j + 2].sum() / 9
    return a


def fdtd(ex, ey, hz, source):
    ex, ey, hz = ex.copy(), ey.copy(), hz.copy()
    for s in source:
        ey[0] = s
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


def adi(x):
    """Each sweep solves tridiagonal equations: (-a v[j - 1] ... ) of heat, with 1 at both ends."""
    n = len(x)
    a, d = -(2.0 * 0.25 / 0.05**2) / 2, -(1.0 * 0.25 / 0.05**2) / 2
    u = x.copy()

    def solved(side, middle, right):
        """Lines of ``side * v[j - 1] + middle * v[j] + side * v[j + 1] = right[j]`` within a line that ends in 1."""
        matrix = np.diag(np.full(n - 2, middle)) + side * (np.eye(n - 2, k=1) + np.eye(n - 2, k=-1))
        ends = np.zeros(n - 2)
        ends[[0, -1]] += side
        return np.linalg.solve(matrix, right - ends)

    for _ in range(STEPS):
        v = np.ones((n, n))
        for i in range(1, n - 1):
            right = -d * u[1:-1, i - 1] + (1 + 2 * d) * u[1:-1, i] - d * u[1:-1, i + 1]
            v[1:-1, i] = solved(a, 1 - 2 * a, right)
        for i in range(1, n - 1):
            right = -a * v[i - 1, 1:-1] + (1 + 2 * a) * v[i, 1:-1] - a * v[i + 1, 1:-1]
            u[i, [0, -1]] = 1
            u[i, 1:-1] = solved(d, 1 - 2 * d, right)
    return u


EXPECTED = {
    "gemm": lambda c, a, b: ALPHA * a @ b + BETA * c,
    "2mm": lambda a, b, c, d: ALPHA * a @ b @ c + BETA * d,
    "3mm": lambda a, b, c, d: (a @ b) @ (c @ d),
    "doitgen": lambda a, c4: a @ c4,
    "symm": lambda c, a, b: BETA * c + ALPHA * (np.tril(a) + np.tril(a, -1).T) @ b,
    "syrk": lambda c, a: lower_product(c, ALPHA * a @ a.T),
    "syr2k": lambda c, a, b: lower_product(c, ALPHA * (a @ b.T + b @ a.T)),
    "trmm": trmm,
    "atax": lambda a, x: a.T @ (a @ x),
    "bicg": lambda a, p, r: (a.T @ r, a @ p),
    "mvt": lambda a, x1, x2, y1, y2: (x1 + a @ y1, x2 + a.T @ y2),
    "gesummv": lambda a, b, x: ALPHA * a @ x + BETA * b @ x,
    "gemver": gemver,
    "cholesky": cholesky,
    "lu": lu,
    "ludcmp": np.linalg.solve,
    "trisolv": lambda a, b: np.linalg.solve(np.tril(a), b),
    "durbin": durbin,
    "gramschmidt": gramschmidt,
    "covariance": lambda x: np.cov(x.T),
    "correlation": correlation,
    "floyd-warshall": floyd_warshall,
    "nussinov": nussinov,
    "deriche": deriche,
    "jacobi-1d": jacobi(0.33333),
    "jacobi-2d": jacobi(0.2),
    "seidel-2d": seidel,
    "heat-3d": heat,
    "fdtd-2d": fdtd,
    "adi": adi,
}


@pytest.mark.one_in(24)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_suite(name):
    for n in (N, N + 4):  # one code for both sizes
        given = arguments(name, PROGRAMS[name].shapes(n))
        made, expected = PROGRAMS[name].kernel(*given), EXPECTED[name](*given)
        if not isinstance(made, tuple):
            made, expected = (made,), (expected,)
        for x, y in zip(made, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
