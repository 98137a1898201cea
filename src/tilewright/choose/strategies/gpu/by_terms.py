"""Factors of matrix units whose terms lie apart in memory: an equal computation that brings them side by side.

In: a computation, a GPU. Out: an equal one, in which tiles of such factors come by whole accesses.
Not its business: which sums are products, and their tiles (``matrices``), parts of terms (``split_terms``), which comes
later because a part of a factor is no whole one any more.

Three rewrites of a product ``Y[m, n] = sum over r, i of X[m, r, i] * W[n, i, r]``, in this order:

* ``_in_order``: the terms are counted in the order in which they lie in both factors, where there is such an order, as
  of pieces of a picture that do not overlap.
* ``_in_runs``: an image whose channels are no whole access, or lie in planes, is copied with its channels last and
  zeros behind them; so is the weight: ``I[m, c] = X[m, c] where c < C, else 0``. Where a window goes on by several
  places at a time, so many of them lie together as far as one access reaches: ``I[m, 4*d + c] = X[2*m + d, c]``. Not
  when: no element is read twice.
* ``_laid_out``: a factor that is a buffer read once as a whole, as a convolution's weight, small next to what is
  computed from it, is laid out by a stage before: ``L[n, r, i] = W[n, i, r]``. Not when: neighbours in memory are
  neighbours in a tile already, along the last term or the last row or column.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.choose.strategies.gpu.matrices import Factors, factors_of, lies_along, unwidened
from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    Const,
    IndexLike,
    Inside,
    Load,
    Select,
    Stage,
    Value,
    axes_for,
    loads,
    loop_symbol,
    rewrite_value,
    stages_alone,
    substitute_value,
    symbols_of_value,
    syms,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, floordiv, is_nonneg, mod
from tilewright.core.indices import is_chosen, symbols_at
from tilewright.core.types import product
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import coefficient, stride_along


def with_factors_by_terms(computation: Computation, gpu: Gpu, apart: Container[str]) -> Computation:
    """The computation with such factors laid out, but for those of stages ``apart``, by name."""
    stages = stages_alone(computation)
    if stages is None:
        return computation
    made, temps = list[Stage](), list(computation.temps)
    for s in stages:
        factors = factors_of(s, gpu) if s.out.name not in apart else None
        if factors is not None and factors.unit(gpu) is not None:
            *before, s = _by_terms(s, factors, gpu)
            made += before
            temps += [x.out for x in before]
        made.append(s)
    return replace(computation, items=tuple(made), temps=tuple(temps))


def _by_terms(s: Stage, factors: Factors, gpu: Gpu) -> list[Stage]:
    """The product and what lays out its factors before."""
    ordered = _in_order(s, factors)
    factors = replace(factors, terms=_terms(ordered))
    if in_runs := _in_runs(ordered, factors, gpu):
        return in_runs
    laid_out = _laid_out(ordered, factors)
    return [*laid_out, _reading(ordered, {x.expr: Load(x.out, x.index) for x in laid_out})]


def _terms(s: Stage) -> tuple[Axis, ...]:
    return s.reduction.axes if s.reduction is not None else ()


def _in_order(s: Stage, factors: Factors) -> Stage:
    """The product with its terms in an order in which neighbours lie side by side in both factors, if there is one."""
    both = (unwidened(factors.left), unwidened(factors.right))
    last = [a for a in factors.terms if all(lies_along(x, (a,)) for x in both)]
    if s.reduction is None or not last or last[0] is factors.terms[-1]:
        return s
    (load, *_) = loads(both[1])
    strides = {a.sym: stride_along(load.buffer, load.index, a.sym) for a in factors.terms}
    known = {sym: n for sym, n in strides.items() if n is not None and is_known(n)}
    if len(known) < len(strides):
        return s
    axes = tuple(sorted(factors.terms, key=lambda a: -known[a.sym]))
    return replace(s, reduction=replace(s.reduction, axes=axes))


def _in_runs(s: Stage, factors: Factors, gpu: Gpu) -> list[Stage]:
    """The product of an image whose channels lie in whole accesses, with what copies image and weight so before.

    Nothing where they do, or where an access that no instruction copies asynchronously would be none with zeros either.
    """
    left, right = unwidened(factors.left), unwidened(factors.right)
    found = list(loads(left))
    if len(found) != 1 or not isinstance(right, Load) or s.reduction is None:
        return []
    (image,) = found
    channel = next((a for a in factors.terms if _is_dimension(image, a)), None)
    weight_axes = (*factors.batches, *factors.columns, *factors.terms)
    if channel is None or not is_known(channel.extent) or not _is_whole(right, weight_axes):
        return []
    n_bytes = image.dtype.n_bytes
    if lies_along(left, factors.terms[-1:]) and _run(factors.terms[-1], gpu, n_bytes) * n_bytes >= gpu.bank_bytes:
        return []
    read = product([a.extent for a in (*factors.batches, *factors.rows, *factors.terms)])
    if not is_nonneg(read - product(image.buffer.shape) - 1):
        return []
    padded = _padded(channel, gpu, n_bytes)
    return _side_by_side(s, factors, _Image(left, image, channel, padded, _places(image, factors, padded, gpu)))


@dataclass(frozen=True)
class _Places:
    """``n`` places of an image that lie beside each other along ``dimension``, which a term ``axis`` walks.

    A row of a product begins at a multiple of them, once the axis begins ``shift`` before the first term.
    """

    axis: Axis
    dimension: int
    n: int
    shift: int


@dataclass(frozen=True)
class _Image:
    """An image as a product's factor: what is loaded of it, its channels, also with zeros behind them."""

    value: Value
    load: Load
    channel: Axis
    padded: Axis
    places: _Places | None


def _places(image: Load, factors: Factors, padded: Axis, gpu: Gpu) -> _Places | None:
    """As many places with all their channels as one access has; None where rows begin at no multiple of them."""
    assert is_known(padded.extent)
    n = gpu.access_bytes // (image.dtype.n_bytes * padded.extent)
    while n > 1:
        for dimension, i in reversed(list(enumerate(image.index))):
            own = [a for a in factors.terms if a.sym in symbols_at(i)]
            if is_chosen(i) or len(own) != 1 or not is_known(own[0].extent):
                continue
            if _is_dimension(image, own[0]) or coefficient(i, own[0].sym) != 1:
                continue
            shifts = [k for k in range(n) if mod(i - own[0].sym - k, n) == 0]
            if shifts and mod(image.buffer.shape[dimension], n) == 0:
                return _Places(own[0], dimension, n, shifts[0])
        n //= 2
    return None


def _side_by_side(s: Stage, factors: Factors, image: _Image) -> list[Stage]:
    """What copies image and weight with channels last, of several places where a row has them, and the product."""
    assert s.reduction is not None and is_known(image.padded.extent)
    load, places, n_channels = image.load, image.places, image.padded.extent
    n = 1 if places is None else places.n
    inner = Axis(loop_symbol("channel", n * n_channels), n * n_channels)
    place, channel = floordiv(inner.sym, n_channels), mod(inner.sym, n_channels)
    at = load.index.index(image.channel.sym)
    shape = [floordiv(d, n) if places and k == places.dimension else d for k, d in enumerate(load.buffer.shape)]
    others = axes_for([d for k, d in enumerate(shape) if k != at], "p")
    read: list[IndexLike] = list(syms(others))
    read.insert(at, channel)
    index = list(load.index)
    terms, of_weight = list(factors.terms), dict[Sym, Dim]({image.channel.sym: channel})
    value = image.value
    if places is not None:
        first = read[places.dimension]
        e = index[places.dimension]
        assert not is_chosen(first) and not is_chosen(e) and is_known(places.axis.extent)
        read[places.dimension] = n * first + place
        n_groups = -(-(places.axis.extent + places.shift) // n)
        group = Axis(loop_symbol("group", n_groups), n_groups)
        start = floordiv(e - places.axis.sym - places.shift, n) + group.sym
        borders = (e, load.buffer.shape[places.dimension] - 1 - e)
        value = _within(value, borders, (start, shape[places.dimension] - 1 - start))
        terms[terms.index(places.axis)] = group
        index[places.dimension] = start
        term = n * group.sym + place - places.shift
        of_weight[places.axis.sym] = term
    terms = [*[a for a in terms if a is not image.channel], inner]
    within = [image.channel.extent - 1 - channel]
    copy = _with_zeros(s, "ai", Load(load.buffer, tuple(read)), (*others, inner), within)
    taps = [] if places is None else [of_weight[places.axis.sym], places.axis.extent - 1 - of_weight[places.axis.sym]]
    right = unwidened(factors.right)
    weight_axes = (*factors.batches, *factors.columns, *terms)
    weight = _with_zeros(s, "bl", substitute_value(right, of_weight), weight_axes, [*within, *taps])
    del index[at]
    element: Value = Load(copy.out, (*index, inner.sym))
    made = rewrite_value(value, lambda x: element if x == load else None)
    gone = {a.sym for a in factors.terms} - {a.sym for a in terms}
    if gone & symbols_of_value(made):  # something else than the image's borders asks for it
        return [] if places is None else _side_by_side(s, factors, replace(image, places=None))
    reading = _reading(s, {image.value: made, right: Load(weight.out, weight.index)})
    return [copy, weight, replace(reading, reduction=replace(s.reduction, axes=tuple(terms)))]


def _within(value: Value, borders: Sequence[Dim], guards: tuple[Dim, ...]) -> Value:
    """What is loaded inside of an image, by other guards of one dimension's borders."""
    match value:
        case Select(cond=Inside(exprs=found), a=inner, b=outside):
            return Select(Inside((*[g for g in found if g not in borders], *guards)), inner, outside)
    return Select(Inside(guards), value, Const(0, value.dtype))


def _is_dimension(x: Load, a: Axis) -> bool:
    """Is the axis one of the dimensions of what is read, as channels are, and nothing else of the place?"""
    own = [k for k, i in enumerate(x.index) if a.sym in symbols_at(i)]
    return len(own) == 1 and x.index[own[0]] == a.sym and x.buffer.shape[own[0]] == a.extent


def _run(a: Axis, gpu: Gpu, n_bytes: int) -> int:
    """How many neighbours along the axis one access has."""
    run = gpu.access_bytes // n_bytes
    while not is_known(a.extent) or a.extent % run:
        run //= 2
    return run


def _padded(channel: Axis, gpu: Gpu, n_bytes: int) -> Axis:
    """Channels up to a power of two, or up to whole accesses."""
    assert is_known(channel.extent)
    whole = gpu.access_bytes // n_bytes
    n = min(1 << (channel.extent - 1).bit_length(), -(-channel.extent // whole) * whole)
    return Axis(loop_symbol("channel", n), n)


def _with_zeros(s: Stage, name: str, value: Value, axes: tuple[Axis, ...], within: Sequence[Dim]) -> Stage:
    """The stage that copies what is read along the axes where nothing of ``within`` is negative, zeros elsewhere."""
    guards = tuple(g for g in within if not is_nonneg(g))
    out = Buffer(f"{s.out.name}_{name}", value.dtype, tuple(a.extent for a in axes))
    copied = Select(Inside(guards), value, Const(0, value.dtype)) if guards else value
    return Stage((out,), axes, syms(axes), (copied,))


def _laid_out(s: Stage, factors: Factors) -> list[Stage]:
    """The stages that lay out the factors of ``s``."""
    found = []
    for name, value, own in (("al", factors.left, factors.rows), ("bl", factors.right, factors.columns)):
        narrow, axes = unwidened(value), (*factors.batches, *own, *factors.terms)
        if lies_along(narrow, factors.terms) or lies_along(narrow, own) or not _is_whole(narrow, axes):
            continue
        out = Buffer(f"{s.out.name}_{name}", narrow.dtype, tuple(a.extent for a in axes))
        found.append(Stage((out,), axes, syms(axes), (narrow,)))
    return found


def _reading(s: Stage, instead: Mapping[Value, Value]) -> Stage:
    """The product with what was laid out in place of what it was read from."""
    return replace(s, exprs=tuple(rewrite_value(v, instead.get) for v in s.exprs))


def _is_whole(value: Value, axes: Sequence[Axis]) -> bool:
    """Is it a buffer of which every element is read once by all iterations of the axes?"""
    if not isinstance(value, Load):
        return False
    extents = {a.sym: a.extent for a in axes}
    found = [extents.pop(i, None) if isinstance(i, Sym) else None for i in value.index]
    return not extents and all(n == d for n, d in zip(found, value.buffer.shape, strict=True))
