"""What a spelling is, and the few nodes that all of them need.

In: a builder at the location of the node that is spelled. Out: nodes. Not its business: any op's spelling.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType

Spelling = Callable[[Builder, Node], "Node | tuple[Node, ...]"]


def number(b: Builder, value: float, like: Node) -> Node:
    """A 0-d constant of another node's dtype."""
    return b.const(value, like.dtype)


def ramp(b: Builder, extent: Dim, dtype: DType, axis: int, rank: int, *homes: Node) -> Node:
    """0, 1, ... along one of ``rank`` axes, the others being 1; ``homes`` bring in the symbols of ``extent``."""
    line = b(ops.iota, *homes, extent=extent, dtype=dtype)
    shape: list[Dim] = [1] * rank
    shape[axis] = extent
    return b(ops.reshape, line, shape=tuple(shape))
