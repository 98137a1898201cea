"""Rule tables reach their fixpoint, keep locations, write a journal, and refuse rules that do not end."""

import time

import pytest

from core.tiny import add, call, graph_of, mul, neg, reshape, split2, typed
from tilewright.core.diag import Loc
from tilewright.core.graph import CONST, PROJ, Builder, Pool
from tilewright.core.rewrite import Or, P, RewriteError, Rule, RuleTable, Var, const, inline, rewrite


def is_zero(node):
    return node.op is CONST and not node.attrs["data"].array.any()


X, Y = Var("x"), Var("y")
DOUBLE_NEG = P(neg, P(neg, X))
PLUS_ZERO = P(add, X, const("zero", is_zero))


def by_pattern(pattern, name):
    return lambda b, n: (m := pattern.match(n)) and m[name]


double_neg = Rule("neg-neg", (neg,), by_pattern(DOUBLE_NEG, "x"), "-(-x) is x")
plus_zero = Rule("add-zero", (add,), by_pattern(PLUS_ZERO, "x"), "x + 0 is x")
neg_to_mul = Rule("neg-to-mul", (neg,), lambda b, n: b(mul, n.inputs[0], b.const(-1.0, n.dtype)), "test")


@pytest.fixture
def b():
    return Builder(Pool(), Loc("model.py:1"))


def test_reaches_the_fixpoint_and_keeps_what_is_equal(b):
    x = b.pool.input("x", typed("f32", 4))
    zero = b.const(0.0, x.dtype)
    g = graph_of(b.pool, [x], b(neg, b(add, zero, b(neg, b(add, x, zero)))))
    zero_type = RuleTable([double_neg])
    assert rewrite(g, zero_type) is g
    journal = []
    # the tiny add takes its first operand's type: the constant stands first, and the type would change
    with pytest.raises(RewriteError, match="add-zero gives"):
        rewrite(g, [plus_zero], journal)


def test_what_a_rule_builds_is_rewritten_too(b):
    x = b.pool.input("x", typed("f32"))
    zero = b.const(0.0, x.dtype)
    y = b.at(Loc("model.py:7"))(add, zero, b(neg, b(neg, b(add, x, zero))))
    journal = []
    out = rewrite(graph_of(b.pool, [x], y), [double_neg, plus_zero], journal)
    assert out.outputs == (x,)
    assert [str(f) for f in journal] == [
        "add-zero: add at model.py:1", "neg-neg: neg at model.py:1", "add-zero: add at model.py:7",
    ]  # fmt: skip
    made = Rule("expand", (mul,), lambda b, n: b(neg, b(neg, n.inputs[0])), "test")
    assert rewrite(graph_of(b.pool, [x], b(mul, x, x)), [made, double_neg]).outputs == (x,)


def test_new_nodes_have_the_location_of_what_they_replace(b):
    x = b.pool.input("x", typed("f32"))
    y = b(neg, b.at(Loc("model.py:3"))(neg, x))
    out = rewrite(graph_of(b.pool, [x], y), [neg_to_mul])
    assert [n.loc.text for n in out.nodes() if n.op is mul] == ["model.py:3", "model.py:1"]


def test_several_results(b):
    x = b.pool.input("x", typed("f32"))
    first, second = b.results(b(split2, b(neg, b(neg, x))))
    g = graph_of(b.pool, [x], b(neg, second), first)
    decompose = Rule("decompose", (split2,), lambda b, n: n.op.decompose(b, n.inputs, n.attrs), "its definition")
    out = rewrite(g, [decompose, double_neg])
    assert out.outputs == (x, x)
    assert all(n.op is not PROJ for n in out.nodes())


def test_sub_graphs_are_rewritten(b):
    inner_pool = Pool()
    inner_x = inner_pool.input("x", typed("f32"))
    inner = Builder(inner_pool)
    body = graph_of(inner_pool, [inner_x], inner(neg, inner(neg, inner_x)))
    x = b.pool.input("x", typed("f32"))
    g = graph_of(b.pool, [x], b(call, x, body=body))
    out = rewrite(g, [double_neg])
    assert out.outputs[0].attrs["body"].outputs == (inner_x,)
    assert rewrite(out, [double_neg]) is out
    assert inline(b, body, [b(mul, x, x)]) == (b(neg, b(neg, b(mul, x, x))),)


def test_rules_that_do_not_end_are_an_error(b):
    x = b.pool.input("x", typed("f32"))
    swap = Rule("swap", (add,), lambda b, n: b(add, *n.inputs[::-1]), "test")
    with pytest.raises(RewriteError, match=r"back into itself.*swap"):
        rewrite(graph_of(b.pool, [x], b(add, x, b(neg, x))), [swap])
    grow = Rule("grow", (neg,), lambda b, n: b(neg, b(mul, n.inputs[0], n.inputs[0])), "test")
    with pytest.raises(RewriteError, match=r"do not end.*grow"):
        rewrite(graph_of(b.pool, [x], b(neg, x)), [grow])


def test_single_use_is_known(b):
    x = b.pool.input("x", typed("f32"))
    inner = b(neg, x)
    seen = []
    look = Rule("look", (add,), lambda b, n: seen.append([b.read_once(i) for i in n.inputs]), "test")
    rewrite(graph_of(b.pool, [x], b(add, inner, b(mul, x, x)), b(mul, inner, x)), [look])
    assert seen == [[False, True]]


def test_what_a_rule_made_is_read_as_often_as_what_it_replaced(b):
    x = b.pool.input("x", typed("f32"))
    y = b(neg, b(neg, x))
    turned = Rule("turned", (neg,), lambda b, n: b(mul, n.inputs[0], n.inputs[0]) if n.inputs[0] is x else None, "test")
    seen = []
    look = Rule("look", (neg,), lambda b, n: seen.append((n.inputs[0].op, b.read_once(n.inputs[0]))), "test")
    rewrite(graph_of(b.pool, [x], y), [turned, look])
    assert seen == [(mul, True)]


def test_patterns(b):
    x, y = b.pool.input("x", typed("f32")), b.pool.input("y", typed("f32"))
    square = P(mul, X, X)
    assert square.match(b(mul, x, x)) == {"x": x}
    assert square.match(b(mul, x, y)) is None
    # the inner sum must be matched in its second order for the outer one to fit
    nested = P(add, P(add, X, Y), P(mul, Y, Y))
    assert nested.match(b(add, b(add, x, y), b(mul, x, x))) == {"x": y, "y": x}
    either = Or(P(neg, X, name="n"), X)
    assert either.match(b(neg, x)) == {"n": b(neg, x), "x": x}
    assert either.match(y) == {"x": y}
    assert P(reshape, X, where=lambda n: n.attrs["shape"] == ()).match(b(reshape, x, shape=[1])) is None


def test_a_deep_graph_needs_no_recursion_and_little_time(b):
    x = b.pool.input("x", typed("f32"))
    y = x
    zero = b.const(0.0, x.dtype)
    for i in range(20_000):
        y = b(add, y, zero) if i % 10 == 0 else b(mul, y, x)
    start = time.process_time()
    out = rewrite(graph_of(b.pool, [x], y), [plus_zero, double_neg])
    assert time.process_time() - start < 3
    assert sum(n.op is add for n in out.nodes()) == 0
