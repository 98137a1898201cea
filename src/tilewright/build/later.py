"""Where a compiled model gets other weights from, without loading the compiler before somebody asks.

In: what the user compiled, and how. Out: ``Later``. Not its business: other weights (``build.refit``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.runtime.once import MAKING
from tilewright.runtime.plain import dataclass
from tilewright.runtime.python.model import CompiledModel

if TYPE_CHECKING:
    from tilewright.build.refit import Origin


@dataclass(frozen=True)
class Later:
    """:class:`tilewright.build.refit.Origin`, loaded by the first model that gets other weights."""

    source: Any
    imported: Mapping[str, Any]
    options: Mapping[str, Any]

    def refit(self, model: CompiledModel, weights: Any) -> CompiledModel:
        """``Origin.refit``."""
        return self._origin().refit(model, weights)

    def keep(self, model: CompiledModel, path: str | os.PathLike[str]) -> None:
        """``Origin.keep``."""
        self._origin().keep(model, path)

    def _origin(self) -> Origin:
        with MAKING:
            from tilewright.build.refit import Origin

        return Origin(self.source, self.imported, self.options)
