"""Nodes on text, which Python runs before a model's compiled code: what each does, and how a file holds them.

In: names and attributes, as JSON has them. Out: functions from arrays of Python's strings to arrays of strings or of
numbers. Not its business: which nodes of a model these are (``frontend.onnx.text_edge``), calls
(``runtime.python.text_model``).

Nothing in a file is code: a node is one of the names in ``FUNCTIONS`` with attributes that are checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.values import Array

Dims = tuple["int | str", ...] | None
"""A shape as the model declares it: numbers, names, and "" for any size; None where even the rank is open."""
Attributes = Mapping[str, Any]
Run = Callable[..., Sequence[Array]]
STRING = "string"
"""What stands for a dtype where elements are text."""
NUMBERS = ("int64", "int32", "int16", "int8", "float32", "float64", "bool")
MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class TextNode:
    """One node; ``run`` is what ``op`` with ``attributes`` does."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    run: Run


def text_node(op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Attributes) -> TextNode:
    """``FieldError`` for an op that is not known or attributes that it can't have."""
    try:
        run = FUNCTIONS[op](attributes)
    except (KeyError, TypeError, ValueError, AttributeError, re.error, OverflowError) as error:
        raise FieldError(f"the attributes of the text node {op!r} can't be: {error}") from error
    return TextNode(op, tuple(inputs), tuple(outputs), dict(attributes), run)


@dataclass(frozen=True)
class TextPart:
    """A model's part on text: ``texts`` are the inputs that are text, with their shapes."""

    inputs: tuple[str, ...]
    texts: Mapping[str, Dims]
    constants: Mapping[str, Array]
    nodes: tuple[TextNode, ...]
    outputs: tuple[str, ...]

    def to_json(self) -> str:
        """The part as canonical JSON."""
        nodes = [{"op": n.op, "inputs": n.inputs, "outputs": n.outputs, "attributes": n.attributes} for n in self.nodes]
        fields = {
            "inputs": self.inputs, "outputs": self.outputs, "nodes": nodes, "texts": self.texts,
            "constants": {name: array_fields(a) for name, a in self.constants.items()},
        }  # fmt: skip
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TextPart:
        """``FieldError`` for what ``to_json`` does not write."""
        f = Fields(decode_json(text), "text")
        texts, constants = f.child("texts"), f.child("constants")
        made = cls(
            f.texts("inputs"),
            {n: None if texts.any(n) is None else texts.sizes(n, 64) for n in texts.names()},
            {n: array_of(constants.any(n)) for n in constants.names()},
            tuple(_node(c) for c in f.children("nodes")),
            f.texts("outputs"),
        )
        f.finish()
        known = {*made.inputs, *made.constants}
        for node in made.nodes:
            if missing := sorted(set(node.inputs) - known):
                raise FieldError(f"a text node reads {missing[0]!r}, which nothing makes")
            known |= set(node.outputs)
        if not made.texts.keys() <= set(made.inputs):
            raise FieldError("a text is no input of the model")
        return made


def _node(f: Fields) -> TextNode:
    attributes = f.child("attributes")
    found = {name: attributes.any(name) for name in attributes.names()}
    made = text_node(f.text("op"), f.texts("inputs"), f.texts("outputs"), found)
    f.finish()
    return made


def array_fields(a: Array) -> dict[str, Any]:
    """An array as JSON has it: floats as hexadecimal text, which keeps every bit, and NaN."""
    if a.dtype.kind in "OUS":
        return {"dtype": STRING, "shape": list(a.shape), "values": [str(v) for v in a.reshape(-1)]}
    values = a.reshape(-1).tolist()
    values = [float(v).hex() for v in values] if a.dtype.kind == "f" else values
    return {"dtype": a.dtype.name, "shape": list(a.shape), "values": values}


def array_of(fields: Any) -> Array:
    """``FieldError`` for what :func:`array_fields` does not give."""
    f = Fields(fields, "text.array")
    dtype, shape, values = f.text("dtype"), f.any("shape"), f.any("values")
    f.finish()
    is_shape = isinstance(shape, list) and all(type(n) is int and 0 <= n <= MOST_ELEMENTS for n in shape)
    if not is_shape or not isinstance(values, list) or len(values) != int(np.prod(shape, dtype=object)):
        raise FieldError("an array of the text part has another number of values than its shape")
    if dtype == STRING and all(isinstance(v, str) for v in values):
        found = np.empty(len(values), object)
        found[:] = values
        return found.reshape(shape)
    if dtype not in NUMBERS:
        raise FieldError(f"an array of the text part is of {dtype!r}, not of {', '.join((STRING, *NUMBERS))}")
    try:
        plain = [float.fromhex(v) for v in values] if dtype.startswith("float") else values
        return np.array(plain, dtype).reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise FieldError(f"the values of an array of the text part can't be: {error}") from error


# --- what nodes do --------------------------------------------------------------------------------------------------


def _each(f: Callable[..., Any], dtype: Any) -> Run:
    """A function of single texts over arrays that broadcast."""
    whole = np.frompyfunc(f, f.__code__.co_argcount, 1)
    return lambda *xs: [np.asarray(whole(*xs), dtype)]


def _identity(a: Attributes) -> Run:
    return lambda x: [x]


def _concat(a: Attributes) -> Run:
    def joined(x: str, y: str) -> str:
        return x + y

    return _each(joined, object)


def _equal(a: Attributes) -> Run:
    def same(x: str, y: str) -> bool:
        return x == y

    return _each(same, np.bool_)


def _full_match(a: Attributes) -> Run:
    pattern = re.compile(a["pattern"])

    def matches(x: str) -> bool:
        return pattern.fullmatch(x) is not None

    return _each(matches, np.bool_)


def _split(a: Attributes) -> Run:
    """Pieces along an axis of their own, as many as the most of any text, and how many there are of each."""
    delimiter, most = a["delimiter"] or None, int(a["maxsplit"])

    def run(x: Array) -> Sequence[Array]:
        pieces = [s.split(delimiter, most) for s in x.reshape(-1)]
        counts = np.array([len(p) for p in pieces], np.int64)
        made = np.full((len(pieces), int(counts.max(initial=0))), "", object)
        for row, found in zip(made, pieces, strict=True):
            row[: len(found)] = found
        return [made.reshape(*x.shape, made.shape[1]), counts.reshape(x.shape)]

    return run


def _normalised(a: Attributes) -> Run:
    """Without words that stop, and in upper or lower case; where all words go, one empty text is left."""
    changes: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    change = changes[a["case"]]
    compared = str if a["is_case_sensitive"] else str.lower
    stops = {compared(word) for word in a["stops"]}

    def run(x: Array) -> Sequence[Array]:
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
            raise ValueError(f"StringNormalizer takes [n] or [1, n] texts, not {list(x.shape)}")
        kept = [change(word) for word in x.reshape(-1) if compared(word) not in stops] or [""]
        return [np.array(kept, object).reshape((1,) * (x.ndim - 1) + (-1,))]

    return run


def _label_encoder(a: Attributes) -> Run:
    """What stands for each text that is known, and one value for all others."""
    values, other = array_of(a["values"]), array_of(a["default"]).reshape(-1)[0]
    known = dict(zip([str(k) for k in a["keys"]], values, strict=True))

    def number(x: str) -> Any:
        return known.get(x, other)

    return _each(number, values.dtype)


def _tf_idf(a: Attributes) -> Run:
    """How often each n-gram of the pool occurs in a row, its words up to ``skips`` places apart."""
    mode, least, most, skips = a["mode"], int(a["least"]), int(a["most"]), int(a["skips"])
    columns, pool = [int(c) for c in a["columns"]], [str(w) for w in a["pool"]]
    weights = array_of(a["weights"])
    n_columns = max(columns, default=-1) + 1
    if mode not in ("TF", "IDF", "TFIDF") or min(columns, default=0) < 0:
        raise ValueError(f"the mode {mode!r}, and columns from {min(columns, default=0)}")
    weights = column_weights(weights, columns)
    grams, at = _grams(a["starts"], pool, columns)

    def row(words: Sequence[str]) -> Array:
        counts = np.zeros(n_columns, np.float32)
        for length in range(least, most + 1):
            for step in range(1, 2 if length == 1 else skips + 2):  # a single word has no gaps
                for k in range(len(words) - (length - 1) * step):
                    if (found := grams.get(tuple(words[k : k + (length - 1) * step + 1 : step]))) is not None:
                        counts[at[found]] += 1
        return counts

    def run(x: Array) -> Sequence[Array]:
        if x.ndim not in (1, 2):
            raise ValueError(f"TfIdfVectorizer takes [n] or [rows, n] texts, not {list(x.shape)}")
        counts = np.array([row(words) for words in (x if x.ndim == 2 else x[None])], np.float32)
        counts = counts.reshape(-1, n_columns)
        made = counts if mode == "TF" else (counts if mode == "TFIDF" else np.sign(counts)) * weights
        return [made if x.ndim == 2 else made[0]]

    return run


def column_weights(weights: Array, columns: Sequence[int]) -> Array:
    """The weight of each column: a file has those of the n-grams, in the order of the pool, or none."""
    made = np.ones(max(columns, default=-1) + 1, np.float32)
    if not weights.size:
        return made
    if len(weights) != len(columns):
        raise ValueError(f"{len(weights)} weights of {len(columns)} n-grams")
    made[list(columns)] = weights
    if (made[list(columns)] != weights).any():
        raise ValueError("n-grams of one column have different weights")
    return made


def _grams(
    starts: Sequence[int], pool: Sequence[str], columns: Sequence[int]
) -> tuple[dict[Any, int], list[list[int]]]:
    """The n-grams of the pool with a number each, and the columns of each number: a gram may stand there twice."""
    grams: dict[Any, int] = {}
    at: list[list[int]] = []
    first = 0
    for length, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        for k in range(begin, end - length + 1, length):
            found = grams.setdefault(tuple(pool[k : k + length]), len(at))
            if found == len(at):
                at.append([])
            at[found].append(columns[first])
            first += 1
    if first != len(columns):
        raise ValueError(f"{first} n-grams and {len(columns)} columns")
    return grams, at


FUNCTIONS: Mapping[str, Callable[[Attributes], Run]] = {
    "Identity": _identity, "StringConcat": _concat, "Equal": _equal, "RegexFullMatch": _full_match,
    "StringSplit": _split, "StringNormalizer": _normalised, "LabelEncoder": _label_encoder, "TfIdfVectorizer": _tf_idf,
}  # fmt: skip
"""What makes the function of a node from its attributes."""
