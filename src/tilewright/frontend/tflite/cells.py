"""Recurrent cells step by step: a loop over time whose body is one step of an LSTM or of the simple cell.

In: one direction's weights, in floats or in codes of int8 that floats are multiplied with, and the state before the
first step. Out: the results of all steps, and the state behind the last one. Not its business: which operand is what,
cells that ``ops.lstm`` and ``ops.rnn`` have (``recurrent``), and cells whose state is codes (``integer_recurrent``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import numbers
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, TensorType
from tilewright.frontend.tflite.call import TfliteCall
from tilewright.frontend.tflite.hybrid import coded_rows

INPUT, FORGET, CELL, OUTPUT = range(4)
"""TFLite's order of gates."""
NORM_CONSTANT = 1e-8
"""What LiteRT adds to the variance of a gate before it takes the root."""
Step = Callable[[TfliteCall, Node, Sequence[Node], Sequence[Node]], "tuple[Node, Sequence[Node]]"]
"""The result and the next state of one step, of its row of what was computed ahead, the state, and the captures."""


@dataclass(frozen=True)
class GateMatrix:
    """Weights ``[units, inputs]`` in f32, or in i8 with the scale of each unit."""

    weight: Node
    scales: Array | None = None

    @property
    def n_units(self) -> int:
        return numbers(self.weight.shape)[0]

    def times(self, c: TfliteCall, rows: Node, weight: Node) -> Node:
        """``rows @ weight.T``; ``weight`` is this matrix, or what stands for it within a body."""
        turned = c.transposed(weight, (1, 0))
        if self.scales is None:
            return c.b(ops.matmul, rows, turned)
        coded = coded_rows(c, rows)
        sums = c.cast(c.b(ops.matmul, coded.codes, c.cast(turned, types.i32)), types.f32)
        return c.b(ops.mul, sums, c.b(ops.mul, coded.scale, c.b.const(self.scales)))


Weighed = Sequence[tuple[Node, GateMatrix]]
"""Rows ``[time, batch, width]``, and the weights that they are multiplied with."""


@dataclass(frozen=True)
class LstmCell:
    """What one step of an LSTM needs. Vectors are by gates, and None where the file leaves them out.

    The matrices have the rows of all gates behind each other, without those of an input gate that is one less the
    forget gate (``is_coupled``).
    """

    recurrent: GateMatrix
    bias: Sequence[Node | None]
    peepholes: Sequence[Node | None]
    gains: Sequence[Node | None]
    projection: GateMatrix | None
    projection_bias: Node | None
    is_coupled: bool
    cell_clip: float
    projection_clip: float

    @property
    def n_cells(self) -> int:
        return self.recurrent.n_units // (3 if self.is_coupled else 4)


def stacked(c: TfliteCall, parts: Sequence[Node], axis: int = 0) -> Node:
    return parts[0] if len(parts) == 1 else c.b(ops.concat, *parts, axis=axis)


def ahead(c: TfliteCall, inputs: Weighed, bias: Node | None) -> Node:
    """The products of all steps' inputs, which no state is needed for: ``[time, batch, units]``."""
    time, batch, _ = c.size(inputs[0][0])
    parts = [] if bias is None else [bias]
    parts += [m.times(c, c.shaped(rows, (time * batch, c.size(rows)[2])), m.weight) for rows, m in inputs]
    made = reduce(lambda a, b: c.b(ops.add, a, b), parts)
    return c.shaped(made, (time, batch, inputs[0][1].n_units))


def lstm_steps(
    c: TfliteCall, cell: LstmCell, products: Node, begin: Sequence[Node], is_reversed: bool
) -> tuple[Node, Sequence[Node]]:
    """All steps of an LSTM over ``products``, as :func:`ahead` makes them, of gates in TFLite's order."""
    projection = cell.projection.weight if cell.projection is not None else None
    read = (cell.recurrent.weight, projection, cell.projection_bias, *cell.bias, *cell.peepholes, *cell.gains)
    captures = list(dict.fromkeys(node for node in read if node is not None))

    def step(c: TfliteCall, row: Node, state: Sequence[Node], captured: Sequence[Node]) -> tuple[Node, list[Node]]:
        return _lstm_step(c, cell, row, state, dict(zip(captures, captured, strict=True)))

    return scan(c, step, products, begin, captures, is_reversed)


def _lstm_step(
    c: TfliteCall, cell: LstmCell, row: Node, state: Sequence[Node], own: Mapping[Node, Node]
) -> tuple[Node, list[Node]]:
    """``own`` is what stands for the cell's nodes within the body."""
    h, before = state
    n, (batch, _) = cell.n_cells, c.size(h)
    sums = c.b(ops.add, row, cell.recurrent.times(c, h, own[cell.recurrent.weight]))
    first = FORGET if cell.is_coupled else INPUT

    def gate(k: int, seen: Node | None) -> Node:
        """What goes into a gate's function; ``seen`` is the cell that its peephole looks at."""
        at = (k - first) * n
        z = c.b(ops.slice, sums, starts=(0, at), stops=(batch, at + n), steps=(1, 1))
        peephole, gain, bias = cell.peepholes[k], cell.gains[k], cell.bias[k]
        if peephole is not None and seen is not None:
            z = c.b(ops.add, z, c.b(ops.mul, seen, own[peephole]))
        if gain is not None:
            z = c.b(ops.mul, _normalised(c, z), own[gain])
            z = z if bias is None else c.b(ops.add, z, own[bias])
        return z

    forget = c.b(ops.sigmoid, gate(FORGET, before))
    let_in = c.b(ops.sub, c.number(1, forget), forget) if cell.is_coupled else c.b(ops.sigmoid, gate(INPUT, before))
    new = c.activated(gate(CELL, None))
    now = c.b(ops.add, c.b(ops.mul, forget, before), c.b(ops.mul, let_in, new))
    now = _clipped(c, now, cell.cell_clip)
    y = c.b(ops.mul, c.b(ops.sigmoid, gate(OUTPUT, now)), c.activated(now))
    if cell.projection is not None:
        y = cell.projection.times(c, y, own[cell.projection.weight])
        bias = cell.projection_bias
        y = _clipped(c, y if bias is None else c.b(ops.add, y, own[bias]), cell.projection_clip)
    return y, [y, now]


def rnn_steps(
    c: TfliteCall, recurrent: GateMatrix, products: Node, begin: Node, is_reversed: bool
) -> tuple[Node, Sequence[Node]]:
    """All steps of the simple cell over ``products``, as :func:`ahead` makes them."""

    def step(c: TfliteCall, row: Node, state: Sequence[Node], captured: Sequence[Node]) -> tuple[Node, list[Node]]:
        y = c.activated(c.b(ops.add, row, recurrent.times(c, state[0], captured[0])))
        return y, [y]

    return scan(c, step, products, [begin], [recurrent.weight], is_reversed)


def scan(
    c: TfliteCall, step: Step, rows: Node, begin: Sequence[Node], captures: Sequence[Node], is_reversed: bool
) -> tuple[Node, Sequence[Node]]:
    """``step`` over the first axis of ``rows``, from its end where ``is_reversed``; results lie as the rows do."""
    n_steps, n = c.size(rows)[0], len(begin)
    b = Builder(Pool(), c.b.loc)
    turn, going = b.pool.input("i", TensorType(types.i64, ())), b.pool.input("going", TensorType(types.bool_, ()))
    inputs = [b.pool.input(f"x{k}", node.type) for k, node in enumerate([*begin, *captures, rows])]
    at = b(ops.sub, b.const(n_steps - 1, types.i64), turn) if is_reversed else turn
    inner = replace(c, b=b)
    y, state = step(inner, b(ops.gather, inputs[-1], at, axis=0), inputs[:n], inputs[n:-1])
    for before, after in zip(begin, state, strict=True):
        if before.type != after.type:
            raise OpError(f"a step makes a state of {after.type} from {before.type}")
    names = ("going", *(f"s{k}" for k in range(n)), "y")
    body = Graph(f"step_{rows.serial}", b.pool, (turn, going, *inputs), (going, *state, y), names)
    loop = c.b(
        ops.loop, c.b.const(n_steps, types.i64), c.b.const(np.array(True)), *begin, *captures, rows, body=body,
        n_carried=n, length=n_steps, name=f"steps_{rows.serial}",
    )  # fmt: skip
    *last, found = c.b.results(loop)
    return c.b(ops.reverse, found, axes=(0,)) if is_reversed else found, last


def _normalised(c: TfliteCall, z: Node) -> Node:
    """Each row less its mean, over its standard deviation."""
    less = c.b(ops.sub, z, c.b(ops.reduce_mean, z, axes=(1,), keepdims=True))
    variance = c.b(ops.reduce_mean, c.b(ops.mul, less, less), axes=(1,), keepdims=True)
    return c.b(ops.mul, less, c.b(ops.rsqrt, c.b(ops.add, variance, c.number(NORM_CONSTANT, z))))


def _clipped(c: TfliteCall, x: Node, limit: float) -> Node:
    return c.b(ops.clamp, x, c.number(-limit, x), c.number(limit, x)) if limit > 0 else x
