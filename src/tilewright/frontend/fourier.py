"""Fourier transforms along the last axis, as products with small matrices or as NumPy's sums.

In: pairs. Out: pairs, unscaled. Not its business: axes and scaling (``torch.aten.fft``, ``onnx.ops.signal``), lengths
of small factors, and those that a call decides (``ops.fourier``).

``transform``: a length ``n = n1 * n2`` goes in two steps (Cooley and Tukey 1965): with ``j = j1*n2 + j2`` and
``k = k1 + n1*k2``, products with the ``n1 x n1`` matrix over ``j1``, a twist by ``exp(-2 pi i j2 k1 / n)``, and the
same anew for ``n2``. A prime beyond ``LARGEST_MATRIX`` is a convolution with a chirp, of a longer length without large
factors (Bluestein 1970).

``inverse_in_order`` adds in the order of NumPy's transform (Reinecke's pocketfft): a pass for each factor 8, 4, 2, 3,
5, of a few additions per element. In fp32 the two differ by their rounding, about 1e-7 of the largest element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import Builder, Node
from tilewright.core.types import Array
from tilewright.core.types import product as product_of
from tilewright.frontend.complex_pairs import Pair, from_parts, join_parts, product
from tilewright.frontend.nodes import transpose
from tilewright.ops import fourier_chirp
from tilewright.ops.fourier import fits, fits_real

DIRECT = 32
LARGEST_MATRIX = 768
LONGEST_IN_ORDER = 1 << 14


def transform(b: Builder, x: Pair, sign: int) -> Pair:
    """The transform of the last axis; ``sign`` is the exponent's."""
    n = x.shape[-1]
    if not is_known(n) or fits(n, product_of(x.shape[:-1])):
        return from_parts(b, b(ops.fourier, join_parts(b, x), n=n, sign=sign))
    n1 = _factor(n)
    if n1 == n:
        return _by_chirp(b, x, n, sign) if n > LARGEST_MATRIX else _times(b, x, *_matrix(n, sign))
    n2 = n // n1
    outer = x.shape[:-1]
    blocks = Pair(*(b(ops.reshape, part, shape=(*outer, n1, n2)) for part in (x.re, x.im)))
    swap = (*range(len(outer)), len(outer) + 1, len(outer))
    first = Pair(*(b(ops.transpose, part, perm=swap) for part in (blocks.re, blocks.im)))
    columns = _times(b, first, *_matrix(n1, sign))  # [..., j2, k1]
    turned = product(b, columns, _roots(b, sign * np.outer(np.arange(n2), np.arange(n1)), n, x))
    rows = Pair(*(b(ops.transpose, part, perm=swap) for part in (turned.re, turned.im)))
    made = transform(b, rows, sign)  # [..., k1, k2]
    swapped = (b(ops.transpose, part, perm=swap) for part in (made.re, made.im))
    return Pair(*(b(ops.reshape, part, shape=(*outer, n)) for part in swapped))


def transform_of_real(b: Builder, x: Node, sign: int) -> Pair:
    """The first half, ``n // 2 + 1`` elements, of the transform of a real node's last axis."""
    n, outer = x.shape[-1], x.shape[:-1]
    if fits_real(n, product_of(outer)):
        return from_parts(b, b(ops.fourier, x, n=n, sign=sign, form="real"))
    made = transform(b, Pair(x, b(ops.full, value=0.0, dtype=x.dtype, shape=x.shape)), sign)
    return Pair(*(_first(b, part, floordiv(n, 2) + 1) for part in (made.re, made.im)))


def transform_to_real(b: Builder, x: Pair, n: Dim, sign: int) -> Node:
    """The real signals of length ``n`` of whose transforms ``x`` is the first half."""
    half = Pair(*(_first(b, part, floordiv(n, 2) + 1) for part in (x.re, x.im)))
    if fits_real(n, product_of(x.shape[:-1])):
        return b(ops.fourier, join_parts(b, half), n=n, sign=sign, form="hermitian")
    return transform(b, mirrored(b, half, n), sign).re


def mirrored(b: Builder, half: Pair, n: Dim) -> Pair:
    """All ``n`` elements of a Hermitian signal of which the first half is given."""
    if not is_known(n):
        return Pair(*fourier_chirp.mirrored(b, fourier_chirp.NumberParts(half.re, half.im), n))
    others = (n - 1) // 2
    if others == 0:
        return Pair(*(_first(b, part, n) for part in (half.re, half.im)))
    axis, ones = len(half.shape) - 1, (1,) * len(half.shape)
    starts, stops = (*(0,) * axis, 1), (*half.shape[:-1], 1 + others)
    tails = (b(ops.slice, part, starts=starts, stops=stops, steps=ones) for part in (half.re, half.im))
    re, im = (b(ops.reverse, tail, axes=(axis,)) for tail in tails)
    return Pair(b(ops.concat, half.re, re, axis=axis), b(ops.concat, half.im, b(ops.neg, im), axis=axis))


def _first(b: Builder, x: Node, count: Dim) -> Node:
    zeros, ones = (0,) * len(x.shape), (1,) * len(x.shape)
    return b(ops.slice, x, starts=zeros, stops=(*x.shape[:-1], count), steps=ones)


def transform_along(b: Builder, x: Pair, axis: int, sign: int) -> Pair:
    """The unscaled transform along one axis; ``sign`` is the exponent's."""
    ahead, back = to_end(len(x.shape), axis)
    made = transform(b, Pair(transpose(b, x.re, ahead), transpose(b, x.im, ahead)), sign)
    return Pair(transpose(b, made.re, back), transpose(b, made.im, back))


def to_end(rank: int, axis: int) -> tuple[list[int], list[int]]:
    """The permutation that moves an axis to the end, and the one back."""
    ahead = [*(k for k in range(rank) if k != axis), axis]
    return ahead, [ahead.index(k) for k in range(rank)]


def _length(x: Pair) -> int:
    n = x.shape[-1]
    assert is_known(n)
    return n


def _factor(n: int) -> int:
    """The largest factor of ``n`` up to ``DIRECT``, or the least one beyond."""
    if n <= DIRECT:
        return n
    small = [f for f in range(DIRECT, 1, -1) if n % f == 0]
    return small[0] if small else next((f for f in range(DIRECT + 1, math.isqrt(n) + 1) if n % f == 0), n)


def _turns(turns: Array, n: int) -> tuple[Array, Array]:
    angle = 2 * math.pi * (turns % max(n, 1)) / max(n, 1)
    return np.cos(angle), np.sin(angle)


def _roots(b: Builder, turns: Array, n: int, like: Pair) -> Pair:
    """``exp(2 pi i turns / n)``."""
    return Pair(*(b.const(part, like.dtype) for part in _turns(turns, n)))


def _matrix(n: int, sign: int) -> tuple[Array, Array]:
    return _turns(sign * np.outer(np.arange(n), np.arange(n)), n)


def _times(b: Builder, x: Pair, cosines: Array, sines: Array) -> Pair:
    """``x @ (cosines + i * sines)`` over the last axis."""
    c, s = b.const(cosines, x.dtype), b.const(sines, x.dtype)
    one = len(x.shape) == 1
    re, im = (b(ops.reshape, part, shape=(1, *part.shape)) if one else part for part in (x.re, x.im))
    real = b(ops.sub, b(ops.matmul, re, c), b(ops.matmul, im, s))
    imaginary = b(ops.add, b(ops.matmul, re, s), b(ops.matmul, im, c))
    return Pair(*(b(ops.reshape, part, shape=x.shape) if one else part for part in (real, imaginary)))


def _by_chirp(b: Builder, x: Pair, n: int, sign: int) -> Pair:
    """With ``jk = (j^2 + k^2 - (k-j)^2) / 2``: times a chirp, convolved with its conjugate, times the chirp."""
    size = 1 << (2 * n - 2).bit_length()
    squares = np.array([j * j % (2 * n) for j in range(n)])
    chirp = _roots(b, sign * squares, 2 * n, x)
    cosines, sines = _turns(-sign * squares, 2 * n)
    kernel = np.zeros(size, np.complex128)
    kernel[:n] = cosines + 1j * sines
    kernel[size - n + 1 :] = kernel[n - 1 : 0 : -1]
    spectrum = np.fft.fft(kernel) / size
    zero = b.const(0.0, x.dtype)
    pads = ((0, 0),) * (len(x.shape) - 1) + ((0, size - n),)
    turned = product(b, x, chirp)
    longer = Pair(*(b(ops.pad, part, zero, pads=pads) for part in (turned.re, turned.im)))
    weights = Pair(b.const(spectrum.real, x.dtype), b.const(spectrum.imag, x.dtype))
    convolved = transform(b, product(b, transform(b, longer, -1), weights), 1)
    starts, steps = (0,) * len(x.shape), (1,) * len(x.shape)
    kept = (b(ops.slice, part, starts=starts, stops=x.shape, steps=steps) for part in (convolved.re, convolved.im))
    return product(b, Pair(*kept), chirp)


# --- in NumPy's order -----------------------------------------------------------------------------------------------


def factors_in_order(n: int) -> list[int] | None:
    """The factors of the passes, or None for a length that has others, or too many elements to spell the passes out."""
    if not 1 < n <= LONGEST_IN_ORDER:
        return None
    found: list[int] = []
    for factor in (8, 4):
        while n % factor == 0:
            found.append(factor)
            n //= factor
    if n % 2 == 0:
        found.append(2)
        found[0], found[-1] = found[-1], found[0]
        n //= 2
    for factor in (3, 5):
        while n % factor == 0:
            found.append(factor)
            n //= factor
    return found if n == 1 else None


def inverse_in_order(b: Builder, x: Pair, factors: Sequence[int]) -> Pair:
    """The transform of the last axis, whose length has these factors, with the exponent's sign positive."""
    n, before = _length(x), 1
    outer = x.shape[:-1]
    axis = len(outer) + 1
    for factor in factors:
        rest = n // (before * factor)
        shape = (*outer, before, factor, rest)
        blocks = [b(ops.reshape, part, shape=shape) for part in (x.re, x.im)]
        parts = [Pair(*(_column(b, block, axis, k) for block in blocks)) for k in range(factor)]
        sums = _PASSES[factor](_Sums(b), parts)
        if rest > 1:
            turns = before * np.arange(rest)
            sums = [sums[0], *(product(b, s, _roots(b, k * turns, n, x)) for k, s in enumerate(sums[1:], 1))]
        joined = (b(ops.concat, *parts, axis=axis - 1) for parts in zip(*((s.re, s.im) for s in sums), strict=True))
        x = Pair(*(b(ops.reshape, part, shape=(*outer, n)) for part in joined))
        before *= factor
    return x


def _column(b: Builder, x: Node, axis: int, k: int) -> Node:
    """Place ``k`` of an axis, which becomes one place in front of the axis before it."""
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = k, k + 1
    part = b(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(x.shape))
    return b(ops.reshape, part, shape=(*x.shape[: axis - 1], 1, x.shape[axis - 1], x.shape[axis + 1]))


class _Sums:
    """Complex arithmetic, rounded where NumPy's is."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def plus(self, x: Pair, y: Pair) -> Pair:
        return Pair(self.b(ops.add, x.re, y.re), self.b(ops.add, x.im, y.im))

    def minus(self, x: Pair, y: Pair) -> Pair:
        return Pair(self.b(ops.sub, x.re, y.re), self.b(ops.sub, x.im, y.im))

    def both(self, x: Pair, y: Pair) -> tuple[Pair, Pair]:
        """Sum and difference."""
        return self.plus(x, y), self.minus(x, y)

    def times(self, x: Pair, factor: float) -> Pair:
        f = self.b.const(factor, x.dtype)
        return Pair(self.b(ops.mul, x.re, f), self.b(ops.mul, x.im, f))

    def quarter(self, x: Pair) -> Pair:
        """Times i."""
        return Pair(self.b(ops.neg, x.im), x.re)

    def eighth(self, x: Pair) -> Pair:
        """An eighth of a turn."""
        return self.times(self.plus(x, self.quarter(x)), math.sqrt(0.5))


def _two(s: _Sums, x: list[Pair]) -> list[Pair]:
    return list(s.both(*x))


def _three(s: _Sums, x: list[Pair]) -> list[Pair]:
    t1, t2 = s.both(x[1], x[2])
    turned = s.quarter(s.times(t2, math.sqrt(0.75)))
    return [s.plus(x[0], t1), *s.both(s.plus(x[0], s.times(t1, -0.5)), turned)]


def _four(s: _Sums, x: list[Pair]) -> list[Pair]:
    t2, t1 = s.both(x[0], x[2])
    t3, t4 = s.both(x[1], x[3])
    y0, y2 = s.both(t2, t3)
    y1, y3 = s.both(t1, s.quarter(t4))
    return [y0, y1, y2, y3]


def _five(s: _Sums, x: list[Pair]) -> list[Pair]:
    (c1, s1), (c2, s2) = ((math.cos(a), math.sin(a)) for a in (0.4 * math.pi, 0.8 * math.pi))
    t1, t4 = s.both(x[1], x[4])
    t2, t3 = s.both(x[2], x[3])
    a1 = s.plus(s.plus(x[0], s.times(t1, c1)), s.times(t2, c2))
    a2 = s.plus(s.plus(x[0], s.times(t1, c2)), s.times(t2, c1))
    y1, y4 = s.both(a1, s.quarter(s.plus(s.times(t4, s1), s.times(t3, s2))))
    y2, y3 = s.both(a2, s.quarter(s.minus(s.times(t4, s2), s.times(t3, s1))))
    return [s.plus(s.plus(x[0], t1), t2), y1, y2, y3, y4]


def _eight(s: _Sums, x: list[Pair]) -> list[Pair]:
    a1, a5 = s.both(x[1], x[5])
    a3, a7 = s.both(x[3], x[7])
    a1, a3 = s.both(a1, a3)
    a5, a7 = s.both(a5, s.quarter(a7))
    a0, a4 = s.both(x[0], x[4])
    a2, a6 = s.both(x[2], x[6])
    y0, y4 = s.both(s.plus(a0, a2), a1)
    y2, y6 = s.both(s.minus(a0, a2), s.quarter(a3))
    y1, y5 = s.both(s.plus(a4, s.quarter(a6)), s.eighth(a5))
    y3, y7 = s.both(s.minus(a4, s.quarter(a6)), s.quarter(s.eighth(a7)))
    return [y0, y1, y2, y3, y4, y5, y6, y7]


_PASSES: Mapping[int, Callable[[_Sums, list[Pair]], list[Pair]]] = {2: _two, 3: _three, 4: _four, 5: _five, 8: _eight}
