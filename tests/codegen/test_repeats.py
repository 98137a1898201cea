"""Elements that are read several times in a row, as an image grows: shuffles of vectors, for every size and target."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from tilewright.choose.default import schedule
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Stage, axes_for, syms
from tilewright.core.expr import floordiv, maximum, minimum, mod
from tilewright.target.target import Target
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
@settings(max_examples=7)
def test_grown_images(rows, columns, factor, target):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    out = np.zeros((rows * factor, columns * factor), np.float32)
    Native(schedule(grown(rows, columns, factor), target), target)(x, out)
    np.testing.assert_array_equal(out, x.repeat(factor, 0).repeat(factor, 1))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(columns=st.integers(2, 40), count=st.integers(1, 9))
@settings(max_examples=7)
def test_tiled_rows(columns, count, target):
    x, out = np.arange(columns, dtype=np.float32), np.zeros(columns * count, np.float32)
    Native(schedule(tiled(columns, count), target), target)(x, out)
    np.testing.assert_array_equal(out, np.tile(x, count))


def between(columns: int, factor: int, shift: int) -> Computation:
    """``y[i, j] = x[i, k] + x[i, k + 1]`` for ``k = (j + shift) // factor - 1``, kept inside of the row."""
    x, y = Buffer("X", types.f32, (3, columns)), Buffer("Y", types.f32, (3, columns * factor))
    axes = axes_for(y.shape)
    i, j = syms(axes)
    left = minimum(maximum(floordiv(j + shift, factor) - 1, 0), columns - 1)
    right = minimum(left + 1, columns - 1)
    return Computation((x,), (y,), (Stage((y,), axes, (i, j), (x[i, left] + x[i, right],)),))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(columns=st.integers(1, 50), factor=st.integers(2, 5), shift=st.integers(0, 5))
@settings(max_examples=7)
def test_neighbours_of_a_grown_row(columns, factor, shift, target):
    x = np.arange(3 * columns, dtype=np.float32).reshape(3, columns)
    out = np.zeros((3, columns * factor), np.float32)
    Native(schedule(between(columns, factor, shift), target), target)(x, out)
    left = np.clip((np.arange(columns * factor) + shift) // factor - 1, 0, columns - 1)
    np.testing.assert_array_equal(out, x[:, left] + x[:, np.minimum(left + 1, columns - 1)])


def test_runs_between_edges_are_lanes():
    kernel = schedule(between(60, 2, 1), Target.parse("x86-64-v4"))
    assert sum(isinstance(s, For) and s.loop.kind is Kind.VECTOR for s in walk(kernel.body)) >= 2


@pytest.mark.parametrize("factor", [2, 3, 4, 5])
def test_they_are_lanes(factor):
    kernel = schedule(grown(8, 60, factor), Target.parse("x86-64-v4"))
    assert any(isinstance(s, For) and s.loop.kind is Kind.VECTOR for s in walk(kernel.body))
