"""Steps that many rules take: some that are tried together, and a copy of a reduction that no stage reads.

In: a builder, a buffer. Out: steps, and the name of what is computed now. Not its business: which rule wants them.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.choose.strategies.view import only_nest, statement_of
from tilewright.core.compute import Load
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Store
from tilewright.tile.schedule import ScheduleBuilder


def attempt(b: ScheduleBuilder, action: Callable[[], object]) -> bool:
    """Do ``action``, or nothing at all when one of its steps is not legal."""
    mark = b.mark()
    try:
        action()
    except ScheduleError:
        b.back(mark)
        return False
    return True


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
