"""The C functions of an exported model, as LLVM text: what ``runtime.python`` does, in native code.

In: an ``Interface`` and a ``System``. Out: a module's text that defines ``NAME_info``, ``NAME_bind``,
``NAME_workspace``, ``NAME_input_shape``, ``NAME_output_shape``, ``NAME_create``, ``NAME_run``, ``NAME_result_shape``,
``NAME_destroy``, ``NAME_initial_state`` and ``NAME_status_text`` (``docs/adr/0009-c-abi.md``) around ``tw_run`` and
``tw_plan``.
Not its business: kernels and entry (``codegen``), what a C compiler reads (``header``).

A handle is one block of memory: 64 bytes of fields, the tables of argument pointers and of dimensions, the kernels'
scratch, the arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.aot.cpu import cpu_text, needs_of, plain_attributes
from tilewright.aot.embed import WEIGHTS_SECTIONS
from tilewright.aot.empty import begins_with_one, is_empty, return_if_empty
from tilewright.aot.interface import ABI_VERSION, ALIGNMENT, DTYPES, HANDLE_BYTES, STATUS, Interface
from tilewright.aot.system import System
from tilewright.aot.weights_file import mapping_text
from tilewright.aot.writer import FunctionWriter
from tilewright.runtime.expressions import ParsedExpr, parse_rule
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.shapes import MAX_VALUE, ShapeBinder, compile_size, limits_of, spoken
from tilewright.runtime.values import dtype_of
from tilewright.target.target import Target

HUGE, MADV_HUGEPAGE = 2 << 20, 14
CAPACITY, WEIGHTS, OWNED, THREADS = 0, 8, 16, 24
"""Places of a handle's fields: bytes of its arena, address of the weights, what to free, threads."""

DECLARATIONS = """
declare i32 @tw_run(ptr, ptr, ptr, ptr, i32)
declare void @tw_plan(ptr, ptr)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare {i64, i1} @llvm.sadd.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.ssub.with.overflow.i64(i64, i64)
declare {i64, i1} @llvm.smul.with.overflow.i64(i64, i64)
"""
BEYOND = "a size that follows from these is negative or beyond {} bits"


def glue_text(of: Interface, system: System, target: Target | None, weights: str = "") -> str:
    """The whole module; ``weights`` are embedded ones as an LLVM constant, where the format has no rule to embed.

    Without a ``target`` the code around it is for any CPU, and none is asked what it has.
    """
    return _Glue(of, system, target, weights).text()


class _Glue:
    def __init__(self, of: Interface, system: System, target: Target | None, weights: str) -> None:
        self.of, self.system, self.target, self.weights_text = of, system, target, weights
        self.plain = plain_attributes(target) if target else ""
        self.manifest: Manifest = of.manifest
        self.binder = ShapeBinder(self.manifest.inputs, self.manifest.symbols, self.manifest.constraints)
        self.data: list[str] = []
        self.strings: dict[str, str] = {}

    def text(self) -> str:
        functions = [
            self.check(), self.table(), self.sizes(), self.bind(), self.workspace(), self.shape("input"),
            self.shape("output"), self.create(), self.run(), self.result_shape(), self.destroy(),
            *self.initial_state(), *self.files(),
        ]  # fmt: skip
        functions += [self.status_text(), self.info()]  # last: they know every text
        heap = [f"declare ptr @malloc({self.system.size_type})", "declare void @free(ptr)"]
        return "\n".join(
            [
                DECLARATIONS,
                *heap[: 2 * self.system.has_heap],
                *["declare i32 @madvise(ptr, i64, i32)"][: self.asks_for_huge_pages],
                self.weights(),
                *self.data,
                *functions,
                cpu_text(self.target, self.of.name) if self.target else "",
            ]
        )

    # --- pieces

    def function(self, name: str, parameters: str, result: str = "i32") -> FunctionWriter:
        return FunctionWriter(f"define {result} @{self.of.name}_{name}({parameters}) nounwind {self.plain}".rstrip())

    def need_cpu(self, w: FunctionWriter) -> None:
        """Return a status where the CPU lacks what the code needs."""
        if self.target and needs_of(self.target):
            text = f"the code is for {self.machine(self.target)} and needs instructions that this CPU lacks"
            wrong = w.let(f"xor i1 {w.let(f'call i1 @{self.of.name}_cpu_is_fit()')}, true")
            w.return_if(wrong, self.of.status("TW_ERROR_CPU", text))

    def machine(self, target: Target) -> str:
        """The target's name; of this computer's, which has none, LLVM's name of its CPU, or what that CPU has."""
        if not target.is_native:
            return target.name
        spec = self.manifest.target
        which = f" with {', '.join(spec.features)}" if spec.cpu.startswith("generic") and spec.features else ""
        return f"{spec.cpu}{which}"

    @property
    def most_bytes(self) -> int:
        """The bytes that the largest object of this machine may have."""
        return (1 << (8 * self.system.pointer_bytes - 1)) - 1

    def need_within(self, w: FunctionWriter, also: Sequence[str] = ()) -> None:
        """Return a status where a size computed so far left 64 bits, or one of ``also`` holds."""
        for beyond in (w.take_beyond(), *also):
            if beyond:
                text = BEYOND.format(8 * self.system.pointer_bytes)
                w.return_if(beyond, self.of.status("TW_ERROR_SHAPE", text))

    def symbols(self, w: FunctionWriter, dims: str = "%dims") -> dict[str, str]:
        """The registers of the symbols that the caller gave."""
        return {s.name: w.load(dims, 8 * k) for k, s in enumerate(self.manifest.symbols)}

    def need(self, w: FunctionWriter, pointer: str, what: str) -> None:
        """Return a status where a pointer is null."""
        w.return_if(w.let(f"icmp eq ptr {pointer}, null"), self.of.status("TW_ERROR_NULL", f"{what} is NULL"))

    def need_dims(self, w: FunctionWriter) -> None:
        """Check the caller's ``%dims``, wherever a model has symbols."""
        if self.manifest.symbols:
            self.need(w, "%dims", "dims")
            status = w.let(f"call i32 @{self.of.name}_check(ptr %dims)")
            w.return_if(w.let(f"icmp ne i32 {status}, 0"), status)

    def string(self, text: str) -> str:
        """The address of a text as C has them."""
        if text not in self.strings:
            data = text.encode("utf-8", "replace") + b"\0"
            name = self.strings[text] = f"@{self.of.name}_s{len(self.strings)}"
            shown = "".join(f"\\{b:02X}" for b in data)
            self.data.append(f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{shown}"')
        return self.strings[text]

    def array(self, type_: str, values: Sequence[object]) -> str:
        """The address of a constant array; null where it is empty."""
        if not values:
            return "null"
        name = f"@{self.of.name}_a{len(self.data)}"
        items = ", ".join(f"{type_} {v}" for v in values)
        self.data.append(f"{name} = private constant [{len(values)} x {type_}] [{items}]")
        return name

    # --- shapes

    def check(self) -> str:
        """``NAME_check(dims)``: ranges and rules of the symbols. Internal."""
        w = FunctionWriter(f"define internal i32 @{self.of.name}_check(ptr %dims) nounwind {self.plain}".rstrip())
        values = self.symbols(w)
        least = {s.name: str(s.lo) for s in self.manifest.symbols}
        if empty := is_empty(w, self.manifest, values):
            begin, from_one = w.let(f"select i1 {empty}, i64 0, i64 1"), begins_with_one(self.manifest)
            least |= {name: begin for name in least if name in from_one}
        rules = [parse_rule(c.rule) for c in self.manifest.constraints]
        for s in self.manifest.symbols:
            text = f"{s.name}: the model is compiled for {limits_of(s, rules)}"
            status = self.of.status("TW_ERROR_SHAPE", text)
            w.return_if(w.let(f"icmp slt i64 {values[s.name]}, {least[s.name]}"), status)
            if isinstance(s.hi, int) and s.hi < MAX_VALUE:
                w.return_if(w.let(f"icmp sgt i64 {values[s.name]}, {s.hi}"), status)
        for c, rule in zip(self.manifest.constraints, rules, strict=True):
            reason = f" ({c.reason})" if c.reason else ""
            status = self.of.status("TW_ERROR_SHAPE", f"{spoken(rule)}{reason}")
            w.take_by_zero()
            is_broken = w.let(f"xor i1 {w.rule(rule, values)}, true")
            if by_zero := w.take_by_zero():
                is_broken = w.let(f"or i1 {is_broken}, {by_zero}")
            self.need_within(w)
            w.return_if(is_broken, status)
        w.emit("ret i32 0")
        return w.text()

    def table(self) -> str:
        """``NAME_table(dims, table)``: what ``tw_plan`` and ``tw_run`` find in the table of dimensions. Internal."""
        w = FunctionWriter(f"define internal i32 @{self.of.name}_table(ptr %dims, ptr %table) nounwind")
        values = self.symbols(w)
        slots = [values[s.name] for s in self.manifest.symbols]
        slots += ["0" if s.hi is None else w.size(compile_size(s.hi), values) for s in self.manifest.computed]
        slots += ["0"] * (self.manifest.n_dims - len(slots))
        for k, value in enumerate(slots):
            w.store(value, "%table", 8 * k)
        self.need_within(w)
        w.emit("ret i32 0")
        return w.text()

    def sizes(self) -> str:
        """``NAME_sizes(dims, sizes)``: what ``tw_plan`` writes for checked dimensions, checked itself. Internal.

        The arena and every tensor must fit into this machine's addresses: a number of bytes that wrapped around would
        look like a small one.
        """
        w = FunctionWriter(f"define internal i32 @{self.of.name}_sizes(ptr %dims, ptr %sizes) nounwind")
        table = w.room(f"[{max(self.manifest.n_dims, 1)} x i64]")
        status = w.let(f"call i32 @{self.of.name}_table(ptr %dims, ptr {table})")
        w.return_if(w.let(f"icmp ne i32 {status}, 0"), status)
        return_if_empty(w, self.manifest, self.symbols(w), "%sizes")
        w.emit(f"call void @tw_plan(ptr {table}, ptr %sizes)")
        if self.manifest.symbols:
            least = arena = w.load("%sizes")
            for k in range(1, self.n_sizes):
                least = w.let(f"call i64 @llvm.smin.i64(i64 {least}, i64 {w.load('%sizes', 8 * k)})")
            is_more = w.let(f"icmp sgt i64 {arena}, {self.most_bytes - self.of.arena_at}")
            self.need_within(w, [w.let(f"icmp slt i64 {least}, 0"), is_more])
            self.need_addresses(w)
        w.emit("ret i32 0")
        return w.text()

    def need_addresses(self, w: FunctionWriter) -> None:
        """Return a status where an input's or an output's bytes are more than addresses reach."""
        values, most = self.symbols(w), "0"
        for spec, shape in zip(
            (*self.manifest.inputs, *self.manifest.outputs), self.tensor_sizes(w, values, "%sizes"), strict=True
        ):
            if all(isinstance(d, int) for d in spec.shape):
                continue
            n_bytes = str(dtype_of(spec.dtype).itemsize)
            for size in shape:
                n_bytes = w.watched("mul", n_bytes, size)
            most = w.let(f"call i64 @llvm.smax.i64(i64 {most}, i64 {n_bytes})")
        self.need_within(w, [w.let(f"icmp sgt i64 {most}, {self.most_bytes}")])

    @property
    def n_sizes(self) -> int:
        """How many numbers ``tw_plan`` writes."""
        return 1 + sum(o.n_planned for o in self.manifest.outputs)

    def tensor_sizes(self, w: FunctionWriter, values: Mapping[str, str], sizes: str) -> list[list[str]]:
        """Each input's and each output's sizes, those of outputs as ``tw_plan`` wrote them."""
        found = [[w.size(compile_size(d), values) for d in i.shape] for i in self.manifest.inputs]
        at = 1
        for o in self.manifest.outputs:
            found.append([w.load(sizes, 8 * (at + d)) for d in range(len(o.shape))])
            at += o.n_planned
        return found

    def planned(self, w: FunctionWriter) -> str:
        """The table that ``tw_plan`` writes for the caller's dimensions, checked."""
        self.need_cpu(w)
        self.need_dims(w)
        sizes = w.room(f"[{self.n_sizes} x i64]")
        status = w.let(f"call i32 @{self.of.name}_sizes(ptr %dims, ptr {sizes})")
        w.return_if(w.let(f"icmp ne i32 {status}, 0"), status)
        return sizes

    def bind(self) -> str:
        """``NAME_bind(shapes, dims)``: the symbols' values from the inputs' shapes."""
        w = self.function("bind", "ptr %shapes, ptr %dims")
        if any(i.shape for i in self.manifest.inputs):
            self.need(w, "%shapes", "shapes")
        given: dict[tuple[int, int], str] = {}
        for i, spec in enumerate(self.manifest.inputs):
            if spec.shape:
                shape = w.entry("%shapes", i)
                self.need(w, shape, f"the shape of input {spec.name!r}")
                given |= {(i, d): w.load(shape, 8 * d) for d in range(len(spec.shape))}
        values: dict[str, str] = {}
        # one dimension tells each symbol; every other one is compared with what follows from the symbols
        for symbol, expr, input_, dim in self.binder.sources():
            values[symbol] = self.solved(w, symbol, expr, given[input_, dim], values, self.where(input_, dim))
        for (i, d), size in given.items():
            wanted = compile_size(self.manifest.inputs[i].shape[d])
            if isinstance(wanted, ParsedExpr) and wanted.text.strip() in values and values[wanted.text.strip()] == size:
                continue  # where the symbol was read
            text = f"{self.where(i, d)}: the model is compiled for {self.manifest.inputs[i].shape[d]}"
            wrong = w.let(f"icmp ne i64 {size}, {w.size(wanted, values)}")
            self.need_within(w)  # before the comparison, as a size that wrapped around may be equal
            w.return_if(wrong, self.of.status("TW_ERROR_SHAPE", text))
        if self.manifest.symbols:
            self.need(w, "%dims", "dims")
        for k, s in enumerate(self.manifest.symbols):
            w.store(values[s.name], "%dims", 8 * k)
        w.emit(f"ret i32 {w.let(f'call i32 @{self.of.name}_check(ptr %dims)')}")
        return w.text()

    def where(self, i: int, d: int) -> str:
        return f"input {self.manifest.inputs[i].name!r}, dimension {d}"

    def solved(
        self, w: FunctionWriter, symbol: str, expr: ParsedExpr, given: str, known: Mapping[str, str], where: str
    ) -> str:
        """The symbol for which ``a * symbol + b`` is the given size; returns a status where there is none."""
        if expr.text.strip() == symbol:
            return given
        offset = w.size(expr, {**known, symbol: "0"})
        slope = w.watched("sub", w.size(expr, {**known, symbol: "1"}), offset)
        distance = w.watched("sub", given, offset)
        self.need_within(w, [w.let(f"icmp slt i64 {given}, 0")])
        status = self.of.status("TW_ERROR_SHAPE", f"{where}: no {symbol} makes {expr.text} equal to that")
        w.return_if(w.let(f"icmp eq i64 {slope}, 0"), status)
        value, rest = w.floored(distance, slope)
        w.return_if(w.let(f"icmp ne i64 {rest}, 0"), status)
        return value

    def workspace(self) -> str:
        """``NAME_workspace(dims, bytes)``: what ``NAME_create`` needs for calls with these dimensions."""
        w = self.function("workspace", "ptr %dims, ptr %bytes")
        self.need(w, "%bytes", "bytes")
        sizes = self.planned(w)
        w.store(w.let(f"add i64 {w.load(sizes)}, {self.of.arena_at}"), "%bytes")
        w.emit("ret i32 0")
        return w.text()

    def shape(self, kind: str) -> str:
        """``NAME_input_shape(dims, index, shape)`` and the outputs', an upper bound where the data decide."""
        w = self.function(f"{kind}_shape", "ptr %dims, i32 %index, ptr %shape")
        specs = self.manifest.inputs if kind == "input" else self.manifest.outputs
        if kind == "input":
            self.need_dims(w)
            values = self.symbols(w)
            sizes = [[w.size(compile_size(d), values) for d in spec.shape] for spec in specs]
        else:
            table = self.planned(w)
            sizes, at = [], 1
            for spec in specs:
                sizes.append([w.load(table, 8 * (at + d)) for d in range(len(spec.shape))])
                at += spec.n_planned
        self.choose(w, specs, sizes, kind)
        return w.text()

    def choose(self, w: FunctionWriter, specs: Sequence[TensorSpec], sizes: Sequence[Sequence[str]], kind: str) -> None:
        """Write the sizes of tensor ``%index`` to ``%shape`` and return."""
        cases = [w.label("case") for _ in specs]
        none = w.label("none")
        listed = " ".join(f"i32 {k}, label %{case}" for k, case in enumerate(cases))
        w.emit(f"switch i32 %index, label %{none} [ {listed} ]")
        for case, spec, shape in zip(cases, specs, sizes, strict=True):
            w.start(case)
            if spec.shape:
                self.need(w, "%shape", "shape")
            for d, size in enumerate(shape):
                w.store(size, "%shape", 8 * d)
            w.emit("ret i32 0")
        w.start(none)
        w.emit(f"ret i32 {self.of.status('TW_ERROR_INDEX', f'the model has {len(specs)} {kind}s')}")

    def result_shape(self) -> str:
        """``NAME_result_shape(handle, index, shape)``: an output's shape as the latest call left it."""
        w = self.function("result_shape", "ptr %handle, i32 %index, ptr %shape")
        self.need(w, "%handle", "the handle")
        names = (*self.manifest.symbols, *self.manifest.computed)
        values = {s.name: w.load("%handle", self.of.dims_at + 8 * k) for k, s in enumerate(names)}
        sizes = [[w.size(compile_size(d), values) for d in o.shape] for o in self.manifest.outputs]
        self.choose(w, self.manifest.outputs, sizes, "output")
        return w.text()

    # --- a handle's life

    def create(self) -> str:
        """``NAME_create(handle, memory, bytes, weights, threads)``."""
        w = self.function("create", "ptr %handle, ptr %memory, i64 %bytes, ptr %weights, i32 %threads")
        self.need(w, "%handle", "handle")
        w.store("null", "%handle", 0, "ptr")  # who ignores the status meets NULL, not an older handle
        self.need_cpu(w)
        few = self.of.status("TW_ERROR_MEMORY", f"a handle takes {self.of.arena_at} bytes and the arena")
        w.return_if(w.let(f"icmp slt i64 %bytes, {self.of.arena_at}"), few)
        if self.system.pointer_bytes < 8:  # sizes have 64 bits in the C interface, on every machine
            many = self.of.status("TW_ERROR_MEMORY", "so many bytes are beyond this machine's addresses")
            w.return_if(w.let(f"icmp sgt i64 %bytes, {self.most_bytes}"), many)
        weights = self.chosen_weights(w)
        self.aligned(w, weights, "weights")
        self.aligned(w, "%memory", "memory")
        block, owned = self.memory(w)  # behind the last check: a return after it would lose the memory
        w.store(w.let(f"sub i64 %bytes, {self.of.arena_at}"), block, CAPACITY)
        w.store(weights, block, WEIGHTS, "ptr")
        w.store(owned, block, OWNED, "ptr")
        default = w.let("icmp slt i32 %threads, 1")  # 0 and below: as many as the export allows
        most = self.of.max_threads
        above = w.let(f"icmp sgt i32 %threads, {most}")
        w.store(
            w.let(f"select i1 {w.let(f'or i1 {default}, {above}')}, i32 {most}, i32 %threads"), block, THREADS, "i32"
        )
        for k in range(self.manifest.n_dims):  # before the first call a result's sizes are zero
            w.store("0", block, self.of.dims_at + 8 * k)
        w.store(block, "%handle", 0, "ptr")
        w.emit("ret i32 0")
        return w.text()

    def chosen_weights(self, w: FunctionWriter) -> str:
        if self.of.embedded or not self.of.weights_bytes:
            own = f"@{self.of.name}_weights_data" if self.of.weights_bytes else "null"
            return w.let(f"select i1 {w.let('icmp eq ptr %weights, null')}, ptr {own}, ptr %weights")
        text = f"pass the data of the weights file ({self.of.name}_map_weights)"
        w.return_if(w.let("icmp eq ptr %weights, null"), self.of.status("TW_ERROR_WEIGHTS", text))
        return "%weights"

    def aligned(self, w: FunctionWriter, pointer: str, what: str) -> None:
        low = w.let(f"and i64 {w.let(f'ptrtoint ptr {pointer} to i64')}, {ALIGNMENT - 1}")
        status = self.of.status("TW_ERROR_ALIGNMENT", f"{what} must start on a multiple of {ALIGNMENT} bytes")
        w.return_if(w.let(f"icmp ne i64 {low}, 0"), status)

    def memory(self, w: FunctionWriter) -> tuple[str, str]:
        """The handle's block, and what to free at its end."""
        is_ours = w.let("icmp eq ptr %memory, null")
        if not self.system.has_heap:
            w.return_if(is_ours, self.of.status("TW_ERROR_NULL", "memory is NULL, and this system has no heap"))
            return "%memory", "null"
        block, owned = w.room("ptr"), w.room("ptr")
        w.store("%memory", block, 0, "ptr")
        w.store("null", owned, 0, "ptr")
        ask, have = w.label("ask"), w.label("have")
        w.emit(f"br i1 {is_ours}, label %{ask}, label %{have}")
        w.start(ask)
        room, alignment = "%bytes", str(ALIGNMENT)
        if self.asks_for_huge_pages:
            is_large = w.let(f"icmp sge i64 %bytes, {2 * HUGE}")
            huge = w.let(f"and i64 {w.let(f'add i64 %bytes, {HUGE // 2}')}, {-HUGE}")
            most = w.let(f"call i64 @llvm.smax.i64(i64 %bytes, i64 {huge})")
            room = w.let(f"select i1 {is_large}, i64 {most}, i64 %bytes")
            alignment = w.let(f"select i1 {is_large}, i64 {HUGE}, i64 {ALIGNMENT}")
        wanted = w.let(f"add i64 {room}, {alignment}")  # malloc aligns to 16 bytes at most: the start moves up
        if self.system.pointer_bytes == 4:  # `create` has refused what 32 bits do not hold
            wanted = w.let(f"trunc i64 {wanted} to i32")
        found = w.let(f"call ptr @malloc({self.system.size_type} {wanted})")
        w.return_if(w.let(f"icmp eq ptr {found}, null"), self.of.status("TW_ERROR_MEMORY", "malloc gave no memory"))
        below = w.let(f"sub i64 0, {w.let(f'ptrtoint ptr {found} to i64')}")
        start = w.at(found, w.let(f"and i64 {below}, {w.let(f'sub i64 {alignment}, 1')}"))
        w.store(start, block, 0, "ptr")
        w.store(found, owned, 0, "ptr")
        if self.asks_for_huge_pages:
            self.ask_for_huge_pages(w, start, is_large, huge)
        w.emit(f"br label %{have}")
        w.start(have)
        return w.load(block, 0, "ptr"), w.load(owned, 0, "ptr")

    @property
    def asks_for_huge_pages(self) -> bool:
        arena = self.of.arena_bytes
        return self.system.has_huge_pages and (not isinstance(arena, int) or arena >= 2 * HUGE)

    def ask_for_huge_pages(self, w: FunctionWriter, block: str, is_large: str, n_bytes: str) -> None:
        """A first call touches the whole arena: a fault for every page of 4 KiB is a fifth of a small net's start.

        What is left behind the last huge page becomes one too where it is half of one at least.
        """
        ask, done = w.label("ask"), w.label("done")
        w.emit(f"br i1 {is_large}, label %{ask}, label %{done}")
        w.start(ask)
        w.let(f"call i32 @madvise(ptr {block}, i64 {n_bytes}, i32 {MADV_HUGEPAGE})")  # only advice
        w.emit(f"br label %{done}")
        w.start(done)

    def run(self) -> str:
        """``NAME_run(handle, dims, inputs, outputs)``."""
        w = self.function("run", "ptr %handle, ptr %dims, ptr %inputs, ptr %outputs")
        self.need(w, "%handle", "the handle")
        sizes = self.planned(w)
        text = f"the handle's memory is too small for this call: {self.of.name}_workspace says how much it takes"
        few = self.of.status("TW_ERROR_MEMORY", text)
        # the handle may have been made for smaller inputs
        w.return_if(w.let(f"icmp sgt i64 {w.load(sizes)}, {w.load('%handle', CAPACITY)}"), few)
        values = self.symbols(w)
        shapes = self.tensor_sizes(w, values, sizes)
        args = w.at("%handle", HANDLE_BYTES)
        tables = [("%inputs", "input", self.manifest.inputs), ("%outputs", "output", self.manifest.outputs)]
        k = 0
        for table, kind, specs in tables:
            if specs:
                self.need(w, table, f"{kind}s")
            for n, spec in enumerate(specs):
                pointer = w.entry(table, n)
                self.need_data(w, pointer, shapes[k], f"{kind} {spec.name!r}")
                w.emit(f"store ptr {pointer}, ptr {w.let(f'getelementptr ptr, ptr {args}, i64 {k}')}")
                k += 1
        dims = w.at("%handle", self.of.dims_at)
        w.let(f"call i32 @{self.of.name}_table(ptr %dims, ptr {dims})")  # checked above
        return_if_empty(w, self.manifest, values)
        weights, threads = w.load("%handle", WEIGHTS, "ptr"), w.load("%handle", THREADS, "i32")
        memory = w.at("%handle", self.of.scratch_at)
        call = f"call i32 @tw_run(ptr {args}, ptr {dims}, ptr {weights}, ptr {memory}, i32 {threads})"
        code = w.let(call)
        for number, text in enumerate(self.manifest.failures):
            if number:  # the first stands for success
                place = f" at {self.manifest.locations[number]}" if self.manifest.locations else ""
                w.return_if(w.let(f"icmp eq i32 {code}, {number}"), self.of.status("TW_ERROR_RUN", text + place))
        failed = w.let(f"icmp ne i32 {code}, 0")
        other = self.of.status("TW_ERROR_RUN")  # for a code without a text
        w.emit(f"ret i32 {w.let(f'select i1 {failed}, i32 {other}, i32 0')}")
        return w.text()

    def need_data(self, w: FunctionWriter, pointer: str, shape: Sequence[str], what: str) -> None:
        """A pointer may be null only where a tensor is empty."""
        is_null = w.let(f"icmp eq ptr {pointer}, null")
        has_data = w.let(f"icmp ne i64 {w.product(shape)}, 0")
        wrong = w.let(f"and i1 {is_null}, {has_data}")
        w.return_if(wrong, self.of.status("TW_ERROR_NULL", f"{what} is NULL"))

    def destroy(self) -> str:
        """``NAME_destroy(handle)``: free what create allocated; NULL is nothing to do."""
        w = self.function("destroy", "ptr %handle", "void")
        if self.system.has_heap:
            free, done = w.label("free"), w.label("done")
            w.emit(f"br i1 {w.let('icmp eq ptr %handle, null')}, label %{done}, label %{free}")
            w.start(free)
            w.emit(f"call void @free(ptr {w.load('%handle', OWNED, 'ptr')})")
            w.emit(f"br label %{done}")
            w.start(done)
        w.emit("ret void")
        return w.text()

    def initial_state(self) -> list[str]:
        """``NAME_initial_state(handle, index)``, where the model keeps a state: its first value, in the weights."""
        if not self.of.state:
            return []
        w = self.function("initial_state", "ptr %handle, i32 %index", "ptr")
        none, have = w.label("none"), w.label("have")
        is_within = w.let(f"icmp ult i32 %index, {len(self.of.state)}")
        is_there = w.let(f"and i1 {is_within}, {w.let('icmp ne ptr %handle, null')}")
        w.emit(f"br i1 {is_there}, label %{have}, label %{none}")
        w.start(none)
        w.emit("ret ptr null")
        w.start(have)
        places = self.array("i64", [offset for _, _, offset in self.of.state])
        place = w.let(f"load i64, ptr {w.let(f'getelementptr i64, ptr {places}, i32 %index')}")
        w.emit(f"ret ptr {w.at(w.load('%handle', WEIGHTS, 'ptr'), place)}")
        return [w.text()]

    # --- constant data

    def weights(self) -> str:
        """The place of embedded weights, which ``embed`` fills; so it begins a section of its own."""
        if not (self.of.embedded and self.of.weights_bytes):
            return ""
        section = WEIGHTS_SECTIONS[self.system.object_format]
        data = self.weights_text or f"[{ALIGNMENT} x i8] zeroinitializer"
        return f'@{self.of.name}_weights_data = internal constant {data}, section "{section}", align {ALIGNMENT}'

    def files(self) -> list[str]:
        """``NAME_map_weights`` and ``NAME_unmap_weights``, where weights are a file and there are files."""
        if self.of.embedded or not self.of.weights_bytes or not self.system.files:
            return []
        return [mapping_text(self.of, self.system, self.plain)]

    def status_text(self) -> str:
        """``NAME_status_text(status)``: never NULL."""
        w = self.function("status_text", "i32 %status", "ptr")
        kinds = [self.string(text) for _, text in STATUS.values()]
        details = [self.string(text) for _, text in self.of.rules]
        kinds_at, details_at = self.array("ptr", kinds), self.array("ptr", details)
        unknown = self.string("unknown status")
        kind, detail = w.let("and i32 %status, 255"), w.let("lshr i32 %status, 8")
        is_known = w.let(f"icmp ult i32 {kind}, {len(kinds)}")
        safe = w.let(f"select i1 {is_known}, i32 {kind}, i32 0")
        general = w.let(f"load ptr, ptr {w.let(f'getelementptr ptr, ptr {kinds_at}, i32 {safe}')}")
        text = w.let(f"select i1 {is_known}, ptr {general}, ptr {unknown}")
        if details:
            index = w.let(f"sub i32 {detail}, 1")
            has_detail = w.let(f"icmp ult i32 {index}, {len(details)}")
            safe = w.let(f"select i1 {has_detail}, i32 {index}, i32 0")
            special = w.let(f"load ptr, ptr {w.let(f'getelementptr ptr, ptr {details_at}, i32 {safe}')}")
            text = w.let(f"select i1 {has_detail}, ptr {special}, ptr {text}")
        w.emit(f"ret ptr {text}")
        return w.text()

    def info(self) -> str:
        """``NAME_info()``: the address of the model's ``tw_model_info``."""
        of, m = self.of, self.manifest
        tensors = [self.array("%tensor_info", [self.tensor_info(t) for t in ts]) for ts in (m.inputs, m.outputs)]
        symbols = [
            f"{{ ptr {self.string(s.name)}, i64 {s.lo}, i64 {s.hi if isinstance(s.hi, int) else MAX_VALUE} }}"
            for s in m.symbols
        ]
        state = self.array("%state_info", [f"{{ i32 {i}, i32 {o} }}" for i, o, _ in of.state])
        end = 6 * 4 + 8 * self.system.pointer_bytes + 2 * 8 + self.system.pointer_bytes + 4
        struct_bytes = -(-end // 8) * 8
        numbers = [ABI_VERSION, struct_bytes, len(m.inputs), len(m.outputs), len(m.symbols), of.max_threads]
        texts = [of.name, m.tilewright_version, m.target.triple, m.target.cpu, of.fingerprint]
        pointers = [*map(self.string, texts), *tensors, self.array("%symbol_info", symbols)]
        values = [f"i32 {n}" for n in numbers] + [f"ptr {p}" for p in pointers]
        values += [f"i64 {ALIGNMENT}", f"i64 {of.weights_bytes}", f"ptr {state}", f"i32 {len(of.state)}"]
        head = "%tensor_info = type { ptr, i32, i32, ptr, ptr }\n%symbol_info = type { ptr, i64, i64 }\n"
        head += "%state_info = type { i32, i32 }\n"
        head += f"%model_info = type {{ {', '.join(v.split()[0] for v in values)} }}\n"
        self.data.insert(0, head)
        self.data.append(f"@{of.name}_facts = private constant %model_info {{ {', '.join(values)} }}")
        w = self.function("info", "", "ptr")
        w.emit(f"ret ptr @{of.name}_facts")
        return w.text()

    def tensor_info(self, spec: TensorSpec) -> str:
        sizes = [d if isinstance(d, int) else -1 for d in spec.shape]
        shape, dims = self.array("i64", sizes), self.array("ptr", [self.string(str(d)) for d in spec.shape])
        head = f"ptr {self.string(spec.name)}, i32 {DTYPES[spec.dtype]}, i32 {len(sizes)}"
        return f"{{ {head}, ptr {shape}, ptr {dims} }}"
