"""From groups to a program: which step reads and writes which memory, in what order.

In: a decomposed graph. Out: a ``Program`` whose pointers are final, the weights that its kernels read, and a record of
each kernel for the report.
Not its business: fusion (``partition.fuse``), offsets in the arena (``partition.memory``), code (``codegen``).

What a plan needs from stages above it, a kernel's schedule and a sub-graph's optimisation, it asks for: planning is a
generator that yields a :class:`KernelWanted` or a :class:`GraphWanted` and goes on when it is sent the answer. So who
wires the stages (``build``) calls the planner and the scheduler in turn, and neither calls the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from tilewright.core.compute import Computation
from tilewright.core.diag import Loc, join_locs
from tilewright.core.estimates import Times
from tilewright.core.expr import Dim, Sym, evaluate, largest, symbols
from tilewright.core.graph import CONST, INPUT, PROJ, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import TensorType, product
from tilewright.partition.beside import Item, Run, arrange
from tilewright.partition.computation import GroupComputation, computation_of, computation_text
from tilewright.partition.control import data_dims, plan_control
from tilewright.partition.fuse import CORE, LARGE, Group, Partition, partition
from tilewright.partition.memory import Storage, plan_memory
from tilewright.partition.program import (
    Beside,
    Call,
    Copy,
    LetDim,
    Pointer,
    Program,
    Require,
    Routine,
    SetDim,
    Step,
)
from tilewright.partition.projections import Core
from tilewright.partition.weights import Fill, Weights
from tilewright.runtime.cpu.routines import PREFIX

Result = tuple[Node, int]
LAY_OUT = "lay_out"
"""What the report calls kernels that lay out run-time operands."""
ASSUMED_SIZE = 512
"""What a size counts as that only a call knows, where memory is compared."""


@dataclass(frozen=True)
class Packing:
    """A constant parameter's layout: a name that tells layouts apart, its size, and the function that re-lays it.

    ``fill(out, array)`` writes ``array`` into ``n_bytes`` zeros. ``computation`` is the same for a kernel: an operand
    whose numbers only a call knows is laid out in each call.
    """

    layout: str
    n_bytes: int
    fill: Fill
    computation: Computation


@dataclass(frozen=True)
class KernelSpec:
    """What a program needs to know of a scheduled kernel.

    Parameters are what it reads, the computation's outputs, then scratch of ``scratch`` bytes each. ``reads`` has, per
    parameter, the input's position and, for a constant that was re-laid, the layout; a constant may have several.
    Without ``times`` no other kernel may run at the same time.
    """

    name: str
    sizes: tuple[Sym, ...]
    scratch: tuple[Dim, ...]
    reads: tuple[tuple[int, Packing | None], ...]
    times: Times | None = None


@dataclass(frozen=True)
class KernelWanted:
    """A question for the ``KernelSpec`` of a computation; ``label`` is what the report calls it."""

    made: GroupComputation
    label: str


@dataclass(frozen=True)
class GraphWanted:
    """A question for a sub-graph as the passes leave it."""

    graph: Graph


Asking: TypeAlias = Generator[KernelWanted | GraphWanted, Any, Any]


@dataclass
class Planner:
    """Shared by a graph and its sub-graphs: the weights, and what planning knows of the machine.

    Results of ``large`` bytes or more go to memory. ``caps`` gives each symbol that the data decide the largest value
    it can take. ``plans`` has, in order of their end, the plan behind every program made so far. Kernels run side by
    side where that saves some of ``n_cores`` time.
    """

    fuse: bool = True
    large: int = LARGE
    core: Core = CORE
    n_cores: int = 1
    weights: Weights = field(default_factory=Weights)
    caps: dict[Sym, Dim] = field(default_factory=dict)
    plans: list[tuple[Program, GraphPlan]] = field(default_factory=list)

    def program(self, graph: Graph, name: str) -> Generator[KernelWanted | GraphWanted, Any, Program]:
        """The program of one graph that the passes went over."""
        plan = GraphPlan(self, graph, name)
        made: Program = yield from plan.program()
        self.plans.append((made, plan))
        return made

    def sub_program(self, graph: Graph, name: str) -> Generator[KernelWanted | GraphWanted, Any, Program]:
        """The program of a sub-graph, which the passes go over first."""
        return (yield from self.program((yield GraphWanted(graph)), name))


@dataclass(frozen=True)
class _Scheduled:
    """A group with the symbols that its data decide and, unless it is control flow, its computation and kernel.

    ``laid_out`` has, by parameter, the layouts that a call makes of run-time operands, with the kernels that do it.
    """

    group: Group
    dims: list[tuple[Sym, Dim]]
    made: GroupComputation | None = None
    spec: KernelSpec | None = None
    laid_out: dict[int, tuple[Packing, KernelSpec]] = field(default_factory=dict)


class GraphPlan:
    """The planning of one graph: steps are made with symbolic places, and get addresses when all lives are known."""

    def __init__(self, planner: Planner, graph: Graph, name: str) -> None:
        self.planner = planner
        self.graph = graph
        self.name = name
        self.parts: Partition = partition(graph, fuse=planner.fuse, large=planner.large, core=planner.core)
        self.order = {n: k for k, n in enumerate(graph.nodes())}
        self.arguments = {n: Pointer("arg", k) for k, n in enumerate(graph.inputs)}
        self.storages: list[Storage] = []
        self.homes: dict[Result, int] = {}
        self.copies: list[tuple[Node, Pointer]] = []
        self.targets = self._place_outputs()
        self.steps: list[list[Callable[[], Step]]] = []
        self.caps = planner.caps

    def program(self) -> Asking:
        """The ``Program``, by questions."""
        scheduled: list[_Scheduled] = []
        for group in self.parts.groups:
            scheduled.append((yield from self._schedule(group)))
        runs = self._arrange(scheduled)
        self.parts = replace(self.parts, groups=tuple(scheduled[k].group for run in runs for k in run.calls))
        beside: list[Beside] = []
        for step, run in enumerate(runs):
            if run.members:
                beside.append(Beside(sum(map(len, self.steps)), run.members, run.most_threads))
            for k in run.calls:
                yield from self._place(scheduled[k], step)
        end = len(runs)
        for node in (*(node for node, _ in self.copies), *self.graph.conditions()):
            self.touch(node, end)
        plan = plan_memory(self.storages)
        self.offsets = plan.offsets
        steps = [make() for makers in self.steps for make in makers]
        for node, target in self.copies:
            steps.append(Copy(self.pointer(node), target, node.type.n_bytes))
        steps += [Require(self.pointer(node), code) for code, node in enumerate(self.graph.conditions(), 1)]
        n_inputs, n_outputs = len(self.graph.inputs), self.graph.n_results
        return Program(self.name, n_inputs, n_outputs, tuple(steps), plan.n_bytes, plan.lower_bound, tuple(beside))

    # --- where things are

    def resolve(self, node: Node) -> Result:
        """The node and result whose memory ``node`` is."""
        while node in self.parts.views:
            node = self.parts.views[node]
        return (node.inputs[0], node.attrs.index) if node.op is PROJ else (node, 0)

    def pointer(self, node: Node) -> Pointer:
        """A node's address, once the arena is planned."""
        return self.result_pointer(self.resolve(node))

    def result_pointer(self, result: Result) -> Pointer:
        node, _ = result
        if node in self.arguments and node.op is INPUT:
            return self.arguments[node]
        if node.op is CONST:
            return Pointer("weights", self.planner.weights.add(node.attrs.data, label=node.loc.text))
        if result in self.targets:
            return self.targets[result]
        return Pointer("arena", self.offsets[self.homes[result]])

    def touch(self, node: Node, step: int) -> None:
        """``step`` reads ``node``."""
        k = self.homes.get(self.resolve(node))
        if k is not None:
            s = self.storages[k]
            self.storages[k] = Storage(s.n_bytes, s.first, max(s.last, step))

    def reserve(self, n_bytes: Dim, step: int) -> Callable[[], Pointer]:
        """Scratch for one step; the pointer is known once the arena is planned."""
        self.storages.append(Storage(largest(n_bytes, self.caps), step, step))
        k = len(self.storages) - 1
        return lambda: Pointer("arena", self.offsets[k])

    def allot(self, result: Result, type_: TensorType, step: int) -> None:
        """Memory for a result from ``step`` on, unless an output of the program is its home."""
        if result not in self.targets:
            self.storages.append(Storage(largest(type_.n_bytes, self.caps), step, step))
            self.homes[result] = len(self.storages) - 1

    def _place_outputs(self) -> dict[Result, Pointer]:
        """Results that are written straight to an output; ``copies`` gets the outputs that are copied at the end."""
        targets: dict[Result, Pointer] = {}
        n = len(self.graph.inputs)
        for k, (_, node) in enumerate(self.graph.results()):
            result, place = self.resolve(node), Pointer("arg", n + k)
            if result in targets or result[0].op in (INPUT, CONST):
                self.copies.append((node, place))
            else:
                targets[result] = place
        return targets

    # --- steps

    def _schedule(self, group: Group) -> Asking:
        node = group.root
        dims = data_dims(node)
        self.caps.update((symbol, largest(cap, self.caps)) for symbol, cap in dims)
        if Trait.CONTROL in node.op.traits:
            return _Scheduled(group, dims)
        made = computation_of(group, self.parts.facts, self.order)
        label = "_".join(n.op.name for n in sorted(group.members, key=self.order.__getitem__))
        spec: KernelSpec = yield KernelWanted(made, label)
        laid_out: dict[int, tuple[Packing, KernelSpec]] = {}
        for k, (at, packing) in enumerate(spec.reads):
            if packing is not None and self.resolve(made.inputs[at])[0].op is not CONST:
                laid_out[k] = packing, (yield _layout_kernel(made.inputs[at], packing))
        return _Scheduled(group, dims, made, spec, laid_out)

    def _arrange(self, scheduled: list[_Scheduled]) -> list[Run]:
        """Which groups run at one time, in an order that is right."""
        if self.planner.n_cores < 2:
            return [Run((k,)) for k in range(len(scheduled))]
        makers = {s.group.root: k for k, s in enumerate(scheduled)}
        needs = [
            frozenset(
                makers[n]
                for i in (s.made.inputs if s.made else s.group.root.inputs)
                if (n := self.resolve(i)[0]) in makers
            )
            for s in scheduled
        ]
        kept = {self.resolve(node)[0] for node, _ in self.copies}
        items = []
        for s, before in zip(scheduled, needs, strict=True):
            root = s.group.root
            own = sum(_assumed(t.n_bytes) for k, t in enumerate(root.types) if (root, k) not in self.targets)
            scratch = sum(map(_assumed, s.spec.scratch)) if s.spec else 0
            scratch += sum(packing.n_bytes for packing, _ in s.laid_out.values())
            has_more_steps = s.dims or s.laid_out or s.group.root.op.routine is not None
            times = s.spec.times if s.spec and not has_more_steps else None
            items.append(Item(before, own, scratch, times, root in kept))
        return arrange(items, self.planner.n_cores)

    def _place(self, s: _Scheduled, step: int) -> Asking:
        """Memory and steps of a group; what is placed at one ``step`` shares no memory."""
        node = s.group.root
        for k, t in enumerate(node.types):
            self.allot((node, k), t, step)
        if s.made is None or s.spec is None:
            for i in node.inputs:
                self.touch(i, step)
            self.steps.append((yield from plan_control(self, node, step)))
            return
        for i in s.made.inputs:
            self.touch(i, step)
        scratch = [self.reserve(n, step) for n in s.spec.scratch]
        makers: list[Callable[[], Step]] = [partial(LetDim, symbol, self.caps[symbol]) for symbol, _ in s.dims]
        places: dict[int, Callable[[], Pointer]] = {}
        for k, (packing, spec) in s.laid_out.items():
            places[k] = self.reserve(packing.n_bytes, step)
            own = [self.reserve(n, step) for n in spec.scratch]
            makers.append(partial(self._lay_out, s.made.inputs[s.spec.reads[k][0]], spec, [places[k], *own], node.loc))
        makers.append(partial(self._call, s.group, s.made, s.spec, places, scratch))
        makers += [partial(self._set_dim, symbol, node) for symbol, _ in s.dims]
        self.steps.append(makers)

    def _lay_out(self, node: Node, spec: KernelSpec, places: list[Callable[[], Pointer]], loc: Loc) -> Call:
        return Call(spec.name, (self.pointer(node), *(p() for p in places)), spec.sizes, loc, (LAY_OUT,))

    def _call(
        self,
        group: Group,
        made: GroupComputation,
        spec: KernelSpec,
        places: dict[int, Callable[[], Pointer]],
        scratch: list[Callable[[], Pointer]],
    ) -> Call:
        args = [
            places[k]() if k in places else self._parameter(made.inputs[at], packing)
            for k, (at, packing) in enumerate(spec.reads)
        ]
        args += [self.result_pointer((group.root, k)) for k in range(len(group.root.types))]
        args += [s() for s in scratch]
        members = sorted(group.members, key=self.order.__getitem__)
        loc = join_locs([n.loc for n in members])
        names = tuple(n.op.name for n in members)
        return Call(spec.name, tuple(args), spec.sizes, loc, names, self._routine(group.root))

    def _routine(self, node: Node) -> Routine | None:
        """A library's form of a node, which is a group of its own."""
        found = node.op.routine and node.op.routine([i.type for i in node.inputs], node.attrs)
        if found is None:
            return None
        name, sizes = found
        args = [self.pointer(i) for i in node.inputs]
        args += [self.result_pointer((node, k)) for k in range(len(node.types))]
        batch = product(node.inputs[0].shape[:-2])
        return Routine(f"{PREFIX}{name}_{node.inputs[0].dtype}", tuple(args), (batch, *sizes))

    def _set_dim(self, symbol: Sym, node: Node) -> Step:
        """The count is the last result of an op whose sizes its data decide."""
        return SetDim(symbol, self.result_pointer((node, len(node.types) - 1)))

    def _parameter(self, node: Node, packing: Packing | None) -> Pointer:
        if packing is None:
            return self.pointer(node)
        home = self.resolve(node)[0]
        data, weights = home.attrs.data, self.planner.weights
        at = weights.add(data, packing.layout, packing.n_bytes, packing.fill, label=home.loc.text)
        return Pointer("weights", at)


def _layout_kernel(node: Node, packing: Packing) -> KernelWanted:
    """The kernel that lays a run-time operand out as another kernel reads it."""
    c = packing.computation
    return KernelWanted(GroupComputation(c, (node,), frozenset(), computation_text(c)), LAY_OUT)


def _assumed(n_bytes: Dim) -> int:
    """A number of bytes to compare with others; 0 where the assumed sizes go together in no call."""
    sizes = {s: ASSUMED_SIZE if s.hi is None else min(s.hi, ASSUMED_SIZE) for s in symbols(n_bytes)}
    try:
        return max(evaluate(n_bytes, sizes), 0)
    except ZeroDivisionError:
        return 0
