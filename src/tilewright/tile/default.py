"""The default schedule: rules over a computation's structure and the machine's capabilities.

In: a ``Computation``, a ``Machine``, and which inputs are compile-time constants. Out: a ``Kernel``; also the schedule.
Not its business: instructions.

Every computation gets a correct kernel. A rule that does not fit raises ``ScheduleError``; then the next simpler rule is
tried, plain serial loops at last, and the reason is kept in the kernel's ``notes``.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from tilewright.core.compute import Buffer, Computation, Load, Stage
from tilewright.core.compute import walk as walk_value
from tilewright.core.types import product
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel
from tilewright.tile.lower import lower
from tilewright.tile.machine import Machine
from tilewright.tile.normalize import normalize
from tilewright.tile.rules.contract import contract
from tilewright.tile.rules.pointwise import pointwise
from tilewright.tile.schedule import Builder, Schedule


@dataclass(frozen=True)
class Scheduled:
    """A kernel, and how it came about: ``schedule.apply(lower(computation, ...))`` gives it again."""

    kernel: Kernel
    computation: Computation
    schedule: Schedule


def schedule(
    computation: Computation, machine: Machine, constants: Container[Buffer] = (), name: str = "kernel"
) -> Kernel:
    """A fast and correct kernel for any computation."""
    return schedule_with_steps(computation, machine, constants, name).kernel


def schedule_with_steps(
    computation: Computation, machine: Machine, constants: Container[Buffer] = (), name: str = "kernel"
) -> Scheduled:
    """:func:`schedule`, with the normalised computation and the steps that were applied to it."""
    fixed = {b.name for b in computation.inputs if b in constants}
    normal = normalize(computation, constants)
    known = [b for b in normal.inputs if b.name in fixed]
    builder = Builder(lower(normal, name, known))
    notes: list[str] = []
    stages = [x for x in normal.items if isinstance(x, Stage)]
    if len(stages) == len(normal.items):
        for cluster in clusters_of(stages, normal):
            _schedule_cluster(builder, machine, cluster, notes)
    else:
        notes.append("serial loops keep their order")
    kernel = replace(builder.kernel, notes=tuple(notes))
    return Scheduled(kernel, normal, builder.schedule)


@dataclass(frozen=True)
class Cluster:
    """Stages that one rule schedules together; the last one is the root."""

    stages: tuple[Stage, ...]

    @property
    def root(self) -> Stage:
        return self.stages[-1]


def clusters_of(stages: list[Stage], computation: Computation) -> list[Cluster]:
    """Pair every reduction with the one plain stage that alone reads it over as many points; the rest stands alone."""
    readers: dict[Buffer, list[Stage]] = {}
    for s in stages:
        for b in {x.buffer for v in s.exprs for x in walk_value(v) if isinstance(x, Load)}:
            readers.setdefault(b, []).append(s)
    fused: dict[int, Stage] = {}
    for s in stages:
        users = readers.get(s.out, [])
        if s.reduction is None or len(s.outs) != 1 or s.out not in computation.temps or len(users) != 1:
            continue
        user = users[0]
        same = product([a.extent for a in user.axes]) == product([a.extent for a in s.axes])
        if user.reduction is None and user.update is None and same and id(user) not in fused:
            fused[id(user)] = s
    taken = {id(s) for s in fused.values()}
    found: list[Cluster] = []
    for s in stages:
        if id(s) not in taken:
            found.append(Cluster((fused[id(s)], s) if id(s) in fused else (s,)))
    return found


def _schedule_cluster(b: Builder, machine: Machine, cluster: Cluster, notes: list[str]) -> None:
    """Try the rules that may fit, best first; a failed one leaves no trace but a note."""
    for rule in _rules(b, machine, cluster):
        mark = b.mark()
        try:
            rule()
            return
        except ScheduleError as e:
            b.back(mark)
            notes.append(f"{cluster.root.out.name}: {e.message}")


def _rules(b: Builder, machine: Machine, cluster: Cluster) -> list[Callable[[], None]]:
    root = cluster.root
    if len(cluster.stages) == 2:
        reduced = cluster.stages[0].out.name

        def apart() -> None:
            contract(b, machine, reduced, None)
            pointwise(b, machine, root.out.name)

        return [
            lambda: contract(b, machine, reduced, root.out.name),
            apart,
            lambda: pointwise(b, machine, root.out.name),
        ]
    if root.reduction is not None:
        return [lambda: contract(b, machine, root.out.name, None)]
    return [lambda: pointwise(b, machine, root.out.name)]
