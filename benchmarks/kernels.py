"""Single kernels of the default schedule: share of the FMA peak, or bandwidth, measured in the same run.

    python -m benchmarks.kernels            every row
    python -m benchmarks.kernels gemm dw    rows whose name contains a word
    python -m benchmarks.kernels gemm --threads 2

In: nothing. Out: a table: best time, GFLOP/s and share of the peak (or GB/s), milliseconds to schedule, emit and
compile, stack references in innermost loops (a register tile must have none), the largest error against NumPy. The
peak is that of f32: bf16 can reach 2.0 of it, u8 by i8 4.0.
Not its business: models (``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import ctypes
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from benchmarks import computations

from tilewright.choose.default import schedule
from tilewright.codegen.cpu.llvm import assembly_of_text, compile_text, emit
from tilewright.codegen.cpu.peak import PeakMeter
from tilewright.codegen.cpu.scratch import start_of
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation
from tilewright.core.types import Array
from tilewright.runtime.cpu.linker import link
from tilewright.target.target import Target
from tilewright.tile.pack import packed_array

KINDS = {
    "": (types.f32, types.f32, types.f32),
    "bf16": (types.bf16, types.bf16, types.f32),
    "u8s8": (types.u8, types.i8, types.i32),
}
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """One row: the kernel, which inputs are constants, its work (FLOPs or bytes), and what NumPy says."""

    name: str
    computation: Computation
    constants: tuple[str, ...]
    expected: Callable[[Arrays], Array]
    flops: float = 0.0
    n_bytes: float = 0.0


def gemm(m: int, n: int, k: int, kind: str = "", *, fixed: bool = True) -> Case:
    """``relu(A @ B + bias)``; with ``fixed`` B is a weight, else it is known at run time only.

    ``kind`` names the operands' types: none for f32, bf16 (summed in f32), u8s8 (summed in i32).
    """
    _, right, out = KINDS[kind]
    name = " ".join(["gemm", *([kind] if kind else []), *([] if fixed else ["run-time B"]), f"{m}x{n}x{k}"])
    n_bytes = float(right.n_bytes * k * n) if m == 1 else 0.0
    exact = np.dtype(np.int32 if out.is_integer else np.float32)
    return Case(
        name, computations.matmul(m, n, k, dtypes=KINDS[kind]), ("B",) if fixed else (),
        lambda v: np.maximum(v["A"].astype(exact) @ v["B"].astype(exact) + v["bias"], 0), 2.0 * m * n * k, n_bytes,
    )  # fmt: skip


def conv(h: int, c: int, out: int, k: int, stride: int = 1, *, depthwise: bool = False) -> Case:
    """NHWC, square, padded to keep the size, bias and ReLU."""
    pad = k // 2
    oh = (h + 2 * pad - k) // stride + 1

    def expected(v: Arrays) -> Array:
        wide = np.pad(v["X"], ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        total = np.zeros((1, oh, oh, out), np.float64)
        for a in range(k):
            for b in range(k):
                part = wide[:, a : a + stride * oh : stride, b : b + stride * oh : stride][:, :oh, :oh]
                total += part * v["W"][:, 0, a, b] if depthwise else part @ v["W"][:, :, a, b].T
        return np.maximum(total + v["bias"], 0)

    flops = 2.0 * oh * oh * out * k * k * (1 if depthwise else c)
    kind = "dw" if depthwise else "conv"
    name = f"{kind} {k}x{k} s{stride} {h}x{h} {c}-{out}"
    computation = computations.convolution((1, h, h, c), out, (k, k), stride, pad, groups=c if depthwise else 1)
    return Case(name, computation, ("W", "bias"), expected, flops)


def softmax(r: int, c: int) -> Case:
    def expected(v: Arrays) -> Array:
        z = np.exp(v["X"] - v["X"].max(1, keepdims=True))
        return np.asarray(z / z.sum(1, keepdims=True))

    return Case(f"softmax {r}x{c}", computations.softmax(r, c), (), expected, n_bytes=8.0 * r * c)


def layer_norm(r: int, c: int) -> Case:
    def expected(a: Arrays) -> Array:
        z = a["X"]
        return np.asarray((z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5) * a["G"])

    return Case(f"layernorm {r}x{c}", computations.layer_norm(r, c), (), expected, n_bytes=8.0 * r * c)


def cases() -> Iterator[Case]:
    for size in ((384, 768, 768), (384, 3072, 768), (384, 768, 3072), (127, 1000, 300), (1, 4096, 4096), (1, 512, 384)):
        yield gemm(*size)
    yield gemm(384, 768, 768, fixed=False)
    for kind in ("bf16", "u8s8"):
        for size in ((384, 768, 768), (384, 768, 3072), (127, 1000, 300), (1, 4096, 4096)):
            yield gemm(*size, kind)
    yield gemm(384, 768, 768, "bf16", fixed=False)
    for shape in (
        (56, 64, 256, 1),
        (56, 64, 64, 3),
        (14, 256, 256, 3),
        (7, 512, 512, 3),
        (56, 128, 128, 3, 2),
        (224, 3, 64, 7, 2),
    ):
        yield conv(*shape)
    for shape in ((112, 32, 32, 3), (14, 576, 576, 3), (56, 144, 144, 3, 2), (28, 240, 240, 5)):
        yield conv(*shape, depthwise=True)
    for rows in ((1536, 128), (4608, 384), (999, 300)):
        yield softmax(*rows)
    yield layer_norm(384, 768)


def innermost_stack_references(assembly: str) -> int:
    """Mentions of the stack in loops without a loop inside, the worst one."""
    lines = assembly.split("\n")
    labels = {m[1]: n for n, line in enumerate(lines) if (m := re.match(r"(\.\w+):", line))}
    jumps = [
        (labels[m[1]], n) for n, s in enumerate(lines) if (m := re.match(r"\s+j\w+\s+(\.\w+)", s)) and m[1] in labels
    ]
    loops = [(a, b) for a, b in jumps if a < b]
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    return max((sum("(%rsp)" in s for s in lines[a:b]) for a, b in inner), default=0)


def aligned(array: Array) -> Array:
    """A copy that starts at a cache line."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def numbers(rng: np.random.Generator, b: Buffer) -> Array:
    """Random elements of a buffer's type; integers over all of it, up to bytes."""
    shape = [int(str(d)) for d in b.shape]
    if b.dtype.is_integer:
        return rng.integers(max(int(b.dtype.min), -128), min(int(b.dtype.max), 255) + 1, shape).astype(b.dtype.numpy)
    return rng.standard_normal(shape, np.float32).astype(b.dtype.numpy)


def measure(case: Case, target: Target, meter: PeakMeter, threads: int, seconds: float) -> str:
    """One row of the table."""
    clock = [time.perf_counter()]
    fixed = [b for b in case.computation.inputs if b.name in case.constants]
    kernel = schedule(case.computation, target, fixed, "row")
    clock.append(time.perf_counter())
    made = emit(kernel, target)
    text = made.text
    clock.append(time.perf_counter())
    library = link([compile_text(text, target)], ["row"])
    clock.append(time.perf_counter())
    rng = np.random.default_rng(0)
    arrays = {b.name: numbers(rng, b) for b in case.computation.inputs}
    given = {name: aligned(a) for name, a in arrays.items()}
    given |= {p.param.name: aligned(packed_array(p, arrays[p.source.name])) for p in kernel.packed}
    for b in kernel.params:
        given.setdefault(b.name, aligned(np.zeros([int(str(d)) for d in b.shape], b.dtype.numpy)))
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(kernel.params), ctypes.c_int32, ctypes.c_void_p)
    function: Any = signature(library.addresses["row"])
    pointers = [given[b.name].ctypes.data for b in kernel.params]
    scratch = aligned(np.zeros(made.scratch.n_bytes(threads), np.uint8))
    at = scratch.ctypes.data + start_of(made.scratch, threads)
    peak = meter.fma_gflops()
    function(*pointers, threads, at)
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        function(*pointers, threads, at)
        best = min(best, time.perf_counter() - start)
    peak = max(peak, meter.fma_gflops()) * threads
    expected = case.expected(arrays).reshape(-1)
    error = float(np.abs(given[case.computation.outputs[0].name].reshape(-1) - expected).max() / np.abs(expected).max())
    rate = f"{case.flops / best / 1e9:7.1f} GFLOP/s {case.flops / best / 1e9 / peak:5.2f}" if case.flops else " " * 21
    bandwidth = f"{case.n_bytes / best / 1e9:6.1f} GB/s" if case.n_bytes else " " * 11
    spent = " + ".join(f"{(b - a) * 1e3:.0f}" for a, b in pairwise(clock))
    stack = innermost_stack_references(assembly_of_text(text, target))
    notes = f"  {'; '.join(kernel.notes)}" if kernel.notes else ""
    return f"{case.name:30s} {best * 1e6:9.1f} us {rate} {bandwidth}  {spent:14s} {stack:3d}  {error:.0e}{notes}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="rows whose name contains one of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    target = Target.host()
    meter = PeakMeter(target)
    print(f"{target.cpu}, FMA peak of a core {meter.fma_gflops():.0f} GFLOP/s")
    print(f"{'kernel':30s} {'best':>12s} {'rate and share of peak':>21s} {'':11s}  {'ms':14s} stack error")
    for case in cases():
        if not options.words or any(w in case.name for w in options.words):
            print(measure(case, target, meter, options.threads, options.seconds), flush=True)


if __name__ == "__main__":
    main()
