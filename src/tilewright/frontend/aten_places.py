"""ATen's calls whose result's size only data decide: where a mask holds, and what stands there.

In: calls, whose results have a symbol of PyTorch's for the unknown size. Out: nodes with a symbol of ours, which the
mask's number of elements bounds; ``fx`` makes the two one. Not its business: assignment by a mask, whose result has
the operand's shape (``aten_index``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Node
from tilewright.core.types import bool_
from tilewright.frontend.aten_call import Call, Result, Unsupported, cast, expand, reshape
from tilewright.frontend.fx_symbols import is_decided_by_data

Convert = Callable[[Call], Result]


def places(c: Call, mask: Node) -> Node:
    """Where ``mask`` holds, ``i64[n, rank]`` in row-major order; ``n`` is the call's data-dependent size."""
    unknown = sorted({d.name for d in c.shape if isinstance(d, Sym) and is_decided_by_data(d)})
    if len(unknown) != 1:
        raise Unsupported(f"a result {c.out} of which data decide a size that PyTorch fixes", "use torch.where")
    found, _ = c.b.results(c.b(ops.argwhere, mask, count=unknown[0]))
    return found


def _nonzero(c: Call) -> Node:
    x = c.tensor("self")
    if not x.shape:
        return reshape(c.b, places(c, reshape(c.b, x, (1,))), c.shape)
    return places(c, x)


def _masked_select(c: Call) -> Node:
    x, mask = c.tensor("self"), c.tensor("mask", bool_)
    shape = _broadcast(c, x, mask)
    at = places(c, reshape(c.b, expand(c.b, mask, shape), (_count(c, shape),)))
    return c.b(ops.gather_nd, reshape(c.b, expand(c.b, x, shape), (_count(c, shape),)), at)


def _broadcast(c: Call, x: Node, mask: Node) -> tuple[Dim, ...]:
    return c.b(ops.logical_and, cast(c.b, x, bool_), mask).shape


def _count(c: Call, shape: tuple[Dim, ...]) -> Dim:
    n: Dim = 1
    for d in shape:
        n = n * d
    return n


TABLE: Mapping[str, Convert] = {"nonzero.default": _nonzero, "masked_select.default": _masked_select}
