"""The pass ``decompose``: composite ops become the small ones that kernels are made of.

In: a graph. Out: an equal graph in which every op has a ``compute`` or ``kernel``, or is structural or control flow, or
is named in ``keep``. Not its business: finding composites again (``graph.recognise``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite

DECOMPOSABLE = tuple(op for op in ops.ALL if op.decompose is not None)


@dataclass(frozen=True)
class Decompose(Pass):
    """Replaces each op that has a ``decompose`` by what that gives, until none is left.

    It does not fire on the ops named in ``keep``: those that a later stage has a better form for.
    """

    name: ClassVar[str] = "decompose"
    keep: tuple[str, ...] = ()

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        kept = {ops.by_name(n) for n in self.keep}
        return rewrite(graph, RuleTable(_rule(op) for op in DECOMPOSABLE if op not in kept), journal)


def _rule(op: OpDef) -> Rule:
    return Rule(f"decompose-{op.name}", (op,), _apply, "the op's own definition")


def _apply(b: Rewriting, node: Node) -> Node | tuple[Node, ...]:
    assert node.op.decompose is not None
    return node.op.decompose(b, node.inputs, node.attrs)
