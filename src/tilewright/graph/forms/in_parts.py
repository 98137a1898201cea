"""The pass ``in-parts``: where caches don't keep what a batch goes through, it goes through part by part.

In: a graph in its final forms, of a batch whose size is known. Out: the same function; runs of kernels that treat each
of the batch's elements alone stand in the body of ``map_parts``, which computes one part after the other. What is
written and read again between them stays in a core's own cache then. Not its business: which ops become one kernel
(``partition.fuse``; here is only an estimate of it), loops within a kernel (``choose``).

Sixteen images in the first layers of a network are some hundred megabytes that go to memory and come back, while one of
them fits a core's cache. In the last layers weights are larger than images, and would be read once for every part. So
the order of kernels is cut into runs, each with the number of parts that the model below finds best, by dynamic
programming over all runs. Libraries that run one layer after the other can't do the same: it takes the whole graph.

Modelled is a kernel as the longer one of its arithmetic and of what it moves, a byte at the rate of the nearest cache
that holds all that was touched since it was touched last (the stack distance of Mattson et al., "Evaluation techniques
for storage hierarchies", 1970).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, inf
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import are_known, is_known, known, known_over
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import DOUBT
from tilewright.core.graph import CONST, Graph, Node, Pool
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal, readers_of, replace
from tilewright.core.types import f32, product
from tilewright.graph.rows import attrs_of_part, is_by_rows, meaning_of, row_type
from tilewright.target.target import Target


@dataclass(frozen=True)
class InParts(Pass):
    """Cuts batches of known size into parts, where a run of kernels is faster on one part after the other.

    It does not fire on batches that only a call knows, nor across ops that mix the elements of a batch, have several
    results, or have sub-graphs. A core multiplies and adds ``multiplies`` f32 in a cycle, and of what products read
    ``per_lane`` times as many; it reads ``l2_rate``, ``llc_rate`` and ``memory_rate`` bytes in a cycle from its own
    cache of ``l2_bytes``, from the one of ``llc_bytes`` behind it and from memory. A result of ``large_bytes`` and a
    window that slides over it are one kernel (``partition.windows``). A call of a kernel takes
    ``call_cycles``; on several of ``n_cores`` also ``wake_cycles``, and all cores together read ``all_rate`` bytes in
    a cycle from memory. What is cut must be faster by one thread and by all of them, and calls of both count alike.
    Several cores share each kernel of a part, or each takes parts by itself: whichever is faster.
    """

    name: ClassVar[str] = "in-parts"
    multiplies: float = 16.0
    per_lane: int = 1
    l2_bytes: int = 1 << 17
    llc_bytes: int = 1 << 23
    large_bytes: int = 1 << 18
    l2_rate: float = 64.0
    llc_rate: float = 8.0
    memory_rate: float = 4.5
    all_rate: float = 9.0
    call_cycles: float = 40.0
    n_cores: int = 1
    wake_cycles: float = 20000.0

    @staticmethod
    def on(target: Target, per_lane: int = 1) -> InParts:
        """The pass for a machine."""
        return InParts(
            multiplies=target.lanes(f32) * target.fmas_per_cycle,
            per_lane=per_lane,
            l2_bytes=target.l2_bytes,
            llc_bytes=target.llc_kept_bytes,
            large_bytes=target.large_bytes,
            l2_rate=target.l2_bytes_per_cycle,
            llc_rate=target.llc_bytes_per_cycle,
            memory_rate=target.memory_bytes_per_cycle,
            all_rate=target.memory_gb_per_s_all / target.ghz,
            call_cycles=2 * target.unforeseen_cycles,  # on its way in and out
            n_cores=target.n_cores if target.has_threads else 1,
            wake_cycles=target.wake_us * target.ghz * 1e3,  # threads that had nothing to share for a while sleep
        )

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        sizes = [n.shape[0] for n in graph.inputs if n.type.rank]
        for size in dict.fromkeys(n for n in sizes if is_known(n) and n > 1):
            batch = Batch(graph, size, self)
            for kernels in reversed(batch.stages()):
                # From the last run to the first, so that what an earlier one reads is still in the graph.
                for run in reversed(Runs(self, batch, kernels).best()):
                    graph = in_parts(graph, run, size, batch.rows)
                    if journal is not None:
                        journal += [Fired(self.name, n.op.name, n.loc) for k in run.kernels for n in k.nodes]
        return graph


# --- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowKernel:
    """Nodes of which the last one's result is written, and what they take.

    ``work`` cycles of one core and ``row_bytes`` of the result for one row; ``shared_bytes`` are read for any rows.
    ``is_slid``: a window alone reads the result, sliding over it; where it is large, both are one kernel.
    ``has_product``: there is a product among the nodes, or a window that slides.
    """

    nodes: tuple[Node, ...]
    reads: tuple[Node, ...]
    shared_bytes: int
    work: float
    row_bytes: float
    is_slid: bool
    has_product: bool

    @property
    def root(self) -> Node:
        return self.nodes[-1]


class Batch:
    """The nodes of a graph that treat each of ``size`` rows alone, as kernels."""

    def __init__(self, graph: Graph, size: int, options: InParts) -> None:
        self.size, self.options = size, options
        self.order = graph.nodes()
        self.readers = readers_of(self.order)
        self.kept = set(graph.outputs)
        self.rows = {n for n in graph.inputs if n.type.rank and n.shape[0] == size}
        self.alone: set[Node] = set()
        self.level = dict.fromkeys(self.rows, 0)
        """How many ops that need whole batches lie before a node that depends on one. Between nodes of one level lies
        none."""
        for n in self.order:
            self._judge(n)
        self.row_bytes = {n: known(n.type.n_bytes, 0) / size for n in self.rows}
        self.kernel_of: dict[Node, Node] = {}
        """Of every node of a kernel its last one."""

    def _judge(self, n: Node) -> None:
        before = [i for i in n.inputs if i in self.level]
        if not before:
            return
        if self._is_alone(n):
            self.alone.add(n)
            self.rows.add(n)
        # What needs whole batches ends a level, and what reads it is of the next one.
        self.level[n] = max(self.level[i] + (n in self.alone and i not in self.rows) for i in before)

    def _is_alone(self, n: Node) -> bool:
        cut = [i in self.rows for i in n.inputs]
        fits = any(cut) and len(n.types) == 1 and n.type.rank > 0 and are_known(n.shape) and n.shape[0] == self.size
        if not fits or not is_by_rows(n, cut):
            return False
        parts = [row_type(i.type, 1) if c else i.type for i, c in zip(n.inputs, cut, strict=True)]
        return attrs_of_part(n, parts, 1) is not None

    def stages(self) -> list[list[RowKernel]]:
        """Kernels that may be computed in parts together, in an order in which they can run."""
        found: dict[int, list[RowKernel]] = {}
        trees: dict[Node, deque[Node]] = {}
        for n in self.order:
            if n in self.alone:
                carried = [i for i in dict.fromkeys(n.inputs) if i in self.alone and self._is_carried(i)]
                tree = reduce(_joined, map(trees.pop, carried), deque[Node]())  # nobody else reads what is carried
                tree.append(n)
                if self._is_carried(n):
                    trees[n] = tree
                else:
                    found.setdefault(self.level[n], []).append(self._kernel(tree))
        return list(found.values())

    def _is_carried(self, n: Node) -> bool:
        """Does a result go to its only reader in registers?"""
        (reader, *others) = self.readers[n] or [n]
        if others or n in self.kept or reader not in self.alone or self.level[reader] != self.level[n]:
            return False
        is_epilogue = Trait.ELEMENTWISE in reader.op.traits and reader.shape == n.shape
        return reader is not n and (is_epilogue or bool(n.op.traits & {Trait.MOVEMENT, Trait.VIEW}))

    def _kernel(self, nodes: Sequence[Node]) -> RowKernel:
        own = set(nodes)
        self.kernel_of.update(dict.fromkeys(nodes, nodes[-1]))
        operands = dict.fromkeys(i for n in nodes for i in n.inputs if i not in own)
        shared = sum(i.type.n_bytes for i in operands if i not in self.rows and is_known(i.type.n_bytes))
        reads = tuple(i for i in operands if i in self.rows)
        work = sum(map(self._cycles, nodes)) / self.size
        root, has_product = nodes[-1], any(Trait.CONTRACTION in n.op.traits or slides(n) for n in nodes)
        return RowKernel(tuple(nodes), reads, shared, work, self.row_bytes[root], self._is_slid(root), has_product)

    def _is_slid(self, n: Node) -> bool:
        readers = self.readers[n]
        return n not in self.kept and len(readers) == 1 and readers[0].inputs[0] is n and slides(readers[0])

    def _cycles(self, n: Node) -> float:
        """Of the arithmetic of a node, were it never to wait."""
        meaning, o = meaning_of(n), self.options
        if meaning is None or n.op.traits & {Trait.MOVEMENT, Trait.VIEW}:
            return 0.0
        points = 0.0
        for stage in meaning.stages:
            axes = (*stage.axes, *(stage.reduction.axes if stage.reduction else ()))
            size = product([a.extent for a in axes])
            points += size if is_known(size) else 0
        return points / (o.multiplies * o.per_lane if Trait.CONTRACTION in n.op.traits else o.multiplies)


def _joined(left: deque[Node], right: deque[Node]) -> deque[Node]:
    """Both in this order, by moving the shorter one: a chain of thousands of nodes would be copied at each of them."""
    if len(left) < len(right):
        right.extendleft(reversed(left))
        return right
    left.extend(right)
    return left


def slides(node: Node) -> bool:
    """Is it a window of several places over each channel by itself?"""
    if node.op in (ops.max_pool, ops.avg_pool):
        return any(n > 1 for n in node.attrs["kernel"])
    is_alone = node.op is ops.conv and node.attrs["groups"] == node.inputs[1].shape[0]
    return is_alone and any(known_over(n, 1) for n in node.inputs[1].shape[2:])


# --- runs of kernels ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartRun:
    """Kernels that are computed one after the other for each of ``n_parts`` parts of the batch.

    Up to ``n_threads`` parts are computed at one time, each by one thread; of 1, threads share each kernel.
    """

    kernels: tuple[RowKernel, ...]
    n_parts: int
    n_threads: int


@dataclass(frozen=True)
class Cores:
    """What so many cores do in a cycle, and what their caches hold: of all that share a kernel, or of one of them.

    ``are_apart``: each computes parts of its own, and has its share of the last cache and of memory's rate.
    """

    n: int
    options: InParts
    are_apart: bool = False

    @property
    def n_sharing(self) -> int:
        """How many compute one kernel."""
        return 1 if self.are_apart else self.n

    def level(self, n_bytes: float) -> int:
        """Where what was touched so many bytes ago comes from: 0 their own caches, 1 the one behind, 2 memory."""
        kept = self.options.llc_bytes * self.n_sharing / self.n
        return 0 if n_bytes <= self.n_sharing * self.options.l2_bytes else 1 if n_bytes <= kept else 2

    def cycles(self, n_bytes: float, level: int) -> float:
        """For bytes of one kernel."""
        o, n = self.options, self.n_sharing
        from_memory = min(n * o.memory_rate, o.all_rate * n / self.n) if self.n > 1 else o.memory_rate
        return n_bytes / (n * o.l2_rate, n * o.llc_rate, from_memory)[level]

    def turns(self, n_parts: int) -> int:
        """How often each computes a part."""
        return ceil(n_parts * self.n_sharing / self.n)

    def written_cycles(self, n_bytes: float, level: int) -> float:
        """The same for bytes that are written: memory is read before."""
        return self.cycles(n_bytes, level) * (2 if level == 2 else 1)

    @property
    def call_cycles(self) -> float:
        return self.options.call_cycles + (self.options.wake_cycles if self.n_sharing > 1 else 0.0)

    @property
    def run_cycles(self) -> float:
        """Of a run, once."""
        return self.options.wake_cycles if self.are_apart else 0.0


def divisors(size: int) -> list[int]:
    """All of them in ascending order, by prime factors.

    A file may state a batch of any size: what has no factor that is quickly found counts as a prime.
    """
    found, factor = [1], 2
    while size > 1:
        factor = factor if factor * factor <= size and factor <= EFFORT.points else size
        powers = [1]
        while size % factor == 0:
            size //= factor
            powers.append(powers[-1] * factor)
        found = [n * power for n in found for power in powers]
        factor += 1
    return sorted(found)


class Runs:
    """The cheapest way to cut a stage into runs.

    Costs are cycles times the cores that spend them, by one thread and by all of them.
    """

    def __init__(self, options: InParts, batch: Batch, kernels: Sequence[RowKernel]) -> None:
        self.batch, self.kernels = batch, kernels
        self.n_parts = [n for n in divisors(batch.size) if n > 1][-EFFORT.listed :]
        self.counts = [Cores(n, options) for n in sorted({1, options.n_cores})]
        self.ways = [*self.counts, *(Cores(n, options, are_apart=True) for n in [options.n_cores] if n > 1)]
        """Ways to compute parts: by one core, by all together, or by each of all on its own."""
        self.each_core = self.counts[0]
        """What is read by every core, it reads as if it were alone."""
        self.weights = sum(k.shared_bytes for k in kernels)
        self.slid, self.large_bytes = {k.root for k in kernels if k.is_slid}, options.large_bytes
        place = {k.root: at for at, k in enumerate(kernels)}
        self.last_read = dict.fromkeys(place, 0)
        """Which kernel is the last to read a result; one behind all for what is read elsewhere too."""
        for n in place:
            at = [place.get(batch.kernel_of.get(r, r), len(kernels)) for r in batch.readers[n]]
            self.last_read[n] = max([*at, len(kernels) if n in batch.kept else 0])
        self.leaving = {c.n: {k.root: self._leaving(c, k) for k in kernels} for c in self.counts}
        """What it costs, by how many cores compute, to write a result out that is read behind a run."""
        self.far: dict[tuple[RowKernel, Node], float] = {}
        """Bytes touched between two uses of a value where all kernels run once on the whole batch."""
        self.by_count = list(self._whole())
        self.whole = [sum(times) for times in self.by_count]
        self.to_gain = [0.0]
        """The most that kernels from one on can save, whatever else is cut."""
        for cost, k in zip(self.whole[::-1], kernels[::-1], strict=True):
            self.to_gain.append(self.to_gain[-1] + cost - len(self.counts) * batch.size * k.work)
        self.to_gain.reverse()

    def _whole(self) -> Iterator[list[float]]:
        clock, used = 0.0, dict[Node, float]()
        for k in self.kernels:
            for x in k.reads:
                n_bytes = self.batch.size * self.batch.row_bytes[x]
                self.far[k, x] = clock + n_bytes - used[x] if x in used else max(n_bytes, clock)
            yield [c.n * (self._time(c, k, self.batch.size, 0.0, {}) + self._weights(c, k)) for c in self.counts]
            clock = self._touch(k, self.batch.size, clock, used)

    def _leaving(self, cores: Cores, kernel: RowKernel) -> float:
        n_bytes = self.batch.size * kernel.row_bytes
        return cores.written_cycles(n_bytes, cores.level(n_bytes))

    def _touch(self, kernel: RowKernel, n_rows: float, clock: float, used: dict[Node, float]) -> float:
        for x in (*kernel.reads, kernel.root):
            clock += n_rows * self.batch.row_bytes[x]
            used[x] = clock
        return clock + kernel.shared_bytes

    def _weights(self, cores: Cores, kernel: RowKernel) -> float:
        """Cycles to read what all rows share, for the first time in a call."""
        return self.each_core.cycles(kernel.shared_bytes, cores.level(self.weights))

    def _time(self, cores: Cores, kernel: RowKernel, n_rows: float, clock: float, used: Mapping[Node, float]) -> float:
        """Cycles of one call but for what all rows share. What it writes stays as near as it is itself small."""
        moved, n_read = 0.0, 0.0
        for x in kernel.reads:
            n_bytes = n_rows * self.batch.row_bytes[x]
            if self._is_held(x, n_bytes):
                continue
            distance = clock + n_bytes - used[x] if x in used else self.far[kernel, x]
            moved += cores.cycles(n_bytes, cores.level(distance))
            n_read += n_bytes
        written = n_rows * kernel.row_bytes
        if not self._is_held(kernel.root, written):
            moved += cores.written_cycles(written, cores.level(written + n_read))
        return max(n_rows * kernel.work / cores.n_sharing, moved) + cores.call_cycles

    def _is_held(self, n: Node, n_bytes: float) -> bool:
        """Is a result so large that the window which slides over it is one kernel with it?"""
        return n in self.slid and n_bytes >= self.large_bytes

    def best(self) -> list[PartRun]:
        """The runs that take several parts, in order; each saves what can be told apart in the time of all kernels."""
        n, places = len(self.kernels), self._places()
        told_apart = sum(self.whole) * (1 - (1 - DOUBT) ** 2)  # both may be as far off, and to opposite sides
        least, cuts = [0.0, *[inf] * n], list[tuple[int, int, int]]([(0, 1, 1)] * (n + 1))
        for first in range(n):
            if least[first] + self.whole[first] < least[first + 1]:
                least[first + 1], cuts[first + 1] = least[first] + self.whole[first], (first, 1, 1)
            if first in places:
                for n_parts in self.n_parts:
                    for end, cost, n_threads in self._costs(first, n_parts, told_apart):
                        if end in places and least[first] + cost + told_apart < least[end]:
                            least[end], cuts[end] = least[first] + cost + told_apart, (first, n_parts, n_threads)
        found, end = list[PartRun](), n
        while end > 0:
            first, n_parts, n_threads = cuts[end]
            if n_parts > 1:
                found.append(PartRun(tuple(self.kernels[first:end]), n_parts, n_threads))
            end = first
        return found[::-1]

    def _places(self) -> set[int]:
        """Where runs may begin and end: where no window is parted from what it slides over.

        Of too many places to try all, those that the fewest bytes cross.
        """
        n = len(self.kernels)
        window = max(1, ceil(n * n * len(self.n_parts) / 2 / EFFORT.points))
        crossing, crosses = [], list[RowKernel]()
        for at in range(n + 1):
            crosses = [k for k in (*crosses, *self.kernels[max(at - 1, 0) : at]) if at <= self.last_read[k.root] < n]
            crossing.append(inf if any(k.is_slid for k in crosses) else sum(k.row_bytes for k in crosses))
        windows = (range(at, min(at + window, n + 1)) for at in range(0, n + 1, window))
        return {0, n, *(at for w in windows if crossing[at := min(w, key=crossing.__getitem__)] < inf)}

    def _costs(self, first: int, n_parts: int, told_apart: float) -> Iterator[tuple[int, float, int]]:
        """For each end of a run its cost and how many threads take parts, until it can't become the cheaper one."""
        n_rows = self.batch.size / n_parts
        clock, used = 0.0, dict[Node, float]()
        live, has_product = list[RowKernel](), False
        shared, whole = 0.0, [0.0] * len(self.counts)
        once, each = [c.run_cycles for c in self.ways], [0.0] * len(self.ways)
        for end, k in enumerate(self.kernels[first:], first + 1):
            for at, c in enumerate(self.ways):
                each[at] += self._time(c, k, n_rows, clock, used)
                once[at] += self._weights(c, k)
            whole = [total + more for total, more in zip(whole, self.by_count[end - 1], strict=True)]
            clock = self._touch(k, n_rows, clock, used)
            shared += k.shared_bytes
            live = [x for x in (*live, k) if self.last_read[x.root] >= end]
            costs = []
            for at, c in enumerate(self.ways):
                # What is read of one part comes again when all other bytes of a part were touched.
                again = (c if c.are_apart else self.each_core).cycles(shared, c.level(clock))
                turns, leaving = c.turns(n_parts), sum([self.leaving[c.n][x.root] for x in live])
                costs.append(c.n * (once[at] + turns * each[at] + (turns - 1) * again + leaving))
            # Ops on rows alone are one kernel in the end, whatever this estimate says. And it has to pay where threads
            # share each kernel, too: that none is woken for each would pay for any run of small ones.
            has_product = has_product or k.has_product
            pays = has_product and all(cost < before for cost, before in zip(costs[: len(whole)], whole, strict=True))
            by_one, *by_all = costs
            costs = [by_one, *([min(by_all)] if by_all else [])]
            if pays:
                n_apart = min(self.ways[-1].n, n_parts)
                yield end, sum(costs), n_apart if by_all and by_all[-1] < by_all[0] else 1
            if sum(costs) + told_apart - sum(whole) > self.to_gain[end]:
                return


# --- the graph ------------------------------------------------------------------------------------------------------


def in_parts(graph: Graph, run: PartRun, size: int, rows: Container[Node]) -> Graph:
    """``graph`` with the nodes of a run in the body of ``map_parts``."""
    own = dict.fromkeys(n for k in run.kernels for n in k.nodes)
    operands = dict.fromkeys(i for n in own for i in n.inputs if i not in own and i.op is not CONST)
    cut = [n for n in operands if n in rows]
    given = [*cut, *(n for n in operands if n not in rows)]
    n_rows = size // run.n_parts
    pool = Pool()
    made = {n: pool.input(f"x{k}", row_type(n.type, n_rows) if n in rows else n.type) for k, n in enumerate(given)}
    for n in own:
        for i in n.inputs:
            if i.op is CONST and i not in made:
                made[i] = pool.add(CONST, (), i.attrs, i.loc)
        inputs = [made[i] for i in n.inputs]
        attrs = attrs_of_part(n, [i.type for i in inputs], n_rows)
        assert attrs is not None, f"{n} has a form for one row and none for {n_rows}"
        made[n] = pool.add(n.op, inputs, attrs, n.loc)
    read_outside = {*graph.outputs, *(i for n in graph.nodes() if n not in own for i in n.inputs)}
    left = [n for n in own if n in read_outside]
    names = tuple(f"y{k}" for k in range(len(left)))
    body = Graph("part", pool, tuple(made[n] for n in given), tuple(made[n] for n in left), names)
    how = {"body": body, "n_parts": run.n_parts, "n_cut": len(cut), "n_threads": run.n_threads}
    node = graph.pool.add(ops.map_parts, given, how, left[-1].loc)
    return replace(graph, dict(zip(left, graph.pool.results(node), strict=True)))
