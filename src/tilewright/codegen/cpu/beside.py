"""Calls side by side: one fork and one join around several kernels.

In: a ``Beside`` and its calls. Out: in the function at hand a call of the thread pool, and a function for a task.
Not its business: which calls (``partition.beside``), a kernel's parts (``codegen.cpu.llvm`` emits ``NAME.part``).

The task's context is the program's own parameters, so that a task finds addresses as the program does. Threads have
tasks in equal number, in the pool's order (``runtime.cpu.pool``: each begins with its own range): first the calls that
are run whole, dealt out like cards, the longest first; then every other call's chunks, the same part of each kernel for
a thread, so that it finds what it wrote in its own cache. Who is done early takes tasks of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.scratch import FLAG_BYTES
from tilewright.core.expr import Dim
from tilewright.partition.program import Beside, Choice, KernelCall, Step

if TYPE_CHECKING:
    from tilewright.codegen.cpu.program import Function

_CONTEXT = {
    "args": "ptr", "dims": "ptr", "weights": "ptr", "arena": "ptr", "scratch": "ptr",
    "threads": "i64", "n_tasks": "i64",
}  # fmt: skip


def emit(fn: Function, run: Beside, steps: Sequence[Step]) -> None:
    """Run ``steps`` side by side, or in order where there is one thread or too many."""
    calls = [s for s in steps if isinstance(s, KernelCall | Choice)]
    number = fn.module.n_beside
    fn.module.n_beside += 1
    # Calls that run whole are dealt like cards; those whose loop is shared out come in chunks, to each thread its own.
    n_whole = sum(extent is None for extent, _ in run.members)
    n_chunks = sum(n for extent, n in run.members if extent is not None)
    _define_task(fn, number, run, calls, n_whole, n_chunks)
    beside, in_turn, done = (f"{word}_{number}" for word in ("beside", "in_turn", "beside_done"))
    several = fn.let("icmp sgt i32 %threads, 1")
    if run.most_threads:
        several = fn.let(f"and i1 {several}, {fn.let(f'icmp sle i32 %threads, {run.most_threads}')}")
    fn.write(f"br i1 {several}, label %{beside}, label %{in_turn}")
    fn.label(in_turn)
    fn.forget()
    fn.steps(steps)
    fn.write(f"br label %{done}")
    fn.label(beside)
    threads = fn.let("zext i32 %threads to i64")
    each = fn.let(f"add i64 {_share(fn, n_whole, threads)}, {n_chunks}")
    n_tasks = fn.let(f"mul i64 {each}, {threads}")
    context = fn.store_context(_CONTEXT, {"threads": threads, "n_tasks": n_tasks})
    fn.write(f"call void @tw_parallel_for(ptr @tw_beside{number}, ptr {context}, i64 {n_tasks}, i32 %threads)")
    fn.leave_if_stopped([c for s in calls for c in s.calls])
    fn.write(f"br label %{done}")
    fn.label(done)
    fn.forget()


def _share(fn: Function, n_whole: int, threads: str) -> str:
    """How many of the calls that are run whole a thread gets, at most."""
    above = fn.let(f"add i64 {threads}, {n_whole - 1}")
    return fn.let(f"udiv i64 {above}, {threads}")


def _define_task(
    caller: Function, number: int, run: Beside, calls: list[KernelCall | Choice], n_whole: int, n_chunks: int
) -> None:
    """``tw_beside<number>(context, task)`` finds scratch for a task, ``tw_beside<number>_at(..., scratch)`` runs it."""
    fn = type(caller)(caller.module)
    fn.load_context(_CONTEXT)
    n_dealt = _share(fn, n_whole, "%threads")
    each = fn.let(f"add i64 {n_dealt}, {n_chunks}")
    thread, place = fn.let(f"udiv i64 %task, {each}"), fn.let(f"urem i64 %task, {each}")
    chunk = fn.let(f"sub i64 {place}, {n_dealt}")
    # Cards go round: thread t gets t, t + threads, and so on, as the pool gives each thread neighbours first.
    card = fn.let(f"add i64 {fn.let(f'mul i64 {place}, %threads')}, {thread}")
    is_card = fn.let(f"icmp slt i64 {chunk}, 0")
    cards = " ".join(f"i64 {k}, label %call{k}" for k in range(n_whole))
    places = [n_whole + k for k, (_, n) in enumerate(run.members[n_whole:]) for _ in range(n)]
    chunks = " ".join(f"i64 {c}, label %call{k}" for c, k in enumerate(places))
    fn.write(f"br i1 {is_card}, label %cards, label %chunks")
    fn.label("cards")
    fn.write(f"switch i64 {card}, label %out [ {cards} ]")
    fn.label("chunks")
    fn.write(f"switch i64 {chunk}, label %out [ {chunks} ]")
    for k, (call, (extent, n)) in enumerate(zip(calls, run.members, strict=True)):
        fn.label(f"call{k}")
        fn.forget()
        if extent is None and isinstance(call, Choice):
            fn.choose(call, partial(_call, fn, first="0", end="1"))
            fn.write("br label %out")
        elif extent is None:
            _call(fn, call.general, "0", "1")
            fn.write("br label %out")
        else:
            # Threads share the code for all sizes alone: a version of it has another loop to share, or none.
            _call_chunk(fn, k, call.general, extent, n, thread, fn.let(f"sub i64 {chunk}, {places.index(k)}"))
    fn.label("out")
    name, module = f"@tw_beside{number}", fn.module
    module.task(f"{name}_at", "ptr %context, i64 %task, ptr %slot", fn)
    run_task = f"  call void {name}_at(ptr %context, i64 %task, ptr {{}})"
    if module.scratch.per_thread > FLAG_BYTES:
        module.task_with_slot(name, _CONTEXT, run_task.format("%slot"))
    else:
        fn = type(caller)(module)
        fn.lines.append(run_task.format("null"))
        module.task(name, "ptr %context, i64 %task", fn)


def _call_chunk(fn: Function, k: int, call: KernelCall, extent: Dim, n: int, thread: str, chunk: str) -> None:
    """Chunk number ``chunk`` of the ``n`` that ``thread`` has: its even part of the iterations, which may be none."""
    index = fn.let(f"add i64 {fn.let(f'mul i64 {thread}, {n}')}, {chunk}")
    total = fn.let(f"mul i64 %threads, {n}")
    size = fn.dim(extent)
    first = fn.let(f"udiv i64 {fn.let(f'mul i64 {size}, {index}')}, {total}")
    following = fn.let(f"add i64 {index}, 1")
    end = fn.let(f"udiv i64 {fn.let(f'mul i64 {size}, {following}')}, {total}")
    fn.write(f"br i1 {fn.let(f'icmp ult i64 {first}, {end}')}, label %some{k}, label %out")
    fn.label(f"some{k}")
    _call(fn, call, first, end)
    fn.write("br label %out")


def _call(fn: Function, call: KernelCall, first: str, end: str) -> None:
    fn.module.parts[call.kernel] = None
    values = [*fn.arguments(call), f"i64 {first}", f"i64 {end}", "ptr %slot"]
    fn.write(f'call void @"{call.kernel}.part"({", ".join(values)})')
