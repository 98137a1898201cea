"""Blocks of GGUF as codes with a scale for each group, which products read as they are.

In: the bytes of a matrix, and the name of their type. Out: its whole numbers, scales and offsets. Not its business:
what arithmetic becomes of them (``coded_layers``, ``graph.forms.coded``), the container (``gguf_file``).

How a type's bits are laid out is known to the package ``gguf`` alone. Each type's number is ``scale * step + offset``,
so its parts are what the package makes of the same blocks with other bytes in some places: steps are the numbers of
blocks whose scales are 1 and whose offsets are 0, and scales are the numbers of blocks whose steps are all 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.types import Array

Bytes = tuple[tuple[int, int, bytes], ...]
"""From which byte of a block to which, and what is written there again and again."""
_ONE, _NONE = np.float16(1).tobytes(), np.float16(0).tobytes()


@dataclass(frozen=True)
class _Block:
    """How a type keeps its numbers: ``group`` of them have a scale and an offset.

    ``plain`` writes scales of 1 and offsets of 0, ``ones`` steps of 1 and offsets of 0, and where a type has offsets
    ``zeros`` writes steps of 0.
    """

    group: int
    plain: Bytes
    ones: Bytes
    zeros: Bytes = ()


_K_SCALES = ((4, 8, b"\x01"), (8, 12, b"\x00"), (12, 16, b"\x01"))
"""Eight scales of 1 and eight offsets of 0, in six bits each, of Q4_K and Q5_K."""
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
        16, ((0, 16, b"\x01"), (80, 82, _ONE), (82, 84, _NONE)), ((16, 80, b"\x55"), (82, 84, _NONE)),
        ((16, 80, b"\0"),),
    ),
    "Q3_K": _Block(
        16, ((96, 104, b"\x11"), (104, 108, b"\xaa"), (108, 110, _ONE)), ((0, 32, b"\xff"), (32, 96, b"\x55"))
    ),
    "Q4_K": _Block(
        32, ((0, 2, _ONE), (2, 4, _NONE), *_K_SCALES), ((2, 4, _NONE), (16, 144, b"\x11")), ((16, 144, b"\0"),)
    ),
    "Q5_K": _Block(
        32, ((0, 2, _ONE), (2, 4, _NONE), *_K_SCALES), ((2, 4, _NONE), (16, 48, b"\0"), (48, 176, b"\x11")),
        ((16, 176, b"\0"),),
    ),
    "Q6_K": _Block(16, ((192, 208, b"\x01"), (208, 210, _ONE)), ((0, 128, b"\x11"), (128, 192, b"\xaa"))),
}  # fmt: skip
"""By GGUF's names. Bytes are counted as ``gguf.quants`` reads them."""


@dataclass(frozen=True)
class Codes:
    """A matrix as ``steps`` i8[rows, groups, group] times ``scales`` f32[rows, groups, 1], plus ``offsets`` or not.

    ``offsets`` are f32[rows, groups]. In halves ``steps`` are f16, and there are no scales.
    """

    steps: Array
    scales: Array | None = None
    offsets: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        rows, n_groups, group = self.steps.shape
        return rows, n_groups * group

    def parts(self) -> tuple[Array | None, ...]:
        return self.steps, self.scales, self.offsets

    def of_rows(self, moved: Callable[[Array], Array]) -> Codes:
        """The codes of the rows that ``moved`` makes of these."""
        return Codes(moved(self.steps), *(None if a is None else moved(a) for a in self.parts()[1:]))


def codes_of(data: Array, kind: str, shape: tuple[int, ...]) -> Codes | None:
    """The codes of a matrix of one type; None of a type whose numbers are none, and of what is no matrix."""
    if len(shape) != 2 or not all(shape):
        return None
    if kind == "F16":
        return Codes(data.reshape(shape[0], 1, shape[1]))
    block = _BLOCKS.get(kind)
    if block is None:
        return None
    rows, n_groups = shape[0], shape[1] // block.group
    steps = _numbers(data, kind, block.plain).astype(np.int8).reshape(rows, n_groups, block.group)
    firsts = (rows, n_groups, block.group)
    scales = _numbers(data, kind, block.ones).reshape(firsts)[..., :1]
    offsets = _numbers(data, kind, block.zeros).reshape(firsts)[..., 0] if block.zeros else None
    return Codes(steps, np.ascontiguousarray(scales), None if offsets is None else np.ascontiguousarray(offsets))


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
