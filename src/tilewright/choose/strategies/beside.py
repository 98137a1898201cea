"""The rule for two products in a serial loop that share nothing: they run beside each other, in one loop.

In: the clusters of a serial loop's body; a builder. Out: the vectors of both tiles; steps. Not its business: each
product's own schedule (``contract``), which product stands in whose loop (``ops.recurrence``).

A product of one row reads every weight once, at the speed of a cache, and multiplies half of the time at most; one of a
block of rows multiplies all the time and reads little. With both in one loop over the reduction, a machine that
executes out of order has weights on the way while it multiplies. ``docs/choices.md`` ("Recurrent scans") has
where it does not pay.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.choose.clusters import Cluster, ClusterKind
from tilewright.choose.cost.tile import WORK_PER_BYTE, pays_threads
from tilewright.choose.strategies.contract import contract
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body
from tilewright.core.compute import Buffer, Load, Stage
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kind
from tilewright.tile.schedule import ScheduleBuilder


@dataclass(frozen=True)
class ProductPair:
    """Two neighbouring clusters that start with a product each; what follows the products is not for this rule.

    ``vectors`` maps the constant that each of them reads to the vectors of its tile, so that both have equally many.
    """

    clusters: tuple[Cluster, Cluster]
    vectors: dict[Buffer, int]
    work: float


@dataclass(frozen=True)
class _Product:
    weights: Buffer
    rows: int
    columns: int
    depth: int


def pairs(clusters: Sequence[Cluster], machine: Target, constants: Container[Buffer]) -> Iterator[ProductPair]:
    """Neighbours that this rule takes; at most one pair for a cluster."""
    taken: Cluster | None = None
    for one, other in pairwise(clusters):
        first, second = _product(one, constants), _product(other, constants)
        if (
            one is taken
            or first is None
            or second is None
            or first.depth != second.depth
            or not _share_nothing(one, other)
        ):
            continue
        streamed, block = sorted((first, second), key=lambda p: p.rows)
        vectors = _vectors(streamed, block, machine, machine.lanes(one.root.out.dtype))
        if vectors is not None:
            taken = other
            work = _work(first) + _work(second)
            yield ProductPair((one, other), {streamed.weights: vectors[0], block.weights: vectors[1]}, work)


def _work(p: _Product) -> float:
    """In operations, or what its weights take to arrive."""
    return p.columns * p.depth * max(float(p.rows), p.weights.dtype.n_bytes * WORK_PER_BYTE)


def _product(cluster: Cluster, constants: Container[Buffer]) -> _Product | None:
    """What a cluster multiplies, where it is rows by a constant and all sizes are numbers."""
    s = cluster.stages[0]
    if cluster.kind is not ClusterKind.CONTRACT or s.reduction is None or len(s.reduction.axes) != 1 or len(s.axes) > 2:
        return None
    weights = [x.buffer for x in walk_value(s.expr) if isinstance(x, Load) and x.buffer in constants]
    rows, columns, depth = (s.axes[0].extent if len(s.axes) > 1 else 1), s.axes[-1].extent, s.reduction.axes[0].extent
    if len(weights) != 1 or not is_known(rows) or not is_known(columns) or not is_known(depth):
        return None
    return _Product(weights[0], rows, columns, depth)


def _share_nothing(one: Cluster, other: Cluster) -> bool:
    made = {b for s in one.stages for b in s.outs}
    return not made & {b for s in other.stages for b in _touched(s)}


def _touched(s: Stage) -> set[Buffer]:
    values = [*s.exprs, *(s.reduction.init if s.reduction else ())]
    return {*s.outs, *(x.buffer for v in values for x in walk_value(v) if isinstance(x, Load))}


def _vectors(streamed: _Product, block: _Product, machine: Target, width: int) -> tuple[int, int] | None:
    """Vectors of both tiles that give equally many tiles and fit the registers together; the most sums win."""
    if streamed.rows != 1 or block.rows == 1:
        return None
    for own in range(machine.waiting_sums, 1, -1):
        n, rest = divmod(streamed.columns, own * width)
        if rest or n < 2 or block.columns % (n * width):
            continue
        other = block.columns // (n * width)
        if own + block.rows * other + other + 2 <= machine.n_vector_registers:
            return own, other
    return None


def beside(b: ScheduleBuilder, machine: Target, pair: ProductPair) -> None:
    """Schedule both products; then one loop over tiles, and one over the reduction, for the two."""
    first, second = (
        contract(b, machine, c.stages[0].out.name, None, threads=False, vectors=pair.vectors) for c in pair.clusters
    )
    b.do("merge", *first, *second)
    reduced = [s.loop.sym.name for s in find_body(b.kernel, first[0]) if isinstance(s, For) and _is_serial(s)]
    if len(reduced) != 2:
        raise ScheduleError("beside", first[0], f"{len(reduced)} serial loops in a tile, not one for each product")
    b.do("merge", *reduced)
    if pays_threads(pair.work, machine, machine.lanes(pair.clusters[0].stages[0].out.dtype)):
        parallel(b, machine, first)


def _is_serial(loop: For) -> bool:
    return loop.loop.kind is Kind.SERIAL
