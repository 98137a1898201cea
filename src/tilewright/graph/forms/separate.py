"""The pass ``separate-windows``: a pool over a large window becomes one pool for each axis.

In: a graph. Out: an equal graph, means within rounding. Not its business: layouts (``layout``), loops (``tile``).

The maximum over 5 x 5 elements is that over 5 of the maxima over 5: 10 steps a result, not 25; so are means, since how
many elements count is a product over the axes. The first pool runs along the outermost axis, where whole rows of
columns and channels fill vectors.
``docs/choices.md`` ("Layers that were behind") has what it is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from tilewright import ops
from tilewright.core import types
from tilewright.core.estimates import DOUBT, PASSED_CYCLES
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite

WIDE = (types.f32, types.f64)
"""Dtypes whose means may be rounded once more."""
CARRIED = 3
"""Instructions of a step of a maximum of floats: the larger one, is it NaN, and which of the two; others take one."""


@dataclass(frozen=True)
class SeparateWindows(Pass):
    """``pool(x, k1 x k2 ...)`` becomes ``pool(pool(x, k1 x 1 ...), 1 x k2 ...)`` where that takes fewer instructions.

    It fires on maxima of any dtype and means in f32 and f64, with any strides, padding and dilation, again on what is
    left of a volume's window. It does not fire on small windows (2 x 2, means over 3 x 3), on large strides, on means
    in narrow dtypes, and on maxima with indices.
    """

    name: ClassVar[str] = "separate-windows"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


def _separate(b: Rewriting, node: Node) -> Node | None:
    a, (x,) = node.attrs, node.inputs
    kernel, strides = a["kernel"], a["strides"]
    k = next((k for k, n in enumerate(kernel) if n > 1), len(kernel))
    rest = kernel[k + 1 :]
    if not rest or (node.op is ops.avg_pool and x.dtype not in WIDE):
        return None
    step = CARRIED if node.op is ops.max_pool and x.dtype.is_float else 1
    apart = prod(strides[k + 1 :]) * (step * kernel[k] + PASSED_CYCLES) + step * prod(rest)
    if apart > (1 - DOUBT) * step * prod(kernel):
        return None

    first, last = axis_by_axis(a, k)
    return b(node.op, b(node.op, x, **first), **last)


def axis_by_axis(a: Mapping[str, Any], k: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of a pool along the axes up to ``k``, and of the one along the others behind it."""
    plain = {"kernel": 1, "strides": 1, "pads": (0, 0), "dilations": 1, "ceil_pads": 0}

    def along(is_mine: list[bool]) -> dict[str, Any]:
        """On the other axes a window of one element."""
        parts = {
            name: tuple(v if mine else one for v, mine in zip(a[name], is_mine, strict=True))
            for name, one in plain.items()
            if a.get(name)
        }
        return {**a, **parts}

    first = [i <= k for i in range(len(a["kernel"]))]
    alone = {"divisor": 1} if a.get("divisor") else {}
    return {**along(first), **alone}, along([not mine for mine in first])


RULES = RuleTable(
    [Rule("separate-windows", (ops.max_pool, ops.avg_pool), _separate, "folds and counts are products over the axes")]
)
