"""Steps for control flow: branches and loops over programs of their own.

In: a control node of the graph and the plan that it is part of. Out: makers of ``Branch`` and ``Repeat`` steps.
Not its business: ordinary kernels (``partition.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilewright.core.diag import CompileError, Problem
from tilewright.core.expr import Dim, Sym, largest, maximum, symbols
from tilewright.core.graph import Graph, Node
from tilewright.core.specialize import substitute_symbols
from tilewright.core.types import TensorType, i64
from tilewright.ops.control import bind_formals
from tilewright.ops.value_bounds import bounds_of
from tilewright.partition.program import Branch, Carried, LetDim, Pointer, Repeat, Scanned, SetDim, Step

if TYPE_CHECKING:
    from tilewright.partition.plan import Asking, GraphPlan


def data_dims(node: Node) -> list[tuple[Sym, Dim]]:
    """The symbols that this node's data decide, with the largest value each can take. Raises ``CompileError``."""
    if "then_branch" in node.attrs:
        inner = {s: most for g in _branches(node) for s, most in _inner_dims(g)}
        return [(s, maximum(largest(x, inner), largest(y, inner))) for s, x, y in _joined_dims(node)]
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


def plan_control(plan: GraphPlan, node: Node, step: int) -> Asking:
    """Makers of the steps of a control node, by questions for its sub-graphs; its results already have homes."""
    steps_of = _branch if "then_branch" in node.attrs else _repeat
    makers: list[Callable[[], Step]] = yield from steps_of(plan, node, step)
    return makers


def _closed(graph: Graph, operands: Sequence[TensorType], what: str) -> Graph:
    """A sub-graph over its operands' dimensions instead of its own formal ones."""
    return substitute_symbols(graph, bind_formals(graph, operands, what))


def _branches(node: Node) -> tuple[Graph, Graph]:
    operands = [i.type for i in node.inputs[1:]]
    then_graph, else_graph = (_closed(node.attrs[k], operands, k) for k in ("then_branch", "else_branch"))
    return then_graph, else_graph


def _joined_dims(node: Node) -> list[tuple[Sym, Dim, Dim]]:
    """Result symbols that the branch decides, with their values in either."""
    then_graph, else_graph = _branches(node)
    found: dict[Sym, tuple[Dim, Dim]] = {}
    for t, x, y in zip(node.types, then_graph.outputs, else_graph.outputs, strict=True):
        for d, p, q in zip(t.shape, x.shape, y.shape, strict=True):
            if p != q and isinstance(d, Sym):
                found[d] = (p, q)
    return [(s, p, q) for s, (p, q) in found.items()]


def _branch(plan: GraphPlan, node: Node, step: int) -> Asking:
    then_graph, else_graph = _branches(node)
    then_program = yield from plan.planner.sub_program(then_graph, f"{plan.name}.{node.serial}.{then_graph.name}")
    else_program = yield from plan.planner.sub_program(else_graph, f"{plan.name}.{node.serial}.{else_graph.name}")
    scratch = plan.reserve(_larger(then_program.arena_bytes, else_program.arena_bytes), step)
    dims = _joined_dims(node)

    def make() -> Step:
        args = [plan.pointer(i) for i in node.inputs[1:]]
        args += [plan.result_pointer((node, k)) for k in range(len(node.types))]
        return Branch(
            plan.pointer(node.inputs[0]),
            then_program,
            else_program,
            tuple(args),
            scratch(),
            tuple(LetDim(s, x) for s, x, _ in dims),
            tuple(LetDim(s, y) for s, _, y in dims),
        )

    return [make]


def _larger(a: Dim, b: Dim) -> Dim:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else a + b


def _body(node: Node) -> Graph:
    return _closed(node.attrs.body, [TensorType(i64, ()), *(i.type for i in node.inputs[1:])], "the body")


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
    found = _scan_symbols(node, n)
    most = bounds_of(trips)[1] if found else None
    if found and (most is None or most == i64.max):
        rule = "the number of iterations, and so the size of a result, is known only while running"
        raise CompileError(
            "a loop's memory has no bound",
            [Problem(node.loc, node.op.name, rule, "bound the trip count by a number, or give the result its length")],
        )
    return [] if most is None else [(s, maximum(most, 0)) for s in found]


def _repeat(plan: GraphPlan, node: Node, step: int) -> Asking:
    body, n_carried = _body(node), node.attrs.n_carried
    program = yield from plan.planner.sub_program(body, f"{plan.name}.{node.serial}.body")
    carried = node.inputs[2 : 2 + n_carried]
    buffers = [(plan.reserve(c.type.n_bytes, step), plan.reserve(c.type.n_bytes, step)) for c in carried]
    cond = plan.reserve(1, step), plan.reserve(1, step)
    iteration, count, scratch = plan.reserve(8, step), plan.reserve(8, step), plan.reserve(program.arena_bytes, step)

    def make() -> Step:
        return Repeat(
            trips=plan.pointer(node.inputs[0]),
            cond=plan.pointer(node.inputs[1]),
            body=program,
            carried=tuple(
                Carried(plan.pointer(c), (a(), b()), plan.result_pointer((node, k)), c.type.n_bytes)
                for k, (c, (a, b)) in enumerate(zip(carried, buffers, strict=True))
            ),
            captures=tuple(plan.pointer(i) for i in node.inputs[2 + n_carried :]),
            scanned=tuple(
                Scanned(plan.result_pointer((node, k)), body.outputs[1 + k].type.n_bytes)
                for k in range(n_carried, len(node.types))
            ),
            iteration=iteration(),
            cond_buffers=(cond[0](), cond[1]()),
            count=count(),
            scratch=scratch(),
        )

    makers: list[Callable[[], Step]] = [make]
    makers += [partial(_set_dim, s, count) for s in _scan_symbols(node, n_carried)]
    return makers


def _set_dim(symbol: Sym, source: Callable[[], Pointer]) -> Step:
    return SetDim(symbol, source())


def _scan_symbols(node: Node, n_carried: int) -> list[Sym]:
    """The symbols that count iterations: leading dimensions of scanned results that no operand has."""
    known = {d for i in node.inputs for d in i.shape}
    leading = dict.fromkeys(t.shape[0] for t in node.types[n_carried:])
    return [s for s in leading if isinstance(s, Sym) and s not in known]


__all__ = ["data_dims", "plan_control"]
