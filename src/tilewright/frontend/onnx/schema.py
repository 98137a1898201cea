"""What the onnx package's own schemas say of a node, and the ops that ONNX defines by other ops.

In: a node, its opset and operand types. Out: a refusal of nodes that break their schema, function bodies, the words for
ops that nothing supports, and what a node reads. Not its business: converting nodes (``onnx.walk``).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.frontend.onnx.call import Items, Refused, Value
from tilewright.frontend.onnx.file import ELEMENT_TYPES
from tilewright.frontend.onnx.table import CONVERTERS, REFUSED

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

_CODES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}
_ATTRIBUTE_KINDS = "UNDEFINED FLOAT INT STRING TENSOR GRAPH FLOATS INTS STRINGS TENSORS GRAPHS".split()


def check_schema(node: NodeProto, domain: str, opset: int, attributes: Mapping[str, AttributeProto]) -> Any | None:
    """ONNX's own schema of the node when it has one; raises ``Refused`` when the node breaks it."""
    from onnx import defs

    try:
        schema = defs.get_schema(node.op_type, opset, domain)
    except defs.SchemaError:
        return None
    n = len(node.input)
    if not schema.min_input <= n <= schema.max_input:
        raise Refused(f"takes {schema.min_input} to {schema.max_input} operands, got {n}")
    if not len(node.output) <= schema.max_output:
        raise Refused(f"gives at most {schema.max_output} results, got {len(node.output)}")
    for name, a in attributes.items():
        known = schema.attributes.get(name)
        if known is None:
            near = difflib.get_close_matches(name, schema.attributes, 1)
            raise Refused(f"unknown attribute {name}", f"did you mean {near[0]}?" if near else "")
        kind: Any = known.type
        if int(kind.value) != a.type and a.type < len(_ATTRIBUTE_KINDS):
            raise Refused(f"attribute {name} is of kind {_ATTRIBUTE_KINDS[a.type]}, not {kind.name}")
    return schema


def has_body(schema: Any) -> bool:
    """Does ONNX define the op by other ops?"""
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(
    schema: Any,
    node: NodeProto,
    opset: int,
    operands: Sequence[Value | None],
    attributes: Mapping[str, AttributeProto],
    base: int,
) -> FunctionProto | None:
    """The function that ONNX defines the op by, for these operand types; ``base`` is the model's default opset."""
    from onnx import FunctionProto, NodeProto

    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        if not versions:
            return None
        data = schema.get_function_with_opset_version(max(versions))
        return _with_opset(FunctionProto.FromString(data), base)
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        return None
    plain = NodeProto(op_type=node.op_type, domain=node.domain, input=list(node.input), output=list(node.output))
    plain.attribute.extend(attributes.values())
    types = [_type_proto(v) for v in operands]
    data = schema.get_context_dependent_function_with_opset_version(max(versions), plain.SerializeToString(), types)
    return _with_opset(FunctionProto.FromString(data), base) if data else None


def _with_opset(function: FunctionProto, opset: int) -> FunctionProto:
    if all(o.domain for o in function.opset_import):
        function.opset_import.add(domain="", version=opset)
    return function


def _type_proto(value: Value | None) -> bytes:
    from onnx import TypeProto

    proto = TypeProto()
    if isinstance(value, Items):
        element = TypeProto.FromString(_type_proto(value.nodes[0] if value.nodes else None))
        proto.sequence_type.elem_type.CopyFrom(element)
    if isinstance(value, Node):
        proto.tensor_type.elem_type = _CODES[value.dtype]
        shape = proto.tensor_type.shape
        for d in value.shape:
            dim = shape.dim.add()
            if is_known(d):
                dim.dim_value = d
    return bytes(proto.SerializeToString())


def unsupported(node: NodeProto, domain: str, opset: int) -> Refused:
    """Says what is missing, with the reason or the nearest supported op."""
    reason = REFUSED.get((domain, node.op_type))
    if reason:
        return Refused(reason[0] + written(node), reason[1])
    same_domain = [op for d, op in CONVERTERS if d == domain]
    near = difflib.get_close_matches(node.op_type, same_domain, 1, 0.6)
    remedy = f"nearest supported form: {near[0]}" if near else "express it by supported ops when exporting"
    if domain == "com.microsoft":
        remedy = "export the model without ONNX Runtime's graph optimisations (they write fused ops)"
        remedy += f"; nearest supported form: {near[0]}" if near else ""
    rule = f'no converter for op {node.op_type} of domain "{domain or "ai.onnx"}" at opset {opset}'
    return Refused(rule + written(node), remedy)


def written(node: NodeProto) -> str:
    """The node's attributes as a note at the end of a rule, shortened; empty when it has none."""
    names = [a.name for a in node.attribute]
    return f" (attributes: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''})" if names else ""


def without_operands(node: NodeProto, absent: set[str]) -> NodeProto:
    """The node with operands that the caller left out made empty, and likewise results never set."""
    if absent.isdisjoint(node.input):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    for k, name in enumerate(copy.input):
        if name in absent:
            copy.input[k] = ""
    return copy


def names_read(node: NodeProto) -> set[str]:
    """Names that the node reads, and those that its sub-graphs read from outside."""
    graphs = [g for a in node.attribute for g in ([a.g] if a.type == 5 else a.graphs)]
    return set(filter(None, node.input)).union(*map(_names_from_outside, graphs))


def _names_from_outside(graph: GraphProto) -> set[str]:
    """A name that the graph binds itself is its own, even where a node outside gives that name, too."""
    read = {o.name for o in graph.output}.union(*map(names_read, graph.node))
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {t.values.name for t in graph.sparse_initializer}
    return read - own.union(*(n.output for n in graph.node))
