"""The default schedule for GPUs: which strategy makes the grids of which part of a computation.

In: a ``Computation``, a ``Gpu``, and which inputs are compile-time constants. Out: a ``Kernel`` in its scheduled form;
also the schedule. Not its business: the flat form (``tile.flatten``), or instructions.

Every computation gets a correct kernel: a strategy that does not fit raises ``ScheduleError``, and the next simpler one
is tried; one thread at last. A product is tried by all kinds of instructions there are for it, then as a plain sum. The
reasons are kept in the kernel's ``notes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.choose.clusters import Cluster, ClusterKind, clusters_of
from tilewright.choose.collapse import collapse
from tilewright.choose.default import OnBroken, Scheduled, Tried, fits, forgive, refuse
from tilewright.choose.normalize import drop_unit_axes, inline, reads_once
from tilewright.choose.strategies.gpu.averages import Averages, averages, averages_in
from tilewright.choose.strategies.gpu.block_tiles import WarpTile
from tilewright.choose.strategies.gpu.by_terms import with_factors_by_terms
from tilewright.choose.strategies.gpu.columns import columns
from tilewright.choose.strategies.gpu.elements import elements
from tilewright.choose.strategies.gpu.few_rows import FewRows, with_few_rows
from tilewright.choose.strategies.gpu.few_rows_grid import few_rows
from tilewright.choose.strategies.gpu.matrices import Product, as_products
from tilewright.choose.strategies.gpu.matrix_units import matrix_units
from tilewright.choose.strategies.gpu.partial_sums import PartialSums, with_partial_sums
from tilewright.choose.strategies.gpu.products import products
from tilewright.choose.strategies.gpu.rows import row_sums, rows
from tilewright.choose.strategies.gpu.single_rows import SingleRow, single_rows, with_single_rows
from tilewright.choose.strategies.gpu.split_terms import with_split_terms
from tilewright.choose.strategies.gpu.sums import sums
from tilewright.choose.strategies.gpu.transposes import transposes
from tilewright.core.compute import Buffer, Computation, Serial, Stage
from tilewright.target.gpu import Gpu
from tilewright.tile.ir import For, Kernel, Kind, written
from tilewright.tile.lower import lower
from tilewright.tile.schedule import Schedule, ScheduleBuilder
from tilewright.tile.schedule.book import Line, apply_lines

ELEMENTS = "elements"
"""The strategy that fits everything."""


def schedule_for_gpu(
    computation: Computation,
    gpu: Gpu,
    constants: Container[Buffer] = (),
    name: str = "kernel",
    on_broken: OnBroken = refuse,
) -> Scheduled:
    """A correct kernel of grids for any computation, with the steps that made it."""
    refused, notes = Counter[str](), list[str]()
    while True:
        work = _scheduled(computation, gpu, constants, name, on_broken, refused)
        notes += work.notes
        if work.refused is None:
            kernel = replace(work.b.kernel, notes=tuple(notes))
            return Scheduled(kernel, work.computation, work.b.schedule, tuple(work.done))
        refused[work.refused] += 1


def _scheduled(
    computation: Computation, gpu: Gpu, constants: Container[Buffer], name: str, on_broken: OnBroken,
    refused: Mapping[str, int],
) -> _Grids:  # fmt: skip
    """One attempt, which ends early where stages have to be spelled in another way: those that it says it ``refused``.

    Tiles decide how a product is spelled, so that the next tile to try needs other stages than the one before.
    """
    fixed = {b.name for b in computation.inputs if b in constants}
    spelled = _spelled(computation, gpu, refused)
    normal = spelled.computation
    known = [b for b in normal.inputs if b.name in fixed]
    b = ScheduleBuilder(_lowered(normal, name, known, gpu))
    work = _Grids(b, gpu, normal, known, on_broken)
    # What falls to single elements was spelled for a tile that does not fit: the caller has it spelled anew.
    for x in spelled.averages:
        if work.tried(x.root, [("averages", partial(averages, b, gpu, x.root, x.tile))]) == ELEMENTS:
            return work.refusing(_by("averages", x.root))
    for row in spelled.single:
        if work.tried(row.root, [("single_rows", partial(single_rows, b, gpu, row))]) == ELEMENTS:
            return work.refusing(_by("single_rows", row.of))
    for few in spelled.few:
        if work.tried(few.root, [("few_rows", partial(few_rows, b, gpu, few))]) == ELEMENTS:
            return work.refusing(_by("few_rows", few.of))
    for product in spelled.products:
        if isinstance(product.tile, WarpTile):
            strategy = ("matrix_units", partial(matrix_units, b, gpu, product, product.tile))
        else:
            strategy = ("products", partial(products, b, gpu, product, product.tile))
        if work.tried(product.root, [strategy]) == ELEMENTS:
            return work.refusing(product.of)
    for parts in spelled.sums:
        if parts.warps:
            work.tried(parts.blocks, [("columns", partial(columns, b, gpu, parts.warps, parts.blocks))])
        else:
            work.tried(parts.blocks, [("rows", partial(rows, b, gpu, [parts.blocks]))])
    for stages in _runs(normal, spelled.taken | {name for x in spelled.sums for name in (x.warps, x.blocks)}):
        for cluster in clusters_of(stages, normal, known, chains=False):
            work.tried(cluster.root.out.name, work.strategies(cluster))
    with b.as_one():
        work.rest()
    return work


def schedule_for_gpu_by(
    computation: Computation, gpu: Gpu, constants: Container[Buffer], name: str, lines: Sequence[Line]
) -> Scheduled:
    """The kernel that a file's steps make; ``ScheduleFileError`` names the step that is not legal."""
    fixed = {b.name for b in computation.inputs if b in constants}
    normal = schedule_for_gpu(computation, gpu, constants, name, forgive).computation  # as those steps were found for
    known = [b for b in normal.inputs if b.name in fixed]
    kernel = apply_lines(_lowered(normal, name, known, gpu), lines)
    return Scheduled(kernel, normal, Schedule(tuple(line.step for line in lines)))


def _lowered(computation: Computation, name: str, constants: Container[Buffer], gpu: Gpu) -> Kernel:
    """The unscheduled kernel, whose warps are the GPU's."""
    return replace(lower(computation, name, constants), lanes=gpu.warp_lanes)


@dataclass(frozen=True)
class _Spelled:
    """What schedules are for: a computation, and the names of stages that go together."""

    computation: Computation
    averages: list[Averages]
    single: list[SingleRow]
    few: list[FewRows]
    products: list[Product]
    sums: list[PartialSums]

    @property
    def taken(self) -> set[str]:
        """What averages, of one row or of several, and products make."""
        made: list[Averages | SingleRow | FewRows | Product] = [*self.averages, *self.single, *self.few]
        made += self.products
        return {name for x in made for name in x.stages}


def _spelled(computation: Computation, gpu: Gpu, refused: Mapping[str, int]) -> _Spelled:
    """Averages as they are, other products as those of matrices, other long sums in parts.

    ``refused`` counts, for what stages make, how many ways to schedule it were tried in vain.
    """
    normal = _normal(computation)
    online = [x for x in averages_in(normal, gpu) if _by("averages", x.root) not in refused]
    apart = {name for x in online for name in x.stages}
    normal, single = with_single_rows(normal, gpu, apart, lambda of: _by("single_rows", of) in refused)
    apart |= {name for x in single for name in x.stages}
    normal, few = with_few_rows(normal, gpu, apart, lambda of: _by("few_rows", of) in refused)
    apart |= {name for x in few for name in x.stages}
    normal = with_factors_by_terms(normal, gpu, apart)
    normal = with_split_terms(normal, gpu, apart, refused)
    normal, found = as_products(normal, gpu, apart, refused)
    spelled = _Spelled(normal, online, single, few, found, [])
    normal, sums = with_partial_sums(normal, gpu, spelled.taken)
    return replace(spelled, computation=normal, sums=sums)


def _by(strategy: str, made: str) -> str:
    """What was refused where a strategy other than products' made it: not the products that it may be spelled by."""
    return f"{strategy}({made})"


def _normal(computation: Computation) -> Computation:
    """Fewer axes and temporaries. What brings elements into an order for vectors and caches is left out.

    A reduction computes what it reads once wherever its terms lie: threads of any axis have neighbours in memory.
    """
    computation = drop_unit_axes(computation)
    if any(isinstance(x, Serial) for x in computation.items):
        return computation
    return collapse(inline(computation, reads_once))


def _runs(computation: Computation, taken: Container[str]) -> list[list[Stage]]:
    """The stages, but those ``taken``, that stand between serial loops; those inside of one stay in its order."""
    found: list[list[Stage]] = [[]]
    for x in computation.items:
        if isinstance(x, Stage):
            found[-1] += [x] if x.out.name not in taken else []
        else:
            found.append([])
    return [run for run in found if run]


@dataclass
class _Grids:
    """The kernel while strategies make grids of it."""

    b: ScheduleBuilder
    gpu: Gpu
    computation: Computation
    constants: Container[Buffer]
    on_broken: OnBroken

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.refused: str | None = None
        self.done: list[Tried] = []

    def tried(self, root: str, found: Sequence[tuple[str, Callable[[], object]]]) -> str:
        """Try strategies for the stages that make ``root``, best first; what none fits is left to :meth:`rest`."""
        taken = next((name for name, apply in found if fits(self.b, root, apply, self.notes, self.on_broken)), ELEMENTS)
        self.done.append(Tried(root, (*[name for name, _ in found], ELEMENTS), taken))
        return taken

    def refusing(self, made: str) -> _Grids:
        """This attempt, ended by the stages that make ``made``."""
        self.refused = made
        return self

    def strategies(self, cluster: Cluster) -> list[tuple[str, Callable[[], object]]]:
        """What may fit a cluster by its structure, best first."""
        if 0 in cluster.root.out.shape:
            return []  # nothing to compute, and nothing to divide costs by
        names = [s.out.name for s in cluster.stages]
        if cluster.kind is ClusterKind.ROWS:
            return [
                ("rows", partial(rows, self.b, self.gpu, names)),
                ("row_sums", partial(row_sums, self.b, self.gpu, names)),
            ]
        if cluster.kind is ClusterKind.POINTWISE:
            return [("transposes", partial(transposes, self.b, self.gpu, names[-1]))]
        if cluster.stages[0].reduction is not None and cluster.kind is not ClusterKind.OTHER:
            return [("sums", partial(sums, self.b, self.gpu, names))]
        return []

    def rest(self) -> None:
        """A grid of its own for every statement at the top that is none yet."""
        at = 0
        while at < len(self.b.kernel.body):
            s = self.b.kernel.body[at]
            at += 1
            if not isinstance(s, For):
                elements(self.b, self.gpu, written(s)[0].name)
            elif not any(x.kind is Kind.BLOCK for x in s.loops):
                elements(self.b, self.gpu, s.loop.sym.name)
