"""The pass ``block-products``: products with matrices most of whose blocks are zero read the other blocks alone.

In: a graph whose weights are known. Out: the same products as ``block_matmul``, where that is faster. Not its business:
making blocks zero (``graph.prune``), loops.

By modelled cycles of a core, for the tile of rows that its registers hold: multiplications, loads, instructions, how
long a sum waits for the one before, and the way of the weights from where they lie. A panel of columns has one or a few
vectors, as its sums are held in registers; which heights and widths of blocks suit a matrix is found by trying them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_known
from tilewright.core.estimates import DOUBT
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array, product
from tilewright.graph.facts import array_of
from tilewright.target.target import Target

HEIGHTS = (1, 2, 4, 8)
VECTORS = (1, 2, 4)
"""Blocks that are tried: rows, and vectors of columns."""
PLACE_INSTRUCTIONS = 5
"""Of one block: its place is read, kept within the matrix and turned into an address, and the loop goes on."""


class Blocks(NamedTuple):
    """The operands of ``block_matmul``: blocks [J, T, h, w], places i32[J, T]."""

    blocks: Array
    places: Array


@dataclass(frozen=True)
class BlockProducts(Pass):
    """``matmul(x, w)`` becomes ``block_matmul(x, blocks, places)`` where ``w`` is a constant matrix of few blocks.

    Results differ where ``x`` is not finite in terms that only zeros multiply: they are no NaN then. It does not fire
    on other types than f32 and f64, on matrices without a height and a width of blocks by which fewer cycles are
    modelled than for the whole matrix, and on batches of matrices. Of the machine: bytes of a vector, its registers,
    ``fmas`` and ``loads`` of vectors and instructions that a cycle begins, and the ``latency`` of a sum in cycles.
    Weights come ``cache_speed`` bytes in a cycle where those of the whole graph fit ``cache_bytes``, else
    ``memory_speed``. Of caches it is the speed of the near one: the others' differ most from machine to machine, and a
    form that pays by that alone is not taken.
    """

    name: ClassVar[str] = "block-products"
    why: ClassVar[str] = "blocks of zeros add nothing to sums of finite terms"
    vector_bytes: int = 32
    registers: int = 16
    fmas: float = 2.0
    loads: float = 2.0
    issue: float = 4.0
    latency: float = 4.0
    cache_bytes: int = 8 << 20
    cache_speed: float = 64.0
    memory_speed: float = 4.5

    @classmethod
    def on(cls, target: Target) -> Self:
        """The pass for a machine."""
        return cls(
            target.vector_bytes,
            target.n_vector_registers,
            target.fmas_per_cycle,
            target.load_ports / target.load_cycles,
            target.issue_width,
            target.fma_latency,
            target.llc_kept_bytes,
            target.l2_bytes_per_cycle,
            target.memory_bytes_per_cycle,
        )

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        stored = self.reading(graph).stored
        return rewrite(graph, RuleTable([Rule(self.name.removesuffix("s"), (ops.matmul,), stored, self.why)]), journal)

    def stored(self, b: Rewriting, node: Node) -> Node | None:
        """The product that reads what is not zero alone; None where the matrix stays."""
        found = constant_product(node)
        if found is None or node.dtype not in (types.f32, types.f64):
            return None
        blocks = blocks_of(found.matrix, found.n_rows, self)
        return None if blocks is None else found.replaced(b, ops.block_matmul, *blocks)

    def reading(self, graph: Graph) -> Self:
        """The machine with the cache that this graph's weights find: none where they don't fit."""
        n_bytes = sum(a.nbytes for n in graph.nodes() if (a := array_of(n)) is not None)
        return replace(self, cache_speed=self.cache_speed if n_bytes <= self.cache_bytes else self.memory_speed)

    def cycles(self, n_rows: int | None, n_blocks: int, high: int, vectors: int, *, is_whole: bool = False) -> float:
        """Of a core for each row: all blocks of ``high`` rows by ``vectors``, which are ``n_blocks``.

        With ``is_whole`` no places are read, and nothing waits for another sum or for weights, because others go on.
        """
        # Rows whose sums the registers hold beside a block's vectors and an element of a row.
        held = max((self.registers - vectors - 1) // vectors, 1)
        rows = held if n_rows is None else max(min(held, n_rows), 1)
        sums, loads = rows * high * vectors, rows * high + high * vectors
        instructions = sums + loads + (0 if is_whole else PLACE_INSTRUCTIONS)
        waited = 0.0 if is_whole else high * self.latency
        each = max(sums / self.fmas, loads / self.loads, instructions / self.issue, waited)
        n_bytes = n_blocks * (high * vectors * self.vector_bytes + (0 if is_whole else types.i32.n_bytes))
        work, brought = n_blocks * each / rows, self.brought(n_bytes, n_rows)
        return max(work, brought) if is_whole else work + brought

    def whole(self, n_rows: int | None, matrix: Array) -> float:
        """Of the matrix [K, N] as it is: blocks of one row, in columns of two vectors.

        A part of those at its end costs a part: what another form wins there is no reason to take it.
        """
        depth, n = matrix.shape
        panels: float = n / (2 * (self.vector_bytes // matrix.dtype.itemsize))
        return self.cycles(n_rows, depth, 1, 2, is_whole=True) * panels

    def brought(self, n_bytes: float, n_rows: int | None) -> float:
        """Cycles for each row until so many bytes of weights are there; 0 for many rows."""
        return 0.0 if n_rows is None else n_bytes / self.cache_speed / max(n_rows, 1)


class ConstantProduct(NamedTuple):
    """``x @ matrix`` for a constant matrix [K, N]; ``n_rows`` is None where only a call knows it."""

    node: Node
    matrix: Array
    n_rows: int | None

    def replaced(self, b: Rewriting, op: OpDef, *operands: Array) -> Node:
        """The product by an op of rows and of these constants."""
        x = self.node.inputs[0]
        rows = b(ops.reshape, x, shape=(product(x.shape[:-1]), x.shape[-1]))
        return b(ops.reshape, b(op, rows, *map(b.const, operands)), shape=self.node.shape)


def constant_product(node: Node) -> ConstantProduct | None:
    """A product with one constant matrix, as it is or turned, all in one type; None for any other."""
    x, w = node.inputs
    is_turned = w.op is ops.transpose and w.type.rank == 2
    array = array_of(w.inputs[0] if is_turned else w)
    if array is None or array.ndim != 2 or not x.dtype is w.dtype is node.dtype:
        return None
    n_rows = product(x.shape[:-1])
    return ConstantProduct(node, array.T if is_turned else array, n_rows if is_known(n_rows) else None)


def blocks_of(matrix: Array, n_rows: int | None, machine: BlockProducts) -> Blocks | None:
    """The blocks of a matrix [K, N] that are not zero, in the form that is cheapest; None where the matrix itself is.

    ``n_rows`` is how many rows it is multiplied by, None where only a call knows: then many.
    """
    lanes, (depth, n) = machine.vector_bytes // matrix.dtype.itemsize, matrix.shape
    if not matrix.size or lanes <= 1:
        return None
    least, best = machine.whole(n_rows, matrix) * (1 - DOUBT), None
    for high, wide in _shapes(depth, n, lanes):
        vectors, panels = wide // lanes, n // wide
        # A panel is soon looked at, and tells of most matrices that they have no blocks of zeros.
        n_first = int(_taken(matrix[:, :wide], high, wide).sum())
        if n_first == depth // high or machine.cycles(n_rows, n_first * panels, high, vectors) >= least:
            continue
        taken = _taken(matrix, high, wide)
        n_blocks = int(taken.sum(axis=0).max(initial=0))
        cycles = machine.cycles(n_rows, n_blocks * panels, high, vectors)
        if 0 < n_blocks < depth // high and cycles < least:
            least, best = cycles, (high, wide, taken, n_blocks)
    return None if best is None else _gathered(matrix, *best)


def _shapes(depth: int, n: int, lanes: int) -> Iterator[tuple[int, int]]:
    for vectors in VECTORS:
        for high in HEIGHTS:
            if n % (vectors * lanes) == 0 and depth % high == 0:
                yield high, vectors * lanes


def _taken(matrix: Array, high: int, wide: int) -> Array:
    """Which blocks are not zero, bool[K / high, N / wide]."""
    depth, n = matrix.shape
    found: Array = (matrix != 0).reshape(depth // high, high, n // wide, wide).any(axis=(1, 3))
    return found


def _gathered(matrix: Array, high: int, wide: int, taken: Array, n_blocks: int) -> Blocks:
    """Blocks by panel, those that fill up a panel being zeros at a place that the panel reads anyway."""
    depth, n = matrix.shape
    panels = matrix.reshape(depth // high, high, n // wide, wide).transpose(2, 0, 1, 3)
    blocks = np.zeros((n // wide, n_blocks, high, wide), matrix.dtype)
    places = np.zeros((n // wide, n_blocks), np.int32)
    for j, column in enumerate(taken.T):
        at = np.flatnonzero(column)
        blocks[j, : len(at)] = panels[j, at]
        places[j, : len(at)], places[j, len(at) :] = at, at[-1] if len(at) else 0
    return Blocks(blocks, places)
