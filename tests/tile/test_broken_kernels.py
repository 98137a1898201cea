"""Kernels that break the specification of tile IR in one way each: refused, with the place and the rule.

The kernel that all are made from stores rows of ``x`` in ``y``. ``test_corrupted`` breaks kernels of every kind at
every place in a dozen ways; these are ways that a hand-written text, or a pass that is wrong, would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Combiner,
    Const,
    Fma,
    IndexLike,
    Inside,
    Load,
    Param,
    Select,
    Unary,
    Value,
)
from tilewright.core.expr import Dim, Sym
from tilewright.core.types import bool_, f32, f64, i32, i64, u8
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.ir import (
    Commit,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Packed,
    Place,
    Prefetch,
    Role,
    Space,
    Stmt,
    Store,
    Update,
)
from tilewright.tile.verify import verify

N = Sym("n", 1)
V, W = Sym("i", 0, 7), Sym("j", 0, 3)
X, Y = Buffer("x", f32, (8, 4)), Buffer("y", f32, (8, 4))
BYTES, WHOLE, ROW = Buffer("b", u8, (8, 4)), Buffer("q", i64, (8,)), Buffer("r", f32, (4,))
EXTRA = Buffer("z", f32, (8,))
ZERO = Const(0.0, f32)
NUMBERS = np.zeros(8, np.float32)
READ, SUM = Load(X, (V, W)), Update(Y, (V, W), "add", ZERO)
OLD, NEW = Param("old", f32), Param("new", f32)


def place(buffer: Buffer, role: Role = Role.OUT, space: Space = Space.GLOBAL) -> Place:
    return Place(buffer, space, role)


PLACES = (place(X, Role.IN), place(WHOLE, Role.IN), place(ROW, Role.CONST), place(Y), place(BYTES))


def kernel(body: Stmt | None = None, *more: Place, sizes: Sequence[Sym] = ()) -> Kernel:
    return Kernel("k", (*PLACES, *more), tuple(sizes), (body or stored(READ),))


def loops(s: Stmt, extent: Dim = 8, kind: Kind = Kind.SERIAL) -> For:
    return For(Loop(V, extent, kind), (For(Loop(W, 4), (s,)),))


def stored(value: Value, at: tuple[IndexLike, ...] = (V, W), buffer: Buffer = Y) -> For:
    return loops(Store(buffer, at, value))


def folded(combiner: Combiner, *buffers: Buffer, value: Value = READ) -> For:
    return loops(Fold(buffers, (V, W), combiner, (value,)))


def combined(result: Value, state: Param = OLD, value: Param = NEW) -> Combiner:
    return Combiner((state,), (value,), (result,))


def packed(param: Buffer, source: Buffer, grid: tuple[Sym, ...], index: tuple[Dim, ...], times: int = 1) -> Kernel:
    return replace(kernel(), packed=(Packed(param, source, grid, index),) * times)


def forged() -> Value:
    """A choice by a float, which the constructor refuses."""
    made = Select(Inside((V,)), READ, READ)
    made.cond = READ
    return made


BROKEN: dict[str, tuple[Kernel, str, str]] = {
    "a range too small": (kernel(loops(Store(Y, (V, W), ZERO), 16)), "i:", "0..7, and has 16"),
    "a negative extent": (kernel(loops(Store(Y, (V, W), ZERO), -2)), "i:", "-2 iterations"),
    "an index behind the end": (kernel(stored(ZERO, (V, 9))), "store of y", "9 is outside"),
    "an index before the beginning": (kernel(stored(ZERO, (V, -1))), "store of y", "-1 is outside"),
    "a load behind the end": (kernel(stored(Load(X, (V + 8, W)))), "store of y", "outside of x"),
    "an update behind the end": (kernel(loops(replace(SUM, index=(V, 4)))), "update of y", "4 is outside"),
    "a load of no place": (kernel(stored(Load(EXTRA, (V,)))), "store of y", "z has no place"),
    "a multiply-add of two dtypes": (
        kernel(stored(Fma(READ, READ, Const(1.0, f64)))), "store of y", "f32, f32 and f64",
    ),
    "a multiply-add of bools": (
        kernel(stored(Cast(Fma(*[Const(True, bool_)] * 3), f32))), "store of y", "bool, bool and bool",
    ),
    "a choice by a float": (kernel(stored(forged())), "store of y", "a choice by f32"),
    "a root of whole numbers": (
        kernel(stored(Cast(Unary("sqrt", Load(WHOLE, (V,))), f32))), "store of y", "no sqrt of i64",
    ),
    "bits of floats": (kernel(stored(Unary("not", READ))), "store of y", "no not of f32"),
    "a shift of floats": (kernel(stored(Binary("shl", READ, READ))), "store of y", "no shl of f32"),
    "a difference of bools": (
        kernel(stored(Cast(Binary("sub", *[Const(True, bool_)] * 2), f32))), "store of y", "no sub of bool",
    ),
    "a number beyond its dtype": (kernel(stored(Const(300, u8), buffer=BYTES)), "store of b", "300 is no u8"),
    "a negative byte": (kernel(stored(Const(-1, u8), buffer=BYTES)), "store of b", "-1 is no u8"),
    "a sum of bits of floats": (kernel(loops(replace(SUM, op="or"))), "update of y", "no reduction operation of f32"),
    "a condition of a placeholder": (
        kernel(For(Loop(V, 8), (If(Param("p", bool_), (Store(Y, (V, 0), ZERO),)),))), "if", "placeholder %p",
    ),
    "two sizes of one name": (kernel(sizes=(N, Sym("n", 2))), "kernel k", "one name twice"),
    "no name of a function": (replace(kernel(), name='k" x'), 'k" x', "none of a function"),
    "a warp of no lanes": (replace(kernel(), lanes=0), "kernel k", "0 lanes"),
    "a table of another shape": (
        kernel(None, Place(EXTRA, Space.TABLE, table=NUMBERS[:3])), "z:", "its numbers are float32[3]",
    ),
    "a table of another dtype": (
        kernel(None, Place(EXTRA, Space.TABLE, table=NUMBERS.astype(np.float64))), "z:", "its numbers are float64",
    ),
    "a table that is a result": (
        kernel(None, Place(EXTRA, Space.TABLE, Role.OUT, table=NUMBERS)), "z:", "of role out can't be table",
    ),
    "a constant in matrix registers": (
        kernel(None, Place(Buffer("m", f32, (16, 16)), Space.MATRIX, Role.CONST)), "m:", "role const can't be matrix",
    ),
    "a negative shape": (kernel(None, place(Buffer("l", f32, (-4,)), Role.TMP)), "l:", "a negative size"),
    "packed from no loop": (packed(ROW, ROW, (W,), (Sym("other", 0, 3),)), "r:", "['other'], which its grid lacks"),
    "packed from another dtype": (packed(ROW, WHOLE, (W,), (W,)), "r:", "it is f32, and what is packed is i64"),
    "packed twice": (packed(ROW, ROW, (W,), (W,), times=2), "r:", "packed twice"),
    "a commit of no grid": (replace(kernel(), body=(Commit(), stored(READ))), "commit", "outside of a grid"),
    "a warp's loop of no grid": (kernel(loops(Store(Y, (V, W), READ), kind=Kind.WARP)), "i:", "outside of a grid"),
    "three elements of a dot": (
        kernel(For(Loop(V, 8), (For(Loop(Sym("d", 0, 2), 3, Kind.DOT), (Store(Y, (V, Sym("d", 0, 2)), ZERO),)),))),
        "d:", "a dot loop of 3 elements",
    ),
    "a hint at no place": (kernel(Prefetch(EXTRA, (0,))), "prefetch of z", "z has no place"),
    "a hint at registers": (
        kernel(Prefetch(EXTRA, (0,)), place(EXTRA, Role.TMP, Space.REG)), "prefetch of z", "does not lie in memory",
    ),
    "a combiner that reads a stranger": (
        kernel(folded(combined(Binary("add", OLD, Param("other", f32))), Y)), "fold of y", "reads %other",
    ),
    "a combiner that reads memory": (kernel(folded(combined(Load(X, (0, 0))), Y)), "fold of y", "reads x"),
    "a combiner of two like names": (
        kernel(folded(combined(OLD, OLD, Param("old", f32)), Y)), "fold of y", "have one name",
    ),
    "a combiner of another value": (
        kernel(folded(combined(OLD), Y, value=Load(WHOLE, (V,)))), "fold of y", "f32 for %new, not i64",
    ),
    "a combiner of another state": (
        kernel(folded(combined(NEW, state=Param("old", i32)), Y)), "fold of y", "takes i32 and gives f32",
    ),
    "a fold into one buffer twice": (
        kernel(folded(Combiner((OLD, Param("too", f32)), (NEW,), (OLD, NEW)), Y, Y)), "fold of y, y", "buffer twice",
    ),
}  # fmt: skip


def test_the_kernel_that_all_are_made_from_is_right() -> None:
    verify(kernel())


@pytest.mark.parametrize("made, where, rule", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_kernel_is_refused_with_the_place_and_the_rule(made: Kernel, where: str, rule: str) -> None:
    with pytest.raises(TileVerifyError) as caught:
        verify(made)
    place_said, _, rule_said = str(caught.value).removeprefix("[TW0502] ").partition(": ")
    assert where.rstrip(":") in place_said and rule in rule_said, str(caught.value)


def test_what_may_never_run_may_be_outside() -> None:
    """A guard, or a loop that may have no iteration, keeps it from running; a hint does no harm anywhere."""
    beyond = Store(Y, (V, W + 4), ZERO)
    verify(kernel(loops(If(Inside((W - 9,)), (beyond,)))))
    verify(kernel(loops(For(Loop(Sym("t", 0), N // 100), (beyond,))), sizes=(N,)))
    verify(kernel(stored(Select(Inside((W - 9,)), Load(X, (V, W + 4)), ZERO))))
    verify(kernel(loops(Prefetch(X, (V, W + 4)))))
