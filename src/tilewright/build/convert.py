"""``tw.convert``: a model of any source as a file of another format, for other tools.

In: what ``compile`` takes, a path, and the format. Out: the file. Not its business: how a format spells ops (the
writers of ``frontend``); object files and libraries (``deploy``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.aot.export import ExportOptions, llvm_files
from tilewright.aot.interface import c_name
from tilewright.build.deploy import as_called, build_c, export_modules
from tilewright.build.options import Clock, Options, check_sizes_given
from tilewright.core.diag import CompileError, OptionError
from tilewright.core.graph import Graph
from tilewright.core.passes import run_pipeline
from tilewright.frontend.onnx.writer.model import save_onnx
from tilewright.frontend.source import Called, Examples, Source, import_called
from tilewright.frontend.stablehlo.writer.module import save_stablehlo
from tilewright.frontend.torch.writer.program import save_exported
from tilewright.graph.pipeline import PORTABLE
from tilewright.runtime.files import write_text, writing

SUFFIXES = {".onnx": "onnx", ".mlir": "stablehlo", ".pt2": "torch", ".ll": "llvm", ".c": "c"}
"""The format that a file's name asks for."""
FORMATS = tuple(SUFFIXES.values())


def convert(
    source: Source,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    optimize: bool = False,
    example_inputs: Examples | None = None,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    target: str = "native",
) -> Path:
    """Write a model in another format, and give the file's path.

    Formats are ``"onnx"`` (opset 21), ``"stablehlo"`` (text), ``"torch"`` (a program of ``torch.export``), ``"llvm"``
    (LLVM IR and a C header) and ``"c"`` (C11 and its header).

    The arguments that ``compile`` has mean what they mean there. ``to`` is the format where the suffix of ``path``
    (``.onnx``, ``.mlir``, ``.pt2``, ``.ll``, ``.c``) does not say it. With ``optimize`` a graph goes out as the passes
    leave it that hold for every machine: constants folded, norms in the weights of convolutions. ``target`` is the
    machine of LLVM IR and C, which are always optimised. ``docs/convert.md`` says what each format can hold.

    Raises as ``compile`` does; ``CompileError`` also for each op that the format has no words for, ``FileError`` where
    the file can't be written.
    """
    with writing(path):
        path = Path(path)
    kind = to or SUFFIXES.get(path.suffix)
    if kind not in FORMATS:
        what = f"to={to!r}" if to else f"the suffix of {path.name!r}"
        endings = ", ".join(f"{suffix} ({kind})" for suffix, kind in SUFFIXES.items())
        remedy = f"use one of {', '.join(FORMATS)}" if to else f"end the name in one of {endings}, or name the format"
        raise OptionError(f"{what} is no format to write", remedy=remedy)
    if not path.name:
        raise OptionError(f"the path {str(path)!r} names no file", remedy="give the file's name")
    check_sizes_given(fix_dims, input_shapes)
    called = import_called(source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
    if kind in _CODE:
        beside = path.with_suffix(".h")
        if beside == path:
            raise OptionError(f"{path.name!r} is the name of the header", remedy="give the other file's name")
        text, header = _CODE[kind](called, Options(target), beside)
        with writing(path):
            write_text(path, text)
            write_text(beside, header)
        return path
    _check_stateless(called)
    graph = run_pipeline(called.graph.unchecked(), PORTABLE) if optimize else called.graph
    with writing(path):
        _WRITERS[kind](graph, path)
    return path


def _check_stateless(called: Called) -> None:
    if called.convention.state:
        names = ", ".join(kept.input for kept in called.convention.state)
        raise CompileError(
            f"{called.graph.name!r} keeps {names} from call to call, and a file of another format keeps nothing",
            remedy="pass them as arguments and return them as results",
        )


def _llvm(called: Called, options: Options, header: Path) -> tuple[str, str]:
    """The module and its header, for one thread: a second would need this pool of ours to be wanted."""
    modules = as_called(export_modules(called.graph, options, 1, Clock()), called)
    return llvm_files(modules, ExportOptions(c_name(header.stem)))


_CODE: Mapping[str, Callable[[Called, Options, Path], tuple[str, str]]] = {"llvm": _llvm, "c": build_c}
_WRITERS: Mapping[str, Callable[[Graph, Path], None]] = {
    "onnx": save_onnx, "stablehlo": save_stablehlo, "torch": save_exported,
}  # fmt: skip
