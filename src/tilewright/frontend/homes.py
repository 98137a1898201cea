"""Sizes that only data decide, when nodes use them without the tensor that has them.

In: the nodes of one graph as they are added. Out: operands that tie a node to the nodes which decide the sizes in its
attributes, so that these run first and are kept. Not its business: symbols of the graph's inputs, known from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, Expr, Sym, symbols
from tilewright.core.graph import PROJ, AttrValue, Builder, Node, Pool
from tilewright.core.opdef import OpDef, Trait

VARIADIC = frozenset({ops.dim_values, ops.full, ops.iota})
"""Ops without other operands, which take homes themselves."""


class Homes:
    """For each symbol that data decide, a result whose shape has it. Every graph and sub-graph has one of its own."""

    def __init__(self) -> None:
        self._homes: dict[Sym, Node] = {}
        self._counted: dict[tuple[object, ...], Node] = {}
        self.sizes: dict[Node, Dim] = {}  # for a number that is used as a size, the symbol that it became

    def house(self, pool: Pool, node: Node) -> None:
        """Let the node's results be the homes of the symbols that its data decide."""
        if node.op.bound is None and Trait.CONTROL not in node.op.traits:
            return
        given = {s for i in node.inputs for d in i.shape for s in symbols(d)}
        for k, t in enumerate(node.types):
            for d in t.shape:
                if isinstance(d, Sym) and d not in given and d not in self._homes:
                    home = node if len(node.types) == 1 else pool.add(PROJ, (node,), {"index": k}, node.loc)
                    self._homes[d] = home

    def counted(self, node: Node) -> Node:
        """The node, or an earlier one that lets the same data decide a size: equal counts have one symbol."""
        if node.op.bound is None:
            return node
        rest = tuple((name, value) for name, value in node.attrs.items() if name != "count")
        return self._counted.setdefault((node.op, node.inputs, rest), node)

    def has(self, size: Dim) -> bool:
        """Have data decided this size by now?"""
        return size in self._homes

    def tied(self, pool: Pool, op: OpDef, inputs: Sequence[Node], attrs: Mapping[str, Any], loc: Loc) -> Sequence[Node]:
        """The operands for a node ``op``: tied to the homes of what its attributes use and no operand brings in."""
        if not self._homes or op is PROJ:
            return inputs
        used = {s for value in attrs.values() for s in _symbols(value)} & self._homes.keys()
        used -= {s for i in inputs for d in i.shape for s in symbols(d)}
        if not used:
            return inputs
        homes = list(dict.fromkeys(self._homes[s] for s in sorted(used, key=lambda s: s.name)))
        if op in VARIADIC:
            return [*inputs, *homes]
        return [pool.add(ops.with_sizes, (inputs[0], *homes), {}, loc), *inputs[1:]]


def _symbols(value: Any) -> Iterator[Sym]:
    if isinstance(value, Expr):
        yield from symbols(value)
    elif isinstance(value, tuple | list):
        for v in value:
            yield from _symbols(v)


@dataclass(frozen=True)
class TyingBuilder(Builder):
    """A builder that ties every node to the sizes that it uses."""

    homes: Homes = field(default_factory=Homes)

    def __call__(self, op: OpDef, *inputs: Node, **attrs: AttrValue) -> Node:
        node = self.pool.add(op, self.homes.tied(self.pool, op, inputs, attrs, self.loc), attrs, self.loc)
        node = self.homes.counted(node)
        self.homes.house(self.pool, node)
        return node

    def at(self, loc: Loc) -> Builder:
        return TyingBuilder(self.pool, loc, self.homes)
