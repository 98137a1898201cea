"""Index expressions over other numbers than Python's: arrays of places, or sizes that another library computes with.

In: an expression, what its symbols are, four operations. Out: such a number. Not its business: symbols that become
expressions (``expr.substitute``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Mul, Sym

Operations = Mapping[str, Callable[[Any, Any], Any]]
"""``floordiv``, ``mod``, ``min`` and ``max`` of two numbers; sums and products are Python's operators."""

OF_INTEGERS: Operations = {"floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max}
"""Of Python's integers, where many values of one expression are asked for: ``expr.evaluate`` simplifies as it goes."""

OF_ARRAYS: Operations = {"floordiv": np.floor_divide, "mod": np.mod, "min": np.minimum, "max": np.maximum}


def valued(e: Dim, values: Mapping[Sym, Any], operations: Operations) -> Any:
    """What ``e`` is where its symbols are ``values``; a Python integer for a number."""
    if is_known(e):
        return e
    if isinstance(e, Sym):
        return values[e]
    if isinstance(e, Mul):
        product: Any = 1
        for f in e.factors:
            product = product * valued(f, values, operations)
        return product
    if isinstance(e, BinaryExpr):
        return operations[e.op](valued(e.a, values, operations), valued(e.b, values, operations))
    total: Any = e.const
    for atom, c in e.terms:
        total = total + c * valued(atom, values, operations)
    return total
