"""Random bits from a state: Threefry and Philox as XLA's CPU has them.

In: calls of ``rng_bit_generator``. Out: the next state and the bits. Keys of JAX's default implementation are not made
here, because JAX writes their Threefry as arithmetic; those of ``rbg`` and ``unsafe_rbg`` are Philox.
Not its business: ``rng``, whose numbers no specification fixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import dtype_named, product, u32, u64
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result

Convert = Callable[[Operation], Result]
Words = Sequence[Node]
"""Vectors of u32 of one length: what a generator makes of each number of its counter."""

# --- Threefry -------------------------------------------------------------------------------------------------------

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(c: Operation, keys: tuple[Node, Node], x: tuple[Node, Node]) -> tuple[Node, Node]:
    """Twenty rounds of Threefry-2x32 (Salmon et al., 2011) on pairs of u32."""
    both = c.b(ops.bitwise_xor, *keys)
    schedule = (*keys, c.b(ops.bitwise_xor, both, c.b.const(PARITY, u32)))
    a, b = c.b(ops.add, x[0], schedule[0]), c.b(ops.add, x[1], schedule[1])
    for k in range(5):
        for n in ROTATIONS[k % 2]:
            a = c.b(ops.add, a, b)
            left = c.b(ops.shift_left, b, c.b.const(n, u32))
            turned = c.b(ops.bitwise_or, left, c.b(ops.shift_right, b, c.b.const(32 - n, u32)))
            b = c.b(ops.bitwise_xor, a, turned)
        a = c.b(ops.add, a, schedule[(k + 1) % 3])
        b = c.b(ops.add, c.b(ops.add, b, schedule[(k + 2) % 3]), c.b.const(k + 1, u32))
    return a, b


def _threefry_words(c: Operation, key: Node, counter: Words, count: int) -> Words:
    (first,) = counter
    numbers = c.b(ops.add, c.b(ops.iota, extent=count, dtype=u64), first)
    return threefry(c, _low_high(c, key), _low_high(c, numbers))


# --- Philox ---------------------------------------------------------------------------------------------------------

PHILOX_ROUNDS = 10
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(c: Operation, keys: tuple[Node, Node], x: Words) -> Words:
    """Ten rounds of Philox-4x32 (Salmon et al., 2011) on four u32."""
    for k in range(PHILOX_ROUNDS):
        (low, high), (low_2, high_2) = (
            _low_high(c, c.b(ops.mul, c.cast(word, u64), c.b.const(factor, u64)))
            for word, factor in zip((x[0], x[2]), PHILOX_FACTORS, strict=True)
        )
        first, second = (
            c.b(ops.add, key, c.b.const(step * k % 2**32, u32)) for key, step in zip(keys, PHILOX_STEPS, strict=True)
        )
        mixed = c.b(ops.bitwise_xor, c.b(ops.bitwise_xor, high_2, x[1]), first)
        x = (mixed, low_2, c.b(ops.bitwise_xor, c.b(ops.bitwise_xor, high, x[3]), second), low)
    return x


def _philox_words(c: Operation, key: Node, counter: Words, count: int) -> Words:
    """The counter has 128 bits; of a state of two numbers, which holds its lower half, the key is the upper one."""
    first = counter[0]
    low = c.b(ops.add, c.b(ops.iota, extent=count, dtype=u64), first)
    high = c.expand(counter[1] if len(counter) > 1 else key, (count,))
    high = c.b(ops.add, high, c.cast(c.b(ops.lt, low, first), u64))
    return philox(c, _low_high(c, key), (*_low_high(c, low), *_low_high(c, high)))


# --- calls ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Generator:
    """``words(call, key, counter, count)``; each number of the counter gives ``n_words`` words of 32 bits.

    The words of a number lie side by side along one axis of the result: of the flat one, or of the one that
    ``axis_of`` chooses by its sizes.
    """

    words: Callable[[Operation, Node, Words, int], Words]
    n_words: int
    state_sizes: tuple[int, ...]
    axis_of: Callable[[Sequence[int]], int] | None


def _even_axis(sizes: Sequence[int]) -> int:
    """The first axis of an even size, else the first of the largest one: which one XLA cuts in halves."""
    even = [k for k, n in enumerate(sizes) if n % 2 == 0]
    return even[0] if even else sizes.index(max(sizes))


_PHILOX = _Generator(_philox_words, 4, (2, 3), None)
GENERATORS: Mapping[str, _Generator] = {
    "THREE_FRY": _Generator(_threefry_words, 2, (2,), _even_axis),
    "PHILOX": _PHILOX,
    "DEFAULT": _PHILOX,  # so XLA's CPU has it
}


def _low_high(c: Operation, x: Node) -> tuple[Node, Node]:
    """The halves of u64."""
    return c.cast(x, u32), c.cast(c.b(ops.shift_right, x, c.b.const(32, u64)), u32)


def _rng_bit_generator(c: Operation) -> Result:
    """A key and a counter, whose numbers become words; a number of 64 bits is two of them."""
    algorithm = c.text("rng_algorithm").rstrip(">").split()[-1]
    generator = GENERATORS.get(algorithm)
    if generator is None:
        raise NoForm(f"the generator {algorithm}", f"use one of {', '.join(GENERATORS)}")
    state, t = c.node(0), c.type(1)
    shape = tuple(n for n in t.shape if n is not None)
    n, n_state = product(shape), product(state.shape)
    is_state = len(state.shape) == 1 and n_state in generator.state_sizes and state.dtype is u64
    if t.dtype.is_float or t.dtype.bits < 8 or not is_state:
        sizes = " or ".join(map(str, generator.state_sizes))
        raise NoForm(f"random {t.dtype} of {state.type}", f"draw integers of a state of {sizes} numbers of u64")
    assert is_known(n) and is_known(n_state)
    key, *counter = (c.reshape(c.slice(state, 0, k, k + 1), ()) for k in range(n_state))
    drawn, axis = ((n,), 0) if generator.axis_of is None or not shape else (shape, generator.axis_of(shape))
    bits, count = _drawn(c, generator, key, counter, drawn, axis, is_wide=t.dtype.bits == 64)
    bits = c.reshape(c.cast(bits, dtype_named(f"u{t.dtype.bits}")), shape)
    moved = c.b(ops.concat, *(c.reshape(x, (1,)) for x in (key, *_advanced(c, counter, count))), axis=0)
    return [moved, bits if bits.dtype is t.dtype else c.b(ops.bitcast, bits, dtype=t.dtype)]


def _drawn(
    c: Operation, generator: _Generator, key: Node, counter: Words, shape: tuple[int, ...], axis: int, *, is_wide: bool
) -> tuple[Node, int]:
    """Bits of ``shape``, whose words lie side by side along ``axis``, and how many numbers of the counter they took."""
    side_by_side = generator.n_words // 2 if is_wide else generator.n_words
    blocks = (*shape[:axis], -(-shape[axis] // side_by_side), *shape[axis + 1 :])
    count = math.prod(blocks)
    words = [
        c.reshape(word, (*blocks[: axis + 1], 1, *blocks[axis + 1 :]))
        for word in generator.words(c, key, counter, count)
    ]
    if is_wide:
        words = [_joined(c, *words[k : k + 2]) for k in range(0, len(words), 2)]
    whole = c.b(ops.concat, *words, axis=axis + 1)
    whole = c.reshape(whole, (*blocks[:axis], blocks[axis] * side_by_side, *blocks[axis + 1 :]))
    return c.slice(whole, axis, 0, shape[axis]), count


def _joined(c: Operation, low: Node, high: Node) -> Node:
    """Two words as one of u64."""
    return c.b(ops.bitwise_or, c.cast(low, u64), c.b(ops.shift_left, c.cast(high, u64), c.b.const(32, u64)))


def _advanced(c: Operation, counter: Words, count: int) -> Words:
    """The counter after ``count`` numbers, with the carry from its lower half."""
    low = c.b(ops.add, counter[0], c.b.const(count, u64))
    carry = c.cast(c.b(ops.lt, low, counter[0]), u64)
    return [low, *(c.b(ops.add, high, carry) for high in counter[1:])]


def _rng(c: Operation) -> Result:
    raise NoForm("random numbers without a state", "draw them with jax.random and a key")


TABLE: Mapping[str, Convert] = {"stablehlo.rng_bit_generator": _rng_bit_generator, "stablehlo.rng": _rng}
