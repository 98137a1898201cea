"""The walk that every format's writer makes: each node by its own writer, else spelled, else decomposed.

In: nodes of a graph, operands first. Out: calls of writers, and every node that has no form, with the reason.
Not its business: what is written (each format's own class), spellings (``frontend.spellings``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.core.diag import OpError, Problem
from tilewright.core.graph import CONST, PROJ, Builder, Graph, Node, topological
from tilewright.core.opdef import OpDef
from tilewright.frontend.spellings import SPELLINGS


class NodeWriter(ABC):
    """What is written of a graph so far: a name for each result of the nodes that are written."""

    FORMAT: str
    """What the format is called in errors."""

    def __init__(self, graph: Graph, writers: Mapping[OpDef, Callable[[Any, Node], None]]) -> None:
        self.graph, self.writers = graph, writers
        self.names: dict[Node, tuple[str, ...]] = {}

    @abstractmethod
    def constant(self, node: Node) -> str:
        """The name of a constant."""

    def name(self, node: Node) -> str:
        """The value that holds a node's only result."""
        if node.op is CONST:
            return self.constant(node)
        if node.op is PROJ:
            return self.names[node.inputs[0]][node.attrs["index"]]
        return self.names[node][0]

    def give_values(self, node: Node, names: Sequence[str]) -> None:
        """The results of ``node`` are values that are there."""
        assert len(names) == len(node.types)
        self.names[node] = tuple(names)

    def write(self, nodes: Iterable[Node]) -> list[Problem]:
        """Write nodes in order, operands first; what has no form in the format is left out and told."""
        problems: list[Problem] = []
        for node in nodes:
            self._write(node, problems)
        return problems

    def _write(self, root: Node, problems: list[Problem]) -> None:
        """A node by its writer, else by what it is spelled as or decomposes into; operands are written already."""
        stack = [root]
        spelled: dict[Node, tuple[Node, ...] | None] = {}  # once: large constants are new ones each time
        while stack:
            node = stack.pop()
            if node in self.names or node.op in (CONST, PROJ):
                continue
            try:
                results = spelled[node] if node in spelled else self._try(node)
                spelled[node] = results
            except OpError as e:
                problems.append(Problem(node.loc, node.op.name, e.message, "compile the graph and save that"))
                self.give_values(node, ("",) * len(node.types))
                continue
            if results is None:
                continue
            missing = [n for n in topological(results, self.names) if n.op not in (CONST, PROJ)]
            if missing:
                stack += [node, *reversed(missing)]
            else:
                self.give_values(node, tuple(map(self.name, results)))

    def _try(self, node: Node) -> tuple[Node, ...] | None:
        """Write a node itself, or say what it is in plainer ones; raises the last reason why neither can be."""
        reason = OpError(f"no op of {self.FORMAT}'s means this")
        try:
            if (writer := self.writers.get(node.op)) is not None:
                writer(self, node)
                return None
        except OpError as e:
            reason = e
        b = Builder(self.graph.pool, node.loc)
        try:
            if node.op in SPELLINGS:
                made = SPELLINGS[node.op](b, node)
                return made if isinstance(made, tuple) else (made,)
        except OpError as e:
            reason = e
        if node.op.decompose is None:
            raise reason
        made = node.op.decompose(b, node.inputs, node.attrs)
        return made if isinstance(made, tuple) else (made,)
