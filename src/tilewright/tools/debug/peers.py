"""What another implementation gives for every value of a model, tied to the nodes that the frontend made of them.

In: an ONNX model and ONNX Runtime, or an exported PyTorch program. Out: the imported graph with pairs of node and
array, in the source's order. Not its business: comparing them.

An ONNX model gets all its values as outputs, for both sides alike: the graph that the frontend makes of it has them by
name. PyTorch's own interpreter runs the very program that the frontend read, call by call.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import Array
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.given import Elements, NeedsCall
from tilewright.frontend.onnx.importer import import_for_call
from tilewright.frontend.torch.export import import_with_values
from tilewright.frontend.torch.tensors import to_numpy, to_torch

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram

NO_TENSORS = ("Sequence", "SplitToSequence", "Optional", "ConcatFromSequence")
"""Beginnings of the names of ONNX ops whose results may not be tensors."""


@dataclass(frozen=True)
class PeerValue:
    """A value by its name in the source, the node that should compute it, and what the peer computes."""

    name: str
    node: Node
    array: Array


@dataclass(frozen=True)
class Peer:
    """An imported graph, and the peer's values of its nodes in the source's order."""

    graph: Graph
    values: tuple[PeerValue, ...]


def onnx_graph(
    source: Any, inputs: Mapping[str, Array], input_shapes: Any = None, fix_dims: Mapping[str, int] | None = None
) -> Graph:
    """An ONNX model for these inputs: where their values decide its structure, they are constants."""
    read = read_model(source)
    facts: dict[str, Elements] = {}
    while True:
        try:
            made = import_for_call(read, facts, input_shapes, fix_dims)
        except NeedsCall as e:
            new = [n for n in e.inputs if n in inputs and n not in facts]
            if not new:
                raise
            facts.update({n: Elements.of(np.asarray(inputs[n])) for n in new})
            continue
        if any(r is not None for r in made.results):
            raise OptionError("the model's outputs are sequences or optionals", remedy="give it tensors as outputs")
        return made.graph


def ask_onnxruntime(
    source: Any, inputs: Mapping[str, Array], input_shapes: Any = None, fix_dims: Mapping[str, int] | None = None
) -> Peer:
    """Every value of an ONNX model by ONNX Runtime, without its optimisations."""
    try:
        import onnxruntime
    except ImportError as e:
        raise OptionError("--against onnxruntime needs ONNX Runtime", remedy="pip install onnxruntime") from e
    read_model(source)  # its errors name what is wrong with a file
    whole = whole_model(source)
    model = with_all_values(whole)
    graph = onnx_graph(model, inputs, input_shapes, fix_dims)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    wanted = [o.name for o in model.graph.output]
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        taken = {i.name for i in session.get_inputs()}
        arrays = session.run(wanted, {k: v for k, v in inputs.items() if k in taken})
    except Exception as e:  # its exceptions share no base, and all of them say why
        raise OptionError(f"ONNX Runtime can't run the model: {e}", remedy="compare against the reference") from e
    nodes = dict(zip(graph.output_names, graph.outputs, strict=True))
    values = [PeerValue(n, nodes[n], np.asarray(a)) for n, a in zip(wanted, arrays, strict=True) if n in nodes]
    return Peer(_with_outputs(graph, [o.name for o in whole.graph.output]), _in_order(graph, values))


def with_all_values(model: ModelProto) -> ModelProto:
    """The model with every tensor that a node of its main graph makes among its outputs."""
    from onnx import ModelProto, ValueInfoProto

    made = ModelProto()
    made.CopyFrom(model)
    known = {o.name for o in made.graph.output}
    for node in made.graph.node:
        if not node.op_type.startswith(NO_TENSORS):
            for name in node.output:
                if name and name not in known:
                    made.graph.output.append(ValueInfoProto(name=name))
                    known.add(name)
    return made


def whole_model(source: Any) -> ModelProto:
    """The model with all of its tensors inside."""
    import onnx

    if isinstance(source, bytes):
        parsed: ModelProto = onnx.ModelProto.FromString(source)
        return parsed
    found: ModelProto = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    return found


def _with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    nodes = dict(zip(graph.output_names, graph.outputs, strict=True))
    outputs = tuple(nodes[n] for n in names)
    return Graph(graph.name, graph.pool, graph.inputs, outputs, tuple(names), graph.constraints)


def _in_order(graph: Graph, values: Sequence[PeerValue]) -> tuple[PeerValue, ...]:
    """Values in the order in which the graph's nodes run."""
    order = {n: k for k, n in enumerate(graph.nodes())}
    return tuple(sorted(values, key=lambda v: order[v.node]))


def ask_torch(program: ExportedProgram, inputs: Mapping[str, Array]) -> Peer:
    """Every value of an exported program by PyTorch."""
    import torch
    from torch.fx import Interpreter

    imported = import_with_values(program)
    found: list[PeerValue] = []

    class Recorder(Interpreter):
        def run_node(self, n: Any) -> Any:
            result = super().run_node(n)
            node = imported.nodes.get(n)
            if node is not None and isinstance(result, torch.Tensor) and n.op == "call_function":
                # copied, as a later call may write to the tensor in place
                found.append(PeerValue(n.name, node, np.array(to_numpy(result))))
            return result

    arguments = []
    read = imported.program  # PyTorch may have rewritten the one that was given
    placeholders = [n for n in read.graph.nodes if n.op == "placeholder"]
    for spec, node in zip(read.graph_signature.input_specs, placeholders, strict=True):
        if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            stored = read.state_dict if spec.target in read.state_dict else read.constants
            arguments.append(stored[spec.target])
        elif node.name in inputs:
            arguments.append(to_torch(np.array(inputs[node.name]), node.meta["val"].is_complex()))
        else:
            arguments.append(getattr(spec.arg, "value", None))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Recorder(read.graph_module).run(*arguments)
    return Peer(imported.graph, tuple(found))


def refuse_random(graph: Graph) -> None:
    """Raise for a graph that draws random numbers: no two implementations draw the same."""
    drawn = next((n for n in graph.nodes() if Trait.RANDOM in n.op.traits), None)
    if drawn is not None:
        raise OptionError(f"{drawn.loc} draws random numbers", remedy="compare against the reference")
