"""Non-maximum suppression: of overlapping boxes the one with the best score.

In: operand types, arrays or buffers. Out: the type rule, NumPy meaning and kernel.
Not its business: the order of scores (``ops.order``), which comes as an operand.

Boxes are taken from the best score down; one is kept when it overlaps no kept one by more than the threshold. Only kept
boxes are compared with: n times the limit, and no matrix of overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Load,
    Reduction,
    Select,
    Serial,
    Stage,
    Value,
)
from tilewright.core.diag import OpError
from tilewright.core.dims import known
from tilewright.core.expr import Dim, Sym, minimum
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.rules import Types, check_exact_dims
from tilewright.ops.stages import Items, assign, index_value, write


def _infer(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    boxes, scores, order, iou, least = ts
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4 or order.shape != scores.shape:
        raise OpError(f"takes boxes [b, n, 4], scores and order [b, c, n], not {boxes}, {scores}, {order}")
    check_exact_dims(boxes.shape[:2], (scores.shape[0], scores.shape[2]), "batches and boxes of boxes and scores")
    if any(t.dtype is not types.f32 for t in (boxes, scores, iou, least)) or order.dtype is not types.i64:
        raise OpError("boxes, scores and thresholds must be f32, the order i64")
    if iou.rank or least.rank:
        raise OpError("thresholds must be 0-d")
    if a.limit < 1 or not a.count.isidentifier():
        raise OpError(f"limit {a.limit} must be positive, and count {a.count!r} an identifier")
    most = _most(ts, a)
    count = Sym(a.count, 0, known(most, None))
    return TensorType(types.i64, (count, 3)), TensorType(types.i64, ())


def _most(ts: Types, a: Attrs) -> Dim:
    n_batches, n_classes, n = ts[1].shape
    return n_batches * n_classes * minimum(n, a.limit)


# --- reference ------------------------------------------------------------------------------------------------------


def _corners(box: Array, center: bool) -> tuple[Array, Array]:
    a, b = (box[:2] - box[2:] / 2, box[:2] + box[2:] / 2) if center else (box[:2], box[2:])
    return np.minimum(a, b), np.maximum(a, b)


def _overlap(p: Array, q: Array, center: bool, iou: Array) -> bool:
    (low_p, high_p), (low_q, high_q) = _corners(p, center), _corners(q, center)
    sides = np.maximum(np.minimum(high_p, high_q) - np.maximum(low_p, low_q), np.float32(0))
    inter = sides[0] * sides[1]
    union = np.prod(high_p - low_p, dtype=np.float32) + np.prod(high_q - low_q, dtype=np.float32) - inter
    return bool(union > 0 and inter / union > iou)


def _reference(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    boxes, scores, order, iou, least = xs
    found: list[tuple[int, int, int]] = []
    for b, c in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for i in order[b, c]:
            hit = any(_overlap(boxes[b, i], boxes[b, k], a.center, iou) for k in kept)
            if len(kept) < a.limit and scores[b, c, i] > least and not hit:
                kept.append(int(i))
        found += [(b, c, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3), np.array(len(found), np.int64)


# --- kernel ---------------------------------------------------------------------------------------------------------


def _number(n: int) -> Const:
    return Const(n, types.i64)


def _side(boxes: Buffer, b: Dim, place: Value, axis: int, center: bool) -> tuple[Value, Value]:
    """The low and high end of a box along an axis."""
    p: Value = Load(boxes, (b, place, axis))
    q: Value = Load(boxes, (b, place, axis + 2))
    if center:
        half = q * Const(0.5, types.f32)
        p, q = p - half, p + half
    return Binary("min", p, q), Binary("max", p, q)


def _hits(boxes: Buffer, b: Dim, i: Value, k: Value, center: bool, iou: Value) -> Value:
    """Do boxes ``i`` and ``k`` overlap by more than ``iou``?"""
    zero = Const(0.0, types.f32)
    inter: Value = Const(1.0, types.f32)
    areas: list[Value] = [Const(1.0, types.f32)] * 2
    for axis in (0, 1):
        (low_i, high_i), (low_k, high_k) = (_side(boxes, b, at, axis, center) for at in (i, k))
        inter = inter * Binary("max", Binary("min", high_i, high_k) - Binary("max", low_i, low_k), zero)
        areas = [areas[0] * (high_i - low_i), areas[1] * (high_k - low_k)]
    union = areas[0] + areas[1] - inter
    safe = Select(Binary("gt", union, zero), union, Const(1.0, types.f32))
    return Binary("and", Binary("gt", union, zero), Binary("gt", Binary("div", inter, safe), iou))


def _kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    boxes, scores, order, iou, least = ins
    found, count = outs
    n_batches, n_classes, n = scores.shape
    n_kept = minimum(n, a.limit)
    kept = Buffer(f"{found.name}_kept", types.i64, (n_kept,))
    chosen, place, hit, take = (
        Buffer(f"{found.name}_{name}", types.i64, ()) for name in ("chosen", "place", "hit", "take")
    )
    b, c, i, k = (
        Axis(Sym(f"{name}_", 0), size) for name, size in (("b", n_batches), ("c", n_classes), ("i", n), ("k", n_kept))
    )
    candidate = Load(place, ())
    overlap = _hits(boxes, b.sym, candidate, Load(kept, (k.sym,)), a.center, Load(iou, ()))
    is_kept = Binary("lt", Index(k.sym), Load(chosen, ()))
    is_good = Binary("gt", Load(scores, (b.sym, c.sym, candidate)), Load(least, ()))
    has_room = Binary("lt", Load(chosen, ()), index_value(n_kept))
    free = Binary("eq", Load(hit, ()), _number(0))
    slot = Binary("min", Load(chosen, ()), index_value(n_kept - 1))
    row = Binary("min", Load(count, ()), index_value(found.shape[0] - 1))
    taken = Binary("ne", Load(take, ()), _number(0))
    cells = [  # the last row may be full already
        Select(taken, v, Load(found, (row, at))) for at, v in enumerate((Index(b.sym), Index(c.sym), candidate))
    ]
    step: tuple[Stage | Serial, ...] = (
        Stage((place,), (), (), (Load(order, (b.sym, c.sym, i.sym)),)),
        Stage(
            (hit,), (), (), (Cast(Binary("and", is_kept, overlap), types.i64),), Reduction((k,), "max", (_number(0),))
        ),
        Stage((take,), (), (), (Cast(Binary("and", Binary("and", free, is_good), has_room), types.i64),)),
        write(kept, (), (slot,), candidate),
        *(write(found, (), (row, at), cell) for at, cell in enumerate(cells)),
        Stage((count,), (), (), (Load(count, ()) + Load(take, ()),)),
        Stage((chosen,), (), (), (Load(chosen, ()) + Load(take, ()),)),
    )
    start: tuple[Stage | Serial, ...] = (Stage((chosen,), (), (), (_number(0),)), *assign(kept, lambda at: _number(0)))
    return [
        Stage((count,), (), (), (_number(0),)),
        Serial(b, (Serial(c, (*start, Serial(i, step))),)),
    ]


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for center, limit, n_batches in ((False, 3, 1), (True, 20, 2), (False, 1, 2)):
        boxes = rng.uniform(0, 1, (n_batches, 9, 4)).astype(np.float32)
        scores = rng.uniform(0, 1, (n_batches, 2, 9)).astype(np.float32)
        order = np.argsort(-scores, -1, kind="stable")
        thresholds = (np.array(0.3, np.float32), np.array(0.2, np.float32))
        yield Sample((boxes, scores, order, *thresholds), {"limit": limit, "center": center, "count": "n"})


suppress = OpDef(
    "suppress",
    ("boxes", "scores", "order", "iou", "least"),
    {"limit": AttrDef("int"), "center": AttrDef("bool", False), "count": AttrDef("str")},
    _infer,
    _reference,
    kernel=_kernel,
    samples=_samples,
    bound=_most,
    doc="Batch, class and number of every box that is kept, [n, 3], and how many there are (0-d i64). A box is two "
    "corners, or with center a middle and sizes. order sorts scores downwards; those above least count. At most limit "
    "are kept of a class. n is a fresh symbol, as argwhere's.",
)
