"""How often a ``Loop`` runs whose condition compares a counter with a number, as exporters write ``while i < n``.

In: the loop's body as a graph, its initial condition and carried values. Out: the number of trips as a dimension, or
the most that there may be, or None. Not its business: making the loop (``onnx.ops.control``).

The body adds a positive constant to the counter, and nothing changes the number within the loop (loop exit by an
induction variable: Aho, Lam, Sethi and Ullman, Compilers, 2nd ed., section 9.1.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim, Expr, ceildiv, maximum
from tilewright.core.graph import Graph, Node
from tilewright.frontend.onnx.call import Emitter


@dataclass(frozen=True)
class _Counter:
    """A number that is ``start + step * trip`` on entry to a trip."""

    start: Dim
    step: int


def trips(emitter: Emitter, body: Graph, go: Node, carried: Sequence[Node]) -> tuple[Dim, bool] | None:
    """The most trips of a loop without a limit of its own, and whether it takes as many.

    ``go`` is its condition before the first. A condition that asks for more than the comparison only ends it earlier.
    """
    known = _Known(emitter, body, carried)
    conjuncts = _conjuncts(body.outputs[0])
    for sides in filter(None, map(_less, conjuncts)):
        end, found = known.invariant(sides[1]), known.counter(sides[0])
        if end is None or found is None:
            continue
        counter, ahead = found
        most = maximum(ceildiv(end - counter.start - ahead, counter.step), 0) + 1
        if len(conjuncts) > 1 or _value(emitter, go) is True:
            return most, len(conjuncts) == 1
        last = counter.start + ahead - counter.step  # what the first trip would compare, one trip earlier
        first = _less(go)
        if first is None or [_dim(emitter, n) for n in first] != [last, end]:
            return most, False
        return maximum(ceildiv(end - last, counter.step), 0), True
    return None


def _conjuncts(condition: Node) -> list[Node]:
    """What must hold, all of it, for the condition to hold."""
    condition = _plain(condition)
    return [x for n in condition.inputs for x in _conjuncts(n)] if condition.op is ops.logical_and else [condition]


class _Known:
    """What is known of the numbers in a body."""

    def __init__(self, emitter: Emitter, body: Graph, carried: Sequence[Node]) -> None:
        self.emitter = emitter
        self.number = body.inputs[0]  # of the trip, which counts by itself
        self.formals = dict(zip(body.inputs[2:], zip(carried, body.outputs[1:], strict=False), strict=False))

    def invariant(self, node: Node) -> Dim | None:
        """The value of what is the same in every trip."""
        plain = _plain(node)
        if plain in self.formals:
            first, after = self.formals[plain]
            return _dim(self.emitter, first) if _plain(after) is plain else None
        return _dim(self.emitter, node)

    def counter(self, node: Node) -> tuple[_Counter, int] | None:
        """The counter of which ``node`` is the value on entry to a trip, or by so much later."""
        node = _plain(node)
        if node is self.number:
            return _Counter(0, 1), 0
        if node in self.formals:
            first, after = self.formals[node]
            start, step = _dim(self.emitter, first), self._step(after, node)
            return (_Counter(start, step), 0) if start is not None and step is not None else None
        if node.op is ops.add:
            for x, y in (node.inputs, node.inputs[::-1]):
                found, by = self.counter(x) if self._counts(x) else None, _dim(self.emitter, y)
                if found is not None and is_known(by):
                    return found[0], by
        return None

    def _counts(self, node: Node) -> bool:
        plain = _plain(node)
        return plain in self.formals or plain is self.number

    def _step(self, after: Node, formal: Node) -> int | None:
        after = _plain(after)
        if after.op is not ops.add:
            return None
        for x, y in (after.inputs, after.inputs[::-1]):
            by = _dim(self.emitter, y)
            if _plain(x) is formal and known_over(by, 0):
                return by
        return None


def _less(condition: Node) -> tuple[Node, Node] | None:
    """The two sides of ``a < b`` between whole numbers."""
    condition = _plain(condition)
    if condition.op not in (ops.lt, ops.gt):
        return None
    a, b = condition.inputs
    if not (_plain(a).dtype.is_integer and _plain(b).dtype.is_integer):
        return None
    return (a, b) if condition.op is ops.lt else (b, a)


def _plain(node: Node) -> Node:
    """What a node is but for its shape and number type; exporters cast counters to compare them."""
    while _is_plain_form(node):
        node = node.inputs[0]
    return node


def _is_plain_form(node: Node) -> bool:
    return node.op is ops.reshape or (node.op is ops.cast and node.inputs[0].dtype.is_integer)


def _value(emitter: Emitter, node: Node) -> object:
    values = emitter.values(node)
    return values.flat[0] if values is not None and values.size == 1 else None


def _dim(emitter: Emitter, node: Node) -> Dim | None:
    value = _value(emitter, node)
    while value is None and _is_plain_form(node):
        node = node.inputs[0]
        value = _value(emitter, node)
    return value if isinstance(value, int | Expr) and not isinstance(value, bool) else None
