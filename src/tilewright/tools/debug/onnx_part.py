"""A reduced graph as an ONNX model again: the nodes of the original that it came from.

In: an ONNX file, its inputs, and a reduced graph, whose locations name nodes. Out: ``model.onnx`` with those nodes and
``model-inputs.npz``, if that model fails in the same way; it may hold more than the graph does.
Not its business: reducing (``tools.debug.reduce``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.graph import CONST, INPUT
from tilewright.core.types import Array
from tilewright.runtime.files import replacing, write_atomically
from tilewright.tools.debug.candidates import Candidate
from tilewright.tools.debug.kernel import BROKEN
from tilewright.tools.debug.peers import onnx_graph, whole_model, with_all_values
from tilewright.tools.debug.reduce import Reduced, Test
from tilewright.tools.debug.values import values_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


def save_onnx(found: Reduced, source: Path, inputs: Mapping[str, Array], folder: Path, test: Test) -> Path | None:
    """Write the part of ``source`` that ``found`` is made of; None where ``test`` does not fail as ``found`` does."""

    model = whole_model(source)
    try:
        part, arrays = _part(model, found, inputs)
        graph = onnx_graph(part, arrays)
        given = [arrays[n] for n in graph.input_names]
        if not test(Candidate(graph, tuple(given))).is_like(found.failure):
            return None
    except BROKEN:  # a part may be no model of its own
        return None
    path = folder / "model.onnx"
    write_atomically(path, [part.SerializeToString()], durable=False)
    content: dict[str, Any] = dict(arrays)
    with replacing(folder / "model-inputs.npz") as file:
        np.savez(file, **content)
    return path


def _part(model: ModelProto, found: Reduced, inputs: Mapping[str, Array]) -> tuple[ModelProto, dict[str, Array]]:
    """The nodes that the reduced graph's locations name, over inputs that hold what other nodes computed."""
    from onnx import helper

    graph = model.graph
    texts = {n.loc.text for n in found.candidate.graph.nodes() if n.op not in (INPUT, CONST)}
    nodes = [n for k, n in enumerate(graph.node) if _location(n, k) in texts]
    made = {name for n in nodes for name in n.output}
    read = dict.fromkeys(name for n in nodes for name in n.input if name and name not in made)
    initial = [t for t in graph.initializer if t.name in read]
    stored = {t.name for t in initial}
    values = _values(model, inputs)
    feeds = {name: values[name] for name in read if name not in stored}
    used = {name for n in nodes for name in n.input}
    ends = [name for n in nodes for name in n.output if name and name not in used]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ends]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    part = helper.make_graph(nodes, f"{graph.name} (a part)", given, outputs, initial)
    return helper.make_model(
        part, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    ), feeds


def _location(node: NodeProto, k: int) -> str:
    """The text that the importer gives a node of the main graph."""
    first = next(filter(None, node.output), "")
    name = f'node "{node.name}"' if node.name else f'node {k} giving "{first}"'
    return f"{name} ({node.op_type})"


def _values(model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of the main graph by its name."""
    every = onnx_graph(with_all_values(model), inputs)
    values = values_of(every, [inputs[n] for n in every.input_names])
    return {**inputs, **dict(zip(every.output_names, values.outputs(), strict=True))}
