"""Objects in memory to callable addresses, by LLVM's ORC linker."""

from __future__ import annotations

from collections.abc import Sequence


class LinkedLibrary:
    """Native code in memory; it is unloaded when this object dies, so keep it as long as any address is used."""

    addresses: dict[str, int]


def link(objects: Sequence[bytes], exports: Sequence[str] = ("tw_run", "tw_plan")) -> LinkedLibrary:
    """Link objects with the process's thread pool and libc; raises ``ArtifactError`` when they do not link."""
    raise NotImplementedError
