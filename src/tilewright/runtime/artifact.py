"""The ``.tw`` file: a compiled model on disk, as a valid safetensors file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ObjectImage:
    """A native object: a name for reports, and its bytes."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model that passed every check: manifest, objects, weights (a read-only uint8 array, 64-byte aligned)."""

    manifest: Manifest
    objects: tuple[ObjectImage, ...]
    weights: Any


def save(path: str | os.PathLike[str], manifest: Manifest, objects: Sequence[ObjectImage], weights: Any) -> Manifest:
    """Write a model atomically; returns the manifest as written, with sizes and digests filled in."""
    raise NotImplementedError


def load(path: str | os.PathLike[str]) -> Artifact:
    """Map and check a ``.tw`` file; nothing of it is executed. Any defect is an ``ArtifactError``."""
    raise NotImplementedError
