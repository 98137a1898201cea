"""TFLite files of a few operators, built by the published schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

RESOURCE = np.dtype("V4")
"""Stands for handles of variables."""
KINDS = {
    np.dtype(np.float32): "FLOAT32", np.dtype(np.float16): "FLOAT16", np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64", np.dtype(np.bool_): "BOOL", np.dtype(np.int8): "INT8", np.dtype(np.uint8): "UINT8",
    np.dtype(np.int16): "INT16", np.dtype(np.float64): "FLOAT64", np.dtype(np.uint16): "UINT16",
    np.dtype(np.uint32): "UINT32", np.dtype(np.uint64): "UINT64", np.dtype(np.complex64): "COMPLEX64",
    RESOURCE: "RESOURCE",
}  # fmt: skip


@dataclass(frozen=True)
class Codes:
    """How a tensor is quantised: ``(code - zero) * scale``, with several scales along ``axis``."""

    scale: Any
    zero: Any = 0
    axis: int = 0


@dataclass(frozen=True)
class Sparsity:
    """Which numbers of a constant are stored: an order of dimensions and those of blocks, which dimension each block is
    of, and for each in order its size, or segments and places."""

    order: list[int]
    blocks: list[int]
    levels: list[Any]


@dataclass
class TfliteModel:
    """Tensors, numbers and operators; tensors are numbered in the order in which they are added."""

    tensors: list[tuple[str, tuple[int, ...], str, Any]] = field(default_factory=list)
    operators: list[tuple[str, list[int], list[int], str, dict[str, Any]]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    codes: dict[int, Codes] = field(default_factory=dict)
    variables: set[int] = field(default_factory=set)
    sparsity: dict[int, Sparsity] = field(default_factory=dict)
    betweens: dict[int, list[int]] = field(default_factory=dict)

    def _tensor(
        self, name: str, shape: tuple[int, ...], dtype: Any, data: Any = None, codes: Codes | None = None
    ) -> int:
        self.tensors.append((name, shape, KINDS[np.dtype(dtype)], data))
        if codes is not None:
            self.codes[len(self.tensors) - 1] = codes
        return len(self.tensors) - 1

    def input(self, like: np.ndarray, codes: Codes | None = None) -> int:
        self.inputs.append(self._tensor(f"x{len(self.inputs)}", like.shape, like.dtype, codes=codes))
        return self.inputs[-1]

    def const(self, a: np.ndarray, codes: Codes | None = None) -> int:
        return self._tensor(f"c{len(self.tensors)}", a.shape, a.dtype, a, codes)

    def sparse(self, shape: tuple[int, ...], stored: np.ndarray, sparsity: Sparsity, codes: Codes | None = None) -> int:
        """A constant of which only some numbers are stored."""
        self.sparsity[at := self._tensor(f"c{len(self.tensors)}", shape, stored.dtype, stored, codes)] = sparsity
        return at

    def variable(self, shape: tuple[int, ...], dtype: Any = np.float32, codes: Codes | None = None) -> int:
        """A state of an operator, of zeros before the first call."""
        self.variables.add(at := self._tensor(f"v{len(self.tensors)}", shape, dtype, codes=codes))
        return at

    def between(self, kinds: list[tuple[Any, Codes]]) -> list[int]:
        """How what the next operator computes on its way is quantised."""
        made = [self._tensor(f"b{len(self.tensors) + k}", (), t, codes=q) for k, (t, q) in enumerate(kinds)]
        self.betweens[len(self.operators)] = made
        return made

    def op(self, name: str, inputs: list[int], results: list[tuple[Any, ...]], options: str = "",
           **values: Any) -> list[int]:  # fmt: skip
        """An operator, its options by the name of their table; ``results`` are shapes, dtypes and perhaps codes."""
        made = [self._tensor(f"t{len(self.tensors) + k}", r[0], r[1], None, *r[2:]) for k, r in enumerate(results)]
        self.operators.append((name, inputs, made, options, values))
        return made

    def bytes(self) -> bytes:
        return model_bytes(self)

    def write(self, b: Any, names: list[str], buffers: list[int]) -> int:
        """The sub-graph's table; its buffers are added to those of the model."""
        first = len(buffers)
        buffers += [self._buffer(b, data) for *_, data in self.tensors]
        tensors = [self._tensor_table(b, k, first) for k in range(len(self.tensors))]
        operators = [
            self._operator(b, names.index(o[0]), o, self.betweens.get(k, [])) for k, o in enumerate(self.operators)
        ]
        lists = [self._ints(b, v) for v in (self.inputs, self.outputs)]
        tables = [self._offsets(b, v) for v in (tensors, operators)]
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, tables[0])
        tflite.SubGraphAddInputs(b, lists[0])
        tflite.SubGraphAddOutputs(b, lists[1])
        tflite.SubGraphAddOperators(b, tables[1])
        return int(tflite.SubGraphEnd(b))

    def _ints(self, b: Any, numbers: Any) -> int:
        return int(b.CreateNumpyVector(np.array(numbers, np.int32)))

    def _offsets(self, b: Any, offsets: list[int]) -> int:
        b.StartVector(4, len(offsets), 4)
        for at in reversed(offsets):
            b.PrependUOffsetTRelative(at)
        return int(b.EndVector())

    def _buffer(self, b: Any, data: Any) -> int:
        at = None if data is None else b.CreateNumpyVector(np.frombuffer(data.tobytes(), np.uint8))
        tflite.BufferStart(b)
        if at is not None:
            tflite.BufferAddData(b, at)
        return int(tflite.BufferEnd(b))

    def _tensor_table(self, b: Any, k: int, first: int) -> int:
        name, shape, kind, data = self.tensors[k]
        called, sizes = b.CreateString(name), self._ints(b, shape)
        quantised = self._quantised(b, self.codes[k]) if k in self.codes else None
        sparsity = self._sparsity(b, self.sparsity[k]) if k in self.sparsity else None
        tflite.TensorStart(b)
        if sparsity is not None:
            tflite.TensorAddSparsity(b, sparsity)
        tflite.TensorAddShape(b, sizes)
        tflite.TensorAddType(b, getattr(tflite.TensorType, kind))
        tflite.TensorAddBuffer(b, 0 if data is None else first + k)
        tflite.TensorAddName(b, called)
        tflite.TensorAddIsVariable(b, k in self.variables)
        if quantised is not None:
            tflite.TensorAddQuantization(b, quantised)
        return int(tflite.TensorEnd(b))

    def _quantised(self, b: Any, codes: Codes) -> int:
        scales = np.atleast_1d(np.array(codes.scale, np.float32))
        zeros = np.broadcast_to(np.array(codes.zero, np.int64), scales.shape).copy()
        scales_at, zeros_at = b.CreateNumpyVector(scales), b.CreateNumpyVector(zeros)
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scales_at)
        tflite.QuantizationParametersAddZeroPoint(b, zeros_at)
        tflite.QuantizationParametersAddQuantizedDimension(b, codes.axis)
        return int(tflite.QuantizationParametersEnd(b))

    def _sparsity(self, b: Any, of: Sparsity) -> int:
        levels = self._offsets(b, [self._level(b, x) for x in of.levels])
        order, blocks = self._ints(b, of.order), self._ints(b, of.blocks)
        tflite.SparsityParametersStart(b)
        tflite.SparsityParametersAddTraversalOrder(b, order)
        if of.blocks:
            tflite.SparsityParametersAddBlockMap(b, blocks)
        tflite.SparsityParametersAddDimMetadata(b, levels)
        return int(tflite.SparsityParametersEnd(b))

    def _level(self, b: Any, level: Any) -> int:
        if isinstance(level, int):
            tflite.DimensionMetadataStart(b)
            tflite.DimensionMetadataAddFormat(b, tflite.DimensionType.DENSE)
            tflite.DimensionMetadataAddDenseSize(b, level)
            return int(tflite.DimensionMetadataEnd(b))
        vectors = [self._places(b, v) for v in level]
        tflite.DimensionMetadataStart(b)
        tflite.DimensionMetadataAddFormat(b, tflite.DimensionType.SPARSE_CSR)
        for name, (kind, at) in zip(("ArraySegments", "ArrayIndices"), vectors, strict=True):
            getattr(tflite, f"DimensionMetadataAdd{name}Type")(b, kind)
            getattr(tflite, f"DimensionMetadataAdd{name}")(b, at)
        return int(tflite.DimensionMetadataEnd(b))

    def _places(self, b: Any, places: np.ndarray) -> tuple[int, int]:
        name = {"int32": "Int32Vector", "uint16": "Uint16Vector", "uint8": "Uint8Vector"}[places.dtype.name]
        values = b.CreateNumpyVector(places)
        getattr(tflite, f"{name}Start")(b)
        getattr(tflite, f"{name}AddValues")(b, values)
        return getattr(tflite.SparseIndexVector, name), int(getattr(tflite, f"{name}End")(b))

    def _code(self, b: Any, name: str) -> int:
        code = getattr(tflite.BuiltinOperator, name)
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(code, 127))
        tflite.OperatorCodeAddBuiltinCode(b, code)
        tflite.OperatorCodeAddVersion(b, 2 if name == "BROADCAST_TO" else 1)
        return int(tflite.OperatorCodeEnd(b))

    def _operator(
        self, b: Any, code: int, of: tuple[str, list[int], list[int], str, dict[str, Any]], between: list[int]
    ) -> int:
        _, inputs, results, options, values = of
        at = None
        if options:
            values = {k: b.CreateNumpyVector(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}
            values = {k: b.CreateString(v) if isinstance(v, str) else v for k, v in values.items()}
            getattr(tflite, f"{options}Start")(b)
            for name, value in values.items():
                getattr(tflite, f"{options}Add{name}")(b, value)
            at = getattr(tflite, f"{options}End")(b)
        ins, outs, inside = (self._ints(b, v) for v in (inputs, results, between))
        tflite.OperatorStart(b)
        if between:
            tflite.OperatorAddIntermediates(b, inside)
        tflite.OperatorAddOpcodeIndex(b, code)
        tflite.OperatorAddInputs(b, ins)
        tflite.OperatorAddOutputs(b, outs)
        if at is not None and hasattr(tflite.BuiltinOptions2, options):
            tflite.OperatorAddBuiltinOptions2Type(b, getattr(tflite.BuiltinOptions2, options))
            tflite.OperatorAddBuiltinOptions2(b, at)
        elif at is not None:
            tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, options))
            tflite.OperatorAddBuiltinOptions(b, at)
        return int(tflite.OperatorEnd(b))


def model_bytes(*graphs: TfliteModel, signature: tuple[list[str], list[str]] | None = None) -> bytes:
    """A file of sub-graphs, the main one first; ``signature`` names its inputs and outputs."""
    b = flatbuffers.Builder(1024)
    main = graphs[0]
    names = sorted({o[0] for graph in graphs for o in graph.operators})
    buffers = [main._buffer(b, None)]
    made = [graph.write(b, names, buffers) for graph in graphs]
    codes = [main._code(b, name) for name in names]
    defined = None if signature is None else main._offsets(b, [_signature(b, main, *signature)])
    lists = [main._offsets(b, v) for v in (codes, made, buffers)]
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, lists[0])
    tflite.ModelAddSubgraphs(b, lists[1])
    tflite.ModelAddBuffers(b, lists[2])
    if defined is not None:
        tflite.ModelAddSignatureDefs(b, defined)
    b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
    return bytes(b.Output())


def _signature(b: Any, main: TfliteModel, inputs: list[str], outputs: list[str]) -> int:
    ends = []
    for names, places in ((inputs, main.inputs), (outputs, main.outputs)):
        tables = []
        for name, place in zip(names, places, strict=True):
            called = b.CreateString(name)
            tflite.TensorMapStart(b)
            tflite.TensorMapAddName(b, called)
            tflite.TensorMapAddTensorIndex(b, place)
            tables.append(int(tflite.TensorMapEnd(b)))
        ends.append(main._offsets(b, tables))
    key = b.CreateString("serving_default")
    tflite.SignatureDefStart(b)
    tflite.SignatureDefAddInputs(b, ends[0])
    tflite.SignatureDefAddOutputs(b, ends[1])
    tflite.SignatureDefAddSignatureKey(b, key)
    return int(tflite.SignatureDefEnd(b))
