"""Forms of a part of a graph that compute the same: which one costs less.

In: two nodes that are equal, and what both are made of. Out: the one with the lower price.
Not its business: which forms there are (the passes), and what a graph costs (``build.passes``, which schedules it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.passes import Pass

Price = Callable[[Graph], float]
"""Seconds of a call of a graph, once the passes behind the one that asks have had it."""


@dataclass(frozen=True)
class PricedPass(Pass):
    """A pass that asks for the price of forms. Where nobody tells it, every node keeps the form that it has."""

    price: Price | None = field(default=None, compare=False, repr=False, kw_only=True)

    def cheaper(self, node: Node, form: Node, operand: Node, doubt: float = 0.0) -> Node | None:
        """``form`` where its price is below that of ``node``, its equal made of the same ``operand``; else None.

        It must be lower by ``doubt``, a part of ``node``'s price.
        """
        if self.price is None:
            return None
        return form if self.price(alone(form, operand)) < self.price(alone(node, operand)) * (1 - doubt) else None


def alone(root: Node, operand: Node) -> Graph:
    """The graph of ``root`` with ``operand``, all but constants that it is made of, as its input.

    It has a pool of its own, so that what passes make of a form, such as weights in tiles, goes when it has its price.
    """
    pool = Pool()
    made = {operand: pool.input("operand", operand.type, operand.loc)}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        before = [i for i in node.inputs if i not in made]
        if before:
            waiting += before
            continue
        waiting.pop()
        if node not in made:
            made[node] = pool.add(node.op, [made[i] for i in node.inputs], node.attrs, node.loc)
    return Graph("form", pool, (made[operand],), (made[root],), ("result",))
