"""TFLite files of a few operators, built by the published schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

KINDS = {
    np.dtype(np.float32): "FLOAT32", np.dtype(np.float16): "FLOAT16", np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64", np.dtype(np.bool_): "BOOL", np.dtype(np.int8): "INT8",
}  # fmt: skip


@dataclass
class TfliteModel:
    """Tensors, numbers and operators; tensors are numbered in the order in which they are added."""

    tensors: list[tuple[str, tuple[int, ...], str, Any]] = field(default_factory=list)
    operators: list[tuple[str, list[int], list[int], str, dict[str, Any]]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: Any, data: Any = None) -> int:
        self.tensors.append((name, shape, KINDS[np.dtype(dtype)], data))
        return len(self.tensors) - 1

    def input(self, like: np.ndarray) -> int:
        self.inputs.append(self._tensor(f"x{len(self.inputs)}", like.shape, like.dtype))
        return self.inputs[-1]

    def const(self, a: np.ndarray) -> int:
        return self._tensor(f"c{len(self.tensors)}", a.shape, a.dtype, a)

    def op(self, name: str, inputs: list[int], results: list[tuple[tuple[int, ...], Any]], options: str = "",
           **values: Any) -> list[int]:  # fmt: skip
        """An operator, its options by the name of their table; ``results`` are shapes and dtypes."""
        made = [self._tensor(f"t{len(self.tensors) + k}", s, d) for k, (s, d) in enumerate(results)]
        self.operators.append((name, inputs, made, options, values))
        return made

    def bytes(self) -> bytes:
        b = flatbuffers.Builder(1024)
        names = sorted({o[0] for o in self.operators})
        buffers = [self._buffer(b, None), *(self._buffer(b, data) for *_, data in self.tensors)]
        tensors = [self._tensor_table(b, k) for k in range(len(self.tensors))]
        operators = [self._operator(b, names.index(o[0]), o) for o in self.operators]
        codes = [self._code(b, name) for name in names]
        lists = [self._ints(b, v) for v in (self.inputs, self.outputs)]
        tables = [self._offsets(b, v) for v in (tensors, operators)]
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, tables[0])
        tflite.SubGraphAddInputs(b, lists[0])
        tflite.SubGraphAddOutputs(b, lists[1])
        tflite.SubGraphAddOperators(b, tables[1])
        graphs = self._offsets(b, [tflite.SubGraphEnd(b)])
        codes_at, buffers_at = self._offsets(b, codes), self._offsets(b, buffers)
        tflite.ModelStart(b)
        tflite.ModelAddVersion(b, 3)
        tflite.ModelAddOperatorCodes(b, codes_at)
        tflite.ModelAddSubgraphs(b, graphs)
        tflite.ModelAddBuffers(b, buffers_at)
        b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
        return bytes(b.Output())

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

    def _tensor_table(self, b: Any, k: int) -> int:
        name, shape, kind, data = self.tensors[k]
        called, sizes = b.CreateString(name), self._ints(b, shape)
        tflite.TensorStart(b)
        tflite.TensorAddShape(b, sizes)
        tflite.TensorAddType(b, getattr(tflite.TensorType, kind))
        tflite.TensorAddBuffer(b, 0 if data is None else k + 1)
        tflite.TensorAddName(b, called)
        return int(tflite.TensorEnd(b))

    def _code(self, b: Any, name: str) -> int:
        code = getattr(tflite.BuiltinOperator, name)
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(code, 127))
        tflite.OperatorCodeAddBuiltinCode(b, code)
        tflite.OperatorCodeAddVersion(b, 2 if name == "BROADCAST_TO" else 1)
        return int(tflite.OperatorCodeEnd(b))

    def _operator(self, b: Any, code: int, of: tuple[str, list[int], list[int], str, dict[str, Any]]) -> int:
        _, inputs, results, options, values = of
        at = None
        if options:
            getattr(tflite, f"{options}Start")(b)
            for name, value in values.items():
                getattr(tflite, f"{options}Add{name}")(b, value)
            at = getattr(tflite, f"{options}End")(b)
        ins, outs = self._ints(b, inputs), self._ints(b, results)
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, code)
        tflite.OperatorAddInputs(b, ins)
        tflite.OperatorAddOutputs(b, outs)
        if at is not None:
            tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, options))
            tflite.OperatorAddBuiltinOptions(b, at)
        return int(tflite.OperatorEnd(b))
