"""May this process use the CPU's matrix registers? Linux gives their 8 KiB to a process that asks.

In: nothing. Out: yes or no. Not its business: which CPUs have them (``target.x86``).

The call is Linux's ``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`` (Documentation/arch/x86/xstate.rst). All
threads have what the process was given, and its children have it too. It is refused before Linux 5.16, and where a
thread's stack for signals is too small for the registers.
"""

from __future__ import annotations

import ctypes
import platform
import sys

from tilewright.runtime.once import once

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
PREFIX = "amx-"
"""Of LLVM's names of what needs these registers."""


@once
def are_granted() -> bool:
    """Ask for them, once."""
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)
    except (OSError, AttributeError):
        return False


def usable(features: str) -> str:
    """LLVM's list of features, those of matrix registers switched off where the process may not use them."""
    found = features.split(",")
    if not any(f.startswith(f"+{PREFIX}") for f in found) or are_granted():
        return features
    return ",".join(f"-{f[1:]}" if f[1:].startswith(PREFIX) else f for f in found)
