"""What is written of a graph so far: lines of MLIR's generic form, and the name of every result.

In: nodes of the graph. Out: operations with their operands, types and regions. Not its business: which op is which
operation (``writer.table``).

The generic form spells every operation alike, so that no grammar of its own is needed for any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import numbers
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import Array, DType, TensorType, dtype_of
from tilewright.frontend.spellings.writing import NodeWriter

ELEMENTS: dict[DType, str] = {
    types.bool_: "i1", types.f16: "f16", types.bf16: "bf16", types.f32: "f32", types.f64: "f64",
    **{d: d.name for d in (types.i8, types.i16, types.i32, types.i64)},
    **{d: f"ui{d.bits}" for d in (types.u8, types.u16, types.u32, types.u64)},
}  # fmt: skip
"""What MLIR calls each type of elements."""


@dataclass(frozen=True)
class HloValue:
    """A value's name and type."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, which are numbers."""
        return sizes(self.type)


def sizes(t: TensorType) -> tuple[int, ...]:
    """The sizes of a type; ``OpError`` where one is symbolic."""
    known = tuple(numbers(t.shape))
    if len(known) < t.rank:
        raise OpError(f"the sizes of {t} are not all known", remedy="fix its symbols: fix_dims, or --fix")
    return known


def type_text(t: TensorType) -> str:
    """``tensor<2x3xf32>``."""
    if t.dtype not in ELEMENTS:
        raise OpError(f"elements of type {t.dtype} are not written")
    return f"tensor<{''.join(f'{n}x' for n in sizes(t))}{ELEMENTS[t.dtype]}>"


def array_text(numbers: Sequence[int]) -> str:
    """``array<i64: 1, 2>``, an attribute of numbers."""
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def pairs_text(pairs: Sequence[tuple[int, int]]) -> str:
    """Padding: a dense attribute of pairs."""
    rows = ", ".join(f"[{lo}, {hi}]" for lo, hi in pairs)
    return f"dense<[{rows}]> : tensor<{len(pairs)}x2xi64>" if pairs else "dense<> : tensor<0x2xi64>"


def dense_text(a: Array) -> str:
    """A constant's numbers as their bytes, which no rounding touches; bools by name."""
    flat = np.ascontiguousarray(a).reshape(-1)
    if flat.size == 0:
        return "dense<>"
    if a.dtype == np.bool_:
        words = np.where(flat, "true", "false").reshape(a.shape)
        return f"dense<{_nested(words.tolist())}>"
    return f'dense<"0x{flat.tobytes().hex().upper()}">'


def _nested(words: object) -> str:
    return f"[{', '.join(map(_nested, words))}]" if isinstance(words, list) else str(words)


Region = tuple[Sequence[HloValue], Callable[["HloLines"], Sequence[HloValue]]]
"""A region's arguments, and what writes it and gives what it returns."""

Writer = Callable[["HloLines", Node], None]


class HloLines(NodeWriter):
    """Lines of one region. ``given`` are the values of a sub-graph's inputs, ``outside`` what it stands in."""

    FORMAT = "StableHLO"

    def __init__(
        self,
        graph: Graph,
        writers: Mapping[OpDef, Writer],
        given: Sequence[HloValue] = (),
        outside: HloLines | None = None,
    ) -> None:
        super().__init__(graph, writers)
        self.lines: list[str] = []
        self._numbers: Iterator[int] = count() if outside is None else outside._numbers
        self._constants: dict[object, HloValue] = {}
        self._kept: list[Array] = []
        for node, value in zip(graph.inputs, given, strict=True):
            self.give_values(node, [value.name])

    def constant(self, node: Node) -> str:
        return self.number(node.attrs["data"].array).name

    def value(self, node: Node) -> HloValue:
        """What holds a node's only result."""
        return HloValue(self.name(node), node.type)

    def values(self, node: Node) -> list[HloValue]:
        """What hold a node's operands."""
        return [self.value(x) for x in node.inputs]

    def give(self, node: Node, *values: HloValue) -> None:
        """The results of ``node`` are these values."""
        for value, t in zip(values, node.types, strict=True):
            assert value.type == t, f"{node}: {value.type} is not {t}"
        self.give_values(node, [v.name for v in values])

    def number(self, a: Array) -> HloValue:
        """A constant; one array is written once."""
        key = (a.dtype, a.shape, a.tobytes()) if a.size <= 1 else id(a)
        if key not in self._constants:
            t = TensorType(dtype_of(a.dtype), a.shape)
            text = f"<{{value = {dense_text(a)} : {type_text(t)}}}>"
            (self._constants[key],) = self.operation("stablehlo.constant", [], [t], text)
            self._kept.append(a)  # and so its id
        return self._constants[key]

    def scalar(self, value: float, dtype: DType) -> HloValue:
        """A 0-d constant."""
        return self.number(np.asarray(value).astype(dtype.numpy))

    def fresh(self, t: TensorType) -> HloValue:
        """A value that nothing makes yet."""
        return HloValue(f"%v{next(self._numbers)}", t)

    def one(self, name: str, operands: Sequence[HloValue], t: TensorType, attributes: str = "") -> HloValue:
        """An operation of StableHLO with one result."""
        text = f"<{{{attributes}}}>" if attributes else ""
        (made,) = self.operation(f"stablehlo.{name}", operands, [t], text)
        return made

    def operation(
        self,
        name: str,
        operands: Sequence[HloValue],
        results: Sequence[TensorType],
        attributes: str = "",
        regions: Sequence[Region] = (),
    ) -> list[HloValue]:
        """Any operation in generic form; gives its results."""
        made = [self.fresh(t) for t in results]
        left = f"{', '.join(v.name for v in made)} = " if made else ""
        texts = [self._region(*region) for region in regions]
        inside = f" ({', '.join(texts)})" if texts else ""
        kinds = f"({', '.join(type_text(v.type) for v in operands)}) -> ({', '.join(map(type_text, results))})"
        self.lines.append(f'{left}"{name}"({", ".join(v.name for v in operands)}) {attributes}{inside} : {kinds}')
        return made

    def _region(self, arguments: Sequence[HloValue], body: Callable[[HloLines], Sequence[HloValue]]) -> str:
        inner = self.inside(self.graph, [])
        returned = body(inner)
        kinds = ", ".join(type_text(v.type) for v in returned)
        end = f'"stablehlo.return"({", ".join(v.name for v in returned)}) : ({kinds}) -> ()'
        head = f"^bb0({', '.join(f'{v.name}: {type_text(v.type)}' for v in arguments)}):" if arguments else "^bb0:"
        return "\n".join(["{", head, *inner.lines, end, "}"])

    def inside(self, graph: Graph, given: Sequence[HloValue]) -> HloLines:
        """Lines of a region within these, of a sub-graph over ``given`` values or of none."""
        plain = Graph(graph.name, graph.pool, graph.inputs if given else (), (), ())
        return HloLines(plain, self.writers, given, self)

    def sub_graph(self, graph: Graph, given: Sequence[HloValue]) -> list[HloValue]:
        """Write a sub-graph's nodes here, over ``given`` values; gives its results.

        Its symbols stand for the sizes of these values. ``OpError`` for what has no form.
        """
        meant = {
            d.name: n
            for x, v in zip(graph.inputs, given, strict=True)
            for d, n in zip(x.shape, v.shape, strict=True)
            if isinstance(d, Sym)
        }
        graph = fix_symbols(graph, meant)
        inner = self.inside(graph, given)
        problems = inner.write(graph.nodes())
        if problems:
            raise OpError("; ".join(f"within its sub-graph {p.op}: {p.rule}" for p in problems))
        results = [inner.value(n) for n in graph.outputs]
        self.lines += inner.lines
        return results
