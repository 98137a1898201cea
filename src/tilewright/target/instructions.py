"""What the text that codegen writes may rely on of any processor, CPU or GPU.

In: nothing. Out: :class:`Instructions`, a list of capabilities which each record of a machine answers in its own way.
Not its business: numbers that choices weigh (``target.target``).
"""

from __future__ import annotations

from typing import Protocol


class Instructions(Protocol):
    """What ``codegen.llvm`` asks of a machine: ``Target`` describes each; a GPU answers for one of its threads."""

    @property
    def triple(self) -> str:
        """LLVM's name of the machine."""

    @property
    def attributes(self) -> str:
        """What every function says of itself."""

    @property
    def pointer_bytes(self) -> int:
        """Bytes of an address."""

    @property
    def vector_bytes(self) -> int:
        """Bytes that one instruction loads, stores or computes at most."""

    @property
    def has_f64(self) -> bool:
        """Are there instructions for double precision?"""

    @property
    def has_fma(self) -> bool:
        """Is there one instruction for ``a * b + c``?"""

    @property
    def has_masks(self) -> bool:
        """Are masked loads, stores and arithmetic as cheap as plain ones?"""

    @property
    def has_gather(self) -> bool:
        """Does a gather beat scalar loads?"""

    @property
    def loses_gathers(self) -> bool:
        """Does LLVM abort where a gather turns out to be dead?"""

    @property
    def loses_fixed_points(self) -> bool:
        """Does LLVM abort where a vector of floats is a power of two times integers, or becomes integers so?"""

    @property
    def has_scalef(self) -> bool:
        """Is there one instruction for ``x * 2**n``, and one for ``x - rint(x)``?"""

    @property
    def has_round(self) -> bool:
        """Are there instructions for floor, ceil, trunc and rint?"""

    @property
    def has_nearest(self) -> bool:
        """Is there one instruction that rounds the floats of a vector to the nearest 32-bit integers?"""

    @property
    def has_f16c(self) -> bool:
        """Are there instructions that convert half precision?"""

    @property
    def has_bf16(self) -> bool:
        """Are there instructions that round to bfloat16?"""

    @property
    def byte_lookup(self) -> str:
        """The instruction that chooses bytes of one register by those of another; empty where there is none."""

    @property
    def word_product(self) -> str:
        """The instruction that multiplies 16-bit integers into 32 bits, lane by lane; empty where there is none."""

    @property
    def has_saturation(self) -> bool:
        """Do conversions of floats to integers saturate by themselves?"""

    @property
    def guesses_branches(self) -> bool:
        """Does a branch that is never taken cost next to nothing, and hold up nothing behind it?"""
