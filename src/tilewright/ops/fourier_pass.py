"""One pass of a fast Fourier transform: many small transforms of elements that lie apart, and their turns.

In: an array of the six axes below, and a table of complex factors. Out: the same, in an order of axes that the next
pass reads. Not its business: the passes of a length and their tables (``ops.fourier``).

The axes, each called by a letter: ``r``, the elements of one small transform and then its results; ``c``, real and
imaginary part (1 long where all is real); ``a``, ``m``, ``b`` and ``s``: transforms beside each other, of which ``s``
is always last and makes vectors, and ``m`` and ``s`` may tell which turn is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Inside, Load, Select, Stage, Value
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, Sym, is_nonneg
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.butterflies import Number, Part, to_real, transformed
from tilewright.ops.common import axis_over, check, check_dtype, check_equal_dtypes, check_rank
from tilewright.ops.rules import Types

AXES = "armbcs"
FORMS = ("complex", "real", "hermitian")


def sides(n: int, form: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Elements and parts that a small transform of ``n`` reads, and those that it writes."""
    half = n // 2 + 1
    return {
        "complex": ((n, 2), (n, 2)), "real": ((n, 1), (half, 2)), "hermitian": ((half, 2), (n, 1)),
    }[form]  # fmt: skip


def turned_rows(n: int, form: str) -> int:
    """How many elements of a small transform a table may turn: those on the side that is complex."""
    return n if form == "complex" else n // 2 + 1


def _infer(ts: Types, a: Attrs) -> TensorType:
    x, *turns = ts
    check_equal_dtypes(ts)
    check_dtype(x, (types.f32, types.f64))
    check_rank(x, 6, most=6)
    # First what the attributes say alone, then whether the operands fit them.
    check(a.form in FORMS and a.n > 0, lambda: f"{a.form} transforms of {a.n} are not among {', '.join(FORMS)}")
    for name in ("reads", "writes"):
        check(
            sorted(a[name]) == sorted(AXES) and a[name][-1] == "s",
            lambda: f"{name} is {a[name]!r}, which is no order of {AXES!r} that ends with s",  # noqa: B023
        )
    (n_in, c_in), (n_out, c_out) = sides(a.n, a.form)
    size = dict(zip(a.reads, x.shape, strict=True))
    check(size["r"] == n_in and size["c"] == c_in, lambda: f"{x} has no {n_in} elements of {c_in} parts")
    if len(turns) > 1:
        raise OpError(f"takes one table of turns, not {len(turns)}")
    for t in turns:
        rows = turned_rows(a.n, a.form)
        check(
            t.rank == 4
            and t.shape[0] in (rows, rows - 1)
            and t.shape[1] in (1, size["m"])
            and t.shape[2] == 2
            and t.shape[3] in (1, size["s"]),
            lambda: f"the turns {t} are not for {rows} x {size['m']} x 2 x {size['s']}",  # noqa: B023
        )
    size |= {"r": n_out, "c": c_out}
    return x.with_shape(tuple(size[axis] for axis in a.writes))


def _reference(xs: Sequence[Array], a: Attrs) -> Array:
    x = np.transpose(xs[0], [a.reads.index(axis) for axis in AXES]).astype(np.float64)
    turns: Array = np.ones(1)
    if len(xs) > 1:
        turns = (xs[1][:, :, 0] + 1j * xs[1][:, :, 1].astype(np.float64))[:, :, None]
        first = np.ones((turned_rows(a.n, a.form) - len(turns), *turns.shape[1:]))
        turns = np.concatenate([first, turns])
    z = x[..., 0, :] + (1j * x[..., 1, :] if a.form != "real" else 0)  # a r m b s
    if a.form == "hermitian":
        z = z * turns
        made = np.fft.irfft(z if a.sign > 0 else z.conj(), a.n, axis=1) * a.n
        y = made[..., None, :]
    else:
        angle = a.sign * 2j * np.pi * np.outer(np.arange(sides(a.n, a.form)[1][0]), np.arange(a.n)) / a.n
        made = np.einsum("kj,ajmbs->akmbs", np.exp(angle), z) * turns
        y = np.stack([made.real, made.imag], 4)
    return np.transpose(y, [AXES.index(axis) for axis in a.writes]).astype(xs[0].dtype)


def _kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> list[Stage]:
    (x, *tables), (out,) = ins, outs
    axes = {letter: axis_over(d, letter) for letter, d in zip(a.writes, out.shape, strict=True)}
    at = {letter: axis.sym for letter, axis in axes.items()}

    def turn(k: int, v: Number) -> Number:
        for table in tables:
            # A table may leave out its first row, of ones, and one turn may be for all of an axis.
            n_rows, n_m, _, n_s = table.shape
            row = k - turned_rows(a.n, a.form) + n_rows
            if is_nonneg(row):
                m, s = 0 if n_m == 1 else at["m"], 0 if n_s == 1 else at["s"]
                v = v.times(Load(table, (row, m, 0, s)), Load(table, (row, m, 1, s)))
        return v

    def element(k: int) -> Number:
        parts: list[Part] = [None, None]
        for c in range(n_parts):
            index: dict[str, Dim] = {**at, "r": k, "c": c}
            parts[c] = Load(x, tuple(index[letter] for letter in a.reads))
        return Number(*parts)

    (n_in, n_parts), (n_out, c_out) = sides(a.n, a.form)
    given = [element(k) for k in range(n_in)]
    if a.form == "hermitian":
        made = to_real([turn(k, v) for k, v in enumerate(given)], a.n, a.sign)
    else:
        made = [turn(k, v) for k, v in enumerate(transformed(given, a.sign))]
    zero: Value = Const(0, out.dtype)
    # A part that is known to be nothing is stored as zero.
    columns = [[v or zero for v in (made[k].re, made[k].im)][:c_out] for k in range(n_out)]
    chosen = one_of(at["r"], [one_of(at["c"], parts) for parts in columns])
    return [Stage((out,), tuple(axes.values()), tuple(at.values()), (chosen,))]


def one_of(at: Sym, values: Sequence[Value]) -> Value:
    """``values[at]``; decided when the code is made, where ``at`` is a number then."""
    chosen = values[-1]
    for k in reversed(range(len(values) - 1)):
        chosen = Select(Inside((k - at,)), values[k], chosen)
    return chosen


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for form in FORMS:
        for n in (1, 2, 3, 4, 6, 7, 8, 15, 16):
            (n_in, c_in), _ = sides(n, form)
            size = {"a": 2, "r": n_in, "m": 3, "b": 2, "c": c_in, "s": 5}
            layouts = (("armbcs", "amrbcs", -1, (3, 1)), ("acrmbs", "armbcs", 1, (1, 5)))
            # Long transforms are long code, and which of two layouts they meet changes nothing inside of them.
            for reads, writes, sign, wide in layouts if n <= 4 else (layouts[n % 2],):
                x = rng.standard_normal([size[axis] for axis in reads])
                m, s = wide
                turns = rng.standard_normal((turned_rows(n, form) - (m == 3), m, 2, s))
                yield Sample((x, turns), {"n": n, "sign": sign, "form": form, "reads": reads, "writes": writes})
    yield Sample((rng.standard_normal((1, 4, 1, 1, 2, 20)).astype(np.float32),), {"n": 4, "sign": -1})


fourier_pass = OpDef(
    "fourier_pass",
    ("x", "*turns"),
    {
        "n": AttrDef("int"), "sign": AttrDef("int"), "form": AttrDef("str", "complex"),
        "reads": AttrDef("str", AXES), "writes": AttrDef("str", AXES),
    },
    _infer,
    _reference,
    kernel=_kernel,
    samples=_samples,
    doc="Small transforms along r, unscaled, of complex numbers (in parts along c), of real ones (the first half of "
    "the results) or to real ones (from that half). Complex results, and what becomes real, are multiplied by turns[r, "
    "m, c, s], of all r or of all but the first.",
)  # fmt: skip
