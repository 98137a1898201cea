"""What a user may hand to ``compile``: telling one kind of source from another.

In: any object. Out: a graph, by the frontend that reads it. Not its business: reading models.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.core.diag import OptionError, name_of, within_memory
from tilewright.core.graph import Graph
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import Array
from tilewright.frontend.onnx import importer as onnx_frontend
from tilewright.frontend.stablehlo import importer as stablehlo_frontend
from tilewright.frontend.tflite.importer import SUFFIX as TFLITE
from tilewright.frontend.tflite.importer import import_tflite, is_tflite
from tilewright.frontend.torch import export as torch_frontend
from tilewright.frontend.torch.examples import have_tensors
from tilewright.runtime.files import FileContent, map_file
from tilewright.runtime.structure import FLAT, Convention

Source = Any
"""A path (``.pt2`` of an exported PyTorch program, ``.mlir`` or ``.mlirbc`` of a StableHLO one, ``.tflite``, else of an
ONNX model), ``bytes``, ``onnx.ModelProto``, ``torch.nn.Module``, a function of tensors,
``torch.export.ExportedProgram``, ``jax.export.Exported`` or ``Graph``. Within the compiler also a file that was read,
``FileContent``, and what was imported before, ``Called``."""

Examples = torch_frontend.Examples

Shapes = Mapping[str, Sequence[int | str]]


@dataclass(frozen=True)
class Called:
    """A graph, how it is called, and the arrays with which its state begins.

    ``complex_inputs`` and ``complex_outputs`` name what the graph has as parts of complex numbers along a last axis.
    """

    graph: Graph
    convention: Convention = FLAT
    start: tuple[Array, ...] = ()
    complex_inputs: frozenset[str] = frozenset()
    complex_outputs: frozenset[str] = frozenset()


def import_source(
    source: Source,
    example_inputs: Examples | None = None,
    dynamic_shapes: Any = None,
    input_shapes: Shapes | None = None,
    fix_dims: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of a source; raises ``ImportFailed`` for a broken model, ``OptionError`` for something else.

    An ONNX model is read with its fixed dimensions known: some have a form for certain sizes only.
    """
    return import_called(source, example_inputs, dynamic_shapes, input_shapes, fix_dims).graph


@within_memory("reading the model")
def import_called(
    source: Source,
    example_inputs: Examples | None = None,
    dynamic_shapes: Any = None,
    input_shapes: Shapes | None = None,
    fix_dims: Mapping[str, int] | None = None,
) -> Called:
    """:func:`import_source`, with how the source is called where that is more than tensors in and tensors out."""
    if isinstance(source, Called):
        return source
    if isinstance(source, str | Path) and Path(source).suffix == ".pt2":
        source = torch_frontend.load_program(Path(source))
    if isinstance(source, FileContent) and Path(source.path).suffix == ".pt2":
        source = torch_frontend.load_program(Path(source.path), source.data)
    module = _stablehlo(source)
    if module is not None:
        found = Called(module.graph, module.convention, (), module.complex_inputs, module.complex_outputs)
        return replace(found, graph=fix_symbols(found.graph, fix_dims or {}))
    found_bytes = _tflite_bytes(source)
    if found_bytes is not None:
        net = import_tflite(*found_bytes)
        return Called(net.graph, Convention(state=net.state), net.start)
    if is_onnx(source):
        return Called(onnx_frontend.import_onnx(source, input_shapes=input_shapes, fix_dims=fix_dims))
    found = _import_sized(source, example_inputs, dynamic_shapes)
    return replace(found, graph=fix_symbols(found.graph, fix_dims or {}))


def is_onnx(source: Source) -> bool:
    """Is the source an ONNX model, or one that is none of the other kinds of file?"""
    if isinstance(source, bytes):
        return not is_tflite(source)
    if isinstance(source, str | Path | FileContent):
        path = source.path if isinstance(source, FileContent) else source
        return Path(path).suffix not in (".pt2", TFLITE, *stablehlo_frontend.SUFFIXES)
    return is_a(source, "onnx", "ModelProto")


def _tflite_bytes(source: Source) -> tuple[bytes, str] | None:
    """The bytes and the name of a TFLite model; None for any other source."""
    if isinstance(source, str | Path) and Path(source).suffix == TFLITE:
        return bytes(map_file(Path(source))[0]), Path(source).stem
    if isinstance(source, FileContent) and Path(source.path).suffix == TFLITE:
        return bytes(source.data), Path(source.path).stem
    if isinstance(source, bytes) and is_tflite(source):
        return source, "model"
    return None


def _stablehlo(source: Source) -> stablehlo_frontend.ImportedModule | None:
    """The program of a StableHLO source; None for any other source."""
    if isinstance(source, str | Path) and Path(source).suffix in stablehlo_frontend.SUFFIXES:
        return stablehlo_frontend.import_file(Path(source))
    if isinstance(source, FileContent) and Path(source.path).suffix in stablehlo_frontend.SUFFIXES:
        return stablehlo_frontend.import_file(Path(source.path), bytes(source.data))
    if is_a(source, "jax.export", "Exported"):
        return stablehlo_frontend.import_exported(source)
    return None


def _import_sized(source: Source, example_inputs: Examples | None, dynamic_shapes: Any) -> Called:
    if isinstance(source, Graph):
        return Called(source)
    if is_a(source, "torch.export", "ExportedProgram"):
        return _called(torch_frontend.import_with_values(source))
    if is_a(source, "torch.nn", "Module"):
        if example_inputs is None:
            raise OptionError(
                "a torch.nn.Module needs example_inputs",
                remedy="compile(module, example_inputs=(x, ...)), or a dict of inputs by name",
            )
        return _called(torch_frontend.import_called(source, example_inputs, dynamic_shapes))
    is_function = callable(source) and not isinstance(source, type)
    if is_function and example_inputs is not None and have_tensors(example_inputs):
        module = torch_frontend.module_of(source)
        name = name_of(source).strip("<>")  # of a lambda
        return _called(torch_frontend.import_called(module, example_inputs, dynamic_shapes, name=name))
    raise _not_a_model(source)


def _not_a_model(source: object) -> OptionError:
    if isinstance(source, type):
        name = source.__qualname__
        return OptionError(f"can't compile the class {name}", remedy=f"make an instance first: {name}(...)")
    if callable(source):
        return OptionError(
            "a function is compiled for examples of its arguments, and none is a torch.Tensor",
            remedy="of tensors: compile(function, (x, ...)), or torch.compile(function, backend='tilewright'); of "
            "NumPy arrays: tilewright.jit(function); of JAX arrays: tilewright.jax.jit(function)",
        )
    return OptionError(
        f"can't compile a {type(source).__module__}.{type(source).__qualname__}",
        remedy="pass an ONNX path, bytes or ModelProto, a torch.nn.Module, a function of tensors, an ExportedProgram, "
        "a StableHLO file, jax.export's Exported or a Graph",
    )


def _called(made: torch_frontend.ImportedProgram) -> Called:
    return Called(made.graph, made.convention, made.start, made.complex_inputs, made.complex_outputs)


def is_a(source: object, module: str, name: str) -> bool:
    """Is ``source`` an instance of ``module.name``, which is looked up only where it is imported already?"""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(source, kind)
