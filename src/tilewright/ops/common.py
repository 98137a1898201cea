"""What op files share: checks for ``infer``, NumPy helpers for ``reference``, index helpers for ``compute``.

In: tensor types, arrays, buffers. Out: shapes, typed errors, stages, ``OpDef`` records of element-wise families.
Not its business: any particular op.

A rule of the whole library: f16 and bf16 are computed in f32 and rounded once at the end of an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Buffer,
    Cast,
    Const,
    IndexLike,
    Load,
    Reduction,
    Stage,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType

BOOLS: tuple[DType, ...] = (types.bool_,)
INTS: tuple[DType, ...] = types.INTS
FLOATS: tuple[DType, ...] = types.FLOATS
NUMERIC: tuple[DType, ...] = INTS + FLOATS
LOGICAL: tuple[DType, ...] = BOOLS + INTS
ANY: tuple[DType, ...] = types.DTYPES

# --- checks for infer -----------------------------------------------------------------------------------------------


def fail(message: str, remedy: str = "") -> NoReturn:
    """Raise ``OpError``."""
    raise OpError(message, remedy=remedy)


def check(condition: bool, message: Callable[[], str], remedy: str = "") -> None:
    """Raise ``OpError`` unless ``condition`` holds; the message is only made then: ``infer`` runs for every node."""
    if not condition:
        raise OpError(message(), remedy=remedy)


def check_dtype(t: TensorType, allowed: Sequence[DType], what: str = "the operand") -> None:
    check(t.dtype in allowed, lambda: f"{what} is {t}; its dtype must be one of {names(allowed)}", "insert a cast")


def check_equal_dtypes(operands: Sequence[TensorType], allowed: Sequence[DType] = ANY) -> DType:
    """The one dtype of all operands."""
    dtype = operands[0].dtype
    if any(t.dtype is not dtype for t in operands):
        fail(f"operands must have one dtype, not {', '.join(map(str, operands))}", "insert a cast")
    check_dtype(operands[0], allowed, "the first operand")
    return dtype


def check_rank(t: TensorType, least: int, what: str = "the operand", most: int | None = None) -> None:
    if t.rank < least or (most is not None and t.rank > most):
        bound = f"at least {least}" if most is None else str(least) if most == least else f"{least} to {most}"
        fail(f"{what} is {t}; its rank must be {bound}", "insert a reshape")


def check_axis(axis: int, rank: int, what: str = "axis") -> None:
    check(
        0 <= axis < rank, lambda: f"{what} {axis} is not in 0..{rank - 1}", "negative axes are resolved by the frontend"
    )


def check_axes(axes: Sequence[int], rank: int) -> None:
    for a in axes:
        check_axis(a, rank, "axes entry")
    check(len(set(axes)) == len(axes), lambda: f"axes {tuple(axes)} name an axis twice")


def check_equal_dims(a: Dim, b: Dim, what: Callable[[], str]) -> None:
    check(
        a == b,
        lambda: f"{what()}: {a} and {b} must be equal",
        "give both dimensions the same number or the same symbol",
    )


def check_broadcasts(t: TensorType, shape: tuple[Dim, ...], what: str) -> None:
    """Raise ``OpError`` unless ``t`` broadcasts to exactly ``shape``."""
    if broadcast_shapes(shape, t.shape) != shape:
        fail(f"{what} {t} does not broadcast to {shape}")


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """NumPy's rule for one dimension; symbolic dimensions match when they are equal expressions."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    fail(
        f"dimensions {a} and {b} can't be broadcast together",
        "make them equal, or one of them 1; for symbolic dimensions use one name where the sizes are always equal",
    )


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that all broadcast to."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for k, d in enumerate(shape, rank - len(shape)):
            result[k] = broadcast_dims(result[k], d)
    return tuple(result)


def names(dtypes: Iterable[DType]) -> str:
    return " ".join(d.name for d in dtypes)


# --- helpers for reference ------------------------------------------------------------------------------------------


def wide(dtype: DType) -> DType:
    """The dtype to compute in: f32 for f16 and bf16, else itself."""
    return types.f32 if dtype in (types.f16, types.bf16) else dtype


def widened(a: Array) -> Array:
    """``a`` in the dtype to compute in."""
    return a.astype(wide(types.dtype_of(a.dtype)).numpy, copy=False)


def narrowed(a: Array, dtype: DType) -> Array:
    """A computed result in the op's dtype."""
    with np.errstate(all="ignore"):
        return np.asarray(a).astype(dtype.numpy, copy=False)


def convert(a: Array, dtype: DType) -> Array:
    """``core.compute.Cast`` on arrays: floats truncate and saturate to integers (NaN gives 0), integers wrap."""
    source = types.dtype_of(a.dtype)
    if dtype is types.bool_:
        return np.asarray(a != 0)
    if not (source.is_float and dtype.is_integer):
        return narrowed(a, dtype)
    with np.errstate(all="ignore"):
        x = np.trunc(a.astype(np.float64))
        low, high = x <= dtype.min, x >= dtype.max
        whole = np.where(low | high | np.isnan(x), 0, x).astype(dtype.numpy)
    limits = np.where(low, np.asarray(dtype.min, dtype.numpy), np.asarray(dtype.max, dtype.numpy))
    return np.asarray(np.where(low | high, limits, whole))


# --- helpers for compute --------------------------------------------------------------------------------------------


def axis_over(extent: Dim, name: str) -> Axis:
    """A loop over an extent. The underscore keeps it apart from symbolic dimensions, whose names come from users."""
    return Axis(loop_symbol(f"_{name}", extent), extent)


def cast_to(v: Value, dtype: DType) -> Value:
    """``v`` as ``dtype``; nothing when it already is."""
    return v if v.dtype is dtype else Cast(v, dtype)


def broadcast_load(buffer: Buffer, index: Sequence[IndexLike]) -> Load:
    """Load at the last positions of a broadcast ``index``; dimensions of size 1 are read at 0."""
    own = index[len(index) - len(buffer.shape) :]
    return Load(buffer, tuple(0 if d == 1 else i for d, i in zip(buffer.shape, own, strict=True)))


def lowest(dtype: DType) -> Const:
    """The identity of ``max``."""
    return Const(float("-inf") if dtype.is_float else dtype.min, dtype)


def highest(dtype: DType) -> Const:
    """The identity of ``min``."""
    return Const(float("inf") if dtype.is_float else dtype.max, dtype)


def assign(out: Buffer, value: Callable[[tuple[Dim, ...]], Value]) -> Stage:
    """``out[i...] = value(i...)`` over the whole output."""
    axes = axes_for(out.shape)
    return Stage((out,), axes, syms(axes), (value(syms(axes)),))


def fold(
    out: Buffer,
    axes: tuple[Axis, ...],
    index: tuple[IndexLike, ...],
    expr: Value,
    over: tuple[Axis, ...],
    op: str,
    init: Value,
) -> tuple[Stage, ...]:
    """``out[index] = fold(op, init, expr over ``over``)`` in ``expr``'s dtype, rounded to ``out``'s at the end."""
    if expr.dtype is out.dtype:
        return (Stage((out,), axes, index, (expr,), Reduction(over, op, (init,))),)
    acc = Buffer(f"{out.name}_acc", expr.dtype, out.shape)
    folded = Stage((acc,), axes, index, (expr,), Reduction(over, op, (init,)))
    return folded, assign(out, lambda i: Cast(Load(acc, i), out.dtype))


# --- element-wise families -------------------------------------------------------------------------------------------

ElementValue = Callable[[Sequence[Value], Attrs], Value]
ElementReference = Callable[[Sequence[Array], Attrs], Array]
Samples = Callable[[np.random.Generator], Iterable[Sample]]


def elementwise(
    name: str,
    operands: tuple[str, ...],
    value: ElementValue,
    reference: ElementReference,
    infer: Callable[[Sequence[TensorType], Attrs], TensorType],
    samples: Samples,
    doc: str,
    *traits: Trait,
) -> OpDef:
    """An element-wise op: ``value`` builds the result from the operands' elements, ``reference`` takes wide arrays."""

    def compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
        return (assign(outs[0], lambda i: value([broadcast_load(b, i) for b in ins], attrs)),)

    def run(arrays: Sequence[Array], attrs: Attrs) -> Array:
        ops = [TensorType(types.dtype_of(a.dtype), tuple(a.shape)) for a in arrays]
        with np.errstate(all="ignore"):
            return narrowed(reference([widened(a) for a in arrays], attrs), infer(ops, attrs).dtype)

    all_traits = frozenset({Trait.ELEMENTWISE, *traits})
    return OpDef(name, operands, {}, infer, run, compute, traits=all_traits, samples=samples, doc=doc)
