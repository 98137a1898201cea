"""Converters of ONNX ops that reshape, cut, join, pad and reorder tensors.

In: a ``Call``. Out: nodes of the graph IR. Not its business: positions that are data (``onnx.ops.index``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.core import expr
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim, Expr, is_nonneg, maximum, minimum
from tilewright.core.graph import Node
from tilewright.core.types import i64, product
from tilewright.frontend.onnx.call import FIX_REMEDY, Call, Results, Table

FAR = 1 << 31


def _reshape(c: Call) -> Node:
    x = c.x(0)
    c.ignore("consumed_inputs")
    wanted: Sequence[Dim] = c.ints("shape") if c.opset < 5 else c.sizes(c.x(1), "the shape")
    allow_zero = c.opset >= 14 and c.flag("allowzero")
    shape: list[Dim] = []
    free: int | None = None
    # dimensions on both sides cancel, so that what is left for -1 is as simple as it can be
    rest_in: list[Dim] = list(x.shape)
    rest_out: list[Dim] = []
    for k, d in enumerate(wanted):
        if d == 0 and not allow_zero:
            if k >= len(x.shape):
                c.refuse(f"shape {wanted} copies dimension {k}, which the operand of rank {len(x.shape)} lacks")
            shape.append(x.shape[k])
            rest_in.remove(x.shape[k]) if x.shape[k] in rest_in else rest_out.append(x.shape[k])
        elif d == -1:
            if free is not None:
                c.refuse(f"shape {wanted} has -1 twice")
            free = k
            shape.append(-1)
        elif known_under(d, 0):
            c.refuse(f"shape {wanted} has a negative dimension other than -1")
        else:
            if not allow_zero and not is_nonneg(d - 1):  # a 0 would copy a dimension, which may be 0 itself
                copied = x.shape[k] if k < len(x.shape) else 1
                c.assume(d - 1 if is_known(copied) else maximum(d - 1, copied * -1))
            shape.append(d)
            rest_in.remove(d) if d in rest_in and d != 0 else rest_out.append(d)
    total, given = product(rest_in), product(rest_out)
    if free is not None:
        shape[free] = _inferred(c, total, given)
        c.assume(expr.mod(total, given) * -1)  # it has to come out even
    else:
        c.assume_equal(total, given)
    return c.reshape(x, shape)


def _inferred(c: Call, total: Dim, given: Dim) -> Dim:
    if given == 0 or (is_known(total) and is_known(given) and total % given):
        c.refuse(f"-1 in the shape has no solution: {total} elements, {given} per step")
    return expr.floordiv(total, given)


def _transpose(c: Call) -> Node:
    x = c.x(0)
    rank = len(x.shape)
    perm = c.ints("perm", range(rank - 1, -1, -1))
    perm = c.axes(perm, rank)
    if len(perm) != rank:
        c.refuse(f"perm {perm} is not a permutation of {rank} axes")
    return c.transpose(x, perm)


def _expand(c: Call) -> Node:
    x, shape = c.x(0), c.sizes(c.x(1), "the shape")
    return broadcast_to(c, x, shape)


def broadcast_to(c: Call, x: Node, shape: Sequence[Dim]) -> Node:
    """ONNX's two-way broadcast: a 1 in ``shape`` keeps the operand's dimension."""
    rank = max(len(shape), len(x.shape))
    ones: tuple[Dim, ...] = (1,) * rank
    old = (*ones[len(x.shape) :], *x.shape)
    new = (*ones[len(shape) :], *shape)
    return c.expand(x, [_stretched(c, o, n) for o, n in zip(old, new, strict=True)])


def _stretched(c: Call, old: Dim, new: Dim) -> Dim:
    if new == 1 or old == 1:
        return old if new == 1 else new
    if is_known(old) and isinstance(new, Expr):
        c.assume_equal(old, new)
        return old
    if isinstance(old, Expr) and isinstance(new, Expr) and old != new:
        if not is_nonneg(new - 1):  # a number that calls give: 1 keeps the operand's dimension, and 0 is no element
            return maximum(old, new) * minimum(minimum(old, new), 1)
        c.assume(new - old)
    if isinstance(old, Expr) and is_known(new):  # the operand's dimension is 1 or that number
        c.assume(maximum(minimum(old - 1, 1 - old), minimum(old - new, new - old)))
    return new


def _concat(c: Call) -> Node:
    xs = c.nodes()
    return join(c, xs, c.axis(c.int_("axis"), len(xs[0].shape)))


def join(c: Call, xs: Sequence[Node], axis: int) -> Node:
    """Operands one after another; empty ones are left out."""
    kept = [x for x in xs if x.shape[axis] != 0] if all(len(x.shape) > axis for x in xs) else list(xs)
    kept = kept or [xs[0]]
    return kept[0] if len(kept) == 1 else c(ops.concat, *kept, axis=axis)


def split_sizes(c: Call, size: Dim, sizes: Sequence[Dim] | None, n: int) -> list[Dim]:
    """The sizes of ``n`` parts: as given, or equal with a smaller last part."""
    if sizes is not None:
        total = sum(sizes, 0)
        if any(known_under(s, 0) for s in sizes) or (is_known(total) and is_known(size) and total != size):
            c.refuse(f"split {list(sizes)} does not add up to the dimension {size}")
        c.assume_equal(total, size)
        return list(sizes)
    if n < 1:
        c.refuse("the number of parts must be positive")
    part = expr.ceildiv(size, n)
    last = size - part * (n - 1)
    if known_under(last, 0):
        c.refuse(f"a dimension of {size} can't be split into {n} parts")
    return [part] * (n - 1) + [last]


def cut(c: Call, x: Node, axis: int, sizes: Sequence[Dim]) -> list[Node]:
    """Consecutive parts of ``x`` along ``axis``."""
    parts = []
    start: Dim = 0
    for size in sizes:
        parts.append(c.slice_axis(x, axis, start, start + size))
        start = start + size
    return parts


def _split(c: Call) -> Results:
    x = c.x(0)
    axis = c.axis(c.int_("axis", 0), len(x.shape))
    sizes: list[Dim] | None = None
    if c.opset < 13:
        sizes = list(c.ints("split")) if c.has("split") else None
    else:
        operand = c.opt(1)
        sizes = c.dims(operand, "split") if operand is not None else None
    n = c.int_("num_outputs", len(c.outputs))
    if n < len(c.outputs):
        c.refuse(f"num_outputs={n} and {len(c.outputs)} results")
    return cut(c, x, axis, split_sizes(c, x.shape[axis], sizes, min(n, 1 << 16)))


# --- slice ----------------------------------------------------------------------------------------------------------


def _slice(c: Call) -> Node:
    x = c.x(0)
    rank = len(x.shape)
    if c.opset < 10:
        starts: list[Dim] = list(c.ints("starts"))
        ends: list[Dim] = list(c.ints("ends"))
        axes, steps = c.ints("axes", range(len(starts))), [1] * len(starts)
    else:
        axes_node, steps_node = c.opt(3), c.opt(4)
        if c.emitter.values(c.x(1)) is None or c.emitter.values(c.x(2)) is None:
            return _moving_slice(c, x, axes_node, steps_node)
        starts, ends = c.dims(c.x(1), "starts"), c.dims(c.x(2), "ends")
        axes = c.ints_of(axes_node, "axes") if axes_node is not None else list(range(len(starts)))
        steps = c.ints_of(steps_node, "steps") if steps_node is not None else [1] * len(starts)
    axes = c.axes(axes, rank)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        c.refuse("starts, ends, axes and steps must have one entry per axis, and steps must not be 0")
    lo: list[Dim] = [0] * rank
    hi: list[Dim] = list(x.shape)
    by = [1] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        lo[axis], hi[axis], by[axis] = _clamped(c, start, end, step, x.shape[axis])
    if all(s == 0 for s in lo) and hi == list(x.shape) and all(s == 1 for s in by):
        return x
    return c(ops.slice, x, starts=tuple(lo), stops=tuple(hi), steps=tuple(by))


def _clamped(c: Call, start: Dim, end: Dim, step: int, n: Dim) -> tuple[Dim, Dim, int]:
    """Bounds inside of a dimension of ``n``, with ``stop`` not before ``start``."""
    least, most = (0, n) if step > 0 else (-1, n - 1)
    if (
        step == 1
        and is_known(n)
        and isinstance(end, Expr)
        and is_nonneg(start)
        and is_nonneg(end - start)
        and _fits(c, end, n)
    ):
        # A table of fixed length cut to a symbolic one, as position embeddings are.
        return start, end, 1
    first = _bound(start, n, 0, most)
    if step < 0 and not is_nonneg(n - 1):
        first = expr.minimum(first, most)  # before the first of no elements
    stop = _bound(end, n, least, most)
    if step > 0:
        stop = expr.maximum(first, stop)
        if is_known(first) and is_known(stop):
            step = min(step, max(stop - first, 1))
        return first, stop, min(step, FAR)
    stop = expr.minimum(first, stop)
    if is_known(first) and is_known(stop):
        step = max(step, -max(first - stop, 1))
    return first, stop, max(step, -FAR)


def _fits(c: Call, end: Expr, n: int) -> bool:
    """Is ``end`` within ``n``? Where several sizes decide that, calls must keep it so.

    Where one does, the bound is clamped as the op says, and that size becomes a smaller range where another node needs
    the slice to be ``end`` long (``onnx.unify``), which sees through one size only.
    """
    room = n - end
    return is_nonneg(room) or (len(expr.symbols(room)) > 1 and isinstance(room, Expr) and c.host.assume(room))


def _bound(value: Dim, n: Dim, least: Dim, most: Dim) -> Dim:
    """A start or an end as the op clamps it."""
    if is_known(value) and not is_known(n):
        if value >= FAR - 1:
            return most
        if value <= -FAR:
            return least
    if not is_nonneg(value):  # a negative one counts from the end: 1 for those, 0 for the others
        value = value + n * expr.minimum(expr.maximum(-value, 0), 1)
    return expr.maximum(expr.minimum(value, most), least)


def _moving_slice(c: Call, x: Node, axes_node: Node | None, steps_node: Node | None) -> Node:
    """Bounds that are data. Where the end is the start plus constants, the size of the window is known."""
    start, end = c.x(1), c.x(2)
    rank, n = len(x.shape), start.type.n_elements
    sizes = _window_sizes(c, start, end) if c.emitter.values(start) is None else None
    if not is_known(n):
        c.known(start, "the start of the slice")
    assert is_known(n)
    axes = c.axes(c.ints_of(axes_node, "axes") if axes_node is not None else list(range(n)), rank)
    steps = c.ints_of(steps_node, "steps") if steps_node is not None else [1] * n
    if len(axes) != n or len(steps) != n or end.type.n_elements != n or 0 in steps:
        c.refuse("starts, ends, axes and steps must have one entry per axis, and steps must not be 0")
    if sizes is None or any(s != 1 for s in steps):
        for bound, what in ((start, "the start of the slice"), (end, "the end of the slice")):
            c.decided(bound, what)  # a call's values may tell it
        bounds = zip(c.elements(start, "the start"), c.elements(end, "the end"), strict=True)
        for axis, (a, b), step in zip(axes, bounds, steps, strict=True):
            x = _slice_by_data(c, x, axis, _number(c, a), _number(c, b), step)
        return x
    shape = list(x.shape)
    wide = c.cast(start, i64)
    places = [c.const([0], i64)] * rank
    for k, axis in enumerate(axes):
        one = c.slice_axis(wide, 0, k, k + 1)
        below = c(ops.lt, one, c.const(0, i64))
        places[axis] = c(ops.where, below, c(ops.add, one, c.dim_value(x.shape[axis])), one)
        shape[axis] = sizes[k if len(sizes) > 1 else 0]
    return c(ops.dynamic_slice, x, c(ops.concat, *places, axis=0), sizes=tuple(shape))


def _number(c: Call, e: Dim | Node) -> Node:
    return e if isinstance(e, Node) else c.dim_value(e)


def _slice_by_data(c: Call, x: Node, axis: int, start: Node, end: Node, step: int) -> Node:
    """Elements ``start``, ``start + step``, ... before ``end`` along an axis; how many is a size that data decide."""
    n = x.shape[axis]
    size, zero = c.dim_value(n), c.const(0, i64)
    least, most = (zero, size) if step > 0 else (c.const(-1, i64), c(ops.sub, size, c.const(1, i64)))

    def inside(bound: Node, lowest: Node) -> Node:
        wide = c.cast(c.reshape(bound, ()), i64)
        wide = c(ops.where, c(ops.lt, wide, zero), c(ops.add, wide, size), wide)
        return c(ops.minimum, c(ops.maximum, wide, lowest), most)

    first, stop = inside(start, zero), inside(end, least)
    span = c(ops.sub, stop, first) if step > 0 else c(ops.sub, first, stop)
    by = abs(step)
    if by != 1:
        span = c(ops.floor_div, c(ops.add, span, c.const(min(by, FAR) - 1, i64)), c.const(min(by, FAR), i64))
    length = c.size(c(ops.minimum, span, size), "the length of the slice")
    places = c(ops.iota, extent=length, dtype=i64)
    if step != 1:
        places = c(ops.mul, places, c.const(max(min(step, FAR), -FAR), i64))
    return c(ops.gather, x, c(ops.add, places, first), axis=axis)


def _window_sizes(c: Call, start: Node, end: Node) -> list[Dim] | None:
    """``end - start`` where both are one number plus known numbers, seen through reshapes."""
    before, after = _steps_from(c, start), _steps_from(c, end)
    for base, extra in after.items():
        if base in before:
            less, n = before[base], max(len(extra), len(before[base]))
            if len(extra) == len(less) or 1 in (len(extra), len(less)):
                pairs = zip(extra * (n // len(extra)), less * (n // len(less)), strict=True)
                return [expr.maximum(x - y, 0) for x, y in pairs]
    return None


def _steps_from(c: Call, node: Node) -> dict[Node, list[Dim]]:
    """What ``node`` is a known number of steps behind, with how many: itself, what it views, one term of a sum."""
    found: dict[Node, list[Dim]] = {}
    extra: list[Dim] = [0]
    while True:
        found.setdefault(node, extra)
        if node.op in (ops.reshape, ops.cast):
            node = node.inputs[0]
            continue
        known = [k for k, x in enumerate(node.inputs) if node.op is ops.add and c.emitter.values(x) is not None]
        if extra != [0] or not known:
            return found
        extra = c.dims(node.inputs[known[0]], "the size of the slice")
        node = node.inputs[1 - known[0]]


# --- ranks, padding, repetition -------------------------------------------------------------------------------------


def _axes_operand(c: Call, since: int) -> list[int] | None:
    if c.opset < since:
        return c.ints("axes") if c.has("axes") else None
    operand = c.opt(1)
    return c.ints_of(operand, "axes") if operand is not None else None


def _squeeze(c: Call) -> Node:
    x = c.x(0)
    axes = _axes_operand(c, 13)
    if axes is None:
        unsure = [d for d in x.shape if not is_known(d) and not is_nonneg(d - 2)]
        if unsure:
            c.refuse(f"without axes it drops dimensions of size 1, and {unsure[0]} may be one", FIX_REMEDY)
        axes = [k for k, d in enumerate(x.shape) if d == 1]
    dropped = c.axes(axes, len(x.shape))
    for axis in dropped:
        if is_known(x.shape[axis]) and x.shape[axis] != 1:
            c.refuse(f"axis {axis} has size {x.shape[axis]}, not 1")
    return c.reshape(x, [d for k, d in enumerate(x.shape) if k not in dropped])


def _unsqueeze(c: Call) -> Node:
    x = c.x(0)
    axes = _axes_operand(c, 13)
    if axes is None:
        c.refuse("axes are missing")
    rank = len(x.shape) + len(axes)
    new = c.axes(axes, rank)
    old = iter(x.shape)
    return c.reshape(x, [1 if k in new else next(old) for k in range(rank)])


def _flatten(c: Call) -> Node:
    x = c.x(0)
    axis = c.int_("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        c.refuse(f"axis {axis} is outside of a tensor of rank {len(x.shape)}")
    axis = axis + len(x.shape) if axis < 0 else axis
    return c.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _tile(c: Call) -> Node:
    x = c.x(0)
    repeats = c.sizes(c.x(1), "repeats")
    if len(repeats) != len(x.shape):
        c.refuse(f"{len(repeats)} repeats for a tensor of rank {len(x.shape)}")
    return x if all(r == 1 for r in repeats) else c(ops.tile, x, repeats=tuple(repeats))


def _pad(c: Call) -> Node:
    x = c.x(0)
    rank = len(x.shape)
    mode = c.choice("mode", ("constant", "reflect", "edge", "wrap"), "constant")
    value: Node | None = None
    axes = list(range(rank))
    if c.opset < 11:
        pads: list[Dim] = list(c.ints("pads"))
        value = c.const(c.float_("value", 0.0), x.dtype)
    else:
        pads, value = c.dims(c.x(1), "pads"), c.opt(2)
        axes_node = c.opt(3)
        axes = c.axes(c.ints_of(axes_node, "axes"), rank) if axes_node is not None else axes
    if len(pads) != 2 * len(axes):
        c.refuse(f"pads has {len(pads)} numbers for {len(axes)} axes")
    pairs: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        pairs[axis] = (pads[k], pads[k + len(axes)])
    if all(pair == (0, 0) for pair in pairs):
        return x
    filler = c.const(0, x.dtype) if value is None else c.cast(c.reshape(value, ()), x.dtype)
    if mode != "constant":
        x = _cropped(c, x, pairs)
        pairs = [(maximum(lo, 0), maximum(hi, 0)) for lo, hi in pairs]
    return c(ops.pad, x, filler, pads=tuple(pairs), mode=mode)


def _cropped(c: Call, x: Node, pairs: Sequence[tuple[Dim, Dim]]) -> Node:
    """``x`` without what negative pads take away, which is no element to repeat or to mirror any more."""
    starts: list[Dim] = []
    stops: list[Dim] = []
    for n, (lo, hi) in zip(x.shape, pairs, strict=True):
        start, stop = maximum(lo * -1, 0), n + minimum(hi, 0)
        if (start, stop) != (0, n):
            if known_under(stop - start, 1):
                c.refuse(f"pads {(lo, hi)} leave nothing of {n} elements to pad with", "take fewer elements away")
            c.assume(stop - start - 1)
        starts.append(start)
        stops.append(stop)
    if all(start == 0 for start in starts) and tuple(stops) == x.shape:
        return x
    return c(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(starts))


def _depth_to_space(c: Call) -> Node:
    mode = c.choice("mode", ("DCR", "CRD"), "DCR")
    return c(ops.depth_to_space, c.x(0), block=_block(c), mode=mode)


def _space_to_depth(c: Call) -> Node:
    return c(ops.space_to_depth, c.x(0), block=_block(c), mode=c.choice("mode", ("DCR", "CRD"), "DCR"))


def _block(c: Call) -> int:
    block = c.int_("blocksize")
    if block < 1:
        c.refuse(f"blocksize={block} must be positive")
    return block


def _trilu(c: Call) -> Node:
    k = c.opt(1)
    diagonal = int(c.number(k, "k")) if k is not None else 0
    return c(ops.trilu, c.x(0), k=diagonal, upper=c.flag("upper", True))


TABLE: Table = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
