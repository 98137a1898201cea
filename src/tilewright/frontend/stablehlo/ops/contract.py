"""Products: dot_general and convolution with all their dimension numbers.

In: calls. Out: nodes or pairs. Not its business: how a product is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv, maximum
from tilewright.core.graph import Node
from tilewright.core.types import DType, bool_, i32, i64, product
from tilewright.frontend.complex_pairs import Pair, bilinear
from tilewright.frontend.moves import pad_real
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result
from tilewright.frontend.stablehlo.ops.elementwise import as_pair
from tilewright.frontend.stablehlo.ops.movement import strided
from tilewright.frontend.stablehlo.ops.narrow import decoded, encoded

Convert = Callable[[Operation], Result]
Bilinear = Callable[[Node, Node], Node]


def _by_parts(c: Operation, of: Bilinear) -> Result:
    """A product of real tensors, or of complex ones by their parts."""
    x, y = c.operands[:2]
    if not isinstance(x, Pair) and not isinstance(y, Pair):
        return of(x, y)
    return bilinear(c.b, of, as_pair(c, x), as_pair(c, y))


def _in(c: Operation, dtype: DType, of: Callable[[Node, Node, DType], Node]) -> Bilinear:
    """A product with results of ``dtype``; booleans are counted, and narrow numbers are multiplied in a wider type."""

    def made(x: Node, y: Node) -> Node:
        x, y = decoded(c, x), decoded(c, y)
        if dtype.is_narrow:
            wide = x.dtype if x.dtype.is_float else i32
            return encoded(c, of(x, y, wide), dtype)
        if x.dtype is bool_ or y.dtype is bool_ or dtype is bool_:
            return c.cast(of(c.cast(x, i32), c.cast(y, i32), i32), dtype)
        if x.dtype is not y.dtype and not (x.dtype.is_integer and y.dtype.is_integer):
            wide = max((x.dtype, y.dtype), key=lambda d: d.bits)
            x, y = c.cast(x, wide), c.cast(y, wide)
        if x.dtype.is_float != dtype.is_float or (x.dtype.is_float and dtype.bits < x.dtype.bits):
            return c.cast(of(x, y, x.dtype), dtype)
        return of(x, y, dtype)

    return made


# --- dot_general ----------------------------------------------------------------------------------------------------


def _dot_general(c: Operation) -> Result:
    from jax.extend.mlir.dialects import stablehlo

    n = stablehlo.DotDimensionNumbers(c.attribute("dot_dimension_numbers"))
    batch = (tuple(n.lhs_batching_dimensions), tuple(n.rhs_batching_dimensions))
    summed = (tuple(n.lhs_contracting_dimensions), tuple(n.rhs_contracting_dimensions))
    dtype = c.type().dtype
    return _by_parts(c, _in(c, dtype, lambda x, y, out: dot(c, x, y, batch, summed, out)))


def _dot(c: Operation) -> Result:
    summed = ((len(c.operands[0].shape) - 1,), (0,))
    return _by_parts(c, _in(c, c.type().dtype, lambda x, y, out: dot(c, x, y, ((), ()), summed, out)))


def dot(
    c: Operation,
    x: Node,
    y: Node,
    batch: tuple[Sequence[int], Sequence[int]],
    summed: tuple[Sequence[int], Sequence[int]],
    dtype: DType,
) -> Node:
    """The product: batch axes, then what is left of ``x``, then of ``y``; the pairs of axes are theirs in turn."""
    free = [
        [k for k in range(len(t.shape)) if k not in (*b, *s)] for t, b, s in zip((x, y), batch, summed, strict=True)
    ]
    shape = [x.shape[k] for k in (*batch[0], *free[0])] + [y.shape[k] for k in free[1]]
    outer = tuple(x.shape[k] for k in batch[0])
    depth = product([x.shape[k] for k in summed[0]])
    left = c.transpose(x, (*batch[0], *free[0], *summed[0]))
    left = c.reshape(left, (*outer, product([x.shape[k] for k in free[0]]), depth))
    right = c.transpose(y, (*batch[1], *summed[1], *free[1]))
    right = c.reshape(right, (*outer, depth, product([y.shape[k] for k in free[1]])))
    out = None if dtype is x.dtype is y.dtype else dtype
    return c.reshape(c.b(ops.matmul, left, right, out_dtype=out), shape)


# --- convolution ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Convolution:
    """The attributes of a convolution over ``rank - 2`` axes."""

    numbers: Any
    strides: tuple[int, ...]
    pads: tuple[tuple[Dim, Dim], ...]
    spread: tuple[int, ...]
    dilations: tuple[int, ...]
    reversed_axes: tuple[int, ...]
    groups: int
    batch_groups: int


def _convolution(c: Operation) -> Result:
    from jax.extend.mlir.dialects import stablehlo

    numbers = stablehlo.ConvDimensionNumbers(c.attribute("dimension_numbers"))
    n = len(numbers.input_spatial_dimensions)
    ones = (1,) * n
    turned = c.ints("window_reversal", (0,) * n)
    pads: tuple[tuple[Dim, Dim], ...] = c.pads("padding", n)
    if c.op.name == "stablehlo.dynamic_conv":  # JAX's, where padding follows from a symbolic size
        pads = c.edges(2)
    a = _Convolution(
        numbers, c.ints("window_strides", ones), pads, c.ints("lhs_dilation", ones),
        c.ints("rhs_dilation", ones), tuple(k for k in range(n) if turned[k]),
        c.integer("feature_group_count", 1), c.integer("batch_group_count", 1),
    )  # fmt: skip
    return _by_parts(c, _in(c, c.type().dtype, lambda x, w, out: _convolve(c, x, w, a, out)))


def _convolve(c: Operation, x: Node, w: Node, a: _Convolution, dtype: DType) -> Node:
    """In the layout of the input where its channels are last, else with the channels behind the batch."""
    d = a.numbers
    places, taps = list(d.input_spatial_dimensions), list(d.kernel_spatial_dimensions)
    is_last = list(d.output_spatial_dimensions) == list(range(1, len(places) + 1)) and a.batch_groups == 1
    is_last = is_last and len(places) <= MOST_AXES
    batch, channel = d.input_batch_dimension, d.input_feature_dimension
    order = (batch, *places, channel) if is_last else (batch, channel, *places)
    image = c.transpose(x, order)
    kernel = c.transpose(w, (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *taps))
    if a.reversed_axes:
        kernel = c.b(ops.reverse, kernel, axes=tuple(2 + k for k in a.reversed_axes))
    if not places:  # a product in another spelling: a window of one place
        image, kernel = c.reshape(image, (*image.shape[:2], 1)), c.reshape(kernel, (*kernel.shape, 1))
        is_last = False
    if a.batch_groups > 1:
        image = _batch_as_groups(c, image, a.batch_groups)
    made = _correlated(c, image, kernel, a, "NHWC" if is_last else "NCHW", dtype)
    if not places:
        made = c.reshape(made, made.shape[:2])
    out = (d.output_batch_dimension, *d.output_spatial_dimensions, d.output_feature_dimension)
    if not is_last:
        out = (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions)
    return c.transpose(made, [out.index(k) for k in range(len(out))])


def _batch_as_groups(c: Operation, image: Node, groups: int) -> Node:
    """``[g * n, c, ...]`` as ``[n, g * c, ...]``: each part of the batch is a group of channels."""
    n, channels, *places = image.shape
    apart = c.reshape(image, (groups, floordiv(n, groups), channels, *places))
    turned = c.transpose(apart, (1, 0, *range(2, len(apart.shape))))
    return c.reshape(turned, (floordiv(n, groups), channels * groups, *places))


MOST_AXES = 3
"""Over so many axes the op ``conv`` goes."""


def _by_taps(c: Operation, image: Node, kernel: Node, a: _Convolution, dtype: DType) -> Node:
    """A convolution over more axes: for each tap of the first one over the others, the places of the first as a batch.

    The channels stand behind the batch.
    """
    (lo, hi), step, gap = a.pads[0], a.strides[0], a.dilations[0]
    rank = len(image.shape)
    edges, between = [(lo, hi) if k == 2 else (0, 0) for k in range(rank)], [0] * rank
    between[2] = a.spread[0] - 1
    image = pad_real(c, image, c.b.const(0, image.dtype), edges, between)
    taps = kernel.shape[2]
    if not is_known(taps):
        raise NoForm("a convolution over more than 3 axes by a kernel of a symbolic size", "give it a fixed size")
    count = maximum(floordiv(image.shape[2] - (taps - 1) * gap - 1, step) + 1, 0)
    rest = replace(
        a, strides=a.strides[1:], pads=a.pads[1:], spread=a.spread[1:], dilations=a.dilations[1:], reversed_axes=()
    )
    total: Node | None = None
    for tap in range(taps):
        starts, stops, steps = [0] * rank, list(image.shape), [1] * rank
        starts[2], stops[2], steps[2] = tap * gap, tap * gap + maximum((count - 1) * step + 1, 0), step
        rows = strided(c, image, starts, stops, steps)
        rows = c.transpose(rows, (0, 2, 1, *range(3, rank)))
        rows = c.reshape(rows, (image.shape[0] * count, image.shape[1], *image.shape[3:]))
        part = c.reshape(c.slice(kernel, 2, tap, tap + 1), (*kernel.shape[:2], *kernel.shape[3:]))
        made = _correlated(c, rows, part, rest, "NCHW", dtype)
        total = made if total is None else c.b(ops.add, total, made)
    if total is None:
        raise NoForm("a convolution by a kernel without elements", "write a constant")
    apart = c.reshape(total, (image.shape[0], count, *total.shape[1:]))
    return c.transpose(apart, (0, 2, 1, *range(3, rank)))


def _correlated(c: Operation, image: Node, kernel: Node, a: _Convolution, layout: str, dtype: DType) -> Node:
    n = max(len(a.strides), 1)
    if n > MOST_AXES:
        return _by_taps(c, image, kernel, a, dtype)
    ones, groups = (1,) * n, a.groups * a.batch_groups
    strides, spread, dilations = a.strides or ones, a.spread or ones, a.dilations or ones
    pads = a.pads or ((0, 0),) * n
    first = 1 if layout == "NHWC" else 2
    is_plain = dtype is image.dtype is kernel.dtype
    known = tuple((lo, hi) for lo, hi in pads if is_known(lo) and is_known(hi))
    if len(known) == n and set(spread) != {1} and set(strides) == {1} and is_plain and groups == 1:
        return _transposed(c, image, kernel, known, spread, dilations, layout)
    if len(known) < n or set(spread) != {1}:
        edges: list[tuple[Dim, Dim]] = [(0, 0)] * len(image.shape)
        between = [0] * len(image.shape)
        between[first : first + n] = [s - 1 for s in spread]
        if len(known) < n:
            edges[first : first + n], known = pads, ((0, 0),) * n
        image = pad_real(c, image, c.b.const(0, image.dtype), edges, between)
    return c.b(
        ops.conv, image, kernel, strides=strides, pads=known, dilations=dilations, groups=groups, layout=layout,
        out_dtype=None if is_plain else dtype,
    )  # fmt: skip


def _transposed(
    c: Operation,
    image: Node,
    kernel: Node,
    pads: Sequence[tuple[int, int]],
    spread: Sequence[int],
    dilations: Sequence[int],
    layout: str,
) -> Node:
    """A convolution of what is spread apart is the transpose of one with that stride, of the mirrored kernel."""
    n = len(spread)
    mirrored = c.b(ops.reverse, kernel, axes=tuple(range(2, 2 + n)))
    weights = c.transpose(mirrored, (1, 0, *range(2, 2 + n)))
    reach = [(kernel.shape[2 + k] - 1) * dilations[k] for k in range(n)]
    around = tuple((r - lo, r - hi) for r, (lo, hi) in zip(reach, pads, strict=True))
    return c.b(
        ops.conv_transpose, image, weights, strides=tuple(spread), pads=around, dilations=tuple(dilations),
        output_padding=(0,) * n, layout=layout,
    )  # fmt: skip


# --- ragged products ------------------------------------------------------------------------------------------------


def _ragged_dot(c: Operation) -> Result:
    """A product whose rows belong to groups, each with matrices of its own; rows behind the last group are zero.

    As JAX has it on CPUs, each group is a batch in which the rows of the others are zero, and the batches are summed.
    Where groups cut the axis that is summed, each batch is a result. Where they cut a batch axis, they change nothing.
    """
    from jax.extend.mlir.dialects import chlo

    n = chlo.RaggedDotDimensionNumbers(c.attribute("ragged_dot_dimension_numbers"))
    batch = (tuple(n.lhs_batching_dimensions), tuple(n.rhs_batching_dimensions))
    summed = (tuple(n.lhs_contracting_dimensions), tuple(n.rhs_contracting_dimensions))
    (ragged,), groups = n.lhs_ragged_dimensions, tuple(n.rhs_group_dimensions)
    x, y, sizes = c.node(0), c.node(1), c.cast(c.node(2), i64)
    dtype = c.type().dtype
    if ragged in batch[0]:
        return _in(c, dtype, lambda x, y, out: dot(c, x, y, batch, summed, out))(x, y)
    if len(sizes.shape) != 1:
        raise NoForm("groups of other sizes in each batch", "give the sizes of groups as a vector")
    by_group = c.b(ops.where, _members(c, sizes, ragged, x), x, c.b.const(0, x.dtype))

    def up(axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(k + 1 for k in axes)

    y = c.transpose(y, (*groups, *(k for k in range(len(y.shape)) if k not in groups)))
    if not groups:
        y = c.expand(c.reshape(y, (1, *y.shape)), (sizes.shape[0], *y.shape))
        sides = ((0, *up(batch[0])), (0, *up(batch[1]))), (up(summed[0]), up(summed[1]))
    else:
        (group,) = groups
        moved = [tuple(k + (k < group) for k in axes) for axes in (batch[1], summed[1])]
        sides = (up(batch[0]), moved[0]), ((0, *up(summed[0])), (0, *moved[1]))
    return _in(c, dtype, lambda x, y, out: dot(c, x, y, *sides, out))(by_group, y)


def _members(c: Operation, sizes: Node, axis: int, x: Node) -> Node:
    """Which places along ``axis`` of ``x`` are of each group: the groups, then axes as those of ``x``."""
    ends = c.b(ops.cumsum, sizes, axis=0)
    places = c.b(ops.iota, extent=x.shape[axis], dtype=i64)
    first, end = (c.reshape(edge, (*edge.shape, 1)) for edge in (c.b(ops.sub, ends, sizes), ends))
    inside = c.b(ops.logical_and, c.b(ops.ge, places, first), c.b(ops.lt, places, end))
    return c.reshape(inside, (sizes.shape[0], *(n if k == axis else 1 for k, n in enumerate(x.shape))))


TABLE: Mapping[str, Convert] = {
    "chlo.ragged_dot": _ragged_dot,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _dot,
    "stablehlo.convolution": _convolution,
    "stablehlo.dynamic_conv": _convolution,
}
