"""Attention and rotary position embedding.

In: queries, keys, values (batch, heads, length, depth) and an optional mask; or activations with their angles.
Out: the attended values; the rotated activations. Not its business: the streaming form (``partition``, ``tile``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Inside, Load, Select, Stage, axes_for, syms
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.common import (
    FLOATS,
    axis_over,
    broadcast_load,
    cast_to,
    check,
    check_broadcasts,
    check_dtype,
    check_equal_dims,
    check_equal_dtypes,
    check_rank,
    narrowed,
    wide,
    widened,
)
from tilewright.ops.contract import matmul
from tilewright.ops.elementwise import cast_node
from tilewright.ops.movement import reshape, transpose
from tilewright.ops.norm import weights_below_top
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.samples import random
from tilewright.ops.window import trilu

COMPOSITE = frozenset({Trait.COMPOSITE})

# --- attention ------------------------------------------------------------------------------------------------------


def _infer_attention(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    q, k, v = ts[:3]
    for t, what in zip((q, k, v), ("the queries", "the keys", "the values"), strict=True):
        check_rank(t, 4, what, 4)
    dtype = check_equal_dtypes((q, k, v), FLOATS)
    check_equal_dims(q.shape[0], k.shape[0], lambda: "batches of queries and keys")
    check_equal_dims(k.shape[0], v.shape[0], lambda: "batches of keys and values")
    check_equal_dims(q.shape[3], k.shape[3], lambda: "depths of queries and keys")
    check_equal_dims(k.shape[1], v.shape[1], lambda: "heads of keys and values")
    check_equal_dims(k.shape[2], v.shape[2], lambda: "lengths of keys and values")
    group = _group_size(q.shape[1], k.shape[1])
    check_equal_dims(group * k.shape[1], q.shape[1], lambda: "heads of queries and groups of heads of keys")
    check(len(ts) <= 4, lambda: f"takes one mask at most, got {len(ts) - 3}")
    scores = (*q.shape[:3], k.shape[2])
    for mask in ts[3:]:
        check_dtype(mask, (types.bool_, dtype), "the mask")
        check_broadcasts(mask, scores, "the mask")
    return TensorType(dtype, (*q.shape[:3], v.shape[3]))


def _group_size(q_heads: Dim, kv_heads: Dim) -> Dim:
    """How many heads of queries share a head of keys."""
    return 1 if q_heads == kv_heads or kv_heads == 0 else floordiv(q_heads, kv_heads)


def _decompose_attention(b: Builder, inputs: tuple[Node, ...], a: Attrs) -> Node:
    """Heads of queries that share keys are an axis of their own; scores are held in f32 at least.

    The scale is part of the exponential's where nothing comes between that minds it. ``1 / sum`` comes after the
    product with the values, which has fewer elements than the scores.
    """
    q, k, v, *masks = inputs
    shape = (*q.shape[:3], v.shape[3])
    batch, heads = q.shape[:2]
    kv_heads, group = k.shape[1], _group_size(heads, k.shape[1])
    if group != 1:
        q = b(reshape, q, shape=(batch, kv_heads, group, *q.shape[2:]))
        k = b(reshape, k, shape=(batch, kv_heads, 1, *k.shape[2:]))
        v = b(reshape, v, shape=(batch, kv_heads, 1, *v.shape[2:]))
        masks = [_grouped_mask(b, m, kv_heads, group) for m in masks]
    rank = q.type.rank
    score_dtype = wide(q.dtype)
    k_transposed = b(transpose, k, perm=(*range(rank - 2), rank - 1, rank - 2))
    scores = b(matmul, q, k_transposed, out_dtype=score_dtype)
    is_late = a.scale > 0 and not a.softcap and all(m.dtype is types.bool_ for m in masks)
    if not is_late:
        scores = b(ew.mul, scores, b.const(a.scale, score_dtype))
    if a.softcap:
        cap = b.const(a.softcap, score_dtype)
        scores = b(ew.mul, b(ew.tanh, b(ew.div, scores, cap)), cap)
    scores = _masked(b, scores, masks, a.causal)
    e = weights_below_top(b, scores, rank - 1, a.scale if is_late else 1.0)
    per_sum = b(ew.reciprocal, b(reduce_sum, e, axes=(rank - 1,), keepdims=True))
    if v.dtype in (types.bf16, types.f16):  # rounded, so that the product can use the instructions of its dtype
        weights = cast_node(b, b(ew.mul, e, per_sum), v.dtype)
        return b(reshape, b(matmul, weights, v), shape=shape)
    product = b(ew.mul, b(matmul, e, cast_node(b, v, score_dtype)), per_sum)
    return b(reshape, cast_node(b, product, q.dtype), shape=shape)


def _grouped_mask(b: Builder, mask: Node, kv_heads: Dim, group: Dim) -> Node:
    """A mask over (batch, heads, queries, keys), or fewer of them, for heads in groups."""
    shape: list[Dim] = [*[1] * (4 - mask.type.rank), *mask.shape]
    shape[1:2] = [1, 1] if shape[1] == 1 else [kv_heads, group]
    return b(reshape, mask, shape=shape)


def _masked(b: Builder, scores: Node, masks: Sequence[Node], causal: bool) -> Node:
    """``scores`` with -inf where a query must not see a key, additive masks added."""
    never = b.const(float("-inf"), scores.dtype)
    for mask in masks:
        if mask.dtype is types.bool_:
            scores = b(ew.where, mask, scores, never)
        else:
            scores = b(ew.add, scores, cast_node(b, mask, scores.dtype))
    if causal:
        scores = b(trilu, scores, upper=False, fill=float("-inf"))
    return scores


def _attention_of(xs: Sequence[Array], a: Attrs) -> Array:
    dtype = types.dtype_of(xs[0].dtype)
    q, k, v = (widened(x) for x in xs[:3])
    group = int(_group_size(q.shape[1], k.shape[1]))  # type: ignore[arg-type]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    with np.errstate(all="ignore"):
        scores = np.matmul(q, k.swapaxes(2, 3)) * q.dtype.type(a.scale)
        if a.softcap:
            scores = np.tanh(scores / q.dtype.type(a.softcap)) * q.dtype.type(a.softcap)
        for mask in xs[3:]:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + widened(mask)
        if a.causal:
            scores = np.where(np.tri(*scores.shape[2:], dtype=np.bool_), scores, -np.inf)
        e = np.exp(scores - np.max(scores, axis=3, keepdims=True, initial=-np.inf))
        weights = (e / np.sum(e, axis=3, keepdims=True)).astype(q.dtype)
        return narrowed(np.matmul(weights, v), dtype)


def _attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    def qkv(b: int, heads: int, kv: int, length: int, keys: int) -> tuple[Array, ...]:
        return random(rng, (b, heads, length, 4)), random(rng, (b, kv, keys, 4)), random(rng, (b, kv, keys, 3))

    mask = np.ones((3, 5), np.bool_)
    mask[1, 2:] = False
    blind = mask.copy()
    blind[0] = False
    yield Sample(qkv(2, 2, 2, 3, 5), {"scale": 0.5})
    yield Sample(qkv(1, 4, 2, 3, 3), {"scale": 0.5, "causal": True})
    yield Sample((*qkv(2, 2, 1, 3, 5), mask), {"scale": 1.0, "softcap": 2.0})
    yield Sample((*qkv(1, 2, 2, 3, 5), random(rng, (1, 2, 1, 5))), {"scale": 0.25, "causal": True})
    yield Sample((*qkv(1, 1, 1, 3, 5), blind), {"scale": 1.0})
    yield Sample(qkv(1, 2, 2, 1, 4), {"scale": 0.5})
    yield Sample(qkv(0, 2, 2, 3, 2), {"scale": 0.5})


attention = OpDef(
    "attention", ("q", "k", "v", "*mask"),
    {"scale": AttrDef("float"), "causal": AttrDef("bool", False), "softcap": AttrDef("float", 0.0)}, _infer_attention,
    _attention_of, decompose=_decompose_attention, traits=COMPOSITE, samples=_attention_samples,
    doc="softmax(scale * q k') v; a bool mask says what to attend, a float mask is added; a row without keys is NaN.",
)  # fmt: skip

# --- rotary ---------------------------------------------------------------------------------------------------------


def _infer_rotary(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    x, cos, sin = ts
    check_equal_dtypes(ts, FLOATS)
    check_rank(x, 1, "the operand")
    depth = x.shape[-1]
    check(not is_known(depth) or depth % 2 == 0, lambda: f"the depth of {x} must be even")
    half = (*x.shape[:-1], floordiv(depth, 2))
    for t in (cos, sin):
        check_broadcasts(t, half, "the operand of angles")
    return x


def _compute_rotary(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    """``out[j, d] = x[j, d] * cos[d] -+ x[1-j, d] * sin[d]``, where ``j`` says which of the pair."""
    (x, cos, sin), (out,) = ins, outs
    half = floordiv(x.shape[-1], 2)
    lead = axes_for(x.shape[:-1])
    part, depth = axis_over(2, "j"), axis_over(half, "d")
    dtype = wide(x.dtype)

    def at(j: Dim) -> tuple[Dim, ...]:
        return (*syms(lead), depth.sym * 2 + j if a.interleaved else j * half + depth.sym)

    angle = (*syms(lead), depth.sym)
    other = cast_to(Load(x, at(1 - part.sym)), dtype) * cast_to(broadcast_load(sin, angle), dtype)
    turned = Select(Inside((part.sym - 1,)), other, -other)
    value = cast_to(Load(x, at(part.sym)), dtype) * cast_to(broadcast_load(cos, angle), dtype) + turned
    axes = (*lead, depth, part) if a.interleaved else (*lead, part, depth)
    return (Stage((out,), axes, at(part.sym), (cast_to(value, out.dtype),)),)


def _rotary_of(xs: Sequence[Array], a: Attrs) -> Array:
    x, cos, sin = (widened(x) for x in xs)
    half = x.shape[-1] // 2
    first, second = (x[..., ::2], x[..., 1::2]) if a.interleaved else (x[..., :half], x[..., half:])
    with np.errstate(all="ignore"):
        pair = [first * cos - second * sin, second * cos + first * sin]
    turned = np.stack(pair, -1).reshape(x.shape) if a.interleaved else np.concatenate(pair, -1)
    return narrowed(turned, types.dtype_of(xs[0].dtype))


def _rotary_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for interleaved in (False, True):
        attrs = {"interleaved": interleaved}
        yield Sample((random(rng, (2, 2, 3, 6)), random(rng, (3, 3)), random(rng, (3, 3))), attrs)
        yield Sample((random(rng, (2, 3, 4)), random(rng, (2, 1, 2)), random(rng, (3, 2))), attrs)
        yield Sample((random(rng, (2,)), random(rng, (1,)), random(rng, (1,))), attrs)
    yield Sample((random(rng, (0, 4)), random(rng, (2,)), random(rng, (2,))))


rotary = OpDef(
    "rotary", ("x", "cos", "sin"), {"interleaved": AttrDef("bool", False)}, _infer_rotary, _rotary_of, _compute_rotary,
    traits=COMPOSITE, samples=_rotary_samples,
    doc="Every pair of the last axis turned by its angle; pairs are halves apart, or neighbours when interleaved.",
)  # fmt: skip
