"""Computations that the tests of the tile level share, and how to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
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
from tilewright.core.expr import Dim, Sym, evaluate
from tilewright.tile.default import RULE_BROKE, schedule_with_steps
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel
from tilewright.tile.lower import lower
from tilewright.tile.machine import Machine
from tilewright.tile.pack import packed_array
from tilewright.tile.verify import verify

F = types.f32
SMALL = Machine(vector_bytes=16, n_vector_registers=16)
WIDE = Machine()
ZERO = Const(0, F)


def relu(v: Value) -> Value:
    return Binary("max", v, ZERO)


def matmul(m: Dim, n: Dim, k: Dim, epilogue: bool = True) -> Computation:
    """``relu(A @ B + bias)``, or ``A @ B``."""
    a, b, bias = Buffer("A", F, (m, k)), Buffer("B", F, (k, n)), Buffer("bias", F, (n,))
    c, t = Buffer("C", F, (m, n)), Buffer("T", F, (m, n))
    axes, reduced = axes_for((m, n)), axes_for((k,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    product = Stage((t if epilogue else c,), axes, (i, j), (a[i, x] * b[x, j],), Reduction(reduced, "add", (ZERO,)))
    if not epilogue:
        return Computation((a, b), (c,), (product,))
    return Computation((a, b, bias), (c,), (product, Stage((c,), axes, (i, j), (relu(t[i, j] + bias[j]),))), (t,))


def convolution(
    size: Sequence[int], out: int, window: Sequence[int], stride: int = 1, pad: int = 0, groups: int = 1
) -> Computation:
    """NHWC input, weights ``[out, in / groups, kh, kw]``, bias and ReLU; padding as a guard."""
    n, h, w, c = size
    kh, kw = window
    oh, ow = (h + 2 * pad - kh) // stride + 1, (w + 2 * pad - kw) // stride + 1
    inner = c // groups
    x, weights, bias = Buffer("X", F, (n, h, w, c)), Buffer("W", F, (out, inner, kh, kw)), Buffer("bias", F, (out,))
    t, y = Buffer("T", F, (n, oh, ow, out)), Buffer("Y", F, (n, oh, ow, out))
    axes, reduced = axes_for((n, oh, ow, out)), axes_for((inner, kh, kw), "k")
    (b, row, col, o), (ic, dy, dx) = syms(axes), syms(reduced)
    at_y, at_x = row * stride + dy - pad, col * stride + dx - pad
    channel = ic + (o // (out // groups)) * inner
    value: Value = x[b, at_y, at_x, channel]
    if pad:
        value = Select(Inside((at_y, h - 1 - at_y, at_x, w - 1 - at_x)), value, ZERO)
    product = Stage((t,), axes, (b, row, col, o), (value * weights[o, ic, dy, dx],), Reduction(reduced, "add", (ZERO,)))
    last = axes_for((n, oh, ow, out), "j")
    finish = Stage((y,), last, syms(last), (relu(t[syms(last)] + bias[last[3].sym]),))
    return Computation((x, weights, bias), (y,), (product, finish), (t,))


def softmax(r: Dim, c: Dim) -> Computation:
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


def reduction(shape: Sequence[Dim], axis: int, op: str, dtype: types.DType = F) -> Computation:
    """One axis of an array reduced by ``op``."""
    x = Buffer("X", dtype, tuple(shape))
    y = Buffer("Y", dtype, tuple(d for k, d in enumerate(shape) if k != axis))
    every = axes_for(shape)
    kept = tuple(a for k, a in enumerate(every) if k != axis)
    start = Const({"add": 0, "mul": 1, "max": dtype.min, "min": dtype.max}[op], dtype)
    stage = Stage((y,), kept, syms(kept), (x[syms(every)],), Reduction((every[axis],), op, (start,)))
    return Computation((x,), (y,), (stage,))


def elementwise(shape: Sequence[Dim], dtype: types.DType = F) -> Computation:
    x, y, z = (Buffer(n, dtype, tuple(shape)) for n in "XYZ")
    axes = axes_for(shape)
    return Computation((x, y), (z,), (Stage((z,), axes, syms(axes), (x[syms(axes)] + y[syms(axes)],)),))


def transpose(m: Dim, n: Dim) -> Computation:
    x, y = Buffer("X", F, (m, n)), Buffer("Y", F, (n, m))
    axes = axes_for((n, m))
    i, j = syms(axes)
    return Computation((x,), (y,), (Stage((y,), axes, (i, j), (x[j, i],)),))


def constants_of(computation: Computation, *names: str) -> tuple[Buffer, ...]:
    return tuple(b for b in computation.inputs if b.name in names)


def arrays_of(computation: Computation, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs, outputs full of garbage."""
    rng = np.random.default_rng(seed)
    env = {s: n for s, n in ((Sym(k), v) for k, v in sizes.items())}
    found = {}
    for b in (*computation.inputs, *computation.outputs):
        shape = [evaluate(d, env) for d in b.shape]
        if b.dtype.is_float:
            found[b.name] = rng.standard_normal(shape).astype(b.dtype.numpy)
        else:
            found[b.name] = rng.integers(0, 2 if b.dtype is types.bool_ else 50, shape).astype(b.dtype.numpy)
    return found


def outputs(
    kernel: Kernel, computation: Computation, sizes: Mapping[str, int], reverse: bool = False
) -> list[np.ndarray]:
    """What the interpreter computes for the computation's random inputs."""
    arrays = arrays_of(computation, sizes)
    given = dict(arrays)
    for p in kernel.packed:
        given[p.param.name] = packed_array(p, arrays[p.source.name])
    done = run(kernel, given, sizes, reverse=reverse)
    return [done[b.name].reshape(-1).astype(np.float64) for b in computation.outputs]


def check_default(
    computation: Computation, *constants: str, sizes: Mapping[str, int] | None = None, machine: Machine = SMALL
) -> Kernel:
    """The default schedule computes what the plain loops compute, satisfies the spec, and gives its kernel back."""
    fixed = constants_of(computation, *constants)
    result = schedule_with_steps(computation, machine, fixed)
    verify(result.kernel)
    assert not any(RULE_BROKE in note for note in result.kernel.notes)
    want = outputs(lower(computation), computation, sizes or {})
    got = outputs(result.kernel, computation, sizes or {}, reverse=True)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
    return result.kernel


def axis(name: str, extent: Dim) -> Axis:
    return axes_for((extent,), name)[0]
