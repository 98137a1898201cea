"""Rewrites of a computation before it becomes loops: fewer axes, no padding guards inside reductions.

In: ``Computation``. Out: an equal ``Computation`` that schedules better.
Not its business: loops and targets.

Rewrites, each a function: ``drop_unit_axes``; ``inline`` (a temporary with one reader becomes part of it);
``order_reductions`` (reduction axes by falling stride of what is read); ``materialize_guards`` (a padded operand of a
reduction becomes a padded copy); ``collapse`` (adjacent axes that every access walks as one become one);
``join_columns`` (a window's columns and channels become one axis where channels leave lanes idle); ``free_maxima``
(maxima that need not carry NaN do not); ``flush_weights`` (a softmax's weights that only sums read are never denormal).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from math import inf, lcm

from tilewright.choose.clusters import TRANSFORMED, is_window, projection_before, ring_before, transformed_to
from tilewright.choose.collapse import collapse, neighbours
from tilewright.choose.cost.tile import FUNCTION_OPERATIONS, estimate
from tilewright.choose.extremes import flush_weights, free_maxima
from tilewright.choose.relayout import copy_of, relay_operands
from tilewright.choose.whole_registers import fill_registers
from tilewright.choose.widen import widen_shared
from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Inside,
    Load,
    Select,
    Serial,
    Stage,
    Value,
    buffers_of_value,
    loads,
    loop_symbol,
    map_stage,
    operands,
    rewrite_value,
    substitute_value,
    walk,
)
from tilewright.core.dims import is_known, known_at_least
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import COPIED_LANES, IDLE
from tilewright.core.expr import Dim, Sym, bounds, symbol_order, symbols
from tilewright.core.indices import chosen, is_chosen, lies_at, symbols_at
from tilewright.core.types import product
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient, linear, stride_along

FEW_SETS = 4
"""Of a first-level cache: few of rows that fall into no more stay there beside each other."""
CHEAP = ("add", "sub", "mul")
Folds = Callable[[Stage, Sequence[Load]], bool]
"""May a reduction compute what it reads by these loads of a temporary, at each of its steps?"""


def normalize(computation: Computation, machine: Target, constants: Container[Buffer] = ()) -> Computation:
    """All rewrites in order.

    A computation with serial loops keeps its shape: only unit axes go.
    """
    computation = drop_unit_axes(computation)
    if any(isinstance(x, Serial) for x in computation.items):
        return computation
    computation = inline(computation, near_bytes=machine.l1_bytes)
    computation = widen_shared(order_reductions(computation, constants), machine.dots)
    computation = fill_registers(relay_operands(computation, constants, machine.dots), machine)
    computation = materialize_guards(computation, machine, _transformed_products(computation))
    computation = drop_unit_axes(widen_shared(computation, machine.dots))  # what is padded, in one copy
    stages = stages_of(computation)
    if any(transformed_to(s, stages, computation) for s in stages):
        return computation  # its rule walks tiles axis by axis
    rings = [ring_before(s, stages, computation) for s in stages]
    if machine.has_masks and not any(rings) and not any(projection_before(s, stages, computation) for s in stages):
        computation = join_columns(computation, machine, constants)
    in_rows = {x.out.name for x in stages_of(computation) if _is_read_in_rows(x, computation, machine)}
    whole = collapse(computation, constants, {found[-1].out.name for found in rings if found} | in_rows)
    return flush_weights(free_maxima(whole))


def _is_read_in_rows(s: Stage, computation: Computation, machine: Target) -> bool:
    """Do plain stages read windows of rows of a large result of another one? Strips may hold a few of its rows."""
    n_bytes = estimate(s.out.shape) * s.out.dtype.n_bytes
    is_wide = len(s.axes) > 1 and estimate((s.axes[-1].extent,)) >= machine.lanes(s.out.dtype)
    if s.reduction is not None or s.out not in computation.temps or n_bytes <= machine.l2_bytes or not is_wide:
        return False
    readers = [x for x in stages_of(computation) if any(y.buffer is s.out for v in x.values for y in loads(v))]
    places = {y.index for x in readers for v in x.values for y in loads(v) if y.buffer is s.out}
    return all(x.reduction is None for x in readers) and len(places) > len(readers)


def stages_of(computation: Computation) -> tuple[Stage, ...]:
    """The items of a computation without serial loops."""
    return tuple(x for x in computation.items if isinstance(x, Stage))


def drop_unit_axes(computation: Computation) -> Computation:
    """``for i<1`` -> ``i = 0`` in every stage; a stage keeps at least no axes at all.

    So is an index that the data choose among one: nothing else is within bounds. A reduction over one element assigns.
    """

    def go(item: Stage | Serial) -> Stage | Serial:
        if isinstance(item, Serial):
            return replace(item, body=tuple(go(x) for x in item.body))
        if any(_chooses_of_one(x) for v in item.exprs for x in loads(v)):
            item = replace(item, exprs=tuple(rewrite_value(v, _first_of_one) for v in item.exprs))
        reduced = item.reduction.axes if item.reduction else ()
        dims: dict[Sym, Dim] = {a.sym: 0 for a in (*item.axes, *reduced) if a.extent == 1}
        if not dims:
            return item
        axes = tuple(a for a in item.axes if a.sym not in dims)
        left = tuple(a for a in reduced if a.sym not in dims)
        mapped = map_stage(item, dims, axes, left)
        return _of_one(mapped) if reduced and not left else mapped

    return replace(computation, items=tuple(go(x) for x in computation.items))


def _of_one(stage: Stage) -> Stage:
    """A reduction without axes as the one step that it has."""
    red = stage.reduction
    if red is None or not isinstance(red.op, str):
        return stage
    if stage.update is not None or stage.expr.dtype is not stage.out.dtype:
        return stage
    return replace(stage, exprs=(Binary(red.op, red.init[0], stage.expr),), reduction=None)


def _chooses_of_one(x: Load) -> bool:
    return any(n == 1 and is_chosen(i) for n, i in zip(x.buffer.shape, x.index, strict=True))


def _first_of_one(v: Value) -> Value | None:
    if not isinstance(v, Load) or not _chooses_of_one(v):
        return None
    return Load(v.buffer, tuple([0 if n == 1 else i for n, i in zip(v.buffer.shape, v.index, strict=True)]))


def order_reductions(computation: Computation, constants: Container[Buffer]) -> Computation:
    """Axes of a commutative reduction in the order of falling strides of the widest run-time operand."""

    def go(item: Stage | Serial) -> Stage | Serial:
        if isinstance(item, Serial) or item.reduction is None or not isinstance(item.reduction.op, str):
            return item
        axes = item.reduction.axes
        stride = {a.sym: _stride(item.exprs[0], a.sym, constants) for a in axes}
        independent = all(not symbols(a.extent) & {b.sym for b in axes} for a in axes)
        if not independent or len(axes) < 2:
            return item
        ordered = tuple(sorted(axes, key=lambda a: -stride[a.sym]))
        return replace(item, reduction=replace(item.reduction, axes=ordered))

    return replace(computation, items=tuple(go(x) for x in computation.items))


def _stride(v: Value, sym: Sym, constants: Container[Buffer]) -> int:
    best = 0
    for x in walk(v):
        if isinstance(x, Load) and x.buffer not in constants:
            offset = linear(x.buffer, x.index)
            c = None if offset is None else coefficient(offset, sym)
            if c is not None and not is_known(c):
                c = bounds(c)[1] or 1 << 30
            best = max(best, abs(c or 0))
    return best


def reads_once(user: Stage, reads: Sequence[Load]) -> bool:
    """Does the reduction have one such load, which reads another element at every step?"""
    reduced = user.reduction.axes if user.reduction else ()
    walked = [a.sym for a in (*user.axes, *reduced)]
    index = [i for x in reads for i in x.index if i != 0]
    return len(reads) == 1 and bool(reduced) and sorted(map(str, index)) == sorted(map(str, walked))


def reads_along(user: Stage, reads: Sequence[Load]) -> bool:
    """Does it read each element once, the temporary's last axis in its innermost loop or along its lanes?"""
    if not reads_once(user, reads) or user.reduction is None:
        return False
    last = [i for i in reads[0].index if i != 0][-1]
    return last == user.reduction.axes[-1].sym or (bool(user.axes) and last == user.axes[-1].sym)


def inline(computation: Computation, folds: Folds = reads_along, near_bytes: float = inf) -> Computation:
    """A temporary that one plain stage assigns once and one later plain stage reads is computed where it is read.

    Not when: its stage reduces, updates or scatters; the reader is a reduction that would do more than widen a load,
    unless ``folds`` says that it may do the arithmetic of what it reads so; it is read at a run-time index; what it
    reads is written in between; the result would be very large; it is a table of positions that is read many times
    over. From the last temporary back: two readers may have become one by then; but first of all, inputs in other
    shapes, so that what is read of them shows as that. Of an input and a result for its row
    (``_again``) several readers compute it each: they read the input, which is there, and no copy of it has to be
    written. Where that result is computed from a reduction's, as a mean is, this costs a little more than the copy of
    a short row, and much less than one that does not stay beside the row in a cache of ``near_bytes``.
    """
    readers = [_Inliner(s) for s in stages_of(computation)]
    temps = list(computation.temps)
    moves = [s.out for s in stages_of(computation) if isinstance(s.expr, Load) and s.expr.buffer in computation.inputs]
    for t in (*(t for t in moves if t in temps), *(t for t in reversed(computation.temps) if t not in moves)):
        makers = [k for k, r in enumerate(readers) if t in r.stage.outs]
        users = [k for k, r in enumerate(readers) if t in r.buffers]
        if len(makers) != 1 or not users:  # several writers leave parts of it
            continue
        at, maker = makers[0], readers[makers[0]].settled()
        # Several readers would repeat the work, unless that is cheaper than a copy.
        if len(users) > 1 and not _again(maker, [r.stage for r in readers], computation.inputs, near_bytes):
            continue
        stages = [r.stage for r in readers[at + 1 : max(users)]]
        if any(at >= k or not _may_inline(maker, readers[k], stages[: k - at - 1], folds) for k in users):
            continue
        # Readers keep their places in the order, which is legal: nothing in between writes what the maker reads.
        for k in users:
            readers[k].take(maker)
        del readers[at]
        temps.remove(t)
    return replace(computation, items=tuple(r.settled() for r in readers), temps=tuple(temps))


class _Inliner:
    """A stage with what it will compute where it reads temporaries: put into its expressions at the end, all at once.

    ``buffers`` are all that it reads. A chain's last stage takes one stage after the other, and would be rebuilt each
    time. ``_taken`` has what stands for each load of a temporary, whose own loads of others are not replaced yet.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._makers: dict[Buffer, Stage] = {}
        self._taken: dict[Load, Value] = {}
        self._in_exprs = [_by_buffer(loads(v)) for v in stage.exprs]
        self._elsewhere = _by_buffer([x for v in stage.values[len(stage.exprs) :] for x in loads(v)])
        self.buffers = frozenset[Buffer]().union(*map(buffers_of_value, stage.values))

    def reads(self, t: Buffer) -> list[Load] | None:
        """Its loads of a buffer, for each expression the different ones; None where not only expressions have some."""
        return None if t in self._elsewhere else [x for found in self._in_exprs for x in found.get(t, ())]

    def take(self, maker: Stage) -> None:
        """Compute a stage's result where it is read."""
        for found in self._in_exprs:
            for x in found.pop(maker.out, ()):
                if x not in self._taken:
                    self._taken[x] = substitute_value(maker.expr, lies_at(maker.index, x.index))
                for y in loads(self._taken[x]):
                    found.setdefault(y.buffer, {})[y] = None
        self._makers[maker.out] = maker
        self.buffers = self.buffers - {maker.out} | buffers_of_value(maker.expr)

    def settled(self) -> Stage:
        """The stage as it is with all that was taken."""
        if self._makers:
            self.stage = replace(self.stage, exprs=tuple(map(self._inlined, self.stage.exprs)))
            self._makers, self._taken = {}, {}
        return self.stage

    def _inlined(self, v: Value) -> Value:
        made: dict[Load, Value] = {}

        def leaf(x: Value) -> Value | None:
            if not isinstance(x, Load) or x.buffer not in self._makers:
                return None
            if x not in made:
                made[x] = within(self._taken[x])
            return made[x]

        def within(x: Value) -> Value:
            return rewrite_value(x, leaf, keep=lambda y: buffers_of_value(y).isdisjoint(self._makers))

        return within(v)


def _by_buffer(found: Iterable[Load]) -> dict[Buffer, dict[Load, None]]:
    groups: dict[Buffer, dict[Load, None]] = {}
    for x in found:
        groups.setdefault(x.buffer, {})[x] = None
    return groups


def _again(maker: Stage, items: Sequence[Stage], inputs: Container[Buffer], near_bytes: float) -> bool:
    """Is it one operation on an input's elements in their order and a reduction's result for each row of them?

    Or what is computed from such a result, where a row and its copy exceed ``near_bytes``; or an input's elements as
    they are, in another shape.
    """
    v = maker.exprs[0]
    if isinstance(v, Load):
        return v.buffer in inputs and bool(maker.axes) and stride_along(v.buffer, v.index, maker.axes[-1].sym) == 1
    if not isinstance(v, Binary) or not isinstance(v.a, Load) or not isinstance(v.b, Load) or not maker.axes:
        return False
    x, row = (v.b, v.a) if v.b.buffer in inputs else (v.a, v.b)
    if x.buffer not in inputs or row.buffer in inputs or x.dtype.bits < types.f32.bits or v.op not in CHEAP:
        return False
    last = maker.axes[-1].sym
    along = [i for i in row.index if is_chosen(i) or last in symbols(i)]
    if along or stride_along(x.buffer, x.index, last) != 1:
        return False
    n = estimate([a.extent for a in maker.axes if not any(a.sym in symbols_at(i) for i in row.index)])
    is_reduced = any(s.reduction is not None and row.buffer in s.outs for s in items)
    return is_reduced or n * (x.dtype.n_bytes + maker.out.dtype.n_bytes) > near_bytes


def _may_inline(maker: Stage, reader: _Inliner, between: Sequence[Stage], folds: Folds) -> bool:
    if maker.reduction or maker.update or len(maker.outs) != 1:
        return False
    t = maker.out
    if not _fills(maker):
        return False
    user, reads = reader.stage, reader.reads(t)
    if reads is None or any(chosen(x.index) for x in reads):
        return False
    sources = buffers_of_value(maker.expr)
    if any(b in sources for s in between for b in s.outs):
        return False
    size = sum(1 for _ in walk(maker.expr))
    points, places = (estimate([a.extent for a in s.axes]) for s in (user, maker))
    if _is_table(maker, size) and points >= COPIED_LANES * places:
        return False
    if user.reduction is not None:
        v = maker.expr
        if isinstance(v, Load) or (isinstance(v, Cast) and isinstance(v.a, Load) and v.a.dtype.bits <= v.dtype.bits):
            return True
        return isinstance(user.reduction.op, str) and folds(user, reads)
    return len({x.index for x in reads}) * size <= EFFORT.nodes and (len(reads) == 1 or size <= FUNCTION_OPERATIONS)


def _is_table(maker: Stage, size: int) -> bool:
    """Is it arithmetic on positions along one axis, more of it than reading the result takes?"""
    return len(maker.axes) == 1 and size > FUNCTION_OPERATIONS and not buffers_of_value(maker.expr)


def _fills(maker: Stage) -> bool:
    """Does the stage write every element once: each dimension by an axis of its own over all of it, or at 0 of 1?"""
    extents = {a.sym: a.extent for a in maker.axes}
    used: list[Sym] = []
    for i, d in zip(maker.index, maker.out.shape, strict=True):
        if isinstance(i, Sym) and i in extents and extents[i] == d:
            used.append(i)
        elif i != 0 or d != 1:
            return False
    return len(used) == len(set(used)) == len(maker.axes)


def join_columns(computation: Computation, machine: Target, constants: Container[Buffer]) -> Computation:
    """A window's columns and channels as one axis, where channels alone would leave too many lanes idle.

    Neighbours of the last column follow in memory, so vectors go on through it: 17 channels take 17 vectors for 16
    columns, not 32. The taps' outer axis goes innermost: neighbouring rows share what it walks. Not where the taps'
    weights, which repeat when channels and vectors end together, leave no room in the first-level cache.
    """
    for k, s in enumerate(stages_of(computation)):
        if not is_window(s) or not s.axes[:-2] or s.reduction is None:
            continue
        lanes = machine.vector_bytes // s.out.dtype.n_bytes
        columns, channels = (a.extent for a in s.axes[-2:])
        if not is_known(columns) or not is_known(channels) or not lanes or columns * channels < lanes:
            continue
        n_bytes = lcm(channels, lanes) * estimate([a.extent for a in s.reduction.axes]) * s.out.dtype.n_bytes
        if channels * IDLE <= -(-channels // lanes) * lanes and n_bytes <= machine.l1_bytes:
            joined = neighbours(computation, constants, k)
            if joined is not None:
                return _outer_taps_inside(joined, k)
    return computation


def _outer_taps_inside(computation: Computation, k: int) -> Computation:
    items = list(stages_of(computation))
    red = items[k].reduction
    assert red is not None
    items[k] = replace(items[k], reduction=replace(red, axes=red.axes[::-1]))
    return replace(computation, items=tuple(items))


# --- padding --------------------------------------------------------------------------------------------------------


def _transformed_products(computation: Computation) -> set[int]:
    """The products whose operand plain stages make for them: their rule brings maker and product together."""
    stages = stages_of(computation)
    chains = [transformed_to(s, stages, computation) for s in stages]
    return {id(chain[TRANSFORMED.index("product")]) for chain in chains if chain is not None}


def materialize_guards(computation: Computation, machine: Target, kept: Container[int] = ()) -> Computation:
    """``sum(select(inside(ih...), X[n, ih, iw, c], 0) * w)`` -> a padded copy of X, then ``sum(XP[n, ih+p, ...] * w)``.

    Guards in an inner loop multiply its code; the copy costs a few per cent. Not when: the guarded value has no single
    load, or a guard is not an index of that load up to a sign and a constant; or the stage is a window, whose work is
    too little to pay for a copy: the emitter makes pieces for its borders; or its identity is among ``kept``.
    """
    items: list[Stage | Serial] = []
    temps = list(computation.temps)
    for item in computation.items:
        is_fold = isinstance(item, Stage) and item.reduction is not None and bool(item.reduction.axes)
        if isinstance(item, Stage) and is_fold and not is_window(item) and id(item) not in kept:
            for select in _guarded(item):
                made = _padded(item, select, machine, len(temps))
                if made is not None:
                    stage, load = made
                    items.append(stage)
                    temps.append(stage.out)
                    item = _replaced(item, select, load)
        items.append(item)
    return replace(computation, items=tuple(items), temps=tuple(temps))


def _guarded(stage: Stage) -> list[Select]:
    found = [x for v in stage.exprs for x in walk(v) if isinstance(x, Select) and isinstance(x.cond, Inside)]
    nested = {y for x in found for o in operands(x) for y in walk(o)}
    return [x for x in found if x not in nested]


def _replaced(stage: Stage, old: Value, new: Value) -> Stage:
    return replace(stage, exprs=tuple(rewrite_value(v, lambda x: new if x == old else None) for v in stage.exprs))


def _padded(stage: Stage, select: Select, machine: Target, serial: int) -> tuple[Stage, Load] | None:
    found = {x for x in walk(select) if isinstance(x, Load)}
    assert isinstance(select.cond, Inside)
    if len(found) != 1:
        return None
    load = found.pop()
    extents = {a.sym: a.extent for a in (*stage.axes, *(stage.reduction.axes if stage.reduction else ()))}
    axes: list[Axis] = []
    shifts: list[Dim] = []
    values: list[tuple[Dim, Dim]] = []
    for d, e in enumerate(load.index):
        # The copy holds the whole range that any iteration reads, from the least place on.
        span = None if is_chosen(e) else _span(e, extents)
        if span is None or is_chosen(e):
            return None
        lo, size = span
        sym = loop_symbol(f"p{d}", size)
        axes.append(Axis(sym, size))
        shifts.append(lo)
        values.append((e, sym + lo))
    guards = [_as_function(g, values, extents) for g in select.cond.exprs]
    own = {a.sym for a in axes}
    rest = {s for x in walk(select) if not isinstance(x, Load | Inside) for s in _own_symbols(x)}
    # A guard must be told from the place alone, as the copy has no loops of the stage.
    if any(g is None for g in guards) or rest & extents.keys():
        return None
    at = tuple(v for _, v in values)
    inner = rewrite_value(select.a, lambda x: Load(x.buffer, at) if isinstance(x, Load) else None)
    value = Select(Inside(tuple(g for g in guards if g is not None)), inner, select.b)
    shape = _apart(stage, load, machine, [a.extent for a in axes])
    if len(own) != len(axes):
        return None
    order = _order(stage, load, machine, shape)
    temp = copy_of(load.buffer, f"pad{serial}", select.dtype, [shape[d] for d in order])
    copy = Stage((temp,), tuple(axes), tuple(axes[d].sym for d in order), (value,))
    index = [e - lo for (e, _), lo in zip(values, shifts, strict=True)]
    return copy, Load(temp, tuple(index[d] for d in order))


def _order(stage: Stage, load: Load, machine: Target, shape: Sequence[Dim]) -> list[int]:
    """The dimensions of a copy, outermost first: as they were, or with what only sums walk inside of what results do.

    So where the terms of a sum would lie in more pages than a core knows: what a row of results reads is together then.
    The last dimension stays, as lanes walk it. Rows that are one axis with their columns (``collapse``), as those of
    windows of one column are, stay so: lanes go on from row to row. The copy is made in the order in which its source
    lies.
    """
    summed = {a.sym for a in stage.reduction.axes} if stage.reduction else set()
    *outer, last = range(len(shape))
    inside = [d for d in outer if symbols_at(load.index[d]) <= summed and load.index[d] != 0]
    in_pages = any(
        known_at_least(shape[d], machine.n_near_pages + 1)
        and known_at_least(product(shape[d + 1 :]) * load.dtype.n_bytes, machine.page_bytes)
        for d in inside
    )
    is_joined = shape[last] in [a.extent for a in stage.axes[-1:]]
    if not in_pages or is_joined or symbols_at(load.index[last]) <= summed:
        return [*outer, last]
    return [*(d for d in outer if d not in inside), *inside, last]


def _apart(stage: Stage, load: Load, machine: Target, shape: list[Dim]) -> tuple[Dim, ...]:
    """The shape of a copy whose rows don't fall into few sets of a cache, where groups of channels read parts of them.

    A part of a row is a line or so: at steps of 2 KiB, 24 of them fill what two sets of a first-level cache hold.
    """
    *outer, last = shape
    reduced = {a.sym for a in stage.reduction.axes} if stage.reduction else set()
    is_part = bool(outer) and not symbols_at(load.index[-1]) <= reduced
    if is_part and is_known(last) and last * load.dtype.n_bytes % (machine.set_span // FEW_SETS) == 0:
        last += machine.line(load.dtype)
    return (*outer, last)


def _own_symbols(x: Value) -> frozenset[Sym]:
    return symbols(x.expr) if hasattr(x, "expr") else frozenset()


def _span(e: Dim, extents: dict[Sym, Dim]) -> tuple[Dim, Dim] | None:
    """Lowest value and number of values of ``e`` over the axes."""
    lo: Dim = e
    width: Dim = 1
    for s in sorted(symbols(e) & extents.keys(), key=symbol_order):
        c = coefficient(e, s)
        if symbols(extents[s]) & extents.keys():
            return None
        if not is_known(c):
            low, high = bounds(e)
            return None if low is None or high is None else (low, high - low + 1)
        lo = lo - c * s + (c * (extents[s] - 1) if c < 0 else 0)
        width = width + abs(c) * (extents[s] - 1)
    return lo, width


def _as_function(g: Dim, values: list[tuple[Dim, Dim]], own: Container[Sym]) -> Dim | None:
    """The guard in terms of the new axes, when it is a sum of multiples of the load's indices and no ``own`` axis."""
    found: Dim = 0
    for e, new in values:
        for c in _multiples(g, e):
            rest = g - c * e
            if not symbols(rest) & symbols(e):
                found, g = found + c * new, rest
                break
    return None if any(s in own for s in symbols(g)) else found + g


def _multiples(g: Dim, e: Dim) -> list[int]:
    """What ``e`` may be times in ``g``."""
    found = []
    for s in sorted(symbols(g) & symbols(e), key=lambda s: s.name)[:1]:
        whole, part = coefficient(g, s), coefficient(e, s)
        if is_known(whole) and is_known(part) and part and whole % part == 0:
            found.append(whole // part)
    return [*found, 1, -1] if symbols(g) & symbols(e) else []
