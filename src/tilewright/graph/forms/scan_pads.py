"""Recurrences with more hidden units than they need, all zero, so that their number divides (``scan_panels``).

In: operands of a plain scan. Out: those of one with so many units; its results without the units that were added. Not
its business: how many, and what the scan does with its weights.

The added units have no weights, biases or states, so their projected inputs are 0 at every step, and what they become
multiplies rows of zeros: it must only stay finite (``keeps_zeros``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core.expr import floordiv
from tilewright.core.graph import CONST, Builder, Node
from tilewright.core.types import Array
from tilewright.ops.cells import activations
from tilewright.ops.recurrence import GRU_DEFAULTS, LSTM_DEFAULTS, RNN_DEFAULTS

BOUNDED = {"Sigmoid", "Tanh", "ScaledTanh", "HardSigmoid", "Softsign"}
DEFAULTS = {ops.lstm_scan: LSTM_DEFAULTS, ops.gru_scan: GRU_DEFAULTS, ops.rnn_scan: RNN_DEFAULTS}


def keeps_zeros(scan: Node) -> bool:
    """Do all units stay finite, however many steps there are: those without weights, and those that zeros multiply?

    A cell adds its candidate to what it keeps at every step, so that must be 0 for 0 (``Sigmoid`` is not); a simple RNN
    keeps nothing. Other functions may grow without bound (``Relu``). States that come in are taken as finite.
    """
    functions = activations(scan.attrs, DEFAULTS[scan.op])
    names = scan.attrs["activations"] or DEFAULTS[scan.op]
    candidate = functions[1:2]
    return BOUNDED.issuperset(names) and all(not f.array(np.zeros(1, np.float32)).any() for f in candidate)


@dataclass(frozen=True)
class Padding:
    """Fills up groups of ``hidden`` elements, side by side along the last axis, with zeros to ``units``.

    ``new`` has what stands for a node of the graph by now, ``reads`` how often it is read: what a scan alone reads
    becomes wider by wider constants, not by a copy.
    """

    b: Builder
    new: Mapping[Node, Node]
    reads: Mapping[Node, int]
    hidden: int
    units: int

    def weights(self, rt: Array) -> Array:
        """Recurrent weights ``[hidden, gates * hidden]``."""
        return np.pad(self.array(rt), ((0, self.units - self.hidden), (0, 0)))

    def array(self, x: Array) -> Array:
        apart = x.reshape(*x.shape[:-1], -1, self.hidden)
        wide = np.pad(apart, [(0, 0)] * x.ndim + [(0, self.units - self.hidden)])
        return wide.reshape(*x.shape[:-1], -1)

    def operand(self, x: Node) -> Node:
        b, lone = self.b, self.reads[x] <= 1
        if x.op is CONST:
            return b.const(self.array(x.attrs["data"].array))
        if lone and x.op is ops.matmul and x.inputs[1].op is CONST and x.inputs[1].type.rank == 2:
            return b(x.op, self.new[x.inputs[0]], self.operand(x.inputs[1]), **x.attrs)
        if lone and x.op is ops.add and all(i.shape and i.shape[-1] == x.shape[-1] for i in x.inputs):
            return b(x.op, *map(self.operand, x.inputs), **x.attrs)
        if lone and x.op is ops.reshape and x.inputs[0].shape and x.inputs[0].shape[-1] == x.shape[-1]:
            inner = self.operand(x.inputs[0])
            return b(x.op, inner, shape=(*x.shape[:-1], inner.shape[-1]))
        n_groups = floordiv(x.shape[-1], self.hidden)
        apart = b(ops.reshape, self.new[x], shape=(*x.shape[:-1], n_groups, self.hidden))
        pads = ((0, 0),) * x.type.rank + ((0, self.units - self.hidden),)
        wide = b(ops.pad, apart, b.const(0, x.dtype), pads=pads)
        return b(ops.reshape, wide, shape=(*x.shape[:-1], n_groups * self.units))

    def result(self, x: Node) -> Node:
        """A result of the padded scan without the units that were added."""
        stops = (*x.shape[:-1], self.hidden)
        return self.b(ops.slice, x, starts=(0,) * len(stops), stops=stops, steps=(1,) * len(stops))
