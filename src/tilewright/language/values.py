"""What a kernel's expressions are made of while it is traced: indices, elements, and conditions on them.

In: Python operators and numbers. Out: ``IndexExpr`` (an expression of loops and sizes) and ``Element`` (a value of the
data); both hold what the compiler works with, ``core.expr`` and ``core.compute``.
Not its business: tensors, loops and stages (``trace``).

Two elements of one operation have one dtype: the language converts no data by itself. A number of Python or NumPy takes
the other operand's dtype where it is a number of it; an index is an ``i64``, and takes the dtype of a float beside it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Const, Inside, Select, Unary, Value, value_text
from tilewright.core.compute import Index as IndexValue
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv, maximum, minimum, mod, to_text
from tilewright.core.types import DType
from tilewright.language.errors import KernelError, refused

Number: TypeAlias = "int | float | bool"
Scalar: TypeAlias = "IndexExpr | Element | int | float | bool"
Whole: TypeAlias = "IndexExpr | int"


P = ParamSpec("P")
R = TypeVar("R")
_OPERATORS = [f"__{x}__" for x in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()]
_OPERATORS += [f"__{x}__" for x in "lt le gt ge eq ne".split()]


def _beside_lanes(operation: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(operation)
    def operate(self: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, PerLane) else operation(self, other)

    return operate


class PerLane:
    """A value for each lane of a block of programs (``lanes.BlockValue``); operations on it are those of every lane."""

    __hash__ = None  # type: ignore[assignment]  # == makes a condition
    __array_ufunc__ = None  # NumPy's numbers leave their operators to it

    def over(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """The function of every lane of blocks among its arguments."""
        raise NotImplementedError


def lane_by_lane(function: Callable[P, R]) -> Callable[P, R]:
    """The function of elements as one of blocks too; of blocks it gives a block, whatever it says."""

    @wraps(function)
    def over_lanes(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [*args, *kwargs.values()]
        lanes = next((a for a in given if isinstance(a, PerLane)), None)
        if lanes is None:
            return function(*args, **kwargs)
        made: R = lanes.over(function, given)
        return made

    return over_lanes


class _Expression:
    """What indices and elements have in common: comparisons are conditions, so neither is a key; bits are elements.

    What asks for a Python number is refused, also where NumPy or ``math`` asks.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == makes a condition

    def __init_subclass__(cls) -> None:
        """Operators leave blocks on their right to the block's own."""
        for name in _OPERATORS:
            setattr(cls, name, _beside_lanes(getattr(cls, name)))

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _undecided(f"{self!r:.80}", "pass the array as an argument of the kernel, and read its elements")

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **kwargs: Any) -> Any:
        """The operator that NumPy's number on its left was asked for first."""
        if ufunc not in _OF_NUMPY or method != "__call__" or any(isinstance(x, np.ndarray) for x in xs):
            raise _undecided(f"{self!r:.80}", f"numpy.{ufunc.__name__} needs numbers: use tl's functions of elements")
        return _OF_NUMPY[ufunc](*(_number(x) if isinstance(x, np.generic) else x for x in xs))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise _undecided(f"{self!r:.80}", f"numpy.{function.__name__} needs numbers: use tl's functions of elements")

    def __getitem__(self, key: object) -> NoReturn:
        raise refused(f"{self!r:.80} has no elements", "give all indices of a tensor at once: x[i, j]")

    def __iter__(self) -> NoReturn:
        raise refused(f"{self!r:.80} has no elements", "go through a tensor with tl.loop")

    def __round__(self, *_: Any) -> NoReturn:
        raise _undecided(f"{self!r:.80}", "use tl.rint of a float")

    def __trunc__(self) -> NoReturn:
        raise _undecided(f"{self!r:.80}", "use tl.trunc of a float, or .cast(tl.i32)")

    def __pos__(self: Any) -> Any:
        return self

    def __divmod__(self: Any, other: Scalar) -> tuple[Scalar, Scalar]:
        return self // other, self % other

    def __rdivmod__(self: Any, other: Scalar) -> tuple[Scalar, Scalar]:
        return other // self, other % self

    def __invert__(self: Any) -> Element:
        return Element(Unary("not", computed_with("not", element(self).value)))

    def __and__(self: Any, other: Scalar) -> Element:
        return arithmetic("and", self, other)

    def __rand__(self: Any, other: Scalar) -> Element:
        return arithmetic("and", other, self)

    def __or__(self: Any, other: Scalar) -> Element:
        return arithmetic("or", self, other)

    def __ror__(self: Any, other: Scalar) -> Element:
        return arithmetic("or", other, self)

    def __xor__(self: Any, other: Scalar) -> Element:
        return arithmetic("xor", self, other)

    def __rxor__(self: Any, other: Scalar) -> Element:
        return arithmetic("xor", other, self)

    def __lshift__(self: Any, other: Scalar) -> Element:
        return arithmetic("shl", self, other)

    def __rlshift__(self: Any, other: Scalar) -> Element:
        return arithmetic("shl", other, self)

    def __rshift__(self: Any, other: Scalar) -> Element:
        return arithmetic("shr", self, other)

    def __rrshift__(self: Any, other: Scalar) -> Element:
        return arithmetic("shr", other, self)

    def __rpow__(self: Any, other: Scalar) -> Element:
        return arithmetic("pow", other, self)

    def __lt__(self: Any, other: Scalar) -> Element:
        return compare("lt", self, other)

    def __le__(self: Any, other: Scalar) -> Element:
        return compare("le", self, other)

    def __gt__(self: Any, other: Scalar) -> Element:
        return compare("gt", self, other)

    def __ge__(self: Any, other: Scalar) -> Element:
        return compare("ge", self, other)

    def __eq__(self: Any, other: Scalar) -> Element:  # type: ignore[override]
        return compare("eq", self, other)

    def __ne__(self: Any, other: Scalar) -> Element:  # type: ignore[override]
        return compare("ne", self, other)


class IndexExpr(_Expression):
    """An integer that loops and sizes decide: ``2*i + 1``. With data it becomes an ``i64`` element."""

    __slots__ = ("dim",)

    def __init__(self, dim: Dim) -> None:
        self.dim = dim

    def __repr__(self) -> str:
        return to_text(self.dim)

    def __index__(self) -> int:
        if is_known(self.dim):
            return self.dim
        raise _undecided(f"the index {self}", "go through it with tl.loop (tl.range in programs), not range")

    def __bool__(self) -> bool:
        raise _undecided(f"the index {self}")

    def __add__(self, other: Scalar) -> Scalar:
        return _of_indices(self, other, lambda a, b: a + b, "add")

    def __radd__(self, other: Scalar) -> Scalar:
        return _of_indices(other, self, lambda a, b: a + b, "add")

    def __sub__(self, other: Scalar) -> Scalar:
        return _of_indices(self, other, lambda a, b: a - b, "sub")

    def __rsub__(self, other: Scalar) -> Scalar:
        return _of_indices(other, self, lambda a, b: a - b, "sub")

    def __mul__(self, other: Scalar) -> Scalar:
        return _of_indices(self, other, lambda a, b: a * b, "mul")

    def __rmul__(self, other: Scalar) -> Scalar:
        return _of_indices(other, self, lambda a, b: a * b, "mul")

    def __floordiv__(self, other: Scalar) -> Scalar:
        return _divided(self, other, floordiv, "//")

    def __rfloordiv__(self, other: Scalar) -> Scalar:
        return _divided(other, self, floordiv, "//")

    def __mod__(self, other: Scalar) -> Scalar:
        return _divided(self, other, mod, "%")

    def __rmod__(self, other: Scalar) -> Scalar:
        return _divided(other, self, mod, "%")

    def __truediv__(self, other: Scalar) -> Element:
        return element(self) / other

    def __rtruediv__(self, other: Scalar) -> Element:
        return other / element(self)

    def __pow__(self, other: Scalar) -> Scalar:
        return self * self if isinstance(other, int) and other == 2 else element(self) ** other

    def __neg__(self) -> IndexExpr:
        return IndexExpr(0 - self.dim)

    def __abs__(self) -> Scalar:
        return maximum_of(self, -self)

    def cast(self, dtype: DType) -> Element:
        """The index as an element of ``dtype``."""
        return element(self).cast(dtype)


class Element(_Expression):
    """A value that data decide, of one dtype."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __repr__(self) -> str:
        return value_text(self.value)

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    def __bool__(self) -> bool:
        raise _undecided("an element")

    def __index__(self) -> int:
        raise _undecided(f"the element {self!r:.80}", "use tl's functions in place of Python's")

    def cast(self, dtype: DType) -> Element:
        """Convert: float to integer truncates and saturates, integers wrap, to bool is ``!= 0``."""
        return self if checked_dtype(dtype) is self.dtype else Element(Cast(self.value, dtype))

    def __add__(self, other: Scalar) -> Element:
        return arithmetic("add", self, other)

    def __radd__(self, other: Scalar) -> Element:
        return arithmetic("add", other, self)

    def __sub__(self, other: Scalar) -> Element:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Scalar) -> Element:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Scalar) -> Element:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Scalar) -> Element:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Scalar) -> Element:
        return _quotient(self, other)

    def __rtruediv__(self, other: Scalar) -> Element:
        return _quotient(other, self)

    def __floordiv__(self, other: Scalar) -> Element:
        return _floored(self, other)[0]

    def __rfloordiv__(self, other: Scalar) -> Element:
        return _floored(other, self)[0]

    def __mod__(self, other: Scalar) -> Element:
        return _floored(self, other)[1]

    def __rmod__(self, other: Scalar) -> Element:
        return _floored(other, self)[1]

    def __pow__(self, other: Scalar) -> Element:
        return self * self if isinstance(other, int) and other == 2 else arithmetic("pow", self, other)

    def __neg__(self) -> Element:
        return Element(Unary("neg", computed_with("neg", self.value)))

    def __abs__(self) -> Element:
        return Element(Unary("abs", computed_with("abs", self.value)))


_OF_NUMPY: dict[Any, Callable[..., Any]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv, np.remainder: operator.mod, np.power: operator.pow, np.divmod: divmod,
    np.bitwise_and: operator.and_, np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor,
    np.left_shift: operator.lshift, np.right_shift: operator.rshift, np.less: operator.lt,
    np.less_equal: operator.le, np.greater: operator.gt, np.greater_equal: operator.ge, np.equal: operator.eq,
    np.not_equal: operator.ne,
}  # fmt: skip
_OF_TIME = np.datetime64 | np.timedelta64
"""NumPy's times: some turn into integers by themselves, a ``timedelta64`` even is one of NumPy's integers."""
_CHOOSE = "choose with where(condition, a, b); join conditions with & and |"


def _undecided(what: str, remedy: str = _CHOOSE) -> KernelError:
    return refused(f"{what} has no value while the kernel is traced", remedy)


# --- conversions ----------------------------------------------------------------------------------------------------


def dim_of(x: object) -> Dim:
    """The index expression of an index or a Python integer."""
    if isinstance(x, IndexExpr):
        return x.dim
    if isinstance(x, int | np.integer) and not isinstance(x, bool | _OF_TIME):
        return int(x)
    raise refused(f"{x!r} is no index expression", "use loops, sizes and integers")


def checked_dtype(dtype: object) -> DType:
    """The same, which has to be a dtype of the language."""
    if not isinstance(dtype, DType):
        raise refused(f"{dtype!r:.80} is no dtype", "use one of the language's: tl.f32")
    return dtype


def _number(x: object) -> Number:
    """Python's number of NumPy's; some, such as ``longdouble``, have none, and their ``item`` is of NumPy again.

    A time has a unit, which ``item`` would leave out.
    """
    x = x.item() if isinstance(x, np.generic) and not isinstance(x, _OF_TIME) else x
    if not isinstance(x, int | float):
        raise refused(f"{x!r:.80} is no number", "use elements, indices and Python's numbers")
    return x


def element(x: Scalar, dtype: DType | None = None) -> Element:
    """``x`` as an element; a number becomes one of ``dtype``, by itself ``f32``, ``i64`` or ``bool``."""
    if isinstance(x, Element):
        return x
    if isinstance(x, IndexExpr):
        x = x.dim if is_known(x.dim) else Element(IndexValue(x.dim))
    if isinstance(x, Element):
        return x.cast(dtype) if dtype is not None and dtype.is_float else x
    x = _number(x)
    own = types.bool_ if isinstance(x, bool) else types.i64 if isinstance(x, int) else types.f32
    dtype = dtype or own
    if not dtype.is_float and (isinstance(x, float) or not dtype.min <= x <= dtype.max):
        raise refused(f"{x!r} is no number of {dtype}", "convert the other operand: .cast(f32)")
    return Element(Const(x, dtype))


def both(a: Scalar, b: Scalar, what: str) -> tuple[Value, Value]:
    """Two operands as values of one dtype."""
    if isinstance(a, Element) or not isinstance(b, Element):
        first = element(a)
        x, y = first, _beside(b, first)
    else:
        second = element(b)
        x, y = _beside(a, second), second
    if x.dtype is not y.dtype and types.i64 in (x.dtype, y.dtype) and _has_index(a, b):
        x, y = x.cast(types.i64), y.cast(types.i64)
    if x.dtype is not y.dtype:
        wider = max(x.dtype, y.dtype, key=lambda d: (d.is_float, d.bits))
        raise refused(f"{what} of {x.dtype} and {y.dtype}", f"convert one of them: .cast({wider})")
    return x.value, y.value


def _has_index(a: Scalar, b: Scalar) -> bool:
    """Is one of them an index and the other an integer that ``i64`` holds, which is widened to meet it?"""
    other = element(b if isinstance(a, IndexExpr) else a).dtype
    return (isinstance(a, IndexExpr) or isinstance(b, IndexExpr)) and other.is_integer and other is not types.u64


def _beside(x: Scalar, other: Element) -> Element:
    return x if isinstance(x, Element) else element(x, other.dtype)


# --- operations -----------------------------------------------------------------------------------------------------


def _of_indices(a: Scalar, b: Scalar, how: Callable[[Dim, Dim], Dim], op: str) -> Scalar:
    if _are_whole(a, b):
        return IndexExpr(how(dim_of(a), dim_of(b)))
    return arithmetic(op, a, b)


def _divided(a: Scalar, b: Scalar, how: Callable[[Dim, Dim], Dim], op: str) -> Scalar:
    if not _are_whole(a, b):
        return element(a) // b if op == "//" else element(a) % b
    divisor = dim_of(b)
    if not isinstance(divisor, int) or divisor <= 0:
        raise refused(f"an index {op} {b!r}", "divide indices by positive integers")
    return IndexExpr(how(dim_of(a), divisor))


def _are_whole(*xs: Scalar) -> bool:
    return all(isinstance(x, IndexExpr | int | np.integer) and not isinstance(x, bool) for x in xs)


def arithmetic(op: str, a: Scalar, b: Scalar) -> Element:
    """``op(a, b)`` of ``core.compute``; guards that ``and`` joins stay a guard, under which loads may go further."""
    x, y = both(a, b, op)
    if op == "and" and isinstance(x, Inside) and isinstance(y, Inside):
        return Element(Inside((*x.exprs, *y.exprs)))
    return Element(Binary(op, computed_with(op, x), y))


_OF_BITS = ("and", "or", "xor", "shl", "shr", "not")
_OF_BOOLS = ("and", "or", "xor", "not", "min", "max")


def computed_with(op: str, v: Value) -> Value:
    """The same value, which has to be of a dtype that ``op`` is one of."""
    if op in _OF_BITS and v.dtype.is_float:
        raise refused(f"{op} of {v.dtype}", "bits are those of integers and bools")
    if op not in _OF_BOOLS and v.dtype is types.bool_:
        raise refused(f"{op} of bool", "convert it: .cast(i32)")
    return v


_STRICTLY: dict[str, tuple[int, int]] = {"ge": (1, 0), "gt": (1, 1), "le": (-1, 0), "lt": (-1, 1)}


def compare(op: str, a: Scalar, b: Scalar) -> Element:
    """A bool. Of indices it is a guard: under ``where(i > 0, ...)`` loads at ``i - 1`` are inside."""
    if _are_whole(a, b):
        difference = dim_of(a) - dim_of(b)
        if op in _STRICTLY:
            sign, more = _STRICTLY[op]
            return Element(Inside((difference * sign - more,)))
        equal = Element(Inside((difference, 0 - difference)))
        return equal if op == "eq" else ~equal
    return Element(Binary(op, *both(a, b, op)))


def _quotient(a: Scalar, b: Scalar) -> Element:
    x, y = both(a, b, "/")
    if not x.dtype.is_float:
        raise refused(f"/ of {x.dtype}", "use // for integers, or .cast(f32)")
    return Element(Binary("div", x, y))


def _floored(a: Scalar, b: Scalar) -> tuple[Element, Element]:
    """Quotient and remainder. Of integers they are Python's: the remainder has the divisor's sign.

    By 0 the quotient is 0, or -1 of a negative ``a``, and the remainder is ``a``. Of floats they are ``floor(a / b)``
    and ``a - b * floor(a / b)``, each operation rounded: not Python's where the quotient is great or infinite.
    """
    x, y = both(a, b, "//")
    computed_with("//", x)
    if x.dtype.is_float:
        whole = Unary("floor", Binary("div", x, y))
        return Element(whole), Element(Binary("sub", x, Binary("mul", whole, y)))
    quotient, rest = Binary("div", x, y), Binary("rem", x, y)
    if not x.dtype.is_signed:
        return Element(quotient), Element(rest)
    zero, one = Const(0, x.dtype), Const(1, x.dtype)
    signs_differ = Binary("lt", Binary("xor", rest, y), zero)
    is_short = Binary("and", Binary("ne", rest, zero), signs_differ)
    return (
        Element(Select(is_short, Binary("sub", quotient, one), quotient)),
        Element(Select(is_short, Binary("add", rest, y), rest)),
    )


@lane_by_lane
def where(condition: Scalar, a: Scalar, b: Scalar) -> Element:
    """``a`` where the condition holds, else ``b``. Under a condition on indices alone, ``a`` loads only where it holds.

    >>> where(i > 0, x[i - 1], 0.0)
    """
    return Element(Select(checked_condition(condition), *both(a, b, "where")))


def checked_condition(condition: object) -> Value:
    """The value of a condition, which has to be a bool that indices or data decide."""
    if not isinstance(condition, Element) or condition.dtype is not types.bool_:
        raise refused(f"the condition {condition!r} is no bool", "compare indices or elements")
    return condition.value


@lane_by_lane
def minimum_of(a: Scalar, b: Scalar) -> Scalar:
    """The smaller one; NaN where one is NaN. Of indices it is an index."""
    return _of_indices(a, b, minimum, "min")


@lane_by_lane
def maximum_of(a: Scalar, b: Scalar) -> Scalar:
    """The larger one; NaN where one is NaN. Of indices it is an index."""
    return _of_indices(a, b, maximum, "max")


@lane_by_lane
def clamp(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """``x`` kept inside ``low .. high``; with it an index is inside of a tensor whatever the data hold."""
    return maximum_of(minimum_of(x, high), low)


@lane_by_lane
def unary(op: str, x: Scalar) -> Element:
    """An elementary function of a float."""
    v = element(x).value
    if not v.dtype.is_float:
        raise refused(f"{op} of {v.dtype}", "convert it: .cast(f32)")
    return Element(Unary(op, v))
