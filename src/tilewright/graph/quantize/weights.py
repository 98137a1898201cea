"""The pass ``quantize-weights``: constant matrices that products read are stored in few bits.

In: a graph with f32 weights, as it is imported. Out: a graph whose products read codes of 4 or 8 bits with a scale for
each group. Activations stay in f32. Not its business: choosing codes (``graph.quantize.codes``), arithmetic on codes
(``ops.coded``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.graph.facts import array_of
from tilewright.graph.forms.coded import coded, coded_product, half_where_exact
from tilewright.graph.quantize.awq import awq_factors
from tilewright.graph.quantize.codes import rounded, rounded_rows
from tilewright.graph.quantize.gptq import gptq_rows
from tilewright.ops.coded import WORD_BITS

METHODS = ("gptq", "awq")
"""How codes are chosen for data: ``graph.quantize.gptq`` moves errors, ``graph.quantize.awq`` scales weights."""


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """Constant right operands of ``matmul`` become codes of ``bits``, rounded to nearest in groups of ``group``.

    So do tables of rows that are taken by number, where such rows are what a product with quantised weights sums over:
    embeddings. It does not fire on other dtypes than f32; on matrices whose sums are no whole groups or whose columns
    fill no whole words; on convolutions and einsums. Biases, norms and other small tensors stay as they are.
    """

    name: ClassVar[str] = "quantize-weights"
    bits: int = 8
    group: int = 32

    def run(
        self,
        graph: Graph,
        journal: Journal | None = None,
        moments: Mapping[int, Array] = MappingProxyType({}),
        method: str = "gptq",
    ) -> Graph:
        """The graph with codes.

        ``moments`` has, by the address of weights, the sum of ``x x^T`` over what a product multiplied them by for some
        data: then one of ``METHODS`` chooses their codes.
        """
        depths = {len(m) for node in graph.nodes() if (m := self.matrix_of(node)) is not None}
        why = "the user asked for weights of few bits"
        rules = [
            Rule("quantize-product", (ops.matmul,), lambda b, node: self._product(b, node, moments, method), why),
            Rule("quantize-table", (ops.gather,), lambda b, node: self._rows(b, node, depths), why),
        ]
        return rewrite(graph, RuleTable(rules), journal)

    def matrix_of(self, node: Node) -> Array | None:
        """The weights f32[K, N] of a product that this pass quantises: the model's own array, or a view of it."""
        if node.op is not ops.matmul or node.dtype is not types.f32:
            return None
        w = node.inputs[1]
        is_turned = w.op is ops.transpose
        array = array_of(w.inputs[0] if is_turned else w)
        if array is None or array.ndim != 2 or array.dtype != np.float32 or node.inputs[0].dtype is not types.f32:
            return None
        matrix = array.T if is_turned else array
        fits = not len(matrix) % self.group and not matrix.shape[1] % (WORD_BITS // self.bits)
        return matrix if fits and matrix.size else None

    def _product(self, b: Rewriting, node: Node, moments: Mapping[int, Array], method: str) -> Node | None:
        matrix = self.matrix_of(node)
        if matrix is None:
            return None
        known, x = moments.get(matrix.ctypes.data), node.inputs[0]
        if known is None:
            return coded_product(b, x, rounded(matrix, self.bits, self.group), self.bits)
        if method == "awq":
            factors = awq_factors(matrix.T, known, self.bits, self.group)
            x = b(ops.mul, x, b.const(1 / factors))
            return coded_product(b, x, rounded(matrix * factors[:, None], self.bits, self.group), self.bits)
        codes, steps = gptq_rows(matrix.T, known, self.bits, self.group)
        middle = np.array([[1 << (self.bits - 1)]])
        return coded_product(b, x, coded(codes.T, steps.T, middle, self.bits), self.bits)

    def _rows(self, b: Rewriting, node: Node, depths: set[int]) -> Node | None:
        """Rows of codes, and the scales of each, are taken and dequantised."""
        table, places = array_of(node.inputs[0]), node.inputs[1]
        if table is None or node.attrs["axis"] != 0 or table.ndim != 2 or table.dtype != np.float32:
            return None
        if table.shape[1] not in depths:
            return None
        codes, steps = rounded_rows(table, self.bits, self.group)
        half = codes.shape[1] // 2
        # Two codes in a byte are half a row apart, so that rows are put together without taking turns.
        stored = codes if self.bits == types.u8.bits else codes[:, :half] | codes[:, half:] << self.bits
        taken, scales = (b(ops.gather, b.const(a), places, axis=0) for a in (stored, half_where_exact(steps)))
        axis = len(taken.shape) - 1
        if self.bits < types.u8.bits:
            low = b(ops.bitwise_and, taken, b.const((1 << self.bits) - 1, types.u8))
            taken = b(ops.concat, low, b(ops.shift_right, taken, b.const(self.bits, types.u8)), axis=axis)
        scales = b(ops.cast, scales, dtype=types.f32)
        zeros = b(ops.full, value=1 << (self.bits - 1), dtype=types.u8, shape=scales.shape)
        return b(ops.dequantize_linear, taken, scales, zeros, axis=axis, block_size=self.group)
