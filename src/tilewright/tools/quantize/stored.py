"""``tilewright.quantize(mode="weights")``: weights in few bits, everything else in f32.

In: a graph, the scheme, data or none. Out: the graph with codes, and what became of each product. Not its business:
which codes there are (``graph.quantize.books``), choosing them (``graph.quantize.weights``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import Trait
from tilewright.graph.bits import why_no_codes
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
    products = {n: m for n in graph.nodes() if (m := few_bits.matrix_of(n)) is not None}
    if unknown := sorted(set(spare) - {str(n.loc) for n in products}):
        shown = ", ".join(repr(str(n.loc)) for n in list(products)[:20])
        raise OptionError(f"there is no layer {unknown[0]!r} to spare", remedy=f"the layers are {shown}")
    spared = {m.ctypes.data for n, m in products.items() if str(n.loc) in spare}
    given = list(batches) if batches is not None else []
    operands = [(m, n.inputs[0]) for n, m in products.items()]
    moments, texts = moments_of(graph, operands, given) if batches is not None else ({}, ())
    chosen: list[Chosen] = []
    made = few_bits.run(graph, moments=moments, spared=spared, chosen=chosen)
    errors = {(str(c.loc), c.at): c.sqnr_db for c in chosen}

    def report(node: Node) -> LayerReport:
        name, matrix = str(node.loc), products.get(node)
        if matrix is not None and matrix.ctypes.data not in spared:
            error = errors[name, matrix.ctypes.data]
            return LayerReport(name, node.op.name, f"f32 x {scheme.weights}", sqnr_db=error)
        why = SPARED if matrix is not None else why_no_codes(node, few_bits)
        return LayerReport(name, node.op.name, str(node.types[0].dtype), why)

    reports = tuple([report(n) for n in graph.nodes() if Trait.CONTRACTION in n.op.traits and len(n.inputs) > 1])
    return made, QuantizeReport(reports, len(given), texts, options={"mode": scheme.mode, "weights": scheme.weights})
