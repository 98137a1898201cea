"""Which temporaries have room behind their rows that nobody uses, so that part of a vector may be a whole one.

In: what a kernel writes to a buffer. Out: what lies behind its rows. Not its business: instructions (``memory``).

A tile's last vector is often no whole one, and its row has room for the rest of it. What such room holds is what its
memory held before, and products that read whole vectors multiply it. That makes no result wrong; but where those bits
are a denormal number, as the upper half of a pointer is, an x86 core takes some 150 cycles for the instruction. So the
room is written like the rest of the vector, where no statement keeps anything there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum

import numpy as np

from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import known, numbers
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, Sym, bounds
from tilewright.core.indices import chosen, is_chosen, placed_by_dimension, symbols_at
from tilewright.core.types import Array
from tilewright.core.valued import OF_ARRAYS, valued
from tilewright.tile.affine import coefficient
from tilewright.tile.ir import Loop

Around = Sequence[tuple[Loop, int | None]]
"""The loops around an access, outer ones first, with the lanes of those that run in lanes."""


class Beyond(Enum):
    """What lies where lanes that do not run would write: room of the buffer's own, or elements that it keeps, too."""

    ROOM = "room"
    KEPT = "kept"


def beyond_rows(buffer: Buffer, writes: Sequence[tuple[tuple[IndexLike, ...], Around]]) -> Beyond | None:
    """What lies behind the last lanes that run, of all vectors that are written to ``buffer``; None if not told.

    ``writes`` are all of the buffer's, each an index with the loops around it. Where there is room, each of them is a
    run of neighbours in the lanes of one loop, and may be a whole vector. With sizes that a call decides, or very many
    places, nothing is told.
    """
    lanes = [_run(index, around) for index, around in writes]
    ragged = [k for k, found in enumerate(lanes) if found is not None and found[0].extent != found[1]]
    if None in lanes or not ragged:
        return None
    deciding = frozenset[Sym]().union(*(_deciding(lanes[k], writes[k][1]) for k in ragged))
    dims = sorted({d for index, _ in writes for d, i in placed_by_dimension(index) if symbols_at(i) & deciding})
    sizes = numbers([buffer.shape[d] for d in dims])
    own = [([i for d, i in placed_by_dimension(index) if d in dims], around) for index, around in writes]
    kept = [_places(at, sizes, around, beyond=False) for at, around in own]
    spare = [_places(own[k][0], sizes, own[k][1], beyond=True) for k in ragged]
    known_kept, known_spare = [x for x in kept if x is not None], [x for x in spare if x is not None]
    if len(known_kept) < len(kept) or len(known_spare) < len(spare):
        return None
    is_kept = np.isin(np.concatenate(known_spare), np.concatenate(known_kept)).any()
    return Beyond.KEPT if is_kept else Beyond.ROOM


def _run(index: tuple[IndexLike, ...], around: Around) -> tuple[Loop, int] | None:
    """The only loop of lanes around an access, with their number, where they are neighbours in the last dimension."""
    in_lanes = [(x, n) for x, n in around if n is not None]
    if len(in_lanes) != 1 or not index or chosen(index):
        return None
    sym = in_lanes[0][0].sym
    *outer, last = index
    is_run = not is_chosen(last) and coefficient(last, sym) == 1 and all(sym not in symbols_at(i) for i in outer)
    return in_lanes[0] if is_run else None


def _deciding(found: tuple[Loop, int] | None, around: Around) -> Set[Sym]:
    """The variable of a loop of lanes, and those that decide how many of them run."""
    assert found is not None
    extents = {x.sym: x.extent for x, _ in around}
    syms, new = {found[0].sym}, {found[0].sym}
    while new:
        new = set().union(*(symbols_at(extents[s]) for s in new if s in extents)) - syms
        syms |= new
    return syms


def _places(at: Sequence[Dim], sizes: Sequence[int], around: Around, *, beyond: bool) -> Array | None:
    """Each place of ``at`` in dimensions of these ``sizes``, as one number; ``beyond``: of lanes that do not run.

    None where places are many, are not numbers or lie outside.
    """
    asked, axes = set().union(*(symbols_at(i) for i in at)), list[tuple[Loop, int | None]]()
    for loop, n_lanes in reversed(around):
        if loop.sym in asked:
            axes.insert(0, (loop, n_lanes))
            asked |= symbols_at(loop.extent)
    places: Mapping[Sym, Array] = {}
    n_places = 1
    for loop, n_lanes in axes:
        most = known(bounds(loop.extent)[1], -1) if n_lanes is None else n_lanes
        if most < 0 or n_places * most > EFFORT.points or not symbols_at(loop.extent) <= places.keys():
            return None
        grid = np.repeat(np.arange(most)[None], n_places, 0)
        ends = np.broadcast_to(valued(loop.extent, places, OF_ARRAYS), (n_places,))[:, None]
        runs = (grid >= ends) & (ends > 0) if beyond and n_lanes else grid < ends
        places = {**{s: np.repeat(v, most).reshape(grid.shape)[runs] for s, v in places.items()}, loop.sym: grid[runs]}
        n_places = int(runs.sum())
    if not asked <= places.keys() or len(sizes) < len(at):
        return None
    found = np.zeros(n_places, np.int64)
    for i, size in zip(at, sizes, strict=True):
        part = np.broadcast_to(valued(i, places, OF_ARRAYS), (n_places,))
        if ((part < 0) | (part >= size)).any():
            return None
        found = found * size + part
    return np.unique(found)
