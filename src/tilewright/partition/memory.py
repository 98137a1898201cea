"""Memory planning: where every intermediate lives in one arena.

In: storages with a size and the steps between which they are alive. Out: offsets, the arena's size, and the bound that
no plan can beat. Not its business: what the steps do.

Sizes known at compile time are placed largest first at the lowest offset that is free during their life (the greedy
by size of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020), in a few orders. Sizes
that depend on symbols are placed behind those in the same way, where the symbols' ranges prove that a place is free;
else they share slots in order of birth.

Where a cache's sets repeat every so many bytes, large storages of a whole number of these would all begin in one set.
What a kernel reads and what it writes then throw each other out of the cache where it walks in steps of such a power of
two, and a load waits for an earlier store of which it only knows that the low bits of the address are its own. A gap of
half that span and a line behind each keeps them apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import accumulate

from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import LOG_MOST_IMAGES, nearest_size, size_at
from tilewright.core.expr import Dim, floordiv, is_nonneg, maximum, symbols
from tilewright.runtime.artifact import ALIGNMENT
from tilewright.target.target import Target


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


def plan_memory(storages: Sequence[Storage], target: Target | None = None) -> MemoryPlan:
    """Place every storage; none overlaps another that is alive at the same step.

    On a ``target`` with threads large ones begin in different sets of the cache; smaller ones have no bytes to spare.
    """
    sizes = [_aligned(s.n_bytes) for s in storages]
    static = {k: n for k, n in enumerate(sizes) if is_known(n)}
    end, placed = _spread_packing(storages, static, target)
    offsets: dict[int, Dim] = dict(placed)
    moving = {k: n for k, n in enumerate(sizes) if k not in static}
    total = _place_symbolic(storages, moving, offsets, end) if moving else end
    known = all(is_known(s.n_bytes) for s in storages)  # a few symbolic bytes may align to a fixed number
    bound = _lower_bound(storages) if known else None
    return MemoryPlan(tuple(offsets[k] for k in range(len(storages))), total, bound)


def _aligned(n: Dim) -> Dim:
    return floordiv(n + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT


def _overlap(a: Storage, b: Storage) -> bool:
    return a.first <= b.last and b.first <= a.last


def _spread_packing(
    storages: Sequence[Storage], sizes: dict[int, int], target: Target | None
) -> tuple[int, dict[int, int]]:
    """The best packing with gaps behind what is larger than the cache, where it costs no more than the gaps do."""
    plain = _best_packing(storages, sizes)
    if target is None or not target.has_threads:
        return plain
    span, gap = target.set_span, target.set_span // 2 + ALIGNMENT
    spread = {k: n + gap if n > target.l1_bytes and n % span == 0 else n for k, n in sizes.items()}
    if spread == sizes:
        return plain
    found = _best_packing(storages, spread)
    cost = _bound_of(storages, spread) - _bound_of(storages, sizes)
    return found if found[0] <= plain[0] + cost else plain


def _bound_of(storages: Sequence[Storage], sizes: dict[int, int]) -> int:
    return _lower_bound([Storage(n, storages[k].first, storages[k].last) for k, n in sizes.items()])


def _best_packing(storages: Sequence[Storage], sizes: dict[int, int]) -> tuple[int, dict[int, int]]:
    """The best of a few orders; then what ended up on top is placed first, as long as that may still help."""
    bound = _bound_of(storages, sizes)
    by_size = sorted(sizes, key=lambda k: (-sizes[k], storages[k].first))
    by_life = sorted(sizes, key=lambda k: (-(storages[k].last - storages[k].first), -sizes[k]))
    beside = _alive_beside(storages, sizes)
    best = min((_pack_in_order(sizes, order, beside) for order in (by_size, by_life)), key=lambda r: r[0])
    order = by_size
    for _ in range(EFFORT.attempts):
        if best[0] <= bound:
            break
        top, placed = _pack_in_order(sizes, order, beside)
        if top < best[0]:
            best = top, placed
        highest = max(order, key=lambda k: placed[k] + sizes[k])
        order = [highest, *(k for k in order if k != highest)]
    return best


def _alive_beside(storages: Sequence[Storage], which: Iterable[int]) -> dict[int, list[int]]:
    """For each of ``which``, those others whose lives overlap its own: few, where a program has many steps."""
    found: dict[int, list[int]] = {}
    alive: list[int] = []
    for k in sorted(which, key=lambda k: storages[k].first):
        alive = [j for j in alive if storages[j].last >= storages[k].first]
        found[k] = list(alive)
        for j in alive:
            found[j].append(k)
        alive.append(k)
    return found


def _pack_in_order(
    sizes: Mapping[int, int], order: Sequence[int], beside: Mapping[int, Sequence[int]]
) -> tuple[int, dict[int, int]]:
    """Each storage at the lowest offset that is free during its life; the arena's size, and the offsets in order."""
    offsets: dict[int, int] = {}
    for k in order:
        at = 0
        for lo, hi in sorted([(offsets[j], offsets[j] + sizes[j]) for j in beside[k] if j in offsets]):
            if at + sizes[k] <= lo:
                break
            at = max(at, hi)
        offsets[k] = at
    return max((offsets[k] + sizes[k] for k in order), default=0), offsets


def _place_symbolic(storages: Sequence[Storage], sizes: dict[int, Dim], offsets: dict[int, Dim], start: int) -> Dim:
    """Behind ``start``, in the order that is best for sizes of a call: each where it is free during its life.

    That is the lowest place at an end of another storage of which the symbols' ranges prove that it is free for every
    size. Where they prove too little, storages share slots.
    """
    # That a place is free is proved for every size; which of them is tried first is judged at one likely size.
    values = {s: nearest_size(s, 1 << LOG_MOST_IMAGES) for n in sizes.values() for s in symbols(n)}
    proofs: dict[tuple[Dim, Dim], bool] = {}
    likely = cache(lambda e: size_at(e, values))  # each place is compared with most others

    def is_below(end: Dim, lo: Dim) -> bool:
        # A size at which it is false is a counterexample, and far cheaper than looking for a proof.
        if likely(end) > likely(lo):
            return False
        if (end, lo) not in proofs:
            proofs[end, lo] = is_nonneg(lo - end)
        return proofs[end, lo]

    found: dict[int, tuple[Dim, Dim]] = {}  # where each begins and ends
    _, in_order = _best_packing(storages, {k: likely(n) for k, n in sizes.items()})
    for k in in_order:
        alive = [span for j, span in found.items() if _overlap(storages[k], storages[j])]
        ends = sorted(dict.fromkeys([start, *(hi for _, hi in alive)]), key=likely)
        is_likely = _free_places([(likely(lo), likely(hi)) for lo, hi in alive], likely(sizes[k]))
        free = (
            at
            for at in ends
            if is_likely(likely(at)) and all(is_below(hi, at) or is_below(at + sizes[k], lo) for lo, hi in alive)
        )
        at = next(free, None)
        if at is None:
            return _share_slots(storages, sizes, offsets, start)
        found[k] = at, at + sizes[k]
    offsets.update({k: at for k, (at, _) in found.items()})
    return reduce(maximum, dict.fromkeys(end for _, end in found.values()))


def _free_places(spans: Iterable[tuple[int, int]], size: int) -> Callable[[int], bool]:
    """Says of a place whether ``size`` bytes from there on meet none of ``spans``, without a look at each."""
    in_order = sorted(spans)
    begins = [lo for lo, _ in in_order]
    furthest = list(accumulate((hi for _, hi in in_order), max, initial=0))
    return lambda at: furthest[bisect_left(begins, at + size)] <= at


def _share_slots(storages: Sequence[Storage], sizes: dict[int, Dim], offsets: dict[int, Dim], start: int) -> Dim:
    """In order of birth: a slot is used again when its owner is dead, and grows to the larger of both."""
    slots: list[tuple[Dim, int]] = []  # size, last step of the owner
    home: dict[int, int] = {}
    for k in sorted(sizes, key=lambda k: storages[k].first):
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
    assert is_known(s.n_bytes)
    return s.n_bytes
