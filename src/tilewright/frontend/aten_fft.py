"""ATen's Fourier transforms: ``_fft_r2c``, ``_fft_c2c`` and ``_fft_c2r`` over any axes.

In: calls on reals or pairs. Out: pairs, or nodes of reals. Not its business: shifts and windows, which ATen spells out.

One axis of ``n = n1 * n2`` elements is transformed in two steps (Cooley and Tukey 1965): with ``j = j1*n2 + j2`` and
``k = k1 + n1*k2``, products with the ``n1 x n1`` matrix over ``j1``, a twist by ``exp(-2 pi i j2 k1 / n)``, and the
same anew for ``n2``. A length that has no factor up to ``DIRECT`` but itself is one product with its whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.types import Array, DType
from tilewright.frontend.aten_call import Call, Result, Unsupported, reshape, slice_axis, transpose
from tilewright.frontend.complex_pairs import Pair

DIRECT = 32
LARGEST_MATRIX = 2048


def _fft_c2c(c: Call) -> Result:
    x = c["self"]
    assert isinstance(x, Pair)
    axes = [d % len(x.shape) for d in c["dim"]]
    for axis in axes:
        x = _transform(c.b, x, axis, -1 if c["forward"] else 1)
    return _normalised(c, x, axes, x.shape)


def _fft_r2c(c: Call) -> Result:
    x = c.tensor("self")
    axes = [d % len(x.shape) for d in c["dim"]]
    sizes = x.shape
    made = _transform(c.b, Pair(x, c.b(ops.full, value=0.0, dtype=x.dtype, shape=x.shape)), axes[-1], -1)
    if c["onesided"]:
        length = _static(sizes[axes[-1]]) // 2 + 1
        made = Pair(*(slice_axis(c.b, part, axes[-1], 0, length) for part in (made.re, made.im)))
    for axis in axes[:-1]:
        made = _transform(c.b, made, axis, -1)
    return _normalised(c, made, axes, sizes)


def _fft_c2r(c: Call) -> Result:
    x = c["self"]
    assert isinstance(x, Pair)
    axes = [d % len(x.shape) for d in c["dim"]]
    for axis in axes[:-1]:
        x = _transform(c.b, x, axis, 1)
    last, n = axes[-1], _static(c["last_dim_size"])
    full = Pair(_mirrored(c.b, x.re, last, n, 1), _mirrored(c.b, x.im, last, n, -1))
    made = _transform(c.b, full, last, 1)
    return _normalised(c, made, axes, made.shape).re


def _mirrored(b: Builder, x: Node, axis: int, n: int, sign: int) -> Node:
    """All ``n`` elements of a part of a Hermitian signal from its first half."""
    half = slice_axis(b, x, axis, 0, n // 2 + 1)
    rest = (n - 1) // 2
    if rest == 0:
        return slice_axis(b, half, axis, 0, n)
    tail = b(ops.reverse, slice_axis(b, half, axis, 1, rest), axes=(axis,))
    return b(ops.concat, half, tail if sign > 0 else b(ops.neg, tail), axis=axis)


def _normalised(c: Call, x: Pair, axes: list[int], sizes: tuple[object, ...]) -> Pair:
    n = math.prod(_static(sizes[a]) for a in axes)
    mode = c["normalization"]
    if mode == 0 or n == 0:
        return x
    scale = c.b.const(1 / math.sqrt(n) if mode == 1 else 1 / n, x.dtype)
    return Pair(c.b(ops.mul, x.re, scale), c.b(ops.mul, x.im, scale))


def _static(n: object) -> int:
    if not isinstance(n, int):
        raise Unsupported("a Fourier transform of a symbolic length", "make that dimension static")
    return n


def _transform(b: Builder, x: Pair, axis: int, sign: int) -> Pair:
    """The unscaled transform along one axis; ``sign`` is the exponent's."""
    n, rank = _static(x.shape[axis]), len(x.shape)
    perm = [k for k in range(rank) if k != axis] + [axis]
    back = [perm.index(k) for k in range(rank)]
    last = Pair(transpose(b, x.re, perm), transpose(b, x.im, perm))
    made = _along_last(b, last, n, sign)
    return Pair(transpose(b, made.re, back), transpose(b, made.im, back))


def _along_last(b: Builder, x: Pair, n: int, sign: int) -> Pair:
    n1 = _factor(n)
    if n1 == n:
        if n > LARGEST_MATRIX:
            raise Unsupported(f"a Fourier transform of the prime length {n}", "pad to a length with small factors")
        return _times(b, x, *_matrix(n, sign), x.dtype)
    n2 = n // n1
    outer = x.shape[:-1]
    blocks = Pair(*(reshape(b, part, (*outer, n1, n2)) for part in (x.re, x.im)))
    swap = (*range(len(outer)), len(outer) + 1, len(outer))
    first = Pair(*(transpose(b, part, swap) for part in (blocks.re, blocks.im)))
    columns = _times(b, first, *_matrix(n1, sign), x.dtype)  # [..., j2, k1]
    angle = sign * 2 * math.pi * (np.outer(np.arange(n2), np.arange(n1)) % n) / n
    twist = Pair(b.const(np.cos(angle), x.dtype), b.const(np.sin(angle), x.dtype))
    turned = product(b, columns, twist)
    rows = Pair(*(transpose(b, part, swap) for part in (turned.re, turned.im)))
    made = _along_last(b, rows, n2, sign)  # [..., k1, k2]
    return Pair(*(reshape(b, transpose(b, part, swap), (*outer, n)) for part in (made.re, made.im)))


def _factor(n: int) -> int:
    """The largest factor of ``n`` up to ``DIRECT``, or the least one beyond."""
    if n <= DIRECT:
        return n
    small = [f for f in range(DIRECT, 1, -1) if n % f == 0]
    return small[0] if small else next(f for f in range(DIRECT + 1, n + 1) if n % f == 0)


def _matrix(n: int, sign: int) -> tuple[Array, Array]:
    angle = sign * 2 * math.pi * (np.outer(np.arange(n), np.arange(n)) % max(n, 1)) / max(n, 1)
    return np.cos(angle), np.sin(angle)


def _times(b: Builder, x: Pair, cosines: Array, sines: Array, dtype: DType) -> Pair:
    """``x @ (cosines + i * sines)`` over the last axis."""
    c, s = b.const(cosines, dtype), b.const(sines, dtype)
    one = len(x.shape) == 1
    re, im = (reshape(b, part, (1, *part.shape)) if one else part for part in (x.re, x.im))
    real = b(ops.sub, b(ops.matmul, re, c), b(ops.matmul, im, s))
    imaginary = b(ops.add, b(ops.matmul, re, s), b(ops.matmul, im, c))
    return Pair(*(reshape(b, part, x.shape) if one else part for part in (real, imaginary)))


def product(b: Builder, x: Pair, y: Pair) -> Pair:
    """The complex product, element by element."""
    real = b(ops.sub, b(ops.mul, x.re, y.re), b(ops.mul, x.im, y.im))
    return Pair(real, b(ops.add, b(ops.mul, x.re, y.im), b(ops.mul, x.im, y.re)))


TABLE: Mapping[str, Callable[[Call], Result]] = {
    "_fft_c2c.default": _fft_c2c, "_fft_r2c.default": _fft_r2c, "_fft_c2r.default": _fft_c2r,
}  # fmt: skip
