"""Does an iteration store all that it reads of a temporary? As enumeration finds it; no step relies on it wrongly."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Inside, Load
from tilewright.core.expr import Sym, evaluate, floordiv, maximum, minimum, mod
from tilewright.core.types import bool_
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kernel, Loop, Place, Role, Space, Store, Update
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.fresh import starts_fresh

I64 = types.i64
I0, J0 = Sym("i", 0, 3), Sym("j", 0, 3)
T, A = Buffer("T", I64, (16,)), Buffer("A", I64, (4, 4, 16))


def loop(sym, extent, *body):
    return For(Loop(Sym(sym, 0, 7) if isinstance(sym, str) else sym, extent), body)


def read(index, *at):
    return Update(A, (I0, J0, *at) if at else (I0, J0, 0), "add", Load(T, (index,)))


def store(index):
    return Store(T, (index,), Const(1, I64))


def divided(n, access, names):
    """``access`` at all places below ``n``, by full tiles of two and the rest, as ``divide`` makes them."""
    tile, place, rest = Sym(next(names), 0, 7), Sym(next(names), 0, 1), Sym(next(names), 0, 1)
    full = For(Loop(tile, floordiv(n, 2)), (For(Loop(place, 2), (access(2 * tile + place),)),))
    return [full, For(Loop(rest, mod(n, 2)), (access(2 * floordiv(n, 2) + rest),))]


# --- bodies of two loops i and j ------------------------------------------------------------------------------------


@st.composite
def extents(draw):
    """Up to 6; of one loop around, of both, or of none."""
    n = draw(st.integers(1, 4))
    forms = (n, minimum(I0 + 1, n), maximum(n - J0, 0), minimum(I0 + J0 + 1, n), minimum(n, 5 - I0))
    return draw(st.sampled_from(forms))


KINDS = ("store", "read", "both", "tiles", "divided", "guarded", "again")


@st.composite
def bodies(draw):
    names = (f"k{k}" for k in count())
    body = []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4)):
        k = Sym(next(names), 0, 7)
        shift = draw(st.sampled_from((0, 0, 0, 1, 2)))
        extent = draw(extents())
        if kind == "tiles":
            inner = Sym(next(names), 0, 7)
            access = draw(st.sampled_from((store, read)))(shift + 2 * k + inner)
            width = draw(st.sampled_from((2, minimum(2, 5 - 2 * k))))
            body.append(For(Loop(k, extent), (For(Loop(inner, width), (access,)),)))
            continue
        if kind == "divided":
            access = draw(st.sampled_from((store, read)))
            body += divided(extent, lambda at, access=access, shift=shift: access(shift + at), names)
            body = body[: len(body) - draw(st.sampled_from((0, 0, 1)))]
            continue
        inside = {
            "store": (store(k + shift),),
            "read": (read(k + shift),),
            "both": (store(k + shift), read(k + draw(st.sampled_from((0, 0, 1))))),
            "guarded": (If(Inside((I0 - 1,)), (draw(st.sampled_from((store, read)))(k + shift),)),),
            "again": (draw(st.sampled_from((store, read)))(shift),),
        }[kind]
        body.append(For(Loop(k, extent), inside))
    return tuple(body)


def touched(body, values):
    """(reads, is a store, element) of T, in order."""
    for s in body:
        if isinstance(s, For):
            for v in range(evaluate(s.loop.extent, values)):
                yield from touched(s.body, {**values, s.loop.sym: v})
        elif isinstance(s, If):
            if all(evaluate(e, values) >= 0 for e in s.cond.exprs):
                yield from touched(s.body, values)
        else:
            yield from (("read", evaluate(x.index[0], values)) for x in loads_of(s) if x.buffer is T)
            if s.buffer is T:
                yield "store", evaluate(s.index[0], values)


def is_fresh(body):
    for i in range(4):
        for j in range(4):
            stored = set()
            for what, element in touched(body, {I0: i, J0: j}):
                if what == "store":
                    stored.add(element)
                elif element not in stored:
                    return False
    return True


@given(bodies())
@settings(max_examples=300)
def test_what_is_taken_for_fresh_is(body):
    if starts_fresh(body, T):
        assert is_fresh(body)


@given(bodies())
@settings(max_examples=150)
def test_no_exchange_relies_on_what_another_iteration_stored(body):
    if not any(what == "store" for i in range(4) for j in range(4) for what, _ in touched(body, {I0: i, J0: j})):
        return
    nest = For(Loop(I0, 4), (For(Loop(J0, 4), body),))
    kernel = Kernel("k", (Place(A, Space.GLOBAL, Role.OUT), Place(T, Space.GLOBAL, Role.TMP)), (), (nest,))
    for step in (("reorder", "j", "i"), ("kind", "j", "vector"), ("alternate", "j", "i")):
        try:
            ScheduleBuilder(kernel).do(*step)
        except ScheduleError:
            continue
        assert is_fresh(body)


# --- forms that steps make, which have to be known --------------------------------------------------------------------

K, L, M = Sym("k", 0, 7), Sym("l", 0, 7), Sym("m", 0, 7)
K4, L2, M4, N2 = Sym("k", 0, 3), Sym("l", 0, 1), Sym("m", 0, 3), Sym("n", 0, 1)
N = Sym("n", 1)
F = Buffer("F", bool_, (4,))
FLAG = Load(F, (I0,))
FRESH = {
    "one element": (store(0), read(0)),
    "a row of equal extent": (loop("k", 4, store(K)), loop("l", 4, read(L))),
    "less than is stored": (loop("k", 4, store(K + 1)), loop("l", 2, read(L + 2))),
    "of an extent that a loop around decides": (loop("k", I0 + 1, store(K)), loop("l", I0 + 1, read(L))),
    "a ragged tile": (
        loop(K4, 4, loop(L2, minimum(2, 7 - 2 * K4), store(2 * K4 + L2))),
        loop(M4, 4, loop(N2, minimum(2, 7 - 2 * M4), read(2 * M4 + N2))),
    ),
    "a whole row of ragged tiles of tiles": (
        loop(
            K4,
            3,
            loop(
                "l",
                (minimum(12, 33 - 12 * K4) + 3) // 4,
                loop("m", minimum(4, minimum(12, 33 - 12 * K4) - 4 * L), store(12 * K4 + 4 * L + M)),
            ),
        ),
        loop("r", 33, read(Sym("r", 0, 7))),
    ),
    "in each iteration of a loop that both are in": (loop("k", 4, store(K), read(K)),),
    "under one condition": (If(Inside((I0 - 2,)), (store(0),)), If(Inside((I0 - 2,)), (read(0),))),
    "again and again": (loop("k", N, store(0)), loop("l", minimum(I0 + 1, 2), store(1)), read(0), read(1)),
    "under one condition of the data": (If(FLAG, (store(0),)), If(FLAG, (read(0),))),
    "inside of a condition that changes": (If(FLAG, (Store(F, (I0,), Const(False, bool_)), store(0), read(0))),),
    "in full tiles and the rest": (
        *divided(minimum(7 - 2 * I0, 5), store, iter("abc")),
        loop("k", minimum(7 - 2 * I0, 5), read(K)),
    ),
    "read in tiles of which not one may be full": (
        loop("k", minimum(7 - 2 * I0, 2), store(K)),
        For(Loop(Sym("o", 0, 0), floordiv(minimum(7 - 2 * I0, 2), 2)), (loop(L2, 2, read(2 * Sym("o", 0, 0) + L2)),)),
    ),
    "read by the rest of a loop, which is one iteration or none": (
        loop("k", minimum(7 - I0, 5), store(K)),
        For(Loop(Sym("o", 0, 0), mod(minimum(7 - I0, 5), 2)), (read(Sym("o", 0, 0) + 4),)),
    ),
    "by a loop of one iteration": (store(3), For(Loop(Sym("o", 0, 0), 1), (read(Sym("o", 0, 0) + 3),))),
    "of a size": (loop("k", N, store(K)), loop("l", minimum(N, 4), read(L))),
}
STALE = {
    "never stored": (read(0),),
    "stored behind": (read(0), store(0)),
    "another element": (store(0), read(1)),
    "a longer row": (loop("k", 3, store(K)), loop("l", 4, read(L))),
    "an extent of another loop": (loop("k", I0 + 1, store(K)), loop("l", J0 + 1, read(L))),
    "an extent of two loops": (loop("k", I0 + J0 + 1, store(K)), loop("l", 2 * I0 + J0 + 1, read(L))),
    "a wider tile": (loop("k", 2, loop("l", 1, store(2 * K + L))), loop("m", 4, read(M))),
    "under a condition": (If(Inside((I0 - 2,)), (store(0),)), read(0)),
    "in a loop that may not run": (loop("k", maximum(2 - I0, 0), store(0)), read(0)),
    "in a loop of a size that may be none": (loop("k", Sym("m", 0), store(0)), read(0)),
    "in an inner loop that may not run": (loop("k", 4, loop("l", maximum(2 - I0, 0), store(K))), loop("m", 4, read(M))),
    "under a condition that changed": (
        If(FLAG, (store(0),)),
        Store(F, (I0,), Const(True, bool_)),
        If(FLAG, (read(0),)),
    ),
    "in full tiles alone": (divided(minimum(7 - 2 * I0, 5), store, iter("abc"))[0], loop("k", 1, read(0))),
    "behind the rest": (
        *divided(minimum(7 - 2 * I0, 5), store, iter("abc")),
        loop("k", minimum(8 - 2 * I0, 5), read(K)),
    ),
    "in a loop of one iteration at most": (
        For(Loop(Sym("o", 0, 0), minimum(I0, 1)), (store(Sym("o", 0, 0) + 3),)),
        read(3),
    ),
    "updated alone": (Update(T, (0,), "add", Const(1, I64)), read(0)),
}


@pytest.mark.parametrize("body", FRESH.values(), ids=FRESH)
def test_forms_that_are_known_to_be_fresh(body):
    assert starts_fresh(body, T)


@pytest.mark.parametrize("body", STALE.values(), ids=STALE)
def test_what_another_iteration_stored_may_be_read(body):
    assert not starts_fresh(body, T)
