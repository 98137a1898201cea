"""ATen's normalisations and attention.

In: calls. Out: whole ops (``layer_norm``, ``batch_norm``, ``attention``...), so that later stages see the composite.
The statistics that training graphs also ask for are separate nodes, dropped where nobody reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import bool_, f32
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.backward import log_sums
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]


def _filled(c: AtenCall, given: Node | None, value: float, like: Node, n: Dim) -> Node:
    """An affine parameter, or what its absence means."""
    return given if given is not None else c.b(ops.full, value=value, dtype=like.dtype, shape=(n,))


def _batch_norm(mean: str, var: str) -> Convert:
    def convert(c: AtenCall) -> Result:
        if c.args.get("training"):
            if c[mean] is not None:
                raise Unsupported("batch norm in training mode", "call module.eval() before compiling")
            return _batch_stats_norm(c)
        x = c.tensor("input")
        n = x.shape[1]
        scale = _filled(c, c.optional("weight"), 1.0, x, n)
        bias = _filled(c, c.optional("bias"), 0.0, x, n)
        parts = [cast(c.b, p, x.dtype) for p in (scale, bias, c.tensor(mean), c.tensor(var))]
        epsilon = c["epsilon"] if "epsilon" in c.args else c["eps"]  # cuDNN's call spells it out
        y = c.b(ops.batch_norm, x, *parts, epsilon=float(epsilon), axis=1)
        return y if len(c.results) == 1 else (y, *_empty(c))

    return convert


def _empty(c: AtenCall) -> list[Node | None]:
    """Statistics that nobody keeps outside of training: tensors without elements."""
    return [
        c.b(ops.full, value=0.0, dtype=t.dtype, shape=t.shape) if t is not None and t.shape == (0,) else None
        for t in c.results[1:]
    ]


def _instance_norm(c: AtenCall) -> Result:
    """Statistics of each channel of each sample, whatever batch norm calls them."""
    if not c["use_input_stats"]:
        return _batch_norm("running_mean", "running_var")(c)
    x = c.tensor("input")
    n = x.shape[1]
    scale = _filled(c, c.optional("weight"), 1.0, x, n)
    bias = _filled(c, c.optional("bias"), 0.0, x, n)
    return c.b(ops.instance_norm, x, scale, bias, epsilon=float(c["eps"]))


def _batch_stats_norm(c: AtenCall) -> Result:
    """Batch norm with the batch's own statistics: what instance norm becomes when PyTorch takes it apart."""
    x = c.tensor("input")
    axes = tuple(k for k in range(len(x.shape)) if k != 1)
    wide = cast(c.b, x, f32) if x.dtype.bits < 32 else x
    mean = c.b(ops.reduce_mean, wide, axes=axes, keepdims=True)
    var = c.b(ops.variance, wide, axes=axes, keepdims=True, correction=0.0)
    deviation = _rsqrt(c, var, c["eps"])
    y = c.b(ops.mul, c.b(ops.sub, wide, mean), deviation)
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    for op, name in ((ops.mul, "weight"), (ops.add, "bias")):
        if c[name] is not None:
            y = c.b(op, y, reshape(c.b, c.tensor(name, y.dtype), shape))
    if len(c.results) == 1:
        return cast(c.b, y, x.dtype)
    kept = [reshape(c.b, s, (x.shape[1],)) for s in (mean, deviation)]
    types = [t.dtype if t is not None else s.dtype for s, t in zip(kept, c.results[1:], strict=True)]
    return cast(c.b, y, x.dtype), *(cast(c.b, s, d) for s, d in zip(kept, types, strict=True))


def _rsqrt(c: AtenCall, var: Node, eps: float) -> Node:
    return c.b(ops.rsqrt, c.b(ops.add, var, c.b.const(eps, var.dtype)))


def _statistics(c: AtenCall, x: Node, axes: Sequence[int], eps: float) -> tuple[Node, Node]:
    """Mean and reciprocal deviation, which training graphs keep."""
    mean = c.b(ops.reduce_mean, x, axes=tuple(axes), keepdims=True)
    return mean, _rsqrt(c, c.b(ops.variance, x, axes=tuple(axes), keepdims=True, correction=0.0), eps)


def _layer_norm(c: AtenCall) -> Result:
    """Over any number of last axes: weights of several axes are flat for a flat last axis."""
    x, n = c.tensor("input"), len(c["normalized_shape"])
    rank = len(x.shape)
    weight, bias = c.optional("weight", x.dtype), c.optional("bias", x.dtype)
    affine = []
    if weight is not None or bias is not None:
        shape = x.shape[rank - n :]
        affine = [weight if weight is not None else c.b(ops.full, value=1.0, dtype=x.dtype, shape=shape)]
        affine += [bias] if bias is not None else []
    y = c.b(ops.layer_norm, x, *affine, axis=rank - n, epsilon=float(c["eps"]))
    if len(c.results) == 1:
        return y
    kept = [x.dtype if t is None else t.dtype for t in c.results[1:]]  # a GPU's call keeps those of 16 bits in f32
    wide = cast(c.b, x, f32) if f32 in kept else x
    parts = _statistics(c, wide, range(rank - n, rank), c["eps"])
    return y, *(cast(c.b, p, d) for p, d in zip(parts, kept, strict=True))


def _rms_norm(c: AtenCall) -> Result:
    x, n = c.tensor("input"), len(c["normalized_shape"])
    rank = len(x.shape)
    eps = c.args.get("eps")
    epsilon = float(ml_dtypes.finfo(x.dtype.numpy).eps) if eps is None else float(eps)
    weight = c.optional("weight", x.dtype)
    if weight is None:
        weight = c.b(ops.full, value=1.0, dtype=x.dtype, shape=x.shape[rank - n :])
    y = c.b(ops.rms_norm, x, weight, axis=rank - n, epsilon=epsilon)
    return y if len(c.results) == 1 else (y, None)


def _group_norm(c: AtenCall) -> Result:
    x = c.tensor("input")
    n = x.shape[1]
    groups = c["group"] if "group" in c.args else c["num_groups"]
    scale = _filled(c, c.optional("weight", x.dtype), 1.0, x, n)
    bias = _filled(c, c.optional("bias", x.dtype), 0.0, x, n)
    y = c.b(ops.group_norm, x, scale, bias, groups=groups, epsilon=float(c["eps"]))
    if len(c.results) == 1:
        return y
    size: Dim = 1
    for d in x.shape[2:]:
        size = size * d
    grouped = reshape(c.b, x, (x.shape[0], groups, size * (n // groups)))
    wide = cast(c.b, grouped, f32) if x.dtype.bits < 32 else grouped
    parts = _statistics(c, wide, (2,), c["eps"])
    return y, *(cast(c.b, reshape(c.b, p, (x.shape[0], groups)), x.dtype) for p in parts)


# --- attention ------------------------------------------------------------------------------------------------------


def _heads(c: AtenCall, name: str) -> Node:
    """A query, key or value as batch, heads, length, width."""
    x = c.tensor(name)
    rank = len(x.shape)
    if rank == 4:
        return x
    lead = x.shape[:-2]
    flat: Dim = 1
    for d in lead[:-1] if rank > 4 else ():
        flat = flat * d
    heads = lead[-1] if lead else 1
    return reshape(c.b, x, (flat, heads, *x.shape[-2:]))


def _mask(c: AtenCall, mask: Node, rank: int) -> Node:
    """A mask against four axes."""
    if len(mask.shape) <= 4:
        return mask
    if len(mask.shape) == rank and are_known(mask.shape[:-3]):
        return reshape(c.b, mask, (math.prod(d for d in mask.shape[:-3] if is_known(d)), *mask.shape[-3:]))
    raise Unsupported(f"an attention mask of {len(mask.shape)} axes", "use one of at most 4 axes")


def _attention(c: AtenCall) -> Result:
    """Scaled dot-product attention; a query that may attend to nothing gives zeros, as PyTorch's does."""
    if c["dropout_p"] != 0:
        raise Unsupported("attention with dropout", "call module.eval() before compiling")
    q, k, v = (_heads(c, name) for name in ("query", "key", "value"))
    width = q.shape[-1]
    scale = c.args.get("scale")
    if scale is None and is_known(width):
        scale = 1 / math.sqrt(width)
    elif scale is None:
        root = c.b(ops.sqrt, dim_scalar(c.b, width, f32))
        q, scale = c.b(ops.mul, q, cast(c.b, c.b(ops.reciprocal, root), q.dtype)), 1.0
    mask = next((c.optional(name) for name in ("attn_mask", "attn_bias") if name in c.args), None)
    operands = [] if mask is None else [_mask(c, mask if mask.dtype is bool_ else cast(c.b, mask, q.dtype),
                                              len(c["query"].shape))]  # fmt: skip
    y = c.b(ops.attention, q, k, v, *operands, scale=float(scale), causal=bool(c["is_causal"]))
    if operands:
        y = _zero_dead_rows(c, y, operands[0])
    y = reshape(c.b, y, c.shape)
    return y if len(c.results) == 1 else (y, *(None,) * (len(c.results) - 1))


def _flash_attention(c: AtenCall) -> Result:
    """With what a backward call takes: nothing is computed for it where nobody reads it."""
    found = _attention(c)
    assert isinstance(found, tuple)
    return found[0], log_sums(c, c.tensor("query"), c.tensor("key"))


def _zero_dead_rows(c: AtenCall, y: Node, mask: Node) -> Node:
    """Zeros where a query's whole row is masked: the op gives NaN there."""
    open_ = mask if mask.dtype is bool_ else c.b(ops.gt, mask, c.b.const(-math.inf, mask.dtype))
    if len(open_.shape) < 2:
        open_ = reshape(c.b, open_, ((1,) * (2 - len(open_.shape)) + open_.shape))
    alive = c.b(ops.reduce_any, open_, axes=(len(open_.shape) - 1,), keepdims=True)
    return c.b(ops.where, alive, y, c.b.const(0, y.dtype))


TABLE: Mapping[str, Convert] = {
    "_native_batch_norm_legit_no_training.default": _batch_norm("running_mean", "running_var"),
    "batch_norm.default": _batch_norm("running_mean", "running_var"),
    "_batch_norm_no_update.default": _batch_norm("running_mean", "running_var"),
    "native_batch_norm.default": _batch_norm("running_mean", "running_var"),
    "cudnn_batch_norm.default": _batch_norm("running_mean", "running_var"),
    "_native_batch_norm_legit.no_stats": _batch_stats_norm,
    "instance_norm.default": _instance_norm,
    "native_layer_norm.default": _layer_norm, "layer_norm.default": _layer_norm,
    "rms_norm.default": _rms_norm, "_fused_rms_norm.default": _rms_norm,
    "native_group_norm.default": _group_norm, "group_norm.default": _group_norm,
    "scaled_dot_product_attention.default": _attention,
    "_scaled_dot_product_flash_attention_for_cpu.default": _flash_attention,
    "_scaled_dot_product_attention_math.default": _attention,
    # What PyTorch traces for a GPU; what else they give is for backward calls, which PyTorch has the kernels of.
    "_scaled_dot_product_flash_attention.default": _attention,
    "_scaled_dot_product_efficient_attention.default": _attention,
    "_scaled_dot_product_cudnn_attention.default": _attention,
}  # fmt: skip
