"""Primitives that give a reduction partial results: rfactor, spread, tree.

In: a kernel, the name of the buffer that is reduced, a loop of the reduction. Out: a kernel that means the same but for
the order of a sum, or a ``ScheduleError``. Not its business: which reductions want that (``choose.strategies``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Const, IndexLike, Inside, Load, Value
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, minimum, mod, substitute, symbols
from tilewright.core.indices import chosen, is_chosen, symbols_in
from tilewright.core.types import DType
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, Kind, Loop, Place, Space, Stmt, Store, Update
from tilewright.tile.rewrite import Body, loads_of, substitute_body
from tilewright.tile.schedule.loops import check_exchange
from tilewright.tile.schedule.tree import (
    Nest,
    enclosing,
    find_loop,
    find_place,
    fresh,
    fresh_among,
    identifier,
    nest_of,
    new_loop,
    replace_stmt,
    without_idle_hints,
)


def identity_of(op: str, dtype: DType) -> Const:
    """The value that ``op`` leaves everything else unchanged with."""
    if op in ("add", "or"):
        return Const(0, dtype)
    if op == "mul":
        return Const(1, dtype)
    if op == "and":
        return Const(True if dtype is types.bool_ else -1 if dtype.is_signed else dtype.max, dtype)
    if dtype.is_float:
        return Const(inf if op == "min" else -inf, dtype)
    return Const(dtype.min if op == "max" else dtype.max, dtype)


def rfactor(kernel: Kernel, buffer: str, loop: str, unrolled: int, lanes: int, around: str = "") -> Kernel:
    """``for c<n: s op= f(c)`` -> ``unrolled * lanes`` partial results in registers, combined at the end.

    After: partials = identity; full blocks of ``unrolled`` vectors; the remaining vectors; the remaining elements; the
    partials fold in pairs; ``s op= each lane``. Stores before the update go along. With ``around``, a loop of the
    reduction outside of this one, partials last through all of its iterations. The order of a float sum changes, by a
    fixed rule. Fails: the loop holds anything but stores and one update by a reduction operation whose target
    does not depend on it; iterations of the stores may not be exchanged; ``unrolled`` is no power of 2; ``around`` and
    ``loop`` are not in one perfect nest.
    """
    target = find_loop(kernel, loop, "rfactor")
    update, where = target.body[-1], f"{buffer}, {loop}"
    if not isinstance(update, Update) or update.buffer.name != buffer:
        raise ScheduleError("rfactor", where, "the loop's last statement is no update of the buffer")
    others = target.body[:-1]
    if not all(isinstance(s, Store) for s in others):
        raise ScheduleError("rfactor", where, "the loop holds more than stores and the update")
    # Stores go along with the steps that read them, so that these may be exchanged too.
    check_exchange(target.body, [target.loop.sym], "rfactor", where)
    top, walkers = target, [target.loop]
    if around:
        top = find_loop(kernel, around, "rfactor")
        nest = nest_of(top)
        if target.loop not in nest.loops or nest.leaf != target.body:
            raise ScheduleError("rfactor", where, f"{around} holds more than the loop")
        walkers = list(nest.loops)
    walked = {x.sym for x in walkers}
    if chosen(update.index) or walked & symbols_in(update.index):
        raise ScheduleError("rfactor", where, "the updated element depends on the loop")
    if any(x.buffer is update.buffer for x in loads_of(update)):
        raise ScheduleError("rfactor", where, "the value reads the buffer")
    if unrolled & (unrolled - 1) or unrolled < 1 or lanes < 1:
        raise ScheduleError("rfactor", where, f"{unrolled} is not a power of two")
    n = target.loop.extent
    if is_known(n):
        # Partials that no step fills would be folded in for nothing.
        while unrolled > 1 and n < unrolled * lanes:
            unrolled //= 2
        lanes = min(lanes, max(n, 1))
    part = Buffer(fresh(kernel, f"{identifier(buffer)}_p"), update.buffer.dtype, (unrolled * lanes,))
    make = _Partials(kernel, target.loop, update, others, part, unrolled, lanes)
    start, partials, end = make.start(), tuple(make.partials(n)), make.end()
    if len(walkers) > 1:
        partials = (Nest(tuple(walkers[:-1]), partials).wrap(),)
    done = replace_stmt(kernel, top, start, *partials, *end)
    return without_idle_hints(replace(done, places=(*done.places, Place(part, Space.REG))), part)


def spread(kernel: Kernel, buffer: str, around: str, loop: str, lanes: int) -> Kernel:
    """``for k<n: for tile: s[tile] op= f(k)`` -> a vector of partial results for every element of a tile.

    After: partials = identity; ``for k_o: for tile: for lane: p[tile, lane] op= f(lanes*k_o + lane)``; ``for tile: for
    lane: s[tile] op= p[tile, lane]``. ``around`` is the outermost loop of the update's nest, ``loop`` is k; the loops
    that walk the buffer go inside of all loops of the reduction. The order of a float sum changes, by a fixed rule.
    Fails: the nest holds more than one update; the buffer's loops are not copied (unrolled) with known bounds, or
    their extents and those of the reduction depend on each other.
    """
    top, where = find_loop(kernel, around, "spread"), f"{buffer}, {loop}"
    nest = nest_of(top)
    update = nest.leaf[0]
    if len(nest.leaf) != 1 or not isinstance(update, Update) or update.buffer.name != buffer:
        raise ScheduleError("spread", where, f"{around} holds more than one update of the buffer")
    if chosen(update.index) or any(x.buffer is update.buffer for x in loads_of(update)):
        raise ScheduleError("spread", where, "the updated element is named at run time, or its value reads the buffer")
    # Loops of the tile say which sum, all others are steps of the reduction.
    own = symbols_in(update.index)
    tile, reduced = [x for x in nest.loops if x.sym in own], [x for x in nest.loops if x.sym not in own]
    if not any(x.sym.name == loop for x in reduced):
        raise ScheduleError("spread", where, "it is no loop of the reduction in this nest")
    if any(x.kind is not Kind.UNROLL for x in tile):
        raise ScheduleError("spread", where, "registers have no run-time index: unroll the loops of the tile first")
    walked, inside = {x.sym for x in reduced}, {x.sym for x in tile}
    # Both orders must walk the same steps: the tile goes inside of all reduction loops, and back out for the start.
    if any(symbols(x.extent) & walked for x in tile) or any(symbols(x.extent) & inside for x in reduced):
        raise ScheduleError("spread", where, "extents of the tile and of the reduction depend on each other")
    if lanes < 1 or not are_known(update.buffer.shape):
        raise ScheduleError("spread", where, f"no vectors of {lanes} for a buffer of {update.buffer.shape}")
    old = next(x for x in reduced if x.sym.name == loop)
    part = Buffer(fresh(kernel, f"{identifier(buffer)}_p"), update.buffer.dtype, (*update.buffer.shape, lanes))
    taken: set[str] = set()

    def name(base: str) -> str:
        return fresh_among(kernel, base, taken)

    def over_tile(suffix: str, width: Dim, leaf: Callable[[tuple[IndexLike, ...], Sym], Stmt]) -> Stmt:
        copies = {x.sym: Sym(name(f"{x.sym.name}_{suffix}"), x.sym.lo, x.sym.hi) for x in tile}
        loops = [Loop(copies[x.sym], substitute(x.extent, dict(copies)), x.kind) for x in tile]
        lane = Loop(Sym(name(f"{loop}_{suffix}"), 0, lanes - 1), width, Kind.VECTOR)
        at = tuple(i if is_chosen(i) else substitute(i, dict(copies)) for i in update.index)
        return Nest((*loops, lane), (leaf(at, lane.sym),)).wrap()

    identity = identity_of(update.op, part.dtype)
    start = over_tile("s", lanes, lambda at, v: Store(part, (*at, v), identity))
    end = over_tile("e", lanes, lambda at, v: Update(update.buffer, at, update.op, Load(part, (*at, v))))
    outer = new_loop(name(f"{loop}_o"), ceildiv(old.extent, lanes))
    # The last block is ragged, and its idle lanes keep the identity.
    rest = old.extent - outer.sym * lanes
    width = lanes if mod(old.extent, lanes) == 0 else minimum(lanes, rest)
    lane = Loop(Sym(name(f"{loop}_l"), 0, lanes - 1), width, Kind.VECTOR)
    moved = substitute_body((update,), {old.sym: outer.sym * lanes + lane.sym})[0]
    assert isinstance(moved, Update)
    walkers = [outer if x is old else x for x in reduced]
    sums = Nest((*walkers, *tile, lane), (Update(part, (*update.index, lane.sym), update.op, moved.value),)).wrap()
    done = replace_stmt(kernel, top, start, sums, end)
    return without_idle_hints(replace(done, places=(*done.places, Place(part, Space.REG))), part)


def tree(kernel: Kernel, buffer: str, loop: str, warps: int, lanes: int = 1) -> Kernel:
    """``for c<n: s op= f(c)`` in a block -> a partial result for each lane of each warp, and what combines them.

    After, for W warps and V lanes: ``for w<W (thread): for l<32 (warp): for v<V (vector): p[w, l, v] = identity``;
    ``for w: for l: for j: for v: p[w, l, v] op= f(V*(32*(W*j + w) + l) + v)``; ``for w: q[w] = identity; for l: q[w]
    op= p[w, l, 0] op ..``; ``for w: for l<1 (warp): z[w] = q[w]``, shared; ``for k<W (unroll): s op= z[k]``.
    In a thread loop, of which each iteration is a warp's, there are no ``w``, ``q`` and ``z``, and W is 1. Stores
    before the update go along. The order of a float sum changes, by a fixed rule. Fails: the loop holds anything but
    stores and one update by a reduction operation whose target does not depend on it; iterations of the stores may not
    be exchanged; the updated buffer is in memory; the loop is in no block, or in threads, and there are several warps;
    it has a number of iterations that is no multiple of the lanes.
    """
    target, where = find_loop(kernel, loop, "tree"), f"{buffer}, {loop}"
    update, others = target.body[-1], target.body[:-1]
    if not isinstance(update, Update) or update.buffer.name != buffer or not all(isinstance(s, Store) for s in others):
        raise ScheduleError("tree", where, "the loop holds more than stores and one update of the buffer")
    if chosen(update.index) or target.loop.sym in symbols_in(update.index):
        raise ScheduleError("tree", where, "the updated element depends on the loop")
    if any(x.buffer is update.buffer for x in loads_of(update)):
        raise ScheduleError("tree", where, "the value reads the buffer")
    if find_place(kernel, buffer, "tree").space is not Space.REG:
        raise ScheduleError("tree", where, "the updated buffer is in memory", remedy="compute_at(BUFFER, LOOP, reg)")
    check_exchange(target.body, [target.loop.sym], "tree", where)
    kinds = [s.loop.kind for s in enclosing(kernel.body, target) if isinstance(s, For)]
    in_thread = Kind.THREAD in kinds
    if Kind.BLOCK not in kinds or Kind.WARP in kinds or warps < 1 or (in_thread and warps > 1):
        raise ScheduleError("tree", where, "it is in no block, or in threads already", remedy="kind(LOOP, block) first")
    if lanes < 1 or mod(target.loop.extent, lanes) != 0:
        raise ScheduleError("tree", where, f"{target.loop.extent} iterations are no multiple of {lanes}")
    made = _Tree(kernel, target.loop, update, others, None if in_thread else warps, lanes)
    done = replace_stmt(kernel, target, *made.statements())
    return replace(done, places=(*done.places, *made.places))


class _Tree:
    """The phases of one ``tree``, and its buffers; in a thread that is a warp there are no ``warps``."""

    def __init__(self, kernel: Kernel, loop: Loop, update: Update, others: Body, warps: int | None, lanes: int) -> None:
        self.kernel, self.loop, self.update, self.others = kernel, loop, update, others
        self.warps, self.lanes, self.warp = warps, lanes, kernel.lanes
        self.places: list[Place] = []
        self.taken: set[str] = set()

    def statements(self) -> list[Stmt]:
        """From the partial results to the update with what they come to."""
        u = self.update
        own = () if self.warps is None else (self.warps,)
        part = self._buffer("p", (*own, self.warp, self.lanes), Space.LOCAL)
        out = [
            self._phase(
                "i", self.warp, lambda w, lane: self._vector(lambda v: (Store(part, (*w, lane, v), self._zero),))
            ),
            self._phase("s", self.warp, partial(self._steps, part)),
        ]
        if self.warps is None:
            return [*out, self._across(u.buffer, u.index, part, ())]
        sums = self._buffer("q", own, Space.LOCAL)
        shared = self._buffer("z", own, Space.SHARED)
        w = new_loop(self._name("w"), self.warps, Kind.THREAD)
        out.append(For(w, (Store(sums, (w.sym,), self._zero), self._across(sums, (w.sym,), part, (w.sym,)))))
        out.append(self._phase("z", 1, lambda w, _: (Store(shared, w, Load(sums, w)),)))
        k = new_loop(self._name("k"), self.warps, Kind.UNROLL)
        return [*out, For(k, (Update(u.buffer, u.index, u.op, Load(shared, (k.sym,))),))]

    @property
    def _zero(self) -> Value:
        return identity_of(self.update.op, self.update.buffer.dtype)

    def _steps(self, part: Buffer, w: tuple[Dim, ...], lane: Dim) -> Body:
        """A lane's share of the loop."""
        u, extent = self.update, self.loop.extent
        n_lanes = (self.warps or 1) * self.warp
        chunk = n_lanes * self.lanes
        step = new_loop(self._name("j"), ceildiv(extent, chunk))
        turn = step.sym * n_lanes + (*w, 0)[0] * self.warp + lane

        def leaf(v: Dim) -> Body:
            moved = (*self.others, Update(part, (*w, lane, v), u.op, u.value))
            return substitute_body(moved, {self.loop.sym: turn * self.lanes + v})

        inside = self._vector(leaf)
        if mod(extent, chunk) != 0:
            inside = (If(Inside((floordiv(extent, self.lanes) - 1 - turn,)), inside),)
        return (For(step, inside),)

    def _across(self, to: Buffer, index: tuple[IndexLike, ...], part: Buffer, w: tuple[Dim, ...]) -> Stmt:
        """What a warp's lanes come to, in an element that each of them gets."""
        lane = new_loop(self._name("l"), self.warp, Kind.WARP)
        values: list[Value] = [Load(part, (*w, lane.sym, v)) for v in range(self.lanes)]
        while len(values) > 1:
            half = -(-len(values) // 2)
            pairs = zip(values, values[half:], strict=False)
            values = [*[Binary(self.update.op, a, b) for a, b in pairs], *values[len(values) - half : half]]
        return For(lane, (Update(to, index, self.update.op, values[0]),))

    def _vector(self, leaf: Callable[[Dim], Body]) -> Body:
        v = new_loop(self._name("v"), self.lanes, Kind.VECTOR)
        return leaf(0) if self.lanes == 1 else (For(v, leaf(v.sym)),)

    def _phase(self, name: str, n_lanes: int, body: Callable[[tuple[Dim, ...], Dim], Body]) -> Stmt:
        """What every lane of every warp does."""
        lane = new_loop(self._name(f"{name}_l"), n_lanes, Kind.WARP)
        if self.warps is None:
            return For(lane, body((), lane.sym))
        w = new_loop(self._name(f"{name}_w"), self.warps, Kind.THREAD)
        return For(w, (For(lane, body((w.sym,), lane.sym)),))

    def _buffer(self, suffix: str, shape: tuple[int, ...], space: Space) -> Buffer:
        name = fresh_among(self.kernel, f"{identifier(self.update.buffer.name)}_{suffix}", self.taken)
        made = Buffer(name, self.update.buffer.dtype, shape)
        self.places.append(Place(made, space))
        return made

    def _name(self, suffix: str) -> str:
        return fresh_among(self.kernel, f"{self.loop.sym.name}_{suffix}", self.taken)


_Leaf = Callable[[Dim], Body]


class _Partials:
    """The statements of one ``rfactor``."""

    def __init__(
        self, kernel: Kernel, loop: Loop, update: Update, others: Body, part: Buffer, unrolled: int, lanes: int
    ) -> None:
        self.kernel, self.loop, self.update, self.others, self.part = kernel, loop, update, others, part
        self.unrolled, self.lanes = unrolled, lanes
        self.taken: set[str] = set()

    def start(self) -> Stmt:
        """The partial results are the identity."""
        return self._grid("init", self.unrolled, self.lanes, lambda at: (Store(self.part, (at,), self._identity()),))

    def partials(self, n: Dim) -> list[Stmt]:
        """The loop, in blocks and rests."""
        block, w = self.unrolled * self.lanes, self.lanes
        out: list[Stmt] = []
        blocks = floordiv(n, block)
        if blocks != 0:
            outer = self._loop("o", blocks)
            out.append(For(outer, (self._partial("b", self.unrolled, w, outer.sym * block),)))
        rest = mod(n, block)
        if is_known(rest):
            if rest // w:
                out.append(self._partial("v", rest // w, w, blocks * block))
            if rest % w:
                out.append(self._partial("t", 1, rest % w, blocks * block + rest // w * w))
        else:
            vectors = self._loop("v", ceildiv(rest, w))
            lane = Loop(Sym(self._name("v_l"), 0, w - 1), minimum(w, rest - vectors.sym * w), Kind.VECTOR)
            at = blocks * block + vectors.sym * w + lane.sym
            out.append(For(vectors, (For(lane, self._at(at, self.part, (lane.sym,))),)))
        return out

    def end(self) -> list[Stmt]:
        """The partial results fold in pairs, then by lanes."""
        out: list[Stmt] = []
        half = self.unrolled // 2
        while half:
            out.append(self._grid(f"h{half}", half, self.lanes, self._pair(half)))
            half //= 2
        lane = Loop(Sym(self._name("l"), 0, self.lanes - 1), self.lanes, Kind.VECTOR)
        u = self.update
        out.append(For(lane, (Update(u.buffer, u.index, u.op, Load(self.part, (lane.sym,))),)))
        return out

    def _identity(self) -> Value:
        return identity_of(self.update.op, self.part.dtype)

    def _pair(self, half: int) -> _Leaf:
        def pair(at: Dim) -> Body:
            return (Update(self.part, (at,), self.update.op, Load(self.part, (at + half * self.lanes,))),)

        return pair

    def _partial(self, name: str, rows: int, width: int, base: Dim) -> Stmt:
        return self._grid(name, rows, width, lambda at: self._at(base + at, self.part, (at,)))

    def _at(self, c: Dim, buffer: Buffer, index: tuple[IndexLike, ...]) -> Body:
        """The loop's statements at element ``c``, the update going to another place."""
        *others, moved = substitute_body((*self.others, self.update), {self.loop.sym: c})
        assert isinstance(moved, Update)
        return (*others, Update(buffer, index, moved.op, moved.value))

    def _grid(self, name: str, rows: int, width: int, leaf: _Leaf) -> Stmt:
        lane = Loop(Sym(self._name(f"{name}_l"), 0, self.lanes - 1), width, Kind.VECTOR)
        if rows == 1:
            return For(lane, leaf(lane.sym))
        row = Loop(Sym(self._name(f"{name}_u"), 0, rows - 1), rows, Kind.UNROLL)
        return For(row, (For(lane, leaf(row.sym * self.lanes + lane.sym)),))

    def _loop(self, name: str, extent: Dim) -> Loop:
        return new_loop(self._name(name), extent)

    def _name(self, suffix: str) -> str:
        return fresh_among(self.kernel, f"{self.loop.sym.name}_{suffix}", self.taken)
