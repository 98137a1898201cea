"""What a code object says of its kernels: registers, spills, and shared memory.

In: an ELF object with the note that LLVM's "User Guide for AMDGPU Backend" calls the code object metadata, a map in
MessagePack. Out: a :class:`Usage` of every entry. Not its business: the instructions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from tilewright.codegen.errors import CodegenError

NOTE = ".note"
METADATA = 32
"""The type of the note, ``NT_AMDGPU_METADATA``."""
OWNER = b"AMDGPU\0"
ALIGNMENT = 4


@dataclass(frozen=True)
class Usage:
    """What an entry takes of a GPU, of each thread and of a block."""

    vector_registers: int
    scalar_registers: int
    spilled_registers: int
    stack_bytes: int
    shared_bytes: int
    warp_lanes: int


def usage_of(code_object: bytes) -> dict[str, Usage]:
    """By entry; ``CodegenError`` for an object without the note."""
    found = metadata_of(code_object)
    return {str(kernel[".name"]): _usage(kernel) for kernel in found["amdhsa.kernels"]}


def metadata_of(code_object: bytes) -> Mapping[str, Any]:
    """All that the note says."""
    for section in llvm.ObjectFileRef.from_data(code_object).sections():
        if (section.name() or b"") == NOTE.encode():
            return _note(bytes(section.data()))
    raise CodegenError("the object has no notes", remedy="is it one for AMD's GPUs?")


def _usage(kernel: Mapping[str, Any]) -> Usage:
    return Usage(
        vector_registers=kernel[".vgpr_count"],
        scalar_registers=kernel[".sgpr_count"],
        spilled_registers=kernel[".vgpr_spill_count"] + kernel[".sgpr_spill_count"],
        stack_bytes=kernel[".private_segment_fixed_size"],
        shared_bytes=kernel[".group_segment_fixed_size"],
        warp_lanes=kernel[".wavefront_size"],
    )


def _note(data: bytes) -> Mapping[str, Any]:
    """The map in the note of our kind: an ELF note is three sizes, the owner's name and what it describes."""
    at = 0
    while at < len(data):
        n_name, n_bytes, kind = struct.unpack_from("<III", data, at)
        at += 12
        name = data[at : at + n_name]
        at += -(-n_name // ALIGNMENT) * ALIGNMENT
        if kind == METADATA and name == OWNER:
            found, _ = _unpacked(data, at)
            assert isinstance(found, dict)
            return found
        at += -(-n_bytes // ALIGNMENT) * ALIGNMENT
    raise CodegenError("the object has no metadata among its notes")


_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_SIZES = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
"""Formats of the sizes of texts, lists and maps, by their first byte."""
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """The value of MessagePack that begins at a byte, and where it ends."""
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return first if first < 0x80 else first - 0x100, at
    if first in _PLAIN:
        return _PLAIN[first], at
    if first in _NUMBERS:
        return struct.unpack_from(_NUMBERS[first], data, at)[0], at + struct.calcsize(_NUMBERS[first])
    if first in _SIZES:
        n, at = struct.unpack_from(_SIZES[first], data, at)[0], at + struct.calcsize(_SIZES[first])
    else:
        n = first & (0x1F if 0xA0 <= first < 0xC0 else 0x0F)
    if 0xA0 <= first < 0xC0 or 0xD9 <= first <= 0xDB:
        return data[at : at + n].decode(), at + n
    if first < 0x90 or first >= 0xDE:
        made = {}
        for _ in range(n):
            key, at = _unpacked(data, at)
            made[key], at = _unpacked(data, at)
        return made, at
    items = []
    for _ in range(n):
        item, at = _unpacked(data, at)
        items.append(item)
    return items, at
