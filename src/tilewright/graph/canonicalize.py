"""The pass ``canonicalize``: one form for equal things, and nothing that does nothing.

In: a graph. Out: an equal graph. Cases: identities, operand order, strength reduction and clamps of element-wise ops
(``graph.arithmetic``); no-op and chained views, copies, windows and reductions (``graph.movement``); sizes and
positions that are known dimensions (``graph.shapes``); products in index notation (``graph.einsum``); orders of
elements (``graph.order``); results that are not read (``graph.unread``). Not its business: evaluating constants
(``graph.fold``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.core.graph import Graph
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, RuleTable, rewrite
from tilewright.graph import arithmetic, einsum, movement, order, shapes, unread

TABLE = RuleTable((*arithmetic.RULES, *movement.RULES, *shapes.RULES, *einsum.RULES, *order.RULES, *unread.RULES))
FAST_TABLE = RuleTable((*TABLE.rules, *arithmetic.FAST_RULES))


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies the rules of ``arithmetic``, ``movement``, ``shapes``, ``einsum``, ``order``, ``unread`` to fixpoint;
    each says why it is sound.

    It does not fire where rounding would change, unless ``fast``: then divisions by constants become multiplications,
    and constants of sums and products merge. It never drops NaN on floats: ``x - x`` and ``x * 0`` stay.
    """

    name: ClassVar[str] = "canonicalize"
    fast: bool = False

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, FAST_TABLE if self.fast else TABLE, journal)
