"""AArch64: machines with NEON, and with SVE.

In: nothing. Out: ``Machine`` rows. Not its business: reading the host.

With SVE our vectors stay NEON's 128 bits, which every width of SVE has, and masked loads and stores are its
instructions. Longer fixed vectors (``vscale_range``) end LLVM 22 at some comparisons of integers ("Cannot select").
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.isa.machine import Machine

TRIPLE = "aarch64-unknown-linux-gnu"

NEON = Machine(TRIPLE, "generic", n_vector_registers=32, has_fma=True, has_round=True, has_f16c=True, l1_bytes=64 << 10)
_DOT = replace(NEON, cpu="cortex-a75", features="-rcpc", has_dotprod=True)  # for "generic", LLVM spills sums
_SVE = replace(NEON, features="+sve,+dotprod,+fullfp16", has_masks=True, has_dotprod=True)

MACHINES: dict[str, Machine] = {
    "aarch64": replace(NEON, aliases=("neon", "arm64")),
    "aarch64-dotprod": _DOT,
    "aarch64-i8mm": replace(_DOT, features="-rcpc,+i8mm", has_i8mm=True),
    "aarch64-sve": _SVE,
    "cortex-a53": replace(NEON, cpu="cortex-a53", fma_ports=1, l1_bytes=32 << 10, l2_bytes=512 << 10),
    "cortex-a72": replace(NEON, cpu="cortex-a72", fma_ports=1, l1_bytes=32 << 10, l2_bytes=1 << 20),
    "neoverse-n1": replace(NEON, cpu="neoverse-n1", l2_bytes=1 << 20, has_dotprod=True),
    "apple-m1": replace(
        NEON,
        triple="arm64-apple-macosx11.0.0",
        cpu="apple-m1",
        fma_ports=4,
        l1_bytes=128 << 10,
        l2_bytes=12 << 20,
        has_dotprod=True,
    ),
}
