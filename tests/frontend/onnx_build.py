"""Small ONNX models for tests, and their answers by ONNX Runtime and by the reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.given import Elements, NeedsCall
from tilewright.frontend.onnx.importer import import_for_call

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
Shape = Sequence[int | str | None]


def info(name: str, shape: Shape | None, dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    name: str = "g",
) -> onnx.GraphProto:
    made = [helper.make_empty_tensor_value_info(o) if isinstance(o, str) else o for o in outputs]
    initial = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, list(inputs), made, initial)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    opset: int = 20,
    **more: Any,
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset), *more.pop("opsets", [])]
    return helper.make_model(
        graph(nodes, inputs, outputs, constants), opset_imports=opsets, ir_version=10, **more
    )  # fmt: skip


def evaluated(g: Graph, feeds: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    return evaluate_graph(g, [np.asarray(feeds[name]) for name in g.input_names])


def answers(m: onnx.ModelProto | bytes, feeds: Mapping[str, Any], **options: Any) -> tuple[np.ndarray, ...]:
    """The imported model's outputs by the reference interpreter."""
    return evaluated(imported(m, feeds, **options), feeds)


def imported(m: onnx.ModelProto | bytes, feeds: Mapping[str, Any], **options: Any) -> Graph:
    """The model's graph, for the values of these inputs only where they decide its structure."""
    facts: dict[str, Elements] = {}
    while True:
        try:
            return import_for_call(read_model(m), facts, **options).graph
        except NeedsCall as e:
            if facts.keys() >= set(e.inputs):
                raise
            facts |= {name: Elements.of(np.asarray(feeds[name])) for name in e.inputs}


def runtime_answers(m: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[np.ndarray]:
    """ONNX Runtime's outputs, without its own rewriting."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def check_against_runtime(m: onnx.ModelProto, feeds: Mapping[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """The imported model agrees with ONNX Runtime in shape, dtype and values."""
    wanted = runtime_answers(m, feeds)
    got = answers(m, feeds)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
