"""Fast Fourier transforms in passes of small ones, whose vectors run along the batch or along the signal.

In: pairs, or real nodes, whose last axis has a length without large prime factors. Out: the transforms, unscaled.
Not its business: other lengths (``fourier``), what a pass computes (``ops.fourier``).

Every pass takes ``r`` elements that lie apart, and neighbours of all of them are lanes of vectors. After Stockham, a
pass puts its ``r`` results in front of those neighbours, so that the last pass leaves everything in order. Two forms:

* by batch: the signals are turned over, ``[n, batch]``, the batch is the neighbours, and all is turned back at the end,
  in blocks of a cache line of signals where the batch has whole ones;
* by rows: ``n = n1 * n2``, and neighbours along ``n2`` are lanes for the passes over ``n1``; after one transposition
  those along ``n1`` are for the passes over ``n2`` (the four steps of Gentleman and Sande 1966).

Of real signals the first pass makes only the first half of its results, and the rest of the work has half the size;
towards real signals all runs backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Fma, Load, Value, walk
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.types import Array, product
from tilewright.frontend.complex_pairs import Pair, from_parts, join_parts
from tilewright.ops.butterflies import Number, transformed

LARGEST_RADIX = 16
"""Its elements and results, two parts each, fill the 32 registers that wide vectors have."""
LARGEST_PRIME = 13
MOVED = 2.0
"""What reading or writing a part of an element costs, in additions."""
FEWEST_LANES = 8
LINE = 16
"""Signals side by side in a block: f32 numbers of a cache line. Among all signals of a large batch elements lie whole
pages apart, on the same few lines of the cache, and each pass of radix 16 takes two to five times as long."""


def fits(n: int, batch: Dim) -> bool:
    """Is there a form in passes for a batch of signals of length ``n``?"""
    return n > 1 and radices(n) is not None and (_is_by_batch(batch) or _halves(n) is not None)


def fits_real(n: int, batch: Dim) -> bool:
    """Likewise for real signals, or to them."""
    return fits(n, batch) and bool(_real_radices(n, _is_by_batch(batch)))


def complex_transform(b: Builder, x: Pair, sign: int) -> Pair:
    """The transform of the last axis of a pair."""
    outer, n = x.shape[:-1], _length(x.re)
    batch = product(outer)
    if _is_by_batch(batch):
        blocks, lanes = _blocks(batch)
        made = _columns(b, b(ops.reshape, _over(b, x, batch), shape=(blocks, n, 1, 2, lanes)), "armcs", n, sign)
        made = b(ops.transpose, b(ops.reshape, made, shape=(blocks, 2, n, lanes)), perm=(0, 3, 2, 1))
        return from_parts(b, b(ops.reshape, made, shape=(*outer, n, 2)))
    made = _rows(b, _joined(b, (x.re, x.im), (batch, 1, n)), n, sign)
    return Pair(*(b(ops.reshape, _cut(b, made, 1, k, 1), shape=(*outer, n)) for k in range(2)))


def transform_of_real(b: Builder, x: Node, sign: int) -> Pair:
    """The first ``n // 2 + 1`` elements of the transform of a real node's last axis."""
    outer, n = x.shape[:-1], _length(x)
    n_out, batch, by_batch = n // 2 + 1, product(outer), _is_by_batch(product(outer))
    r = _real_radix(n, by_batch)
    rest, half = n // r, r // 2 + 1
    table = b.const(_table(sign, half, rest, n, "m" if by_batch else "s"), x.dtype)
    if by_batch:
        blocks, lanes = _blocks(batch)
        x = b(ops.transpose, b(ops.reshape, x, shape=(blocks, lanes, n)), perm=(0, 2, 1))
        x = b(ops.reshape, x, shape=(blocks, r, rest, 1, lanes))
        x = _pass(b, x, r, sign, "real", "armcs", "amcrs", table if rest > 1 else None)
        if rest > 1:
            x = _columns(b, b(ops.reshape, x, shape=(blocks, rest, 1, 2, half * lanes)), "armcs", rest, sign)
        x = b(ops.transpose, b(ops.reshape, x, shape=(blocks, 2, rest, half, lanes)), perm=(0, 2, 3, 1, 4))
        return _back(b, _cut(b, _unfolded(b, x, r, 1), 1, 0, n_out), (*outer, n_out))
    x = _pass(b, b(ops.reshape, x, shape=(batch, r, 1, 1, rest)), r, sign, "real", "armcs", "armcs", table)
    x = _rows(b, b(ops.reshape, x, shape=(batch * half, 2, rest)), rest, sign)
    x = b(ops.transpose, b(ops.reshape, x, shape=(batch, half, 2, rest)), perm=(3, 1, 2, 0))
    x = b(ops.transpose, _cut(b, _unfolded(b, x, r, 0), 0, 0, n_out), perm=(2, 0, 1))
    return from_parts(b, b(ops.reshape, x, shape=(*outer, n_out, 2)))


def transform_to_real(b: Builder, x: Pair, n: int, sign: int) -> Node:
    """The real signals of length ``n`` of whose transforms ``x`` is the first half."""
    outer, batch = x.shape[:-1], product(x.shape[:-1])
    by_batch = _is_by_batch(batch)
    r = _real_radix(n, by_batch)
    rest, half = n // r, r // 2 + 1
    table = b.const(_table(sign, half, rest, n, "m" if by_batch else "s"), x.dtype)
    if by_batch:
        blocks, lanes = _blocks(batch)
        y = _whole(b, _over(b, x, batch), n, 1, 2)
        # of every r neighbours the upper ones are conjugates of lower ones, which the last pass does without
        y = _cut(b, b(ops.reshape, y, shape=(blocks, rest, r, 2, lanes)), 2, 0, half)
        if rest > 1:
            y = b(ops.transpose, y, perm=(0, 3, 1, 2, 4))  # the half of r becomes neighbours, as lanes are
            y = _columns(b, b(ops.reshape, y, shape=(blocks, 2, rest, 1, half * lanes)), "acrms", rest, sign)
            y = b(ops.reshape, y, shape=(blocks, 2, rest, half, lanes))
            y = _pass(b, y, r, sign, "hermitian", "acmrs", "armcs", table)
        else:  # one pass does it all, and has no turns
            y = b(ops.reshape, y, shape=(blocks, half, 1, 2, lanes))
            y = _pass(b, y, r, sign, "hermitian", "armcs", "armcs")
        y = b(ops.transpose, b(ops.reshape, y, shape=(blocks, n, lanes)), perm=(0, 2, 1))
        return b(ops.reshape, y, shape=(*outer, n))
    whole = [mirrored(b, b(ops.reshape, part, shape=(batch, n // 2 + 1)), n, k) for k, part in enumerate((x.re, x.im))]
    folded = [_cut(b, b(ops.reshape, part, shape=(batch, rest, r)), 2, 0, half) for part in whole]
    turned = [b(ops.transpose, part, perm=(0, 2, 1)) for part in folded]
    y = _rows(b, _joined(b, turned, (batch * half, 1, rest)), rest, sign)
    y = b(ops.reshape, y, shape=(batch, half, 2, 1, rest))
    return b(ops.reshape, _pass(b, y, r, sign, "hermitian", "arcms", "armcs", table), shape=(*outer, n))


# --- passes ---------------------------------------------------------------------------------------------------------


def _columns(b: Builder, x: Node, reads: str, n: int, sign: int, last: Array | None = None) -> Node:
    """Transforms of length ``n`` along r of all neighbours, ``m`` being 1, to ``[a, 2, n, s]`` but for 1 long axes.

    ``last`` are turns of the results, by their place and the neighbour's.
    """
    size = dict(zip(reads, x.shape, strict=True))
    batch, lanes, left = size["a"], size["s"], n
    chosen = radices(n)
    assert chosen is not None
    for r in chosen:
        rest = left // r
        shape = {"a": batch, "r": r, "m": rest, "c": 2, "s": lanes}
        x = b(ops.reshape, x, shape=tuple(shape[axis] for axis in reads))
        table = None
        if rest > 1:
            table = b.const(_table(sign, r, rest, left, "m"), x.dtype)
        elif last is not None:
            table = b.const(np.moveaxis(last.reshape(r, 1, -1, 2), -1, 2), x.dtype)
        x = _pass(b, x, r, sign, "complex", reads, "amcrs", table)
        left, lanes, reads = rest, lanes * r, "armcs"
    return x


def _rows(b: Builder, x: Node, n: int, sign: int) -> Node:
    """Transforms of rows ``[a, 2, n]``."""
    batch = x.shape[0]
    halves = _halves(n)
    assert halves is not None
    n1, n2 = halves
    turns = _angles(np.outer(np.arange(n1), np.arange(n2)), sign, n)
    x = _columns(b, b(ops.reshape, x, shape=(batch, 2, n1, 1, n2)), "acrms", n1, sign, turns)
    x = b(ops.transpose, b(ops.reshape, x, shape=(batch, 2, n1, n2)), perm=(0, 1, 3, 2))
    x = _columns(b, b(ops.reshape, x, shape=(batch, 2, n2, 1, n1)), "acrms", n2, sign)
    return b(ops.reshape, x, shape=(batch, 2, n))


def _pass(
    b: Builder, x: Node, r: int, sign: int, form: str, reads: str, writes: str, table: Node | None = None
) -> Node:
    turns = () if table is None else (table,)
    return b(ops.fourier_pass, x, *turns, n=r, sign=sign, form=form, reads=reads, writes=writes)


def _table(sign: int, rows: int, columns: int, n: int, axis: str) -> Array:
    """``exp(sign 2 pi i j k / n)`` for 0 < j < rows, and k < columns along m or s: a table of a pass."""
    turns = np.moveaxis(_angles(np.outer(np.arange(1, rows), np.arange(columns)), sign, n), -1, 1)
    return turns[:, None] if axis == "s" else np.moveaxis(turns, 1, 2)[..., None]


def _angles(turns: Array, sign: int, n: int) -> Array:
    angle = sign * 2 * math.pi * (turns % n) / n
    return np.stack([np.cos(angle), np.sin(angle)], -1)


# --- choices --------------------------------------------------------------------------------------------------------


def _is_by_batch(batch: Dim) -> bool:
    """Are there enough signals for a vector? Of a number that is not known, yes."""
    return not isinstance(batch, int) or batch >= FEWEST_LANES


@cache
def radices(n: int) -> tuple[int, ...] | None:
    """The cheapest passes of a length, the largest first; None where a prime factor is too large."""
    found = _cheapest(n)
    return None if found is None else tuple(sorted(found[1], reverse=True))


@cache
def _cheapest(n: int) -> tuple[float, tuple[int, ...]] | None:
    """Price for each element, and the passes."""
    if n == 1:
        return 0.0, ()
    found = []
    for r in range(2, LARGEST_RADIX + 1):
        rest = _cheapest(n // r) if n % r == 0 and _largest_prime(r) <= LARGEST_PRIME else None
        if rest is not None:
            found.append((_price(r) / r + rest[0], (r, *rest[1])))
    return min(found, default=None)


@cache
def _price(r: int) -> float:
    """Additions and products of a pass for ``r`` elements, and what moving them costs."""
    x = Buffer("x", types.f64, (2, r))
    made = transformed([Number(Load(x, (0, k)), Load(x, (1, k))) for k in range(r)], -1)
    parts = [part for v in made for part in (v.re, v.im) if part is not None]
    seen: set[Value] = set()
    for part in parts:
        seen.update(walk(part))
    turned = 6 * (r - 1)
    return sum(1 + isinstance(v, Fma) for v in seen if not isinstance(v, Load | Const)) + turned + 4 * r * MOVED


def _largest_prime(n: int) -> int:
    return max((p for p in range(2, n + 1) if n % p == 0 and all(p % q for q in range(2, p))), default=1)


@cache
def _halves(n: int) -> tuple[int, int] | None:
    """Two factors, both with lanes enough, as equal as they can be; None without such."""
    found = [d for d in range(FEWEST_LANES, math.isqrt(n) + 1) if n % d == 0 and radices(d) and radices(n // d)]
    return (n // found[-1], found[-1]) if found else None


def _real_radix(n: int, by_batch: bool) -> int:
    """The radix of the pass that has real numbers on one side: an even one saves most."""
    chosen = radices(n) or ()
    return max(_real_radices(n, by_batch), key=lambda r: (r % 2 == 0, r in chosen, r))


def _real_radices(n: int, by_batch: bool) -> list[int]:
    able = [r for r in range(2, LARGEST_RADIX + 1) if n % r == 0 and radices(r) and radices(n // r) is not None]
    return [r for r in able if by_batch or _halves(n // r) is not None]


# --- moving ---------------------------------------------------------------------------------------------------------


def _length(x: Node) -> int:
    n = x.shape[-1]
    assert isinstance(n, int)
    return n


def _blocks(batch: Dim) -> tuple[Dim, Dim]:
    """Blocks of signals, and signals side by side in each: lines of the cache where they come out even."""
    return (batch // LINE, LINE) if isinstance(batch, int) and batch % LINE == 0 else (1, batch)


def _over(b: Builder, x: Pair, batch: Dim) -> Node:
    """``[blocks, n, 2, lanes]`` of a batch of signals."""
    blocks, lanes = _blocks(batch)
    rows = b(ops.reshape, join_parts(b, x), shape=(blocks, lanes, _length(x.re), 2))
    return b(ops.transpose, rows, perm=(0, 2, 3, 1))


def _back(b: Builder, x: Node, shape: tuple[Dim, ...]) -> Pair:
    """The pair of ``shape`` of what lies as ``[blocks, n, 2, lanes]``."""
    n, (blocks, lanes) = shape[-1], _blocks(product(shape[:-1]))
    rows = b(ops.transpose, b(ops.reshape, x, shape=(blocks, n, 2, lanes)), perm=(0, 3, 1, 2))
    return from_parts(b, b(ops.reshape, rows, shape=(*shape, 2)))


def _joined(b: Builder, parts: Sequence[Node], shape: tuple[Dim, ...]) -> Node:
    """The parts of complex numbers along axis 1 of ``shape``; four axes become the five of a pass."""
    joined = b(ops.concat, *(b(ops.reshape, part, shape=shape) for part in parts), axis=1)
    return b(ops.reshape, joined, shape=(*joined.shape[:3], 1, *joined.shape[3:])) if len(shape) == 4 else joined


def _cut(b: Builder, x: Node, axis: int, start: int, count: int) -> Node:
    """``count`` places of an axis."""
    axis %= len(x.shape)
    starts = tuple(start if k == axis else 0 for k in range(len(x.shape)))
    stops = tuple(start + count if k == axis else d for k, d in enumerate(x.shape))
    return b(ops.slice, x, starts=starts, stops=stops, steps=(1,) * len(x.shape))


def _unfolded(b: Builder, x: Node, r: int, axis: int) -> Node:
    """``[.., n, 2, lanes]`` of ``[.., n // r, r // 2 + 1, 2, lanes]``, whose ``n // r`` is ``axis``."""
    rest, others = int(x.shape[axis]), (r - 1) // 2  # type: ignore[arg-type]
    if others > 0:
        mirror = b(ops.reverse, _cut(b, x, axis + 1, 1, others), axes=(axis, axis + 1))
        x = b(ops.concat, x, _conjugate(b, mirror, axis + 2), axis=axis + 1)
    return b(ops.reshape, x, shape=(*x.shape[:axis], rest * r, *x.shape[axis + 2 :]))


def _whole(b: Builder, x: Node, n: int, axis: int, part_axis: int) -> Node:
    """All ``n`` elements along an axis of which the first half is given."""
    others = (n - 1) // 2
    if others == 0:
        return _cut(b, x, axis, 0, n)
    tail = _conjugate(b, b(ops.reverse, _cut(b, x, axis, 1, others), axes=(axis,)), part_axis)
    return b(ops.concat, x, tail, axis=axis)


def _conjugate(b: Builder, x: Node, axis: int) -> Node:
    signs = np.array([1.0, -1.0]).reshape(2, *[1] * (len(x.shape) - axis - 1))
    return b(ops.mul, x, b.const(signs, x.dtype))


def mirrored(b: Builder, x: Node, n: int, part: int) -> Node:
    """All ``n`` elements along the last axis of a part of which the first half is given."""
    others = (n - 1) // 2
    if others == 0:
        return _cut(b, x, -1, 0, n)
    tail = b(ops.reverse, _cut(b, x, -1, 1, others), axes=(len(x.shape) - 1,))
    return b(ops.concat, x, b(ops.neg, tail) if part else tail, axis=len(x.shape) - 1)
