"""32-bit Arm: Armv7-A with NEON under Linux, and Cortex-M without an operating system.

In: a machine of which nothing is known. Out: rows of ``Target``. Not its business: boards, memory maps, start-up code.

NEON on Armv7 flushes denormal numbers to zero. Cortex-M4's and M33's registers are single floats; M0+ and M3 have no
floating point, and M4, M33 none of double precision: LLVM then calls the compiler's run-time library.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.target.products import PRODUCT_OF_ARM
from tilewright.target.sources import ARM_MANUAL, INSTRUCTION_SET, LLVM

if TYPE_CHECKING:
    from tilewright.target.target import Target


def machines(unknown: Target) -> dict[str, Target]:
    """Each machine by name: what is ``unknown`` with what is known."""
    neon = replace(
        unknown, triple="armv7-unknown-linux-gnueabihf", cpu="generic", features="+neon", pointer_bytes=4, fma_ports=1,
        l2_bytes=512 << 10, has_saturation=False, word_product=PRODUCT_OF_ARM,
    ).known(INSTRUCTION_SET, vector_bytes=16, n_vector_registers=16, n_general_registers=15)  # fmt: skip
    bare = replace(
        unknown, triple="thumbv7em-unknown-none-eabihf", cpu="cortex-m4", relocation="static", pointer_bytes=4,
        has_threads=False, has_f64=False, has_fma=True, fma_ports=1, l1_bytes=16 << 10, l2_bytes=64 << 10,
        llc_bytes=64 << 10, load_ports=1, issue_width=1.0, window=1, has_prefetch=False,
    ).known(INSTRUCTION_SET, vector_bytes=4, n_vector_registers=32, n_general_registers=15)  # fmt: skip
    soft = replace(bare, has_fma=False).known(INSTRUCTION_SET, n_vector_registers=8)  # of the general ones
    return {
        "armv7-neon": replace(neon, aliases=("armv7",)),
        "cortex-a7": replace(neon, cpu="cortex-a7", has_fma=True, window=1),
        "cortex-a9": replace(neon, cpu="cortex-a9"),
        "cortex-m0plus": replace(
            soft, triple="thumbv6m-unknown-none-eabi", cpu="cortex-m0plus", aliases=("cortex-m0",)
        ),
        "cortex-m3": replace(soft, triple="thumbv7m-unknown-none-eabi", cpu="cortex-m3"),
        "cortex-m4": replace(bare, has_halves=True).known(
            ARM_MANUAL.format("Cortex-M4"), issue_width=1, fma_cycles=3, fma_latency=3, load_cycles=2, store_cycles=2
        ),
        "cortex-m7": replace(
            bare, cpu="cortex-m7", has_halves=True, has_f64=True, has_round=True, issue_width=2.0
        ).known(
            LLVM.format("ARMScheduleM7.td"), issue_width=2, fma_latency=3, load_ports=2, store_ports=1
        ),
        "cortex-m33": replace(
            bare, triple="thumbv8m.main-unknown-none-eabihf", cpu="cortex-m33", has_halves=True
        ),
        "cortex-m55": replace(
            bare, triple="thumbv8.1m.main-unknown-none-eabihf", cpu="cortex-m55", has_f64=True, has_round=True,
            has_masks=True, loses_gathers=True, loses_fixed_points=True,
            has_word_fma=True,
        )
        .known(INSTRUCTION_SET, vector_bytes=16, n_vector_registers=8)
        .known(LLVM.format("ARMScheduleM55.td"), fma_cycles=2, load_cycles=2, store_cycles=2),
    }  # fmt: skip


_NEON_BIT, _VFPV4_BIT, _DIVIDE_BITS = 1 << 12, 1 << 16, 3 << 17
"""Of Linux's word about the CPU."""


def needs_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> dict[str, int]:
    """By word, the bits that Linux must show for Armv7 code for ``cpu`` with LLVM's features ``on``."""
    newer = _VFPV4_BIT | _DIVIDE_BITS if cpu == "cortex-a7" else 0
    return {"hwcap": newer | (_NEON_BIT if "neon" in on - off else 0)}
