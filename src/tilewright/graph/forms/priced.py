"""Forms of a part of a graph that compute the same: which one costs least.

In: nodes that are equal, and what they are all made of. Out: the one with the least price.
Not its business: which forms there are (the passes), and what a graph costs (``build.passes``, which schedules it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.passes import Pass

Price = Callable[[Graph], float]
"""Seconds of a call of a graph, once the passes behind the one that asks have had it."""


@dataclass(frozen=True)
class PricedPass(Pass):
    """A pass that asks for the price of forms. Where nobody tells it, every node keeps the form that it has."""

    price: Price | None = field(default=None, compare=False, repr=False, kw_only=True)

    def cheapest(self, forms: Sequence[Node], operand: Node) -> Node:
        """Of equal nodes made of ``operand`` the one with the least price; the first without a price, or if equal."""
        if self.price is None or len(forms) == 1:
            return forms[0]
        prices = [self.price(alone(form, operand)) for form in forms]
        return forms[prices.index(min(prices))]


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
