"""Matrix instructions of four warps: ``wgmma`` of compute capability 9.0.

In: three ``warp`` loops around a multiply-add, whose right factor lies in swizzled shared memory and whose left one
lies there too, or in registers. Out: inline assembly, and what keeps the order of its asynchronous work. Not its
business: the layout of swizzled memory (``tile.swizzle``), all other instructions (``warps``), which of a block's warps
come to one (the schedule's).

Each of four neighbouring warps says what it does of the instruction: 16 rows of sums of its own. Left factors in memory
must lie as 64 rows of one matrix do, and the right one must be the same. A *descriptor* says where a factor begins and
how far its eights of rows and its panels are apart (Parallel Thread Execution ISA, "Matrix Descriptor Format"). An
index is compared with what its descriptor says before an instruction is emitted.

The sums are registers that change at any time until their warp has waited, and a left factor's registers are read as
long. So what touches them otherwise waits before, by an instruction that hands on all that has come, so that nothing
moves in front of it. Products end in their order: who waits for some lets those that began later go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.registers import Key
from tilewright.codegen.llvm.types import literal
from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx import fragments
from tilewright.core import types
from tilewright.core.compute import Buffer, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, const_of, evaluate, substitute, symbols, terms_of
from tilewright.target.matrices import (
    CHUNK_BYTES,
    GROUP_WARPS,
    LEFT,
    PERIOD_BYTES,
    PIECE_BYTES,
    SUMS,
    GroupShape,
    group_shape_for,
)
from tilewright.tile.grid import is_of_four_warps, is_uniform, warp_nest
from tilewright.tile.ir import Barrier, For, If, Kind, Stmt, Update, walk, written
from tilewright.tile.rewrite import loads_of

if TYPE_CHECKING:
    from tilewright.codegen.ptx.function import PtxFunction

FENCE = "call void @llvm.nvvm.wgmma.fence.sync.aligned()"
COMMIT = "call void @llvm.nvvm.wgmma.commit_group.sync.aligned()"
WAIT = "call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 {})"
PROXY = 'call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()'
"""What a thread has written to shared memory is there for matrix units too."""
ZERO = literal(0.0, types.f32)
NAMES = {types.bf16: "bf16", types.f16: "f16"}
EXCHANGED = 1 << 62
"""A descriptor's mode: rows of 128 bytes whose chunks are exchanged."""
ADDRESSED_BYTES = 1 << 18
"""The part of an address that a descriptor has room for, more than there is of shared memory."""
GROUP_ROWS = GROUP_WARPS * SUMS.rows


@dataclass
class _Going:
    """Products that began together and may still run: whose registers they use; sums, and words of left factors."""

    buffers: frozenset[Buffer]
    sums: list[Key] = field(default_factory=list)
    words: list[Key] = field(default_factory=list)


class Products:
    """The order of one function's asynchronous products."""

    def __init__(self, fn: PtxFunction) -> None:
        self.fn = fn
        self.are_here = any(self._is_product(s) for s in walk(fn.grid.body))
        self.group: For | None = None
        """The statement whose products are one group, while it is emitted."""
        self.distances: dict[tuple[object, ...], Mapping[tuple[int, int], int]] = {}
        """How factors lie, by what says so."""
        self.going: list[_Going] = []
        """Groups that may still run, the oldest first."""
        self.replaced: dict[Key, Val] = {}
        """What sums were before they became zero."""

    def begin(self, s: For | If) -> None:
        """A statement begins: the outermost one of products alone is a group."""
        if not self.are_here or self.group is not None:
            return
        if not self._holds(s):
            self.settle(self._touched((s,)))  # here all lanes are together
            return
        threads = {x.sym for x in self.fn.grid.threads}
        if not is_uniform(s, threads):
            raise CodegenError("a matrix instruction of four warps to which not all of them may come")
        if self._is_group(s):
            assert isinstance(s, For)
            self.group = s
            self.going.append(_Going(self._touched((s,))))
            self.fn.writer.emit(FENCE)
        elif isinstance(s, For) and s.loop.kind in (Kind.BLOCK, Kind.THREAD):
            return  # they are no turns: each thread goes through them once
        else:  # a turn begins where the last one's products may go on
            self.settle(self.fn.fragments)
            left = self._left(s.body)
            sums = {id(b) for x in walk(s.body) if self._is_product(x) for b in written(warp_nest((x,))[1][0])}
            own = {id(b) for b in left} & sums
            self.going = [_Going(left, [key for key in self.fn.registers.state if key[0] in own])] if left else []

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

    def replace(self, key: Key, value: Val) -> None:
        """A register gets a value: of zeros a product makes no use, but of the registers that were there before."""
        if value.text == ZERO:
            self.replaced[key] = self.fn.register(key)

    def settle(self, buffers: Iterable[Buffer]) -> None:
        """Before registers of ``buffers`` are touched otherwise: wait for the products that use them, and for older."""
        n_done = max((n for n, x in enumerate(self.going, 1) if not x.buffers.isdisjoint(buffers)), default=0)
        if not n_done:
            return
        if self.group is not None:
            raise CodegenError("sums of a matrix instruction are touched beside the instructions that add to them")
        fn, done = self.fn, self.going[:n_done]
        self.going = self.going[n_done:]
        keys = list(dict.fromkeys(k for x in done for k in x.sums if k in fn.registers.state))
        words = list(dict.fromkeys(k for x in done for k in x.words))
        text = f"wgmma.wait_group.sync.aligned {len(self.going)};"
        held = [("r", f"i32 {fn.register(k).text}") for k in words]
        _take(fn, keys, fn.writer.fresh(_tied(text, held, [fn.register(k).text for k in keys], len(keys))))

    def _is_product(self, s: object) -> bool:
        return isinstance(s, For) and is_of_four_warps(s, self.fn.addresses.swizzled)

    def _holds(self, s: Stmt) -> bool:
        return any(self._is_product(x) for x in walk((s,)))

    def _is_group(self, s: Stmt) -> bool:
        """Does it hold products, and nothing that threads could meet at or pass by?"""
        is_inside = isinstance(s, For) and s.loop.kind not in (Kind.BLOCK, Kind.THREAD)
        return is_inside and self._holds(s) and not any(isinstance(x, Barrier | If) for x in walk((s,)))

    def _touched(self, body: Sequence[Stmt]) -> frozenset[Buffer]:
        """The fragments that statements read or write."""
        found = (b for s in walk(body) for b in (*written(s), *[x.buffer for x in loads_of(s)]))
        return frozenset(b for b in found if b in self.fn.fragments)

    def _left(self, body: Sequence[Stmt]) -> frozenset[Buffer]:
        """The fragments that products of a body may still use at its end."""
        going: list[frozenset[Buffer]] = []
        for s in body:
            is_group = self._is_group(s)
            touched = self._touched((s,))
            if not is_group:
                n_done = max((n for n, x in enumerate(going, 1) if x & touched), default=0)
                going = going[n_done:]
            if isinstance(s, For | If) and self._holds(s):
                going.append(touched if is_group else self._left(s.body))
        return frozenset[Buffer]().union(*going)


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
    words = fragments.word_keys(fn, left, (m, k))
    of_left = [("r", f"i32 {fn.register(key).text}") for key in words]
    turned: list[int] = []
    if not words:
        a = _Factor(fn, left, m, k, warp, n_warps)
        of_left = [("l", f"i64 {a.descriptor(GROUP_ROWS).text}")]
        turned.append(int(a.is_turned))
    b = _Factor(fn, right, n, k)
    # The hardware reads the right factor once for all four warps, by one descriptor.
    if warp in symbols(b.place):
        raise CodegenError(f"{right.buffer.name}: the four warps of an instruction read several right factors")
    operands = [*of_left, ("l", f"i64 {b.descriptor(shape.columns).text}")]
    turned.append(int(b.is_turned))
    for sym, extent in ((m, SUMS.rows), (n, shape.columns)):
        fn.space.bind_run(sym, "0", 0, (0, extent - 1))
    keys = fn.keys_of(fn.mention(update, update.buffer, update.index), (m, n), shape.columns)
    for sym in (m, n):
        fn.space.unbind(sym)
    sums = [fn.register(key).text for key in keys]
    adds = set(sums) != {ZERO}
    if not adds:
        # Such sums are not read. They take the registers of those that they follow, so that no others are held.
        olds = [fn.products.replaced[key].text for key in keys]
        sums = olds if all(x.startswith("%") for x in olds) else []
    text = _instruction(shape, len(words), turned, adds=adds)
    _take(fn, keys, fn.writer.fresh(_tied(text, operands, sums, len(keys))))
    # The instruction is asynchronous: its registers may be touched only behind the next wait, which asks for these.
    going = fn.products.going[-1]
    going.sums += [key for key in keys if key not in going.sums]
    going.words += [key for key in words if key not in going.words]


def _instruction(shape: GroupShape, n_words: int, turned: Sequence[int], *, adds: bool) -> str:
    """The assembly: sums, the left factor's registers or descriptor, the right one's descriptor."""
    n_sums, name = shape.columns * SUMS.count // SUMS.columns, NAMES[shape.dtype]
    registers = ", ".join(f"${i}" for i in range(n_sums))
    left = f"{{{', '.join(f'${n_sums + i}' for i in range(n_words))}}}" if n_words else f"${n_sums}"
    return (
        f"{{ .reg .pred p; setp.ne.b32 p, {int(adds)}, 0; wgmma.mma_async.sync.aligned.m{GROUP_ROWS}n{shape.columns}"
        f"k{LEFT.columns}.f32.{name}.{name} {{{registers}}}, {left}, ${n_sums + max(n_words, 1)}, p, 1, 1, "
        f"{', '.join(map(str, turned))}; }}"
    )


def _tied(text: str, operands: Sequence[tuple[str, str]], sums: Sequence[str], n_sums: int) -> str:
    """A call of assembly that reads operands, by constraint and text, and changes sums; without any it makes some."""
    kind = f"{{{', '.join(['float'] * n_sums)}}}"
    kinds = [*["=f"] * n_sums, *[c for c, _ in operands], *map(str, range(len(sums))), "~{memory}"]
    arguments = [*[x for _, x in operands], *[f"float {s}" for s in sums]]
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
        self.place = fn.space.resolve(fn.offset_of(load.buffer, load.index))
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

    def _distances(self, lines: int) -> Mapping[tuple[int, int], int]:
        """How many elements each one is behind the first; of all lines at both ends of the depth, and all of that."""
        own = {self.line, self.depth, *([self.warp] if self.warp is not None else [])}
        mine = tuple((atom, c) for atom, c in terms_of(self.place) if symbols(atom) & own)
        if any(not symbols(atom) <= own for atom, _ in mine):
            raise CodegenError(f"{self.load.buffer.name}: other loops decide how its neighbours lie")
        # Instructions of one step differ by a number, and the loops of all steps are alike.
        known = self.fn.products.distances
        key = (mine, self.line, self.depth, self.warp, lines)
        if key not in known:
            known[key] = _distances_of(mine, (self.line, self.depth, self.warp), lines)
        return known[key]

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


def _distances_of(
    terms: Sequence[tuple[Dim, int]], syms: tuple[Sym, Sym, Sym | None], lines: int
) -> Mapping[tuple[int, int], int]:
    """What the terms come to at each line and depth, less what they come to at the first of both."""
    line, depth, warp = syms
    depths = range(LEFT.columns)
    points = [(n, k) for n in range(lines) for k in (0, depths[-1])]
    points += [(n, k) for n in (0, lines - 1) for k in depths[1:-1]]

    def at(number: int, k: int) -> int:
        of_warp, row = divmod(number, SUMS.rows) if warp is not None else (0, number)
        env = {line: row, depth: k, **({warp: of_warp} if warp is not None else {})}
        return sum(evaluate(atom * c, env) for atom, c in terms)

    first = at(0, 0)
    return {p: at(*p) - first for p in points}
