"""Reading and writing whole files so that nobody ever sees half of one.

In: paths and pieces of data. Out: a file that is complete on disk, or a read-only memory map of a regular file.
Not its business: what the files hold (``artifact``, ``cache``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import mmap
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from tilewright.runtime.errors import FileError
from tilewright.runtime.plain import dataclass

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY = ".tmp"
"""Suffix of files being written; one that stays behind belongs to a process that was killed."""


def write_atomically(path: str | os.PathLike[str], pieces: Iterable[Any], *, durable: bool, mode: int = 0o666) -> None:
    """Write ``pieces`` in place of what ``path`` holds, as :func:`replacing` does."""
    with replacing(path, durable=durable, mode=mode) as file:
        for piece in pieces:
            file.write(piece)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in place of what ``path`` holds, as :func:`replacing` does."""
    write_atomically(path, [text.encode("utf-8")], durable=False)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file beside ``path`` to write to, renamed over it in the end: readers see the old file or the new one.

    Who has mapped or loaded the old one keeps it. ``durable`` also makes the new one survive a power failure. Any error
    leaves the old file as it was. A device or a pipe (``/dev/stdout``) is written to and stays what it is.
    """
    folder, name = os.path.split(os.fspath(path))
    if name in ("", "."):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if _is_stream(path):
        with open(path, "wb") as file:
            yield file
        return
    # beside it, since a rename stays within one file system; cut, as names have 255 bytes at most
    temporary = os.path.join(folder, f".{name[:200]}.{os.getpid()}.{os.urandom(6).hex()}{TEMPORARY}")
    # not by tempfile, whose files are their owner's alone whatever the umask says
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_folder(folder or ".")


def _is_stream(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:  # nothing there, or nothing that can be looked at: opening says so
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_writable(path: Path) -> Path:
    """``path``, where a file can be written; raises ``FileError`` before any work is done for nothing."""
    if path.is_dir():
        raise FileError(f"can't write {path}: it is a folder", remedy="name a file")
    if not path.parent.is_dir():
        raise FileError(f"can't write {path}: there is no folder {path.parent}", remedy="make the folder first")
    return path


@contextlib.contextmanager
def writing(path: Any) -> Iterator[None]:
    """Turn what can go wrong while a user's file is written into a ``FileError`` that names it and a remedy."""
    shown = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(shown, str) or "\0" in shown:
        raise FileError(f"can't write {shown!r:.200}: it is no path", remedy="pass a path as text or pathlib.Path")
    try:
        yield
    except OSError as error:
        raise _write_failure(shown, error) from error


@contextlib.contextmanager
def reading(path: Any, remedy: str) -> Iterator[None]:
    """Turn what can go wrong while a user's file is opened into a ``FileError`` that names it and this remedy."""
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"can't read {str(path)!r:.200}: {reason_of(error)}", remedy=remedy) from error


def reason_of(error: Exception) -> str:
    """What an error says, of the system's errors without their number and the path, which a message names itself."""
    return getattr(error, "strerror", None) or str(error)


ELSEWHERE = "choose a place that you may write to"


def _write_failure(path: str, error: OSError) -> FileError:
    remedies = {
        # Some file systems, such as /proc, say of a new file in a folder that is there that it is not there.
        errno.ENOENT: ELSEWHERE if os.path.isdir(os.path.dirname(path) or ".") else "make its folder first",
        errno.ENOTDIR: "name a folder where its path has a file",
        errno.EISDIR: "name a file, not a folder",
        errno.EEXIST: "name another place, or remove what is there",
        errno.ENOSPC: "free some space on that disk",
        errno.EDQUOT: "free some space of your quota",
        errno.ENAMETOOLONG: "choose a shorter name",
    }
    remedy = remedies.get(error.errno or 0, ELSEWHERE)
    return FileError(f"can't write {path!r}: {error.strerror or error}", remedy=remedy)


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file's bytes as they were read, once: what is found out about them stays true whatever becomes of the file."""

    path: str | os.PathLike[str]
    data: bytes


def read_file(path: str | os.PathLike[str], most: int | None = None) -> FileContent:
    """A regular file's content. ``OSError`` when it is none, ``ValueError`` when it has more than ``most`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise ValueError(f"{os.fspath(path)} has {size} bytes")
        return FileContent(path, file.read())


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> io.FileIO:
    """A regular file, open to read. ``OSError`` when it is none."""
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would block otherwise
    file = io.FileIO(os.fspath(path), opener=lambda name, _: os.open(name, flags))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{os.fspath(path)} is not a regular file")
    return file


def file_system(fd: int) -> int | None:
    """Linux's number of the kind of file system that an open file is on (``man 2 statfs``); None elsewhere."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    found = (ctypes.c_long * 64)()  # struct statfs begins with f_type and has 15 words
    failed = ctypes.CDLL(None, use_errno=True).fstatfs(fd, found)
    return None if failed else found[0]


def map_file(path: str | os.PathLike[str], flags: int = 0) -> tuple[memoryview, os.stat_result]:
    """A shared read-only map of a regular file (empty: an empty view). ``OSError`` when it is none.

    Never change a mapped file in place: replace it, as ``write_atomically`` does.
    """
    with open_regular(path, flags) as file:
        info = os.fstat(file.fileno())
        if info.st_size == 0:
            return memoryview(b""), info
        return memoryview(mmap.mmap(file.fileno(), info.st_size, access=mmap.ACCESS_READ)), info


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
