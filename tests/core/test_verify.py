"""The verifier finds each kind of breach and lists all of them."""

import pytest

from core.tiny import N, add, call, count, graph_of, neg, reshape, split2, typed
from tilewright.core.diag import VerifyError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Node, Pool
from tilewright.core.verify import verify


@pytest.fixture
def b():
    return Builder(Pool())


def test_good_graphs_pass(b):
    x = b.pool.input("x", typed("f32", N))
    verify(graph_of(b.pool, [x], b(add, x, b.results(b(split2, x))[1]), b(neg, b(count, x, count="k"))))


def test_cycle(b):
    x = b.pool.input("x", typed("f32", N))
    y = b(neg, x)
    object.__setattr__(y, "inputs", (b(neg, y),))
    with pytest.raises(VerifyError, match="depends on itself"):
        verify(graph_of(b.pool, [x], y))


def test_wrong_type_foreign_node_and_wrong_arity_are_all_listed(b):
    x = b.pool.input("x", typed("f32", N))
    wrong = Node(neg, (x,), Attrs({}), (typed("f64", N),), x.loc, 99)
    missing = Node(reshape, (wrong,), Attrs({}), (typed("f32", N),), x.loc, 100)
    with pytest.raises(VerifyError) as e:
        verify(graph_of(b.pool, [x], missing))
    text = str(e.value)
    assert "is not owned" in text
    assert "has type f64[n], but infer gives f32[n]" in text
    assert "missing attributes ['shape']" in text


def test_interface(b):
    x, y = b.pool.input("x", typed("f32")), b.pool.input("x", typed("f64"))
    g = Graph("g", b.pool, (x, y, b(neg, x)), (b(split2, b.pool.input("z", typed("f32"))),), ())
    with pytest.raises(VerifyError) as e:
        verify(g)
    for rule in ("two inputs are called 'x'", "is listed as an input", "does not list", "2 results", "0 output names"):
        assert rule in str(e.value)


def test_unknown_symbols(b):
    x = b.pool.input("x", typed("f32", N))
    with pytest.raises(VerifyError, match="uses the symbol m, which neither"):
        verify(graph_of(b.pool, [x], b(reshape, x, shape=[Sym("m")])))


def test_sub_graphs_are_held_to_the_spec(b):
    inner = Builder(Pool())
    ix = inner.pool.input("x", typed("f32", N))
    body = graph_of(inner.pool, [ix], inner(reshape, ix, shape=[Sym("m")]), name="body")
    x = b.pool.input("x", typed("f32", N))
    with pytest.raises(VerifyError, match="in sub-graph 'body'"):
        verify(graph_of(b.pool, [x], b(call, x, body=body)))
