"""Converters of ONNX reductions, arg-reductions and running sums.

In: a ``Call``. Out: nodes of the graph IR. Not its business: pooling (``onnx.ops.pool``).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import bool_, f64, product
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Converter, Table

Piece = Callable[[Call, Node], Node]

REAL_ONLY = frozenset({ops.reduce_mean, ops.reduce_l2, ops.logsumexp})
"""Reductions whose result is no whole number."""


def _axes(c: Call, axes_input_since: int) -> tuple[list[int] | None, bool]:
    """The axes to reduce (None: all) and whether there is nothing to reduce."""
    rank = len(c.x(0).shape)
    axes: list[int] | None = None
    noop = False
    if c.opset >= axes_input_since:
        noop = c.flag("noop_with_empty_axes")
        operand = c.opt(1)
        if operand is not None:
            axes = c.ints_of(operand, "axes")
    elif c.has("axes"):
        axes = c.ints("axes")
    if not axes:
        return None, noop
    return c.axes(axes, rank), False


def _reduction(
    op: OpDef, axes_input_since: int = 18, before: Piece | None = None, after: Piece | None = None
) -> Converter:
    """``after(op(before(x)))`` over the node's axes."""

    def convert(c: Call) -> Node:
        x = c.x(0)
        axes, noop = _axes(c, axes_input_since)
        keepdims = c.flag("keepdims", True)
        if before is not None:
            x = before(c, x)
        if axes is None:
            axes = [] if noop else list(range(len(x.shape)))
        if x.dtype.is_integer and (after is not None or op in REAL_ONLY):
            return _of_integers(c, op, x, axes, keepdims, after)
        x = c(_for_bool(op) if x.dtype is bool_ else op, x, axes=tuple(axes), keepdims=keepdims)
        return after(c, x) if after is not None else x

    return convert


def _of_integers(c: Call, op: OpDef, x: Node, axes: list[int], keepdims: bool, after: Piece | None) -> Node:
    """Computed in f64 and cut towards zero; sums, which may exceed what f64 holds, stay integers."""
    attrs = {"axes": tuple(axes), "keepdims": keepdims}
    if op is ops.reduce_mean:
        m = Formula(c)
        return m.div(c(ops.reduce_sum, x, **attrs), m.node(product([x.shape[a] for a in axes]), x.dtype))
    y = c.cast(c(op, x, **attrs), f64) if after is not None else c(op, c.cast(x, f64), **attrs)
    return c.cast(after(c, y) if after is not None else y, x.dtype)


def _for_bool(op: OpDef) -> OpDef:
    if op is ops.reduce_max:
        return ops.reduce_any
    return ops.reduce_all if op is ops.reduce_min else op


def _square(c: Call, x: Node) -> Node:
    return c(ops.mul, x, x)


def _log(c: Call, x: Node) -> Node:
    return c(ops.log, x)


def _arg(op: OpDef) -> Converter:
    def convert(c: Call) -> Node:
        x = c.x(0)
        axis = c.axis(c.int_("axis", 0), len(x.shape))
        c.assume(x.shape[axis] - 1)  # nothing has no greatest element
        return c(op, x, axis=axis, keepdims=c.flag("keepdims", True), select_last=c.flag("select_last_index"))

    return convert


def _running(op: OpDef) -> Converter:
    def convert(c: Call) -> Node:
        x = c.x(0)
        axis = c.axis(int(c.number(c.x(1), "axis")), len(x.shape))
        return c(op, x, axis=axis, exclusive=c.flag("exclusive"), reverse=c.flag("reverse"))

    return convert


TABLE: Table = {
    "ArgMax": _arg(ops.argmax),
    "ArgMin": _arg(ops.argmin),
    "CumProd": _running(ops.cumprod),
    "CumSum": _running(ops.cumsum),
    "ReduceL1": _reduction(ops.reduce_l1),
    "ReduceL2": _reduction(ops.reduce_l2),
    "ReduceLogSum": _reduction(ops.reduce_sum, after=_log),
    "ReduceLogSumExp": _reduction(ops.logsumexp),
    "ReduceMax": _reduction(ops.reduce_max),
    "ReduceMean": _reduction(ops.reduce_mean),
    "ReduceMin": _reduction(ops.reduce_min),
    "ReduceProd": _reduction(ops.reduce_prod),
    "ReduceSum": _reduction(ops.reduce_sum, 13),
    "ReduceSumSquare": _reduction(ops.reduce_sum, before=_square),
}
