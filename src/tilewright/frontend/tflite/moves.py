"""TFLite's moves, lookups and sources; sizes and axes come as constant operands.

In: calls. Out: nodes. Not its business: arithmetic (``arithmetic``), windows (``windows``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite, prod

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.graph import CONST, Node
from tilewright.core.types import Array, i64
from tilewright.frontend.tflite.call import Converter, TfliteCall, check_size


def _reshape(c: TfliteCall) -> Node:
    """To what the second operand says, or else the file of the result; one size may be -1."""
    shape = c.ints(1) if c.opt(1) is not None and c.x(1).op is CONST else list(c.shapes[0])
    n = prod(c.size(c.x()))
    if shape.count(-1) == 1:
        rest = prod([d for d in shape if d != -1])
        shape[shape.index(-1)] = n // rest if rest else 0
    return c.shaped(c.x(), shape)


def _of_file(c: TfliteCall) -> Node:
    """Squeezing and expanding change the shape alone, and the file says to which."""
    if prod(c.shapes[0]) != prod(c.size(c.x())):
        raise OpError(f"{c.x().type} does not fit the shape {c.shapes[0]} of the result")
    return c.shaped(c.x(), c.shapes[0])


def _transpose(c: TfliteCall) -> Node:
    return c.b(ops.transpose, c.x(), perm=tuple(c.ints(1)))


def joined(c: TfliteCall) -> Node:
    """All operands one behind the other along an axis."""
    parts = [c.x(k) for k in range(len(c.inputs))]
    return c.b(ops.concat, *parts, axis=c.axis(c.option("Axis"), len(parts[0].shape)))


def _concatenation(c: TfliteCall) -> Node:
    return c.activated(joined(c))


def _pack(c: TfliteCall) -> Node:
    parts = [c.x(k) for k in range(len(c.inputs))]
    size = c.size(parts[0])
    axis = c.axis(c.option("Axis"), len(size) + 1)
    rows = [c.shaped(p, (*size[:axis], 1, *size[axis:])) for p in parts]
    return c.b(ops.concat, *rows, axis=axis)


def _cut(c: TfliteCall, x: Node, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] = ()) -> Node:
    return c.b(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps) or (1,) * len(starts))


def _parts(c: TfliteCall, x: Node, axis: int, lengths: Sequence[int]) -> list[Node]:
    """Pieces along an axis, one behind the other."""
    size, made, start = c.size(x), [], 0
    for n in lengths:
        starts, stops = [0] * len(size), list(size)
        starts[axis], stops[axis] = start, start + n
        made.append(_cut(c, x, starts, stops))
        start += n
    return made


def _unpack(c: TfliteCall) -> list[Node]:
    size = c.size(c.x())
    axis = c.axis(c.option("Axis"), len(size))
    if size[axis] != len(c.shapes):
        raise OpError(f"{size[axis]} parts are no {len(c.shapes)} results")
    return [c.shaped(p, (*size[:axis], *size[axis + 1 :])) for p in _parts(c, c.x(), axis, [1] * size[axis])]


def _split(c: TfliteCall) -> list[Node]:
    (axis,), x, n = c.ints(0), c.x(1), c.option("NumSplits")
    axis = c.axis(axis, len(x.shape))
    if n != len(c.shapes):
        raise OpError(f"{n} parts are no {len(c.shapes)} results")
    if n < 1 or c.size(x)[axis] % n:
        raise OpError(f"{c.size(x)[axis]} elements are no {n} equal parts")
    return _parts(c, x, axis, [c.size(x)[axis] // n] * n)


def _split_v(c: TfliteCall) -> list[Node]:
    x, lengths, (axis,) = c.x(0), c.ints(1), c.ints(2)
    axis = c.axis(axis, len(x.shape))
    if lengths.count(-1) == 1:
        lengths[lengths.index(-1)] = c.size(x)[axis] - sum(n for n in lengths if n != -1)
    return _parts(c, x, axis, lengths)


def _slice(c: TfliteCall) -> Node:
    starts, lengths, size = c.ints(1), c.ints(2), c.size(c.x())
    stops = [n if length == -1 else s + length for s, length, n in zip(starts, lengths, size, strict=True)]
    return _cut(c, c.x(), starts, stops)


def _strided_slice(c: TfliteCall) -> Node:
    """NumPy's indexing, which finds the elements: masks say which bounds are open and which axes vanish."""
    if c.option("EllipsisMask") or c.option("NewAxisMask"):
        raise OpError("an ellipsis or new axes in a slice are not read", remedy="convert with plain slices")
    begin, end, steps, size = c.ints(1), c.ints(2), c.ints(3), c.size(c.x())
    begin_mask, end_mask, gone = c.option("BeginMask"), c.option("EndMask"), c.option("ShrinkAxisMask")
    starts, stops, strides = [0] * len(size), list(size), [1] * len(size)
    for k, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        if step == 0:
            raise OpError(f"the slice of axis {k} has steps of 0")
        if gone >> k & 1:
            at = c.axis(first, size[k])
            starts[k], stops[k] = at, at + 1
            continue
        # Python's own rule of slices, which open bounds and negative ones follow.
        bounds = slice(None if begin_mask >> k & 1 else first, None if end_mask >> k & 1 else last, step)
        starts[k], stops[k], strides[k] = bounds.indices(size[k])
        if len(range(starts[k], stops[k], strides[k])) == 0:
            starts[k] = stops[k] = 0
            strides[k] = 1
    made = _cut(c, c.x(), starts, stops, strides)
    kept = [n for k, n in enumerate(c.size(made)) if not gone >> k & 1]
    return c.shaped(made, kept)


def _pad(c: TfliteCall) -> Node:
    pads = c.known(1).reshape(-1, 2)
    value = c.shaped(c.x(2), ()) if c.name == "PADV2" else c.number(0, c.x())
    return c.b(ops.pad, c.x(), value, pads=tuple((int(lo), int(hi)) for lo, hi in pads), mode="constant")


def _mirror_pad(c: TfliteCall) -> Node:
    """By looking elements up: with the border element again, or without it."""
    x, symmetric = c.x(), c.option("Mode") == 1
    pads = c.ints(1)
    for axis, (lo, hi) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        if lo or hi:
            n = c.size(x)[axis]
            most = n if symmetric else n - 1
            if not (0 <= lo <= most and 0 <= hi <= most):
                rule = f"mirrored pads of {(lo, hi)} for axis {axis} of {x.type} are more than its {most} elements"
                raise OpError(rule, remedy="pad in several steps")
            places = np.pad(np.arange(n), (lo, hi), mode="symmetric" if symmetric else "reflect")
            x = c.b(ops.gather, x, c.b.const(places.astype(np.int64)), axis=axis)
    return x


def _tile(c: TfliteCall) -> Node:
    return c.b(ops.tile, c.x(), repeats=tuple(c.ints(1)))


def _broadcast_to(c: TfliteCall) -> Node:
    return c.b(ops.expand, c.x(), shape=tuple(c.ints(1)))


def _reverse(c: TfliteCall) -> Node:
    return c.b(ops.reverse, c.x(), axes=tuple(sorted(c.axis(k, len(c.x().shape)) for k in c.ints(1))))


def _gather(c: TfliteCall) -> Node:
    if c.option("BatchDims", 0):
        raise OpError("lookups of each of many tensors are not read")
    return c.b(ops.gather, c.x(0), c.x(1), axis=c.axis(c.option("Axis", 0), len(c.x(0).shape)))


def _embedding_lookup(c: TfliteCall) -> Node:
    return c.b(ops.gather, c.x(1), c.x(0), axis=0)


def _gather_nd(c: TfliteCall) -> Node:
    return c.b(ops.gather_nd, c.x(0), c.x(1))


def _scatter_nd(c: TfliteCall) -> Node:
    """Into zeros; of equal places the sum."""
    updates = c.x(1)
    zeros = c.b(ops.full, value=0.0, dtype=updates.dtype, shape=tuple(c.ints(2)))
    return c.b(ops.scatter_nd, zeros, c.x(0), updates, reduction="add")


def _one_hot(c: TfliteCall) -> Node:
    (depth,), axis = c.ints(1), c.option("Axis")
    rank = len(c.x(0).shape)
    off_on = c.b(ops.concat, c.shaped(c.x(3), (1,)), c.shaped(c.x(2), (1,)), axis=0)
    return c.b(ops.one_hot, c.x(0), off_on, depth=depth, axis=c.axis(axis, rank + 1))


def _dynamic_update_slice(c: TfliteCall) -> Node:
    return c.b(ops.dynamic_update_slice, c.x(0), c.x(1), c.x(2))


# --- sources --------------------------------------------------------------------------------------------------------


def _constant(c: TfliteCall, a: Array) -> Node:
    return c.b.const(a.astype(c.dtypes[0].numpy))


def _range(c: TfliteCall) -> Node:
    start, stop, step = (c.known(k).item() for k in range(3))
    if step == 0:
        raise OpError("a range has steps of 0")
    n = (stop - start) / step
    if not isfinite(n):
        raise OpError(f"a range from {start} to {stop} by {step} has no end")
    check_size(ceil(n))
    return _constant(c, np.arange(start, stop, step))


def _fill(c: TfliteCall) -> Node:
    return c.b(ops.expand, c.shaped(c.x(1), ()), shape=tuple(c.ints(0)))


def _shape(c: TfliteCall) -> Node:
    return _constant(c, np.array(c.size(c.x())))


def _rank(c: TfliteCall) -> Node:
    return _constant(c, np.array(len(c.x().shape)))


def _zeros_like(c: TfliteCall) -> Node:
    return c.b(ops.full, value=0.0, dtype=c.x().dtype, shape=c.size(c.x()))


# --- blocks ---------------------------------------------------------------------------------------------------------


def _depth_to_space(c: TfliteCall) -> Node:
    (n, h, w, channels), k = c.size(c.x()), c.option("BlockSize")
    if k < 1 or channels % (k * k):
        raise OpError(f"{channels} channels are no blocks of {k} by {k}")
    split = c.shaped(c.x(), (n, h, w, k, k, channels // (k * k)))
    return c.shaped(c.transposed(split, (0, 1, 3, 2, 4, 5)), (n, h * k, w * k, channels // (k * k)))


def _space_to_depth(c: TfliteCall) -> Node:
    (n, h, w, channels), k = c.size(c.x()), c.option("BlockSize")
    if k < 1 or h % k or w % k:
        raise OpError(f"{h} by {w} are no blocks of {k} by {k}")
    split = c.shaped(c.x(), (n, h // k, k, w // k, k, channels))
    return c.shaped(c.transposed(split, (0, 1, 3, 2, 4, 5)), (n, h // k, w // k, k * k * channels))


def _space_to_batch(c: TfliteCall) -> Node:
    return space_to_batch(c, 0)


def space_to_batch(c: TfliteCall, outside: float) -> Node:
    """Each place of a block becomes a batch of its own, places before batches; ``outside`` lies around them."""
    x, blocks, pads = c.x(), c.ints(1), c.known(2).reshape(-1, 2)
    m, rank = len(blocks), len(x.shape)
    around = ((0, 0), *((int(lo), int(hi)) for lo, hi in pads), *((0, 0),) * (rank - m - 1))
    padded = c.b(ops.pad, x, c.number(outside, x), pads=around, mode="constant")
    n, *size = c.size(padded)
    if any(b < 1 or d % b for d, b in zip(size, blocks, strict=False)):
        raise OpError(f"{size[:m]} are no blocks of {blocks}")
    split = [v for d, b in zip(size, blocks, strict=False) for v in (d // b, b)]
    order = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, rank + m)]
    turned = c.transposed(c.shaped(padded, (n, *split, *size[m:])), order)
    return c.shaped(turned, (n * prod(blocks), *(d // b for d, b in zip(size, blocks, strict=False)), *size[m:]))


def _batch_to_space(c: TfliteCall) -> Node:
    x, blocks, crops = c.x(), c.ints(1), c.known(2).reshape(-1, 2)
    (n, *size), m = c.size(x), len(blocks)
    if min(blocks) < 1 or n % prod(blocks):
        raise OpError(f"{n} batches are no blocks of {blocks}")
    split = c.shaped(x, (*blocks, n // prod(blocks), *size))
    order = [m, *(v for k in range(m) for v in (m + 1 + k, k)), *range(2 * m + 1, len(size) + m + 1)]
    whole = [d * b for d, b in zip(size, blocks, strict=False)]
    joined = c.shaped(c.transposed(split, order), (n // prod(blocks), *whole, *size[m:]))
    starts = [0, *(int(lo) for lo, _ in crops), *[0] * (len(size) - m)]
    stops = [n // prod(blocks), *(d - int(hi) for d, (_, hi) in zip(whole, crops, strict=True)), *size[m:]]
    return _cut(c, joined, starts, stops)


def _dequantize(c: TfliteCall) -> Node:
    """Of halves, as converters store weights; of codes see ``integer_tables``."""
    if not c.x().dtype.is_float:
        raise OpError(f"codes of {c.x().dtype} have no scale", remedy="convert the model anew")
    return c.cast(c.x(), c.dtypes[0])


def _densify(c: TfliteCall) -> Node:
    """Weights that are stored sparsely are spelled out where they are read (``sparse``)."""
    return c.x()


def _segment_sum(c: TfliteCall) -> Node:
    ids = c.ints(1)
    rows = (max(ids) + 1 if ids else 0, *c.size(c.x())[1:])
    zeros = c.b(ops.full, value=0.0, dtype=c.x().dtype, shape=rows)
    at = c.shaped(c.cast(c.x(1), i64), (len(ids), 1))
    return c.b(ops.scatter_nd, zeros, at, c.x(0), reduction="add")


TABLE: Mapping[str, Converter] = {
    "RESHAPE": _reshape, "SQUEEZE": _of_file, "EXPAND_DIMS": _of_file, "TRANSPOSE": _transpose,
    "CONCATENATION": _concatenation, "PACK": _pack, "UNPACK": _unpack, "SPLIT": _split, "SPLIT_V": _split_v,
    "SLICE": _slice, "STRIDED_SLICE": _strided_slice, "PAD": _pad, "PADV2": _pad, "MIRROR_PAD": _mirror_pad,
    "TILE": _tile, "BROADCAST_TO": _broadcast_to, "REVERSE_V2": _reverse, "GATHER": _gather,
    "EMBEDDING_LOOKUP": _embedding_lookup, "GATHER_ND": _gather_nd, "SCATTER_ND": _scatter_nd, "ONE_HOT": _one_hot,
    "DYNAMIC_UPDATE_SLICE": _dynamic_update_slice, "RANGE": _range, "FILL": _fill, "SHAPE": _shape, "RANK": _rank,
    "ZEROS_LIKE": _zeros_like, "DEPTH_TO_SPACE": _depth_to_space, "SPACE_TO_DEPTH": _space_to_depth,
    "SPACE_TO_BATCH_ND": _space_to_batch, "BATCH_TO_SPACE_ND": _batch_to_space, "DEQUANTIZE": _dequantize,
    "SEGMENT_SUM": _segment_sum, "DENSIFY": _densify,
}  # fmt: skip
