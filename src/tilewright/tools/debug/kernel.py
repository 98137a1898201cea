"""One wrong kernel: which of the steps from its ops to its machine code made it wrong.

In: a group of nodes, the true values around it, a target. Out: a ``Fault``. Not its business: finding wrong kernels
(``tools.debug.steps``).

A kernel has a form after every step: stages of ops, normalised stages, loops, loops after each primitive of the
schedule, machine code. Each form runs, in the interpreter of the tile IR or natively, on the same values; the first
whose results are wrong names the step, and steps of a schedule are bisected. Kernels that the interpreter would take
too long for run natively in every form: then a wrong step and its wrong code look alike, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.choose.default import Scheduled, schedule_with_steps
from tilewright.codegen.cpu.llvm import compile_text, emit
from tilewright.core.compute import Combiner, Computation, Serial, Stage, Unary, every_stage, walk
from tilewright.core.diag import Loc, join_locs
from tilewright.core.dims import is_known, known
from tilewright.core.expr import Dim, Sym, bounds, evaluate, substitute
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.partition.computation import GroupComputation, computation_of
from tilewright.partition.facts import Facts
from tilewright.partition.fuse import Group
from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.errors import TilewrightError
from tilewright.target.target import Target
from tilewright.tile import interp, math
from tilewright.tile.ir import For, If, Kernel, Stmt
from tilewright.tile.lower import lower
from tilewright.tile.pack import packed_array
from tilewright.tile.schedule import Schedule
from tilewright.tools.debug.machine import GuardedMemory, Native
from tilewright.tools.debug.report import Fault
from tilewright.tools.debug.report import Stage as Where
from tilewright.tools.debug.tolerance import Difference, judge
from tilewright.tools.debug.values import GraphPart, NodeValues, worst

INTERPRETED = 400_000
"""Statements up to which a kernel runs in the interpreter, at a few microseconds each."""
BROKEN = (TilewrightError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""What a broken step may raise."""
TOO_LARGE = "too large to interpret, so this may be the step or its machine code; `tilewright reduce` makes it small"


@dataclass(frozen=True)
class GroupForms:
    """A group of one graph with everything that it takes to run any of its forms.

    ``sizes`` are the dimensions while the kernel runs; those that its data decide have their largest values. ``whole``
    is the computation that the kernel was made of, where that is not the group's own (``partition.alike``).
    """

    group: Group
    facts: dict[Node, Facts]
    order: dict[Node, int]
    values: NodeValues
    sizes: Mapping[Sym, int]
    target: Target
    threads: int
    whole: GroupComputation | None = None

    @property
    def members(self) -> tuple[Node, ...]:
        """The group's nodes, operands first."""
        return tuple(sorted(self.group.members, key=self.order.__getitem__))

    @property
    def part(self) -> GraphPart:
        """What the group computes."""
        return GraphPart(self.group.root, self.members, max(self._terms(n) for n in self.members))

    @property
    def loc(self) -> Loc:
        """The lines of all members."""
        return join_locs([n.loc for n in self.members])

    @property
    def ops(self) -> str:
        """The ops of all members."""
        return " ".join(n.op.name for n in self.members)

    def made(self) -> GroupComputation:
        """The group as a computation."""
        return self.whole or computation_of(self.group, self.facts, self.order)

    def alone(self, node: Node) -> GroupForms:
        """One member as a kernel of its own."""
        return replace(self, group=Group(node, {node}), whole=None)

    def _terms(self, node: Node) -> int:
        """How many terms each element of a reduction has."""
        stages = [s for s in self.facts[node].items if isinstance(s, Stage) and s.reduction]
        terms = 1
        for s in stages:
            assert s.reduction is not None
            for axis in s.reduction.axes:
                extent = substitute(axis.extent, dict(self.sizes))
                terms *= known(extent, 1)
        return terms


class Forms:
    """Runs kernels of one case and judges their results."""

    def __init__(self, case: GroupForms, made: GroupComputation) -> None:
        self.case, self.part = case, case.part
        self.inputs = {b.name: case.values.of(n) for b, n in zip(made.computation.inputs, made.inputs, strict=True)}
        self.n_outputs = len(made.computation.outputs)

    def interpreted(self, kernel: Kernel, *, reverse: bool = False) -> Difference:
        """By the tile IR's interpreter."""
        try:
            return self._judged(self.results(kernel, reverse=reverse))
        except BROKEN as e:
            return Difference(problem=f"{type(e).__name__}: {e}")

    def results(self, kernel: Kernel, *, reverse: bool = False) -> list[Array]:
        """What the interpreter computes."""
        arrays = self._arrays(kernel)
        sizes = {s.name: self.case.sizes[s] for s in kernel.sizes}
        memory = interp.run(kernel, arrays, sizes, reverse=reverse)
        return [memory[f"out{k}"] for k in range(self.n_outputs)]

    def native(self, kernel: Kernel, threads: int = 1) -> Difference:
        """By machine code, in memory with guards around it."""
        try:
            made, intact = self.native_results(kernel, threads)
        except BROKEN as e:
            return Difference(problem=f"{type(e).__name__}: {e}")
        return self._judged(made) if intact else Difference(problem="it writes outside of its memory")

    def native_results(self, kernel: Kernel, threads: int = 1) -> tuple[list[Array], bool]:
        """What machine code computes, and whether it kept to its memory."""
        module = emit(kernel, self.case.target)
        image = ObjectImage(kernel.name, compile_text(module.text, self.case.target))
        native = Native({kernel.name: kernel}, [image], {kernel.name: module.scratch})
        arrays, memories = self._arrays(kernel), {}
        for b in kernel.params:
            shape = self._shape(b.shape)
            memories[b.name] = (
                GuardedMemory.of(arrays[b.name])
                if b.name in arrays
                else GuardedMemory(int(np.prod(shape, dtype=np.int64)) * b.dtype.n_bytes)
            )
        sizes = [self.case.sizes[s] for s in kernel.sizes]
        native(kernel.name, [m.address for m in memories.values()], sizes, threads)
        outs = {b.name: b for b in kernel.params}
        made = [
            memories[name].array(self._shape(outs[name].shape), outs[name].dtype.numpy)
            for name in (f"out{k}" for k in range(self.n_outputs))
        ]
        return made, native.is_intact and all(m.is_intact for m in memories.values())

    def cost(self, kernel: Kernel) -> int:
        """About how many statements the interpreter would run."""
        return sum(self._cost(s) for s in kernel.body)

    def _cost(self, s: Stmt) -> int:
        if isinstance(s, For):
            extent = substitute(s.loop.extent, dict(self.case.sizes))
            hi = extent if is_known(extent) else bounds(extent)[1] or 1
            return hi * (1 + sum(self._cost(x) for x in s.body))
        return 1 + (sum(self._cost(x) for x in s.body) if isinstance(s, If) else 0)

    def _shape(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(evaluate(d, self.case.sizes) for d in dims)

    def _arrays(self, kernel: Kernel) -> dict[str, Array]:
        packed = {p.param.name: p for p in kernel.packed}
        return {
            b.name: packed_array(p, self.inputs[p.source.name]) if (p := packed.get(b.name)) else self.inputs[b.name]
            for b in kernel.params
            if b.name in packed or b.name in self.inputs
        }

    def _judged(self, results: Sequence[Array]) -> Difference:
        wanted = self.case.values.results(self.case.group.root)
        return self.part.judge(self.case.values, [front(r, w) for r, w in zip(results, wanted, strict=True)])


def front(buffer: Array, like: Array) -> Array:
    """As many elements as ``like`` has, from the front of a buffer that had room for more."""
    return buffer.reshape(-1)[: like.size].reshape(like.shape)


def diagnose(case: GroupForms, seen: Difference, kernel_name: str) -> Fault:
    """Why the kernel of ``case`` gave ``seen``."""

    def fault(where: Where, name: str, found: Difference, *, op: str = "", detail: str = "", loc: Loc | None = None,
              ) -> Fault:  # fmt: skip
        return Fault(where, name, op or case.ops, loc or case.loc, found, kernel=kernel_name, detail=detail)

    try:
        made = case.made()
        lowered = lower(made.computation, kernel_name, made.constants)
    except BROKEN as e:
        return fault("fusion", type(e).__name__, seen, detail=str(e))
    forms = Forms(case, made)
    small = forms.cost(lowered) <= INTERPRETED
    run = forms.interpreted if small else forms.native
    found = run(lowered)
    if found.is_bad:  # plain loops of the very stages are wrong: no schedule has touched them
        culprit = _wrong_alone(case, small=small)
        if culprit is not None:
            node, alone = culprit
            return fault("op", node.op.name, alone, op=node.op.name, loc=node.loc, detail="" if small else TOO_LARGE)
        return fault("fusion", case.group.root.op.name, found, detail="each op alone is right")
    scheduled = schedule_with_steps(made.computation, case.target, made.constants, kernel_name)
    base = lower(scheduled.computation, kernel_name, [b for b in scheduled.computation.inputs if b in made.constants])
    # step by step, in their order: the first fault explains those behind it
    return (
        _before_code(forms, scheduled, base, run, fault, small=small)
        or _in_code(forms, made, scheduled, base, fault)
        or fault("weights", "arguments", seen, detail="the kernel is right when it gets the values that it should")
    )


MakeFault = Callable[..., Fault]


def _wrong_alone(case: GroupForms, *, small: bool) -> tuple[Node, Difference] | None:
    """The first member whose own stages differ from its reference."""
    for node in case.members:
        if len(node.types) > 1 and node is not case.group.root:
            continue
        alone = case.alone(node)
        forms = Forms(alone, alone.made())
        kernel = lower(alone.made().computation)
        found = forms.interpreted(kernel) if small else forms.native(kernel)
        if found.is_bad:
            return node, found
    return None


def _before_code(
    forms: Forms, scheduled: Scheduled, base: Kernel, run: Callable[[Kernel], Difference], fault: MakeFault, *,
    small: bool,
) -> Fault | None:  # fmt: skip
    """Is it the normalised computation, or a step of the schedule?"""
    detail = "" if small else TOO_LARGE
    found = run(base)
    if found.is_bad:
        return fault("normalize", "normalize", found, detail=detail)
    found = run(scheduled.kernel)
    if not found.is_bad:
        if not small:
            return None
        found = forms.interpreted(scheduled.kernel, reverse=True)
        if not found.is_bad:
            return None
        detail = "iterations of a parallel loop depend on each other"
        run = lambda kernel: forms.interpreted(kernel, reverse=True)  # noqa: E731
    step, found = _first_bad_step(scheduled, base, run)
    return fault("schedule" if small else "codegen", step, found, detail=detail)


def _first_bad_step(scheduled: Scheduled, base: Kernel, run: Callable[[Kernel], Difference]) -> tuple[str, Difference]:
    """Bisects the steps: the first after which the loops are wrong."""
    steps = scheduled.schedule.steps
    low, high, found = 0, len(steps), run(scheduled.kernel)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            difference = run(Schedule(steps[:middle]).apply(base))
        except BROKEN as e:
            difference = Difference(problem=f"{type(e).__name__}: {e}")
        if difference.is_bad:
            high, found = middle, difference
        else:
            low = middle
    return (str(steps[high - 1]) if steps else "no step"), found


def _in_code(
    forms: Forms, made: GroupComputation, scheduled: Scheduled, base: Kernel, fault: MakeFault
) -> Fault | None:
    """Is it what the code does with right loops: with one thread, or only with several?"""
    found = forms.native(scheduled.kernel)
    if found.is_bad:
        plain = forms.native(base)
        if plain.is_bad:
            functions = _wrong_functions(forms, made, base)
            if functions:
                return fault("math", functions, found)
            culprit = _wrong_in_plain_code(forms.case)
            name, loc = (culprit.op.name, culprit.loc) if culprit else ("plain loops", None)
            return fault("codegen", name, found, op=culprit.op.name if culprit else "", loc=loc,
                         detail="plain loops are wrong already")  # fmt: skip
        step, _ = _first_bad_step(scheduled, base, forms.native)
        return fault("codegen", step, found, detail="the loops are right, and their code is wrong from this step on")
    for _ in range(8):  # what depends on luck
        found = forms.native(scheduled.kernel, forms.case.threads)
        if found.is_bad:
            return fault("threads", "parallel", found, detail="one thread gives the right result")
    return None


def _wrong_in_plain_code(case: GroupForms) -> Node | None:
    for node in case.members:
        if len(node.types) == 1 or node is case.group.root:
            alone = case.alone(node)
            made = alone.made()
            if Forms(alone, made).native(lower(made.computation)).is_bad:
                return node
    return None


def _wrong_functions(forms: Forms, made: GroupComputation, base: Kernel) -> str:
    """The functions of the computation, where their polynomials are as wrong in the interpreter as in the code."""
    names = {
        v.op
        for s in every_stage(made.computation.items)
        for e in s.exprs
        for v in walk(e)
        if isinstance(v, Unary) and v.op in math.UNARY
    }
    if not names:
        return ""
    target = forms.case.target
    try:
        spelled = lower(_spelled_out(made.computation, target))
        ours = forms.results(spelled)
        theirs, _ = forms.native_results(base)
    except BROKEN:
        return ""
    wanted = forms.case.values.results(forms.case.group.root)
    alike = worst([
        judge(front(t, w), front(o, w), epsilon=2.0**-20, roundings=64)
        for o, t, w in zip(ours, theirs, wanted, strict=True)
    ])  # fmt: skip
    return "" if alike.is_bad else " ".join(sorted(names))


def _spelled_out(computation: Computation, target: Target) -> Computation:
    """The computation with every function replaced by what the code computes for it."""

    def go(item: Stage | Serial) -> Stage | Serial:
        if isinstance(item, Serial):
            return replace(item, body=tuple(go(x) for x in item.body))
        exprs = tuple(math.expand(v, has_fma=target.has_fma, has_scalef=target.has_scalef) for v in item.exprs)
        red = item.reduction
        if red is not None and isinstance(red.op, Combiner):
            results = tuple(math.expand(v, has_fma=target.has_fma) for v in red.op.result)
            red = replace(red, op=replace(red.op, result=results))
        return replace(item, exprs=exprs, reduction=red)

    return replace(computation, items=tuple(go(x) for x in computation.items))
