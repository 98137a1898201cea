"""The pass ``integer-products``: products and convolutions of quantised tensors multiply the bytes that are stored.

In: a graph in which operands of contractions are dequantised, or are bytes made i32 less a zero point (the form in
which ONNX's ``QLinearConv``, ``MatMulInteger`` and their like are imported). Out: an equal graph whose contractions
read bytes and add up in i32, with zero points as sums beside them and scales as an epilogue.
Not its business: which instruction multiplies bytes (``choose.strategies.dots``), choosing scales.

``sum_k (a[k] - za) (b[k] - zb)`` is ``sum_k a[k] b[k] - za sum_k b[k] - zb sum_k (a[k] - za)``. The first sum reads
bytes alone; the second is known at compile time for constant weights (Jacob et al., 2018, section 2.3); the third
vanishes for weights whose zero point can be taken off in their type. Sums of integers are exact, also where a part
wraps around. A sum of floats rounds at each step, so a dequantised product may differ from it in its last bits.

A number of 16 bits is 256 times one byte and another: two digits, each less its own zero point. Its product with bytes
is two products of bytes, whose sums are scaled apart and added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array, DType, product
from tilewright.graph.facts import array_of, scalar
from tilewright.graph.forms.priced import PricedPass
from tilewright.target.dots import BYTES, HALVES
from tilewright.target.target import Target

BYTE = (types.i8, types.u8)
WORD = (types.i16, types.u16)
FLIP = -int(np.iinfo(np.int8).min)
"""What is added to an i8, or taken from a u8, to get the same bits but the sign's in the other type."""
DIGIT_BITS = types.u8.bits
SUM_LIMIT = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class IntegerProducts(PricedPass):
    """``matmul(dequantize(a), dequantize(b))`` becomes ``cast(matmul(a, b) - sums) * (scale_a * scale_b)``.

    Likewise ``conv`` and operands that are ``cast(a, i32) - zero``. Weights whose zero point is not 0 are shifted at
    compile time: as bytes where they fit, else as 16 bits. With ``flips`` the left operand becomes u8 and the right one
    i8, the only bytes that some machines multiply. With ``floats=False`` dequantised operands stay in f32, whose sums
    round where those of integers do not. It does not fire where an operand is not stored in bytes, or has a scale along
    the sum or for each block; on convolutions of several scales of their input, and on weights of convolutions that a
    call brings with a zero point; where the sum of floats might not fit into 32 bits.

    With ``digits`` a left operand that is dequantised from 16 bits, with one scale and a known zero point, is read as
    two tensors of bytes by weights in bytes, where the price of that is less: deep sums, on machines that multiply four
    bytes in the time of a float. It does not fire on grouped convolutions, which sum over too few products.

    A sum and a mean of ``dequantize(a)`` become ``(sum(a) - n * zero) * scale``: no tensor of floats is in between,
    and the sum is exact. They stay where the scale is not one for all, or the number of terms is not known.
    """

    name: ClassVar[str] = "integer-products"
    flips: bool = False
    floats: bool = True
    digits: bool = False

    @staticmethod
    def on(target: Target) -> IntegerProducts:
        """The pass for a machine."""
        return IntegerProducts(flips=BYTES in target.dots or HALVES in target.dots, digits=BYTES in target.dots)

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, _table(self), journal)


@dataclass(frozen=True)
class _Stored:
    """``scale * (number - zero)``: what is stored, one zero point and one scale or one for each place along ``axis``.

    ``scale`` is None for integers, ``zero`` None for 0. ``zero`` is an i32. Both are 0-d, or 1-d along ``axis``.
    """

    number: Node
    zero: Node | None = None
    scale: Node | None = None
    axis: int | None = None


def _table(options: IntegerProducts) -> RuleTable:
    why = "a sum of products of differences is a sum of four sums"
    return RuleTable(
        [
            Rule("integer-matmul", (ops.matmul,), lambda b, node: _multiplied(b, node, options, _matmul), why),
            Rule("integer-conv", (ops.conv,), lambda b, node: _multiplied(b, node, options, _conv), why),
            Rule(
                "integer-sum",
                (ops.reduce_sum, ops.reduce_mean),
                lambda b, node: _sum(b, node) if options.floats else None,
                "a scale is a factor of a sum, and a zero point is added to it as often as it has terms",
            ),
        ]
    )


# --- operands -------------------------------------------------------------------------------------------------------


def _stored(b: Rewriting, node: Node) -> _Stored | None:
    """The bytes that a tensor is made of, where it is made of bytes."""
    if node.op is CONST:
        return _small(b, node)
    if node.op is ops.transpose:
        return _transposed(b, node)
    if node.op is ops.reshape:
        found = _stored(b, node.inputs[0])
        if found is None or found.axis is not None:
            return None
        return replace(found, number=b(ops.reshape, found.number, shape=node.shape))
    if node.op is ops.dequantize_linear:
        return _dequantised(b, node)
    if node.op in (ops.sub, ops.add) and node.dtype is types.i32:
        x, zero = node.inputs
        if node.op is ops.add and zero.op is not CONST:
            return None  # the canonical form of a difference with a constant
        found = _stored(b, x)
        if found is None or found.zero is not None or found.number.shape != node.shape:
            return None
        return _with_zero(b, found, zero if node.op is ops.sub else b.const(-_numbers(zero)))
    if node.op is ops.cast and node.dtype is types.i32 and node.inputs[0].dtype in BYTE:
        return _Stored(node.inputs[0])
    return None


def _small(b: Rewriting, node: Node) -> _Stored | None:
    """An i32 constant whose numbers are bytes, or fit into 16 bits: what centring made of weights."""
    numbers = _numbers(node)
    if node.dtype is not types.i32 or not numbers.size:
        return None
    low, high = numbers.min(), numbers.max()
    fits = (t for t in (np.int8, np.uint8, np.int16) if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    dtype = next(fits, None)
    return None if dtype is None else _Stored(b.const(numbers.astype(dtype)))


def _transposed(b: Rewriting, node: Node) -> _Stored | None:
    found = _stored(b, node.inputs[0])
    if found is None:
        return None
    perm = tuple(node.attrs["perm"])
    axis = None if found.axis is None else perm.index(found.axis)
    return replace(found, number=_known(b, b(ops.transpose, found.number, perm=perm)), axis=axis)


def _dequantised(b: Rewriting, node: Node, kinds: tuple[DType, ...] = BYTE) -> _Stored | None:
    x, scale, zero = node.inputs
    if x.dtype not in kinds or scale.dtype is not types.f32 or scale.type.rank > 1:
        return None
    if node.attrs["block_size"]:
        return None
    zero = _known(b, b(ops.cast, zero, dtype=types.i32))
    numbers = array_of(zero)
    point = None if numbers is not None and not numbers.any() else zero
    return _Stored(x, point, scale, node.attrs["axis"] if scale.type.rank else None)


def _with_zero(b: Rewriting, x: _Stored, zero: Node) -> _Stored | None:
    """``x`` less a zero point whose shape broadcasts: one, or one for each place along an axis."""
    rank = x.number.type.rank
    if zero.type.rank > rank:
        return None
    wide = [k + rank - zero.type.rank for k, d in enumerate(zero.shape) if d != 1]
    if len(wide) > 1:
        return None
    if not wide:
        return replace(x, zero=_known(b, b(ops.reshape, zero, shape=())))
    (axis,) = wide
    return replace(x, zero=_known(b, b(ops.reshape, zero, shape=(x.number.shape[axis],))), axis=axis)


def _numbers(node: Node) -> Array:
    array = array_of(node)
    assert array is not None
    return array


def _known(b: Rewriting, node: Node) -> Node:
    """``node``, as a constant where its operands are constants; those of the graph were folded before this pass."""
    operands = [array_of(x) for x in node.inputs]
    if not operands or any(x is None for x in operands):
        return node
    with np.errstate(all="ignore"):
        return b.const(np.asarray(node.op.reference([x for x in operands if x is not None], node.attrs)))


def _flipped(b: Rewriting, x: _Stored, dtype: DType) -> _Stored:
    """The same numbers with the other sign: i8 as u8 and the other way round, and the zero point moved along."""
    if x.number.dtype is dtype or x.number.dtype not in BYTE:
        return x
    step = FLIP if dtype is types.u8 else -FLIP
    unsigned = _known(b, b(ops.bitcast, x.number, dtype=types.u8))
    bits = _known(b, b(ops.bitwise_xor, unsigned, b.const(FLIP, types.u8)))
    zero = b.const(step, types.i32) if x.zero is None else b(ops.add, x.zero, b.const(step, types.i32))
    if x.axis is not None and x.zero is None:
        zero = b.const(np.full(_length(x), step, np.int32))
    return replace(x, number=_known(b, b(ops.bitcast, bits, dtype=dtype)), zero=_known(b, zero))


def _length(x: _Stored) -> int:
    n = x.number.shape[x.axis] if x.axis is not None else 1
    assert is_known(n)
    return n


def _weights(b: Rewriting, x: _Stored) -> _Stored:
    """Constants without their zero point: still bytes, if that holds all of them, or 16 bits."""
    stored, zero = array_of(x.number), None if x.zero is None else array_of(x.zero)
    if stored is None or (x.zero is not None and zero is None):
        return x
    if zero is None and x.number.dtype is types.i8:
        return x
    if zero is not None and x.axis is not None:
        zero = zero.reshape([-1 if k == x.axis else 1 for k in range(stored.ndim)])
    centred = stored.astype(np.int32) - (0 if zero is None else zero)
    info = np.iinfo(np.int8)
    fits = not centred.size or bool(centred.min() >= info.min and centred.max() <= info.max)
    return replace(x, number=b.const(centred.astype(np.int8 if fits else np.int16)), zero=None)


# --- contractions ---------------------------------------------------------------------------------------------------


Product = Callable[[Rewriting, Node, _Stored, _Stored], Node | None]
"""A product's node by what its two operands are made of; None where it stays in floats."""


def _multiplied(b: Rewriting, node: Node, options: IntegerProducts, product_of: Product) -> Node | None:
    """A product of bytes, or one for each digit of what is stored in 16 bits."""
    found = _operands(b, node, options)
    if found is not None:
        return product_of(b, node, *found)
    digits = _digits(b, node) if options.digits and options.floats else None
    if digits is None:
        return None
    left, right = digits
    first, second = (product_of(b, node, x, right) for x in left)
    if first is None or second is None:
        return None
    return options.cheaper(node, b(ops.add, first, second), node.inputs[0].inputs[0])


def _digits(b: Rewriting, node: Node) -> tuple[tuple[_Stored, _Stored], _Stored] | None:
    """The two bytes of each number of the left operand, the one that counts more first, and the weights."""
    x, w = node.inputs
    if {x.dtype, w.dtype, node.dtype} != {types.f32} or node.attrs.get("groups", 1) != 1:
        return None
    left = _dequantised(b, x, WORD) if x.op is ops.dequantize_linear else None
    right = _stored(b, w)
    if left is None or right is None or left.number.op is CONST or left.scale is None or left.axis is not None:
        return None
    right = _weights(b, right)
    zero = 0 if left.zero is None else scalar(left.zero)
    if zero is None or right.number.op is not CONST or right.number.dtype is not types.i8 or right.zero is not None:
        return None
    number, point = left.number, int(zero)
    if number.dtype is types.i16:
        number = b(ops.bitwise_xor, b(ops.bitcast, number, dtype=types.u16), b.const(-int(types.i16.min), types.u16))
        point -= int(types.i16.min)
    high, low = b(ops.shift_right, number, b.const(DIGIT_BITS, types.u16)), number
    step = _known(b, b(ops.mul, left.scale, b.const(1 << DIGIT_BITS, types.f32)))

    def digit(of: Node, scale: Node, point: int) -> _Stored:
        return _Stored(b(ops.cast, of, dtype=types.u8), b.const(point, types.i32) if point else None, scale)

    parts = divmod(point, 1 << DIGIT_BITS)
    return (digit(high, step, parts[0]), digit(low, left.scale, parts[1])), right


def _operands(b: Rewriting, node: Node, options: IntegerProducts) -> tuple[_Stored, _Stored] | None:
    x, w = node.inputs
    if {x.dtype, w.dtype, node.dtype} not in ({types.i32}, {types.f32}):
        return None
    if node.dtype is types.f32 and not options.floats:
        return None
    left, right = _stored(b, x), _stored(b, w)
    if left is None or right is None or (left.number.op is CONST and right.number.op is CONST):
        return None
    right = _weights(b, right)
    if options.flips:
        left, right = _flipped(b, left, types.u8), _flipped(b, right, types.i8)
    return left, right


def _fits(node: Node, left: _Stored, right: _Stored, depth: Dim) -> bool:
    """Is every sum a number of 32 bits? Those of integers wrap around by definition."""
    if node.dtype is types.i32:
        return True
    return is_known(depth) and depth * _greatest(left) * _greatest(right) <= SUM_LIMIT


def _greatest(x: _Stored) -> int:
    """The largest magnitude of a number less its zero point."""
    return 1 << (x.number.dtype.bits - (x.zero is None and x.number.dtype.is_signed))


def _matmul(b: Rewriting, node: Node, left: _Stored, right: _Stored) -> Node | None:
    if not _fits(node, left, right, node.inputs[0].shape[-1]):
        return None
    rank_a, rank_b = left.number.type.rank, right.number.type.rank
    if left.axis not in (None, rank_a - 2) or right.axis not in (None, rank_b - 1):
        return None
    y = b(ops.matmul, left.number, right.number, out_dtype=types.i32)
    za, zb = _upright(b, left.zero), right.zero
    if za is not None:
        y = b(ops.sub, y, _known(b, b(ops.mul, za, _sums(b, right.number, rank_b - 2))))
    if zb is not None:
        rows = b(ops.cast, left.number, dtype=types.i32)
        rows = rows if za is None else b(ops.sub, rows, za)
        y = b(ops.sub, y, b(ops.mul, zb, b(ops.reduce_sum, rows, axes=(rank_a - 1,), keepdims=True)))
    return _scaled(b, y, _upright(b, left.scale), right.scale, node)


def _upright(b: Rewriting, x: Node | None) -> Node | None:
    """A vector along rows as a column."""
    return x if x is None or x.type.rank == 0 else _known(b, b(ops.reshape, x, shape=(x.shape[0], 1)))


def _sums(b: Rewriting, x: Node, *axes: int) -> Node:
    """The sums of bytes along axes, in i32; those of constants are constants."""
    array = array_of(x)
    if array is not None:
        return b.const(np.asarray(array.sum(axis=axes, dtype=np.int32, keepdims=True)))
    return b(ops.reduce_sum, b(ops.cast, x, dtype=types.i32), axes=axes, keepdims=True)


def _scaled(b: Rewriting, y: Node, first: Node | None, second: Node | None, node: Node) -> Node | None:
    """Sums times the scales of what was multiplied."""
    if y.shape != node.shape:
        return None
    if node.dtype is types.i32:
        return y
    assert first is not None
    assert second is not None
    return b(ops.mul, b(ops.cast, y, dtype=types.f32), _known(b, b(ops.mul, first, second)))


def _conv(b: Rewriting, node: Node, left: _Stored, right: _Stored) -> Node | None:
    a = node.attrs
    if a["layout"] != "NCHW" or left.axis is not None or right.axis not in (None, 0) or right.zero is not None:
        return None
    if not _fits(node, left, right, product(right.number.shape[1:])):
        return None
    x, zero, pads = left.number, left.zero, a["pads"]
    if zero is not None and any(n != 0 for pad in pads for n in pad):
        outside = _known(b, b(ops.cast, zero, dtype=x.dtype))
        if array_of(outside) is None:
            return None  # rows around the operand would be no constant
        x = b(ops.pad, x, outside, pads=((0, 0), (0, 0), *pads))
        pads = tuple((0, 0) for _ in pads)
    y = b(ops.conv, x, right.number, **{**a, "pads": pads, "out_dtype": types.i32})
    if zero is not None:
        rank = node.type.rank
        sums = _known(b, b(ops.mul, zero, _sums(b, right.number, *range(1, rank))))
        y = b(ops.sub, y, _by_channel(b, sums, rank))
    first, second = (None if s is None else _by_channel(b, s, node.type.rank) for s in (left.scale, right.scale))
    return _scaled(b, y, first, second, node)


def _sum(b: Rewriting, node: Node) -> Node | None:
    """A sum or a mean of floats that are stored in bytes, by the sum of these."""
    x, axes = node.inputs[0], node.attrs["axes"]
    n = product([x.shape[k] for k in axes])
    found = _dequantised(b, x) if x.op is ops.dequantize_linear else None
    if found is None or found.scale is None or found.axis is not None or node.dtype is not types.f32:
        return None
    if not is_known(n) or not 0 < n * _greatest(found) <= SUM_LIMIT:
        return None
    wide = b(ops.cast, found.number, dtype=types.i32)
    y = b(ops.reduce_sum, wide, axes=axes, keepdims=node.attrs["keepdims"])
    if found.zero is not None:
        y = b(ops.sub, y, _known(b, b(ops.mul, found.zero, b.const(n, types.i32))))
    if node.op is ops.reduce_mean:
        mean = _known(b, b(ops.div, found.scale, b.const(n, types.f32)))
        return b(ops.mul, b(ops.cast, y, dtype=types.f32), mean)
    return b(ops.mul, b(ops.cast, y, dtype=types.f32), found.scale)


def _by_channel(b: Rewriting, x: Node, rank: int) -> Node:
    """One number, or one for each channel of a channels-first tensor."""
    return x if x.type.rank == 0 else _known(b, b(ops.reshape, x, shape=(x.shape[0], *[1] * (rank - 2))))
