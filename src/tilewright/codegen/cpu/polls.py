"""Where a kernel that may take long asks whether a signal stops it.

In: a loop of a kernel whose program looks for that when the kernel returns (``codegen.cpu.program``). Out: after how
many turns it asks, and the question. Not its business: signals, and how often they are looked for
(``runtime.cpu.stop_ir``).

A recurrence is one kernel for all of its steps, a large product another, and a program can't leave between two kernels
then. An outermost loop asks after as many turns as take ``POLL_CYCLES``; inner ones hold values in registers, which a
call would spill. Where a loop is shared among threads, only the one that runs Python's handlers is told to stop: that
one leaves each of the tasks that nobody has begun, the others end theirs, and the kernel leaves before it reads what is
not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.choose.shares import cycles_of
from tilewright.core.expr import symbols
from tilewright.tile.ir import For, Kind

if TYPE_CHECKING:
    from tilewright.codegen.cpu.function import CpuFunction, CpuModule

POLL_CYCLES = 30_000_000
"""A hundredth of a second by the estimate, which takes every function for one operation."""
_RARELY = ', !prof !{!"branch_weights", i32 1, i32 1000000}'
"""So that no register is spilled for the question where it is not asked."""
ASK = "call i32 @tw_poll_kernel()"
POLL_KERNEL = "declare i32 @tw_poll_kernel() nounwind memory(inaccessiblemem: readwrite)"


def is_long(module: CpuModule, f: For) -> bool:
    """May the loop take long enough for a question? One step after another may, if their number is not known."""
    if f.loop.kind is not Kind.PARALLEL and symbols(f.loop.extent):
        return True
    return cycles_of((f,), module.kernel, module.target) >= POLL_CYCLES


def turns_between(module: CpuModule, f: For) -> int:
    """After how many turns a loop asks that is long: a power of two."""
    of_turn = max(cycles_of(f.body, module.kernel, module.target), 1.0)
    return 1 << (int(max(POLL_CYCLES / of_turn, 1)).bit_length() - 1)


def emit(fn: CpuFunction, turn: str, turns: int) -> None:
    """Every so many turns, at their end: leave the kernel if it is stopped. ``turn`` counts them."""
    w = fn.writer
    ask, on = w.label("ask"), w.label("on")
    rest = w.fresh(f"and i64 {turn}, {turns - 1}")
    w.emit(f"br i1 {w.fresh(f'icmp eq i64 {rest}, {turns - 1}')}, label %{ask}, label %{on}{_RARELY}")
    w.start_block(ask)
    leave_if_stopped(fn)
    w.emit(f"br label %{on}")
    w.start_block(on)


def leave_if_stopped(fn: CpuFunction) -> None:
    """Ask now."""
    w = fn.writer
    stop, go = w.label("stop"), w.label("go")
    w.emit(f"br i1 {w.fresh(f'icmp ne i32 {w.fresh(ASK)}, 0')}, label %{stop}, label %{go}{_RARELY}")
    w.start_block(stop)
    w.emit("ret void")
    w.start_block(go)
    fn.module.declarations.add(POLL_KERNEL)
