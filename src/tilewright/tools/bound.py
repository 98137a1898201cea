"""What no schedule can gain: how long the kernels of a model take at least, by what the machine can do at all.

In: a graph as a program of kernels. Out: seconds of each kernel in one run. Not its business: what they take now
(``tools.search``), what the compiler expects (``choose.cost.price``).

A kernel's bound is a roofline (Williams, Waterman and Patterson, 2009) that schedules stay under: its operations at
the peak of multiply-adds, which is measured here, without those that a schedule may leave out; and its operands, each
once, at the rate of the first-level cache, or its weights at that of memory where all weights exceed the last-level
cache. Operations on numbers of fewer than 32 bits count nothing, since instructions differ in how many they do.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.build.kernels import KernelBuilder, SplitGraph
from tilewright.codegen.cpu.peak import PeakMeter
from tilewright.partition.program import KernelCall, counted_steps
from tilewright.partition.work import surely_done
from tilewright.target.target import Target

NEAREST_BYTES = 16 << 10
"""What is read again and again to measure the rate of a first-level cache: it fits in any."""


def least_seconds(split: SplitGraph, n_threads: int) -> Mapping[str, float]:
    """Of every kernel all calls of one run; kernels without known work take 0."""
    meter, kernels = PeakMeter(Target.host()), split.kernels
    near = meter.read_gb_per_s(NEAREST_BYTES, 0.02) * 1e9 * n_threads
    work = {name: found for name, found in kernels.work.items() if found is not None}
    is_cold = sum(w.constant_bytes for w in work.values()) > meter.target.llc_bytes
    weights = meter.read_gb_per_s() * 1e9 if is_cold else near
    flops = meter.fma_gflops() * 1e9 * n_threads
    calls: dict[str, int] = {}
    for step, times in counted_steps(split.program):
        if isinstance(step, KernelCall):
            calls[step.kernel] = calls.get(step.kernel, 0) + times
    found = {}
    for name, w in work.items():
        moved = w.constant_bytes / weights + w.operand_bytes / near
        counted = w.flops * surely_done(kernels.groups[name].computation) if _is_wide(kernels, name) else 0.0
        found[name] = max(moved, counted / flops) * calls.get(name, 0)
    return found


def _is_wide(kernels: KernelBuilder, name: str) -> bool:
    """Does it compute with floats of 32 bits and more alone?"""
    computation = kernels.groups[name].computation
    buffers = (*computation.inputs, *computation.outputs, *computation.temps)
    return all(b.dtype.is_float and b.dtype.n_bytes >= 4 for b in buffers)
