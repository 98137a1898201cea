"""What LLVM's text for a GPU may rely on.

In: a ``Gpu``. Out: what ``codegen.llvm`` asks of every machine, for one thread of that GPU. Not its business: numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.target.gpu import Gpu

POINTER_BYTES = 8


@dataclass(frozen=True)
class ThreadInstructions:
    """One thread is a scalar machine that moves up to 16 bytes at a time and rounds, converts and saturates by itself.

    Vectors in LLVM's text are such accesses, and the operations on their elements one by one. A masked access becomes a
    branch for each element, so masks are not cheap, and there is no gather. Loads don't begin before the branches in
    front of them are decided.
    """

    gpu: Gpu
    attributes: str = ""
    pointer_bytes: int = POINTER_BYTES
    has_f64: bool = True
    has_fma: bool = True
    has_masks: bool = False
    has_gather: bool = False
    loses_gathers: bool = False
    loses_fixed_points: bool = False
    has_scalef: bool = False
    has_nearest: bool = False
    has_round: bool = True
    has_f16c: bool = True
    has_bf16: bool = True
    has_saturation: bool = True
    byte_lookup: str = ""
    word_product: str = ""
    guesses_branches: bool = False

    @property
    def triple(self) -> str:
        """LLVM's name of the machine."""
        return self.gpu.triple

    @property
    def vector_bytes(self) -> int:
        """What a thread loads or stores at one time."""
        return self.gpu.access_bytes
