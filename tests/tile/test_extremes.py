"""Maxima that need not carry NaN: only where a sum over the row carries it to everything that they reach."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SMALL, WIDE, ZERO, F, softmax
from tile.test_chain import attention
from tilewright.choose.default import schedule_with_steps
from tilewright.choose.normalize import normalize
from tilewright.core.compute import Buffer, Reduction, Select, Unary, axes_for, syms
from tilewright.tile.interp import run

ROWS, COLUMNS = 3, 5
(i,), (j,) = syms(axes_for((ROWS,), "r")), syms(axes_for((COLUMNS,), "c"))


def of(computation):
    return [s.reduction.op for s in normalize(computation, WIDE).items if s.reduction]


@pytest.mark.parametrize(
    "computation", [softmax(ROWS, COLUMNS), attention(2, 4, 5, 3, 4), attention(1, 4, 5, 3, 4, scaled=False)]
)
def test_under_a_softmax_any_number_will_do(computation):
    assert "larger" in of(computation) and "max" not in of(computation)


def going_out(found, k):
    """A temporary is an output, too."""
    t = found.temps[k]
    return replace(found, outputs=(*found.outputs, t), temps=tuple(x for x in found.temps if x is not t))


def changed(found, at, **fields):
    items = list(found.items)
    items[at] = replace(items[at], **fields)
    return replace(found, items=tuple(items))


def replaced(found):
    """What becomes of a difference is no NaN."""
    x, m = found.inputs[0], found.temps[0]
    difference = x[i, j] - m[i]
    return changed(found, 1, exprs=(Select(Unary("isnan", difference), x[0, 0], difference),))


def mixed(found):
    """Each row is divided by the sum of the next one."""
    s, e = found.temps[1:]
    inner = axes_for((ROWS - 1, COLUMNS))
    a, b = syms(inner)
    return changed(found, 3, axes=inner, index=(a, b), exprs=(e[a, b] / s[a + 1],))


def in_part(found):
    """The sum leaves the last column out."""
    some = axes_for((COLUMNS - 1,), "p")
    return changed(found, 2, exprs=(found.temps[2][i, syms(some)[0]],), reduction=Reduction(some, "add", (ZERO,)))


def of_others(found):
    """Differences of something else than what the maximum is of."""
    other = Buffer("Z", F, (ROWS, COLUMNS))
    made = changed(found, 1, exprs=(Unary("exp", other[i, j] - found.temps[0][i]),))
    return replace(made, inputs=(*found.inputs, other))


CHANGES = [partial(going_out, k=0), partial(going_out, k=2), replaced, mixed, in_part, of_others]


@pytest.mark.parametrize("change", CHANGES)
def test_elsewhere_a_maximum_carries_nan(change):
    assert "max" in of(change(softmax(ROWS, COLUMNS)))


@given(columns=st.integers(1, 70), places=st.sets(st.integers(0, 209), max_size=6), seed=st.integers(0, 9))
@settings(max_examples=7)
def test_rows_with_nan_are_nan_whole(columns, places, seed):
    x = np.random.default_rng(seed).standard_normal((ROWS, columns)).astype("f")
    x.reshape(-1)[[p for p in places if p < x.size]] = np.nan
    kernel = schedule_with_steps(softmax(ROWS, columns), SMALL).kernel
    with np.errstate(all="ignore"):
        got = run(kernel, {"X": x.copy(), "Y": np.zeros_like(x)})["Y"]
        e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)
