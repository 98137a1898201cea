"""Sizes that data decide, or that two inputs have to share, met by nodes that need more or other ones.

ONNX Runtime refuses while it runs; so do we, before a kernel touches what is not there. What it runs, runs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from frontend.onnx_build import BOOL, F32, I64, graph, info, model, node
from tilewright.runtime.errors import ExecutionError, InputError

Feeds = Mapping[str, np.ndarray]


def check(m: onnx.ModelProto, calls: Sequence[Feeds]) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    compiled = tw.compile(m, threads=1, cache=False)
    n_answers = n_refusals = 0
    for feeds in calls:
        case = str({name: x.tolist() for name, x in feeds.items()})
        try:
            wanted = session.run(None, dict(feeds))
        except Exception:  # a refusal; ONNX Runtime has several kinds
            with pytest.raises((ExecutionError, InputError), match=r"must hold|sizes agree|TW0101"):
                print(case, compiled(**feeds))
            n_refusals += 1
            continue
        try:
            got = compiled(**feeds)
        except ExecutionError:
            assert all(x.size == 0 for x in wanted), case
            continue
        for a, b in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=case, strict=True)
        n_answers += 1
    assert n_answers and n_refusals


# --- sizes of data --------------------------------------------------------------------------------------------------

ROW = {"row": np.array([1, 1, -1]), "w": np.ones((1, 1, 3), np.float32)}
ROWS = node("Reshape", ["d", "row"], ["r"])
NODES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "window": ([ROWS, node("Conv", ["r", "w"], ["y"])], ROW),
    "transposed window": ([ROWS, node("ConvTranspose", ["r", "w"], ["y"], pads=[2, 2])], ROW),
    "pool": ([ROWS, node("MaxPool", ["r"], ["y"], kernel_shape=[3])], ROW),
    "crop": ([node("Pad", ["d", "p"], ["y"])], {"p": np.array([-1, -1])}),
    "top": ([node("TopK", ["d", "k"], ["y", "at"])], {"k": np.array([2])}),
    "pick": ([node("Gather", ["d", "k"], ["y"])], {"k": np.array([1])}),
    "split": ([node("Split", ["d", "k"], ["y", "z"])], {"k": np.array([2, 1])}),
    "stretch": ([node("Expand", ["d", "k"], ["y"])], {"k": np.array([3])}),
    "rows": ([node("Reshape", ["d", "k"], ["y"])], {"k": np.array([-1, 2])}),
    "fixed": ([node("Reshape", ["d", "k"], ["y"])], {"k": np.array([2, 2])}),
    "join": (
        [node("Reshape", ["d", "k"], ["r"]), node("Concat", ["r", "o"], ["y"], axis=0)],
        {"k": np.array([1, -1]), "o": np.ones((1, 3), np.float32)},
    ),
    "greatest": ([node("ArgMax", ["d"], ["at"], axis=0)], {}),
    "least": ([node("ArgMin", ["d"], ["at"], axis=0, select_last_index=1)], {}),
    "resize": ([ROWS, node("Resize", ["r", "", "", "k"], ["y"])], {**ROW, "k": np.array([1, 1, 5])}),
}  # fmt: skip


def marked(n_marked: Sequence[int], n: int = 6) -> list[dict[str, np.ndarray]]:
    x = np.arange(n, dtype=np.float32) + 1
    return [{"x": x, "m": np.arange(n) < k} for k in n_marked]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NODES)
def test_a_size_that_data_decide(name: str) -> None:
    nodes, constants = NODES[name]
    found = node("Compress", ["x", "m"], ["d"], axis=0)
    outputs = [info(o, None, I64 if o == "at" else F32) for o in nodes[-1].output]
    m = model([found, *nodes], [info("x", ["n"]), info("m", ["n"], BOOL)], outputs, constants)
    # what ONNX Runtime leaves in a row beside one without elements is no answer
    check(m, marked(range(1 if name == "join" else 0, 6)))


@pytest.mark.parametrize("name", ["window", "top", "rows", "pick", "stretch"])
def test_in_a_branch_only_where_it_is_taken(name: str) -> None:
    nodes, constants = NODES[name]
    then = graph([*nodes, node("ReduceSum", ["y"], ["t"], keepdims=0)], [], ["t"], constants)
    other = graph([node("ReduceSum", ["d"], ["e"], keepdims=0)], [], ["e"])
    branch = node("If", ["c"], ["z"], then_branch=then, else_branch=other)
    inputs = [info("x", ["n"]), info("m", ["n"], BOOL), info("c", [], BOOL)]
    m = model([node("Compress", ["x", "m"], ["d"], axis=0), branch], inputs, [info("z", [])])
    calls = marked(range(6))
    check(m, [{**feeds, "c": np.array(c)} for feeds in calls for c in (True, False)])


@pytest.mark.parametrize("name", ["window", "top", "rows", "pick", "stretch"])
def test_in_a_loop_only_where_a_step_runs(name: str) -> None:
    nodes, constants = NODES[name]
    steps = [*nodes, node("ReduceSum", ["y"], ["t"], keepdims=0), node("Add", ["v", "t"], ["u"])]
    body = graph(
        [*steps, node("Identity", ["go"], ["again"])],
        [info("i", [], I64), info("go", [], BOOL), info("v", [])],
        [info("again", [], BOOL), info("u", [])],
        constants,
    )
    loop = node("Loop", ["trip", "", "v0"], ["z"], body=body)
    inputs = [info("x", ["n"]), info("m", ["n"], BOOL), info("trip", [], I64), info("v0", [])]
    m = model([node("Compress", ["x", "m"], ["d"], axis=0), loop], inputs, [info("z", [])])
    start = np.array(0, np.float32)
    check(m, [{**feeds, "trip": np.array(t), "v0": start} for feeds in marked(range(6)) for t in (0, 1, 3)])


def test_a_refusal_names_the_node_that_decided_the_size() -> None:
    found = node("Compress", ["x", "m"], ["d"], axis=0, name="marked")
    nodes, constants = NODES["top"]
    m = model([found, *nodes], [info("x", ["n"]), info("m", ["n"], BOOL)], ["y"], constants)
    with pytest.raises(ExecutionError, match=r'>= 2 must hold where the data decide .* at node "marked" \(Compress\)'):
        tw.compile(m, threads=1, cache=False)(**marked([1])[0])


@pytest.mark.parametrize("step", [1, -1, 2, -3])
def test_a_range_to_one_less_than_data_decide(step: int) -> None:
    """Of no element its end lies before its start, which is no range of a size below 0."""
    nodes = [
        node("Compress", ["x", "m"], ["d"], axis=0),
        node("Size", ["d"], ["n"]),
        node("Sub", ["n", "one"], ["last"]),
        node("Range", ["zero", "last", "step"], ["up"]),
        node("Range", ["last", "zero", "step"], ["down"]),
    ]
    constants = {"one": np.array(1), "zero": np.array(0), "step": np.array(step)}
    m = model(
        nodes, [info("x", ["n"]), info("m", ["n"], BOOL)], [info("up", None, I64), info("down", None, I64)], constants
    )
    session = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = tw.compile(m, threads=1, cache=False)
    for feeds in marked(range(7)):
        for a, b in zip(compiled(**feeds), session.run(None, feeds), strict=True):
            np.testing.assert_array_equal(a, b, strict=True)


CHOSEN = [
    node("Cast", ["d"], ["whole"], to=I64),
    node("Unique", ["whole"], ["kinds", "at", "kind", "n"]),
    node("DynamicQuantizeLinear", ["d"], ["q", "scale", "zero"]),
    node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    node("Shape", ["d"], ["rows"]),
    node("Reshape", ["d", "rows"], ["same"]),
]


@pytest.mark.parametrize(("first", "outputs"), [(0, ["kinds", "at", "kind", "n"]), (2, ["y"]), (4, ["same"])])
def test_nodes_that_need_no_element(first: int, outputs: list[str]) -> None:
    nodes = [node("Compress", ["x", "m"], ["d"], axis=0), *CHOSEN[first : first + 2]]
    infos = [info(o, None, F32 if o in ("y", "same") else I64) for o in outputs]
    m = model(nodes, [info("x", ["n"]), info("m", ["n"], BOOL)], infos)
    session = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = tw.compile(m, threads=1, cache=False)
    for feeds in marked(range(7)):
        got = compiled(**feeds)
        for a, b in zip(got if isinstance(got, tuple) else (got,), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, strict=True)


class Window(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.window = torch.nn.Conv1d(1, 4, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = x[mask]
        torch._check(found.shape[0] >= 3)
        torch._check(found.shape[0] <= 64)
        return torch.relu(self.window(found[None, None]))


def test_a_promise_of_a_program_that_data_break() -> None:
    """A failing assertion ends the call before a kernel meets a size below 0, also in a file without Python."""
    module, x = Window().eval(), torch.randn(64)
    compiled = tw.compile(module, (x, x > 0), threads=1, cache=False)
    for k in (64, 10, 3):
        mask = torch.arange(64) < k
        torch.testing.assert_close(compiled(x, mask), module(x, mask), rtol=1e-4, atol=1e-5)
    for k in range(3):
        with pytest.raises(ExecutionError, match=r"u0 >= [23] must hold"):
            compiled(x, torch.arange(64) < k)


# --- sizes that two inputs share --------------------------------------------------------------------------------------

X, Y = info("x", ["n", 2]), info("y", ["m", 3])


def test_inputs_that_are_joined_have_one_size() -> None:
    m = model([node("Concat", ["x", "y"], ["z"], axis=1)], [X, Y], [info("z", None)])
    sizes = ((2, 2), (2, 3), (3, 2), (1, 5))
    check(m, [{"x": np.ones((a, 2), np.float32), "y": np.full((b, 3), 2, np.float32)} for a, b in sizes])


def test_indices_that_reach_beyond_other_axes() -> None:
    gather = node("GatherElements", ["x", "i"], ["z"], axis=1)
    m = model([gather], [X, info("i", ["k", 1], I64)], [info("z", None)])
    sizes = ((2, 2), (2, 3), (3, 1))
    check(m, [{"x": np.ones((a, 2), np.float32), "i": np.zeros((b, 1), np.int64)} for a, b in sizes])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("shape", [[1], [3]])
@given(st.data())
@settings(max_examples=10)
def test_a_size_computed_in_few_bits_wraps_around(op, shape, data):
    """Of one element a call compiles for its value, of more the size is bounded by what eight bits can hold."""
    m = narrow_range(op, shape)
    compiled = tw.compile(m, threads=1, cache=False)
    for _ in range(3):
        x = np.array(data.draw(st.lists(st.integers(0, 255), min_size=shape[0], max_size=shape[0])), np.uint8)
        wanted = {"Add": x + np.uint8(100), "Sub": x - np.uint8(100), "Mul": x * np.uint8(100)}[op].max()
        np.testing.assert_array_equal(compiled(x), np.arange(wanted))


def narrow_range(op: str, shape: list[int]) -> onnx.ModelProto:
    """As many numbers as the largest of a few bytes, each with 100 added and the like."""
    steps = [
        node(op, ["x", "c"], ["d"]),
        node("ReduceMax", ["d"], ["m"], keepdims=0),
        node("Cast", ["m"], ["n"], to=I64),
        node("Range", ["zero", "n", "one"], ["y"]),
    ]
    constants = {"c": np.array(100, np.uint8), "zero": np.array(0), "one": np.array(1)}
    return model(steps, [info("x", shape, onnx.TensorProto.UINT8)], [info("y", ["k"], I64)], constants)
