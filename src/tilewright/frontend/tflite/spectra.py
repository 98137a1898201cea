"""TFLite's transforms of rows, and what becomes of the complex numbers that they make.

In: calls whose complex tensors are pairs along a last axis of length 2. Out: nodes. Not its business: complex tensors
at any other operator, which are refused (``walk``), and how a transform is computed (``frontend.fourier``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Node
from tilewright.frontend.complex_pairs import from_parts, join_parts, magnitude
from tilewright.frontend.fourier import transform_along, transform_of_real
from tilewright.frontend.tflite.call import Converter, TfliteCall

MOST_LENGTH = 1 << 20
"""Of a transform: its roots are made at import, and a few bytes of a damaged file could ask for any length."""


def _rfft2d(c: TfliteCall) -> Node:
    """Of the last two axes, cut or filled up with zeros to the lengths that are asked for."""
    x, lengths = c.x(), c.ints(1)
    if (
        x.dtype is not types.f32
        or len(c.size(x)) < 2
        or len(lengths) != 2
        or not 1 <= min(lengths) <= max(lengths) <= MOST_LENGTH
    ):
        raise OpError(f"{x.type} has no transform of the lengths {lengths}", remedy="pass rows in f32")
    shape = list(c.size(x))
    kept = [*shape[:-2], *(min(n, length) for n, length in zip(shape[-2:], lengths, strict=True))]
    if kept != shape:
        x = c.b(ops.slice, x, starts=(0,) * len(shape), stops=tuple(kept), steps=(1,) * len(shape))
    rest = [length - n for n, length in zip(kept[-2:], lengths, strict=True)]
    if any(rest):
        pads = (*((0, 0),) * (len(shape) - 2), *((0, n) for n in rest))
        x = c.b(ops.pad, x, c.number(0, x), pads=pads, mode="constant")
    made = transform_of_real(c.b, x, -1)
    return join_parts(c.b, transform_along(c.b, made, len(shape) - 2, -1) if lengths[0] > 1 else made)


TABLE: Mapping[str, Converter] = {
    "RFFT2D": _rfft2d, "REAL": lambda c: from_parts(c.b, c.x()).re, "IMAG": lambda c: from_parts(c.b, c.x()).im,
    "COMPLEX_ABS": lambda c: magnitude(c.b, from_parts(c.b, c.x())),
}  # fmt: skip
