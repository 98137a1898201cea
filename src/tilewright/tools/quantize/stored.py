"""``tilewright.quantize(mode="weights")``: weights in few bits, everything else in f32.

In: a graph, the scheme, data or none. Out: the graph with codes, and what became of each product. Not its business:
which codes there are (``graph.quantize.books``), choosing them (``graph.quantize.weights``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.graph.bits import is_product, why_no_codes
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.facts import array_of, nodes_inside
from tilewright.graph.quantize.recurrent import RECURRENT, opened
from tilewright.graph.quantize.weights import Chosen, QuantizeWeights
from tilewright.tools.quantize.batches import Batch
from tilewright.tools.quantize.report import LayerReport, QuantizeReport
from tilewright.tools.quantize.scheme import Scheme
from tilewright.tools.weights import moments_of

SPARED = "spared as asked"


def stored(
    graph: Graph, scheme: Scheme, batches: Iterable[Batch] | None, spare: Collection[str]
) -> tuple[Graph, QuantizeReport]:
    """The graph whose products read weights as ``scheme.weights`` says, and a report of all its products.

    With data codes are chosen by GPTQ, without they are the nearest. ``OptionError`` for names of layers to spare that
    no such product has.
    """
    few_bits = QuantizeWeights(scheme.weights, scheme.group)
    is_asked = partial(_has_codes, few_bits, spare)
    names = {str(n.loc) for n in nodes_inside(graph) if n.op in RECURRENT}
    graph = FoldConstants().run(opened(graph, is_asked))
    products = {n: m for n in nodes_inside(graph) if (m := few_bits.matrix_of(n)) is not None}
    if unknown := sorted(set(spare) - names - {str(n.loc) for n in products}):
        shown = ", ".join(map(repr, sorted({*names, *(str(n.loc) for n in products)})[:20]))
        raise OptionError(f"there is no layer {unknown[0]!r} to spare", remedy=f"the layers are {shown}")
    spared = {m.ctypes.data for n, m in products.items() if str(n.loc) in spare}
    given = list(batches) if batches is not None else []
    outside = set(graph.nodes())
    operands = [(m, few_bits.operand_of(graph, n)) for n, m in products.items() if n in outside]
    moments, texts = moments_of(graph, operands, given) if batches is not None else ({}, ())
    chosen: list[Chosen] = []
    made = few_bits.run(graph, moments=moments, spared=spared, chosen=chosen)
    errors = {(str(c.loc), c.at): c.sqnr_db for c in chosen}

    def report(node: Node) -> LayerReport:
        name, matrix = str(node.loc), products.get(node)
        if matrix is not None and matrix.ctypes.data not in spared:
            error = errors[name, matrix.ctypes.data]
            return LayerReport(name, node.op.name, f"f32 x {scheme.weights}", sqnr_db=error)
        is_spared = matrix is not None or (node.op in RECURRENT and name in spare)
        why = SPARED if is_spared else why_no_codes(node, few_bits)
        return LayerReport(name, node.op.name, str(node.types[0].dtype), why)

    reports = tuple([report(n) for n in nodes_inside(graph) if is_product(n)])
    return made, QuantizeReport(reports, len(given), texts, options={"mode": scheme.mode, "weights": scheme.weights})


def _has_codes(few_bits: QuantizeWeights, spare: Collection[str], node: Node) -> bool:
    """Do weights of a recurrence that is not spared get codes, those of its inputs or those of its state?"""
    w, r = (array_of(x) for x in node.inputs[1:3])
    if w is None or r is None or str(node.loc) in spare:
        return False
    return not few_bits.why_not(w[0].T) or not few_bits.why_not(r[0].T, r.shape[2])
