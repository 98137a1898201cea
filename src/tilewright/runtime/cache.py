"""A content-addressed store on disk for compiled objects and models."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tilewright.runtime.artifact import Artifact


@dataclass(slots=True)
class CacheStats:
    """What this process's lookups came to; ``reasons`` counts misses by cause."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    evicted: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry on disk."""

    kind: str
    digest: str
    n_bytes: int
    last_used: float


class Cache:
    """``key text -> bytes`` on disk. ``problem`` is non-empty when the folder can't be used: then all lookups miss."""

    enabled: bool
    problem: str
    stats: CacheStats

    def __init__(self, directory: str | os.PathLike[str] | None = None, max_bytes: int | None = None) -> None:
        """``None`` takes the folder and limit of the environment."""
        raise NotImplementedError

    def get(self, kind: str, key_text: str) -> bytes | None:
        """The payload stored under exactly this kind and key, or None."""
        raise NotImplementedError

    def put(self, kind: str, key_text: str, payload: bytes) -> bool:
        """Store; False (never an exception) when it could not be stored."""
        raise NotImplementedError

    def get_artifact(self, key_text: str) -> Artifact | None:
        """A whole checked model with memory-mapped weights, or None."""
        raise NotImplementedError

    def put_artifact(self, key_text: str, artifact: Artifact) -> bool:
        """Store a whole model."""
        raise NotImplementedError

    def digest_file(self, path: str | os.PathLike[str]) -> str:
        """Content digest of a file; remembered by (path, size, times, inode) so that big files hash once."""
        raise NotImplementedError

    def entries(self) -> list[CacheEntry]:
        """All entries, most recently used first."""
        raise NotImplementedError

    def clear(self) -> int:
        """Remove every entry; returns how many."""
        raise NotImplementedError
