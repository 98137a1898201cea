"""Tilewright: an ML compiler. ``compile`` takes a trained model to native code; ``load`` runs a saved one.

Importing this package imports nothing heavy; each name's module is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.runtime.once import MAKING
from tilewright.runtime.version import __version__

if TYPE_CHECKING:
    from tilewright.build.convert import convert
    from tilewright.build.decoder import decoder
    from tilewright.build.deploy import export
    from tilewright.build.refit import refit
    from tilewright.core.diag import CompileError, ImportFailed, OptionError
    from tilewright.front import compile
    from tilewright.frontend.torch.custom_ops import decompose
    from tilewright.frontend.weights.given import with_weights
    from tilewright.integrations.arrays.jit import jit
    from tilewright.integrations.boosted.lgb import from_lightgbm
    from tilewright.integrations.boosted.xgb import from_xgboost
    from tilewright.integrations.sklearn.predictor import from_sklearn
    from tilewright.integrations.torch_compile.capture import FallbackWarning
    from tilewright.integrations.torch_compile.weights import refresh
    from tilewright.language.kernel import kernel
    from tilewright.language.schedule import schedule
    from tilewright.runtime.errors import (
        ArtifactError,
        ExecutionError,
        InputError,
        ResourceError,
        TilewrightError,
    )
    from tilewright.runtime.models import load
    from tilewright.runtime.python.decoder import load_decoder
    from tilewright.runtime.python.model import LoadedModel
    from tilewright.target.target import Target
    from tilewright.tools.debug.compare import compare
    from tilewright.tools.debug.reduce import reduce
    from tilewright.tools.prune.prune import prune
    from tilewright.tools.quantize.measure import CalibrationWarning
    from tilewright.tools.quantize.quantize import quantize
    from tilewright.tools.tune import tune
    from tilewright.tools.weights import quantize_weights

_HOMES = {
    "compile": "front",
    "convert": "build.convert",
    "decoder": "build.decoder",
    "export": "build.deploy",
    "refit": "build.refit",
    "compare": "tools.debug.compare",
    "reduce": "tools.debug.reduce",
    "prune": "tools.prune.prune",
    "quantize": "tools.quantize.quantize",
    "CalibrationWarning": "tools.quantize.measure",
    "quantize_weights": "tools.weights",
    "tune": "tools.tune",
    "refresh": "integrations.torch_compile.weights",
    "load": "runtime.models",
    "load_decoder": "runtime.python.decoder",
    "LoadedModel": "runtime.python.model",
    "from_lightgbm": "integrations.boosted.lgb",
    "from_sklearn": "integrations.sklearn.predictor",
    "from_xgboost": "integrations.boosted.xgb",
    "jit": "integrations.arrays.jit",
    "with_weights": "frontend.weights.given",
    "kernel": "language.kernel",
    "schedule": "language.schedule",
    "decompose": "frontend.torch.custom_ops",
    "FallbackWarning": "integrations.torch_compile.capture",
    "Target": "target.target",
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
    "CalibrationWarning",
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
    "convert",
    "decoder",
    "decompose",
    "export",
    "from_lightgbm",
    "from_sklearn",
    "from_xgboost",
    "jit",
    "kernel",
    "load",
    "load_decoder",
    "prune",
    "quantize",
    "quantize_weights",
    "reduce",
    "refit",
    "refresh",
    "schedule",
    "tune",
    "with_weights",
]


def __getattr__(name: str) -> Any:
    """Import the module that owns ``name`` on first use."""
    if name in ("jax", "numpy"):  # rooms of their own, as their names are those of others
        with MAKING:
            return import_module(f"tilewright.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    with MAKING:
        value = getattr(import_module(f"tilewright.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
