"""A kernel's function run once on stand-ins for its arguments: what it computes, as stages and loops.

In: a Python function, types of its arguments. Out: ``Traced``: a ``core.compute.Computation`` whose buffers have the
names that the user gave them. Not its business: expressions (``values``), whether accesses are inside (``inside``), how
loops run (``schedule``).

``compute`` and the reductions make stages; ``loop`` and ``grid`` make loops that run in order, around stores
(``t[i] = v``). A store that adds to the element that it writes becomes an update.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Combiner,
    Computation,
    Index,
    IndexLike,
    Inside,
    Load,
    Param,
    Reduction,
    Serial,
    Stage,
    Unary,
    Value,
    loop_symbol,
    operands,
    syms,
)
from tilewright.core.diag import Loc
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Expr, floordiv, maximum, symbols
from tilewright.core.types import DType, TensorType
from tilewright.language.errors import TRACED, KernelError, assigned, here, loc_of, refused
from tilewright.language.values import (
    Element,
    IndexExpr,
    Scalar,
    Whole,
    checked_dtype,
    computed_with,
    dim_of,
    element,
)
from tilewright.tile.affine import never_negative
from tilewright.tile.schedule.partials import identity_of

Item = Stage | Serial
Shape: TypeAlias = "Whole | Sequence[Whole]"

_TRACING: ContextVar[Trace] = ContextVar("tilewright kernel that is traced")


@dataclass(frozen=True)
class Traced:
    """What a kernel computes; ``constraints`` are expressions of its sizes that a caller keeps at 0 or more.

    ``lines`` has the user's line of every access and extent, for errors.
    """

    name: str
    computation: Computation
    constraints: tuple[Expr, ...] = ()
    lines: Mapping[object, Loc] = field(default_factory=dict)


FOLDS = frozenset({"all", "any", "argmax", "argmin", "max", "min", "prod", "sum"})
"""Methods of arrays that are functions of the language."""


class Tensor:
    """A tensor of a kernel that is traced: ``t[i, j]`` is an element, ``t[i, j] = v`` stores one in a loop."""

    def __init__(self, buffer: Buffer, *, is_given: bool) -> None:
        self.buffer, self.is_given = buffer, is_given

    def __repr__(self) -> str:
        return repr(self.buffer)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: a Python integer where it is known, else an ``IndexExpr``."""
        return tuple(d if is_known(d) else IndexExpr(d) for d in self.buffer.shape)

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __getitem__(self, key: Any) -> Element:
        load, trace = Load(self.buffer, self._index(key)), tracing("an element")
        trace.lines.setdefault(load, here())
        trace.reads[id(load)] = load, trace.count
        return Element(load)

    def __setitem__(self, key: Any, value: Scalar) -> None:
        if self.is_given:
            raise refused(f"{self.buffer.name} is an argument", f"write to a copy: y = {self.buffer.name}.copy()")
        trace = tracing("a store")
        if trace.programs:
            raise refused("a store of an element within programs", "write tl.store(tensor, index, value)")
        if trace.depth:
            raise refused("a store inside of an expression", "store in a loop; compute returns a value")
        _store(trace, self.buffer, self._index(key), element(value, self.dtype).value)

    def __iter__(self) -> Iterator[Element]:
        raise refused("a tensor has no elements to go through", "write a loop over indices")

    def _whole(self, *_: object, **__: object) -> NoReturn:
        name = self.buffer.name
        at = ", ".join(f"i{k}" for k in range(len(self.buffer.shape)))
        remedy = f"write tl.compute({name}.shape, lambda {at}: ...) with {name}[{at}]"
        raise refused(f"an operation on all of the tensor {name}", remedy)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _whole
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _whole
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _whole
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = __abs__ = __array_ufunc__ = _whole

    def __getattr__(self, name: str) -> NoReturn:
        if name not in FOLDS:
            raise AttributeError(f"a tensor of a kernel has no {name!r}")
        own = self.buffer.name
        at = ", ".join(f"i{k}" for k in range(len(self.buffer.shape)))
        raise refused(f"{name} of all of the tensor {own}", f"write tl.{name}(lambda {at}: {own}[{at}], *{own}.shape)")

    def copy(self, *, name: str = "") -> Tensor:
        """Another tensor with the same elements, which may be written to."""
        made: Tensor = compute(self.shape, lambda *at: self[at], name=name)
        return made

    def _index(self, key: Any) -> tuple[IndexLike, ...]:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self.buffer.shape):
            rule = f"{self.buffer.name} has {len(self.buffer.shape)} dimensions, not {len(parts)}"
            raise refused(rule)
        return tuple(_part_of_index(p, self.buffer.name) for p in parts)


def _part_of_index(part: Any, name: str) -> IndexLike:
    """A part of an index of the tensor ``name``."""
    if isinstance(part, Element):
        if not part.dtype.is_integer:
            rule = f"an index of {name} is a number of type {part.dtype}, and only integers are indices"
            raise refused(rule, "use loops' variables, sizes or a tensor of integers; in tw.kernel also .cast(i64)")
        return part.value
    return dim_of(part)


@dataclass
class Trace:
    """What was said so far.

    ``scopes`` are the bodies of the open ``loops``, ``elements`` the loops of the elements that are being said, and
    ``depth`` counts the functions of elements that run. An expression is what the data hold when it is stored, so an
    element that was read before a store to its tensor can't be used after it: ``count`` is how many stages and loops
    there were, ``stored`` what it was at each tensor's last store, ``reads`` what it was when each element was read,
    and ``uses`` are the elements that were used, with the line. ``stores`` are the stages that a user wrote as stores,
    by identity. ``programs`` are those of ``tl.programs`` that are open.
    """

    name: str
    sizes: set[str] = field(default_factory=set)
    scopes: list[list[Item]] = field(default_factory=lambda: [[]])
    loops: list[Axis] = field(default_factory=list)
    elements: list[Axis] = field(default_factory=list)
    temps: dict[str, Buffer] = field(default_factory=dict)
    lines: dict[object, Loc] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    count: int = 0
    stored: dict[Buffer, int] = field(default_factory=dict)
    reads: dict[int, tuple[Load, int]] = field(default_factory=dict)
    uses: list[tuple[Load, int, Loc]] = field(default_factory=list)
    stores: dict[int, Stage] = field(default_factory=dict)
    programs: list[Axis] = field(default_factory=list)
    depth: int = 0
    left: Loc | None = None

    @property
    def around(self) -> list[Axis]:
        return [*self.programs, *self.loops, *self.elements]

    def counted(self, n: Dim) -> Dim:
        """How often a loop of ``n`` iterations runs: never less than not at all."""
        return n if never_negative(n, {a.sym: a.extent for a in self.around}) else maximum(n, 0)

    def emit(self, made: Stage) -> None:
        """A stage of values that were checked (``check``), or are those of a stage before."""
        self.scopes[-1].append(made)
        self.count += 1
        self.stored |= dict.fromkeys(made.outs, self.count)

    def check(self, values: Iterable[IndexLike], own: Sequence[Axis] = (), loc: Loc | None = None) -> None:
        """Raise ``KernelError`` for a loop that is not open, nor one of ``own``, and for elements read too early."""
        ahead, seen = list(values), set()
        while ahead:
            v = ahead.pop()
            if id(v) in seen:
                continue
            seen.add(id(v))
            match v:
                case Load():
                    self._check_read(v, loc)
                    ahead += v.index
                case Index():
                    ahead.append(v.expr)
                case Inside():
                    ahead += v.exprs
                case Value():
                    ahead += operands(v)
                case _:
                    self._check_open(v, own, loc)

    def _check_read(self, v: Load, loc: Loc | None) -> None:
        _, count = self.reads.get(id(v), (v, self.count))
        if count < self.stored.get(v.buffer, 0):
            raise _read_before(v, loc)
        self.uses.append((v, count, loc or here()))

    def _check_open(self, d: Dim, own: Sequence[Axis] = (), loc: Loc | None = None) -> None:
        if ended := {s.name for s in symbols(d)} - {a.sym.name for a in (*self.around, *own)} - self.sizes:
            remedy = "use its variable in its body; add up with tl.sum, or in an element: s[0] += x[k]"
            raise refused(f"the loop {min(ended)} has ended", remedy, loc)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """What is said in here happens again and again: what was read before it must not be stored to in it."""
        self.count += 1
        start, first = self.count, len(self.uses)
        yield
        for v, count, where in self.uses[first:]:
            if count < start < self.stored.get(v.buffer, 0):
                raise _read_before(v, where)

    def axis(self, name: str, extent: Dim) -> Axis:
        """A loop's variable, of a name that no other loop and no size has: one that has ended is known by it."""
        self._check_open(extent)
        made = Axis(loop_symbol(_first_free(name, self.names | self.sizes), extent), extent)
        self.names.add(made.sym.name)
        self.lines.setdefault(made, here())
        return made

    def temp(self, name: str, dtype: DType, shape: tuple[Dim, ...]) -> Buffer:
        """A new tensor, of a name that no other has."""
        if loops := {s.name for d in shape for s in symbols(d)} - self.sizes:
            rule = f"a size of {name} depends on the loop {min(loops)}"
            raise refused(rule, "make it as large as it may become")
        made = Buffer(_first_free(name, self.temps.keys() | self.sizes), dtype, shape)
        self.temps[made.name] = made
        self.lines.setdefault(made, here())
        return made


def _first_free(name: str, taken: Any) -> str:
    free, n = name, 0
    while free in taken:
        n += 1
        free = f"{name}_{n}"
    return free


def _read_before(v: Load, loc: Loc | None) -> KernelError:
    name = v.buffer.name
    at = ", ".join("..." for _ in v.index)
    remedy = f"keep it before: a = tl.compute((), lambda: {name}[{at}]), then a[()]"
    return refused(f"{v} was read before {name} was stored to", remedy, loc)


def tracing(word: str) -> Trace:
    """The kernel that is traced; ``KernelError`` where none is."""
    found = _TRACING.get(None)
    if found is None:
        raise KernelError(word, "it stands outside of a kernel", "use it in a function under @tw.kernel")
    return found


def trace(function: Callable[..., Any], name: str, parameters: Mapping[str, TensorType | Any]) -> Traced:
    """Run the function on tensors of these types; other values are handed to it as they are.

    Raises ``KernelError`` for what has no meaning, with the line that says it.
    """
    given = {p: Buffer(p, t.dtype, t.shape) for p, t in parameters.items() if isinstance(t, TensorType)}
    found = Trace(name, {s.name for b in given.values() for d in b.shape for s in symbols(d)})
    found.temps |= given
    token, named = _TRACING.set(found), TRACED.set(name)
    try:
        made = function(**{
            p: Tensor(given[p], is_given=True) if p in given else value for p, value in parameters.items()
        })  # fmt: skip
        outputs = _outputs(found, made, loc_of(function))
    finally:
        _TRACING.reset(token)
        TRACED.reset(named)
    if found.left is not None or len(found.scopes) > 1:
        raise KernelError(name, "a loop ends before its last iteration", "loops of a kernel have no break", found.left)
    temps = [b for b in found.temps.values() if b not in outputs and b not in given.values()]
    return Traced(
        name, Computation(tuple(given.values()), outputs, tuple(found.scopes[0]), tuple(temps)), (), found.lines
    )


def _outputs(trace: Trace, made: Any, loc: Loc) -> tuple[Buffer, ...]:
    """The buffers of what the function returns; what is an argument, or returned twice, is copied."""
    results = made if isinstance(made, tuple) else (made,)
    buffers: list[Buffer] = []
    for r in results:
        if isinstance(r, Element | IndexExpr | int | float):
            trace.check([element(r).value], loc=loc)
            r = compute((), lambda r=r: r, name="result")
        if not isinstance(r, Tensor):
            raise refused(f"it returns {r!r:.80}", "return tensors that the kernel makes", loc)
        buffers.append(
            (r if not r.is_given and r.buffer not in buffers else r.copy(name=f"{r.buffer.name}_copy")).buffer
        )
    return tuple(buffers)


# --- stages ---------------------------------------------------------------------------------------------------------


def compute(shape: Shape, value: Callable[..., Any], *, name: str = "", dtype: DType | None = None) -> Any:
    """A tensor, each element of which is ``value(i, j, ...)``; the loops are called as the function's parameters are.

    A function that returns a tuple gives as many tensors. ``dtype`` converts the value.

    >>> across = compute((h, w - 2), lambda y, x: (image[y, x] + image[y, x + 1] + image[y, x + 2]) / 3)
    """
    found = tracing("compute")
    if found.depth:
        raise refused("a tensor within an expression of elements", "make it before, and read it")
    if found.programs:
        raise refused("a tensor of elements within programs", "make it before them; tl.zeros and tl.full are blocks")
    dims = _dims(shape)
    axes = _axes(found, value, dims)
    made = _elements(found, axes, value)
    named = name or _result_name()
    values = [v if dtype is None else v.cast(dtype) for v in made]
    found.check((v.value for v in values), axes)
    outs = [found.temp(named if k == 0 else f"{named}_{k}", v.dtype, dims) for k, v in enumerate(values)]
    whole = _as_reduction(found, axes, [v.value for v in values], outs)
    if whole is None:
        for out, v in zip(outs, values, strict=True):
            found.emit(Stage((out,), axes, syms(axes), (v.value,)))
    tensors = tuple(Tensor(out, is_given=False) for out in outs)
    return tensors[0] if len(tensors) == 1 else tensors


def _result_name() -> str:
    return next(iter(assigned()), "result")


def _as_reduction(found: Trace, axes: Sequence[Axis], values: Sequence[Value], outs: Sequence[Buffer]) -> Stage | None:
    """Where the values are a reduction that was written last, and nothing else, let that write the tensors."""
    last = found.scopes[-1][-1] if found.scopes[-1] else None
    if not isinstance(last, Stage) or last.reduction is None or last.axes != tuple(axes):
        return None
    if [Load(b, syms(axes)) for b in last.outs] != list(values):
        return None
    found.scopes[-1].pop()
    for b in last.outs:
        del found.temps[b.name]
    made = Stage(tuple(outs), last.axes, last.index, last.exprs, last.reduction)
    found.emit(made)
    return made


def _dims(shape: Shape) -> tuple[Dim, ...]:
    return tuple(dim_of(d) for d in (shape if isinstance(shape, tuple | list) else (shape,)))


def _axes(found: Trace, function: Callable[..., Any], extents: Sequence[Dim]) -> tuple[Axis, ...]:
    """A loop for each extent, called as the function's parameter."""
    parameters = list(signature_of(function).parameters.values())
    has_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    names = [f"i{k}" for k in range(len(extents))] if has_any else [p.name for p in parameters if p.default is p.empty]
    if len(names) != len(extents):
        raise refused(f"a function of {len(names)} indices for {len(extents)} sizes")
    return tuple(found.axis(name, extent) for name, extent in zip(names, extents, strict=True))


def signature_of(function: object) -> inspect.Signature:
    """Of a function of indices or values; ``KernelError`` where it is none."""
    try:
        if callable(function):
            return inspect.signature(function)
    except ValueError:  # a builtin that tells nobody its parameters
        pass
    raise refused(f"{function!r:.80} is no function", "write one of the indices: lambda i: ...")


def _elements(found: Trace, axes: Sequence[Axis], function: Callable[..., Any]) -> list[Element]:
    found.elements += axes
    found.depth += 1
    try:
        made = function(*[IndexExpr(a.sym) for a in axes])
        return [element(v) for v in (made if isinstance(made, tuple) else (made,))]
    finally:
        found.depth -= 1
        del found.elements[len(found.elements) - len(axes) :]


def full(shape: Shape, value: float, dtype: DType = types.f32) -> Tensor:
    """A tensor that holds one number everywhere, to be written to in loops."""
    made: Tensor = compute(shape, lambda *_: element(value, checked_dtype(dtype)))
    return made


def zeros(shape: Shape, dtype: DType = types.f32) -> Tensor:
    """A tensor of zeros, to be written to in loops."""
    return full(shape, 0, dtype)


# --- reductions -----------------------------------------------------------------------------------------------------


def reduce(op: str, value: Callable[..., Any], extents: Sequence[Whole]) -> Element:
    """Fold ``value(k, ...)`` over all ``k`` below the extents by ``op``, one of ``core.compute.REDUCE_OPS``."""

    def reduction(axes: tuple[Axis, ...], values: Sequence[Value]) -> Reduction:
        for v in values:
            computed_with(op, v)
        return Reduction(axes, op, tuple(identity_of(op, v.dtype) for v in values))

    (made,) = _reduced(value, extents, reduction)
    return made


def fold(value: Callable[..., Any], *extents: Whole, start: Any, combine: Callable[..., Any]) -> Any:
    """Fold values, or tuples of them, by a function of two: ``combine(so_far, next)``, from ``start``.

    A start that is a function is called with the dtype. The order is that of the loops.

    >>> fold(lambda k: (x[k], k), n, start=(-inf, 0), combine=lambda a, b: pick(a, b))
    """
    starts = start if isinstance(start, tuple) else (start,)
    _checked_combine(combine)

    def same_length(what: str, found: Sequence[Any], values: Sequence[Value]) -> None:
        if len(found) != len(values):
            remedy = "let value, start and combine give as many"
            raise refused(f"a fold of {len(values)} values {what} {len(found)}", remedy)

    def reduction(axes: tuple[Axis, ...], values: Sequence[Value]) -> Reduction:
        # The function is run once, on stand-ins for what was folded so far and for what comes next.
        state, new = (tuple(Param(f"{side}{k}", v.dtype) for k, v in enumerate(values)) for side in ("state", "value"))
        as_given = [tuple(map(Element, x)) if isinstance(start, tuple) else Element(x[0]) for x in (state, new)]
        same_length("starts with", starts, values)
        made = combine(*as_given)
        folded = made if isinstance(made, tuple) else (made,)
        same_length("gives", folded, values)
        results = tuple(element(r, v.dtype).value for r, v in zip(folded, values, strict=True))
        begin = tuple(
            element(s(v.dtype) if callable(s) else s, v.dtype).value for s, v in zip(starts, values, strict=True)
        )
        for r, v in zip((*results, *begin), (*values, *values), strict=True):
            if r.dtype is not v.dtype:
                raise refused(f"the fold of {v.dtype} gives {r.dtype}", "convert it: .cast")
        return Reduction(axes, Combiner(state, new, results, is_commutative=False), begin)

    made = _reduced(value, extents, reduction)
    return tuple(made) if isinstance(start, tuple) else made[0]


def _checked_combine(combine: object) -> None:
    try:
        signature_of(combine).bind("so far", "next")
    except TypeError as e:
        raise refused(f"the fold's combine can't be called with two: {e}", "write lambda so_far, new: ...") from e


def _reduced(
    value: Callable[..., Any],
    extents: Sequence[Whole],
    reduction: Callable[[tuple[Axis, ...], Sequence[Value]], Reduction],
) -> list[Element]:
    """A stage into tensors of their own, over the loops of the elements around, of which those are read."""
    found = tracing("a reduction")
    outer = tuple(found.elements)
    axes = _axes(found, value, [found.counted(dim_of(e)) for e in extents])
    made = _elements(found, axes, value)
    shape = tuple(a.extent for a in outer)
    temps = tuple(found.temp("reduced", v.dtype, shape) for v in made)
    values = tuple(v.value for v in made)
    folding = reduction(axes, values)
    found.check(values, axes)
    found.check(folding.init)
    found.check(folding.op.result if isinstance(folding.op, Combiner) else ())
    found.emit(Stage(temps, outer, syms(outer), values, folding))
    loads = [Load(t, syms(outer)) for t in temps]
    for load in loads:
        found.lines.setdefault(load, here())
    return [Element(load) for load in loads]


# --- loops ----------------------------------------------------------------------------------------------------------


def loop(first: Whole, end: Whole | None = None, step: int = 1, *, name: str = "") -> Iterator[IndexExpr]:
    """``for i in loop(n)``, ``loop(first, end)``, ``loop(n - 1, -1, -1)``: as ``range``, in order, over sizes.

    The body is run once, by Python, for all iterations. ``name`` is what the loop is called where not as the variable.
    """
    found = tracing("loop")
    if found.programs:
        raise refused("tl.loop within programs", "write tl.range")
    at = here()
    low, high = (0, dim_of(first)) if end is None else (dim_of(first), dim_of(end))
    if step == 0 or not isinstance(step, int):
        raise refused(f"a loop of step {step!r}", "steps are integers other than 0")
    n = floordiv(high - low + step - 1, step) if step > 0 else floordiv(low - high - step - 1, -step)
    axis = found.axis(name or _loop_name(found), found.counted(n))
    found.scopes.append([])
    found.loops.append(axis)
    is_whole = False
    # A generator that is left before its end is closed by Python, which tells nobody: ``trace`` raises what is noted.
    try:
        with found.repeated():
            yield IndexExpr(low + axis.sym * step)
        is_whole = True
    finally:
        if not is_whole and found.left is None:
            found.left = at
        found.loops.pop()
        body = tuple(found.scopes.pop())
        if body:
            found.scopes[-1].append(Serial(axis, body))


def grid(*extents: Whole) -> Iterator[tuple[IndexExpr, ...]]:
    """``for i, j in grid(n, m)``: a loop within a loop."""
    if not extents:
        yield ()
        return
    for i in loop(extents[0]):
        for rest in grid(*extents[1:]):
            yield (i, *rest)


def _loop_name(found: Trace) -> str:
    """What the user's program calls the variable; of a grid the first name that no loop around has."""
    taken = {a.sym.name for a in found.around}
    return next((x for x in assigned() if x not in taken), "i")


# --- stores ---------------------------------------------------------------------------------------------------------

_ANY_ORDER = ("add", "mul", "min", "max", "and", "or")


def _store(trace: Trace, buffer: Buffer, index: tuple[IndexLike, ...], value: Value) -> None:
    if value.dtype is not buffer.dtype:
        raise refused(f"{value.dtype} into {buffer.name}, which is {buffer.dtype}", "convert: .cast")
    trace.check((*index, value))
    update, value = _as_update(Load(buffer, index), value)
    made = Stage((buffer,), (), index, (value,), None, update)
    trace.lines.setdefault(made, here())
    trace.stores[id(made)] = made
    trace.emit(made)


def _as_update(target: Load, value: Value) -> tuple[str | None, Value]:
    """``t[i] = t[i] + v`` as an update by ``v``; a difference is the sum with the negative, which is exact."""
    if isinstance(value, Binary):
        if value.op in _ANY_ORDER and target in (value.a, value.b):
            return value.op, value.b if value.a == target else value.a
        if value.op == "sub" and value.a == target:
            return "add", Unary("neg", value.b)
    return None, value
