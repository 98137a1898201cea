"""What the regions of reductions, scatters and sorts do, where that has a name.

In: a region of scalars. Out: the op of our graph that it applies to its two arguments, or what its operations give for
samples. Not its business: regions without a name, whose operations are walked (``walk.BlockWalker.apply``).

A region that only compares and chooses is decided by the order of its arguments among themselves and among its
constants. Trying it on every order of few values, equal ones, infinities, zeros of both signs and NaN among them, is
therefore a proof of what it does, however it is spelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, DType
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation

COMBINERS: Mapping[str, OpDef] = {
    "stablehlo.add": ops.add, "stablehlo.multiply": ops.mul, "stablehlo.minimum": ops.minimum,
    "stablehlo.maximum": ops.maximum, "stablehlo.and": ops.bitwise_and, "stablehlo.or": ops.bitwise_or,
}  # fmt: skip
SECOND = "second"
"""Of a region that gives its second argument, a scatter's update."""
OTHER = "other"
"""Of a region without a name."""

_CHOOSING = frozenset(
    f"stablehlo.{name}" for name in "compare select and or not xor constant return maximum minimum real imag".split()
)


def combiner_of(region: Any) -> OpDef | str:
    """The op that a region of two scalars applies to both, or ``SECOND``, or ``OTHER``."""
    block = region.blocks[0]
    *before, last = [op.operation for op in block.operations]
    arguments = list(block.arguments)
    if len(arguments) != 2 or len(last.operands) != 1:
        return OTHER
    if not before:
        return SECOND if last.operands[0] == arguments[1] else OTHER
    op = before[0]
    is_plain = len(before) == 1 and last.operands[0] == op.results[0] and set(op.operands) == set(arguments)
    return COMBINERS.get(op.name, OTHER) if is_plain else OTHER


def only_chooses(region: Any) -> bool:
    """Does a region nothing but compare and choose?"""
    return all(op.operation.name in _CHOOSING for op in region.blocks[0].operations)


def keeps_larger(c: Operation, region: Any) -> bool:
    """Does a selection keep the larger one of its first two arguments, or the smaller?"""
    block = region.blocks[0]
    first = block.operations[0].operation
    if first.name == "stablehlo.compare" and list(first.operands) == list(block.arguments)[:2]:
        kind = direction_of(first)
        if kind in ("GE", "GT"):
            return True
        if kind in ("LE", "LT"):
            return False
    raise NoForm(f"{c.name} by another selection than the largest or smallest", "use max or min")


def direction_of(compare: Any) -> str:
    """``LT`` of ``#stablehlo<comparison_direction LT>``."""
    return str(compare.attributes["comparison_direction"]).rstrip(">").split()[-1]


def samples(dtype: DType) -> Array:
    """Values of every kind that a comparison tells apart, two where there is room for two."""
    if dtype.is_float:
        found = [-np.inf, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, np.inf, np.nan]
    else:
        found = [0, 1] if dtype.kind == "bool" else [dtype.min, dtype.min + 1, 0, 1, dtype.max - 1, dtype.max]
    with np.errstate(invalid="ignore"):  # NaN in 16 bits
        return np.array(found).astype(dtype.numpy)


def results_of(c: Operation, region: Any, arguments: Sequence[Array]) -> list[Array]:
    """What a region gives for arrays of scalars, real or complex ones, by the ops' references."""
    child = c.walker.child(Pool())
    pool = child.scope.pool
    given = [
        Pair(pool.const(a.real.copy()), pool.const(a.imag.copy())) if np.iscomplexobj(a) else pool.const(a)
        for a in arguments
    ]
    made = child.apply(region, given)
    nodes = tuple(x for x in made if isinstance(x, Node))
    if len(nodes) < len(made) or child.scope.captured:
        raise NoForm("a region that reads what is around it", "compare the elements alone")
    graph = Graph("region", pool, (), nodes, tuple(map(str, range(len(nodes)))))
    return [np.broadcast_to(a, arguments[0].shape) for a in evaluate_graph(graph, ())]
