"""Which graph pass changed a model's meaning, by which rule, at which op.

In: a graph, inputs, a pipeline. Out: the difference of the outputs after the passes that were looked at, and a
``Fault``. Not its business: what comes after the graph level.

The graphs after all passes are evaluated by the reference: the first wrong one is found by bisection. Within the pass
the rules are bisected by how many of them may fire (``core.rewrite.Limited``); for a pass that rewrites the whole graph
at once, the model is cut off after ever fewer nodes, until the last one is the first that goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tilewright.core.diag import UNKNOWN, Loc
from tilewright.core.graph import CONST, INPUT, PROJ, Graph, Node
from tilewright.core.passes import Pass, PassReport, run_pipeline
from tilewright.core.rewrite import Limited
from tilewright.core.types import Array
from tilewright.tools.debug.kernel import BROKEN
from tilewright.tools.debug.report import Fault
from tilewright.tools.debug.tolerance import EPSILON, Difference
from tilewright.tools.debug.values import NodeValues, coarsest, judge_outputs, other_values, values_of, worst

ROOM = 1e-4
"""Of the largest output: what forms with a larger error may cost (``accuracy="default"``)."""


@dataclass(frozen=True)
class Checked:
    """The graph after all passes, the outputs' difference after each pass that was looked at, and the first fault."""

    graph: Graph
    passes: tuple[tuple[str, Difference | None], ...]
    fault: Fault | None


class Checker:
    """Judges graphs that should all mean what ``graph`` does."""

    def __init__(self, graph: Graph, inputs: Sequence[Array], room: float) -> None:
        self.graph, self.inputs, self.room = graph, inputs, room
        self.want = values_of(graph, inputs).outputs()
        self._others: dict[float, tuple[NodeValues, NodeValues]] = {}

    def difference(self, graph: Graph) -> Difference:
        """Of the outputs, the worst."""
        if graph is self.graph:
            return Difference()
        try:
            got = values_of(graph, self.inputs).outputs()
        except BROKEN as e:
            return Difference(problem=f"{type(e).__name__}: {e}")
        epsilon = self._coarser(graph)
        others = [v.outputs() for v in self._other(epsilon)]
        return worst(judge_outputs(graph, self.want, got, others, self.room))

    def _coarser(self, graph: Graph) -> float:
        """The unit of a float type that only the later graph has: its roundings were asked for."""
        now, before = coarsest(graph.nodes()), coarsest(self.graph.nodes())
        return EPSILON[now] if now is not None and before is not None and EPSILON[now] > EPSILON[before] else 0.0

    def _other(self, epsilon: float) -> tuple[NodeValues, NodeValues]:
        if epsilon not in self._others:
            self._others[epsilon] = other_values(self.graph, self.inputs, epsilon)
        return self._others[epsilon]


def check_passes(graph: Graph, inputs: Sequence[Array], passes: Sequence[Pass], room: float) -> Checked:
    """Run ``passes`` on ``graph`` and find the first after which its outputs are others."""
    graphs, broken = _graphs_after(graph, passes)
    names = [f"{k + 1:02d} {p}" for k, p in enumerate(passes)]
    checker = Checker(graph, inputs, room)
    found: dict[int, Difference] = {}

    def look(k: int) -> Difference:
        if k not in found:
            found[k] = checker.difference(graphs[k])
        return found[k]

    last = len(graphs) - 1

    def table() -> tuple[tuple[str, Difference | None], ...]:
        return tuple((n, found.get(k + 1)) for k, n in enumerate(names))

    if last and look(last).is_bad:
        # a graph that has gone wrong stays wrong, as later passes keep what it means
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if look(middle).is_bad else (middle, high)
        fault = _blame(passes[high - 1], graphs[high - 1], inputs, room, look(high))
        return Checked(graphs[-1], table(), fault)
    if broken is not None:
        p = passes[last]  # the pass that raised has left no graph
        op, rule, loc = _raising(p, graphs[last])
        return Checked(graphs[-1], table(), Fault("pass", p.name, op, loc, Difference(problem=broken), rule))
    return Checked(graphs[-1], table(), None)


def _graphs_after(graph: Graph, passes: Sequence[Pass]) -> tuple[list[Graph], str | None]:
    """The graph before any pass and after each, up to one that raised; what that raised."""
    graphs = [graph]

    def keep(report: PassReport) -> None:
        graphs.append(report.after)

    try:
        run_pipeline(graph, passes, on_pass=keep, check=True)
    except BROKEN as e:
        return graphs, f"{type(e).__name__}: {e}"
    return graphs, None


def _blame(p: Pass, before: Graph, inputs: Sequence[Array], room: float, seen: Difference) -> Fault:
    """Which rule of ``p`` is at fault, at which op; else after which node the pass goes wrong."""
    checker = Checker(before, inputs, room)

    def limited(limit: int) -> tuple[Difference, Limited]:
        journal = Limited(limit)
        try:
            return checker.difference(p.run(before, journal)), journal
        except BROKEN as e:
            return Difference(problem=f"{type(e).__name__}: {e}"), journal

    difference, journal = limited(1 << 62)
    difference = difference if difference.is_bad else seen
    low, high = 0, len(journal)
    if high and not limited(0)[0].is_bad:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if limited(middle)[0].is_bad else (middle, high)
        fired = limited(high)[1][high - 1]
        return Fault("pass", p.name, fired.op, fired.loc, difference, fired.rule)
    node, difference = _first_bad_node(p, before, inputs, room, difference)
    return Fault("pass", p.name, node.op.name if node else "", node.loc if node else UNKNOWN, difference)


def _raising(p: Pass, before: Graph) -> tuple[str, str, Loc]:
    """The op and rule of the last firing before a pass raised."""
    journal = Limited(1 << 62)
    with suppress(*BROKEN):
        p.run(before, journal)
    return (journal[-1].op, journal[-1].rule, journal[-1].loc) if journal else ("", "", UNKNOWN)


def prefix(graph: Graph, nodes: Sequence[Node]) -> Graph | None:
    """The graph of the first ``nodes``: its outputs are those that no other of them reads; None when there are none."""
    read = {i for n in nodes for i in n.inputs}
    outputs: list[Node] = []
    for n in nodes:
        if n not in read and n.op not in (INPUT, CONST):
            outputs += [n] if len(n.types) == 1 else graph.pool.results(n)
    if not outputs:
        return None
    names = tuple(f"value{k}" for k in range(len(outputs)))
    return Graph(graph.name, graph.pool, graph.inputs, tuple(outputs), names, graph.constraints)


def _first_bad_node(
    p: Pass, before: Graph, inputs: Sequence[Array], room: float, seen: Difference
) -> tuple[Node | None, Difference]:
    """The last node of the shortest front part of the graph that the pass makes wrong."""
    nodes = before.nodes()
    found = seen

    def look(n: int) -> Difference:
        part = prefix(before, nodes[:n])
        if part is None:  # inputs and constants only, which no pass gets wrong
            return Difference()
        try:
            return Checker(part, inputs, room).difference(p.run(part))
        except BROKEN as e:
            return Difference(problem=f"{type(e).__name__}: {e}")

    low, high = 0, len(nodes)
    if not look(high).is_bad:  # only what the outputs do not need differs
        return None, found
    while high - low > 1:
        middle = (low + high) // 2
        difference = look(middle)
        if difference.is_bad:
            high, found = middle, difference
        else:
            low = middle
    node = nodes[high - 1]
    # one of several results names the op that has them
    return (node.inputs[0] if node.op is PROJ else node), found
