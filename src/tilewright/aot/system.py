"""What an exported object may expect of the system it is linked for.

In: an LLVM triple. Out: a frozen ``System``. Not its business: instruction sets (``codegen.target``).
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm

from tilewright.runtime.pool import PoolAbi, pool_abi

_DARWIN = ("darwin", "macos", "ios")


@dataclass(frozen=True)
class System:
    """``object_format`` is "ELF", "COFF", "MachO" or "Wasm"; ``pool`` is None where a call uses one thread.

    ``has_heap``: there are ``malloc`` and ``free``. ``has_files``: there are POSIX ``open`` and ``mmap``
    with 64-bit offsets, and ``close_on_exec`` is that flag's value. ``has_libc``: somebody else defines
    ``memcpy`` and its like. ``has_huge_pages``: Linux's ``madvise`` may ask for them.
    """

    object_format: str
    has_heap: bool
    has_files: bool
    has_libc: bool
    has_huge_pages: bool
    close_on_exec: int
    pool: PoolAbi | None
    pointer_bytes: int

    @property
    def size_type(self) -> str:
        """LLVM's name of ``size_t``."""
        return f"i{8 * self.pointer_bytes}"


def system_of(triple: str) -> System:
    """What the triple's operating system gives to a program."""
    parts = triple.split("-")
    pointer_bytes = 8 if "64" in parts[0] and not parts[0].endswith("_32") else 4
    is_linux = "linux" in parts
    is_darwin = any(p.startswith(_DARWIN) for p in parts[1:])
    is_hosted = is_linux or is_darwin or any(p.startswith(("windows", "wasi", "freebsd")) for p in parts[1:])
    return System(
        object_format=llvm.get_object_format(triple),
        has_heap=is_hosted,
        has_files=(is_linux or is_darwin) and pointer_bytes == 8,
        has_libc=is_hosted,
        has_huge_pages=is_linux and pointer_bytes == 8,
        close_on_exec=0x1000000 if is_darwin else 0o2000000,
        pool=pool_abi(triple),
        pointer_bytes=pointer_bytes,
    )
