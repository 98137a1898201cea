"""Matrix products of a warp (``mma.sync``), as every NVIDIA GPU since compute capability 8.0 has them.

In: a dtype and the extents of nested ``warp`` loops. Out: the instruction that they are, or none.
Not its business: emitting it (``warps``), blocks, tiles and shared memory (the schedule's), ``wgmma`` of later GPUs.

An instruction is a pattern, the layout of its operands over the lanes, and a template. The layouts are those of
NVIDIA's Parallel Thread Execution ISA, "Matrix Fragments for mma.m16n8k16": which row and column of a matrix each
element of each lane is. A :class:`Fragment` spells one by the digits of the lane's number and the element's, so that it
is both evaluated here and written as instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core import types
from tilewright.core.types import DType

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
    bijection from (lane, element) to (row, column), which tests check.
    """

    rows: int
    columns: int
    lane: tuple[tuple[Digit, ...], tuple[Digit, ...]]
    element: tuple[tuple[Digit, ...], tuple[Digit, ...]]

    @property
    def count(self) -> int:
        """Elements of a lane."""
        return self.rows * self.columns // WARP

    def place(self, lane: int, element: int) -> tuple[int, int]:
        """Row and column."""
        row, column = (
            sum(d.of(lane) for d in self.lane[axis]) + sum(d.of(element) for d in self.element[axis]) for axis in (0, 1)
        )
        return row, column


ROW = Digit(GROUP, WARP // GROUP, 1)
PAIR = Digit(1, GROUP, 2)
SUMS = Fragment(16, 8, ((ROW,), (PAIR,)), ((Digit(2, 2, 8),), (Digit(1, 2, 1),)))
"""A lane holds two neighbours in a row, and two more eight rows below."""
LEFT = Fragment(16, 16, ((ROW,), (PAIR,)), ((Digit(2, 2, 8),), (Digit(1, 2, 1), Digit(4, 2, 8))))
RIGHT = Fragment(16, 8, ((PAIR,), (ROW,)), ((Digit(1, 2, 1), Digit(2, 2, 8)), ()))


@dataclass(frozen=True)
class MatrixInstruction:
    """``sums[m, n] += left[m, k] * right[k, n]`` of f32 sums, and how LLVM calls it.

    ``operand`` is the type of a register of the two matrices, which holds two elements of 16 bits.
    """

    name: str
    dtype: DType
    depth: int
    left: Fragment
    right: Fragment
    operand: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows and columns of the sums, and the depth."""
        return SUMS.rows, SUMS.columns, self.depth

    def call(self, left: list[str], right: list[str], sums: list[str]) -> str:
        """LLVM's call on registers; its result is a structure of four f32."""
        arguments = [f"{self.operand} {v}" for v in (*left, *right)] + [f"float {v}" for v in sums]
        return f"call {{float, float, float, float}} @llvm.nvvm.mma.{self.name}({', '.join(arguments)})"


INSTRUCTIONS = (
    MatrixInstruction("m16n8k16.row.col.bf16", types.bf16, 16, LEFT, RIGHT, "i32"),
    MatrixInstruction("m16n8k16.row.col.f32.f32", types.f16, 16, LEFT, RIGHT, "<2 x half>"),
)


def instruction_for(dtype: DType, shape: tuple[int, int, int]) -> MatrixInstruction | None:
    """The instruction for operands of a dtype and loops of these extents."""
    return next((x for x in INSTRUCTIONS if x.dtype is dtype and x.shape == shape), None)
