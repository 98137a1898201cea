"""The pass ``skip-points``: an image is brought channels last without the points that a convolution steps over.

In: a graph whose convolutions are channels last. Out: an equal graph. Not its business: images that are channels last
as they come, of which a convolution reads what it needs where it lies.

With a stride of 2 and a kernel of one column, half of the columns are never read; with a dilation of 2 beside it, half
of them whatever the kernel is. A transpose writes what it brings, and often from cache to memory: what nobody reads is
left out before it, and the convolution then has so much smaller strides and dilations.
``docs/choices.md`` ("Steps over points, and sums in parts") has what it is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import ClassVar, NamedTuple

from tilewright import ops
from tilewright.core.dims import are_known, is_known, numbers
from tilewright.core.estimates import COPIED_LANES
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.ops.convolution import padding_behind, spatial_axes


@dataclass(frozen=True)
class SkipPoints(Pass):
    """``conv(transpose(x), w)`` that steps over points along an axis becomes ``conv(transpose(slice(x)), w)``.

    It does not fire where somebody else reads the transpose, where so few products read each element that they read it
    where it lies (``partition.fuse``), nor on axes of a size that only a call knows.
    """

    name: ClassVar[str] = "skip-points"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


class Read(NamedTuple):
    """An axis of which every ``step``-th point is read, from ``start`` on, and the window over those points."""

    start: int
    step: int
    stride: int
    dilation: int
    pads: tuple[int, int]


def _read(size: int, places: int, taps: int, stride: int, before: int, dilation: int) -> Read:
    """Along one axis: tap ``k`` of the window at ``i`` reads ``stride * i + dilation * k - before``."""
    step = stride if taps == 1 else gcd(stride, dilation)
    start = -before % step
    stride, dilation, before = stride // step, max(dilation // step, 1), (before + start) // step
    kept = len(range(start, size, step))
    return Read(start, step, stride, dilation, (before, padding_behind(kept, taps, stride, before, dilation, places)))


def _without_skipped(b: Rewriting, node: Node) -> Node | None:
    """The convolution of the points that it reads, which are fewer than the image has."""
    (x, w), a = node.inputs, node.attrs
    if x.op is not ops.transpose or not b.read_once(x):
        return None
    axes = spatial_axes(a["layout"], x.type.rank)
    sizes = (*x.shape, *node.shape, *w.shape[1:], *(before for before, _ in a["pads"]))
    if not are_known(sizes) or 0 in (*x.shape, *node.shape):
        return None
    if prod(numbers((*node.shape, *w.shape[1:]))) < COPIED_LANES * prod(numbers(x.shape)):
        return None
    reads = []
    windows = zip(axes, w.shape[2:], a["strides"], a["pads"], a["dilations"], strict=True)
    for k, taps, stride, (before, _), dilation in windows:
        size, places = x.shape[k], node.shape[k]
        assert is_known(size) and is_known(places) and is_known(taps) and is_known(before)
        reads.append(_read(size, places, taps, stride, before, dilation))
        if reads[-1].start >= size:
            return None
    if all(r.step == 1 for r in reads):
        return None
    perm = x.attrs["perm"]
    starts, steps = [0] * len(perm), [1] * len(perm)
    for k, r in zip(axes, reads, strict=True):
        starts[perm[k]], steps[perm[k]] = r.start, r.step
    kept = b.at(x.loc)(ops.slice, x.inputs[0], starts=starts, stops=list(x.inputs[0].shape), steps=steps)
    attrs = {
        "strides": tuple(r.stride for r in reads),
        "dilations": tuple(r.dilation for r in reads),
        "pads": tuple(r.pads for r in reads),
    }
    return b(ops.conv, b.at(x.loc)(ops.transpose, kept, perm=perm), w, **{**a, **attrs})


RULES = RuleTable([Rule("skip-points", (ops.conv,), _without_skipped, "every product has the factors that it had")])
