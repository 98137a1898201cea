"""Transcendental functions: ULP sweeps against a wider type, and the special values of C's library."""

import math
import sys

import mpmath
import numpy as np
import pytest

from codegen.native import HOST, Native, clear_underflow, has_underflowed, kernel
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Const, Fma, Select, Unary
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Loop, Store

SSE2 = Target.parse("x86-64")
TARGETS = [HOST, SSE2]
N = 1 << 14

# name: (f32 bound, f64 bound in ULP, low and high of the ordinary range)
BOUNDS = {
    "exp": (1.5, 1.5, -104, 89),
    "exp2": (1.5, 1.5, -150, 129),
    "expm1": (2, 2, -20, 89),
    "sinh": (3, 3, -90, 90),
    "cosh": (2, 2, -90, 90),
    "tanh": (4, 4, -10, 10),
    "log": (1, 1, 0, 10),
    "log2": (3, 3, 0, 10),
    "log1p": (3, 3, -1, 10),
    "asinh": (4, 4, -100, 100),
    "acosh": (4, 4, 1, 100),
    "atanh": (4, 4, -1, 1),
    "sin": (2, 2, -1000, 1000),
    "cos": (2, 2, -1000, 1000),
    "tan": (4, 4, -1000, 1000),
    "asin": (3, 3, -1, 1),
    "acos": (3, 3, -1, 1),
    "atan": (3, 3, -20, 20),
    "erf": (2, 2, -5, 5),
    "rsqrt": (1.5, 1.5, 0, 10),
}
NUMPY = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
PERIODIC = ("sin", "cos", "tan")


def exact(name, x):
    """The function in a wider type: f64 for f32, 80-bit or mpmath for f64."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
        if name == "erf":
            if x.dtype == np.float32:
                return np.array([math.erf(v) for v in wide])
            with mpmath.workprec(100):
                numbers = [np.longdouble(mpmath.nstr(mpmath.erf(float(v)), 25)) for v in x]
                return np.copysign(np.array(numbers), x)
        if name == "rsqrt":
            return 1 / np.sqrt(wide)
        return getattr(np, NUMPY.get(name, name))(wide)


def apply(make, inputs, target, dtype, before=lambda: None):
    """Run an element-wise value over arrays whose length is a multiple of 64, right after ``before``."""
    n, lanes = inputs[0].size, target.lanes(dtype)
    o, lane = Sym("o", 0, n // lanes - 1), Sym("l", 0, lanes - 1)
    buffers = [Buffer(f"x{k}", dtype, (n,)) for k in range(len(inputs))]
    out = Buffer("out", dtype, (n,))
    at = lanes * o + lane
    store = Store(out, (at,), make(*[b[at] for b in buffers]))
    tree = kernel([For(Loop(o, n // lanes), (For(Loop(lane, lanes, Kind.VECTOR), (store,)),))], *buffers, out)
    got = np.zeros(n, dtype.numpy)
    run = Native(tree, target)
    before()
    run(*inputs, got)
    return got


def ulps(got, want):
    """Distance in units of the last place of the exact result; exact where both are equal, infinite or NaN."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        tiny = np.finfo(got.dtype).smallest_subnormal
        # numpy computes `spacing` wrongly for the largest numbers only
        unit = np.maximum(np.abs(np.spacing(rounded)), tiny).astype(want.dtype)
        error = np.abs(got.astype(want.dtype) - want) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(want))
    return np.where(same, np.fmin(error, 0.5), np.where(np.isfinite(rounded), error, np.inf)).astype("d")


def sweep(dtype, low, high, n=N):
    """A linear range, every exponent, and neighbourhoods of 0, 1 and the ends."""
    rng = np.random.default_rng(5)
    width = {types.f32: np.uint32, types.f64: np.uint64}[dtype]
    linear = rng.uniform(low, high, n // 2)
    around = np.concatenate([p + rng.standard_normal(n // 16) * 1e-3 for p in (0, 1, low, high)])
    any_bits = rng.integers(0, np.iinfo(width).max, n - linear.size - around.size, dtype=width).view(dtype.numpy)
    with np.errstate(all="ignore"):
        return np.concatenate([linear.astype(dtype.numpy), around.astype(dtype.numpy), any_bits])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", BOUNDS)
def test_bound(name, dtype, target):
    single, double, low, high = BOUNDS[name]
    x = sweep(dtype, low, high, 1 << 10 if name == "erf" and dtype is types.f64 else N)
    if name in PERIODIC and dtype is types.f64:
        x = x[(np.abs(x) < 2**45) | ~np.isfinite(x)]
        x = x[: x.size // 64 * 64]
    got = apply(lambda v: Unary(name, v), [x], target, dtype)
    error = ulps(got, exact(name, x))
    worst = int(np.argmax(error))
    assert error[worst] <= (single if dtype is types.f32 else double), (x[worst], got[worst], error[worst])


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0, 0.5, 1e-310, 1e-40, 5e-324]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", BOUNDS)
def test_special_values(name, dtype, target):
    x = np.zeros(64, dtype.numpy)
    x[: len(SPECIAL)] = SPECIAL
    got, want = apply(lambda v: Unary(name, v), [x], target, dtype), exact(name, x).astype(dtype.numpy)
    np.testing.assert_array_max_ulp(got[np.isfinite(want)], want[np.isfinite(want)], 4)
    np.testing.assert_array_equal(got[~np.isfinite(want)], want[~np.isfinite(want)])
    assert (np.signbit(got) == np.signbit(want))[(want == 0) & (x == 0)].all()


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_sine_of_large_f32(target):
    """Every exponent, the numbers that come closest to a multiple of pi/2, and those where a reduction ends."""
    exponents = np.ldexp(np.random.default_rng(6).uniform(1, 2, N), np.arange(N) % 128).astype("f")
    close = np.array([16367173 * 2.0**72, 12915 * 2.0**-12, 11476506 * 2.0**-22, 8248251512.0, 3.4028234e38], "f")
    near = np.array([252.898208618, 505.797417236, 4.71238899231, 8191.9995117, 8192, 2.0**30 - 64, 2.0**30], "f")
    x = np.concatenate([exponents, np.resize([*close, *near, *-near], 64)]).astype("f")
    for name, bound in (("sin", 2), ("cos", 2), ("tan", 4)):
        got = apply(lambda v, name=name: Unary(name, v), [x], target, types.f32)
        assert ulps(got, exact(name, x)).max() <= bound


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_sine_of_large_f64(target):
    """Every exponent, the numbers beside multiples of pi/2, and the one of f64 that comes closest to a multiple."""
    rng = np.random.default_rng(7)
    exponents = np.ldexp(rng.uniform(1, 2, N), np.arange(N) % 1024)
    close = np.round(2.0 ** rng.uniform(0, 44, N)) * (np.pi / 2)
    edges = np.ldexp(1.0, np.arange(1024))
    edges = np.concatenate([edges, np.nextafter(edges, 0), [math.ldexp(6381956970095103, 797), sys.float_info.max]])
    for name, bound in (("sin", 2), ("cos", 2), ("tan", 4)):
        x = np.concatenate([exponents, close, edges, -edges, np.zeros(-2 * len(edges) % 64)])
        got = apply(lambda v, name=name: Unary(name, v), [x], target, types.f64)
        assert ulps(got, exact(name, x)).max() <= bound


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize(("name", "least", "bound"), [("erf", -5, 4e-4), ("tanh", -43, 4e-7)])
def test_one_plus_keeps_digits_where_the_sum_is_small(name, least, bound, dtype, target):
    x = sweep(dtype, least, -least)
    x[: len(SPECIAL)] = SPECIAL
    got = apply(lambda v: Const(1.0, v.dtype) + Unary(name, v), [x], target, dtype)
    with np.errstate(all="ignore"):
        wide = x.astype("d")
        want = np.array([math.erfc(-v) for v in wide]) if name == "erf" else 2 / (1 + np.exp(-2 * wide))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-7 if name == "erf" else 3e-7)
    if dtype is types.f32:
        inside = wide > least
        np.testing.assert_allclose(got[inside], want[inside], rtol=bound)
        assert (got[wide < 2 * least] == 0).all()


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("number", [1.0, -1.0, 2.0**-60, -(2.0**60), 0.3])
def test_an_exponential_and_a_number_are_what_two_steps_give(number, dtype, target):
    x = sweep(dtype, -110, 90) if dtype is types.f32 else sweep(dtype, -750, 710)
    x[: len(SPECIAL)] = SPECIAL
    power = apply(lambda v: Unary("exp", v), [x], target, dtype)
    with np.errstate(all="ignore"):
        want = power + dtype.numpy.type(number)
    got = apply(lambda v: Const(dtype.numpy.type(number).item(), v.dtype) + Unary("exp", v), [x], target, dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("number", [0.125, -2.0, 1.0, 3.0, 0.0])
@pytest.mark.parametrize("op", ["add", "sub"])
def test_a_sum_with_a_product_has_the_digits_of_two_steps(op, number, dtype, target):
    """One operation has them for a power of two alone, whose product is exact: no other number is made one."""
    rng = np.random.default_rng(3)
    x, y = ((rng.normal(size=N) * 2.0 ** rng.integers(-20, 20, N)).astype(dtype.numpy) for _ in range(2))
    x[:4], y[:4] = [0.0, -0.0, math.inf, math.nan], [-0.0, -0.0, 1.0, 1.0]
    scale = dtype.numpy.type(number)
    with np.errstate(all="ignore"):
        want = getattr(np, {"add": "add", "sub": "subtract"}[op])(y, x * scale)
    got = apply(lambda a, b: Binary(op, b, Const(number, a.dtype) * a), [x, y], target, dtype)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(want[:2]))


def test_a_product_by_a_power_of_two_is_no_instruction_of_its_own() -> None:
    from tilewright.codegen.cpu import llvm

    x, out = Buffer("x", types.f64, (64,)), Buffer("out", types.f64, (64,))
    i = Sym("i", 0, 63)
    value = Binary("sub", x[i] * Const(0.5, types.f64) + x[i], Const(2.0, types.f64) * Unary("sqrt", x[i]))
    asm = llvm.assembly(kernel([For(Loop(i, 64), (Store(out, (i,), value),))], x, out), Target.parse("x86-64-v3"))
    assert "mul" not in asm and asm.count("fm") + asm.count("fnm") >= 2


def pairs(dtype, n=N):
    rng = np.random.default_rng(7)
    x, y = sweep(dtype, -3, 3, n), rng.permutation(sweep(dtype, -40, 40, n))
    special = [(a, b) for a in SPECIAL for b in [*SPECIAL, 3.0, -3.0, 1e30, -2.5]]
    with np.errstate(all="ignore"):
        x[: len(special)], y[: len(special)] = np.array(special, dtype.numpy).T
    y[n // 2 : n // 2 + 500] = rng.integers(-20, 20, 500)
    return x, y


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize(
    ("op", "numpy_op", "bound"), [("pow", "power", 4), ("atan2", "arctan2", 4), ("rem", "fmod", 0.5)]
)
def test_two_arguments(op, numpy_op, bound, dtype, target):
    x, y = pairs(dtype)
    if op == "rem" and dtype is types.f64:
        with np.errstate(all="ignore"):
            ok = ~(np.abs(x / y) >= 2.0**199) | ~np.isfinite(x) | (y == 0)
        x, y = x[ok], y[ok]
        x, y = x[: x.size // 64 * 64], y[: y.size // 64 * 64]
    wide = np.float64 if dtype is types.f32 else np.longdouble
    with np.errstate(all="ignore"):
        want = getattr(np, numpy_op)(x.astype(wide), y.astype(wide))
    got = apply(lambda a, b: Binary(op, a, b), [x, y], target, dtype)
    error = ulps(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (x[worst], y[worst], got[worst], want[worst], error[worst])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_powers_with_the_largest_exponents(target):
    """Without a fused multiply-add an exponent is taken in halves, which must not overflow."""
    most = np.finfo(np.float64).max
    x, y = (
        np.ravel(v) for v in np.meshgrid([-1.0, 1.0, 1 - 2.0**-53, 1 + 2.0**-52, -0.5, -2, 3, 1e300], [most, -most])
    )
    x, y = np.tile(x, 4), np.tile(y, 4)
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    np.testing.assert_array_equal(apply(lambda a, b: Binary("pow", a, b), [x, y], target, types.f64), want)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
def test_remainder_of_every_quotient(dtype, target):
    """Whole multiples and their neighbours, with quotients on both sides of where long division begins."""
    rng = np.random.default_rng(11)
    y = (rng.integers(1, 1 << 20, N) * np.ldexp(1.0, rng.integers(-40, 40, N))).astype(dtype.numpy)
    x = (y * np.floor(2.0 ** np.linspace(0, 60, N))).astype(dtype.numpy)
    x = np.select([np.arange(N) % 3 == k for k in range(2)], [np.nextafter(x, 0), np.nextafter(x, np.inf)], x)
    got = apply(lambda a, b: Binary("rem", a, b), [x.astype(dtype.numpy), y], target, dtype)
    np.testing.assert_array_equal(got, np.fmod(x.astype(dtype.numpy), y))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("n_terms", [(50, 3), (3, 50), (50, 60)])
def test_a_costly_side_is_computed_where_a_lane_wants_it(n_terms, target):
    def powers(v, n):
        total = v
        for _ in range(n):
            total = Fma(total, v, v)
        return total

    def make(v):
        shared = Unary("sqrt", Unary("abs", v))
        return Select(Binary("lt", v, Const(0.0, v.dtype)), *(powers(shared + v, n) for n in n_terms)) + shared

    for x in (np.linspace(-0.2, -0.1, 256), np.linspace(0.1, 0.2, 256), np.linspace(-0.2, 0.2, 256)):
        x = x.astype("f")
        base, want = np.sqrt(np.abs(x)), []
        for n in n_terms:
            total = v = base + x
            for _ in range(n):
                total = total * v + v
            want.append(total)
        got = apply(make, [x], target, types.f32)
        np.testing.assert_allclose(got, np.where(x < 0, *want) + base, rtol=1e-5)


@pytest.mark.parametrize("dtype", types.INTS, ids=str)
def test_integer_power(dtype):
    rng = np.random.default_rng(8)
    x = rng.integers(max(dtype.min, -5), 10, 64).astype(dtype.numpy)
    y = rng.integers(max(dtype.min, -3), 12, 64).astype(dtype.numpy)
    got = apply(lambda a, b: Binary("pow", a, b), [x, y], HOST, dtype)
    for a, b, g in zip(x.tolist(), y.tolist(), got.tolist(), strict=True):
        want = a**b if b >= 0 else 1 if a == 1 else (-1) ** b if a == -1 else 0
        assert np.array(int(want) & ((1 << 64) - 1), np.uint64).astype(dtype.numpy) == g, (a, b)


@pytest.mark.parametrize("dtype", [types.f16, types.bf16], ids=str)
@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "log"])
def test_half_types_round_once(name, dtype):
    x = (np.random.default_rng(9).standard_normal(256) * 2).astype(dtype.numpy)
    got = apply(lambda v: Unary(name, v), [x], HOST, dtype).astype("d")
    want = exact(name, x.astype("f")).astype(dtype.numpy).astype("d")
    np.testing.assert_allclose(got, want, rtol=2.0 ** (-10 if dtype is types.f16 else -7))


def test_no_library_call_remains():
    from tilewright.codegen.cpu import llvm

    x, out = Buffer("x", types.f32, (64,)), Buffer("out", types.f32, (64,))
    i = Sym("i", 0, 63)
    for target in (*TARGETS, Target.parse("aarch64")):
        for name in BOUNDS:
            tree = kernel([For(Loop(i, 64), (Store(out, (i,), Unary(name, x[i])),))], x, out)
            asm = llvm.assembly(tree, target)
            assert "call" not in asm and "\tbl\t" not in asm, (target.name, name)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [types.f32, types.f64], ids=str)
@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "tanh"])
def test_nothing_is_no_underflow(name, dtype, target):
    """What a mask leaves of a score, and what is next to nothing, must not take an underflow: 150 cycles each."""
    x = np.full(64, -math.inf, dtype.numpy)
    x[:24] = np.repeat([-1e30, -1e9, -1e4], 8)
    if target.has_fma and dtype is types.f32:
        x[48:] = 3e-20
    got = apply(lambda v: Unary(name, v), [x], target, dtype, before=clear_underflow)
    assert not has_underflowed()
    np.testing.assert_array_equal(got[:48], exact(name, x).astype(dtype.numpy)[:48])
