"""Recurrent layers whose state is codes: the LSTM of int8 and filters in time (SVDF), in whole numbers throughout.

In: operators whose rows and results are codes of 8 bits, with the scales of what they compute between. Out: codes, and
the state behind the last step. Not its business: layers of floats, weights in codes included (``recurrent``).

Gates and the cell have 16 bits. Of a gate, 3 bits stand before the point; its sums are brought to that scale matrix by
matrix, and each time cut to 16 bits. The cell's scale is a power of 2. Functions are those of gemmlowp
(``fixed_point``), as tables of all numbers of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.core.types import Array
from tilewright.frontend.tflite import recurrent
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.cells import CELL, FORGET, INPUT, OUTPUT, scan, stacked
from tilewright.frontend.tflite.codes import of, rescaled, result
from tilewright.frontend.tflite.fixed_point import SHORT, sigmoid, tanh
from tilewright.frontend.tflite.integer_norms import inverse_root
from tilewright.frontend.tflite.integer_softmax import long
from tilewright.frontend.tflite.quantisation import Quantisation

GATE_BITS = 3
"""Bits of a gate before the point."""
MOST_CELL_BITS = 6
"""LiteRT has no tangent of more."""
MEAN_BITS = 10
"""Bits behind the point of a gate's mean."""
HIDDEN = 4
"""Which of the tensors between is what the projection reads, behind the four gates."""


@dataclass(frozen=True)
class _Norm:
    """Gains in steps of ``scale`` and biases, both constants, of one gate."""

    gains: Array
    bias: Array
    scale: np.float32

    @property
    def least_variance(self) -> int:
        """What LiteRT takes for a variance that is cut to 0."""
        return max(1, int(np.float32(10000) * self.scale))


@dataclass(frozen=True)
class _Cell:
    """What one step needs; lists are by gates that there are, in TFLite's order.

    ``factors`` bring the state's sums to gates, one for each unit. ``peepholes`` are vectors with their factors.
    """

    n: int
    gates: Sequence[int]
    recurrent: Array
    factors: Sequence[float]
    peepholes: Mapping[int, tuple[Array, float]]
    norms: Mapping[int, _Norm]
    cell_bits: int
    cell_limit: int
    state: Quantisation
    hidden: Quantisation
    projection: tuple[Array, Array | None, float] | None
    projection_limit: int

    @property
    def is_coupled(self) -> bool:
        return INPUT not in self.gates


def _lstm(c: TfliteCall) -> Node | Sequence[Node]:
    if c.x().dtype is not types.i8:
        return recurrent.TABLE[c.name](c)
    (at,) = recurrent.LSTM
    is_step, is_time_major = c.name in recurrent.STEPS, bool(c.name in recurrent.STEPS or c.option("TimeMajor"))
    x = c.shaped(c.x(), (1, *c.size(c.x()))) if is_step else c.x()
    if len(c.size(x)) != 3:
        raise OpError(f"{c.x().type} is no batch of {'vectors' if is_step else 'sequences'}")
    x = x if is_time_major else c.transposed(x, (1, 0, 2))
    cell = _cell_of(c)
    y, last = scan(c, _stepper(cell), _products(c, cell, x), [c.x(k) for k in at.states], [], False)
    y = y if is_time_major else c.transposed(y, (1, 0, 2))
    return [c.shaped(y, c.shapes[0]), *(c.shaped(s, c.size(c.x(k))) for s, k in zip(last, at.states, strict=True))]


def _cell_of(c: TfliteCall) -> _Cell:
    (at,) = recurrent.LSTM
    if len(c.between) != HIDDEN + 1:
        raise OpError(f"an LSTM of codes has {HIDDEN + 1} scales between, not {len(c.between)}")
    hidden, state, cell = c.between[HIDDEN], of(c, at.states[0]), of(c, at.states[1])
    if hidden is None or not hidden.scale or not state.scale or c.x(at.states[1]).dtype is not types.i16:
        raise OpError("an LSTM of codes has a scale of what is projected and of its state, whose cell has 16 bits")
    fraction, exponent = np.frexp(cell.scale)
    cell_bits = SHORT + int(exponent) - 1
    if fraction != 0.5 or not 0 <= cell_bits <= MOST_CELL_BITS or cell.zero:
        raise OpError(f"a cell in steps of {cell.scale} is none of LiteRT's", remedy="convert the model anew")
    gates = range(1, 4) if c.opt(at.inputs) is None else range(4)
    norms = _norms(c, gates)
    steps = _steps(c, gates, is_normed=bool(norms))
    weights = [at.recurrent + k for k in gates]
    short = np.iinfo(np.int16)
    n = c.size(c.x(weights[0]))[0]
    seen = {INPUT: at.peepholes, FORGET: at.peepholes + 1, OUTPUT: at.peepholes + 2}
    peepholes = {
        k: (c.known(place).astype(np.int32), float(np.float32(np.float64(cell.scale) * of(c, place).scale / steps[k])))
        for k, place in seen.items()
        if k in gates and c.opt(place) is not None
    }
    if peepholes and c.size(c.x(weights[0]))[1] != n:
        # LiteRT's kernel goes over as many cells as there are results, into those of the next row and behind the end.
        raise OpError(
            "an LSTM of codes with peepholes and another number of results than of cells has no form here",
            remedy="project to as many, or keep this operator in floats",
        )
    projection = None
    if c.opt(at.projection) is not None:
        factor = of(c, at.projection).scale * hidden.scale / state.scale
        bias = c.known(at.projection + 1) if c.opt(at.projection + 1) is not None else None
        projection = (_matrix(c, [at.projection]), bias, float(factor))
    return _Cell(
        n, list(gates), _matrix(c, weights), _factors(c, weights, state.scale, steps, n), peepholes, norms, cell_bits,
        int(min(c.option("CellClip", 0.0) / cell.scale, short.max)), state, hidden, projection,
        int(min(c.option("ProjClip", 0.0) / state.scale, np.iinfo(np.int8).max)),
    )  # fmt: skip


def _norms(c: TfliteCall, gates: Sequence[int]) -> dict[int, _Norm]:
    """Of all gates, or of none."""
    (at,) = recurrent.LSTM
    assert at.norms is not None
    if all(c.opt(at.norms + k) is None for k in gates):
        return {}
    return {
        k: _Norm(
            c.known(at.norms + k).astype(np.int64), c.known(at.biases + k).astype(np.int64), of(c, at.norms + k).scale
        )
        for k in gates
    }


def _steps(c: TfliteCall, gates: Sequence[int], *, is_normed: bool) -> dict[int, np.float32]:
    """The scale of each gate's sums, which before a norm is the file's."""
    if not is_normed:
        return dict.fromkeys(gates, np.float32(2.0 ** (GATE_BITS - SHORT)))
    scales = {k: q.scale for k in gates if (q := c.between[k]) is not None and q.scale}
    if len(scales) != len(gates):
        raise OpError("the gates of an LSTM of codes have scales before their norms", remedy="convert the model anew")
    return scales


def _factors(
    c: TfliteCall, places: Sequence[int], step: np.float32, steps: Mapping[int, np.float32], n: int
) -> list[float]:
    """What brings sums to a gate, for each unit of each gate."""
    return [
        float(of(c, k).scale * step / gate) for k, gate in zip(places, steps.values(), strict=True) for _ in range(n)
    ]


def _matrix(c: TfliteCall, places: Sequence[int]) -> Array:
    """Constant weights behind each other, turned, in i32; their zero points are 0."""
    if any(of(c, k).zero for k in places):
        raise OpError("weights of an LSTM of codes have zero points of 0")
    return np.ascontiguousarray(np.concatenate([c.known(k) for k in places]).T.astype(np.int32))


def _less(c: TfliteCall, x: Node, zero: int) -> Node:
    wide = c.cast(x, types.i32)
    return c.b(ops.sub, wide, c.b.const(zero, types.i32)) if zero else wide


def _cut(c: TfliteCall, x: Node, low: int = -(1 << SHORT), high: int = (1 << SHORT) - 1) -> Node:
    """As far as 16 bits hold it, in i32."""
    return c.b(ops.clamp, x, c.b.const(low, types.i32), c.b.const(high, types.i32))


def _products(c: TfliteCall, cell: _Cell, x: Node) -> Node:
    """The gates' sums over all steps' inputs, which no state is needed for: i16[time, batch, units]."""
    (at,) = recurrent.LSTM
    time, batch, width = c.size(x)
    places = [at.inputs + k for k in cell.gates]
    rows = _less(c, c.shaped(x, (time * batch, width)), of(c, 0).zero)
    sums = c.b(ops.matmul, rows, c.b.const(_matrix(c, places)))
    if not cell.norms:  # which add the biases themselves
        sums = c.b(ops.add, sums, stacked(c, [c.x(at.biases + k) for k in cell.gates]))
    steps = _steps(c, cell.gates, is_normed=bool(cell.norms))
    made = rescaled(c, sums, _factors(c, places, of(c, 0).scale, steps, cell.n), axis=1)
    return c.shaped(c.cast(_cut(c, made), types.i16), (time, batch, cell.n * len(cell.gates)))


def _stepper(cell: _Cell) -> Callable[..., tuple[Node, list[Node]]]:
    def step(c: TfliteCall, row: Node, state: Sequence[Node], captured: Sequence[Node]) -> tuple[Node, list[Node]]:
        return _step(c, cell, row, state)

    return step


def _step(c: TfliteCall, cell: _Cell, row: Node, state: Sequence[Node]) -> tuple[Node, list[Node]]:
    h, before = state
    n, (batch, _) = cell.n, c.size(h)
    products = c.b(ops.matmul, _less(c, h, cell.state.zero), c.b.const(cell.recurrent))
    sums = rescaled(c, products, cell.factors, axis=1)
    gates = _cut(c, c.b(ops.add, c.cast(row, types.i32), sums))

    def gate(k: int, f: Callable[[Array, int], Array], seen: Node | None) -> Node:
        """What a gate lets through; ``seen`` is the cell that its peephole looks at."""
        at = cell.gates.index(k) * n
        z = c.b(ops.slice, gates, starts=(0, at), stops=(batch, at + n), steps=(1, 1))
        if k in cell.peepholes and seen is not None:
            weight, factor = cell.peepholes[k]
            looked = c.b(ops.mul, c.b.const(weight), seen)
            z = _cut(c, c.b(ops.add, z, rescaled(c, looked, [factor])))
        if k in cell.norms:
            z = _normalised(c, cell.norms[k], z)
        return _function(c, z, f, GATE_BITS)

    old = c.cast(before, types.i32)
    forget = gate(FORGET, sigmoid, old)
    new = gate(CELL, tanh, None)
    let_in = (
        c.b(ops.sub, c.b.const((1 << SHORT) - 1, types.i32), forget) if cell.is_coupled else gate(INPUT, sigmoid, old)
    )
    kept = _shifted(c, c.b(ops.mul, forget, old), SHORT)
    # Two fractions of 15 bits become steps of the cell.
    now = _cut(c, c.b(ops.add, kept, _shifted(c, c.b(ops.mul, let_in, new), SHORT + cell.cell_bits)))
    if cell.cell_limit > 0:
        now = _cut(c, now, -cell.cell_limit, cell.cell_limit)
    out = c.b(ops.mul, gate(OUTPUT, sigmoid, now), _function(c, now, tanh, cell.cell_bits))
    y = _result(c, cell, out)
    return y, [y, c.cast(now, types.i16)]


def _normalised(c: TfliteCall, norm: _Norm, x: Node) -> Node:
    """A gate less its mean, over its deviation, with gains and biases: 16 bits, ``GATE_BITS`` before the point."""
    wide, n = c.cast(x, types.i64), c.size(x)[1]
    total, squares = (c.b(ops.reduce_sum, y, axes=(1,), keepdims=True) for y in (wide, c.b(ops.mul, wide, wide)))
    mean = c.b(ops.div, c.b(ops.mul, total, long(c, 1 << MEAN_BITS)), long(c, n))
    squares = c.b(ops.mul, squares, long(c, (1 << 2 * MEAN_BITS) // n))
    variance = c.b(ops.div, c.b(ops.sub, squares, c.b(ops.mul, mean, mean)), long(c, 1 << 2 * MEAN_BITS))
    variance = c.b(ops.where, c.b(ops.lt, variance, long(c, 1)), long(c, norm.least_variance), variance)
    root, exponent = inverse_root(c, variance)
    less = c.cast(c.b(ops.sub, c.b(ops.mul, wide, long(c, 1 << MEAN_BITS)), mean), types.i32)
    flat = [c.cast(c.shaped(y, c.size(y)[:1]), types.i32) for y in (root, exponent)]
    scaled = c.cast(c.b(ops.rescale, less, *flat, axis=0), types.i64)
    made = c.b(ops.add, c.b(ops.mul, scaled, c.b.const(norm.gains)), c.b.const(norm.bias))
    negative = c.b(ops.shift_right, made, long(c, 63))  # -1, else 0
    made = c.b(ops.add, c.b(ops.add, made, negative), long(c, 1 << (MEAN_BITS - 1)))
    made = c.cast(c.b(ops.shift_right, made, long(c, MEAN_BITS)), types.i32)
    return _cut(c, rescaled(c, made, [float(np.float64(norm.scale) * 2.0 ** (SHORT - GATE_BITS))]))


def _result(c: TfliteCall, cell: _Cell, out: Node) -> Node:
    """The gated cell as codes, projected where there is a projection."""
    low, high = -128, 127
    factor = float(np.float32(2.0**-SHORT / np.float64(cell.hidden.scale) * 2.0**-SHORT))
    y = c.b(ops.add, rescaled(c, out, [factor]), c.b.const(cell.hidden.zero, types.i32))
    y = _cut(c, y, low, high)
    if cell.projection is not None:
        weight, bias, factor = cell.projection
        sums = c.b(ops.matmul, _less(c, y, cell.hidden.zero), c.b.const(weight))
        if bias is not None:
            sums = c.b(ops.add, sums, c.b.const(bias))
        y = _cut(c, c.b(ops.add, rescaled(c, sums, [factor]), c.b.const(cell.state.zero, types.i32)), low, high)
        if cell.projection_limit > 0:
            y = _cut(c, y, -cell.projection_limit, cell.projection_limit)
    return c.cast(y, types.i8)


def _function(c: TfliteCall, x: Node, f: Callable[[Array, int], Array], bits: int) -> Node:
    """A function of numbers of 16 bits with ``bits`` before the point, as fractions in i32."""
    every = f(np.arange(-(1 << SHORT), 1 << SHORT, dtype=np.int64), bits).astype(np.int16)
    place = c.b(ops.add, x, c.b.const(1 << SHORT, types.i32))
    return c.cast(c.b(ops.gather, c.b.const(every), place, axis=0), types.i32)


def _shifted(c: TfliteCall, x: Node, by: int) -> Node:
    """``x / 2**by``, halves away from 0."""
    negative = c.b(ops.shift_right, x, c.b.const(31, types.i32))  # -1, else 0
    nearest = c.b(ops.add, c.b(ops.add, x, negative), c.b.const(1 << (by - 1), types.i32))
    return c.b(ops.shift_right, nearest, c.b.const(by, types.i32))


# --- filters in time ------------------------------------------------------------------------------------------------


def _svdf(c: TfliteCall) -> Sequence[Node]:
    """As of floats, in whole numbers: what the filters found has 16 bits, and LiteRT leaves the activation out."""
    x, features, times, bias, state = c.x(0), c.x(1), c.x(2), c.opt(3), c.x(4)
    if x.dtype is not types.i8 or state.dtype is not types.i16 or times.dtype is not types.i16:
        raise OpError(f"filters of {x.type} with a state of {state.type} have no form here")
    made, rank = result(c), c.option("Rank")
    (batch, _), (filters, memory) = c.size(x), c.size(times)
    if rank < 1 or filters % rank:
        raise OpError(f"{filters} filters are no whole units of {rank}")
    first = float(np.float64(of(c, 0).scale) * np.float64(of(c, 1).scale) / np.float64(of(c, 4).scale))
    second = float(np.float64(of(c, 4).scale) * np.float64(of(c, 2).scale) / np.float64(made.scale))
    found = c.b(ops.matmul, _less(c, x, of(c, 0).zero), c.cast(c.transposed(features, (1, 0)), types.i32))
    now = c.cast(_cut(c, rescaled(c, found, [first])), types.i16)
    kept = c.b(
        ops.slice, c.shaped(state, (batch, filters, memory)), starts=(0, 0, 1), stops=(batch, filters, memory),
        steps=(1, 1, 1),
    )  # fmt: skip
    last = c.b(ops.concat, kept, c.shaped(now, (batch, filters, 1)), axis=2)
    seen = c.b(ops.mul, c.cast(last, types.i32), c.cast(times, types.i32))
    sums = c.b(ops.reduce_sum, c.shaped(seen, (batch, filters // rank, rank * memory)), axes=(2,), keepdims=False)
    sums = sums if bias is None else c.b(ops.add, sums, bias)
    y = c.b(ops.add, rescaled(c, sums, [second]), c.b.const(made.zero, types.i32))
    return [c.cast(_cut(c, y, -128, 127), types.i8), c.shaped(last, c.size(state))]


TABLE: Mapping[str, Converter] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm, "LSTM": _lstm, "SVDF": _svdf}
