"""Runs one ONNX node in ONNX Runtime: the peer that references are compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnxruntime as ort

from tilewright.core.types import Array


def run_node(
    op_type: str,
    arrays: Sequence[Array | None],
    n_outputs: int = 1,
    attrs: Mapping[str, Any] | None = None,
    opset: int = 21,
) -> list[Array]:
    """The node's outputs; an operand that is None is left out."""
    names = ["" if a is None else f"x{k}" for k, a in enumerate(arrays)]
    outputs = [f"y{k}" for k in range(n_outputs)]
    node = onnx.helper.make_node(op_type, names, outputs, **(attrs or {}))
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    results = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = onnx.helper.make_graph([node], "g", inputs, results)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    return list(session.run(None, fed))
