"""Normalisations and the softmax family, each spelled out in reductions and element-wise ops.

In: one operand, its axis or axes, scales and biases where there are some. Out: the same shape and dtype.
Not its business: recognising these forms in a model (``graph``).

f16 and bf16 are computed in f32; scales and biases may be of the operand's dtype or f32. Variances are taken in a
second pass over centred values, and softmax subtracts the maximum: both are safe for large values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.dims import known_under
from tilewright.core.estimates import SHORT_RUN
from tilewright.core.expr import Dim, floordiv, mod
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType, product
from tilewright.ops import elementwise as ew
from tilewright.ops.common import (
    FLOATS,
    check,
    check_axis,
    check_broadcasts,
    check_dtype,
    check_rank,
    fail,
    narrowed,
    widened,
)
from tilewright.ops.elementwise import in_wide
from tilewright.ops.movement import expand, reshape
from tilewright.ops.pool import avg_pool
from tilewright.ops.reduce import mean_node, reduce_max, reduce_sum
from tilewright.ops.samples import random

Types = Sequence[TensorType]
Build = Callable[..., Node]
COMPOSITE = frozenset({Trait.COMPOSITE})
EPSILON = AttrDef("float", 1e-5)
AXIS = AttrDef("int")


def _op(
    name: str,
    operands: tuple[str, ...],
    attrs: Mapping[str, AttrDef],
    infer: Callable[[Types, Attrs], TensorType],
    build: Build,
    numpy: Callable[..., Array],
    samples: Callable[[np.random.Generator], Iterator[Sample]],
    doc: str,
    traits: frozenset[Trait] = frozenset(),
) -> OpDef:
    """``build(b, attrs, *nodes)`` and ``numpy(attrs, *arrays)`` get their operands in the dtype to compute in."""

    def checked(ts: Types, a: Attrs) -> TensorType:
        check_dtype(ts[0], FLOATS, "the first operand")
        for t in ts[1:]:
            check_dtype(t, (ts[0].dtype, types.f32), "a scale, bias or statistic")
        return infer(ts, a)

    def reference(xs: Sequence[Array], a: Attrs) -> Array:
        dtype = types.dtype_of(xs[0].dtype)
        with np.errstate(all="ignore"):
            first = widened(xs[0])
            return narrowed(numpy(a, first, *(x.astype(first.dtype) for x in xs[1:])), dtype)

    def decompose(b: Builder, xs: tuple[Node, ...], a: Attrs) -> Node:
        wide = types.f32 if xs[0].dtype.bits < 32 else xs[0].dtype
        params = [ew.cast_node(b, x, wide) for x in xs[1:]]
        return in_wide(b, xs[:1], lambda x: build(b, a, x, *params))

    return OpDef(
        name, operands, attrs, checked, reference, decompose=decompose, traits=traits, samples=samples, doc=doc
    )


def _k(b: Builder, value: float, x: Node) -> Node:
    return b.const(value, x.dtype)


def _centred(b: Builder, x: Node, axes: Sequence[int]) -> Node:
    return b(ew.sub, x, mean_node(b, x, axes, keepdims=True))


def _scale_to_one(b: Builder, x: Node, axes: Sequence[int], epsilon: float) -> Node:
    """``x / sqrt(mean(x * x) + epsilon)``."""
    square = mean_node(b, b(ew.mul, x, x), axes, keepdims=True)
    return b(ew.mul, x, b(ew.rsqrt, b(ew.add, square, _k(b, epsilon, x))))


def _standard(b: Builder, x: Node, axes: Sequence[int], epsilon: float) -> Node:
    """``(x - mean) / sqrt(variance + epsilon)``."""
    return _scale_to_one(b, _centred(b, x, axes), axes, epsilon)


def _mean_of(x: Array, axes: Sequence[int]) -> Array:
    n = np.asarray(np.prod([x.shape[k] for k in axes]), x.dtype)
    return np.asarray(np.sum(x, axis=tuple(axes), keepdims=True, dtype=x.dtype) / n)


def _scale_to_one_of(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    return np.asarray(x / np.sqrt(_mean_of(x * x, axes) + x.dtype.type(epsilon)))


def _standard_of(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    return _scale_to_one_of(x - _mean_of(x, axes), axes, epsilon)


def _affine(b: Builder, x: Node, params: Sequence[Node]) -> Node:
    """``x * scale + bias`` of the one or two parameters there are."""
    for op, param in zip((ew.mul, ew.add), params, strict=False):
        x = b(op, x, param)
    return x


def _affine_of(x: Array, params: Sequence[Array]) -> Array:
    for op, param in zip((np.multiply, np.add), params, strict=False):
        x = op(x, param)
    return x


def _along(shape: Sequence[Dim], axis: int, rank: int) -> tuple[Dim, ...]:
    """The shape that lines a vector up with ``axis``."""
    return tuple(shape[0] if k == axis else 1 for k in range(rank))


def _check_vectors(ts: Types, axis: int) -> None:
    for t in ts[1:]:
        check_rank(t, 1, "a parameter", 1)
        if t.shape[0] != ts[0].shape[axis]:
            fail(f"the parameter {t} must have as many elements as axis {axis} of {ts[0]}")


# --- softmax --------------------------------------------------------------------------------------------------------


def _infer_axis(ts: Types, a: Attrs) -> TensorType:
    check_axis(a.axis, ts[0].rank)
    return ts[0]


def _shifted(b: Builder, x: Node, axis: int) -> Node:
    return b(ew.sub, x, b(reduce_max, x, axes=(axis,), keepdims=True))


def weights_below_top(b: Builder, x: Node, axis: int, scale: float = 1.0) -> Node:
    """``exp(scale * (x - max(x)))`` along an axis, to the base 2. ``scale`` must be positive.

    The maximum is taken off first: a multiply-add with the maximum's rounded product would overflow, or be off by more
    than any exponent, where elements are large (4e12, or a mask's lowest float).
    """
    factor = b.const(scale * math.log2(math.e), x.dtype)
    top = b(reduce_max, x, axes=(axis,), keepdims=True)
    return b(ew.exp2, b(ew.mul, b(ew.sub, x, top), factor))


def _softmax(b: Builder, a: Attrs, x: Node) -> Node:
    """One division a row: the reciprocal costs 1 ULP more than dividing every element."""
    e = weights_below_top(b, x, a.axis)
    return b(ew.mul, e, b(ew.reciprocal, b(reduce_sum, e, axes=(a.axis,), keepdims=True)))


def _softmax_of(a: Attrs, x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=a.axis, keepdims=True, initial=-np.inf))
    return np.asarray(e / np.sum(e, axis=a.axis, keepdims=True))


def _log_softmax(b: Builder, a: Attrs, x: Node) -> Node:
    total = b(reduce_sum, weights_below_top(b, x, a.axis), axes=(a.axis,), keepdims=True)
    return b(ew.sub, _shifted(b, x, a.axis), b(ew.log, total))


def _log_softmax_of(a: Attrs, x: Array) -> Array:
    shifted = x - np.max(x, axis=a.axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=a.axis, keepdims=True)))


def _softmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((random(rng, (2, 3, 4), within=(-9, 9)),), {"axis": 2})
    yield Sample((random(rng, (2, 3, 4)),), {"axis": 0})
    yield Sample((np.array([[1e4, 1e4, -1e4], [0, -np.inf, 1], [-np.inf] * 3], np.float32),), {"axis": 1})
    yield Sample((random(rng, (2, 1)),), {"axis": 1})
    yield Sample((random(rng, (0, 3)),), {"axis": 1})


softmax = _op(
    "softmax", ("x",), {"axis": AXIS}, _infer_axis, _softmax, _softmax_of, _softmax_samples,
    "exp(x) over its sum along the axis.", COMPOSITE,
)  # fmt: skip
log_softmax = _op(
    "log_softmax", ("x",), {"axis": AXIS}, _infer_axis, _log_softmax, _log_softmax_of, _softmax_samples,
    "The logarithm of softmax.", COMPOSITE,
)  # fmt: skip

# --- layer and RMS norm ---------------------------------------------------------------------------------------------


def _infer_rows(ts: Types, a: Attrs) -> TensorType:
    x = ts[0]
    check_axis(a.axis, x.rank)
    check(len(ts) <= 3, lambda: f"takes a scale and a bias at most, got {len(ts) - 1} parameters")
    for t in ts[1:]:
        check_broadcasts(t, x.shape, "the parameter")
    return x


def _rows(x: Node | Array, a: Attrs) -> range:
    return range(a.axis, len(x.shape))


def _row_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = random(rng, (2, 3, 4))
    yield Sample((x, random(rng, (4,))), {"axis": 2})
    yield Sample((x * 100 + 5, random(rng, (3, 4))), {"axis": 1, "epsilon": 0.1})
    yield Sample((random(rng, (2, 1)), random(rng, ())), {"axis": 1})
    yield Sample((random(rng, (0, 3)), random(rng, (3,))), {"axis": 1})


def _layer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _row_samples(rng)
    yield Sample((random(rng, (2, 3)),), {"axis": 1})
    yield Sample((random(rng, (2, 3)), random(rng, (3,)), random(rng, (3,))), {"axis": 0})


layer_norm = _op(
    "layer_norm", ("x", "*scale_bias"), {"axis": AXIS, "epsilon": EPSILON}, _infer_rows,
    lambda b, a, x, *ps: _affine(b, _standard(b, x, _rows(x, a), a.epsilon), ps),
    lambda a, x, *ps: _affine_of(_standard_of(x, _rows(x, a), a.epsilon), ps), _layer_samples,
    "Mean 0 and variance 1 over the axes from axis on, then scale and bias.", COMPOSITE,
)  # fmt: skip
rms_norm = _op(
    "rms_norm", ("x", "scale"), {"axis": AXIS, "epsilon": EPSILON}, _infer_rows,
    lambda b, a, x, s: b(ew.mul, _scale_to_one(b, x, _rows(x, a), a.epsilon), s),
    lambda a, x, s: _scale_to_one_of(x, _rows(x, a), a.epsilon) * s, _row_samples,
    "Mean square 1 over the axes from axis on, then scale.", COMPOSITE,
)  # fmt: skip

# --- batch, instance and group norm ---------------------------------------------------------------------------------


def _infer_batch(ts: Types, a: Attrs) -> TensorType:
    check_axis(a.axis, ts[0].rank)
    _check_vectors(ts, a.axis)
    return ts[0]


def _batch(b: Builder, a: Attrs, x: Node, *params: Node) -> Node:
    """``x * factor + shift``, where both are constants as a rule."""
    scale, bias, mean, var = (b(reshape, p, shape=_along(p.shape, a.axis, len(x.shape))) for p in params)
    factor = b(ew.mul, scale, b(ew.rsqrt, b(ew.add, var, _k(b, a.epsilon, x))))
    return b(ew.add, b(ew.mul, x, factor), b(ew.sub, bias, b(ew.mul, mean, factor)))


def _batch_of(a: Attrs, x: Array, *params: Array) -> Array:
    scale, bias, mean, var = (p.reshape(_along(p.shape, a.axis, x.ndim)) for p in params)  # type: ignore[arg-type]
    return np.asarray((x - mean) * (scale / np.sqrt(var + x.dtype.type(a.epsilon))) + bias)


def _batch_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in (((2, 3, 4, 2), 1), ((2, 3), 1), ((2, 4, 5), 2), ((0, 2, 1), 1)):
        vectors = [random(rng, (shape[axis],)) for _ in range(3)]
        yield Sample((random(rng, shape), *vectors, random(rng, (shape[axis],), within=(0.5, 2))), {"axis": axis})
    half = [np.ones(2, np.float32)] * 4
    yield Sample((random(rng, (1, 2, 3), types.f16), *half), {"epsilon": 0.25})


def _infer_instance(ts: Types, a: Attrs) -> TensorType:
    check_rank(ts[0], 3)
    _check_vectors(ts, 1)
    return ts[0]


def _channel_affine(b: Builder, x: Node, params: Sequence[Node]) -> Node:
    return _affine(b, x, [b(reshape, p, shape=_along(p.shape, 1, len(x.shape))) for p in params])


def _channel_affine_of(x: Array, params: Sequence[Array]) -> Array:
    return _affine_of(x, [p.reshape(_along(p.shape, 1, x.ndim)) for p in params])  # type: ignore[arg-type]


def _instance_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 3, 4), (1, 2, 3, 3), (2, 1, 1, 2, 2), (0, 2, 3)):
        yield Sample((random(rng, shape), random(rng, shape[1:2]), random(rng, shape[1:2])), {"epsilon": 1e-3})


def _infer_group(ts: Types, a: Attrs) -> TensorType:
    check_rank(ts[0], 2)
    check_axis(a.axis, ts[0].rank)
    check(a.axis > 0, lambda: "axis 0 is that of samples")
    _check_vectors(ts, a.axis)
    channels = ts[0].shape[a.axis]
    check(a.groups >= 1, lambda: f"groups {a.groups} must be positive")
    check(mod(channels, a.groups) == 0, lambda: f"{channels} channels don't fill {a.groups} groups")
    return ts[0]


def _grouped(shape: Sequence[Dim], groups: int) -> tuple[Dim, ...]:
    return (shape[0], groups, floordiv(shape[1], groups), *shape[2:])


def _group(b: Builder, a: Attrs, x: Node, *params: Node) -> Node:
    """Behind the samples a group is one row, which is read from a near cache again; else channels lie across.

    A sample that is one row has no parts for several threads, but its channels are. Where channels have few places,
    what they are multiplied by changes so often that rows cost more than they save.
    """
    has_few_places = len(x.shape) > 2 and known_under(product(x.shape[2:]), SHORT_RUN)
    in_rows = a.axis == 1 and a.groups > 1 and not has_few_places
    return _group_rows(b, a, x, params) if in_rows else _group_channels(b, a, x, params)


def _group_rows(b: Builder, a: Attrs, x: Node, params: Sequence[Node]) -> Node:
    """Each group of channels as one row, and channels of a row by their own scales."""
    split = _grouped(x.shape, a.groups)
    rows = _standard(b, b(reshape, x, shape=split), range(2, len(split)), a.epsilon)
    along = (1, *split[1:3], *(1 for _ in split[3:]))
    return b(reshape, _affine(b, rows, [b(reshape, p, shape=along) for p in params]), shape=x.shape)


def _group_channels(b: Builder, a: Attrs, x: Node, params: Sequence[Node]) -> Node:
    """Moments of channels, then of groups of them: all that touches every element has one number per channel.

    So it is one reduction over the places and arithmetic that joins what follows.
    """
    rank = len(x.shape)
    places = tuple(k for k in range(1, rank) if k != a.axis)
    split = (x.shape[0], a.groups, floordiv(x.shape[a.axis], a.groups))
    along = tuple(1 if k in places else d for k, d in enumerate(x.shape))
    scale, bias = (b(reshape, p, shape=_along(p.shape, a.axis, rank)) for p in params)

    def mean(v: Node) -> Node:
        of_channel = mean_node(b, v, places, keepdims=True) if places else v
        of_group = mean_node(b, b(reshape, of_channel, shape=split), (2,), keepdims=True)
        return b(reshape, b(expand, of_group, shape=split), shape=along)

    middle = mean(x)
    centred = b(ew.sub, x, middle)
    factor = b(ew.mul, b(ew.rsqrt, b(ew.add, mean(b(ew.mul, centred, centred)), _k(b, a.epsilon, x))), scale)
    return b(ew.add, b(ew.mul, x, factor), b(ew.sub, bias, b(ew.mul, middle, factor)))


def _group_of(a: Attrs, x: Array, *params: Array) -> Array:
    first = np.moveaxis(x, a.axis, 1)
    split = first.reshape(_grouped(first.shape, a.groups))  # type: ignore[arg-type]
    rows = _standard_of(split, range(2, split.ndim), a.epsilon).reshape(first.shape)
    return np.moveaxis(_channel_affine_of(rows, params), 1, a.axis)


def _group_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, groups in (
        ((2, 4, 3), 2),
        ((1, 6, 2, 2), 3),
        ((2, 4), 2),
        ((2, 3, 2), 3),
        ((0, 2, 3), 2),
        ((1, 4, 130), 2),
    ):
        vectors = random(rng, shape[1:2]), random(rng, shape[1:2])
        yield Sample((random(rng, shape), *vectors), {"groups": groups})
    for shape, axis in (((2, 3, 4), 2), ((1, 2, 4, 3), 2)):
        yield Sample((random(rng, shape), random(rng, (4,)), random(rng, (4,))), {"groups": 2, "axis": axis})


batch_norm = _op(
    "batch_norm", ("x", "scale", "bias", "mean", "var"), {"epsilon": EPSILON, "axis": AttrDef("int", 1)}, _infer_batch,
    _batch, _batch_of, _batch_samples, "(x - mean) / sqrt(var + epsilon) * scale + bias with one number per channel.",
)  # fmt: skip
instance_norm = _op(
    "instance_norm", ("x", "scale", "bias"), {"epsilon": EPSILON}, _infer_instance,
    lambda b, a, x, *ps: _channel_affine(b, _standard(b, x, range(2, len(x.shape)), a.epsilon), ps),
    lambda a, x, *ps: _channel_affine_of(_standard_of(x, range(2, x.ndim), a.epsilon), ps), _instance_samples,
    "Mean 0 and variance 1 over the spatial axes of every channel (N, C, spatial), then scale and bias.",
)  # fmt: skip
group_norm = _op(
    "group_norm", ("x", "scale", "bias"), {"groups": AttrDef("int"), "epsilon": EPSILON, "axis": AttrDef("int", 1)},
    _infer_group, _group,
    _group_of, _group_samples,
    "Mean 0 and variance 1 over every group of channels, which lie along axis, then scale and bias per channel.",
)  # fmt: skip

# --- across channels, and by length ---------------------------------------------------------------------------------


def _infer_lrn(ts: Types, a: Attrs) -> TensorType:
    check_rank(ts[0], 2)
    check(a.size >= 1, lambda: f"size {a.size} must be positive")
    return ts[0]


def _around(size: int) -> tuple[int, int]:
    """How many channels before and after count."""
    return (size - 1) // 2, size // 2


def _lrn(b: Builder, a: Attrs, x: Node) -> Node:
    """The sum over neighbouring channels is a pool over an image of channels by everything else."""
    square = b(reshape, b(ew.mul, x, x), shape=(x.shape[0], 1, x.shape[1], product(x.shape[2:])))
    mean = b(
        avg_pool, square, kernel=(a.size, 1), strides=(1, 1), pads=(_around(a.size), (0, 0)), divisor=a.size
    )  # fmt: skip
    base = b(ew.add, b(ew.mul, b(reshape, mean, shape=x.shape), _k(b, a.alpha, x)), _k(b, a.bias, x))
    return b(ew.div, x, b(ew.pow, base, _k(b, a.beta, x)))


def _lrn_of(a: Attrs, x: Array) -> Array:
    total = np.zeros_like(x)
    before, after = _around(a.size)
    for c in range(x.shape[1]):
        total[:, c] = np.sum(x[:, max(c - before, 0) : c + after + 1] ** 2, axis=1)
    return np.asarray(x / (a.bias + a.alpha / a.size * total) ** a.beta)


def _lrn_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, size in (((2, 5, 3), 3), ((1, 4, 2, 2), 4), ((2, 3), 1), ((0, 2, 3), 3)):
        yield Sample((random(rng, shape),), {"size": size, "alpha": 0.5})


def _infer_l2(ts: Types, a: Attrs) -> TensorType:
    check(a.p in (1, 2), lambda: f"p {a.p} must be 1 or 2")
    return _infer_axis(ts, a)


def _l2_normalize(b: Builder, a: Attrs, x: Node) -> Node:
    length = b(reduce_sum, b(ew.abs, x) if a.p == 1 else b(ew.mul, x, x), axes=(a.axis,), keepdims=True)
    length = length if a.p == 1 else b(ew.sqrt, length)
    return b(ew.div, x, b(ew.maximum, length, _k(b, a.epsilon, x)))


def _l2_normalize_of(a: Attrs, x: Array) -> Array:
    total = np.sum(np.abs(x) if a.p == 1 else x * x, axis=a.axis, keepdims=True, dtype=x.dtype)
    return np.asarray(x / np.maximum(total if a.p == 1 else np.sqrt(total), x.dtype.type(a.epsilon)))


def _l2_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((random(rng, (2, 3, 4)),), {"axis": 1})
    yield Sample((random(rng, (2, 3)),), {"axis": 1, "p": 1})
    yield Sample((np.zeros((2, 3), np.float32),), {"axis": 0, "epsilon": 0.5})
    yield Sample((random(rng, (2, 0)),), {"axis": 1})


lrn = _op(
    "lrn", ("x",),
    {
        "size": AttrDef("int"), "alpha": AttrDef("float", 1e-4), "beta": AttrDef("float", 0.75),
        "bias": AttrDef("float", 1.0),
    },
    _infer_lrn, _lrn, _lrn_of, _lrn_samples,
    "x over a power of the mean square of the neighbouring channels (N, C, ...), size of them.",
)  # fmt: skip
l2_normalize = _op(
    "l2_normalize", ("x",), {"axis": AXIS, "p": AttrDef("int", 2), "epsilon": AttrDef("float", 1e-12)}, _infer_l2,
    _l2_normalize, _l2_normalize_of, _l2_samples, "x over its length along the axis, at least epsilon.",
)  # fmt: skip
