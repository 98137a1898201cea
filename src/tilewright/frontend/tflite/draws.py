"""Operators that draw random numbers by seeds in the file: LiteRT's, number for number.

In: an operator whose last operand is the state of its generator, Philox's key and counter. Out: what is drawn, and the
state behind it, with which the next call goes on. Not its business: keeping the state (``walk``), the generator
(``frontend.random_bits``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import Array, DType
from tilewright.frontend.bits import read_as
from tilewright.frontend.random_bits import advanced, drawn_bits
from tilewright.frontend.tflite.call import Converter, TfliteCall, check_size

LEAST_UNIFORM = 1e-7
"""What a uniform number counts as at least where its logarithm is taken."""
SKIPPED_A_SAMPLE = 2 * 256
"""How far the counter goes on for each class that is drawn, in numbers of the counter, however many were used."""
SAMPLES_TOGETHER = 4
"""To a multiple of how many the classes of a row are rounded for that."""


def first_state(options: Any) -> Array:
    """The generator's state before the first call. Of the file's seeds of 64 bits LiteRT reads the lower 32."""
    given = np.array([0, 0] if options is None else [options.Seed(), options.Seed2()], np.int64)
    key, upper = given.astype(np.int32).astype(np.int64).view(np.uint64)
    if key == upper == 0:
        raise OpError(
            "both seeds are 0, with which LiteRT draws other numbers in every process",
            remedy="convert the model with a seed, or pass the numbers as an argument",
        )
    return np.array([key, 0, upper], np.uint64)


def _words(c: TfliteCall, n: int) -> tuple[Node, Node]:
    """The state after ``n`` words of 32 bits, and these; all of a number of the counter's are used up."""
    check_size(n)
    return drawn_bits(c, "PHILOX", c.x(len(c.inputs) - 1), types.u32, (n,))


def _mantissa(c: TfliteCall, bits: Node, whole: DType, of: DType) -> Node:
    """Floats from 0 to before 1 with these bits behind the point."""
    ones = int(np.ones((), of.numpy).view(whole.numpy))
    return c.b(ops.sub, read_as(c.b, c.b(ops.bitwise_or, bits, c.b.const(ones, whole)), of), c.b.const(1, of))


def _uniform_of(c: TfliteCall, words: Node) -> Node:
    bits = c.b(ops.bitwise_and, words, c.b.const(2**23 - 1, types.u32))
    return _mantissa(c, bits, types.u32, types.f32)


def _checked(c: TfliteCall) -> int:
    """How many floats are drawn, whose shape the file states."""
    if c.dtypes[0] is not types.f32:
        raise OpError(f"random {c.dtypes[0]} is not drawn by LiteRT", remedy="draw f32, and cast them")
    if tuple(c.ints(0)) != c.shapes[0]:
        raise OpError(
            f"the shape {c.ints(0)} is not the result's, {list(c.shapes[0])}", remedy="convert the model anew"
        )
    return math.prod(c.shapes[0])


def _uniform(c: TfliteCall) -> Sequence[Node]:
    state, words = _words(c, _checked(c))
    return c.shaped(_uniform_of(c, words), c.shapes[0]), state


def _normal(c: TfliteCall) -> Sequence[Node]:
    """Pairs by Box and Muller's method."""
    n = _checked(c)
    state, words = _words(c, n + n % 2)
    pairs = c.shaped(_uniform_of(c, words), ((n + n % 2) // 2, 2))
    first, second = (c.slice(pairs, 1, k, k + 1) for k in range(2))
    log = c.b(ops.log, c.b(ops.maximum, first, c.number(LEAST_UNIFORM, first)))
    far = c.b(ops.sqrt, c.b(ops.mul, c.number(-2, log), log))
    angle = c.b(ops.mul, c.number(2 * math.pi, second), second)
    both = c.b(ops.concat, *(c.b(ops.mul, c.b(f, angle), far) for f in (ops.sin, ops.cos)), axis=1)
    return c.shaped(c.slice(c.shaped(both, (n + n % 2,)), 0, 0, n), c.shapes[0]), state


def _multinomial(c: TfliteCall) -> Sequence[Node]:
    """Classes by how many sums of the probabilities before them a uniform number passes, in f64."""
    logits = c.x(0)
    (batch, n_classes), count = c.size(logits), math.prod(c.ints(1))
    if c.shapes[0] != (batch, count) or not n_classes:
        raise OpError(
            f"{count} of {n_classes} classes for each of {batch} rows are not {list(c.shapes[0])}",
            remedy="convert the model anew",
        )
    check_size(batch * count * n_classes)
    state = c.x(len(c.inputs) - 1)
    halves = c.shaped(_words(c, 2 * batch * count)[1], (batch, count, 2))
    high, low = (c.cast(c.shaped(c.slice(halves, 2, k, k + 1), (batch, count, 1)), types.u64) for k in range(2))
    high = c.b(ops.shift_left, c.b(ops.bitwise_and, high, c.b.const(2**20 - 1, types.u64)), c.b.const(32, types.u64))
    share = _mantissa(c, c.b(ops.bitwise_or, high, low), types.u64, types.f64)
    is_finite = c.b(ops.lt, c.b(ops.abs, logits), c.number(math.inf, logits))
    least = c.number(float(np.finfo(np.float32).min), logits)
    most = c.b(ops.reduce_max, c.b(ops.where, is_finite, logits, least), axes=(1,), keepdims=True)
    above = c.b(ops.sub, c.cast(logits, types.f64), c.cast(most, types.f64))
    weights = c.b(ops.where, is_finite, c.b(ops.exp, above), c.b.const(0, types.f64))
    sums = c.b(ops.cumsum, weights, axis=1)
    sought = c.b(ops.mul, share, c.shaped(c.slice(sums, 1, n_classes - 1, n_classes), (batch, 1, 1)))
    passed = c.b(ops.le, c.shaped(sums, (batch, 1, n_classes)), sought)
    found = c.b(ops.reduce_sum, c.cast(passed, types.i64), axes=(2,), keepdims=False)
    rounded = -(-count // SAMPLES_TOGETHER) * SAMPLES_TOGETHER
    return c.cast(found, c.dtypes[0]), advanced(c, state, batch * rounded * SKIPPED_A_SAMPLE)


TABLE: Mapping[str, Converter] = {
    "RANDOM_UNIFORM": _uniform, "RANDOM_STANDARD_NORMAL": _normal, "MULTINOMIAL": _multinomial,
}  # fmt: skip
