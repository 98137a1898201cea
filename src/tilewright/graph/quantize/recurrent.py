"""Recurrences taken apart, so that their products are products like others: of the inputs, and of the state.

In: a graph with LSTM, GRU or RNN layers. Out: a graph with a matrix product for the inputs of all steps, and a scan
over time that multiplies its state. Not its business: in which bits they multiply (``weights``, ``rows``, ``insert``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import INPUT, Graph, Node, topological
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.facts import array_of
from tilewright.graph.forms.scans import SCANS

RECURRENT = (ops.lstm, ops.gru, ops.rnn)
STORED_FORMS = (ops.dequantize_linear, ops.decode, ops.cast, ops.transpose)
"""What constants of few bits are behind, and views of them: these are not made larger before products are found."""


def why_whole(node: Node) -> str:
    """Why a recurrence is not taken apart; empty for one whose weights may be stored in fewer bits."""
    if node.inputs[0].dtype is not types.f32:
        return f"it computes in {node.inputs[0].dtype}, and only f32 is quantised"
    if any(x.op is INPUT for x in topological(list(node.inputs[1:3]))):
        return "its weights are made by the call"
    return ""


def opened(graph: Graph, is_asked: Callable[[Node], bool] = lambda node: True, journal: Journal | None = None) -> Graph:
    """The graph with recurrences in f32 by known weights as products and scans, those that ``is_asked`` of."""

    def apart(b: Rewriting, node: Node) -> Node | tuple[Node, ...] | None:
        if why_whole(node) or not is_asked(node):
            return None
        assert node.op.decompose is not None
        return node.op.decompose(b, node.inputs, node.attrs)

    why = "a recurrence is its definition"
    return rewrite(graph, RuleTable([Rule("open-recurrence", RECURRENT, apart, why)]), journal)


@dataclass(frozen=True)
class OpenRecurrences(Pass):
    """``lstm``, ``gru`` and ``rnn`` of f32 by known weights become a product and a scan for each direction.

    It does not fire on other dtypes, and on weights that the call makes.
    """

    name: ClassVar[str] = "open-recurrences"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return opened(graph, journal=journal)


OPENING: tuple[Pass, ...] = (OpenRecurrences(), FoldConstants(kept=tuple(op.name for op in STORED_FORMS)))
"""What finds the weights of recurrences before they are stored in few bits."""


def state_weights(node: Node) -> Array | None:
    """The recurrent weights f32[hidden, gates * hidden] of a scan that may multiply other ones; None of other nodes."""
    if node.op not in SCANS or node.attrs["panel"] or node.attrs["behind"] or node.inputs[0].dtype is not types.f32:
        return None
    return matrix_of(node.inputs[1])


def matrix_of(w: Node) -> Array | None:
    """A constant f32[K, N], or a view of the constant that it is transposed from; None of others."""
    is_turned = w.op is ops.transpose
    array = array_of(w.inputs[0] if is_turned else w)
    if array is None or array.ndim != 2 or array.dtype != np.float32:
        return None
    return array.T if is_turned else array
