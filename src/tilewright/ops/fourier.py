"""Fourier transforms of an axis, of a known length without large prime factors, in passes of small ones.

In: the type, arrays or nodes of signals. Out: the op's type rule, NumPy meaning and passes. Not its business: other
lengths that are known (``frontend.fourier``), those that a call decides (``fourier_chirp``, ``fourier_library``), what
a pass computes (``fourier_pass``).

Every pass takes ``r`` elements that lie apart, and neighbours of all of them are lanes of vectors. After Stockham, a
pass puts its ``r`` results in front of those neighbours, so that the last pass leaves everything in order. Of an axis
with others behind it, as the columns of an image, rows of those are the lanes. Of the last axis there are two forms:

* by batch: blocks of signals are turned over, ``[n, 2, block]``, those of a block are the lanes, and all is turned
  back at the end. ``r`` elements lie a power of two apart, in the same few sets of a cache: where both parts of a
  number are one line, and a vector takes it whole, no line has to stay until it is read again;
* by rows: ``n = n1 * n2``, and neighbours along ``n2`` are lanes for the passes over ``n1``; after one transposition
  those along ``n1`` are for the passes over ``n2`` (the four steps of Gentleman and Sande 1966). Of a batch too long
  for a near cache a row at a time fits it.

Of real signals the first pass makes only the first half of its results, and the rest of the work has half the size;
towards real signals all runs backwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Fma, Load, Value, walk
from tilewright.core.dims import is_known, known_multiple, known_under, numbers
from tilewright.core.expr import Dim, floordiv
from tilewright.core.graph import Attrs, Builder, Graph, Node, Pool
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType, product
from tilewright.ops import fourier_chirp
from tilewright.ops.butterflies import Number, transformed
from tilewright.ops.common import check, check_dtype, check_rank
from tilewright.ops.control import map_parts
from tilewright.ops.elementwise import mul
from tilewright.ops.fourier_pass import FORMS, fourier_pass
from tilewright.ops.movement import concat, reshape, reverse, transpose
from tilewright.ops.rules import Types
from tilewright.ops.source import full
from tilewright.ops.window import slice_

LARGEST_RADIX = 16
"""Its elements and results, two parts each, fill the 32 registers that wide vectors have."""
LARGEST_PRIME = 13
MOVED = 2.0
"""What reading or writing a part of an element costs, in additions."""
FEWEST_LANES = 8
BLOCK = 16
"""Signals side by side where nothing is known of a machine: f32 numbers of a cache line."""


def fits(n: Dim, batch: Dim) -> bool:
    """Is there a form for a batch of signals of length ``n``: in passes, or for any length where it is symbolic?"""
    if not is_known(n):
        return True
    return n > 1 and radices(n) is not None and (_is_by_batch(batch) or _halves(n) is not None)


def fits_real(n: Dim, batch: Dim) -> bool:
    """Likewise for real signals, or to them."""
    return fits(n, batch) and (not is_known(n) or bool(_real_radices(n, _is_by_batch(batch))))


def fits_rows(n: int, form: str) -> bool:
    """Is there a form in which a signal's own elements are the lanes?"""
    return _halves(n) is not None if form == "complex" else bool(_real_radices(n, by_batch=False))


def fits_columns(n: Dim, rows: Dim) -> bool:
    """Is there a form for an axis of ``n`` elements, behind which others have rows of so many elements?"""
    if not is_known(n):
        return True
    return n > 1 and radices(n) is not None and not known_under(rows, FEWEST_LANES)


def work(n: int) -> float:
    """What all passes cost an element of signals of length ``n``, in additions; moving it counts as some."""
    found = _cheapest(n)
    assert found is not None, f"{n} has a large prime factor"
    return found[0]


# --- the op ---------------------------------------------------------------------------------------------------------


def infer(ts: Types, a: Attrs) -> TensorType:
    """The type rule."""
    (x,) = ts
    check_dtype(x, (types.f32, types.f64))
    check(a.form in FORMS, lambda: f"form {a.form!r} is not among {', '.join(FORMS)}")
    check(abs(a.sign) == 1, lambda: f"the exponent's sign is 1 or -1, not {a.sign}")
    check(a.block > 0, lambda: f"blocks of {a.block} signals")
    check(a.part >= 0 and a.n_threads > 0, lambda: f"parts of {a.part} signals for {a.n_threads} threads")
    check(a.inner == 0 or (a.inner > 0 and a.form == "complex"), lambda: f"{a.form}, with {a.inner} axes behind")
    check_rank(x, a.inner + (1 if a.form == "real" else 2))
    if a.inner:
        check(not a.by_rows, lambda: "transforms of an axis before others have no form by rows")
        check(
            x.shape[-2 - a.inner] == a.n and x.shape[-1] == 2,
            lambda: f"{x} has no {a.n} pairs of elements before its last {a.inner} axes",
        )
        rows = product(x.shape[-1 - a.inner : -1])
        check(fits_columns(a.n, rows), lambda: f"{a.n} elements, each of {rows} numbers, have no form in passes")
        return x
    fit = a.kept == 0 or (a.form == "real" and is_known(a.n) and 0 < a.kept <= a.n)
    check(fit, lambda: f"{a.kept} results of {a.form} transforms of {a.n} elements")
    read, written = _ends(a.n, a.form, a.kept)
    check(x.shape[x.rank - len(read) :] == read, lambda: f"{x} does not end with {read}")
    outer = x.shape[: x.rank - len(read)]
    fit = (fits if a.form == "complex" else fits_real)(a.n, product(outer))
    check(fit, lambda: f"{product(outer)} signals of {a.n} elements have no form in passes")
    check(
        not a.by_rows or (is_known(a.n) and fits_rows(a.n, a.form)),
        lambda: f"signals of {a.n} elements have no form by rows",
    )
    return x.with_shape((*outer, *written))


def _ends(n: Dim, form: str, kept: int = 0) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The last axes that are read and written."""
    whole, half = (n, 2), (floordiv(n, 2) + 1, 2)
    return {"complex": (whole, whole), "real": ((n,), (kept or half[0], 2)), "hermitian": (half, (n,))}[form]


def reference(xs: Sequence[Array], a: Attrs) -> Array:
    """The meaning, in NumPy."""
    x = xs[0].astype(np.float64)
    if a.form != "real":
        x = x[..., 0] + 1j * x[..., 1]
    if a.form == "hermitian":
        return np.asarray(np.fft.irfft(x if a.sign > 0 else x.conj(), a.n) * a.n * a.scale).astype(xs[0].dtype)
    if a.inner:
        made = np.fft.fft(x if a.sign < 0 else x.conj(), axis=-1 - a.inner) * a.scale
    else:
        made = np.fft.fft(x if a.sign < 0 else x.conj())[..., : _ends(a.n, a.form, a.kept)[1][0]] * a.scale
    made = made if a.sign < 0 else made.conj()
    return np.stack([made.real, made.imag], -1).astype(xs[0].dtype)


def _decompose(b: Builder, xs: tuple[Node, ...], a: Attrs) -> Node:
    (x,), n = xs, a.n
    if not is_known(n):
        return _by_chirp(b, x, a)
    read: tuple[Dim, ...]
    end: tuple[Dim, ...]
    if a.inner:
        outer, rows = x.shape[: -2 - a.inner], product(x.shape[-1 - a.inner : -1])
        read, end = (n, rows, 2), x.shape[-2 - a.inner :]
    else:
        read, end = _ends(n, a.form, a.kept)
        outer = x.shape[: len(x.shape) - len(read)]
    batch = product(outer)
    flat = b(reshape, x, shape=(batch, *read))
    n_parts = batch // a.part if a.part and is_known(batch) and batch % a.part == 0 else 1
    if n_parts > 1:
        pool = Pool()
        signals = pool.input("x", TensorType(x.dtype, (a.part, *read)))
        made = _transformed(Builder(pool, b.loc), signals, a)
        body = Graph("signals", pool, (signals,), (made,), ("y",))
        made = b(map_parts, flat, body=body, n_parts=n_parts, n_cut=1, n_threads=min(a.n_threads, n_parts))
    else:
        made = _transformed(b, flat, a)
    return b(reshape, made, shape=(*outer, *end))


def _transformed(b: Builder, x: Node, a: Attrs) -> Node:
    """The transforms of ``[batch, ..]``, ``[batch, ..]`` too."""
    batch, *read = x.shape
    if a.inner:
        return _columns_of_images(b, x, a.sign, a.block, a.scale)
    if a.by_rows or not _is_by_batch(batch):
        return _BY_ROWS[a.form](b, x, a)
    is_whole = known_multiple(batch, a.block)
    blocks, lanes = (batch // a.block, a.block) if is_whole else (1, batch)
    made = _BY_BATCH[a.form](b, b(reshape, x, shape=(blocks, lanes, *read)), a, is_whole)
    return b(reshape, made, shape=(batch, *_ends(a.n, a.form, a.kept)[1]))


def _by_chirp(b: Builder, x: Node, a: Attrs) -> Node:
    """Of a length that each call decides: of complex numbers, whatever the form, along the last axis."""
    rank = x.type.rank
    if a.form == "real":
        parts = fourier_chirp.NumberParts(x, b(full, value=0.0, dtype=x.dtype, shape=x.shape))
    else:
        first = [_cut(b, x, -1, k, 1) for k in range(2)]
        parts = fourier_chirp.NumberParts(*(b(reshape, p, shape=x.shape[:-1]) for p in first))
    if a.form == "hermitian":
        parts = fourier_chirp.mirrored(b, parts, a.n)
    axes = range(rank - (a.form != "real"))
    axis = axes[-1 - a.inner]
    ahead = (*(k for k in axes if k != axis), axis)
    back = tuple(ahead.index(k) for k in axes)
    made = fourier_chirp.transform(b, fourier_chirp.NumberParts(*(b(transpose, p, perm=ahead) for p in parts)), a.sign)
    made = fourier_chirp.NumberParts(*(b(mul, b(transpose, p, perm=back), b.const(a.scale, x.dtype)) for p in made))
    if a.form == "hermitian":
        return made.re
    kept = [_cut(b, p, -1, 0, floordiv(a.n, 2) + 1) if a.form == "real" else p for p in made]
    return b(concat, *(b(reshape, p, shape=(*p.shape, 1)) for p in kept), axis=len(axes))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for form in FORMS:
        for batch, n in ((8, 6), (16, 35), (24, 64), (1, 128), (2, 240)):
            if form == "complex" or fits_real(n, batch):
                x = rng.standard_normal((batch, *numbers(_ends(n, form)[0])))
                scale = 1 / n if batch > 8 else 1.0
                attrs = {"n": n, "sign": -1 if batch % 3 else 1, "form": form, "block": 8, "scale": scale}
                by_rows = fits_rows(n, form)
                yield Sample((x,), attrs | ({"part": 8, "n_threads": 2, "by_rows": by_rows} if batch > 8 else {}))
    yield Sample((rng.standard_normal((2, 8, 12, 2)).astype(np.float32),), {"n": 12, "sign": 1})
    for batch, n, kept in ((16, 12, 10), (2, 128, 80)):
        yield Sample((rng.standard_normal((batch, n)),), {"n": n, "sign": -1, "form": "real", "kept": kept})
    for shape, inner, part in (((2, 6, 9, 2), 1, 0), ((4, 20, 3, 4, 2), 2, 2)):
        attrs = {"n": shape[1], "sign": 1 - 2 * (inner % 2), "inner": inner, "part": part, "scale": 0.5 * inner}
        yield Sample((rng.standard_normal(shape),), attrs)


fourier = OpDef(
    "fourier",
    ("x",),
    {
        "n": AttrDef("dim"), "sign": AttrDef("int"), "form": AttrDef("str", "complex"),
        "block": AttrDef("int", BLOCK), "scale": AttrDef("float", 1.0),
        "part": AttrDef("int", 0), "n_threads": AttrDef("int", 1), "by_rows": AttrDef("bool", False),
        "inner": AttrDef("int", 0), "kept": AttrDef("int", 0),
    },
    infer,
    reference,
    decompose=_decompose,
    samples=_samples,
    doc="Fourier transforms of length n, which a call may decide, along the last axis, times scale, with an exponent "
    "of that sign: of complex numbers in pairs along an axis behind it; "
    "of real ones, the first n // 2 + 1 results, or as many as ``kept`` says "
    "where that is not 0; or to real ones, from the first n // 2 + 1. Those of complex numbers may be along an axis "
    "with ``inner`` others behind it. ``block`` is how many signals of a large batch lie side by side meanwhile, and "
    "``part`` how many are done with before the next ones are begun, or 0 for all, by up to ``n_threads`` threads; "
    "with others behind the axis it counts what lies before it. "
    "With ``by_rows`` none lie side by side, and vectors hold elements of one signal.",
)  # fmt: skip


# --- columns: [batch, n, rows, 2] -----------------------------------------------------------------------------------


def _columns_of_images(b: Builder, x: Node, sign: int, block: int, scale: float) -> Node:
    """Along ``n``. Rows that don't fill vectors become longer with every pass."""
    batch, n, rows, _ = x.shape
    assert is_known(n)
    y = b(reshape, b(transpose, x, perm=(0, 1, 3, 2)), shape=(batch, n, 1, 1, 2, rows))
    is_whole = known_multiple(rows, block)
    y = _columns(b, y, "armbcs", n, sign, in_pairs=is_whole, scale=scale)
    shape, back = ((batch, n, 2, rows), (0, 1, 3, 2)) if is_whole else ((batch, 2, n, rows), (0, 2, 3, 1))
    return b(transpose, b(reshape, y, shape=shape), perm=back)


# --- by batch: [blocks, lanes, ..] ----------------------------------------------------------------------------------


def _complex_by_batch(b: Builder, x: Node, a: Attrs, is_whole: bool) -> Node:
    (blocks, lanes), n, sign, scale = x.shape[:2], a.n, a.sign, a.scale
    y = b(reshape, b(transpose, x, perm=(0, 2, 3, 1)), shape=(blocks, n, 1, 1, 2, lanes))
    y = _columns(b, y, "armbcs", n, sign, in_pairs=is_whole, scale=scale)
    shape, back = ((blocks, n, 2, lanes), (0, 3, 1, 2)) if is_whole else ((blocks, 2, n, lanes), (0, 3, 2, 1))
    return b(transpose, b(reshape, y, shape=shape), perm=back)


def _real_by_batch(b: Builder, x: Node, a: Attrs, is_whole: bool) -> Node:
    (blocks, lanes), n, sign, scale = x.shape[:2], a.n, a.sign, a.scale
    r = _real_radix(n, by_batch=True)
    rest, half = n // r, r // 2 + 1
    y = b(reshape, b(transpose, x, perm=(0, 2, 1)), shape=(blocks, r, rest, 1, 1, lanes))
    turns = _turns(b, y, sign, half, rest, n, "m", scale)
    y = _pass(b, y, r, sign, "real", "armbcs", "amrbcs" if is_whole else "acmrbs", turns)
    y = _along(b, y, rest, half, lanes, sign, is_whole)
    if not is_whole:
        y = b(transpose, y, perm=(0, 2, 3, 1, 4))
    return b(transpose, _first_results(b, y, r, 1, a.kept), perm=(0, 3, 1, 2))


def _hermitian_by_batch(b: Builder, x: Node, a: Attrs, is_whole: bool) -> Node:
    (blocks, lanes), n, sign, scale = x.shape[:2], a.n, a.sign, a.scale
    r = _real_radix(n, by_batch=True)
    rest, half = n // r, r // 2 + 1
    y = _folded(b, b(transpose, x, perm=(0, 2, 3, 1)), n, r)
    if not is_whole:  # the half of r becomes neighbours, as lanes are
        y = b(transpose, y, perm=(0, 3, 1, 2, 4))
    y = _along(b, y, rest, half, lanes, sign, is_whole)
    shape = (blocks, rest, half, 1, 2, lanes) if is_whole else (blocks, 2, rest, half, 1, lanes)
    turns = _turns(b, y, sign, half, rest, n, "m", scale)
    reads = "amrbcs" if is_whole else "acmrbs"
    y = _pass(b, b(reshape, y, shape=shape), r, sign, "hermitian", reads, "armbcs", turns)
    return b(transpose, b(reshape, y, shape=(blocks, n, lanes)), perm=(0, 2, 1))


def _along(b: Builder, x: Node, n: int, beside: int, lanes: Dim, sign: int, is_whole: bool) -> Node:
    """Transforms of ``[blocks, n, beside, 2, lanes]``; of a ragged batch ``[blocks, 2, n, beside, lanes]``.

    Vectors of a ragged batch go on from one row into the next: there rows become longer with every pass.
    """
    blocks = x.shape[0]
    shape: tuple[Dim, ...] = (blocks, n, 1, beside, 2, lanes) if is_whole else (blocks, 2, n, 1, 1, beside * lanes)
    y = b(reshape, x, shape=shape)
    if n > 1:
        y = _columns(b, y, "armbcs" if is_whole else "acrmbs", n, sign, in_pairs=is_whole)
    return b(reshape, y, shape=(blocks, n, beside, 2, lanes) if is_whole else (blocks, 2, n, beside, lanes))


# --- by rows: [batch, ..] -------------------------------------------------------------------------------------------


def _complex_by_rows(b: Builder, x: Node, a: Attrs) -> Node:
    return b(transpose, _rows(b, b(transpose, x, perm=(0, 2, 1)), a.n, a.sign, a.scale), perm=(0, 2, 1))


def _real_by_rows(b: Builder, x: Node, a: Attrs) -> Node:
    batch, n, sign, r = x.shape[0], a.n, a.sign, _real_radix(a.n, by_batch=False)
    rest, half = n // r, r // 2 + 1
    y = b(reshape, x, shape=(batch, r, 1, 1, 1, rest))
    y = _pass(b, y, r, sign, "real", "armbcs", "armbcs", _turns(b, y, sign, half, rest, n, "s"))
    y = _rows(b, b(reshape, y, shape=(batch * half, 2, rest)), rest, sign, a.scale)
    y = b(transpose, b(reshape, y, shape=(batch, half, 2, rest)), perm=(3, 1, 2, 0))
    return b(transpose, _first_results(b, y, r, 0, a.kept), perm=(2, 0, 1))


def _hermitian_by_rows(b: Builder, x: Node, a: Attrs) -> Node:
    batch, n, sign, r = x.shape[0], a.n, a.sign, _real_radix(a.n, by_batch=False)
    rest, half = n // r, r // 2 + 1
    y = _cut(b, b(reshape, _whole(b, x, n, 1, 2), shape=(batch, rest, r, 2)), 2, 0, half)
    y = b(reshape, b(transpose, y, perm=(0, 2, 3, 1)), shape=(batch * half, 2, rest))
    y = b(reshape, _rows(b, y, rest, sign, a.scale), shape=(batch, half, 2, 1, 1, rest))
    return _pass(b, y, r, sign, "hermitian", "arcmbs", "armbcs", _turns(b, y, sign, half, rest, n, "s"))


_BY_BATCH = {"complex": _complex_by_batch, "real": _real_by_batch, "hermitian": _hermitian_by_batch}
_BY_ROWS = {"complex": _complex_by_rows, "real": _real_by_rows, "hermitian": _hermitian_by_rows}


# --- passes ---------------------------------------------------------------------------------------------------------


def _columns(
    b: Builder,
    x: Node,
    reads: str,
    n: int,
    sign: int,
    *,
    in_pairs: bool = False,
    last: Array | None = None,
    scale: float = 1.0,
) -> Node:
    """Transforms of length ``n`` along r of all neighbours, ``m`` being 1, in order in front of what lay behind them.

    Results ``in_pairs`` have the parts of a number beside each other, ``[a, n, b, 2, s]``. Else rows become longer with
    every pass, to ``[a, 2, n, s]``. ``last`` are turns of the results, by their place and the neighbour's. The first
    pass multiplies by ``scale``.
    """
    size = dict(zip(reads, x.shape, strict=True))
    batch, beside, lanes, left = size["a"], size["b"], size["s"], n
    chosen = radices(n)
    assert chosen is not None
    for r in chosen:
        rest = left // r
        shape = {"a": batch, "r": r, "m": rest, "b": beside, "c": 2, "s": lanes}
        x = b(reshape, x, shape=tuple(shape[axis] for axis in reads))
        table = _turns(b, x, sign, r, rest, left, "m", scale)
        if rest == 1 and last is not None:
            table = b.const(np.moveaxis(last.reshape(r, 1, -1, 2), -1, 2), x.dtype)
        x = _pass(b, x, r, sign, "complex", reads, "amrbcs" if in_pairs else "amcrbs", table)
        left, reads, scale = rest, "armbcs", 1.0
        beside, lanes = (beside * r, lanes) if in_pairs else (beside, lanes * r)
    return x


def _rows(b: Builder, x: Node, n: int, sign: int, scale: float) -> Node:
    """Transforms of rows ``[a, 2, n]``, times ``scale``."""
    batch = x.shape[0]
    halves = _halves(n)
    assert halves is not None
    n1, n2 = halves
    turns = scale * _angles(np.outer(np.arange(n1), np.arange(n2)), sign, n)
    x = _columns(b, b(reshape, x, shape=(batch, 2, n1, 1, 1, n2)), "acrmbs", n1, sign, last=turns)
    x = b(transpose, b(reshape, x, shape=(batch, 2, n1, n2)), perm=(0, 1, 3, 2))
    x = _columns(b, b(reshape, x, shape=(batch, 2, n2, 1, 1, n1)), "acrmbs", n2, sign)
    return b(reshape, x, shape=(batch, 2, n))


def _pass(
    b: Builder, x: Node, r: int, sign: int, form: str, reads: str, writes: str, table: Node | None = None
) -> Node:
    turns = () if table is None else (table,)
    return b(fourier_pass, x, *turns, n=r, sign=sign, form=form, reads=reads, writes=writes)


def _turns(
    b: Builder, x: Node, sign: int, rows: int, columns: int, n: int, axis: str, scale: float = 1.0
) -> Node | None:
    """The table of a pass, or None where nothing is turned or scaled."""
    return b.const(_table(sign, rows, columns, n, axis, scale), x.dtype) if columns > 1 or scale != 1 else None


def _table(sign: int, rows: int, columns: int, n: int, axis: str, scale: float) -> Array:
    """``scale exp(sign 2 pi i j k / n)`` for j < rows, and k < columns along m or s: a table of a pass.

    The row of j = 0, which turns nothing, is left out where nothing is scaled either.
    """
    kept = np.arange(int(scale == 1), rows)
    turns = np.moveaxis(scale * _angles(np.outer(kept, np.arange(columns)), sign, n), -1, 1)
    return turns[:, None] if axis == "s" else np.moveaxis(turns, 1, 2)[..., None]


def _angles(turns: Array, sign: int, n: int) -> Array:
    angle = sign * 2 * math.pi * (turns % n) / n
    return np.stack([np.cos(angle), np.sin(angle)], -1)


# --- choices --------------------------------------------------------------------------------------------------------


def _is_by_batch(batch: Dim) -> bool:
    """Are there enough signals for a vector? Of a number that is not known, yes."""
    return not known_under(batch, FEWEST_LANES)


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


def _cut(b: Builder, x: Node, axis: int, start: int, count: Dim) -> Node:
    """``count`` places of an axis."""
    axis %= len(x.shape)
    starts = tuple(start if k == axis else 0 for k in range(len(x.shape)))
    stops = tuple(start + count if k == axis else d for k, d in enumerate(x.shape))
    return b(slice_, x, starts=starts, stops=stops, steps=(1,) * len(x.shape))


def _first_results(b: Builder, x: Node, r: int, axis: int, kept: int) -> Node:
    """The first ``kept`` or ``n // 2 + 1`` of ``[.., n, 2, lanes]``, of ``[.., n // r, r // 2 + 1, 2, lanes]``.

    Rows of ``r`` end in conjugates of what mirrored rows begin with.
    """
    rest, others = int(x.shape[axis]), (r - 1) // 2  # type: ignore[arg-type]
    last = kept - 1 if kept else rest * r // 2
    rows = last // r + 1
    y = _cut(b, x, axis, 0, rows)
    if others > 0:
        far = _cut(b, _cut(b, x, axis, rest - rows, rows), axis + 1, 1, others)
        y = b(concat, y, _conjugate(b, b(reverse, far, axes=(axis, axis + 1)), axis + 2), axis=axis + 1)
    y = b(reshape, y, shape=(*x.shape[:axis], rows * r, *x.shape[axis + 2 :]))
    return _cut(b, y, axis, 0, last + 1)


def _folded(b: Builder, x: Node, n: int, r: int) -> Node:
    """``[batch, n // r, r // 2 + 1, 2, ..]`` of ``[batch, n // 2 + 1, 2, ..]``: the first half of each row of ``r``.

    The upper ones of ``r`` neighbours are conjugates of lower ones, which the last pass does without; and the rows
    beyond the middle are conjugates of those before it, read from their ends.
    """
    (batch, _, *tail), half, rows = x.shape, r // 2 + 1, n // 2 // r
    parts: list[Node] = []
    if rows:
        shape = (batch, rows, r, *tail)
        parts.append(_cut(b, b(reshape, _cut(b, x, 1, 0, rows * r), shape=shape), 2, 0, half))
    if n // r % 2:  # a row lies across the middle
        parts.append(b(reshape, _cut(b, x, 1, rows * r, half), shape=(batch, 1, half, *tail)))
    if rows:
        ends = _cut(b, b(reshape, _cut(b, x, 1, 1, rows * r), shape=shape), 2, r - half, half)
        parts.append(_conjugate(b, b(reverse, ends, axes=(1, 2)), 3))
    return b(concat, *parts, axis=1) if len(parts) > 1 else parts[0]


def _whole(b: Builder, x: Node, n: int, axis: int, part_axis: int) -> Node:
    """All ``n`` elements along an axis of which the first half is given."""
    others = (n - 1) // 2
    if others == 0:
        return _cut(b, x, axis, 0, n)
    tail = _conjugate(b, b(reverse, _cut(b, x, axis, 1, others), axes=(axis,)), part_axis)
    return b(concat, x, tail, axis=axis)


def _conjugate(b: Builder, x: Node, axis: int) -> Node:
    signs = np.array([1.0, -1.0]).reshape(2, *[1] * (len(x.shape) - axis - 1))
    return b(mul, x, b.const(signs, x.dtype))
