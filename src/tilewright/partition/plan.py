"""From scheduled groups to a program: which step reads and writes which memory, in what order.

In: a graph's groups with their kernels. Out: a ``Program`` whose pointers are final, the weights that its kernels read,
and the plan behind each program for those who look inside.
Not its business: fusion (``partition.fuse``), how long results live (``partition.places``), offsets in the arena
(``partition.memory``), code (``codegen``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tilewright.core.diag import UNKNOWN, Loc, join_locs
from tilewright.core.estimates import ASSUMED_SIZE, nearest_size, size_at
from tilewright.core.expr import Dim, Expr, Sym, symbols
from tilewright.core.graph import Node
from tilewright.core.largest import largest
from tilewright.core.relations import rule_of
from tilewright.partition.beside import CallGroup, Item, arrange
from tilewright.partition.control import plan_control
from tilewright.partition.fuse import Group
from tilewright.partition.inner import inner_graphs
from tilewright.partition.memory import plan_memory
from tilewright.partition.places import Places
from tilewright.partition.program import (
    Beside,
    Choice,
    Copy,
    KernelCall,
    LetDim,
    Pointer,
    Program,
    Require,
    RequireSize,
    RoutineCall,
    SetDim,
    Step,
    Version,
)
from tilewright.partition.scheduled import LAY_OUT, KernelSpec, KernelVersion, Packing, ScheduledGraph, ScheduledGroup
from tilewright.partition.weights import Weights
from tilewright.runtime.cpu.routines import PREFIX
from tilewright.target.target import Target


@dataclass
class ProgramPlanner:
    """Shared by a graph and those of its control flow: the weights, and the symbols that data decide.

    ``given`` are the symbols that a call begins with; ``caps`` gives each that data decide the largest value it can
    take. ``failures`` numbers the texts of what ends a call. ``plans`` has, in order of their end, the plan behind
    every program made so far. Kernels run side by side where that saves some time of the cores of ``target``.
    """

    target: Target
    weights: Weights = field(default_factory=Weights)
    given: Collection[Sym] = ()
    caps: dict[Sym, Dim] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    plans: list[tuple[Program, GraphPlan]] = field(default_factory=list)

    def program(self, graph: ScheduledGraph, name: str, *, is_inner: bool = False) -> Program:
        """The program of one graph; ``is_inner``: of one within the control flow of another."""
        plan = GraphPlan(self, graph, name, is_inner)
        made = plan.program()
        self.plans.append((made, plan))
        return made

    def failure(self, text: str) -> int:
        """The number of a text."""
        return self.failures.setdefault(text, len(self.failures) + 1)


class GraphPlan:
    """The planning of one graph: steps are made with symbolic places, and get addresses when all lives are known."""

    def __init__(self, planner: ProgramPlanner, scheduled: ScheduledGraph, name: str, is_inner: bool) -> None:
        self.planner = planner
        self.scheduled = scheduled
        self.of = scheduled.of
        self.name = name
        self.places = Places(scheduled.of, planner.weights, planner.caps)
        self.groups: tuple[Group, ...] = ()
        self.first: list[Callable[[], Step]] = []
        self.steps: list[list[Callable[[], Step]]] = []
        self.known = {*planner.given, *planner.caps}
        self.homes: dict[Sym, Loc] = {}  # where sizes that became known were decided
        # the loader keeps a call to the rules of what it begins with
        self.rules = [c for c in scheduled.of.graph.constraints if is_inner or not symbols(c) <= self.known]

    def program(self) -> Program:
        """The program; ``groups`` and ``steps``, which follow the ``first``, go together afterwards."""
        caps, places, groups = self.planner.caps, self.places, self.scheduled.groups
        self.first = self._rules_known()
        for s in groups:
            caps.update((symbol, largest(cap, caps)) for symbol, cap in s.grouped.dims)
        runs = self._arrange()
        self.groups = tuple(groups[k].grouped.group for run in runs for k in run.calls)
        beside: list[Beside] = []
        for step, run in enumerate(runs):
            if run.members:
                n_before = sum(map(len, (self.first, *self.steps)))
                beside.append(Beside(n_before, run.members, run.most_threads))
            for k in run.calls:
                self._place(groups[k], step)
        graph, end = self.of.graph, len(runs)
        for node in (*(node for node, _ in places.copies), *graph.conditions()):
            places.touch(node, end)
        plan = plan_memory(places.storages, self.planner.target)
        places.offsets = plan.offsets
        steps = [make() for makers in (self.first, *self.steps) for make in makers]
        for node, target in places.copies:
            steps.append(Copy(places.pointer(node), target, node.type.n_bytes))
        checks = zip(graph.checks, graph.conditions(), strict=True)
        steps += [Require(places.pointer(node), self.planner.failure(text)) for text, node in checks]
        n_inputs, n_outputs = len(graph.inputs), graph.n_results
        return Program(self.name, n_inputs, n_outputs, tuple(steps), plan.n_bytes, plan.lower_bound, tuple(beside))

    def _arrange(self) -> list[CallGroup]:
        """Which groups run at one time, in an order that is right."""
        scheduled, places = self.scheduled.groups, self.places
        if self.planner.target.n_cores < 2:
            return [CallGroup((k,)) for k in range(len(scheduled))]
        makers = {s.grouped.group.root: k for k, s in enumerate(scheduled)}
        needs = [
            frozenset(
                makers[n]
                for i in (s.grouped.made.inputs if s.grouped.made else s.grouped.group.root.inputs)
                if (n := self.of.resolve(i)[0]) in makers
            )
            for s in scheduled
        ]
        kept = {self.of.resolve(node)[0] for node, _ in places.copies}
        items = []
        for s, before in zip(scheduled, needs, strict=True):
            root = s.grouped.group.root
            own = sum(_assumed(t.n_bytes) for k, t in enumerate(root.types) if (root, k) not in places.targets)
            scratch = sum(map(_assumed, s.spec.scratch)) if s.spec else 0
            scratch += sum(packing.n_bytes for packing, _ in s.laid_out.values())
            has_more_steps = s.grouped.dims or s.laid_out or root.op.routine is not None
            times = s.spec.times if s.spec and not has_more_steps else None
            items.append(Item(before, own, scratch, times, root in kept))
        return arrange(items, self.planner.target)

    def _place(self, s: ScheduledGroup, step: int) -> None:
        """Memory and steps of a group; what is placed at one ``step`` shares no memory."""
        node, made, places = s.grouped.group.root, s.grouped.made, self.places
        for k, t in enumerate(node.types):
            places.allot((node, k), t, step)
        if made is None or s.spec is None:
            for i in node.inputs:
                places.touch(i, step)
            is_alone = self.planner.target.n_cores == 1
            control = plan_control(places, node, self._inner_programs(node), step, is_alone=is_alone)
            self._learn([symbol for symbol, _ in s.grouped.dims], node)
            self.steps.append([*control, *self._rules_known()])
            return
        for i in made.inputs:
            places.touch(i, step)
        scratch = [places.reserve(n, step) for n in s.spec.scratch]
        dims = [symbol for symbol, _ in s.grouped.dims]
        makers: list[Callable[[], Step]] = [partial(LetDim, symbol, self.planner.caps[symbol]) for symbol in dims]
        laid_out: dict[int, Callable[[], Pointer]] = {}
        for k, (packing, spec) in s.laid_out.items():
            laid_out[k] = places.reserve(packing.n_bytes, step)
            own = [places.reserve(n, step) for n in spec.scratch]
            makers.append(partial(self._lay_out, made.inputs[s.spec.reads[k][0]], spec, [laid_out[k], *own], node.loc))
        general = partial(self._call, s.grouped.group, made.inputs, made.places, s.spec, laid_out, scratch)
        versions = [self._version(s.grouped.group, v, step) for v in s.versions]
        makers.append(partial(_choice, versions, general) if versions else general)
        makers += [partial(self._set_dim, symbol, node) for symbol in dims]
        self._learn(dims, node)
        self.steps.append([*makers, *self._rules_known()])

    def _learn(self, decided: Sequence[Sym], node: Node) -> None:
        self.known.update(decided)
        self.homes.update(dict.fromkeys(decided, node.loc))

    def _rules_known(self) -> list[Callable[[], Step]]:
        """Steps for the rules of sizes that became known, before any kernel meets a size that breaks one."""
        known = [c for c in self.rules if symbols(c) <= self.known]
        self.rules = [c for c in self.rules if c not in known]
        return [partial(RequireSize, c, self.planner.failure(self._told(c))) for c in known]

    def _told(self, rule: Expr) -> str:
        decided = sorted((s for s in symbols(rule) if s not in self.planner.given), key=lambda s: s.name)
        where = f"the data decide {', '.join(s.name for s in decided)}" if decided else f"{self.name} runs"
        places = dict.fromkeys(str(self.homes[s]) for s in decided if self.homes.get(s, UNKNOWN) is not UNKNOWN)
        return f"{rule_of(rule)} must hold where {where}" + (f" at {', '.join(places)}" if places else "")

    def _inner_programs(self, node: Node) -> list[Program]:
        names = [f"{self.name}.{node.serial}.{label}" for label, _ in inner_graphs(node)]
        graphs = self.scheduled.inner[node]
        return [self.planner.program(g, name, is_inner=True) for g, name in zip(graphs, names, strict=True)]

    def _lay_out(self, node: Node, spec: KernelSpec, places: list[Callable[[], Pointer]], loc: Loc) -> KernelCall:
        return KernelCall(spec.name, (self.places.pointer(node), *(p() for p in places)), spec.sizes, loc, (LAY_OUT,))

    def _call(
        self,
        group: Group,
        inputs: Sequence[Node],
        at: Mapping[Sym, int],
        spec: KernelSpec,
        laid_out: dict[int, Callable[[], Pointer]],
        scratch: list[Callable[[], Pointer]],
    ) -> KernelCall:
        args = [
            laid_out[k]() if k in laid_out else self._parameter(inputs[n], packing)
            for k, (n, packing) in enumerate(spec.reads)
        ]
        args += [self.places.result_pointer((group.root, k)) for k in range(len(group.root.types))]
        args += [s() for s in scratch]
        members = sorted(group.members, key=self.of.order.__getitem__)
        loc = join_locs([n.loc for n in members])
        names = tuple(n.op.name for n in members)
        sizes = tuple(at.get(s, s) for s in spec.sizes)
        return KernelCall(spec.name, tuple(args), sizes, loc, names, self._routine(group.root))

    def _version(self, group: Group, version: KernelVersion, step: int) -> Callable[[], Version]:
        scratch = [self.places.reserve(n, step) for n in version.spec.scratch]
        call = partial(self._call, group, version.inputs, {}, version.spec, {}, scratch)
        return lambda: Version(version.symbol, version.size, call())

    def _routine(self, node: Node) -> RoutineCall | None:
        """A library's form of a node, which is a group of its own."""
        found = node.op.routine and node.op.routine([i.type for i in node.inputs], node.attrs)
        if found is None:
            return None
        name, sizes = found
        args = [self.places.pointer(i) for i in node.inputs]
        args += [self.places.result_pointer((node, k)) for k in range(len(node.types))]
        return RoutineCall(f"{PREFIX}{name}_{node.inputs[0].dtype}", tuple(args), sizes)

    def _set_dim(self, symbol: Sym, node: Node) -> Step:
        """The count is the last result of an op whose sizes its data decide."""
        return SetDim(symbol, self.places.result_pointer((node, len(node.types) - 1)))

    def _parameter(self, node: Node, packing: Packing | None) -> Pointer:
        if packing is None:
            return self.places.pointer(node)
        home = self.of.resolve(node)[0]
        data, weights = home.attrs.data, self.planner.weights
        at = weights.add(data, packing.layout, packing.n_bytes, packing.fill, label=home.loc.text)
        return Pointer("weights", at)


def _choice(versions: Sequence[Callable[[], Version]], general: Callable[[], KernelCall]) -> Choice:
    return Choice(tuple(v() for v in versions), general())


def _assumed(n_bytes: Dim) -> int:
    """A number of bytes to compare with others."""
    return size_at(n_bytes, {s: nearest_size(s, ASSUMED_SIZE) for s in symbols(n_bytes)})
