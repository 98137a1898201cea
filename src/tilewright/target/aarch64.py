"""AArch64: machines with NEON, and with SVE.

In: a machine of which nothing is known. Out: rows of ``Target``, and what Linux must say of a CPU.
Not its business: reading the host.

With SVE our vectors stay NEON's 128 bits, which every width of SVE has, and masked loads and stores are its
instructions. Longer fixed vectors (``vscale_range``) end LLVM 22 at some comparisons of integers ("Cannot select").
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.target.target import Target

TRIPLE = "aarch64-unknown-linux-gnu"


def machines(unknown: Target) -> dict[str, Target]:
    """Each machine by name: what is ``unknown`` with what is known."""
    neon = replace(
        unknown,
        triple=TRIPLE,
        cpu="generic",
        n_vector_registers=32,
        has_fma=True,
        has_round=True,
        has_f16c=True,
        l1_bytes=64 << 10,
    )
    dot = replace(neon, cpu="cortex-a75", features="-rcpc", has_dotprod=True)  # for "generic", LLVM spills sums
    sve = replace(neon, features="+sve,+dotprod,+fullfp16", has_masks=True, has_dotprod=True)

    return {
        "aarch64": replace(neon, aliases=("neon", "arm64")),
        "aarch64-dotprod": dot,
        "aarch64-i8mm": replace(dot, features="-rcpc,+i8mm", has_i8mm=True),
        "aarch64-sve": sve,
        "cortex-a53": replace(neon, cpu="cortex-a53", fma_ports=1, l1_bytes=32 << 10, l2_bytes=512 << 10),
        "cortex-a72": replace(neon, cpu="cortex-a72", fma_ports=1, l1_bytes=32 << 10, l2_bytes=1 << 20),
        "neoverse-n1": replace(neon, cpu="neoverse-n1", l2_bytes=1 << 20, has_dotprod=True),
        "apple-m1": replace(
            neon,
            triple="arm64-apple-macosx11.0.0",
            cpu="apple-m1",
            fma_ports=4,
            l1_bytes=128 << 10,
            l2_bytes=12 << 20,
            has_dotprod=True,
        ),
    }


_BITS = {
    "lse": ("hwcap", 8), "fullfp16": ("hwcap", 10), "rdm": ("hwcap", 12), "dotprod": ("hwcap", 20),
    "sve": ("hwcap", 22), "i8mm": ("hwcap2", 13), "bf16": ("hwcap2", 14),
}  # fmt: skip
"""Linux's words about the CPU, and the bit of each feature whose instructions LLVM chooses by itself."""
_IN_CPU = {cpu: ("lse", "rdm", "fullfp16", "dotprod") for cpu in ("cortex-a75", "neoverse-n1")}


def needs_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> dict[str, int]:
    """By word, the bits that Linux must show for code for ``cpu`` with LLVM's features ``on`` and others ``off``."""
    needs: dict[str, int] = {}
    for word, bit in (_BITS[f] for f in sorted((on | set(_IN_CPU.get(cpu, ()))) - off) if f in _BITS):
        needs[word] = needs.get(word, 0) | 1 << bit
    return needs
