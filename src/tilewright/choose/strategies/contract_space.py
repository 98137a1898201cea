"""Tiles and orders of loops that a contraction may have, and what the sketch of each costs.

In: a contraction in numbers, its loops by what they do; a machine. Out: an ``Arrangement``; loops in an order. Not its
business: prices (``choose.cost.sketch``), what the rules take (``contract_plan``), steps (``contract_tile``).

What stays in which cache follows from the order: a panel of lanes that all rows read, rows that all panels read, a
chunk of rows with the panels that they share, a part of the reduction with the sums that wait for the next part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias, TypeVar

from tilewright.choose.cost.sketch import Contraction, NestAccess, TileSketch, Walk, cut_by, sketch, sketch_tile
from tilewright.choose.cost.tile import FAR, Tile
from tilewright.choose.strategies.threads import min_tasks
from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import known
from tilewright.core.estimates import DOUBT
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient, first_offset

T = TypeVar("T")


@dataclass(frozen=True)
class Order:
    """Lanes outside of all rows (``panels_first``), or of the last row loop only; or chunks of rows outside of both.

    ``depth`` steps of the reduction, or as many fewer as ``cut_by`` says, are done for all rows of a panel before the
    next ones; 0: all steps at once, None: as the rules have it. Of the loops that walk no rows the last ``n_inside``
    run inside of those that do.
    """

    panels_first: bool = True
    n_chunks: int = 1
    depth: int | None = None
    n_inside: int = 0

    @property
    def has_panels_again(self) -> bool:
        """Does every chunk of rows bring panels again that no near cache keeps?"""
        return self.panels_first and self.n_chunks > 1


@dataclass(frozen=True)
class Outside:
    """Loops outside of a tile by what they do: ``batch`` first, then ``rows``, which tiles walk.

    ``is_window``: the tile holds copies of the reduction's loops. ``is_shared``: threads share the outermost loop.
    """

    batch: tuple[Sym, ...]
    rows: tuple[Sym, ...]
    is_window: bool
    is_shared: bool


@dataclass(frozen=True)
class Arrangement:
    """A register tile and the order of the loops outside of it; ``seconds`` by its sketch."""

    tile: Tile
    order: Order
    seconds: float = 0.0


@dataclass(frozen=True)
class TileSpace:
    """What there is to choose for a contraction: ``tiles`` have rows, second rows and vectors."""

    of: Contraction
    outside: Outside
    tiles: tuple[tuple[int, int, int], ...]


Arrange: TypeAlias = Callable[[TileSpace], Arrangement | None]
"""Takes an arrangement of the space; None: as the rules do."""


def cheapest_arrangements(space: TileSpace, machine: Target, most: int) -> list[Arrangement]:
    """At most so many arrangements with the least prices, the cheapest first, each with a tile of its own.

    What a tile's steps take in the first-level cache is a bound for all orders: tiles come by it, and only those are
    priced whose bound is below the best prices so far. Orders are compared for the first tile, since what is best for
    one tile is nearly so for all, and again for the best.
    """
    tiles = sorted((sketch_tile(space.of, machine, *sizes) for sizes in space.tiles), key=lambda t: t.least_cycles)
    found: list[tuple[Arrangement, TileSketch]] = []
    for tile in tiles:
        if len(found) == most and _least_seconds(space, tile, machine) >= found[-1][0].seconds:
            break
        known_order = found[0][0].order if found else None
        a = _best_order(space, tile, machine) if known_order is None else _priced(space, tile, known_order, machine)
        found = sorted([*found, (a, tile)], key=lambda x: x[0].seconds)[:most]
    return sorted((_best_order(space, tile, machine) for _, tile in found), key=lambda a: a.seconds)


def _best_order(space: TileSpace, tile: TileSketch, machine: Target) -> Arrangement:
    return min((_priced(space, tile, o, machine) for o in orders(tile, space.outside)), key=lambda a: a.seconds)


def _priced(space: TileSpace, tile: TileSketch, order: Order, machine: Target) -> Arrangement:
    walks = walks_of(tile, space.outside, order, machine)
    seconds = sketch(tile, walks, order.depth or 0, machine, is_shared=space.outside.is_shared)
    return Arrangement(Tile(tile.rows, tile.rows2, tile.vectors), order, seconds)


def cheapest_of(space: TileSpace, alike: Sequence[tuple[Tile, Order]], machine: Target) -> tuple[Tile, Order]:
    """The first of tiles with their orders, or another where the price is sure of that."""
    if len(alike) == 1:
        return alike[0]
    sizes = (sketch_tile(space.of, machine, t.rows, t.rows2, t.vectors) for t, _ in alike)
    seconds = [_priced(space, tile, order, machine).seconds for tile, (_, order) in zip(sizes, alike, strict=True)]
    least = min(seconds)
    return alike[seconds.index(least)] if least < seconds[0] * (1 - DOUBT) else alike[0]


def whole_or_in_chunks(space: TileSpace, tile: Tile, order: Order, machine: Target) -> Order:
    """The order, or the same without chunks of rows where that costs less: all rows of a panel before the next one.

    What rows read stays in a near cache for all panels of a chunk, or a panel stays there for all rows.
    """
    sizes = sketch_tile(space.of, machine, tile.rows, tile.rows2, tile.vectors)
    whole = replace(order, n_chunks=1)
    return min((whole, order), key=lambda o: _priced(space, sizes, o, machine).seconds)


def longer_runs(space: TileSpace, tile: Tile, order: Order, machine: Target) -> Order:
    """The order, or one that writes results in longer runs, where the price is sure of that.

    Of results that no near cache keeps, lines of many rows are waited for. So a tile's part of a row is followed by
    what lies behind it: by the next block of lanes, inside of all rows but a few (a tile's, or as many as caches look
    ahead along), or by what the loops that walk no rows have next, as an image has rows where the tile's are channels.
    """
    sizes = sketch_tile(space.of, machine, tile.rows, tile.rows2, tile.vectors)
    rows = [w for s in space.outside.rows for w in _walks(sizes, s)]
    if space.outside.is_window or len(rows) != 1:
        return order
    (walk,) = rows
    inside = {1, max(machine.n_streams // (tile.rows * tile.rows2), 1)}
    tried = [Order(n_chunks=-(-walk.count // n), depth=0) for n in sorted(inside)]
    inner = range(1, _n_following(space) + 1)
    tried += [Order(panels_first, depth=0, n_inside=n) for n in inner for panels_first in (True, False)]
    found = [_priced(space, sizes, o, machine) for o in tried]
    least, lies = min(a.seconds for a in found), _priced(space, sizes, order, machine)
    if least >= lies.seconds * (1 - DOUBT):
        return order
    alike = [a for a in found if a.seconds * (1 - DOUBT) <= least]  # the longest runs of those that it can't tell apart
    return min(alike, key=lambda a: (-a.order.n_inside, a.order.panels_first, a.seconds)).order


def _n_following(space: TileSpace) -> int:
    """How many of the last loops that walk no rows go on where the results of the lanes, and of those inside, end."""
    of, found = space.of, 0
    result = next(x for x in of.others if x.is_write)
    end = of.n_lanes * result.steps.get(of.lanes, 0)
    for sym in reversed(space.outside.batch):
        if result.steps.get(sym) != end:
            break
        found, end = found + 1, end * of.outer[sym]
    return found


def _least_seconds(space: TileSpace, tile: TileSketch, machine: Target) -> float:
    """A bound of a tile's price: all threads together are at most so many times as fast as one."""
    n = machine.n_cores if space.outside.is_shared else 1
    return float(tile.least_cycles / (machine.ghz * 1e9) / n**0.5)


def orders(tile: TileSketch, outside: Outside) -> Iterator[Order]:
    """The orders that there are: chunks and parts of the reduction by halves."""
    of, is_blocked = tile.of, tile.of.n_lanes > tile.block
    if len(outside.rows) > 1 and is_blocked:
        yield Order(panels_first=False, depth=0)
    yield Order(depth=0)
    rows = [] if outside.is_window or not is_blocked else [s for s in outside.rows if _walks(tile, s)]
    if rows:
        n, steps = 2, _walks(tile, rows[0])[0].count
        while n < 2 * steps:
            yield Order(n_chunks=min(n, steps), depth=0)
            n *= 2
    if rows and of.reduced:
        extents = [n for _, n in of.reduced]
        depth, tried = prod(extents), {(0, extents[0])}
        while depth > of.group:
            depth = -(-depth // 2)
            steps = depth + -depth % of.group
            if (cut := cut_by(extents, steps)) not in tried:
                tried.add(cut)
                yield Order(depth=steps)


def _walks(tile: TileSketch, loop: Sym) -> list[Walk]:
    """The loop over the tiles of a loop; none where one tile takes it whole."""
    size, n = tile.size(loop), tile.of.outer[loop]
    return [] if size > 1 and n <= size else [Walk(loop, -(-n // size), size)]


def walks_of(tile: TileSketch, outside: Outside, order: Order, machine: Target) -> list[Walk]:
    """The loops outside of the tile, the outermost first."""
    of = tile.of

    def chunked(rows: Walk, n_chunks: int) -> tuple[Walk, Walk]:
        inside = -(-rows.count // n_chunks)
        return Walk(rows.sym, -(-rows.count // inside), rows.size * inside), replace(rows, count=inside)

    blocks = [Walk(of.lanes, -(-of.n_lanes // tile.block), tile.block)] if of.n_lanes > tile.block else []
    batch = [w for s in outside.batch for w in _walks(tile, s)]
    rows = [w for s in outside.rows for w in _walks(tile, s)]
    return ordered(order, machine, batch, blocks, rows, chunked, lambda w: w.count, is_window=outside.is_window)


def ordered(
    order: Order,
    machine: Target,
    batch: list[T],
    blocks: list[T],
    rows: list[T],
    chunked: Callable[[T, int], tuple[T, T]],
    count: Callable[[T], float],
    *,
    is_window: bool,
) -> list[T]:
    """Loops in an order, the outermost first.

    ``chunked`` cuts the first row loop into a loop over chunks and one inside. When the first loop has too few
    iterations for the threads, the loop with the most comes first; ``count`` is 0 of one that depends on others.
    """
    inside: T | None = None
    if order.n_chunks > 1 and rows:
        chunks, inside = chunked(rows[0], order.n_chunks)
        found = [*batch, chunks, *blocks, inside, *rows[1:]]
    elif order.n_inside:
        n = max(len(batch) - order.n_inside, 0)
        around = [*blocks, *rows, *batch[n:]] if order.panels_first else [*rows, *batch[n:], *blocks]
        found = [*batch[:n], *around]
    # With blocks outside, a panel along the lanes stays in the cache while all rows pass; with rows outside, the rows
    # do.
    elif order.panels_first or not (is_window or len(rows) > 1):
        found = [*batch, *blocks, *rows]
    elif is_window:
        found = [*batch, *rows, *blocks]
    else:
        found = [*batch, *rows[:-1], *blocks, rows[-1]]
    if found and count(found[0]) < min_tasks(machine):
        widest = max((x for x in found if x is not inside), key=lambda x: min(count(x), min_tasks(machine)))
        found = [widest, *(x for x in found if x is not widest)]
    return found


def access(
    buffer: Buffer,
    index: Sequence[IndexLike],
    extents: Mapping[Sym, int],
    *,
    is_write: bool = False,
) -> NestAccess:
    """An access of the root's nest in numbers; run-time indices name its beginning."""
    return access_at(buffer, first_offset(buffer, tuple(index)), extents, is_write=is_write)


def access_at(
    buffer: Buffer, offset: Dim, extents: Mapping[Sym, int], *, is_packed: bool = False, is_write: bool = False
) -> NestAccess:
    """An access at an element offset in numbers; a step that is not known is far."""
    n_bytes = buffer.dtype.n_bytes
    steps = {s: known(coefficient(offset, s), FAR) * n_bytes for s in symbols(offset) if s in extents}
    size = prod(known(d, 1) for d in buffer.shape) * n_bytes
    return NestAccess(n_bytes, float(size), steps, is_packed, is_write)
