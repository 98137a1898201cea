"""A compiled model as a Python callable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.manifest import Manifest, SymbolSpec, TensorSpec


class LoadedModel:
    """Native code + weights + manifest, callable from any number of threads at once."""

    def __init__(
        self, manifest: Manifest, objects: Sequence[ObjectImage], weights: Any, *, threads: int | None = None
    ) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> LoadedModel:
        """Check, link and return the model of a ``.tw`` file."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a ``.tw`` file."""
        raise NotImplementedError

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and symbolic shapes of the inputs."""
        raise NotImplementedError

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and symbolic shapes of the outputs."""
        raise NotImplementedError

    @property
    def symbols(self) -> tuple[SymbolSpec, ...]:
        """The symbolic sizes and their ranges."""
        raise NotImplementedError

    def report(self) -> Any:
        """What the compiler reported about this model (JSON values)."""
        raise NotImplementedError

    def __call__(self, *args: Any, out: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """Run: positional, by keyword, or one dict by input name; one output as itself, several as a tuple."""
        raise NotImplementedError

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run by names: inputs in, outputs out."""
        raise NotImplementedError
