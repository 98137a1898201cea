"""A window and the pointwise product behind it in one kernel: right on every target, for one thread and for two."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machines import change_machines
from test_rings import check
from tilewright import ops
from tilewright.build import texts
from tilewright.build.driver import compile_graph
from tilewright.build.options import Options
from tilewright.choose.strategies import projected
from tilewright.core import types
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import DType, TensorType
from tilewright.partition import projections
from tilewright.target.target import Target

PLAIN = {"strides": (1, 1), "pads": ((0, 0),) * 2, "dilations": (1, 1), "layout": "NHWC"}
FEW = settings(max_examples=7, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _projections_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small maps, too, on threads."""
    monkeypatch.setattr(projections, "_is_long", lambda *_: True)
    monkeypatch.setattr(projections, "_fits", lambda *_: True)
    monkeypatch.setattr(projections, "_pays", lambda *_: True)
    change_machines(monkeypatch, wake_us=0.0)


@pytest.fixture
def _rings_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "large_bytes", 0)
    change_machines(monkeypatch, llc_bytes_per_cycle=1e-9)


def block(
    shape: tuple[Dim, Dim, Dim, int],
    out: int,
    k: int = 3,
    stride: int = 1,
    *,
    pad: int | None = None,
    expand: int = 0,
    activation: bool = True,
    bias: bool = True,
    residual: bool = False,
    dtype: DType = types.f32,
    pool_of: bool = False,
) -> Graph:
    """A pointwise convolution to ``expand`` channels, if any; a depthwise one or a pool; a pointwise one to ``out``."""
    rng, pool = np.random.default_rng(out), Pool()
    b, x = Builder(pool), pool.input("x", TensorType(dtype, shape))

    def weight(*shape: int) -> Node:
        return b.const((rng.standard_normal(shape) / max(1, shape[1]) ** 0.5).astype(dtype.numpy))

    y, channels = x, expand or shape[-1]
    if expand:
        y = b(ops.relu, b(ops.add, b(ops.conv, y, weight(expand, shape[-1], 1, 1), **PLAIN), weight(1, 1, 1, expand)))
    pad = k // 2 if pad is None else pad
    how = {**PLAIN, "strides": (stride, stride), "pads": ((pad, pad),) * 2}
    if pool_of:
        y = b(ops.max_pool, y, kernel=[k, k], strides=[stride, stride], pads=((pad, pad),) * 2, layout="NHWC")
    else:
        y = b(ops.conv, y, weight(channels, 1, k, k), groups=channels, **how)
    y = b(ops.add, y, weight(1, 1, 1, channels)) if bias else y
    y = b(ops.mul, y, b(ops.sigmoid, y)) if activation else y
    y = b(ops.conv, y, weight(out, channels, 1, 1), **PLAIN)
    y = b(ops.add, y, weight(1, 1, 1, out)) if bias else y
    y = b(ops.add, y, x) if residual and y.shape == x.shape else y
    return Graph("net", pool, (x,), (y,), ("y",))


def text(graph: Graph, stage: str, target: str, precision: str = "fp32") -> str:
    """Its kernels, of which there is one."""
    options = Options(target=target, precision=precision)
    found = "".join(texts.kernel_texts(texts.optimise(graph, options, None), options, stage, ""))
    assert found.count("// k_") == 1, found
    return found


def local(graph: Graph, target: str = "x86-64-v4", precision: str = "fp32") -> list[str]:
    """What a thread keeps."""
    lines = text(graph, "tile", target, precision).split("\n")
    return [x.split(": ")[1].split(" local")[0] for x in lines if " local tmp" in x]


@given(
    n=st.integers(1, 3),
    h=st.integers(2, 13),
    w=st.integers(2, 20),
    channels=st.sampled_from([1, 3, 16, 17, 33]),
    out=st.sampled_from([1, 5, 16, 24]),
    k=st.sampled_from([2, 3, 5]),
    stride=st.sampled_from([1, 2]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@FEW
def test_any_size(n, h, w, channels, out, k, stride, flags) -> None:
    activation, bias, residual = flags
    if h + 2 * (k // 2) >= k and w + 2 * (k // 2) >= k:
        shape = (n, h, w, channels)
        check(block(shape, out, k, stride, activation=activation, bias=bias, residual=residual))


@given(
    n=st.integers(1, 3),
    h=st.integers(3, 13),
    w=st.integers(3, 15),
    middle=st.sampled_from([3, 16, 33]),
    k=st.sampled_from([2, 3, 5]),
    stride=st.sampled_from([1, 2]),
    residual=st.booleans(),
)
@FEW
@pytest.mark.usefixtures("_rings_pay")
def test_any_size_of_a_whole_chain(n, h, w, middle, k, stride, residual) -> None:
    check(block((n, h, w, 6), 6, k, stride, expand=middle, residual=residual))


@pytest.mark.one_in(10)
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(("k", "stride", "expand"), [(3, 1, 0), (5, 2, 0), (3, 1, 33), (3, 2, 32)])
@pytest.mark.usefixtures("_rings_pay")
def test_every_target(target: str, k: int, stride: int, expand: int) -> None:
    check(block((1, 17, 14, 24), 24, k, stride, expand=expand, residual=True), target)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "tolerance"), [(types.f64, 1e-9), (types.f16, 3e-2), (types.bf16, 2e-1)])
def test_other_dtypes(dtype: DType, tolerance: float) -> None:
    check(block((1, 12, 11, 24), 10, dtype=dtype), tolerance=tolerance)


def test_rounded_to_bf16_for_the_product() -> None:
    graph = block((1, 12, 14, 32), 16)
    x = np.random.default_rng(0).standard_normal((1, 12, 14, 32)).astype(np.float32)
    one, two, exact = (
        np.asarray(compile_graph(graph, threads=n, precision=p)(x)) for n, p in [(1, "bf16"), (2, "bf16"), (1, "fp32")]
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, exact, atol=3e-2 * np.abs(exact).max())
    assert local(graph, precision="bf16") == ["bf16[4, 14, 32]"]


def test_a_pool_may_be_the_window() -> None:
    check(block((2, 9, 12, 20), 7, 3, 2, pool_of=True, bias=False))
    check(block((2, 9, 12, 20), 7, 3, 1, pool_of=True, activation=False))


def test_a_batch_of_any_size() -> None:
    graph = block((Sym("batch", 1), 9, 8, 20), 12, residual=True)
    for n in (1, 3):
        x = np.random.default_rng(n).standard_normal((n, 9, 8, 20)).astype(np.float32)
        one, two = (np.asarray(compile_graph(graph, threads=t)(x)) for t in (1, 2))
        np.testing.assert_array_equal(one, two)
        (want,) = evaluate_graph(block((n, 9, 8, 20), 12, residual=True), [x])
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-4)
    assert local(graph) == ["f32[8, 8, 20]"] and "parallel" in text(graph, "tile", "native")


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64"])
def test_rows_go_through_a_small_buffer(target: str) -> None:
    """Even numbers of rows, the last block a shorter one where it must be."""
    assert local(block((1, 56, 56, 32), 16), target) == ["f32[4, 56, 32]"]
    assert local(block((1, 30, 56, 32), 16), target) == ["f32[2, 56, 32]"]
    assert local(block((1, 29, 56, 32), 16), target) == ["f32[4, 56, 32]"]
    assert local(block((1, 32, 8, 32), 16), target) == ["f32[8, 8, 32]"]


@pytest.mark.usefixtures("_rings_pay")
def test_a_whole_chain_keeps_a_ring_and_a_block() -> None:
    graph = block((1, 56, 56, 24), 24, expand=32, residual=True)
    assert local(graph) == ["f32[6, 56, 32]", "f32[4, 56, 32]"]
    assert local(block((1, 56, 56, 24), 24, 3, 2, expand=32)) == ["f32[9, 56, 32]", "f32[4, 28, 32]"]


@pytest.mark.slow
def test_rows_that_are_too_long_go_in_pieces() -> None:
    assert local(block((1, 4, 60_000, 16), 16)) == ["f32[32, 16]"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("expand", [0, 32])
@pytest.mark.usefixtures("_rings_pay")
def test_what_does_not_fit_is_scheduled_apart(monkeypatch: pytest.MonkeyPatch, expand: int) -> None:
    monkeypatch.setattr(projected, "BLOCK_SHARE", 1 << 40)
    graph = block((1, 14, 9, 24), 12, expand=expand)
    assert "no loop walks it in blocks of rows that fit" in text(graph, "tile", "native")
    check(graph)


def test_schedules_are_read_back() -> None:
    graph = block((1, 14, 14, 24), 12, expand=32)
    saved = texts.schedules(graph, Options())
    assert "compute_at" in saved and texts.schedules(graph, Options(schedule=saved)) == saved
    x = np.random.default_rng(0).standard_normal((1, 14, 14, 24)).astype(np.float32)
    loaded = compile_graph(graph, schedule=saved)
    np.testing.assert_array_equal(np.asarray(loaded(x)), np.asarray(compile_graph(graph)(x)))
