"""The pass ``few-taps``: taps of a convolution that never see the image are dropped, and one tap is a multiplication.

In: a graph. Out: an equal graph. Not its business: taps that some results see and others don't
(``choose.strategies.padding``), layouts (``layout``).

Of a 3x3 kernel with padding on an image of one pixel, only the middle tap ever meets it: a ninth of the products. A
kernel of one tap that mixes no channels is a scale for each channel, and one that reads a single channel is an outer
product: both are arithmetic, in any layout, where a convolution would want channels last.
``docs/choices.md`` ("Layers that were behind") has what it is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite


@dataclass(frozen=True)
class FewTaps(Pass):
    """``conv(x, w)`` with taps in the padding becomes one with fewer, zeros with none, and with one tap ``mul(x, w)``.

    It fires on constant weights. Taps are dropped at the ends of an axis of known size, for any stride and dilation.
    A multiplication it is where a result is one product: one tap, no padding, and a channel of its own or the only one.
    It does not fire on integers, on narrow operands of wide sums, and on kernels whose every tap sees the image.
    """

    name: ClassVar[str] = "few-taps"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


def _drop_taps(b: Rewriting, node: Node) -> Node | None:
    """The kernel between the first and the last tap that meets an element of the image at any result."""
    (x, w), a, n_spatial = node.inputs, node.attrs, node.type.rank - 2
    if w.op is not CONST or 0 in node.shape:
        return None
    first = 1 if a["layout"] == "NHWC" else 2
    kept, pads = [], []
    for k in range(n_spatial):
        size, n, taps = x.shape[first + k], node.shape[first + k], w.shape[2 + k]
        (lo, hi), stride, dilation = a["pads"][k], a["strides"][k], a["dilations"][k]
        assert is_known(taps)
        seen = range(taps)
        if is_known(size) and is_known(n) and is_known(lo):
            met = [t for t in range(taps) if _meets(t * dilation - lo, stride, n, size)]
            if not met:
                return b(ops.expand, b.const(0, node.dtype), shape=node.shape)
            seen = range(met[0], met[-1] + 1)
        kept.append(slice(seen.start, seen.stop))
        pads.append((lo - seen.start * dilation, hi - (taps - seen.stop) * dilation))
    if pads == list(a["pads"]):
        return None
    weights = np.ascontiguousarray(w.attrs["data"].array[(slice(None), slice(None), *kept)])
    return b(ops.conv, x, b.const(weights), **{**a, "pads": pads})


def _meets(start: int, stride: int, n: int, size: int) -> bool:
    """Is one of ``start``, ``start + stride``, ... (``n`` of them) in an axis of ``size`` elements?"""
    at = max(-(start // stride), 0)  # the first that is not before the axis
    return at < n and start + at * stride < size


def _product(b: Rewriting, node: Node) -> Node | None:
    """``x * w``, of every ``stride``-th element."""
    (x, w), a, rank = node.inputs, node.attrs, node.type.rank
    if w.op is not CONST or not node.dtype.is_float or x.dtype is not node.dtype or w.dtype is not node.dtype:
        return None
    channel = 1 if a["layout"] == "NCHW" else rank - 1
    is_scale = a["groups"] == x.shape[channel] == node.shape[channel]
    if set(w.shape[1:]) != {1} or any(p != (0, 0) for p in a["pads"]) or not (is_scale or x.shape[channel] == 1):
        return None
    if set(a["strides"]) != {1}:
        steps = [1, 1, *a["strides"]] if channel == 1 else [1, *a["strides"], 1]
        stops = [size if s == 1 else (n - 1) * s + 1 for size, n, s in zip(x.shape, node.shape, steps, strict=True)]
        x = b(ops.slice, x, starts=[0] * rank, stops=stops, steps=steps)
    shape = [1] * rank
    shape[channel] = -1
    return b(ops.mul, x, b.const(np.ascontiguousarray(w.attrs["data"].array.reshape(shape))))


RULES = RuleTable(
    [
        Rule("drop-taps", (ops.conv,), _drop_taps, "padding counts as 0"),
        Rule("one-product", (ops.conv,), _product, "a sum of one product is that product"),
    ]
)
