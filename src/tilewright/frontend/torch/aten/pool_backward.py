"""Gradients of ATen's pools by their operand.

In: backward calls. Out: nodes. A mean's gradient goes to each element of its window: a pool over the gradients, spread
to where their windows begin, sums them. A maximum's goes to the place that the forward call found.
Not its business: the pools themselves (``torch.aten.pool``, ``torch.aten.adaptive``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import DType, f32, i64, product
from tilewright.frontend.banded import banded_sum
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.frontend.torch.aten.adaptive import window_ends, window_weights
from tilewright.frontend.torch.aten.call import AtenCall, Result, cast
from tilewright.frontend.torch.aten.pool import window_of

Convert = Callable[[AtenCall], Result]


def _planes(c: AtenCall, n: int, dtype: DType) -> tuple[Node, tuple[Dim, ...]]:
    """The gradient as one channel of many samples, and the sizes of the operand's planes."""
    grad = c.tensor("grad_output", dtype)
    return reshape(c.b, grad, (product(grad.shape[:-n]), 1, *grad.shape[-n:])), c["self"].shape[-n:]


def _wide(c: AtenCall) -> DType:
    """The dtype to add up in."""
    return f32 if c.dtype.bits < 32 else c.dtype


# --- means ----------------------------------------------------------------------------------------------------------


def _avg_pool(n: int) -> Convert:
    def convert(c: AtenCall) -> Node:
        dtype = _wide(c)
        grad, sizes = _planes(c, n, dtype)
        outs = grad.shape[2:]
        kernel, strides, pads = window_of(c, n)
        if divisor := c["divisor_override"]:
            grad = c.b(ops.div, grad, c.b.const(divisor, dtype))
        else:
            for k, window in enumerate(zip(outs, sizes, kernel, strides, pads, strict=True)):
                counts = cast(c.b, _counts(c, *window, bool(c["count_include_pad"])), dtype)
                grad = c.b(ops.div, grad, reshape(c.b, counts, (outs[k], *(1,) * (n - 1 - k))))
        return cast(c.b, reshape(c.b, _sums(c, grad, sizes, kernel, strides, pads), c.shape), c.dtype)

    return convert


def _counts(c: AtenCall, out: Dim, size: Dim, kernel: int, stride: int, pad: int, with_pads: bool) -> Node:
    """How many places of an axis count in each window, i64[out]."""
    b = c.b
    start = b(ops.sub, b(ops.mul, b(ops.iota, extent=out, dtype=i64), b.const(stride, i64)), b.const(pad, i64))
    end = b(ops.minimum, b(ops.add, start, b.const(kernel, i64)), dim_scalar(b, size + pad, i64))
    if not with_pads and pad:
        start, end = b(ops.maximum, start, b.const(0, i64)), b(ops.minimum, end, dim_scalar(b, size, i64))
    return b(ops.sub, end, start)


def _sums(
    c: AtenCall, grad: Node, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> Node:
    """For each place the sum of the gradients of the windows that it lies in.

    Place ``p`` lies in windows that begin from ``p + pad - kernel + 1`` to ``p + pad``: with zeros between gradients,
    so that each stands where its window begins, that is a window too.
    """
    b = c.b
    for k, stride in enumerate(strides):
        if stride > 1:
            grad = _spaced(c, grad, 2 + k, stride)
    grad = b(
        ops.avg_pool, grad, kernel=tuple(kernel), strides=(1,) * len(kernel), layout="NCHW", divisor=1,
        pads=tuple((k - 1 - p,) * 2 for k, p in zip(kernel, pads, strict=True)), count_include_pad=True, ceil_pads=(),
    )  # fmt: skip
    for axis, size in enumerate(sizes, 2):  # what the last windows do not reach is within the padding
        grad = slice_axis(b, grad, axis, 0, size)
    return grad


def _spaced(c: AtenCall, x: Node, axis: int, stride: int) -> Node:
    """``x`` with ``stride - 1`` zeros behind each place of an axis."""
    b, n = c.b, x.shape[axis]
    apart = reshape(b, x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    pads = tuple((0, stride - 1 if k == axis + 1 else 0) for k in range(len(apart.shape)))
    apart = b(ops.pad, apart, b.const(0, x.dtype), pads=pads, mode="constant")
    return reshape(b, apart, (*x.shape[:axis], n * stride, *x.shape[axis + 1 :]))


def _adaptive_avg(n: int) -> Convert:
    def convert(c: AtenCall) -> Node:
        grad, sizes = _planes(c, n, _wide(c))
        for axis in reversed(range(n)):  # the last one, whose elements are read one by one, while there are few
            grad = _spread_mean(c, grad, axis + 2, sizes[axis])
        return cast(c.b, reshape(c.b, grad, c.shape), c.dtype)

    return convert


def _spread_mean(c: AtenCall, grad: Node, axis: int, size: Dim) -> Node:
    """Along an axis, for each of ``size`` places the sum of what the windows that hold it give each of theirs."""
    b, out = c.b, grad.shape[axis]
    before, after = grad.shape[:axis], grad.shape[axis + 1 :]
    if out == 1:
        return expand(b, b(ops.div, grad, dim_scalar(b, size, grad.dtype)), (*before, size, *after))
    if is_known(size) and is_known(out):
        if size % out:
            return banded_sum(b, grad, axis, window_weights(size, out).T)
        share = reshape(b, b(ops.div, grad, b.const(size // out, grad.dtype)), (*before, out, 1, *after))
        return reshape(b, expand(b, share, (*before, out, size // out, *after)), (*before, size, *after))
    start, end = (reshape(b, e, (1, out)) for e in window_ends(c, size, out))
    at = reshape(b, b(ops.iota, extent=size, dtype=i64), (size, 1))
    held = b(ops.logical_and, b(ops.ge, at, start), b(ops.lt, at, end))
    ones = (1,) * len(after)
    counts = reshape(b, cast(b, b(ops.sub, end, start), grad.dtype), (out, *ones))
    share = reshape(b, b(ops.div, grad, counts), (*before, 1, out, *after))
    kept = b(ops.where, reshape(b, held, (size, out, *ones)), share, b.const(0, grad.dtype))
    return b(ops.reduce_sum, kept, axes=(axis + 1,), keepdims=False)


# --- maxima ---------------------------------------------------------------------------------------------------------


def _by_places(n: int) -> Convert:
    """Each gradient is added where its window's greatest element is; places count within a plane."""

    def convert(c: AtenCall) -> Node:
        b, dtype = c.b, _wide(c)
        grad, sizes = _planes(c, n, dtype)
        shape = (grad.shape[0], product(grad.shape[2:]))
        places = reshape(b, c.tensor("indices", i64), shape)
        zeros = expand(b, b.const(0, dtype), (shape[0], product(sizes)))
        found = b(ops.scatter_elements, zeros, places, reshape(b, grad, shape), axis=1, reduction="add")
        return cast(b, reshape(b, found, c.shape), c.dtype)

    return convert


TABLE: Mapping[str, Convert] = {
    **{f"avg_pool{n}d_backward.default": _avg_pool(n) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward.default": _adaptive_avg(n) for n in (2, 3)},
    **{f"{name}_backward.default": _by_places(n) for n in (2, 3) for name in (
        f"max_pool{n}d_with_indices", f"adaptive_max_pool{n}d", f"fractional_max_pool{n}d")},
}  # fmt: skip
