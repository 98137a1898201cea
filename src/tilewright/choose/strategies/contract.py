"""The rule for reductions whose last output axis can be lanes: products of matrices, convolutions, pooling, outer sums.

In: a builder, the reduced buffer and, when the epilogue is fused, the buffer of the stage that reads it. Out: steps.
Not its business: reductions along the contiguous axis (``rows``), packing (``constants``).

1. Write the root nest (the epilogue, or a copy made by ``cache``) as lanes, rows, a second row axis, and the rest.
2. Choose the register tile by modelled cycles (``cost``). 3. Split, reorder; the reduction goes ``compute_at`` the
tile, into registers; its reduction loops go outside of the tile; groups of narrow products go inside of the lanes.
4. One outer loop for the threads.
Run-time extents: full tiles of rows, then one of the few rows that are left; full lane blocks, then vectors, the last
ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from tilewright.choose.cost.tile import Tile, pays_threads
from tilewright.choose.strategies.columns import along_reduction
from tilewright.choose.strategies.contract_plan import (
    NO_VECTORS,
    ContractionPlan,
    blocks_at_once,
    plan_contraction,
    row_sizes,
)
from tilewright.choose.strategies.contract_space import Arrange
from tilewright.choose.strategies.contract_tile import BoxPiece, TiledOrder, extent_of, is_row, tile_piece
from tilewright.choose.strategies.operands import split_groups, update_of
from tilewright.choose.strategies.steps import attempt, copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.core.compute import Buffer, Load
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.expr import floordiv, mod
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place, home_of, writers

_Resize = Callable[[BoxPiece, int], BoxPiece]


def contract(
    b: ScheduleBuilder,
    machine: Target,
    reduced: str,
    root: str | None,
    *,
    threads: bool = True,
    vectors: Mapping[Buffer, int] = NO_VECTORS,
    arrange: Arrange | None = None,
) -> list[str]:
    """Schedule the reduction ``reduced`` together with the stage ``root`` that reads it (None: alone).

    Returns the outermost loop of every piece. Without ``threads`` all loops stay on the thread that runs them: they
    are inside of what others share. ``vectors`` fixes the width of tiles that read the constants named there;
    ``arrange`` may take another tile and order than the rules.
    """
    if root is None:
        root, reduced = reduced, copied_apart(b, reduced)
    split_groups(b, machine, reduced, root)
    plan = plan_contraction(b, machine, reduced, root, vectors, arrange=arrange, threads=threads)
    outermost: list[str] = []
    if plan.n_apart:
        if attempt(b, lambda: outermost.extend(_pieces(b, machine, plan))):
            return outermost
        return _pieces(b, machine, plan_contraction(b, machine, reduced, root, vectors, threads=threads, apart=False))
    return _pieces(b, machine, plan)


def _pieces(b: ScheduleBuilder, machine: Target, plan: ContractionPlan) -> list[str]:
    """Divide run-time extents into full tiles and rests; every piece gets its own accumulator and its own tile."""
    names = {x.sym.name: x.sym.name for x in (*plan.outer, plan.lanes)}
    reduced = {x.sym.name: x.sym.name for x in plan.reduced}
    pieces = [BoxPiece(plan.acc, names, reduced, plan.tile, plan.width)]
    block = plan.tile.vectors * plan.width
    rest: list[BoxPiece] = []
    if plan.n_apart:
        pieces[0], *rest = _divide(b, pieces[0], plan.lanes.sym.name, plan.width)
    if not is_known(plan.lanes.extent) and plan.tile.vectors > 1:
        pieces = divided(b, pieces, plan.lanes.sym.name, [block], _with_lanes)
    if plan.rows is not None and not is_known(plan.rows.extent):
        few = partial(_with_rows, plan, machine)
        pieces = divided(b, pieces, plan.rows.sym.name, row_sizes(plan, machine), few)
    if plan.rows2 is not None and not is_known(plan.rows2.extent) and plan.tile.rows2 > 1:
        pieces = divided(b, pieces, plan.rows2.sym.name, [plan.tile.rows2], _with_rows2)
    if plan.order.panels_first:
        pieces = _in_groups(pieces)
    orders = [tile_piece(b, machine, plan, piece) for piece in pieces]
    if plan.order.panels_first:
        _share_panels(b, [order.loops[0] for order in orders])
    for piece in rest:
        _columns(b, machine, plan, piece, pieces[0], orders[0])
    return [order.loops[0] for order in orders]


def _in_groups(pieces: list[BoxPiece]) -> list[BoxPiece]:
    """Every piece with blocks in groups of as many as one piece takes at once at the most."""
    group = max(piece.blocks for piece in pieces)
    most = [max(k for k in range(1, piece.blocks + 1) if group % k == 0) for piece in pieces]
    return [replace(piece, blocks=k, group=group) for piece, k in zip(pieces, most, strict=True)]


def _columns(
    b: ScheduleBuilder, machine: Target, plan: ContractionPlan, piece: BoxPiece, whole: BoxPiece, order: TiledOrder
) -> None:
    """Columns behind the full vectors, beside them in the loops outside of a tile that both have."""
    loads = [x for x in walk_value(update_of(b, piece.acc).value) if isinstance(x, Load)]
    pairs = zip(loads, plan.operands, strict=True)
    copied = [x.buffer.name for x, op in pairs if op.lane_stride and not op.is_constant]
    # An operand that is copied for each column has the rows inside of the columns, so these can't be shared then.
    shared: list[str] = []
    inside = {x.sym: piece.loops[x.sym.name] for x in plan.outer}
    for name in order.loops:
        walked = order.of.get(name)
        loop = next((x for x in plan.outer if whole.loops[x.sym.name] == walked), None)
        if loop is None or (copied and is_row(plan, loop)):
            break
        mine = inside.pop(loop.sym)
        if name != walked:
            mine, inside[loop.sym] = b.split(mine, whole.tile.rows if loop is plan.rows else whole.tile.rows2)
        shared.append(mine)
    column = piece.loops[plan.lanes.sym.name]
    batch = [inside[x.sym] for x in plan.outer if x.sym in inside and not is_row(plan, x)]
    own = [x for x in plan.outer if x.sym in inside and is_row(plan, x)]
    rows = [inside[x.sym] for x in sorted(own, key=lambda x: x.sym not in plan.guarded)]
    walkers = along_reduction(b, machine, piece.acc, [*shared, *batch], rows, column, plan.width, "".join(copied))
    if pays_threads(plan.work, machine, plan.width):
        parallel(b, machine, walkers[:2])
    # Outermost first: a loop can only be merged where those around it are.
    for first, second in zip(order.loops, shared, strict=False):
        same_kind = _kind(b, first) is _kind(b, second)
        if not same_kind or not attempt(b, partial(b.do, "merge", first, second)):
            break


def _share_panels(b: ScheduleBuilder, loops: list[str]) -> None:
    """Neighbouring pieces that walk the same lane blocks outermost walk them together, so a panel is read once."""
    first = loops[0]
    for other in loops[1:]:
        mark = b.mark()
        try:
            b.do("merge", first, other)
        except ScheduleError:
            b.back(mark)
            first = other


def _with_lanes(piece: BoxPiece, size: int) -> BoxPiece:
    """Full blocks, or (size 1) single vectors, the last one ragged."""
    t = piece.tile
    return replace(piece, tile=Tile(t.rows, t.rows2, max(size // piece.width, 1)))


def _with_rows(plan: ContractionPlan, machine: Target, piece: BoxPiece, size: int) -> BoxPiece:
    """A tile of so many rows; of few rows for several blocks of lanes, where their chains would be waited for."""
    tile = Tile(size, piece.tile.rows2, piece.tile.vectors)
    return replace(piece, tile=tile, blocks=blocks_at_once(plan, machine, size))


def _with_rows2(piece: BoxPiece, size: int) -> BoxPiece:
    return replace(piece, tile=Tile(piece.tile.rows, size, piece.tile.vectors))


def divided(b: ScheduleBuilder, pieces: list[BoxPiece], loop: str, sizes: list[int], resize: _Resize) -> list[BoxPiece]:
    """Each piece becomes: full tiles of every size in turn, then what is left; not those that never happen.

    ``resize`` gives a piece the tile of its size, of which what is left has 1.
    """
    done: list[BoxPiece] = []
    for piece in pieces:
        rest = piece
        for size in sizes:
            extent = extent_of(b, rest.loops[loop])
            if mod(extent, size) == 0:
                done.append(resize(rest, size))
                break
            if floordiv(extent, size) != 0:
                full, rest = _divide(b, rest, loop, size)
                done.append(resize(full, size))
        else:
            done.append(resize(rest, 1))
    return done


def _divide(b: ScheduleBuilder, piece: BoxPiece, loop: str, size: int) -> tuple[BoxPiece, BoxPiece]:
    """Divide a loop of the piece's root nest; the rest reads a fork of the accumulator.

    The nest must start at the divided loop, so it is moved outermost first.
    """
    target = piece.loops[loop]
    order = [target, *(n for n in piece.loops.values() if n != target)]
    if len(order) > 1:
        b.do("reorder", *order)
    full, *copies = b.do("divide", target, size).loops
    copy_of = dict(zip(order, copies, strict=True))
    rest = {k: copy_of[v] for k, v in piece.loops.items()}
    acc = find_place(b.kernel, piece.acc, "contract").buffer
    sums = loops_of(tuple(writers(home_of(b.kernel.body, acc), acc)))
    forked = b.do("fork", piece.acc, rest[loop])
    copy_of = dict(zip([x.sym.name for x in sums], forked.loops, strict=True))
    return (
        replace(piece, loops={**piece.loops, loop: full}),
        replace(piece, acc=forked.buffer, loops=rest, reduced={k: copy_of[v] for k, v in piece.reduced.items()}),
    )


def _kind(b: ScheduleBuilder, loop: str) -> Kind:
    return find_loop(b.kernel, loop, "contract").loop.kind
