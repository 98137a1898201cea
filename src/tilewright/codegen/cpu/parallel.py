"""Parallel loops: the body becomes a function of its own, and the thread pool calls it for chunks of iterations.

In: a parallel ``For``. Out: a private function for the body, one for a task, and the call that runs them.
Not its business: threads (the runtime's ``tw_parallel_for``).

``void tw_parallel_for(ptr task, ptr context, i64 n_tasks, i32 threads)`` calls ``task(context, i)`` for every ``i``.
With one thread the body is called directly, once, for the whole range. Results do not depend on the chunks.

Two parallel loops with nothing between them are shared out as one: iteration ``i`` of ``n`` of the outer and ``j`` of
``m`` of the inner are number ``i*m + j`` of ``n*m``, and a chunk may begin and end within a row of the inner loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.choose.shares import joined
from tilewright.codegen.cpu import polls
from tilewright.codegen.cpu.scratch import with_slot
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.writer import Val
from tilewright.core.compute import Buffer
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv
from tilewright.tile.ir import For, Space

if TYPE_CHECKING:
    from tilewright.codegen.cpu.function import CpuFunction, CpuModule

CHUNKS_PER_THREAD = 8
POOL = "declare void @tw_parallel_for(ptr, ptr, i64, i32)"


def emit(fn: CpuFunction, f: For, extent: Dim) -> None:
    """Emit a parallel loop in ``fn``."""
    module = fn.module
    number = module.n_tasks
    module.n_tasks += 1
    # The body is a function of its own, which other threads call: all that it uses comes as arguments.
    buffers = _buffers(fn, f)
    syms = [s for s, sid in fn.space.ids.items() if fn.space.run[sid] is not None and s in fn.space.env]
    body, task = module.symbol(f"body{number}"), module.symbol(f"task{number}")
    arguments = [f"ptr {fn.base(b).text}" for b in buffers]
    arguments += [f"i64 {fn.space.value(s).text}" for s in syms]
    inner = joined(f)
    width = 1 if inner is None else fn.space.resolve(inner.loop.extent)
    if width == 0:
        return
    is_long = polls.is_long_within if fn.writer.level else polls.is_long
    has_polls = fn.has_polls and is_long(fn, f)
    task_bytes = _define_body(fn, f, extent, inner, width, body, buffers, syms, has_polls)
    module.task_bytes = max(module.task_bytes, task_bytes)
    _define_task(fn, body, task, [a.split()[0] for a in arguments], task_bytes)
    if module.has_part and f is module.kernel.body[0]:
        _define_part(module, body, arguments, task_bytes)
    stop = fn.space.value(extent * width)
    # Any thread may change what memory is known to hold here.
    fn.memory.forget()
    _dispatch(fn, body, task, arguments, stop, task_bytes)
    if has_polls:
        polls.leave_if_stopped(fn)
    module.declarations.add(POOL)


def _define_part(module: CpuModule, body: str, arguments: list[str], task_bytes: int) -> None:
    """``NAME.part(ptr param..., i64 size..., i64 first, i64 end, ptr scratch)``: iterations of the loop that is all."""
    module.has_part = False
    parameters = [f"ptr %p{n}" for n in range(len(module.kernel.params))]
    parameters += [f"i64 %n{n}" for n in range(len(module.kernel.sizes))]
    parameters += ["i64 %first", "i64 %end", "ptr %scratch"]
    slot = ["ptr %scratch"] if task_bytes else []
    call = f"  call void {body}({', '.join([*arguments, 'i64 %first', 'i64 %end', *slot])})"
    head = f"define void {module.symbol('part')}({', '.join(parameters)}) {module.attributes} {{"
    module.functions.append("\n".join([head, call, "  ret void", "}"]))


def _buffers(fn: CpuFunction, f: For) -> list[Buffer]:
    """Buffers that exist outside the loop and are mentioned inside."""
    outside = fn.analysis.outside.get(id(f), set())
    used = fn.analysis.used.get(id(f), {})
    table = fn.analysis.places
    return [
        b
        for bid, b in used.items()
        if bid not in fn.registers.groups
        and bid in table
        and table[bid].space is not Space.TABLE
        and (bid in outside or table[bid].space is Space.GLOBAL)
    ]


def _define_body(
    fn: CpuFunction,
    f: For,
    extent: Dim,
    joined: For | None,
    width: Dim,
    name: str,
    buffers: list[Buffer],
    syms: list[Sym],
    has_polls: bool,
) -> int:
    """``name(buffers..., symbols..., first, end, scratch)``: iterations ``first <= i < end`` of ``f`` and ``joined``
    as one. Returns the scratch's bytes; without any it is not passed."""
    # A function of its own: one thread calls it for all iterations, the pool's tasks for their chunks.
    inner = type(fn)(fn.module, in_task=True, has_polls=has_polls)
    parameters = []
    for n, b in enumerate(buffers):
        inner.bases[id(b)] = Val(f"%p{n}", 0, 0)
        parameters.append(f"ptr noalias %p{n}")
    for sym, value in fn.space.values.items():
        assert is_known(value)
        inner.space.bind_const(sym, value)
    for n, sym in enumerate(syms):
        inner.space.bind_run(sym, f"%n{n}", 0, fn.space.env[sym])
        parameters.append(f"i64 %n{n}")
    first, end = Sym("%first", 0, None), Sym("%end", 0, None)
    hi = fn.space.bounds(extent * width)[1]
    inner.space.bind_run(first, "%first", 0, (0, None if hi is None else max(hi - 1, 0)))
    inner.space.bind_run(end, "%end", 0, (1, hi))
    # A chunk lies within the loop and is not empty, from which guards inside may follow.
    inner.space.assume([*fn.space.facts, extent * width - end, end - 1 - first])
    window: tuple[Dim, Dim] | None = (first, end)
    if joined is not None:
        # A chunk may begin and end inside of a row of the outer loop.
        window = (floordiv(first, width), ceildiv(end, width))
        inner.loops.windows[id(joined)] = (first - width * f.loop.sym, end - width * f.loop.sym)
    elif extent == 1:
        window = None
    if has_polls:
        polls.leave_if_stopped(inner)
    inner.loops.serial(f, extent, Lanes(), window)
    inner.writer.emit("ret void")
    slot = ["ptr noalias %scratch"] if inner.locals.in_scratch else []
    signature = ", ".join([*parameters, "i64 %first", "i64 %end", *slot])
    head = f"define internal void {name}({signature}) {fn.module.attributes} {{"
    fn.module.functions.append("\n".join([head, *inner.writer.lines(), "}"]))
    return inner.locals.in_scratch


def _define_task(fn: CpuFunction, body: str, task: str, kinds: list[str], task_bytes: int) -> None:
    """``task(context, i)``: unpack the context and run chunk ``i``."""
    lines = [f"define internal void {task}(ptr %context, i64 %task) {fn.module.attributes} {{", "entry:"]
    rest = {"chunk": "i64", "extent": "i64"}
    if task_bytes:
        rest |= {"scratch": "ptr", "slots": "ptr", "threads": "i64", "n_tasks": "i64"}
    for n, (name, kind) in enumerate([*((f"v{n}", k) for n, k in enumerate(kinds)), *rest.items()]):
        lines.append(f"  %a{n} = getelementptr i64, ptr %context, i64 {n}")
        lines.append(f"  %{name} = load {kind}, ptr %a{n}")
    lines.append("  %first = mul i64 %task, %chunk")
    lines.append("  %behind = add i64 %first, %chunk")
    lines.append("  %end = call i64 @llvm.smin.i64(i64 %behind, i64 %extent)")
    arguments = [*(f"{kind} %v{n}" for n, kind in enumerate(kinds)), "i64 %first", "i64 %end"]
    if task_bytes:
        lines += with_slot(f"  call void {body}({', '.join([*arguments, 'ptr %slot'])})", task_bytes)
    else:
        lines.append(f"  call void {body}({', '.join(arguments)})")
    fn.module.functions.append("\n".join([*lines, "  ret void", "}"]))


def _dispatch(fn: CpuFunction, body: str, task: str, arguments: list[str], extent: Val, task_bytes: int) -> None:
    """Call the body directly for one thread, else hand chunks to the pool."""
    w = fn.writer
    threaded, direct, check, after = w.label("threaded"), w.label("direct"), w.label("check"), w.label("after")
    some = w.fresh(f"icmp sgt i64 {extent.text}, 0")
    w.emit(f"br i1 {some}, label %{check}, label %{after}")
    w.start_block(check)
    one = w.fresh("icmp slt i32 %threads, 2")
    single = w.fresh(f"icmp slt i64 {extent.text}, 2")
    alone = w.fresh(f"or i1 {one}, {single}")
    w.emit(f"br i1 {alone}, label %{direct}, label %{threaded}")
    w.start_block(direct)
    slot = ["ptr %slots"] if task_bytes else []
    w.emit(f"call void {body}({', '.join([*arguments, 'i64 0', f'i64 {extent.text}', *slot])})")
    w.emit(f"br label %{after}")
    w.start_block(threaded)
    threads = w.fresh("zext i32 %threads to i64")
    slots = w.fresh(f"mul i64 {threads}, {CHUNKS_PER_THREAD}")
    # Several chunks for each thread: one that is held up leaves the rest to others.
    share = w.fresh(f"udiv i64 {extent.text}, {slots}")
    chunk = w.fresh(f"call i64 @llvm.smax.i64(i64 {share}, i64 1)")
    above = w.fresh(f"add i64 {extent.text}, {chunk}")
    whole = w.fresh(f"sub i64 {above}, 1")
    n_tasks = w.fresh(f"udiv i64 {whole}, {chunk}")
    told = [*arguments, f"i64 {chunk}", f"i64 {extent.text}"]
    if task_bytes:
        told += ["ptr %scratch", "ptr %slots", f"i64 {threads}", f"i64 {n_tasks}"]
    # On the stack of the caller, which waits until all tasks are done.
    context = w.name()
    w.entry.append(f"  {context} = alloca [{len(told)} x i64], align 16")
    for n, argument in enumerate(told):
        at = w.fresh(f"getelementptr i64, ptr {context}, i64 {n}")
        w.emit(f"store {argument}, ptr {at}")
    w.emit(f"call void @tw_parallel_for(ptr {task}, ptr {context}, i64 {n_tasks}, i32 %threads)")
    w.emit(f"br label %{after}")
    w.start_block(after)
