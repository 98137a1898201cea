"""`precision="int4"` and the like, and dequantised constants: codes, how far they move results, what stays in f32."""

from __future__ import annotations

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
from tilewright.graph.forms.coded import CodedProducts
from tilewright.graph.interp import run as interpret
from tilewright.graph.quantize.codes import rounded
from tilewright.graph.quantize.weights import QuantizeWeights
from tilewright.ops.coded import matrix_of

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


@pytest.mark.parametrize(("bits", "error"), [(8, 0.01), (4, 0.15)])
def test_a_matrix_is_near_its_codes_and_stays_so_when_quantised_again(bits: int, error: float) -> None:
    matrix = normal(128, 32)
    codes = rounded(matrix, bits, 32)
    assert codes.scales.dtype == np.float16
    near = matrix_of(*codes, bits).reshape(matrix.shape)
    assert np.abs(near - matrix).max() < error * np.abs(matrix).max()
    again = matrix_of(*rounded(near, bits, 32), bits).reshape(matrix.shape)
    np.testing.assert_allclose(again, near, atol=2e-3 * np.abs(near).max())


def test_a_group_of_zeros_and_tiny_steps_are_right() -> None:
    matrix = np.zeros((64, 8), np.float32)
    matrix[32:] = normal(32, 8) * np.float32(1e-9)  # steps below half precision
    codes = rounded(matrix, 8, 32)
    assert codes.scales.dtype == np.float32
    np.testing.assert_allclose(matrix_of(*codes, 8).reshape(64, 8), matrix, atol=2e-11)


@pytest.mark.parametrize("turned", [False, True])
def test_products_and_embeddings_of_their_width_read_codes(turned: bool) -> None:
    graph = embedded(turned)
    done = QuantizeWeights(4, 32).run(graph)
    assert len(nodes_of(done, ops.coded_matmul)) == 2 and not nodes_of(done, ops.matmul)
    assert len(nodes_of(done, ops.dequantize_linear)) == 1
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
    assert QuantizeWeights(4, 32).run(graph) is graph


@pytest.mark.one_in(2)
@pytest.mark.parametrize("precision", ["int8", "int4", "int4-64"])
def test_compiled_code_equals_the_dequantised_model(precision: str) -> None:
    graph = embedded()
    places = RNG.integers(0, 40, (2, 3))
    want = np.asarray(interpret(FEW_BITS[precision].run(graph), [places])[0])
    for level in (0, 2):
        got = np.asarray(compile_graph(graph, precision=precision, optimize=level)(places))
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_weights_of_four_bits_take_little_more_than_half_a_byte() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (1, 256)))
    graph = Graph("g", b.pool, (x,), (b(ops.matmul, x, b.const(normal(256, 512))),), ("y",))
    artifact = build(graph, Options(precision="int4"), Clock())
    assert artifact.manifest.report["memory"]["weights_bytes"] <= 0.58 * 256 * 512


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
