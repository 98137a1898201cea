"""The pass ``precision``: products, convolutions and recurrences read bf16, everything else stays in f32.

In: a graph in f32. Out: the same function with operands of contractions rounded to bf16, and the recurrent weights of
scans over time, whose kernels then round the state that they multiply; sums, their results and all
other arithmetic stay in f32. Not its business: how pairs of bf16 are multiplied (``choose.strategies.dots``), models
whose tensors are bf16 already: those compute as they say.

Where values are rounded: weights at compile time; any other operand where it is made, so that the conversion ends the
kernel that makes it. A value is rounded once: its other readers read the rounded one too, and widen it. Values that no
product reads are never rounded: sums along a residual stream in front of norms, scores and sums of softmax, results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_known, known_under
from tilewright.core.estimates import COPIED_LANES, COPIED_ROWS
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, INPUT, PROJ, Builder, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal
from tilewright.core.types import Array
from tilewright.graph.forms.scans import SCANS

FULL_GROUP = 2 * COPIED_LANES
"""Below so many members of a group they are worth it only where they fill what vectors they take."""
EXACT = (ops.max_pool,)
"""Ops that give the same whether their operand or their result is rounded, besides movements."""


@dataclass(frozen=True)
class Precision(Pass):
    """Gives each contraction of f32 operands bf16 operands and an f32 result.

    And each scan over time bf16 recurrent weights. It does not fire on: contractions without an ``out_dtype``;
    depthwise convolutions and other sums of fewer than ``COPIED_LANES`` products, or results of as few columns, states
    or channels (in each of several groups: other than ``COPIED_LANES`` and fewer than ``FULL_GROUP``); products of
    fewer than ``COPIED_ROWS`` rows by what is no constant (a query by the keys of a cache); convolutions with weights
    that are no constant, which no kernel reads in pairs;
    scans whose weights are no constant; other dtypes. A result of the graph, or of an op with several results, is
    rounded for the product alone. Sub-graphs get a pass of their own.
    """

    name: ClassVar[str] = "precision"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        chosen = {n for n in graph.nodes() if _pays(n) or _is_narrow_scan(n)}
        if not chosen:
            return graph
        if journal is not None:
            journal += [Fired(self.name, n.op.name, n.loc) for n in graph.nodes() if n in chosen]
        return _Rounding(graph, chosen).run()


def _pays(node: Node) -> bool:
    if Trait.CONTRACTION not in node.op.traits or "out_dtype" not in node.attrs:
        return False
    if node.dtype is not types.f32 or any(i.dtype is not types.f32 for i in node.inputs):
        return False
    depth, lanes = _depth_and_lanes(node)
    is_window = "groups" in node.attrs
    if not _has_constant(node) and (is_window or not _at_least(node.inputs[0].shape[-2], COPIED_ROWS)):
        return False
    if node.attrs.get("groups", 1) != 1 and not (_at_least(lanes, FULL_GROUP) or lanes == COPIED_LANES):
        return False
    return _at_least(depth, COPIED_LANES) and _at_least(lanes, COPIED_LANES)


def _has_constant(node: Node) -> bool:
    return any(i.op is CONST for i in node.inputs)


def _is_narrow_scan(node: Node) -> bool:
    """Is it a recurrence in f32 whose weights are a constant with sums that are worth it?"""
    if node.op not in SCANS or node.attrs["panel"]:
        return False
    weights = node.inputs[_recurrent_weights(node)]
    return weights.op is CONST and weights.dtype is types.f32 and _at_least(weights.shape[0], COPIED_LANES)


def _recurrent_weights(scan: Node) -> int:
    """Which operand they are; the state before the first step may be the same constant."""
    return scan.op.operands.index("rt")


def _depth_and_lanes(node: Node) -> tuple[Dim, Dim]:
    """The length of a sum over neighbours, and of the axis of results that can be lanes."""
    left, right = node.inputs
    if "groups" not in node.attrs:
        return left.shape[-1], node.shape[-1]
    groups, channels = node.attrs["groups"], right.shape[0]
    depth = right.shape[1]
    if groups == 1 and is_known(depth) and is_known(right.shape[-1]):
        return depth * right.shape[-1], channels
    return depth, channels // groups if is_known(channels) else channels


def _at_least(n: Dim, least: int) -> bool:
    return not known_under(n, least)


class _Rounding:
    """One run over a graph: each node in f32 (``wide``) and, where a product reads it, in bf16 (``narrow``)."""

    def __init__(self, graph: Graph, chosen: set[Node]) -> None:
        self.graph, self.chosen = graph, chosen
        self.exact: dict[Node, Node] = {}
        self.narrow: dict[Node, Node] = {}
        self.wide: dict[Node, Node] = {}
        self.held = self._held()

    def run(self) -> Graph:
        for node in self.graph.nodes():
            if node in self.held:
                self.narrow[node] = self._rounded(node)
                self.wide[node] = Builder(self.graph.pool, node.loc)(ops.cast, self.narrow[node], dtype=types.f32)
            else:
                self.wide[node] = self._rebuilt(node)
        return self.graph.with_outputs([self.wide[n] for n in self.graph.outputs])

    def _held(self) -> set[Node]:
        """The values that exist in bf16 only: operands of products, and what they are moved from."""
        outputs = set(self.graph.outputs)
        held: set[Node] = set()
        stack = [i for n in self.chosen if n.op not in SCANS for i in n.inputs]
        while stack:
            node = stack.pop()
            if node in held or node in outputs or node.op in (INPUT, CONST, PROJ):
                continue
            held.add(node)
            if self._is_moved(node):
                stack.extend(i for i in node.inputs if i.dtype is types.f32)
        return held

    def _is_moved(self, node: Node) -> bool:
        """Does rounding what the node reads do?  Inputs of the graph are moved first, and rounded on the way."""
        moves = Trait.MOVEMENT in node.op.traits or node.op in EXACT
        return moves and len(node.types) == 1 and all(i.op is not INPUT for i in node.inputs)

    def _rounded(self, node: Node) -> Node:
        b = Builder(self.graph.pool, node.loc)
        if not self._is_moved(node):
            return b(ops.cast, self._rebuilt(node), dtype=types.bf16)
        operands = [self._operand(i) if i.dtype is types.f32 else self.wide[i] for i in node.inputs]
        return b(node.op, *operands, **node.attrs)

    def _rebuilt(self, node: Node) -> Node:
        """The node over new operands; a chosen product over rounded ones."""
        b = Builder(self.graph.pool, node.loc)
        if node in self.chosen and node.op in SCANS:
            at = _recurrent_weights(node)
            operands = [self._operand(x) if k == at else self.wide[x] for k, x in enumerate(node.inputs)]
            return b(node.op, *operands, **node.attrs)
        if node in self.chosen:
            return b(node.op, *map(self._operand, node.inputs), **{**node.attrs, "out_dtype": types.f32})
        operands = [self.wide[i] for i in node.inputs]
        if all(a is i for a, i in zip(operands, node.inputs, strict=True)):
            return node
        return b(node.op, *operands, **node.attrs)

    def _operand(self, node: Node) -> Node:
        if node not in self.narrow:
            b = Builder(self.graph.pool, node.loc)
            if node.op is CONST:
                self.narrow[node] = b.const(rounded_array(node.attrs["data"].array))
            else:
                self.narrow[node] = b(ops.cast, self.wide[node], dtype=types.bf16)
        return self.narrow[node]


def rounded_array(array: Array) -> Array:
    """An f32 array as bf16, to nearest even."""
    with np.errstate(all="ignore"):
        return array.astype(types.bf16.numpy)
