"""RISC-V, 64 bits: with and without vectors.

In: nothing. Out: rows of ``Target``. Not its business: reading the host.

Vectors of a fixed length become instructions of the V extension, whose registers have at least 128 bits in an
application processor.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.target.sources import INSTRUCTION_SET

if TYPE_CHECKING:
    from tilewright.target.target import Target


def machines(unknown: Target) -> dict[str, Target]:
    """Each machine by name: what is ``unknown`` with what is known."""
    gc = replace(
        unknown, triple="riscv64-unknown-linux-gnu", cpu="generic-rv64", features="+m,+a,+f,+d,+c", abi="lp64d",
        code_model="medium", has_fma=True, fma_ports=1,
    ).known(INSTRUCTION_SET, vector_bytes=4, n_vector_registers=32, n_general_registers=31)  # fmt: skip
    gcv = replace(gc, features="+m,+a,+f,+d,+c,+v", has_masks=True)
    return {
        "rv64gc": replace(gc, aliases=("riscv64",)),
        "rv64gcv": gcv.known(INSTRUCTION_SET, vector_bytes=16),
    }


def needs_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> dict[str, int]:
    """By word, the bits that Linux must show for code with LLVM's features ``on``."""
    return {"vectors": 1} if "v" in on - off else {}
