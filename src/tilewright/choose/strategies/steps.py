"""Steps that many rules take: some that are tried together, and a copy of a reduction that no stage reads.

In: a builder, a buffer. Out: steps, and the name of what is computed now. Not its business: which rule wants them.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.choose.strategies.view import may_vectorize, only_nest, statement_of
from tilewright.core.compute import Load
from tilewright.core.dims import is_known, known_multiple
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Store
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, nest_of


def attempt(b: ScheduleBuilder, action: Callable[[], object]) -> bool:
    """Do ``action``, or nothing at all when one of its steps is not legal."""
    mark = b.mark()
    try:
        action()
    except ScheduleError:
        b.back(mark)
        return False
    return True


def split_whole(b: ScheduleBuilder, loop: str, size: int) -> tuple[str, str]:
    """Split a loop so that every part is whole, the last one by what others do too; where that may not be, ragged."""
    if not known_multiple(find_loop(b.kernel, loop, "split").loop.extent, size):
        mark = b.mark()
        try:
            return b.split(loop, size, "shift")
        except ScheduleError:
            b.back(mark)
    return b.split(loop, size)


def copied_apart(b: ScheduleBuilder, reduced: str) -> str:
    """Give a reduction that no stage reads a copy as its root; the name of what is reduced then."""
    b.do("cache", reduced)
    for loop in only_nest(b.kernel, reduced).loops[:-1]:
        if loop.extent == 1:
            b.do("unit", loop.sym.name)
    return cached_name(b, reduced)


def cached_name(b: ScheduleBuilder, root: str) -> str:
    """What ``cache`` called the buffer that ``root`` now copies."""
    leaf = statement_of(only_nest(b.kernel, root))
    assert isinstance(leaf, Store) and isinstance(leaf.value, Load)
    return leaf.value.buffer.name


def follow(leaf: Store, outer: Loop, inner: Loop) -> bool:
    """Do the elements that ``leaf`` writes lie one behind the other along both loops, row after row?"""
    return [stride_along(leaf.buffer, leaf.index, x.sym) for x in (outer, inner)] == [inner.extent, 1]


def pair_with_rows(b: ScheduleBuilder, row: str, lanes: str, width: int) -> None:
    """Vectors that hold several rows of a few lanes each, instead of one: ``for row: for lane`` -> ``for block: for row
    (lanes): for lane``. Nothing where two rows don't fit in ``width`` lanes, or don't follow each other in memory.
    """
    outer, inner = find_loop(b.kernel, row, "pair_with_rows"), find_loop(b.kernel, lanes, "pair_with_rows").loop
    leaf, n = statement_of(nest_of(outer)), inner.extent
    if not is_known(n) or 2 * n > width or not isinstance(leaf, Store) or not follow(leaf, outer.loop, inner):
        return
    if all(may_vectorize((leaf,), x) for x in (outer.loop.sym, inner.sym)):
        b.do("kind", b.split(row, width // n)[1], "vector")
