"""What the elements of tensors and the operations on them are called in C, and helper functions where C lacks one.

In: dtypes, operators and operands as C texts. Out: C expressions; ``Helpers`` collects what they call.
Not its business: which operation comes when (``values``).

Operations mean what ``core.compute`` says. Where C leaves a case undefined (signed overflow, division by zero, shifts
beyond the width, casts of what does not fit) the text avoids it. f16 and bf16 are 16 bits in memory and a ``float``
that such a number is exactly in an expression; every operation on them rounds. Narrow types are stored and moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.codegen.errors import CodegenError
from tilewright.core import types
from tilewright.core.compute import COMPARE_OPS
from tilewright.core.types import DType

_INTEGERS = {d: f"{'' if d.is_signed else 'u'}int{8 * d.n_bytes}_t" for d in (*types.INTS, types.i7)}
MEMORY = {
    **_INTEGERS, types.bool_: "uint8_t", types.f16: "uint16_t", types.bf16: "uint16_t", types.f32: "float",
    types.f64: "double", **dict.fromkeys(types.NARROW, "uint8_t"),
}  # fmt: skip
"""What a buffer holds an element in."""
VALUE = MEMORY | {types.bool_: "bool", types.f16: "float", types.bf16: "float"}
"""What an expression has for it."""

HALVES = (types.f16, types.bf16)
COMPARE_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""C's comparisons, by the names that values and LLVM text have for them."""
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_LOGIC = {"add": "||", "or": "||", "max": "||", "mul": "&&", "and": "&&", "min": "&&", "xor": "!="}
_LIBRARY = {
    "abs": "fabs", "pow2i": "exp2", "exp2_flushed": "exp2", "pow": "pow", "atan2": "atan2", "rem": "fmod",
    **{op: op for op in (
        "sqrt floor ceil trunc rint exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
        "acosh atanh erf"
    ).split()},
}  # fmt: skip
"""Functions of C's library; of ``float`` they end in f."""

_FIXED: Mapping[str, str] = {
    "tw_floordiv": """static inline int64_t tw_floordiv(int64_t a, int64_t b) {
  if (b == 0) b = 1;
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}""",
    "tw_mod": """static inline int64_t tw_mod(int64_t a, int64_t b) {
  if (b == 0) b = 1;
  return a % b + ((a % b != 0 && (a % b < 0) != (b < 0)) ? b : 0);
}""",
    "tw_least": "static inline int64_t tw_least(int64_t a, int64_t b) { return a < b ? a : b; }",
    "tw_most": "static inline int64_t tw_most(int64_t a, int64_t b) { return a > b ? a : b; }",
    "tw_f16": """static inline float tw_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff, bits = sign | ((rest << 13) + 0x38000000);
  float x;
  if (rest >= 0x7c00) bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
  if (rest < 0x400) return (sign ? -1.0f : 1.0f) * (float)rest * 5.9604644775390625e-08f;
  memcpy(&x, &bits, 4);
  return x;
}""",
    "tw_f16_bits": """static inline uint16_t tw_f16_bits(float x) {
  uint32_t bits, sign, rest;
  memcpy(&bits, &x, 4);
  sign = bits >> 16 & 0x8000;
  rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
  if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (rest < 0x38800000) return (uint16_t)(sign | (uint32_t)rintf(fabsf(x) * 16777216.0f));
  return (uint16_t)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}""",
    "tw_bf16": """static inline float tw_bf16(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}""",
    "tw_bf16_bits": """static inline uint16_t tw_bf16_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}""",
}
_POWER = """{t} y = 1;
  for (; b > 0; b >>= 1, a = ({t})(({u})a * ({u})a))
    if (b & 1) y = ({t})(({u})y * ({u})a);
  return y;"""
_WHOLE = {"min": "return a < b ? a : b;", "max": "return a > b ? a : b;"}
_SIGNED: Mapping[str, str] = _WHOLE | {
    "div": "return b == 0 ? 0 : b == -1 ? ({t})(0 - ({u})a) : ({t})(a / b);",
    "rem": "return b == 0 ? a : b == -1 ? 0 : ({t})(a % b);",
    "shl": "return b < 0 || b >= {n} ? 0 : ({t})(({u})a << b);",
    "shr": "return b < 0 ? 0 : ({t})(a >> (b < {n} ? b : {n} - 1));",
    "pow": "if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;\n  " + _POWER,
}
_UNSIGNED: Mapping[str, str] = _WHOLE | {
    "div": "return b == 0 ? 0 : ({t})(a / b);",
    "rem": "return b == 0 ? a : ({t})(a % b);",
    "shl": "return b >= {n} ? 0 : ({t})(({u})a << b);",
    "shr": "return b >= {n} ? 0 : ({t})(a >> b);",
    "pow": _POWER,
}
_FLOAT: Mapping[str, str] = {
    "min": "return a != a ? a : b != b ? b : a < b ? a : b;",
    "max": "return a != a ? a : b != b ? b : a > b ? a : b;",
    "larger": "return a > b ? a : b;",
}


class Helpers:
    """The functions that a C file calls, each once; ``text`` defines them in the order in which they were asked for."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def text(self) -> str:
        return "\n".join(self._made.values())

    def fixed(self, name: str) -> str:
        """The name of a function that is the same for all."""
        self._made.setdefault(name, _FIXED[name])
        return name

    def binary(self, op: str, dtype: DType) -> str:
        """A function of two elements."""
        name, t = f"tw_{op}_{dtype.name}", VALUE[dtype]
        bodies = _FLOAT if dtype.is_float else _SIGNED if dtype.is_signed else _UNSIGNED
        body = bodies[op].format(t=t, u=_unsigned(dtype), n=dtype.bits)
        self._made.setdefault(name, f"static inline {t} {name}({t} a, {t} b) {{\n  {body}\n}}")
        return name

    def fma(self, x: str, y: str, z: str, dtype: DType) -> str:
        """``x * y + z``, rounded once where the machine can; f16 and bf16 have exact products, and are rounded once."""
        wide = _wide(dtype)
        name, t, function = f"tw_fma_{wide.name}", VALUE[wide], _function("fma", wide)
        fast = f"#if defined(FP_FAST_{function.upper()}) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)"
        body = f"{fast}\n  return {function}(a, b, c);\n#else\n  return a * b + c;\n#endif"
        self._made.setdefault(name, f"static inline {t} {name}({t} a, {t} b, {t} c) {{\n{body}\n}}")
        return self.rounded(f"{name}({x}, {y}, {z})", dtype)

    def rest(self, dtype: DType) -> str:
        """How far a number is from the nearest whole one; 0 for an infinity."""
        name, t = f"tw_rint_rest_{dtype.name}", VALUE[dtype]
        body = f"return isinf(a) ? 0 : a - {_function('rint', dtype)}(a);"
        self._made.setdefault(name, f"static inline {t} {name}({t} a) {{ {body} }}")
        return name

    def saturated(self, source: DType, target: DType) -> str:
        """A function from a float to the nearest integer toward zero that the type has; NaN gives 0."""
        name, t, s = f"tw_{target.name}_of_{source.name}", VALUE[target], VALUE[source]
        low, high = (number(x, _wide(source)) for x in (target.min, target.max))
        most, least = number(target.max, target), number(target.min, target)
        body = f"return a != a ? 0 : a >= {high} ? {most} : a <= {low} ? {least} : ({t})a;"
        self._made.setdefault(name, f"static inline {t} {name}({s} a) {{ {body} }}")
        return name

    def same_bits(self, source: DType, target: DType) -> str:
        """A function that reads the bits of one type as those of another, of which memory holds the same width."""
        name, t, s = f"tw_{target.name}_bits_of_{source.name}", MEMORY[target], MEMORY[source]
        body = f"{t} b; memcpy(&b, &a, {source.n_bytes}); return b;"
        self._made.setdefault(name, f"static inline {t} {name}({s} a) {{ {body} }}")
        return name

    # --- memory and values

    def loaded(self, x: str, dtype: DType) -> str:
        """The value of what memory holds."""
        return f"{self.fixed(f'tw_{dtype.name}')}({x})" if dtype in HALVES else f"({x} != 0)" if _is_bool(dtype) else x

    def stored(self, x: str, dtype: DType) -> str:
        """What memory holds of a value."""
        return f"{self.fixed(f'tw_{dtype.name}_bits')}({x})" if dtype in HALVES else x

    def rounded(self, x: str, dtype: DType) -> str:
        """A ``float`` as the nearest f16 or bf16; others as they are."""
        return self.loaded(self.stored(x, dtype), dtype) if dtype in HALVES else x

    # --- operations

    def unary(self, op: str, x: str, dtype: DType) -> str:
        """``op(x)`` of one element of a type."""
        if op == "isnan":
            return f"(isnan({x}) != 0)"
        if op == "not":
            return f"!{x}" if _is_bool(dtype) else f"({VALUE[dtype]})~{x}"
        if dtype.is_integer:
            u, t = _unsigned(dtype), VALUE[dtype]
            negative = f"({t})(0 - ({u}){x})"
            return negative if op == "neg" else x if not dtype.is_signed else f"({x} < 0 ? {negative} : {x})"
        if op == "neg":
            return f"(-{x})"
        if op == "reciprocal_flushed":
            return f"(1 / {x})"
        if op == "rint_rest":
            return self.rounded(f"{self.rest(dtype)}({x})", dtype)
        if op == "rsqrt":
            return self.rounded(f"({number(1, _wide(dtype))} / {_function('sqrt', dtype)}({x}))", dtype)
        return self.rounded(f"{_function(_LIBRARY[op], dtype)}({x})", dtype)

    def combined(self, op: str, x: str, y: str, dtype: DType) -> str:
        """``op(x, y)`` of two elements of a type."""
        if op in COMPARE_OPS:
            return f"({x} {COMPARE_SIGNS[op]} {y})"
        if _is_bool(dtype):
            return f"({x} {_LOGIC[op]} {y})"
        if op in (_FLOAT if dtype.is_float else _SIGNED):
            return f"{self.binary(op, dtype)}({x}, {y})"
        if dtype.is_integer:
            u = _unsigned(dtype)
            return f"({VALUE[dtype]})(({u}){x} {_SIGNS[op]} ({u}){y})"
        if op in _SIGNS:
            return self.rounded(f"({x} {_SIGNS[op]} {y})", dtype)
        return self.rounded(f"{_function(_LIBRARY[op], dtype)}({x}, {y})", dtype)

    def cast(self, x: str, source: DType, target: DType) -> str:
        """An element of another type, as ``core.compute.Cast`` says."""
        if source is target:
            return x
        if source.is_narrow or target.is_narrow:
            raise CodegenError(f"a kernel converts {source} to {target}, of which one is only stored")
        if _is_bool(target):
            return f"({x} != 0)"
        if source.is_float and target.is_integer:
            return f"{self.saturated(source, target)}({x})"
        return self.rounded(f"({VALUE[target]}){x}", target)

    def bitcast(self, x: str, source: DType, target: DType) -> str:
        """The bits of an element as another type's of the same width."""
        if MEMORY[source] == MEMORY[target]:
            return self.loaded(self.stored(x, source), target)
        return self.loaded(f"{self.same_bits(source, target)}({self.stored(x, source)})", target)


def number(value: Any, dtype: DType) -> str:
    """A literal, as expressions have it."""
    if dtype.is_narrow:
        return str(stored_bits(np.asarray(value, dtype.numpy)))
    if _is_bool(dtype):
        return "true" if value else "false"
    if dtype.is_integer:
        return _whole(int(value), dtype)
    exact = float(value) if dtype is types.f64 else float(np.asarray(value, dtype.numpy).astype(np.float32))
    if math.isnan(exact):
        return "NAN"
    if math.isinf(exact):
        return "(-INFINITY)" if exact < 0 else "INFINITY"
    text = repr(exact) + ("" if dtype is types.f64 else "f")
    return f"({text})" if text.startswith("-") else text


def stored_number(value: Any, dtype: DType) -> str:
    """A literal, as memory has it; ``value`` is NumPy's scalar."""
    if dtype in HALVES or dtype.is_narrow:
        return str(stored_bits(np.asarray(value, dtype.numpy)))
    return "1" if _is_bool(dtype) and value else "0" if _is_bool(dtype) else number(value, dtype)


def stored_bits(value: np.ndarray[Any, Any]) -> int:
    """The bits of one element that C has no type for."""
    return int(value.reshape(1).view(np.uint8 if value.itemsize == 1 else np.uint16)[0])


def _whole(value: int, dtype: DType) -> str:
    if dtype.n_bytes == 8:
        least = "INT64_MIN" if value == dtype.min and dtype.is_signed else ""
        return least or f"{'' if dtype.is_signed else 'U'}INT64_C({value})"
    if value == -(1 << 31):
        return "INT32_MIN"
    text = str(value) if dtype.is_signed or dtype.n_bytes < 4 else f"{value}u"
    return f"({text})" if value < 0 else text


def _is_bool(dtype: DType) -> bool:
    return dtype is types.bool_


def _wide(dtype: DType) -> DType:
    return types.f64 if dtype is types.f64 else types.f32


def _function(name: str, dtype: DType) -> str:
    return name if dtype is types.f64 else f"{name}f"


def _unsigned(dtype: DType) -> str:
    """In what whole numbers are computed: without a sign, and not narrower than what C promotes to."""
    return "uint64_t" if dtype.n_bytes == 8 else "uint32_t"
