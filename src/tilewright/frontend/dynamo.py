"""``torch.compile(module, backend="tilewright")``: graphs that Dynamo captures, made functional by AOTAutograd.

In: an fx graph and example inputs. Out: a callable from tensors to tensors. Inference graphs have their weights
frozen into the compiled model; a weight that changes in place afterwards is noticed by its version, and the graph is
compiled again. Graphs that need gradients take their weights as run-time inputs; the backward graph is compiled like
any other when it first runs. Unsupported calls raise ``ImportFailed`` with all of them.
Not its business: what ATen calls mean (``fx``, ``aten_*``); running unsupported parts by eager PyTorch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import ImportFailed, Loc
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, TensorType, bool_, i64
from tilewright.frontend.aten import CONVERTERS
from tilewright.frontend.aten_call import SymFloat, Unsupported, as_node, dim_scalar
from tilewright.frontend.fx import FAILED, Importer
from tilewright.frontend.fx_symbols import SymbolTable
from tilewright.frontend.torch_tensors import carrier, to_numpy, to_torch

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

Execute = Callable[..., "Array | Sequence[Array]"]
"""A compiled graph on arrays: one result is given as itself, several as a sequence."""
CompileGraph = Callable[..., Execute]

TRAINING_ONLY = frozenset({"native_batch_norm.default", "native_dropout.default", "dropout.default"})
"""Calls whose training form only PyTorch's decomposition expresses."""


def backend(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The entry point that ``torch.compile`` calls; ``options`` are those of ``driver.compile_graph``."""
    from tilewright.driver import compile_graph

    return make_backend(compile_graph)(gm, example_inputs, options=options)


def make_backend(compile_graph: CompileGraph) -> Callable[..., Callable[..., Any]]:
    """A Dynamo back end over any way to make a graph callable: ``compile_graph(graph, **options)`` on arrays."""

    def compile_captured(
        gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        def compile_now(graph: Graph) -> Execute:
            return compile_graph(graph, **(options or {}))

        def inference(functional: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
            frozen = _freezable(functional, example_inputs)
            return _boxed(_Compiled(functional, compile_now, frozen))

        def forward(functional: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
            return _boxed(_Compiled(functional, compile_now, {}))

        def backward(functional: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
            return _boxed(_Compiled(functional, compile_now, {}, lazy=True))

        compiler = aot_autograd(
            fw_compiler=forward, bw_compiler=backward, inference_compiler=inference, decompositions=_decompositions()
        )
        result: Callable[..., Any] = compiler(gm, example_inputs)
        return result

    return compile_captured


def _decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions of everything that has no converter here."""
    from torch._decomp import core_aten_decompositions

    def is_kept(name: str) -> bool:
        return name in CONVERTERS and name not in TRAINING_ONLY

    return {op: f for op, f in core_aten_decompositions().items() if not is_kept(str(op).removeprefix("aten."))}


def _freezable(functional: GraphModule, example_inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Positions of inputs that are weights which the graph does not write to, with their tensors."""
    import torch

    context = torch._guards.TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    n_placeholders = sum(n.op == "placeholder" for n in functional.graph.nodes)
    if meta is None or n_placeholders != len(example_inputs):
        return {}
    written = {i for i, info in enumerate(meta.input_info) if info.mutates_data or info.mutates_metadata}
    found: dict[int, torch.Tensor] = {}
    for i in meta.static_input_indices:
        tensor = example_inputs[i] if i < len(example_inputs) and i not in written else None
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if isinstance(tensor, torch.Tensor) and is_plain and not tensor.is_inference():
            found[i] = tensor
    return found


@dataclass(frozen=True)
class _Stamp:
    """What changes when a tensor is written to or replaced."""

    tensor: int
    address: int
    version: int

    @staticmethod
    def of(tensor: torch.Tensor) -> _Stamp:
        return _Stamp(id(tensor), tensor.data_ptr(), tensor._version)


class _Compiled:
    """One functional graph as a callable on flat arguments; compiles again when a frozen weight has changed."""

    def __init__(
        self,
        functional: GraphModule,
        compile_now: Callable[[Graph], Execute],
        frozen: dict[int, torch.Tensor],
        lazy: bool = False,
    ) -> None:
        self.functional = functional
        self.compile_now = compile_now
        self.frozen = frozen
        self.stamps: dict[int, _Stamp] = {}
        self.program: _Program | None = None
        self.execute: Execute | None = None
        if not lazy:
            self._compile()

    def _compile(self) -> None:
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # AOTAutograd compiles under its fake tensors; weights are real
            self.stamps = {i: _Stamp.of(t) for i, t in self.frozen.items()}
            self.program = _import(self.functional, self.frozen)
            self.execute = self.compile_now(self.program.graph) if self.program.graph.outputs else None

    def __call__(self, *args: Any) -> list[Any]:
        if self.program is None or any(_Stamp.of(args[i]) != stamp for i, stamp in self.stamps.items()):
            self.frozen = {i: args[i] for i in self.frozen}
            self._compile()
        program = self.program
        assert program is not None
        found = self.execute(*(take(args) for take in program.takes)) if self.execute is not None else ()
        arrays = (found,) if isinstance(found, np.ndarray) else found
        return [give(args, arrays) for give in program.gives]


def _boxed(compiled: _Compiled) -> Callable[[list[Any]], list[Any]]:
    """The calling convention of AOTAutograd: one list, which may be emptied to free what nobody else holds."""

    def call(args: list[Any]) -> list[Any]:
        given = tuple(args)
        args.clear()
        return compiled(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


Take = Callable[[Sequence[Any]], Array]
Give = Callable[[Sequence[Any], Sequence[Array]], Any]


@dataclass(frozen=True)
class _Program:
    """A graph, how to get its inputs from the flat arguments, and how to make the results from its outputs."""

    graph: Graph
    takes: tuple[Take, ...]
    gives: tuple[Give, ...]


def _import(functional: GraphModule, frozen: Mapping[int, torch.Tensor]) -> _Program:
    importer = Importer(Pool(), SymbolTable(), functional)
    placeholders = [n for n in functional.graph.nodes if n.op == "placeholder"]
    inputs, takes = _bind(importer, placeholders, frozen)
    values = importer.run(functional.graph)
    if importer.problems:
        count = len(importer.problems)
        raise ImportFailed(f"{count} calls of the captured graph have no form here", importer.problems)
    output = next(n for n in functional.graph.nodes if n.op == "output")
    outputs, gives = _results(importer, placeholders, list(output.args[0]), values)
    names = tuple(f"output_{i}" for i in range(len(outputs)))
    graph = Graph("dynamo", importer.pool, tuple(inputs), tuple(outputs), names)
    return _Program(graph, tuple(takes), tuple(gives))


def _bind(
    importer: Importer, placeholders: Sequence[Any], frozen: Mapping[int, torch.Tensor]
) -> tuple[list[Node], list[Take]]:
    """Tensors become inputs or constants; integers are dimensions that tensors' shapes or a carrier provide."""
    inputs: list[Node] = []
    takes: list[Take] = []
    sizes: list[tuple[int, Dim]] = []
    for i, node in enumerate(placeholders):
        value = node.meta.get("val")
        loc = Loc(f'input "{node.name}"')
        try:
            if i in frozen:
                importer.env[node] = importer.constant(frozen[i], Loc(f'weight "{node.name}"'))
            elif hasattr(value, "dtype") and hasattr(value, "shape"):
                importer.env[node] = importer.pool.input(node.name, importer.type_of(value), loc)
                inputs.append(importer.env[node])
                takes.append(lambda args, i=i: to_numpy(args[i]))  # type: ignore[misc]
            elif type(value).__name__ == "SymInt":
                importer.env[node] = importer.symbols.dim(value)
                sizes.append((i, importer.env[node]))
            else:
                importer.env[node] = value
        except Unsupported as e:
            importer.env[node] = FAILED
            importer.add_problem(loc, "input", e.rule, e.remedy)
    known = {d for n in inputs for d in n.shape if isinstance(d, Sym)}
    for i, size in sizes:
        if isinstance(size, Sym) and size not in known:
            known.add(size)
            inputs.append(importer.pool.input(f"{size.name}_size", TensorType(bool_, (size,))))
            takes.append(lambda args, i=i: carrier(args[i]))  # type: ignore[misc]
    return inputs, takes


def _results(
    importer: Importer, placeholders: Sequence[Any], output: Sequence[Any], values: Sequence[Any]
) -> tuple[list[Node], list[Give]]:
    """One graph output per distinct value; inputs that are results pass by the compiled code."""
    b = Builder(importer.pool)
    position = {node: i for i, node in enumerate(placeholders)}
    outputs: list[Node] = []
    gives: list[Give] = []
    for source, value in zip(output, values, strict=True):
        if source in position:
            gives.append(lambda args, arrays, i=position[source]: args[i])  # type: ignore[misc]
        elif value is None or isinstance(value, bool | int | float):
            gives.append(lambda args, arrays, v=value: v)  # type: ignore[misc]
        else:
            node = as_node(b, value) if isinstance(value, Node | SymFloat) else dim_scalar(b, value, i64)
            if node not in outputs:
                outputs.append(node)
            gives.append(_give(outputs.index(node), isinstance(value, Node), source))
    return outputs, gives


def _give(k: int, is_tensor: bool, source: Any) -> Give:
    if not is_tensor:
        return lambda args, arrays: arrays[k].item()
    order = _stride_order(source.meta["val"])
    if order is None:
        return lambda args, arrays: to_torch(arrays[k])
    back = [order.index(i) for i in range(len(order))]
    return lambda args, arrays: to_torch(arrays[k]).permute(order).contiguous().permute(back)


def _stride_order(fake: Any) -> list[int] | None:
    """The axes from the slowest to the fastest where that is not the row-major order: callers were traced with it."""
    hints = [s if isinstance(s, int) else s.node.hint for s in fake.stride()]
    sizes = [s if isinstance(s, int) else s.node.hint for s in fake.shape]
    if any(h is None for h in (*hints, *sizes)):
        return None
    moving = [i for i in range(len(hints)) if sizes[i] != 1]
    if all(hints[a] >= hints[b] for a, b in itertools.pairwise(moving)):
        return None
    return sorted(range(len(hints)), key=lambda i: -hints[i])
