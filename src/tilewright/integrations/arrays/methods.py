"""What a traced array can do by itself: Python's operators, indices, and NumPy's methods.

In: the table of functions. Out: ``Operand``, traced arrays with operators and methods, each a function of the table.
Not its business: the functions (``functions``, ``making``).

The standard's arrays have no methods, but NumPy's have, and a function is tried on those. A method takes what NumPy's
takes and the function offers; what is missing, and NumPy's own functions, are refused at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tilewright.core.diag import CompileError
from tilewright.core.graph import Pool
from tilewright.integrations.arrays.functions import FUNCTIONS, axis_of, offered
from tilewright.integrations.arrays.making import indexed, reshaped
from tilewright.integrations.arrays.traced import TracedArray, public, untraceable

# --- operators ------------------------------------------------------------------------------------------------------

_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARED = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
_UFUNCS = {
    getattr(np, "power" if name == "pow" else name): name for name in (*_OPERATORS.values(), *_COMPARED.values())
}
_ALONE = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
_NOT_TO_NUMPY = "a function of NumPy asks for the numbers of an array, which only a call brings"


def _by_ufunc(_: TracedArray, ufunc: Any, method: str, *xs: Any, **kwargs: Any) -> TracedArray:
    """What an operator between an array of NumPy and a traced one means; other functions of NumPy are refused."""
    if method == "__call__" and not kwargs and ufunc in _UFUNCS:
        made: TracedArray = FUNCTIONS[_UFUNCS[ufunc]](*xs)
        return made
    raise untraceable(f"numpy.{ufunc.__name__}", _NOT_TO_NUMPY, "use the function of tilewright.numpy")


def _getitem(pool: Pool, x: TracedArray, key: Any) -> TracedArray:
    return indexed(x, key)


# --- methods --------------------------------------------------------------------------------------------------------


class _Method(NamedTuple):
    """A function of the table that a method of NumPy's is: its first arguments by position, the next by these names.

    ``renamed`` has the function's names of arguments by the method's, where they differ.
    """

    function: str
    n_by_position: int = 0
    names: tuple[str, ...] = ("axis",)
    renamed: Mapping[str, str] = {}


_METHODS = {
    **{name: _Method(name) for name in (
        "all", "any", "argmax", "argmin", "argsort", "max", "mean", "min", "squeeze")},
    **{name: _Method(name, renamed={"ddof": "correction"}) for name in ("std", "var")},
    "sum": _Method("sum", names=("axis", "dtype")), "prod": _Method("prod", names=("axis", "dtype")),
    "cumsum": _Method("cumulative_sum", names=("axis", "dtype")),
    "cumprod": _Method("cumulative_prod", names=("axis", "dtype")),
    "repeat": _Method("repeat", 1), "take": _Method("take", 1), "clip": _Method("clip", 2, ()),
    "astype": _Method("astype", 1, ()), "round": _Method("round", names=()), "copy": _Method("positive", names=()),
}  # fmt: skip


def _method(name: str, of: _Method) -> Callable[..., Any]:
    f = FUNCTIONS[of.function]

    def call(x: TracedArray, *args: Any, **kwargs: Any) -> Any:
        by_name = args[of.n_by_position :]
        if len(by_name) > len(of.names):
            rule = f"{len(args)} arguments are given by position"
            raise untraceable(name, rule, f"give at most {of.n_by_position + len(of.names)}, others by name")
        named = {of.renamed.get(k, k): v for k, v in kwargs.items()}
        return f(x, *args[: of.n_by_position], **dict(zip(of.names, by_name, strict=False)), **named)

    return call


def _sizes(given: Sequence[Any]) -> Any:
    """Sizes or axes that are given one by one, or as one sequence."""
    return given[0] if len(given) == 1 else given


def reshape(_: Pool, x: TracedArray, *shape: Any) -> Any:
    """The same elements in another shape, whose sizes may be given one by one."""
    return FUNCTIONS["reshape"](x, _sizes(shape))


def flatten(_: Pool, x: TracedArray) -> TracedArray:
    """All elements in order."""
    return reshaped(x, (x.size,))


def transpose(_: Pool, x: TracedArray, *axes: Any) -> Any:
    """Axes in another order, by themselves from the last to the first."""
    given = _sizes(axes) if axes else None
    return FUNCTIONS["permute_dims"](x, range(x.ndim)[::-1] if given is None else given)


def swapaxes(_: Pool, x: TracedArray, axis1: int, axis2: int) -> Any:
    """Two axes exchanged."""
    order, (a, b) = list(range(x.ndim)), (axis_of(x, k) for k in (axis1, axis2))
    order[a], order[b] = b, a
    return FUNCTIONS["permute_dims"](x, order)


class _NotOffered(CompileError, AttributeError):
    """The refusal of a member, which ``hasattr`` and ``getattr`` with a default take as the answer that it is."""


def _missing(_: TracedArray, name: str) -> NoReturn:
    """Called for what the class does not have: a method of NumPy's that is no part of it, or no name of an array."""
    if name.startswith("_") or not hasattr(np.ndarray, name):
        raise AttributeError(f"a traced array has no attribute {name!r}")
    rule = f"an array of a traced function has no {name}"
    raise untraceable(f".{name}", rule, "use functions of tilewright.numpy", _NotOffered)


_KNOWN = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}


def _by_function(x: TracedArray, function: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """A function of NumPy's that is no ufunc: those of shapes are known, others are refused."""
    if function in _KNOWN and len(args) == 1 and not kwargs:
        return getattr(x, _KNOWN[function])
    raise untraceable(f"numpy.{function.__name__}", _NOT_TO_NUMPY, "use the function of tilewright.numpy")


def _with_members() -> type[TracedArray]:
    """Traced arrays with operators and methods, which are functions of the table."""

    def two(name: str, *, turned: bool = False) -> Callable[[Any, Any], Any]:
        f = FUNCTIONS[name]
        return (lambda x, y: f(y, x)) if turned else f

    # On the class, because Python looks for special methods nowhere else.
    for name, of in (_OPERATORS | _COMPARED).items():
        setattr(TracedArray, f"__{name}__", two(of))
    for name, of in _OPERATORS.items():
        setattr(TracedArray, f"__r{name}__", two(of, turned=True))
    for name, of in _ALONE.items():
        setattr(TracedArray, f"__{name}__", FUNCTIONS[of])
    for name, method in _METHODS.items():
        setattr(TracedArray, name, _method(name, method))
    _getitem.__name__ = "[]"
    index = offered(_getitem)
    members = {
        "__getitem__": index,
        "__iter__": lambda x: (index(x, k) for k in range(len(x))),
        "__divmod__": lambda x, y: (x // y, x % y),
        "__rdivmod__": lambda x, y: (y // x, y % x),
        "T": property(public(transpose)),
        "mT": property(FUNCTIONS["matrix_transpose"]),
        **{f.__name__: public(f) for f in (reshape, flatten, transpose, swapaxes)},
        "ravel": public(flatten),
        "__getattr__": _missing,
        "__array_ufunc__": _by_ufunc,
        "__array_function__": _by_function,
    }
    for name, member in members.items():
        setattr(TracedArray, name, member)
    return TracedArray


Operand = _with_members()
del FUNCTIONS["[]"]
