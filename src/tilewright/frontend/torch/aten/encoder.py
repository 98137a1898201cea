"""PyTorch's fused calls of a transformer's encoder in evaluation: a whole layer, and attention with its projections.

In: calls with packed weights. Out: products, attention and norms as separate nodes, which the graph's passes know.
Not its business: nested tensors, which PyTorch's shape propagation refuses; training, which PyTorch does not fuse.

A mask of any dtype hides the keys where it is not zero, and a query that sees no key gives NaN: both are the fused
calls' own meaning, unlike ``scaled_dot_product_attention``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import bool_
from tilewright.frontend.nodes import reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]

OF_QUERIES, OF_KEYS, OF_ALL = 0, 1, 2
"""``mask_type``: (queries, keys); (batch, keys); (batch, heads, queries, keys)."""


def _linear(c: AtenCall, x: Node, weight: Node, bias: Node) -> Node:
    return c.b(ops.add, c.b(ops.matmul, x, transpose(c.b, weight, (1, 0))), bias)


def _projected(c: AtenCall, x: Node, part: int, n_parts: int = 1) -> Node:
    """``x`` by that part, or those, of the packed weights of queries, keys and values."""
    size = c["embed_dim"]
    weight, bias = (
        slice_axis(c.b, c.tensor(f"qkv_{name}", x.dtype), 0, part * size, n_parts * size) for name in ("weight", "bias")
    )
    return _linear(c, x, weight, bias)


def _projections(c: AtenCall, query: Node, key: Node, value: Node) -> list[Node]:
    """Queries, keys and values: one product where they are of one tensor."""
    if query is key and key is value:
        packed = _projected(c, query, 0, 3)
        return [slice_axis(c.b, packed, 2, k * c["embed_dim"], c["embed_dim"]) for k in range(3)]
    return [_projected(c, x, k) for k, x in enumerate((query, key, value))]


def _heads(c: AtenCall, x: Node, n_heads: int) -> Node:
    batch, length, width = x.shape
    assert is_known(width)
    return transpose(c.b, reshape(c.b, x, (batch, length, n_heads, width // n_heads)), (0, 2, 1, 3))


def _open(c: AtenCall) -> Node | None:
    """Which keys each query sees, against (batch, heads, queries, keys); None where it sees all."""
    mask, kind = c.optional("mask"), c["mask_type"]
    if mask is None:
        return None
    if kind == OF_KEYS:
        batch, n_keys = mask.shape
        mask = reshape(c.b, mask, (batch, 1, 1, n_keys))
    elif kind not in (OF_QUERIES, OF_ALL):
        raise Unsupported("an attention mask of an unknown kind", "pass mask_type 0, 1 or 2")
    return c.b(ops.logical_not, mask if mask.dtype is bool_ else cast(c.b, mask, bool_))


def _attended(c: AtenCall, n_heads: int, query: Node, key: Node, value: Node) -> tuple[Node, Node, Node]:
    """The projected result of attention, and the queries and keys of its heads."""
    q, k, v = (_heads(c, x, n_heads) for x in _projections(c, query, key, value))
    open_, width = _open(c), q.shape[-1]
    assert is_known(width)
    operands = [] if open_ is None else [open_]
    y = c.b(ops.attention, q, k, v, *operands, scale=1 / math.sqrt(width), causal=False)
    y = reshape(c.b, transpose(c.b, y, (0, 2, 1, 3)), query.shape)
    return _linear(c, y, c.tensor("proj_weight", y.dtype), c.tensor("proj_bias", y.dtype)), q, k


def _weights(c: AtenCall, q: Node, k: Node) -> Node:
    """How much each query attends to each key: of every head, or their mean."""
    width, open_ = q.shape[-1], _open(c)
    assert is_known(width)
    scores = c.b(ops.matmul, q, transpose(c.b, k, (0, 1, 3, 2)))
    scores = c.b(ops.mul, scores, c.b.const(1 / math.sqrt(width), q.dtype))
    if open_ is not None:
        scores = c.b(ops.where, open_, scores, c.b.const(-math.inf, q.dtype))
    weights = c.b(ops.softmax, scores, axis=3)
    return c.b(ops.reduce_mean, weights, axes=(1,), keepdims=False) if c["average_attn_weights"] else weights


def _attention(c: AtenCall) -> Result:
    query, key, value = (c.tensor(name) for name in ("query", "key", "value"))
    y, q, k = _attended(c, c["num_head"], query, key, value)
    return y, _weights(c, q, k) if c["need_weights"] else None


def _layer(c: AtenCall) -> Node:
    """Attention and a block of two products, each added to what it reads; norms before both, or behind."""
    x, is_first = c.tensor("src"), c["norm_first"]

    def norm(x: Node, k: int) -> Node:
        scale, shift = (c.tensor(f"norm_{name}_{k}", x.dtype) for name in ("weight", "bias"))
        return c.b(ops.layer_norm, x, scale, shift, axis=2, epsilon=float(c["eps"]))

    seen = norm(x, 1) if is_first else x
    x = c.b(ops.add, _attended(c, c["num_heads"], seen, seen, seen)[0], x)
    x = x if is_first else norm(x, 1)
    inner = norm(x, 2) if is_first else x
    inner = _linear(c, inner, c.tensor("ffn_weight_1", x.dtype), c.tensor("ffn_bias_1", x.dtype))
    inner = c.b(ops.gelu, inner, approximate="none") if c["use_gelu"] else c.b(ops.relu, inner)
    x = c.b(ops.add, _linear(c, inner, c.tensor("ffn_weight_2", x.dtype), c.tensor("ffn_bias_2", x.dtype)), x)
    return x if is_first else norm(x, 2)


TABLE: Mapping[str, Convert] = {
    "_transformer_encoder_layer_fwd.default": _layer,
    "_native_multi_head_attention.default": _attention,
}
