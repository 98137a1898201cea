"""What a person may want to know of a compile: kernels, work, memory, and from which lines of the model they come.

In: a graph in kernels. Out: a dict of JSON values. Not its business: showing it (``runtime.python.report``).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewright.build.kernels import KernelBuilder
from tilewright.build.options import Options
from tilewright.core.expr import to_text
from tilewright.core.graph import Graph
from tilewright.partition.program import KernelCall, Program, Repeat, walk_steps


def make_report(
    graph: Graph, program: Program, kernels: KernelBuilder, options: Options, weights_bytes: int
) -> dict[str, Any]:
    """What a person may want to know of the compile, as JSON values."""
    calls = [s for s in walk_steps(program) if isinstance(s, KernelCall)]
    loops = [s.body for s in walk_steps(program) if isinstance(s, Repeat)]
    repeated = {s.kernel for body in loops for s in walk_steps(body) if isinstance(s, KernelCall)}
    rows = []
    for name, kernel in kernels.kernels.items():
        mine = [c for c in calls if c.kernel == name]
        work = None if name in repeated else kernels.work[name]
        rows.append({
            "name": name,
            "ops": list(mine[0].ops) if mine else [],
            "calls": len(mine),
            "object_bytes": kernels.sizes.get(name, 0),
            "locations": [c.loc.text for c in mine],
            "products": list(kernels.products[name]),
            "notes": list(kernel.notes),
            "work": None if work is None else asdict(work),
        })  # fmt: skip
    arena = program.arena_bytes
    scratch = kernels.most_scratch()
    return {
        "model": graph.name,
        "options": options.shown(),
        "target": kernels.target.cpu if kernels.target.is_native else kernels.target.name,
        "n_ops": len(graph.nodes()),
        "n_kernel_calls": len(calls),
        "n_kernels": len(rows),
        "kernels": rows,
        "memory": {
            "arena_bytes": arena if isinstance(arena, int) else to_text(arena),
            "lower_bound_bytes": program.lower_bound,
            "scratch_bytes": scratch.fixed,
            "scratch_bytes_per_thread": scratch.per_thread,
            "weights_bytes": weights_bytes,
        },
    }
