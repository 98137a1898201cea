"""The pass ``coded-products``: products with dequantised constants read the codes that are stored.

In: a graph with products whose right operand is a constant behind ``dequantize_linear`` in blocks along the sum, or one
scale for a column. Out: the same products as ``coded_matmul``. Not its business: operands that are both quantised
(``forms.integers``), which runs before.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.compute import MOST_LEVELS
from tilewright.core.dims import are_known, numbers
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array, product
from tilewright.graph.facts import array_of
from tilewright.graph.forms.spread import group_of, known, spread_of, spread_whole_of, unshaped, whole_scales_of
from tilewright.ops.coded import BITS, BOOK_BITS, MOST_ROWS, PAIR_BITS, WORD_BITS, n_decoding, packed
from tilewright.target.target import Target
from tilewright.target.tiles import UNITS, unit_for


@dataclass(frozen=True)
class CodedProducts(Pass):
    """``matmul(x, dequantize_linear(codes, scales, zeros))`` becomes ``coded_matmul(x, words, scales, zeros)``.

    Also behind a transpose, and where the constant is widened and multiplied by scales of groups in ops of their own,
    as PyTorch's exports are. Where scales are themselves bytes times constant units that groups share, they stay so:
    ``coded_matmul(x, words, whole scales, zeros, units)``. It does not fire where codes, scales or zero points are no
    constants, x is no f32, the scales are one for each row, groups along the sum are not whole, or columns fill no
    whole words.

    Where matrix registers take fewer modelled cycles than vectors of integers, products have ``split_rows``: where
    ``units`` (``target.tiles``) has one of bf16, rows are a known number, words fill blocks of ``words_of_pairs`` (of
    bits), ``words_of_nibbles`` or ``words_of_bytes``, and what is decoded of a block stays in ``kept_bytes`` of the
    second-level cache. ``lanes`` is the number of 32-bit sums in a vector; a cycle multiplies and adds ``vectors``,
    begins ``issue_width`` operations and stores ``stores``.
    """

    name: ClassVar[str] = "coded-products"
    units: tuple[str, ...] = ()
    lanes: int = 16
    vectors: float = 2.0
    issue_width: float = 4.0
    stores: float = 1.0
    words_of_pairs: int = 16
    words_of_nibbles: int = 32
    words_of_bytes: int = 64
    kept_bytes: int = 1 << 19

    @classmethod
    def on(cls, target: Target) -> Self:
        """The pass for a machine."""
        return cls(
            tuple(unit.name for unit in target.tile_units),
            target.lanes(types.f32),
            target.fmas_per_cycle,
            target.issue_width,
            target.store_ports,
            target.words_of_a_row(WORD_BITS // PAIR_BITS),
            target.words_of_a_row(WORD_BITS // BOOK_BITS),
            target.words_of_a_row(WORD_BITS // types.u8.bits),
            target.l2_part_bytes,
        )

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def split(b: Rewriting, node: Node) -> Node | None:
            attrs = {**node.attrs, "split_rows": True}
            return b(ops.coded_matmul, *node.inputs, **attrs) if _is_split(node, self) else None

        why = "two numbers in bf16 hold more of an element than 16 bits of its group"
        return rewrite(graph, RuleTable([*_RULES, Rule("split-rows", (ops.coded_matmul,), split, why)]), journal)


class Coded(NamedTuple):
    """A matrix ``f32[K, N]`` as the operands of ``coded_matmul``; columns in the order of the matrix."""

    words: Array
    scales: Array
    zeros: Array
    units: Array | None = None


def coded(codes: Array, scales: Array, zeros: Array, bits: int, units: Array | None = None) -> Coded:
    """Unsigned codes u8[K, N], scales f32[groups, N] and zero points [groups or 1, N or 1] as operands.

    With ``units`` f32[fewer groups, N] scales are whole numbers of them, i8.
    """
    scales = _narrowed(len(codes), scales)
    zeros = zeros if len(zeros) == 1 else _narrowed(len(codes), zeros)
    n = scales.shape[1]
    per_word = WORD_BITS // bits
    spread = np.broadcast_to(zeros, (zeros.shape[0], n)).reshape(zeros.shape[0], per_word, n // per_word)
    if zeros.size == 1:
        spread = spread[:, :, :1]
    stored = [half_where_exact(a).reshape(len(a), per_word, n // per_word) for a in (scales, units) if a is not None]
    return Coded(packed(codes, bits), stored[0], np.ascontiguousarray(spread, np.uint8), *stored[1:])


def _narrowed(depth: int, of_groups: Array) -> Array:
    """Scales or zero points [groups, N] of ``depth`` rows, repeated where the op's sums have no room for a group."""
    rows = depth // len(of_groups)
    return np.repeat(of_groups, rows // _fitting(rows), 0)


def _fitting(rows: int) -> int:
    """The most rows that share a scale in the op, of ``rows`` that share one."""
    return next(n for n in range(min(rows, MOST_ROWS), 0, -1) if rows % n == 0)


def half_where_exact(scales: Array) -> Array:
    """Scales f32 in half precision where that holds all of them; scales that will be stored so were rounded before."""
    if scales.dtype != np.float32:
        return scales
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), scales) else scales


def coded_product(b: Builder, x: Node, matrix: Coded, bits: int, levels: tuple[int, ...] = ()) -> Node:
    """``x @ matrix`` over the last axis of ``x``, f32[..., K]; f32[..., N]. ``levels``: of a code book."""
    rows = b(ops.reshape, x, shape=(product(x.shape[:-1]), x.shape[-1]))
    y = b(ops.coded_matmul, rows, *(b.const(a) for a in matrix if a is not None), bits=bits, levels=levels)
    columns: Dim = product(y.shape[1:])
    return b(ops.reshape, y, shape=(*x.shape[:-1], columns))


def _is_split(node: Node, options: CodedProducts) -> bool:
    """Do products on matrix registers, and all that goes with them, take fewer cycles than integers on vectors?"""
    sizes = (*node.inputs[0].shape, node.inputs[2].shape[0], node.inputs[2].shape[2])
    unit = unit_for((UNITS[name] for name in options.units), types.bf16, types.bf16)
    if unit is None or node.attrs["split_rows"] or not are_known(sizes):
        return False
    n_rows, depth, n_groups, n_words = numbers(sizes)
    of_bits = {
        PAIR_BITS: options.words_of_pairs, BOOK_BITS: options.words_of_nibbles, types.u8.bits: options.words_of_bytes,
    }  # fmt: skip
    words = of_bits[node.attrs["bits"]]
    group = depth // n_groups
    at_once = unit.steps_at_once(group)
    if not at_once or not n_rows or n_words % words or depth * words * types.bf16.n_bytes > options.kept_bytes:
        return False
    # Cycles for each code: rows fill registers, and each group's sums are stored, read, scaled, added and stored.
    registers = -(-n_rows // unit.rows)
    products = 2 * registers * unit.cycles / (unit.columns * at_once)
    decoding = n_decoding(node.attrs) / (options.lanes * options.issue_width)
    joining = 2 * n_rows / (group * options.lanes * options.stores)
    pairs = 2 * options.lanes * options.vectors
    return products + decoding + joining < n_rows / pairs


def _product(b: Rewriting, node: Node) -> Node | None:
    x, w = node.inputs
    if x.dtype is not types.f32 or node.dtype is not types.f32 or w.type.rank != 2:
        return None
    is_turned = w.op is ops.transpose
    w = w.inputs[0] if is_turned else w
    found = _stored(w, 1 if is_turned else 0) or _spelled(w, is_turned)
    if found is None:
        return None
    codes, scales, zeros, units = found
    greatest = max(codes.max(initial=0), zeros.max(initial=0))
    bits = next((n for n in BITS if greatest < 1 << n and codes.shape[1] % (WORD_BITS // n) == 0), None)
    if bits is None or not codes.size:
        return None
    levels = _book_of(codes) if bits > BOOK_BITS and not codes.shape[1] % (WORD_BITS // BOOK_BITS) else ()
    if levels:  # codes are places among so few numbers, which take half of the bits
        bits, codes = BOOK_BITS, np.searchsorted(levels, codes).astype(np.uint8)
    rows = len(codes) // len(scales)
    if _fitting(rows) == 1 < len(codes):  # a scale for each row would be more than the codes
        return None
    padded = (*levels, *[levels[-1]] * (MOST_LEVELS - len(levels))) if levels else ()
    return coded_product(b, x, coded(codes, scales, zeros, bits, units), bits, padded)


def _book_of(codes: Array) -> tuple[int, ...]:
    """The different numbers of u8[K, N], where they are few enough for a code book."""
    found = np.empty(0, np.uint8)
    for row in codes:
        found = np.union1d(found, row)
        if len(found) > MOST_LEVELS:
            return ()
    return tuple(map(int, found))


def _scales(node: Node) -> Array | None:
    """Constant scales, also those that are stored in half precision and widened."""
    is_widened = node.op is ops.cast and node.inputs[0].dtype is types.f16
    return array_of(node.inputs[0] if is_widened else node)


class _Found(NamedTuple):
    """Unsigned codes u8[K, N], scales and zero points [groups, N], units of scales [fewer groups, N] or None."""

    codes: Array
    scales: Array
    zeros: Array
    units: Array | None = None


def _stored(node: Node, along: int) -> _Found | None:
    """A dequantised constant, K ``along`` which axis."""
    if node.op is not ops.dequantize_linear:
        return None
    whole = whole_scales_of(node.inputs[1])
    codes, zeros = array_of(node.inputs[0]), array_of(node.inputs[2])
    scales = _scales(node.inputs[1]) if whole is None else whole.whole
    if codes is None or scales is None or zeros is None or node.inputs[0].dtype not in (types.i8, types.u8):
        return None
    axis, block = node.attrs["axis"], node.attrs["block_size"]
    if scales.ndim == 0:
        scales, zeros = np.full(codes.shape[1 - along], scales), np.full(codes.shape[1 - along], zeros)
    elif (axis != along or codes.shape[along] % block) if block else axis == along:
        return None
    units = scales if whole is None else whole.units
    if scales.ndim == 1:
        scales, zeros, units = (np.expand_dims(a, along) for a in (scales, zeros, units))
    if along == 1:
        codes, scales, zeros, units = codes.T, scales.T, zeros.T, units.T
    low = min(int(codes.min(initial=0)), int(zeros.min(initial=0)))
    shifted = zeros.astype(np.int16) - low
    wide = codes.astype(np.int16) - low
    same = shifted[:1, :1] if (shifted == shifted[:1, :1]).all() else shifted
    if whole is None:
        return _Found(wide.astype(np.uint8), scales.astype(np.float32), same)
    return _in_two_levels(wide.astype(np.uint8), scales, units, same)


def _in_two_levels(codes: Array, whole: Array, units: Array, zeros: Array) -> _Found:
    """With scales i8[groups, N] and their units f32[groups, N]; as plain scales where no groups share units."""
    shared = group_of(units)
    if shared == 1:
        return _Found(codes, whole * units, zeros)
    return _Found(codes, whole, zeros, units[::shared])


def _spelled(node: Node, is_turned: bool) -> _Found | None:
    """The same of a constant of bytes that is widened and multiplied by scales of groups, as exporters spell it."""
    if node.dtype is not types.f32 or not node.type.is_static or unshaped(node).op is not ops.mul:
        return None
    if (whole := spread_whole_of(node, _bytes)) is not None:
        steps, *scales = (a.T if is_turned else a for a in (whole[0], *whole[1]))
    elif (found := spread_of(node, _bytes)) is not None:
        steps, *scales = (a.T if is_turned else a for a in found)
    else:
        return None
    low = int(steps.min(initial=0))
    if int(steps.max(initial=0)) - low > types.u8.max:
        return None
    codes = (steps.astype(np.int16) - low).astype(np.uint8)
    group, zeros = gcd(*map(group_of, scales)), np.array([[-low]], np.int16)
    first, *rest = (a[::group] for a in scales)
    return _in_two_levels(codes, first, rest[0], zeros) if rest else _Found(codes, first, zeros)


def _bytes(node: Node) -> Array | None:
    """The numbers of a constant of bytes that is widened, less a zero point where one is taken off."""
    if node.op is ops.sub:
        steps, zero = _bytes(node.inputs[0]), known(node.inputs[1])
        if steps is None or zero is None or steps.shape != node.shape or not _are_bytes(zero):
            return None
        return np.asarray(steps.astype(np.int16) - zero.astype(np.int16))
    x = node.inputs[0] if node.op is ops.cast and node.dtype is types.f32 else None
    return known(x) if x is not None and x.dtype in (types.i8, types.u8) else None


def _are_bytes(numbers: Array) -> bool:
    """Are floats whole numbers that a byte holds, with a sign or without?"""
    with np.errstate(invalid="ignore"):
        return bool((np.rint(numbers) == numbers).all() and (np.abs(numbers) <= types.u8.max).all())


_RULES = (Rule("coded-product", (ops.matmul,), _product, "coded_matmul is the product with the dequantised matrix"),)
