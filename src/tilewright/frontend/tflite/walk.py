"""One sub-graph of a TFLite file, operator by operator.

In: a file, the number of a sub-graph, nodes in place of its inputs. Out: the nodes of its results; what has no form
here becomes a problem of the file, which is told with all others. Not its business: whole models (``importer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.diag import CompileError, ImportFailed, Loc, OpError, Problem
from tilewright.core.dims import numbers
from tilewright.core.graph import Builder, Node
from tilewright.core.types import DType, TensorType
from tilewright.frontend.tflite import draws
from tilewright.frontend.tflite.call import Converter, TfliteCall
from tilewright.frontend.tflite.file import File
from tilewright.frontend.tflite.quantisation import Quantisation, quantisation_of
from tilewright.frontend.tflite.recurrent import states_of
from tilewright.frontend.tflite.sparse import dense
from tilewright.frontend.tflite.table import AS_CODES, CONVERTERS, OF_COMPLEX, QUANTISED, REFUSED

_TYPES: dict[str, DType] = {
    "FLOAT32": types.f32, "FLOAT16": types.f16, "FLOAT64": types.f64, "BFLOAT16": types.bf16, "BOOL": types.bool_,
    "INT4": types.i8, "INT8": types.i8, "INT16": types.i16, "INT32": types.i32, "INT64": types.i64, "UINT8": types.u8,
    "UINT16": types.u16, "UINT32": types.u32, "UINT64": types.u64,
}  # fmt: skip


MOST_STATE_ELEMENTS = 1 << 27
"""A state begins as zeros that are not in the file, so a few bytes of a damaged one could ask for any size."""
REMEDY = "keep this operator in floats, or convert the model anew"
"""Of a rule that says none itself: converters write no such operator."""


class SubGraphWalk:
    """One walk over a sub-graph; ``values`` are the nodes of its tensors by number, None where lost."""

    def __init__(self, file: File, number: int, b: Builder) -> None:
        if not 0 <= number < file.model.SubgraphsLength():
            raise file.broken(f"it has no sub-graph {number}")
        self.file, self.number, self.b = file, number, b
        self.sub = file.model.Subgraphs(number)
        self.where = f"sub-graph {number}, " if number else ""
        self.values: dict[int, Node | None] = {}
        self.handles: dict[int, str] = {}

    def run(self, given: Sequence[Node | None]) -> list[Node | None]:
        """The sub-graph's results for nodes in place of its inputs; problems are added to the file's."""
        numbers = [int(k) for k in self.sub.InputsAsNumpy()] if self.sub.InputsLength() else []
        if len(numbers) != len(given):
            raise OpError(f"sub-graph {self.number} takes {len(numbers)} inputs, not {len(given)}")
        for k, node in zip(numbers, given, strict=True):
            if node is not None and self.type_of(k) != node.type:
                raise OpError(f"sub-graph {self.number} takes {self.type_of(k)}, not {node.type}")
            self.values[k] = node
        self.file.enter(self.number)
        for k in range(self.sub.OperatorsLength()):
            self._operator(k)
        self.file.leave()
        return [self._output(int(k)) for k in self.sub.OutputsAsNumpy()] if self.sub.OutputsLength() else []

    def _output(self, k: int) -> Node | None:
        """A result of the sub-graph, which is not complex: a caller would take its pairs for numbers."""
        if self.file.type_names.get(self.tensor(k).Type()) == "COMPLEX64" and self.values.get(k) is not None:
            rule = OpError("a result is complex", remedy="give its real and imaginary parts")
            self.lost(Loc(f"{self.where}tensor {k}"), "output", rule, [k])
        return self.value(k)

    def tensor(self, k: int) -> Any:
        if not 0 <= k < self.sub.TensorsLength():
            raise self.file.broken(f"it has no tensor {k}")
        return self.sub.Tensors(k)

    def type_of(self, k: int, *, as_pairs: bool = False) -> TensorType:
        """A tensor's type; ``OpError`` for elements that are not read, as complex ones are only ``as_pairs``."""
        t = self.tensor(k)
        kind = self.file.type_names.get(t.Type(), "")
        is_complex = kind == "COMPLEX64" and as_pairs
        if kind not in _TYPES and not is_complex:
            raise OpError(f"tensors of {kind or 'an unknown type'} are not read")
        shape = [int(n) for n in t.ShapeAsNumpy()] if t.ShapeLength() else []
        if min(shape, default=0) < 0:
            raise OpError(f"the shape {shape} is not known")
        return TensorType(types.f32, (*shape, 2)) if is_complex else TensorType(_TYPES[kind], tuple(shape))

    def _quantisation(self, k: int, as_pairs: bool = False) -> Quantisation | None:
        """How a tensor's codes are numbers; None for no tensor, and for numbers that are no codes."""
        if k < 0:
            return None
        t = self.type_of(k, as_pairs=as_pairs)
        return None if t.dtype.is_float else quantisation_of(self.tensor(k), _sizes(t), t.dtype)

    def lost(self, loc: Loc, op: str, e: OpError, results: Sequence[int]) -> None:
        self.file.problems.append(Problem(loc, op, e.message, e.remedy or REMEDY))
        self.values.update(dict.fromkeys(results))

    def value(self, k: int) -> Node | None:
        """A tensor's node: what an operator made, the file's numbers, or a state as it is now."""
        if (state := self.state(k)) is not None:
            return self.file.variables.get(state)
        if k not in self.values:
            loc = Loc(f"{self.where}tensor {k}")
            try:
                self.values[k] = self._constant(k, loc)
            except OpError as e:
                self.lost(loc, "constant", e, [k])
        return self.values[k]

    def state(self, k: int) -> str | None:
        """The name of the variable that a tensor is; None for what is none."""
        if not self.tensor(k).IsVariable():
            return None
        if self.number:
            raise OpError("layers that keep a state within control flow are not read", remedy="take them out of it")
        return f"tensor {k}"

    def _generator(self, results: Sequence[int]) -> str:
        """The name of the state that an operator's random numbers are drawn by, which the file has no tensor for."""
        if self.number:
            raise OpError("random numbers within control flow are not drawn", remedy="take them out of it")
        return f"generator {results[0] if results else ''}"

    def generators(self) -> dict[str, Node]:
        """The states by which the sub-graph's operators draw random numbers, by their seeds."""
        found: dict[str, Node] = {}
        for k in range(self.sub.OperatorsLength()):
            op = self.sub.Operators(k)
            name = self.file.operator_name(op.OpcodeIndex())
            if name in draws.TABLE:
                results = [int(r) for r in op.OutputsAsNumpy()] if op.OutputsLength() else []
                try:
                    found[self._generator(results)] = self.b.const(draws.first_state(self.file.options(op)))
                except OpError as e:
                    self.lost(Loc(f"operator {k} ({name})"), name, e, results)
        return found

    def zero_states(self) -> dict[str, Node]:
        """What the sub-graph's own variables begin with, which stands for zeros; problems are added to the file's."""
        found: dict[str, Node] = {}
        for k in range(self.sub.TensorsLength()):
            try:
                if (name := self.state(k)) is not None:
                    kind = self.type_of(k)
                    if self.file.buffer(self.tensor(k).Buffer()).size:
                        raise OpError("a variable that begins with numbers is not read")
                    if prod(_sizes(kind)) > MOST_STATE_ELEMENTS:
                        raise OpError(
                            f"a state of {kind} is more than the {MOST_STATE_ELEMENTS} elements that are read"
                        )
                    codes = self._quantisation(k)
                    begin = codes.zero if codes is not None and kind.dtype is types.i8 else 0
                    found[name] = self.b.const(np.full(_sizes(kind), begin, kind.dtype.numpy))
            except OpError as e:
                self.lost(Loc(f"{self.where}tensor {k}"), "variable", e, [])
        return found

    def _constant(self, k: int, loc: Loc) -> Node:
        t, number = self.type_of(k), self.tensor(k).Buffer()
        data = self.file.buffer(number)
        shape = _sizes(t)
        if self.file.type_names.get(self.tensor(k).Type()) == "INT4":
            data = _unpacked(data)[: prod(shape)]
        if (sparsity := self.tensor(k).Sparsity()) is not None:
            if data.size % t.dtype.n_bytes:
                raise OpError(f"{data.size} bytes are no numbers of {t.dtype}")
            stored = np.frombuffer(data.tobytes(), t.dtype.numpy)
            return self.b.at(loc).const(dense(self.file.tflite, sparsity, stored, shape))
        n_bytes = prod(shape) * t.dtype.n_bytes
        if data.size != n_bytes:
            raise OpError(f"{t} takes {n_bytes} bytes, and its buffer has {data.size}")
        return self.b.at(loc).const(np.frombuffer(data.tobytes(), t.dtype.numpy).reshape(shape))

    def _operator(self, k: int) -> None:
        op = self.sub.Operators(k)
        name = self.file.operator_name(op.OpcodeIndex())
        results = [int(r) for r in op.OutputsAsNumpy()] if op.OutputsLength() else []
        loc = Loc(f"{self.where}operator {k} ({name or 'unknown'})")
        try:
            if name in VARIABLES:
                VARIABLES[name](self, op, results)
            else:
                self._convert(op, name, results, loc)
        except OpError as e:
            self.lost(loc, name, e, results)
        except CompileError as e:
            self.file.problems += e.problems
            self.values.update(dict.fromkeys(results))

    def operands(self, op: Any) -> list[int]:
        return [int(i) for i in op.InputsAsNumpy()] if op.InputsLength() else []

    def _convert(self, op: Any, name: str, results: Sequence[int], loc: Loc) -> None:
        if name not in CONVERTERS and name not in QUANTISED:
            rule, remedy = REFUSED.get(name, ("is not of the schema that is read", "convert with an older converter"))
            raise OpError(f"{name or 'an operator'} {rule}", remedy=remedy)
        numbers = self.operands(op)
        inputs = [None if i < 0 else self.value(i) for i in numbers]
        if any(i >= 0 and x is None for i, x in zip(numbers, inputs, strict=True)):
            self.values.update(dict.fromkeys(results))  # what stopped an operand is told already
            return
        if any(self.state(r) is not None for r in results):
            raise OpError("its result is a variable, which only layers that keep a state change")
        states = [self.state(numbers[i]) for i in states_of(name, len(numbers))]
        if name in draws.TABLE:
            states, numbers = [generator := self._generator(results)], [*numbers, -1]
            if (now := self.file.variables.get(generator)) is None:
                self.values.update(dict.fromkeys(results))  # its seeds are told already
                return
            inputs.append(now)
        as_pairs = name in OF_COMPLEX
        of_results = [self.type_of(r, as_pairs=as_pairs) for r in results]
        shapes = [_sizes(t) for t in of_results]
        inside = [int(i) for i in op.IntermediatesAsNumpy()] if op.IntermediatesLength() else []
        quantised, made_of, between = (
            [self._quantisation(i, as_pairs) for i in ks] for ks in (numbers, results, inside)
        )
        call = TfliteCall(
            self.b.at(loc), name, inputs, self.file.options(op), shapes, [t.dtype for t in of_results], quantised,
            made_of, between, self._inner,
        )  # fmt: skip
        with np.errstate(all="ignore"):  # scales of a damaged file
            made = _converter(name, [*quantised, *made_of])(call)
        nodes = [made] if isinstance(made, Node) else list(made)
        if len(nodes) != len(results) + len(states):
            raise OpError(f"it has {len(results)} results and makes {len(nodes) - len(states)}")
        for state, node in zip(states, nodes[len(results) :], strict=True):
            if state is None:
                raise OpError("an operand that holds its state is no variable", remedy="convert the model anew")
            self.assign(state, node)
        self.values.update(zip(results, nodes, strict=False))

    def assign(self, state: str, node: Node) -> None:
        """Let a variable hold what a node is from here on; ``OpError`` for another type than it has."""
        known = self.file.variables.get(state)
        if known is not None and known.type != node.type:
            raise OpError(f"the variable {state!r} is {known.type}, and gets {node.type}")
        self.file.variables[state] = node

    def _inner(self, number: int, b: Builder, given: Sequence[Node]) -> list[Node]:
        """The results of another sub-graph; ``ImportFailed`` without problems where some are told already."""
        made = SubGraphWalk(self.file, number, b).run(given)
        found = [n for n in made if n is not None]
        if len(found) != len(made):
            raise ImportFailed("a sub-graph has no form here", [])
        return found


def _converter(name: str, quantised: Sequence[Quantisation | None]) -> Converter:
    """What converts an operator, by whether its tensors are codes."""
    if all(q is None for q in quantised):
        if name not in CONVERTERS:
            raise OpError(f"{name} is of codes, and no tensor of it has a scale", remedy="convert the model anew")
        return CONVERTERS[name]
    if name in QUANTISED:
        return QUANTISED[name]
    if name in AS_CODES:
        return CONVERTERS[name]
    raise OpError(f"{name} of quantised tensors has no form here", remedy="keep this operator in floats")


# --- variables ------------------------------------------------------------------------------------------------------


def _handle(w: SubGraphWalk, op: Any, results: Sequence[int]) -> None:
    """A variable by its names; its numbers are the model's state."""
    options = w.file.options(op)
    container, shared = (v.decode("utf-8", "replace") if v else "" for v in (options.Container(), options.SharedName()))
    w.handles.update(dict.fromkeys(results, f"{container}/{shared}"))


def _variable(w: SubGraphWalk, op: Any) -> str:
    if w.number and w.file.is_running:
        raise OpError("variables within control flow are not read", remedy="read them before it")
    (handle, *_) = w.operands(op)
    if handle not in w.handles:
        raise OpError("a variable's handle comes from a VAR_HANDLE of the same sub-graph")
    return w.handles[handle]


def _read(w: SubGraphWalk, op: Any, results: Sequence[int]) -> None:
    name = _variable(w, op)
    if name not in w.file.variables and not w.file.is_start_lost:
        raise OpError(
            f"the variable {name!r} has no numbers before the first call", remedy="initialise it by CALL_ONCE"
        )
    w.values.update(dict.fromkeys(results, w.file.variables.get(name)))  # None where what stopped it is told already


def _assign(w: SubGraphWalk, op: Any, results: Sequence[int]) -> None:
    name, node = _variable(w, op), w.value(w.operands(op)[1])
    if node is None:
        w.file.variables[name] = None
    else:
        w.assign(name, node)


def _once(w: SubGraphWalk, op: Any, results: Sequence[int]) -> None:
    """What runs before the first call only: of the main sub-graph it has run, and the importer saw to that."""
    if w.number and w.file.is_running:
        raise OpError("what runs once, within control flow, is not read", remedy="run it before it")
    if not w.file.is_running:
        w.file.run_once(w.file.initial(op), lambda number: SubGraphWalk(w.file, number, w.b).run([]))


VARIABLES = {"VAR_HANDLE": _handle, "READ_VARIABLE": _read, "ASSIGN_VARIABLE": _assign, "CALL_ONCE": _once}
"""Operators on handles, which are no tensors."""


def _sizes(t: TensorType) -> tuple[int, ...]:
    """The sizes of a tensor, which are numbers in this format."""
    return tuple(numbers(t.shape))


def _unpacked(data: np.ndarray) -> np.ndarray:
    """Two numbers of four bits in each byte, the lower half first, as bytes."""
    both = np.stack([data << 4, data], axis=-1).reshape(-1)
    return np.asarray(both.view(np.int8) >> 4).view(np.uint8)
