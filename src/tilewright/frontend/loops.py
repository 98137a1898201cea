"""A loop of a known number of trips, which frontends write where an algorithm goes step by step.

In: values that the trips change, values that they only read, and a function that writes one trip. Out: the values after
the last trip. Not its business: loops of programs (each frontend's ``control``), and loops that end by a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, i64
from tilewright.frontend.nodes import dim_scalar

Step = Callable[[Builder, Node, Sequence[Node], Sequence[Node]], Sequence[Node]]
"""``step(builder, number of the trip, carried values, fixed values)``: the carried values after the trip."""


def repeated(
    b: Builder, name: str, trips: Dim, carried: Sequence[Node], fixed: Sequence[Node], step: Step
) -> Sequence[Node]:
    """The ``carried`` values after ``trips`` steps; ``name`` is that of the body's graph."""
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    now = [pool.input(f"carried_{k}", x.type) for k, x in enumerate(carried)]
    read = [pool.input(f"fixed_{k}", x.type) for k, x in enumerate(fixed)]
    after = tuple(step(inner, i, now, read))
    names = ("going_on", *(f"after_{k}" for k in range(len(after))))
    body = Graph(name, pool, (i, going, *now, *read), (going, *after), names)
    operands = (dim_scalar(b, trips, i64), b.const(True, bool_), *carried, *fixed)
    return b.results(b(ops.loop, *operands, body=body, n_carried=len(carried)))
