"""Dot-product instructions: groups of narrow elements multiplied and summed into one wide lane.

In: a ``dot`` loop inside lanes. Out: one instruction, where the target has it and the operands lie as it reads them.
Not its business: every other case, which ``loops`` copies out.

The pattern: ``acc[lane] += wide(a[4*k + d]) * wide(b[.., 4*lane + d])`` over ``d`` with ``a`` the same in all lanes and
both neighbours in ``d``: u8 by i8 into i32 in groups of 4 (``vpdpbusd``), bf16 by bf16 into f32 in groups of 2
(``vdpbf16ps``, which flushes denormals and rounds sums as the instruction does).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.codegen.lanes import Lanes
from tilewright.codegen.types import VALUE_TYPE, vector
from tilewright.codegen.writer import Val
from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Load, Value
from tilewright.core.types import DType
from tilewright.tile.ir import For, Update

if TYPE_CHECKING:
    from tilewright.codegen.function import Function


@dataclass(frozen=True)
class Instruction:
    """One dot product: the element types, the group's size, and LLVM's name up to the vector's width."""

    left: DType
    right: DType
    result: DType
    group: int
    name: str
    element: str


VNNI = Instruction(types.u8, types.i8, types.i32, 4, "llvm.x86.avx512.vpdpbusd", "i8")
BF16 = Instruction(types.bf16, types.bf16, types.f32, 2, "llvm.x86.avx512bf16.dpbf16ps", "bfloat")


def emit(fn: Function, f: For, extent: object, ctx: Lanes) -> bool:
    """Emit the loop as one instruction; False, and nothing emitted, when it does not have the pattern."""
    target = fn.module.target
    available = [i for i, has in ((VNNI, target.has_vnni), (BF16, target.has_bf16)) if has]
    if not available or not ctx.syms or ctx.guard is not None or ctx.count * 32 not in (128, 256, 512):
        return False
    if len(f.body) != 1 or not isinstance(f.body[0], Update) or f.body[0].op != "add":
        return False
    update = f.body[0]
    for instruction in available:
        loads = _operands(update, instruction)
        if extent == instruction.group and loads is not None and _fits(fn, f, update, loads, ctx):
            _emit(fn, f, update, loads, instruction, ctx)
            return True
    return False


def _operands(update: Update, i: Instruction) -> tuple[Load, Load] | None:
    """The two loads, the one of the left type first."""
    v = update.value
    if update.buffer.dtype is not i.result or not isinstance(v, Binary) or v.op != "mul":
        return None
    a, b = _narrow(v.a), _narrow(v.b)
    if a is None or b is None:
        return None
    if (a.dtype, b.dtype) == (i.left, i.right):
        return a, b
    return (b, a) if (b.dtype, a.dtype) == (i.left, i.right) else None


def _narrow(v: Value) -> Load | None:
    return v.a if isinstance(v, Cast) and isinstance(v.a, Load) else None


def _fits(fn: Function, f: For, update: Update, loads: tuple[Load, Load], ctx: Lanes) -> bool:
    """One operand equal in all lanes and one that walks over groups; swapped operands of one type are put in order."""
    step = fn.space.id_of(f.loop.sym)
    target = fn.plan(update, update.buffer, update.index)
    plans = [fn.plan(x, x.buffer, x.index) for x in loads]
    if dict(target.lin.terms).get(step) or any(p.dynamic or not ctx.is_regular(p.lin) for p in [target, *plans]):
        return False
    if any(dict(p.lin.terms).get(step) != 1 or id(p.buffer) in fn.registers.groups for p in plans):
        return False
    group = 4 if loads[0].dtype is types.u8 else 2
    walking = tuple([group * lane for lane in range(ctx.count)])
    return ctx.pattern(plans[0].lin) is None and ctx.pattern(plans[1].lin) == walking


def _emit(fn: Function, f: For, update: Update, loads: tuple[Load, Load], i: Instruction, ctx: Lanes) -> None:
    n = ctx.count
    fn.space.bind_const(f.loop.sym, 0)
    left, right = (fn.address(fn.plan(x, x.buffer, x.index), ctx) for x in loads)
    a = fn.arith.splat(fn.memory.load_words(left, 0, ctx), "i32", n)
    b = fn.memory.load_words(right, n, ctx)
    plan = fn.plan(update, update.buffer, update.index)
    old = fn.arith.splat(fn.read(plan, ctx, {}), VALUE_TYPE[i.result], n)
    wide, narrow = vector(VALUE_TYPE[i.result], n), vector(i.element, n * i.group)
    x, y = (fn.arith.writer.pure(f"bitcast <{n} x i32> {v.text} to {narrow}", v.level) for v in (a, b))
    call = f"call {wide} @{i.name}.{n * 32}({wide} {old.text}, {narrow} {x}, {narrow} {y})"
    new = Val(fn.writer.fresh(call), fn.writer.level, n)
    fn.write(plan, new, ctx, {})
    fn.space.unbind(f.loop.sym)
