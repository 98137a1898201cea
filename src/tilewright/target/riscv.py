"""RISC-V, 64 bits: with and without vectors.

In: nothing. Out: ``Machine`` rows. Not its business: reading the host.

Vectors of a fixed length become instructions of the V extension, whose registers have at least 128 bits in an
application processor.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tilewright.target.isa import Machine

_GC = Machine(
    "riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c", abi="lp64d", code_model="medium", vector_bytes=4,
    n_vector_registers=32, has_fma=True, fma_ports=1,
)  # fmt: skip

MACHINES: dict[str, Machine] = {
    "rv64gc": replace(_GC, aliases=("riscv64",)),
    "rv64gcv": replace(_GC, features="+m,+a,+f,+d,+c,+v", vector_bytes=16, has_masks=True),
}


def needs_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> dict[str, int]:
    """By word, the bits that Linux must show for code with LLVM's features ``on``."""
    return {"vectors": 1} if "v" in on - off else {}
