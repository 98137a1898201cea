"""Operations in their general forms: complex sorts and scatters, many axes, bits of other widths, scans and groups."""

from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tilewright as tw
import tilewright.jax
from frontend.test_stablehlo import assert_equal

R = np.random.default_rng(0)


def agree(function, *arguments) -> None:
    assert_equal(tilewright.jax.jit(function, cache=False)(*arguments), jax.jit(function)(*arguments))


# --- complex numbers ------------------------------------------------------------------------------------------------

PARTS = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan]
NUMBERS = np.array([complex(re, im) for re, im in product(PARTS, PARTS)], np.complex64)


def test_complex_numbers_in_order() -> None:
    """By their real parts, then by the imaginary ones, with NaN last."""
    x = R.permutation(NUMBERS)
    assert_equal(tilewright.jax.jit(jnp.sort, cache=False)(x), jnp.sort(x))
    agree(jnp.argsort, R.permutation(np.repeat(NUMBERS[np.isfinite(NUMBERS)], 2)))
    y = R.integers(0, 3, 40)
    agree(lambda y, x: lax.sort((y, x), num_keys=1), y.astype(np.int32), R.permutation(NUMBERS)[:40])


def test_complex_numbers_by_a_comparator_that_computes() -> None:
    x = R.standard_normal((3, 9)).astype(np.float32)
    agree(lambda x: lax.sort((jnp.abs(x), x + 1j * x), num_keys=1)[1], x)


COMBINED = {
    "multiplied": lambda x, u: x.at[jnp.array([1, 3, 1])].multiply(u),
    "divided": lambda x, u: x.at[jnp.array([1, 9, 0])].divide(u),
    "added": lambda x, u: x.at[jnp.array([1, 1, 2])].add(u),
    "applied": lambda x, u: x.at[jnp.array([0, 3])].apply(jnp.exp),
    "rows": lambda x, u: jnp.stack([x, x]).at[jnp.array([1, 1])].multiply(u[0]),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", COMBINED)
def test_complex_numbers_at_places(name: str) -> None:
    x, u = (R.standard_normal(n) + 1j * R.standard_normal(n) for n in (4, 3))
    agree(COMBINED[name], x.astype(np.complex64), u.astype(np.complex64))


def test_complex_roots_and_angles(tmp_path: Path) -> None:
    """JAX has neither, the specification both."""
    path = tmp_path / "roots.mlir"
    path.write_text("""
    func.func @main(%x: tensor<5xcomplex<f64>>, %y: tensor<5xcomplex<f64>>)
        -> (tensor<5xcomplex<f64>>, tensor<5xcomplex<f64>>) {
      %root = stablehlo.cbrt %x : tensor<5xcomplex<f64>>
      %angle = stablehlo.atan2 %y, %x : tensor<5xcomplex<f64>>
      return %root, %angle : tensor<5xcomplex<f64>>, tensor<5xcomplex<f64>>
    }""")
    x, y = np.array([8, 3 + 4j, 0, -1j, 2 - 1j]), np.array([1, 2j + 1, 3, 0.5, 1 + 1j])
    root, angle = tw.compile(path, cache=False)(x, y)
    np.testing.assert_allclose(root, x ** (1 / 3), rtol=1e-12)
    np.testing.assert_allclose(angle, -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)), rtol=1e-12)


# --- bits -----------------------------------------------------------------------------------------------------------

BITS = """
func.func @main(%x: tensor<3x{n}xi1>, %z: tensor<2xcomplex<f64>>)
    -> (tensor<3x{kind}>, tensor<3x{n}xi1>, tensor<2x2xcomplex<f32>>, tensor<2xcomplex<f64>>) {{
  %packed = stablehlo.bitcast_convert %x : (tensor<3x{n}xi1>) -> tensor<3x{kind}>
  %bits = stablehlo.bitcast_convert %packed : (tensor<3x{kind}>) -> tensor<3x{n}xi1>
  %halves = stablehlo.bitcast_convert %z : (tensor<2xcomplex<f64>>) -> tensor<2x2xcomplex<f32>>
  %again = stablehlo.bitcast_convert %halves : (tensor<2x2xcomplex<f32>>) -> tensor<2xcomplex<f64>>
  return %packed, %bits, %halves, %again
      : tensor<3x{kind}>, tensor<3x{n}xi1>, tensor<2x2xcomplex<f32>>, tensor<2xcomplex<f64>>
}}"""


@pytest.mark.parametrize("kind, n", [("ui8", 8), ("i16", 16), ("i32", 32), ("f64", 64)])
def test_bits_of_booleans_and_of_complex_numbers(tmp_path: Path, kind: str, n: int) -> None:
    path = tmp_path / "bits.mlir"
    path.write_text(BITS.format(kind=kind, n=n))
    x, z = R.integers(0, 2, (3, n)).astype(bool), R.standard_normal(2) + 1j
    packed, bits, halves, again = tw.compile(path, cache=False)(x, z)
    assert packed.tobytes() == np.packbits(x, axis=-1, bitorder="little").tobytes()
    assert np.array_equal(bits, x) and np.array_equal(again, z)
    assert halves.tobytes() == z.tobytes()


# --- many axes ------------------------------------------------------------------------------------------------------

WINDOWS = {
    "plain": {"padding": "VALID"},
    "strided": {"window_strides": (2, 1, 1, 2), "padding": ((1, 1), (0, 1), (0, 0), (2, 0))},
    "dilated": {"rhs_dilation": (2, 1, 1, 2), "padding": "SAME"},
    "spread": {"lhs_dilation": (2, 1, 2, 1), "padding": ((1, 1), (0, 1), (0, 0), (0, 0))},
    "groups": {"feature_group_count": 2, "padding": "VALID"},
    "batches as groups": {"batch_group_count": 2, "padding": "VALID"},
    "no place": {"padding": ((-4, 0), (0, 0), (0, 0), (0, 0))},
    "channels last": {"padding": "VALID", "dimension_numbers": ("NWXYZC", "WXYZIO", "NWXYZC")},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_over_four_axes(name: str) -> None:
    options = {"window_strides": (1,) * 4, **WINDOWS[name]}
    image, kernel = R.standard_normal((2, 4, 5, 4, 3, 4)), R.standard_normal((2, 4, 2, 2, 1, 2))
    if name == "groups":
        kernel = kernel[:, :2]
    if name == "channels last":
        image, kernel = image.transpose(0, 2, 3, 4, 5, 1), kernel.transpose(2, 3, 4, 5, 1, 0)
    arrays = [a.astype(np.float32) for a in (image, kernel)]
    agree(lambda x, w: lax.conv_general_dilated(x, w, **options), *arrays)


# --- choices, scans, groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("choose", (lax.approx_max_k, lax.approx_min_k))
def test_an_approximate_choice_misses_nothing(choose) -> None:
    x = R.permutation(40).reshape(4, 10).astype(np.float32)
    agree(lambda x: choose(x, 3), x)
    agree(lambda x: choose(x, 2, reduction_dimension=0), x)


SCAN = """
func.func @main(%x: tensor<2x4xf32>, %start: tensor<2xf32>, %z: tensor<1xcomplex<f32>>)
    -> (tensor<2x4xf32>, tensor<1x4xcomplex<f32>>, tensor<2xf32>, tensor<1xcomplex<f32>>) {{
  %found:4 = chlo.scan(%x) inits(%start, %z) dimension=1 attributes {{is_reverse = {is_reverse}}} {{
  ^bb0(%row: tensor<2xf32>, %sum: tensor<2xf32>, %product: tensor<1xcomplex<f32>>):
    %more = stablehlo.add %row, %sum : tensor<2xf32>
    %square = stablehlo.multiply %product, %product : tensor<1xcomplex<f32>>
    stablehlo.return %more, %product, %more, %square
        : tensor<2xf32>, tensor<1xcomplex<f32>>, tensor<2xf32>, tensor<1xcomplex<f32>>
  }} : (tensor<2x4xf32>, tensor<2xf32>, tensor<1xcomplex<f32>>)
      -> (tensor<2x4xf32>, tensor<1x4xcomplex<f32>>, tensor<2xf32>, tensor<1xcomplex<f32>>)
  return %found#0, %found#1, %found#2, %found#3
      : tensor<2x4xf32>, tensor<1x4xcomplex<f32>>, tensor<2xf32>, tensor<1xcomplex<f32>>
}}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_reverse", (False, True))
def test_a_scan_along_the_last_axis(tmp_path: Path, is_reverse: bool) -> None:
    path = tmp_path / "scan.mlir"
    path.write_text(SCAN.format(is_reverse=str(is_reverse).lower()))
    x, start, z = (
        R.standard_normal((2, 4)).astype(np.float32),
        np.array([1, 2], np.float32),
        np.array([0.5 + 0.5j], np.complex64),
    )
    sums, powers, total, last = tw.compile(path, cache=False)(x, start, z)
    turn = slice(None, None, -1 if is_reverse else 1)
    want = (start[:, None] + np.cumsum(x[:, turn], 1))[:, turn]
    np.testing.assert_allclose(sums, want, rtol=1e-5)
    np.testing.assert_allclose(total, want[:, turn][:, -1], rtol=1e-5)
    np.testing.assert_allclose(powers[0, turn], np.concatenate([z, z**2, z**4, z**8]), rtol=1e-5)
    np.testing.assert_allclose(last, z**16, rtol=1e-4)


def test_a_scan_of_wrong_types_is_an_import_failure(tmp_path: Path) -> None:
    """MLIR's own check of it ends the process."""
    path = tmp_path / "scan.mlir"
    text = SCAN.format(is_reverse="false")
    for rank_1, rank_0 in (("1x4xc", "4xc"), ("1xc", "c")):  # of which a row has no second axis
        text = text.replace(f"tensor<{rank_1}", f"tensor<{rank_0}")
    path.write_text(text)
    with pytest.raises(tw.ImportFailed, match="MLIR's reader broke off"):
        tw.compile(path, cache=False)


RAGGED = """
func.func @main(%x: tensor<{x}xf32>, %y: tensor<{y}xf32>, %sizes: tensor<3xi32>) -> tensor<{out}xf32> {{
  %made = "chlo.ragged_dot"(%x, %y, %sizes) {{
    ragged_dot_dimension_numbers = #chlo.ragged_dot<
      lhs_batching_dimensions = [0], rhs_batching_dimensions = [{at}], lhs_contracting_dimensions = [2],
      rhs_contracting_dimensions = [{k}], lhs_ragged_dimensions = [{ragged}], rhs_group_dimensions = [{group}]>
  }} : (tensor<{x}xf32>, tensor<{y}xf32>, tensor<3xi32>) -> tensor<{out}xf32>
  return %made : tensor<{out}xf32>
}}"""
RAGGED_KINDS = {
    "rows": ("2x7x4", "3x2x4x5", "2x7x5", {"at": 1, "k": 2, "ragged": 1, "group": 0}),
    "rows, groups behind": ("2x7x4", "2x4x3x5", "2x7x5", {"at": 0, "k": 1, "ragged": 1, "group": 2}),
    "what is summed": ("2x4x7", "2x7x5", "3x2x4x5", {"at": 0, "k": 1, "ragged": 2, "group": ""}),
    "batches": ("7x4x3", "7x3x5", "7x4x5", {"at": 0, "k": 1, "ragged": 0, "group": ""}),
}


@pytest.mark.parametrize("name", RAGGED_KINDS)
def test_products_of_groups(tmp_path: Path, name: str) -> None:
    """Groups of 3, 0 and 2 of 7: what is in no group is zero."""
    x, y, out, numbers = RAGGED_KINDS[name]
    path = tmp_path / "groups.mlir"
    path.write_text(RAGGED.format(x=x, y=y, out=out, **numbers))
    a, b = (R.standard_normal([int(n) for n in shape.split("x")]).astype(np.float32) for shape in (x, y))
    made = tw.compile(path, cache=False)(a, b, np.array([3, 0, 2], np.int32))
    parts = [slice(0, 3), slice(3, 3), slice(3, 5)]
    if name == "batches":
        want = a @ b
    elif name == "what is summed":
        want = np.stack([a[..., p] @ b[:, p] for p in parts])
    else:
        b = np.moveaxis(b, numbers["group"], 0)
        want = np.concatenate([a[:, p] @ b[g] for g, p in enumerate(parts)] + [np.zeros((2, 2, 5))], 1)
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-5)


# --- three diagonals ------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (3, 5)])
@pytest.mark.parametrize("kind", ("any", "zeros to exchange", "singular"))
def test_systems_of_three_diagonals(kind: str, shape: tuple[int, ...]) -> None:
    lower, diagonal, upper = (R.standard_normal(shape) for _ in range(3))
    lower[..., 0] = upper[..., -1] = 0  # as JAX asks
    if kind == "zeros to exchange" and shape[-1] > 2:
        diagonal[..., ::2] = 0
        diagonal[..., -1] = 1
    if kind == "singular":
        lower[..., -1] = diagonal[..., -1] = upper[..., -2:] = 0
    right = R.standard_normal((*shape, 2))
    with jax.enable_x64(True):
        agree(lax.linalg.tridiagonal_solve, lower, diagonal, upper, right)


# --- windows at edges -----------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", (np.float32, np.int32))
@pytest.mark.parametrize("join, start", [(lax.add, 2), (lax.mul, 3), (lax.max, 1), (lax.min, 1)])
def test_what_windows_start_from_counts_once(join, start: int, dtype) -> None:
    """As XLA has it: nothing stands at the edges, and between the elements of a spread operand."""

    def f(x):
        options = {"window_dimensions": (3,), "window_strides": (1,), "padding": ((2, 1),)}
        return lax.reduce_window(x, dtype(start), join, **options), lax.reduce_window(
            x, dtype(start), join, base_dilation=(2,), **options
        )

    agree(f, np.array([1, -3, 4, 2, 5], dtype))


@pytest.mark.parametrize(
    "choice", ['"stablehlo.case"(%k) ({R}, {R}, {R}) : (tensor<i32>)', '"stablehlo.if"(%c) ({R}, {R}) : (tensor<i1>)']
)
def test_a_choice_without_results(tmp_path: Path, choice: str) -> None:
    """JAX leaves such ones of a choice in a body of which nobody reads a result."""
    path = tmp_path / "model.mlir"
    text = choice.replace("R", "stablehlo.return")
    arguments = "%k: tensor<i32>, %c: tensor<i1>, %x: tensor<3xf32>"
    path.write_text(
        f"module {{ func.func @main({arguments}) -> tensor<3xf32> {{ {text} -> () return %x : tensor<3xf32> }} }}"
    )
    x = np.ones(3, np.float32)
    assert_equal(tw.compile(path, cache=False)(np.int32(1), np.bool_(True), x), x)


EMPTY = {
    "window": lambda x: lax.reduce_window(x, 0.0, lax.add, (4, 1), (1, 1), "VALID"),
    "window with gaps": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "VALID", None, (3, 1)),
    "convolution": lambda x: lax.conv(x[None], np.ones((2, 3, 4), np.float32), (1,), "VALID"),
    "of complex numbers": lambda x: lax.conv(x[None] * 1j, np.ones((2, 3, 4), np.complex64), (1,), "VALID"),
    "transposed": lambda x: lax.conv_general_dilated(x[None], np.ones((2, 3, 4), np.float32), (1,), [(0, 0)], (2,)),
    "cropped": lambda x: lax.conv_general_dilated(x[None], np.ones((2, 3, 2), np.float32), (1,), [(-1, -1)]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_where_no_window_fits_the_result_is_empty(name: str) -> None:
    """And the gradient is zeros."""
    x, function = np.ones((3, 2), np.float32), EMPTY[name]
    agree(lambda x: (function(x), jax.grad(lambda x: abs(function(x)).sum())(x)), x)


def test_tuples_of_arguments_results_and_calls(tmp_path: Path) -> None:
    file = tmp_path / "tuples.mlir"
    pair = "tuple<tensor<2xf32>, tuple<tensor<i32>>>"
    file.write_text(f"""
    func.func private @turned(%t: {pair}) -> tuple<tuple<tensor<i32>>, tensor<2xf32>> {{
      %0 = stablehlo.get_tuple_element %t[0] : ({pair}) -> tensor<2xf32>
      %1 = stablehlo.get_tuple_element %t[1] : ({pair}) -> tuple<tensor<i32>>
      %2 = stablehlo.negate %0 : tensor<2xf32>
      %3 = stablehlo.tuple %1, %2 : tuple<tuple<tensor<i32>>, tensor<2xf32>>
      return %3 : tuple<tuple<tensor<i32>>, tensor<2xf32>>
    }}
    func.func @main(%a: {pair}, %b: tensor<i1>) -> (tuple<tuple<tensor<i32>>, tensor<2xf32>>, tensor<2xf32>) {{
      %0 = call @turned(%a) : ({pair}) -> tuple<tuple<tensor<i32>>, tensor<2xf32>>
      %1 = "stablehlo.if"(%b) ({{
        %2 = stablehlo.get_tuple_element %0[1] : (tuple<tuple<tensor<i32>>, tensor<2xf32>>) -> tensor<2xf32>
        stablehlo.return %2 : tensor<2xf32>
      }}, {{
        %2 = stablehlo.get_tuple_element %a[0] : ({pair}) -> tensor<2xf32>
        stablehlo.return %2 : tensor<2xf32>
      }}) : (tensor<i1>) -> tensor<2xf32>
      return %0, %1 : tuple<tuple<tensor<i32>>, tensor<2xf32>>, tensor<2xf32>
    }}""")
    model = tw.compile(file, threads=1, cache=False)
    assert [(s.name, s.dtype) for s in model.inputs] == [
        ("arg0_0", "float32"),
        ("arg0_1_0", "int32"),
        ("arg1", "bool"),
    ]
    x = np.array([1, 2], np.float32)
    for flag in (True, False):
        number, turned, chosen = model(x, np.array(7, np.int32), np.array(flag))
        assert number == 7 and (turned == -x).all() and (chosen == (-x if flag else x)).all()
