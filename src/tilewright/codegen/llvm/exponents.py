"""AVX-512's instructions on the exponents of floats: scale by a power of two, take a number apart, leave a fraction.

In: SSA values of f32 or f64, of any number of lanes. Out: values. Each instruction takes whole registers: other vectors
are done in parts, and a scalar in the lowest lane of 128 bits. Sources: Intel's Software Developer's Manual, volume 2,
VSCALEF, VREDUCE, VGETEXP and VGETMANT. Not its business: targets without them (``Instructions.has_scalef``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.codegen.llvm.types import VALUE_TYPE, vector
from tilewright.codegen.llvm.writer import Val
from tilewright.core.types import DType

if TYPE_CHECKING:
    from tilewright.codegen.llvm.arith import Arith

_PRESENT_ROUNDING = "i32 4"
_NEAREST_WHOLE = "i32 8"
"""VREDUCE: no digits are kept behind the point, and what is left is not signalled."""
_FROM_ONE_OR_NAN = "i32 12"
"""VGETMANT: from 1 to below 2, without a sign; NaN for what is negative, but 1 for -0."""


def scaled(arith: Arith, dtype: DType, x: Val, n: Val) -> Val:
    """``x * 2**n`` as if the exponent's range were unbounded."""
    return _by_registers(arith, "scalef", dtype, (x, n))


def rint_rest(arith: Arith, dtype: DType, x: Val) -> Val:
    """``x - rint(x)``, and 0 for infinities."""
    return _by_registers(arith, "reduce", dtype, (x,), _NEAREST_WHOLE)


def exponent(arith: Arith, dtype: DType, x: Val) -> Val:
    """``floor(log2(|x|))``; -infinity for 0, infinity for infinities."""
    return _by_registers(arith, "getexp", dtype, (x,))


def significand(arith: Arith, dtype: DType, x: Val) -> Val:
    """``x / 2**exponent(x)``, from 1 to below 2; 1 for zeros and infinity, NaN for what is below 0."""
    return _by_registers(arith, "getmant", dtype, (x,), _FROM_ONE_OR_NAN)


def _by_registers(arith: Arith, name: str, dtype: DType, operands: tuple[Val, ...], immediate: str = "") -> Val:
    element = VALUE_TYPE[dtype]
    width, lanes = 16 if element == "float" else 8, max(v.lanes for v in operands)
    if lanes == 0:
        return _scalar(arith, name, element, operands, immediate)
    wide = [arith.splat(v, element, lanes) for v in operands]
    if lanes == width:
        return _register(arith, name, element, wide, immediate)
    starts = range(0, lanes, width)
    places = [[min(start + i, lanes - 1) for i in range(width)] for start in starts]
    parts = [_register(arith, name, element, [arith.pick(v, element, at) for v in wide], immediate) for at in places]
    return arith.concat(parts, element, lanes)


def _register(arith: Arith, name: str, element: str, operands: list[Val], immediate: str) -> Val:
    lanes, level = operands[0].lanes, max(v.level for v in operands)
    ty = vector(element, lanes)
    values = [f"{ty} {v.text}" for v in operands]
    arguments = [*values, *([immediate] if immediate else []), values[0], f"i{lanes} -1", _PRESENT_ROUNDING]
    text = f"call {ty} @llvm.x86.avx512.mask.{name}.p{_letter(element)}.512({', '.join(arguments)})"
    return Val(arith.writer.pure(text, level), level, lanes)


def _scalar(arith: Arith, name: str, element: str, operands: tuple[Val, ...], immediate: str) -> Val:
    """The upper lanes are those of the first of two operands; VREDUCE has its immediate behind the mask."""
    level, pure = max(v.level for v in operands), arith.writer.pure
    ty = vector(element, 4 if element == "float" else 2)
    wide = [f"{ty} {pure(f'insertelement {ty} zeroinitializer, {element} {v.text}, i64 0', level)}" for v in operands]
    first, second = wide[0], wide[-1]
    before, behind = ([], [immediate]) if name == "reduce" else ([immediate] if immediate else [], [])
    arguments = [first, second, *before, first, "i8 -1", *behind, _PRESENT_ROUNDING]
    text = f"call {ty} @llvm.x86.avx512.mask.{name}.s{_letter(element)}({', '.join(arguments)})"
    return Val(pure(f"extractelement {ty} {pure(text, level)}, i64 0", level), level, 0)


def _letter(element: str) -> str:
    return "s" if element == "float" else "d"
