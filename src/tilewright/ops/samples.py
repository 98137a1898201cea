"""Small operands for the ops' samples: ordinary numbers, edge values, empty and broadcast shapes.

In: a generator, a dtype, a shape. Out: arrays and ``Sample`` lists. Not its business: attributes of particular ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.opdef import Sample
from tilewright.core.types import Array, DType

EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 100.0, -100.0, 1e-7)
"""Floating-point values where an element-wise op tends to go wrong."""
Range = tuple[float, float]


def random(
    rng: np.random.Generator, shape: Sequence[int], dtype: DType = types.f32, within: Range = (-3.0, 3.0)
) -> Array:
    """Random numbers of any dtype in ``within``; for unsigned types the range starts at 0 at the earliest."""
    lo, hi = within
    if dtype is types.bool_:
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    if dtype.is_integer:
        low = int(lo) if dtype.is_signed else max(int(lo), 0)
        return rng.integers(low, int(hi) + 1, tuple(shape)).astype(dtype.numpy)
    return rng.uniform(lo, hi, tuple(shape)).astype(dtype.numpy)


def edge_values(dtype: DType) -> Array:
    """The edge values of a dtype, one axis."""
    if dtype is types.bool_:
        return np.array([False, True])
    if dtype.is_integer:
        return np.array([0, 1, 2, dtype.max, dtype.min], dtype.numpy)
    return np.array(EDGES, dtype.numpy)


def unary_samples(rng: np.random.Generator, dtypes: Sequence[DType], within: Range = (-3.0, 3.0)) -> Iterator[Sample]:
    """Ordinary, edge, 0-d and empty operands."""
    for dtype in dtypes:
        yield Sample((random(rng, (2, 3), dtype, within),))
        yield Sample((edge_values(dtype),))
    yield Sample((random(rng, (), dtypes[0], within),))
    yield Sample((random(rng, (0, 2), dtypes[0], within),))


def binary_samples(
    rng: np.random.Generator,
    dtypes: Sequence[DType],
    left: Range = (-3.0, 3.0),
    right: Range = (-3.0, 3.0),
    edges: bool = True,
) -> Iterator[Sample]:
    """Equal and broadcast shapes; for floats, with ``edges``, every pair of edge values."""
    for dtype in dtypes:
        yield Sample((random(rng, (2, 3), dtype, left), random(rng, (3,), dtype, right)))
        yield Sample((random(rng, (2, 1), dtype, left), random(rng, (1, 4), dtype, right)))
        if dtype.is_float and edges:
            values = edge_values(dtype)
            yield Sample((values[:, None], values))
    yield Sample((random(rng, (), dtypes[0], left), random(rng, (2,), dtypes[0], right)))
    yield Sample((random(rng, (0, 3), dtypes[0], left), random(rng, (1, 3), dtypes[0], right)))
