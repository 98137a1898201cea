"""``tilewright.compare``: a model beside its reference or another engine, layer by layer, to the first fault.

In: a model as ``compile`` takes it, and inputs. Out: a ``Comparison``. Not its business: printing (``cli.debug``).

Against a peer, the imported graph is compared first, value by value: what differs there is the frontend's. What it
means to the compiler is then followed through passes, kernels and memory (``tools.debug.flow``), in a process of its
own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tilewright import ops
from tilewright.build.options import Level, Options
from tilewright.core.diag import UNKNOWN, CompileError, ImportFailed, OptionError
from tilewright.core.evaluate import bind_inputs
from tilewright.core.graph import PROJ, Graph, Node
from tilewright.core.specialize import fix_symbols
from tilewright.core.text import load_graph
from tilewright.core.types import Array
from tilewright.frontend.source import Called, Source, import_called, import_source, is_a
from tilewright.frontend.torch.export import export_module, load_program
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.runtime.errors import ExecutionError, InputError, ResourceError, TilewrightError
from tilewright.runtime.structure import Misfit
from tilewright.runtime.values import is_tensor
from tilewright.tools.apart import Died
from tilewright.tools.debug.flow import compare_graph
from tilewright.tools.debug.peers import (
    Peer,
    PeerValue,
    ask_onnxruntime,
    ask_torch,
    onnx_graph,
    refuse_random,
)
from tilewright.tools.debug.report import Comparison, Fault, Row
from tilewright.tools.debug.tolerance import EPSILON, ROUNDINGS, Difference, judge
from tilewright.tools.debug.values import NodeValues, coarsest, other_values, steps_from, values_of
from tilewright.tools.debug.worker import Worker
from tilewright.tools.tell import Tell, silent

KINDS = {k.__name__: k for k in (CompileError, ImportFailed, InputError, OptionError, ExecutionError, ResourceError)}
"""Errors that cross the border of the process as what they are."""
Against = Literal["reference", "onnxruntime", "torch"]
Inputs = Mapping[str, Any] | Sequence[Any]


def compare(
    source: Source,
    inputs: Inputs,
    *,
    against: Against = "reference",
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "native",
    precision: str = "fp32",
    optimize: Level = 2,
    accuracy: str = "default",
    isolate: bool = True,
    seconds: float | None = None,
    progress: Tell | None = None,
) -> Comparison:
    """Run a compiled model and ``against`` side by side and say where the first difference comes from.

    ``source`` is what ``compile`` takes, or the path of an exported program (``.pt2``) or of a graph's text (``.txt``).
    ``inputs`` are arrays or tensors, in order or by name; a module is exported with them. ``against`` is the compiler's
    own ``reference`` (every op in NumPy), ``onnxruntime`` for ONNX models or ``torch`` for PyTorch's; the other
    arguments are ``compile``'s. With ``isolate`` native code runs in a process of its own, whose crash, or running
    longer than ``seconds``, is a fault like others. ``progress`` hears of each layer.

    Raises ``OptionError`` for what can't be compared, ``InputError`` for inputs that do not fit, ``CompileError`` for a
    model that is refused.
    """
    options = Options(target, precision, optimize, accuracy)
    peer, graph, arrays = _import(source, inputs, against, dynamic_shapes, input_shapes, fix_dims or {})
    tell = progress or silent
    values = _Imported()
    if peer is not None:
        refuse_random(graph)  # two generators never draw the same
        tell(f"values of {against}", 0, 1)
        values = _compare_values(peer, arrays)
        if values.fault is not None:  # every later layer would show it again
            return Comparison(graph.name, against, values=values.rows, fault=values.fault, amplified=values.amplified)
    if isolate:
        found = _isolated(graph, arrays, options, threads, seconds, tell)
    else:
        found = compare_graph(graph, arrays, options, threads=threads, tell=tell)
    return dataclasses.replace(found, against=against, values=values.rows, amplified=values.amplified)


def _isolated(
    graph: Graph, inputs: Sequence[Array], options: Options, threads: int | None, seconds: float | None, tell: Tell
) -> Comparison:
    with Worker() as worker:
        try:
            answer = worker.ask_about("compare", graph, inputs, options, threads=threads, seconds=seconds, tell=tell)
        except Died as e:
            fault = Fault("crash", e.doing, e.doing, UNKNOWN, Difference(problem=e.why))
            return Comparison(graph.name, "reference", fault=fault)
    if "error" in answer:
        raise KINDS.get(answer["error"], TilewrightError)(answer["message"], remedy=answer["remedy"])
    return Comparison.from_json(answer["comparison"])


# --- importing ------------------------------------------------------------------------------------------------------


def load_source(
    source: Source, inputs: Inputs, dynamic_shapes: Any = None, input_shapes: Any = None,
    fix_dims: Mapping[str, int] | None = None,
) -> tuple[Graph, list[Array]]:  # fmt: skip
    """The graph of a source and the inputs as its arrays, in order."""
    _, graph, arrays = _import(source, inputs, "reference", dynamic_shapes, input_shapes, fix_dims or {})
    return graph, arrays


def import_program(path: Path) -> tuple[Any, Graph]:
    """An exported program of a file, and its graph."""
    program = load_program(path)
    return program, import_source(program).unchecked()


def _import(
    source: Source, inputs: Any, against: str, dynamic_shapes: Any, input_shapes: Any, fix_dims: Mapping[str, int]
) -> tuple[Peer | None, Graph, list[Array]]:
    if against not in get_args(Against):
        raise OptionError(f"against={against!r} is not offered", remedy=f"use one of {list(get_args(Against))}")
    if isinstance(source, str | Path) and Path(source).suffix == ".pt2":
        source = load_program(Path(source))
    elif isinstance(source, str | Path) and Path(source).suffix == ".txt":
        source = load_graph(Path(source), ops.by_name)
    elif isinstance(source, str | Path) and not Path(source).exists():
        raise InputError(f"there is no file {source}", remedy="check the path")
    if is_a(source, "torch.nn", "Module"):
        source = export_module(source, inputs, dynamic_shapes)
    is_program = is_a(source, "torch.export", "ExportedProgram")
    is_onnx = not is_program and not isinstance(source, Graph)
    if against == "torch" and not is_program:
        raise OptionError("only PyTorch's programs run in PyTorch", remedy="pass a module or an exported program")
    if against == "onnxruntime" and not is_onnx:
        raise OptionError("only ONNX models run in ONNX Runtime", remedy="pass an ONNX model")
    if not isinstance(inputs, Mapping | Sequence) or isinstance(inputs, str | bytes):
        rule = f"inputs are of type {type(inputs).__name__}, not a tuple of arrays or a dict by name"
        raise InputError(rule, remedy="write a tuple, also around one array: (x,)")
    if is_onnx:
        graph = onnx_graph(source, _named(inputs), input_shapes, fix_dims)
    else:
        called = import_called(source)
        graph, inputs = called.graph, _flat(called, inputs)
    peer: Peer | None = None
    if against != "reference":
        named = dict(zip(graph.input_names, _arrays(graph, inputs), strict=True))
        ask = ask_torch if is_program else partial(ask_onnxruntime, input_shapes=input_shapes, fix_dims=fix_dims)
        peer = ask(source, named)
        graph = peer.graph  # whose nodes the peer's values are tied to
    if not is_onnx:  # `onnx_graph` has fixed them while importing
        graph = fix_symbols(graph, fix_dims)
    graph = graph.unchecked()  # only results are compared, not what the program asserts
    return peer, graph, _arrays(graph, inputs)


def _flat(called: Called, inputs: Inputs) -> Inputs:
    """Inputs as the graph has them: each tensor by itself, and after them what the source keeps from call to call."""
    convention = called.convention
    if convention.parameters is not None:
        args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
        with suppress(Misfit):
            inputs = convention.parameters.take(args, kwargs, len(called.graph.inputs) - len(convention.state))
    if isinstance(inputs, Mapping):
        return {**inputs, **{s.input: a for s, a in zip(convention.state, called.start, strict=True)}}
    return [*inputs, *called.start]


def _named(inputs: Inputs) -> dict[str, Array]:
    return {k: _array(v) for k, v in inputs.items()} if isinstance(inputs, Mapping) else {}


def _arrays(graph: Graph, inputs: Inputs) -> list[Array]:
    """Inputs in the graph's order; raises ``InputError`` for a wrong number or name."""
    names = graph.input_names
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(names):
            raise InputError(f"{len(inputs)} inputs were given", remedy=f"the model takes {', '.join(names) or 'none'}")
        return _checked(graph, [_array(v) for v in inputs])
    if inputs.keys() != set(names):
        raise InputError(f"the inputs {', '.join(inputs) or 'none'} were given", remedy=f"give {', '.join(names)}")
    return _checked(graph, [_array(inputs[n]) for n in names])


def _checked(graph: Graph, arrays: list[Array]) -> list[Array]:
    """``arrays``, which fit the graph's inputs."""
    bind_inputs(graph, arrays)
    return arrays


def _array(value: Any) -> Array:
    """A contiguous array of a tensor or of anything that NumPy reads."""
    if is_tensor(value):
        return np.ascontiguousarray(to_numpy(value)).reshape(tuple(value.shape))
    found = np.asarray(value)
    return np.ascontiguousarray(found).reshape(found.shape)


# --- against a peer -------------------------------------------------------------------------------------------------


OTHER_PLACES = "its other result is right: where elements are equal, the order of their places is free"


@dataclass(frozen=True)
class _Imported:
    """The imported graph's values beside the peer's."""

    rows: tuple[Row, ...] = ()
    amplified: tuple[Row, ...] = ()
    fault: Fault | None = None


def _compare_values(peer: Peer, inputs: Sequence[Array]) -> _Imported:
    """Every value of the imported graph beside the peer's; the fault is the first that rounding does not explain.

    A value that differs by more, and yet is right on the peer's own operands, is no fault of its op: rounding before it
    was amplified there.
    """
    every = Graph(peer.graph.name, peer.graph.pool, peer.graph.inputs, *_all_outputs(peer), peer.graph.constraints)
    ours, others = values_of(every, inputs), other_values(every, inputs)
    dtype = coarsest(every.nodes())
    epsilon, roundings = (EPSILON[dtype], ROUNDINGS[dtype]) if dtype is not None else (0.0, 1.0)
    rows: list[Row] = []
    amplified: list[Row] = []
    steps: tuple[NodeValues, Sequence[NodeValues]] | None = None

    def judged(v: PeerValue, by: NodeValues, moved: Sequence[NodeValues]) -> Row:
        got = by.of(v.node)
        spread = [o.of(v.node) for o in moved]
        found = judge(v.array, got, spread, base=got, epsilon=epsilon, roundings=roundings)
        return Row(f"{v.name} ({_computing(v.node).op.name})", v.node.loc, found)

    for v in peer.values:
        row = judged(v, ours, others)
        if row.difference.is_bad:
            # only when something differs: each op again, on the peer's own operands
            steps = steps or steps_from(every, inputs, {p.node: p.array for p in peer.values})
            alone = judged(v, *steps)
            if alone.difference.is_bad:
                op = _computing(v.node).op.name
                same = [w for w in peer.values if w.node is not v.node and _computing(w.node) is _computing(v.node)]
                detail = OTHER_PLACES if any(not judged(w, ours, others).difference.is_bad for w in same) else ""
                fault = Fault("import", v.name, op, v.node.loc, row.difference, detail=detail)
                return _Imported((*rows, row), tuple(amplified), fault)
            amplified.append(row)
            row = alone  # the table shows what the op itself did
        rows.append(row)
    return _Imported(tuple(rows), tuple(amplified))


def _computing(node: Node) -> Node:
    """The node that computes a value: of several results, the one that they are read from."""
    return node.inputs[0] if node.op is PROJ else node


def _all_outputs(peer: Peer) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    nodes = (*peer.graph.outputs, *(v.node for v in peer.values))
    return nodes, tuple(f"{k}" for k in range(len(nodes)))
