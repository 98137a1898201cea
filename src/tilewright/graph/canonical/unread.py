"""Rules for ops that give less work when some of their results are not read.

In: nodes that are one result of several. Out: the same result of a smaller op. Not its business: results that nobody
reads at all, which no graph holds.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.graph import PROJ, Node
from tilewright.core.rewrite import Rewriting, Rule

VALUES_ALONE = {ops.eigh: (0, ops.eigvalsh), ops.svd: (1, ops.svdvals)}
"""By op: which result is the values, and the op that gives nothing else."""


def values_without_vectors(b: Rewriting, node: Node) -> Node | None:
    """Values cost less than half of what vectors do (``linalg.eigvalsh`` is exported as ``eigh``)."""
    source = node.inputs[0]
    index, alone = VALUES_ALONE.get(source.op, (None, None))
    if alone is None or node.attrs["index"] != index or not b.read_once(source):
        return None
    return b(alone, *source.inputs)


RULES = (Rule("values-without-vectors", (PROJ,), values_without_vectors, "they are the same values"),)
