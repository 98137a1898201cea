"""When each iteration of a nest runs: bands of new loops in a certain order and tiled, proved to keep what must stay.

In: ``Bands``, a ``BandForm`` for each. Out: ``RunOrder``: a map from iterations to times for each statement, all of one
length, and which of its loops may be lanes. Not its business: which form is fast (``choose.strategies.ordered``), loops
of it (``emitted``).

A time has, from the outside in: the tiles of each band and then its loops within a tile, places between them where
statements part, and at last the innermost loop. That one is not shared: each statement runs through it before the
next one does, as far as dependences let them, so that a loop of lanes has one statement and no conditions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from graphlib import TopologicalSorter
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from tilewright.tile.errors import ScheduleError
from tilewright.tile.polyhedral.bands import Band, Bands
from tilewright.tile.polyhedral.dependences import Dependence

if TYPE_CHECKING:
    import islpy as isl
else:
    from tilewright.tile.polyhedral import isl

_Part: TypeAlias = "isl.Map | int"
"""A number of a time: a loop's, or a place between statements."""
_FORM = re.compile(r"(\d+(?:\+\d+)?(?: \d+(?:\+\d+)?)*)(?::(\d+(?: \d+)*))?")


@dataclass(frozen=True)
class BandForm:
    """``order`` has the band's loops from the outside in; ``tiles`` how many iterations of each, in the same order,
    are a tile, 0 where it is not tiled.

    ``waves`` has for some loops another one, further inside, that is added to it. No dependence points backwards along
    either, so what depends on each other along any of both has different sums: within one, iterations of the loop
    inside share nothing. They lie in no row of an array, and stay a plain loop whose iterations a processor overlaps.
    """

    order: tuple[int, ...]
    tiles: tuple[int, ...]
    waves: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def as_found(band: Band) -> BandForm:
        """The band's loops in their own order, without tiles."""
        n = len(band.loops)
        return BandForm(tuple(range(n)), (0,) * n)

    def __str__(self) -> str:
        added = dict(self.waves)
        order = " ".join(f"{n}+{added[n]}" if n in added else str(n) for n in self.order)
        return f"{order}:{' '.join(map(str, self.tiles))}" if any(self.tiles) else order


def forms_text(forms: Sequence[BandForm]) -> str:
    """Forms of all bands, as :func:`read_forms` takes them: ``1 0 2:0 32 32; 0 1``."""
    return "; ".join(map(str, forms))


def read_forms(text: str, bands: Sequence[Band]) -> tuple[BandForm, ...]:
    """``ScheduleError`` where the text does not fit the bands; no text is all bands as they are."""
    if not text:
        return tuple(map(BandForm.as_found, bands))
    parts = [x.strip() for x in text.split(";")]
    if len(parts) != len(bands):
        raise ScheduleError("resequence", text, f"{len(parts)} forms for {len(bands)} bands")
    return tuple(_read(part, len(b.loops)) for part, b in zip(parts, bands, strict=True))


def _read(text: str, n: int) -> BandForm:
    found = _FORM.fullmatch(text)
    named, sizes = ((part or "").split() for part in (found.groups() if found else ("", "")))
    sums = [[int(x) for x in loop.split("+")] for loop in named]
    order, tiles, waves = [x[0] for x in sums], [int(x) for x in sizes], [(x[0], x[1]) for x in sums if len(x) > 1]
    # What is added comes further inside, as itself: from both the loop can be told again.
    are_told = all(b in order[order.index(a) + 1 :] and b not in dict(waves) for a, b in waves)
    if sorted(order) != list(range(n)) or len(tiles) not in (0, n) or not are_told:
        rule = f"{text!r} is no order of {n} loops, with a tile's size of each or without"
        raise ScheduleError("resequence", text, rule, remedy="write as in 1 0 2:0 32 32 or 0 1+2 2")
    return BandForm(tuple(order), tuple(tiles) or (0,) * n, tuple(waves))


@dataclass(frozen=True)
class Timed:
    """``time`` of a statement's iterations. ``last`` is which of a time's numbers is the innermost loop.

    That may be lanes where ``are_lanes``: its iterations share nothing, or (``are_sums``) update one element.
    """

    time: isl.Map
    last: int | None = None
    are_lanes: bool = False
    are_sums: bool = False


@dataclass(frozen=True)
class RunOrder:
    """When each statement runs, by its number."""

    statements: Mapping[int, Timed]


@dataclass
class _Draft:
    """A statement's time up to the innermost loop, and from there on."""

    outer: list[_Part]
    last: isl.Map | None
    inner: list[_Part]
    is_wave: bool


def order_of(bands: Bands, forms: Sequence[BandForm]) -> RunOrder:
    """Times by these forms; ``ScheduleError`` where they break a dependence, which bands that may be permuted don't."""
    order = times_of(bands, forms)
    _check(bands, order)
    return order


def times_of(bands: Bands, forms: Sequence[BandForm]) -> RunOrder:
    """:func:`order_of` before it is proved, for a search that takes one of many."""
    drafts = {k: _draft(bands, k, forms) for k in bands.paths}
    turns = _turns(bands, drafts)
    n = max(len(d.outer) + len(d.inner) + 3 for d in drafts.values())
    rows: dict[int, list[_Part]] = {}
    for k, draft in sorted(drafts.items()):
        last = [] if draft.last is None else [draft.last]
        parts = [*draft.outer, turns[k], *last, *draft.inner, k]
        rows[k] = [*parts, *[0] * (n - len(parts))]
    short, moved = _without_shared_places(rows)
    made: dict[int, Timed] = {}
    for k, draft in sorted(drafts.items()):
        time = _joined(bands, k, short[k]).intersect_domain(bands.instances[k].domain)
        is_alone = draft.last is not None and sum(turn == turns[k] for turn in turns.values()) == 1
        carried = _carried(bands, drafts, k) if is_alone else None
        at = moved[len(draft.outer) + 1] if draft.last is not None else None
        made[k] = Timed(time, at, carried in ("", "sums") and not draft.is_wave, carried == "sums")
    return RunOrder(made)


def _without_shared_places(rows: Mapping[int, Sequence[_Part]]) -> tuple[dict[int, list[_Part]], dict[int, int]]:
    """Times with one place where all have several, and none where all have the same; where each loop is now.

    ``isl`` takes the longer for each dimension, and twice as long for several places as for one.
    """
    columns = list(zip(*rows.values(), strict=True))
    made: list[Sequence[_Part]] = []
    moved: dict[int, int] = {}
    at = 0
    while at < len(columns):
        places = list(takewhile(lambda column: not any(isinstance(x, isl.Map) for x in column), columns[at:]))
        if places:
            whole = list(zip(*places, strict=True))
            numbers = {place: n for n, place in enumerate(sorted(set(whole)))}
            made += [[numbers[x] for x in whole]] if len(numbers) > 1 else []
        else:
            moved[at] = len(made)
            made.append(columns[at])
        at += max(len(places), 1)
    made = made or [[0] * len(rows)]
    return dict(zip(rows, map(list, zip(*made, strict=True)), strict=True)), moved


def _draft(bands: Bands, k: int, forms: Sequence[BandForm]) -> _Draft:
    """Dimensions of a statement's time; the innermost loop apart where all statements of its band end in that band."""
    path = bands.paths[k]
    own = [x for x in path if isinstance(x, Band)]
    leaf = own[-1] if own and _is_leaf(bands, own[-1]) else None
    outer: list[_Part] = []
    inner: list[_Part] = []
    last, is_wave = None, False
    for x in path:
        if not isinstance(x, Band):
            (inner if last is not None else outer).append(x)
            continue
        form = forms[x.number]
        added = dict(form.waves)
        loops = [_sum(x.loops[n][k], x.loops[added[n]][k]) if n in added else x.loops[n][k] for n in form.order]
        outer += [_tiled(m, size) for m, size in zip(loops, form.tiles, strict=True) if size]
        outer += loops if x is not leaf else loops[:-1]
        last = loops[-1] if x is leaf else None
        is_wave = form.order[-1] in added.values()
    return _Draft(outer, last, inner, is_wave)


def waits(bands: Bands, forms: Sequence[BandForm], band: Band) -> bool:
    """Do iterations of the band's innermost loop wait for each other, in some statement, by these forms?"""
    if not _is_leaf(bands, band):
        return False
    order = times_of(bands, forms)
    return any(band in path and not order.statements[k].are_lanes for k, path in bands.paths.items())


def keeps(bands: Bands, forms: Sequence[BandForm]) -> bool:
    """Do these forms keep every dependence?"""
    try:
        order_of(bands, forms)
    except ScheduleError:
        return False
    return True


def _is_leaf(bands: Bands, band: Band) -> bool:
    """Is it the last band of all statements that are in it?"""
    paths = (p for p in bands.paths.values() if band in p)
    return all([x for x in p if isinstance(x, Band)][-1] is band for p in paths)


def _constant(bands: Bands, k: int, value: int) -> isl.Map:
    n = len(bands.instances[k].loops)
    return isl.Map(f"{{ S{k}[{', '.join(f'i{d}' for d in range(n))}] -> [{value}] }}")


def _tiled(line: isl.Map, size: int) -> isl.Map:
    return line.apply_range(isl.Map(f"{{ [x] -> [floor(x/{size})] }}"))


def _sum(a: isl.Map, b: isl.Map) -> isl.Map:
    return a.flat_range_product(b).apply_range(isl.Map("{ [x, y] -> [x + y] }"))


def _joined(bands: Bands, k: int, parts: Sequence[_Part]) -> isl.Map:
    maps = [x if isinstance(x, isl.Map) else _constant(bands, k, x) for x in parts]
    return reduce(lambda whole, x: whole.flat_range_product(x), maps)


# --- the innermost loops --------------------------------------------------------------------------------------------


def _together(bands: Bands, drafts: Mapping[int, _Draft], d: Dependence) -> isl.Map:
    """The pairs of a dependence that agree in all that is outside of the innermost loop."""
    a, b = drafts[d.source].outer, drafts[d.target].outer
    if not a or len(a) != len(b):
        return d.pairs
    return d.pairs.intersect(_joined(bands, d.source, a).apply_range(_joined(bands, d.target, b).reverse()))


def _turns(bands: Bands, drafts: Mapping[int, _Draft]) -> dict[int, int]:
    """In which turn each statement runs through its innermost loop; statements that need each other have one turn."""
    after: dict[int, set[int]] = {k: set() for k in drafts}
    for d in bands.kept:
        a, b = d.source, d.target
        is_asked = a != b and a not in after[b] and _have_one_leaf(bands, a, b)
        if is_asked and not _together(bands, drafts, d).is_empty():
            after[b].add(a)
    return {k: turn for turn, group in enumerate(_components(after)) for k in group}


def _have_one_leaf(bands: Bands, a: int, b: int) -> bool:
    ends = [[x for x in bands.paths[k] if isinstance(x, Band)][-1:] for k in (a, b)]
    return ends[0] == ends[1]


def _components(after: Mapping[int, set[int]]) -> list[list[int]]:
    """Statements in an order that has each behind those that it comes after; those on a circle are one group."""
    reach = {k: set(v) for k, v in after.items()}
    for via, behind in reach.items():
        for reached in reach.values():
            if via in reached:
                reached |= behind
    first = {k: min([k, *(j for j in reached if k in reach[j])]) for k, reached in reach.items()}
    groups: dict[int, set[int]] = {group: set() for group in first.values()}
    for k, group in first.items():
        groups[group] |= {first[j] for j in after[k]} - {group}
    return [[k for k, group in first.items() if group == g] for g in TopologicalSorter(groups).static_order()]


def _carried(bands: Bands, drafts: Mapping[int, _Draft], k: int) -> str:
    """What the innermost loop of a statement carries: nothing, ``sums`` into one element, or ``order``."""
    own = [d for d in (*bands.kept, *bands.commuting) if d.source == d.target == k]
    found = [d for d in own if not _together(bands, drafts, d).is_empty()]
    if any(not d.commutes for d in found):
        return "order"
    return "sums" if found else ""


# --- proof ----------------------------------------------------------------------------------------------------------


def _check(bands: Bands, order: RunOrder) -> None:
    """Refuse times by which an iteration comes before one that it depends on."""
    backwards: dict[tuple[int, int], isl.Map] = {}
    for d in bands.kept:
        both = d.source, d.target
        if both not in backwards:
            early, late = (order.statements[k].time for k in both)
            backwards[both] = late.lex_le_map(early).reverse()
        if not d.pairs.intersect(backwards[both]).is_empty():
            raise ScheduleError("resequence", d.buffer.name, f"this order breaks a dependence on {d.buffer.name}")
