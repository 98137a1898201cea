"""Computations that the tests of the tile level share, and how to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from benchmarks.computations import ZERO, F, convolution, layer_norm, matmul, relu, softmax

from tilewright.choose.default import RULE_BROKE, schedule_with_steps
from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Const,
    Inside,
    Load,
    Reduction,
    Select,
    Serial,
    Stage,
    Value,
    axes_for,
    syms,
)
from tilewright.core.expr import Dim, Sym, evaluate
from tilewright.target.target import Target
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel, Space, Update, walk
from tilewright.tile.lower import lower
from tilewright.tile.pack import packed_array
from tilewright.tile.rewrite import loads_of
from tilewright.tile.verify import verify

WIDE = replace(Target.parse("x86-64-v4"), n_cores=2)
SMALL = replace(WIDE, vector_bytes=16, n_vector_registers=16)
SCALAR = replace(
    WIDE, vector_bytes=4, n_vector_registers=32, fma_ports=1, has_masks=False, has_prefetch=False, load_ports=1,
    issue_width=1.0, n_cores=1,
)  # fmt: skip
"""A microcontroller: registers of one element."""
__all__ = ["ZERO", "F", "convolution", "layer_norm", "matmul", "relu", "softmax"]  # beside those below


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


def running_sum(n: Dim, m: Dim, back: int = 1, *, is_guarded: bool = True) -> Computation:
    """``Y[t, j] = Y[t - back, j] + X[t, j]``, from 0 on where it is guarded."""
    x, y = Buffer("X", F, (n, m)), Buffer("Y", F, (n, m))
    t, (j,) = axis("t", n), axes_for((m,))
    before: Value = Load(y, (t.sym - back, j.sym))
    if is_guarded:
        before = Select(Inside((t.sym - back,)), before, ZERO)
    stage = Stage((y,), (j,), (t.sym, j.sym), (before + x[t.sym, j.sym],))
    return Computation((x,), (y,), (Serial(t, (stage,)),))


def transpose(m: Dim, n: Dim, dtype: types.DType = F) -> Computation:
    x, y = Buffer("X", dtype, (m, n)), Buffer("Y", dtype, (n, m))
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
    computation: Computation, *constants: str, sizes: Mapping[str, int] | None = None, machine: Target = SMALL
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


def partial_sums(kernel: Kernel) -> list[Buffer]:
    """Buffers in registers that are summed up in others: what a reduction is made in when its steps are lanes."""
    registers = {p.buffer for p in kernel.places if p.space is Space.REG}
    updates = [s for s in walk(kernel.body) if isinstance(s, Update)]
    return list(dict.fromkeys(x.buffer for s in updates for x in loads_of(s) if x.buffer in registers))


def axis(name: str, extent: Dim) -> Axis:
    return axes_for((extent,), name)[0]
