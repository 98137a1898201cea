"""Takes the large tensors out of a serialised ONNX model before protobuf parses it.

In: the bytes of a ``ModelProto``, possibly memory-mapped. Out: the same message with the numbers of its large
initializers left empty, and for each initializer the view of its numbers in the original bytes. Parsing the message as
a whole copies every weight twice; importing BERT-base (418 MB) took 3.6 s that way and takes 0.4 s like this.
Not its business: whether the message is right; what this can't follow goes to protobuf untouched, which says why.

The wire format, as far as it matters here: a message is a list of fields, each a varint ``number * 8 + type`` and a
value: type 0 a varint, 1 eight bytes, 2 a varint length and as many bytes (also sub-messages), 5 four bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LARGE_BYTES = 4096
GRAPH_IN_MODEL, INITIALIZER_IN_GRAPH, RAW_DATA_IN_TENSOR = 7, 5, 9  # field numbers, fixed by the format
LENGTH_DELIMITED = 2

Numbers = memoryview | None


class Unfollowed(Exception):
    """The bytes are not a list of fields."""


class Field(NamedTuple):
    """One field: its number and type, where its tag begins, where its value lies."""

    number: int
    wire_type: int
    tag: int
    start: int
    end: int


def without_large_tensors(data: memoryview) -> tuple[bytes | memoryview, list[Numbers]]:
    """The message without its large initializers' numbers, and those numbers: one entry per initializer, in order."""
    numbers: list[Numbers] = []
    try:
        message = b"".join(_rewritten(data, 0, len(data), (GRAPH_IN_MODEL, INITIALIZER_IN_GRAPH), numbers))
    except Unfollowed:
        return data, []
    return (message, numbers) if any(n is not None for n in numbers) else (data, [])


def _rewritten(
    data: memoryview, start: int, end: int, path: tuple[int, ...], numbers: list[Numbers]
) -> list[bytes | memoryview]:
    """The fields between ``start`` and ``end``; sub-messages along ``path`` are rewritten with their new lengths."""
    pieces: list[bytes | memoryview] = []
    kept = start
    for field in _fields(data, start, end):
        if field.number != path[0] or field.wire_type != LENGTH_DELIMITED:
            continue
        pieces.append(data[kept : field.tag])
        if len(path) > 1:
            inner = _rewritten(data, field.start, field.end, path[1:], numbers)
        else:
            inner = _without_numbers(data, field.start, field.end, numbers)
        pieces += [_varint(field.number * 8 + LENGTH_DELIMITED), _varint(sum(map(len, inner))), *inner]
        kept = field.end
    pieces.append(data[kept:end])
    return pieces


def _without_numbers(data: memoryview, start: int, end: int, numbers: list[Numbers]) -> list[bytes | memoryview]:
    """A tensor without its raw data when that is large; the field stays, empty."""
    found = [f for f in _fields(data, start, end) if f.number == RAW_DATA_IN_TENSOR]
    if len(found) != 1 or found[0].wire_type != LENGTH_DELIMITED or found[0].end - found[0].start < LARGE_BYTES:
        numbers.append(None)
        return [data[start:end]]
    raw = found[0]
    numbers.append(data[raw.start : raw.end])
    return [data[start : raw.tag], _varint(RAW_DATA_IN_TENSOR * 8 + LENGTH_DELIMITED), b"\0", data[raw.end : end]]


def _fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    at = start
    while at < end:
        tag, value = _read_varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            _, stop = _read_varint(data, value, end)
        elif wire_type == LENGTH_DELIMITED:
            length, value = _read_varint(data, value, end)
            stop = value + length
        elif wire_type in (1, 5):
            stop = value + (8 if wire_type == 1 else 4)
        else:
            raise Unfollowed
        if stop > end or number == 0:
            raise Unfollowed
        yield Field(number, wire_type, at, value, stop)
        at = stop


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at ``at`` and the place after it."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise Unfollowed
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise Unfollowed


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
