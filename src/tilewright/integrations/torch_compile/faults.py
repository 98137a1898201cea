"""What becomes of errors of ours under ``torch.compile``: a folder for a report, and a piece that PyTorch runs instead.

In: an error that is no refusal, with the calls and the graph that it came of. Out: a ``Problem`` that names the error
and the folder, or, where nothing may fall back, an ``InternalError``.
Not its business: running the calls (``torch_compile.plan``), and refusals, which name the user's call and a remedy.
"""

from __future__ import annotations

import platform
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core.diag import CompileError, OptionError, Problem, VerifyError
from tilewright.core.graph import Graph
from tilewright.core.text import SideTable, print_graph
from tilewright.core.types import Array
from tilewright.frontend.torch.fx.locations import location_of
from tilewright.runtime.env import read_environment
from tilewright.runtime.files import replacing, write_text

HOW_TO_REPORT = "this is a mistake of Tilewright's, not yours: please report it and attach that folder"
KEPT_BYTES = 1 << 16
"""Of a constant: a larger one is written as zeros, since a model's weights belong to its owner."""


class InternalError(CompileError):
    """The compiler failed on a captured graph, and nothing may fall back to PyTorch; the cause is chained to it."""

    code = "TW0208"


def is_refusal(error: Exception) -> bool:
    """Was the error raised on purpose, to tell the user of a call that has no form or of an option?"""
    return isinstance(error, CompileError | OptionError) and not isinstance(error, VerifyError | InternalError)


@dataclass(frozen=True)
class Faults:
    """Where the errors of one captured graph go. ``strict`` raises them."""

    functional: Any
    strict: bool

    def of_call(self, error: Exception, node: Any) -> Problem:
        """Why PyTorch runs a call whose converter failed."""
        return self.problem(error, [node])

    def problem(self, error: Exception, nodes: Sequence[Any], graph: Graph | None = None) -> Problem:
        """Why PyTorch runs ``nodes``. ``graph`` is what was compiled, where the error came after importing."""
        place = self._write(error, graph)
        rule = f"the compiler failed with {type(error).__name__}: {first_line(error)}; {place}"
        problem = self.about(nodes, rule, HOW_TO_REPORT)
        if self.strict:
            raise InternalError("the compiler failed on a captured graph", [problem]) from error
        return problem

    def about(self, nodes: Sequence[Any], rule: str, remedy: str = "") -> Problem:
        """A reason that ``nodes`` have in common, at the first of them."""
        first = nodes[0] if nodes else next(iter(self.functional.graph.nodes))
        others = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
        return Problem(location_of(first), f"{first.target}{others}", rule, remedy)

    def _write(self, error: Exception, graph: Graph | None) -> str:
        """Write what a report needs; say where it is."""
        try:
            root = read_environment().dump
            if root is not None:
                Path(root).mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="tilewright-fault-", dir=root))
            write_text(folder / "error.txt", _error_text(error))
            write_text(folder / "inputs.txt", _inputs_text(self.functional))
            write_text(folder / "fx.py", self.functional.print_readable(print_output=False))
            if graph is not None:
                _write_graph(graph, folder)
        except Exception as e:  # a report is a courtesy: whatever stops it must not stop the program
            return f"a report could not be written ({type(e).__name__}: {first_line(e)})"
        return f"a report is in {folder}"


def first_line(error: Exception) -> str:
    """Of its text; empty where it has none."""
    return next(iter(str(error).splitlines()), "")


def _error_text(error: Exception) -> str:
    versions = [f"{name} {version(name)}" for name in ("tilewright", "torch", "numpy", "llvmlite")]
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return "\n".join([*versions, system, "", *traceback.format_exception(error)])


def _inputs_text(functional: Any) -> str:
    """A line for each input: its name, dtype, shape and strides."""
    lines = []
    for node in functional.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val", node.meta.get("example_value"))  # of AOTAutograd, or of Dynamo
            is_tensor = hasattr(value, "stride")
            what = f"{value.dtype} {list(value.shape)} strides {list(value.stride())}" if is_tensor else repr(value)
            lines.append(f"{node.name}: {what}")
    return "\n".join(lines) + "\n"


def _write_graph(graph: Graph, folder: Path) -> None:
    """The graph's text, which ``tilewright compile`` takes, with its constants beside it."""
    table = SideTable()
    write_text(folder / "graph.txt", print_graph(graph, table))
    kept: dict[str, Any] = {name: _kept(a) for name, a in table.arrays.items()}
    if kept:
        with replacing(folder / "graph.npz") as file:
            np.savez_compressed(file, **kept)


def _kept(constant: Array) -> Array:
    """The bytes of a constant, or as many zeros."""
    if constant.nbytes > KEPT_BYTES:
        return np.zeros(constant.nbytes, np.uint8)
    return np.frombuffer(constant.tobytes(), np.uint8)
