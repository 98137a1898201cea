"""A schedule of a kernel, written step by step: which loops are tiled, run as lanes, on several threads, and where
intermediate results are made.

In: a ``UserKernel``, names of its loops and tensors. Out: ``KernelSchedule``; by it another
that computes the same. Not its business: what a step may do (``tile.schedule``), good steps (``choose``).

Loops are called as the kernel's functions call them; where two have one name, the later one is ``x_1``. Each step says
what it calls the loops that it makes, ``made`` has their names, and ``print`` shows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import unified_diff
from typing import Any

from tilewright.choose.default import schedule_with_steps
from tilewright.core.diag import CompileError, OptionError, Problem
from tilewright.core.opdef import AuthorSchedule
from tilewright.language.errors import here
from tilewright.language.kernel import UserKernel
from tilewright.language.trace import Traced
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, walk
from tilewright.tile.lower import lower
from tilewright.tile.reach import check_reach
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.script import Arg
from tilewright.tile.schedule.tree import enclosing, writers
from tilewright.tile.text import body_text
from tilewright.tile.verify import verify

try:
    from tilewright.tile.polyhedral.dependences import BrokenOrder, why_not_merge, why_not_parallel, why_not_reorder
except ImportError:  # the extra poly is not installed: the quick checks alone say why a step is refused
    EXACT: dict[str, Callable[..., Any]] = {}
else:
    EXACT = {"reorder": why_not_reorder, "merge": why_not_merge, "parallel": why_not_parallel}


class StepRefused(CompileError):
    """A step of a schedule would change what the kernel computes, or does not fit; names the step and the line."""

    code = "TW0208"


class KernelSchedule:
    """The loops of a kernel, and the steps that made them. Methods change it, and give it back for the next step."""

    def __init__(self, kernel: UserKernel, *args: Any) -> None:
        if not isinstance(kernel, UserKernel):
            raise OptionError(f"{kernel!r:.80} is no kernel", remedy="put @tw.kernel before the function")
        self.kernel = kernel
        self.traced: Traced = kernel.traced(*args)
        self.is_normal = False
        self._plain = lower(self.traced.computation, kernel.__name__)
        self._builder = ScheduleBuilder(self._plain)
        self._before = ""
        self.made: tuple[str, ...] = ()

    def __str__(self) -> str:
        return body_text(self._builder.kernel.body)

    @property
    def loop_nest(self) -> Kernel:
        """The kernel as it stands."""
        return self._builder.kernel

    @property
    def steps(self) -> str:
        """The steps, a line each, as files of schedules have them."""
        return str(self._builder.schedule)

    def loops(self, tensor: str = "", statement: int = 0) -> tuple[str, ...]:
        """The loops around what writes a tensor, outermost first; without a name all loops.

        A reduction has two statements: 0 begins it, 1 adds to it.
        """
        body = self._builder.kernel.body
        if not tensor:
            return tuple(s.loop.sym.name for s in walk(body) if isinstance(s, For))
        places = {p.buffer.name: p.buffer for p in self._builder.kernel.places}
        if tensor not in places:
            raise self._refused("loops", tensor, "there is no tensor of this name", f"tensors: {', '.join(places)}")
        writing = [s for s in walk(body) if not isinstance(s, For | If) and writers((s,), places[tensor])]
        if not 0 <= statement < len(writing):
            raise self._refused("loops", f"{tensor}, {statement}", f"{len(writing)} statements write it")
        return tuple(x.loop.sym.name for x in enclosing(body, writing[statement]) if isinstance(x, For))

    def changes(self) -> str:
        """The loops before and after the last step, as lines that went and came."""
        lines = unified_diff(self._before.splitlines(), str(self).splitlines(), "before", "after", lineterm="", n=99)
        return "\n".join(lines)

    # --- steps ---

    def step(self, primitive: str, *args: Arg) -> KernelSchedule:
        """Any primitive of ``docs/schedules.md`` by its name."""
        before = str(self)
        try:
            made = self._builder.do(primitive, *args)
        except ScheduleError as e:
            raise self._refused(primitive, ", ".join(map(str, args)), e.rule, e.remedy) from e
        self._before = before
        self.made = (*made.loops, *made.buffers)
        return self

    @contextmanager
    def _one_step(self) -> Iterator[None]:
        """Several steps as one: all of them are taken, or none is."""
        last, mark, made, before = self._before, self._builder.mark(), self.made, str(self)
        try:
            yield
        except StepRefused:
            self._builder.back(mark)
            self._before, self.made = last, made
            raise
        self._before = before

    def split(self, loop: str, factor: int, tail: str = "min") -> KernelSchedule:
        """``for x<n`` becomes ``for x_o: for x_i`` of ``factor`` iterations; the last ones may be fewer."""
        return self.step("split", loop, factor, tail) if tail != "min" else self.step("split", loop, factor)

    def reorder(self, *loops: str) -> KernelSchedule:
        """Run the loops of one perfect nest in this order, outermost first."""
        return self.step("reorder", *loops)

    def fuse(self, outer: str, inner: str) -> KernelSchedule:
        """Two loops, one directly in the other, become one."""
        return self.step("fuse", outer, inner)

    def merge(self, first: str, second: str) -> KernelSchedule:
        """Two loops that follow each other become one, with both bodies."""
        return self.step("merge", first, second)

    def tile(self, outer: str, inner: str, rows: int, columns: int) -> KernelSchedule:
        """Split two loops, one directly in the other, and let ``outer_o, inner_o, outer_i, inner_i`` be the order."""
        with self._one_step():
            a, b = self.split(outer, rows).made
            c, d = self.split(inner, columns).made
            self.reorder(a, c, b, d)
            self.made = (a, c, b, d)
        return self

    def vectorize(self, loop: str, lanes: int = 0) -> KernelSchedule:
        """Run the loop as lanes of vectors; with a number of them, split it first and take the inner one."""
        if lanes:
            with self._one_step():
                names = self.split(loop, lanes).made
                self.step("kind", names[1], "vector")
                self.made = names
            return self
        return self.step("kind", loop, "vector")

    def unroll(self, loop: str) -> KernelSchedule:
        """Copy the body for each iteration."""
        return self.step("kind", loop, "unroll")

    def parallel(self, loop: str) -> KernelSchedule:
        """Share the iterations out among threads."""
        return self.step("kind", loop, "parallel")

    def compute_at(self, tensor: str, loop: str, space: str = "local") -> KernelSchedule:
        """Make in each iteration of the loop just that part of an intermediate tensor that the iteration reads.

        ``space``: ``local`` (a thread's scratch), ``reg`` (registers) or ``global``.
        """
        return self.step("compute_at", tensor, loop, space)

    def rfactor(self, loop: str) -> KernelSchedule:
        """Fold partial results, one for each iteration of a reduction's loop, which may then run at one time."""
        return self.step("rfactor", loop)

    def auto(self, target: str = "native") -> KernelSchedule:
        """Begin with the schedule that the compiler's rules choose for the target; further steps may follow.

        The rules bring the computation into a normal form first, so loops may have other names than before.
        """
        if self._builder.steps:
            raise self._refused("auto", "", "there are steps already", "begin with auto(), or leave it out")
        self._before = str(self)
        found = schedule_with_steps(self.traced.computation, Target.parse(target).judged(), (), self.kernel.__name__)
        self._builder = ScheduleBuilder(found.kernel)
        self._builder.steps += found.schedule.steps
        self.is_normal = True
        self.made = ()
        return self

    # --- what comes of it ---

    def why_not(self, *loops: str) -> BrokenOrder | None:
        """What would break if the loops of one perfect nest ran in this order: a dependence with two iterations that
        show it. None where nothing would. It needs the extra ``poly``.
        """
        if not EXACT:
            rule, remedy = "exact dependences need the extra poly", "pip install tilewright[poly]"
            raise self._refused("why_not", ", ".join(loops), rule, remedy)
        if unknown := [x for x in loops if x not in self.loops()]:
            rule = f"there is no loop {unknown[0]}"
            raise self._refused("why_not", ", ".join(loops), rule, f"loops: {', '.join(self.loops())}")
        found: BrokenOrder | None = EXACT["reorder"](self._builder.kernel, *loops)
        return found

    def compile(self) -> UserKernel:
        """The kernel by this schedule: another one that computes the same."""
        verify(self._builder.kernel)
        try:
            check_reach(self._plain, self._builder.kernel, self.traced.constraints)
        except ScheduleError as e:
            raise self._refused("schedule", e.where, e.rule, e.remedy) from e
        outputs = tuple(b.name for b in self.traced.computation.outputs)
        return UserKernel(self.kernel.function, AuthorSchedule(self.steps, outputs, self.is_normal))

    def _refused(self, primitive: str, args: str, rule: str, remedy: str = "") -> StepRefused:
        why = self._dependence(primitive, args.split(", "))
        text = rule if why is None else f"{rule}: {why}"
        problem = Problem(here(), f"{primitive}({args})", text, remedy)
        return StepRefused(f"the schedule of {self.kernel.__name__} is not legal", [problem])

    def _dependence(self, primitive: str, args: list[str]) -> BrokenOrder | None:
        """The dependence that forbids the step, where it can be shown."""
        judge = EXACT.get(args[-1] if primitive == "kind" else primitive)
        if judge is None:
            return None
        try:
            found: BrokenOrder | None = judge(self._builder.kernel, *(args[:1] if primitive == "kind" else args))
        except (ScheduleError, StopIteration):  # what it can't judge: the rule alone has to do
            return None
        return found


def schedule(kernel: UserKernel, *args: Any) -> KernelSchedule:
    """A schedule of a kernel to be written; ``args`` are arguments or types of parameters that have no type."""
    return KernelSchedule(kernel, *args)
