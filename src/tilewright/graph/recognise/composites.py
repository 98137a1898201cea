"""The pass ``recognise``: composites are found again in the pieces that frontends import.

In: a canonical graph. Out: a graph with activations, means, norms, softmax, attention and rotary embedding as one node
each. Not its business: what becomes of them (``graph.decompose`` with ``keep``, and ``partition``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, P, Rewriting, Rule, RuleTable, Var, const, rewrite
from tilewright.core.types import product
from tilewright.graph.facts import factors, is_near, is_scalar, scalar, without
from tilewright.graph.recognise import attention, norm

X = Var("x")
ONE = const("one", lambda n: is_scalar(n, 1))
EXP_NEG_PLUS_ONE = P(ops.add, P(ops.exp, P(ops.neg, X)), ONE)
RELU6_OF_X_PLUS_3 = P(
    ops.clamp,
    P(ops.add, X, const("three", lambda n: is_scalar(n, 3))),
    const("zero", lambda n: is_scalar(n, 0)),
    const("six", lambda n: is_scalar(n, 6)),
)


def _one_plus(xs: Sequence[Node], op: OpDef) -> Node | None:
    """The factor that is ``op(...) + 1``, if there is one."""
    for f in xs:
        if f.op is ops.add and f.inputs[0].op is op and is_scalar(f.inputs[1], 1):
            return f
    return None


def _half_of(xs: Sequence[Node], one_plus: Node, x: Node) -> bool:
    """Are the factors ``x``, one half and ``one_plus``?"""
    rest = without(xs, one_plus, x)
    return rest is not None and len(rest) == 1 and is_near(rest[0], 0.5)


def _gelu_erf(b: Rewriting, node: Node) -> Node | None:
    """0.5 x (1 + erf(x / sqrt 2)), in any order of the products."""
    xs = factors(node)
    one_plus = _one_plus(xs, ops.erf)
    if one_plus is None:
        return None
    argument = one_plus.inputs[0].inputs[0]
    constant = {ops.mul: math.sqrt(0.5), ops.div: math.sqrt(2)}.get(argument.op)
    if constant is None or not is_near(argument.inputs[1], constant):
        return None
    x = argument.inputs[0]
    return b(ops.gelu, x) if x.type == node.type and _half_of(xs, one_plus, x) else None


def _gelu_tanh(b: Rewriting, node: Node) -> Node | None:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), with x factored out of the sum or not."""
    xs = factors(node)
    one_plus = _one_plus(xs, ops.tanh)
    if one_plus is None:
        return None
    inner = factors(one_plus.inputs[0].inputs[0])
    total = next((f for f in inner if f.op is ops.add), None)
    rest = total and without(inner, total)
    if not total or not rest or not any(is_near(f, math.sqrt(2 / math.pi)) for f in rest):
        return None
    others = [f for f in rest if not is_near(f, math.sqrt(2 / math.pi))]
    for x, cubic in (total.inputs, total.inputs[::-1]):
        if len(others) == 1 and is_scalar(x, 1):
            x, expected = others[0], 2
        else:
            expected = 3 if not others else 0
        powers = without(factors(cubic), *[x] * expected) if expected else None
        is_cubic = powers is not None and len(powers) == 1 and is_near(powers[0], 0.044715)
        if is_cubic and x.type == node.type and _half_of(xs, one_plus, x):
            return b(ops.gelu, x, approximate="tanh")
    return None


def _sigmoid(b: Rewriting, node: Node) -> Node | None:
    m = EXP_NEG_PLUS_ONE.match(node.inputs[0])
    return b(ops.sigmoid, m["x"]) if m and m["x"].type == node.type else None


def _silu(b: Rewriting, node: Node) -> Node | None:
    for x, gate in (node.inputs, node.inputs[::-1]):
        if gate.op is ops.sigmoid and gate.inputs[0] is x:
            return b(ops.silu, x)
    return None


def _mish(b: Rewriting, node: Node) -> Node | None:
    for x, gate in (node.inputs, node.inputs[::-1]):
        if gate.op is ops.tanh and gate.inputs[0].op is ops.softplus and gate.inputs[0].inputs[0] is x:
            return b(ops.mish, x)
    return None


def _silu_by_division(b: Rewriting, node: Node) -> Node | None:
    m = EXP_NEG_PLUS_ONE.match(node.inputs[1])
    return b(ops.silu, m["x"]) if m and m["x"] is node.inputs[0] else None


def _hard_swish(b: Rewriting, node: Node) -> Node | None:
    """x times relu6(x + 3) / 6, or times hard_sigmoid(x) with those constants."""
    xs = factors(node)
    for f in xs:
        if f.op is ops.hard_sigmoid and is_near_number(f.attrs["alpha"], 1 / 6) and f.attrs["beta"] == 0.5:
            rest = without(xs, f, f.inputs[0])
            if rest == []:
                return b(ops.hard_swish, f.inputs[0])
        m = RELU6_OF_X_PLUS_3.match(f) if f.op is ops.clamp else None
        rest = without(xs, f, m["x"]) if m else None
        if m and rest is not None and len(rest) == 1 and is_near(rest[0], 1 / 6) and m["x"].type == node.type:
            return b(ops.hard_swish, m["x"])
    return None


def _hard_swish_by_division(b: Rewriting, node: Node) -> Node | None:
    xs = factors(node.inputs[0])
    if not is_scalar(node.inputs[1], 6):
        return None
    for f in xs:
        m = RELU6_OF_X_PLUS_3.match(f) if f.op is ops.clamp else None
        if m and without(xs, f, m["x"]) == [] and m["x"].type == node.type:
            return b(ops.hard_swish, m["x"])
    # x * (relu6(x + 3) / 6): the division stands inside, and the product is found from its own root
    return None


def _hard_swish_inner_division(b: Rewriting, node: Node) -> Node | None:
    for x, gate in (node.inputs, node.inputs[::-1]):
        if gate.op is ops.div and is_scalar(gate.inputs[1], 6):
            m = RELU6_OF_X_PLUS_3.match(gate.inputs[0])
            if m and m["x"] is x:
                return b(ops.hard_swish, x)
    return None


def is_near_number(found: float, value: float) -> bool:
    return abs(found - value) <= 1e-6 * abs(value)


def _mean_from_sum(b: Rewriting, node: Node) -> Node | None:
    """sum(x) / n or sum(x) * (1 / n), as frontends write means."""
    x, factor = node.inputs
    if x.op is not ops.reduce_sum or not node.dtype.is_float or x.type != node.type:
        return None
    n, value = product([x.inputs[0].shape[k] for k in x.attrs["axes"]]), scalar(factor)
    if not is_known(n) or value is None or n == 0:
        return None
    is_mean = value == n if node.op is ops.div else value == float(factor.dtype.numpy.type(1 / n))
    return b(ops.reduce_mean, x.inputs[0], axes=x.attrs["axes"], keepdims=x.attrs["keepdims"]) if is_mean else None


TABLE = RuleTable(
    (
        Rule("mean-from-sum", (ops.mul, ops.div), _mean_from_sum, "the sum over n elements by n"),
        Rule("gelu-erf", (ops.mul,), _gelu_erf, "its formula"),
        Rule("gelu-tanh", (ops.mul,), _gelu_tanh, "its formula"),
        Rule("sigmoid", (ops.reciprocal,), _sigmoid, "1 / (1 + exp(-x))"),
        Rule("silu", (ops.mul,), _silu, "x sigmoid(x)"),
        Rule("mish", (ops.mul,), _mish, "x tanh(softplus(x))"),
        Rule("silu-by-division", (ops.div,), _silu_by_division, "x / (1 + exp(-x))"),
        Rule("hard-swish", (ops.mul,), _hard_swish, "x relu6(x + 3) / 6"),
        Rule("hard-swish-by-division", (ops.div,), _hard_swish_by_division, "x relu6(x + 3) / 6"),
        Rule("hard-swish-inner", (ops.mul,), _hard_swish_inner_division, "x relu6(x + 3) / 6"),
        *norm.RULES,
        *attention.RULES,
    )
)


@dataclass(frozen=True)
class Recognise(Pass):
    """Finds composites by their formulas; constants must agree to the last bits of their dtype.

    Cases: GELU in its erf and tanh forms, sigmoid, SiLU, Mish, hard swish, means; softmax and log-softmax with the
    maximum subtracted; layer norm and RMS norm over the last axes, with scales and biases along those; group norm
    written as an instance norm; attention with scale, masks, causal masks, soft caps and repeated heads of keys and
    values; rotary embedding by halves.

    It does not fire on softmax without the subtracted maximum (other overflow), on norms over axes that are not the
    last, on attention whose weights are read elsewhere too, or where an operand would have to be broadcast.
    """

    name: ClassVar[str] = "recognise"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, TABLE, journal)
