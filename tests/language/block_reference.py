"""The words of programs over blocks as NumPy, which runs program after program: the meaning of what is compiled.

In: the same function that a kernel is made of, with this in the place of ``tilewright.lang``. Out: arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

arange, zeros, where, maximum, minimum, exp = np.arange, np.zeros, np.where, np.maximum, np.minimum, np.exp
f32 = np.float32


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def programs(*extents: int) -> Iterator[Any]:
    for at in product(*(range_of(n) for n in extents)):
        yield at if len(at) > 1 else at[0]


range_of = range
"""Python's own, which ``range`` below hides."""


def range(first: int, end: int, step: int = 1) -> Iterator[int]:
    yield from range_of(first, end, step)


def load(x: Any, index: Any, mask: Any = True, other: float = 0) -> Any:
    parts = np.broadcast_arrays(mask, *(index if isinstance(index, tuple) else (index,)))
    kept = parts[0].astype(bool)
    at = tuple(np.where(kept, p, 0) for p in parts[1:])
    return np.where(kept, x[at], np.float32(other)).astype(x.dtype)


def store(x: Any, index: Any, value: Any, mask: Any = True) -> None:
    parts = np.broadcast_arrays(mask, value, *(index if isinstance(index, tuple) else (index,)))
    kept = parts[0].astype(bool)
    x[tuple(p[kept] for p in parts[2:])] = parts[1][kept]


def dot(a: Any, b: Any) -> Any:
    return a @ b


def sum(x: Any, axis: int) -> Any:
    return np.sum(x, axis, dtype=x.dtype)


def max(x: Any, axis: int) -> Any:
    return np.max(x, axis)
