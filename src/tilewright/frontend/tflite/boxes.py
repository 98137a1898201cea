"""TFLite's non-maximum suppression: of boxes that overlap, the one with the best score.

In: calls. Out: the places of boxes that stay, as many as the file says, zeros behind them; their scores; their count.
Not its business: how boxes are compared (``ops.suppress``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import f32, i32, i64
from tilewright.frontend.tflite.call import Converter, TfliteCall


def _number(c: TfliteCall, k: int) -> float:
    found = c.known(k)
    if found.size != 1:
        raise OpError(f"operand {k}, {c.x(k).type}, is no number")
    return float(found.reshape(-1)[0])


def _suppressed(c: TfliteCall) -> Sequence[Node]:
    """LiteRT lets a box go that overlaps by the threshold, and ``ops.suppress`` by more: by more than the float before.

    A box without area overlaps nothing, where LiteRT names such a box several times. Of equal scores the first box
    counts, where LiteRT leaves the order to its heap.
    """
    boxes, scores, wanted, threshold = c.x(0), c.x(1), int(_number(c, 2)), np.float32(_number(c, 3))
    (n, four), is_scored = c.size(boxes), c.name == "NON_MAX_SUPPRESSION_V5"
    if four != 4 or c.size(scores) != (n,) or (boxes.dtype, scores.dtype) != (f32, f32):
        raise OpError(f"{boxes.type} are no boxes of four places with scores {scores.type}")
    if wanted < 1 or n < 1 or not 0 < threshold <= 1:
        raise OpError(f"of {n} boxes {wanted} with overlaps of less than {threshold} can't be told")
    if is_scored and _number(c, 5) != 0:
        raise OpError("scores that fall with each overlap are not read", remedy="use a sigma of 0")
    first, second = (
        c.b(ops.slice, boxes, starts=(0, k), stops=(n, k + 2), steps=(1, 1)) for k in (0, 2)
    )  # fmt: skip
    corners = c.b(ops.concat, first, c.b(ops.maximum, first, second), axis=1)
    rows = c.shaped(scores, (1, 1, n))
    _, order = c.b.results(c.b(ops.sort, rows, axis=2, descending=True))
    limit = c.b.const(np.nextafter(threshold, np.float32(0)))
    found, count = c.b.results(
        c.b(
            ops.suppress, c.shaped(corners, (1, n, 4)), rows, order, limit, c.shaped(c.x(4), ()),
            limit=min(wanted, n), center=False, count=f"boxes_{boxes.serial}_{scores.serial}",
        )
    )  # fmt: skip
    n_found = found.shape[0]
    at = c.b(ops.slice, found, starts=(0, 2), stops=(n_found, 3), steps=(1, 1))
    at = c.b(ops.reshape, at, shape=(n_found,))
    target = c.b(ops.reshape, c.b(ops.iota, at, extent=n_found, dtype=i64), shape=(n_found, 1))
    made = [c.cast(at, i32), *([c.b(ops.gather, scores, at, axis=0)] if is_scored else [])]
    zeros = [c.b(ops.full, value=0.0, dtype=m.dtype, shape=(wanted,)) for m in made]
    padded = [c.b(ops.scatter_nd, z, target, m, reduction="none") for z, m in zip(zeros, made, strict=True)]
    return [*padded, c.cast(count, i32)]


TABLE: Mapping[str, Converter] = {"NON_MAX_SUPPRESSION_V4": _suppressed, "NON_MAX_SUPPRESSION_V5": _suppressed}
