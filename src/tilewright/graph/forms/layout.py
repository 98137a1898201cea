"""The pass ``layout``: channels last around convolutions, with as few transposes as possible.

In: a graph whose convolutions and pools are N, C, spatial. Out: the same function, with them as N, spatial, C; weights
stay O, I, spatial, since packing them is the kernel's business. Not its business: the layout of matrices.

How: every such op gets a transpose before and one after. Those after are pushed down through element-wise ops,
reductions, joins, windows and reshapes, whose attributes are permuted, until one meets the transpose before the next
convolution and both vanish. An element-wise op of several large operands is crossed when most of them come from such a
transpose, or when its result is transposed the other way. In ResNet-50 one transpose is left: the input's.

Of a model's own transposes those are moved that bring the last axis to the second place, as tokens become an image;
others stay, or cancel where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import known_at_least
from tilewright.core.estimates import COPIED_LANES, COPIED_ROWS, OUTWEIGHING
from tilewright.core.expr import Dim, ceildiv
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import OpDef, Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.shapes import reshape_groups
from tilewright.core.types import product
from tilewright.graph.canonical.movement import REDUCTIONS
from tilewright.graph.facts import ELEMENTWISE, inverse

Perm = tuple[int, ...]
CONVOLUTIONS = (ops.conv, ops.conv_transpose)
WINDOWS = (*CONVOLUTIONS, ops.max_pool, ops.avg_pool)
ALONG_AXIS = (
    ops.softmax, ops.log_softmax, ops.cumsum, ops.cumprod, ops.cummax, ops.cummin, ops.l2_normalize, ops.batch_norm,
    ops.group_norm, ops.quantize_linear, ops.dequantize_linear,
)  # fmt: skip
ALONG_AXES = (ops.roll, ops.reverse)
PER_AXIS: dict[OpDef, tuple[str, ...]] = {
    ops.pad: ("pads",),
    ops.slice: ("starts", "stops", "steps"),
    ops.tile: ("repeats",),
    ops.resize: ("sizes", "scales"),
}


def to_last(rank: int) -> Perm:
    """N, C, spatial to N, spatial, C."""
    return (0, *range(2, rank), 1)


def moved(values: Sequence[Any], perm: Perm) -> tuple[Any, ...]:
    """An entry per axis of ``transpose(y, perm)`` as an entry per axis of ``y``."""
    result = [None] * len(perm)
    for k, p in enumerate(perm):
        result[p] = values[k]
    return tuple(result)


class Transposes:
    """The transposes that one run of the pass made, the nodes that they crossed, and the rules that move them."""

    def __init__(self) -> None:
        self.made: set[Node] = set()
        self.placed: set[Node] = set()

    def transposed(self, b: Rewriting, x: Node, perm: Perm) -> Node:
        """``transpose(x, perm)``, composed with a transpose below it; constants are moved at once."""
        if x.op is ops.transpose:
            perm = tuple(x.attrs["perm"][p] for p in perm)
            x = x.inputs[0]
        if perm == tuple(range(len(perm))):
            return x
        if x.op is CONST:
            return b.const(np.ascontiguousarray(np.transpose(x.attrs["data"].array, perm)))
        node = b(ops.transpose, x, perm=perm)
        self.made.add(node)
        return node

    def source(self, x: Node) -> tuple[Node, Perm] | None:
        """``(y, perm)`` when ``x`` is a transpose of ``y`` that this pass made."""
        return (x.inputs[0], x.attrs["perm"]) if x.op is ops.transpose and x in self.made else None

    # --- rules

    def window(self, b: Rewriting, node: Node) -> Node | None:
        """Channels last, between two transposes."""
        rank = node.type.rank
        if node.attrs["layout"] != "NCHW" or self.stays(node):
            return None
        x = self.transposed(b, node.inputs[0], to_last(rank))
        y = b(node.op, x, *node.inputs[1:], **{**node.attrs, "layout": "NHWC"})
        return self.transposed(b, y, inverse(to_last(rank)))

    def stays(self, node: Node) -> bool:
        """Is it a large convolution to few channels of an image that is not channels last anyway?

        Channels would leave lanes idle, while the columns of the result fill them. A transposed one is a convolution
        to the channels of all phases.
        """
        if node.op not in CONVOLUTIONS or node.attrs["groups"] != 1:
            return False
        x, w = node.inputs[:2]
        n, columns, depth, strides = w.shape[0], node.shape[-1], product(w.shape[1:]), node.attrs["strides"]
        if node.op is ops.conv_transpose:
            taps = product([ceildiv(k, s) for k, s in zip(w.shape[2:], strides, strict=True)])
            n, columns, depth = w.shape[1] * product(strides), x.shape[-1], w.shape[0] * taps
        elif set(strides) != {1}:
            return False
        wide = known_at_least(columns, COPIED_ROWS)
        few, deep = n in range(1, COPIED_LANES + 1), known_at_least(depth, OUTWEIGHING)
        return wide and few and deep and x.dtype in (types.f32, types.f64) and self.source(x) is None

    def compose(self, b: Rewriting, node: Node) -> Node | None:
        """A transpose of one that this pass made, and the other way round."""
        x, perm = node.inputs[0], node.attrs["perm"]
        if x.op is ops.transpose and (x in self.made or node in self.made):
            return self.transposed(b, x, perm)
        if perm == inverse(to_last(len(perm))):  # as a model itself goes from tokens back to an image
            self.made.add(node)
        return self.hoist(b, node)

    def hoist(self, b: Rewriting, node: Node) -> Node | None:
        """A transpose of an element-wise op goes above it when that leaves fewer: some cancel there."""
        x, perm = node.inputs[0], node.attrs["perm"]
        if node not in self.made or x.op not in ELEMENTWISE_SET or not b.read_once(x):
            return None
        n_cancelling, n_others = self.count(x.inputs, inverse(perm))
        if n_cancelling == 0 or n_others > n_cancelling:
            return None
        moved_up = [self.operand(b, i, perm) for i in x.inputs]
        made = b.at(x.loc)(x.op, *moved_up, **x.attrs)
        self.placed.add(made)
        return made

    def operand(self, b: Rewriting, x: Node, perm: Perm) -> Node:
        """A broadcast operand of an element-wise op, transposed as the result is."""
        if product(x.shape) == 1 and not self.source(x):
            return x
        missing = len(perm) - x.type.rank
        if missing:
            array = x.attrs["data"].array if x.op is CONST else None
            shape = (*[1] * missing, *x.shape)
            x = (
                b(ops.reshape, x, shape=shape)
                if array is None
                else b.const(array.reshape([1] * missing + [*array.shape]))
            )
        return self.transposed(b, x, perm)

    def elementwise(self, b: Rewriting, node: Node) -> Node | None:
        """f(T(x), T(y)) is T(f(x, y)); constants and vectors along one axis cost nothing to move."""
        perm = self.crossing(node)
        if perm is None:
            return None
        operands = [self.operand(b, i, inverse(perm)) for i in node.inputs]
        return self.crossed(b, b(node.op, *operands, **node.attrs), perm)

    def crossing(self, node: Node) -> Perm | None:
        """The transpose of most large operands, if taking it below ``node`` leaves fewer of them.

        A node that a transpose has crossed is crossed again only when every large operand is transposed: so each
        crossing makes progress.
        """
        found = [i for i in node.inputs if self.source(i) and i.type.rank == node.type.rank]
        if not found:
            return None
        perm: Perm = next((i for i in found if not self.is_free(i, i.attrs["perm"])), found[0]).attrs["perm"]
        n_ours, n_others = self.count(node.inputs, perm)
        if node in self.placed and (n_others or not n_ours):
            return None
        return None if n_others and n_others >= n_ours else perm

    def crossed(self, b: Rewriting, node: Node, perm: Perm) -> Node:
        self.placed.add(node)
        return self.transposed(b, node, perm)

    def count(self, operands: Sequence[Node], perm: Perm) -> tuple[int, int]:
        """How many operands that it costs to transpose are this pass's transposes by ``perm``, and how many are not."""
        costly = [i for i in operands if not self.is_free(i, perm)]
        n_ours = sum((s := self.source(i)) is not None and s[1] == perm for i in costly)
        return n_ours, len(costly) - n_ours

    def is_free(self, x: Node, perm: Perm) -> bool:
        """Does moving the operand copy nothing at run time?"""
        if x.op is CONST:
            return True
        shape = (1,) * (len(perm) - len(x.shape)) + x.shape
        order = [p for p in inverse(perm) if shape[p] != 1]
        return len(order) < 2 or order == sorted(order)

    def reduce(self, b: Rewriting, node: Node) -> Node | None:
        found = self.source(node.inputs[0])
        if not found:
            return None
        y, perm = found
        axes, keepdims = node.attrs["axes"], node.attrs["keepdims"]
        result = b(node.op, y, **{**node.attrs, "axes": sorted(perm[a] for a in axes)})
        if keepdims:
            return self.transposed(b, result, perm)
        kept = [p for k, p in enumerate(perm) if k not in axes]
        return self.transposed(b, result, tuple(sorted(kept).index(p) for p in kept))

    def along_axis(self, b: Rewriting, node: Node) -> Node | None:
        found = self.source(node.inputs[0])
        if not found or node.attrs.get("block_size"):  # scales by blocks lie along all axes
            return None
        y, perm = found
        result = b(node.op, y, *node.inputs[1:], **{**node.attrs, "axis": perm[node.attrs["axis"]]})
        return self.transposed(b, result, perm)

    def along_axes(self, b: Rewriting, node: Node) -> Node | None:
        """Ops that move elements along some axes, each by itself."""
        found = self.source(node.inputs[0])
        if not found:
            return None
        y, perm = found
        return self.transposed(b, b(node.op, y, **{**node.attrs, "axes": [perm[k] for k in node.attrs["axes"]]}), perm)

    def per_axis(self, b: Rewriting, node: Node) -> Node | None:
        """Ops with an attribute entry per axis: the entries move along; a region of interest stays where it is."""
        found = self.source(node.inputs[0])
        if not found or node.attrs.get("roi"):
            return None
        y, perm = found
        names = PER_AXIS[node.op]
        attrs = {k: moved(v, perm) if k in names and len(v) == len(perm) else v for k, v in node.attrs.items()}
        return self.transposed(b, b(node.op, y, *node.inputs[1:], **attrs), perm)

    def concat(self, b: Rewriting, node: Node) -> Node | None:
        perm = self.crossing(node)
        if perm is None:
            return None
        operands = [self.transposed(b, i, inverse(perm)) for i in node.inputs]
        return self.crossed(b, b(ops.concat, *operands, axis=perm[node.attrs["axis"]]), perm)

    def reshape(self, b: Rewriting, node: Node) -> Node | None:
        """Dimensions that split or merge within runs that are neighbours in both orders."""
        found = self.source(node.inputs[0])
        if not found or any(d == 0 for d in node.shape):
            return None
        y, perm = found
        present = [k for k, d in enumerate(y.shape) if d != 1]
        runs: list[tuple[int, tuple[int, ...]]] = []
        for ins, outs in reshape_groups(node.inputs[0].shape, node.shape):
            if not ins or not outs:
                return None
            at = [present.index(perm[i]) for i in ins]
            if at != list(range(at[0], at[0] + len(at))):
                return None
            runs.append((at[0], outs))
        order = [k for _, outs in sorted(runs) for k in outs]
        order += [k for k in range(node.type.rank) if k not in order]
        shape: list[Dim] = [node.shape[k] for k in order]
        result = b(ops.reshape, y, shape=shape)
        return self.transposed(b, result, tuple(order.index(k) for k in range(node.type.rank)))

    def table(self) -> RuleTable:
        def rule(name: str, roots: tuple[OpDef, ...], apply: Callable[[Rewriting, Node], Node | None]) -> Rule:
            return Rule(name, roots, apply, "the axes are renamed everywhere")

        return RuleTable(
            (
                rule("channels-last", WINDOWS, self.window),
                rule("compose-transposes", (ops.transpose,), self.compose),
                rule("elementwise-under-transpose", ELEMENTWISE, self.elementwise),
                rule("reduce-under-transpose", REDUCTIONS, self.reduce),
                rule("axis-under-transpose", ALONG_AXIS, self.along_axis),
                rule("move-under-transpose", ALONG_AXES, self.along_axes),
                rule("window-under-transpose", tuple(PER_AXIS), self.per_axis),
                rule("concat-under-transpose", (ops.concat,), self.concat),
                rule("reshape-under-transpose", (ops.reshape,), self.reshape),
            )
        )


ELEMENTWISE_SET = frozenset(ELEMENTWISE)


@dataclass(frozen=True)
class Layout(Pass):
    """Makes convolutions and pools channels-last and cancels the transposes between them.

    It does not fire in a graph without convolutions and pools, and leaves pools that give indices (they count in N, C
    order), and ops bound to N, C, spatial.
    """

    name: ClassVar[str] = "layout"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        if not _has_window(graph):
            return graph
        return rewrite(graph, Transposes().table(), journal)


def _has_window(graph: Graph) -> bool:
    for n in graph.nodes():
        if n.op in WINDOWS:
            return True
        if Trait.CONTROL in n.op.traits and any(isinstance(v, Graph) and _has_window(v) for v in n.attrs.values()):
            return True
    return False
