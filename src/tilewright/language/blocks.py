"""Programs over blocks, in the manner of Triton: ``for pid in tl.programs(n): ...`` with loads, stores and folds.

In: what a kernel's function says between ``programs`` and its end. Out: stages of the kernel that is traced.
Not its business: operations of lanes (``lanes``), joining programs and lanes to loops (``places``), loops that carry
blocks (``carried``).

The body runs once, by Python. Its programs are loops of every stage that it makes: a fold's result is a tensor with
an element for each program and lane, and a store is a stage over the elements that it writes. So no program may
depend on another one, and what a store writes is proved to be another place in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Const,
    Inside,
    Load,
    Reduction,
    Select,
    Stage,
    Value,
    loads,
    substitute_value,
    syms,
)
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, Sym, ceildiv, symbols
from tilewright.core.types import DType
from tilewright.language.errors import assigned, here, refused
from tilewright.language.lanes import BlockValue, Shape, block, broadcast, constant_size, lane_places, lane_symbols
from tilewright.language.narrow import narrowed
from tilewright.language.places import (
    Joined,
    dims_of,
    limit_of,
    moved,
    moved_dims,
    partner,
    shortened,
    simplified,
    smaller,
)
from tilewright.language.trace import Item, Tensor, Trace, tracing
from tilewright.language.trace import full as whole_tensor
from tilewright.language.values import (
    Element,
    IndexExpr,
    Scalar,
    Whole,
    checked_condition,
    checked_dtype,
    dim_of,
    element,
)
from tilewright.tile.affine import coefficient
from tilewright.tile.schedule.partials import identity_of


@dataclass
class OpenGrid:
    """The programs that are open.

    ``axes`` are the programs and the loops whose iterations don't depend on each other; ``carrying`` counts the open
    loops whose iterations do. ``folds`` has the axes and the value of each block that is a fold, as they were said.
    """

    trace: Trace
    axes: list[Axis]
    carrying: int = 0
    stores: dict[Buffer, tuple[tuple[Dim, ...], Loc]] = field(default_factory=dict)
    reads: dict[Buffer, Loc] = field(default_factory=dict)
    whole: set[Buffer] = field(default_factory=set)
    folds: dict[Buffer, tuple[list[Axis], Value]] = field(default_factory=dict)

    @property
    def at(self) -> tuple[Sym, ...]:
        return syms(self.axes)


_OPEN: ContextVar[OpenGrid | None] = ContextVar("programs that are open", default=None)


def open_grid(word: str) -> OpenGrid:
    """The programs that are open; ``KernelError`` where none are."""
    tracing(word)
    found = _OPEN.get()
    if found is None:
        raise refused(f"{word} stands outside of programs", "write for pid in tl.programs(n): ... around it")
    return found


def programs(*extents: Whole) -> Iterator[Any]:
    """Programs of a grid, which may run in any order and at one time; the variables are the program's ids.

    >>> for pid in tl.programs(tl.cdiv(n, BLOCK)):
    ...     at = pid * BLOCK + tl.arange(0, BLOCK)
    ...     tl.store(y, at, 2 * tl.load(x, at, mask=at < n), mask=at < n)
    """
    found, at = tracing("programs"), here()
    if found.loops or found.depth or _OPEN.get() is not None or not extents:
        raise refused("programs within a loop or of no size", "let them stand alone: for pid in tl.programs(n)")
    names = [*assigned(), *(f"pid{k}" for k in range(len(extents)))]
    axes = [found.axis(name, found.counted(dim_of(e))) for name, e in zip(names, extents, strict=False)]
    grid = OpenGrid(found, axes)
    token = _OPEN.set(grid)
    found.programs += axes
    found.scopes.append([])
    is_whole = False
    # A generator that is left before its end is closed by Python, which tells nobody: ``trace`` raises what is noted.
    try:
        ids = tuple(BlockValue((), IndexExpr(a.sym)) for a in axes)
        yield ids[0] if len(ids) == 1 else ids
        is_whole = True
    finally:
        if not is_whole and found.left is None:
            found.left = at
        _OPEN.reset(token)
        found.programs.clear()
        body = found.scopes.pop()
        if is_whole:
            _drop_starts(found, grid)
            _take(found, body)


def _take(found: Trace, body: Sequence[Item]) -> None:
    """The programs' stages as ones of the kernel, with blocks no larger than needed."""
    items, others = narrowed(body, found.temps)
    for before, after in others.items():
        found.temps[before.name] = after
        found.lines.setdefault(after, found.lines[before])
    for old, new in zip(body, items, strict=True):
        if old in found.lines:
            found.lines.setdefault(new, found.lines[old])
    found.scopes[-1] += items


def _drop_starts(found: Trace, grid: OpenGrid) -> None:
    """Leave out what fills a tensor that the programs write as a whole, and that nobody has read."""
    for b in grid.whole:
        outer = found.scopes[-1]
        writers = [x for x in outer if isinstance(x, Stage) and b in x.outs]
        read = any(b in {x.buffer for v in s.values for x in loads(v)} for s in outer if isinstance(s, Stage))
        if (
            len(writers) == 1
            and isinstance(writers[0].expr, Const)
            and not read
            and len(outer) == len([x for x in outer if isinstance(x, Stage)])
        ):
            outer.remove(writers[0])


def program_id(axis: int = 0) -> BlockValue:
    """The id of the program along an axis of the grid: the variable of ``tl.programs``."""
    found = open_grid("program_id").trace.programs
    if not 0 <= axis < len(found):
        raise refused(f"program_id({axis!r}) of a grid of {len(found)} axes", "count axes from 0")
    return BlockValue((), IndexExpr(found[axis].sym))


def cdiv(a: Whole, b: Any) -> Any:
    """``a / b`` rounded up: how many blocks of ``b`` cover ``a`` elements."""
    if not isinstance(b, int) or b < 1:
        raise refused(f"cdiv by {b!r:.80}", "divide by a block's size, a Python integer")
    made = ceildiv(dim_of(a), b)
    return made if isinstance(made, int) else IndexExpr(made)


def arange(first: int, end: int) -> BlockValue:
    """The block ``first .. end - 1``; both are constants."""
    open_grid("arange")
    n = constant_size(end - first)
    return BlockValue((n,), IndexExpr(lane_symbols((n,))[0] + first) if n > 1 else first)


def filled(shape: Any, value: Scalar, dtype: DType) -> BlockValue:
    """A block of one number, which ``tl.zeros`` and ``tl.full`` are within programs."""
    sizes = tuple(constant_size(n) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
    return BlockValue(sizes, element(value, checked_dtype(dtype)))


# --- memory ---------------------------------------------------------------------------------------------------------


def load(tensor: Tensor, index: Any, mask: Any = None, other: Any = None) -> BlockValue:
    """The elements of a tensor at a block of indices; lanes that the mask leaves out are ``other``, by itself 0.

    >>> row = tl.load(x, (pid, columns), mask=columns < n, other=-inf)
    """
    grid = open_grid("load")
    buffer, parts, shape = _place(tensor, index)
    if buffer in grid.stores:
        raise _both_ways(buffer, grid.stores[buffer][1])
    grid.reads.setdefault(buffer, here())
    found = Load(buffer, parts)
    grid.trace.lines.setdefault(found, here())
    made = BlockValue(shape, Element(found))
    if mask is None:
        if other is not None:
            raise refused("other= without a mask", "say which lanes are read: mask=at < n")
        return made
    masked = _masked(mask, shape)
    instead = block(0 if other is None else other)
    value = element(instead.scalar, buffer.dtype).value
    if value.dtype is not buffer.dtype:
        raise refused(f"other is {value.dtype}, and {buffer.name} is {buffer.dtype}", "convert it: .cast")
    return BlockValue(broadcast("other", shape, instead.shape), Element(Select(masked, found, value)))


def _both_ways(buffer: Buffer, stored: Loc) -> Exception:
    rule = f"{buffer.name} is loaded by programs that also store to it, at {stored}"
    return refused(rule, "store to another tensor: no program may depend on what another one stores")


def _place(tensor: Any, index: Any) -> tuple[Buffer, tuple[Dim, ...], Shape]:
    if not isinstance(tensor, Tensor):
        raise refused(f"{tensor!r:.80} is no tensor", "load and store take a tensor and its indices: (x, (i, j))")
    parts = [block(p) for p in (index if isinstance(index, tuple) else (index,))]
    if len(parts) != len(tensor.buffer.shape):
        raise refused(f"{tensor.buffer.name} has {len(tensor.buffer.shape)} dimensions, not {len(parts)}")
    shape: Shape = ()
    for p in parts:
        shape = broadcast("indices", shape, p.shape)
    return tensor.buffer, tuple(p.dim for p in parts), shape


def _masked(mask: Any, shape: Shape) -> Value:
    found = block(mask)
    if broadcast("a mask and indices", found.shape, shape) != shape:
        raise refused(f"a mask of {found.shape} for indices of {shape}", "let it be of the indices' shape")
    return checked_condition(element(found.scalar))


def store(tensor: Tensor, index: Any, value: Any, mask: Any = None) -> None:
    """Write a block to a tensor that the kernel made; lanes that the mask leaves out are not written.

    Each program has to write other elements: ``program * BLOCK + lane`` along a dimension, a program's id, or a lane.
    """
    grid = open_grid("store")
    buffer, parts, shape = _place(tensor, index)
    if tensor.is_given:
        remedy = f"write to a tensor of the kernel's own: tl.zeros({buffer.name}.shape), and return it"
        raise refused(f"{buffer.name} is an argument", remedy)
    if grid.carrying:
        raise refused("a store in a loop that carries blocks", "store after the loop, or in another loop")
    if buffer in grid.reads:
        raise refused(
            f"{buffer.name} is stored to by programs that also load it, at {grid.reads[buffer]}",
            "store to another tensor: no program may depend on what another one stores",
        )
    given = block(value)
    if broadcast("a value and indices", given.shape, shape) != shape:
        raise refused(f"a value of {given.shape} for indices of {shape}", "let it be of the indices' shape")
    made = element(given.scalar, buffer.dtype).value
    if made.dtype is not buffer.dtype:
        raise refused(f"{made.dtype} into {buffer.name}, which is {buffer.dtype}", "convert: .cast")
    before = grid.stores.setdefault(buffer, (parts, here()))
    if before[0] != parts:
        rule = f"two stores to {buffer.name}, at {before[1]} and here, may meet in different programs"
        raise refused(rule, "let both have the same index, or write two tensors")
    _emit_store(grid, buffer, parts, made, () if mask is None else tuple(_conditions(_masked(mask, shape))), shape)


def _conditions(mask: Value) -> Iterator[Value]:
    """The conditions that a mask joins, those on indices one by one."""
    if isinstance(mask, Inside):
        yield from (Inside((e,)) for e in mask.exprs)
    elif isinstance(mask, Binary) and mask.op == "and":
        yield from _conditions(mask.a)
        yield from _conditions(mask.b)
    else:
        yield mask


def _emit_store(
    grid: OpenGrid, buffer: Buffer, parts: Sequence[Dim], value: Value, masks: Sequence[Value], shape: Shape
) -> None:
    """A stage over the elements that all programs write."""
    lanes = [Axis(s, n) for s, n in zip(lane_symbols(shape), shape, strict=True) if n > 1]
    loops = [*grid.axes, *lanes]
    joined = Joined([])
    limits = [e for m in masks if isinstance(m, Inside) for e in m.exprs]
    dims = [e for v in (value, *masks) for e in dims_of(v)]
    for part in parts:
        _add_place(grid, joined, part, loops, buffer, dims)
    # what no dimension of the index follows would be written several times
    unused = [a for a in loops if a.sym not in joined.to and a not in joined.axes]
    for a in unused:
        if a.extent != 1:
            what = "lanes of a block" if a in lanes else f"iterations 0 and 1 of {a.sym.name}"
            rule = f"{what} store to the same place of {buffer.name}, {buffer.name}[{', '.join(map(str, parts))}]"
            raise refused(rule, "let every program's id and every lane be in the index")
        joined.to[a.sym] = 0
    index = moved_dims(parts, joined.to)
    limits = list(moved_dims(limits, joined.to))
    axes = tuple(_limited(a, limits, joined.axes, k, loops) for k, a in enumerate(joined.axes))
    extents = {a.sym: a.extent for a in axes}
    made = with_lines(grid.trace, value, joined.to)
    left: Value | None = None
    # masks of indices are limits of the loops by now; what is left is asked of every element
    for m in masks:
        kept = simplified(moved(m, joined.to), extents)
        if not (isinstance(kept, Inside) and not kept.exprs):
            left = kept if left is None else Binary("and", left, kept)
    if left is not None:
        made = Select(left, made, Load(buffer, index))
    elif set(index) == {a.sym for a in axes} and [extents[i] for i in index if isinstance(i, Sym)] == [*buffer.shape]:
        grid.whole.add(buffer)
    made = simplified(made, extents)
    grid.trace.check([*index, made], axes)
    stage = Stage((buffer,), axes, index, (made,))
    grid.trace.lines.setdefault(stage, here())
    grid.trace.emit(stage)


def with_lines(trace: Trace, v: Value, to: dict[Sym, Dim]) -> Value:
    """The value with symbols replaced; accesses keep the lines that they were written in."""
    for x in loads(v):
        if x in trace.lines:
            trace.lines.setdefault(moved(x, to), trace.lines[x])
    return moved(v, to)


def _add_place(
    grid: OpenGrid, joined: Joined, part: Dim, loops: Sequence[Axis], buffer: Buffer, dims: Sequence[Dim]
) -> None:
    """The axes of one dimension of what a store writes; ``dims`` are the expressions of what it writes there."""
    own = [a for a in loops if a.sym in symbols(part)]
    if any(a in joined.axes or a.sym in joined.to for a in own):
        own = [] if len(own) == 1 else [*own, *own]
    steps = [coefficient(part, a.sym) for a in own]
    if len(own) == 1 and steps == [1]:
        joined.axes.append(own[0])
    elif len(own) == 2 and steps[1] == 1 and steps[0] == own[1].extent:
        if partner(own[1], own[:1], [part, *dims]) is None:
            joined.axes += own
            return
        joined.axes.append(own[0])
        joined.join(own[0], own[1], grid.trace.axis(own[0].sym.name, own[0].extent * own[1].extent))
    elif own:
        rule = f"nothing proves that programs store to different places: index {part} of {buffer.name}"
        raise refused(rule, "write pid * BLOCK + tl.arange(0, BLOCK), with one number for both")


def _limited(a: Axis, limits: Sequence[Dim], axes: Sequence[Axis], k: int, loops: Sequence[Axis]) -> Axis:
    """The axis ``k`` of a store without the iterations that the mask leaves out; those within don't limit it."""
    others = [x.sym for x in axes[k:]]
    blocks = [x.extent for x in loops if isinstance(x.extent, int)]
    for e in limits:
        if (limit := limit_of(e, a.sym, others)) is not None:
            size = next((n for n in blocks if a.extent == ceildiv(limit, n) * n), 1)
            a = Axis(a.sym, smaller(a.extent, limit, size, axes[:k]))
    return a


# --- folds ----------------------------------------------------------------------------------------------------------


def folded(op: str, x: BlockValue, axis: Any) -> BlockValue:
    """A block folded along an axis, or along all of them."""
    n = len(x.shape)
    if axis is not None and (not isinstance(axis, int) or not -n <= axis < n):
        raise refused(f"axis {axis!r} of a block of {x.shape}", f"axes are 0 to {n - 1}")
    gone = set(range(n)) if axis is None else {axis % n}
    lanes = [Axis(s, size) for s, size in zip(lane_symbols(x.shape), x.shape, strict=True)]
    kept = [a for d, a in enumerate(lanes) if d not in gone]
    made = emit_fold(open_grid("a fold"), op, x.value, kept, [a for d, a in enumerate(lanes) if d in gone])
    shape = tuple(size for d, size in enumerate(x.shape) if d not in gone)
    return _renamed(made, kept, shape)


def _renamed(v: Value, lanes: Sequence[Axis], shape: Shape) -> BlockValue:
    to = {a.sym: s for a, s in zip(lanes, lane_places(shape), strict=True)}
    return BlockValue(shape, Element(substitute_value(v, to)))


def emit_fold(grid: OpenGrid, op: str, v: Value, lanes: Sequence[Axis], gone: Sequence[Axis]) -> Value:
    """Fold ``v``, of programs and ``lanes``, over the axes ``gone``; the value that reads the result at each lane."""
    found = grid.trace
    # Lanes of one block have equal names in all stages; a stage's own have none that another has.
    fresh = {a.sym: found.axis("lane", a.extent) for a in (*lanes, *gone)}
    names: dict[Sym, Dim] = {s: a.sym for s, a in fresh.items()}
    v = with_lines(found, v, names)
    dims = list(dims_of(v))
    own = Joined([*grid.axes, *(fresh[a.sym] for a in lanes)])
    index: dict[Axis, Dim] = {a: a.sym for a in grid.axes}
    for lane in lanes:
        a = fresh[lane.sym]
        outer = partner(a, [x for x in grid.axes if x in own.axes], dims)
        index[a] = lane.sym
        if outer is not None:
            joint = found.axis(outer.sym.name, outer.extent * a.extent)
            own.join(outer, a, joint)
            index[joint] = outer.sym * lane.extent + lane.sym
    said = [fresh[a.sym] for a in gone], with_lines(found, v, own.to)
    folds, made = join_folds(found, *said, own.axes, op)
    found.check([made], [*own.axes, *folds])
    out = found.temp("block", made.dtype, tuple(a.extent for a in own.axes))
    reduction = Reduction(tuple(folds), op, (identity_of(op, made.dtype),))
    stage = Stage((out,), tuple(own.axes), syms(own.axes), (made,), reduction)
    found.lines.setdefault(stage, here())
    found.emit(stage)
    grid.folds[out] = said
    return Load(out, tuple(index[a] for a in own.axes))


def join_folds(
    found: Trace, axes: Sequence[Axis], v: Value, around: Sequence[Axis], op: str
) -> tuple[list[Axis], Value]:
    """The axes of a fold, joined and without what masks leave out, and the value over them."""
    dims, inner = list(dims_of(v)), Joined([*axes])
    for a in axes:
        outer = partner(a, [x for x in inner.axes if x != a], dims) if a in inner.axes else None
        if outer is not None:
            inner.join(outer, a, found.axis(outer.sym.name, outer.extent * a.extent))
    made = with_lines(found, v, inner.to)
    folds, sizes = list(inner.axes), {a.extent for a in axes if isinstance(a.extent, int)}
    for k, _ in enumerate(folds):
        for size in sizes:
            others = [x for x in (*around, *folds) if x.sym != folds[k].sym]
            folds[k] = shortened(folds[k], made, identity_of(op, made.dtype), others, size, found.loops)
    return folds, simplified(made, {a.sym: a.extent for a in (*around, *folds)})


def dot(a: Any, b: Any, acc: Any = None) -> BlockValue:
    """The product of blocks of ``(m, k)`` and ``(k, n)``, summed in ``f32`` where they are narrower floats.

    ``acc`` is added to it.
    """
    grid = open_grid("dot")
    if not isinstance(a, BlockValue) or not isinstance(b, BlockValue) or len(a.shape) != 2 or len(b.shape) != 2:
        raise refused("dot of what is no two blocks of two dimensions", "b[:, None] adds a dimension")
    (m, k), (k_b, n) = a.shape, b.shape
    if k != k_b:
        raise refused(
            f"dot of blocks of {a.shape} and {b.shape}", "let the first one's columns be the second one's rows"
        )
    if a.dtype is not b.dtype:
        raise refused(f"dot of {a.dtype} and {b.dtype}", "convert one of them: .cast")
    rows, columns, inner = (grid.trace.axis(x, size) for x, size in (("row", m), ("column", n), ("k", k)))
    (a_m, a_k), (b_k, b_n) = lane_symbols(a.shape), lane_symbols(b.shape)
    dtype = types.f32 if a.dtype.is_float and a.dtype.bits < 32 else a.dtype
    left = with_lines(grid.trace, a.value, {a_m: rows.sym, a_k: inner.sym})
    right = with_lines(grid.trace, b.value, {b_k: inner.sym, b_n: columns.sym})
    value = (Element(left).cast(dtype) * Element(right).cast(dtype)).value
    made = _renamed(emit_fold(grid, "add", value, [rows, columns], [inner]), [rows, columns], (m, n))
    return made if acc is None else acc + made


# --- what has another meaning within programs -----------------------------------------------------------------------


def full(shape: Any, value: float, dtype: DType = types.f32) -> Any:
    """A tensor that holds one number everywhere, to be written to; within programs a block."""
    return whole_tensor(shape, value, dtype) if _OPEN.get() is None else filled(shape, value, dtype)


def zeros(shape: Any, dtype: DType = types.f32) -> Any:
    """A tensor of zeros, to be written to; within programs a block."""
    return full(shape, 0, dtype)
