"""Digests and checksums of big data, computed in two threads.

In: buffers, arrays. Out: text. Not its business: where the results are kept (``artifact``, ``cache``).

Two kinds, for two questions. *Is it the same content?* (cache keys): a tree of SHA-256 over 4 MiB pieces; nobody can
make two contents with one digest. *Was it damaged?* (weights at every load): sums of 64-bit words, wrapping, along the
rows and the columns of pieces of 64 rows of 4 KiB, then a digest over these. Damage within one row (a page of memory or
disk, a burst, a flipped bit) always changes a column's sum, rows that changed places change the rows' sums; what is
left are differences that cancel in every row and column of a piece at once. A checksum in the same file can't stop a
forger whatever its strength: that takes a signature. ``docs/adr/0008-checking-weights.md`` has the measurements.
Weights of files of format 1 have CRC-32 over pieces of 1 MiB instead of sums.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

PIECE = 4 << 20
ROW_WORDS = 512
ROWS = 64
CHECK_PIECE = ROWS * ROW_WORDS * 8
SUMMED_AT_ONCE = 4 * CHECK_PIECE
"""So many bytes that NumPy's time for a call does not count, and so few that the second sum finds them in a cache."""
N_THREADS = 2
_WORD = np.dtype("<u8")

CRC_PIECE = 1 << 20


def checksum(data: memoryview) -> str:
    """Damage-detecting checksum of weights; the text names its algorithm."""
    parts = range(0, len(data), SUMMED_AT_ONCE)
    sums = _parallel(lambda start: _sums(data[start : start + SUMMED_AT_ONCE]), parts)
    return "sums-256k:" + _root(sums, len(data))


def checksum_of_format_1(data: memoryview) -> str:
    """The same as files of format 1 have it."""
    pieces = range(0, len(data), CRC_PIECE)
    sums = _parallel(lambda start: zlib.crc32(data[start : start + CRC_PIECE]).to_bytes(4, "little"), pieces)
    return "crc32-1m:" + _root(sums, len(data))


def digest_bytes(data: memoryview | bytes) -> str:
    """Content digest of a buffer: 64 hexadecimal digits."""
    view = memoryview(data).cast("B")
    leaves = _parallel(lambda start: _leaf(view[start : start + PIECE]), range(0, len(view), PIECE))
    return _root(leaves, len(view))


def digest_arrays(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """Content digest of arrays: their dtypes, shapes and elements, in order."""
    total = hashlib.blake2b(digest_size=32)
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        total.update(f"{array.dtype.str} {array.dtype.name} {array.shape}\n".encode())
        total.update(digest_bytes(flat.data).encode())
    return total.hexdigest()


def _sums(data: memoryview) -> bytes:
    """Of each piece the sums of its rows and of its columns; of the last one the last row is filled with zeros."""
    whole = len(data) // CHECK_PIECE * CHECK_PIECE
    pieces = [np.frombuffer(data[:whole], _WORD).reshape(-1, ROWS, ROW_WORDS)]
    if rest := bytes(data[whole:]):
        filled = rest + bytes(-len(rest) % (ROW_WORDS * 8))
        pieces.append(np.frombuffer(filled, _WORD).reshape(1, -1, ROW_WORDS))
    sums = [np.concatenate([np.add.reduce(p, axis=2), np.add.reduce(p, axis=1)], axis=1) for p in pieces]
    return b"".join(s.tobytes() for s in sums)


def _leaf(piece: memoryview | bytes) -> bytes:
    return hashlib.sha256(piece).digest()


def _root(leaves: Iterable[bytes], n_bytes: int) -> str:
    """The digest over a tree's leaves; BLAKE2b here, so that no leaf is anybody's root."""
    root = hashlib.blake2b(n_bytes.to_bytes(8, "little"), digest_size=32, person=b"root")
    for leaf in leaves:
        root.update(leaf)
    return root.hexdigest()


def _parallel(work: Callable[[int], bytes], items: Sequence[int]) -> list[bytes]:
    """``[work(i) for i in items]`` in a few threads; hashing and reading release the interpreter's lock."""
    results = [b""] * len(items)
    errors: list[BaseException] = []

    def run(first: int) -> None:
        try:
            for k in range(first, len(items), N_THREADS):
                results[k] = work(items[k])
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    helpers = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(1, N_THREADS) if k < len(items)]
    for helper in helpers:
        helper.start()
    run(0)
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return results
