"""Dot products: groups of narrow elements multiplied and summed into one wide lane.

In: a ``dot`` loop inside lanes. Out: one instruction where the target has it, and pairs of bf16 by shifts where not;
the operands must lie as the instruction reads them. Not its business: every other case, which ``loops`` copies out.

The pattern: ``acc[lane] += wide(a[4*k + d]) * wide(b[.., 4*lane + d])`` over ``d`` with ``a`` the same in all lanes and
both neighbours in ``d``: u8 by i8 into i32 in groups of 4 (``vpdpbusd``, AArch64's ``usdot`` or ``sdot``); i16 by i16
into i32 in groups of 2 (``vpmaddwd``, WebAssembly's ``i32x4.dot_i16x8_s``), also with bytes along the lanes, which are
widened as they are loaded (sums of two products of bytes in 16 bits, ``vpmaddubsw``, would saturate, unless one of the
bytes is known to have 7 bits: then that instruction is taken), and with codes of few bits along them, which a shift and
a mask take out of their words; bf16 by bf16 into f32 in groups of 2 (``vdpbf16ps``, which flushes denormals and rounds
sums as the instruction does). A pair of bf16 in a 32-bit word is two f32 by a shift and a mask, so targets without the
instruction read the same layout. A last, shorter group is a whole one with zeros, where the operand that walks has room
for it. Without lanes, in general registers, four bytes by four are two pairs of 16 bits (Arm's ``smlad``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.codegen.llvm.lanes import Lanes
from tilewright.codegen.llvm.lookup import looked_up
from tilewright.codegen.llvm.types import VALUE_TYPE, vector
from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Load, Lookup, Value, buffers_of_value, symbols_of_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.target.dots import (
    BF16_BY_SHIFTS,
    BF16_PAIRS,
    BYTE_PAIRS,
    BYTES,
    HALVES,
    PAIRS_OF_WASM,
    PAIRS_OF_X86,
    Dot,
)
from tilewright.tile.ir import For, Update

if TYPE_CHECKING:
    from tilewright.codegen.cpu.function import CpuFunction
    from tilewright.codegen.llvm.addresses import Mention


@dataclass(frozen=True)
class Instruction:
    """LLVM's name of a dot product up to the vector's width, and its operands' element type."""

    name: str
    element: str


INSTRUCTIONS = {
    BYTES: Instruction("llvm.x86.avx512.vpdpbusd", "i8"),
    BF16_PAIRS: Instruction("llvm.x86.avx512bf16.dpbf16ps", "bfloat"),
}


PARTS = ("and", "shr")
PAIRS = {
    PAIRS_OF_X86: {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"},
    PAIRS_OF_WASM: {4: "llvm.wasm.dot"},
}
"""LLVM's names of the products of pairs of 16-bit integers, by instruction and lanes."""
PAIRS_OF_BYTES = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512",
}  # fmt: skip
"""Pairs of bytes on x86 into 16 bits, by lanes of 32."""
_EACH_BYTE = -0x7F7F7F80
"""0x80 in every byte of a word."""
_EACH_ONE = 0x10001
"""1 in both halves of a word."""


@dataclass(frozen=True)
class _Operands:
    """The mention of the operand that lanes share, and of the one that walks along them.

    ``part`` is what is multiplied of the latter's elements: the load itself, or a shift, a mask and a look-up of it.
    ``has_room``: is its last dimension a group?
    """

    shared: Mention
    walking: Mention
    part: Value
    has_room: bool


def emit(fn: CpuFunction, f: For, extent: Dim, ctx: Lanes) -> bool:
    """Emit the loop as one dot product; False, and nothing emitted, when it does not have the pattern."""
    if HALVES in fn.module.target.dots:
        return _emit_halves(fn, f, extent, ctx)
    if not ctx.syms or ctx.guard is not None or ctx.count * 32 not in (128, 256, 512):
        return False
    if len(f.body) != 1 or not isinstance(f.body[0], Update) or f.body[0].op != "add":
        return False
    update = f.body[0]
    for dot in fn.module.target.dots:
        loads = _operands(update, dot)
        found = None if loads is None else _fits(fn, f, update, loads, dot, ctx)
        if found is None or not is_known(extent):
            continue
        if dot is BYTES and not fn.module.target.has_vnni and ctx.count != 4:  # AArch64's has 128 bits
            continue
        if extent == dot.group or (extent < dot.group and found.has_room):
            _emit(fn, f, update, found, dot, extent, ctx)
            return True
    return False


def _emit_halves(fn: CpuFunction, f: For, extent: Dim, ctx: Lanes) -> bool:
    """Four bytes times four without lanes: the even ones as two 16-bit integers, then the odd ones."""
    update = f.body[0]
    if ctx.count > 1 or ctx.guard is not None or extent != HALVES.group or len(f.body) != 1:
        return False
    loads = _operands(update, HALVES) if isinstance(update, Update) and update.op == "add" else None
    if loads is None or not isinstance(update, Update) or not all(isinstance(x, Load) for x in loads):
        return False
    step = fn.space.id_of(f.loop.sym)
    target = fn.mention(update, update.buffer, update.index)
    mentions = [fn.mention(x, x.buffer, x.index) for x in loads if isinstance(x, Load)]
    if dict(target.lin.terms).get(step) or any(p.dynamic for p in (target, *mentions)):
        return False
    if any(dict(p.lin.terms).get(step) != 1 or id(p.buffer) in fn.registers.groups for p in mentions):
        return False
    fn.space.bind_const(f.loop.sym, 0)
    words = [fn.memory.load_words(fn.address(p, ctx), 0, ctx) for p in mentions]
    total = fn.read(target, ctx, {})
    for turn in (0, 8):
        pairs = []
        for x, widened in zip(words, ("uxtb16", "sxtb16"), strict=True):
            turned = fn.arith.call("fshr", "i32", x, x, Val(str(turn), 0, 0)) if turn else x
            pairs.append(fn.arith.writer.pure(f"call i32 @llvm.arm.{widened}(i32 {turned.text})", turned.level))
        level = max(total.level, *(x.level for x in words))
        call = f"call i32 @llvm.arm.smlad(i32 {pairs[0]}, i32 {pairs[1]}, i32 {total.text})"
        total = Val(fn.arith.writer.pure(call, level), level, 0)
    fn.write(target, total, ctx, {})
    fn.space.unbind(f.loop.sym)
    return True


def _operands(update: Update, dot: Dot) -> tuple[Value, Value] | None:
    """What is multiplied, the one of the left type first: loads, or parts of what is loaded."""
    v = update.value
    if update.buffer.dtype is not dot.result or not isinstance(v, Binary) or v.op != "mul":
        return None
    a, b = _narrow(v.a), _narrow(v.b)
    if a is None or b is None:
        return None
    if (a.dtype, b.dtype) == (dot.left, dot.right):
        return a, b
    return (b, a) if (b.dtype, a.dtype) == (dot.left, dot.right) else None


def _narrow(v: Value) -> Value | None:
    return v.a if isinstance(v, Cast) and _loaded(v.a) is not None else None


def _loaded(v: Value) -> Load | None:
    """The load that ``v`` is, or is a part of: shifted and masked by numbers of no element, and looked up."""
    while isinstance(v, Lookup) or (isinstance(v, Binary) and v.op in PARTS and not buffers_of_value(v.b)):
        v = v.a
    return v if isinstance(v, Load) else None


def _fits(
    fn: CpuFunction, f: For, update: Update, parts: tuple[Value, Value], dot: Dot, ctx: Lanes
) -> _Operands | None:
    """One operand equal in all lanes and one that walks over groups; operands of one type may be swapped."""
    step = fn.space.id_of(f.loop.sym)
    loads = [x for v in parts if (x := _loaded(v)) is not None]
    target = fn.mention(update, update.buffer, update.index)
    mentions = [fn.mention(x, x.buffer, x.index) for x in loads]
    if dict(target.lin.terms).get(step) or any(p.dynamic or not ctx.is_regular(p.lin) for p in [target, *mentions]):
        return None
    if any(dict(p.lin.terms).get(step) != 1 or id(p.buffer) in fn.registers.groups for p in mentions):
        return None
    walks = tuple([dot.group * lane for lane in range(ctx.count)])
    orders = [mentions, mentions[::-1]] if dot.left is dot.right else [mentions]
    for shared, walking in orders:
        if ctx.pattern(shared.lin) is None and ctx.pattern(walking.lin) == walks:
            at = next(k for k, p in enumerate(mentions) if p is walking)
            load = loads[at]
            if parts[1 - at] is not loads[1 - at] or not _are_equal(parts[at], {f.loop.sym, *ctx.syms}):
                continue
            has_room = load.buffer.shape[-1] == dot.group and load.index[-1] == f.loop.sym
            return _Operands(shared, walking, parts[at], has_room)
    return None


def _are_equal(part: Value, along: set[Sym]) -> bool:
    """Are the shifts and masks the same for all elements that the loops ``along`` walk?"""
    if isinstance(part, Lookup):
        return _are_equal(part.a, along)
    return not isinstance(part, Binary) or (symbols_of_value(part.b).isdisjoint(along) and _are_equal(part.a, along))


def _emit(fn: CpuFunction, f: For, update: Update, operands: _Operands, dot: Dot, extent: int, ctx: Lanes) -> None:
    n, bits = ctx.count, 32 // dot.group * extent
    each = 8 * dot.right.n_bytes * dot.group
    fn.space.bind_const(f.loop.sym, 0)
    left = fn.address(operands.shared, ctx)
    word = fn.memory.load_words(left, 0, ctx) if bits == 32 else fn.memory.load_part(left, bits // 8)
    a = fn.arith.splat(word, "i32", n)
    b = fn.memory.load_words(fn.address(operands.walking, ctx), n, ctx, each)
    if dot.widens:
        b = _widened(fn, b, dot, each)
    if not isinstance(operands.part, Load):
        b = _part(fn, b, operands.part)
    if bits < 32:
        b = fn.arith.instruction("and", "i32", b, Val(str((1 << bits) - 1), 0, 0))
    mention = fn.mention(update, update.buffer, update.index)
    old = fn.arith.splat(fn.read(mention, ctx, {}), VALUE_TYPE[dot.result], n)
    if dot is BF16_BY_SHIFTS:
        new = _shifted(fn, old, a, b)
    else:
        if dot is BYTE_PAIRS:
            a, b = _pairs_of_bytes(fn, a, b), fn.arith.splat(Val(str(_EACH_ONE), 0, 0), "i32", n)
        new = _pairs(fn, old, a, b) if dot.adds_apart else _instruction(fn, old, a, b, dot)
    fn.write(mention, new, ctx, {})
    fn.space.unbind(f.loop.sym)


def _instruction(fn: CpuFunction, old: Val, a: Val, b: Val, dot: Dot) -> Val:
    target = fn.module.target
    if target.has_i8mm or target.has_dotprod:
        return _neon(fn, old, a, b)
    n, how = old.lanes, INSTRUCTIONS[dot]
    wide, narrow = vector(VALUE_TYPE[dot.result], n), vector(how.element, n * dot.group)
    x, y = (fn.arith.writer.pure(f"bitcast <{n} x i32> {v.text} to {narrow}", v.level) for v in (a, b))
    call = f"call {wide} @{how.name}.{n * 32}({wide} {old.text}, {narrow} {x}, {narrow} {y})"
    return Val(fn.writer.fresh(call), fn.writer.level, n)


def _part(fn: CpuFunction, words: Val, part: Value) -> Val:
    """The shifted, masked and looked up 16-bit elements of words of 32 bits."""
    n, pure = words.lanes, fn.arith.writer.pure

    def element(v: Value) -> Val:
        if isinstance(v, Lookup):
            return looked_up(fn.arith, v.levels, element(v.a), v.dtype)
        if not isinstance(v, Binary):
            return Val(pure(f"bitcast <{n} x i32> {words.text} to <{2 * n} x i16>", words.level), words.level, 2 * n)
        return fn.arith.binary(v.op, v.dtype, element(v.a), fn.values.value(v.b, Lanes(), {}))

    made = element(part)
    return Val(pure(f"bitcast <{2 * n} x i16> {made.text} to <{n} x i32>", made.level), made.level, n)


def _widened(fn: CpuFunction, b: Val, dot: Dot, bits: int) -> Val:
    """Groups of ``bits`` bits as words of 32: each element with its sign, or without where it has none."""
    n, narrow, wide = b.lanes, f"i{8 * dot.right.n_bytes}", f"i{8 * dot.left.n_bytes}"
    pure, count = fn.arith.writer.pure, b.lanes * dot.group
    x = pure(f"bitcast <{n} x i{bits}> {b.text} to <{count} x {narrow}>", b.level)
    how = "sext" if dot.right.is_signed else "zext"
    y = pure(f"{how} <{count} x {narrow}> {x} to <{count} x {wide}>", b.level)
    return Val(pure(f"bitcast <{count} x {wide}> {y} to <{n} x i32>", b.level), b.level, n)


def _pairs(fn: CpuFunction, old: Val, a: Val, b: Val) -> Val:
    """Words of two 16-bit integers each: the sums of their two products, added to the sums so far."""
    n, level = old.lanes, max(a.level, b.level)
    pure = fn.arith.writer.pure
    x, y = (pure(f"bitcast <{n} x i32> {v.text} to <{2 * n} x i16>", v.level) for v in (a, b))
    name = PAIRS[fn.module.target.word_pairs][n]
    call = pure(f"call <{n} x i32> @{name}(<{2 * n} x i16> {x}, <{2 * n} x i16> {y})", level)
    return fn.arith.instruction("add", "i32", old, Val(call, level, n))


def _pairs_of_bytes(fn: CpuFunction, a: Val, b: Val) -> Val:
    """Words of four bytes each, of ``b`` with 7 bits: the sums of two products each, as two 16-bit integers."""
    n, level, pure = max(a.lanes, b.lanes), max(a.level, b.level), fn.arith.writer.pure
    x, y = (pure(f"bitcast <{n} x i32> {v.text} to <{4 * n} x i8>", v.level) for v in (a, b))
    call = f"call <{2 * n} x i16> @{PAIRS_OF_BYTES[n]}(<{4 * n} x i8> {x}, <{4 * n} x i8> {y})"
    return Val(pure(f"bitcast <{2 * n} x i16> {pure(call, level)} to <{n} x i32>", level), level, n)


def _neon(fn: CpuFunction, old: Val, a: Val, b: Val) -> Val:
    """u8 by i8 on AArch64: ``usdot``; or ``sdot`` of ``a - 128``, and 128 times the sums of ``b``, which rows share."""
    if fn.module.target.has_i8mm:
        return _neon_dot(fn, "usdot", old, a, b)
    zero = Val("zeroinitializer", 0, old.lanes)
    sums = _neon_dot(fn, "sdot", zero, fn.arith.splat(Val(str(_EACH_BYTE), 0, 0), "i32", old.lanes), b)
    signed = fn.arith.instruction("xor", "i32", a, Val(str(_EACH_BYTE), 0, 0))
    return fn.arith.instruction("sub", "i32", _neon_dot(fn, "sdot", old, signed, b), sums)


def _neon_dot(fn: CpuFunction, name: str, old: Val, a: Val, b: Val) -> Val:
    """The instruction on 128 bits; ``a`` and ``b`` are words of four bytes."""
    pure, level = fn.arith.writer.pure, max(old.level, a.level, b.level)
    x, y = (pure(f"bitcast <4 x i32> {v.text} to <16 x i8>", v.level) for v in (a, b))
    operands = f"<4 x i32> {old.text}, <16 x i8> {x}, <16 x i8> {y}"
    return Val(pure(f"call <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8({operands})", level), level, 4)


def _shifted(fn: CpuFunction, old: Val, a: Val, b: Val) -> Val:
    """``old + low(a) * low(b) + high(a) * high(b)`` for words that hold two bf16 each."""
    new = old
    for op, number in (("shl", 16), ("and", -0x10000)):
        x, y = (
            fn.arith.convert("bitcast", fn.arith.instruction(op, "i32", v, Val(str(number), 0, 0)), "i32", "float")
            for v in (a, b)
        )
        new = fn.arith.fma(types.f32, x, y, new)
    return new
