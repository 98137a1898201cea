"""How a model is called: arguments and results as tuples, lists, dicts and records, and what stays from call to call.

In: trees that say where each tensor stands. Out: the tensors of nested arguments in the model's order; nested results
from the model's tensors. Not its business: where a tree comes from (``frontend.torch.structure``), reading arrays
(``arguments``).

A record is any other container: a dataclass, a named tuple, a model's output class. In the process that compiled the
model it is the user's own class; a model that comes from a file gives :class:`Record`, since a file names no code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from tilewright.runtime.fields import FieldError, Fields
from tilewright.runtime.once import computed
from tilewright.runtime.plain import dataclass

MAX_DEPTH = 64
TENSOR, NUMBER, GIVEN, TUPLE, LIST, DICT, RECORD = "tensor", "number", "given", "tuple", "list", "dict", "record"
KINDS = frozenset({TENSOR, NUMBER, GIVEN, TUPLE, LIST, DICT, RECORD})
_NO_TENSORS = (type(None), Mapping, tuple)
_SCALARS = (bool, int, float, str, type(None))


class Misfit(ValueError):
    """Arguments of another structure; the text says where and how."""


class Record(dict[str, Any]):
    """A result whose parts have names: by attribute, by name or by number."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


@dataclass(frozen=True)
class Codec:
    """How a container of the user's is taken apart, and made of its parts."""

    take: Callable[[Any], Sequence[Any]]
    make: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Tree:
    """A value: the tensor (or the number that a tensor holds) at ``index``, the constant ``value``, or a container.

    ``keys`` names the parts of a dict (numbers, too) or a record, ``name`` is a record's class.
    """

    kind: str
    index: int = 0
    value: Any = None
    keys: tuple[Any, ...] = ()
    parts: tuple[Tree, ...] = ()
    name: str = ""
    codec: Codec | None = field(default=None, compare=False, repr=False)

    def leaves(self) -> Iterator[int]:
        """The tensors in it, in order."""
        if self.kind in (TENSOR, NUMBER):
            yield self.index
        for part in self.parts:
            yield from part.leaves()

    def to_json(self) -> dict[str, Any]:
        """As JSON values; how a record is made is not among them."""
        made = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "codec"}
        return {**made, "keys": list(self.keys), "parts": [p.to_json() for p in self.parts]}

    @staticmethod
    def from_json(f: Fields, n: int, depth: int = 0) -> Tree:
        """The tree of JSON values over ``n`` tensors; ``FieldError`` for any other."""
        if depth > MAX_DEPTH:
            raise FieldError(f"a structure is more than {MAX_DEPTH} deep")
        kind, keys = f.choice("kind", KINDS), f.any("keys")
        index = f.integer("index", 0, max(n - 1, 0))
        value, name = f.any("value"), f.text("name")
        parts = tuple(Tree.from_json(c, n, depth + 1) for c in f.children("parts"))
        f.finish()
        is_leaf = kind in (TENSOR, NUMBER, GIVEN)
        good = isinstance(keys, list) and all(isinstance(k, str | int) for k in keys) and isinstance(value, _SCALARS)
        good = good and len(keys) == (len(parts) if kind in (DICT, RECORD) else 0) and not (is_leaf and parts)
        if not good or (kind in (TENSOR, NUMBER) and not n):
            raise FieldError("a structure contradicts itself")
        return Tree(kind, index, value, tuple(keys), parts, name)


def build(tree: Tree, values: Sequence[Any]) -> Any:
    """The value that a tree describes, of tensors."""
    match tree.kind:
        case "tensor":
            return values[tree.index]
        case "number":
            return values[tree.index].item()
        case "given":
            return tree.value
    parts = [build(p, values) for p in tree.parts]
    if tree.codec is not None:
        with suppress(Exception):  # a class that takes nothing but PyTorch's tensors, and got arrays
            return tree.codec.make(parts)
    match tree.kind:
        case "tuple":
            return tuple(parts)
        case "list":
            return parts
        case "dict":
            return dict(zip(tree.keys, parts, strict=True))
    return Record(zip(map(str, tree.keys), parts, strict=True))


def numbers_in(tree: Tree | None) -> set[int]:
    """Which tensors a value has as numbers of Python's."""
    if tree is None:
        return set()
    return {tree.index} if tree.kind == NUMBER else set().union(*map(numbers_in, tree.parts))


def take(tree: Tree, value: Any, where: str) -> Iterator[tuple[int, Any]]:
    """The tensors in a value, each with its number; ``Misfit`` for a value of another structure."""
    if tree.kind in (TENSOR, NUMBER):
        if isinstance(value, _NO_TENSORS):
            raise Misfit(f"{where} is a {type(value).__name__}, the model takes a tensor there")
        yield tree.index, value
    elif tree.kind == GIVEN:
        if value is not tree.value and (type(value) is not type(tree.value) or value != tree.value):
            raise Misfit(f"{where} is {str(value)[:80]!r}, the model was compiled with {tree.value!r}")
    else:
        for key, part, x in zip(_names(tree), tree.parts, _parts(tree, value, where), strict=True):
            yield from take(part, x, where + key)


def _names(tree: Tree) -> list[str]:
    if tree.kind == RECORD:
        return [f".{k}" for k in tree.keys]
    return [f"[{k!r}]" for k in (tree.keys if tree.kind == DICT else range(len(tree.parts)))]


def _parts(tree: Tree, value: Any, where: str) -> Sequence[Any]:
    """The parts of a container, as many as the tree has."""
    found: Sequence[Any] | None = None
    try:
        if tree.codec is not None and not isinstance(value, dict | Record):
            found = list(tree.codec.take(value))
        elif isinstance(value, Mapping):
            found = [value[k] for k in tree.keys] if len(value) == len(tree.keys) else None
        elif tree.kind == RECORD:
            found = [getattr(value, str(k)) for k in tree.keys]
        elif tree.kind != DICT and isinstance(value, tuple | list):
            found = value
    except (KeyError, AttributeError, TypeError, ValueError):
        found = None
    if found is None or len(found) != len(tree.parts):
        keys = f" of {', '.join(map(str, tree.keys))}" if tree.keys else f" of {len(tree.parts)} parts"
        raise Misfit(f"{where} is a {type(value).__name__}, the model takes a {tree.name or tree.kind}{keys}")
    return found


@dataclass(frozen=True)
class Parameters:
    """The arguments of a call by name, in order, of which the first ``n_positional`` may be given without."""

    trees: Mapping[str, Tree]
    n_positional: int

    @computed
    def _is_flat(self) -> bool:
        """Whether each is a tensor, in the model's order."""
        return all(tree.kind in (TENSOR, NUMBER) and tree.index == k for k, tree in enumerate(self.trees.values()))

    def take(self, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> list[Any]:
        """The ``n`` tensors of a call; ``Misfit`` for a call of another structure."""
        if self._is_flat and not kwargs and len(args) == n and not any(isinstance(x, _NO_TENSORS) for x in args):
            return list(args)
        names = list(self.trees)
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping) and args[0].keys() <= self.trees.keys():
            return self.take((), args[0], n)
        if len(args) > len(names):
            raise Misfit(f"{len(args)} arguments, the model takes {', '.join(names)}")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in kwargs:
            if name not in self.trees or name in names[: len(args)]:
                raise Misfit(f"{name} is given twice or unknown, the model takes {', '.join(names)}")
        found: list[Any] = [None] * n
        for name, tree in self.trees.items():
            if name in given or any(True for _ in tree.leaves()):
                if name not in given:
                    raise Misfit(f"{name} is missing, the model takes {', '.join(names)}")
                for index, value in take(tree, given[name], name):
                    found[index] = value
        return found

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "names": list(self.trees), "trees": [t.to_json() for t in self.trees.values()],
            "n_positional": self.n_positional,
        }  # fmt: skip

    @staticmethod
    def from_json(f: Fields, n: int) -> Parameters:
        """The parameters of JSON values over ``n`` tensors; ``FieldError`` for any others."""
        names = f.texts("names")
        trees = [Tree.from_json(c, n) for c in f.children("trees")]
        n_positional = f.integer("n_positional", 0, len(names))
        f.finish()
        if len(trees) != len(names) or len(set(names)) != len(names):
            raise FieldError("parameters contradict themselves")
        if sorted(k for t in trees for k in t.leaves()) != list(range(n)):
            raise FieldError("parameters do not hold each input once")
        return Parameters(dict(zip(names, trees, strict=True)), n_positional)


@dataclass(frozen=True)
class State:
    """A tensor that the model keeps from call to call: an input and an output, and where the weights have its start."""

    input: str
    output: str
    offset: int = 0


@dataclass(frozen=True)
class Convention:
    """How a model is called, where that is more than tensors in and tensors out.

    Of the model's inputs the last ``len(state)`` are its own. Its outputs are the caller's, then the new state, then
    the new values of the inputs ``written``.
    """

    parameters: Parameters | None = None
    result: Tree | None = None
    state: tuple[State, ...] = ()
    written: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parameters or self.result or self.state or self.written)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "parameters": self.parameters and self.parameters.to_json(),
            "result": self.result and self.result.to_json(),
            "state": [dataclasses.asdict(s) for s in self.state],
            "written": list(self.written),
        }

    @staticmethod
    def from_json(f: Fields, inputs: Sequence[str], outputs: Sequence[str]) -> Convention:
        """The convention of JSON values for a model of these inputs and outputs; ``FieldError`` for any other."""
        state = tuple(_state(c) for c in f.children("state"))
        n_in = len(inputs) - len(state)
        written = f.any("written")
        if not isinstance(written, list) or not all(type(k) is int and 0 <= k < n_in for k in written):
            raise FieldError(f"{written!r} are not inputs")
        n_out = len(outputs) - len(state) - len(written)
        names = [s.output for s in state]
        if n_in < 0 or n_out < 0 or list(inputs[n_in:]) != [s.input for s in state]:
            raise FieldError("the state is not among the inputs")
        if list(outputs[n_out : n_out + len(state)]) != names:
            raise FieldError("the state is not among the outputs")
        parameters = None if f.any("parameters") is None else Parameters.from_json(f.child("parameters"), n_in)
        result = None if f.any("result") is None else Tree.from_json(f.child("result"), n_out)
        f.finish()
        return Convention(parameters, result, state, tuple(written))


FLAT = Convention()
"""Tensors in, tensors out."""


def _state(f: Fields) -> State:
    made = State(f.text("input"), f.text("output"), f.integer("offset", 0))
    f.finish()
    return made
