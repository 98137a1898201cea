"""Computations at the tile level that benchmarks and tests share: product, convolution, softmax, layer norm.

In: sizes. Out: a ``Computation`` that names its inputs, in f32 unless said otherwise. Not its business: schedules,
running.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Inside,
    Reduction,
    Select,
    Stage,
    Unary,
    Value,
    axes_for,
    syms,
)
from tilewright.core.expr import Dim
from tilewright.core.types import DType

F = types.f32
ZERO = Const(0, F)


def relu(v: Value) -> Value:
    """``max(v, 0)``."""
    return Binary("max", v, ZERO)


def wide(v: Value, dtype: DType) -> Value:
    """``v`` in another type."""
    return v if v.dtype is dtype else Cast(v, dtype)


def matmul(
    m: Dim, n: Dim, k: Dim, epilogue: bool = True, dtypes: tuple[DType, DType, DType] = (F, F, F)
) -> Computation:
    """``relu(A @ B + bias)``, or ``A @ B``; ``dtypes`` of A, of B, and of the sums, the bias and the result."""
    left, right, out = dtypes
    a, b, bias = Buffer("A", left, (m, k)), Buffer("B", right, (k, n)), Buffer("bias", out, (n,))
    c, t = Buffer("C", out, (m, n)), Buffer("T", out, (m, n))
    axes, reduced = axes_for((m, n)), axes_for((k,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    term, zero = wide(a[i, x], out) * wide(b[x, j], out), Const(0, out)
    product = Stage((t if epilogue else c,), axes, (i, j), (term,), Reduction(reduced, "add", (zero,)))
    if not epilogue:
        return Computation((a, b), (c,), (product,))
    last = Stage((c,), axes, (i, j), (Binary("max", t[i, j] + bias[j], zero),))
    return Computation((a, b, bias), (c,), (product, last), (t,))


def convolution(
    size: Sequence[int], out: int, window: Sequence[int], stride: int = 1, pad: int = 0, groups: int = 1,
    dilation: int = 1,
) -> Computation:  # fmt: skip
    """NHWC input, weights ``[out, in / groups, kh, kw]``, bias and ReLU; padding as a guard."""
    n, h, w, c = size
    kh, kw = window
    oh, ow = ((n + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for n, k in ((h, kh), (w, kw)))
    inner = c // groups
    x, weights, bias = Buffer("X", F, (n, h, w, c)), Buffer("W", F, (out, inner, kh, kw)), Buffer("bias", F, (out,))
    t, y = Buffer("T", F, (n, oh, ow, out)), Buffer("Y", F, (n, oh, ow, out))
    axes, reduced = axes_for((n, oh, ow, out)), axes_for((inner, kh, kw), "k")
    (b, row, col, o), (ic, dy, dx) = syms(axes), syms(reduced)
    at_y, at_x = row * stride + dy * dilation - pad, col * stride + dx * dilation - pad
    channel = ic + (o // (out // groups)) * inner
    value: Value = x[b, at_y, at_x, channel]
    if pad:
        value = Select(Inside((at_y, h - 1 - at_y, at_x, w - 1 - at_x)), value, ZERO)
    product = Stage((t,), axes, (b, row, col, o), (value * weights[o, ic, dy, dx],), Reduction(reduced, "add", (ZERO,)))
    last = axes_for((n, oh, ow, out), "j")
    finish = Stage((y,), last, syms(last), (relu(t[syms(last)] + bias[last[3].sym]),))
    return Computation((x, weights, bias), (y,), (product, finish), (t,))


def softmax(r: Dim, c: Dim) -> Computation:
    """Along the rows of ``X``, in four stages."""
    x, y = Buffer("X", F, (r, c)), Buffer("Y", F, (r, c))
    m, s, e = Buffer("m", F, (r,)), Buffer("s", F, (r,)), Buffer("e", F, (r, c))
    rows, cols = axes_for((r,), "r"), axes_for((c,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    lowest = Const(float("-inf"), F)
    stages = (
        Stage((m,), rows, (i,), (x[i, j],), Reduction(cols, "max", (lowest,))),
        Stage((e,), (*rows, *cols), (i, j), (Unary("exp", x[i, j] - m[i]),)),
        Stage((s,), rows, (i,), (e[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((y,), (*rows, *cols), (i, j), (e[i, j] / s[i],)),
    )
    return Computation((x,), (y,), stages, (m, s, e))


def layer_norm(r: Dim, c: int) -> Computation:
    """Along the rows of ``X``, times ``G``."""
    x, y, gain = Buffer("X", F, (r, c)), Buffer("Y", F, (r, c)), Buffer("G", F, (c,))
    m, v = Buffer("m", F, (r,)), Buffer("v", F, (r,))
    rows, cols = axes_for((r,), "r"), axes_for((c,), "c")
    (i,), (j,) = syms(rows), syms(cols)
    share = Const(1 / c, F)
    centred = x[i, j] - m[i] * share
    spread = Unary("rsqrt", v[i] * share + Const(1e-5, F))
    stages = (
        Stage((m,), rows, (i,), (x[i, j],), Reduction(cols, "add", (ZERO,))),
        Stage((v,), rows, (i,), (centred * centred,), Reduction(cols, "add", (ZERO,))),
        Stage((y,), (*rows, *cols), (i, j), (centred * spread * gain[j],)),
    )
    return Computation((x, gain), (y,), stages, (m, v))
