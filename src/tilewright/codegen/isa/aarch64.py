"""AArch64: NEON machines.

In: nothing. Out: ``Machine`` rows. Not its business: reading the host.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.isa.machine import Machine

TRIPLE = "aarch64-unknown-linux-gnu"

NEON = Machine(TRIPLE, "generic", n_vector_registers=32, has_fma=True, has_round=True, has_f16c=True, l1_bytes=64 << 10)

MACHINES: dict[str, Machine] = {
    "aarch64": replace(NEON, aliases=("neon", "arm64")),
    "neoverse-n1": replace(NEON, cpu="neoverse-n1", l2_bytes=1 << 20),
    "cortex-a72": replace(NEON, cpu="cortex-a72", fma_ports=1, l1_bytes=32 << 10, l2_bytes=1 << 20),
}
