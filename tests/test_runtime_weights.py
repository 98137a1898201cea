"""Convolutions whose weights are inputs: a call lays them out, then they run as with constant ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import ops
from tilewright.build import driver, kernels
from tilewright.build.options import Clock, Options
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import DType, TensorType, bf16, f32, f64

QUICK, MANY = 4, 500
TOLERANCE = {f32: 2e-5, f64: 1e-12, bf16: 2e-2}


def graph_of(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType, transposed: bool, **attrs: Any) -> Graph:
    b = Builder(Pool())
    x, w = (b.pool.input(name, TensorType(dtype, shape)) for name, shape in zip("xw", shapes, strict=True))
    y = b(ops.conv_transpose if transposed else ops.conv, x, w, layout="NCHW", **attrs)
    return Graph("windows", b.pool, (x, w), (b(ops.relu, y),), ("y",))


def arrays_of(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n.shape).astype(n.dtype.numpy) for n in graph.inputs]


def check(graph: Graph, seed: int = 0, target: str = "native") -> None:
    arrays = arrays_of(graph, seed)
    (want,) = evaluate_graph(graph, arrays)
    model = driver.compile_graph(graph, threads=1 + seed % 2, target=target)
    assert not [n for k in model.report()["kernels"] for n in k["notes"] if "broke" in n]
    got, want = np.asarray(model(*arrays)).astype(np.float64), want.astype(np.float64)
    bound = TOLERANCE[graph.inputs[0].dtype]
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound * max(1.0, float(np.abs(want).max(initial=0))))


@st.composite
def windows(draw: st.DrawFn) -> Graph:
    """Any number of axes, groups, strides, dilations, pads; plain and transposed."""
    n = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
    c_in, c_out = (groups * draw(st.sampled_from([1, 1, 2, 3, 5, 8, 16])) for _ in range(2))
    kernel = [draw(st.integers(1, 5 if n < 3 else 3)) for _ in range(n)]
    strides = [draw(st.integers(1, 3)) for _ in range(n)]
    dilations = [draw(st.sampled_from([1, 1, 2])) for _ in range(n)]
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    sizes = [draw(st.integers(r + 1, r + (20 if n == 1 else 9))) for r in reach]
    pads = tuple((draw(st.integers(0, k // 2)), draw(st.integers(0, k // 2))) for k in kernel)
    transposed = draw(st.booleans())
    w = (c_in, c_out // groups, *kernel) if transposed else (c_out, c_in // groups, *kernel)
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    if transposed:
        attrs["output_padding"] = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    batch = draw(st.sampled_from([1, 1, 2, 3]))
    return graph_of(((batch, c_in, *sizes), w), draw(st.sampled_from([f32, f32, f64, bf16])), transposed, **attrs)


@given(windows(), st.integers(0, 99))
@settings(max_examples=QUICK, derandomize=True)
def test_windows(graph: Graph, seed: int) -> None:
    check(graph, seed)


@pytest.mark.slow
@given(windows(), st.integers(0, 99), st.sampled_from(["native", "x86-64-v3", "x86-64"]))
@settings(max_examples=MANY)
def test_windows_at_length(graph: Graph, seed: int, target: str) -> None:
    check(graph, seed, target)


def depthwise() -> Graph:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": ((0, 0),) * 2, "groups": 20}
    return graph_of(((1, 20, 9, 9), (20, 1, 5, 5)), f32, False, **attrs)


def test_a_run_time_kernel_has_the_schedule_of_a_constant_one() -> None:
    """It fell back to one output at a time: 30 times eager's time."""
    graph = depthwise()
    rng, pool = np.random.default_rng(0), Builder(Pool())
    x = pool.pool.input("x", graph.inputs[0].type)
    w = pool.const(rng.standard_normal(graph.inputs[1].shape).astype(np.float32))
    node = graph.outputs[0].inputs[0]
    fixed = Graph("fixed", pool.pool, (x,), (pool(ops.relu, pool(node.op, x, w, **node.attrs)),), ("y",))
    wide = Options(target="x86-64-v4")  # where both are channels last
    made = [kernels.optimise_and_split(g, wide, wide.machine, Clock()).kernels for g in (graph, fixed)]
    schedules = [{name: k.schedules[name] for name, label in k.labels.items() if "conv" in label} for k in made]
    assert schedules[0] == schedules[1]


def test_one_weight_may_have_several_readers_and_sizes_of_a_call() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.conv2d(x, w, padding=1, groups=2)
            return torch.nn.functional.conv2d(y, w.flip(2), padding=1, groups=2) + w.sum()

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator) for shape in ((2, 12, 8, 8), (12, 6, 3, 3)))
    sizes = {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    model = tw.compile(Twice(), (x, w), dynamic_shapes=(sizes, None), cache=False)
    for shape in ((2, 12, 8, 8), (1, 12, 13, 5), (3, 12, 4, 30)):
        x = torch.randn(*shape, generator=generator)
        torch.testing.assert_close(model(x, w), Twice()(x, w), rtol=1e-4, atol=1e-4)


def test_the_comparison_follows_such_steps() -> None:
    graph = depthwise()
    found = tw.compare(graph, arrays_of(graph, 0), isolate=False)
    assert found.agrees, found.fault
