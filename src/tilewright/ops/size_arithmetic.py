"""What ops on integers mean for sizes: expressions of symbols, and answers that the symbols' ranges prove.

In: two sizes. Out: their sum and the like, or whether they compare so; None where the ranges leave it open. Not its
business: which tensors hold sizes (``graph.canonical.shapes``, ``frontend.stablehlo.known``).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.core.expr import Dim, floordiv, is_nonneg, maximum, minimum, mod
from tilewright.core.opdef import OpDef


def _apart(a: Dim, b: Dim) -> bool:
    return is_nonneg(a - b - 1) or is_nonneg(b - a - 1)


def _less(a: Dim, b: Dim) -> bool | None:
    if is_nonneg(b - a - 1):
        return True
    return False if is_nonneg(a - b) else None


def _negated(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


ARITHMETIC: dict[OpDef, Callable[[Dim, Dim], Dim]] = {
    ops.add: lambda a, b: a + b,
    ops.sub: lambda a, b: a - b,
    ops.mul: lambda a, b: a * b,
    ops.minimum: minimum,
    ops.maximum: maximum,
    ops.floor_div: floordiv,
    ops.mod: mod,
}
COMPARISONS: dict[OpDef, Callable[[Dim, Dim], bool | None]] = {
    ops.eq: lambda a, b: True if a == b else False if _apart(a, b) else None,
    ops.ne: lambda a, b: False if a == b else True if _apart(a, b) else None,
    ops.lt: _less,
    ops.gt: lambda a, b: _less(b, a),
    ops.le: lambda a, b: _negated(_less(b, a)),
    ops.ge: lambda a, b: _negated(_less(a, b)),
}
