"""The nodes of an ONNX model that read text, apart from the rest: Python runs them, and compiled code gets numbers.

In: a parsed model. Out: a ``TextEdge``, or None where text lies between nodes that compute numbers, or where a node
that reads text has no function here. Not its business: compiling the rest, and calls (``build.text_model``).

Text comes in as an input or a constant. A node belongs to the edge if all that it reads is text; what it makes is text
for other nodes of the edge and for outputs, or numbers, which become inputs of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import ImportFailed, Loc, OpError, Problem
from tilewright.core.types import Array
from tilewright.frontend.onnx.file import STRING, Source

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

BOOL, INT64 = 9, 7
"""Codes of element types."""
Dims = tuple["int | str", ...] | None
"""A shape as the model declares it: numbers, names, and "" for any size; None where even the rank is open."""
Run = Callable[..., Sequence[Array]]


@dataclass(frozen=True)
class TextNode:
    """A node of the edge: arrays of Python's strings in, arrays of strings or of numbers out."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Run


@dataclass(frozen=True)
class TextEdge:
    """A model in two parts. ``rest`` is None where nothing but text is computed."""

    inputs: tuple[str, ...]
    texts: Mapping[str, Dims]
    """The inputs that are text, with their shapes."""
    constants: Mapping[str, Array]
    nodes: tuple[TextNode, ...]
    outputs: tuple[str, ...]
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
        return TextEdge(tuple(i.name for i in inputs), texts, self.constants, tuple(self.nodes), outputs, rest)

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
            run, kinds = make({a.name: _value(a) for a in node.attribute})
        except (OpError, re.error, ValueError, TypeError, KeyError) as error:
            rule = error.message if isinstance(error, OpError) else f"its attributes can't be: {error}"
            problem = Problem(
                Loc(f'node "{node.name or "".join(node.output[:1])}"'), node.op_type, rule, "export the model anew"
            )
            raise ImportFailed("the ONNX model can't be imported", [problem]) from error
        shapes = {self.text[name] for name in node.input}
        shape = shapes.pop() if len(shapes) == 1 else None
        for k, (name, kind) in enumerate(zip(node.output, kinds, strict=False)):
            # Only what a node gives for each text has the shape of the texts.
            dims = None if node.op_type in ("StringSplit", "StringNormalizer") and k == 0 else shape
            if kind == STRING:
                self.text[name] = dims
            else:
                self.numbers[name] = kind, dims
        self.nodes.append(TextNode(tuple(node.input), tuple(node.output), run))
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


def _dims(tensor: Any) -> Dims:
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.WhichOneof("value") == "dim_value" else str(d.dim_param) for d in tensor.shape.dim)


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


# --- what nodes of the edge do --------------------------------------------------------------------------------------

Made = tuple[Run, Sequence[int]]
"""A node's function, and the element types of its results."""
Attributes = Mapping[str, Any]


def _each(f: Callable[..., Any], dtype: Any) -> Run:
    """A function of single texts over arrays that broadcast."""
    whole = np.frompyfunc(f, f.__code__.co_argcount, 1)
    return lambda *xs: [np.asarray(whole(*xs), dtype)]


def _identity(a: Attributes) -> Made:
    return lambda x: [x], (STRING,)


def _concat(a: Attributes) -> Made:
    def joined(x: str, y: str) -> str:
        return x + y

    return _each(joined, object), (STRING,)


def _equal(a: Attributes) -> Made:
    def same(x: str, y: str) -> bool:
        return x == y

    return _each(same, np.bool_), (BOOL,)


def _full_match(a: Attributes) -> Made:
    pattern = re.compile(a["pattern"])

    def matches(x: str) -> bool:
        return pattern.fullmatch(x) is not None

    return _each(matches, np.bool_), (BOOL,)


def _split(a: Attributes) -> Made:
    """Pieces along an axis of their own, as many as the most of any text, and how many there are of each."""
    delimiter, most = a.get("delimiter") or None, int(a.get("maxsplit", -1))

    def run(x: Array) -> Sequence[Array]:
        pieces = [s.split(delimiter, most) for s in x.reshape(-1)]
        counts = np.array([len(p) for p in pieces], np.int64)
        made = np.full((len(pieces), int(counts.max(initial=0))), "", object)
        for row, found in zip(made, pieces, strict=True):
            row[: len(found)] = found
        return [made.reshape(*x.shape, made.shape[1]), counts.reshape(x.shape)]

    return run, (STRING, INT64)


def _normalised(a: Attributes) -> Made:
    """Without words that stop, and in upper or lower case; where all words go, one empty text is left."""
    changes: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    change = changes[a.get("case_change_action", "NONE")]
    compared = str if a.get("is_case_sensitive", 0) else str.lower
    stops = {compared(word) for word in a.get("stopwords", ())}

    def run(x: Array) -> Sequence[Array]:
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
            raise ValueError(f"StringNormalizer takes [n] or [1, n] texts, not {list(x.shape)}")
        kept = [change(word) for word in x.reshape(-1) if compared(word) not in stops] or [""]
        return [np.array(kept, object).reshape((1,) * (x.ndim - 1) + (-1,))]

    return run, (STRING,)


_DEFAULTS = {"int64": -1, "float": -0.0, "string": "_Unused"}


def _label_encoder(a: Attributes) -> Made:
    """What stands for each text that is known, and one value for all others."""
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
    known = dict(zip(keys, values, strict=True))

    def number(x: str) -> Any:
        return known.get(x, other)

    code = STRING if values.dtype == object else helper.np_dtype_to_tensor_dtype(values.dtype)
    return _each(number, values.dtype), (code,)


_NODES: Mapping[tuple[str, str], tuple[Callable[[Attributes], Made], int]] = {
    ("", "Identity"): (_identity, 1), ("", "StringConcat"): (_concat, 2), ("", "Equal"): (_equal, 2),
    ("", "RegexFullMatch"): (_full_match, 1), ("", "StringSplit"): (_split, 1),
    ("", "StringNormalizer"): (_normalised, 1), ("ai.onnx.ml", "LabelEncoder"): (_label_encoder, 1),
}  # fmt: skip
"""What makes the function of a node, and how many texts the node reads."""
