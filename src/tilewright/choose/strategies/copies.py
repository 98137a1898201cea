"""The rule for copies that products read: a part is copied just before it is read, where that keeps it in the caches.

In: a builder whose products have their loops, a copy without any. Out: steps. Not its business: which operands are
copied (``relayout``), copies as a whole (``pointwise``), their panels (``panels``).

Before: ``for batch, k, column: T[batch, k, column] = ..; for batch: for panel: for row: .. T[batch, k, panel]``.
After: ``for batch: for panel: (for k, column: T[k, column] = ..; for row: .. T[k, column])``, T in scratch.
``docs/choices.md`` ("Layers that were behind") has what it is worth.

Of an image with a border, over which windows slide, neighbouring parts overlap. It goes to memory and back as a whole,
or a strip at a time, whichever costs less: ``for row: (for k: T[k, row' % 3] = .. where row' is new; for column: ..)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from tilewright.choose.cost.tile import estimate
from tilewright.choose.strategies.ordered import seconds_alone
from tilewright.choose.strategies.pointwise import pointwise
from tilewright.choose.strategies.steps import attempt
from tilewright.choose.strategies.view import only_nest, statement_of
from tilewright.core.compute import Buffer, Const, IndexLike, Inside, Load, Select, Stage
from tilewright.core.estimates import DOUBT
from tilewright.core.expr import Sym, is_nonneg
from tilewright.core.indices import terms_at
from tilewright.target.target import Target
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kind, Loop, Space, Store, Update, walk
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.operands import paths_to
from tilewright.tile.schedule.tree import Nest, find_loop, find_place, most_iterations


def copied(b: ScheduleBuilder, machine: Target, name: str) -> None:
    """Schedule a copy; inside of the outer loops of the products that each read another part of it, if they do.

    As a whole where it fits in the first-level cache, a part does not fit in the second, a part is more than a panel,
    whose rows would be of many pages, its size differs (then it can't be transposed in registers), or anything but
    products reads it.
    """
    if not attempt(b, partial(_where_read, b, machine, name)):
        pointwise(b, machine, name)


def is_bordered(s: Stage) -> bool:
    """Is it elements of one buffer, with a constant around them?"""
    v = s.expr
    return isinstance(v, Select) and isinstance(v.cond, Inside) and isinstance(v.a, Load) and isinstance(v.b, Const)


def bordered(b: ScheduleBuilder, machine: Target, name: str) -> None:
    """Schedule what windows read: each part of it just before they do, where that costs less than all of it at once."""
    start, is_in_groups = b.mark(), _is_in_groups(b, name)
    pointwise(b, machine, name)
    if is_in_groups:  # and have no price before constants lie in groups, too
        return
    whole, steps = b.kernel, b.steps[start[1] :]
    seconds = seconds_alone(whole, machine)
    b.back(start)
    # A step of a sum reads what was stored just before, at other places of the same lines, and waits for it.
    for part in (partial(_where_read, within_sums=False), _in_strips):
        if attempt(b, partial(part, b, machine, name)):
            if seconds_alone(b.kernel, machine) < seconds * (1 - DOUBT):
                return
            b.back(start)
    b.kernel = whole
    b.steps += steps


def _is_in_groups(b: ScheduleBuilder, name: str) -> bool:
    """Do instructions read it that take several elements of a row for each lane, and want them as they lie?"""
    reads = paths_to(b.kernel.body, find_place(b.kernel, name, "copies").buffer, ())
    return any(x.kind in (Kind.MATRIX, Kind.DOT) for path, _ in reads for x in path)


def _in_strips(b: ScheduleBuilder, machine: Target, name: str) -> None:
    """Strips that overlap, as long as a core's own cache keeps them, where it does not keep the whole.

    What the strip before has made is kept (``ring``), or made again where threads share the strips.
    """
    buffer = find_place(b.kernel, name, "copies").buffer
    if _n_bytes(buffer) <= machine.l2_kept_bytes:
        raise ScheduleError("copies", name, "a core's own cache keeps the whole")

    def strip(primitive: str, *where: str) -> None:
        b.do(primitive, name, *where)
        if _n_bytes(find_place(b.kernel, name, "copies").buffer) > machine.l2_kept_bytes:
            raise ScheduleError("copies", name, "a core's own cache does not keep a strip")
        _plain(b, name)
        pointwise(b, machine, name, threads=False)

    around = _outermost(paths_to(b.kernel.body, buffer, ()))
    for loop in (x.sym.name for x in around if _has_sums(b, x, name)):
        if attempt(b, partial(strip, "ring", loop)) or attempt(b, partial(strip, "compute_at", loop, "local")):
            return
    raise ScheduleError("copies", name, "no loop around its readers has strips")


def _has_sums(b: ScheduleBuilder, loop: Loop, name: str) -> bool:
    """Do the sums that read a buffer begin and end in each of the loop's iterations?"""
    body = list(walk(find_loop(b.kernel, loop.sym.name, "copies").body))
    readers = [s for s in body if isinstance(s, Update) and any(x.buffer.name == name for x in loads_of(s))]
    begun = {s.buffer for s in body if isinstance(s, Store)}
    return all(s.buffer in begun for s in readers)


def _n_bytes(buffer: Buffer) -> float:
    return estimate(buffer.shape) * buffer.dtype.n_bytes


def _outermost(reads: Sequence[tuple[tuple[Loop, ...], Load]]) -> list[Loop]:
    """The loops around all reads and outside of any tile."""
    found: list[Loop] = []
    for level, loop in enumerate(reads[0][0] if reads else ()):
        is_around = all(path[level : level + 1] == (loop,) for path, _ in reads)
        if not is_around or loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            break
        found.append(loop)
    return found


def _where_read(b: ScheduleBuilder, machine: Target, name: str, *, within_sums: bool = True) -> None:
    place = find_place(b.kernel, name, "copies")
    readers = [s for s in walk(b.kernel.body) if any(x.buffer is place.buffer for x in loads_of(s))]
    if place.space is not Space.GLOBAL or not readers or not all(isinstance(s, Update) for s in readers):
        raise ScheduleError("copies", name, "not only products read it")
    reads = paths_to(b.kernel.body, place.buffer, ())
    loops = _apart(reads)
    while loops and (_walks_runs(b, name, reads, loops[-1].sym) or not (within_sums or _has_sums(b, loops[-1], name))):
        loops.pop()
    if any(_walks_panels(path[len(loops) :], load) for path, load in reads):
        raise ScheduleError("copies", name, "several panels are read in turn inside of what all readers share")
    n_bytes = _n_bytes(place.buffer)
    part = n_bytes / estimate([x.extent for x in loops])
    if not loops or n_bytes <= machine.l1_bytes or part > machine.l2_kept_bytes:
        raise ScheduleError("copies", name, f"{part:.0f} of {n_bytes:.0f} bytes are read at a time")
    b.do("compute_at", name, loops[-1].sym.name, "local")
    _plain(b, name)
    pointwise(b, machine, name, threads=False)


def _walks_runs(b: ScheduleBuilder, name: str, reads: Sequence[tuple[tuple[Loop, ...], Load]], sym: Sym) -> bool:
    """Does a step of a loop read the next element of every run that is copied? Inside of it would be none left."""
    nest = only_nest(b.kernel, name)
    leaf = statement_of(nest)
    assert isinstance(leaf, Store)
    moved = {at for _, load in reads for at, i in zip(leaf.index, load.index, strict=True) if _step(i, sym) == 1}
    return any(
        stride_along(x.buffer, x.index, loop.sym) == 1
        for x in loads_of(leaf)
        for loop in nest.loops
        if any(_step(i, loop.sym) for i in moved)
    )


def _walks_panels(inner: Sequence[Loop], load: Load) -> bool:
    return any(x.kind in (Kind.SERIAL, Kind.PARALLEL) and _step(load.index[-1], x.sym) for x in inner)


def _plain(b: ScheduleBuilder, name: str) -> None:
    """The copy's loops, which are those of the products' tile, become serial ones, one for each dimension."""
    for loop in only_nest(b.kernel, name).loops:
        if loop.kind is not Kind.SERIAL:
            b.do("kind", loop.sym.name, "serial")
    while pair := _halves(only_nest(b.kernel, name)):
        b.do("fuse", *pair)


def _halves(nest: Nest) -> tuple[str, str] | None:
    """Two loops, one inside of the other, that walk one dimension of what is written as one."""
    leaf = statement_of(nest)
    assert isinstance(leaf, Store)
    for outer, inner in pairwise(nest.loops):
        steps = [(_step(i, outer.sym), _step(i, inner.sym)) for i in leaf.index]
        if any(low and high == low * most_iterations(inner) for high, low in steps):
            return outer.sym.name, inner.sym.name
    return None


def _apart(reads: Sequence[tuple[tuple[Loop, ...], Load]]) -> list[Loop]:
    """The outermost loops around all reads whose iterations read elements that no other iteration does."""
    found: list[Loop] = []
    for level, loop in enumerate(reads[0][0]):
        is_around = all(path[level : level + 1] == (loop,) for path, _ in reads)
        if not is_around or loop.kind not in (Kind.SERIAL, Kind.PARALLEL):
            break
        if not all(_is_alone(path[level + 1 :], loop, load) for path, load in reads):
            break
        found.append(loop)
    if any(x.kind is Kind.PARALLEL for path, _ in reads for x in path[len(found) :]):
        return []  # threads share what is inside of it, too
    return found


def _is_alone(inner: Sequence[Loop], loop: Loop, load: Load) -> bool:
    """Does a step of the loop go, in its one dimension, beyond all that the loops inside of it reach?"""
    moved = [i for i in load.index if _step(i, loop.sym)]
    if len(moved) != 1:
        return False
    reach = sum(abs(_step(moved[0], x.sym)) * (x.extent - 1) for x in inner)
    return is_nonneg(_step(moved[0], loop.sym) - 1 - reach)


def _step(i: IndexLike, sym: Sym) -> int:
    """How far one step of a loop moves an index."""
    return next((c for a, c in terms_at(i) if a is sym or a == sym), 0)
