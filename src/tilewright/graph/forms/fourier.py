"""The pass ``fourier-blocks``: along which axis signals are transformed, how many side by side and how many in turn.

In: a graph with ``fourier``. Out: an equal graph whose transforms name their axis, their block and their part, and
scale where a product behind them did; those over several axes of a batch of images are done image by image. Not its
business: the passes of a transform (``ops.fourier``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal, Rewriting, Rule, readers_of, replace, rewrite
from tilewright.core.types import DType, product
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.movement import composed
from tilewright.graph.facts import scalar
from tilewright.graph.forms.in_parts import divisors
from tilewright.ops.fourier import fits, fits_columns, fits_real, fits_rows, radices, work
from tilewright.target.target import Target

RAGGED = 3.0
"""What the last vector of a row costs that ends within it, in loads of a line: its masks, a load and a store."""


@dataclass(frozen=True)
class FourierBlocks(Pass):
    """Makes blocks of a vector of signals, or of as many as fill a line with both parts of their numbers.

    A product of a transform, which nothing else reads, with a finite number is scaled in the transform, whose tables
    of turns cost the same with another radius: alone it would read and write all results once more.

    A transform along an axis that was made the last one for it is one along the axis where it lies. The axes behind it
    are the lanes then, and nothing is turned over.

    A line then holds what one vector, or a few in a row, read of an element, and is not asked for again: a pass reads
    elements that lie a power of two apart, and a cache keeps few of those lines at a time.

    Every pass reads what the one before it wrote. A part of the batch goes through all passes at a time: as many blocks
    as ``l1_bytes`` hold before and behind a pass, beside operand and result, or one; of signals so long that not one
    block fits, a few, by rows. This does not fire beside an op that moves elements, or a transform along another axis:
    that turns the same elements over as the transform does, in one kernel with it. Transforms along several axes of a
    batch of images are done for a part of the images, as many as fit, or one. Each of ``n_cores`` takes parts by
    itself where that saves more than the ``wake_cycles`` of a thread that has slept.
    """

    name: ClassVar[str] = "fourier-blocks"
    vector_bytes: int = 64
    line_bytes: int = 64
    l1_bytes: int = 1 << 15
    n_cores: int = 1
    wake_cycles: float = 20000.0

    @staticmethod
    def on(target: Target) -> FourierBlocks:
        """With the numbers of a machine."""
        return FourierBlocks(
            target.vector_bytes,
            target.line_bytes,
            target.l1_bytes,
            target.n_cores if target.has_threads else 1,
            target.wake_us * target.ghz * 1e3,
        )

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        if all(n.op is not ops.fourier for n in graph.nodes()):
            return graph
        rule = Rule("block-of-signals", (ops.fourier,), self._named, "signals are transformed apart from each other")
        scaled = Rule("scale-in-turns", (ops.mul,), _scaled, "transforms are linear")
        moved = Rule("along-an-axis", (ops.fourier,), along, "an axis may lie anywhere")
        rows_first = Rule("rows-first", (ops.fourier,), _rows_first, "transforms of different axes commute")
        turned = rewrite(graph, (moved, TRANSPOSE_OF_TRANSPOSE, rows_first), journal)
        graph = rewrite(graph if turned is graph else Canonicalize().run(turned, journal), (scaled, rule), journal)
        # One after the other: who reads a new node is new, too.
        while (images := next(((run, how) for run in _runs(graph) if (how := self._images(run))), None)) is not None:
            run, how = images
            graph = self._by_image(graph, run, *how)
            if journal is not None:
                journal += [Fired("parts-of-images", n.op.name, n.loc) for n in run]
        graph = self._with_rows_apart(graph, journal)
        while (found := self._to_cut(graph)) is not None:
            node, parts = found
            graph = replace(graph, {node: graph.pool.add(node.op, node.inputs, {**node.attrs, **parts}, node.loc)})
            if journal is not None:
                journal.append(Fired("parts-of-signals", node.op.name, node.loc))
        return graph

    def _to_cut(self, graph: Graph) -> tuple[Node, dict[str, int | bool]] | None:
        """A transform that should go through its passes in parts and does not yet, and the attributes that say how."""
        nodes = graph.nodes()
        readers = readers_of(nodes)
        whole = (n for n in nodes if n.op is ops.fourier and not n.attrs["part"])
        return next(((n, parts) for n in whole if not _is_turned(n, readers) and (parts := self._parts(n))), None)

    def _named(self, b: Rewriting, node: Node) -> Node | None:
        block = self.block(node.dtype)
        return None if node.attrs["block"] == block else b(ops.fourier, *node.inputs, **{**node.attrs, "block": block})

    def _parts(self, node: Node) -> dict[str, int | bool]:
        """The attributes that say how many signals are done with before the next ones are begun; none of one part."""
        n, form, size = node.attrs["n"], node.attrs["form"], node.dtype.n_bytes
        if node.attrs["inner"]:
            how = self._images([node])
            return {"part": how[0], "n_threads": how[1]} if how else {}
        signal = 2 * n * size * (2 if form == "complex" else 1)  # before a pass and behind it
        batch = product(node.inputs[0].shape[: -1 if form == "real" else -2])
        if not is_known(batch) or batch == 0:
            return {}
        block = min(self.block(node.dtype), batch)
        by_rows = block * signal > self.l1_bytes and fits_rows(n, form)
        least = 1 if by_rows else block
        if batch % least:
            return {}
        n_least, kept = batch // least, self.l1_bytes // (2 * least * signal)  # operand and result pass through too
        part = least * max(k for k in range(1, max(kept, 1) + 1) if n_least % k == 0)
        n_threads = min(self.n_cores, batch // part) if self._is_long(batch * n, work(n), size) else 1
        return {"part": part, "n_threads": n_threads, "by_rows": by_rows} if part < batch else {}

    def _is_long(self, n_numbers: int, work: float, size: int) -> bool:
        """Does it take long enough, at so many additions for each number, to wake threads for it?"""
        return n_numbers * work * size / self.vector_bytes * (1 - 1 / self.n_cores) > self.wake_cycles

    def _images(self, run: Sequence[Node]) -> tuple[int, int] | None:
        """How many images go through all transforms of a run at a time, and by how many threads; None for all."""
        n_outer = min(map(_outer, run))
        n_images = product(run[0].shape[:n_outer])
        sizes = [product(x.shape[n_outer:]) for node in run for x in (node, node.inputs[0])]
        n_numbers = max([n for n in sizes if is_known(n)], default=0)
        if not is_known(n_images) or not are_known(sizes) or n_images < 2 or n_numbers == 0:
            return None
        size = run[0].dtype.n_bytes
        kept = max(self.l1_bytes // (4 * n_numbers * size), 1)  # before a pass and behind it, and what is next
        able = [k for k in divisors(n_images)[:-1] if all(_fits_part(n, n_outer, k) for n in run)]
        if not able:
            return None
        part = max((k for k in able if k <= kept), default=able[0])
        is_long = self._is_long(n_images * n_numbers // 2, sum(work(n.attrs["n"]) for n in run), size)
        return part, self.n_cores if is_long and n_images // part >= self.n_cores else 1

    def _by_image(self, graph: Graph, run: Sequence[Node], part: int, n_threads: int) -> Graph:
        """``graph`` with the transforms of a run in the body of ``map_parts``, which gets ``part`` images at a time."""
        first, last, n_outer = run[0].inputs[0], run[-1], min(map(_outer, run))
        n_images = product(first.shape[:n_outer])
        pool = Pool()
        image = made = pool.input("x", first.type.with_shape((part, *first.shape[n_outer:])))
        for node in run:
            made = pool.add(node.op, (made,), node.attrs, node.loc)
        body = self._with_rows_apart(Graph("images", pool, (image,), (made,), ("y",)), None, n_threads)
        b = Builder(graph.pool, last.loc)
        flat = b(ops.reshape, first, shape=(n_images, *first.shape[n_outer:]))
        whole = b(ops.map_parts, flat, body=body, n_parts=n_images // part, n_cut=1, n_threads=n_threads)
        return replace(graph, {last: b(ops.reshape, whole, shape=last.shape)})

    def _with_rows_apart(self, graph: Graph, journal: Journal | None, n_threads: int = 1) -> Graph:
        """``graph`` with rows in parts of their own, where the transforms along the columns read them.

        As the columns' passes have both parts of a number apart, the rows' leave them so. ``n_threads`` more than one
        are at work on images already, and none is left for rows.
        """
        while (found := self._rows_to_cut(graph)) is not None:
            node, parts = found
            if n_threads > 1:
                parts = {**parts, "n_threads": 1}
            (columns,) = (n for n in graph.nodes() if node in n.inputs)
            passes = radices(columns.attrs["n"]) or ()
            n, is_real = node.attrs["n"], node.attrs["form"] == "real"
            kept = self._kept(n, node.dtype, len(passes)) if is_real else n
            whole = _rows_apart(graph, node, parts, kept)
            b = Builder(graph.pool, columns.loc)
            made = b(ops.fourier, whole, **columns.attrs)
            if made.shape != columns.shape:
                zeros, ones = (0,) * len(made.shape), (1,) * len(made.shape)
                made = b(ops.slice, made, starts=zeros, stops=columns.shape, steps=ones)
            graph = replace(graph, {columns: made})
            if journal is not None:
                journal.append(Fired("parts-of-rows", node.op.name, node.loc))
        return graph

    def _kept(self, n: int, dtype: DType, n_passes: int) -> int:
        """How many results of a real row the columns' passes read: one half, or as many as fill vectors.

        Rows of one half end within a line of the cache, so nearly each vector lies across two. Those of whole lines
        hold more, which is cut off in the end, where each row then ends within a vector.
        """
        half, block = n // 2 + 1, self.block(dtype)
        lines = -(-half // block)
        is_cheaper = n_passes * lines + RAGGED < n_passes * 2 * half / block
        return lines * block if lines * block <= n and is_cheaper else half

    def _rows_to_cut(self, graph: Graph) -> tuple[Node, dict[str, int | bool]] | None:
        return next(((n, parts) for n in _rows_of_columns(graph) if (parts := self._parts(n))), None)

    def block(self, dtype: DType) -> int:
        """Signals of a block."""
        return max(self.vector_bytes // dtype.n_bytes, self.line_bytes // dtype.n_bytes // 2, 1)


def _outer(node: Node) -> int:
    """How many axes lie before the one that is transformed."""
    return node.inputs[0].type.rank - (1 if node.attrs["form"] == "real" else 2 + node.attrs["inner"])


def _fits_part(node: Node, n_outer: int, part: int) -> bool:
    """Has a transform a form for so many images?"""
    a, x = node.attrs, node.inputs[0]
    if a["inner"]:
        return True
    return (fits if a["form"] == "complex" else fits_real)(a["n"], part * product(x.shape[n_outer : _outer(node)]))


def along(b: Rewriting, node: Node) -> Node | None:
    """``fourier(transpose(x))`` as ``transpose(fourier(x))``, along the axis that was moved to the end."""
    (turned,), a = node.inputs, node.attrs
    if turned.op is not ops.transpose or a["form"] != "complex" or a["part"]:
        return None
    (x,), perm, last = turned.inputs, turned.attrs["perm"], turned.type.rank - 1
    axis = perm[_outer(node)]
    if perm[last] != last or not fits_columns(a["n"], product(x.shape[axis + 1 : -1])):
        return None
    made = b(ops.fourier, x, **{**a, "inner": last - 1 - axis})
    return b(ops.transpose, made, perm=perm)


def _composed(b: Rewriting, node: Node) -> Node | None:
    """Two permutations as one; none, where the second undoes the first."""
    (x,), perm = node.inputs, node.attrs["perm"]
    if x.op is not ops.transpose:
        return None
    return composed(b, x, perm)


TRANSPOSE_OF_TRANSPOSE = Rule("transpose-of-transpose", (ops.transpose,), _composed, "permutations compose")


def _rows_first(b: Rewriting, node: Node) -> Node | None:
    """Columns, then rows, as rows, then columns."""
    (x,), a = node.inputs, node.attrs
    if x.op is not ops.fourier or not b.read_once(x) or a["form"] != "complex" or x.attrs["inner"] <= a["inner"]:
        return None
    return b(ops.fourier, b(ops.fourier, *x.inputs, **a), **x.attrs)


def _rows_of_columns(graph: Graph) -> list[Node]:
    """Transforms of the last axis that are read by one along the axis before it, and by nothing else."""
    nodes = graph.nodes()
    readers, kept = readers_of(nodes), set(graph.outputs)
    columns = [n for n in nodes if n.op is ops.fourier and n.attrs["inner"] == 1]
    rows = [n.inputs[0] for n in columns if n.inputs[0].op is ops.fourier and n.inputs[0].attrs["inner"] == 0]
    return [n for n in rows if len(readers[n]) == 1 and n not in kept and not n.attrs["part"]]


def _rows_apart(graph: Graph, node: Node, parts: Mapping[str, int | bool], kept: int) -> Node:
    """The transforms of rows in parts, with real and imaginary parts apart until all rows are there."""
    (x,), part = node.inputs, int(parts["part"])
    *outer, given, _ = node.shape
    read, batch, pool = x.shape[len(outer) :], product(outer), Pool()
    rows = pool.input("x", x.type.with_shape((part, *read)))
    b = Builder(pool, node.loc)
    attrs = {**node.attrs, "by_rows": parts["by_rows"], "kept": kept if kept != given else 0}
    body = Graph("rows", pool, (rows,), (b(ops.transpose, b(ops.fourier, rows, **attrs), perm=(0, 2, 1)),), ("y",))
    b = Builder(graph.pool, node.loc)
    flat = b(ops.reshape, x, shape=(batch, *read))
    apart = b(ops.map_parts, flat, body=body, n_parts=batch // part, n_cut=1, n_threads=parts["n_threads"])
    whole = b(ops.reshape, apart, shape=(*outer, 2, kept))
    return b(ops.transpose, whole, perm=(*range(len(outer)), len(outer) + 1, len(outer)))


def _runs(graph: Graph) -> list[list[Node]]:
    """Two or more transforms, each of which alone reads the one before it, as long as several images are left."""
    nodes = graph.nodes()
    readers, kept = readers_of(nodes), set(graph.outputs)
    ending: dict[Node, list[Node]] = {}  # by their last transform
    for node in nodes:
        if node.op is ops.fourier and not node.attrs["part"]:
            (before,) = node.inputs
            run = [node]
            if before in ending and len(readers[before]) == 1 and before not in kept:
                longer = [*ending[before], node]
                if product(node.shape[: min(map(_outer, longer))]) != 1:
                    run = longer
                    del ending[before]
            ending[node] = run
    return [run for run in ending.values() if len(run) > 1]


def _is_turned(node: Node, readers: Mapping[Node, Sequence[Node]]) -> bool:
    """Does an op that moves elements, or a transform, come before or behind, with nothing between but other shapes?"""
    (before,), behind = node.inputs, list(readers[node])
    while Trait.VIEW in before.op.traits:
        before = before.inputs[0]
    for n in behind:  # grows meanwhile
        if Trait.VIEW in n.op.traits:
            behind += readers[n]
    beside = [n.op for n in (before, *behind) if Trait.VIEW not in n.op.traits]
    return any(op is ops.fourier or Trait.MOVEMENT in op.traits for op in beside)


def _scaled(b: Rewriting, node: Node) -> Node | None:
    for x, factor in (node.inputs, node.inputs[::-1]):
        value = scalar(factor)
        if x.op is not ops.fourier or not b.read_once(x) or value is None or not math.isfinite(value):
            continue
        if node.type == x.type:  # a factor of higher rank gives the product a shape of its own
            return b(ops.fourier, *x.inputs, **{**x.attrs, "scale": x.attrs["scale"] * value})
    return None
