"""Objects that are not ELF as data: their parts and how large their functions are.

In: a COFF, Mach-O or WebAssembly object as LLVM writes it. Out: ``Part`` rows. Not its business: ELF (``elf``), what a
part is worth showing (``sizes``). Layouts are those of Microsoft's PE/COFF specification, Apple's ``mach-o/loader.h``,
and WebAssembly's core specification and tool conventions (the ``linking`` section).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tilewright.runtime.errors import ArtifactError

_COFF_CODE, _COFF_UNINITIALIZED = 0x20, 0x80
_MACH_O_CODE, _MACH_O_KIND, _MACH_O_NO_FILE = 0x80000400, 0xFF, (1, 12, 18)
_SEGMENT, _SYMTAB = 0x19, 2
_WASM_CUSTOM, _WASM_CODE, _WASM_DATA = 0, 10, 11
_SEGMENT_INFO, _SYMBOL_TABLE, _IS_UNDEFINED, _HAS_NAME = 5, 8, 0x10, 0x40


@dataclass(frozen=True, slots=True)
class Part:
    """``role`` is code, data, relocations or symbols; ``functions`` are names and bytes of what code holds."""

    role: str
    name: str
    n_bytes: int
    functions: tuple[tuple[str, int], ...] = ()


def parts_of(data: bytes) -> Iterator[Part]:
    """Everything in the file but headers and padding; ``ArtifactError`` where it is of another format."""
    if data[:4] == b"\0asm":
        return _wasm(data)
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return _mach_o(data)
    if data[:2] in (b"\x64\x86", b"\x64\xaa"):
        return _coff(data)
    raise ArtifactError("not an object for Windows, macOS or WebAssembly", remedy="export the model again")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _between(places: list[tuple[int, str]], end: int) -> tuple[tuple[str, int], ...]:
    """Functions by where they begin: each goes to the next one's beginning, the last to the section's end."""
    ordered = [*sorted(places), (end, "")]
    return tuple((name, after - at) for (at, name), (after, _) in pairwise(ordered))


def _coff(data: bytes) -> Iterator[Part]:
    n_sections, table, n_symbols = struct.unpack_from("<2xH4xII", data)
    strings = table + 18 * n_symbols
    places: dict[int, list[tuple[int, str]]] = {}
    k = 0
    while k < n_symbols:
        raw, value, section, kind, _, more = struct.unpack_from("<8sIhHBB", data, table + 18 * k)
        if kind == _COFF_CODE and section > 0:
            places.setdefault(section, []).append((value, _coff_name(data, raw, strings)))
        k += 1 + more
    for k in range(n_sections):
        raw, size, start, n_relocations, flags = struct.unpack_from("<8s8xII8xH2xI", data, 20 + 40 * k)
        name = _coff_section_name(data, raw, strings)
        if start and not flags & _COFF_UNINITIALIZED:
            is_code = bool(flags & _COFF_CODE)
            yield Part("code" if is_code else "data", name, size, _between(places.get(k + 1, []), size))
        yield Part("relocations", name, 10 * n_relocations)
    yield Part("symbols", "", 18 * n_symbols + struct.unpack_from("<I", data, strings)[0])


def _coff_name(data: bytes, raw: bytes, strings: int) -> str:
    """A symbol's name: up to eight bytes, or a place among the strings."""
    if raw[:4] == b"\0\0\0\0":
        return _text(data, strings + int.from_bytes(raw[4:], "little"))
    return raw.rstrip(b"\0").decode()


def _coff_section_name(data: bytes, raw: bytes, strings: int) -> str:
    short = raw.rstrip(b"\0").decode()
    return _text(data, strings + int(short[1:])) if short.startswith("/") else short


def _mach_o(data: bytes) -> Iterator[Part]:
    (n_commands,), at = struct.unpack_from("<I", data, 16), 32
    sections: list[tuple[str, int, int, int, int]] = []
    symbols = n_symbols = strings = n_strings = 0
    for _ in range(n_commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == _SEGMENT:
            (count,) = struct.unpack_from("<I", data, at + 64)
            for k in range(count):  # a section's 80 bytes stand behind the segment's 72
                name, segment, address, n, relocations, flags = struct.unpack_from(
                    "<16s16sQQ12xII12x", data, at + 72 + 80 * k
                )
                shown = ",".join(x.rstrip(b"\0").decode() for x in (segment, name))
                sections.append((shown, address, n, relocations, flags))
        elif command == _SYMTAB:
            symbols, n_symbols, strings, n_strings = struct.unpack_from("<4I", data, at + 8)
        at += size
    places: dict[int, list[tuple[int, str]]] = {}
    for k in range(n_symbols):
        name_at, kind, section, value = struct.unpack_from("<IBB2xQ", data, symbols + 16 * k)
        if kind & 0x0E == 0x0E and not kind & 0xE0:  # in a section (N_SECT), and not a debugger's (N_STAB)
            places.setdefault(section, []).append((value, _text(data, strings + name_at).removeprefix("_")))
    # symbols count sections from 1; their values are addresses, not places within a section
    for k, (name, address, n, relocations, flags) in enumerate(sections, 1):
        if flags & _MACH_O_KIND not in _MACH_O_NO_FILE:
            is_code = bool(flags & _MACH_O_CODE)
            functions = _between(places.get(k, []), address + n) if is_code else ()
            yield Part("code" if is_code else "data", name, n, functions)
        yield Part("relocations", name, 8 * relocations)
    yield Part("symbols", "", 16 * n_symbols + n_strings)


def _wasm(data: bytes) -> Iterator[Part]:
    sections = list(_wasm_sections(data))
    names, segments, n_imported = _wasm_linking(data, sections)
    for section, name, at, end in sections:
        if section == _WASM_CODE:
            count, at = _leb(data, at)
            functions = []
            for k in range(count):
                size, body = _leb(data, at)
                functions.append((names.get(n_imported + k, ""), body + size - at))
                at = body + size
            yield Part("code", name, sum(n for _, n in functions), tuple(functions))
        elif section == _WASM_DATA:
            yield from _wasm_data(data, at, segments)
        elif section == _WASM_CUSTOM and name.startswith("reloc."):
            yield Part("relocations", name, end - at)
        elif section == _WASM_CUSTOM and name == "linking":
            yield Part("symbols", name, end - at)


def _wasm_sections(data: bytes) -> Iterator[tuple[int, str, int, int]]:
    """Number, name where it is a custom one, and where what it holds begins and ends."""
    at = 8
    while at < len(data):
        section = data[at]
        size, at = _leb(data, at + 1)
        end, name = at + size, ""
        if section == _WASM_CUSTOM:
            name, at = _wasm_text(data, at)
        yield section, name, at, end
        at = end


def _wasm_linking(data: bytes, sections: list[tuple[int, str, int, int]]) -> tuple[dict[int, str], list[str], int]:
    """Functions' names by index, data segments' names, and how many functions are imported."""
    names: dict[int, str] = {}
    segments: list[str] = []
    imported: set[int] = set()
    start, stop = next(((at, end) for _, name, at, end in sections if name == "linking"), (0, 0))
    _, at = _leb(data, start)
    while at < stop:
        kind = data[at]
        size, at = _leb(data, at + 1)
        end = at + size
        if kind == _SEGMENT_INFO:
            count, at = _leb(data, at)
            for _ in range(count):
                name, at = _wasm_text(data, at)
                segments.append(name)
                for _ in ("alignment", "flags"):
                    _, at = _leb(data, at)
        elif kind == _SYMBOL_TABLE:
            for is_undefined, index, name in _wasm_functions(data, at):
                imported.update([index] if is_undefined else [])
                names[index] = name
        at = end
    return names, segments, len(imported)


def _wasm_functions(data: bytes, at: int) -> Iterator[tuple[bool, int, str]]:
    """The functions of the symbol table: is it imported, index, name (of its own, or empty)."""
    count, at = _leb(data, at)
    for _ in range(count):
        kind, at = data[at], at + 1
        flags, at = _leb(data, at)
        is_undefined = bool(flags & _IS_UNDEFINED)
        name = ""
        if kind == 1:  # data: a name, and a place where it is defined
            _, at = _wasm_text(data, at)
            for _ in range(0 if is_undefined else 3):
                _, at = _leb(data, at)
            continue
        index, at = _leb(data, at)
        if kind != 3 and (not is_undefined or flags & _HAS_NAME):  # 3: a section, which has none
            name, at = _wasm_text(data, at)
        if kind == 0:
            yield is_undefined, index, name


def _wasm_data(data: bytes, at: int, segments: list[str]) -> Iterator[Part]:
    count, at = _leb(data, at)
    for k in range(count):
        flags, at = _leb(data, at)
        if flags == 0:  # active: an address as code, i32.const or i64.const
            _, at = _leb(data, at + 1)
            at += 1
        size, at = _leb(data, at)
        yield Part("data", segments[k] if k < len(segments) else "", size)
        at += size


def _wasm_text(data: bytes, at: int) -> tuple[str, int]:
    n, at = _leb(data, at)
    return data[at : at + n].decode(), at + n


def _leb(data: bytes, at: int) -> tuple[int, int]:
    """A number in LEB128, and where it ends."""
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
