"""Constants that reductions read: packed in the order in which they are walked, with hints at what comes next.

In: a builder whose stages all have their loops. Out: steps. Not its business: those loops (``contract`` and others).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import dropwhile
from math import ceil, prod

from tilewright.choose.cost.tile import estimate
from tilewright.choose.strategies.steps import attempt
from tilewright.choose.strategies.view import find_body
from tilewright.core.compute import Binary, Buffer, IndexLike, Load, buffers_of_value
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known_at_most, known_over
from tilewright.core.expr import BinaryExpr, Sym, bounds, is_nonneg, symbols
from tilewright.core.indices import symbols_at, symbols_in, terms_at
from tilewright.target.target import Target
from tilewright.tile.affine import stride_along
from tilewright.tile.ir import For, Kernel, Kind, Loop, Role, Space, Store, Update, walk
from tilewright.tile.rewrite import loads_of, loops_of
from tilewright.tile.schedule import Made, ScheduleBuilder
from tilewright.tile.schedule.operands import paths_to
from tilewright.tile.schedule.tree import find_place, most_iterations

KEPT = 3
"""Walked back and forth, constants are read faster up to so many times the first-level cache."""


def pack_constants(b: ScheduleBuilder, machine: Target) -> None:
    """Once every stage has its loops: constants that reductions read, in the order in which all their readers walk.

    Panels that only pass through the second-level cache get hints at the next one. Those are walked forth and back, and
    those of which the first level keeps a part. That comes after all packing: nests that read the same constant in one
    order share one copy, whichever way they then walk it. What lies well in several orders stays as it is, with hints
    at what comes in a while where it passes through that cache. So do words of which a step unpacks several numbers:
    that takes a core about as long as memory takes to bring them, and what it asks for by itself comes too late. And so
    do panels that one tile of several rows reads, once: it multiplies each element several times.
    """
    packed: dict[str, float] = {}
    for name in constants_read(b):
        mark, before = b.mark(), b.kernel
        if attempt(b, partial(b.do, "pack", name)):
            if sum(p.source.name == name for p in b.kernel.packed) > 1 and _is_dense(before, name):
                b.back(mark)
                _stream(b, machine, name, _is_anything)
                continue
            for new in Made(before, b.kernel).buffers:
                buffer = find_place(b.kernel, new, "pack").buffer
                packed[new] = estimate(buffer.shape) * buffer.dtype.n_bytes
    for name, n_bytes in packed.items():
        if n_bytes > machine.l2_kept_bytes:
            attempt(b, partial(_prefetch, b, machine, name))
            _stream(b, machine, name, _is_anything if _is_unpacked(b, name) else _is_once_for_rows)
        if n_bytes > machine.l2_kept_bytes or 1 < n_bytes / machine.l1_bytes <= KEPT:
            attempt(b, partial(_alternate, b, name))


def _is_dense(kernel: Kernel, name: str) -> bool:
    """Does every nest that reads the constant, in whichever order, read a run behind the last one in each step?

    Packed for several orders it would be there as often, and lie no better.
    """
    found = paths_to(kernel.body, find_place(kernel, name, "pack").buffer, ())
    return all(_is_run(path, load) for path, load in found)


def _is_run(path: Sequence[Loop], load: Load) -> bool:
    """Are what copies and lanes of the innermost serial loop read neighbours, and its steps one behind the other?"""
    run = 1
    for x in reversed(path):
        step = stride_along(load.buffer, load.index, x.sym)
        if step == 0 and x.kind is not Kind.SERIAL:
            continue
        if not is_known(step) or abs(step) != run:
            return False
        if x.kind is Kind.SERIAL:
            return True
        run *= most_iterations(x)
    return False


def _is_unpacked(b: ScheduleBuilder, name: str) -> bool:
    """Do products multiply parts of the constant's elements?"""
    updates = [s.value for s in walk(b.kernel.body) if isinstance(s, Update)]
    masks = [x for v in updates for x in walk_value(v) if isinstance(x, Binary) and x.op == "and"]
    return any(b.name == name for x in masks for b in buffers_of_value(x.a))


def _is_anything(path: Sequence[Loop], load: Load) -> bool:
    """Any place that reads a constant."""
    return True


def _is_once_for_rows(path: Sequence[Loop], load: Load) -> bool:
    """Does one tile of several rows read a panel, and no other tile read it again, as far as is known?

    The more rows a step multiplies, the fewer steps a core looks ahead by itself, and the later it asks for what they
    read. With one row it looks ahead as far as a hint would. Of a number of tiles that only a call knows the first one
    waits for its panel where they are few, since each asks for a part of the next panel as if they were many.
    """
    along = symbols_in(load.index)
    walked = dropwhile(lambda x: x.sym not in along, path)
    still = [x for x in walked if x.sym not in along]
    rows = [x for x in still if x.kind is Kind.UNROLL]
    tiles = [x for x in still if x.kind is Kind.SERIAL]
    again = any(is_nonneg(x.extent - 2) for x in tiles) or any(known_over(x.extent, 1) for x in still if x not in rows)
    return any(x.sym.hi != 0 for x in rows) and not again


def _stream(
    b: ScheduleBuilder, machine: Target, name: str, is_streamed: Callable[[Sequence[Loop], Load], bool]
) -> None:
    """Hints at what comes in a while of a constant that the second-level cache does not keep, where ``is_streamed``."""
    buffer = find_place(b.kernel, name, "stream").buffer
    if estimate(buffer.shape) * buffer.dtype.n_bytes <= machine.l2_kept_bytes:
        return
    line, ahead = machine.line(buffer.dtype), machine.memory_ns * machine.memory_gb_per_s  # bytes on their way
    for path, load in list(paths_to(b.kernel.body, buffer, ())):
        serial = ((x, stride_along(buffer, load.index, x.sym)) for x in reversed(path) if x.kind is Kind.SERIAL)
        moving = next(((x, step) for x, step in serial if step != 0), None)  # inside may be a loop of one iteration
        if moving is None or not is_streamed(path, load):
            continue
        inner, step = moving
        steps = ceil(ahead / (abs(step) * buffer.dtype.n_bytes)) if is_known(step) else 1
        attempt(b, partial(b.do, "stream", name, inner.sym.name, steps, line))


def _prefetch(b: ScheduleBuilder, machine: Target, packed: str) -> None:
    """For every nest that walks panels: the loop that counts panels is the first index of the packed operand.

    Where that counts more than a panel's worth of cache (a batch of operands), it is the next index that is outside of
    the reduction. A panel that one tile reads streams through instead, and so do the panels that a tile reads side by
    side. The tiles for the rest of a run-time number of rows ask for a part of it as well: memory has nothing else to
    do while the last of them reads its panel from a near cache.
    """
    buffer = find_place(b.kernel, packed, "prefetch").buffer
    line, copied = machine.line(buffer.dtype), _copied_results(b, buffer)
    in_parts: dict[str, str] = {}
    for path, load in paths_to(b.kernel.body, buffer, ()):
        serial = [x for x in path if x.kind in (Kind.SERIAL, Kind.PARALLEL)]
        names = [x.sym.name for x in serial]
        depth = _panel_depth(b, machine, buffer, load, names)
        panel = load.index[depth]
        if not isinstance(panel, Sym) or panel.name not in names or copied & set(load.index[depth + 1 : depth + 2]):
            continue
        below = serial[names.index(panel.name) + 1 :]
        spread = [x for x in below if not any(x.sym in symbols_at(i) for i in load.index)]
        if below and below[-1] not in spread and not all(known_at_most(x.extent, 1) for x in spread):
            inner = below[-1].sym.name
            if inner not in in_parts:
                steps = [x.extent for x in below if x not in spread]
                lines = estimate(buffer.shape[depth + 1 :]) / line / estimate(steps)
                in_parts[inner] = _in_parts(b, machine, below[-1], spread[-1], lines)
            b.do("prefetch", packed, panel.name, in_parts[inner], line, spread[-1].sym.name)


def _in_parts(b: ScheduleBuilder, machine: Target, inner: Loop, sharing: Loop, lines: float) -> str:
    """Cut a reduction into parts of as many steps that tiles, of which each part asks for one line, ask for all once.

    ``lines``: of the next panel for each step. Asked for in every step of all tiles, each would be asked for as often
    as there are tiles: that takes the loads' units, and pushes out of the nearest cache what a tile is about to read.
    Few steps are copies, so that a part has one end to look for; a part of more is long beside that. Returns the loop
    over parts, or ``inner`` where there are none.
    """
    name, n = inner.sym.name, inner.extent
    most = int((bounds(sharing.extent)[0] or 1) / lines)
    size = max((k for k in range(2, most + 1) if k < n and n % k == 0), default=1) if is_known(n) else 1
    if size == 1:
        return name
    body = find_body(b.kernel, name)
    copies = prod(most_iterations(x) for x in loops_of(body) if x.kind is Kind.UNROLL)
    parts, steps = b.split(name, size)
    if copies * size <= machine.max_copies // 2:
        b.do("kind", steps, "step")
    return parts


def _copied_results(b: ScheduleBuilder, buffer: Buffer) -> set[Sym]:
    """Copied loops along which products of the buffer's elements are other results."""
    along = {
        x
        for s in walk(b.kernel.body)
        if isinstance(s, Update) and any(x.buffer is buffer for x in loads_of(s))
        for x in symbols_in(s.index)
    }
    return {s.loop.sym for s in walk(b.kernel.body) if isinstance(s, For) and s.loop.kind is Kind.UNROLL} & along


def _alternate(b: ScheduleBuilder, packed: str) -> None:
    """A loop that walks all panels at every step (of time, or a block of rows): forwards, then backwards.

    The panels read last are then read from the cache. Loops over the panels of a group turn with it, so that what is
    asked for ahead still comes next. No loop turns whose last iteration is ragged: walked backwards it comes first in
    every other step, so that no range of the loop would be known to be free of masks. A loop that several nests share,
    as tiles of all sizes of a run-time number of rows do, turns once.
    """
    buffer = find_place(b.kernel, packed, "alternate").buffer
    turned: set[Sym] = set()
    for path, load in list(paths_to(b.kernel.body, buffer, ())):
        names = [x.sym.name for x in path]
        panel = load.index[0]
        if isinstance(panel, Sym) and panel.name in names[1:]:
            around = path[names.index(panel.name) - 1]
            before = symbols_in(load.index)
            if around.kind is Kind.SERIAL and around.sym not in before and not _is_ragged(b, panel):
                for loop in _walkers(b, load, names):
                    if loop not in turned and not _is_ragged(b, loop):
                        b.do("alternate", loop.name, around.sym.name)
                        turned.add(loop)


def _walkers(b: ScheduleBuilder, load: Load, loops: Sequence[str]) -> Iterator[Sym]:
    """The loops that count panels, then those of a group: the first indices, as far as sums begin in them."""
    for i in load.index:
        if not isinstance(i, Sym) or i.name not in loops or _is_reduced(b, i.name):
            return
        yield i


def _is_ragged(b: ScheduleBuilder, loop: Sym) -> bool:
    """Do extents in the loop depend on its iteration?"""
    return any(isinstance(s, For) and loop in symbols(s.loop.extent) for s in walk(find_body(b.kernel, loop.name)))


def _panel_depth(b: ScheduleBuilder, machine: Target, buffer: Buffer, load: Load, loops: list[str]) -> int:
    """Which index of a packed operand counts panels: the first below which less than a share of the cache lies."""
    depth = 0
    while depth + 1 < len(load.index):
        n_bytes = estimate(buffer.shape[depth + 1 :]) * buffer.dtype.n_bytes
        following = load.index[depth + 1]
        if n_bytes <= machine.l2_bytes / 16 or not isinstance(following, Sym) or following.name not in loops:
            break
        if _is_reduced(b, following.name):
            break
        depth += 1
    return depth


def _is_reduced(b: ScheduleBuilder, loop: str) -> bool:
    """Do sums go on from one iteration of the loop to the next: nothing in it starts them?"""
    body = find_body(b.kernel, loop)
    updated = {s.buffer for s in walk(body) if isinstance(s, Update)}
    return not updated & {s.buffer for s in walk(body) if isinstance(s, Store)}


def constants_read(b: ScheduleBuilder) -> list[str]:
    """Constants that an update reads with a dependence on lanes or rows, or a store at remainders, or one of what is
    decoded of them for matrix registers where it is read: worth packing."""
    found: list[str] = []
    fixed = {p.buffer for p in b.kernel.places if p.role is Role.CONST}
    near = _near_registers(b.kernel)
    for s in walk(b.kernel.body):
        if isinstance(s, Update):
            for x in walk_value(s.value):
                if isinstance(x, Load) and x.buffer in fixed and x.buffer.name not in found and len(x.index) > 1:
                    found.append(x.buffer.name)
        elif isinstance(s, Store):
            for x in loads_of(s):
                is_worth = (s.buffer in near and len(x.index) > 1) or any(map(_is_remainder, x.index))
                if x.buffer in fixed and x.buffer.name not in found and is_worth:
                    found.append(x.buffer.name)
    return found


def _near_registers(kernel: Kernel) -> set[Buffer]:
    """Scratch that sums read in a kernel with matrix registers."""
    spaces = {p.buffer: p.space for p in kernel.places}
    if Space.MATRIX not in spaces.values():
        return set()
    read = {x.buffer for s in walk(kernel.body) if isinstance(s, Update) for x in loads_of(s)}
    return {x for x in read if spaces.get(x) is Space.LOCAL}


def _is_remainder(i: IndexLike) -> bool:
    return any(isinstance(a, BinaryExpr) and a.op == "mod" for a, _ in terms_at(i))
