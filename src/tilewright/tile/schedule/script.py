"""A schedule as data: a list of (primitive, arguments) that prints and replays; ``book`` has its file.

In: steps. Out: kernels; text. Replaying on the same unscheduled kernel gives the identical kernel.
Not its business: choosing steps (``choose.default``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule import (
    grids,
    loops,
    memory,
    online,
    online_fours,
    operands,
    partials,
    registers,
    slides,
    stages,
    trim,
)

try:
    from tilewright.tile.polyhedral.resequence import resequence
except ImportError:

    def resequence(
        kernel: Kernel, loop: str, fusion: str = "fused", bands: str = "", lanes: int = 0, copies: int = 1
    ) -> Kernel:
        """Refused: dependences are found by ``islpy``, which is not installed."""
        rule = "what may be exchanged is found by islpy, which is not installed"
        raise ScheduleError("resequence", loop, rule, remedy="pip install tilewright[poly]")


Arg: TypeAlias = str | int

PRIMITIVES: Mapping[str, Callable[..., Kernel]] = {
    "split": loops.split,
    "reorder": loops.reorder,
    "kind": loops.set_kind,
    "merge": loops.merge,
    "fuse": loops.fuse,
    "unit": loops.unit,
    "alternate": loops.alternate,
    "divide": loops.divide,
    "cut": loops.cut,
    "resequence": resequence,
    "enclose": grids.enclose,
    "fill": grids.fill,
    "pipeline": grids.pipeline,
    "online": online.online,
    "online_fours": online_fours.online_fours,
    "fork": stages.fork,
    "cache": stages.cache,
    "compute_at": stages.compute_at,
    "ring": stages.ring,
    "slide": slides.slide,
    "place": stages.place,
    "fold": stages.fold,
    "reuse": memory.reuse,
    "align": memory.align,
    "swizzle": memory.swizzle,
    "pitch": memory.pitch,
    "fetch": memory.fetch,
    "turn": memory.turn,
    "accumulate": registers.accumulate,
    "carry": registers.carry,
    "rfactor": partials.rfactor,
    "spread": partials.spread,
    "tree": partials.tree,
    "trim": trim.trim,
    "skip": trim.skip,
    "pack": operands.pack,
    "stage": operands.stage,
    "panels": operands.panels,
    "prefetch": operands.prefetch,
    "hint": operands.hint,
    "stream": operands.stream,
}


@dataclass(frozen=True)
class Step:
    """One application of a primitive; arguments are names and numbers."""

    primitive: str
    args: tuple[Arg, ...]

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(str(a) for a in self.args)})"


@dataclass(frozen=True)
class Schedule:
    """An ordered list of steps."""

    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "\n".join(str(s) for s in self.steps)

    def apply(self, kernel: Kernel) -> Kernel:
        """Replay every step on ``kernel``; raises the ``ScheduleError`` of the first step that is not legal."""
        for step in self.steps:
            kernel = apply_step(kernel, step)
        return kernel


def apply_step(kernel: Kernel, step: Step) -> Kernel:
    """One step; wrong argument counts are a ``ScheduleError`` too, and so is a race of a GPU's blocks or threads."""
    made = _taken(kernel, step)
    grids.check_races(made, step.primitive, ", ".join(map(str, step.args)))
    return made


def _taken(kernel: Kernel, step: Step) -> Kernel:
    """One step, after which nobody has looked for races yet."""
    primitive = PRIMITIVES.get(step.primitive)
    if primitive is None:
        raise ScheduleError(step.primitive, "", "no such primitive", remedy=f"known: {', '.join(PRIMITIVES)}")
    try:
        return primitive(kernel, *step.args)
    except TypeError as e:
        raise ScheduleError(step.primitive, str(step), f"wrong arguments: {e}") from e


@dataclass(frozen=True)
class Made:
    """What steps made of a kernel: handles on its new parts, which are their names."""

    before: Kernel
    after: Kernel

    @property
    def loops(self) -> tuple[str, ...]:
        """Loops that were not there before, in the order of the text: of a split the outer one, then the inner one."""
        old = {x.sym.name for x in loops_of(self.before.body)}
        return tuple([x.sym.name for x in loops_of(self.after.body) if x.sym.name not in old])

    @property
    def buffers(self) -> tuple[str, ...]:
        """Buffers that were not there before, in the order of the kernel's places."""
        old = {p.buffer.name for p in self.before.places}
        return tuple([p.buffer.name for p in self.after.places if p.buffer.name not in old])

    @property
    def buffer(self) -> str:
        """The one buffer that was not there before."""
        (new,) = self.buffers
        return new


class ScheduleBuilder:
    """A kernel together with the steps that made it: what rules write schedules with."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps: list[Step] = []
        self._apply = apply_step

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Look for races once, after all steps of the block, which raises ``ScheduleError`` for what they made.

        Loops keep their meaning in every step, so only the last kernel has to be free of races; to look at each on the
        way takes longer than all else that a strategy does.
        """
        before, self._apply = self._apply, _taken
        try:
            yield
        finally:
            self._apply = before
        last = self.steps[-1] if self.steps else Step("", ())
        grids.check_races(self.kernel, last.primitive, ", ".join(map(str, last.args)))

    def do(self, primitive: str, *args: Arg) -> Made:
        """Apply and record one step; what it made."""
        step, before = Step(primitive, args), self.kernel
        self.kernel = self._apply(before, step)
        self.steps.append(step)
        return Made(before, self.kernel)

    def split(self, loop: str, factor: int, *tail: str) -> tuple[str, str]:
        """:func:`loops.split`: the outer loop and the inner one."""
        outer, inner = self.do("split", loop, factor, *tail).loops
        return outer, inner

    def mark(self) -> tuple[Kernel, int]:
        """A point to return to with :meth:`back`."""
        return self.kernel, len(self.steps)

    def back(self, mark: tuple[Kernel, int]) -> None:
        self.kernel = mark[0]
        del self.steps[mark[1] :]

    @property
    def schedule(self) -> Schedule:
        return Schedule(tuple(self.steps))
