"""The executable meaning of the tile IR: runs a kernel on NumPy arrays, element by element.

In: a ``Kernel``, arrays for its parameters and values for its sizes. Out: the output arrays are written in place.
Not its business: speed; use small sizes. Every access is checked against its buffer's bounds.

Statements become closures once. What changes while they run, loop variables and a combiner's operands, lies in a list
at places that are known then, because looking a symbol up by its hash would take longer than the arithmetic. Long
innermost loops of plain arithmetic run all iterations at once where that gives the same numbers (``interp_loops``).

Values follow ``core.compute``: integers wrap, ``div``/``rem`` truncate, ``min``/``max`` carry NaN, float-to-integer
casts truncate and saturate, a load under a false ``Inside`` guard does not happen.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Fma,
    Index,
    IndexLike,
    Inside,
    Load,
    Lookup,
    Param,
    Select,
    Unary,
    Value,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Mul, Sym, evaluate
from tilewright.core.indices import is_chosen
from tilewright.core.types import Array, DType
from tilewright.tile.errors import TileRunError
from tilewright.tile.interp_loops import FLOATS, OF_FLOATS, OF_INTEGERS, SHORTEST, LoopForms
from tilewright.tile.ir import Barrier, Commit, Fold, For, If, Kernel, Kind, Prefetch, Space, Stmt, Store, Update

Env = list[Any]
ValueFn = Callable[[Env], Any]
DimFn = Callable[[Env], int]
StmtFn = Callable[[Env], None]


def run(
    kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None, *, reverse: bool = False
) -> dict[str, Array]:
    """Run ``kernel``; ``arrays`` hold its parameters by name (missing temporaries are allocated).

    ``reverse`` runs parallel, block and thread loops backwards: a kernel whose iterations are independent gives the
    same result. Grids in their scheduled form mean what loops mean; a flat one with barriers is refused.
    Raises ``TileRunError`` for a missing or wrongly shaped array and for an access out of bounds.
    """
    given = {s: dict(sizes or {})[s.name] for s in kernel.sizes}
    memory: dict[Buffer, Array] = {}
    for place in kernel.places:
        buffer = place.buffer
        shape = tuple(evaluate(d, given) for d in buffer.shape)
        if place.table is not None:
            memory[buffer] = np.asarray(place.table).reshape(shape)
        elif place.space is Space.GLOBAL and buffer.name in arrays:
            memory[buffer] = _bound(buffer, arrays[buffer.name], shape)
        else:
            memory[buffer] = _garbage(shape, buffer.dtype)
    compiler = Compiler(memory, reverse)
    compiler.forms = LoopForms(memory, compiler.dim)
    for size in given:
        compiler.slot(size)
    program = [compiler.stmt(s) for s in kernel.body]
    env: Env = [*given.values(), *[None] * (len(compiler.slots) - len(given))]
    with np.errstate(all="ignore"):
        for step in program:
            step(env)
    return {b.name: a for b, a in memory.items()}


def _bound(buffer: Buffer, array: Array, shape: tuple[int, ...]) -> Array:
    if array.dtype != buffer.dtype.numpy or array.size != math.prod(shape):
        raise TileRunError(f"{buffer} (here {shape}) can't be the array of {array.dtype}{array.shape}")
    view = array.view()
    view.shape = shape
    return view


def _garbage(shape: tuple[int, ...], dtype: DType) -> Array:
    return np.full(shape, np.nan if dtype.is_float else dtype.max, dtype.numpy)


class Compiler:
    """Turns statements into closures over the memory; sizes, loop variables and operands have slots of a list.

    Only with ``forms`` are iterations run at once: others, as those of threads, must see each access.
    """

    def __init__(self, memory: dict[Buffer, Array], reverse: bool) -> None:
        self.memory, self.reverse = memory, reverse
        self.slots: dict[Sym | str, int] = {}
        self.forms: LoopForms | None = None

    def slot(self, name: Sym | str) -> int:
        """Where a symbol's value lies, or that of a combiner's operand."""
        return self.slots.setdefault(name, len(self.slots))

    def stmt(self, s: Stmt) -> StmtFn:
        match s:
            case For():
                return self._for(s)
            case If():
                return self._if(s)
            case Store():
                return self.store(s)
            case Update():
                return self.update(s)
            case Fold():
                return self.fold(s)
            case Prefetch():
                return lambda env: None
            case Barrier() | Commit():
                raise TileRunError(
                    "threads that meet run beside each other, and loops run one after the other",
                    remedy="interpret its scheduled form",
                )

    def _for(self, s: For) -> StmtFn:
        slot, extent = self.slot(s.loop.sym), self.dim(s.loop.extent)
        body = [self.stmt(x) for x in s.body]
        backwards = self.reverse and s.loop.kind in (Kind.PARALLEL, Kind.BLOCK, Kind.THREAD, Kind.WARP)
        at_once = self.forms.at_once(s, backwards=backwards) if self.forms else None

        def go(env: Env) -> None:
            n = extent(env)
            if at_once and n >= SHORTEST and at_once(env, n):
                return
            for i in range(n - 1, -1, -1) if backwards else range(n):
                env[slot] = i
                for step in body:
                    step(env)

        return go

    def _if(self, s: If) -> StmtFn:
        cond, body = self.value(s.cond), [self.stmt(x) for x in s.body]

        def go(env: Env) -> None:
            if cond(env):
                for step in body:
                    step(env)

        return go

    def store(self, s: Store) -> StmtFn:
        """A closure that assigns an element."""
        array, at, value = self.memory[s.buffer], self.index(s.buffer, s.index), self.value(s.value)

        def go(env: Env) -> None:
            array[at(env)] = value(env)

        return go

    def update(self, s: Update) -> StmtFn:
        """A closure that combines an element with a value."""
        array, at, value = self.memory[s.buffer], self.index(s.buffer, s.index), self.value(s.value)
        combine = binary_fn(s.op, s.buffer.dtype)

        def go(env: Env) -> None:
            i = at(env)
            array[i] = combine(array[i], value(env))

        return go

    def fold(self, s: Fold) -> StmtFn:
        """A closure that makes one step of a reduction with a state."""
        arrays, at = [self.memory[b] for b in s.buffers], self.index(s.buffers[0], s.index)
        values = [self.value(v) for v in s.values]
        c = s.combiner
        results = [self.value(v) for v in c.result]
        operands = [self.slot(p.name) for p in (*c.state, *c.value)]

        def go(env: Env) -> None:
            i = at(env)
            for slot, x in zip(operands, [*(a[i] for a in arrays), *(v(env) for v in values)], strict=True):
                env[slot] = x
            new = [r(env) for r in results]
            for a, x in zip(arrays, new, strict=True):
                a[i] = x

        return go

    def index(self, buffer: Buffer, index: tuple[IndexLike, ...]) -> Callable[[Env], tuple[int, ...]]:
        """A closure that finds an access's place, and raises where that is outside."""
        parts = [self.position(i) for i in index]
        shape = self.memory[buffer].shape
        assert len(parts) == len(shape), buffer

        def outside(env: Env) -> TileRunError:
            return TileRunError(f"{buffer} accessed at {tuple(p(env) for p in parts)}, outside of {shape}")

        return _checked(parts, shape, outside)

    def position(self, i: IndexLike) -> DimFn:
        """A closure that evaluates one dimension of a place."""
        if not is_chosen(i):
            return self.dim(i)
        value = self.value(i)
        return lambda env: int(value(env))

    def dim(self, e: Dim) -> DimFn:
        """A closure that evaluates an index expression."""
        if is_known(e):
            return lambda env: e
        if isinstance(e, Sym):
            return operator.itemgetter(self.slot(e))
        if isinstance(e, Mul):
            return reduce(_product, [self.dim(f) for f in e.factors])
        if isinstance(e, BinaryExpr):
            a, b = self.dim(e.a), self.dim(e.b)
            return _DIM_OPS[e.op](a, b)
        # Symbols by their slots, two at a time, then all else: no loop and few calls for any sum.
        slots = [(self.slot(atom), c) for atom, c in e.terms if isinstance(atom, Sym)]
        total = _few_terms(e.const, slots[:2])
        for k in range(2, len(slots), 2):
            total = _more_terms(total, slots[k : k + 2])
        for atom, c in e.terms:
            if not isinstance(atom, Sym):
                total = _another(total, self.dim(atom), c)
        return total

    def value(self, v: Value) -> ValueFn:
        match v:
            case Const():
                literal = v.dtype.numpy.type(v.value)
                return lambda env: literal
            case Param():
                return operator.itemgetter(self.slot(v.name))
            case Index():
                number = self.dim(v.expr)
                return lambda env: np.int64(number(env))
            case Inside():
                tests = [self.dim(e) for e in v.exprs]
                return lambda env: np.bool_(all(t(env) >= 0 for t in tests))
            case Load():
                array, at = self.memory[v.buffer], self.index(v.buffer, v.index)
                return lambda env: array[at(env)]
            case Select():
                cond, a, b = self.value(v.cond), self.value(v.a), self.value(v.b)
                return lambda env: a(env) if cond(env) else b(env)
        return self._arithmetic(v)

    def _arithmetic(self, v: Value) -> ValueFn:
        match v:
            case Unary():
                one, arg = _unary_fn(v.op, v.a.dtype), self.value(v.a)
                return lambda env: one(arg(env))
            case Binary():
                two, left, right = binary_fn(v.op, v.a.dtype), self.value(v.a), self.value(v.b)
                return lambda env: two(left(env), right(env))
            case Fma():
                a, b, c, result = self.value(v.a), self.value(v.b), self.value(v.c), v.dtype.numpy.type
                if v.dtype in FLOATS:
                    return lambda env: a(env) * b(env) + c(env)
                return lambda env: result(a(env) * b(env) + c(env))
            case Cast():
                arg, convert = self.value(v.a), cast_fn(v.a.dtype, v.dtype)
                return lambda env: convert(arg(env))
            case Bitcast():
                arg, target = self.value(v.a), v.dtype
                return lambda env: np.asarray(arg(env)).view(target.numpy)[()]
            case Lookup():
                arg, levels = self.value(v.a), [v.dtype.numpy.type(n) for n in v.levels]
                return lambda env: levels[arg(env)]
        raise TypeError(f"not a value: {v!r}")


# --- index expressions ----------------------------------------------------------------------------------------------


def _checked(
    parts: list[DimFn], shape: tuple[int, ...], outside: Callable[[Env], TileRunError]
) -> Callable[[Env], tuple[int, ...]]:
    """An index of all parts."""
    # Up to three parts are written out: a loop over them would take as long as all else that an access does.
    match parts, shape:
        case [], _:
            return lambda env: ()
        case [first], (n0,):

            def one(env: Env) -> tuple[int, ...]:
                x = first(env)
                if not 0 <= x < n0:
                    raise outside(env)
                return (x,)

            return one
        case [first, second], (n0, n1):

            def two(env: Env) -> tuple[int, ...]:
                x, y = first(env), second(env)
                if not (0 <= x < n0 and 0 <= y < n1):
                    raise outside(env)
                return x, y

            return two
        case [first, second, third], (n0, n1, n2):

            def three(env: Env) -> tuple[int, ...]:
                x, y, z = first(env), second(env), third(env)
                if not (0 <= x < n0 and 0 <= y < n1 and 0 <= z < n2):
                    raise outside(env)
                return x, y, z

            return three
    head, tail = _checked(parts[:2], shape[:2], outside), _checked(parts[2:], shape[2:], outside)
    return lambda env: head(env) + tail(env)


def _few_terms(const: int, terms: list[tuple[int, int]]) -> DimFn:
    """A number and up to two symbols by their slots, which most indices are."""
    if not terms:
        return lambda env: const
    if len(terms) == 1:
        ((slot, c),) = terms
        return lambda env: const + c * env[slot]
    (slot, c), (slot2, c2) = terms
    return lambda env: const + c * env[slot] + c2 * env[slot2]


def _more_terms(total: DimFn, terms: list[tuple[int, int]]) -> DimFn:
    """A sum and one or two symbols more."""
    if len(terms) == 1:
        ((slot, c),) = terms
        return lambda env: total(env) + c * env[slot]
    (slot, c), (slot2, c2) = terms
    return lambda env: total(env) + c * env[slot] + c2 * env[slot2]


def _another(total: DimFn, term: DimFn, c: int) -> DimFn:
    return lambda env: total(env) + c * term(env)


def _product(a: DimFn, b: DimFn) -> DimFn:
    return lambda env: a(env) * b(env)


_DIM_OPS: Mapping[str, Callable[[DimFn, DimFn], DimFn]] = {
    "floordiv": lambda a, b: lambda env: a(env) // b(env),
    "mod": lambda a, b: lambda env: a(env) % b(env),
    "min": lambda a, b: lambda env: min(a(env), b(env)),
    "max": lambda a, b: lambda env: max(a(env), b(env)),
}

# --- element operations ---------------------------------------------------------------------------------------------


def cast_fn(source: DType, target: DType) -> Callable[[Any], Any]:
    """A function that converts one element as ``core.compute.Cast`` says."""
    if target is types.bool_:
        return lambda x: np.bool_(x != 0)
    result = target.numpy
    if not (source.is_float and target.is_integer):
        # A type of NumPy's own makes the same element, without the array that ``astype`` makes for it.
        return result.type if result.isbuiltin == 1 else lambda x: x.astype(result)
    low, high, integer = target.min, target.max, result.type

    def saturated(x: Any) -> Any:
        f = float(x)
        return integer(0 if math.isnan(f) else high if f >= high else low if f <= low else int(f))

    return saturated


def _unary_fn(op: str, dtype: DType) -> Callable[[Any], Any]:
    result = dtype.numpy.type
    if op == "isnan":
        return lambda x: np.bool_(x != x)
    if op == "not":
        return np.logical_not if dtype is types.bool_ else np.invert
    if op in ("neg", "abs") or (op == "sqrt" and dtype in (types.f32, types.f64)):
        ufunc = {"neg": np.negative, "abs": np.abs, "sqrt": np.sqrt}[op]
        return lambda x: result(ufunc(x))
    function = _FLOAT_UNARY[op]
    return lambda x: result(function(np.float64(x)))


def _exponent(x: np.float64) -> np.float64:
    with np.errstate(divide="ignore"):
        return np.float64(np.frexp(x)[1] - 1) if np.isfinite(x) and x else np.log2(abs(x))


def _significand(x: np.float64) -> np.float64:
    if x < 0:
        return np.float64(math.nan)
    return np.float64(2 * np.frexp(x)[0] if np.isfinite(x) and x else x if np.isnan(x) else 1.0)


_FLOAT_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": math.erf,
    "pow2i": np.exp2,
    "exponent": _exponent,
    "significand": _significand,
    "exp2_flushed": np.exp2,
    "reciprocal_flushed": lambda x: 1 / x,
    "rint_rest": lambda x: np.float64(0) if np.isinf(x) else x - np.rint(x),
}


def binary_fn(op: str, dtype: DType) -> Callable[[Any, Any], Any]:
    if op in _COMPARE:
        return _COMPARE[op]
    result = dtype.numpy.type
    if dtype is types.bool_ and op in _BOOL:
        return _BOOL[op]
    if dtype.is_integer and op in OF_INTEGERS:
        return OF_INTEGERS[op]
    if dtype.is_integer and op in _INTEGER:
        integer = _INTEGER[op]
        return lambda a, b: _wrap(integer(int(a), int(b)), dtype)
    if op in OF_FLOATS and dtype in FLOATS:
        return OF_FLOATS[op]  # elements are NumPy's scalars, whose own operators keep the type
    function = _BINARY[op]
    return lambda a, b: result(function(a, b))


def _wrap(x: int, dtype: DType) -> Any:
    x &= (1 << dtype.bits) - 1
    if dtype.is_signed and x >> (dtype.bits - 1):
        x -= 1 << dtype.bits
    return dtype.numpy.type(x)


def _truncated(a: int, b: int) -> int:
    """C's division; by zero gives 0 here, anything at all on a machine."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_INTEGER: Mapping[str, Callable[[int, int], int]] = {
    "div": _truncated,
    "rem": lambda a, b: a - b * _truncated(a, b),
    "min": min,
    "max": max,
    "shl": lambda a, b: a << b if 0 <= b < types.i64.bits else 0,
    "shr": lambda a, b: a >> b if b >= 0 else 0,
    "pow": lambda a, b: pow(a, b, 1 << 64) if b >= 0 else 0 if a not in (1, -1) else a ** (b & 1),
}
_BOOL: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.logical_or,
    "mul": np.logical_and,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "min": np.logical_and,
    "max": np.logical_or,
}
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rem": np.fmod,
    "min": np.minimum,
    "max": np.maximum,
    "larger": lambda a, b: a if a > b else b,
    "pow": np.power,
    "atan2": np.arctan2,
}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""Elements are NumPy's scalars, whose comparisons give NumPy's bool."""
