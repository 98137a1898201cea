"""The pass ``share-phases``: a transposed convolution's phases share Winograd's points where that is faster.

In: a graph whose transposed convolutions are channels-last composites. Out: the same function within the error that
``winograd`` allows. Not its business: those where it does not pay, which stay for ``decompose``; what the points
are (``ops.winograd``).

Where the stride does not divide the kernel, some phases see a tap more than others. Each kind of phase by itself is a
convolution without a product too many; all of them together, with zeros for the missing taps, read and transform the
input once and leave their results beside each other. Only tiles make the zeros cheap, and infinities spread in tiles
anyway (``docs/promises.md``); in a plain sum a zero would turn them into NaN, so that there the kinds stay apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import known, numbers
from tilewright.core.estimates import ASSUMED_SIDE
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.graph.forms.winograd import Tiling, Winograd, best_tiling, convolution_cycles
from tilewright.ops.convolution import PhaseKind, by_phases, phases_apart, phases_together
from tilewright.target.target import Target


@dataclass(frozen=True)
class SharePhases(Pass):
    """Rewrites transposed convolutions to one tiled convolution for all phases.

    It does not fire where the kinds of phases apart are modelled as fast, nor where the stride divides the kernel, so
    that there is one kind, nor where it is larger, so that some phases have zeros alone. Otherwise as ``Winograd``,
    whose options it has.
    """

    name: ClassVar[str] = "share-phases"
    lanes: int = 16
    per_lane: int = 1
    max_error: float = 1e-5
    cache_bytes: float = 8.0
    memory_bytes: float = 4.5
    pairs: int = 0
    block_bytes: int = 1 << 19

    @staticmethod
    def on(target: Target, per_lane: int) -> SharePhases:
        """The pass for a machine."""
        return SharePhases(**asdict(Winograd.on(target, per_lane)))

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        options = Winograd(**asdict(self))
        why = "the same sums by interpolation, within the error of f32"
        rule = Rule("share-phases", (ops.conv_transpose,), lambda b, node: _together(b, node, options), why)
        return rewrite(graph, RuleTable([rule]), journal)


def _together(b: Rewriting, node: Node, options: Winograd) -> Node | None:
    shared = _shared(b, node, options)
    if shared is None or shared.cycles >= _cycles_apart(b, node, options):
        return None
    (x, w), a = node.inputs, node.attrs
    return by_phases(b, x, w, a, phases_together(w.shape[2:], a.strides), lambda *_, **__: shared.made())


def _shared(b: Rewriting, node: Node, options: Winograd) -> Tiling | None:
    """The tiles of all phases together; None where those are one kind anyway, or no tile is precise enough."""
    w, a = node.inputs[1], node.attrs
    if w.op is not CONST or any(d != 1 for d in a.dilations) or max(a.strides) == 1:
        return None
    together = phases_together(w.shape[2:], a.strides)
    if phases_apart(w.shape[2:], a.strides) == together:
        return None
    if any(s > k for s, k in zip(a.strides, numbers(w.shape[2:]), strict=True)):
        return None
    return best_tiling(b, _convolutions(b, node, together).pop(), options)


def _cycles_apart(b: Rewriting, node: Node, options: Winograd) -> float:
    apart = phases_apart(node.inputs[1].shape[2:], node.attrs.strides)
    n_joined = sum(len(kinds) > 1 for kinds in apart)
    alone = sum(convolution_cycles(b, conv, options) for conv in _convolutions(b, node, apart))
    return alone + _moved(node, n_joined + 1, options)


def _convolutions(b: Rewriting, node: Node, kinds: list[list[PhaseKind]]) -> list[Node]:
    """Those that make the phases of these kinds, with weights that are known."""
    (x, w), a = node.inputs, node.attrs
    made: list[Node] = []

    def noted(x: Node, weights: Node, **attrs: Any) -> Node:
        made.append(b(ops.conv, x, b.const(_value(weights)), **attrs))
        return made[-1]

    by_phases(b, x, w, a, kinds, noted)
    return made


def _moved(node: Node, n_times: int, options: Winograd) -> float:
    """Modelled cycles in which results are read and written ``n_times``: joined along each axis, then in turns."""
    size = prod(known(d, ASSUMED_SIDE) for d in node.shape[1:])
    batch = known(node.shape[0], 1)
    return 2 * 4 * n_times * batch * size / options.cache_bytes


def _value(node: Node) -> Array:
    """What a node computes from constants."""
    if node.op is CONST:
        found: Array = node.attrs["data"].array
        return found
    return np.asarray(node.op.reference([_value(i) for i in node.inputs], node.attrs))
