"""Weights that a TFLite file stores sparsely, spelled out.

In: a tensor's table of sparsity and the numbers that are stored. Out: the dense tensor. Not its business: products that
leave out zeros, and when those pay.

The format is that of the schema's ``SparsityParameters``: dimensions in an order of their own, those of blocks behind
the tensor's, each either whole or with the places that are stored, as in TACO (Kjolstad et al., The Tensor Algebra
Compiler, 2017). The numbers are the leaves of that tree, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.core.diag import OpError
from tilewright.core.types import Array

MOST_LEVELS = 64
"""Dimensions and those of blocks: more than NumPy has."""


class _Level(NamedTuple):
    """A dimension of the tree: its whole size, or which places of it each node has."""

    size: int | None
    segments: Array
    places: Array


def dense(tflite: Any, sparsity: Any, stored: Array, shape: Sequence[int]) -> Array:
    """``stored``, one number behind the other, as a tensor of ``shape`` with zeros elsewhere.

    Raises ``OpError`` where the table and the numbers do not fit each other.
    """
    order = _ints(sparsity.TraversalOrder, sparsity.TraversalOrderLength())
    blocks = _ints(sparsity.BlockMap, sparsity.BlockMapLength())
    rank, n_levels = len(shape), len(shape) + len(blocks)
    fits = n_levels == len(order) == sparsity.DimMetadataLength() and n_levels < MOST_LEVELS
    if not fits or sorted(order) != list(range(n_levels)) or not all(0 <= d < rank for d in blocks):
        raise OpError(f"the order {order} with blocks of {blocks} is none of {rank} dimensions")
    levels = [_level(tflite, sparsity.DimMetadata(k)) for k in range(n_levels)]
    sizes = [levels[order.index(rank + k)].size or 0 for k in range(len(blocks))]
    if any(n <= 0 for n in sizes):
        raise OpError("blocks have no size")
    block = [prod(n for n, of in zip(sizes, blocks, strict=True) if of == d) for d in range(rank)]
    if len(set(blocks)) < len(blocks) or any(n % m for n, m in zip(shape, block, strict=True)):
        raise OpError(f"blocks of {block} do not fill {list(shape)}")
    whole = [*(n // m for n, m in zip(shape, block, strict=True)), *sizes]
    places = _leaves(levels, [whole[d] for d in order], prod(shape))
    if len(places[0] if places else [0]) != len(stored):
        raise OpError(f"{len(stored)} numbers are stored for another number of places")
    by_dimension = dict(zip(order, places, strict=True))
    at = []
    for d in range(rank):
        inside = [by_dimension[rank + k] for k, of in enumerate(blocks) if of == d]
        at.append(by_dimension[d] * block[d] + sum(inside))
    made = np.zeros(tuple(shape), stored.dtype)
    made[tuple(at)] = stored if at else stored[0]
    return made


def _leaves(levels: Sequence[_Level], sizes: Sequence[int], most: int) -> list[Array]:
    """The place of each leaf along each level, of which there are at most ``most``."""
    found: list[Array] = []
    n_nodes = 1
    for level, size in zip(levels, sizes, strict=True):
        if level.size is not None:
            if level.size != size or n_nodes * size > most:
                raise OpError(f"a dimension of {level.size} is {size} in the tensor")
            parents, places = np.repeat(np.arange(n_nodes), size), np.tile(np.arange(size), n_nodes)
        else:
            segments, places = level.segments, level.places
            is_even = len(segments) == n_nodes + 1 and segments[0] == 0 and segments[-1] == len(places)
            counts = np.diff(segments)
            if not is_even or (counts < 0).any() or (places < 0).any() or (places >= size).any():
                raise OpError("the places of a sparse dimension lie outside of it")
            parents = np.repeat(np.arange(n_nodes), counts)
        found = [*(x[parents] for x in found), places]
        n_nodes = len(places)
    return found


def _level(tflite: Any, of: Any) -> _Level:
    nothing = np.zeros(0, np.int64)
    if of.Format() == tflite.DimensionType.DENSE:
        return _Level(of.DenseSize(), nothing, nothing)
    segments = _vector(tflite, of.ArraySegmentsType(), of.ArraySegments())
    return _Level(None, segments, _vector(tflite, of.ArrayIndicesType(), of.ArrayIndices()))


def _vector(tflite: Any, kind: int, table: Any) -> Array:
    """Places in one of three widths."""
    names = "Int32Vector", "Uint16Vector", "Uint8Vector"
    kinds = {getattr(tflite.SparseIndexVector, name): getattr(tflite, name) for name in names}
    if table is None or kind not in kinds:
        raise OpError("a sparse dimension has no places")
    read = kinds[kind]()
    read.Init(table.Bytes, table.Pos)
    return np.asarray(read.ValuesAsNumpy(), np.int64) if read.ValuesLength() else np.zeros(0, np.int64)


def _ints(at: Any, n: int) -> list[int]:
    return [at(k) for k in range(min(n, MOST_LEVELS))]
