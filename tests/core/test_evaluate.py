"""The graph IR's meaning: symbols bound by shapes, several results, sizes that the data decide, and what is refused."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright import ops
from tilewright.core import expr
from tilewright.core import types as T
from tilewright.core.diag import OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Attrs, Builder, Graph, Node, Pool
from tilewright.core.opdef import AttrDef, OpDef
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import TensorType
from tilewright.runtime.errors import ExecutionError, InputError

S, N = Sym("S", 1, 8), Sym("N", 0)


def graph(inputs: Sequence[Node], outputs: Sequence[Node], pool: Pool, *constraints: Dim) -> Graph:
    names = tuple(f"y{k}" for k in range(len(outputs)))
    return Graph("g", pool, tuple(inputs), tuple(outputs), names, constraints)


def made_up(name: str, infer, reference, **attrs: AttrDef) -> OpDef:
    return OpDef(name, ("x",), attrs, infer, reference, compute=lambda i, o, a: ())


POSITIVE = made_up(
    "positive", lambda ts, a: (TensorType(T.f32, (N,)), TensorType(T.i64, ())),
    lambda xs, a: (xs[0][xs[0] > 0], np.array((xs[0] > 0).sum())),
)  # fmt: skip
SIZES = OpDef(
    "sizes", (), {"dims": AttrDef("dims")}, lambda ts, a: TensorType(T.i64, (len(a.dims),)),
    lambda xs, a: np.array(a.dims), compute=lambda i, o, a: (),
)  # fmt: skip
LIAR = made_up("liar", lambda ts, a: ts[0], lambda xs, a: xs[0][:1])


def test_symbols_come_from_input_shapes() -> None:
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(T.f32, (S, 2)))
    g = graph([x], [b(ops.reshape, x, shape=(S * 2,))], pool)
    for n in (1, 5):
        a = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)
        np.testing.assert_array_equal(evaluate_graph(g, [a])[0], a.ravel())


def test_a_size_that_the_data_decide_is_known_after_the_node_that_defines_it() -> None:
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(T.f32, (S,)))
    found, count = b.results(b(POSITIVE, x))
    g = graph([x], [b(SIZES, dims=(N + 1, S)), found, count], pool)
    sizes, values, n = evaluate_graph(g, [np.array([1, -2, 3], np.float32)])
    assert sizes.tolist() == [3, 3] and values.tolist() == [1, 3] and n == 2


def test_a_sum_is_checked_with_symbols_of_later_inputs() -> None:
    pool = Pool()
    x, y = pool.input("x", TensorType(T.f32, (S + N,))), pool.input("y", TensorType(T.f32, (S, N)))
    g = graph([x, y], [x], pool)
    evaluate_graph(g, [np.zeros(5, np.float32), np.zeros((2, 3), np.float32)])
    with pytest.raises(InputError, match="must be N \\+ S = 5, not 4"):
        evaluate_graph(g, [np.zeros(4, np.float32), np.zeros((2, 3), np.float32)])


@pytest.mark.parametrize(
    "array",
    [np.zeros((2,), np.float64), np.zeros((2, 1), np.float32), np.zeros((9,), np.float32), np.zeros(7, np.float32)],
    ids=["dtype", "rank", "bound", "constraint"],
)
def test_inputs_that_do_not_fit(array) -> None:
    pool = Pool()
    x = pool.input("x", TensorType(T.f32, (S,)))
    with pytest.raises(InputError):
        evaluate_graph(graph([x], [x], pool, 6 - S), [array])


def test_wrong_count_of_inputs() -> None:
    pool = Pool()
    x = pool.input("x", TensorType(T.f32, (S,)))
    with pytest.raises(InputError, match="takes 1 inputs, not 0"):
        evaluate_graph(graph([x], [x], pool), [])


def test_a_result_that_breaks_its_type_is_caught() -> None:
    pool = Pool()
    x = pool.input("x", TensorType(T.f32, (4,)))
    with pytest.raises(ExecutionError, match="liar does not fit its type"):
        evaluate_graph(graph([x], [Builder(pool)(LIAR, x)], pool), [np.zeros(4, np.float32)])


def test_an_unknown_symbol_is_named() -> None:
    pool = Pool()
    with pytest.raises(ExecutionError, match="no value for N"):
        evaluate_graph(graph([], [Builder(pool)(SIZES, dims=(N,))], pool), [])


def test_reference_sees_plain_numbers() -> None:
    seen: list[Attrs] = []
    spy = made_up("spy", lambda ts, a: ts[0], lambda xs, a: (seen.append(a), xs[0])[1], n=AttrDef("dims"))
    pool = Pool()
    x = pool.input("x", TensorType(T.f32, (S,)))
    evaluate_graph(graph([x], [Builder(pool)(spy, x, n=(S * 2, 1))], pool), [np.zeros(3, np.float32)])
    assert seen[0].n == (6, 1)


def test_sizes_by_which_a_rule_or_a_size_divides_by_0_are_refused() -> None:
    """By the rule's words where it is one, and never by Python's own error."""
    n, m = Sym("n", 0), Sym("m", 0)
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(T.f32, (n, m)))
    by_rule = Graph("g", b.pool, (x,), (x,), ("y",), (expr.mod(n, m) * -1,))
    part = b(ops.slice, x, starts=(0, 0), stops=(expr.floordiv(n, m), m), steps=(1, 1))
    for g, text in ((by_rule, "n % m == 0"), (Graph("g", b.pool, (x,), (part,), ("y",)), "divides? .*by 0")):
        with pytest.raises(InputError, match=text):
            evaluate_graph(g, [np.zeros((4, 0), np.float32)])
        with pytest.raises(OptionError, match=text):
            fix_symbols(g, {"m": 0})
