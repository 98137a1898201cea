"""Between which numbers the elements of a tensor lie, whatever the data: bounds for sizes that data decide.

In: a node. Out: an interval of dimensions, with None for an end that nothing bounds. Values that are not whole numbers
are rounded outwards. Sound, and no more exact than sizes need: a count of marked elements, the place of the largest
one, a number that the model itself cuts off. Not its business: values that are known when compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from tilewright import ops
from tilewright.core.expr import Dim, is_nonneg, maximum, minimum
from tilewright.core.graph import CONST, PROJ, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, product

Range: TypeAlias = tuple[Dim | None, Dim | None]
ANY: Range = (None, None)
MAX_DEPTH = 60
NARROW_BITS = 16  # what an integer of so few bits may hold is a bound worth having


def bounds_of(node: Node, outside: Mapping[Node, Node] | None = None) -> Range:
    """The least and the most that an element of ``node`` can be.

    ``outside`` has, for inputs of a sub-graph, the nodes outside that they stand for.
    """
    return _BoundsFinder(outside or {}).range(node, 0)


class _BoundsFinder:
    def __init__(self, outside: Mapping[Node, Node]) -> None:
        self.outside = outside
        self.known: dict[Node, Range] = {}

    def range(self, node: Node, depth: int) -> Range:
        if node not in self.known:
            found = self._by_op(node, depth) if depth < MAX_DEPTH else ANY
            self.known[node] = _held(found, node.dtype, chooses=node.op in _CHOICES) if len(node.types) == 1 else found
        return self.known[node]

    def _by_op(self, node: Node, depth: int) -> Range:
        # An input of a body is what the graph outside hands to it.
        if node in self.outside:
            return self.range(self.outside[node], depth + 1)
        if node.op is CONST:
            return _of_array(node.attrs.data.array)
        if node.op is PROJ:
            return self._of_result(node.inputs[0], node.attrs.index, depth)
        if node.op is ops.dim_values:
            dims = node.attrs.dims
            return _joined([(d, d) for d in dims]) if dims else ANY
        if node.op is ops.iota:
            return 0, node.attrs.extent - 1
        if node.op is ops.full:
            return _of_array(np.asarray(node.attrs.value))
        if node.op in _SAME:
            return self.range(node.inputs[0], depth + 1)
        if node.op in _ANY_OF:
            return _joined([self.range(i, depth + 1) for i in node.inputs])
        if node.op is ops.where:
            return _joined([self.range(i, depth + 1) for i in node.inputs[1:]])
        if node.op in _WRITES and node.attrs.get("reduction", "none") in ("none", "max", "min"):
            return _joined([self.range(node.inputs[i], depth + 1) for i in (0, _WRITES[node.op])])
        if node.op in (ops.argmax, ops.argmin):
            return 0, node.inputs[0].shape[node.attrs.axis] - 1
        # A sum lies within as many times the range; with no element it is 0, which is why both ends count.
        if node.op in (ops.reduce_sum, ops.cumsum):
            axes = node.attrs.axes if node.op is ops.reduce_sum else (node.attrs.axis,)
            count = product([node.inputs[0].shape[a] for a in axes])
            return _times(self.range(node.inputs[0], depth + 1), (0, count))
        if node.op is ops.div and node.inputs[1].op is CONST:
            return _scaled_down(self.range(node.inputs[0], depth + 1), node.inputs[1].attrs.data.array)
        if node.op is ops.clamp:
            return self._clamped(node, depth)
        rule = _ARITHMETIC.get(node.op)
        return ANY if rule is None else rule(*(self.range(i, depth + 1) for i in node.inputs))

    def _clamped(self, node: Node, depth: int) -> Range:
        x, lo, hi = (self.range(i, depth + 1) for i in node.inputs)
        return _least(_most(x, lo), hi)

    def _of_result(self, node: Node, k: int, depth: int) -> Range:
        """Result ``k`` of a node with several."""
        is_last = k == len(node.types) - 1
        if node.op.bound is not None and is_last:
            return 0, node.op.bound([i.type for i in node.inputs], node.attrs)
        if node.op in (ops.argwhere, ops.nonzero):
            return _joined([(0, maximum(d - 1, 0)) for d in node.inputs[0].shape])
        if node.op in (ops.sort, ops.top_k):
            axis = node.attrs.axis
            return (0, node.inputs[0].shape[axis] - 1) if is_last else self.range(node.inputs[0], depth + 1)
        return ANY


def _of_array(array: np.ndarray) -> Range:
    if not array.size or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        return ANY
    return math.floor(array.min()), math.ceil(array.max())


def _held(found: Range, dtype: DType, *, chooses: bool) -> Range:
    """What elements of a type can be that are computed to lie in a range, and wrap around where they don't fit.

    Those of an op that only ``chooses`` one of its operands are elements of the type already. Whole numbers of 32 and
    64 bits are taken to fit where an end is a symbol, signed ones also where it is not known.
    """
    if dtype.kind == "bool":
        return _both(found, (0, 1))
    if not dtype.is_integer:
        return found
    lo, hi = found
    least, most = int(dtype.min), int(dtype.max)
    if dtype.bits <= NARROW_BITS:
        fits = lo is not None and hi is not None and is_nonneg(lo - least) and is_nonneg(most - hi)
        return found if fits else (least, most)
    is_above = hi is not None and is_nonneg(hi - most - 1)
    if least == 0:
        if chooses:
            return 0 if lo is None else lo, hi
        return ANY if lo is None or hi is None or is_above or not is_nonneg(lo) else found
    is_below = lo is not None and is_nonneg(least - 1 - lo)
    return ANY if is_below or is_above else found


def _both(a: Range, b: Range) -> Range:
    """What lies in both; an end that can't be compared is the first's."""
    lo = b[0] if a[0] is None or (b[0] is not None and is_nonneg(b[0] - a[0])) else a[0]
    hi = b[1] if a[1] is None or (b[1] is not None and is_nonneg(a[1] - b[1])) else a[1]
    return lo, hi


def _joined(ranges: list[Range]) -> Range:
    """What lies in any."""
    lo, hi = ranges[0]
    for a, b in ranges[1:]:
        lo = None if lo is None or a is None else minimum(lo, a)
        hi = None if hi is None or b is None else maximum(hi, b)
    return lo, hi


def _plus(a: Range, b: Range) -> Range:
    lo = None if a[0] is None or b[0] is None else a[0] + b[0]
    hi = None if a[1] is None or b[1] is None else a[1] + b[1]
    return lo, hi


def _negated(a: Range) -> Range:
    return None if a[1] is None else a[1] * -1, None if a[0] is None else a[0] * -1


def _times(a: Range, b: Range) -> Range:
    """A product, where one factor is never negative."""
    if a[0] is None or not is_nonneg(a[0]):
        a, b = b, a
    if a[0] is None or not is_nonneg(a[0]):
        return ANY
    hi = None if a[1] is None or b[1] is None else maximum(a[1] * b[1], 0)
    lo = 0 if b[0] is not None and is_nonneg(b[0]) else None if a[1] is None or b[0] is None else a[1] * b[0]
    return lo, hi


def _divided(a: Range, b: Range) -> Range:
    """A quotient by what is at least 1, or at most -1: between the dividend and 0."""
    if b[1] is not None and is_nonneg(b[1] * -1 - 1):
        a, b = _negated(a), _negated(b)
    if b[0] is None or not is_nonneg(b[0] - 1):
        return ANY
    return None if a[0] is None else minimum(a[0], 0), None if a[1] is None else maximum(a[1], 0)


def _scaled_down(a: Range, divisors: np.ndarray) -> Range:
    """A quotient by known numbers, which may be fractions."""
    least, most = _of_array(divisors)
    if least is None or not (divisors > 0).all():
        return _divided(a, (least, most))
    by = math.ceil(1 / float(divisors.min()))
    return None if a[0] is None else minimum(a[0] * by, 0), None if a[1] is None else maximum(a[1] * by, 0)


def _remainder(a: Range, b: Range) -> Range:
    if b[0] is None or not is_nonneg(b[0] - 1) or b[1] is None:
        return ANY
    return 0, b[1] - 1


def _least(a: Range, b: Range) -> Range:
    hi = b[1] if a[1] is None else a[1] if b[1] is None else minimum(a[1], b[1])
    return (None if a[0] is None or b[0] is None else minimum(a[0], b[0])), hi


def _most(a: Range, b: Range) -> Range:
    return _negated(_least(_negated(a), _negated(b)))


def _absolute(a: Range) -> Range:
    return 0, _most(a, _negated(a))[1]


_SAME = frozenset({
    ops.cast, ops.reshape, ops.expand, ops.transpose, ops.slice, ops.gather, ops.gather_elements, ops.gather_nd,
    ops.reverse, ops.tile, ops.roll, ops.dynamic_slice, ops.with_sizes, ops.reduce_max, ops.reduce_min, ops.reduce_mean,
    ops.floor, ops.ceil, ops.round, ops.trunc, ops.cummax, ops.cummin,
})  # fmt: skip
"""Ops whose elements lie between those of their first operand, once these are rounded outwards."""

_CHOICES = frozenset({ops.minimum, ops.maximum})
_ANY_OF = frozenset({ops.concat, ops.pad})
_WRITES: Mapping[OpDef, int] = {ops.scatter_elements: 2, ops.scatter_nd: 2, ops.dynamic_update_slice: 1}
"""Ops that put elements of the operand at this place among those of their first one."""

_ARITHMETIC: Mapping[OpDef, Callable[..., Range]] = {
    ops.add: _plus,
    ops.sub: lambda a, b: _plus(a, _negated(b)),
    ops.neg: _negated,
    ops.mul: _times,
    ops.div: _divided,
    ops.floor_div: _divided,
    ops.mod: _remainder,
    ops.minimum: _least,
    ops.maximum: _most,
    ops.relu: lambda a: _most(a, (0, 0)),
    ops.abs: _absolute,
    ops.sigmoid: lambda a: (0, 1),
    ops.tanh: lambda a: (-1, 1),
    ops.softmax: lambda a: (0, 1),
}
