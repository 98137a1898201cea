"""LSTM, GRU and simple RNN as ONNX defines them: one or two directions, layouts, optional peepholes and lengths.

In: sequences, weights, biases and states as ONNX lays them out; absent biases and states are zeros from the frontend.
Out: each op's type rule, NumPy meaning, and decomposition: the inputs of all steps are projected by one matrix product
per direction, then ``ops.recurrence`` runs over time.
Not its business: the recurrence itself.

Shapes (T time, B batch, I inputs, H hidden, D directions, G gates): x [T, B, I], w [D, G*H, I], r [D, G*H, H],
b [D, 2*G*H], states [D, B, H] -> y [T, D, B, H], states [D, B, H]. With layout 1: x [B, T, I], states [B, D, H],
y [B, T, D, H].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.cells import check_activations
from tilewright.ops.common import check_dtype, narrowed, wide
from tilewright.ops.contract import matmul
from tilewright.ops.elementwise import add, cast_node
from tilewright.ops.movement import concat, reshape, transpose
from tilewright.ops.recurrence import (
    check_lengths,
    gru_scan,
    lstm_scan,
    optional_arrays,
    rnn_scan,
    scan_gru,
    scan_lstm,
    scan_rnn,
)
from tilewright.ops.rules import Types, check_exact_dims, check_same_dims
from tilewright.ops.window import slice_

DIRECTIONS = ("forward", "reverse", "bidirectional")
Sizes = tuple[Dim, ...]


@dataclass(frozen=True)
class _Family:
    """What tells the three ops apart in shapes: gates, states, activation functions per direction."""

    n_gates: int
    n_states: int
    n_functions: int
    has_peephole: bool = False


LSTM = _Family(4, 2, 3, has_peephole=True)
GRU = _Family(3, 1, 2)
RNN = _Family(1, 1, 1)


def _reversals(a: Attrs) -> tuple[bool, ...]:
    """For each direction, whether it runs backwards."""
    return {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[a.direction]


def _direction_attrs(a: Attrs, d: int, n_functions: int) -> dict[str, Any]:
    """The attributes of direction ``d``'s recurrence."""
    part = slice(d * n_functions, (d + 1) * n_functions)
    own = {n: tuple(a[n][part]) for n in ("activations", "alpha", "beta")}
    flags = {n: a[n] for n in ("input_forget", "linear_before_reset") if n in a}
    return {**own, **flags, "clip": a.clip}


# --- types ----------------------------------------------------------------------------------------------------------


def _infer(ts: Types, a: Attrs, family: _Family) -> tuple[TensorType, ...]:
    if a.direction not in DIRECTIONS or a.layout not in (0, 1):
        raise OpError(f"direction {a.direction!r} must be one of {', '.join(DIRECTIONS)} and layout {a.layout} 0 or 1")
    x, w, r, b = ts[:4]
    # Optional operands are told apart by their types: peepholes are floats, lengths are integers.
    states, optional = ts[4 : 4 + family.n_states], ts[4 + family.n_states :]
    check_dtype(x, types.FLOATS, "x")
    n_dirs, gates = len(_reversals(a)), family.n_gates * a.hidden
    if x.rank != 3 or any(t.dtype is not x.dtype for t in (w, r, b, *states)):
        raise OpError(f"x must be 3-D and share its dtype with weights, biases and states: {', '.join(map(str, ts))}")
    time, batch = (x.shape[1], x.shape[0]) if a.layout else (x.shape[0], x.shape[1])
    check_exact_dims(w.shape, (n_dirs, gates, x.shape[2]), "w and what x asks for")
    check_exact_dims(r.shape, (n_dirs, gates, a.hidden), "r and what hidden asks for")
    check_exact_dims(b.shape, (n_dirs, gates * 2), "b and what hidden asks for")
    state: Sizes = (batch, n_dirs, a.hidden) if a.layout else (n_dirs, batch, a.hidden)
    for t in states:
        check_same_dims(t.shape, state, "initial state and what x asks for")
    if family.has_peephole and optional and optional[0].dtype.is_float:
        check_same_dims(optional[0].shape, (n_dirs, a.hidden * 3), "peephole weights and what hidden asks for")
        check_dtype(optional[0], (x.dtype,), "the peephole weights")
        optional = optional[1:]
    check_lengths(optional, batch)
    check_activations(a, family.n_functions * n_dirs)
    if a.clip < 0:
        raise OpError(f"clip {a.clip} is negative; 0 is none")
    y = (batch, time, n_dirs, a.hidden) if a.layout else (time, n_dirs, batch, a.hidden)
    return (x.with_shape(y), *(x.with_shape(state) for _ in states))


# --- reference ------------------------------------------------------------------------------------------------------


def _reference(xs: Sequence[Array], a: Attrs, family: _Family) -> tuple[Array, ...]:
    dtype = types.dtype_of(xs[0].dtype)
    x, w, r, b, *states = (v.astype(wide(dtype).numpy) for v in xs[: 4 + family.n_states])
    peephole, lengths = optional_arrays(xs[4 + family.n_states :])
    if a.layout:
        x, states = x.transpose(1, 0, 2), [s.transpose(1, 0, 2) for s in states]
    parts: list[tuple[Array, ...]] = []
    for d, reverse in enumerate(_reversals(a)):
        own = Attrs(_direction_attrs(a, d, family.n_functions))
        gates = w.shape[1]
        bias, r_bias = b[d, :gates] + b[d, gates:], x.dtype.type(0) * b[d, :0]
        if family is GRU:
            bias, r_bias = _split_gru_bias(b[d], a)
        xp, h = x @ w[d].T + bias, states[0][d]
        if family is LSTM:
            p = None if peephole is None else peephole[d].astype(x.dtype)
            parts.append(scan_lstm(xp, r[d].T, h, states[1][d], p, lengths, own, reverse))
        elif family is GRU:
            parts.append(scan_gru(xp, r[d].T, h, r_bias, lengths, own, reverse))
        else:
            parts.append(scan_rnn(xp, r[d].T, h, lengths, own, reverse))
    y, *last = (np.stack(p, 1 if k == 0 else 0) for k, p in enumerate(zip(*parts, strict=True)))
    if a.layout:
        y, last = y.transpose(2, 0, 1, 3), [s.transpose(1, 0, 2) for s in last]
    return tuple(narrowed(v, dtype).copy() for v in (y, *last))


def _split_gru_bias(b: Array, a: Attrs) -> tuple[Array, Array]:
    """The bias of the projection, and the candidate's recurrent bias, which is apart when linear before reset."""
    hidden = b.shape[0] // 6
    inputs, recurrent = b[: 3 * hidden].copy(), b[3 * hidden :]
    inputs[: 2 * hidden] += recurrent[: 2 * hidden]
    if not a.linear_before_reset:
        inputs[2 * hidden :] += recurrent[2 * hidden :]
    return inputs, recurrent[2 * hidden :]


# --- decomposition --------------------------------------------------------------------------------------------------


def _part(b: Builder, x: Node, axis: int, start: Dim, stop: Dim) -> Node:
    """``x`` from ``start`` to ``stop`` along one axis."""
    starts = [0 if k != axis else start for k in range(len(x.shape))]
    stops = [n if k != axis else stop for k, n in enumerate(x.shape)]
    return b(slice_, x, starts=starts, stops=stops, steps=[1] * len(x.shape))


def _row(b: Builder, x: Node, d: int) -> Node:
    """``x[d]``."""
    return b(reshape, _part(b, x, 0, d, d + 1), shape=x.shape[1:])


def _swapped(b: Builder, x: Node) -> Node:
    return b(transpose, x, perm=(1, 0, 2))


def _decompose(b: Builder, xs: tuple[Node, ...], a: Attrs, family: _Family) -> tuple[Node, ...]:
    dtype = xs[0].dtype
    optional = xs[4 + family.n_states :]
    x, w, r, bias, *states = (cast_node(b, v, wide(dtype)) for v in xs[: 4 + family.n_states])
    if a.layout:
        x, states = _swapped(b, x), [_swapped(b, s) for s in states]
    parts: list[tuple[Node, ...]] = []
    for d, reverse in enumerate(_reversals(a)):
        own = _direction_attrs(a, d, family.n_functions)
        b_in, b_rec = _biases(b, _row(b, bias, d), a, family)
        xp = _projected(b, x, _row(b, w, d), b_in)
        rt = b(transpose, _row(b, r, d), perm=(1, 0))
        begin = [b(reshape, _part(b, s, 0, d, d + 1), shape=(x.shape[1], a.hidden)) for s in states]
        lengths = [o for o in optional if o.dtype.is_integer]
        peephole = [_row(b, cast_node(b, o, wide(dtype)), d) for o in optional if o.dtype.is_float]
        operands = [xp, rt, *begin, *b_rec, *peephole, *lengths]
        scan = {LSTM: lstm_scan, GRU: gru_scan, RNN: rnn_scan}[family]
        parts.append(b.results(b(scan, *operands, reverse=reverse, **own)))
    y, *last = (_stacked(b, p, 1 if k == 0 else 0) for k, p in enumerate(zip(*parts, strict=True)))
    if a.layout:
        y, last = b(transpose, y, perm=(2, 0, 1, 3)), [_swapped(b, s) for s in last]
    return tuple(cast_node(b, v, dtype) for v in (y, *last))


def _biases(b: Builder, bias: Node, a: Attrs, family: _Family) -> tuple[Node, list[Node]]:
    """The bias of the projection, and what the recurrence takes itself."""
    half = family.n_gates * a.hidden
    inputs, recurrent = _part(b, bias, 0, 0, half), _part(b, bias, 0, half, half * 2)
    if family is not GRU:
        return b(add, inputs, recurrent), []
    candidate = _part(b, recurrent, 0, half - a.hidden, half)
    if not a.linear_before_reset:
        return b(add, inputs, recurrent), [candidate]
    early = b(add, _part(b, inputs, 0, 0, half - a.hidden), _part(b, recurrent, 0, 0, half - a.hidden))
    return b(concat, early, _part(b, inputs, 0, half - a.hidden, half), axis=0), [candidate]


def _projected(b: Builder, x: Node, w: Node, bias: Node) -> Node:
    """``x @ w.T + bias`` for all steps in one matrix product."""
    time, batch, width = x.shape
    rows = b(reshape, x, shape=(time * batch, width))
    product = b(add, b(matmul, rows, b(transpose, w, perm=(1, 0))), bias)
    return b(reshape, product, shape=(time, batch, w.shape[0]))


def _stacked(b: Builder, parts: Sequence[Node], axis: int) -> Node:
    shape = parts[0].shape
    apart = [b(reshape, p, shape=(*shape[:axis], 1, *shape[axis:])) for p in parts]
    return apart[0] if len(apart) == 1 else b(concat, *apart, axis=axis)


# --- the ops --------------------------------------------------------------------------------------------------------

_ATTRS: dict[str, AttrDef] = {
    "hidden": AttrDef("int"),
    "direction": AttrDef("str", "forward"),
    "activations": AttrDef("strs", ()),
    "alpha": AttrDef("floats", ()),
    "beta": AttrDef("floats", ()),
    "clip": AttrDef("float", 0.0),
    "layout": AttrDef("int", 0),
}
_ATTRS_DOC = (
    " activations, alpha, beta: one per function and direction, or none for the defaults. clip bounds what goes into "
    "an activation; 0 is none. A last i32 operand over the batch holds the sequences' lengths."
)


def _draw(rng: np.random.Generator, family: _Family, n_dirs: int, layout: int = 0) -> list[Array]:
    time, batch, inputs, hidden = 3, 2, 4, 2
    gates = family.n_gates * hidden
    state = (batch, n_dirs, hidden) if layout else (n_dirs, batch, hidden)
    x = (batch, time, inputs) if layout else (time, batch, inputs)
    weights = [(n_dirs, gates, inputs), (n_dirs, gates, hidden), (n_dirs, 2 * gates)]
    shapes: list[tuple[int, ...]] = [x, *weights, *[state] * family.n_states]
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def _family_samples(rng: np.random.Generator, family: _Family, **more: Any) -> Iterator[Sample]:
    lengths = np.array([3, 1], np.int32)
    yield Sample((*_draw(rng, family, 1),), {"hidden": 2, **more})
    yield Sample((*_draw(rng, family, 1), lengths), {"hidden": 2, "direction": "reverse", **more})
    yield Sample((*_draw(rng, family, 2), lengths), {"hidden": 2, "direction": "bidirectional", "clip": 0.4, **more})
    yield Sample((*_draw(rng, family, 1, 1),), {"hidden": 2, "layout": 1, "clip": 0.4, **more})
    yield Sample((*_draw(rng, family, 2, 1),), {"hidden": 2, "layout": 1, "direction": "bidirectional", **more})


def _lstm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _family_samples(rng, LSTM)
    peephole = rng.standard_normal((1, 6)).astype(np.float32)
    names = ("HardSigmoid", "Softsign", "Relu")
    yield Sample((*_draw(rng, LSTM, 1), peephole), {"hidden": 2, "input_forget": True})
    yield Sample((*_draw(rng, LSTM, 1), peephole, np.array([2, 3], np.int32)), {"hidden": 2, "activations": names})


lstm = OpDef(
    "lstm",
    ("x", "w", "r", "b", "h0", "c0", "*peephole_and_lengths"),
    {**_ATTRS, "input_forget": AttrDef("bool", False)},
    lambda ts, a: _infer(ts, a, LSTM),
    lambda xs, a: _reference(xs, a, LSTM),
    decompose=lambda b, xs, a: _decompose(b, xs, a, LSTM),
    samples=_lstm_samples,
    doc="ONNX's LSTM, gates in the order i, o, f, c: (y, last h, last c). Optional peephole weights [D, 3*H] in the "
    "order i, o, f." + _ATTRS_DOC,
)


def _gru_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _family_samples(rng, GRU)
    yield from _family_samples(rng, GRU, linear_before_reset=True)


gru = OpDef(
    "gru",
    ("x", "w", "r", "b", "h0", "*lengths"),
    {**_ATTRS, "linear_before_reset": AttrDef("bool", False)},
    lambda ts, a: _infer(ts, a, GRU),
    lambda xs, a: _reference(xs, a, GRU),
    decompose=lambda b, xs, a: _decompose(b, xs, a, GRU),
    samples=_gru_samples,
    doc="ONNX's GRU, gates in the order z, r, h: (y, last h)." + _ATTRS_DOC,
)


def _rnn_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _family_samples(rng, RNN)
    names = ("Affine", "ScaledTanh")
    more = {"direction": "bidirectional", "activations": names, "alpha": (0.5, 0.9), "beta": (0.1, 1.2)}
    yield Sample((*_draw(rng, RNN, 2),), {"hidden": 2, **more})


rnn = OpDef(
    "rnn",
    ("x", "w", "r", "b", "h0", "*lengths"),
    _ATTRS,
    lambda ts, a: _infer(ts, a, RNN),
    lambda xs, a: _reference(xs, a, RNN),
    decompose=lambda b, xs, a: _decompose(b, xs, a, RNN),
    samples=_rnn_samples,
    doc="ONNX's RNN with one gate: (y, last h)." + _ATTRS_DOC,
)
