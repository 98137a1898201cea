"""Kernels with versions for a few sizes: which are made, and that every call gets the right one's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from aot import programs
from codegen.test_c import built
from graph.showing import graph_of
from machines import change_machines
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.build.kernels import SplitGraph, optimise_and_split
from tilewright.build.options import SIZE, Clock, Options
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph
from tilewright.core.types import Array, TensorType, f32
from tilewright.partition.program import Choice, walk_steps
from tilewright.tools.debug.flow import compare_graph

SMALL_CACHES = {"l1_bytes": 8 << 10, "l2_bytes": 32 << 10, "llc_bytes": 64 << 10}
"""The weights of small scans come from far, as those of large ones do elsewhere."""
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
STEPS = 6
pytestmark = pytest.mark.usefixtures("shared_kernels")  # each test compiles one of a few nets


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    change_machines(monkeypatch, **SMALL_CACHES)


def net(name: str = "gru", hidden: int = 96, n_dirs: int = 1, least: int = 1, most: int | None = None) -> Graph:
    """A layer of a batch of sequences whose number is known at the call; forth and back with two directions."""
    rng = np.random.default_rng(7)
    gates, batch = GATES[name], Sym("batch", least, most)

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32)

    def make(b: Any, x: Any) -> Any:
        results = []
        for k in range(n_dirs):
            product = b(ops.add, b(ops.matmul, x, b.const(draw(5, gates * hidden))), b.const(draw(gates * hidden)))
            state = b(ops.expand, b.const(np.zeros((1, hidden), np.float32)), shape=(batch, hidden))
            states = [state] * (2 if name == "lstm" else 1)
            more = [b.const(draw(hidden))] if name == "gru" else []
            attrs = {"linear_before_reset": True} if name == "gru" else {}
            scan = b(ops.by_name(f"{name}_scan"), product, b.const(draw(hidden, gates * hidden)), *states, *more,
                     reverse=k == 1, **attrs)  # fmt: skip
            results += b.results(scan)
        return tuple(results)

    return graph_of(make, TensorType(f32, (STEPS, batch, 5)))


def sequences(batch: int) -> Array:
    return np.random.default_rng(batch).standard_normal((STEPS, batch, 5)).astype(np.float32)


def split(graph: Graph, **options: Any) -> SplitGraph:
    made = Options(**options)
    return optimise_and_split(graph, made, made.machine, Clock())


def sizes_of(made: SplitGraph) -> list[int]:
    """The sizes of all versions in order."""
    return [v.size for s in walk_steps(made.program) if isinstance(s, Choice) for v in s.versions]


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_window_that_does_not_fit_the_smallest_sizes(dilation: int) -> None:
    """A version for a size that no call has is not made; a call with such a size is refused."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((8, 8, 5)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[dilation])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, "n" if n == "x" else None]) for n in "xy")
    opset = [helper.make_opsetid("", 18)]
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, "w")])
    source = helper.make_model(graph, opset_imports=opset, ir_version=10)
    model, reach = tw.compile(source), 4 * dilation
    for n in (reach + 1, reach + 2, 40):
        array = rng.standard_normal((1, 8, n)).astype(np.float32)
        want = ReferenceEvaluator(source).run(None, {"x": array})[0]
        np.testing.assert_allclose(model(array), want, rtol=1e-4, atol=1e-4)
    for n in (reach, reach - 1):
        with pytest.raises(tw.InputError, match=f"n is {n}; n must be at least {reach + 1}"):
            model(np.zeros((1, 8, n), np.float32))


@pytest.mark.one_in(10)  # every gate, number of directions and of threads is in one of the three
@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize("n_dirs", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_call_has_the_results_of_plain_code(name: str, n_dirs: int, threads: int) -> None:
    graph = net(name, 192 if name == "rnn" else 96, n_dirs)
    assert sizes_of(split(graph))
    model, plain = compile_graph(graph, threads=threads), compile_graph(graph, optimize=1, threads=threads)
    for batch in (0, 1, 2, 3, 17, 1):
        x = sequences(batch)
        for got, want in zip(model(x), plain(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_there_is_none_outside_of_the_range_of_the_size() -> None:
    assert 1 in sizes_of(split(net()))
    assert 1 not in sizes_of(split(net(least=2)))
    assert not any(n > 1 for n in sizes_of(split(net(most=1))))


def test_there_is_none_where_weights_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    change_machines(monkeypatch, l1_bytes=1 << 20, l2_bytes=8 << 20)
    assert not sizes_of(split(net()))


def test_code_for_size_has_none_and_plain_code_neither() -> None:
    assert not sizes_of(split(net(), optimize=SIZE))
    assert not sizes_of(split(net(), optimize=1))


def test_the_report_names_the_size_of_a_version() -> None:
    report = compile_graph(net(), threads=1).report()
    rows = [row for row in report["kernels"] if "sizes" in row]
    assert rows and rows[0]["sizes"] == {"batch": 1}
    assert report["n_kernel_calls"] == report["n_kernels"] - len(rows)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_debugger_finds_nothing_wrong_with_either(batch: int) -> None:
    assert compare_graph(net(), [sequences(batch)], Options(), threads=1).fault is None


@programs.needs_cc
def test_a_c_file_chooses_them_too(tmp_path: Path) -> None:
    model, plain = built(net(), tmp_path), compile_graph(net(), optimize=1, threads=1)
    for batch in (1, 2):
        x = sequences(batch)
        for got, want in zip(model(x), plain(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def gru_file() -> onnx.ModelProto:
    """A GRU of a batch of sequences whose number is known at the call."""
    rng, hidden = np.random.default_rng(3), 96
    shapes = {"w": (1, 3 * hidden, 5), "r": (1, 3 * hidden, hidden), "b": (1, 6 * hidden)}
    constants = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 9, k) for k, s in shapes.items()]
    node = helper.make_node("GRU", ["x", *shapes], ["y"], hidden_size=hidden, linear_before_reset=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, "batch", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, "batch", hidden])
    graph = helper.make_graph([node], "gru", [x], [y], constants)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


@programs.needs_cc
def test_an_export_has_them_too(tmp_path: Path) -> None:
    model = tw.compile(gru_file(), threads=1, cache=False)
    assert any("sizes" in row for row in model.report()["kernels"])
    program = programs.build(tw.export(gru_file(), tmp_path, name="net", threads=1))
    for batch in (1, 2):
        programs.same_bytes(program, model, {"x": sequences(batch)})
