"""A grid's function: what a thread of a GPU adds to ``codegen.llvm.function``.

In: a flat grid's statements. Out: a kernel entry in LLVM text, and the shared memory that its block has.
Not its business: what all processors do alike (``codegen.llvm``), launching.

Pointers are generic in the text; LLVM finds out which lead to global, shared or a thread's own memory and selects the
instructions for it. A parameter that the grid only reads is ``readonly noalias``, so that its loads go through the
read-only cache (``ld.global.nc``). One that it writes is not ``noalias``: what another thread of the block has
written before a barrier must be read anew behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import copysign
from typing import ClassVar

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.addresses import Mention
from tilewright.codegen.llvm.function import KernelFunction, KernelModule
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.registers import Key, Slot
from tilewright.codegen.llvm.types import MEMORY_TYPE
from tilewright.codegen.llvm.values import Memo
from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx import fragments, runs
from tilewright.codegen.ptx.arith import FUNCTIONS, PtxArith
from tilewright.codegen.ptx.dialect import NVIDIA, Dialect
from tilewright.codegen.ptx.fragments import PAIR, PAIRED
from tilewright.codegen.ptx.instructions import ThreadInstructions
from tilewright.codegen.ptx.launch import block_indices, block_of, grid_of, thread_index
from tilewright.codegen.ptx.loops import PtxLoops
from tilewright.codegen.ptx.memory import BUFFER_ALIGNMENT, PtxAddresses, PtxMemory
from tilewright.codegen.ptx.warpgroups import Products
from tilewright.core.compute import Buffer, Const, IndexLike, Load, Select, Value
from tilewright.core.expr import Dim, Sym
from tilewright.core.types import DType, i32
from tilewright.target.matrices import PERIOD_BYTES, SUMS, Fragment
from tilewright.tile.grid import Grid, rows_of_warps, warp_nests
from tilewright.tile.ir import Barrier, Commit, For, If, Kind, Prefetch, Space, Stmt, Store, walk, written
from tilewright.tile.rewrite import Body
from tilewright.tile.swizzle import in_panels

SHARED_ALIGNMENT = 128
"""What bulk copies and matrix units ask of the shared memory that they read, and more than anyone else does."""
COMMIT = "call void @llvm.nvvm.cp.async.commit.group()"
WAIT = "call void @llvm.nvvm.cp.async.wait.group(i32 {})"
_SHARED = "addrspacecast (ptr addrspace(3) @{} to ptr)"


@dataclass
class PtxModule(KernelModule):
    """What the grids of one kernel share: tables, and zeros to read where nothing may be read."""

    target: ThreadInstructions
    dialect: Dialect = NVIDIA
    functions_of_target: ClassVar[frozenset[str]] = FUNCTIONS

    @property
    def constant_space(self) -> str:
        """Where the maker's GPUs have constants."""
        space = self.dialect.constant_space
        return f"addrspace({space}) " if space is not None else ""


@dataclass
class SharedMemory:
    """The shared buffers of one grid, one behind the other in one array, which its functions know by ``name``."""

    name: str
    n_bytes: int = 0
    alignment: int = SHARED_ALIGNMENT
    offsets: dict[int, int] = field(default_factory=dict)

    def place(self, buffer: Buffer, n_elements: int, alignment: int) -> int:
        """Bytes from the array's start, a multiple of ``alignment``, as the start is then."""
        at = self.offsets[id(buffer)] = -(-self.n_bytes // alignment) * alignment
        self.n_bytes = at + n_elements * buffer.dtype.n_bytes
        self.alignment = max(self.alignment, alignment)
        return at


class PtxFunction(KernelFunction):
    """Emits what one thread of a grid does."""

    module: PtxModule
    arith: PtxArith
    addresses: PtxAddresses
    memory: PtxMemory

    def __init__(self, module: PtxModule, grid: Grid, entry: str) -> None:
        super().__init__(module)
        self.grid = grid
        self.entry = entry
        self.shared = SharedMemory(f"{entry}_shared")
        self.indices: dict[Sym, Val] = {}
        self.has_warps = any(isinstance(s, For) and s.loop.kind is Kind.WARP for s in walk(grid.body))
        self.of_rows = self._in_registers(rows_of_warps(grid.body, module.kernel.lanes))
        """The register buffers that have an element for each row of a warp's sums."""
        self.addresses.swizzled = frozenset(p.buffer for p in module.kernel.places if p.swizzled)
        self.unit = next((x.sums for x in module.target.gpu.shapes), SUMS)
        """How lanes have the sums of an instruction of a warp."""
        self.layouts: dict[Buffer, Fragment] = {}
        """How the elements of each fragment lie in the lanes, by the nest of most columns."""
        self.fragments = self._find_fragments()
        self.in_lanes = self.fragments | self.of_rows
        self.products = Products(self)
        self.element: int | None = None
        """Which of a lane's elements of a fragment the present statements are about."""
        self.lane_syms: tuple[Sym, ...] = ()
        """The variables that say where it is, of a row, or of a row and a column, which runs to ``lane_columns``."""
        self.lane_columns = self.unit.columns
        self.runs: dict[tuple[int, int], Val] = {}
        """Runs of sums that the lane has in the present statements, by the fragments that they are of."""
        self.rewritten: list[Body] = []
        """Statements in place of others, kept as long as their identities mean something."""
        self.operands: dict[tuple[object, ...], list[Val]] = {}
        """Fragments that are in registers, by where in shared memory they lie; none is kept across a write."""

    def new_addresses(self) -> PtxAddresses:
        """Addresses with those of swizzled memory."""
        return PtxAddresses(self.arith, self.space, self.base)

    def offset_of(self, buffer: Buffer, index: tuple[IndexLike, ...]) -> Dim:
        """Of swizzled memory the place in its panels."""
        if buffer not in self.addresses.swizzled:
            return super().offset_of(buffer, index)
        found = in_panels(buffer, index)
        if found is None:
            raise CodegenError(f"{buffer.name}: swizzled memory is indexed by data")
        return found

    def new_arith(self) -> PtxArith:
        """Operations with the GPU's instructions."""
        return PtxArith(self.writer, self.module.target, self.module.dialect)

    def new_loops(self) -> PtxLoops:
        """Loops with blocks and threads."""
        return PtxLoops(self)

    def new_memory(self) -> PtxMemory:
        """Accesses as wide as they are aligned."""
        return PtxMemory(self.arith, self.addresses, self.module.zeros)

    def allocate(self, buffer: Buffer, name: str, n_elements: int) -> None:
        """Shared memory is a part of the block's array; anything else is the thread's own memory."""
        if self.analysis.places[id(buffer)].space is not Space.SHARED:
            self._allocate_own(buffer, name, n_elements)
            return
        alignment = PERIOD_BYTES if buffer in self.addresses.swizzled else SHARED_ALIGNMENT
        offset = self.shared.place(buffer, n_elements, alignment)
        base = _SHARED.format(self.shared.name)
        self.writer.entry.append(f"  {name} = getelementptr i8, ptr {base}, i64 {offset}")

    def _allocate_own(self, buffer: Buffer, name: str, n_elements: int) -> None:
        """The thread's own memory, by a generic pointer."""
        space = self.module.dialect.stack_space
        if space is None:
            super().allocate(buffer, name, n_elements)
            return
        element = MEMORY_TYPE[buffer.dtype]
        self.writer.entry += [
            f"  {name}.own = alloca [{n_elements} x {element}], align 64, addrspace({space})",
            f"  {name} = addrspacecast ptr addrspace({space}) {name}.own to ptr",
        ]

    def use(self, value: Val, dtype: DType) -> None:
        """Nothing: ptxas orders instructions anew whatever LLVM's order is."""

    def statement(self, s: Stmt, ctx: Lanes) -> None:
        """Emit one statement; a prefetch is a hint, and a warp has others to run while it waits."""
        match s:
            case Store() if self.analysis.places[id(s.buffer)].ahead and self._copies_ahead(s, ctx):
                self.operands.clear()
            case Commit():
                if self.module.target.gpu.has_async_copies:
                    self.writer.emit(COMMIT)
            case For() | If():
                self.products.begin(s)
                super().statement(s, ctx)
                self.products.end(s)
            case Barrier():
                if s.pending is not None and self.module.target.gpu.has_async_copies:
                    self.writer.emit(WAIT.format(s.pending))
                self.products.meet(running=s.running)
                self.writer.emit(self.module.dialect.barrier)
                self.memory.forget()
                self.operands.clear()
            case Prefetch():
                pass
            case _:
                super().statement(s, ctx)

    def _copies_ahead(self, s: Store, ctx: Lanes) -> bool:
        """Emit a store as an asynchronous copy; False where it is more than a copy, or one that no instruction makes.

        A copy that is there at once is right too.
        """
        if not self.module.target.gpu.has_async_copies:
            return False
        value, memo = s.value, Memo()
        inside = ctx
        if isinstance(value, Select):
            truth = self.values.truth(value.cond, ctx)
            if truth is None:
                cond = self.values.value(value.cond, ctx, memo)
                if cond.lanes or not _is_zero(value.b):
                    return False
                inside = self.values.guarded(ctx, cond)
            elif not truth:
                return False
            value = value.a
        if not isinstance(value, Load) or self.analysis.places[id(value.buffer)].space is not Space.GLOBAL:
            return False
        source = self._address(self.mention(value, value.buffer, value.index), inside, memo)
        target = self._address(self.mention(s, s.buffer, s.index), ctx, memo)
        return self.memory.copy_ahead(target, source, inside)

    def emit(self, body: For, written: set[Buffer]) -> str:
        """The whole function, ``body`` being the outermost block loop."""
        parameters = []
        for n, buffer in enumerate(self.module.kernel.params):
            self.bases[id(buffer)] = Val(f"%p{n}", 0, 0)
            said = "" if buffer in written else "noalias readonly "
            parameters.append(self._argument(f"%p{n}", f"{said}align {BUFFER_ALIGNMENT}"))
        for n, sym in enumerate(self.module.kernel.sizes):
            self.space.bind_run(sym, f"%n{n}", 0, (sym.lo, sym.hi))
            parameters.append(f"i64 %n{n}")
        self._find_indices()
        self.statement(body, Lanes())
        self.writer.emit("ret void")
        start = f'define {self.module.dialect.convention} void @"{self.entry}"'
        head = f"{start}({', '.join(parameters)}) nounwind {self.module.dialect.bounds(self.block, self.has_warps)} {{"
        return "\n".join([head, *self.writer.lines(), "}"])

    def _argument(self, name: str, said: str) -> str:
        """A parameter that is a buffer's address; ``name`` is a generic pointer in the function."""
        space = self.module.dialect.argument_space
        if space is None:
            return f"ptr {said} {name}"
        self.writer.entry.append(f"  {name} = addrspacecast ptr addrspace({space}) {name}.given to ptr")
        return f"ptr addrspace({space}) {said} {name}.given"

    def _find_indices(self) -> None:
        """Which block and thread this is, before anything else."""
        blocks, threads = self.grid.blocks, self.grid.threads
        shape = grid_of(blocks, self.module.target.gpu)
        extents = [self.space.value(loop.extent) for loop in blocks] if shape.is_flat else []
        for loop, value in zip(blocks, block_indices(self.writer, self.module.dialect, shape, extents), strict=True):
            self.indices[loop.sym] = value
        for axis, loop in enumerate(reversed(threads), start=int(self.has_warps)):
            self.indices[loop.sym] = thread_index(self.writer, self.module.dialect, axis)

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of a block along x, y and z."""
        return block_of(self.grid.threads, self.module.target.gpu, of_warps=self.has_warps)

    @property
    def lane(self) -> Val:
        """Which lane of its warp the thread is."""
        return thread_index(self.writer, self.module.dialect, 0)

    # --- fragments: buffers whose elements lie in the registers of a warp's lanes -----------------------------------

    def _find_fragments(self) -> set[Buffer]:
        """The register buffers that two or three warp loops write; they get registers whatever their indices say."""
        nests = [(loops, inside) for loops, inside in warp_nests(self.grid.body) if len(loops) > 1]
        gpu = self.module.target.gpu
        if (nests and not gpu.shapes) or (self.of_rows and not gpu.has_mma):
            raise CodegenError(f"{self.entry}: {gpu.name} has no matrix instructions of these")
        for loops, inside in nests:
            layout = fragments.layout_of(self.unit, [x.extent for x in loops])
            made = self._in_registers({b for x in walk(inside) for b in written(x)}) - self.of_rows
            for b in sorted(made, key=lambda b: b.name):
                if layout is None:
                    extents = " by ".join(str(x.extent) for x in loops)
                    raise CodegenError(f"{b.name}: no matrix instruction has warp loops of {extents} iterations")
                self.layouts[b] = max(self.layouts.get(b, layout), layout, key=lambda x: x.columns)
        found = set(self.layouts)
        for b in sorted(found | self.of_rows, key=lambda b: b.name):
            self.registers.groups[id(b)] = 0
            # Of narrow elements, a register has two.
            self.registers.dtypes[id(b)] = b.dtype if b.dtype not in PAIRED else i32
        return found

    def _in_registers(self, buffers: set[Buffer]) -> set[Buffer]:
        return {b for b in buffers if self.analysis.places[id(b)].space is Space.REG}

    def keys_of(self, mention: Mention, syms: Sequence[Sym], columns: int | None = None) -> list[Key]:
        """The registers of a lane's elements of a fragment, whose rows and columns are counted by ``syms``.

        They are numbered by the columns of a unit, so that nests of several widths agree on who has what.
        """
        unit = self.unit
        columns = unit.columns if columns is None else columns
        own = [self.space.id_of(s) for s in syms]
        start = mention.lin.const
        for sid, coef in mention.lin.terms:
            number = self.space.const[sid]
            if sid not in own and number is None:
                raise CodegenError(f"{mention.buffer.name}: registers are indexed at run time: {mention.lin.dim}")
            start += 0 if sid in own or number is None else coef * number
        apart = unit.columns * dict(mention.lin.terms).get(own[-1], 0) if columns > unit.columns else 0
        if columns > unit.columns and not apart:
            raise CodegenError(f"{mention.buffer.name}: the columns of a wide fragment are not counted by one loop")
        units = [unit.count * (start + apart * k) for k in range(columns // unit.columns)]
        return [(id(mention.buffer), first + k) for first in units for k in range(unit.count)]

    def register(self, key: Key) -> Val:
        """A register's present value."""
        slot = self.registers.state.get(key)
        return slot.value if slot is not None else Val("poison", 0, 0)

    def set_register(self, key: Key, value: Val) -> None:
        """Define a register."""
        self.registers.state[key] = Slot(value)

    def read(self, mention: Mention, ctx: Lanes, memo: Memo) -> Val:
        """An element of a fragment is the one that the lane holds; all else lies where it lies."""
        if ctx.syms and (found := runs.of_mention(self, mention)) is not None:
            return found
        if mention.buffer not in self.in_lanes:
            return super().read(mention, ctx, memo)
        if mention.buffer.dtype in PAIRED:
            raise CodegenError(f"{mention.buffer.name}: narrow elements in registers are operands, and nothing else")
        self.products.settle({mention.buffer})
        return self.register(self.key_of(mention))

    def write(self, mention: Mention, value: Val, ctx: Lanes, memo: Memo) -> None:
        """The same for writing."""
        if mention.buffer not in self.in_lanes:
            self.operands.clear()
            super().write(mention, value, ctx, memo)
        else:
            self.products.settle({mention.buffer})
            key = self.key_of(mention)
            self.products.replace(key, value)
            self.set_register(key, value)

    def key_of(self, mention: Mention) -> Key:
        """The register of the element that the present statements are about, or of its row."""
        if self.element is None:
            raise CodegenError(f"{mention.buffer.name} is a warp's: it is used in warp loops alone")
        element = self.element - self.element % PAIR if mention.buffer in self.of_rows else self.element
        return self.keys_of(mention, self.lane_syms, self.lane_columns)[element]

    def shared_text(self, static_limit: int) -> tuple[str, int]:
        """The declaration of the block's array and the bytes that a launch must ask for: all or none."""
        n_bytes = self.shared.n_bytes
        if not n_bytes:
            return "", 0
        is_static = n_bytes <= static_limit
        array = f"internal addrspace(3) global [{n_bytes} x i8] undef"
        if not is_static:
            array = "external addrspace(3) global [0 x i8]"
        return f"@{self.shared.name} = {array}, align {self.shared.alignment}", 0 if is_static else n_bytes

    def check_shared(self) -> None:
        """``CodegenError`` where a block wants more shared memory than the GPU has for one."""
        gpu, wanted = self.module.target.gpu, self.shared.n_bytes
        if wanted > gpu.max_block_shared_bytes:
            rule = f"{gpu.name} has {gpu.max_block_shared_bytes}"
            raise CodegenError(f"{self.entry}: a block wants {wanted} bytes of shared memory: {rule}")


def _is_zero(v: Value) -> bool:
    """Are all bits zero, as asynchronous copies fill in? Those of -0.0 are not."""
    return isinstance(v, Const) and v.value == 0 and copysign(1, v.value) > 0
