"""Runs of neighbouring sums: lanes of a row exchange their pairs, so that each stores whole accesses.

In: two ``warp`` loops, of 16 rows and of runs of columns, with a ``vector`` loop of a run's length in them. Out: what
one lane does of them. Not its business: which lane has which run (``target.matrices.runs_of``), matrix instructions.

A lane holds pairs of an instruction's sums, four bytes of narrow elements: too few for memory, where eight rows of 16
bytes would be one access of a warp. In each exchange a lane keeps one of two pairs, or of what they have become, and
hands the other one to the lane beside it. Where all that reads the sums rounds them to 16 bits first, they are rounded
before, and half as many words change hands. All lanes exchange, whatever conditions in the loops say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm import convert
from tilewright.codegen.llvm.addresses import Mention
from tilewright.codegen.llvm.function import NO_LANES
from tilewright.codegen.llvm.registers import Key
from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx import fragments
from tilewright.codegen.ptx.exchange import exchanged
from tilewright.core.compute import Buffer, Cast, Load, Value, operands
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym
from tilewright.core.types import DType
from tilewright.target.matrices import GROUP, RUN_LENGTHS, SUMS, runs_of
from tilewright.tile.ir import Loop, walk
from tilewright.tile.rewrite import Body, loads_of, rewrite_values, values_of

if TYPE_CHECKING:
    from tilewright.codegen.ptx.function import PtxFunction


def emit(fn: PtxFunction, loops: Sequence[Loop], of_run: Loop, body: Body) -> None:
    """The statements for each run that a lane has; ``CodegenError`` where lanes can't have them."""
    if fn.unit is not SUMS:
        raise CodegenError("runs of sums whose lanes hold no pairs of neighbours")
    rows, runs, length = (x.extent for x in (*loops, of_run))
    if rows != SUMS.rows or not is_known(runs) or runs % GROUP or not is_known(length) or length not in RUN_LENGTHS:
        rule = f"{SUMS.rows} by a multiple of {GROUP} runs of {', '.join(map(str, RUN_LENGTHS))}"
        raise CodegenError(f"warp loops of {rows} by {runs} runs of {length}: {rule}")
    fn.products.settle({x.buffer for s in walk(body) for x in loads_of(s)})
    rounded = {b: dtype for b in fn.fragments if (dtype := _rounded_to(b, body)) is not None}
    narrow = {b: Buffer(b.name, dtype, b.shape) for b, dtype in rounded.items()}
    fn.layouts.update({n: fn.layouts[b] for b, n in narrow.items()})
    body = _without_rounding(body, narrow)
    fn.rewritten.append(body)  # what the analysis knows of a statement it knows by its identity
    wide = {n: b for b, n in narrow.items()}
    syms = (*[x.sym for x in loops], of_run.sym)
    layout = runs_of(runs, length)
    pairs: dict[Key, tuple[DType, list[Val]]] = {}
    for x in (x for s in walk(body) for x in loads_of(s)):
        if x.buffer in wide or x.buffer in fn.fragments:
            keys = _keys(fn, fn.mention(x, x.buffer, x.index), syms, (runs, length))
            of = id(wide.get(x.buffer, x.buffer))
            pairs[keys[0]] = (x.dtype, [fn.register((of, number)) for _, number in keys])
    for element in range(layout.count):
        half, strip = element % 2, element // 2
        fn.runs = {
            name: _run(fn, dtype, _pairs(registers, half, strip, length)) for name, (dtype, registers) in pairs.items()
        }
        with fragments.element_of(fn, syms[:2], element, layout):
            fn.lane_syms = syms
            fn.body(body, NO_LANES)
    fn.runs = {}


def _rounded_to(buffer: Buffer, body: Body) -> DType | None:
    """The dtype of 16 bits to which all that reads the buffer rounds it first; None where something does not."""
    found = set[DType | None]()
    for top in chain.from_iterable(values_of(s) for s in walk(body)):
        found |= {None for x in (top,) if isinstance(x, Load) and x.buffer is buffer}
        for v in walk_value(top):
            if any(isinstance(x, Load) and x.buffer is buffer for x in operands(v)):
                found.add(v.dtype if isinstance(v, Cast) else None)
    (kind,) = found if len(found) == 1 else (None,)
    return kind if kind in fragments.PAIRED else None


def _without_rounding(body: Body, narrow: Mapping[Buffer, Buffer]) -> Body:
    """The statements with loads of sums that are narrow already where they were cast."""

    def change(x: Value) -> Value | None:
        match x:
            case Cast(a=Load(buffer=b, index=index)) if b in narrow:
                return Load(narrow[b], index)
        return None

    return rewrite_values(body, change)


def of_mention(fn: PtxFunction, mention: Mention) -> Val | None:
    """The run that a load of sums means, in lanes of the loop around it; None for any other load."""
    if mention.buffer not in fn.layouts:
        return None
    found = fn.runs.get(fn.keys_of(mention, fn.lane_syms)[0])
    if found is None:
        raise CodegenError(f"{mention.buffer.name}: no run of sums lies there")
    return found


def _keys(fn: PtxFunction, mention: Mention, syms: Sequence[Sym], extents: tuple[int, int]) -> list[Key]:
    """A lane's elements of the fragment that a load is of; ``CodegenError`` where runs are no neighbours in it."""
    _, run, lane = (fn.space.id_of(s) for s in syms)
    steps, (n_runs, length) = dict(mention.lin.terms), extents
    if steps.get(run) != length or steps.get(lane) != 1 or fn.layouts[mention.buffer].columns != n_runs * length:
        raise CodegenError(f"{mention.buffer.name}: {n_runs} runs of {length} are not a row of its sums")
    return fn.keys_of(mention, syms, n_runs * length)


def _pairs(sums: Sequence[Val], half: int, strip: int, length: int) -> list[tuple[Val, Val]]:
    """The pairs of which a strip of four runs is made in one of a lane's two rows, by eights of columns."""
    n_eights = length // fragments.PAIR
    first = [SUMS.count * eight + fragments.PAIR * half for eight in range(n_eights * strip, n_eights * (strip + 1))]
    return [(sums[k], sums[k + 1]) for k in first]


def _run(fn: PtxFunction, dtype: DType, pairs: Sequence[tuple[Val, Val]]) -> Val:
    """What the lane has of its row behind the exchanges, as lanes of a vector."""
    if dtype not in fragments.PAIRED:
        return fn.arith.in_lanes(list(chain.from_iterable(_exchange(fn, pairs, "float"))), "float")
    words = [(fragments.word_of(fn, dtype, low, high),) for low, high in pairs]
    packed = fn.arith.in_lanes([w for (w,) in _exchange(fn, words, "i32")], "i32")
    n = fragments.PAIR * len(pairs)
    bits = fn.writer.fresh(f"bitcast <{len(pairs)} x i32> {packed.text} to <{n} x i16>")
    return convert.from_memory(fn.arith, dtype, Val(bits, fn.writer.level, n))


def _exchange(fn: PtxFunction, items: Sequence[tuple[Val, ...]], element: str) -> list[tuple[Val, ...]]:
    """Of as many items as lanes exchange, the lane keeps its own one and gets those of the others, in their order."""
    found = list(items)
    bit = 1
    while bit < len(found):
        is_upper = _has_bit(fn, bit)
        for at in range(len(found)):
            if at & bit:
                continue
            low, high = found[at], found[at | bit]
            handed = [fn.arith.choose(is_upper, a, b, element) for a, b in zip(low, high, strict=True)]
            kept = [fn.arith.choose(is_upper, b, a, element) for a, b in zip(low, high, strict=True)]
            came = [exchanged(fn.arith, x, element, bit) for x in handed]
            found[at] = tuple(fn.arith.choose(is_upper, c, k, element) for c, k in zip(came, kept, strict=True))
            found[at | bit] = tuple(fn.arith.choose(is_upper, k, c, element) for c, k in zip(came, kept, strict=True))
        bit *= 2
    return found


def _has_bit(fn: PtxFunction, bit: int) -> Val:
    part = fn.arith.instruction("and", "i64", fn.lane, Val(str(bit), 0, 0))
    return Val(fn.writer.pure(f"icmp ne i64 {part.text}, 0", part.level), part.level, 0)
