"""Positions along axes of tensors that must go together: a union-find whose first class is of those that must stay.

In: pairs of positions. Out: a label for each. Not its business: which positions belong together (``rules``).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int64]
"""Numbers of positions along an axis, i64[n]; a size that only a call knows has the one position ``STAYS``."""

STAYS = 0
"""The position, and the label, of everything that can't be removed."""
UNKNOWN_SIZE: Ids = np.zeros(1, np.int64)


class Links:
    """Classes of positions. A label is the least position of a class, hence ``STAYS`` for all that must stay."""

    def __init__(self) -> None:
        self._parents = [STAYS]

    def fresh(self, n: int) -> Ids:
        """Positions that belong to nothing yet, i64[n]."""
        first = len(self._parents)
        self._parents += range(first, first + n)
        return np.arange(first, first + n)

    def join(self, a: Ids, b: Ids) -> None:
        """Let the positions go together, one by one; axes of different sizes must stay."""
        if len(a) != len(b):
            self.keep(a)
            self.keep(b)
            return
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            p, q = self._top(x), self._top(y)
            self._parents[max(p, q)] = min(p, q)

    def keep(self, a: Ids) -> None:
        """Let the positions stay."""
        for x in a.tolist():
            self._parents[self._top(x)] = STAYS

    def labels(self, a: Ids) -> Ids:
        """The label of each position."""
        return np.array([self._top(x) for x in a.tolist()], np.int64)

    def all_labels(self) -> Ids:
        """The label of every position there is."""
        return self.labels(np.arange(len(self._parents)))

    def _top(self, x: int) -> int:
        parents = self._parents
        while parents[x] != x:
            parents[x] = x = parents[parents[x]]
        return x
