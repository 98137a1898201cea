"""Elements of a matrix in the registers of a warp's lanes: who holds which, and what lanes do with each other's.

In: ``warp`` loops over rows, or rows and columns, of an instruction's sums. Out: instructions of one lane.
Not its business: matrix instructions (``warps``), or which buffers are registers (``function``).

A register buffer that both loops index is a *fragment*: a lane holds four elements of each 16 by 8 of it. One that a
loop of rows alone stores has an element for each row, and the four lanes of a row all hold it; where columns update it,
each lane folds its own elements, and then the lanes exchange what they have, twice, by ``shfl.sync.bfly``.

Fragments of 16 bits are operands of the next instruction, whose registers hold two neighbours in one word: two
fragments of sums beside each other are its left operand, lane by lane. So they are kept as words, and nothing else
reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import gcd
from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.function import NO_LANES
from tilewright.codegen.llvm.registers import Key
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.values import Memo
from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx.exchange import exchanged
from tilewright.core import types
from tilewright.core.compute import Cast, Load, Value
from tilewright.core.expr import Sym
from tilewright.core.types import DType
from tilewright.target.matrices import GROUP, SUMS, Digit, Fragment, sums_of
from tilewright.tile.ir import Loop, Stmt, Store, Update, walk, written

if TYPE_CHECKING:
    from tilewright.codegen.ptx.function import PtxFunction

PAIRED = {types.bf16: "llvm.nvvm.ff2bf16x2.rn", types.f16: "llvm.nvvm.ff2f16x2.rn"}
"""What rounds two f32 to a word of two narrow elements."""
PAIR_TYPE = {types.bf16: "<2 x bfloat>", types.f16: "<2 x half>"}
PAIR = 2
"""Neighbours in a row that a lane holds."""


def bind(fn: PtxFunction, syms: Sequence[Sym], fragment: Fragment, element: int) -> None:
    """Let two loops' variables be the row and column of a lane's element; of one loop it is the row."""
    extents = (fragment.rows, fragment.columns)
    for axis, (sym, extent) in enumerate(zip(syms, extents, strict=False)):
        at = sum(d.of(element) for d in fragment.element[axis])
        value, unit = lane_part(fn, fragment.lane[axis]), gcd(*[d.weight for d in fragment.lane[axis]])
        fn.space.bind_run(sym, value.text, value.level, (at, extent - 1), at, unit)


def lane_part(fn: PtxFunction, digits: Sequence[Digit]) -> Val:
    """What the lane's number adds, as instructions: each digit is a shift, a mask and a factor."""
    total = Val("0", 0, 0)
    for d in digits:
        part = fn.lane
        for op, n, neutral in (("udiv", d.divisor, 1), ("urem", d.base, 0), ("mul", d.weight, 1)):
            part = part if n == neutral else fn.arith.instruction(op, "i64", part, Val(str(n), 0, 0))
        total = part if total.text == "0" else fn.arith.instruction("add", "i64", total, part)
    return total


def plus(fn: PtxFunction, value: Val, n: int) -> Val:
    """The sum with a number."""
    return fn.arith.instruction("add", "i64", value, Val(str(n), 0, 0)) if n else value


@contextmanager
def element_of(fn: PtxFunction, syms: Sequence[Sym], element: int, layout: Fragment = SUMS) -> Iterator[None]:
    """Inside, statements are about one of the lane's elements of a fragment of sums."""
    bind(fn, syms, layout, element)
    fn.element, fn.lane_syms, fn.lane_columns = element, tuple(syms), layout.columns
    yield
    fn.element = None
    for sym in syms:
        fn.space.unbind(sym)


def layout_of(unit: Fragment, extents: Sequence[object]) -> Fragment | None:
    """The layout of the sums that the first two of several warp loops count, of instructions with such a ``unit``."""
    if unit is not SUMS:
        return unit if tuple(extents[:2]) == (unit.rows, unit.columns) else None
    match extents[:2]:
        case (SUMS.rows, int(columns)) if columns > 0 and columns % SUMS.columns == 0:
            return sums_of(columns)
    return None


def are_rows(fn: PtxFunction, body: tuple[Stmt, ...]) -> bool:
    """Do the statements of one loop store what belongs to rows?"""
    return any(b in fn.of_rows for s in walk(body) for b in written(s))


def of_rows(fn: PtxFunction, loop: Loop, body: tuple[Stmt, ...]) -> None:
    """The statements for each row that a lane holds elements of."""
    if loop.extent != SUMS.rows:
        raise CodegenError(f"{loop.sym}: {loop.extent} rows of a warp, where an instruction's sums have {SUMS.rows}")
    for element in range(0, SUMS.count, PAIR):
        with element_of(fn, (loop.sym,), element):
            fn.body(body, NO_LANES)


def of_all_lanes(fn: PtxFunction, syms: Sequence[Sym], layout: Fragment, body: tuple[Stmt, ...]) -> bool:
    """Emit what a lane's elements are for together; False, and nothing emitted, where each is for itself."""
    stored = [b for s in walk(body) for b in written(s)]
    if layout != SUMS and any(b in fn.of_rows or (b in fn.fragments and b.dtype in PAIRED) for b in stored):
        rule = f"lanes exchange, and make operands of, sums of {SUMS.columns} columns"
        raise CodegenError(f"{stored[0].name}: {rule}, not of {layout.columns}")
    match body:
        case (Update(buffer=b) as s,) if b in fn.of_rows:
            _fold(fn, syms, s)
        case (Store(buffer=b) as s,) if b in fn.fragments and b.dtype in PAIRED:
            _store_pairs(fn, syms, s)
        case _:
            if any(b in fn.of_rows for s in walk(body) for b in written(s)):
                raise CodegenError("what belongs to rows is stored beside columns", remedy="use a loop of rows alone")
            return False
    return True


def _value(fn: PtxFunction, v: Value) -> Val:
    return fn.values.value(fn.module.expand(v), NO_LANES, Memo())


def _fold(fn: PtxFunction, syms: Sequence[Sym], s: Update) -> None:
    """``row op= value`` over the columns: of a lane's pair, of the lanes of the row, and with what the row had."""
    dtype = s.buffer.dtype
    if dtype is not types.f32:
        raise CodegenError(f"{s.buffer.name}: lanes exchange f32, not {dtype}")
    for first in range(0, SUMS.count, PAIR):
        total: Val | None = None
        for element in range(first, first + PAIR):
            with element_of(fn, syms, element):
                value = _value(fn, s.value)
            total = value if total is None else fn.arith.binary(s.op, dtype, total, value)
        assert total is not None
        distance = 1
        while distance < GROUP:
            total = fn.arith.binary(s.op, dtype, total, exchanged(fn.arith, total, VALUE_TYPE[dtype], distance))
            distance *= 2
        with element_of(fn, syms, first):
            mention = fn.mention(s, s.buffer, s.index)
            old = fn.read(mention, NO_LANES, Memo())
            fn.write(mention, fn.arith.binary(s.op, dtype, old, total), NO_LANES, Memo())


def _store_pairs(fn: PtxFunction, syms: Sequence[Sym], s: Store) -> None:
    """Narrow elements, rounded two by two: the word of a pair is the register of its first element."""
    dtype = s.buffer.dtype
    value = s.value.a if isinstance(s.value, Cast) and s.value.a.dtype is types.f32 else s.value
    for first in range(0, SUMS.count, PAIR):
        pair = []
        for element in range(first, first + PAIR):
            with element_of(fn, syms, element):
                pair.append(_value(fn, value))
        with element_of(fn, syms, first):
            fn.set_register(fn.key_of(fn.mention(s, s.buffer, s.index)), word_of(fn, dtype, *pair))


def word_of(fn: PtxFunction, dtype: DType, low: Val, high: Val) -> Val:
    """Two f32 as a word of two narrow elements, rounded."""
    made = f"call {PAIR_TYPE[dtype]} @{PAIRED[dtype]}(float {high.text}, float {low.text})"
    return fn.arith.convert("bitcast", Val(fn.writer.fresh(made), fn.writer.level, 0), PAIR_TYPE[dtype], "i32")


def words_of(fn: PtxFunction, load: Load, syms: tuple[Sym, Sym]) -> list[Val] | None:
    """A left operand that is in registers already; None for one in memory."""
    keys = word_keys(fn, load, syms)
    return [fn.register(key) for key in keys] if keys else None


def word_keys(fn: PtxFunction, load: Load, syms: tuple[Sym, Sym]) -> list[Key]:
    """The registers of a left operand's words; none for one in memory."""
    if load.buffer not in fn.fragments:
        return []
    if load.buffer.dtype not in PAIRED:
        raise CodegenError(
            f"{load.buffer.name}: {load.buffer.dtype} in registers is no operand of a matrix instruction"
        )
    mention = fn.mention(load, load.buffer, load.index)
    found: list[Key] = []
    for column in range(0, 2 * SUMS.columns, SUMS.columns):
        fn.space.bind_run(syms[0], "0", 0, (0, SUMS.rows - 1))
        fn.space.bind_const(syms[1], column)
        found += fn.keys_of(mention, syms[:1])[::PAIR]
        for sym in syms:
            fn.space.unbind(sym)
    return found
