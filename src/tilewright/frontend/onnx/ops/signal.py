"""Converters of ONNX signal processing: Fourier transforms, frames, mel filters; determinants.

In: a ``Call``. Out: nodes of the graph IR. A transform is computed in f64 and rounded once, as NumPy does, by which
ONNX states its examples; but the inverse of f32, of a length with small factors, is in f32 and in NumPy's order of
additions.
Not its business: windows, which ONNX defines by other ops; how one axis is transformed (``fourier``).
"""

from __future__ import annotations

import math

import numpy as np

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import f32, f64, i64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import factors_in_order, inverse_in_order, transform
from tilewright.frontend.homes import TyingBuilder
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table

MAX_ELIMINATED = 32


def _roots(c: Call, n: Dim, n_out: Dim, sign: float) -> tuple[Node, Node]:
    """cos and sin of ``sign * 2 pi j k / n`` for j < n, k < n_out, f64[n, n_out]; j k is taken modulo n first."""
    m = Formula(c)
    rows, columns = c.reshape(m.steps(n), (n, 1)), c.reshape(m.steps(n_out), (1, n_out))
    turn = c.cast(m.mod(m.mul(rows, columns), c.dim_value(n)), f64)
    angle = m.div(m.mul(turn, sign * 2 * math.pi), c.cast(c.dim_value(n), f64))
    return c(ops.cos, angle), c(ops.sin, angle)


def fourier(c: Call, x: Node, n: Dim, *, inverse: bool, onesided: bool) -> Node:
    """The transform of length ``n`` over the second last axis of ``[..., signal, 1 or 2]``, to ``[..., n_out, 2]``.

    Onesided, the inverse takes the first half of a symmetric spectrum and gives a real signal, ``[..., n, 1]``.
    """
    m = Formula(c)
    dtype, axis = x.dtype, len(x.shape) - 2
    as_numpy = inverse and not onesided and dtype is f32 and _width(c, x) == 2
    in_order = factors_in_order(n) if as_numpy and is_known(n) else None
    x = x if in_order else c.cast(x, f64)
    if inverse and onesided:
        x = _mirrored(c, x, n)
    x = _resized(c, x, axis, n)
    parts = [c.reshape(c.slice_axis(x, axis + 1, k, k + 1), x.shape[:-1]) for k in range(_width(c, x))]
    n_out = expr.floordiv(n, 2) + 1 if onesided and not inverse else n
    if known_over(n, 0):
        signal = Pair(parts[0], parts[1] if len(parts) == 2 else c.full(0.0, x.dtype, x.shape[:-1]))
        b, sign = TyingBuilder(c.emitter.pool, c.loc, c.emitter.homes), 1 if inverse else -1
        made = inverse_in_order(b, signal, in_order) if in_order else transform(b, signal, sign)
        found = [c.slice_axis(p, axis, 0, n_out) for p in (made.re, made.im)]
    else:
        found = _by_definition(c, parts, n, n_out, inverse)
    found = found[:1] if inverse and onesided else found
    if inverse:
        size = c.cast(c.dim_value(n), x.dtype)
        # NumPy multiplies by the factor, which rounds otherwise
        found = [m.mul(p, m.div(1.0, size)) if in_order else m.div(p, size) for p in found]
    columns = [c.reshape(p, (*p.shape, 1)) for p in found]
    y = columns[0] if len(columns) == 1 else c(ops.concat, *columns, axis=axis + 1)
    return c.cast(y, dtype)


def _by_definition(c: Call, parts: list[Node], n: Dim, n_out: Dim, inverse: bool) -> list[Node]:
    """Products with all roots of unity, for a length that is not known."""
    m = Formula(c)
    cos, sin = _roots(c, n, n_out, 1.0 if inverse else -1.0)
    real, imaginary = c(ops.matmul, parts[0], cos), c(ops.matmul, parts[0], sin)
    if len(parts) == 2:
        real = m.sub(real, c(ops.matmul, parts[1], sin))
        imaginary = m.add(imaginary, c(ops.matmul, parts[1], cos))
    return [real, imaginary]


def _width(c: Call, x: Node) -> int:
    width = x.shape[-1]
    if not is_known(width) or width not in (1, 2):
        c.refuse(f"the last dimension must be 1 (real) or 2 (complex), not {width}")
    return width


def _mirrored(c: Call, x: Node, n: Dim) -> Node:
    """A half spectrum with its conjugate behind it."""
    axis = len(x.shape) - 2
    n_half = expr.floordiv(n, 2) + 1
    x = _resized(c, x, axis, n_half)
    tail = c(ops.reverse, c.slice_axis(x, axis, 1, n - n_half + 1), axes=(axis,))
    signs = c.const(np.array([1.0, -1.0][: _width(c, x)]), f64)
    return c(ops.concat, x, c(ops.mul, tail, signs), axis=axis)


def _resized(c: Call, x: Node, axis: int, n: Dim) -> Node:
    """Cut off, or filled up with zeros, to ``n`` along an axis."""
    have = x.shape[axis]
    if have == n:
        return x
    kept = c.slice_axis(x, axis, 0, expr.minimum(have, n))
    pads = [(0, 0)] * len(x.shape)
    pads[axis] = (0, n - kept.shape[axis])  # type: ignore[assignment]
    return c(ops.pad, kept, c.const(0, x.dtype), pads=tuple(pads), mode="constant")


def _dft(c: Call) -> Node:
    x, length = c.x(0), c.opt(1)
    rank = len(x.shape)
    axis_node = c.opt(2) if c.opset >= 20 else None
    axis = int(c.number(axis_node, "axis")) if axis_node is not None else (-2 if c.opset >= 20 else c.int_("axis", 1))
    axis = c.axis(axis, rank)
    if axis == rank - 1:
        c.refuse("the last axis holds the real and imaginary parts and can't be transformed")
    inverse, onesided = c.flag("inverse"), c.flag("onesided")
    default = (x.shape[axis] - 1) * 2 if inverse and onesided else x.shape[axis]
    n = c.dims(length, "dft_length")[0] if length is not None else default
    order = [k for k in range(rank - 1) if k != axis] + [axis, rank - 1]
    y = fourier(c, c.transpose(x, order), n, inverse=inverse, onesided=onesided)
    return c.transpose(y, [order.index(k) for k in range(rank)])


def _stft(c: Call) -> Node:
    """Frames of the signal, each times the window, transformed."""
    m = Formula(c)
    signal, window, length = c.x(0), c.opt(2), c.opt(3)
    step = int(c.number(c.x(1), "frame_step"))
    if step < 1:
        c.refuse(f"frame_step {step} must be positive")
    if length is None and window is None:
        c.refuse("needs a window or frame_length")
    size = c.dims(length, "frame_length")[0] if length is not None else window.shape[0] if window is not None else 0
    x = signal if len(signal.shape) == 3 else c.reshape(signal, (*signal.shape, 1))
    n_frames = expr.floordiv(x.shape[1] - size, step) + 1
    starts = c.reshape(m.mul(m.steps(n_frames), step), (n_frames, 1))
    places = m.add(starts, c.reshape(m.steps(size), (1, size)))
    frames = c(ops.gather, x, places, axis=1)
    if window is not None:
        spread = c.reshape(_resized(c, c.cast(window, x.dtype), 0, size), (size, 1))
        frames = m.mul(frames, spread)
    return fourier(c, frames, size, inverse=False, onesided=c.flag("onesided", True))


def _mel_weight_matrix(c: Call) -> Node:
    """Triangular filters on the mel scale; all operands are numbers."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    n_mels, n_dft, rate, low, high = (c.number(c.x(k), name) for k, name in enumerate(names))
    n_bins = int(n_dft) // 2 + 1
    if n_mels < 1 or n_dft < 1 or rate < 1 or low < 0 or high <= low or n_bins * n_mels > 1 << 26:
        c.refuse(f"{dict(zip(names, (n_mels, n_dft, rate, low, high), strict=True))} make no filters")
    mels = [2595 * math.log10(1 + f / 700) for f in (low, high)]
    edges = mels[0] + np.arange(int(n_mels) + 2) * (mels[1] - mels[0]) / (n_mels + 2)
    bins = ((n_dft + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate).astype(np.int64)
    if bins.max() >= n_bins:
        c.refuse(f"upper_edge_hertz {high} lies above half of the sample rate {rate}")
    j = np.arange(n_bins)[:, None]
    left, centre, right = bins[:-2], bins[1:-1], bins[2:]
    with np.errstate(all="ignore"):
        rising = np.where((j >= left) & (j <= centre), (j - left) / (centre - left), 0.0)
        falling = np.where((j >= centre) & (j < right), (right - j) / (right - centre), 0.0)
    rising = np.where(left == centre, (j == centre).astype(float), rising)
    weights = np.where((j >= centre) & (j < right), falling, rising)
    return c.const(weights, c.dtype("output_datatype", f32))


def _det(c: Call) -> Node:
    """By elimination with the largest pivot of each column, unrolled."""
    m = Formula(c)
    x = c.x(0)
    n = x.shape[-1]
    if len(x.shape) < 2 or not is_known(n) or x.shape[-2] != n or n > MAX_ELIMINATED:
        c.refuse(f"takes square matrices of at most {MAX_ELIMINATED} rows, not {x.type}", "fix the dimensions")
    batch = x.shape[:-2]
    total = c.full(1, x.dtype, batch)
    for _ in range(n):
        size = x.shape[-1]
        column = c.reshape(c.slice_axis(x, len(batch) + 1, 0, 1), (*batch, size))
        at = c(ops.argmax, c(ops.abs, column), axis=len(batch), keepdims=True)
        place = c.expand(c.reshape(at, (*batch, 1, 1)), (*batch, 1, size))
        pivot_row = c(ops.gather_elements, x, place, axis=len(batch))
        pivot = c.reshape(c.slice_axis(pivot_row, len(batch) + 1, 0, 1), batch)
        swapped = m.ne(c.reshape(at, batch), c.const(0, i64))
        total = m.mul(total, m.where(swapped, c(ops.neg, pivot), pivot))  # each exchange of rows turns the sign
        if size == 1:
            break
        first = c.slice_axis(x, len(batch), 0, 1)
        rest = c.slice_axis(x, len(batch), 1, size)
        rows = c.reshape(m.steps(size), (size, 1))
        is_pivot = m.eq(c.slice_axis(rows, 0, 1, size), c.reshape(at, (*batch, 1, 1)))
        rest = m.where(is_pivot, first, rest)  # the first row takes the pivot row's place
        # a pivot of 0 has made the result 0: the rest must only not be NaN
        safe = m.where(m.eq(pivot, 0.0), 1.0, pivot)
        factor = m.div(c.slice_axis(rest, len(batch) + 1, 0, 1), c.reshape(safe, (*batch, 1, 1)))
        rest = m.sub(rest, m.mul(factor, pivot_row))
        x = c.slice_axis(rest, len(batch) + 1, 1, size)
    return total


TABLE: Table = {"DFT": _dft, "Det": _det, "MelWeightMatrix": _mel_weight_matrix, "STFT": _stft}
