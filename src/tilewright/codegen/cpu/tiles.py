"""Matrix registers: nests of ``matrix`` loops as Intel's AMX instructions.

In: ``matrix`` loops, and the loops around them. Out: instructions on registers with fixed numbers, and what configures
them. Not its business: what a nest means (``tile.matrix``), which tiles pay (``choose``).

Registers have shapes, which one instruction sets for all of them, and which takes as long as ten products. So a
*region* is the outermost loop, or iteration of one, in which every shape is known: its code begins with that
instruction and ends with the one that gives the registers back. A thread has registers of its own, so regions lie
inside of tasks. Sums get their numbers when they are first written, operands share what is left, each with those of its
shape, and one that still holds what is asked for is not loaded again.

The instructions are those of fixed registers, for which LLVM neither allocates nor spills anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.writer import Lines
from tilewright.core import types
from tilewright.core.compute import Buffer, IndexLike, Load
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.types import DType
from tilewright.target.tiles import TileUnit, unit_for
from tilewright.tile.affine import first_offset, stride_along
from tilewright.tile.ir import For, Kind, Store
from tilewright.tile.matrix import MatrixNest, matrices_of, matrix_nest
from tilewright.tile.verify import COPIED

if TYPE_CHECKING:
    from tilewright.codegen.cpu.function import CpuFunction

PRODUCTS = {
    (types.bf16, types.bf16): "tdpbf16ps", (types.u8, types.i8): "tdpbusd", (types.i8, types.i8): "tdpbssd",
    (types.u8, types.u8): "tdpbuud", (types.i8, types.u8): "tdpbsud",
}  # fmt: skip
"""LLVM's names of the products, by the types of the left and of the right operand."""
CONFIGURATION_BYTES = 64
ROW_BYTES_AT, ROWS_AT = 16, 48
"""Where a configuration has each register's bytes of a row, in two bytes, and its rows, in one."""
PALETTE = 1


@dataclass
class Register:
    """A matrix register: its shape, and which operand it holds; sums hold none."""

    number: int
    rows: Dim
    row_bytes: int
    holds: tuple[str, ...] = ()


@dataclass
class TileRegion:
    """Code during which no register changes its shape."""

    registers: list[Register] = field(default_factory=list)
    sums: dict[tuple[Buffer, int], Register] = field(default_factory=dict)


class Tiles:
    """The matrix registers of one function."""

    def __init__(self, fn: CpuFunction) -> None:
        self.fn = fn
        self.units: tuple[TileUnit, ...] = fn.module.target.tile_units
        self.matrices = matrices_of(fn.module.kernel.places) if self.units else frozenset[Buffer]()
        self.region: TileRegion | None = None
        self._block = ""

    # --- regions ----------------------------------------------------------------------------------------------------

    @contextmanager
    def around(self, f: For) -> Iterator[None]:
        """A region around all iterations of a loop, where its shapes are known outside of it.

        Not of a loop with several buffers of sums, each of which may take all registers.
        """
        is_one = len(self.matrices & f.touched) == 1
        if self.region is not None or not is_one or self._forks(f) or not self._are_known(f):
            yield
            return
        with self._open(f):
            yield

    @contextmanager
    def within(self, f: For) -> Iterator[None]:
        """A region around one iteration of a loop, where sums begin and end in it."""
        homes = self.fn.analysis.home
        if self.region is not None or all(homes.get(id(b)) is not f for b in self.matrices):
            yield
            return
        with self._open(f):
            yield

    def _forks(self, f: For) -> bool:
        """Will other threads run parts of the loop, with registers of their own?"""
        has_threads = self.fn.module.target.has_threads and not self.fn.in_task
        return has_threads and any(x.kind is Kind.PARALLEL for x in f.loops)

    def _are_known(self, f: For) -> bool:
        running = {x.sym for x in f.loops if x.kind not in (*COPIED, Kind.MATRIX)}
        return all(symbols(x.extent).isdisjoint(running) for x in f.loops if x.kind is Kind.MATRIX)

    @contextmanager
    def _open(self, f: For) -> Iterator[None]:
        for x in f.loops:  # numbers of the call are computed before the region begins
            if x.kind is Kind.MATRIX:
                self._computed(x.extent)
        begin = self.fn.writer.placeholder()
        self.region = TileRegion()
        yield
        self._configure(begin, self.region)
        self.region = None
        self._call("tilerelease", "", "")

    def _computed(self, extent: Dim) -> None:
        space = self.fn.space
        e = space.resolve(extent)
        if not is_known(e) and symbols(e) <= space.env.keys():
            space.value(e)

    def _configure(self, begin: Lines, region: TileRegion) -> None:
        """What sets the shapes of all registers, from a constant, or from memory where a call decides some rows."""
        fn = self.fn
        fixed = [0] * CONFIGURATION_BYTES
        fixed[0] = PALETTE
        found: list[tuple[int, str]] = []
        for r in region.registers:
            fixed[ROW_BYTES_AT + 2 * r.number] = r.row_bytes % 256
            fixed[ROW_BYTES_AT + 2 * r.number + 1] = r.row_bytes // 256
            if is_known(r.rows):
                fixed[ROWS_AT + r.number] = r.rows
            else:
                found.append((ROWS_AT + r.number, fn.space.value(r.rows).text))
        ty = f"[{CONFIGURATION_BYTES} x i8]"
        name = fn.module.symbol(f"tiles{len(fn.module.globals)}")
        text = ", ".join(f"i8 {n}" for n in fixed)
        fn.module.globals[name] = f"{name} = private unnamed_addr constant {ty} [{text}], align {CONFIGURATION_BYTES}"
        at = name
        if found:
            at = fn.writer.name()
            fn.writer.entry.append(f"  {at} = alloca {ty}, align {CONFIGURATION_BYTES}")
            whole = fn.writer.name()
            begin.append(f"  {whole} = load {ty}, ptr {name}, align {CONFIGURATION_BYTES}")
            begin.append(f"  store {ty} {whole}, ptr {at}, align {CONFIGURATION_BYTES}")
        for place, value in found:
            narrow, to = fn.writer.name(), fn.writer.name()
            begin.append(f"  {narrow} = trunc i64 {value} to i8")
            begin.append(f"  {to} = getelementptr i8, ptr {at}, i64 {place}")
            begin.append(f"  store i8 {narrow}, ptr {to}")
        begin.append(f"  call void @llvm.x86.ldtilecfg(ptr {at})")
        fn.module.declarations.add("declare void @llvm.x86.ldtilecfg(ptr)")

    # --- instructions -----------------------------------------------------------------------------------------------

    def emit(self, f: For) -> None:
        """One nest as its instruction; ``CodegenError`` where the shapes are none of the machine's."""
        if self.region is None:
            raise CodegenError(f"{f.loop.sym.name}: matrix registers without a loop around them")
        nest = matrix_nest(f, self.matrices)
        space, loops = self.fn.space, [nest.rows, nest.columns, nest.groups, nest.group]
        extents = [space.resolve(x.extent) for x in loops if x is not None]
        if not are_known([e for e in extents[1:]]):
            raise CodegenError(f"{f.loop.sym.name}: columns of a matrix register that are no number")
        for x in loops:
            if x is not None:
                space.bind_const(x.sym, 0)
        rows, columns = extents[0], extents[1]
        assert is_known(columns)
        if nest.left is not None and nest.right is not None:
            self._multiply(nest, rows, columns, *[e for e in extents[2:] if is_known(e)])
        else:
            self._move(nest, rows, columns)
        for x in loops:
            if x is not None:
                space.unbind(x.sym)

    def forget(self) -> None:
        """Memory may have changed."""
        for r in self.region.registers if self.region else ():
            r.holds = ()

    def _multiply(self, nest: MatrixNest, rows: Dim, columns: int, groups: int, group: int) -> None:
        assert nest.left is not None and nest.right is not None and nest.groups is not None
        left, right = nest.left, nest.right
        unit = self._unit(left.buffer.dtype, right.buffer.dtype)
        if group != unit.group or groups > unit.groups or columns > unit.columns:
            shape = f"{columns} columns, {groups} groups of {group}"
            raise CodegenError(f"{nest.rows.sym.name}: no matrix instruction of {shape}")
        sums = self._sums(nest.statement.buffer, nest.statement.index, rows, columns)
        if self._block != self.fn.writer.block:
            self._block = self.fn.writer.block
            self.forget()
        row_bytes = groups * group * left.buffer.dtype.n_bytes
        a = self._operand(left, nest.rows.sym, rows, row_bytes, (sums,))
        column_bytes = columns * group * right.buffer.dtype.n_bytes
        b = self._operand(right, nest.groups.sym, groups, column_bytes, (sums, a))
        name = PRODUCTS[left.buffer.dtype, right.buffer.dtype]
        numbers = f"i8 {sums.number}, i8 {a.number}, i8 {b.number}"
        self._call(name, "i8, i8, i8", numbers)

    def _move(self, nest: MatrixNest, rows: Dim, columns: int) -> None:
        s = nest.statement
        assert isinstance(s, Store)
        if not isinstance(s.value, Load):
            number = self._sums(s.buffer, s.index, rows, columns).number
            self._call("tilezero", "i8", f"i8 {number}")
            return
        if s.buffer in self.matrices:
            number, other = self._sums(s.buffer, s.index, rows, columns).number, s.value
            name = "tileloadd64"
        else:
            number = self._sums(s.value.buffer, s.value.index, rows, columns).number
            name, other = "tilestored64", Load(s.buffer, s.index)
            self.forget()
        pointer, stride = self._at(other.buffer, other.index, nest.rows.sym)
        self._call(name, "i8, ptr, i64", f"i8 {number}, ptr {pointer}, i64 {stride}")
        self.fn.memory.forget()

    def _call(self, name: str, kinds: str, operands: str) -> None:
        self.fn.writer.emit(f"call void @llvm.x86.{name}({operands})")
        self.fn.module.declarations.add(f"declare void @llvm.x86.{name}({kinds})")

    def _unit(self, left: DType, right: DType) -> TileUnit:
        unit = unit_for(self.units, left, right)
        if unit is None:
            raise CodegenError(f"no matrix instruction multiplies {left} by {right}")
        return unit

    # --- registers --------------------------------------------------------------------------------------------------

    def _sums(self, buffer: Buffer, index: tuple[IndexLike, ...], rows: Dim, columns: int) -> Register:
        assert self.region is not None
        offset = self.fn.space.resolve(first_offset(buffer, index))
        if not is_known(offset):
            raise CodegenError(f"matrix registers {buffer.name} are indexed at run time: {offset}")
        found = self.region.sums.get((buffer, offset))
        if found is None:
            found = self.region.sums[buffer, offset] = self._new(rows, columns * buffer.dtype.n_bytes)
        if (found.rows, found.row_bytes) != (rows, columns * buffer.dtype.n_bytes):
            raise CodegenError(f"{buffer.name}: a matrix register of two shapes")
        return found

    def _operand(self, x: Load, along: Sym, rows: Dim, row_bytes: int, taken: tuple[Register, ...]) -> Register:
        """The register that holds an operand, loaded where none does."""
        assert self.region is not None
        pointer, stride = self._at(x.buffer, x.index, along)
        what = (pointer, stride)
        sums = self.region.sums.values()
        same = [
            r for r in self.region.registers
            if (r.rows, r.row_bytes) == (rows, row_bytes) and all(r is not s for s in (*sums, *taken))
        ]  # fmt: skip
        for r in same:
            if r.holds == what:
                self.region.registers.remove(r)  # the last one is the one that was read last
                self.region.registers.append(r)
                return r
        if len(self.region.registers) < self.units[0].n_registers:
            r = self._new(rows, row_bytes)
        elif same:
            r = same[0]
            self.region.registers.remove(r)
            self.region.registers.append(r)
        else:
            raise CodegenError(f"{x.buffer.name}: no matrix register of {rows} by {row_bytes} bytes is left")
        r.holds = what
        self._call("tileloadd64", "i8, ptr, i64", f"i8 {r.number}, ptr {pointer}, i64 {stride}")
        return r

    def _new(self, rows: Dim, row_bytes: int) -> Register:
        assert self.region is not None
        number = len(self.region.registers)
        if number == self.units[0].n_registers:
            raise CodegenError(f"more than {number} matrix registers")
        self.region.registers.append(Register(number, rows, row_bytes))
        return self.region.registers[-1]

    def _at(self, buffer: Buffer, index: tuple[IndexLike, ...], along: Sym) -> tuple[str, str]:
        """Where a matrix begins, and the bytes from one row to the next."""
        fn = self.fn
        x = Load(buffer, index)  # interned, so that the access is prepared once
        address = fn.address(fn.mention(x, buffer, index), Lanes())
        step = stride_along(buffer, index, along)
        if step is None:
            raise CodegenError(f"{buffer.name}: rows of a matrix register that are no constant distance apart")
        return fn.addresses.pointer(address), fn.space.value(step * buffer.dtype.n_bytes).text
