"""Products with a matrix in which two of each four neighbours along the sum are zero: the other two alone are stored.

In: rows, the weights that are kept, and which of four each of them is. Out: the products. Not its business: finding
such a matrix (``graph.forms.quads``), choosing what is kept (``graph.prune``).

``kept[j, q, g, s]`` has the ``w`` columns of panel ``j``: of the four terms from ``(8 q + g) * 4`` on, the first
(``s`` is 0) or the second that is kept. ``codes[j, q]`` has a word for each column, with two bits for each of these 16
weights from the highest down: the weight belongs to term ``s`` of the four, to the next one where the lower bit is set,
to the one behind that where the upper bit is. A sign says which, so a lane chooses among three elements of a row by two
shifts and two selections, without a gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

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
    Select,
    Stage,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import check, check_dtype, check_equal_dims, check_rank
from tilewright.ops.rules import Types
from tilewright.ops.samples import random

QUAD, PER_QUAD = (4, 2)
"""Neighbours along the sum, and how many of them are kept."""
CODE_BITS = 2
QUADS_PER_WORD = types.i32.bits // (PER_QUAD * CODE_BITS)
TERMS_PER_WORD = QUADS_PER_WORD * QUAD


def _infer(ts: Types, a: Attrs) -> TensorType:
    x, kept, codes = ts
    for t, rank, what in ((x, 2, "the rows"), (kept, 5, "the weights"), (codes, 3, "the codes")):
        check_rank(t, rank, what)
    check_dtype(x, (types.f32,), "the rows")
    check_dtype(kept, (types.f32,), "the weights")
    check_dtype(codes, (types.i32,), "the codes")
    panels, n_words, n_quads, n_kept, wide = kept.shape
    check(
        (n_quads, n_kept) == (QUADS_PER_WORD, PER_QUAD),
        lambda: f"{kept} has no {PER_QUAD} weights of {QUADS_PER_WORD} fours for each code",
        "use tilewright.graph.forms.quads",
    )
    for own, wanted in zip(codes.shape, (panels, n_words, wide), strict=True):
        check_equal_dims(own, wanted, lambda: f"codes {codes} and weights {kept}")
    check_equal_dims(x.shape[1], n_words * TERMS_PER_WORD, lambda: f"columns of {x} and terms of {kept}")
    return TensorType(x.dtype, (x.shape[0], panels, wide))


def matrix_of(kept: Array, codes: Array) -> Array:
    """The matrix f32[K, J * w] that weights and codes stand for; two weights of one term add up."""
    panels, n_words, n_quads, _, wide = kept.shape
    matrix = np.zeros((panels, n_words, n_quads, QUAD, wide), kept.dtype)
    for g in range(QUADS_PER_WORD):
        for s in range(PER_QUAD):
            at, quad = (_offsets(codes, _place(g, s)) + s)[:, :, None], matrix[:, :, g]
            np.put_along_axis(quad, at, np.take_along_axis(quad, at, 2) + kept[:, :, g, s][:, :, None], 2)
    return np.ascontiguousarray(matrix.transpose(1, 2, 3, 0, 4)).reshape(-1, panels * wide)


D = TypeVar("D", int, Dim)


def _place(g: D, s: D) -> D:
    """How far a code's upper bit is below the highest of its word."""
    return (g * PER_QUAD + s) * CODE_BITS


def _offsets(codes: Array, place: int) -> Array:
    """How far behind term ``s`` of its four a weight's term is, by the code at a place."""
    words = codes.view(np.uint32)
    upper, lower = ((words << np.uint32(place + k)).view(np.int32) < 0 for k in range(CODE_BITS))
    return np.where(upper, 2, np.where(lower, 1, 0))


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    x, kept, codes = xs
    total = np.zeros((len(x), kept.shape[0], kept.shape[4]), x.dtype)
    with np.errstate(all="ignore"):
        for q in range(kept.shape[1]):
            for g in range(QUADS_PER_WORD):
                for s in range(PER_QUAD):
                    at = (q * QUADS_PER_WORD + g) * QUAD + s + _offsets(codes[:, q], _place(g, s))
                    total += x[:, at] * kept[:, q, g, s]
    return total


def _compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    (x, kept, codes), (out,) = ins, outs
    row, panel, column = axes_for(out.shape)
    q, g, s = (Axis(loop_symbol(name, n), n) for name, n in zip("qgs", kept.shape[1:4], strict=True))
    word = Load(codes, (panel.sym, q.sym, column.sym))
    first = (q.sym * QUADS_PER_WORD + g.sym) * QUAD + s.sym

    def is_set(bit: int) -> Value:
        shifted = Binary("shl", word, Cast(Index(_place(g.sym, s.sym) + bit), types.i32))
        return Binary("lt", shifted, Const(0, types.i32))

    terms = [Load(x, (row.sym, first + k)) for k in range(QUAD - PER_QUAD + 1)]
    term = Select(is_set(0), terms[2], Select(is_set(1), terms[1], terms[0]))
    product = term * Load(kept, (panel.sym, q.sym, g.sym, s.sym, column.sym))
    axes = (row, panel, column)
    return (Stage((out,), axes, syms(axes), (product,), Reduction((q, g, s), "add", (Const(0, x.dtype),))),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, panels, n_words, wide in ((1, 2, 2, 32), (3, 1, 1, 8), (0, 2, 1, 16), (2, 0, 1, 8), (5, 3, 2, 5)):
        kept = random(rng, (panels, n_words, QUADS_PER_WORD, PER_QUAD, wide))
        codes = rng.integers(-(2**31), 2**31, (panels, n_words, wide)).astype(np.int32)
        yield Sample((random(rng, (rows, n_words * TERMS_PER_WORD)), kept, codes))


quad_matmul = OpDef(
    "quad_matmul",
    ("x", "kept", "codes"),
    {},
    _infer,
    _reference,
    _compute,
    traits=frozenset({Trait.CONTRACTION}),
    samples=_samples,
    doc="Rows times a matrix of which two of each four terms are kept; [rows, panels, columns of a panel].",
)
