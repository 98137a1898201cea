"""Weights that become zero while shapes stay: single ones, two of four, and blocks.

In: a product's weights as a matrix, how many should go. Out: which stay. Not its business: storing what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core.types import Array
from tilewright.graph.prune.coupling import WeightedProduct
from tilewright.graph.prune.importance import sizes_of
from tilewright.ops.quads import PER_QUAD, QUAD

ELEMENTS, TWO_OF_FOUR, BLOCKS = "elements", "2:4", "blocks"
PATTERNS = (ELEMENTS, TWO_OF_FOUR, BLOCKS)


@dataclass(frozen=True)
class ZeroPattern:
    """Which weights go: ``kind`` is one of ``PATTERNS``, ``amount`` the part that goes (of ``2:4`` a half).

    ``block`` is how many terms of the sum and how many columns a block has.
    """

    kind: str
    amount: float
    norm: str
    block: tuple[int, int]

    def why_not(self, product: WeightedProduct) -> str:
        """Why a product's weights can't have the pattern; empty where they can."""
        found = product.weights.constant()
        if found is None:
            return "its weights are computed"
        if self.kind == ELEMENTS:
            return ""
        if product.tensor.node.op is not ops.matmul or found.rank != 2 or product.weights.rank != 2:
            return "it is no product with one matrix of weights"
        depth, n = self.matrix(product, product.weights.array()).shape
        if self.kind == TWO_OF_FOUR:
            return f"its sums of {depth} terms are no whole groups of {QUAD}" if depth % QUAD else ""
        whole = depth % self.block[0] == 0 and n % self.block[1] == 0
        return "" if whole else f"its {depth} x {n} weights are no whole blocks of {self.block[0]} x {self.block[1]}"

    def matrix(self, product: WeightedProduct, weights: Array) -> Array:
        """The weights with the axis that is summed over first: as they are, unless they stand on the left."""
        return weights if product.tensor.inputs[1] is product.weights else weights.swapaxes(-1, -2)

    def kept(self, product: WeightedProduct, gone: Array | None = None) -> Array:
        """Which weights stay, bool in their shape; ``gone`` has which ``sizes`` go where all layers are compared."""
        weights = product.weights.array()
        size = self.sizes(product, weights)
        if self.kind == TWO_OF_FOUR:
            order = np.argsort(np.argsort(-size, axis=1, kind="stable"), axis=1)
            kept = order < PER_QUAD
        elif gone is not None:
            kept = ~gone
        else:
            # Each panel of columns keeps as many blocks, because loops over them are as long as the longest.
            each = size if self.kind == BLOCKS else size.reshape(-1, 1)
            n_gone = int(self.amount * len(each))
            ranks = np.argsort(np.argsort(each, axis=0, kind="stable"), axis=0)
            kept = (ranks >= n_gone).reshape(size.shape)
        return self._spread(product, kept, weights)

    def sizes(self, product: WeightedProduct, weights: Array) -> Array:
        """The size of each weight or block; for ``2:4`` f64[K / 4, 4, N]."""
        each = sizes_of(weights, self.norm)
        if self.kind == ELEMENTS:
            return each
        matrix = self.matrix(product, each)
        depth, n = matrix.shape
        if self.kind == TWO_OF_FOUR:
            return matrix.reshape(depth // QUAD, QUAD, n)
        high, wide = self.block
        sums: Array = matrix.reshape(depth // high, high, n // wide, wide).sum(axis=(1, 3))
        return sums

    def _spread(self, product: WeightedProduct, kept: Array, weights: Array) -> Array:
        """From what is compared to single weights in their shape."""
        if self.kind == ELEMENTS:
            return kept
        shape = self.matrix(product, weights).shape
        if self.kind == BLOCKS:
            kept = np.repeat(np.repeat(kept, self.block[0], axis=0), self.block[1], axis=1)
        return self.matrix(product, np.asarray(kept).reshape(shape))
