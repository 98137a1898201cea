"""Why a kernel has the schedule that it has: what there was to choose from, and what each would cost.

In: a graph with fixed sizes, options. Out: ``Explanation``s. Not its business: measuring (``tools.profile``,
``tools.tune``), printing (``cli.explain``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import FEW_BITS, Clock, Options
from tilewright.build.passes import graph_passes, storing_passes
from tilewright.choose.candidates import candidates
from tilewright.choose.cost.price import Price, price_of
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.passes import run_pipeline
from tilewright.graph.bits import ComputedType, computed_types
from tilewright.partition.program import KernelCall, walk_steps
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target


@dataclass(frozen=True)
class Alternative:
    """One schedule of a kernel: how it came about and its price; ``is_chosen`` of the one that the compiler takes."""

    made: str
    price: Price
    is_chosen: bool


@dataclass(frozen=True)
class Explanation:
    """A kernel: its name and ops, how often a call of the model runs it, and its schedules, the chosen one first."""

    name: str
    ops: str
    calls: int
    alternatives: tuple[Alternative, ...]

    @property
    def chosen(self) -> Price:
        """The price of the schedule that the compiler takes, in seconds of one call of the kernel."""
        return self.alternatives[0].price


def explain_types(graph: Graph, options: Options) -> dict[ComputedType, list[str]]:
    """What every op of the optimised graph computes in and why products have no fewer bits, with the ops' locations."""
    passes = (*storing_passes(options), *graph_passes(options, options.machine))
    return computed_types(run_pipeline(graph, passes), FEW_BITS.get(options.precision))


def explain(
    graph: Graph, options: Options, *, threads: int | None = None, machine: Target | None = None
) -> tuple[Explanation, ...]:
    """The kernels of ``graph``, dearest first, each with all candidates; prices are by the numbers of ``machine``.

    Raises ``OptionError`` for a graph with symbolic sizes: what a schedule costs depends on them.
    """
    if symbols := graph.symbols():
        names = " ".join(f"--size {s.name}=..." for s in symbols)
        raise OptionError("a price is for sizes that are known", remedy=f"give them: {names}")
    n_threads = threads or default_threads()
    split = optimise_and_split(graph, options, options.machine, Clock())
    calls = [s.kernel for s in walk_steps(split.program) if isinstance(s, KernelCall)]
    machine, builder = machine or Target.parse(options.target), split.kernels
    found = []
    for name, made in builder.groups.items():
        rows: list[Alternative] = []
        for c in candidates(made.computation, builder.target, made.constants, name, builder.checks.on_broken):
            kernel = c.scheduled.kernel
            if kernel.sizes:  # sizes that the data decide
                continue
            is_chosen = c.scheduled.schedule == builder.schedules[name]
            rows.append(Alternative(c.made, price_of(kernel, machine, {}, n_threads), is_chosen))
        if rows:
            ordered = sorted(rows, key=lambda r: (not r.is_chosen, r.price.seconds))
            found.append(Explanation(name, builder.labels[name], calls.count(name), tuple(ordered)))
    return tuple(sorted(found, key=lambda e: -e.chosen.seconds * e.calls))
