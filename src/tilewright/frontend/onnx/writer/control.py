"""How recurrences and control flow are written in ONNX (opset 21).

In: a node whose operands are written. Out: ONNX nodes in ``OnnxNodes``, sub-graphs inside; ``OpError`` where this form
of an op has no counterpart. Not its business: which nodes a sub-graph holds (``OnnxNodes.inside``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import known
from tilewright.core.graph import Graph, Node
from tilewright.frontend.onnx.writer.nodes import OnnxNodes, Writer, tensor, value_info

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

_LSTM_STATES = 2


def recurrent(name: str) -> Writer:
    """One of ONNX's recurrences: its operands are ours in another order, and what is absent is empty."""

    def write(w: OnnxNodes, node: Node) -> None:
        n_states = _LSTM_STATES if node.op is ops.lstm else 1
        x, weights, recurrence, bias, *more = node.inputs
        states, extra = more[:n_states], more[n_states:]
        peephole = next((w.name(t) for t in extra if t.dtype.is_float), "")
        lengths = next((t for t in extra if not t.dtype.is_float), None)
        if lengths is not None and lengths.dtype is not types.i32:
            raise OpError(f"ONNX's lengths are i32, not {lengths.dtype}")
        # ONNX's order: lengths stand before the states, and peepholes, where there are any, at the end.
        given = [x, weights, recurrence, bias]
        names = [*map(w.name, given), "" if lengths is None else w.name(lengths), *map(w.name, states)]
        a = node.attrs
        flags = {n: int(a[n]) for n in ("input_forget", "linear_before_reset") if a.get(n)}
        numbers = {f"activation_{k}": list(a[k]) for k in ("alpha", "beta") if a[k]}
        functions = {"activations": list(a["activations"])} if a["activations"] else {}
        clip = {"clip": a["clip"]} if a["clip"] else {}
        results = [w.fresh(name) for _ in range(n_states + 1)]
        w.nodes.append(
            w.node(
                name, [*names, *([peephole] if peephole else [])], results, hidden_size=a["hidden"],
                direction=a["direction"], layout=a["layout"], **functions, **flags, **numbers, **clip,
            )
        )  # fmt: skip
        w.give_values(node, results)

    return write


def _graph(w: OnnxNodes, graph: Graph, inputs: Sequence[ValueInfoProto], given: Sequence[str]) -> GraphProto:
    """A sub-graph over values ``given``, of which ``inputs`` are its own and the others stand outside."""
    from onnx import helper

    made = w.inside(graph, given)
    outputs: list[ValueInfoProto] = []
    for name, node in graph.results():
        # A sub-graph's results are its own: what stands outside, or is a result already, gets a name of its own.
        result = w.fresh(name)
        made.nodes.append(made.node("Identity", [made.name(node)], [result]))
        sizes = [known(d, None) for d in node.shape]
        outputs.append(value_info(result, node.type, sizes))
    numbers = [tensor(name, a) for name, a in made.constants.items()]
    return helper.make_graph(made.nodes, w.fresh(graph.name), inputs, outputs, numbers)


def if_(w: OnnxNodes, node: Node) -> None:
    condition, *captures = node.inputs
    given = [w.name(x) for x in captures]
    branches = {name: _graph(w, node.attrs[name], [], given) for name in ("then_branch", "else_branch")}
    w.give(node, "If", [w.name(condition)], **branches)


def loop(w: OnnxNodes, node: Node) -> None:
    """The body's own inputs are the number of the iteration, the condition and what is carried."""
    trips, condition, *others = node.inputs
    body, n_carried = node.attrs["body"], node.attrs["n_carried"]
    own = body.inputs[: 2 + n_carried]
    names = [w.fresh(x.attrs["name"]) for x in own]
    changing = [value_info(n, x.type, [None] * x.type.rank) for n, x in zip(names, own, strict=True)]
    captured = [w.name(x) for x in others[n_carried:]]
    carried = [w.name(x) for x in others[:n_carried]]
    made = _graph(w, body, changing, [*names, *captured])
    w.give(node, "Loop", [w.name(trips), w.name(condition), *carried], body=made)
