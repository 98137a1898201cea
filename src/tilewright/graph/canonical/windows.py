"""Rules of ``canonicalize`` for windows: taps that only ever meet padding go.

In: one pool of known sizes whose window is larger than its input. Out: an equal one whose window is as large as what
its taps meet. Not its business: padding before a window (``movement``).

Frontends round sizes up by padding at the end, so a pool of 2560x2560 over an image of 2x2, as EfficientNet has for
"all there is", would be read from a padded copy that is a million times as large as the image.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TypeAlias

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.rewrite import Replacement, Rewriting, Rule
from tilewright.ops.convolution import padding_behind, spatial_axes, window_size
from tilewright.ops.pool import counts_at, total_pads

POOLS = (ops.max_pool, ops.max_pool_indices, ops.avg_pool)
Taps: TypeAlias = tuple[int, tuple[int, int]]
"""How many taps a window has along an axis, and its padding there."""


def _met(size: int, kernel: int, stride: int, pads: tuple[Dim, Dim], dilation: int, places: int) -> Taps | None:
    """The taps that meet an element at some of ``places``; None where they can't be a window of their own."""
    before = pads[0]
    if not is_known(before):
        return None
    starts = [p * stride - before for p in range(places)]
    firsts, lasts = zip(*(_inside(s, size, kernel, dilation) for s in starts), strict=True)
    first, last = min(firsts), max(lasts)
    if first > last or before < first * dilation:
        return None
    before, taps = before - first * dilation, last - first + 1
    after = max(padding_behind(size, taps, stride, before, dilation, places), 0)
    return (taps, (before, after)) if window_size(size, taps, stride, (before, after), dilation) == places else None


def _inside(start: int, size: int, kernel: int, dilation: int) -> tuple[int, int]:
    """The first and the last tap of a window that begins at ``start`` which lie among ``size`` elements."""
    first, last = max(-(start // dilation), 0), min((size - 1 - start) // dilation, kernel - 1)
    return (first, last) if first <= last else (kernel, -1)


def _axes(node: Node, sizes: tuple[int, ...], places: tuple[int, ...]) -> list[Taps] | None:
    """For each spatial axis what is left of the window; None where nothing goes."""
    a, kernel = node.attrs, tuple(node.attrs["kernel"])
    dilations = a["dilations"] or (1,) * len(kernel)
    if all((k - 1) * d < n for k, d, n in zip(kernel, dilations, sizes, strict=True)):
        return None
    found = [_met(*v) for v in zip(sizes, kernel, a["strides"], total_pads(a), dilations, places, strict=True)]
    axes = [x for x in found if x is not None]
    return axes if len(axes) == len(kernel) and tuple(taps for taps, _ in axes) != kernel else None


def _smaller_pool(b: Rewriting, node: Node) -> Replacement:
    """A pool whose window is as large as what it meets; a mean goes on dividing by as many."""
    x, a = node.inputs[0], node.attrs
    spatial = spatial_axes(a["layout"], x.type.rank)
    sizes, places = (tuple(n for n in (t.shape[k] for k in spatial) if is_known(n)) for t in (x.type, node.types[0]))
    if not len(sizes) == len(places) == len(spatial) or 0 in (*sizes, *places):
        return None
    axes = _axes(node, sizes, places)
    if axes is None:
        return None
    smaller = {**a, "kernel": tuple(taps for taps, _ in axes), "pads": tuple(pads for _, pads in axes)}
    if node.op is ops.avg_pool:
        every = () if a["divisor"] else product(*(range(n) for n in places))
        counts = {math.prod(n for n in counts_at(a, sizes, at) if is_known(n)) for at in every} or {a["divisor"]}
        if len(counts) != 1:
            return None
        smaller |= {"divisor": counts.pop(), "ceil_pads": (), "count_include_pad": False}
    made = b.results(b(node.op, x, **smaller))
    return made if len(made) > 1 else made[0]


RULES = (Rule("taps-in-padding", POOLS, _smaller_pool, "padding is the identity of what a window folds by"),)
