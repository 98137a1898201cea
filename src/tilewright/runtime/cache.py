"""A content-addressed store on disk for objects, whole models and digests of files.

In: a kind, the full text of a key, a payload. Out: the same payload for the same kind and key, or nothing.
Not its business: what goes into a key (the compiler's), how a model is checked (``artifact``).

An entry is ``<folder>/v1/<kind>/<sha256 of the key>``: magic, JSON header (kind, key, payload size, checksum), padding
to 64 bytes, payload. A lookup compares the whole key, never only its hash, and the checksum of the payload; anything
torn, corrupt or foreign is a miss and is removed. Entries are written beside and renamed, so that any number of
processes can share the folder and any of them can be killed at any time. Code in the cache gets executed, so a
folder or an entry that another user could write is not used. A cache that can't be used says why in ``problem`` and
misses always; nothing here ever raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

from tilewright.runtime import artifact as artifacts
from tilewright.runtime import digest
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.env import Environment, read_environment
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.files import TEMPORARY, FileContent, file_system, map_file, read_file, write_atomically
from tilewright.runtime.once import MAKING, in_forked_child
from tilewright.runtime.plain import dataclass

DEFAULT_MAX_BYTES = 8 << 30
ALIGNMENT = 64
MAX_HEADER = 16 << 20
MODEL = "model"
SELF_CHECKED = "self"
"""Checksum of the entries of kind ``model``: ``.tw`` files carry their own, and weights need not be read twice."""

LARGE_BYTES = 32 << 20
"""Weights of which writing takes noticeably long."""

_MAGIC = b"TWCACHE1"
_writers: dict[str, threading.Thread] = {}
"""Models that are being written, changed under ``MAKING``; a forked child has none."""
in_forked_child(_writers.clear)
_OLD_TEMPORARY_S = 3600.0
_SETTLED_NS = 60_000_000_000
"""A file changed within the last minute is likely not written back yet, and may change again within the clock's
resolution: nothing of it is kept."""
_TRUSTED_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010})
"""``f_type`` of Linux's ext2 to ext4, XFS, Btrfs and F2FS: on these a write through a map of a page that was written
back sets the file's times. On tmpfs it never does; of network and stacked file systems we do not know whose clock it
is."""


@dataclass(slots=True)
class CacheStats:
    """What this process's lookups came to; ``reasons`` counts misses by cause."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    evicted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry on disk; ``last_used`` in seconds of the epoch."""

    kind: str
    digest: str
    n_bytes: int
    last_used: float


class Cache:
    """``(kind, key text) -> bytes`` on disk. ``problem`` is non-empty when it can't be used: then all lookups miss."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, max_bytes: int | None = None) -> None:
        """``None``: folder and limit of the environment (``TILEWRIGHT_CACHE``, else ``~/.cache/tilewright``; 8 GiB)."""
        env = read_environment()
        self.max_bytes = next(n for n in (max_bytes, env.cache_bytes, DEFAULT_MAX_BYTES) if n is not None)
        self.stats = CacheStats()
        self.directory: str | None = os.fspath(directory) if directory is not None else _default_folder(env)
        self.problem = _open_folder(self.directory)
        self._bytes_on_disk: int | None = None

    @property
    def enabled(self) -> bool:
        """Whether lookups can hit."""
        return not self.problem

    def get(self, kind: str, key_text: str) -> bytes | None:
        """The payload stored under exactly this kind (an identifier other than ``model``) and key, or None."""
        assert kind != MODEL, "get_artifact finds models"
        payload = self._find(kind, key_text)
        if payload is None:
            return None
        self.stats.hits += 1
        return bytes(payload)

    def put(self, kind: str, key_text: str, payload: bytes) -> bool:
        """Store bytes of any kind but ``model``; False (never an exception) when they could not be stored."""
        assert kind != MODEL, "put_artifact stores models"
        return self._store(kind, key_text, [payload], len(payload), _checksum(payload))

    def get_artifact(self, key_text: str) -> Artifact | None:
        """A whole model that passed every check, its weights memory-mapped; or None."""
        if not self.problem and (writer := _writers.get(self._path(MODEL, key_text))):
            writer.join()
        payload = self._find(MODEL, key_text)
        if payload is None:
            return None
        try:
            found = artifacts.parse(payload, "cache entry")
        except ArtifactError:
            self._discard(self._path(MODEL, key_text), "damaged model")
            return None
        self.stats.hits += 1
        return found

    def put_artifact(self, key_text: str, artifact: Artifact) -> bool:
        """Store a whole model; False when it could not be stored."""
        if self.problem:
            return False
        _, pieces = artifacts.pack(artifact.manifest, artifact.objects, artifact.weights)
        n_bytes = sum(len(piece) for piece in pieces)
        return self._store(MODEL, key_text, pieces, n_bytes, SELF_CHECKED)

    def put_artifact_soon(self, key_text: str, artifact: Artifact) -> None:
        """:meth:`put_artifact`; a large model is written in a thread, so that its compile need not wait for the disk.

        Lookups of this process wait for that thread, and so does the end of the process.
        """
        if self.problem or artifact.weights.nbytes < LARGE_BYTES:
            self.put_artifact(key_text, artifact)
            return
        path = self._path(MODEL, key_text)

        def write() -> None:
            try:
                self.put_artifact(key_text, artifact)
            finally:
                with MAKING:
                    # a later compile of the same model may have put its own there
                    if _writers.get(path) is threading.current_thread():
                        del _writers[path]

        with MAKING:  # who waits for a writer finds one that was started
            writer = threading.Thread(target=write, name="tilewright-cache")
            try:
                writer.start()
            except RuntimeError:  # no thread to be had, as at the interpreter's end
                self.put_artifact(key_text, artifact)
            else:
                _writers[path] = writer

    def known_of_file(self, path: str | os.PathLike[str], question: str) -> str | None:
        """What :meth:`read_file` was told of a file, by its path, size, times and inode. ``OSError`` without a file."""
        known = self.get(question, _stat_key(os.stat(path), path))
        return None if known is None else known.decode("utf-8", "replace")

    def read_file(
        self, path: str | os.PathLike[str], question: str, answer: Callable[[bytes], str], most: int | None = None
    ) -> tuple[FileContent, str]:
        """A file's content, read once, and what ``answer`` says of it; remembered where times tell of every write.

        ``OSError`` when it can't be read, ``ValueError`` when it has more than ``most`` bytes.
        """
        key = None if self.problem else _key_by_times(path)
        found = read_file(path, most)
        said = answer(found.data)
        if key is not None and _stat_key(os.stat(path), path) == key:
            self.put(question, key, said.encode())
        return found, said

    def entries(self) -> list[CacheEntry]:
        """All entries, most recently used first."""
        split = [(*os.path.split(path), info) for path, info in self._scan()]
        found = [CacheEntry(os.path.basename(kind), name, info.st_size, info.st_mtime) for kind, name, info in split]
        return sorted(found, key=lambda e: -e.last_used)

    def clear(self) -> int:
        """Remove every entry; returns how many."""
        removed = sum(_unlink(path) for path, _ in self._scan())
        self._bytes_on_disk = 0
        return removed

    # --- one entry

    def _path(self, kind: str, key_text: str) -> str:
        assert self.directory is not None and kind.isidentifier()
        name = hashlib.sha256(key_text.encode("utf-8", "surrogatepass")).hexdigest()
        return os.path.join(self.directory, "v1", kind, name)

    def _find(self, kind: str, key_text: str) -> memoryview | None:
        """The payload, checked; a miss is counted here, a hit by the caller."""
        if self.problem:
            self._miss("cache is off")
            return None
        path = self._path(kind, key_text)
        try:
            payload = _read_entry(path, kind, key_text)
        except FileNotFoundError:
            self._miss("not found")
            return None
        except (OSError, ValueError) as error:
            self._discard(path, str(error) if isinstance(error, FieldError) else "unreadable")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of last use, for `_make_room`
        return payload

    def _miss(self, reason: str) -> None:
        self.stats.misses += 1
        self.stats.reasons[reason] += 1

    def _discard(self, path: str, reason: str) -> None:
        _unlink(path)
        self._miss(reason)

    def _store(self, kind: str, key_text: str, pieces: list[Any], n_bytes: int, check: str) -> bool:
        if self.problem:
            return False
        header = _entry_header(kind, key_text, n_bytes, check)
        if len(header) > MAX_HEADER or len(header) + n_bytes > self.max_bytes:
            return False
        path = self._path(kind, key_text)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), mode=0o700)
            write_atomically(path, [header, *pieces], durable=False, mode=0o600)
        except OSError as error:
            self.stats.reasons[f"not stored: {error.strerror}"] += 1
            return False
        self.stats.stored += 1
        self._make_room(len(header) + n_bytes)
        return True

    # --- the folder

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Every entry with its status; clears up what killed writers left behind."""
        if self.problem or self.directory is None:
            return
        for folder in _list(os.path.join(self.directory, "v1")):
            for path in _list(folder):
                with contextlib.suppress(OSError):
                    info = os.lstat(path)
                    if not path.endswith(TEMPORARY):
                        yield path, info
                    elif time.time() - info.st_mtime > _OLD_TEMPORARY_S:
                        _unlink(path)

    def _make_room(self, added: int) -> None:
        """Keep within the limit: forget the least recently used entries, down to 80 % of it."""
        if self._bytes_on_disk is not None:
            self._bytes_on_disk += added
        if self._bytes_on_disk is None or self._bytes_on_disk > self.max_bytes:
            # Other processes add too, so what this one counted is only when to look again.
            self._bytes_on_disk = sum(info.st_size for _, info in self._scan())
        if self._bytes_on_disk <= self.max_bytes:
            return
        for path, info in sorted(self._scan(), key=lambda item: item[1].st_mtime):
            if self._bytes_on_disk <= self.max_bytes * 4 // 5:
                break
            if _unlink(path):
                self._bytes_on_disk -= info.st_size
                self.stats.evicted += 1


def _default_folder(env: Environment) -> str | None:
    if env.cache is not None:
        return None if env.cache.lower() in ("off", "0") else env.cache
    return os.path.join(env.home, "tilewright") if env.home else None


def _open_folder(folder: str | None) -> str:
    """Make the folder; says what keeps it from being used, or nothing."""
    if folder is None:
        return "the cache is turned off, or there is no home folder"
    try:
        inner = os.path.join(folder, "v1")
        os.makedirs(inner, mode=0o700, exist_ok=True)
        info = os.stat(inner)
        if info.st_uid != os.geteuid():
            return f"{inner} belongs to another user"
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{inner} can be written by other users; run chmod go-w on it"
    except (OSError, ValueError) as error:
        return f"{folder} can't be used: {error}"
    return "" if os.access(inner, os.W_OK | os.X_OK) else f"{folder} can't be written"


def _entry_header(kind: str, key_text: str, n_bytes: int, check: str) -> bytes:
    fields = {"kind": kind, "key": key_text, "n_bytes": n_bytes, "checksum": check}
    raw = json.dumps(fields, separators=(",", ":")).encode()
    raw += b" " * (-(len(_MAGIC) + 8 + len(raw)) % ALIGNMENT)
    return _MAGIC + len(raw).to_bytes(8, "little") + raw


def _read_entry(path: str, kind: str, key_text: str) -> memoryview:
    """The checked payload of an entry; ``FieldError`` or ``OSError`` says why there is none."""
    view, info = map_file(path, os.O_NOFOLLOW)
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FieldError("foreign")
    n_fixed = len(_MAGIC) + 8
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FieldError("not a cache entry")
    n_header = int.from_bytes(view[len(_MAGIC) : n_fixed], "little")
    if n_header > min(MAX_HEADER, len(view) - n_fixed):
        raise FieldError("truncated")
    fields = Fields(decode_json(bytes(view[n_fixed : n_fixed + n_header])), "entry")
    if fields.text("kind") != kind or fields.text("key") != key_text:
        raise FieldError("another key with the same hash")
    payload = view[n_fixed + n_header :]
    if fields.integer("n_bytes", 0) != len(payload):
        raise FieldError("truncated")
    wanted = SELF_CHECKED if kind == MODEL else _checksum(payload)
    if fields.text("checksum") != wanted:
        raise FieldError("corrupt")
    return payload


def _checksum(payload: bytes | memoryview) -> str:
    return digest.digest_bytes(payload)


def _key_by_times(path: str | os.PathLike[str]) -> str | None:
    """A text that whoever writes to the file from now on changes; None where we can't be sure of that.

    A page that a map has written to already, and that is not on disk yet, can be written to again without a trace, so
    the file is brought to disk first. Nobody can set the time of change.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            info = os.fstat(fd)
            if time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) <= _SETTLED_NS:
                return None
            if file_system(fd) not in _TRUSTED_FILE_SYSTEMS:
                return None
            os.fsync(fd)
            return _stat_key(info, path)
        finally:
            os.close(fd)
    except OSError:
        return None


def _stat_key(s: os.stat_result, path: str | os.PathLike[str]) -> str:
    return json.dumps([os.path.abspath(path), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev])


def _list(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
