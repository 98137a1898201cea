"""How branches and loops are written in PyTorch: calls of ``cond`` and ``while_loop`` over closed functions.

In: a node whose operands are tensors. Out: calls of PyTorch's higher-order operators; ``OpError`` where a sub-graph
holds what has no form. Not its business: the calls inside, which ``TorchValues`` writes as any others.

A branch is traced apart from what stands around it, so that its constants come in as operands. What it needs is found
out when it is written first, on tensors without memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph, Node
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import Array
from tilewright.frontend.torch.writer.values import TorchValues

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Plan:
    """A sub-graph, the walk that found its steps, and the constants that these ask for, in order."""

    graph: Graph
    walked: TorchValues
    constants: Sequence[Array]

    def results(self, w: TorchValues, given: Sequence[Tensor]) -> list[Tensor]:
        """The sub-graph's results of its inputs and, behind them, the constants."""
        n = len(self.graph.inputs)
        rest = iter(given[n:])
        made = TorchValues(self.graph, w.writers, lambda array: next(rest), given[:n], w.plans)
        made.replay(self.walked)
        # A result that is an operand, or another result, would be one tensor under two names.
        return [w.torch.clone(made.value(node)) for _, node in self.graph.results()]


def _planned(w: TorchValues, graph: Graph, given: Sequence[Node]) -> _Plan:
    """The steps of a sub-graph over operands like ``given``, of whose sizes its symbols stand for those."""
    meant = {
        d.name: n
        for x, v in zip(graph.inputs, given, strict=True)
        for d, n in zip(x.shape, v.shape, strict=True)
        if isinstance(d, Sym) and is_known(n)
    }
    graph = fix_symbols(graph, meant)
    constants: list[Array] = []

    def stored(array: Array) -> Tensor:
        constants.append(array)
        return w.stored(array)

    made = TorchValues(graph, w.writers, stored, [w.empty(x.type) for x in graph.inputs])
    problems = made.write(graph.nodes())
    if problems:
        raise OpError("; ".join(f"within its sub-graph {p.op}: {p.rule}" for p in problems))
    w.plans.update(made.plans)
    n = len(constants)
    for _, node in graph.results():  # which may be constants
        made.value(node)
    return _Plan(graph, made, constants[: n + len(graph.results())])


def _plans(w: TorchValues, node: Node, given: Sequence[Node], *names: str) -> list[_Plan]:
    if w.is_first:
        w.plans[node] = [_planned(w, node.attrs[name], given) for name in names]
    found: list[_Plan] = w.plans[node]
    return found


def if_(w: TorchValues, node: Node) -> None:
    """Both branches take the constants of both."""
    then, other = _plans(w, node, node.inputs[1:], "then_branch", "else_branch")
    condition, *captures = w.values(node)
    if w.is_first:
        w.give(node, *map(w.empty, node.types))
        return
    n, k = len(captures), len(then.constants)
    # A tensor that comes in twice would be one name twice.
    operands = tuple(map(w.torch.clone, (*captures, *map(w.stored, (*then.constants, *other.constants)))))

    def first(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(then.results(w, given[: n + k]))

    def second(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(other.results(w, (*given[:n], *given[n + k :])))

    w.give(node, *w.torch.ops.higher_order.cond(condition, first, second, operands))


def loop(w: TorchValues, node: Node) -> None:
    """The number of the trip, the condition, what is carried, and room for what each trip adds to the results."""
    n, length = node.attrs["n_carried"], node.attrs["length"]
    scanned = node.types[n:]
    if scanned and not (is_known(length) and length >= 0):
        raise OpError("a loop whose results grow by a number of trips that each call gives is not written")
    # Of the number of the trip, which is no operand, only the type counts: it is that of the number of trips.
    (plan,) = _plans(w, node, node.inputs, "body")
    torch = w.torch
    trips, condition, *others = w.values(node)
    if w.is_first:
        w.give(node, *map(w.empty, node.types))
        return
    rooms = [torch.zeros(w.sizes(t.shape), dtype=w.dtype(t.dtype)) for t in scanned]
    carried = (torch.zeros((), dtype=torch.int64), torch.clone(condition), *map(torch.clone, others[:n]), *rooms)
    captured = tuple(map(torch.clone, (trips, *others[n:], *map(w.stored, plan.constants))))

    def goes_on(*given: Tensor) -> Tensor:
        found: Tensor = torch.logical_and(given[0] < given[len(carried)], given[1])
        return found

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        own, inner = given[: len(carried)], given[len(carried) + 1 :]
        still, *results = plan.results(w, (*own[: 2 + n], *inner))
        at = own[0].reshape([1])
        kept = [
            torch.index_copy(room, 0, at, row.unsqueeze(0)) for room, row in zip(own[2 + n :], results[n:], strict=True)
        ]
        return (own[0] + 1, still, *results[:n], *kept)

    made = torch.ops.higher_order.while_loop(goes_on, step, carried, captured)
    w.give(node, *made[2:])
