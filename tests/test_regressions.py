"""The smallest form of every failure that random graphs and damaged files have found."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from frontend.onnx_build import info, model, node
from tilewright import ops
from tilewright.build.driver import compile, compile_graph
from tilewright.build.gpu import build_for_gpu
from tilewright.build.options import Clock, Options
from tilewright.build.texts import kernel_texts
from tilewright.core import types
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.text import parse_graph
from tilewright.core.types import Array, TensorType, tensor_type_of
from tilewright.tools.debug.flow import compare_graph


def inputs(*arrays: Array) -> tuple[Builder, tuple[Node, ...]]:
    pool = Pool()
    return Builder(pool), tuple(pool.input(f"x{k}", tensor_type_of(a)) for k, a in enumerate(arrays))


def check(b: Builder, given: Sequence[Node], outputs: Sequence[Node], arrays: Sequence[Array], **how: object) -> None:
    """Native code gives what the reference interpreter gives."""
    graph = Graph("g", b.pool, tuple(given), tuple(outputs), tuple(f"y{k}" for k in range(len(outputs))))
    result = compile_graph(graph, **how)(*arrays)
    got = result if isinstance(result, tuple) else (result,)
    for g, want in zip(got, evaluate_graph(graph, arrays), strict=True):
        assert g.dtype == want.dtype and g.shape == want.shape
        np.testing.assert_allclose(g.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6)


def test_a_constant_that_a_kernel_reads_in_two_layouts() -> None:
    """The vectorised part and the rest of a dot product packed its weights twice; programs knew of one layout."""
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    b, (n,) = inputs(x)
    weights = b.const(np.array([[3.0], [1.0], [4.0], [1.0], [5.0]], np.float32))
    check(b, (n,), [b(ops.matmul, n, weights)], [x], target="x86-64")


@pytest.mark.parametrize("dtype", [types.bf16, types.f16, types.i8, types.i16])
def test_a_lone_element_at_the_end_of_a_row_is_stored_alone(dtype: types.DType) -> None:
    """It took what follows with it, as many bytes as it had before it was narrowed."""
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 8
    b, (n,) = inputs(x)
    product = b(ops.matmul, n, b.const(np.ones((8, 17), np.float32)))
    graph = Graph("g", b.pool, (n,), (b(ops.cast, product, dtype=dtype),), ("y",))
    assert compare_graph(graph, [x], Options(), threads=1).fault is None


def test_rolling_an_empty_constant() -> None:
    """Its index, a remainder, made it worth packing, and the packed form had an element that nothing is read from."""
    x = np.zeros(2, np.float32)
    b, (n,) = inputs(x)
    nothing = b(ops.roll, b.const(np.zeros((2, 0), np.uint16)), shifts=(-1,), axes=(0,))
    check(b, (n,), [nothing, b(ops.neg, n)], [x], optimize=0)


def test_tiling_nothing() -> None:
    """The position in the source was taken modulo its size, zero."""
    x = np.zeros((0, 3), np.float32)
    b, (n,) = inputs(x)
    check(b, (n,), [b(ops.tile, n, repeats=(2, 2))], [x])


@pytest.mark.one_in(16)
@pytest.mark.parametrize(
    "extent", [lambda n: n + 1, lambda n: n * 128, lambda n: n * 128 + 5], ids=["few", "even", "odd"]
)
@pytest.mark.parametrize("most", [7, 64, None])
def test_sizes_whose_full_tiles_or_rests_never_happen(extent, most: int | None) -> None:
    """Dividing a loop into full tiles and a rest leaves out what is known to be empty; the rules asked for both."""
    n = Sym("n", 1, most)
    size: Dim = extent(n)
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (3, size)))
    sized = b.pool.input("sized", TensorType(types.f32, (n,)))
    w = b.const(np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3))
    product = b(ops.matmul, w, x)
    flipped = b(ops.matmul, b(ops.transpose, x, perm=(1, 0)), b.const(np.ones((3, 70), np.float32)))
    for given in (1, 3, 7):
        arrays = [np.random.default_rng(0).random((3, extent(given)), np.float32), np.zeros(given, np.float32)]
        check(b, (x, sized), [b(ops.exp, x), product, flipped, b(ops.neg, sized)], arrays)


def test_a_tensor_larger_than_any_memory_is_refused() -> None:
    """Its size in bytes does not fit 64 bits, and the artefact's manifest refused it."""
    b, (n,) = inputs(np.zeros(1, np.float32))
    huge = b(ops.expand, n, shape=(2**40, 2**40))
    graph = Graph("g", b.pool, (n,), (b(ops.reduce_sum, huge, axes=(0, 1)),), ("y",))
    with pytest.raises(CompileError, match="larger than any memory"):
        compile_graph(graph)


def test_a_matrix_of_many_rows_is_scheduled_at_once() -> None:
    """Tile sizes were listed by trying every number up to the number of rows."""
    b, (n,) = inputs(np.zeros((1, 4), np.float32))
    tall = b(ops.expand, n, shape=(2**31, 4))
    product = b(ops.matmul, tall, b.const(np.ones((4, 16), np.float32)))
    compile_graph(Graph("g", b.pool, (n,), (product,), ("y",)))


def test_a_dimension_whose_name_is_not_utf8() -> None:
    """Protobuf then gives bytes for a string."""
    nodes = [node("Relu", ["x"], ["y"])]
    data = model(nodes, [info("x", ["size", 3])], ["y"]).SerializeToString().replace(b"size", b"si\xffe")
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(compile(data, cache=False)(x), x)


def test_scratch_of_a_few_symbolic_bytes() -> None:
    """At most 64 bytes align to exactly 64: a fixed size whose bound was still asked for as a number."""
    n = Sym("n", 1, 3)
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (n,)))
    check(b, (x,), [b(ops.exp, b(ops.neg, x))], [np.ones(2, np.float32)], optimize=0)


def test_recurrences_whose_states_have_sizes_of_their_own() -> None:
    """The last states took the initial states' symbols, not those of the op's own type, so the op stayed whole."""
    x, state = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 2, 2), np.full((1, 2, 2), 0.5, np.float32)
    b = Builder(Pool())
    xs = b.pool.input("x", TensorType(types.f32, (3, Sym("n", 1), 2)))
    h, c = (b.pool.input(name, TensorType(types.f32, (1, Sym("m", 1), Sym("k", 1)))) for name in ("h", "c"))
    w = b.const(np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 8, 2))
    node = b(ops.lstm, xs, w, w, b.const(np.zeros((1, 16), np.float32)), h, c, hidden=2)
    check(b, (xs, h, c), b.results(node), [x, state, -state])


def test_integer_powers_of_numbers_whose_square_wraps_to_one() -> None:
    """The reference found bases of 1 and -1 by their squares; 32767 squared is 1 in 16 bits."""
    x = np.array([-32767, 32767, -32768, -1, 1, 2], np.int16)
    b, (n,) = inputs(x)
    power = b(ops.pow, n, b.const(np.array(-3, np.int16)))
    check(b, (n,), [power], [x])
    assert evaluate_graph(Graph("g", b.pool, (n,), (power,), ("y",)), [x])[0].tolist() == [0, 0, 0, -1, 1, 0]


@pytest.mark.parametrize("optimize", [0, 2])
def test_moving_bf16_keeps_denormals(optimize: int) -> None:
    """Every store of bf16 rounded, and the instruction that rounds flushes denormals."""
    x = np.array([9.2e-41, -5.9e-39, 1.0, 1.2e-38], np.float32).astype(types.bf16.numpy)
    b, (n,) = inputs(x)
    flipped = b(ops.reverse, n, axes=(0,))
    (got,) = [np.asarray(compile_graph(Graph("g", b.pool, (n,), (flipped,), ("y",)), optimize=optimize)(x))]
    assert got.view(np.uint16).tolist() == x[::-1].view(np.uint16).tolist()


def test_remainders_beyond_the_bound_are_nan() -> None:
    """Digits that the long division had lost left a negative rest, which passed for a small one."""
    x = np.array([-1.79e308, 7.5], np.float64)
    b, (n,) = inputs(x)
    graph = Graph("g", b.pool, (n,), (b(ops.fmod, n, b.const(np.array(109.74059664398968))),), ("y",))
    got = np.asarray(compile_graph(graph)(x))
    assert np.isnan(got[0]) and got[1] == 7.5


def test_a_loop_does_not_stack_what_data_size() -> None:
    """Each iteration's part lay as far apart as it may grow, and was read as if it had its present size."""
    text = """graph "g" {
  %0 = input "x" : f32[4]
  %1 = const i64[] (2)
  %2 = const bool[] (1)
  %3 = loop(%1, %2, %0) {n_carried = 1, name = "loop3",
    body = graph "body" {
      %0 = input "p0" : i64[]
      %1 = input "p1" : bool[]
      %2 = input "p2" : f32[4]
      %3 = nonzero(%2) {count = "n"} : i64[1, n], i64[]
      %4 = proj(%3) {index = 0} : i64[1, n]
      return "r0": %1, "r1": %2, "r2": %4
    }
  } : f32[4], i64[loop3_1_0, 1, n]
  %4 = proj(%3) {index = 1} : i64[loop3_1_0, 1, n]
  return "y": %4
}
"""
    text = text.replace('  %0 = input "x"', '  symbol loop3_1_0: 0..\n  symbol n: 0..4\n  %0 = input "x"', 1)
    with pytest.raises(CompileError, match="a size that its data decide"):
        compile_graph(parse_graph(text, ops.by_name))


def test_symbolic_sizes_that_turn_out_to_be_one_stretch() -> None:
    """Native code read beyond the operand, whose size was taken for the result's."""
    n, m = Sym("n", 1), Sym("m", 1)
    pool = Pool()
    b = Builder(pool)
    x, t = (pool.input(name, TensorType(types.f32, (d, 2))) for name, d in (("x", n), ("t", m)))
    y = b(ops.add, b(ops.expand, x, shape=(m, 2)), t)
    compiled = compile_graph(Graph("g", pool, (x, t), (y,), ("y",)))
    for rows in (1, 3):
        given, other = np.ones((rows, 2), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)
        np.testing.assert_array_equal(compiled(given, other), given + other)


def test_onnx_expand_keeps_what_a_call_asks_to_stretch_to_one() -> None:
    m = model([node("Expand", ["x", "shape"], ["y"])], [info("x", ["n", 1]), info("shape", [3], 7)], ["y"])
    compiled = compile(m, cache=False)
    x = np.arange(2, dtype=np.float32).reshape(2, 1)
    for shape in ((3, 2, 4), (1, 1, 4), (1, 2, 1)):
        y = compiled(x, np.array(shape))
        np.testing.assert_array_equal(y, x * np.ones(shape, np.float32))


@pytest.mark.parametrize("divisor", [1.0, 2.0, -4.0, 2.0**40, 3.0])
def test_remainders_by_a_constant_are_exact(divisor: float) -> None:
    x = np.random.default_rng(0).standard_normal(400).astype(np.float32) * np.float32(10)
    x[:11] = [0, -0.0, np.inf, -np.inf, np.nan, 4, -4, 8, -8, 3.4e38, -1e-40]
    x[200:300] *= np.float32(1e30)
    b, given = inputs(x)
    y = b(ops.fmod, given[0], b.const(divisor, types.f32))
    with np.errstate(invalid="ignore"):
        want = np.fmod(x, np.float32(divisor))
    got = compile_graph(Graph("g", b.pool, given, (y,), ("y",)))(x)
    np.testing.assert_array_equal(got, want)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[is_number], np.signbit(want)[is_number])


@pytest.mark.parametrize("n_columns", [1, 17, 64, 300])
@pytest.mark.parametrize("fold", [ops.reduce_sum, ops.reduce_max])
def test_rows_that_data_choose_are_folded_as_vectors(n_columns: int, fold: OpDef) -> None:
    rng = np.random.default_rng(1)
    table, weights = rng.standard_normal((40, n_columns), np.float32), rng.standard_normal((13, 7, 1), np.float32)
    b, given = inputs(table, rng.integers(-40, 40, (13, 7)), weights)
    chosen = b(ops.mul, b(ops.gather, given[0], given[1], axis=0), given[2])
    arrays = [table, rng.integers(-40, 40, (13, 7)), weights]
    check(b, given, [b(fold, chosen, axes=(1,), keepdims=False)], arrays)


def test_a_row_that_ends_narrow_on_one_thread_and_not_on_the_other() -> None:
    """The last part of a row of 182 begins its sums in half registers, where the first has whole ones."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 182)).astype(np.float32)
    b, (n,) = inputs(x)
    check(b, (n,), [b(ops.matmul, b.const(rng.standard_normal((1, 3000)).astype(np.float32)), n)], [x / 3000])


def test_a_chain_of_costly_functions_is_emitted_at_once() -> None:
    """Each function's select walked everything before it: a minute for 40 sines."""
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    b, given = inputs(x)
    y = given[0]
    for _ in range(40):
        y = b(ops.sub, y, b(ops.sin, y))
    start = time.process_time()
    check(b, given, [y], [x])
    assert time.process_time() - start < 5


@pytest.mark.parametrize("large", [4e12, 3e38, float(np.finfo(np.float32).min)])
def test_softmax_of_large_elements(large: float) -> None:
    """As a net's untrained logits, or a row that a mask covers whole."""
    x = np.full((3, 17), large, np.float32)
    x[1, 4:] = 0
    b, given = inputs(x)
    check(b, given, [b(ops.softmax, given[0], axis=1)], [x])


@pytest.mark.parametrize("narrow", [types.u4, types.i4, types.u2, types.i2])
@pytest.mark.parametrize("wide", [types.i8, types.u8, types.i32, types.f32])
def test_few_bits_widen_and_wrap(narrow: types.DType, wide: types.DType) -> None:
    size, is_signed = 1 << narrow.bits, narrow in (types.i4, types.i2)
    numbers = np.arange(size) - (size // 2 if is_signed else 0)

    def cast(array: np.ndarray, source: types.DType, target: types.DType) -> np.ndarray:  # type: ignore[type-arg]
        pool = Pool()
        x = pool.input("x", TensorType(source, array.shape))
        y = Builder(pool)(ops.cast, x, dtype=target)
        return np.asarray(compile_graph(Graph("g", pool, (x,), (y,), ("y",)))(array))

    widened = cast(numbers.astype(np.int8).astype(narrow.numpy), narrow, wide)
    np.testing.assert_array_equal(widened, numbers.astype(wide.numpy))
    if wide is not types.f32:
        given = np.arange(40)
        wanted = (given + size // 2) % size - size // 2 if is_signed else given % size
        np.testing.assert_array_equal(cast(given.astype(wide.numpy), wide, narrow).astype(np.int64), wanted)


@pytest.mark.parametrize("dtype", [types.u4, types.i4])
def test_four_bits_in_a_byte_are_a_byte_already(dtype: types.DType) -> None:
    pool = Pool()
    x = pool.input("x", TensorType(dtype, (26,)))
    graph = Graph("g", pool, (x,), (Builder(pool)(ops.cast, x, dtype=types.i8),), ("y",))
    array = (np.arange(26) % 8).astype(dtype.numpy)
    np.testing.assert_array_equal(compile_graph(graph)(array), array.astype(np.int8))


def test_a_sum_reads_a_number_that_another_stage_makes() -> None:
    x = np.random.default_rng(0).standard_normal(37).astype(np.float32)
    b, given = inputs(x)
    far = b(ops.sub, given[0], b(ops.reduce_mean, given[0], axes=(0,), keepdims=False))
    check(b, given, [b(ops.reduce_sum, b(ops.mul, far, far), axes=(0,), keepdims=False)], [x])


def test_a_mask_of_whole_rows_that_lies_flat() -> None:
    """Blocks of rows, turned, took a temporary that has rows and columns in one dimension for a number of each row."""
    scores = np.where(np.arange(560).reshape(4, 10, 14) % 5 == 0, -np.inf, 0.5)
    most = np.ones((2, 2, 10, 1))
    b, (x, m) = inputs(scores, most)
    flat = b(ops.gt, x, b.const(-np.inf, types.f64))
    some = b(ops.reduce_any, b(ops.reshape, flat, shape=(2, 2, 10, 14)), axes=(3,), keepdims=True)
    powers = b(ops.exp2, b(ops.sub, b(ops.reshape, x, shape=(2, 2, 10, 14)), m))
    total = b(ops.reduce_sum, powers, axes=(3,), keepdims=True)
    share = b(ops.div, powers, total)
    result = b(ops.where, some, share, b.const(0.0, types.f64))
    check(b, (x, m), [result], [scores, most])
    graph = Graph("g", b.pool, (x, m), (result,), ("y",))
    assert list(kernel_texts(graph, Options(target="x86-64-v4"), "tile", ""))  # lanes for eight rows


@pytest.mark.parametrize("n", [500, 1500])
def test_long_chains_of_arithmetic(n: int) -> None:
    """Walks over a kernel's expression recurse, and 500 operations are deeper than Python's limit lets them go."""
    x = np.random.default_rng(n).uniform(0.5, 1.5, (4, 33)).astype(np.float32)
    b, (a,) = inputs(x)
    y = a
    for k in range(n):
        y = b((ops.add, ops.sub, ops.mul, ops.minimum)[k % 4], y, a)
    check(b, (a,), (y,), (x,))
    if n == 500:
        graph = Graph("g", b.pool, (a,), (y,), ("y",))
        assert build_for_gpu(graph, Options("cuda-sm80"), Clock()).objects
