"""The pass ``canonicalize``: one form for equal things, and nothing that does nothing.

In: a graph. Out: an equal graph. Cases: identities, operand order, strength reduction and clamps of element-wise ops
(``arithmetic``); no-op and chained views, copies, windows and reductions (``movement``); sizes and
positions that are known dimensions (``shapes``); products in index notation (``einsum``); orders of
elements (``order``); results that are not read (``unread``). Not its business: evaluating constants
(``fold``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.core.graph import Graph
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, RuleTable, rewrite
from tilewright.graph.canonical import arithmetic, einsum, movement, order, shapes, unread, windows

FAMILIES = (arithmetic, movement, shapes, einsum, order, unread, windows)
TABLE = RuleTable(tuple(rule for family in FAMILIES for rule in family.RULES))
FAST_TABLE = RuleTable((*TABLE.rules, *arithmetic.FAST_RULES))


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies the rules of ``arithmetic``, ``movement``, ``shapes``, ``einsum``, ``order``, ``unread``, ``windows``
    to fixpoint; each says why it is sound.

    It does not fire where rounding would change, unless ``fast``: then divisions by constants become multiplications,
    and constants of sums and products merge. It never drops NaN on floats: ``x - x`` and ``x * 0`` stay.
    """

    name: ClassVar[str] = "canonicalize"
    fast: bool = False

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, FAST_TABLE if self.fast else TABLE, journal)
