"""ATen's recurrent layers: several layers and both directions of ``lstm``, ``gru`` and plain ``rnn``.

In: calls with PyTorch's flat list of weights. Out: our one-layer ops in ONNX's gate order, stacked.
Not its business: the recurrence itself (``ops``); packed sequences, whose lengths are data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.frontend.nodes import reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]


@dataclass(frozen=True)
class Cell:
    """One kind of recurrence: our op, where ONNX's gates are among PyTorch's, and the activations."""

    op: OpDef
    gates: tuple[int, ...]
    activations: tuple[str, ...]
    n_states: int


def _lstm_cell() -> Cell:
    """PyTorch has i, f, g, o; ONNX i, o, f, c."""
    return Cell(ops.lstm, (0, 3, 1, 2), ("Sigmoid", "Tanh", "Tanh"), 2)


def _gru_cell() -> Cell:
    """PyTorch has r, z, n; ONNX z, r, h."""
    return Cell(ops.gru, (1, 0, 2), ("Sigmoid", "Tanh"), 1)


def _gate_order(c: AtenCall, x: Node, gates: Sequence[int]) -> Node:
    """Blocks of rows in ONNX's order."""
    if len(gates) == 1:
        return x
    rows = x.shape[0]
    assert is_known(rows)
    size = rows // len(gates)
    return c.b(ops.concat, *(slice_axis(c.b, x, 0, g * size, size) for g in gates), axis=0)


def _stacked(c: AtenCall, parts: Sequence[Node]) -> Node:
    """Directions on a new axis 0."""
    rows = [reshape(c.b, p, (1, *p.shape)) for p in parts]
    return rows[0] if len(rows) == 1 else c.b(ops.concat, *rows, axis=0)


def _weights(c: AtenCall, cell: Cell, params: Sequence[Node], hidden: Dim) -> tuple[Node, Node, Node]:
    """W, R and the joined biases of one layer, over its directions."""
    w, r, bias = [], [], []
    per_direction = 4 if c["has_biases"] else 2
    for k in range(0, len(params), per_direction):
        own = [_gate_order(c, p, cell.gates) for p in params[k : k + per_direction]]
        w.append(own[0])
        r.append(own[1])
        zeros = c.b(ops.full, value=0.0, dtype=own[0].dtype, shape=(2 * len(cell.gates) * hidden,))
        bias.append(c.b(ops.concat, own[2], own[3], axis=0) if c["has_biases"] else zeros)
    return _stacked(c, w), _stacked(c, r), _stacked(c, bias)


def _input(c: AtenCall) -> Node:
    """What all layers begin with, in a mode that has a form here."""
    if c["train"] and c["dropout"]:
        raise Unsupported("dropout between recurrent layers in training mode", "call module.eval() before compiling")
    return c.tensor("input")


def _layers(c: AtenCall, cell: Cell, states: list[Node]) -> Result:
    """Output, then the last states: ``states`` are (layers * directions, batch, hidden)."""
    x = _input(c)
    if len(x.shape) != 3:
        raise Unsupported("an unbatched recurrent layer", "add a batch dimension")
    if c["batch_first"]:
        x = transpose(c.b, x, (1, 0, 2))
    directions = 2 if c["bidirectional"] else 1
    params = c.tensors("params")
    per_layer = len(params) // c["num_layers"]
    hidden = params[1].shape[1]
    lasts: list[list[Node]] = [[] for _ in states]
    for layer in range(c["num_layers"]):
        w, r, bias = _weights(c, cell, params[layer * per_layer : (layer + 1) * per_layer], hidden)
        first = [slice_axis(c.b, s, 0, layer * directions, directions) for s in states]
        extra = {"linear_before_reset": True} if cell.op is ops.gru else {}  # PyTorch's reset gate works on the product
        node = c.b(
            cell.op, x, w, r, bias, *first, hidden=hidden, activations=cell.activations * directions,
            direction="bidirectional" if directions == 2 else "forward", **extra,
        )  # fmt: skip
        y, *last = c.b.results(node)
        for found, state in zip(lasts, last, strict=True):
            found.append(cast(c.b, state, x.dtype))
        steps, _, batch, _ = y.shape
        # both directions' features are the next layer's input
        x = reshape(c.b, transpose(c.b, y, (0, 2, 1, 3)), (steps, batch, directions * hidden))
    out = transpose(c.b, x, (1, 0, 2)) if c["batch_first"] else x
    return out, *(s[0] if len(s) == 1 else c.b(ops.concat, *s, axis=0) for s in lasts)


def _lstm(c: AtenCall) -> Result:
    states = c.tensors("hx")
    return _layers(c, _lstm_cell(), states) if states[0].shape[2] == states[1].shape[2] else _projected(c, *states)


def _projected(c: AtenCall, h: Node, cell: Node) -> Result:
    """An LSTM whose output is projected onto fewer features (Sak et al. 2014, arXiv 1402.1128), step after step."""
    b, x, params = c.b, _input(c), c.tensors("params")
    x = transpose(b, x, (1, 0, 2)) if c["batch_first"] else x
    n_steps, directions = x.shape[0], 2 if c["bidirectional"] else 1
    if not is_known(n_steps):
        raise Unsupported("a projected LSTM of symbolic length", "make the length static, or use proj_size=0")
    per_direction = 5 if c["has_biases"] else 3
    lasts: tuple[list[Node], list[Node]] = [], []
    for layer in range(c["num_layers"]):
        found = []
        for k in range(layer * directions, (layer + 1) * directions):
            weights = params[k * per_direction : (k + 1) * per_direction]
            first = [reshape(b, slice_axis(b, s, 0, k, 1), s.shape[1:]) for s in (h, cell)]
            y, *last = _projected_direction(c, x, weights, *first, backwards=k % directions == 1)
            found.append(y)
            for kept, state in zip(lasts, last, strict=True):
                kept.append(reshape(b, state, (1, *state.shape)))
        x = found[0] if directions == 1 else b(ops.concat, *found, axis=2)
    out = transpose(b, x, (1, 0, 2)) if c["batch_first"] else x
    return out, *(s[0] if len(s) == 1 else b(ops.concat, *s, axis=0) for s in lasts)


def _projected_direction(
    c: AtenCall, x: Node, weights: Sequence[Node], h: Node, cell: Node, *, backwards: bool
) -> tuple[Node, Node, Node]:
    """Outputs of all steps (T, N, P), then the last states; PyTorch's gates are i, f, g, o."""
    b, (w, r, *biases, projection) = c.b, weights
    w, r, projection = (transpose(b, m, (1, 0)) for m in (w, r, projection))
    inputs = b(ops.matmul, x, w)
    for bias in biases:
        inputs = b(ops.add, inputs, bias)
    n_steps, hidden = x.shape[0], cell.shape[1]
    assert is_known(n_steps)
    outputs = []
    for t in reversed(range(n_steps)) if backwards else range(n_steps):
        own = reshape(b, slice_axis(b, inputs, 0, t, 1), inputs.shape[1:])
        gates = b(ops.add, own, b(ops.matmul, h, r))
        i, f, g, o = (slice_axis(b, gates, 1, k * hidden, hidden) for k in range(4))
        kept = b(ops.mul, b(ops.sigmoid, f), cell)
        cell = b(ops.add, kept, b(ops.mul, b(ops.sigmoid, i), b(ops.tanh, g)))
        h = b(ops.matmul, b(ops.mul, b(ops.sigmoid, o), b(ops.tanh, cell)), projection)
        outputs.append(reshape(b, h, (1, *h.shape)))
    return b(ops.concat, *(outputs[::-1] if backwards else outputs), axis=0), h, cell


def _gru(c: AtenCall) -> Result:
    return _layers(c, _gru_cell(), [_state(c)])


def _rnn(activation: str) -> Convert:
    return lambda c: _layers(c, Cell(ops.rnn, (0,), (activation,), 1), [_state(c)])


def _state(c: AtenCall) -> Node:
    """The first state, alone or as a list of one."""
    return c.tensors("hx")[0] if isinstance(c["hx"], list) else c.tensor("hx")


_KINDS: Mapping[str, Convert] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _rnn("Tanh"), "rnn_relu": _rnn("Relu")}
TABLE: Mapping[str, Convert] = {
    **{f"{kind}.input": convert for kind, convert in _KINDS.items()},
    **{f"tilewright.{kind}.default": convert for kind, convert in _KINDS.items()},  # of ``torch_compile.recurrence``
}
