"""``tilewright.jit``: a Python function written against the array API, compiled when it is first called.

In: a function over ``tilewright.numpy``. Out: a function that is called like it, on NumPy's arrays. It is traced once
for each signature: structure, shapes, types, and values of what is no array. Not its business: what the functions of
``tilewright.numpy`` mean (``functions``, ``making``).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.build import driver
from tilewright.core.diag import OpError, OptionError
from tilewright.core.graph import Graph, Pool
from tilewright.core.keys import key_of
from tilewright.core.types import TensorType, dtype_of
from tilewright.integrations.arrays.methods import Operand
from tilewright.integrations.arrays.traced import (
    TracedArray,
    lifted,
    native,
    offered_type,
    rebuilt,
    traced_among,
    untraceable,
)
from tilewright.runtime.errors import InputError
from tilewright.runtime.once import ForkLock
from tilewright.runtime.python.model import CompiledModel


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``function``, compiled for the CPU when it is first called with arguments of a kind.

    ``function`` takes NumPy's arrays, or tuples, lists and dicts of them, and uses functions of ``tilewright.numpy``,
    operators and indices; it gives an array or such a structure. Arguments that are no arrays, numbers and text among
    them, are part of the kind: the function is traced anew for each of their values, which must be hashable. Python's
    own control flow runs while it is traced, so it can't depend on the numbers in an array.

    ``options`` are those of ``tilewright.compile``: ``threads``, ``precision``, ``optimize``, ``accuracy``, ``target``.
    Without a function it is a decorator that has these options.

    A call raises ``CompileError`` that names the line of the function and what is wrong there.
    """
    if function is None:
        return functools.partial(jit, **options)
    if not callable(function):
        raise OptionError(f"{function!r:.80} can't be called", remedy="pass a function")
    if unknown := sorted(options.keys() - set(driver.OFFERED)):
        raise OptionError(f"there is no option {unknown[0]!r} here", remedy=f"use one of {list(driver.OFFERED)}")
    return TracedFunction(function, options)


class _ArrayPlace:
    """Where an array stands in a structure."""

    def __init__(self, number: int) -> None:
        self.number = number


class TracedFunction:
    """A function and what it was compiled to, by signature. Threads may call it; one traces at a time."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.options = function, options
        self._made: dict[Any, tuple[CompiledModel, Any]] = {}
        self._lock = ForkLock()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if traced_among([args, kwargs]) is not None:  # a part of a function that is being traced
            return self.function(*args, **kwargs)
        arrays: list[np.ndarray] = []
        given, key = _taken([list(args), kwargs], arrays)
        signature = (key, tuple((a.dtype, a.shape) for a in arrays))
        found = self._made.get(signature)
        if found is None:
            with self._lock.lock:
                found = self._made.get(signature) or self._compiled(given, arrays)
                self._made[signature] = found
        model, result = found
        made = model(*arrays)
        return _given(result, list(made) if isinstance(made, tuple) else [made])

    def _compiled(self, given: Any, arrays: list[np.ndarray]) -> tuple[CompiledModel, Any]:
        pool = Pool()
        inputs = [pool.input(f"x{k}", TensorType(dtype_of(a.dtype), a.shape)) for k, a in enumerate(arrays)]
        args, kwargs = _given(given, [Operand(pool, n) for n in inputs])
        made = self.function(*args, **kwargs)
        outputs: list[TracedArray] = []
        result = _results(pool, made, outputs)
        if not outputs:
            raise untraceable("return", "the function gives no array", "return one")
        names = tuple(f"y{k}" for k in range(len(outputs)))
        title = "".join(c if c.isalnum() else "_" for c in getattr(self, "__name__", type(self.function).__name__))
        graph = Graph(title, pool, tuple(inputs), tuple(x.node for x in outputs), names)
        return driver.compile_graph(graph, **self.options), result


def _taken(value: Any, arrays: list[np.ndarray]) -> tuple[Any, Any]:
    """A structure with places instead of arrays, which are collected; and what is hashable of it."""
    if isinstance(value, list | tuple):
        parts = [_taken(v, arrays) for v in value]
        return rebuilt(value, [p[0] for p in parts]), (type(value), *(p[1] for p in parts))
    if isinstance(value, dict):
        found = {k: _taken(v, arrays) for k, v in value.items()}
        return {k: v[0] for k, v in found.items()}, (dict, *((k, v[1]) for k, v in found.items()))
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        try:
            offered_type(array.dtype)
        except OpError as e:
            raise InputError(f"argument {value!r}: {e.message}", remedy=e.remedy) from None
        arrays.append(native(array))
        return _ArrayPlace(len(arrays) - 1), _ArrayPlace
    try:
        hash(value)
    except TypeError:
        remedy = "pass arrays, numbers, text, or tuples, lists and dicts of them"
        raise InputError(f"argument {value!r} is no array and can't be hashed", remedy=remedy) from None
    return value, key_of(value)


def _given(value: Any, arrays: list[Any]) -> Any:
    """A structure with arrays in their places."""
    if isinstance(value, _ArrayPlace):
        return arrays[value.number]
    if isinstance(value, list | tuple):
        return rebuilt(value, [_given(v, arrays) for v in value])
    return {k: _given(v, arrays) for k, v in value.items()} if isinstance(value, dict) else value


def _results(pool: Pool, value: Any, outputs: list[TracedArray]) -> Any:
    """What a function gave, with places instead of arrays; NumPy's arrays are constants."""
    if isinstance(value, TracedArray | np.ndarray | np.generic):
        outputs.append(lifted(pool, value))
        return _ArrayPlace(len(outputs) - 1)
    if isinstance(value, list | tuple):
        return rebuilt(value, [_results(pool, v, outputs) for v in value])
    return {k: _results(pool, v, outputs) for k, v in value.items()} if isinstance(value, dict) else value
