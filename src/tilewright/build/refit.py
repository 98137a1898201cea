"""New numbers in a compiled model, whose code stays: ``tw.refit`` and ``model.refit``.

In: a compiled model with its source, or its file with the one beside it that says how weights were made; new weights by
name. Out: what a fresh compile of the source with these weights gives. Not its business: reading files of weights
(``frontend.weights``).

Weights of a compiled model are folded, laid out and packed, so new ones go the way of the old ones: graph passes, the
split into kernels, schedules, packing; everything but emitting and compiling code. Whatever decides code then has the
digest that it had (``build.digest``), or the refit is refused: a tensor that became all zeros, a scalar that is part of
a kernel's text, or two tensors that no longer are equal ask for other code.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import numpy as np

from tilewright import ops
from tilewright.build.digest import digest_of
from tilewright.build.kernels import optimise_and_split
from tilewright.build.manifest import with_start
from tilewright.build.options import Clock, Options, read_schedule
from tilewright.core import types
from tilewright.core.diag import OptionError
from tilewright.core.graph import CONST, SMALL_BYTES
from tilewright.core.text import SideTable, parse_graph, print_graph
from tilewright.core.types import Array
from tilewright.frontend.source import Called, Source, import_called
from tilewright.frontend.weights.given import (
    Weights,
    check_weights,
    is_onnx,
    named_tensors,
    names_of_one,
    numbers_of,
    with_weights,
    without_numbers,
)
from tilewright.runtime.answers import compiler_text
from tilewright.runtime.artifact import load, save
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.files import replacing, writing
from tilewright.runtime.manifest import MAX_RANK, Manifest
from tilewright.runtime.python.model import CompiledModel, LoadedModel

SUFFIX = ".refit"
"""Of the file beside a compiled model that says how its weights were made."""
FORMAT = "tilewright-refit 1"
_MOST_APART = 4096
"""Of the ways in which tensors that are not of floats are made to differ."""
ANEW = "compile the model with the new weights"


def refit(path: str | os.PathLike[str], weights: Weights, output: str | os.PathLike[str]) -> None:
    """Write the compiled model of ``path`` (``.tw``) with other weights to ``output``, without compiling.

    ``weights`` is the path of a safetensors or GGUF file, or arrays by the names of the source's tensors, all of them.
    The file ``.refit`` beside ``path`` is needed, which ``model.save(path, refit=True)`` writes. Results are those of
    a fresh compile with these weights.

    ``ImportFailed`` names all tensors that are missing, unknown or of another shape or kind of number.
    ``ArtifactError`` where the weights ask for other code, and for files that are damaged or of another version of
    the compiler.
    """
    found = load(path)
    recipe = _read(Path(path).with_suffix(SUFFIX))
    given = numbers_of(weights)
    check_weights(recipe.tensors, given, needs_all=True, others=recipe.others)
    made = _weights(found.manifest, found.weights, recipe.called(given), recipe.options)
    with writing(output):
        save(output, found.manifest, found.objects, made)


@dataclass(frozen=True)
class Origin:
    """The source of a compiled model and what it was compiled by, for who wants it with other weights."""

    source: Source
    imported: Mapping[str, Any]
    """The arguments of ``import_called``."""
    options: Mapping[str, Any]
    """The fields of :class:`Options`, but a file of schedules by its path; what searches found is the model's."""

    def refit(self, model: CompiledModel, weights: Weights) -> CompiledModel:
        """:meth:`CompiledModel.refit`."""
        called = import_called(with_weights(self.source, weights), **self.imported)
        made = _weights(model.manifest, model.weights, called, self._options(model))
        if isinstance(model, LoadedModel):
            return LoadedModel(model.manifest, model.objects, made, threads=model.threads)
        return CompiledModel(model.manifest, model.objects, made)

    def _options(self, model: CompiledModel) -> Options:
        """With the schedules that a search found as the model has them: the database may have others by now."""
        found = json.dumps((model.manifest.report or {}).get("found_schedules", {}))
        return Options(**{**self.options, "schedule": read_schedule(self.options["schedule"]), "found": found})

    def keep(self, model: CompiledModel, path: str | os.PathLike[str]) -> None:
        """Write beside the model's file ``path`` how its weights are made, once that is seen to give its own.

        ``OptionError`` for a source whose weights have no names, or are changed on the way into the graph, and for one
        that has a tensor under two names.
        """
        own, options = named_tensors(self.source), self._options(model)
        if not is_onnx(self.source) and (tied := names_of_one(self.source)):
            raise _no_recipe(f"{tied[0][0]} and {tied[0][1]} are one tensor", "call model.refit")
        recipe = self._of_onnx(own, options) if is_onnx(self.source) else self._of_module(own, options)
        joined = _no_recipe("tensors are joined, or computed from, when it is imported", ANEW)
        try:
            made = _weights(model.manifest, model.weights, recipe.called(own), options)
        except ArtifactError as error:
            raise joined from error
        if made.tobytes() != model.weights.tobytes():
            raise joined
        _write(Path(path).with_suffix(SUFFIX), recipe)

    def _of_onnx(self, own: Mapping[str, Array], options: Options) -> _Recipe:
        """The model without the numbers of its large tensors; the others are kept where nobody gives new ones."""
        large = {n: (a.dtype.name, a.shape) for n, a in own.items() if a.nbytes > SMALL_BYTES}
        others = tuple([n for n in own if n not in large])
        imported = {k: self.imported[k] for k in ("input_shapes", "fix_dims")}
        return _Recipe(large, others, options, model=without_numbers(self.source, large), imported=imported)

    def _of_module(self, own: Mapping[str, Array], options: Options) -> _Recipe:
        """The graph's text. Where a tensor stands in it is seen by numbers that differ a little from all others.

        A constant that was computed from tensors keeps such numbers, and so gives other weights than the model's.
        """
        called = import_called(with_weights(self.source, _apart(own)), **self.imported)
        if called.convention.state:
            raise _no_recipe("it has a state", "call model.refit")
        table = SideTable(inline_bytes=0)
        text = print_graph(called.graph, table)
        nodes = {id(n.attrs["data"].array): n.loc.text for n in called.graph.nodes() if n.op is CONST}
        found = {k: nodes.get(id(a), "").removeprefix('weight "').removesuffix('"') for k, a in table.arrays.items()}
        names = {k: n for k, n in found.items() if n in own and table.arrays[k].shape == own[n].shape}
        constants = {k: a for k, a in table.arrays.items() if k not in names}
        tensors = {n: (own[n].dtype.name, own[n].shape) for n in names.values()}
        return _Recipe(tensors, tuple([n for n in own if n not in tensors]), options, text, names, constants)


def _weights(manifest: Manifest, old: Array, called: Called, options: Options) -> Array:
    """The weights that a source's code reads, where that code is the model's."""
    split = optimise_and_split(called.graph, options, options.machine, Clock())
    if digest_of(split.program, split.exact, split.slots) != (manifest.report or {}).get("program"):
        raise ArtifactError("these weights ask for other code than the model has", remedy=ANEW)
    made = with_start(split.planner.weights.blob(), called)[0]
    if made.nbytes != old.nbytes:
        raise ArtifactError("these weights lie otherwise than the model's", remedy=ANEW)
    return made


def _no_recipe(rule: str, remedy: str) -> OptionError:
    return OptionError(f"this model can't be refitted from its file: {rule}", remedy=remedy)


def _apart(own: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors, of which no two are equal: equal small constants are one node of a graph.

    The k-th of floats differs from its numbers by k steps of its type, and others differ in the lowest bits of a few
    elements, so that what depends on a number hardly changes. ``OptionError`` for truths too few to differ.
    """
    made = dict(own)
    seen: set[object] = set()
    for k, (name, a) in enumerate(own.items(), 1):
        bits = np.dtype(f"i{a.dtype.itemsize}")
        if a.size and (a.dtype.kind == "f" or a.dtype == types.bf16.numpy):
            made[name] = (np.ascontiguousarray(a).view(bits) + bits.type(k)).view(a.dtype).reshape(a.shape)
        elif a.size:
            ways = (_other(a, 1 + (k + n) % _MOST_APART) for n in range(_MOST_APART))
            found = next((b for b in ways if _key(b) != _key(a) and _key(b) not in seen), None)
            if found is None:
                raise _no_recipe(f"{name} has too few elements to be told from others", "call model.refit")
            seen.add(_key(found))
            made[name] = found
    return made


def _key(a: Array) -> object:
    return a.dtype, a.shape, a.tobytes()


def _other(a: Array, k: int) -> Array:
    """Whole numbers or truths that differ in lowest bits where ``k`` has bits; the last takes those that are left."""
    made = np.array(a, order="C")
    flat = made.reshape(-1)
    for j in range(min(flat.size, k.bit_length())):
        left = k >> j if j == flat.size - 1 else (k >> j) & 1
        flat[j] ^= flat.dtype.type(left & 1 if flat.dtype.kind == "b" else left & np.iinfo(flat.dtype).max)
    return made


# --- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recipe:
    """What weights are made of: an ONNX model without the numbers of ``tensors``, or else a graph's text.

    ``names`` maps constants of the text to tensors, ``constants`` others to their numbers.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    """Dtype and shape of each tensor that is needed."""
    others: tuple[str, ...]
    """Tensors that may be given, too."""
    options: Options
    text: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    model: bytes = b""
    imported: Mapping[str, Any] = field(default_factory=dict)

    def called(self, given: Mapping[str, Array]) -> Called:
        """The source with these numbers; equal small constants are one, as in a graph that was just imported."""
        if self.model:
            return import_called(with_weights(self.model, given), **self.imported)
        typed = {n: np.asarray(given[n]).astype(dtype, copy=False) for n, (dtype, _) in self.tensors.items()}
        table = {**self.constants, **{k: typed[n] for k, n in self.names.items()}}
        return Called(parse_graph(self.text, ops.by_name, table))


def _write(path: Path, recipe: _Recipe) -> None:
    head = {
        "format": FORMAT, "compiler": compiler_text(), "options": asdict(recipe.options), "names": recipe.names,
        "tensors": recipe.tensors, "others": recipe.others, "imported": recipe.imported,
    }  # fmt: skip
    with writing(path), replacing(path) as file, ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr("recipe.json", json.dumps(head))
        archive.writestr("graph.txt", recipe.text)
        archive.writestr("model.onnx", recipe.model)
        for k, a in recipe.constants.items():
            archive.writestr(f"{k}.bin", np.ascontiguousarray(a).tobytes())


def _read(path: Path) -> _Recipe:
    if not path.exists():
        remedy = "save the model with refit=True, or compile it with --refit"
        raise ArtifactError(f"{path}, which says how weights are made, is not there", remedy=remedy)
    try:
        with ZipFile(path) as archive:
            head = Fields(decode_json(archive.read("recipe.json")), "recipe")
            if head.text("format") != FORMAT or head.text("compiler") != compiler_text():
                raise ArtifactError(f"{path} is of another version of the compiler", remedy="compile and save it anew")
            text, model = archive.read("graph.txt").decode(), archive.read("model.onnx")
            stored = [n for n in archive.namelist() if n.endswith(".bin")]
            constants = {n.removesuffix(".bin"): np.frombuffer(archive.read(n), np.uint8) for n in stored}
        given, named = head.child("tensors"), head.child("names")
        tensors = {n: _tensor(n, given.any(n)) for n in given.names()}
        names = {n: named.choice(n, tensors) for n in named.names()}
        return _Recipe(
            tensors, head.texts("others"), _options(head.child("options")), text, names, constants, model,
            _imported(head.child("imported")),
        )  # fmt: skip
    except (BadZipFile, zlib.error, OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError) as error:
        raise ArtifactError(f"{path} is damaged: {error}"[:300], remedy="compile and save the model anew") from error


def _tensor(name: str, value: Any) -> tuple[str, tuple[int, ...]]:
    """A dtype and a shape."""
    match value:
        case [str(dtype), list(shape)] if all(type(n) is int and n >= 0 for n in shape):
            return np.dtype(dtype).name, tuple(shape)
    raise FieldError(f"recipe.tensors.{name:.80} is {value!r:.80}, no dtype and shape")


def _options(f: Fields) -> Options:
    """Options, whose texts nobody has checked where they come from a file."""
    f.text("schedule")
    if found := f.text("found"):
        steps = Fields(decode_json(found), "recipe.options.found")
        for name in steps.names():
            steps.text(name)
    return Options(**{name: f.any(name) for name in f.names()})


def _imported(f: Fields) -> dict[str, Any]:
    """Shapes and sizes that the model was imported with."""
    made: dict[str, Any] = {}
    for name in ("input_shapes", "fix_dims"):
        if f.has(name):
            made[name] = None if f.any(name) is None else f.child(name)
    f.finish()
    for name, by_name in made.items():
        if isinstance(by_name, Fields):
            is_fixed = name == "fix_dims"
            made[name] = {n: by_name.integer(n, 0) if is_fixed else by_name.sizes(n, MAX_RANK) for n in by_name.names()}
    return made
