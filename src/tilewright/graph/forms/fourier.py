"""The pass ``fourier-blocks``: how many signals of a batch are transformed side by side, how many in turn, and scaling.

In: a graph with ``fourier``. Out: an equal graph whose transforms name their block and their part, and scale where a
product behind them did. Not its business: the passes of a transform (``ops.fourier``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal, Rewriting, Rule, readers_of, replace, rewrite
from tilewright.core.types import DType, product
from tilewright.graph.facts import scalar
from tilewright.ops.fourier import fits_rows, work
from tilewright.target.target import Target


@dataclass(frozen=True)
class FourierBlocks(Pass):
    """Makes blocks of a vector of signals, or of as many as fill a line with both parts of their numbers.

    A product of a transform, which nothing else reads, with a finite number is scaled in the transform, whose tables
    of turns cost the same with another radius: alone it would read and write all results once more.

    A line then holds what one vector, or a few in a row, read of an element, and is not asked for again: a pass reads
    elements that lie a power of two apart, and a cache keeps few of those lines at a time.

    Every pass reads what the one before it wrote. A part of the batch goes through all passes at a time: as many blocks
    as ``l1_bytes`` hold before and behind a pass, beside operand and result, or one; of signals so long that not one
    block fits, a few, by rows. This does not fire beside an op that moves elements, as between the axes of an image:
    that turns the same elements over as the transform does, in one kernel with it. Each of ``n_cores`` takes parts by
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
        rule = Rule("block-of-signals", (ops.fourier,), self._named, "signals are transformed apart from each other")
        scaled = Rule("scale-in-turns", (ops.mul,), _scaled, "transforms are linear")
        graph = rewrite(graph, (scaled, rule), journal)
        while (found := self._to_cut(graph)) is not None:  # one after the other: who reads a new node is new, too
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
        cycles = batch * n * work(n) * size / self.vector_bytes
        is_long = cycles * (1 - 1 / self.n_cores) > self.wake_cycles
        n_threads = min(self.n_cores, batch // part) if is_long else 1
        return {"part": part, "n_threads": n_threads, "by_rows": by_rows} if part < batch else {}

    def block(self, dtype: DType) -> int:
        """Signals of a block."""
        return max(self.vector_bytes // dtype.n_bytes, self.line_bytes // dtype.n_bytes // 2, 1)


def _is_turned(node: Node, readers: Mapping[Node, Sequence[Node]]) -> bool:
    """Does an op that moves elements come before or behind, with nothing between but other shapes?"""
    (before,), behind = node.inputs, list(readers[node])
    while Trait.VIEW in before.op.traits:
        before = before.inputs[0]
    for n in behind:  # grows meanwhile
        if Trait.VIEW in n.op.traits:
            behind += readers[n]
    return any(Trait.MOVEMENT in n.op.traits and Trait.VIEW not in n.op.traits for n in (before, *behind))


def _scaled(b: Rewriting, node: Node) -> Node | None:
    for x, factor in (node.inputs, node.inputs[::-1]):
        value = scalar(factor)
        if x.op is not ops.fourier or not b.read_once(x) or value is None or not math.isfinite(value):
            continue
        if node.type == x.type:  # a factor of higher rank gives the product a shape of its own
            return b(ops.fourier, *x.inputs, **{**x.attrs, "scale": x.attrs["scale"] * value})
    return None
