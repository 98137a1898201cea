"""What is written of a graph so far: ONNX nodes, numbers, and the name of every result.

In: nodes of the graph and writers of ops. Out: names of values.
Not its business: which op means what (``writer.table``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import BinaryExpr, Dim, Expr, Mul, Sym, const_of, terms_of, to_text
from tilewright.core.graph import CONST, PROJ, Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, TensorType, dtype_of
from tilewright.frontend.onnx.file import ELEMENT_TYPES
from tilewright.frontend.spellings.writing import NodeWriter

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, ValueInfoProto

ELEMENT_CODES: dict[np.dtype[Any], int] = {dtype.numpy: code for code, dtype in ELEMENT_TYPES.items()}
_SIZE_OPS = {"floordiv": "Div", "mod": "Mod", "min": "Min", "max": "Max"}


Writer = Callable[["OnnxNodes", Node], None]
"""Writes a node whose operands are written; ``OpError`` where this form of an op has no counterpart in ONNX."""


def value_info(name: str, type_: TensorType, sizes: Sequence[int | None] | None = None) -> ValueInfoProto:
    """A value's name and type; symbolic sizes are written out as they are called, or ``sizes`` in place of all."""
    from onnx import helper

    shape = [d if is_known(d) else to_text(d) for d in type_.shape] if sizes is None else list(sizes)
    return helper.make_tensor_value_info(name, ELEMENT_CODES[type_.dtype.numpy], shape)


def tensor(name: str, a: Array) -> TensorProto:
    """Numbers under a name."""
    from onnx import TensorProto

    bits = dtype_of(a.dtype).bits
    stored = _side_by_side(a, bits) if bits < types.u8.bits and a.dtype != np.bool_ else np.ascontiguousarray(a)
    return TensorProto(name=name, data_type=ELEMENT_CODES[a.dtype], dims=a.shape, raw_data=stored.tobytes())


def _side_by_side(a: Array, bits: int) -> Array:
    """Numbers of a few bits, several in a byte, the first in the lowest bits; the last byte is filled up with 0."""
    each = types.u8.bits // bits
    codes = np.zeros(-(-a.size // each) * each, np.uint8)
    codes[: a.size] = a.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    return np.asarray(np.bitwise_or.reduce(codes.reshape(-1, each) << (bits * np.arange(each, dtype=np.uint8)), axis=1))


class OnnxNodes(NodeWriter):
    """ONNX nodes in order, with a name for each result of the graph's nodes that are written.

    ``reads`` says how often a node of the graph is read, ``writers`` how ops are written. ``outside`` is what a
    sub-graph stands in: its inputs are the values ``given``, and no name is taken twice.
    """

    FORMAT = "ONNX"

    def __init__(
        self,
        graph: Graph,
        reads: Mapping[Node, int],
        writers: Mapping[OpDef, Writer],
        outside: OnnxNodes | None = None,
        given: Sequence[str] = (),
    ) -> None:
        super().__init__(graph, writers)
        self.reads = reads
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.wanted: dict[Node, str] = {}
        """What the results of outputs should be called."""
        self._numbers: dict[tuple[object, ...], str] = {}
        self._sizes: dict[Dim, str] = {}
        self._products: dict[Node, NodeProto] = {}
        self._homes: dict[Dim, tuple[str, int]] = {}
        names = given or graph.input_names
        self._taken: set[str] = {*graph.input_names, *graph.output_names} if outside is None else outside._taken
        for node, name in zip(graph.inputs, names, strict=True):
            self.give_values(node, (name,))
        for name, node in graph.results() if outside is None else ():
            if node not in self.names and node.op not in (CONST, PROJ):
                self.wanted.setdefault(node, name)

    def constant(self, node: Node) -> str:
        return self.number(node.attrs["data"].array)

    def give_values(self, node: Node, names: Sequence[str]) -> None:
        """Values that are there, of which each symbol of sizes may be read off."""
        super().give_values(node, names)
        for name, type_ in zip(names, node.types, strict=True):
            for axis, d in enumerate(type_.shape):
                if isinstance(d, Sym):
                    self._homes.setdefault(d, (name, axis))

    def inside(self, graph: Graph, given: Sequence[str]) -> OnnxNodes:
        """A sub-graph whose inputs are ``given`` values; writes its nodes; raises ``OpError`` for what has no form."""
        reads = Counter(i for n in graph.nodes() for i in n.inputs)
        made = OnnxNodes(graph, reads, self.writers, self, given)
        problems = made.write(graph.nodes())
        if problems:
            raise OpError("; ".join(f"within its sub-graph {p.op}: {p.rule}" for p in problems))
        return made

    def number(self, value: Array | Sequence[int]) -> str:
        """A constant; equal small ones and one array are stored once."""
        array = np.asarray(value, np.int64) if isinstance(value, list | tuple) else np.asarray(value)
        small = array.size <= 1
        key = (array.dtype, array.shape, array.tobytes() if small else id(array))
        if key not in self._numbers:
            self._numbers[key] = self.fresh("const")
            self.constants[self._numbers[key]] = array  # also keeps it, and so its id, while names are given
        return self._numbers[key]

    def emit(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """One more node with one result, which gets a name of its own."""
        name = self.fresh(op)
        self.nodes.append(self.node(op, inputs, [name], **attrs))
        return name

    def give(self, node: Node, op: str, inputs: Sequence[str], **attrs: Any) -> None:
        """One more node, whose results are those of ``node``."""
        n = len(node.types)
        names = [self.wanted.get(node) or self.fresh(node.op.name) for _ in range(n)]
        self.nodes.append(self.node(op, inputs, names, **attrs))
        self.give_values(node, names)

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

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> NodeProto:
        """An ONNX node named after its first result."""
        from onnx import helper

        given = {name: value for name, value in attrs.items() if value != ()}
        return helper.make_node(op, list(inputs), list(outputs), name=f"{op}:{outputs[0]}", **given)

    def dims(self, dims: Iterable[Dim]) -> str:
        """Dimensions as a vector of i64."""
        dims = list(dims)
        if are_known(dims):
            return self.number([int(d) for d in dims if is_known(d)])
        parts = [self._size(d) for d in dims]
        return parts[0] if len(parts) == 1 else self.emit("Concat", parts, axis=0)

    def _size(self, d: Dim) -> str:
        """One dimension as a vector of one i64; symbols are read off the inputs' shapes."""
        if is_known(d):
            return self.number([d])
        if d not in self._sizes:
            self._sizes[d] = self._computed(d)
        return self._sizes[d]

    def _computed(self, d: Expr) -> str:
        if isinstance(d, Sym):
            if d not in self._homes:
                raise OpError(f"the size {d} is no size of an input or of what was written before")
            home, axis = self._homes[d]
            return self.emit("Shape", [home], start=axis, end=axis + 1)
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

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        k = len(self._taken)
        while f"{stem}_{k}" in self._taken:
            k += 1
        self._taken.add(f"{stem}_{k}")
        return f"{stem}_{k}"
