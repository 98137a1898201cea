"""Checks that the type rules of data-moving ops share, beside those of ``ops.common``.

In: shapes and types. Out: nothing, or an ``OpError`` that says what is wrong.
Not its business: any op's own rule.

Dimensions disagree only where that is proved: data-moving ops meet sizes such as ``s // 2 * 2`` and ``s``, whose
equality the user asserts and no algebra shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tilewright.core.diag import OpError
from tilewright.core.dims import known_under
from tilewright.core.expr import Dim, to_text
from tilewright.core.opdef import Trait
from tilewright.core.shapes import surely_differ
from tilewright.core.types import TensorType

Types: TypeAlias = Sequence[TensorType]
MOVEMENT = frozenset({Trait.MOVEMENT})


def check_not_negative(shape: Sequence[Dim]) -> None:
    """Raise ``OpError`` when a dimension is a negative number."""
    if any(known_under(d, 0) for d in shape):
        raise OpError(f"shape {shape_text(shape)} has a negative dimension", remedy="resolve -1 before adding the op")


def check_integers(t: TensorType, name: str) -> None:
    """Raise ``OpError`` unless the elements are integers."""
    if not t.dtype.is_integer:
        raise OpError(f"{name} must be integers, not {t}", remedy="cast them to i64")


def check_same_dims(a: Sequence[Dim], b: Sequence[Dim], what: str) -> None:
    """Raise ``OpError`` when two shapes are proved to differ."""
    if len(a) != len(b) or any(surely_differ(x, y) for x, y in zip(a, b, strict=True)):
        raise OpError(f"{what}: {shape_text(a)} and {shape_text(b)} differ")


def check_exact_dims(a: Sequence[Dim], b: Sequence[Dim], what: str) -> None:
    """Raise ``OpError`` unless two shapes are equal expressions."""
    if tuple(a) != tuple(b):
        raise OpError(f"{what}: {shape_text(a)} and {shape_text(b)} differ", remedy="use one symbol for equal sizes")


def shape_text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(to_text(d) for d in shape)}]"
