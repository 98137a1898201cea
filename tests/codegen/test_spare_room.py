"""Room behind the rows of temporaries: written like the rest of a vector, where nobody keeps anything there.

What memory held before is none of a kernel's operands: were it denormal numbers, products would take ten times as long.
"""

import ctypes
import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, LEFT_OVER, Native, kernel, local, param
from tile.test_chain import attention
from tilewright.choose.default import schedule
from tilewright.codegen.cpu import llvm as codegen
from tilewright.codegen.llvm.padding import Beyond, beyond_rows
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation, Const, Load, Reduction, Stage, axes_for, syms
from tilewright.core.expr import Sym, minimum
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Loop, Role, Store

TARGETS = [HOST, Target.parse("x86-64-v4"), Target.parse("x86-64-v3"), Target.parse("x86-64")]
MXCSR, DENORMAL_OPERAND = 7, 2  # glibc's fenv_t: words before the vector unit's state; a bit of that state
needs_mxcsr = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc", reason="reads the state of an x86 vector unit"
)


def has_denormal_operand(call):
    """Did an instruction of ``call`` have an operand that is a denormal number?"""
    libm, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    libm.fegetenv(state)
    state[MXCSR] &= ~DENORMAL_OPERAND
    libm.fesetenv(state)
    call()
    libm.fegetenv(state)
    return bool(state[MXCSR] & DENORMAL_OPERAND)


def turned_product(rows, columns, depth):
    """``out[i, j] = sum_k a[i, k] b[j, k]``, by a copy of b that has columns where b has rows."""
    a, b = Buffer("A", types.f32, (rows, depth)), Buffer("B", types.f32, (columns, depth))
    t, out = Buffer("t", types.f32, (depth, columns)), Buffer("O", types.f32, (rows, columns))
    axes, (k, j) = axes_for(t.shape, "t"), syms(axes_for(t.shape, "t"))
    copy = Stage((t,), axes, (k, j), (Load(b, (j, k)),))
    axes, inner = axes_for(out.shape), axes_for((depth,), "k")
    (i, j), (k,) = syms(axes), syms(inner)
    value = Load(a, (i, k)) * Load(t, (k, j))
    zero = Const(0.0, types.f32)
    product = Stage((out,), axes, (i, j), (value,), Reduction(inner, "add", (zero,)))
    return Computation((a, b), (out,), (copy, product), (t,))


def assert_left_over_is_not_read(computation, target):
    native = Native(schedule(computation, target), target)
    rng = np.random.default_rng(0)
    inputs = {b.name: rng.standard_normal(b.shape).astype(np.float32) for b in computation.inputs}
    results = []

    def call(left_over):
        own = {b.name: np.full(b.shape, left_over, np.uint32).view(np.float32) for b in native.kernel.params}
        native(*{**own, **inputs}.values(), left_over=left_over)
        results.append(own[computation.outputs[0].name])

    call(0)
    assert not has_denormal_operand(lambda: call(LEFT_OVER))
    np.testing.assert_array_equal(*results)


@needs_mxcsr
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@given(rows=st.integers(1, 40), columns=st.integers(1, 70), depth=st.integers(1, 40))
@settings(max_examples=7)
def test_products_of_panels(target, rows, columns, depth):
    assert_left_over_is_not_read(turned_product(rows, columns, depth), target)


@needs_mxcsr
@pytest.mark.parametrize("target", [t for t in TARGETS if t.has_masks], ids=lambda t: t.name)
@given(rows=st.integers(1, 40), keys=st.integers(2, 70), depth=st.integers(1, 20), width=st.integers(1, 20))
@settings(max_examples=7)
def test_scores_of_ragged_keys(target, rows, keys, depth, width):
    assert_left_over_is_not_read(attention(1, rows, keys, depth, width, softmax=False), target)


@needs_mxcsr
def test_a_product_of_33_columns():
    assert_left_over_is_not_read(turned_product(33, 33, 256), HOST)


ROW, TILE, LANE = Sym("row", 0, 3), Sym("o", 0, 2), Sym("lane", 0, 15)
ROWS, TILES = Loop(ROW, 4, Kind.SERIAL), Loop(TILE, 3, Kind.SERIAL)
LANES = Loop(LANE, minimum(33 - 16 * TILE, 16), Kind.VECTOR)
AROUND = ((ROWS, None), (TILES, None), (LANES, 16))


def test_room_is_what_no_write_reaches():
    """The last of three vectors has one column: 15 more are room, if rows are as long, and nobody writes there."""
    wide, narrow = (Buffer("t", types.f32, (4, n)) for n in (48, 47))
    tile = ((ROW, LANE + 16 * TILE), AROUND)
    assert beyond_rows(wide, [tile]) is Beyond.ROOM
    assert beyond_rows(narrow, [tile]) is None
    flat = ((33 * ROW + LANE + 16 * TILE,), AROUND)
    assert beyond_rows(Buffer("t", types.f32, (150,)), [flat]) is Beyond.KEPT, "of the next row"
    end = Loop(Sym("end", 0, 0), 1, Kind.VECTOR)

    def column(at):
        return (ROW, at + end.sym), ((ROWS, None), (end, 1))

    assert beyond_rows(wide, [tile, column(32)]) is Beyond.ROOM
    assert beyond_rows(wide, [tile, column(33)]) is Beyond.KEPT
    assert beyond_rows(wide, [tile, ((ROW, 47), ((ROWS, None),))]) is None, "no run of lanes"


def test_room_of_panels():
    """Columns lie in panels of 32, of which the last has one; the loop of vectors has as many as the panel asks for."""
    panels = Loop(Sym("p", 0, 2), 3, Kind.SERIAL)
    inside = minimum(65 - 32 * panels.sym, 32)
    vectors = Loop(Sym("v", 0, 1), (inside + 15) // 16, Kind.UNROLL)
    lanes = Loop(LANE, minimum(inside - 16 * vectors.sym, 16), Kind.VECTOR)
    around = ((panels, None), (ROWS, None), (vectors, None), (lanes, 16))
    at = (panels.sym, ROW, LANE + 16 * vectors.sym)
    assert beyond_rows(Buffer("P", types.f32, (3, 4, 32)), [(at, around)]) is Beyond.ROOM
    assert beyond_rows(Buffer("P", types.f32, (Sym("n", 1), 4, 32)), [(at, around)]) is None


def copied(row):
    """33 columns of four rows go through a temporary whose rows have ``row`` elements."""
    a, t, out = (Buffer(n, types.f32, (4, size)) for n, size in (("a", 33), ("t", row), ("o", 33)))
    at = (ROW, LANE + 16 * TILE)

    def nest(to, value):
        return For(ROWS, (For(TILES, (For(LANES, (Store(to, at, value),)),)),))

    return kernel([nest(t, Load(a, at)), nest(out, Load(t, at))], a, local(t), param(out, Role.OUT))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_results_end_where_their_rows_do(target):
    """Whole vectors go to the temporary alone."""
    x, out = np.arange(132, dtype=np.float32).reshape(4, 33), np.zeros((4, 33), np.float32)
    for row in (33, 40, 48):
        Native(copied(row), target)(x, out)
        np.testing.assert_array_equal(out, x)
    text = codegen.emit_kernel(copied(48), Target.parse("x86-64-v4"))
    assert text.count("store float ") == 1, "what the result's last column is"
