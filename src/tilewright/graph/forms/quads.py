"""The pass ``quad-products``: products with matrices of which two of each four terms are zero store the other two.

In: a graph whose weights are known. Out: the same products as ``quad_matmul``, where that is faster. Not its business:
making weights zero (``graph.prune``), loops.

That pays where a product waits for its weights, as one row of a language model does: bytes are about half as many, and
each weight takes four more instructions. Rows can't share these, so products of many rows keep their matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.estimates import DOUBT
from tilewright.core.graph import Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Rewriting
from tilewright.core.types import Array
from tilewright.graph.forms.blocked import VECTORS, BlockProducts, constant_product
from tilewright.ops.quads import CODE_BITS, PER_QUAD, QUAD, QUADS_PER_WORD, TERMS_PER_WORD

INSTRUCTIONS = 2 * CODE_BITS + 1
"""Of a vector of weights: a shift and a selection for each bit of its code, and the product, all of them of vectors."""


class Quads(NamedTuple):
    """The operands of ``quad_matmul``: weights f32[J, K / 32, 8, 2, w], codes i32[J, K / 32, w]."""

    kept: Array
    codes: Array


@dataclass(frozen=True)
class QuadProducts(BlockProducts, Pass):
    """``matmul(x, w)`` becomes ``quad_matmul(x, kept, codes)`` where two of each four terms of every sum are zero.

    Results differ where ``x`` is not finite in terms that only zeros multiply: they are no NaN then. It does not fire
    on other types than f32, on sums that are no whole number of words of codes, on columns that fill no vectors, on a
    number of rows that only a call knows, and where the matrix itself comes as fast. The options are those of
    ``block-products``.
    """

    name: ClassVar[str] = "quad-products"
    why: ClassVar[str] = "terms of zeros add nothing to sums of finite terms"

    def stored(self, b: Rewriting, node: Node) -> Node | None:
        """The product that reads what is kept alone; None where the matrix stays."""
        found = constant_product(node)
        if found is None or found.n_rows is None or node.dtype is not types.f32:
            return None
        quads = quads_of(found.matrix, found.n_rows, self)
        return None if quads is None else found.replaced(b, ops.quad_matmul, *quads)


def quads_of(matrix: Array, n_rows: int, machine: BlockProducts) -> Quads | None:
    """The kept weights of a matrix f32[K, N] and their codes; None where it is no such matrix, or comes as fast."""
    lanes, (depth, n) = machine.vector_bytes // matrix.dtype.itemsize, matrix.shape
    wide = next((v * lanes for v in reversed(VECTORS) if n % (v * lanes) == 0), 0)
    if not matrix.size or lanes <= 1 or not wide or depth % TERMS_PER_WORD:
        return None
    work = depth * n * PER_QUAD / (QUAD * lanes) * INSTRUCTIONS / machine.fmas
    n_bytes = depth * n * (PER_QUAD * matrix.dtype.itemsize + PER_QUAD * CODE_BITS / 8) / QUAD
    if max(work, machine.brought(n_bytes, n_rows)) >= machine.whole(n_rows, matrix) * (1 - DOUBT):
        return None
    # A panel is soon looked at, and tells of most matrices that they have more numbers.
    if not all(_is_sparse(part) for part in (matrix[:, :lanes], matrix)):
        return None
    return _packed(matrix, wide)


def _is_sparse(matrix: Array) -> bool:
    """Are at most two of each four terms no zeros?"""
    fours = (matrix != 0).reshape(len(matrix) // QUAD, QUAD, -1)
    return int(fours.sum(axis=1).max()) <= PER_QUAD


def _packed(matrix: Array, wide: int) -> Quads:
    depth, n = matrix.shape
    fours = matrix.reshape(depth // QUAD, QUAD, n)
    # What is not zero comes first, in the order of the terms; zeros fill up where there are fewer.
    chosen = np.sort(np.argsort(fours == 0, axis=1, kind="stable")[:, :PER_QUAD], axis=1)
    kept = np.take_along_axis(fours, chosen, axis=1)
    offsets = chosen - np.arange(PER_QUAD)[:, None]
    codes = np.zeros((depth // TERMS_PER_WORD, n), np.uint32)
    for g in range(QUADS_PER_WORD):
        for s in range(PER_QUAD):
            place = types.i32.bits - CODE_BITS * (g * PER_QUAD + s + 1)
            codes |= offsets[g::QUADS_PER_WORD, s].astype(np.uint32) << np.uint32(place)
    panels = kept.reshape(-1, QUADS_PER_WORD, PER_QUAD, n // wide, wide).transpose(3, 0, 1, 2, 4)
    words = codes.view(np.int32).reshape(-1, n // wide, wide).transpose(1, 0, 2)
    return Quads(np.ascontiguousarray(panels), np.ascontiguousarray(words))
