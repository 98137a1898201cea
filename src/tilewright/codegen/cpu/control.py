"""Control flow of a program as LLVM text: branches and loops around sub-programs, which are functions of their own.

In: a function that is being written, and a step. Out: its lines there; of parts that threads take, a function for a
part, and the scratch that programs need. Not its business: kernels' calls and sizes (``codegen.cpu.program``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.polls import ASK
from tilewright.codegen.cpu.scratch import FLAG_BYTES, start_of
from tilewright.partition.program import Branch, ForParts, Program, Repeat, walk_steps
from tilewright.runtime.manifest import ScratchSpec

if TYPE_CHECKING:
    from tilewright.codegen.cpu.program import Function


def branch(fn: Function, step: Branch) -> None:
    """One of two sub-programs, and the sizes that it decides."""
    table = fn.argument_table([fn.pointer(p) for p in step.args])
    scratch = fn.pointer(step.scratch)
    flag = fn.let(f"load i8, ptr {fn.pointer(step.cond)}")
    test = fn.let(f"icmp ne i8 {flag}, 0")
    fn.n += 1
    yes, no, done = f"then{fn.n}", f"else{fn.n}", f"done{fn.n}"
    fn.write(f"br i1 {test}, label %{yes}, label %{no}")
    for label, program, dims in (
        (yes, step.then_program, step.then_dims),
        (no, step.else_program, step.else_dims),
    ):
        fn.label(label)
        fn.forget()
        fn.call_sub(program, table, scratch)
        for d in dims:
            fn.step(d)
        fn.write(f"br label %{done}")
    fn.label(done)
    fn.forget()


def repeat(fn: Function, step: Repeat) -> None:
    """Carried values ping-pong between two buffers: the argument table's input and output entries swap."""
    # The first values belong to somebody else, who may read them behind the loop: the body gets copies.
    for c in step.carried:
        fn.copy(fn.pointer(c.start), fn.pointer(c.buffers[0]), c.n_bytes)
    fn.copy(fn.pointer(step.cond), fn.pointer(step.cond_buffers[0]), 1)
    pairs = [step.cond_buffers, *(c.buffers for c in step.carried)]
    firsts, seconds = [fn.pointer(p[0]) for p in pairs], [fn.pointer(p[1]) for p in pairs]
    results = [fn.pointer(p.place) for p in step.scanned]
    captures = [fn.pointer(p) for p in step.captures]
    ends = [(fn.pointer(c.result), c.n_bytes) for c in step.carried]
    sizes = [fn.dim(p.n_bytes) for p in step.scanned]
    # Sizes are evaluated before the loop: a name that is first computed inside of it is not known behind it.
    for _, n in ends:
        fn.dim(n)
    iteration, scratch = fn.pointer(step.iteration), fn.pointer(step.scratch)
    count = fn.pointer(step.count)
    table = fn.argument_table([iteration, *firsts, *captures, *seconds, *results])
    at_in = [fn.let(f"getelementptr ptr, ptr {table}, i64 {1 + k}") for k in range(len(pairs))]
    base = 1 + len(pairs) + len(captures)
    at_out = [fn.let(f"getelementptr ptr, ptr {table}, i64 {base + k}") for k in range(len(pairs))]
    base += len(pairs)
    at_scan = [fn.let(f"getelementptr ptr, ptr {table}, i64 {base + k}") for k in range(len(results))]
    trips = fn.let(f"load i64, ptr {fn.pointer(step.trips)}")
    fn.write(f"store i64 0, ptr {iteration}")
    fn.n += 1
    test, body, done = f"test{fn.n}", f"body{fn.n}", f"end{fn.n}"
    fn.write(f"br label %{test}")
    fn.label(test)
    i = fn.let(f"load i64, ptr {iteration}")
    # Loaded through the table, since the condition of this iteration is in one of two buffers by turns.
    flag = fn.let(f"load i8, ptr {fn.let(f'load ptr, ptr {at_in[0]}')}")
    more = fn.let(f"icmp slt i64 {i}, {trips}")
    wanted = fn.let(f"icmp ne i8 {flag}, 0")
    fn.write(f"br i1 {fn.let(f'and i1 {more}, {wanted}')}, label %{body}, label %{done}")
    fn.label(body)
    _go_on(fn, i, results, sizes, at_scan)
    fn.call_sub(step.body, table, scratch)
    for a, b in zip(at_in, at_out, strict=True):
        x, y = fn.let(f"load ptr, ptr {a}"), fn.let(f"load ptr, ptr {b}")
        fn.write(f"store ptr {y}, ptr {a}")
        fn.write(f"store ptr {x}, ptr {b}")
    fn.write(f"store i64 {fn.let(f'add i64 {i}, 1')}, ptr {iteration}")
    if fn.module.points is not None:
        fn.turn()
    fn.write(f"br label %{test}")
    fn.label(done)
    # Where the last values lie depends on whether the number of iterations was odd; the table's inputs say it.
    for (result, n), at in zip(ends, at_in[1:], strict=True):
        fn.copy(fn.let(f"load ptr, ptr {at}"), result, n)
    fn.write(f"store i64 {fn.let(f'load i64, ptr {iteration}')}, ptr {count}")
    fn.forget()


# --- parts ----------------------------------------------------------------------------------------------------------

_CONTEXT = {
    "firsts": "ptr", "dims": "ptr", "weights": "ptr", "arenas": "ptr", "scratch": "ptr",
    "threads": "i64", "n_tasks": "i64", "code": "i64",
}  # fmt: skip
"""What a task of parts is told; it leaves the code of a body that does not end well."""


def scratch_of(programs: Iterable[Program], kernels: ScratchSpec) -> ScratchSpec:
    """What programs need for kernels that need ``kernels``: of parts at one time, each has scratch of its own."""
    if not any(isinstance(s, ForParts) and s.n_threads > 1 for p in programs for s in walk_steps(p)):
        return kernels
    return ScratchSpec(kernels.fixed, max(kernels.per_thread, FLAG_BYTES + kernels.n_bytes(1)))


def for_parts(fn: Function, step: ForParts) -> None:
    """The body for each part: by all threads together, one part after the other, or each part by one thread."""
    if step.n_threads < 2 or fn.module.cycles:
        _in_turn(fn, step)
        return
    fn.module.n_parallel += 1
    number = fn.module.n_parallel
    _define_part(fn, step, number)
    apart, in_turn, done = (f"{word}_{number}" for word in ("apart", "in_turn_of", "parts_done"))
    fn.write(f"br i1 {fn.let('icmp sgt i32 %threads, 1')}, label %{apart}, label %{in_turn}")
    fn.label(in_turn)
    fn.forget()
    _in_turn(fn, step)
    fn.write(f"br label %{done}")
    fn.label(apart)
    fn.forget()
    threads = fn.let(f"call i32 @llvm.smin.i32(i32 %threads, i32 {step.n_threads})")
    known = {
        "firsts": fn.argument_table([fn.pointer(p.place) for p in step.args]), "arenas": fn.pointer(step.scratch),
        "threads": fn.let(f"zext i32 {threads} to i64"), "n_tasks": str(step.n_parts), "code": "0",
    }  # fmt: skip
    context = fn.store_context(_CONTEXT, known)
    task = f"@tw_parts{number}"
    fn.write(f"call void @tw_parallel_for(ptr {task}, ptr {context}, i64 {step.n_parts}, i32 {threads})")
    if _may_end_early(fn, step):
        at = fn.let(f"getelementptr i64, ptr {context}, i64 {len(_CONTEXT) - 1}")
        fn.stop_if(fn.let(f"trunc i64 {fn.let(f'load i64, ptr {at}')} to i32"))
    fn.write(f"br label %{done}")
    fn.label(done)
    fn.forget()


def _may_end_early(fn: Function, step: ForParts) -> bool:
    """Does a body return a code, or is a part that is due left out where the call is stopped?"""
    return fn.module.points is not None or fn.module.is_stoppable(step.body)


def _define_part(caller: Function, step: ForParts, number: int) -> None:
    """``tw_parts<number>(context, task)`` finds memory for a part, ``tw_parts<number>_at(.., slot, k)`` computes it."""
    module = caller.module
    name, own = f"@tw_parts{number}", module.kernel_scratch
    module.task_with_slot(name, _CONTEXT, f"  call void {name}_at(ptr %context, i64 %task, ptr %slot, i64 %k)")
    fn = type(caller)(module)
    fn.load_context(_CONTEXT)
    if module.points is not None:
        fn.write(f"br i1 {_keep_code(fn, fn.let(ASK))}, label %out, label %run")
        fn.label("run")
    parts = []
    for k, p in enumerate(step.args):
        first = fn.let(f"load ptr, ptr {fn.let(f'getelementptr ptr, ptr %firsts, i64 {k}')}")
        parts.append(fn.let(f"getelementptr i8, ptr {first}, i64 {fn.let(f'mul i64 %task, {fn.dim(p.n_bytes)}')}"))
    arena = fn.let(f"getelementptr i8, ptr %arenas, i64 {fn.let(f'mul i64 %k, {fn.dim(step.body.arena_bytes)}')}")
    if own.per_thread:
        fn.write("store i32 0, ptr %slot")  # the flag of the one thread that the part's kernels have
    scratch = fn.let(f"getelementptr i8, ptr %slot, i64 {start_of(own, 1)}")
    call = module.sub_call(step.body, fn.argument_table(parts), fn.copy_of_dims(), arena, "1", scratch)
    code = fn.let(f"call i32 {call}")
    if module.is_stoppable(step.body):
        _keep_code(fn, code)
    fn.write("br label %out")
    fn.label("out")
    module.task(f"{name}_at", "ptr %context, i64 %task, ptr %slot, i64 %k", fn)


def _keep_code(fn: Function, code: str) -> str:
    """Leave a code that is not 0 to the caller; an i1, whether it is."""
    fn.n += 1
    kept, on = f"kept{fn.n}", f"going{fn.n}"
    is_code = fn.let(f"icmp ne i32 {code}, 0")
    fn.write(f"br i1 {is_code}, label %{kept}, label %{on}")
    fn.label(kept)
    at = fn.let(f"getelementptr i64, ptr %context, i64 {len(_CONTEXT) - 1}")
    fn.write(f"store atomic i64 {fn.let(f'sext i32 {code} to i64')}, ptr {at} monotonic, align 8")
    fn.write(f"br label %{on}")
    fn.label(on)
    return is_code


def _in_turn(fn: Function, step: ForParts) -> None:
    """The body with pointers that go on by a part each turn."""
    firsts, sizes = [fn.pointer(p.place) for p in step.args], [fn.dim(p.n_bytes) for p in step.args]
    table, scratch = fn.argument_table(firsts), fn.pointer(step.scratch)
    moving = [k for k, p in enumerate(step.args) if p.n_bytes != 0]
    places = [fn.let(f"getelementptr ptr, ptr {table}, i64 {k}") for k in moving]
    turn = fn.fresh()
    fn.entry.append(f"  {turn} = alloca i64")
    fn.write(f"store i64 0, ptr {turn}")
    fn.n += 1
    body, done = f"part{fn.n}", f"parted{fn.n}"
    fn.write(f"br label %{body}")
    fn.label(body)
    i = fn.let(f"load i64, ptr {turn}")
    _go_on(fn, i, [firsts[k] for k in moving], [sizes[k] for k in moving], places)
    fn.call_sub(step.body, table, scratch)
    following = fn.let(f"add i64 {i}, 1")
    fn.write(f"store i64 {following}, ptr {turn}")
    if fn.module.points is not None:
        fn.turn()
    more = fn.let(f"icmp slt i64 {following}, {step.n_parts}")
    fn.write(f"br i1 {more}, label %{body}, label %{done}")
    fn.label(done)
    fn.forget()


def _go_on(fn: Function, turn: str, firsts: Sequence[str], sizes: Sequence[str], places: Sequence[str]) -> None:
    """Store where a turn's parts begin: so many of their sizes behind the first ones."""
    for first, size, place in zip(firsts, sizes, places, strict=True):
        here = fn.let(f"getelementptr i8, ptr {first}, i64 {fn.let(f'mul i64 {turn}, {size}')}")
        fn.write(f"store ptr {here}, ptr {place}")
