"""The entry function: LLVM text that runs a program's steps in order.

In: a ``partition.program.Program`` and the slots of the dimension table. Out: a module with ``tw_run``, ``tw_plan`` and
a function per sub-program and per program for certain sizes, to be linked with the kernels' objects.
Not its business: calls side by side (``codegen.cpu.beside``), kernels (``codegen.cpu.llvm``), how the functions are
called (``runtime``).

``i32 tw_run(ptr args, ptr dims, ptr weights, ptr memory, i32 threads)`` returns 0, or the number of a check that does
not hold; ``memory`` has the kernels' scratch for so many threads (``codegen.cpu.scratch``), and behind it the arena.
Of a program that may take long, ``tw_run`` asks ``tw_poll`` (``runtime.cpu.stop_ir``) now and then between two kernels
whether to go on, and returns what it says where not. How long it has been since the last time is told by the points
that kernels compute, since a clock would cost a short call more than that. ``dims`` then has two places more: points
since then, and a place of ``tw_poll``'s.
``void tw_plan(ptr dims, ptr out)`` writes the arena's bytes, then every dimension of every output; where any of them is
beyond 64 bits, the arena's bytes are -1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tilewright.codegen.cpu import beside, control
from tilewright.codegen.cpu.flush import flushing
from tilewright.codegen.cpu.parallel import POOL
from tilewright.codegen.cpu.polls import ASK, LOOK
from tilewright.codegen.cpu.scratch import FLAG_BYTES, with_slot, zero_flags
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Atom, BinaryExpr, Dim, Mul, Sym, const_of, terms_of
from tilewright.partition.program import (
    Branch,
    Choice,
    Copy,
    ForParts,
    KernelCall,
    LetDim,
    Pointer,
    Program,
    Repeat,
    Require,
    RequireSize,
    RoutineCall,
    SetDim,
    SizedProgram,
    Step,
)
from tilewright.runtime.manifest import ScratchSpec
from tilewright.target.target import Target

POLL_SLOTS = 2
POLL_POINTS = 10_000_000
"""A millisecond of a matrix product, a tenth of a second of one scalar function after another."""
TURN_POINTS = 1_000
"""What a loop's turn counts beside its kernels: a poll every ten thousand turns."""

_RUN = "define i32 @tw_run(ptr %args, ptr %dims, ptr %weights, ptr %memory, i32 %threads)"
_KEPT = "define internal i32 @tw_kept(ptr %args, ptr %dims, ptr %weights, ptr %memory, i32 %threads)"
_SIZED = "define internal i32 @tw_sized{}(ptr %args, ptr %dims, ptr %weights, ptr %memory, i32 %threads)"
_SUB = "define internal i32 @{}(ptr %args, ptr %dims, ptr %weights, ptr %arena, i32 %threads, ptr %scratch)"


def emit_program(
    program: Program,
    slots: Mapping[str, int],
    output_shapes: Sequence[Sequence[Dim]],
    target: Target,
    kernels: Mapping[str, int],
    scratch: ScratchSpec,
    cycles: Mapping[str, int] | None = None,
    routines: Collection[str] = (),
    points: Mapping[str, Dim] | None = None,
    exact: Sequence[SizedProgram] = (),
    stoppable: Collection[str] = (),
    flush_denormals: bool = False,
) -> str:
    """The module's text; ``slots`` gives each symbol's place in ``dims``, ``kernels`` each kernel's parameter count,
    ``scratch`` what is enough for each of them, ``routines`` which routines of libraries whoever links it offers.

    With ``cycles``, the time of a kernel's calls, in ticks of the CPU's counter, is added to its place in ``dims``;
    then every call is made by itself. With ``points``, those of each kernel's call, the program can be stopped.
    ``exact`` are programs that take the place of ``program`` in calls of their sizes, the first that fits.
    ``stoppable`` kernels return early where a signal stops them, and the program does then.
    With ``flush_denormals`` the program computes as if denormal numbers were 0.
    """
    entry = _KEPT if flush_denormals else _RUN
    whole = control.scratch_of([program, *(sized.program for sized in exact)], scratch)
    module = Module(slots, cycles or {}, whole, scratch, frozenset(routines), points, frozenset(stoppable))
    for at, sized in enumerate(exact):
        module.function(sized.program, _SIZED.format(at), whole)
    # Beside programs for exact sizes the entry is the choice among them, and the general one is its last resort.
    module.function(program, _SIZED.format(len(exact)) if exact else entry, whole)
    if exact:
        module.choice(exact, entry)
    if flush_denormals:
        module.functions.append(flushing(_RUN, "tw_kept", target.triple))
    module.plan(program, output_shapes, exact)
    head = [f'target triple = "{target.triple}"', "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"]
    head.append("declare i64 @llvm.readcyclecounter()")
    if module.n_beside or module.n_parallel:
        head += [POOL, "declare i32 @llvm.smin.i32(i32, i32)"]
    if any("@tw_poll(" in text or LOOK in text or ASK in text for text in module.functions):
        head.append("declare i32 @tw_poll(ptr)")
        head += [question.replace("call", "declare") for question in (ASK, LOOK)]
    for d in ("smin", "smax"):
        head.append(f"declare i64 @llvm.{d}.i64(i64, i64)")
    head += [f"declare {{i64, i1}} @llvm.s{op}.with.overflow.i64(i64, i64)" for op in ("add", "mul")]
    declared = [f'declare void @"{k}"({_signature(n, module.n_sizes.get(k, 0))}, i32, ptr)' for k, n in kernels.items()]
    for k in module.parts:
        declared.append(f'declare void @"{k}.part"({_signature(kernels[k], module.n_sizes[k])}, i64, i64, ptr)')
    declared += [f"declare i32 @{symbol}(ptr, ptr)" for symbol in sorted(module.routines)]
    return "\n".join([*head, *declared, *module.functions]) + "\n"


def _signature(n_params: int, n_sizes: int) -> str:
    return ", ".join(["ptr"] * n_params + ["i64"] * n_sizes)


def poll_slots(text: str, n_slots: int) -> int:
    """How many places behind its ``n_slots`` dimensions a module uses.

    A sub-program counts its points whether or not the program that calls it turns out to poll.
    """
    used = any(f"ptr %dims, i64 {n_slots + k}\n" in text for k in range(POLL_SLOTS))
    return POLL_SLOTS if used else 0


class Module:
    """Functions emitted so far; a sub-program is emitted once, by identity."""

    def __init__(
        self,
        slots: Mapping[str, int],
        cycles: Mapping[str, int],
        scratch: ScratchSpec,
        kernel_scratch: ScratchSpec,
        routines: frozenset[str],
        points: Mapping[str, Dim] | None,
        stoppable_kernels: frozenset[str],
    ) -> None:
        self.slots = slots
        self.routines = routines
        self.points = points
        self.stoppable_kernels = stoppable_kernels
        self.stoppable: set[str] = set()
        self.cycles = cycles
        self.scratch = scratch
        self.kernel_scratch = kernel_scratch
        self.functions: list[str] = []
        self.names: dict[int, str] = {}
        self.n_sizes: dict[str, int] = {}
        self.parts: dict[str, None] = {}
        self.n_beside = 0
        self.n_parallel = 0

    def function(self, program: Program, head: str, scratch: ScratchSpec | None = None) -> None:
        """With ``scratch``, it and the arena are parts of ``%memory``."""
        fn = Function(self)
        at = 0
        for run in [] if self.cycles else program.beside:
            fn.steps(program.steps[at : run.first])
            at = run.first + len(run.members)
            beside.emit(fn, run, program.steps[run.first : at])
        fn.steps(program.steps[at:])
        split = [] if scratch is None else _split_memory(scratch)
        if scratch is None:
            fn.count(fn.points)
        if fn.is_stoppable:
            self.stoppable.add(head)
        body = "\n".join(["entry:", *fn.entry, *split, *fn.lines, "  ret i32 0", "}"])
        self.functions.append(f"{head} nounwind {{\n{body}")

    def choice(self, exact: Sequence[SizedProgram], entry: str) -> None:
        """The entry of several programs: the first whose sizes a call has, else the last, which is for all."""
        fn = Function(self)
        for k, sized in enumerate(exact):
            fn.write(f"br i1 {fn.is_exact(sized.sizes)}, label %is{k}, label %not{k}")
            fn.label(f"is{k}")
            fn.leave_to(k)
            fn.label(f"not{k}")
        fn.leave_to(len(exact))
        body = "\n".join(["entry:", *fn.lines, "}"])
        self.functions.append(f"{entry} nounwind {{\n{body}")

    def sub(self, program: Program) -> str:
        if id(program) not in self.names:
            name = self.names[id(program)] = f"tw_sub{len(self.names)}"
            self.function(program, _SUB.format(name))
        return self.names[id(program)]

    def task_with_slot(self, name: str, context: Mapping[str, str], call: str) -> None:
        """The function that the pool calls for a task: it finds scratch of a thread for ``call``."""
        fn = Function(self)
        fn.load_context(context)
        # Slots lie where kernels of the whole program have theirs: none of those runs meanwhile.
        fn.write("%slots = getelementptr i8, ptr %scratch, i64 0")
        fn.lines += with_slot(call, self.scratch.per_thread - FLAG_BYTES)
        self.task(name, "ptr %context, i64 %task", fn)

    def task(self, name: str, parameters: str, fn: Function) -> None:
        body = "\n".join(["entry:", *fn.entry, *fn.lines, "  ret void", "}"])
        self.functions.append(f"define internal void {name}({parameters}) nounwind {{\n{body}")

    def is_stoppable(self, program: Program) -> bool:
        """May the function of a sub-program return a code?"""
        return _SUB.format(self.sub(program)) in self.stoppable

    def sub_call(self, program: Program, table: str, dims: str, arena: str, threads: str, scratch: str) -> str:
        values = f"ptr {table}, ptr {dims}, ptr %weights, ptr {arena}, i32 {threads}, ptr {scratch}"
        return f"@{self.sub(program)}({values})"

    def plan(
        self, program: Program, output_shapes: Sequence[Sequence[Dim]], exact: Sequence[SizedProgram] = ()
    ) -> None:
        fn = CheckedFunction(self)
        values = [program.arena_bytes, *(d for shape in output_shapes for d in shape)]
        for k, d in enumerate(values):
            fn.write(f"%w{k} = getelementptr i64, ptr %out, i64 {k}")
            fn.write(f"store i64 {fn.dim(d)}, ptr %w{k}")
        arena = fn.dim(values[0])
        for sized in reversed(exact):  # the first that fits is chosen last
            own = fn.dim(sized.program.arena_bytes)
            arena = fn.let(f"select i1 {fn.is_exact(sized.sizes)}, i64 {own}, i64 {arena}")
        if fn.is_beyond:
            arena = fn.let(f"select i1 {fn.is_beyond}, i64 -1, i64 {arena}")
        if fn.is_beyond or exact:
            fn.write(f"store i64 {arena}, ptr %w0")
        body = "\n".join(["entry:", *fn.lines, "  ret void", "}"])
        self.functions.append(f"define void @tw_plan(ptr %dims, ptr %out) nounwind {{\n{body}")


def _split_memory(scratch: ScratchSpec) -> list[str]:
    """``%scratch`` and ``%arena`` from ``%memory`` and ``%threads``."""
    start, end, lines = "0", str(scratch.fixed), list[str]()
    if scratch.per_thread:
        start, end = "%start", "%end"
        lines = ["  %count = zext i32 %threads to i64", *zero_flags("%count")]
        lines += [f"  %start = mul i64 %count, {FLAG_BYTES}", f"  %slots = mul i64 %count, {scratch.per_thread}"]
        lines += [f"  %end = add i64 %slots, {scratch.fixed}"]
    found = {"scratch": start, "arena": end}
    return lines + [f"  %{name} = getelementptr i8, ptr %memory, i64 {at}" for name, at in found.items()]


class Function:
    """One function being written."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.entry: list[str] = []  # allocations: a frame of fixed size
        self.lines: list[str] = []
        self.n = 0
        self.memo: dict[Dim, str] = {}
        self.pointers: dict[Pointer, str] = {}
        self.points: Dim = 0  # of calls since the last poll, not counted yet where the code runs
        self.is_stoppable = False

    def write(self, text: str) -> None:
        self.lines.append("  " + text)

    def fresh(self) -> str:
        self.n += 1
        return f"%v{self.n}"

    def let(self, text: str) -> str:
        name = self.fresh()
        self.write(f"{name} = {text}")
        return name

    def sum_of(self, x: str, y: str) -> str:
        return self.let(f"add i64 {x}, {y}")

    def product_of(self, x: str, y: str) -> str:
        return self.let(f"mul i64 {x}, {y}")

    def forget(self) -> None:
        """Values computed so far may not dominate what follows, or a dimension has changed."""
        self.memo.clear()
        self.pointers.clear()

    # --- dimensions and addresses

    def dim(self, d: Dim) -> str:
        if is_known(d):
            return str(d)
        if d not in self.memo:
            self.memo[d] = self._atom(d) if isinstance(d, Atom) else self._sum(d)
        return self.memo[d]

    def _sum(self, d: Dim) -> str:
        total = str(const_of(d))
        for atom, coef in terms_of(d):
            term = self.dim(atom)
            term = term if coef == 1 else self.product_of(term, str(coef))
            total = term if total == "0" else self.sum_of(total, term)
        return total

    def _atom(self, a: Atom) -> str:
        if isinstance(a, Sym):
            at = self.let(f"getelementptr i64, ptr %dims, i64 {self.module.slots[a.name]}")
            return self.let(f"load i64, ptr {at}")
        if isinstance(a, Mul):
            total = self.dim(a.factors[0])
            for f in a.factors[1:]:
                total = self.product_of(total, self.dim(f))
            return total
        assert isinstance(a, BinaryExpr)
        x, y = self.dim(a.a), self.dim(a.b)
        if a.op in ("min", "max"):
            return self.let(f"call i64 @llvm.s{a.op}.i64(i64 {x}, i64 {y})")
        return self._floored(a.op, x, y)

    def _floored(self, op: str, x: str, y: str) -> str:
        """Quotient rounded down or remainder with the divisor's sign; a zero divisor counts as one."""
        is_zero = self.let(f"icmp eq i64 {y}, 0")
        safe = self.let(f"select i1 {is_zero}, i64 1, i64 {y}")
        rest = self.let(f"srem i64 {x}, {safe}")
        mixed = self.let(f"xor i64 {rest}, {safe}")
        negative = self.let(f"icmp slt i64 {mixed}, 0")
        nonzero = self.let(f"icmp ne i64 {rest}, 0")
        adjust = self.let(f"and i1 {negative}, {nonzero}")
        if op == "mod":
            return self.let(f"select i1 {adjust}, i64 {self.let(f'add i64 {rest}, {safe}')}, i64 {rest}")
        quotient = self.let(f"sdiv i64 {x}, {safe}")
        return self.let(f"sub i64 {quotient}, {self.let(f'zext i1 {adjust} to i64')}")

    def pointer(self, p: Pointer) -> str:
        if p not in self.pointers:
            if p.base == "arg":
                at = self.let(f"getelementptr ptr, ptr %args, i64 {p.offset}")
                self.pointers[p] = self.let(f"load ptr, ptr {at}")
            else:
                self.pointers[p] = self.let(f"getelementptr i8, ptr %{p.base}, i64 {self.dim(p.offset)}")
        return self.pointers[p]

    # --- programs for certain sizes

    def is_exact(self, sizes: Sequence[tuple[str, int]]) -> str:
        """An i1: whether each symbol has its value."""
        found = ""
        for name, size in sizes:
            at = self.let(f"getelementptr i64, ptr %dims, i64 {self.module.slots[name]}")
            same = self.let(f"icmp eq i64 {self.let(f'load i64, ptr {at}')}, {size}")
            found = self.let(f"and i1 {found}, {same}") if found else same
        return found

    def leave_to(self, k: int) -> None:
        """End with what program number ``k`` returns."""
        call = f"i32 @tw_sized{k}(ptr %args, ptr %dims, ptr %weights, ptr %memory, i32 %threads)"
        self.write(f"ret i32 {self.let(f'tail call {call}')}")

    # --- steps

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, KernelCall | Choice | Branch | Repeat | ForParts):
                self.pause()
            self.step(step)
            if isinstance(step, KernelCall | Choice) and self.module.points is not None:
                self.points += self.module.points.get(step.general.kernel, 0)

    # --- stopping

    def pause(self) -> None:
        """Poll if the calls so far may have taken long. Nothing is done for few points that are known here."""
        points = self.points
        if known_under(points, POLL_POINTS):
            return
        self.points = 0
        if is_known(points):
            self.poll()
        else:
            self.poll_if_many(self.count(points))

    def turn(self) -> None:
        """Poll if a loop's turns so far may have taken long."""
        self.poll_if_many(self.count(TURN_POINTS))

    def poll_if_many(self, points: str) -> None:
        self.n += 1
        ask, go = f"ask{self.n}", f"on{self.n}"
        over = self.let(f"icmp ugt i64 {points}, {POLL_POINTS}")
        self.write(f"br i1 {over}, label %{ask}, label %{go}")
        self.label(ask)
        self.write(f"store i64 0, ptr {self.poll_slot(0)}")
        self.poll(go)

    def count(self, points: Dim) -> str:
        """Add points where the code runs; returns how many there are since the last poll."""
        if points == 0:
            return "0"
        slot = self.poll_slot(0)
        total = self.let(f"add i64 {self.let(f'load i64, ptr {slot}')}, {self.dim(points)}")
        self.write(f"store i64 {total}, ptr {slot}")
        return total

    def poll(self, go: str = "") -> None:
        """Ask whether to go on."""
        self.stop_if(self.let(f"call i32 @tw_poll(ptr {self.poll_slot(1)})"), go)

    def poll_slot(self, k: int) -> str:
        return self.let(f"getelementptr i64, ptr %dims, i64 {len(self.module.slots) + k}")

    def stop_if(self, code: str, go: str = "") -> None:
        """Return the code of a call that is not 0; else go on at the label ``go``."""
        self.is_stoppable = True
        self.n += 1
        stop, go = f"stop{self.n}", go or f"on{self.n}"
        self.write(f"br i1 {self.let(f'icmp ne i32 {code}, 0')}, label %{stop}, label %{go}")
        self.label(stop)
        self.write(f"ret i32 {code}")
        self.label(go)

    def leave_if_stopped(self, calls: Sequence[KernelCall]) -> None:
        """Return where one of these calls may have returned early, and did."""
        if any(call.kernel in self.module.stoppable_kernels for call in calls):
            self.stop_if(self.let(LOOK))

    # --- one step

    def step(self, step: Step) -> None:
        match step:
            case KernelCall():
                self.call(step)
            case Choice():
                self.choose(step, self.call)
            case Copy():
                self.copy(self.pointer(step.source), self.pointer(step.target), step.n_bytes)
            case SetDim():
                self.set_dim(step.symbol, self.let(f"load i64, ptr {self.pointer(step.source)}"))
            case LetDim():
                self.set_dim(step.symbol, self.dim(step.value))
            case Branch():
                control.branch(self, step)
            case Repeat():
                control.repeat(self, step)
            case ForParts():
                control.for_parts(self, step)
            case Require():
                flag = self.let(f"load i8, ptr {self.pointer(step.cond)}")
                self.require(self.let(f"icmp ne i8 {flag}, 0"), step.code)
            case RequireSize():
                self.require(self.let(f"icmp sge i64 {self.dim(step.value)}, 0"), step.code)

    def require(self, test: str, code: int) -> None:
        self.is_stoppable = True
        self.n += 1
        holds, fails = f"holds{self.n}", f"fails{self.n}"
        self.write(f"br i1 {test}, label %{holds}, label %{fails}")
        self.label(fails)
        self.write(f"ret i32 {code}")
        self.label(holds)

    def call(self, step: KernelCall) -> None:
        """A kernel; or a routine, and the kernel where that declines."""
        values = [*self.arguments(step), "i32 %threads", "ptr %scratch"]
        call, slot = f'call void @"{step.kernel}"({", ".join(values)})', self.module.cycles.get(step.kernel)
        if step.routine is None or step.routine.symbol not in self.module.routines:
            self.timed(lambda: self.write(call), slot)
        else:
            routine = step.routine
            self.timed(lambda: self.routine_or(routine, call), slot)
        self.leave_if_stopped([step])

    def choose(self, step: Choice, call: Callable[[KernelCall], None]) -> None:
        """Write the ``call`` that this call's sizes take, behind tests of them."""
        self.n += 1
        n = self.n
        for k, v in enumerate(step.versions):
            is_there = self.let(f"icmp eq i64 {self.dim(v.symbol)}, {v.size}")
            self.write(f"br i1 {is_there}, label %is{n}_{k}, label %not{n}_{k}")
            self.label(f"is{n}_{k}")
            call(v.call)
            self.write(f"br label %chosen{n}")
            self.label(f"not{n}_{k}")
            self.forget()
        call(step.general)
        self.write(f"br label %chosen{n}")
        self.label(f"chosen{n}")
        self.forget()

    def routine_or(self, routine: RoutineCall, call: str) -> None:
        table = self.argument_table([self.pointer(p) for p in routine.args])
        sizes = self.fresh()
        self.entry.append(f"  {sizes} = alloca [{len(routine.sizes)} x i64]")
        for k, d in enumerate(routine.sizes):
            self.write(f"store i64 {self.dim(d)}, ptr {self.let(f'getelementptr i64, ptr {sizes}, i64 {k}')}")
        is_left = self.let(f"icmp ne i32 {self.let(f'call i32 @{routine.symbol}(ptr {table}, ptr {sizes})')}, 0")
        self.n += 1
        own, done = f"own{self.n}", f"done{self.n}"
        self.write(f"br i1 {is_left}, label %{own}, label %{done}")
        self.label(own)
        self.write(call)
        self.write(f"br label %{done}")
        self.label(done)

    def arguments(self, call: KernelCall) -> list[str]:
        """A kernel's parameters, without threads and scratch."""
        self.module.n_sizes[call.kernel] = len(call.sizes)
        return [f"ptr {self.pointer(p)}" for p in call.args] + [f"i64 {self.dim(s)}" for s in call.sizes]

    def set_dim(self, symbol: Sym, value: str) -> None:
        at = self.let(f"getelementptr i64, ptr %dims, i64 {self.module.slots[symbol.name]}")
        self.write(f"store i64 {value}, ptr {at}")
        self.forget()

    def timed(self, write_call: Callable[[], None], slot: int | None) -> None:
        """A call; with a slot, its ticks are added there."""
        if slot is None:
            write_call()
            return
        start = self.let("call i64 @llvm.readcyclecounter()")
        write_call()
        ticks = self.let(f"sub i64 {self.let('call i64 @llvm.readcyclecounter()')}, {start}")
        at = self.let(f"getelementptr i64, ptr %dims, i64 {slot}")
        total = self.let(f"add i64 {self.let(f'load i64, ptr {at}')}, {ticks}")
        self.write(f"store i64 {total}, ptr {at}")

    def copy(self, source: str, target: str, n_bytes: Dim) -> None:
        self.write(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {self.dim(n_bytes)}, i1 false)")

    def store_context(self, context: Mapping[str, str], known: Mapping[str, str]) -> str:
        """Where a task finds values by their names and types: those that are ``known``, else the function's own."""
        table = self.fresh()
        self.entry.append(f"  {table} = alloca [{len(context)} x i64], align 16")
        for k, (name, kind) in enumerate(context.items()):
            at = self.let(f"getelementptr i64, ptr {table}, i64 {k}")
            self.write(f"store {kind} {known.get(name, f'%{name}')}, ptr {at}")
        return table

    def load_context(self, context: Mapping[str, str]) -> None:
        """Values that a task finds one after the other at ``%context``, by their names and types."""
        for k, (name, kind) in enumerate(context.items()):
            self.write(f"%{name} = load {kind}, ptr {self.let(f'getelementptr i64, ptr %context, i64 {k}')}")

    def copy_of_dims(self) -> str:
        """The table of dimensions for a thread to write to, where nothing counts points yet."""
        table, n_slots = self.fresh(), len(self.module.slots)
        self.entry.append(f"  {table} = alloca [{n_slots + POLL_SLOTS} x i64]")
        self.copy("%dims", table, 8 * n_slots)
        for k in range(POLL_SLOTS):
            self.write(f"store i64 0, ptr {self.let(f'getelementptr i64, ptr {table}, i64 {n_slots + k}')}")
        return table

    def argument_table(self, values: Sequence[str]) -> str:
        table = self.fresh()
        self.entry.append(f"  {table} = alloca [{max(len(values), 1)} x ptr]")
        for k, v in enumerate(values):
            self.write(f"store ptr {v}, ptr {self.let(f'getelementptr ptr, ptr {table}, i64 {k}')}")
        return table

    def call_sub(self, program: Program, table: str, scratch: str) -> None:
        call = self.module.sub_call(program, table, "%dims", scratch, "%threads", "%scratch")
        code = self.let(f"call i32 {call}")
        if self.module.is_stoppable(program):
            self.stop_if(code)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")


class CheckedFunction(Function):
    """The same with sums and products that are watched: ``is_beyond`` is an i1, whether any left 64 bits, or ""."""

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.is_beyond = ""

    def sum_of(self, x: str, y: str) -> str:
        return self._watched("add", x, y)

    def product_of(self, x: str, y: str) -> str:
        return self._watched("mul", x, y)

    def _floored(self, op: str, x: str, y: str) -> str:
        """What left 64 bits is divided as zero: the least number divided by -1 would end the process."""
        return super()._floored(op, self.let(f"select i1 {self.is_beyond}, i64 0, i64 {x}") if self.is_beyond else x, y)

    def _watched(self, op: str, x: str, y: str) -> str:
        pair = self.let(f"call {{i64, i1}} @llvm.s{op}.with.overflow.i64(i64 {x}, i64 {y})")
        value, is_beyond = (self.let(f"extractvalue {{i64, i1}} {pair}, {k}") for k in range(2))
        self.is_beyond = self.let(f"or i1 {self.is_beyond}, {is_beyond}") if self.is_beyond else is_beyond
        return value
