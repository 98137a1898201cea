"""Products with a matrix most of whose blocks are zero: the others alone are stored, and read.

In: rows, the blocks of each panel of columns that are not zero, and where they stand. Out: the products. Not its
business: finding such blocks in a matrix (``graph.forms.blocked``).

A block has ``h`` neighbouring rows of the matrix and the ``w`` columns of a panel. ``blocks[j, t]`` is the ``t``-th of
panel ``j`` and stands in rows ``places[j, t] * h`` on; places are clamped to those there are.
Every panel has as many blocks, the last of which may be zeros: then loops have one length, and lanes are columns, which
lie side by side in the blocks as in the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Load,
    Reduction,
    Stage,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import floordiv
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import check, check_dtype, check_equal_dims, check_rank
from tilewright.ops.rules import Types
from tilewright.ops.samples import random
from tilewright.ops.stages import clamped


def _infer(ts: Types, a: Attrs) -> TensorType:
    x, blocks, places = ts
    for t, rank, what in ((x, 2, "the rows"), (blocks, 4, "the blocks"), (places, 2, "the places of blocks")):
        check_rank(t, rank, what)
    check_dtype(x, (types.f32, types.f64), "the rows")
    check_dtype(blocks, (x.dtype,), "the blocks")
    check_dtype(places, (types.i32,), "the places of blocks")
    for own, wanted in zip(places.shape, blocks.shape[:2], strict=True):
        check_equal_dims(own, wanted, lambda: f"places {places} and blocks {blocks}")
    depth, high = x.shape[1], blocks.shape[2]
    is_whole = is_known(depth) and known_over(high, 0) and depth % high == 0
    check(is_whole, lambda: f"{depth} terms are no whole number of blocks of {high}", "pad them")
    fits = is_known(depth) and 0 < depth <= types.i32.max
    check(fits, lambda: f"{depth} terms are none, or more than places in 32 bits tell apart", "use a matrix")
    return TensorType(x.dtype, (x.shape[0], blocks.shape[0], blocks.shape[3]))


def matrix_of(blocks: Array, places: Array, depth: int) -> Array:
    """The matrix [depth, J * w] that blocks stand for; blocks at one place add up."""
    n_panels, _, high, wide = blocks.shape
    matrix = np.zeros((depth // high, high, n_panels, wide), blocks.dtype)
    at = np.clip(places, 0, depth // high - 1)
    for j in range(n_panels):
        np.add.at(matrix[:, :, j], at[j], blocks[j])
    return matrix.reshape(depth, n_panels * wide)


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    x, blocks, places = xs
    high = blocks.shape[2]
    n = x.shape[1] // high
    terms = x.reshape(len(x), n, high)[:, np.clip(places, 0, n - 1)]
    with np.errstate(all="ignore"):
        result: Array = np.einsum("mjth,jthw->mjw", terms, blocks)
    return result


def _compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    (x, blocks, places), (out,) = ins, outs
    _, n_blocks, high, _ = blocks.shape
    row, panel, column = axes_for(out.shape)
    t, r = Axis(loop_symbol("t", n_blocks), n_blocks), Axis(loop_symbol("r", high), high)
    # In 32 bits, as the widest number of a kernel says how many lanes a vector has.
    last = Cast(Index(floordiv(x.shape[1], high) - 1), types.i32)
    first = clamped(Load(places, (panel.sym, t.sym)), Const(0, types.i32), last)
    term = Binary("add", Binary("mul", first, Cast(Index(high), types.i32)), Cast(Index(r.sym), types.i32))
    product = Load(x, (row.sym, term)) * Load(blocks, (panel.sym, t.sym, r.sym, column.sym))
    zero = (Const(0, x.dtype),)
    axes = (row, panel, column)
    return (Stage((out,), axes, syms(axes), (product,), Reduction((t, r), "add", zero)),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, panels, n_blocks, high, wide, depth in (
        (1, 3, 2, 4, 16, 32), (5, 2, 3, 4, 16, 20), (3, 1, 1, 1, 8, 7), (0, 2, 1, 2, 4, 6), (2, 0, 3, 4, 16, 8),
        (4, 2, 0, 4, 8, 8), (17, 5, 7, 4, 16, 64), (2, 3, 2, 3, 5, 9),
    ):  # fmt: skip
        places = np.stack([rng.permutation(depth // high)[:n_blocks] for _ in range(panels)]) if panels else None
        at = np.zeros((0, n_blocks)) if places is None else places
        yield Sample((random(rng, (rows, depth)), random(rng, (panels, n_blocks, high, wide)), at.astype(np.int32)))
    doubles = random(rng, (2, 8), types.f64), random(rng, (2, 2, 4, 8), types.f64)
    yield Sample((*doubles, np.array([[0, -1], [1, 9]], np.int32)))


block_matmul = OpDef(
    "block_matmul",
    ("x", "blocks", "places"),
    {},
    _infer,
    _reference,
    _compute,
    traits=frozenset({Trait.CONTRACTION}),
    samples=_samples,
    doc="Rows times a matrix of blocks, without those that are zero; [rows, panels, columns of a panel].",
)
