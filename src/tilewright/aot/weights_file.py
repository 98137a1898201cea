"""Weights as a file of their own: safetensors, to be mapped and so shared between processes.

In: weights and their fingerprint. Out: the file's pieces, and the LLVM text of the functions that map and check it.
Not its business: when weights are a file (``export``).

The file has one tensor, ``weights`` (U8), on a multiple of 64. Its header holds the fingerprint, and the object holds
the whole header, so another model's file, or one that is cut short, is refused without reading the weights.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod

from tilewright.aot.interface import ALIGNMENT, Interface
from tilewright.aot.system import System
from tilewright.aot.writer import FunctionWriter


def weights_header(n_bytes: int, fingerprint: str) -> bytes:
    """What comes before the weights in their file."""
    header = {
        "__metadata__": {"format": "tilewright-weights", "version": "1", "fingerprint": fingerprint},
        "weights": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]},
    }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % ALIGNMENT)
    return len(raw).to_bytes(8, "little") + raw


class _Calls(ABC):
    """How a system opens, measures and maps files: lines of LLVM text that end in a register.

    ``status`` is what to return where a file can't be mapped.
    """

    declarations: str

    @abstractmethod
    def opened(self, w: FunctionWriter) -> tuple[str, str]:
        """The file at ``%path``, and an i1: it can't be read."""

    @abstractmethod
    def size(self, w: FunctionWriter, file: str) -> str:
        """Its bytes; no size that a file can have where that fails."""

    @abstractmethod
    def close(self, w: FunctionWriter, file: str) -> None:
        """Give the file back."""

    @abstractmethod
    def mapped(self, w: FunctionWriter, file: str, total: int, status: int) -> str:
        """The address of ``total`` bytes of the file, which is closed."""

    @abstractmethod
    def unmap(self, w: FunctionWriter, base: str, total: int) -> None:
        """Give the memory back."""


class _Posix(_Calls):
    PROT_READ, MAP_SHARED, SEEK_END = 1, 1, 2
    declarations = """
declare i32 @open(ptr, i32, ...)
declare i64 @lseek(i32, i64, i32)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @close(i32)
"""

    def __init__(self, close_on_exec: int) -> None:
        self.close_on_exec = close_on_exec

    def opened(self, w: FunctionWriter) -> tuple[str, str]:
        fd = w.let(f"call i32 (ptr, i32, ...) @open(ptr %path, i32 {self.close_on_exec})")
        return fd, w.let(f"icmp slt i32 {fd}, 0")

    def size(self, w: FunctionWriter, file: str) -> str:
        return w.let(f"call i64 @lseek(i32 {file}, i64 0, i32 {self.SEEK_END})")

    def close(self, w: FunctionWriter, file: str) -> None:
        w.let(f"call i32 @close(i32 {file})")

    def mapped(self, w: FunctionWriter, file: str, total: int, status: int) -> str:
        how = f"i32 {self.PROT_READ}, i32 {self.MAP_SHARED}"
        base = w.let(f"call ptr @mmap(ptr null, i64 {total}, {how}, i32 {file}, i64 0)")
        self.close(w, file)
        w.return_if(w.let(f"icmp eq i64 {w.let(f'ptrtoint ptr {base} to i64')}, -1"), status)
        return base

    def unmap(self, w: FunctionWriter, base: str, total: int) -> None:
        w.let(f"call i32 @munmap(ptr {base}, i64 {total})")


class _Windows(_Calls):
    """Names of files are as ``fopen`` takes them: in the program's code page. No handle outlives the mapping's."""

    GENERIC_READ, FILE_SHARE_READ, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL = 0x80000000, 1, 3, 0x80
    PAGE_READONLY, FILE_MAP_READ = 2, 4
    declarations = """
declare ptr @CreateFileA(ptr, i32, i32, ptr, i32, i32, ptr)
declare i32 @GetFileSizeEx(ptr, ptr)
declare ptr @CreateFileMappingW(ptr, ptr, i32, i32, i32, ptr)
declare ptr @MapViewOfFile(ptr, i32, i32, i32, i64)
declare i32 @UnmapViewOfFile(ptr)
declare i32 @CloseHandle(ptr)
"""

    def opened(self, w: FunctionWriter) -> tuple[str, str]:
        access = f"i32 {self.GENERIC_READ}, i32 {self.FILE_SHARE_READ}, ptr null"
        how = f"i32 {self.OPEN_EXISTING}, i32 {self.FILE_ATTRIBUTE_NORMAL}, ptr null"
        file = w.let(f"call ptr @CreateFileA(ptr %path, {access}, {how})")
        return file, w.let(f"icmp eq i64 {w.let(f'ptrtoint ptr {file} to i64')}, -1")

    def size(self, w: FunctionWriter, file: str) -> str:
        size = w.room("i64")
        w.store("-1", size)
        w.let(f"call i32 @GetFileSizeEx(ptr {file}, ptr {size})")
        return w.load(size)

    def close(self, w: FunctionWriter, file: str) -> None:
        w.let(f"call i32 @CloseHandle(ptr {file})")

    def mapped(self, w: FunctionWriter, file: str, total: int, status: int) -> str:
        whole = f"ptr null, i32 {self.PAGE_READONLY}, i32 0, i32 0, ptr null"
        mapping = w.let(f"call ptr @CreateFileMappingW(ptr {file}, {whole})")
        self.close(w, file)
        w.return_if(w.let(f"icmp eq ptr {mapping}, null"), status)
        base = w.let(f"call ptr @MapViewOfFile(ptr {mapping}, i32 {self.FILE_MAP_READ}, i32 0, i32 0, i64 {total})")
        self.close(w, mapping)
        w.return_if(w.let(f"icmp eq ptr {base}, null"), status)
        return base

    def unmap(self, w: FunctionWriter, base: str, total: int) -> None:
        w.let(f"call i32 @UnmapViewOfFile(ptr {base})")


def mapping_text(of: Interface, system: System, attributes: str) -> str:
    """``NAME_map_weights(path, weights)`` and ``NAME_unmap_weights(weights)``, for systems whose files can be mapped.

    ``attributes`` are of functions that run before it is known what the CPU has.
    """
    calls = _Windows() if system.files == "windows" else _Posix(system.close_on_exec)
    header = weights_header(of.weights_bytes, of.fingerprint)
    total = len(header) + of.weights_bytes
    shown = "".join(f"\\{b:02X}" for b in header)
    data = f'@{of.name}_header = private constant [{len(header)} x i8] c"{shown}"'
    texts = [f"{calls.declarations}declare i32 @memcmp(ptr, ptr, i64)", data]
    return "\n".join(
        [*texts, _map(of, len(header), total, calls, attributes), _unmap(of, len(header), total, calls, attributes)]
    )


def _map(of: Interface, n_header: int, total: int, calls: _Calls, attributes: str) -> str:
    w = FunctionWriter(f"define i32 @{of.name}_map_weights(ptr %path, ptr %weights) nounwind {attributes}".rstrip())
    foreign = of.status("TW_ERROR_WEIGHTS", f"the file is not {of.name}'s weights, or is damaged")
    for pointer in ("path", "weights"):
        w.return_if(w.let(f"icmp eq ptr %{pointer}, null"), of.status("TW_ERROR_NULL", f"{pointer} is NULL"))
    w.store("null", "%weights", 0, "ptr")
    file, is_unread = calls.opened(w)
    w.return_if(is_unread, of.status("TW_ERROR_WEIGHTS", "the weights file can't be opened"))
    # before anything is read: behind the end of a file that is cut short a map gives SIGBUS
    fits = w.let(f"icmp eq i64 {calls.size(w, file)}, {total}")
    right, wrong = w.label("right"), w.label("wrong")
    w.emit(f"br i1 {fits}, label %{right}, label %{wrong}")
    w.start(wrong)
    calls.close(w, file)
    w.emit(f"ret i32 {foreign}")
    w.start(right)
    base = calls.mapped(w, file, total, of.status("TW_ERROR_MEMORY", "the weights file can't be mapped"))
    # the header has the fingerprint of the weights, so that they need not be read
    order = w.let(f"call i32 @memcmp(ptr {base}, ptr @{of.name}_header, i64 {n_header})")
    same, other = w.label("same"), w.label("other")
    w.emit(f"br i1 {w.let(f'icmp eq i32 {order}, 0')}, label %{same}, label %{other}")
    w.start(other)
    calls.unmap(w, base, total)
    w.emit(f"ret i32 {foreign}")
    w.start(same)
    w.store(w.at(base, n_header), "%weights", 0, "ptr")
    w.emit("ret i32 0")
    return w.text()


def _unmap(of: Interface, n_header: int, total: int, calls: _Calls, attributes: str) -> str:
    w = FunctionWriter(f"define void @{of.name}_unmap_weights(ptr %weights) nounwind {attributes}".rstrip())
    some, done = w.label("some"), w.label("done")
    w.emit(f"br i1 {w.let('icmp eq ptr %weights, null')}, label %{done}, label %{some}")
    w.start(some)
    calls.unmap(w, w.at("%weights", -n_header), total)
    w.emit(f"br label %{done}")
    w.start(done)
    w.emit("ret void")
    return w.text()
