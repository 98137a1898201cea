"""Converters of ONNX Runtime's attention ops: with projection, with heads apart, with caches written in place.

In: a ``Call``. Out: nodes of the graph IR around the graph's attention op; masks of lengths, padding and windows become
one boolean or additive mask. Not its business: the standard op (``onnx.ops.attention``), how attention is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import bool_, f32, i64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.frontend.onnx.ops.attention import causal_mask, merge_heads, rotated, scaled_queries, split_heads
from tilewright.frontend.onnx.ops.contract import centred, matmul
from tilewright.frontend.onnx.ops.movement import join
from tilewright.frontend.onnx.ops.norm import rms_norm

FILTER = -10000.0


def _attended(
    c: Call, q: Node, k: Node, v: Node, biases: Sequence[Node], visible: Node | None, softcap: float = 0.0
) -> Node:
    """B, S, N * H: attention with the node's ``scale``, additive ``biases`` and a boolean mask."""
    q, scale = scaled_queries(c, q)
    mask = visible
    if biases:
        total = reduce(lambda a, b: c(ops.add, a, b), biases)
        mask = total if visible is None else c(ops.where, visible, total, c.const(-math.inf, total.dtype))
    y = c(ops.attention, q, k, v, *([mask] if mask is not None else []), scale=scale, softcap=softcap)
    return merge_heads(c, y)


def _hidden(c: Call, mask: Node, n_queries: Dim, n_keys: Dim, batch: Dim, dtype: Node) -> Node:
    """A mask of 1 and 0, or of lengths, as what is added to the scores: 0, or ``mask_filter_value`` where hidden.

    Ranks: 1, ends of the keys, or ends and then starts; 2, keys; 3, queries and keys.
    """
    m = Formula(c)
    value = c.float_("mask_filter_value", FILTER)
    if len(mask.shape) == 1:
        seen = _between(c, mask, n_keys, batch)
    elif len(mask.shape) in (2, 3):
        c.assume_equal(mask.shape[-1], n_keys)
        rows = (1,) if len(mask.shape) == 2 else (mask.shape[1],)
        if len(mask.shape) == 3:
            c.assume_equal(mask.shape[1], n_queries)
        seen = m.gt(c.reshape(mask, (mask.shape[0], 1, *rows, mask.shape[-1])), 0)
    else:
        c.refuse(f"a mask of rank {len(mask.shape)} is not supported", "supported: lengths, or rank 2 and 3")
    return c(ops.where, seen, c.const(0, dtype.dtype), c.const(value, dtype.dtype))


def _between(c: Call, mask: Node, n_keys: Dim, batch: Dim) -> Node:
    m = Formula(c)
    n = mask.shape[0]
    places = c.reshape(m.steps(n_keys), (1, 1, 1, n_keys))
    if n == 2 * batch and n != batch:
        ends, starts = (
            c.reshape(c.cast(c.slice_axis(mask, 0, at, at + batch), i64), (batch, 1, 1, 1)) for at in (0, batch)
        )
        return m.both(m.lt(places, ends), m.ge(places, starts))
    if is_known(n) and is_known(batch) and n != batch:
        c.refuse(f"a mask of {n} numbers for a batch of {batch} is not supported", "give the mask with rank 2")
    c.assume_equal(n, batch)
    return m.lt(places, c.reshape(c.cast(mask, i64), (n, 1, 1, 1)))


# --- Attention ------------------------------------------------------------------------------------------------------


def _attention(c: Call) -> Results:
    projected = matmul(c, c.x(0), c.x(1))
    bias = c.opt(2)
    projected = projected if bias is None else c(ops.add, projected, bias)
    return _self_attention(c, projected, c.opt(3), c.opt(4), c.opt(5))


def _quantised_attention(c: Call) -> Results:
    """Integer projection; from there on as the plain op."""
    left, right = centred(c, c.x(0), c.opt(6), 0), centred(c, c.x(1), c.opt(7), 1)
    scale = c(ops.mul, *(c.reshape(s, ()) if s.shape == (1,) else s for s in (c.x(4), c.x(3))))
    projected = c(ops.mul, c.cast(matmul(c, left, right), f32), scale)
    return _self_attention(c, c(ops.add, projected, c.x(2)), c.opt(5), c.opt(8), None)


def _self_attention(c: Call, projected: Node, mask: Node | None, past: Node | None, bias: Node | None) -> Results:
    """Queries, keys and values side by side along the last axis of ``projected``; ``past`` is [2, B, N, P, H]."""
    if c.flag("past_present_share_buffer"):
        c.refuse("past_present_share_buffer=1 is not supported", "export with past and present apart")
    if c.flag("do_rotary"):
        c.refuse("do_rotary=1 is not supported", "export with RotaryEmbedding nodes")
    c.ignore("rotary_embedding_dim")
    heads, width = c.int_("num_heads"), projected.shape[-1]
    sizes = c.ints("qkv_hidden_sizes", [])
    if not sizes:
        if not is_known(width) or width % 3:
            c.refuse(f"the projection's {width} columns are not queries, keys and values of one size")
        sizes = [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width:
        c.refuse(f"qkv_hidden_sizes={sizes} don't add up to the projection's {width} columns")
    q, k, v = (split_heads(c, part, heads) for part in _parts(c, projected, sizes))
    before: Dim = 0
    if past is not None:
        before = past.shape[3]
        old = [c.reshape(c.slice_axis(past, 0, i, i + 1), past.shape[1:]) for i in (0, 1)]
        k, v = join(c, (old[0], k), 2), join(c, (old[1], v), 2)
    biases = [] if mask is None else [_hidden(c, mask, q.shape[2], k.shape[2], q.shape[0], q)]
    biases += [] if bias is None else [bias]
    c.ignore("mask_filter_value")  # which only a mask reads
    visible = causal_mask(c, q.shape[2], k.shape[2], before) if c.flag("unidirectional") else None
    y = _attended(c, q, k, v, biases, visible)
    if not c.wants(1):
        return y
    return y, c(ops.concat, *(c.reshape(t, (1, *t.shape)) for t in (k, v)), axis=0)


def _parts(c: Call, x: Node, sizes: Sequence[Dim]) -> list[Node]:
    """The last axis cut into pieces of these sizes."""
    found = list[Node]()
    at: Dim = 0
    for size in sizes:
        found.append(c.slice_axis(x, len(x.shape) - 1, at, at + size))
        at = at + size
    return found


# --- MultiHeadAttention ---------------------------------------------------------------------------------------------


def _multi_head(c: Call) -> Results:
    for i, what in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if c.opt(i) is not None:
            c.refuse(f"{what} is not supported", "export with past and present apart, without beams")
    return _heads_apart(c, c.opt(3), c.opt(4), c.opt(5), (c.opt(6), c.opt(7)), c.flag("unidirectional"))


def _decoder_multi_head(c: Call) -> Results:
    """One query a row. A shared cache comes and goes whole; ``past_sequence_length`` says how much of it is used."""
    for i, what in ((8, "beam_width"), (9, "cache_indirection")):
        if c.opt(i) is not None:
            c.refuse(f"{what} is not supported", "export without beams")
    c.ignore("output_qk")
    past, used = (c.opt(5), c.opt(6)), c.opt(7)
    if not c.flag("past_present_share_buffer") or past[0] is None or used is None:
        return _heads_apart(c, c.opt(10), c.opt(3), c.opt(4), past, False)
    if c.opt(3) is not None or c.opt(4) is not None or c.wants(3):
        c.refuse("masks beside a shared cache, and the result qk, are not supported", "export with past_present apart")
    m = Formula(c)
    q, k, v = _with_bias(c, c.opt(10))
    batch, room = q.shape[0], past[0].shape[2]
    before = c.expand(c.reshape(c.cast(used, i64), (1, 1)), (batch, 1))
    k, v = (_written(c, old, new, before, room, in_place=True) for old, new in zip(past, (k, v), strict=True))
    visible = m.le(c.reshape(m.steps(room), (1, 1, 1, room)), c.reshape(before, (batch, 1, 1, 1)))
    c.ignore("mask_filter_value")
    return _attended(c, q, k, v, [], visible), k, v


def _heads_apart(
    c: Call, bias: Node | None, mask: Node | None, added: Node | None, past: Sequence[Node | None], causal: bool
) -> Results:
    """Queries, keys and values [B, S, N * H], or keys and values [B, N, L, H], or packed as [B, S, N, 3 or 2, H]."""
    if c.wants(3):
        c.refuse("the result qk is not supported", "export without it")
    q, k, v = _with_bias(c, bias)
    before: Dim = 0
    past_key, past_value = past
    if past_key is not None and past_value is not None:
        before = past_key.shape[2]
        k, v = join(c, (past_key, k), 2), join(c, (past_value, v), 2)
    biases = [] if mask is None else [_hidden(c, mask, q.shape[2], k.shape[2], q.shape[0], q)]
    biases += [] if added is None else [added]
    c.ignore("mask_filter_value")
    visible = causal_mask(c, q.shape[2], k.shape[2], before) if causal else None
    return _attended(c, q, k, v, biases, visible), k, v


def _with_bias(c: Call, bias: Node | None) -> tuple[Node, Node, Node]:
    """Queries, keys and values as [B, N, S, H]; keys and values that come so have their bias already."""
    heads = c.int_("num_heads")
    q, k, v = _unpacked(c, heads)
    if bias is None:
        return q, k, v
    parts = _parts(c, bias, [heads * t.shape[-1] for t in (q, k, v)])
    made = [c(ops.add, t, _per_head(c, b, heads)) for t, b in zip((q, k, v), parts, strict=True)]
    key = c.opt(1)
    return (made[0], k, v) if key is not None and len(key.shape) == 4 else (made[0], made[1], made[2])


def _per_head(c: Call, bias: Node, heads: int) -> Node:
    return c.reshape(bias, (1, heads, 1, expr.floordiv(bias.shape[0], heads)))


def _unpacked(c: Call, heads: int) -> tuple[Node, Node, Node]:
    """Queries, keys and values as [B, N, S, H]."""
    q, k, v = c.x(0), c.opt(1), c.opt(2)
    if k is None:
        if len(q.shape) == 5:
            q, k, v = _pieces(c, q)
            return q, k, v
        q, k, v = (split_heads(c, p, heads) for p in _parts(c, q, [expr.floordiv(q.shape[-1], 3)] * 3))
        return q, k, v
    q = split_heads(c, q, heads)
    if v is None:
        if len(k.shape) != 5:
            c.refuse("the values are missing")
        k, v = _pieces(c, k)
        return q, k, v
    k, v = (t if len(t.shape) == 4 else split_heads(c, t, heads) for t in (k, v))
    return q, k, v


def _pieces(c: Call, x: Node) -> list[Node]:
    """[B, S, N, n, H] as n tensors [B, N, S, H]."""
    batch, length, heads, n, size = x.shape
    if not is_known(n):
        c.refuse(f"packed heads of {x.type} have an unknown number of parts")
    cut = (c.reshape(c.slice_axis(x, 3, i, i + 1), (batch, length, heads, size)) for i in range(n))
    return [c.transpose(t, (0, 2, 1, 3)) for t in cut]


# --- RotaryEmbedding ------------------------------------------------------------------------------------------------


def _rotary(c: Call) -> Node:
    """Angles from tables by position; one position is where the sequence starts."""
    m = Formula(c)
    x, positions, cos, sin = c.x(0), c.x(1), c.x(2), c.x(3)
    heads, part = c.int_("num_heads", 0), c.int_("rotary_embedding_dim", 0)
    if c.float_("scale", 1.0) != 1.0 or c.flag("is_packed_batching"):
        c.refuse("attributes scale and is_packed_batching are not supported", "export without them")
    flat, hidden = len(x.shape) == 3, x.shape[-1]
    if flat:
        size = cos.shape[1] * 2
        heads = heads or (hidden // size if is_known(hidden) and is_known(size) and size else 0)
        x = split_heads(c, x, heads)
    if len(positions.shape) == 1:
        length = x.shape[2]
        positions = m.add(c.reshape(m.steps(length), (1, length)), c.cast(positions, i64))
    y = _turned(c, x, positions, cos, sin, part, c.flag("interleaved"))
    return merge_heads(c, y) if flat else y


def _turned(c: Call, x: Node, positions: Node, cos: Node, sin: Node, part: int, interleaved: bool) -> Node:
    """[B, N, S, H] turned by the angles of ``positions``, [B or 1, S]."""
    angles = [c(ops.gather, t, positions, axis=0) for t in (cos, sin)]
    cos, sin = (c.cast(c.reshape(t, (t.shape[0], 1, *t.shape[1:])), x.dtype) for t in angles)
    return rotated(c, x, cos, sin, part, interleaved)


# --- GroupQueryAttention --------------------------------------------------------------------------------------------


def _group_query(c: Call) -> Results:
    """Each batch row has ``seqlens_k + 1`` keys in all, of which the last ones are new and the others cached.

    The cache that is given and returned is as long as the longer of the old one and ``total_sequence_length``.
    """
    m = Formula(c)
    if c.wants(3) or c.int_("qk_output", 0) or c.flag("sliding_window_cache"):
        c.refuse("qk_output and sliding_window_cache are not supported", "export without them")
    if c.str_("k_quant_type", "NONE") != "NONE" or c.str_("v_quant_type", "NONE") != "NONE":
        c.refuse("a quantised cache is not supported", "export with k_quant_type and v_quant_type of NONE")
    c.ignore("kv_cache_bit_width")
    heads, kv_heads = c.int_("num_heads"), c.int_("kv_num_heads")
    q, k, v = _grouped(c, heads, kv_heads)
    batch, length, size = q.shape[0], q.shape[2], q.shape[3]
    epsilon = c.float_("qk_norm_epsilon", 1e-6)
    for at, i in ((0, 14), (1, 15)):  # queries have a weight of their own, keys another
        weight = c.opt(i)
        if weight is not None:
            q, k = (rms_norm(c, t, weight, 3, epsilon) if at == n else t for n, t in enumerate((q, k)))
    ends = m.add(c.reshape(c.cast(c.x(5), i64), (batch, 1)), 1)
    before = m.max(m.sub(ends, c.dim_value(length)), 0)  # 0 in the first step, however the rows are filled up
    if c.flag("do_rotary"):
        positions = c.opt(9) or m.add(before, c.reshape(m.steps(length), (1, length)))
        cos, sin, interleaved = c.x(7), c.x(8), c.flag("rotary_interleaved")
        part = cos.shape[1] * 2
        part = part if is_known(part) and part != size else 0  # 0: the whole head turns
        q, k = (_turned(c, t, positions, cos, sin, part, interleaved) for t in (q, k))
    c.ignore("rotary_interleaved")
    total = c.sizes(c.reshape(c.x(6), ()), "total_sequence_length")[0]
    past = (c.opt(3), c.opt(4))
    room = total if past[0] is None else expr.maximum(total, past[0].shape[2])
    k, v = (_written(c, old, new, before, room) for old, new in zip(past, (k, v), strict=True))
    y = _windowed(c, q, k, v, before, ends, total)
    return y, k, v


def _grouped(c: Call, heads: int, kv_heads: int) -> tuple[Node, Node, Node]:
    q, k, v = c.x(0), c.opt(1), c.opt(2)
    if k is None or v is None:
        size = expr.floordiv(q.shape[-1], heads + 2 * kv_heads)
        q, k, v = _parts(c, q, [heads * size, kv_heads * size, kv_heads * size])
    return split_heads(c, q, heads), split_heads(c, k, kv_heads), split_heads(c, v, kv_heads)


def _written(c: Call, old: Node | None, new: Node, before: Node, room: Dim, *, in_place: bool = False) -> Node:
    """A cache of ``room`` places: ``before[b]`` old ones, the new ones, then zeros or, in place, what was there."""
    m = Formula(c)
    length = new.shape[2]
    if old is None and length == room:
        return new
    places = m.sub(c.reshape(m.steps(room), (1, room)), before)
    shape = (places.shape[0], 1, room, 1)
    spread = (*new.shape[:2], room, new.shape[3])
    inside = m.both(m.ge(places, 0), m.lt(places, c.dim_value(length)))
    at = c.expand(c.reshape(m.clip(places, 0, c.dim_value(length - 1)), shape), spread)
    fresh = c(ops.gather_elements, new, at, axis=2)
    zero = c.const(0, new.dtype)
    kept = zero
    if old is not None:
        filled = c(ops.pad, old, zero, pads=((0, 0), (0, 0), (0, room - old.shape[2]), (0, 0)))
        kept = filled if in_place else c(ops.where, c.reshape(m.lt(places, 0), shape), filled, zero)
    return c(ops.where, c.reshape(inside, shape), fresh, kept)


def _windowed(c: Call, q: Node, k: Node, v: Node, before: Node, ends: Node, total: Dim) -> Node:
    """Attention of each query to the keys up to its own place, or to the last ``local_window_size`` of them."""
    m = Formula(c)
    batch, length, room = q.shape[0], q.shape[2], k.shape[2]
    key = c.reshape(m.steps(room), (1, 1, 1, room))
    place = c.reshape(m.add(before, c.reshape(m.steps(length), (1, length))), (batch, 1, length, 1))
    window = c.int_("local_window_size", -1)
    visible = m.le(key, place) if c.flag("causal", True) else m.lt(key, c.reshape(ends, (batch, 1, 1, 1)))
    if window > 0:
        visible = m.both(visible, m.gt(key, m.sub(place, window)))
    bias, sink = c.opt(10), c.opt(11)
    if bias is not None and room != total:
        bias = c(ops.pad, bias, c.const(0, bias.dtype), pads=((0, 0), (0, 0), (0, 0), (0, room - total)))
    if sink is not None or c.flag("smooth_softmax"):
        k, v, visible, bias = _with_sink(c, k, v, visible, bias, sink)
    c.ignore("smooth_softmax")
    return _attended(c, q, k, v, [] if bias is None else [bias], visible, c.float_("softcap", 0.0))


def _with_sink(
    c: Call, k: Node, v: Node, visible: Node, bias: Node | None, sink: Node | None
) -> tuple[Node, Node, Node, Node]:
    """One more key of score ``sink``, one number a head or 0, whose value is 0: it only joins softmax's sum."""
    k_more, v_more = (c(ops.pad, t, c.const(0, t.dtype), pads=((0, 0), (0, 0), (0, 1), (0, 0))) for t in (k, v))
    last = [(0, 0)] * 3 + [(0, 1)]
    seen = c(ops.pad, visible, c.const(True, bool_), pads=tuple(last))
    column = c.reshape(sink, (1, sink.shape[0], 1, 1)) if sink is not None else c.full(0, k.dtype, (1, 1, 1, 1))
    column = c.cast(column, k.dtype)
    if bias is None:
        bias = c.full(0, k.dtype, (*column.shape[:3], visible.shape[3]))
    shape = tuple(b if a == 1 else a for a, b in zip(column.shape[:3], bias.shape[:3], strict=True))
    spread = [c.expand(t, (*shape, t.shape[3])) for t in (bias, column)]
    return k_more, v_more, seen, c(ops.concat, *spread, axis=3)


TABLE: Table = {
    "Attention": _attention,
    "DecoderMaskedMultiHeadAttention": _decoder_multi_head,
    "GroupQueryAttention": _group_query,
    "MultiHeadAttention": _multi_head,
    "QAttention": _quantised_attention,
    "RotaryEmbedding": _rotary,
}
