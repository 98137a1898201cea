"""In which type each op of an optimised graph computes, and why it is not in fewer bits.

In: the graph as its kernels will compute it, and the precision that was asked for. Out: ``ComputedType``s. Not its
business: choosing types (``forms.integers``, ``forms.coded``, ``quantize``), showing them (``runtime.python.report``).

The reason is read off the graph: whether what an op reads was bytes before arithmetic, whether its result becomes
bytes, whether weights are known. So it says what is so, also of models that another tool quantised.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import CONST, INPUT, PROJ, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import DType
from tilewright.graph.forms.scans import SCANS
from tilewright.graph.quantize.recurrent import RECURRENT, why_whole
from tilewright.graph.quantize.weights import QuantizeWeights, weights_at_places

BYTES, HALF_WORDS = (types.i8, types.u8), (types.i16, types.u16)
MOVES = (ops.reshape, ops.transpose, ops.pad, ops.slice, ops.expand)


class ComputedType(NamedTuple):
    """An op, the types that it multiplies, or reads where it is no product, and why it has no fewer bits."""

    op: str
    type: str
    why: str = ""


def computed_types(graph: Graph, few_bits: QuantizeWeights | None = None) -> dict[ComputedType, list[str]]:
    """Where the ops of each type come from, those of graphs inside the graph too, in order of the first of each.

    ``few_bits`` is what was asked for weights.
    """
    found: dict[ComputedType, list[str]] = {}
    for made, node in _computed(graph, few_bits):
        found.setdefault(made, []).append(str(node.loc))
    return found


def _computed(graph: Graph, few_bits: QuantizeWeights | None) -> Iterator[tuple[ComputedType, Node]]:
    nodes = graph.nodes()
    stored = _become_bytes(nodes)
    of_bytes, of_words = _made_of(nodes, BYTES), _made_of(nodes, HALF_WORDS)
    has_bytes = any(x.dtype in BYTES for node in nodes if node.op is not CONST for x in node.types)
    for node in nodes:
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from _computed(value, few_bits)
        if node.op in (CONST, INPUT, PROJ):
            continue
        if is_product(node):
            yield ComputedType(node.op.name, _multiplied(node), _why(node, few_bits, of_bytes, of_words)), node
        else:
            read = dict.fromkeys(x.dtype.name for x in node.inputs if x.op is not CONST)
            why = _why_floats(node, stored, of_bytes, has_bytes)
            yield ComputedType(node.op.name, " ".join(read) or node.types[0].dtype.name, why), node


def is_product(node: Node) -> bool:
    """Does it multiply one operand by another, and sum up: once, or at every step of a recurrence?"""
    return (Trait.CONTRACTION in node.op.traits and len(node.inputs) > 1) or node.op in (*RECURRENT, *SCANS)


def _multiplied(node: Node) -> str:
    x, w = node.inputs[:2]
    if node.op is ops.coded_matmul:
        rows = "f32 as two bf16" if node.attrs["split_rows"] else "f32 in 16 bits"
        return f"{rows} x {node.attrs['bits']}-bit {'levels' if node.attrs['levels'] else 'codes'}"
    if node.op is ops.scaled_matmul:
        return f"f32 x {node.attrs['dtype']}"
    return f"{x.dtype} x {w.dtype}"


def _why(node: Node, few_bits: QuantizeWeights | None, of_bytes: Container[Node], of_words: Container[Node]) -> str:
    """Why a product has not fewer bits; empty for products of bytes."""
    x, w = node.inputs[:2]
    if node.op in (ops.coded_matmul, ops.scaled_matmul):
        return "only weights were asked for in few bits"
    if x.dtype in BYTES or w.dtype in BYTES:
        return "" if node.op is not ops.winograd_conv else "tiles of 16 bits take fewer products, of the same integers"
    left, right = x in of_bytes, w in of_bytes
    if left and w.op is CONST and node.op is ops.conv and node.attrs["groups"] > 1:
        return "its few products of bytes have exact sums in floats"
    if left and (right or w.op is CONST):
        return _why_no_integers(node)
    if x in of_words:
        return "what it reads was stored in 16 bits, and two products of bytes are not faster or not made"
    if few_bits is not None:
        return why_no_codes(node, few_bits)
    if left or right:
        return "one of its operands is no tensor of bytes"
    if w.op is not CONST:
        return "both operands are made by the call: no weights could be stored in fewer bits"
    ways = "tilewright.quantize" if node.op is ops.conv else "tilewright.quantize or precision=int8"
    return f"the model has {x.dtype} here: {ways} would store fewer bits"


def _become_bytes(nodes: Sequence[Node]) -> set[Node]:
    """What is rounded to bytes, and what only arithmetic on its elements lies between that and."""
    found: set[Node] = set()
    for node in reversed(nodes):
        is_rounding = node.op is ops.quantize_linear or (node.op is ops.cast and node.dtype in BYTES)
        is_between = node in found and (Trait.ELEMENTWISE in node.op.traits or node.op in MOVES)
        if is_rounding or is_between:
            found.update(x for x in node.inputs if x.op is not CONST and x.dtype.is_float)
    return found


def _why_floats(node: Node, stored: Container[Node], of_bytes: Container[Node], has_bytes: bool) -> str:
    """Why an op that is no product computes in floats; empty for one that does not."""
    varying = [x for x in node.inputs if x.op is not CONST]
    if not any(x.dtype.is_float for x in varying or node.types):
        return ""
    if node in stored or node.types[0].dtype in BYTES:
        return "it scales, limits or rounds numbers that are stored in bytes behind it"
    if any(x in of_bytes for x in varying):
        return "it computes what has no form in bytes, of numbers that were stored in bytes"
    if not has_bytes:
        read = varying[0].dtype if varying else node.types[0].dtype
        return f"the model has {read} here, and computes nothing in bytes"
    return "no product multiplies its result alone, so that this is not stored in bytes"


def _why_no_integers(node: Node) -> str:
    if node.op not in (ops.conv, ops.matmul):
        return f"{node.op.name} has no form in integers"
    return "its scales are no factors of the result, its sums might not fit 32 bits, or sums of floats were asked for"


def why_no_codes(node: Node, asked: QuantizeWeights) -> str:
    """Why weights have no codes, though they were asked for."""
    w = node.inputs[1]
    if node.op in RECURRENT:
        return why_whole(node) or "neither the inputs' weights nor the state's have whole groups and words of codes"
    if node.op is ops.conv and w.op is CONST:
        return _why_no_coded_weights(node, asked)
    if node.op is not ops.matmul and node.op not in SCANS:
        return f"codes are for matrix products, and this is {node.op.name}"
    if w.op is not CONST:
        return "both operands are made by the call: there are no weights"
    if w.type.rank != 2:
        return "its weights are a batch of matrices"
    weights = w.attrs["data"].array
    return asked.why_not(weights, len(weights) if node.op in SCANS else 0)


def _why_no_coded_weights(node: Node, asked: QuantizeWeights) -> str:
    """Why a convolution's weights have no codes."""
    matrix = weights_at_places(node)
    if matrix is not None:
        return asked.why_not(matrix)
    return (
        "it reads each weight at many places, where codes would take longer than f32: "
        "tilewright.quantize multiplies it in bytes with mode='dynamic' or 'static'"
    )


def _made_of(nodes: Sequence[Node], kinds: tuple[DType, ...]) -> set[Node]:
    """Tensors that were integers of these kinds before casts, arithmetic with constants and moves."""
    found: set[Node] = set()
    for node in nodes:
        if node.op is ops.cast and node.inputs[0].dtype in kinds:
            found.add(node)
        elif node.op is ops.dequantize_linear:
            found.update([node] if node.inputs[0].dtype in kinds else [])
        elif Trait.ELEMENTWISE in node.op.traits or node.op in MOVES:
            varying = [x for x in node.inputs if x.op is not CONST]
            found.update([node] if len(varying) == 1 and varying[0] in found else [])
    return found
