"""Attention as its users see it: any size and mask, right to rounding, the same bits for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import clear_underflow, has_underflowed, runs_here
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.build.options import Options
from tilewright.build.passes import graph_passes
from tilewright.build.texts import kernel_texts
from tilewright.core import types
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, tensor_type_of
from tilewright.target.target import Target

SIZES = [1, 2, 37, 130, 197, 1000]
DEPTHS = [17, 64, 80, 128, 257]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(batch, heads, kv_heads, n_queries, n_keys, depth, value_depth=None):
    q = draw(batch, heads, n_queries, depth, seed=1)
    k, v = draw(batch, kv_heads, n_keys, depth, seed=2), draw(batch, kv_heads, n_keys, value_depth or depth, seed=3)
    return q, k, v


def graph_of(shapes, **attrs):
    """One ``attention``, written head by head within a token, as the next layer reads it."""
    pool = Pool()
    b = Builder(pool)
    xs = [pool.input(f"x{k}", t) for k, t in enumerate(shapes)]
    out = b(ops.transpose, b(ops.attention, *xs, **attrs), perm=(0, 2, 1, 3))
    return Graph("attention", pool, tuple(xs), (out,), ("y",))


def compiled(arrays, threads=1, **attrs):
    return compile_graph(graph_of([tensor_type_of(a) for a in arrays], **attrs), threads=threads)


def reference(arrays, **attrs):
    result = ops.attention.reference(list(arrays), Attrs(ops.attention.complete_attrs(attrs)))
    return result.transpose(0, 2, 1, 3)


def check(arrays, **attrs):
    model = compiled(arrays, **attrs)
    got = model(*arrays)
    np.testing.assert_allclose(got, reference(arrays, **attrs), rtol=2e-4, atol=2e-5)
    return model


def kernels(model):
    return [set(k["ops"]) for k in model.report()["kernels"]]


@pytest.mark.one_in(15)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_any_length(size, causal):
    check(operands(1, 2, 2, size, size, 16), scale=0.25, causal=causal)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(37, 37), (1, 70), (40, 5)])
def test_any_depth(depth, n_queries, n_keys):
    check(operands(2, 2, 2, n_queries, n_keys, depth, depth - 1), scale=depth**-0.5)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 130), (33, 33), (3, 50)])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_in_groups(kv_heads, n_queries, n_keys, causal):
    check(operands(2, 6, kv_heads, n_queries, n_keys, 8), scale=0.3, causal=causal)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("shape", [(40, 50), (1, 50), (1, 1, 50), (3, 1, 1, 50), (3, 4, 40, 50), (1, 4, 1, 50)])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_masks(shape, kind, kv_heads):
    mask = draw(*shape, seed=4)
    mask = mask > -0.5 if kind == "bool" else mask
    check((*operands(3, 4, kv_heads, 40, 50, 8), mask), scale=0.3, softcap=3.0 if kind == "float" else 0.0)


@pytest.mark.parametrize("hidden", [-100.0, -1e4, -np.inf])
@pytest.mark.parametrize("target", ["x86-64-v3", "native"])
def test_what_a_mask_hides_is_no_denormal_number(target, hidden):
    """Each product with one would take 150 cycles; -100 is what windowed attention adds."""
    if not runs_here(Target.parse(target)):
        pytest.skip("this CPU lacks instructions of the target")
    mask = np.where(np.arange(60) < 30, np.float32(0), np.float32(hidden))[None]
    arrays = (*operands(1, 2, 2, 50, 60, 16), mask)
    call = compile_graph(graph_of([tensor_type_of(a) for a in arrays], scale=0.25), threads=1, target=target)
    clear_underflow()
    got = call(*arrays)
    assert not has_underflowed()
    np.testing.assert_allclose(got, reference(arrays, scale=0.25), rtol=2e-4, atol=2e-5)


def test_a_weight_that_a_mask_leaves_alone_is_no_zero():
    """As in a cross entropy written out: of each row one weight is left, and its logarithm is the answer."""
    pool = Pool()
    b = Builder(pool)
    x, mask = (pool.input(name, TensorType(types.f32, (8, 40))) for name in ("x", "mask"))
    left = b(ops.reduce_sum, b(ops.mul, b(ops.softmax, x, axis=1), mask), axes=(1,), keepdims=False)
    call = compile_graph(Graph("nll", pool, (x, mask), (b(ops.log, left),), ("y",)), threads=1)
    scores, one = np.zeros((8, 40), np.float32), np.zeros((8, 40), np.float32)
    scores[:, 7], one[:, 3] = 91, 1
    np.testing.assert_allclose(call(scores, one), -91, rtol=1e-3)


def test_a_row_that_sees_nothing_is_nan_and_others_are_not():
    mask = np.ones((50, 60), np.bool_)
    mask[[0, 17, 49]] = False
    arrays = (*operands(1, 2, 2, 50, 60, 16), mask)
    got = compiled(arrays, scale=0.25)(*arrays)
    assert np.isnan(got[:, [0, 17, 49]]).all()
    rest = np.setdiff1d(np.arange(50), [0, 17, 49])
    np.testing.assert_allclose(got[:, rest], reference(arrays, scale=0.25)[:, rest], rtol=2e-4, atol=2e-5)


def test_nan_in_a_query_stays_in_its_row():
    q, k, v = operands(1, 2, 2, 50, 60, 16)
    q[0, 1, 7, 3] = np.nan
    got = compiled((q, k, v), scale=0.25)(q, k, v)
    assert np.isnan(got[0, 7, 1]).all() and np.isnan(got).sum() == 16


def test_nan_in_a_key_and_in_a_value():
    q, k, v = operands(1, 1, 1, 50, 60, 16)
    v[0, 0, 5, 2] = np.nan
    got = compiled((q, k, v), scale=0.25)(q, k, v)
    assert np.isnan(got[..., 2]).all() and np.isnan(got).sum() == 50
    k[0, 0, 59, 0] = np.nan
    got = compiled((q, k, v), scale=0.25)(q, k, v)
    assert np.isnan(got).all()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", [(1, 3, 3, 197, 197, 64), (2, 4, 2, 50, 300, 32), (1, 4, 2, 1, 500, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_threads_do_not_change_a_bit(case, causal):
    arrays = operands(*case)
    one, two = (compiled(arrays, threads=n, scale=0.2, causal=causal)(*arrays) for n in (1, 2))
    assert one.tobytes() == two.tobytes()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_one_kernel_for_every_length(kv_heads, causal):
    n, m = Sym("N", 1), Sym("M", 1)
    shapes = [(2, 4, n, 16), (2, kv_heads, m, 16), (2, kv_heads, m, 16)]
    model = compile_graph(graph_of([TensorType(types.f32, s) for s in shapes], scale=0.25, causal=causal), threads=2)
    for n_queries, n_keys in [(1, 1), (1, 70), (7, 5), (24, 24), (37, 50), (100, 100), (130, 3)]:
        arrays = operands(2, 4, kv_heads, n_queries, n_keys, 16)
        want = reference(arrays, scale=0.25, causal=causal)
        np.testing.assert_allclose(model(*arrays), want, rtol=2e-4, atol=2e-5)
    (kernel,) = model.report()["kernels"]
    assert not kernel["notes"]
    assert "M*N" not in model.report()["memory"]["arena_bytes"]


def test_a_batch_known_at_run_time():
    b, n = Sym("B", 1), Sym("N", 1)
    model = compile_graph(graph_of([TensorType(types.f32, (b, 3, n, 8))] * 3, scale=0.3), threads=2)
    for batch, size in [(1, 30), (3, 50), (2, 1)]:
        arrays = operands(batch, 3, 3, size, size, 8)
        np.testing.assert_allclose(model(*arrays), reference(arrays, scale=0.3), rtol=2e-4, atol=2e-5)


def test_hidden_keys_are_not_even_read_as_numbers():
    q, k, v = operands(1, 2, 2, 64, 64, 16)
    k[:, :, 40:], v[:, :, 40:] = np.nan, np.nan
    got = compiled((q, k, v), scale=0.25, causal=True)(q, k, v)
    assert np.isfinite(got[:, :32]).all()


def test_scores_never_exist_as_a_whole():
    model = check(operands(1, 4, 4, 500, 500, 32), scale=0.2)
    assert model.report()["memory"]["arena_bytes"] < 4 * 500 * 500
    assert len(kernels(model)) == 1


@pytest.mark.parametrize("depth", [32, 64, 33])
def test_heads_out_of_one_matrix(depth):
    """Keys are turned; values, of which each head's rows lie apart, are copied so that they lie together."""
    n, heads = 330, 3
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(types.f32, (1, n, 3 * heads * depth)))

    def part(k):
        start, stop = k * heads * depth, (k + 1) * heads * depth
        columns = b(ops.slice, x, starts=(0, 0, start), stops=(1, n, stop), steps=(1, 1, 1))
        return b(ops.transpose, b(ops.reshape, columns, shape=(1, n, heads, depth)), perm=(0, 2, 1, 3))

    out = b(ops.attention, *(part(k) for k in range(3)), scale=0.2)
    graph = Graph("attention", pool, (x,), (out,), ("y",))
    model = compile_graph(graph, threads=1)
    value = draw(1, n, 3 * heads * depth)
    q, k, v = (a.reshape(1, n, heads, depth).transpose(0, 2, 1, 3) for a in np.split(value, 3, axis=2))
    want = ops.attention.reference([q, k, v], Attrs(ops.attention.complete_attrs({"scale": 0.2})))
    np.testing.assert_allclose(model(value), want, rtol=2e-4, atol=2e-5)
    assert len(kernels(model)) == 1
    options = Options()
    _, text = kernel_texts(run_pipeline(graph, graph_passes(options, options.machine)), options, "tile", "matmul")
    assert sum("place in0_" in line and line.endswith(" tmp") for line in text.splitlines()) == 2, "both copies"


@pytest.mark.parametrize("causal", [False, True])
def test_products_in_bf16_are_one_kernel_too(causal):
    arrays = operands(1, 4, 4, 300, 300, 32)
    graph = graph_of([tensor_type_of(a) for a in arrays], scale=0.2, causal=causal)
    model = compile_graph(graph, threads=1, precision="bf16")
    np.testing.assert_allclose(model(*arrays), reference(arrays, scale=0.2, causal=causal), rtol=0.05, atol=0.03)
    assert not any(k["notes"] for k in model.report()["kernels"])
    assert model.report()["memory"]["arena_bytes"] < 4 * 300 * 300 * 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [50, 96, 197, None])
def test_products_in_bf16_fill_matrix_registers(n, causal):
    """Whatever the number of keys is, also one that a call decides, and where each block of queries sees other keys."""
    options = Options(target="sapphirerapids-amx", precision="bf16")
    rows = Sym("n", 1, 512) if n is None else n
    graph = graph_of([TensorType(types.f32, (1, 2, rows, 32))] * 3, scale=0.2, causal=causal)
    _, text = kernel_texts(run_pipeline(graph, graph_passes(options, options.machine)), options, "tile", "matmul")
    products = [line for line in text.splitlines() if "add= mul(" in line]
    assert len(products) >= 2 and text.count("] matrix tmp") >= len(products)


@pytest.mark.one_in(3)
@given(
    rows=st.integers(1, 70), keys=st.integers(2, 100), heads=st.sampled_from([(2, 2), (4, 1)]),
    depth=st.sampled_from([8, 17, 32]), causal=st.booleans(), has_mask=st.booleans(), are_known=st.booleans(),
)  # fmt: skip
@settings(max_examples=6)
def test_any_attention_in_bf16(rows, keys, heads, depth, causal, has_mask, are_known):
    keys = rows if causal else keys
    arrays = [*operands(1, *heads, rows, keys, depth)]
    given_types = [tensor_type_of(a) for a in arrays]
    if has_mask:
        arrays.append(draw(rows, keys, seed=4))
        given_types.append(tensor_type_of(arrays[-1]))
    elif not are_known:
        n, m = Sym("n", 1, 512), Sym("n" if causal else "m", 1, 512)
        given_types = [t.with_shape((*t.shape[:2], d, depth)) for t, d in zip(given_types, (n, m, m), strict=True)]
    model = compile_graph(graph_of(given_types, scale=0.2, causal=causal), threads=1, precision="bf16")
    np.testing.assert_allclose(model(*arrays), reference(arrays, scale=0.2, causal=causal), rtol=0.05, atol=0.05)
