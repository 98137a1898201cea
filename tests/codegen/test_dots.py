"""Products of bf16 and of bytes by the default schedule: packed in groups, one instruction a group if there is one."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native, innermost_loop_spills, runs_here
from tilewright.choose.default import RULE_BROKE, schedule
from tilewright.codegen.cpu import llvm
from tilewright.core import types
from tilewright.core.compute import Buffer, Cast, Computation, Const, Reduction, Stage, axes_for, syms
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel
from tilewright.tile.pack import packed_array
from tilewright.tile.verify import verify

TARGETS = (HOST, *map(Target.parse, ("x86-64-v4", "x86-64-v3", "x86-64")))
RUNNABLE = [target for target in TARGETS if runs_here(target)]
BF16, BYTES = (types.bf16, types.bf16, types.f32), (types.u8, types.i8, types.i32)
INTEGERS = [
    (left, right, types.i32)
    for left, right in (
        (types.u8, types.i8), (types.i8, types.i8), (types.u8, types.u8), (types.i8, types.u8), (types.i16, types.i8),
        (types.i16, types.i16), (types.u8, types.i7),
    )
]  # fmt: skip
SIZES = st.integers(1, 70)


def product(m, n, k, kinds, target) -> Kernel:
    """``A @ B`` with a constant B, held wide."""
    left, right, result = kinds
    a, b, c = Buffer("A", left, (m, k)), Buffer("B", right, (k, n)), Buffer("C", result, (m, n))
    axes, reduced = axes_for((m, n)), axes_for((k,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    value = Cast(a[i, x], result) * Cast(b[x, j], result)
    stage = Stage((c,), axes, (i, j), (value,), Reduction(reduced, "add", (Const(0, result),)))
    kernel = schedule(Computation((a, b), (c,), (stage,)), target, (b,))
    verify(kernel)
    assert not [n for n in kernel.notes if RULE_BROKE in n]
    return kernel


def numbers(rng, shape, dtype):
    """Any numbers of the type, the least and the greatest among them."""
    x = rng.integers(dtype.min, dtype.max + 1, shape).astype(dtype.numpy)
    x.flat[:2] = x.flat[-2:] = dtype.min
    x.flat[2:5] = dtype.max
    return x


def check(m, n, k, kinds, target):
    kernel = product(m, n, k, kinds, target)
    rng = np.random.default_rng(m * n + k)
    if kinds is not BF16:
        a, b = (numbers(rng, shape, t) for shape, t in zip(((m, k), (k, n)), kinds, strict=False))
        want = a.astype(np.int32) @ b.astype(np.int32)
    else:
        a, b = (rng.standard_normal(s).astype(types.bf16.numpy) for s in ((m, k), (k, n)))
        want = a.astype("d") @ b.astype("d")
    a = np.concatenate([a, np.full((1, k), np.nan if kinds is BF16 else 7, a.dtype)])[:m]  # NaN behind the last row
    packed = {p.param.name: packed_array(p, b) for p in kernel.packed}
    c = np.zeros((m, n), kinds[2].numpy)
    known = {"A": a, "B": b, "C": c, **packed}
    room = np.full(a.size + 64, 77, np.int16)  # of a copy of A in 16 bits
    Native(kernel, target)(*[known.get(x.name, room) for x in kernel.params])
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5 * np.sqrt(k) if kinds is BF16 else 0)


@pytest.mark.one_in(4)
@settings(max_examples=12)
@given(SIZES, SIZES, st.integers(1, 40), st.sampled_from(RUNNABLE))
@example(37, 100, 257, HOST)
@example(12, 32, 3000, HOST)  # a panel that is walked in parts
@example(1, 300, 65, HOST)
@example(1, 1, 8, HOST)
@example(1, 1, 16, HOST)  # LLVM 22 made one instruction of it, and kept the first of its four sums
@pytest.mark.parametrize("kinds", [BF16, *INTEGERS], ids=lambda kinds: f"{kinds[0]}-{kinds[1]}")
def test_any_size(kinds, m, n, k, target):
    """Bytes are exact; sums of bf16 are as good as sums of f32."""
    check(m, n, k, kinds, target)


@pytest.mark.parametrize("name", ["sapphirerapids", "znver4", "x86-64-v4", "x86-64-v3"])
def test_pairs_of_bf16_stay_in_registers(name):
    """One instruction a pair, or two multiply-adds of the words' halves."""
    target = Target.parse(name)
    asm = llvm.assembly(product(384, 768, 768, BF16, target), target)
    assert ("vdpbf16ps" in asm) == target.has_bf16
    assert innermost_loop_spills(asm) == 0


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("sapphirerapids", "vpdpbusd"),
        ("cascadelake", "vpdpbusd"),
        ("aarch64-dotprod", "sdot"),
        ("aarch64-i8mm", "usdot"),
        ("x86-64-v4", "vpmaddwd"),
        ("x86-64-v3", "vpmaddwd"),
        ("x86-64", "pmaddwd"),
        ("wasm32-simd128", "i32x4.dot_i16x8_s"),
    ],
)
def test_groups_of_bytes_stay_in_registers(name, instruction):
    asm = llvm.assembly(product(384, 768, 768, BYTES, Target.parse(name)), Target.parse(name))
    assert instruction in asm.split()
    assert innermost_loop_spills(asm) == 0


@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
def test_pairs_of_bytes_stay_in_registers(name):
    """Where one operand has 7 bits: with their sums, what stands between the two, and ones."""
    asm = llvm.assembly(product(384, 768, 768, (types.u8, types.i7, types.i32), Target.parse(name)), Target.parse(name))
    assert {"vpmaddubsw", "pmaddubsw"} & set(asm.split())
    assert innermost_loop_spills(asm) == 0


@pytest.mark.parametrize("rows", [1, 9])
def test_sums_of_bytes_fill_registers_before_a_wider_scale(rows):
    """One row as well as several: 256 bits hold eight sums, and four of the numbers that are made of them."""
    target, m, n, k = Target.parse("x86-64-v3"), rows, 512, 512
    a, b, s = Buffer("A", types.i8, (m, k)), Buffer("B", types.i8, (k, n)), Buffer("S", types.f64, (n,))
    sums, c = Buffer("T", types.i32, (m, n)), Buffer("C", types.i8, (m, n))
    axes, reduced = axes_for((m, n)), axes_for((k,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    value = Cast(a[i, x], types.i32) * Cast(b[x, j], types.i32)
    total = Stage((sums,), axes, (i, j), (value,), Reduction(reduced, "add", (Const(0, types.i32),)))
    scaled = Stage((c,), axes, (i, j), (Cast(Cast(sums[i, j], types.f64) * s[j], types.i8),))
    asm = llvm.assembly(schedule(Computation((a, b, s), (c,), (total, scaled), (sums,)), target, (b, s)), target)
    multiplied = [line for line in asm.splitlines() if "vpmaddwd" in line]
    assert multiplied and all("%ymm" in line for line in multiplied)


def batched(heads, m, n, k, turned, target, symbolic=False, across=False):
    """Products of two run-time operands, the second one by rows or by columns, and the first one too (``across``)."""
    depth = Sym("K", 1) if symbolic else k
    a = Buffer("A", types.bf16, (heads, depth, m) if across else (heads, m, depth))
    b = Buffer("B", types.bf16, (heads, n, depth) if turned else (heads, depth, n))
    c = Buffer("C", types.f32, (heads, m, n))
    axes, reduced = axes_for((heads, m, n)), axes_for((depth,), "k")
    (h, i, j), (x,) = syms(axes), syms(reduced)
    left = a[h, x, i] if across else a[h, i, x]
    value = Cast(left, types.f32) * Cast(b[h, j, x] if turned else b[h, x, j], types.f32)
    stage = Stage((c,), axes, (h, i, j), (value,), Reduction(reduced, "add", (Const(0, types.f32),)))
    return schedule(Computation((a, b), (c,), (stage,)), target, ())


def check_batched(heads, m, n, k, turned, target, symbolic, across):
    kernel = batched(heads, m, n, k, turned, target, symbolic, across)
    verify(kernel)
    assert not [x for x in kernel.notes if RULE_BROKE in x]
    rng = np.random.default_rng(m * n + k)
    shapes = ((heads, k, m) if across else (heads, m, k), (heads, n, k) if turned else (heads, k, n))
    a, b = (rng.standard_normal(s).astype(types.bf16.numpy) for s in shapes)
    c = np.zeros((heads, m, n), np.float32)
    known = {"A": a, "B": b, "C": c}
    room = np.full(2 * heads * (k + 1) * (max(m, n) + 1), np.nan, types.bf16.numpy)  # scratch starts as anything
    arrays = [known.get(x.name, room.copy()) for x in kernel.params]  # each copy its own
    Native(kernel, target)(*arrays, sizes=(k,) if symbolic else ())
    want = (a.swapaxes(1, 2) if across else a).astype("d") @ (b.swapaxes(1, 2) if turned else b).astype("d")
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5 * np.sqrt(k))


@settings(max_examples=20)
@given(
    st.integers(1, 3), SIZES, SIZES, st.integers(1, 40), st.booleans(), st.sampled_from(RUNNABLE), st.booleans(),
    st.booleans(),
)  # fmt: skip
@example(2, 33, 40, 21, True, HOST, False, False)
@example(2, 33, 40, 21, False, HOST, False, False)
@example(2, 33, 40, 21, False, HOST, True, False)
@example(2, 33, 40, 21, False, HOST, False, True)
def test_operands_known_at_run_time(heads, m, n, k, turned, target, symbolic, across):
    """They are copied in pairs, with zeros behind an odd end, and turned where they lie across the sums."""
    check_batched(heads, m, n, k, turned, target, symbolic, across)


def test_operands_known_at_run_time_go_in_pairs():
    target = Target.parse("znver4")
    for turned, across in ((False, False), (True, False), (False, True), (True, True)):
        asm = llvm.assembly(batched(12, 128, 64, 128, turned, target, across=across), target)
        assert "vdpbf16ps" in asm
        assert across or innermost_loop_spills(asm) == 0  # but for the turning of 32 rows of 32 elements
