"""A recurrence as a loop over time, whose trips are products and arithmetic.

In: a scan over inputs that are projected already (``ops.recurrence``). Out: a loop for who has loops and no
recurrences, or whose products are other ones than the scan's: of few bits (``graph.quantize``). Not its business:
directions, layouts and projections, which the layers themselves decompose into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.ops.cells import CELLS
from tilewright.ops.loops import stacked
from tilewright.ops.recurrence import GRU_DEFAULTS, LSTM_DEFAULTS, RNN_DEFAULTS

# --- activations ----------------------------------------------------------------------------------------------------

Function = Callable[[Builder, Node, float, float], Node]


def _number(b: Builder, value: float, like: Node) -> Node:
    """A 0-d constant of another node's dtype."""
    return b.const(value, like.dtype)


def _affine(b: Builder, x: Node, alpha: float, beta: float) -> Node:
    return b(ops.add, b(ops.mul, _number(b, alpha, x), x), _number(b, beta, x))


def _scaled_tanh(b: Builder, x: Node, alpha: float, beta: float) -> Node:
    return b(ops.mul, _number(b, alpha, x), b(ops.tanh, b(ops.mul, _number(b, beta, x), x)))


def _thresholded(b: Builder, x: Node, alpha: float, _: float) -> Node:
    return b(ops.where, b(ops.gt, x, _number(b, alpha, x)), x, _number(b, 0, x))


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

Product = Callable[[Builder, Node, Dim, Dim], Node]
"""``product(builder, state, first, last)``: the state by the recurrent weights of the columns from first to last."""


@dataclass(frozen=True)
class _Trip:
    """What a cell sees of one step: its row of the projected inputs, the weights, and the states before it."""

    b: Builder
    a: Attrs
    names: Sequence[str]
    row: Node
    multiplied: Product
    states: Sequence[Node]
    more: Sequence[Node]

    @property
    def hidden(self) -> Dim:
        return self.states[0].shape[1]

    def function(self, k: int, x: Node) -> Node:
        """Activation ``k``, as the attributes name it."""
        cell = CELLS[self.names[k]]
        alpha = self.a.alpha[k] if self.a.alpha else cell.alpha
        beta = self.a.beta[k] if self.a.beta else cell.beta
        return FUNCTIONS[self.names[k]](self.b, x, alpha, beta)

    def activated(self, k: int, x: Node) -> Node:
        """Activation ``k`` of what is clipped first."""
        limit = self.a.clip
        within = self.b(ops.clamp, x, _number(self.b, -limit, x), _number(self.b, limit, x)) if limit else x
        return self.function(k, within)

    def product(self, state: Node, first: int, count: int) -> Node:
        """The state by the weights of some gates."""
        return self.multiplied(self.b, state, first * self.hidden, (first + count) * self.hidden)

    def gate(self, x: Node, first: int, count: int = 1) -> Node:
        """The columns of some gates."""
        return _columns(self.b, x, first * self.hidden, (first + count) * self.hidden)

    def less_from_one(self, x: Node) -> Node:
        return self.b(ops.sub, _number(self.b, 1, x), x)


def _columns(b: Builder, x: Node, first: Dim, last: Dim) -> Node:
    if first == 0 and last == x.shape[-1]:
        return x
    others = x.shape[:-1]
    starts, stops = (*[0] * len(others), first), (*others, last)
    return b(ops.slice, x, starts=starts, stops=stops, steps=(1,) * len(x.shape))


Cell = Callable[[_Trip], Sequence[Node]]
"""The states after a step, of which the first is its result."""


def _lstm(t: _Trip) -> Sequence[Node]:
    h, c = t.states
    gates = t.b(ops.add, t.row, t.product(h, 0, 4))

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
    at_once = t.a.linear_before_reset  # then all gates multiply the same state
    product = t.product(h, 0, 3 if at_once else 2)
    early = b(ops.add, t.gate(t.row, 0, 2), t.gate(product, 0, 2))
    z, r = t.activated(0, t.gate(early, 0)), t.activated(0, t.gate(early, 1))
    part = b(ops.mul, r, b(ops.add, t.gate(product, 2), bias)) if at_once else t.product(b(ops.mul, r, h), 2, 1)
    candidate = t.activated(1, b(ops.add, t.gate(t.row, 2), part))
    return (b(ops.add, b(ops.mul, t.less_from_one(z), candidate), b(ops.mul, z, h)),)


def _rnn(t: _Trip) -> Sequence[Node]:
    return (t.activated(0, t.b(ops.add, t.row, t.product(t.states[0], 0, 1))),)


CELLS_OF: dict[OpDef, tuple[int, Sequence[str], Cell]] = {
    ops.lstm_scan: (2, LSTM_DEFAULTS, _lstm),
    ops.gru_scan: (1, GRU_DEFAULTS, _gru),
    ops.rnn_scan: (1, RNN_DEFAULTS, _rnn),
}
"""How many states a scan has, its activations, and its cell."""


# --- the loop -------------------------------------------------------------------------------------------------------


def _turned(b: Builder, x: Node, ends: Node | None) -> Node:
    """The first steps of ``[time, batch, ...]`` in the other order: all of them, or each row's own number of them."""
    if ends is None:
        return b(ops.reverse, x, axes=(0,))
    n_steps, batch = x.shape[:2]
    steps = b(ops.reshape, b(ops.iota, x, extent=n_steps, dtype=types.i64), shape=(n_steps, 1))
    back = b(ops.sub, b(ops.sub, ends, b.const(1, types.i64)), steps)
    places = b(ops.where, b(ops.lt, steps, ends), back, steps)
    each = b(ops.reshape, places, shape=(n_steps, batch, 1))
    return b(ops.gather_elements, x, b(ops.expand, each, shape=x.shape), axis=0)


def looped(b: Builder, node: Node, product: Product | None = None) -> tuple[Node, ...]:
    """The results of a scan by a loop; ``product`` takes the place of its products by the recurrent weights.

    ``OpError`` for a scan whose weights are laid for its own kernel.
    """
    a, (rows, weights, *others) = node.attrs, node.inputs
    if a.panel or a.behind:
        raise OpError("weights that are laid for our kernels are no recurrence of another format's")
    n_states, defaults, cell = CELLS_OF[node.op]
    states, more = others[:n_states], [x for x in others[n_states:] if x.dtype.is_float]
    n_steps, batch = rows.shape[:2]
    if n_steps == 0:  # no trip could take a row
        return b(ops.full, value=0.0, dtype=rows.dtype, shape=node.types[0].shape), *states
    ends = None
    for lengths in (x for x in others[n_states:] if x.dtype.is_integer):
        most = b.const(n_steps, types.i64) if is_known(n_steps) else b(ops.dim_values, dims=(n_steps,))
        ends = b(ops.reshape, b(ops.minimum, b(ops.cast, lengths, dtype=types.i64), most), shape=(1, batch))
    given = _turned(b, rows, ends) if a.reverse else rows
    captured = [weights] if product is None else []

    def step(
        inner: Builder, i: Node, before: Sequence[Node], fixed: Sequence[Node]
    ) -> tuple[Sequence[Node], Sequence[Node]]:
        n_before = 1 + len(captured)
        own = fixed[n_before : n_before + len(more)]
        multiplied = product or (lambda b, state, first, last: _product(b, state, _columns(b, fixed[1], first, last)))
        row = inner(ops.gather, fixed[0], i, axis=0)
        after = cell(_Trip(inner, a, a.activations or defaults, row, multiplied, before, own))
        if ends is None:
            return after, after[:1]
        runs = inner(ops.lt, i, inner(ops.reshape, fixed[-1], shape=(batch, 1)))
        kept = [inner(ops.where, runs, new, old) for new, old in zip(after, before, strict=True)]
        return kept, [inner(ops.where, runs, after[0], _number(inner, 0, after[0]))]

    fixed = [given, *captured, *more, *([] if ends is None else [ends])]
    last, (y,) = stacked(b, f"{node.op.name}_{node.serial}", n_steps, states, fixed, step)
    return (_turned(b, y, ends) if a.reverse else y, *last)


def _product(b: Builder, state: Node, weights: Node) -> Node:
    """``state @ weights`` of what the state is in the type of the weights."""
    dtype = state.dtype
    rounded = state if weights.dtype is dtype else b(ops.cast, b(ops.cast, state, dtype=weights.dtype), dtype=dtype)
    return b(ops.matmul, rounded, weights if weights.dtype is dtype else b(ops.cast, weights, dtype=dtype))
