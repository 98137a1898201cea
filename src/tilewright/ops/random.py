"""Random tensors from a counter: Philox4x32-10 (Salmon et al., SC 2011), the same numbers on every device.

In: a state ``u64[2]`` = (key, block counter) and a shape. Out: the values and the state with the counter moved on.
Not its business: where a state comes from; frontends make it an operand or a constant.

Each 128-bit block gives four numbers (two for f64). Element ``e`` of the flat result comes from block ``e // 4``, so
elements are independent of each other and of the order in which they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Load,
    Select,
    Stage,
    Unary,
    Value,
)
from tilewright.core.expr import Dim, ceildiv, floordiv, mod
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.shapes import linearise
from tilewright.core.types import Array, DType, TensorType, product
from tilewright.ops.common import FLOATS, assign, cast_to, check, check_dtype, narrowed, wide
from tilewright.ops.source import check_sizes

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
N_ROUNDS = 10
Words = tuple[Any, Any, Any, Any]


@dataclass(frozen=True)
class _Arithmetic:
    """The few operations that a round needs, on arrays or on element values."""

    wide_product: Callable[[Any, int], Any]  # u32 times a number, as u64
    high: Callable[[Any], Any]  # u64 to its high half
    low: Callable[[Any], Any]  # u64 to its low half
    xor: Callable[[Any, Any], Any]
    plus: Callable[[Any, int], Any]  # u32 plus a number, wrapping


def philox(m: _Arithmetic, counter: Words, key: tuple[Any, Any]) -> Words:
    """Ten rounds over a 128-bit counter."""
    for n in range(N_ROUNDS):
        k0, k1 = m.plus(key[0], n * KEY_STEPS[0] % 2**32), m.plus(key[1], n * KEY_STEPS[1] % 2**32)
        p0, p1 = m.wide_product(counter[0], MULTIPLIERS[0]), m.wide_product(counter[2], MULTIPLIERS[1])
        counter = (
            m.xor(m.xor(m.high(p1), counter[1]), k0),
            m.low(p1),
            m.xor(m.xor(m.high(p0), counter[3]), k1),
            m.low(p0),
        )
    return counter


_ARRAYS = _Arithmetic(
    lambda a, n: a.astype(np.uint64) * np.uint64(n),
    lambda a: (a >> np.uint64(32)).astype(np.uint32),
    lambda a: a.astype(np.uint32),
    np.bitwise_xor,
    lambda a, n: a + np.uint32(n),
)
_VALUES = _Arithmetic(
    lambda a, n: Cast(a, types.u64) * Const(n, types.u64),
    lambda a: Cast(Binary("shr", a, Const(32, types.u64)), types.u32),
    lambda a: Cast(a, types.u32),
    lambda a, b: Binary("xor", a, b),
    lambda a, n: a + Const(n, types.u32),
)


def blocks_of(key: int, counter: Array) -> Array:
    """The four words of each block: u32 of the counter's shape with a last axis of 4."""
    counter = counter.astype(np.uint64)
    zero = np.zeros_like(counter, np.uint32)
    start = (counter.astype(np.uint32), (counter >> np.uint64(32)).astype(np.uint32), zero, zero)
    halves = np.array(key & 0xFFFFFFFF, np.uint32), np.array(key >> 32, np.uint32)
    with np.errstate(over="ignore"):
        return np.stack(philox(_ARRAYS, start, halves), -1)


def _fraction_bits(dtype: DType) -> int:
    """How many random bits fill a number in [0, 1) without rounding."""
    return {types.f16: 11, types.bf16: 8, types.f32: 24}.get(dtype, 53)


def _per_block(dtype: DType) -> int:
    return 2 if dtype is types.f64 else 4


def _n_blocks(a: Attrs) -> Dim:
    return ceildiv(product(a.shape), _per_block(a.dtype))


def _infer(ts: Sequence[TensorType], a: Attrs) -> tuple[TensorType, TensorType]:
    (state,) = ts
    check(state.dtype is types.u64 and state.shape == (2,), lambda: f"the state is {state}, not u64[2]")
    values = TensorType(a.dtype, a.shape)
    check_dtype(values, FLOATS, "the result")
    check_sizes(a.shape)
    return values, state


# --- element expressions --------------------------------------------------------------------------------------------


def _select_word(words: Sequence[Value], at: Dim) -> Value:
    """``words[at]``."""
    result = words[-1]
    for n in range(len(words) - 2, -1, -1):
        result = Select(Binary("eq", Index(at), Const(n, types.i64)), words[n], result)
    return result


def _block_words(state: Buffer, block: Dim) -> list[Value]:
    key, start = Load(state, (0,)), Load(state, (1,))
    counter = start + Cast(Index(block), types.u64)
    zero = Const(0, types.u32)
    first: Words = (_VALUES.low(counter), _VALUES.high(counter), zero, zero)
    return list(philox(_VALUES, first, (_VALUES.low(key), _VALUES.high(key))))


def uniform_at(seed: Value, counter: Value) -> Value:
    """A number of at least 0 and under 1 in ``f32``, which a seed of ``u64`` and a counter of ``u64`` decide."""
    zero = Const(0, types.u32)
    first: Words = (_VALUES.low(counter), _VALUES.high(counter), zero, zero)
    words = list(philox(_VALUES, first, (_VALUES.low(seed), _VALUES.high(seed))))
    return _fraction(words[0], _fraction_bits(types.f32), types.f32)


def _joined(low: Value, high: Value) -> Value:
    return Binary("or", Cast(low, types.u64), Binary("shl", Cast(high, types.u64), Const(32, types.u64)))


def _fraction(bits: Value, n_bits: int, dtype: DType, plus: int = 0) -> Value:
    """``(top n_bits of bits + plus) / 2**n_bits`` in ``dtype``."""
    top = Binary("shr", bits, Const(bits.dtype.bits - n_bits, bits.dtype))
    signed = Cast(top, types.i64 if bits.dtype.bits == 64 else types.i32)
    return Cast(signed + Const(plus, signed.dtype), dtype) * Const(2.0**-n_bits, dtype)


def _lanes(state: Buffer, block: Dim, dtype: DType) -> list[Value]:
    """The random integers of a block: four of 32 bits, or two of 64 for f64."""
    w = _block_words(state, block)
    return [_joined(w[0], w[1]), _joined(w[2], w[3])] if dtype is types.f64 else w


def _uniform_value(state: Buffer, e: Dim, a: Attrs) -> Value:
    n = _per_block(a.dtype)
    bits = _select_word(_lanes(state, floordiv(e, n), a.dtype), mod(e, n))
    dtype = wide(a.dtype)
    return cast_to(_fraction(bits, _fraction_bits(a.dtype), dtype), a.dtype)


def _normal_value(state: Buffer, e: Dim, a: Attrs) -> Value:
    """Box-Muller: two uniform numbers give two normal ones, by cosine at even elements and by sine at odd ones."""
    n, dtype = _per_block(a.dtype), wide(a.dtype)
    lanes = _lanes(state, floordiv(e, n), a.dtype)
    pair = floordiv(mod(e, n), 2)
    n_bits = _fraction_bits(dtype)
    radius = _fraction(_select_word(lanes[0::2], pair), n_bits, dtype, plus=1)
    angle = _fraction(_select_word(lanes[1::2], pair), n_bits, dtype) * Const(2 * math.pi, dtype)
    is_even = Binary("eq", Index(mod(e, 2)), Const(0, types.i64))
    length = Unary("sqrt", Unary("log", radius) * Const(-2.0, dtype))
    return cast_to(length * Select(is_even, Unary("cos", angle), Unary("sin", angle)), a.dtype)


def _compute(value: Callable[[Buffer, Dim, Attrs], Value]) -> Callable[..., tuple[Stage, ...]]:
    def compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
        (state,), (values, moved) = ins, outs
        step = Cast(Index(_n_blocks(a)), types.u64)

        def next_state(i: tuple[Dim, ...]) -> Value:
            is_counter = Binary("eq", Index(i[0]), Const(1, types.i64))
            old = Load(state, i)
            return Select(is_counter, old + step, old)

        return assign(values, lambda i: value(state, linearise(i, a.shape), a)), assign(moved, next_state)

    return compute


# --- references -----------------------------------------------------------------------------------------------------


def _lanes_of(state: Array, a: Attrs) -> Array:
    """The random integers of all blocks, one row a block."""
    first, n = int(state[1]), int(_n_blocks(a))  # type: ignore[arg-type]
    with np.errstate(over="ignore"):
        counter = np.arange(n, dtype=np.uint64) + np.uint64(first)
    words = blocks_of(int(state[0]), counter)
    if a.dtype is not types.f64:
        return words
    low, high = words[:, 0::2].astype(np.uint64), words[:, 1::2].astype(np.uint64)
    return np.asarray(low | (high << np.uint64(32)))


def _fraction_of(bits: Array, n_bits: int, dtype: DType, plus: int = 0) -> Array:
    top = bits >> bits.dtype.type(bits.dtype.itemsize * 8 - n_bits)
    return np.asarray((top.astype(np.int64) + plus).astype(dtype.numpy) * dtype.numpy.type(2.0**-n_bits))


def _uniform_of(lanes: Array, a: Attrs) -> Array:
    return _fraction_of(lanes, _fraction_bits(a.dtype), wide(a.dtype))


def _normal_of(lanes: Array, a: Attrs) -> Array:
    dtype = wide(a.dtype)
    n_bits = _fraction_bits(dtype)
    length = np.sqrt(-2 * np.log(_fraction_of(lanes[:, 0::2], n_bits, dtype, plus=1)))
    angle = _fraction_of(lanes[:, 1::2], n_bits, dtype) * dtype.numpy.type(2 * math.pi)
    return np.stack([length * np.cos(angle), length * np.sin(angle)], -1)


def _reference(values: Callable[[Array, Attrs], Array]) -> Callable[..., tuple[Array, Array]]:
    def reference(xs: Sequence[Array], a: Attrs) -> tuple[Array, Array]:
        (state,) = xs
        n = math.prod(a.shape)
        result = narrowed(values(_lanes_of(state, a), a).reshape(-1)[:n].reshape(a.shape), a.dtype)
        with np.errstate(over="ignore"):
            moved = state + np.array([0, int(_n_blocks(a))], np.uint64)  # type: ignore[arg-type]
        return result, moved

    return reference


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    state = rng.integers(0, 2**63, 2).astype(np.uint64) * np.uint64(2)
    for dtype, shape in (
        (types.f32, (2, 3)),
        (types.f64, (5,)),
        (types.f16, (3,)),
        (types.bf16, (2, 2)),
        (types.f32, (0,)),
    ):
        yield Sample((state,), {"shape": shape, "dtype": dtype})
    yield Sample((np.array([7, 2**64 - 1], np.uint64),), {"shape": (9,), "dtype": types.f32})
    yield Sample((np.array([7, 2**32 - 1], np.uint64),), {"shape": (), "dtype": types.f32})


RANDOM_ATTRS = {"shape": AttrDef("dims"), "dtype": AttrDef("dtype", types.f32)}
RANDOM = frozenset({Trait.RANDOM})

random_uniform = OpDef(
    "random_uniform", ("state",), RANDOM_ATTRS, _infer, _reference(_uniform_of), _compute(_uniform_value),
    traits=RANDOM, samples=_samples, doc="Evenly spread numbers in [0, 1) and the next state.",
)  # fmt: skip
random_normal = OpDef(
    "random_normal", ("state",), RANDOM_ATTRS, _infer, _reference(_normal_of), _compute(_normal_value),
    traits=RANDOM, samples=_samples, doc="Normal numbers of mean 0 and variance 1, and the next state.",
)  # fmt: skip
