"""Running results along the last axis: a block of rows, or of runs of rows, at a time, laid across in a near cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.choose.default import schedule
from tilewright.core.compute import Buffer, Computation, every_stage
from tilewright.core.graph import Attrs
from tilewright.core.types import f16, f32, f64, i32
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.target.target import Target
from tilewright.tile.ir import For, Space

TARGETS = [HOST, Target.parse("x86-64-v4"), Target.parse("x86-64-v3"), Target.parse("x86-64")]


def attrs_of(op=ops.cumsum, **attrs):
    return Attrs(op.complete_attrs({"axis": 1, **attrs}))


def folded(rows, n, op=ops.cumsum, dtype=f32, **attrs):
    """A cumulative fold along the rows of a matrix."""
    x, y = Buffer("X", dtype, (rows, n)), Buffer("Y", dtype, (rows, n))
    items = tuple(op.compute((x,), (y,), attrs_of(op, **attrs)))
    made = dict.fromkeys(b for s in every_stage(items) for b in s.outs)
    return Computation((x,), (y,), items, tuple(b for b in made if b is not y))


def temporaries_of(kernel):
    """Memory for what a kernel keeps outside of scratch, as it does of rows of two places, which take one step."""
    return [np.zeros([int(d) for d in b.shape], b.dtype.numpy) for b in kernel.params[2:]]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    rows=st.integers(16, 150), n=st.integers(2, 140), exclusive=st.booleans(), reverse=st.booleans(),
    op=st.sampled_from([ops.cumsum, ops.cummax]), dtype=st.sampled_from([f32, f64, i32]),
)  # fmt: skip
@settings(max_examples=6)
def test_every_row_is_folded(target, rows, n, exclusive, reverse, op, dtype):
    x = np.random.default_rng(0).integers(-50, 50, (rows, n)).astype(dtype.numpy)
    out = np.zeros_like(x)
    attrs = {"exclusive": exclusive, "reverse": reverse}
    kernel = schedule(folded(rows, n, op, dtype, **attrs), target)
    Native(kernel, target)(x, out, *temporaries_of(kernel))
    np.testing.assert_array_equal(out, op.reference([x], attrs_of(op, **attrs)))


@pytest.mark.parametrize("target", TARGETS[1:3], ids=lambda t: t.name)
@given(
    rows=st.integers(1, 3), n=st.integers(1024, 2100), exclusive=st.booleans(), reverse=st.booleans(),
    op=st.sampled_from([ops.cumsum, ops.cummin]), dtype=st.sampled_from([f16, f32]),
)  # fmt: skip
@settings(max_examples=4)
def test_long_rows_are_folded_in_runs(target, rows, n, exclusive, reverse, op, dtype):
    """In the accumulator's dtype, in which sums are exact that the operand's would round."""
    x = np.random.default_rng(0).integers(-50, 50, (rows, n)).astype(dtype.numpy)
    x[:, 0] = 2.0 ** (15 if dtype is f16 else 26)
    out, attrs = np.zeros_like(x), {"exclusive": exclusive, "reverse": reverse, "accumulator": f64}
    kernel = schedule(folded(rows, n, op, dtype, **attrs), target)
    assert any(p.space is Space.LOCAL for p in kernel.places)
    Native(kernel, target)(x, out, *temporaries_of(kernel))
    np.testing.assert_array_equal(out, op.reference([x], attrs_of(op, **attrs)))


@pytest.mark.parametrize("n", [2, 17, 63])
def test_short_rows_are_laid_across_too(n):
    """Folded where they lie, each step of many rows is as many cache lines."""
    kernel = schedule(folded(500, n), Target.parse("x86-64-v4"))
    assert [p.buffer.shape[0] for p in kernel.places if p.space is Space.LOCAL] == [n]


@pytest.mark.parametrize("n", [1025, 1100, 50_257])
def test_few_elements_are_left_behind_the_last_run(n):
    kernel = schedule(folded(2, n), Target.parse("x86-64-v4"))
    assert next(p.buffer.shape[0] for p in kernel.places if p.buffer.name == "Y_rest") <= 4


def test_a_block_of_rows_stays_in_scratch():
    """Nothing but the operand and the result is as large as they are, and one loop is around all."""
    kernel = schedule(folded(500, 200), Target.parse("x86-64-v4"))
    assert [p.buffer.shape for p in kernel.places if p.space is Space.LOCAL] == [(200, 64)]
    assert len(kernel.body) == 1 and isinstance(kernel.body[0], For)
    long = schedule(folded(16, 100_000), Target.parse("x86-64-v4"))
    assert [p.buffer.shape for p in long.places if p.space is Space.LOCAL] == [(50, 1, 64)], "runs of a row"
    whole = schedule(folded(16, 100_000, ops.cumprod), Target.parse("x86-64-v4"))
    assert not any(p.space is Space.LOCAL for p in whole.places), "rows without runs, which fit into no near cache"


def test_rows_are_one_axis():
    graph = graph_of(lambda b, x: b(ops.cumsum, x, axis=2, reverse=True), "f32[4,3,5]")
    after = Canonicalize().run(graph)
    assert_same(graph, after)
    (node,) = (n for n in after.nodes() if n.op is ops.cumsum)
    assert node.shape == (12, 5)
    for shape, axis in (("f32[4,3,5]", 1), ("f32[4,1,5]", 2), ("f32[4,5]", 1)):
        other = graph_of(lambda b, x, axis=axis: b(ops.cumsum, x, axis=axis), shape)
        assert n_of(Canonicalize().run(other), ops.reshape) == 0
