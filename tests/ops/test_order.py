"""Ordering and selection: stability, NaN, every algorithm, sizes the data decide."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.oracle import case_id, check_case, check_op, check_symbolic, sample_cases
from tilewright.build.driver import compile_graph
from tilewright.core import types as T
from tilewright.core.compute import Buffer, Stage
from tilewright.core.diag import UNKNOWN, OpError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.ops import order as so
from tilewright.ops.movement import reshape

OPS = (so.sort, so.top_k, so.argwhere, so.nonzero)
S = Sym("S", 0)
SMALL = (T.f32, T.f16, T.u8, T.i32, T.u32)


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_samples(case) -> None:
    check_case(case)


@pytest.mark.parametrize("n", [0, 1, 2, 31])
@pytest.mark.parametrize("descending", [False, True])
def test_symbolic_length(n, descending) -> None:
    x = np.random.default_rng(n).integers(0, 5, (2, n)).astype(np.float32)
    t = TensorType(T.f32, (2, S))
    _, order = check_symbolic(so.sort, (x,), (t,), {"axis": 1, "descending": descending})
    theirs = torch.sort(torch.tensor(x), dim=1, descending=descending, stable=True)
    np.testing.assert_array_equal(order, theirs.indices.numpy())


@pytest.mark.parametrize("algorithm", so.ALGORITHMS)
def test_none_of_the_largest(algorithm: str) -> None:
    """The nest that ranks them never runs, and asks for nothing of what it would read."""
    pool = Pool()
    b = Builder(pool, UNKNOWN)
    x = pool.input("x", TensorType(T.f32, (3, 5)), UNKNOWN)
    found = b.results(b(so.top_k, x, k=0, axis=1, algorithm=algorithm))
    model = compile_graph(Graph("none", pool, (x,), found, ("values", "places")), optimize=1)
    assert [np.asarray(y).shape for y in model(np.zeros((3, 5), np.float32))] == [(3, 0), (3, 0)]


def test_nan_is_greatest_as_in_torch() -> None:
    x = np.array([1, np.nan, -np.inf, np.inf, np.nan, -0.0, 0.0], np.float32)
    for descending in (False, True):
        _, order = check_op(so.sort, (x,), {"axis": 0, "descending": descending})
        expected = torch.sort(torch.tensor(x), descending=descending, stable=True).indices
        assert order.tolist() == expected.tolist()


@pytest.mark.one_in(10)
@pytest.mark.parametrize("dtype", [d for d in T.DTYPES if d is not T.bool_], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_dtypes_at_their_limits(dtype, largest) -> None:
    x = np.random.default_rng(1).integers(0, 100, 70).astype(dtype.numpy)
    x[:2] = [dtype.max, dtype.min]
    for algorithm in so.ALGORITHMS if so.can_select(dtype, 3) else (so.DIGITS, so.COUNTING):
        check_op(so.top_k, (x,), {"k": 3, "axis": 0, "largest": largest, "algorithm": algorithm})
    check_op(so.sort, (x[:7],), {"axis": 0, "descending": largest, "algorithm": so.COUNTING})


@pytest.mark.parametrize("dtype", [T.i8, T.bf16, T.u32, T.i64, T.f64], ids=str)
def test_sorting_by_digits(dtype) -> None:
    x = np.random.default_rng(1).integers(0, 9, 67).astype(dtype.numpy)
    check_op(so.sort, (x,), {"axis": 0, "descending": True})


@pytest.mark.parametrize("n", [256, 515])
def test_selection_over_several_blocks(n) -> None:
    x = np.random.default_rng(n).integers(-20, 20, (1, n)).astype(np.float32)
    _, order = check_op(so.top_k, (x,), {"k": 5, "axis": 1, "algorithm": so.SELECTING})
    expected = torch.sort(torch.tensor(x), dim=1, descending=True, stable=True).indices[:, :5]
    np.testing.assert_array_equal(order, expected.numpy())


@given(data=st.data(), n=st.integers(65, 140), k=st.integers(1, 30), largest=st.booleans(), of=st.sampled_from(SMALL))
@settings(max_examples=40)
def test_selection_with_ties_and_the_greatest_of_all(data, n, k, largest, of) -> None:
    """Whole blocks may hold nothing but what the last block is filled up with."""
    numbers = [0, 1, of.max, of.min, *([np.nan, -0.0, np.inf] if of.is_float else [])]
    few = data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=3))
    x = np.array(data.draw(st.lists(st.sampled_from(few), min_size=n, max_size=n))).astype(of.numpy)
    check_op(so.top_k, (x,), {"k": k, "axis": 0, "largest": largest, "algorithm": so.SELECTING})


@pytest.mark.parametrize(("dtype", "narrow"), [(T.f32, T.i32), (T.bf16, T.i32), (T.u8, T.u8)], ids=str)
def test_only_one_number_of_a_block_is_packed_with_its_position(dtype, narrow) -> None:
    x, values, order = Buffer("x", dtype, (500,)), Buffer("v", dtype, (5,)), Buffer("o", T.i64, (5,))
    items = so.top_k.kernel(
        (x,), (values, order), Attrs(so.top_k.complete_attrs({"k": 5, "axis": 0, "algorithm": so.SELECTING}))
    )
    made = {b.dtype for s in items if isinstance(s, Stage) for b in s.outs if len(b.shape) == 2}
    assert made == {narrow}


def test_selection_of_a_symbolic_length() -> None:
    x = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    attrs = {"k": 2, "axis": 1, "largest": False, "algorithm": so.SELECTING}
    check_symbolic(so.top_k, (x,), (TensorType(T.f32, (Sym("B", 0), S)),), attrs)


def test_symbolic_k() -> None:
    x = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)
    check_symbolic(so.top_k, (x,), (TensorType(T.f32, (2, S)),), {"k": S // 2, "axis": 1})


def test_nonzero_defines_a_symbol_for_its_users() -> None:
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(T.f32, (S, 2)))
    found, _ = b.results(b(so.nonzero, x, count="n"))
    n = found.shape[1]
    flat = b(reshape, found, shape=(n * 2,))
    g = Graph("g", pool, (x,), (flat,), ("y",))
    (y,) = evaluate_graph(g, [np.array([[0, 1], [2, 0], [0, 0]], np.float32)])
    assert y.tolist() == [0, 1, 1, 0] and n == Sym("n", 0)


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        (so.sort, (2,), {"axis": 1}),
        (so.top_k, (2,), {"axis": 0, "k": 3}),
        (so.top_k, (2,), {"axis": 0, "k": -1}),
        (so.sort, (2,), {"axis": 0, "algorithm": "bubbles"}),
        (so.sort, (S,), {"axis": 0, "algorithm": so.SELECTING}),
        (so.argwhere, (), {"count": "n"}),
        (so.argwhere, (2,), {"count": "a b"}),
    ],
)
def test_refused(op, shape, attrs) -> None:
    with pytest.raises(OpError):
        op.infer([TensorType(T.f32, shape)], Attrs(op.complete_attrs(attrs)))
