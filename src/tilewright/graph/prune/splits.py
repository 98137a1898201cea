"""Reshapes: axes that become one, or one that becomes several, and which of the several shrinks with it.

In: a reshape's tensor. Out: pairs of positions that are plain, and ``Split`` records, each of which must choose.
Not its business: reshapes whose axes have no common factors, which let nothing be removed.

Where heads times depth are an axis, removing every position of a head leaves a smaller number of heads, and removing
the same place in every head leaves a smaller depth. The axis can't do both and stay a product; so one factor shrinks
with it, and the others stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.graph.prune.links import STAYS, Ids, Links
from tilewright.graph.prune.tensors import AxedTensor


@dataclass(frozen=True)
class Split:
    """The positions of ``whole``, i64[n], are those of ``factors`` in row-major order: n is the product of sizes."""

    whole: Ids
    factors: tuple[Ids, ...]

    def along(self, k: int) -> Ids:
        """Which position of factor ``k`` each position of the whole has, i64[n]."""
        inner = prod(len(f) for f in self.factors[k + 1 :])
        return self.factors[k][np.arange(len(self.whole)) // inner % len(self.factors[k])]


@dataclass(frozen=True)
class Reshaped:
    """Of one reshape: rows of positions that are the same, and axes that are products of others."""

    same: tuple[tuple[Ids, Ids], ...]
    splits: tuple[Split, ...]

    def named(self) -> Iterator[Ids]:
        """All positions that are neither new nor must stay."""
        for pair in self.same:
            yield from pair
        for split in self.splits:
            yield split.whole
            yield from split.factors


def reshaped(t: AxedTensor, links: Links) -> Reshaped:
    """What a reshape does to the axes of its operand."""
    x, same, splits = t.inputs[0], [], []
    for before, after in _blocks(x.node.shape, t.node.shape):
        sides = [[a for k in of if len(a := y.axes[k]) != 1] for y, of in ((x, before), (t, after))]
        factors = [links.fresh(n) for n in _common_factors(*([len(a) for a in side] for side in sides))]
        for axes in sides if factors else ():
            rest = list(factors)
            for axis in axes:
                mine = [rest.pop(0)]
                while prod(map(len, mine)) < len(axis):
                    mine.append(rest.pop(0))
                if len(mine) == 1:
                    same.append((axis, mine[0]))
                else:
                    splits.append(Split(axis, tuple(mine)))
    return Reshaped(tuple(same), tuple(splits))


def _blocks(before: Sequence[Dim], after: Sequence[Dim]) -> Iterator[tuple[list[int], list[int]]]:
    """Axes before and after a reshape that hold the same numbers, from the last on, as far as sizes are known.

    An axis of size 1 that comes or goes is in no block.
    """
    i, j = len(before) - 1, len(after) - 1
    while i >= 0 and j >= 0:
        if before[i] == after[j]:
            if is_known(before[i]):
                yield [i], [j]
            i, j = i - 1, j - 1
        elif 1 in (before[i], after[j]):
            i, j = (i - 1, j) if before[i] == 1 else (i, j - 1)
        else:
            found = _block(before[: i + 1], after[: j + 1])
            if found is None:
                return
            i, j = i - len(found[0]), j - len(found[1])
            yield [i + 1 + k for k in range(len(found[0]))], [j + 1 + k for k in range(len(found[1]))]


def _block(before: Sequence[Dim], after: Sequence[Dim]) -> tuple[Sequence[Dim], Sequence[Dim]] | None:
    """The least number of last axes of both sides that have one product; None where a size in them is not known."""
    n = [1, 1]
    sides, ends = (before, after), [len(before), len(after)]
    while n[0] != n[1] or n[0] == 1:
        k = int(n[1] < n[0])
        ends[k] -= 1
        size = sides[k][ends[k]] if ends[k] >= 0 else None
        if not is_known(size) or size == 0:
            return None
        n[k] *= size
    return before[ends[0] :], after[ends[1] :]


def _common_factors(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The sizes of the coarsest axes that both sides' axes are products of; none where there are no such sizes."""
    if 0 in before:
        return []
    cuts = sorted({prod(sizes[k:]) for sizes in (before, after) for k in range(len(sizes) + 1)})
    if any(b % a for a, b in pairwise(cuts)):
        return []
    return [b // a for a, b in pairwise(cuts)][::-1]


def choose(split: Split, links: Links) -> None:
    """Join the whole to the factor that shrinks with it; the others stay.

    That is the first factor that may shrink. Where positions of the whole go together already, heads of an attention
    for instance, it is the factor along which fewest more come together.
    """
    labels = links.labels(split.whole)
    left = [_n_left(labels, links.labels(split.along(k))) for k in range(len(split.factors))]
    is_apart = len(np.unique(labels)) == len(labels)
    best = next((k for k, n in enumerate(left) if n), None) if is_apart else int(np.argmax(left))
    if best is None or not left[best]:
        links.keep(split.whole)
    else:
        links.join(split.whole, split.along(best))
    for k, factor in enumerate(split.factors):
        if k != best or not left[k]:
            links.keep(factor)


def _n_left(a: Ids, b: Ids) -> int:
    """How many classes that may be removed there are when positions of ``a`` and ``b`` are joined one by one."""
    found, places = np.unique(np.concatenate([[STAYS], a, b]), return_inverse=True)  # STAYS is the least, hence first
    apart = Links()
    apart.fresh(len(found) - 1)
    apart.join(places[1 : 1 + len(a)], places[1 + len(a) :])
    return len(np.unique(apart.all_labels())) - 1
