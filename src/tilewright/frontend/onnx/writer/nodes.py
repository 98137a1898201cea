"""What is written of a graph so far: ONNX nodes, numbers, and the name of every result.

In: nodes of the graph and ONNX's ops. Out: names of values. Not its business: which op means what (``writer.ops``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.expr import BinaryExpr, Dim, Expr, Mul, Sym, const_of, terms_of
from tilewright.core.graph import CONST, PROJ, Graph, Node
from tilewright.core.types import Array
from tilewright.frontend.onnx.file import ELEMENT_TYPES

if TYPE_CHECKING:
    from onnx import NodeProto

ELEMENT_CODES: dict[np.dtype[Any], int] = {dtype.numpy: code for code, dtype in ELEMENT_TYPES.items()}
_SIZE_OPS = {"floordiv": "Div", "mod": "Mod", "min": "Min", "max": "Max"}


class OnnxNodes:
    """ONNX nodes in order, with a name for each result of the graph's nodes that are written.

    ``reads`` says how often a node of the graph is read, ``wanted`` what the results of outputs should be called.
    """

    def __init__(self, graph: Graph, reads: Mapping[Node, int]) -> None:
        self.graph, self.reads = graph, reads
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.names: dict[Node, tuple[str, ...]] = {n: (n.attrs["name"],) for n in graph.inputs}
        self.wanted: dict[Node, str] = {}
        self._taken = {*graph.input_names, *graph.output_names}
        self._numbers: dict[tuple[object, ...], str] = {}
        self._sizes: dict[Dim, str] = {}
        self._products: dict[Node, NodeProto] = {}
        for name, node in graph.results():
            if node not in self.names and node.op not in (CONST, PROJ):
                self.wanted.setdefault(node, name)

    def name(self, node: Node) -> str:
        """The value that holds a node's only result."""
        if node.op is CONST:
            return self.number(node.attrs["data"].array)
        if node.op is PROJ:
            return self.names[node.inputs[0]][node.attrs["index"]]
        return self.names[node][0]

    def number(self, value: Array | Sequence[int]) -> str:
        """A constant; equal small ones and one array are stored once."""
        array = np.asarray(value, np.int64) if isinstance(value, list | tuple) else np.asarray(value)
        small = array.size <= 1
        key = (array.dtype, array.shape, array.tobytes() if small else id(array))
        if key not in self._numbers:
            self._numbers[key] = self._fresh("const")
            self.constants[self._numbers[key]] = array
        return self._numbers[key]

    def emit(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """One more node with one result, which gets a name of its own."""
        name = self._fresh(op)
        self.nodes.append(self.node(op, inputs, [name], **attrs))
        return name

    def give(self, node: Node, op: str, inputs: Sequence[str], **attrs: Any) -> None:
        """One more node, whose results are those of ``node``."""
        n = len(node.types)
        names = [self.wanted.get(node) or self._fresh(node.op.name) for _ in range(n)]
        self.nodes.append(self.node(op, inputs, names, **attrs))
        self.names[node] = tuple(names)

    def may_have_bias(self, product: Node) -> None:
        """The node that was just written has an optional third operand, a bias."""
        self._products[product] = self.nodes[-1]

    def takes_bias(self, product: Node) -> bool:
        """Is ``product`` a written product or convolution that only one node reads?"""
        return product in self._products and self.reads[product] == 1

    def with_bias(self, node: Node, product: Node, bias: str) -> None:
        """Write a sum as the bias of a product that is written already: it moves to here, behind the bias."""
        old = self._products[product]
        self.nodes.remove(old)
        name = "Gemm" if old.op_type == "MatMul" else old.op_type
        self.give(node, name, [*old.input, bias])
        self.nodes[-1].attribute.extend(old.attribute)

    def rename(self, node: Node, results: Sequence[Node]) -> None:
        """The results of ``node`` are those of other nodes."""
        self.names[node] = tuple(map(self.name, results))

    def alias(self, node: Node, name: str) -> None:
        """The result of ``node`` is a value that is there."""
        self.names[node] = (name,)

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> NodeProto:
        """An ONNX node named after its first result."""
        from onnx import helper

        given = {name: value for name, value in attrs.items() if value != ()}
        return helper.make_node(op, list(inputs), list(outputs), name=f"{op}:{outputs[0]}", **given)

    def dims(self, dims: Iterable[Dim]) -> str:
        """Dimensions as a vector of i64."""
        dims = list(dims)
        if all(isinstance(d, int) for d in dims):
            return self.number([int(d) for d in dims if isinstance(d, int)])
        parts = [self._size(d) for d in dims]
        return parts[0] if len(parts) == 1 else self.emit("Concat", parts, axis=0)

    def _size(self, d: Dim) -> str:
        """One dimension as a vector of one i64; symbols are read off the inputs' shapes."""
        if isinstance(d, int):
            return self.number([d])
        if d not in self._sizes:
            self._sizes[d] = self._computed(d)
        return self._sizes[d]

    def _computed(self, d: Expr) -> str:
        if isinstance(d, Sym):
            home, axis = next((x, k) for x in self.graph.inputs for k, n in enumerate(x.shape) if n == d)
            return self.emit("Shape", [self.name(home)], start=axis, end=axis + 1)
        if isinstance(d, Mul):
            return self._folded("Mul", [self._size(f) for f in d.factors])
        if isinstance(d, BinaryExpr):
            return self.emit(_SIZE_OPS[d.op], [self._size(d.a), self._size(d.b)])
        terms = [
            self._folded("Mul", [self._size(atom), *([self.number([c])] if c != 1 else [])]) for atom, c in terms_of(d)
        ]
        constant = const_of(d)
        return self._folded("Add", [*terms, *([self.number([constant])] if constant else [])])

    def _folded(self, op: str, values: Sequence[str]) -> str:
        result, *rest = values
        for value in rest:
            result = self.emit(op, [result, value])
        return result

    def _fresh(self, stem: str) -> str:
        k = len(self._taken)
        while f"{stem}_{k}" in self._taken:
            k += 1
        self._taken.add(f"{stem}_{k}")
        return f"{stem}_{k}"
