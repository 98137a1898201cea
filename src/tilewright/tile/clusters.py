"""Which stages of a computation one rule schedules together.

In: the stages of a normalised computation. Out: clusters in an order that respects what reads what.
Not its business: how a cluster is scheduled (``rules``).

Kinds, by structure: ``contract``: a reduction with an operand contiguous along its last output axis, and the one plain
stage that alone reads it over as many points; ``rows``: reductions along the contiguous axis with the plain stages
around them that only they use; ``pointwise``: a plain stage; ``other``: folds with a state, scatters: plain loops.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum

from tilewright.core.compute import Buffer, Computation, Load, Stage, Value
from tilewright.core.compute import walk as walk_value
from tilewright.core.types import product
from tilewright.tile.affine import stride_along


class Kind(Enum):
    """What rule a cluster is for."""

    CONTRACT = "contract"
    ROWS = "rows"
    POINTWISE = "pointwise"
    OTHER = "other"


@dataclass(frozen=True)
class Cluster:
    """Stages that one rule schedules together; the last one is the root."""

    stages: tuple[Stage, ...]
    kind: Kind

    @property
    def root(self) -> Stage:
        return self.stages[-1]


def clusters_of(stages: list[Stage], computation: Computation, constants: Container[Buffer]) -> list[Cluster]:
    """Every stage in exactly one cluster, roots in the computation's order."""
    reads = {id(s): {x.buffer for v in _values(s) for x in walk_value(v) if isinstance(x, Load)} for s in stages}
    readers = {t: [s for s in stages if t in reads[id(s)]] for t in computation.temps}
    kinds = {id(s): _kind(s, constants) for s in stages}
    taken: set[int] = set()
    found: list[Cluster] = []
    for root in reversed(stages):
        if id(root) in taken:
            continue
        group, kind = [root], kinds[id(root)]
        epilogue = _contraction_of(root, stages, readers, kinds, taken) if kind is Kind.POINTWISE else None
        if epilogue is not None:
            group, kind = [epilogue, root], Kind.CONTRACT
        elif kind in (Kind.POINTWISE, Kind.ROWS):
            group = _row_group(root, stages, readers, kinds, taken)
            kind = Kind.ROWS if any(s.reduction for s in group) else Kind.POINTWISE
            group = group if kind is Kind.ROWS else [root]
        taken |= {id(s) for s in group}
        found.append(Cluster(tuple(group), kind))
    return found[::-1]


def _values(s: Stage) -> list[Value]:
    found = [*s.exprs, *(i for i in s.index if isinstance(i, Value))]
    return found + list(s.reduction.init) if s.reduction else found


def _kind(s: Stage, constants: Container[Buffer]) -> Kind:
    if s.update is not None or any(isinstance(i, Value) for i in s.index):
        return Kind.OTHER
    if s.reduction is None:
        return Kind.POINTWISE
    if not isinstance(s.reduction.op, str) or not s.reduction.axes:
        return Kind.OTHER
    return Kind.CONTRACT if _has_lanes(s, constants) else Kind.ROWS


def _has_lanes(s: Stage, constants: Container[Buffer]) -> bool:
    """Can the last output axis be lanes?

    Among the loads that the reduction walks, one is contiguous along it, or is a constant that depends on it (it will
    be packed); and no run-time operand jumps along it while it is contiguous along the reduction.
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
        if stride == 1 or (stride != 0 and x.buffer in constants):
            good = True
        elif stride != 0 and 1 in along:
            return False
    return good


def _single_reader(t: Buffer, root: Stage, readers: dict[Buffer, list[Stage]]) -> bool:
    return len(readers.get(t, [])) == 1 and readers[t][0] is root


def _contraction_of(
    root: Stage, stages: list[Stage], readers: dict[Buffer, list[Stage]], kinds: dict[int, Kind], taken: set[int]
) -> Stage | None:
    """The contraction that only ``root`` reads, over as many points: ``root`` is its epilogue."""
    for s in stages:
        if id(s) in taken or kinds[id(s)] is not Kind.CONTRACT or len(s.outs) != 1:
            continue
        same = product([a.extent for a in root.axes]) == product([a.extent for a in s.axes])
        if same and s.out in readers and _single_reader(s.out, root, readers):
            return s
    return None


def _row_group(
    root: Stage, stages: list[Stage], readers: dict[Buffer, list[Stage]], kinds: dict[int, Kind], taken: set[int]
) -> list[Stage]:
    """``root`` and, transitively, the row reductions and plain stages that only the group reads."""
    group = [root]
    for s in reversed(stages[: stages.index(root)]):
        users = readers.get(s.out)
        fits = kinds[id(s)] in (Kind.ROWS, Kind.POINTWISE) and id(s) not in taken and len(s.outs) == 1
        if fits and users and all(any(u is g for g in group) for u in users) and _writes_once(s, stages):
            group.insert(0, s)
    return group


def _writes_once(s: Stage, stages: list[Stage]) -> bool:
    return sum(1 for x in stages if s.out in x.outs) == 1
