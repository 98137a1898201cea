"""Every basic operation on every dtype, scalar and in ragged lanes, against the tile IR's interpreter."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from codegen.native import HOST, Native, kernel, reg
from tilewright.codegen.cpu.llvm import assembly, emit_kernel
from tilewright.core import types
from tilewright.core.compute import Binary, Bitcast, Buffer, Cast, Const, Fma, Index, Inside, Select, Unary
from tilewright.core.expr import Sym, minimum
from tilewright.target.target import Target
from tilewright.tile import interp
from tilewright.tile.ir import For, Kind, Loop, Store, Update

TARGETS = [HOST, Target.parse("x86-64-v3"), Target.parse("x86-64")]
AVX512 = Target.parse("x86-64-v4")
WITHOUT_ROUNDING = replace(Target.parse("x86-64"), name="without rounding", has_nearest=False)
INT_BINARY = "add sub mul div rem min max and or xor shl shr".split()
FLOAT_BINARY = "add sub mul div min max larger".split()
COMPARE = "eq ne lt le gt ge".split()
FLOAT_UNARY = "neg abs sqrt floor ceil trunc rint rint_rest isnan".split()
N = 37


def values_of(dtype, rng):
    """Ordinary numbers and every awkward one, paired."""
    if dtype is types.bool_:
        return np.array(list(itertools.product([False, True], repeat=2)) * 10)[:N].T.copy()
    if dtype.is_integer:
        odd = [0, 1, dtype.max, dtype.min, 3, max(dtype.min, -1)]
    else:
        odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 2.5, dtype.max, dtype.numpy.type(1e-7)]
    pairs = np.array(list(itertools.product(odd[:5], odd)), dtype=dtype.numpy)[: N - 4].T
    if dtype.is_integer:
        plain = rng.integers(max(dtype.min, -20), 20, (2, N)).astype(dtype.numpy)
    else:
        plain = (rng.standard_normal((2, N)) * 10).astype(dtype.numpy)
    plain[:, : pairs.shape[1]] = pairs
    return plain


def both_ways(make, n_results, dtype, inputs, target, result):
    """A kernel that stores ``make(i)``'s values for every element: one loop by scalars, one in lanes."""
    out = Buffer("out", result, (2, n_results, N))
    i, o = Sym("i", 0, N - 1), Sym("o", 0)
    lanes = target.lanes(dtype)
    lane = Sym("l", 0, lanes - 1)
    scalar = [Store(out, (0, n, i), v) for n, v in enumerate(make(i))]
    at = lanes * o + lane
    vector = [Store(out, (1, n, at), v) for n, v in enumerate(make(at))]
    inner = For(Loop(lane, minimum(lanes, N - lanes * o), Kind.VECTOR), tuple(vector))
    return kernel([For(Loop(i, N), tuple(scalar)), For(Loop(o, -(-N // lanes)), (inner,))], *inputs, out)


def agree(tree, arrays, target, **tolerance):
    out = tree.params[-1]
    got = np.zeros(out.shape, out.dtype.numpy)
    Native(tree, target)(*arrays, got)
    names = {b.name: a for b, a in zip(tree.params, [*arrays, np.zeros_like(got)], strict=True)}
    want = interp.run(tree, names)["out"]
    if out.dtype.is_float:
        np.testing.assert_allclose(got.astype("d"), want.astype("d"), **{"rtol": 0, "atol": 0, **tolerance})
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", types.DTYPES, ids=str)
def test_operations(dtype, target):
    x, y = values_of(dtype, np.random.default_rng(1))
    a, b = Buffer("a", dtype, (N,)), Buffer("b", dtype, (N,))
    if dtype.is_float:
        binary, unary = FLOAT_BINARY, FLOAT_UNARY[:-1]
    elif dtype is types.bool_:
        binary, unary = ["and", "or", "xor"], ["not"]
    else:
        binary, unary = INT_BINARY, ["not", "neg", "abs"]

    def make(i):
        one = Const(1, dtype)
        extra = [Select(Binary("lt", a[i], b[i]), a[i], b[i]), Binary("max", a[i], one), Binary("min", one, b[i])]
        return [Binary(op, a[i], b[i]) for op in binary] + [Unary(op, a[i]) for op in unary] + extra

    agree(both_ways(make, len(binary) + len(unary) + 3, dtype, [a, b], target, dtype), [x, y], target)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", types.DTYPES, ids=str)
def test_comparisons(dtype, target):
    x, y = values_of(dtype, np.random.default_rng(2))
    a, b = Buffer("a", dtype, (N,)), Buffer("b", dtype, (N,))

    def make(i):
        return [Binary(op, a[i], b[i]) for op in COMPARE] + ([Unary("isnan", a[i])] if dtype.is_float else [])

    n_results = len(COMPARE) + dtype.is_float
    agree(both_ways(make, n_results, dtype, [a, b], target, types.bool_), [x, y], target)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", types.DTYPES, ids=str)
def test_casts(dtype, target):
    """To every dtype; to f16 also from f64 numbers that a second rounding would spoil."""
    x = values_of(dtype, np.random.default_rng(3))[0]
    if dtype is types.f64:
        x[-3:] = [1 + 2.0**-11 + 2.0**-40, 65519.99999, 2.0**-25 + 2.0**-60]
    a = Buffer("a", dtype, (N,))
    for result in types.DTYPES:
        tree = both_ways(lambda i, result=result: [Cast(a[i], result)], 1, dtype, [a], target, result)
        agree(tree, [x], target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64, types.f16], ids=str)
def test_casts_saturate_in_lanes(dtype, target):
    """On both sides of each end of every integer type's range, by the float's own steps and by a half and by one."""
    a, kind = Buffer("a", dtype, (N,)), dtype.numpy.type
    for result in [t for t in types.INTS if t.bits >= 8]:
        with np.errstate(over="ignore"):
            ends = np.array([result.min, result.max, 0], kind)
            steps = [np.nextafter(ends, kind(to)) for to in (-np.inf, np.inf)]
            more = [ends + kind(d) for d in (-1, -0.5, 0.5, 1)] + [ends * kind(f) for f in (0.99, 1.01, 3)]
        x = np.concatenate([ends, *steps, *more, np.array([np.nan, np.inf, -np.inf, -0.0], kind)])
        tree = both_ways(lambda i, result=result: [Cast(a[i], result)], 1, dtype, [a], target, result)
        agree(tree, [np.resize(x, N)], target)


@pytest.mark.parametrize("result", [types.u8, types.i8, types.u16, types.i16], ids=str)
def test_whole_numbers_of_floats_without_vectors(result):
    """By an addition and a saturating difference: ties, both ends, numbers beyond 2**22, infinities and NaN."""
    target, a = replace(Target.parse("x86-64"), vector_bytes=4), Buffer("a", types.f32, (N,))
    numbers = [0.5, 1.5, 2.5, -0.5, -1.5, result.min - 0.5, result.max + 0.5, result.max - 0.5, 2.0**22, 2.0**22 + 0.5]
    numbers += [-(2.0**22), 1.5 * 2**23, -1.5 * 2**23, -(2.0**24), 3e9, -3e9, 3e38, -3e38]
    numbers += [np.inf, -np.inf, np.nan, -np.nan]
    x = np.resize(np.array(numbers, np.float32), N)
    out = Buffer("out", result, (N,))
    i = Sym("i", 0, N - 1)
    tree = kernel([For(Loop(i, N), (Store(out, (i,), Cast(Unary("rint", a[i]), result)),))], a, out)
    assert "ssub.sat" in emit_kernel(tree, target)
    agree(tree, [x], target)


@pytest.mark.parametrize("target", [*TARGETS, WITHOUT_ROUNDING], ids=lambda t: t.name)
@pytest.mark.parametrize("result", [types.u8, types.i8, types.u16, types.i16], ids=str)
@pytest.mark.parametrize("more", [0, 130, -7])
def test_whole_numbers_of_floats_in_lanes(more, result, target):
    """By one instruction on x86, by an addition where vectors do not round.

    Ties, both ends, what 32 bits do not hold, infinities and NaN, and a zero point.
    """
    ends = np.array([result.min - more, result.max - more, 0], np.float32)
    far = [2.0**31, 2.0**31 - 128, -(2.0**31), 2.0**32, -(2.0**33), 3e38, -3e38, np.inf, -np.inf, np.nan, -np.nan, -0.0]
    near = [ends + np.float32(d) for d in (-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1)]
    x = np.concatenate([*near, np.array(far, np.float32)])
    a = Buffer("a", types.f32, (N,))

    def rounded(i):
        steps = Unary("rint", a[i])
        return [Cast(Binary("add", steps, Const(float(more), types.f32)) if more else steps, result)]

    tree = both_ways(rounded, 1, types.f32, [a], target, result)
    text = emit_kernel(tree, target)
    assert ("cvt" in text) == target.has_nearest and ("ssub.sat.v" in text) == (target is WITHOUT_ROUNDING)
    agree(tree, [np.resize(x, N)], target)


@pytest.mark.parametrize("narrow", [types.i8, types.u8, types.i16], ids=str)
def test_narrow_numbers_are_multiplied_as_they_are_by_neon(narrow):
    """The one that lanes share and the ones in lanes, added to sums: LLVM makes one instruction of both."""
    target = Target.parse("armv7").judged()
    a, b, out = Buffer("a", types.u8, (8,)), Buffer("b", narrow, (8, 4)), Buffer("out", types.i32, (4,))
    acc, k, lane = Buffer("acc", types.i32, (4,)), Sym("k", 0, 7), Sym("l", 0, 3)
    product = Binary("mul", Cast(a[k], types.i32), Cast(b[k, lane], types.i32))
    lanes = Loop(lane, 4, Kind.VECTOR)
    loops = [
        For(lanes, (Store(acc, (lane,), Const(0, types.i32)),)),
        For(Loop(k, 8), (For(lanes, (Update(acc, (lane,), "add", product),)),)),
        For(lanes, (Store(out, (lane,), acc[lane]),)),
    ]
    text = assembly(kernel(loops, a, b, out, reg(acc)), target)
    assert "vmlal.s16" in text and "vmla.i32" not in text


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_f64_to_bf16_rounds_once(target):
    a, out = Buffer("a", types.f64, (1,)), Buffer("o", types.bf16, (1,))
    got = np.zeros(1, types.bf16.numpy)
    Native(kernel([Store(out, (0,), Cast(a[0], types.bf16))], a, out), target)(np.array([1 + 2.0**-8 + 2.0**-40]), got)
    assert float(got[0]) == 1 + 2.0**-7


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_half_precision_bits(target):
    """All f16 to f32 and back; f32 bit patterns around every rounding case to f16 and bf16.

    The instruction that converts to bf16 flushes denormals.
    """
    n = 1 << 16
    rng = np.random.default_rng(4)
    half, wide = Buffer("h", types.f16, (n,)), Buffer("w", types.f32, (n,))
    out, back, brain = Buffer("o", types.f32, (n,)), Buffer("b", types.f16, (n,)), Buffer("r", types.bf16, (n,))
    o, lane = Sym("o", 0, n // 16 - 1), Sym("l", 0, 15)
    i = 16 * o + lane
    stores = (
        Store(out, (i,), Cast(half[i], types.f32)),
        Store(back, (i,), Cast(wide[i], types.f16)),
        Store(brain, (i,), Cast(wide[i], types.bf16)),
    )
    tree = kernel([For(Loop(o, n // 16), (For(Loop(lane, 16, Kind.VECTOR), stores),))], half, wide, out, back, brain)
    h = np.arange(n, dtype=np.uint16).view(np.float16)
    w = rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        w[: n // 2] = h[: n // 2].astype("f") * (1 + rng.integers(-2, 3, n // 2) * np.float32(2.0**-11))
    results = [np.zeros(n, b.dtype.numpy) for b in (out, back, brain)]
    Native(tree, target)(h, w, *results)
    with np.errstate(all="ignore"):
        flushed = np.where(np.abs(w) < 2.0**-126, np.copysign(0, w), w) if target.has_bf16 else w
        wants = [h.astype("f"), w.astype(np.float16), flushed.astype(types.bf16.numpy)]
    for got, want in zip(results, wants, strict=True):
        np.testing.assert_array_equal(got.astype("f"), want.astype("f"))


@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
def test_exponents_and_significands(dtype):
    """By instructions that tell whole registers of AVX-512 apart, and single numbers: also what is not finite."""
    info = np.finfo(dtype.numpy)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -2.5, info.max, info.tiny, info.tiny / 8, np.nextafter(2, 1), 1]
    x = np.append(special, 2.0 ** np.linspace(-120, 120, N - len(special))).astype(dtype.numpy)
    a = Buffer("a", dtype, (N,))
    tree = both_ways(lambda i: [Unary("exponent", a[i]), Unary("significand", a[i])], 2, dtype, [a], AVX512, dtype)
    agree(tree, [x], AVX512)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_bitcast_index_fma_and_pow2i(target):
    x = np.arange(N, dtype="f") - 18
    a = Buffer("a", types.f32, (N,))

    def make(i):
        bits = Bitcast(Binary("add", Bitcast(a[i], types.i32), Const(1, types.i32)), types.f32)
        place = Cast(Index(2 * i - 5), types.f32)
        inside = Select(Inside((i - 3, 30 - i)), a[i], Const(-1.0, types.f32))
        return [bits, place, inside, Fma(a[i], a[i], place), Unary("pow2i", a[i])]

    agree(both_ways(make, 5, types.f32, [a], target, types.f32), [x], target)
