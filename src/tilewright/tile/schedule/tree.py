"""Finding and replacing parts of a kernel by the names of its loops and buffers.

In: a kernel, names. Out: loops, nests, edited kernels; a ``ScheduleError`` when a name is not there.
Not its business: legality (each primitive states its own).

A handle is a name: loops have unique names in a kernel, a stage is known by the buffer that it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tilewright.core.compute import Buffer, Load, Value, symbols_of_value
from tilewright.core.expr import Dim, Sym
from tilewright.core.indices import chosen, symbols_in
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import (
    NESTS,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Place,
    Prefetch,
    Space,
    Stmt,
    Update,
    touched_by,
    walk,
    written_in,
)
from tilewright.tile.rewrite import Body, loads_of, loop_sym, loops_of, sizes_of


@dataclass(frozen=True)
class Nest:
    """A perfect nest: its loops, outermost first, and the statements inside."""

    loops: tuple[Loop, ...]
    leaf: Body

    def wrap(self) -> Stmt:
        """The nest as one statement (at least one loop)."""
        body = self.leaf
        for loop in reversed(self.loops):
            body = (For(loop, body),)
        return body[0]


def nest_of(s: Stmt) -> Nest:
    """The longest perfect nest that starts at ``s``."""
    loops: list[Loop] = []
    body: Body = (s,)
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0].loop)
        body = body[0].body
    return Nest(tuple(loops), body)


def find_loop(kernel: Kernel, name: str, primitive: str) -> For:
    """The loop called ``name``."""
    body = kernel.body
    while inside := [s for s in body if isinstance(s, NESTS) and any([x.sym.name == name for x in s.loops])]:
        s = inside[0]
        if isinstance(s, For) and s.loop.sym.name == name:
            return s
        body = s.body
    raise ScheduleError(
        primitive, name, f"{kernel.name} has no loop of this name", remedy=_known(loops_of(kernel.body))
    )


def _known(loops: Iterable[Loop]) -> str:
    return "loops here: " + ", ".join(x.sym.name for x in loops)


def find_place(kernel: Kernel, name: str, primitive: str) -> Place:
    """The place of the buffer called ``name``."""
    for p in kernel.places:
        if p.buffer.name == name:
            return p
    known = ", ".join(p.buffer.name for p in kernel.places)
    raise ScheduleError(primitive, name, f"{kernel.name} has no buffer of this name", remedy=f"buffers here: {known}")


def edit(body: Body, target: Stmt, change: Callable[[Stmt], Body]) -> Body:
    """``body`` with the one statement ``target`` (by identity) replaced by ``change(target)``."""
    out: list[Stmt] = []
    loop = target.loop if isinstance(target, For) else None
    for s in body:
        if s is target:
            out.extend(change(s))
        elif loop is not None and isinstance(s, NESTS) and not any([x is loop for x in s.loops]):
            out.append(s)
        elif isinstance(s, For):
            inner = edit(s.body, target, change)
            out.append(s if inner is s.body else For(s.loop, inner))
        elif isinstance(s, If):
            inner = edit(s.body, target, change)
            out.append(s if inner is s.body else If(s.cond, inner))
        else:
            out.append(s)
    same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
    return body if same else tuple(out)


def with_body(kernel: Kernel, body: Body) -> Kernel:
    """``kernel`` with another body; sizes that it no longer needs, and that no buffer's shape has, are dropped."""
    if not kernel.sizes:  # no primitive adds one
        return replace(kernel, body=body)
    return replace(kernel, body=body, sizes=sizes_of(body, tuple(p.buffer for p in kernel.places)))


def replace_stmt(kernel: Kernel, target: Stmt, *new: Stmt) -> Kernel:
    return with_body(kernel, edit(kernel.body, target, lambda _: new))


def fresh(kernel: Kernel, base: str) -> str:
    """``base``, or ``base_1``, ``base_2``... : the first name that no loop, size or buffer has."""
    taken = {x.sym.name for x in loops_of(kernel.body)} | {s.name for s in kernel.sizes}
    taken |= {p.buffer.name for p in kernel.places}
    name, n = base, 0
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name


def fresh_among(kernel: Kernel, base: str, taken: set[str]) -> str:
    """:func:`fresh`, and not in ``taken`` either, which it joins: for several names before the kernel has them."""
    name, n = fresh(kernel, base), 0
    while name in taken:
        n += 1
        name = fresh(kernel, f"{base}_{n}")
    taken.add(name)
    return name


def identifier(name: str) -> str:
    """``name`` with everything that a symbol can't hold replaced by an underscore."""
    clean = re.sub(r"\W", "_", name)
    return clean if clean and not clean[0].isdigit() else f"_{clean}"


def most_iterations(x: Loop) -> int:
    """How often a loop goes round at most; 1 where no bound is known at compile time."""
    return 1 if x.sym.hi is None else x.sym.hi + 1


def new_loop(name: str, extent: Dim, kind: Kind = Kind.SERIAL) -> Loop:
    return Loop(loop_sym(name, extent), extent, kind)


def enclosing(body: Body, target: Stmt) -> tuple[For | If, ...]:
    """The loops and guards around ``target`` (by identity), outermost first; empty at the top or when absent."""
    for s in body:
        if isinstance(s, For | If):
            if any(x is target for x in s.body):
                return (s,)
            inner = enclosing(s.body, target)
            if inner:
                return (s, *inner)
    return ()


def writers(body: Body, buffer: Buffer) -> list[Stmt]:
    """The statements of ``body`` itself (not deeper) in or under which ``buffer`` is written."""
    return [s for s in body if buffer in written_in(s)]


def makers_of(body: Body, buffer: Buffer) -> list[Stmt]:
    """The nests that write the buffer: inside a loop that holds several statements (one over time), not that loop."""
    found = writers(body, buffer)
    if len(found) == 1 and isinstance(found[0], For):
        leaf = nest_of(found[0]).leaf
        if len(leaf) > 1 and any(isinstance(s, For) for s in leaf):
            return makers_of(leaf, buffer)
    return found


def readers(body: Body, buffer: Buffer) -> Iterator[Load]:
    """Every load of ``buffer`` in ``body``."""
    for s in body:
        if touches(s, buffer):
            yield from (x for x in loads_of(s) if x.buffer is buffer)
            if isinstance(s, NESTS):
                yield from readers(s.body, buffer)


def uses(v: Value, sym: Sym) -> bool:
    """Does the value depend on the symbol through any index, guard or index value?"""
    return sym in symbols_of_value(v)


def home_of(body: Body, *buffers: Buffer) -> Body:
    """The innermost statement list that holds every access of the buffers."""
    touching = [s for s in body if any(touches(s, b) for b in buffers)]
    if len(touching) == 1 and isinstance(touching[0], For | If):
        return home_of(touching[0].body, *buffers)
    return body


def touches(s: Stmt, buffer: Buffer) -> bool:
    """Does the statement, or one in it, read or write the buffer?"""
    return buffer in touched_by(s)


def is_folded(kernel: Kernel, target: For) -> bool:
    """Do the lanes of a warp fold the loop's iterations into one element, in one instruction or by asking each other?

    It is the third of three nested warp loops around one sum, the depth of a matrix instruction; the second of two
    around one update of what belongs to a row; or the only one, of a warp's lanes, around one update of registers.
    """
    around = [s for s in enclosing(kernel.body, target)[-2:] if isinstance(s, For) and s.loop.kind is Kind.WARP]
    (leaf, *others) = target.body
    if others or not isinstance(leaf, Update) or any(len(s.body) != 1 for s in around):
        return False
    if len(around) == 1:
        return {around[0].loop.sym, target.loop.sym} & symbols_in(leaf.index) == {around[0].loop.sym}
    if around:
        return leaf.op == "add"
    place = find_place(kernel, leaf.buffer.name, "kind")
    is_apart = not chosen(leaf.index) and target.loop.sym not in symbols_in(leaf.index)
    is_new = not any(x.buffer is leaf.buffer for x in loads_of(leaf))
    return target.loop.extent == kernel.lanes and is_apart and is_new and place.space in (Space.REG, Space.LOCAL)


def without_idle_hints(kernel: Kernel, buffer: Buffer) -> Kernel:
    """The kernel without hints at a buffer, where that is in registers now and there is nothing to wait for."""

    def go(body: Body) -> Body:
        kept = tuple(s for s in body if not (isinstance(s, Prefetch) and s.buffer is buffer))
        return tuple(replace(s, body=go(s.body)) if isinstance(s, NESTS) else s for s in kept)

    is_there = any(p.buffer is buffer and p.space is Space.REG for p in kernel.places)
    is_hinted = is_there and any(isinstance(s, Prefetch) and s.buffer is buffer for s in walk(kernel.body))
    return replace(kernel, body=go(kernel.body)) if is_hinted else kernel
