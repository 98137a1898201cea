"""The recurrences of LSTM, GRU and simple RNN cells, after the inputs have been projected for all steps at once.

In: projected inputs ``xp[time, batch, gates * hidden]`` with biases added, recurrent weights ``rt[hidden, gates *
hidden]``, initial states, and run-time lengths where sequences differ. Out: ``y[time, batch, hidden]`` and last states.
Not its business: projections, directions, layouts (``ops.rnn``).

Each op is a kernel: a serial loop over time around a small matrix product and element-wise stages; the result buffers
of the states hold the running states. Arithmetic is f32 or f64. With recurrent weights in bf16 a product reads its
state rounded to bf16, too, and all else stays in f32. With lengths, a row's state stops changing at its length, its
outputs after that are 0, and ``reverse`` starts at its own end.

With ``behind`` a scan also gives ``z = y @ wn``, what a next layer projects, without lengths: while a block of
``behind`` steps runs, each of them computes as many columns, for the rows of an earlier block. The products of
a step read weights and do little with them, those of a block of rows do much, so a machine can do both at once.

With ``panel`` the recurrent weights are ``[hidden / panel, hidden, gates * panel]`` (``in_panels``), each read once for
two steps (``Scan.in_panels``): f32 or f64, without lengths, ``behind``, or a reset gate before the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tilewright.core import types
from tilewright.core.compute import (
    Buffer,
    Const,
    Inside,
    Load,
    Select,
    Stage,
    Value,
    syms,
)
from tilewright.core.diag import OpError
from tilewright.core.dims import known_at_least
from tilewright.core.expr import Dim, Sym, floordiv, mod
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.cells import activations, check_activations
from tilewright.ops.common import check_dtype
from tilewright.ops.rules import Types, check_same_dims
from tilewright.ops.scan import Scan
from tilewright.ops.stages import Items, copy_from, write

LSTM_DEFAULTS = ("Sigmoid", "Tanh", "Tanh")
GRU_DEFAULTS = ("Sigmoid", "Tanh")
RNN_DEFAULTS = ("Tanh",)


def check_lengths(operands: Types, batch: Dim) -> None:
    """Raise ``OpError`` unless there is at most one operand, 1-D i32 over the batch."""
    if len(operands) > 1 or any(t.dtype is not types.i32 for t in operands):
        raise OpError(f"the last operand may be lengths, i32 over the batch, not {', '.join(map(str, operands))}")
    for t in operands:
        check_same_dims(t.shape, (batch,), "lengths and batch")


def _check_scan(ts: Types, a: Attrs, n_gates: int, n_states: int, n_functions: int) -> TensorType:
    xp, rt, state = ts[0], ts[1], ts[2]
    check_dtype(xp, (types.f32, types.f64), "the projected input")
    if xp.rank != 3 or state.rank != 2:
        raise OpError(f"takes [time, batch, gates] and [batch, hidden], not {xp} and {state}")
    if any(t.dtype is not xp.dtype for t in ts[2 : 2 + n_states]):
        raise OpError("projected input and states must have one dtype")
    check_dtype(rt, (xp.dtype, types.bf16) if xp.dtype is types.f32 else (xp.dtype,), "the recurrent weights")
    hidden = state.shape[1]
    check_same_dims(xp.shape[1:], (state.shape[0], hidden * n_gates), "projected input and state")
    if a.panel:
        _check_panels(ts, a, n_gates)
    else:
        check_same_dims(rt.shape, (hidden, hidden * n_gates), "recurrent weights and state")
    for t in ts[2 : 2 + n_states]:
        check_same_dims(t.shape, state.shape, "states")
    check_activations(a, n_functions)
    if a.clip < 0:
        raise OpError(f"clip {a.clip} is negative; 0 is none")
    return xp.with_shape((*xp.shape[:2], hidden))


def _check_panels(ts: Types, a: Attrs, n_gates: int) -> None:
    rt, hidden = ts[1], ts[2].shape[1]
    if a.panel < 0 or mod(hidden, a.panel) != 0 or rt.dtype is not ts[0].dtype:
        raise OpError(f"panel {a.panel} must divide the {hidden} hidden units, with weights of the states' dtype")
    if a.behind or not a.get("linear_before_reset", True) or any(t.dtype.is_integer for t in ts):
        raise OpError("panels take no lengths, nothing behind, and no reset gate before the product")
    check_same_dims(rt.shape[:2], (floordiv(hidden, a.panel), hidden), "panels of weights and state")
    if rt.rank != 3 or not known_at_least(rt.shape[2], n_gates * a.panel):
        raise OpError(f"panels {rt} must have at least {n_gates * a.panel} columns")


def _next_projection(ts: Types, a: Attrs, y: TensorType) -> tuple[Types, tuple[TensorType, ...]]:
    """The operands without the next layer's weights, and the type of what they project: none unless ``behind``."""
    if not a.behind:
        return ts, ()
    wn = ts[-1]
    check_dtype(wn, (y.dtype,), "the next layer's weights")
    if a.behind < 0 or wn.rank != 2 or any(t.dtype.is_integer for t in ts):
        raise OpError(f"behind {a.behind} takes weights [hidden, columns] and no lengths, not {wn}")
    check_same_dims(wn.shape[:1], y.shape[2:], "the next layer's weights and hidden")
    if mod(wn.shape[1], a.behind) != 0:
        raise OpError(f"{wn.shape[1]} columns are no multiple of behind {a.behind}")
    return ts[:-1], (y.with_shape((*y.shape[:2], wn.shape[1])),)


# --- reference ------------------------------------------------------------------------------------------------------

Rows = npt.NDArray[np.int64]


def _steps(n_steps: int, batch: int, lengths: Array | None, reverse: bool) -> Iterator[tuple[Rows, Array]]:
    """For each step, the time that each row reads and writes, and which rows are still running."""
    ends = np.full(batch, n_steps) if lengths is None else np.clip(lengths.astype(np.int64), 0, n_steps)
    for t in range(n_steps):
        running = t < ends
        yield np.where(running & reverse, ends - 1 - t, t), running[:, None]


def _product(state: Array, rt: Array) -> Array:
    """``state @ rt`` in the state's dtype, of what the state is in the dtype of the weights."""
    product: Array = state.astype(rt.dtype).astype(state.dtype) @ rt.astype(state.dtype)
    return product


def _clipped(x: Array, clip: float) -> Array:
    return np.clip(x, -clip, clip) if clip else x


def scan_lstm(
    xp: Array, rt: Array, h: Array, c: Array, peephole: Array | None, lengths: Array | None, a: Attrs, reverse: bool
) -> tuple[Array, ...]:
    """LSTM over time in NumPy; ``a`` has one direction's activations."""
    f, g, out = activations(a, LSTM_DEFAULTS)
    hidden, rows = h.shape[1], np.arange(h.shape[0])
    p_i, p_o, p_f = np.split(peephole, 3) if peephole is not None else (None,) * 3

    def seen(x: Array, weight: Array | None, cell: Array) -> Array:
        return x if weight is None else x + weight * cell

    y = np.zeros((*xp.shape[:2], hidden), xp.dtype)
    for t, running in _steps(xp.shape[0], h.shape[0], lengths, reverse):
        i_in, o_in, f_in, c_in = np.split(xp[t, rows] + _product(h, rt), 4, 1)
        i = f.array(_clipped(seen(i_in, p_i, c), a.clip))
        keep = 1 - i if a.input_forget else f.array(_clipped(seen(f_in, p_f, c), a.clip))
        c_new = keep * c + i * g.array(_clipped(c_in, a.clip))
        h_new = f.array(_clipped(seen(o_in, p_o, c_new), a.clip)) * out.array(c_new)
        c, h = np.where(running, c_new, c), np.where(running, h_new, h)
        y[t, rows] = np.where(running, h, 0)
    return y, h.copy(), c.copy()


def scan_gru(
    xp: Array, rt: Array, h: Array, r_bias: Array, lengths: Array | None, a: Attrs, reverse: bool
) -> tuple[Array, ...]:
    """GRU over time in NumPy; ``r_bias`` is the candidate's recurrent bias, used when it is linear before reset."""
    f, g = activations(a, GRU_DEFAULTS)
    hidden, rows = h.shape[1], np.arange(h.shape[0])
    y = np.zeros((*xp.shape[:2], hidden), xp.dtype)
    for t, running in _steps(xp.shape[0], h.shape[0], lengths, reverse):
        z_in, r_in = np.split(xp[t, rows, : 2 * hidden] + _product(h, rt[:, : 2 * hidden]), 2, 1)
        z, r = f.array(_clipped(z_in, a.clip)), f.array(_clipped(r_in, a.clip))
        last = rt[:, 2 * hidden :]
        part = r * (_product(h, last) + r_bias) if a.linear_before_reset else _product(r * h, last)
        candidate = g.array(_clipped(xp[t, rows, 2 * hidden :] + part, a.clip))
        h = np.where(running, (1 - z) * candidate + z * h, h)
        y[t, rows] = np.where(running, h, 0)
    return y, h.copy()


def scan_rnn(xp: Array, rt: Array, h: Array, lengths: Array | None, a: Attrs, reverse: bool) -> tuple[Array, ...]:
    """A simple RNN over time in NumPy."""
    (f,) = activations(a, RNN_DEFAULTS)
    y, rows = np.zeros_like(xp), np.arange(h.shape[0])
    for t, running in _steps(xp.shape[0], h.shape[0], lengths, reverse):
        h = np.where(running, f.array(_clipped(xp[t, rows] + _product(h, rt), a.clip)), h)
        y[t, rows] = np.where(running, h, 0)
    return y, h.copy()


# --- kernels --------------------------------------------------------------------------------------------------------


def _ahead(
    ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs
) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...], tuple[Buffer, Buffer] | None]:
    """Operands and results without those of the next layer's projection, and these."""
    return (ins[:-1], outs[:-1], (ins[-1], outs[-1])) if a.behind else (ins, outs, None)


def _lstm_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    ins, outs, ahead = _ahead(ins, outs, a)
    xp, rt, h0, c0 = ins[:4]
    peephole, lengths = _optional(ins[4:])
    y, h, c = outs
    f, g, out = activations(a, LSTM_DEFAULTS)
    hidden = h.shape[1]

    def cell(s: Scan, gates: Buffer) -> tuple[Stage, ...]:
        def kept(b: Sym, j: Sym) -> Load:
            return c[b, s.first + j]

        def gate(k: int, b: Sym, j: Sym, seen: int | None) -> Value:
            """The input of gate ``k`` of i, o, f, c; ``seen`` is its part of the peephole weights."""
            # Gates of one unit lie a block of units apart, so that a block of a gate is a run of lanes.
            x: Value = gates[b, j + s.units * k]
            return x if peephole is None or seen is None else x + peephole[s.first + j + hidden * seen] * kept(b, j)

        def new_c(b: Sym, j: Sym) -> Value:
            i = s.activate(f, gate(0, b, j, 0))
            # With coupled gates what is let in is forgotten, and the forget gate has no use.
            keep = Const(1, i.dtype) - i if a.input_forget else s.activate(f, gate(2, b, j, 2))
            return keep * kept(b, j) + i * s.activate(g, gate(3, b, j, None))

        def new_h(b: Sym, j: Sym) -> Value:
            return s.activate(f, gate(1, b, j, 1)) * out.value(kept(b, j))

        return s.update(kept, new_c), s.update(s.after, new_h), s.emit()

    def step(s: Scan) -> tuple[Stage, ...]:
        gates = s.temp("gates", 4)
        return (*s.product(gates, h, 0, s.projected), *cell(s, gates))

    start = [*copy_from(h, h0, lambda i: i), *copy_from(c, c0, lambda i: i)]
    scan = Scan(xp, rt, y, h, lengths, a)
    if a.panel:
        return [*start, *scan.in_panels(Scan.projected, cell)]
    return [*start, *scan.over_time(step, ahead)]


def _gru_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    ins, outs, ahead = _ahead(ins, outs, a)
    xp, rt, h0, r_bias = ins[:4]
    _, lengths = _optional(ins[4:])
    y, h = outs
    f, g = activations(a, GRU_DEFAULTS)
    hidden = h.shape[1]

    def r(s: Scan, gates: Buffer, b: Sym, j: Sym) -> Value:
        return s.activate(f, gates[b, j + s.units])

    def init(s: Scan, b: Sym, column: Dim) -> Value:
        """What a gate's product is added to; the candidate's own bias where the reset gate scales both."""
        if not a.linear_before_reset:
            return s.projected(b, column)
        own = column - hidden * 2
        return Select(Inside((own,)), r_bias[own], s.projected(b, column))

    def cell(s: Scan, gates: Buffer, part: Buffer | None = None) -> tuple[Stage, ...]:
        """``part`` is the candidate's input; without it, it is a gate's, which the reset gate scales."""

        def new_h(b: Sym, j: Sym) -> Value:
            z = s.activate(f, gates[b, j])
            if part is None:
                own = s.projected(b, s.first + j + hidden * 2)
                x: Value = own + r(s, gates, b, j) * gates[b, j + s.units * 2]
            else:
                x = part[b, j]
            return (Const(1, z.dtype) - z) * s.activate(g, x) + z * s.before(b, j)

        return s.update(s.after, new_h), s.emit()

    def step(s: Scan) -> tuple[Stage, ...]:
        gates = s.temp("gates", 3 if a.linear_before_reset else 2)
        products = s.product(gates, h, 0, partial(init, s))
        if a.linear_before_reset:
            return (*products, *cell(s, gates))
        reset, part, axes = s.temp("reset", 1), s.temp("part", 1), s.cell_axes
        b, j = syms(axes)
        # The state is scaled before the candidate's product, which is a second one that waits for the gates.
        scaled = write(reset, axes, (b, j), r(s, gates, b, j) * h[b, j])
        return (*products, scaled, *s.product(part, reset, hidden * 2, s.projected), *cell(s, gates, part))

    scan = Scan(xp, rt, y, h, lengths, a)
    items = scan.in_panels(init, cell) if a.panel else scan.over_time(step, ahead)
    return [*copy_from(h, h0, lambda i: i), *items]


def _rnn_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    ins, outs, ahead = _ahead(ins, outs, a)
    xp, rt, h0 = ins[:3]
    _, lengths = _optional(ins[3:])
    y, h = outs
    (f,) = activations(a, RNN_DEFAULTS)

    def cell(s: Scan, gates: Buffer) -> tuple[Stage, ...]:
        return s.update(s.after, lambda b, j: s.activate(f, gates[b, j])), s.emit()

    def step(s: Scan) -> tuple[Stage, ...]:
        gates = s.temp("gates", 1)
        return (*s.product(gates, h, 0, s.projected), *cell(s, gates))

    scan = Scan(xp, rt, y, h, lengths, a)
    items = scan.in_panels(Scan.projected, cell) if a.panel else scan.over_time(step, ahead)
    return [*copy_from(h, h0, lambda i: i), *items]


def _optional(buffers: Sequence[Buffer]) -> tuple[Buffer | None, Buffer | None]:
    """Peephole weights (floats) and lengths (integers) among the last operands."""
    floats = [b for b in buffers if b.dtype.is_float]
    integers = [b for b in buffers if not b.dtype.is_float]
    return (floats[0] if floats else None), (integers[0] if integers else None)


# --- the ops --------------------------------------------------------------------------------------------------------

_ATTRS: dict[str, AttrDef] = {
    "activations": AttrDef("strs", ()),
    "alpha": AttrDef("floats", ()),
    "beta": AttrDef("floats", ()),
    "clip": AttrDef("float", 0.0),
    "reverse": AttrDef("bool", False),
    "behind": AttrDef("int", 0),
    "panel": AttrDef("int", 0),
}
_FORMS_DOC = (
    " With ``behind`` a last operand wn [hidden, columns] and a last result z = y @ wn, computed that many steps later "
    "in the same loop; columns are a multiple of it, and there are no lengths. With ``panel``, rt is [hidden / panel, "
    "at least gates * panel], each weight is read once for two steps, and there are neither lengths nor wn."
)


def _infer_lstm_scan(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    y = _check_scan(ts, a, 4, 2, 3)
    ts, z = _next_projection(ts, a, y)
    peephole = [t for t in ts[4:5] if t.dtype.is_float]
    for t in peephole:
        check_same_dims(t.shape, (ts[2].shape[1] * 3,), "peephole weights and hidden")
        check_dtype(t, (y.dtype,), "the peephole weights")
    check_lengths(ts[4 + len(peephole) :], ts[2].shape[0])
    return y, ts[2], ts[3], *z


def _ref_lstm_scan(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    xs, wn = _without_weights(xs, a)
    peephole, lengths = optional_arrays(xs[4:])
    return _with_projection(scan_lstm(xs[0], _whole(xs[1], 4, a), xs[2], xs[3], peephole, lengths, a, a.reverse), wn)


def _ref_gru_scan(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    xs, wn = _without_weights(xs, a)
    lengths = optional_arrays(xs[4:])[1]
    return _with_projection(scan_gru(xs[0], _whole(xs[1], 3, a), xs[2], xs[3], lengths, a, a.reverse), wn)


def _ref_rnn_scan(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    xs, wn = _without_weights(xs, a)
    return _with_projection(scan_rnn(xs[0], _whole(xs[1], 1, a), xs[2], optional_arrays(xs[3:])[1], a, a.reverse), wn)


def in_panels(rt: Array, panel: int, lanes: int = 1) -> Array:
    """Recurrent weights ``[hidden, gates * hidden]`` as ``[hidden / panel, hidden, gates * panel]``.

    Zeros fill up the last axis to a multiple of ``lanes``.
    """
    hidden = rt.shape[0]
    apart = rt.reshape(hidden, -1, hidden // panel, panel).transpose(2, 0, 1, 3)
    laid = np.ascontiguousarray(apart).reshape(hidden // panel, hidden, -1)
    return np.pad(laid, ((0, 0), (0, 0), (0, -laid.shape[2] % lanes)))


def _whole(rt: Array, n_gates: int, a: Attrs) -> Array:
    """Recurrent weights as ``[hidden, gates * hidden]``."""
    if not a.panel:
        return rt
    n_panels, hidden, _ = rt.shape
    own = rt[:, :, : n_gates * a.panel].reshape(n_panels, hidden, n_gates, a.panel)
    return own.transpose(1, 2, 0, 3).reshape(hidden, -1)


def _without_weights(xs: Sequence[Array], a: Attrs) -> tuple[Sequence[Array], Array | None]:
    return (xs[:-1], xs[-1]) if a.behind else (xs, None)


def _with_projection(results: tuple[Array, ...], wn: Array | None) -> tuple[Array, ...]:
    return results if wn is None else (*results, results[0] @ wn)


def optional_arrays(arrays: Sequence[Array]) -> tuple[Array | None, Array | None]:
    """Peephole weights (floats) and lengths (integers) among the last operands."""
    floats = [x for x in arrays if x.dtype.kind not in "iu"]
    integers = [x for x in arrays if x.dtype.kind in "iu"]
    return (floats[0] if floats else None), (integers[0] if integers else None)


def _draw(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[Array]:
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def _lstm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    xp, rt, h, c, p = _draw(rng, (3, 2, 8), (2, 8), (2, 2), (2, 2), (6,))
    lengths = np.array([3, 1], np.int32)
    yield Sample((xp, rt, h, c))
    yield Sample((xp, rt, h, c, p), {"reverse": True, "clip": 0.5})
    yield Sample((xp, rt.astype(types.bf16.numpy), h, c, p))
    yield Sample((xp, rt, h, c, p, lengths), {"input_forget": True})
    yield Sample((xp, rt, h, c, lengths), {"reverse": True, "activations": ("HardSigmoid", "Softsign", "Relu")})
    yield Sample((xp[:0], rt, h, c))
    long, wn = _draw(rng, (11, 2, 8), (2, 6))
    yield Sample((long, rt, h, c, wn), {"behind": 2})
    yield Sample((long, rt, h, c, p, wn), {"behind": 3, "reverse": True})
    xp, rt, h, c, p = _draw(rng, (5, 2, 24), (6, 24), (2, 6), (2, 6), (18,))
    yield Sample((xp, in_panels(rt, 2), h, c), {"panel": 2})
    yield Sample((xp[:4], in_panels(rt, 3), h, c, p), {"panel": 3, "reverse": True, "input_forget": True})
    yield Sample((xp[:1], in_panels(rt, 6, 16), h, c), {"panel": 6, "clip": 0.5})
    yield Sample((xp[:0], in_panels(rt, 1), h, c), {"panel": 1})


lstm_scan = OpDef(
    "lstm_scan",
    ("xp", "rt", "h0", "c0", "*peephole_and_lengths_or_wn"),
    {**_ATTRS, "input_forget": AttrDef("bool", False)},
    _infer_lstm_scan,
    _ref_lstm_scan,
    kernel=_lstm_kernel,
    samples=_lstm_samples,
    doc="One direction of an LSTM over projected inputs, gates in the order i, o, f, c: (y, last h, last c). Optional "
    "operands: peephole weights [3 * hidden] in the order i, o, f; lengths, i32 over the batch." + _FORMS_DOC,
)


def _infer_gru_scan(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    y = _check_scan(ts, a, 3, 1, 2)
    ts, z = _next_projection(ts, a, y)
    check_dtype(ts[3], (y.dtype,), "the recurrent bias")
    check_same_dims(ts[3].shape, (ts[2].shape[1],), "the recurrent bias and hidden")
    check_lengths(ts[4:], ts[2].shape[0])
    return y, ts[2], *z


def _gru_samples(rng: np.random.Generator) -> Iterator[Sample]:
    xp, rt, h, bias = _draw(rng, (3, 2, 6), (2, 6), (2, 2), (2,))
    lengths = np.array([2, 0], np.int32)
    for before in (False, True):
        yield Sample((xp, rt, h, bias), {"linear_before_reset": before})
        yield Sample((xp, rt, h, bias, lengths), {"linear_before_reset": before, "reverse": True, "clip": 0.7})
        yield Sample((xp, rt.astype(types.bf16.numpy), h, bias, lengths), {"linear_before_reset": before})
    yield Sample((xp, rt, h, bias), {"activations": ("Affine", "Elu"), "alpha": (0.3, 0.5), "beta": (0.1, 0.0)})
    yield Sample((xp[:, :0], rt, h[:0], bias))
    yield Sample((xp, rt, h, bias, *_draw(rng, (2, 4))), {"behind": 1, "linear_before_reset": True})
    yield Sample((xp, rt, h, bias, *_draw(rng, (2, 4))), {"behind": 4, "reverse": True})
    xp, rt, h, bias = _draw(rng, (5, 1, 12), (4, 12), (1, 4), (4,))
    for n_steps, panel in ((5, 2), (4, 1), (2, 4)):
        more = {"linear_before_reset": True, "panel": panel, "reverse": n_steps == 4}
        yield Sample((xp[:n_steps], in_panels(rt, panel), h, bias), more)


gru_scan = OpDef(
    "gru_scan",
    ("xp", "rt", "h0", "r_bias", "*lengths_or_wn"),
    {**_ATTRS, "linear_before_reset": AttrDef("bool", False)},
    _infer_gru_scan,
    _ref_gru_scan,
    kernel=_gru_kernel,
    samples=_gru_samples,
    doc="One direction of a GRU over projected inputs, gates in the order z, r, candidate: (y, last h). r_bias "
    "[hidden] is added to the candidate's recurrent product when it is linear before reset; else xp has it already."
    + _FORMS_DOC,
)


def _infer_rnn_scan(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    y = _check_scan(ts, a, 1, 1, 1)
    ts, z = _next_projection(ts, a, y)
    check_lengths(ts[3:], ts[2].shape[0])
    return y, ts[2], *z


def _rnn_samples(rng: np.random.Generator) -> Iterator[Sample]:
    xp, rt, h = _draw(rng, (3, 2, 4), (4, 4), (2, 4))
    lengths = np.array([9, 2], np.int32)
    yield Sample((xp, rt, h))
    yield Sample((xp, rt, h), {"reverse": True, "activations": ("Relu",)})
    yield Sample((xp, rt, h, lengths), {"reverse": True, "clip": 0.3})
    yield Sample((xp, rt.astype(types.bf16.numpy), h))
    yield Sample((*_draw(rng, (8, 2, 4)), rt, h, *_draw(rng, (4, 8))), {"behind": 2})
    yield Sample((xp, in_panels(rt, 2), h), {"panel": 2})
    yield Sample((xp, in_panels(rt, 1), h), {"panel": 1, "reverse": True})
    for name in ("LeakyRelu", "ThresholdedRelu", "ScaledTanh", "Softplus", "Sigmoid"):
        yield Sample((xp[:1], rt, h), {"activations": (name,)})


rnn_scan = OpDef(
    "rnn_scan",
    ("xp", "rt", "h0", "*lengths_or_wn"),
    _ATTRS,
    _infer_rnn_scan,
    _ref_rnn_scan,
    kernel=_rnn_kernel,
    samples=_rnn_samples,
    doc="One direction of a simple RNN over projected inputs: (y, last h)." + _FORMS_DOC,
)
