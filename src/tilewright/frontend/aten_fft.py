"""ATen's Fourier transforms: ``_fft_r2c``, ``_fft_c2c`` and ``_fft_c2r`` over any axes.

In: calls on reals or pairs. Out: pairs, or nodes of reals. Not its business: shifts and windows, which ATen spells out;
how one axis is transformed (``fourier``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.frontend.aten_call import Call, Result, Unsupported, transpose
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import transform, transform_of_real, transform_to_real
from tilewright.frontend.fourier_passes import mirrored


def _fft_c2c(c: Call) -> Result:
    x = c["self"]
    assert isinstance(x, Pair)
    axes = [d % len(x.shape) for d in c["dim"]]
    for axis in axes:
        x = _transform(c.b, x, axis, -1 if c["forward"] else 1)
    return Pair(*(_scaled(c, part, [x.shape[a] for a in axes]) for part in (x.re, x.im)))


def _fft_r2c(c: Call) -> Result:
    x = c.tensor("self")
    axes = [d % len(x.shape) for d in c["dim"]]
    n = _static(x.shape[axes[-1]])
    ahead, back = _to_end(len(x.shape), axes[-1])
    made = transform_of_real(c.b, transpose(c.b, x, ahead), -1)
    if not c["onesided"]:  # the other axes, which would end the symmetry, come later
        made = Pair(*(mirrored(c.b, part, n, k) for k, part in enumerate((made.re, made.im))))
    made = Pair(*(transpose(c.b, part, back) for part in (made.re, made.im)))
    for axis in axes[:-1]:
        made = _transform(c.b, made, axis, -1)
    return Pair(*(_scaled(c, part, [x.shape[a] for a in axes]) for part in (made.re, made.im)))


def _fft_c2r(c: Call) -> Result:
    x = c["self"]
    assert isinstance(x, Pair)
    axes = [d % len(x.shape) for d in c["dim"]]
    for axis in axes[:-1]:
        x = _transform(c.b, x, axis, 1)
    n = _static(c["last_dim_size"])
    ahead, back = _to_end(len(x.shape), axes[-1])
    made = transform_to_real(c.b, Pair(*(transpose(c.b, part, ahead) for part in (x.re, x.im))), n, 1)
    return _scaled(c, transpose(c.b, made, back), [*(x.shape[a] for a in axes[:-1]), n])


def _scaled(c: Call, x: Node, sizes: Sequence[object]) -> Node:
    """Scaled as the call says for transforms of these lengths."""
    n = math.prod(map(_static, sizes))
    mode = c["normalization"]
    if mode == 0 or n == 0:
        return x
    return c.b(ops.mul, x, c.b.const(1 / math.sqrt(n) if mode == 1 else 1 / n, x.dtype))


def _static(n: object) -> int:
    if not isinstance(n, int):
        raise Unsupported("a Fourier transform of a symbolic length", "make that dimension static")
    return n


def _transform(b: Builder, x: Pair, axis: int, sign: int) -> Pair:
    """The unscaled transform along one axis; ``sign`` is the exponent's."""
    _static(x.shape[axis])
    ahead, back = _to_end(len(x.shape), axis)
    made = transform(b, Pair(transpose(b, x.re, ahead), transpose(b, x.im, ahead)), sign)
    return Pair(transpose(b, made.re, back), transpose(b, made.im, back))


def _to_end(rank: int, axis: int) -> tuple[list[int], list[int]]:
    """The permutation that moves an axis to the end, and the one back."""
    ahead = [*(k for k in range(rank) if k != axis), axis]
    return ahead, [ahead.index(k) for k in range(rank)]


TABLE: Mapping[str, Callable[[Call], Result]] = {
    "_fft_c2c.default": _fft_c2c, "_fft_r2c.default": _fft_r2c, "_fft_c2r.default": _fft_c2r,
}  # fmt: skip
