"""What an object's bytes are spent on: rows by kernel, by weight and by part of the file, which add up to the file.

In: an object, the labels of kernels and weights. Out: ``SizeRow``s. Not its business: showing them (``cli``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.aot.embed import WEIGHTS_SECTIONS
from tilewright.aot.freestanding import freestanding_symbols
from tilewright.aot.parts import Part, parts_of
from tilewright.runtime.elf import NOBITS, SYMTAB, ElfObject, Section

RELOCATIONS, STRINGS, HAS_CODE = (4, 9), 3, 4
FILE_PARTS = {"relocations": "relocations", "symbols": "symbols and their names"}


@dataclass(frozen=True, slots=True)
class SizeRow:
    """``kind`` is kernel, weight, code, data or file; ``name`` says which of them."""

    kind: str
    name: str
    n_bytes: int


def size_rows(
    data: bytes, name: str, kernels: Mapping[str, str], weights: Sequence[tuple[str, int]], n_weights: int
) -> list[SizeRow]:
    """Rows that add up to the object: ``data`` with its last ``n_weights`` bytes of weights appended.

    ``kernels`` are labels by symbol, ``weights`` labels and bytes. Where weights went through LLVM, ``n_weights`` is 0,
    and the object has a section of them.
    """
    rows: Counter[tuple[str, str]] = Counter()
    if data[:4] == b"\x7fELF":
        for kind, what, n_bytes in _elf_parts(ElfObject(data), name, kernels):
            rows[kind, what] += n_bytes
    else:
        for kind, what, n_bytes in _other_parts(parts_of(data), name, kernels):
            rows[kind, what] += n_bytes
    n_held = n_weights + rows.pop(("weight", ""), 0)
    for label, n_bytes in weights if n_held else ():
        rows["weight", label or "folded constants"] += n_bytes
    if n_held:
        rows["weight", "alignment of weights"] = n_held - sum(n_bytes for _, n_bytes in weights)
    found = [SizeRow(kind, what, n) for (kind, what), n in rows.items() if n]
    rest = len(data) + n_weights - sum(r.n_bytes for r in found)
    order = ["kernel", "code", "data", "weight", "file"]
    found.append(SizeRow("file", "headers and alignment", rest))
    return sorted(found, key=lambda r: (order.index(r.kind), -r.n_bytes, r.name))


def _elf_parts(elf: ElfObject, name: str, kernels: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    for index, section in enumerate(elf.sections):
        if section.type in (0, NOBITS) or section.name == WEIGHTS_SECTIONS["ELF"]:
            continue
        kind, what = _of_section(section)
        rest = section.size
        if kind != "file":
            for symbol in elf.symbols:
                if symbol.section == index and symbol.size and symbol.kind in (1, 2):
                    rest -= symbol.size
                    yield (*_owner(symbol.name, name, kernels), symbol.size)
        yield kind, what, rest


def _other_parts(parts: Iterable[Part], name: str, kernels: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """The same of other formats; the weights' section is of kind "weight"."""
    for part in parts:
        if part.role in FILE_PARTS:
            yield "file", FILE_PARTS[part.role], part.n_bytes
        elif part.name in WEIGHTS_SECTIONS.values():
            yield "weight", "", part.n_bytes
        elif part.role == "data":
            is_unwind = part.name.startswith((".pdata", ".xdata", "__LD,__compact_unwind", "__TEXT,__eh_frame"))
            yield "data", "unwind tables" if is_unwind else "constants and texts", part.n_bytes
        else:
            for symbol, n_bytes in part.functions:
                yield (*_owner(symbol, name, kernels), n_bytes)
            yield "code", "alignment of functions", part.n_bytes - sum(n for _, n in part.functions)


def _of_section(section: Section) -> tuple[str, str]:
    if section.type in RELOCATIONS:
        return "file", "relocations"
    if section.type in (SYMTAB, STRINGS):
        return "file", "symbols and their names"
    if section.flags & HAS_CODE:
        return "code", "alignment of functions"
    if section.name == ".eh_frame" or section.name.startswith(".ARM.ex"):
        return "data", "unwind tables"
    return "data", "constants and texts"


def _owner(symbol: str, name: str, kernels: Mapping[str, str]) -> tuple[str, str]:
    stem = symbol.removeprefix(".L").split(".", maxsplit=1)[0]
    if stem in kernels:
        return "kernel", f"{stem} {kernels[stem]}".strip()
    if stem.startswith(("tw_run", "tw_kept", "tw_plan", "tw_sub", "tw_sized")):
        return "code", "order of kernels and sizes"
    if stem.startswith(f"{name}_"):
        return "code", "C interface"
    if stem in freestanding_symbols():
        return "code", "memcpy and its like"
    return "code", "thread pool"
