"""The box of a temporary that a strip of its reader needs, for indices and loops that are not plain."""

import pytest

from tile.kernels import ZERO, F
from tile.test_schedule import refuses, same
from tilewright.core.compute import Buffer, Computation, Const, Inside, Reduction, Select, Stage, axes_for
from tilewright.core.expr import maximum, minimum


def stencil(n, m, *places):
    """``y[i] = sum over places of t[place(i)]``, where ``t`` of ``m`` elements is twice the input."""
    x, t, y = Buffer("x", F, (m,)), Buffer("t", F, (m,)), Buffer("y", F, (n,))
    (i,), (j,) = axes_for((m,)), axes_for((n,))
    value = sum((t[place(j.sym)] for place in places[1:]), t[places[0](j.sym)])
    first = Stage((t,), (i,), (i.sym,), (x[i.sym] * Const(2, F),))
    return Computation((x,), (y,), (first, Stage((y,), (j,), (j.sym,), (value,))), (t,))


@pytest.mark.parametrize("factor", [1, 3, 4, 23, 40])
def test_compute_at_of_a_stencil_whose_edges_repeat(factor):
    """A strip's box is as long as without edges, and begins inside of the buffer."""
    places = [lambda i, k=k: maximum(0, minimum(22, i + k)) for k in (-2, 0, 3)]
    kernel = same(
        stencil(23, 23, *places, lambda i: i), ("split", "i0_1", factor), ("compute_at", "t", "i0_1_o", "local")
    )
    (t,) = [p.buffer for p in kernel.places if p.buffer.name == "t"]
    assert t.shape == (min(factor + 5, 23),)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_compute_at_of_what_grows_to_twice_the_size(factor):
    places = (
        lambda i: i // 2, lambda i: maximum(0, minimum(11, (i + 1) // 2)),
        lambda i: maximum(0, minimum(11, i // 2 - 1 + 2 * (i % 2))),
    )  # fmt: skip
    kernel = same(stencil(23, 12, *places), ("split", "i0_1", factor), ("compute_at", "t", "i0_1_o", "local"))
    (t,) = [p.buffer for p in kernel.places if p.buffer.name == "t"]
    assert t.shape[0] <= factor // 2 + 3
    odd = (("split", "i0_1", 3), ("compute_at", "t", "i0_1_o", "local"))
    refuses(stencil(23, 12, lambda i: i // 2), *odd, rule="not affine")


def test_compute_at_of_what_ends_where_a_loop_inside_says():
    """``y[o, i] = sum over k <= i of t[k]``: all that any ``i`` reads, as the copy stands outside of ``i``."""
    x, t, y = Buffer("x", F, (5,)), Buffer("t", F, (5,)), Buffer("y", F, (2, 5))
    (i,), (o, j), (k,) = axes_for((5,)), axes_for((2, 5)), axes_for((5,), "k")
    term = Select(Inside((j.sym - k.sym,)), t[k.sym], ZERO)
    first = Stage((t,), (i,), (i.sym,), (x[i.sym] * Const(2, F),))
    last = Stage((y,), (o, j), (o.sym, j.sym), (term,), Reduction((k,), "add", (ZERO,)))
    triangle = Computation((x,), (y,), (first, last), (t,))
    kernel = same(triangle, ("trim", "k0", "i1_1"), ("compute_at", "t", "i0_2", "local"))
    (copy,) = [p.buffer for p in kernel.places if p.buffer.name == "t"]
    assert copy.shape == (5,)
