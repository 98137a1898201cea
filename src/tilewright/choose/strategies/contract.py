"""The rule for reductions whose last output axis can be lanes: products of matrices, convolutions, pooling, outer sums.

In: a builder, the reduced buffer and, when the epilogue is fused, the buffer of the stage that reads it. Out: steps.
Not its business: reductions along the contiguous axis (``rows``), packing (``constants``).

1. Write the root nest (the epilogue, or a copy made by ``cache``) as lanes, rows, a second row axis, and the rest.
2. Choose the register tile by modelled cycles (``cost``). 3. Split, reorder; the reduction goes ``compute_at`` the
tile, into registers; its reduction loops go outside of the tile; groups of narrow products go inside of the lanes.
4. One outer loop for the threads.
Run-time extents: full tiles, then tiles of 4 rows, then single rows; full lane blocks, then vectors, the last ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from tilewright.choose.clusters import MAX_STRIDE
from tilewright.choose.cost import MAX_UNROLLED, Box, Operand, Tile, choose_tile, distinct, estimate, pays_threads
from tilewright.choose.strategies.columns import along_reduction, columns_apart
from tilewright.choose.strategies.dots import dot_for
from tilewright.choose.strategies.operands import (
    operands_of,
    own_loops,
    reduced_loops,
    root_terms,
    split_groups,
    update_of,
)
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import (
    find_body,
    may_vectorize,
    n_arithmetic,
    nest_with,
    nests,
    only_nest,
    statement_of,
    vector_width,
    widest_bytes,
)
from tilewright.core.compute import Buffer, Load, Select, Value, symbols_of_value
from tilewright.core.compute import walk as walk_value
from tilewright.core.expr import Dim, Sym, bounds, floordiv, mod, substitute, symbols
from tilewright.target.target import Target
from tilewright.tile.affine import linear, period, remainder
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kind, Loop, Role, Store, Update, walk
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import Builder
from tilewright.tile.schedule.tree import find_loop, fresh, most_iterations

HEAVY_OPERATIONS = 10
RESIDENT = 0.6
TASKS_PER_CORE = 2
PANEL_SHARE = 4
MIN_SHARING_TILES = 4
NO_VECTORS: Mapping[Buffer, int] = MappingProxyType({})
WORK_PER_BYTE = 1.0
"""A byte of an operand costs a core as long as this many operations: what a product of few rows is bound by."""


def min_tasks(machine: Target) -> int:
    """How many iterations a parallel loop should have at least."""
    return TASKS_PER_CORE * machine.n_cores


@dataclass
class Plan:
    """What the rule decided; loops by name."""

    acc: str
    root: str
    lanes: Loop
    rows: Loop | None
    rows2: Loop | None
    below: list[Loop]
    outer: list[Loop]
    reduced: list[Loop]
    stepped: list[Loop]
    slid: list[Loop]
    tile: Tile
    width: int
    is_heavy: bool
    work: float
    panels_first: bool
    n_chunks: int
    is_slice_small: bool
    group: int
    n_apart: int
    guarded: frozenset[Sym]
    operands: tuple[Operand, ...]

    @property
    def is_window(self) -> bool:
        """Are copies of reduction loops inside of the lanes?"""
        return bool(self.stepped or self.slid)


def contract(
    b: Builder,
    machine: Target,
    reduced: str,
    root: str | None,
    *,
    threads: bool = True,
    vectors: Mapping[Buffer, int] = NO_VECTORS,
) -> list[str]:
    """Schedule the reduction ``reduced`` together with the stage ``root`` that reads it (None: alone).

    Returns the outermost loop of every piece. Without ``threads`` all loops stay on the thread that runs them: they
    are inside of what others share. ``vectors`` fixes the width of tiles that read the constants named there.
    """
    if root is None:
        root, reduced = reduced, copied_apart(b, reduced)
    split_groups(b, machine, reduced, root)
    plan = _threaded(plan_contraction(b, machine, reduced, root, vectors), threads=threads)
    outermost: list[str] = []
    if plan.n_apart:
        if attempt(b, lambda: outermost.extend(_pieces(b, machine, plan))):
            return outermost
        plain = plan_contraction(b, machine, reduced, root, vectors, apart=False)
        return _pieces(b, machine, _threaded(plain, threads=threads))
    return _pieces(b, machine, plan)


def copied_apart(b: Builder, reduced: str) -> str:
    """Give a reduction that no stage reads a copy as its root; the name of what is reduced then."""
    b.do("cache", reduced)
    for loop in only_nest(b.kernel, reduced).loops[:-1]:
        if loop.extent == 1:
            b.do("unit", loop.sym.name)
    return cached_name(b, reduced)


def _threaded(plan: Plan, *, threads: bool) -> Plan:
    return plan if threads else replace(plan, work=0.0)


def attempt(b: Builder, action: Callable[[], None]) -> bool:
    """Do ``action``, or nothing at all when one of its steps is not legal."""
    mark = b.mark()
    try:
        action()
    except ScheduleError:
        b.back(mark)
        return False
    return True


def cached_name(b: Builder, root: str) -> str:
    """What ``cache`` called the buffer that ``root`` now copies."""
    leaf = statement_of(only_nest(b.kernel, root))
    assert isinstance(leaf, Store) and isinstance(leaf.value, Load)
    return leaf.value.buffer.name


def plan_contraction(
    b: Builder,
    machine: Target,
    acc: str,
    root: str,
    vectors: Mapping[Buffer, int] = NO_VECTORS,
    *,
    apart: bool = True,
) -> Plan:
    """Roles of the loops and the register tile; with ``apart`` columns behind full vectors may go without.

    ``vectors`` fixes the width of a tile that reads a constant. ``ScheduleError`` when the structure does not fit.
    """
    top = only_nest(b.kernel, root)
    leaf = statement_of(top)
    update = statement_of(nests(b.kernel, acc)[-1])
    if not isinstance(leaf, Store) or not isinstance(update, Update) or not top.loops:
        raise ScheduleError("contract", acc, "not an update by one operation below an assignment")
    lanes = top.loops[-1]
    operands = operands_of(b, acc, root, lanes.sym)
    reduced = reduced_loops(b, acc)
    dot = dot_for(machine, update, operands, reduced)
    if dot is None and not any(_may_be_lanes(op) for op in operands):
        raise ScheduleError("contract", acc, "no operand is contiguous along the last axis")
    if not may_vectorize(top.leaf, lanes.sym, packed=_repeating(b, leaf, lanes.sym)):
        raise ScheduleError("contract", acc, "the epilogue's indices are not affine in the last axis")
    width, wide = vector_width(machine, (*top.leaf, update)), widest_bytes((*top.leaf, update))
    rest = [x for x in top.loops[:-1]]
    free = [x for x in rest if isinstance(lanes.extent, int) or x.sym not in symbols(lanes.extent)]
    rows = [x for x in free if any(op.lane_stride != 0 and op.step(x.sym) == 0 for op in operands)]
    row = rows[-1] if rows else None
    row2 = rows[-2] if len(rows) > 1 else None
    everything = all(op.lane_stride != 0 for op in operands)
    stepped, slid = _copied(reduced, operands, lanes.sym, machine) if everything else ([], [])
    is_plane = not rows and not everything and _is_plane(operands, reduced, lanes)
    if is_plane:
        rows = [x for x in free if any(op.step(x.sym) for op in operands) and not _moves_weights(x, operands)]
        row, row2 = rows[-1] if rows else None, None
        stepped, slid = _taps_of_plane(reduced, machine)
    dot = None if stepped or slid else dot
    unrolled = tuple((x.sym, x.extent) for x in (*stepped, *slid) if isinstance(x.extent, int))
    n_rows, columns = estimate([x.extent for x in rows]), lanes.extent
    n_apart = columns_apart(machine, update, operands, reduced, columns, n_rows, width) if apart else 0
    box = Box(
        lanes.sym,
        columns - n_apart if n_apart and isinstance(columns, int) else _number(lanes),
        _sym(row),
        _number(row),
        _sym(row2),
        _number(row2),
        unrolled,
        operands,
        dot.registers if dot else 1,
        max(wide // machine.vector_bytes, 1),
    )
    fixed = [n for x in walk_value(update.value) if isinstance(x, Load) and (n := vectors.get(x.buffer))]
    tile = choose_tile(box, machine, width, fixed[0] if fixed else None)
    work = estimate([x.extent for x in (*top.loops, *reduced)]) + estimate([x.extent for x in top.loops]) * 4
    work = max(work, _bytes_read(update) * WORK_PER_BYTE)
    heavy = n_arithmetic(leaf.value) > HEAVY_OPERATIONS and tile.rows * tile.rows2 * tile.vectors > 4
    heavy = heavy and not stepped and not slid  # few sums: they stay in registers
    panels = _panels_first(machine, b, acc)
    below = [] if rows or not slid else [x for x in rest if _overlaps(x, reduced, operands)]
    shared = _shared_by_rows(b, acc, root, [x.sym for x in (*rows, *below)[:1]])
    small = shared / estimate([lanes.extent]) * tile.vectors * machine.vector_bytes <= machine.l1_bytes / 2
    if slid and not stepped and not small and not is_plane:
        tile, slid = _in_plane(box, machine, width, tile, reduced, slid)
    cut = _row_chunks if panels else _short_chunks
    chunks = cut(b, machine, acc, rows, lanes, tile, width)
    return Plan(
        acc, root, lanes, row, row2, below, rest, reduced, stepped, slid, tile, width, heavy, work, panels, chunks,
        small, dot.group if dot else 1, n_apart, _guarded(b, acc, root), operands,
    )  # fmt: skip


def _repeating(b: Builder, leaf: Store, lanes: Sym) -> set[Buffer]:
    """Constants that the lanes read again and again: they will be packed as often as a block of lanes reads them."""
    found = [x for x in walk_value(leaf.value) if isinstance(x, Load) and _is_const(b, x)]
    offsets = [(x.buffer, linear(x.buffer, x.index)) for x in found]
    return {buffer for buffer, e in offsets if e is not None and remainder(e, lanes) is not None}


def _guarded(b: Builder, acc: str, root: str) -> frozenset[Sym]:
    """The root's loops that guards of the reduction's terms depend on, as a volume's depth."""
    dims = root_terms(b, acc, root)
    guards = [x.cond for x in walk_value(update_of(b, acc).value) if isinstance(x, Select)]
    used = {s for g in guards for s in symbols_of_value(g)}
    return frozenset(s for own in used for s in symbols(dims.get(own, own)))


def _copied(
    reduced: list[Loop], operands: tuple[Operand, ...], lanes: Sym, machine: Target
) -> tuple[list[Loop], list[Loop]]:
    """Reduction loops of a window that become copies: (each in a block of its own, together in one block).

    The last tap's copies stand together, since neighbouring rows share what they read. With groups, every member of
    the group is another shuffle of the same vector; its copies stand apart, or too many vectors would be held.
    """
    is_grouped = any(op.lane_stride is None and period(op.offset, lanes) is not None for op in operands)
    stepped, slid = (reduced[-1:], reduced[-2:-1]) if is_grouped else ([], reduced[-1:])
    for choice in ((stepped, slid), (stepped, [])):
        sizes = [x.extent for part in choice for x in part]
        if all(isinstance(n, int) for n in sizes) and 1 < estimate(sizes) <= min(machine.max_copies, MAX_UNROLLED):
            return choice
    return [], []


def _may_be_lanes(op: Operand) -> bool:
    """Neighbours, or elements a few apart, which shuffles bring together; a constant is packed."""
    return op.lane_stride in range(1, MAX_STRIDE + 1) or (op.is_constant and op.lane_stride != 0)


def _is_plane(operands: tuple[Operand, ...], reduced: list[Loop], lanes: Loop) -> bool:
    """Is it a window that slides over one image, whose columns are lanes, with a constant weight for each tap?"""
    images = [op for op in operands if op.lane_stride != 0]
    weights = [op for op in operands if op.lane_stride == 0]
    if len(images) != 1 or images[0].lane_stride is None or len(weights) != 1 or not weights[0].is_constant:
        return False
    reach = images[0].step(reduced[-1].sym) * (estimate([reduced[-1].extent]) - 1)
    return all(images[0].step(x.sym) for x in reduced) and 0 < reach < images[0].lane_stride * estimate([lanes.extent])


def _moves_weights(loop: Loop, operands: tuple[Operand, ...]) -> bool:
    return any(op.lane_stride == 0 and op.step(loop.sym) for op in operands)


def _taps_of_plane(reduced: list[Loop], machine: Target) -> tuple[list[Loop], list[Loop]]:
    """Loops of such a window that become copies, of all rows of a tile: (each in a block of its own, together in one).

    A block for each row of taps: with all of them in one, what is read for the last is held from the start.
    """
    for n in (2, 1):
        sizes = [x.extent for x in reduced[-n:]]
        if all(isinstance(x, int) for x in sizes) and 1 < estimate(sizes) <= min(machine.max_copies // 4, MAX_UNROLLED):
            return reduced[-n:-1], reduced[-1:]
    return [], []


def _overlaps(loop: Loop, reduced: list[Loop], operands: tuple[Operand, ...]) -> bool:
    """Does the next iteration read again what taps have read, as the rows of a pool do?"""
    return any(0 < op.step(loop.sym) < op.step(r.sym) * estimate([r.extent]) for op in operands for r in reduced)


def _in_plane(
    box: Box, machine: Target, width: int, tile: Tile, reduced: list[Loop], slid: list[Loop]
) -> tuple[Tile, list[Loop]]:
    """Rows and columns of the result at once, with copies of all taps: what a row of the tile reads serves the others.

    For windows whose rows leave the first-level cache before the next row of the result reads them again. As it was,
    when the tile's sums, the taps' weights and a row of what it reads are more than there are registers.
    """
    taps = [x.extent for x in reduced[-2:]]
    rows = (box.n_rows, box.n_rows2)
    if len(taps) < 2 or box.row2 is None or not all(isinstance(n, int) for n in (*taps, *rows)):
        return tile, slid
    copied = tuple((x.sym, x.extent) for x in reduced[-2:] if isinstance(x.extent, int))
    wide = choose_tile(replace(box, unrolled=copied), machine, width)
    one_row = replace(box, unrolled=copied[1:])
    held = wide.rows * wide.rows2 + estimate(taps) + max(distinct(one_row, op, wide.rows, 1) for op in box.operands)
    return (wide, reduced[-2:]) if wide.rows2 > 1 and held <= machine.n_vector_registers else (tile, slid)


def _shared_by_rows(b: Builder, acc: str, root: str, outermost: list[Sym]) -> float:
    """The most elements of an operand that one iteration of the outermost row loop reads: the rows of a window.

    The next iteration reads most of them again.
    """
    dims, here = root_terms(b, acc, root), dict.fromkeys(outermost, 0)
    most = 0.0
    for x in walk_value(update_of(b, acc).value):
        if isinstance(x, Load):
            n = 1.0
            for i, d in zip(x.index, x.buffer.shape, strict=True):
                lo, hi = (None, None) if isinstance(i, Value) else bounds(substitute(substitute(i, dims), here))
                whole = estimate([d])
                n *= whole if lo is None or hi is None else min(hi - lo + 1, whole)
            most = max(most, n)
    return most


def _row_chunks(b: Builder, machine: Target, acc: str, rows: list[Loop], lanes: Loop, tile: Tile, width: int) -> int:
    """Into how many parts the outermost row loop is cut, so that what the rows read stays in the second-level cache.

    A chunk reads all panels again; it pays when that is less than reading all rows again for every panel.
    """
    update = statement_of(nests(b.kernel, acc)[-1])
    assert isinstance(update, Update)
    loads = [x for x in walk_value(update.value) if isinstance(x, Load)]
    sizes = [(estimate(x.buffer.shape) * x.dtype.n_bytes, _is_const(b, x)) for x in loads]
    row_bytes = max((n for n, fixed in sizes if not fixed), default=0.0)
    panel_bytes = max((n for n, fixed in sizes if fixed), default=0.0)
    if not rows or not isinstance(rows[0].extent, int) or row_bytes <= machine.l2_bytes * RESIDENT:
        return 1
    steps = -(-rows[0].extent // (tile.rows if len(rows) == 1 else 1))
    least = max(-(-int(row_bytes) // int(machine.l2_bytes * RESIDENT)), min_tasks(machine))
    wanted = even_chunks(steps, least, machine.n_cores)
    n_panels = estimate([lanes.extent]) / (tile.vectors * width)
    return wanted if wanted <= steps // 2 and panel_bytes * wanted < 0.7 * row_bytes * n_panels else 1


def _short_chunks(b: Builder, machine: Target, acc: str, rows: list[Loop], lanes: Loop, tile: Tile, width: int) -> int:
    """Into how many parts the only row loop is cut where all panels stay in the second-level cache.

    Results larger than that cache go to memory, and neither they nor what the rows read come from it at the pace of
    the products, if all rows are walked for every panel. A chunk is what stays in the first-level cache.
    """
    update = update_of(b, acc)
    loads = [x for x in walk_value(update.value) if isinstance(x, Load) and not _is_const(b, x)]
    n_rows, n_lanes = rows[0].extent if len(rows) == 1 else None, estimate([lanes.extent])
    if not isinstance(n_rows, int) or not loads or n_lanes <= tile.vectors * width:
        return 1
    steps, times = -(-n_rows // tile.rows), estimate([x.extent for x in own_loops(b, acc)]) / (n_rows * n_lanes)
    read = max(max(estimate(x.buffer.shape) * x.dtype.n_bytes for x in loads) / times, 1.0)
    made = n_rows * n_lanes * update.buffer.dtype.n_bytes
    least = steps // max(int(machine.l1_bytes / 2 / (read / steps)), MIN_SHARING_TILES)
    if read + made <= machine.l2_bytes * RESIDENT or least < min_tasks(machine):
        return 1
    return even_chunks(steps, least, machine.n_cores)


def even_chunks(steps: int, least: int, n_cores: int) -> int:
    """How many chunks of steps, ``least`` or up to twice as many, give the busiest core the fewest steps."""

    def longest(n: int) -> int:
        size = -(-steps // n)
        chunks = -(-steps // size)
        return -(-chunks // n_cores) * size

    return min(range(least, 2 * least + 1), key=longest)


def _number(loop: Loop | None) -> int | None:
    """Iterations of a loop, or the most of them for a part of a split loop; None: known at run time only."""
    if loop is None:
        return 1
    return loop.extent if isinstance(loop.extent, int) else None if loop.sym.hi is None else loop.sym.hi + 1


def _bytes_read(update: Update) -> float:
    """The size of all operands."""
    buffers = {x.buffer for x in walk_value(update.value) if isinstance(x, Load)}
    return sum(estimate(b.shape) * b.dtype.n_bytes for b in buffers)


def _sym(loop: Loop | None) -> Sym | None:
    return None if loop is None else loop.sym


def _panels_first(machine: Target, b: Builder, acc: str) -> bool:
    """Lane blocks outside of rows when the operand that rows share is too large to stay in the second-level cache."""
    update = statement_of(nests(b.kernel, acc)[-1])
    assert isinstance(update, Update)
    size = 0.0
    for x in walk_value(update.value):
        if isinstance(x, Load):
            size = max(size, estimate(x.buffer.shape) * x.dtype.n_bytes) if _is_const(b, x) else size
    return size > machine.l2_bytes / 2


def _is_const(b: Builder, x: Load) -> bool:
    return any(p.buffer is x.buffer and p.role is Role.CONST for p in b.kernel.places)


# --- run-time extents -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """One part of the box: its accumulator, its root's loops by their original names, its tile."""

    acc: str
    loops: dict[str, str]
    tile: Tile
    width: int


_Resize = Callable[[_Piece, int], _Piece]


def _pieces(b: Builder, machine: Target, plan: Plan) -> list[str]:
    """Divide run-time extents into full tiles and rests; every piece gets its own accumulator and its own tile."""
    names = {x.sym.name: x.sym.name for x in (*plan.outer, plan.lanes)}
    pieces = [_Piece(plan.acc, names, plan.tile, plan.width)]
    block = plan.tile.vectors * plan.width
    rest: list[_Piece] = []
    if plan.n_apart:
        pieces[0], *rest = _divide(b, pieces[0], plan.lanes.sym.name, plan.width)
    if not isinstance(plan.lanes.extent, int) and plan.tile.vectors > 1:
        pieces = _divided(b, pieces, plan.lanes.sym.name, [block], _with_lanes)
    if plan.rows is not None and not isinstance(plan.rows.extent, int):
        sizes = [n for n in dict.fromkeys((plan.tile.rows, 4)) if 1 < n <= plan.tile.rows]
        pieces = _divided(b, pieces, plan.rows.sym.name, sizes, _with_rows)
    if plan.rows2 is not None and not isinstance(plan.rows2.extent, int) and plan.tile.rows2 > 1:
        pieces = _divided(b, pieces, plan.rows2.sym.name, [plan.tile.rows2], _with_rows2)
    orders = [_tile(b, machine, plan, piece) for piece in pieces]
    if plan.panels_first:
        _share_panels(b, [order[0] for order in orders])
    for piece in rest:
        _columns(b, machine, plan, piece, pieces[0], orders[0])
    return [order[0] for order in orders]


def _columns(b: Builder, machine: Target, plan: Plan, piece: _Piece, whole: _Piece, order: list[str]) -> None:
    """Columns behind the full vectors, beside them in the loops outside of a tile that both have."""
    loads = [x for x in walk_value(update_of(b, piece.acc).value) if isinstance(x, Load)]
    pairs = zip(loads, plan.operands, strict=True)
    copied = [x.buffer.name for x, op in pairs if op.lane_stride and not op.is_constant]
    shared: list[str] = []
    inside = {x.sym: piece.loops[x.sym.name] for x in plan.outer}
    for name in order:
        loop = next((x for x in plan.outer if name in (n := whole.loops[x.sym.name], f"{n}_o")), None)
        if loop is None or (copied and _is_row(plan, loop)):
            break
        mine = inside.pop(loop.sym)
        if name != whole.loops[loop.sym.name]:
            b.do("split", mine, whole.tile.rows if loop is plan.rows else whole.tile.rows2)
            inside[loop.sym], mine = f"{mine}_i", f"{mine}_o"
        shared.append(mine)
    column = piece.loops[plan.lanes.sym.name]
    batch = [inside[x.sym] for x in plan.outer if x.sym in inside and not _is_row(plan, x)]
    own = [x for x in plan.outer if x.sym in inside and _is_row(plan, x)]
    rows = [inside[x.sym] for x in sorted(own, key=lambda x: x.sym not in plan.guarded)]
    walkers = along_reduction(b, machine, piece.acc, [*shared, *batch], rows, column, plan.width, "".join(copied))
    if pays_threads(plan.work, machine, plan.width):
        parallel(b, machine, walkers[:2])
    for first, second in zip(order, shared, strict=False):
        same_kind = _kind(b, first) is _kind(b, second)
        if not same_kind or not attempt(b, partial(b.do, "merge", first, second)):
            break


def _share_panels(b: Builder, loops: list[str]) -> None:
    """Neighbouring pieces that walk the same lane blocks outermost walk them together, so a panel is read once."""
    first = loops[0]
    for other in loops[1:]:
        mark = b.mark()
        try:
            b.do("merge", first, other)
        except ScheduleError:
            b.back(mark)
            first = other


def _with_lanes(piece: _Piece, size: int) -> _Piece:
    """Full blocks, or (size 1) single vectors, the last one ragged."""
    t = piece.tile
    return _Piece(piece.acc, piece.loops, Tile(t.rows, t.rows2, max(size // piece.width, 1)), piece.width)


def _with_rows(piece: _Piece, size: int) -> _Piece:
    return _Piece(piece.acc, piece.loops, Tile(size, piece.tile.rows2, piece.tile.vectors), piece.width)


def _with_rows2(piece: _Piece, size: int) -> _Piece:
    return _Piece(piece.acc, piece.loops, Tile(piece.tile.rows, size, piece.tile.vectors), piece.width)


def _divided(b: Builder, pieces: list[_Piece], loop: str, sizes: list[int], resize: _Resize) -> list[_Piece]:
    """Each piece becomes: full tiles of every size in turn, then single iterations; not those that never happen."""
    done: list[_Piece] = []
    for piece in pieces:
        rest = piece
        for size in sizes:
            extent = _extent(b, rest.loops[loop])
            if mod(extent, size) == 0:
                done.append(resize(rest, size))
                break
            if floordiv(extent, size) != 0:
                full, rest = _divide(b, rest, loop, size)
                done.append(resize(full, size))
        else:
            done.append(resize(rest, 1))
    return done


def _divide(b: Builder, piece: _Piece, loop: str, size: int) -> tuple[_Piece, _Piece]:
    """Divide a loop of the piece's root nest; the rest reads a fork of the accumulator.

    The nest must start at the divided loop, so it is moved outermost first.
    """
    target = piece.loops[loop]
    order = [target, *(n for n in piece.loops.values() if n != target)]
    if len(order) > 1:
        b.do("reorder", *order)
    rest = {k: fresh(b.kernel, f"{v}_t") for k, v in piece.loops.items()}
    full = {**piece.loops, loop: fresh(b.kernel, f"{target}_f")}
    b.do("divide", target, size)
    forked = fresh(b.kernel, f"{piece.acc}_f")
    b.do("fork", piece.acc, rest[loop])
    return _Piece(piece.acc, full, piece.tile, piece.width), _Piece(forked, rest, piece.tile, piece.width)


# --- the tile -------------------------------------------------------------------------------------------------------


def _extent(b: Builder, loop: str) -> Dim:
    return next(s.loop.extent for s in walk(b.kernel.body) if isinstance(s, For) and s.loop.sym.name == loop)


def _kind(b: Builder, loop: str) -> Kind:
    return find_loop(b.kernel, loop, "contract").loop.kind


def _tile(b: Builder, machine: Target, plan: Plan, piece: _Piece) -> list[str]:
    """Split and order one root nest, and bring its accumulator into the tile; returns the loops outside of the tile."""
    tile, acc = piece.tile, piece.acc
    lane = piece.loops[plan.lanes.sym.name]
    blocks, vectors, lanes = _split_lanes(b, lane, tile.vectors, piece.width)
    outer: list[str] = []
    inner: list[str] = []
    for loop in plan.outer:
        name = piece.loops[loop.sym.name]
        size = tile.rows if loop is plan.rows else tile.rows2 if loop is plan.rows2 else 1
        walker, part = _split_rows(b, name, size)
        outer.extend(walker)
        inner.extend(part)
    pairs = zip(_names(plan, piece), plan.outer, strict=True)
    batch = [n for n, x in pairs if not _is_row(plan, x) and x not in plan.below]
    rows = [n for n in outer if n not in batch]
    order = _order(b, machine, plan, batch, blocks, rows)
    tiled = [*inner, *vectors, lanes]
    if not order:  # the whole is one tile: a loop of one iteration around it
        b.do("split", tiled[0], max(_number_of(b, tiled[0]), 1))
        order, tiled[0] = [f"{tiled[0]}_o"], f"{tiled[0]}_i"
    inner, lanes = tiled[: len(inner)], tiled[-1]
    if len(order) + len(tiled) > 1:
        b.do("reorder", *order, *tiled)
    for name in tiled[:-1]:
        b.do("kind", name, "unroll")
    b.do("kind", lanes, "vector")
    at = order[-1]
    at_blocks, depth = blocks[-1:], _block_depth(b, machine, plan, piece, blocks, order)
    if not depth and not rows:
        at_blocks, depth = order[-2:-1], _whole_rows(b, machine, plan, blocks, order)
    if depth and attempt(b, partial(_blocked, b, plan, acc, at_blocks, depth)):
        pass
    elif plan.is_heavy:
        b.do("cache", acc)
        held = cached_name(b, acc)
        b.do("compute_at", acc, at, "local")
        b.do("compute_at", held, at, "reg")
        _arrange(b, plan, held, at)
    else:
        b.do("compute_at", acc, at, "reg")
        _arrange(b, plan, acc, at)
    if plan.is_heavy:
        for name in inner:
            b.do("kind", name, "serial")
    if pays_threads(plan.work, machine, plan.width):
        parallel(b, machine, order[:2])
    return order


def _names(plan: Plan, piece: _Piece) -> list[str]:
    return [piece.loops[x.sym.name] for x in plan.outer]


def _is_row(plan: Plan, loop: Loop) -> bool:
    return loop is plan.rows or loop is plan.rows2


def _number_of(b: Builder, loop: str) -> int:
    e = _extent(b, loop)
    return e if isinstance(e, int) else 1


def _split_lanes(b: Builder, lane: str, vectors: int, width: int) -> tuple[list[str], list[str], str]:
    """(block loops, vector loops, lane loop) after splitting the lane axis."""
    loop = find_loop(b.kernel, lane, "contract").loop
    n = _number(loop)
    blocks: list[str] = []
    if n is None or n > vectors * width:
        b.do("split", lane, vectors * width)
        blocks, lane = [f"{lane}_o"], f"{lane}_i"
        many = vectors > 1
    else:
        many = n > width
    if not many:
        return blocks, [], lane
    b.do("split", lane, width)
    return blocks, [f"{lane}_o"], f"{lane}_i"


def _split_rows(b: Builder, loop: str, size: int) -> tuple[list[str], list[str]]:
    n = _extent(b, loop)
    if size == 1:
        return [loop], []
    if isinstance(n, int) and n <= size:
        return [], [loop]
    b.do("split", loop, size)
    return [f"{loop}_o"], [f"{loop}_i"]


def _order(b: Builder, machine: Target, plan: Plan, batch: list[str], blocks: list[str], rows: list[str]) -> list[str]:
    """Outer loops: batch; then, with large panels, chunks of rows, lane blocks, rows; else rows, lane blocks, last row.

    Windows: rows, lane blocks; lane blocks first if the rows that a block's window spans stay in the first-level cache.
    When the first has too few iterations for the threads, the loop with the most comes first.
    """
    if plan.is_window:
        order = [*batch, *blocks, *rows] if plan.is_slice_small else [*batch, *rows, *blocks]
    elif plan.n_chunks > 1 and rows and isinstance(_extent(b, rows[0]), int):
        b.do("split", rows[0], -(-_number_of(b, rows[0]) // plan.n_chunks))
        order = [*batch, f"{rows[0]}_o", *blocks, f"{rows[0]}_i", *rows[1:]]
    elif plan.panels_first or len(rows) < 2:
        order = [*batch, *blocks, *rows]
    else:
        order = [*batch, *rows[:-1], *blocks, rows[-1]]
    if order and estimate([_extent(b, order[0])]) < min_tasks(machine):
        free = [n for n in order if not any(s.name in order for s in symbols(_extent(b, n)))]
        widest = max(free, key=lambda n: min(estimate([_extent(b, n)]), min_tasks(machine)))
        order = [widest, *(n for n in order if n != widest)]
    return order


def _block_depth(b: Builder, machine: Target, plan: Plan, piece: _Piece, blocks: list[str], order: list[str]) -> int:
    """How many steps of a long reduction are done for all rows before the next ones: part of a panel stays cached.

    0 when the whole panel stays in the second-level cache, too few rows share it, or their sums are large.
    """
    if not blocks or len(plan.reduced) != 1 or plan.is_window or order[-1] == blocks[-1]:
        return 0
    count = plan.reduced[0].extent
    inside = order[order.index(blocks[-1]) + 1 :]
    step = piece.tile.vectors * machine.vector_bytes // plan.group
    if not isinstance(count, int) or count * step <= machine.l2_bytes / PANEL_SHARE:
        return 0
    tiles = estimate([_extent(b, n) for n in inside])
    sums = tiles * piece.tile.rows * piece.tile.rows2 * step * plan.group
    if tiles < MIN_SHARING_TILES or sums > machine.l2_bytes / PANEL_SHARE:
        return 0
    parts = -(-count * step * PANEL_SHARE // machine.l2_bytes)
    depth = -(-count // parts)
    return depth + -depth % plan.group


def _whole_rows(b: Builder, machine: Target, plan: Plan, blocks: list[str], order: list[str]) -> int:
    """How many steps of a reduction are done for all lane blocks before the next ones, where one tile has all rows.

    Then an operand that a call brings, the values of a cache by the weights of a few queries, is read once, from
    memory: whole rows of it follow each other, where one block after the other would read a part of every row. 0 where
    the operand is small, there are several tiles of rows, or the tile's block is a row.
    """
    if blocks != order[-1:] or len(plan.reduced) != 1 or plan.is_window or plan.group > 1:
        return 0
    if len(order) == 1 and pays_threads(plan.work, machine, plan.width):
        return 0  # blocks are shared by threads
    count, columns, along = plan.reduced[0].extent, plan.lanes.extent, plan.reduced[0].sym
    brought = [op for op in plan.operands if op.lane_stride == 1 and not op.is_constant and op.step(along)]
    if not brought or not isinstance(count, int) or not isinstance(columns, int):
        return 0
    row_bytes = columns * machine.vector_bytes // plan.width
    update = nests(b.kernel, plan.acc)[-1].leaf[-1]
    read = [x.buffer for x in loads_of(update)]
    if max(estimate(x.shape) * x.dtype.n_bytes for x in read) <= machine.l2_bytes:  # the heads of a cache together
        return 0
    return max(machine.l1_bytes // 2 // row_bytes, 1)


def _blocked(b: Builder, plan: Plan, acc: str, around: list[str], depth: int) -> None:
    """Sums of all rows of a lane block stay in memory; a part of the reduction walks them through registers.

    At the loop ``around``; without one, at a loop of one iteration around the root's nest.
    """
    if not around:
        top = only_nest(b.kernel, plan.root).loops[0].sym.name
        b.do("split", top, max(_number_of(b, top), 1))
        around = [f"{top}_o"]
    (at,) = around
    b.do("compute_at", acc, at, "local")
    nest = nest_with(find_body(b.kernel, at), acc, Update)
    reduced = next(x.sym.name for x in nest.loops if _is_copy_of(x, plan.reduced[0]))
    rest = [x for x in nest.loops if x.sym.name != reduced]
    walkers = [x.sym.name for x in rest if x.kind is Kind.SERIAL]
    tiled = [x.sym.name for x in rest if x.kind is not Kind.SERIAL]
    b.do("split", reduced, depth)
    inside, innermost = _grouped(b, plan, f"{reduced}_i")
    b.do("reorder", f"{reduced}_o", *walkers, inside, *tiled, *innermost)
    b.do("accumulate", acc, inside)


def _grouped(b: Builder, plan: Plan, reduced: str) -> tuple[str, list[str]]:
    """The reduction loop outside of the tile, and the one inside of the lanes that is a group of narrow products."""
    if plan.group == 1:
        return reduced, []
    b.do("split", reduced, plan.group)
    b.do("kind", f"{reduced}_i", "dot")
    return f"{reduced}_o", [f"{reduced}_i"]


def _arrange(b: Builder, plan: Plan, acc: str, at: str) -> None:
    """The update's nest: serial reduction loops, rows and vectors (the fewer inside: they stay in registers), lanes.

    With a window, its last loop is copied too, below the vectors: neighbours share what it slides over.
    """
    nest = nest_with(find_body(b.kernel, at), acc, Update)
    update = statement_of(nest)
    assert isinstance(update, Update)
    reduced = [x.sym.name for x in nest.loops if any(_is_copy_of(x, r) for r in plan.reduced)]
    tiled = [x for x in nest.loops if x.sym.name not in reduced]
    lanes = [x.sym.name for x in tiled if x.kind is Kind.VECTOR]
    along = symbols(update.index[-1]) if not isinstance(update.index[-1], Value) else frozenset()
    vectors = [x for x in tiled if x.sym.name not in lanes and x.sym in along]
    rows = [x for x in tiled if x.sym not in along]
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


def _is_copy_of(x: Loop, reduced: Loop) -> bool:
    """Is ``x`` a reduction loop or a copy of it (``fork`` gives the suffix)?"""
    return x.sym.name == reduced.sym.name or x.sym.name.startswith(f"{reduced.sym.name}_f")
