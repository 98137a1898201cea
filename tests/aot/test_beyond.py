"""Sizes beyond 64 bits, or beyond a machine's addresses, are refused: they never look like small ones."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tilewright as tw
from aot.in_process import ObjectModel
from tilewright.runtime.shapes import Dim, compile_size, evaluate
from tilewright.runtime.values import dtype_of

LIMIT = (1 << 63) - 1
SHAPE, MEMORY = 2, 3


def _model(
    nodes: list[Any], inputs: dict[str, list[Any]], output: str, weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    constants = [onnx.numpy_helper.from_array(w, name) for name, w in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", values, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _product() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Softmax", ["t"], ["u"], axis=0)]
    nodes.append(helper.make_node("MatMul", ["u", "v"], ["y"]))
    weights = {"w": np.ones((8, 4), np.float32), "v": np.ones((4, 16), np.float32)}
    return _model(nodes, {"x": ["n", 8]}, "y", weights)


def _outer() -> onnx.ModelProto:
    nodes = [helper.make_node("Mul", ["x", "z"], ["t"]), helper.make_node("Softmax", ["t"], ["u"], axis=0)]
    nodes.append(helper.make_node("Softmax", ["u"], ["y"], axis=1))
    return _model(nodes, {"x": ["n", 1], "z": [1, "m"]}, "y")


def _strided() -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], strides=[2], pads=[1, 1])]
    nodes.append(helper.make_node("Concat", ["t", "t"], ["y"], axis=0))
    return _model(nodes, {"x": ["n", 2, "l"]}, "y", {"w": np.ones((4, 2, 3), np.float32)})


def _deep() -> onnx.ModelProto:
    """Its memory is planned for several tensors at a time."""
    nodes = [helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4), helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node("Conv", ["b", "w"], ["c"], strides=[2, 2]), helper.make_node("Sigmoid", ["c"], ["d"])]
    nodes += [helper.make_node("GlobalAveragePool", ["d"], ["e"]), helper.make_node("Softmax", ["e"], ["y"], axis=0)]
    weights = {"v": np.ones((16, 3, 3, 3), np.float32), "w": np.ones((8, 16, 3, 3), np.float32)}
    return _model(nodes, {"x": ["n", 3, 16, 16]}, "y", weights)


@dataclass
class Case:
    """A linked object, and what its header's numbers are made of."""

    name: str
    library: ObjectModel
    arena: Dim
    model: tw.LoadedModel

    def workspace(self, dims: list[int]) -> tuple[int, int]:
        """The status, and the bytes."""
        n_bytes = ctypes.c_int64(-1)
        status = self.library._call("workspace", (ctypes.c_int64 * len(dims))(*dims), ctypes.byref(n_bytes))
        return status & 255, n_bytes.value

    def exact(self, dims: list[int]) -> list[int]:
        """The arena's bytes and each tensor's, in Python's numbers."""
        known = {s.name: d for s, d in zip(self.library.symbols, dims, strict=True)}
        found = [evaluate(compile_size(self.arena), known)]
        for t in (*self.library.inputs, *self.library.outputs):
            found.append(dtype_of(t.dtype).itemsize * math.prod(evaluate(compile_size(d), known) or 0 for d in t.shape))
        return [f or 0 for f in found]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Case]]:
    found = []
    for make in (_product, _outer, _strided, _deep):
        model = tw.compile(make(), cache=False)
        name = make.__name__.strip("_")
        made = model.export(tmp_path_factory.mktemp(name), name=name)
        found.append(Case(name, ObjectModel(made.object, name=name), model.report()["memory"]["arena_bytes"], model))
    yield found


sizes = st.one_of(
    st.integers(1, 300), st.builds(lambda k, d: max((1 << k) + d, 1), st.integers(0, 62), st.integers(-2, 2))
)


def check(cases: list[Case], which: int, dims: list[int]) -> None:
    case = cases[which]
    dims = dims[: len(case.library.symbols)]
    exact = case.exact(dims)
    status, n_bytes = case.workspace(dims)
    if status == 0:
        assert max(exact) <= LIMIT and 0 <= n_bytes - exact[0] < 4096
    else:
        assert status == SHAPE and max(exact) > LIMIT // 2  # what is rounded up on the way may be a little more


@given(st.integers(0, 3), st.lists(sizes, min_size=2, max_size=2))
@settings(max_examples=30)
def test_bytes_are_exact_or_refused(cases: list[Case], which: int, dims: list[int]) -> None:
    check(cases, which, dims)


@pytest.mark.slow
@given(st.integers(0, 3), st.lists(sizes, min_size=2, max_size=2))
@settings(max_examples=2000)
def test_bytes_are_exact_or_refused_often(cases: list[Case], which: int, dims: list[int]) -> None:
    check(cases, which, dims)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("power", range(40, 63))
def test_no_call_runs_with_more_than_there_is(cases: list[Case], power: int) -> None:
    """2**56 once asked for 128 bytes, and 2**60 ran over the end of them."""
    for case in cases:
        handle, memory = ctypes.c_void_p(), np.zeros(1 << 16, np.uint8)
        start = -memory.ctypes.data % 64
        place, none = ctypes.c_void_p(memory.ctypes.data + start), ctypes.c_void_p()
        n_bytes = ctypes.c_int64(memory.size - start)
        assert case.library._call("create", ctypes.byref(handle), place, n_bytes, none, ctypes.c_int32(1)) == 0
        table = (ctypes.c_void_p * 4)(*[memory.ctypes.data] * 4)
        for dims in ([1 << power, 1 << power], [1 << power, 3], [3, 1 << power]):
            given = (ctypes.c_int64 * 2)(*dims)
            needed = case.exact(dims[: len(case.library.symbols)])[0]
            if max(needed, *case.exact(dims[: len(case.library.symbols)])) > LIMIT or needed > memory.size:
                status = case.library._call("run", handle, given, table, table)
                assert status & 255 in (SHAPE, MEMORY), (case.name, dims)


def test_a_compiled_model_says_so(cases: list[Case]) -> None:
    """The Python runtime plans by the same code; an array without elements may have such sizes."""
    model = tw.compile(_outer(), cache=False)
    empty = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 40, 1), (0, 0))
    with pytest.raises(tw.TilewrightError, match="beyond 64 bits"):
        model._plan(((1 << 40, 1), (1, 1 << 40)))
    assert empty.shape == (1 << 40, 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", ["armv7", "cortex-m4", "wasm32"])
def test_machines_of_32_bits_ask_for_no_other_functions(target: str, tmp_path: Path) -> None:
    """Multiplying 64-bit numbers with a look at the overflow has a name in one compiler's library only."""
    made = tw.export(_strided(), tmp_path, target=target)
    assert b"__mulodi4" not in made.object.read_bytes()
