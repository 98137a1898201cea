"""Graphs as ``torch.export`` programs: the importer's way back.

In: a ``Graph``. Out: an ``ExportedProgram`` that computes the same; inputs, several outputs and symbolic dimensions
keep their names. Not its business: what each op is (``writer.table``).

The calls are made twice: on tensors without memory, which finds every op without a form, and as ``torch.export``
traces a module that makes them, which is what writes the program, its ranges of sizes and its guards.
"""

from __future__ import annotations

import inspect
import io
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.core.diag import CompileError, OpError, OptionError, Problem
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, const_of, evaluate, terms_of
from tilewright.core.graph import Graph
from tilewright.core.types import Array, tensor_type_of
from tilewright.frontend.torch.export import export_module
from tilewright.frontend.torch.tensors import to_torch
from tilewright.frontend.torch.writer.table import WRITERS
from tilewright.frontend.torch.writer.values import TorchValues
from tilewright.runtime.files import write_atomically
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_EXAMPLES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Sizes to trace with: ``torch.export`` takes equal sizes for one, and 0 and 1 for special."""


def to_exported(graph: Graph) -> ExportedProgram:
    """``graph`` as a program of ``torch.export``; more than one result is a dictionary by name.

    Raises ``CompileError`` naming every node that PyTorch has no call for.
    """
    try:
        with MAKING:
            import torch  # noqa: F401
    except ImportError as error:
        raise OptionError("PyTorch's programs need PyTorch", remedy='pip install "tilewright[torch]"') from error
    graph = graph.unchecked()
    sizes = _example_sizes(graph)
    constants = _Constants()
    walked = _walked(graph, sizes, constants)
    examples = tuple(_example(walked, node.shape, node.dtype, sizes) for node in graph.inputs)
    dimensions = _dimensions(graph)
    specs = tuple(
        {axis: _dimension(d, dimensions) for axis, d in enumerate(x.shape) if not is_known(d)} for x in graph.inputs
    )
    return export_module(_module(graph, walked, constants), examples, specs if graph.symbols() else None)


def save_exported(graph: Graph, path: Path) -> None:
    """Write :func:`to_exported` to a file, which is whole or not there."""
    program = to_exported(graph)
    import torch

    held = io.BytesIO()
    torch.export.save(program, held)
    write_atomically(path, [held.getvalue()], durable=False)


class _Constants:
    """The names of constants, once each: small ones by what they hold, large ones by which array they are."""

    def __init__(self) -> None:
        self.names: dict[tuple[Any, ...], str] = {}
        self.arrays: dict[str, Array] = {}  # which also keeps arrays, so that none comes to lie where a known one lay

    def name(self, array: Array) -> str:
        """What the constant is called."""
        key = (array.dtype, array.shape, array.tobytes() if array.size <= 1 else id(array))
        if key not in self.names:
            self.names[key] = f"constant_{len(self.names)}"
            self.arrays[self.names[key]] = array
        return self.names[key]


def _walked(graph: Graph, sizes: Mapping[Sym, int], constants: _Constants) -> TorchValues:
    """The steps that compute the graph; ``CompileError`` with every node that has none."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()):

        def stored(array: Array) -> torch.Tensor:
            constants.name(array)
            return made.empty(tensor_type_of(array))

        made = TorchValues(graph, WRITERS, stored, ())
        problems: list[Problem] = []
        for name, node in zip(graph.input_names, graph.inputs, strict=True):
            try:
                made.give(node, _example(made, node.shape, node.dtype, sizes))
            except OpError as e:
                problems.append(Problem(node.loc, f"input {name!r}", e.message, e.remedy))
                made.give_values(node, ("",))
        problems += made.write(graph.nodes())
        for _, node in graph.results() if not problems else ():  # constants among them are asked for here
            made.value(node)
    if problems:
        raise CompileError(f"{graph.name!r} can't be written as a PyTorch program", problems)
    return made


def _example(w: TorchValues, shape: Sequence[Dim], dtype: Any, sizes: Mapping[Sym, int]) -> torch.Tensor:
    known = [evaluate(d, sizes) for d in shape]
    made: torch.Tensor = w.torch.zeros(known, dtype=w.dtype(dtype))
    return made


def _module(graph: Graph, walked: TorchValues, constants: _Constants) -> torch.nn.Module:
    """A module whose ``forward`` takes the walked steps, with arguments named as the graph's inputs."""
    import torch

    module = torch.nn.Module()
    for name, array in constants.arrays.items():
        module.register_buffer(name, to_torch(array))
    named = _identifiers(name for name, _ in graph.results())
    results = [(name, node) for name, (_, node) in zip(named, graph.results(), strict=True)]

    def stored(array: Array) -> torch.Tensor:
        found: torch.Tensor = getattr(module, constants.name(array))
        return found

    def forward(*given: torch.Tensor) -> Any:
        made = TorchValues(graph, WRITERS, stored, given, walked.plans)
        made.replay(walked)
        found = {name: made.value(node) for name, node in results}
        return next(iter(found.values())) if len(results) == 1 else found

    _called_by_name(forward, _identifiers(graph.input_names))
    module.forward = forward
    return module


def _called_by_name(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Let ``torch.export``, which reads signatures, call arguments by these names."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


def _identifiers(names: Iterable[str]) -> list[str]:
    """Names that Python, and the functions that PyTorch prints, can have for these: no two are the same."""
    made: list[str] = []
    for name in names:
        stem = re.sub(r"\W", "_", name)
        if not stem.isidentifier() or keyword.iskeyword(stem) or stem == "self":
            stem = f"_{stem}"
        found = (stem if k == 0 else f"{stem}_{k}" for k in count())
        made.append(next(n for n in found if n not in made))
    return made


# --- symbolic sizes -------------------------------------------------------------------------------------------------


def _example_sizes(graph: Graph) -> dict[Sym, int]:
    """A size for each symbol, within its bounds and of its own where that is possible."""
    found: dict[Sym, int] = {}
    for k, s in enumerate(graph.symbols()):
        size = max(_EXAMPLES[k % len(_EXAMPLES)], s.lo or 0)
        found[s] = size if s.hi is None else min(size, s.hi)
    return found


def _dimensions(graph: Graph) -> dict[Sym, Any]:
    """``torch.export``'s dimension of each symbol, with a name and bounds; ``None`` for a symbol of one size."""
    from torch.export import Dim as TorchDim

    symbols = graph.symbols()
    return {
        s: None if s.lo == s.hi and s.hi is not None else TorchDim(name, min=s.lo or 0, max=s.hi)
        for s, name in zip(symbols, _identifiers(s.name for s in symbols), strict=True)
    }


def _dimension(d: Dim, known: Mapping[Sym, Any]) -> Any:
    """The spec of a size: a dimension, a multiple of one and more, or what ``torch.export`` finds out."""
    from torch.export import Dim as TorchDim

    if isinstance(d, Sym):
        return known[d] or TorchDim.STATIC
    terms = terms_of(d)
    if len(terms) == 1 and isinstance(terms[0][0], Sym) and terms[0][1] > 0 and known[terms[0][0]]:
        return terms[0][1] * known[terms[0][0]] + const_of(d)
    return TorchDim.AUTO
