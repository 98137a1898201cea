"""The pass ``fold-constants``: what only constants decide is computed at compile time, by the ops' references.

In: a graph. Out: a graph where such nodes are constants. Not its business: identities with one constant operand
(``canonicalize``), and folding scales into weights (``forms.affine``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import MOST_GROWTH
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.graph.facts import has_symbols

GROWTH_BYTES = 1 << 16  # a result may be this much larger than what it is made of
SOURCE_BYTES = 4096  # ramps and expansions up to here are worth storing; larger ones are recomputed by index
BLOCK = isqrt(EFFORT.points)
READING = frozenset({ops.gather, ops.gather_nd, ops.gather_elements})
STRETCHING = frozenset({ops.expand, ops.tile, ops.iota, ops.full})
UNFIT = frozenset({Trait.STRUCTURAL, Trait.CONTROL, Trait.RANDOM})


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluates nodes whose operands are all constants.

    It does not fire when the result is larger than ``max_bytes``, or larger than its operands by more than 64 KiB (an
    int8 weight stays int8, a broadcast bias stays a bias; padding may make it four times as large, and what is read
    from a table larger by ``EFFORT.added_bytes``); for ramps and expansions when it is larger than 4 KiB; for random
    ops, control flow, attributes with symbols, and ops whose names are ``kept``.
    """

    name: ClassVar[str] = "fold-constants"
    max_bytes: int = 1 << 30
    kept: tuple[str, ...] = ()

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, _table(self), journal)


def _table(options: FoldConstants) -> RuleTable:
    roots = tuple(op for op in ops.ALL if not op.traits & UNFIT and op.name not in options.kept)
    why = "the reference is the op's meaning"
    return RuleTable([Rule("fold", roots, lambda b, node: _fold(b, node, options.max_bytes), why)])


def _fold(b: Rewriting, node: Node, max_bytes: int) -> Node | tuple[Node, ...] | None:
    for i in node.inputs:
        if i.op is not CONST:
            return None
    n_bytes = 0
    for t in node.types:
        size = t.n_bytes
        if not is_known(size):
            return None
        n_bytes += size
    operands: list[Array] = [i.attrs["data"].array for i in node.inputs]
    given = sum(a.nbytes for a in operands)
    if n_bytes > min(max_bytes, _most_bytes(node, given)) or any(has_symbols(v) for v in node.attrs.values()):
        return None
    if node.op is ops.transpose and node.attrs["perm"] == (1, 0):
        return b.const(transposed(operands[0]))
    with np.errstate(all="ignore"):
        results = node.op.reference(operands, node.attrs)
    if isinstance(results, tuple):
        return tuple(b.const(np.asarray(r)) for r in results)
    return b.const(np.asarray(results))


def _most_bytes(node: Node, given: int) -> int:
    """How large a result may be that is made of ``given`` bytes."""
    if node.op in STRETCHING:
        return SOURCE_BYTES
    if node.op in READING:  # from a table at known places: an attention's bias by distance
        return given + EFFORT.added_bytes
    return (MOST_GROWTH if node.op is ops.pad else 1) * given + GROWTH_BYTES


def transposed(matrix: Array) -> Array:
    """The transposed matrix, copied by blocks that fit the cache: 3072 x 768 floats take 6 ms instead of 20."""
    n_rows, n_columns = matrix.shape
    result = np.empty((n_columns, n_rows), matrix.dtype)
    for i in range(0, n_rows, BLOCK):
        for j in range(0, n_columns, BLOCK):
            result[j : j + BLOCK, i : i + BLOCK] = matrix[i : i + BLOCK, j : j + BLOCK].T
    return result
