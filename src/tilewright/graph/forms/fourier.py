"""The pass ``fourier-blocks``: how many signals of a batch lie side by side while they are transformed, and scaling.

In: a graph with ``fourier``. Out: an equal graph whose transforms name their block, and scale where a product behind
them did. Not its business: the passes of a transform (``ops.fourier``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, rewrite
from tilewright.core.types import DType
from tilewright.graph.facts import scalar
from tilewright.target.target import Target


@dataclass(frozen=True)
class FourierBlocks(Pass):
    """Makes blocks of a vector of signals, or of as many as fill a line with both parts of their numbers.

    A product of a transform, which nothing else reads, with a finite number is scaled in the transform, whose tables
    of turns cost the same with another radius: alone it would read and write all results once more.

    A line then holds what one vector, or a few in a row, read of an element, and is not asked for again: a pass reads
    elements that lie a power of two apart, and a cache keeps few of those lines at a time.
    """

    name: ClassVar[str] = "fourier-blocks"
    vector_bytes: int = 64
    line_bytes: int = 64

    @staticmethod
    def on(target: Target) -> FourierBlocks:
        """With the numbers of a machine."""
        return FourierBlocks(target.vector_bytes, target.line_bytes)

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        rule = Rule("block-of-signals", (ops.fourier,), self._named, "signals are transformed apart from each other")
        scaled = Rule("scale-in-turns", (ops.mul,), _scaled, "transforms are linear")
        return rewrite(graph, (scaled, rule), journal)

    def _named(self, b: Rewriting, node: Node) -> Node | None:
        block = self.block(node.dtype)
        return None if node.attrs["block"] == block else b(ops.fourier, *node.inputs, **{**node.attrs, "block": block})

    def block(self, dtype: DType) -> int:
        """Signals of a block."""
        return max(self.vector_bytes // dtype.n_bytes, self.line_bytes // dtype.n_bytes // 2, 1)


def _scaled(b: Rewriting, node: Node) -> Node | None:
    for x, factor in (node.inputs, node.inputs[::-1]):
        value = scalar(factor)
        if x.op is not ops.fourier or not b.read_once(x) or value is None or not math.isfinite(value):
            continue
        if node.type == x.type:  # a factor of higher rank gives the product a shape of its own
            return b(ops.fourier, *x.inputs, **{**x.attrs, "scale": x.attrs["scale"] * value})
    return None
