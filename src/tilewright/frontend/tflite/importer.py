"""TFLite and LiteRT models (``.tflite``) into the graph IR.

In: a file's bytes. Out: a graph whose inputs and outputs have the file's names, and the state that it keeps from call
to call; or one ``ImportFailed`` that lists everything that stops the import. Not its business: what each operator
becomes (``table``).

The package ``tflite`` reads the flatbuffer by the published schema. Sizes are those that the file states: a signature's
open sizes are not symbols. A file is data from anywhere: a number that leads outside of it is an error, never a read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.core.diag import ImportFailed, Loc, OpError, OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import CONST, Builder, Graph, Node, Pool
from tilewright.core.types import Array
from tilewright.frontend.tflite.file import CONVERT, File, broken
from tilewright.frontend.tflite.walk import SubGraphWalk
from tilewright.runtime.formats import recognise
from tilewright.runtime.once import MAKING
from tilewright.runtime.structure import State

SUFFIX = ".tflite"
MAGIC = b"TFL3"
"""Bytes 4 to 8 of a file."""
_FAULTS = (IndexError, ValueError, TypeError, OverflowError, UnicodeDecodeError, AttributeError, KeyError)
"""What reading wrong places of a flatbuffer may raise, beside ``struct.error`` behind its end."""


@dataclass(frozen=True)
class ImportedTflite:
    """A graph; its last inputs, and the outputs behind the model's own, are variables, which begin as ``start``."""

    graph: Graph
    state: tuple[State, ...] = ()
    start: tuple[Array, ...] = ()


def is_tflite(data: bytes) -> bool:
    """Do these bytes begin as a TFLite file does?"""
    return bytes(data[4:8]) == MAGIC


def import_tflite(data: bytes, name: str) -> ImportedTflite:
    """The model of a file's first sub-graph; ``ImportFailed`` for what has no form here, and for a damaged file."""
    try:
        with MAKING:
            import tflite
    except ImportError as error:
        remedy = 'pip install "tilewright[tflite]"'
        raise OptionError("TFLite models need the package tflite", remedy=remedy) from error
    if not is_tflite(data):
        found = recognise(memoryview(data))
        rule = f"it is {found.what}" if found else "it does not begin as a TFLite file does"
        raise broken(name, rule, found.remedy if found else CONVERT)
    try:
        return _imported(File(tflite, data, name))
    except struct.error as error:
        raise broken(name, "it is damaged: what it refers to lies behind its end") from error
    except _FAULTS as error:
        raise broken(name, f"it is damaged: {type(error).__name__}: {error}"[:200]) from error


def _imported(file: File) -> ImportedTflite:
    if file.model.SubgraphsLength() < 1:
        raise file.broken("it has no sub-graph")
    b = Builder(Pool())
    start = _start(file)
    walk, names = SubGraphWalk(file, 0, b), _Names(_signature(file))
    inputs = [_input(walk, int(k), names) for k in walk.sub.InputsAsNumpy()] if walk.sub.InputsLength() else []
    kept = {
        key: b.pool.input(names.fresh(f"state_{key}"), n.type, Loc(f"variable {key!r}")) for key, n in start.items()
    }
    file.variables, file.is_running = dict(kept), True
    outputs = walk.run(inputs)
    if file.problems:
        raise ImportFailed(f"{len(file.problems)} parts of the TFLite model have no form here", file.problems)
    names = _Names(names.called)
    called = [names.of(walk.tensor(int(k)), int(k)) for k in walk.sub.OutputsAsNumpy()] if outputs else []
    state = tuple(State(str(n.attrs["name"]), names.fresh(str(n.attrs["name"]))) for n in kept.values())
    after = [file.variables[key] for key in kept]
    made = [n for n in (*outputs, *after) if n is not None]
    title = re.sub(r"\W+", "_", file.name) or "model"
    given = tuple(n for n in (*inputs, *kept.values()) if n is not None)
    graph = Graph(title, b.pool, given, tuple(made), (*called, *(s.output for s in state)))
    return ImportedTflite(graph, state, tuple(n.attrs["data"].array for n in start.values()))


def _start(file: File) -> dict[str, Node]:
    """The constants that variables hold before the first call: what runs once gives them, or they are zeros.

    What stops a sub-graph that runs once is a problem of the CALL_ONCE that names it, told with all others.
    """
    main = SubGraphWalk(file, 0, Builder(Pool()))
    for place in file.once():
        try:
            number = file.initial(main.sub.Operators(place))
            file.run_once(number, lambda number: SubGraphWalk(file, number, Builder(Pool())).run([]))
        except OpError as e:
            main.lost(Loc(f"operator {place} (CALL_ONCE)"), "CALL_ONCE", e, [])
    found: dict[str, Node] = {}
    for key, node in file.variables.items():
        try:
            if node is not None:
                found[key] = _known(node)
        except OpError as e:
            main.lost(Loc(f"variable {key!r}"), "CALL_ONCE", e, [])
    file.is_start_lost = bool(file.problems)
    return found | main.zero_states() | main.generators()


def _known(node: Node) -> Node:
    if node.op is CONST:
        return node
    pool = Pool()
    (array,) = evaluate_graph(Graph("once", pool, (), (node,), ("y",)), [])
    return pool.const(array)


def _input(walk: SubGraphWalk, k: int, names: _Names) -> Node | None:
    name = names.of(walk.tensor(k), k)
    loc = Loc(f'input "{name}"')
    try:
        if walk.state(k) is not None:
            raise OpError("an input that is a variable too is not read")
        return walk.b.pool.input(name, walk.type_of(k), loc)
    except OpError as e:
        walk.lost(loc, "input", e, [k])
        return None


def _signature(file: File) -> dict[int, str]:
    """The names that the first sub-graph's one signature gives its tensors, where it has one."""
    found: list[Any] = [file.model.SignatureDefs(k) for k in range(file.model.SignatureDefsLength())]
    found = [s for s in found if s.SubgraphIndex() == 0]
    if len(found) != 1:
        return {}
    ends: Sequence[Any] = [found[0].Inputs(k) for k in range(found[0].InputsLength())]
    ends = [*ends, *(found[0].Outputs(k) for k in range(found[0].OutputsLength()))]
    return {int(end.TensorIndex()): end.Name().decode("utf-8", "replace") for end in ends if end.Name()}


class _Names:
    """Names of inputs, or of outputs, as identifiers, no two equal: the signature's, else the tensors'."""

    def __init__(self, called: dict[int, str]) -> None:
        self.called, self.taken = called, set[str]()

    def of(self, tensor: Any, k: int) -> str:
        raw = tensor.Name()
        text = self.called.get(k) or (raw.decode("utf-8") if raw else "")
        name = re.sub(r"\W+", "_", text).strip("_")
        return self.fresh(name if name and not name[0].isdigit() else f"tensor_{name or k}")

    def fresh(self, name: str) -> str:
        name = re.sub(r"\W+", "_", name).strip("_")
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name
