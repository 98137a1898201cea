"""The rule for windows over padded planes: each plane is padded where its results are made, in a cache.

In: a builder and the buffers of the stages: the padded planes, the sums over windows and, when the epilogue is fused,
the buffer of the stage that reads those. Out: steps. Not its business: register tiles (``contract``).

A depthwise convolution of images in N, C order. Before: ``for plane: for row, column: P[plane, row, column] = ..`` over
all planes, then the windows. After: ``for plane: (P[row, column] = ..; the windows)``, in scratch of one plane.
"""

from __future__ import annotations

from tilewright.choose.cost.tile import estimate, pays_threads
from tilewright.choose.strategies.contract import contract
from tilewright.choose.strategies.operands import reduced_loops, update_of
from tilewright.choose.strategies.pointwise import pointwise
from tilewright.choose.strategies.steps import copied_apart
from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import nests, only_nest
from tilewright.core.indices import symbols_at
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder


def plane(b: ScheduleBuilder, machine: Target, names: list[str]) -> None:
    """Schedule the stages plane by plane. ``ScheduleError`` where planes are too large for a part of the near cache."""
    padded, window, *roots = names
    root = roots[0] if roots else window
    if not roots:
        window = copied_apart(b, window)
    reduced = {x.sym for x in reduced_loops(b, window)}
    (load,) = [x for x in loads_of(update_of(b, window)) if x.buffer.name == padded]
    n_slid = sum(1 for i in load.index if symbols_at(i) & reduced)
    loops = only_nest(b.kernel, root).loops
    outer = [x.sym.name for x in loops[: len(loops) - n_slid]]
    size = estimate(load.buffer.shape[len(load.index) - n_slid :]) * load.buffer.dtype.n_bytes
    if not outer or size > machine.l2_part_bytes:
        raise ScheduleError("plane", padded, f"a plane of {size:.0f} bytes")
    work = estimate([x.extent for x in (*loops, *reduced_loops(b, window))])
    own = [x.sym for x in nests(b.kernel, window)[-1].loops if x.sym not in reduced]
    walked = {s for i in load.index for s in symbols_at(i)}
    around = [name for name, sym in zip(outer, own, strict=False) if sym in walked]
    b.do("compute_at", window, outer[-1], "local")
    if around:  # a plane that several channels read is made once for all of them
        b.do("compute_at", padded, around[-1], "local")
    contract(b, machine, window, root, threads=False)
    pointwise(b, machine, padded, threads=False)
    if pays_threads(work, machine, machine.lanes(load.dtype)):
        parallel(b, machine, outer[:2])
