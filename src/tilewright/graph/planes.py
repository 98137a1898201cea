"""The pass ``pointwise-in-planes``: a lone 1x1 convolution on images in N, C order is a product of matrices.

In: a graph after ``layout``. Out: an equal graph. Not its business: which convolutions are channels-last
(``graph.layout``), the product's loops (``tile``).

Where the image comes and goes in N, C order there is another way than channels last: weights times planes, with pixels
in the lanes, and nothing is transposed. It pays where channels leave lanes idle (17 of 32), or where so few are summed
that transposes take long beside them. Measured on Zen 5, one thread, 37 x 37 pixels, 257 to 17 channels: 96 to 58 us;
56 x 56, 64 to 256: 636 to 468; but 256 to 64 552 to 620, and 7 x 7, 512 to 2048, 463 to 697.
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


@dataclass(frozen=True)
class PointwiseInPlanes(Pass):
    """``transpose(f(conv(transpose(x), w)))`` becomes ``f(w @ x)``, the channels of x before its pixels.

    ``f`` is arithmetic with constants of one element or one for each channel; groups become a batch. It does not fire
    on other kernels than 1x1 of stride 1 without padding, on weights or sizes known at run time only, where the result
    is read in channels-last order, too, where a group's channels fill less than a vector of ``lanes`` f32, or where
    more than ``SHALLOW`` are summed and fill vectors about as well as pixels do.
    """

    name: ClassVar[str] = "pointwise-in-planes"
    lanes: int = 16

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def in_planes(b: Rewriting, node: Node) -> Node | None:
            return _in_planes(b, node, self.lanes)

        rule = Rule("pointwise-in-planes", (ops.transpose,), in_planes, "sums over channels in another order of loops")
        return rewrite(graph, RuleTable([rule]), journal)


def _in_planes(b: Rewriting, node: Node, lanes: int) -> Node | None:
    rank = node.type.rank
    if node.attrs["perm"] != (0, rank - 1, *range(1, rank - 1)):
        return None
    steps = list(_down(b, node.inputs[0]))
    conv = steps[-1]
    if conv.op is not ops.conv or not _fits(conv, lanes):
        return None
    n_out, groups = conv.shape[-1], conv.attrs["groups"]
    if not all(_is_per_channel(i, n_out) for s in steps[:-1] for i in s.inputs if i.op is CONST):
        return None
    x, w = conv.inputs[0].inputs[0], conv.inputs[1].attrs["data"].array
    n_batch, n_in, *sizes = x.shape
    per_group = (groups, n_out // groups, n_in // groups)
    planes = b(ops.reshape, x, shape=(n_batch, groups, per_group[2], product(sizes)))
    y = b.at(conv.loc)(ops.matmul, b.const(w.reshape(per_group)), planes)
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


def _fits(conv: Node, lanes: int) -> bool:
    x, w = conv.inputs
    a, sizes = conv.attrs, conv.shape[1:-1]
    rank = conv.type.rank
    if a["layout"] != "NHWC" or w.op is not CONST or a["out_dtype"] is not None or not w.dtype.is_float:
        return False
    if x.op is not ops.transpose or x.attrs["perm"] != (0, *range(2, rank), 1):
        return False
    numbers = [*sizes, *x.shape[1:]]
    is_plain = set(w.shape[2:]) == set(a["strides"]) == {1} and all(p == (0, 0) for p in a["pads"])
    if not is_plain or not all(isinstance(n, int) for n in numbers) or 0 in conv.shape:
        return False
    channels, pixels = conv.shape[-1] // a["groups"], product(sizes)
    assert isinstance(channels, int) and isinstance(pixels, int)
    depth = w.shape[1]
    least = 1 / IDLE if isinstance(depth, int) and depth <= SHALLOW else IDLE
    return channels >= lanes and _idle(channels, lanes) >= least * _idle(pixels, lanes)


def _idle(n: int, lanes: int) -> float:
    """Lanes of the vectors that hold ``n`` elements, to elements."""
    return -(-n // lanes) * lanes / n


def _is_per_channel(x: Node, n_channels: object) -> bool:
    return product(x.shape) == 1 or (product(x.shape) == n_channels and x.shape[-1:] == (n_channels,))


def _along_rows(b: Rewriting, x: Node, groups: int) -> Node:
    """A constant for each channel, as the product's rows have it."""
    array = x.attrs["data"].array
    return b.const(np.ascontiguousarray(array.reshape(groups, -1, 1))) if array.size > 1 else x
