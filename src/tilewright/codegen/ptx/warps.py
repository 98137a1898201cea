"""``warp`` loops: iterations that the lanes of a warp share out among themselves.

In: perfectly nested ``warp`` loops. Out: what one lane does of them. Not its business: which instructions there
are and how they lay matrices out (``mma``), all other loops (``loops``).

Three forms, told apart by how many loops there are:

* One: lane ``l`` of 32 runs iterations ``l``, ``l + 32``, ... Where registers are stored by its variable, it counts
  rows of an instruction's sums instead, and each lane runs those rows of which it holds elements (``fragments``). But
  registers whose first index is such a loop of as many iterations as there are lanes are the lane's own. An update of
  registers that the loop does not index, alone in such a loop, combines what the lanes have by exchanges among them, so
  that each of them has the result.
* Two, of the extents of an instruction's sums: a lane runs the iterations whose elements it holds. A ``reg`` buffer
  that is indexed by them is the warp's, and its elements lie in the lanes' registers.
  With a ``vector`` loop inside they count runs of neighbours, which lanes have once they exchanged sums (``runs``).
* Three, of the extents of an instruction: ``sums[m, n] add= mul(cast(left[m, k]), cast(right[k, n]))`` is that
  instruction. Operands in shared memory are loaded by ``ldmatrix`` where rows of 16 bytes lie as it wants them, which
  is one instruction for four registers; any others element by element. A right operand in swizzled memory makes it one
  of four warps (``warpgroups``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm import convert
from tilewright.codegen.llvm.function import NO_LANES
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.values import Memo
from tilewright.codegen.llvm.writer import Val
from tilewright.codegen.ptx import fragments, runs, warpgroups
from tilewright.codegen.ptx.dialect import InstructionTemplate
from tilewright.codegen.ptx.exchange import exchanged
from tilewright.core.compute import Binary, Buffer, Cast, IndexLike, Inside, Load
from tilewright.core.dims import is_known, numbers
from tilewright.core.expr import Dim, Sym, substitute, symbols
from tilewright.core.indices import symbols_in
from tilewright.core.types import DType
from tilewright.target.matrices import SUMS, Digit, Fragment, MatrixShape
from tilewright.tile.affine import coefficient
from tilewright.tile.grid import run_loop, through_conditions, warp_nest
from tilewright.tile.ir import For, Kernel, Kind, Loop, Space, Stmt, Update, walk
from tilewright.tile.rewrite import places_of, rewrite_accesses

if TYPE_CHECKING:
    from tilewright.codegen.llvm.addresses import Mention
    from tilewright.codegen.ptx.function import PtxFunction

ROWS_OF_REGISTER = 8
ROW_BYTES = 16
"""What one lane's address stands for in ``ldmatrix``: a row of eight elements of 16 bits."""


def emit(fn: PtxFunction, f: For) -> None:
    """What one lane does of the loops; ``CodegenError`` for a nest that is none of the forms."""
    loops, body = warp_nest((f,))
    conditions, inside = through_conditions(body, Inside)
    least = _least([e for x in conditions for e in x.exprs], loops) if len(loops) == len(SUMS.lane) else None
    if least is None or fn.values.truth(least, NO_LANES) is not None:
        _emit(fn, loops, body)
        return
    # Where a tile is whole, which most are, lanes need no branch for each element.
    fn.rewritten.append(inside)
    whole = fn.values.value(least, NO_LANES, Memo())
    fn.loops.branch(whole, lambda: _emit(fn, loops, inside))
    fn.loops.branch(fn.arith.instruction("xor", "i1", whole, Val("true", 0, 0)), lambda: _emit(fn, loops, body))


def _least(conditions: Sequence[Dim], loops: Sequence[Loop]) -> Inside | None:
    """Do the conditions hold in all iterations of the loops? None where there is nothing to ask, or no telling."""
    worst = list(conditions)
    for loop in loops:
        for k, e in enumerate(worst):
            step = coefficient(e, loop.sym)
            if not is_known(step) or not is_known(loop.extent):
                return None
            worst[k] = substitute(e, {loop.sym: loop.extent - 1 if step < 0 else 0})
    return Inside(tuple(worst)) if worst else None


def _emit(fn: PtxFunction, loops: Sequence[Loop], body: tuple[Stmt, ...]) -> None:
    extents = tuple(loop.extent for loop in loops)
    syms = tuple(loop.sym for loop in loops)
    update = body[0] if len(body) == 1 and len(loops) == 1 else None
    if isinstance(update, Update) and syms[0] not in symbols_in(update.index):
        _across_lanes(fn, loops[0], update)
    elif len(loops) == 1 and fragments.are_rows(fn, body):
        fragments.of_rows(fn, loops[0], body)
    elif len(loops) == 1 and is_known(extents[0]):
        _shared_out(fn, syms[0], extents[0], body)
    elif len(loops) == len(SUMS.lane) and (of_run := run_loop(body)) is not None:
        runs.emit(fn, loops, of_run, body)
    elif len(loops) == len(SUMS.lane) and (layout := fragments.layout_of(fn.unit, extents)) is not None:
        if not fragments.of_all_lanes(fn, syms, layout, body):
            of_sums(fn, syms, layout, body)
    elif len(loops) == 3:
        _product(fn, syms, extents, body)
    else:
        rule = f"one loop, two of {SUMS.rows} by a multiple of {SUMS.columns}, or three of an instruction"
        raise CodegenError(f"warp loops of {' by '.join(map(str, extents))} iterations: {rule}")


def _shared_out(fn: PtxFunction, sym: Sym, extent: int, body: tuple[Stmt, ...]) -> None:
    lanes = fn.module.kernel.lanes
    for start in range(0, extent, lanes):
        value = fragments.plus(fn, fn.lane, start)
        fn.space.bind_run(sym, value.text, 0, (start, min(start + lanes, extent) - 1))
        if start + lanes <= extent:
            fn.body(body, NO_LANES)
        else:
            bit = fn.arith.instruction("icmp slt", "i64", value, Val(str(extent), 0, 0))
            fn.loops.branch(bit, lambda: fn.body(body, NO_LANES))
        fn.space.unbind(sym)


def _across_lanes(fn: PtxFunction, loop: Loop, update: Update) -> None:
    """Every lane's value into the element; halves of the warp exchange theirs, then halves of those, and so on."""
    sym, lanes = loop.sym, fn.module.kernel.lanes
    if loop.extent != lanes:
        raise CodegenError(f"{sym.name}: lanes combine what they have by one update in a loop of {lanes}")
    fn.space.bind_run(sym, fn.lane.text, 0, (0, lanes - 1))
    value = fn.values.value(fn.module.expand(update.value), NO_LANES, {})
    fn.space.unbind(sym)
    dtype = update.buffer.dtype
    distance = lanes // 2
    while distance:
        value = fn.arith.binary(update.op, dtype, value, exchanged(fn.arith, value, VALUE_TYPE[dtype], distance))
        distance //= 2
    mention = fn.mention(update, update.buffer, update.index)
    fn.write(mention, fn.arith.binary(update.op, dtype, fn.read(mention, NO_LANES, {}), value), NO_LANES, {})


def own_registers(kernel: Kernel) -> Kernel:
    """The kernel without the first dimension of what each lane has for itself, as one lane sees it."""
    lanes = {
        s.loop.sym
        for s in walk(kernel.body)
        if isinstance(s, For)
        and s.loop.kind is Kind.WARP
        and s.loop.extent == kernel.lanes
        and len(warp_nest((s,))[0]) == 1
    }
    if not lanes:
        return kernel
    first: dict[Buffer, set[IndexLike]] = {}
    for s in walk(kernel.body):
        for b, index in places_of(s):
            first.setdefault(b, set()).update(index[:1])
    own = {
        p.buffer: Buffer(p.buffer.name, p.buffer.dtype, p.buffer.shape[1:])
        for p in kernel.places
        if p.space is Space.REG and p.buffer.shape[:1] == (kernel.lanes,) and first.get(p.buffer, {0}) <= lanes
    }
    body = rewrite_accesses(kernel.body, lambda b, ix: Load(own[b], ix[1:]) if b in own else None)
    places = tuple(replace(p, buffer=own.get(p.buffer, p.buffer)) for p in kernel.places)
    return replace(kernel, body=body, places=places)


def of_sums(fn: PtxFunction, syms: Sequence[Sym], layout: Fragment, body: tuple[Stmt, ...]) -> None:
    """The statements for each element that a lane holds."""
    for element in range(layout.count):
        with fragments.element_of(fn, syms, element, layout):
            fn.body(body, NO_LANES)


# --- one instruction ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Operand:
    """A matrix that an instruction reads: the load, and the variables of its rows and columns."""

    load: Load
    syms: tuple[Sym, Sym]
    fragment: Fragment


def _product(fn: PtxFunction, syms: Sequence[Sym], extents: Sequence[Dim], body: tuple[Stmt, ...]) -> None:
    m, n, k = syms
    update = body[0] if len(body) == 1 else None
    match update:
        case Update(op="add", value=Binary(op="mul", a=Cast(a=Load() as left), b=Cast(a=Load() as right))):
            sizes = tuple(numbers(extents))
            same = left.dtype is right.dtype and update.buffer in fn.fragments
            if same and right.buffer in fn.addresses.swizzled:
                warpgroups.emit(fn, (m, n, k), sizes, update, (left, right))
                return
            found = _instruction_for(fn, left.dtype, sizes) if same else None
        case _:
            found = None
    if found is None or not isinstance(update, Update):
        rule = "sums[m, n] add= mul(cast(left[m, k]), cast(right[k, n])) of an instruction's extents and dtypes"
        raise CodegenError(f"three warp loops that are no matrix instruction: {rule}")
    shape, instruction = found
    a = _registers(fn, _Operand(left, (m, k), shape.left), instruction)
    b = _registers(fn, _Operand(right, (k, n), shape.right), instruction)
    for sym, extent in ((m, shape.sums.rows), (n, shape.sums.columns)):
        fn.space.bind_run(sym, "0", 0, (0, extent - 1))
    keys = fn.keys_of(fn.mention(update, update.buffer, update.index), (m, n))
    for sym in (m, n):
        fn.space.unbind(sym)
    made = instruction.multiply(fn.arith, a, b, [fn.register(key) for key in keys])
    for key, value in zip(keys, made, strict=True):
        fn.set_register(key, value)


def _instruction_for(
    fn: PtxFunction, dtype: DType, extents: tuple[int, ...]
) -> tuple[MatrixShape, InstructionTemplate] | None:
    """The GPU's shape for operands of a dtype and loops of these extents, and its instruction."""
    shape = next((x for x in fn.module.target.gpu.shapes if x.dtype is dtype and x.extents == extents), None)
    return None if shape is None else (shape, fn.module.dialect.instructions[shape])


def _registers(fn: PtxFunction, operand: _Operand, instruction: InstructionTemplate) -> list[str]:
    """A lane's registers of an operand."""
    words = fragments.words_of(fn, operand.load, operand.syms)
    if words is None and fn.module.target.gpu.has_mma:
        words = _by_ldmatrix(fn, operand)
    if words is None:
        words = _by_elements(fn, operand)
    return instruction.operands(fn.arith, words)


def _by_elements(fn: PtxFunction, operand: _Operand) -> list[Val]:
    """Pairs of elements as words, each loaded from wherever it lies."""
    halves = []
    for element in range(operand.fragment.count):
        fragments.bind(fn, operand.syms, operand.fragment, element)
        value = fn.load(operand.load, NO_LANES, {})
        halves.append(_bits(fn, value, operand.load.dtype))
        for sym in operand.syms:
            fn.space.unbind(sym)
    words = []
    for low, high in zip(halves[::2], halves[1::2], strict=True):
        wide = fn.arith.convert("zext", high, "i16", "i32")
        upper = fn.arith.instruction("shl", "i32", wide, Val("16", 0, 0))
        words.append(fn.arith.instruction("or", "i32", upper, fn.arith.convert("zext", low, "i16", "i32")))
    return words


def _bits(fn: PtxFunction, value: Val, dtype: DType) -> Val:
    return convert.to_memory(fn.arith, dtype, value)


def _by_ldmatrix(fn: PtxFunction, operand: _Operand) -> list[Val] | None:
    """All registers by one ``ldmatrix``, or None where the operand does not lie as that reads.

    It reads eight rows of 16 bytes for each register; lane ``8*j + i`` says where row ``i`` of register ``j`` begins.
    With ``trans``, rows of memory are columns of the matrix: so it reads a right operand whose columns are neighbours.
    """
    if fn.analysis.places[id(operand.load.buffer)].space is not Space.SHARED:
        return None
    mention = fn.mention(operand.load, operand.load.buffer, operand.load.index)
    row, column = operand.syms
    is_left = operand.fragment.count == 8
    steps = dict(mention.lin.terms)
    along_column = steps.get(fn.space.id_of(column)) == 1
    along_row = steps.get(fn.space.id_of(row)) == 1
    is_apart = not any(symbols(atom) & {row, column} for atom, _ in mention.lin.others)
    if mention.dynamic or not is_apart or not (along_column or along_row):
        return None
    # ``lines`` go from one row of memory to the next, ``chunks`` by eight elements along one.
    lines, chunks = (row, column) if along_column else (column, row)
    at_line, at_chunk = _LANE_ROWS[is_left, along_column]
    line, chunk = fragments.lane_part(fn, at_line), fragments.lane_part(fn, at_chunk)

    def located() -> Val | None:
        pointer = _row_address(fn, mention, lines, chunks, line)
        return fn.addresses.advance(pointer, chunk) if pointer is not None and at_chunk else pointer

    address = located()
    if address is None:
        return None
    # A left operand lies as its registers hold it where neighbours are in a row, a right one where in a column.
    is_turned = is_left is not along_column
    copy = None if is_left else _next_columns(fn, mention, steps.get(fn.space.id_of(column)))
    if copy is not None:
        sym, number, n_bytes = copy
        fn.space.bind_const(sym, number + 1)
        following = located()
        fn.space.bind_const(sym, number)
        if following is not None:
            return _ldmatrix_of_two(fn, (address, following), n_bytes, is_turned=is_turned)
    return _ldmatrix(fn, address, 4 if is_left else 2, is_turned=is_turned)


def _next_columns(fn: PtxFunction, mention: Mention, step: int | None) -> tuple[Sym, int, int] | None:
    """A loop whose next copy reads the columns beside these, the copy's number, and how many bytes they are apart.

    Copies go in pairs, so that each operand is loaded once; None for the second one of a pair, and for a last one.
    """
    for sym in symbols(mention.lin.dim):
        sid = fn.space.id_of(sym)
        number, extent, coef = fn.space.const[sid], fn.space.copies.get(sid, 0), dict(mention.lin.terms).get(sid)
        if number is None or coef is None or step is None or coef != SUMS.columns * step:
            continue
        if number % 2 == 0 and number + 1 < extent:
            return sym, number, coef * mention.buffer.dtype.n_bytes
    return None


_LANE_ROWS: dict[tuple[bool, bool], tuple[tuple[Digit, ...], tuple[Digit, ...]]] = {
    (True, True): ((Digit(1, 16, 1),), (Digit(16, 2, ROW_BYTES),)),
    (True, False): ((Digit(1, 8, 1), Digit(16, 2, 8)), (Digit(8, 2, ROW_BYTES),)),
    (False, True): ((Digit(1, 16, 1),), ()),
    (False, False): ((Digit(1, 8, 1),), (Digit(8, 2, ROW_BYTES),)),
}
"""Which row of memory each lane gives, and how many bytes along it; by: is it the left operand, are neighbours in a
row of the matrix. Registers of the left operand go down its rows first, so where rows of memory are its columns, the
lanes' second eight stand beside the first."""


def _row_address(fn: PtxFunction, mention: Mention, lines: Sym, chunks: Sym, at_line: Val) -> Val | None:
    """Where a lane's row begins; None where it may not be a multiple of 16 bytes."""
    fn.space.bind_run(lines, at_line.text, at_line.level, (0, 15))
    fn.space.bind_const(chunks, 0)
    found = fn.addresses.locate(mention, NO_LANES, _no_index)
    for sym in (lines, chunks):
        fn.space.unbind(sym)
    if fn.memory.alignment(found, found.offset) < ROW_BYTES:
        return None
    return Val(fn.addresses.pointer(found), fn.writer.level, 0)


def _no_index(_: object) -> Val:
    raise CodegenError("an operand of a matrix instruction is indexed by data")


def _ldmatrix_of_two(fn: PtxFunction, addresses: tuple[Val, Val], apart_bytes: int, *, is_turned: bool) -> list[Val]:
    """Registers of a right operand, and those of the one beside it, by one instruction: its last lanes give those rows.

    The second one's wait for the copy that asks for them.
    """
    first, second = ((fn.writer.block, a.text, 2, is_turned) for a in addresses)
    if first not in fn.operands:
        half = fragments.lane_part(fn, (Digit(2 * ROWS_OF_REGISTER, 2, apart_bytes),))
        words = _ldmatrix(fn, fn.addresses.advance(addresses[0], half), 4, is_turned=is_turned)
        fn.operands[first], fn.operands[second] = words[:2], words[2:]
    return fn.operands[first]


def _ldmatrix(fn: PtxFunction, address: Val, count: int, *, is_turned: bool) -> list[Val]:
    """Registers of so many eights of rows; loaded once for all instructions that read them between two writes."""
    key = (fn.writer.block, address.text, count, is_turned)
    if key in fn.operands:
        return fn.operands[key]
    kind = f"{{{', '.join(['i32'] * count)}}}"
    at = fn.writer.fresh(f"addrspacecast ptr {address.text} to ptr addrspace(3)")
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if is_turned else ''}.b16.p3"
    all_of = fn.writer.fresh(f"call {kind} @{name}(ptr addrspace(3) {at})")
    level = fn.writer.level
    words = [Val(fn.writer.fresh(f"extractvalue {kind} {all_of}, {k}"), level, 0) for k in range(count)]
    fn.operands[key] = words
    return words
