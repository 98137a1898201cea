"""Where the results of a graph are: in an argument, in the weights or in the arena.

In: a graph in groups, and step by step what is written and read. Out: how long each result lives, and its address once
all lives are known. Not its business: which step does what (``partition.plan``), offsets (``partition.memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import CONST, INPUT, Node
from tilewright.core.largest import largest
from tilewright.core.types import TensorType
from tilewright.partition.grouped import GroupedGraph, Result
from tilewright.partition.memory import Storage
from tilewright.partition.program import Pointer
from tilewright.partition.weights import Weights


class Places:
    """The places of one graph's results. ``offsets``, set when all lives are known, has those of ``storages``."""

    def __init__(self, of: GroupedGraph, weights: Weights, caps: Mapping[Sym, Dim]) -> None:
        self.of = of
        self.weights = weights
        self.caps = caps
        self.arguments = {n: Pointer("arg", k) for k, n in enumerate(of.graph.inputs)}
        self.storages: list[Storage] = []
        self.offsets: Sequence[Dim] = ()
        self.homes: dict[Result, int] = {}
        self.copies: list[tuple[Node, Pointer]] = []
        self.targets = self._place_outputs()

    def pointer(self, node: Node) -> Pointer:
        """A node's address, once the arena is planned."""
        return self.result_pointer(self.of.resolve(node))

    def result_pointer(self, result: Result) -> Pointer:
        node, _ = result
        if node in self.arguments and node.op is INPUT:
            return self.arguments[node]
        if node.op is CONST:
            return Pointer("weights", self.weights.add(node.attrs.data, label=node.loc.text))
        if result in self.targets:
            return self.targets[result]
        return Pointer("arena", self.offsets[self.homes[result]])

    def touch(self, node: Node, step: int) -> None:
        """``step`` reads ``node``."""
        k = self.homes.get(self.of.resolve(node))
        if k is not None:
            s = self.storages[k]
            self.storages[k] = Storage(s.n_bytes, s.first, max(s.last, step))

    def reserve(self, n_bytes: Dim, step: int) -> Callable[[], Pointer]:
        """Scratch for one step; the pointer is known once the arena is planned."""
        self.storages.append(Storage(largest(n_bytes, self.caps), step, step))
        k = len(self.storages) - 1
        return lambda: Pointer("arena", self.offsets[k])

    def allot(self, result: Result, type_: TensorType, step: int) -> None:
        """Memory for a result from ``step`` on, unless an output of the program is its home."""
        if result not in self.targets:
            self.storages.append(Storage(largest(type_.n_bytes, self.caps), step, step))
            self.homes[result] = len(self.storages) - 1

    def _place_outputs(self) -> dict[Result, Pointer]:
        """Results that are written straight to an output; ``copies`` gets the outputs that are copied at the end."""
        targets: dict[Result, Pointer] = {}
        n = len(self.of.graph.inputs)
        for k, (_, node) in enumerate(self.of.graph.results()):
            result, place = self.of.resolve(node), Pointer("arg", n + k)
            if result in targets or result[0].op in (INPUT, CONST):
                self.copies.append((node, place))
            else:
                targets[result] = place
        return targets
