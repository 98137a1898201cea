"""The pass ``in-planes``: lone 1x1 convolutions on images in N, C order are products; some other windows stay in it.

In: a graph after ``layout``. Out: an equal graph. Not its business: which convolutions are channels-last
(``layout``), the product's loops (``tile``).

Where the image comes and goes in N, C order there is another way than channels last: weights times planes, with pixels
in the lanes, and nothing is transposed. It pays in four cases, whose limits are the constants below. Each limit lies
between sizes that became faster and sizes that became slower: ``docs/choices.md`` ("Windows and planes") has both.

- 1x1 convolutions, where channels leave lanes idle (17 of 32), or where so few are summed that transposes take long
  beside them. Few channels, or groups of few, leave the most idle.
- Convolutions of a sequence with stride 1, whose taps are neighbours in its lanes, likewise. With more channels, which
  fill vectors, Winograd's form is ahead.
- Convolutions of an image where few planes are summed, because transposes, and what few channels or small groups leave
  idle, take longer than reading every plane again for each channel.
- Windows that don't mix channels, where transposes take longer than what the lanes lose that a row of pixels leaves
  idle: depthwise convolutions and pools of few taps on large images, and pools whose windows don't overlap. Rows of 17
  pixels leave half of two vectors idle, which pays on large images only.

An image that is enlarged and then brought into N, C order is brought there first, while it is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known, known_at_most
from tilewright.core.estimates import IDLE, SHUFFLED_STRIDE
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import product
from tilewright.graph.facts import inverse
from tilewright.graph.forms.layout import PER_AXIS, to_last

SHALLOW = 64
"""With at most as many channels to sum, pixels may leave as many times more lanes idle."""
MOST_VECTORS, LEAST_VECTORS = 3, 2
"""Of a sequence's result: of channels at a place, and of places of a channel."""
MIN_ELEMENTS = 1200
"""Of an image, for each tap of a pool by the taps of a row of as many: what makes its transposes worth saving."""
MOST_IDLE, MOST_IDLE_APART = 1.7, 6.0
"""How many times as many lanes a row of pixels may take as it has pixels; of pools whose windows don't overlap."""
MOST_IDLE_LARGE, LARGE, FEW_TAPS = 1.9, 70_000, 9
"""And of convolutions of so few taps on images of so many elements, where a row of pixels fills a vector."""
SOME_TAPS = 25
"""Of a convolution that sums few planes, without groups."""
MOST_TAPS = 32
"""Of a depthwise convolution, times its stride along the rows."""
WINDOWS = (ops.conv, ops.max_pool, ops.avg_pool)


@dataclass(frozen=True)
class InPlanes(Pass):
    """``transpose(f(conv(transpose(x), w)))`` becomes ``f(w @ x)``, the channels of x before its pixels.

    ``f`` is arithmetic with constants of one element or one for each channel; groups become a batch. It does not fire
    on other kernels than 1x1 of stride 1 without padding, on weights or sizes known at run time only, where the result
    is read in channels-last order, too, or where more than ``SHALLOW`` channels are summed that fill vectors of
    ``lanes`` f32 about as well as pixels do.

    Where at most half a vector of planes is summed, windows of several rows, of at most ``SOME_TAPS``, in groups of
    ``FEW_TAPS``, are ``f(conv(x, w))`` if rows of pixels leave hardly more lanes idle than channels do.

    On sequences it is ``f(conv(x, w))``, for kernels of any size and dilation, with any padding, of stride 1 and one
    group, where channels leave more lanes idle than places do, or at most a vector of them is summed.

    Depthwise convolutions (of weights known at run time, too) and pools, one behind the other too, stay as they were,
    where rows fill vectors (of large images also where they are little more than one) and strides are at most
    ``SHUFFLED_STRIDE``: convolutions of few taps, pools without overlap, and others where the image has
    ``MIN_ELEMENTS`` times the square of a window's taps. They alone do where a lane adds several products at once
    (``per_lane``): those are of neighbouring channels.

    ``transpose(resize(x))`` becomes ``resize(transpose(x))`` where the resize makes known sizes larger and nothing
    else reads it.
    """

    name: ClassVar[str] = "in-planes"
    lanes: int = 16
    per_lane: int = 1

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def in_planes(b: Rewriting, node: Node) -> Node | None:
            return _in_planes(b, node, self.lanes, self.per_lane)

        rules = [
            Rule("in-planes", (ops.transpose,), in_planes, "the same sums in another order of loops"),
            Rule("enlarged-last", (ops.transpose,), _enlarged_last, "a resize works on each axis alone"),
        ]
        return rewrite(graph, RuleTable(rules), journal)


def _enlarged_last(b: Rewriting, node: Node) -> Node | None:
    """``transpose(resize(x))`` as ``resize(transpose(x))`` where that moves fewer elements."""
    large, perm = node.inputs[0], node.attrs["perm"]
    if large.op is not ops.resize or not b.read_once(large) or large.attrs["roi"]:
        return None
    small = large.inputs[0]
    before, after = small.type.n_elements, large.type.n_elements
    if not (is_known(before) and is_known(after) and before < after):
        return None
    given = [name for name in PER_AXIS[ops.resize] if large.attrs[name]]  # there may be no scales
    per_axis = {name: tuple(large.attrs[name][p] for p in perm) for name in given}
    return b.at(large.loc)(ops.resize, b(ops.transpose, small, perm=perm), **{**large.attrs, **per_axis})


def _in_planes(b: Rewriting, node: Node, lanes: int, per_lane: int) -> Node | None:
    if node.attrs["perm"] != inverse(to_last(node.type.rank)):
        return None
    if (windows := _windows(b, node.inputs[0], lanes)) is not None:
        return _as_they_came(b, *windows)
    if per_lane > 1:
        return None
    steps = list(_down(b, node.inputs[0]))
    conv = steps[-1]
    if conv.op is not ops.conv:
        return None
    is_pointwise = _is_pointwise(conv, lanes)
    if not (is_pointwise or _is_narrow_sequence(conv, lanes) or _is_narrow_image(conv, lanes)):
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
        per_channel: tuple[int, ...] = (groups, -1, 1)
    else:
        per_channel = (-1, *[1] * (conv.type.rank - 2))
        y = b.at(conv.loc)(ops.conv, x, weights, **{**conv.attrs, "layout": "NCHW"})
    for s in reversed(steps[:-1]):
        operands = [y if i.op is not CONST else _reshaped(b, i, *per_channel) for i in s.inputs]
        y = b.at(s.loc)(s.op, *operands, **s.attrs)
    return b(ops.reshape, y, shape=node.shape)


def _windows(b: Rewriting, x: Node, lanes: int) -> tuple[Node, list[Node]] | None:
    """The image in N, C order and, from the last one back, the windows and arithmetic behind it; None: no such run."""
    steps: list[Node] = []
    while b.read_once(x):
        values = [i for i in x.inputs if i.op is not CONST]
        is_alone = len(values) == 1 and Trait.ELEMENTWISE in x.op.traits and values[0].shape == x.shape
        if not (is_alone or _is_window(x, lanes)):
            break
        if not all(_is_per_channel(i, x.shape[-1]) for i in x.inputs if i.op is CONST and x.op not in WINDOWS):
            return None
        steps.append(x)
        x = values[0]
    return (x.inputs[0], steps) if _is_moved(x) and any(s.op in WINDOWS for s in steps) else None


def _is_window(node: Node, lanes: int) -> bool:
    """A pool, or a depthwise convolution, that is faster with pixels in the lanes."""
    if node.op not in WINDOWS or node.attrs["layout"] != "NHWC" or max(node.attrs["strides"]) > SHUFFLED_STRIDE:
        return False
    x, a = node.inputs[0], node.attrs
    sizes = [n for n in (*x.shape[1:], *node.shape[1:]) if is_known(n)]
    if len(sizes) < 2 * (node.type.rank - 1) or 0 in sizes:
        return False
    columns, elements = node.shape[-2], product(x.shape[1:])
    assert is_known(columns) and is_known(elements)
    idle = _idle(columns, lanes)
    if node.op is ops.conv:
        w = node.inputs[1]
        taps = [n for n in w.shape[2:] if is_known(n)]
        is_depthwise = w.shape[:2] == (x.shape[-1], 1) and a["groups"] == x.shape[-1] and len(taps) == w.type.rank - 2
        if not is_depthwise or a["out_dtype"] is not None or not w.dtype.is_float:
            return False
        n_taps = prod(taps)
        is_large = columns >= lanes and elements >= LARGE and n_taps <= FEW_TAPS
        return n_taps * a["strides"][-1] <= MOST_TAPS and idle <= (MOST_IDLE_LARGE if is_large else MOST_IDLE)
    if all(k <= s for k, s in zip(a["kernel"], a["strides"], strict=True)):
        return idle <= MOST_IDLE_APART
    return elements >= MIN_ELEMENTS * prod(a["kernel"]) ** 2 and idle <= MOST_IDLE


def _as_they_came(b: Rewriting, y: Node, steps: list[Node]) -> Node:
    """Windows and arithmetic in N, C order."""
    for s in reversed(steps):
        at, ones = b.at(s.loc), [1] * (s.type.rank - 2)
        if s.op in WINDOWS:
            y = at(s.op, y, *s.inputs[1:], **{**s.attrs, "layout": "NCHW"})
        else:
            y = at(s.op, *[_reshaped(b, i, -1, *ones) if i.op is CONST else y for i in s.inputs], **s.attrs)
    return y


def _down(b: Rewriting, x: Node) -> Iterator[Node]:
    """``x`` and what it is made of, as long as that is arithmetic on one value and constants that nobody else reads."""
    yield x
    while Trait.ELEMENTWISE in x.op.traits and b.read_once(x):
        values = [i for i in x.inputs if i.op is not CONST]
        if len(values) != 1 or values[0].shape != x.shape:
            return
        x = values[0]
        yield x


def _is_moved(x: Node) -> bool:
    """Was it an image in N, C order?"""
    return x.op is ops.transpose and x.attrs["perm"] == to_last(x.type.rank)


def _is_lone(conv: Node) -> bool:
    """Do constant weights meet an image in N, C order, of known sizes but for the batch, and is nothing else asked?"""
    x, w = conv.inputs
    a = conv.attrs
    if a["layout"] != "NHWC" or w.op is not CONST or a["out_dtype"] is not None or not w.dtype.is_float:
        return False
    is_renamed = x.op is ops.reshape and x.shape[-1] == 1 and x.inputs[0].shape == (x.shape[0], 1, *x.shape[1:-1])
    if not (_is_moved(x) or is_renamed) or set(a["strides"]) != {1}:
        return False
    return are_known((*conv.shape[1:-1], *x.shape[1:])) and 0 not in conv.shape


def _is_pointwise(conv: Node, lanes: int) -> bool:
    w, a = conv.inputs[1], conv.attrs
    if not _is_lone(conv) or set(w.shape[2:]) != {1} or any(p != (0, 0) for p in a["pads"]):
        return False
    channels, pixels = conv.shape[-1] // a["groups"], product(conv.shape[1:-1])
    assert is_known(channels) and is_known(pixels)
    return _pays(w.shape[1], SHALLOW, channels, pixels, lanes)


def _is_narrow_sequence(conv: Node, lanes: int) -> bool:
    if len(conv.attrs["dilations"]) != 1 or not _is_lone(conv) or conv.attrs["groups"] != 1:
        return False
    _, places, channels = conv.shape
    assert is_known(channels) and is_known(places)
    fits = channels <= MOST_VECTORS * lanes and places >= LEAST_VECTORS * lanes
    return fits and _pays(conv.inputs[1].shape[1], lanes, channels, places, lanes)


def _is_narrow_image(conv: Node, lanes: int) -> bool:
    """Windows of few taps on planes, of which few are summed, and which fill vectors about as well as channels do."""
    if len(conv.attrs["dilations"]) != 2 or not _is_lone(conv):
        return False
    groups, (depth, *taps) = conv.attrs["groups"], conv.inputs[1].attrs["data"].array.shape[1:]
    _, rows, columns, channels = conv.shape
    assert is_known(rows) and is_known(columns) and is_known(channels)
    if not 1 < depth <= lanes // 2 or taps[0] == 1 or prod(taps) > (FEW_TAPS if groups > 1 else SOME_TAPS):
        return False
    group = channels // groups
    fills = groups == 1 and channels >= lanes
    if fills and depth == lanes // 2:
        return False
    block = lanes // group * group if groups > 1 and group < lanes else lanes
    is_shallow = depth <= lanes // 4 and rows * columns >= lanes**2
    least = IDLE if fills and not is_shallow else 1 / IDLE
    return -(-channels // block) * lanes / channels >= least * _idle(columns, lanes)


def _pays(depth: Dim, shallow: int, channels: int, places: int, lanes: int) -> bool:
    """Do places fill lanes so much better than channels do, or, with few channels to sum, about as well?"""
    least = 1 / IDLE if known_at_most(depth, shallow) else IDLE
    return _idle(channels, lanes) >= least * _idle(places, lanes)


def _idle(n: int, lanes: int) -> float:
    """Lanes of the vectors that hold ``n`` elements, to elements."""
    return -(-n // lanes) * lanes / n


def _is_per_channel(x: Node, n_channels: object) -> bool:
    return product(x.shape) == 1 or (product(x.shape) == n_channels and x.shape[-1:] == (n_channels,))


def _reshaped(b: Rewriting, x: Node, *shape: int) -> Node:
    """A constant for each channel in the shape of what it meets; one of a single element stays."""
    array = x.attrs["data"].array
    return b.const(np.ascontiguousarray(array.reshape(shape))) if array.size > 1 else x
