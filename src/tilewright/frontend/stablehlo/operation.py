"""One operation of StableHLO as its converter sees it: operands that are values of our graph already, and attributes.

In: an operation of MLIR's bindings, and the walker that met it. Out: accessors, and movements that converters share.
Not its business: which op an operation becomes (``ops``), or walking the program (``walk``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, numbers
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DTYPES, NARROW, DType, bool_, i64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.moves import Moves
from tilewright.frontend.stablehlo.known import Known

if TYPE_CHECKING:
    from tilewright.frontend.stablehlo.walk import BlockWalker

Value = Node | Pair
Result = Value | Sequence[Value]
"""What a converter returns: the only result, or all of them."""

_SPELLED = {d.name.replace("u", "ui") if d.kind == "uint" else d.name: d for d in DTYPES if d is not bool_}
_NARROW = {
    "f8E4M3FN": "f8e4m3fn", "f8E4M3FNUZ": "f8e4m3fnuz", "f8E5M2": "f8e5m2", "f8E5M2FNUZ": "f8e5m2fnuz",
    "f8E4M3": "f8e4m3", "f8E3M4": "f8e3m4", "f8E4M3B11FNUZ": "f8e4m3b11fnuz", "f8E8M0FNU": "f8e8m0",
    "f6E2M3FN": "f6e2m3", "f6E3M2FN": "f6e3m2", "f4E2M1FN": "f4e2m1", "i4": "i4", "ui4": "u4", "i2": "i2", "ui2": "u2",
}  # fmt: skip
DTYPE_OF_MLIR: Mapping[str, DType] = {
    "i1": bool_,
    **_SPELLED,
    **{spelled: next(d for d in NARROW if d.name == name) for spelled, name in _NARROW.items()},
}
"""Our dtype by MLIR's text of an element type; MLIR's plain integers are the signed ones."""


DAMAGED = "export the program anew"


class NoForm(Exception):
    """An operation that no op expresses: the rule that it breaks and what the user can do. The walker collects them."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        super().__init__(rule)
        self.rule, self.remedy = rule, remedy


@dataclass(frozen=True)
class ValueType:
    """The type of a value of the program: its elements, or the parts of complex ones; None is a size not known yet."""

    dtype: DType
    shape: tuple[int | None, ...]
    is_complex: bool = False


def value_type(mlir_type: Any) -> ValueType:
    """The type of a ranked tensor; ``NoForm`` for tokens, tuples and elements without a dtype here."""
    if not hasattr(mlir_type, "element_type") or not hasattr(mlir_type, "rank"):
        raise NoForm(f"a value of type {mlir_type}", "use tensors")
    element = str(mlir_type.element_type)
    is_complex = element.startswith("complex<")
    dtype = DTYPE_OF_MLIR.get(element.removeprefix("complex<").removesuffix(">") if is_complex else element)
    if dtype is None:
        raise NoForm(f"elements of type {element}", f"use one of {', '.join(DTYPE_OF_MLIR)}")
    shape = tuple(None if mlir_type.is_dynamic_dim(k) else mlir_type.get_dim_size(k) for k in range(mlir_type.rank))
    return ValueType(dtype, shape, is_complex)


@dataclass(frozen=True)
class Operation(Moves):
    """``op`` is MLIR's operation, ``operands`` what its operands are here."""

    walker: BlockWalker
    b: Builder
    op: Any
    operands: tuple[Value, ...]

    # --- what the operation says ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The operation's name with its dialect: ``stablehlo.add``."""
        return str(self.op.name)

    @property
    def known(self) -> Known:
        """What is known of integers in this graph."""
        return self.walker.known

    def type(self, k: int = 0) -> ValueType:
        """The type of a result as the program states it."""
        if k >= len(self.op.results):
            raise NoForm(f"{len(self.op.results)} results, which are not those of this operation", DAMAGED)
        return value_type(self.op.results[k].type)

    def has(self, name: str) -> bool:
        return name in self.op.attributes

    def attribute(self, name: str) -> Any:
        """An attribute; ``NoForm`` without it, as MLIR does not know which ones calls of other libraries have."""
        if not self.has(name):
            raise NoForm(f"no attribute {name}", DAMAGED)
        return self.op.attributes[name]

    def integer(self, name: str, default: int | None = None) -> int:
        if default is not None and not self.has(name):
            return default
        return int(self.attribute(name).value)

    def flag(self, name: str) -> bool:
        return self.has(name) and bool(self.attribute(name).value)

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of integers, one of booleans as 0 and 1."""
        return tuple(int(i) for i in self.attribute(name)) if self.has(name) else tuple(default)

    def pads(self, name: str, rank: int) -> tuple[tuple[int, int], ...]:
        """Pairs of counts before and after each of ``rank`` axes."""
        if not self.has(name):
            return ((0, 0),) * rank
        pairs = np.array(self.attribute(name)).reshape(rank, 2)
        return tuple((int(lo), int(hi)) for lo, hi in pairs)

    def text(self, name: str) -> str:
        """An enumeration's or a string's text."""
        value = self.attribute(name)
        return str(getattr(value, "value", value))

    # --- operands ---------------------------------------------------------------------------------------------------

    def node(self, k: int) -> Node:
        """Operand ``k``, which must be real."""
        if k >= len(self.operands):
            raise NoForm(f"{len(self.operands)} operands, which are not those of this operation", DAMAGED)
        x = self.operands[k]
        if isinstance(x, Pair):
            raise NoForm("complex numbers", "take it apart with real and imag")
        return x

    def nodes(self) -> list[Node]:
        return [self.node(k) for k in range(len(self.operands))]

    def sizes(self, k: int) -> tuple[Dim, ...]:
        """Operand ``k`` as sizes that are known, or follow from the sizes of the inputs."""
        return self.dims_of(self.node(k), f"operand {k}")

    def numbers(self, k: int, rule: str, remedy: str = "make it a constant") -> tuple[int, ...]:
        """Operand ``k`` as sizes that must be numbers; ``NoForm`` with ``rule`` where one follows from other sizes."""
        dims = self.sizes(k)
        if not are_known(dims):
            raise NoForm(rule, remedy)
        return tuple(numbers(dims))

    def edges(self, k: int) -> tuple[tuple[Dim, Dim], ...]:
        """Operand ``k`` as pairs of counts before and after each axis."""
        counts = self.sizes(k)
        return tuple(zip(counts[::2], counts[1::2], strict=True))

    def dims_of(self, x: Node, what: str) -> tuple[Dim, ...]:
        """The integers in ``x``, which must be sizes."""
        found = self.known.sizes(x)
        if found is None:
            raise NoForm(f"{what} is a size that the data decide", "compute sizes from shapes")
        return found

    # --- numbers of operands ----------------------------------------------------------------------------------------

    def starts(self, first: int, count: int) -> Node:
        """Scalar operands from ``first`` on as a vector of i64."""
        parts = [self.reshape(self.cast(self.node(k), i64), (1,)) for k in range(first, first + count)]
        return parts[0] if count == 1 else self.b(ops.concat, *parts, axis=0)
