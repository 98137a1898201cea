"""The largest error of every elementary function over all floats, in units of the last place.

    python -m benchmarks.numerics                      every fp32 number, every fp16, every bf16: 30 minutes of one core
    python -m benchmarks.numerics sin --stride 257     one fp32 number in 257

In: names of ops (default: all of the table below). Out: a Markdown table, the one of ``docs/numerics.md``: for each
function and dtype the largest error, and the argument that has it. The compiled op is compared with NumPy in f64.
Not its business: f64, whose sweep against mpmath is in ``tests/codegen/test_math.py``.

An error of 0.5 ULP is a correctly rounded result. Where the exact result is below the smallest normal number, a unit is
the smallest denormal, and 0 is right for bf16 (processors' bf16 instructions flush denormals); beyond the largest
number, infinity is right.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_dtypes
import numpy as np

from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.core import types
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import Array, DType, TensorType
from tilewright.runtime.python.model import LoadedModel

Function = Callable[[Array], Array]
CHUNK = 1 << 15
"""Numbers at a time: what is computed of them stays in a second-level cache."""
DTYPES = (types.f32, types.f16, types.bf16)
ALL_F32 = 1 << 32


def _erf(x: Array) -> Array:
    """The error function: two terms of its series below 2**-14 (what follows is under 2e-18), a sign from 6 on."""
    size = np.abs(x)
    result = np.where(size < 6, 2 / math.sqrt(math.pi) * (x - x * x * x / 3), np.copysign(1.0, x))
    result[np.isnan(x)] = np.nan
    between = (size >= 2**-14) & (size < 6)
    result[between] = [math.erf(v) for v in x[between].tolist()]
    return result


def _sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x)))


FUNCTIONS: dict[str, Function] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "silu": lambda x: np.where(x == -np.inf, np.nan, x * _sigmoid(x)),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}


LEAST = {"sigmoid": -88.0, "silu": -88.0}
"""Arguments from which on an error is counted: below, exp(-x) overflows, and results under 1e-36 become 0."""


def compiled(name: str, dtype: DType, target: str = "native") -> LoadedModel:
    """The op of this name as a model of one vector of any length."""
    pool = Pool()
    x = pool.input("x", TensorType(dtype, (Sym("n", 1),)))
    return compile_graph(Graph(name, pool, (x,), (Builder(pool)(ops.by_name(name), x),), ("y",)), target=target)


def all_numbers(dtype: DType, stride: int) -> Iterator[Array]:
    """Every ``stride``-th bit pattern, in chunks."""
    width = np.dtype(f"u{dtype.n_bytes}")
    for first in range(0, 1 << dtype.bits, CHUNK * stride):
        last = min(first + CHUNK * stride, 1 << dtype.bits)
        yield np.arange(first, last, stride, dtype=np.uint64).astype(width).view(dtype.numpy)


def errors(got: Array, want: Array) -> Array:
    """Units of the last place between results and f64; 0 where both are infinite or NaN, infinite where one is."""
    dtype = got.dtype
    info = ml_dtypes.finfo(dtype)
    exponent = ((want.view(np.int64) >> 52) & 0x7FF) - 1023
    np.maximum(exponent, int(info.minexp), out=exponent)
    units = ((1023 + int(info.nmant) - exponent) << 52).view(np.float64)
    with np.errstate(all="ignore"):
        rounded, g = want.astype(dtype).astype(np.float64), got.astype(np.float64)
        error = np.abs(g - want) * units
    if dtype == types.bf16.numpy:
        error[(g == 0) & (np.abs(want) < float(info.smallest_normal))] = 0
    odd = ~(np.isfinite(g) & np.isfinite(rounded))
    if odd.any():
        same = (g == rounded) | (np.isnan(g) & np.isnan(want))
        error = np.where(same & odd, 0.0, np.where(odd & ~(np.isfinite(g) & (error < 1)), np.inf, error))
    return error


def worst(name: str, dtype: DType, stride: int = 1, targets: Sequence[str] = ("native",)) -> tuple[float, float]:
    """The largest error of one function on any of the targets, and an argument that has it."""
    models = [compiled(name, dtype, target) for target in targets]
    found = 0.0, 0.0
    for x in all_numbers(dtype, stride):
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name](x.astype(np.float64))
        for model in models:
            error = errors(np.asarray(model(x)), want)
            error[x < LEAST.get(name, -np.inf)] = 0
            at = int(np.argmax(error))
            if error[at] > found[0]:
                found = float(error[at]), float(x[at])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="largest errors of elementary functions")
    parser.add_argument("names", nargs="*", choices=[*FUNCTIONS, []], help="functions (default: all)")
    parser.add_argument("--stride", type=int, default=1, help="take one fp32 number in so many")
    parser.add_argument("--targets", nargs="+", default=["native", "x86-64"], help="instruction sets")
    options = parser.parse_args(arguments)
    print(f"fp32: one number in {options.stride}; fp16 and bf16: all; targets {', '.join(options.targets)}\n")
    print("| function | fp32 | at | fp16 | bf16 |\n| --- | --- | --- | --- | --- |")
    for name in options.names or FUNCTIONS:
        f32, f16, bf16 = (worst(name, d, options.stride if d is types.f32 else 1, options.targets) for d in DTYPES)
        print(f"| {name} | {f32[0]:.2f} | {f32[1]:.9g} | {f16[0]:.2f} | {bf16[0]:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
