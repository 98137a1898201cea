"""Products with a matrix of few bits: codes of 2, 4 or 8 bits in words, a scale for each group of rows.

In: rows in f32, the words, scales and zero points, units of scales. Out: their product with the matrix that these
stand for, in f32.
Not its business: choosing codes and scales, in which order a file packs them (frontends).

The rows are rounded to 16 bits in each group, by a step of its own: the group's largest number over 32767. So every
product is one of small integers, of which machines do two in the place of one in f32, and sums within a group are
exact. What rounding changes is at most 2**-16 of a group's largest number in each element, less than storing the rows
in f16 or bf16 would.

``words[k, q]`` holds the codes of ``N = per_word * Q`` columns at row ``k``, those of columns ``q, q + Q, q + 2 Q``...
from the lowest bits up, ``per_word = 16 / bits``. A byte of a word, masked, is a code times a power of two, which the
scale takes back: so a word's codes of less than 8 bits need one shift in all.

With ``units`` scales have two levels: a group's scale is a whole number in a byte, and what it counts is the unit that
some neighbouring groups share.

With ``levels`` a code of 4 bits is a place among 16 whole numbers of a byte, which stand for themselves: a code book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    MOST_LEVEL,
    MOST_LEVELS,
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Inside,
    Load,
    Lookup,
    Reduction,
    Select,
    Stage,
    Unary,
    Value,
    axes_for,
    loop_symbol,
    syms,
    walk,
)
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim, Sym, floordiv, mod
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import cast_to, check, check_dtype, check_equal_dims, check_rank, convert
from tilewright.ops.rules import Types

WORD_BITS = 16
BITS = (2, 4, 8)
PAIR_BITS = 2
BOOK_BITS = 4
"""Codes of a book: as many bits as name one of ``MOST_LEVELS``."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The numbers of NF4, by their codes: quantiles of a normal distribution (Dettmers et al., QLoRA, 2023)."""
SCALES = (types.f32, types.f16, types.bf16)
MOST_ROWS = 256
"""Rows of a group: a sum of so many products of 16-bit numbers and codes of 8 bits fits 32 bits."""
BYTE_BITS = types.u8.bits
GREATEST = int(types.i16.max)
"""What a group's largest number is rounded to."""


def _infer(ts: Types, a: Attrs) -> TensorType:
    x, words, scales, zeros, *units = ts
    check(a.bits in BITS, lambda: f"codes of {a.bits} bits are not supported", "use 2, 4 or 8 bits")
    is_book = a.bits == BOOK_BITS and len(a.levels) == MOST_LEVELS and all(0 <= n <= MOST_LEVEL for n in a.levels)
    check(not a.levels or is_book, lambda: f"{a.levels} are no levels", "give 16 numbers of a byte for codes of 4 bits")
    for t, rank, what in ((x, 2, "the rows"), (words, 2, "the words"), (scales, 3, "scales"), (zeros, 3, "zeros")):
        check_rank(t, rank, what)
    check_dtype(x, (types.f32,), "the rows")
    check_dtype(words, (types.i16,), "the words")
    check_dtype(scales, (types.i8,) if units else SCALES, "scales")
    check_dtype(zeros, (types.u8,), "zero points")
    check_equal_dims(x.shape[1], words.shape[0], lambda: f"columns of {x} and rows of {words}")
    depth, n_groups = words.shape[0], scales.shape[0]
    per_word = WORD_BITS // a.bits
    # Columns are two axes, the place within a word and the word, and scales and zero points have both.
    columns = (per_word, words.shape[1])
    for own, wanted in zip(scales.shape[1:], columns, strict=True):
        check_equal_dims(own, wanted, lambda: f"columns of {scales} and codes of {words}")
    for own, wanted in zip(zeros.shape, scales.shape, strict=True):
        if own != 1:
            check_equal_dims(own, wanted, lambda: f"zero points {zeros} and scales {scales}")
    _check_units(units, scales)
    is_even = is_known(depth) and known_over(n_groups, 0) and depth % n_groups == 0
    check(is_even, lambda: f"{depth} rows are no whole number of rows for each of {n_groups} groups", "pad them")
    check(
        is_known(depth) and is_known(n_groups) and depth <= n_groups * MOST_ROWS,
        lambda: f"sums of {depth} rows in {n_groups} groups don't fit 32 bits",
        f"repeat each scale for groups of at most {MOST_ROWS} rows",
    )
    check(
        not a.split_rows or depth // n_groups % 2 == 0,
        lambda: f"groups of {depth // n_groups} rows are no whole pairs",
        "leave split_rows out",
    )
    return TensorType(types.f32, (x.shape[0], *columns))


def _check_units(units: Sequence[TensorType], scales: TensorType) -> None:
    check(len(units) <= 1, lambda: f"{len(units)} operands are units of scales", "give one of them, or none")
    if not units:
        return
    (t,) = units
    check_rank(t, 3, "units")
    check_dtype(t, SCALES, "units")
    for own, wanted in zip(t.shape[1:], scales.shape[1:], strict=True):
        check_equal_dims(own, wanted, lambda: f"units {t} and scales {scales}")
    n_groups, n_units = scales.shape[0], t.shape[0]
    is_even = is_known(n_groups) and known_over(n_units, 0) and n_groups % n_units == 0
    check(is_even, lambda: f"{n_groups} groups are no whole number for each of {n_units} units", "pad them")


def unpacked(words: Array, bits: int) -> Array:
    """The codes of ``words``, i16[K, Q], as i32[K, per_word, Q]."""
    fields = words.view(np.uint16)
    codes = [fields >> np.uint16(bits * j) & np.uint16((1 << bits) - 1) for j in range(WORD_BITS // bits)]
    return np.stack(codes, axis=1).astype(np.int32)


def packed(codes: Array, bits: int) -> Array:
    """Words of unsigned ``codes``, u8[K, N] with ``N`` a multiple of the codes in a word; i16[K, Q]."""
    per_word = WORD_BITS // bits
    depth, n = codes.shape
    fields = codes.reshape(depth, per_word, n // per_word)
    words = np.zeros((depth, n // per_word), np.uint16)
    for j in range(per_word):
        words |= fields[:, j].astype(np.uint16) << np.uint16(bits * j)
    return words.view(np.int16)


def scales_of(scales: Array, *units: Array) -> Array:
    """Scales f32[groups, ...], of whole numbers times their units where there are any."""
    wide = scales.astype(np.float32)
    for u in units:
        wide = wide * np.repeat(u.astype(np.float32), len(scales) // len(u), 0)
    return wide


def matrix_of(words: Array, scales: Array, zeros: Array, bits: int, levels: Sequence[int] = ()) -> Array:
    """The matrix that codes, scales and zero points stand for, f32[K, per_word, Q]."""
    group = words.shape[0] // scales.shape[0]
    wide = np.broadcast_to(zeros.astype(np.int32), scales.shape)
    codes = unpacked(words, bits)
    steps = (np.array(levels, np.int32)[codes] if levels else codes) - np.repeat(wide, group, 0)
    return np.asarray(steps * np.repeat(scales.astype(np.float32), group, 0), np.float32)


def rounded_rows(x: Array, n_groups: int) -> tuple[Array, Array]:
    """Rows f32[M, K] as the op rounds them, i16[M, K], and the largest magnitude of each group, f32[M, n_groups]."""
    groups = x.reshape(len(x), n_groups, x.shape[1] // n_groups)
    largest = np.abs(groups).max(-1, initial=0)
    steps = np.rint(groups * (np.float32(GREATEST) / largest)[..., None])
    return convert(np.asarray(steps, np.float32), types.i16).reshape(x.shape), largest


def in_two(x: Array) -> Array:
    """Rows f32[M, K] as sums of two numbers in bf16 each."""
    high = convert(x, types.bf16).astype(np.float32)
    return np.asarray(high + convert(x - high, types.bf16).astype(np.float32), np.float32)


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    x, words, scales, zeros, *units = xs
    n_groups, scales = len(scales), scales_of(scales, *units)
    with np.errstate(all="ignore"):
        if a.split_rows:
            return np.tensordot(in_two(x), matrix_of(words, scales, zeros, a.bits, a.levels), 1).astype(np.float32)
        rows, largest = rounded_rows(x, n_groups)
        real = rows * np.repeat(largest / np.float32(GREATEST), x.shape[1] // n_groups, 1)
        return np.asarray(np.tensordot(real, matrix_of(words, scales, zeros, a.bits, a.levels), 1), np.float32)


def _code(words: Buffer, k: Dim, j: Sym, q: Sym, bits: int) -> Value:
    """A code times two to the power of its place in its byte, as a 16-bit integer."""
    byte = Binary("shr", Load(words, (k, q)), Cast(Index(floordiv(j * bits, BYTE_BITS) * BYTE_BITS), types.i16))
    mask = Binary("shl", Const((1 << bits) - 1, types.i16), Cast(Index(_place(j, bits)), types.i16))
    return Binary("and", byte, mask)


def _level(words: Buffer, k: Dim, j: Sym, q: Sym, levels: tuple[int, ...]) -> Value:
    """What the code stands for in a book."""
    code = Binary("shr", Load(words, (k, q)), Cast(Index(j * BOOK_BITS), types.i16))
    return Lookup(levels, Binary("and", code, Const(MOST_LEVELS - 1, types.i16)))


def _place(j: Sym, bits: int) -> Dim:
    """The lowest bit of a code in its byte."""
    return mod(j * bits, BYTE_BITS)


def _at(x: Buffer, index: Sequence[Dim]) -> Load:
    return Load(x, tuple(0 if d == 1 else i for d, i in zip(x.shape, index, strict=True)))


def _rounding(x: Buffer, stored: Buffer, largest: Buffer, group: Dim) -> tuple[Stage, ...]:
    """The largest magnitude of each group of a row, and the row in steps of it.

    A group of zeros gives 0 / 0, whose integer is 0. One with an infinity or NaN gives a step that is none of the
    numbers either, and so do its results.
    """
    inverse = Buffer(f"{stored.name}_inverse", types.f32, largest.shape)
    row, g = axes_for(largest.shape)
    r = Axis(loop_symbol("r", group), group)
    zero = (Const(0, types.f32),)
    magnitude = Unary("abs", Load(x, (row.sym, g.sym * group + r.sym)))
    peaks = Stage((largest,), (row, g), syms((row, g)), (magnitude,), Reduction((r,), "max", zero))

    row, g = axes_for(largest.shape)
    steps = Binary("div", Const(GREATEST, types.f32), Load(largest, syms((row, g))))
    inverses = Stage((inverse,), (row, g), syms((row, g)), (steps,))

    row, g, r = axes_for((*largest.shape, group))
    at = (row.sym, g.sym * group + r.sym)
    scaled = Unary("rint", Load(x, at) * Load(inverse, (row.sym, g.sym)))
    rounded = Stage((stored,), (row, g, r), at, (Cast(scaled, types.i16),))
    return peaks, inverses, rounded


def _in_two(x: Buffer, stored: Buffer) -> Stage:
    """Each element of the rows as two numbers in bf16, whose sum it nearly is: [2, groups, rows, group].

    So what registers load of some rows is one run, and not lines that lie a power of two apart.
    """
    which, g, row, r = axes_for(stored.shape)
    element = Load(x, (row.sym, g.sym * stored.shape[-1] + r.sym))
    high = Cast(element, types.bf16)
    low = Cast(element - Cast(high, types.f32), types.bf16)
    first = Inside((which.sym * -1,))
    return Stage((stored,), (which, g, row, r), syms((which, g, row, r)), (Select(first, high, low),))


def _decoded(words: Buffer, zeros: Buffer, steps: Buffer, n_groups: Dim, a: Attrs) -> Stage:
    """Codes less their zero points, which bf16 holds exactly, in pairs along the sum: [pairs, codes, words, 2]."""
    pairs, bits = floordiv(steps.shape[0], n_groups), a.bits
    g, p, j, q, d = axes_for((n_groups, pairs, *steps.shape[1:]))
    at, where = (g.sym * pairs + p.sym) * 2 + d.sym, (g.sym, j.sym, q.sym)
    # A code stands in its place in its word; a power of two takes that back, and is exact.
    place = 0 if a.levels else _place(j.sym, bits)
    code = _level(words, at, j.sym, q.sym, a.levels) if a.levels else _code(words, at, j.sym, q.sym, bits)
    offset = Binary("shl", Cast(_at(zeros, where), types.i32), Cast(Index(place), types.i32))
    power = Unary("pow2i", Cast(Index(place * -1), types.f32))
    step = Cast(Cast(Cast(code, types.i32) - offset, types.f32) * power, types.bf16)
    return Stage((steps,), (g, p, j, q, d), (g.sym * pairs + p.sym, j.sym, q.sym, d.sym), (step,))


def _groups_in(n_groups: Dim, units: Sequence[Buffer]) -> tuple[tuple[Dim, ...], Callable[[Sequence[Dim]], Dim]]:
    """The extents of loops over groups, and a group's number by their indices: with units over these first."""
    if not units:
        return (n_groups,), lambda at: at[0]
    n_units = units[0].shape[0]
    each = floordiv(n_groups, n_units)
    return (n_units, each), lambda at: at[0] * each + at[1]


def _over_groups(extents: tuple[Dim, ...]) -> tuple[Axis, ...]:
    """The axes of a sum over groups."""
    return tuple(Axis(loop_symbol(name, n), n) for name, n in zip("gh", extents, strict=False))


def _scale(scales: Buffer, units: Sequence[Buffer], at: Sequence[Dim], where: tuple[Dim, ...]) -> Value:
    """A group's scale in f32: its number times its unit where it has one."""
    scale = cast_to(Load(scales, where), types.f32)
    for u in units:
        scale = scale * cast_to(Load(u, (at[0], *where[1:])), types.f32)
    return scale


def n_decoding(a: Attrs) -> int:
    """How many operations make a code one of the numbers that ``split_rows`` multiplies."""
    words, zeros = Buffer("words", types.i16, (2, 1)), Buffer("zeros", types.u8, (1, 1, 1))
    steps = Buffer("steps", types.bf16, (1, WORD_BITS // a.bits, 1, 2))
    (value,) = _decoded(words, zeros, steps, 1, a).exprs
    return sum(isinstance(x, Binary | Unary | Cast | Lookup) for x in walk(value))


def _split_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """Rows as two numbers in bf16; codes in bf16, which holds them exactly; sums of a group; then the scales.

    Codes lie in pairs of those that follow each other along the sum, as matrix registers of CPUs want them.
    """
    (x, words, scales, zeros, *units), (out,) = ins, outs
    n_rows, per_word, n_words = out.shape
    n_groups = scales.shape[0]
    extents, at_group = _groups_in(n_groups, units)
    group = floordiv(words.shape[0], n_groups)
    pairs = floordiv(group, 2)
    stored = Buffer(f"{out.name}_x", types.bf16, (2, n_groups, n_rows, group))
    steps = Buffer(f"{out.name}_steps", types.bf16, (n_groups * pairs, per_word, n_words, 2))
    partial = Buffer(f"{out.name}_codes", types.f32, (n_rows, *extents, per_word, n_words))
    zero = (Const(0, types.f32),)

    row, *groups, j, q = axes = axes_for(partial.shape)
    g = at_group(syms(groups))
    u, r = Axis(loop_symbol("u", 2), 2), Axis(loop_symbol("r", group), group)
    element = Cast(Load(stored, (u.sym, g, row.sym, r.sym)), types.f32)
    multiplied = Cast(Load(steps, (g * pairs + floordiv(r.sym, 2), j.sym, q.sym, mod(r.sym, 2))), types.f32)
    sums = Reduction((u, r), "add", zero)
    codes = Stage((partial,), axes, syms(axes), (element * multiplied,), sums)

    row, j, q = axes_for(out.shape)
    terms = _over_groups(extents)
    where = syms(terms)
    factor = _scale(scales, units, where, (at_group(where), j.sym, q.sym))
    scaled = Load(partial, (row.sym, *where, j.sym, q.sym)) * factor
    result = Stage((out,), (row, j, q), syms((row, j, q)), (scaled,), Reduction(terms, "add", zero))
    return _in_two(x, stored), _decoded(words, zeros, steps, n_groups, a), codes, result


def _kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """Rows in 16 bits; sums of a group's codes; then, once for each group, the zero point and the scales."""
    if a.split_rows:
        return _split_kernel(ins, outs, a)
    (x, words, scales, zeros, *units), (out,), bits = ins, outs, a.bits
    n_rows, per_word, n_words = out.shape
    n_groups = scales.shape[0]
    extents, at_group = _groups_in(n_groups, units)
    group = floordiv(words.shape[0], n_groups)
    stored = Buffer(f"{out.name}_x", types.i16, x.shape)
    largest = Buffer(f"{out.name}_largest", types.f32, (n_rows, n_groups))
    partial = Buffer(f"{out.name}_codes", types.i32, (n_rows, *extents, per_word, n_words))
    total = Buffer(f"{out.name}_rows", types.i32, (n_rows, n_groups))
    zero = (Const(0, types.i32),)

    # Sums of integers are exact in any order; the zero point is taken off them once, not off every code.
    row, *groups, j, q = axes = axes_for(partial.shape)
    r = Axis(loop_symbol("r", group), group)
    at = at_group(syms(groups)) * group + r.sym
    code = _level(words, at, j.sym, q.sym, a.levels) if a.levels else _code(words, at, j.sym, q.sym, bits)
    product = Cast(Load(stored, (row.sym, at)), types.i32) * Cast(code, types.i32)
    codes = Stage((partial,), axes, syms(axes), (product,), Reduction((r,), "add", zero))

    row, g = axes_for(total.shape)
    element = Cast(Load(stored, (row.sym, g.sym * group + r.sym)), types.i32)
    sums = Stage((total,), (row, g), syms((row, g)), (element,), Reduction((r,), "add", zero))

    row, j, q = axes_for(out.shape)
    terms = _over_groups(extents)
    group_at = at_group(syms(terms))
    # Codes are multiplied where they stand in their word, shifted by their place; a power of two takes that back.
    where, place = (group_at, j.sym, q.sym), 0 if a.levels else _place(j.sym, bits)
    offset = Cast(_at(zeros, where), types.i32) * Load(total, (row.sym, group_at))
    steps = Load(partial, (row.sym, *syms(terms), j.sym, q.sym)) - Binary("shl", offset, Cast(Index(place), types.i32))
    step = Load(largest, (row.sym, group_at)) * Const(1 / GREATEST, types.f32)
    power = Unary("pow2i", Cast(Index(place * -1), types.f32))
    scaled = Cast(steps, types.f32) * (step * power) * _scale(scales, units, syms(terms), where)
    result = Stage((out,), (row, j, q), syms((row, j, q)), (scaled,), Reduction(terms, "add", (Const(0, types.f32),)))
    return *_rounding(x, stored, largest, group), sums, codes, result


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for bits, rows, (depth, n_groups, n_words), scale in (
        (4, 1, (64, 2, 8), np.float16), (8, 3, (32, 1, 5), np.float32), (4, 2, (6, 3, 1), np.float32),
        (8, 0, (16, 2, 3), np.float16), (4, 5, (96, 3, 17), np.float32), (2, 2, (64, 4, 9), np.float16),
    ):  # fmt: skip
        per_word = WORD_BITS // bits
        words = rng.integers(-(2**15), 2**15, (depth, n_words)).astype(np.int16)
        scales = rng.uniform(0.1, 1, (n_groups, per_word, n_words)).astype(scale)
        shape = (n_groups, per_word, n_words) if rows > 1 else (1, per_word, 1)
        zeros = rng.integers(0, 1 << bits, shape).astype(np.uint8)
        operands = (rng.standard_normal((rows, depth)).astype(np.float32), words, scales, zeros)
        yield Sample(operands, {"bits": bits})
        if n_groups % 2 == 0 and depth // n_groups % 2 == 0:
            whole = rng.integers(-32, 64, scales.shape).astype(np.int8)
            units = rng.uniform(0.01, 0.1, (n_groups // 2, per_word, n_words)).astype(scale)
            yield Sample((operands[0], words, whole, zeros, units), {"bits": bits})
            yield Sample((operands[0], words, whole, zeros, units), {"bits": bits, "split_rows": True})
        if depth // n_groups % 2 == 0:
            yield Sample(operands, {"bits": bits, "split_rows": True})
        if bits == BOOK_BITS:
            yield Sample(operands, {"bits": bits, "levels": tuple(map(int, rng.integers(0, 256, MOST_LEVELS)))})


coded_matmul = OpDef(
    "coded_matmul",
    ("x", "words", "scales", "zeros", "*units"),
    {"bits": AttrDef("int"), "levels": AttrDef("ints", ()), "split_rows": AttrDef("bool", False)},
    _infer,
    _reference,
    kernel=_kernel,
    traits=frozenset({Trait.CONTRACTION}),
    samples=_samples,
    doc="x in 16 bits @ ((code - zero) * scale), a scale for each group of rows, which may be a whole number of units; "
    "[rows, codes in a word, words].",
)
