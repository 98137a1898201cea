"""The pass ``tap-products``: a transposed convolution of an image in N, C order is one product, and sums of its taps.

In: a graph after ``layout``, whose transposed convolutions are whole. Out: an equal graph. Not its business: those
channels last, whose phases are convolutions (``share-phases``, ``ops.convolution.by_phases``); loops (``tile``).

Every element of the image, times the weights of every tap, is a product of matrices, ``(O * taps, C) @ (C, places)``,
whose lanes are places: no transpose brings the image in or the result back, and no lane is idle for want of channels.
Its rows then go to the places that the taps have in the result, where neighbours' overlap and are added up. That takes
as many multiplications as the phases do, and passes the results of all taps through memory once more; Winograd's form
of the phases takes fewer. Both are priced (``priced``). ``docs/choices.md`` ("Transposed convolutions") has measured
times.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as choices
from math import prod
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, numbers
from tilewright.core.expr import ceildiv, maximum
from tilewright.core.graph import CONST, Builder, Graph, Node
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import f32
from tilewright.graph.facts import inverse
from tilewright.graph.forms.layout import to_last
from tilewright.graph.forms.planes import arithmetic_above, as_they_came, is_moved
from tilewright.graph.forms.priced import PricedPass


@dataclass(frozen=True)
class TapProducts(PricedPass):
    """``transpose(f(conv_transpose(transpose(x), w)))`` becomes ``f(sums of the taps of w @ x)``.

    ``f`` is arithmetic with constants of one element or one for each channel. It fires on f32 images of known sizes,
    but for the batch, and on constant weights of one group without dilation, where its price is less; on those that
    ``layout`` left in N, C order always. ``per_lane`` is how many products of one lane the phases add at once: where
    that is more than one, they stay.
    """

    name: ClassVar[str] = "tap-products"
    per_lane: int = 1

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def between_transposes(b: Rewriting, node: Node) -> Node | None:
            return _between_transposes(b, node, self)

        why = "a sum over channels for each tap, and then over taps"
        rules = [
            Rule("tap-products", (ops.transpose,), between_transposes, why),
            Rule("tap-products-as-it-came", (ops.conv_transpose,), _as_it_came, why),
        ]
        return rewrite(graph, RuleTable(rules), journal)


def _between_transposes(b: Rewriting, node: Node, options: TapProducts) -> Node | None:
    if node.attrs["perm"] != inverse(to_last(node.type.rank)) or options.per_lane > 1:
        return None
    *steps, made = arithmetic_above(b, node.inputs[0]) or (node,)
    if made.op is not ops.conv_transpose or not _fits(made, "NHWC") or not is_moved(made.inputs[0]):
        return None
    x = made.inputs[0].inputs[0]
    return options.cheaper(node, as_they_came(b, _sums_of_taps(b.at(made.loc), x, made), steps), x)


def _as_it_came(b: Rewriting, node: Node) -> Node | None:
    return _sums_of_taps(b, node.inputs[0], node) if _fits(node, "NCHW") else None


def _fits(node: Node, layout: str) -> bool:
    (x, w), a = node.inputs, node.attrs
    is_plain = a["groups"] == 1 and set(a["dilations"]) == {1} and a["layout"] == layout and w.op is CONST
    is_real = x.dtype is w.dtype is node.dtype is f32
    return is_plain and is_real and are_known((*x.shape[1:], *node.shape[1:])) and 0 not in node.shape


def _sums_of_taps(b: Builder, x: Node, node: Node) -> Node:
    """The transposed convolution of ``x`` (N, C, spatial), in that order.

    Before it is cropped, ``y[s*q + r] = sum_j p[s*j + r, q - j]`` along an axis of stride ``s``, where ``p[k, q]`` is
    the image at ``q`` times the weights of tap ``k``: the taps of one ``j`` are phases ``r`` of a block ``q``.
    """
    a, w = node.attrs, node.inputs[1].attrs["data"].array
    n_batch, n_in, *sizes = x.shape
    n_out, *kernel = w.shape[1:]
    rank, strides = len(sizes), a["strides"]
    weights = b.const(np.ascontiguousarray(np.moveaxis(w, 0, -1).reshape(-1, n_in)))
    products = b(ops.matmul, weights, b(ops.reshape, x, shape=(n_batch, n_in, prod(numbers(sizes)))))
    products = b(ops.reshape, products, shape=(n_batch, n_out, *kernel, *sizes))
    counts = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]  # of blocks that a tap's place reaches into
    result = node.shape[1:-1] if a["layout"] == "NHWC" else node.shape[2:]
    ends = [lo + n for (lo, _), n in zip(a["pads"], result, strict=True)]
    blocks = [
        maximum(size + n - 1, ceildiv(end, s)) for size, n, end, s in zip(sizes, counts, ends, strides, strict=True)
    ]
    total: Node | None = None
    for at in choices(*map(range, counts)):
        first = [j * s for j, s in zip(at, strides, strict=True)]
        last = [min(f + s, k) for f, s, k in zip(first, strides, kernel, strict=True)]
        part = products
        if max(counts) > 1:
            starts, stops = (0, 0, *first, *[0] * rank), (*products.shape[:2], *last, *sizes)
            part = b(ops.slice, products, starts=starts, stops=stops, steps=(1,) * len(starts))
        phases = [(0, s - (n - f)) for f, n, s in zip(first, last, strides, strict=True)]
        places = [(j, n - size - j) for j, n, size in zip(at, blocks, sizes, strict=True)]
        part = b(ops.pad, part, b.const(0.0, x.dtype), pads=((0, 0), (0, 0), *phases, *places))
        total = part if total is None else b(ops.add, total, part)
    assert total is not None
    turns = [axis for k in range(rank) for axis in (2 + rank + k, 2 + k)]
    y = b(ops.transpose, total, perm=(0, 1, *turns))
    y = b(ops.reshape, y, shape=(n_batch, n_out, *[n * s for n, s in zip(blocks, strides, strict=True)]))
    before = [max(-lo, 0) for lo, _ in a["pads"]]  # places that no tap reaches, in front of all that taps reach
    if any(before):
        y = b(ops.pad, y, b.const(0.0, x.dtype), pads=((0, 0), (0, 0), *[(n, 0) for n in before]))
    starts = (0, 0, *[max(lo, 0) for lo, _ in a["pads"]])
    stops = (n_batch, n_out, *[n + end for n, end in zip(before, ends, strict=True)])
    return b(ops.slice, y, starts=starts, stops=stops, steps=(1,) * len(starts))
