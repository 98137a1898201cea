"""Primitives on operands: pack (a constant, at compile time), stage (a copy at run time), panels, and hints.

In: a kernel, the name of a buffer that it reads. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: loops (``loops``), results (``stages``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod

from tilewright.core.compute import Buffer, IndexLike, Load, Select
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known_at_least, known_at_most, known_under
from tilewright.core.estimates import MOST_GROWTH
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, mod, substitute, symbols
from tilewright.core.indices import chosen, is_chosen, placed, symbols_in
from tilewright.core.types import product
from tilewright.tile.affine import coefficient, is_affine, never_negative, stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import (
    IN_MEMORY,
    NESTS,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Packed,
    Place,
    Prefetch,
    Role,
    Space,
    Stmt,
    Store,
    walk,
)
from tilewright.tile.rewrite import (
    Body,
    loads_of,
    loop_sym,
    loops_of,
    reads,
    rewrite_accesses,
    symbols_of_index,
    values_of,
)
from tilewright.tile.schedule.tree import (
    Nest,
    enclosing,
    find_loop,
    find_place,
    fresh,
    identifier,
    most_iterations,
    readers,
    replace_stmt,
    with_body,
    without_idle_hints,
)

SMALL = 4096
"""Elements that a small constant counts as: its copies stay in a near cache."""
MANY = 4
"""Steps a line, from where on hints touch the lines of their own tile alone, again and again."""


def pack(kernel: Kernel, buffer: str) -> Kernel:
    """A constant operand re-laid in the order in which the loops walk it.

    Before: ``for jo: for k: for l: ... B[k, 16*jo + l]``. After: ``... B_p[jo, k, l]`` and a recipe that builds ``B_p``
    from B at compile time (elements outside of B are 0). Accesses with equal recipes share one packed parameter, and so
    does one whose copies walk several steps at once of a loop that another walks one by one: ``B_p[2*jo + c, k, l]``.
    The first parameter stands where B stood if nothing reads B any more. Fails: B is no constant, is empty, or is
    read at a run-time index; a loop that it depends on has no bound; the packed form would be over four times as large,
    and large.
    """
    spot = find_place(kernel, buffer, "pack")
    if spot.role is not Role.CONST:
        raise ScheduleError("pack", buffer, f"it is {spot.role.value}, not a constant", remedy="use stage")
    source = spot.buffer
    if 0 in source.shape:
        raise ScheduleError("pack", buffer, "it is empty")
    recipes: dict[tuple[object, ...], Packed] = {}
    new_at: dict[tuple[IndexLike, ...], Load] = {}
    for path, load in paths_to(kernel.body, source, ()):
        if load.index not in new_at:
            grid, index = _walk_order(path, load, buffer)
            shared = (found for found in _joined(grid, index) if _key(source, *found[:2]) in recipes)
            grid, index, at = next(shared, (grid, index, tuple(x.sym for x in grid) or (0,)))
            recipe = _recipe(kernel, source, grid, index, recipes)
            new_at[load.index] = Load(recipe.param, at)
    if not recipes:
        raise ScheduleError("pack", buffer, "nothing reads it")
    body = rewrite_accesses(kernel.body, lambda b, ix: new_at.get(ix) if b is source else None)
    places: list[Place] = []
    for p in kernel.places:
        places.extend([Place(r.param, Space.GLOBAL, Role.CONST) for r in recipes.values()] if p is spot else [p])
    return with_body(replace(kernel, places=tuple(places), packed=(*kernel.packed, *recipes.values())), body)


def paths_to(body: Body, buffer: Buffer, path: tuple[Loop, ...]) -> list[tuple[tuple[Loop, ...], Load]]:
    """Every load of ``buffer`` with the loops around it."""
    found: list[tuple[tuple[Loop, ...], Load]] = []
    for s in body:
        if reads(s, buffer):
            found.extend((path, x) for x in loads_of(s) if x.buffer is buffer)
        if isinstance(s, For):
            found.extend(paths_to(s.body, buffer, (*path, s.loop)))
        elif isinstance(s, If):
            found.extend(paths_to(s.body, buffer, path))
    return found


def _walk_order(path: tuple[Loop, ...], load: Load, where: str) -> tuple[list[Loop], tuple[Dim, ...]]:
    """The loops that the access depends on, in their order, lanes last; and the access's index."""
    index: list[Dim] = []
    for i in load.index:
        if is_chosen(i):
            raise ScheduleError("pack", where, "it is read at a run-time index")
        index.append(i)
    used = frozenset().union(*(symbols(i) for i in index)) if index else frozenset()
    loops = [x for x in path if x.sym in used]
    if used - {x.sym for x in loops}:
        raise ScheduleError("pack", where, f"its index depends on run-time sizes: {index}")
    if any(x.sym.hi is None for x in loops):
        raise ScheduleError("pack", where, "a loop that walks it has no bound known at compile time")
    loops.sort(key=lambda x: x.kind in (Kind.VECTOR, Kind.DOT))
    return loops, tuple(index)


def _joined(grid: list[Loop], index: tuple[Dim, ...]) -> Iterator[tuple[list[Loop], tuple[Dim, ...], tuple[Dim, ...]]]:
    """Each copied loop as one with the loop whose steps it divides, or, where its copies are all, in another's place.

    Loops, the access by them, and their values.
    """
    for copies in (x for x in grid if x.kind is Kind.UNROLL):
        others = [x for x in grid if x is not copies]
        for at in range(len(grid)):
            loops = [*others[:at], copies, *others[at:]]
            yield loops, index, tuple(x.sym for x in loops)
    for outer, copies in permutations(grid, 2):
        steps = [(coefficient(i, outer.sym), coefficient(i, copies.sym)) for i in index]
        n = copies.extent
        if copies.kind is not Kind.UNROLL or not is_known(n) or any(a is None or b is None for a, b in steps):
            continue
        if all(a == n * b for a, b in steps if a is not None and b is not None) and outer.sym.hi is not None:
            whole = loop_sym(outer.sym.name, (outer.sym.hi + 1) * n)
            one = replace(outer, sym=whole, extent=(outer.sym.hi + 1) * n)
            loops = [one if x is outer else x for x in grid if x is not copies]
            moved = tuple(substitute(i, {outer.sym: 0, copies.sym: whole}) for i in index)
            values: dict[Sym, Dim] = {whole: n * outer.sym + copies.sym}
            yield loops, moved, tuple(substitute(x.sym, values) for x in loops)


def _key(source: Buffer, grid: list[Loop], index: tuple[Dim, ...]) -> tuple[object, ...]:
    shape, _, at = _form(grid, index)
    return shape, at


def _form(grid: list[Loop], index: tuple[Dim, ...]) -> tuple[tuple[int, ...], tuple[Sym, ...], tuple[Dim, ...]]:
    """A packed parameter's shape, its indices, and where they read the source."""
    shape = tuple(x.sym.hi + 1 for x in grid if x.sym.hi is not None) or (1,)
    syms = tuple(loop_sym(f"g{d}", n) for d, n in enumerate(shape))
    renamed: dict[Sym, Dim] = {x.sym: g for x, g in zip(grid, syms, strict=False)}
    return shape, syms, tuple(substitute(i, renamed) for i in index)


def _recipe(
    kernel: Kernel, source: Buffer, grid: list[Loop], index: tuple[Dim, ...], known: dict[tuple[object, ...], Packed]
) -> Packed:
    shape, syms, at = _form(grid, index)
    old_size, new_size = product(source.shape), product(shape)
    if is_known(old_size) and is_known(new_size) and new_size > MOST_GROWTH * max(old_size, SMALL):
        raise ScheduleError("pack", source.name, f"{new_size} elements instead of {old_size}")
    key = (shape, at)
    if key not in known:
        suffix = "_p" if not known else f"_p{len(known)}"
        param = Buffer(fresh(kernel, source.name + suffix), source.dtype, shape)
        known[key] = Packed(param, source, syms, at)
    return known[key]


def stage(kernel: Kernel, buffer: str, loop: str, space: str = "local", order: str = "walk") -> Kernel:
    """A run-time operand is copied, at the top of ``loop``'s body, into the order in which the loops inside walk it.

    With ``order="source"`` the copy keeps the operand's own order (its box becomes dense: no stride of a power of two).

    Before: ``for jo: for k: for l: ... B[16*jo + l, k]``.
    After: ``for jo: (for k', l': B_s[k', l'] = B[16*jo + l', k']); for k: for l: ... B_s[k, l]``.
    The copies of loop ``x`` are called ``x_Bs``. Fails: the loop's body reads the buffer at several indices, at a
    run-time index, or writes it; a loop inside has no known bound; a guard, or a loop that may have no iteration, keeps
    reads inside of the buffer, which the copy would not be.
    """
    spot, at = find_place(kernel, buffer, "stage"), find_loop(kernel, loop, "stage")
    old, where = spot.buffer, f"{buffer}, {loop}"
    paths = paths_to(at.body, old, ())
    if len({x.index for _, x in paths}) != 1:
        raise ScheduleError("stage", where, "the loop's body does not read it at exactly one index")
    if spot.role in (Role.OUT, Role.TMP):
        raise ScheduleError("stage", where, "only an input or a constant keeps its content while it is copied")
    path, load = paths[0]
    loops = [x for x in path if x.sym in symbols_in(load.index)]
    # In the order of the walk the tile reads the copy in one run; in the operand's own, copying reads that in one.
    if order == "source":
        loops.sort(key=lambda x: -_distance(load, x.sym))
    else:
        loops.sort(key=lambda x: x.kind in (Kind.VECTOR, Kind.DOT))
    if chosen(load.index) or any(x.sym.hi is None for x in loops):
        raise ScheduleError("stage", where, "its index, or a loop that walks it, has no bound known at compile time")
    # The copy stands outside of the loops that don't walk the operand, which no extent of its own may depend on then.
    free = {x.sym for x in path} - {x.sym for x in loops}
    if any(symbols(x.extent) & free for x in loops):
        raise ScheduleError("stage", where, "an extent depends on a loop that does not walk it")
    if _may_reach_beyond(kernel, at, path, load, free):
        raise ScheduleError("stage", where, "a guard keeps its reads inside of it, and the copy has none")
    shape = tuple(x.sym.hi + 1 for x in loops if x.sym.hi is not None) or (1,)
    new = Buffer(fresh(kernel, f"{identifier(buffer)}_s"), old.dtype, shape)
    copies: dict[Sym, Dim] = {}
    fresh_loops: list[Loop] = []
    for x in loops:
        sym = Sym(fresh(kernel, f"{x.sym.name}_{new.name}"), x.sym.lo, x.sym.hi)
        fresh_loops.append(Loop(sym, substitute(x.extent, copies), x.kind))
        copies[x.sym] = sym
    source = Load(old, tuple(substitute(i, copies) for i in placed(load.index)))
    target = tuple(copies[x.sym] for x in loops) or (0,)
    copy = Nest(tuple(fresh_loops), (Store(new, target, source),)).wrap() if loops else Store(new, target, source)
    here = Load(new, tuple(x.sym for x in loops) or (0,))
    body = rewrite_accesses(at.body, lambda b, ix: here if b is old and ix == load.index else None)
    done = replace_stmt(kernel, at, For(at.loop, (copy, *body)))
    staged = replace(done, places=(*done.places, Place(new, Space(space))))
    return without_idle_hints(staged, new)


def _may_reach_beyond(kernel: Kernel, at: For, path: tuple[Loop, ...], load: Load, free: Container[Sym]) -> bool:
    """Might a copy at the top of ``at``'s body read outside of the buffer where ``load``, on its ``path``, does not?

    Only if something decides whether the load runs at all: a guard, a selection, or a loop that the copy leaves out.
    """
    around = [x.loop for x in (*enclosing(kernel.body, at), at) if isinstance(x, For)]
    extents = {x.sym: x.extent for x in (*around, *path)}
    always = all(never_negative(x.extent - 1, extents) for x in path if x.sym in free)
    if always and not any(_is_guarded(s, load) for s in walk(at.body)):
        return False
    return not all(
        never_negative(i, extents) and never_negative(n - 1 - i, extents)
        for i, n in zip(placed(load.index), load.buffer.shape, strict=True)
    )


def _is_guarded(s: Stmt, load: Load) -> bool:
    """Is a load of this place in a guard's body, or in a value that is chosen or not?"""
    if isinstance(s, If):
        return any(_is_of(x, load) for inner in walk(s.body) for x in loads_of(inner))
    chosen_from = [y for v in values_of(s) for y in walk_value(v) if isinstance(y, Select)]
    return any(isinstance(x, Load) and _is_of(x, load) for y in chosen_from for x in walk_value(y))


def _is_of(x: Load, load: Load) -> bool:
    return x.buffer is load.buffer and x.index == load.index


def panels(kernel: Kernel, buffer: str, dim: int, depth: int, width: int) -> Kernel:
    """A temporary whose dimensions ``dim`` and ``dim + 1`` are cut into panels of ``depth`` by ``width`` elements.

    Before: ``T[k, j]``. After: ``T[k // depth, j // width, k % depth, j % width]``, each panel in one run. Fails: T is
    no temporary in memory, or has no such dimensions; an access goes from one panel to the next other than by a loop
    of its own (split that loop first). Hints have no such loop: they go on to the same place of a panel further on.
    """
    spot, where = find_place(kernel, buffer, "panels"), f"{buffer}, {dim}"
    old = spot.buffer
    if spot.role is not Role.TMP or spot.space is not Space.GLOBAL:
        raise ScheduleError("panels", where, "only a temporary in memory may lie as it likes")
    if not 0 <= dim < len(old.shape) - 1 or depth < 1 or width < 1:
        raise ScheduleError("panels", where, f"no panels of {depth} by {width} in {old}")
    known = {x.sym for x in loops_of(kernel.body)}

    def cut(index: tuple[IndexLike, ...]) -> tuple[IndexLike, ...]:
        k, j = index[dim : dim + 2]
        if is_chosen(k) or is_chosen(j):
            raise ScheduleError("panels", where, "it is accessed at a run-time index")
        across = (floordiv(j, width), mod(j, width))
        # Accesses stay inside of the buffer: where a panel is as deep as that, there is no other one to go to.
        down = (0, k) if is_deep else (floordiv(k, depth), mod(k, depth))
        if not all(is_affine(i, known) for i in (across if is_deep else (*across, *down))):
            raise ScheduleError("panels", where, f"{index} does not go from panel to panel by loops of its own")
        return (*index[:dim], down[0], across[0], down[1], across[1], *index[dim + 2 :])

    k, j = old.shape[dim : dim + 2]
    is_deep = known_at_most(k, depth)
    shape = (*old.shape[:dim], ceildiv(k, depth), ceildiv(j, width), depth, width, *old.shape[dim + 2 :])
    new = Buffer(old.name, old.dtype, shape)
    places = tuple(replace(p, buffer=new) if p is spot else p for p in kernel.places)
    hinted = _hints_in_panels(kernel.body, old, dim + 1, width)
    body = rewrite_accesses(hinted, lambda b, ix: Load(new, cut(ix)) if b is old else None)
    return with_body(replace(kernel, places=places), body)


def _hints_in_panels(body: Body, buffer: Buffer, dim: int, width: int) -> Body:
    """A hint that would go from one panel to the next inside of a loop asks for what lies a little further ahead."""
    known = {x.sym for x in loops_of(body)}

    def ahead(i: Dim) -> Dim:
        further = (i + n for n in range(width))
        return next((j for j in further if all(is_affine(x, known) for x in (floordiv(j, width), mod(j, width)))), i)

    def go(s: Stmt) -> Stmt:
        if isinstance(s, For | If):
            return replace(s, body=tuple(map(go, s.body)))
        if not isinstance(s, Prefetch) or s.buffer is not buffer:
            return s
        return Prefetch(buffer, tuple(ahead(i) if k == dim and not is_chosen(i) else i for k, i in enumerate(s.index)))

    return tuple(map(go, body))


def _distance(load: Load, sym: Sym) -> int:
    step = stride_along(load.buffer, load.index, sym)
    return abs(step) if is_known(step) else 1 << 62


def prefetch(kernel: Kernel, buffer: str, panel: str, inner: str, line: int, spread: str = "") -> Kernel:
    """While panel ``p`` of an operand is used, hint at panel ``p + 1``, one cache line an iteration of ``inner``.

    The operand's dimensions up to the one that ``panel`` walks stay, the rest is a stream: step ``n`` of the serial
    loops that walk the panel touches element ``line * n`` of it. With ``spread``, a loop between that does not walk it,
    its iterations share the work in turns, as many as the panel has lines per step, then begin again (wrapped inside
    the panel), and go on from the turn at which loops before it in the panel's left off; where it has fewer iterations
    than that, every step hints at several places, all of the panel in the end. Fails: the buffer is not read under
    ``inner`` with ``panel`` alone as one of its indices.
    """
    spot, target = _in_lines(kernel, buffer, line, "prefetch"), find_loop(kernel, inner, "prefetch")
    top, where = find_loop(kernel, panel, "prefetch"), f"{buffer}, {panel}, {inner}"
    outer, load = top.loop.sym, next(readers(target.body, spot.buffer), None)
    depth = None if load is None else next((d for d, i in enumerate(load.index) if i == outer), None)
    if load is None or depth is None:
        raise ScheduleError("prefetch", where, "the loop does not read the buffer panel by panel")
    # A load under another loop may read the same elements.
    alike = (p for p, x in paths_to(kernel.body, spot.buffer, ()) if x is load or x.index == load.index)
    path = next(p for p in alike if target.loop in p)
    around = path[: path.index(target.loop) + 1]
    # Copied loops are no steps: what they touch belongs to the step that they are in.
    walkers = [x for x in around if x.kind is Kind.SERIAL and x.sym in symbols_in(load.index[depth + 1 :])]
    rest = product(spot.buffer.shape[depth + 1 :])
    steps, n = product([x.extent for x in walkers]), _flat(walkers)
    if not is_known(rest) or not known_at_least(steps, 1) or target.loop.sym not in symbols(n):
        raise ScheduleError("prefetch", where, "the panel's size is not known at compile time")
    # A panel with more lines than steps leaves some of them to other iterations of the loop between; one with fewer, of
    # bytes, is asked for in smaller steps: lines of the panel behind it would push this one out of a small cache.
    turns, places = max(rest // (steps * line), 1), [n * min(line, max(rest // steps, 1))]
    if spread and turns > 1:
        sharing = find_loop(kernel, spread, "prefetch").loop
        places = [(n + mod(_turns_before(top.body, sharing, spot.buffer) + sharing.sym, turns) * steps) * line]
        if known_under(sharing.extent, turns):
            all_steps, n = steps * sharing.extent, n + sharing.sym * steps
            whole = all_steps * line * ((turns - 1) // sharing.extent)
            places = [n * line + first for first in range(0, whole, all_steps * line)]
            apart = -(-(rest - whole) // all_steps)
            places.append(mod(n, -(-(rest - whole) // apart)) * apart + whole)
    zeros: list[IndexLike] = [0] * (len(spot.buffer.shape) - depth - 2)
    before = (*load.index[:depth], outer + 1, *zeros)
    hints = [Prefetch(spot.buffer, (*before, e)[: len(spot.buffer.shape)]) for e in places]
    return replace_stmt(kernel, target, For(target.loop, (*hints, *target.body)))


def _turns_before(body: Body, sharing: Loop, buffer: Buffer) -> Dim:
    """The iterations of loops of a body before that which is or holds ``sharing``, as far as they read the buffer."""
    done: Dim = 0
    for s in body:
        if sharing in loops_of((s,)):
            break
        if isinstance(s, For) and next(readers(s.body, buffer), None) is not None:
            done = done + s.loop.extent
    return done


def hint(kernel: Kernel, buffer: str, inner: str, line: int) -> Kernel:
    """While a tile's sums are made, ask for what is read of an operand soon, one line a step of ``inner``.

    Before: ``for t: (for k: X); for i<m: for l<n: .. B[m*t + i, l]``. After: ``for t: (for k: prefetch
    B[m*t + k % m, 0]; X); ..``. Steps are those of the serial loops down to ``inner``, from the loop whose body holds
    the nest; lines are ``line`` elements apart along the loops that walk the operand in one run, in the nest's order.
    With ``MANY`` steps a line or more they are asked for again and again, which keeps them in a small cache. With
    fewer, steps run on into what the next iteration of ``t`` will read, two lines a step where need be. Of an operand
    that ``inner`` itself reads, lines are those of the next iteration of ``t``, several a step where need be:
    ``for t: for k: X(B[m*t + i, k])`` asks for ``B[m*t + m + i, k]``. Fails: neither ``inner`` nor a nest behind it
    reads the buffer, or at several places, or where the data say; ``inner`` is not serial; a loop that moves the access
    has no known bound; a nest behind reads more lines than there are steps; no loop outside moves on to a next tile.
    """
    spot, target = _in_lines(kernel, buffer, line, "hint"), find_loop(kernel, inner, "hint")
    where = f"{buffer}, {inner}"
    path = [s for s in enclosing(kernel.body, target) if isinstance(s, For)]
    if target.loop.kind is not Kind.SERIAL:
        raise ScheduleError("hint", where, "the loop's steps are not serial")
    # An operand of the loop itself is fetched for the next tile; one of a nest behind it, while this tile is summed.
    is_own = next(readers(target.body, spot.buffer), None) is not None
    depth, nest = (len(path) - 1, target) if is_own else next(_read_behind(spot.buffer, [*path, target]), (0, target))
    place = _one_place(nest, spot.buffer) if is_own or nest is not target else None
    if place is None:
        raise ScheduleError("hint", where, "neither it nor a nest behind it reads it at one place that loops decide")
    index, walking = place
    if not walking or any(x.sym.hi is None for x in walking):
        raise ScheduleError("hint", where, "the places that are read have no bound known at compile time")
    serial = [s.loop for s in (*path[depth + 1 :], target) if s.loop.kind is Kind.SERIAL]
    lines = _Lines.of(spot.buffer, index, walking, line)
    tile = next((s.loop.sym for s in reversed(path[: depth + 1]) if any(s.loop.sym in symbols(i) for i in index)), None)
    steps, n = product([x.extent for x in serial]), _flat(serial)
    if not is_own and known_under(steps, lines.count):
        raise ScheduleError("hint", where, f"{steps} steps can't ask for {lines.count} lines")
    places = [mod(n, lines.count)]
    if is_own:
        if tile is None:
            raise ScheduleError("hint", where, "no loop outside moves on to a next tile")
        each = 1 if not is_known(steps) else -(-lines.count // steps)
        places = [mod(n * each + k, lines.count) + lines.count for k in range(each)]
    elif known_under(steps, lines.count * MANY) and tile is not None:
        # Too few steps to ask for each line again and again: they run on into what the next tile reads.
        each = -(-2 * lines.count // steps)
        places = [n * each + k for k in range(each)]
    hints = [Prefetch(spot.buffer, lines.at(x, tile)) for x in places]
    return replace_stmt(kernel, target, For(target.loop, (*hints, *target.body)))


def stream(kernel: Kernel, buffer: str, inner: str, steps: int, line: int) -> Kernel:
    """Each step of ``inner`` asks for all lines that the step ``steps`` later reads of a buffer, or else writes.

    Lines are ``line`` elements apart. What the last steps ask for lies behind what the loop reads, or out of bounds.
    Fails: ``inner`` is not serial, does not use the buffer, or at several places, or where the data say, or in loops
    whose bounds are not known; the place does not move with it.
    """
    spot, target = _in_lines(kernel, buffer, line, "stream"), find_loop(kernel, inner, "stream")
    where = f"{buffer}, {inner}"
    if target.loop.kind is not Kind.SERIAL:
        raise ScheduleError("stream", where, "the loop's steps are not serial")
    place = _one_place(target, spot.buffer, or_written=True)
    if place is None:
        raise ScheduleError("stream", where, "the loop does not use it at one place that loops decide")
    (index, walking), sym = place, target.loop.sym
    of_step = [x for x in walking if x.sym != sym]
    if any(x.sym.hi is None for x in of_step) or len(of_step) == len(walking):
        raise ScheduleError("stream", where, "what a step uses is not known at compile time, or the same in all")
    later = tuple(substitute(i, {sym: sym + steps}) for i in index)
    lines = _Lines.of(spot.buffer, later, of_step, line)
    hints = [Prefetch(spot.buffer, lines.at(n, None)) for n in range(lines.count)]
    return replace_stmt(kernel, target, For(target.loop, (*hints, *target.body)))


def _in_lines(kernel: Kernel, buffer: str, line: int, primitive: str) -> Place:
    """The place of what is asked for in lines of a cache."""
    if line < 1:
        raise ScheduleError(primitive, str(line), "a cache line has an element or more")
    spot = find_place(kernel, buffer, primitive)
    if spot.space not in IN_MEMORY:
        raise ScheduleError(primitive, buffer, "it does not lie in memory")
    return spot


def _one_place(nest: Stmt, buffer: Buffer, *, or_written: bool = False) -> tuple[tuple[Dim, ...], list[Loop]] | None:
    """The one index at which the nest reads the buffer, and the nest's loops that move it; None for several or none.

    None, too, where the data decide a part of it. With ``or_written`` of a buffer that it only writes, where it does.
    """
    found: list[tuple[tuple[Loop, ...], tuple[IndexLike, ...]]]
    found = [(path, x.index) for path, x in paths_to((nest,), buffer, ())]
    if or_written and not found:
        found = [(path, s.index) for path, s in _stores_to((nest,), buffer, ())]
    if len({index for _, index in found}) != 1:
        return None
    path, at = found[0]
    index = placed(at)
    used = symbols_of_index(index)
    return (index, [x for x in path if x.sym in used]) if len(index) == len(buffer.shape) else None


def _stores_to(body: Body, buffer: Buffer, path: tuple[Loop, ...]) -> Iterator[tuple[tuple[Loop, ...], Store]]:
    """Every store to ``buffer`` with the loops around it."""
    for s in body:
        if isinstance(s, Store) and s.buffer is buffer:
            yield path, s
        elif isinstance(s, NESTS):
            yield from _stores_to(s.body, buffer, (*path, s.loop) if isinstance(s, For) else path)


@dataclass(frozen=True)
class _Lines:
    """The lines that a nest reads of an operand, numbered in the order of its loops.

    ``runs``: loops that together walk one run, of every element or of one of a few, how many lines that is, and how
    many iterations from line to line; every other loop is a run of its own. ``covered`` are loops whose steps are
    shorter than what those inside walk at most, as rows that end within a vector: the innermost loop walks on through
    all of them.
    """

    index: tuple[Dim, ...]
    runs: tuple[tuple[tuple[Loop, ...], int, int], ...]
    covered: tuple[Loop, ...] = ()

    @classmethod
    def of(cls, buffer: Buffer, index: tuple[Dim, ...], loops: list[Loop], line: int) -> _Lines:
        apart: list[tuple[Loop, Dim | None]] = []
        together: tuple[Loop, ...] = ()
        n_elements, unit = 1, _unit(buffer, index, loops, line)
        for x in reversed(loops):
            step = stride_along(buffer, index, x.sym)
            if step == n_elements * unit:
                together, n_elements = (x, *together), n_elements * most_iterations(x)
            else:
                apart.insert(0, (x, step))
        short = {x: n for x, n in apart if unit == 1 and is_known(n) and 0 < n < n_elements}
        n_elements += sum(n * (most_iterations(x) - 1) for x, n in short.items())
        covered = tuple(short)
        if short:
            *others, innermost = together
            together, covered = (innermost,), (*covered, *others)
        runs = [((x,), most_iterations(x), 1) for x, _ in apart if x not in short]
        return cls(index, (*runs, (together, -(-n_elements * unit // line), line // unit)), covered)

    @property
    def count(self) -> int:
        return prod(n for _, n, _ in self.runs)

    def at(self, n: Dim, tile: Sym | None) -> tuple[Dim, ...]:
        """Where line ``n`` begins; from ``count`` on, in later iterations of ``tile``."""
        values: dict[Sym, Dim] = {x.sym: 0 for x in self.covered}
        for loops, size, step in reversed(self.runs):
            element, n = mod(n, size) * step, floordiv(n, size)
            if self.covered and loops is self.runs[-1][0]:
                values[loops[0].sym] = element
                continue
            for x in reversed(loops):
                values[x.sym], element = mod(element, most_iterations(x)), floordiv(element, most_iterations(x))
        if tile is not None:
            values[tile] = tile + n
        return tuple(substitute(i, values) for i in self.index)


def _unit(buffer: Buffer, index: tuple[Dim, ...], loops: list[Loop], line: int) -> int:
    """How far the innermost loop's elements lie apart, where a line holds a whole number of them."""
    step = stride_along(buffer, index, loops[-1].sym) if loops else 1
    return step if is_known(step) and step > 0 and line % step == 0 else 1


def _read_behind(buffer: Buffer, path: list[For]) -> Iterator[tuple[int, Stmt]]:
    """What follows the last loop of a path, or a loop of it around, and reads the buffer: the nearest first.

    With each, the number of the loop whose body holds both.
    """
    for depth in reversed(range(len(path) - 1)):
        body = path[depth].body
        at = next(k for k, s in enumerate(body) if any(x is path[depth + 1] for x in walk((s,))))
        yield from ((depth, s) for s in body[at + 1 :] if next(readers((s,), buffer), None))


def _flat(loops: list[Loop]) -> Dim:
    """The number of a step in a nest of loops."""
    n: Dim = 0
    for x in loops:
        n = n * x.extent + x.sym
    return n
