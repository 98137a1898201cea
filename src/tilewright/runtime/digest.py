"""Digests and checksums of big data, computed in two threads.

In: buffers, arrays, paths. Out: text. Not its business: where the results are kept (``artifact``, ``cache``).

Two kinds, for two questions. *Is it the same content?* (cache keys): a tree of BLAKE2b over 4 MiB pieces; nobody can
make two contents with one digest. *Was it damaged?* (weights at every load): CRC-32 over 1 MiB pieces, then BLAKE2b
over these; every single flipped bit and every error of up to 32 bits in a row is found, any other damage with
probability 1 - 2**-32 a piece. A checksum in the same file can't stop a forger whatever its strength: that takes a
signature. Measured on one thread of a Cascade Lake VM: CRC-32 3.0 GB/s, BLAKE2b 0.65, SHA-256 0.38, MD5 0.6; so
400 MB of weights are checked in 0.07 s with two threads, and 0.31 s would be too much for every start.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

PIECE = 4 << 20
CHECK_PIECE = 1 << 20
N_THREADS = 2

_CHECKSUM = "crc32-1m:"


def checksum(data: memoryview) -> str:
    """Damage-detecting checksum of weights; the text names its algorithm."""
    pieces = range(0, len(data), CHECK_PIECE)
    crcs = _parallel(lambda start: zlib.crc32(data[start : start + CHECK_PIECE]).to_bytes(4, "little"), pieces)
    return _CHECKSUM + _root(crcs, len(data))


def digest_bytes(data: memoryview | bytes) -> str:
    """Content digest of a buffer: 64 hexadecimal digits."""
    view = memoryview(data).cast("B")
    leaves = _parallel(lambda start: _leaf(view[start : start + PIECE]), range(0, len(view), PIECE))
    return _root(leaves, len(view))


def digest_file(path: str | os.PathLike[str]) -> str:
    """Content digest of a file, equal to ``digest_bytes`` of its bytes; ``OSError`` when it can't be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        return _root(_parallel(lambda start: _leaf(_read(fd, start)), range(0, size, PIECE)), size)
    finally:
        os.close(fd)


def digest_arrays(arrays: Iterable[np.ndarray[Any, Any]]) -> str:
    """Content digest of arrays: their dtypes, shapes and elements, in order."""
    total = hashlib.blake2b(digest_size=32)
    for array in arrays:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        total.update(f"{array.dtype.str} {array.dtype.name} {array.shape}\n".encode())
        total.update(digest_bytes(flat.data).encode())
    return total.hexdigest()


def _leaf(piece: memoryview | bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=32, person=b"leaf").digest()


def _root(leaves: Iterable[bytes], n_bytes: int) -> str:
    root = hashlib.blake2b(n_bytes.to_bytes(8, "little"), digest_size=32, person=b"root")
    for leaf in leaves:
        root.update(leaf)
    return root.hexdigest()


def _read(fd: int, start: int) -> bytes:
    data = os.pread(fd, PIECE, start)
    while len(data) < PIECE and (more := os.pread(fd, PIECE - len(data), start + len(data))):
        data += more
    return data


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
