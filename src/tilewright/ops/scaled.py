"""Products with a matrix of small floats: 8 or 16 bits a weight, a scale for each group of rows.

In: rows in f32, the matrix and its scales. Out: their product with the scaled matrix, in f32. Not its business:
choosing scales and rounding weights (``graph.quantize``), integer codes (``ops.coded``).

Each weight becomes an f32 in a register. Floats of 8 bits are, moved into place, bits of half precision: of f8e5m2 they
are its upper byte, of f8e4m3fn sign, exponent and mantissa in theirs, but for a power of two, which the scale takes
back. So machines widen eight of them by their conversion of half precision, and subnormal numbers are right. The code
of f8e4m3fn that is no number counts as 480 here: whoever makes this op looks for it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Load,
    Reduction,
    Stage,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import floordiv
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.common import cast_to, check, check_dtype, check_equal_dims, check_rank
from tilewright.ops.rules import Types

SCALES = (types.f32, types.f16)


class HalfForm(NamedTuple):
    """How a float of 8 bits lies in the bits of a half: up by ``shift``, its sign apart, times two to ``power``."""

    shift: int
    power: int


HALVES = {types.f8e4m3fn: HalfForm(7, 8), types.f8e5m2: HalfForm(8, 0)}
FORMATS: tuple[DType, ...] = (*HALVES, types.f16)
"""What a weight may be. Those of 8 bits are stored as u8."""
_SIGN = 0x80


def stored_as(dtype: DType) -> DType:
    """The element type that holds weights of a format."""
    return types.u8 if dtype in HALVES else dtype


def _infer(ts: Types, a: Attrs) -> TensorType:
    x, w, scales = ts
    check(a.dtype in FORMATS, lambda: f"weights of {a.dtype} are not supported", f"use one of {list(FORMATS)}")
    for t, what in ((x, "the rows"), (w, "the weights"), (scales, "scales")):
        check_rank(t, 2, what)
    check_dtype(x, (types.f32,), "the rows")
    check_dtype(w, (stored_as(a.dtype),), f"weights of {a.dtype}")
    check_dtype(scales, SCALES, "scales")
    check_equal_dims(x.shape[1], w.shape[0], lambda: f"columns of {x} and rows of {w}")
    check_equal_dims(w.shape[1], scales.shape[1], lambda: f"columns of {w} and {scales}")
    depth, n_groups = w.shape[0], scales.shape[0]
    is_even = is_known(depth) and known_over(n_groups, 0) and depth % n_groups == 0
    check(is_even, lambda: f"{depth} rows are no whole number of rows for each of {n_groups} groups", "pad them")
    return TensorType(types.f32, (x.shape[0], w.shape[1]))


def scaled_matrix(w: Array, scales: Array, dtype: DType) -> Array:
    """The matrix that weights and scales stand for, f32[K, N]."""
    numbers = w.astype(np.float32) if dtype not in HALVES else _halves(w, HALVES[dtype])
    return np.asarray(numbers * np.repeat(scales.astype(np.float32), len(w) // len(scales), 0), np.float32)


def _halves(codes: Array, form: HalfForm) -> Array:
    """Floats of 8 bits as f32, by way of half precision."""
    wide = codes.astype(np.uint16)
    bits = (wide & _SIGN) << types.u8.bits | (wide & (_SIGN - 1)) << form.shift
    return np.asarray(bits.astype(np.uint16).view(np.float16).astype(np.float32) * np.float32(1 << form.power))


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    x, w, scales = xs
    with np.errstate(all="ignore"):
        return np.asarray(x @ scaled_matrix(w, scales, a.dtype), np.float32)


def _number(stored: Value, dtype: DType) -> Value:
    """A weight as an f32, short of the power of two that its format lacks."""
    form = HALVES.get(dtype)
    if form is None:
        return Cast(stored, types.f32)
    bits = Cast(stored, types.u16)

    def moved(mask: int, by: int) -> Value:
        return Binary("shl", Binary("and", bits, Const(mask, types.u16)), Const(by, types.u16))

    half = Binary("or", moved(_SIGN, types.u8.bits), moved(_SIGN - 1, form.shift))
    if form.shift == types.u8.bits:
        half = Binary("shl", bits, Const(form.shift, types.u16))
    return Cast(Bitcast(half, types.f16), types.f32)


def _kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """Sums of a group's products, then the scales, once for each group."""
    (x, w, scales), (out,) = ins, outs
    n_rows, n = out.shape
    n_groups = scales.shape[0]
    group = floordiv(w.shape[0], n_groups)
    partial = Buffer(f"{out.name}_groups", types.f32, (n_rows, n_groups, n))
    zero = (Const(0, types.f32),)

    row, g, q = axes_for(partial.shape)
    r = Axis(loop_symbol("r", group), group)
    at = g.sym * group + r.sym
    product = Load(x, (row.sym, at)) * _number(Load(w, (at, q.sym)), a.dtype)
    sums = Stage((partial,), (row, g, q), syms((row, g, q)), (product,), Reduction((r,), "add", zero))

    row, q = axes_for(out.shape)
    g = Axis(loop_symbol("g", n_groups), n_groups)
    scale: Value = cast_to(Load(scales, (g.sym, q.sym)), types.f32)
    if a.dtype in HALVES and HALVES[a.dtype].power:
        scale = scale * Const(float(1 << HALVES[a.dtype].power), types.f32)
    scaled = Load(partial, (row.sym, g.sym, q.sym)) * scale
    return sums, Stage((out,), (row, q), syms((row, q)), (scaled,), Reduction((g,), "add", zero))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FORMATS:
        for rows, depth, n_groups, n, scale in ((1, 64, 2, 16, np.float16), (3, 32, 1, 5, np.float32)):
            numbers = rng.standard_normal((depth, n)).astype(dtype.numpy)
            numbers.flat[:2] = [2.0**-9, -(2.0**-8)]  # subnormal in 8 bits
            scales = rng.uniform(0.1, 1, (n_groups, n)).astype(scale)
            x = rng.standard_normal((rows, depth)).astype(np.float32)
            yield Sample((x, numbers.view(stored_as(dtype).numpy), scales), {"dtype": dtype})
        yield Sample((x[:0], numbers.view(stored_as(dtype).numpy), scales), {"dtype": dtype})


scaled_matmul = OpDef(
    "scaled_matmul",
    ("x", "w", "scales"),
    {"dtype": AttrDef("dtype")},
    _infer,
    _reference,
    kernel=_kernel,
    traits=frozenset({Trait.CONTRACTION}),
    samples=_samples,
    doc="x @ (w * scale) for w of 8- or 16-bit floats, a scale for each group of rows of a column; [rows, columns].",
)
