"""Tiny compiled models, written by hand in LLVM IR to the runtime's calling convention."""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.cpu.llvm import compile_ir
from tilewright.runtime.manifest import Constraint, Manifest, SymbolSpec, TargetSpec, TensorSpec
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.values import aligned_bytes

TARGET = TargetSpec(llvm.get_process_triple(), "generic")

# y[n, 4] = 2 * x + weights[0], in two parallel loops through the arena, a task a row; its kernels are another object
SCALE_ENTRY = """
declare void @tw_parallel_for(ptr, ptr, i64, i32)
declare void @double_row(ptr, i64)
declare void @shift_row(ptr, i64)

define i32 @tw_run(ptr %args, ptr %dims, ptr %weights, ptr %arena, i32 %threads) {
  %ctx = alloca [4 x ptr]
  %x = load ptr, ptr %args
  %at_y = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %at_y
  store ptr %x, ptr %ctx
  %c1 = getelementptr ptr, ptr %ctx, i64 1
  store ptr %y, ptr %c1
  %c2 = getelementptr ptr, ptr %ctx, i64 2
  store ptr %weights, ptr %c2
  %c3 = getelementptr ptr, ptr %ctx, i64 3
  store ptr %arena, ptr %c3
  %n = load i64, ptr %dims
  call void @tw_parallel_for(ptr @double_row, ptr %ctx, i64 %n, i32 %threads)
  call void @tw_parallel_for(ptr @shift_row, ptr %ctx, i64 %n, i32 %threads)
  ret i32 0
}

define void @tw_plan(ptr %dims, ptr %out) {
  %n = load i64, ptr %dims
  %bytes = mul i64 %n, 16
  store i64 %bytes, ptr %out
  %o1 = getelementptr i64, ptr %out, i64 1
  store i64 %n, ptr %o1
  %o2 = getelementptr i64, ptr %out, i64 2
  store i64 4, ptr %o2
  ret void
}
"""

SCALE_KERNELS = """
define void @double_row(ptr %ctx, i64 %row) {
  %x = load ptr, ptr %ctx
  %c3 = getelementptr ptr, ptr %ctx, i64 3
  %arena = load ptr, ptr %c3
  %from = getelementptr <4 x float>, ptr %x, i64 %row
  %to = getelementptr <4 x float>, ptr %arena, i64 %row
  %v = load <4 x float>, ptr %from, align 4
  %d = fadd <4 x float> %v, %v
  store <4 x float> %d, ptr %to, align 4
  ret void
}

define void @shift_row(ptr %ctx, i64 %row) {
  %c1 = getelementptr ptr, ptr %ctx, i64 1
  %y = load ptr, ptr %c1
  %c2 = getelementptr ptr, ptr %ctx, i64 2
  %weights = load ptr, ptr %c2
  %c3 = getelementptr ptr, ptr %ctx, i64 3
  %arena = load ptr, ptr %c3
  %from = getelementptr <4 x float>, ptr %arena, i64 %row
  %to = getelementptr <4 x float>, ptr %y, i64 %row
  %v = load <4 x float>, ptr %from, align 4
  %w = load float, ptr %weights
  %w1 = insertelement <4 x float> poison, float %w, i32 0
  %ws = shufflevector <4 x float> %w1, <4 x float> poison, <4 x i32> zeroinitializer
  %s = fadd <4 x float> %v, %ws
  store <4 x float> %s, ptr %to, align 4
  ret void
}
"""

# y = the positive elements of x[n], whose number the data decide; fails with code 1 when x[0] is -1
POSITIVE = """
define i32 @tw_run(ptr %args, ptr %dims, ptr %weights, ptr %arena, i32 %threads) {
entry:
  %x = load ptr, ptr %args
  %at_y = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %at_y
  %n = load i64, ptr %dims
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %end
body:
  %from = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %from
  %first = icmp eq i64 %i, 0
  %minus = fcmp oeq float %v, -1.0
  %bad = and i1 %first, %minus
  br i1 %bad, label %fail, label %test
test:
  %keep = fcmp ogt float %v, 0.0
  br i1 %keep, label %take, label %next
take:
  %to = getelementptr float, ptr %y, i64 %k
  store float %v, ptr %to
  br label %next
next:
  %one = phi i64 [ 0, %test ], [ 1, %take ]
  %k1 = add i64 %k, %one
  %i1 = add i64 %i, 1
  br label %loop
end:
  %slot = getelementptr i64, ptr %dims, i64 1
  store i64 %k, ptr %slot
  ret i32 0
fail:
  ret i32 1
}

define void @tw_plan(ptr %dims, ptr %out) {
  store i64 0, ptr %out
  %slot = getelementptr i64, ptr %dims, i64 1
  %most = load i64, ptr %slot
  %o1 = getelementptr i64, ptr %out, i64 1
  store i64 %most, ptr %o1
  ret void
}
"""

# y[4] = x, once the second weight is not 0; before it waits for that it sets the first; fails where x[0] is below 0
GATE = """
define i32 @tw_run(ptr %args, ptr %dims, ptr %weights, ptr %arena, i32 %threads) {
  %x = load ptr, ptr %args
  %at_y = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %at_y
  store atomic i32 1, ptr %weights seq_cst, align 4
  %gate = getelementptr i32, ptr %weights, i64 1
  br label %wait
wait:
  %open = load atomic i32, ptr %gate seq_cst, align 4
  %is_open = icmp ne i32 %open, 0
  br i1 %is_open, label %go, label %wait
go:
  %v = load <4 x float>, ptr %x, align 4
  %first = extractelement <4 x float> %v, i64 0
  %bad = fcmp olt float %first, 0.0
  store <4 x float> %v, ptr %y, align 4
  %code = zext i1 %bad to i32
  ret i32 %code
}

define void @tw_plan(ptr %dims, ptr %out) {
  store i64 0, ptr %out
  %o1 = getelementptr i64, ptr %out, i64 1
  store i64 4, ptr %o1
  ret void
}
"""


@functools.cache
def object_of(text: str) -> bytes:
    """Object code of IR text, compiled once a test process."""
    return compile_ir(text)


def scale_parts(shift: float = 10.0, **fields: Any) -> tuple[Manifest, list[ObjectImage], np.ndarray]:
    """Manifest, objects and weights of ``y[n, 4] = 2 * x[n, 4] + shift``."""
    values: dict[str, Any] = {
        "tilewright_version": "0",
        "target": TARGET,
        "inputs": (TensorSpec("x", "float32", ("n", 4)),),
        "outputs": (TensorSpec("y", "float32", ("n", 4)),),
        "symbols": (SymbolSpec("n", 0, 100_000),),
        "n_dims": 1,
        "report": {"model": "scale"},
    }
    images = [ObjectImage("entry", object_of(SCALE_ENTRY)), ObjectImage("kernels", object_of(SCALE_KERNELS))]
    return Manifest(**{**values, **fields}), images, np.array([shift, 0, 0], np.float32)


def scale_model(shift: float = 10.0, threads: int | None = 2, **fields: Any) -> LoadedModel:
    """``y[n, 4] = 2 * x[n, 4] + shift``."""
    return LoadedModel(*scale_parts(shift, **fields), threads=threads)


def gate_model() -> tuple[LoadedModel, np.ndarray]:
    """``y[4] = x[4]``, which fails where ``x[0] < 0``; and two numbers: calls set the first and wait for the second."""
    spec = TensorSpec("x", "float32", (4,))
    manifest = Manifest("0", TARGET, (spec,), (TensorSpec("y", "float32", (4,)),), failures=("", "x[0] is negative"))
    gate = aligned_bytes(bytearray(64)).view(np.int32)
    model = LoadedModel(manifest, [ObjectImage("entry", object_of(GATE))], gate)
    assert np.shares_memory(model._weights, gate)
    return model, gate


def positive_model() -> LoadedModel:
    """The positive elements of ``x[n]``; fails when ``x[0]`` is -1."""
    manifest = Manifest(
        "0", TARGET,
        inputs=(TensorSpec("x", "float32", ("n",)),),
        outputs=(TensorSpec("kept", "float32", ("k",)),),
        symbols=(SymbolSpec("n"),), computed=(SymbolSpec("k", 0, "n"),), n_dims=2,
        failures=("", "x[0] is -1"), locations=("", "net.py:7"),
    )  # fmt: skip
    return LoadedModel(manifest, [ObjectImage("entry", object_of(POSITIVE))], b"")


def copy_model(
    inputs: list[TensorSpec], outputs: list[TensorSpec], n_bytes: list[int], sizes: list[int], **fields: Any
) -> LoadedModel:
    """Copies ``n_bytes[i]`` of input ``i`` to output ``i``; ``sizes`` are the outputs' static sizes, flattened."""
    run, plan = [], ["store i64 0, ptr %out"]
    for i, count in enumerate(n_bytes):
        run.append(f"""
  %f{i} = getelementptr ptr, ptr %args, i64 {i}
  %from{i} = load ptr, ptr %f{i}
  %t{i} = getelementptr ptr, ptr %args, i64 {len(inputs) + i}
  %to{i} = load ptr, ptr %t{i}
  call void @llvm.memcpy.p0.p0.i64(ptr %to{i}, ptr %from{i}, i64 {count}, i1 false)""")
    for k, size in enumerate(sizes, 1):
        plan.append(f"%o{k} = getelementptr i64, ptr %out, i64 {k}\n  store i64 {size}, ptr %o{k}")
    text = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i32 @tw_run(ptr %args, ptr %dims, ptr %weights, ptr %arena, i32 %threads) {{
{"".join(run)}
  ret i32 0
}}
define void @tw_plan(ptr %dims, ptr %out) {{
  {chr(10).join(plan)}
  ret void
}}
"""
    manifest = Manifest("0", TARGET, tuple(inputs), tuple(outputs), **fields)
    return LoadedModel(manifest, [ObjectImage("entry", object_of(text))], b"")


def constrained(rule: str, reason: str = "") -> dict[str, Any]:
    """Fields for ``scale_parts`` with one constraint."""
    return {"constraints": (Constraint(rule, reason),)}
