"""Elements that are read several times in a row, as an image grows: shuffles of vectors, for every size and target."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from tilewright.codegen.target import Target
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Stage, axes_for, syms
from tilewright.core.expr import floordiv, mod
from tilewright.kernels import machine_of
from tilewright.tile.default import schedule
from tilewright.tile.ir import For, Kind, walk

TARGETS = [HOST, Target.parse("x86-64-v4"), Target.parse("x86-64-v3"), Target.parse("x86-64")]


def grown(rows: int, columns: int, factor: int) -> Computation:
    """``y[i, j] = x[i // factor, j // factor]``."""
    x, y = Buffer("X", types.f32, (rows, columns)), Buffer("Y", types.f32, (rows * factor, columns * factor))
    axes = axes_for(y.shape)
    i, j = syms(axes)
    return Computation((x,), (y,), (Stage((y,), axes, (i, j), (x[floordiv(i, factor), floordiv(j, factor)],)),))


def tiled(columns: int, count: int) -> Computation:
    """``y[j] = x[j % columns]``."""
    x, y = Buffer("X", types.f32, (columns,)), Buffer("Y", types.f32, (columns * count,))
    axes = axes_for(y.shape)
    return Computation((x,), (y,), (Stage((y,), axes, syms(axes), (x[mod(syms(axes)[0], columns),],)),))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(1, 3), columns=st.integers(1, 70), factor=st.integers(2, 7))
@settings(max_examples=15, deadline=None)
def test_grown_images(rows, columns, factor, target):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    out = np.zeros((rows * factor, columns * factor), np.float32)
    Native(schedule(grown(rows, columns, factor), machine_of(target)), target)(x, out)
    np.testing.assert_array_equal(out, x.repeat(factor, 0).repeat(factor, 1))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(columns=st.integers(2, 40), count=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_tiled_rows(columns, count, target):
    x, out = np.arange(columns, dtype=np.float32), np.zeros(columns * count, np.float32)
    Native(schedule(tiled(columns, count), machine_of(target)), target)(x, out)
    np.testing.assert_array_equal(out, np.tile(x, count))


@pytest.mark.parametrize("factor", [2, 3, 4, 5])
def test_they_are_lanes(factor):
    kernel = schedule(grown(8, 60, factor), machine_of(Target.parse("x86-64-v4")))
    assert any(isinstance(s, For) and s.loop.kind is Kind.VECTOR for s in walk(kernel.body))
