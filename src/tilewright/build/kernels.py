"""From an optimised graph to a program of kernels and to their object code, each distinct one made once.

In: a graph, a target, perhaps a file of schedules. Out: a program, then objects, in order.
Not its business: which ops share a kernel (``partition``), by which rules one is scheduled (``choose``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tilewright.build.exact import Sizes, exact_graphs
from tilewright.build.options import Clock, Options
from tilewright.build.passes import FormPrices, graph_passes, storing_passes
from tilewright.build.versions import MOST_VERSIONS, form_at, symbol_of
from tilewright.choose.candidates import candidates
from tilewright.choose.cheapest import cheapest, seconds_of
from tilewright.choose.default import OnBroken, Scheduled, forgive, refuse, schedule_by
from tilewright.choose.shares import times_of
from tilewright.codegen.cpu.control import scratch_of
from tilewright.codegen.cpu.llvm import compile_text, emit
from tilewright.codegen.cpu.program import emit_program
from tilewright.core.deep import deeply
from tilewright.core.diag import within_memory
from tilewright.core.dims import is_known
from tilewright.core.estimates import DOUBT
from tilewright.core.expr import Sym
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.largest import largest
from tilewright.core.opdef import AuthorSchedule
from tilewright.core.passes import Pass, run_pipeline
from tilewright.core.types import product
from tilewright.core.verify import verify as verify_graph
from tilewright.frontend.size_rules import with_data_rules
from tilewright.graph.limits import check_sizes
from tilewright.graph.pipeline import BY_SIZE
from tilewright.partition.alike import share_kernels
from tilewright.partition.computation import GroupComputation, computation_text
from tilewright.partition.grouped import Grouped, GroupedGraph, group_graph, optimise_inner
from tilewright.partition.plan import ProgramPlanner
from tilewright.partition.program import Choice, KernelCall, Program, SizedProgram, dimension_slots, walk_steps
from tilewright.partition.scheduled import LAY_OUT, KernelSpec, KernelVersion, Packing, ScheduledGraph, ScheduledGroup
from tilewright.partition.weights import Weights
from tilewright.partition.work import KernelWork, points_of, products_of, work_of
from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.env import read_environment
from tilewright.runtime.errors import ResourceError
from tilewright.runtime.manifest import ScratchSpec
from tilewright.runtime.once import MAKING
from tilewright.target.gpu import Gpu
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleFileError
from tilewright.tile.ir import Kernel, Packed, Role, Space
from tilewright.tile.pack import layout_text, pack_bytes, packing_computation
from tilewright.tile.schedule import Schedule
from tilewright.tile.schedule.book import Line, ScheduleBook, no_code, read_step, unknown_kernel
from tilewright.tile.verify import verify

if TYPE_CHECKING:
    from tilewright.build.gpu_kernels import GpuKernels


@dataclass(frozen=True)
class Checks:
    """What the compiler checks of itself on the way: the code does not depend on it.

    ``verify``: graphs after every pass, and every kernel. ``on_broken``: what becomes of a rule with a mistake.
    """

    verify: bool = False
    on_broken: OnBroken = forgive


LENIENT, STRICT = Checks(), Checks(verify=True, on_broken=refuse)


def default_checks() -> Checks:
    """As the environment says (``TILEWRIGHT_STRICT``)."""
    return STRICT if read_environment().strict_compiler else LENIENT


def _gpu_kernels(gpu: Gpu, emulates: bool, checks: Checks) -> GpuKernels:
    """What makes kernels for a GPU, loaded by the first model for one."""
    with MAKING:
        from tilewright.build.gpu_kernels import GpuKernels

    return GpuKernels(gpu, emulates, checks.on_broken, checks.verify)


class KernelBuilder:
    """Schedules each distinct computation once and compiles it once.

    LLVM works in a thread of its own (its library releases Python's lock), while this one schedules and emits the next
    kernel: two cores share a compile without worker processes.

    ``schedules`` is a file's text, ``found`` what searches found (:class:`Options`), which the file and an author's
    schedule precede.
    With the numbers of ``priced`` schedules are chosen by price, else by the rules. With a ``gpu`` kernels are
    scheduled for that one, and where the builder ``emulates``, turned into what the target runs.
    """

    def __init__(
        self,
        target: Target,
        clock: Clock,
        schedules: str = "",
        checks: Checks = LENIENT,
        weights: Weights | None = None,
        priced: Target | None = None,
        gpu: Gpu | None = None,
        emulates: bool = True,
        found: str = "",
        prices: FormPrices | None = None,
    ) -> None:
        self.target = target
        self.on_gpu = None if gpu is None else _gpu_kernels(gpu, emulates, checks)
        self.priced = priced
        self.checks = checks
        self.book = ScheduleBook.parse(schedules)
        self.problems = list(self.book.problems)
        self.found: dict[str, str] = json.loads(found) if found else {}
        self.by_search: dict[str, str] = {}
        self.schedules: dict[str, Schedule] = {}
        self.groups: dict[str, GroupComputation] = {}
        self.clock = clock
        self.kernels: dict[str, Kernel] = {}
        self.specs: dict[str, KernelSpec] = {}
        self.labels: dict[str, str] = {}
        self.scratch: dict[str, ScratchSpec] = {}
        self.sizes: dict[str, int] = {}
        self.work: dict[str, KernelWork | None] = {}
        self.products: dict[str, tuple[str, ...]] = {}
        self.beside: set[str] = set()
        self.by_size: Sequence[Pass] = ()
        self.paying: dict[tuple[str, str], bool] = {}
        self.by_rules = (prices or FormPrices.on(target, checks.on_broken)).by_rules
        self.stoppable: set[str] = set()
        self.failures: dict[str, int] = {}
        self.weights = weights or Weights()
        self.process = os.getpid()

    def plan(self, graph: Graph, passes: Sequence[Pass], options: Options) -> tuple[Program, ProgramPlanner]:
        """The program of an optimised graph; graphs within its control flow go through ``passes`` first.

        Programs of one builder share kernels and weights. Mistakes in the file of schedules wait for ``check_book``.
        """

        def optimise(inner: Graph) -> Graph:
            return run_pipeline(with_data_rules(inner, is_inner=True), passes, check=self.checks.verify)

        fuse = options.optimize != 0
        grouped = group_graph(graph, optimise_inner(graph, optimise), self.target, fuse=fuse)
        shared = self.target if fuse and self.target.has_threads else replace(self.target, n_cores=1)
        planner = ProgramPlanner(shared, self.weights, frozenset(graph.symbols()), failures=self.failures)
        self.by_size = [p for p in passes if type(p) in BY_SIZE] if self.on_gpu is None else []
        program = planner.program(self.schedule_groups(grouped), graph.name)
        for made, _ in planner.plans:
            for b in made.beside:
                steps = made.steps[b.first :][: len(b.members)]
                self.beside.update(c.kernel for s in steps if isinstance(s, KernelCall | Choice) for c in s.calls)
        return program, planner

    def schedule_groups(self, of: GroupedGraph) -> ScheduledGraph:
        """Every group with its kernel, and with those that lay run-time operands out as that one reads them."""

        def scheduled(grouped: Grouped) -> ScheduledGroup:
            made = grouped.made
            if made is None:
                return ScheduledGroup(grouped)
            spec = self.schedule(made, grouped.label)
            laid_out = {
                k: (packing, self._layout_kernel(made.inputs[at], packing))
                for k, (at, packing) in enumerate(spec.reads)
                if packing is not None and of.resolve(made.inputs[at])[0].op is not CONST
            }
            return ScheduledGroup(grouped, spec, laid_out, tuple(self._versions(of, grouped, spec)))

        groups = tuple(map(scheduled, of.groups if self.on_gpu else share_kernels(of.groups)))
        return ScheduledGraph(of, groups, {n: tuple(map(self.schedule_groups, g)) for n, g in of.inner.items()})

    def _versions(self, of: GroupedGraph, grouped: Grouped, general: KernelSpec) -> Iterator[KernelVersion]:
        """The versions of a group's kernel for its smallest sizes, as long as each has a form that pays.

        A file of schedules that has the kernel and no version of it is for all sizes.
        """
        passes = [p for p in self.by_size if any(n.op in BY_SIZE[type(p)] for n in grouped.group.members)]
        symbol = symbol_of(grouped) if passes else None
        if symbol is None:
            return
        for size in range(max(symbol.lo or 0, 1), max(symbol.lo or 0, 1) + MOST_VERSIONS - 1):
            if symbol.hi is not None and size > symbol.hi:
                return
            form = form_at(of, grouped, passes, self.target, symbol, size)
            sizes = {symbol: size, **(grouped.made.places if grouped.made else {})}
            if form is None or not self._pays(form.made, general, sizes):
                return
            spec = self.schedule(form.made, grouped.label)
            if all(packing is None or form.inputs[at].op is CONST for at, packing in spec.reads):
                yield KernelVersion(symbol, size, form.inputs, spec)

    def _pays(self, made: GroupComputation, general: KernelSpec, sizes: Mapping[Sym, int]) -> bool:
        """Does a kernel of its own take less of the time of the general one than prices may be off by?"""
        name = made.name
        if name in self.book.heads or general.name in self.book.heads:
            return name in self.book.heads
        if (pair := (name, general.name)) not in self.paying:
            own = self.by_rules.of(made.computation, made.constants, name)
            of_all = seconds_of(self.kernels[general.name], self.target, sizes)
            self.paying[pair] = seconds_of(own.kernel, self.target) < (1 - DOUBT) * of_all
        return self.paying[pair]

    def _layout_kernel(self, node: Node, packing: Packing) -> KernelSpec:
        """The kernel that lays a run-time operand out as another kernel reads it."""
        c = packing.computation
        return self.schedule(GroupComputation(c, (node,), frozenset(), computation_text(c)), LAY_OUT)

    def schedule(self, made: GroupComputation, label: str) -> KernelSpec:
        """The kernel of a computation; equal computations share one."""
        spec = self.specs.get(made.text)
        if spec is None:
            name = made.name
            with self.clock.stage("schedule"):
                kernel = deeply(lambda: self._scheduled(made, name))
            spec = self.specs[made.text] = _spec(kernel, made, self.target)
            self.kernels[name] = kernel
            self.groups[name] = made
            self.labels[name] = label
            self.work[name] = work_of(made)
            self.products[name] = products_of(made)
        return spec

    def _scheduled(self, made: GroupComputation, name: str) -> Kernel:
        """By the book where it has the kernel, else by the rules; a mistake in the book waits for the plan's end."""
        found = None
        if name in self.book.lines:
            lines = self.book.lines[name]
            # All that is wrong with a book is told at once, so the plan is made to its end, with whatever schedule.
            try:
                found = self._by_lines(made, name, lines)
                self._try_code(found.kernel)
            except ScheduleFileError as e:
                self.problems += e.problems
                found = None
            except Exception as e:
                self.problems.append(no_code(self.book.heads[name], name, e))
                found = None
        if found is None and self.on_gpu is not None:
            found = self.on_gpu.scheduled(made, name)
        if found is None and made.author is not None:
            found = self._by_author(made, name, made.author)
        if found is None and name in self.found:
            found = self._fitting(made, name, self.found[name])
            if found is not None:
                self.by_search[name] = self.found[name]
        if found is None:
            if self.priced:
                found = self._cheapest(made, name, self.priced)
            else:
                found = self.by_rules.of(made.computation, made.constants, name)
        if self.checks.verify:
            verify(found.kernel)
        self.schedules[name] = found.schedule
        return found.kernel

    def _cheapest(self, made: GroupComputation, name: str, machine: Target) -> Scheduled:
        parts = (made.computation, self.target, made.constants, name, self.checks.on_broken)
        return cheapest(candidates(*parts, machine=machine), machine)

    def _by_lines(self, made: GroupComputation, name: str, lines: Sequence[Line]) -> Scheduled:
        if self.on_gpu is not None:
            return self.on_gpu.scheduled_by(made, name, lines)
        return schedule_by(made.computation, self.target, made.constants, name, lines)

    def _fitting(self, made: GroupComputation, name: str, steps: str) -> Scheduled | None:
        """By steps that nobody wrote for this compile; None where they fit no more, or give no code."""
        try:
            found = self._by_lines(made, name, _lines(steps))
            self._try_code(found.kernel)
        except Exception:  # whatever code generation says of steps of another version, or of somebody's hand
            return None
        return found

    def _by_author(self, made: GroupComputation, name: str, author: AuthorSchedule) -> Scheduled:
        """By the steps that an op's author gave it; ``ScheduleFileError`` where they don't fit its sizes."""
        lines = _lines(author.steps)
        return schedule_by(made.computation, self.target, made.constants, name, lines, is_normal=author.is_normal)

    def read_steps(self, name: str, steps: str) -> Scheduled | None:
        """The kernel by steps, a line each; None where they don't fit it or give no code."""
        return self._fitting(self.groups[name], name, steps)

    def _try_code(self, kernel: Kernel) -> None:
        """Raise what code generation says of a kernel that somebody scheduled by hand."""
        if self.on_gpu is None or self.on_gpu.emulates:
            emit(kernel, self.target)
        else:
            self.on_gpu.llvm_text(kernel)

    def check_book(self) -> None:
        """Raise everything that is wrong with the book, kernels that the model lacks included."""
        names = list(self.kernels)
        strange = [unknown_kernel(n, k, names) for k, n in self.book.heads.items() if k not in self.kernels]
        if self.problems or strange:
            raise ScheduleFileError(sorted([*self.problems, *strange], key=lambda p: p.loc.line))

    def start(self) -> list[tuple[str, Future[bytes]]]:
        """Emit every kernel, in order of first use, and leave the rest to LLVM's thread."""
        pending: list[tuple[str, Future[bytes]]] = []
        llvm = ThreadPoolExecutor(1, thread_name_prefix="tilewright-llvm")
        for k, name in enumerate(self.kernels):
            self.clock.tell("kernels", k, len(self.kernels))
            pending.append((name, llvm.submit(compile_text, self._emitted(name, polls=True), self.target)))
        llvm.shutdown(wait=False)
        return pending

    def texts(self) -> dict[str, str]:
        """The module of every kernel by name, in order of first use."""
        found: dict[str, str] = {}
        for k, name in enumerate(self.kernels):
            self.clock.tell("kernels", k, len(self.kernels))
            found[name] = self._emitted(name, polls=False)
        return found

    def most_scratch(self) -> ScratchSpec:
        """Enough for each kernel that was emitted."""
        return ScratchSpec.most(self.scratch.values())

    def _emitted(self, name: str, *, polls: bool) -> str:
        with self.clock.stage("emit"):
            made = emit(self.kernels[name], self.target, part=name in self.beside, polls=polls)
        self.scratch[name] = made.scratch
        if made.is_stoppable:
            self.stoppable.add(name)
        return made.text

    def finish(self, pending: Sequence[tuple[str, Future[bytes]]]) -> list[ObjectImage]:
        """Object code of every kernel that was started; ``ResourceError`` in a child forked since, without threads."""
        if os.getpid() != self.process:
            remedy = "compile again in this process, or fork before compiling"
            raise ResourceError("this process was forked in the middle of a compile", remedy=remedy)
        images = []
        with self.clock.stage("llvm (wait)"):
            for k, (name, made) in enumerate(pending):
                self.clock.tell("llvm (wait)", k, len(pending))
                images.append(ObjectImage(name, made.result()))
        self.sizes = {image.name: len(image.data) for image in images}
        return images

    def parameter_counts(self) -> dict[str, int]:
        return {name: len(kernel.params) for name, kernel in self.kernels.items()}


def _lines(steps: str) -> list[Line]:
    """Steps, a line each, as a file of schedules has them."""
    return [Line(k, read_step(step)) for k, step in enumerate(steps.splitlines(), 1)]


def _spec(kernel: Kernel, made: GroupComputation, target: Target) -> KernelSpec:
    """Parameters are matched with the computation's inputs by name; several layouts of one constant may be read."""
    places = {p.buffer: p for p in kernel.places}
    position = {b.name: k for k, b in enumerate(made.computation.inputs)}
    packed = {p.param: p for p in kernel.packed}
    reads = tuple(
        (position[packed[b].source.name], _packing(packed[b])) if b in packed else (position[b.name], None)
        for b in kernel.params
        if b in packed or b.name in position
    )
    rest = kernel.params[len(reads) + len(made.computation.outputs) :]
    assert all(places[b].role is Role.TMP and places[b].space is Space.GLOBAL for b in rest)
    scratch = tuple(product(b.shape) * b.dtype.n_bytes for b in rest)
    return KernelSpec(kernel.name, kernel.sizes, scratch, reads, times_of(kernel, target))


def _packing(packed: Packed) -> Packing:
    n = product(packed.param.shape) * packed.param.dtype.n_bytes
    assert is_known(n)
    return Packing(layout_text(packed), n, partial(pack_bytes, packed), packing_computation(packed))


# --- a graph in kernels ---


@dataclass
class SplitGraph:
    """A graph as a program of kernels: everything that is decided before LLVM.

    ``exact`` are programs of the same kernels and weights for certain sizes, of which a call takes the first that fits.
    """

    graph: Graph
    program: Program
    kernels: KernelBuilder
    planner: ProgramPlanner
    slots: dict[str, int]
    exact: tuple[SizedProgram, ...] = ()
    flush_denormals: bool = False

    @property
    def programs(self) -> tuple[Program, ...]:
        """The general program, then those for certain sizes."""
        return (self.program, *(e.program for e in self.exact))

    @property
    def scratch(self) -> ScratchSpec:
        """What a call's kernels need, once they are emitted."""
        return scratch_of(self.programs, self.kernels.most_scratch())

    @property
    def routines(self) -> tuple[str, ...]:
        """The routines of libraries that the programs would call."""
        calls = (s for p in self.programs for s in walk_steps(p) if isinstance(s, KernelCall))
        return tuple(sorted({c.routine.symbol for c in calls if c.routine is not None}))

    def entry(
        self, cycles: Mapping[str, int] | None, routines: Sequence[str] = (), *, is_stoppable: bool = False
    ) -> str:
        """The entry's module, once the kernels are emitted; it calls those ``routines`` that the loader offers.

        ``is_stoppable``: for a Python process, where a signal can stop it.
        """
        shapes = [[largest(d, self.planner.caps) for d in n.shape] for _, n in self.graph.results()]
        made = self.kernels
        points = {name: points_of(group) for name, group in made.groups.items()} if is_stoppable else None
        return emit_program(
            self.program, self.slots, shapes, made.target, made.parameter_counts(), made.most_scratch(), cycles,
            routines, points, self.exact, made.stoppable, self.flush_denormals,
        )  # fmt: skip


@within_memory("what the model computes from constants")
def optimise_and_split(
    graph: Graph,
    options: Options,
    target: Target,
    clock: Clock,
    checks: Checks | None = None,
    *,
    is_export: bool = False,
) -> SplitGraph:
    """Optimise, split into kernels and schedule them; the graph that comes in is verified whatever the ``checks``.

    ``is_export``: the code is for a program that has no library to call.
    """
    checks = checks or default_checks()
    prices = FormPrices.on(target, checks.on_broken)
    passes = graph_passes(options, target, is_export=is_export, prices=prices)

    def optimised(of: Graph) -> Graph:
        check_sizes(of, target.most_bytes)
        done = run_pipeline(of, passes, check=checks.verify)
        check_sizes(done, target.most_bytes)
        return done

    with clock.stage("graph"):
        verify_graph(graph)
        graph = with_data_rules(graph)
        graph = run_pipeline(graph, storing_passes(options), check=checks.verify)
        exact = [(sizes, optimised(g)) for sizes, g in exact_graphs(graph, options.specialize)]
        graph = optimised(graph)
    return split_graph(graph, passes, options, target, clock, checks, exact, prices)


def split_graph(
    graph: Graph,
    passes: Sequence[Pass],
    options: Options,
    target: Target,
    clock: Clock,
    checks: Checks,
    exact: Sequence[tuple[Sizes, Graph]] = (),
    prices: FormPrices | None = None,
) -> SplitGraph:
    """Split a graph that is optimised already; sub-graphs of its control flow still go through ``passes``.

    ``exact`` is the same graph for certain sizes, optimised for them: it gets programs beside the general one.
    """
    weights = Weights(by_content=bool(exact))
    kernels = KernelBuilder(
        target, clock, options.schedule, checks, weights, options.priced, options.gpu, options.emulate, options.found,
        prices,
    )  # fmt: skip
    with clock.stage("partition"):
        program, planner = kernels.plan(graph, passes, options)
        sized = tuple(SizedProgram(sizes, kernels.plan(g, passes, options)[0]) for sizes, g in exact)
        kernels.check_book()
    pairs = [(graph, program), *((g, s.program) for (_, g), s in zip(exact, sized, strict=True))]
    return SplitGraph(graph, program, kernels, planner, dimension_slots(pairs), sized, options.flush_denormals)
