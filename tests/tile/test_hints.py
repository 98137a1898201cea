"""Hints at what an epilogue reads besides its sums: before long reductions, at operands that no near cache holds."""

from dataclasses import replace

import pytest

from tile.kernels import WIDE, ZERO, F, check_default
from tilewright.core.compute import Buffer, Computation, Reduction, Stage, axes_for, syms
from tilewright.tile.ir import For, Prefetch, walk


def product_with(rest, m, n, k):
    """``A @ B + rest(R)``, R as large as the result."""
    a, b, r, c = Buffer("A", F, (m, k)), Buffer("B", F, (k, n)), Buffer("R", F, (m, n)), Buffer("C", F, (m, n))
    t = Buffer("T", F, (m, n))
    (i, j), (x,) = syms(axes_for((m, n))), syms(axes_for((k,), "k"))
    product = Reduction(axes_for((k,), "k"), "add", (ZERO,))
    stages = (
        Stage((t,), axes_for((m, n)), (i, j), (a[i, x] * b[x, j],), product),
        Stage((c,), axes_for((m, n)), (i, j), (t[i, j] + rest(r, i, j),)),
    )
    return Computation((a, b, r), (c,), stages, (t,))


def hinted(computation):
    kernel = check_default(computation, "B", machine=replace(WIDE, l1_bytes=1024))
    return kernel, [s.buffer.name for s in walk(kernel.body) if isinstance(s, Prefetch)]


@pytest.mark.parametrize(("m", "n"), [(12, 32), (10, 35), (1, 300)])
def test_a_residual_is_asked_for_before_the_reduction(m, n):
    kernel, names = hinted(product_with(lambda r, i, j: r[i, j], m, n, 64))
    assert names == ["R"]
    tiles = [s for s in walk(kernel.body) if isinstance(s, For) and len(s.body) > 2]
    assert any(isinstance(x, Prefetch) for s in tiles for x in walk(s.body[:1]))


@pytest.mark.parametrize(
    ("rest", "m", "n", "k"),
    [
        (lambda r, i, j: r[i, j], 12, 32, 20), (lambda r, i, j: r[i, j], 3, 32, 64),
        (lambda r, i, j: r[i, 0], 12, 32, 64), (lambda r, i, j: r[j, i], 32, 32, 64),
    ],
    ids=["a short reduction", "a small operand", "one element a row", "lanes apart"],
)  # fmt: skip
def test_elsewhere_there_are_none(rest, m, n, k):
    assert "R" not in hinted(product_with(rest, m, n, k))[1]
