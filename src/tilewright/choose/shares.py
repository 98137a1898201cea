"""How a kernel's work falls on threads: what is shared out, and an estimate of the time on one thread and on all.

In: a scheduled ``Kernel``, a ``Target``. Out: ``Times``. Not its business: choosing (``choose.strategies.threads``),
what else could run meanwhile (``partition.beside``).
"""

from __future__ import annotations

from tilewright.choose.cost.tile import MOVED, estimate
from tilewright.choose.strategies.view import n_arithmetic
from tilewright.core.compute import Buffer, Load
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.estimates import Times
from tilewright.core.expr import Dim, symbols
from tilewright.core.indices import symbols_in
from tilewright.target.target import Target
from tilewright.tile.ir import For, If, Kernel, Kind, Loop, Role, Stmt, Update, walk, written
from tilewright.tile.rewrite import values_of


def times_of(kernel: Kernel, machine: Target) -> Times:
    """The estimates for one call; sizes known at run time only count as :func:`estimate` does."""
    threaded = any(isinstance(s, For) and s.loop.kind is Kind.PARALLEL for s in walk(kernel.body))
    work = cycles_of(kernel.body, kernel, machine)
    alone = _alone(kernel.body, machine, _fixed(kernel)) if threaded else work
    return Times(work, alone, whole_extent(kernel), threaded)


def cycles_of(body: tuple[Stmt, ...], kernel: Kernel, machine: Target) -> float:
    """The estimate for statements of a kernel on one thread."""
    return _work(body, machine, _fixed(kernel))


def _fixed(kernel: Kernel) -> frozenset[Buffer]:
    return frozenset(p.buffer for p in kernel.places if p.role is Role.CONST)


def whole_extent(kernel: Kernel) -> Dim | None:
    """The iterations of the parallel loop that is all of the kernel, with the one joined to it; None without one."""
    f = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(f, For) or f.loop.kind is not Kind.PARALLEL:
        return None
    inner = joined(f)
    n = f.loop.extent if inner is None else f.loop.extent * inner.loop.extent
    return None if known_at_most(n, 0) else n


def joined(f: For) -> For | None:
    """The parallel loop that alone is in the parallel loop ``f``, as long in every iteration."""
    inner = f.body[0]
    if len(f.body) != 1 or not isinstance(inner, For) or inner.loop.kind is not Kind.PARALLEL:
        return None
    return None if f.loop.sym in symbols(inner.loop.extent) else inner


def _alone(body: tuple[Stmt, ...], machine: Target, fixed: frozenset[Buffer]) -> float:
    """Cycles with all threads at every parallel loop, each of which ends when its last iteration does."""
    total = 0.0
    for s in body:
        if isinstance(s, For) and s.loop.kind is Kind.PARALLEL:
            inner = joined(s)
            n = estimate([s.loop.extent] if inner is None else [s.loop.extent, inner.loop.extent])
            total += _work((s,), machine, fixed) / max(n, 1.0) * -(-n // machine.n_cores) + machine.fork_cycles
        elif isinstance(s, For):
            total += estimate([s.loop.extent]) * _alone(s.body, machine, fixed)
        else:
            total += _work((s,), machine, fixed)
    return total


def _work(body: tuple[Stmt, ...], machine: Target, fixed: frozenset[Buffer], around: tuple[Loop, ...] = ()) -> float:
    """Cycles of all iterations of the loops ``around`` a body; it is bound by its arithmetic or by its constants."""
    total = 0.0
    for s in body:
        if isinstance(s, For):
            total += _work(s.body, machine, fixed, (*around, s.loop))
        elif isinstance(s, If):
            total += _work(s.body, machine, fixed, around)
        else:
            lanes = any(x.kind is Kind.VECTOR for x in around)
            n = machine.lanes(b.dtype) if lanes and (b := next(iter(written(s)), None)) else 1
            cycles = estimate([_most(x) for x in around]) * _operations(s, fixed) / (n * machine.fma_ports)
            total += max(cycles, _streamed(s, machine, fixed, around) / (machine.vector_bytes / 2))
    return total


def _operations(s: Stmt, fixed: frozenset[Buffer]) -> int:
    """Arithmetic and moves; a sum of products by constants is kept in registers, and its loads are shared."""
    n = sum(n_arithmetic(v) for v in values_of(s))
    return n if isinstance(s, Update) and n and _constants(s, fixed) else n + MOVED


def _constants(s: Stmt, fixed: frozenset[Buffer]) -> list[Load]:
    return [x for v in values_of(s) for x in walk_value(v) if isinstance(x, Load) and x.buffer in fixed]


def _streamed(s: Stmt, machine: Target, fixed: frozenset[Buffer], around: tuple[Loop, ...]) -> float:
    """Bytes of constants that come from beyond the second-level cache; a part that fits in it is read again there."""
    total = 0.0
    for load in _constants(s, fixed):
        walked = symbols_in(load.index)
        held = moved = float(load.buffer.dtype.n_bytes)
        for loop in reversed(around):
            n = estimate([_most(loop)])
            if loop.sym in walked:
                held, moved = held * n, moved * n
            elif held > machine.l2_kept_bytes:
                moved *= n
        total += moved
    return total


def _most(loop: Loop) -> Dim:
    return loop.extent if is_known(loop.extent) or loop.sym.hi is None else loop.sym.hi + 1
