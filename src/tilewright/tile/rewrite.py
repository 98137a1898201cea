"""Walking and rebuilding statement trees: the shared vocabulary of lowering, primitives and verification.

In: statements of ``tile.ir``. Out: new statements (trees are immutable), or facts read off them.
Not its business: whether a rewrite is legal (each primitive checks its own rule).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from operator import is_
from typing import TypeVar

from tilewright.core.compute import (
    Buffer,
    Index,
    IndexLike,
    Inside,
    Load,
    Value,
    buffers_of_value,
    loads,
    rewrite_value,
    substitute_index,
    substitute_value,
)
from tilewright.core.compute import (
    walk as walk_value,
)
from tilewright.core.expr import Dim, Sym, bounds, substitute, symbols
from tilewright.core.indices import chosen, is_chosen, placed, symbols_in
from tilewright.tile.ir import (
    NESTS,
    Barrier,
    Commit,
    Fold,
    For,
    If,
    Loop,
    Prefetch,
    Stmt,
    Store,
    Update,
    mentioned,
    written,
)

Body = tuple[Stmt, ...]
T = TypeVar("T")


def loop_sym(name: str, extent: Dim) -> Sym:
    """A loop variable named ``name`` whose upper bound is the extent's greatest value, where known."""
    hi = bounds(extent)[1]
    return Sym(name, 0, None if hi is None else max(hi - 1, 0))


def substitute_stmt(s: Stmt, dims: Mapping[Sym, Dim]) -> Stmt:
    """``s`` with symbols replaced in every index, extent, guard and value; ``s`` itself where it has none of them."""
    if not dims:
        return s
    match s:
        case For():
            extent, body = substitute(s.loop.extent, dims), substitute_body(s.body, dims)
            if extent is s.loop.extent:
                return s if body is s.body else For(s.loop, body)
            return For(Loop(s.loop.sym, extent, s.loop.kind), body)
        case If():
            return If(substitute_value(s.cond, dims), substitute_body(s.body, dims))
        case Store():
            index, value = _index(s.index, dims), substitute_value(s.value, dims)
            return s if index is s.index and value is s.value else Store(s.buffer, index, value)
        case Update():
            index, value = _index(s.index, dims), substitute_value(s.value, dims)
            return s if index is s.index and value is s.value else Update(s.buffer, index, s.op, value)
        case Fold():
            values = tuple(substitute_value(v, dims) for v in s.values)
            return Fold(s.buffers, _index(s.index, dims), s.combiner, values)
        case Prefetch():
            return Prefetch(s.buffer, _index(s.index, dims))
        case Barrier() | Commit():
            return s


def substitute_body(body: Body, dims: Mapping[Sym, Dim]) -> Body:
    return _same_or([substitute_stmt(s, dims) for s in body], body)


def _index(index: tuple[IndexLike, ...], dims: Mapping[Sym, Dim]) -> tuple[IndexLike, ...]:
    return _same_or([substitute_index(i, dims) for i in index], index)


def _same_or(made: Sequence[T], old: tuple[T, ...]) -> tuple[T, ...]:
    """``old`` where each part is what it was: what is known of it, and of what holds it, need not be found again."""
    return old if all(map(is_, made, old)) else tuple(made)


def rewrite_accesses(body: Body, change: Callable[[Buffer, tuple[IndexLike, ...]], Load | None]) -> Body:
    """Replace accesses: ``change(buffer, index)`` gives the new place of a load or of a write, None keeps it."""

    # A load may be an index of another one: places inside of values change as well.
    return _StatementRewriting(lambda x: change(x.buffer, x.index) if isinstance(x, Load) else None, change).body(body)


def rewrite_values(body: Body, leaf: Callable[[Value], Value | None]) -> Body:
    """Replace values, as ``core.compute.rewrite_value`` does, in all statements; what is written stays where it is."""
    return _StatementRewriting(leaf, lambda buffer, index: None).body(body)


class _StatementRewriting:
    """Statements with other values by ``leaf``, and writes at other places by ``change``; or as they are.

    Functions that call themselves would hold all that these two hold until the garbage collector comes by.
    """

    __slots__ = ("_change", "_leaf")

    def __init__(
        self,
        leaf: Callable[[Value], Value | None],
        change: Callable[[Buffer, tuple[IndexLike, ...]], Load | None],
    ) -> None:
        self._leaf, self._change = leaf, change

    def body(self, statements: Body) -> Body:
        return _same_or([self._statement(s) for s in statements], statements)

    def _statement(self, s: Stmt) -> Stmt:
        match s:
            case For():
                inner = self.body(s.body)
                return s if inner is s.body else For(s.loop, inner)
            case If():
                return If(self._value(s.cond), self.body(s.body))
            case Store():
                (buffer, ix), v = self._place(s.buffer, self._index(s.index)), self._value(s.value)
                return s if buffer is s.buffer and ix is s.index and v is s.value else Store(buffer, ix, v)
            case Update():
                (buffer, ix), v = self._place(s.buffer, self._index(s.index)), self._value(s.value)
                return s if buffer is s.buffer and ix is s.index and v is s.value else Update(buffer, ix, s.op, v)
            case Prefetch():
                return Prefetch(*self._place(s.buffer, self._index(s.index)))
            case Barrier() | Commit():
                return s
            case Fold():
                ix = self._index(s.index)
                # One index for all buffers of a state: they have one shape and move together.
                moved = [self._place(b, ix) for b in s.buffers]
                values = tuple(self._value(v) for v in s.values)
                return Fold(tuple(b for b, _ in moved), moved[0][1], s.combiner, values)

    def _value(self, v: Value) -> Value:
        return rewrite_value(v, self._leaf)

    def _index(self, ix: tuple[IndexLike, ...]) -> tuple[IndexLike, ...]:
        return _same_or([self._value(i) if is_chosen(i) else i for i in ix], ix)

    def _place(self, buffer: Buffer, ix: tuple[IndexLike, ...]) -> tuple[Buffer, tuple[IndexLike, ...]]:
        new = self._change(buffer, ix)
        return (buffer, ix) if new is None else (new.buffer, new.index)


def values_of(s: Stmt) -> Iterator[Value]:
    """The values that one statement (not its children) evaluates, run-time indices included."""
    match s:
        case Store() | Update():
            yield s.value
            yield from chosen(s.index)
        case Fold():
            yield from s.values
            yield from chosen(s.index)
        case If():
            yield s.cond
        case Prefetch():
            yield from chosen(s.index)


def loads_of(s: Stmt) -> Iterator[Load]:
    """The loads of one statement (not of its children)."""
    for v in values_of(s):
        yield from loads(v)


def places_of(s: Stmt) -> Iterator[tuple[Buffer, tuple[IndexLike, ...]]]:
    """What one statement (not its children) reads or writes, and where."""
    yield from ((x.buffer, x.index) for x in loads_of(s))
    if isinstance(s, Store | Update | Fold):
        yield from ((b, s.index) for b in written(s))


def reads(s: Stmt, buffer: Buffer) -> bool:
    """Does one statement (not its children) load the buffer?"""
    return any(buffer in buffers_of_value(v) for v in values_of(s))


def symbols_of_index(index: tuple[IndexLike, ...]) -> set[Sym]:
    """The symbols of an access's index expressions; parts that the data decide have none."""
    return symbols_in(index)


def dims_of(s: Stmt, besides: Container[Buffer] = ()) -> Iterator[Dim]:
    """Every index expression of one statement: extents, indices (not of loads of ``besides``), guards, index values."""
    if isinstance(s, For):
        yield s.loop.extent
        return
    if isinstance(s, Store | Update | Fold | Prefetch):
        yield from placed(s.index)
    for v in values_of(s):
        for x in walk_value(v):
            if isinstance(x, Load):
                if x.buffer not in besides:
                    yield from placed(x.index)
            elif isinstance(x, Index):
                yield x.expr
            elif isinstance(x, Inside):
                yield from x.exprs


def loops_of(body: Body) -> list[Loop]:
    """Every loop, in program order."""
    return [loop for s in body if isinstance(s, NESTS) for loop in s.loops]


def sizes_of(kernel_body: Body, buffers: Iterator[Buffer] | tuple[Buffer, ...]) -> tuple[Sym, ...]:
    """The symbols that a kernel needs from outside, ordered by name: all that no loop binds."""
    free = set(mentioned(kernel_body))
    for b in buffers:
        for d in b.shape:
            free |= symbols(d)
    free -= {loop.sym for loop in loops_of(kernel_body)}
    return tuple(sorted(free, key=lambda s: s.name))
