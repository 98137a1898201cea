"""Random bits from a state: Threefry and Philox, as XLA's CPU has them.

In: a state of u64, and the type and shape of what is drawn. Out: the next state and the bits. Not its business: which
operation of a format draws them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known, numbers
from tilewright.core.graph import Node
from tilewright.core.types import DType, dtype_named, product, u32, u64
from tilewright.frontend.bits import read_as
from tilewright.frontend.moves import Moves

Words = Sequence[Node]
"""Vectors of u32 of one length: what a generator makes of each number of its counter."""

# --- Threefry -------------------------------------------------------------------------------------------------------

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(m: Moves, keys: tuple[Node, Node], x: tuple[Node, Node]) -> tuple[Node, Node]:
    """Twenty rounds of Threefry-2x32 (Salmon et al., 2011) on pairs of u32."""
    both = m.b(ops.bitwise_xor, *keys)
    schedule = (*keys, m.b(ops.bitwise_xor, both, m.b.const(PARITY, u32)))
    a, b = m.b(ops.add, x[0], schedule[0]), m.b(ops.add, x[1], schedule[1])
    for k in range(5):
        for n in ROTATIONS[k % 2]:
            a = m.b(ops.add, a, b)
            left = m.b(ops.shift_left, b, m.b.const(n, u32))
            turned = m.b(ops.bitwise_or, left, m.b(ops.shift_right, b, m.b.const(32 - n, u32)))
            b = m.b(ops.bitwise_xor, a, turned)
        a = m.b(ops.add, a, schedule[(k + 1) % 3])
        b = m.b(ops.add, m.b(ops.add, b, schedule[(k + 2) % 3]), m.b.const(k + 1, u32))
    return a, b


def _threefry_words(m: Moves, key: Node, counter: Words, count: int) -> Words:
    (first,) = counter
    numbers = m.b(ops.add, m.b(ops.iota, extent=count, dtype=u64), first)
    return threefry(m, _low_high(m, key), _low_high(m, numbers))


# --- Philox ---------------------------------------------------------------------------------------------------------

PHILOX_ROUNDS = 10
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(m: Moves, keys: tuple[Node, Node], x: Words) -> Words:
    """Ten rounds of Philox-4x32 (Salmon et al., 2011) on four u32."""
    for k in range(PHILOX_ROUNDS):
        (low, high), (low_2, high_2) = (
            _low_high(m, m.b(ops.mul, m.cast(word, u64), m.b.const(factor, u64)))
            for word, factor in zip((x[0], x[2]), PHILOX_FACTORS, strict=True)
        )
        first, second = (
            m.b(ops.add, key, m.b.const(step * k % 2**32, u32)) for key, step in zip(keys, PHILOX_STEPS, strict=True)
        )
        mixed = m.b(ops.bitwise_xor, m.b(ops.bitwise_xor, high_2, x[1]), first)
        x = (mixed, low_2, m.b(ops.bitwise_xor, m.b(ops.bitwise_xor, high, x[3]), second), low)
    return x


def _philox_words(m: Moves, key: Node, counter: Words, count: int) -> Words:
    """The counter has 128 bits; of a state of two numbers, which holds its lower half, the key is the upper one."""
    first = counter[0]
    low = m.b(ops.add, m.b(ops.iota, extent=count, dtype=u64), first)
    high = m.expand(counter[1] if len(counter) > 1 else key, (count,))
    high = m.b(ops.add, high, m.cast(m.b(ops.lt, low, first), u64))
    return philox(m, _low_high(m, key), (*_low_high(m, low), *_low_high(m, high)))


# --- calls ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Generator:
    """``words(moves, key, counter, count)``; each number of the counter gives ``n_words`` words of 32 bits.

    The words of a number lie side by side along one axis of the result: of the flat one, or of the one that
    ``axis_of`` chooses by its sizes.
    """

    words: Callable[[Moves, Node, Words, int], Words]
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


def _low_high(m: Moves, x: Node) -> tuple[Node, Node]:
    """The halves of u64."""
    return m.cast(x, u32), m.cast(m.b(ops.shift_right, x, m.b.const(32, u64)), u32)


def drawn_bits(m: Moves, algorithm: str, state: Node, dtype: DType, shape: tuple[int, ...]) -> tuple[Node, Node]:
    """The state after it, and bits: a key and a counter, whose numbers become words; 64 bits are two of them."""
    generator = GENERATORS.get(algorithm)
    if generator is None:
        raise OpError(f"the generator {algorithm} is not known", remedy=f"use one of {', '.join(GENERATORS)}")
    n, n_state = product(shape), product(state.shape)
    is_state = len(state.shape) == 1 and n_state in generator.state_sizes and state.dtype is u64
    if not dtype.is_integer or dtype.bits < 8 or not is_state:
        sizes = " or ".join(map(str, generator.state_sizes))
        raise OpError(f"random {dtype} of {state.type}", remedy=f"draw integers of a state of {sizes} numbers of u64")
    assert is_known(n) and is_known(n_state)
    key, *counter = (m.reshape(m.slice(state, 0, k, k + 1), ()) for k in range(n_state))
    drawn, axis = ((n,), 0) if generator.axis_of is None or not shape else (shape, generator.axis_of(shape))
    bits, count = _drawn(m, generator, key, counter, drawn, axis, is_wide=dtype.bits == 64)
    bits = m.reshape(m.cast(bits, dtype_named(f"u{dtype.bits}")), shape)
    return advanced(m, state, count), read_as(m.b, bits, dtype)


def advanced(m: Moves, state: Node, count: int) -> Node:
    """The state after ``count`` numbers of its counter, with the carry from the counter's lower half."""
    (n_state,) = numbers(state.shape)
    key, first, *upper = (m.slice(state, 0, k, k + 1) for k in range(n_state))
    low = m.b(ops.add, first, m.b.const(count, u64))
    carry = m.cast(m.b(ops.lt, low, first), u64)
    return m.b(ops.concat, key, low, *(m.b(ops.add, high, carry) for high in upper), axis=0)


def _drawn(
    m: Moves, generator: _Generator, key: Node, counter: Words, shape: tuple[int, ...], axis: int, *, is_wide: bool
) -> tuple[Node, int]:
    """Bits of ``shape``, whose words lie side by side along ``axis``, and how many numbers of the counter they took."""
    side_by_side = generator.n_words // 2 if is_wide else generator.n_words
    blocks = (*shape[:axis], -(-shape[axis] // side_by_side), *shape[axis + 1 :])
    count = math.prod(blocks)
    words = [
        m.reshape(word, (*blocks[: axis + 1], 1, *blocks[axis + 1 :]))
        for word in generator.words(m, key, counter, count)
    ]
    if is_wide:
        words = [_joined(m, *words[k : k + 2]) for k in range(0, len(words), 2)]
    whole = m.b(ops.concat, *words, axis=axis + 1)
    whole = m.reshape(whole, (*blocks[:axis], blocks[axis] * side_by_side, *blocks[axis + 1 :]))
    return m.slice(whole, axis, 0, shape[axis]), count


def _joined(m: Moves, low: Node, high: Node) -> Node:
    """Two words as one of u64."""
    return m.b(ops.bitwise_or, m.cast(low, u64), m.b(ops.shift_left, m.cast(high, u64), m.b.const(32, u64)))
