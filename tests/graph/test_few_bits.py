"""`precision="int4"` and the like, and dequantised constants: codes, how far they move results, what stays in f32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright import ops
from tilewright.build.driver import build, compile_graph
from tilewright.build.options import FEW_BITS, Clock, Options
from tilewright.core import types
from tilewright.core.diag import OptionError
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, TensorType
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.onnx.writer.model import save_onnx
from tilewright.graph.forms.coded import CodedProducts, coded
from tilewright.graph.forms.scaled import ScaledProducts
from tilewright.graph.interp import run as interpret
from tilewright.graph.quantize.books import BOOKS, Floats
from tilewright.graph.quantize.codes import real_rows, rounded_rows
from tilewright.graph.quantize.weights import QuantizeWeights
from tilewright.ops.coded import NF4

RNG = np.random.default_rng(3)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def embedded(turned: bool = False) -> Graph:
    """Rows of a table by number, times that table and times a matrix: an embedding, a tied head and a layer."""
    b = Builder(Pool())
    places = b.pool.input("places", TensorType(types.i64, (2, 3)))
    table = normal(40, 64)
    x = b(ops.gather, b.const(table), places, axis=0)
    layer = b(ops.transpose, b.const(normal(64, 64)), perm=(1, 0)) if turned else b.const(normal(64, 64))
    h = b(ops.matmul, x, layer)
    y = b(ops.matmul, h, b(ops.transpose, b.const(table), perm=(1, 0)))
    return Graph("g", b.pool, (places,), (y,), ("y",))


def nodes_of(graph: Graph, op: OpDef) -> list[Node]:
    return [n for n in graph.nodes() if n.op is op]


ERRORS = {"int8": 0.01, "int4": 0.15, "nf4": 0.15, "fp4": 0.17, "fp8": 0.04, "fp8e5m2": 0.08, "fp16": 0.001}


@pytest.mark.parametrize(("codes", "error"), ERRORS.items())
def test_a_matrix_is_near_its_codes_and_stays_so_when_quantised_again(codes: str, error: float) -> None:
    rows, book = normal(32, 128), BOOKS[codes]
    found = rounded_rows(rows, book, 32)
    near = real_rows(*found, book)
    assert np.abs(near - rows).max() < error * np.abs(rows).max()
    again = real_rows(*rounded_rows(near, book, 32), book)
    np.testing.assert_allclose(again, near, atol=2e-3 * np.abs(near).max())


@pytest.mark.parametrize("codes", ERRORS)
def test_no_number_of_a_book_is_nearer_than_the_code_that_is_chosen(codes: str) -> None:
    book = BOOKS[codes]
    rows = normal(4, 64)
    rows[0, :32] = 0
    codes_of, steps = rounded_rows(rows, book, 32)
    off = np.abs(real_rows(codes_of, steps, book) - rows)
    if isinstance(book, Floats) and book.bits == 16:
        all_numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    else:
        all_numbers = np.arange(1 << min(book.bits, 8), dtype=np.uint8)
    numbers = book.numbers(all_numbers)
    numbers = numbers[np.isfinite(numbers)]
    for n, row in enumerate(rows):
        least = np.abs(row[:, None] - numbers * steps[n].repeat(64 // steps.shape[1])[:, None]).min(1)
        np.testing.assert_allclose(off[n], least, atol=1e-6)


def test_levels_are_those_of_the_formats() -> None:
    np.testing.assert_allclose(BOOKS["nf4"].numbers(np.arange(16)) / 127, NF4, atol=0.5 / 127)
    halves = np.sort(np.arange(16, dtype=np.uint8).view(types.f4e2m1.numpy).astype(np.float32))
    np.testing.assert_array_equal(BOOKS["fp4"].numbers(np.arange(16)) / 2, halves)


def test_a_group_of_zeros_and_tiny_steps_are_right() -> None:
    rows = np.zeros((8, 64), np.float32)
    rows[:, 32:] = normal(8, 32) * np.float32(1e-9)  # steps below half precision
    codes, steps = rounded_rows(rows, BOOKS["int8"], 32)
    assert coded(codes.T, steps.T, np.array([[128]]), 8).scales.dtype == np.float32
    np.testing.assert_allclose(real_rows(codes, steps, BOOKS["int8"]), rows, atol=2e-11)


@pytest.mark.parametrize("codes", ["int4", "nf4", "fp4", "fp8", "fp8e5m2", "fp16"])
@pytest.mark.parametrize("turned", [False, True])
def test_products_and_embeddings_of_their_width_read_codes(turned: bool, codes: str) -> None:
    graph = embedded(turned)
    done = QuantizeWeights(codes, 32).run(graph)
    op = ops.scaled_matmul if isinstance(BOOKS[codes], Floats) else ops.coded_matmul
    assert len(nodes_of(done, op)) == 2 and not nodes_of(done, ops.matmul)
    stored = [n.attrs["data"].array for n in done.nodes() if n.op.name == "const"]
    assert not [a for a in stored if a.dtype == np.float32 and a.size > 1]
    places = RNG.integers(0, 40, (2, 3))
    want, got = (np.asarray(interpret(g, [places])[0]) for g in (graph, done))
    assert 0 < np.abs(got - want).max() < 0.3 * np.abs(want).max()


def test_what_does_not_fill_groups_or_words_stays() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (1, 48)))
    y = b(ops.matmul, x, b.const(normal(48, 64)))  # a group and a half
    z = b(ops.matmul, y, b.const(normal(64, 9)))  # a word and a column
    graph = Graph("g", b.pool, (x,), (z,), ("z",))
    assert QuantizeWeights("int4", 32).run(graph) is graph


@pytest.mark.one_in(4)
@pytest.mark.parametrize("precision", ["int8", "int4", "int4-64", "nf4", "fp4-64", "fp8", "fp8e5m2", "fp16"])
def test_compiled_code_equals_the_dequantised_model(precision: str) -> None:
    graph = embedded()
    places = RNG.integers(0, 40, (2, 3))
    want = np.asarray(interpret(FEW_BITS[precision].run(graph), [places])[0])
    for level in (0, 2):
        got = np.asarray(compile_graph(graph, precision=precision, optimize=level)(places))
        # Rows that differ in the last bit may be rounded to 16 bits one step apart: 2**-15 of a group's largest number.
        np.testing.assert_allclose(got, want, atol=2.0**-15 * np.abs(want).max())


@pytest.mark.parametrize(("precision", "most"), [("int4", 0.58), ("nf4", 0.58), ("fp8", 1.08), ("fp16", 2.01)])
def test_weights_take_their_bits_and_little_more(precision: str, most: float) -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (1, 256)))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, b.const(normal(256, 512))),), ("y",))
    artifact = build(graph, Options(precision=precision), Clock())
    assert artifact.manifest.report["memory"]["weights_bytes"] <= most * 256 * 512


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e6])
def test_weights_beyond_a_format_stay_and_the_report_says_so(number: float) -> None:
    weights = normal(64, 16)
    weights[3, 3] = number
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (1, 64)))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, b.const(weights)),), ("y",))
    for codes in ERRORS:
        fits = np.isfinite(number) and codes != "fp16"
        done = QuantizeWeights(codes, 32)
        assert (done.run(graph) is graph) != fits
        assert bool(done.why_not(weights)) != fits


def test_other_groups_are_refused_with_those_that_are_offered() -> None:
    with pytest.raises(OptionError, match="int4-48") as caught:
        Options(precision="int4-48")
    assert "int4-64" in str(caught.value.remedy)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("low", [0, -8, -128])
def test_dequantised_constants_become_codes(turned: bool, low: int) -> None:
    """In blocks along the sum, by columns, and with one scale; signed and unsigned, behind a transpose or not."""
    bits = 8 if low == -128 else 4
    dtype = types.i8 if low else types.u8
    shape, axis = ((16, 64), 1) if turned else ((64, 16), 0)
    for scales_shape, attrs in (
        (tuple(2 if k == axis else d for k, d in enumerate(shape)), {"axis": axis, "block_size": 32}),
        ((16,), {"axis": 1 - axis}),
        ((), {}),
    ):
        b = Builder(Pool())
        x = b.pool.input("x", TensorType(types.f32, (3, 64)))
        codes, zeros = (RNG.integers(low, low + (1 << bits), s).astype(dtype.numpy) for s in (shape, scales_shape))
        scales = RNG.uniform(0.5, 1, scales_shape).astype(np.float32)
        w = b(ops.dequantize_linear, b.const(codes), b.const(scales), b.const(np.asarray(zeros)), **attrs)
        w = b(ops.transpose, w, perm=(1, 0)) if turned else w
        graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, w),), ("y",))
        done = CodedProducts().run(graph)
        (node,) = nodes_of(done, ops.coded_matmul)
        assert node.attrs["bits"] == bits
        rows = normal(3, 64)
        want, got = (np.asarray(interpret(g, [rows])[0]) for g in (graph, done))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("zero", [None, 0.0, 1.0, 0.5])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_constants_that_are_widened_and_scaled_by_groups_become_codes(bits: int, zero: float | None) -> None:
    """As exporters of PyTorch spell them; a zero point that is no whole number leaves the product as it is."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (3, 64)))
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    w = b(ops.cast, b.const(RNG.integers(low, high, (16, 2, 32)).astype(np.int8)), dtype=types.f32)
    if zero is not None:
        w = b(ops.sub, w, b.const(np.full((16, 2, 1), zero, np.float32)))
    w = b(ops.mul, w, b.const(RNG.uniform(0.5, 1, (16, 2, 1)).astype(np.float32)))
    w = b(ops.transpose, b(ops.reshape, w, shape=(16, 64)), perm=(1, 0))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, w),), ("y",))
    done = CodedProducts().run(graph)
    assert [n.attrs["bits"] for n in nodes_of(done, ops.coded_matmul)] == ([] if zero == 0.5 else [bits])
    rows = normal(3, 64)
    want, got = (np.asarray(interpret(g, [rows])[0]) for g in (graph, done))
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("with_units", [True, False])
@pytest.mark.parametrize("is_spread", [True, False])
def test_scales_that_are_whole_numbers_of_units_stay_so(with_units: bool, is_spread: bool, tmp_path: Path) -> None:
    """By products of widened constants, or as a file has it: scales that are dequantised in blocks themselves.

    Where each group has a unit of its own, two levels would be more than one.
    """
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (3, 128)))
    n_units = 2 if with_units else 4
    codes, whole = RNG.integers(-8, 8, (16, 4, 32)).astype(np.int8), RNG.integers(-32, 64, (16, n_units, 4 // n_units))
    units, stored = RNG.uniform(0.5, 1, (16, n_units, 1)).astype(np.float16), whole.astype(np.int8)
    wide = b(ops.cast, b.const(units), dtype=types.f32)
    if is_spread:
        each = b(ops.mul, b(ops.cast, b.const(stored), dtype=types.f32), wide)
        each = b(ops.reshape, each, shape=(16, 4, 1))
        w = b(ops.mul, b(ops.cast, b.const(codes), dtype=types.f32), each)
        w = b(ops.reshape, w, shape=(16, 128))
    else:
        zeros = [b.const(np.zeros((16, n), np.int8)) for n in (n_units, 4)]
        wide = b(ops.reshape, wide, shape=(16, n_units))
        blocks = {"axis": 1, "block_size": 4 // n_units}
        each = b(ops.dequantize_linear, b.const(stored.reshape(16, 4)), wide, zeros[0], **blocks)
        w = b(ops.dequantize_linear, b.const(codes.reshape(16, 128)), each, zeros[1], axis=1, block_size=32)
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, b(ops.transpose, w, perm=(1, 0))),), ("y",))
    done = CodedProducts().run(graph)
    (node,) = nodes_of(done, ops.coded_matmul)
    assert [a.dtype for a in node.inputs[4:]] == ([types.f16] if with_units else [])
    rows = normal(3, 128)
    want, got = (np.asarray(interpret(g, [rows])[0]) for g in (graph, done))
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
    save_onnx(done, tmp_path / "g.onnx")
    (again,) = nodes_of(CodedProducts().run(import_onnx(tmp_path / "g.onnx").unchecked()), ops.coded_matmul)
    for a, other in zip(node.inputs[1:], again.inputs[1:], strict=True):
        np.testing.assert_array_equal(a.attrs["data"].array, other.attrs["data"].array)


def test_a_scale_for_each_weight_is_no_group() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (3, 64)))
    w = b(ops.cast, b.const(RNG.integers(-8, 8, (64, 16)).astype(np.int8)), dtype=types.f32)
    w = b(ops.mul, w, b.const(RNG.uniform(0.5, 1, (64, 16)).astype(np.float32)))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, w),), ("y",))
    assert CodedProducts().run(graph) is graph


def test_a_product_over_nothing_stays() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (3, 0)))
    w = b(ops.cast, b.const(np.zeros((0, 16), np.int8)), dtype=types.f32)
    w = b(ops.mul, w, b.const(np.ones(16, np.float32)))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, w),), ("y",))
    assert CodedProducts().run(graph) is graph


def test_small_floats_with_one_that_is_no_number_stay() -> None:
    numbers = normal(64, 16).astype(types.f8e4m3fn.numpy)
    for has_nan in (False, True):
        numbers[5, 5] = np.nan if has_nan else 1
        b = Builder(Pool())
        x = b.pool.input("x", TensorType(types.f32, (3, 64)))
        w = b(ops.mul, b(ops.decode, b.const(numbers.copy())), b.const(RNG.uniform(0.5, 1, 16).astype(np.float32)))
        graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, w),), ("y",))
        assert bool(nodes_of(ScaledProducts().run(graph), ops.scaled_matmul)) != has_nan
