"""The pass ``join-in-readers``: two tensors that are joined for arithmetic are joined where that reads them.

In: a graph. Out: an equal graph. Not its business: which nodes share a kernel (``partition.fuse``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import known_over, numbers
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal, readers_of


@dataclass(frozen=True)
class JoinInReaders(Pass):
    """``f(concat(x, y))`` becomes ``f(where(is_first, pad(x), pad(y)))``, which is arithmetic and moves like ``f``.

    So the halves of a vector that change places, as in rotary position embeddings, are read where they lie. On a GPU
    each part of a join is a launch, and so is what makes a part: a cache with what a step adds to it is one. Along the
    last axis, where whole accesses of neighbours would be elements of either part, it does not fire where anything but
    arithmetic on the same elements reads the result, or where that is a result of the graph; nor where there are more
    than two parts, or one of a size that is known at run time only, or empty.
    """

    name: ClassVar[str] = "join-in-readers"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        readers = readers_of(graph.nodes())
        new: dict[Node, Node] = {}
        for n in graph.nodes():
            inputs = tuple(new[i] for i in n.inputs)
            new[n] = n if inputs == n.inputs else graph.pool.with_inputs(n, inputs)
            is_read_so = n not in graph.outputs and all(_is_arithmetic(r, n) for r in readers[n])
            if _has_two_parts(n) and (is_read_so or n.attrs["axis"] % n.type.rank != n.type.rank - 1):
                new[n] = _joined(graph, new[n])
                if journal is not None:
                    journal.append(Fired(self.name, n.op.name, n.loc))
        is_same = all(n is made for n, made in new.items())
        return graph if is_same else graph.with_outputs([new[n] for n in graph.outputs])


def _is_arithmetic(reader: Node, joined: Node) -> bool:
    return Trait.ELEMENTWISE in reader.op.traits and reader.shape == joined.shape


def _has_two_parts(n: Node) -> bool:
    if n.op is not ops.concat or len(n.inputs) != 2:
        return False
    return all(known_over(x.shape[n.attrs["axis"]], 0) for x in n.inputs)


def _joined(graph: Graph, n: Node) -> Node:
    """The same elements, each of which is a place of one part or of the other."""
    b, axis = Builder(graph.pool, n.loc), n.attrs["axis"]
    sizes = numbers([x.shape[axis] for x in n.inputs])
    zero, rank = b.const(0, n.dtype), n.type.rank
    around = ((0, sizes[1]), (sizes[0], 0))
    parts = [
        b(ops.pad, x, zero, pads=tuple(own if k == axis else (0, 0) for k in range(rank)))
        for x, own in zip(n.inputs, around, strict=True)
    ]
    is_first = np.arange(sum(sizes)) < sizes[0]
    return b(ops.where, b.const(is_first.reshape([-1 if k == axis else 1 for k in range(rank)])), *parts)
