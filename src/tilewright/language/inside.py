"""Every access of a kernel is inside of its tensor, whatever its sizes and data are.

In: a traced kernel. Out: the same with the relations between its sizes that a caller has to keep, or a ``KernelError``
at the line of an access that may go beyond. Not its business: what a caller does with relations (``kernel``).

An index is least and greatest where each loop stands at its first or last iteration. What then is left is a number,
or an expression of sizes, which becomes a relation: ``x[i + 1]`` in a loop of ``n`` asks for a tensor of ``n + 1``.
Under a ``where`` on indices, an access may also follow from what the condition says. Of an index that data choose,
their dtype and what ``clamp`` says of them has to be enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core import types
from tilewright.core.compute import (
    Binary,
    Buffer,
    Cast,
    Const,
    Index,
    IndexLike,
    Inside,
    Load,
    Select,
    Serial,
    Stage,
    Value,
    index_text,
    operands,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Expr, Sym, maximum, minimum, symbols
from tilewright.core.types import DType
from tilewright.language.errors import KernelError
from tilewright.language.trace import Traced
from tilewright.tile.affine import least, never_negative

Extents = Mapping[Sym, Dim]
Guards = tuple[Dim, ...]
Range = tuple[Dim | None, Dim | None]


def checked(traced: Traced) -> Traced:
    """The kernel with its ``constraints``; ``KernelError`` names the access that may be outside."""
    check = _Check(traced)
    c = traced.computation
    for b in (*c.inputs, *c.outputs, *c.temps):
        for d in b.shape:
            check.need(d, {}, (), b, f"the size {d} of {b.name} may be negative")
    check.items(c.items, {})
    return replace(traced, constraints=tuple(check.constraints))


@dataclass
class _Check:
    traced: Traced
    constraints: dict[Expr, None] = field(default_factory=dict)

    def items(self, items: Sequence[Stage | Serial], extents: Extents) -> None:
        for x in items:
            if isinstance(x, Serial):
                self.items(x.body, {**extents, x.axis.sym: x.axis.extent})
            else:
                self.stage(x, extents)

    def stage(self, s: Stage, extents: Extents) -> None:
        extents = {**extents, **{a.sym: a.extent for a in s.axes}}
        for b in s.outs:
            self.access(b, s.index, extents, (), s)
        if s.reduction is not None:
            for v in s.reduction.init:
                self.value(v, extents, ())
            extents = {**extents, **{a.sym: a.extent for a in s.reduction.axes}}
        for v in (*s.exprs, *(i for i in s.index if isinstance(i, Value))):
            self.value(v, extents, ())

    def value(self, v: Value, extents: Extents, guards: Guards) -> None:
        for x, known in _under_guards(v, guards):
            if isinstance(x, Load):
                self.access(x.buffer, x.index, extents, known, x)

    def access(self, b: Buffer, index: Sequence[IndexLike], extents: Extents, guards: Guards, what: object) -> None:
        text = f"{b.name}[{', '.join(map(index_text, index))}]"
        for i, size in zip(index, b.shape, strict=True):
            low, high = range_of(i) if isinstance(i, Value) else (i, i)
            if low is None or high is None:
                rule = f"{text}: nothing bounds the index that the data choose"
                raise KernelError(self.traced.name, rule, _CLAMP, self.traced.lines.get(what))
            self.need(low, extents, guards, what, f"{text}: the index {index_text(i)} may be less than 0")
            rule = f"{text}: the index {index_text(i)} may be over the last, {size - 1}"
            self.need(size - 1 - high, extents, guards, what, rule)

    def need(self, e: Dim, extents: Extents, guards: Guards, what: object, rule: str) -> None:
        """Let ``e`` be at least 0: proved, or asked of callers."""
        # Where an access is made, every loop around it has an iteration.
        if any(never_negative(e - g, extents) for g in (0, *guards, *(n - 1 for n in extents.values()))):
            return
        left = least(e, extents)
        if is_known(left) or symbols(left) & extents.keys():
            raise KernelError(self.traced.name, rule, _CLAMP, self.traced.lines.get(what))
        self.constraints[left] = None


_CLAMP = "write where(condition on the indices, ..., otherwise), or clamp(index, 0, size - 1)"


def _under_guards(v: Value, guards: Guards) -> Iterator[tuple[Value, Guards]]:
    """Every value below, once for each set of guards that it stands under: what is known to be at least 0 there."""
    seen: set[tuple[Value, Guards]] = set()
    ahead = [(v, guards)]
    while ahead:
        pair = x, known = ahead.pop()
        if pair in seen:
            continue
        seen.add(pair)
        yield pair
        if isinstance(x, Select) and isinstance(x.cond, Inside):
            ahead += [(x.a, (*known, *x.cond.exprs)), (x.b, known)]
        else:
            ahead += [(o, known) for o in operands(x)]


# --- what data can be -----------------------------------------------------------------------------------------------


def range_of(v: Value) -> Range:
    """The least and the greatest that an integer can be, as expressions of loops and sizes; None for an open end."""
    match v:
        case Const():
            return int(v.value), int(v.value)
        case Index():
            return v.expr, v.expr
        case Cast() if not v.a.dtype.is_float and v.a.dtype is not types.u64:
            return _fitting(range_of(v.a), v.dtype)
        case Select():
            (a, b), (c, d) = range_of(v.a), range_of(v.b)
            return _of_both(a, c, minimum), _of_both(b, d, maximum)
        case Binary():
            return _fitting(_of_operation(v), v.dtype)
    return _of_dtype(v.dtype)


def _of_operation(v: Binary) -> Range:
    (a, b), (c, d) = range_of(v.a), range_of(v.b)
    match v.op:
        case "add":
            return _of_both(a, c, lambda x, y: x + y), _of_both(b, d, lambda x, y: x + y)
        case "sub":
            return _of_both(a, d, lambda x, y: x - y), _of_both(b, c, lambda x, y: x - y)
        case "min":
            return _of_both(a, c, minimum), _of_either(b, d, minimum)
        case "max":
            return _of_either(a, c, maximum), _of_both(b, d, maximum)
        case "rem" if is_known(c) and c == d and c > 0 and is_known(a) and a >= 0:
            return 0, c - 1
        case "and" if is_known(c) and c == d and c >= 0:
            return 0, c
    return _of_dtype(v.dtype)


def _of_both(x: Dim | None, y: Dim | None, how: Callable[[Dim, Dim], Dim]) -> Dim | None:
    return None if x is None or y is None else how(x, y)


def _of_either(x: Dim | None, y: Dim | None, how: Callable[[Dim, Dim], Dim]) -> Dim | None:
    return y if x is None else x if y is None else how(x, y)


def _fitting(found: Range, dtype: DType) -> Range:
    """The range, where the type surely holds it: else integers wrap. Sizes are far from the end of 64 bits."""
    low, high = found
    if dtype is types.i64:
        return found
    least, most = _of_dtype(dtype)
    fits = is_known(low) and is_known(high) and is_known(least) and is_known(most) and least <= low <= high <= most
    return found if fits else (least, most)


def _of_dtype(dtype: DType) -> Range:
    if dtype.is_float or dtype is types.i64:
        return None, None
    return int(dtype.min), None if dtype is types.u64 else int(dtype.max)
