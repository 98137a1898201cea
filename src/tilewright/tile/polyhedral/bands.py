"""Loops that may be exchanged and tiled, found in the dependences of a nest by the method of Pluto.

In: a ``Kernel`` whose body is one nest. Out: ``Bands``: new loops, each an affine function of a statement's old ones,
in groups whose loops may run in any order and be tiled together. Not its business: which order and which tiles
(``orders``), loops again (``emitted``).

The functions are those that make dependences short, one loop after the other, such that none points backwards along
any of the group: an integer linear program (Bondhugula, Hartono, Ramanujam and Sadayappan, "A practical automatic
polyhedral parallelizer and locality optimizer", PLDI 2008), which ``isl`` builds and solves. A stencil's loops over
space come out skewed along time, so that time is one more loop to tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, Kind, Prefetch, walk
from tilewright.tile.polyhedral.cuts import cut
from tilewright.tile.polyhedral.dependences import Dependence, dependences_of
from tilewright.tile.polyhedral.isl import LateNames
from tilewright.tile.polyhedral.sets import Instance, instances, large_numbers, parameters

if TYPE_CHECKING:
    import islpy as isl
else:
    from tilewright.tile.polyhedral import isl

OPERATIONS = 1000 * EFFORT.nodes
"""Of ``isl`` for one nest: a program that needs more would take seconds, and its nest stays as it is."""
TABLEAU = EFFORT.nodes * EFFORT.listed
"""Numbers in the integer program, which one operation of ``isl`` may walk several times: seven statements in four or
five loops, of 70 pieces of dependences, are 43,000 numbers and take 6 to 25 seconds; heat in space's three dimensions
is 7,000."""
LARGEST = EFFORT.nodes
"""Of the numbers in a new loop's function: how often an old loop counts, and how far a statement is moved. Without a
limit they may grow for hours in a program of few operations, which are what ``isl`` counts."""
_TREE = LateNames("schedule_node_type")
Lines: TypeAlias = "Mapping[int, isl.Map]"
"""What a new loop counts: for each statement, by number, a map from its iterations to one number."""


@dataclass(frozen=True)
class Band:
    """New loops, outermost first, that may run in any order; ``number`` is its place in the text of the tree.

    One that ``is_written`` is a loop of the program that stays, since the integer program round it was too large.
    """

    number: int
    loops: tuple[Lines, ...]
    is_written: bool = False


Path = tuple[int | Band, ...]
"""Bands and places between them, from the outside in."""


@dataclass(frozen=True)
class Bands:
    """What is new: for each statement the bands that it is in and its places between them, outermost first."""

    instances: tuple[Instance, ...]
    parameters: tuple[Dim, ...]
    """What the sets call ``n0``, ``n1``, ...: sizes, and numbers in whose place there could be others."""
    kept: tuple[Dependence, ...]
    """Pairs of iterations whose order must stay."""
    commuting: tuple[Dependence, ...]
    """Updates of one element by one operation: they may come in any order, and not at one time."""
    bands: tuple[Band, ...]
    paths: Mapping[int, Path]

    def around(self, band: Band) -> Bands:
        """The statements that are in a band, as if there were no others."""
        paths = {k: path for k, path in self.paths.items() if band in path}
        kept, commuting = (
            tuple(d for d in found if d.source in paths and d.target in paths) for found in (self.kept, self.commuting)
        )
        return replace(self, kept=kept, commuting=commuting, paths=paths)


def bands_of(nest: Kernel, *, is_fused: bool) -> Bands:
    """New loops of the nest. ``is_fused``: statements share loops where dependences let them, and not only where they
    must.

    ``ScheduleError`` where an index or an extent is not affine, under conditions, of statements that never run, or
    where it takes too long.
    """
    for s in walk(nest.body):
        if isinstance(s, If | Prefetch) or (isinstance(s, For) and s.loop.kind is not Kind.SERIAL):
            raise ScheduleError("resequence", nest.name, "only serial loops around stores can be taken apart")
    numbers = large_numbers(nest)
    found = cut(instances(nest, numbers))
    if any(x.domain.is_empty() for x in found):  # a schedule of isl's leaves such a statement out
        raise ScheduleError("resequence", nest.name, "one of its statements is never run")
    kept, commuting = _sorted(found)
    with _limited(found[0].domain.get_ctx(), is_fused=is_fused):
        made = _TreeWalk(found, is_fused)
        made.part(kept, {k: () for k in range(len(found))})
    return Bands(found, (*parameters(nest), *numbers), kept, commuting, tuple(made.bands), made.paths)


def nest_alone(kernel: Kernel, nest: For) -> Kernel:
    """The kernel as if it had this nest alone."""
    return replace(kernel, body=(nest,))


def _sorted(found: Sequence[Instance]) -> tuple[tuple[Dependence, ...], tuple[Dependence, ...]]:
    """Dependences whose order must stay, and those between updates that commute."""
    kept: list[Dependence] = []
    commuting: list[Dependence] = []
    for d in dependences_of(found):
        (commuting if d.commutes else kept).append(d)
    return tuple(kept), tuple(commuting)


@contextmanager
def _limited(context: isl.Context, *, is_fused: bool) -> Iterator[None]:
    """Let ``isl`` use so many operations, and fuse or not; its options are those of all that use the context."""
    before = context.get_schedule_serialize_sccs(), context.get_max_operations()
    largest = context.get_schedule_max_coefficient(), context.get_schedule_max_constant_term()
    context.set_schedule_max_coefficient(LARGEST)
    context.set_schedule_max_constant_term(LARGEST)
    context.set_schedule_serialize_sccs(0 if is_fused else 1)
    context.reset_operations()
    context.set_max_operations(OPERATIONS)
    try:
        yield
    except isl.Error as e:
        raise ScheduleError("resequence", "", f"its integer program is too large or has no solution: {e}") from e
    finally:
        context.set_schedule_max_coefficient(largest[0])
        context.set_schedule_max_constant_term(largest[1])
        context.set_schedule_serialize_sccs(before[0])
        context.reset_operations()
        context.set_max_operations(before[1])


def _schedule(found: Iterable[Instance], kept: Sequence[Dependence], n_fixed: int) -> isl.Schedule:
    """Of statements in one iteration of their ``n_fixed`` outermost loops, which are parameters."""
    domain, order, statements = isl.UnionSet("{ }"), isl.UnionMap("{ }"), list(found)
    if len(kept) > EFFORT.listed:
        raise ScheduleError("resequence", "", f"it has {len(kept)} dependences, more than {EFFORT.listed}")
    for x in statements:
        domain = domain.union(isl.UnionSet.from_set(x.domain.intersect(_fixed(x.domain, n_fixed))))
    for d in kept:
        order = order.union(isl.UnionMap.from_map(d.pairs))
    order = order.intersect_domain(domain).intersect_range(domain)
    n_rows = sum(len(piece.get_constraints()) for d in kept for piece in d.pairs.get_basic_maps())
    n_columns = sum(x.domain.dim(isl.dim_type.set) + 1 for x in statements)
    if n_rows * n_columns > TABLEAU:
        raise ScheduleError("resequence", "", f"its integer program has {n_rows} rows of {n_columns} numbers")
    asked = isl.ScheduleConstraints.on_domain(domain).set_validity(order).set_proximity(order).set_coincidence(order)
    return asked.compute_schedule()


def _fixed(domain: isl.Set, n: int) -> isl.Set:
    """Iterations whose outermost ``n`` loops are at parameters ``o0``, ``o1``, ..."""
    names = [f"i{k}" for k in range(domain.dim(isl.dim_type.set))]
    given, told = ", ".join(f"o{k}" for k in range(n)), " and ".join(f"i{k} = o{k}" for k in range(n))
    return isl.Set(f"[{given}] -> {{ {domain.get_tuple_name()}[{', '.join(names)}] : {told or 'true'} }}")


@dataclass
class _TreeWalk:
    """Reads a schedule tree: bands in the order of its text, and the way down to each statement."""

    found: Sequence[Instance]
    is_fused: bool
    bands: list[Band] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)
    n_fixed: int = 0
    """Outermost loops that stay as they were written, around what a tree has."""

    def part(self, kept: Sequence[Dependence], above: Mapping[int, Path]) -> None:
        """Statements with the loops that they share as written: by one integer program, where that is small enough.

        Where it is not, the outermost of these loops stays, and each part of its body has a program of its own.
        """
        n_bands, n_fixed = len(self.bands), self.n_fixed
        try:
            self.statements(kept, above)
        except ScheduleError:
            if any(len(self.found[k].loops) <= n_fixed for k in above):
                raise
            del self.bands[n_bands:]
        else:
            return
        loop = Band(n_bands, ({k: _written(self.found[k].domain, n_fixed) for k in above},), is_written=True)
        self.bands.append(loop)
        parts: dict[int, dict[int, Path]] = {}
        for k, path in above.items():
            place = self.found[k].path[n_fixed + 1]
            parts.setdefault(place, {})[k] = (*path, loop, place)
        self.n_fixed = n_fixed + 1
        for inside in (parts[place] for place in sorted(parts)):
            own = (d for d in kept if d.source in inside and d.target in inside)
            self.part([left for d in own if (left := _left_by(d, loop.loops[0])) is not None], inside)
        self.n_fixed = n_fixed

    def statements(self, kept: Sequence[Dependence], above: Mapping[int, Path]) -> None:
        """What is inside of the loops above, with the dependences that those leave."""
        tree = _schedule((self.found[k] for k in sorted(above)), kept, self.n_fixed)
        self.node(tree.get_root(), kept, above)

    def node(self, node: isl.ScheduleNode, kept: Sequence[Dependence], above: Mapping[int, Path]) -> None:
        kind = node.get_type()
        if kind == _TREE.leaf:
            self.paths.update(above)
        elif kind == _TREE.band:
            self.band(node, kept, above)
        elif kind in (_TREE.sequence, _TREE.set):
            children = [node.get_child(n) for n in range(node.n_children())]
            named = [_statements(x.filter_get_filter()) & above.keys() for x in children]
            # Of a set any order will do: the one of the program, which does not depend on how isl hashes.
            is_set = kind == _TREE.set
            turns = sorted(range(len(children)), key=lambda n: min(named[n])) if is_set else range(len(children))
            for place, n in enumerate(turns):
                self.node(children[n].get_child(0), kept, {k: (*above[k], place) for k in sorted(named[n])})
        else:
            self.node(node.get_child(0), kept, above)

    def band(self, node: isl.ScheduleNode, kept: Sequence[Dependence], above: Mapping[int, Path]) -> None:
        """The band, of which several statements that shall not be fused share the outermost loop alone.

        Inside of it they are parted again, by the dependences that it leaves.
        """
        loops = tuple(self.lines(x) for x in _members(node))
        have_more = [sum(isinstance(x, Band) for x in path) < len(self.found[k].loops) for k, path in above.items()]
        # A statement has only so many loops of its own: where all have as many, parting again would never end.
        is_parted = not self.is_fused and len(above) > 1 and any(have_more)
        band = Band(len(self.bands), loops[:1] if is_parted else loops)
        self.bands.append(band)
        inside = {k: (*path, band) for k, path in above.items()}
        if not is_parted:
            self.node(node.get_child(0), kept, inside)
            return
        (outermost,) = band.loops
        own = (d for d in kept if d.source in above and d.target in above)
        self.statements([left for d in own if (left := _left_by(d, outermost)) is not None], inside)

    def lines(self, member: isl.UnionMap) -> Lines:
        """A loop of a tree, with loops in the place of the parameters that stood for them."""
        found: list[isl.Map] = []
        member.foreach_map(found.append)
        made: dict[int, isl.Map] = {}
        for x in found:
            k = number_of(x.get_tuple_name(isl.dim_type.in_))
            line = x.intersect_domain(_fixed(self.found[k].domain, self.n_fixed)) if self.n_fixed else x
            for n in range(self.n_fixed):
                at = line.find_dim_by_name(isl.dim_type.param, f"o{n}")
                line = line.project_out(isl.dim_type.param, at, 1)
            made[k] = line
        return made


def _written(domain: isl.Set, depth: int) -> isl.Map:
    """The loop at a depth, as it was written."""
    names = [f"i{k}" for k in range(domain.dim(isl.dim_type.set))]
    return isl.Map(f"{{ {domain.get_tuple_name()}[{', '.join(names)}] -> [i{depth}] }}")


def _left_by(d: Dependence, loop: Lines) -> Dependence | None:
    """What of a dependence is within one iteration of a loop."""
    pairs = d.pairs.intersect(loop[d.source].apply_range(loop[d.target].reverse()))
    return None if pairs.is_empty() else replace(d, pairs=pairs)


def _members(node: isl.ScheduleNode) -> Iterator[isl.UnionMap]:
    """The loops of a band."""
    partial = node.band_get_partial_schedule()
    for n in range(node.band_n_member()):
        yield isl.UnionMap.from_union_pw_aff(partial.get_union_pw_aff(n))


def _statements(union: isl.UnionSet) -> set[int]:
    found: list[isl.Set] = []
    union.foreach_set(found.append)
    return {number_of(x.get_tuple_name()) for x in found}


def number_of(name: str) -> int:
    """Of the statement that is called ``S`` and its number."""
    return int(name[1:])
