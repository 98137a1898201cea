"""The strategy for sums of a thread's own: each thread has its sum in registers, and writes it once.

In: a builder, a GPU, the buffer of a reduction and, where there is one, of the plain stage that reads it. Out: a grid.
Not its business: sums long enough for a block (``rows``), or whose operands are shared (``products``).

Before: ``Y[i] = 0``; ``for i: for k: Y[i] += f(i, k)``. After: ``for i_o (block): for i_i (thread): if inside(..):
s = 0; for k: s += f(i, k); Y[i] = s``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.choose.strategies.gpu.elements import elements, inner_body
from tilewright.choose.strategies.steps import cached_name
from tilewright.choose.strategies.view import nest_with, only_nest
from tilewright.core.dims import is_known
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind, Update
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, nest_of


def sums(b: ScheduleBuilder, gpu: Gpu, buffers: Sequence[str]) -> None:
    """Schedule a reduction, and the stage that reads it, as one grid."""
    *temps, root = buffers
    if len(temps) > 1:
        raise ScheduleError("sums", root, "more than one sum")
    if not temps:
        b.do("cache", root)
        temps = [cached_name(b, root)]
    loops = only_nest(b.kernel, root).loops
    if not loops:
        raise ScheduleError("sums", root, "there is one sum only")
    elements(b, gpu, loops[0].sym.name)
    thread = [x for x in only_nest(b.kernel, root).loops if x.kind is Kind.THREAD]
    if not thread:
        raise ScheduleError("sums", root, "its elements are one thread's")
    in_registers(b, gpu, temps[0], thread[-1].sym.name)


def in_registers(b: ScheduleBuilder, gpu: Gpu, buffer: str, thread: str) -> None:
    """The sums of a thread's elements in its registers; a loop over their terms has several accesses on their way."""
    lanes = b.do("compute_at", buffer, thread, "reg").loops
    for name in lanes:  # of what starts the sums, and of what adds to them
        inside = [x.sym.name for x in nest_of(find_loop(b.kernel, name, "sums")).loops[1:]]
        if inside:
            b.do("kind", name, "serial")
            b.do("reorder", *inside, name)
            b.do("kind", name, "vector")
    nest = nest_with(inner_body(b, thread), buffer, Update)
    term = [x for x in nest.loops if x.sym.name not in lanes][-1]
    if not is_known(term.extent) or term.extent > gpu.thread_accesses:
        b.do("kind", b.split(term.sym.name, gpu.thread_accesses)[1], "unroll")
    else:
        b.do("kind", term.sym.name, "unroll")
