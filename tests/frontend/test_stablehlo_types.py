"""StableHLO in types that NumPy lacks and in complex numbers: constants, arithmetic, rounding, inverse functions.

In quick runs these are asked of the graphs that the passes leave (``by_numpy``).
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from benchmarks.stablehlo_suite import outcome, programs
from jax import lax

import tilewright as tw
import tilewright.jax as twj
from frontend.by_numpy import computed_by_numpy

__all__ = ["computed_by_numpy"]


def agree(function, *arguments, tolerance=0.0):
    got, want = (np.asarray(made(*arguments)) for made in (twj.jit(function, cache=False), jax.jit(function)))
    assert got.dtype == want.dtype
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "int4", "uint4"])
def test_constants_in_types_that_numpy_lacks(dtype: str) -> None:
    table = np.array([0, 1, -2 if dtype != "uint4" else 2, 3, 5, 7]).astype(getattr(ml_dtypes, dtype))
    agree(lambda x: jnp.asarray(table).astype(jnp.float32) + x, jnp.arange(6.0))


def test_a_large_constant_of_bf16_is_read_from_its_bytes() -> None:
    table = np.linspace(-3, 3, 400).astype(ml_dtypes.bfloat16)
    agree(lambda x: jnp.asarray(table) * x, jnp.arange(400).astype(jnp.bfloat16))


def test_int4_wraps() -> None:
    """As the specification and its interpreter have it; XLA's CPU keeps more bits where it fuses."""
    x = np.arange(-8, 8).astype(np.int8)
    made = twj.jit(lambda x: (x.astype(jnp.int4) + x.astype(jnp.int4)).astype(jnp.int8), cache=False)(x)
    assert np.asarray(made).tolist() == [(2 * int(i) + 8) % 16 - 8 for i in x]
    agree(lambda x: x.astype(jnp.int4) < 3, x)


@pytest.mark.parametrize("source", [jnp.float32, jnp.bfloat16, jnp.float8_e5m2])
@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.int2, jnp.uint2])
def test_floats_saturate_to_narrow_integers(dtype, source) -> None:
    """Integers keep their low bits."""
    x = np.array([np.nan, np.inf, -np.inf, -300, -8.5, -2.5, -1, -0.5, 1.5, 3, 7.5, 15, 16, 300], np.float32)
    agree(lambda x: x.astype(dtype), x.astype(source))
    agree(lambda x: x.astype(dtype), np.arange(-20, 20, dtype=np.int32))


@pytest.mark.parametrize("source", [jnp.float32, jnp.float16, jnp.int32, jnp.float8_e4m3fn])
def test_powers_of_two_have_no_zero_and_no_sign(source) -> None:
    agree(lambda x: x.astype(jnp.float8_e8m0fnu), np.array([0, 1, -1, 3, -5, 12, 6, 7]).astype(source))


OF_BITS = [jnp.int2, jnp.uint4, jnp.int4, jnp.float4_e2m1fn, jnp.float8_e4m3fn, jnp.int16, jnp.bfloat16, jnp.uint32]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", OF_BITS)
@pytest.mark.parametrize("source", OF_BITS)
def test_bits_of_narrow_numbers(source, target) -> None:
    """Of elements wider than those read the parts along a last axis, of narrower ones the last axis joined."""
    few = {jnp.int2: 2, jnp.uint4: 4, jnp.int4: 4, jnp.float4_e2m1fn: 4}
    n_bits = [few.get(t, 8 * jnp.dtype(t).itemsize) for t in (source, target)]
    codes = np.random.default_rng(0).integers(0, 1 << n_bits[0], (3, max(n_bits[1] // n_bits[0], 1)))
    whole = codes.astype(f"uint{max(n_bits[0], 8)}")
    agree(lambda x: lax.bitcast_convert_type(x, target), whole.view(jnp.dtype(source)))


FLOATS_OF_8_BITS = [
    jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3, jnp.float8_e3m4, jnp.float8_e4m3b11fnuz,
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", FLOATS_OF_8_BITS)
def test_float8_is_computed_wider_and_given_back(dtype) -> None:
    agree(lambda x: jnp.tanh(x) + x * x, jnp.linspace(-3, 3, 50).astype(dtype))


OF_ALL_ELEMENTS = {
    "product": lambda x, y: x @ y,
    "product in f32": lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32),
    "sum": lambda x, y: x.sum(0),
    "largest": lambda x, y: lax.reduce(x, x[0, 0], lax.max, (1,)),
    "place of the largest": lambda x, y: jnp.argmax(x, 1),
    "sorted": lambda x, y: jnp.sort(x, 1),
    "sorted by another": lambda x, y: lax.sort((x, y), num_keys=1),
    "windows": lambda x, y: lax.reduce_window(x, x[0, 0], lax.min, (2, 2), (1, 1), "VALID"),
    "prefixes": lambda x, y: jnp.cumsum(x, 1),
    "added at places": lambda x, y: x.at[jnp.array([1, 0])].add(y[:2]),
    "set at places": lambda x, y: x.at[jnp.array([1, 3])].set(y[:2]),
    "another narrow type": lambda x, y: x.astype(jnp.float8_e5m2),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OF_ALL_ELEMENTS)
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e3m4])
def test_narrow_numbers_are_added_and_ordered(dtype, name: str) -> None:
    """Quarters, of which every sum on the way is exact."""
    numbers = np.random.default_rng(0).permutation(np.arange(-8, 8)).reshape(4, 4) / 4

    def f(x, y):
        return jax.tree.map(lambda a: a.astype(jnp.float32), OF_ALL_ELEMENTS[name](x, y))

    agree(f, numbers.astype(dtype), numbers.T.astype(dtype))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int4, jnp.uint4])
def test_narrow_numbers_are_chosen(dtype) -> None:
    x = jnp.arange(8).astype(dtype)
    agree(lambda x, y: jnp.where(x < y, x, y).astype(jnp.float32), x, x[::-1])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (4, 3), (5, 2)])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_precision_is_reduced_to_any_number_of_bits(bits, dtype) -> None:
    powers = 10.0 ** np.arange(-44, 39, dtype=np.float64)
    x = np.concatenate([powers * 1.37, -powers, [0, np.inf, -np.inf, np.nan, 65504, 65520]]).astype(np.float32)
    agree(lambda x: lax.reduce_precision(x, *bits), jnp.asarray(x).astype(dtype))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "name", ["arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "log", "log1p", "sqrt", "square", "tan"]
)
def test_functions_of_complex_numbers(name: str) -> None:
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((2, 400)) * 10.0 ** rng.uniform(-6, 4, (2, 400))
    # Beside 1 and i, where what is near 1 must not cancel.
    beside = np.array([1 + 1e-5j, -1 + 2e-5j, 1e-5 + 1j, 2e-6 - 1.001j])
    z = jnp.asarray(np.concatenate([parts[0] + 1j * parts[1], beside]).astype(np.complex64))
    function = getattr(jnp, name)
    got, want = np.asarray(twj.jit(function, cache=False)(z)), np.asarray(jax.jit(function)(z))
    assert (np.abs(got - want) <= 2e-5 * np.abs(want)).all()


EXTREMES = [0.0, 0.5, -1.0, 7.0, 2e19, -3.4e38, 3.4e38, np.inf, -np.inf]
# With NumPy's result in twice as many bits, as XLA takes the other side of a cut for a negative zero.
OF_C = ["arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "square", "tan", "tanh"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OF_C)
def test_functions_of_the_largest_complex_numbers(name: str) -> None:
    z = np.array([complex(re, im) for re in EXTREMES for im in EXTREMES]).astype(np.complex64)
    got = np.asarray(twj.jit(getattr(jnp, name), cache=False)(jnp.asarray(z)))
    with np.errstate(all="ignore"):
        want = getattr(np, name)(z.astype(np.complex128))
        for a, b in ((got.real, want.real), (got.imag, want.imag)):
            np.testing.assert_allclose(a, b.astype(np.float32), rtol=2e-5, atol=1e-44)


def test_a_number_by_an_infinite_one_is_zero() -> None:
    """So is the logistic function of what overflows."""
    far = [complex(re, im) for re, im in ((np.inf, -np.inf), (1, np.inf), (-np.inf, np.nan), (np.inf, 2))]
    agree(lambda y: (3 - 2j) / y, np.array(far, np.complex64))
    agree(
        lax.logistic,
        np.array([-89 + 1j, -200 + 1j, -1e30 - 2j, -np.inf + 1j, -20 + 0.5j, 3], np.complex64),
        tolerance=1e-6,
    )


def test_the_exponential_of_no_angle_is_nan() -> None:
    wide = [complex(re, im) for re in (-np.inf, -3e38, 0, 3e38) for im in (0, 1, np.inf, np.nan)]
    agree(jnp.exp, jnp.asarray(np.array(wide, np.complex64)), tolerance=1e-6)


def test_the_suite_counts_what_passes_and_what_is_wrong(tmp_path: Path) -> None:
    case = """
func.func @{name}() {{
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
  %1 = stablehlo.add %0, %0 : tensor<2xi8>
  check.expect_eq_const %1, dense<[2, {last}]> : tensor<2xi8>
  func.return
}}
"""
    path = tmp_path / "add.mlir"
    path.write_text(case.format(name="right", last=4) + "\n// -----\n" + case.format(name="false", last=5))
    right, false = map(outcome, programs(path))
    assert right.how == "passed" and false.how == "wrong" and "4 where 5 is expected" in false.why


def test_halves_of_products(tmp_path: Path) -> None:
    text = """
func.func @main(%a: tensor<4xi64>, %b: tensor<4xi64>) -> tensor<4xi64> {
  %0 = "chlo.mulhi"(%a, %b) : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
  return %0 : tensor<4xi64>
}
"""
    a, b = [-(2**63), 2**62 + 5, -7, 12345678901234567], [2**63 - 1, -(2**61), -9, 98765432109876543]
    path = tmp_path / "high.mlir"
    path.write_text(text)
    got = tw.compile(path, cache=False)(np.array(a, np.int64), np.array(b, np.int64))
    assert got.tolist() == [x * y >> 64 for x, y in zip(a, b, strict=True)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ("int4", "uint4", "int2", "uint2"))
def test_bits_of_narrow_integers(dtype: str) -> None:
    """Shifts by any count, whose bits are read as an unsigned number, and counts of bits."""
    width, is_signed = int(dtype[-1]), dtype.startswith("i")
    numbers = np.arange(1 << width, dtype=np.uint8)
    x, n = (a.ravel().astype(dtype) for a in np.meshgrid(numbers, numbers))
    functions = (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)
    made = twj.jit(lambda x, n: [f(x, n) for f in functions] + [lax.population_count(x), lax.clz(x)], cache=False)(x, n)
    bits, counts = np.asarray(x).astype(int) % (1 << width), np.asarray(n).astype(int) % (1 << width)
    signed = np.where(bits >> (width - 1), bits - (1 << width), bits)
    ones = np.array([bin(b).count("1") for b in bits])
    zeros = np.array([width - int(b).bit_length() for b in bits])
    wanted = (bits << counts, bits >> counts, signed >> counts, ones, zeros)
    for ours, theirs in zip(made, wanted, strict=True):
        assert ours.dtype == dtype
        low = theirs % (1 << width)
        wanted_here = np.where(is_signed & (low >> (width - 1)), low - (1 << width), low)
        np.testing.assert_array_equal(np.asarray(ours).astype(int), wanted_here)
