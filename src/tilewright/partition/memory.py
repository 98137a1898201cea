"""Memory planning: where every intermediate lives in one arena.

In: storages with a size and the steps between which they are alive. Out: offsets, the arena's size, and the bound that
no plan can beat. Not its business: what the steps do.

Sizes known at compile time are placed largest first at the lowest offset that is free during their life (the greedy
by size of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020), in a few orders. Sizes
that depend on symbols share slots in order of birth: a slot is reused when its owner is dead, and grows to the larger
of both.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.expr import Dim, floordiv, is_nonneg, maximum

ALIGNMENT = 64
MAX_REPAIRS = 32
"""How often a plan above the bound is tried again with its highest storage placed first."""


@dataclass(frozen=True)
class Storage:
    """Bytes that are needed from step ``first`` to step ``last``, both included."""

    n_bytes: Dim
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """``offsets`` follow the order of the storages. ``lower_bound`` is the largest sum of sizes alive at one step."""

    offsets: tuple[Dim, ...]
    n_bytes: Dim
    lower_bound: int | None


def plan_memory(storages: Sequence[Storage]) -> MemoryPlan:
    """Place every storage; none overlaps another that is alive at the same step."""
    sizes = [_aligned(s.n_bytes) for s in storages]
    static = [k for k, n in enumerate(sizes) if isinstance(n, int)]
    offsets: dict[int, Dim] = {}
    end = _place_static(storages, {k: n for k in static if isinstance(n := sizes[k], int)}, offsets)
    total = _place_symbolic(storages, sizes, offsets, end)
    known = all(isinstance(s.n_bytes, int) for s in storages)  # a few symbolic bytes may align to a fixed number
    bound = _lower_bound(storages) if known else None
    return MemoryPlan(tuple(offsets[k] for k in range(len(storages))), total, bound)


def _aligned(n: Dim) -> Dim:
    return floordiv(n + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def _overlap(a: Storage, b: Storage) -> bool:
    return a.first <= b.last and b.first <= a.last


def _place_static(storages: Sequence[Storage], sizes: dict[int, int], offsets: dict[int, Dim]) -> int:
    """The best of a few orders; then what ended up on top is placed first, as long as that may still help."""
    bound = _lower_bound([Storage(n, storages[k].first, storages[k].last) for k, n in sizes.items()])
    by_size = sorted(sizes, key=lambda k: (-sizes[k], storages[k].first))
    by_life = sorted(sizes, key=lambda k: (-(storages[k].last - storages[k].first), -sizes[k]))
    best_top, best = min((_pack_in_order(storages, sizes, order) for order in (by_size, by_life)), key=lambda r: r[0])
    order = by_size
    for _ in range(MAX_REPAIRS):
        if best_top <= bound:
            break
        top, placed = _pack_in_order(storages, sizes, order)
        if top < best_top:
            best_top, best = top, placed
        highest = max(order, key=lambda k: placed[k] + sizes[k])
        order = [highest, *(k for k in order if k != highest)]
    offsets.update(best)
    return best_top


def _pack_in_order(
    storages: Sequence[Storage], sizes: dict[int, int], order: Sequence[int]
) -> tuple[int, dict[int, int]]:
    """Each storage at the lowest offset that is free during its life; returns the arena's size and the offsets."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, int]] = []  # offset, end, which
    top = 0
    for k in order:
        at = 0
        for lo, hi, other in placed:
            if at + sizes[k] <= lo:
                break
            if _overlap(storages[k], storages[other]):
                at = max(at, hi)
        offsets[k] = at
        top = max(top, at + sizes[k])
        insort(placed, (at, at + sizes[k], k))
    return top, offsets


def _place_symbolic(storages: Sequence[Storage], sizes: list[Dim], offsets: dict[int, Dim], start: int) -> Dim:
    slots: list[tuple[Dim, int]] = []  # size, last step of the owner
    home: dict[int, int] = {}
    moving = sorted((k for k in range(len(storages)) if k not in offsets), key=lambda k: storages[k].first)
    for k in moving:
        free = [j for j, (_, last) in enumerate(slots) if last < storages[k].first]
        fits = [j for j in free if _comparable(slots[j][0], sizes[k])]
        slot = min(fits or free, key=lambda j: slots[j][0] != sizes[k], default=None)
        if slot is None:
            slots.append((sizes[k], storages[k].last))
            home[k] = len(slots) - 1
        else:
            slots[slot] = (maximum(slots[slot][0], sizes[k]), storages[k].last)
            home[k] = slot
    starts: list[Dim] = [start]
    for size, _ in slots:
        starts.append(starts[-1] + size)
    offsets.update({k: starts[j] for k, j in home.items()})
    return starts[-1]


def _comparable(a: Dim, b: Dim) -> bool:
    return is_nonneg(a - b) or is_nonneg(b - a)


def _lower_bound(storages: Sequence[Storage]) -> int:
    steps = {s.first for s in storages}
    return max((sum(int(_n(s)) for s in storages if s.first <= t <= s.last) for t in steps), default=0)


def _n(s: Storage) -> int:
    assert isinstance(s.n_bytes, int)
    return s.n_bytes
