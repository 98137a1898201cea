"""The rule for a nest whose short loops choose among values made of the same elements: all of them at one time.

``out[k, j] = (a[j] + b[j] if k == 0 else a[j] - b[j])``, and so every pass of a Fourier transform: the loop ``k`` is
copied inside of vectors of ``j``, each copy knows its value, and what copies share is computed once for a vector
(``codegen.llvm.shared``).

In: a builder and a nest. Out: steps. Not its business: which expression is best (``ops.butterflies``).
"""

from __future__ import annotations

from tilewright.choose.strategies.threads import parallel
from tilewright.choose.strategies.view import may_vectorize
from tilewright.core.compute import Inside, Load, Select, Value, symbols_of_value, walk
from tilewright.core.dims import is_known, known_at_most
from tilewright.core.expr import symbols
from tilewright.target.target import Target
from tilewright.tile.ir import Store
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest


def choosing_loops(nest: Nest, leaf: Store) -> list[str]:
    """The loops of a known extent that choose the value and are no part of what is read."""
    if not isinstance(leaf.value, Select) or not isinstance(leaf.value.cond, Inside):
        return []
    asked = {s for v in _choices(leaf.value) for e in v.exprs for s in symbols(e)}
    read = {s for v in walk(leaf.value) if isinstance(v, Load) for s in symbols_of_value(v)}
    return [x.sym.name for x in nest.loops[:-1] if x.sym in asked - read and is_known(x.extent)]


def _choices(v: Value) -> list[Inside]:
    """What chooses, from the top down to the first other value."""
    if not isinstance(v, Select) or not isinstance(v.cond, Inside):
        return []
    return [v.cond, *_choices(v.a), *_choices(v.b)]


def butterflies(
    b: ScheduleBuilder, machine: Target, nest: Nest, choosing: list[str], width: int, threads: bool
) -> None:
    """Copy ``choosing`` inside of vectors along the last loop."""
    *outer, last = (x.sym.name for x in nest.loops)
    outer = [name for name in outer if name not in choosing]
    inner, last_loop = [last], nest.loops[-1]
    if width == 1 or not may_vectorize(nest.leaf, last_loop.sym):
        outer, inner = [*outer, last], []
    elif known_at_most(last_loop.extent, width):
        b.do("kind", last, "vector")
    else:
        vectors, lanes = b.split(last, width)
        b.do("kind", lanes, "vector")
        outer, inner = [*outer, vectors], [lanes]
    for name in choosing:
        b.do("kind", name, "unroll")
    b.do("reorder", *outer, *inner, *choosing)
    if threads:
        parallel(b, machine, outer[:2])
