"""One LLVM function in the making: statements to instructions.

In: statements of the tile IR. Out: a ``define`` with its body. Not its business: loops (``loops``), values
(``values``), memory (``memory``); this file joins them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm import convert
from tilewright.codegen.llvm.addresses import Address, Addresses, Mention
from tilewright.codegen.llvm.analysis import Analysis
from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.index import IndexSpace
from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.loops import Loops
from tilewright.codegen.llvm.memory import Memory
from tilewright.codegen.llvm.registers import Registers
from tilewright.codegen.llvm.split import Splits
from tilewright.codegen.llvm.sums import fold_together
from tilewright.codegen.llvm.types import MEMORY_TYPE, VALUE_TYPE, literal, vector
from tilewright.codegen.llvm.values import Memo, Values
from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.codegen.rooms import most_elements
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, IndexLike, Load, Select, Value, symbols_of_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.core.indices import chosen, is_chosen, symbols_in
from tilewright.core.types import DType
from tilewright.target.instructions import Instructions
from tilewright.tile import math as tile_math
from tilewright.tile.affine import coefficient, first_offset
from tilewright.tile.ir import Fold, For, If, Kernel, Kind, Prefetch, Role, Space, Stmt, Store, Update
from tilewright.tile.schedule.tree import nest_of

NO_LANES = Lanes()


@dataclass
class KernelModule:
    """What the functions of one kernel share."""

    kernel: Kernel
    target: Instructions
    analysis: Analysis
    splits: Splits
    functions: list[str] = field(default_factory=list)
    globals: dict[str, str] = field(default_factory=dict)
    declarations: set[str] = field(default_factory=set)
    expanded: dict[int, tuple[Value, Value]] = field(default_factory=dict)
    n_zero_bytes: int = 0
    has_narrow_tails: bool = False
    """May a known part of a vector be held in a smaller register?"""
    functions_of_target: ClassVar[frozenset[str]] = frozenset()
    """Transcendental functions of f32 that are one instruction."""

    def expand(self, v: Value) -> Value:
        """``v`` with transcendental functions spelled out. Keeps the original alive: its identity is a key."""
        found = self.expanded.get(id(v))
        if found is None:
            t = self.target
            expansion = tile_math.expand(
                v, has_fma=t.has_fma, has_f64=t.has_f64, has_scalef=t.has_scalef, functions=self.functions_of_target
            )
            found = self.expanded[id(v)] = (v, expansion)
        return found[1]

    def symbol(self, suffix: str) -> str:
        """A private name of this module."""
        return f'@"{self.kernel.name}.{suffix}"'

    def zeros(self, n_bytes: int) -> str:
        """The address of at least ``n_bytes`` zeros, read instead of what a guard forbids."""
        self.n_zero_bytes = max(self.n_zero_bytes, n_bytes, 64)
        return self.address_of(self.symbol("zeros"))

    def table(self, buffer: Buffer) -> str:
        """The address of a table's numbers."""
        name = self.symbol(f"table.{buffer.name}")
        if name not in self.globals:
            place = self.analysis.places[id(buffer)]
            assert place.table is not None, f"table {buffer.name} has no numbers"
            element = MEMORY_TYPE[buffer.dtype]
            numbers = ", ".join([f"{element} {_stored(x.item(), buffer.dtype)}" for x in place.table.reshape(-1)])
            ty = f"[{place.table.size} x {element}]"
            self.globals[name] = f"{name} = {self._constant} {ty} [{numbers}], align 64"
        return self.address_of(name)

    @property
    def constant_space(self) -> str:
        """What says in which address space constants lie, where that is not where all else does."""
        return ""

    @property
    def _constant(self) -> str:
        return f"private unnamed_addr {self.constant_space}constant"

    def address_of(self, name: str) -> str:
        """A pointer to a constant."""
        return f"addrspacecast (ptr {self.constant_space}{name} to ptr)" if self.constant_space else name

    @property
    def attributes(self) -> str:
        """What every function says of itself."""
        return f"nounwind {self.target.attributes}".rstrip()

    def text(self) -> str:
        """The module's LLVM text."""
        target = f'target triple = "{self.target.triple}"'
        lines = [target, *self.globals.values()]
        if self.n_zero_bytes:
            ty = f"[{self.n_zero_bytes} x i8]"
            lines.append(f"{self.symbol('zeros')} = {self._constant} {ty} zeroinitializer, align 64")
        return "\n".join([*lines, *sorted(self.declarations), *self.functions, ""])


class Sum(NamedTuple):
    """An element in registers that the lanes of a value are to be folded into."""

    update: Update
    offset: int
    value: Val


class KernelFunction:
    """Emits statements into one function. Bases of buffers are set by whoever opens the function."""

    def __init__(self, module: KernelModule) -> None:
        self.module = module
        self.analysis = module.analysis
        self.writer = Writer()
        self.space = IndexSpace(self.writer)
        self.arith = self.new_arith()
        self.addresses = self.new_addresses()
        self.memory = self.new_memory()
        self.registers = Registers(self.arith, module.analysis.registers)
        self.values = Values(self.arith, self.space, self, self.addresses)
        self.loops = self.new_loops()
        self.bases: dict[int, Val] = {}
        self.sums: list[Sum] | None = None
        self._mentions: dict[tuple[int, int], tuple[object, Mention]] = {}

    # --- what a kind of processor does in its own way -----------------------------------------------------------------

    def new_addresses(self) -> Addresses:
        """Where accesses lie."""
        return Addresses(self.arith, self.space, self.base, self.analysis)

    def new_arith(self) -> Arith:
        """What operations mean."""
        return Arith(self.writer, self.module.target)

    def new_memory(self) -> Memory:
        """How memory is read and written."""
        return Memory(self.arith, self.addresses, self.module.zeros)

    def new_loops(self) -> Loops:
        """How loops of each kind run."""
        return Loops(self)

    def allocate(self, buffer: Buffer, name: str, n_elements: int) -> None:
        """Emit ``name``, the address of memory for a buffer of the kernel's own; here on the stack."""
        self.writer.entry.append(f"  {name} = alloca [{n_elements} x {MEMORY_TYPE[buffer.dtype]}], align 64")

    # --- buffers ----------------------------------------------------------------------------------------------------

    def base(self, buffer: Buffer) -> Val:
        """The address of a buffer's first element; scratch buffers get their memory on first use."""
        found = self.bases.get(id(buffer))
        if found is None:
            found = self.bases[id(buffer)] = self._new_base(buffer)
        return found

    def _new_base(self, buffer: Buffer) -> Val:
        place = self.analysis.places.get(id(buffer))
        if place is None or place.space is Space.GLOBAL:
            raise CodegenError(f"buffer {buffer.name} has no place in kernel {self.module.kernel.name}")
        if place.space is Space.TABLE:
            return Val(self.module.table(buffer), 0, 0)
        name, lanes = self.writer.name(), max(self.module.target.vector_bytes // buffer.dtype.n_bytes, 1)
        room = self.addresses.rooms[buffer] = -(-most_elements(buffer) // lanes) * lanes
        self.allocate(buffer, name, room)
        return Val(name, 0, 0)

    def mention(self, owner: object, buffer: Buffer, index: tuple[IndexLike, ...], n: int = 0) -> Mention:
        """The prepared access of a load or statement (its ``n``-th)."""
        found = self._mentions.get((id(owner), n))
        if found is None:
            strides: list[Dim] = [1]
            for d in reversed(buffer.shape[1:]):
                strides.append(strides[-1] * d)
            pairs = list(zip(index, reversed(strides), strict=True)) if buffer.shape else []
            dynamic = tuple([(self.module.expand(i), stride) for i, stride in pairs if is_chosen(i)])
            mention = Mention(buffer, self.space.lin(self.offset_of(buffer, index)), dynamic)
            found = self._mentions[id(owner), n] = (owner, mention)
        return found[1]

    def offset_of(self, buffer: Buffer, index: tuple[IndexLike, ...]) -> Dim:
        """How many elements an access is behind the buffer's first one, or the first one that the data may choose."""
        return first_offset(buffer, index)

    def load(self, v: Load, ctx: Lanes, memo: Memo) -> Val:
        """Read a buffer, wherever it lives."""
        return self.read(self.mention(v, v.buffer, v.index), ctx, memo)

    def read(self, mention: Mention, ctx: Lanes, memo: Memo) -> Val:
        """The present value of an access."""
        buffer = mention.buffer
        if id(buffer) in self.registers.groups:
            return self.registers.read(
                buffer, self._offset(mention, ctx), ctx.pattern(mention.lin) if ctx.syms else None
            )
        place = self.analysis.places.get(id(buffer))
        if place is not None and place.space is Space.TABLE and place.table is not None and not mention.dynamic:
            offset = self._constant_offset(mention, ctx)
            if offset is not None:
                return self.memory.literal(place.table, buffer, offset, ctx.pattern(mention.lin) if ctx.syms else None)
        return self.memory.load(self._address(mention, ctx, memo), ctx)

    def write(self, mention: Mention, value: Val, ctx: Lanes, memo: Memo) -> None:
        """Set an access to a value."""
        if id(mention.buffer) in self.registers.groups:
            pattern = ctx.pattern(mention.lin) if ctx.syms else None
            self.registers.write(mention.buffer, self._offset(mention, ctx), pattern, value, ctx.mask)
        else:
            self.memory.store(self._address(mention, ctx, memo), value, ctx)

    def _address(self, mention: Mention, ctx: Lanes, memo: Memo) -> Address:
        return self.addresses.locate(mention, ctx, lambda v: self._as_i64(v, ctx, memo))

    def address(self, mention: Mention, ctx: Lanes) -> Address:
        """Where an access without run-time indices lies."""
        return self._address(mention, ctx, {})

    def _as_i64(self, v: Value, ctx: Lanes, memo: Memo) -> Val:
        return convert.cast(self.arith, self.values.value(v, ctx, memo), v.dtype, types.i64)

    def _offset(self, mention: Mention, ctx: Lanes) -> int:
        offset = self._constant_offset(mention, ctx)
        if offset is None:
            raise CodegenError(f"register buffer {mention.buffer.name} is indexed at run time: {mention.lin.dim}")
        return offset

    def _constant_offset(self, mention: Mention, ctx: Lanes) -> int | None:
        offset = mention.lin.const
        for sid, coef in mention.lin.terms:
            number = self.space.const[sid]
            if number is not None:
                offset += coef * number
            elif sid not in ctx.sids:
                return None
        if not ctx.is_regular(mention.lin):
            return None
        for atom, coef in mention.lin.others:
            resolved = self.space.resolve(atom)
            if not is_known(resolved):
                return None
            offset += coef * resolved
        return offset

    # --- statements -------------------------------------------------------------------------------------------------

    def body(self, body: tuple[Stmt, ...], ctx: Lanes) -> None:
        """Emit statements in order."""
        for s in body:
            self.statement(s, ctx)

    def outermost(self, s: Stmt) -> None:
        """Emit a statement of the kernel's own; a copy of an operand, not where the result is the same memory.

        Who calls the kernel so appends to a buffer in place: what is written behind the copy is all that changes.
        """
        kernel, pair = self.module.kernel, _copied(s)
        if pair is None or len(kernel.body) == 1 or not all(b in kernel.params for b in pair):
            self.statement(s, Lanes())
            return
        source, target = map(self.base, pair)
        bit = Val(self.writer.name(), 0, 0)
        self.writer.emit(f"{bit.text} = icmp ne ptr {source.text}, {target.text}")
        self.loops.branch(bit, lambda: self.statement(s, Lanes()))

    def statement(self, s: Stmt, ctx: Lanes) -> None:
        """Emit one statement."""
        match s:
            case For() if not ctx.syms and self.sums is None and self._are_sums(s):
                self.sums = []
                self.loops.emit(s, ctx)
                self._fold_sums()
            case For():
                self.loops.emit(s, ctx)
            case Store():
                memo: Memo = {}
                value = self.values.value(self.module.expand(s.value), ctx, memo)
                if not self.module.target.has_masks and _keeps_some(s):
                    self.use(value, s.buffer.dtype)  # LLVM makes it a masked store, which takes AMD's cores 12 cycles
                self.write(self.mention(s, s.buffer, s.index), value, ctx, memo)
            case Update():
                self._update(s, ctx)
            case Fold():
                self._fold(s, ctx)
            case If():
                self._if(s, ctx)
            case Prefetch():
                if not ctx.syms or ctx.is_regular(self.mention(s, s.buffer, s.index).lin):
                    is_written = self.analysis.places[id(s.buffer)].role is Role.OUT
                    self.memory.prefetch(
                        self._address(self.mention(s, s.buffer, s.index), ctx, {}), is_written=is_written
                    )

    def use(self, value: Val, dtype: DType) -> None:
        """A use of a vector that makes no code: LLVM moves nothing across it, and folds the value into nothing else."""
        if value.lanes and value.text.startswith("%"):
            self.module.declarations.add("declare void @llvm.fake.use(...)")
            self.writer.emit(f"call void (...) @llvm.fake.use({vector(VALUE_TYPE[dtype], value.lanes)} {value.text})")

    def _update(self, s: Update, ctx: Lanes) -> None:
        value = self.values.settled(self.module.expand(s.value), ctx)
        if s.op == "add" and self.values.vanishes(value, ctx):
            return
        mention = self.mention(s, s.buffer, s.index)
        memo: Memo = {}
        if ctx.syms and not self._distinct(mention, ctx):
            self._reduce_lanes(s, mention, self.values.value(value, ctx, memo), ctx)
            return
        dtype = s.buffer.dtype
        if ctx.mask is not None and len(ctx.syms) == 1 and self.adds_zeros(s, ctx.syms[0], ctx.count):
            ctx = replace(ctx, zeroed=True)
        if s.op == "add" and isinstance(value, Binary) and value.op == "mul" and dtype.is_float:
            a, b = self.values.value(value.a, ctx, memo), self.values.value(value.b, ctx, memo)
            new = self.arith.fma(dtype, a, b, self.read(mention, ctx, memo))
        else:
            v = self.values.value(value, ctx, memo)
            new = self.arith.binary(s.op, dtype, self.read(mention, ctx, memo), v)
        self.write(mention, new, replace(ctx, mask=None) if ctx.zeroed else ctx, memo)

    def adds_zeros(self, s: Stmt, lane: Sym, n: int) -> bool:
        """Would lanes that do not run add products of zeros to whole registers of ``n``, if what they load were zero?

        Then no lane has to be kept out of the sum, as in the last of the vectors that a dot product goes by.
        """
        if not isinstance(s, Update) or s.op != "add" or not s.buffer.dtype.is_float:
            return False
        value = s.value
        if not isinstance(value, Binary) or value.op != "mul" or value.dtype is not s.buffer.dtype:
            return False
        if self.registers.groups.get(id(s.buffer)) != n or not self.registers.are_whole(s.buffer):
            return False
        if s.index[-1] != lane or s.buffer.shape[-1] != n:
            return False
        return all(self._is_run(self._inner(x, lane), lane) for x in (value.a, value.b))

    def _inner(self, v: Value, lane: Sym) -> Value:
        """What a select that is the same for all lanes, and decided, comes to."""
        is_same = isinstance(v, Select) and lane not in symbols_of_value(v.cond)
        return self.values.settled(v, NO_LANES) if is_same else v

    def _is_run(self, v: Value, lane: Sym) -> bool:
        """Does every lane load the neighbour of the one before, from memory?"""
        if not isinstance(v, Load) or id(v.buffer) in self.registers.groups:
            return False
        return not chosen(v.index) and coefficient(first_offset(v.buffer, v.index), lane) == 1

    def _distinct(self, mention: Mention, ctx: Lanes) -> bool:
        """Does every lane update another element? An index that is not linear in the lanes is taken to differ."""
        if not ctx.is_regular(mention.lin):
            return False
        pattern = ctx.pattern(mention.lin)
        return pattern is not None and len(set(pattern)) == len(pattern)

    def _reduce_lanes(self, s: Update, mention: Mention, value: Val, ctx: Lanes) -> None:
        """Fold lanes that update the same element, in a tree of shuffles; then update each element once."""
        dtype, n = s.buffer.dtype, ctx.count
        element = VALUE_TYPE[dtype]
        value = self.arith.splat(value, element, n)
        if ctx.mask is not None:
            value = self.arith.choose(ctx.mask, value, self.arith.const(identity(s.op, dtype), dtype), element)
        intervals = [self.space.interval[sid] for sid in ctx.sids]
        groups = self._groups(mention, ctx)
        if self.sums is not None and len(groups) == 1 and n & (n - 1) == 0:
            for sym, number in zip(ctx.syms, groups[0][0], strict=True):
                self.space.bind_const(sym, number)
            self.sums.append(Sum(s, self._offset(mention, NO_LANES), value))
            groups = []
        for point, lanes in groups:
            part = self._tree(s.op, dtype, self.arith.pick(value, element, lanes))
            for sym, number in zip(ctx.syms, point, strict=True):
                self.space.bind_const(sym, number)
            old = self.read(mention, NO_LANES, {})
            self.write(mention, self.arith.binary(s.op, dtype, old, part), NO_LANES, {})
        for sym, interval in zip(ctx.syms, intervals, strict=True):
            self.space.bind_lane(sym, interval)

    def _are_sums(self, f: For) -> bool:
        """Is it copies of one statement that folds a vector of partial results into an element, both in registers?"""
        kinds: list[Kind] = [f.loop.kind]
        s = f.body[0]
        while isinstance(s, For) and len(f.body) == 1:
            f, s = s, s.body[0]
            kinds.append(f.loop.kind)
        if len(f.body) > 1 or not isinstance(s, Update) or not isinstance(s.value, Load) or not s.value.dtype.is_float:
            return False
        lane, held = f.loop.sym, self.registers.groups
        folds = not chosen(s.index) and lane not in symbols_in(s.index)
        apart = {*kinds[:-1]} == {Kind.UNROLL} and kinds[-1] is Kind.VECTOR
        return apart and folds and id(s.buffer) in held and id(s.value.buffer) in held

    def _fold_sums(self) -> None:
        """Fold the lanes of all partial results together, as many as a vector has lanes at a time."""
        sums, self.sums = self.sums or [], None
        while sums:
            first = sums[0]
            n = first.value.lanes
            batch = [x for x in sums if x.value.lanes == n][:n]
            sums = [x for x in sums if x not in batch]
            dtype = first.update.buffer.dtype
            parts, lanes = fold_together(self.arith, first.update.op, dtype, [x.value for x in batch])
            for x, lane in zip(batch, lanes, strict=True):
                old = self.registers.read(x.update.buffer, x.offset, None)
                part = self.arith.extract(parts, VALUE_TYPE[dtype], lane)
                new = self.arith.binary(x.update.op, dtype, old, part)
                self.registers.write(x.update.buffer, x.offset, None, new, None)

    def _groups(self, mention: Mention, ctx: Lanes) -> list[tuple[tuple[int, ...], list[int]]]:
        """Lanes that update the same element, with a point of the vector loops at which that element lies."""
        points = ctx.points()
        if not ctx.is_regular(mention.lin):
            return [(point, [lane]) for lane, point in enumerate(points)]
        pattern = ctx.pattern(mention.lin) or (0,) * len(points)
        return [
            (points[pattern.index(p)], [lane for lane, q in enumerate(pattern) if q == p]) for p in sorted(set(pattern))
        ]

    def _tree(self, op: str, dtype: DType, v: Val) -> Val:
        """Combine all lanes of ``v`` to one scalar, halving.

        The last two are combined as scalars: a tree of vectors down to one lane over products of bytes is what LLVM 22
        takes for its pattern of ``vpdpbusd``, of which, for 16 bytes, it then keeps the first four products alone.
        """
        element = VALUE_TYPE[dtype]
        while v.lanes > 2:
            half = v.lanes // 2
            low = self.arith.pick(v, element, list(range(half)))
            high = self.arith.pick(v, element, list(range(half, 2 * half)))
            rest = self.arith.extract(v, element, v.lanes - 1) if v.lanes % 2 else None
            v = self.arith.binary(op, dtype, low, high)
            if rest is not None:
                first = self.arith.binary(op, dtype, self.arith.extract(v, element, 0), rest)
                ty = f"<{half} x {element}>"
                level = max(v.level, first.level)
                text = f"insertelement {ty} {v.text}, {element} {first.text}, i64 0"
                v = Val(self.writer.pure(text, level), level, half)
        first = self.arith.extract(v, element, 0)
        return first if v.lanes == 1 else self.arith.binary(op, dtype, first, self.arith.extract(v, element, 1))

    def _fold(self, s: Fold, ctx: Lanes) -> None:
        memo: Memo = {}
        mentions = [self.mention(s, b, s.index, n) for n, b in enumerate(s.buffers)]
        values = [self.values.value(self.module.expand(v), ctx, memo) for v in s.values]
        old = [self.read(p, ctx, memo) for p in mentions]
        self.values.params.update(zip(s.combiner.state, old, strict=True))
        self.values.params.update(zip(s.combiner.value, values, strict=True))
        inner: Memo = {}
        new = [self.values.value(self.module.expand(r), ctx, inner) for r in s.combiner.result]
        for mention, v in zip(mentions, new, strict=True):
            self.write(mention, v, ctx, memo)

    def _if(self, s: If, ctx: Lanes) -> None:
        cond = self.module.expand(s.cond)
        truth = self.values.truth(cond, ctx)
        if truth is not None:
            if truth:
                self.body(s.body, ctx)
            return
        bit = self.values.value(cond, ctx, {})
        if bit.lanes:
            self.body(s.body, self.values.guarded(ctx, bit))
        else:
            self.loops.branch(bit, lambda: self.body(s.body, ctx))


def _copied(s: Stmt) -> tuple[Buffer, Buffer] | None:
    """The buffers that a nest copies from and to, element by element at the same places; None for any other."""
    nest = nest_of(s)
    store = nest.leaf[0]
    is_copy = isinstance(store, Store) and isinstance(store.value, Load) and len(nest.leaf) == 1 and bool(nest.loops)
    if not is_copy or not isinstance(store, Store) or not isinstance(store.value, Load):
        return None
    source = store.value
    same = source.index == store.index and source.buffer.shape == store.buffer.shape
    return (source.buffer, store.buffer) if same else None


def _keeps_some(s: Store) -> bool:
    """Does the statement write elements that it reads, some of them as they are?"""
    sides = (s.value.a, s.value.b) if isinstance(s.value, Select) else ()
    return any(isinstance(x, Load) and x.buffer is s.buffer and x.index == s.index for x in sides)


def identity(op: str, dtype: DType) -> int | float:
    """The value that changes nothing under a reduction."""
    if op == "mul":
        return 1
    if op in ("min", "max", "larger"):
        if dtype.is_float:
            return math.inf if op == "min" else -math.inf
        return dtype.max if op == "min" else dtype.min
    if op == "and":
        return 1 if dtype is types.bool_ else -1
    return -0.0 if op == "add" and dtype.is_float else 0


def _stored(x: int | float | bool, dtype: DType) -> str:
    if dtype in (types.f16, types.bf16):
        return str(int(dtype.numpy.type(x).view("uint16")))
    return str(int(x)) if dtype is types.bool_ else literal(x, dtype)
