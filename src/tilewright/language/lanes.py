"""Values of a block: what many lanes compute at one time, as Triton's tensors are.

In: elements and indices over symbols of lanes. Out: ``Block``, whose operators work lane by lane and broadcast as NumPy
does. Not its business: memory, folds and loops of programs (``blocks``).

A block of shape ``(8, 32)`` is one expression over two symbols, one for each dimension, called by the dimension's place
from the right and its size. Blocks that broadcast therefore have their symbols in common, and an operation on blocks is
the operation on their expressions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.core.compute import Value, loop_symbol, substitute_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, substitute
from tilewright.core.types import DType
from tilewright.language.errors import refused
from tilewright.language.values import Element, IndexExpr, PerLane, Scalar, element

Shape = tuple[int, ...]


def lane_symbols(shape: Shape) -> tuple[Sym, ...]:
    """The symbols of a block's dimensions."""
    return tuple(loop_symbol(f"lane{len(shape) - 1 - d}_{n}", n) for d, n in enumerate(shape))


def _lifted(function: Callable[..., Any]) -> tuple[Callable[..., BlockValue], Callable[..., BlockValue]]:
    """An operator of blocks, and the one of a block on its right."""

    def operate(self: BlockValue, *other: Any) -> BlockValue:
        return self.over(function, (self, *other))

    def reflected(self: BlockValue, other: Any) -> BlockValue:
        return self.over(function, (other, self))

    return operate, reflected


def lane_places(shape: Shape) -> tuple[Dim, ...]:
    """Where a lane stands along each dimension: a dimension of one lane has no symbol, so that it broadcasts."""
    return tuple(s if n > 1 else 0 for s, n in zip(lane_symbols(shape), shape, strict=True))


class BlockValue(PerLane):
    """A value for each lane of a block; ``b[:, None]`` adds a dimension of one lane."""

    def __init__(self, shape: Shape, scalar: Scalar) -> None:
        self.shape, self.scalar = shape, scalar

    def __repr__(self) -> str:
        return f"block of {self.shape}"

    @property
    def dtype(self) -> DType:
        return element(self.scalar).dtype

    @property
    def value(self) -> Value:
        return element(self.scalar).value

    @property
    def dim(self) -> Dim:
        """The index that the block is; ``KernelError`` where data decide it."""
        if isinstance(self.scalar, Element):
            raise refused("an index that the data choose", "make indices of program ids, tl.arange and sizes")
        return self.scalar.dim if isinstance(self.scalar, IndexExpr) else int(self.scalar)

    def cast(self, dtype: DType) -> BlockValue:
        """Every lane as an element of ``dtype``."""
        return BlockValue(self.shape, element(self.scalar).cast(dtype))

    to = cast

    def __bool__(self) -> bool:
        raise refused("a block has no one truth while the kernel is traced", "choose lanes with tl.where, or a mask")

    def __index__(self) -> int:
        if not self.shape and isinstance(self.scalar, int):
            return self.scalar
        raise refused("a block is no number while the kernel is traced", "go through it with tl.range")

    def __getitem__(self, key: Any) -> BlockValue:
        parts = key if isinstance(key, tuple) else (key,)
        kept = [p for p in parts if p is not None]
        if any(p != slice(None) for p in kept) or len(kept) != len(self.shape):
            remedy = f"this block has {len(self.shape)} dimensions, each of which is a ':'"
            raise refused("a block is indexed by ':' and None alone", remedy)
        sizes = iter(self.shape)
        return self.placed(tuple(1 if p is None else next(sizes) for p in parts), [p is not None for p in parts])

    def placed(self, shape: Shape, keeps: Sequence[bool]) -> BlockValue:
        """The block in another shape: its dimensions, in order, are those that are kept."""
        ends = [s for s, keep in zip(lane_places(shape), keeps, strict=True) if keep]
        return BlockValue(shape, at_lanes(self.scalar, dict(zip(lane_symbols(self.shape), ends, strict=True))))

    def spread(self, shape: Shape) -> BlockValue:
        """The block broadcast to a shape."""
        return BlockValue(broadcast("a block", self.shape, shape), self.scalar)

    def over(self, function: Callable[..., Any], args: Sequence[Any]) -> BlockValue:
        """The function of every lane of blocks among its arguments."""
        shape: Shape = ()
        for a in args:
            if isinstance(a, BlockValue):
                shape = broadcast(getattr(function, "__name__", "an operation"), shape, a.shape)
        return BlockValue(shape, function(*[a.scalar if isinstance(a, BlockValue) else a for a in args]))

    def __pos__(self) -> BlockValue:
        return BlockValue(self.shape, self.scalar)

    __add__, __radd__ = _lifted(operator.add)
    __sub__, __rsub__ = _lifted(operator.sub)
    __mul__, __rmul__ = _lifted(operator.mul)
    __truediv__, __rtruediv__ = _lifted(operator.truediv)
    __floordiv__, __rfloordiv__ = _lifted(operator.floordiv)
    __mod__, __rmod__ = _lifted(operator.mod)
    __pow__, __rpow__ = _lifted(operator.pow)
    __lshift__, __rlshift__ = _lifted(operator.lshift)
    __rshift__, __rrshift__ = _lifted(operator.rshift)
    __and__, __rand__ = _lifted(operator.and_)
    __or__, __ror__ = _lifted(operator.or_)
    __xor__, __rxor__ = _lifted(operator.xor)
    __lt__, __gt__ = _lifted(operator.lt)
    __le__, __ge__ = _lifted(operator.le)
    __eq__, _ = _lifted(operator.eq)  # type: ignore[assignment]  # a condition of every lane
    __ne__, _ = _lifted(operator.ne)  # type: ignore[assignment]
    __neg__, _ = _lifted(operator.neg)
    __invert__, _ = _lifted(operator.invert)
    __abs__, _ = _lifted(operator.abs)


def broadcast(what: str, a: Shape, b: Shape) -> Shape:
    """The shape of two blocks side by side; ``KernelError`` where a dimension is neither equal nor 1."""
    n = max(len(a), len(b))
    wide_a, wide_b = (1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(wide_a, wide_b, strict=True)):
        raise refused(f"{what} of blocks of {a} and {b}", "let sizes be equal or 1; b[:, None] adds a dimension")
    return tuple(max(x, y) for x, y in zip(wide_a, wide_b, strict=True))


def at_lanes(x: Scalar, to: dict[Sym, Dim]) -> Scalar:
    """An expression with its lanes' symbols replaced."""
    if isinstance(x, IndexExpr):
        return IndexExpr(substitute(x.dim, to))
    return Element(substitute_value(x.value, to)) if isinstance(x, Element) else x


def block(x: Any) -> BlockValue:
    """A block, or a number, index or element as a block of no dimensions."""
    return x if isinstance(x, BlockValue) else BlockValue((), x)


def constant_size(n: Any) -> int:
    """The size of a block, which has to be a Python integer."""
    if isinstance(n, IndexExpr) and is_known(n.dim):
        n = n.dim
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        rule = f"the size {n!r:.80} of a block is no constant of 1 or more"
        raise refused(rule, "make it a parameter of the kernel with a number as its default: BLOCK=128")
    return n
