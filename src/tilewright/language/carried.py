"""Loops within programs, whose iterations may hand blocks on: ``for k in tl.range(0, n, BLOCK): total += ...``.

In: a loop's body, which Python runs. Out: stages, in a loop in order where iterations depend on each other.
Not its business: what stands in the body (``blocks``).

A block is carried where its name has a value before the loop, is read in the body before it is written, and has another
value after it. The body is run once to see that; where names are carried, what that made is forgotten and it is run
again with those names standing for what the last iteration left. A carried sum of which nothing else depends is a fold
over the loop, and then the loop is one of the fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from dis import get_instructions
from types import FrameType
from typing import Any

from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Load,
    Reduction,
    Serial,
    Stage,
    Value,
    buffers_of_value,
    syms,
)
from tilewright.core.diag import users_frame
from tilewright.core.expr import Dim, Sym, ceildiv, symbols
from tilewright.language.blocks import OpenGrid, emit_fold, join_folds, open_grid, with_lines
from tilewright.language.errors import HERE, assigned, here, refused
from tilewright.language.lanes import BlockValue, Shape, block, broadcast, lane_places, lane_symbols
from tilewright.language.trace import Trace
from tilewright.language.values import Element, IndexExpr, Whole, arithmetic, element
from tilewright.tile.schedule.partials import identity_of


@dataclass
class _State:
    """A carried block: its name, what it is before the loop, and the tensor that holds what an iteration leaves."""

    name: str
    before: Any
    shape: Shape
    buffer: Buffer
    read: Load


def range(first: Whole, end: Whole | None = None, step: Any = 1) -> Iterator[BlockValue]:
    """``for k in tl.range(n)`` or ``tl.range(first, end, step)`` within programs; blocks are carried by their names.

    >>> for k in tl.range(0, n, BLOCK):
    ...     at = k + tl.arange(0, BLOCK)
    ...     total += tl.load(x, (pid, at), mask=at < n)
    """
    grid, frame, line = open_grid("range"), users_frame(HERE), here()
    found = grid.trace
    low, high = (0, block(first).dim) if end is None else (block(first).dim, block(end).dim)
    if not isinstance(step, int) or step < 1:
        raise refused(f"a range of step {step!r:.80}", "steps are integers over 0")
    if inside := (symbols(low) | symbols(high)) & {a.sym for a in found.around}:
        remedy = "go to the greatest end, and mask what is too far"
        raise refused(f"a range that depends on {min(s.name for s in inside)}", remedy)
    axis = found.axis(next(iter(assigned()), "k"), found.counted(ceildiv(high - low, step)))
    index = BlockValue((), IndexExpr(low + axis.sym * step))
    names = [name for name in _read_first(frame) if _is_value(frame.f_locals.get(name))]
    before = {name: frame.f_locals[name] for name in names}
    known = [v for v in frame.f_locals.values() if isinstance(v, BlockValue)]
    open_scopes, is_whole = len(found.scopes), False
    # A generator that is left before its end is closed by Python, which tells nobody: ``trace`` raises what is noted.
    try:
        kept, stored = _snapshot(found), dict(grid.stores)
        grid.axes.append(axis)
        found.programs.append(axis)
        found.scopes.append([])
        yield index
        grid.axes.pop()
        found.programs.pop()
        made = found.scopes.pop()
        # a name that the body has bound anew is carried to the next iteration
        after = {name: v for name in names if (v := frame.f_locals.get(name)) is not before[name]}
        if not after:
            found.scopes[-1] += made
        else:
            _restore(found, kept)
            grid.stores = stored
            yield from _carrying(grid, axis, index, before, after, frame, known)
        is_whole = True
    finally:
        if not is_whole:
            found.left = found.left or line
            del found.scopes[open_scopes:]


def _carrying(
    grid: OpenGrid,
    axis: Axis,
    index: BlockValue,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    frame: FrameType,
    known: Sequence[BlockValue],
) -> Iterator[BlockValue]:
    """The body once more, with names that stand for what the last iteration left, and the stages that come of it."""
    found = grid.trace
    _check_distinct(after, known)
    starts = len(found.scopes[-1])
    states = [_begun(grid, name, before[name], x) for name, x in after.items()]
    for s, x in zip(states, after.values(), strict=True):
        x.scalar = Element(s.read)
    grid.carrying += 1
    found.loops.append(axis)
    found.scopes.append([])
    yield index
    found.loops.pop()
    grid.carrying -= 1
    body = found.scopes.pop()
    last: dict[str, Any] = {s.name: frame.f_locals.get(s.name) for s in states}
    _check_distinct(last, [*known, *after.values()])
    for s in states:
        _check_kept(s, last[s.name])
    # a sum needs no order of the iterations, which vectors and threads may share then
    folds = _as_folds(grid, axis, body, states, [last[s.name].value for s in states], starts)
    if folds is not None:
        for s, v in zip(states, folds, strict=True):
            last[s.name].scalar = Element(v)
        return
    found.scopes.append(body)
    found.loops.append(axis)
    _hand_on(grid, states, [last[s.name].value for s in states])
    found.loops.pop()
    found.scopes[-2].append(Serial(axis, tuple(found.scopes.pop())))
    for s in states:
        last[s.name].scalar = Element(s.read)


# --- names ----------------------------------------------------------------------------------------------------------


def _is_value(x: object) -> bool:
    return isinstance(x, BlockValue | Element | IndexExpr | int | float)


def _read_first(frame: FrameType) -> list[str]:
    """The names that the body of the loop at which a frame stands reads before it writes them, and writes."""
    first: dict[str, str] = {}
    written: set[str] = set()
    end = None
    for step in get_instructions(frame.f_code):
        if step.offset == frame.f_lasti and step.opname == "FOR_ITER":
            end = step.argval
        if step.offset <= frame.f_lasti or (end is not None and step.offset >= end):
            continue
        # newer versions do two at once: their names are joined, and so are what they are done to
        kinds = [k for k in step.opname.split("_") if k in ("LOAD", "STORE")]
        for kind, name in zip(kinds, step.argval if isinstance(step.argval, tuple) else (step.argval,), strict=False):
            if isinstance(name, str):
                first.setdefault(name, kind)
                if kind == "STORE":
                    written.add(name)
    return [name for name, kind in first.items() if kind == "LOAD" and name in written]


def _check_distinct(after: Mapping[str, Any], known: Sequence[BlockValue]) -> None:
    """Every carried name holds a block of its own, which no other name holds."""
    seen = [id(b) for b in known]
    for name, x in after.items():
        if not isinstance(x, BlockValue):
            raise refused(
                f"{name} changes in the loop and is {x!r:.80}", "carry blocks: tl.zeros(1), not Python's numbers"
            )
        if id(x) in seen:
            raise refused(
                f"the block that {name} carries has another name too", f"make it another one: {name} = +block"
            )
        seen.append(id(x))


# --- states ---------------------------------------------------------------------------------------------------------


_GROWING = ("temps", "lines", "names", "stored", "reads", "uses", "stores")
"""What tracing a body adds to, beside its scope."""


def _snapshot(found: Trace) -> Trace:
    """What a trace knew, without its scopes."""
    kept = copy(found)
    for name in _GROWING:
        setattr(kept, name, copy(getattr(found, name)))
    return kept


def _restore(found: Trace, kept: Trace) -> None:
    for name in (*_GROWING, "count"):
        setattr(found, name, getattr(kept, name))


def _begun(grid: OpenGrid, name: str, before: Any, x: BlockValue) -> _State:
    """The tensor of a carried block, filled with what it is before the loop."""
    start = block(before)
    if broadcast(f"{name} before the loop and in it,", start.shape, x.shape) != x.shape:
        raise refused(f"{name} is a block of {start.shape} before the loop and of {x.shape} in it")
    value = element(start.scalar, x.dtype).value
    if value.dtype is not x.dtype:
        raise refused(f"{name} is {value.dtype} before the loop and {x.dtype} in it", "convert it: .cast")
    shape = (*(a.extent for a in grid.axes), *x.shape)
    buffer = grid.trace.temp(name, x.dtype, shape)
    read = Load(buffer, (*grid.at, *lane_places(x.shape)))
    state = _State(name, before, x.shape, buffer, read)
    _write(grid, state, buffer, value)
    return state


def _write(grid: OpenGrid, state: _State, buffer: Buffer, value: Value) -> None:
    """A stage that writes a block's value for all programs and lanes."""
    found = grid.trace
    own = [found.axis("lane", n) for n in state.shape]
    to: dict[Sym, Dim] = {s: a.sym for s, a in zip(lane_symbols(state.shape), own, strict=True)}
    axes = (*grid.axes, *own)
    made = with_lines(found, value, to)
    found.check([made], axes)
    stage = Stage((buffer,), axes, syms(axes), (made,))
    found.lines.setdefault(stage, here())
    found.emit(stage)


def _check_kept(s: _State, x: BlockValue) -> None:
    if x.dtype is not s.buffer.dtype:
        raise refused(f"{s.name} is {s.buffer.dtype} before an iteration and {x.dtype} after it", "convert it: .cast")
    if broadcast(f"{s.name} before an iteration and after it,", x.shape, s.shape) != s.shape:
        raise refused(f"{s.name} is a block of {s.shape} before an iteration and of {x.shape} after it")


def _hand_on(grid: OpenGrid, states: Sequence[_State], values: Sequence[Value]) -> None:
    """What an iteration leaves becomes what the next one finds, of all names at one time."""
    late: list[tuple[_State, Buffer]] = []
    direct: list[tuple[_State, Value]] = []
    for s, v in zip(states, values, strict=True):
        others = any(s.buffer in buffers_of_value(w) for w in values if w is not v)
        if not others:
            direct.append((s, v))
            continue
        new = grid.trace.temp(f"{s.name}_new", s.buffer.dtype, s.buffer.shape)
        _write(grid, s, new, v)
        late.append((s, new))
    for s, v in direct:
        _write(grid, s, s.buffer, v)
    for s, new in late:
        _write(grid, s, s.buffer, Load(new, s.read.index))


# --- sums -----------------------------------------------------------------------------------------------------------

_FOLDS = ("add", "mul", "min", "max")


def _as_folds(
    grid: OpenGrid, axis: Axis, body: Sequence[Any], states: Sequence[_State], values: Sequence[Value], starts: int
) -> list[Value] | None:
    """What the states are after the loop where each is a fold of what the iterations compute; None where they aren't.

    ``starts`` is where the scope has the stages that begin the states, which are then not needed.
    """
    parts = [_added(s, v) for s, v in zip(states, values, strict=True)]
    buffers = {s.buffer for s in states}
    inner = {x.outs[0]: x for x in body if isinstance(x, Stage)}
    if len(inner) < len(body) or any(p is None or buffers & buffers_of_value(p[1]) for p in parts):
        return None
    used: list[Buffer] = []
    for p in parts:
        assert p is not None
        op, v = p
        if isinstance(v, Load) and v.buffer in inner:
            fold = inner[v.buffer].reduction
            if fold is None or fold.op != op:
                return None
            used.append(v.buffer)
        elif not inner.keys().isdisjoint(buffers_of_value(v)):
            return None
    if sorted(b.name for b in used) != sorted(b.name for b in inner) or any(
        buffers_of_value(v) & (buffers | inner.keys()) for x in inner.values() for v in x.values
    ):
        return None
    del grid.trace.scopes[-1][starts:]
    for s in states:
        del grid.trace.temps[s.buffer.name]
    return [_fold(grid, axis, s, *p, inner) for s, p in zip(states, parts, strict=True) if p is not None]


def _added(s: _State, v: Value) -> tuple[str, Value] | None:
    """The operation and the operand of ``state = state op operand``."""
    if not isinstance(v, Binary) or v.op not in _FOLDS or s.read not in (v.a, v.b):
        return None
    return v.op, v.b if v.a == s.read else v.a


def _fold(grid: OpenGrid, axis: Axis, s: _State, op: str, v: Value, inner: Mapping[Buffer, Stage]) -> Value:
    lanes = [Axis(sym, n) for sym, n in zip(lane_symbols(s.shape), s.shape, strict=True)]
    if isinstance(v, Load) and v.buffer in inner:
        made = _with_loop(grid, axis, v, inner[v.buffer])
    else:
        made = emit_fold(grid, op, v, lanes, [axis])
    start = element(block(s.before).scalar, made.dtype).value
    identity = identity_of(op, made.dtype)
    return made if start == identity else arithmetic(op, Element(start), Element(made)).value


def _with_loop(grid: OpenGrid, axis: Axis, v: Load, s: Stage) -> Value:
    """The fold of the body as one over the loop too."""
    found, reduction = grid.trace, s.reduction
    assert reduction is not None and isinstance(reduction.op, str)
    del found.temps[v.buffer.name]
    said, value = grid.folds[v.buffer]
    folds, made = join_folds(found, [axis, *said], value, s.axes, reduction.op)
    out = found.temp("block", v.buffer.dtype, v.buffer.shape)
    stage = Stage((out,), s.axes, s.index, (made,), Reduction(tuple(folds), reduction.op, reduction.init))
    found.lines.setdefault(stage, found.lines.get(s, here()))
    found.emit(stage)
    return Load(out, v.index)
