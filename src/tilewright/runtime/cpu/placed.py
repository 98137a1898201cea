"""Object code into this process, by a linker of our own for what our code generator writes for x86-64 under Linux.

In: ELF objects, names to export, addresses to import. Out: code at its addresses, or None where an object holds
anything that is not listed here; then LLVM links (``linker``), which also says what is wrong with damaged objects. Not
its business: whether the code fits this machine (``host``).

LLVM's linker does the same, but loading LLVM takes longer than everything else of loading a model together
(``docs/adr/0048-objects-placed-without-llvm.md``).

All sections of all objects get one piece of memory, in three parts with pages of their own: code, constants, data that
is written. Since the parts lie within 2 GiB, 32 bits reach from each to each. What lies elsewhere, in libraries, is
reached by its address in the second part, or for a call by a jump in the first part. Tables for unwinding are left
out: no exception passes through our code, and who walks the stack stops there.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tilewright.runtime.code_pages import PAGE, CodePages, is_supported
from tilewright.runtime.elf import NOBITS, ElfObject, Section, Symbol
from tilewright.runtime.errors import ArtifactError, ResourceError

_RELOCATABLE, _X86_64 = 1, 62
_WRITTEN, _LOADED, _CODE, _MERGED, _STRINGS, _GROUPED = 1, 2, 4, 16, 32, 512
"""Flags of sections (``SHF_``). Equal constants of merged ones may stay apart, members of groups may stand alone."""
_PROGBITS, _RELA, _REL, _UNWIND = 1, 4, 9, 0x70000001
_LOCAL, _GLOBAL, _WEAK = 0, 1, 2
_NAMED_KINDS = (0, 1, 2)
"""Kinds of symbols that have a name for others: without a type, objects, functions."""
_AT_RUN_TIME = (6, 10)
"""Kinds of symbols whose address a thread or a function decides."""

_ADDRESS, _RELATIVE, _CALL, _BY_TABLE = 1, 2, 4, (9, 41, 42)
"""Kinds of relocations: R_X86_64_64, PC32, PLT32; GOTPCREL and its two forms that a linker may shorten."""
_MOST_BYTES = 1 << 30
"""Of a section: larger ones would not lie within reach of each other."""
_JUMP = bytes.fromhex("ff2500000000")
"""``jmp [rip]``: to the address that follows."""


class _LeftToLlvm(Exception):
    """Something that is not for this linker."""


class Placed:
    """Addresses by name; the code is there as long as this object lives, or for ever after ``detach``."""

    def __init__(self, pages: CodePages, addresses: Mapping[str, int]) -> None:
        self._pages = pages
        self._addresses = addresses

    def __getitem__(self, name: str) -> int:
        return self._addresses[name]

    def detach(self) -> None:
        """Never unload."""
        self._pages.keep()


def place(objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> Placed | None:
    """The objects linked with each other, ``imports`` and the process's libraries; None where that is LLVM's to do.

    ``ResourceError`` where there is no memory for code, or the system lets none be executed that was written.
    """
    if not is_supported():
        return None
    try:
        link = _Link(imports)
        for data in objects:
            link.add(data)
        return link.placed(exports)
    # of damaged objects: what LLVM says about them is said
    except (_LeftToLlvm, ArtifactError, struct.error, LookupError, ValueError, OverflowError):
        return None
    except (OSError, MemoryError) as error:  # LLVM would end the process
        remedy = "free memory, and let this process execute memory that it wrote, as SELinux's execmem does"
        raise ResourceError(f"the model's code can't be brought into memory: {error}", remedy=remedy) from error


class _Part:
    """Bytes that share their protection; ``address`` is known when all are there."""

    __slots__ = ("address", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self.address = 0

    def add(self, data: bytes, align: int) -> _Spot:
        self.data += bytes(-len(self.data) % max(align, 1))
        self.data += data
        return _Spot(self, len(self.data) - len(data))


class _Spot(NamedTuple):
    """Where something lies in a part."""

    part: _Part
    offset: int

    @property
    def address(self) -> int:
        return self.part.address + self.offset

    def behind(self, n_bytes: int) -> _Spot:
        return _Spot(self.part, self.offset + n_bytes)


class _Relocation(NamedTuple):
    """A place that holds an address or a distance: of a place of the same object, or of a name."""

    at: _Spot
    kind: int
    target: _Spot | str
    addend: int


class _Link:
    """Sections and names of the objects that were added, and the relocations that are left to do."""

    def __init__(self, imports: Mapping[str, int]) -> None:
        self._imports = imports
        self._code, self._constants, self._data = self._parts = _Part(), _Part(), _Part()
        self._names: dict[str, tuple[_Spot, int]] = {}
        self._relocations: list[_Relocation] = []
        self._process = ctypes.CDLL(None)

    def add(self, data: bytes) -> None:
        """Take an object's sections, names and relocations."""
        if struct.unpack_from("<HH", data, 16) != (_RELOCATABLE, _X86_64) or data[4:5] != b"\2":
            raise _LeftToLlvm
        read = ElfObject(data)
        homes = {k: self._put(section, data) for k, section in enumerate(read.sections) if _is_taken(section)}
        places = [self._place_of(symbol, homes) for symbol in read.symbols]
        for section in read.sections:
            changed = read.sections[section.info] if section.type in (_RELA, _REL) else None
            if changed is None or not _is_taken(changed):
                continue
            if section.type == _REL:
                raise _LeftToLlvm
            self._relocations += _relocations(data, section, homes[section.info], changed.size, places)

    def _put(self, section: Section, data: bytes) -> _Spot:
        known = _WRITTEN | _LOADED | _CODE | _MERGED | _STRINGS | _GROUPED
        both = _CODE | _WRITTEN
        if section.flags & ~known or section.flags & both == both or section.type not in (_PROGBITS, NOBITS):
            raise _LeftToLlvm
        part = self._code if section.flags & _CODE else self._data if section.flags & _WRITTEN else self._constants
        if section.align > PAGE or section.size > _MOST_BYTES:
            raise _LeftToLlvm
        content = data[section.offset : section.offset + section.size]
        if section.type == NOBITS:
            content = bytes(section.size)
        if len(content) != section.size:
            raise _LeftToLlvm
        return part.add(content, section.align)

    def _place_of(self, symbol: Symbol, homes: Mapping[int, _Spot]) -> _Spot | str | None:
        """Where a symbol lies, its name where others may define it, or None for what nothing refers to."""
        if symbol.kind in _AT_RUN_TIME:
            raise _LeftToLlvm
        home = homes.get(symbol.section)
        own = None if home is None else home.behind(symbol.value)
        if symbol.binding == _LOCAL:
            return own
        if symbol.kind not in _NAMED_KINDS or symbol.binding not in (_GLOBAL, _WEAK):
            raise _LeftToLlvm
        if symbol.section:
            if own is None or symbol.name in self._imports:
                raise _LeftToLlvm
            self._define(symbol, own)
        return symbol.name

    def _define(self, symbol: Symbol, own: _Spot) -> None:
        """A strong definition goes before weak ones, of which the first counts; two strong ones LLVM refuses."""
        _, binding = self._names.get(symbol.name, (own, None))
        if binding == symbol.binding == _GLOBAL:
            raise _LeftToLlvm
        if binding is None or (binding, symbol.binding) == (_WEAK, _GLOBAL):
            self._names[symbol.name] = own, symbol.binding

    def placed(self, exports: Sequence[str]) -> Placed:
        """The code in memory, every relocation done."""
        tables, jumps = self._reserved()
        sizes = [-(-len(part.data) // PAGE) * PAGE for part in self._parts]
        pages = CodePages(sum(sizes) or PAGE)
        starts = [0, sizes[0], sizes[0] + sizes[1]]
        for part, start in zip(self._parts, starts, strict=True):
            part.address = pages.address + start
        for name, table in tables.items():
            struct.pack_into("<Q", table.part.data, table.offset, self._address(name))
        for name, jump in jumps.items():
            struct.pack_into("<Q", jump.part.data, jump.offset + len(_JUMP), self._address(name))
        for row in self._relocations:
            self._relocate(row, tables, jumps)
        pages.write(b"".join(part.data.ljust(n, b"\0") for part, n in zip(self._parts, sizes, strict=True)))
        pages.seal(0, starts[1], is_code=True)
        pages.seal(starts[1], starts[2], is_code=False)
        return Placed(pages, {name: self._names[name][0].address for name in exports})

    def _reserved(self) -> tuple[dict[str, _Spot], dict[str, _Spot]]:
        """Places for the addresses that are read from a table, and for jumps to functions outside."""
        tables: dict[str, _Spot] = {}
        jumps: dict[str, _Spot] = {}
        for row in self._relocations:
            name = row.target
            if not isinstance(name, str):
                continue
            if row.kind in _BY_TABLE and name not in tables:
                tables[name] = self._constants.add(bytes(8), 8)
            if row.kind == _CALL and name not in self._names and name not in jumps:
                jumps[name] = self._code.add(_JUMP + bytes(8), 16)
        return tables, jumps

    def _address(self, name: str) -> int:
        """Of a name that an object defines, that was given, or that the process's libraries have."""
        if name in self._names:
            return self._names[name][0].address
        if name in self._imports:
            return self._imports[name]
        return ctypes.addressof(ctypes.c_char.in_dll(self._process, name))  # ValueError where nobody has it

    def _relocate(self, row: _Relocation, tables: Mapping[str, _Spot], jumps: Mapping[str, _Spot]) -> None:
        target, data, offset = row.target, row.at.part.data, row.at.offset
        if row.kind == _ADDRESS:
            address = self._address(target) if isinstance(target, str) else target.address
            struct.pack_into("<Q", data, offset, (address + row.addend) % (1 << 64))
            return
        if isinstance(target, str) and row.kind in _BY_TABLE:
            found = tables[target]
        elif isinstance(target, str) and target in self._names:
            found, _ = self._names[target]
        elif isinstance(target, str) and row.kind == _CALL:
            found = jumps[target]
        elif isinstance(target, str) or row.kind in _BY_TABLE:
            raise _LeftToLlvm  # data outside, which may be too far away; a table of a local symbol
        else:
            found = target
        struct.pack_into("<i", data, offset, found.address + row.addend - row.at.address)


def _relocations(
    data: bytes, section: Section, home: _Spot, size: int, places: Sequence[_Spot | str | None]
) -> Iterator[_Relocation]:
    """The rows of a section of relocations, which change the ``size`` bytes at ``home``."""
    for at in range(section.offset, section.offset + section.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", data, at)
        kind, target = info & 0xFFFFFFFF, places[info >> 32]
        width = 8 if kind == _ADDRESS else 4
        if kind not in (_ADDRESS, _RELATIVE, _CALL, *_BY_TABLE) or target is None or offset + width > size:
            raise _LeftToLlvm
        yield _Relocation(home.behind(offset), kind, target, addend)


def _is_taken(section: Section) -> bool:
    """Is it in memory when the code runs? Tables for unwinding are not, here."""
    return bool(section.flags & _LOADED) and section.type != _UNWIND and section.name != ".eh_frame"
