"""What an exported object may expect of the system it is linked for.

In: an LLVM triple. Out: a frozen ``System``. Not its business: instruction sets (``target.target``).
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm

from tilewright.runtime.cpu.pool_systems import PoolAbi, pool_abi

_DARWIN = ("darwin", "macos", "ios")


@dataclass(frozen=True)
class System:
    """``object_format`` is "ELF", "COFF", "MachO" or "Wasm"; ``pool`` is None where a call uses one thread.

    ``has_heap``: there are ``malloc`` and ``free``. ``files``: "posix" where there are ``open`` and ``mmap`` with
    64-bit offsets (``close_on_exec`` is that flag's value), "windows" where there are ``CreateFileA`` and
    ``MapViewOfFile`` with 64-bit addresses, "" where files are not mapped. ``has_libc``: somebody else defines
    ``memcpy`` and its like. ``has_huge_pages``: Linux's ``madvise`` may ask for them.
    """

    object_format: str
    has_heap: bool
    files: str
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
    is_windows = any(p.startswith("windows") for p in parts[1:])
    is_hosted = is_linux or is_darwin or is_windows or any(p.startswith(("wasi", "freebsd")) for p in parts[1:])
    files = "posix" if is_linux or is_darwin else "windows" if is_windows else ""
    return System(
        object_format=llvm.get_object_format(triple),
        has_heap=is_hosted,
        files=files if pointer_bytes == 8 else "",
        has_libc=is_hosted,
        has_huge_pages=is_linux and pointer_bytes == 8,
        close_on_exec=0x1000000 if is_darwin else 0o2000000,
        pool=pool_abi(triple),
        pointer_bytes=pointer_bytes,
    )
