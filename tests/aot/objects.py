"""The global symbols of object files of any format, read without a tool.

In: an object's bytes. Out: the format's name with the machine's, and the names that it defines and asks for.
Layouts are those of the System V ABI, Microsoft's PE/COFF specification, Apple's ``mach-o/loader.h`` and WebAssembly's
core specification. C's names: Mach-O's leading underscore is taken off.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.runtime.elf import ElfObject

_ELF = {3: "x86", 40: "Arm", 62: "x86-64", 183: "AArch64", 243: "RISC-V"}
_COFF = {0x8664: "x86-64", 0xAA64: "AArch64"}
_MACH_O = {0x01000007: "x86-64", 0x0100000C: "AArch64"}


@dataclass(frozen=True)
class Symbols:
    """``kind`` is such as "ELF 64 AArch64"."""

    kind: str
    defined: frozenset[str]
    undefined: frozenset[str]


def symbols_of(data: bytes) -> Symbols:
    """Global symbols of an object."""
    if data[:4] == b"\x7fELF":
        elf = ElfObject(data)
        kind = f"ELF {32 * data[4]} {_ELF[struct.unpack_from('<H', data, 18)[0]]}"
        return Symbols(kind, frozenset(elf.defined()), frozenset(elf.undefined()))
    if data[:4] == b"\0asm":
        return _wasm(data)
    return _mach_o(data) if data[:4] == b"\xcf\xfa\xed\xfe" else _coff(data)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _coff(data: bytes) -> Symbols:
    machine, _, _, at, n = struct.unpack_from("<HHIII", data)
    strings, defined, undefined, k = at + 18 * n, set(), set(), 0
    while k < n:
        raw, _, section, _, storage, auxiliary = struct.unpack_from("<8sIhHBB", data, at + 18 * k)
        name = (
            _text(data, strings + struct.unpack("<I", raw[4:])[0])
            if raw[:4] == b"\0\0\0\0"
            else raw.rstrip(b"\0").decode()
        )
        if storage == 2:
            (defined if section else undefined).add(name)
        k += 1 + auxiliary
    return Symbols(f"COFF {_COFF[machine]}", frozenset(defined), frozenset(undefined))


def _mach_o(data: bytes) -> Symbols:
    _, machine, _, _, n_commands = struct.unpack_from("<5I", data)
    at, defined, undefined = 32, set(), set()
    for _ in range(n_commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == 2:
            symbols, n, strings = struct.unpack_from("<III", data, at + 8)
            for k in range(n):
                name, kind, _, _, _ = struct.unpack_from("<IBBHQ", data, symbols + 16 * k)
                if kind & 1 and not kind & 0xE0:
                    (defined if kind & 0xE else undefined).add(_text(data, strings + name).removeprefix("_"))
        at += size
    return Symbols(f"Mach-O {_MACH_O[machine]}", frozenset(defined), frozenset(undefined))


def _wasm(data: bytes) -> Symbols:
    """The symbol table of the "linking" section, and the imports' names."""
    at, defined, undefined, imports = 8, set(), set(), []
    while at < len(data):
        section = data[at]
        size, at = _leb(data, at + 1)
        end = at + size
        if section == 2:
            imports = _wasm_imports(data, at)
        elif section == 0:
            name, here = _wasm_name(data, at)
            if name == "linking":
                for is_defined, symbol in _wasm_symbols(data, here, end, imports):
                    (defined if is_defined else undefined).add(symbol)
        at = end
    return Symbols("Wasm", frozenset(defined), frozenset(undefined))


def _leb(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _wasm_name(data: bytes, at: int) -> tuple[str, int]:
    n, at = _leb(data, at)
    return data[at : at + n].decode(), at + n


def _wasm_imports(data: bytes, at: int) -> list[tuple[int, str]]:
    n, at = _leb(data, at)
    found = []
    for _ in range(n):
        _, at = _wasm_name(data, at)
        name, at = _wasm_name(data, at)
        kind, at = data[at], at + 1
        found.append((kind, name))
        if kind == 0:
            _, at = _leb(data, at)
        elif kind == 3:
            at += 2
        else:
            at += 1 if kind == 1 else 0
            has_most, at = data[at], at + 1
            for _ in range(1 + has_most):
                _, at = _leb(data, at)
    return found


def _wasm_symbols(data: bytes, at: int, end: int, imports: list[tuple[int, str]]) -> list[tuple[bool, str]]:
    """(is defined, name) of global symbols: subsection 8's rows of kind, flags, index, name."""
    found = []
    _, at = _leb(data, at)
    while at < end:
        kind = data[at]
        size, at = _leb(data, at + 1)
        stop = at + size
        if kind == 8:
            n, at = _leb(data, at)
            for _ in range(n):
                what, at = data[at], at + 1
                flags, at = _leb(data, at)
                is_undefined, name = bool(flags & 0x10), ""
                if what != 1:
                    index, at = _leb(data, at)
                    if is_undefined and not flags & 0x40:
                        name = [s for k, s in imports if k == what][index] if what in (0, 2) else ""
                    elif what != 3:
                        name, at = _wasm_name(data, at)
                else:
                    name, at = _wasm_name(data, at)
                    if not is_undefined:
                        for _ in range(3):
                            _, at = _leb(data, at)
                if name and not flags & 2:
                    found.append((not is_undefined, name))
        at = stop
    return found
