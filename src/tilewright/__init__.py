"""Tilewright: an ML compiler. ``compile`` takes a trained model to native code; ``load`` runs a saved one.

Importing this package imports nothing heavy; each name's module is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.runtime.once import MAKING
from tilewright.runtime.version import __version__

if TYPE_CHECKING:
    from tilewright.codegen.target import Target
    from tilewright.core.diag import CompileError, ImportFailed, OptionError
    from tilewright.debug.compare import compare
    from tilewright.debug.reduce import reduce
    from tilewright.deploy import export
    from tilewright.front import compile
    from tilewright.frontend.custom_ops import decompose
    from tilewright.frontend.dynamo_capture import FallbackWarning
    from tilewright.frontend.dynamo_weights import refresh
    from tilewright.runtime.errors import (
        ArtifactError,
        ExecutionError,
        InputError,
        ResourceError,
        TilewrightError,
    )
    from tilewright.runtime.model import LoadedModel, load

_HOMES = {
    "compile": "front",
    "export": "deploy",
    "compare": "debug.compare",
    "reduce": "debug.reduce",
    "refresh": "frontend.dynamo_weights",
    "load": "runtime.model",
    "LoadedModel": "runtime.model",
    "decompose": "frontend.custom_ops",
    "FallbackWarning": "frontend.dynamo_capture",
    "Target": "codegen.target",
    "CompileError": "core.diag",
    "ImportFailed": "core.diag",
    "OptionError": "core.diag",
    "TilewrightError": "runtime.errors",
    "ArtifactError": "runtime.errors",
    "ExecutionError": "runtime.errors",
    "InputError": "runtime.errors",
    "ResourceError": "runtime.errors",
}

__all__ = [
    "ArtifactError",
    "CompileError",
    "ExecutionError",
    "FallbackWarning",
    "ImportFailed",
    "InputError",
    "LoadedModel",
    "OptionError",
    "ResourceError",
    "Target",
    "TilewrightError",
    "__version__",
    "compare",
    "compile",
    "decompose",
    "export",
    "load",
    "reduce",
    "refresh",
]


def __getattr__(name: str) -> Any:
    """Import the module that owns ``name`` on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    with MAKING:  # a child forked in the middle of an import would wait for it for ever
        value = getattr(import_module(f"tilewright.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
