"""Graphs as the text of StableHLO modules.

In: a ``Graph`` whose sizes are all numbers. Out: the text of a module with one function ``main``, whose arguments and
results keep their names. Not its business: what each op is (``writer.table``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tilewright.core.diag import CompileError, OpError, Problem
from tilewright.core.graph import Graph
from tilewright.frontend.stablehlo.writer.lines import HloLines, HloValue, type_text
from tilewright.frontend.stablehlo.writer.table import WRITERS
from tilewright.runtime.files import write_text


def to_stablehlo(graph: Graph) -> str:
    """``graph`` as a StableHLO module with CHLO's functions; ``CompileError`` names every node without a form."""
    graph = graph.unchecked()
    symbols = [str(s) for s in graph.symbols()]
    if symbols:
        raise CompileError(
            f"the sizes {', '.join(symbols)} of {graph.name!r} are symbolic, and StableHLO is written for fixed ones",
            remedy=f"fix them: fix_dims={{{symbols[0]!r}: 1}}, or --fix {symbols[0]}=1",
        )
    arguments = [HloValue(f"%arg{k}", x.type) for k, x in enumerate(graph.inputs)]
    lines = HloLines(graph, WRITERS, arguments)
    problems = lines.write(graph.nodes())
    # An input's dtype may have no form either: it is told together with the nodes, so that one attempt says all.
    try:
        inputs = [
            f"{v.name}: {type_text(v.type)} loc({json.dumps(name)})"
            for v, name in zip(arguments, graph.input_names, strict=True)
        ]
    except OpError as e:
        problems.append(Problem(graph.inputs[0].loc, "input", e.message, e.remedy))
    if problems:
        raise CompileError(f"{graph.name!r} can't be written as StableHLO", problems)
    results = [lines.value(node) for _, node in graph.results()]
    kinds = [type_text(v.type) for v in results]
    # JAX calls results by this attribute, so that a round trip keeps their names.
    named = [
        f"{kind} {{jax.result_info = {json.dumps(f'result.{name}')}}}"
        for kind, (name, _) in zip(kinds, graph.results(), strict=True)
    ]
    head = f"func.func public @main({', '.join(inputs)}) -> ({', '.join(named)}) {{"
    end = f"return {', '.join(v.name for v in results)} : {', '.join(kinds)}"
    name = re.sub(r"\W+", "_", graph.name) or "graph"
    return "\n".join([f"module @{json.dumps(name)} {{", head, *lines.lines, end, "}", "}", ""])


def save_stablehlo(graph: Graph, path: Path) -> None:
    """Write :func:`to_stablehlo` to a file."""
    write_text(path, to_stablehlo(graph))
