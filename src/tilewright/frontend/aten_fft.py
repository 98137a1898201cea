"""ATen's Fourier transforms: ``_fft_r2c``, ``_fft_c2c`` and ``_fft_c2r`` over any axes.

In: calls on reals or pairs. Out: pairs, or nodes of reals. Not its business: shifts and windows, which ATen spells out;
how one axis is transformed (``fourier``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.frontend.aten_call import Call, Result, Unsupported, slice_axis, transpose
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import transform


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
    _static(x.shape[axis])
    rank = len(x.shape)
    perm = [k for k in range(rank) if k != axis] + [axis]
    back = [perm.index(k) for k in range(rank)]
    last = Pair(transpose(b, x.re, perm), transpose(b, x.im, perm))
    made = transform(b, last, sign)
    return Pair(transpose(b, made.re, back), transpose(b, made.im, back))


TABLE: Mapping[str, Callable[[Call], Result]] = {
    "_fft_c2c.default": _fft_c2c, "_fft_r2c.default": _fft_r2c, "_fft_c2r.default": _fft_c2r,
}  # fmt: skip
