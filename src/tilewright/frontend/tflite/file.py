"""A TFLite file as the schema has it, and what is kept for one import of it.

In: bytes. Out: tables, buffers and names; ``ImportFailed`` for what leads outside of the file.
Not its business: what an operator means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.core.diag import ImportFailed, Loc, OpError, Problem
from tilewright.core.graph import Node
from tilewright.core.types import Array

CONVERT = "convert the model anew"
"""The remedy for a damaged file."""
MOST_WALKS = 10_000
"""How often sub-graphs are walked for one import: a file can call one from each of many places."""


class File:
    """The model's table, the problems that were found, and the variables' nodes as they are now."""

    def __init__(self, tflite: Any, data: bytes, name: str) -> None:
        self.tflite, self.data, self.name = tflite, data, name
        self.model = tflite.Model.GetRootAs(data, 0)
        self.builtins = _names(tflite.BuiltinOperator)
        self.type_names = _names(tflite.TensorType)
        self.problems: list[Problem] = []
        self.variables: dict[str, Node | None] = {}
        self.is_running = False
        """Not while what runs once is walked."""
        self.is_start_lost = False
        """Is it told already why a variable may have no numbers before the first call?"""
        self._done: set[int] = set()
        self._open: list[int] = []
        self._n_walks = 0

    def broken(self, rule: str) -> ImportFailed:
        return broken(self.name, rule)

    def enter(self, number: int) -> None:
        """Go into a sub-graph, which must not be open: a walk would not end."""
        self._n_walks += 1
        if number in self._open:
            raise OpError(f"sub-graph {number} calls itself")
        if self._n_walks > MOST_WALKS:
            raise OpError(f"sub-graphs are called from more than {MOST_WALKS} places")
        self._open.append(number)

    def leave(self) -> None:
        self._open.pop()

    def operator_name(self, index: int) -> str:
        """The name of an operator's code; empty for an unknown one."""
        code = self.model.OperatorCodes(index)
        # Old files have the op in a field of 7 bits, new ones in both or only in the other.
        return self.builtins.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "")

    def options(self, op: Any) -> Any:
        """The operator's options by the schema; None where it has none."""
        for kinds, kind, table in (
            (self.tflite.BuiltinOptions, op.BuiltinOptionsType(), op.BuiltinOptions()),
            (self.tflite.BuiltinOptions2, op.BuiltinOptions2Type(), op.BuiltinOptions2()),  # of newer operators
        ):
            name = _names(kinds).get(kind, "NONE")
            if table is not None and name != "NONE":
                options = getattr(self.tflite, name)()
                options.Init(table.Bytes, table.Pos)
                return options
        return None

    def buffer(self, number: int) -> Array:
        """The bytes of a buffer."""
        if not 0 <= number < self.model.BuffersLength():
            raise self.broken(f"it has no buffer {number}")
        buffer = self.model.Buffers(number)
        if buffer.Offset() > 1:  # numbers of large models lie behind the flatbuffer
            first, size = buffer.Offset(), buffer.Size()
            if first + size > len(self.data):
                raise self.broken(f"buffer {number} lies outside of the file")
            return np.frombuffer(self.data, np.uint8, size, first)
        return np.asarray(buffer.DataAsNumpy()) if buffer.DataLength() else np.zeros(0, np.uint8)

    def once(self) -> Sequence[int]:
        """The places of the main sub-graph's operators that run another one before the first call, in order."""
        main = self.model.Subgraphs(0)
        return [
            k
            for k in range(main.OperatorsLength())
            if self.operator_name(main.Operators(k).OpcodeIndex()) == "CALL_ONCE"
        ]

    def run_once(self, number: int, walk: Callable[[int], object]) -> None:
        """Walk a sub-graph unless it was walked before: several operators may name one, which runs once."""
        if number not in self._done:
            walk(number)
            self._done.add(number)

    def initial(self, op: Any) -> int:
        """The sub-graph that a CALL_ONCE runs; ``OpError`` where it names none."""
        options = self.options(op)
        if options is None:
            raise OpError("its options are missing, which name the sub-graph to run", remedy="convert the model anew")
        return int(options.InitSubgraphIndex())


def broken(name: str, rule: str, remedy: str = CONVERT) -> ImportFailed:
    """A file that is no model."""
    problem = Problem(Loc(name), "TFLite", rule, remedy)
    return ImportFailed("the TFLite model can't be read", [problem])


def _names(enum: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enum).items() if isinstance(value, int)}
