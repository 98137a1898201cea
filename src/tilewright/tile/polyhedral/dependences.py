"""What in a kernel depends on what, exactly, and what a step of a schedule would break.

In: a ``Kernel``, names of loops. Out: dependences as maps between iterations; the first thing that a step would break,
with iterations that show it. Not its business: the quick checks of the primitives, which tests hold against this.

A dependence is a pair of iterations that touch one element, one of them writing, in the order in which they run. Those
say what may run at one time. A new order may change some of them and no result: a temporary is stored anew in each
iteration. What an order must keep is what each load *sees* (Feautrier, "Dataflow analysis of array and scalar
references", 1991): the store that wrote the element last, and the updates since, in any order where they are one
commutative operation; and what each element of a result holds at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from tilewright.core.compute import Buffer
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel, Role, Space
from tilewright.tile.polyhedral.alone import alone
from tilewright.tile.polyhedral.sets import ElementAccess, Instance, instances

if TYPE_CHECKING:
    import islpy as isl
else:
    from tilewright.tile.polyhedral import isl


@dataclass(frozen=True)
class Dependence:
    """``pairs`` maps iterations of the statement ``source`` to later ones of ``target``. ``kind``: ``flow`` (a write is
    read), ``anti`` (what was read is written), ``output`` (written again).
    """

    kind: str
    buffer: Buffer
    source: int
    target: int
    pairs: isl.Map

    commutes: bool = False
    """Do both update the element, by one operation whose order is free?"""


@dataclass(frozen=True)
class BrokenOrder:
    """What a step would break: ``text`` says it, ``iterations`` are those that show it, values of loops by name."""

    buffer: Buffer
    iterations: tuple[dict[str, int], ...]
    text: str

    def __str__(self) -> str:
        return self.text


@alone
def dependences(kernel: Kernel) -> list[Dependence]:
    """All dependences of the kernel; sizes are parameters. ``ScheduleError`` where something is not affine."""
    return list(dependences_of(instances(kernel)))


def dependences_of(found: Sequence[Instance]) -> Iterator[Dependence]:
    for a, b in product(found, found):
        before = a.time.lex_lt_map(b.time)
        for x, y in product(a.accesses, b.accesses):
            if x.buffer is y.buffer and (x.writes or y.writes):
                pairs = _meeting(x, y).intersect(before)
                if not pairs.is_empty():
                    kind = "output" if x.writes and y.writes else "flow" if x.writes else "anti"
                    commutes = bool(x.op) and x.op == y.op
                    yield Dependence(kind, x.buffer, x.statement, y.statement, pairs, commutes)


def _meeting(x: ElementAccess, y: ElementAccess) -> isl.Map:
    """Iterations of two accesses that touch one element, in whichever order."""
    return x.where.apply_range(y.where.reverse())


# --- steps ----------------------------------------------------------------------------------------------------------


@alone
def why_not_reorder(kernel: Kernel, *loops: str) -> BrokenOrder | None:
    """What breaks when loops of one perfect nest run in the order of ``loops``, outermost first; None when nothing."""

    def moved(instance: Instance) -> isl.Map:
        names = [x.sym.name for x in instance.loops]
        order = iter([n for n in loops if n in names])
        return _permuted(instance, [names.index(next(order) if n in loops else n) for n in names])

    return _first_change(kernel, instances(kernel), moved, f"{', '.join(loops)} in this order")


def _permuted(instance: Instance, order: Sequence[int]) -> isl.Map:
    """The instance's time with the variables of its loops at other depths."""
    n = instance.time.dim(isl.dim_type.out)
    places = list(range(n))
    for depth, old in enumerate(order):
        places[2 * depth + 1] = 2 * old + 1
    outs, ins = ", ".join(f"t{places[k]}" for k in range(n)), ", ".join(f"t{k}" for k in range(n))
    return instance.time.apply_range(isl.Map(f"{{ T[{ins}] -> T[{outs}] }}"))


@alone
def why_not_merge(kernel: Kernel, first: str, second: str) -> BrokenOrder | None:
    """What breaks when two neighbouring loops of equal extent become one, whose body is both bodies in turn."""
    found = instances(kernel)
    a, b = (next(x for x in found if _depth(x, name) is not None) for name in (first, second))
    depth = _depth(a, first)
    assert depth is not None
    if _depth(b, second) != depth or b.path[: depth + 1] != (*a.path[:depth], a.path[depth] + 1):
        raise ScheduleError("merge", f"{first}, {second}", "the loops don't follow each other in one body")
    text = [f"t{k}" for k in range(a.time.dim(isl.dim_type.out))]
    # The second body's statements come behind all of the first one's.
    behind = 1 + max(x.path[depth + 1] for x in found if _depth(x, first) is not None)
    into = [*text[: 2 * depth], str(a.path[depth]), text[2 * depth + 1], f"{text[2 * depth + 2]} + {behind}"]
    moving = isl.Map(f"{{ T[{', '.join(text)}] -> T[{', '.join([*into, *text[2 * depth + 3 :]])}] }}")

    def moved(instance: Instance) -> isl.Map:
        return instance.time.apply_range(moving) if _depth(instance, second) is not None else instance.time

    return _first_change(kernel, found, moved, f"{first} and {second} as one loop")


@alone
def why_not_parallel(kernel: Kernel, loop: str) -> BrokenOrder | None:
    """What breaks when iterations of ``loop`` run at one time; None when they share nothing that one of them writes.

    Each has registers and scratch of its own, so those are shared only where a load sees another iteration's write.
    """
    found = instances(kernel)
    rule = f"iterations of {loop} at one time would share memory"
    private = [p.buffer for p in kernel.places if p.space in (Space.REG, Space.LOCAL)]
    for buffer in private:
        for seen in _seen(found, buffer, [x.time for x in found]):
            crossing = None if seen.reader is None else _apart(found, seen.reader, seen.writer, loop)
            if crossing is not None and not (broken := seen.pairs.intersect(crossing)).is_empty():
                return _shown(
                    found, buffer, broken, (seen.reader, seen.writer), f"{rule}: {{0}} reads what {{1}} writes"
                )
    for d in dependences_of(found):
        crossing = _apart(found, d.source, d.target, loop)
        if d.buffer in private or crossing is None or (broken := d.pairs.intersect(crossing)).is_empty():
            continue
        first, then = {"flow": ("writes", "reads"), "anti": ("reads", "writes"), "output": ("writes", "writes")}[d.kind]
        text = f"{rule}: {{0}} {first} an element of {d.buffer.name} that {{1}} {then}"
        return _shown(found, d.buffer, broken, (d.source, d.target), text)
    return None


def _depth(instance: Instance, loop: str) -> int | None:
    names = [x.sym.name for x in instance.loops]
    return names.index(loop) if loop in names else None


def _apart(found: Sequence[Instance], a: int, b: int, loop: str) -> isl.Map | None:
    """Iterations of two statements that are in different iterations of the loop; None where one is not in it."""
    depth = _depth(found[a], loop)
    if depth is None or _depth(found[b], loop) != depth:
        return None
    place, n = 2 * depth + 1, found[a].time.dim(isl.dim_type.out)
    one, other = [f"a{k}" for k in range(n)], [f"b{k}" for k in range(n)]
    same = [f"{x} = {y}" for x, y in zip(one[:place], other[:place], strict=True)]
    text = " and ".join([*same, f"{one[place]} != {other[place]}"])
    differing = isl.Map(f"{{ T[{', '.join(one)}] -> T[{', '.join(other)}] : {text} }}")
    return found[a].time.apply_range(differing).apply_range(found[b].time.reverse())


# --- what loads see -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """``pairs`` maps iterations of a reading statement to those whose writes they see.

    Without a ``reader`` the elements of a result, as they are when all is done, stand for iterations.
    """

    reader: int | None
    writer: int
    pairs: isl.Map


def _seen(found: Sequence[Instance], buffer: Buffer, times: Sequence[isl.Map], *, at_end: bool = False) -> list[_Seen]:
    """What each load of the buffer sees: writes before it, with no store of the element between. Accesses are exact."""
    accesses = [a for x in found for a in x.accesses if a.buffer is buffer]
    writers = [a for a in accesses if a.writes]
    stores = [a for a in writers if not a.op]

    def before(x: ElementAccess, y: ElementAccess) -> isl.Map:
        """Iterations of ``x`` to those of ``y`` that touched the element earlier."""
        return _meeting(x, y).intersect(times[y.statement].lex_lt_map(times[x.statement]).reverse())

    made = []
    for w in writers:
        hiding = [(s, before(s, w)) for s in stores]
        for r in accesses:
            if not r.writes and not r.op:
                pairs = before(r, w)
                for s, hidden in hiding:
                    pairs = pairs.subtract(before(r, s).apply_range(hidden))
                made.append(_Seen(r.statement, w.statement, pairs))
        if at_end:
            pairs = w.where.reverse()
            for s, hidden in hiding:
                pairs = pairs.subtract(s.where.reverse().apply_range(hidden))
            made.append(_Seen(None, w.statement, pairs))
    return made


def _first_change(
    kernel: Kernel, found: Sequence[Instance], moved: Callable[[Instance], isl.Map], rule: str
) -> BrokenOrder | None:
    """The first load that a new order would let see other writes, or pair of accesses whose order must stay."""
    old, new = [x.time for x in found], [moved(x) for x in found]
    inexact = {a.buffer for x in found for a in x.accesses if not a.is_exact}
    for d in dependences_of(found):
        if d.buffer in inexact or _are_unlike(found, d):
            late = new[d.target].lex_le_map(new[d.source]).reverse()
            if not (broken := d.pairs.intersect(late)).is_empty():
                text = f"{rule} would exchange two iterations: {{0}} touches an element of {d.buffer.name} before {{1}}"
                return _shown(found, d.buffer, broken, (d.source, d.target), text)
    for place in kernel.places:
        if place.buffer in inexact:
            continue
        is_result = place.role is Role.OUT
        kept, made = (_seen(found, place.buffer, times, at_end=is_result) for times in (old, new))
        for a, b in zip(kept, made, strict=True):
            for pairs, verb in ((a.pairs.subtract(b.pairs), "no longer see"), (b.pairs.subtract(a.pairs), "see")):
                if not pairs.is_empty():
                    who = "the end" if a.reader is None else "{0}"
                    text = f"{rule} would let {who} {verb} what {{1}} writes to {place.buffer.name}"
                    return _shown(found, place.buffer, pairs, (a.reader, a.writer), text)
    return None


def _are_unlike(found: Sequence[Instance], d: Dependence) -> bool:
    """Do both update the element, by operations that must keep their order?"""
    ops = [{a.op for a in found[k].accesses if a.buffer is d.buffer and a.writes} for k in (d.source, d.target)]
    return d.kind == "output" and all(op for x in ops for op in x) and (ops[0] != ops[1] or len(ops[0]) > 1)


def first_pair(pairs: isl.Map) -> tuple[dict[str, int], list[int], list[int]]:
    """Numbers for the sets' parameters, by name, and the pair of points that comes first with them."""
    point = pairs.wrap().lexmin().sample_point()

    def values(kind: isl.dim_type) -> list[int]:
        return [point.get_coordinate_val(kind, k).to_python() for k in range(point.get_space().dim(kind))]

    space = point.get_space()
    names = [str(space.get_dim_name(isl.dim_type.param, k)) for k in range(space.dim(isl.dim_type.param))]
    n, both = pairs.dim(isl.dim_type.in_), values(isl.dim_type.set)
    return dict(zip(names, values(isl.dim_type.param), strict=True)), both[:n], both[n:]


def _shown(
    found: Sequence[Instance], buffer: Buffer, pairs: isl.Map, who: tuple[int | None, int], text: str
) -> BrokenOrder:
    """A broken order with the pair of iterations that comes first."""
    n, (_, *values) = pairs.dim(isl.dim_type.in_), first_pair(pairs)
    names = [[x.sym.name for x in found[k].loops] if k is not None else [f"e{d}" for d in range(n)] for k in who]
    points = tuple(dict(zip(x, v, strict=True)) for x, v in zip(names, values, strict=True))
    spelled = [", ".join(f"{name} = {value}" for name, value in point.items()) for point in points]
    return BrokenOrder(buffer, points, text.format(*(f"the iteration ({x})" for x in spelled)))
