"""Layer by layer through native code: every kernel on true operands, and memory watched between any two.

In: the parts of a build, the values that the reference gives every node. Out: a row for each step and the first fault.
Not its business: why a kernel is wrong (``tools.debug.kernel``), what passes did before (``tools.debug.passes``).

Before a step, what it reads must still be what was written; after it, what it wrote is compared and then replaced by
the true values, so that errors do not add up and the next layer is judged alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.build.assemble import Parts
from tilewright.core.diag import Loc, join_locs
from tilewright.core.expr import Sym, evaluate
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.shapes import bind_shape
from tilewright.core.types import Array, product
from tilewright.ops.control import operands_of_parts
from tilewright.partition.computation import GroupComputation
from tilewright.partition.fuse import Group
from tilewright.partition.plan import GraphPlan
from tilewright.partition.program import Branch, Choice, ForParts, KernelCall, Program, Repeat, Step
from tilewright.partition.scheduled import LAY_OUT, KernelSpec
from tilewright.tile.pack import packed_array
from tilewright.tools.debug.kernel import GroupForms, diagnose, front
from tilewright.tools.debug.machine import GuardedMemory, Machine, Native, ProgramMemory, bytes_at, bytes_of
from tilewright.tools.debug.passes import check_passes
from tilewright.tools.debug.report import Fault, Row
from tilewright.tools.debug.tolerance import Difference
from tilewright.tools.debug.values import NodeValues, judge_outputs, other_values, values_of
from tilewright.tools.tell import Tell

MAX_ITERATIONS = 16
"""Of a loop, in the search for one that goes wrong."""


@dataclass(frozen=True)
class Walked:
    """What a walk through a program found."""

    rows: tuple[Row, ...]
    fault: Fault | None


@dataclass(frozen=True)
class How:
    """How sub-graphs were made ready: the passes, and the error that these may cost (``tools.debug.passes.ROOM``)."""

    passes: Sequence[Pass]
    room: float


def walk_program(parts: Parts, values: NodeValues, threads: int, how: How, tell: Tell) -> Walked:
    """Run every step of the main program on true values; stops at the first fault."""
    kernels = parts.split.kernels
    native = Native(kernels.kernels, parts.objects, kernels.scratch)
    machine = Machine(native, parts.weights, values.sizes, threads)
    return _Walk(parts, parts.split.program, _plan_of(parts, parts.split.program), values, machine, how).run(tell)


def _plan_of(parts: Parts, program: Program) -> GraphPlan:
    return next(plan for made, plan in parts.split.planner.plans if made is program)


class _Walk:
    """One program, its plan and its memory."""

    def __init__(
        self, parts: Parts, program: Program, plan: GraphPlan, values: NodeValues, machine: Machine, how: How
    ) -> None:
        self.parts, self.program, self.plan, self.values = parts, program, plan, values
        self.machine, self.how = machine, how
        self.caps = {s: machine.size(d) for s, d in parts.split.planner.caps.items() if s not in machine.sizes}
        sizes = {**machine.sizes, **self.caps}
        machine.sizes = sizes
        self.inputs = [GuardedMemory.of(values.of(n)) for n in plan.of.graph.inputs]
        self.outputs = [GuardedMemory(machine.size(n.type.n_bytes)) for n in plan.of.graph.outputs]
        self.arena = GuardedMemory(machine.size(program.arena_bytes))
        self.frame = ProgramMemory(tuple(m.address for m in (*self.inputs, *self.outputs)), self.arena.address)
        self.writers: list[tuple[int, int, str]] = []

    def run(self, tell: Tell) -> Walked:
        rows: list[Row] = []
        groups = list(self._groups())
        for k, (group, steps) in enumerate(groups):
            members = sorted(group.members, key=self.plan.of.order.__getitem__)
            name, loc = " ".join(n.op.name for n in members), join_locs([n.loc for n in members])
            tell(f"{name} at {loc}", k, len(groups))
            fault = self._misread(group, steps, name, loc)
            if fault is None:
                difference, fault = self._run_group(group, steps, name, loc)
                rows.append(Row(name, loc, difference))
            if fault is not None:
                return Walked(tuple(rows), fault)
        n_copies = len(self.program.steps) - len(self.plan.first) - sum(len(steps) for _, steps in groups)
        for step in self.program.steps[len(self.program.steps) - n_copies :]:
            self.machine.step(step, self.frame)
        return Walked(tuple(rows), self._wrong_output())

    def _groups(self) -> Iterator[tuple[Group, tuple[Step, ...]]]:
        """Groups with their steps, which stand in the program in the same order."""
        at = len(self.plan.first)
        for group, makers in zip(self.plan.groups, self.plan.steps, strict=True):
            yield group, self.program.steps[at : at + len(makers)]
            at += len(makers)

    # --- before a step

    def _misread(self, group: Group, steps: Sequence[Step], name: str, loc: Loc) -> Fault | None:
        """Does what the group reads still hold what it should?"""
        for node, address in self._reads(group, steps):
            want = bytes_of(self.values.of(node))
            if np.array_equal(bytes_at(address, want.size), want):
                continue
            return self._explain(node, address, want.size, name, loc)
        for step in steps:
            if not isinstance(step, KernelCall | Choice):
                continue
            fault = self._wrong_weights(group, step.general, name, loc)
            if fault is not None:
                return fault
        return self._overlap(group, steps, name, loc)

    def _overlap(self, group: Group, steps: Sequence[Step], name: str, loc: Loc) -> Fault | None:
        """Do results lie where operands of the same step lie? A kernel may read after it has begun to write."""
        places = [self._place(group.root, k) for k in range(len(group.root.types))]
        written = [(p, p + w.nbytes) for p, w in zip(places, self.values.results(group.root), strict=True)]
        for node, start in self._reads(group, steps):
            end = start + self.values.of(node).nbytes
            if any(lo < end and start < hi for lo, hi in written):
                source = self._source(node)
                problem = Difference(problem="its memory is given to a result while it is still read")
                detail = f"{source.op.name} at {source.loc} is read and overwritten by {name} at {loc}"
                return Fault("memory", "plan", source.op.name, source.loc, problem, detail=detail)
        return None

    def _reads(self, group: Group, steps: Sequence[Step]) -> Iterator[tuple[Node, int]]:
        """The nodes that a group's step reads as they are, and where it reads them."""
        for step in steps:
            match step:
                case KernelCall() if step.ops == (
                    LAY_OUT,
                ):  # it has one operand: what the call behind it reads in a layout
                    pass
                case KernelCall() | Choice():
                    made = self._made(group)
                    assert made is not None
                    spec = self.parts.split.kernels.specs[made.text]
                    for (k, packing), pointer in zip(spec.reads, step.general.args, strict=False):
                        if packing is None:
                            yield made.inputs[k], self.machine.address(pointer, self.frame)
                case Branch():
                    pointers = [step.cond, *step.args]
                    for node, pointer in zip(group.root.inputs, pointers, strict=False):
                        yield node, self.machine.address(pointer, self.frame)
                case ForParts():
                    for node, part in zip(group.root.inputs, step.args, strict=False):
                        yield node, self.machine.address(part.place, self.frame)
                case Repeat():
                    pointers = [step.trips, step.cond, *(c.start for c in step.carried), *step.captures]
                    for node, pointer in zip(group.root.inputs, pointers, strict=True):
                        yield node, self.machine.address(pointer, self.frame)

    def _explain(self, node: Node, address: int, n_bytes: int, name: str, loc: Loc) -> Fault:
        if self._source(node).op is CONST:
            return Fault("weights", node.op.name, name, loc, Difference(problem="a constant holds other numbers"),
                         detail=f"the constant at {node.loc}")  # fmt: skip
        alias = self._false_view(node)
        if alias is not None:
            false = Difference(problem="it is taken for another shape of its operand's memory, and is not")
            return Fault("partition", "view", alias.op.name, alias.loc, false)
        source = self._source(node)
        later = [who for lo, hi, who in self.writers if lo < address + n_bytes and address < hi]
        detail = f"{source.op.name} at {source.loc} is read by {name} at {loc}"
        if later:
            detail += f"; the last to write there was {later[-1]}"
        problem = "the value is not where it is read, or no longer"
        return Fault("memory", "plan", source.op.name, source.loc, Difference(problem=problem), detail=detail)

    def _false_view(self, node: Node) -> Node | None:
        """The view on the way to a node's memory that has other elements than what it is a view of."""
        while node in self.plan.of.parts.views:
            inner = self.plan.of.parts.views[node]
            if not np.array_equal(bytes_of(self.values.of(node)), bytes_of(self.values.of(inner))):
                return node
            node = inner
        return None

    def _source(self, node: Node) -> Node:
        return self.plan.of.resolve(node)[0]

    def _wrong_weights(self, group: Group, step: KernelCall, name: str, loc: Loc) -> Fault | None:
        """Do re-laid constants lie where the kernel reads them?"""
        kernel = self.parts.split.kernels.kernels[step.kernel]
        made = self._made(group)
        assert made is not None
        by_name = {b.name: n for b, n in zip(made.computation.inputs, made.inputs, strict=True)}
        packed = {p.param: p for p in kernel.packed}
        for b, pointer in zip(kernel.params, step.args, strict=True):
            if b not in packed or self._source(by_name[packed[b].source.name]).op is not CONST:
                continue
            want = bytes_of(packed_array(packed[b], self.values.of(by_name[packed[b].source.name])))
            if not np.array_equal(bytes_at(self.machine.address(pointer, self.frame), want.size), want):
                problem = Difference(problem="a constant in the layout of its kernel holds other numbers")
                return Fault("weights", b.name, name, loc, problem, kernel=step.kernel)
        return None

    # --- the step

    def _run_group(self, group: Group, steps: Sequence[Step], name: str, loc: Loc) -> tuple[Difference, Fault | None]:
        """Run the steps of a group; the difference of its results, which are then the true ones."""
        places = [self._place(group.root, k) for k in range(len(group.root.types))]
        before = self.arena.bytes.copy()
        at_call = dict(self.machine.sizes)
        for step in steps:
            self.machine.step(step, self.frame)
            if isinstance(step, KernelCall | Choice):
                at_call = {**self.machine.sizes, **self.caps}
        wanted = self.values.results(group.root)
        got = [_result(place, w) for place, w in zip(places, wanted, strict=True)]
        difference = self._case(group, at_call).part.judge(self.values, got)
        if not difference.is_bad:
            difference = self._outside(group, steps, before, places, at_call) or difference
        fault = self._why(group, steps, at_call, difference, name, loc) if difference.is_bad else None
        for w, address in zip(wanted, places, strict=True):
            bytes_at(address, w.nbytes)[:] = bytes_of(w)
            self.writers.append((address, address + w.nbytes, f"{name} at {loc}"))
        for t, w in zip(group.root.types, wanted, strict=True):
            bind_shape(t.shape, w.shape, self.machine.sizes)
        return difference, fault

    def _place(self, root: Node, k: int) -> int:
        return self.machine.address(self.plan.places.result_pointer((root, k)), self.frame)

    def _made(self, group: Group) -> GroupComputation | None:
        """What the group's kernel was made of; None for control flow."""
        return next(s.grouped.made for s in self.plan.scheduled.groups if s.grouped.group is group)

    def _case(self, group: Group, sizes: dict[Sym, int]) -> GroupForms:
        facts, order, target = self.plan.of.parts.facts, self.plan.of.order, self.parts.split.kernels.target
        made = self._made(group)
        at = {**sizes, **(made.places if made else {})}
        return GroupForms(group, facts, order, self.values, at, target, self.machine.threads, made)

    def _outside(
        self, group: Group, steps: Sequence[Step], before: Array, places: Sequence[int], sizes: dict[Sym, int]
    ) -> Difference | None:
        """Did a kernel write to a place of the arena, or beyond memory, that is not its own?"""
        memories = (self.arena, *self.inputs, *self.outputs, self.machine.weights)
        if not (self.machine.native.is_intact and all(m.is_intact for m in memories)):
            return Difference(problem="it writes outside of its memory")
        if Trait.CONTROL in group.root.op.traits:
            return None
        changed = before != self.arena.bytes
        own = [(p, evaluate(t.n_bytes, sizes)) for p, t in zip(places, group.root.types, strict=True)]
        for step in steps:
            if isinstance(step, KernelCall | Choice):
                call = step.taken(sizes)
                kernel = self.parts.split.kernels.kernels[call.kernel]
                n_results = 0 if call.ops == (LAY_OUT,) else len(group.root.types)
                scratch = slice(len(self._spec(call.kernel).reads) + n_results, None)
                for b, pointer in zip(kernel.params[scratch], call.args[scratch], strict=True):
                    n_bytes = evaluate(product(b.shape) * b.dtype.n_bytes, sizes)
                    own.append((self.machine.address(pointer, self.frame), n_bytes))
        for start, n_bytes in own:
            at = start - self.arena.address
            changed[max(at, 0) : max(at + n_bytes, 0)] = False
        return Difference(problem="it writes outside of its results") if changed.any() else None

    def _spec(self, kernel: str) -> KernelSpec:
        return next(s for s in self.parts.split.kernels.specs.values() if s.name == kernel)

    def _why(
        self, group: Group, steps: Sequence[Step], sizes: dict[Sym, int], seen: Difference, name: str, loc: Loc
    ) -> Fault:
        if Trait.CONTROL in group.root.op.traits:
            return self._why_control(group, steps, seen, name, loc)
        kernel = next(s.taken(sizes).kernel for s in reversed(steps) if isinstance(s, KernelCall | Choice))
        return diagnose(self._case(group, sizes), seen, kernel)

    # --- control flow

    def _why_control(self, group: Group, steps: Sequence[Step], seen: Difference, name: str, loc: Loc) -> Fault:
        """The fault inside of a branch or body, on the values that it gets; else that of the step itself."""
        outer = Fault("partition", name, name, loc, seen, detail="its sub-graphs are right on their own")
        for step in steps:
            if isinstance(step, Branch):
                operands = [self.values.of(i) for i in group.root.inputs]
                is_true = bool(operands[0])
                taken = step.then_program if is_true else step.else_program
                graph = group.root.attrs["then_branch" if is_true else "else_branch"]
                return self._inside(taken, graph, operands[1:]) or outer
            if isinstance(step, Repeat):
                return self._iterations(step, group.root) or outer
            if isinstance(step, ForParts):
                return self._parts(step, group.root) or outer
        return outer

    def _parts(self, step: ForParts, node: Node) -> Fault | None:
        given = operands_of_parts([self.values.of(i) for i in node.inputs], node.attrs)
        faults = (self._inside(step.body, node.attrs["body"], operands) for operands in given)
        return next((fault for fault in faults if fault is not None), None)

    def _iterations(self, step: Repeat, node: Node) -> Fault | None:
        trips, go, *rest = [self.values.of(i) for i in node.inputs]
        n = len(step.carried)
        carried, captures = rest[:n], rest[n:]
        for i in range(min(int(trips), MAX_ITERATIONS)):
            if not bool(go):
                break
            given = [np.asarray(i, np.int64), go, *carried, *captures]
            fault = self._inside(step.body, node.attrs["body"], given)
            if fault is not None:
                return fault
            results = values_of(_plan_of(self.parts, step.body).of.graph, given).outputs()
            go, carried = results[0], list(results[1 : 1 + n])
        return None

    def _inside(self, program: Program, graph: Graph, given: Sequence[Array]) -> Fault | None:
        """What is wrong with a sub-graph on these operands: the passes that made it ready, or its own steps."""
        checked = check_passes(graph, given, self.how.passes, self.how.room)
        if checked.fault is not None:
            return checked.fault
        plan = _plan_of(self.parts, program)
        values = values_of(plan.of.graph, given)
        machine = Machine(self.machine.native, self.parts.weights, values.sizes, self.machine.threads)
        return _Walk(self.parts, program, plan, values, machine, self.how).run(lambda *_: None).fault

    # --- at the end

    def _wrong_output(self) -> Fault | None:
        """After every kernel was right: are all outputs where the caller looks for them?"""
        for k, node in enumerate(self.plan.of.graph.outputs):
            want = self.values.of(node)
            got = front(self.outputs[k].array((want.size,), want.dtype), want)
            if not np.array_equal(bytes_of(got), bytes_of(want)):
                problem = Difference(problem=f'output "{self.plan.of.graph.output_names[k]}" is not where it is read')
                return Fault("memory", "outputs", node.op.name, node.loc, problem)
        return None


def judge_run(graph: Graph, inputs: Sequence[Array], want: Sequence[Array], got: Sequence[Array],
              room: float) -> list[Difference]:  # fmt: skip
    """The outputs of a whole run, whose roundings add up."""
    moved, rounded = other_values(graph, inputs)
    return judge_outputs(graph, want, got, [moved.outputs(), rounded.outputs()], room)


def _result(address: int, like: Array) -> Array:
    return bytes_at(address, like.nbytes).copy().view(like.dtype).reshape(like.shape)
