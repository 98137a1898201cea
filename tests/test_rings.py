"""Maps that a window slides over, kept as a ring of rows: right on every target, for one thread and for two."""

from __future__ import annotations

import numpy as np
import pytest

from machines import change_machines
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.core import types
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import DType, TensorType
from tilewright.target.target import Target


@pytest.fixture(autouse=True)
def _rings_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small maps, too, on threads."""
    monkeypatch.setattr(Target, "large_bytes", 0)
    change_machines(monkeypatch, llc_bytes_per_cycle=1e-9, wake_us=0.0)


def net(kind: str, n: int, h: int, w: int, channels: int, k: int, stride: int, dtype: DType = types.f32) -> Graph:
    """A convolution, SiLU, a window of the kind, and a projection."""
    rng, pool = np.random.default_rng(channels), Pool()
    b, x = Builder(pool), pool.input("x", TensorType(dtype, (n, 3, h, w)))

    def weight(*shape: int) -> Node:
        return b.const((rng.standard_normal(shape) / shape[1] ** 0.5).astype(dtype.numpy))

    ones = {"strides": (1, 1), "pads": ((0, 0),) * 2, "dilations": (1, 1)}
    y = b(ops.add, b(ops.conv, x, weight(channels, 3, 1, 1), **ones), weight(1, channels, 1, 1))
    y = b(ops.mul, y, b(ops.sigmoid, y))
    pads = ((k // 2, k // 2),) * 2
    if kind == "depthwise":
        how = {"strides": (stride, stride), "pads": pads, "dilations": (1, 1), "groups": channels}
        y = b(ops.relu, b(ops.conv, y, weight(channels, 1, k, k), **how))
    else:
        pool_of = ops.max_pool if kind == "max" else ops.avg_pool
        y = b(pool_of, y, kernel=[k, k], strides=[stride, stride], pads=pads)
    y = b(ops.conv, y, weight(5, channels, 1, 1), **ones)
    return Graph("net", pool, (x,), (y,), ("y",))


def check(graph: Graph, target: str = "native", tolerance: float = 1e-4) -> None:
    rng = np.random.default_rng(0)
    (x,) = (rng.standard_normal([int(str(d)) for d in i.shape]).astype(i.dtype.numpy) for i in graph.inputs)
    (want,) = evaluate_graph(graph, [x])
    one, two = (np.asarray(compile_graph(graph, threads=n, target=target)(x)) for n in (1, 2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one.astype("d"), want.astype("d"), rtol=tolerance, atol=tolerance)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(("kind", "k", "stride"), [("depthwise", 3, 1), ("depthwise", 5, 2), ("max", 3, 2)])
def test_every_target(target: str, kind: str, k: int, stride: int) -> None:
    check(net(kind, 1, 17, 14, 33, k, stride), target)


@pytest.mark.one_in(10)
@pytest.mark.parametrize(("h", "w", "channels", "n"), [(3, 3, 1, 1), (7, 30, 17, 2), (14, 5, 100, 1), (9, 9, 48, 3)])
@pytest.mark.parametrize(("kind", "k", "stride"), [("depthwise", 3, 2), ("avg", 3, 1), ("depthwise", 2, 1)])
def test_odd_sizes(kind: str, k: int, stride: int, h: int, w: int, channels: int, n: int) -> None:
    check(net(kind, n, h, w, channels, k, stride))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("dtype", "tolerance"), [(types.f64, 1e-9), (types.f16, 3e-2), (types.bf16, 2e-1)])
def test_other_dtypes(dtype: DType, tolerance: float) -> None:
    check(net("depthwise", 1, 12, 11, 24, 3, 1, dtype), tolerance=tolerance)
