"""ATen's pooling of images.

In: calls. Out: nodes. Rounding sizes up becomes extra padding at the end. Not its business: adaptive pooling
(``torch.aten.adaptive``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Expr
from tilewright.core.graph import Node
from tilewright.core.types import i64, product
from tilewright.frontend.nodes import dim_scalar, reshape, slice_axis
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported

Convert = Callable[[AtenCall], Result]


def batched(c: AtenCall, n: int) -> Node:
    """The operand with a batch axis."""
    x = c.tensor("self")
    return reshape(c.b, x, (1, *x.shape)) if len(x.shape) == n + 1 else x


def window_of(c: AtenCall, n: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides (the kernel where none are given) and padding."""
    kernel = c.pair("kernel_size", n)
    return kernel, c.pair("stride", n) if c["stride"] else kernel, c.pair("padding", n)


def _overhang(
    c: AtenCall, x: Node, n: int, reach: list[int], strides: tuple[int, ...], pads: tuple[int, ...]
) -> list[int]:
    """By how much the last window leaves the padded input, per axis: what rounding the size up costs.

    Of a symbolic size the most that it can be, which is less than a stride.
    """
    extra = []
    for size, out, r, s, p in zip(x.shape[-n:], c.shape[-n:], reach, strides, pads, strict=True):
        over = (out - 1) * s + r - size - 2 * p
        extra.append(s - 1 if isinstance(over, Expr) else max(over, 0))
    return extra


def _cut(c: AtenCall, y: Node, n: int) -> Node:
    """The result's windows; of a symbolic size there may be one more, which begins beyond the operand."""
    for axis, out in zip(range(len(y.shape) - n, len(y.shape)), c.shape[-n:], strict=True):
        y = slice_axis(c.b, y, axis, 0, out)
    return reshape(c.b, y, c.shape)


def _max_pool(n: int) -> Convert:
    def convert(c: AtenCall) -> Result:
        x = batched(c, n)
        kernel, strides, pads = window_of(c, n)
        dilations = c.pair("dilation", n)
        extra = [0] * n
        if c["ceil_mode"]:
            reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
            extra = _overhang(c, x, n, reach, strides, pads)
        window = {
            "kernel": kernel, "strides": strides, "dilations": dilations, "layout": "NCHW",
            "pads": tuple((p, p + e) for p, e in zip(pads, extra, strict=True)),
        }  # fmt: skip
        values = _cut(c, c.b(ops.max_pool, x, **window), n)
        if len(c.results) == 1:
            return values
        flat = c.b.results(c.b(ops.max_pool_indices, x, **window))[1]
        plane = dim_scalar(c.b, product(x.shape[2:]), i64)
        return values, _cut(c, c.b(ops.mod, flat, plane), n)

    return convert


def _whole_mean(c: AtenCall, x: Node, n: int) -> Node:
    """Means of integers, cut towards zero: exact sums over tables of places, by counts known now."""
    b = c.b
    kernel, strides, pads = window_of(c, n)
    sizes = [d for d in x.shape[-n:] if is_known(d)]
    outs = [d for d in c.shape[-n:] if is_known(d)]
    if len(sizes) != n or len(outs) != n:
        raise Unsupported("integer means over a symbolic size", "make the spatial dimensions static")
    places, counts, is_inside = np.zeros((1, 1), np.int64), np.ones((1,), np.int64), np.ones((1, 1), bool)
    for size, out, k, stride, pad in zip(sizes, outs, kernel, strides, pads, strict=True):
        start = np.arange(out) * stride - pad
        along = start[:, None] + np.arange(k)
        held = (along >= 0) & (along < size)
        ends = np.minimum(start + k, size + pad)  # what ceil_mode adds behind the padding never counts
        count = ends - start if c["count_include_pad"] else held.sum(1)
        n_rows, n_columns = places.shape[0] * out, places.shape[1] * k
        places = places[:, None, :, None] * size + np.clip(along, 0, max(size - 1, 0))[None, :, None, :]
        is_inside = is_inside[:, None, :, None] & held[None, :, None, :]
        places, is_inside = places.reshape(n_rows, n_columns), is_inside.reshape(n_rows, n_columns)
        counts = (counts[:, None] * count).ravel()
    if c.args.get("divisor_override"):
        counts = np.full_like(counts, c["divisor_override"])
    flat = reshape(b, x, (*x.shape[:-n], math.prod(sizes)))
    windows = b(ops.gather, flat, b.const(places), axis=len(flat.shape) - 1)
    # places outside were clamped to an element
    windows = b(ops.where, b.const(is_inside), windows, b.const(0, x.dtype))
    sums = b(ops.reduce_sum, windows, axes=(len(windows.shape) - 1,), keepdims=False)
    return reshape(b, b(ops.div, sums, b.const(np.where(counts == 0, 1, counts).astype(x.dtype.numpy))), c.shape)


def _avg_pool(n: int) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = batched(c, n)
        if x.dtype.is_integer:
            return _whole_mean(c, x, n)
        kernel, strides, pads = window_of(c, n)
        extra = tuple(_overhang(c, x, n, list(kernel), strides, pads)) if c["ceil_mode"] else (0,) * n
        divisor = c.args.get("divisor_override") or 0
        y = c.b(
            ops.avg_pool, x, kernel=kernel, strides=strides, pads=tuple((p, p) for p in pads), layout="NCHW",
            count_include_pad=bool(c["count_include_pad"]), divisor=abs(divisor),
            ceil_pads=extra if any(extra) else (),
        )  # fmt: skip
        return _cut(c, c.b(ops.neg, y) if divisor < 0 else y, n)

    return convert


TABLE: Mapping[str, Convert] = {
    "max_pool1d.default": _max_pool(1), "max_pool2d.default": _max_pool(2), "max_pool3d.default": _max_pool(3),
    "max_pool1d_with_indices.default": _max_pool(1),
    "max_pool2d_with_indices.default": _max_pool(2), "max_pool3d_with_indices.default": _max_pool(3),
    **{f"avg_pool{n}d.default": _avg_pool(n) for n in (1, 2, 3)},
}  # fmt: skip
