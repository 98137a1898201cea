"""Steps for control flow: branches and loops over programs of their own.

In: a control node of the graph and the plan that it is part of. Out: makers of ``Branch`` and ``Repeat`` steps.
Not its business: ordinary kernels (``partition.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Graph, Node
from tilewright.core.types import product
from tilewright.partition.program import Branch, Carried, Pointer, Repeat, Scanned, SetDim, Step

if TYPE_CHECKING:
    from tilewright.partition.plan import _GraphPlan


def data_dims(node: Node) -> list[tuple[Sym, Dim]]:
    """The symbols that this node's data decide, with the largest value each can take."""
    name = node.attrs.get("count")
    if not isinstance(name, str):
        return []
    found = {d for t in node.types for d in t.shape if isinstance(d, Sym) and d.name == name}
    return [(s, product(node.inputs[0].shape)) for s in found]


def plan_control(plan: _GraphPlan, node: Node, step: int) -> list[Callable[[], Step]]:
    """The steps of a control node; its results already have homes."""
    if "then_branch" in node.attrs:
        return _branch(plan, node, step)
    return _repeat(plan, node, step)


def _branch(plan: _GraphPlan, node: Node, step: int) -> list[Callable[[], Step]]:
    graphs: Sequence[Graph] = (node.attrs.then_branch, node.attrs.else_branch)
    then_program, else_program = (plan.planner.program(g, f"{plan.name}.{node.serial}.{g.name}") for g in graphs)
    scratch = plan.reserve(_larger(then_program.arena_bytes, else_program.arena_bytes), step)

    def make() -> Step:
        args = [plan.pointer(i) for i in node.inputs[1:]]
        args += [plan.result_pointer((node, k)) for k in range(len(node.types))]
        return Branch(plan.pointer(node.inputs[0]), then_program, else_program, tuple(args), scratch())

    return [make]


def _larger(a: Dim, b: Dim) -> Dim:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else a + b


def _repeat(plan: _GraphPlan, node: Node, step: int) -> list[Callable[[], Step]]:
    body: Graph = node.attrs.body
    n_carried: int = node.attrs.n_carried
    program = plan.planner.program(body, f"{plan.name}.{node.serial}.body")
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
