"""The pass ``project-ahead``: a recurrence projects its own results for the next layer, in its loop over time.

In: a graph with scans (``ops.recurrence``) and products of their results by constants. Out: scans that give those
products too. Not its business: how both run beside each other (``ops.recurrence``, ``choose.strategies.beside``).

A scan of one sequence reads all its weights at every step, and multiplies half of the time while they arrive; the next
layer's projection is a product that multiplies all the time. In one loop they take little more than the longer of the
two, unless the machine multiplies so fast that a block's weights take as long to arrive, too (``most_weights``). What
several directions bring is summed: ``[f, r] @ w`` is ``f @ w[:n] + r @ w[n:]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_known, known, known_at_most
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, PROJ, Builder, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal
from tilewright.core.types import Array, product
from tilewright.graph.forms.scans import is_plain_scan, recurrent_weights
from tilewright.target.target import Target

BLOCKS = (8, 4)
"""Steps of a block, which share each weight: the most that registers hold beside the scan's sums."""


def most_weights(target: Target) -> int:
    """Elements of the weights that one scan may read, its own and the next layer's: what the last cache keeps.

    More come from memory at every block, while a product by itself reads them once.
    Where a core multiplies a weight by the steps of a block sooner than it comes from beyond the second-level cache,
    the scan's own weights wait behind a block's, so that in one loop both take longer (``docs/choices.md``, "Recurrent
    scans").
    """
    is_slow = target.multiplies * types.f32.n_bytes <= BLOCKS[0] * target.llc_bytes_per_cycle
    return (target.llc_bytes // 2 if is_slow else target.l2_bytes) // types.f32.n_bytes


@dataclass(frozen=True)
class ProjectAhead(Pass):
    """Gives a scan of one sequence the constant weights that its results are multiplied by.

    It does not fire on batches (their products do enough with every weight), on sequences with lengths or of only
    two blocks of steps, on dtypes other than f32, on GRUs whose reset gate comes before the product, on
    recurrent weights that are computed or have under ``least`` elements, on over ``most`` elements of weights, and
    where the columns don't give as many tiles as the scan has. A sequence's length may be symbolic. ``lanes`` is the
    number of f32 in a vector, ``registers`` how many vectors a core keeps, ``sums`` how many it adds to before the
    first may go on.
    With more than one of ``n_cores`` the scans of two directions run side by side and leave the product to all cores.
    """

    name: ClassVar[str] = "project-ahead"
    lanes: int = 16
    n_cores: int = 1
    most: int = 1 << 22
    registers: int = 32
    sums: int = 8
    least: int = 1 << 14

    @staticmethod
    def on(target: Target) -> ProjectAhead:
        """The pass for a machine."""
        least = 2 * target.l1_bytes // types.f32.n_bytes  # fewer stay in the first-level cache for the most part
        return ProjectAhead(
            target.lanes(types.f32), target.n_cores, most_weights(target), target.n_vector_registers,
            target.waiting_sums, least,
        )  # fmt: skip

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        most = len(graph.nodes()) if self.n_cores == 1 else 1
        uses = {
            n: parts
            for n in graph.nodes()
            if (parts := _parts(n)) and len(parts) <= most and min(map(_n_weights, parts)) >= self.least
        }
        blocks: dict[Node, int] = {}
        while True:  # until every product left has scans that take it
            columns: dict[Node, int] = {}
            for n, parts in uses.items():
                for scan in parts:
                    columns[scan] = columns.get(scan, 0) + _columns(n)
            blocks = {scan: steps for scan, n in columns.items() if (steps := self._behind(scan, n))}
            left = {n: parts for n, parts in uses.items() if all(scan in blocks for scan in parts)}
            if len(left) == len(uses):
                break
            uses = left
        if journal is not None:
            journal += [Fired(self.name, n.op.name, n.loc) for n in uses]
        return _rewritten(graph, uses, blocks) if uses else graph

    def _behind(self, scan: Node, n_columns: int) -> int:
        """How many steps one block has, or 0 where the scan does not take as many columns."""
        steps, _, own_columns = scan.inputs[0].shape
        if _n_weights(scan) + _hidden(scan) * n_columns > self.most:
            return 0
        for behind in (n for n in BLOCKS if n <= self.registers // 4):  # the others hold the sums
            # The first block is projected beside nothing yet, and the last one behind the loop.
            long = not known_at_most(steps, 2 * behind)
            if long and is_known(own_columns) and n_columns % behind == 0:
                for own in range(self.sums, 1, -1):
                    tiles, rest = divmod(own_columns, own * self.lanes)
                    share, odd = divmod(n_columns // behind, max(tiles, 1) * self.lanes)
                    if not rest and not odd and tiles > 1 and own + (behind + 1) * share + 2 <= self.registers:
                        return behind
        return 0


def _columns(node: Node) -> int:
    return int(node.inputs[1].attrs["data"].array.shape[1])


def _parts(node: Node) -> list[Node]:
    """The scans whose results, side by side, are the rows that a product by a constant reads; [] for another node."""
    if node.op is not ops.matmul or node.dtype is not types.f32 or node.type.rank != 2:
        return []
    x, w = node.inputs
    if w.op is not CONST or w.type.rank != 2 or x.type.rank != 2 or w.dtype is not types.f32:
        return []
    source = _behind_views(x)
    pieces = [source]
    if source.op is ops.concat:
        if product(source.shape[: source.attrs["axis"]]) != x.shape[0]:
            return []
        pieces = [_behind_views(i) for i in source.inputs]
    scans = [p.inputs[0] for p in pieces if p.op is PROJ and p.attrs["index"] == 0 and _takes_part(p.inputs[0])]
    widths = [_hidden(s) for s in scans]
    fits = len(scans) == len(pieces) == len(set(scans)) and sum(widths) == x.shape[1]
    return scans if fits and all(s.inputs[0].shape[0] == x.shape[0] for s in scans) else []


def _behind_views(node: Node) -> Node:
    while node.op is ops.reshape:
        node = node.inputs[0]
    return node


def _hidden(scan: Node) -> int:
    n: Dim = scan.inputs[1].shape[0]
    return known(n, -1)


def _takes_part(scan: Node) -> bool:
    return is_plain_scan(scan) and scan.inputs[2].shape[0] == 1


def _n_weights(scan: Node) -> int:
    return int(recurrent_weights(scan).size)


def _rewritten(graph: Graph, uses: dict[Node, list[Node]], blocks: dict[Node, int]) -> Graph:
    readers: dict[Node, list[Node]] = {}
    for n, scans in uses.items():
        for scan in scans:
            readers.setdefault(scan, []).append(n)
    new: dict[Node, Node] = {}
    parts: dict[tuple[Node, Node], Node] = {}
    for n in graph.nodes():
        inputs, b = tuple(new[i] for i in n.inputs), Builder(graph.pool, n.loc)
        if n in readers:
            weights = np.concatenate([_weights(m, n, uses[m]) for m in readers[n]], axis=1)
            new[n] = b(n.op, *inputs, b.const(weights), **{**n.attrs, "behind": blocks[n]})
            parts |= {(m, n): part for m, part in _taken_apart(b, new[n], readers[n])}
        elif n in uses:
            new[n] = parts[n, uses[n][0]]
            for scan in uses[n][1:]:
                new[n] = b(ops.add, new[n], parts[n, scan])
        else:
            new[n] = n if inputs == n.inputs else graph.pool.with_inputs(n, inputs)
    return graph.with_outputs([new[n] for n in graph.outputs])


def _weights(node: Node, scan: Node, scans: list[Node]) -> Array:
    """The rows of a product's weights that multiply what ``scan`` gives."""
    start = sum(_hidden(s) for s in scans[: scans.index(scan)])
    data: Array = node.inputs[1].attrs["data"].array
    return data[start : start + _hidden(scan)]


def _taken_apart(b: Builder, scan: Node, products: list[Node]) -> Iterator[tuple[Node, Node]]:
    """Each product with its columns of what the scan projects."""
    z = b.results(scan)[-1]
    rows, at = b(ops.reshape, z, shape=(z.shape[0], z.shape[2])), 0
    for n in products:
        end = at + _columns(n)
        yield n, b(ops.slice, rows, starts=(0, at), stops=(z.shape[0], end), steps=(1, 1))
        at = end
