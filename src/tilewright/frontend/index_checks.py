"""Whether a call's indices are in range, where they are a model's input and asking costs next to nothing.

In: a lookup's table and indices. Out: a condition and the text of the failure, or None where there is nothing to ask.
In a sub-graph the condition is about what the sub-graph is given, and each of its runs asks it.
Not its business: lookups whose indices a model computes; those are kept in range by the ops themselves. How the answer
leaves a sub-graph (``asked``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, is_nonneg
from tilewright.core.graph import INPUT, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, i64, product
from tilewright.ops.value_bounds import bounds_of

_SAME_VALUES = (ops.reshape, ops.transpose, ops.expand)
_SOME_VALUES = (ops.slice, ops.gather, ops.reverse)

Add = Callable[..., Node]
"""``add(op, *operands, **attributes)`` adds a node."""


@dataclass(frozen=True)
class Formals:
    """The inputs of sub-graphs: ``outside`` has the nodes that captures stand for, ``own`` those that each run sets."""

    outside: dict[Node, Node] = field(default_factory=dict)
    own: set[Node] = field(default_factory=set)


def index_check(
    add: Add,
    number: Callable[[Dim], Node],
    table: tuple[Dim, ...],
    indices: Node,
    axis: int,
    least: Dim,
    loc: Loc,
    formals: Formals,
) -> tuple[Node, str] | None:
    """The condition that ``indices`` along ``axis`` of a table are ``least`` or more and within it.

    ``number`` makes a 0-d i64 of a dimension. A lookup of single elements is not asked about: it costs as much as the
    question.
    """
    asked, most = _followed(indices, _SAME_VALUES), table[axis] - 1
    source = _input_of(asked, formals)
    if source is None or product([d for k, d in enumerate(table) if k != axis]) == 1:
        return None
    low, high = bounds_of(asked, formals.outside)
    if low is not None and high is not None and is_nonneg(low - least) and is_nonneg(most - high):
        return None
    x = asked if asked.dtype is i64 else add(ops.cast, asked, dtype=i64)
    inside = add(ops.logical_and, add(ops.ge, x, number(least)), add(ops.le, x, number(most)))
    axes = tuple(range(len(x.shape)))
    holds = add(ops.reduce_all, inside, axes=axes, keepdims=False) if axes else inside
    return holds, f'{loc}: an index in input "{source.attrs["name"]}" is outside of {least}..{most}'


def _input_of(x: Node, formals: Formals) -> Node | None:
    """The model's input that all elements of ``x`` are from."""
    x = _followed(x, _SAME_VALUES + _SOME_VALUES)
    while x in formals.outside:
        x = _followed(formals.outside[x], _SAME_VALUES + _SOME_VALUES)
    return x if x.op is INPUT and x.dtype.is_integer and x not in formals.own else None


def _followed(x: Node, movements: tuple[OpDef, ...]) -> Node:
    """What ``movements`` moved elements of ``x`` from, numbers of few bits among them made wider on the way."""
    while x.op in movements or (x.op is ops.cast and _is_wider(x.dtype, x.inputs[0].dtype)):
        x = x.inputs[0]
    return x


def _is_wider(to: DType, of: DType) -> bool:
    return to.is_integer and of.is_integer and to.bits >= of.bits
