"""Copies of one store whose values are made of the same parts: all of them at one time, with few parts alive.

In: nested loops that are copied out, and around nothing but one store. Out: the stores, in the function at hand.
Not its business: which loops are copied (``choose.strategies.butterflies``), one value (``values``).

Store by store, the first result of a Fourier transform asks for sums of every element, and their differences, which
wait for later results, leave the registers and come back. Here a part is computed as soon as its own parts are there,
a store is done as soon as its value is, and the next element to be read is the one that soonest lets something be
computed: a small transform inside of a larger one is finished before the next one begins.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.values import Memo
from tilewright.core.compute import Binary, Bitcast, Cast, Const, Fma, Load, Unary, Value, operands, symbols_of_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym
from tilewright.tile.ir import For, Kind, Store

if TYPE_CHECKING:
    from tilewright.codegen.llvm.function import KernelFunction

MOST_COPIES = 128
"""More are stored one by one: looking for the next element takes a time that grows with the square of their parts."""


def emit(fn: KernelFunction, f: For, ctx: Lanes) -> bool:
    """Emit the loops at once where their copies share parts; False, and nothing emitted, where they do not."""
    found = _copies_of(f)
    if found is None:
        return False
    loops, store = found
    points = list(itertools.product(*(range(extent) for _, extent in loops)))
    roots: list[Value] = []
    for point in points:
        _bind(fn, loops, point)
        roots.append(fn.values.settled(fn.module.expand(store.value), ctx))
        _unbind(fn, loops)
    if not _are_independent(roots, [sym for sym, _ in loops], store):
        return False
    memo: Memo = {}
    waiting: defaultdict[Value, list[tuple[int, ...]]] = defaultdict(list)
    for root, point in zip(roots, points, strict=True):
        waiting[root].append(point)
    for run in in_order(list(waiting), set(ctx.syms)):
        for part in run:
            value = fn.values.value(part, ctx, memo)
            for point in waiting.get(part, ()):
                _bind(fn, loops, point)
                fn.write(fn.mention(store, store.buffer, store.index), value, ctx, memo)
                _unbind(fn, loops)
            if part in waiting or part is run[-1]:  # in any order LLVM reads all elements first, and spills them
                fn.use(value, part.dtype)
    return True


def _copies_of(f: For) -> tuple[list[tuple[Sym, int]], Store] | None:
    """The loops from ``f`` down and the store that they surround."""
    loops, count = [], 1
    while True:
        if f.loop.kind is not Kind.UNROLL or not is_known(f.loop.extent) or len(f.body) != 1:
            return None
        loops.append((f.loop.sym, f.loop.extent))
        count *= f.loop.extent
        (inner,) = f.body
        if isinstance(inner, Store):
            return (loops, inner) if 1 < count <= MOST_COPIES else None
        if not isinstance(inner, For):
            return None
        f = inner


def _bind(fn: KernelFunction, loops: Sequence[tuple[Sym, int]], point: Sequence[int]) -> None:
    for (sym, _), number in zip(loops, point, strict=True):
        fn.space.bind_const(sym, number)


def _unbind(fn: KernelFunction, loops: Sequence[tuple[Sym, int]]) -> None:
    for sym, _ in loops:
        fn.space.unbind(sym)


def _are_independent(roots: Sequence[Value], copied: Sequence[Sym], store: Store) -> bool:
    """Does every copy write another element, none of what any copy reads, and are all made of the same parts?

    A choice that is still open would guard what is read below it.
    """
    if any(sym not in store.index for sym in copied):
        return False
    for v in _parts(roots):
        if not isinstance(v, Const | Load | Unary | Binary | Fma | Cast | Bitcast):
            return False
        if isinstance(v, Load) and (v.buffer is store.buffer or operands(v)):
            return False
    return all(symbols_of_value(v).isdisjoint(copied) for v in roots)


def _parts(roots: Sequence[Value]) -> Iterator[Value]:
    """Every part of the values once, those of a part before it, from the first root to the last."""
    done: set[Value] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        v, is_open = stack.pop()
        if v in done:
            continue
        if is_open:
            done.add(v)
            yield v
        else:
            stack.append((v, True))
            stack += [(x, False) for x in reversed(operands(v))]


def in_order(roots: Sequence[Value], lanes: set[Sym]) -> Iterator[list[Value]]:
    """Parts of the values in runs, each after its own parts: an element, and what can be computed once it is read.

    What the next instruction takes in, and what is the same in all ``lanes`` and fills no vector, is left out: it is
    computed where it is asked for.
    """
    wanted = set(roots)
    parts = [v for v in _parts(roots) if v in wanted or not _is_light(v, lanes)]
    place = {v: k for k, v in enumerate(parts)}
    below = [{place[x] for x in _own_parts(v, place)} for v in parts]
    users: list[list[int]] = [[] for _ in parts]
    elements = [0] * len(parts)  # as bits: what has to be read for a part
    for k, own in enumerate(below):
        elements[k] = 0 if own else 1 << k
        for x in own:
            users[x].append(k)
            elements[k] |= elements[x]
    missing = [len(own) for own in below]
    unread = sum(1 << k for k, own in enumerate(below) if not own)
    begun: set[int] = set()
    while unread:
        # What needs fewest elements more is next: a value that was read for it is used while it is in a register.
        nearest = min(begun, key=lambda k: ((elements[k] & unread).bit_count(), k), default=None)
        left = unread if nearest is None else elements[nearest] & unread
        stack, run = [(left & -left).bit_length() - 1], []
        unread ^= left & -left
        while stack:
            k = stack.pop()
            begun.discard(k)
            run.append(parts[k])
            for user in users[k]:
                missing[user] -= 1
                begun.add(user)
                if not missing[user]:
                    stack.append(user)
        yield run


def _is_light(v: Value, lanes: set[Sym]) -> bool:
    return isinstance(v, Const) or (isinstance(v, Unary) and v.op == "neg") or symbols_of_value(v).isdisjoint(lanes)


def _own_parts(v: Value, place: Mapping[Value, int]) -> Iterator[Value]:
    """The parts that ``v`` is computed from, those that have no place left out."""
    for x in operands(v):
        if x in place:
            yield x
        else:
            yield from _own_parts(x, place)
