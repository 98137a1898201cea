"""Movements of tensors that converters of several formats share.

In: nodes, and sizes that are numbers or expressions. Out: nodes, by the builder that a call has.
Not its business: which operation of a format is which movement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType
from tilewright.frontend import nodes
from tilewright.ops.elementwise import cast_node


class Moves:
    """A call, of whatever format, with a builder."""

    b: Builder

    def cast(self, x: Node, dtype: DType) -> Node:
        return cast_node(self.b, x, dtype)

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        return nodes.reshape(self.b, x, shape)

    def expand(self, x: Node, shape: Sequence[Dim]) -> Node:
        return nodes.expand(self.b, x, shape)

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        return nodes.transpose(self.b, x, perm)

    def slice(self, x: Node, axis: int, start: Dim, stop: Dim) -> Node:
        """The elements from ``start`` to before ``stop`` along one axis."""
        return nodes.slice_axis(self.b, x, axis, start, stop - start)

    def along(self, x: Node, axis: int, rank: int) -> Node:
        """A vector as axis ``axis`` of ``rank`` axes."""
        return self.reshape(x, [x.shape[0] if k == axis else 1 for k in range(rank)])

    def dims(self, dims: Sequence[Dim]) -> Node:
        """Sizes as a vector of i64."""
        if are_known(dims):
            return self.b.const(np.array(dims, np.int64).reshape(len(dims)))
        return self.b(ops.dim_values, dims=tuple(dims))


def pad_real(m: Moves, x: Node, value: Node, edges: Sequence[tuple[Dim, Dim]], between: Sequence[int]) -> Node:
    """``x`` with ``value`` between its elements and at its edges, where negative counts crop."""
    for axis, n in enumerate(between):
        if n and x.shape[axis] != 0:
            x = _spread(m, x, value, axis, n)
    if not any(lo != 0 or hi != 0 for lo, hi in edges):
        return x
    return m.b(ops.pad, x, value, pads=tuple(edges))


def _spread(m: Moves, x: Node, value: Node, axis: int, n: int) -> Node:
    """``n`` times ``value`` between neighbours along an axis: behind each element as an axis of its own, joined."""
    size = x.shape[axis]
    shape = [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]]
    pads = [(0, n) if k == axis + 1 else (0, 0) for k in range(len(shape))]
    apart = m.b(ops.pad, m.reshape(x, shape), value, pads=tuple(pads))
    joined = m.reshape(apart, [*x.shape[:axis], size * (n + 1), *x.shape[axis + 1 :]])
    return m.slice(joined, axis, 0, size * (n + 1) - n)
