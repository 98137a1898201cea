"""Converters of ONNX LSTM, GRU and RNN.

In: a ``Call``. Out: nodes of the graph IR, absent biases and states being zeros.
Not its business: the recurrences themselves, directions and layouts (``ops``).
"""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import i32
from tilewright.frontend.onnx.call import Call, Converter, Results, Table

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
WITH_ALPHA = frozenset({"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"})
WITH_BETA = frozenset({"Affine", "ScaledTanh", "HardSigmoid"})


def _recurrent(op: OpDef) -> Converter:
    def convert(c: Call) -> Results:
        x, w, r = c.x(0), c.x(1), c.x(2)
        kind, layout = c.op_type, c.int_("layout", 0)
        if any(len(t.shape) != 3 for t in (x, w, r)) or layout not in (0, 1):
            c.refuse("X, W and R must have rank 3, and layout must be 0 or 1")
        hidden = r.shape[2]
        known = hidden if is_known(hidden) else None  # older exports leave hidden_size out
        c.require_equal(
            hidden, c.int_("hidden_size", known), f"hidden_size differs from the recurrence weights' {hidden}"
        )
        attrs = attributes(c, kind)
        n_directions = 2 if attrs["direction"] == "bidirectional" else 1
        batch = x.shape[0 if layout else 1]
        state = (batch, n_directions, hidden) if layout else (n_directions, batch, hidden)
        bias = c.opt(3) or c.full(0, x.dtype, (n_directions, 2 * GATES[kind] * hidden))
        states = [c.opt(5) or c.full(0, x.dtype, state)]
        extra: list[Node] = []
        if kind == "LSTM":
            states.append(c.opt(6) or c.full(0, x.dtype, state))
            peephole = c.opt(7)
            extra = [peephole] if peephole is not None else []
        lengths = c.opt(4)
        if lengths is not None:
            extra.append(c.cast(lengths, i32))
            states = [begun(c, s, lengths, 0 if layout else 1) for s in states]
        return c.results(c(op, x, w, r, bias, *states, *extra, hidden=hidden, layout=layout, **attrs))

    return convert


def begun(c: Call, state: Node, lengths: Node, axis: int) -> Node:
    """The state that each sequence along ``axis`` begins with: zeros for one of no steps, so that it ends with zeros.

    ONNX does not say what such a sequence ends with; ONNX Runtime gives zeros, and has a test that it does.
    """
    is_none = c(ops.eq, lengths, c.const(0, lengths.dtype))
    shape = tuple(lengths.shape[0] if k == axis else 1 for k in range(len(state.shape)))
    return c(ops.where, c(ops.reshape, is_none, shape=shape), c.const(0, state.dtype), state)


def attributes(c: Call, kind: str) -> dict[str, Any]:
    """The attributes of the graph's op for a node of ``kind``, without size and layout."""
    direction = c.choice("direction", DIRECTIONS, "forward")
    default = DEFAULTS[kind] * (2 if direction == "bidirectional" else 1)
    names = c.strs("activations", default)
    if len(names) != len(default):
        c.refuse(f"activations {names} must be {len(default)}")
    attrs: dict[str, Any] = {"direction": direction, "activations": tuple(names), "clip": c.float_("clip", 0.0)}
    for key, takers in (("alpha", WITH_ALPHA), ("beta", WITH_BETA)):
        attrs[key] = _parameters(c, f"activation_{key}", names, takers)
    if kind == "LSTM":
        attrs["input_forget"] = c.flag("input_forget")
    elif kind == "GRU":
        attrs["linear_before_reset"] = c.flag("linear_before_reset")
    return attrs


def _parameters(c: Call, attribute: str, names: list[str], takers: frozenset[str]) -> tuple[float, ...]:
    """One number per activation; a file lists one for each, or only for those that take one."""
    given = c.floats(attribute, [])
    if not given or len(given) == len(names):
        return tuple(given)
    if len(given) != sum(n in takers for n in names):
        c.refuse(f"attribute {attribute} has {len(given)} numbers for the activations {names}")
    numbers = iter(given)
    return tuple(next(numbers) if n in takers else 0.0 for n in names)


TABLE: Table = {"GRU": _recurrent(ops.gru), "LSTM": _recurrent(ops.lstm), "RNN": _recurrent(ops.rnn)}
