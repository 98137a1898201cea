"""What the CPU says of itself, by the instruction CPUID: a text that is equal where LLVM would find the same CPU.

In: nothing. Out: a text, or None where there is no such instruction. Not its business: what the numbers mean.

LLVM's idea of the host is a function of these numbers, so what it said once (``host``) is what it would say again. The
file ``/proc/cpuinfo`` is not asked, since an emulator such as Valgrind shows programs another CPU than the machine's.
"""

from __future__ import annotations

import ctypes

from tilewright.runtime.code_pages import PAGE, CodePages, is_supported

_CPUID = bytes.fromhex("53 89f0 89d1 0fa2 8907 895f04 894f08 89570c 5b c3")
"""``void cpuid(uint32_t found[4], uint32_t leaf, uint32_t part)``: rbx is the caller's; eax and ecx select, and eax,
ebx, ecx, edx are stored in order."""
_XGETBV = bytes.fromhex("31c9 0f01d0 8907 895704 c3")
"""``void xgetbv(uint32_t found[2])``: which registers the system saves, XCR0."""

_BASIC = ((1, 0), (7, 0), (7, 1), (7, 2), (13, 1), (20, 0), (25, 0), (30, 1), (36, 0))
_EXTENDED = tuple((0x80000000 + k, 0) for k in (1, 2, 3, 4, 7, 8, 0x21))
"""Leaves that tell features, model and name. Those that tell which core this is are left out."""
_HAS_XGETBV = 1 << 27
_SAME_ON_ALL_CORES = 0x00FFFFFF
"""Of ebx of leaf 1: above it is the number of the core."""
_CODE_AT = (0, 32)


def cpuid_text() -> str | None:
    """All numbers in order; None where the instruction or memory for its code is not to be had."""
    if not is_supported():
        return None
    try:
        pages = CodePages(PAGE)
        pages.write(_CPUID.ljust(_CODE_AT[1], b"\xcc") + _XGETBV)
        pages.seal(0, PAGE, is_code=True)
    except OSError:
        return None
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)(pages.address + _CODE_AT[0])
    found = (ctypes.c_uint32 * 4)()

    def ask(leaf: int, part: int) -> tuple[int, ...]:
        call(found, leaf, part)
        return tuple(found)

    first, extended = ask(0, 0), ask(0x80000000, 0)
    facts = [first, extended]
    facts += [ask(*leaf) for leaf in _BASIC if leaf[0] <= first[0]]
    facts += [ask(*leaf) for leaf in _EXTENDED if leaf[0] <= extended[0]]
    one = facts[2]
    facts[2] = (one[0], one[1] & _SAME_ON_ALL_CORES, *one[2:])
    if one[2] & _HAS_XGETBV:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(pages.address + _CODE_AT[1])(found)
        facts.append(tuple(found)[:2])
    return " ".join(",".join(f"{n:x}" for n in fact) for fact in facts)
