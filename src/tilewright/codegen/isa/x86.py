"""x86-64: the named levels, and how a host's feature flags map to capabilities.

In: LLVM's feature names. Out: ``Machine`` rows and capability fields. Not its business: reading the host.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tilewright.codegen.isa.machine import Machine

TRIPLE = "x86_64-unknown-linux-gnu"

_SSE2 = Machine(TRIPLE, "x86-64", fma_ports=1)
_AVX2 = Machine(TRIPLE, "haswell", vector_bytes=32, has_fma=True, has_round=True, has_f16c=True)
_AVX512 = Machine(
    TRIPLE,
    "skylake-avx512",
    vector_bytes=64,
    n_vector_registers=32,
    has_fma=True,
    has_masks=True,
    has_gather=True,
    has_scalef=True,
    has_round=True,
    has_f16c=True,
    l2_bytes=1 << 20,
    llc_bytes=32 << 20,
)

MACHINES: dict[str, Machine] = {
    "x86-64": replace(_SSE2, aliases=("sse2",)),
    "x86-64-v2": replace(_SSE2, cpu="x86-64-v2", has_round=True, aliases=("nehalem",)),
    "x86-64-v3": replace(_AVX2, aliases=("haswell", "avx2")),
    "x86-64-v4": replace(_AVX512, aliases=("skylake-avx512", "avx512")),
    "cascadelake": replace(_AVX512, cpu="cascadelake", has_vnni=True),
    "sapphirerapids": replace(
        _AVX512, cpu="sapphirerapids", has_vnni=True, has_bf16=True, l1_bytes=48 << 10, l2_bytes=2 << 20
    ),
    "znver4": replace(_AVX512, cpu="znver4", has_vnni=True, has_bf16=True),
    "znver5": replace(_AVX512, cpu="znver5", has_vnni=True, has_bf16=True, l1_bytes=48 << 10),
}


WORDS = ("basic", "extended", "amd", "saved")
"""What a CPU says of itself: ``cpuid`` leaf 1 ecx, leaf 7 ebx, leaf 0x80000001 ecx; ``xgetbv`` 0, the registers that
the system saves."""


def _bits(*numbers: int) -> int:
    return sum(1 << n for n in numbers)


_V2 = {"basic": _bits(0, 9, 13, 19, 20, 23), "amd": _bits(0)}
_V3 = {
    "basic": _V2["basic"] | _bits(12, 22, 27, 28, 29), "extended": _bits(3, 5, 8), "amd": _bits(0, 5),
    "saved": _bits(1, 2),
}  # fmt: skip
_V4 = _V3 | {"extended": _V3["extended"] | _bits(16, 17, 28, 30, 31), "saved": _bits(1, 2, 5, 6, 7)}
NEEDS: dict[str, dict[str, int]] = {"x86-64": {}, "x86-64-v2": _V2, "haswell": _V3, "skylake-avx512": _V4}
"""By CPU, the bits of each word that its code relies on: the psABI's levels. v2: SSE3, SSSE3, CMPXCHG16B, SSE4.1,
SSE4.2, POPCNT, LAHF. v3: FMA, MOVBE, XSAVE, AVX, F16C, BMI1, AVX2, BMI2, LZCNT. v4: AVX-512 F, DQ, CD, BW, VL."""
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


def from_features(cpu: str, features: str, flags: Set[str]) -> Machine:
    """The capabilities that a host's flags give; ``flags`` holds the enabled ones."""
    wide = {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags
    base = _AVX512 if wide else _AVX2 if {"avx2", "fma"} <= flags else _SSE2
    return replace(
        base,
        cpu=cpu,
        features=features,
        has_round="sse4.1" in flags,
        has_f16c="f16c" in flags,
        has_bf16=wide and "avx512bf16" in flags,
        has_vnni=wide and "avx512vnni" in flags,
    )
