"""What a kernel computes, apart from how: element values, buffers and stages.

In: index expressions (``core.expr``) and dtypes. Out: ``Value`` trees and ``Stage`` records; an op's ``compute`` gives
stages, fusion concatenates and inlines them, ``tile.lower`` turns them into loops.
Not its business: loop order, vectors, threads (``tile.schedule``), or instructions (``codegen``).

Grammar (``dim`` is an index expression)::

    value  := Const | Load(buffer, (dim | value)*) | Index(dim) | Unary(op, value) | Binary(op, value, value)
            | Fma(value, value, value) | Select(value, value, value) | Inside(dim*) | Cast(value) | Bitcast(value)
            | Lookup(level*, value) | Param
    stage  := outs[index] = exprs over axes            or, with a reduction,
              outs[index] = fold(combine, init, exprs over reduction axes)
    serial := for axis, in increasing order: (stage | serial)*        stages may read what earlier steps wrote
    computation := (stage | serial)*  over input, output and temporary buffers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import ClassVar, TypeAlias

from tilewright.core import types
from tilewright.core.expr import Dim, Sym, substitute, symbols, to_text
from tilewright.core.shapes import strides_of
from tilewright.core.types import DType
from tilewright.runtime.once import computed

UNARY_OPS = frozenset(
    "neg abs sqrt rsqrt floor ceil trunc rint exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf pow2i exponent significand exp2_flushed reciprocal_flushed rint_rest not isnan".split()
)
ARITHMETIC_OPS = frozenset("add sub mul div rem min max larger pow atan2 and or xor shl shr".split())
COMPARE_OPS = frozenset("eq ne lt le gt ge".split())
REDUCE_OPS = frozenset("add mul min max larger and or".split())
MOST_LEVELS, MOST_LEVEL = 16, 255
"""Of a :class:`Lookup`: what a vector of 16 bytes holds, the least that machines with vectors have."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """A dense row-major array that stages read and write. Compared by identity; names are unique in a computation."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]

    @computed
    def strides(self) -> tuple[Dim, ...]:
        """Of row-major elements."""
        return strides_of(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(to_text(d) for d in self.shape)}]"

    def __getitem__(self, index: IndexLike | tuple[IndexLike, ...]) -> Load:
        return Load(self, index if isinstance(index, tuple) else (index,))


class Value:
    """A scalar computed for one point of a stage's domain. Immutable; equal when structurally equal."""

    __slots__ = ("_buffers", "_hash", "_loads", "_symbols", "dtype", "key")
    fields: ClassVar[tuple[str, ...]] = ()
    _symbols: frozenset[Sym] | None
    _buffers: frozenset[Buffer] | None
    _loads: tuple[Load, ...] | None
    dtype: DType
    key: tuple[object, ...]

    def _seal(self, dtype: DType, *key: object) -> None:
        self.dtype = dtype
        self.key = (type(self), dtype, *key)
        self._hash = hash(self.key)
        self._symbols = self._buffers = self._loads = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Value) or self._hash != other._hash or self.key != other.key:
            return False
        self.key = other.key  # parts that values share are compared once, not once for each path to them
        return True

    def __repr__(self) -> str:
        return value_text(self)

    def operands(self) -> tuple[Value, ...]:
        """The direct sub-values, run-time indices of loads included."""
        return ()

    def dims(self) -> Sequence[Dim]:
        """The index expressions that stand in it, those of its operands apart."""
        return ()

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        """It over what ``go`` makes of its operands, symbols of its own indices replaced; itself if nothing changes."""
        return self

    def __add__(self, other: Value) -> Value:
        return Binary("add", self, other)

    def __sub__(self, other: Value) -> Value:
        return Binary("sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return Binary("mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return Binary("div", self, other)

    def __neg__(self) -> Value:
        return Unary("neg", self)


IndexLike: TypeAlias = Dim | Value


class Const(Value):
    """A literal of the given dtype; floats keep their sign of zero and NaN."""

    __slots__ = ("value",)
    value: int | float | bool

    def __init__(self, value: int | float | bool, dtype: DType) -> None:
        self.value = float(value) if dtype.is_float else bool(value) if dtype is types.bool_ else int(value)
        self._seal(dtype, repr(self.value))


class Load(Value):
    """``buffer[index]``; an index is an affine-like ``Dim`` or, for gathers, an integer ``Value`` (within bounds)."""

    __slots__ = ("buffer", "index")

    def __init__(self, buffer: Buffer, index: tuple[IndexLike, ...]) -> None:
        if len(index) != len(buffer.shape):
            raise ValueError(f"{buffer} takes {len(buffer.shape)} indices, not {len(index)}")
        self.buffer, self.index = buffer, index
        self._seal(buffer.dtype, id(buffer), index)

    def operands(self) -> tuple[Value, ...]:
        return tuple([i for i in self.index if isinstance(i, Value)])

    def dims(self) -> Sequence[Dim]:
        return [i for i in self.index if not isinstance(i, Value)]

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        index = tuple([go(i) if isinstance(i, Value) else substitute(i, env) for i in self.index])
        return self if all(map(is_, index, self.index)) else Load(self.buffer, index)


class Index(Value):
    """An index expression used as an ``i64`` element value."""

    __slots__ = ("expr",)

    def __init__(self, expr: Dim) -> None:
        self.expr = expr
        self._seal(types.i64, expr)

    def dims(self) -> Sequence[Dim]:
        return (self.expr,)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        expr = substitute(self.expr, env)
        return self if expr is self.expr else Index(expr)


class Unary(Value):
    """``op(a)``; ``not`` is logical on bool, bitwise on integers; ``rint`` rounds half to even; ``pow2i`` is 2**a.

    ``exp2_flushed`` is ``exp2`` of what is at most 127, but results below the least normal number may be 0; so they may
    of ``reciprocal_flushed``, which is ``1 / a`` within 1 ULP. ``a = significand * 2**exponent``, the first from 1 to
    below 2, for what is above 0; infinity and zeros are 1 times such a power, and that of what is below 0 is NaN.
    """

    __slots__ = ("a", "op")

    def __init__(self, op: str, a: Value) -> None:
        if op not in UNARY_OPS:
            raise ValueError(f"unknown unary operation {op!r}")
        self.op, self.a = op, a
        self._seal(types.bool_ if op == "isnan" else a.dtype, op, a)

    def operands(self) -> tuple[Value, ...]:
        return (self.a,)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        a = go(self.a)
        return self if a is self.a else Unary(self.op, a)


class Binary(Value):
    """``op(a, b)`` on equal dtypes.

    Integer ``add sub mul`` wrap; ``div`` and ``rem`` truncate as in C; float ``rem`` is fmod. ``min`` and ``max``
    propagate NaN; ``larger``, of floats, is ``a if a > b else b``, so ``b`` where either is NaN. ``shr`` is arithmetic
    on signed types. Comparisons give bool.
    """

    __slots__ = ("a", "b", "op")

    def __init__(self, op: str, a: Value, b: Value) -> None:
        if op not in ARITHMETIC_OPS and op not in COMPARE_OPS:
            raise ValueError(f"unknown binary operation {op!r}")
        if a.dtype is not b.dtype:
            raise ValueError(f"{op} needs equal dtypes, not {a.dtype} and {b.dtype}")
        self.op, self.a, self.b = op, a, b
        self._seal(types.bool_ if op in COMPARE_OPS else a.dtype, op, a, b)

    def operands(self) -> tuple[Value, ...]:
        return (self.a, self.b)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        a, b = go(self.a), go(self.b)
        return self if a is self.a and b is self.b else Binary(self.op, a, b)


class Fma(Value):
    """``a * b + c`` rounded once where the target can, else twice."""

    __slots__ = ("a", "b", "c")

    def __init__(self, a: Value, b: Value, c: Value) -> None:
        self.a, self.b, self.c = a, b, c
        self._seal(a.dtype, a, b, c)

    def operands(self) -> tuple[Value, ...]:
        return (self.a, self.b, self.c)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        a, b, c = go(self.a), go(self.b), go(self.c)
        return self if a is self.a and b is self.b and c is self.c else Fma(a, b, c)


class Select(Value):
    """``a if cond else b``; when ``cond`` is an :class:`Inside`, the loads in ``a`` happen only where it holds."""

    __slots__ = ("a", "b", "cond")

    def __init__(self, cond: Value, a: Value, b: Value) -> None:
        if cond.dtype is not types.bool_ or a.dtype is not b.dtype:
            raise ValueError(f"select needs bool, T, T; not {cond.dtype}, {a.dtype}, {b.dtype}")
        self.cond, self.a, self.b = cond, a, b
        self._seal(a.dtype, cond, a, b)

    def operands(self) -> tuple[Value, ...]:
        return (self.cond, self.a, self.b)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        cond, a, b = go(self.cond), go(self.a), go(self.b)
        return self if cond is self.cond and a is self.a and b is self.b else Select(cond, a, b)


class Inside(Value):
    """True where every index expression is >= 0: the guard of padding and ragged edges."""

    __slots__ = ("exprs",)

    def __init__(self, exprs: tuple[Dim, ...]) -> None:
        self.exprs = exprs
        self._seal(types.bool_, exprs)

    def dims(self) -> Sequence[Dim]:
        return self.exprs

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        exprs = tuple([substitute(e, env) for e in self.exprs])
        return self if all(map(is_, exprs, self.exprs)) else Inside(exprs)


class Cast(Value):
    """Convert the value. Float to integer truncates and saturates (NaN gives 0); integers wrap; to bool is ``!= 0``."""

    __slots__ = ("a",)

    def __init__(self, a: Value, dtype: DType) -> None:
        self.a = a
        self._seal(dtype, a)

    def operands(self) -> tuple[Value, ...]:
        return (self.a,)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        a = go(self.a)
        return self if a is self.a else Cast(a, self.dtype)


class Bitcast(Value):
    """Reinterpret the bits as a dtype of the same width."""

    __slots__ = ("a",)

    def __init__(self, a: Value, dtype: DType) -> None:
        if a.dtype.n_bytes != dtype.n_bytes:
            raise ValueError(f"bitcast needs equal widths, not {a.dtype} and {dtype}")
        self.a = a
        self._seal(dtype, a)

    def operands(self) -> tuple[Value, ...]:
        return (self.a,)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        a = go(self.a)
        return self if a is self.a else Bitcast(a, self.dtype)


class Lookup(Value):
    """``levels[a]`` in ``a``'s type, an integer from 0 up to their number: what each code of four bits stands for.

    A table that is part of the value and not of memory, so that machines with a shuffle of bytes by a register do it
    in one instruction. At most ``MOST_LEVELS`` levels, each a byte.
    """

    __slots__ = ("a", "levels")

    def __init__(self, levels: tuple[int, ...], a: Value) -> None:
        if not 0 < len(levels) <= MOST_LEVELS or not all(0 <= n <= MOST_LEVEL for n in levels):
            raise ValueError(f"levels are 1 to {MOST_LEVELS} numbers of a byte, not {levels!r:.200}")
        if not a.dtype.is_integer:
            raise ValueError(f"levels are chosen by an integer, not {a.dtype}")
        self.a, self.levels = a, levels
        self._seal(a.dtype, levels, a)

    def operands(self) -> tuple[Value, ...]:
        return (self.a,)

    def over(self, go: Callable[[Value], Value], env: Mapping[Sym, Dim]) -> Value:
        a = go(self.a)
        return self if a is self.a else Lookup(self.levels, a)


class Param(Value):
    """A placeholder inside a :class:`Combiner`."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self._seal(dtype, name)


@dataclass(frozen=True)
class Axis:
    """One loop of a stage's domain: ``0 <= sym < extent``; an extent may depend on axes before it."""

    sym: Sym
    extent: Dim


@dataclass(frozen=True)
class Combiner:
    """How a reduction with a tuple state folds: ``result[i]`` is an expression of the ``state`` and ``value`` names."""

    state: tuple[Param, ...]
    value: tuple[Param, ...]
    result: tuple[Value, ...]
    is_commutative: bool = True


@dataclass(frozen=True)
class Reduction:
    """Fold over ``axes`` with ``op`` (one of ``REDUCE_OPS``) or a custom :class:`Combiner`, from ``init``."""

    axes: tuple[Axis, ...]
    op: str | Combiner
    init: tuple[Value, ...]


@dataclass(frozen=True)
class Stage:
    """One assignment over a domain; ``outs`` has several buffers only for tuple-state reductions.

    ``index`` is where in the outputs a point of ``axes`` is written; an index that is a ``Value`` is a scatter, whose
    writes happen in increasing order of the axes. With ``update`` the stage folds into what the output already holds.
    """

    outs: tuple[Buffer, ...]
    axes: tuple[Axis, ...]
    index: tuple[IndexLike, ...]
    exprs: tuple[Value, ...]
    reduction: Reduction | None = None
    update: str | None = None

    @property
    def out(self) -> Buffer:
        return self.outs[0]

    @property
    def expr(self) -> Value:
        return self.exprs[0]

    @property
    def values(self) -> tuple[Value, ...]:
        """All that is computed for a point: the expressions, indices that are values, what a reduction starts at."""
        at = (i for i in self.index if isinstance(i, Value))
        return (*self.exprs, *at, *(self.reduction.init if self.reduction else ()))


@dataclass(frozen=True)
class Serial:
    """Run ``body`` for each value of ``axis`` in increasing order: recurrences, cumulative ops, loops over time."""

    axis: Axis
    body: tuple[Stage | Serial, ...]


@dataclass(frozen=True)
class Computation:
    """A kernel's meaning: run ``items`` in order. Every buffer is an input, an output or a temporary.

    ``is_ordered``: its author chose the order of the serial loops, so that nobody seeks a faster one.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    items: tuple[Stage | Serial, ...]
    temps: tuple[Buffer, ...] = field(default=())
    is_ordered: bool = False


def stages_alone(computation: Computation) -> list[Stage] | None:
    """The items where all of them are stages; None where one is a loop whose iterations have an order."""
    stages = [x for x in computation.items if isinstance(x, Stage)]
    return stages if len(stages) == len(computation.items) else None


def every_stage(items: Iterable[Stage | Serial]) -> Iterator[Stage]:
    """The stages of items in order, those within loops included."""
    for item in items:
        if isinstance(item, Serial):
            yield from every_stage(item.body)
        else:
            yield item


# --- building -------------------------------------------------------------------------------------------------------


def axes_for(shape: Sequence[Dim], prefix: str = "i") -> tuple[Axis, ...]:
    """Fresh axes ``i0, i1, ...`` over a shape, with bounds where the extent is known."""
    return tuple(Axis(loop_symbol(f"{prefix}{k}", d), d) for k, d in enumerate(shape))


def loop_symbol(name: str, extent: Dim) -> Sym:
    """A loop variable's symbol: ``0 <= name < extent``, the upper bound kept where the extent is a number."""
    return Sym(name, 0, max(extent - 1, 0) if isinstance(extent, int) else None)


def syms(axes: Sequence[Axis]) -> tuple[Sym, ...]:
    return tuple(a.sym for a in axes)


# --- walking --------------------------------------------------------------------------------------------------------


def operands(v: Value) -> tuple[Value, ...]:
    """The direct sub-values, run-time indices of loads included."""
    return v.operands()


def walk(v: Value) -> Iterator[Value]:
    """``v`` and everything below it, parents first; shared sub-values are visited once."""
    seen: set[Value] = set()
    stack = [v]
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            yield x
            stack.extend(x.operands())


_NO_SYMBOLS: frozenset[Sym] = frozenset()
_NO_BUFFERS: frozenset[Buffer] = frozenset()


def symbols_of_value(v: Value) -> frozenset[Sym]:
    """Every symbol in the indices and guards of ``v`` and of all below it; found once per value."""
    if v._symbols is None:
        v._symbols = _NO_SYMBOLS.union(*map(symbols, v.dims()), *map(symbols_of_value, v.operands()))
    return v._symbols


def buffers_of_value(v: Value) -> frozenset[Buffer]:
    """Every buffer that ``v`` and all below it load; found once per value."""
    if v._buffers is None:
        own = frozenset((v.buffer,)) if isinstance(v, Load) else _NO_BUFFERS
        v._buffers = own.union(*map(buffers_of_value, v.operands()))
    return v._buffers


def loads(v: Value) -> tuple[Load, ...]:
    """Every distinct load in ``v``, in the order of a walk; found once per value."""
    if v._loads is None:
        v._loads = tuple([x for x in walk(v) if isinstance(x, Load)])
    return v._loads


def rewrite_value(
    v: Value,
    leaf: Callable[[Value], Value | None],
    dims: Mapping[Sym, Dim] | None = None,
    keep: Callable[[Value], bool] | None = None,
) -> Value:
    """Rebuild ``v``: ``leaf`` may replace any node (None keeps it), and ``dims`` are substituted in index expressions.

    ``leaf`` sees a node after its operands and indices have been rebuilt. What ``keep`` holds for is not looked into.
    """
    return _ValueRewriting(leaf, dims or {}, keep).of(v)


class _ValueRewriting:
    """One call of ``rewrite_value``, and what it has made so far.

    As a function that calls itself, it would hold all of that until the garbage collector comes by.
    """

    __slots__ = ("_dims", "_keep", "_leaf", "_made")

    def __init__(
        self, leaf: Callable[[Value], Value | None], dims: Mapping[Sym, Dim], keep: Callable[[Value], bool] | None
    ) -> None:
        self._leaf, self._dims, self._keep = leaf, dims, keep
        self._made: dict[Value, Value] = {}

    def of(self, x: Value) -> Value:
        made = self._made.get(x)
        if made is None:
            if self._keep is not None and self._keep(x):
                made = x
            else:
                rebuilt = x.over(self.of, self._dims)
                made = self._leaf(rebuilt) or rebuilt
            self._made[x] = made
        return made


def substitute_value(v: Value, dims: Mapping[Sym, Dim]) -> Value:
    """``v`` with symbols of its index expressions replaced."""
    replaced = frozenset(dims)  # of two sets each holds the hashes already
    return rewrite_value(v, lambda _: None, dims, keep=lambda x: symbols_of_value(x).isdisjoint(replaced))


def substitute_index(i: IndexLike, dims: Mapping[Sym, Dim]) -> IndexLike:
    return substitute_value(i, dims) if isinstance(i, Value) else substitute(i, dims)


def value_text(v: Value) -> str:
    """A readable, exact form: ``add(load A[i, k], cast.f32(x))``; the tile IR's text form uses it."""
    match v:
        case Const():
            return f"{v.value!r}:{v.dtype}"
        case Load():
            return f"{v.buffer.name}[{', '.join(index_text(i) for i in v.index)}]"
        case Index():
            return f"index({to_text(v.expr)})"
        case Inside():
            return f"inside({', '.join(to_text(e) for e in v.exprs)})"
        case Unary() | Binary():
            name = v.op
        case Cast() | Bitcast():
            name = f"{type(v).__name__.lower()}.{v.dtype}"
        case Lookup():
            name = ".".join(["lookup", *map(str, v.levels)])
        case Param():
            return f"%{v.name}:{v.dtype}"
        case _:
            name = type(v).__name__.lower()
    return f"{name}({', '.join(value_text(o) for o in operands(v))})"


def index_text(i: IndexLike) -> str:
    return f"@{value_text(i)}" if isinstance(i, Value) else to_text(i)


def map_stage(stage: Stage, dims: dict[Sym, Dim], axes: tuple[Axis, ...], reduced: tuple[Axis, ...] | None) -> Stage:
    """``stage`` over other axes, with symbols replaced everywhere."""
    red = stage.reduction
    if red is not None and reduced is not None:
        red = replace(red, axes=reduced, init=tuple(substitute_value(v, dims) for v in red.init))
    return replace(
        stage,
        axes=axes,
        index=tuple(substitute_index(i, dims) for i in stage.index),
        exprs=tuple(substitute_value(v, dims) for v in stage.exprs),
        reduction=red,
    )
