"""The weights blob: every constant that kernels read, laid out once.

In: constants, as they are or re-laid by a kernel's recipe. Out: offsets, then one buffer.
Not its business: which layout a kernel wants (its schedule decides).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.core.effort import EFFORT
from tilewright.core.graph import Data
from tilewright.core.types import Array
from tilewright.runtime.artifact import ALIGNMENT

Fill = Callable[[Array, Array], None]
"""``fill(out, array)``: write an array in the layout of a kernel into its place, ``uint8`` and all zeros."""


@dataclass
class Weights:
    """Collects constants; an equal constant in an equal layout is stored once.

    Large constants are equal when they are one object. With ``by_content`` they also are when their bytes are: several
    programs of one model each fold the same constants, and get arrays of their own.
    """

    by_content: bool = False
    n_bytes: int = 0
    _offsets: dict[tuple[object, str], int] = field(default_factory=dict)
    _fills: list[tuple[int, int, Data, Fill]] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)
    _alike: dict[tuple[object, ...], list[Data]] = field(default_factory=dict)

    def add(
        self, data: Data, layout: str = "", n_bytes: int | None = None, fill: Fill | None = None, *, label: str = ""
    ) -> int:
        """The offset of ``data``; with ``layout`` and ``fill``, of its re-laid form of ``n_bytes``.

        ``label`` is for reports: where the constant comes from.
        """
        data = self._known(data) if self.by_content else data
        key = (data, layout)
        if key not in self._offsets:
            self._offsets[key] = self.n_bytes
            size = data.array.nbytes if n_bytes is None else n_bytes
            self._fills.append((self.n_bytes, size, data, fill or _as_it_is))
            self._labels.append(label)
            self.n_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        return self._offsets[key]

    def _known(self, data: Data) -> Data:
        """The first constant with the bytes of this one; a few of them tell nearly all others apart."""
        array = data.array
        flat = array.reshape(-1)
        few = flat[:: max(flat.size // EFFORT.listed, 1)].tobytes()
        alike = self._alike.setdefault((array.dtype, array.shape, few), [])
        for other in alike:
            if other.array is array or np.array_equal(_bytes(other.array), _bytes(array)):
                return other
        alike.append(data)
        return data

    def rows(self) -> list[tuple[str, int]]:
        """Each constant's label and bytes, in the order in which they lie."""
        return [(label, size) for label, (_, size, _, _) in zip(self._labels, self._fills, strict=True)]

    def blob(self) -> Array:
        """All constants in one 64-byte aligned ``uint8`` array; each is written once, into its place."""
        raw = np.zeros(self.n_bytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        blob = raw[start : start + self.n_bytes]
        for offset, size, data, fill in self._fills:
            if size:
                fill(blob[offset : offset + size], data.array)
        return blob


def _bytes(array: Array) -> Array:
    """The bytes as numbers: NaNs are equal to themselves, and zeros of two signs are not."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _as_it_is(out: Array, array: Array) -> None:
    out.view(array.dtype).reshape(array.shape)[...] = array
