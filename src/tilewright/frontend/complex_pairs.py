"""Complex tensors as pairs of real ones.

In: real nodes. Out: ``Pair`` values, and their parts along a last axis, as ``view_as_real`` lays them out.
Not its business: the meaning of calls on them (``torch.aten.complex``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, f32, f64

COMPLEX_PARTS = (f32, f64)
"""Of which complex arguments and results are made."""

HALF_PARTS = "convert it: x.to(torch.complex64)"
"""What to do about other ones."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A complex tensor: the real and the imaginary part, of one shape and dtype."""

    re: Node
    im: Node

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.re.shape

    @property
    def dtype(self) -> DType:
        """The parts' dtype."""
        return self.re.dtype


def from_parts(b: Builder, x: Node) -> Pair:
    """The pair whose parts lie along the last axis of ``x``, which has length 2."""
    *shape, _ = x.shape
    zeros = (0,) * len(shape)
    ones = (1,) * (len(shape) + 1)
    parts = [
        b(ops.slice, x, starts=(*zeros, k), stops=(*shape, k + 1), steps=ones) for k in range(2)
    ]  # fmt: skip
    re, im = (b(ops.reshape, part, shape=tuple(shape)) for part in parts)
    return Pair(re, im)


def join_parts(b: Builder, x: Pair) -> Node:
    """The parts along a new last axis."""
    parts = [b(ops.reshape, part, shape=(*part.shape, 1)) for part in (x.re, x.im)]
    return b(ops.concat, *parts, axis=len(x.shape))
