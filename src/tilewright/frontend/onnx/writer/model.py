"""Graphs as ONNX models: the importer's way back.

In: a ``Graph``. Out: a ``ModelProto`` that computes the same; inputs, outputs and symbolic dimensions keep their names.
Not its business: what each op is called in ONNX (``writer.ops``), choosing what to write.

An op without a counterpart is written as the plainer ops that it is spelled by (``frontend.spellings``) or decomposes
into. A graph's checks are not written:
they say which inputs a model is not defined for, and an importer finds them again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.diag import CompileError, OptionError, Problem
from tilewright.core.graph import Graph
from tilewright.frontend.onnx.file import MAX_PROTO_BYTES
from tilewright.frontend.onnx.writer.nodes import ELEMENT_CODES, OnnxNodes, tensor, value_info
from tilewright.frontend.onnx.writer.table import WRITERS
from tilewright.runtime.files import write_atomically
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    import onnx

OPSET = 21
"""The first opset whose ``QuantizeLinear`` has 16 bits."""
IR_VERSION = 10


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """``graph`` as an ONNX model of opset 21.

    Raises ``CompileError`` naming every node that ONNX has no op for, and for numbers of more than 2 GiB.
    """
    try:
        with MAKING:
            from onnx import helper
    except ImportError as error:
        raise OptionError("ONNX models need the package onnx", remedy='pip install "tilewright[onnx]"') from error

    graph = graph.unchecked()
    made = _written(graph)
    given = {name: n for name, n in zip(graph.input_names, graph.inputs, strict=True)}
    kinds = {name: value_info(name, node.type) for name, node in (*given.items(), *graph.results())}
    inputs = [kinds[name] for name in graph.input_names]
    outputs = [kinds[name] for name in graph.output_names]
    size = sum(a.nbytes for a in made.constants.values())
    if size > MAX_PROTO_BYTES:
        raise CompileError(
            f"the numbers of {graph.name!r} take {size} bytes, and an ONNX file holds {MAX_PROTO_BYTES}",
            remedy="compile the graph and save that",
        )
    numbers = [tensor(name, a) for name, a in made.constants.items()]
    made_graph = helper.make_graph(made.nodes, graph.name, inputs, outputs, numbers)
    return helper.make_model(made_graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])


def save_onnx(graph: Graph, path: Path) -> None:
    """Write :func:`to_onnx` to a file, which is whole or not there."""
    write_atomically(path, [to_onnx(graph).SerializeToString()], durable=False)


def _written(graph: Graph) -> OnnxNodes:
    """Every node of the graph in ONNX's ops; an output that another name has already is an ``Identity`` of it."""
    made = OnnxNodes(graph, Counter(i for n in graph.nodes() for i in n.inputs), WRITERS)
    problems = [
        Problem(n.loc, n.op.name, f"ONNX has no numbers of {t.dtype}", "cast them to another type")
        for n in graph.nodes()
        for t in n.types
        if t.dtype.numpy not in ELEMENT_CODES
    ] or made.write(graph.nodes())
    if problems:
        raise CompileError(f"{graph.name!r} can't be written as ONNX", problems)
    for name, node in graph.results():
        if made.name(node) != name:
            made.nodes.append(made.node("Identity", [made.name(node)], [name]))
    return made
