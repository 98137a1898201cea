"""The arguments of a call, in whatever form they came, as arrays that native code can use.

In: positional, keyword or dict arguments. Out: C-contiguous NumPy arrays in the model's order; or one ``InputError``
with everything that is wrong. Not its business: reading other libraries' arrays (``values``), writing (``written``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.errors import InputError, ResourceError, Violation
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.plan import Planner, input_error
from tilewright.runtime.shapes import Shape
from tilewright.runtime.structure import Convention, Misfit, build
from tilewright.runtime.values import Array, as_array, dtype_of, is_tensor

CHECKED_FROM = 64 << 10
"""Bytes of an array from which its shape is checked before it is copied: copying it takes longer than the check."""
_CONTAINERS = (tuple, list, Mapping)


def flat_arguments(
    convention: Convention, args: tuple[Any, ...], kwargs: Mapping[str, Any], n_inputs: int
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What a call as the module's author wrote it gives for each input; any other call as it is."""
    if convention.parameters is None:
        return args, kwargs
    try:
        return tuple(convention.parameters.take(args, kwargs, n_inputs)), {}
    except Misfit as error:
        if any(isinstance(x, _CONTAINERS) for x in (*args, *kwargs.values())):
            raise InputError(str(error), remedy="call it as the module was called") from error
        return args, kwargs


def as_returned(convention: Convention, results: Sequence[Any]) -> Any:
    """The results as the module returns them; one of any other model as itself, several as a tuple."""
    if convention.result is not None:
        return build(convention.result, results)
    return results[0] if len(results) == 1 else tuple(results)


class ArgumentReader:
    """Reads the inputs of one model's calls."""

    def __init__(self, inputs: Sequence[TensorSpec], planner: Planner, n_kept: int = 0) -> None:
        """``n_kept`` further inputs are the model's own."""
        self._kept: list[Shape | None] = [None] * n_kept
        self._inputs = {spec.name: (spec, dtype_of(spec.dtype)) for spec in inputs}
        self._names = list(self._inputs)
        self._planner = planner
        self.copies = 0

    def read(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[Any] | None = None
    ) -> tuple[list[Array], bool]:
        """The inputs as arrays, and whether there is a PyTorch tensor; ``given`` is what ``flat`` found, if known."""
        given = self.flat(args, kwargs) if given is None else given
        if given is None:
            raise self._explain(args, kwargs)
        arrays: list[Array] = []
        has_tensors = must_copy = False
        for value, (spec, dtype) in zip(given, self._inputs.values()):  # noqa: B905 - there is one for each
            array = as_array(value, spec)
            if isinstance(array, Violation) or array.dtype != dtype:
                raise self._explain(args, kwargs)
            has_tensors = has_tensors or (array is not value and is_tensor(value))
            flags = array.flags
            must_copy = must_copy or not (flags.c_contiguous and flags.aligned)
            arrays.append(array)
        return self._usable(arrays) if must_copy else arrays, has_tensors

    def flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The inputs of a call in order, as they are; None for a call that has not each of them once."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self.flat((), {**args[0], **kwargs})
        names = self._names[len(args) :]
        if len(args) + len(kwargs) != len(self._names) or not all(name in kwargs for name in names):
            return None
        return [*args, *[kwargs[name] for name in names]] if names else args

    def _explain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputError:
        """Everything that is wrong with a call: names, types and dtypes, and the shapes as far as they are known."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._explain((), {**args[0], **kwargs})
        given = {**dict(zip(self._inputs, args, strict=False)), **kwargs}
        wrong = list(self._misnamed(args, kwargs, given))
        shapes: list[Shape | None] = []
        for name, (spec, dtype) in self._inputs.items():
            found = as_array(given[name], spec) if name in given else None
            shapes.append(found.shape if isinstance(found, np.ndarray) else None)
            if isinstance(found, Violation):
                wrong.append(found)
            elif found is not None and found.dtype != dtype:
                wrong.append(_wrong_dtype(spec, found))
        return input_error([*wrong, *self._planner.check([*shapes, *self._kept])])

    def _usable(self, arrays: Sequence[Array]) -> list[Array]:
        """The arrays, with copies of those that lie as no code reads them; their shapes are checked before that."""
        if max([a.nbytes for a in arrays]) >= CHECKED_FROM:
            wrong = self._planner.check([*(a.shape for a in arrays), *self._kept])
            if wrong:
                raise input_error(wrong)
        made = []
        for name, array in zip(self._inputs, arrays, strict=True):
            if not (array.flags.c_contiguous and array.flags.aligned):
                self.copies += 1
                try:
                    array = np.array(array, order="C", copy=True)
                except (MemoryError, ValueError) as error:  # NumPy: ValueError for more bytes than an address can have
                    text = f"there is no memory for a contiguous copy of {name}, of shape {array.shape}"
                    raise ResourceError(text, remedy="pass a contiguous array, or a smaller one") from error
            made.append(array)
        return made

    def _misnamed(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Iterator[Violation]:
        names = self._names
        takes = f"the model takes {', '.join(names) or 'none'}"
        if len(args) > len(names):
            yield Violation("", f"{len(args)} were given", takes, "drop the others")
        for name in names[: len(args)]:
            if name in kwargs:
                yield Violation(name, "given twice", "positional arguments fill inputs in order", "give it once")
        for name in kwargs:
            if name not in self._inputs:
                yield Violation(str(name), "no such input", takes, "drop or rename it")
        for name in names:
            if name not in given:
                yield Violation(name, "missing", takes, "give every input")


def checked_feeds(feeds: Any) -> Mapping[str, Any]:
    """The inputs of a call by name; ``InputError`` where they are no mapping."""
    if isinstance(feeds, Mapping):
        return feeds
    remedy = "call run({'name': array, ...}), or the model itself with arrays in order"
    raise InputError(f"run takes a dict of arrays by name, not a {type(feeds).__qualname__}", remedy=remedy)


def of_host(value: Any, spec: TensorSpec) -> Array | Violation:
    """A value as an array of the input's dtype whose elements lie in order, or what is wrong with it."""
    found = as_array(value, spec)
    if isinstance(found, Violation):
        return found
    return np.asarray(found, order="C") if found.dtype == dtype_of(spec.dtype) else _wrong_dtype(spec, found)


def _wrong_dtype(spec: TensorSpec, array: Array) -> Violation:
    remedy = f"convert it, for example {spec.name}.astype({spec.dtype!r}); nothing is converted silently"
    return Violation(spec.name, f"dtype {array.dtype}", f"the model takes {spec.dtype}", remedy)
