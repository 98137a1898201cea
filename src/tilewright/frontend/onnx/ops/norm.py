"""Converters of ONNX normalisations and the softmax family.

In: a ``Call``. Out: nodes of the graph IR. Not its business: how a normalisation is computed (``ops``).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import f32, i64, product
from tilewright.frontend.onnx.call import Call, Converter, Results, Table


def _batch_normalization(c: Call) -> Results:
    x, scale, bias, mean, var = (c.x(i) for i in range(5))
    epsilon, momentum = c.float_("epsilon", 1e-5), c.float_("momentum", 0.9)
    if c.int_("spatial", 1) != 1:
        c.refuse("attribute spatial=0 is not supported", "convert the model to opset 9 or newer")
    c.ignore("consumed_inputs")
    if not (c.flag("training_mode") if c.opset >= 7 else not c.flag("is_test")):
        if any(c.wants(i) for i in range(1, 5)):
            c.refuse("results of training are read", "export the model for inference")
        return _normalised(c, x, (scale, bias, mean, var), epsilon)
    axes = tuple(k for k in range(len(x.shape)) if k != 1)
    wide = c.cast(x, mean.dtype)
    batch_mean = c(ops.reduce_mean, wide, axes=axes, keepdims=False)
    batch_var = c(ops.variance, wide, axes=axes, keepdims=False, correction=0)
    y = _normalised(c, x, (scale, bias, batch_mean, batch_var), epsilon)
    running = [
        c(
            ops.add, c(ops.mul, old, c.const(momentum, old.dtype)), c(ops.mul, new, c.const(1 - momentum, new.dtype))
        )
        for old, new in ((mean, batch_mean), (var, batch_var))
    ]  # fmt: skip
    return (y, *running)


def _normalised(c: Call, x: Node, parameters: tuple[Node, ...], epsilon: float) -> Node:
    """Parameters may be of another float type than the operand: the wider computes."""
    dtypes = {p.dtype for p in (x, *parameters)}
    common = max(dtypes, key=lambda d: d.bits) if len(dtypes) > 1 else x.dtype
    if len(dtypes) > 1 and common.bits == 16:
        common = f32
    wide = [c.cast(p, common) for p in (x, *parameters)]
    return c.cast(c(ops.batch_norm, *wide, epsilon=epsilon, axis=1), x.dtype)


def _moments_axes(x: Node, axis: int) -> tuple[int, ...]:
    return tuple(range(axis, len(x.shape)))


def _layer_normalization(c: Call) -> Results:
    x, scale, bias = c.x(0), c.x(1), c.opt(2)
    axis, epsilon = c.axis(c.int_("axis", -1), len(x.shape)), c.float_("epsilon", 1e-5)
    stash = c.dtype("stash_type", f32)
    direct = all(p is None or p.shape == x.shape[axis:] for p in (scale, bias))
    if direct:
        y = c(ops.layer_norm, x, scale, *([bias] if bias is not None else []), axis=axis, epsilon=epsilon)
    else:
        y = c(ops.mul, c(ops.layer_norm, x, axis=axis, epsilon=epsilon), scale)
        y = c(ops.add, y, bias) if bias is not None else y
    if not c.wants(1) and not c.wants(2):
        return y
    axes = _moments_axes(x, axis)
    wide = c.cast(x, stash)
    mean = c(ops.reduce_mean, wide, axes=axes, keepdims=True)
    var = c(ops.variance, wide, axes=axes, keepdims=True, correction=0)
    return y, mean, c(ops.rsqrt, c(ops.add, var, c.const(epsilon, stash)))


def rms_norm(c: Call, x: Node, scale: Node, axis: int, epsilon: float) -> Node:
    """RMS normalisation over dims ``axis`` to the end; a scale of another shape multiplies by broadcasting."""
    if scale.shape == x.shape[axis:]:
        return c(ops.rms_norm, x, scale, axis=axis, epsilon=epsilon)
    plain = c(ops.rms_norm, x, c.full(1, x.dtype, x.shape[axis:]), axis=axis, epsilon=epsilon)
    return c(ops.mul, plain, scale)


def _rms_normalization(c: Call) -> Node:
    x, scale = c.x(0), c.x(1)
    axis, epsilon = c.axis(c.int_("axis", -1), len(x.shape)), c.float_("epsilon", 1e-5)
    c.ignore("stash_type")
    if scale.dtype is not x.dtype:
        return c.cast(rms_norm(c, c.cast(x, f32), c.cast(scale, f32), axis, epsilon), scale.dtype)
    return rms_norm(c, x, scale, axis, epsilon)


def _group_normalization(c: Call) -> Node:
    x, scale, bias = c.x(0), c.x(1), c.x(2)
    groups = c.int_("num_groups")
    c.ignore("stash_type")
    channels = x.shape[1] if len(x.shape) > 1 else 0
    if not is_known(channels) or groups < 1 or channels % groups:
        c.refuse(f"num_groups={groups} must divide the number of channels, {channels}")
    if c.opset < 21:
        scale, bias = (_per_channel(c, p, groups, channels // groups) for p in (scale, bias))
    return c(ops.group_norm, x, scale, bias, groups=groups, epsilon=c.float_("epsilon", 1e-5))


def _per_channel(c: Call, p: Node, groups: int, size: int) -> Node:
    """One number per group repeated for each of the group's channels."""
    return c.reshape(c.expand(c.reshape(p, (groups, 1)), (groups, size)), (groups * size,))


def _instance_normalization(c: Call) -> Node:
    return c(ops.instance_norm, c.x(0), c.x(1), c.x(2), epsilon=c.float_("epsilon", 1e-5))


def _mean_variance_normalization(c: Call) -> Node:
    """ONNX's own definition adds numbers of f32, so that its other types have no definition; those of 16 bits are
    computed in f32, where the number that keeps a deviation of 0 from dividing is more than 0."""
    x = c.x(0)
    axes = tuple(sorted(c.axes(c.ints("axes", (0, 2, 3)), len(x.shape))))
    wide = c.cast(x, f32) if x.dtype.bits == 16 else x
    deviation = c(ops.sqrt, c(ops.variance, wide, axes=axes, keepdims=True, correction=0))
    apart = c(ops.sub, wide, c(ops.reduce_mean, wide, axes=axes, keepdims=True))
    return c.cast(c(ops.div, apart, c(ops.add, deviation, c.const(_LEAST_DEVIATION, wide.dtype))), x.dtype)


_LEAST_DEVIATION = 1e-9


def _lrn(c: Call) -> Node:
    return c(
        ops.lrn, c.x(0), size=c.int_("size"), alpha=c.float_("alpha", 1e-4), beta=c.float_("beta", 0.75),
        bias=c.float_("bias", 1.0),
    )  # fmt: skip


def _lp_normalization(c: Call) -> Node:
    """x over its norm along an axis, 0 where the norm is 0."""
    x, p = c.x(0), c.int_("p", 2)
    if p not in (1, 2):
        c.refuse(f"attribute p={p} is not supported", "supported: 1, 2")
    axis = c.axis(c.int_("axis", -1), len(x.shape))
    norm = c(ops.reduce_l1 if p == 1 else ops.reduce_l2, x, axes=(axis,), keepdims=True)
    zero = c.const(0, x.dtype)
    return c(ops.where, c(ops.eq, norm, zero), zero, c(ops.div, x, norm))


Last = Callable[[Call, Node, int], Node]


def _along(build: Last) -> Converter:
    """Softmax-like ops: along one axis since opset 13, before that over all dims from ``axis`` on."""

    def convert(c: Call) -> Node:
        x = c.x(0)
        axis = c.axis(c.int_("axis", -1 if c.opset >= 13 else 1), max(len(x.shape), 1))
        if c.opset >= 13:
            return build(c, x, axis)
        return from_axis_on(c, x, axis, build)

    return convert


def from_axis_on(c: Call, x: Node, axis: int, build: Last) -> Node:
    """``build`` along all dimensions from ``axis`` on, taken as one."""
    flat = c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return c.reshape(build(c, flat, 1), x.shape)


def _hardmax(c: Call, x: Node, axis: int) -> Node:
    """1 at the first greatest element along ``axis``, 0 elsewhere."""
    best = c(ops.argmax, x, axis=axis, keepdims=True, select_last=False)
    places = c.align(c(ops.iota, extent=x.shape[axis], dtype=i64), axis, len(x.shape))
    return c.cast(c(ops.eq, places, best), x.dtype)


def softmax(c: Call, x: Node, axis: int) -> Node:
    """Softmax along one axis."""
    return c(ops.softmax, x, axis=axis)


TABLE: Table = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "Hardmax": _along(_hardmax),
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _along(lambda c, x, axis: c(ops.log_softmax, x, axis=axis)),
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _rms_normalization,
    "Softmax": _along(softmax),
}
