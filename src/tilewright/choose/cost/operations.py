"""What statements compute: how many instructions of which class, in the body of which loop that runs.

In: a statement and the loops around it. Out: counts in its ``RunTimeLoop``. Not its business: where bytes come from
(``choose.cost.traffic``), how long instructions take (``choose.cost.price``).

The counts follow what code generation does. What depends on no loop inside of some run-time loop is computed in that
one, but a load stays where it is written. Copies of a loop's body share what does not depend on the copy. Lanes make
one operation for each vector register that they fill, and what is the same for all lanes is computed once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, inf, log2, prod

from tilewright.choose.cost.nest import Around, CallSizes
from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Fma,
    Index,
    Inside,
    Load,
    Lookup,
    Param,
    Select,
    Unary,
    Value,
    operands,
)
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.indices import chosen, symbols_in
from tilewright.core.types import DType
from tilewright.target.dots import Dot
from tilewright.target.target import Target
from tilewright.target.tiles import unit_for
from tilewright.tile.affine import coefficient
from tilewright.tile.ir import Fold, If, Place, Prefetch, Space, Stmt, Store, Update
from tilewright.tile.math import BINARY, UNARY, expand
from tilewright.tile.matrix import MatrixNest

CLASSES = ("multiply", "simple", "divide", "convert", "shuffle", "load", "store", "element", "partial", "scalar")
"""Classes of instructions: products and multiply-adds of vectors; additions, comparisons, selections and logic;
quotients and roots; conversions of types; movements among lanes; loads and stores of what lies together; elements of a
vector that move one by one; stores of a part of a vector; work on integers that lanes have no instruction for."""
MASK = Buffer("mask", types.u32, ())
"""What takes pairs of bf16 apart stands in a register."""
_FREE = (Const, Param, Bitcast)


@dataclass(frozen=True)
class Evaluated:
    """A part of a value: the depth of the loop that computes it, the copies that differ, whether lanes differ."""

    depth: int
    copies: frozenset[Sym] = frozenset()
    is_vector: bool = False


class Operations:
    """Counts the instructions of one kernel's statements."""

    def __init__(self, target: Target, sizes: CallSizes, places: Mapping[Buffer, Place]) -> None:
        self.target = target
        self.sizes = sizes
        self.places = places
        self._seen: dict[tuple[int, Value], Evaluated] = {}

    def statement(self, s: Stmt, around: Around) -> None:
        """Count one statement; loops and the bodies of conditions are the caller's."""
        match s:
            case Store():
                self.value(s.value, around)
                self._store(s.buffer, s.index, around)
            case Update():
                self._update(s, around)
            case Fold():
                self._fold(s, around)
            case If():
                self.value(s.cond, around)
            case Prefetch():
                around.running[-1].add("load", around.n_copies)

    def instruction(self, nest: MatrixNest, counts: Mapping[Sym, float], around: Around) -> None:
        """Count an instruction on matrix registers: the slots that its cycles are, and what moves its operands.

        An operand that copies share is loaded once.
        """
        node, s = around.running[-1], nest.statement
        if nest.left is None or nest.right is None or nest.groups is None:
            kind = "store" if isinstance(s.value, Load) else "simple"
            node.add(kind, around.n_copies * (counts[nest.rows.sym] if isinstance(s.value, Load) else 1.0))
            return
        unit = unit_for(self.target.tile_units, nest.left.dtype, nest.right.dtype)
        # Where there is no such instruction, its loops run one by one.
        cycles = unit.cycles if unit is not None else prod(counts.values()) / self.target.fmas_per_cycle
        node.add("multiply", around.n_copies * cycles * self.target.fmas_per_cycle)
        for x, along in ((nest.left, nest.rows), (nest.right, nest.groups)):
            copies = prod(n for sym, n in around.copies.items() if sym in symbols_in(x.index))
            node.add("load", copies * counts[along.sym])

    # --- values ---

    def value(self, v: Value, around: Around, *, free: Container[Value] = ()) -> Evaluated:
        """Count all that computes ``v``; a part that was counted in the same loop's body is there already."""
        key = (id(around.running[-1]), v)
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self._value(v, around, free)
        return found

    def _value(self, v: Value, around: Around, free: Container[Value]) -> Evaluated:
        if isinstance(v, Load):
            return self._load(v, around)
        if isinstance(v, Index | Inside):
            return self._index(v, around)
        parts = [self.value(x, around, free=free) for x in operands(v)]
        depth = max((p.depth for p in parts), default=0)
        copies = frozenset[Sym]().union(*(p.copies for p in parts))
        part = Evaluated(depth, copies, any(p.is_vector for p in parts))
        if v not in free and not isinstance(v, _FREE):
            for kind, n in _instructions(v, self.target):
                self._add(part, kind, n * self._registers(_widest(v), part, around), around)
        return part

    def _index(self, v: Index | Inside, around: Around) -> Evaluated:
        """Places are known of copies, and counted by loops; only lanes compute with them."""
        used = symbols(v.expr) if isinstance(v, Index) else frozenset[Sym]().union(*map(symbols, v.exprs))
        depth = max((around.depths.get(s, 0) for s in used), default=0)
        part = Evaluated(depth, frozenset(used & around.copies.keys()), not used.isdisjoint(around.lanes))
        if part.is_vector:
            self._add(part, "simple", self._registers(types.i32, part, around), around)
        return part

    def _load(self, v: Load, around: Around) -> Evaluated:
        inner = [self.value(i, around) for i in chosen(v.index)]
        used = symbols_in(v.index)
        is_vector = not used.isdisjoint(around.lanes) or any(p.is_vector for p in inner)
        copies = (used & around.copies.keys()).union(*(p.copies for p in inner)) - around.dots.keys()
        here = len(around.running) - 1
        space = self.places[v.buffer].space if v.buffer in self.places else Space.GLOBAL
        if space is Space.REG:
            self._keep(v.buffer, is_vector, around)
            return Evaluated(here, frozenset(copies), is_vector)
        if space is Space.TABLE:
            return Evaluated(max((around.depths.get(s, 0) for s in used), default=0), frozenset(copies), is_vector)
        part = Evaluated(here, frozenset(copies) | around.blocks, is_vector)
        n, node = self._distinct(v, part, around), around.running[-1]
        stride = None if any(p.is_vector for p in inner) else self._stride(v.buffer, v.index, around)
        dot = self._dot(v.dtype, around)
        if dot is not None:  # a group of narrow elements is read as one wide one
            node.add("load", n * (self._registers(dot.result, part, around) if part.is_vector else 1))
            node.add("simple", n * (dot.registers - 1) * 2)
            if dot.widens and part.is_vector:
                self._add(part, "convert", self._registers(dot.result, part, around), around)
            node.held.append(self._in_a_block(n, around) * dot.registers)
            if dot.registers > 1:
                node.kept[MASK] = 1.0
            return part
        for kind, count in self._accesses(v.dtype, stride, part, around):
            node.add(kind, n * count)
        node.held.append(self._in_a_block(n, around) * self._registers(v.dtype, part, around))
        if v.dtype in (types.f16, types.bf16):
            self._add(part, "convert", self._registers(v.dtype, part, around), around)
        return part

    def _in_a_block(self, n: float, around: Around) -> float:
        """How many of ``n`` loads' copies stand in one basic block: those of others are made when they are needed."""
        return n / prod(max(around.copies[s], 1.0) for s in around.blocks if s in around.copies)

    def _dot(self, dtype: DType, around: Around) -> Dot | None:
        """The narrow products that a loop around is one instruction of, where that is so."""
        sizes = {round(n) for n in around.dots.values()}
        return next((d for d in self.target.dots if dtype in (d.left, d.right) and d.group in sizes), None)

    def _keep(self, buffer: Buffer, is_vector: bool, around: Around) -> None:
        """Registers that a buffer takes in the body of a loop."""
        n_bytes = self.sizes.elements(buffer) * buffer.dtype.n_bytes
        each = self.target.vector_bytes if is_vector else buffer.dtype.n_bytes
        around.running[-1].kept[buffer] = max(n_bytes / each, 1.0)

    def _accesses(self, dtype: DType, stride: int | None, part: Evaluated, around: Around) -> list[tuple[str, float]]:
        """Instructions that read elements ``stride`` apart in neighbouring lanes (None: anywhere)."""
        if not part.is_vector:
            return [("load", 1.0)]
        n = self._registers(dtype, part, around, in_memory=True)
        if stride in (0, 1):
            return [("load", n)]
        if stride is not None and 1 < abs(stride) <= around.n_lanes:
            return [("load", n * abs(stride)), ("shuffle", n * abs(stride))]
        return [("element", float(around.n_lanes))]

    def _stride(self, buffer: Buffer, index: tuple[Dim | Value, ...], around: Around) -> int | None:
        """How many elements neighbours along the innermost loop of lanes lie apart; None where that varies."""
        offset = self.sizes.offset(buffer, index)
        strides = []
        for s in around.lanes:
            c = coefficient(offset, s)
            strides.append(known(None if c is None else self.sizes.known(c), None))
        return strides[-1] if strides else 0

    def _distinct(self, v: Load, part: Evaluated, around: Around) -> float:
        """Different elements among the copies of a load: windows that slide over each other share them."""
        moving = [s for s in around.copies if s in part.copies]
        n = 1.0
        for s in moving:
            n *= around.copies[s]
        if len(moving) < 2 or n > EFFORT.points or chosen(v.index):
            return n
        offset = self.sizes.offset(v.buffer, v.index)
        walks, apart = [], 1.0
        for s in moving:
            c = coefficient(offset, s)
            step = None if c is None else self.sizes.known(c)
            if not is_known(step) or s in around.blocks:
                apart *= around.copies[s]
            else:
                walks.append([step * k for k in range(max(round(around.copies[s]), 1))])
        return apart * len({sum(p) for p in product(*walks)})

    # --- effects ---

    def _store(self, buffer: Buffer, index: tuple[Dim | Value, ...], around: Around) -> None:
        for i in chosen(index):
            self.value(i, around)
        space = self.places[buffer].space if buffer in self.places else Space.GLOBAL
        if space in (Space.REG, Space.TABLE):
            return
        used = symbols_in(index)
        whole = Evaluated(len(around.running) - 1, frozenset(around.copies), not used.isdisjoint(around.lanes))
        node, n = around.running[-1], around.n_copies
        if buffer.dtype in (types.f16, types.bf16):
            self._add(whole, "convert", self._registers(buffer.dtype, whole, around), around)
        if not whole.is_vector:
            node.add("store", n)
            return
        stride = self._stride(buffer, index, around)
        if stride != 1 or chosen(index):
            node.add("element", n * around.n_lanes)
            return
        per_register = max(self.target.vector_bytes // buffer.dtype.n_bytes, 1)
        node.add("store", n * self._registers(buffer.dtype, whole, around, in_memory=True))
        rest = around.n_lanes % per_register
        if rest & (rest - 1):  # a power of two has a register, or an instruction, of its own
            node.add("store" if self.target.has_masks else "partial", n)

    def _update(self, s: Update, around: Around) -> None:
        """The new value and the operation; a product that is added is one instruction with the addition."""
        fused = s.op == "add" and isinstance(s.value, Binary) and s.value.op == "mul" and s.buffer.dtype.is_float
        fused = fused and self.target.has_fma
        found = (self._dot(x.dtype, around) for x in walk_value(s.value) if isinstance(x, Load))
        dot = next((d for d in found if d is not None), None)
        free: Container[Value] = set(walk_value(s.value)) if dot else {s.value} if fused else ()
        # What the one instruction does by itself is not counted among the value's own operations.
        part = self.value(s.value, around, free=free)
        used = symbols_in(s.index)
        target = Evaluated(len(around.running) - 1, frozenset(around.copies), not used.isdisjoint(around.lanes))
        is_sum_of_lanes = part.is_vector and not target.is_vector
        whole = Evaluated(target.depth, target.copies, part.is_vector or target.is_vector)
        n = self._registers(s.buffer.dtype, whole, around) * around.n_copies
        node = around.running[-1]
        if dot is not None:
            n *= dot.registers / dot.group
        if dot is not None and dot.adds_apart:
            node.add("simple", n * (dot.instructions - 1))
        for kind, count in joining(s.op, s.buffer.dtype, self.target, is_product=dot is not None or fused):
            node.add(kind, n * count)
        if is_sum_of_lanes:  # halves are added to each other until one element is left
            steps = log2(max(around.n_lanes, 2))
            node.add("shuffle", around.n_copies * steps)
            node.add("simple", around.n_copies * steps)
        self._chain(s.buffer, used, around, n_links(s.op, s.buffer.dtype))
        if self.places[s.buffer].space is Space.REG:
            self._keep(s.buffer, target.is_vector, around)
        else:
            for k, count in self._accesses(s.buffer.dtype, self._stride(s.buffer, s.index, around), target, around):
                node.add(k, count * around.n_copies)
            self._store(s.buffer, s.index, around)

    def _fold(self, s: Fold, around: Around) -> None:
        for v in s.values:
            self.value(v, around)
        used = symbols_in(s.index)
        whole = Evaluated(len(around.running) - 1, frozenset(around.copies), bool(around.lanes))
        for v in s.combiner.result:
            for x in walk_value(v):
                if not isinstance(x, (*_FREE, Load)):
                    for kind, n in _instructions(x, self.target):
                        self._add(whole, kind, n * self._registers(x.dtype, whole, around), around)
        self._chain(s.buffers[0], used, around)
        for b in s.buffers:
            if self.places[b].space is not Space.REG:
                around.running[-1].add("load", around.n_copies)
                self._store(b, s.index, around)

    def _chain(self, buffer: Buffer, used: Container[Sym], around: Around, n_instructions: int = 1) -> None:
        """Updates of one element in one iteration wait for each other, and for those of the iteration before.

        Each of them is ``n_instructions`` that wait for each other, too.
        """
        node = around.running[-1]
        if node.loop is not None and node.loop.sym in used:
            return
        links = 1.0
        for s, n in around.copies.items():
            if s not in used and s not in around.dots:
                links *= n
        latency = self.target.fma_latency * n_instructions
        if self.places[buffer].space is not Space.REG:
            latency *= 2  # a store and a load of what was stored
        node.chain = max(node.chain, links * latency)

    # --- counting ---

    def _add(self, part: Evaluated, kind: str, count: float, around: Around) -> None:
        n = count * prod(m for s, m in around.copies.items() if s in part.copies)
        around.running[min(part.depth, len(around.running) - 1)].add(kind, n)

    def _registers(self, dtype: DType, part: Evaluated, around: Around, *, in_memory: bool = False) -> float:
        """Vector registers that the elements of all lanes fill; narrow floats are computed with as f32."""
        if not part.is_vector:
            return 1.0
        wide = 4 if dtype in (types.f16, types.bf16) and not in_memory else dtype.n_bytes
        return float(max(ceil(around.n_lanes * wide / self.target.vector_bytes), 1))


def guard_of(s: Update) -> Inside | None:
    """The condition on places without which a term is a constant that joins nothing, as at an image's border."""
    found = [v for v in (s.value, *operands(s.value)) if isinstance(v, Select) and isinstance(v.b, Const)]
    return next((v.cond for v in found if isinstance(v.cond, Inside)), None)


def _widest(v: Value) -> DType:
    """The type whose registers an operation works on: comparisons give bits, of operands that are wider."""
    return max((v.dtype, *(x.dtype for x in operands(v))), key=lambda t: t.n_bytes)


def _instructions(v: Value, target: Target) -> list[tuple[str, float]]:
    """Instructions of one operation on one register, its operands' aside."""
    match v:
        case Fma():
            return [("multiply", 1.0)] if target.has_fma else [("multiply", 1.0), ("simple", 1.0)]
        case Unary() if v.op in UNARY:
            return list(_function(v.op, v.dtype, target.has_fma, target.has_f64, target.has_scalef))
        case Unary():
            return _unary(v.op, target)
        case Binary() if v.op in BINARY and v.dtype.is_float:
            return list(_function(v.op, v.dtype, target.has_fma, target.has_f64, target.has_scalef))
        case Binary():
            return _binary(v, target)
        case Select():
            return [] if isinstance(v.cond, Inside) else [("simple", 1.0)]
        case Cast():
            return _cast(v.a.dtype, v.dtype, target)
        case Lookup():
            return [("shuffle", 1.0)] if target.byte_lookup else [("simple", 6.0)]
    return []


def _unary(op: str, target: Target) -> list[tuple[str, float]]:
    if op == "sqrt":
        return [("divide", 1.0)]
    if op in ("floor", "ceil", "trunc", "rint", "rint_rest"):
        return [("simple", 1.0 if target.has_round else 6.0)]
    if op == "pow2i":
        return [("simple", 1.0 if target.has_scalef else 3.0)]
    return [("simple", 1.0)]


def _binary(v: Binary, target: Target) -> list[tuple[str, float]]:
    op, dtype = v.op, v.a.dtype
    if op == "mul":
        wide = dtype in (types.i64, types.u64)
        return [("multiply", 3.0 if wide else 1.0), *([("simple", 4.0)] if wide else [])]
    if op in ("div", "rem"):
        return [("divide", 1.0)] if dtype.is_float else [("scalar", float(max(target.vector_bytes // 4, 1)))]
    if op in ("min", "max") and v.dtype.is_float and not isinstance(v.b, Const):
        return [("simple", _extreme_instructions(target))]
    return [("simple", 1.0)]


def joining(op: str | None, dtype: DType, target: Target, *, is_product: bool) -> list[tuple[str, float]]:
    """Instructions that join a term to a register of sums; ``is_product``: the multiplication is one with the sum."""
    if op in ("min", "max") and dtype.is_float:
        return [("simple", _extreme_instructions(target))]
    return [("multiply" if is_product or op == "mul" else "simple", 1.0)]


def n_links(op: str | None, dtype: DType) -> int:
    """How many of them wait for each other."""
    return 2 if op in ("min", "max") and dtype.is_float else 1


def n_waiting(v: Value, first: Value, target: Target) -> float:
    """Instructions from ``first`` to ``v``, which is made of it: of those that wait for each other, the longest row."""
    found: dict[Value, float] = {first: 0.0}

    def of(x: Value) -> float:
        if x not in found:
            longest = max(map(of, operands(x)), default=-inf)
            found[x] = longest + (0.0 if isinstance(x, _FREE) else sum(n for _, n in _instructions(x, target)))
        return found[x]

    return max(of(v), 0.0)


def _extreme_instructions(target: Target) -> float:
    """A NaN of either operand is kept: a comparison and a choice more, which masked arithmetic has in it."""
    return 2.0 if target.has_masks else 3.0


def _cast(source: DType, to: DType, target: Target) -> list[tuple[str, float]]:
    if source is to or {source, to} <= {types.f32, types.f16, types.bf16}:
        return []  # narrow floats are converted where they are loaded and stored
    if source.is_float and to.is_integer:
        return [("convert", 1.0), ("simple", 0.0 if target.has_saturation else 4.0)]
    return [("convert", 1.0)]


@cache
def _function(op: str, dtype: DType, has_fma: bool, has_f64: bool, has_scalef: bool) -> tuple[tuple[str, float], ...]:
    """Instructions of an elementary function's expansion. Pure: threads that make it twice make the same."""
    wide = dtype if dtype in (types.f32, types.f64) else types.f32
    given = [Param(name, wide) for name in ("a", "b")]
    call = Unary(op, given[0]) if op in UNARY else Binary(op, *given)
    target = Target("", "", has_fma=has_fma, has_f64=has_f64, has_scalef=has_scalef, has_round=True)
    counts: dict[str, float] = {}
    for x in walk_value(expand(call, has_fma=has_fma, has_f64=has_f64, has_scalef=has_scalef)):
        if not isinstance(x, _FREE):
            for kind, n in _instructions(x, target):
                counts[kind] = counts.get(kind, 0.0) + n
    return tuple(counts.items())
