"""Products as products of matrices: what a GPU's blocks cut into tiles, whatever the axes were.

In: a computation. Out: an equal one in which each large enough sum of products is four stages, and their names.
Not its business: how large tiles are (``block_tiles``), what computes them (``products``, ``matrix_units``),
factors whose terms lie apart in memory (``by_terms``).

Before: ``Y[b, c, h, w] = sum over i, r, s of W[c, i, r, s] * X[b, i, h + r, w + s]``. After::

    A[m, k] = X[..] where m < M and k < K, else 0      m = (b, h, w), k = (i, r, s)
    B[k, n] = W[..] where k < K and n < N, else 0      n = c
    T[m, n] = sum over k of A[m, k] * B[k, n]          over whole tiles
    Y[..]   = T[m, n]                                  with what the one plain stage makes of it that reads it

``A`` and ``B`` exist a tile at a time, in shared memory, so that nothing is laid out before (an implicit product).
Factors of 16 bits that are widened to be multiplied stay as they are: matrix units widen them. Axes that both factors
have are batches. Not when: an axis is in neither factor; rows, columns or sums are few; an inner
axis of a group has a size that is known at run time only, which would have to be divided by.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from tilewright.choose.strategies.gpu.block_tiles import Extents, ThreadTile, WarpTile, tiles_of
from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    IndexLike,
    Inside,
    Load,
    Reduction,
    Select,
    Stage,
    Value,
    buffers_of_value,
    loads,
    loop_symbol,
    rewrite_value,
    stages_alone,
    substitute_index,
    substitute_value,
    symbols_of_value,
    syms,
)
from tilewright.core.dims import is_known, known_over
from tilewright.core.expr import Dim, Sym, ceildiv, floordiv, mod, symbols
from tilewright.core.indices import chosen
from tilewright.core.types import product
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import SUMS, MatrixShape
from tilewright.tile.affine import stride_along


@dataclass(frozen=True)
class Product:
    """The names of one product's stages: factors, sums, what is made of those; and the buffer it is ``of``."""

    of: str
    left: str
    right: str
    sums: str
    root: str
    tile: ThreadTile | WarpTile

    @property
    def stages(self) -> tuple[str, ...]:
        """All of them."""
        return self.left, self.right, self.sums, self.root


def as_products(
    computation: Computation, gpu: Gpu, apart: Container[str] = (), refused: Mapping[str, int] = MappingProxyType({})
) -> tuple[Computation, list[Product]]:
    """The computation with its products spelled as those of matrices; stages ``apart``, by name, stay as they are.

    So many of the tiles for the sums that a stage makes, best first, were ``refused``; where all were, it stays too.
    """
    stages = stages_alone(computation)
    if stages is None:
        return computation, []
    found: list[Product] = []
    temps, taken = list(computation.temps), set[int]()
    made: list[Stage] = []
    for s in stages:
        if id(s) in taken:
            continue
        parts = factors_of(s, gpu) if s.out.name not in apart else None
        tiles = tiles_of(gpu, s.out.dtype, parts.unit(gpu), parts.extents) if parts is not None else []
        tiles = tiles[refused.get(s.out.name, 0) :]
        if parts is None or not tiles:
            made.append(s)
            continue
        tile = tiles[0]
        epilogue = epilogue_of(s, stages, computation)
        if epilogue is not None:
            taken.add(id(epilogue))
            temps.remove(s.out)
        split = _Split(s, parts, tile, gpu)
        made += [split.left, split.right, split.sums, split.root(epilogue)]
        temps += [x.out for x in (split.left, split.right, split.sums)]
        names = [x.out.name for x in made[-4:]]
        found.append(Product(s.out.name, names[0], names[1], names[2], names[3], tile))
    return replace(computation, items=tuple(made), temps=tuple(temps)), found


@dataclass(frozen=True)
class Factors:
    """A product's two factors, and its axes by which of them has them."""

    left: Value
    right: Value
    batches: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    terms: tuple[Axis, ...]

    @property
    def extents(self) -> Extents:
        """How many there are of each."""
        groups = (self.batches, self.rows, self.columns, self.terms)
        batches, rows, columns, terms = (product([a.extent for a in axes]) for axes in groups)
        held = sum(product(b.shape) for b in buffers_of_value(self.left))
        read = batches * rows * terms
        repeats = max(read // held, 1) if is_known(read) and known_over(held, 0) else 1
        return Extents(batches, rows, columns, terms, repeats)

    def unit(self, gpu: Gpu) -> MatrixShape | None:
        """The instruction of a matrix unit that multiplies such factors: those that were widened to be multiplied."""
        match self.left, self.right:
            case Cast(a=left, dtype=types.f32), Cast(a=right, dtype=types.f32) if left.dtype is right.dtype:
                return next((x for x in gpu.shapes if x.dtype is left.dtype), None)
        return None


def factors_of(s: Stage, gpu: Gpu) -> Factors | None:
    """The factors of a stage that is such a sum of products; None where it is none, or tiles would share too little."""
    found = any_factors_of(s)
    if found is None or not found.rows:
        return None
    is_shared = all(map(_is_long, (found.rows, found.columns, found.terms)))
    return found if is_shared or (_is_long(found.rows) and _is_through_windows(found, gpu)) else None


def any_factors_of(s: Stage) -> Factors | None:
    """The factors of a stage that is a sum of products, of however few rows, or of a vector; None where it is none."""
    red = s.reduction
    if red is None or red.op != "add" or s.update is not None or chosen(s.index) or not s.axes or not red.axes:
        return None
    if not isinstance(s.expr, Binary) or s.expr.op != "mul":
        return None
    own = {a.sym for a in (*s.axes, *red.axes)}
    if any(symbols(a.extent) & own for a in (*s.axes, *red.axes)):
        return None
    left, right = s.expr.a, s.expr.b
    if s.axes[-1].sym in symbols_of_value(left) - symbols_of_value(right):
        left, right = right, left  # columns lie along the result's memory
    of_left, of_right = symbols_of_value(left), symbols_of_value(right)
    batches = tuple(a for a in s.axes if a.sym in of_left & of_right)
    rows = tuple(a for a in s.axes if a.sym in of_left - of_right)
    columns = tuple(a for a in s.axes if a.sym in of_right - of_left)
    is_apart = len(batches) + len(rows) + len(columns) == len(s.axes)
    shared = {a.sym for a in red.axes}
    if not is_apart or not shared & of_left or not shared & of_right:
        return None
    is_grouped = (not rows or _is_group(rows)) and _is_group(columns) and _is_group(red.axes)
    return Factors(left, right, batches, rows, columns, red.axes) if is_grouped else None


def _is_group(axes: Sequence[Axis]) -> bool:
    """Can the axes become one?"""
    return bool(axes) and all(known_over(a.extent, 0) for a in axes[1:])


def _is_long(axes: Sequence[Axis]) -> bool:
    """Are they as many as the rows of a matrix instruction? Of fewer a tile shares too little."""
    inner = prod(a.extent for a in axes[1:] if is_known(a.extent))
    return not axes or not is_known(axes[0].extent) or axes[0].extent * inner >= SUMS.rows


def _is_through_windows(found: Factors, gpu: Gpu) -> bool:
    """Do matrix units multiply rows whose terms are not one run of memory, as those of windows of an image?

    However few the columns are, a tile brings such rows by whole accesses; threads of their own would read them across.
    Of several batches, as the groups of a convolution, neighbours in memory are other batches', and few are a tile's.
    """
    is_window = not found.batches and len(found.terms) > 1 and _is_long(found.terms)
    return is_window and found.unit(gpu) is not None


def epilogue_of(s: Stage, stages: Sequence[Stage], computation: Computation) -> Stage | None:
    """The one plain stage that reads a product's temporary, at its own points, and may move to where the product is."""
    r = plain_reader_of(s, stages, computation)
    if r is None:
        return None
    between = stages[stages.index(s) + 1 : stages.index(r)]
    made = {b for x in between for b in x.outs}
    return None if made & set().union(*map(buffers_of_value, r.values)) else r


def plain_reader_of(s: Stage, stages: Sequence[Stage], computation: Computation) -> Stage | None:
    """The one plain stage that reads a temporary, at its own points."""
    readers = [x for x in stages if any(s.out in buffers_of_value(v) for v in x.values)]
    if s.out not in computation.temps or len(readers) != 1 or axes_at(s, s.index) != syms(s.axes):
        return None
    (r,) = readers
    at = list(dict.fromkeys(x.index for x in loads(r.expr) if x.buffer is s.out))
    own = syms(r.axes)
    is_plain = r.reduction is None and r.update is None and not chosen(r.index) and len(at) == 1
    index = axes_at(s, at[0]) if len(at) == 1 else None
    is_same = index is not None and len(own) == len(s.axes) and set(index) == set(own) and len(index) == len(own)
    return r if is_plain and is_same else None


def axes_at(s: Stage, index: Sequence[IndexLike]) -> tuple[IndexLike, ...] | None:
    """An index of what a stage makes without the places that have one element; None where another place is fixed."""
    inside = [(i, n) for i, n in zip(index, s.out.shape, strict=True) if n != 1 or i != 0]
    return tuple(i for i, _ in inside) if all(isinstance(i, Sym) for i, _ in inside) else None


class _Split:
    """The stages of one product."""

    def __init__(self, s: Stage, parts: Factors, tile: ThreadTile | WarpTile, gpu: Gpu) -> None:
        assert s.reduction is not None
        self.s, self.parts = s, parts
        self.batches = parts.batches
        run = gpu.access_bytes // (tile.shape.dtype.n_bytes if isinstance(tile, WarpTile) else tile.n_bytes)
        self.m = group_of("m", parts.rows, tile.rows, run)
        self.n = group_of("n", parts.columns, tile.columns, run)
        is_stepped = isinstance(tile, WarpTile) and _is_stepped(parts.terms, tile.depth)
        self.k = _steps(parts.terms, tile.depth) if is_stepped else group_of("k", parts.terms, tile.depth, run)
        # A matrix unit takes narrow factors as they are, and shared memory holds twice as many of them.
        left, right = (unwidened(x) if isinstance(tile, WarpTile) else x for x in (parts.left, parts.right))
        of_left, of_right = (self.m, self.k), (self.k, self.n)
        if isinstance(tile, WarpTile):
            of_left, of_right = by_memory(left, *of_left), by_memory(right, *of_right)
        self.left = factor_stage(s.out, "a", left, self.batches, of_left)
        self.right = factor_stage(s.out, "b", right, self.batches, of_right)
        groups = (self.m, self.n, self.k)
        self.sums = sums_stage(s.out, self.batches, groups, (self.left, self.right), s.reduction.init)

    def root(self, epilogue: Stage | None) -> Stage:
        """What is made of the sums, over the matrix's points."""
        axes = (*self.batches, self.m.whole, self.n.whole)
        digits: dict[Sym, Dim] = {**self.m.digits, **self.n.digits}
        return root_of(self.s, epilogue, Load(self.sums.out, syms(axes)), axes, digits)


def unwidened(factor: Value) -> Value:
    """A factor of a matrix unit before it is widened, which the unit does itself."""
    assert isinstance(factor, Cast)
    return factor.a


def by_memory(value: Value, first: AxisGroup, second: AxisGroup) -> tuple[AxisGroup, AxisGroup]:
    """The groups in this order, or in the other one where neighbours in memory are those of the first alone."""
    is_turned = lies_along(value, first.axes) and not lies_along(value, second.axes)
    return (second, first) if is_turned else (first, second)


def factor_stage(of: Buffer, side: str, value: Value, outer: Sequence[Axis], groups: Sequence[AxisGroup]) -> Stage:
    """A factor of a product, one ``side`` of it, as a matrix of whole tiles by ``groups`` of axes: zero beyond."""
    axes = (*outer, *(a for g in groups for a in g.padded))
    guards = tuple(d for g in groups for d in g.guard)
    value = substitute_value(value, {k: v for g in groups for k, v in g.digits.items()})
    if guards:
        match value:
            case Select(cond=Inside(exprs=border), a=inner, b=Const(value=0)):  # zero outside of an image, too
                value = Select(Inside((*guards, *border)), inner, value.b)
            case _:
                value = Select(Inside(guards), value, Const(0, value.dtype))
    out = Buffer(f"{of.name}_{side}", value.dtype, tuple(a.extent for a in axes))
    return Stage((out,), axes, syms(axes), (value,))


def sums_stage(
    buffer: Buffer, outer: Sequence[Axis], groups: tuple[AxisGroup, AxisGroup, AxisGroup], factors: Sequence[Stage],
    start: tuple[Value, ...],
) -> Stage:  # fmt: skip
    """The sums of a product over whole tiles, by groups of rows, columns and terms; factors are widened to them."""
    m, n, k = groups
    axes = (*outer, *m.padded, *n.padded)
    read = (Load(x.out, x.index) for x in factors)
    left, right = (x if x.dtype is buffer.dtype else Cast(x, buffer.dtype) for x in read)
    out = Buffer(f"{buffer.name}_t", buffer.dtype, tuple(a.extent for a in axes))
    reduction = Reduction(k.padded, "add", start)
    return Stage((out,), axes, syms(axes), (Binary("mul", left, right),), reduction)


def root_of(s: Stage, epilogue: Stage | None, sums: Value, axes: tuple[Axis, ...], digits: Mapping[Sym, Dim]) -> Stage:
    """The stage that makes of a product's ``sums`` what ``s`` and its epilogue do, with ``digits`` in place of axes."""
    if epilogue is None:
        return Stage(s.outs, axes, tuple(substitute_index(i, digits) for i in s.index), (sums,))
    (index,) = {x.index for x in loads(epilogue.expr) if x.buffer is s.out}
    places = axes_at(s, index) or ()
    own = {i: digits.get(a.sym, a.sym) for i, a in zip(places, s.axes, strict=True) if isinstance(i, Sym)}
    value = rewrite_value(epilogue.expr, lambda x: sums if isinstance(x, Load) and x.buffer is s.out else None, own)
    return Stage(epilogue.outs, axes, tuple(substitute_index(i, own) for i in epilogue.index), (value,))


@dataclass(frozen=True)
class AxisGroup:
    """Several axes as one: the axis in full, the one in whole tiles, and the axes that there were as its digits.

    Terms may be two axes in place of one in whole tiles (:func:`_steps`). ``guard`` is what is not negative inside.
    """

    axes: Sequence[Axis]
    whole: Axis
    padded: tuple[Axis, ...]
    guard: tuple[Dim, ...]
    digits: Mapping[Sym, Dim]


def group_of(name: str, axes: Sequence[Axis], multiple: int, run: int) -> AxisGroup:
    """The axes as one, in tiles of ``multiple``; ``run`` elements are copied at one time."""
    n = product([a.extent for a in axes])
    rounded = ceildiv(n, multiple) * multiple
    sym = loop_symbol(f"{name}_", rounded)
    guard: tuple[Dim, ...] = () if rounded == n else (rest_of(sym, n, run),)
    return AxisGroup(axes, Axis(sym, n), (Axis(sym, rounded),), guard, digits_of(sym, axes))


def _steps(axes: Sequence[Axis], depth: int) -> AxisGroup:
    """Terms as steps of ``depth`` neighbours, where the last axis is made of whole ones.

    All terms of a step have the other axes in common, as a convolution's tap: these are digits of the step's number,
    so that neighbours are known to be such, and nothing is divided within a step.
    """
    *outer, last = axes
    assert is_known(last.extent)
    chunk = Axis(loop_symbol("chunk", last.extent // depth), last.extent // depth)
    steps = [*outer, chunk]
    n = product([a.extent for a in steps])
    step, term = Axis(loop_symbol("k_", n), n), Axis(loop_symbol("k_i", depth), depth)
    digits = digits_of(step.sym, steps)
    digits[last.sym] = depth * digits.pop(chunk.sym) + term.sym
    return AxisGroup(axes, step, (step, term), (), digits)


def _is_stepped(axes: Sequence[Axis], depth: int) -> bool:
    """Are there several axes of terms, of which the last has whole steps of ``depth``?"""
    return len(axes) > 1 and is_known(axes[-1].extent) and axes[-1].extent % depth == 0


def rest_of(number: Dim, n: Dim, run: int) -> Dim:
    """What is not negative where a number is below ``n``; the same for all of a run, where there are whole ones."""
    while mod(n, run) != 0:
        run //= 2
    return floordiv(n, run) - 1 - floordiv(number, run)


def digits_of(number: Dim, axes: Sequence[Axis]) -> dict[Sym, Dim]:
    """The axes by the number that counts through them, the last one fastest."""
    found, stride = dict[Sym, Dim](), 1
    for a in reversed(axes[1:]):
        assert is_known(a.extent)
        found[a.sym] = mod(floordiv(number, stride), a.extent)
        stride *= a.extent
    return {**found, axes[0].sym: floordiv(number, stride)}


def lies_along(value: Value, axes: Sequence[Axis]) -> bool:
    """Do neighbours of the last axis lie side by side wherever the value is read?"""
    found = list(loads(value))
    return bool(found) and all(stride_along(x.buffer, x.index, axes[-1].sym) == 1 for x in found)
