"""Whether a call's indices are in range, where they are a model's input and asking costs next to nothing.

In: a lookup's table and indices. Out: a condition and the text of the failure, or None where there is nothing to ask.
Not its business: lookups whose indices a model computes; those are kept in range by the ops themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, is_nonneg
from tilewright.core.graph import INPUT, Node
from tilewright.core.types import i64, product
from tilewright.ops.value_bounds import bounds_of

_SAME_VALUES = (ops.reshape, ops.transpose, ops.expand)

Add = Callable[..., Node]
"""``add(op, *operands, **attributes)`` adds a node."""


def index_check(
    add: Add, number: Callable[[Dim], Node], table: tuple[Dim, ...], indices: Node, axis: int, least: Dim, loc: Loc
) -> tuple[Node, str] | None:
    """The condition that ``indices`` along ``axis`` of a table are ``least`` or more and within it.

    ``number`` makes a 0-d i64 of a dimension. A lookup of single elements is not asked about: it costs as much as the
    question.
    """
    source, most = _input_of(indices), table[axis] - 1
    if source is None or product([d for k, d in enumerate(table) if k != axis]) == 1:
        return None
    low, high = bounds_of(source)
    if low is not None and high is not None and is_nonneg(low - least) and is_nonneg(most - high):
        return None
    x = source if source.dtype is i64 else add(ops.cast, source, dtype=i64)
    inside = add(ops.logical_and, add(ops.ge, x, number(least)), add(ops.le, x, number(most)))
    axes = tuple(range(len(x.shape)))
    holds = add(ops.reduce_all, inside, axes=axes, keepdims=False) if axes else inside
    return holds, f'{loc}: an index in input "{source.attrs["name"]}" is outside of {least}..{most}'


def _input_of(x: Node) -> Node | None:
    """The input whose elements ``x`` has, each at least once and no others."""
    while x.op in _SAME_VALUES or (x.op is ops.cast and x.dtype.is_integer and x.inputs[0].dtype.is_integer):
        if x.op is ops.cast and x.dtype.bits < x.inputs[0].dtype.bits:
            return None
        x = x.inputs[0]
    return x if x.op is INPUT and x.dtype.is_integer else None
