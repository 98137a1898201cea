"""The pass ``requantise``: what brings sums of integers back to bytes takes as few instructions as it can.

In: a graph whose products of bytes are sums in i32 with a scale, a bias and a function beside them (``integers``), and
tensors in f32 that are quantised. Out: the same bytes by fewer operations. Not its business: forming the products.

A 1x1 convolution of 64 channels multiplies 16 times for each vector of results, which is no more than what quantising
that vector costs, and a division of a vector takes as long as five multiplications or more. So two things matter:

* The scales of a sum and of its result are one factor, known at compile time; a bias that is a whole number of steps is
  added to the sum, and a ReLU whose limits are those of the bytes is what saturation does anyway.
* Elsewhere a limit that is that of the bytes goes, too, and the bits are those of a division, which this pass replaces
  by a product with the reciprocal as two floats, after it has proved for each scale that no float is rounded to another
  byte (``exact_factors``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array, DType
from tilewright.graph.facts import array_of, scalar
from tilewright.graph.forms.integers import SUM_LIMIT
from tilewright.ops.quant import QUANTISED
from tilewright.target.target import Target

DOUBT = 4 * float(np.finfo(np.float64).eps)
"""How far, relatively, a sum in f64 of the two products may be from the exact one that is rounded to f32."""


@dataclass(frozen=True)
class Requantise(Pass):
    """``quantize(f(cast(sums) * scale + bias))`` becomes ``cast(round(cast(sums + steps) * factor) + zero)``.

    Likewise ``round(f(cast(sums) * scale + bias) * factor)``, PyTorch's way to quantise. ``f`` is any chain of ReLU,
    minimum, maximum and clamp by constants. Other tensors are quantised by a product, too,
    where the machine has fused multiply-adds. It does not fire on scales for each channel or block of the result, on
    floats other than f32, and, for a product instead of a division, where some float would get another byte. Bytes of a
    sum of integers that are only added to another tensor stay floats.
    """

    name: ClassVar[str] = "requantise"
    has_fma: bool = True

    @staticmethod
    def on(target: Target) -> Requantise:
        """The pass for a machine."""
        return Requantise(has_fma=target.has_fma)

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        why = "a scale of a scale is one factor"
        sums = Rule("requantise-sums", (ops.quantize_linear,), _requantised, why)
        steps = Rule("round-scaled-sums", (ops.round,), _rounded_steps, why)
        others = Rule("quantise-by-product", (ops.quantize_linear,), _by_product, "no float gets another byte")
        graph = rewrite(graph, RuleTable([sums, steps, others] if self.has_fma else [sums, steps]), journal)
        # When all are rounded, so that it is known how often each of the new bytes is read.
        again = Rule("sum-of-rounded", (ops.add,), _sum_of_rounded, "limits and whole numbers are the same in floats")
        return rewrite(graph, RuleTable([again]), journal)


@dataclass(frozen=True)
class _Steps:
    """What ``quantize_linear`` is asked for: one scale and one zero point, known."""

    scale: np.float32
    zero: int
    dtype: DType

    def of(self, x: float) -> int:
        """The byte of a number."""
        with np.errstate(all="ignore"):
            steps = np.rint(np.float32(x) / self.scale) + np.float32(self.zero)
        return int(np.clip(steps, float(self.dtype.min), float(self.dtype.max)))


def _steps_of(node: Node) -> _Steps | None:
    x, scale, zero = node.inputs
    step, point = scalar(scale), scalar(zero)
    if x.dtype is not types.f32 or scale.type.rank or step is None or point is None or node.dtype not in QUANTISED:
        return None
    return _Steps(np.float32(step), int(point), node.dtype) if 0 < step < np.inf else None


def _rounded(b: Rewriting, x: Node, steps: _Steps, least: int, most: int) -> Node:
    """Numbers of steps as bytes from ``least`` to ``most``; conversions saturate."""
    y = b(ops.round, x)
    if steps.zero:
        y = b(ops.add, y, b.const(float(steps.zero), types.f32))
    if (least, most) != (steps.dtype.min, steps.dtype.max):
        y = b(ops.clamp, y, b.const(float(least), types.f32), b.const(float(most), types.f32))
    return b(ops.cast, y, dtype=steps.dtype)


# --- sums of integers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FactoredSums:
    """``clamp(cast(sums) * factor + bias, low, high)``, the bias being None for 0."""

    sums: Node
    factor: Array
    bias: Array | None = None
    low: float = -np.inf
    high: float = np.inf


def _scaled(node: Node) -> _FactoredSums | None:
    """What a tensor is made of, if it is made of sums of integers."""
    if node.op is ops.relu:
        return _limited(node.inputs[0], 0.0, np.inf)
    if node.op in (ops.maximum, ops.minimum, ops.clamp):
        x, *limits = node.inputs
        numbers = [scalar(c) if c.type.rank == 0 else None for c in limits]
        if None in numbers:
            return None
        known = [float(n) for n in numbers if n is not None]
        pair = (known[0], np.inf) if node.op is ops.maximum else (-np.inf, known[0])
        return _limited(x, *(known if node.op is ops.clamp else pair))
    if node.op is ops.add:
        x, c = node.inputs
        bias, found = array_of(c), _factored(x)
        return None if bias is None or found is None or x.shape != node.shape else replace(found, bias=bias)
    return _factored(node)


def _limited(x: Node, low: float, high: float) -> _FactoredSums | None:
    found = _scaled(x)
    if found is None or low > high:
        return None
    # The outer limits win, as min(max(x, low), high) does.
    return replace(found, low=min(max(found.low, low), high), high=min(max(found.high, low), high))


def _factored(node: Node) -> _FactoredSums | None:
    if node.op is not ops.mul:
        return None
    x, c = node.inputs
    factor = array_of(c)
    if factor is None or x.op is not ops.cast or x.inputs[0].dtype is not types.i32 or x.shape != node.shape:
        return None
    return _FactoredSums(x.inputs[0], factor) if np.isfinite(factor).all() else None


def _requantised(b: Rewriting, node: Node) -> Node | None:
    steps, found = _steps_of(node), _scaled(node.inputs[0])
    if steps is None or found is None:
        return None
    y = _by_one_factor(b, found, 1 / np.float64(steps.scale))
    return None if y is None else _rounded(b, y, steps, steps.of(found.low), steps.of(found.high))


def _rounded_steps(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    if x.op is not ops.mul:
        return None
    number, found = scalar(x.inputs[1]), _scaled(x.inputs[0])
    if found is None or number is None or x.inputs[1].type.rank or not 0 < number < np.inf:
        return None
    y = _by_one_factor(b, found, np.float64(number))
    if y is None:
        return None
    if (found.low, found.high) != (-np.inf, np.inf):
        with np.errstate(all="ignore"):
            limits = [np.float32(n) * np.float32(number) for n in (found.low, found.high)]
        y = b(ops.clamp, y, *[b.const(float(n), types.f32) for n in limits])
    return b(ops.round, y)


def _by_one_factor(b: Rewriting, found: _FactoredSums, scale: np.float64) -> Node | None:
    """``(cast(sums) * factor + bias) * scale`` with the scale in both; None where that leaves the numbers of f32."""
    with np.errstate(all="ignore"):
        factor = (found.factor * scale).astype(np.float32)
        bias = None if found.bias is None else (found.bias * scale).astype(np.float32)
    if not np.isfinite(factor).all() or (bias is not None and not np.isfinite(bias).all()):
        return None
    sums, whole = found.sums, _whole_steps(found)
    if whole is not None:
        sums, bias = _with_steps(b, sums, whole), None
    y = b(ops.mul, b(ops.cast, sums, dtype=types.f32), b.const(factor))
    return y if bias is None else b(ops.add, y, b.const(bias))


def _whole_steps(found: _FactoredSums) -> Array | None:
    """The bias as a number of steps of the sums, if it is one, and no sum with it leaves 32 bits."""
    if found.bias is None:
        return None
    with np.errstate(all="ignore"):
        steps = np.rint(found.bias / found.factor.astype(np.float64))
    most = np.abs(steps).max(initial=0)
    if not most + _greatest_sum(found.sums) <= SUM_LIMIT:
        return None
    whole = steps.astype(np.int32)
    return whole if (whole.astype(np.float32) * found.factor == found.bias).all() else None


def _greatest_sum(node: Node) -> float:
    """No sum of a product with constant weights, with a constant added, is greater."""
    if node.op in (ops.add, ops.sub):
        c = array_of(node.inputs[1])
        return np.inf if c is None else _greatest_sum(node.inputs[0]) + float(np.abs(c.astype(np.int64)).max(initial=0))
    if node.op not in (ops.conv, ops.matmul):
        return np.inf
    x, weights = node.inputs[0], array_of(node.inputs[1])
    if weights is None:
        return np.inf
    axes = tuple(range(1, weights.ndim)) if node.op is ops.conv else (weights.ndim - 2,)
    return float(np.abs(weights.astype(np.int64)).sum(axis=axes).max(initial=0)) * float(1 << x.dtype.bits)


def _with_steps(b: Rewriting, sums: Node, whole: Array) -> Node:
    if sums.op is ops.add and sums.inputs[1].op is CONST:
        known = array_of(sums.inputs[1])
        assert known is not None
        return b(ops.add, sums.inputs[0], b.const(np.asarray(known + whole, np.int32)))
    return b(ops.add, sums, b.const(whole))


# --- bytes that only a sum reads ------------------------------------------------------------------------------------


def _sum_of_rounded(b: Rewriting, node: Node) -> Node | None:
    """A sum with a product's result that is rounded to bytes on the way reads the rounded floats.

    Not when both operands are such: one of them is computed elsewhere, and is better a byte in memory.
    """
    found = [_as_floats(b, x) for x in node.inputs]
    if sum(f is not None for f in found) != 1:
        return None
    return b(ops.add, *[x if f is None else f for f, x in zip(found, node.inputs, strict=True)])


def _as_floats(b: Rewriting, node: Node) -> Node | None:
    """``dequantize(cast(clamp(round(x) + zero)))`` as ``clamp(round(x)) * scale``, for numbers that are no NaN."""
    if node.op is not ops.dequantize_linear or not b.read_once(node):
        return None
    x, scale, zero = node.inputs
    step, point = scalar(scale), scalar(zero)
    if x.op is not ops.cast or not b.read_once(x) or scale.type.rank or step is None or point is None:
        return None
    least, most, y = float(x.dtype.min), float(x.dtype.max), x.inputs[0]
    if y.op is ops.clamp:
        y, *limits = y.inputs
        least, most = (float(n) for c in limits if (n := scalar(c)) is not None)
    if point:
        if y.op is not ops.add or scalar(y.inputs[1]) != point:
            return None
        y = y.inputs[0]
    if y.op is not ops.round or _scaled_product(y.inputs[0]) is None:
        return None
    steps = b(ops.clamp, y, b.const(least - point, types.f32), b.const(most - point, types.f32))
    return b(ops.mul, steps, b.const(step, types.f32))


def _scaled_product(node: Node) -> _FactoredSums | None:
    """A product's sums with a factor and a bias: finite numbers."""
    if node.op is ops.add and node.inputs[1].op is CONST:
        node = node.inputs[0]
    return _factored(node)


# --- other tensors --------------------------------------------------------------------------------------------------


def _by_product(b: Rewriting, node: Node) -> Node | None:
    steps = _steps_of(node)
    factors = None if steps is None else exact_factors(float(steps.scale), steps.zero, steps.dtype)
    if steps is None or factors is None:
        return None
    high, low = factors
    x = _unlimited(b, node.inputs[0], steps)
    factor = b.const(high, types.f32)
    y = b(ops.mul, x, factor) if low == 0 else b(ops.mul_pair, x, factor, b.const(low, types.f32))
    return _rounded(b, y, steps, int(steps.dtype.min), int(steps.dtype.max))


def _unlimited(b: Rewriting, x: Node, steps: _Steps) -> Node:
    """``x`` before limits whose bytes are the least or the greatest one, as saturation gives these anyway.

    Where something else reads what is limited, that is kept: it would be a further tensor.
    """
    while b.read_once(x):
        limit = 0.0 if x.op is ops.relu else scalar(x.inputs[1]) if x.op in (ops.maximum, ops.minimum) else None
        if limit is None or np.isnan(limit) or x.inputs[0].type != x.type:
            break
        end = steps.dtype.max if x.op is ops.minimum else steps.dtype.min
        if steps.of(float(limit)) != end:
            break
        x = x.inputs[0]
    return x


def exact_factors(scale: float, zero: int, dtype: DType) -> tuple[float, float] | None:
    """``high`` and ``low`` by which ``rint(fma(x, high, x * low))`` gives every f32 the byte of ``rint(x / scale)``.

    None where these two do not. ``low`` is 0 for powers of two, whose reciprocal is exact; it is never negative, so
    that infinities stay infinite. Both expressions grow with ``x``, and so they are equal everywhere if they are equal
    around each place where the byte changes: there a few floats are compared. Of the two products' sum only f64 is at
    hand, so it is asked for the byte a little above and a little below itself, too.
    """
    info = np.finfo(np.float32)
    if not 4 * float(info.tiny) / float(info.eps) <= scale <= float(info.max) * float(info.eps):
        return None  # one of the factors is no normal number
    step, inverse = np.float32(scale), 1 / np.float64(np.float32(scale))
    high = np.float32(inverse)
    if np.float64(high) == inverse and np.frexp(step)[0] == 0.5:
        return float(high), 0.0
    # The first factor is rounded down, so that the second, the rest, is never negative.
    if high >= inverse:
        high = np.nextafter(high, np.float32(0))
    low = np.float32(inverse - np.float64(high))
    if not low >= info.tiny:
        return None
    steps = np.arange(int(dtype.min) - zero - 1, int(dtype.max) - zero + 1)
    near = ((steps + 0.5) * np.float64(step)).astype(np.float32)
    below = above = near
    floats = [near]
    for _ in range(2):  # ``near`` is rounded, and so is the quotient: the change may be one float off for each
        below, above = np.nextafter(below, np.float32(-np.inf)), np.nextafter(above, np.float32(np.inf))
        floats += [below, above]
    x = np.stack(floats)
    wanted = np.rint(x / step)
    # The farthest floats that are compared have the bytes of both sides, so the change itself lies between them.
    changes = np.array_equal(wanted[-2], steps) and np.array_equal(wanted[-1], steps + 1)
    found = x.astype(np.float64) * np.float64(high) + (x * low).astype(np.float64)
    ends = [np.rint((found * (1 + d)).astype(np.float32)) for d in (-DOUBT, DOUBT)]
    return (float(high), float(low)) if changes and all(np.array_equal(end, wanted) for end in ends) else None
