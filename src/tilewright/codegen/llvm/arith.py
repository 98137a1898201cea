"""Element operations on SSA values: what each operation of ``core.compute`` means in LLVM instructions.

In: operation names, dtypes and values, scalar or vector. Out: values; nothing here touches memory.
Not its business: conversions between types (``convert``), transcendental functions (``tile.math`` expands them first).

Integers wrap; a division by zero gives 0, its remainder the dividend, and the lowest value divided by -1 wraps, so
nothing traps; shifts by the width or more give 0 (or the sign), by a negative number 0. ``min`` and ``max`` propagate
NaN. f16 and bf16 are computed as ``float`` and rounded after every operation that can leave the type.
"""

from __future__ import annotations

import math

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm import convert, exponents
from tilewright.codegen.llvm.lanes import bits_of, mask_of
from tilewright.codegen.llvm.types import VALUE_TYPE, literal, mangled, vector
from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.core import types
from tilewright.core.types import DType
from tilewright.target.instructions import Instructions

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_BOOL = {"add": "or", "sub": "xor", "mul": "and", "min": "and", "max": "or", "and": "and", "or": "or", "xor": "xor"}
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint"}
_PARTS = {"exponent": exponents.exponent, "significand": exponents.significand}


class Arith:
    """Operations for one function on one target."""

    def __init__(self, writer: Writer, target: Instructions) -> None:
        self.writer = writer
        self.target = target

    # --- plumbing ---------------------------------------------------------------------------------------------------

    def const(self, value: int | float | bool, dtype: DType, lanes: int = 0) -> Val:
        """A literal, splatted over ``lanes``."""
        return self.splat(Val(literal(value, dtype), 0, 0), VALUE_TYPE[dtype], lanes)

    def splat(self, v: Val, element: str, lanes: int) -> Val:
        """``v`` in every one of ``lanes`` lanes; a vector stays as it is."""
        if v.lanes == lanes:
            return v
        if v.text[0] != "%":
            return Val(f"splat ({element} {v.text})", 0, lanes)
        ty = f"<{lanes} x {element}>"
        pure = self.writer.pure
        one = pure(f"insertelement {ty} poison, {element} {v.text}, i64 0", v.level)
        name = pure(f"shufflevector {ty} {one}, {ty} poison, <{lanes} x i32> zeroinitializer", v.level)
        return Val(name, v.level, lanes)

    def instruction(self, op: str, element: str, *operands: Val) -> Val:
        """``op type a, b`` with operands brought to one number of lanes; the result has the operands' type."""
        lanes = max(v.lanes for v in operands)
        if lanes:
            operands = tuple(v if v.lanes else self.splat(v, element, lanes) for v in operands)
        level = max(v.level for v in operands)
        text = f"{op} {vector(element, lanes)} {', '.join([v.text for v in operands])}"
        return Val(self.writer.pure(text, level), level, lanes)

    def both(self, a: Val, b: Val) -> Val:
        """Where two conditions hold; constant masks give a constant mask."""
        first, second = bits_of(a), bits_of(b)
        if first is not None and second is not None:
            return mask_of([x and y for x, y in zip(first, second, strict=True)])
        return self.instruction("and", "i1", a, b)

    def call(self, intrinsic: str, element: str, *operands: Val, flags: str = "") -> Val:
        """``llvm.<intrinsic>`` on operands of one type, which is also the result's."""
        lanes = max(v.lanes for v in operands)
        if lanes:
            operands = tuple(v if v.lanes else self.splat(v, element, lanes) for v in operands)
        level = max(v.level for v in operands)
        ty = vector(element, lanes)
        arguments = ", ".join([f"{ty} {v.text}" for v in operands])
        text = f"call {ty} @llvm.{intrinsic}.{mangled(element, lanes)}({arguments}{flags})"
        return Val(self.writer.pure(text, level), level, lanes)

    def convert(self, op: str, v: Val, source: str, target: str) -> Val:
        """A conversion instruction such as ``zext`` or ``bitcast``."""
        if op in ("fptosi", "fptoui"):
            v = self.apart(v, source)
        text = f"{op} {vector(source, v.lanes)} {v.text} to {vector(target, v.lanes)}"
        made = Val(self.writer.pure(text, v.level), v.level, v.lanes)
        return self.apart(made, target) if op in ("sitofp", "uitofp") else made

    def apart(self, v: Val, element: str) -> Val:
        """Floats between integers and a product, where LLVM must not see both.

        For Helium it takes a conversion and a power of two for one of fixed-point numbers, and gives that instruction a
        register where it has a constant, the number of digits (``ARMISelDAGToDAG.cpp``).
        """
        return self.call("arithmetic.fence", element, v) if v.lanes and self.target.loses_fixed_points else v

    def choose(self, cond: Val, a: Val, b: Val, element: str) -> Val:
        """``a if cond else b``, by a select."""
        lanes = max(cond.lanes, a.lanes, b.lanes)
        if lanes:
            a, b = self.splat(a, element, lanes), self.splat(b, element, lanes)
        level = max(cond.level, a.level, b.level)
        ty = vector(element, lanes)
        text = f"select {vector('i1', cond.lanes)} {cond.text}, {ty} {a.text}, {ty} {b.text}"
        return Val(self.writer.pure(text, level), level, lanes)

    # --- operations of core.compute ---------------------------------------------------------------------------------

    def binary(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        """An arithmetic or comparison operation; comparisons give ``i1``."""
        if op in _INT_COMPARE:
            return self._compare(op, dtype, a, b)
        if dtype is types.bool_:
            return self.instruction(_BOOL[op], "i1", a, b)
        if dtype.is_float:
            return self._float(op, dtype, a, b)
        if op in _INT:
            return self.instruction(_INT[op], VALUE_TYPE[dtype], a, b)
        if op in ("min", "max"):
            return self.call(("s" if dtype.is_signed else "u") + op, VALUE_TYPE[dtype], a, b)
        if op in ("shl", "shr"):
            return self._shift(op, dtype, a, b)
        if op in ("div", "rem"):
            return self._divide(op, dtype, a, b)
        raise CodegenError(f"{op} has no meaning on {dtype}")

    def unary(self, op: str, dtype: DType, a: Val) -> Val:
        """A unary operation that is not transcendental."""
        element = VALUE_TYPE[dtype]
        if op == "isnan":
            return self.instruction("fcmp uno", element, a, a) if dtype.is_float else Val("false", 0, 0)
        if op == "not":
            return self.instruction("xor", element, a, Val("true" if dtype is types.bool_ else "-1", 0, 0))
        if dtype.is_float:
            return self._float_unary(op, dtype, a)
        if op == "neg":
            return self.instruction("sub", element, Val("0", 0, 0), a) if dtype.is_integer else a
        if op == "abs":
            return self.call("abs", element, a, flags=", i1 false") if dtype.is_signed else a
        if op in _ROUNDING:
            return a
        raise CodegenError(f"{op} has no meaning on {dtype}")

    def fma(self, dtype: DType, a: Val, b: Val, c: Val) -> Val:
        """``a * b + c``, rounded once where the target has the instruction."""
        if dtype.is_float and self.target.has_fma and (self.target.has_f64 or dtype is not types.f64):
            return self.rounded(dtype, self.call("fma", VALUE_TYPE[dtype], a, b, c))
        return self.binary("add", dtype, self.binary("mul", dtype, a, b), c)

    def rint_rest(self, dtype: DType, x: Val) -> Val:
        """``x - rint(x)``, and 0 for infinities: one instruction on targets that scale by one."""
        element = VALUE_TYPE[dtype]
        if self.target.has_scalef:
            return exponents.rint_rest(self, dtype, x)
        rest = self.instruction("fsub", element, x, self._float_unary("rint", dtype, x))
        far = self.instruction("fcmp oeq", element, self.call("fabs", element, x), self.const(math.inf, dtype))
        return self.choose(far, self.const(0.0, dtype), rest, element)

    def pick(self, v: Val, element: str, lanes: list[int], other: Val | None = None) -> Val:
        """A shuffle: the chosen lanes of ``v`` (and of ``other``, numbered behind it); -1 leaves a lane undefined."""
        if other is None and lanes == list(range(v.lanes)):
            return v
        level = v.level if other is None else max(v.level, other.level)
        ty = vector(element, v.lanes)
        mask = ", ".join(["i32 poison" if i < 0 else f"i32 {i}" for i in lanes])
        second = "poison" if other is None else other.text
        text = f"shufflevector {ty} {v.text}, {ty} {second}, <{len(lanes)} x i32> <{mask}>"
        return Val(self.writer.pure(text, level), level, len(lanes))

    def concat(self, parts: list[Val], element: str, lanes: int) -> Val:
        """Vectors of equal length one after the other, cut to ``lanes``."""
        while len(parts) > 1:
            n = parts[0].lanes
            if len(parts) % 2:
                parts = [*parts, parts[-1]]
            parts = [self.pick(a, element, list(range(2 * n)), b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return self.pick(parts[0], element, list(range(lanes)))

    def any_lane(self, cond: Val) -> Val:
        """Whether some lane's bit is set."""
        if not cond.lanes:
            return cond
        text = f"call i1 @llvm.vector.reduce.or.v{cond.lanes}i1(<{cond.lanes} x i1> {cond.text})"
        return Val(self.writer.pure(text, cond.level), cond.level, 0)

    def extract(self, v: Val, element: str, lane: int) -> Val:
        """One lane as a scalar."""
        if not v.lanes:
            return v
        text = f"extractelement {vector(element, v.lanes)} {v.text}, i64 {lane}"
        return Val(self.writer.pure(text, v.level), v.level, 0)

    def bfloat_bits(self, v: Val) -> Val:
        """The ``i16`` of a ``float`` rounded to bfloat16, by the target's instruction for it."""
        return convert.bfloat_bits(self, v)

    def rounded(self, dtype: DType, v: Val) -> Val:
        """A ``float`` brought back to the values that f16 or bf16 can hold."""
        return convert.round_to(self, dtype, v)

    # --- floats -----------------------------------------------------------------------------------------------------

    def _float(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        element = VALUE_TYPE[dtype]
        if op in _FLOAT:
            return self.rounded(dtype, self.instruction(_FLOAT[op], element, a, b))
        if op in ("min", "max"):
            return self._extreme(op, element, a, b)
        if op == "larger":
            return self.choose(self.instruction("fcmp ogt", element, a, b), a, b, element)
        raise CodegenError(f"{op} has no meaning on {dtype}")

    def _extreme(self, op: str, element: str, a: Val, b: Val) -> Val:
        """``a op b ? a : b`` is one instruction and gives ``b`` for NaN; a second select lets NaN of ``a`` through."""
        if _is_number(b):
            a, b = b, a
        compare = "fcmp olt" if op == "min" else "fcmp ogt"
        result = self.choose(self.instruction(compare, element, a, b), a, b, element)
        return result if _is_number(a) else self.choose(self.instruction("fcmp uno", element, a, a), a, result, element)

    def _float_unary(self, op: str, dtype: DType, a: Val) -> Val:
        element = VALUE_TYPE[dtype]
        if op == "neg":
            return self.instruction("fneg", element, a)
        if op == "abs":
            return self.call("fabs", element, a)
        if op == "sqrt":
            return self.rounded(dtype, self.call("sqrt", element, a))
        if op in _ROUNDING:
            return self.call(_ROUNDING[op], element, a) if self.target.has_round else self._round(op, element, a)
        if op == "pow2i":
            return self._pow2i(dtype, a)
        if op == "rint_rest":
            return self.rint_rest(dtype, a)
        if op in _PARTS and self.target.has_scalef:
            return _PARTS[op](self, dtype, a)
        raise CodegenError(f"{op} on {dtype} was not expanded")

    def _round(self, op: str, element: str, a: Val) -> Val:
        """Rounding without an instruction: adding and subtracting 2**23 (2**52) rounds to even."""
        f = types.f32 if element == "float" else types.f64
        size = self.call("fabs", element, a)
        big = self.const(2.0 ** (23 if f is types.f32 else 52), f)
        near = self.instruction("fsub", element, self.instruction("fadd", element, size, big), big)
        if op == "trunc":
            near = self._step_down(element, near, size)
        near = self.call("copysign", element, near, a)
        if op == "floor":
            near = self._step_down(element, near, a)
        elif op == "ceil":
            below = self.instruction("fcmp olt", element, near, a)
            near = self.choose(below, self.instruction("fadd", element, near, self.const(1.0, f)), near, element)
            near = self.call("copysign", element, near, a)
        return self.choose(self.instruction("fcmp olt", element, size, big), near, a, element)

    def _step_down(self, element: str, near: Val, a: Val) -> Val:
        f = types.f32 if element == "float" else types.f64
        above = self.instruction("fcmp ogt", element, near, a)
        return self.choose(above, self.instruction("fsub", element, near, self.const(1.0, f)), near, element)

    def _pow2i(self, dtype: DType, a: Val) -> Val:
        """2**a for a whole number: the exponent field; below the normal range 0, above it infinity."""
        element = VALUE_TYPE[dtype]
        integer, bias, mantissa = ("i32", 127, 23) if element == "float" else ("i64", 1023, 52)
        f = types.f32 if element == "float" else types.f64
        clamped = self._extreme("max", element, self.const(-bias, f), a)
        clamped = self._extreme("min", element, self.const(bias + 1, f), clamped)
        field = self.convert("fptosi", clamped, element, integer)
        field = self.instruction("add", integer, field, Val(str(bias), 0, 0))
        bits = self.instruction("shl", integer, field, Val(str(mantissa), 0, 0))
        return self.rounded(dtype, self.convert("bitcast", bits, integer, element))

    # --- integers ---------------------------------------------------------------------------------------------------

    def _compare(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        if dtype.is_float:
            return self.instruction(f"fcmp {_FLOAT_COMPARE[op]}", VALUE_TYPE[dtype], a, b)
        sign = "" if op in ("eq", "ne") else "s" if dtype.is_signed else "u"
        return self.instruction(f"icmp {sign}{op}", VALUE_TYPE[dtype], a, b)

    def shift_within(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        """A shift by less than there are bits."""
        name = "shl" if op == "shl" else "ashr" if dtype.is_signed else "lshr"
        return self.instruction(name, VALUE_TYPE[dtype], a, b)

    def _shift(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        element, last, zero = VALUE_TYPE[dtype], Val(str(dtype.bits - 1), 0, 0), Val("0", 0, 0)
        fills = op == "shr" and dtype.is_signed
        name = "shl" if op == "shl" else "ashr" if fills else "lshr"
        if _is_literal(b):
            amount = int(b.text)
            if amount < 0 or (amount >= dtype.bits and not fills):
                return zero
            return self.instruction(name, element, a, b if amount < dtype.bits else last)
        shifted = self.instruction(name, element, a, self.call("umin", element, b, last))
        if fills:
            return self.choose(self.instruction("icmp slt", element, b, zero), zero, shifted, element)
        return self.choose(self.instruction("icmp ule", element, b, last), shifted, zero, element)

    def _divide(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        element = VALUE_TYPE[dtype]
        sign = "s" if dtype.is_signed else "u"
        if _is_literal(b) and int(b.text) not in (0, -1):
            return self.instruction(f"{sign}{op}", element, a, b)
        zero, one = Val("0", 0, 0), Val("1", 0, 0)
        is_zero = self.instruction("icmp eq", element, b, zero)
        if not dtype.is_signed:
            q = self._quotient(op, dtype, a, self.choose(is_zero, one, b, element))
            return self.choose(is_zero, zero if op == "div" else a, q, element)
        is_minus = self.instruction("icmp eq", element, b, Val("-1", 0, 0))
        unsafe = self.instruction("or", "i1", is_zero, is_minus)
        q = self._quotient(op, dtype, a, self.choose(unsafe, one, b, element))
        if op == "div":
            q = self.choose(is_minus, self.instruction("sub", element, zero, a), q, element)
        return self.choose(is_zero, zero if op == "div" else a, q, element)

    def _quotient(self, op: str, dtype: DType, a: Val, b: Val) -> Val:
        """A quotient or remainder that traps nowhere. Vectors divide floats that hold every element and 5 bits more:
        a quotient that is not whole differs from the next number by more than they round.
        """
        element, sign = VALUE_TYPE[dtype], "s" if dtype.is_signed else "u"
        lanes = max(a.lanes, b.lanes)
        if not lanes or dtype.bits > 32 or (dtype.bits > 16 and not self.target.has_f64):
            return self.instruction(f"{sign}{op}", element, a, b)
        number = "float" if dtype.bits <= 16 else "double"
        wide = "i32" if dtype.bits <= 16 or dtype.is_signed else "i64"
        a, b = self.splat(a, element, lanes), self.splat(b, element, lanes)
        x, y = (self.convert(f"{sign}itofp", v, element, number) for v in (a, b))
        q = self.convert("fptosi", self.instruction("fdiv", number, x, y), number, wide)
        q = q if wide == element else self.convert("trunc", q, wide, element)
        if op == "div":
            return q
        return self.instruction("sub", element, a, self.instruction("mul", element, q, b))


def _is_literal(v: Val) -> bool:
    return v.text[0] in "-0123456789" and not v.text.startswith("0x")


def _is_number(v: Val) -> bool:
    """A literal float other than NaN."""
    text = v.text[v.text.index(" 0x") + 1 : -1] if v.text.startswith("splat (") and " 0x" in v.text else v.text
    if not text.startswith("0x"):
        return False
    bits = int(text, 16) & 0x7FFFFFFFFFFFFFFF
    return bits <= 0x7FF0000000000000
