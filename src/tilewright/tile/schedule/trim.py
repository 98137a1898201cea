"""The primitives trim and skip: a reduction leaves out elements that are known to change nothing (the keys after a
query, the taps of a window that lie in its padding).

In: a kernel, the name of a reduction's loop. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: masks that depend on data.

What is known comes from guards: ``select(inside(g, h), x, c)`` is ``c`` where ``g < 0`` or ``h < 0``; a temporary that
one plain nest assigns is known where its value is; ``-inf`` stays ``-inf`` when something is added, an exponential of
it is 0, and 0 times anything is 0. The last three take the other operand to be finite, as a mask's author does: what it
hides is not seen.
"""

from __future__ import annotations

from math import inf

from tilewright.core.compute import Binary, Buffer, Cast, Const, Inside, Load, Select, Unary, Value
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import (
    Dim,
    Sym,
    ceildiv,
    const_of,
    floordiv,
    is_nonneg,
    maximum,
    minimum,
    mod,
    substitute,
    symbols,
)
from tilewright.core.indices import is_chosen
from tilewright.tile.affine import coefficient, never_negative
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, Loop, Prefetch, Stmt, Store, Update, walk, written
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule.partials import identity_of
from tilewright.tile.schedule.tree import enclosing, find_loop, nest_of, replace_stmt

Known = tuple[float, tuple[Dim, ...]]
"""A value, and expressions: it is that where one of them is below 0."""


def trim(kernel: Kernel, loop: str, at: str, multiple: int = 1) -> Kernel:
    """``for k<n: s += e(k)`` -> ``for k<min(n, m): s += e(k)`` where e is 0 from m on, at every iteration in ``at``.

    m is rounded up to a ``multiple``. The same for other reductions and what leaves them unchanged. Fails: the loop's
    body is no single update; nothing is known of its value, or not by how far the loop has come; n is no multiple.
    """
    target, where = find_loop(kernel, loop, "trim"), f"{loop}, {at}"
    inside = [x for x in (*enclosing(kernel.body, target), target) if isinstance(x, For)]
    names = [x.loop.sym.name for x in inside]
    leaf = nest_of(target).leaf
    if at not in names or at == loop or len(leaf) != 1 or not isinstance(leaf[0], Update):
        raise ScheduleError("trim", where, "no single update inside of both loops")
    update, sym = leaf[0], target.loop.sym
    guards = Guarded(kernel).hidden_below(update)
    if len(guards) != 1:
        raise ScheduleError("trim", where, "no elements are known to change nothing")
    step = coefficient(guards[0], sym)
    if not known_under(step, 0):
        raise ScheduleError("trim", where, f"{guards[0]} does not fall along the loop")
    free = [x.loop for x in inside[names.index(at) + 1 :]] + loops_of(target.body)
    most = _most(guards[0] - sym * step, [x for x in free if x.sym != sym])
    if most is None:
        raise ScheduleError("trim", where, f"{guards[0]} has no greatest value in {at}")
    n, bound = target.loop.extent, maximum(floordiv(most, -step) + 1, 0)
    if multiple < 1 or mod(n, multiple) != 0:
        raise ScheduleError("trim", where, f"{n} iterations are no multiple of {multiple}")
    whole, bound = floordiv(n, multiple), ceildiv(bound, multiple)
    extent = multiple * (bound if is_nonneg(whole - bound) else minimum(whole, bound))
    return replace_stmt(kernel, target, For(Loop(Sym(sym.name, 0, sym.hi), extent, target.loop.kind), target.body))


def skip(kernel: Kernel, loop: str) -> Kernel:
    """``for k<n: s += e(k)`` -> ``if g >= 0: for k<n: s += e(k)`` where e is 0 at every k if ``g < 0``.

    The same for other reductions and what leaves them unchanged; hints in the loop go along. Fails: the loop holds more
    than one update; nothing is known of its value, or no guard can hide all of the loop.
    """
    target = find_loop(kernel, loop, "skip")
    guards = Guarded(kernel).skipped_below(target)
    if not guards:
        raise ScheduleError("skip", loop, "not known to change nothing in any of its runs")
    return replace_stmt(kernel, target, If(Inside(guards), (target,)))


def _most(e: Dim, loops: list[Loop]) -> Dim | None:
    """The largest value over the loops; None where it, or a loop's bound, is not known at compile time."""
    for x in loops:
        if x.sym in symbols(e):
            c = coefficient(e, x.sym)
            if not is_known(c) or x.sym.hi is None:
                return None
            e = substitute(e, {x.sym: x.sym.hi if c > 0 else 0})
    return e


class Guarded:
    """What is known of a kernel's values where guards fail.

    What is known of a temporary's elements is kept, since in a long chain each is asked for by all that come behind.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._extents = {x.sym: x.extent for x in loops_of(kernel.body)}
        self._writers: dict[Buffer, list[Stmt]] = {}
        self._known: dict[Load, Known | None] = {}
        for s in walk(kernel.body):
            for buffer in written(s):
                self._writers.setdefault(buffer, []).append(s)

    def skipped_below(self, target: For) -> tuple[Dim, ...]:
        """Expressions: where one is below 0, no iteration of the loop changes anything. None that is never below 0."""
        work = [s for s in walk(target.body) if not isinstance(s, For | Prefetch)]
        if len(work) != 1 or not isinstance(work[0], Update):
            return ()
        loops = [target.loop, *loops_of(target.body)]
        most = [_most(g, loops) for g in self.hidden_below(work[0])]
        return tuple(g for g in most if g is not None and not is_nonneg(g))

    def hidden_below(self, update: Update) -> tuple[Dim, ...]:
        """Expressions: where one is below 0, the update changes nothing."""
        known = self.value(update.value)
        if known is None or Const(known[0], update.buffer.dtype) != identity_of(update.op, update.buffer.dtype):
            return ()
        return known[1]

    def value(self, v: Value) -> Known | None:
        """What ``v`` is where a guard fails, and the guards."""
        match v:
            case Select(cond=Inside(exprs=guards), b=Const(value=c)):
                return float(c), guards
            case Load():
                if v not in self._known:
                    self._known[v] = None  # of an element that is made of itself
                    self._known[v] = self._stored(v)
                return self._known[v]
            case Cast():
                return self.value(v.a)
            case Unary(op="exp" | "exp2" | "exp2_flushed"):
                known = self.value(v.a)
                return None if known is None or known[0] != -inf else (0.0, known[1])
            case Binary(op="add" | "sub" | "mul" | "div"):
                return self._combined(v)
        return None

    def _combined(self, v: Binary) -> Known | None:
        for x, other in ((v.a, v.b), (v.b, v.a)):
            known = self.value(x)
            if known is None or (x is v.b and v.op in ("sub", "div")):
                continue
            if v.op in ("add", "sub") and known[0] == -inf:
                return known
            if v.op in ("mul", "div") and known[0] == 0:
                return known
            if v.op in ("mul", "div") and known[0] == -inf and isinstance(other, Const) and other.value > 0:
                return known
        return None

    def _stored(self, load: Load) -> Known | None:
        """What the one plain nest that assigns the buffer says of the element, by guards of single dimensions."""
        stores = self._writers.get(load.buffer, ())
        if len(stores) != 1 or not isinstance(stores[0], Store):
            return None
        known = self.value(stores[0].value)
        if known is None:
            return None
        dims: dict[Sym, Dim] = {}
        unknown: set[Sym] = set()
        joined: list[Dim] = []
        for own, at in zip(stores[0].index, load.index, strict=True):
            if is_chosen(own):
                return None
            if isinstance(own, Sym) and not is_chosen(at):
                dims[own] = at
            else:
                unknown |= symbols(own)
                found = [] if is_chosen(at) else [self._of_joined(g, own, at) for g in known[1]]
                joined += [e for e in found if e is not None]
        return known[0], (*(substitute(g, dims) for g in known[1] if not symbols(g) & unknown), *joined)

    def _of_joined(self, guard: Dim, own: Dim, at: Dim) -> Dim | None:
        """A guard of a row ``r`` alone where rows are written at ``own = B*r + c``, c below B, and read at ``at``.

        ``r < 3`` is ``at < 3*B``. None for other guards and places.
        """
        if len(symbols(guard)) != 1:
            return None
        (row,) = symbols(guard)
        step, size = coefficient(guard, row), coefficient(own, row)
        if not is_known(step) or not is_known(size) or step == 0 or size <= 0:
            return None
        column = own - size * row  # of tiles that need not divide the row
        if not all(never_negative(e, self._extents) for e in (column, size - 1 - column)):
            return None
        start = const_of(guard)  # guard = step * row + start
        if step > 0:
            return at - size * -(start // step)  # below 0 in rows before ceil(-start / step)
        return size * (start // -step + 1) - 1 - at
