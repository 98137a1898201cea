"""A schedule as data: a list of (primitive, arguments) that prints and replays; ``book`` has its file.

In: steps. Out: kernels; text. Replaying on the same unscheduled kernel gives the identical kernel.
Not its business: choosing steps (``choose.default``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel
from tilewright.tile.schedule import loops, memory, operands, partials, stages, trim

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
    "fork": stages.fork,
    "cache": stages.cache,
    "compute_at": stages.compute_at,
    "ring": stages.ring,
    "place": stages.place,
    "fold": stages.fold,
    "reuse": memory.reuse,
    "align": memory.align,
    "fetch": memory.fetch,
    "turn": memory.turn,
    "accumulate": stages.accumulate,
    "rfactor": partials.rfactor,
    "spread": partials.spread,
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
    """One step; wrong argument counts are a ``ScheduleError`` too."""
    primitive = PRIMITIVES.get(step.primitive)
    if primitive is None:
        raise ScheduleError(step.primitive, "", "no such primitive", remedy=f"known: {', '.join(PRIMITIVES)}")
    try:
        return primitive(kernel, *step.args)
    except TypeError as e:
        raise ScheduleError(step.primitive, str(step), f"wrong arguments: {e}") from e


class ScheduleBuilder:
    """A kernel together with the steps that made it: what rules write schedules with."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.steps: list[Step] = []

    def do(self, primitive: str, *args: Arg) -> None:
        """Apply and record one step."""
        step = Step(primitive, args)
        self.kernel = apply_step(self.kernel, step)
        self.steps.append(step)

    def mark(self) -> tuple[Kernel, int]:
        """A point to return to with :meth:`back`."""
        return self.kernel, len(self.steps)

    def back(self, mark: tuple[Kernel, int]) -> None:
        self.kernel = mark[0]
        del self.steps[mark[1] :]

    @property
    def schedule(self) -> Schedule:
        return Schedule(tuple(self.steps))
