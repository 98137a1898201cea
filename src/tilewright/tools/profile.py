"""Where the time of a model goes: each kernel's share, and how near it is to what the machine can do at all.

In: a graph with fixed sizes, and inputs. Out: ``Profile``. Not its business: whole-model latency (``benchmarks``).

Code built for this runs one kernel at a time, never two side by side, and adds the ticks of every kernel call to
counters behind the dimensions. A kernel's limit is the roofline (Williams, Waterman and Patterson, 2009): the larger of
its operations at the measured peak and its bytes at the measured bandwidth; weights count as read from memory when all
weights together exceed the last-level cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.build.assemble import assemble, make_parts
from tilewright.build.kernels import KernelBuilder, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.cost.price import price_of
from tilewright.codegen.cpu.peak import Peak, PeakMeter
from tilewright.core.graph import Graph
from tilewright.core.types import Array, f32
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.shapes import Shape, ShapeBinder
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target

CACHED_BYTES = 512 << 10
"""How much is read again and again to measure the bandwidth of a kernel's activations: they stay in cached memory."""


@dataclass(frozen=True)
class KernelTime:
    """All calls of one kernel in one run. ``limit`` is None where the work isn't known before the call.

    ``seconds``, ``limit`` and ``price`` are seconds, ``flops`` operations, ``n_bytes`` bytes read and written at least.
    ``price`` is what the compiler expects; None for a kernel whose sizes the data decide.
    """

    name: str
    ops: tuple[str, ...]
    calls: int
    seconds: float
    flops: int | None
    n_bytes: int | None
    limit: float | None
    price: float | None
    locations: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """Kernels by time, longest first; ``seconds`` is the whole call's median, what is outside of kernels included."""

    kernels: tuple[KernelTime, ...]
    seconds: float
    fma_gflops: float
    memory_gb_per_s: float
    cache_gb_per_s: float


def profile(
    graph: Graph, inputs: Sequence[Array], options: Options, *, threads: int | None = None, seconds: float = 1.0
) -> Profile:
    """Compile ``graph`` with counters, run it on ``inputs`` for about ``seconds``, and set times beside limits.

    Rates are measured in the same run, on one core; compute and cached reads scale with ``threads``.
    Raises what compiling and calling raise.
    """
    n_threads = threads or default_threads()
    clock = Clock()
    parts = make_parts(optimise_and_split(graph, options, options.machine, clock), clock)
    artifact = assemble(parts, options, clock, profile=True)
    model = LoadedModel(artifact.manifest, artifact.objects, artifact.weights, threads=n_threads)
    rows = artifact.manifest.report["kernels"]
    meter = PeakMeter(Target.parse(options.target))
    model(*inputs)  # a first call touches new pages
    times: list[float] = []
    counts: list[list[int]] = []
    stop = time.perf_counter() + seconds
    while not times or time.perf_counter() < stop:
        start = time.perf_counter()
        counts.append(model.counters(inputs, len(rows)))
        times.append(time.perf_counter() - start)
    ticks = [statistics.median(c) for c in zip(*counts, strict=True)]
    rate = meter.ticks_per_second()
    peak = meter.measure()
    cached = meter.read_gb_per_s(CACHED_BYTES)
    prices = _prices(parts.split.kernels, peak, n_threads)
    is_cold = artifact.weights.nbytes > meter.target.llc_bytes
    rates = _Rates(
        peak.fma_gflops * 1e9 * n_threads,
        # threads share the memory, each has its own share of the cache
        (peak.read_gb_per_s if is_cold else cached * n_threads) * 1e9,
        cached * 1e9 * n_threads,
    )
    calls = _calls(artifact.manifest, [a.shape for a in inputs])
    timed = zip([{**row, "calls": calls.get(row["name"], 0)} for row in rows], ticks, strict=True)
    kernels = [_kernel_time(row, n / rate, rates, prices) for row, n in timed if row["calls"]]
    kernels.sort(key=lambda k: -k.seconds)
    return Profile(tuple(kernels), statistics.median(times), peak.fma_gflops, peak.read_gb_per_s, cached)


def _calls(manifest: Manifest, shapes: Sequence[Shape]) -> dict[str, int]:
    """How often the program that takes inputs of these shapes calls each kernel."""
    values, _ = ShapeBinder(manifest.inputs, manifest.symbols, manifest.constraints).bind(shapes)
    for row in manifest.report.get("exact_sizes", ()):
        if row["sizes"].items() <= values.items():
            found: dict[str, int] = row["calls"]
            return found
    return {row["name"]: row["calls"] for row in manifest.report["kernels"]}


@dataclass(frozen=True)
class _Rates:
    flops: float
    weights: float
    operands: float


def _prices(made: KernelBuilder, peak: Peak, n_threads: int) -> dict[str, float]:
    """What the compiler expects of a call of each kernel of known sizes, on a core as fast as this one is now."""
    target = Target.host()
    ghz = peak.fma_gflops / (2 * target.lanes(f32) * target.fmas_per_cycle)
    target = replace(target, ghz=ghz, memory_gb_per_s=peak.read_gb_per_s)
    return {
        name: price_of(kernel, target, n_threads=n_threads).seconds
        for name, kernel in made.kernels.items()
        if not kernel.sizes
    }


def _kernel_time(row: dict[str, Any], seconds: float, rates: _Rates, prices: Mapping[str, float]) -> KernelTime:
    work, calls = row["work"], row["calls"]
    flops = n_bytes = limit = None
    if work is not None:
        flops, n_bytes = work["flops"] * calls, (work["constant_bytes"] + work["operand_bytes"]) * calls
        moved = work["constant_bytes"] / rates.weights + work["operand_bytes"] / rates.operands
        limit = max(work["flops"] / rates.flops, moved) * calls
    price = prices[row["name"]] * calls if row["name"] in prices else None
    ops, locations = tuple(row["ops"]), tuple(row["locations"])
    return KernelTime(row["name"], ops, calls, seconds, flops, n_bytes, limit, price, locations)
