"""Recurrent layers in floats, over whole sequences and a step a call: LSTM, the simple cell, and filters in time.

In: operators whose last operands before the gains of norms are variables of the file, which hold the state. Out: the
sequence of results, and the state behind its end. Not its business: keeping the state from call to call (``walk``).

TFLite has a matrix for each gate, in the order input, forget, cell, output; ``ops.lstm`` has all in one, as ONNX orders
them: input, output, forget, cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.frontend.tflite.call import Converter, TfliteCall

LSTM_STATES, RNN_STATES, SVDF_STATES = (18, 19), (4,), (4,)
STEPS = ("LSTM", "RNN")
"""The operators of one step a call, without an axis of time."""
PROJECTION, NORMS = (16, 17), (20, 21, 22, 23)
GATES = (0, 3, 1, 2)
"""Where ONNX's gates are among TFLite's."""


def _lstm(c: TfliteCall) -> Sequence[Node]:
    for what, places in (("a projection", PROJECTION), ("gains of norms", NORMS)):
        if any(c.opt(k) is not None for k in places):
            raise OpError(f"an LSTM with {what} has no form here", remedy="convert the model without")
    if c.option("CellClip") or c.option("ProjClip"):
        raise OpError("an LSTM whose cell is clipped has no form here", remedy="convert the model without")
    if c.name == "LSTM" and c.option("KernelType"):
        raise OpError("an LSTM of one matrix for all gates has no form here", remedy="convert the model anew")
    if c.activation != "TANH":
        raise OpError(f"an LSTM of the activation {c.activation} has no form here", remedy="use tanh")
    if c.opt(1) is None:
        raise OpError("an LSTM without an input gate has no form here", remedy="convert the model with all four gates")
    _check_floats(c)
    hidden = c.size(c.x(2))[0]
    w, r = (_stacked(c, [c.x(first + k) for k in GATES]) for first in (1, 5))
    bias = [c.opt(12 + k) or c.b.const(np.zeros(hidden, np.float32)) for k in GATES]
    # Peephole weights are there for input, forget and output.
    peepholes = [x for k in (9, 11, 10) if (x := c.opt(k)) is not None]
    if len(peepholes) not in (0, 3):
        raise OpError("an LSTM with peepholes to some gates has no form here", remedy="convert the model without")
    more = [_stacked(c, peepholes)] if peepholes else []
    return _over_time(c, ops.lstm, [w, r, _bias(c, bias)], LSTM_STATES, more, hidden)


def _rnn(c: TfliteCall) -> Sequence[Node]:
    kinds = {"TANH": "Tanh", "RELU": "Relu"}
    if c.activation not in kinds:
        raise OpError(f"a cell of the activation {c.activation} has no form here", remedy=f"use {' or '.join(kinds)}")
    _check_floats(c)
    hidden = c.size(c.x(1))[0]
    w, r = (_stacked(c, [c.x(k)]) for k in (1, 2))
    made = [w, r, _bias(c, [c.x(3)])]
    return _over_time(c, ops.rnn, made, RNN_STATES, [], hidden, activations=(kinds[c.activation],))


def _check_floats(c: TfliteCall) -> None:
    if any(x is not None and x.dtype is not types.f32 for x in c.inputs):
        raise OpError(f"{c.name} is read in f32 only", remedy="keep this operator in floats")


def _stacked(c: TfliteCall, parts: Sequence[Node]) -> Node:
    """Matrices or vectors behind each other, for one direction."""
    made = parts[0] if len(parts) == 1 else c.b(ops.concat, *parts, axis=0)
    return c.shaped(made, (1, *c.size(made)))


def _bias(c: TfliteCall, vectors: Sequence[Node]) -> Node:
    """The biases of what comes in, and those of the state, which are zeros."""
    return _stacked(c, [*vectors, *(c.b.const(np.zeros(c.size(v), np.float32)) for v in vectors)])


def _over_time(
    c: TfliteCall, op: OpDef, weights: Sequence[Node], states: Sequence[int], more: Sequence[Node], hidden: int,
    **attrs: object,
) -> list[Node]:  # fmt: skip
    """The results of all steps, and the state behind the last one."""
    x = c.shaped(c.x(), (1, *c.size(c.x()))) if c.name in STEPS else c.x()
    if len(c.size(x)) != 3:
        raise OpError(f"{c.x().type} is no batch of {'vectors' if c.name in STEPS else 'sequences'}")
    is_time_major = c.name in STEPS or bool(c.option("TimeMajor"))
    batch = c.size(x)[1 if is_time_major else 0]
    shape = (1, batch, hidden) if is_time_major else (batch, 1, hidden)
    begin = [c.shaped(c.x(k), shape) for k in states]
    made = c.b(op, x, *weights, *begin, *more, hidden=hidden, layout=0 if is_time_major else 1, **attrs)
    y, *last = c.b.results(made)
    return [c.shaped(y, c.shapes[0]), *(c.shaped(s, c.size(c.x(k))) for k, s in zip(states, last, strict=True))]


def _svdf(c: TfliteCall) -> Sequence[Node]:
    """Each filter keeps what it found of the last vectors; a unit sums the filters of its rank over time."""
    _check_floats(c)
    x, features, times, bias = c.x(0), c.x(1), c.x(2), c.opt(3)
    (batch, _), (filters, memory), rank = c.size(x), c.size(times), c.option("Rank")
    if rank < 1 or filters % rank:
        raise OpError(f"{filters} filters are no whole units of {rank}")
    kept = c.b(
        ops.slice, c.shaped(c.x(4), (batch, filters, memory)), starts=(0, 0, 1), stops=(batch, filters, memory),
        steps=(1, 1, 1),
    )  # fmt: skip
    now = c.b(ops.matmul, x, c.transposed(features, (1, 0)))
    state = c.b(ops.concat, kept, c.shaped(now, (batch, filters, 1)), axis=2)
    found = c.b(ops.reduce_sum, c.b(ops.mul, state, times), axes=(2,), keepdims=False)
    units = c.b(ops.reduce_sum, c.shaped(found, (batch, filters // rank, rank)), axes=(2,), keepdims=False)
    made = units if bias is None else c.b(ops.add, units, bias)
    return [c.activated(made), c.shaped(state, c.size(c.x(4)))]


TABLE: Mapping[str, Converter] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm, "UNIDIRECTIONAL_SEQUENCE_RNN": _rnn, "LSTM": _lstm, "RNN": _rnn,
    "SVDF": _svdf,
}  # fmt: skip
STATES: Mapping[str, Sequence[int]] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": LSTM_STATES, "UNIDIRECTIONAL_SEQUENCE_RNN": RNN_STATES, "LSTM": LSTM_STATES,
    "RNN": RNN_STATES, "SVDF": SVDF_STATES,
}  # fmt: skip
"""The operands that are the state, whose next numbers follow an operator's results."""
