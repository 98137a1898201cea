"""The rule for plain stages that read each other's results: a strip of the last one's rows at a time.

In: a builder, plain stages. Out: steps for the last of them and for those before it that a strip holds; a
``ScheduleError`` where no strip is cheaper than whole results. Not its business: stages that sum (``rows``,
``contract``), stages in loops whose order counts.

Before: a nest per stage, over the whole of its result, which the next stage reads again from far away. After: ``for
strip (parallel): the rows of each stage that the strip needs``. What lies between stages exists for a strip's rows
only, in a near cache. Rows that two strips need, as a stencil's do, are computed for both: longer strips compute fewer
rows twice and hold more, and so does each further stage. In a long strip rows slide instead: ``for row: a row of each
stage``, where a row takes the place of one that no later row reads (``slide``). A price of each form decides, for one
stage more at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tilewright.choose.cost.price import price_of
from tilewright.choose.cost.tile import estimate
from tilewright.choose.strategies.ordered import assumed
from tilewright.choose.strategies.pointwise import pointwise
from tilewright.choose.strategies.view import only_nest
from tilewright.core.compute import Computation, Stage, buffers_of_value, every_stage
from tilewright.core.dims import is_known
from tilewright.core.estimates import DOUBT
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kind
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place, writers

ROWS = (4, 8, 16, 32)
SLIDING_ROWS = (64, 256)
"""Of strips whose rows slide: few enough that threads have several, and many to the few that are computed twice."""


class StripForm(NamedTuple):
    """How many rows a strip has, and whether it goes through them one by one."""

    rows: int
    slides: bool


def strips(
    b: ScheduleBuilder, machine: Target, root: Stage, plain: Sequence[Stage], computation: Computation
) -> list[Stage]:
    """``for y, x: a; for y, x: b of a`` -> ``for strip of y: (for rows, x: a; for rows, x: b)``, if that is cheaper.

    Gives the stages that are in strips, of which ``root`` is the last; the others of ``plain`` may be.
    """
    mark, group = b.mark(), [root]
    form: StripForm | None = None
    refused: set[int] = set()
    # A result that the second-level cache holds is near as it is.
    large = [x for x in plain if estimate(x.out.shape) * x.out.dtype.n_bytes > machine.l2_bytes]
    if _next(group, large, computation, refused) is None:
        raise ScheduleError("strips", root.out.name, "it reads no large result that it alone needs")
    least = _whole(b, machine, root)
    while (s := _next(group, large, computation, refused)) is not None:
        names = [x.out.name for x in (s, *group)]
        # A stage more has more rows to compute twice, which longer strips do less, and to hold, which shorter ones do.
        found = {f: _priced(b, machine, names, f) for f in _forms(form)}
        best = min(found, key=lambda f: found[f])
        if found[best] < (least + _whole(b, machine, s)) * (1 - DOUBT):
            group, form, least = [s, *group], best, found[best]
        else:
            refused.add(id(s))
    if form is None:
        raise ScheduleError("strips", root.out.name, "no strip of rows is cheaper than whole results")
    b.back(mark)
    _in_strips(b, machine, [x.out.name for x in group], form)
    return group


def _forms(before: StripForm | None) -> list[StripForm]:
    """Those to price for one stage more: strips of about as many rows as before, and longer ones whose rows slide.

    What whole strips compute twice grows with each stage, so rows that slide go on sliding.
    """
    if before is not None and before.slides:
        return [before]
    near = [n for n in ROWS if before is None or before.rows <= 2 * n <= 4 * before.rows]
    return [*(StripForm(n, False) for n in near), *(StripForm(n, True) for n in SLIDING_ROWS)]


def _next(
    group: Sequence[Stage], plain: Sequence[Stage], computation: Computation, refused: set[int]
) -> Stage | None:  # fmt: skip
    """The latest stage before a group whose result the group alone reads."""
    inside, stages = {id(x) for x in group}, list(every_stage(computation.items))
    for s in reversed(plain):
        if id(s) in inside or id(s) in refused or s.out not in computation.temps or len(s.outs) != 1:
            continue
        readers = {id(x) for x in stages if any(s.out in buffers_of_value(v) for v in x.values)}
        makers = [x for x in stages if s.out in x.outs]
        if readers and readers <= inside and len(makers) == 1:
            return s
    return None


def _whole(b: ScheduleBuilder, machine: Target, s: Stage) -> float:
    """The price of a stage by itself."""
    mark = b.mark()
    pointwise(b, machine, s.out.name)
    seconds = _seconds(b, machine, [s.out.name])
    b.back(mark)
    return seconds


def _priced(b: ScheduleBuilder, machine: Target, names: Sequence[str], form: StripForm) -> float:
    """The price of strips; infinite where they are not legal."""
    mark = b.mark()
    try:
        _in_strips(b, machine, names, form)
        return _seconds(b, machine, names)
    except ScheduleError:
        return float("inf")
    finally:
        b.back(mark)


def _in_strips(b: ScheduleBuilder, machine: Target, names: Sequence[str], form: StripForm) -> None:
    loops, rows = only_nest(b.kernel, names[-1]).loops, form.rows
    if len(loops) < 2 or any(x.kind is not Kind.SERIAL for x in loops):
        raise ScheduleError("strips", names[-1], "it has no rows")
    along = loops[-2]
    if is_known(along.extent) and along.extent < 2 * rows:
        raise ScheduleError("strips", names[-1], f"{along.extent} rows are no strips of {rows}")
    strip, inner = b.split(along.sym.name, rows)
    outer = [x.sym.name for x in loops[:-2]]
    if outer:
        b.do("reorder", strip, *outer, inner, loops[-1].sym.name)
    # Iterations are told to be independent while the strip's own results are not in them yet.
    b.do("kind", strip, "parallel")
    for name in reversed(names[:-1]):
        b.do("compute_at", name, strip, "local")
    if form.slides:
        b.do("slide", *[s.loop.sym.name for s in find_loop(b.kernel, strip, "strips").body if isinstance(s, For)])
    for name in names:
        pointwise(b, machine, name, threads=False)


def _seconds(b: ScheduleBuilder, machine: Target, names: Sequence[str]) -> float:
    """The price of the nests that write the buffers, as if the kernel had these alone, for one thread and for all."""
    places = [find_place(b.kernel, name, "strips").buffer for name in names]
    kernel = replace(b.kernel, body=tuple(s for s in b.kernel.body if any(writers((s,), p) for p in places)))
    counts = sorted({1, machine.n_cores})
    return prod(price_of(kernel, machine, assumed(kernel), n).seconds for n in counts) ** (1 / len(counts))
