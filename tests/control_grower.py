"""A graph that grows node by node, with graphs within it, and what can be read at each place.

In: draws of a seeded generator. Out: nodes, and what is known of their results. A value's dimensions are numbers, names
of sizes that are at least 1 (``N``, ``T``), or names with a question mark of sizes that nobody knows; two values fit
where their dimensions are equal. Not its business: which nodes there are (``control_graphs``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
Dims = tuple[Dim, ...]
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
NUMPY = {FLOAT: np.float32, INT: np.int64, BOOL: np.bool_}


@dataclass(frozen=True)
class Value:
    """A tensor, or a sequence of ``least`` tensors or more. ``dims`` is None where not even the rank is known."""

    name: str
    dtype: int
    dims: Dims | None
    is_sequence: bool = False
    least: int = 0

    @property
    def rank(self) -> int:
        assert self.dims is not None
        return len(self.dims)


@dataclass
class Body:
    """A graph that grows: its nodes and initializers, and what can be read in it."""

    depth: int
    visible: list[Value]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    own: set[str] = field(default_factory=set)  # names that this graph may give back


class Unfit(Exception):
    """There is no operand of the kind that is wanted."""


class Grower:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([18, seed])
        self.opset = int(self.rng.integers(11, 24))
        self.numbers = itertools.count()
        self.at = Body(0, [])
        self.known: dict[str, int] = {}  # constant trip counts
        self.turns = self.chance(0.4)  # may a Scan go backwards?

    # --- draws ---

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def pick(self, keep: Callable[[Value], bool]) -> Value:
        """A value that can be read here; a recent one more often."""
        found = [v for v in self.at.visible if keep(v)]
        if not found:
            raise Unfit
        return found[-1 - min(int(self.rng.exponential(4)), len(found) - 1)]

    def fresh(self) -> str:
        return f"?{next(self.numbers)}"

    # --- nodes ---

    def name(self) -> str:
        return f"v{next(self.numbers)}"

    def bind(self, value: Value) -> Value:
        self.at.visible.append(value)
        self.at.own.add(value.name)
        return value

    def node(self, op: str, operands: Sequence[Value | None], results: Sequence[Value], **attrs: Any) -> None:
        names = ["" if v is None else v.name for v in operands]
        self.at.nodes.append(helper.make_node(op, names, [v.name for v in results], **attrs))
        for v in results:
            self.bind(v)

    def add(self, op: str, operands: Sequence[Value | None], dims: Dims | None, dtype: int, **attrs: Any) -> Value:
        made = Value(self.name(), dtype, dims)
        self.node(op, operands, [made], **attrs)
        return made

    def const(self, array: Any, dtype: int = INT) -> Value:
        """A constant: an initializer of this graph, or a node."""
        values = np.asarray(array, NUMPY[dtype])
        made = Value(self.name(), dtype, values.shape)
        tensor = numpy_helper.from_array(values, made.name)
        if self.chance(0.5):
            self.at.constants.append(tensor)
        else:
            self.at.nodes.append(helper.make_node("Constant", [], [made.name], value=tensor))
        return made

    def same(self, v: Value) -> Value:
        if v.is_sequence and self.opset < 16:
            raise Unfit
        made = replace(v, name=self.name())
        self.node("Identity", [v], [made])
        return made

    def axes(self, op: str, v: Value, axes: Sequence[int], dims: Dims, **attrs: Any) -> Value:
        """An op whose axes are an attribute before opset 13 and an operand from then on (of ReduceMax from 18 on)."""
        if self.opset < (18 if op in ("ReduceMax", "ReduceMean") else 13):
            return self.add(op, [v], dims, v.dtype, axes=list(axes), **attrs)
        return self.add(op, [v, self.const(axes)], dims, v.dtype, **attrs)

    # --- graphs ---

    def sub(
        self,
        formals: Sequence[Value],
        fill: Callable[[list[Value]], list[Value]],
        typed: bool,
        n_typed: int = 0,
        typed_rows: bool = False,
        n_through: int = 0,
    ) -> Any:
        """A graph with inputs of these types, whose outputs ``fill`` gives; and the outputs.

        ``typed`` says whether inputs tell their sizes, of which the first ``n_typed`` always do, and ``typed_rows``
        whether outputs do; the first ``n_through`` outputs may be the input that follows the one of their place.
        """
        outside = self.at
        self.at = Body(outside.depth + 1, list(outside.visible))
        try:
            own = [self.bind(replace(v, name=self.name())) for v in formals]
            results = []
            for k, v in enumerate(fill(own)):
                is_own = v.name in self.at.own and v.name not in {r.name for r in results}
                is_in_place = k < n_through and v == own[k + 1]
                is_free = is_own and (is_in_place or v not in own)  # ONNX Runtime mixes up the others
                results.append(v if is_free and self.chance(0.5) else self.same(v))
            inputs = [self.info(v, typed or k < n_typed) for k, v in enumerate(own)]
            outputs = [self.info(v, typed_rows) for v in results]
            return helper.make_graph(self.at.nodes, self.name(), inputs, outputs, self.at.constants), results
        finally:
            self.at = outside

    def info(self, v: Value, typed: bool = True) -> onnx.ValueInfoProto:
        if v.is_sequence:
            return helper.make_tensor_sequence_value_info(v.name, v.dtype, None)
        is_told = typed and v.dims is not None
        dims = [None if is_open(d) else d for d in v.dims] if is_told else None
        return helper.make_tensor_value_info(v.name, v.dtype, dims)


def is_tensor(*dtypes: int) -> Callable[[Value], bool]:
    return lambda v: not v.is_sequence and v.dims is not None and (not dtypes or v.dtype in dtypes)


def is_one(v: Value) -> bool:
    return v.dims in ((), (1,)) and not v.is_sequence


def is_open(d: Dim) -> bool:
    """May the size be any, 0 too?"""
    return isinstance(d, str) and d.startswith("?")


def is_fixed(v: Value) -> bool:
    return all(isinstance(d, int) for d in v.dims or ())
