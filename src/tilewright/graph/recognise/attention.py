"""Rules of ``recognise`` for attention and rotary embedding.

In: the last node of a formula: the product of weights and values, or a rotation's sum. Out: the composite.
Not its business: the pieces that are composites themselves (softmax, ``norm``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.effort import EFFORT
from tilewright.core.evaluate import evaluate_nodes
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import CONST, Node, topological
from tilewright.core.opdef import Trait
from tilewright.core.rewrite import Rewriting, Rule
from tilewright.core.types import Array
from tilewright.graph.facts import array_of, scalar, uniform

NEVER = -1e9  # an additive mask at or below this hides a key
AXES = ("batch", "heads", "rows", "columns")
RANK = len(AXES)


@dataclass
class Scores:
    """What was found on the way from softmax down to the product of queries and keys."""

    scale: float = 1.0
    softcap: float = 0.0
    masks: list[Node] = field(default_factory=list)
    product: Node | None = None


def _attention(b: Rewriting, node: Node) -> Node | None:
    weights, v = node.inputs
    # Weights that somebody else reads have to be there anyway.
    if not b.read_once(weights):
        return None
    weights, is_guarded = _unguarded(b, weights)
    if weights.op is not ops.softmax or weights.attrs["axis"] != weights.type.rank - 1:
        return None
    found = _scores(b, weights.inputs[0])
    if found is None or found.product is None or node.type.rank not in (3, 4) or v.type.rank != node.type.rank:
        return None
    q, k_transposed = found.product.inputs
    q, factor_q = _unscaled(q)
    k_transposed, factor_k = _unscaled(k_transposed)
    k, factor_inner = _unscaled(_swap_last(b, k_transposed))
    k, group_k = _unrepeated(k)
    v, group_v = _unrepeated(v)
    # Keys and values must share heads alike.
    if group_k != group_v or q.shape[:-2] != found.product.shape[:-2] or node.dtype is not q.dtype:
        return None
    masks, causal = _masks(b, found.masks, weights.shape)
    qkv = [_four_dimensional(b, x) for x in (q, k, v)]
    if any(x is None for x in qkv) or not _heads_fit([x for x in qkv if x is not None], group_k):
        return None
    operands = [*[x for x in qkv if x is not None], *(_lifted(b, m, node.type.rank) for m in masks)]
    scale = found.scale * factor_q * factor_k * factor_inner
    out = b(ops.attention, *operands, scale=scale, causal=causal, softcap=found.softcap)
    # Softmax of a row that is all minus infinity is NaN, for which the model's guard puts 0.
    if is_guarded and any(_may_hide_all(m) for m in masks):
        out = b(ops.where, b(ops.isnan, out), b.const(0.0, out.dtype), out)
    return out if out.shape == node.shape else b(ops.reshape, out, shape=node.shape)


def _unguarded(b: Rewriting, weights: Node) -> tuple[Node, bool]:
    """Softmax without ``where(isnan(weights), 0, weights)``, which makes rows that see nothing 0, and if it was there.

    The guard is the same on the result: a row of NaN weights gives a row of NaN.
    """
    if weights.op is ops.where and weights.inputs[0].op is ops.isnan and scalar(weights.inputs[1]) == 0:
        inner = weights.inputs[2]
        if weights.inputs[0].inputs[0] is inner and b.reads.get(inner, 1) <= 2:
            return inner, True
    return weights, False


def _may_hide_all(mask: Node) -> bool:
    """Can a row of scores be -inf everywhere under this mask?"""
    if mask.op is ops.where and mask.dtype.is_float:
        values = [scalar(i) for i in mask.inputs[1:]]
        return any(v is None or v == -np.inf for v in values)
    array = array_of(mask)
    if array is None or array.ndim == 0 or array.size == 0:
        return True
    seen = array if array.dtype == np.bool_ else array > -np.inf
    return not bool(seen.any(axis=-1).all())


def _shared_heads(b: Rewriting, node: Node) -> Node | None:
    """Attention whose keys and values were repeated per group of heads takes them unrepeated."""
    q, k, v, *masks = node.inputs
    k, group_k = _unrepeated(k)
    v, group_v = _unrepeated(v)
    if group_k == 1 or group_k != group_v or not _heads_fit((q, k, v), group_k):
        return None
    return b(ops.attention, q, k, v, *masks, **node.attrs)


def _heads_fit(qkv: Sequence[Node], group: Dim) -> bool:
    q, k, v = qkv
    same_batch = q.shape[0] == k.shape[0] == v.shape[0]
    return same_batch and k.shape[1] == v.shape[1] and k.shape[1] * group == q.shape[1]


def _scores(b: Rewriting, s: Node) -> Scores | None:
    """Peel masks, then a soft cap, then scales, off the scores."""
    found = Scores()
    while (inner := _without_mask(b, s, found)) is not None:
        s = inner
    if s.op is ops.mul and (cap := scalar(s.inputs[1])) and s.inputs[0].op is ops.tanh:
        found.softcap = float(cap)
        s, factor = _unscaled(s.inputs[0].inputs[0])
        found.scale = factor * found.softcap  # of the scores before they are divided by the cap
    else:
        s, found.scale = _unscaled(s)
    found.product = s if s.op is ops.matmul else None
    return found


def _leads_to_product(s: Node) -> bool:
    """Is there a product of matrices below masks, caps and scales?"""
    for _ in range(8):
        if s.op is ops.matmul:
            return True
        if s.op not in (ops.add, ops.mul, ops.div, ops.tanh, ops.where):
            return False
        s = next((i for i in s.inputs if i.op in (ops.matmul, ops.add, ops.mul, ops.div, ops.tanh, ops.where)), s)
    return False


def _without_mask(b: Rewriting, s: Node, found: Scores) -> Node | None:
    """The scores under a mask, which joins ``found``; None when ``s`` is not masked."""
    if s.op is ops.add:
        for inner, mask in (s.inputs, s.inputs[::-1]):
            if inner.type == s.type and _leads_to_product(inner):
                found.masks.append(mask)
                return inner
    if s.op is ops.where:
        for inner, fill, keep in ((s.inputs[1], s.inputs[2], True), (s.inputs[2], s.inputs[1], False)):
            value = scalar(fill)
            if value is None or value > NEVER or inner.type != s.type or not _leads_to_product(inner):
                continue
            seen = s.inputs[0] if keep else b(ops.logical_not, s.inputs[0])
            if value != -np.inf:  # a row that sees nothing attends to all, where a bool mask gives NaN
                seen = b(ops.where, seen, b.const(0.0, s.dtype), fill)
            found.masks.append(seen)
            return inner
    return None


def _unscaled(x: Node) -> tuple[Node, float]:
    """``x`` without factors that are numbers, and their product."""
    factor = 1.0
    while x.op in (ops.mul, ops.div) and x.inputs[0].type == x.type and scalar(x.inputs[1]):
        number = float(scalar(x.inputs[1]) or 1)
        factor = factor * number if x.op is ops.mul else factor / number
        x = x.inputs[0]
    return x, factor


def _swap_last(b: Rewriting, x: Node) -> Node:
    """The matrices transposed; without a new node where that undoes a transpose."""
    rank = x.type.rank
    perm = (*range(rank - 2), rank - 1, rank - 2)
    if x.op is ops.transpose:
        composed = tuple(x.attrs["perm"][p] for p in perm)
        x = x.inputs[0]
        return x if composed == tuple(range(rank)) else b(ops.transpose, x, perm=composed)
    return b(ops.transpose, x, perm=perm)


def _unrepeated(x: Node) -> tuple[Node, Dim]:
    """Keys or values before each head was repeated for a group of queries' heads, and how often it was."""
    spread = x.inputs[0] if x.op is ops.reshape else None
    if spread is None or spread.op is not ops.expand or spread.inputs[0].op is not ops.reshape:
        return x, 1
    source, single = spread.inputs[0].inputs[0], spread.inputs[0]
    if source.type.rank != RANK or spread.type.rank != RANK + 1:
        return x, 1
    n, heads, length, depth = source.shape
    group = spread.shape[2]
    fits = single.shape == (n, heads, 1, length, depth) and spread.shape == (n, heads, group, length, depth)
    return (source, group) if fits and x.shape == (n, heads * group, length, depth) else (x, 1)


def _four_dimensional(b: Rewriting, x: Node) -> Node | None:
    if x.type.rank == RANK:
        return x
    return b(ops.reshape, x, shape=(x.shape[0], 1, *x.shape[1:])) if x.type.rank == RANK - 1 else None


def _lifted(b: Rewriting, mask: Node, rank: int) -> Node:
    """A mask of three-dimensional scores, with a dimension for the one head."""
    if rank == RANK or mask.type.rank < RANK - 1:
        return mask
    return b(ops.reshape, mask, shape=(mask.shape[0], 1, *mask.shape[1:]))


# --- masks ----------------------------------------------------------------------------------------------------------


def _masks(b: Rewriting, masks: Sequence[Node], scores: tuple[Dim, ...]) -> tuple[list[Node], bool]:
    """At most one mask, and whether keys after the query are hidden."""
    others = [m for m in masks if not _is_causal(m, scores)]
    if not others:
        return [], bool(masks)
    total = others[0]
    for m in others[1:]:
        total = _both(b, total, m)
    return [total], len(others) < len(masks)


def _both(b: Rewriting, x: Node, y: Node) -> Node:
    if x.dtype is types.bool_ and y.dtype is types.bool_:
        return b(ops.logical_and, x, y)
    if x.dtype is types.bool_:
        x, y = y, x
    if y.dtype is types.bool_:
        return b(ops.where, y, x, b.const(float("-inf"), x.dtype))
    return b(ops.add, x, y)


def _is_causal(mask: Node, scores: tuple[Dim, ...]) -> bool:
    """Does ``mask`` hide exactly the keys after the query, counted from the first of each?"""
    n_queries, n_keys = scores[-2:]
    if mask.op is ops.where and mask.dtype.is_float and scalar(mask.inputs[1]) == 0:
        hidden = scalar(mask.inputs[2])
        return hidden is not None and hidden <= NEVER and _is_causal(mask.inputs[0], scores)
    if _compares_positions(mask, n_queries, n_keys):
        return True
    if mask.shape[-2:] != (n_queries, n_keys):
        return False
    sides = _sides(mask)
    if sides is not None:
        return _sees_first(sides, 1)
    if not is_known(n_queries) or not is_known(n_keys):
        return False
    value = _closed_value(mask)
    if value is None:
        return False
    rows = value.reshape(-1, n_keys)
    return all(_sees_first(row, k % n_queries + 1) for k, row in enumerate(rows))


def _sides(mask: Node) -> Array | None:
    """An element of a mask at or below the diagonal, and one above: where all on a side are alike, whatever its size.

    So is what is computed element by element from a triangle of one number, as exporters write masks.
    """
    reached, waiting = {mask}, [mask]
    while waiting:
        node = waiting.pop()
        is_plain = node.op in (CONST, ops.trilu) or bool(node.op.traits & {Trait.ELEMENTWISE, Trait.MOVEMENT})
        if not is_plain or len(reached) > EFFORT.nodes:
            return None
        waiting += [x for x in node.inputs if x not in reached]
        reached |= set(node.inputs)
    found: dict[Node, Array | None] = {}
    for node in topological([mask]):
        found[node] = _sides_of(node, [found[x] for x in node.inputs])
    return found[mask]


def _sides_of(mask: Node, operands: Sequence[Array | None]) -> Array | None:
    value = uniform(mask)
    if value is not None:
        return np.full(2, value, mask.dtype.numpy)
    if not operands or any(x is None for x in operands):
        return None
    sides = [x for x in operands if x is not None]
    is_alike = all(x[0] == x[1] for x in sides)
    if mask.op is ops.trilu:
        fill = np.asarray(mask.attrs["fill"]).astype(mask.dtype.numpy)
        halves = {(False, 0): (sides[0][0], fill), (True, 1): (fill, sides[0][0])}
        half = halves.get((mask.attrs["upper"], mask.attrs["k"]))
        return np.array(half) if half is not None and is_alike else None
    if Trait.ELEMENTWISE in mask.op.traits:
        # What has another shape than the result is the same in all of its rows, or columns.
        fits = all(x.shape[-2:] == mask.shape[-2:] or s[0] == s[1] for x, s in zip(mask.inputs, sides, strict=True))
        with np.errstate(all="ignore"):
            return np.asarray(mask.op.reference(sides, mask.attrs)) if fits and len(mask.types) == 1 else None
    keeps = is_alike or mask.inputs[0].shape[-2:] == mask.shape[-2:]
    return sides[0] if keeps and mask.op in (ops.expand, ops.reshape) else None


def _sees_first(row: Array, n: int) -> bool:
    """Does a row of a mask, boolean or additive, hide all but the first ``n`` keys?"""
    if row.dtype == np.bool_:
        return bool(row[:n].all() and not row[n:].any())
    return bool((row[:n] == 0).all() and (row[n:].astype(np.float64) <= NEVER).all())  # f16 does not hold the bound


def _compares_positions(mask: Node, n_queries: Dim, n_keys: Dim) -> bool:
    """``key position <= query position``, written with ramps of any size, symbolic too."""
    if mask.op is ops.logical_not and mask.inputs[0].op in (ops.gt, ops.lt):
        key, query = mask.inputs[0].inputs if mask.inputs[0].op is ops.gt else mask.inputs[0].inputs[::-1]
    elif mask.op in (ops.le, ops.ge):
        key, query = mask.inputs if mask.op is ops.le else mask.inputs[::-1]
    else:
        return False
    return _ramp_axis(key, n_keys) == 1 and _ramp_axis(query, n_queries) == 2


def _ramp_axis(x: Node, extent: Dim) -> int | None:
    """The axis, counted from the end, along which ``x`` is 0, 1, 2, ..., and constant along the others."""
    shape = x.shape
    while x.op in (ops.reshape, ops.cast, ops.expand):
        x = x.inputs[0]
    long = [len(shape) - k for k, d in enumerate(shape) if d != 1]
    is_ramp = x.op is ops.iota or _is_counting(array_of(x))
    return long[0] if is_ramp and x.shape == (extent,) and len(long) == 1 else None


def _is_counting(array: Array | None) -> bool:
    return array is not None and array.ndim == 1 and bool((array == np.arange(len(array))).all())


def _closed_value(node: Node) -> Array | None:
    """The value of a constant, or of another node of moderate size that depends on no input."""
    if node.op is CONST:
        return array_of(node)
    n = node.type.n_elements
    if not known_at_most(n, EFFORT.elements):
        return None
    below = topological([node])
    unfit = {Trait.STRUCTURAL, Trait.CONTROL, Trait.RANDOM}
    if len(below) > EFFORT.nodes or any(n.op is not CONST and n.op.traits & unfit for n in below):
        return None
    if any(not t.is_static for n in below for t in n.types):
        return None
    return evaluate_nodes((node,), {}, {})[0]


# --- rotary ---------------------------------------------------------------------------------------------------------


def _rotary(b: Rewriting, node: Node) -> Node | None:
    """x cos + turn(x) sin, where turn swaps the halves of the last axis and negates the new first one."""
    for straight, turned in (node.inputs, node.inputs[::-1]):
        if straight.op is not ops.mul or turned.op is not ops.mul:
            continue
        for swapped, sin in (turned.inputs, turned.inputs[::-1]):
            x = _turned_source(swapped)
            if x is None or x not in straight.inputs:
                continue
            cos = straight.inputs[1 - straight.inputs.index(x)]
            halves = _half(b, cos), _half(b, sin)
            if halves[0] is not None and halves[1] is not None and x.type == node.type:
                return b(ops.rotary, x, halves[0], halves[1])
    return None


def _turned_source(node: Node) -> Node | None:
    """``x`` of ``concat(-x[..., d/2:], x[..., :d/2])``."""
    rank = node.type.rank
    if node.op is not ops.concat or len(node.inputs) != 2 or node.attrs["axis"] != rank - 1:
        return None
    second, first = node.inputs
    if second.op is not ops.neg or second.inputs[0].op is not ops.slice or first.op is not ops.slice:
        return None
    second = second.inputs[0]
    x = first.inputs[0]
    half = floordiv(x.shape[-1], 2)
    lead = (0,) * (rank - 1)
    is_first = first.attrs["starts"] == (*lead, 0) and first.shape == (*x.shape[:-1], half)
    is_second = second.attrs["starts"] == (*lead, half) and second.shape == first.shape
    steps = set(first.attrs["steps"]) | set(second.attrs["steps"])
    return x if second.inputs[0] is x and is_first and is_second and steps == {1} else None


def _half(b: Rewriting, angle: Node) -> Node | None:
    """The first half of the last axis of a tensor whose halves are equal; None when that is not plain to see."""
    depth = angle.shape[-1] if angle.shape else 1
    if not is_known(depth) or depth % 2:
        return None
    half = depth // 2
    array = array_of(angle)
    if array is not None:
        return b.const(np.ascontiguousarray(array[..., :half])) if _halves_are_equal(array, half) else None
    if angle.op is ops.concat:
        same = len(angle.inputs) == 2 and angle.inputs[0] is angle.inputs[1]
        return angle.inputs[0] if same and angle.attrs["axis"] == angle.type.rank - 1 else None
    # Ops that treat both halves alike: the half of their first input makes the half of their result.
    inner = _half(b, angle.inputs[0]) if angle.inputs else None
    if inner is None:
        return None
    shape = (*angle.shape[:-1], half)
    if angle.op is ops.reshape and angle.inputs[0].shape[-1] == depth:
        return b(ops.reshape, inner, shape=shape)
    if angle.op is ops.expand and angle.inputs[0].shape[-1] == depth:
        return b(ops.expand, inner, shape=shape)
    if angle.op is ops.gather and angle.attrs["axis"] != angle.inputs[0].type.rank - 1:
        return b(ops.gather, inner, angle.inputs[1], axis=angle.attrs["axis"])
    if angle.op is ops.slice and angle.shape[-1] == angle.inputs[0].shape[-1] and angle.attrs["steps"][-1] == 1:
        stops = (*angle.attrs["stops"][:-1], half)
        return b(ops.slice, inner, starts=angle.attrs["starts"], stops=stops, steps=angle.attrs["steps"])
    if Trait.ELEMENTWISE in angle.op.traits and all(scalar(i) is not None for i in angle.inputs[1:]):
        return b(angle.op, inner, *angle.inputs[1:], **angle.attrs)
    return None


def _halves_are_equal(array: Array, half: int) -> bool:
    return bool(np.array_equal(array[..., :half], array[..., half:]))


RULES = (
    Rule("attention", (ops.matmul,), _attention, "softmax(scale q k' + mask) v; the weights are not read elsewhere"),
    Rule("shared-heads", (ops.attention,), _shared_heads, "attention repeats heads of keys and values itself"),
    Rule("rotary", (ops.add,), _rotary, "its formula; cosines and sines are equal in both halves"),
)
