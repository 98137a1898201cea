"""Exported objects linked into this process, so that their C functions are tested where there is no C compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime import library
from tilewright.runtime.cpu.linker import LinkedLibrary, _link
from tilewright.runtime.elf import ElfObject
from tilewright.runtime.library import LibraryModel

CANARY = 4096


class _Functions:
    """The functions of a linked object by name."""

    def __init__(self, linked: LinkedLibrary) -> None:
        self._linked = linked

    def __getitem__(self, name: str) -> Any:
        if name not in self._linked.addresses:
            raise AttributeError(name)
        return ctypes.CFUNCTYPE(ctypes.c_int32)(self._linked.addresses[name])


class ObjectModel(LibraryModel):
    """A model of an object file; every call checks that the code stays inside the memory that it asked for."""

    def _opened(self, file: Path) -> _Functions:
        data = file.read_bytes()
        names = [n for n in ElfObject(data).defined() if n.startswith(f"{self.name}_")]
        linked = _link([data], names, {})
        linked.keep_forever()  # its pool's threads are in its code
        return _Functions(linked)

    def _execute(self, arrays: Any, tensors: Any) -> Any:
        handed: list[tuple[Any, int, int]] = []

        def guarded(n_bytes: int) -> tuple[Any, int]:
            buffer, start = original(n_bytes + CANARY)
            buffer[start + n_bytes :] = 0xA5
            handed.append((buffer, start, n_bytes))
            return buffer, start

        original, library.aligned_buffer = library.aligned_buffer, guarded
        try:
            self._free.clear()
            results = super()._execute(arrays, tensors)
        finally:
            library.aligned_buffer = original
        for buffer, start, n_bytes in handed:
            assert (np.asarray(buffer[start + n_bytes :]) == 0xA5).all(), "wrote behind its memory"
        return results
