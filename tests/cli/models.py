"""What the tests of the command line share: what a command leaves, and two small models.

In: nothing. Out: models as ONNX has them. Not its business: running commands (``conftest``).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(7)
WEIGHT = RNG.standard_normal((24, 5)).astype(np.float32)
BIAS = RNG.standard_normal(5).astype(np.float32)


class Ran(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


def linear_model() -> onnx.ModelProto:
    """``relu(x @ w + b)`` with a symbolic number of rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"], name="shift"),
        helper.make_node("Relu", ["s"], ["y"], name="gate"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 24])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 5])
    constants = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")]
    graph = helper.make_graph(nodes, "linear", [x], [y], constants)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def pair_model() -> onnx.ModelProto:
    """Two inputs, two outputs, one of integers."""
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Shape", ["a"], ["n"])]
    shape = ["rows", 3]
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, shape) for k in "ab"]
    outputs = [helper.make_tensor_value_info("d", TensorProto.FLOAT, shape)]
    outputs.append(helper.make_tensor_value_info("n", TensorProto.INT64, [2]))
    graph = helper.make_graph(nodes, "pair", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ WEIGHT + BIAS, 0)
