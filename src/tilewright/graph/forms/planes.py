"""The pass ``in-planes``: lone convolutions and windows on images in N, C order, which may stay in it.

In: a graph after ``layout``. Out: an equal graph. Not its business: which convolutions are channels-last
(``layout``), the product's loops (``tile``).

Where the image comes and goes in N, C order there is another way than channels last: weights times planes, with pixels
in the lanes, and nothing is transposed. A 1x1 convolution is a product of matrices then.

Of a convolution that mixes channels both forms are priced (``priced``): what it takes to transpose the image and the
result, how many lanes channels leave idle and how many rows of pixels do, whether Winograd's form is worth it, shows in
the kernels of each. Windows that don't mix channels, depthwise convolutions and pools, may follow each other, and go by
the modelled cycles of a core: channels last has two transposes, which go through the caches that the image does not
fit, and then whole vectors of channels; planes have rows of pixels, whose taps are loads that cross lines, and, with a
stride, shuffles. ``docs/choices.md`` ("Windows and planes") has measured times.

An image that is enlarged and then brought into N, C order is brought there first, while it is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, log2, prod
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known, is_padded, numbers
from tilewright.core.estimates import PASSED_CYCLES, SHUFFLED_STRIDE
from tilewright.core.graph import CONST, Builder, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import f32, product
from tilewright.graph.facts import inverse
from tilewright.graph.forms.layout import PER_AXIS, to_last
from tilewright.graph.forms.priced import PricedPass
from tilewright.graph.forms.separate import WIDE, axis_by_axis
from tilewright.target.target import Target

POOLS = (ops.max_pool, ops.avg_pool)
WINDOWS = (ops.conv, *POOLS)


@dataclass(frozen=True)
class InPlanes(PricedPass):
    """``transpose(f(conv(transpose(x), w)))`` becomes ``f(conv(x, w))``, of 1x1 kernels ``f(w @ x)``, by price.

    ``f`` is arithmetic with constants of one element or one for each channel; groups of a product become a batch. It
    does not fire on weights or sizes known at run time only, on strides along a row of more than ``SHUFFLED_STRIDE``,
    nor where the result is read in channels-last order, too.

    Depthwise convolutions (of weights known at run time, too) and pools, one behind the other too, stay as they were,
    where they take fewer cycles so and strides are at most ``SHUFFLED_STRIDE``. They alone do where a lane adds several
    products at once (``per_lane``): those are of neighbouring channels.

    ``transpose(resize(x))`` becomes ``resize(transpose(x))`` where the resize makes known sizes larger and nothing
    else reads it.

    Of the machine: ``lanes`` of f32; ``fmas`` and ``loads`` of vectors that a cycle begins; the ``sums``
    that a tile of a window has at once; whether ``masks`` are for nothing, or take as long as a vector; bytes that
    a load brings in a cycle, and of a cache's line; the first two caches' bytes, and how far apart addresses of one of
    the first's sets are. An image of ``near_bytes`` stays in a core's own cache, which gives ``near_speed`` bytes in a
    cycle; the one behind it has ``llc_bytes`` and gives ``cache_bytes``, memory ``memory_bytes``.
    """

    name: ClassVar[str] = "in-planes"
    lanes: int = 16
    per_lane: int = 1
    fmas: float = 2.0
    loads: float = 2.0
    sums: int = 8
    masks: bool = True
    load_bytes: int = 64
    line_bytes: int = 64
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    set_span: int = 4096
    near_bytes: int = 1 << 18
    near_speed: float = 64.0
    llc_bytes: int = 16 << 20
    cache_bytes: float = 8.0
    memory_bytes: float = 4.5

    @staticmethod
    def on(target: Target, per_lane: int) -> InPlanes:
        """The pass for a machine."""
        return InPlanes(
            target.lanes(f32), per_lane, target.fmas_per_cycle, target.load_ports / target.load_cycles,
            target.window_sums, target.has_masks, target.vector_bytes // target.load_cycles, target.line_bytes,
            target.l1_bytes, target.l2_bytes, target.set_span, target.l2_part_bytes, target.l2_bytes_per_cycle,
            target.llc_kept_bytes, target.llc_bytes_per_cycle, target.memory_bytes_per_cycle,
        )  # fmt: skip

    @property
    def vector_bytes(self) -> int:
        return self.lanes * f32.n_bytes

    @property
    def crossing(self) -> float:
        """Loads of lines for each vector of pixels that begins anywhere."""
        return 1 + self.load_bytes / self.line_bytes

    def of_a_row(self, columns: int, *, are_whole: bool = False) -> int:
        """Vectors of a row of results. ``are_whole``: the last one begins further left rather than be masked."""
        is_masked = not self.masks and not are_whole and columns % self.lanes > 0
        return _vectors(columns, self.lanes) + is_masked

    def transposes(self, *images: tuple[int, int]) -> float:
        """Cycles to transpose images of so many pixels and channels, in square tiles of vectors.

        Each is loaded, shuffled and stored, and comes from a core's own cache, or from one behind it meanwhile, where
        the first does not keep the image. One pixel, or one channel, lies as it is in both orders.
        """
        cycles = 0.0
        for pixels, channels in images:
            if 1 in (pixels, channels):
                continue
            again = self.again(self.lanes, pixels) + self.again(self.lanes, channels)
            comes = self.vector_bytes / self.near_speed if pixels * channels * f32.n_bytes > self.l1_bytes else 0.0
            each = 1 / self.loads + log2(self.lanes) + 1 + comes + again
            vectors = _vectors(pixels, self.lanes) * _vectors(channels, self.lanes) * self.lanes
            cycles += max(vectors * each, self.far(vectors * self.lanes, n_moves=2))
        return cycles

    def far(self, size: int, n_moves: int = 1) -> float:
        """Cycles in which ``size`` elements come from behind a core's own cache; 0 where they stay there.

        That is from memory where the last cache does not keep them beside as many that are made of them. Its bandwidth
        is for reading and writing together (``n_moves`` are 2), where a cache takes and gives at once.
        """
        n_bytes = size * f32.n_bytes
        if n_bytes <= self.near_bytes:
            return 0.0
        return n_bytes / self.cache_bytes if 2 * n_bytes <= self.llc_bytes else n_moves * n_bytes / self.memory_bytes

    def again(self, lines: int, pitch: int) -> float:
        """Cycles of a load of one of ``lines`` that are ``pitch`` f32 apart: 0 where the first cache keeps them all.

        Few of its sets hold lines a large power of two apart; those beyond them come anew.
        """
        n_sets = self.set_span // gcd(pitch * f32.n_bytes, self.set_span)
        kept = n_sets * (self.l1_bytes // self.set_span)
        return self.line_bytes / self.near_speed * (1 - kept / lines) if lines > kept else 0.0

    def channels_last(self, channels: int, places: int, results: int, n_taps: float, n_lines: int = 0) -> float:
        """Cycles of windows that mix no channels, over an image of so many places, with its way there and back.

        A tile of neighbouring results reads ``n_lines`` again.
        """
        moved = self.transposes((places, channels), (results, channels))
        tap = 1 / self.fmas + self.again(n_lines, channels)
        sums = results * _vectors(channels, self.lanes) * (n_taps * tap + 1)
        # A vector that is part of a line brings the rest of it whenever its channels' turn comes, unless that stays.
        stays = places * channels * f32.n_bytes <= self.l2_bytes
        n_times = 1 if stays else max(self.line_bytes // self.vector_bytes, 1)
        return moved + max(sums, self.far(places * channels) * n_times)

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def in_planes(b: Rewriting, node: Node) -> Node | None:
            return _in_planes(b, node, self)

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


def _in_planes(b: Rewriting, node: Node, options: InPlanes) -> Node | None:
    if node.attrs["perm"] != inverse(to_last(node.type.rank)):
        return None
    if (windows := _windows(b, node.inputs[0], options)) is not None:
        return as_they_came(b, *windows)
    *steps, conv = arithmetic_above(b, node.inputs[0]) or (node,)
    if conv.op in POOLS and _rows_pay(conv, options):
        return as_they_came(b, _rows_first(b.at(conv.loc), conv), steps)
    if options.per_lane > 1 or conv.op is not ops.conv or not _is_lone(conv):
        return None
    return options.cheaper(node, _of_planes(b, node, conv, steps), conv.inputs[0].inputs[0])


def mixes_channels(conv: Node) -> bool:
    """Do constant weights mix channels of an image that has them last, and is nothing else asked?"""
    w, a = conv.inputs[1], conv.attrs
    is_plain = a["layout"] == "NHWC" and w.op is CONST and a["out_dtype"] is None and w.dtype.is_float
    return is_plain and (a["groups"] == 1 or w.shape[1] != 1)  # planes by themselves are windows


def _is_lone(conv: Node) -> bool:
    """Do constant weights meet an image in N, C order, of known sizes but for the batch, and is nothing else asked?"""
    x, a = conv.inputs[0], conv.attrs
    is_renamed = x.op is ops.reshape and x.shape[-1] == 1 and x.inputs[0].shape == (x.shape[0], 1, *x.shape[1:-1])
    if not mixes_channels(conv) or not (is_moved(x) or is_renamed) or a["strides"][-1] > SHUFFLED_STRIDE:
        return False
    return are_known((*conv.shape[1:-1], *x.shape[1:])) and 0 not in conv.shape


def _of_planes(b: Rewriting, node: Node, conv: Node, steps: list[Node]) -> Node:
    """``node``, which ``steps`` make of a lone convolution, without transposes: of 1x1 kernels weights times planes."""
    x, w, a = conv.inputs[0].inputs[0], conv.inputs[1], conv.attrs
    is_product = set(w.shape[2:]) == {1} and not is_padded(a["pads"]) and set(a["strides"]) == {1}
    if not is_product:
        return as_they_came(b, b.at(conv.loc)(ops.conv, x, w, **{**a, "layout": "NCHW"}), steps)
    n_batch, n_in, *sizes = x.shape
    n_out, groups = conv.shape[-1], a["groups"]
    per_group = (groups, n_out // groups, n_in // groups)
    planes = b(ops.reshape, x, shape=(n_batch, groups, per_group[2], product(sizes)))
    y = b.at(conv.loc)(ops.matmul, b.const(w.attrs["data"].array.reshape(per_group)), planes)
    return b(ops.reshape, as_they_came(b, y, steps, groups, -1, 1), shape=node.shape)


def _windows(b: Rewriting, x: Node, options: InPlanes) -> tuple[Node, list[Node]] | None:
    """The image in N, C order and, from the last one back, the windows and arithmetic behind it; None: no such run."""
    steps: list[Node] = []
    while b.read_once(x):
        values = [i for i in x.inputs if i.op is not CONST]
        is_alone = len(values) == 1 and Trait.ELEMENTWISE in x.op.traits and values[0].shape == x.shape
        if not (is_alone or _is_window(x, options)):
            break
        if not all(_is_per_channel(i, x.shape[-1]) for i in x.inputs if i.op is CONST and x.op not in WINDOWS):
            return None
        steps.append(x)
        x = values[0]
    return (x.inputs[0], steps) if is_moved(x) and any(s.op in WINDOWS for s in steps) else None


def _is_window(node: Node, options: InPlanes) -> bool:
    """A pool, or a depthwise convolution, that is faster with pixels in the lanes."""
    if node.op not in WINDOWS or node.attrs["layout"] != "NHWC" or max(node.attrs["strides"]) > SHUFFLED_STRIDE:
        return False
    x, a = node.inputs[0], node.attrs
    if not are_known((*x.shape[1:], *node.shape[1:])) or 0 in (*x.shape[1:], *node.shape[1:]):
        return False
    taps = numbers(a["kernel"] if node.op is not ops.conv else node.inputs[1].shape[2:])
    if node.op is ops.conv:
        w = node.inputs[1]
        is_depthwise = w.shape[:2] == (x.shape[-1], 1) and a["groups"] == x.shape[-1] and are_known(w.shape[2:])
        if not is_depthwise or a["out_dtype"] is not None or not w.dtype.is_float:
            return False
    *rows, columns, channels = numbers(node.shape[1:])
    n_taps, n_rows = prod(taps), prod(rows)
    stride: int = a["strides"][-1]
    places = prod(numbers(x.shape[1:-1]))
    # Places under the taps of a tile's results.
    neighbours = prod(taps[:-1]) * (taps[-1] + stride * (min(options.sums, columns) - 1))
    inside = prod(_inside(node, k, n) for k, n in enumerate(taps))
    last = options.channels_last(channels, places, n_rows * columns, n_taps * inside, min(neighbours, places))
    # With a stride, a vector of every so many-th element is shuffled together from as many vectors, or fewer where
    # results don't fill one, between which no multiplication begins.
    load, tile = options.crossing / options.loads, min(options.sums, n_rows)
    n_read = _vectors(stride * min(columns, options.lanes), options.lanes)
    each = max(taps[-1] * _rows_read(node, taps, tile) * (n_read * load + stride - 1), n_taps / options.fmas)
    vectors = options.of_a_row(columns, are_whole=columns > options.lanes)
    planes = n_rows * (vectors * each + PASSED_CYCLES / tile)
    if node.op is ops.conv:  # a plane is read with its borders
        *sizes, width = [n + sum(pads) for n, pads in zip(numbers(x.shape[1:-1]), a["pads"], strict=True)]
        planes += prod(sizes) * _vectors(width, options.lanes) * PASSED_CYCLES
    return max(channels * planes, options.far(places * channels)) < last


def _inside(node: Node, axis: int, n_taps: int) -> float:
    """The part of a window's taps along an axis that lie inside of the image: channels last, no others are computed."""
    a = node.attrs
    size, results = numbers((node.inputs[0].shape[1 + axis], node.shape[1 + axis]))
    # Places are a step for each result and one for each tap: either may be many, so those of the fewer are walked.
    walks = ((n_taps, a["dilations"][axis] if a["dilations"] else 1), (results, a["strides"][axis]))
    (n_few, step), (n_many, stride) = sorted(walks)
    starts = (k * step - a["pads"][axis][0] for k in range(n_few))
    inside = sum(max(min(n_many, -((start - size) // stride)) - max(-(start // stride), 0), 0) for start in starts)
    return float(inside / (n_few * n_many))


def _rows_pay(node: Node, options: InPlanes) -> bool:
    """Is a pool of so large a stride that columns can't be lanes faster along its rows first, as the image came?

    What is brought channels last is then smaller by the rows' stride.
    """
    a, x = node.attrs, node.inputs[0]
    sizes = (*x.shape[1:], *node.shape[1:])
    if a["layout"] != "NHWC" or not is_moved(x) or not are_known(sizes) or 0 in sizes:
        return False
    *strides, stride = numbers(a["strides"])
    if max(strides, default=1) == 1 or stride <= SHUFFLED_STRIDE or x.dtype not in WIDE:
        return False
    *n_taps, n_last = numbers(a["kernel"])
    *given, columns, channels = numbers(x.shape[1:])
    *made, kept, _ = numbers(node.shape[1:])
    places, rows, results = prod(given) * columns, prod(made) * columns, prod(made) * kept
    vectors = prod(made) * _vectors(columns, options.lanes) * channels
    first = vectors * (prod(n_taps) * options.crossing / options.loads + PASSED_CYCLES)
    apart = max(first, options.far(places * channels)) + options.channels_last(channels, rows, results, n_last)
    return apart < options.channels_last(channels, places, results, prod(n_taps) * n_last)


def _rows_first(b: Builder, node: Node) -> Node:
    """A pool channels last, in N, C order: over rows as the image came, then over columns between two transposes."""
    a, perm = node.attrs, to_last(node.type.rank)
    first, last = axis_by_axis(a, len(a["kernel"]) - 2)
    rows = b(node.op, node.inputs[0].inputs[0], **{**first, "layout": "NCHW"})
    return b(ops.transpose, b(node.op, b(ops.transpose, rows, perm=perm), **last), perm=inverse(perm))


def _rows_read(node: Node, taps: list[int], tile: int) -> float:
    """Rows of a plane that a row of results reads: neighbours in a convolution's ``tile`` share them."""
    rows = prod(taps[:-1])
    if node.op is not ops.conv or len(taps) < 2:
        return rows
    stride: int = node.attrs["strides"][-2]
    return rows if stride >= taps[-2] else rows * (stride * (tile - 1) + taps[-2]) / (tile * taps[-2])


def as_they_came(b: Rewriting, y: Node, steps: list[Node], *per_channel: int) -> Node:
    """``y`` in N, C order, then the windows and the arithmetic of ``steps``, from the last one back, in that order too.

    A constant for each channel has the shape ``per_channel``, or that of the second of all axes.
    """
    for s in reversed(steps):
        at = b.at(s.loc)
        if s.op in WINDOWS:
            y = at(s.op, y, *s.inputs[1:], **{**s.attrs, "layout": "NCHW"})
        else:
            shape = per_channel or (-1, *[1] * (s.type.rank - 2))
            y = at(s.op, *[_reshaped(b, i, *shape) if i.op is CONST else y for i in s.inputs], **s.attrs)
    return y


def arithmetic_above(b: Rewriting, x: Node) -> list[Node] | None:
    """``x`` and what it is made of, as long as that is arithmetic on one value, with constants for each channel or one.

    Each is read once, and the last one is no such arithmetic. None where somebody else reads it, too, or a constant is
    of another shape.
    """
    steps, n_channels = [x], x.shape[-1]
    while Trait.ELEMENTWISE in x.op.traits and b.read_once(x):
        values = [i for i in x.inputs if i.op is not CONST]
        if len(values) != 1 or values[0].shape != x.shape:
            break
        if not all(_is_per_channel(i, n_channels) for i in x.inputs if i.op is CONST):
            return None
        x = values[0]
        steps.append(x)
    return steps if b.read_once(x) else None


def is_moved(x: Node) -> bool:
    """Was it an image in N, C order?"""
    return x.op is ops.transpose and x.attrs["perm"] == to_last(x.type.rank)


def _vectors(n: int, lanes: int) -> int:
    return -(-n // lanes)


def _is_per_channel(x: Node, n_channels: object) -> bool:
    return product(x.shape) == 1 or (product(x.shape) == n_channels and x.shape[-1:] == (n_channels,))


def _reshaped(b: Rewriting, x: Node, *shape: int) -> Node:
    """A constant for each channel in the shape of what it meets; one of a single element stays."""
    array = x.attrs["data"].array
    return b.const(np.ascontiguousarray(array.reshape(shape))) if array.size > 1 else x
