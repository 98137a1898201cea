"""One ATen call as its converter sees it: arguments by schema name, already values of our graph.

In: a builder at the call's location, arguments, and the result types that PyTorch's own shape propagation found.
Out: accessors that cast and normalise. ATen's dtype promotion is here, in one place.
Not its business: which op a call becomes (``torch.aten``), or walking the program (``fx``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeGuard

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, Expr, Sym, is_nonneg, maximum, minimum
from tilewright.core.graph import Builder, Node, Pool
from tilewright.core.types import (
    DTYPES,
    DType,
    TensorType,
    bool_,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f32,
    i32,
    i64,
    u32,
    u64,
)
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.nodes import dim_scalar

Result = Node | Pair | Sequence[Node | Pair | None]
"""What a converter returns: the only result, or all of them; ``None`` for one that has no form here."""

DTYPE_OF_TORCH: Mapping[str, DType] = {
    "torch.bool": bool_,
    **{f"torch.int{d.bits}": d for d in DTYPES if d.kind == "int"},
    **{f"torch.uint{d.bits}": d for d in DTYPES if d.kind == "uint"},
    **{f"torch.float{d.bits}": d for d in DTYPES if d.kind == "float" and d.name != "bf16"},
    "torch.bfloat16": next(d for d in DTYPES if d.name == "bf16"),
    **{f"torch.{d.numpy.name}": d for d in (f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz)},
}
"""Our dtype by the text of PyTorch's."""

Check = Callable[[Node, str], None]

BY_DATA = re.compile(r"u\d+")
"""What PyTorch calls a size that only data decide."""


class Unsupported(Exception):
    """A call that no op expresses: the rule that it breaks and what the user can do. ``fx`` collects these."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        super().__init__(rule)
        self.rule, self.remedy = rule, remedy


class SymFloat:
    """A float that depends on dimensions, already a 0-d f64 node."""

    def __init__(self, node: Node) -> None:
        self.node = node


def dtype_from_torch(dtype: object) -> DType:
    """The dtype of a ``torch.dtype``."""
    found = DTYPE_OF_TORCH.get(str(dtype))
    if found is None:
        raise Unsupported(f"dtype {dtype}", f"use one of {', '.join(DTYPE_OF_TORCH)}")
    return found


class Draws:
    """The random numbers of a program: the state is an input that comes to be with the first draw."""

    def __init__(self, pool: Pool, name: str) -> None:
        self.pool, self.name = pool, name
        self.first: Node | None = None
        self._state: Node | None = None

    @property
    def state(self) -> Node:
        """What the next draw starts from."""
        if self._state is None:
            self.first = self._state = self.pool.input(self.name, TensorType(u64, (2,)), Loc("random numbers"))
        return self._state

    @state.setter
    def state(self, moved: Node) -> None:
        self._state = moved


@dataclass(frozen=True)
class AtenCall:
    """``args`` holds every argument of the schema, defaults filled in; ``results`` one type per tensor result."""

    b: Builder
    name: str
    args: Mapping[str, Any]
    results: tuple[TensorType | None, ...]
    is_complex: bool = False
    """Is the first result complex? Its type is then that of each part."""
    draws: Draws | None = None
    """Where the program's random numbers come from; None where it can't keep a state."""
    has_peer: bool = False
    """Does PyTorch run what has no form here? A form that is far slower than PyTorch's own then helps nobody."""
    check: Check | None = None
    """Lets a call of the program fail with a text where a 0-d bool does not hold; None where nothing is asked."""

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        first = self.results[0]
        if first is None:
            raise Unsupported("has no tensor as its first result")
        return first

    @property
    def dtype(self) -> DType:
        return self.out.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.out.shape

    def tensor(self, name: str, dtype: DType | None = None) -> Node:
        """The tensor or number called ``name``, cast to ``dtype``; a number needs one."""
        return as_node(self.b, self.args[name], dtype)

    def optional(self, name: str, dtype: DType | None = None) -> Node | None:
        return None if self.args[name] is None else self.tensor(name, dtype)

    def tensors(self, name: str, dtype: DType | None = None) -> list[Node]:
        return [as_node(self.b, x, dtype) for x in self.args[name]]

    def axis(self, rank: int, name: str = "dim") -> int:
        return norm_axis(self.args[name], rank)

    def axes(self, rank: int, name: str = "dim") -> tuple[int, ...]:
        """The axes called ``name``; none given, or an empty list, means all. A 0-d tensor has none."""
        given = self.args.get(name)
        if rank == 0:
            return ()
        if given is None or given == []:
            return tuple(range(rank))
        return tuple(sorted(norm_axis(d, rank) for d in ([given] if isinstance(given, int) else given)))

    def pair(self, name: str, rank: int) -> tuple[int, ...]:
        """A list of ``rank`` static integers, where one entry stands for all."""
        given = self.args[name]
        values = [given] if isinstance(given, int) else list(given)
        if not all(isinstance(v, int) for v in values):
            raise Unsupported(f"a symbolic {name}", "make it a constant")
        return tuple(values * rank) if len(values) == 1 else tuple(values)

    def static(self, name: str) -> Any:
        """An argument that must be a Python number, not a tensor or a symbol."""
        value = self.args[name]
        if isinstance(value, Node | Expr | SymFloat):
            raise Unsupported(f"argument {name} is not a constant", "make it a Python number")
        return value


def as_node(b: Builder, value: Any, dtype: DType | None = None) -> Node:
    """A tensor or number as a node of ``dtype``."""
    if isinstance(value, Node):
        return cast(b, value, dtype or value.dtype)
    if isinstance(value, SymFloat):
        return cast(b, value.node, dtype or f32)
    if isinstance(value, Expr):
        return dim_scalar(b, value, dtype or i64)
    if isinstance(value, bool | int | float):
        return b.const(value, dtype or scalar_dtype(value))
    raise Unsupported(f"an argument of type {type(value).__name__}", "use real tensors and numbers")


WRAPPED_FROM = {**{d: i32 for d in DTYPES if d.is_integer and d.bits < 32}, u32: i64}
"""Integers that a float becomes by way of a wider one, whose low bits they are: -1.0 is 255 as u8, and 300.0 is 44."""


def cast(b: Builder, x: Node, dtype: DType) -> Node:
    """``x`` as another dtype. A float beyond a narrow integer wraps, as in PyTorch; beyond a wide one it saturates.

    Beyond the largest float of 8 bits lies that itself in E4M3 with finite numbers alone, infinity or NaN in others.
    """
    if x.dtype is dtype:
        return x
    if x.dtype.is_narrow:
        return cast(b, b(ops.decode, x), dtype)
    if dtype.is_narrow:
        return b(ops.encode, cast(b, x, f32), dtype=dtype, saturate=dtype is f8e4m3fn)
    wide = WRAPPED_FROM.get(dtype) if x.dtype.is_float else None
    if wide is not None:
        x = b(ops.cast, x, dtype=wide)
    return b(ops.cast, x, dtype=dtype)


def clamp_index(index: Dim | Node | None, size: Dim, default: Dim) -> Dim:
    """A slice bound as Python means it: negative counts from the end, and the result lies in ``0..size``."""
    if index is None:
        return default
    if isinstance(index, Node):
        raise Unsupported("a slice bound that is data", "use torch.gather, or promise its range by torch._check")
    if index == 0:
        return 0
    if not is_nonneg(index):
        is_negative = minimum(maximum(index * -1, 0), 1)  # 1 below zero, else 0
        index = index + size * is_negative
    return minimum(maximum(index, 0), size)


def norm_axis(axis: Any, rank: int) -> int:
    if not isinstance(axis, int):
        raise Unsupported("a symbolic axis", "make it a constant")
    return axis + max(rank, 1) if axis < 0 else axis


def is_decided_by_data(size: Dim) -> TypeGuard[Sym]:
    """Is it one of the sizes that only data decide?"""
    return isinstance(size, Sym) and BY_DATA.fullmatch(size.name) is not None


# --- dtype promotion ------------------------------------------------------------------------------------------------


def scalar_dtype(value: object) -> DType:
    """The dtype that a Python number counts as."""
    if isinstance(value, bool):
        return bool_
    return i64 if isinstance(value, int | Expr) else f32


def promote(*operands: Any) -> DType:
    """The dtype in which ATen computes on tensors and numbers together.

    Tensors with axes outrank 0-d tensors, which outrank numbers; a lower rank decides only by a higher category.
    """
    ranked = [x.dtype for x in operands if isinstance(x, Node) and x.shape]
    scalars = [x.dtype for x in operands if isinstance(x, Node) and not x.shape]
    numbers = [scalar_dtype(x) for x in operands if not isinstance(x, Node)]
    result, *lower = [reduce(_join, group) for group in (ranked, scalars, numbers) if group]
    for dtype in lower:
        if _category(dtype) > _category(result):
            result = dtype
    return result


def _category(dtype: DType) -> int:
    return 2 if dtype.is_float else 1 if dtype.is_integer else 0


def _join(a: DType, b: DType) -> DType:
    """The narrowest dtype that holds both; a higher category wins as it is."""
    if a is b:
        return a
    if _category(a) != _category(b):
        return max(a, b, key=_category)
    wide = max(a, b, key=lambda d: d.bits)
    if a.is_float:
        return wide if a.bits != b.bits else f32
    if a.kind == b.kind:
        return wide
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    wider = [d for d in DTYPES if d.kind == "int" and d.bits > unsigned.bits]
    return wider[0] if wider else i64
