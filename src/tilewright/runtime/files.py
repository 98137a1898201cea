"""Reading and writing whole files so that nobody ever sees half of one.

In: paths and pieces of data. Out: a file that is complete on disk, or a read-only memory map of a regular file.
Not its business: what the files hold (``artifact``, ``cache``).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import FileError

TEMPORARY = ".tmp"
"""Suffix of files being written; one that stays behind belongs to a process that was killed."""


def write_atomically(path: Path, pieces: Iterable[Any], *, durable: bool, mode: int = 0o666) -> None:
    """Write ``pieces`` beside ``path`` and rename over it: readers see the old file or the new one.

    ``durable`` also makes the new one survive a power failure. ``OSError`` leaves the old file as it was.
    """
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.{secrets.token_hex(6)}{TEMPORARY}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_folder(path.parent)


@contextlib.contextmanager
def writing(path: Any) -> Iterator[None]:
    """Turn what can go wrong while a user's file is written into a ``FileError`` that names it and a remedy."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        raise write_failure(path, error) from error


def write_failure(path: Any, error: OSError | TypeError | ValueError) -> FileError:
    """The error that says why a file could not be written."""
    shown = repr(os.fspath(path)) if isinstance(path, str | bytes | os.PathLike) else repr(path)
    if not isinstance(error, OSError):  # no path, or one with a zero byte
        return FileError(f"can't write {shown}: {error}", remedy="pass the path of a file")
    remedies = {
        errno.ENOENT: "make its folder first",
        errno.ENOTDIR: "name a folder where its path has a file",
        errno.EISDIR: "name a file, not a folder",
        errno.EEXIST: "name another place, or remove what is there",
        errno.ENOSPC: "free some space on that disk",
        errno.EDQUOT: "free some space of your quota",
        errno.ENAMETOOLONG: "choose a shorter name",
    }
    remedy = remedies.get(error.errno or 0, "choose a place that you may write to")
    return FileError(f"can't write {shown}: {error.strerror or error}", remedy=remedy)


def map_file(path: str | os.PathLike[str], flags: int = 0) -> tuple[memoryview, os.stat_result]:
    """A shared read-only map of a regular file (empty: an empty view). ``OSError`` when it is none.

    Never change a mapped file in place: replace it, as ``write_atomically`` does.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)  # a FIFO would block otherwise
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{os.fspath(path)} is not a regular file")
        if info.st_size == 0:
            return memoryview(b""), info
        return memoryview(mmap.mmap(fd, info.st_size, access=mmap.ACCESS_READ)), info
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
