"""Operands that lie across: whole rows are loaded and transposed in registers, exactly, for every shape and target."""

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from tile.kernels import layer_norm, transpose
from tilewright.choose.default import schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Stage, axes_for, syms
from tilewright.core.expr import Sym
from tilewright.target.target import Target

TARGETS = [HOST, Target.parse("x86-64-v4"), Target.parse("x86-64-v3"), Target.parse("x86-64")]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(1, 70), columns=st.integers(1, 70))
@settings(max_examples=7)
def test_transposes(rows, columns, target):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    # Memory behind the operand is another array's: what a block reads beyond a row must lie inside the operand.
    out = np.zeros((columns, rows), np.float32)
    Native(schedule(transpose(rows, columns), target), target)(x, out)
    np.testing.assert_array_equal(out, x.T)


def turns(n: int, channels: int, phases: int) -> Computation:
    """``y[c, x, p] = x[x, p, c]``: the phases of a transposed convolution take turns along a row."""
    x, y = Buffer("X", types.f32, (n, phases, channels)), Buffer("Y", types.f32, (channels, n, phases))
    axes = axes_for(y.shape)
    c, i, p = syms(axes)
    return Computation((x,), (y,), (Stage((y,), axes, (c, i, p), (x[i, p, c],)),))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(n=st.integers(1, 40), channels=st.integers(1, 40), phases=st.integers(2, 5))
@settings(max_examples=7)
def test_phases_that_take_turns(n, channels, phases, target):
    x = np.arange(n * phases * channels, dtype=np.float32).reshape(n, phases, channels)
    out = np.zeros((channels, n, phases), np.float32)
    Native(schedule(turns(n, channels, phases), target), target)(x, out)
    np.testing.assert_array_equal(out, x.transpose(2, 0, 1))


def test_turns_gather_nothing():
    target = Target.parse("x86-64-v4")
    for phases in (2, 4):
        assert "gather" not in codegen.emit_kernel(schedule(turns(32, 64, phases), target), target)


class Fenced:
    """An array whose memory ends, or begins, where a page begins, or ends, that nobody may touch."""

    def __init__(self, array, at_end):
        n = -(-array.nbytes // mmap.PAGESIZE)
        self.pages = mmap.mmap(-1, (n + 2) * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (0, n + 1):
            fence = ctypes.c_void_p(start + page * mmap.PAGESIZE)
            assert libc.mprotect(fence, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        offset = (n + 1) * mmap.PAGESIZE - array.nbytes if at_end else mmap.PAGESIZE
        self.array = np.frombuffer(self.pages, array.dtype, array.size, offset).reshape(array.shape)
        self.array[...] = array


@pytest.mark.one_in(2)
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mprotect"), reason="needs pages that can be protected")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    few=st.integers(1, 5), many=st.integers(1, 100), swapped=st.booleans(), at_end=st.booleans(),
    dtype=st.sampled_from([types.f32, types.f64, types.i8, types.i16]),
)  # fmt: skip
@settings(max_examples=15)
def test_a_few_channels_beside_each_other(target, few, many, swapped, at_end, dtype):
    """Channels of pixels to planes and back, by loads of runs and shuffles that touch no byte of another array."""
    rows, columns = (many, few) if swapped else (few, many)
    x = (np.arange(rows * columns) % 100).astype(dtype.numpy).reshape(rows, columns)
    given, out = Fenced(x, at_end), Fenced(np.zeros((columns, rows), x.dtype), at_end)
    Native(schedule(transpose(rows, columns, dtype), target), target)(given.array, out.array)
    np.testing.assert_array_equal(out.array, x.T)


def every(step: int, rows: int, n: int, dtype: types.DType = types.f32) -> Computation:
    """``y[j, i] = x[i, step * j]``."""
    x, y = Buffer("X", dtype, (rows, n)), Buffer("Y", dtype, (-(-n // step), rows))
    axes = axes_for(y.shape)
    j, i = syms(axes)
    return Computation((x,), (y,), (Stage((y,), axes, (j, i), (x[i, step * j],)),))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(
    rows=st.integers(1, 40), n=st.integers(1, 100), step=st.integers(2, 4), at_end=st.booleans(),
    dtype=st.sampled_from([types.f32, types.f64, types.i8, types.i16]),
)  # fmt: skip
@settings(max_examples=7)
def test_every_so_many_th_column(target, rows, n, step, at_end, dtype):
    """Rows are read up to their last element that is kept, and no byte of another array."""
    x = (np.arange(rows * n) % 100).astype(dtype.numpy).reshape(rows, n)
    given, out = Fenced(x, at_end), Fenced(np.zeros((-(-n // step), rows), dtype.numpy), at_end)
    Native(schedule(every(step, rows, n, dtype), target), target)(given.array, out.array)
    np.testing.assert_array_equal(out.array, x[:, ::step].T)


def test_columns_up_to_three_apart_are_shuffled():
    target = Target.parse("x86-64-v4")
    for step in (2, 3):
        assert "gather" not in codegen.emit_kernel(schedule(every(step, 32, 32 * step), target), target)


def test_planes_of_three_channels_are_read_in_vectors():
    (target,) = (t for t in TARGETS if t.name == "x86-64-v4")
    for shape in ((3, 1000), (1000, 3)):
        text = codegen.assembly(schedule(transpose(*shape), target), target)
        assert "vpermt2ps" in text
        assert text.count("vgather") <= 3, "for what is left behind full vectors"


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("columns", [3, 5, 6, 12, 13, 24])
def test_lanes_that_are_no_power_of_two(columns, target):
    x, out = np.arange(5.0 * columns, dtype=np.float32).reshape(columns, 5), np.zeros((5, columns), np.float32)
    Native(schedule(transpose(columns, 5), target), target)(x, out)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_batches_of_any_size(batch):
    n, x = Sym("N", 0), Buffer("X", types.f32, (Sym("N", 0), 21, 37))
    axes = axes_for((n, 37, 21))
    i, j, k = syms(axes)
    y = Buffer("Y", types.f32, (n, 37, 21))
    tree = schedule(Computation((x,), (y,), (Stage((y,), axes, (i, j, k), (x[i, k, j],)),)), HOST)
    values, out = np.arange(batch * 21 * 37, dtype=np.float32).reshape(batch, 21, 37), np.zeros((batch, 37, 21), "f")
    Native(tree)(values, out, sizes=(batch,))
    np.testing.assert_array_equal(out, values.transpose(0, 2, 1))
    assert HOST.vector_bytes < 64 or "gather" not in codegen.emit_kernel(tree, HOST)


ROWS, COLUMNS = Sym("A", 0), Sym("B", 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (ROWS, 40), (40, COLUMNS), (ROWS, 21)])
def test_sizes_known_at_run_time(shape, target):
    x, y, axes = Buffer("X", types.f32, shape), Buffer("Y", types.f32, shape[::-1]), axes_for(shape[::-1])
    i, j = syms(axes)
    tree = schedule(Computation((x,), (y,), (Stage((y,), axes, (i, j), (x[j, i],)),)), target)
    assert not tree.notes
    native = Native(tree, target)
    for r, c in ((0, 3), (1, 1), (16, 16), (5, 33), (47, 16), (64, 50)):
        rows, columns = (n if isinstance(n, int) else k for n, k in zip(shape, (r, c), strict=True))
        values = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        out = np.zeros((columns, rows), np.float32)
        native(values, out, sizes=[k for n, k in zip(shape, (rows, columns), strict=True) if not isinstance(n, int)])
        np.testing.assert_array_equal(out, values.T)


def test_a_transpose_gathers_nothing():
    target = Target.parse("x86-64-v4")
    assembly = codegen.assembly_of_text(codegen.emit_kernel(schedule(transpose(48, 64), target), target), target)
    assert "gather" not in assembly and "vpermt2" in assembly


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("shape", [(10, 10), (12, 12), (9, 6), (25, 5), (5, 25)])
def test_odd_blocks_gather_nothing(shape, target):
    machine = Target.parse(target)
    assert "gather" not in codegen.emit_kernel(schedule(transpose(*shape), machine), machine)


@pytest.mark.parametrize("width", [7, 16, 33, 100])
def test_rows_end_in_scratch_of_their_own(width):
    """The last vector of a local row is written whole, and what it holds beyond the row takes no part."""
    rng = np.random.default_rng(width)
    x, scale, out = rng.standard_normal((9, width), np.float32), np.ones(width, np.float32), np.zeros((9, width), "f")
    Native(schedule(layer_norm(9, width), HOST), HOST)(x, scale, out)
    z = x.astype("d")
    expected = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6)
