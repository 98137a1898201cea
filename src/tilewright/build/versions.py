"""Versions of kernels for a few sizes: computations of a group in a form that its symbolic size does not have.

In: a group with one symbolic size, the passes of the model. Out: for one size at a time, the computation of a single
kernel that writes the same results, where another form is possible. Not its business: which of them pay and their
schedules (``build.kernels``), the tests of sizes (``codegen.cpu.program``).

Most choices hold for every size. A few forms of an op exist only where the number of sequences or images is known: a
scan goes forth and back over panels of its weights, whose number of rows is part of the code. So such an op is taken
out of the graph by itself, with its size fixed, and goes once more through the passes that have such forms
(``graph.pipeline.BY_SIZE``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.core.diag import CompileError
from tilewright.core.expr import Dim, Sym, substitute
from tilewright.core.graph import CONST, INPUT, Graph, Node
from tilewright.core.passes import Pass, run_pipeline
from tilewright.core.types import TensorType
from tilewright.partition.computation import GroupComputation, sizes_of
from tilewright.partition.grouped import Grouped, GroupedGraph, group_graph
from tilewright.target.target import Target

MOST_VERSIONS = 4
"""Of a kernel, with the one for all sizes: each is code of its own, and a test in every call."""


@dataclass(frozen=True)
class SizedForm:
    """A computation for one size, and what it reads: operands of the group, and constants of its own."""

    made: GroupComputation
    inputs: tuple[Node, ...]


def symbol_of(grouped: Grouped) -> Sym | None:
    """The one symbolic size of a group that may have versions; None for others.

    Control flow, sizes that the group's own data decide, a library's routines and kernels of an author have none.
    """
    made, root = grouped.made, grouped.group.root
    if made is None or grouped.dims or made.author is not None or root.op.routine is not None:
        return None
    sizes = sizes_of(made.computation)
    return sizes[0] if len(sizes) == 1 else None


def form_at(
    of: GroupedGraph, grouped: Grouped, passes: Sequence[Pass], target: Target, symbol: Sym, size: int
) -> SizedForm | None:
    """The group where ``symbol`` is ``size``; None where an op has no such size, or where the passes do nothing
    then or make more than one kernel.
    """
    try:
        graph, operands = _alone(of, grouped, {symbol: size})
    except CompileError:  # a window that does not fit, for example: no call has this size
        return None
    formed = run_pipeline(graph, passes)
    if formed is graph:
        return None
    one = group_graph(formed, {}, target)
    made = one.groups[0].made if len(one.groups) == 1 else None
    if made is None or one.groups[0].dims:
        return None
    root = one.groups[0].group.root
    is_whole = len(root.types) == len(formed.outputs)
    if not is_whole or any(one.resolve(n) != (root, k) for k, n in enumerate(formed.outputs)):
        return None
    read = [one.resolve(n)[0] for n in made.inputs]
    if any(n.op is not CONST and n not in operands for n in read):
        return None
    return SizedForm(made, tuple(operands.get(n, n) for n in read))


def _alone(of: GroupedGraph, grouped: Grouped, values: Mapping[Sym, Dim]) -> tuple[Graph, dict[Node, Node]]:
    """The group as a graph with these sizes, and for each of its inputs the operand that it stands for."""
    group, pool = grouped.group, of.graph.pool
    new: dict[Node, Node] = {}
    operands: dict[Node, Node] = {}
    for node in sorted(group.members, key=of.order.__getitem__):
        for i in node.inputs:
            if i not in new and i.op is CONST:
                new[i] = i
            elif i not in new:
                shape = tuple(substitute(d, values) for d in i.shape)
                new[i] = pool.input(f"operand{len(operands)}", TensorType(i.dtype, shape), i.loc)
                operands[new[i]] = i
        new[node] = pool.add(node.op, [new[i] for i in node.inputs], node.attrs.substituted(values), node.loc)
    results = pool.results(new[group.root])
    names = tuple(f"result{k}" for k in range(len(results)))
    inputs = tuple(n for n in new.values() if n.op is INPUT)
    return Graph("version", pool, inputs, results, names), operands
