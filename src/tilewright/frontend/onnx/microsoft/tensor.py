"""Converters of ONNX Runtime's own ops on plain tensors: older spellings of standard ops, transforms, distances.

In: a ``Call``. Out: nodes of the graph IR. Not its business: fused, quantised and attention ops
(this folder's other files).
"""

from __future__ import annotations

import math

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import known_under
from tilewright.core.graph import Node
from tilewright.core.types import f32, i64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Converter, Results, Table
from tilewright.frontend.onnx.ops import index, movement, source
from tilewright.frontend.onnx.ops.signal import fourier

MAX_GRAM = 64


def _expand_dims(c: Call) -> Node:
    x = c.x(0)
    axis = c.axis(int(c.number(c.x(1), "axis")), len(x.shape) + 1)
    return c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def _unique(c: Call) -> Results:
    """In order of occurrence: values, the place of each element among them, counts."""
    values, _, places, counts = index.unique(c, c.x(0), None, is_sorted=False)
    return values, places, counts


def _distances(c: Call) -> Node:
    """Between all rows of two matrices, by products: ``a^2 - 2 a b + b^2``."""
    m = Formula(c)
    a, b = c.x(0), c.x(1)
    rooted = c.choice("metric", ("sqeuclidean", "euclidean"), "sqeuclidean") == "euclidean"
    squares = [c(ops.reduce_sum, m.mul(x, x), axes=(1,), keepdims=False) for x in (a, b)]
    left, right = c.reshape(squares[0], (a.shape[0], 1)), c.reshape(squares[1], (1, b.shape[0]))
    product_ = c(ops.matmul, a, c.transpose(b, (1, 0)))
    y = m.max(m.add(m.sub(left, m.mul(product_, 2.0)), right), 0.0)
    return c(ops.sqrt, y) if rooted else y


def _unfold(c: Call) -> Node:
    """All windows along an axis, each as a new last axis."""
    m = Formula(c)
    x = c.x(0)
    axis, size, step = c.axis(c.int_("dim", -1), len(x.shape)), c.int_("size"), c.int_("step", 1)
    if size < 1 or step < 1:
        c.refuse(f"size={size} and step={step} must be positive")
    n = expr.floordiv(x.shape[axis] - size, step) + 1
    starts = c.reshape(m.mul(m.steps(n), step), (n, 1))
    y = c(ops.gather, x, m.add(starts, c.reshape(m.steps(size), (1, size))), axis=axis)
    order = [k for k in range(len(y.shape)) if k != axis + 1] + [axis + 1]
    return c.transpose(y, order)


def _no_repeats(c: Call) -> Node:
    """-inf for each token that would repeat an n-gram of the row."""
    m = Formula(c)
    ids, scores, n = c.cast(c.x(0), i64), c.x(1), c.int_("ngram_size")
    length = ids.shape[1]
    if not 1 <= n <= MAX_GRAM or known_under(length, n):
        c.refuse(f"ngram_size={n} does not fit rows of {length}", f"it must be 1 to {MAX_GRAM}")
    c.assume(length - n)
    count = length - n + 1
    tokens = c.slice_axis(ids, 1, n - 1, length)
    penalty = c.full(-math.inf, f32, tokens.shape)
    for k in range(n - 1):
        last = c.slice_axis(ids, 1, count + k, count + k + 1)
        penalty = m.where(m.eq(c.slice_axis(ids, 1, k, count + k), last), penalty, math.inf)
    return c(ops.scatter_elements, scores, tokens, c.cast(penalty, scores.dtype), axis=1, reduction="min")


def _complex_mul(conjugate: bool) -> Converter:
    """Products of pairs, real and imaginary part along the last axis; of the conjugate of the second."""

    def convert(c: Call) -> Node:
        m = Formula(c)
        (a, b), (x, y) = ((m.row(t, 0), m.row(t, 1)) for t in (c.x(0), c.x(1)))
        y = c(ops.neg, y) if conjugate else y
        parts = (m.sub(m.mul(a, x), m.mul(b, y)), m.add(m.mul(a, y), m.mul(b, x)))
        return c(ops.concat, *(c.reshape(p, (*p.shape, 1)) for p in parts), axis=len(parts[0].shape))

    return convert


def _real_transform(inverse: bool) -> Converter:
    """The one-sided transform along the last axis of a signal, or back from pairs."""

    def convert(c: Call) -> Node:
        x = c.x(0)
        if c.int_("signal_ndim") != 1 or c.int_("normalized") or not c.int_("onesided"):
            c.refuse("only one-sided transforms of one axis that are not normalised are supported", "export DFT nodes")
        if inverse:
            n = (x.shape[-2] - 1) * 2
            y = fourier(c, x, n, inverse=True, onesided=True)
            return c.reshape(y, y.shape[:-1])
        return fourier(c, c.reshape(x, (*x.shape, 1)), x.shape[-1], inverse=False, onesided=True)

    return convert


def _range(c: Call) -> Results:
    """The step is 1 where it is left out."""
    if c.opt(2) is None:
        c.inputs[2:] = [c.const(1, c.x(0).dtype)]
    return source.TABLE["Range"](c)


def _pad(c: Call) -> Results:
    """Pads may have a leading dimension of 1."""
    pads = c.x(1)
    c.inputs[1] = c.reshape(pads, (pads.type.n_elements,))
    c.opset = 13
    return movement.TABLE["Pad"](c)


def _inverse(c: Call) -> Node:
    """By LU with pivots: two triangular systems whose right sides are the rows of one in the pivots' order."""
    x = c.x(0)
    wide = c.cast(x, f32) if x.dtype.bits < 32 else x
    made, pivots, _ = c.results(c(ops.lu, wide))
    order = c(ops.pivot_order, pivots, rows=x.shape[-1])
    n, batch = x.shape[-1], x.shape[:-2]
    columns = c.reshape(c(ops.iota, extent=n, dtype=order.dtype), (1, n))
    right = c.cast(c(ops.eq, c.reshape(order, (*batch, n, 1)), columns), wide.dtype)
    first = c(ops.solve_triangular, made, right, upper=False, unit=True)
    return c.cast(c(ops.solve_triangular, made, first, upper=True, unit=False), x.dtype)


TABLE: Table = {
    "CDist": _distances,
    "ComplexMul": _complex_mul(False),
    "ComplexMulConj": _complex_mul(True),
    "ExpandDims": _expand_dims,
    "GatherND": index.TABLE["GatherND"],
    "Inverse": _inverse,
    "Irfft": _real_transform(True),
    "NGramRepeatBlock": _no_repeats,
    "Pad": _pad,
    "Range": _range,
    "Rfft": _real_transform(False),
    "Trilu": movement.TABLE["Trilu"],
    "UnfoldTensor": _unfold,
    "Unique": _unique,
}
