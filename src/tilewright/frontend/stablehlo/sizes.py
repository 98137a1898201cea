"""Symbolic sizes of ``jax.export`` as sizes of ours.

In: avals, whose sizes are numbers or JAX's expressions of symbols. Out: shapes. Not its business: sizes that a program
computes inside (``known``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.core import expr
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym

Shape = Sequence[Dim | None]


def argument_shapes(avals: Sequence[Any]) -> list[Shape]:
    """The shape of each argument; None for a size whose expression has no form here, which is then a symbol."""
    return [tuple(_size(d) for d in aval.shape) for aval in avals]


def _size(d: Any) -> Dim | None:
    if is_known(d):
        return d
    try:
        return expr.parse(str(d), lambda name: Sym(name, 1))
    except (ValueError, SyntaxError, KeyError):
        return None
