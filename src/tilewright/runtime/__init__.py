"""The runtime: loads compiled models and runs them; never imports the compiler.

In: objects + weights + manifest, or a ``.tw`` file. Out: callables. Not its business: producing any of these.
Names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from tilewright.runtime.artifact import Artifact, ObjectImage
    from tilewright.runtime.cache import Cache
    from tilewright.runtime.env import Environment, read_environment
    from tilewright.runtime.errors import (
        ArtifactError,
        ExecutionError,
        InputError,
        ResourceError,
        TilewrightError,
        Violation,
    )
    from tilewright.runtime.library import LibraryModel
    from tilewright.runtime.manifest import Manifest
    from tilewright.runtime.models import load
    from tilewright.runtime.python.model import CompiledModel, LoadedModel

__all__ = [
    "Artifact",
    "ArtifactError",
    "Cache",
    "CompiledModel",
    "Environment",
    "ExecutionError",
    "InputError",
    "LibraryModel",
    "LoadedModel",
    "Manifest",
    "ObjectImage",
    "ResourceError",
    "TilewrightError",
    "Violation",
    "load",
    "read_environment",
]

_HOME = {
    "Artifact": "artifact",
    "ArtifactError": "errors",
    "Cache": "cache",
    "Environment": "env",
    "ExecutionError": "errors",
    "InputError": "errors",
    "CompiledModel": "python.model",
    "LibraryModel": "library",
    "LoadedModel": "python.model",
    "Violation": "errors",
    "load": "models",
    "Manifest": "manifest",
    "ObjectImage": "artifact",
    "ResourceError": "errors",
    "TilewrightError": "errors",
    "read_environment": "env",
}


def __getattr__(name: str) -> Any:
    """Import the module that owns ``name`` on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with MAKING:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
