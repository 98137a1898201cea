"""Factors of matrix units whose terms lie apart in memory: an equal computation that brings them side by side before.

In: a computation, a GPU. Out: an equal one, in which a stage lays out each such factor and the product reads that.
Not its business: which sums are products, and their tiles (``matrices``), parts of terms (``split_terms``), which comes
later because a part of a factor is no whole one any more.

Before: ``Y[m, n] = sum over r, i of X[m, r, i] * W[n, i, r]``. After, as for a convolution's weight::

    L[n, r, i] = W[n, i, r]
    Y[m, n]    = sum over r, i of X[m, r, i] * L[n, r, i]

Tiles of it then come by whole accesses. Not when: neighbours in memory are neighbours in a tile already, along the
last term or the last row or column; the factor is anything but a buffer that is read once as a whole, which is small
next to what is computed from it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from tilewright.choose.strategies.gpu.matrices import Factors, factors_of, lies_along
from tilewright.core.compute import (
    Axis,
    Buffer,
    Cast,
    Computation,
    Load,
    Stage,
    Value,
    rewrite_value,
    syms,
)
from tilewright.core.expr import Sym
from tilewright.target.gpu import Gpu


def with_factors_by_terms(computation: Computation, gpu: Gpu, apart: Container[str]) -> Computation:
    """The computation with such factors laid out, but for those of stages ``apart``, by name."""
    stages = [x for x in computation.items if isinstance(x, Stage)]
    if len(stages) != len(computation.items):
        return computation
    made, temps = list[Stage](), list(computation.temps)
    for s in stages:
        factors = factors_of(s) if s.out.name not in apart else None
        if factors is not None and factors.unit(gpu) is not None:
            laid_out = _laid_out(s, factors)
            made += laid_out
            temps += [x.out for x in laid_out]
            s = _reading(s, laid_out)
        made.append(s)
    return replace(computation, items=tuple(made), temps=tuple(temps))


def _laid_out(s: Stage, factors: Factors) -> list[Stage]:
    """The stages that lay out the factors of ``s``."""
    found = []
    for name, value, own in (("a", factors.left, factors.rows), ("b", factors.right, factors.columns)):
        assert isinstance(value, Cast)
        narrow, axes = value.a, (*factors.batches, *own, *factors.terms)
        if lies_along(narrow, factors.terms) or lies_along(narrow, own) or not _is_whole(narrow, axes):
            continue
        out = Buffer(f"{s.out.name}_{name}l", narrow.dtype, tuple(a.extent for a in axes))
        found.append(Stage((out,), axes, syms(axes), (narrow,)))
    return found


def _reading(s: Stage, laid_out: Sequence[Stage]) -> Stage:
    """The product with what was laid out in place of what it was read from."""
    instead: dict[Value, Value] = {x.expr: Load(x.out, x.index) for x in laid_out}
    return replace(s, exprs=tuple(rewrite_value(v, instead.get) for v in s.exprs))


def _is_whole(value: Value, axes: Sequence[Axis]) -> bool:
    """Is it a buffer of which every element is read once by all iterations of the axes?"""
    if not isinstance(value, Load):
        return False
    extents = {a.sym: a.extent for a in axes}
    found = [extents.pop(i, None) if isinstance(i, Sym) else None for i in value.index]
    return not extents and all(n == d for n, d in zip(found, value.buffer.shape, strict=True))
