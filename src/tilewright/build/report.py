"""What a person may want to know of a compile: kernels, work, memory, and from which lines of the model they come.

In: a graph in kernels. Out: a dict of JSON values. Not its business: showing it (``runtime.python.report``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tilewright.build.digest import digest_of
from tilewright.build.kernels import KernelBuilder
from tilewright.build.options import FEW_BITS, Options
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, to_text
from tilewright.core.graph import Graph
from tilewright.graph.bits import computed_types
from tilewright.partition.program import Choice, KernelCall, Program, Repeat, SizedProgram, counted_steps, walk_steps
from tilewright.runtime.manifest import ScratchSpec
from tilewright.target.target import Target


def make_report(
    graph: Graph,
    program: Program,
    kernels: KernelBuilder,
    options: Options,
    weights_bytes: int,
    slots: Mapping[str, int],
    scratch: ScratchSpec,
    exact: Sequence[SizedProgram] = (),
) -> dict[str, Any]:
    """What a person may want to know of the compile, as JSON values.

    A kernel's row has the calls of the general program, those of a version for one size where that is the size, and of
    such a version the ``sizes``; where there are others, for ``exact`` sizes, ``exact_sizes``
    has how often each of them calls which kernel. ``found_schedules`` has the steps that a search found, by the
    kernel's name. ``types`` has every op by what it computes in, and why products have no fewer bits.
    """
    calls = _calls(program)
    loops = [s.body for s in walk_steps(program) if isinstance(s, Repeat)]
    repeated = {s.kernel for body in loops for s in walk_steps(body) if isinstance(s, KernelCall)}
    versions = [v for s in walk_steps(program) if isinstance(s, Choice) for v in s.versions]
    by_kernel = {v.call.kernel: v for v in versions}
    rows = []
    for name, kernel in kernels.kernels.items():
        mine = calls.get(name, [])
        # How often a loop goes round is known at run time only.
        work = None if name in repeated else kernels.work[name]
        rows.append({
            "name": name,
            "ops": list(mine[0][0].ops) if mine else [],
            "calls": _total(mine),
            "object_bytes": kernels.sizes.get(name, 0),
            "locations": list(dict.fromkeys(c.loc.text for c, _ in mine)),
            "products": list(kernels.products[name]),
            "notes": list(kernel.notes),
            **({"sizes": {v.symbol.name: v.size}} if (v := by_kernel.get(name)) else {}),
            "work": None if work is None else asdict(work),
        })  # fmt: skip
    sized = [
        {
            "sizes": dict(s.sizes),
            "calls": {kernel: _total(mine) for kernel, mine in _calls(s.program).items()},
            "arena_bytes": _size(s.program.arena_bytes),
        }
        for s in exact
    ]
    types = computed_types(graph, FEW_BITS.get(options.precision))
    return {
        "model": graph.name,
        "options": options.shown(),
        "target": _target(kernels.target, options),
        "program": digest_of(program, exact, slots),
        "n_ops": len(graph.nodes()),
        "n_kernel_calls": sum(map(_total, calls.values())) - len(versions),
        "n_kernels": len(rows),
        "kernels": rows,
        "types": [
            {"op": t.op, "type": t.type, "why": t.why, "ops": len(at), "locations": at if t.why else []}
            for t, at in types.items()
        ],
        "memory": {
            "arena_bytes": _size(program.arena_bytes),
            "lower_bound_bytes": program.lower_bound,
            "scratch_bytes": scratch.fixed,
            "scratch_bytes_per_thread": scratch.per_thread,
            "weights_bytes": weights_bytes,
        },
        **({"exact_sizes": sized} if sized else {}),
        **({"found_schedules": kernels.by_search} if kernels.by_search else {}),
    }


Counted = tuple[KernelCall, int]
"""A call, and how often a run makes it where that is known, else 1. Of many parts that can be a large number."""


def _calls(program: Program) -> dict[str, list[Counted]]:
    """Every call, by its kernel."""
    found: dict[str, list[Counted]] = {}
    for step, times in counted_steps(program):
        if isinstance(step, KernelCall):
            found.setdefault(step.kernel, []).append((step, times))
    return found


def _total(calls: Sequence[Counted]) -> int:
    """How often a run makes these calls, all together."""
    return sum(times for _, times in calls)


def _target(cpu: Target, options: Options) -> str:
    """The name of what runs the code: a GPU's, the CPU's of this machine, or that of a CPU's record."""
    if (gpu := options.alone_on_gpu) is not None:
        return gpu.name
    return cpu.cpu if cpu.is_native else cpu.name


def _size(d: Dim) -> int | str:
    return d if is_known(d) else to_text(d)
