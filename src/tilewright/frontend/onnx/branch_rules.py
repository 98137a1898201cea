"""What the bodies of If, Loop and Scan need of a call's sizes, checked by the calls that run them.

In: the rules that the converters of a body's nodes noted, and the body's graph. Out: checks of the model, or rules of
the body around this one. Not its business: rules of nodes that every call runs (``Walker.constraints``).

A branch that isn't taken needs nothing, so its rules hold under the branch's condition. Such a condition may belong to
a body itself; outside of that body it is computed once more from what the body captured. Where it depends on a loop's
step, the rule holds for every call instead: a call may be refused for a step that never comes, and none is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.core.expr import Dim, Expr, maximum, minimum
from tilewright.core.graph import CONST, INPUT, Node
from tilewright.core.opdef import Trait
from tilewright.core.relations import rule_of
from tilewright.core.types import bool_
from tilewright.frontend.onnx.call import Body, Call


def check_bodies(c: Call, body: Body, conditions: Sequence[Node | None]) -> None:
    """Let calls keep to what each of the bodies needs, where its condition (0-d, bool; None: always) holds."""
    checks: dict[str, Node] = {}
    for rules, condition in zip(body.rules, conditions, strict=True):
        for rule, inner in rules:
            moved = (condition, *(_outside(c, x, {}) for x in inner))
            when = tuple(x for x in moved if x is not None)
            if not c.host.require(rule, *when):
                text, holds = f"{c.loc}: {rule_of(rule)} must hold where this runs", _holds(c, rule, when)
                checks[text] = c(ops.logical_and, checks[text], holds) if text in checks else holds
    for text, holds in checks.items():
        c.host.check(holds, text)


def away_from_misfits(c: Call, body: Body, condition: Node) -> Node:
    """An If's condition, turned away from a branch that the sizes of a call don't fit.

    A check tells after the call that it failed, and such a branch would write outside of its memory before. Calls that
    fit neither branch are refused beforehand.
    """
    first, second = ([rule for rule, when in rules if not when] for rules in body.rules)
    if first and second:
        c.assume(maximum(_least(first), _least(second)))
    if first:
        condition = c(ops.logical_and, condition, _holds(c, _least(first), ()))
    if second:
        condition = c(ops.logical_or, condition, c(ops.logical_not, _holds(c, _least(second), ())))
    return condition


def _least(rules: Sequence[Expr]) -> Expr:
    least: Dim = rules[0]
    for rule in rules[1:]:
        least = minimum(least, rule)
    assert isinstance(least, Expr)  # a rule that holds for all sizes is never noted
    return least


def _holds(c: Call, rule: Expr, when: Sequence[Node]) -> Node:
    kept = c(ops.ge, c.dim_value(rule), c.dim_value(0))
    for condition in when:
        kept = c(ops.logical_or, kept, c(ops.logical_not, condition))
    return kept


def _outside(c: Call, x: Node, done: dict[Node, Node | None]) -> Node | None:
    """A node of a body as one of the graph around it; None where something of the body alone decides it."""
    if x not in done:
        done[x] = _moved(c, x, done)
    return done[x]


def _moved(c: Call, x: Node, done: dict[Node, Node | None]) -> Node | None:
    if x in c.emitter.outside:
        return c.emitter.outside[x]
    values = c.emitter.values(x)
    if values is not None and x.op is not CONST:
        return c.emitter.of_values(values, x.dtype, c.loc) if x.dtype.is_integer or x.dtype is bool_ else None
    if x.op is INPUT or len(x.types) != 1 or x.op.traits & {Trait.CONTROL, Trait.RANDOM}:
        return None
    inputs = [_outside(c, below, done) for below in x.inputs]
    found = [n for n in inputs if n is not None]
    return c(x.op, *found, **dict(x.attrs)) if len(found) == len(inputs) else None
