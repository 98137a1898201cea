"""The pass ``fourier-lengths``: Fourier transforms of lengths that each call decides, by a library or as products.

In: a graph with ``fourier``. Out: an equal graph where those of other lengths are ``fourier_library``, or without
a library the products of ``ops.fourier_chirp``. Not its business: known lengths (``forms.fourier``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, rewrite
from tilewright.graph.forms.fourier import TRANSPOSE_OF_TRANSPOSE, along
from tilewright.ops.fourier_library import SIGNS


@dataclass(frozen=True)
class FourierLengths(Pass):
    """Gives each transform of a symbolic length to a library, where its axis lies, if it ``has_library``.

    It does not fire on known lengths, which have forms of their own.
    """

    name: ClassVar[str] = "fourier-lengths"
    has_library: bool = False

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        if not any(map(_is_symbolic, graph.nodes())):
            return graph
        if not self.has_library:
            rule = Rule("by-chirp", (ops.fourier,), _by_chirp, "the op's own definition")
            return rewrite(graph, (rule,), journal)
        rule = Rule("by-library", (ops.fourier,), _by_library, "both mean the same")
        along = Rule("symbolic-along-an-axis", (ops.fourier,), _along, "an axis may lie anywhere")
        return rewrite(graph, (along, rule, TRANSPOSE_OF_TRANSPOSE), journal)


def _is_symbolic(node: Node) -> bool:
    return node.op is ops.fourier and not is_known(node.attrs["n"])


def _by_chirp(b: Rewriting, node: Node) -> Node | None:
    assert ops.fourier.decompose is not None
    made = ops.fourier.decompose(b, node.inputs, node.attrs) if _is_symbolic(node) else None
    return None if isinstance(made, tuple) else made


def _along(b: Rewriting, node: Node) -> Node | None:
    return along(b, node) if _is_symbolic(node) else None


def _by_library(b: Rewriting, node: Node) -> Node | None:
    """Signs that libraries do not have are those of conjugates."""
    if not _is_symbolic(node):
        return None
    a, (x,) = node.attrs, node.inputs
    is_other = a["sign"] not in SIGNS[a["form"]]
    if is_other and a["form"] == "hermitian":
        x = _conjugate(b, x)
    sign = -a["sign"] if is_other else a["sign"]
    made = b(ops.fourier_library, x, n=a["n"], sign=sign, form=a["form"], inner=a["inner"])
    if is_other and a["form"] == "real":
        made = _conjugate(b, made)
    return made if a["scale"] == 1 else b(ops.mul, made, b.const(a["scale"], made.dtype))


def _conjugate(b: Rewriting, x: Node) -> Node:
    return b(ops.mul, x, b.const(np.array([1.0, -1.0]), x.dtype))
