"""Schedule primitives for where elements lie: in a copy, in another's memory, turned, in rows that begin on vectors.

In: a kernel and names. Out: an equal kernel. Not its business: spaces, and what part of a temporary exists at a time
(``stages``).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.core.compute import Buffer, IndexLike, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.indices import chosen, placed
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, Kernel, Place, Role, Space, Store, Update, walk, written
from tilewright.tile.rewrite import loads_of, places_of, rewrite_accesses
from tilewright.tile.schedule.fresh import starts_fresh
from tilewright.tile.schedule.tree import (
    Nest,
    find_place,
    fresh,
    home_of,
    identifier,
    nest_of,
    new_loop,
    touches,
    with_body,
)
from tilewright.tile.swizzle import in_panels, is_swizzlable


def reuse(kernel: Kernel, buffer: str, other: str) -> Kernel:
    """A temporary takes the memory of another one that it is made from element by element: there is one, ``other``.

    Before: ``S[i] = ..; for i: T[i] = e(S[i]); .. T[i]``. After: ``S[i] = ..; for i: S[i] = e(S[i]); .. S[i]``. Half
    as much is held in the caches. Fails: they are no temporaries of one type, shape and space; T is made by anything
    but one nest of plain loops, or from another element of S; S is read later, or not assigned before.
    """
    spot, kept = find_place(kernel, buffer, "reuse"), find_place(kernel, other, "reuse")
    old, new, where = spot.buffer, kept.buffer, f"{buffer}, {other}"
    alike = old.dtype is new.dtype and old.shape == new.shape and spot.space is kept.space
    if old is new or not alike or {spot.role, kept.role} != {Role.TMP}:
        raise ScheduleError("reuse", where, "not two temporaries of one type, shape and space")
    home = home_of(kernel.body, old, new)
    makers = [k for k, s in enumerate(home) if any(old in written(x) for x in walk((s,)))]
    if len(makers) != 1 or not starts_fresh(home, new):
        raise ScheduleError("reuse", where, "it is not made by one nest from what was assigned before")
    nest, later = nest_of(home[makers[0]]), home[makers[0] + 1 :]
    leaf = nest.leaf[0]
    own = [i for i in leaf.index if i in {x.sym for x in nest.loops}] if isinstance(leaf, Store) else []
    if len(nest.leaf) != 1 or not isinstance(leaf, Store) or len(own) != len(set(own)) or len(own) != len(nest.loops):
        raise ScheduleError("reuse", where, "it is made by more than plain loops over its own elements")
    if any(x.buffer in (old, new) and (x.buffer is old or x.index != leaf.index) for x in loads_of(leaf)):
        raise ScheduleError("reuse", where, "an element is made from others than the one in its place")
    if any(touches(s, old) for s in home[: makers[0]]) or any(touches(s, new) for s in later):
        raise ScheduleError("reuse", where, "both are needed at one time")
    body = rewrite_accesses(kernel.body, lambda b, ix: Load(new, ix) if b is old else None)
    return with_body(replace(kernel, places=tuple(p for p in kernel.places if p is not spot)), body)


def align(kernel: Kernel, buffer: str, multiple: int) -> Kernel:
    """Rows of a temporary begin at multiples of so many elements: its last dimension grows to one.

    Before: ``T[i, j]`` in 22 rows of 197. After: the same in 22 rows of 208. The ragged vector at a row's end, which is
    stored under a mask, then shares no line with the next row, whose loads would wait for it. Fails: it is no
    temporary in memory, or its last dimension is known at run time only.
    """
    spot = find_place(kernel, buffer, "align")
    old = spot.buffer
    if spot.role is not Role.TMP or spot.space is Space.REG or not old.shape or multiple < 1:
        raise ScheduleError("align", f"{buffer}, {multiple}", "only rows of a temporary in memory")
    last = old.shape[-1]
    if not is_known(last):
        raise ScheduleError("align", f"{buffer}, {multiple}", f"rows of {last} elements, known at run time only")
    new = Buffer(old.name, old.dtype, (*old.shape[:-1], -(-last // multiple) * multiple))
    places = tuple(replace(p, buffer=new) if p is spot else p for p in kernel.places)
    body = rewrite_accesses(kernel.body, lambda b, ix: Load(new, ix) if b is old else None)
    return with_body(replace(kernel, places=places), body)


def swizzle(kernel: Kernel, buffer: str) -> Kernel:
    """A shared temporary lies as matrix units read it without bank conflicts (``tile.swizzle``).

    Before: ``T`` in rows. After: the same elements at other places. Fails: it is no shared temporary, or not of eights
    of rows that are whole pieces of 128 bytes; it is accessed where the data say.
    """
    spot = find_place(kernel, buffer, "swizzle")
    if spot.space is not Space.SHARED or not is_swizzlable(spot.buffer):
        raise ScheduleError("swizzle", buffer, f"only eights of rows of 128 bytes in shared memory: {spot.buffer}")
    read = [x.index for s in walk(kernel.body) for x in loads_of(s) if x.buffer is spot.buffer]
    stored = [s.index for s in walk(kernel.body) if isinstance(s, Store | Update | Fold) and spot.buffer in written(s)]
    if any(in_panels(spot.buffer, ix) is None for ix in (*read, *stored)):
        raise ScheduleError("swizzle", buffer, "it is accessed at a run-time index")
    return replace(kernel, places=tuple(replace(p, swizzled=True) if p is spot else p for p in kernel.places))


def pitch(kernel: Kernel, buffer: str, dim: int, n: int) -> Kernel:
    """A temporary becomes a matrix: the dimensions before ``dim`` are its rows, which begin ``n`` elements apart.

    Before: ``T[i, j, k, l]`` of 16 by 4 by 16 by 4. After, for dimension 2 and 65: ``T[4*i + j, 4*k + l]`` of 64 by 65,
    so that rows of shared memory begin in different banks. Fails: it is no temporary in memory of known size, has no
    dimension on one side, or longer rows.
    """
    spot, where = find_place(kernel, buffer, "pitch"), f"{buffer}, {dim}, {n}"
    old = spot.buffer
    shape = [d for d in old.shape if is_known(d)]
    is_one = spot.role is Role.TMP and spot.space is not Space.REG and len(shape) == len(old.shape)
    if not is_one or not 0 < dim < len(shape) or n < prod(shape[dim:]):
        raise ScheduleError("pitch", where, "only rows of a temporary of known size in memory, no longer than that")
    new = Buffer(old.name, old.dtype, (prod(shape[:dim]), n))

    def joined(index: tuple[IndexLike, ...], extents: list[int]) -> Dim:
        total: Dim = 0
        for i, extent in zip(placed(index), extents, strict=True):
            total = total * extent + i
        return total

    if any(chosen(ix) for s in walk(kernel.body) for b, ix in places_of(s) if b is old):
        raise ScheduleError("pitch", where, "the data choose its elements")
    places = tuple(replace(p, buffer=new) if p is spot else p for p in kernel.places)
    return with_body(replace(kernel, places=places), rewrite_accesses(kernel.body, lambda b, ix: Load(
        new, (joined(ix[:dim], shape[:dim]), joined(ix[dim:], shape[dim:]))
    ) if b is old else None))  # fmt: skip


def fetch(kernel: Kernel, buffer: str) -> Kernel:
    """All that reads ``X`` reads a copy: ``X_f = copy of X`` first, a temporary that can go ``compute_at``.

    What ``cache`` is for results. Loops of the copy are called ``X_r0, X_r1...``. Fails: X is no input of known shape,
    or nothing reads it.
    """
    spot = find_place(kernel, buffer, "fetch")
    old = spot.buffer
    if spot.role not in (Role.IN, Role.CONST) or not old.shape:
        raise ScheduleError("fetch", buffer, "it is no input with dimensions")
    if not any(x.buffer is old for s in walk(kernel.body) for x in loads_of(s)):
        raise ScheduleError("fetch", buffer, "nothing reads it")
    new = Buffer(fresh(kernel, f"{buffer}_f"), old.dtype, old.shape)
    names = [fresh(kernel, f"{identifier(buffer)}_r{d}") for d in range(len(old.shape))]
    loops = tuple(new_loop(n, e) for n, e in zip(names, old.shape, strict=True))
    at = tuple(x.sym for x in loops)
    copy = Nest(loops, (Store(new, at, Load(old, at)),)).wrap()
    body = rewrite_accesses(kernel.body, lambda b, ix: Load(new, ix) if b is old else None)
    return with_body(replace(kernel, places=(*kernel.places, Place(new, Space.GLOBAL))), (copy, *body))


def turn(kernel: Kernel, buffer: str, dim: int) -> Kernel:
    """A temporary's dimensions ``dim`` and ``dim + 1`` change places: rows lie where columns did.

    Before: ``T[i, j]``. After: ``T[j, i]``. Fails: it is no temporary, or has no such dimensions.
    """
    spot = find_place(kernel, buffer, "turn")
    old = spot.buffer
    if spot.role is not Role.TMP or not 0 <= dim < len(old.shape) - 1:
        raise ScheduleError("turn", f"{buffer}, {dim}", f"no temporary with dimensions {dim} and {dim + 1}: {old}")
    order = [*range(dim), dim + 1, dim, *range(dim + 2, len(old.shape))]
    new = Buffer(old.name, old.dtype, tuple(old.shape[d] for d in order))
    places = tuple(replace(p, buffer=new) if p is spot else p for p in kernel.places)
    body = rewrite_accesses(kernel.body, lambda b, ix: Load(new, tuple(ix[d] for d in order)) if b is old else None)
    return with_body(replace(kernel, places=places), body)
