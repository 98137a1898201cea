"""Reductions along axes: folds, means and variances, positions of extremes, cumulative folds.

In: one operand and the axes. Out: one tensor with the axes gone, or kept with size 1. An empty list of axes reduces
nothing. Not its business: softmax and normalisations, which are made of these.

Sums and products of f16 and bf16 accumulate in f32; integers wrap. NaN counts as an extreme of ``max`` and ``min``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Combiner,
    Const,
    Fma,
    IndexLike,
    Inside,
    Load,
    Param,
    Select,
    Serial,
    Stage,
    Unary,
    Value,
    axes_for,
    syms,
)
from tilewright.core.dims import is_known, known_at_least, known_at_most
from tilewright.core.expr import Dim, floordiv, maximum
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, Compute, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType, product
from tilewright.ops import elementwise as ew
from tilewright.ops.common import (
    ANY,
    BOOLS,
    FLOATS,
    NUMERIC,
    assign,
    axis_over,
    cast_to,
    check,
    check_axes,
    check_axis,
    check_equal_dtypes,
    fold,
    highest,
    lowest,
    narrowed,
    wide,
    widened,
)
from tilewright.ops.elementwise import in_wide
from tilewright.ops.movement import reshape
from tilewright.ops.samples import random
from tilewright.ops.source import dim_values, iota

REDUCE_ATTRS = {"axes": AttrDef("ints"), "keepdims": AttrDef("bool", False)}
REDUCES = frozenset({Trait.REDUCTION})
Init = Callable[[DType], Const]


def reduced_shape(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """``shape`` with ``axes`` removed, or of size 1."""
    return tuple(1 if k in axes else d for k, d in enumerate(shape) if keepdims or k not in axes)


def _infer_reduce(ts: Sequence[TensorType], a: Attrs, dtypes: Sequence[DType]) -> TensorType:
    check_equal_dtypes(ts, dtypes)
    check_axes(a.axes, ts[0].rank)
    return ts[0].with_shape(reduced_shape(ts[0].shape, a.axes, a.keepdims))


def split_axes(
    x: Buffer, reduced: Sequence[int], keepdims: bool
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[IndexLike, ...]]:
    """``(kept axes, reduced axes, index of the result)`` of a reduction of ``x``."""
    axes = axes_for(x.shape)
    kept = tuple(a for k, a in enumerate(axes) if k not in reduced)
    index = tuple(0 if k in reduced else a.sym for k, a in enumerate(axes) if keepdims or k not in reduced)
    return kept, tuple(axes[k] for k in sorted(reduced)), index


def _reduce_samples(rng: np.random.Generator, dtypes: Sequence[DType], empty: bool = True) -> Iterator[Sample]:
    for dtype in [d for d in (types.f32, types.i32, types.bool_) if d in dtypes]:
        yield Sample((random(rng, (2, 3, 4), dtype),), {"axes": (1,)})
        yield Sample((random(rng, (2, 3, 4), dtype),), {"axes": (0, 2), "keepdims": True})
        yield Sample((random(rng, (5,), dtype),), {"axes": (0,)})
        yield Sample((random(rng, (2, 1), dtype),), {"axes": ()})
        if empty:
            yield Sample((random(rng, (2, 0), dtype),), {"axes": (1,)})
        yield Sample((random(rng, (0, 3), dtype),), {"axes": (1,), "keepdims": True})
    if types.f32 in dtypes:
        yield Sample((np.array([[1, np.nan], [-np.inf, 2]], np.float32),), {"axes": (1,)})


def reduction(
    name: str,
    op: str,
    init: Init,
    numpy: Callable[..., Array],
    dtypes: Sequence[DType],
    doc: str,
    *,
    on_bool: str = "",
    in_wider: bool = False,
) -> OpDef:
    """A fold by ``op``; ``in_wider`` accumulates f16 and bf16 in f32, ``on_bool`` is the operation for bool."""

    def compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
        (x,), (out,) = ins, outs
        axes, over, index = split_axes(x, a.axes, a.keepdims)
        dtype = wide(x.dtype) if in_wider else x.dtype
        element = cast_to(Load(x, syms(axes_for(x.shape))), dtype)
        if not over:
            return (assign(out, lambda i: Load(x, i)),)
        return fold(out, axes, index, element, over, on_bool if dtype is types.bool_ else op, init(dtype))

    def reference(xs: Sequence[Array], a: Attrs) -> Array:
        x = widened(xs[0])
        start = init(types.dtype_of(x.dtype)).value
        with np.errstate(all="ignore"):
            folded = numpy(x, axis=a.axes, keepdims=a.keepdims, initial=x.dtype.type(start))
        return narrowed(folded, types.dtype_of(xs[0].dtype))

    return OpDef(
        name, ("x",), REDUCE_ATTRS, partial(_infer_reduce, dtypes=dtypes), reference, compute, traits=REDUCES,
        samples=partial(_reduce_samples, dtypes=dtypes), doc=doc,
    )  # fmt: skip


def _number(value: float) -> Init:
    return lambda dtype: Const(value, dtype)


def _sum(x: Array, axis: tuple[int, ...], keepdims: bool, initial: object) -> Array:
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def _prod(x: Array, axis: tuple[int, ...], keepdims: bool, initial: object) -> Array:
    return np.asarray(np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def _any(x: Array, axis: tuple[int, ...], keepdims: bool, initial: object) -> Array:
    return np.asarray(np.any(x, axis=axis, keepdims=keepdims))


def _all(x: Array, axis: tuple[int, ...], keepdims: bool, initial: object) -> Array:
    return np.asarray(np.all(x, axis=axis, keepdims=keepdims))


reduce_sum = reduction("reduce_sum", "add", _number(0), _sum, NUMERIC, "The sum.", in_wider=True)
reduce_prod = reduction("reduce_prod", "mul", _number(1), _prod, NUMERIC, "The product.", in_wider=True)
reduce_max = reduction("reduce_max", "max", lowest, np.max, ANY, "The maximum; of nothing the lowest.", on_bool="or")
reduce_min = reduction("reduce_min", "min", highest, np.min, ANY, "The minimum; of nothing the highest.", on_bool="and")
reduce_any = reduction("reduce_any", "or", _number(False), _any, BOOLS, "Whether any holds.", on_bool="or")
reduce_all = reduction("reduce_all", "and", _number(True), _all, BOOLS, "Whether all hold.", on_bool="and")

# --- means and norms ------------------------------------------------------------------------------------------------


def count_node(b: Builder, dims: Sequence[Dim], dtype: DType) -> Node:
    """The number of elements over ``dims`` as a 0-d tensor."""
    n = product(dims)
    if is_known(n):
        return b.const(n, dtype)
    return b(ew.cast, b(reduce_sum, b(dim_values, dims=(n,)), axes=(0,)), dtype=dtype)


def mean_node(b: Builder, x: Node, axes: Sequence[int], keepdims: bool) -> Node:
    """The mean over ``axes`` in ``x``'s dtype."""
    total = b(reduce_sum, x, axes=tuple(axes), keepdims=keepdims)
    return b(ew.div, total, count_node(b, [x.shape[k] for k in axes], x.dtype))


def _composed(
    name: str,
    build: Callable[[Builder, Node, Attrs], Node],
    numpy: Callable[[Array, Attrs], Array],
    doc: str,
    dtypes: Sequence[DType] = FLOATS,
    attrs: dict[str, AttrDef] = REDUCE_ATTRS,
) -> OpDef:
    def reference(xs: Sequence[Array], a: Attrs) -> Array:
        with np.errstate(all="ignore"):
            return narrowed(numpy(widened(xs[0]), a), types.dtype_of(xs[0].dtype))

    return OpDef(
        name, ("x",), attrs, partial(_infer_reduce, dtypes=dtypes), reference,
        decompose=lambda b, xs, a: in_wide(b, xs, lambda x: build(b, x, a)), traits=REDUCES,
        samples=partial(_reduce_samples, dtypes=dtypes, empty=name != "logsumexp"), doc=doc,
    )  # fmt: skip


def _mean_of(x: Array, a: Attrs) -> Array:
    n = np.asarray(np.prod([x.shape[k] for k in a.axes]), x.dtype)
    return np.asarray(np.sum(x, axis=a.axes, keepdims=a.keepdims, dtype=x.dtype) / n)


def _logsumexp(b: Builder, x: Node, a: Attrs) -> Node:
    top = b(reduce_max, x, axes=a.axes, keepdims=True)
    top = b(ew.where, b(ew.isinf, top), b.const(0.0, x.dtype), top)
    total = b(reduce_sum, b(ew.exp, b(ew.sub, x, top)), axes=a.axes, keepdims=a.keepdims)
    if not a.keepdims:
        top = b(reduce_sum, top, axes=a.axes)  # axes of size 1: drops them
    return b(ew.add, b(ew.log, total), top)


def _logsumexp_of(x: Array, a: Attrs) -> Array:
    top = np.max(x, axis=a.axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top).astype(x.dtype)
    total = np.sum(np.exp(x - top), axis=a.axes, keepdims=a.keepdims, dtype=x.dtype)
    return np.asarray(np.log(total) + top.reshape(total.shape))


def _l2(b: Builder, x: Node, a: Attrs) -> Node:
    return b(ew.sqrt, b(reduce_sum, b(ew.mul, x, x), axes=a.axes, keepdims=a.keepdims))


def _variance(b: Builder, x: Node, a: Attrs) -> Node:
    centred = b(ew.sub, x, mean_node(b, x, a.axes, keepdims=True))
    total = b(reduce_sum, b(ew.mul, centred, centred), axes=a.axes, keepdims=a.keepdims)
    n = count_node(b, [x.shape[k] for k in a.axes], x.dtype)
    if a.correction:
        n = b(ew.maximum, b(ew.sub, n, b.const(a.correction, x.dtype)), b.const(0.0, x.dtype))
    return b(ew.div, total, n)


def _variance_of(x: Array, a: Attrs) -> Array:
    n = np.asarray(np.prod([x.shape[k] for k in a.axes]), x.dtype)
    centred = x - np.sum(x, axis=a.axes, keepdims=True, dtype=x.dtype) / n
    total = np.sum(centred * centred, axis=a.axes, keepdims=a.keepdims, dtype=x.dtype)
    return np.asarray(total / np.maximum(n - x.dtype.type(a.correction), 0))


reduce_mean = _composed(
    "reduce_mean", lambda b, x, a: mean_node(b, x, a.axes, a.keepdims), _mean_of, "The mean; of nothing NaN."
)
logsumexp = _composed("logsumexp", _logsumexp, _logsumexp_of, "log(sum(exp(x))) without overflow.")
reduce_l1 = _composed(
    "reduce_l1", lambda b, x, a: b(reduce_sum, b(ew.abs, x), axes=a.axes, keepdims=a.keepdims),
    lambda x, a: np.sum(np.abs(x), axis=a.axes, keepdims=a.keepdims, dtype=x.dtype), "The sum of magnitudes.", NUMERIC,
)  # fmt: skip
reduce_l2 = _composed(
    "reduce_l2", _l2, lambda x, a: np.sqrt(np.sum(x * x, axis=a.axes, keepdims=a.keepdims, dtype=x.dtype)),
    "The root of the sum of squares.",
)  # fmt: skip
variance = _composed(
    "variance", _variance, _variance_of, "The mean squared distance from the mean, over n - correction.",
    attrs={**REDUCE_ATTRS, "correction": AttrDef("float", 0.0)},
)  # fmt: skip

# --- where the extreme is -------------------------------------------------------------------------------------------


def extreme_combiner(dtype: DType) -> Combiner:
    """Folds ``(value, index)`` pairs to the largest; NaN is the largest, ties go to the first index."""
    best, at = Param("best", dtype), Param("best_at", types.i64)
    new, new_at = Param("new", dtype), Param("new_at", types.i64)
    wins: Value = Binary("gt", new, best)
    ties: Value = Binary("eq", new, best)
    if dtype.is_float:
        new_nan, best_nan = Unary("isnan", new), Unary("isnan", best)
        wins = Binary("or", wins, Binary("and", new_nan, Unary("not", best_nan)))
        ties = Binary("or", ties, Binary("and", new_nan, best_nan))
    takes = Binary("or", wins, Binary("and", ties, Binary("lt", new_at, at)))
    return Combiner((best, at), (new, new_at), (Select(takes, new, best), Select(takes, new_at, at)))


def extreme_init(dtype: DType) -> tuple[Value, Value]:
    """The state before any pair: loses against every real one."""
    return lowest(dtype), Const(types.i64.max, types.i64)


def _infer_arg(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    check_equal_dtypes(ts, NUMERIC)
    check_axis(a.axis, ts[0].rank)
    check(
        ts[0].shape[a.axis] != 0, lambda: f"{ts[0]} has no element along axis {a.axis}", "an empty axis has no extreme"
    )
    return TensorType(types.i64, reduced_shape(ts[0].shape, (a.axis,), a.keepdims))


def _place_of_extreme(b: Builder, x: Node, a: Attrs, is_max: bool) -> Node:
    """The least (greatest) position that holds the extreme, or NaN where there is one: two plain reductions."""
    extent = x.shape[a.axis]
    shape = [extent if axis == a.axis else 1 for axis in range(x.type.rank)]
    top = b(reduce_max if is_max else reduce_min, x, axes=(a.axis,), keepdims=True)
    holds = b(ew.eq, x, top)
    if x.dtype.is_float:
        holds = b(ew.logical_or, holds, b(ew.isnan, x))
    dtype = types.i32 if known_at_most(extent, types.i32.max) else types.i64
    at = b(reshape, b(iota, extent=extent, dtype=dtype), shape=shape)
    none = b.const(-1 if a.select_last else dtype.max, dtype)
    fold_of = reduce_max if a.select_last else reduce_min
    found = b(fold_of, b(ew.where, holds, at, none), axes=(a.axis,), keepdims=a.keepdims)
    return b(ew.cast, found, dtype=types.i64)


def _arg_of(xs: Sequence[Array], a: Attrs, is_max: bool) -> Array:
    x = widened(xs[0])
    if a.select_last:
        x = np.flip(x, a.axis)
    at = (np.argmax if is_max else np.argmin)(x, axis=a.axis, keepdims=a.keepdims)
    return np.asarray(x.shape[a.axis] - 1 - at if a.select_last else at).astype(np.int64)


def _arg_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = random(rng, (2, 3, 4), types.i32, (0, 2))
    for last in (False, True):
        yield Sample((x,), {"axis": 1, "select_last": last})
        yield Sample((x.astype(np.float32),), {"axis": 2, "keepdims": True, "select_last": last})
    yield Sample((np.array([[1, np.nan, np.nan], [-np.inf] * 3, [np.inf] * 3], np.float32),), {"axis": 1})
    yield Sample((random(rng, (5,)),), {"axis": 0})
    yield Sample((random(rng, (0, 2)),), {"axis": 1})


def _arg(name: str, is_max: bool, doc: str) -> OpDef:
    attrs = {"axis": AttrDef("int"), "keepdims": AttrDef("bool", False), "select_last": AttrDef("bool", False)}
    return OpDef(
        name, ("x",), attrs, _infer_arg, partial(_arg_of, is_max=is_max),
        decompose=lambda b, xs, a: _place_of_extreme(b, xs[0], a, is_max), traits=REDUCES, samples=_arg_samples,
        doc=doc,
    )  # fmt: skip


argmax = _arg("argmax", True, "The position of the largest element, the first of equals unless select_last.")
argmin = _arg("argmin", False, "The position of the smallest element, the first of equals unless select_last.")

# --- cumulative folds -----------------------------------------------------------------------------------------------


def _infer_cumulative(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    check_equal_dtypes(ts, NUMERIC)
    check_axis(a.axis, ts[0].rank)
    given, to = ts[0].dtype, a.accumulator
    fits = to is None or (given.is_float and to.is_float and given.bits <= to.bits)
    check(fits, lambda: f"{given} does not accumulate in {to}")
    return ts[0]


def _cumulative_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for exclusive in (False, True):
        for reverse in (False, True):
            attrs = {"axis": 1, "exclusive": exclusive, "reverse": reverse}
            yield Sample((random(rng, (2, 4, 2)),), attrs)
    yield Sample((random(rng, (5,), types.i32),), {"axis": 0})
    yield Sample((random(rng, (2, 5)),), {"axis": 1, "accumulator": types.f64})
    yield Sample((np.array([1, np.nan, 3], np.float32),), {"axis": 0})
    yield Sample((random(rng, (2, 0)),), {"axis": 1})
    for n, exclusive, reverse in ((64, False, False), (101, True, False), (83, False, True), (96, True, True)):
        yield Sample((random(rng, (2, n, 3)),), {"axis": 1, "exclusive": exclusive, "reverse": reverse})


RUNS = 16
"""The least number of lanes that rows are laid across for; of fewer rows, the least number of runs in each."""
RUN = 64
"""Elements of a run of a long row."""


def accumulator_of(dtype: DType, a: Attrs, in_wider: bool) -> DType:
    """The dtype in which a cumulative fold of ``dtype`` keeps what it has so far."""
    return a.accumulator or (wide(dtype) if in_wider else dtype)


def _cumulative_compute(op: str, init: Init, in_wider: bool, in_any_order: bool) -> Compute:
    """How :func:`cumulative` is computed.

    Where elements of other rows do not lie beside each other, the rows are laid across first. Few rows, or rows too
    long for that, are cut into runs (``in_any_order``: joining runs overflows no earlier than folding one element after
    another): each run's whole is folded first, what lies before each run from those, and then all runs as rows are.
    """

    def compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage | Serial, ...]:
        (x,), (out,) = ins, outs
        dtype = accumulator_of(x.dtype, a, in_wider)
        axes, n = axes_for(x.shape), x.shape[a.axis]
        others = tuple(s for k, s in enumerate(axes) if k != a.axis)
        row = syms(others)

        def at(step: Dim) -> tuple[Dim, ...]:
            # Steps count from the end that is summed up first.
            place = n - 1 - step if a.reverse else step
            return (*row[: a.axis], place, *row[a.axis :])

        def element(step: Dim) -> Value:
            return cast_to(Load(x, at(step)), dtype)

        def one_by_one() -> tuple[Stage | Serial, ...]:
            """Each place from the one before it."""
            acc = out if dtype is out.dtype else Buffer(f"{out.name}_acc", dtype, out.shape)
            axis = axis_over(n, "t")
            t = axis.sym
            has_before = Inside((t - 1,))
            value: Value
            if a.exclusive:
                value = Select(has_before, Binary(op, Load(acc, at(t - 1)), element(t - 1)), init(dtype))
            else:
                value = Binary(op, Select(has_before, Load(acc, at(t - 1)), init(dtype)), element(t))
            steps = Serial(axis, (Stage((acc,), others, at(t), (value,)),))
            return (steps,) if acc is out else (steps, assign(out, lambda i: cast_to(Load(acc, i), out.dtype)))

        def in_turn(parts: Buffer, over: tuple[Axis, ...]) -> Serial:
            """Each place along the first axis of ``parts`` with the one before it; ``over`` are its other axes."""
            u, rest = axis_over(maximum(parts.shape[0] - 1, 0), "u"), syms(over)
            step = Binary(op, Load(parts, (u.sym, *rest)), Load(parts, (u.sym + 1, *rest)))
            return Serial(u, (Stage((parts,), over, (u.sym + 1, *rest), (step,)),))

        def laid_across(
            length: Dim, runs: tuple[Axis, ...] = (), before: Buffer | None = None
        ) -> tuple[Stage | Serial, ...]:
            """Rows, or their ``runs``, laid across, where those of one place are neighbours, and laid back."""
            over, r = (*others, *runs), syms(runs)
            turned = Buffer(f"{out.name}_across", dtype, (length, *(s.extent for s in over)))
            t = axis_over(length, "t")
            place = t.sym if not runs else r[0] * length + t.sym
            found: Value = Load(turned, (t.sym - a.exclusive, *row, *r))
            first: Value = init(dtype)
            if before is not None:
                first = Load(before, (*r, *row))
                found = Binary(op, first, found)
            if a.exclusive:
                found = Select(Inside((t.sym - 1,)), found, first)
            return (
                Stage((turned,), (t, *over), (t.sym, *row, *r), (element(place),)),
                in_turn(turned, over),
                Stage((out,), (*over, t), at(place), (cast_to(found, out.dtype),)),
            )

        def in_runs() -> tuple[Stage | Serial, ...]:
            """Runs of each row as rows of their own, joined with what lies before each; then the rest."""
            length: int = RUN
            if is_known(n):  # of a length that leaves as little as may be behind the last run
                at_most = min(n // RUNS, RUN)
                length = min(range(max(at_most - RUNS, 1), at_most + 1), key=lambda k: (n % k, -k))
            n_runs = floordiv(n, length)
            left = n - n_runs * length
            sizes = tuple(s.extent for s in others)
            wholes = Buffer(f"{out.name}_wholes", dtype, (*sizes, n_runs))
            before = Buffer(f"{out.name}_before", dtype, (n_runs + 1, *sizes))
            rest = Buffer(f"{out.name}_rest", dtype, (left + 1, *sizes))
            r, t, u = axis_over(n_runs, "r"), axis_over(length, "t"), axis_over(left, "u")
            run, behind = r.sym * length + t.sym, n_runs * length + u.sym
            step = Binary(op, Load(before, (r.sym, *row)), Load(wholes, (*row, r.sym)))
            found = cast_to(Load(rest, (u.sym + (not a.exclusive), *row)), out.dtype)
            return (
                *fold(wholes, (*others, r), (*row, r.sym), element(run), (t,), op, init(dtype)),
                Stage((before,), others, (0, *row), (init(dtype),)),
                Serial(r, (Stage((before,), others, (r.sym + 1, *row), (step,)),)),
                *laid_across(length, (r,), before),
                Stage((rest,), others, (0, *row), (Load(before, (n_runs, *row)),)),
                Stage((rest,), (u, *others), (u.sym + 1, *row), (element(behind),)),
                in_turn(rest, others),
                Stage((out,), (*others, u), at(behind), (found,)),
            )

        inner, rows = product(x.shape[a.axis + 1 :]), product([s.extent for s in others])
        # With elements behind the axis, those of one place are neighbours, and lanes as they lie.
        are_apart, are_lanes = known_at_most(inner, 1), known_at_least(rows, RUNS)
        is_long = not known_at_most(n, RUNS * RUN if are_lanes else 4 * RUNS - 1)
        if are_apart and is_long and in_any_order:
            return in_runs()
        return laid_across(n) if are_apart and are_lanes else one_by_one()

    return compute


def cumulative(
    name: str, op: str, init: Init, numpy: np.ufunc, doc: str, in_wider: bool, in_any_order: bool = True
) -> OpDef:
    """``out[t] = out[t-1] op x[t]`` along an axis; exclusive leaves out ``x[t]``, reverse starts at the end.

    ``accumulator`` is the dtype to fold in where it is not the operand's, or f32 for sums and products of f16 and bf16.
    """

    def reference(xs: Sequence[Array], a: Attrs) -> Array:
        dtype = types.dtype_of(xs[0].dtype)
        x = xs[0].astype(accumulator_of(dtype, a, in_wider).numpy, copy=False)
        x = np.flip(x, a.axis) if a.reverse else x
        with np.errstate(all="ignore"):
            result = numpy.accumulate(x, axis=a.axis, dtype=x.dtype)
        if a.exclusive:
            first = np.full(_one_at(x.shape, a.axis), init(types.dtype_of(x.dtype)).value, x.dtype)
            result = np.concatenate([first, result], a.axis).take(range(x.shape[a.axis]), a.axis)
        return narrowed(np.flip(result, a.axis) if a.reverse else result, dtype)

    attrs = {
        "axis": AttrDef("int"), "exclusive": AttrDef("bool", False), "reverse": AttrDef("bool", False),
        "accumulator": AttrDef("dtype", None),
    }  # fmt: skip
    return OpDef(
        name, ("x",), attrs, _infer_cumulative, reference, _cumulative_compute(op, init, in_wider, in_any_order),
        traits=frozenset(), samples=_cumulative_samples, doc=doc,
    )  # fmt: skip


def _one_at(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return tuple(1 if k == axis else n for k, n in enumerate(shape))


cumsum = cumulative("cumsum", "add", _number(0), np.add, "The sums of all prefixes.", True)
cumprod = cumulative("cumprod", "mul", _number(1), np.multiply, "The products of all prefixes.", True, False)
cummax = cumulative("cummax", "max", lowest, np.maximum, "The maxima of all prefixes; NaN propagates.", False)
cummin = cumulative("cummin", "min", highest, np.minimum, "The minima of all prefixes; NaN propagates.", False)


def _infer_linear_scan(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    check_equal_dtypes(ts, (types.f32, types.f64))
    is_alike = ts[0].rank > 0 and ts[0].shape == ts[1].shape
    check(is_alike, lambda: f"factors {ts[0]} and terms {ts[1]} differ, or have no axis")
    return ts[1]


def _linear_scan_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage | Serial, ...]:
    (factors, terms), (out,) = ins, outs
    axes = axes_for(out.shape)
    t, row = axes[0].sym, syms(axes)[1:]
    before = Select(Inside((t - 1,)), Load(out, (t - 1, *row)), Const(0.0, out.dtype))
    value = Fma(Load(factors, (t, *row)), before, Load(terms, (t, *row)))
    return (Serial(axes[0], (Stage((out,), axes[1:], (t, *row), (value,)),)),)


def _ref_linear_scan(xs: Sequence[Array], a: Attrs) -> Array:
    factors, terms = (x.astype(np.float64) for x in xs)
    out, state = np.empty_like(terms), np.zeros_like(terms[0]) if len(terms) else None
    for t in range(len(terms)):
        out[t] = state = factors[t] * state + terms[t]
    return out.astype(xs[1].dtype)


def _linear_scan_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, dtype in (((5, 3), types.f32), ((7,), types.f64), ((4, 2, 33), types.f32), ((0, 2), types.f32)):
        yield Sample((random(rng, shape, dtype, (-1.0, 1.0)), random(rng, shape, dtype)), {})


linear_scan = OpDef(
    "linear_scan", ("factors", "terms"), {}, _infer_linear_scan, _ref_linear_scan, compute=_linear_scan_compute,
    traits=frozenset(), samples=_linear_scan_samples,
    doc="y[t] = factors[t] * y[t-1] + terms[t] along the first axis, from 0.",
)  # fmt: skip
