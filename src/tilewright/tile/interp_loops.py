"""Innermost loops of plain arithmetic, interpreted all iterations at once: the same numbers, by arrays of NumPy.

In: a loop of one store or update, the arrays, and closures for what does not change while it runs. Out: a closure that
runs it, or none where the loop has another form. Not its business: statements one element at a time (``interp``),
which runs whatever is refused here, an access out of bounds among it, and so stays what a kernel means.

Each element gets the operations that it gets one by one, in their order: a sum of many is accumulated from the first
to the last, and rounded every time. So the loop must write elements that differ, or one and the same that its value
does not read, and nothing that is read may lie where it writes. Elements are of types whose arithmetic NumPy has for
arrays and for one element alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Binary, Cast, Const, Fma, IndexLike, Load, Value
from tilewright.core.expr import Dim, Sym, coef_of, symbols
from tilewright.core.indices import is_chosen
from tilewright.core.types import Array, DType
from tilewright.tile.ir import For, Store, Update

Env: TypeAlias = list[Any]
DimFn: TypeAlias = Callable[[Env], int]
Elements: TypeAlias = Callable[[Env, int], Any]
"""The values of so many iterations: an array of them, or one that is the same in all."""
AtOnce: TypeAlias = Callable[[Env, int], bool]
"""Runs so many iterations, and says whether it could; where it could not, nothing was written."""

SHORTEST = 8
"""Fewer iterations take no longer one by one."""
FLOATS = frozenset({types.f32, types.f64})
INTEGERS = frozenset({types.i8, types.i16, types.i32, types.i64, types.u8, types.u16, types.u32, types.u64})
COMPUTED = FLOATS | INTEGERS
CONVERTED = COMPUTED | {types.f16, types.bf16}
"""Conversions are the same for arrays and elements also where arithmetic is not."""
OF_FLOATS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}
OF_INTEGERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
"""Operators of NumPy's scalars and arrays that wrap as ``core.compute`` says, where overflow is no warning."""
_ACCUMULATED: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class _OutsideError(Exception):
    """An access that ends the run: one by one its iteration is found and named."""


@dataclass(frozen=True)
class _LinearPlace:
    """An access whose index is linear in the loop: where it begins, and how far each iteration moves it."""

    array: Array
    starts: tuple[DimFn, ...]
    steps: tuple[int, ...]

    @property
    def moves(self) -> bool:
        return any(self.steps)

    def at(self, env: Env, n: int) -> tuple[Any, ...]:
        """NumPy's index of all ``n`` elements, or of the one."""
        found: list[Any] = []
        is_slice = sum(map(bool, self.steps)) == 1
        for start, step, size in zip(self.starts, self.steps, self.array.shape, strict=True):
            first = start(env)
            last = first + step * (n - 1)
            if not (0 <= first < size and 0 <= last < size):
                raise _OutsideError
            if step == 0:
                found.append(first)
            elif is_slice:
                end = last + (1 if step > 0 else -1)
                found.append(slice(first, None if end < 0 else end, step))
            else:
                found.append(first + step * np.arange(n))
        return tuple(found)


class LoopForms:
    """What a loop's statement is made of; ``dim`` makes closures of indices."""

    def __init__(self, memory: Mapping[Any, Array], dim: Callable[[Dim], DimFn]) -> None:
        self.memory, self.dim = memory, dim

    def at_once(self, s: For, *, backwards: bool) -> AtOnce | None:
        """The whole loop; ``backwards`` where its iterations run from the last to the first."""
        if len(s.body) != 1 or not isinstance(x := s.body[0], Store | Update):
            return None
        dtype, sym = x.buffer.dtype, s.loop.sym
        place = self._place(self.memory[x.buffer], x.index, sym)
        value = self._value(x.value, sym, self.memory[x.buffer])
        if place is None or value is None:
            return None
        run = _stored(place, value) if isinstance(x, Store) and place.moves else None
        if isinstance(x, Update) and place.moves and (combine := _combination(x.op, dtype)):
            run = _updated(place, value, combine)
        ufunc = _ACCUMULATED.get(x.op) if isinstance(x, Update) and dtype in COMPUTED else None
        if ufunc and not place.moves and not backwards:
            run = _accumulated(place, value, ufunc)
        return None if run is None else _unless_outside(run)

    def _place(self, array: Array, index: tuple[IndexLike, ...], sym: Sym) -> _LinearPlace | None:
        starts: list[DimFn] = []
        steps: list[int] = []
        for i in index:
            if is_chosen(i):
                return None
            steps.append(coef_of(i, sym))
            rest = i - steps[-1] * sym
            if sym in symbols(rest):
                return None
            starts.append(self.dim(rest))
        return _LinearPlace(array, tuple(starts), tuple(steps))

    def _value(self, v: Value, sym: Sym, target: Array) -> Elements | None:
        match v:
            case Cast() if {v.dtype, v.a.dtype} <= CONVERTED and not (v.a.dtype.is_float and v.dtype.is_integer):
                result, arg = v.dtype.numpy, v.a
                part = self._load(arg, sym, target) if isinstance(arg, Load) else self._value(arg, sym, target)
                return _applied(lambda a: a.astype(result), [part])
            case _ if v.dtype not in COMPUTED:
                return None
            case Const():
                literal = v.dtype.numpy.type(v.value)
                return lambda env, n: literal
            case Load():
                return self._load(v, sym, target)
            case Binary():
                combine = _combination(v.op, v.a.dtype)
                return combine and _applied(combine, [self._value(x, sym, target) for x in (v.a, v.b)])
            case Fma() if v.dtype in FLOATS:
                return _applied(lambda a, b, c: a * b + c, [self._value(x, sym, target) for x in (v.a, v.b, v.c)])
        return None

    def _load(self, v: Load, sym: Sym, target: Array) -> Elements | None:
        place = self._place(self.memory[v.buffer], v.index, sym)
        if place is None or np.may_share_memory(place.array, target):
            return None
        return lambda env, n: place.array[place.at(env, n)]


def _applied(function: Callable[..., Any], parts: list[Elements | None]) -> Elements | None:
    known = [p for p in parts if p is not None]
    return (lambda env, n: function(*[p(env, n) for p in known])) if len(known) == len(parts) else None


def _combination(op: str, dtype: DType) -> Callable[[Any, Any], Any] | None:
    if dtype in FLOATS:
        return OF_FLOATS.get(op) or _ACCUMULATED.get(op)
    return OF_INTEGERS.get(op) if dtype in INTEGERS else None


def _stored(place: _LinearPlace, value: Elements) -> Callable[[Env, int], None]:
    def run(env: Env, n: int) -> None:
        at = place.at(env, n)
        place.array[at] = value(env, n)

    return run


def _updated(place: _LinearPlace, value: Elements, combine: Callable[[Any, Any], Any]) -> Callable[[Env, int], None]:
    def run(env: Env, n: int) -> None:
        at = place.at(env, n)
        place.array[at] = combine(place.array[at], value(env, n))

    return run


def _accumulated(place: _LinearPlace, value: Elements, ufunc: np.ufunc) -> Callable[[Env, int], None]:
    def run(env: Env, n: int) -> None:
        at = place.at(env, n)
        chain = np.empty(n + 1, place.array.dtype)
        chain[0], chain[1:] = place.array[at], value(env, n)
        place.array[at] = ufunc.accumulate(chain, dtype=chain.dtype)[-1]

    return run


def _unless_outside(run: Callable[[Env, int], None]) -> AtOnce:
    def tried(env: Env, n: int) -> bool:
        try:
            run(env, n)
        except _OutsideError:
            return False
        return True

    return tried
