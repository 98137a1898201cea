"""Where a kernel that may take long asks whether a signal stops it.

In: a loop of a kernel whose program looks for that when the kernel returns (``codegen.cpu.program``). Out: after how
many turns it asks, and the question. Not its business: signals, and how often they are looked for
(``runtime.cpu.stop_ir``).

A recurrence is one kernel for all of its steps, a large product another, and a program can't leave between two kernels
then. An outermost loop asks after as many turns as take ``POLL_CYCLES``. Inner loops hold values in registers, which a
call would spill: one asks where a turn takes so long that this does not count. A loop whose number of turns only the
call says may take long, too; where it does not, it never comes to the question, and costs a comparison a turn.

Where a loop is shared among threads, only the one that runs Python's handlers is told to stop: that one leaves each of
the tasks that nobody has begun, the others end theirs, and the kernel leaves before it reads what is not there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilewright.choose.cost.tile import estimate
from tilewright.choose.shares import cycles_of
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, symbols
from tilewright.tile.ir import For, If, Stmt, walk

if TYPE_CHECKING:
    from tilewright.codegen.cpu.function import CpuFunction, CpuModule

POLL_CYCLES = 30_000_000
"""A hundredth of a second by the estimate, which takes every function for one operation."""
TURN_CYCLES = 1_000
"""Of an inner loop's turn, beside which a few spilled registers are nothing."""
_RARELY = ', !prof !{!"branch_weights", i32 1, i32 1000000}'
"""So that no register is spilled for the question where it is not asked."""
ASK = "call i32 @tw_poll_kernel()"
"""Ask, which reads the clock."""
LOOK = "call i32 @tw_kernel_stopped()"
"""Look whether that was answered by a stop, in this call."""
DECLARATIONS = {
    call: f"{call.replace('call', 'declare')} nounwind memory(inaccessiblemem: readwrite)" for call in (ASK, LOOK)
}


def may_ask(module: CpuModule) -> bool:
    """May a loop of the kernel take long enough for a question? None takes longer than all of them together do.

    Most kernels are short, and this is asked of the kernel once instead of every loop within every other one.
    """
    body = module.kernel.body
    return any(_is_unknown(module, s) for s in body) or _cycles(module, body) >= POLL_CYCLES


def is_long(fn: CpuFunction, f: For) -> bool:
    """May the loop take long enough for a question? It may where a call can say so many turns."""
    return _most_cycles(fn, f) >= POLL_CYCLES


def is_long_within(fn: CpuFunction, f: For) -> bool:
    """Does a loop take so long within one that runs often, in each turn of which a question would count?"""
    return _cycles(fn.module, (f,)) >= POLL_CYCLES


def asks(fn: CpuFunction, f: For, *, is_inner: bool) -> bool:
    """Is this a loop of which turns ask?"""
    return is_long(fn, f) and not (is_inner and _cycles(fn.module, f.body) < TURN_CYCLES)


def _most_cycles(fn: CpuFunction, s: Stmt) -> float:
    """The estimate for the largest sizes that a call may have."""
    if not isinstance(s, For | If) or not _is_unknown(fn.module, s):
        return max(_cycles(fn.module, (s,)), 1.0)
    most = fn.space.limit(s.loop.extent) if isinstance(s, For) else 1
    return (math.inf if most is None else most) * sum(_most_cycles(fn, x) for x in s.body)


def _is_unknown(module: CpuModule, s: Stmt) -> bool:
    loops = (x.loop for x in walk((s,)) if isinstance(x, For))
    return any(_is_told(module, loop.extent) for loop in loops)


def _is_told(module: CpuModule, extent: Dim) -> bool:
    """Does the call say how large it is?"""
    return not symbols(extent).isdisjoint(module.kernel.sizes)


def _cycles(module: CpuModule, body: tuple[Stmt, ...]) -> float:
    return cycles_of(body, module.kernel, module.target)


def _cycles_of_turn(module: CpuModule, body: tuple[Stmt, ...]) -> Dim:
    """The estimate for one turn, in the sizes that the call tells."""
    total: Dim = 0
    known: list[Stmt] = []
    for s in body:
        if isinstance(s, For | If) and _is_unknown(module, s):
            n = s.loop.extent if isinstance(s, For) else 1
            n = n if symbols(n) <= set(module.kernel.sizes) else int(estimate([n]))
            total = total + n * _cycles_of_turn(module, s.body)
        else:
            known.append(s)
    return total + int(_cycles(module, tuple(known)))


def emit(fn: CpuFunction, f: For, turn: str) -> None:
    """Every so many turns of the loop, a power of two, at their end: leave the kernel if it is stopped."""
    w = fn.writer
    ask, on = w.label("ask"), w.label("on")
    mask = _turns_between(fn, f)
    rest = w.fresh(f"and i64 {turn}, {mask}")
    w.emit(f"br i1 {w.fresh(f'icmp eq i64 {rest}, {mask}')}, label %{ask}, label %{on}{_RARELY}")
    w.start_block(ask)
    _leave_if(fn, ASK)
    w.emit(f"br label %{on}")
    w.start_block(on)


def _turns_between(fn: CpuFunction, f: For) -> str:
    """Turns that take about ``POLL_CYCLES`` by the estimate, less one."""
    w, cycles = fn.writer, _cycles_of_turn(fn.module, f.body)
    if is_known(cycles):
        return str((1 << (max(POLL_CYCLES // max(cycles, 1), 1).bit_length() - 1)) - 1)
    told = fn.space.value(cycles)
    # the quotient's length in bits, near enough, is how much longer the one number is than the other
    zeros = w.pure(f"call i64 @llvm.ctlz.i64(i64 {told.text}, i1 false)", told.level)
    more = w.pure(f"sub i64 {zeros}, {64 - POLL_CYCLES.bit_length()}", told.level)
    shift = w.pure(f"call i64 @llvm.smax.i64(i64 {more}, i64 0)", told.level)
    fn.module.declarations |= {"declare i64 @llvm.ctlz.i64(i64, i1)", "declare i64 @llvm.smax.i64(i64, i64)"}
    return w.pure(f"sub i64 {w.pure(f'shl i64 1, {shift}', told.level)}, 1", told.level)


def leave_if_stopped(fn: CpuFunction) -> None:
    """Leave the kernel if a turn, or a task of this thread, has been told to."""
    _leave_if(fn, LOOK)


def _leave_if(fn: CpuFunction, question: str) -> None:
    w = fn.writer
    stop, go = w.label("stop"), w.label("go")
    w.emit(f"br i1 {w.fresh(f'icmp ne i32 {w.fresh(question)}, 0')}, label %{stop}, label %{go}{_RARELY}")
    w.start_block(stop)
    w.emit("ret void")
    w.start_block(go)
    fn.module.declarations.add(DECLARATIONS[question])
