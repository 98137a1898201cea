"""Fusion: which nodes of the graph become one kernel.

In: a decomposed graph. Out: ``Group`` records in an order that respects data flow, and the views that need no kernel.
Not its business: loops and schedules (``tile``), or where results live (``partition.plan``).

Nodes are visited from the outputs back. A node joins the group of its readers when every reader is in that group, so
groups stay convex, and when the group's shape allows it:

* arithmetic and index arithmetic join plain readers; into a product or convolution only pure index maps go, because its
  elements are read many times;
* a product or convolution joins a group of plain arithmetic over its own elements: they are its epilogue;
* arithmetic over a product's elements stays with the product, also when a reduction reads it; what makes more bytes of
  fewer goes to its readers instead, so that the fewer are in memory;
* reductions along the same axes of the same space join with the arithmetic around them (softmax, normalisations);
* a product, reductions along its rows with the arithmetic around them, and the product that reads the result row by row
  are one group (attention): what lies between the two products then never exists as a whole (``partition.chains``);
* a product or convolution with the arithmetic on its elements, large, that a window alone slides over goes into the
  window's group (``partition.windows``);
* a window with the arithmetic on its elements goes into the group of the pointwise product that alone reads it, where
  it is long on the way to memory and back (``partition.projections``);
* a permutation of all axes but the last joins the product that it alone reads: it is how the product is written;
* a permutation before or behind rows that the data choose, and arithmetic on them, is a kernel of its own;
* a permutation after which neither rows nor sums of a product lie next to each other is a kernel of its own, and so is
  one without which long sums have each term in another page, and a choice of elements that lie apart, such as the real
  parts of complex numbers;
* a number that a scatter's result begins with is part of the scatter;
* index maps and widening conversions are cheap and are repeated in every reader, products included; arithmetic with
  readers in two groups is computed once, and so is what takes longer to repeat than to pass on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.core.compute import IndexLike, Load, Stage
from tilewright.core.dims import is_known, known_at_least, known_at_most, known_under
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import COPIED_LANES, PASSED_CYCLES
from tilewright.core.expr import Dim, Sym, is_nonneg
from tilewright.core.graph import CONST, PROJ, Graph, Node
from tilewright.core.indices import is_chosen, symbols_at, terms_at
from tilewright.core.types import f32, product
from tilewright.partition.chains import find_chains
from tilewright.partition.facts import Facts, Form, facts_of, row_space
from tilewright.partition.projections import find_projections
from tilewright.partition.windows import find_windows
from tilewright.target.dots import BYTE_PAIRS
from tilewright.target.target import Target

PLAIN = (Form.POINT, Form.MOVE, Form.VIEW)


@dataclass(eq=False)
class Group:
    """Nodes of one kernel. ``root`` is the result that others may read; ``anchor`` the reduction it is built round.

    ``operands`` are the members through which a product reads: each of their elements is read many times.
    """

    root: Node
    members: set[Node] = field(default_factory=set)
    anchor: Node | None = None
    operands: set[Node] = field(default_factory=set)
    cost: int = 0
    n_rows: int = 0
    """How many members reduce rows: a schedule compares each with all others."""


@dataclass(frozen=True)
class Partition:
    """Groups in running order; ``views`` maps an aliasing node to the operand whose memory it shares."""

    groups: tuple[Group, ...]
    views: dict[Node, Node]
    facts: dict[Node, Facts]


def partition(graph: Graph, target: Target, *, fuse: bool = True) -> Partition:
    """Split a decomposed graph into kernels; with ``fuse=False`` each node is one.

    A result that ``target``'s caches don't keep is better not written to memory when a window is all that reads it, or
    a product all that reads a window's.
    """
    order = graph.nodes()
    facts = {n: facts_of(n, by_byte_pairs=BYTE_PAIRS in target.dots) for n in order}
    fuser = _Fuser(facts, order, set(graph.outputs), target, fuse=fuse)
    for node in reversed(order):
        fuser.place(node)
    index = {n: k for k, n in enumerate(order)}
    groups = sorted(fuser.roots.values(), key=lambda g: index[g.root])
    return Partition(tuple(groups), fuser.views, fuser.facts)


class _Fuser:
    """The state of one pass over a graph."""

    def __init__(
        self, facts: dict[Node, Facts], order: list[Node], outputs: set[Node], target: Target, *, fuse: bool
    ) -> None:
        self.facts = facts
        self.target = target
        self.outputs = outputs
        self.fuse = fuse
        self.roots: dict[Node, Group] = {}
        self.views: dict[Node, Node] = {}
        self.homes: dict[Node, set[Group]] = {n: set() for n in order}
        self.readers: dict[Node, list[tuple[Node, int]]] = {n: [] for n in order}
        self.is_pinned: set[Node] = set(outputs)
        self.epilogues: set[Node] = set()
        self.row_values: dict[Node, tuple[Dim, ...]] = {}
        for n in order:
            for k, i in enumerate(n.inputs):
                self.readers[i].append((n, k))
        self.row_readers: set[Node] = set()
        for n in order:
            if self._reads_rows(n):
                self.row_readers.add(n)
            if facts[n].form is Form.CONTRACT or self._continues(n):
                self.epilogues.add(n)
            space = self._space_of_row_value(n)
            if space is not None:
                self.row_values[n] = space
        # In the graph's order: what a node costs builds on what its inputs cost.
        self.made_of: dict[Node, int] = {}
        for n in order:
            self.made_of[n] = self._cost_so_far(n)
        # Before groups are made, since a chain holds nodes that would be roots; the first kind to find one keeps it.
        self.chains = find_chains(order, facts, self.readers, self.is_pinned) if fuse else {}
        if fuse:
            self.chains |= find_windows(order, facts, self.readers, {*self.is_pinned, *self.chains}, target.large_bytes)
            self.chains |= find_projections(order, facts, self.readers, self.is_pinned, self.chains, target)

    def _continues(self, node: Node) -> bool:
        """Is ``node`` arithmetic over the very elements of a product or convolution, or of such arithmetic?

        Not when something else than such arithmetic reads those elements too: then they are written before it.
        """
        if not self.facts[node].is_elementwise:
            return False
        return any(
            i in self.epilogues
            and i.shape == node.shape
            and all(self.facts[r].is_elementwise and r.shape == i.shape for r, _ in self.readers[i])
            for i in node.inputs
        )

    def _reads_rows(self, node: Node) -> bool:
        """Are neighbours, half a line or more, read at places that the data choose, or is it arithmetic on them?"""
        facts = self.facts[node]
        if facts.form is Form.VIEW or facts.is_elementwise:
            return any(i in self.row_readers and product(i.shape) == product(node.shape) for i in node.inputs)
        return facts.reads_rows and known_at_least(node.shape[-1], self.target.line(f32) // 2)

    def _has_long_rows(self, node: Node) -> bool:
        """Are as many elements neighbours as memory brings at once, so that a copy in that order is worth it?"""
        return not known_under(node.shape[-1], self.target.line(f32))

    def _space_of_row_value(self, node: Node) -> tuple[Dim, ...] | None:
        """For a value that there is one of per row, made by reductions: the shape of what the rows hold."""
        if self.facts[node].form is Form.ROW:
            space, axes = row_space(self.facts[node])
            return space if node.shape == tuple(1 if a in axes else d for a, d in enumerate(space)) else None
        if self.facts[node].is_elementwise:
            made = (i for i in node.inputs if i in self.row_values and i.shape == node.shape)
            return next((self.row_values[i] for i in made), None)
        return None

    def place(self, node: Node) -> None:
        """Let a node join the groups of its readers, or make it the root of a new one."""
        form = self.facts[node].form
        if form is Form.SOURCE or node.op is PROJ:
            return
        if self.fuse and node not in self.is_pinned and form is not Form.OPAQUE:
            groups = list(dict.fromkeys(g for reader, _ in self.readers[node] for g in self.homes[reader]))
            if all(self._accepts(g, node) for g in groups) and (len(groups) == 1 or self._is_free(node)):
                for g in groups:
                    self._join(g, node)
                return
        if form is Form.VIEW:
            self.views[node] = node.inputs[0]
            self.is_pinned.add(node.inputs[0])
            return
        group = self.roots[node] = Group(node, {node}, cost=self.facts[node].cost, n_rows=form is Form.ROW)
        group.anchor = node if form in (Form.ROW, Form.CONTRACT) else None
        self.homes[node].add(group)

    def _join(self, group: Group, node: Node) -> None:
        group.members.add(node)
        if node not in self.chains and any(self._reads_often(group, r) for r, _ in self.readers[node]):
            group.operands.add(node)
        group.cost += self.facts[node].cost
        group.n_rows += self.facts[node].form is Form.ROW
        self.homes[node].add(group)
        between_products = node in self.chains
        if self.facts[node].form in (Form.ROW, Form.CONTRACT) and group.anchor is None and not between_products:
            group.anchor = node

    def _reads_often(self, group: Group, reader: Node) -> bool:
        return reader in group.operands or (reader in group.members and self.facts[reader].form is Form.CONTRACT)

    def _is_free(self, node: Node) -> bool:
        """May the node be repeated in several kernels?"""
        facts = self.facts[node]
        return (facts.form in (Form.MOVE, Form.VIEW) and facts.is_affine) or facts.is_widening

    def _accepts(self, group: Group, node: Node) -> bool:
        facts = self.facts[node]
        readers = [(r, k) for r, k in self.readers[node] if r in group.members]
        if self.facts[group.root].form is Form.OPAQUE:
            return self._begins_with(group.root, node)
        if group.cost + facts.cost > EFFORT.nodes or (facts.form is Form.ROW and group.n_rows >= EFFORT.listed):
            return False
        if node in self.chains:
            return True  # its readers are all in this group, so the whole chain is
        if facts.form is Form.CONTRACT:
            return self._fits_epilogue(group, node)
        if group.anchor is not None and node in self.epilogues and not self._is_wider(group, node):
            return False  # it costs nothing where the product is written
        if facts.form is Form.ROW:
            return self._fits_rows(group, node) or self._fits_epilogue(group, node)
        return all(self._may_feed(group, node, reader, k) for reader, k in readers)

    def _is_wider(self, group: Group, node: Node) -> bool:
        """Are fewer bytes written and read when ``node`` is computed by its readers, once for each element?"""
        # Whoever reads a widened value reads what it is widened from.
        whole = [i.inputs[0] if self.facts[i].is_widening else i for i in node.inputs if i.shape == node.shape]
        is_narrow_before = bool(whole) and all(i.dtype.n_bytes < node.dtype.n_bytes for i in whole)
        return is_narrow_before and not any(self._reads_often(group, r) for r, _ in self.readers[node])

    def _begins_with(self, root: Node, node: Node) -> bool:
        """Is ``node`` one number, which ``root``, such as a scatter, first fills its result with?"""
        facts, is_number = self.facts[root], all(map(scalar_constant, node.inputs))
        if self.facts[node].form is not Form.MOVE or not is_number or root.inputs.count(node) != 1:
            return False
        if not facts.items or not all(isinstance(s, Stage) for s in facts.items):
            return False
        operand, first = root.inputs.index(node), facts.items[0]
        is_copy = isinstance(first, Stage) and isinstance(first.expr, Load)
        return is_copy and facts.reads(operand) == [first.expr]  # type: ignore[union-attr]

    def _may_feed(self, group: Group, node: Node, reader: Node, operand: int) -> bool:
        """May ``node`` be computed inside ``reader`` at every place that reads it?"""
        facts, into = self.facts[node], self.facts[reader]
        if facts.form is Form.VIEW and not facts.is_affine:
            return False
        if not facts.keeps_rows and self._slides(group, reader, operand):
            return False  # a window's elements are loaded as vectors along the rows
        if not facts.keeps_rows and into.pads(operand) and self._has_long_rows(node):
            return False  # the padded copy is walked row by row, many times
        if into.is_padding and self._lies_in_pages(node):
            return False  # blocks are transposed where no element of them is padding
        if into.walks_memory is not None and node in self.row_readers:
            return False  # their rows would be read across
        if self._reads_often(group, reader):
            if self._lies_across(group, node, reader, operand) or self._lies_apart(group, node, reader, operand):
                return False
            if facts.walks_memory is not None and node.dtype.n_bytes == 1 and into.is_shared(operand):
                return False  # groups of bytes along the sum are multiplied at once, and must lie next to each other
            if facts.is_padding and self._is_walked_by_window(group, reader, operand):
                return True  # it makes the padded copy itself, as of what it pads
            return facts.is_widening or (facts.form in (Form.MOVE, Form.VIEW) and facts.is_affine and facts.cost == 0)
        if any(not facts.is_affine or is_chosen(i) for x in into.reads(operand) for i in x.index):
            return facts.form is not Form.POINT or not _repeats(into.n_points, node)
        if self.row_values.get(node) == group.root.shape:
            return True  # the group becomes one over rows, and this is computed once per row
        if facts.cost > 2 and _repeats(into.n_points, node) and not _is_small(node):
            return False
        return not self._is_costly_again(node, self._points(reader))

    def _points(self, reader: Node) -> Dim:
        """How often a reader's elements are computed; those of a view, as often as its own readers' at most."""
        further = [r for r, _ in self.readers[reader]] if self.facts[reader].form is Form.VIEW else []
        known = [n for r in further if is_known(n := self._points(r))]
        return max(known) if further and len(known) == len(further) else self.facts[reader].n_points

    def _is_costly_again(self, node: Node, points: Dim) -> bool:
        """Does it take longer to compute all that ``node`` is made of at that many points than to pass it on once?

        So it is with the places and weights of an image sampled by a grid, which all channels share: as a kernel of
        their own they are written once and read at each point, and cost a fork.
        """
        n, cost = product(node.shape), self.made_of[node]
        if not is_known(n) or not is_known(points) or self.facts[node].form is not Form.POINT:
            return False
        lanes = self.target.lanes(f32)
        again = cost * (points - n) / (lanes * self.target.fmas_per_cycle)
        return again > PASSED_CYCLES * (points + n) / lanes + self.target.fork_cycles

    def _cost_so_far(self, node: Node) -> int:
        """Operations for an element of ``node`` since what is in memory anyway: what a reduction reads, or a caller."""
        own = self.facts[node].cost if self.facts[node].form in PLAIN else 0
        inputs = [i for i in dict.fromkeys(node.inputs) if self.facts[i].form in PLAIN and self._is_passing(i)]
        return min(own + sum(self.made_of[i] for i in inputs), EFFORT.nodes)

    def _is_passing(self, node: Node) -> bool:
        """Do arithmetic and moves alone read a node, through views too?"""
        if node in self.is_pinned:
            return False
        forms = [(r, self.facts[r].form) for r, _ in self.readers[node]]
        return all(form in PLAIN and (form is not Form.VIEW or self._is_passing(r)) for r, form in forms)

    def _lies_across(self, group: Group, node: Node, reader: Node, operand: int) -> bool:
        """Is ``node`` a permutation after which a batch of the product that reads it many times walks memory?

        Neither rows nor sums are next to each other then (``ikc, jkc -> ijc``, a product for each ``c``).
        """
        source = self.facts[node].walks_memory
        if source is None or not self._is_read_often(group, node, reader):
            return False
        return self._is_batch(group, source, reader, operand)

    def _lies_apart(self, group: Group, node: Node, reader: Node, operand: int) -> bool:
        """Would a product read single elements, many times each, that a copy puts next to each other?

        Or have the terms of a sum each in a page of its own, and more of them than a core knows pages?
        """
        is_apart = self.facts[node].spreads_rows or self._walks_pages(node, reader, operand)
        return is_apart and self._is_read_often(group, node, reader)

    def _walks_pages(self, node: Node, reader: Node, operand: int) -> bool:
        """Do the terms of a product's sum lie along the last axis of a copy, and pages apart in what is copied?"""
        into = self.facts[reader]
        if into.form is not Form.CONTRACT or not self._lies_in_pages(node):
            return False
        assert into.main.reduction is not None
        summed = {a.sym for a in into.main.reduction.axes}
        return all(x.index[-1] in summed for x in into.reads(operand))

    def _lies_in_pages(self, node: Node) -> bool:
        """Do the elements of a copy's row lie in pages of their own in what is copied, more than a core knows?

        Machines without threads have neither pages nor memory for more copies.
        """
        steps = self.facts[node].copied_steps
        if not self.target.has_threads or not steps or known_at_most(node.shape[-1], self.target.n_near_pages):
            return False
        return abs(steps[-1]) * node.dtype.n_bytes >= self.target.page_bytes

    def _is_read_often(self, group: Group, node: Node, reader: Node) -> bool:
        """Does the product that ``node`` is an operand of read each of its elements so often that copies are cheap?"""
        while self.facts[reader].form is not Form.CONTRACT:
            reader = next(r for r, _ in self.readers[reader] if self._reads_often(group, r))
        return is_nonneg(self.facts[reader].n_points - COPIED_LANES * product(node.shape))

    def _is_batch(self, group: Group, axis: int, reader: Node, operand: int) -> bool:
        """Do all operands of the product, which reads through ``reader``, walk the axis of this operand?"""
        facts = self.facts[reader]
        if facts.form is Form.CONTRACT:
            assert facts.main.reduction is not None
            summed = {a.sym for a in facts.main.reduction.axes}
            walkers = {s for x in facts.reads(operand) for s in _symbols_of(x.index[axis])}
            loads = [facts.reads(k) for k in range(len(facts.ins))]
            every = [{s for x in found for i in x.index for s in _symbols_of(i)} for found in loads]
            return bool(walkers) and not walkers & summed and all(walkers <= other for other in every)
        written = facts.main.index
        places = [x.index[axis] for x in facts.reads(operand)]
        steps = [s for i in places for s, n in terms_at(i) if n == 1 and s in written]
        further = [(r, k) for r, k in self.readers[reader] if self._reads_often(group, r)]
        return len(steps) == 1 and all(self._is_batch(group, written.index(steps[0]), r, k) for r, k in further)

    def _slides(self, group: Group, reader: Node, operand: int) -> bool:
        """Does a reduction read an operand of ``reader`` along rows, itself or through other members?"""
        if self.facts[reader].form in (Form.CONTRACT, Form.ROW):
            return self.facts[reader].slides(operand)
        return any(self._slides(group, r, k) for r, k in self._further(group, reader))

    def _is_walked_by_window(self, group: Group, reader: Node, operand: int) -> bool:
        """Does a product's window walk over an operand of ``reader``, itself or through other members?"""
        if self.facts[reader].form is Form.CONTRACT:
            return self.facts[reader].is_walked_by_window(operand)
        return any(self._is_walked_by_window(group, r, k) for r, k in self._further(group, reader))

    def _further(self, group: Group, reader: Node) -> list[tuple[Node, int]]:
        """The members that read what ``reader`` passes on to a reduction."""
        return [(r, k) for r, k in self.readers[reader] if reader in group.operands and r in group.members]

    def _fits_epilogue(self, group: Group, node: Node) -> bool:
        """``group`` is plain arithmetic over the elements of ``node``, each read where it is written."""
        if group.anchor is not None:
            return False
        between = self._between(group, node)
        if group.root in between and self.facts[group.root].permutes_rows:
            between.remove(group.root)
            source = group.root.inputs[0]
            if source in between and self._takes_apart(source):
                between.remove(source)
        plain = all(self.facts[m].is_elementwise for m in between)
        same = all(m.shape == node.shape for m in between)
        return plain and same and self._reads_in_place(node, between)

    def _takes_apart(self, node: Node) -> bool:
        """Is it a view that takes dimensions apart, as the phases of a transposed convolution, and keeps long rows?"""
        if self.facts[node].form is not Form.VIEW or not self.facts[node].is_affine:
            return False
        return self._has_long_rows(node)

    def _reads_in_place(self, node: Node, between: set[Node]) -> bool:
        path = {node, *between}
        return all(
            self.facts[m].reads_in_place(k) for m in path if m is not node for k, i in enumerate(m.inputs) if i in path
        )

    def _between(self, group: Group, node: Node) -> set[Node]:
        """The members that depend on ``node`` inside the group."""
        found: set[Node] = set()
        stack = [node]
        while stack:
            for reader, _ in self.readers[stack.pop()]:
                if reader in group.members and reader not in found:
                    found.add(reader)
                    stack.append(reader)
        return found

    def _fits_rows(self, group: Group, node: Node) -> bool:
        """``node`` reduces the space that the group's arithmetic or its other reductions run over."""
        space, axes = row_space(self.facts[node])
        if group.anchor is not None:
            return self.facts[group.anchor].form is Form.ROW and row_space(self.facts[group.anchor]) == (space, axes)
        if group.root.shape != space:
            return False
        kept = tuple(1 if a in axes else d for a, d in enumerate(space))
        shapes_fit = all(m.shape in (space, kept) for m in self._between(group, node))
        return shapes_fit and all(self._is_in_rows(m) for m in self._between(group, node))

    def _is_in_rows(self, member: Node) -> bool:
        return self.facts[member].is_elementwise or self.facts[member].form is Form.ROW


def _symbols_of(index: IndexLike) -> frozenset[Sym]:
    return symbols_at(index)


def _repeats(points: Dim, node: Node) -> bool:
    """Would computing ``node`` at ``points`` places compute some element more than once?"""
    return not is_nonneg(product(node.shape) - points)


def _is_small(node: Node) -> bool:
    size = product(node.shape)
    return known_at_most(size, 4096)


def scalar_constant(node: Node) -> bool:
    """Is the node a constant of one element, to be written into the code?"""
    return node.op is CONST and node.attrs.data.array.size == 1
