"""The default schedule: rules over a computation's structure and the machine's capabilities.

In: a ``Computation``, a ``Target``, and which inputs are compile-time constants. Out: a ``Kernel``; also the schedule.
Not its business: instructions.

Every computation gets a correct kernel. A rule that does not fit raises ``ScheduleError``; then the next simpler rule
is tried, plain serial loops at last, and the reason is kept in the kernel's ``notes``. A rule that raises anything else
has a mistake: that is ``RuleBroke``, unless the caller wants a kernel all the same (``forgive``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType

from tilewright.choose.clusters import Cluster, ClusterKind, clusters_of, is_decoded
from tilewright.choose.normalize import normalize
from tilewright.choose.strategies.across import across, turned_by
from tilewright.choose.strategies.beside import beside, pairs
from tilewright.choose.strategies.chain import chain
from tilewright.choose.strategies.columns import are_few_columns
from tilewright.choose.strategies.constants import pack_constants
from tilewright.choose.strategies.contract import contract
from tilewright.choose.strategies.contract_space import Arrange
from tilewright.choose.strategies.copies import bordered, copied, is_bordered
from tilewright.choose.strategies.hints import hint_operands
from tilewright.choose.strategies.narrow import narrow
from tilewright.choose.strategies.nested import nested
from tilewright.choose.strategies.nested_tiles import nested_tiles
from tilewright.choose.strategies.ordered import nests_in_order, ordered, seconds_alone
from tilewright.choose.strategies.padding import skip_padding
from tilewright.choose.strategies.panels import lay_in_panels
from tilewright.choose.strategies.plane import plane
from tilewright.choose.strategies.pointwise import plain, pointwise
from tilewright.choose.strategies.projected import projected
from tilewright.choose.strategies.ring import ring
from tilewright.choose.strategies.row_sums import row_sums
from tilewright.choose.strategies.rows import rows
from tilewright.choose.strategies.running import running
from tilewright.choose.strategies.short_rows import few_columns, short_rows
from tilewright.choose.strategies.strips import strips
from tilewright.choose.strategies.tiles import tiles
from tilewright.choose.strategies.transformed import Transformed, transformed
from tilewright.choose.strategies.turned_rows import turned_rows
from tilewright.core.compute import Buffer, Computation, Load, Serial, Stage, buffers_of_value
from tilewright.core.estimates import DOUBT
from tilewright.target.target import Target
from tilewright.tile.errors import RuleBroke, ScheduleError
from tilewright.tile.ir import Kernel
from tilewright.tile.lower import lower
from tilewright.tile.schedule import Schedule, ScheduleBuilder
from tilewright.tile.schedule.book import Line, apply_lines

RULE_BROKE = "a rule broke"
PLAIN = "plain"
"""The strategy that fits everything: the loops as they are, with lanes where that is possible."""
OnBroken = Callable[[RuleBroke], None]


def refuse(broken: RuleBroke) -> None:
    """Let nobody overlook that a rule broke."""
    raise broken


def forgive(broken: RuleBroke) -> None:
    """Go on with the next simpler rule, and keep a note: a slow kernel serves users better than none."""


@dataclass(frozen=True)
class Strategy:
    """A way to schedule some stages: ``apply`` does, or raises ``ScheduleError`` where it does not fit.

    That one does not fit is worth a note unless it ``is_quiet``: it is for few kernels, and nobody misses it.
    """

    name: str
    apply: Callable[[], object]
    is_quiet: bool = False


@dataclass(frozen=True)
class Tried:
    """What a cluster, by the buffer that it makes, could be scheduled by, and which of those strategies did it."""

    root: str
    strategies: tuple[str, ...]
    taken: str


@dataclass(frozen=True)
class Scheduled:
    """A kernel, and how it came about: ``schedule.apply(lower(computation, ...))`` gives it again."""

    kernel: Kernel
    computation: Computation
    schedule: Schedule
    tried: tuple[Tried, ...] = ()


def schedule(
    computation: Computation, machine: Target, constants: Container[Buffer] = (), name: str = "kernel"
) -> Kernel:
    """A fast and correct kernel for any computation."""
    return schedule_with_steps(computation, machine, constants, name).kernel


def schedule_with_steps(
    computation: Computation,
    machine: Target,
    constants: Container[Buffer] = (),
    name: str = "kernel",
    on_broken: OnBroken = refuse,
    first: Mapping[str, str] = MappingProxyType({}),
    arrange: Arrange | None = None,
) -> Scheduled:
    """:func:`schedule`, with the normalised computation and the steps that were applied to it.

    ``first`` has, by the buffer that a cluster makes, the strategy to try before all others of its list. ``arrange``
    may take another tile and order of loops than the rules for a contraction that stands alone.
    """
    normal, known = _normal(computation, machine, constants)
    builder = ScheduleBuilder(lower(normal, name, known))
    notes: list[str] = []
    work = _Work(builder, machine, normal, known, notes, on_broken, first, arrange)
    work.fix_vectors(normal.items)
    work.all(normal.items)
    skip_padding(builder)
    pack_constants(builder, machine)
    lay_in_panels(builder)
    hint_operands(builder, machine)
    kernel = replace(builder.kernel, notes=tuple(notes))
    return Scheduled(kernel, normal, builder.schedule, tuple(work.done))


@dataclass(frozen=True)
class ByRules:
    """The rules' schedules for one machine: each computation's is ``made`` once, by the name of its kernel."""

    machine: Target
    on_broken: OnBroken = refuse
    made: dict[str, Scheduled] = field(default_factory=dict)

    def of(self, computation: Computation, constants: Container[Buffer], name: str) -> Scheduled:
        """:func:`schedule_with_steps`, or what it gave before."""
        if name not in self.made:
            self.made[name] = schedule_with_steps(computation, self.machine, constants, name, self.on_broken)
        return self.made[name]


def schedule_by(
    computation: Computation, machine: Target, constants: Container[Buffer], name: str, lines: Sequence[Line],
    *, is_normal: bool = True,
) -> Scheduled:  # fmt: skip
    """The kernel that a file's steps make; ``ScheduleFileError`` names the step that is not legal.

    The steps are for the normalised computation, or for the one that is given where not ``is_normal``.
    """
    normal, known = computation, [b for b in computation.inputs if b in constants]
    if is_normal:
        normal, known = _normal(computation, machine, constants)
    kernel = apply_lines(lower(normal, name, known), lines)
    return Scheduled(kernel, normal, Schedule(tuple(line.step for line in lines)))


def _normal(
    computation: Computation, machine: Target, constants: Container[Buffer]
) -> tuple[Computation, list[Buffer]]:
    """The computation that steps are written for, and its inputs that are compile-time constants."""
    fixed = {b.name for b in computation.inputs if b in constants}
    normal = normalize(computation, machine, constants)
    return normal, [b for b in normal.inputs if b.name in fixed]


def fits(
    b: ScheduleBuilder, root: str, apply: Callable[[], object], notes: list[str], on_broken: OnBroken, *,
    is_quiet: bool = False,
) -> bool:  # fmt: skip
    """Did a strategy schedule the stages that make ``root``? One that did not leaves no trace but a note."""
    mark = b.mark()
    try:
        with b.as_one():
            apply()
        return True
    except ScheduleError as e:
        if not is_quiet:
            notes.append(f"{root}: {e.message}")
    except (ArithmeticError, AssertionError, LookupError, StopIteration, TypeError, ValueError) as e:
        on_broken(RuleBroke(b.kernel.name, root, e))
        notes.append(f"{root}: {RULE_BROKE}: {type(e).__name__}: {e}")
    b.back(mark)
    return False


@dataclass(frozen=True)
class _Work:
    """What scheduling a computation goes on; ``vectors``: of a tile that reads a constant, where another fixed them."""

    b: ScheduleBuilder
    machine: Target
    computation: Computation
    constants: Container[Buffer]
    notes: list[str]
    on_broken: OnBroken
    first: Mapping[str, str]
    arrange: Arrange | None
    vectors: dict[Buffer, int] = field(default_factory=dict)
    done: list[Tried] = field(default_factory=list)

    def clusters(self, stages: Sequence[Stage], *, chains: bool = True) -> list[Cluster]:
        return clusters_of(list(stages), self.computation, self.constants, chains=chains)

    def items(self, items: Sequence[Stage | Serial], *, is_inside: bool = False) -> None:
        """Runs of stages in clusters; a serial loop keeps its order, and the stages inside are scheduled at every step.

        Inside of one (``is_inside``), two products that share nothing may run beside each other.
        """
        for run in _runs(items if is_inside else self.without_turned(items)):
            if isinstance(run, Serial):
                self.items(run.body, is_inside=True)
                continue
            clusters = self.clusters(run)
            pair = next(pairs(clusters, self.machine, self.constants), None) if is_inside else None
            if pair is not None and self.tried(
                pair.clusters[1], Strategy("beside", partial(beside, self.b, self.machine, pair))
            ):
                done = [c.stages[0] for c in pair.clusters]
                clusters = self.clusters([s for s in run if all(s is not d for d in done)])
            if not is_inside:
                clusters = self.without_strips(clusters)
            for cluster in sorted(clusters, key=self.is_copy):  # those behind what reads them
                self.cluster(cluster)

    def without_turned(self, items: Sequence[Stage | Serial]) -> list[Stage | Serial]:
        """Rows that are laid across to be folded, a block of them at a time; the other items."""
        left = list(items)
        for k, loop in enumerate(items):
            pair = turned_by(items, k)
            if pair is None or any(all(x is not y for y in left) for x in (*pair, loop)):
                continue
            turned, out = (s.out.name for s in pair)
            apply = partial(across, self.b, self.machine, turned, out)
            if fits(self.b, out, apply, self.notes, self.on_broken, is_quiet=True):
                self.done.append(Tried(out, ("across", "pointwise"), "across"))
                left = [x for x in left if x is not loop and all(x is not s for s in pair)]
        return left

    def without_strips(self, clusters: Sequence[Cluster]) -> list[Cluster]:
        """Plain stages that read each other's results, a strip of rows at a time where that costs less; the others."""
        plain = [c.root for c in clusters if c.kind is ClusterKind.POINTWISE and not self.is_copy(c)]
        taken: set[int] = set()
        for k in reversed(range(1, len(plain))):
            root, before = plain[k], [s for s in plain[:k] if id(s) not in taken]
            if id(root) in taken or not before:
                continue

            def apply(root: Stage = root, before: Sequence[Stage] = before) -> None:
                group = strips(self.b, self.machine, root, before, self.computation)
                taken.update(id(s) for s in group)

            if fits(self.b, root.out.name, apply, self.notes, self.on_broken, is_quiet=True):
                self.done.append(Tried(root.out.name, ("strips", "pointwise"), "strips"))
        return [c for c in clusters if id(c.root) not in taken]

    def all(self, items: Sequence[Stage | Serial]) -> None:
        """By the rules alone, or with nests whose order counts in another one first, whichever costs less."""
        start = self.b.mark()
        self.items(items)
        if not (loops := nests_in_order(self.computation)):
            return
        by_rules, steps, done = self.b.kernel, self.b.steps[start[1] :], [*self.done]
        self.b.back(start)
        self.done.clear()
        for loop in loops:
            fits(self.b, loop, partial(ordered, self.b, self.machine, loop), self.notes, self.on_broken)
        if len(self.b.steps) > start[1]:
            self.items(items)
            if seconds_alone(self.b.kernel, self.machine) < seconds_alone(by_rules, self.machine) * (1 - DOUBT):
                return
            self.b.back(start)
        self.b.kernel, self.done[:] = by_rules, done
        self.b.steps += steps

    def is_copy(self, cluster: Cluster) -> bool:
        """Is it elements of one buffer in a temporary, in another order or with a border, in a kernel round products?

        Or what is decoded of a constant, for products.
        """
        root = cluster.root
        is_lone = len(cluster.stages) == 1 and cluster.kind is ClusterKind.POINTWISE and root.reduction is None
        if not is_lone or root.out not in self.computation.temps:
            return False
        if is_decoded(root, self.constants):
            return True
        if not isinstance(root.expr, Load) and not is_bordered(root):
            return False
        return any(isinstance(s, Stage) and s.reduction is not None for s in self.computation.items)

    def fix_vectors(self, items: Sequence[Stage | Serial]) -> None:
        """What pairs of products ask of the constants that they read holds for all readers: they are packed once."""
        for run in _runs(items):
            if isinstance(run, Serial):
                self.fix_vectors(run.body)
                stages = [x for x in run.body if isinstance(x, Stage)]
                for pair in pairs(self.clusters(stages), self.machine, self.constants) if len(stages) > 1 else ():
                    self.vectors.update(pair.vectors)

    def cluster(self, cluster: Cluster) -> None:
        """Try the strategies that may fit, best first."""
        found, root = self.strategies(cluster), cluster.root.out.name
        wanted = self.first.get(root)
        found.sort(key=lambda x: x.name != wanted)
        at = len(self.done)
        taken = next((x.name for x in found if self.tried(cluster, x)), PLAIN)
        if taken is PLAIN:
            plain(self.b, self.machine, [s.name for stage in cluster.stages for s in stage.outs])
        self.done.insert(at, Tried(root, tuple(x.name for x in found), taken))

    def tried(self, cluster: Cluster, strategy: Strategy) -> bool:
        """Did a strategy fit? One that does not leaves no trace but a note."""
        n_done, root = len(self.done), cluster.root.out.name
        if fits(self.b, root, strategy.apply, self.notes, self.on_broken, is_quiet=strategy.is_quiet):
            return True
        del self.done[n_done:]
        return False

    def strategies(self, cluster: Cluster) -> list[Strategy]:
        """What may fit a cluster by its structure, best first."""
        b, machine = self.b, self.machine
        names = [s.out.name for s in cluster.stages]
        root = cluster.root

        def parts_of_chain() -> None:
            for part in self.clusters(cluster.stages, chains=False):
                self.cluster(part)

        def without_product() -> None:
            product = next(k for k, s in enumerate(cluster.stages) if s is cluster.last)
            for part in (cluster.stages[:product], cluster.stages[product:]):
                for c in self.clusters(part):
                    self.cluster(c)

        def stages_apart() -> None:
            for s in cluster.stages:
                self.cluster(Cluster((s,), cluster.kind if s.reduction else ClusterKind.POINTWISE))

        alone = len(names) == 1
        top = None if alone else names[1]
        apart = Strategy("apart", stages_apart)
        apart_of_chain = Strategy("apart", parts_of_chain)
        # From special to general, since the first that fits is taken.
        by_rows = [
            Strategy("short-rows", partial(short_rows, b, machine, names), is_quiet=True),
            Strategy("turned-rows", partial(turned_rows, b, machine, names), is_quiet=True),
            Strategy("rows", partial(rows, b, machine, names)),
        ]
        if 0 in root.out.shape:
            return []  # nothing to compute, and nothing to divide costs by
        match cluster.kind:
            case ClusterKind.CHAIN:
                return [Strategy("chain", partial(chain, b, machine, cluster)), apart_of_chain]
            case ClusterKind.RING:
                return [Strategy("ring", partial(ring, b, machine, cluster)), apart_of_chain]
            case ClusterKind.PLANE:
                return [Strategy("plane", partial(plane, b, machine, names)), apart_of_chain]
            case ClusterKind.PROJECTED:
                return [
                    Strategy("projected", partial(projected, b, machine, cluster)),
                    Strategy("apart", without_product),
                ]
            case ClusterKind.TRANSFORMED:
                found = Transformed(*names)
                return [Strategy("transformed", partial(transformed, b, machine, found)), apart_of_chain]
            case ClusterKind.NESTED:
                return [
                    Strategy("nested-tiles", partial(nested_tiles, b, machine, *names), is_quiet=True),
                    Strategy("nested", partial(nested, b, machine, *names)),
                    apart_of_chain,
                ]
            case ClusterKind.CONTRACT:
                # Lanes along so few columns would mostly be idle: sums along the reduction come first.
                few = are_few_columns(machine, cluster.stages[0], self.constants)
                return [
                    Strategy("narrow", partial(narrow, b, machine, names[0], top), is_quiet=True),
                    Strategy("few-columns", partial(few_columns, b, machine, names[0], top), is_quiet=True),
                    *([replace(x, is_quiet=True) for x in by_rows] if few else []),
                    Strategy("tiles", partial(tiles, b, machine, names[0], top), is_quiet=True),
                    Strategy(
                        "contract",
                        partial(contract, b, machine, names[0], top, vectors=self.vectors, arrange=self.arrange),
                    ),
                    *([] if few else by_rows if alone else []),
                    *([] if alone else [apart]),
                ]
            case ClusterKind.ROWS:
                # These place one reduction and what reads it; a longer cluster has more than that.
                sums = [
                    Strategy("narrow", partial(narrow, b, machine, names[0], top, has_lanes=False)),
                    Strategy("row-sums", partial(row_sums, b, machine, names[0], top)),
                ]
                return [*(sums if len(names) <= 2 else []), *by_rows, *([] if alone else [apart])]
        if self.is_copy(cluster):
            copy = bordered if is_bordered(root) else copied
            return [Strategy("copied", partial(copy, b, machine, names[0]))]
        if root.reduction is None:
            is_running = root.out in buffers_of_value(root.expr)
            return [
                *([Strategy("running", partial(running, b, machine, names[0]), is_quiet=True)] if is_running else []),
                Strategy("pointwise", partial(pointwise, b, machine, names[0])),
            ]
        return []


def _runs(items: Sequence[Stage | Serial]) -> Iterator[Serial | list[Stage]]:
    """Serial loops, and between them the stages that stand together."""
    for is_serial, run in groupby(items, lambda x: isinstance(x, Serial)):
        if is_serial:
            yield from (x for x in run if isinstance(x, Serial))
        else:
            yield [x for x in run if isinstance(x, Stage)]
