"""The passes of a compile, each of those that choose between forms with the price of what comes of a form.

In: a user's options, the machine. Out: passes. Not its business: their order (``graph.pipeline``), what a schedule
costs (``choose.cost``).

A form of a convolution, channels last or in planes, shows what it costs in its kernels: which are left of its
transposes, how many lanes are idle, what comes from which cache. So a form is tried: the part of the graph that it
makes goes through the passes that are still to come, is split into kernels, and these get the rules' schedules, whose
price counts. A compile makes its own kernels of the same schedules (``by_rules``), so that no form is paid for twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from tilewright.build.options import FEW_BITS, SIZE, Options
from tilewright.choose.cheapest import seconds_of
from tilewright.choose.default import ByRules, OnBroken, Scheduled, forgive
from tilewright.core.deep import deeply
from tilewright.core.estimates import LOG_MOST_IMAGES, nearest_size
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph
from tilewright.core.passes import Pass, run_pipeline
from tilewright.graph.forms.even_sums import EvenSums
from tilewright.graph.forms.in_parts import InParts
from tilewright.graph.forms.priced import Price, PricedPass
from tilewright.graph.pipeline import passes_for, passes_for_gpu
from tilewright.graph.precision import Precision
from tilewright.graph.quantize.recurrent import OPENING
from tilewright.partition.computation import GroupComputation
from tilewright.partition.grouped import GroupedGraph, group_graph, optimise_inner
from tilewright.target.target import Target


@dataclass(frozen=True)
class FormPrices:
    """What graphs cost on ``target`` with the schedules of ``by_rules``."""

    target: Target
    by_rules: ByRules

    @staticmethod
    def on(target: Target, on_broken: OnBroken = forgive) -> FormPrices:
        """Prices on a machine, nothing scheduled yet."""
        return FormPrices(target, ByRules(target, on_broken))

    def given_to(self, passes: Iterable[Pass]) -> tuple[Pass, ...]:
        """The passes, those that ask for prices with the prices of what comes of a graph in the others behind them."""
        given: tuple[Pass, ...] = ()
        for p in reversed(tuple(passes)):
            given = (replace(p, price=self.behind(given)) if isinstance(p, PricedPass) else p, *given)
        return given

    def behind(self, passes: Sequence[Pass]) -> Price:
        """The price of graphs that still go through ``passes``."""

        def optimised(graph: Graph) -> Graph:
            return run_pipeline(graph, passes)

        return lambda graph: self.seconds(optimised(graph), optimised)

    def seconds(self, graph: Graph, optimise: Callable[[Graph], Graph]) -> float:
        """A call of all kernels of a graph; where only a call knows sizes, the geometric mean over powers of 2.

        Graphs within its control flow go through ``optimise`` first.
        """
        grouped = group_graph(graph, optimise_inner(graph, optimise), self.target)
        symbols = graph.symbols()
        powers = range(LOG_MOST_IMAGES + 1 if symbols else 1)
        calls = [self._of_groups(grouped, {s: nearest_size(s, 1 << k) for s in symbols}) for k in powers]
        return geometric_mean(calls) if min(calls) > 0 else 0.0

    def _of_groups(self, of: GroupedGraph, sizes: Mapping[Sym, int]) -> float:
        """Seconds of kernels for these sizes, those in a loop over parts as often as there are parts."""
        seconds = 0.0
        for g in of.groups:
            if g.made is not None:
                seconds += seconds_of(self._scheduled(g.made).kernel, self.target, sizes)
            inner = sum(self._of_groups(graph, sizes) for graph in of.inner.get(g.group.root, ()))
            seconds += inner * g.group.root.attrs.get("n_parts", 1)
        return seconds

    def _scheduled(self, made: GroupComputation) -> Scheduled:
        return deeply(lambda: self.by_rules.of(made.computation, made.constants, made.name))


def storing_passes(options: Options) -> tuple[Pass, ...]:
    """The passes that decide in which bits weights are stored: before all others, and once for all sizes."""
    return (*OPENING, FEW_BITS[options.precision]) if options.precision in FEW_BITS else ()


def graph_passes(
    options: Options, target: Target, *, is_export: bool = False, prices: FormPrices | None = None
) -> tuple[Pass, ...]:
    """The passes that the options ask for; ``is_export``: the code will run where there are no libraries."""
    level = options.optimize if isinstance(options.optimize, int) else 2
    if options.gpu is not None:
        return passes_for_gpu(level)
    known = target if options.accuracy == "default" and options.optimize != SIZE else None
    per_lane = target.bf16_per_lane if options.precision == "bf16" else 1
    rounded = (Precision(),) if options.precision == "bf16" else ()
    last = (*EvenSums.on(target), InParts.on(target, per_lane)) if level > 1 and known is not None else ()
    passes = passes_for(level, target=known, per_lane=per_lane, has_libraries=not is_export)
    return (prices or FormPrices.on(target)).given_to((*passes, *rounded, *last))
