"""Products of few tiles and many terms, whose terms blocks share: equal computations of more stages.

In: a computation, a GPU. Out: an equal one in which each such product has its parts as batches, and a stage behind it
adds them. Not its business: what is a product, and its tiles (``matrices``); long sums that are none
(``partial_sums``).

Before: ``Y[m, n] = sum over k<K of A[m, k] * B[k, n]``. After, for C parts of ``s = K / C`` terms::

    P[c, m, n] = sum over j<s of A[m, c*s + j] * B[c*s + j, n]    a batch for each part
    Y[m, n]    = sum over c<C of P[c, m, n]                       a second launch, in a fixed order

Of several axes of terms the last one is cut. The order of a float sum changes, by a fixed rule. Not when: the estimate
of the whole, with what the parts move through memory and the second launch, is no less than without; parts would not
be whole lines of memory; a size is known at run time only.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tilewright.choose.strategies.gpu.block_tiles import KnownExtents, least_us
from tilewright.choose.strategies.gpu.matrices import Factors, factors_of
from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Load,
    Reduction,
    Stage,
    loads,
    loop_symbol,
    stages_alone,
    substitute_value,
    syms,
)
from tilewright.core.dims import is_known, numbers
from tilewright.target.gpu import Gpu
from tilewright.tile.schedule.partials import identity_of


def with_split_terms(computation: Computation, gpu: Gpu, apart: Container[str], refused: Container[str]) -> Computation:
    """The computation with such products in parts, but for stages ``apart``, and for parts that were ``refused``."""
    stages = stages_alone(computation)
    if stages is None:
        return computation
    made, temps = list[Stage](), list(computation.temps)
    for s in stages:
        factors = factors_of(s, gpu) if s.out.name not in apart else None
        n = _n_parts(s, factors, gpu) if factors is not None else 1
        parts = _part(s, n) if n > 1 else None
        if parts is None or parts.out.name in refused:
            made.append(s)
            continue
        made += [parts, _sum_of(s, parts)]
        temps.append(parts.out)
    return replace(computation, items=tuple(made), temps=tuple(temps))


def _n_parts(s: Stage, factors: Factors, gpu: Gpu) -> int:
    """The number of parts of least estimated time, 1 for none."""
    extents = factors.extents
    groups = (extents.batches, extents.rows, extents.columns, extents.terms)
    last = factors.terms[-1].extent
    if not all(is_known(n) and n > 0 for n in groups) or not is_known(last):
        return 1
    batches, rows, columns, terms = numbers(groups)
    whole = KnownExtents(batches, rows, columns, terms, extents.repeats)
    unit, dtype = factors.unit(gpu), s.out.dtype
    line = gpu.line_bytes // min((x.buffer.dtype.n_bytes for x in loads(s.expr)), default=dtype.n_bytes)

    def us(n: int) -> float:
        part = whole._replace(batches=n * whole.batches, terms=whole.terms // n)
        in_tiles = least_us(gpu, dtype, unit, part)
        if n == 1:
            return in_tiles
        # Parts are written and read; what adds them is launched, and waits for the first of them.
        moved = 2 * part.batches * part.rows * part.columns * dtype.n_bytes
        return in_tiles + moved / gpu.memory_gb_per_s / 1e3 + gpu.replay_us + gpu.memory_ns / 1e3

    counts = [n for n in range(2, min(last // line, gpu.n_sms) + 1) if last % (n * line) == 0]
    return min([1, *counts], key=us)


def _part(s: Stage, n: int) -> Stage:
    """The stage that adds up the terms of each part."""
    assert s.reduction is not None and isinstance(s.reduction.op, str)
    *others, last = s.reduction.axes
    (length,) = numbers([last.extent])
    own = Axis(loop_symbol("part_", n), n)
    term = Axis(loop_symbol("term_", length // n), length // n)
    axes, buffer = (own, *s.axes), s.out
    value = substitute_value(s.expr, {last.sym: own.sym * (length // n) + term.sym})
    out = Buffer(f"{buffer.name}_s", buffer.dtype, tuple(a.extent for a in axes))
    start = identity_of(s.reduction.op, buffer.dtype)
    return Stage((out,), axes, syms(axes), (value,), Reduction((*others, term), s.reduction.op, (start,)))


def _sum_of(s: Stage, parts: Stage) -> Stage:
    """The stage that makes the results."""
    assert s.reduction is not None
    part = parts.axes[0]
    return replace(s, exprs=(Load(parts.out, syms(parts.axes)),), reduction=replace(s.reduction, axes=(part,)))
