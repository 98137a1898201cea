"""Arrays of a function that is being traced: nodes of a graph with the arithmetic of the array API.

In: nodes, NumPy's arrays and numbers. Out: nodes, each at the user's line. Not its business: which functions there are
(``functions``), compiling them (``jit``).

A function of ``tilewright.numpy`` that gets no traced array runs at once: it is traced by itself on constants and
evaluated, so that it means the same in both cases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import CompileError, Loc, OpError, Problem, loc_of_frame, users_frame
from tilewright.core.dims import are_known, numbers
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import CONST, Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, DType, dtype_of
from tilewright.runtime.errors import InputError

NOT_THE_USERS = (
    str(Path(__file__).parent), str(Path(__file__).parents[2] / "numpy.py"), functools.__file__,
    str(Path(np.__file__).parent),
)  # fmt: skip
"""Where functions stand that call each other on the way from the user's line."""
NUMBERS = (bool, int, float)
"""Python's numbers take the type of the array beside them."""
OFFERED_TYPES = "use bools, integers or floats"


class TracedArray:
    """A tensor of a traced function. ``shape`` and ``dtype`` are known, its numbers are not."""

    __slots__ = ("node", "pool")

    def __init__(self, pool: Pool, node: Node) -> None:
        self.pool, self.node = pool, node

    @property
    def shape(self) -> tuple[int, ...]:
        if not are_known(self.node.shape):
            rule = "its size is the number of elements that a call finds"
            raise untraceable("shape", rule, "compute with it elementwise, or give it back")
        return tuple(numbers(self.node.shape))

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
            raise untraceable("len()", "an array of no axes has no length", "give it an axis by reshape")
        return self.shape[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise untraceable("[]=", "an array of a traced function is not written into", "make another by where or concat")

    def _has_no_numbers(self, what: str) -> CompileError:
        rule = f"{what} asks for the numbers of an array, which only a call brings"
        return untraceable(what, rule, "use where, or pass the number as an argument that is no array")

    def __bool__(self) -> bool:
        raise self._has_no_numbers("bool()")

    def __int__(self) -> int:
        raise self._has_no_numbers("int()")

    def __float__(self) -> float:
        raise self._has_no_numbers("float()")

    def __complex__(self) -> complex:
        raise self._has_no_numbers("complex()")

    def __index__(self) -> int:
        raise self._has_no_numbers("an index")

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise self._has_no_numbers("a function of NumPy")


def user_loc() -> Loc:
    """The line of the user's function that is being traced."""
    return loc_of_frame(users_frame(NOT_THE_USERS))


def untraceable(what: str, rule: str, remedy: str, kind: type[CompileError] = CompileError) -> CompileError:
    """The error at the user's line."""
    return kind("the function can't be traced", [Problem(user_loc(), what, rule, remedy)])


def rebuilt(like: Any, parts: Iterable[Any]) -> Any:
    """A list or tuple of the type of another; named tuples take their parts one by one."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def traced_among(values: Any) -> TracedArray | None:
    """A traced array within lists, tuples and dicts."""
    if isinstance(values, TracedArray):
        return values
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, list | tuple) else ()
    return next((found for v in parts if (found := traced_among(v)) is not None), None)


def lifted(pool: Pool, x: Any, like: np.dtype[Any] | None = None) -> TracedArray:
    """An array, or a number of Python in the type ``like``, as a constant."""
    if isinstance(x, TracedArray):
        if x.pool is not pool:
            raise InputError("an array of another traced function is used", remedy="pass it as an argument")
        return x
    if isinstance(x, NUMBERS) and like is not None:
        if not fits(x, like):
            raise OpError(f"{x} is outside of the range of {like}", remedy="cast the array to a larger type first")
        array = np.asarray(x, like)
    else:
        array = np.asarray(x)
    offered_type(array.dtype)
    return TracedArray(pool, Builder(pool, user_loc()).const(native(array)))


def fits(x: bool | float, dtype: np.dtype[Any]) -> bool:
    """Is a whole number within the range of a type of whole numbers? Others have no range that ends abruptly."""
    if dtype.kind not in "iu" or not isinstance(x, int):
        return True
    return bool(np.iinfo(dtype).min <= x <= np.iinfo(dtype).max)


def native(array: Array) -> Array:
    """The array in this machine's order of bytes."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def offered_type(dtype: Any) -> DType:
    """The type of an array's elements, where it is one of bools, integers or floats."""
    try:
        return dtype_of(dtype)
    except KeyError:
        raise OpError(f"elements of type {np.dtype(dtype)} are not offered", remedy=OFFERED_TYPES) from None


def known(x: TracedArray) -> Array | None:
    """The numbers of a constant."""
    return x.node.attrs["data"].array if x.node.op is CONST else None


def apply(op: OpDef, *xs: TracedArray, **attrs: Any) -> TracedArray:
    """The first result of an op."""
    return applied(op, *xs, **attrs)[0]


def applied(op: OpDef, *xs: TracedArray, **attrs: Any) -> tuple[TracedArray, ...]:
    """All results of an op, at the user's line."""
    b = Builder(xs[0].pool, user_loc())
    return tuple(TracedArray(xs[0].pool, n) for n in b.results(b(op, *(x.node for x in xs), **attrs)))


def cast(x: TracedArray, dtype: Any) -> TracedArray:
    wanted = offered_type(dtype)
    return x if x.node.dtype is wanted else apply(ops.cast, x, dtype=wanted)


def promoted(xs: Sequence[Any], pool: Pool) -> list[TracedArray]:
    """Operands of one type: that of NumPy, to which Python's numbers add nothing but their kind."""
    wanted = promoted_type(xs)
    return [cast(lifted(pool, x, wanted), wanted) for x in xs]


def promoted_type(xs: Sequence[Any]) -> np.dtype[Any]:
    """The type of the operands; numbers of Python have a kind, whatever their size."""
    return np.dtype(np.result_type(*map(_kind, xs)))


def _kind(x: Any) -> np.dtype[Any] | bool | float:
    if isinstance(x, NUMBERS) and not isinstance(x, np.generic):
        return x if isinstance(x, bool) else 0 if isinstance(x, int) else 0.0
    found = x.dtype if isinstance(x, TracedArray) else np.asarray(x).dtype
    offered_type(found)
    return found


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
            raise untraceable(f.__name__, e.message, e.remedy) from e
        except (IndexError, KeyError, OverflowError, TypeError, ValueError) as e:
            raise untraceable(f.__name__, str(e), "see docs/jit.md for what the function takes") from e
        return _evaluated(pool, made) if among is None else made

    return call


def _evaluated(pool: Pool, made: Any) -> Any:
    """The numbers of arrays that are made of constants; the caller may write into them, but not into a constant."""
    if isinstance(made, TracedArray):
        (found,) = evaluate_graph(Graph("eager", pool, (), (made.node,), ("y",)), [])
        return found if found.flags.writeable else found.copy()
    return rebuilt(made, [_evaluated(pool, v) for v in made]) if isinstance(made, list | tuple) else made
