"""How a kernel's work falls on threads: what is shared out, and an estimate of the time on one thread and on all.

In: a scheduled ``Kernel``, a ``Machine``. Out: ``Shares``. Not its business: choosing (``tile.rules.threads``), what
else could run meanwhile (``partition.beside``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.expr import Dim, symbols
from tilewright.tile.cost import estimate
from tilewright.tile.ir import For, If, Kernel, Kind, Stmt, walk
from tilewright.tile.machine import Machine
from tilewright.tile.rewrite import values_of, written
from tilewright.tile.rules.view import n_arithmetic

FORK_CYCLES = 1500.0
"""A fork of waiting threads, and their join."""
MOVING = 2
"""What an element's loads and stores cost, in operations."""


@dataclass(frozen=True)
class Shares:
    """Cycles: ``work`` on one thread, ``alone`` on all; ``extent`` as :func:`whole_extent` gives it."""

    work: float
    alone: float
    extent: Dim | None
    uses_threads: bool


def shares_of(kernel: Kernel, machine: Machine) -> Shares:
    """The estimates for one call; sizes known at run time only count as :func:`estimate` does."""
    threaded = any(isinstance(s, For) and s.loop.kind is Kind.PARALLEL for s in walk(kernel.body))
    work = _work(kernel.body, machine, lanes=False)
    alone = _alone(kernel.body, machine) if threaded else work
    return Shares(work, alone, whole_extent(kernel), threaded)


def whole_extent(kernel: Kernel) -> Dim | None:
    """The iterations of the parallel loop that is all of the kernel, with the one joined to it; None without one."""
    f = kernel.body[0] if len(kernel.body) == 1 else None
    if not isinstance(f, For) or f.loop.kind is not Kind.PARALLEL:
        return None
    inner = joined(f)
    n = f.loop.extent if inner is None else f.loop.extent * inner.loop.extent
    return None if isinstance(n, int) and n <= 0 else n


def joined(f: For) -> For | None:
    """The parallel loop that alone is in the parallel loop ``f``, as long in every iteration."""
    inner = f.body[0]
    if len(f.body) != 1 or not isinstance(inner, For) or inner.loop.kind is not Kind.PARALLEL:
        return None
    return None if f.loop.sym in symbols(inner.loop.extent) else inner


def _alone(body: tuple[Stmt, ...], machine: Machine) -> float:
    """Cycles with all threads at every parallel loop, each of which ends when its last iteration does."""
    total = 0.0
    for s in body:
        if isinstance(s, For) and s.loop.kind is Kind.PARALLEL:
            inner = joined(s)
            n = estimate([s.loop.extent] if inner is None else [s.loop.extent, inner.loop.extent])
            total += _work((s,), machine, lanes=False) / max(n, 1.0) * -(-n // machine.n_cores) + FORK_CYCLES
        elif isinstance(s, For):
            total += estimate([s.loop.extent]) * _alone(s.body, machine)
        else:
            total += _work((s,), machine, lanes=False)
    return total


def _work(body: tuple[Stmt, ...], machine: Machine, *, lanes: bool) -> float:
    total = 0.0
    for s in body:
        if isinstance(s, For):
            most = s.loop.extent if isinstance(s.loop.extent, int) or s.loop.sym.hi is None else s.loop.sym.hi + 1
            total += estimate([most]) * _work(s.body, machine, lanes=lanes or s.loop.kind is Kind.VECTOR)
        elif isinstance(s, If):
            total += _work(s.body, machine, lanes=lanes)
        else:
            n = machine.lanes(b.dtype) if lanes and (b := next(iter(written(s)), None)) else 1
            total += (sum(n_arithmetic(v) for v in values_of(s)) + MOVING) / (n * machine.fma_ports)
    return total
