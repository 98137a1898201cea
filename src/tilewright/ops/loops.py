"""A loop of a known number of trips, as whoever writes an algorithm that goes step by step makes it.

In: values that the trips change, values that they only read, and a function that writes one trip. Out: the values after
the last trip, and rows of all trips. Not its business: loops of programs (each frontend's ``control``), and loops that
end by a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, i64

Step = Callable[[Builder, Node, Sequence[Node], Sequence[Node]], Sequence[Node]]
"""``step(builder, number of the trip, carried values, fixed values)``: the carried values after the trip."""
Rows = Callable[[Builder, Node, Sequence[Node], Sequence[Node]], tuple[Sequence[Node], Sequence[Node]]]
"""As ``Step``: the carried values after the trip, and a row of each stack."""


def repeated(
    b: Builder, name: str, trips: Dim, carried: Sequence[Node], fixed: Sequence[Node], step: Step
) -> Sequence[Node]:
    """The ``carried`` values after ``trips`` steps; ``name`` is that of the body's graph."""
    return stacked(b, name, trips, carried, fixed, lambda *given: (step(*given), ()))[0]


def stacked(
    b: Builder, name: str, trips: Dim, carried: Sequence[Node], fixed: Sequence[Node], step: Rows
) -> tuple[Sequence[Node], Sequence[Node]]:
    """The ``carried`` values after ``trips`` steps, and the rows of all steps, stacked along a first axis."""
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    now = [pool.input(f"carried_{k}", x.type) for k, x in enumerate(carried)]
    read = [pool.input(f"fixed_{k}", x.type) for k, x in enumerate(fixed)]
    after, rows = step(inner, i, now, read)
    outputs = (going, *after, *rows)
    body = Graph(
        name, pool, (i, going, *now, *read), outputs, ("going_on", *(f"y{k}" for k in range(len(outputs) - 1)))
    )
    number = b.const(trips, i64) if is_known(trips) else b(ops.reshape, b(ops.dim_values, dims=(trips,)), shape=())
    operands = (number, b.const(True, bool_), *carried, *fixed)
    form = {"length": trips} if rows else {}
    found = b.results(b(ops.loop, *operands, body=body, n_carried=len(carried), **form))
    return found[: len(carried)], found[len(carried) :]
