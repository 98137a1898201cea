"""The pass ``in-planes``: lone 1x1 convolutions on images in N, C order are products; narrow ones on sequences stay.

In: a graph after ``layout``. Out: an equal graph. Not its business: which convolutions are channels-last
(``graph.layout``), the product's loops (``tile``).

Where the image comes and goes in N, C order there is another way than channels last: weights times planes, with pixels
in the lanes, and nothing is transposed. It pays where channels leave lanes idle (17 of 32), or where so few are summed
that transposes take long beside them. Measured on Zen 5, one thread, 37 x 37 pixels, 257 to 17 channels: 96 to 58 us;
56 x 56, 64 to 256: 636 to 468; but 256 to 64 552 to 620, and 7 x 7, 512 to 2048, 463 to 697.

Of a sequence, whose taps are neighbours in its lanes, the same holds for any kernel of stride 1: of 1000 places 17 to
17 channels, 3 taps, 19.6 to 11.4 us; 37 to 37, 5 taps, 85 to 62; 16 to 16 12.1 to 10.4; but 32 to 32 27.8 to 30.0, 64
to 64 79 to 107: with more channels that fill vectors Winograd's form is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import product

IDLE = 1.15
"""How many times as many lanes channels must leave idle as pixels do, where many channels are summed."""
SHALLOW = 64
"""With at most as many channels to sum, pixels may leave as many times more lanes idle."""
MOST_VECTORS, LEAST_VECTORS = 3, 2
"""Of a sequence's result: of channels at a place, and of places of a channel."""


@dataclass(frozen=True)
class InPlanes(Pass):
    """``transpose(f(conv(transpose(x), w)))`` becomes ``f(w @ x)``, the channels of x before its pixels.

    ``f`` is arithmetic with constants of one element or one for each channel; groups become a batch. It does not fire
    on other kernels than 1x1 of stride 1 without padding, on weights or sizes known at run time only, where the result
    is read in channels-last order, too, where a group's channels fill less than a vector of ``lanes`` f32, or where
    more than ``SHALLOW`` are summed and fill vectors about as well as pixels do.

    On sequences it is ``f(conv(x, w))``, for kernels of any size and dilation, with any padding, of stride 1 and one
    group, where channels leave more lanes idle than places do, or at most a vector of them is summed.
    """

    name: ClassVar[str] = "in-planes"
    lanes: int = 16

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def in_planes(b: Rewriting, node: Node) -> Node | None:
            return _in_planes(b, node, self.lanes)

        rule = Rule("in-planes", (ops.transpose,), in_planes, "sums over channels in another order of loops")
        return rewrite(graph, RuleTable([rule]), journal)


def _in_planes(b: Rewriting, node: Node, lanes: int) -> Node | None:
    rank = node.type.rank
    if node.attrs["perm"] != (0, rank - 1, *range(1, rank - 1)):
        return None
    steps = list(_down(b, node.inputs[0]))
    conv = steps[-1]
    is_pointwise = conv.op is ops.conv and _is_pointwise(conv, lanes)
    if conv.op is not ops.conv or not (is_pointwise or _is_narrow_sequence(conv, lanes)):
        return None
    n_out, groups = conv.shape[-1], conv.attrs["groups"]
    if not all(_is_per_channel(i, n_out) for s in steps[:-1] for i in s.inputs if i.op is CONST):
        return None
    x, weights = conv.inputs[0].inputs[0], conv.inputs[1]  # in N, C order
    if is_pointwise:
        n_batch, n_in, *sizes = x.shape
        per_group = (groups, n_out // groups, n_in // groups)
        planes = b(ops.reshape, x, shape=(n_batch, groups, per_group[2], product(sizes)))
        y = b.at(conv.loc)(ops.matmul, b.const(weights.attrs["data"].array.reshape(per_group)), planes)
    else:
        y = b.at(conv.loc)(ops.conv, x, weights, **{**conv.attrs, "layout": "NCHW"})
    for s in reversed(steps[:-1]):
        operands = [y if i.op is not CONST else _along_rows(b, i, groups) for i in s.inputs]
        y = b.at(s.loc)(s.op, *operands, **s.attrs)
    return b(ops.reshape, y, shape=node.shape)


def _down(b: Rewriting, x: Node) -> Iterator[Node]:
    """``x`` and what it is made of, as long as that is arithmetic on one value and constants that nobody else reads."""
    yield x
    while Trait.ELEMENTWISE in x.op.traits and b.read_once(x):
        values = [i for i in x.inputs if i.op is not CONST]
        if len(values) != 1 or values[0].shape != x.shape:
            return
        x = values[0]
        yield x


def _is_lone(conv: Node) -> bool:
    """Do constant weights meet an image in N, C order, of known sizes but for the batch, and is nothing else asked?"""
    x, w = conv.inputs
    a, rank = conv.attrs, conv.type.rank
    if a["layout"] != "NHWC" or w.op is not CONST or a["out_dtype"] is not None or not w.dtype.is_float:
        return False
    is_moved = x.op is ops.transpose and x.attrs["perm"] == (0, *range(2, rank), 1)
    is_renamed = x.op is ops.reshape and x.shape[-1] == 1 and x.inputs[0].shape == (x.shape[0], 1, *x.shape[1:-1])
    if not (is_moved or is_renamed) or set(a["strides"]) != {1}:
        return False
    return all(isinstance(n, int) for n in (*conv.shape[1:-1], *x.shape[1:])) and 0 not in conv.shape


def _is_pointwise(conv: Node, lanes: int) -> bool:
    w, a = conv.inputs[1], conv.attrs
    if not _is_lone(conv) or set(w.shape[2:]) != {1} or any(p != (0, 0) for p in a["pads"]):
        return False
    channels, pixels = conv.shape[-1] // a["groups"], product(conv.shape[1:-1])
    assert isinstance(channels, int) and isinstance(pixels, int)
    return channels >= lanes and _pays(w.shape[1], SHALLOW, channels, pixels, lanes)


def _is_narrow_sequence(conv: Node, lanes: int) -> bool:
    if conv.type.rank != 3 or not _is_lone(conv) or conv.attrs["groups"] != 1:
        return False
    _, places, channels = conv.shape
    assert isinstance(channels, int) and isinstance(places, int)
    fits = channels <= MOST_VECTORS * lanes and places >= LEAST_VECTORS * lanes
    return fits and _pays(conv.inputs[1].shape[1], lanes, channels, places, lanes)


def _pays(depth: object, shallow: int, channels: int, places: int, lanes: int) -> bool:
    """Do places fill lanes so much better than channels do, or, with few channels to sum, about as well?"""
    least = 1 / IDLE if isinstance(depth, int) and depth <= shallow else IDLE
    return _idle(channels, lanes) >= least * _idle(places, lanes)


def _idle(n: int, lanes: int) -> float:
    """Lanes of the vectors that hold ``n`` elements, to elements."""
    return -(-n // lanes) * lanes / n


def _is_per_channel(x: Node, n_channels: object) -> bool:
    return product(x.shape) == 1 or (product(x.shape) == n_channels and x.shape[-1:] == (n_channels,))


def _along_rows(b: Rewriting, x: Node, groups: int) -> Node:
    """A constant for each channel, as the product's rows have it."""
    array = x.attrs["data"].array
    return b.const(np.ascontiguousarray(array.reshape(groups, -1, 1))) if array.size > 1 else x
