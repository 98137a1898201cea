"""Relocatable ELF objects as data: their sections and symbols, and a few fields to change.

In: an object's bytes, 32 or 64 bits, little-endian. Out: ``Section`` and ``Symbol`` rows. Not its business: linking.
Layouts are those of the System V ABI's ELF specification.
"""

from __future__ import annotations

import struct

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.plain import dataclass

SYMTAB, NOBITS = 2, 8


@dataclass(frozen=True, slots=True)
class Section:
    """A section's header; ``info`` is, of relocations, the section that they change; ``at`` is where the header lies
    in the file."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    at: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol; ``kind`` is its type (1 object, 2 function), ``section`` an index, ``at`` its place in the file."""

    name: str
    kind: int
    binding: int
    section: int
    value: int
    size: int
    at: int


class ElfObject:
    """``ArtifactError`` when the bytes are not an ELF object that LLVM would write."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        if data[:4] != b"\x7fELF" or data[5:6] != b"\1":
            raise ArtifactError("not a little-endian ELF object", remedy="export the model again")
        self.is_64 = data[4] == 2
        self.sections = self._read_sections()
        self.symbols = self._read_symbols()

    def section_named(self, name: str) -> int | None:
        """The index of the section of a name."""
        return next((k for k, s in enumerate(self.sections) if s.name == name), None)

    def defined(self) -> list[str]:
        """Names that other objects may use."""
        return [s.name for s in self.symbols if s.binding != 0 and s.section != 0]

    def undefined(self) -> list[str]:
        """Names that somebody else must define."""
        return sorted(s.name for s in self.symbols if s.binding != 0 and s.section == 0)

    def put_section(self, out: bytearray, index: int, offset: int, size: int) -> None:
        """Change where a section's data lie, in a copy of the file."""
        word, at = ("<Q", 24) if self.is_64 else ("<I", 16)
        step = struct.calcsize(word)
        for k, value in enumerate((offset, size)):
            struct.pack_into(word, out, self.sections[index].at + at + k * step, value)

    def put_symbol_size(self, out: bytearray, symbol: Symbol, size: int) -> None:
        """Change a symbol's size, in a copy of the file."""
        struct.pack_into("<Q" if self.is_64 else "<I", out, symbol.at + (16 if self.is_64 else 8), size)

    def _read_sections(self) -> list[Section]:
        if self.is_64:
            (start,), (step, count, names) = (
                struct.unpack_from("<Q", self._data, 40), struct.unpack_from("<3H", self._data, 58)
            )  # fmt: skip
            form = "<IIQQQQIIQQ"
        else:
            (start,), (step, count, names) = (
                struct.unpack_from("<I", self._data, 32), struct.unpack_from("<3H", self._data, 46)
            )  # fmt: skip
            form = "<10I"
        rows = [(struct.unpack_from(form, self._data, start + k * step), start + k * step) for k in range(count)]
        if count == 0 and start:
            raise ArtifactError("an object with more than 65,279 sections", remedy="report this with the model")
        text = rows[names][0][4] if rows else 0
        return [
            Section(self._text(text + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8], at) for r, at in rows
        ]  # fmt: skip

    def _read_symbols(self) -> list[Symbol]:
        found: list[Symbol] = []
        for table in self.sections:
            if table.type != SYMTAB:
                continue
            names = self.sections[table.link].offset
            step = 24 if self.is_64 else 16
            for at in range(table.offset, table.offset + table.size, step):
                if self.is_64:
                    name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", self._data, at)
                else:
                    name, value, size, info, _, section = struct.unpack_from("<IIIBBH", self._data, at)
                found.append(Symbol(self._text(names + name), info & 15, info >> 4, section, value, size, at))
        return found

    def _text(self, at: int) -> str:
        return self._data[at : self._data.index(b"\0", at)].decode("utf-8", "replace")
