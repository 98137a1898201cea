"""Damaged model files give a graph or ``ImportFailed``: never another exception, a hang or a large allocation."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from frontend.onnx_build import BOOL, F32, I64, graph, imported, info, model, node
from tilewright.core.diag import ImportFailed
from tilewright.core.graph import Graph
from tilewright.frontend.onnx.importer import import_onnx


def convolutional() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], name="conv"),
        node("BatchNormalization", ["c", "b", "b", "b", "b"], ["n"]),
        node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
        node("Shape", ["p"], ["s"]), node("Gather", ["s", "zero"], ["batch"]),
        node("Concat", ["batch", "free"], ["to"], axis=0), node("Reshape", ["p", "to"], ["f"]),
        node("Softmax", ["f"], ["y"], axis=-1),
    ]  # fmt: skip
    constants = {
        "w": np.ones((38, 3, 3, 3), np.float32), "b": np.ones(38, np.float32),
        "zero": np.array([0]), "free": np.array([-1]),
    }  # fmt: skip
    return model(nodes, [info("x", ["N", 3, 8, 8])], ["y"], constants)


def controlled() -> onnx.ModelProto:
    body = graph(
        [node("Add", ["v", "x"], ["w"]), node("Identity", ["go"], ["again"]), node("ReduceSum", ["w"], ["row"])],
        [info("i", [], I64), info("go", [], BOOL), info("v", ["N", 3])],
        [info("again", [], BOOL), info("w", ["N", 3]), info("row", [1, 1])],
    )
    branches = [graph([node(op, ["l"], [op])], [], [info(op, None)], name=op) for op in ("Relu", "Neg")]
    f = helper.make_function(
        "local", "F", ["a"], ["r"], [node("Mul", ["a", "a"], ["r"])], [helper.make_opsetid("", 20)]
    )  # fmt: skip
    nodes = [
        node("Loop", ["trip", "go", "x"], ["l", "rows"], body=body),
        node("If", ["go"], ["c"], then_branch=branches[0], else_branch=branches[1]),
        node("F", ["c"], ["m"], domain="local"),
        node("Slice", ["m", "a", "b", "a"], ["y"]),
    ]
    inputs = [info("x", ["N", 3], F32), info("trip", [], I64), info("go", [], BOOL)]
    constants = {"a": np.array([1]), "b": np.array([3])}
    return model(nodes, inputs, ["y", "rows"], constants, functions=[f], opsets=[helper.make_opsetid("local", 1)])


@cache
def seeds() -> tuple[bytes, ...]:
    return tuple(m.SerializeToString() for m in (convolutional(), controlled()))


def survives(data: bytes) -> None:
    try:
        assert isinstance(import_onnx(data), Graph)
    except ImportFailed as e:
        assert str(e)


CHECKED = settings(max_examples=120, database=None)
MANY = settings(CHECKED, max_examples=2000)

bytes_changed = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6)
cuts = st.floats(0, 1)


def mutated(which: int, changes: list[tuple[float, int]]) -> bytes:
    data = bytearray(seeds()[which])
    for place, value in changes:
        data[int(place * len(data))] = value
    return bytes(data)


def test_the_seeds_are_good() -> None:
    assert all(isinstance(imported(s, {"trip": np.array(2)}), Graph) for s in seeds())


@CHECKED
@given(st.integers(0, 1), bytes_changed)
def test_mutated(which, changes) -> None:
    survives(mutated(which, changes))


@CHECKED
@given(st.integers(0, 1), cuts)
def test_truncated(which, cut) -> None:
    survives(seeds()[which][: int(cut * len(seeds()[which]))])


@pytest.mark.fuzz
@MANY
@given(st.integers(0, 1), bytes_changed)
def test_many_mutated(which, changes) -> None:
    survives(mutated(which, changes))


# --- damage that keeps the file readable ----------------------------------------------------------------------------

numbers = st.sampled_from([0, 1, -1, 2, -2, 3, 7, 64, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63)])


@CHECKED
@given(st.integers(0, 1), st.data())
def test_changed_fields(which, data) -> None:
    """Attributes, tensor shapes, names and op types are swapped for others."""
    m = onnx.ModelProto.FromString(seeds()[which])
    names = sorted({name for n in m.graph.node for name in (*n.input, *n.output)})
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["attribute", "input", "output", "op", "dims", "value", "dtype"]))
        n = data.draw(st.sampled_from(list(m.graph.node)))
        if kind == "attribute" and n.attribute:
            a = data.draw(st.sampled_from(list(n.attribute)))
            a.i = data.draw(numbers)
            a.ints[:] = data.draw(st.lists(numbers, max_size=5))
        elif kind == "input" and n.input:
            n.input[data.draw(st.integers(0, len(n.input) - 1))] = data.draw(st.sampled_from(names))
        elif kind == "output":
            n.output[0] = data.draw(st.sampled_from(names))
        elif kind == "op":
            n.op_type = data.draw(
                st.sampled_from(["Add", "Gemm", "Concat", "Transpose", "TopK", "Expand", "Loop", "Pad"])
            )
        elif kind in ("dims", "value", "dtype"):
            t = data.draw(st.sampled_from(list(m.graph.initializer)))
            if kind == "dims":
                t.dims[:] = data.draw(st.lists(numbers, max_size=5))
            elif kind == "dtype":
                t.data_type = data.draw(st.integers(0, 26))
            elif t.data_type == I64:
                t.raw_data = np.array([data.draw(numbers)]).tobytes()
    survives(m.SerializeToString())


# --- models made to explode -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_sizes_that_square_themselves(op) -> None:
    nodes = [node("Size", ["x"], ["s0"])]
    for k in range(60):
        nodes += [node("Add", [f"s{k}", "one"], [f"t{k}"]), node(op, [f"t{k}", f"s{k}"], [f"s{k + 1}"])]
    survives(model(nodes, [info("x", ["a", "b"])], ["s60"], {"one": np.array(1)}).SerializeToString())


def test_shapes_that_square_themselves() -> None:
    nodes = []
    for k in range(60):
        nodes += [node("Shape", [f"x{k}"], [f"s{k}"]), node("Tile", [f"x{k}", f"s{k}"], [f"x{k + 1}"])]
    with pytest.raises(ImportFailed, match="too long to write down"):
        import_onnx(model(nodes, [info("x0", ["a", "b"])], ["x60"]))
