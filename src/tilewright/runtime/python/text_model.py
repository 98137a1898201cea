"""Models that read text: nodes on text run in Python before the compiled rest.

In: the part on text (``runtime.texts``), and the compiled model of numbers. Out: a model that is called like any other,
with arrays of strings among its inputs and outputs; its file holds both parts. Not its business: which nodes are at the
edge (``frontend.onnx.text_edge``), compiling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from tilewright.runtime import artifact as artifacts
from tilewright.runtime.errors import ArtifactError, InputError
from tilewright.runtime.files import writing
from tilewright.runtime.manifest import Manifest, TargetSpec, TensorSpec
from tilewright.runtime.python.arguments import checked_feeds
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.python.report import Report
from tilewright.runtime.texts import STRING, Dims, TextPart
from tilewright.runtime.values import Array
from tilewright.runtime.version import __version__


class TextModel(LoadedModel):
    """A model of which some inputs are text; see the module."""

    def __init__(self, edge: TextPart, rest: LoadedModel | None, threads: int) -> None:
        self._edge, self._rest, self._threads = edge, rest, threads
        self._state = []
        specs = {t.name: t for t in rest.inputs} if rest is not None else {}
        inputs = tuple(
            TensorSpec(name, STRING, _declared(name, edge.texts[name]))
            if name in edge.texts
            else specs.get(name, TensorSpec(name, "", ()))
            for name in edge.inputs
        )
        outputs = tuple(TensorSpec(name, "", ()) for name in edge.outputs)
        self.manifest = Manifest("", TargetSpec("", ""), inputs, outputs)

    def __repr__(self) -> str:
        return f"<TextModel of {', '.join(self._edge.inputs)}>"

    @property
    def copies(self) -> int:
        return self._rest.copies if self._rest is not None else 0

    def report(self) -> Report:
        """The report of the part that computes numbers; empty where there is none."""
        return self._rest.report() if self._rest is not None else Report({})

    def save(self, path: Any, *, refit: bool = False) -> None:
        """Write a ``.tw`` file, which ``load`` reads back without compiling.

        ``ArtifactError`` where a call decides what is compiled, as of texts without a declared shape.
        """
        if refit:
            raise ArtifactError("a model that reads text is not refitted", remedy="compile it with the new weights")
        part = self._edge.to_json()
        if self._rest is None:
            sealed = Manifest(__version__, TargetSpec("", ""), (), (), text=part)
            with writing(path):
                artifacts.save(path, sealed, (), b"")
            return
        alone = self._rest.alone()
        if alone is None:
            raise ArtifactError(
                "this model is compiled per call, which can't be in a file", remedy="declare the shapes of its texts"
            )
        with writing(path):
            artifacts.save(path, dataclasses.replace(alone.manifest, text=part), alone.objects, alone.weights)

    def export(self, folder: Any, **options: Any) -> Any:
        """Refuses: an object file has no functions on text."""
        remedy = "work on text before the model, and export the rest of it; or save it for tilewright.load"
        raise ArtifactError("this model reads text, which Python works on at every call", remedy=remedy)

    def _twin(self) -> Self:
        """Itself: it keeps nothing from call to call but what it has compiled."""
        return self

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is not None:
            raise InputError("out= needs outputs that are known before the call", remedy="leave out=")
        found = self._call(args, kwargs)
        return found[0] if len(found) == 1 else tuple(found)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(self._edge.outputs, self._call((checked_feeds(feeds),), {}), strict=True))

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        given, edge = self._bound(args, kwargs), self._edge
        values: dict[str, Any] = {**edge.constants, **given}
        values |= {name: _text(name, dims, given[name]) for name, dims in edge.texts.items()}
        for node in edge.nodes:
            try:
                made = node.run(*(values[name] for name in node.inputs))
            except ValueError as error:  # of shapes
                raise InputError(f"texts do not fit the model: {error}", remedy="pass them as it says") from error
            values |= zip(node.outputs, made, strict=False)
        if self._rest is not None:
            values |= self._rest.run({spec.name: values[spec.name] for spec in self._rest.inputs})
        return [values[name] for name in edge.outputs]

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._bound((), {**args[0], **kwargs})
        names = self._edge.inputs
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) > len(names) or len(given) != len(args) + len(kwargs) or given.keys() != set(names):
            raise InputError(f"the model takes {', '.join(names)}", remedy="give every input once")
        return given


def _declared(name: str, dims: Dims) -> tuple[int | str, ...]:
    return tuple(d if isinstance(d, int) or d else f"{name}_d{k}" for k, d in enumerate(dims or ()))


def _text(name: str, dims: Dims, value: Any) -> Array:
    """An array of Python's strings, of a shape that fits; ``InputError`` for any other."""
    try:
        found = np.asarray(value, object)
    except ValueError as error:
        raise InputError(f"input {name!r} is no array: {error}", remedy="pass texts in rows of one length") from error
    if not all(isinstance(v, str) for v in found.reshape(-1)):
        raise InputError(f"input {name!r} is text, and not all elements are strings", remedy="pass strings")
    sizes = None if dims is None else [n if isinstance(d, str) else d for d, n in zip(dims, found.shape, strict=False)]
    if dims is not None and (len(dims) != found.ndim or sizes != [*found.shape]):
        raise InputError(f"input {name!r} has the shape {list(found.shape)}, not {list(dims)}", remedy="reshape it")
    return found
