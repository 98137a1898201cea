"""x86-64: the named levels, and how a host's feature flags map to capabilities.

In: a machine of which nothing is known, LLVM's feature names. Out:
rows of ``Target`` and capability fields. Not its business: reading the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.target.dots import PAIRS_OF_X86
from tilewright.target.lookups import LOOKUP_OF_X86
from tilewright.target.sources import AMD_ZEN3, AMD_ZEN4, AMD_ZEN5, INSTRUCTION_SET, INTEL, UOPS

if TYPE_CHECKING:
    from tilewright.target.target import Target

TRIPLE = "x86_64-unknown-linux-gnu"
AMX = ("amx-tile", "amx-bf16", "amx-int8")
"""LLVM's names of matrix registers and of the products that we make of them. A process has to ask Linux for them."""


def machines(unknown: Target) -> dict[str, Target]:
    """Each machine by name: what is ``unknown`` with what is known."""
    # First what every one of them has; each generation adds to the one before.
    x86 = replace(unknown, triple=TRIPLE, has_saturation=False, has_nearest=True, word_pairs=PAIRS_OF_X86)
    sse2 = replace(x86, cpu="x86-64", fma_ports=1).known(
        INSTRUCTION_SET, vector_bytes=16, n_vector_registers=16, n_general_registers=16
    )
    avx2 = replace(
        sse2,
        cpu="haswell",
        has_fma=True,
        fma_ports=2,
        has_round=True,
        has_f16c=True,
        has_byte_pairs=True,
        byte_lookup=LOOKUP_OF_X86,
    ).known(INSTRUCTION_SET, vector_bytes=32)
    avx512 = replace(
        avx2,
        cpu="skylake-avx512",
        has_masks=True,
        has_gather=True,
        has_scalef=True,
        l2_bytes=1 << 20,
        llc_bytes=32 << 20,
    ).known(INSTRUCTION_SET, vector_bytes=64, n_vector_registers=32)
    vnni = replace(avx512, has_vnni=True)
    return {
        "x86-64": replace(sse2, aliases=("amd64", "sse2")),
        "x86-64-v2": replace(
            sse2, cpu="x86-64-v2", has_round=True, has_byte_pairs=True, byte_lookup=LOOKUP_OF_X86, aliases=("nehalem",)
        ),
        "x86-64-v3": replace(avx2, aliases=("avx2",)),
        "x86-64-v4": replace(avx512, aliases=("avx512",)),
        **_of_intel(avx2, avx512, vnni),
        **_of_amd(avx2, replace(vnni, has_bf16=True)),
    }


def _of_intel(avx2: Target, avx512: Target, vnni: Target) -> dict[str, Target]:
    """Ports move what the manual calls their width in a cycle; a vector of 64 bytes is stored by two of 32."""
    haswell = avx2.known(
        INTEL.format("Haswell"), issue_width=4, window=192, load_ports=2, load_cycles=1, store_ports=1, store_cycles=1,
        l1_bytes=32 << 10, set_span=4 << 10, l2_bytes=256 << 10, l2_ways=8, line_bytes=64, l2_bytes_per_cycle=64,
    ).known(UOPS.format("YMM"), fma_ports=2, fma_cycles=1, fma_latency=5)  # fmt: skip
    golden_cove = avx2.known(
        INTEL.format("Golden Cove"), issue_width=6, load_ports=3, load_cycles=1, store_ports=2, store_cycles=1,
        window=512, l1_bytes=48 << 10, set_span=4 << 10, l2_bytes=1280 << 10, l2_ways=10, line_bytes=64,
        l2_bytes_per_cycle=64,
    ).known(UOPS.format("YMM"), fma_ports=2, fma_cycles=1, fma_latency=4)  # fmt: skip
    # With 64-byte vectors; the third load port of later cores moves 32 bytes alone.
    wide = {"load_ports": 2, "load_cycles": 1, "store_ports": 1, "store_cycles": 1, "set_span": 4 << 10}
    skylake = avx512.known(
        INTEL.format("Skylake Server"), **wide, issue_width=4, l1_bytes=32 << 10, l2_bytes=1 << 20, l2_ways=16,
        window=224, llc_ways=11, line_bytes=64, l2_bytes_per_cycle=64, llc_bytes_per_cycle=16,
    ).known(UOPS.format("ZMM"), fma_ports=2, fma_cycles=1, fma_latency=4)  # fmt: skip
    icelake = vnni.known(
        INTEL.format("Ice Lake"), **wide, issue_width=5, window=352, l1_bytes=48 << 10, l2_bytes=1280 << 10, l2_ways=20,
        llc_ways=12, line_bytes=64, l2_bytes_per_cycle=64,
    ).known(UOPS.format("ZMM"), fma_ports=2, fma_cycles=1, fma_latency=4)  # fmt: skip
    sapphire = vnni.known(
        INTEL.format("Golden Cove"), **wide, issue_width=6, window=512, l1_bytes=48 << 10, l2_bytes=2 << 20, l2_ways=16,
        llc_ways=15, line_bytes=64, l2_bytes_per_cycle=64,
    ).known(UOPS.format("ZMM"), fma_ports=2, fma_cycles=1, fma_latency=4)  # fmt: skip
    return {
        "haswell": haswell,
        "alderlake": replace(golden_cove, cpu="alderlake"),
        "skylake-avx512": skylake,
        "cascadelake": replace(skylake, cpu="cascadelake", has_vnni=True),
        "icelake-server": replace(icelake, cpu="icelake-server", aliases=("icelake",)),
        "sapphirerapids": replace(sapphire, cpu="sapphirerapids", has_bf16=True),
        "sapphirerapids-amx": replace(
            sapphire,
            cpu="sapphirerapids",
            features=",".join(f"+{f}" for f in AMX),
            has_bf16=True,
            has_amx_bf16=True,
            has_amx_int8=True,
        ),
    }


def _of_amd(avx2: Target, avx512: Target) -> dict[str, Target]:
    """Zen 4 takes vectors of 64 bytes through units of 32, in two cycles."""
    zen = {"load_ports": 2, "store_ports": 1, "set_span": 4 << 10, "line_bytes": 64, "llc_bytes": 32 << 20,
           "llc_ways": 16, "fma_ports": 2, "fma_latency": 4}  # fmt: skip
    whole = {"fma_cycles": 1, "load_cycles": 1, "store_cycles": 1}
    halves = dict.fromkeys(whole, 2)
    zen3 = avx2.known(
        AMD_ZEN3, **zen, **whole, issue_width=6, window=256,
        l1_bytes=32 << 10, l2_bytes=512 << 10, l2_ways=8, l2_bytes_per_cycle=32,
    )  # fmt: skip
    zen4 = avx512.known(
        AMD_ZEN4, **zen, **halves, issue_width=6, window=320,
        l1_bytes=32 << 10, l2_bytes=1 << 20, l2_ways=8, l2_bytes_per_cycle=32,
    )  # fmt: skip
    zen5 = avx512.known(
        AMD_ZEN5, **zen, **whole, issue_width=8, window=448,
        l1_bytes=48 << 10, l2_bytes=1 << 20, l2_ways=16, l2_bytes_per_cycle=64,
    )  # fmt: skip
    return {
        "znver3": replace(zen3, cpu="znver3"),
        "znver4": replace(zen4, cpu="znver4"),
        "znver5": replace(zen5, cpu="znver5"),
    }


EAX, EBX, ECX, EDX = range(4)
WORDS = {
    "basic": (1, 0, ECX), "extended": (7, 0, EBX), "extended_c": (7, 0, ECX), "extended_d": (7, 0, EDX),
    "extended_1": (7, 1, EAX), "amd": (0x80000001, 0, ECX),
}  # fmt: skip
"""What a CPU says of itself, by ``cpuid``'s leaf, subleaf and register. Another word, ``saved``, is ``xgetbv`` 0: the
registers that the system saves."""
_FEATURES = {
    "basic": {"sse3": 0, "ssse3": 9, "fma": 12, "cx16": 13, "sse4.1": 19, "sse4.2": 20, "movbe": 22, "popcnt": 23,
              "avx": 28, "f16c": 29},
    "extended": {"bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "avx512ifma": 21, "avx512cd": 28,
                 "avx512bw": 30, "avx512vl": 31},
    "extended_c": {"avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "avx512vnni": 11, "avx512bitalg": 12,
                   "avx512vpopcntdq": 14},
    "extended_d": {"avx512vp2intersect": 8, "amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25},
    "extended_1": {"avxvnni": 4, "avx512bf16": 5},
    "amd": {"sahf": 0, "lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21},
}  # fmt: skip
"""The bit of each feature whose instructions LLVM chooses by itself. Others (``aes``, ``sha``, ``rdrnd``) need a call
of their own, which we never make."""
_OSXSAVE = 27


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
_NEWER = ("avx512vbmi", "avx512vbmi2", "gfni", "avx512bitalg", "avx512vpopcntdq", "avx512ifma", "avx512bf16")
_BEYOND: dict[str, tuple[str, ...]] = {
    "znver3": ("sse4a",),
    "alderlake": ("gfni", "avxvnni"),
    "cascadelake": ("avx512vnni",),
    "icelake-server": ("avx512vnni", *_NEWER[:-1]),
    "sapphirerapids": ("avx512vnni", *_NEWER, "avx512fp16", "avxvnni"),
    "znver4": ("sse4a", "avx512vnni", *_NEWER),
    "znver5": ("sse4a", "avx512vnni", *_NEWER, "avxvnni", "avx512vp2intersect"),
}
"""What LLVM takes these CPUs to have besides level 4, or level 3 where that is no AVX-512."""
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


def needs_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> dict[str, int]:
    """By word, the bits that a CPU must show to run code for ``cpu`` with LLVM's features ``on`` and others ``off``.

    A virtual machine may hide what its CPU has: LLVM names the CPU and switches those features off.
    """
    beyond = _BEYOND.get(cpu, ())
    level = {} if cpu not in _BEYOND else _V4 if "avx512vnni" in beyond else _V3
    needs = dict(NEEDS.get(cpu, level))
    asked = (on | set(beyond)) - off
    for word, bits in _FEATURES.items():
        wanted, hidden = (_bits(*(bit for name, bit in bits.items() if name in names)) for names in (asked, off))
        needs[word] = (needs.get(word, 0) | wanted) & ~hidden
    has_avx = needs["basic"] >> _FEATURES["basic"]["avx"] & 1
    has_avx512 = needs["extended"] >> _FEATURES["extended"]["avx512f"] & 1
    needs["basic"] = needs["basic"] & ~_bits(_OSXSAVE) | has_avx << _OSXSAVE
    needs["saved"] = 0 if not has_avx else _V4["saved"] if has_avx512 else _V3["saved"]
    if asks_for_tiles(needs):
        needs["saved"] |= _bits(17, 18)
    return {word: bits for word, bits in needs.items() if bits}


def asks_for_tiles(needs: Mapping[str, int]) -> bool:
    """Are matrix registers among what a CPU must show?"""
    return bool(needs.get("extended_d", 0) >> _FEATURES["extended_d"][AMX[0]] & 1)


def features_of(cpu: str, on: Set[str], off: Set[str] = frozenset()) -> tuple[str, ...]:
    """LLVM's names of what ``needs_of`` asks a CPU for."""
    needs = needs_of(cpu, on, off)
    found = (n for word, bits in _FEATURES.items() for n, bit in bits.items() if needs.get(word, 0) >> bit & 1)
    return tuple(sorted(found))


def from_features(rows: Mapping[str, Target], cpu: str, features: str, flags: Set[str]) -> Target:
    """The capabilities that a host's flags give; ``flags`` holds the enabled ones, ``rows`` every machine by name."""
    wide = {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags
    base = "x86-64-v4" if wide else "x86-64-v3" if {"avx2", "fma"} <= flags else "x86-64"
    return replace(
        rows[base],
        cpu=cpu,
        features=features,
        fma_cycles=rows[cpu].fma_cycles if wide and cpu in rows else 1,
        has_round="sse4.1" in flags,
        has_byte_pairs="ssse3" in flags,
        byte_lookup=LOOKUP_OF_X86 if "ssse3" in flags else "",
        has_f16c="f16c" in flags,
        has_bf16=wide and "avx512bf16" in flags,
        has_vnni=wide and "avx512vnni" in flags,
        has_amx_bf16={"amx-tile", "amx-bf16"} <= flags,
        has_amx_int8={"amx-tile", "amx-int8"} <= flags,
        aliases=(),
    )
