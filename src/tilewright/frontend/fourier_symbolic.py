"""Fourier transforms of a length that each call decides, along the last axis.

In: pairs whose last axis is symbolic. Out: pairs, unscaled. Not its business: lengths known now (``fourier``), which
have forms of a few operations for each element.

No factor of the length is known, so that it is a convolution with a chirp (Bluestein 1970): with
``jk = (j^2 + k^2 - (k-j)^2) / 2`` a product with the chirp, a convolution with its conjugate, and the chirp again. The
convolution has a length of our choice, ``ROWS * m >= 2n - 1``: its transforms take the signal as a matrix of so many
rows, and are a product with a matrix of roots from the left, a twist, and one from the right (Cooley and Tukey 1965).
What the first leaves transposed the last turns back. That takes some ``32 (ROWS + m)`` multiplications for each
element, with roots of unity that each call computes. Beside eager PyTorch, one thread: 11 times the time for 3 signals
of 1,000 elements, 61 for 32 of 4,000, 213 for 32 of 16,000.
"""

from __future__ import annotations

import math

from tilewright import ops
from tilewright.core.expr import Dim, ceildiv
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, f64, i64
from tilewright.frontend.complex_pairs import Pair, conjugate, product
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import cast

ROWS = 64
"""Transforms of so many elements are products with a constant matrix; those along the rows are as long as the rest."""


def transform(b: Builder, x: Pair, sign: int) -> Pair:
    """The transform of the last axis; ``sign`` is the exponent's."""
    *outer, n = x.shape
    matrix = _Matrix(b, ceildiv(2 * n - 1, ROWS), x.dtype)
    chirp = _chirp(b, n, sign, x.dtype)
    signal = matrix.of(product(b, x, chirp))
    kernel = matrix.of(_kernel(b, n, matrix.size, sign, x.dtype))
    convolved = matrix.backward(product(b, matrix.forward(signal), matrix.forward(kernel)))
    starts, steps = (0,) * len(x.shape), (1,) * len(x.shape)
    flat = (reshape(b, part, (*outer, matrix.size)) for part in (convolved.re, convolved.im))
    kept = Pair(*(b(ops.slice, part, starts=starts, stops=x.shape, steps=steps) for part in flat))
    return product(b, kept, chirp)


def mirrored(b: Builder, x: Pair, n: Dim) -> Pair:
    """All ``n`` elements of a Hermitian signal of which the first half is given."""
    at = b(ops.iota, extent=n, dtype=i64)
    back = b(ops.sub, dim_scalar(b, n, i64), at)
    is_back = b(ops.lt, back, at)
    places = b(ops.where, is_back, back, at)
    re, im = (b(ops.gather, part, places, axis=len(x.shape) - 1) for part in (x.re, x.im))
    return Pair(re, b(ops.where, is_back, b(ops.neg, im), im))


def _roots(b: Builder, turns: Node, n: Node, dtype: DType) -> Pair:
    """``exp(2 pi i turns / n)`` of whole numbers, rounded once."""
    within = cast(b, b(ops.mod, turns, n), f64)
    angle = b(ops.div, b(ops.mul, within, b.const(2 * math.pi, f64)), cast(b, n, f64))
    return Pair(cast(b, b(ops.cos, angle), dtype), cast(b, b(ops.sin, angle), dtype))


def _chirp(b: Builder, n: Dim, sign: int, dtype: DType) -> Pair:
    """``exp(sign pi i j^2 / n)`` for each ``j`` below ``n``."""
    at = b(ops.iota, extent=n, dtype=i64)
    turns = b(ops.mul, b(ops.mul, at, at), b.const(sign, i64))
    return _roots(b, turns, dim_scalar(b, 2 * n, i64), dtype)


def _kernel(b: Builder, n: Dim, size: Dim, sign: int, dtype: DType) -> Pair:
    """The conjugate chirp at ``-n < j < n``, the negative ones counted from the end, and zeros between."""
    at = b(ops.iota, extent=size, dtype=i64)
    near = b(ops.minimum, at, b(ops.sub, dim_scalar(b, size, i64), at))
    turns = b(ops.mul, b(ops.mul, near, near), b.const(-sign, i64))
    chirp = _roots(b, turns, dim_scalar(b, 2 * n, i64), dtype)
    inside, zero = b(ops.lt, near, dim_scalar(b, n, i64)), b.const(0, dtype)
    return Pair(b(ops.where, inside, chirp.re, zero), b(ops.where, inside, chirp.im, zero))


class _Matrix:
    """Signals of ``ROWS * width`` elements as matrices, and their transforms, whose elements lie transposed."""

    def __init__(self, b: Builder, width: Dim, dtype: DType) -> None:
        self.b, self.width, self.size = b, width, ROWS * width
        down, across = (b(ops.iota, extent=n, dtype=i64) for n in (ROWS, width))
        self.left = self._table(down, down, ROWS, dtype)
        self.right = self._table(across, across, width, dtype)
        self.twist = self._table(down, across, self.size, dtype)

    def _table(self, rows: Node, columns: Node, n: Dim, dtype: DType) -> Pair:
        b = self.b
        turns = b(ops.mul, reshape(b, rows, (rows.shape[0], 1)), columns)
        return _roots(b, turns, dim_scalar(b, n, i64), dtype)

    def of(self, x: Pair) -> Pair:
        """The last axis, with zeros behind it, as a matrix."""
        *outer, n = x.shape
        pads = (*((0, 0),) * len(outer), (0, self.size - n))
        zero = self.b.const(0, x.dtype)
        longer = (self.b(ops.pad, part, zero, pads=pads, mode="constant") for part in (x.re, x.im))
        return Pair(*(reshape(self.b, part, (*outer, ROWS, self.width)) for part in longer))

    def forward(self, x: Pair) -> Pair:
        left, twist, right = (conjugate(self.b, t) for t in (self.left, self.twist, self.right))
        return self._times(product(self.b, self._times(left, x), twist), right)

    def backward(self, x: Pair) -> Pair:
        """From what ``forward`` gives to the elements."""
        b = self.b
        found = self._times(self.left, product(b, self._times(x, self.right), self.twist))
        scale = b(ops.reciprocal, dim_scalar(b, self.size, x.dtype))
        return Pair(b(ops.mul, found.re, scale), b(ops.mul, found.im, scale))

    def _times(self, x: Pair, y: Pair) -> Pair:
        b = self.b
        real = b(ops.sub, b(ops.matmul, x.re, y.re), b(ops.matmul, x.im, y.im))
        return Pair(real, b(ops.add, b(ops.matmul, x.re, y.im), b(ops.matmul, x.im, y.re)))
