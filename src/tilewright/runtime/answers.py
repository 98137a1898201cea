"""Which compiled model answers a compile, found by what is asked and nothing of the compiler.

In: the path of a model, options as the user wrote them, a cache. Out: a key that changes with the file's content, and
the compiled model that an earlier compile stored under it. Not its business: sources that only importing tells apart.

The compiler stores a model under a key of its own, in which the target is spelled out. ``question`` is a text that can
be had without the compiler and decides that key; the key is remembered as its answer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cache import Cache
from tilewright.runtime.digest import digest_bytes
from tilewright.runtime.host import host_facts, machine_text
from tilewright.runtime.plain import dataclass
from tilewright.runtime.threads import default_threads
from tilewright.runtime.version import __version__

Shapes = Mapping[str, Sequence[int | str]]

ELSEWHERE = "elsewhere"
"""In the place of the digest of a file whose tensors lie in other files."""
MOST_BYTES = 2**31 - 1
"""What a protobuf message can hold."""
SEARCHES = "schedules.db"
"""What searches found (``build.found_schedules``), in the cache's folder."""
_KIND = "answer"


@dataclass(frozen=True)
class Keyed:
    """A source and a text that changes whenever its content does; no key where only importing tells.

    ``is_remembered``: the key is of the file as it was read earlier; else ``source`` is what the key was made of.
    """

    source: Any
    key: str | None = None
    is_remembered: bool = False


def keyed_source(
    source: Any,
    store: Cache,
    input_shapes: Shapes | None,
    fix_dims: Mapping[str, int] | None,
    *,
    read: bool = False,
) -> Keyed:
    """The key of an ONNX file, found without importing it; with ``read`` never from memory.

    Files that keep tensors in other files have none, nor have exported programs: how they are called is found by
    importing them.
    """
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if not isinstance(path, str) or path.endswith(".pt2"):
        return Keyed(source)
    if not all(given is None or isinstance(given, Mapping) for given in (input_shapes, fix_dims)):
        return Keyed(source)  # the compiler says what is wrong with them
    try:
        known = None if read else store.known_of_file(path, "onnx")
        if known is not None:
            return Keyed(source, _key(known, input_shapes, fix_dims), is_remembered=True)
        found, content = store.read_file(path, "onnx", _content, MOST_BYTES)
        return Keyed(found, _key(content, input_shapes, fix_dims))
    except (OSError, ValueError, TypeError):  # of the file, or of sizes; which importing explains
        return Keyed(source)


def question(key: str, *options: object) -> str:
    """Everything that a compile of the source with this key depends on."""
    return "\n".join([compiler_text(), key, repr(options), machine_text()])


def asked_sizes(specialize: object) -> tuple[object, ...]:
    """The part of a question that says which sizes get code of their own; nothing where none do."""
    return () if specialize is None else (repr(specialize),)


def searches_text(store: Cache, threads: int | None) -> tuple[object, ...]:
    """The part of a question that says what searches have found; nothing where there is no database of that.

    The file and its log, which is written ahead, change whenever a schedule is found, and for some that are not for
    this model: asking the database itself would load SQLite, and what it is asked for the compiler.
    """
    if store.problem or store.directory is None:
        return ()
    facts: list[object] = []
    for name in (SEARCHES, f"{SEARCHES}-wal"):
        try:
            info = os.stat(os.path.join(store.directory, name))
        except OSError:
            continue
        if info.st_size:
            facts += [name, info.st_size, info.st_mtime_ns]
    return (*facts, threads or default_threads()) if facts else ()


def find_answer(store: Cache, asked: str) -> Artifact | None:
    """The compiled model that was stored for a question, checked."""
    key = store.get(_KIND, asked)
    return None if key is None else store.get_artifact(key.decode("utf-8", "replace"))


def remember_answer(store: Cache, asked: str, key: str) -> None:
    """Note under which key the model is stored that answers a question."""
    if store.get(_KIND, asked) != key.encode():
        store.put(_KIND, asked, key.encode())


def compiler_text() -> str:
    """The compiler's build: its version and state, and what else decides the bytes that it makes of a model.

    LLVM selects the instructions, NumPy folds constants and packs weights, and isl orders loops where it is installed.
    """
    host = host_facts()
    versions = (host.llvmlite, host.llvm, np.__version__, host.ml_dtypes, _isl())
    return f"tilewright {__version__} {_state()} made with llvmlite, LLVM, NumPy, ml_dtypes, isl: {' '.join(versions)}"


@lru_cache(1)
def _isl() -> str:
    """What tells installed versions of islpy apart, which is not loaded for it."""
    found = find_spec("islpy")
    if found is None or found.origin is None:
        return "none"
    return str(os.stat(found.origin).st_mtime_ns)


@lru_cache(1)
def _state() -> str:
    """What tells states of the compiler's own sources apart in a working tree, where they are edited; else nothing."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.exists(os.path.join(package, "..", "..", "pyproject.toml")):
        return ""
    facts, folders = [], [package]
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    info = entry.stat()
                    facts.append(f"{entry.path[len(package) :]} {info.st_size} {info.st_mtime_ns}")
                elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()


def _key(content: str, input_shapes: Shapes | None, fix_dims: Mapping[str, int] | None) -> str | None:
    if content == ELSEWHERE:
        return None
    shapes = {k: tuple(v) for k, v in (input_shapes or {}).items()}
    return f"onnx {content} {sorted(shapes.items())} {sorted((fix_dims or {}).items())}"


def _content(data: bytes) -> str:
    """The digest of a file that holds all its tensors; ``ELSEWHERE`` for one that does not.

    The key that every external tensor has is looked for; it is also found where some name holds that word.
    """
    return ELSEWHERE if b"location" in data else digest_bytes(data)
