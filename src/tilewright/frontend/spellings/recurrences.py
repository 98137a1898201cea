"""Recurrent layers as loops, for formats that have loops and no recurrences.

In: a scan over inputs that are projected already (``ops.recurrence``). Out: a loop over time whose trips are products
and arithmetic. Not its business: directions, layouts and projections, which the layers themselves decompose into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.frontend.loops import stacked
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis
from tilewright.frontend.spellings.spelling import Spelling, number, ramp
from tilewright.ops.cells import CELLS
from tilewright.ops.recurrence import GRU_DEFAULTS, LSTM_DEFAULTS, RNN_DEFAULTS

# --- activations ----------------------------------------------------------------------------------------------------

Function = Callable[[Builder, Node, float, float], Node]


def _affine(b: Builder, x: Node, alpha: float, beta: float) -> Node:
    return b(ops.add, b(ops.mul, number(b, alpha, x), x), number(b, beta, x))


def _scaled_tanh(b: Builder, x: Node, alpha: float, beta: float) -> Node:
    return b(ops.mul, number(b, alpha, x), b(ops.tanh, b(ops.mul, number(b, beta, x), x)))


def _thresholded(b: Builder, x: Node, alpha: float, _: float) -> Node:
    return b(ops.where, b(ops.gt, x, number(b, alpha, x)), x, number(b, 0, x))


FUNCTIONS: dict[str, Function] = {
    "Relu": lambda b, x, alpha, beta: b(ops.relu, x),
    "Tanh": lambda b, x, alpha, beta: b(ops.tanh, x),
    "Sigmoid": lambda b, x, alpha, beta: b(ops.sigmoid, x),
    "Softsign": lambda b, x, alpha, beta: b(ops.softsign, x),
    "Softplus": lambda b, x, alpha, beta: b(ops.softplus, x),
    "LeakyRelu": lambda b, x, alpha, beta: b(ops.leaky_relu, x, alpha=alpha),
    "Elu": lambda b, x, alpha, beta: b(ops.elu, x, alpha=alpha),
    "HardSigmoid": lambda b, x, alpha, beta: b(ops.hard_sigmoid, x, alpha=alpha, beta=beta),
    "Affine": _affine, "ScaledTanh": _scaled_tanh, "ThresholdedRelu": _thresholded,
}  # fmt: skip
"""The functions of ``ops.cells``, as ops."""


# --- one trip -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trip:
    """What a cell sees of one step: its row of the projected inputs, the weights, and the states before it."""

    b: Builder
    a: Attrs
    names: Sequence[str]
    row: Node
    weights: Node
    states: Sequence[Node]
    more: Sequence[Node]

    def function(self, k: int, x: Node) -> Node:
        """Activation ``k``, as the attributes name it."""
        cell = CELLS[self.names[k]]
        alpha = self.a.alpha[k] if self.a.alpha else cell.alpha
        beta = self.a.beta[k] if self.a.beta else cell.beta
        return FUNCTIONS[self.names[k]](self.b, x, alpha, beta)

    def activated(self, k: int, x: Node) -> Node:
        """Activation ``k`` of what is clipped first."""
        limit = self.a.clip
        within = self.b(ops.clamp, x, number(self.b, -limit, x), number(self.b, limit, x)) if limit else x
        return self.function(k, within)

    def product(self, state: Node, weights: Node) -> Node:
        """``state @ weights`` of what the state is in the type of the weights."""
        b, dtype = self.b, state.dtype
        rounded = state if weights.dtype is dtype else b(ops.cast, b(ops.cast, state, dtype=weights.dtype), dtype=dtype)
        return b(ops.matmul, rounded, weights if weights.dtype is dtype else b(ops.cast, weights, dtype=dtype))

    def gate(self, x: Node, first: int, count: int = 1) -> Node:
        """The columns of some gates."""
        hidden = self.states[0].shape[1]
        return slice_axis(self.b, x, len(x.shape) - 1, first * hidden, count * hidden)

    def less_from_one(self, x: Node) -> Node:
        return self.b(ops.sub, number(self.b, 1, x), x)


Cell = Callable[[_Trip], Sequence[Node]]
"""The states after a step, of which the first is its result."""


def _lstm(t: _Trip) -> Sequence[Node]:
    h, c = t.states
    gates = t.b(ops.add, t.row, t.product(h, t.weights))

    def seen(gate: int, place: int, cell: Node) -> Node:
        """A gate's input, with its part of the peephole weights."""
        x = t.gate(gates, gate)
        return t.b(ops.add, x, t.b(ops.mul, t.gate(t.more[0], place), cell)) if t.more else x

    let_in = t.activated(0, seen(0, 0, c))
    keep = t.less_from_one(let_in) if t.a.input_forget else t.activated(0, seen(2, 2, c))
    added = t.b(ops.mul, let_in, t.activated(1, t.gate(gates, 3)))
    after = t.b(ops.add, t.b(ops.mul, keep, c), added)
    return t.b(ops.mul, t.activated(0, seen(1, 1, after)), t.function(2, after)), after


def _gru(t: _Trip) -> Sequence[Node]:
    (h,), (bias,), b = t.states, t.more, t.b
    early = b(ops.add, t.gate(t.row, 0, 2), t.product(h, t.gate(t.weights, 0, 2)))
    z, r = t.activated(0, t.gate(early, 0)), t.activated(0, t.gate(early, 1))
    last = t.gate(t.weights, 2)
    if t.a.linear_before_reset:
        part = b(ops.mul, r, b(ops.add, t.product(h, last), bias))
    else:
        part = t.product(b(ops.mul, r, h), last)
    candidate = t.activated(1, b(ops.add, t.gate(t.row, 2), part))
    return (b(ops.add, b(ops.mul, t.less_from_one(z), candidate), b(ops.mul, z, h)),)


def _rnn(t: _Trip) -> Sequence[Node]:
    return (t.activated(0, t.b(ops.add, t.row, t.product(t.states[0], t.weights))),)


# --- the loop -------------------------------------------------------------------------------------------------------


def _turned(b: Builder, x: Node, ends: Node | None) -> Node:
    """The first steps of ``[time, batch, ...]`` in the other order: all of them, or each row's own number of them."""
    if ends is None:
        return b(ops.reverse, x, axes=(0,))
    steps = ramp(b, x.shape[0], types.i64, 0, 2, x)
    back = b(ops.sub, b(ops.sub, ends, b.const(1, types.i64)), steps)
    places = b(ops.where, b(ops.lt, steps, ends), back, steps)
    return b(ops.gather_elements, x, expand(b, reshape(b, places, (*x.shape[:2], 1)), x.shape), axis=0)


def _looped(n_states: int, defaults: Sequence[str], cell: Cell) -> Spelling:
    def spell(b: Builder, node: Node) -> tuple[Node, ...]:
        a, (rows, weights, *others) = node.attrs, node.inputs
        if a.panel or a.behind:
            raise OpError("weights that are laid for our kernels are no recurrence of another format's")
        states, more = others[:n_states], [x for x in others[n_states:] if x.dtype.is_float]
        n_steps, batch = rows.shape[:2]
        ends = None
        for lengths in (x for x in others[n_states:] if x.dtype.is_integer):
            within = b(ops.minimum, b(ops.cast, lengths, dtype=types.i64), dim_scalar(b, n_steps, types.i64))
            ends = reshape(b, within, (1, batch))
        given = _turned(b, rows, ends) if a.reverse else rows

        def step(
            inner: Builder, i: Node, before: Sequence[Node], fixed: Sequence[Node]
        ) -> tuple[Sequence[Node], Sequence[Node]]:
            own = fixed[2 : 2 + len(more)]
            row = inner(ops.gather, fixed[0], i, axis=0)
            after = cell(_Trip(inner, a, a.activations or defaults, row, fixed[1], before, own))
            if ends is None:
                return after, after[:1]
            runs = inner(ops.lt, i, reshape(inner, fixed[-1], (batch, 1)))
            kept = [inner(ops.where, runs, new, old) for new, old in zip(after, before, strict=True)]
            return kept, [inner(ops.where, runs, after[0], number(inner, 0, after[0]))]

        fixed = [given, weights, *more, *([] if ends is None else [ends])]
        last, (y,) = stacked(b, f"{node.op.name}_{node.serial}", n_steps, states, fixed, step)
        return (_turned(b, y, ends) if a.reverse else y, *last)

    return spell


SPELLINGS: dict[OpDef, Spelling] = {
    ops.lstm_scan: _looped(2, LSTM_DEFAULTS, _lstm),
    ops.gru_scan: _looped(1, GRU_DEFAULTS, _gru),
    ops.rnn_scan: _looped(1, RNN_DEFAULTS, _rnn),
}
