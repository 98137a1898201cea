"""A quantised ONNX model that grows node by node, with what each node gives.

In: names of ops with operands and attributes. Out: the model, its inputs, the values of its outputs. Not its business:
which nodes are made (``quantised_graphs``), what one gives (``quantised_meaning``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

import quantised_meaning

Array = np.ndarray
BYTES = (np.uint8, np.int8)
SHORTS = (np.uint16, np.int16)
NIBBLES = (ml_dtypes.uint4, ml_dtypes.int4)
CRUMBS = (ml_dtypes.uint2, ml_dtypes.int2)
SMALL_FLOATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)
SINCE = {**dict.fromkeys(BYTES, 10), **dict.fromkeys(SMALL_FLOATS, 19), **dict.fromkeys(SHORTS + NIBBLES, 21),
         ml_dtypes.float4_e2m1fn: 23, **dict.fromkeys(CRUMBS, 25)}  # fmt: skip
"""The operator set that first quantises to a type."""
OPSETS = (13, 17, 19, 21, 21, 21, 23, 25)
MOST_ELEMENTS = 6000
GRAIN = 2.0**40  # parts of one that any exact number here is a multiple of
FITS = 2.0**24  # that many grains a sum in f32 may have
MICROSOFT = "com.microsoft"


class Unfit(Exception):
    """What was drawn makes no valid node; another is drawn."""


@dataclass(frozen=True)
class Value:
    """A tensor of the model; ``exact`` where no rounding of floats decides what it is."""

    name: str
    array: Array
    exact: bool = True
    parameters: tuple[str, str | None, dict[str, int]] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        return self.array.dtype.type


@dataclass(frozen=True)
class Made:
    model: onnx.ModelProto
    feeds: dict[str, Array]
    expected: list[Value]


def element_type(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def bounds(dtype: Any) -> tuple[int, int]:
    found = ml_dtypes.iinfo(dtype) if dtype in NIBBLES + CRUMBS else np.iinfo(dtype)
    return int(found.min), int(found.max)


def grains(a: Array) -> float:
    """The largest number of ``a`` in units of the largest power of two that divides all; infinite where none does."""
    scaled = np.abs(a.astype(np.float64)) * GRAIN
    if not np.isfinite(scaled).all() or (scaled >= 2.0**62).any() or (scaled % 1).any():
        return np.inf
    whole = scaled.astype(np.int64)
    whole = whole[whole > 0]
    return float(whole.max() / (whole & -whole).min()) if whole.size else 1.0


@dataclass
class Grower:
    """Grows one model: every node is computed as it is made."""

    rng: np.random.Generator
    opset: int = 21
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, Array] = field(default_factory=dict)
    symbolic: set[str] = field(default_factory=set)
    values: list[Value] = field(default_factory=list)
    n_names: int = 0

    # --- choosing

    def choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low: int, high: int) -> int:
        """Between ``low`` and ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, keep: Callable[[Value], bool]) -> Value:
        """One of the values that fit, the newer ones more often."""
        fitting = [v for v in self.values if keep(v)]
        if not fitting:
            raise Unfit("nothing fits")
        return fitting[-1 - int(len(fitting) * self.rng.random() ** 2)]

    def codes(self, keep: Callable[[Value], bool] = lambda v: True, types: Sequence[Any] = BYTES) -> Value:
        return self.pick(lambda v: v.exact and v.dtype in types and keep(v))

    # --- making

    def name(self) -> str:
        self.n_names += 1
        return f"t{self.n_names}"

    def known(self, value: Any, dtype: Any = None) -> str:
        """A constant, or rarely an input, so that nothing is known of it."""
        array, name = np.asarray(value, dtype), self.name()
        (self.inputs if self.chance(0.06) else self.constants)[name] = array
        return name

    def fixed(self, value: Any, dtype: Any = None) -> str:
        """What shapes depend on."""
        self.constants[name := self.name()] = np.asarray(value, dtype)
        return name

    def array_of(self, name: str) -> Array:
        for arrays in (self.constants, self.inputs):
            if name in arrays:
                return arrays[name]
        return next(v.array for v in self.values if v.name == name)

    def add(self, op: str, *operands: str | Value | None, exact: Any = True, domain: str = "", n_results: int = 1,
            **attrs: Any) -> Value:  # fmt: skip
        """The node's first result; its type and shape are those that the reference gives."""
        names = ["" if o is None else o.name if isinstance(o, Value) else o for o in operands]
        node = helper.make_node(op, names, [self.name() for _ in range(n_results)], domain=domain, **attrs)
        results = self.evaluate(node)
        if any(r.size > MOST_ELEMENTS for r in results):
            raise Unfit("too large")
        exact = exact and all(o.exact for o in operands if isinstance(o, Value))
        self.nodes.append(node)
        made = [Value(n, r, bool(exact)) for n, r in zip(node.output, results, strict=True)]
        self.values += made
        return made[0]

    def rounded(self, op: str, *operands: str | Value | None, **attrs: Any) -> Value:
        """A node of floats, exact where f64 gives nothing else."""
        made = self.add(op, *operands, **attrs)
        if made.exact and made.dtype is np.float32:
            node = self.nodes[-1]
            wide = self.evaluate(node, lambda a: a.astype(np.float64) if a.dtype == np.float32 else a)[0]
            if not np.array_equal(wide, made.array, equal_nan=True) or grains(made.array) >= FITS:
                made = self.replaced(made, exact=False)
        return made

    def replaced(self, value: Value, **changes: Any) -> Value:
        made = Value(**{**vars(value), **changes})
        self.values[self.values.index(value)] = made
        return made

    def evaluate(self, node: onnx.NodeProto, change: Callable[[Array], Array] = lambda a: a) -> list[Array]:
        operands = [change(self.array_of(n)) if n else None for n in node.input]
        try:
            with np.errstate(all="ignore"):
                return quantised_meaning.results(node, operands, self.opset)
        except Exception as e:  # the reference checks little, and fails in many ways
            raise Unfit(f"{node.op_type}: {e}") from e

    def proto(self, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], given: Any = ()) -> Any:
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(given))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10 if self.opset < 23 else 11)

    def finished(self) -> Made:
        """The model; its outputs are what nothing reads, and some of what something reads."""
        read = {n for node in self.nodes for n in node.input}
        made = {n for node in self.nodes for n in node.output}
        expected = [v for v in self.values if v.name in made and (v.name not in read or self.chance(0.1))]
        inputs = [self.input_info(n, a) for n, a in self.inputs.items()]
        outputs = [
            helper.make_tensor_value_info(v.name, element_type(v.array.dtype), [None] * v.rank) for v in expected
        ]
        given = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        return Made(self.proto(self.nodes, inputs, outputs, given), self.inputs, expected)

    def input_info(self, name: str, a: Array) -> onnx.ValueInfoProto:
        dims: list[Any] = list(a.shape)
        if name in self.symbolic:
            dims[0] = f"n{dims[0]}"
        return helper.make_tensor_value_info(name, element_type(a.dtype), dims)

    # --- numbers

    def numbers(self, shape: Sequence[int], dtype: Any) -> Array:
        """Any codes, or only those at the ends."""
        low, high = bounds(dtype)
        if self.chance(0.15):
            return self.rng.choice([low, high], tuple(shape)).astype(dtype)
        return self.rng.integers(low, high + 1, tuple(shape)).astype(dtype)

    def scale(self, shape: Sequence[int] = (), dtype: Any = np.float32) -> Array:
        return np.asarray(2.0 ** self.rng.integers(-7, -2, tuple(shape)), dtype)

    def zero(self, dtype: Any, shape: Sequence[int] = ()) -> Array:
        """Zero points: all 0, or any even numbers, to which half a step is rounded alike before and after the sum."""
        if dtype in (*SMALL_FLOATS, ml_dtypes.float4_e2m1fn):
            return np.zeros(shape, dtype)
        if self.chance(0.3):
            return np.zeros(shape, dtype)
        low, high = bounds(dtype)
        return np.asarray(self.rng.integers(low, high + 1, tuple(shape)) // 2 * 2).astype(dtype)

    def add_input(self) -> Value:
        spatial = [self.integer(1, 9) for _ in range(self.choose((0, 0, 1, 1, 2, 2, 2, 3)))]
        shape = [self.integer(1, 4), self.choose((1, 3, 4, 6, 8, 16, 17, self.integer(1, 40))), *spatial]
        dtype = self.choose(BYTES)
        self.inputs[name := self.name()] = self.numbers(shape, dtype)
        if self.chance(0.3):
            self.symbolic.add(name)
        self.values.append(Value(name, self.inputs[name]))
        return self.values[-1]
