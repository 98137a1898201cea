"""Random bits from a state: Threefry and Philox as XLA's CPU has them.

In: calls of ``rng_bit_generator``. Out: the next state and the bits. JAX's own keys are not made here: JAX writes
Threefry as arithmetic. Not its business: ``rng``, whose numbers no specification fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import dtype_named, product, u32, u64
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result

Convert = Callable[[Operation], Result]

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


def _low_high(c: Operation, x: Node) -> tuple[Node, Node]:
    """The halves of u64."""
    return c.cast(x, u32), c.cast(c.b(ops.shift_right, x, c.b.const(32, u64)), u32)


def _rng_bit_generator(c: Operation) -> Result:
    """Threefry over a counter: 32 bits of each half for each number, or both for one of 64 bits."""
    algorithm = c.text("rng_algorithm").rstrip(">").split()[-1]
    if algorithm != "THREE_FRY":
        raise NoForm(f"the generator {algorithm}", "use keys of JAX's default implementation, threefry2x32")
    state, t = c.node(0), c.type(1)
    shape = tuple(n for n in t.shape if n is not None)
    if t.dtype.is_float or t.dtype.bits < 8 or state.shape != (2,):
        raise NoForm(f"random {t.dtype} of a state of {state.shape}", "draw unsigned integers of two numbers")
    n = product(shape)
    assert is_known(n)
    wide = t.dtype.bits == 64
    blocks = n if wide else (n + 1) // 2
    key, first = (c.reshape(c.slice(state, 0, k, k + 1), ()) for k in range(2))
    counter = c.b(ops.add, c.b(ops.iota, extent=blocks, dtype=u64), first)
    a, b = threefry(c, _low_high(c, key), _low_high(c, counter))
    if wide:
        high = c.b(ops.shift_left, c.cast(b, u64), c.b.const(32, u64))
        bits = c.b(ops.bitwise_or, c.cast(a, u64), high)
    else:
        bits = c.slice(c.b(ops.concat, a, b, axis=0), 0, 0, n)
        bits = c.cast(bits, dtype_named(f"u{t.dtype.bits}"))
    after = c.b(ops.add, first, c.b.const(blocks, u64))
    moved = c.b(ops.concat, c.reshape(key, (1,)), c.reshape(after, (1,)), axis=0)
    made = c.reshape(bits, shape)
    return [moved, made if made.dtype is t.dtype else c.b(ops.bitcast, made, dtype=t.dtype)]


def _rng(c: Operation) -> Result:
    raise NoForm("random numbers without a state", "draw them with jax.random and a key")


TABLE: Mapping[str, Convert] = {"stablehlo.rng_bit_generator": _rng_bit_generator, "stablehlo.rng": _rng}
