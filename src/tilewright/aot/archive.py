"""Static libraries: an object in an ``ar`` archive with its symbol index, written without ``ar``.

In: an ELF object's pieces and the names it defines. Out: the archive's pieces, the same whenever they are made (no
dates, no owners). The layout is System V's, as GNU and LLVM linkers read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def archive_pieces(member: str, pieces: Sequence[Any], symbols: Sequence[str]) -> list[Any]:
    """An archive with one member."""
    names = f"{member}/\n".encode()
    index = len(symbols).to_bytes(4, "big") + bytes(4 * len(symbols)) + b"".join(s.encode() + b"\0" for s in symbols)
    index += bytes(len(index) % 2)
    names += b"\n" * (len(names) % 2)
    start = 8 + 60 + len(index) + 60 + len(names)
    index = index[:4] + start.to_bytes(4, "big") * len(symbols) + index[4 + 4 * len(symbols) :]
    size = sum(memoryview(p).nbytes for p in pieces)
    head = b"!<arch>\n" + _head("/", len(index)) + index + _head("//", len(names)) + names
    return [head + _head("/0", size), *pieces, b"\n" * (size % 2)]


def _head(name: str, size: int) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{size:<10}`\n".encode()
