"""Recurrent layers of floats, over sequences and a step a call: LSTM, the simple cell, and filters in time.

In: operators some of whose operands are variables of the file, which hold the state. Weights are floats, or codes of
int8 that rows of floats are multiplied with. Out: the sequence of results, and the state behind its end. Not its
business: keeping the state from call to call (``walk``), and layers whose state is codes
(``integer_recurrent``).

A layer that ``ops.lstm`` or ``ops.rnn`` has is made of these, which are fast. TFLite's other forms (projections,
norms, clipped cells, other functions, codes as weights) are loops of steps (``cells``). TFLite has a matrix for each
gate, in the order input, forget, cell, output; ``ops.lstm`` has all in one, as ONNX orders them: input, output, forget,
cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import CONST, Node
from tilewright.core.opdef import OpDef
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.cells import GateMatrix, LstmCell, Weighed, ahead, lstm_steps, rnn_steps, stacked
from tilewright.frontend.tflite.hybrid import weights_at

STEPS = ("LSTM", "RNN")
"""The operators of one step a call, without an axis of time."""
BASIC_OPERANDS = 5
"""An ``LSTM`` of one matrix for all gates has as many operands, and gives its state as a result too."""
GATES = (0, 3, 1, 2)
"""Where ONNX's gates are among TFLite's."""
FUNCTIONS = {"TANH": "Tanh", "RELU": "Relu"}
"""Activations that ``ops.lstm`` and ``ops.rnn`` have too."""
Directions = Sequence["_Lstm | _Rnn"]
Inputs = Sequence[tuple[Node, int]]
"""Rows ``[time, batch, width]``, and where their weights are: the first operand of the group."""


@dataclass(frozen=True)
class _Lstm:
    """Where one direction's operands are: the first of each group, None for groups that the operator has not."""

    inputs: int
    states: tuple[int, int]
    norms: int | None = None
    aux: int | None = None

    @property
    def recurrent(self) -> int:
        return self.inputs + 4

    @property
    def peepholes(self) -> int:
        return self.inputs + 8

    @property
    def biases(self) -> int:
        return self.inputs + 11

    @property
    def projection(self) -> int:
        return self.inputs + 15


@dataclass(frozen=True)
class _Rnn:
    """Where one direction's operands are: input weights, with recurrent ones, the bias and the state behind them."""

    inputs: int
    aux: int | None = None

    @property
    def states(self) -> tuple[int]:
        return (self.inputs + 3,)


LSTM = [_Lstm(1, (18, 19), norms=20)]
LSTM_BOTH_WAYS = [_Lstm(1, (35, 36), aux=40), _Lstm(18, (37, 38), aux=44)]
RNN = [_Rnn(1)]
RNN_BOTH_WAYS = [_Rnn(1, aux=10), _Rnn(5, aux=11)]
LSTM_AUX, RNN_AUX = 39, 9


def states_of(name: str, n_operands: int) -> Sequence[int]:
    """The operands that are the state, whose next numbers follow an operator's results."""
    if name == "LSTM" and n_operands == BASIC_OPERANDS:
        return (1, 4)
    return STATES.get(name, ())


# --- LSTM -----------------------------------------------------------------------------------------------------------


def _lstm(c: TfliteCall) -> Sequence[Node]:
    if c.name == "LSTM" and c.option("KernelType"):
        return _basic_lstm(c)
    return _in_directions(c, LSTM, None)


def _lstm_both_ways(c: TfliteCall) -> Sequence[Node]:
    return _in_directions(c, LSTM_BOTH_WAYS, LSTM_AUX)


def _lstm_direction(
    c: TfliteCall, at: _Lstm, inputs: Inputs, begin: Sequence[Node], is_reversed: bool
) -> tuple[Node, Sequence[Node]]:
    if c.activation not in (*FUNCTIONS, "RELU6", "RELU_N1_TO_1"):
        # For NONE, LiteRT's kernel multiplies the output gate with what came into the cell, and leaves the cell out.
        raise OpError(f"an LSTM of the activation {c.activation} has no form here", remedy="use tanh")
    is_coupled = c.opt(at.inputs) is None
    gates = range(1, 4) if is_coupled else range(4)
    peepholes, biases = (_vectors(c, first, n) for first, n in ((at.peepholes, 3), (at.biases, 4)))
    gains = _vectors(c, at.norms, 4) if at.norms is not None else [None] * 4
    weighed = [(x, _matrix(c, [first + k for k in gates])) for x, first in inputs]
    recurrent = _matrix(c, [at.recurrent + k for k in gates])
    projection = _matrix(c, [at.projection]) if c.opt(at.projection) is not None else None
    seen = [peepholes[0], peepholes[1], None, peepholes[2]]
    cell = LstmCell(
        recurrent, biases, seen, gains, projection, c.opt(at.projection + 1), is_coupled, c.option("CellClip", 0.0),
        c.option("ProjClip", 0.0),
    )  # fmt: skip
    if _is_plain(c, cell, weighed):
        return _lstm_at_once(c, cell, weighed, begin, is_reversed)
    zeros = c.b.const(np.zeros(cell.n_cells, np.float32))
    is_normed = any(gain is not None for gain in gains)  # whose biases are added behind the norms
    bias = None if is_normed else stacked(c, [biases[k] or zeros for k in gates])
    return lstm_steps(c, cell, ahead(c, weighed, bias), begin, is_reversed)


def _is_plain(c: TfliteCall, cell: LstmCell, weighed: Weighed) -> bool:
    """Does ``ops.lstm`` have it?"""
    n_peepholes = sum(p is not None for p in cell.peepholes)
    return (
        c.activation in FUNCTIONS
        and cell.projection is None
        and not cell.cell_clip
        and not cell.is_coupled
        and all(m.scales is None for m in (*(m for _, m in weighed), cell.recurrent))
        and all(gain is None for gain in cell.gains)
        and n_peepholes in (0, 3)
    )


def _lstm_at_once(
    c: TfliteCall, cell: LstmCell, weighed: Weighed, begin: Sequence[Node], is_reversed: bool
) -> tuple[Node, Sequence[Node]]:
    n = cell.n_cells
    x, weights = _side_by_side(c, weighed)
    w, r = (_by_onnx(c, m, n) for m in (weights, cell.recurrent.weight))
    bias = [b or c.b.const(np.zeros(n, np.float32)) for b in (cell.bias[k] for k in GATES)]
    # Peephole weights are there for input, forget and output.
    peepholes = [p for k in (0, 3, 1) if (p := cell.peepholes[k]) is not None]
    more = [_first_axis(c, stacked(c, peepholes))] if peepholes else []
    function = FUNCTIONS[c.activation]
    return _whole(
        c, ops.lstm, x, [w, r, _bias(c, bias)], begin, more, is_reversed, hidden=n,
        activations=("Sigmoid", function, function),
    )  # fmt: skip


def _by_onnx(c: TfliteCall, x: Node, n: int) -> Node:
    """Rows of gates in ONNX's order."""
    if x.op is CONST:
        array = x.attrs["data"].array
        return _first_axis(c, c.b.const(np.concatenate([array[k * n : (k + 1) * n] for k in GATES])))
    width = c.size(x)[1]
    parts = [c.b(ops.slice, x, starts=(k * n, 0), stops=((k + 1) * n, width), steps=(1, 1)) for k in GATES]
    return _first_axis(c, stacked(c, parts))


def _basic_lstm(c: TfliteCall) -> Sequence[Node]:
    """A step of one matrix over the input and the result before, whose gates are input, cell, forget, output."""
    if any(x is None or x.dtype is not types.f32 for x in c.inputs):
        raise OpError("an LSTM of one matrix for all gates is read in f32 only", remedy="convert the model anew")
    x, before, weights, bias, state = (c.x(k) for k in range(BASIC_OPERANDS))
    (batch, _), (_, n) = c.size(x), c.size(before)
    both = c.b(ops.concat, x, before, axis=1)
    sums = c.b(ops.add, c.b(ops.matmul, both, c.transposed(weights, (1, 0))), bias)
    gates = [c.b(ops.slice, sums, starts=(0, k * n), stops=(batch, (k + 1) * n), steps=(1, 1)) for k in range(4)]
    let_in, forget, out = (c.b(ops.sigmoid, gates[k]) for k in (0, 2, 3))
    now = c.b(ops.add, c.b(ops.mul, let_in, c.b(ops.tanh, gates[1])), c.b(ops.mul, forget, state))
    y = c.b(ops.mul, out, c.b(ops.tanh, now))
    return [y, now, both, sums, y, now]


# --- the simple cell ------------------------------------------------------------------------------------------------


def _rnn(c: TfliteCall) -> Sequence[Node]:
    return _in_directions(c, RNN, None)


def _rnn_both_ways(c: TfliteCall) -> Sequence[Node]:
    if c.option("TimeMajor") and c.x(1).dtype is not types.f32:
        # LiteRT's kernel goes over the whole sequence as often as it has steps, on from its own end.
        raise OpError(
            "a simple cell of codes in two directions has no form where time comes first",
            remedy="put the batch first, or keep this operator in floats",
        )
    return _in_directions(c, RNN_BOTH_WAYS, RNN_AUX)


def _rnn_direction(
    c: TfliteCall, at: _Rnn, inputs: Inputs, begin: Sequence[Node], is_reversed: bool
) -> tuple[Node, Sequence[Node]]:
    weighed, recurrent = [(x, _matrix(c, [first])) for x, first in inputs], _matrix(c, [at.inputs + 1])
    bias = c.x(at.inputs + 2)
    if c.activation not in FUNCTIONS or any(m.scales is not None for m in (*(m for _, m in weighed), recurrent)):
        return rnn_steps(c, recurrent, ahead(c, weighed, bias), begin[0], is_reversed)
    x, weights = _side_by_side(c, weighed)
    w, r = (_first_axis(c, m) for m in (weights, recurrent.weight))
    return _whole(
        c, ops.rnn, x, [w, r, _bias(c, [bias])], begin, [], is_reversed, hidden=recurrent.n_units,
        activations=(FUNCTIONS[c.activation],),
    )  # fmt: skip


# --- of both --------------------------------------------------------------------------------------------------------


def _in_directions(c: TfliteCall, directions: Directions, aux: int | None) -> list[Node]:
    """The results of each direction, or of all behind each other, and the states.

    An operator of two directions may have a second input. With weights of its own it is added to what both directions
    read; without, it is what the backward direction reads.
    """
    is_step = c.name in STEPS
    is_time_major = is_step or bool(c.option("TimeMajor"))
    x = _rows(c, c.x(), is_step, is_time_major)
    second = _rows(c, c.x(aux), is_step, is_time_major) if aux is not None and c.opt(aux) is not None else None
    results, states = [], []
    for k, at in enumerate(directions):
        inputs = [(x, at.inputs)]
        if second is not None:
            # LiteRT's simple cell leaves a second input without weights out unless time comes first.
            is_read = isinstance(at, _Lstm) or is_time_major
            if at.aux is not None and any(c.opt(at.aux + i) is not None for i in range(2)):
                inputs.append((second, at.aux))
            elif k and is_read:
                inputs = [(second, at.inputs)]
        begin = [_state(c, i) for i in at.states]
        if isinstance(at, _Lstm):
            y, last = _lstm_direction(c, at, inputs, begin, bool(k))
        else:
            y, last = _rnn_direction(c, at, inputs, begin, bool(k))
        results.append(y if is_time_major else c.transposed(y, (1, 0, 2)))
        states += [c.shaped(s, c.size(c.x(i))) for i, s in zip(at.states, last, strict=True)]
    if len(results) > 1 and c.option("MergeOutputs"):
        results = [stacked(c, results, 2)]
    return [c.shaped(y, shape) for y, shape in zip(results, c.shapes, strict=True)] + states


def _rows(c: TfliteCall, x: Node, is_step: bool, is_time_major: bool) -> Node:
    """Rows by time and batch."""
    if x.dtype is not types.f32:
        raise OpError(f"{c.name} of {x.type} has no form here", remedy="keep this operator in floats")
    x = c.shaped(x, (1, *c.size(x))) if is_step else x
    if len(c.size(x)) != 3:
        raise OpError(f"{c.x().type} is no batch of {'vectors' if is_step else 'sequences'}")
    return x if is_time_major else c.transposed(x, (1, 0, 2))


def _state(c: TfliteCall, k: int) -> Node:
    if c.x(k).dtype is not types.f32:
        raise OpError(f"a state of {c.x(k).type} has no form here", remedy="keep this operator in floats")
    return c.x(k)


def _matrix(c: TfliteCall, places: Sequence[int]) -> GateMatrix:
    """The weights at these operands behind each other: floats, or codes with their scales."""
    parts, scales = [c.x(k) for k in places], []
    for k, part in zip(places, parts, strict=True):
        if len(c.size(part)) != 2:
            raise OpError(f"weights of {part.type} are no matrix")
        if part.dtype is types.f32:
            continue
        scales.append(np.full(c.size(part)[0], weights_at(c, k).scale, np.float32))
    if scales and len(scales) != len(parts):
        raise OpError("gates of codes and of floats in one layer have no form here", remedy="convert the model anew")
    whole = stacked(c, parts)
    if len(parts) > 1 and all(p.op is CONST for p in parts):
        whole = c.b.const(np.concatenate([p.attrs["data"].array for p in parts]))
    return GateMatrix(whole, np.concatenate(scales) if scales else None)


def _vectors(c: TfliteCall, first: int, n: int) -> list[Node | None]:
    """Vectors in f32, from codes where the file has these."""
    found: list[Node | None] = []
    for k in range(first, first + n):
        x, q = c.opt(k), c.quantised[k] if k < len(c.quantised) else None
        if x is not None and q is not None:
            real = (c.known(k).astype(np.float32) - np.float32(q.zero)) * q.scale
            x = c.b.const(real)
        found.append(x)
    return found


def _side_by_side(c: TfliteCall, weighed: Weighed) -> tuple[Node, Node]:
    """All inputs as one, and their weights, which a product adds up."""
    return stacked(c, [x for x, _ in weighed], 2), stacked(c, [m.weight for _, m in weighed], 1)


def _first_axis(c: TfliteCall, x: Node) -> Node:
    """With an axis of one direction in front."""
    return c.shaped(x, (1, *c.size(x)))


def _bias(c: TfliteCall, vectors: Sequence[Node]) -> Node:
    """The biases of what comes in, and those of the state, which are zeros."""
    return _first_axis(c, stacked(c, [*vectors, *(c.b.const(np.zeros(c.size(v), np.float32)) for v in vectors)]))


def _whole(
    c: TfliteCall, op: OpDef, x: Node, weights: Sequence[Node], begin: Sequence[Node], more: Sequence[Node],
    is_reversed: bool, **attrs: object,
) -> tuple[Node, Sequence[Node]]:  # fmt: skip
    """All steps by ``ops.lstm`` or ``ops.rnn``."""
    direction = "reverse" if is_reversed else "forward"
    made = c.b(op, x, *weights, *(_first_axis(c, s) for s in begin), *more, direction=direction, **attrs)
    y, *last = c.b.results(made)
    time, _, batch, n = c.size(y)
    return c.shaped(y, (time, batch, n)), [c.shaped(s, (batch, n)) for s in last]


def _check_floats(c: TfliteCall) -> None:
    if any(x is not None and x.dtype is not types.f32 for x in c.inputs):
        raise OpError(f"{c.name} is read in f32 only", remedy="keep this operator in floats")


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
    "BIDIRECTIONAL_SEQUENCE_LSTM": _lstm_both_ways, "BIDIRECTIONAL_SEQUENCE_RNN": _rnn_both_ways, "SVDF": _svdf,
}  # fmt: skip
_DIRECTIONS: Mapping[str, Directions] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": LSTM, "LSTM": LSTM, "UNIDIRECTIONAL_SEQUENCE_RNN": RNN, "RNN": RNN,
    "BIDIRECTIONAL_SEQUENCE_LSTM": LSTM_BOTH_WAYS, "BIDIRECTIONAL_SEQUENCE_RNN": RNN_BOTH_WAYS,
}  # fmt: skip
STATES: Mapping[str, Sequence[int]] = {
    "SVDF": (4,), **{name: [k for at in found for k in at.states] for name, found in _DIRECTIONS.items()},
}  # fmt: skip
HYBRID: Mapping[str, Converter] = {name: f for name, f in TABLE.items() if name != "SVDF"}
"""What takes weights of codes as well."""
