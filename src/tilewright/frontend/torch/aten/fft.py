"""ATen's Fourier transforms: ``_fft_r2c``, ``_fft_c2c`` and ``_fft_c2r`` over any axes.

In: calls on reals or pairs. Out: pairs, or nodes of reals.
Not its business: shifts and windows, which ATen spells out; how one axis is transformed (``fourier``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import f64, product
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import mirrored, to_end, transform_along, transform_of_real, transform_to_real
from tilewright.frontend.nodes import dim_scalar, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, cast


def _fft_c2c(c: AtenCall) -> Result:
    x = c["self"]
    assert isinstance(x, Pair)
    axes = [d % len(x.shape) for d in c["dim"]]
    for axis in axes:
        x = transform_along(c.b, x, axis, -1 if c["forward"] else 1)
    return Pair(*(_scaled(c, part, [x.shape[a] for a in axes]) for part in (x.re, x.im)))


def _fft_r2c(c: AtenCall) -> Result:
    x = c.tensor("self")
    axes = [d % len(x.shape) for d in c["dim"]]
    ahead, back = to_end(len(x.shape), axes[-1])
    made = transform_of_real(c.b, transpose(c.b, x, ahead), -1)
    if not c["onesided"]:  # the other axes, which would end the symmetry, come later
        made = mirrored(c.b, made, x.shape[axes[-1]])
    made = Pair(*(transpose(c.b, part, back) for part in (made.re, made.im)))
    for axis in axes[:-1]:
        made = transform_along(c.b, made, axis, -1)
    return Pair(*(_scaled(c, part, [x.shape[a] for a in axes]) for part in (made.re, made.im)))


def _fft_c2r(c: AtenCall) -> Result:
    x = c["self"]
    assert isinstance(x, Pair)
    axes, n = [d % len(x.shape) for d in c["dim"]], c["last_dim_size"]
    for axis in axes[:-1]:
        x = transform_along(c.b, x, axis, 1)
    ahead, back = to_end(len(x.shape), axes[-1])
    made = transform_to_real(c.b, Pair(*(transpose(c.b, part, ahead) for part in (x.re, x.im))), n, 1)
    return _scaled(c, transpose(c.b, made, back), [*(x.shape[a] for a in axes[:-1]), n])


def _scaled(c: AtenCall, x: Node, sizes: Sequence[Dim]) -> Node:
    """Scaled as the call says for transforms of these lengths."""
    n, mode = product(sizes), c["normalization"]
    if mode == 0 or n == 0:
        return x
    if is_known(n):
        return c.b(ops.mul, x, c.b.const(1 / math.sqrt(n) if mode == 1 else 1 / n, x.dtype))
    count = dim_scalar(c.b, n, f64)
    scale = c.b(ops.reciprocal, c.b(ops.sqrt, count) if mode == 1 else count)
    return c.b(ops.mul, x, cast(c.b, scale, x.dtype))


TABLE: Mapping[str, Callable[[AtenCall], Result]] = {
    "_fft_c2c.default": _fft_c2c, "_fft_r2c.default": _fft_r2c, "_fft_c2r.default": _fft_c2r,
}  # fmt: skip
