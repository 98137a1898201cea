"""Roles of a reduction's loops and its register tile: what the rule ``contract`` decides before it writes steps.

In: a builder, the reduced buffer and the stage that reads it. Out: a ``ContractionPlan``.
Not its business: writing steps (``contract``, ``contract_tile``), the cost of a tile (``choose.cost.tile``).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from math import inf
from types import MappingProxyType

from tilewright.choose.cost.nest import CallSizes
from tilewright.choose.cost.operations import guard_of, joining, n_links
from tilewright.choose.cost.sketch import Contraction
from tilewright.choose.cost.tile import (
    FUNCTION_OPERATIONS,
    WORK_PER_BYTE,
    Box,
    Operand,
    Tile,
    alike_tiles,
    estimate,
    held,
    pays_threads,
    step_cycles,
    tiles_of,
)
from tilewright.choose.strategies.columns import columns_apart
from tilewright.choose.strategies.contract_caches import (
    is_constant,
    panels_first,
    row_chunks,
    shared_by_rows,
    short_chunks,
)
from tilewright.choose.strategies.contract_copies import order_with_copies
from tilewright.choose.strategies.contract_space import (
    Arrange,
    Order,
    Outside,
    TileSpace,
    access,
    access_at,
    cheapest_of,
    longer_runs,
    whole_or_in_chunks,
)
from tilewright.choose.strategies.contract_windows import (
    copied_loops,
    in_plane,
    moves_weights,
    overlaps,
    slides_over_plane,
    taps_of_plane,
)
from tilewright.choose.strategies.dots import dot_for
from tilewright.choose.strategies.operands import operands_of, reduced_loops, root_terms, update_of
from tilewright.choose.strategies.threads import min_tasks
from tilewright.choose.strategies.view import (
    may_vectorize,
    n_arithmetic,
    nests,
    only_nest,
    statement_of,
    vector_width,
    widest_bytes,
)
from tilewright.core.compute import Binary, Buffer, Load, Select, loads, symbols_of_value
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import are_known, divisor, is_known, known
from tilewright.core.estimates import DOUBT, SHUFFLED_STRIDE
from tilewright.core.expr import Sym, symbols
from tilewright.core.indices import chosen
from tilewright.target.dots import Dot
from tilewright.target.target import Target
from tilewright.tile.affine import linear, remainder
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Role, Store, Update
from tilewright.tile.schedule import ScheduleBuilder

NO_VECTORS: Mapping[Buffer, int] = MappingProxyType({})
MOST_RESTS = 5
"""Sizes of tiles for the rows that full ones leave: each is code of its own."""


@dataclass
class ContractionPlan:
    """What the rule decided; loops by name."""

    acc: str
    root: str
    lanes: Loop
    rows: Loop | None
    rows2: Loop | None
    box: Box
    below: list[Loop]
    outer: list[Loop]
    reduced: list[Loop]
    stepped: list[Loop]
    slid: list[Loop]
    tile: Tile
    width: int
    is_heavy: bool
    work: float
    order: Order
    group: int
    n_apart: int
    guarded: frozenset[Sym]
    operands: tuple[Operand, ...]
    constants: tuple[Buffer, ...]
    panels_copied: tuple[str, ...]
    rows_copied: tuple[str, ...]

    @property
    def is_window(self) -> bool:
        """Are copies of reduction loops inside of the lanes?"""
        return bool(self.stepped or self.slid)


def plan_contraction(
    b: ScheduleBuilder,
    machine: Target,
    acc: str,
    root: str,
    vectors: Mapping[Buffer, int] = NO_VECTORS,
    *,
    arrange: Arrange | None = None,
    threads: bool = True,
    apart: bool = True,
) -> ContractionPlan:
    """Roles of the loops, the register tile, the order; with ``apart`` columns behind full vectors may go without.

    ``vectors`` fixes the width of a tile that reads a constant; ``arrange`` may take another tile and order than the
    rules. Without ``threads`` there is no work for them. ``ScheduleError`` when the structure does not fit.
    """
    top = only_nest(b.kernel, root)
    leaf = statement_of(top)
    update = statement_of(nests(b.kernel, acc)[-1])
    if not isinstance(leaf, Store) or not isinstance(update, Update) or not top.loops:
        raise ScheduleError("contract", acc, "not an update by one operation below an assignment")
    machine, lanes = machine.holding(update.buffer.dtype), top.loops[-1]
    operands = operands_of(b, acc, root, lanes.sym)
    reduced = _reduced(b, acc)
    dot = dot_for(machine, update, operands, reduced)
    if dot is None and not any(_may_be_lanes(op) for op in operands):
        raise ScheduleError("contract", acc, "no operand is contiguous along the last axis")
    if not may_vectorize(top.leaf, lanes.sym, packed=_repeating(b, leaf, lanes.sym)):
        raise ScheduleError("contract", acc, "the epilogue's indices are not affine in the last axis")
    body = (*top.leaf, update)
    # Sums of a dot product fill vectors. Wider numbers of the epilogue, an f64 scale, take several: they are few.
    width, wide = vector_width(machine, body if dot is None else (update,)), widest_bytes(body)
    rest = list(top.loops[:-1])
    free = [x for x in rest if is_known(lanes.extent) or x.sym not in symbols(lanes.extent)]
    # A loop that does not move an operand of the lanes is a row: a tile of rows reads that operand's vectors once.
    rows = [x for x in free if any(op.lane_stride != 0 and op.step(x.sym) == 0 for op in operands)]
    row, row2 = rows[-1] if rows else None, rows[-2] if len(rows) > 1 else None
    everything = all(op.lane_stride != 0 for op in operands)
    stepped, slid = copied_loops(reduced, operands, lanes.sym, machine) if everything else ([], [])
    is_plane = not rows and not everything and slides_over_plane(operands, reduced, lanes)
    if is_plane:
        # Every loop moves the lanes' operands, but windows of neighbouring rows overlap: a tile takes the plane's rows.
        rows = [x for x in free if any(op.step(x.sym) for op in operands) and not moves_weights(x, operands)]
        row, row2 = rows[-1] if rows else None, None
        stepped, slid = taps_of_plane(reduced, machine)
    dot = None if stepped or slid else dot
    unrolled = tuple((x.sym, x.extent) for x in (*stepped, *slid) if is_known(x.extent))
    n_rows, columns = estimate([x.extent for x in rows]), lanes.extent
    n_apart = columns_apart(machine, update, operands, reduced, columns, n_rows, width) if apart else 0
    n_lanes = columns - n_apart if n_apart and is_known(columns) else known_iterations(lanes)
    box = Box(
        lanes.sym, n_lanes, _sym(row), known_iterations(row), _sym(row2), known_iterations(row2), unrolled, operands,
        dot.registers if dot else 1, max(wide // machine.vector_bytes, 1), dot.instructions - 1 if dot else 0,
        1 if row is None else divisor(row.extent),
    )  # fmt: skip
    fixed = [n for x in walk_value(update.value) if isinstance(x, Load) and (n := vectors.get(x.buffer))]
    tile, *alike = alike_tiles(box, machine, width, fixed[0] if fixed else None)
    work = _work(top.loops, reduced, update) if threads else 0.0
    panels = panels_first(machine, b, acc)
    below = [] if rows or not slid else [x for x in rest if overlaps(x, reduced, operands)]
    shared = shared_by_rows(b, acc, root, [x.sym for x in (*rows, *below)[:1]])
    small = shared / estimate([lanes.extent]) * tile.vectors * machine.vector_bytes <= machine.l1_bytes / 2
    if slid and not stepped and not small and not is_plane:
        tile, slid = in_plane(box, machine, width, tile, reduced, slid)
    cut = partial(row_chunks if panels else short_chunks, b, machine, acc, rows, lanes)
    order = Order(small) if stepped or slid else Order(panels, cut(tile, width))
    # A search may only arrange what no rule above has built upon, and a size that only a call knows has no price.
    is_free = not (fixed or n_apart or is_plane) and are_known([x.extent for x in (*rest, lanes, *reduced)])
    # Machines without threads have little memory for copies.
    is_plain = is_free and machine.has_threads and dot is None and not (stepped or slid)
    brought = _brought(b, update, operands) if is_plain else []
    copied: tuple[int, ...] = ()
    pairs = list(enumerate(zip(loads(update.value), operands, strict=True)))
    tiles = [(tile, order), *((t, Order(panels, cut(t, width))) for t in alike if is_plain)]
    is_open = is_plain and (bool(alike) or _size(leaf.buffer) > machine.l2_bytes)
    if is_free and (arrange is not None or brought or order.has_panels_again or is_open):
        walked = [x.sym for x in (row, row2, *below) if x is not None]
        own = {p.buffer for p in b.kernel.places if p.role is Role.TMP}
        space = TileSpace(
            _in_numbers(
                machine, update, leaf, rest, lanes, row, row2, reduced, (*stepped, *slid), operands, dot, width, own
            ),
            Outside(
                tuple(x.sym for x in rest if x.sym not in walked),
                tuple(x.sym for x in rest if x.sym in walked),
                bool(stepped or slid), pays_threads(work, machine, width),
            ),
            tuple(tiles_of(box, machine, width)),
        )  # fmt: skip
        turned = [k for k, (x, op) in pairs if x.buffer in own and op.lane_stride == 1]
        tile, order, copied = _arranged(space, arrange, brought, turned, tiles, machine)
    heavy = n_arithmetic(leaf.value) > FUNCTION_OPERATIONS and not stepped and not slid
    heavy = heavy and tile.rows * tile.rows2 * tile.vectors > machine.partial_sums  # few sums stay in registers
    return ContractionPlan(
        acc, root, lanes, row, row2, box, below, rest, reduced, stepped, slid, tile, width, heavy, work, order,
        dot.group if dot else 1, n_apart, _guarded(b, acc, root), operands,
        tuple(x.buffer for x in loads(update.value) if is_constant(b, x)),
        tuple(x.buffer.name for k, (x, op) in pairs if k in copied and op.lane_stride),
        tuple(x.buffer.name for k, (x, op) in pairs if k in copied and not op.lane_stride),
    )  # fmt: skip


def _reduced(b: ScheduleBuilder, acc: str) -> list[Loop]:
    """The loops of a sum; ``ScheduleError`` where there are none."""
    if reduced := reduced_loops(b, acc):
        return reduced
    raise ScheduleError("contract", acc, "a sum of one term has no loop to keep it in registers for")


def _arranged(
    space: TileSpace,
    arrange: Arrange | None,
    brought: Sequence[int],
    turned: Sequence[int],
    tiles: Sequence[tuple[Tile, Order]],
    machine: Target,
) -> tuple[Tile, Order, tuple[int, ...]]:
    """The tile and the order that ``arrange`` takes; else the cheapest of the rules' ``tiles``, with copies of
    ``brought`` operands, or with results in longer runs.

    ``turned`` operands are copies already.
    """
    tile, order = tiles[0]
    if not space.of.n_steps:  # a sum without terms reads nothing, and has no price
        return tile, order, ()
    taken = None if arrange is None else arrange(space)
    if taken is not None:
        return taken.tile, taken.order, ()
    tiles = [(t, whole_or_in_chunks(space, t, o, machine) if o.has_panels_again else o) for t, o in tiles]
    if not (brought and turned):  # an order that fills a turned copy by panels has no price there
        tiles = [(t, longer_runs(space, t, o, machine)) for t, o in tiles]
    tile, order = cheapest_of(space, tiles, machine)
    if not brought:
        return tile, order, ()
    found = order_with_copies(space, brought, turned, tile, order, machine)
    return tile, found.order, found.copied


def _brought(b: ScheduleBuilder, update: Update, operands: Sequence[Operand]) -> list[int]:
    """The operands that a call brings, each once, at places that loops decide: neighbours along the lanes, or the same
    for all of them."""
    inputs = {p.buffer for p in b.kernel.places if p.role is Role.IN}
    read, value = list(loads(update.value)), update.value
    # A guarded element may lie outside of its buffer, where a copy would read it all the same.
    is_product = isinstance(value, Binary) and value.op == "mul" and {value.a, value.b} == set(read)
    if not is_product:
        return []
    names = [x.buffer for x in read]
    return [
        k
        for k, (x, op) in enumerate(zip(read, operands, strict=True))
        if x.buffer in inputs and op.lane_stride in (0, 1) and names.count(x.buffer) == 1 and not chosen(x.index)
    ]


def _in_numbers(
    machine: Target,
    update: Update,
    leaf: Store,
    outer: Sequence[Loop],
    lanes: Loop,
    row: Loop | None,
    row2: Loop | None,
    reduced: Sequence[Loop],
    unrolled: Sequence[Loop],
    operands: Sequence[Operand],
    dot: Dot | None,
    width: int,
    copies: Container[Buffer],
) -> Contraction:
    """What a sketch is made of, where all sizes are known; ``copies`` will be laid in panels for the lanes."""
    extents = {x.sym: known(x.extent, 1) for x in (*outer, lanes, *reduced)}
    read = [x for x in loads(leaf.value) if x.buffer is not update.buffer]
    pairs = zip(loads(update.value), operands, strict=True)
    is_sum = update.op == "add" and machine.has_fma and update.buffer.dtype.is_float
    is_product = dot is not None or (is_sum and isinstance(update.value, Binary) and update.value.op == "mul")
    term = joining(update.op, update.buffer.dtype, machine, is_product=is_product)
    # A product is one instruction with its sum; any other term is computed first.
    if not is_product:
        term += [("simple", float(n_arithmetic(update.value)))]
    return Contraction(
        {x.sym: extents[x.sym] for x in outer},
        _sym(row),
        _sym(row2),
        lanes.sym,
        extents[lanes.sym],
        tuple((x.sym, extents[x.sym]) for x in reduced if x not in unrolled),
        tuple((x.sym, extents[x.sym]) for x in unrolled),
        tuple(
            access_at(
                x.buffer, op.offset, extents, is_packed=op.is_constant or (x.buffer in copies and op.lane_stride == 1)
            )
            for x, op in pairs
        ),
        (
            access(leaf.buffer, leaf.index, extents, is_write=True),
            *(access(x.buffer, x.index, extents) for x in read),
        ),
        float(n_arithmetic(leaf.value)),
        width,
        dot.group if dot else 1,
        dot.registers if dot else 1,
        tuple(term),
        n_links(update.op, update.buffer.dtype),
        _inside(update, (*outer, lanes, *reduced)),
    )


def _inside(update: Update, loops: Sequence[Loop]) -> float:
    """The part of the terms that guards let through."""
    guard = guard_of(update)
    return 1.0 if guard is None else CallSizes({}).share(guard, {x.sym: x.extent for x in loops})


def _repeating(b: ScheduleBuilder, leaf: Store, lanes: Sym) -> set[Buffer]:
    """Constants that the lanes read again and again: they will be packed as often as a block of lanes reads them."""
    found = [x for x in walk_value(leaf.value) if isinstance(x, Load) and is_constant(b, x)]
    offsets = [(x.buffer, linear(x.buffer, x.index)) for x in found]
    return {buffer for buffer, e in offsets if e is not None and remainder(e, lanes) is not None}


def _guarded(b: ScheduleBuilder, acc: str, root: str) -> frozenset[Sym]:
    """The root's loops that guards of the reduction's terms depend on, as a volume's depth."""
    dims = root_terms(b, acc, root)
    guards = [x.cond for x in walk_value(update_of(b, acc).value) if isinstance(x, Select)]
    used = {s for g in guards for s in symbols_of_value(g)}
    return frozenset(s for own in used for s in symbols(dims.get(own, own)))


def _may_be_lanes(op: Operand) -> bool:
    """Neighbours, or elements a few apart, which shuffles bring together; a constant is packed."""
    return op.lane_stride in range(1, SHUFFLED_STRIDE + 1) or (op.is_constant and op.lane_stride != 0)


def known_iterations(loop: Loop | None) -> int | None:
    """Iterations of a loop, or the most of them for a part of a split loop; None: known at run time only."""
    if loop is None:
        return 1
    most = None if loop.sym.hi is None else loop.sym.hi + 1
    return known(loop.extent, most)


def blocks_at_once(plan: ContractionPlan, machine: Target, rows: int) -> int:
    """How many blocks of lanes a tile of ``rows`` rows takes at once: as many as make a step of one cheapest.

    The sums of few rows would wait for each other, and every block would read the rows again. Of a constant only, whose
    blocks lie as they do for all other tiles. Where these walk blocks outside of rows, all tiles walk a group of blocks
    before the next one: the second-level cache has to keep it, and threads share groups.
    """
    vectors = plan.tile.vectors
    n, ragged = divmod(known(plan.lanes.extent, 1), vectors * plan.width)
    if not plan.constants or ragged or plan.is_window or plan.n_apart:
        return 1
    most = n
    if plan.order.panels_first:
        n_bytes = max(estimate(x.shape) * x.dtype.n_bytes for x in plan.constants) / n
        most = min(int(machine.l2_part_bytes // n_bytes), n // min_tasks(machine))
    fits = [
        k
        for k in range(1, min(most, machine.n_vector_registers) + 1)
        if n % k == 0 and held(rows * plan.tile.rows2, k * vectors) <= machine.n_vector_registers
    ]
    return min(fits, key=lambda k: step_cycles(plan.box, machine, rows, plan.tile.rows2, k * vectors) / k, default=1)


def row_sizes(plan: ContractionPlan, machine: Target) -> list[int]:
    """Rows of tiles for a run-time number of them: full ones, then those for the rows that are left, the most first.

    Of few rows sums wait for each other, and every tile reads the other operand again. So there are as few sizes as
    leave no rest that takes longer than in a tile of its own, by more than the model can tell; or ``MOST_RESTS``, of
    which the worst rest suffers least. The last, of single rows, goes without saying.
    """

    def own(rows: int) -> float:
        blocks = blocks_at_once(plan, machine, rows)
        return step_cycles(plan.box, machine, rows, plan.tile.rows2, blocks * plan.tile.vectors) / blocks

    return [plan.tile.rows, *_rests(tuple(map(own, range(1, plan.tile.rows))))]


@lru_cache(maxsize=256)
def _rests(cycles: tuple[float, ...]) -> tuple[int, ...]:
    """Rows of the tiles for rests, where one of ``n`` rows takes ``cycles[n - 1]``.

    Kept, because the tries grow with the rows to the power of ``MOST_RESTS - 1``, and models have many equal products.
    """
    sizes: tuple[int, ...] = ()
    for n in range(min(MOST_RESTS, len(cycles))):
        least = (inf, inf)
        for x in combinations(range(len(cycles), 1, -1), n):
            over = _over_own(cycles, (*x, 1), least[0])
            if over is not None and over < least:
                sizes, least = x, over
        if least[0] * (1 - DOUBT) <= 1:
            break
    return sizes


def _over_own(cycles: Sequence[float], sizes: Sequence[int], most: float) -> tuple[float, float] | None:
    """Of all rests, the time of the tiles that do it, the largest first, over that of a tile of its own.

    The greatest of these and their sum; None where one is over ``most``: so are most of the tries, by an early rest.
    """
    done, found = [0.0], list[float]()
    at = len(sizes) - 1
    for rows, own in enumerate(cycles, 1):
        if at and sizes[at - 1] <= rows:
            at -= 1
        done.append(cycles[sizes[at] - 1] + done[rows - sizes[at]])
        found.append(done[rows] / own)
        if found[-1] > most:
            return None
    return max(found), sum(found)


def _work(made: Sequence[Loop], reduced: Sequence[Loop], update: Update) -> float:
    """Element operations that threads may share, by arithmetic or by memory, whichever takes longer: few sums over many
    weights wait for memory."""
    n_results = estimate([x.extent for x in made])
    return max(n_results * (estimate([x.extent for x in reduced]) + 4), _bytes_read(update) * WORK_PER_BYTE)


def _bytes_read(update: Update) -> float:
    """The size of all operands."""
    return sum(map(_size, dict.fromkeys(x.buffer for x in walk_value(update.value) if isinstance(x, Load))))


def _size(buffer: Buffer) -> float:
    return estimate(buffer.shape) * buffer.dtype.n_bytes


def _sym(loop: Loop | None) -> Sym | None:
    return None if loop is None else loop.sym
