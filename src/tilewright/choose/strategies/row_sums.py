"""The rule for sums of many rows: the lanes of several rows are folded together.

In: a builder, the reduced buffer and, when the epilogue is fused, the buffer of the stage that reads it. Out: steps.
Not its business: several reductions of one row (``rows``), sums of products with few columns (``narrow``).

A mean of 7x7 is four loads, and as many shuffles and additions to fold the lanes of one sum; folded together
(``codegen.llvm.sums``), those of 16 rows take 30 shuffles and 15 additions. A matrix by a vector gains more: all rows
of a block share each load of the vector. Before: ``for row: for k: t[row] += x[row, k] * y[k]``. After: ``for row_o:
for k_o: for row_i (copied): p[row_i, lane] += x[...] * y[...]``, the folds, and the epilogue with rows as lanes.
"""

from __future__ import annotations

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.operands import operands_of, reduced_loops, update_of
from tilewright.choose.strategies.pointwise import GROUPS
from tilewright.choose.strategies.steps import copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import find_body, may_vectorize, nest_with, only_nest, vector_width
from tilewright.core.dims import is_known
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Store, Update
from tilewright.tile.schedule import ScheduleBuilder


def row_sums(b: ScheduleBuilder, machine: Target, reduced: str, root: str | None) -> None:
    """Schedule the sum ``reduced`` together with the stage ``root`` that reads it (None: alone).

    ``ScheduleError`` where it is anything but a sum along rows of known size, whose operands lie one element behind the
    other there.
    """
    if root is None:
        root, reduced = reduced, copied_apart(b, reduced)
    top, update, along = only_nest(b.kernel, root), update_of(b, reduced), reduced_loops(b, reduced)
    width = vector_width(machine, (*top.leaf, update))
    if not top.loops or len(along) != 1 or not all(isinstance(s, Store) for s in top.leaf):
        raise ScheduleError("row_sums", reduced, "no one loop along rows below an assignment")
    row, n = top.loops[-1], along[0].extent
    if not is_known(n) or not is_known(row.extent) or n <= width:
        raise ScheduleError("row_sums", reduced, f"{row.extent} rows of {n}")
    few = machine.partial_sums  # vectors that begin while a sum waits for its last addition
    if row.extent < few * width or width <= GROUPS[-1] or not update.buffer.dtype.is_float:
        raise ScheduleError("row_sums", reduced, f"{row.extent} rows of {update.buffer.dtype}, {width} are a vector")
    row_bytes = n * update.buffer.dtype.n_bytes
    # A block reads as many rows at a time as a vector has lanes. Caches look ahead along so many pages.
    is_apart = width * row_bytes > machine.n_streams * machine.page_bytes
    if is_apart and estimate([x.extent for x in top.loops]) * row_bytes > machine.l2_kept_bytes:
        raise ScheduleError("row_sums", reduced, "long rows from beyond the caches are read one after the other")
    loads = operands_of(b, reduced, root, row.sym)
    if not loads or any(x.step(along[0].sym) != 1 for x in loads) or not any(x.lane_stride for x in loads):
        raise ScheduleError("row_sums", reduced, "not the elements of operands as they lie")
    n_steps, is_shared = -(-n // width), any(x.lane_stride == 0 for x in loads)
    # Of more vectors folding is little of the work, and rows side by side are many streams.
    if n_steps > few and not is_shared:
        raise ScheduleError("row_sums", reduced, f"rows of {n_steps} vectors, which share no operand")
    if not may_vectorize(top.leaf, row.sym):
        raise ScheduleError("row_sums", reduced, "the epilogue has no lanes")
    outer = [x.sym.name for x in top.loops[:-1]]
    # The last block begins within the one before, so that all are full. Rows are copied while they are summed up, and
    # lanes when their sums are added up across and go through the epilogue.
    block, lane = b.split(row.sym.name, width, "shift")
    b.do("kind", lane, "unroll")
    b.do("compute_at", reduced, block, "reg")
    nest = nest_with(find_body(b.kernel, block), reduced, Update)
    partial_sums = b.do("spread", reduced, nest.loops[0].sym.name, along[0].sym.name, width).buffer
    vectors = nest_with(find_body(b.kernel, block), partial_sums, Update).loops[0]
    if n_steps <= few:
        b.do("kind", vectors.sym.name, "unroll")
    b.do("kind", lane, "vector")
    if pays_threads(estimate([x.extent for x in (*top.loops, *along)]), machine, width):
        parallel(b, machine, [*outer, block][:2])
