"""The lanes of open vector loops, and which lanes and guards restrict what may be read and written.

In: the vector loops that are open. Out: for an index expression, each lane's distance from lane 0.
Not its business: instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from tilewright.codegen.llvm.index import Lin
from tilewright.codegen.llvm.writer import Val
from tilewright.core.expr import Sym, symbols

BITS = {"i1 0": False, "i1 1": True}
Patterns: TypeAlias = dict[tuple[tuple[int, int], ...], tuple[int, ...] | None]


@dataclass(frozen=True)
class Lanes:
    """Open vector loops, outermost first: lane ``i`` is the ``i``-th point of their product, the last loop fastest.

    ``mask`` (one bit a lane) holds where a lane really runs; None means everywhere. ``guard`` is a run-time bit that
    every memory access needs, None when there is none. ``live`` is the last loop's extent where it is a number: lanes
    from there on never run, and what they would compute is of no interest. ``zeroed``: what lanes outside of the mask
    load is zero.
    """

    syms: tuple[Sym, ...] = ()
    sids: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()
    mask: Val | None = None
    guard: Val | None = None
    may_be_empty: bool = False
    live: int | None = None
    zeroed: bool = False
    _patterns: Patterns = field(default_factory=dict, compare=False, repr=False)

    @property
    def count(self) -> int:
        """The number of lanes; 0 outside vector loops."""
        n = 1 if self.extents else 0
        for e in self.extents:
            n *= e
        return n

    @property
    def all_live_run(self) -> bool:
        """Is the mask no more than the lanes from ``live`` on?"""
        return self.live is not None and not self.may_be_empty

    def outer(self) -> Lanes:
        """The lanes without the innermost loop's, where all run."""
        return replace(
            self, syms=self.syms[:-1], sids=self.sids[:-1], extents=self.extents[:-1], live=None, _patterns={}
        )

    def points(self) -> list[tuple[int, ...]]:
        """The values of ``syms`` in each lane."""
        return list(product(*[range(e) for e in self.extents]))

    def live_points(self) -> list[tuple[int, ...]]:
        """:meth:`points`, where lanes that never run repeat the last that does."""
        last = (self.live or self.extents[-1]) - 1
        return [(*point[:-1], min(point[-1], last)) for point in self.points()]

    def pattern(self, lin: Lin) -> tuple[int, ...] | None:
        """Each lane's distance from lane 0, None when all are 0. Only for :meth:`is_regular` expressions."""
        terms = lin.terms
        if terms not in self._patterns:
            coefs = dict(terms)
            mine = [coefs.get(s, 0) for s in self.sids]
            offsets = tuple([sum(c * x for c, x in zip(mine, point, strict=True)) for point in self.points()])
            self._patterns[terms] = offsets if any(mine) and any(offsets) else None
        return self._patterns[terms]

    def is_regular(self, lin: Lin) -> bool:
        """Do the lanes enter the expression only as multiples?"""
        if not self.syms or not lin.others:
            return True
        mine = frozenset(self.syms)
        return all(mine.isdisjoint(symbols(a)) for a, _ in lin.others)


def mask_of(bits: Sequence[bool]) -> Val:
    """A constant mask: a bit for each lane."""
    return Val(f"<{', '.join([f'i1 {int(b)}' for b in bits])}>", 0, len(bits))


def lanes_of_register(n: int) -> int:
    """The lanes of the register that holds ``n``: the next power of two."""
    return 1 << (n - 1).bit_length()


def bits_of(mask: Val) -> tuple[bool, ...] | None:
    """The bits of a constant mask, lane by lane; None where they are known at run time only."""
    found = [BITS.get(bit) for bit in mask.text.strip("<>").split(", ")] if mask.text.startswith("<") else [None]
    bits = tuple([b for b in found if b is not None])
    return bits if len(bits) == len(found) else None
