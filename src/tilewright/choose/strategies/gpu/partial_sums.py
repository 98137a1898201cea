"""Reductions to few results, cut into parts for all of a GPU's multiprocessors: equal computations of more stages.

In: a computation, a GPU. Out: an equal one in which each reduction that would keep few threads busy is two or three
stages, and the names of those. Not its business: how a part is computed (``rows``, ``columns``).

Before: ``y[n] = sum over k of f(k, n)``, neighbours in memory along ``n``. After, for C parts by W warps::

    Q[c, w, n] = sum over j of f((c*W + w)*s + j, n)     a thread's own; W warps of a block
    P[c, n]    = sum over w of Q[c, w, n]                in shared memory
    y[n]       = sum over c of P[c, n]                   a second launch, in a fixed order

Where neighbours lie along the sum there is no Q: rows of P are warps' or blocks'. What several axes are summed over is
cut along the first one. The order of a float sum changes, by a fixed rule. Not when: something has as many points as
what is summed, and reads the result (a norm reads its row again); a size is known at run time only.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Inside,
    Load,
    Reduction,
    Select,
    Stage,
    Value,
    buffers_of_value,
    loads,
    loop_symbol,
    stages_alone,
    substitute_value,
    syms,
)
from tilewright.core.dims import is_known, numbers
from tilewright.core.expr import Dim, Sym, floordiv, mod
from tilewright.core.indices import chosen
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import stride_along
from tilewright.tile.schedule.partials import identity_of


@dataclass(frozen=True)
class PartialSums:
    """The names of a reduction's parts: those of warps, where a block has several for a column, and those of blocks."""

    warps: str
    blocks: str


def with_partial_sums(
    computation: Computation, gpu: Gpu, taken: Container[str]
) -> tuple[Computation, list[PartialSums]]:
    """The computation with its long reductions in parts, but for the stages that make what is ``taken``."""
    stages = stages_alone(computation)
    if stages is None:
        return computation, []
    found: list[PartialSums] = []
    made: list[Stage] = []
    temps = list(computation.temps)
    for s in stages:
        cut = None if s.out.name in taken or not _may_be_cut(s, stages) else _Cut(s, gpu)
        parts = cut.stages() if cut is not None else []
        if cut is not None and parts:
            warps, blocks = ("", parts[0]) if cut.is_row else (parts[0].out.name, parts[1])
            found.append(PartialSums(warps, blocks.out.name))
            temps += [x.out for x in parts[:-1]]
        made += parts or [s]
    return replace(computation, items=tuple(made), temps=tuple(temps)), found


def _may_be_cut(s: Stage, stages: Sequence[Stage]) -> bool:
    """Is it a plain reduction of known sizes, and nothing that has more points than results reads it?"""
    red = s.reduction
    if red is None or not isinstance(red.op, str) or s.update is not None or len(s.outs) != 1 or chosen(s.index):
        return False
    extents = [a.extent for a in (*s.axes, *red.axes)]
    if not red.axes or not all(is_known(n) and n > 0 for n in extents):
        return False
    if tuple(i for i in s.index if i != 0) != syms(s.axes):  # a dimension that stays, of one, is at 0
        return False
    readers = [x for x in stages if any(s.out in buffers_of_value(v) for v in x.values)]
    points = prod(numbers([a.extent for a in s.axes]))
    return all(x.reduction is None and prod(numbers([a.extent for a in x.axes])) <= points for x in readers)


class _Cut:
    """The parts of one reduction."""

    def __init__(self, s: Stage, gpu: Gpu) -> None:
        assert s.reduction is not None and isinstance(s.reduction.op, str)
        self.s, self.gpu, self.red, self.op = s, gpu, s.reduction, s.reduction.op
        self.results = prod(numbers([a.extent for a in s.axes]))
        self.first, *rest = self.red.axes
        (self.length,) = numbers([self.first.extent])
        self.inner = prod(numbers([a.extent for a in rest]))
        self.is_row = self._lies_along([a.sym for a in self.red.axes])
        self.lanes = gpu.access_bytes // max([x.dtype.n_bytes for x in loads(s.expr)] + [s.out.dtype.n_bytes])

    def stages(self) -> list[Stage]:
        """The parts and the stage that reduces them; none where the reduction keeps the GPU busy as it is."""
        if self.is_row:
            n = self._row_parts()
            parts = [self._part("p", [n])] if n > 1 else []
        elif self.s.axes and self._lies_along([self.s.axes[-1].sym]):
            blocks, warps = self._column_parts()
            if warps < 2:
                return []
            counts = [blocks] if blocks > 1 else []
            parts = [self._part("q", [*counts, warps])]
            if counts:
                parts.append(self._sum_of(parts[0], counts, warps, "p"))
        else:
            return []
        return [*parts, self._last(parts[-1])] if parts else []

    def _lies_along(self, over: Sequence[Sym]) -> bool:
        return any(stride_along(x.buffer, x.index, s) == 1 for x in loads(self.s.expr) for s in over)

    @property
    def _threads(self) -> int:
        """Half of the threads that the GPU runs at one time, enough to wait for its memory."""
        return self.gpu.n_sms * self.gpu.sm_threads // 2

    def _row_parts(self) -> int:
        """Into how many rows each one is cut: whole ones along further axes, else as many as two warps a scheduler."""
        block = 2 * self.gpu.sm_schedulers * self.gpu.warp_lanes
        wanted = self._threads // block // self.results
        turns = self.length * self.inner / (block * self.lanes * self.gpu.thread_accesses)
        if wanted < 2 or not self._pays(min(wanted, self.length), turns):
            return 1
        if self.inner >= self.gpu.warp_lanes * self.lanes * self.gpu.thread_accesses:
            return self.length
        shortest = -(-block * self.lanes * self.gpu.thread_accesses // self.inner)
        return self._even(min(wanted, self.length // shortest), self.lanes)

    def _column_parts(self) -> tuple[int, int]:
        """Blocks, and warps of each, that share a column's terms."""
        wanted = self._threads * self.lanes // self.results
        most = min(wanted, self.length // self.gpu.thread_accesses)
        warps = 1
        while 2 * warps <= min(most, 2 * self.gpu.sm_schedulers):
            warps *= 2
        if not self._pays(warps, self.length / self.gpu.thread_accesses):
            return 1, 1
        blocks = self._even(max(most // warps, 1), warps * self.gpu.thread_accesses)
        return blocks if self._pays(blocks, self.length / (warps * self.gpu.thread_accesses)) else 1, warps

    def _pays(self, n: int, turns: float) -> bool:
        """Is what ``n`` parts of so many turns save, of which each waits for the memory, more than another launch?"""
        return (1 - 1 / n) * turns * self.gpu.memory_ns > self.gpu.replay_us * 1e3

    def _even(self, n: int, whole: int) -> int:
        """As many parts or fewer, down to half as many, whose length is a multiple of ``whole``; if none, as many."""
        for k in range(n, n // 2, -1):
            if self.length % (k * whole) == 0:
                return k
        return max(n, 1)

    def _part(self, name: str, counts: Sequence[int]) -> Stage:
        """The stage that reduces the terms of each part."""
        step = -(-self.length // prod(counts))
        step = -(-step // self.lanes) * self.lanes if self.inner == 1 and len(counts) == 1 else step
        own = [Axis(loop_symbol(f"{name}{k}_", n), n) for k, n in enumerate(counts)]
        term = Axis(loop_symbol(f"{name}_", step), step)
        number: Dim = 0
        for a, n in zip(own, counts, strict=True):
            number = number * n + a.sym
        at = number * step + term.sym
        value = substitute_value(self.s.expr, {self.first.sym: at})
        if prod(counts) * step != self.length:
            run = self.lanes if mod(self.length, self.lanes) == 0 and step % self.lanes == 0 else 1
            guard = floordiv(self.length, run) - 1 - floordiv(at, run)
            value = Select(Inside((guard,)), value, identity_of(self.op, self.s.out.dtype))
        return self._stage(name, own, (term, *self.red.axes[1:]), value)

    def _sum_of(self, part: Stage, counts: Sequence[int], n: int, name: str) -> Stage:
        """The stage that reduces the last of a part's numbers."""
        own = [Axis(loop_symbol(f"{name}{k}_", n), n) for k, n in enumerate(counts)]
        term = Axis(loop_symbol(f"{name}_", n), n)
        value = Load(part.out, (*syms(own), term.sym, *syms(self.s.axes)))
        return self._stage(name, own, (term,), value)

    def _stage(self, name: str, own: Sequence[Axis], terms: tuple[Axis, ...], value: Value) -> Stage:
        axes = (*own, *self.s.axes)
        dtype = self.s.out.dtype
        out = Buffer(f"{self.s.out.name}_{name}", dtype, tuple(a.extent for a in axes))
        return Stage((out,), axes, syms(axes), (value,), Reduction(terms, self.op, (identity_of(self.op, dtype),)))

    def _last(self, part: Stage) -> Stage:
        """The stage that makes the results."""
        (n,) = numbers([part.out.shape[0]])
        term = Axis(loop_symbol("part_", n), n)
        value = Load(part.out, (term.sym, *syms(self.s.axes)))
        return replace(self.s, exprs=(value,), reduction=replace(self.red, axes=(term,)))
