"""Arrays of a function that is being traced: nodes of a graph with the arithmetic of the array API.

In: nodes, NumPy's arrays and numbers. Out: nodes, each at the user's line. Not its business: which functions there are
(``functions``), compiling them (``jit``).

A function of ``tilewright.numpy`` that gets no traced array runs at once: it is traced by itself on constants and
evaluated, so that it means the same in both cases.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import CompileError, Loc, OpError, Problem
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, dtype_of
from tilewright.runtime.errors import InputError

HERE = str(Path(__file__).parent)
FRONT = str(Path(__file__).parents[2] / "numpy.py")
NUMBERS = (bool, int, float)
"""Python's numbers take the type of the array beside them."""


class TracedArray:
    """A tensor of a traced function. ``shape`` and ``dtype`` are known, its numbers are not."""

    __slots__ = ("node", "pool")
    __array_ufunc__ = None
    """NumPy's arrays leave arithmetic with this one to it."""

    def __init__(self, pool: Pool, node: Node) -> None:
        self.pool, self.node = pool, node

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.node.shape if isinstance(d, int))

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.node.dtype.numpy)

    @property
    def device(self) -> str:
        return "cpu"

    def __repr__(self) -> str:
        return f"TracedArray({self.node.type})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d array has no length")
        return self.shape[0]

    def _has_no_numbers(self, what: str) -> CompileError:
        rule = f"{what} asks for the numbers of an array, which only a call brings"
        remedy = "use where, or pass the number as an argument that is no array"
        return CompileError("the function can't be traced", [Problem(user_loc(), what, rule, remedy)])

    def __bool__(self) -> bool:
        raise self._has_no_numbers("bool()")

    def __int__(self) -> int:
        raise self._has_no_numbers("int()")

    def __float__(self) -> float:
        raise self._has_no_numbers("float()")

    def __index__(self) -> int:
        raise self._has_no_numbers("an index")

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise self._has_no_numbers("a function of NumPy")


def user_loc() -> Loc:
    """The line of the user's function that is being traced."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((HERE, FRONT, functools.__file__)):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Loc(f"{Path(file).name}:{line} in {frame.f_code.co_name}", file, line)


def traced_among(values: Any) -> TracedArray | None:
    """A traced array within lists, tuples and dicts."""
    if isinstance(values, TracedArray):
        return values
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ()
    return next((found for v in parts if (found := traced_among(v)) is not None), None)


def lifted(pool: Pool, x: Any, like: np.dtype[Any] | None = None) -> TracedArray:
    """An array, or a number of the type of the array beside it, as a constant."""
    if isinstance(x, TracedArray):
        if x.pool is not pool:
            raise InputError("an array of another traced function is used", remedy="pass it as an argument")
        return x
    array = np.asarray(x)
    if isinstance(x, NUMBERS) and like is not None:
        array = array.astype(np.result_type(like, x))
    return TracedArray(pool, Builder(pool, user_loc()).const(array))


def apply(op: OpDef, *xs: TracedArray, **attrs: Any) -> TracedArray:
    """The first result of an op."""
    return applied(op, *xs, **attrs)[0]


def applied(op: OpDef, *xs: TracedArray, **attrs: Any) -> tuple[TracedArray, ...]:
    """All results of an op, at the user's line."""
    b = Builder(xs[0].pool, user_loc())
    return tuple(TracedArray(xs[0].pool, n) for n in b.results(b(op, *(x.node for x in xs), **attrs)))


def cast(x: TracedArray, dtype: Any) -> TracedArray:
    wanted = dtype_of(np.dtype(dtype))
    return x if x.node.dtype is wanted else apply(ops.cast, x, dtype=wanted)


def promoted(xs: Sequence[Any], pool: Pool) -> list[TracedArray]:
    """Operands of one type: that of NumPy, to which Python's numbers add nothing but their kind."""
    kinds = [x.dtype if hasattr(x, "dtype") else x if isinstance(x, NUMBERS) else np.asarray(x).dtype for x in xs]
    wanted = np.result_type(*kinds)
    return [cast(lifted(pool, x, wanted), wanted) for x in xs]


def public(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``tilewright.numpy``: of traced arrays a part of their graph, of others computed at once.

    ``f`` takes the pool first. What breaks an op's rule is told at the user's line.
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        among = traced_among([args, kwargs])
        pool = Pool() if among is None else among.pool
        try:
            made = f(pool, *args, **kwargs)
        except OpError as e:
            problem = Problem(user_loc(), f.__name__, e.message, e.remedy)
            raise CompileError("the function can't be traced", [problem]) from e
        return _evaluated(pool, made) if among is None else made

    return call


def _evaluated(pool: Pool, made: Any) -> Any:
    """The numbers of arrays that are made of constants."""
    if isinstance(made, TracedArray):
        (found,) = evaluate_graph(Graph("eager", pool, (), (made.node,), ("y",)), [])
        return found
    return type(made)(_evaluated(pool, v) for v in made) if isinstance(made, list | tuple) else made
