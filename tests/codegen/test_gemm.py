"""The GEMM nest on every target: main and remainder tiles, ragged lanes, run-time rows, threads."""

import numpy as np
import pytest

from codegen.hand_gemm import gemm, panels
from codegen.native import HOST, Native, calls, innermost_loop_spills, kernel, reg
from tilewright.codegen.cpu import llvm
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Cast, Const
from tilewright.core.expr import Sym, minimum
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Loop, Store, Update

AVX512, AVX2, SSE2 = (Target.parse(n) for n in ("x86-64-v4", "x86-64-v3", "x86-64"))
TILES = [(AVX512, 14, 2, 16), (AVX2, 6, 2, 8), (SSE2, 4, 2, 4)]
RNG = np.random.default_rng(0)


def check(m, n, k, target, rows, vectors, lanes, *, packed=True, symbolic=False, threads=1):
    native = Native(gemm(m, n, k, rows, vectors, lanes, packed=packed, symbolic=symbolic), target)
    a, b = RNG.standard_normal((m, k)).astype("f"), RNG.standard_normal((k, n)).astype("f")
    c = np.full((m + 1, n), 7, "f")
    native(a, panels(b, vectors * lanes) if packed else b, c[:m], sizes=(m,) if symbolic else (), threads=threads)
    np.testing.assert_allclose(c[:m], a @ b, rtol=2e-5, atol=2e-5)
    assert (c[m] == 7).all()


@pytest.mark.parametrize("tile", TILES, ids=lambda t: t[0].name)
@pytest.mark.parametrize("shape", [(28, 64, 32), (33, 75, 20), (3, 5, 7)])
@pytest.mark.parametrize("packed", [True, False])
def test_constant_sizes(tile, shape, packed):
    check(*shape, *tile, packed=packed)


@pytest.mark.parametrize("m", [1, 14, 31])
def test_rows_known_at_run_time(m):
    check(m, 40, 16, HOST, *TILES[0][1:], symbolic=True)


def test_no_rows_at_run_time():
    native = Native(gemm(0, 32, 8, 14, 2, 16, symbolic=True))
    c = np.full((1, 32), 7, "f")
    native(np.zeros((0, 8), "f"), np.zeros((1, 8, 32), "f"), c, sizes=(0,))
    assert (c == 7).all()


def test_threads_get_chunks_of_row_blocks():
    calls.clear()
    check(33, 75, 20, *TILES[0], threads=3)
    assert calls == [(3, 3)]


def test_epilogue():
    zero = Const(0.0, types.f32)
    native = Native(gemm(20, 40, 16, 14, 2, 16, epilogue=lambda v: Binary("max", v + v, zero)))
    a, b, c = (
        RNG.standard_normal((20, 16)).astype("f"),
        RNG.standard_normal((16, 40)).astype("f"),
        np.empty((20, 40), "f"),
    )
    native(a, panels(b, 32), c)
    np.testing.assert_allclose(c, np.maximum(2 * (a @ b), 0), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: t[0].name)
def test_no_stack_reference_in_the_innermost_loop(tile):
    target, rows, vectors, lanes = tile
    asm = llvm.assembly(gemm(384, 768, 768, rows, vectors, lanes), target)
    assert innermost_loop_spills(asm) == 0
    assert ("vfmadd" in asm) == target.has_fma
    assert "fmaf" not in asm


def test_neon_assembles():
    target = Target.parse("aarch64")
    tree = gemm(384, 768, 768, 8, 3, 4)
    asm = llvm.assembly(tree, target)
    assert "fmla\tv" in asm
    assert innermost_loop_spills(asm) == 0
    assert llvm.compile_kernel(tree, target)[:4] == b"\x7fELF"


def dot_kernel(left, right, result, group, m=3, n=20, k=8, lanes=16):
    """Narrow operands in groups: B as (k / group, column, group), the last vector of columns ragged."""
    a, b = Buffer("a", left, (m, k)), Buffer("b", right, (k // group, n, group))
    c, acc = Buffer("c", result, (m, n)), Buffer("acc", result, (lanes,))
    i, o, lane = Sym("i", 0, m - 1), Sym("o", 0, -(-n // lanes) - 1), Sym("l", 0, lanes - 1)
    kk, d = Sym("k", 0, k // group - 1), Sym("d", 0, group - 1)
    column = lanes * o + lane

    def vector(*body):
        return For(Loop(lane, minimum(lanes, n - lanes * o), Kind.VECTOR), body)

    product = Cast(a[i, group * kk + d], result) * Cast(b[kk, column, d], result)
    body = (
        vector(Store(acc, (lane,), Const(0, result))),
        For(Loop(kk, k // group), (vector(For(Loop(d, group, Kind.DOT), (Update(acc, (lane,), "add", product),))),)),
        vector(Store(c, (i, column), acc[lane])),
    )
    return kernel([For(Loop(i, m), (For(Loop(o, -(-n // lanes)), body),))], a, b, c, reg(acc))


@pytest.mark.parametrize("target", [HOST, AVX2, SSE2], ids=lambda t: t.name)
def test_dot_products_of_bytes(target):
    """Exact everywhere; one instruction a group where the target has it."""
    tree = dot_kernel(types.u8, types.i8, types.i32, 4)
    a, b = RNG.integers(0, 256, (3, 8), dtype=np.uint8), RNG.integers(-128, 128, (2, 20, 4), dtype=np.int8)
    c = np.zeros((3, 20), np.int32)
    Native(tree, target)(a, b, c)
    want = a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1).reshape(8, 20)
    np.testing.assert_array_equal(c, want)
    assert ("vpdpbusd" in llvm.assembly(tree, target)) == target.has_vnni


def test_dot_products_of_bf16_assemble():
    """Checked by its text: not every machine that runs the tests has the instruction."""
    target = Target.parse("sapphirerapids")
    asm = llvm.assembly(dot_kernel(types.bf16, types.bf16, types.f32, 2), target)
    assert "vdpbf16ps" in asm


@pytest.mark.parametrize("n", [17, 20, 24, 25, 33, 40, 43])
@pytest.mark.parametrize("packed", [True, False])
def test_any_number_of_columns_behind_the_last_whole_vector(n, packed):
    check(29, n, 9, *TILES[0], packed=packed)


@pytest.mark.parametrize(("n", "registers"), [(17, "xmm"), (20, "xmm"), (24, "ymm"), (25, "zmm"), (32, "zmm")])
def test_the_last_columns_are_in_the_smallest_registers_that_hold_them(n, registers):
    asm = llvm.assembly(gemm(14, n, 64, 14, 2, 16), AVX512)
    fmas = [line.split()[-1][1:4] for line in asm.splitlines() if "vfmadd" in line]
    assert fmas.count("zmm") == (28 if registers == "zmm" else 14)
    assert registers == "zmm" or fmas.count(registers) == 14


def test_columns_that_begin_narrow_and_go_on_in_full():
    """The parts that are not written first are of no interest, but those that are written later are."""
    n, lane, o = 20, Sym("l", 0, 15), Sym("o", 0, 1)
    x, y, acc = Buffer("x", types.f32, (32,)), Buffer("y", types.f32, (32,)), Buffer("acc", types.f32, (32,))

    def columns(extent, statement):
        return For(Loop(o, 2, Kind.UNROLL), (For(Loop(lane, extent, Kind.VECTOR), (statement,)),))

    at = (16 * o + lane,)
    part = columns(minimum(16, n - 16 * o), Store(acc, at, x[at] * Const(2.0, types.f32)))
    whole = columns(16, Store(acc, at, x[at]))
    back = columns(16, Store(y, at, acc[at]))
    values, out = np.arange(32, dtype="f"), np.empty(32, "f")
    Native(kernel([part, whole, back], x, y, reg(acc)), HOST)(values, out)
    np.testing.assert_array_equal(out, values)
    Native(kernel([whole, part, back], x, y, reg(acc)), HOST)(values, out)
    np.testing.assert_array_equal(out, values * np.where(np.arange(32) < n, 2, 1))
