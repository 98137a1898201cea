"""The graphs within control flow, and the symbols that data decide.

In: a node of a graph. Out: a branch's or loop's graphs over the sizes of its operands, and what the sizes that only the
data decide can be at most. Not its business: programs and memory (``partition.control``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.diag import CompileError, Problem
from tilewright.core.expr import Dim, Sym, maximum, symbols
from tilewright.core.graph import Graph, Node
from tilewright.core.largest import largest
from tilewright.core.specialize import substitute_symbols
from tilewright.core.types import TensorType, i64
from tilewright.ops.control import bind_formals, part_types
from tilewright.ops.value_bounds import bounds_of


def inner_graphs(node: Node) -> tuple[tuple[str, Graph], ...]:
    """The graphs of a control node, each with what its program is called: both branches by name, or ``body``."""
    if "then_branch" in node.attrs:
        return tuple((g.name, g) for g in _branches(node))
    if "n_parts" in node.attrs:
        return (("body", part_body(node)),)
    return (("body", loop_body(node)),)


def data_dims(node: Node) -> list[tuple[Sym, Dim]]:
    """The symbols that this node's data decide, with the largest value each can take. Raises ``CompileError``."""
    if "then_branch" in node.attrs:
        decided = joined_dims(node)
        # Branches of branches are looked at only where they may say how large something is.
        inner = {s: most for g in _branches(node) for s, most in _inner_dims(g)} if decided else {}
        return [(s, maximum(largest(x, inner), largest(y, inner))) for s, x, y in decided]
    if "n_parts" in node.attrs:
        return []
    if "body" in node.attrs:
        return _repeat_dims(node)
    if node.op.bound is None:
        return []
    named = (d for t in node.types for d in t.shape if isinstance(d, Sym) and d.name == node.attrs["count"])
    most = node.op.bound([i.type for i in node.inputs], node.attrs)
    return [(s, most) for s in dict.fromkeys(named)]


def _inner_dims(graph: Graph) -> list[tuple[Sym, Dim]]:
    """The symbols that the data of a sub-graph's own nodes decide, bounded by sizes known outside of it."""
    found: dict[Sym, Dim] = {}
    for node in graph.nodes():
        found.update((s, largest(most, found)) for s, most in data_dims(node))
    return list(found.items())


def _closed(graph: Graph, operands: Sequence[TensorType], what: str) -> Graph:
    """A sub-graph over its operands' dimensions instead of its own formal ones."""
    return substitute_symbols(graph, bind_formals(graph, operands, what))


def _branches(node: Node) -> tuple[Graph, Graph]:
    operands = [i.type for i in node.inputs[1:]]
    then_graph, else_graph = (_closed(node.attrs[k], operands, k) for k in ("then_branch", "else_branch"))
    return then_graph, else_graph


def joined_dims(node: Node) -> list[tuple[Sym, Dim, Dim]]:
    """Result symbols that the branch decides, with their values in either."""
    if not any(isinstance(d, Sym) for t in node.types for d in t.shape):
        return []
    then_graph, else_graph = _branches(node)
    found: dict[Sym, tuple[Dim, Dim]] = {}
    for t, x, y in zip(node.types, then_graph.outputs, else_graph.outputs, strict=True):
        for d, p, q in zip(t.shape, x.shape, y.shape, strict=True):
            if p != q and isinstance(d, Sym):
                found[d] = (p, q)
    return [(s, p, q) for s, (p, q) in found.items()]


def loop_body(node: Node) -> Graph:
    """What an iteration computes, over the sizes of the loop's operands."""
    return _closed(node.attrs.body, [TensorType(i64, ()), *(i.type for i in node.inputs[1:])], "the body")


def part_body(node: Node) -> Graph:
    """What is computed of each part, over the sizes of the operands."""
    return _closed(node.attrs.body, part_types([i.type for i in node.inputs], node.attrs), "the body")


def _repeat_dims(node: Node) -> list[tuple[Sym, Dim]]:
    """The count of iterations where data decide it: what bounds the trip count does; changing sizes have no bound."""
    n: int = node.attrs.n_carried
    body: Graph = node.attrs.body
    for before, after in zip(body.inputs[2 : 2 + n], body.outputs[1 : 1 + n], strict=True):
        if before.shape != after.shape:
            rule = f"carried value {before.attrs['name']!r} is {before.type} at first, {after.type} after an iteration"
            remedy = "keep the size of carried values: write into a buffer of the final size, or scan"
            raise CompileError("a loop's memory has no bound", [Problem(node.loc, node.op.name, rule, remedy)])
    decided = {s for x in body.nodes() for s, _ in data_dims(x)}
    for scanned in body.outputs[1 + n :]:
        if decided & {s for d in scanned.shape for s in symbols(d)}:
            rule = f"what each iteration appends, {scanned.type}, has a size that its data decide"
            remedy = "append values of one size, and how much of each counts"
            raise CompileError("a loop's result has no shape", [Problem(node.loc, node.op.name, rule, remedy)])
    trips = node.inputs[0]
    found = scan_symbols(node, n)
    most = bounds_of(trips)[1] if found else None
    if found and (most is None or most == i64.max):
        rule = "the number of iterations, and so the size of a result, is known only while running"
        raise CompileError(
            "a loop's memory has no bound",
            [Problem(node.loc, node.op.name, rule, "bound the trip count by a number, or give the result its length")],
        )
    return [] if most is None else [(s, maximum(most, 0)) for s in found]


def scan_symbols(node: Node, n_carried: int) -> list[Sym]:
    """The symbols that count iterations: leading dimensions of scanned results that no operand has."""
    known = {d for i in node.inputs for d in i.shape}
    leading = dict.fromkeys(t.shape[0] for t in node.types[n_carried:])
    return [s for s in leading if isinstance(s, Sym) and s not in known]
