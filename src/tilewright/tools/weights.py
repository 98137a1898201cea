"""``tilewright.quantize_weights``: weights of few bits that keep the results for a user's data.

In: a model and data. Out: a graph to compile, whose products read codes. Not its business: codes without data
(``precision="int4"``), arithmetic of few bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.build.driver import compile_graph
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import run_pipeline
from tilewright.core.types import Array
from tilewright.frontend.source import import_source
from tilewright.graph.quantize.books import BOOKS
from tilewright.graph.quantize.recurrent import OPENING
from tilewright.graph.quantize.weights import METHODS, QuantizeWeights
from tilewright.runtime.errors import InputError
from tilewright.tools.quantize.measure import check_finite, nothing, says_nothing, showing, warn_of


def quantize_weights(
    source: Any,
    data: Iterable[Any],
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    bits: int = 4,
    codes: str | None = None,
    group: int = 32,
    method: str = "gptq",
) -> Graph:
    """A model with products whose weights are codes, chosen for ``data``; ``compile`` takes it.

    Codes are integers of ``bits``, or what ``codes`` names: ``"int8"``, ``"int4"``, the code books ``"nf4"`` and
    ``"fp4"`` (E2M1), or small floats: ``"fp8"`` (E4M3), ``"fp8e5m2"``, ``"fp16"``.
    ``method`` "gptq" rounds one weight after the other and moves its error to those that are left; "awq" scales
    weights by the power of their inputs' sizes that leaves the least error, and divides the inputs by that.

    ``source``, ``example_inputs`` and ``dynamic_shapes`` are as for ``compile``. ``data`` gives the arguments of calls,
    each a sequence or, by name, a dict; a few hundred rows per weight matrix are enough. What is kept of them is a
    matrix f64[K, K] for every product that sums over K. Warns with ``CalibrationWarning`` naming tensors that are
    constant in all data. ``OptionError`` for other bits, codes or methods and odd groups; ``InputError`` for data that
    are empty, hold numbers that are not finite, or don't fit the model.
    """
    chosen = f"int{bits}" if codes is None else codes
    if chosen not in BOOKS:
        what = f"bits={bits!r:.40}" if codes is None else f"codes={codes!r:.40}"
        raise OptionError(f"{what} is not offered", remedy=f"use one of {', '.join(BOOKS)}, or bits=4 or 8")
    size: object = group
    if not isinstance(size, int) or size < 1 or size % 2:
        raise OptionError(f"group={group!r:.40} is not offered", remedy="use 32, 64 or 128")
    if method not in METHODS:
        raise OptionError(f"method={method!r:.40} is not offered", remedy=f"use one of {', '.join(METHODS)}")
    graph = run_pipeline(import_source(source, example_inputs, dynamic_shapes), OPENING)
    plain = QuantizeWeights(chosen, group)
    found = [(m, plain.operand_of(graph, n)) for n in graph.nodes() if (m := plain.matrix_of(n)) is not None]
    moments, texts = moments_of(graph, found, data)
    warn_of(texts)
    return plain.run(graph, moments=moments, method=method)


def moments_of(
    graph: Graph, found: Sequence[tuple[Array, Node]], data: Iterable[Any]
) -> tuple[dict[int, Array], tuple[str, ...]]:
    """The sums f64[K, K] of ``x x^T`` over all left operands of each matrix, by the matrix's address; and warnings.

    ``InputError`` naming the batch and the tensor for numbers that are not finite, and for no data at all.
    """
    if not isinstance(data, Iterable):
        remedy = "give a list of calls' arguments"
        raise InputError(f"calibration data can't be a {type(data).__qualname__}", remedy=remedy)
    operands = list(dict.fromkeys(x for _, x in found))
    watched = compile_graph(showing(graph, operands))
    sums: list[Any] = [np.zeros((x.shape[-1],) * 2) for x in operands]
    ends, n = [(np.inf, -np.inf)] * len(operands), 0
    for n, given in enumerate(data, 1):
        results = watched(**given) if isinstance(given, Mapping) else watched(*given)
        named = given.items() if isinstance(given, Mapping) else zip(_names(graph), given, strict=True)
        for name, array in named:
            check_finite(np.asarray(array), f"input {name!r}", n, np.asarray(array).dtype.kind == "f")
        for k, x in enumerate(results if isinstance(results, tuple) else (results,)):
            rows = np.asarray(x, np.float64).reshape(-1, len(sums[k]))
            check_finite(rows, f"the result of {operands[k].loc}", n, is_float=True)
            sums[k] += rows.T @ rows
            ends[k] = min(ends[k][0], rows.min(initial=np.inf)), max(ends[k][1], rows.max(initial=-np.inf))
    if n == 0 or any(low > high for low, high in ends):
        raise nothing()
    by_operand = dict(zip(operands, sums, strict=True))
    moments: dict[int, Array] = {}
    for matrix, x in found:
        at = matrix.ctypes.data
        moments[at] = moments[at] + by_operand[x] if at in moments else by_operand[x]
    return moments, tuple(says_nothing(x, low) for x, (low, high) in zip(operands, ends, strict=True) if low == high)


def _names(graph: Graph) -> list[str]:
    return [x.attrs["name"] for x in graph.inputs]
