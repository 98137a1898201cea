"""The text form round-trips exactly; the spec refuses what is not a kernel."""

from dataclasses import replace

import numpy as np
import pytest

from tile.kernels import SMALL, F, constants_of, convolution, elementwise, layer_norm, matmul, softmax
from tilewright.choose.default import schedule
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Cast, Combiner, Const, Inside, Load, Lookup, Param, Select
from tilewright.core.expr import Sym
from tilewright.tile.errors import TileTextError, TileVerifyError
from tilewright.tile.ir import (
    NESTS,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Place,
    Prefetch,
    Role,
    Space,
    Store,
    Update,
    touched_by,
    walk,
    written,
    written_in,
)
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loads_of
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

N = Sym("N")
CASES = [
    (matmul(11, 37, 7), ["B"]),
    (matmul(Sym("M"), N, Sym("K")), []),
    (convolution((1, 5, 6, 3), 9, (3, 3), 1, 1), ["W", "bias"]),
    (softmax(3, 37), []),
    (softmax(Sym("R"), Sym("C")), []),
    (layer_norm(3, 20), []),
]


@pytest.mark.parametrize(("computation", "constants"), CASES)
def test_a_nest_touches_what_its_statements_touch(computation, constants):
    for s in walk(schedule(computation, SMALL, constants_of(computation, *constants)).body):
        below = list(walk((s,)))
        made, read = {b for x in below for b in written(x)}, {x.buffer for y in below for x in loads_of(y)}
        assert set(written_in(s)) == made and touched_by(s) == made | read
        assert not isinstance(s, NESTS) or made


@pytest.mark.parametrize(("computation", "constants"), CASES)
def test_kernels_read_back(computation, constants):
    fixed = constants_of(computation, *constants)
    for kernel in (lower(computation, "k", fixed), schedule(computation, SMALL, fixed)):
        text = kernel_text(kernel)
        again = parse_kernel(text)
        verify(again)
        assert kernel_text(again) == text


def odd_kernel():
    x, y = Buffer("odd name.1", F, (N, 3)), Buffer("Y", F, (N, 3))
    t = Buffer("T", types.i8, (2,))
    m, v = Param("m", F), Param("v", F)
    i, j = Sym("i"), Sym("j", 0, 2)
    value = Select(Inside((i - 1, 5 - i)), Load(x, (i, j)), Const(float("-inf"), F))
    gathered = Load(x, (Cast(Lookup((0, 5, 255), Load(t, (0,))), types.i64), 1))
    body = (
        For(Loop(i, N), (
            For(Loop(j, 3, Kind.UNROLL), (Store(y, (i, j), Const(float("nan"), F)), Update(y, (i, j), "max", value))),
            Prefetch(x, (i + 1, 0)),
            If(Binary("lt", gathered, Const(-0.0, F)), (
                Fold((y,), (i, 0), Combiner((m,), (v,), (Binary("add", m, v),), False), (gathered,)),
            )),
        )),
    )  # fmt: skip
    places = (
        Place(x, Space.GLOBAL, Role.IN),
        Place(y, Space.GLOBAL, Role.OUT),
        Place(t, Space.TABLE, Role.TMP, np.array([3, -4], np.int8)),
    )
    return Kernel("odd", places, (N,), body, notes=("a note: with, marks",))


def test_every_form_reads_back():
    kernel = odd_kernel()
    verify(kernel)
    text = kernel_text(kernel)
    assert kernel_text(parse_kernel(text)) == text


def test_an_edited_text_resumes():
    text = kernel_text(lower(elementwise((4,)), "k"))
    edited = parse_kernel(text.replace("add(", "mul("))
    assert kernel_text(edited) == text.replace("add(", "mul(")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kernel", "colonel"), ("global in", "global wherever"), ("f32[", "f33["), ("serial", "cereal"),
        ("add(", "plus("), ("i0 ", "q "), ("X[i0]", "Q[i0]"), ("X[i0]", "X[i0, i0]"), ("  body", ""), ("for", "   for"),
    ],
)  # fmt: skip
def test_wrong_text_names_its_line(old, new):
    text = kernel_text(lower(elementwise((4,)), "k"))
    with pytest.raises(TileTextError, match="line"):
        kernel = parse_kernel(text.replace(old, new))
        raise (
            TileTextError("line of a kernel that is no error")
            if kernel_text(kernel) == text
            else AssertionError(kernel)
        )


def broken(change):
    x, y = Buffer("X", F, (4,)), Buffer("Y", F, (4,))
    i = Sym("i", 0, 3)
    base = Kernel(
        "k", (Place(x, Space.GLOBAL, Role.IN), Place(y, Space.GLOBAL, Role.OUT)), (),
        (For(Loop(i, 4), (Store(y, (i,), Load(x, (i,))),)),),
    )  # fmt: skip
    verify(base)
    return change(base, x, y, i)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("not bound", lambda k, x, y, i: replace(k, body=(Store(y, (i,), Load(x, (0,))),))),
        ("no place", lambda k, x, y, i: replace(k, places=k.places[1:])),
        ("two places", lambda k, x, y, i: replace(k, places=(*k.places, k.places[0]))),
        ("which is in", lambda k, x, y, i: replace(k, body=(Store(x, (0,), Load(y, (0,))),))),
        ("takes 1 indices", lambda k, x, y, i: replace(k, body=(Store(y, (0, 0), Load(x, (0,))),))),
        ("writes i32", lambda k, x, y, i: replace(k, body=(Store(y, (0,), Const(1, types.i32)),))),
        ("already bound", lambda k, x, y, i: replace(k, body=(For(Loop(i, 4), k.body),))),
        ("has no bound", lambda k, x, y, i: replace(k, sizes=(N,), body=(For(Loop(Sym("v"), N, Kind.VECTOR), ()),))),
        ("holds only", lambda k, x, y, i: replace(k, body=(For(Loop(Sym("v", 0, 1), 2, Kind.VECTOR), k.body),))),
        ("run-time index", lambda k, x, y, i: _register(k, x, i)),
        ("not bool", lambda k, x, y, i: replace(k, body=(If(Const(1, types.i32), ()),))),
        ("no reduction", lambda k, x, y, i: replace(k, body=(Update(y, (0,), "sub", Load(x, (0,))),))),
        ("needs numbers", lambda k, x, y, i: replace(k, places=(*k.places, Place(Buffer("t", F, (1,)), Space.TABLE)))),
    ],
)  # fmt: skip
def test_the_spec_refuses(rule, change):
    with pytest.raises(TileVerifyError, match=rule):
        verify(broken(change))


def _parallel(name, *body):
    return For(Loop(Sym(name, 0, 1), 2, Kind.PARALLEL), body)


def _register(k, x, i):
    r = Buffer("R", F, (4,))
    body = (For(Loop(i, 4), (Store(r, (i,), Load(x, (i,))),)), Store(k.places[1].buffer, (0,), Load(r, (0,))))
    return replace(k, places=(*k.places, Place(r, Space.REG)), body=body)
