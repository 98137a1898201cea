"""Blocks of GGUF as codes with a scale for each group, which products read as they are.

In: the bytes of a matrix, and the name of their type. Out: its whole numbers, scales and offsets. Not its business:
what arithmetic becomes of them (``coded_layers``, ``graph.forms.coded``), the container (``gguf_file``).

How a type's bits are laid out is known to the package ``gguf`` alone. Each type's number is ``scale * step + offset``,
so its parts are what the package makes of the same blocks with other bytes in some places: steps are the numbers of
blocks whose scales are 1 and whose offsets are 0, and scales are the numbers of blocks whose steps are all 1. Where a
block of 256 has a unit in half precision and whole numbers of it for each of its groups, these are told apart so, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.types import Array

Bytes = tuple[tuple[int, int, bytes], ...]
"""From which byte of a block to which, and what is written there again and again."""
BLOCK = 256
"""Numbers of a block whose groups have whole numbers of a unit."""
_ONE, _NONE = np.float16(1).tobytes(), np.float16(0).tobytes()


@dataclass(frozen=True)
class _Block:
    """How a type keeps its numbers: ``group`` of them have a scale and an offset.

    What is written so that numbers are steps, scales, offsets; of a type whose scales and offsets are whole numbers of
    units, these numbers, and then the units.
    """

    group: int
    steps: Bytes
    scales: Bytes
    offsets: Bytes = ()
    units: Bytes = ()
    offset_units: Bytes = ()


_K_SCALES = ((4, 8, b"\x01"), (8, 12, b"\x00"), (12, 16, b"\x01"))
"""Eight scales of 1 and eight offsets of 0, in six bits each, of Q4_K and Q5_K."""
_K_OFFSETS = ((4, 12, b"\x01"), (12, 16, b"\x11"))
"""The same with offsets of 1."""


def _with_offsets(quants: int, end: int, one: Bytes) -> _Block:
    """Q4_K or Q5_K, whose quants begin and end there; ``one`` makes all steps 1."""
    unit, none, zero = ((0, 2, _ONE),), ((2, 4, _NONE),), ((quants, end, b"\0"), (0, 2, _ONE))
    return _Block(
        32, (*unit, *none, *_K_SCALES), (*unit, *none, *one), (*zero, (2, 4, _ONE)), (*none, *one, *_K_SCALES),
        (*zero, *_K_OFFSETS),
    )  # fmt: skip


_BLOCKS = {
    "Q4_0": _Block(32, ((0, 2, _ONE),), ((2, 18, b"\x99"),)),
    "Q4_1": _Block(32, ((0, 2, _ONE), (2, 4, _NONE)), ((2, 4, _NONE), (4, 20, b"\x11")), ((4, 20, b"\0"),)),
    "Q5_0": _Block(32, ((0, 2, _ONE),), ((2, 6, b"\xff"), (6, 22, b"\x11"))),
    "Q5_1": _Block(
        32, ((0, 2, _ONE), (2, 4, _NONE)), ((2, 4, _NONE), (4, 8, b"\0"), (8, 24, b"\x11")), ((4, 24, b"\0"),)
    ),
    "Q8_0": _Block(32, ((0, 2, _ONE),), ((2, 34, b"\x01"),)),
    "IQ4_NL": _Block(32, ((0, 2, _ONE),), ((2, 18, b"\x88"),)),
    "Q2_K": _Block(
        16, ((0, 16, b"\x01"), (80, 82, _ONE), (82, 84, _NONE)), ((16, 80, b"\x55"), (80, 82, _ONE), (82, 84, _NONE)),
        ((16, 80, b"\0"), (80, 84, _ONE)), ((0, 16, b"\x01"), (16, 80, b"\x55"), (82, 84, _NONE)),
        ((0, 16, b"\x10"), (16, 80, b"\0"), (80, 82, _ONE)),
    ),
    "Q3_K": _Block(
        16, ((96, 104, b"\x11"), (104, 108, b"\xaa"), (108, 110, _ONE)),
        ((0, 32, b"\xff"), (32, 96, b"\x55"), (108, 110, _ONE)), (),
        ((0, 32, b"\xff"), (32, 96, b"\x55"), (96, 104, b"\x11"), (104, 108, b"\xaa")),
    ),
    "Q4_K": _with_offsets(16, 144, ((16, 144, b"\x11"),)),
    "Q5_K": _with_offsets(16, 176, ((16, 48, b"\0"), (48, 176, b"\x11"))),
    "Q6_K": _Block(
        16, ((192, 208, b"\x01"), (208, 210, _ONE)), ((0, 128, b"\x11"), (128, 192, b"\xaa"), (208, 210, _ONE)), (),
        ((0, 128, b"\x11"), (128, 192, b"\xaa"), (192, 208, b"\x01")),
    ),
}  # fmt: skip
"""By GGUF's names. Bytes are counted as ``gguf.quants`` reads them."""


@dataclass(frozen=True)
class Scales:
    """A number for each group: f32[rows, groups], or i8[rows, units, groups of each] times ``units`` f16[rows, units].

    So the package has them: products of such a whole number and a half are exact in f32.
    """

    numbers: Array
    units: Array | None = None

    def real(self) -> Array:
        """f32[rows, groups]."""
        if self.units is None:
            return self.numbers
        made = self.numbers.astype(np.float32) * self.units[..., None].astype(np.float32)
        return np.asarray(made.reshape(len(made), -1))

    def of_rows(self, moved: Callable[[Array], Array]) -> Scales:
        return Scales(moved(self.numbers), None if self.units is None else moved(self.units))


@dataclass(frozen=True)
class Codes:
    """A matrix as ``steps`` i8[rows, groups, group] times the group's scale, plus its offset where there are any.

    In halves ``steps`` are f16, and there are no scales.
    """

    steps: Array
    scales: Scales | None = None
    offsets: Scales | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        rows, n_groups, group = self.steps.shape
        return rows, n_groups * group

    def of_rows(self, moved: Callable[[Array], Array]) -> Codes:
        """The codes of the rows that ``moved`` makes of these."""
        parts = (self.scales, self.offsets)
        return Codes(moved(self.steps), *(None if a is None else a.of_rows(moved) for a in parts))


def codes_of(data: Array, kind: str, shape: tuple[int, ...]) -> Codes | None:
    """The codes of a matrix of one type; None of a type whose numbers are none, and of what is no matrix."""
    if len(shape) != 2 or not all(shape):
        return None
    if kind == "F16":
        return Codes(data.reshape(shape[0], 1, shape[1]))
    block = _BLOCKS.get(kind)
    if block is None:
        return None
    firsts = (shape[0], shape[1] // block.group, block.group)
    steps = _numbers(data, kind, block.steps).astype(np.int8).reshape(firsts)
    scales = _scales(data, kind, firsts, block.scales, block.units)
    offsets = _scales(data, kind, firsts, block.offsets, block.offset_units) if block.offsets else None
    return Codes(steps, scales, offsets)


def _scales(data: Array, kind: str, groups: tuple[int, int, int], written: Bytes, of_units: Bytes) -> Scales:
    """The first number of each group of blocks of which these bytes are others, and units where there are any.

    Both may be less than 0, as offsets are that are taken off: then it is units that are.
    """
    numbers = np.ascontiguousarray(_numbers(data, kind, written).reshape(groups)[..., 0])
    if not of_units:
        return Scales(numbers)
    units = _numbers(data, kind, of_units).reshape(groups[0], -1, BLOCK)[..., 0].astype(np.float16)
    if written[0][2] == b"\0":  # steps of 0: what is left is taken off
        numbers = -numbers
    return Scales(numbers.astype(np.int8).reshape(*units.shape, -1), np.ascontiguousarray(units))


def _numbers(data: Array, kind: str, written: Bytes) -> Any:
    """What the blocks of ``data`` stand for when some of their bytes are others."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = np.array(data).reshape(-1, size)
    for begin, end, value in written:
        blocks[:, begin:end] = np.resize(np.frombuffer(value, np.uint8), end - begin)
    with np.errstate(all="ignore"):  # scales are anybody's numbers
        return dequantize(blocks.reshape(data.shape), GGMLQuantizationType[kind])
