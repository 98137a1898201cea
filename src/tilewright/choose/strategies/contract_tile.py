"""Steps of one tile of a reduction: splits, the order of loops, the sums in registers, depth by depth where that pays.

In: a builder, a plan, a piece of the root's box. Out: steps, and the loops outside of the tile.
Not its business: the plan (``contract_plan``), pieces of run-time extents (``contract``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod
from types import MappingProxyType
from typing import NamedTuple

from tilewright.choose.cost.sketch import cut_by
from tilewright.choose.cost.tile import Tile, estimate, pays_threads
from tilewright.choose.strategies.contract_caches import MIN_SHARING_TILES
from tilewright.choose.strategies.contract_plan import ContractionPlan, known_iterations
from tilewright.choose.strategies.contract_space import ordered
from tilewright.choose.strategies.steps import attempt, cached_name, pair_with_rows, split_whole
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body, nest_with, nests, only_nest, statement_of
from tilewright.core.dims import are_known, is_known, known, known_at_most, numbers
from tilewright.core.expr import Dim, symbols
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind, Loop, Update
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place, most_iterations

NO_STEPS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class BoxPiece:
    """A part of the box: its accumulator, the loops of its root and of its sums by their original names, its tile.

    So many ``blocks`` of the tile's lanes are done at once, and a ``group`` of blocks before the next group.
    """

    acc: str
    loops: dict[str, str]
    reduced: dict[str, str]
    tile: Tile
    width: int
    blocks: int = 1
    group: int = 1


class TiledOrder(NamedTuple):
    """The loops outside of a tile, the outermost first; ``of`` has which loop of the piece each walks in tiles."""

    loops: list[str]
    of: dict[str, str]


def extent_of(b: ScheduleBuilder, loop: str) -> Dim:
    return find_loop(b.kernel, loop, "contract").loop.extent


def tile_piece(b: ScheduleBuilder, machine: Target, plan: ContractionPlan, piece: BoxPiece) -> TiledOrder:
    """Split and order one root nest, and bring its accumulator into the tile; returns the loops outside of the tile."""
    tile, acc = piece.tile, piece.acc
    lane = piece.loops[plan.lanes.sym.name]
    # Windows have no panels, which begin where blocks of lanes do.
    blocks, vectors, lanes = split_lanes(b, lane, piece, are_whole=plan.is_window and not machine.has_masks)
    outer: list[str] = []
    inner: list[str] = []
    walked: dict[str, str] = {}
    steps: dict[str, int] = {}
    for loop in plan.outer:
        name = piece.loops[loop.sym.name]
        size = tile.rows if loop is plan.rows else tile.rows2 if loop is plan.rows2 else 1
        walker, part = split_rows(b, name, size)
        outer.extend(walker)
        inner.extend(part)
        walked |= dict.fromkeys(walker, name)
        steps |= dict.fromkeys(walker, ceil(estimate([loop.extent]) / size))
    batch, rows = batch_and_rows(plan, piece, outer)
    tiled = [*inner, *vectors, lanes]
    whole = tiled[0]
    order = order_around(b, machine, plan, batch, blocks, rows, tiled, steps)
    if tiled[0] != whole:
        walked = {order[0]: whole}
    inner, lanes = tiled[: len(inner)], tiled[-1]
    for name in tiled[:-1]:
        b.do("kind", name, "unroll")
    b.do("kind", lanes, "vector")
    at = order[-1]
    at_blocks, depth = blocks[-1:], _block_depth(b, machine, plan, piece, blocks, order)
    if not depth and not rows:
        at_blocks, depth = order[-2:-1], _whole_rows(b, machine, plan, blocks, order)
    if depth and attempt(b, partial(_blocked, b, plan, piece, at_blocks, depth)):
        pass
    elif plan.is_heavy:
        # So many operations for each vector of the tile are not copied out: the sums wait in scratch, and the epilogue
        # is a loop over them.
        b.do("cache", acc)
        held = cached_name(b, acc)
        b.do("compute_at", acc, at, "local")
        b.do("compute_at", held, at, "reg")
        _arrange(b, plan, piece, held, at)
    else:
        b.do("compute_at", acc, at, "reg")
        _arrange(b, plan, piece, acc, at)
    if plan.is_heavy:
        for name in inner:
            b.do("kind", name, "serial")
        if inner and not vectors:
            pair_with_rows(b, inner[-1], lanes, plan.width)
    for name in plan.panels_copied:
        attempt(b, partial(b.do, "stage", name, blocks[-1], "local"))
    for name in plan.rows_copied:
        order = _rows_copied(b, machine, name, batch, order)
    if pays_threads(plan.work, machine, plan.width):
        parallel(b, machine, order[:2])
    return TiledOrder(order, walked)


def order_around(
    b: ScheduleBuilder, machine: Target, plan: ContractionPlan, batch: list[str], blocks: list[str], rows: list[str],
    tiled: list[str], steps: Mapping[str, int] = NO_STEPS,
) -> list[str]:  # fmt: skip
    """Order loops around those of a tile, outermost first.

    ``steps`` says how many iterations the plan counts on of loops of which only a call knows the number; others of
    these are not cut into chunks.
    Around a tile that is the whole there is a loop of one iteration, in which the first of ``tiled`` is another then.
    """
    order = _ordered(b, machine, plan, batch, blocks, rows, steps)
    if not order:
        around, tiled[0] = b.split(tiled[0], max(_number_of(b, tiled[0]), 1))
        order = [around]
    b.do("reorder", *order, *tiled)
    return order


def batch_and_rows(plan: ContractionPlan, piece: BoxPiece, outer: list[str]) -> tuple[list[str], list[str]]:
    """Of the loops outside of a tile those that walk no rows, and those that do."""
    pairs = zip(_names(plan, piece), plan.outer, strict=True)
    batch = [n for n, x in pairs if not is_row(plan, x) and x not in plan.below]
    return batch, [n for n in outer if n not in batch]


def _names(plan: ContractionPlan, piece: BoxPiece) -> list[str]:
    return [piece.loops[x.sym.name] for x in plan.outer]


def is_row(plan: ContractionPlan, loop: Loop) -> bool:
    return loop is plan.rows or loop is plan.rows2


def _number_of(b: ScheduleBuilder, loop: str) -> int:
    e = extent_of(b, loop)
    return known(e, 1)


def split_lanes(
    b: ScheduleBuilder, lane: str, piece: BoxPiece, *, are_whole: bool = False
) -> tuple[list[str], list[str], str]:
    """(block loops, loops of a tile's blocks and vectors, lane loop) after splitting the lane axis.

    ``are_whole``: a last block that would be ragged begins earlier, where that may be.
    """
    vectors, width = piece.tile.vectors, piece.width
    loop = find_loop(b.kernel, lane, "contract").loop
    n = known_iterations(loop)
    blocks: list[str] = []
    inside: list[str] = []
    for n_blocks in dict.fromkeys((max(piece.group, piece.blocks), piece.blocks)):
        if n is None or n > vectors * width * n_blocks:
            size = vectors * width * n_blocks
            block, lane = split_whole(b, lane, size) if are_whole else b.split(lane, size)
            blocks.append(block)
            n = vectors * width * n_blocks
    if piece.blocks > 1:
        part, lane = b.split(lane, vectors * width)
        inside = [part]
    many = vectors > 1 if blocks or inside or n is None else n > width
    if not many:
        return blocks, inside, lane
    vector, lane = b.split(lane, width)
    return blocks, [*inside, vector], lane


def split_rows(b: ScheduleBuilder, loop: str, size: int) -> tuple[list[str], list[str]]:
    n = extent_of(b, loop)
    if size == 1:
        return [loop], []
    if known_at_most(n, size):
        return [], [loop]
    tiles, part = b.split(loop, size)
    return [tiles], [part]


def _ordered(
    b: ScheduleBuilder, machine: Target, plan: ContractionPlan, batch: list[str], blocks: list[str], rows: list[str],
    steps: Mapping[str, int],
) -> list[str]:  # fmt: skip
    """The loops outside of the tile in the plan's order."""

    def chunked(loop: str, n_chunks: int) -> tuple[str, str]:
        return b.split(loop, -(-known(extent_of(b, loop), steps.get(loop, 1)) // n_chunks))

    def count(loop: str) -> float:
        extent = extent_of(b, loop)
        return 0 if symbols(extent) & inner else estimate([extent])

    inner = {find_loop(b.kernel, n, "contract").loop.sym for n in (*batch, *blocks, *rows)}
    cut = extent_of(b, rows[0]) if rows else None
    is_cut = is_known(cut) or (cut is not None and bool(blocks) and estimate([cut]) > 1 and rows[0] in steps)
    order = plan.order if is_cut else replace(plan.order, n_chunks=1)
    return ordered(order, machine, batch, blocks, rows, chunked, count, is_window=plan.is_window)


def _block_depth(
    b: ScheduleBuilder, machine: Target, plan: ContractionPlan, piece: BoxPiece, blocks: list[str], order: list[str]
) -> int:
    """How many steps of a long reduction are done for all rows before the next ones: part of a panel stays cached.

    0 when the whole panel stays in the second-level cache, too few rows share it, or their sums are large; and on
    machines without threads, which have little memory for sums.
    """
    if plan.order.depth is not None and blocks and order[-1] != blocks[-1]:
        return plan.order.depth
    if not blocks or plan.is_window or order[-1] == blocks[-1] or not machine.has_threads:
        return 0
    extents = [x.extent for x in plan.reduced]
    inside = order[order.index(blocks[-1]) + 1 :]
    step = piece.blocks * piece.tile.vectors * machine.vector_bytes // plan.group
    if not are_known(extents):
        return 0
    count = prod(numbers(extents))
    if count * step <= machine.l2_part_bytes:
        return 0
    tiles = estimate([extent_of(b, n) for n in inside])
    sums = tiles * piece.tile.rows * piece.tile.rows2 * step * plan.group
    if tiles < MIN_SHARING_TILES or sums > machine.l2_part_bytes:
        return 0
    parts = -(-count * step // machine.l2_part_bytes)
    depth = -(-count // parts)
    return depth + -depth % plan.group


def _whole_rows(b: ScheduleBuilder, machine: Target, plan: ContractionPlan, blocks: list[str], order: list[str]) -> int:
    """How many steps of a reduction are done for all lane blocks before the next ones, where one tile has all rows.

    Then an operand that a call brings, the values of a cache by the weights of a few queries, is read once, from
    memory: whole rows of it follow each other, where one block after the other would read a part of every row. 0 where
    the operand is small, there are several tiles of rows, the tile's block is a row, or the sums of all rows, which
    each part reads and writes, leave no room beside them in the first-level cache.
    """
    if blocks != order[-1:] or len(plan.reduced) != 1 or plan.is_window or plan.group > 1:
        return 0
    if len(order) == 1 and pays_threads(plan.work, machine, plan.width):
        return 0  # blocks are shared by threads
    count, columns, along = plan.reduced[0].extent, plan.lanes.extent, plan.reduced[0].sym
    brought = [op for op in plan.operands if op.lane_stride == 1 and not op.is_constant and op.step(along)]
    if not brought or not is_known(count) or not is_known(columns):
        return 0
    row_bytes = columns * machine.vector_bytes // plan.width
    update = nests(b.kernel, plan.acc)[-1].leaf[-1]
    read = [x.buffer for x in loads_of(update)]
    if max(estimate(x.shape) * x.dtype.n_bytes for x in read) <= machine.l2_bytes:  # the heads of a cache together
        return 0
    n_rows = plan.tile.rows * plan.tile.rows2
    return max(machine.l1_bytes // 2 // row_bytes - n_rows, 0)


def _blocked(b: ScheduleBuilder, plan: ContractionPlan, piece: BoxPiece, around: list[str], depth: int) -> None:
    """Sums of all rows of a lane block stay in memory; a part of the reduction walks them through registers.

    At the loop ``around``; without one, at a loop of one iteration around the root's nest.
    """
    if not around:
        top = only_nest(b.kernel, plan.root).loops[0].sym.name
        around = [b.split(top, max(_number_of(b, top), 1))[0]]
    (at,), acc = around, piece.acc
    b.do("compute_at", acc, at, "local")
    nest = nest_with(find_body(b.kernel, at), acc, Update)
    reduced = [piece.reduced[x.sym.name] for x in plan.reduced]
    rest = [x for x in nest.loops if x.sym.name not in reduced]
    walkers = [x.sym.name for x in rest if x.kind is Kind.SERIAL]
    tiled = [x.sym.name for x in rest if x.kind is not Kind.SERIAL]
    cut, steps = cut_by([known(x.extent, 1) for x in plan.reduced], depth)
    parts, part = b.split(reduced[cut], steps)
    inside = [part, *reduced[cut + 1 :]]
    inside[-1], innermost = _grouped(b, plan, inside[-1])
    b.do("reorder", *reduced[:cut], parts, *walkers, *inside, *tiled, *innermost)
    b.do("accumulate", acc, inside[0])


def _rows_copied(b: ScheduleBuilder, machine: Target, name: str, batch: list[str], order: list[str]) -> list[str]:
    """Copy an operand for each batch; without one, once for all threads, before all loops. The loops in their order."""
    if batch:
        attempt(b, partial(b.do, "stage", name, batch[-1], "local"))
        return order
    mark = b.mark()
    around, first = b.split(order[0], max(_number_of(b, order[0]), 1))
    try:
        whole, *_ = b.do("stage", name, around, "global").loops
    except ScheduleError:
        b.back(mark)
        return order
    if pays_threads(estimate(find_place(b.kernel, name, "contract").buffer.shape), machine, 1):
        parallel(b, machine, [whole])
    return [first, *order[1:]]


def _grouped(b: ScheduleBuilder, plan: ContractionPlan, reduced: str) -> tuple[str, list[str]]:
    """The reduction loop outside of the tile, and the one inside of the lanes that is a group of narrow products."""
    if plan.group == 1:
        return reduced, []
    groups, group = b.split(reduced, plan.group)
    b.do("kind", group, "dot")
    return groups, [group]


def _arrange(b: ScheduleBuilder, plan: ContractionPlan, piece: BoxPiece, acc: str, at: str) -> None:
    """The update's nest: serial reduction loops, rows and vectors (the fewer inside: they stay in registers), lanes.

    With a window, its last loop is copied too, below the vectors: neighbours share what it slides over.
    """
    nest = nest_with(find_body(b.kernel, at), acc, Update)
    update = statement_of(nest)
    assert isinstance(update, Update)
    own = set(piece.reduced.values())
    reduced = [x.sym.name for x in nest.loops if x.sym.name in own]
    tiled = [x for x in nest.loops if x.sym.name not in reduced]
    lanes = [x.sym.name for x in tiled if x.kind is Kind.VECTOR]
    along = symbols_at(update.index[-1])
    vectors = [x for x in tiled if x.sym.name not in lanes and x.sym in along]
    rows = [x for x in tiled if x.sym not in along]
    # What the inner of the two loops reads stays in registers while the outer goes on: that should be the fewer.
    n_rows = estimate([most_iterations(x) for x in rows])
    across = [*vectors, *rows] if n_rows < estimate([most_iterations(x) for x in vectors]) else [*rows, *vectors]
    names = [x.sym.name for x in across]
    if plan.is_window:
        stepped = [n for n, x in zip(reduced, plan.reduced, strict=True) if x in plan.stepped]
        slid = [n for n, x in zip(reduced, plan.reduced, strict=True) if x in plan.slid]
        slow = [n for n in reduced if n not in (*stepped, *slid)]
        order = [*slow, *[x.sym.name for x in vectors], *lanes, *stepped, *slid, *[x.sym.name for x in rows]]
        kinds = {**dict.fromkeys(stepped, "step"), **dict.fromkeys(slid, "unroll")}
    else:
        outside, innermost = _grouped(b, plan, reduced[-1])
        order, kinds = [*reduced[:-1], outside, *names, *lanes, *innermost], {}
    for name, kind in kinds.items():
        b.do("kind", name, kind)
    if len(order) > 1:
        b.do("reorder", *order)
