"""The primitive ``slide``: loops over rows become one, and what lies between them keeps a few rows.

In: a kernel, loops of which later ones read what earlier ones write. Out: a kernel that means the same, or a
``ScheduleError``. Not its business: which loops are worth it (``choose.strategies.strips``), where nests stand
(``stages.compute_at``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest

from tilewright.core.compute import Buffer, IndexLike, Inside, Load, buffers_of_value
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.expr import BinaryExpr, Dim, Sym, bounds, const_of, maximum, minimum, mod, symbols, terms_of
from tilewright.core.indices import is_chosen
from tilewright.tile.affine import DEEPEST, extremes_of, least
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import (
    NESTS,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Role,
    Space,
    Stmt,
    Store,
    Update,
    touched_by,
    walk,
    written,
    written_in,
)
from tilewright.tile.rewrite import Body, loads_of, loops_of, rewrite_accesses, substitute_body
from tilewright.tile.schedule.fresh import starts_fresh
from tilewright.tile.schedule.tree import edit, enclosing, find_loop, find_place, new_loop, with_body


def slide(kernel: Kernel, *loops: str) -> Kernel:
    """Loops over rows as one, in which each is so many rows behind those before it that what it reads is there.

    Before: ``for a<n + 2: T[a] = e;  for b<n: ... T[b] ... T[b + 2] ...``. After: ``for b<n + 2: T[b % 3] = e;  if b >=
    2: ... T[(b - 2) % 3] ... T[b % 3] ...``. The loop is called as the last one, and goes on to the latest end; whose
    end comes earlier has a condition, too. T keeps as many rows as one iteration touches, each in the place of one that
    is no longer read, where it is a temporary that nothing else touches, and that threads do not share. Loops that read
    nothing of each other run side by side. Fails: fewer than two loops; they are not serial ones that follow each other
    in one body; one touches what a later one writes; how far a loop's reads are from its own row is not known.
    """
    where = ", ".join(loops)
    found = [find_loop(kernel, name, "slide") for name in loops]
    _check_row(kernel, found, where)
    windows = _windows(found, where)
    behind = _lags(found, windows)
    kept = [w for w in windows if _is_between(kernel, found, w.buffer)]
    joined = _joined(found, behind)
    for w in kept:
        kernel, joined = _with_rows(kernel, joined, w, behind)
    body = kernel.body
    for x in found[:-1]:
        body = edit(body, x, lambda _: ())
    return with_body(kernel, edit(body, found[-1], lambda _: (joined,)))


def _check_row(kernel: Kernel, loops: Sequence[For], where: str) -> None:
    if len(loops) < 2:
        raise ScheduleError("slide", where, "one loop has nothing to be behind", remedy="name two loops or more")
    if any(x.loop.kind is not Kind.SERIAL for x in loops):
        raise ScheduleError("slide", where, "a loop is not serial", remedy="slide first, and set kinds of loops then")
    homes = [kernel.body, *(s.body for s in walk(kernel.body) if isinstance(s, NESTS))]
    home = next((x for x in homes if any(s is loops[0] for s in x)), ())
    first = next((k for k, s in enumerate(home) if s is loops[0]), 0)
    if not all(s is x for s, x in zip_longest(home[first : first + len(loops)], loops)):
        remedy = "bring the nests that are read into the loop around those that read by compute_at, or merge loops"
        raise ScheduleError("slide", where, "the loops do not follow each other in one body", remedy=remedy)
    for k, x in enumerate(loops):
        for t in sorted({t for y in loops[k + 1 :] for t in written_in(y)} & touched_by(x), key=str):
            raise ScheduleError("slide", where, f"{x.loop.sym.name} touches {t}, which a later loop writes")


@dataclass(frozen=True)
class _Slid:
    """A buffer that loop number ``maker`` writes: in row b of loop k, rows ``b + low`` to ``b + high`` are touched.

    ``last``: row b of the maker is the last that writes row ``b + last``.
    """

    buffer: Buffer
    dim: int
    maker: int
    last: int
    rows: Mapping[int, tuple[int, int]]


def _windows(loops: Sequence[For], where: str) -> list[_Slid]:
    """Of every buffer that one of the loops writes and later ones read."""
    found: list[_Slid] = []
    for k, x in enumerate(loops):
        for t in sorted(written_in(x), key=str):
            readers = [j for j in range(k + 1, len(loops)) if t in touched_by(loops[j])]
            if readers:
                found.append(_window(loops, k, readers, t, where))
    return found


def _window(loops: Sequence[For], maker: int, readers: Sequence[int], t: Buffer, where: str) -> _Slid:
    """Along the first dimension in which the buffer is written row by row, and reads are near."""
    row, inner = loops[maker].loop.sym, {x.sym for x in loops_of(loops[maker].body)}
    for d in range(len(t.shape)):
        stored = [None if is_chosen(i) else i - row for i in (x[d] for x in _stored(loops[maker], t))]
        first = stored[0]
        if first is None or symbols(first) & {row, *inner}:
            continue
        base = first - const_of(first)  # by loops around
        lasts = [x - base for x in stored if x is not None and is_known(x - base)]
        rows = {k: _rows(loops[k], t, d, base) for k in (maker, *readers)}
        known = {k: r for k, r in rows.items() if r is not None}
        if len(known) == len(rows) and len(lasts) == len(stored):
            return _Slid(t, d, maker, min(x for x in lasts if is_known(x)), known)
    remedy = "the loops have to go along the same rows, and reads to be a known number of them away"
    raise ScheduleError("slide", where, f"how far reads of {t} are from a loop's own row is not known", remedy=remedy)


def _lags(loops: Sequence[For], windows: Sequence[_Slid]) -> list[int]:
    """How many rows each loop has to be behind the first one: the least with which all that it reads is written."""
    behind = [0] * len(loops)
    for k in range(len(loops)):
        needs = [behind[w.maker] + w.rows[k][1] - w.last for w in windows if k in w.rows and k != w.maker]
        behind[k] = max([0, *needs])
    return behind


def _rows(x: For, t: Buffer, d: int, base: Dim) -> tuple[int, int] | None:
    return _apart([index[d] for index in _touched(x, t)], x.loop.sym + base, x)


def _stored(s: For, t: Buffer) -> Iterator[tuple[IndexLike, ...]]:
    return (x.index for x in walk(s.body) if isinstance(x, Store | Update | Fold) and t in written(x))


def _touched(s: For, t: Buffer) -> Iterator[tuple[IndexLike, ...]]:
    yield from _stored(s, t)
    yield from (x.index for y in walk(s.body) for x in loads_of(y) if x.buffer is t)


def _apart(indices: Iterable[IndexLike], row: Dim, x: For) -> tuple[int, int] | None:
    """The least and the greatest of what indices in a loop are more than ``row``; None where that is not known."""
    extents = {y.sym: y.extent for y in (x.loop, *loops_of(x.body))}
    apart = [None if is_chosen(i) else i - row for i in indices]
    lows = [None if d is None else _least(d, extents, DEEPEST) for d in apart]
    highs = [None if d is None else _least(-1 * d, extents, DEEPEST) for d in apart]
    if not all(is_known(e) for e in (*lows, *highs)):
        return None
    return min(e for e in lows if is_known(e)), max(-e for e in highs if is_known(e))


def _least(e: Dim, extents: Mapping[Sym, Dim], depth: int) -> int | None:
    """A number that ``e`` is never below, which sees what minima and maxima are of: -3 of ``max(i - 3, 0) - i``."""
    e = least(e, extents)
    for is_least, atom, c in extremes_of(e) if depth else ():
        ends = [_least(e + c * (x - atom), extents, depth - 1) for x in (atom.a, atom.b)]
        known = [x for x in ends if x is not None]
        if is_least:
            return min(known) if len(known) == 2 else None
        return max(known, default=None)
    return bounds(e)[0]


def _joined(loops: Sequence[For], behind: Sequence[int]) -> For:
    """One loop for all bodies, each of which runs where its own loop would."""
    ends = [_plus(x.loop.extent, lag) for x, lag in zip(loops, behind, strict=True)]
    extent = reduce(maximum, ends)
    loop = new_loop(loops[-1].loop.sym.name, extent)
    row, body = loop.sym, list[Stmt]()
    for x, lag, end in zip(loops, behind, ends, strict=True):
        told = (*((row - lag,) if lag else ()), *((end - 1 - row,) if end != extent else ()))
        own = substitute_body(x.body, {x.loop.sym: row - lag})
        body += [If(Inside(told), own)] if told else own
    return For(loop, tuple(body))


def _plus(e: Dim, c: int) -> Dim:
    """``e + c``, added within minima and maxima, so that equal ends look alike."""
    terms = terms_of(e)
    if (
        len(terms) == 1
        and isinstance(atom := terms[0][0], BinaryExpr)
        and atom.op in ("min", "max")
        and terms[0][1] == 1
    ):
        pick = minimum if atom.op == "min" else maximum
        return pick(_plus(atom.a, c + const_of(e)), _plus(atom.b, c + const_of(e)))
    return e + c


def _is_between(kernel: Kernel, loops: Sequence[For], t: Buffer) -> bool:
    """Is the buffer a temporary that one run of the loops fills and nothing else sees, other threads included?"""
    place = find_place(kernel, t.name, "slide")
    around = [s for s in enclosing(kernel.body, loops[0]) if isinstance(s, For)]
    is_own = place.space is Space.LOCAL or all(s.loop.kind is Kind.SERIAL for s in around)
    if place.role is not Role.TMP or not is_own or _n_touching(kernel.body, t) > _n_touching(tuple(loops), t):
        return False
    return starts_fresh(tuple(x for x in loops if t in touched_by(x)), t)


def _n_touching(body: Body, t: Buffer) -> int:
    return sum(1 for s in walk(body) if t in (_of_condition(s) if isinstance(s, NESTS) else touched_by(s)))


def _of_condition(s: Stmt) -> frozenset[Buffer]:
    return buffers_of_value(s.cond) if isinstance(s, If) else frozenset()


def _with_rows(kernel: Kernel, joined: For, w: _Slid, behind: Sequence[int]) -> tuple[Kernel, For]:
    """The buffer with the rows alone that one iteration of the joined loop touches."""
    t, d = w.buffer, w.dim
    n_rows = max(r[1] - behind[k] for k, r in w.rows.items()) - min(r[0] - behind[k] for k, r in w.rows.items()) + 1
    if known_at_most(t.shape[d], n_rows):
        return kernel, joined
    new = replace(t, shape=(*t.shape[:d], n_rows, *t.shape[d + 1 :]))

    def moved(buffer: Buffer, index: tuple[IndexLike, ...]) -> Load | None:
        if buffer is not t:
            return None
        return Load(new, tuple(mod(i, n_rows) if k == d and not is_chosen(i) else i for k, i in enumerate(index)))

    places = tuple(replace(p, buffer=new) if p.buffer is t else p for p in kernel.places)
    return replace(kernel, places=places), For(joined.loop, rewrite_accesses(joined.body, moved))
