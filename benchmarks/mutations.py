"""What may become of a file on its way or in bad hands: bytes, words and JSON changed by a random generator.

In: the bytes of a sound file, those of its siblings, and a generator. Out: other bytes. Not its business: which files
there are (``benchmarks.hostile_files``) and what must become of them (``benchmarks.hostile``).
"""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from numpy.random import Generator

HEAD = 4096
"""Bytes at the beginning where every other change goes, as headers stand there and numbers behind them."""
WHOLE = (0, 1, -1, 2, 3, 7, 64, 255, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1, -(2**63))
ODD_BYTES = (0, 1, 127, 128, 255)
DEEP = 100_000
"""Levels of brackets that no reader by recursion survives."""
ODD_JSON: tuple[Any, ...] = (
    *WHOLE, None, True, "", "x" * 300, "../../etc/passwd", "/etc/passwd", "\0", "\ud800", 1e308, -0.5, float("nan"),
    float("inf"), 10**400, [], {}, [[]], {"": None},
)  # fmt: skip
WORDS = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[\w.]+|[^\w\s]")

Damage = Callable[[bytes, Sequence[bytes], Generator], bytes]
"""A file's bytes, those of other sound files of its kind, and a generator: the bytes that become of them."""


def _place(data: bytes | bytearray, rng: Generator) -> int:
    """Where to change something, in the head as often as elsewhere."""
    size = max(len(data), 1)
    return int(rng.integers(min(size, HEAD) if rng.random() < 0.5 else size))


def _range(data: bytes, rng: Generator) -> tuple[int, int]:
    first = _place(data, rng)
    longest = 4 ** int(rng.integers(1, 8))
    return first, min(len(data), first + int(rng.integers(1, longest + 1)))


def cut(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """The end is missing."""
    return data[: _place(data, rng)]


def bits(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """One to eight bits are others."""
    made = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        made[_place(made, rng)] ^= 1 << int(rng.integers(8))
    return bytes(made)


def odd_bytes(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """One to five bytes are others, often the least or the largest."""
    made = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        made[_place(made, rng)] = int(rng.choice([*ODD_BYTES, rng.integers(256)]))
    return bytes(made)


def words_of_bytes(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """A number of four or eight bytes, which may be a count or an offset, is huge, negative or small."""
    made, size = bytearray(data), int(rng.choice([4, 4, 8]))
    at = _place(made, rng) // 4 * 4
    value = int(rng.integers(len(WHOLE)))
    made[at : at + size] = (WHOLE[value] % (1 << 8 * size)).to_bytes(size, "little")[: max(len(made) - at, 0)]
    return bytes(made)


def overlap(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """A number of four or eight bytes is what stands elsewhere: offsets that meet, or lead back."""
    made, size = bytearray(data), int(rng.choice([4, 4, 8]))
    at, other = (_place(made, rng) // 4 * 4 for _ in range(2))
    made[at : at + size] = made[other : other + size]
    return bytes(made)


def splice(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """A range holds what another file has there or elsewhere."""
    other = others[int(rng.integers(len(others)))]
    first, last = _range(data, rng)
    there = first if rng.random() < 0.5 else _place(other, rng)
    return data[:first] + other[there : there + last - first] + data[last:]


def doubled(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """A range stands there twice, or not at all, and moves what follows."""
    first, last = _range(data, rng)
    return data[:last] + data[first:] if rng.random() < 0.5 else data[:first] + data[last:]


BYTES: tuple[Damage, ...] = (cut, bits, odd_bytes, words_of_bytes, words_of_bytes, overlap, splice, doubled)


def in_bytes(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """One to three of ``BYTES`` after another."""
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        data = BYTES[int(rng.integers(len(BYTES)))](data, others, rng) if data else data
    return data


# --- texts ----------------------------------------------------------------------------------------------------------


def in_text(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """Words and numbers become others of the text or odd ones, lines go, come twice or swap places; or it is cut."""
    kind = rng.random()
    if kind < 0.15:
        return in_bytes(data, others, rng)
    text = data.decode("utf-8", "replace")
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        text = _line_changed(text, rng) if rng.random() < 0.2 else _word_changed(text, rng)
    return text.encode("utf-8", "replace")


def _line_changed(text: str, rng: Generator) -> str:
    lines = text.split("\n")
    a, b = (int(rng.integers(len(lines))) for _ in range(2))
    match int(rng.integers(3)):
        case 0:
            del lines[a]
        case 1:
            lines.insert(b, lines[a])
        case _:
            lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _word_changed(text: str, rng: Generator) -> str:
    found = list(WORDS.finditer(text))
    if not found:
        return text
    m, other = (found[int(rng.integers(len(found)))] for _ in range(2))
    if m[0] in "([{<" and rng.random() < 0.1:
        new = m[0] * DEEP
    elif m[0].lstrip("-")[:1].isdigit() and rng.random() < 0.7:
        new = str(WHOLE[int(rng.integers(len(WHOLE)))])
    else:
        same = [
            f for f in found if f[0][:1].isdigit() == m[0][:1].isdigit() and f[0][:1].isalpha() == m[0][:1].isalpha()
        ]
        new = same[int(rng.integers(len(same)))][0] if rng.random() < 0.7 else other[0]
    return text[: m.start()] + new + text[m.end() :]


# --- JSON -----------------------------------------------------------------------------------------------------------


def in_json(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """Values become odd ones, or those of other places; keys and elements go or come twice; or the text changes."""
    if rng.random() < 0.1:
        return in_text(data, others, rng)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # damaged before
        return in_text(data, others, rng)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        change_value(document, rng)
    made = json.dumps(document)
    if rng.random() < 0.02:
        made = "[" * DEEP + made
    return made.encode("utf-8", "surrogatepass")


def change_value(document: Any, rng: Generator) -> None:
    """One value within a document of lists and dicts, at any depth, changes in place."""
    homes = _homes(document)
    if not homes:
        return
    home, other = (homes[int(rng.integers(len(homes)))] for _ in range(2))
    keys = list(home) if isinstance(home, dict) else list(range(len(home)))
    key = keys[int(rng.integers(len(keys)))]
    match int(rng.integers(8)):
        case 0:
            del home[key]
        case 1 if isinstance(home, list):
            home.insert(key, home[key])
        case 2:
            values = list(other.values()) if isinstance(other, dict) else other
            home[key] = json.loads(json.dumps(values[int(rng.integers(len(values)))]))
        case 3 if isinstance(home[key], str) and home[key].lstrip("-").isdigit():
            home[key] = str(WHOLE[int(rng.integers(len(WHOLE)))])
        case _:
            home[key] = ODD_JSON[int(rng.integers(len(ODD_JSON)))]


def _homes(document: Any) -> list[Any]:
    """Every list and dict that holds something."""
    found, stack = [], [document]
    while stack:
        x = stack.pop()
        if isinstance(x, dict | list) and x:
            found.append(x)
            stack += x.values() if isinstance(x, dict) else x
    return found


# --- archives -------------------------------------------------------------------------------------------------------


def in_archive(data: bytes, others: Sequence[bytes], rng: Generator) -> bytes:
    """A member of a zip file changes, goes or gets another's name; or the archive itself changes."""
    if rng.random() < 0.3 or not zipfile.is_zipfile(io.BytesIO(data)):
        return in_bytes(data, others, rng)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(i.filename, archive.read(i), i.compress_type) for i in archive.infolist()]
    except (
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        OSError,
    ):  # damaged before
        return in_bytes(data, others, rng)
    k, other = (int(rng.integers(len(members))) for _ in range(2))
    if rng.random() < 0.6:  # the members that say how the others are read
        said = [i for i, (_, content, _) in enumerate(members) if content[:1] in (b"{", b"[", b"g")]
        k = said[int(rng.integers(len(said)))] if said else k
    name, content, how = members[k]
    match int(rng.integers(12)):
        case 0:
            del members[k]
        case 1:
            members[k] = (members[other][0], content, how)
        case 2:
            members[k] = (f"../{name}", content, how)
        case 3:
            members[k] = (name, members[other][1], how)
        case _:
            change: Damage = (
                in_json if content[:1] in (b"{", b"[") else in_text if content[:5] == b"graph" else in_bytes
            )
            members[k] = (name, change(content, [m[1] for m in members], rng), how)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of two members of one name
        for name, content, how in members:
            archive.writestr(zipfile.ZipInfo(name), content, how)  # without the time of day
    return made.getvalue()
