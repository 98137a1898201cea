"""The pass ``even-sums``: products whose sums matrix registers don't take whole are filled up with zeros.

In: a graph whose contractions read bf16 or bytes. Out: the same sums, of a few terms more that are zero on both sides.
Not its business: registers and their blocks (``choose.strategies.tiles``).

An instruction on matrix registers takes a number of pairs, or of fours, from each row of its operands, and masks
nothing. A sum that has no such divisor, three channels of an image by seven columns of a window, is left to vectors,
which take many times as long. With a fourth channel of zeros it is one instruction a row of the window. The terms are
zero in both operands, so that a NaN beside them spreads nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, prod
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_known, known
from tilewright.core.estimates import ASSUMED_SIDE, ASSUMED_SIZE, DOUBT, PASSED_CYCLES
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.graph.facts import array_of
from tilewright.target.target import Target
from tilewright.target.tiles import UNITS, TileUnit, unit_for


@dataclass(frozen=True)
class EvenSums(Pass):
    """Pads the channels of a convolution, or the terms of a product, and its constant weights.

    It fires where modelled cycles of the padded form, the copy of what a call brings included, are fewer than those of
    the form as it is, on matrix registers or on vectors. It does not fire on convolutions in groups, nor where weights
    are no constant or terms are of unknown number, nor on types that none of ``units`` (``target.tiles``) multiplies.
    ``lanes`` is the number of f32 in a vector, ``groups`` how many vectors of pairs or fours are multiplied in a cycle.
    """

    name: ClassVar[str] = "even-sums"
    units: tuple[str, ...] = ()
    lanes: int = 16
    groups: float = 2.0

    @staticmethod
    def on(target: Target) -> tuple[EvenSums, ...]:
        """The pass for a machine, where it has such registers."""
        units = tuple(unit.name for unit in target.tile_units)
        return (EvenSums(units, target.lanes(types.f32), target.fmas_per_cycle),) if units else ()

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def padded(b: Rewriting, node: Node) -> Node | None:
            return _padded(b, node, self)

        why = "zeros on both sides add nothing"
        return rewrite(graph, RuleTable([Rule("even-sums", (ops.conv, ops.matmul), padded, why)]), journal)


@dataclass(frozen=True)
class _SumShape:
    """``n`` terms follow each other in memory, ``times`` in a row, and this ``taps`` times; for ``rows`` by ``columns``
    results, of ``elements`` that a call brings."""

    n: int
    times: int
    taps: int
    rows: float
    columns: int
    elements: float


def _padded(b: Rewriting, node: Node, options: EvenSums) -> Node | None:
    x, w = node.inputs[:2]
    unit = unit_for((UNITS[name] for name in options.units), x.dtype, w.dtype)
    if w.op is not CONST or unit is None:
        return None
    sums = _of_convolution(node) if node.op is ops.conv else _of_product(node)
    if sums is None:
        return None
    lies = min(_on_registers(sums, sums.n, unit, options), _on_vectors(sums, unit, options))
    found = {n: _on_registers(sums, n, unit, options) for n in range(sums.n + 1, sums.n + unit.depth + 1)}
    best = min(found, key=lambda n: found[n])
    if found[best] >= lies * (1 - DOUBT):
        return None
    weights, axis = array_of(w), 1 if node.op is ops.conv else 0
    assert weights is not None
    behind = [(0, 0)] * weights.ndim
    behind[axis] = (0, best - sums.n)
    pads = ((0, 0),) * (x.type.rank - 1) + ((0, best - sums.n),)
    wide = b(ops.pad, x, b.const(np.zeros((), x.dtype.numpy)), pads=pads, mode="constant")
    return b(node.op, wide, b.const(np.pad(weights, behind)), *node.inputs[2:], **node.attrs)


def _of_convolution(node: Node) -> _SumShape | None:
    (x, w), a = node.inputs[:2], node.attrs
    n_out, n_in, *taps = w.shape
    if a["groups"] != 1 or a["layout"] != "NHWC" or not is_known(n_in) or not is_known(n_out):
        return None
    sizes = [known(d, 1) for d in taps]
    times = sizes.pop() if a["dilations"][-1] == 1 else 1
    rows = _estimate(node.shape[:-1], ASSUMED_SIDE)
    return _SumShape(n_in, times, prod(sizes), rows, n_out, _estimate(x.shape[:-1], ASSUMED_SIDE))


def _of_product(node: Node) -> _SumShape | None:
    x, w = node.inputs[:2]
    if w.type.rank != 2 or x.type.rank < 2 or not is_known(w.shape[0]) or not is_known(w.shape[1]):
        return None
    rows = _estimate(x.shape[:-1], ASSUMED_SIZE)
    return _SumShape(w.shape[0], 1, 1, rows, w.shape[1], rows)


def _estimate(shape: tuple[Dim, ...], size: int) -> float:
    return float(prod(known(d, size) for d in shape))


def _on_registers(sums: _SumShape, n: int, unit: TileUnit, options: EvenSums) -> float:
    """Cycles with ``n`` terms in place of those that there are; infinite where no instruction takes them."""
    terms = n * sums.times
    depth = unit.steps_at_once(terms)
    if not depth:
        return inf
    steps = sums.taps * terms / depth
    moved = 0.0 if n == sums.n else sums.elements * ceil(n / options.lanes) * PASSED_CYCLES
    return ceil(sums.rows / unit.rows) * ceil(sums.columns / unit.columns) * steps * unit.cycles + moved


def _on_vectors(sums: _SumShape, unit: TileUnit, options: EvenSums) -> float:
    groups = sums.taps * ceil(sums.n * sums.times / unit.group)
    return sums.rows * ceil(sums.columns / options.lanes) * groups / options.groups
