"""Which stages of a computation one rule schedules together.

In: the stages of a normalised computation. Out: clusters in an order that respects what reads what.
Not its business: how a cluster is scheduled (``rules``).

Kinds, by structure: ``contract``: a reduction with an operand contiguous along its last output axis, and the one plain
stage that alone reads it over as many points; ``rows``: reductions along the contiguous axis with the plain stages
around them that only they use; ``chain``: a contraction whose operand is a temporary, made from another reduction
through reductions along the axis that the contraction walks; ``ring``: a contraction through a window, and the one
before it that makes what the window slides over; ``projected``: a product, point by point, of what a window makes, and
what is made for the window as in a ring; ``plane``: sums over windows of a plane, lanes along its rows, by
constants, and the plain stage that makes the padded plane; ``transformed``: a product whose operand two plain stages
make for it, with the plain stage that reads it and the root that reads that one; ``pointwise``: a plain stage;
``other``: folds with a state, scatters: plain loops.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from tilewright.choose.cost.tile import MAX_UNROLLED
from tilewright.core.compute import Buffer, Computation, Load, Stage, Value, buffers_of_value
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known
from tilewright.core.estimates import SHUFFLED_STRIDE
from tilewright.core.expr import Atom, Dim, Sym
from tilewright.core.indices import chosen, symbols_at, terms_at
from tilewright.core.types import product
from tilewright.tile.affine import group_along, linear, period, stride_along

MAX_TAPS = 128
TRANSFORMED = ("first", "operand", "product", "after", "root")
"""The stages of a transformed product in order."""


class ClusterKind(Enum):
    """What rule a cluster is for."""

    CONTRACT = "contract"
    ROWS = "rows"
    CHAIN = "chain"
    RING = "ring"
    PLANE = "plane"
    PROJECTED = "projected"
    TRANSFORMED = "transformed"
    NESTED = "nested"
    POINTWISE = "pointwise"
    OTHER = "other"


@dataclass(frozen=True)
class Cluster:
    """Stages that one rule schedules together; the last one is the root.

    Of a chain, a ring or a projection: ``last`` is the last contraction; ``has_lanes`` says that the first one's last
    axis can be lanes too.
    """

    stages: tuple[Stage, ...]
    kind: ClusterKind
    last: Stage | None = None
    has_lanes: bool = False

    @property
    def root(self) -> Stage:
        return self.stages[-1]


def clusters_of(
    stages: list[Stage], computation: Computation, constants: Container[Buffer], *, chains: bool = True
) -> list[Cluster]:
    """Every stage in exactly one cluster, roots in the computation's order; ``chains``: may there be such clusters?"""
    reads = {id(s): _read_by(s) for s in stages}
    readers = {t: [s for s in stages if t in reads[id(s)]] for t in computation.temps}
    kinds = {id(s): _kind(s, constants) for s in stages}
    taken: set[int] = set()
    found: list[Cluster] = []
    for root in reversed(stages):
        if id(root) in taken:
            continue
        # From the last stage back: a root takes the stages that it can hold, and what is left becomes roots of its own.
        # The rules that hold most stages are asked first.
        around = transformed_to(root, stages, computation) if chains else None
        if around is not None and not taken & {id(s) for s in around}:
            taken |= {id(s) for s in around}
            found.append(Cluster(tuple(around), ClusterKind.TRANSFORMED))
            continue
        group, kind, last = [root], kinds[id(root)], None
        terms = terms_before(root, stages, computation, constants) if chains and kind is ClusterKind.CONTRACT else None
        if terms is not None and kinds[id(terms)] is ClusterKind.CONTRACT and id(terms) not in taken:
            taken |= {id(terms), id(root)}
            found.append(Cluster((terms, root), ClusterKind.NESTED))
            continue
        epilogue = _contraction_of(root, stages, readers, kinds, taken) if kind is ClusterKind.POINTWISE else None
        if epilogue is not None:
            group, kind = [epilogue, root], ClusterKind.CONTRACT
        if chains and kind is ClusterKind.CONTRACT and (chain := _chain(group, stages, readers, kinds, taken)):
            # A chain of products keeps what lies between them in strips; its epilogue was found before.
            last, group, kind = group[0], chain, ClusterKind.CHAIN
        before = ring_before(group[0], stages, computation) if chains and kind is ClusterKind.CONTRACT else []
        if before and kinds[id(before[0])] is ClusterKind.CONTRACT and not taken & {id(s) for s in before}:
            last, group, kind = group[0], [*before, *group], ClusterKind.RING
        plane = (
            plane_before(group[0], stages, computation, constants) if chains and kind is ClusterKind.CONTRACT else None
        )
        if plane is not None and id(plane) not in taken:
            group, kind = [plane, *group], ClusterKind.PLANE
        before = projection_before(group[0], stages, computation) if chains and kind is ClusterKind.CONTRACT else []
        if before and _are_contractions(before, kinds) and not taken & {id(s) for s in before}:
            last, group, kind = group[0], [*before, *group], ClusterKind.PROJECTED
        # What no contraction took goes row by row where a reduction is among it, alone otherwise.
        if kind in (ClusterKind.POINTWISE, ClusterKind.ROWS):
            group = _row_group(root, stages, readers, kinds, taken)
            kind = ClusterKind.ROWS if any(s.reduction for s in group) else ClusterKind.POINTWISE
            group = group if kind is ClusterKind.ROWS else [root]
        taken |= {id(s) for s in group}
        found.append(Cluster(tuple(group), kind, last, kinds[id(group[0])] is ClusterKind.CONTRACT))
    return found[::-1]


def _read_by(s: Stage) -> frozenset[Buffer]:
    return frozenset[Buffer]().union(*map(buffers_of_value, s.values))


def _kind(s: Stage, constants: Container[Buffer]) -> ClusterKind:
    if s.update is not None or chosen(s.index):
        return ClusterKind.OTHER
    if s.reduction is None:
        return ClusterKind.POINTWISE
    if not isinstance(s.reduction.op, str) or not s.reduction.axes:
        return ClusterKind.OTHER
    return ClusterKind.CONTRACT if _has_lanes(s, constants) else ClusterKind.ROWS


def _has_lanes(s: Stage, constants: Container[Buffer]) -> bool:
    """Can the last output axis be lanes?

    Among the loads that the reduction walks, one is contiguous along it or what windows slide over, or has every second
    or third element there and no neighbours along the reduction, lies in groups of the reduction beside each other, or
    is a constant that depends on it (it will be packed); and no run-time operand jumps along it while it is contiguous
    along the reduction.
    """
    if not s.axes or s.reduction is None:
        return False
    last = s.axes[-1].sym
    good = False
    for x in walk_value(s.expr):
        if not isinstance(x, Load):
            continue
        along = [stride_along(x.buffer, x.index, a.sym) for a in s.reduction.axes]
        if all(c == 0 for c in along):
            continue
        stride = stride_along(x.buffer, x.index, last)
        groups = [group_along(x.buffer, x.index, a.sym) for a in s.reduction.axes]
        is_packed = stride != 0 and x.buffer in constants
        is_spread = stride in range(2, SHUFFLED_STRIDE + 1) and 1 not in along
        if stride == 1 or is_spread or _slides(stride, along, s) or (stride in groups and stride != 0) or is_packed:
            good = True
        elif stride != 0 and 1 in along and not _repeats(x, last):
            return False
    return good


def _slides(stride: Dim | None, along: Sequence[Dim | None], s: Stage) -> bool:
    """Do windows a few elements apart slide over the operand? Single rows that lie behind each other don't slide."""
    assert s.reduction is not None
    rows = [a.extent for a in s.reduction.axes]
    return stride in range(2, SHUFFLED_STRIDE + 1) and 1 in along and is_window(s, weighted=True) and rows != [stride]


def _repeats(x: Load, sym: Sym) -> bool:
    """Do neighbours along ``sym`` read the same element, as the output channels of one group do?"""
    offset = linear(x.buffer, x.index)
    return offset is not None and period(offset, sym) is not None


def is_window(stage: Stage, *, weighted: bool = False) -> bool:
    """A short reduction over values that all differ along the last axis, for any batch: depthwise, pooling.

    ``weighted``: or over such ones and others that are the same along it, the weights of a plane.
    """
    if not _is_short(stage, weighted=weighted):
        return False
    *others, last = stage.axes
    slid = _slid_along(stage)
    return all(is_known(a.extent) for a in (last, *(a for a in others if a.sym in slid)))


def _slid_along(stage: Stage) -> set[Sym]:
    """The symbols that share a place with one of the reduction's: windows step along them, and borders cut them."""
    assert stage.reduction is not None
    reduced = {a.sym for a in stage.reduction.axes}
    places = [symbols_at(i) for v in stage.exprs for x in walk_value(v) if isinstance(x, Load) for i in x.index]
    return {s for found in places if found & reduced for s in found}


def _is_short(stage: Stage, *, weighted: bool = False) -> bool:
    """Is it a window, of any size?"""
    reduced = stage.reduction.axes if stage.reduction else ()
    taps = [a.extent for a in reduced if is_known(a.extent)]
    if not stage.axes or len(taps) < len(reduced) or not taps or taps[-1] > MAX_UNROLLED or prod(taps) > MAX_TAPS:
        return False
    loads = [x for v in stage.exprs for x in walk_value(v) if isinstance(x, Load)]
    strides = [stride_along(x.buffer, x.index, stage.axes[-1].sym) for x in loads]
    return None not in strides and (weighted or 0 not in strides)


def ring_before(window: Stage, stages: Sequence[Stage], computation: Computation) -> list[Stage]:
    """The reduction, and the plain stage that alone reads it, that make the one temporary over which a window slides.

    Empty when there are no such two: the window reads the temporary at other places of the last axis than it writes,
    something else reads it too, or it is not made element by element from the reduction's.
    """
    if not is_window(window):
        return []
    slid = [x for x in _loads(window.expr) if x.buffer in computation.temps]
    if len(slid) != 1 or slid[0].index[-1:] != (window.axes[-1].sym,):
        return []
    strip = _only_maker(slid[0].buffer, window, stages)
    if (
        strip is None
        or strip.reduction is not None
        or [i for i in strip.index if i != 0] != [a.sym for a in strip.axes]
    ):
        return []
    read = [x for x in _loads(strip.expr) if x.buffer in computation.temps and x.index == strip.index]
    for x in dict.fromkeys(read):
        source = _only_maker(x.buffer, strip, stages)
        if source is not None and source.reduction is not None and source.out.shape == strip.out.shape:
            return [source, strip]
    return []


def plane_before(
    window: Stage, stages: Sequence[Stage], computation: Computation, constants: Container[Buffer]
) -> Stage | None:
    """The plain stage that makes the one temporary over whose rows a window slides, which only taps are summed of.

    None when there is no such stage: other axes than the window's are summed, the rest of what is read is no constant
    or differs along the rows, or there is no axis outside of the plane.
    """
    if window.reduction is None or not window.axes:
        return None
    loads = _loads(window.expr)
    slid, others = ([x for x in loads if (x.buffer in computation.temps) is is_temp] for is_temp in (True, False))
    if len(slid) != 1 or any(x.buffer not in constants for x in others) or not _walks_plane(slid[0], window):
        return None
    if any(stride_along(x.buffer, x.index, window.axes[-1].sym) != 0 for x in others):
        return None
    maker = _only_maker(slid[0].buffer, window, stages)
    return maker if maker is not None and maker.reduction is None else None


def _walks_plane(x: Load, window: Stage) -> bool:
    """Does every axis of the reduction slide along a dimension together with one of the last axes of the result?

    Where channels and rows are one dimension, channels are a step over all rows, and don't slide.
    """
    assert window.reduction is not None
    reduced, axes = {a.sym for a in window.reduction.axes}, {a.sym: a.extent for a in window.axes}
    slid = [i for i in x.index if symbols_at(i) & reduced]
    own = [(i, s) for i in slid for s in axes if s in symbols_at(i)]
    last = list(axes)[len(axes) - len(own) :]
    if not 0 < len(slid) == len(reduced) == len(own) < len(axes) or [s for _, s in own] != last:
        return False
    return all(_are_taps(dict(terms_at(i)), reduced, s, axes[s]) for i, s in own)


def _are_taps(steps: Mapping[Atom, int], reduced: Container[Sym], own: Sym, extent: Dim) -> bool:
    """Does each step of a reduction lead less far than all of an axis's own steps do?"""
    taps = [c for atom, c in steps.items() if isinstance(atom, Sym) and atom in reduced]
    return all(c < steps.get(own, 1) * known(extent, c + 1) for c in taps)


def projection_before(product: Stage, stages: Sequence[Stage], computation: Computation) -> list[Stage]:
    """The window, and the plain stage that alone reads it, if any, of whose result a product reads point by point.

    Before them what is made for the window alone (:func:`ring_before`). Empty when the product does not read a
    temporary's last axis along its one reduction, and the others by loops of its own, or no window makes it.
    """
    reduced = product.reduction.axes if product.reduction and product.reduction.op == "add" else ()
    own = [a.sym for a in product.axes]
    for x in _loads(product.expr) if len(reduced) == 1 else []:
        rows = [i for i in x.index[:-1] if i != 0]
        if x.buffer not in computation.temps or x.index[-1:] != (reduced[0].sym,) or rows != own[:-1]:
            continue
        made = _only_maker(x.buffer, product, stages)
        found = [made] if made is not None else []
        if made is not None and made.reduction is None:
            same = (y.buffer for y in _loads(made.expr) if y.buffer in computation.temps and y.index == made.index)
            makers = (_only_maker(t, made, stages) for t in dict.fromkeys(same))
            found = next(([w, made] for w in makers if w is not None and w.reduction is not None), [])
        if found and _is_short(found[0]):
            return [*ring_before(found[0], stages, computation), *found]
    return []


def _are_contractions(group: Sequence[Stage], kinds: dict[int, ClusterKind]) -> bool:
    return all(kinds[id(s)] is ClusterKind.CONTRACT for s in group if s.reduction)


def _only_maker(t: Buffer, reader: Stage, stages: Sequence[Stage]) -> Stage | None:
    """The stage that alone writes a temporary, when ``reader`` alone reads it."""
    makers = [s for s in stages if t in s.outs]
    users = [s for s in stages if t in _read_by(s)]
    plain = len(makers) == 1 and len(makers[0].outs) == 1 and makers[0].update is None
    return makers[0] if plain and users == [reader] else None


def transformed_to(root: Stage, stages: Sequence[Stage], computation: Computation) -> list[Stage] | None:
    """The five stages of a transformed product that ends at ``root``.

    Each but the last writes a temporary that the next alone reads: plain, plain, a product of what the second wrote and
    something else, plain, plain (the root).
    """
    found = [root]
    while len(found) < len(TRANSFORMED):
        reads = _read_by(found[0])
        makers = [s for s in stages if s.out in reads and s.out in computation.temps]
        is_product = TRANSFORMED[-1 - len(found)] == "product"
        if len(makers) != 1 or not _is_link(makers[0], found[0], stages, is_product=is_product):
            return None
        found.insert(0, makers[0])
    return found if root.reduction is None and root.update is None else None


def terms_before(
    root: Stage, stages: Sequence[Stage], computation: Computation, constants: Container[Buffer]
) -> Stage | None:
    """The product with a constant whose sums are terms of ``root``'s: a temporary, each element of which it reads once.

    None when there is no such stage.
    """
    assert root.reduction is not None
    walked = {a.sym for a in (*root.axes, *root.reduction.axes) if a.extent != 1}
    for x in _loads(root.expr):
        places = [i for i, d in zip(x.index, x.buffer.shape, strict=True) if d != 1]
        if x.buffer not in computation.temps or len(places) != len(walked) or set(places) != walked:
            continue
        maker = _only_maker(x.buffer, root, stages)
        if maker is None or maker.reduction is None:
            continue
        read = [y.buffer for y in _loads(maker.expr)]
        if any(y in constants for y in read) or any(s.out in read and is_decoded(s, constants) for s in stages):
            return maker
    return None


def is_decoded(s: Stage, constants: Container[Buffer]) -> bool:
    """Are its results made of constants alone, element by element?"""
    read = [x.buffer for x in _loads(s.expr)]
    return s.reduction is None and len(s.outs) == 1 and bool(read) and all(x in constants for x in read)


def _is_link(s: Stage, reader: Stage, stages: Sequence[Stage], *, is_product: bool) -> bool:
    readers = [x for x in stages if s.out in _read_by(x)]
    fits = s.reduction is not None and s.reduction.op == "add" if is_product else s.reduction is None
    return fits and readers == [reader] and s.update is None and len(s.outs) == 1


def _single_reader(t: Buffer, root: Stage, readers: dict[Buffer, list[Stage]]) -> bool:
    return len(readers.get(t, [])) == 1 and readers[t][0] is root


def _contraction_of(
    root: Stage, stages: list[Stage], readers: dict[Buffer, list[Stage]], kinds: dict[int, ClusterKind], taken: set[int]
) -> Stage | None:
    """The contraction that only ``root`` reads, over as many points: ``root`` is its epilogue."""
    for s in stages:
        if id(s) in taken or kinds[id(s)] is not ClusterKind.CONTRACT or len(s.outs) != 1:
            continue
        same = product([a.extent for a in root.axes]) == product([a.extent for a in s.axes])
        if same and s.out in readers and _single_reader(s.out, root, readers):
            return s
    return None


def _row_group(
    root: Stage, stages: list[Stage], readers: dict[Buffer, list[Stage]], kinds: dict[int, ClusterKind], taken: set[int]
) -> list[Stage]:
    """``root`` and, transitively, the row reductions and plain stages that only the group reads."""
    group = [root]
    for s in reversed(stages[: stages.index(root)]):
        users = readers.get(s.out)
        fits = kinds[id(s)] in (ClusterKind.ROWS, ClusterKind.POINTWISE) and id(s) not in taken and len(s.outs) == 1
        if fits and users and all(any(u is g for g in group) for u in users) and _writes_once(s, stages):
            group.insert(0, s)
    return group


def _chain(
    group: list[Stage],
    stages: list[Stage],
    readers: dict[Buffer, list[Stage]],
    kinds: dict[int, ClusterKind],
    taken: set[int],
) -> list[Stage] | None:
    """``group`` and all that leads to its contraction's operand, back to the reduction that makes as many elements.

    None when there is no such reduction, or nothing along the rows lies between.
    """
    last = group[0]
    assert last.reduction is not None
    walked = {a.sym for a in last.reduction.axes}
    along = (x for x in _loads(last.expr) if x.buffer in readers and x.index)
    operand = next((x.buffer for x in along if x.index[-1] in walked), None)
    makers = [s for s in stages if operand is not None and operand in s.outs]
    if len(makers) != 1 or len(walked) != 1 or makers[0].reduction is not None:
        return None
    space = [a.extent for a in makers[0].axes]
    source: Stage | None = None
    chain = list(group)
    has_row = False
    # From the last stage back, so that a stage's readers are in the chain, if they ever will be, when it is looked at.
    for s in reversed(stages[: stages.index(group[-1])]):
        users = readers.get(s.out, [])
        if s in chain or not users or not all(any(u is g for g in chain) for u in users):
            continue
        if id(s) in taken or len(s.outs) != 1 or kinds[id(s)] is ClusterKind.OTHER or not _writes_once(s, stages):
            return None
        extents = [a.extent for a in s.axes]
        if s.reduction is not None and extents == space:
            if source is not None:
                return None
            source = s
        elif s.reduction is not None:
            if kinds[id(s)] is not ClusterKind.ROWS or extents != space[:-1]:
                return None
            has_row = True
        chain.insert(0, s)
    if source is None or not has_row:
        return None
    made = {source.out}
    for s in chain:
        if not made.isdisjoint(_read_by(s)):
            made.add(s.out)
    return [s for s in chain if s.out in made]  # not what other operands are made from: that is done once


def _loads(v: Value) -> list[Load]:
    return [x for x in walk_value(v) if isinstance(x, Load)]


def _writes_once(s: Stage, stages: list[Stage]) -> bool:
    return sum(1 for x in stages if s.out in x.outs) == 1
