"""What converters of ONNX nodes read and write with.

In: one node's operands and attributes, checked on access. Out: nodes of the graph IR, folded while they are added
wherever a model computes shapes. Not its business: walking the model (``onnx.walk``), what ops mean (``onnx_ops_*``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from tilewright import ops
from tilewright.core.diag import CompileError, Loc, OpError
from tilewright.core.dims import are_known, is_known, known_at_most, numbers
from tilewright.core.expr import Dim, Expr, is_nonneg, maximum, symbols
from tilewright.core.graph import CONST, INPUT, Attrs, Data, Graph, Node, Pool
from tilewright.core.opdef import OpDef, Trait
from tilewright.core.types import WHOLE, Array, DType, TensorType, bool_, f8e8m0, f32, i32, i64
from tilewright.frontend.homes import Homes
from tilewright.frontend.index_checks import Formals
from tilewright.frontend.onnx import shapes as onnx_shapes
from tilewright.frontend.onnx import unify as onnx_unify
from tilewright.frontend.onnx.file import BadTensor, TensorReader, element_type
from tilewright.frontend.onnx.shapes import MAX_VALUES, Values
from tilewright.ops.value_bounds import bounds_of

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto

MAX_FOLDED_OPERAND = 1 << 16
MAX_SIZES = 16
FIX_REMEDY = "make it a constant, compute it from the Shape of an input, or fix input shapes with input_shapes="
BOUND_REMEDY = "bound it by a number or a size (Min, Clip), or compute it from the Shape of an input"


class Refused(Exception):
    """A node that can't be converted: the rule it breaks and what the user can do; located by the importer."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        self.rule, self.remedy = rule, remedy
        super().__init__(rule)


class Undecided(Refused):
    """A node that can't be converted before the values of the model's ``inputs`` are known."""

    def __init__(self, rule: str, remedy: str, inputs: Sequence[str]) -> None:
        self.inputs = tuple(inputs)
        super().__init__(rule, remedy)


class NotTensors(Refused):
    """A sub-graph gives a sequence or optional, which only a branch or a step taken in place can."""

    def __init__(self) -> None:
        super().__init__("a sub-graph gives a sequence or optional", "only tensors can leave If, Loop and Scan")


class UseDefinition(Exception):
    """The converter has no direct form; ONNX's own definition of the op by other ops is to be expanded instead."""


@dataclass(frozen=True)
class Items:
    """An ONNX sequence whose length is known at import: its tensors in order."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Stacked:
    """An ONNX sequence whose length a call decides: its tensors, of one shape, along a first axis; and the inputs whose
    values alone decide the length, where there are such."""

    node: Node
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class Absent:
    """An ONNX optional without an element."""


Value: TypeAlias = "Node | Items | Stacked | Absent"
Results: TypeAlias = "Value | Sequence[Value | None]"


class Emitter:
    """Adds nodes to the pool, folding constants and shape arithmetic as it goes.

    ``values`` of a node are its elements as far as they are known: numbers, or expressions over symbolic dimensions.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._values: dict[Node, Values] = {}
        self._n_fresh = 0
        self.wanted_equal: list[tuple[Dim, Dim]] = []
        self.decidable: set[Node] = set()  # inputs of the model whose values a call may decide the structure by
        self.homes = Homes()  # of the graph or sub-graph that is being made
        self.formals = Formals()  # what inputs of sub-graphs stand for

    def deciding(self, node: Node) -> tuple[str, ...]:
        """The inputs of the model that alone decide the node's value; none when something else does too."""
        found: dict[str, None] = {}
        stack, seen = [node], {node}
        while stack:
            n = stack.pop()
            if n in self.formals.outside:
                below: tuple[Node, ...] = (self.formals.outside[n],)
            elif n.op is INPUT:
                if n not in self.decidable:
                    return ()
                found[n.attrs["name"]] = None
                below = ()
            elif self._values.get(n) is not None:
                below = ()
            elif n.op.traits & {Trait.CONTROL, Trait.RANDOM}:
                return ()
            else:
                below = n.inputs
            stack += [b for b in below if b not in seen]
            seen.update(below)
        return tuple(found)

    def values(self, node: Node) -> Values | None:
        """The node's elements as an object array, or None when they depend on the data or are many."""
        known = self._values.get(node)
        if known is None and node.op is CONST:
            array: Array = node.attrs.data.array
            if array.size <= MAX_VALUES:
                plain = array if array.dtype.kind in "biuf" else array.astype(np.float64)  # bf16 is foreign to NumPy
                known = self._values[node] = np.asarray(plain.astype(object))
        return known

    def fresh(self, name: str) -> str:
        """A symbol's name that no other node of this import uses."""
        self._n_fresh += 1
        return f"{name}_{self._n_fresh}"

    def note(self, node: Node, values: Values) -> Node:
        """Remember the node's elements; returns the node."""
        self._values[node] = values
        return node

    def add(self, op: OpDef, inputs: Sequence[Node], attrs: Mapping[str, Any], loc: Loc) -> Node:
        """The node ``op(inputs, attrs)``, or a simpler node of the same value."""
        inputs = self.homes.tied(self.pool, op, inputs, attrs, loc)
        try:
            node = self.pool.add(op, inputs, attrs, loc)
        except CompileError:
            if all(len(x.types) == 1 for x in inputs):
                self._learn(op, inputs, attrs)
            raise
        self.homes.house(self.pool, node)
        if any(onnx_shapes.is_long(d) for t in node.types for d in t.shape if isinstance(d, Expr)):
            raise Refused("its result has a dimension too long to write down", FIX_REMEDY)
        if len(node.types) != 1 or op is CONST or op.traits & {Trait.CONTROL, Trait.RANDOM}:
            return node
        folded = self._folded(node)
        if folded is not None:
            return folded
        operands = [self.values(x) for x in inputs]
        known = [v for v in operands if v is not None]
        if not known or len(known) != len(operands):
            return node
        value = onnx_shapes.evaluate(op, known, node.attrs, node.type)
        return node if value is None else self.of_values(value, node, loc)

    def _learn(self, op: OpDef, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> None:
        """Note which dimensions a refused node wants equal; its attributes may be what is wrong with it."""
        try:
            self.wanted_equal += onnx_unify.wanted_equal(op, [x.type for x in inputs], op.complete_attrs(attrs))
        except (OpError, IndexError, ValueError):
            return

    def of_values(self, values: Values, like: Node | DType, loc: Loc) -> Node:
        """A node with these elements; ``like`` gives the dtype, and stands for symbolic values that no op can state."""
        dtype = like if isinstance(like, DType) else like.dtype
        if not onnx_shapes.is_symbolic(values):
            return self.note(
                self.pool.const(np.array(values.tolist(), dtype.numpy).reshape(values.shape), None, loc), values
            )
        if isinstance(like, Node) and not dtype.is_integer:
            return self.note(like, values)
        attrs = {"dims": tuple(values.flat)}
        node = self.pool.add(ops.dim_values, self.homes.tied(self.pool, ops.dim_values, (), attrs, loc), attrs, loc)
        if values.ndim != 1:
            node = self.pool.add(ops.reshape, (node,), {"shape": values.shape}, loc)
        if dtype is not i64:
            node = self.pool.add(ops.cast, (node,), {"dtype": dtype}, loc)
        return self.note(node, values)

    def _folded(self, node: Node) -> Node | None:
        """The constant that a small node over constants has as its value; dequantised weights stay in their bytes."""
        if node.op is ops.dequantize_linear:
            return None
        arrays = [x.attrs.data.array for x in node.inputs if x.op is CONST]
        if len(arrays) != len(node.inputs) or sum(a.size for a in arrays) > MAX_FOLDED_OPERAND:
            return None
        if _has_symbols(node.attrs):
            return None
        size = node.type.n_elements
        if (size > MAX_VALUES) if is_known(size) else not arrays:
            return None
        with np.errstate(all="ignore"):
            result = node.op.reference(arrays, node.attrs)
        assert not isinstance(result, tuple)
        return self.pool.const(np.asarray(result).astype(node.dtype.numpy, copy=False), None, node.loc)


def _has_symbols(attrs: Attrs) -> bool:
    stack: list[Any] = list(attrs.values())
    while stack:
        v = stack.pop()
        if isinstance(v, tuple):
            stack.extend(v)
        elif isinstance(v, Expr) and symbols(v):
            return True
    return False


@dataclass(frozen=True)
class BodySpec:
    """A sub-graph to close over inputs of ``types``.

    ``bind`` gives the sub-graph's operands from those inputs and from nodes outside, which its second argument takes
    inside; by default the inputs themselves. ``finish`` turns its results into those of the body.
    """

    graph: GraphProto
    types: Sequence[TensorType]
    bind: Callable[[list[Node], Callable[[Node], Node]], list[Node]] | None = None
    finish: Callable[[list[Node]], list[Node]] | None = None


@dataclass(frozen=True)
class Body:
    """A closed sub-graph import: ``captured`` outer nodes are its last inputs. Its graphs have what they check."""

    graphs: tuple[Graph, ...]
    captured: tuple[Node, ...]


class Host(Protocol):
    """What the importer offers to converters of nodes with sub-graphs."""

    def inline(self, graph: GraphProto, operands: Sequence[Value]) -> list[Value]:
        """The sub-graph's outputs, its nodes added to the enclosing graph."""

    def call(self, function: str, operands: Sequence[Value]) -> list[Value]:
        """The results of a function in ONNX's text form, its nodes added to the enclosing graph."""

    def bodies(self, specs: Sequence[BodySpec]) -> Body:
        """The sub-graphs closed: first their own inputs, then what any of them reads from outside."""

    def require(self, nonneg: Expr) -> None:
        """Let every run of the graph that this is in keep ``nonneg >= 0``: a call's sizes, or what data decide."""

    def assume(self, nonneg: Expr) -> bool:
        """The same, where the sizes that a call begins with decide it; False, and nothing, elsewhere."""

    def mark(self) -> int:
        """The present place in the list of problems."""

    def reset(self, mark: int) -> None:
        """Forget the problems found since ``mark``: another form is tried."""

    def check(self, holds: Node, text: str) -> None:
        """Let a call, or a run of the sub-graph that this is in, fail with ``text`` where ``holds``, 0-d, is false."""

    def only_misfits(self, mark: int) -> bool:
        """Are all problems found since ``mark`` of ops whose operands' types do not go together?"""


class Call:
    """One node being converted: ``c(op, *nodes, **attrs)`` adds a node of the graph IR under its location."""

    def __init__(
        self,
        emitter: Emitter,
        reader: TensorReader,
        host: Host,
        loc: Loc,
        op_type: str,
        opset: int,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        outputs: Sequence[str],
    ) -> None:
        self.emitter, self.host, self.loc, self.op_type, self.opset = emitter, host, loc, op_type, opset
        self.inputs, self.outputs = list(inputs), list(outputs)
        self._attributes, self._reader = attributes, reader
        self._read: set[str] = set()

    # --- writing ---

    def __call__(self, op: OpDef, *inputs: Node, **attrs: Any) -> Node:
        return self.emitter.add(op, inputs, attrs, self.loc)

    def results(self, node: Node) -> tuple[Node, ...]:
        return self.emitter.pool.results(node)

    def const(self, value: Any, dtype: DType) -> Node:
        return self.emitter.pool.const(value, dtype, self.loc)

    def array(self, array: Array) -> Node:
        """A constant that views ``array``."""
        data = np.asarray(array) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)
        return self.emitter.pool.add(CONST, (), {"data": Data(data)}, self.loc)

    def dim_values(self, dims: Sequence[Dim], dtype: DType = i64) -> Node:
        """A 1-D tensor of dimensions."""
        return self.emitter.of_values(onnx_shapes.as_values(dims), dtype, self.loc)

    def dim_value(self, dim: Dim, dtype: DType = i64) -> Node:
        """A 0-d tensor of a dimension."""
        return self.emitter.of_values(onnx_shapes.as_values([dim]).reshape(()), dtype, self.loc)

    def cast(self, x: Node, dtype: DType, *, saturate: bool = True, rounding: str = "nearest") -> Node:
        """``x`` as ``dtype``; the last two are for narrow types, see ``ops.encode``."""
        if x.dtype is dtype:
            return x
        if x.dtype.is_narrow:
            return self.cast(self(ops.decode, x), dtype, saturate=saturate, rounding=rounding)
        if dtype.is_narrow:
            wide = self.cast(x, i32 if dtype in WHOLE else f32)
            rounding = rounding if dtype is f8e8m0 else "nearest"
            return self(ops.encode, wide, dtype=dtype, saturate=saturate, rounding=rounding)
        return self(ops.cast, x, dtype=dtype)

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        return x if x.shape == tuple(shape) else self(ops.reshape, x, shape=tuple(shape))

    def expand(self, x: Node, shape: Sequence[Dim]) -> Node:
        return x if x.shape == tuple(shape) else self(ops.expand, x, shape=tuple(shape))

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        return x if list(perm) == list(range(len(perm))) else self(ops.transpose, x, perm=tuple(perm))

    def full(self, value: Any, dtype: DType, shape: Sequence[Dim]) -> Node:
        """A tensor with one value everywhere, never stored element by element."""
        return self.expand(self.const(value, dtype), shape)

    def slice_axis(self, x: Node, axis: int, start: Dim, stop: Dim) -> Node:
        """Elements ``start`` to ``stop`` along one axis."""
        if start == 0 and stop == x.shape[axis]:
            return x
        starts: list[Dim] = [0] * len(x.shape)
        stops = list(x.shape)
        starts[axis], stops[axis] = start, stop
        return self(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(x.shape))

    def align(self, x: Node, axis: int, rank: int) -> Node:
        """A 1-D tensor shaped so that it broadcasts along ``axis`` of a tensor of ``rank``."""
        return self.reshape(x, [x.type.n_elements if k == axis else 1 for k in range(rank)])

    def assume(self, *nonneg: Dim) -> None:
        """Let calls keep each of these at 0 or above, where that is not certain and the inputs decide it."""
        for e in nonneg:
            if isinstance(e, Expr) and not is_nonneg(e):
                self.host.require(e)

    def assume_equal(self, a: Dim, b: Dim) -> None:
        """Let calls keep two sizes equal, where that is not certain and the inputs decide it."""
        if a != b:
            self.assume(a - b, b - a)

    def require_equal(self, a: Dim, b: Dim, rule: str) -> None:
        """Refuse unless two sizes are equal; the importer starts again where symbols of the inputs can make them so."""
        if a != b:
            self.emitter.wanted_equal.append((a, b))
            self.refuse(rule)

    # --- operands ---

    def refuse(self, rule: str, remedy: str = "") -> NoReturn:
        raise Refused(rule, remedy)

    def value(self, i: int) -> Value | None:
        """Operand ``i``, or None where the node leaves it out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def opt(self, i: int) -> Node | None:
        """Tensor operand ``i``, or None where the node leaves it out."""
        value = self.value(i)
        if isinstance(value, Items | Stacked | Absent):
            self.refuse(f"operand {i} must be a tensor, not a sequence or an empty optional")
        return value

    def x(self, i: int) -> Node:
        """Tensor operand ``i``, which must be there."""
        value = self.opt(i)
        if value is None:
            self.refuse(f"operand {i} is missing", "the model is damaged; export it again")
        return value

    def nodes(self) -> list[Node]:
        """All operands, each of which must be there."""
        return [self.x(i) for i in range(len(self.inputs))]

    def wants(self, i: int) -> bool:
        """Does the model read result ``i``?"""
        return i < len(self.outputs) and self.outputs[i] != ""

    def known(self, node: Node, what: str) -> Values:
        """The elements of ``node``, refused when they depend on the data."""
        values = self.emitter.values(node)
        if values is None:
            self._undecided(
                node, f"{what} depends on the data ({node.op.name}), and shapes must be known when compiling"
            )
        return values

    def decided(self, node: Node, what: str) -> None:
        """Wait for the call's inputs where they alone decide the node's value."""
        inputs = () if self.emitter.values(node) is not None else self.emitter.deciding(node)
        if inputs:
            raise Undecided(f"{what} depends on the data ({node.op.name})", FIX_REMEDY, inputs)

    def _undecided(self, node: Node, rule: str, remedy: str = FIX_REMEDY) -> NoReturn:
        """Refuse, until a call gives the values of the inputs that decide the node where there are such."""
        inputs = self.emitter.deciding(node)
        if inputs:
            raise Undecided(rule, remedy, inputs)
        self.refuse(rule, remedy)

    def dims(self, node: Node, what: str) -> list[Dim]:
        """The elements of an integer tensor as dimensions."""
        found = list(self.known(node, what).flat)
        if not node.dtype.is_integer or not all(isinstance(d, int | Expr) for d in found):
            self.refuse(f"{what} must hold integers, not {node.dtype}")
        return found

    def sizes(self, node: Node, what: str) -> list[Dim]:
        """The elements of an integer tensor as dimensions, those that only data decide as new bounded symbols."""
        if self.emitter.values(node) is not None or not node.dtype.is_integer or len(node.shape) > 1:
            return self.dims(node, what)
        self.decided(node, what)
        return [self.size(e, what) if isinstance(e, Node) else e for e in self.elements(node, what)]

    def elements(self, node: Node, what: str) -> list[Dim | Node]:
        """The elements of a small integer tensor: dimensions where they are known, else 0-d nodes."""
        if self.emitter.values(node) is not None:
            return list(self.dims(node, what))
        if node.op is ops.concat:
            return [e for i in node.inputs for e in self.elements(i, what)]
        n = node.type.n_elements
        if not known_at_most(n, MAX_SIZES):
            self.refuse(f"{what} depends on the data and has {n} elements", FIX_REMEDY)
        if n == 1:
            return [self.reshape(node, ())]
        if node.op is ops.reshape:
            return self.elements(node.inputs[0], what)
        if node.op is ops.cast and node.inputs[0].dtype.is_integer:
            found = self.elements(node.inputs[0], what)
            return [self.cast(e, node.dtype) if isinstance(e, Node) else e for e in found]
        flat = self.reshape(node, (n,))
        return [self(ops.gather, flat, self.const(k, i64), axis=0) for k in range(n)]

    def size(self, number: Node, what: str) -> Dim:
        """The size that a 0-d integer node says: a symbol, bounded by what its value can be."""
        while number.op is ops.reshape or (number.op is ops.cast and number.inputs[0].dtype.is_integer):
            number = number.inputs[0]
        number = self.reshape(number, ())
        known = self.emitter.values(number)
        if known is not None:
            return self.dims(number, what)[0]
        homes = self.emitter.homes
        if number not in homes.sizes:
            most = bounds_of(number, self.emitter.formals.outside)[1]
            if most is None:
                self.refuse(f"{what} depends on the data ({number.op.name}), and nothing bounds it", BOUND_REMEDY)
            marker = self(ops.as_size, number, count=self.emitter.fresh("n_data"), most=maximum(most, 0))
            homes.sizes[number] = marker.types[0].shape[1]
        return homes.sizes[number]

    def ints_of(self, node: Node, what: str) -> list[int]:
        """The elements of a constant integer tensor."""
        found = self.dims(node, what)
        if not are_known(found):
            self._undecided(node, f"{what} depends on a symbolic dimension", "fix that dimension with input_shapes=")
        return numbers(found)

    def number(self, node: Node, what: str) -> Any:
        """The one element of a constant tensor as a Python number."""
        found = self.known(node, what)
        if found.size != 1 or not isinstance(found.flat[0], int | float):
            self._undecided(node, f"{what} must be one constant number")
        return found.flat[0]

    def axis(self, axis: int, rank: int, what: str = "axis") -> int:
        """A possibly negative axis made non-negative and checked."""
        if not -rank <= axis < rank:
            self.refuse(f"{what} {axis} is outside of a tensor of rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """Distinct axes made non-negative."""
        found = [self.axis(a, rank, "axes") for a in axes]
        if len(set(found)) != len(found):
            self.refuse(f"axes {list(axes)} name one axis twice")
        return found

    # --- attributes ---

    def has(self, name: str) -> bool:
        return name in self._attributes

    def ignore(self, *names: str) -> None:
        """These attributes have no effect on inference."""
        self._read.update(names)

    def unread(self) -> list[str]:
        """Attributes that the converter did not look at."""
        return [name for name in self._attributes if name not in self._read]

    def _attribute(self, name: str, kind: int, kind_name: str) -> AttributeProto | None:
        self._read.add(name)
        found = self._attributes.get(name)
        if found is not None and found.type != kind:
            self.refuse(f"attribute {name} must be {kind_name}")
        return found

    def _required(self, name: str, value: Any) -> Any:
        if value is None:
            self.refuse(f"attribute {name} is missing")
        return value

    def int_(self, name: str, default: int | None = None) -> int:
        a = self._attribute(name, 2, "an integer")
        return int(self._required(name, default if a is None else a.i))

    def flag(self, name: str, default: bool = False) -> bool:
        return self.int_(name, int(default)) != 0

    def float_(self, name: str, default: float | None = None) -> float:
        a = self._attribute(name, 1, "a float")
        return float(self._required(name, default if a is None else a.f))

    def str_(self, name: str, default: str | None = None) -> str:
        a = self._attribute(name, 3, "a string")
        return str(self._required(name, default if a is None else a.s.decode("utf-8", "replace")))

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        value = self.str_(name, default)
        if value not in allowed:
            self.refuse(f"attribute {name}={value!r} is not supported", f"supported: {', '.join(allowed)}")
        return value

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        a = self._attribute(name, 7, "a list of integers")
        return [int(v) for v in self._required(name, default if a is None else a.ints)]

    def floats(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        a = self._attribute(name, 6, "a list of floats")
        return [float(v) for v in self._required(name, default if a is None else a.floats)]

    def strs(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        a = self._attribute(name, 8, "a list of strings")
        return list(self._required(name, default)) if a is None else [s.decode("utf-8", "replace") for s in a.strings]

    def graph(self, name: str) -> GraphProto:
        a = self._attribute(name, 5, "a graph")
        return self._required(name, None if a is None else a.g)  # type: ignore[no-any-return]

    def dtype(self, name: str, default: DType | None = None) -> DType:
        """An attribute that holds a ``TensorProto.DataType``."""
        if default is not None and not self.has(name):
            return default
        try:
            return element_type(self.int_(name))
        except BadTensor as e:
            self.refuse(f"attribute {name}: {e.rule}", e.remedy)

    def tensor(self, name: str) -> Array | None:
        """A tensor attribute's array, or None."""
        sparse = self._attributes.get(name)
        try:
            if sparse is not None and sparse.type == 11:
                self._read.add(name)
                return self._reader.read_sparse(sparse.sparse_tensor)
            a = self._attribute(name, 4, "a tensor")
            return None if a is None else self._reader.read(a.t)
        except BadTensor as e:
            self.refuse(f"attribute {name} {e.rule}", e.remedy)


Converter: TypeAlias = Callable[[Call], Results]
Table: TypeAlias = Mapping[str, Converter]


def as_bool(c: Call, x: Node) -> Node:
    """A condition operand, which must be bool."""
    if x.dtype is not bool_:
        c.refuse(f"the condition must be bool, not {x.dtype}")
    return x
