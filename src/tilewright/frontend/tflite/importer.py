"""TFLite and LiteRT models (``.tflite``) into the graph IR.

In: a file's bytes. Out: a ``Graph`` whose inputs and outputs have the file's names; or one ``ImportFailed`` that lists
everything that stops the import. Not its business: what each operator becomes (``table``).

The package ``tflite`` reads the flatbuffer by the published schema. Sizes are those that the file states: a signature's
open sizes are not symbols. A file is data from anywhere: a number that leads outside of it is an error, never a read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.diag import CompileError, ImportFailed, Loc, OpError, OptionError, Problem
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import DType, TensorType
from tilewright.frontend.tflite.call import TfliteCall
from tilewright.frontend.tflite.table import CONVERTERS, REFUSED

SUFFIX = ".tflite"
MAGIC = b"TFL3"
"""Bytes 4 to 8 of a file."""
_FAULTS = (struct.error, IndexError, ValueError, TypeError, OverflowError, UnicodeDecodeError, AttributeError, KeyError)
"""What reading outside of a flatbuffer may raise."""
_TYPES: dict[str, DType] = {
    "FLOAT32": types.f32, "FLOAT16": types.f16, "FLOAT64": types.f64, "BFLOAT16": types.bf16, "BOOL": types.bool_,
    "INT8": types.i8, "INT16": types.i16, "INT32": types.i32, "INT64": types.i64, "UINT8": types.u8,
    "UINT16": types.u16, "UINT32": types.u32, "UINT64": types.u64,
}  # fmt: skip


def is_tflite(data: bytes) -> bool:
    """Do these bytes begin as a TFLite file does?"""
    return bytes(data[4:8]) == MAGIC


def import_tflite(data: bytes, name: str) -> Graph:
    """The graph of a file's first sub-graph; ``ImportFailed`` for what has no form here, and for a damaged file."""
    try:
        import tflite
    except ImportError as error:
        remedy = 'pip install "tilewright[tflite]"'
        raise OptionError("TFLite models need the package tflite", remedy=remedy) from error
    if not is_tflite(data):
        raise _broken(name, "it does not begin as a TFLite file does")
    try:
        return _Importer(tflite, data, name).graph()
    except _FAULTS as error:
        raise _broken(name, f"it is damaged: {type(error).__name__}: {error}"[:200]) from error


def _broken(name: str, rule: str) -> ImportFailed:
    return ImportFailed(
        "the TFLite model can't be read", [Problem(Loc(name), "TFLite", rule, "convert the model anew")]
    )


class _Importer:
    """One walk over a file's first sub-graph; ``values`` are the nodes of its tensors by number, None where lost."""

    def __init__(self, tflite: Any, data: bytes, name: str) -> None:
        self.tflite, self.data, self.name = tflite, data, name
        self.model = tflite.Model.GetRootAs(data, 0)
        if self.model.SubgraphsLength() < 1:
            raise _broken(name, "it has no sub-graph")
        self.sub = self.model.Subgraphs(0)
        self.builtins = _names(tflite.BuiltinOperator)
        self.type_names = _names(tflite.TensorType)
        self.b = Builder(Pool())
        self.values: dict[int, Node | None] = {}
        self.problems: list[Problem] = []

    def graph(self) -> Graph:
        names: set[str] = set()
        inputs = [self._input(int(k), names) for k in self.sub.InputsAsNumpy()]
        for k in range(self.sub.OperatorsLength()):
            self._operator(k)
        outputs = [(int(k), self._value(int(k))) for k in self.sub.OutputsAsNumpy()]
        if self.problems:
            raise ImportFailed(f"{len(self.problems)} parts of the TFLite model have no form here", self.problems)
        made = [n for _, n in outputs if n is not None]
        names = set()
        called = tuple(_fresh_name(self._tensor(k), k, names) for k, _ in outputs)
        title = re.sub(r"\W+", "_", self.name) or "model"
        return Graph(title, self.b.pool, tuple(n for n in inputs if n is not None), tuple(made), called)

    def _tensor(self, k: int) -> Any:
        if not 0 <= k < self.sub.TensorsLength():
            raise _broken(self.name, f"it has no tensor {k}")
        return self.sub.Tensors(k)

    def _type(self, k: int) -> TensorType:
        """A tensor's type; ``OpError`` for elements that are not read."""
        t = self._tensor(k)
        kind = self.type_names.get(t.Type(), "")
        if kind not in _TYPES:
            raise OpError(f"tensors of {kind or 'an unknown type'} are not read")
        if _is_quantised(t):
            raise OpError("quantised tensors are not read yet", remedy="convert the float model")
        shape = [int(n) for n in t.ShapeAsNumpy()] if t.ShapeLength() else []
        if min(shape, default=0) < 0:
            raise OpError(f"the shape {shape} is not known")
        return TensorType(_TYPES[kind], tuple(shape))

    def _input(self, k: int, names: set[str]) -> Node | None:
        name = _fresh_name(self._tensor(k), k, names)
        loc = Loc(f'input "{name}"')
        try:
            self.values[k] = self.b.pool.input(name, self._type(k), loc)
        except OpError as e:
            self._lost(loc, "input", e, [k])
        return self.values[k]

    def _lost(self, loc: Loc, op: str, e: OpError, results: Sequence[int]) -> None:
        self.problems.append(Problem(loc, op, e.message, e.remedy))
        self.values.update(dict.fromkeys(results))

    def _value(self, k: int) -> Node | None:
        """A tensor's node: what an operator made, or the file's numbers."""
        if k not in self.values:
            loc = Loc(f"tensor {k}")
            try:
                self.values[k] = self._constant(k, loc)
            except OpError as e:
                self._lost(loc, "constant", e, [k])
        return self.values[k]

    def _constant(self, k: int, loc: Loc) -> Node:
        t, number = self._type(k), self._tensor(k).Buffer()
        if not 0 <= number < self.model.BuffersLength():
            raise _broken(self.name, f"it has no buffer {number}")
        buffer = self.model.Buffers(number)
        data = buffer.DataAsNumpy() if buffer.DataLength() else np.zeros(0, np.uint8)
        if buffer.Offset() > 1:  # numbers of large models lie behind the flatbuffer
            first, size = buffer.Offset(), buffer.Size()
            if first + size > len(self.data):
                raise _broken(self.name, f"buffer {number} lies outside of the file")
            data = np.frombuffer(self.data, np.uint8, size, first)
        shape = [int(d) for d in t.shape if isinstance(d, int)]
        n_bytes = prod(shape) * t.dtype.n_bytes
        if data.size != n_bytes:
            raise OpError(f"{t} takes {n_bytes} bytes, and its buffer has {data.size}")
        return self.b.at(loc).const(np.frombuffer(data.tobytes(), t.dtype.numpy).reshape(shape))

    def _operator(self, k: int) -> None:
        op = self.sub.Operators(k)
        code = self.model.OperatorCodes(op.OpcodeIndex())
        # Old files have the op in a field of 7 bits, new ones in both or only in the other.
        name = self.builtins.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "")
        results = [int(r) for r in op.OutputsAsNumpy()] if op.OutputsLength() else []
        loc = Loc(f"operator {k} ({name or 'unknown'})")
        try:
            self._convert(op, name, results, loc)
        except OpError as e:
            self._lost(loc, name, e, results)
        except CompileError as e:
            self.problems += e.problems
            self.values.update(dict.fromkeys(results))

    def _convert(self, op: Any, name: str, results: Sequence[int], loc: Loc) -> None:
        if name not in CONVERTERS:
            rule, remedy = REFUSED.get(name, ("is not of the schema that is read", "convert with an older converter"))
            raise OpError(f"{name or 'an operator'} {rule}", remedy=remedy)
        numbers = [int(i) for i in op.InputsAsNumpy()] if op.InputsLength() else []
        inputs = [None if i < 0 else self._value(i) for i in numbers]
        if any(i >= 0 and x is None for i, x in zip(numbers, inputs, strict=True)):
            self.values.update(dict.fromkeys(results))  # what stopped an operand is told already
            return
        of_results = [self._type(r) for r in results]
        shapes = [tuple(int(d) for d in t.shape if isinstance(d, int)) for t in of_results]
        call = TfliteCall(self.b.at(loc), name, inputs, self._options(op), shapes, [t.dtype for t in of_results])
        made = CONVERTERS[name](call)
        nodes = [made] if isinstance(made, Node) else list(made)
        if len(nodes) != len(results):
            raise OpError(f"it has {len(results)} results and makes {len(nodes)}")
        self.values.update(zip(results, nodes, strict=True))

    def _options(self, op: Any) -> Any:
        """The operator's options by the schema; None where it has none."""
        kind = _names(self.tflite.BuiltinOptions).get(op.BuiltinOptionsType())
        table = op.BuiltinOptions()
        if table is None or kind in (None, "NONE"):
            return None
        options = getattr(self.tflite, str(kind))()
        options.Init(table.Bytes, table.Pos)
        return options


def _names(enum: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enum).items() if isinstance(value, int)}


def _is_quantised(t: Any) -> bool:
    quantised = t.Quantization()
    return quantised is not None and quantised.ScaleLength() > 0


def _fresh_name(tensor: Any, k: int, taken: set[str]) -> str:
    """The file's name of a tensor as an identifier that nothing has."""
    raw = tensor.Name()
    name = re.sub(r"\W+", "_", raw.decode("utf-8") if raw else "").strip("_")
    name = name if name and not name[0].isdigit() else f"tensor_{name or k}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
