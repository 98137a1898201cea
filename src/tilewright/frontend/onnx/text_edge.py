"""The nodes of an ONNX model that read text, apart from the rest: Python runs them, and compiled code gets numbers.

In: a parsed model. Out: a ``TextEdge``, or None where text lies between nodes that compute numbers, or where a node
that reads text has no function here. Not its business: compiling the rest, and calls (``runtime.python.text_model``).

Text comes in as an input or a constant. A node belongs to the edge if all that it reads is text; what it makes is text
for other nodes of the edge and for outputs, or numbers, which become inputs of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import ImportFailed, Loc, OpError, Problem
from tilewright.core.types import Array
from tilewright.frontend.onnx.file import STRING, Source, fixed_size
from tilewright.runtime.fields import FieldError
from tilewright.runtime.texts import Dims, TextNode, TextPart, array_fields, text_node

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

BOOL, INT64, FLOAT = 9, 7, 1
"""Codes of element types."""


@dataclass(frozen=True)
class TextEdge:
    """A model in two parts. ``rest`` is None where nothing but text is computed."""

    part: TextPart
    rest: Source | None


def text_edge_of(source: Source) -> TextEdge | None:
    """The model in two parts; ``ImportFailed`` for a node of the edge whose attributes can't be."""
    return _TextSplit(source).made()


@dataclass
class _TextSplit:
    """One walk over the main graph: ``text`` are the names of text, ``numbers`` those of numbers made of it."""

    source: Source
    text: dict[str, Dims] = field(default_factory=dict)
    numbers: dict[str, tuple[int, Dims]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[TextNode] = field(default_factory=list)
    others: list[NodeProto] = field(default_factory=list)

    def made(self) -> TextEdge | None:
        graph = self.source.model.graph
        initial = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        inputs = [i for i in graph.input if i.name not in initial]
        texts = {i.name: _dims(i.type.tensor_type) for i in inputs if i.type.tensor_type.elem_type == STRING}
        self.text.update(texts)
        for tensor in graph.initializer:
            if tensor.data_type == STRING:
                self._constant(tensor.name, _text_of(tensor))
        if not all(self._node(node) for node in graph.node) or not self.nodes:
            return None
        names = [v.name for v in (*graph.input, *graph.output)] + [*self.text, *self.numbers]
        if not all(isinstance(name, str) for name in names):  # protobuf gives bytes for what is not UTF-8
            return None
        outputs = tuple(o.name for o in graph.output)
        left = [name for name in outputs if name not in self.text and name not in self.numbers]
        rest = self._rest(texts, left) if left else None
        part = TextPart(tuple(i.name for i in inputs), texts, self.constants, tuple(self.nodes), outputs)
        return TextEdge(part, rest)

    def _constant(self, name: str, value: Array) -> None:
        self.constants[name], self.text[name] = value, value.shape

    def _node(self, node: NodeProto) -> bool:
        """Put a node where it belongs; False where it belongs to neither part."""
        reads = set(_names(node)) & self.text.keys()
        if not reads:
            self.others.append(node)
            return True
        make, n_inputs = _NODES.get((_domain(node), str(node.op_type)), (None, 0))
        if (
            make is None
            or len(node.input) != n_inputs
            or not reads.issuperset(node.input)
            or any(a.HasField("g") for a in node.attribute)
        ):
            return False
        try:
            attributes, kinds = make({a.name: _value(a) for a in node.attribute})
            made = text_node(node.op_type, node.input, node.output, attributes)
        except (OpError, FieldError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            rule = error.message if isinstance(error, OpError) else f"its attributes can't be: {error}"
            problem = Problem(
                Loc(f'node "{node.name or "".join(node.output[:1])}"'), node.op_type, rule, "export the model anew"
            )
            raise ImportFailed("the ONNX model can't be imported", [problem]) from error
        shape = reduce(_broadcast, (self.text[name] for name in node.input))
        for k, (name, kind) in enumerate(zip(node.output, kinds, strict=False)):
            # Only what a node gives for each text has the shape of the texts.
            dims = None if node.op_type in ("StringSplit", "StringNormalizer") and k == 0 else shape
            if node.op_type == "TfIdfVectorizer":
                dims = None if shape is None else (*shape[:-1], max(attributes["columns"], default=-1) + 1)
            if kind == STRING:
                self.text[name] = dims
            else:
                self.numbers[name] = kind, dims
        self.nodes.append(made)
        return True

    def _rest(self, texts: Mapping[str, Dims], outputs: Sequence[str]) -> Source:
        """What computes numbers, with the edge's numbers behind the inputs that are left."""
        from onnx import ModelProto, helper

        model, old = ModelProto(), self.source.model
        model.CopyFrom(old)
        graph: GraphProto = model.graph
        for name in ("node", "input", "output", "initializer"):
            graph.ClearField(name)
        graph.node.extend(self.others)
        graph.input.extend(i for i in old.graph.input if i.name not in texts and i.name not in self.constants)
        for name, (code, dims) in self.numbers.items():
            shape = None if dims is None else [d or None for d in dims]
            graph.input.append(helper.make_tensor_value_info(name, code, shape))
        graph.output.extend(o for o in old.graph.output if o.name in outputs)
        kept = [k for k, t in enumerate(old.graph.initializer) if t.data_type != STRING]
        graph.initializer.extend(old.graph.initializer[k] for k in kept)
        numbers = self.source.numbers
        return Source(model, self.source.folder, [numbers[k] for k in kept] if numbers else ())


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _names(node: NodeProto) -> Iterable[str]:
    """All names that a node may read, those of its sub-graphs too."""
    yield from node.input
    for a in node.attribute:
        for graph in [a.g, *a.graphs] if a.HasField("g") or a.graphs else ():
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from _names(inner)


def _broadcast(a: Dims, b: Dims) -> Dims:
    """The shape of what is made of two texts at each place; None where only a call tells."""
    if a is None or b is None or a == b:
        return a if a == b else None
    n = max(len(a), len(b))
    pairs = list(zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in pairs)


def _dims(tensor: Any) -> Dims:
    if not tensor.HasField("shape"):
        return None
    sizes = [fixed_size(d) for d in tensor.shape.dim]
    return tuple(str(d.dim_param) if size is None else size for d, size in zip(tensor.shape.dim, sizes, strict=True))


def _text_of(tensor: TensorProto) -> Array:
    found = np.empty(len(tensor.string_data), object)
    found[:] = [s.decode("utf-8", "replace") for s in tensor.string_data]
    if min(tensor.dims, default=0) < 0 or found.size != int(np.prod(tensor.dims, dtype=object)):
        problem = Problem(Loc(f'initializer "{tensor.name}"'), "tensor", "does not have as many texts as its shape")
        raise ImportFailed("the ONNX model can't be imported", [problem])
    return found.reshape(tuple(tensor.dims))


def _value(attribute: Any) -> Any:
    """An attribute's value, text as strings, tensors as arrays."""
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.HasField("t"):
        return _text_of(value) if value.data_type == STRING else numpy_helper.to_array(value)
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value] if attribute.strings else value


# --- the attributes of nodes, as a file has them ---------------------------------------------------------------------

Made = tuple[Mapping[str, Any], Sequence[int]]
"""What ``runtime.texts`` makes a node of, and the element types of its results."""
Attributes = Mapping[str, Any]


def _plain(code: int) -> Callable[[Attributes], Made]:
    return lambda a: ({}, (code,))


def _full_match(a: Attributes) -> Made:
    return {"pattern": a["pattern"]}, (BOOL,)


def _split(a: Attributes) -> Made:
    return {"delimiter": a.get("delimiter") or "", "maxsplit": int(a.get("maxsplit", -1))}, (STRING, INT64)


def _normalised(a: Attributes) -> Made:
    made = {"case": a.get("case_change_action", "NONE"), "is_case_sensitive": bool(a.get("is_case_sensitive", 0))}
    return {**made, "stops": list(a.get("stopwords", ()))}, (STRING,)


_DEFAULTS = {"int64": -1, "float": -0.0, "string": "_Unused"}


def _label_encoder(a: Attributes) -> Made:
    from onnx import helper

    if "classes_strings" in a:
        keys, values, kind = a["classes_strings"], np.arange(len(a["classes_strings"]), dtype=np.int64), "int64"
    else:
        keys = list(a["keys_strings"] if "keys_strings" in a else a["keys_tensor"])
        name = next((n for n in a if n.startswith("values_")), "values_strings")
        kind = name.removeprefix("values_").removesuffix("s")
        dtypes = {"int64": np.int64, "float": np.float32, "string": object}
        values = a[name] if kind == "tensor" else np.array(a[name], dtypes[kind])
    if len(keys) != len(values):
        raise OpError(f"it has {len(keys)} keys and {len(values)} values")
    default = a.get(f"default_{kind}", _DEFAULTS.get(kind))
    other = np.asarray(default).reshape(-1)[0] if default is not None else np.zeros(1, values.dtype)[0]
    code = STRING if values.dtype == object else helper.np_dtype_to_tensor_dtype(values.dtype)
    one = np.array([other], values.dtype)
    made = {"keys": [str(k) for k in keys], "values": array_fields(values), "default": array_fields(one)}
    return made, (code,)


def _tf_idf(a: Attributes) -> Made:
    made = {
        "mode": a["mode"], "least": int(a["min_gram_length"]), "most": int(a["max_gram_length"]),
        "skips": int(a["max_skip_count"]), "starts": [int(k) for k in a["ngram_counts"]],
        "columns": [int(k) for k in a["ngram_indexes"]], "pool": list(a["pool_strings"]),
        "weights": array_fields(np.array(a.get("weights", ()), np.float32)),
    }  # fmt: skip
    return made, (FLOAT,)


_NODES: Mapping[tuple[str, str], tuple[Callable[[Attributes], Made], int]] = {
    ("", "Identity"): (_plain(STRING), 1), ("", "StringConcat"): (_plain(STRING), 2), ("", "Equal"): (_plain(BOOL), 2),
    ("", "RegexFullMatch"): (_full_match, 1), ("", "StringSplit"): (_split, 1),
    ("", "StringNormalizer"): (_normalised, 1), ("ai.onnx.ml", "LabelEncoder"): (_label_encoder, 1),
    ("", "TfIdfVectorizer"): (_tf_idf, 1),
}  # fmt: skip
"""What reads the attributes of a node, and how many texts the node reads."""
