"""Rules of ``canonicalize`` for windows: taps that only ever meet padding go.

In: one pool of known sizes whose window is larger than its input. Out: an equal one whose window is as large as what
its taps meet. Not its business: padding before a window (``movement``).

Frontends round sizes up by padding at the end, so a pool of 2560x2560 over an image of 2x2, as EfficientNet has for
"all there is", would be read from a padded copy that is a million times as large as the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from tilewright import ops
from tilewright.core.dims import are_known, known, numbers
from tilewright.core.graph import Node
from tilewright.core.rewrite import Replacement, Rewriting, Rule
from tilewright.ops.convolution import spatial_axes, window_size
from tilewright.ops.pool import counts_at, total_pads

POOLS = (ops.max_pool, ops.max_pool_indices, ops.avg_pool)


@dataclass(frozen=True)
class _Axis:
    """A window along one axis of known size: ``first`` is the first of its taps that meets an element."""

    first: int
    kernel: int
    pads: tuple[int, int]


def _met(size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> _Axis | None:
    """The taps that meet an element at some place of the window; None where they can't be a window of their own."""
    n, (before, _) = known(window_size(size, kernel, stride, pads, dilation), 0), pads
    starts = [p * stride - before for p in range(n)]
    met = [t for t in range(kernel) if any(0 <= s + t * dilation < size for s in starts)]
    if not met:
        return None
    before -= met[0] * dilation
    taps = met[-1] - met[0] + 1
    after = max((n - 1) * stride + (taps - 1) * dilation + 1 - size - before, 0)
    if before < 0 or window_size(size, taps, stride, (before, after), dilation) != n:
        return None
    return _Axis(met[0], taps, (before, after))


def _axes(node: Node, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> list[_Axis] | None:
    """For each spatial axis what is left of the window; None where nothing goes."""
    a = node.attrs
    dilations = a["dilations"] or (1,) * len(kernel)
    if all((k - 1) * d < n for k, d, n in zip(kernel, dilations, sizes, strict=True)):
        return None
    pads = [(known(before, 0), known(after, 0)) for before, after in total_pads(a)]
    found = [_met(*v) for v in zip(sizes, kernel, a["strides"], pads, dilations, strict=True)]
    axes = [x for x in found if x is not None]
    return axes if len(axes) == len(kernel) and tuple(x.kernel for x in axes) != kernel else None


def _smaller_pool(b: Rewriting, node: Node) -> Replacement:
    """A pool whose window is as large as what it meets; a mean goes on dividing by as many."""
    x, a = node.inputs[0], node.attrs
    spatial = spatial_axes(a["layout"], x.type.rank)
    sizes = tuple(numbers(x.shape[k] for k in spatial))
    if len(sizes) < len(spatial) or not all(sizes) or not are_known(p for pair in total_pads(a) for p in pair):
        return None
    axes = _axes(node, sizes, tuple(a["kernel"]))
    if axes is None:
        return None
    smaller = {**a, "kernel": tuple(x.kernel for x in axes), "pads": tuple(x.pads for x in axes)}
    if node.op is ops.avg_pool and not a["divisor"]:
        places = [range(n) for n in numbers(node.shape[k] for k in spatial)]
        counts = {math.prod(numbers(counts_at(a, sizes, at))) for at in product(*places)}
        if len(counts) != 1:
            return None
        smaller |= {"divisor": counts.pop(), "ceil_pads": (), "count_include_pad": False}
    elif node.op is ops.avg_pool:
        smaller |= {"ceil_pads": ()}
    made = b.results(b(node.op, x, **smaller))
    return made if len(made) > 1 else made[0]


RULES = (Rule("taps-in-padding", POOLS, _smaller_pool, "padding is the identity of what a window folds by"),)
