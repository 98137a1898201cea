"""The weights blob: every constant that kernels read, laid out once.

In: constants, as they are or re-laid by a kernel's recipe. Out: offsets, then one buffer.
Not its business: which layout a kernel wants (its schedule decides).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.core.graph import Data
from tilewright.core.types import Array
from tilewright.partition.memory import ALIGNMENT


@dataclass
class Weights:
    """Collects constants; an equal constant in an equal layout is stored once."""

    n_bytes: int = 0
    _offsets: dict[tuple[object, str], int] = field(default_factory=dict)
    _fills: list[tuple[int, Data, Callable[[Array], Array] | None]] = field(default_factory=list)

    def add(
        self, data: Data, layout: str = "", n_bytes: int | None = None, pack: Callable[[Array], Array] | None = None
    ) -> int:
        """The offset of ``data``; with ``layout`` and ``pack``, of its re-laid form of ``n_bytes``."""
        key = (data, layout)
        if key not in self._offsets:
            self._offsets[key] = self.n_bytes
            self._fills.append((self.n_bytes, data, pack))
            size = data.array.nbytes if n_bytes is None else n_bytes
            self.n_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        return self._offsets[key]

    def blob(self) -> Array:
        """All constants in one 64-byte aligned ``uint8`` array; each is packed only when its turn comes."""
        raw = np.zeros(self.n_bytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        blob = raw[start : start + self.n_bytes]
        for offset, data, pack in self._fills:
            array = data.array if pack is None else pack(data.array)
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            blob[offset : offset + flat.size] = flat
        return blob
