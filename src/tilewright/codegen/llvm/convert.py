"""Conversions between element types, without a call into any library.

In: values with a source and a target dtype. Out: values. Not its business: loading and storing (``memory``).

Float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is ``!= 0``. f16 and bf16 round to
nearest even, by the conversion instruction or, on targets without it, by bit arithmetic. The instruction for bf16
flushes denormals (below 1.2e-38) to zero; numbers that are only moved keep them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.codegen.llvm.types import MEMORY_TYPE, VALUE_TYPE, mangled, vector
from tilewright.codegen.llvm.writer import Val
from tilewright.core import types
from tilewright.core.types import DType

if TYPE_CHECKING:
    from tilewright.codegen.llvm.arith import Arith


IN_BYTES = {types.i4: types.i8, types.i2: types.i8, types.u4: types.u8, types.u2: types.u8}
"""Integers that lie in the low bits of a byte, and the types of their numbers."""


def cast(a: Arith, v: Val, source: DType, target: DType) -> Val:
    """Convert the value of ``v``."""
    if source is target:
        return v
    if source in IN_BYTES:
        return cast(a, _from_low_bits(a, v, source), IN_BYTES[source], target)
    if target in IN_BYTES:
        low = Val(str((1 << target.bits) - 1), 0, 0)
        return a.instruction("and", VALUE_TYPE[target], cast(a, v, source, IN_BYTES[target]), low)
    if target is types.bool_:
        return _to_bool(a, v, source)
    if target.is_float:
        return _to_float(a, v, source, target)
    if source.is_float:
        return _saturating(a, v, source, target)
    if source is types.bool_:
        return a.convert("zext", v, "i1", VALUE_TYPE[target])
    if source.bits == target.bits:
        return v
    if v.text.lstrip("-").isdigit():  # a number stays one: shifts by it need no look at how far they go
        return Val(str(int(np.array(int(v.text)).astype(target.numpy))), 0, 0)
    op = "trunc" if source.bits > target.bits else "sext" if source.is_signed else "zext"
    return a.convert(op, v, VALUE_TYPE[source], VALUE_TYPE[target])


def _from_low_bits(a: Arith, v: Val, source: DType) -> Val:
    """The number in the low bits of a byte whose high bits are 0."""
    if not IN_BYTES[source].is_signed:
        return v
    spare = Val(str(8 - source.bits), 0, 0)
    return a.instruction("ashr", "i8", a.instruction("shl", "i8", v, spare), spare)


def bitcast(a: Arith, v: Val, source: DType, target: DType) -> Val:
    """Reinterpret the bits of ``v``."""
    if source is target:
        return v
    raw = to_memory(a, source, v)
    raw_type, memory = MEMORY_TYPE[source], MEMORY_TYPE[target]
    if raw_type != memory:
        raw = a.convert("bitcast", raw, raw_type, memory)
    return from_memory(a, target, raw)


def round_to(a: Arith, dtype: DType, v: Val) -> Val:
    """A ``float`` rounded to the nearest value of f16 or bf16; other types are left alone."""
    if dtype is types.bf16:
        if a.target.has_bf16:
            return from_memory(a, dtype, a.bfloat_bits(v))
        return a.convert("bitcast", _bf16_bits(a, v), "i32", "float")
    if dtype is types.f16:
        return from_memory(a, dtype, to_memory(a, dtype, v))
    return v


def from_memory(a: Arith, dtype: DType, v: Val) -> Val:
    """The value that the loaded ``v`` stands for."""
    if dtype is types.bool_:
        return a.instruction("icmp ne", "i8", v, Val("0", 0, 0))
    if dtype is types.bf16:
        wide = a.convert("zext", v, "i16", "i32")
        return a.convert("bitcast", a.instruction("shl", "i32", wide, Val("16", 0, 0)), "i32", "float")
    if dtype is types.f16:
        if a.target.has_f16c:
            return a.convert("fpext", a.convert("bitcast", v, "i16", "half"), "half", "float")
        return _f16_to_float(a, v)
    return v


def to_memory(a: Arith, dtype: DType, v: Val) -> Val:
    """What to store for the value ``v``, which the type can hold (``round_to``)."""
    if dtype is types.bool_:
        return a.convert("zext", v, "i1", "i8")
    if dtype is types.bf16:
        high = a.instruction("lshr", "i32", a.convert("bitcast", v, "float", "i32"), Val("16", 0, 0))
        return a.convert("trunc", high, "i32", "i16")
    if dtype is types.f16:
        if a.target.has_f16c:
            return a.convert("bitcast", a.convert("fptrunc", v, "float", "half"), "half", "i16")
        return _float_to_f16(a, v)
    return v


def _to_bool(a: Arith, v: Val, source: DType) -> Val:
    element = VALUE_TYPE[source]
    if source.is_float:
        return a.instruction("fcmp une", element, v, a.const(0.0, source))
    return a.instruction("icmp ne", element, v, Val("0", 0, 0))


def _to_float(a: Arith, v: Val, source: DType, target: DType) -> Val:
    element = VALUE_TYPE[target]
    if source.is_float:
        if source is types.f64 and target is not types.f64:
            return round_to(a, target, _f64_to_float(a, v, exact=target is types.f32))
        if target is types.f64:
            return a.convert("fpext", v, "float", "double")
        return v if target is types.f32 else round_to(a, target, v)
    op = "sitofp" if source.is_signed else "uitofp"
    if target in (types.f16, types.bf16) and source.bits >= 32:
        double = a.convert(op, v, VALUE_TYPE[source], "double")
        return round_to(a, target, _f64_to_float(a, double, exact=False))
    return round_to(a, target, a.convert(op, v, VALUE_TYPE[source], element))


def _f64_to_float(a: Arith, v: Val, exact: bool) -> Val:
    """To ``float``; when a second rounding follows (not ``exact``), round to odd so that it sees what was cut off."""
    near = a.convert("fptrunc", v, "double", "float")
    if exact:
        return near
    back = a.convert("fpext", near, "float", "double")
    size, back_size = a.call("fabs", "double", v), a.call("fabs", "double", back)
    bits = a.convert("bitcast", near, "float", "i32")
    too_big = a.convert("sext", a.instruction("fcmp ogt", "double", back_size, size), "i1", "i32")
    odd = a.instruction("or", "i32", a.instruction("add", "i32", bits, too_big), Val("1", 0, 0))
    inexact = a.instruction("fcmp one", "double", back, v)
    return a.convert("bitcast", a.choose(inexact, odd, bits, "i32"), "i32", "float")


def _saturating(a: Arith, v: Val, source: DType, target: DType) -> Val:
    result, element = VALUE_TYPE[target], VALUE_TYPE[source]
    if v.lanes and not a.target.has_saturation:
        return _clamped(a, v, source, target)
    v = a.apart(v, element)
    name = f"llvm.fpto{'s' if target.is_signed else 'u'}i.sat.{mangled(result, v.lanes)}.{mangled(element, v.lanes)}"
    text = f"call {vector(result, v.lanes)} @{name}({vector(element, v.lanes)} {v.text})"
    return Val(a.writer.pure(text, v.level), v.level, v.lanes)


_TO_WHOLE = 1.5 * 2**23
"""Added to a float of less than 2**22, it leaves no bits behind the point: the sum's bits count whole numbers."""


def whole(a: Arith, v: Val, more: int, target: DType) -> Val | None:
    """``cast(rint(v) + more)`` of a ``float`` where that is fewer instructions than each by itself; else None.

    Machines without vectors have no instruction for ``rint`` or compare numbers in several steps, and some vectors have
    none either. Vectors of x86 have one that rounds and converts at once.
    """
    if target.bits > types.i16.bits or target is types.bool_ or target in IN_BYTES:
        return None
    has_vectors = a.target.vector_bytes > types.f32.n_bytes
    if v.lanes and has_vectors and a.target.has_nearest:
        return _whole_lanes(a, v, more, target)
    if has_vectors != bool(v.lanes) or (has_vectors and a.target.has_round):
        return None
    return _whole_by_addition(a, v, more, target)


def _whole_by_addition(a: Arith, v: Val, more: int, target: DType) -> Val:
    """``cast(rint(v) + more)`` by an addition that rounds, and differences of integers that saturate.

    Beyond 2**22 the bits still grow with the number, so they lie beyond the limits of 16 bits, and a saturating
    difference keeps that.
    """
    zero_bits = int(np.float32(_TO_WHOLE).view(np.int32)) - more
    moved = a.instruction("fadd", "float", v, a.const(_TO_WHOLE, types.f32))
    number = a.call("ssub.sat", "i32", a.convert("bitcast", moved, "float", "i32"), Val(str(zero_bits), 0, 0))
    number = a.call("smax", "i32", number, Val(str(int(target.min)), 0, 0))
    number = a.call("smin", "i32", number, Val(str(int(target.max)), 0, 0))
    zero = Val("0", 0, 0)
    if v.lanes:  # vectors have no comparison that tells NaN at once
        number = a.choose(a.instruction("fcmp oeq", "float", v, v), number, zero, "i32")
    else:
        number = a.choose(a.instruction("fcmp uno", "float", v, v), zero, number, "i32")
    return a.convert("trunc", number, "i32", VALUE_TYPE[target])


def _whole_lanes(a: Arith, v: Val, more: int, target: DType) -> Val:
    """``cast(rint(v) + more)``, the limits less ``more`` being those of ``v``: whole numbers round to themselves.

    Without a sign the upper limit is left to the instruction that narrows: what is too large for 32 bits is 2**31 then,
    which with ``more`` is still beyond every limit. NaN compares as the least, which is 0 there.
    """
    low, high = (a.const(float(int(n) - more), types.f32) for n in (target.min, target.max))
    x = a.choose(a.instruction("fcmp ogt", "float", v, low), v, low, "float")
    if target.is_signed:
        x = a.choose(a.instruction("fcmp olt", "float", x, high), x, high, "float")
    number = _nearest(a, x)
    number = a.instruction("add", "i32", number, _number(more)) if more else number
    if not target.is_signed:
        number = a.call("umin", "i32", number, _number(int(target.max)))
    number = a.convert("trunc", number, "i32", VALUE_TYPE[target])
    if target.is_signed:
        number = a.choose(a.instruction("fcmp uno", "float", v, v), a.const(0, target), number, VALUE_TYPE[target])
    return number


_NEAREST = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256", 16: "avx512.mask.cvtps2dq.512"}
"""The instructions that round floats to the nearest i32, by lanes; what i32 has no number for becomes 0x80000000."""


def _nearest(a: Arith, v: Val) -> Val:
    """The nearest i32 of each lane, register by register, by the name of the instruction.

    LLVM's own operation for this leaves open what numbers become that are too large.
    """
    most = a.target.vector_bytes // types.f32.n_bytes
    width = next(w for w in _NEAREST if v.lanes <= w or w == most)
    source, result = vector("float", width), vector("i32", width)
    parts = []
    for start in range(0, v.lanes, width):
        part = a.pick(v, "float", [i if i < v.lanes else -1 for i in range(start, start + width)])
        operands = f"{source} {part.text}" + (", <16 x i32> zeroinitializer, i16 -1, i32 4" if width == 16 else "")
        call = f"call {result} @llvm.x86.{_NEAREST[width]}({operands})"
        parts.append(Val(a.writer.pure(call, v.level), v.level, width))
    return a.concat(parts, "i32", v.lanes)


def _clamped(a: Arith, v: Val, source: DType, target: DType) -> Val:
    """What ``_saturating`` gives, by comparisons, which stay vectors: LLVM converts lane by lane where the instruction
    does not saturate, which takes seven times as long.

    The conversion sees numbers between the least and the largest one that both types have; beyond the latter the result
    is the largest integer. NaN compares as the least, which is 0 already where there is no sign.
    """
    result, element = VALUE_TYPE[target], VALUE_TYPE[source]
    computing = types.f64 if source is types.f64 else types.f32
    top = _largest(computing, target)
    low, high = a.const(float(target.min), computing), a.const(top, computing)
    x = a.choose(a.instruction("fcmp ogt", element, v, low), v, low, element)
    x = a.choose(a.instruction("fcmp olt", element, x, high), x, high, element)
    wide = result if target.bits >= 32 else "i32"
    number = a.convert("fptosi" if target.is_signed or target.bits < 32 else "fptoui", x, element, wide)
    if wide != result:
        number = a.convert("trunc", number, wide, result)
    if int(top) != target.max:
        number = a.choose(a.instruction("fcmp ogt", element, v, high), a.const(target.max, target), number, result)
    if target.is_signed:
        number = a.choose(a.instruction("fcmp uno", element, v, v), a.const(0, target), number, result)
    return number


def _largest(source: DType, target: DType) -> float:
    """The largest number of a float type that an integer type can hold."""
    near = source.numpy.type(target.max)
    return float(near if int(near) <= target.max else np.nextafter(near, source.numpy.type(0)))


def bfloat_bits(a: Arith, v: Val) -> Val:
    """The ``i16`` of a ``float`` rounded by AVX512-BF16, register by register.

    Vectors take the instruction by its name, because LLVM folds a ``fptrunc`` of constants (a register of which a mask
    leaves no lane) to a vector of ``bfloat`` constants also when none may be made any more, and aborts the process.
    """
    if not v.lanes:
        return a.convert("bitcast", a.convert("fptrunc", v, "float", "bfloat"), "bfloat", "i16")
    width = next(w for w in (4, 8, 16) if v.lanes <= w or w == 16)
    parts = []
    for start in range(0, v.lanes, width):
        lanes = [i if i < v.lanes else -1 for i in range(start, start + width)]
        parts.append(_bfloat_register(a, a.pick(v, "float", lanes)))
    return a.concat(parts, "i16", v.lanes)


def _bfloat_register(a: Arith, v: Val) -> Val:
    """The instruction on 16, 8 or 4 lanes; of the last the result has 8, the upper four unused."""
    source, name = vector("float", v.lanes), f"llvm.x86.avx512bf16.{'' if v.lanes > 4 else 'mask.'}cvtneps2bf16"
    operands = f"{source} {v.text}" if v.lanes > 4 else f"{source} {v.text}, <8 x bfloat> poison, <4 x i1> splat (i1 1)"
    lanes = max(v.lanes, 8)
    call = f"call {vector('bfloat', lanes)} @{name}.{32 * v.lanes}({operands})"
    return a.convert("bitcast", Val(a.writer.pure(call, v.level), v.level, lanes), "bfloat", "i16")


def _number(n: int) -> Val:
    return Val(str(n), 0, 0)


def _bf16_bits(a: Arith, v: Val) -> Val:
    """The bits of ``v`` rounded to the upper 16, the lower 16 cleared; NaN stays a quiet NaN."""
    bits = a.convert("bitcast", v, "float", "i32")
    odd = a.instruction("and", "i32", a.instruction("lshr", "i32", bits, _number(16)), _number(1))
    near = a.instruction("add", "i32", a.instruction("add", "i32", bits, _number(0x7FFF)), odd)
    quiet = a.instruction("or", "i32", bits, _number(0x400000))
    chosen = a.choose(a.instruction("fcmp uno", "float", v, v), quiet, near, "i32")
    return a.instruction("and", "i32", chosen, _number(-0x10000))


def _f16_to_float(a: Arith, v: Val) -> Val:
    """Shift into place and multiply by 2**112, which also normalises denormals; the all-ones exponent is put back."""
    bits = a.convert("zext", v, "i16", "i32")
    body = a.instruction("shl", "i32", a.instruction("and", "i32", bits, _number(0x7FFF)), _number(13))
    sign = a.instruction("shl", "i32", a.instruction("and", "i32", bits, _number(0x8000)), _number(16))
    scaled = a.instruction("fmul", "float", a.convert("bitcast", body, "i32", "float"), a.const(2.0**112, types.f32))
    finite = a.convert("bitcast", scaled, "float", "i32")
    special = a.instruction("or", "i32", finite, _number(0x7F800000))
    chosen = a.choose(a.instruction("icmp uge", "i32", body, _number(0x7C00 << 13)), special, finite, "i32")
    return a.convert("bitcast", a.instruction("or", "i32", chosen, sign), "i32", "float")


def _float_to_f16(a: Arith, v: Val) -> Val:
    """Round to nearest even on the bits; denormals by adding a number whose last place is the smallest f16."""
    bits = a.convert("bitcast", v, "float", "i32")
    size = a.instruction("and", "i32", bits, _number(0x7FFFFFFF))
    sign = a.instruction("lshr", "i32", a.instruction("and", "i32", bits, _number(-0x80000000)), _number(16))
    odd = a.instruction("and", "i32", a.instruction("lshr", "i32", size, _number(13)), _number(1))
    near = a.instruction("add", "i32", a.instruction("add", "i32", size, _number(-(112 << 23) + 0xFFF)), odd)
    normal = a.instruction("lshr", "i32", near, _number(13))
    tiny = a.instruction("fadd", "float", a.convert("bitcast", size, "i32", "float"), a.const(0.5, types.f32))
    denormal = a.instruction("sub", "i32", a.convert("bitcast", tiny, "float", "i32"), _number(0x3F000000))
    result = a.choose(a.instruction("icmp ult", "i32", size, _number(113 << 23)), denormal, normal, "i32")
    is_nan = a.instruction("icmp ugt", "i32", size, _number(0x7F800000))
    special = a.choose(is_nan, _number(0x7E00), _number(0x7C00), "i32")
    result = a.choose(a.instruction("icmp uge", "i32", size, _number(143 << 23)), special, result, "i32")
    return a.convert("trunc", a.instruction("or", "i32", result, sign), "i32", "i16")
