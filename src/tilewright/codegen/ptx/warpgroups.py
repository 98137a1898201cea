"""Matrix instructions of four warps: ``wgmma`` of compute capability 9.0.

In: three ``warp`` loops around a multiply-add of factors in swizzled shared memory. Out: inline assembly, and what
keeps the order of its asynchronous work. Not its business: the layout of swizzled memory (``tile.swizzle``), all other
instructions (``warps``), which of a block's warps come to one (the schedule's).

Each of four neighbouring warps says what it does of the instruction: 16 rows of sums of its own. Their left factors
must lie as 64 rows of one matrix do, and the right one must be the same. A *descriptor* says where a factor begins and
how far its eights of rows and its panels are apart (Parallel Thread Execution ISA, "Matrix Descriptor Format"). An
index is compared with what its descriptor says before an instruction is emitted.

The sums are registers that change at any time until their warp has waited. So what touches them otherwise waits before,
by an instruction that hands all of them on, so that nothing moves in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.registers import Key
from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.compute import Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, const_of, evaluate, substitute, symbols, terms_of
from tilewright.target.matrices import (
    CHUNK_BYTES,
    GROUP_WARPS,
    LEFT,
    PERIOD_BYTES,
    PIECE_BYTES,
    SUMS,
    group_shape_for,
)
from tilewright.tile.grid import is_of_four_warps, is_uniform
from tilewright.tile.ir import Barrier, For, If, Kind, Update, walk, written
from tilewright.tile.rewrite import loads_of

if TYPE_CHECKING:
    from tilewright.codegen.ptx.function import PtxFunction

FENCE = "call void @llvm.nvvm.wgmma.fence.sync.aligned()"
COMMIT = "call void @llvm.nvvm.wgmma.commit_group.sync.aligned()"
WAIT = "call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 {})"
PROXY = 'call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()'
"""What a thread has written to shared memory is there for matrix units too."""
NAMES = {types.bf16: "bf16", types.f16: "f16"}
EXCHANGED = 1 << 62
"""A descriptor's mode: rows of 128 bytes whose chunks are exchanged."""
ADDRESSED_BYTES = 1 << 18
"""The part of an address that a descriptor has room for, more than there is of shared memory."""
GROUP_ROWS = GROUP_WARPS * SUMS.rows


class Products:
    """The order of one function's asynchronous products."""

    def __init__(self, fn: PtxFunction) -> None:
        self.fn = fn
        self.are_here = any(self._is_product(s) for s in walk(fn.grid.body))
        self.group: For | None = None
        """The statement whose products are one group, while it is emitted."""
        self.going: list[Key] = []
        """Sums that products may still change."""

    def begin(self, s: For | If) -> None:
        """A statement begins: the outermost one of products alone is a group."""
        if not self.are_here or self.group is not None:
            return
        if not self._holds(s):
            if any(b in self.fn.fragments for x in walk((s,)) for b in (*written(x), *[y.buffer for y in loads_of(x)])):
                self.settle()  # here all lanes are together
            return
        threads = {x.sym for x in self.fn.grid.threads}
        if not is_uniform(s, threads):
            raise CodegenError("a matrix instruction of four warps to which not all of them may come")
        is_inside = isinstance(s, For) and s.loop.kind not in (Kind.BLOCK, Kind.THREAD)
        if is_inside and not any(isinstance(x, Barrier | If) for x in walk((s,))):
            assert isinstance(s, For)
            self.group = s
            self.fn.writer.emit(FENCE)
        elif is_inside:  # a turn begins where the last one's products may go on
            own = {id(b) for b in self.fn.fragments}
            self.going = [key for key in self.fn.registers.state if key[0] in own]

    def end(self, s: For | If) -> None:
        """The group is whole."""
        if s is self.group:
            self.fn.writer.emit(COMMIT)
            self.group = None

    def meet(self, *, running: bool) -> None:
        """Before a barrier: wait for products, and let the next ones see what was written."""
        if self.are_here:
            self.fn.writer.emit(WAIT.format(int(running)))
            self.fn.writer.emit(PROXY)

    def settle(self) -> None:
        """Before sums are touched otherwise: wait for all products."""
        fn, keys = self.fn, [k for k in self.going if k in self.fn.registers.state]
        if not keys:
            return
        if self.group is not None:
            raise CodegenError("sums of a matrix instruction are touched beside the instructions that add to them")
        self.going = []
        done = fn.writer.fresh(_tied("wgmma.wait_group.sync.aligned 0;", (), [fn.register(k).text for k in keys]))
        _take(fn, keys, done)

    def _is_product(self, s: object) -> bool:
        return isinstance(s, For) and is_of_four_warps(s, self.fn.addresses.swizzled)

    def _holds(self, s: For | If) -> bool:
        return any(self._is_product(x) for x in walk((s,)))


def emit(
    fn: PtxFunction, syms: tuple[Sym, Sym, Sym], extents: tuple[int, ...], update: Update, factors: tuple[Load, Load]
) -> None:
    """One instruction; ``CodegenError`` where loops, warps or memory are not as one wants them."""
    left, right = factors
    shape = group_shape_for(left.dtype, extents)
    if shape is None or not fn.module.target.gpu.has_warpgroup_mma:
        raise CodegenError(f"no matrix instruction of four warps has {extents} of {left.dtype}")
    if fn.products.group is None:
        raise CodegenError("a matrix instruction of four warps beside conditions or barriers")
    m, n, k = syms
    warp, n_warps = _innermost_warps(fn)
    a = _Factor(fn, left, m, k, warp, n_warps)
    b = _Factor(fn, right, n, k)
    # The hardware reads the right factor once for all four warps, by one descriptor.
    if warp in symbols(b.place):
        raise CodegenError(f"{right.buffer.name}: the four warps of an instruction read several right factors")
    descriptors = [a.descriptor(GROUP_ROWS), b.descriptor(shape.columns)]
    for sym, extent in ((m, SUMS.rows), (n, shape.columns)):
        fn.space.bind_run(sym, "0", 0, (0, extent - 1))
    keys = fn.keys_of(fn.mention(update, update.buffer, update.index), {m, n})
    for sym in (m, n):
        fn.space.unbind(sym)
    name = NAMES[shape.dtype]
    count = len(keys)
    registers = ", ".join(f"${i}" for i in range(count))
    turned = f"{int(a.is_turned)}, {int(b.is_turned)}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m{GROUP_ROWS}n{shape.columns}"
        f"k{LEFT.columns}.f32.{name}.{name} {{{registers}}}, ${count}, ${count + 1}, p, 1, 1, {turned}; }}"
    )
    done = fn.writer.fresh(_tied(text, [d.text for d in descriptors], [fn.register(key).text for key in keys]))
    _take(fn, keys, done)
    # The instruction is asynchronous: its sums may be touched only behind the next wait, which asks this list.
    fn.products.going += [key for key in keys if key not in fn.products.going]


def _tied(text: str, descriptors: Sequence[str], sums: Sequence[str]) -> str:
    """A call of assembly that reads descriptors, and reads and writes sums."""
    kind = f"{{{', '.join(['float'] * len(sums))}}}"
    kinds = [*["=f"] * len(sums), *["l"] * len(descriptors), *map(str, range(len(sums))), "~{memory}"]
    arguments = [*[f"i64 {d}" for d in descriptors], *[f"float {s}" for s in sums]]
    return f'call {kind} asm sideeffect "{text}", "{",".join(kinds)}"({", ".join(arguments)})'


def _take(fn: PtxFunction, keys: Sequence[Key], done: str) -> None:
    kind = f"{{{', '.join(['float'] * len(keys))}}}"
    for number, key in enumerate(keys):
        fn.set_register(key, Val(fn.writer.fresh(f"extractvalue {kind} {done}, {number}"), fn.writer.level, 0))


def _innermost_warps(fn: PtxFunction) -> tuple[Sym, int]:
    """The thread loop that counts the four warps of an instruction, and its extent."""
    inner = next((x for x in reversed(fn.grid.threads) if x.extent != 1), None)
    if inner is None or not is_known(inner.extent) or inner.extent % GROUP_WARPS:
        raise CodegenError(f"a matrix instruction of {GROUP_WARPS} warps where neighbours are not as many")
    return inner.sym, inner.extent


class _Factor:
    """A factor: its place by the lines (rows of the left one, columns of the right one) and the depth."""

    def __init__(
        self, fn: PtxFunction, load: Load, line: Sym, depth: Sym, warp: Sym | None = None, n_warps: int = GROUP_WARPS
    ) -> None:
        self.fn, self.load, self.line, self.depth, self.warp, self.n_warps = fn, load, line, depth, warp, n_warps
        self.size = load.dtype.n_bytes
        self.place = fn.offset_of(load.buffer, load.index)
        self.is_turned = False

    def descriptor(self, lines: int) -> Val:
        """The descriptor as an ``i64``; ``CodegenError`` where the factor does not lie as one says."""
        apart = self._panels_apart(lines)
        start = self._start()
        base = self.fn.base(self.load.buffer)
        writer = self.fn.writer
        shared = writer.pure(f"addrspacecast ptr {base.text} to ptr addrspace(3)", base.level)
        narrow = writer.pure(f"ptrtoint ptr addrspace(3) {shared} to i32", base.level)
        wide = writer.pure(f"zext i32 {narrow} to i64", base.level)
        near = writer.pure(f"and i64 {wide}, {ADDRESSED_BYTES - 1}", base.level)
        units = writer.pure(f"lshr i64 {near}, {CHUNK_BYTES.bit_length() - 1}", base.level)
        said = EXCHANGED | PERIOD_BYTES // CHUNK_BYTES << 32 | max(apart // CHUNK_BYTES, 1) << 16
        head = Val(writer.pure(f"or i64 {units}, {said}", base.level), base.level, 0)
        return self.fn.arith.instruction("add", "i64", head, start)

    def _panels_apart(self, lines: int) -> int:
        """Bytes from one panel to the next, once every element was found to lie as in rows or columns of panels."""
        n_piece = PIECE_BYTES // self.size
        at = self._distances(lines)
        apart = at[n_piece, 0] if lines > n_piece else 0
        in_rows = all(d == line * n_piece + k for (line, k), d in at.items())
        self.is_turned = not in_rows
        in_columns = all(d == line // n_piece * apart + line % n_piece + k * n_piece for (line, k), d in at.items())
        if not in_rows and not in_columns:
            raise CodegenError(f"{self.load.buffer.name}: it does not lie as matrix instructions of four warps read it")
        return apart * self.size if self.is_turned else 0

    def _distances(self, lines: int) -> dict[tuple[int, int], int]:
        """How many elements each one is behind the first; of all lines at both ends of the depth, and all of that."""
        own = {self.line, self.depth, *([self.warp] if self.warp is not None else [])}
        mine = [(atom, c) for atom, c in terms_of(self.place) if symbols(atom) & own]
        if any(not symbols(atom) <= own for atom, _ in mine):
            raise CodegenError(f"{self.load.buffer.name}: other loops decide how its neighbours lie")
        depths = range(LEFT.columns)
        points = [(line, k) for line in range(lines) for k in (0, depths[-1])]
        points += [(line, k) for line in (0, lines - 1) for k in depths]

        def at(line: int, k: int) -> int:
            warp, row = divmod(line, SUMS.rows) if self.warp is not None else (0, line)
            env = {self.line: row, self.depth: k, **({self.warp: warp} if self.warp is not None else {})}
            return sum(evaluate(atom * c, env) for atom, c in mine)

        return {p: at(*p) - at(0, 0) for p in points}

    def _start(self) -> Val:
        """Chunks from the buffer's start to where the four warps' part begins; nothing is exchanged there."""
        zero: dict[Sym, Dim] = {self.line: 0, self.depth: 0}
        place, space = substitute(self.place, zero), self.fn.space
        n_groups = self.n_warps // GROUP_WARPS
        group = Sym("group", 0, n_groups - 1)
        if self.warp is not None:
            number = self.fn.indices[self.warp]
            number = self.fn.arith.instruction("udiv", "i64", number, Val(str(GROUP_WARPS), 0, 0))
            space.bind_run(group, number.text, number.level, (0, n_groups - 1))
            place = substitute(place, {self.warp: GROUP_WARPS * group if n_groups > 1 else 0})
        place = space.resolve(place)
        offset = const_of(place) * self.size
        begins = 0 if self.is_turned else PIECE_BYTES - 1
        is_aligned = offset % PERIOD_BYTES <= begins and offset % CHUNK_BYTES == 0
        if not is_aligned or any(c * self.size % PERIOD_BYTES for _, c in terms_of(place)):
            raise CodegenError(
                f"{self.load.buffer.name}: a matrix instruction of four warps begins inside of an exchange"
            )
        chunks: Dim = offset // CHUNK_BYTES
        for atom, c in terms_of(place):
            chunks = chunks + atom * (c * self.size // CHUNK_BYTES)
        found = space.value(chunks)
        space.unbind(group)
        return found
