"""Fourier transforms of a length that each call decides, by a library that the process has anyway.

In: the type, arrays or buffers of signals. Out: the op's type rule, its NumPy meaning, and the sums that define it. Not
its business: which library (``runtime.cpu.transforms``), forms for programs without one (``fourier_chirp``).

Libraries have a form in ``n log n`` operations for every length, primes too. The kernel is for a call that a library
declines, as for lack of memory: ``n`` products for each result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    Load,
    Reduction,
    Select,
    Stage,
    Unary,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.expr import Dim, Sym, floordiv, mod
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import TensorType, product
from tilewright.ops.common import check, check_dtype, check_rank
from tilewright.ops.fourier import fourier
from tilewright.ops.linalg import is_at
from tilewright.ops.rules import Types
from tilewright.ops.stages import Items, index_value

SIGNS = {"complex": (-1, 1), "real": (-1,), "hermitian": (1,)}
"""Of the exponent, for each form that libraries have."""


def _infer(ts: Types, a: Attrs) -> TensorType:
    (x,) = ts
    check_dtype(x, (types.f32, types.f64))
    check(a.sign in SIGNS.get(a.form, ()), lambda: f"no library has {a.form} transforms of the sign {a.sign}")
    check(a.inner >= 0, lambda: f"{a.inner} axes behind")
    check_rank(x, a.inner + (1 if a.form == "real" else 2))
    outer, inner = _around(x.shape, a)
    half = floordiv(a.n, 2) + 1
    read = half if a.form == "hermitian" else a.n
    parts = () if a.form == "real" else (2,)
    check(x.shape == (*outer, read, *inner, *parts), lambda: f"{x} has no signals of {read} {a.form} numbers")
    made = {"complex": (a.n, *inner, 2), "real": (half, *inner, 2), "hermitian": (a.n, *inner)}[a.form]
    return x.with_shape((*outer, *made))


def _as_fourier(a: Attrs) -> Attrs:
    return Attrs({**{name: d.default for name, d in fourier.attrs.items()}, **a})


def _routine(ts: Types, a: Attrs) -> tuple[str, tuple[Dim, ...]]:
    """The sizes are how many arrays of signals there are, a signal's length, and how many lie beside each other."""
    outer, inner = _around(ts[0].shape, a)
    direction = "forward" if a.sign < 0 else "backward"
    return f"fourier_{a.form}_{direction}", (product(outer), a.n, product(inner))


def _around(shape: tuple[Dim, ...], a: Attrs) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Axes before that of the signals, and behind it."""
    axis = len(shape) - (1 if a.form == "real" else 2) - a.inner
    return shape[:axis], shape[axis + 1 : axis + 1 + a.inner]


def _kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    (x,), (out,), n = ins, outs, a.n
    outer, inner = _around(x.shape, a)
    roots = Buffer(f"{out.name}_roots", out.dtype, (n, 2))
    half = floordiv(n, 2) + 1
    read, written = {"complex": (n, n), "real": (n, half), "hermitian": (half, n)}[a.form]
    items: Items = [*_table(roots, n)]
    for part in range(1 if a.form == "hermitian" else 2):
        axes = axes_for((*outer, written, *inner))
        at = syms(axes)
        k, j = at[len(outer)], Axis(loop_symbol("j", read), read)
        turn = mod(k * j.sym, n)
        cosine, sine = Load(roots, (turn, 0)), Load(roots, (turn, 1))
        turned = sine if a.sign > 0 else Unary("neg", sine)
        here = (*at[: len(outer)], j.sym, *at[len(outer) + 1 :])
        term = _term(x, here, a.form, part, cosine, turned)
        if a.form == "hermitian":
            term = Select(_is_end(j.sym, n), Load(x, (*here, 0)) * cosine, Const(2, out.dtype) * term)
        index: tuple[Dim, ...] = at if a.form == "hermitian" else (*at, part)
        items.append(Stage((out,), axes, index, (term,), Reduction((j,), "add", (Const(0, out.dtype),))))
    return items


def _table(roots: Buffer, n: Dim) -> Iterator[Stage]:
    """``exp(2 pi i k / n)``, computed in f64."""
    for part, of in enumerate(("cos", "sin")):
        (axis,) = axes_for((n,))
        turns = Cast(Index(axis.sym), types.f64) / Cast(index_value(n), types.f64)
        angle = Const(2 * math.pi, types.f64) * turns
        yield Stage((roots,), (axis,), (axis.sym, part), (_cast(Unary(of, angle), roots),))


def _cast(v: Value, like: Buffer) -> Value:
    return v if v.dtype is like.dtype else Cast(v, like.dtype)


def _term(x: Buffer, at: tuple[Dim, ...], form: str, part: int, cosine: Value, sine: Value) -> Value:
    """A part of one number times a root."""
    if form == "real":
        return Load(x, at) * (sine if part else cosine)
    re, im = Load(x, (*at, 0)), Load(x, (*at, 1))
    return re * sine + im * cosine if part else re * cosine - im * sine


def _is_end(k: Sym, n: Dim) -> Value:
    """Whether a number of a half has no mirror image: the first, and of an even length the last."""
    return Binary("or", is_at(k, 0), is_at(2 * k, n))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for form, signs in SIGNS.items():
        for n in (1, 2, 5, 12):
            read = {"complex": (n, 2), "real": (n,), "hermitian": (n // 2 + 1, 2)}[form]
            yield Sample((rng.standard_normal((3, *read)),), {"n": n, "sign": signs[n % len(signs)], "form": form})
    x = rng.standard_normal((2, 6, 3, 2)).astype(np.float32)
    yield Sample((x,), {"n": 6, "sign": -1, "inner": 1})
    yield Sample((np.zeros((0, 4, 2)),), {"n": 4, "sign": -1})


fourier_library = OpDef(
    "fourier_library",
    ("x",),
    {
        "n": AttrDef("dim"), "sign": AttrDef("int"), "form": AttrDef("str", "complex"), "inner": AttrDef("int", 0),
    },
    _infer,
    lambda xs, a: fourier.reference(xs, _as_fourier(a)),
    kernel=_kernel,
    samples=_samples,
    routine=_routine,
    doc="As fourier, unscaled, of a length that a call decides: by a library that the process has, or as plain sums.",
)  # fmt: skip
