"""The primitive trim: a reduction leaves out elements that are known to change nothing (the keys after a query).

In: a kernel, the name of a reduction's loop. Out: a kernel that means the same, or a ``ScheduleError``.
Not its business: masks that depend on data.

What is known comes from guards: ``select(inside(g), x, c)`` is ``c`` where ``g < 0``; a temporary that one plain nest
assigns is known where its value is; ``-inf`` stays ``-inf`` when something is added, an exponential of it is 0, and 0
times anything is 0. The last three take the other operand to be finite, as a mask's author does: what it hides is not
seen.
"""

from __future__ import annotations

from math import inf

from tilewright.core.compute import Binary, Cast, Const, Inside, Load, Select, Unary, Value
from tilewright.core.expr import Dim, Sym, floordiv, is_nonneg, maximum, minimum, substitute, symbols
from tilewright.tile.affine import coefficient
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kernel, Loop, Store, Update, walk
from tilewright.tile.rewrite import loops_of, written
from tilewright.tile.schedule.partials import identity_of
from tilewright.tile.schedule.tree import enclosing, find_loop, nest_of, replace_stmt

Known = tuple[float, Dim]
"""A value, and the expression below 0 where it is that."""


def trim(kernel: Kernel, loop: str, at: str) -> Kernel:
    """``for k<n: s += e(k)`` -> ``for k<min(n, m): s += e(k)`` where e is 0 from m on, at every iteration in ``at``.

    The same for other reductions and what leaves them unchanged. Fails: the loop's body is no single update; nothing is
    known of its value, or not by how far the loop has come.
    """
    target, where = find_loop(kernel, loop, "trim"), f"{loop}, {at}"
    inside = [x for x in (*enclosing(kernel.body, target), target) if isinstance(x, For)]
    names = [x.loop.sym.name for x in inside]
    leaf = nest_of(target).leaf
    if at not in names or at == loop or len(leaf) != 1 or not isinstance(leaf[0], Update):
        raise ScheduleError("trim", where, "no single update inside of both loops")
    update, sym = leaf[0], target.loop.sym
    known = known_value(kernel, update.value)
    if known is None or Const(known[0], update.buffer.dtype) != identity_of(update.op, update.buffer.dtype):
        raise ScheduleError("trim", where, "no elements are known to change nothing")
    step = coefficient(known[1], sym)
    if not isinstance(step, int) or step >= 0:
        raise ScheduleError("trim", where, f"{known[1]} does not fall along the loop")
    free = [x.loop for x in inside[names.index(at) + 1 :]] + loops_of(target.body)
    most = _most(known[1] - sym * step, [x for x in free if x.sym != sym], where)
    n, bound = target.loop.extent, maximum(floordiv(most, -step) + 1, 0)
    extent = bound if is_nonneg(n - bound) else minimum(n, bound)
    return replace_stmt(kernel, target, For(Loop(Sym(sym.name, 0, sym.hi), extent, target.loop.kind), target.body))


def _most(e: Dim, loops: list[Loop], where: str) -> Dim:
    """The largest value over the loops, all of which have bounds known at compile time."""
    for x in loops:
        if x.sym in symbols(e):
            c = coefficient(e, x.sym)
            if not isinstance(c, int) or x.sym.hi is None:
                raise ScheduleError("trim", where, f"{e} has no greatest value over {x.sym}")
            e = substitute(e, {x.sym: x.sym.hi if c > 0 else 0})
    return e


def known_value(kernel: Kernel, v: Value) -> Known | None:
    """What ``v`` is where a guard fails, and that guard."""
    match v:
        case Select(cond=Inside(exprs=(guard,)), b=Const(value=c)):
            return float(c), guard
        case Load():
            return _stored(kernel, v)
        case Cast():
            return known_value(kernel, v.a)
        case Unary(op="exp" | "exp2"):
            known = known_value(kernel, v.a)
            return None if known is None or known[0] != -inf else (0.0, known[1])
        case Binary(op="add" | "sub" | "mul" | "div"):
            return _combined(kernel, v)
    return None


def _combined(kernel: Kernel, v: Binary) -> Known | None:
    for x, other in ((v.a, v.b), (v.b, v.a)):
        known = known_value(kernel, x)
        if known is None or (x is v.b and v.op in ("sub", "div")):
            continue
        if v.op in ("add", "sub") and known[0] == -inf:
            return known
        if v.op in ("mul", "div") and known[0] == 0:
            return known
        if v.op in ("mul", "div") and known[0] == -inf and isinstance(other, Const) and other.value > 0:
            return known
    return None


def _stored(kernel: Kernel, load: Load) -> Known | None:
    """What the one plain nest that assigns the buffer says of the element."""
    stores = [s for s in walk(kernel.body) if load.buffer in written(s)]
    if len(stores) != 1 or not isinstance(stores[0], Store):
        return None
    known = known_value(kernel, stores[0].value)
    if known is None:
        return None
    dims: dict[Sym, Dim] = {}
    for own, at in zip(stores[0].index, load.index, strict=True):
        if isinstance(own, Sym) and not isinstance(at, Value):
            dims[own] = at
        elif own != 0:
            return None
    return known[0], substitute(known[1], dims)
