"""Converters of ONNX attention and rotary embedding.

In: a ``Call``. Out: nodes of the graph IR. Forms that the graph's attention op can't say are expanded from ONNX's own
definition. Not its business: how attention is computed (``ops``).
"""

from __future__ import annotations

import math

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import bool_, f32, i64
from tilewright.frontend.onnx.call import Call, Results, Table, UseDefinition
from tilewright.frontend.onnx.ops.movement import join


def split_heads(c: Call, x: Node, n_heads: int) -> Node:
    """B, S, H*D as B, H, S, D."""
    batch, length, hidden = x.shape
    if n_heads < 1 or (is_known(hidden) and hidden % n_heads):
        c.refuse(f"{n_heads} heads don't divide the hidden size {hidden}")
    parts = c.reshape(x, (batch, length, n_heads, expr.floordiv(hidden, n_heads)))
    return c.transpose(parts, (0, 2, 1, 3))


def merge_heads(c: Call, x: Node) -> Node:
    """B, H, S, D as B, S, H*D."""
    batch, heads, length, size = x.shape
    return c.reshape(c.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def causal_mask(c: Call, n_queries: Dim, n_keys: Dim, offset: Dim) -> Node:
    """True where query ``i`` may see key ``j``: ``j <= i + offset``."""
    query = c.reshape(c(ops.iota, extent=n_queries, dtype=i64), (n_queries, 1))
    key = c.reshape(c(ops.iota, extent=n_keys, dtype=i64), (1, n_keys))
    return c(ops.le, key, c(ops.add, query, c.dim_value(offset)))


def _full_mask(c: Call, mask: Node, n_keys: Dim) -> Node:
    """The mask with missing last keys hidden."""
    length = mask.shape[-1]
    if length == n_keys or length == 1 or not (is_known(length) and is_known(n_keys)):
        return mask
    if length > n_keys:
        c.refuse(f"the mask has {length} keys and there are {n_keys}")
    hidden = c.const(False if mask.dtype is bool_ else -math.inf, mask.dtype)
    pads = [(0, 0)] * (len(mask.shape) - 1) + [(0, n_keys - length)]
    return c(ops.pad, mask, hidden, pads=tuple(pads))


def _attention(c: Call) -> Results:
    # lengths of the keys, the scores as a result
    if c.value(6) is not None or c.wants(3) or c.has("softmax_precision"):
        raise UseDefinition
    if c.int_("left_window_size", -1) != -1 or c.int_("right_window_size", -1) != -1:
        raise UseDefinition
    c.ignore("qk_matmul_output_mode")
    q, k, v, mask = c.x(0), c.x(1), c.x(2), c.opt(3)
    if not q.dtype is k.dtype is v.dtype:
        raise UseDefinition
    flat = len(q.shape) == 3
    q_heads, kv_heads = c.int_("q_num_heads", 0), c.int_("kv_num_heads", 0)
    if flat:
        q, k, v = split_heads(c, q, q_heads), split_heads(c, k, kv_heads), split_heads(c, v, kv_heads)
    past_key, past_value = c.opt(4), c.opt(5)
    past: Dim = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = join(c, (past_key, k), 2), join(c, (past_value, v), 2)
    q, scale = scaled_queries(c, q)
    n_queries, n_keys = q.shape[2], k.shape[2]
    causal = c.flag("is_causal")
    if mask is not None:
        mask = _full_mask(c, mask, n_keys)
    if causal and (past != 0 or mask is not None):
        # the op's own flag knows of no past, and `_guarded` must see everything that hides a key
        visible = causal_mask(c, n_queries, n_keys, past)
        if mask is None:
            mask = visible
        elif mask.dtype is bool_:
            mask = c(ops.logical_and, mask, visible)
        else:
            mask = c(ops.where, visible, mask, c.const(-math.inf, mask.dtype))
        causal = False
    y = c(
        ops.attention, q, k, v, *([mask] if mask is not None else []),
        scale=scale, causal=causal, softcap=c.float_("softcap", 0.0),
    )  # fmt: skip
    if mask is not None:
        y = _guarded(c, y, mask)
    return (merge_heads(c, y) if flat else y, k if c.wants(1) else None, v if c.wants(2) else None)


def scaled_queries(c: Call, q: Node) -> tuple[Node, float]:
    """The queries and what scores are multiplied by: the node's ``scale``, or by default 1 / sqrt(depth), by which the
    queries are where calls decide the depth."""
    scale, depth = c.float_("scale", 0.0), q.shape[-1]
    if scale:  # 0 stands for the default
        return q, scale
    if is_known(depth):
        return q, 1 / math.sqrt(max(depth, 1))
    return c(ops.mul, q, c.cast(c(ops.rsqrt, c.dim_value(depth, f32)), q.dtype)), 1.0


def _guarded(c: Call, y: Node, mask: Node) -> Node:
    """0 for queries that may see no key, where softmax alone gives NaN."""
    if mask.dtype is not bool_:
        mask = c(ops.ne, mask, c.const(-math.inf, mask.dtype))
    last = len(mask.shape) - 1
    seen = mask if mask.shape[last] == 1 else c(ops.reduce_any, mask, axes=(last,), keepdims=True)
    return c(ops.where, seen, y, c.const(0, y.dtype))


def _rotary(c: Call) -> Node:
    """Rotates the first ``rotary_embedding_dim`` elements of each head by its position's angles."""
    x, cos, sin, positions = c.x(0), c.x(1), c.x(2), c.opt(3)
    flat = len(x.shape) == 3
    n_heads, part = c.int_("num_heads", 0), c.int_("rotary_embedding_dim", 0)
    if flat:
        x = split_heads(c, x, n_heads)
    if positions is not None:
        cos, sin = (c(ops.gather, t, positions, axis=0) for t in (cos, sin))
    cos, sin = (c.reshape(t, (t.shape[0], 1, *t.shape[1:])) for t in (cos, sin))
    y = rotated(c, x, cos, sin, part, c.flag("interleaved"))
    return merge_heads(c, y) if flat else y


def rotated(c: Call, x: Node, cos: Node, sin: Node, part: int, interleaved: bool) -> Node:
    """The first ``part`` elements of the last axis turned by their angles, all of them where ``part`` is 0."""
    size = x.shape[-1]
    if not part or part == size:
        return c(ops.rotary, x, cos, sin, interleaved=interleaved)
    turned = c(ops.rotary, c.slice_axis(x, 3, 0, part), cos, sin, interleaved=interleaved)
    return c(ops.concat, turned, c.slice_axis(x, 3, part, size), axis=3)


TABLE: Table = {"Attention": _attention, "RotaryEmbedding": _rotary}
