"""Collapsing adjacent axes of a computation into one where every access walks them as one.

In: ``Computation``. Out: an equal one with fewer axes and fewer dimensions.
Not its business: anything but axes.

``for a<A: for b<B: ... X[.., a, b, ..]`` -> ``for ab<A*B: ... X'[.., ab, ..]`` when every access is affine in both with
``stride(a) == B * stride(b)``. The buffers' dimensions merge too (a dense row-major view), with those of one element
between them, in all stages: a stage that writes a merged buffer collapses along, or the collapse does not happen. A
constant that walks both of two reduction axes, but differently, is indexed by quotient and remainder: it will be
packed. A padded copy may keep its axes and write at ``x*B + y``.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Index,
    IndexLike,
    Inside,
    Load,
    Stage,
    Value,
    buffers_of_value,
    rewrite_value,
    stages_alone,
    substitute_index,
    symbols_of_value,
    walk,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, floordiv, mod, substitute, symbols
from tilewright.core.indices import chosen, is_chosen, mentioned_at
from tilewright.tile.affine import coefficient
from tilewright.tile.rewrite import loop_sym

_Access = tuple[Buffer, tuple[IndexLike, ...], bool]


def collapse(computation: Computation, constants: Container[Buffer] = (), kept: Container[str] = ()) -> Computation:
    """Collapse until no pair of adjacent axes can; buffers of the names ``kept`` keep their dimensions."""
    stages = stages_alone(computation)
    if stages is None:
        return computation
    while True:
        for k, stage in enumerate(stages):
            plan = next(
                (p for a, b in _pairs(stage) if (p := _plan(stages, k, a, b, constants, kept)) is not None), None
            )
            if plan is not None:
                stages, computation = plan.apply(stages, computation)
                break
        else:
            return replace(computation, items=tuple(stages))


def neighbours(computation: Computation, constants: Container[Buffer], k: int) -> Computation | None:
    """The last two axes of stage ``k`` as one, though constants walk only the last: they repeat with its period.

    ``W[c]`` becomes ``W[xc % C]``, and a guard on ``x`` one on ``xc``: of what lies beside each other in memory, x's
    part is inside exactly when ``x * C + c`` is. None where an operand known at run time only would repeat, too.
    """
    stages = [x for x in computation.items if isinstance(x, Stage)]
    a, b = stages[k].axes[-2:]
    stages[k] = replace(stages[k], exprs=tuple(_guards_of_both(v, a, b) for v in stages[k].exprs))
    plan = _plan(stages, k, a, b, constants, (), repeats=True)
    if plan is None:
        return None
    stages, computation = plan.apply(stages, computation)
    return replace(computation, items=tuple(stages))


def _guards_of_both(v: Value, a: Axis, b: Axis) -> Value:
    """Guards on ``a`` alone as guards on ``a * B + b``: neither bound is reached by ``b`` alone."""

    def both(e: Dim) -> Dim:
        step = coefficient(e, a.sym)
        if b.sym in symbols(e) or step not in (1, -1):
            return e
        return e * b.extent + (b.sym if step == 1 else b.extent - 1 - b.sym)

    return rewrite_value(v, lambda x: Inside(tuple(map(both, x.exprs))) if isinstance(x, Inside) else None)


def _pairs(stage: Stage) -> list[tuple[Axis, Axis]]:
    """Adjacent axes; an empty axis joins no other, since nothing can be divided by its extent."""
    reduced = stage.reduction.axes if stage.reduction else ()
    found = [*pairwise(stage.axes), *pairwise(reduced)]
    return [(a, b) for a, b in found if a.extent != 0 and b.extent != 0]


@dataclass
class _AxisMerge:
    """A set of axis pairs (per stage) and buffer dimensions to merge together."""

    pairs: dict[int, tuple[Axis, Axis]] = field(default_factory=dict)
    merges: dict[Buffer, int] = field(default_factory=dict)
    divided: set[Buffer] = field(default_factory=set)

    def apply(self, stages: list[Stage], computation: Computation) -> tuple[list[Stage], Computation]:
        swap = {b: _merged(b, d) for b, d in self.merges.items()}
        done = [self._stage(s, k, swap) for k, s in enumerate(stages)]
        new = replace(
            computation,
            inputs=tuple(swap.get(b, b) for b in computation.inputs),
            outputs=tuple(swap.get(b, b) for b in computation.outputs),
            temps=tuple(swap.get(b, b) for b in computation.temps),
        )
        return done, new

    def _stage(self, s: Stage, k: int, swap: dict[Buffer, Buffer]) -> Stage:
        pair = self.pairs.get(k)
        joint: dict[Sym, Dim] = {}
        divided: dict[Sym, Dim] = {}
        axes, reduced = s.axes, s.reduction.axes if s.reduction else ()
        if pair is not None:
            a, b = pair
            extent = a.extent * b.extent
            sym = loop_sym(f"{a.sym.name}{b.sym.name}", extent)
            # A merged buffer has one index for the pair: all of it in the second axis's place, nothing in the first's.
            joint = {a.sym: 0, b.sym: sym}
            # A buffer that keeps its dimensions needs both axes back, by a division.
            divided = {a.sym: floordiv(sym, b.extent), b.sym: mod(sym, b.extent)}
            axes, reduced = (_joined(x, pair, Axis(sym, extent)) for x in (axes, reduced))

        def place(buffer: Buffer, index: tuple[IndexLike, ...]) -> Load:
            if buffer in swap:
                index = _merged_index(buffer, index, self.merges[buffer])
            dims = divided if buffer in self.divided else joint
            return Load(swap.get(buffer, buffer), tuple(substitute_index(i, dims) for i in index))

        def value(v: Value) -> Value:
            def leaf(x: Value) -> Value | None:
                match x:
                    case Load():
                        return place(x.buffer, x.index)
                    case Index():
                        return Index(substitute(x.expr, joint))
                    case Inside():
                        return Inside(tuple(substitute(e, joint) for e in x.exprs))
                return None

            return rewrite_value(v, leaf)

        index = tuple(value(i) if is_chosen(i) else i for i in s.index)
        moved = [place(b, index) for b in s.outs]
        red = s.reduction
        if red is not None:
            red = replace(red, axes=reduced, init=tuple(value(v) for v in red.init))
        outs = tuple(m.buffer for m in moved)
        return replace(s, outs=outs, axes=axes, index=moved[0].index, exprs=tuple(map(value, s.exprs)), reduction=red)


def _joined(axes: tuple[Axis, ...], pair: tuple[Axis, Axis], new: Axis) -> tuple[Axis, ...]:
    return tuple(new if x is pair[0] else x for x in axes if x is not pair[1])


def _next(b: Buffer, d: int) -> int:
    """The dimension that merges with ``d``: the next of more than one element, or the last."""
    return next((e for e in range(d + 1, len(b.shape)) if b.shape[e] != 1), len(b.shape) - 1)


def _merged(b: Buffer, d: int) -> Buffer:
    e = _next(b, d)
    return Buffer(b.name, b.dtype, (*b.shape[:d], b.shape[d] * b.shape[e], *b.shape[e + 1 :]))


def _merged_index(b: Buffer, index: tuple[IndexLike, ...], d: int) -> tuple[IndexLike, ...]:
    e = _next(b, d)
    x, y = index[d], index[e]
    assert not is_chosen(x) and not is_chosen(y)
    return (*index[:d], x * b.shape[e] + y, *index[e + 1 :])


def _plan(
    stages: list[Stage],
    k: int,
    a: Axis,
    b: Axis,
    constants: Container[Buffer],
    kept: Container[str],
    *,
    repeats: bool = False,
) -> _AxisMerge | None:
    """Everything that must merge together with axes ``a`` and ``b`` of stage ``k``; None when something forbids it.

    With ``repeats`` constants may walk one axis of a pair only.
    """
    plan = _AxisMerge()
    pending = [(k, a, b)]
    while pending:
        k, a, b = pending.pop()
        # A stage that is reached by two buffers must merge the same two axes for both.
        if k in plan.pairs:
            if plan.pairs[k] != (a, b):
                return None
            continue
        stage = stages[k]
        if (a, b) not in _pairs(stage) or not _dims_allow(stage, a, b):
            return None
        plan.pairs[k] = (a, b)
        for buffer, index, is_write in _accesses(stage):
            d = _where(buffer, index, a, b)
            if d == -1:
                continue
            if d is None or plan.merges.get(buffer, d) != d:
                # Only a constant is repacked, so that the division of its index costs nothing at run time.
                if is_write or buffer not in constants or (a in stage.axes and not repeats):
                    return None
                if not repeats and not {a.sym, b.sym} <= set().union(*map(mentioned_at, index)):
                    return None  # one of the loops reads the same elements again: packed for both they would repeat
                plan.divided.add(buffer)
            elif buffer.name in kept:
                return None
            # Whoever else touches the buffer sees it with one dimension fewer, and merges along.
            elif d >= 0 and buffer not in plan.merges:
                plan.merges[buffer] = d
                follow = _followers(stages, buffer, d)
                if follow is None:
                    return None
                pending.extend(follow)
    if plan.divided & plan.merges.keys():
        return None
    return plan


def _values(stage: Stage) -> list[Value]:
    values = [*stage.exprs, *(stage.reduction.init if stage.reduction else ())]
    return [*values, *chosen(stage.index)]


def _accesses(stage: Stage) -> list[_Access]:
    found: list[_Access] = [(b, stage.index, True) for b in stage.outs]
    for v in _values(stage):
        found.extend((x.buffer, x.index, False) for x in walk(v) if isinstance(x, Load))
    return found


def _dims_allow(stage: Stage, a: Axis, b: Axis) -> bool:
    """Guards, index values and extents must walk the pair as one too."""
    everything = (*stage.axes, *(stage.reduction.axes if stage.reduction else ()))
    if any({a.sym, b.sym} & symbols(x.extent) for x in everything):
        return False
    for v in _values(stage):
        if symbols_of_value(v).isdisjoint((a.sym, b.sym)):
            continue
        for x in walk(v):
            exprs = x.exprs if isinstance(x, Inside) else (x.expr,) if isinstance(x, Index) else ()
            if not all(_as_one(e, a, b) for e in exprs):
                return False
    return True


def _as_one(e: Dim, a: Axis, b: Axis) -> bool:
    ca, cb = coefficient(e, a.sym), coefficient(e, b.sym)
    return ca is not None and cb is not None and ca == cb * b.extent


def _where(buffer: Buffer, index: tuple[IndexLike, ...], a: Axis, b: Axis) -> int | None:
    """-1: already one (or not used); ``d``: after merging dimensions d and d+1; None: never."""
    dims: list[int] = []
    for d, i in enumerate(index):
        if is_chosen(i):
            if {a.sym, b.sym} & mentioned_at(i):
                return None
        elif {a.sym, b.sym} & symbols(i):
            dims.append(d)
    if not dims:
        return -1
    if len(dims) == 1:
        i = index[dims[0]]
        if not is_chosen(i) and _as_one(i, a, b):
            return -1
        neighbours = [d for d in (dims[0] - 1,) if d >= 0 and _next(buffer, d) == dims[0]]
    else:
        neighbours = [dims[0]] if len(dims) == 2 and dims[1] == _next(buffer, dims[0]) else []
    # Two dimensions, of which the pair walks one each or one of them alone, are one if their places together are.
    for d in neighbours:
        x, y = index[d], index[_next(buffer, d)]
        if not is_chosen(x) and not is_chosen(y) and _as_one(x * buffer.shape[_next(buffer, d)] + y, a, b):
            return d
    return None


def _followers(stages: list[Stage], buffer: Buffer, d: int) -> list[tuple[int, Axis, Axis]] | None:
    """The stages whose axes must collapse along when ``buffer`` merges dimensions d and d+1; None when one can't."""
    follow: list[tuple[int, Axis, Axis]] = []
    made = {b for s in stages if s.reduction is not None for b in s.outs}
    for k, stage in enumerate(stages):
        if buffer not in stage.outs and not any(buffer in buffers_of_value(v) for v in _values(stage)):
            continue
        pairs = {(a.sym, b.sym): (a, b) for a, b in _pairs(stage)}
        own = {a.sym for a in stage.axes}
        for b, index, is_write in _accesses(stage):
            if b is not buffer:
                continue
            x, y = index[d], index[_next(b, d)]
            if is_chosen(x) or is_chosen(y):
                return None
            pair = pairs.get((x, y)) if isinstance(x, Sym) and isinstance(y, Sym) else None
            must = is_write and not _is_copy(stage, made)
            if pair is not None and pair[1].extent == buffer.shape[_next(buffer, d)]:
                if _dims_allow(stage, *pair) or must:
                    follow.append((k, *pair))
                elif b in made:
                    return None  # what a reduction makes is read row by row, as the rows of the reader go
            elif (must and not (is_known(x) and is_known(y))) or (b in made and x in own and y in own):
                return None
    return follow


def _is_copy(stage: Stage, made: set[Buffer]) -> bool:
    """Is it a padded copy, of what no reduction here makes?"""
    if stage.reduction is not None or stage.update is not None:
        return False
    values = list(walk(stage.expr))
    is_guarded = any(isinstance(x, Inside) for x in values)
    return is_guarded and not any(isinstance(x, Load) and x.buffer in made for x in values)
