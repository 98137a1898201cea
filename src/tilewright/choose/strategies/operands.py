"""What rules see of a reduction's operands, and lanes in blocks by how operands repeat along them.

In: a builder, the reduced buffer and the stage that reads it. Out: facts; steps that split the lanes. Not its business:
tiles (``contract``, ``narrow``).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from tilewright.choose.cost.tile import FAR, Operand, estimate
from tilewright.choose.strategies.dots import is_dot
from tilewright.choose.strategies.view import nests, only_nest, statement_of, vector_width
from tilewright.core.compute import Load, symbols_of_value
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known, known
from tilewright.core.expr import Dim, Sym, substitute, symbols
from tilewright.core.indices import chosen, is_chosen, symbols_in
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient, first_offset, period, remainder
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Role, Update
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_place, readers


def own_loops(b: ScheduleBuilder, acc: str) -> list[Loop]:
    """The loops of the update's nest that walk the accumulator."""
    nest, update = nests(b.kernel, acc)[-1], update_of(b, acc)
    used = symbols_in(update.index)
    own = [x for x in nest.loops if x.sym in used]
    if list(nest.loops[: len(own)]) != own:
        raise ScheduleError("contract", acc, "its reduction loops are not innermost")
    return own


def reduced_loops(b: ScheduleBuilder, acc: str) -> list[Loop]:
    """The loops of the update's nest that walk the reduction, inside of all that walk the accumulator."""
    return list(nests(b.kernel, acc)[-1].loops[len(own_loops(b, acc)) :])


def update_of(b: ScheduleBuilder, acc: str) -> Update:
    """The statement that adds to the accumulator."""
    update = statement_of(nests(b.kernel, acc)[-1])
    assert isinstance(update, Update)
    return update


def root_terms(b: ScheduleBuilder, acc: str, root: str) -> dict[Sym, Dim]:
    """The loops that walk the accumulator, in terms of the root's loops."""
    top, update = only_nest(b.kernel, root), update_of(b, acc)
    place = find_place(b.kernel, acc, "contract")
    reads = {x.index for x in readers(top.leaf, place.buffer)}
    if len(reads) != 1:
        raise ScheduleError("contract", acc, f"the epilogue reads it at {len(reads)} places")
    dims: dict[Sym, Dim] = {}
    for own, at in zip(update.index, reads.pop(), strict=True):
        if isinstance(own, Sym) and not is_chosen(at):
            dims[own] = at
        elif own != at and (is_chosen(own) or not is_known(own)):
            raise ScheduleError("contract", acc, f"it is written at {own} and read at {at}")
    return dims


def operands_of(b: ScheduleBuilder, acc: str, root: str, lanes: Sym) -> tuple[Operand, ...]:
    """The update's loads, as offsets in terms of the root's loops. What a run-time index names lies anywhere: as if it
    jumped along all loops that the index depends on, of which the lanes may not be one.
    """
    update = update_of(b, acc)
    dims = root_terms(b, acc, root)
    roles = {p.buffer: p.role for p in b.kernel.places}
    found: list[Operand] = []
    for x in walk_value(update.value):
        if isinstance(x, Load):
            run_time = chosen(x.index)
            offset = first_offset(x.buffer, x.index)
            names = frozenset[Sym]().union(*map(symbols_of_value, run_time))
            for s in sorted(names, key=lambda s: s.name):
                offset = offset + s * FAR
            offset = substitute(offset, dims)
            if any(lanes in symbols(substitute(s, dims)) for s in names):
                raise ScheduleError("contract", acc, "lanes read an operand at run-time indices of their own")
            c = coefficient(offset, lanes)
            is_packed = roles[x.buffer] is Role.CONST and not run_time
            found.append(Operand(offset, known(c, None), is_packed))
    return tuple(found)


def group_size(b: ScheduleBuilder, acc: str, root: str, lanes: Sym) -> int | None:
    """How many neighbouring lanes read the same elements of what they don't walk evenly, a group's input; or None."""
    return _common(period(e, lanes) for e in _uneven(b, acc, root, lanes))


def _uneven(b: ScheduleBuilder, acc: str, root: str, lanes: Sym) -> list[Dim]:
    """The offsets of operands that are not affine in the lanes."""
    return [op.offset for op in operands_of(b, acc, root, lanes) if op.lane_stride is None]


def _common(sizes: Iterable[int | None]) -> int | None:
    """What all of them are, if they are one."""
    found = set(sizes)
    return found.pop() if len(found) == 1 else None


def split_groups(b: ScheduleBuilder, machine: Target, acc: str, root: str) -> None:
    """Lanes in groups that share an operand (a convolution's): no vector holds a part of a group beside another group.

    Then a group of vectors reads one element for all lanes, and a vector of whole groups one for each, by a shuffle.
    Groups of narrow products have no such shuffle: there half a vector is a group of its own, too. So is a smaller
    group where the next one reads far away: elements of more than the two vectors of a shuffle are loaded one by one.
    """
    top = only_nest(b.kernel, root)
    if not top.loops:
        return
    lanes, update = top.loops[-1], update_of(b, acc)
    width, is_narrow = vector_width(machine, (*top.leaf, update)), is_dot(machine, update)
    offsets = _uneven(b, acc, root, lanes.sym)
    size = _common(period(e, lanes.sym) for e in offsets)
    if size is None or width == 1:
        _split_periods(b, acc, root, lanes, width)
        return
    reach = max(estimate([substitute(e, {lanes.sym: size}) - substitute(e, {lanes.sym: 0})]) for e in offsets)
    is_apart = width // size * reach > 2 * width
    block = size if is_apart or size >= (width // 2 if is_narrow else width) else width // size * size
    if (is_narrow or block != width) and estimate([lanes.extent]) > block:
        b.do("split", lanes.sym.name, block)


def _split_periods(b: ScheduleBuilder, acc: str, root: str, lanes: Loop, width: int) -> None:
    """Lanes along which a constant repeats, in blocks after which vectors meet it at the same places again."""
    size = _common(remainder(e, lanes.sym) for e in _uneven(b, acc, root, lanes.sym))
    if size is not None and estimate([lanes.extent]) > (block := lcm(size, width)):
        b.do("split", lanes.sym.name, block)
