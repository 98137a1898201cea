"""Converters of ONNX pooling ops.

In: a ``Call``. Out: nodes of the graph IR; ``ceil_mode`` becomes padding at the end that never counts.
Not its business: convolution windows without ``ceil_mode`` (``onnx.ops.contract``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import ops
from tilewright.core import expr
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import product
from tilewright.frontend.onnx.call import Call, Converter, Results, Table
from tilewright.frontend.onnx.ops.contract import Pads, holding_windows, spatial_ints, window_pads


@dataclass(frozen=True)
class Window:
    """A pooling window; ``tail`` is the end padding that ``ceil_mode`` adds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads
    tail: tuple[Dim, ...]

    @property
    def all_pads(self) -> Pads:
        return tuple((lo, hi + t) for (lo, hi), t in zip(self.pads, self.tail, strict=True))

    def held(self, c: Call, x: Node, y: Node) -> Node:
        """``y``, which is taken by this window over ``x``; refused where ``x`` is smaller than the window."""
        return holding_windows(c, x, y, self.kernel, self.all_pads, self.dilations)


def window(c: Call, x: Node) -> Window:
    """The window that the node's attributes describe, over a channels-first operand."""
    n = len(x.shape) - 2
    if n < 1 or n > 3:
        c.refuse(f"an operand of rank {len(x.shape)}; pooling has 1 to 3 spatial dimensions, so rank 3 to 5")
    kernel = (
        spatial_ints(c, "kernel_shape", n) if c.has("kernel_shape") else c.refuse("attribute kernel_shape is missing")
    )
    strides, dilations = spatial_ints(c, "strides", n), spatial_ints(c, "dilations", n)
    pads = window_pads(c, x.shape[2:], kernel, strides, dilations)
    ceil = c.flag("ceil_mode") and c.str_("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    tail: list[Dim] = []
    for size, k, s, d, (lo, hi) in zip(x.shape[2:], kernel, strides, dilations, pads, strict=True):
        reach = (k - 1) * d + 1
        count = expr.minimum(expr.ceildiv(size + lo + hi - reach, s) + 1, expr.ceildiv(size + lo, s))
        tail.append(expr.maximum((count - 1) * s + reach - (size + lo + hi), 0) if ceil else 0)
    return Window(kernel, strides, dilations, pads, tuple(tail))


def greatest(c: Call, x: Node) -> Results:
    """The greatest element of each window of a channels-first operand and, where the model reads it, its place."""
    w = window(c, x)
    column_major = c.flag("storage_order")
    form = {"kernel": w.kernel, "strides": w.strides, "pads": w.all_pads, "dilations": w.dilations}
    if not c.wants(1):
        return w.held(c, x, c(ops.max_pool, x, **form))
    y, places = c.results(c(ops.max_pool_indices, x, **form, column_major=column_major))
    return w.held(c, x, y), places


def _max_pool(c: Call) -> Results:
    return greatest(c, c.x(0))


def _average_pool(c: Call) -> Node:
    x = c.x(0)
    w = window(c, x)
    return average(c, x, w, c.flag("count_include_pad"))


def average(c: Call, x: Node, w: Window, count_pads: bool, divisor: int = 0) -> Node:
    """The mean of each window, or its sum over ``divisor``."""
    y = c(
        ops.avg_pool, x, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations,
        ceil_pads=w.tail, count_include_pad=count_pads, divisor=divisor,
    )  # fmt: skip
    return w.held(c, x, y)


def _lp_pool(c: Call) -> Node:
    x, p = c.x(0), c.int_("p", 2)
    w = window(c, x)
    return _root(c, average(c, _powers(c, x, p), w, True, divisor=1), p)


def _powers(c: Call, x: Node, p: int) -> Node:
    if p == 2:
        return c(ops.mul, x, x)
    magnitude = c(ops.abs, x)
    return magnitude if p == 1 else c(ops.pow, magnitude, c.const(p, x.dtype))


def _root(c: Call, x: Node, p: int) -> Node:
    if p == 1:
        return x
    return c(ops.sqrt, x) if p == 2 else c(ops.pow, x, c.const(1 / p, x.dtype))


def _global(op: OpDef) -> Converter:
    def convert(c: Call) -> Node:
        x = c.x(0)
        c.assume(*(n - 1 for n in x.shape[2:]))
        return c(op, x, axes=tuple(range(2, len(x.shape))), keepdims=True)

    return convert


def _global_lp_pool(c: Call) -> Node:
    x, p = c.x(0), c.int_("p", 2)
    axes = tuple(range(2, len(x.shape)))
    return _root(c, c(ops.reduce_sum, _powers(c, x, p), axes=axes, keepdims=True), p)


def _max_unpool(c: Call) -> Node:
    """Values put back at the positions that ``MaxPool`` gave."""
    x, indices, wanted = c.x(0), c.x(1), c.opt(2)
    n = len(x.shape) - 2
    kernel, strides = spatial_ints(c, "kernel_shape", n), spatial_ints(c, "strides", n)
    margins = c.ints("pads", [0] * (2 * n))
    spatial = [
        (size - 1) * s + k - lo - hi
        for size, s, k, lo, hi in zip(x.shape[2:], strides, kernel, margins[:n], margins[n:], strict=True)
    ]
    inferred: list[Dim] = [*x.shape[:2], *spatial]
    zeros = c.full(0, x.dtype, (product(inferred),))
    flat_indices, flat = (c.reshape(t, (t.type.n_elements,)) for t in (indices, x))
    y = c.reshape(c(ops.scatter_elements, zeros, flat_indices, flat, axis=0), inferred)
    if wanted is None:
        return y
    target = c.dims(wanted, "output_shape")
    if len(target) != n + 2:
        c.refuse(f"output_shape has {len(target)} numbers for rank {n + 2}")
    pads = tuple((0, t - d) for t, d in zip(target, inferred, strict=True))
    return c(ops.pad, y, c.const(0, x.dtype), pads=pads)


TABLE: Table = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global(ops.reduce_mean),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global(ops.reduce_max),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
