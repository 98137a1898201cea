"""Stores under a condition, of the language for kernels: ``with tl.when(x[i] > 0): y[i] = x[i]``.

In: a condition on indices or elements, and a body of stores and loops. Out: the same stages, each of which leaves what
it writes to as it was where the condition does not hold. Not its business: choosing between values (``values.where``).

The body is run once, by Python. A store of ``v`` becomes one of ``v`` or of what is there, an update by ``v`` one by
``v`` or by what changes nothing. So the place of a store has to be inside of its tensor whatever the condition says;
what is read to the right of it does not where the condition is on indices alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Load, Select, Serial, Stage, Value, buffers_of_value
from tilewright.language.errors import refused
from tilewright.language.trace import Item, Trace, tracing
from tilewright.language.values import Scalar, checked_condition
from tilewright.tile.schedule.partials import identity_of


@contextmanager
def when(condition: Scalar) -> Iterator[None]:
    """Let the stores of the body happen where ``condition`` holds, as it is before the body.

    A tensor that the body makes is for the body alone.

    >>> for i in tl.loop(n):
    ...     with tl.when(x[i] > 0):
    ...         counts[bins[i]] += 1
    """
    found = tracing("when")
    if found.depth:
        raise refused("stores under a condition inside of an expression", "choose a value with where")
    value = checked_condition(condition)
    found.check([value])
    found.scopes.append([])
    try:
        yield
    finally:
        body = found.scopes.pop()
    found.scopes[-1] += _guarded(found, _kept(found, value, body), body)


def _kept(trace: Trace, condition: Value, body: Iterable[Item]) -> Value:
    """The condition; in a tensor of its own where the body writes to what it reads."""
    if not buffers_of_value(condition) & {*_written(body)}:
        return condition
    place = trace.temp("condition", types.bool_, ())
    trace.emit(Stage((place,), (), (), (condition,)))
    return Load(place, ())


def _written(items: Iterable[Item]) -> Iterator[Buffer]:
    for x in items:
        yield from _written(x.body) if isinstance(x, Serial) else x.outs


def _guarded(trace: Trace, condition: Value, items: Iterable[Item]) -> list[Item]:
    return [
        replace(x, body=tuple(_guarded(trace, condition, x.body)))
        if isinstance(x, Serial)
        else _guarded_stage(trace, condition, x)
        for x in items
    ]


def _guarded_stage(trace: Trace, condition: Value, s: Stage) -> Stage:
    others: list[Const] | list[Const | None] | list[Load]
    if s.reduction is not None:
        others = [_unchanging(s.reduction.op, v) if isinstance(s.reduction.op, str) else None for v in s.exprs]
    elif id(s) not in trace.stores:
        others = [Const(0, v.dtype) for v in s.exprs]  # a tensor of the body's own
    elif s.update is not None:
        others = [_unchanging(s.update, v) for v in s.exprs]
    else:
        others = [Load(s.out, s.index)]
    values = [v if o is None else Select(condition, v, o) for v, o in zip(s.exprs, others, strict=True)]
    made = replace(s, exprs=tuple(values))
    if id(s) in trace.stores:
        trace.stores[id(made)] = made
    if s in trace.lines:
        for x in (made, *others):
            trace.lines.setdefault(x, trace.lines[s])
    return made


def _unchanging(op: str, v: Value) -> Const:
    """What ``op`` leaves everything unchanged with, a zero's sign as well."""
    return Const(-0.0, v.dtype) if op == "add" and v.dtype.is_float else identity_of(op, v.dtype)
