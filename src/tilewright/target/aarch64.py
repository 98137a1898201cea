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

from tilewright.target.lookups import LOOKUP_OF_AARCH64
from tilewright.target.sources import APPLE, ARM_GUIDE, ARM_MANUAL, FIRESTORM, INSTRUCTION_SET, LLVM

if TYPE_CHECKING:
    from tilewright.target.target import Target

TRIPLE = "aarch64-unknown-linux-gnu"


def machines(unknown: Target) -> dict[str, Target]:
    """Each machine by name: what is ``unknown`` with what is known."""
    neon = replace(
        unknown,
        triple=TRIPLE,
        cpu="generic",
        has_fma=True,
        has_round=True,
        has_f16c=True,
        l1_bytes=64 << 10,
        byte_lookup=LOOKUP_OF_AARCH64,
    ).known(INSTRUCTION_SET, vector_bytes=16, n_vector_registers=32, n_general_registers=31)
    dot = replace(neon, cpu="cortex-a75", features="-rcpc", has_dotprod=True)  # for "generic", LLVM spills sums
    sve = replace(neon, features="+sve,+dotprod,+fullfp16", has_masks=True, has_dotprod=True)
    return {
        "aarch64": replace(neon, aliases=("neon", "arm64")),
        "aarch64-dotprod": dot,
        "aarch64-i8mm": replace(dot, features="-rcpc,+i8mm", has_i8mm=True),
        "aarch64-sve": sve,
        **_of_cortex(neon),
        **_of_neoverse(neon, replace(sve, features="", has_i8mm=True)),
        "apple-m1": replace(neon, triple="arm64-apple-macosx11.0.0", cpu="apple-m1", has_dotprod=True)
        .known(APPLE, l1_bytes=128 << 10, l2_bytes=12 << 20, line_bytes=128)
        .known(FIRESTORM, fma_ports=4, fma_cycles=1, fma_latency=4, load_ports=3, store_ports=2, issue_width=8),
        "apple-m2": replace(
            neon, triple="arm64-apple-macosx11.0.0", cpu="apple-m2", has_dotprod=True, has_i8mm=True, fma_ports=4
        ).known("macOS on Apple M2, sysctl hw", l1_bytes=128 << 10, l2_bytes=16 << 20, line_bytes=128),
    }


def _of_cortex(neon: Target) -> dict[str, Target]:
    """Sums forward: the next multiply-add begins before the last one's result could be read by anything else."""
    return {
        "cortex-a53": replace(neon, cpu="cortex-a53", l2_bytes=512 << 10, window=1)
        .known(ARM_MANUAL.format("Cortex-A53"), l1_bytes=32 << 10, set_span=8 << 10, l2_ways=16, line_bytes=64)
        .known(
            LLVM.format("AArch64SchedA53.td"),
            fma_ports=1, fma_cycles=2, fma_latency=4, load_ports=1, store_ports=1, issue_width=2,
        ),
        "cortex-a72": replace(neon, cpu="cortex-a72", fma_ports=1, l2_bytes=1 << 20)
        .known(ARM_MANUAL.format("Cortex-A72"), l1_bytes=32 << 10, set_span=16 << 10, l2_ways=16, line_bytes=64)
        .known(ARM_GUIDE.format("Cortex-A72"), fma_latency=3, load_ports=1, store_ports=1, issue_width=3),
        "cortex-a76": replace(neon, cpu="cortex-a76", has_dotprod=True)
        .known(
            ARM_MANUAL.format("Cortex-A76"),
            l1_bytes=64 << 10, set_span=16 << 10, l2_bytes=256 << 10, l2_ways=8, line_bytes=64,
        )
        .known(
            ARM_GUIDE.format("Cortex-A76"), fma_ports=2, fma_cycles=1, fma_latency=2, load_ports=2, issue_width=4
        ),
    }  # fmt: skip


def _of_neoverse(neon: Target, sve: Target) -> dict[str, Target]:
    l1 = {"l1_bytes": 64 << 10, "set_span": 16 << 10, "line_bytes": 64, "l2_ways": 8}
    return {
        "neoverse-n1": replace(neon, cpu="neoverse-n1", has_dotprod=True)
        .known(ARM_MANUAL.format("Neoverse N1"), **l1, l2_bytes=1 << 20)
        .known(
            ARM_GUIDE.format("Neoverse N1"), fma_ports=2, fma_cycles=1, fma_latency=2, load_ports=2, issue_width=4
        ),
        "neoverse-v1": replace(sve, cpu="neoverse-v1")
        .known(ARM_MANUAL.format("Neoverse V1"), **l1, l2_bytes=1 << 20)
        .known(
            ARM_GUIDE.format("Neoverse V1"),
            fma_ports=4, fma_cycles=1, fma_latency=2, load_ports=3, store_ports=2, issue_width=8,
        ),
        "neoverse-v2": replace(sve, cpu="neoverse-v2")
        .known(ARM_MANUAL.format("Neoverse V2"), **l1, l2_bytes=2 << 20)
        .known(
            ARM_GUIDE.format("Neoverse V2"),
            fma_ports=4, fma_cycles=1, fma_latency=2, load_ports=3, store_ports=2, issue_width=8,
        ),
    }  # fmt: skip


_BITS = {
    "lse": ("hwcap", 8), "fullfp16": ("hwcap", 10), "rdm": ("hwcap", 12), "dotprod": ("hwcap", 20),
    "sve": ("hwcap", 22), "i8mm": ("hwcap2", 13), "bf16": ("hwcap2", 14),
}  # fmt: skip
"""Linux's words about the CPU, and the bit of each feature whose instructions LLVM chooses by itself."""
_V8_2 = ("lse", "rdm", "fullfp16", "dotprod")
_IN_CPU = {
    "cortex-a75": _V8_2, "cortex-a76": _V8_2, "neoverse-n1": _V8_2, "neoverse-v1": (*_V8_2, "sve", "i8mm", "bf16"),
    "neoverse-v2": (*_V8_2, "sve", "i8mm", "bf16"),
}  # fmt: skip


def needs_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> dict[str, int]:
    """By word, the bits that Linux must show for code for ``cpu`` with LLVM's features ``on`` and others ``off``."""
    needs: dict[str, int] = {}
    for word, bit in (_BITS[f] for f in features_of(cpu, on, off)):
        needs[word] = needs.get(word, 0) | 1 << bit
    return needs


def features_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> tuple[str, ...]:
    """LLVM's names of what ``needs_of`` asks Linux for."""
    return tuple(sorted(f for f in (on | set(_IN_CPU.get(cpu, ()))) - off if f in _BITS))
