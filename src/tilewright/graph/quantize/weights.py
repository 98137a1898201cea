"""The pass ``quantize-weights``: constant matrices that products read are stored in few bits.

In: a graph with f32 weights, as it is imported. Out: a graph whose products read codes or small floats with a scale for
each group. Activations stay in f32. Not its business: what weights may be (``graph.quantize.books``), arithmetic on
them (``ops.coded``, ``ops.scaled``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import Loc
from tilewright.core.dims import is_padded, known_at_most, numbers
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim
from tilewright.core.graph import INPUT, Builder, Graph, Node, topological
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array, product
from tilewright.graph.facts import array_of
from tilewright.graph.forms.coded import half_where_exact
from tilewright.graph.forms.scans import SCANS
from tilewright.graph.quantize.awq import awq_factors
from tilewright.graph.quantize.books import BOOKS, Book, Floats, Levels
from tilewright.graph.quantize.codes import product_of, real_rows, rounded_rows
from tilewright.graph.quantize.encoding import decibels
from tilewright.graph.quantize.gptq import gptq_rows
from tilewright.graph.quantize.recurrent import matrix_of, state_weights
from tilewright.ops.coded import WORD_BITS
from tilewright.ops.convolution import spatial_axes
from tilewright.ops.over_time import Product, looped

MOST_PLACES = 64
"""Places of an image up to which each weight of a convolution is read so seldom that codes save time."""
METHODS = ("gptq", "awq")
"""How codes are chosen for data: ``graph.quantize.gptq`` moves errors, ``graph.quantize.awq`` scales weights."""


class Chosen(NamedTuple):
    """A product that reads codes now, and the power of its result over that of its error, in decibels.

    For what the data gave it, or for inputs that are independent of each other where there are no data.
    """

    loc: Loc
    at: int
    """The address of its weights."""
    sqnr_db: float


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """Constant right operands of ``matmul`` become what ``codes`` names, rounded to nearest in groups of ``group``.

    So do weights that scans over time multiply their state by: such scans become loops. So do tables of rows that are
    taken by number, where such rows are what a product with quantised weights sums over: embeddings. It does not fire
    on other dtypes than f32; on matrices whose sums are no whole groups, whose columns fill no whole words, or that
    hold numbers beyond the format; on einsums, and on convolutions but for those that are products of the channels at
    each of at most ``MOST_PLACES`` places. Biases, norms and other small tensors stay as they are, and so do tables
    whose rows no input chooses: those rows are constants, and the error of a few of them would be in every result.
    """

    name: ClassVar[str] = "quantize-weights"
    codes: str = "int8"
    group: int = 32

    @property
    def book(self) -> Book:
        return BOOKS[self.codes]

    def run(
        self,
        graph: Graph,
        journal: Journal | None = None,
        moments: Mapping[int, Array] = MappingProxyType({}),
        method: str = "gptq",
        spared: Container[int] = (),
        chosen: list[Chosen] | None = None,
    ) -> Graph:
        """The graph with codes.

        ``moments`` has, by the address of weights, the sum of ``x x^T`` over what a product multiplied them by for some
        data: then one of ``METHODS`` chooses their codes. Weights at the addresses ``spared`` stay as they are. What
        becomes of each product is added to ``chosen``.
        """
        how = _How(moments, method, spared, chosen)
        depths = {len(m) for node in graph.nodes() if (m := self.matrix_of(node)) is not None}
        why = "the user asked for weights of few bits"
        rules = [
            Rule("quantize-product", (ops.matmul,), lambda b, node: self._product(b, node, how), why),
            Rule("quantize-convolution", (ops.conv,), lambda b, node: self._places(b, node, how), why),
            Rule("quantize-recurrence", SCANS, lambda b, node: self._scan(b, node, how), why),
            Rule("quantize-table", (ops.gather,), lambda b, node: self._rows(b, node, depths, how), why),
        ]
        return rewrite(graph, RuleTable(rules), journal)

    def matrix_of(self, node: Node) -> Array | None:
        """The weights f32[K, N] of a product that this pass quantises: the model's own array, or a view of it."""
        if node.op in SCANS:
            weights = state_weights(node)
            return None if weights is None or self.why_not(weights, len(weights)) else weights
        if node.op is ops.conv:
            of_channels = weights_at_places(node)
            return None if of_channels is None or self.why_not(of_channels) else of_channels
        if node.op is not ops.matmul or node.dtype is not types.f32 or node.inputs[0].dtype is not types.f32:
            return None
        matrix = matrix_of(node.inputs[1])
        return None if matrix is None or self.why_not(matrix) else matrix

    def operand_of(self, graph: Graph, node: Node) -> Node:
        """What such a product multiplies, rows last: of a scan its states, which are its result."""
        if node.op is ops.conv:
            return channels_last(Builder(graph.pool, node.loc), node.inputs[0], node.attrs["layout"])
        return graph.pool.results(node)[0] if node.op in SCANS else node.inputs[0]

    def why_not(self, matrix: Array, n_together: int = 0) -> str:
        """Why a matrix f32[K, N] gets no codes; empty where it does. ``n_together``: columns that stay together."""
        depth, n, book = len(matrix), n_together or matrix.shape[1], self.book
        if book.has_steps and depth % self.group:
            return f"its sums of {depth} terms are no whole groups of {self.group}"
        if isinstance(book, Levels) and n % (WORD_BITS // book.bits):
            return f"its {n} columns fill no whole words of codes"
        if not matrix.size:
            return "it has no weights"
        largest = float(np.abs(matrix).max())
        if not np.isfinite(largest):
            return "it has weights that are not finite"
        if not book.has_steps and largest > types.f16.max:
            return f"its largest weight, {largest:.3g}, is no {self.codes}"
        return ""

    def _product(self, b: Rewriting, node: Node, how: _How) -> Node | None:
        matrix = self.matrix_of(node)
        if matrix is None or matrix.ctypes.data in how.spared:
            return None
        return self._multiplied(matrix, node.loc, how)(b, node.inputs[0], 0, matrix.shape[1])

    def _places(self, b: Rewriting, node: Node, how: _How) -> Node | None:
        """A convolution of a place alone, as the product of its channels."""
        matrix = self.matrix_of(node)
        if matrix is None or matrix.ctypes.data in how.spared:
            return None
        x = channels_last(b, node.inputs[0], node.attrs["layout"])
        y = self._multiplied(matrix, node.loc, how)(b, x, 0, matrix.shape[1])
        return y if node.attrs["layout"] == "NHWC" else b(ops.transpose, y, perm=(0, y.type.rank - 1, *_inner(y)))

    def _scan(self, b: Rewriting, node: Node, how: _How) -> tuple[Node, ...] | None:
        matrix = self.matrix_of(node)
        if matrix is None or matrix.ctypes.data in how.spared:
            return None
        return looped(b, node, self._multiplied(matrix, node.loc, how))

    def _multiplied(self, matrix: Array, loc: Loc, how: _How) -> Product:
        """The product by some columns of a matrix, whose codes are chosen here."""
        known, book, rows, group = how.moments.get(matrix.ctypes.data), self.book, matrix.T, self._group(len(matrix))
        factors: Array = np.ones(1, np.float32)
        if known is None:
            codes, steps = rounded_rows(rows, book, group)
        elif how.method == "awq":
            factors = awq_factors(rows, known, book, group)
            codes, steps = rounded_rows(rows * factors, book, group, is_near=True)
        else:
            codes, steps = gptq_rows(rows, known, book, group)
        if how.chosen is not None:
            powers = np.zeros(2)
            for part in _parts(rows):
                error = real_rows(codes[part], steps[part], book) / factors - rows[part]
                powers += _power(rows[part], known), _power(error, known)
            how.chosen.append(Chosen(loc, matrix.ctypes.data, decibels(*powers)))

        def product(b: Builder, x: Node, first: Dim, last: Dim) -> Node:
            columns = slice(*numbers((first, last)))
            scaled = b(ops.mul, x, b.const(1 / factors)) if how.method == "awq" and known is not None else x
            return product_of(b, scaled, codes[columns], steps[columns], book)

        return product

    def _group(self, depth: int) -> int:
        """How many weights share a step: all of a column where there are no steps but 1."""
        return depth if self.codes == "fp16" else self.group

    def _rows(self, b: Rewriting, node: Node, depths: set[int], how: _How) -> Node | None:
        """Rows of codes, and the scales of each, are taken and dequantised."""
        table, places = array_of(node.inputs[0]), node.inputs[1]
        if table is None or node.attrs["axis"] != 0 or table.ndim != 2 or table.dtype != np.float32:
            return None
        if table.shape[1] not in depths or table.ctypes.data in how.spared:
            return None
        if not any(x.op is INPUT for x in topological([places])):
            return None
        if not np.isfinite(np.abs(table).max(initial=0)):
            return None
        book = self.book
        if isinstance(book, Floats):
            return self._float_rows(b, table, places, book, bool(how.moments))
        assert isinstance(book, Levels)
        codes, steps = rounded_rows(table, book, self.group, bool(how.moments))
        half = codes.shape[1] // 2
        # Two codes in a byte are half a row apart, so that rows are put together without taking turns.
        stored = codes if book.bits == types.u8.bits else codes[:, :half] | codes[:, half:] << book.bits
        taken, scales = (b(ops.gather, b.const(a), places, axis=0) for a in (stored, half_where_exact(steps)))
        axis = len(taken.shape) - 1
        if book.bits < types.u8.bits:
            low = b(ops.bitwise_and, taken, b.const((1 << book.bits) - 1, types.u8))
            taken = b(ops.concat, low, b(ops.shift_right, taken, b.const(book.bits, types.u8)), axis=axis)
        if book.levels:
            taken = b(ops.gather, b.const(np.array(book.levels, np.uint8)), b(ops.cast, taken, dtype=types.i64), axis=0)
        scales = b(ops.cast, scales, dtype=types.f32)
        zeros = b(ops.full, value=book.zero, dtype=types.u8, shape=scales.shape)
        return b(ops.dequantize_linear, taken, scales, zeros, axis=axis, block_size=self.group)

    def _float_rows(self, b: Rewriting, table: Array, places: Node, book: Floats, is_near: bool) -> Node | None:
        if book.dtype is types.f16:
            if np.abs(table).max(initial=0) > types.f16.max:
                return None
            taken = b(ops.gather, b.const(table.astype(np.float16)), places, axis=0)
            return b(ops.cast, taken, dtype=types.f32)
        codes, steps = rounded_rows(table, book, self.group, is_near)
        taken, scales = (
            b(ops.gather, b.const(a), places, axis=0) for a in (codes.view(book.dtype.numpy), half_where_exact(steps))
        )
        numbers = b(ops.decode, taken)
        apart = b(ops.reshape, numbers, shape=(*scales.shape, self.group))
        each = b(ops.reshape, b(ops.cast, scales, dtype=types.f32), shape=(*scales.shape, 1))
        return b(ops.reshape, b(ops.mul, apart, each), shape=numbers.shape)


class _How(NamedTuple):
    """What ``QuantizeWeights.run`` was told."""

    moments: Mapping[int, Array]
    method: str
    spared: Container[int]
    chosen: list[Chosen] | None


def channels_last(b: Builder, x: Node, layout: str) -> Node:
    """Images with the channels of each place side by side."""
    return x if layout == "NHWC" else b(ops.transpose, x, perm=(0, *range(2, x.type.rank), 1))


def _inner(x: Node) -> range:
    """The axes between the first and the last."""
    return range(1, x.type.rank - 1)


def weights_at_places(node: Node) -> Array | None:
    """The weights f32[C, N] of a convolution that multiplies the channels of each of few places; None of others."""
    a, array = node.attrs, array_of(node.inputs[1])
    if array is None or array.dtype != np.float32 or {x.dtype for x in (*node.inputs, node)} != {types.f32}:
        return None
    is_place = array.size == array.shape[0] * array.shape[1] and a["groups"] == 1
    is_plain = all(n == 1 for n in a["strides"]) and not is_padded(a["pads"])
    n_places = product([node.shape[axis] for axis in spatial_axes(a["layout"], node.type.rank)])
    if not is_place or not is_plain or not known_at_most(n_places, MOST_PLACES):
        return None
    return array.reshape(array.shape[:2]).T


def _parts(rows: Array) -> Iterator[slice]:
    """Parts of rows f32[n, K] that are so small that what is made of one takes little beside all."""
    at_once = max(EFFORT.elements // max(rows.shape[1], 1), 1)
    return (slice(start, start + at_once) for start in range(0, len(rows), at_once))


def _power(rows: Array, moments: Array | None) -> float:
    """The sum of squares of ``x @ rows.T`` over the inputs that ``moments`` was made of, or of the rows themselves."""
    return float(np.square(rows, dtype=np.float64).sum() if moments is None else np.sum((rows @ moments) * rows))
