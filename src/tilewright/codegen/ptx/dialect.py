"""How a maker's GPUs spell what all GPUs do: one table for each maker.

In: nothing. Out: a :class:`Dialect`, and NVIDIA's. Not its business: who uses it (``function``, ``launch``, ``arith``),
matrix instructions and asynchronous copies, which have files of their own; what a GPU can do (``target.gpu``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.codegen.ptx.mma import INSTRUCTIONS
from tilewright.target.matrices import SHAPES, MatrixShape

if TYPE_CHECKING:
    from tilewright.codegen.ptx.arith import PtxArith

WORD_BITS = 32
"""What lanes exchange at one time."""
ALL_LANES = -1


class InstructionTemplate(Protocol):
    """How an instruction of matrix units is spelled."""

    def operands(self, arith: PtxArith, words: list[Val]) -> list[str]:
        """The registers of a factor as the call has them, of words of two elements."""

    def multiply(self, arith: PtxArith, left: list[str], right: list[str], sums: list[Val]) -> list[Val]:
        """Emit the call: the new sums."""


@dataclass(frozen=True)
class Dialect:
    """Pieces of LLVM text. ``convention`` marks the functions that a launch calls.

    ``thread`` and ``block`` are the calls that give a place along the axis ``{}``; ``barrier`` is where the threads of
    a block meet. ``exchange`` is how a lane gets a word, of the type that it is told, from the lane whose number
    differs in one bit, of a warp of so many. ``functions`` are instructions for functions of f32, by our names.
    ``instructions`` are those of matrix units, by their shapes.

    ``bounds`` is what a function's head says of its block's extents, and of having warps; ``footer`` is what a module
    ends with.
    ``stack_space``, ``constant_space`` and ``argument_space`` number the address spaces of a thread's own memory, of
    tables and of what arguments point to, where LLVM does not take generic pointers for them. It ``has_masks``:
    LLVM takes vectors of bits, to load by them and to ask whether one is set. It ``has_bfloat``: LLVM has a type
    of bf16, and rounds f32 to it. It ``has_extremes``: LLVM's ``maximum`` and ``minimum`` keep a NaN of f32.
    """

    convention: str
    thread: str
    block: str
    barrier: str
    exchange: Callable[[Writer, Val, str, int, int], str]
    functions: Mapping[str, str]
    instructions: Mapping[MatrixShape, InstructionTemplate]
    bounds: Callable[[tuple[int, int, int], bool], str]
    footer: str = ""
    stack_space: int | None = None
    constant_space: int | None = None
    argument_space: int | None = None
    has_masks: bool = True
    has_bfloat: bool = True
    has_extremes: bool = True


def _shuffled(_: Writer, word: Val, element: str, distance: int, n_lanes: int) -> str:
    """``shfl.sync``, which speaks of f32 as well as of integers."""
    operands = f"i32 {ALL_LANES}, {element} {word.text}, i32 {distance}, i32 {n_lanes - 1}"
    return f"call {element} @llvm.nvvm.shfl.sync.bfly.{'f32' if element == 'float' else element}({operands})"


def _extents(block: tuple[int, int, int], _: bool) -> str:
    """How many threads a block has, so that ptxas knows how many registers each may have."""
    return f'"nvvm.reqntid"="{",".join(map(str, block))}"'


NVIDIA = Dialect(
    convention="ptx_kernel",
    thread="call i32 @llvm.nvvm.read.ptx.sreg.tid.{}()",
    block="call i32 @llvm.nvvm.read.ptx.sreg.ctaid.{}()",
    barrier="call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
    exchange=_shuffled,
    functions={"exp2_flushed": "llvm.nvvm.ex2.approx.ftz.f", "reciprocal_flushed": "llvm.nvvm.rcp.approx.ftz.f"},
    instructions={shape: x for shape in SHAPES for x in INSTRUCTIONS if x.dtype is shape.dtype},
    bounds=_extents,
)
