"""The graph IR: an immutable, interned, typed DAG over tensors.

In: op definitions and operands. Out: ``Node`` objects owned by a ``Pool``; equal nodes are the same object, so common
subexpressions merge as they are built and "did it change?" is ``is``. A ``Graph`` is a view: inputs and outputs over
a pool. Rewriting makes new nodes and a new ``Graph``; nothing is mutated.
Not its business: what ops mean (``core.opdef`` and ``ops``).

Forms that are settled here: several results come through ``proj`` nodes; control flow is an op with closed sub-graphs
as attributes (their inputs are explicit); order of effects and random state are ordinary operands and results;
a size that only the data decide is a fresh symbol in the result's type, bounded by ``Sym.hi``.
"""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np

from tilewright.core.diag import UNKNOWN, CompileError, Loc, OpError, Problem
from tilewright.core.expr import Dim, Expr, Sym, substitute, symbols
from tilewright.core.opdef import AttrDef, OpDef, Trait
from tilewright.core.types import Array, DType, TensorType, tensor_type_of

SMALL_BYTES = 4096  # constants up to this size are equal by content, larger ones by identity


class Data:
    """A constant's numbers: a read-only NumPy array, shared and never copied by passes."""

    __slots__ = ("array", "key")

    def __init__(self, array: Array) -> None:
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        self.array = array
        content = array.tobytes() if array.nbytes <= SMALL_BYTES else id(array)
        self.key = (array.dtype, array.shape, content)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self.key == other.key

    def __repr__(self) -> str:
        return f"data<{self.array.dtype}{list(self.array.shape)}>"


AttrValue = Any  # int | float | bool | str | DType | Dim | Data | Graph, or a tuple of those: checked by AttrDef


class Attrs(Mapping[str, AttrValue]):
    """A node's attributes: immutable, hashable, readable as ``attrs.axis`` or ``attrs["axis"]``."""

    __slots__ = ("_hash", "_key", "_values")

    def __init__(self, values: Mapping[str, AttrValue]) -> None:
        self._values = dict(values)
        self._key = tuple((k, _attr_key(v)) for k, v in self._values.items())
        self._hash = hash(self._key)

    def __getitem__(self, name: str) -> AttrValue:
        return self._values[name]

    def __getattr__(self, name: str) -> AttrValue:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    # What Mapping gives in Python, given by the dict: attributes are read at every step of every pass.

    def keys(self) -> KeysView[str]:
        return self._values.keys()

    def items(self) -> ItemsView[str, AttrValue]:
        return self._values.items()

    def values(self) -> ValuesView[AttrValue]:
        return self._values.values()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and self._hash == other._hash and self._key == other._key

    def __repr__(self) -> str:
        return ", ".join(f"{k}={v!r}" for k, v in self._values.items())

    def substituted(self, values: Mapping[Sym, Dim]) -> Attrs:
        """The attributes with symbols in dimensions replaced."""
        return Attrs({k: _substitute_attr(v, values) for k, v in self._values.items()})


def _attr_key(v: AttrValue) -> object:
    kind = type(v)
    if kind is tuple:
        return tuple(map(_attr_key, v))
    if kind is float:
        return ("float", struct.pack("<d", v))  # tells 0.0 from -0.0 and equates NaNs
    return (kind, v) if kind is bool or kind is int else v


def _substitute_attr(v: AttrValue, values: Mapping[Sym, Dim]) -> AttrValue:
    if isinstance(v, tuple):
        return tuple(_substitute_attr(x, values) for x in v)
    return substitute(v, values) if isinstance(v, Expr) else v


class Node:
    """One op applied to operands. Equality is identity; immutable; make nodes with :meth:`Pool.add` only.

    ``types`` has one entry per result; a node with several is read through ``proj`` nodes. ``type``, ``shape`` and
    ``dtype`` are those of the only result: passes read them more often than anything else.
    """

    __slots__ = ("attrs", "dtype", "inputs", "loc", "op", "serial", "shape", "type", "types")

    op: Final[OpDef]
    inputs: Final[tuple[Node, ...]]
    attrs: Final[Attrs]
    types: Final[tuple[TensorType, ...]]
    loc: Final[Loc]
    serial: Final[int]
    type: Final[TensorType]
    shape: Final[tuple[Dim, ...]]
    dtype: Final[DType]

    def __init__(
        self, op: OpDef, inputs: tuple[Node, ...], attrs: Attrs, types: tuple[TensorType, ...], loc: Loc, serial: int
    ) -> None:
        self.op, self.inputs, self.attrs = op, inputs, attrs
        self.types, self.loc, self.serial = types, loc, serial
        if len(types) == 1:
            self.type = types[0]
            self.shape, self.dtype = types[0].shape, types[0].dtype

    def __getattr__(self, name: str) -> NoReturn:
        """Only reached for what a node lacks."""
        if name in ("type", "shape", "dtype"):
            raise ValueError(f"{self.op.name} has {len(self.types)} results; read one through proj")
        raise AttributeError(name)

    def __repr__(self) -> str:
        types = ", ".join(str(t) for t in self.types)
        return f"%{self.serial} = {self.op.name}({', '.join(f'%{i.serial}' for i in self.inputs)}) : {types}"


def _infer_leaf(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(attrs.dtype, attrs.shape)


def _infer_const(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return tensor_type_of(attrs.data.array)


def _no_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    raise AssertionError("structural: the interpreter gives its value")


INPUT = OpDef(
    "input",
    (),
    {"name": AttrDef("str"), "dtype": AttrDef("dtype"), "shape": AttrDef("dims")},
    _infer_leaf,
    _no_reference,
    traits=frozenset({Trait.STRUCTURAL}),
    doc="A graph's input.",
)
CONST = OpDef(
    "const",
    (),
    {"data": AttrDef("data")},
    _infer_const,
    lambda arrays, attrs: attrs.data.array,
    traits=frozenset({Trait.STRUCTURAL}),
    doc="Numbers known at compile time.",
)
PROJ = OpDef(
    "proj",
    ("x",),
    {"index": AttrDef("int")},
    lambda types, attrs: types[attrs.index],
    lambda arrays, attrs: arrays[attrs.index],
    traits=frozenset({Trait.STRUCTURAL}),
    doc="One result of a node with several; its only operand stands for all of them.",
)


NO_ATTRS = Attrs({})


class Pool:
    """Owns nodes: adding an equal node twice gives the same object. Not shared between compiles or threads."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Node] = {}

    def add(
        self, op: OpDef, inputs: Sequence[Node] = (), attrs: Mapping[str, AttrValue] = {}, loc: Loc = UNKNOWN
    ) -> Node:
        """The node ``op(inputs, attrs)``; defaults of attributes are filled in.

        Raises ``CompileError`` with ``loc`` when the operands break the op's rule.
        """
        inputs = tuple(inputs)
        full = attrs if type(attrs) is Attrs and len(attrs) == len(op.attrs) else self._complete(op, attrs, loc)
        key = (op, inputs, full)
        node = self._nodes.get(key)
        if node is None:
            types = self._infer(op, inputs, full, loc)
            node = self._nodes[key] = Node(op, inputs, full, types, loc, len(self._nodes))
        return node

    def with_inputs(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        """``node`` over other operands; types are inferred anew only where the operands' types differ."""
        key = (node.op, inputs, node.attrs)
        found = self._nodes.get(key)
        if found is None:
            same = all([a.types == b.types for a, b in zip(inputs, node.inputs, strict=True)])
            types = node.types if same else self._infer(node.op, inputs, node.attrs, node.loc)
            found = self._nodes[key] = Node(node.op, inputs, node.attrs, types, node.loc, len(self._nodes))
        return found

    def owns(self, node: Node) -> bool:
        """Was ``node`` made by this pool?"""
        return self._nodes.get((node.op, node.inputs, node.attrs)) is node

    def _complete(self, op: OpDef, attrs: Mapping[str, AttrValue], loc: Loc) -> Attrs:
        if not op.attrs and not attrs:
            return NO_ATTRS
        try:
            return Attrs(op.complete_attrs(attrs))
        except OpError as e:
            raise CompileError(f"invalid {op.name}", [Problem(loc, op.name, e.message, e.remedy)]) from e

    def _infer(self, op: OpDef, inputs: tuple[Node, ...], attrs: Attrs, loc: Loc) -> tuple[TensorType, ...]:
        try:
            op.check_arity(len(inputs))
            types = inputs[0].types if op is PROJ else tuple(i.type for i in inputs)
            result = op.infer(types, attrs)
        except OpError as e:
            raise CompileError(f"invalid {op.name}", [Problem(loc, op.name, e.message, e.remedy)]) from e
        return result if isinstance(result, tuple) else (result,)

    def const(self, value: Array | float | int | bool, dtype: DType | None = None, loc: Loc = UNKNOWN) -> Node:
        """A constant; a Python number needs ``dtype``."""
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype.numpy)
        return self.add(CONST, (), {"data": Data(np.ascontiguousarray(array).reshape(array.shape))}, loc)

    def input(self, name: str, type_: TensorType, loc: Loc = UNKNOWN) -> Node:
        return self.add(INPUT, (), {"name": name, "dtype": type_.dtype, "shape": type_.shape}, loc)

    def results(self, node: Node) -> tuple[Node, ...]:
        """A node per result: the node itself when there is one, else its projections."""
        if len(node.types) == 1:
            return (node,)
        return tuple(self.add(PROJ, (node,), {"index": i}, node.loc) for i in range(len(node.types)))


@dataclass(frozen=True)
class Builder:
    """Adds nodes to a pool under one location: what decompositions, rewrites and frontends write with.

    ``b(ops.add, x, y)`` adds a node; ``b.const(2.0, x.dtype)`` a constant.
    """

    pool: Pool
    loc: Loc = UNKNOWN

    def __call__(self, op: OpDef, *inputs: Node, **attrs: AttrValue) -> Node:
        return self.pool.add(op, inputs, attrs, self.loc)

    def const(self, value: Array | float | int | bool, dtype: DType | None = None) -> Node:
        return self.pool.const(value, dtype, self.loc)

    def results(self, node: Node) -> tuple[Node, ...]:
        return self.pool.results(node)

    def at(self, loc: Loc) -> Builder:
        return Builder(self.pool, loc)


@dataclass(frozen=True, eq=False)
class Graph:
    """A function over tensors: ``inputs`` are ``input`` nodes in order, ``outputs`` any nodes with one result.

    ``constraints`` are relations between symbolic dimensions: each expression is ``>= 0``. Callers must keep those of
    the inputs' dimensions; a call fails as soon as data have decided a dimension that breaks another.
    ``checks`` say what is wrong where one of the last outputs, as many as there are checks, does not hold: a call then
    fails with that text. These outputs are 0-d bools and no results.
    """

    name: str
    pool: Pool
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    output_names: tuple[str, ...]
    constraints: tuple[Expr, ...] = field(default=())
    checks: tuple[str, ...] = field(default=())

    @property
    def n_results(self) -> int:
        """How many of the outputs callers get."""
        return len(self.outputs) - len(self.checks)

    def results(self) -> list[tuple[str, Node]]:
        """The outputs that callers get, by name."""
        return list(zip(self.output_names, self.outputs, strict=True))[: self.n_results]

    def conditions(self) -> tuple[Node, ...]:
        """The outputs that ``checks`` are about."""
        return self.outputs[self.n_results :]

    def unchecked(self) -> Graph:
        """The same function without checks."""
        n = self.n_results
        kept, names = self.outputs[:n], self.output_names[:n]
        return Graph(self.name, self.pool, self.inputs, kept, names, self.constraints) if self.checks else self

    def with_checks(self, checks: Mapping[str, Node]) -> Graph:
        """The same function with checks, by the text of each."""
        names = tuple(f"check:{k}" for k in range(len(checks)))
        outputs, texts = (*self.outputs, *checks.values()), (*self.checks, *checks)
        return Graph(
            self.name, self.pool, self.inputs, outputs, (*self.output_names, *names), self.constraints, texts
        )  # fmt: skip

    def apart(self) -> Graph:
        """The same function in a pool of its own: what only other graphs of the old one need can go."""
        pool = Pool()
        made: dict[Node, Node] = {}
        for node in topological((*self.inputs, *self.outputs)):
            made[node] = pool.with_inputs(node, tuple(made[i] for i in node.inputs))
        inputs, outputs = (tuple(made[x] for x in nodes) for nodes in (self.inputs, self.outputs))
        return Graph(self.name, pool, inputs, outputs, self.output_names, self.constraints, self.checks)

    def nodes(self) -> list[Node]:
        """Every node that an output depends on, operands first, in a fixed order; unused inputs are not in it."""
        return topological(self.outputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(n.attrs["name"] for n in self.inputs)

    def symbols(self) -> tuple[Sym, ...]:
        """The symbols of the input shapes, in order of first use."""
        found: dict[Sym, None] = {}
        for n in self.inputs:
            for d in n.shape:
                found.update(dict.fromkeys(sorted(symbols(d), key=lambda s: s.name)))
        return tuple(found)

    def with_outputs(self, outputs: Sequence[Node]) -> Graph:
        """The same function with other output nodes; ``self`` when nothing changed."""
        new = tuple(outputs)
        if len(new) == len(self.outputs) and all(a is b for a, b in zip(new, self.outputs, strict=True)):
            return self
        return Graph(self.name, self.pool, self.inputs, new, self.output_names, self.constraints, self.checks)


def topological(roots: Iterable[Node], known: Iterable[Node] = ()) -> list[Node]:
    """Every node reachable from ``roots``, operands before users, without recursion; stops at the ``known`` ones."""
    order: list[Node] = []
    done: set[Node] = set(known)
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
        elif todo := [i for i in node.inputs if i not in done]:
            stack += reversed(todo)
        else:
            done.add(node)
            order.append(node)
            stack.pop()
    return order
