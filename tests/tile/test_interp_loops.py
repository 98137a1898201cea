"""Loops that are interpreted all iterations at once give what they give one by one, bit for bit, errors too."""

from __future__ import annotations

from math import inf
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Cast, Const, Fma, Load, Value
from tilewright.core.expr import Dim, Sym
from tilewright.core.types import DType
from tilewright.tile import interp
from tilewright.tile.errors import TileRunError
from tilewright.tile.interp_loops import LoopForms
from tilewright.tile.ir import For, Kernel, Kind, Loop, Place, Role, Space, Store, Update

SIZE = 48
AT, J = Sym("i", 0, None), Sym("j", 0, 2)
DTYPES = (types.f32, types.f64, types.i8, types.u8, types.i32, types.i64)
NARROW = (types.f16, types.bf16)
"""Loaded, converted and stored at once, and computed with one by one."""


@st.composite
def places(draw: st.DrawFn) -> tuple[Dim, Dim]:
    """Two parts of an index; some lie outside, some do not move."""
    one, other = (
        draw(st.integers(-2, 2)) * AT + draw(st.integers(0, 2)) * J + draw(st.sampled_from([0, 1, 7, 24, 40, 47]))
        for _ in range(2)
    )
    return one, other


@st.composite
def values(draw: st.DrawFn, dtype: DType, buffers: dict[DType, list[Buffer]], depth: int = 2) -> Value:
    kind = draw(st.sampled_from(["load", "load", "constant", "binary", "binary", "fma", "cast"] if depth else ["load"]))

    def below(of: DType = dtype) -> Value:
        return draw(values(of, buffers, depth - 1))

    if kind == "constant":
        return Const(3, dtype)
    if kind == "binary":
        bitwise = () if dtype.is_float else ("and", "or", "xor")
        return Binary(draw(st.sampled_from(["add", "sub", "mul", "min", "max", "div", *bitwise])), below(), below())
    if kind == "fma" and dtype.is_float:
        return Fma(below(), below(), below())
    if kind == "cast":
        return Cast(below(draw(st.sampled_from(DTYPES + NARROW))), dtype)
    return Load(draw(st.sampled_from(buffers[dtype])), draw(places()))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """A loop of one statement inside of another loop; its value may read what it writes."""
    of = {d: [Buffer(f"{d.name}_{name}", d, (SIZE, SIZE)) for name in "AT"] for d in DTYPES + NARROW}
    dtype = draw(st.sampled_from(DTYPES + NARROW))
    target, at, value = of[dtype][1], draw(places()), draw(values(dtype, of))
    op = draw(st.sampled_from(["", "add", "mul", "min", "max"]))
    statement = Update(target, at, op, value) if op else Store(target, at, value)
    kind = draw(st.sampled_from([Kind.SERIAL, Kind.PARALLEL, Kind.VECTOR]))
    inner = For(Loop(AT, draw(st.integers(7, 21)), kind), (statement,))
    everything = tuple(Place(b, Space.GLOBAL, Role.OUT) for pair in of.values() for b in pair)
    return Kernel("k", everything, (), (For(Loop(J, 3), (inner,)),))


def outcome(kernel: Kernel, *, reverse: bool, shortest: float) -> tuple[dict[str, Any], str]:
    rng = np.random.default_rng(0)
    arrays = {}
    for place in kernel.places:
        b = place.buffer
        numbers = rng.standard_normal((SIZE, SIZE)) if b.dtype.is_float else rng.integers(0, 120, (SIZE, SIZE))
        arrays[b.name] = numbers.astype(b.dtype.numpy)
    with mock.patch.object(interp, "SHORTEST", shortest):
        try:
            interp.run(kernel, arrays, reverse=reverse)
        except TileRunError as e:
            return arrays, str(e)
    return arrays, ""


@given(kernels(), st.booleans())
@settings(max_examples=200)
def test_all_at_once_is_one_by_one(kernel: Kernel, reverse: bool) -> None:
    (got, error), (want, same_error) = (outcome(kernel, reverse=reverse, shortest=n) for n in (1, inf))
    assert error == same_error
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


A, B, T = (Buffer(n, types.f32, (SIZE, SIZE)) for n in "ABT")
N = Buffer("N", types.bf16, (SIZE, SIZE))
ACCUMULATES = Update(T, (J, J), "add", A[J, AT] * B[AT, J])
COPIES = Store(T, (J, AT), A[AT, J])


@pytest.mark.parametrize(
    ("statement", "backwards", "fits"),
    [
        (ACCUMULATES, False, True),
        (ACCUMULATES, True, False),  # a sum in another order is another sum
        (COPIES, True, True),
        (Store(T, (J, J), A[AT, J]), False, False),
        (Store(T, (J, AT + 1), T[J, AT]), False, False),  # each iteration reads what the one before wrote
        (Update(T, (J, AT), "add", T[AT, J]), False, False),
        (Update(T, (J, J), "add", Cast(N[J, AT], types.f32) * B[AT, J]), False, True),
        (Store(N, (J, AT), Cast(A[J, AT], N.dtype)), False, True),
        (Store(N, (J, AT), Cast(B[J, AT], N.dtype) * Cast(A[J, AT], N.dtype)), False, False),
    ],
)
def test_which_loops_run_at_once(statement: Store | Update, backwards: bool, fits: bool) -> None:
    memory = {b: np.zeros((SIZE, SIZE), b.dtype.numpy) for b in (A, B, T, N)}
    forms = LoopForms(memory, interp.Compiler(memory, backwards).dim)
    assert (forms.at_once(For(Loop(AT, 20), (statement,)), backwards=backwards) is not None) == fits
