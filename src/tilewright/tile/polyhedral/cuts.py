"""Statements cut where one iteration of a row meets all others, so that each part's iterations share nothing.

In: statements with their iterations. Out: the same ones, of which some come as several with a part of the iterations
each. Not its business: in which order parts run (``bands``), loops of them (``emitted``).

``for j: a[i, j] = min(a[i, j], a[i, k] + a[k, j])`` changes at ``j = k`` what all others of the row read: iterations
before ``k`` may run at one time, and so may those behind it. Cutting there is index set splitting (Griebl, Feautrier
and Lengauer, "Index set splitting", IJPP 2000), here along the loop that walks a row of what is stored alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.core.indices import chosen
from tilewright.tile.affine import coefficient, first_offset
from tilewright.tile.ir import Store, Update
from tilewright.tile.polyhedral.dependences import dependences_of
from tilewright.tile.polyhedral.sets import Instance

if TYPE_CHECKING:
    import islpy as isl
else:
    from tilewright.tile.polyhedral import isl


def cut(found: Sequence[Instance]) -> tuple[Instance, ...]:
    """The statements in their order, each in as many parts as its rows have, with numbers of their own."""
    parts = [(x, part) for x in found for part in _parts(x)]
    return tuple(_part(x, k, part) for k, (x, part) in enumerate(parts))


def _parts(x: Instance) -> Iterator[isl.Set]:
    """The iterations before what a row's others wait for or change, it, and those behind; or all of them."""
    line = _meeting_place(x)
    if line is None:
        yield x.domain
        return
    zero = isl.Aff.zero_on_domain_space(line.get_domain_space())
    for part in (line.lt_set(zero), line.eq_set(zero), line.gt_set(zero)):
        if not (own := x.domain.intersect(isl.Set(str(part)))).is_empty():
            yield own


def _meeting_place(x: Instance) -> isl.Aff | None:
    """Zero at the one iteration of each row that any other one of it must come before or behind; None without one."""
    depth = _along_row(x)
    if depth is None:
        return None
    lines: dict[str, isl.Aff] = {}
    for d in dependences_of([replace(x, accesses=tuple(replace(a, statement=0) for a in x.accesses))]):
        pairs = d.pairs.intersect(_in_one_row(x.domain, depth))
        if d.commutes or pairs.is_empty():
            continue
        told = [line for ends in (pairs.domain(), pairs.range()) for line in _equations(ends, x.domain, depth)]
        if not told:
            return None
        lines |= {str(line): line for line in told}
    return next(iter(lines.values())) if len(lines) == 1 else None


def _along_row(x: Instance) -> int | None:
    """Which loop walks what the statement stores element by element."""
    s = x.statement
    if not isinstance(s, Store | Update) or chosen(s.index):
        return None
    at = first_offset(s.buffer, s.index)
    return next((k for k, loop in enumerate(x.loops) if coefficient(at, loop.sym) == 1), None)


def _in_one_row(domain: isl.Set, depth: int) -> isl.Map:
    """Pairs of iterations that differ in the loop at ``depth`` alone."""
    n, name = domain.dim(isl.dim_type.set), domain.get_tuple_name()
    a, b = [f"a{k}" for k in range(n)], [f"b{k}" for k in range(n)]
    same = " and ".join([f"{p} = {q}" for k, (p, q) in enumerate(zip(a, b, strict=True)) if k != depth] or ["true"])
    return isl.Map(f"{{ {name}[{', '.join(a)}] -> {name}[{', '.join(b)}] : {same} }}")


def _equations(ends: isl.Set, domain: isl.Set, depth: int) -> Iterator[isl.Aff]:
    """Functions that are zero on all of ``ends``, and not on the whole domain, and have the loop at ``depth`` once."""
    for c in ends.affine_hull().gist(domain.affine_hull()).get_constraints():
        if c.is_equality() and abs(c.get_coefficient_val(isl.dim_type.set, depth).to_python()) == 1:
            aff = c.get_aff()
            yield aff if c.get_coefficient_val(isl.dim_type.set, depth).is_pos() else aff.neg()


def _part(x: Instance, k: int, domain: isl.Set) -> Instance:
    """A statement by the number ``k``, with these iterations."""
    name = f"S{k}"

    def of(m: isl.Map) -> isl.Map:
        return m.intersect_domain(domain).set_tuple_name(isl.dim_type.in_, name)

    accesses = tuple(replace(a, statement=k, where=of(a.where)) for a in x.accesses)
    return replace(x, domain=domain.set_tuple_name(name), time=of(x.time), accesses=accesses)
