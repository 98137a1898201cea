"""Rules for hints while a tile's sums are made: at what the epilogue reads, at the next tile's operand, at later ones;
at the lines that transposed tiles write; and at the next page of what passes through vectors once.

In: a builder whose stages all have their loops. Out: steps. Not its business: panels of constants (``constants``).

A tile reads its part of a residual once, a few lines of each of its rows, which no hardware prefetcher foresees; when
the epilogue comes to them, the sums wait in registers and nothing else can be done. Asked for all at once they would
hold up the reduction's own loads, so its steps ask for one line each. Likewise the rows that the next tile multiplies,
where they come from memory. And where each step of the reduction reads another page, as with weights times planes, a
step asks for what one so much later reads that it is there by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil, prod

from tilewright.choose.cost.ahead import is_busy, steps_ahead
from tilewright.choose.cost.tile import estimate
from tilewright.choose.strategies.steps import attempt
from tilewright.core.compute import Buffer, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.affine import stride_along
from tilewright.tile.ir import For, Kind, Loop, Prefetch, Role, Space, Stmt, Store, Update, walk, written
from tilewright.tile.rewrite import Body, loads_of, loops_of, symbols_of_index
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import enclosing, find_loop, most_iterations

MIN_STEPS = 16
"""Steps of a reduction that takes long: lines come from memory meanwhile, and a test before it costs little."""


def hint_operands(b: ScheduleBuilder, machine: Target) -> None:
    """Tiles of long reductions ask for operands that no near cache holds.

    Every tile for what its epilogue reads of operands beyond the first-level cache; tiles in a row for what the next
    one multiplies of operands so large that they come from memory; steps for what later steps read in other pages of
    operands beyond the second-level cache.
    """
    if not machine.has_prefetch:
        return
    for inner, buffer in list(_read_next(b, machine)):
        _hint(b, machine, inner, buffer, machine.llc_bytes // 8)
    for inner, buffer in list(_read_behind(b)):
        _hint(b, machine, inner, buffer, machine.l1_bytes)
    for inner, buffer, steps in list(_read_apart(b, machine)):
        attempt(b, partial(b.do, "stream", buffer.name, inner, steps, machine.line(buffer.dtype)))


def hint_rows(b: ScheduleBuilder, machine: Target, rows: str, buffer: Buffer) -> None:
    """Tiles that write a few elements of each of so many rows that no cache looks ahead along all ask for later ones.

    ``rows``: the loop over the copies of a tile, a row each. A line is read before it is written in part, and of those
    that the nearest cache does not keep a tile would wait for each. So many tiles ahead that a line has come: of a
    tile's copies one is loaded, exchanged by halves, quarters and so on, and stored in some cycles, as there is one
    unit for that.
    """
    copies = find_loop(b.kernel, rows, "stream")
    n = most_iterations(copies.loop)
    inner = enclosing(b.kernel.body, copies)[-1]
    if not machine.has_prefetch or n <= machine.n_streams or _n_bytes(buffer) <= machine.l1_bytes:
        return
    if not isinstance(inner, For):
        return
    if steps := steps_ahead(_n_bytes(buffer), n * n.bit_length(), estimate([inner.loop.extent]), machine):
        hint = partial(b.do, "stream", buffer.name, inner.loop.sym.name, steps, machine.line(buffer.dtype))
        attempt(b, hint)


def hint_pages(b: ScheduleBuilder, machine: Target, walker: str, leaf: Store, operations: int) -> None:
    """Steps of a loop over vectors ask for the lines of a later one, in operands and in the result.

    ``walker``: the loop, of so many ``operations`` a step. Hardware looks ahead within a page alone: without hints a
    core waits for the first lines of each, and arithmetic hides less of that the longer a step is. Only where the
    buffers do not stay in a near cache together.
    """
    buffers = dict.fromkeys([leaf.buffer, *(x.buffer for x in loads_of(leaf))])
    n_bytes = sum(map(_n_bytes, buffers))
    if not machine.has_prefetch or n_bytes <= machine.l2_bytes:
        return
    n_steps = estimate([find_loop(b.kernel, walker, "stream").loop.extent])
    if steps := steps_ahead(n_bytes, operations / machine.fma_ports, n_steps, machine):
        for x in buffers:
            if _n_bytes(x) > machine.l1_bytes:
                attempt(b, partial(b.do, "stream", x.name, walker, steps, machine.line(x.dtype)))


def _hint(b: ScheduleBuilder, machine: Target, inner: str, buffer: Buffer, cache_bytes: int) -> None:
    if _n_bytes(buffer) > cache_bytes:
        line = machine.line(buffer.dtype)
        attempt(b, partial(b.do, "hint", buffer.name, inner, line))


def _read_next(b: ScheduleBuilder, machine: Target) -> Iterator[tuple[str, Buffer]]:
    """The inner loops of reductions, and operands of which every tile multiplies a part of its own.

    A part that shares the first-level cache with the next one, as the keys that a few queries meet. Not where sums go
    on in memory, a part of the reduction at a time: its operands are read again for every panel, and stay in a nearer
    cache than the last one.
    """
    fixed = _fixed(b)
    for tile in (s for s in walk(b.kernel.body) if isinstance(s, For) and s.loop.kind in (Kind.SERIAL, Kind.PARALLEL)):
        for s in (s for s in tile.body if isinstance(s, For) and _is_one_loop(s)):
            updates = [u for u in walk(s.body) if isinstance(u, Update)]
            inner = _steps(s)[-1].sym.name
            n_steps = estimate([x.extent for x in _steps(s)])
            if not (n_steps and _begins(tile, s)) or estimate([tile.loop.extent]) <= 1:
                continue
            around = [x.loop for x in enclosing(b.kernel.body, s) if isinstance(x, For)]
            if not all(estimate([loop.extent]) for loop in around):
                continue  # a nest that never runs reads nothing
            for x in _operands(updates):
                n_bytes, used = _read_in((s,), x), symbols_of_index(x.index)
                is_own = x.buffer not in fixed and any(loop.sym in used for loop in around)
                if not is_own or n_bytes > machine.l1_bytes * 2 / 3 or _is_stream(s, x):
                    continue
                hints = ceil(n_bytes / machine.line_bytes / n_steps)
                waited = hints * _line_cycles(x.buffer, machine) / _times_near(n_bytes, around, used, machine)
                if waited * machine.issue_width >= hints and not _busy(s, updates, machine, hints, waited):
                    yield inner, x.buffer


def _is_one_loop(s: For) -> bool:
    """Is it the only serial loop of sums, or one in parts: each operand goes on from part to part?"""
    steps = _steps(s)
    if steps[:1] != [s.loop]:
        return False
    for x in _operands([u for u in walk(s.body) if isinstance(u, Update)]):
        strides = [stride_along(x.buffer, x.index, loop.sym) for loop in steps]
        for k, loop in enumerate(steps[1:]):
            inner = strides[k + 1]
            if not is_known(inner) or not is_known(loop.extent) or strides[k] != inner * loop.extent:
                return False
    return True


def _read_apart(b: ScheduleBuilder, machine: Target) -> Iterator[tuple[str, Buffer, int]]:
    """The inner loops of reductions, operands that each of their steps reads in another page, and how many steps a line
    takes to come."""
    fixed = _fixed(b)
    for s in (s for s in walk(b.kernel.body) if isinstance(s, For) and [s.loop] == _steps(s)):
        updates = [u for u in walk(s.body) if isinstance(u, Update)]
        if not (products := _products(s, updates)):
            continue  # no copy of a step runs
        asked = {x.buffer for x in s.body if isinstance(x, Prefetch)}
        for x in _operands(updates):
            step = stride_along(x.buffer, x.index, s.loop.sym)
            is_apart = is_known(step) and step * x.buffer.dtype.n_bytes >= machine.page_bytes
            if not is_apart or x.buffer in fixed | asked or _n_bytes(x.buffer) <= machine.l2_bytes:
                continue
            hints = ceil(_read_in(s.body, x) / machine.line_bytes)
            cycles = products / machine.fmas_per_cycle
            steps = steps_ahead(_n_bytes(x.buffer), cycles, _steps_on(b, s, x), machine)
            if steps and not _busy(s, updates, machine, hints):
                yield s.loop.sym.name, x.buffer, steps


def _steps_on(b: ScheduleBuilder, s: For, x: Load) -> float:
    """How many steps a reduction goes on along an operand: also where it is in parts, between which others read it."""
    n, step = estimate([s.loop.extent]), stride_along(x.buffer, x.index, s.loop.sym)
    for part in reversed([y.loop for y in enclosing(b.kernel.body, s) if isinstance(y, For)]):
        if part.sym in symbols_of_index(x.index):
            if not is_known(step) or stride_along(x.buffer, x.index, part.sym) != step * n:
                break
            n *= estimate([part.extent])
    return n


def _fixed(b: ScheduleBuilder) -> set[Buffer]:
    """Constants, which have hints of their own, and what lies in registers or scratch."""
    return {p.buffer for p in b.kernel.places if p.role is Role.CONST or p.space is not Space.GLOBAL}


def _operands(updates: list[Update]) -> list[Load]:
    """Of each operand that the updates read, a load."""
    return list({x.buffer: x for u in updates for x in loads_of(u)}.values())


def _times_near(n_bytes: int, around: list[Loop], used: set[Sym], machine: Target) -> float:
    """How often parts of so many bytes, which the loops in ``used`` move on, are read while a near cache has them."""
    times = 1.0
    for x in reversed(around):
        if x.sym in used:
            n_bytes *= most_iterations(x)
        elif n_bytes <= machine.l2_bytes:
            times *= estimate([x.extent])
    return times


def _is_stream(s: For, load: Load) -> bool:
    """Is each element multiplied once? The machine's own prefetching is all that such a loop waits for."""
    return all(x.sym in symbols_of_index(load.index) or most_iterations(x) == 1 for x in _copies(s))


def _begins(tile: For, sums: Stmt) -> bool:
    """Are all sums of the nest begun in the tile: none go on in memory, a part of the reduction at a time?"""
    stores = [x for s in tile.body for x in walk((s,)) if isinstance(x, Store) and not list(loads_of(x))]
    return {u.buffer for u in walk((sums,)) if isinstance(u, Update)} <= {t for x in stores for t in written(x)}


def _busy(s: For, updates: list[Update], machine: Target, hints: int, waited: float = 0.0) -> bool:
    """Do a step's loads, with the hints that it has and so many more, take most of the time of its products?

    Or, where that is longer, of the cycles in which what it reads comes.
    """
    copies, products = _copies(s), _products(s, updates)
    loads = [symbols_of_index(x.index) for u in updates for x in loads_of(u)]
    n_loads = sum(prod(most_iterations(x) for x in copies if x.sym in used) for used in loads)
    n_hints = sum(isinstance(x, Prefetch) for x in s.body) + hints
    return is_busy(n_loads + n_hints, products, machine, waited)


def _copies(s: For) -> list[Loop]:
    return [x for x in loops_of(s.body) if x.kind in (Kind.UNROLL, Kind.STEP)]


def _products(s: For, updates: list[Update]) -> int:
    """Vectors that a step multiplies and adds."""
    return prod(most_iterations(x) for x in _copies(s)) * len(updates)


def _read_in(body: Body, load: Load) -> int:
    """Bytes that the loops of a body read of an operand, at most."""
    used = symbols_of_index(load.index)
    return prod(most_iterations(x) for x in loops_of(body) if x.sym in used) * load.dtype.n_bytes


def _line_cycles(buffer: Buffer, machine: Target) -> float:
    """Cycles from one line of an operand that no near cache holds to the next."""
    is_kept = _n_bytes(buffer) <= machine.llc_bytes
    return machine.line_bytes / (machine.llc_bytes_per_cycle if is_kept else machine.memory_gb_per_s / machine.ghz)


def _n_bytes(buffer: Buffer) -> float:
    return estimate(buffer.shape) * buffer.dtype.n_bytes


def _read_behind(b: ScheduleBuilder) -> Iterator[tuple[str, Buffer]]:
    """The inner loops of reductions in loops over tiles, and what is read in lanes behind them."""
    fixed = _fixed(b)
    for tile in (s for s in walk(b.kernel.body) if isinstance(s, For) and s.loop.kind in (Kind.SERIAL, Kind.PARALLEL)):
        at, steps = next(((k, x) for k, s in enumerate(tile.body) if (x := _steps(s))), (0, []))
        if estimate([x.extent for x in steps]) < MIN_STEPS or not _begins(tile, tile.body[at]):
            continue
        changed = {t for s in walk(tile.body) for t in written(s)}
        before = {x.buffer for s in walk(tile.body[: at + 1]) for x in loads_of(s)}
        behind = [x for x in _in_lanes(tile.body[at + 1 :]) if x.buffer not in fixed | changed | before]
        for buffer in dict.fromkeys(x.buffer for x in behind):
            yield steps[-1].sym.name, buffer


def _steps(s: Stmt) -> list[Loop]:
    """The serial loops around the updates of a tile's sums, where the statement is such a nest."""
    updates = [x for x in walk((s,)) if isinstance(x, Update)]
    serial = [x for x in loops_of((s,)) if x.kind is Kind.SERIAL]
    own = {a for u in updates for a in symbols_of_index(u.index)}
    return [x for x in serial if x.sym not in own] if updates else []


def _in_lanes(body: Body) -> list[Load]:
    """What stores read with lanes side by side."""
    lanes = [x.sym for x in loops_of(body) if x.kind is Kind.VECTOR]
    loads = [x for s in walk(body) if isinstance(s, Store) for x in loads_of(s)]
    return [x for x in loads if any(stride_along(x.buffer, x.index, lane) == 1 for lane in lanes)]
