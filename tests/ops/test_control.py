"""If and Loop: type rules over formal symbols, results whose size the run decides, and their executable meaning."""

import numpy as np
import pytest

from ops.oracle import as_tuple, bind_results, samples_of
from tilewright.core import types as T
from tilewright.core.diag import OpError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.types import TensorType, tensor_type_of
from tilewright.ops import control as c
from tilewright.ops.elementwise import add, neg
from tilewright.ops.movement import concat
from tilewright.ops.order import nonzero
from tilewright.ops.window import slice_

S, K = Sym("S", 0), Sym("k", 0)
CASES = [(op, k) for op in (c.if_, c.loop, c.map_parts) for k in range(len(samples_of(op)))]


@pytest.mark.parametrize(("op", "k"), CASES)
def test_reference_fits_infer(op, k) -> None:
    sample = samples_of(op)[k]
    attrs = Attrs(op.complete_attrs(sample.attrs))
    results = as_tuple(op.infer([tensor_type_of(a) for a in sample.arrays], attrs))
    arrays = as_tuple(op.reference(sample.arrays, attrs))
    assert [a.dtype for a in arrays] == [t.dtype.numpy for t in results]
    bind_results(results, arrays, {})


def unary(build, *outer: TensorType) -> Graph:
    pool = Pool()
    inputs = tuple(pool.input(f"x{k}", t) for k, t in enumerate(outer))
    return Graph("g", pool, inputs, tuple(build(Builder(pool), *inputs)), ("y",))


def half(b, x):
    return [b(slice_, x, starts=(0,), stops=(2,), steps=(1,))]


def test_branches_of_different_length_give_a_named_symbol() -> None:
    formal = TensorType(T.f32, (K,))
    attrs = {"then_branch": unary(lambda b, x: [b(neg, x)], formal), "else_branch": unary(half, formal)}
    pool = Pool()
    b, cond = Builder(pool), pool.input("cond", TensorType(T.bool_, ()))
    x = pool.input("x", TensorType(T.f32, (S,)))
    y = b(c.if_, cond, x, **attrs, name="if1")
    assert y.shape == (Sym("if1_0_0", 0),)
    g = Graph("g", pool, (cond, x), (b(add, y, y),), ("y",))
    data = np.arange(5, dtype=np.float32)
    assert evaluate_graph(g, [np.array(True), data])[0].shape == (5,)
    assert evaluate_graph(g, [np.array(False), data])[0].tolist() == [0, 2]
    with pytest.raises(OpError, match="not fixed"):
        c.if_.infer([cond.type, x.type], Attrs(c.if_.complete_attrs(attrs)))


def test_formal_symbols_take_the_operands_sizes() -> None:
    formal = TensorType(T.f32, (K,))
    double = unary(lambda b, x: [b(concat, x, x, axis=0)], formal)
    attrs = Attrs({"then_branch": double, "else_branch": double, "name": ""})
    ts = [TensorType(T.bool_, ()), TensorType(T.f32, (S + 1,))]
    assert c.if_.infer(ts, attrs)[0].shape == (S * 2 + 2,)


def test_loop_stops_on_its_condition_and_stacks_rows() -> None:
    sample = samples_of(c.loop)[2]
    total, rows = c.loop.reference(sample.arrays, Attrs(c.loop.complete_attrs(sample.attrs)))
    assert total == 3 and rows.shape == (3, 3)


def test_no_iteration_stacks_rows_of_the_right_size() -> None:
    """Also where the row's size is an expression of a size outside, which no operand has by itself."""
    pool = Pool()
    i, cond = pool.input("i", TensorType(T.i64, ())), pool.input("cond", TensorType(T.bool_, ()))
    x = pool.input("x", TensorType(T.f32, (S // 2,)))
    body = Graph("body", pool, (i, cond, x), (cond, Builder(pool)(concat, x, x, axis=0)), ("cond", "row"))
    attrs = Attrs(c.loop.complete_attrs({"body": body, "n_carried": 0, "name": "l"}))
    rows = c.loop.reference((np.array(0), np.array(True), np.zeros(6, np.float32)), attrs)
    assert rows.shape == (0, 12)


def test_a_growing_carried_value_has_a_fresh_size() -> None:
    sample = samples_of(c.loop)[4]
    attrs = Attrs(c.loop.complete_attrs(sample.attrs))
    (t,) = c.loop.infer([tensor_type_of(a) for a in sample.arrays], attrs)
    assert t.shape == (Sym("l_0_0", 0), 2)
    assert c.loop.reference(sample.arrays, attrs).shape == (4, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda ts, a: ([TensorType(T.i32, ()), *ts[1:]], a),
        lambda ts, a: ([ts[0], TensorType(T.bool_, (1,)), *ts[2:]], a),
        lambda ts, a: (ts[:-1], a),
        lambda ts, a: ([*ts[:-1], TensorType(T.f64, (3,))], a),
        lambda ts, a: ([*ts[:-1], TensorType(T.f32, (3, 1))], a),
        lambda ts, a: (ts, {**a, "n_carried": 7}),
        lambda ts, a: (ts, {**a, "name": ""}),
    ],
)
def test_loop_refuses(change) -> None:
    sample = samples_of(c.loop)[2]
    ts, attrs = change([tensor_type_of(a) for a in sample.arrays], dict(sample.attrs))
    with pytest.raises(OpError):
        c.loop.infer(ts, Attrs(c.loop.complete_attrs(attrs)))


def test_parts_of_sizes_that_data_decide_are_refused() -> None:
    """Each part would have another number of rows."""
    pool = Pool()
    x = pool.input("x", TensorType(T.f32, (2, 3)))
    b = Builder(pool)
    body = Graph("part", pool, (x,), (b.results(b(nonzero, x, count="found"))[0],), ("y",))
    attrs = Attrs(c.map_parts.complete_attrs({"body": body, "n_parts": 2, "n_cut": 1}))
    with pytest.raises(OpError, match="data decide"):
        c.map_parts.infer([TensorType(T.f32, (4, 3))], attrs)
    with pytest.raises(OpError, match="equal parts"):
        c.map_parts.infer([TensorType(T.f32, (5, 3))], attrs)
