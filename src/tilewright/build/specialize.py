"""Models that are compiled per call: inputs' values or sizes decide structure, or inputs are sequences or optionals.

In: a parsed ONNX model, which inputs decide, a function that compiles a graph. Out: a model that is called like any
other; it compiles when a call brings new facts, keeps what it compiled, and says so in its report.
Not its business: importing (``frontend.onnx.importer``), compiling (``driver``).

Of an input that decides, the elements first become symbolic sizes, so that one compile serves every value. Where the
import refuses that (an axis, a sign, a size of 0 with a meaning of its own), the values become constants: one compile
for each.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from tilewright.core.diag import CompileError, OptionError
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.frontend.onnx.file import Source
from tilewright.frontend.onnx.given import (
    MAX_ELEMENTS,
    Elements,
    Given,
    InputInfo,
    NeedsCall,
    Nothing,
    Sequence_,
    Shape,
    Sizes,
)
from tilewright.frontend.onnx.importer import InputShapes, declared_inputs, import_for_call
from tilewright.runtime.errors import InputError, Violation
from tilewright.runtime.fields import MAX_INTEGER
from tilewright.runtime.manifest import Manifest, TargetSpec, TensorSpec
from tilewright.runtime.once import ForkLock
from tilewright.runtime.plan import input_error
from tilewright.runtime.python.arguments import checked_feeds
from tilewright.runtime.python.model import CompiledModel, LoadedModel
from tilewright.runtime.python.report import Report
from tilewright.runtime.values import as_array, read_safely

MAX_KEPT = 64
MAX_SIZES = 16  # elements of an input that become symbols
Key = tuple[tuple[str, Given], ...]


@dataclass(frozen=True)
class Compiled:
    """One compile: the model and, for each output, the number of its results (None: a tensor)."""

    model: CompiledModel
    results: tuple[int | None, ...]


@dataclass
class Deciding:
    """The inputs whose values decide, those of them that can't be symbolic sizes, and whether all shapes decide."""

    names: set[str]
    exact: set[str] = field(default_factory=set)
    shapes: bool = False

    def __str__(self) -> str:
        return ", ".join(sorted(self.names)) or ("its inputs' sizes" if self.shapes else "its sequences")


class SpecializedModel(LoadedModel):
    """A model that needs a call to be compiled; see the module. Sequences are lists of arrays, empty optionals None."""

    def __init__(
        self,
        source: Source,
        needs: NeedsCall,
        compile_graph: Callable[[Graph], CompiledModel],
        input_shapes: InputShapes | None,
        fix_dims: Mapping[str, int] | None,
        threads: int,
    ) -> None:
        """Compiles at once where no input decides; raises ``CompileError`` as ``compile`` does."""
        self._source, self._compile, self._shapes, self._fixed = source, compile_graph, input_shapes, fix_dims
        self._infos = declared_inputs(source)
        self._deciding = Deciding(set(needs.inputs), shapes=needs.sizes)
        self._kept: OrderedDict[Key, Compiled] = OrderedDict()
        self._guard = ForkLock()
        self._state = []
        self._threads = threads
        self.manifest = _manifest(source, self._infos)
        if not self._must_wait():
            self._made(())

    def _must_wait(self) -> bool:
        unsaid = any(i.is_sequence or i.is_optional or i.dims is None for i in self._infos)
        return bool(self._deciding.names) or self._deciding.shapes or unsaid

    def __repr__(self) -> str:
        return f"<SpecializedModel, compiled per call by {self._deciding}>"

    @property
    def copies(self) -> int:
        with self._guard.lock:
            return sum(made.model.copies for made in self._kept.values())

    def report(self) -> Report:
        """The report of the latest compile; ``specialized`` has the facts of all that are kept."""
        with self._guard.lock:
            latest = next(reversed(self._kept.values()), None)
            found = Report(latest.model.report() if latest else {})
            found["specialized"] = [{name: _text(fact) for name, fact in key} for key in self._kept]
            return found

    def alone(self) -> CompiledModel | None:
        """The compile that was made at once, where no call decides anything and all results are tensors."""
        if self._must_wait():
            return None
        with self._guard.lock:
            made = self._kept.get(())
        return made.model if made is not None and all(n is None for n in made.results) else None

    def save(self, path: Any, **options: Any) -> None:
        """Refuses: what a call decides can't be in a file."""
        raise self._refusal()

    def export(self, folder: Any, **options: Any) -> Any:
        """Refuses: an object file holds one compile."""
        raise self._refusal()

    def _twin(self) -> Self:
        """Itself: it keeps nothing from call to call but what it has compiled."""
        return self

    def _refusal(self) -> OptionError:
        remedy = "make those inputs constants" if self._deciding.names else "fix sizes with fix_dims or input_shapes"
        return OptionError(f"this model is compiled per call, by {self._deciding}", remedy=remedy)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            raise InputError("out= needs outputs that are known before the call", remedy="leave out=")
        results = self._call(self._bound(args, kwargs))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        results = self._call(self._bound((checked_feeds(feeds),), {}))
        return dict(zip([o.name for o in self.manifest.outputs], results, strict=True))

    # --- a call ---

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._bound((), {**args[0], **kwargs})
        names = [i.name for i in self._infos]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        optional = {i.name for i in self._infos if i.is_optional}
        if len(args) > len(names) or len(given) != len(args) + len(kwargs) or not given.keys() <= set(names):
            raise InputError(f"the model takes {', '.join(names)}", remedy="give every input once")
        if missing := [n for n in names if n not in given and n not in optional]:
            raise InputError(f"inputs are missing: {', '.join(missing)}", remedy="give every input")
        return {i.name: _value(i, given.get(i.name)) for i in self._infos}

    def _call(self, values: Mapping[str, Any]) -> list[Any]:
        made, facts = self._for_call(values, "sizes")
        try:
            return _grouped(made, made.model(*_flat(values, facts)))
        except InputError as e:  # the compile assumed more than holds of this call, or the call is wrong
            misfit = e
        for how in ("values", "shapes"):
            try:
                made, facts = self._for_call(values, how)
                return _grouped(made, made.model(*_flat(values, facts)))
            except InputError as e:
                misfit = e
            except CompileError:
                if how == "values":
                    raise
        raise misfit

    def _for_call(self, values: Mapping[str, Any], how: str) -> tuple[Compiled, dict[str, Given]]:
        """What serves a call: the values that decide are ``sizes`` or constants; with ``shapes``, shapes are too.

        One call at a time: what one learns of the model, another would take for already known.
        """
        with self._guard.lock:
            return self._learned(values, how)

    def _learned(self, values: Mapping[str, Any], how: str) -> tuple[Compiled, dict[str, Given]]:
        for _ in range(2 * len(self._infos) + 3):
            facts = self._facts(values, how)
            try:
                return self._made(tuple(facts.items())), facts
            except NeedsCall as e:
                if not self._learn(e, facts):
                    raise
            except CompileError:
                sizes = {name for name, f in facts.items() if isinstance(f, Sizes)}
                if not sizes:
                    raise
                self._deciding.exact |= sizes
        raise AssertionError("every round decides one more input")

    def _learn(self, needs: NeedsCall, facts: Mapping[str, Given]) -> bool:
        """Note which inputs decide too, or need their values; False when nothing new was found."""
        new = set(needs.inputs) - self._deciding.names
        exact = {n for n in needs.inputs if isinstance(facts.get(n), Sizes)}
        shapes = needs.sizes and not self._deciding.shapes
        self._deciding.names |= new
        self._deciding.exact |= exact
        self._deciding.shapes |= shapes
        return bool(new or exact or shapes)

    def _made(self, key: Key) -> Compiled:
        found = self._kept.get(key)
        if found is None:
            imported = import_for_call(self._source, dict(key), self._shapes, self._fixed)
            found = self._kept[key] = Compiled(self._compile(imported.graph), imported.results)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _facts(self, values: Mapping[str, Any], how: str) -> dict[str, Given]:
        facts: dict[str, Given] = {}
        for info in self._infos:
            value = values[info.name]
            if value is None:
                facts[info.name] = Nothing()
            elif isinstance(value, list):
                facts[info.name] = Sequence_(tuple(a.shape for a in value))
            elif info.name in self._deciding.names:
                _check_fixed(value, info)
                exact = how != "sizes" or info.name in self._deciding.exact
                fact = None if exact else _sizes(value, info)
                facts[info.name] = fact or _elements(value, info)
            elif how == "shapes" or self._deciding.shapes or info.dims is None or info.is_optional:
                facts[info.name] = Shape(value.shape)
        return facts


def _value(info: InputInfo, value: Any) -> Any:
    """An array, a list of arrays, or None for an empty optional."""
    if value is None and info.is_optional:
        return None
    if info.is_sequence:
        if not isinstance(value, list | tuple):
            raise InputError(f"input {info.name!r} is a {type(value).__name__}", remedy="pass a list of arrays")
        return [_array(info, v) for v in value]
    return _array(info, value)


def _array(info: InputInfo, value: Any) -> Array:
    spec = TensorSpec(info.name, info.dtype, ())
    by_numbers = isinstance(value, int | float | list | tuple)
    found = read_safely(value, spec, np.asarray) if by_numbers else as_array(value, spec)
    if isinstance(found, Violation):
        raise input_error([found])
    if found.dtype.name != info.dtype:
        raise InputError(f"input {info.name!r} is of {found.dtype}, the model takes {info.dtype}", remedy="convert it")
    return found


def _check_fixed(value: Array, info: InputInfo) -> None:
    """Raise ``InputError`` where an array lacks a size that the file states."""
    dims = value.shape if info.dims is None else info.dims
    if len(dims) != value.ndim or any(isinstance(d, int) and d != n for d, n in zip(dims, value.shape, strict=True)):
        rule = f"input {info.name!r} has the shape {list(value.shape)}, the model takes {list(dims)}"
        raise InputError(rule, remedy="pass an array of that shape")


def _sizes(value: Array, info: InputInfo) -> Sizes | None:
    """The elements as sizes; None where they can't be: not integers, negative, many, of a symbolic number, or more
    together than an array's shape may be, as ends of slices are that stand for "up to the end"."""
    fixed = all(isinstance(d, int) for d in info.dims or ())
    if value.dtype.kind not in "iu" or not fixed or not 0 < value.size <= MAX_SIZES or value.min() < 0:
        return None
    if math.prod(max(int(n), 1) for n in value.flat) > MAX_INTEGER:
        return None
    return Sizes(value.size)


def _elements(value: Array, info: InputInfo) -> Elements:
    if value.size > MAX_ELEMENTS:
        rule = f"input {info.name!r} decides the model's structure and has {value.size} elements"
        raise InputError(rule, remedy=f"give at most {MAX_ELEMENTS}")
    return Elements.of(value)


def _flat(values: Mapping[str, Any], facts: Mapping[str, Given]) -> list[Array]:
    """The arrays that the graph takes: those of sequences one by one, sizes as the shape of an empty array."""
    found: list[Array] = []
    for name, value in values.items():
        if isinstance(value, list):
            found += value
        elif value is not None:
            found.append(value)
        if isinstance(facts.get(name), Sizes):
            found.append(np.empty((*map(int, np.asarray(value).flat), 0), np.uint8))
    return found


def _grouped(made: Compiled, answer: Any) -> list[Any]:
    """Results as the model's outputs."""
    flat = [answer] if len(made.model.outputs) == 1 else list(answer)
    grouped: list[Any] = []
    for n in made.results:
        if n is None:
            grouped.append(flat.pop(0))
        elif n < 0:
            grouped.append(None)
        else:
            grouped.append(flat[:n])
            del flat[:n]
    return grouped


def _manifest(source: Source, infos: Sequence[InputInfo]) -> Manifest:
    """The inputs and outputs as the model declares them, without code."""
    inputs = tuple(TensorSpec(i.name, i.dtype, _dims(i)) for i in infos)
    outputs = tuple(TensorSpec(o.name, "", ()) for o in source.model.graph.output)
    return Manifest("", TargetSpec("", ""), inputs, outputs)


def _dims(info: InputInfo) -> tuple[int | str, ...]:
    return tuple(d if isinstance(d, int) or d else f"{info.name}_d{k}" for k, d in enumerate(info.dims or ()))


def _text(fact: Given) -> str:
    match fact:
        case Elements():
            return f"= {np.frombuffer(fact.data, fact.dtype).tolist()}" if fact.dtype != "bfloat16" else "= constants"
        case Sizes():
            return f"{fact.n} symbolic sizes"
        case Sequence_():
            return f"{len(fact.shapes)} tensors"
        case Shape():
            return f"shape {list(fact.dims)}"
        case Nothing():
            return "empty"
