"""Primitives that keep elements of memory in registers while a loop runs: accumulate, carry.

In: a kernel, the name of a buffer, a loop. Out: a kernel that means the same, or a ``ScheduleError``. Not its
business: where a stage is computed (``stages``), partial results (``partials``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.core.compute import Buffer, Const, Inside, Load, Select, Value, buffers_of_value, substitute_index
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import known_at_least, known_under
from tilewright.core.expr import Dim, Sym, bounds, substitute, symbols
from tilewright.core.indices import chosen, symbols_in
from tilewright.tile.affine import coefficient
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kernel, Kind, Loop, Place, Space, Stmt, Store, Update, walk, written
from tilewright.tile.rewrite import Body, loads_of, loops_of, rewrite_accesses
from tilewright.tile.schedule.region import Side, side_of
from tilewright.tile.schedule.stages import copy_name, rebased, shrunk
from tilewright.tile.schedule.tree import (
    Nest,
    find_loop,
    find_place,
    fresh,
    identifier,
    readers,
    replace_stmt,
    without_idle_hints,
)
from tilewright.tile.verify import COPIED


def accumulate(kernel: Kernel, buffer: str, loop: str) -> Kernel:
    """Updates of memory inside a loop go through registers: read before the loop, written back after it.

    Before: ``for k: for i, j: T[4*io + i, j] += e``. After: ``for i, j: T_a[i, j] = T[4*io + i, j]; for k: for i, j:
    T_a[i, j] += e; for i, j: T[4*io + i, j] = T_a[i, j]``. Copies of loop ``x`` are called ``x_T_a0`` and ``x_T_a1``.
    Fails: the loop does anything to the buffer but update it at one index; the updated box depends on the loop itself,
    or is not walked by unrolled loops and lanes with known bounds.
    """
    target, where = find_loop(kernel, loop, "accumulate"), f"{buffer}, {loop}"
    old = find_place(kernel, buffer, "accumulate").buffer
    updates = [s for s in walk(target.body) if old in written(s)]
    if not updates or any(not isinstance(s, Update) for s in updates) or any(True for _ in readers(target.body, old)):
        raise ScheduleError("accumulate", where, "the loop does not simply update it")
    loads = [Load(old, s.index) for s in updates if isinstance(s, Update)]
    if any(chosen(x.index) or target.loop.sym in symbols_in(x.index) for x in loads):
        raise ScheduleError("accumulate", where, "the updated elements change from iteration to iteration")
    box = _box(kernel, target, loads, "a", "accumulate", where)
    first = box.copy(0, lambda far, near, _: Store(box.new, near, Load(old, far)))
    return box.around(first, For(target.loop, box.inside(target.body)), box.written_back())


def carry(kernel: Kernel, buffer: str, loop: str) -> Kernel:
    """What one iteration of a loop stores and the next one reads is kept in registers for it.

    Before: ``for t: for i: Y[t, i] = f(Y[t - 1, i])``. After: ``for i: Y_c[i] = Y[-1, i]; for t: for i: Y_c[i] =
    f(Y_c[i]); for i: Y[t, i] = Y_c[i]``. What the first iteration reads is read before the loop, and is 0 where its
    guard does not let it. Copies of loop ``x`` are called ``x_Y_c0`` and ``x_Y_c1``.
    Fails: the loop does not run one iteration after the other, or does anything to the buffer but store at one index
    and read what the iteration before stored there; what is stored is not walked by unrolled loops and lanes with known
    bounds, or two iterations store one element.
    """
    target, where = find_loop(kernel, loop, "carry"), f"{buffer}, {loop}"
    old, t = find_place(kernel, buffer, "carry").buffer, target.loop.sym
    stores = [s for s in walk(target.body) if old in written(s)]
    store = stores[0] if len(stores) == 1 else None
    if target.loop.kind is not Kind.SERIAL or not isinstance(store, Store) or chosen(store.index):
        raise ScheduleError("carry", where, "no serial loop that stores to it at one place")
    before = tuple(substitute_index(i, {t: t - 1}) for i in store.index)
    reads = [x for s in walk(target.body) for x in loads_of(s) if x.buffer is old]
    if not reads or any(x.index != before for x in reads):
        raise ScheduleError("carry", where, "the loop does not simply read what the iteration before stored")
    box = _box(kernel, target, [Load(old, store.index)], "c", "carry", where)
    moving = [side for side in box.sides if t in symbols(side.base)]
    if not moving or any(side.loops or not coefficient(side.base, t) for side in moving):
        raise ScheduleError("carry", where, "two iterations store to one element")
    guards = [g for x in walk_value(store.value) for g in _guards_of(x, old)]
    if not guards and not known_at_least(target.loop.extent, 1):
        raise ScheduleError("carry", where, "without an iteration there is nothing to read before the loop")

    def begin(far: tuple[Dim, ...], near: tuple[Dim, ...], dims: Mapping[Sym, Dim]) -> Stmt:
        load, zero = Load(old, tuple(substitute(i, {t: -1}) for i in far)), Const(0, old.dtype)
        own = tuple(substitute(g, {**dims, t: 0}) for g in guards)
        if any(known_under(bounds(g)[1], 0) for g in own):
            return Store(box.new, near, zero)
        return Store(box.new, near, Select(Inside(own), load, zero) if own else load)

    return box.around(box.copy(0, begin), For(target.loop, (*box.inside(target.body), box.written_back())))


Leaf = Callable[[tuple[Dim, ...], tuple[Dim, ...], Mapping[Sym, Dim]], Stmt]
"""A statement from an element's place in memory, its register, and what the copied loops are called."""


@dataclass(frozen=True)
class _Box:
    """The elements of ``old`` that the loops inside of ``target`` walk, and registers for them."""

    kernel: Kernel
    target: For
    old: Buffer
    new: Buffer
    sides: list[Side]
    taken: set[str] = field(default_factory=set)

    def copy(self, n: int, leaf: Leaf) -> Stmt:
        """Loops of their own over the box, around what ``leaf`` makes."""
        loops: list[Loop] = []
        dims: dict[Sym, Dim] = {}
        for x in (x for side in self.sides for x in side.loops):
            sym = Sym(copy_name(self.kernel, x.sym.name, self.new.name, n, self.taken), x.sym.lo, x.sym.hi)
            loops.append(Loop(sym, substitute(x.extent, dims), x.kind))
            dims[x.sym] = sym
        offsets = [substitute(side.offset, dims) for side in self.sides]
        # In memory where the loop's box begins, in registers from 0 on.
        far = tuple(side.base + o for side, o in zip(self.sides, offsets, strict=True))
        near = tuple(o for side, o in zip(self.sides, offsets, strict=True) if side.loops) or (0,)
        done = leaf(far, near, dims)
        return Nest(tuple(loops), (done,)).wrap() if loops else done

    def written_back(self) -> Stmt:
        return self.copy(1, lambda far, near, _: Store(self.old, far, Load(self.new, near)))

    def inside(self, body: Body) -> Body:
        """The statements with the registers in place of memory."""
        return rewrite_accesses(body, lambda b, ix: Load(self.new, rebased(ix, self.sides)) if b is self.old else None)

    def around(self, *statements: Stmt) -> Kernel:
        """The kernel with these in the target loop's place."""
        done = replace_stmt(self.kernel, self.target, *statements)
        return without_idle_hints(replace(done, places=(*done.places, Place(self.new, Space.REG))), self.new)


def _box(kernel: Kernel, target: For, loads: list[Load], suffix: str, primitive: str, where: str) -> _Box:
    """The box that loads inside of the loop cover; ``ScheduleError`` where code cannot name its registers."""
    old, inner = loads[0].buffer, loops_of(target.body)
    name = fresh(kernel, f"{identifier(old.name)}_{suffix}")
    sides = [side_of(loads, d, inner, f"{name}_{d}", where) for d in range(len(old.shape))]
    if any(target.loop.sym in symbols(x.extent) for side in sides for x in side.loops):
        raise ScheduleError(primitive, where, "how many elements are updated changes from iteration to iteration")
    # A register is named by code, not by a number at run time.
    if any(x.kind not in COPIED for side in sides for x in side.loops):
        raise ScheduleError(primitive, where, "registers have no run-time index: unroll the loops inside first")
    return _Box(kernel, target, old, replace(shrunk(old, sides, Space.REG, where), name=name), sides)


def _guards_of(v: Value, buffer: Buffer) -> tuple[Dim, ...]:
    """What has to hold where a selection reads the buffer."""
    if not isinstance(v, Select) or not isinstance(v.cond, Inside) or buffer not in buffers_of_value(v.a):
        return ()
    return v.cond.exprs
