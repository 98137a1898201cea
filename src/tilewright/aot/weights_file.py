"""Weights as a file of their own: safetensors, to be mapped and so shared between processes.

In: weights and their fingerprint. Out: the file's pieces, and the LLVM text of the functions that map and check it.
Not its business: when weights are a file (``export``).

The file has one tensor, ``weights`` (U8), on a multiple of 64. Its header holds the fingerprint, and the object holds
the whole header, so another model's file, or one that is cut short, is refused without reading the weights.
"""

from __future__ import annotations

import json

from tilewright.aot.interface import ALIGNMENT, Interface
from tilewright.aot.writer import FunctionWriter

PROT_READ, MAP_SHARED, SEEK_END = 1, 1, 2

DECLARATIONS = """
declare i32 @open(ptr, i32, ...)
declare i64 @lseek(i32, i64, i32)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @memcmp(ptr, ptr, i64)
declare i32 @close(i32)
"""


def weights_header(n_bytes: int, fingerprint: str) -> bytes:
    """What comes before the weights in their file."""
    header = {
        "__metadata__": {"format": "tilewright-weights", "version": "1", "fingerprint": fingerprint},
        "weights": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]},
    }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % ALIGNMENT)
    return len(raw).to_bytes(8, "little") + raw


def mapping_text(of: Interface, close_on_exec: int) -> str:
    """``NAME_map_weights(path, weights)`` and ``NAME_unmap_weights(weights)``, for POSIX with 64-bit addresses."""
    header = weights_header(of.weights_bytes, of.fingerprint)
    total = len(header) + of.weights_bytes
    shown = "".join(f"\\{b:02X}" for b in header)
    data = f'@{of.name}_header = private constant [{len(header)} x i8] c"{shown}"'
    return "\n".join([DECLARATIONS, data, _map(of, len(header), total, close_on_exec), _unmap(of, len(header), total)])


def _map(of: Interface, n_header: int, total: int, close_on_exec: int) -> str:
    w = FunctionWriter(f"define i32 @{of.name}_map_weights(ptr %path, ptr %weights) nounwind")
    foreign = of.status("TW_ERROR_WEIGHTS", f"the file is not {of.name}'s weights, or is damaged")
    for pointer in ("path", "weights"):
        w.return_if(w.let(f"icmp eq ptr %{pointer}, null"), of.status("TW_ERROR_NULL", f"{pointer} is NULL"))
    w.store("null", "%weights", 0, "ptr")
    fd = w.let(f"call i32 (ptr, i32, ...) @open(ptr %path, i32 {close_on_exec})")
    unread = of.status("TW_ERROR_WEIGHTS", "the weights file can't be opened")
    w.return_if(w.let(f"icmp slt i32 {fd}, 0"), unread)
    size = w.let(f"call i64 @lseek(i32 {fd}, i64 0, i32 {SEEK_END})")
    fits = w.let(f"icmp eq i64 {size}, {total}")
    right, wrong = w.label("right"), w.label("wrong")
    w.emit(f"br i1 {fits}, label %{right}, label %{wrong}")
    w.start(wrong)
    w.let(f"call i32 @close(i32 {fd})")
    w.emit(f"ret i32 {foreign}")
    w.start(right)
    base = w.let(f"call ptr @mmap(ptr null, i64 {total}, i32 {PROT_READ}, i32 {MAP_SHARED}, i32 {fd}, i64 0)")
    w.let(f"call i32 @close(i32 {fd})")
    failed = w.let(f"icmp eq i64 {w.let(f'ptrtoint ptr {base} to i64')}, -1")
    w.return_if(failed, of.status("TW_ERROR_MEMORY", "the weights file can't be mapped"))
    order = w.let(f"call i32 @memcmp(ptr {base}, ptr @{of.name}_header, i64 {n_header})")
    same, other = w.label("same"), w.label("other")
    w.emit(f"br i1 {w.let(f'icmp eq i32 {order}, 0')}, label %{same}, label %{other}")
    w.start(other)
    w.let(f"call i32 @munmap(ptr {base}, i64 {total})")
    w.emit(f"ret i32 {foreign}")
    w.start(same)
    w.store(w.at(base, n_header), "%weights", 0, "ptr")
    w.emit("ret i32 0")
    return w.text()


def _unmap(of: Interface, n_header: int, total: int) -> str:
    w = FunctionWriter(f"define void @{of.name}_unmap_weights(ptr %weights) nounwind")
    some, done = w.label("some"), w.label("done")
    w.emit(f"br i1 {w.let('icmp eq ptr %weights, null')}, label %{done}, label %{some}")
    w.start(some)
    w.let(f"call i32 @munmap(ptr {w.at('%weights', -n_header)}, i64 {total})")
    w.emit(f"br label %{done}")
    w.start(done)
    w.emit("ret void")
    return w.text()
