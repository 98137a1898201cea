"""Matrix units of GPUs: what one instruction of a warp multiplies, and which lane holds which element.

In: nothing. Out: shapes of instructions, and the layouts of their operands as data.
Not its business: how an instruction is spelled (``codegen.ptx.mma``), tiles and shared memory (``choose``).

The layouts are those of NVIDIA's Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16", and of AMD's
matrix instruction calculator (github.com/ROCm/amd_matrix_instruction_calculator) for ``v_mfma_f32_16x16x16_bf16`` and
``v_wmma_f32_16x16x16_bf16``: which row and column of a matrix each element of each lane is. A :class:`Fragment` spells
one by the digits of the lane's number and the element's, so that it is evaluated by interpreters and written as
instructions alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core import types
from tilewright.core.types import DType
from tilewright.runtime.once import computed

WARP = 32
GROUP = 4
"""Lanes that hold one row of an accumulator between them."""


@dataclass(frozen=True)
class Digit:
    """``(n // divisor % base) * weight`` of a number ``n``: how a part of it moves along a dimension of a matrix."""

    divisor: int
    base: int
    weight: int

    def of(self, n: int) -> int:
        """What the number adds."""
        return n // self.divisor % self.base * self.weight


@dataclass(frozen=True)
class Fragment:
    """A matrix of ``rows`` by ``columns`` in the registers of a warp: each lane holds ``count`` elements.

    Element ``e`` of lane ``l`` lies in the row and column that the digits of ``l`` and of ``e`` add up to. It is a
    bijection from (lane, element) to (row, column), which tests check. Where ``copies`` lanes hold each element, it is
    one of each of so many parts of the ``lanes``.
    """

    rows: int
    columns: int
    lane: tuple[tuple[Digit, ...], tuple[Digit, ...]]
    element: tuple[tuple[Digit, ...], tuple[Digit, ...]]
    lanes: int = WARP
    copies: int = 1

    @property
    def count(self) -> int:
        """Elements of a lane."""
        return self.rows * self.columns * self.copies // self.lanes

    def place(self, lane: int, element: int) -> tuple[int, int]:
        """Row and column."""
        row, column = (
            sum(d.of(lane) for d in self.lane[axis]) + sum(d.of(element) for d in self.element[axis]) for axis in (0, 1)
        )
        return row, column

    @computed
    def holders(self) -> Mapping[tuple[int, int], int]:
        """The lane that holds each row and column, the first one of several."""
        return {self.place(lane, e): lane for lane in reversed(range(self.lanes)) for e in range(self.count)}


ROW = Digit(GROUP, WARP // GROUP, 1)
PAIR = Digit(1, GROUP, 2)


def sums_of(columns: int) -> Fragment:
    """16 rows of sums, of a multiple of eight columns.

    A lane holds two neighbours in a row, two more eight rows below, and the same of every eight columns.
    """
    return Fragment(16, columns, ((ROW,), (PAIR,)), ((Digit(2, 2, 8),), (Digit(1, 2, 1), Digit(4, columns // 8, 8))))


RUN_LENGTHS = (8, 4, 2)
"""How many neighbours in a row of sums a lane may have once the lanes of the row have exchanged theirs."""


def runs_of(n_runs: int, length: int) -> Fragment:
    """16 rows of runs of neighbouring sums, for a multiple of four runs: a column of the fragment is a run.

    The four lanes of a row hold pairs (:func:`sums_of`). Each exchange with the lane whose number differs in one bit
    doubles the runs and halves what they are of, so that of four runs beside each other every lane has one: which one
    follows from the bits by which lanes exchanged, which come first.
    """
    exchanged = (length // 2).bit_length() - 1
    bits = [Digit(1 << bit, 2, 1 << bit) for bit in range(2)]
    moved = [Digit(d.divisor, 2, d.weight << (2 - exchanged)) for d in bits[:exchanged]]
    stayed = [Digit(d.divisor, 2, d.weight >> exchanged) for d in bits[exchanged:]]
    element = ((Digit(1, 2, 8),), (Digit(2, n_runs // GROUP, GROUP),))
    return Fragment(16, n_runs, ((ROW,), (*moved, *stayed)), element)


SUMS = sums_of(8)
LEFT = Fragment(16, 16, ((ROW,), (PAIR,)), ((Digit(2, 2, 8),), (Digit(1, 2, 1), Digit(4, 2, 8))))
RIGHT = Fragment(16, 8, ((PAIR,), (ROW,)), ((Digit(1, 2, 1), Digit(2, 2, 8)), ()))


@dataclass(frozen=True)
class MatrixShape:
    """``sums[m, n] += left[m, k] * right[k, n]`` of f32 sums, by one instruction of a warp."""

    dtype: DType
    left: Fragment
    right: Fragment
    sums: Fragment = SUMS

    @property
    def extents(self) -> tuple[int, int, int]:
        """Rows and columns of the sums, and the depth."""
        return self.sums.rows, self.sums.columns, self.left.columns

    @property
    def has_pairs(self) -> bool:
        """Do four lanes hold a row of sums between them, two neighbours each? They may exchange them for runs."""
        return self.sums is SUMS


@dataclass(frozen=True)
class GroupShape:
    """What one instruction of four warps multiplies, as each of them sees it.

    A warp has 16 rows of sums, those of the four follow each other, and the right factor is the same for all. The
    factors come from swizzled shared memory.
    """

    dtype: DType
    columns: int

    @property
    def extents(self) -> tuple[int, int, int]:
        """Rows and columns of a warp's sums, and the depth."""
        return SUMS.rows, self.columns, LEFT.columns

    @property
    def has_pairs(self) -> bool:
        """The same as of the instructions of one warp."""
        return True


GROUP_WARPS = 4
"""Warps that run one of those instructions together."""
MOST_GROUP_COLUMNS = 256
PIECE_BYTES = 128
"""Bytes of a row that lie together in swizzled memory."""
CHUNK_BYTES = 16
"""Bytes that stay together there: what one lane copies at a time."""
PERIOD_BYTES = 8 * PIECE_BYTES
"""Bytes after which the exchange begins again, of which a swizzled buffer's start is a multiple."""


def group_shape_for(dtype: DType, extents: tuple[int, ...]) -> GroupShape | None:
    """The shape of such operands and loops of these extents; None where no instruction has it."""
    if dtype not in (types.bf16, types.f16) or len(extents) != len(GroupShape(dtype, 8).extents):
        return None
    shape = GroupShape(dtype, extents[1])
    is_one = shape.extents == extents and extents[1] % SUMS.columns == 0 and 0 < extents[1] <= MOST_GROUP_COLUMNS
    return shape if is_one else None


SHAPES = (MatrixShape(types.bf16, LEFT, RIGHT), MatrixShape(types.f16, LEFT, RIGHT))
"""What every GPU with ``has_mma`` multiplies."""


WAVE = 64
"""Lanes of a warp of AMD's GPUs for servers."""
_ROW, _SIDE = Digit(1, 16, 1), 16
MFMA_SUMS = Fragment(_SIDE, _SIDE, ((Digit(16, 4, 4),), (_ROW,)), ((Digit(1, 4, 1),), ()), WAVE)
MFMA_LEFT = Fragment(_SIDE, _SIDE, ((_ROW,), (Digit(16, 4, 4),)), ((), (Digit(1, 4, 1),)), WAVE)
MFMA_RIGHT = MFMA_SUMS
"""A lane has four neighbours in a column of the sums and of the right factor, and in a row of the left one."""
WMMA_SUMS = Fragment(_SIDE, _SIDE, ((Digit(16, 2, 1),), (_ROW,)), ((Digit(1, 8, 2),), ()))
WMMA_LEFT = Fragment(_SIDE, _SIDE, ((_ROW,), ()), ((), (Digit(1, 16, 1),)), copies=2)
WMMA_RIGHT = Fragment(_SIDE, _SIDE, ((), (_ROW,)), ((Digit(1, 16, 1),), ()), copies=2)
"""A lane has a whole row of the left factor or column of the right one, as the lane 16 further has, and every other
element of a column of the sums."""
MFMA_SHAPES = tuple(MatrixShape(t, MFMA_LEFT, MFMA_RIGHT, MFMA_SUMS) for t in (types.bf16, types.f16))
"""What every GPU with ``has_mfma`` multiplies."""
WMMA_SHAPES = tuple(MatrixShape(t, WMMA_LEFT, WMMA_RIGHT, WMMA_SUMS) for t in (types.bf16, types.f16))
"""What every GPU with ``has_wmma`` multiplies."""


def shape_for(dtype: DType, extents: tuple[int, ...]) -> MatrixShape | None:
    """The shape of ``mma.sync`` for operands of a dtype and loops of these extents; None where there is none."""
    return next((x for x in SHAPES if x.dtype is dtype and x.extents == extents), None)
