"""What ``tilewright.numpy`` says of itself, by the array API's ``__array_namespace_info__``.

In: nothing. Out: its capabilities, its one device and its types. Not its business: the functions (``functions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class NamespaceInfo:
    """NumPy's answers but for complex types, which are not offered."""

    def __init__(self) -> None:
        self._numpy = np.__array_namespace_info__()

    def capabilities(self) -> dict[str, Any]:
        """What may be asked of arrays."""
        return {**self._numpy.capabilities(), "boolean indexing": True, "data-dependent shapes": True}

    def default_device(self) -> str:
        """Where arrays are."""
        return "cpu"

    def devices(self) -> list[str]:
        """All places where arrays can be."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """The types that numbers without one get, by kind."""
        return _offered(self._numpy.default_dtypes(device=device))

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Types by name, of one kind or of all."""
        return _offered(self._numpy.dtypes(device=device, kind=kind))


def _offered(found: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    return {name: np.dtype(dtype) for name, dtype in found.items() if np.dtype(dtype).kind != "c"}
