"""Ordering and selection: sort, top_k, argwhere, nonzero.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and kernel.
Not its business: argmax and argmin (``ops.reduce``).

Order: NaN is greater than every number and equal to NaN, -0.0 equals 0.0, and equal elements keep their order in both
directions. Elements are compared by integer keys; a key of up to 32 bits shares one i64 with its position (an axis has
at most 2**32 elements), so that keys are distinct and one comparison settles order and ties.

There are three algorithms, which all work for any size, also a symbolic one; which is the fastest for a size is asked
elsewhere (``graph.forms.ordering``). By ``digits``, a radix sort moves the elements once per byte of the key: of
100 000 f32 it took a fifteenth of the time of merging passes. By ``counting``, every element is compared with all
others. By ``selecting``, a ``top_k`` takes the least key ``k`` times, each time looking again at one block only, of
about the square root of ``n``. One element of a given rank is found bit by bit, by counting smaller keys (``ranked``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Index,
    Inside,
    Load,
    Reduction,
    Select,
    Serial,
    Stage,
    Unary,
    Value,
    axes_for,
    loop_symbol,
    syms,
)
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known, known
from tilewright.core.expr import Dim, Sym, ceildiv, mod
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.shapes import surely_negative
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import check_axis
from tilewright.ops.movement import transpose
from tilewright.ops.rules import Types, check_not_negative, check_same_dims
from tilewright.ops.stages import Items, as_i64, assign, clamped, copy_from, index_value, write

DIGITS, COUNTING, SELECTING = ALGORITHMS = ("digits", "counting", "selecting")
LEAST_BLOCK, LARGEST_BLOCK = 16, 128
DIGIT_BITS = 8
N_DIGITS = 1 << DIGIT_BITS
_MAX_BITS = 32  # positions take the low 32 bits of a packed key
_LOW = (1 << _MAX_BITS) - 1

Position = Callable[[Sequence[Dim], Dim], Value]


def _constant(n: int) -> Const:
    return Const(n, types.i64)


def _key(x: Value, descending: bool) -> Value:
    """An integer whose order is the order of the elements."""
    if x.dtype is types.bool_:
        x = Cast(x, types.u8)
    if x.dtype is types.u32:  # its high bit would become a packed key's sign
        x = Bitcast(Binary("xor", x, Const(1 << 31, types.u32)), types.i32)
    if x.dtype.is_float:
        x = _float_key(x if x.dtype in (types.f32, types.f64) else Cast(x, types.f32))
    return Unary("not", x) if descending else x


def _float_key(x: Value) -> Value:
    """The bits as an integer; those of negative numbers turned round, one zero, NaN above all."""
    integer = types.i32 if x.dtype is types.f32 else types.i64
    top = Const(integer.max, integer)
    zero = Const(0.0, x.dtype)
    bits = Bitcast(Select(Binary("eq", x, zero), zero, x), integer)
    sign = Binary("shr", bits, Const(integer.bits - 1, integer))
    return Select(Unary("isnan", x), top, Binary("xor", bits, Binary("and", sign, top)))


def _is_packed(dtype: types.DType) -> bool:
    """Keys of up to 32 bits share an i64 with their position: no two are equal, and one number moves, not two."""
    return dtype.n_bytes <= 4


def _with_position(key: Value, i: Value) -> Value:
    """A key of up to 32 bits and a position as one i64."""
    return Binary("or", Binary("shl", as_i64(key), _constant(_MAX_BITS)), i)


def _unpacked(key: Value) -> Value:
    """The position in a packed key."""
    return Binary("and", key, _constant(_LOW))


def _ref_order(x: Array, axis: int, descending: bool) -> Array:
    """The stable permutation along ``axis`` that sorts ``x``."""
    keys = x.astype(np.float64) if x.dtype.kind in "fV" else x
    if not descending:
        return np.argsort(keys, axis, kind="stable").astype(np.int64)
    backwards = np.argsort(np.flip(keys, axis), axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backwards, axis), np.int64)


# --- three algorithms: each gives the position of the element of every rank ------------------------------------------


def can_select(dtype: types.DType, k: Dim) -> bool:
    """Can so many elements be selected? The steps of a known number are a loop; keys share a number with positions."""
    return is_known(k) and _is_packed(dtype)


def _check_algorithm(t: TensorType, algorithm: str, k: Dim) -> None:
    if algorithm not in ALGORITHMS:
        raise OpError(f"algorithm {algorithm!r} is none of {', '.join(ALGORITHMS)}")
    if algorithm == SELECTING and not can_select(t.dtype, k):
        raise OpError(f"a known number of elements of at most 4 bytes are selected, not {k} of {t.dtype}")


def _ordered(x: Buffer, axis: int, descending: bool, prefix: str, algorithm: str, k: Dim) -> tuple[Items, Position]:
    """Stages after which ``position(row, rank)`` is where, along ``axis``, the element of a rank below ``k`` lies."""
    if algorithm == COUNTING:
        return _by_counting(x, axis, descending, prefix)
    if algorithm == SELECTING and is_known(k):
        return _by_selecting(x, axis, descending, prefix, k)
    return _by_digits(x, axis, descending, prefix)


def block_of(n: Dim) -> int:
    """Elements of a block, a power of two: with blocks as many as each has elements, a step looks at the fewest."""
    half = n.bit_length() // 2 if is_known(n) else 16
    return min(max(1 << half, LEAST_BLOCK), LARGEST_BLOCK)


def _rows(x: Buffer, axis: int) -> tuple[Dim, ...]:
    return _rows_of(x.shape, axis)


def _rows_of(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _at(row: Sequence[Dim], axis: int, i: Dim) -> tuple[Dim, ...]:
    return (*row[:axis], i, *row[axis:])


def _by_counting(x: Buffer, axis: int, descending: bool, prefix: str) -> tuple[Items, Position]:
    n, rows = x.shape[axis], _rows(x, axis)
    rank = Buffer(f"{prefix}_rank", types.i64, (*rows, n))
    order = Buffer(f"{prefix}_order", types.i64, (*rows, n))
    axes = axes_for((*rows, n))
    *row, i = syms(axes)
    j = Axis(loop_symbol("j", n), n)
    mine, other = (_key(Load(x, _at(row, axis, p)), descending) for p in (i, j.sym))
    tie = Binary("and", Binary("eq", other, mine), Binary("lt", Index(j.sym), Index(i)))
    counted = Cast(Binary("or", Binary("lt", other, mine), tie), types.i64)
    count = Stage((rank,), axes, (*row, i), (counted,), Reduction((j,), "add", (_constant(0),)))
    place = write(order, axes, (*row, Load(rank, (*row, i))), Index(i))
    return [count, place], lambda row, r: Load(order, (*row, r))


def _by_selecting(x: Buffer, axis: int, descending: bool, prefix: str, k: int) -> tuple[Items, Position]:
    """The least key of every block, then ``k`` times the least of those, whose block gets its next one.

    Keys are packed with positions for blocks and for the elements of one block only. Of a block that was not looked at
    yet the position is that of its first element: the order of blocks of equal keys is right, and its least element is
    the first that is not below. What fills the last block up is the last of all elements, behind equal ones.
    """
    n, rows = x.shape[axis], _rows(x, axis)
    size = block_of(n)
    n_blocks, to_block = ceildiv(n, size), _constant(size.bit_length() - 1)
    narrow = _key(Const(0, x.dtype), descending).dtype
    keys, lowest = Buffer(f"{prefix}_keys", narrow, (*rows, n_blocks, size)), Const(narrow.max, narrow)
    low = Buffer(f"{prefix}_low", narrow, (*rows, n_blocks))
    best = Buffer(f"{prefix}_best", types.i64, (*rows, n_blocks))
    bound, last, following = (Buffer(f"{prefix}_{name}", types.i64, rows) for name in ("bound", "last", "following"))
    order = Buffer(f"{prefix}_order", types.i64, (*rows, k))
    none = Const(types.i64.max, types.i64)
    e, g = Axis(loop_symbol("e", size), size), Axis(loop_symbol("g", n_blocks), n_blocks)

    def least(out: Buffer, of: Callable[[Sequence[Dim]], Value], over: Axis, start: Const) -> Stage:
        axes = axes_for(out.shape)
        return Stage((out,), axes, syms(axes), (of(syms(axes)),), Reduction((over,), "min", (start,)))

    def key_at(at: Sequence[Dim]) -> Value:
        i = at[-2] * size + at[-1]
        # Behind the last element stand the largest keys, which are never taken before one that is there.
        return Select(Inside((n - 1 - i,)), _key(Load(x, _at(at[:-2], axis, i)), descending), lowest)

    def behind(floor: Buffer, comparison: str) -> Callable[[Sequence[Dim]], Value]:
        """The packed keys of the block in question that are not below ``floor``, or above it."""

        def of(row: Sequence[Dim]) -> Value:
            start = Binary("shl", block(row), to_block)
            key = _with_position(Load(keys, (*row, block(row), e.sym)), Binary("add", start, Index(e.sym)))
            return Select(Binary(comparison, key, Load(floor, tuple(row))), key, none)

        return of

    def block(row: Sequence[Dim]) -> Value:
        return Binary("shr", _unpacked(Load(bound, tuple(row))), to_block)

    j = Axis(loop_symbol("j", k), k)
    axes = axes_for(rows)
    row = syms(axes)
    step = (
        # The block with the least key, its least element, and then what that block offers next.
        least(bound, lambda row: Load(best, (*row, g.sym)), g, none),
        least(last, behind(bound, "ge"), e, none),
        write(order, axes, (*row, j.sym), _unpacked(Load(last, row))),
        least(following, behind(last, "gt"), e, none),
        write(best, axes, (*row, block(row)), Load(following, row)),
    )
    items = [
        *assign(keys, key_at),
        least(low, lambda at: Load(keys, (*at, e.sym)), e, lowest),
        *assign(best, lambda at: _with_position(Load(low, tuple(at)), index_value(at[-1] * size))),
    ]
    return [*items, Serial(j, step)], lambda row, r: Load(order, (*row, r))


def _by_digits(x: Buffer, axis: int, descending: bool, prefix: str) -> tuple[Items, Position]:
    """Radix sort, row by row, the lowest digit first: count the digits, then move each element behind those before it.

    ``start[d]`` is where the next element with digit ``d`` goes.
    """
    n, rows = x.shape[axis], _rows(x, axis)
    key_type = _unsigned(_key(Const(0, x.dtype), descending)).dtype
    n_digits = key_type.bits // DIGIT_BITS
    keys = Buffer(f"{prefix}_keys", key_type, (2, n))
    moved = Buffer(f"{prefix}_moved", types.i64, (2, n))
    counts, start = (Buffer(f"{prefix}_{name}", types.i64, (N_DIGITS,)) for name in ("counts", "start"))
    order = Buffer(f"{prefix}_order", types.i64, (*rows, n))
    outer = axes_for(rows, "r")
    row = syms(outer)
    (each,), i = axes_for((n,)), axes_for((n,))[0].sym
    one = _constant(1)
    p = Axis(loop_symbol("p", n_digits), n_digits)
    d = Axis(loop_symbol("d", N_DIGITS - 1), N_DIGITS - 1)
    old, new = mod(p.sym, 2), mod(p.sym + 1, 2)
    shift = Cast(Index(p.sym * DIGIT_BITS), key_type)
    digit = as_i64(Binary("and", Binary("shr", Load(keys, (old, i)), shift), Const(N_DIGITS - 1, key_type)))
    # Where the digit's elements go next: it moves on with each, which keeps equal digits in their order.
    target = Load(start, (digit,))

    place = (
        write(keys, (), (new, target), Load(keys, (old, i))),
        write(moved, (), (new, target), Load(moved, (old, i))),
        Stage((start,), (), (digit,), (one,), update="add"),
    )
    move: tuple[Stage | Serial, ...] = (
        *assign(counts, lambda at: _constant(0)),
        Stage((counts,), (each,), (digit,), (one,), update="add"),
        write(start, (), (0,), _constant(0)),
        Serial(d, (write(start, (), (d.sym + 1,), start[d.sym] + counts[d.sym]),)),
        Serial(each, place),
    )
    items: tuple[Stage | Serial, ...] = (
        write(keys, (each,), (0, i), _unsigned(_key(Load(x, _at(row, axis, i)), descending))),
        write(moved, (each,), (0, i), Index(i)),
        Serial(p, move),
        write(order, (each,), (*row, i), Load(moved, (n_digits % 2, i))),
    )
    for r in reversed(outer):
        items = (Serial(r, items),)
    return list(items), lambda row, r: Load(order, (*row, r))


def _unsigned(key: Value) -> Value:
    """The same order in an unsigned integer of the same width."""
    if key.dtype.kind == "uint":
        return key
    unsigned = {8: types.u8, 16: types.u16, 32: types.u32, 64: types.u64}[key.dtype.bits]
    return Binary("xor", Bitcast(key, unsigned), Const(1 << (key.dtype.bits - 1), unsigned))


def _gather_ranks(x: Buffer, outs: tuple[Buffer, ...], axis: int, position: Position) -> Items:
    values, indices = outs

    def index(at: Sequence[Dim]) -> Value:
        return position((*at[:axis], *at[axis + 1 :]), at[axis])

    return [
        *copy_from(values, x, lambda at: (*at[:axis], index(at), *at[axis + 1 :])),
        *assign(indices, index),
    ]


# --- sort, top_k ----------------------------------------------------------------------------------------------------


def _infer_sort(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_axis(a.axis, ts[0].rank)
    _check_algorithm(ts[0], a.algorithm, ts[0].shape[a.axis])
    return ts[0], ts[0].with_dtype(types.i64)


def _ref_sort(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    order = _ref_order(xs[0], a.axis, a.descending)
    return np.take_along_axis(xs[0], order, a.axis), order


def _sort_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    items, position = _ordered(ins[0], a.axis, a.descending, outs[0].name, a.algorithm, ins[0].shape[a.axis])
    return items + _gather_ranks(ins[0], outs, a.axis, position)


def _with_specials(x: Array) -> Array:
    x.flat[: 2 * 4] = [np.nan, 1, -0.0, 0, np.inf, -np.inf, 1, np.nan]
    return x


def _sort_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = _with_specials(rng.standard_normal((3, 5)).astype(np.float32))
    for axis, descending in [(0, False), (1, True), (1, False)]:
        for algorithm in (COUNTING, DIGITS):
            yield Sample((x,), {"axis": axis, "descending": descending, "algorithm": algorithm})
    yield Sample((rng.integers(-3, 3, (2, 67, 2)),), {"axis": 1, "descending": True})
    yield Sample((_with_specials(rng.standard_normal(130).astype(np.float16)),), {"axis": 0})
    yield Sample((np.array([True, False, True]),), {"axis": 0, "descending": False})
    yield Sample((np.zeros((2, 0), np.float32),), {"axis": 1})


sort = OpDef(
    "sort",
    ("x",),
    {
        "axis": AttrDef("int"),
        "descending": AttrDef("bool", False),
        "stable": AttrDef("bool", True),
        "algorithm": AttrDef("str", DIGITS),
    },
    _infer_sort,
    _ref_sort,
    kernel=_sort_kernel,
    samples=_sort_samples,
    doc="Elements along an axis in order, and the positions that they came from. Always stable, whatever is asked. "
    "``algorithm``: digits, counting or selecting; the results are the same.",
)


def _infer_top_k(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_axis(a.axis, ts[0].rank)
    check_not_negative([a.k])
    shape = list(ts[0].shape)
    if surely_negative(shape[a.axis] - a.k):
        raise OpError(f"k = {a.k} is more than {ts[0]} has along axis {a.axis}")
    shape[a.axis] = a.k
    _check_algorithm(ts[0], a.algorithm, a.k)
    return ts[0].with_shape(shape), TensorType(types.i64, tuple(shape))


def _ref_top_k(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    order = np.take(_ref_order(xs[0], a.axis, a.largest), np.arange(a.k), a.axis)
    return np.take_along_axis(xs[0], order, a.axis), order


def _top_k_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    items, position = _ordered(ins[0], a.axis, a.largest, outs[0].name, a.algorithm, a.k)
    return items + _gather_ranks(ins[0], outs, a.axis, position)


def _top_k_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = _with_specials(rng.standard_normal((3, 5)).astype(np.float32))
    for k, axis, largest in [(2, 1, True), (3, 0, True), (1, 1, False), (0, 1, True), (5, 1, False)]:
        for algorithm in ALGORITHMS:
            yield Sample((x,), {"k": k, "axis": axis, "largest": largest, "algorithm": algorithm})
    yield Sample((rng.integers(0, 9, (2, 90)).astype(np.uint8),), {"k": 4, "axis": 1})
    yield Sample((np.zeros((0, 3), np.float32),), {"k": 2, "axis": 1})


top_k = OpDef(
    "top_k",
    ("x",),
    {
        "k": AttrDef("dim"),
        "axis": AttrDef("int"),
        "largest": AttrDef("bool", True),
        "sorted": AttrDef("bool", True),
        "algorithm": AttrDef("str", DIGITS),
    },
    _infer_top_k,
    _ref_top_k,
    kernel=_top_k_kernel,
    samples=_top_k_samples,
    doc="The first k elements along an axis in descending (largest) or ascending order, and their positions. Always "
    "sorted, whatever is asked; of equal elements the earlier comes first. ``algorithm`` as of sort.",
)

# --- the element of a rank ------------------------------------------------------------------------------------------


def _infer_ranked(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    x, rank = ts
    check_axis(a.axis, x.rank)
    shape = _at(_rows_of(x.shape, a.axis), a.axis, 1)
    if rank.dtype is not types.i64:
        raise OpError(f"ranks are i64, not {rank.dtype}")
    check_same_dims(rank.shape, shape, "ranks and rows")
    return x.with_shape(shape), TensorType(types.i64, shape)


def _ref_ranked(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    at = np.take_along_axis(_ref_order(xs[0], a.axis, False), xs[1], a.axis)
    return np.take_along_axis(xs[0], at, a.axis), at


def _ranked_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    """The largest key with at most ``rank`` keys below it, its bits found from the top one down; then its place alike.

    ``below`` counts the keys below the one found, so what is left of the rank tells equal elements apart.
    """
    (x, ranks), (values, places) = ins, outs
    axis, n, rows = a.axis, x.shape[a.axis], _rows(x, a.axis)
    unsigned = _unsigned(_key(Const(0, x.dtype), False)).dtype
    keys = Buffer(f"{values.name}_keys", unsigned, (*rows, n))
    found, place = (Buffer(f"{values.name}_{k}", t, rows) for k, t in (("found", unsigned), ("place", types.i64)))
    narrow = types.i32 if unsigned.bits <= _MAX_BITS else types.i64  # as wide as the keys: as many lanes
    below = Buffer(f"{values.name}_below", types.i64, rows)
    i = Axis(loop_symbol("i", n), n)

    def bit(of: Buffer, p: Axis, row: Sequence[Dim]) -> Value:
        """What is known of a number, with the next bit set."""
        assert is_known(p.extent)
        amount = Cast(index_value(p.extent - 1 - p.sym), of.dtype)
        return Binary("or", Load(of, tuple(row)), Binary("shl", Const(1, of.dtype), amount))

    def step(number: Buffer, p: Axis, holds: Callable[[Sequence[Dim]], Value], left: Callable[..., Value]) -> Items:
        """Count what holds; where no more than what is left of the rank do, the bit belongs to the number."""
        axes = axes_for(rows)
        row = syms(axes)
        count = Buffer(f"{number.name}_count", narrow, rows)
        total = Reduction((i,), "add", (Const(0, narrow),))
        counted = Stage((count,), axes, row, (Cast(holds(row), narrow),), total)
        n_held = as_i64(Load(count, row))
        fits = Binary("le", n_held, left(row))
        chosen = [write(number, axes, row, Select(fits, bit(number, p, row), Load(number, row)))]
        if number is found:
            chosen.insert(0, write(below, axes, row, Select(fits, n_held, Load(below, row))))
        return [counted, *chosen]

    def rank_of(row: Sequence[Dim]) -> Value:
        return Load(ranks, _at(row, axis, 0))

    p = Axis(loop_symbol("p", unsigned.bits), unsigned.bits)
    n_bits = n.bit_length() if is_known(n) else _MAX_BITS
    q = Axis(loop_symbol("q", n_bits), n_bits)

    def is_below(row: Sequence[Dim]) -> Value:
        return Binary("lt", Load(keys, (*row, i.sym)), bit(found, p, row))

    def is_before(row: Sequence[Dim]) -> Value:
        same = Binary("eq", Load(keys, (*row, i.sym)), Load(found, tuple(row)))
        return Binary("and", same, Binary("lt", Index(i.sym), bit(place, q, row)))

    def left_of(row: Sequence[Dim]) -> Value:
        return rank_of(row) - Load(below, tuple(row))

    def at(index: Sequence[Dim]) -> Value:
        row = (*index[:axis], *index[axis + 1 :])
        return clamped(Load(place, row), _constant(0), index_value(n - 1))

    return [
        *assign(keys, lambda k: _unsigned(_key(Load(x, _at(k[:-1], axis, k[-1])), False))),
        *assign(found, lambda row: Const(0, unsigned)),
        *assign(below, lambda row: _constant(0)),
        *assign(place, lambda row: _constant(0)),
        Serial(p, tuple(step(found, p, is_below, rank_of))),
        Serial(q, tuple(step(place, q, is_before, left_of))),
        *copy_from(values, x, lambda k: (*k[:axis], at(k), *k[axis + 1 :])),
        *assign(places, at),
    ]


def _ranked_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = _with_specials(rng.standard_normal((3, 5)).astype(np.float32))
    yield Sample((x, np.array([[0], [2], [4]])), {"axis": 1})
    yield Sample((x, np.array([[2, 0, 1, 1, 2]])), {"axis": 0})
    for dtype in (np.float64, np.float16, np.int64, np.uint8):
        yield Sample((rng.integers(0, 9, (2, 67, 2)).astype(dtype), np.full((2, 1, 2), 30)), {"axis": 1})


ranked = OpDef(
    "ranked",
    ("x", "rank"),
    {"axis": AttrDef("int")},
    _infer_ranked,
    _ref_ranked,
    kernel=_ranked_kernel,
    samples=_ranked_samples,
    doc="The element at a rank (i64, 1 along the axis) in ascending order along an axis, and its position: what sort "
    "has there, without the others.",
)

# --- argwhere, nonzero ----------------------------------------------------------------------------------------------


def _most(ts: Types, a: Attrs) -> Dim:
    return ts[0].n_elements


def _count_symbol(t: TensorType, a: Attrs) -> Sym:
    return Sym(a.count, 0, known(t.n_elements, None))


def _infer_argwhere(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    if ts[0].rank == 0:
        raise OpError("takes at least one axis", remedy="reshape the scalar to [1]")
    if not a.count.isidentifier():
        raise OpError(f"count {a.count!r} names a symbol and must be an identifier")
    return TensorType(types.i64, (_count_symbol(ts[0], a), ts[0].rank)), TensorType(types.i64, ())


def _ref_argwhere(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    found = np.argwhere(xs[0]).astype(np.int64)
    return found, np.array(len(found), np.int64)


def _argwhere_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    """Every element writes at the place that the next nonzero one takes; the nonzero one writes there last."""
    x, (found, count) = ins[0], outs
    places, at = axes_for(x.shape), tuple(Sym(f"i{k}", 0) for k in range(len(x.shape)))
    is_set = x.dtype is types.bool_
    element = Load(x, at)
    flag = Cast(element if is_set else Binary("ne", element, Const(0, x.dtype)), types.i64)
    body: tuple[Stage | Serial, ...] = (
        *(Stage((found,), (), (count[()], k), (Index(i),)) for k, i in enumerate(at)),
        Stage((count,), (), (), (Binary("add", count[()], flag),)),
    )
    for axis, i in zip(reversed(places), reversed(at), strict=True):
        body = (Serial(Axis(i, axis.extent), body),)
    return [Stage((count,), (), (), (_constant(0),)), *body]


def _argwhere_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x in (
        rng.integers(0, 2, (3, 4)),
        np.array([0.0, -0.0, np.nan, 2], np.float32),
        rng.integers(0, 2, (2, 2, 3)).astype(bool),
        np.zeros((2, 2), np.float32),
        np.ones((3,), np.uint8),
        np.zeros((0, 2), np.int64),
    ):
        yield Sample((x,), {"count": "n"})


_ARGWHERE_ATTRS = {"count": AttrDef("str")}

argwhere = OpDef(
    "argwhere",
    ("x",),
    _ARGWHERE_ATTRS,
    _infer_argwhere,
    _ref_argwhere,
    kernel=_argwhere_kernel,
    samples=_argwhere_samples,
    bound=_most,
    doc="The indices of elements that are not zero, [n, rank] in row-major order, and how many there are (0-d i64). "
    "n is a fresh symbol: count gives its name, unique in the graph, and x's number of elements bounds it. The kernel "
    "runs with the symbol at that bound and its result has room for as many rows; then the count defines the symbol, "
    "and the first n rows, which are contiguous, are the result.",
)


def _infer_nonzero(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    found, count = _infer_argwhere(ts, a)
    return found.with_shape(found.shape[::-1]), count


def _ref_nonzero(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    found, count = _ref_argwhere(xs, a)
    return found.T.copy(), count


def _decompose_nonzero(b: Builder, xs: tuple[Node, ...], a: Attrs) -> tuple[Node, ...]:
    found, count = b.results(b(argwhere, xs[0], count=a.count))
    return b(transpose, found, perm=(1, 0)), count


nonzero = OpDef(
    "nonzero",
    ("x",),
    _ARGWHERE_ATTRS,
    _infer_nonzero,
    _ref_nonzero,
    decompose=_decompose_nonzero,
    samples=_argwhere_samples,
    bound=_most,
    doc="The indices of elements that are not zero, [rank, n], and how many there are; see argwhere.",
)
