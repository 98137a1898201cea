"""What the emitter must know about a kernel before it starts: where buffers live, and how large the code gets.

In: a ``Kernel`` and what the machine can do. Out: an :class:`Analysis`. Not its business: emitting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.codegen.llvm.padding import Beyond, beyond_rows
from tilewright.core import expr
from tilewright.core.compute import Buffer, IndexLike, Load, Value, symbols_of_value, walk
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.indices import chosen, mentioned_at, symbols_at, terms_at
from tilewright.target.instructions import Instructions
from tilewright.tile.affine import first_offset
from tilewright.tile.ir import IN_MEMORY, Fold, For, If, Kernel, Kind, Place, Prefetch, Role, Space, Stmt, Store, Update

MAX_LANES_PER_BYTE = 4
"""A vector loop may have this many lanes for each byte of a vector register; longer ones run point by point."""
MAX_UNROLL = 512
MAX_REGISTERS = 256
COPIED = frozenset({Kind.UNROLL, Kind.STEP, Kind.DOT})


@dataclass(frozen=True)
class Access:
    """One mention of a buffer: under which loops, at which index."""

    buffer: Buffer
    index: tuple[IndexLike, ...]
    path: tuple[For, ...]
    is_write: bool


@dataclass
class Analysis:
    """Facts about one kernel, by buffer identity and by loop identity."""

    target: Instructions
    places: dict[int, Place]
    home: dict[int, For | None] = field(default_factory=dict)
    registers: dict[int, int] = field(default_factory=dict)
    """Lanes per slot of each buffer that is kept in registers."""
    written: dict[int, set[int]] = field(default_factory=dict)
    """Buffers written inside each loop."""
    used: dict[int, dict[int, Buffer]] = field(default_factory=dict)
    """Buffers mentioned inside each loop."""
    homes: dict[int, list[Buffer]] = field(default_factory=dict)
    """Register buffers whose life is one iteration of each loop."""
    outside: dict[int, set[int]] = field(default_factory=dict)
    """For each loop, the buffers whose home encloses it."""
    beyond: dict[int, Beyond | None] = field(default_factory=dict)
    """For each temporary in memory, what lies where lanes that do not run would write."""
    lanes: dict[int, int | None] = field(default_factory=dict)
    """What :func:`lane_count` says of each vector loop."""

    def lane_count(self, f: For) -> int | None:
        """:func:`lane_count`, remembered."""
        if id(f) not in self.lanes:
            self.lanes[id(f)] = lane_count(f, self.target)
        return self.lanes[id(f)]


def analyse(kernel: Kernel, target: Instructions) -> Analysis:
    """Find homes, register layouts and sizes."""
    result = Analysis(target, {id(p.buffer): p for p in kernel.places})
    accesses = list(_accesses(kernel.body, ()))
    by_buffer: dict[int, list[Access]] = {}
    for a in accesses:
        by_buffer.setdefault(id(a.buffer), []).append(a)
        for f in a.path:
            result.used.setdefault(id(f), {})[id(a.buffer)] = a.buffer
            if a.is_write:
                result.written.setdefault(id(f), set()).add(id(a.buffer))
    for bid, found in by_buffer.items():
        _place(result, bid, found)
    return result


def _place(result: Analysis, bid: int, found: list[Access]) -> None:
    path = _common([a.path for a in found])
    result.home[bid] = path[-1] if path else None
    for a in found:
        for f in a.path[len(path) :]:
            result.outside.setdefault(id(f), set()).add(bid)
    place = result.places.get(bid)
    if place is not None and place.role is Role.TMP and place.space in IN_MEMORY:
        writes = [(a.index, [(f.loop, result.lane_count(f)) for f in a.path]) for a in found if a.is_write]
        result.beyond[bid] = beyond_rows(place.buffer, writes)
    if place is None or place.space is not Space.REG:
        return
    lanes = _register_lanes(found, len(path), result)
    if lanes is not None:
        result.registers[bid] = lanes
        if path:
            result.homes.setdefault(id(path[-1]), []).append(found[0].buffer)


def _common(paths: list[tuple[For, ...]]) -> tuple[For, ...]:
    shortest = min(paths, key=len)
    n = 0
    while n < len(shortest) and all(p[n] is shortest[n] for p in paths):
        n += 1
    return shortest[:n]


def _register_lanes(found: list[Access], depth: int, result: Analysis) -> int | None:
    """Lanes per slot, or None when the buffer can't be kept in registers and goes to memory instead."""
    buffer = found[0].buffer
    size = 1
    for d in buffer.shape:
        if not is_known(d):
            return None
        size *= d
    votes: Counter[int] = Counter()
    for a in found:
        lanes = _access_lanes(a, depth, result)
        if lanes is None:
            return None
        votes[lanes] += 1
    best = max(votes, key=lambda n: (n > 0, votes[n], n))
    if best and size % best:
        best = 0
    return best if size <= MAX_REGISTERS * max(best, 1) else None


def _access_lanes(a: Access, depth: int, result: Analysis) -> int | None:
    """Lanes of a contiguous aligned access, 0 for any other in constant positions, None for a run-time position."""
    if chosen(a.index):
        return None
    if any(f.loop.kind is Kind.PARALLEL for f in a.path[depth:]):
        return None
    flat = first_offset(a.buffer, a.index)
    used = symbols(flat)
    lanes: list[tuple[Sym, int]] = []
    for position, f in enumerate(a.path):
        n = result.lane_count(f)
        if n is not None:
            lanes.append((f.loop.sym, n))
        is_number = is_copied(f) if position >= depth else f.loop.kind in COPIED or n is not None
        if f.loop.sym in used and not is_number:
            return None
    return _contiguous(flat, lanes)


def _contiguous(flat: Dim, lanes: list[tuple[Sym, int]]) -> int:
    expected, count = 1, 1
    for sym, n in reversed(lanes):
        if expr.coef_of(flat, sym) != expected:
            return 0
        expected *= n
        count *= n
    mine = {s for s, _ in lanes}
    others = [c for a, c in expr.terms_of(flat) if a not in mine]
    aligned = all(c % count == 0 for c in [*others, expr.const_of(flat)])
    return count if lanes and aligned and all(isinstance(a, Sym) for a, _ in expr.terms_of(flat)) else 0


def is_copied(f: For) -> bool:
    """Is the loop's variable a number (or a lane) wherever its body is emitted?"""
    hi = expr.bounds(f.loop.extent)[1]
    return (f.loop.kind in COPIED or f.loop.kind is Kind.VECTOR) and hi is not None and hi <= MAX_UNROLL


def lane_count(f: For, target: Instructions) -> int | None:
    """The lanes of a vector loop, ragged or not; None when it can't run in lanes.

    Where masks cost nothing, a loop whose variable could go further than its extent has as many lanes as that: part of
    a vector is handled like a whole one.
    """
    if f.loop.kind is not Kind.VECTOR:
        return None
    hi, most = expr.bounds(f.loop.extent)[1], f.loop.sym.hi
    if target.has_masks and hi is not None and most is not None and hi <= most:
        hi = most + 1
    return hi if hi is not None and 1 <= hi <= MAX_LANES_PER_BYTE * target.vector_bytes and is_vectorisable(f) else None


def is_vectorisable(f: For) -> bool:
    """Can every statement of a vector loop run in lanes?"""
    return all(_runs_in_lanes(s, f.loop.sym) for s in f.body)


def _runs_in_lanes(s: Stmt, sym: Sym) -> bool:
    match s:
        case For(loop, body):
            if sym in symbols(loop.extent) or loop.kind is Kind.PARALLEL:
                return False
            return all(_runs_in_lanes(x, sym) for x in body)
        case If(_, body):
            return all(_runs_in_lanes(x, sym) for x in body)
        case Store():
            return _depends(s.index, sym)
        case Update():
            return not chosen(s.index) or _is_apart(s.index, sym)
        case Fold():
            return _depends(s.index, sym) and not chosen(s.index)
    return True


def _depends(index: tuple[IndexLike, ...], sym: Sym) -> bool:
    return any(sym in mentioned_at(i) for i in index)


def _is_apart(index: tuple[IndexLike, ...], sym: Sym) -> bool:
    """Do lanes of ``sym`` write to places apart, wherever the run-time indices, the same for all lanes, point?"""
    if any(sym in symbols_of_value(i) for i in chosen(index)):
        return False
    terms = [terms_at(i) for i in index if sym in symbols_at(i)]
    return len(terms) == 1 and all(a == sym or sym not in symbols(a) for a, _ in terms[0])


# --- walking --------------------------------------------------------------------------------------------------------


def statement_values(s: Stmt) -> tuple[Value, ...]:
    """The values that a statement evaluates itself, run-time indices included."""
    match s:
        case Store() | Update():
            return (s.value, *chosen(s.index))
        case Fold():
            return (*s.values, *chosen(s.index))
        case If():
            return (s.cond,)
        case Prefetch():
            return chosen(s.index)
    return ()


def _accesses(body: tuple[Stmt, ...], path: tuple[For, ...]) -> Iterator[Access]:
    for s in body:
        for v in statement_values(s):
            for x in walk(v):
                if isinstance(x, Load):
                    yield Access(x.buffer, x.index, path, False)
        match s:
            case For():
                yield from _accesses(s.body, (*path, s))
            case If():
                yield from _accesses(s.body, path)
            case Store() | Update():
                yield Access(s.buffer, s.index, path, True)
            case Fold():
                for b in s.buffers:
                    yield Access(b, s.index, path, True)
            case Prefetch():
                yield Access(s.buffer, s.index, path, False)
