"""Weights that a call scales stay constant, where that is the same sum and costs no more."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.showing import assert_same, graph_of
from tilewright import ops
from tilewright.core.estimates import OUTWEIGHING
from tilewright.core.graph import CONST
from tilewright.core.passes import run_pipeline
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.forms.unscale import UnscaleWeights

WINDOW = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}


def unscaled(build, *types):
    before = graph_of(build, *types)
    after = run_pipeline(before, (Canonicalize(), UnscaleWeights(), Canonicalize(), FoldConstants()))
    assert_same(before, after, rtol=1e-3, atol=1e-4, low=0.5)
    return after


def has_constant_weight(graph, op=ops.conv):
    return all(n.inputs[1].op is CONST for n in graph.nodes() if n.op is op)


def weight(b, *shape):
    return b.const(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


@settings(max_examples=40)
@given(
    batch=st.sampled_from([1, 1, 2, 3]),
    c=st.integers(1, 5),
    n_out=st.integers(15, 20),
    demodulated=st.booleans(),
    divided=st.booleans(),
    turned=st.booleans(),
)
def test_modulated_convolution(batch, c, n_out, demodulated, divided, turned):
    """A group for each image of the batch, as StyleGAN 2 writes it."""

    def build(b, x, s):
        w = weight(b, 1, n_out, c, 3, 3)
        style = b(ops.reshape, s, shape=(batch, 1, c, 1, 1))
        w = b(ops.mul, style, w) if turned else b(ops.div if divided else ops.mul, w, style)
        if demodulated:
            total = b(ops.reduce_sum, b(ops.mul, w, w), axes=(2, 3, 4), keepdims=True)
            w = b(ops.mul, w, b(ops.rsqrt, total))
        w = b(ops.reshape, w, shape=(batch * n_out, c, 3, 3))
        y = b(ops.conv, b(ops.reshape, x, shape=(1, batch * c, 4, 5)), w, groups=batch, **WINDOW)
        return b(ops.reshape, y, shape=(batch, n_out, 4, 5))

    after = unscaled(build, f"f32[{batch},{c},4,5]", f"f32[{batch},{c}]")
    assert n_out * 9 >= OUTWEIGHING
    assert has_constant_weight(after)
    assert all(n.attrs["groups"] == 1 for n in after.nodes() if n.op is ops.conv)


@settings(max_examples=40)
@given(
    batch=st.sampled_from([(), (1,), (2,), (2, 2)]),
    k=st.integers(4, 6),
    n=st.integers(4, 6),
    turned=st.booleans(),
    rows=st.booleans(),
    columns=st.booleans(),
)
def test_product(batch, k, n, turned, rows, columns):
    """Scales along the sum, along the columns, both in turn, of one weight or of one for each of a batch."""

    def build(b, x, s, d):
        w = weight(b, *([n, k] if turned else [k, n]))
        if rows:
            w = b(ops.mul, w, b(ops.reshape, s, shape=(*batch, 1, k) if turned else (*batch, k, 1)))
        if columns:
            w = b(ops.div, w, b(ops.reshape, d, shape=(*batch, n, 1) if turned else (*batch, 1, n)))
        if turned:
            w = b(ops.transpose, w, perm=(*range(w.type.rank - 2), w.type.rank - 1, w.type.rank - 2))
        return b(ops.matmul, x, w)

    sizes = ",".join(map(str, batch)) + ("," if batch else "")
    after = unscaled(build, f"f32[{sizes}1,{k}]", f"f32[{sizes}{k}]", f"f32[{sizes}{n}]")
    assert has_constant_weight(after, ops.matmul)


REFUSED = {
    "a number for each tap": lambda b, w, s: b(ops.mul, w, b(ops.reshape, s, shape=(1, 1, 3, 3))),
    "a sum": lambda b, w, s: b(ops.add, w, b(ops.reshape, s, shape=(1, 9, 1, 1))),
    "both kinds of channels": lambda b, w, s: b(
        ops.mul, w, b(ops.reshape, b(ops.mul, b(ops.reshape, s, shape=(9, 1)), s), shape=(9, 9, 1, 1))
    ),
}


@pytest.mark.parametrize("scaled", REFUSED.values(), ids=REFUSED.keys())
def test_other_weights_stay(scaled):
    def build(b, x, s):
        return b(ops.conv, x, scaled(b, weight(b, 9, 9, 3, 3), s), groups=1, **WINDOW)

    assert not has_constant_weight(unscaled(build, "f32[1,9,4,4]", "f32[9]"))


def test_a_large_operand_of_few_products_is_not_scaled():
    def build(b, x, s):
        w = b(ops.mul, weight(b, 3, 8, 1, 1), b(ops.reshape, s, shape=(1, 8, 1, 1)))
        return b(ops.conv, x, w, strides=(1, 1), pads=((0, 0), (0, 0)), dilations=(1, 1), groups=1)

    assert not has_constant_weight(unscaled(build, "f32[1,8,40,40]", "f32[8]"))
    assert has_constant_weight(unscaled(build, "f32[1,8,1,3]", "f32[8]"))


@settings(max_examples=40)
@given(
    held=st.tuples(st.booleans(), st.booleans()),
    varies=st.sampled_from([(True, False), (False, True)]),
    is_conv=st.booleans(),
    is_turned=st.booleans(),
    lead=st.integers(0, 2),
)
def test_constants_that_a_factor_widens(held, varies, is_conv, is_turned, lead):
    """The weight may be wider than its constant, in either axis and in rank: then it is no constant."""
    sizes = (2, 3)
    shape = [n if h else 1 for n, h in zip(sizes, held, strict=True)][lead:]
    wide = [n if v else 1 for n, v in zip(sizes, varies, strict=True)]

    def build(b, x, f):
        tail = (1,) * (2 if is_conv else 0)
        w = b(ops.mul, weight(b, *shape, *tail), b(ops.reshape, f, shape=(*wide, *tail)))
        w = b(ops.expand, w, shape=(*sizes, *tail)) if w.shape != (*sizes, *tail) else w
        if is_conv:
            return b(ops.conv, x, w, groups=1, **{**WINDOW, "pads": ((0, 0), (0, 0))})
        return b(ops.matmul, x, b(ops.transpose, w, perm=(1, 0)) if is_turned else w)

    rows = sizes[1] if is_conv or is_turned else sizes[0]
    unscaled(build, f"f32[2,{rows},4,5]" if is_conv else f"f32[4,{rows}]", f"f32[{max(wide)}]")
