"""Products with a matrix of few bits: codes of 4 or 8 bits in words, a scale for each group of rows.

In: rows in f32, the words, scales and zero points. Out: their product with the matrix that these stand for, in f32.
Not its business: choosing codes and scales, in which order a file packs them (frontends).

``words[k, q]`` holds the codes of ``N = per_word * Q`` columns at row ``k``, those of columns ``q, q + Q, q + 2 Q``...
from the lowest bits up, ``per_word = 32 / bits``. Masked, a word is a code times a power of two, which a conversion
reads without a shift; the scale takes the power back. As a machine's conversion is of signed numbers, the highest code
of a word is in two's complement, half its range less than the others', and so is its zero point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Load,
    Reduction,
    Stage,
    Unary,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim, Sym, floordiv
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import cast_to, check, check_dtype, check_equal_dims, check_rank
from tilewright.ops.rules import Types

WORD_BITS = 32
BITS = (4, 8)
SCALES = (types.f32, types.f16, types.bf16)
ZEROS = (types.i8, types.i16)


def _infer(ts: Types, a: Attrs) -> TensorType:
    x, words, scales, zeros = ts
    check(a.bits in BITS, lambda: f"codes of {a.bits} bits are not supported", "use 4 or 8 bits")
    for t, rank, what in ((x, 2, "the rows"), (words, 2, "the words"), (scales, 3, "scales"), (zeros, 3, "zeros")):
        check_rank(t, rank, what)
    check_dtype(x, (types.f32,), "the rows")
    check_dtype(words, (types.i32,), "the words")
    check_dtype(scales, SCALES, "scales")
    check_dtype(zeros, ZEROS, "zero points")
    check_equal_dims(x.shape[1], words.shape[0], lambda: f"columns of {x} and rows of {words}")
    depth, n_groups = words.shape[0], scales.shape[0]
    per_word = WORD_BITS // a.bits
    columns = (per_word, words.shape[1])
    for own, wanted in zip(scales.shape[1:], columns, strict=True):
        check_equal_dims(own, wanted, lambda: f"columns of {scales} and codes of {words}")
    for own, wanted in zip(zeros.shape, scales.shape, strict=True):
        if own != 1:
            check_equal_dims(own, wanted, lambda: f"zero points {zeros} and scales {scales}")
    is_even = is_known(depth) and known_over(n_groups, 0) and depth % n_groups == 0
    check(is_even, lambda: f"{depth} rows are no whole number of rows for each of {n_groups} groups", "pad them")
    return TensorType(types.f32, (x.shape[0], *columns))


def unpacked(words: Array, bits: int) -> Array:
    """The codes of ``words``, i32[K, Q], as the op reads them: i32[K, per_word, Q], the highest of a word signed."""
    per_word = WORD_BITS // bits
    fields = [(words.view(np.uint32) >> np.uint32(bits * j)) & np.uint32((1 << bits) - 1) for j in range(per_word)]
    codes = np.stack(fields, axis=1).astype(np.int32)
    codes[:, -1] -= (codes[:, -1] >> (bits - 1)) << bits
    return codes


def packed(codes: Array, bits: int) -> Array:
    """Words of unsigned ``codes``, u8[K, N] with ``N`` a multiple of the codes in a word; i32[K, Q]."""
    per_word = WORD_BITS // bits
    depth, n = codes.shape
    fields = codes.reshape(depth, per_word, n // per_word)
    words = np.zeros((depth, n // per_word), np.uint32)
    for j in range(per_word):
        words |= fields[:, j].astype(np.uint32) << np.uint32(bits * j)
    return np.ascontiguousarray(words ^ np.uint32(1 << (WORD_BITS - 1))).view(np.int32)


def signed_zeros(zeros: Array, bits: int) -> Array:
    """Zero points of unsigned codes, [groups or 1, per_word, Q or 1], as the op takes them: i8, or i16 for 8 bits."""
    shifted = zeros.astype(np.int16)
    shifted[:, -1] -= 1 << (bits - 1)
    return shifted.astype(np.int8 if bits < types.i8.bits else np.int16)


def matrix_of(words: Array, scales: Array, zeros: Array, bits: int) -> Array:
    """The matrix that codes, scales and zero points stand for, f32[K, per_word, Q]."""
    group = words.shape[0] // scales.shape[0]
    wide = np.broadcast_to(zeros, scales.shape)
    steps = unpacked(words, bits) - np.repeat(wide, group, 0)
    return np.asarray(steps * np.repeat(scales.astype(np.float32), group, 0), np.float32)


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    x, words, scales, zeros = xs
    with np.errstate(all="ignore"):
        return np.asarray(np.tensordot(x, matrix_of(words, scales, zeros, a.bits), 1), np.float32)


def _code(words: Buffer, k: Dim, j: Sym, q: Sym, bits: int) -> Value:
    """A code times two to the power of its place in the word, as a real number."""
    place = Cast(Index(j * bits), types.i32)
    mask = Binary("shl", Const((1 << bits) - 1, types.i32), place)
    return Cast(Binary("and", Load(words, (k, q)), mask), types.f32)


def _power(j: Sym, bits: int) -> Value:
    """What takes that power back."""
    return Unary("pow2i", Cast(Index(j * -bits), types.f32))


def _at(x: Buffer, index: Sequence[Dim]) -> Load:
    return Load(x, tuple(0 if d == 1 else i for d, i in zip(x.shape, index, strict=True)))


def _kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """Sums of a group's codes first; then, once for each group, the zero point and the scale."""
    (x, words, scales, zeros), (out,), bits = ins, outs, a.bits
    n_rows, per_word, n_words = out.shape
    n_groups = scales.shape[0]
    group = floordiv(words.shape[0], n_groups)
    partial = Buffer(f"{out.name}_codes", types.f32, (n_rows, n_groups, per_word, n_words))
    total = Buffer(f"{out.name}_rows", types.f32, (n_rows, n_groups))
    zero = (Const(0, types.f32),)

    row, g, j, q = axes_for(partial.shape)
    r = Axis(loop_symbol("r", group), group)
    at = g.sym * group + r.sym
    product = Load(x, (row.sym, at)) * _code(words, at, j.sym, q.sym, bits)
    codes = Stage((partial,), (row, g, j, q), syms((row, g, j, q)), (product,), Reduction((r,), "add", zero))

    row, g = axes_for(total.shape)
    element = Load(x, (row.sym, g.sym * group + r.sym))
    sums = Stage((total,), (row, g), syms((row, g)), (element,), Reduction((r,), "add", zero))

    row, j, q = axes_for(out.shape)
    g = Axis(loop_symbol("g", n_groups), n_groups)
    where = (g.sym, j.sym, q.sym)
    offset = Cast(_at(zeros, where), types.f32) * Load(total, (row.sym, g.sym))
    steps = Load(partial, (row.sym, *where)) * _power(j.sym, bits) - offset
    scaled = steps * cast_to(Load(scales, where), types.f32)
    return sums, codes, Stage((out,), (row, j, q), syms((row, j, q)), (scaled,), Reduction((g,), "add", zero))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for bits, rows, (depth, n_groups, n_words), scale in (
        (4, 1, (64, 2, 8), np.float16), (8, 3, (32, 1, 5), np.float32), (4, 2, (6, 3, 1), np.float32),
        (8, 0, (16, 2, 3), np.float16), (4, 5, (96, 3, 17), np.float32),
    ):  # fmt: skip
        per_word = WORD_BITS // bits
        words = rng.integers(-(2**31), 2**31, (depth, n_words)).astype(np.int32)
        scales = rng.uniform(0.1, 1, (n_groups, per_word, n_words)).astype(scale)
        shape = (n_groups, per_word, n_words) if rows > 1 else (1, per_word, 1)
        zeros = signed_zeros(rng.integers(0, 1 << bits, shape), bits)
        yield Sample((rng.standard_normal((rows, depth)).astype(np.float32), words, scales, zeros), {"bits": bits})


coded_matmul = OpDef(
    "coded_matmul",
    ("x", "words", "scales", "zeros"),
    {"bits": AttrDef("int")},
    _infer,
    _reference,
    kernel=_kernel,
    traits=frozenset({Trait.CONTRACTION}),
    samples=_samples,
    doc="x @ ((code - zero) * scale), codes in words, a scale for each group of rows; [rows, codes in a word, words].",
)
