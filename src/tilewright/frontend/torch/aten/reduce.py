"""ATen's reductions, scans, softmax and ordering.

In: calls. Out: nodes. Not its business: normalisations (``torch.aten.norm``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import maximum
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, bool_, f32, f64, i64, u8
from tilewright.frontend.nodes import reshape, slice_axis
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast, norm_axis
from tilewright.ops.common import wide

Convert = Callable[[AtenCall], Result]


def _reduce(op: OpDef, truth: OpDef | None = None) -> Convert:
    """Reductions that compute in the result's dtype; ``truth`` is what ``op`` means of booleans."""

    def convert(c: AtenCall) -> Node:
        x = c.tensor("self", c.dtype)
        chosen = truth if truth is not None and c.dtype == bool_ else op
        return c.b(chosen, x, axes=c.axes(len(x.shape)), keepdims=bool(c.args.get("keepdim", False)))

    return convert


def _truth(op: OpDef) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = c.tensor("self", bool_)
        y = c.b(op, x, axes=c.axes(len(x.shape)), keepdims=bool(c.args.get("keepdim", False)))
        return cast(c.b, y, c.dtype)

    return convert


def _extreme(reduce: OpDef, arg: OpDef) -> Convert:
    """``max.dim``: values and where they were."""

    def convert(c: AtenCall) -> Result:
        x, keep = c.tensor("self"), bool(c["keepdim"])
        if not x.shape:
            return x, c.b.const(0, i64)
        axis = c.axis(len(x.shape))
        wide = cast(c.b, x, u8) if x.dtype is bool_ else x
        value = c.b(reduce, wide, axes=(axis,), keepdims=keep)
        return cast(c.b, value, x.dtype), c.b(arg, wide, axis=axis, keepdims=keep)

    return convert


def _arg(op: OpDef) -> Convert:
    def convert(c: AtenCall) -> Node:
        x, keep = c.tensor("self"), bool(c["keepdim"])
        if c["dim"] is None:
            flat = reshape(c.b, x, (x.type.n_elements,))
            return reshape(c.b, c.b(op, flat, axis=0, keepdims=False), c.shape)
        if not x.shape:
            return c.b.const(0, i64)
        return c.b(op, x, axis=c.axis(len(x.shape)), keepdims=keep)

    return convert


def _correction(c: AtenCall) -> float:
    given = c.args.get("correction", 1 if c.args.get("unbiased", True) else 0)
    return 1 if given is None else given


def _variance(c: AtenCall, dtype: DType) -> tuple[Node, Node]:
    """The variance and its operand."""
    x = cast(c.b, c.tensor("self", c.dtype), dtype)
    keep = bool(c.args.get("keepdim", False))
    axes = c.axes(len(x.shape))
    return c.b(ops.variance, x, axes=axes, keepdims=keep, correction=float(_correction(c))), x


def _std(c: AtenCall) -> Node:
    return cast(c.b, c.b(ops.sqrt, _variance(c, wide(c.dtype))[0]), c.dtype)


def _var_mean(c: AtenCall) -> Result:
    variance, x = _variance(c, c.dtype)
    return variance, c.b(ops.reduce_mean, x, axes=c.axes(len(x.shape)), keepdims=bool(c.args.get("keepdim", False)))


def _logsumexp(c: AtenCall) -> Node:
    x = c.tensor("self", c.dtype)
    return c.b(ops.logsumexp, x, axes=c.axes(len(x.shape)), keepdims=bool(c["keepdim"]))


def _norm(c: AtenCall) -> Node:
    """A vector norm of any order."""
    name = "ord" if "ord" in c.args else "p"
    order = 2 if c.args.get(name) is None else c.static(name)
    x = c.tensor("self", c.dtype)
    return _norm_over(c, x, order, c.axes(len(x.shape)), bool(c.args.get("keepdim", False)))


def _norm_over(c: AtenCall, x: Node, order: float, axes: tuple[int, ...], keep: bool) -> Node:
    if order in (1, 2):
        return c.b(ops.reduce_l1 if order == 1 else ops.reduce_l2, x, axes=axes, keepdims=keep)
    size = c.b(ops.abs, x)
    if math.isinf(order):
        return c.b(ops.reduce_max if order > 0 else ops.reduce_min, size, axes=axes, keepdims=keep)
    if order == 0:
        nonzero = cast(c.b, c.b(ops.ne, x, c.b.const(0, x.dtype)), x.dtype)
        return c.b(ops.reduce_sum, nonzero, axes=axes, keepdims=keep)
    size = cast(c.b, size, wide(x.dtype))
    total = c.b(ops.reduce_sum, c.b(ops.pow, size, c.b.const(order, size.dtype)), axes=axes, keepdims=keep)
    return cast(c.b, c.b(ops.pow, total, c.b.const(1 / order, size.dtype)), x.dtype)


def _length(c: AtenCall, difference: Node, order: float, axis: int) -> Node:
    """The norm of differences along an axis; that of order 0 counts those that are not 0, and is NaN where one is."""
    if order == 0:
        size = c.b(ops.ceil, c.b(ops.abs, difference))
        ones = c.b(ops.minimum, size, c.b.const(1, size.dtype))
        return c.b(ops.reduce_sum, ones, axes=(axis,), keepdims=False)
    return _norm_over(c, difference, order, (axis,), False)


def _cdist(c: AtenCall) -> Node:
    """Distances between all rows of two batches."""
    x, y = c.tensor("x1", c.dtype), c.tensor("x2", c.dtype)
    p = c.static("p")
    left = reshape(c.b, x, (*x.shape[:-1], 1, x.shape[-1]))
    right = reshape(c.b, y, (*y.shape[:-2], 1, *y.shape[-2:]))
    difference = c.b(ops.sub, left, right)
    return _length(c, difference, p, len(difference.shape) - 1)


def _pdist(c: AtenCall) -> Node:
    """Distances between the rows of a matrix, each pair once."""
    x = c.tensor("self")
    if not is_known(x.shape[0]):
        raise Unsupported("distances between a symbolic number of rows", "make it static, or use cdist")
    pairs = np.triu_indices(x.shape[0], 1)
    left, right = (c.b(ops.gather, x, c.b.const(p.astype(np.int64)), axis=0) for p in pairs)
    return _length(c, c.b(ops.sub, left, right), c.static("p"), 1)


def _hash(c: AtenCall) -> Node:
    """The exclusive or of all elements' 64 bits: floats as f64, each bit by the parity of its sum."""
    b, x = c.b, c.tensor("self")
    if c["mode"] != 0:
        raise Unsupported(f"hash mode {c['mode']}", "use mode 0")
    bits = b(ops.bitcast, cast(b, x, f64), dtype=i64) if x.dtype.is_float else cast(b, x, i64)
    rank = len(x.shape)
    places = b(ops.iota, extent=64, dtype=i64)
    one = b.const(1, i64)
    column = b(ops.bitwise_and, b(ops.shift_right, reshape(b, bits, (*bits.shape, 1)), places), one)
    axes = c.axes(rank)
    total = b(ops.reduce_sum, column, axes=axes, keepdims=bool(c["keepdim"])) if axes else column
    parity = b(ops.shift_left, b(ops.bitwise_and, total, one), places)
    joined = b(ops.reduce_sum, parity, axes=(len(parity.shape) - 1,), keepdims=False)
    return b(ops.bitcast, joined, dtype=c.dtype)


def _diff(c: AtenCall) -> Node:
    """Each element less the one before it, ``n`` times over: fewer by one each time, as long as there are any.

    What is put before and behind does not count where ``n`` is 0.
    """
    names = ("prepend", "self", "append") if c.static("n") else ("self",)
    parts = [x for x in (c.optional(name, c.dtype) for name in names) if x is not None]
    axis = c.axis(len(parts[0].shape))
    x = parts[0] if len(parts) == 1 else c.b(ops.concat, *parts, axis=axis)
    op = ops.logical_xor if x.dtype is bool_ else ops.sub
    for _ in range(c.static("n")):
        n = maximum(x.shape[axis] - 1, 0)
        x = c.b(op, slice_axis(c.b, x, axis, x.shape[axis] - n, n), slice_axis(c.b, x, axis, 0, n))
    return x


def _scan(op: OpDef) -> Convert:
    """Running sums and products; of f32 they are in f64, as PyTorch's are: products that underflow and come back, and
    the ends of long sums, would differ in their first digits."""

    def convert(c: AtenCall) -> Result:
        x = c.tensor("self", c.dtype)
        accumulator = f64 if x.dtype is f32 else None
        y = c.b(op, x, axis=c.axis(len(x.shape)), accumulator=accumulator) if x.shape else x
        return y if len(c.results) == 1 else (y, None)

    return convert


def _softmax(op: OpDef) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = c.tensor("self", c.dtype)
        if not x.shape:
            return reshape(c.b, c.b(op, reshape(c.b, x, (1,)), axis=0), ())
        return c.b(op, x, axis=c.axis(len(x.shape)))

    return convert


def _safe_softmax(c: AtenCall) -> Node:
    """Softmax with zeros, not NaN, in rows that hold only minus infinity."""
    x = c.tensor("self", c.dtype)
    axis = c.axis(len(x.shape))
    alive = c.b(ops.gt, x, c.b.const(-math.inf, x.dtype))
    row = c.b(ops.reduce_any, alive, axes=(axis,), keepdims=True)
    return c.b(ops.where, row, c.b(ops.softmax, x, axis=axis), c.b.const(0, x.dtype))


def _topk(c: AtenCall) -> Result:
    x, k = c.tensor("self"), c["k"]
    if isinstance(k, Node):
        raise Unsupported("top-k with a k that is data", "make k a Python number")
    if not x.shape:
        return reshape(c.b, x, c.shape), c.b(ops.full, value=0.0, dtype=i64, shape=c.shape)
    axis = c.axis(len(x.shape))
    return c.b.results(c.b(ops.top_k, x, k=k, axis=axis, largest=bool(c["largest"]), sorted=bool(c["sorted"])))


def _sort(c: AtenCall) -> tuple[Node, ...]:
    x = c.tensor("self")
    if not x.shape:
        return x, c.b.const(0, i64)
    stable = bool(c.args.get("stable"))
    axis = norm_axis(c["dim"], len(x.shape))
    return c.b.results(c.b(ops.sort, x, axis=axis, descending=bool(c["descending"]), stable=stable))


def _argsort(c: AtenCall) -> Node:
    found = _sort(c)
    assert isinstance(found, tuple)
    return found[1]


TABLE: Mapping[str, Convert] = {
    "sum.default": _reduce(ops.reduce_sum, ops.reduce_any), "sum.dim_IntList": _reduce(ops.reduce_sum, ops.reduce_any),
    "mean.default": _reduce(ops.reduce_mean), "mean.dim": _reduce(ops.reduce_mean),
    "prod.default": _reduce(ops.reduce_prod, ops.reduce_all), "prod.dim_int": _reduce(ops.reduce_prod, ops.reduce_all),
    "amax.default": _reduce(ops.reduce_max), "amin.default": _reduce(ops.reduce_min),
    "max.default": _reduce(ops.reduce_max), "min.default": _reduce(ops.reduce_min),
    "any.default": _truth(ops.reduce_any), "any.dim": _truth(ops.reduce_any), "any.dims": _truth(ops.reduce_any),
    "all.default": _truth(ops.reduce_all), "_is_all_true.default": _truth(ops.reduce_all),
    "all.dim": _truth(ops.reduce_all), "all.dims": _truth(ops.reduce_all),
    "max.dim": _extreme(ops.reduce_max, ops.argmax), "min.dim": _extreme(ops.reduce_min, ops.argmin),
    "argmax.default": _arg(ops.argmax), "argmin.default": _arg(ops.argmin),
    "var.correction": lambda c: _variance(c, c.dtype)[0], "var.dim": lambda c: _variance(c, c.dtype)[0],
    "var.default": lambda c: _variance(c, c.dtype)[0], "std.correction": _std, "std.dim": _std, "std.default": _std,
    "var_mean.correction": _var_mean, "var_mean.dim": _var_mean,
    "logsumexp.default": _logsumexp, "linalg_vector_norm.default": _norm, "norm.ScalarOpt_dim": _norm,
    "norm.Scalar": _norm, "_cdist_forward.default": _cdist, "_pdist_forward.default": _pdist,
    "hash_tensor.default": _hash,
    "dist.default": lambda c: _norm_over(
        c, c.b(ops.sub, c.tensor("self", c.dtype), c.tensor("other", c.dtype)), c.static("p"),
        tuple(range(max(len(c["self"].shape), len(c["other"].shape)))), False),
    "diff.default": _diff, "cumsum.default": _scan(ops.cumsum), "cumprod.default": _scan(ops.cumprod),
    "_softmax.default": _softmax(ops.softmax), "softmax.int": _softmax(ops.softmax),
    "_log_softmax.default": _softmax(ops.log_softmax), "log_softmax.int": _softmax(ops.log_softmax),
    "_safe_softmax.default": _safe_softmax,
    "topk.default": _topk, "sort.default": _sort, "sort.stable": _sort, "argsort.default": _argsort,
    "argsort.stable": _argsort,
}  # fmt: skip
