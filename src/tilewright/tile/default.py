"""The default schedule: rules over a computation's structure and the machine's capabilities.

In: a ``Computation``, a ``Machine``, and which inputs are compile-time constants. Out: a ``Kernel``; also the schedule.
Not its business: instructions.

Every computation gets a correct kernel. A rule that does not fit raises ``ScheduleError``; then the next simpler rule
is tried, plain serial loops at last, and the reason is kept in the kernel's ``notes``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tilewright.core.compute import Buffer, Computation, Serial, Stage
from tilewright.tile.clusters import Cluster, Kind, clusters_of
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel
from tilewright.tile.lower import lower
from tilewright.tile.machine import Machine
from tilewright.tile.normalize import normalize
from tilewright.tile.rules.chain import chain
from tilewright.tile.rules.contract import contract, pack_constants
from tilewright.tile.rules.panels import lay_in_panels
from tilewright.tile.rules.pointwise import plain, pointwise
from tilewright.tile.rules.ring import ring
from tilewright.tile.rules.rows import rows
from tilewright.tile.rules.transformed import Transformed, transformed
from tilewright.tile.schedule import Builder, Schedule
from tilewright.tile.schedule.book import Line, apply_lines

RULE_BROKE = "a rule broke"


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
    normal, known = _normal(computation, machine, constants)
    builder = Builder(lower(normal, name, known))
    notes: list[str] = []
    _schedule_items(builder, machine, normal.items, normal, known, notes)
    pack_constants(builder, machine)
    lay_in_panels(builder)
    kernel = replace(builder.kernel, notes=tuple(notes))
    return Scheduled(kernel, normal, builder.schedule)


def schedule_by(
    computation: Computation, machine: Machine, constants: Container[Buffer], name: str, lines: Sequence[Line]
) -> Scheduled:
    """The kernel that a file's steps make; ``ScheduleFileError`` names the step that is not legal."""
    normal, known = _normal(computation, machine, constants)
    kernel = apply_lines(lower(normal, name, known), lines)
    return Scheduled(kernel, normal, Schedule(tuple(line.step for line in lines)))


def _normal(
    computation: Computation, machine: Machine, constants: Container[Buffer]
) -> tuple[Computation, list[Buffer]]:
    """The computation that steps are written for, and its inputs that are compile-time constants."""
    fixed = {b.name for b in computation.inputs if b in constants}
    normal = normalize(computation, constants, machine.dots)
    return normal, [b for b in normal.inputs if b.name in fixed]


def _schedule_items(
    b: Builder,
    machine: Machine,
    items: Sequence[Stage | Serial],
    computation: Computation,
    constants: Container[Buffer],
    notes: list[str],
) -> None:
    """Runs of stages in clusters; a serial loop keeps its order, and the stages inside are scheduled at every step."""
    for is_serial, run in groupby(items, lambda x: isinstance(x, Serial)):
        if is_serial:
            for item in run:
                assert isinstance(item, Serial)
                _schedule_items(b, machine, item.body, computation, constants, notes)
        else:
            stages = [x for x in run if isinstance(x, Stage)]
            for cluster in clusters_of(stages, computation, constants):
                _schedule_cluster(b, machine, cluster, computation, constants, notes)


def _schedule_cluster(
    b: Builder,
    machine: Machine,
    cluster: Cluster,
    computation: Computation,
    constants: Container[Buffer],
    notes: list[str],
) -> None:
    """Try the rules that may fit, best first; a failed one leaves no trace but a note."""
    for rule in _rules(b, machine, cluster, computation, constants, notes):
        mark = b.mark()
        try:
            rule()
            return
        except ScheduleError as e:
            b.back(mark)
            notes.append(f"{cluster.root.out.name}: {e.message}")
        except (ArithmeticError, AssertionError, LookupError, StopIteration, TypeError, ValueError) as e:
            # A mistake in a rule must not stop a model: the plain loops are right. Tests look for this note.
            b.back(mark)
            notes.append(f"{cluster.root.out.name}: {RULE_BROKE}: {type(e).__name__}: {e}")
    plain(b, machine, [s.name for stage in cluster.stages for s in stage.outs])


def _rules(
    b: Builder,
    machine: Machine,
    cluster: Cluster,
    computation: Computation,
    constants: Container[Buffer],
    notes: list[str],
) -> list[Callable[[], None]]:
    names = [s.out.name for s in cluster.stages]
    root = cluster.root

    def apart_of_chain() -> None:
        for part in clusters_of(list(cluster.stages), computation, constants, chains=False):
            _schedule_cluster(b, machine, part, computation, constants, notes)

    def apart() -> None:
        for s in cluster.stages:
            part = Cluster((s,), cluster.kind if s.reduction else Kind.POINTWISE)
            _schedule_cluster(b, machine, part, computation, constants, notes)

    if 0 in root.out.shape:
        return []  # nothing to compute, and nothing to divide costs by
    alone = len(names) == 1
    if cluster.kind is Kind.CHAIN:
        return [lambda: chain(b, machine, cluster), apart_of_chain]
    if cluster.kind is Kind.RING:
        return [lambda: ring(b, machine, cluster), apart_of_chain]
    if cluster.kind is Kind.TRANSFORMED:
        return [lambda: transformed(b, machine, Transformed(*names)), apart_of_chain]
    if cluster.kind is Kind.CONTRACT:
        first = [lambda: contract(b, machine, names[0], None if alone else names[1])]
        return first + ([lambda: rows(b, machine, names)] if alone else [apart])
    if cluster.kind is Kind.ROWS:
        return [lambda: rows(b, machine, names)] + ([] if alone else [apart])
    if root.reduction is None:
        return [lambda: pointwise(b, machine, names[0])]
    return []
