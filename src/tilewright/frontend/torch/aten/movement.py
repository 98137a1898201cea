"""ATen's views, slices, padding and joining, all as copies of elements: views are functional after export.

In: calls, whose result shapes PyTorch has worked out. Out: nodes. Sizes of slices come from the result's shape, so
no arithmetic on bounds is repeated here, unless data decide them. Not its business: indices that are data
(``torch.aten.index``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known, known_over
from tilewright.core.expr import Dim, ceildiv, maximum, symbols
from tilewright.core.graph import Node
from tilewright.core.types import bool_, i64, u8
from tilewright.frontend.bits import read_as
from tilewright.frontend.nodes import dim_scalar, expand, reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import (
    AtenCall,
    Result,
    Unsupported,
    cast,
    clamp_index,
    is_decided_by_data,
    norm_axis,
)
from tilewright.frontend.torch.aten.places import slice_by_data

Convert = Callable[[AtenCall], Result]


def _view(c: AtenCall) -> Node:
    return reshape(c.b, c.tensor("self"), c.shape)


def _expand(c: AtenCall) -> Node:
    return expand(c.b, c.tensor("self"), c.shape)


def _permute(c: AtenCall) -> Node:
    x = c.tensor("self")
    return transpose(c.b, x, [norm_axis(d, len(x.shape)) for d in c["dims"]])


def _transpose(c: AtenCall) -> Node:
    x = c.tensor("self")
    perm = list(range(len(x.shape)))
    if perm:
        i, j = (norm_axis(c[name], len(x.shape)) for name in ("dim0", "dim1"))
        perm[i], perm[j] = perm[j], perm[i]
    return transpose(c.b, x, perm)


def _t(c: AtenCall) -> Node:
    x = c.tensor("self")
    return transpose(c.b, x, range(len(x.shape))[::-1])


def _view_dtype(c: AtenCall) -> Node:
    """The same bytes as another dtype's elements: of other widths the last axis is longer or shorter."""
    x, target = c.tensor("self"), u8 if c.dtype is bool_ else c.dtype
    x = cast(c.b, x, u8) if x.dtype is bool_ else x
    if x.dtype.bits < target.bits:
        x = reshape(c.b, x, (*c.shape, target.bits // x.dtype.bits))
    return reshape(c.b, cast(c.b, read_as(c.b, x, target), c.dtype), c.shape)


def _movedim(c: AtenCall) -> Node:
    x = c.tensor("self")
    rank = len(x.shape)
    source = [norm_axis(d, rank) for d in c["source"]]
    target = [norm_axis(d, rank) for d in c["destination"]]
    rest = iter([d for d in range(rank) if d not in source])
    return transpose(c.b, x, [source[target.index(d)] if d in target else next(rest) for d in range(rank)])


def _slice(c: AtenCall) -> Node:
    x = c.tensor("self")
    axis, step = c.axis(len(x.shape)), c["step"]
    whole, size = x.shape[axis], c.shape[axis]
    if not is_known(step):
        return _every(c, x, axis, clamp_index(c["start"], whole, 0))
    if isinstance(c["start"], Node) or isinstance(c["end"], Node):
        return slice_by_data(c, x, axis, step)
    start = clamp_index(c["start"], whole, 0)
    if is_decided_by_data(size) and size not in symbols(whole):
        stop = clamp_index(c["end"], whole, whole)
        if size not in symbols(stop):  # a new symbol of PyTorch's for what is known here
            size = ceildiv(maximum(stop - start, 0), step)
    return slice_axis(c.b, x, axis, start, size, step)


def _every(c: AtenCall, x: Node, axis: int, start: Dim) -> Node:
    """Elements along an axis from ``start``, a symbolic step apart."""
    at = c.b(ops.mul, c.b(ops.iota, extent=c.shape[axis], dtype=i64), c.tensor("step", i64))
    return c.b(ops.gather, x, c.b(ops.add, at, dim_scalar(c.b, start, i64)), axis=axis)


def _select(c: AtenCall) -> Node:
    x = c.tensor("self")
    axis = c.axis(len(x.shape))
    if isinstance(c["index"], Node):
        at = reshape(c.b, cast(c.b, c["index"], i64), (1,))
        return reshape(c.b, c.b(ops.gather, x, at, axis=axis), c.shape)
    start = clamp_index(c["index"], x.shape[axis], 0)
    return reshape(c.b, slice_axis(c.b, x, axis, start, 1), c.shape)


def _pieces(c: AtenCall, sizes: Sequence[Dim], axis: int) -> list[Node]:
    x = c.tensor("self")
    pieces: list[Node] = []
    start: Dim = 0
    for size in sizes:
        pieces.append(slice_axis(c.b, x, axis, start, size))
        start = start + size
    return pieces


def _split(c: AtenCall) -> Result:
    """Sizes come from the results' shapes."""
    axis = c.axis(len(c.shape))
    return _pieces(c, [t.shape[axis] for t in c.results if t is not None], axis)


def _unbind(c: AtenCall) -> Result:
    axis = c.axis(len(c.shape) + 1)
    pieces = _pieces(c, [1] * len(c.results), axis)
    return [reshape(c.b, p, c.shape) for p in pieces]


def _cat(c: AtenCall) -> Node:
    """Empty 1-D tensors count as nothing, whatever the others' rank."""
    xs = c.tensors("tensors", c.dtype)
    rank = len(c.shape)
    xs = [x for x in xs if len(x.shape) == rank and not (rank == 1 and x.shape == (0,))]
    if not xs:
        return c.b(ops.full, value=0.0, dtype=c.dtype, shape=c.shape)
    return xs[0] if len(xs) == 1 else c.b(ops.concat, *xs, axis=norm_axis(c["dim"], rank))


def _stack(c: AtenCall) -> Node:
    xs = c.tensors("tensors", c.dtype)
    axis = norm_axis(c["dim"], len(c.shape))
    xs = [reshape(c.b, x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    return xs[0] if len(xs) == 1 else c.b(ops.concat, *xs, axis=axis)


def _flip(c: AtenCall) -> Node:
    x = c.tensor("self")
    axes = tuple(sorted(norm_axis(d, len(x.shape)) for d in c["dims"]))
    return c.b(ops.reverse, x, axes=axes) if axes and x.shape else x


def _roll(c: AtenCall) -> Node:
    x = c.tensor("self")
    shifts = [c["shifts"]] if isinstance(c["shifts"], int) else list(c["shifts"])
    if not c["dims"]:
        flat = reshape(c.b, x, (x.type.n_elements,))
        return reshape(c.b, c.b(ops.roll, flat, shifts=tuple(shifts), axes=(0,)), x.shape)
    axes = [norm_axis(d, len(x.shape)) for d in ([c["dims"]] if isinstance(c["dims"], int) else c["dims"])]
    return c.b(ops.roll, x, shifts=tuple(shifts), axes=tuple(axes))


def _repeat(c: AtenCall) -> Node:
    x, repeats = c.tensor("self"), tuple(c.args["repeats"] if "repeats" in c.args else c.args["dims"])
    lead = max(len(repeats) - len(x.shape), 0)
    repeats = (1,) * (len(x.shape) - len(repeats)) + repeats
    x = reshape(c.b, x, ((1,) * lead + x.shape))
    return x if all(r == 1 for r in repeats) else c.b(ops.tile, x, repeats=repeats)


def _pads(c: AtenCall, name: str, rank: int) -> tuple[tuple[Dim, Dim], ...]:
    """PyTorch pads from the last axis backwards."""
    given = list(c[name])
    pairs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)]
    return ((0, 0),) * (rank - len(pairs)) + tuple(reversed(pairs))


def _constant_pad(c: AtenCall) -> Node:
    x = c.tensor("self")
    value = c["value"] if c["value"] is not None else 0
    return c.b(ops.pad, x, c.b.const(value, x.dtype), pads=_pads(c, "pad", len(x.shape)), mode="constant")


def _mode_pad(mode: str) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = c.tensor("self")
        return c.b(ops.pad, x, c.b.const(0, x.dtype), pads=_pads(c, "padding", len(x.shape)), mode=mode)

    return convert


MAX_ROWS = 8
"""Up to so many rows make up a window that is copied in runs; more are read one by one."""
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pad(c: AtenCall) -> Node:
    if c["mode"] not in _PAD_MODES:
        raise Unsupported(f"padding mode {c['mode']}", f"use one of {', '.join(_PAD_MODES)}")
    x = c.tensor("self")
    value = c.b.const(c["value"] or 0, x.dtype)
    return c.b(ops.pad, x, value, pads=_pads(c, "pad", len(x.shape)), mode=_PAD_MODES[c["mode"]])


def _triangle(upper: bool) -> Convert:
    return lambda c: c.b(ops.trilu, c.tensor("self"), k=c["diagonal"], upper=upper)


def _gather_flat(c: AtenCall, x: Node, positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Node:
    """The elements of a static ``x`` at row-major positions."""
    flat = reshape(c.b, x, (x.type.n_elements,))
    return c.b(ops.gather, flat, c.b.const(positions), axis=0)


def _static_shape(x: Node) -> tuple[int, ...]:
    if not x.type.is_static:
        raise Unsupported("needs a static shape", "make the dimensions static, or use slices and permutes")
    return tuple(d for d in x.shape if is_known(d))


def _as_strided(c: AtenCall) -> Node:
    """A view by strides of the dense operand: the elements' positions are known, so it is a gather."""
    x = c.tensor("self")
    given = (*c["size"], *c["stride"], *x.shape, c["storage_offset"])
    if not are_known(given):
        return _by_symbolic_strides(c, x)
    size, stride = c.pair("size", len(c.shape)), c.pair("stride", len(c.shape))
    n = math.prod(_static_shape(x))
    at = np.asarray(c["storage_offset"], np.int64)
    for k, (count, step) in enumerate(zip(size, stride, strict=True)):
        at = at + (np.arange(count, dtype=np.int64) * step).reshape([-1 if j == k else 1 for j in range(len(size))])
    if at.size and not 0 <= at.min() <= at.max() < n:
        raise Unsupported("elements of memory that the operand does not have", "give as_strided the whole tensor")
    if at.size == n and np.array_equal(at.ravel(), np.arange(n)):
        return reshape(c.b, x, size)
    return _gather_flat(c, x, np.broadcast_to(at, size))


def _by_symbolic_strides(c: AtenCall, x: Node) -> Node:
    """The same with positions that each call works out."""
    rank = len(c.shape)
    at = dim_scalar(c.b, c["storage_offset"], i64)
    for k, (count, step) in enumerate(zip(c.shape, c["stride"], strict=True)):
        along = c.b(ops.mul, c.b(ops.iota, extent=count, dtype=i64), dim_scalar(c.b, step, i64))
        along = reshape(c.b, along, tuple(count if j == k else 1 for j in range(rank)))
        at = c.b(ops.add, at, along)
    return c.b(ops.gather, reshape(c.b, x, (x.type.n_elements,)), expand(c.b, at, c.shape), axis=0)


def _diagonal(c: AtenCall) -> Node:
    x = c.tensor("self")
    if not x.type.is_static:
        return _symbolic_diagonal(c, x)
    shape = _static_shape(x)
    at = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    return _gather_flat(c, x, np.diagonal(at, c["offset"], c["dim1"], c["dim2"]))


def _symbolic_diagonal(c: AtenCall, x: Node) -> Node:
    """The first column of the matrix's elements, from the diagonal's first on, in rows one longer than the matrix's."""
    rank, offset, length = len(x.shape), c["offset"], c.shape[-1]
    pair = [norm_axis(c[name], rank) for name in ("dim1", "dim2")]
    x = transpose(c.b, x, [*(k for k in range(rank) if k not in pair), *pair])
    *lead, n_rows, n_columns = x.shape
    flat = reshape(c.b, x, (*lead, n_rows * n_columns))
    pads = (*[(0, 0)] * len(lead), (0, n_columns + 1))  # the last row is not whole
    flat = c.b(ops.pad, flat, c.b.const(0, x.dtype), pads=pads, mode="constant")
    start = maximum(offset, 0) + maximum(offset * -1, 0) * n_columns
    rows = slice_axis(c.b, flat, len(lead), start, length * (n_columns + 1))
    rows = reshape(c.b, rows, (*lead, length, n_columns + 1))
    return reshape(c.b, slice_axis(c.b, rows, len(lead) + 1, 0, 1), c.shape)


def _unfold(c: AtenCall) -> Node:
    """Windows along an axis, on a new last axis."""
    x = c.tensor("self")
    if not x.shape:
        return slice_axis(c.b, reshape(c.b, x, (1,)), 0, 0, c.shape[0])
    axis, size, step = norm_axis(c["dimension"], len(x.shape)), c.static("size"), c.static("step")
    n_rows, length = -(-size // step), x.shape[axis]
    if axis == len(x.shape) - 1 and n_rows <= MAX_ROWS and is_known(length) and length >= size > n_rows:
        return _windows_of_rows(c, x, size, step, n_rows)
    starts = c.b(ops.iota, extent=c.shape[axis], dtype=i64)
    starts = c.b(ops.mul, reshape(c.b, starts, (c.shape[axis], 1)), c.b.const(step, i64))
    at = c.b(ops.add, starts, c.b.const(np.arange(size, dtype=np.int64)))
    y = c.b(ops.gather, x, at, axis=axis)
    rank = len(y.shape)
    return transpose(c.b, y, [*range(axis + 1), *range(axis + 2, rank), axis + 1])


def _windows_of_rows(c: AtenCall, x: Node, size: int, step: int, n_rows: int) -> Node:
    """Windows along the last axis as ``n_rows`` rows of ``step`` elements each, the last one cut: runs are copied."""
    count, length, rank = c.shape[-2], x.shape[-1], len(x.shape)
    whole = (count + n_rows - 1) * step
    more = whole - length
    if known_over(more, 0):
        x = c.b(ops.pad, x, c.b.const(0, x.dtype), pads=(*[(0, 0)] * (rank - 1), (0, more)))
    rows = reshape(c.b, slice_axis(c.b, x, rank - 1, 0, whole), (*x.shape[:-1], count + n_rows - 1, step))
    parts = []
    for k in range(n_rows):
        part = slice_axis(c.b, rows, rank - 1, k, count)
        parts.append(slice_axis(c.b, part, rank, 0, min(step, size - k * step)))
    return parts[0] if n_rows == 1 else c.b(ops.concat, *parts, axis=rank)


def _slice_scatter(c: AtenCall) -> Node:
    """``self`` with a slice replaced."""
    x, src = c.tensor("self"), c.tensor("src", c.dtype)
    axis, step = c.axis(len(x.shape)), c.static("step")
    start, n = clamp_index(c["start"], x.shape[axis], 0), src.shape[axis]
    if n == x.shape[axis] and step == 1:
        return src
    if step != 1:
        at = c.b(ops.mul, c.b(ops.iota, extent=n, dtype=i64), c.b.const(step, i64))
        at = c.b(ops.add, at, c.tensor("start", i64) if c["start"] else c.b.const(0, i64))
        at = expand(c.b, reshape(c.b, at, tuple(n if k == axis else 1 for k in range(len(x.shape)))), src.shape)
        return c.b(ops.scatter_elements, x, at, src, axis=axis, reduction="none")
    return _replace(c, x, src, axis, start)


def _replace(c: AtenCall, x: Node, src: Node, axis: int, start: Dim) -> Node:
    """``x`` with ``src`` in place of as many elements from ``start``."""
    n, size = src.shape[axis], x.shape[axis]
    parts = [slice_axis(c.b, x, axis, 0, start)] if start != 0 else []
    parts.append(src)
    if start + n != size:
        parts.append(slice_axis(c.b, x, axis, start + n, size - start - n))
    return parts[0] if len(parts) == 1 else c.b(ops.concat, *parts, axis=axis)


def _select_scatter(c: AtenCall) -> Node:
    x, src = c.tensor("self"), c.tensor("src", c.dtype)
    axis = c.axis(len(x.shape))
    if isinstance(c["index"], Node):
        raise Unsupported("a write at an index that is data", "use torch.index_copy")
    start = clamp_index(c["index"], x.shape[axis], 0)
    src = reshape(c.b, src, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _replace(c, x, src, axis, start)


def _pixel_shuffle(c: AtenCall) -> Node:
    return _blocks(c, ops.depth_to_space, "upscale_factor")


def _pixel_unshuffle(c: AtenCall) -> Node:
    return _blocks(c, ops.space_to_depth, "downscale_factor")


def _blocks(c: AtenCall, op: object, factor: str) -> Node:
    x = c.tensor("self")
    if len(x.shape) != 4:
        raise Unsupported("takes batches of images", "add a batch dimension")
    chosen = ops.depth_to_space if op is ops.depth_to_space else ops.space_to_depth
    return c.b(chosen, x, block=c.static(factor), mode="CRD")


def _copy(c: AtenCall) -> Node:
    """``copy`` and ``fill`` after functionalisation: the source in the target's shape and dtype."""
    return expand(c.b, cast(c.b, c.tensor("src"), c.dtype), c.shape)


def _broadcast_all(c: AtenCall) -> Result:
    return [expand(c.b, x, t.shape) for x, t in zip(c.tensors("tensors"), c.results, strict=True) if t is not None]


TABLE: Mapping[str, Convert] = {
    **dict.fromkeys((
        "view.default", "reshape.default", "_unsafe_view.default", "_reshape_copy.default", "view_copy.default",
        "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints",
        "unflatten.int", "_reshape_alias.default", "unsqueeze_copy.default", "squeeze_copy.dim",
    ), _view),
    "view.dtype": _view_dtype, "expand.default": _expand, "expand_copy.default": _expand, "expand_as.default": _expand,
    "broadcast_to.default": _expand,
    "permute.default": _permute, "permute_copy.default": _permute, "transpose.int": _transpose,
    "swapaxes.default": lambda c: _transpose(AtenCall(c.b, c.name, {
        "self": c["self"], "dim0": c["axis0"], "dim1": c["axis1"]}, c.results)),
    "transpose_copy.int": _transpose, "t.default": _t, "t_copy.default": _t, "movedim.intlist": _movedim,
    "numpy_T.default": _t,
    "slice.Tensor": _slice, "slice_copy.Tensor": _slice, "select.int": _select, "select_copy.int": _select,
    "narrow.default": lambda c: slice_axis(c.b, c.tensor("self"), c.axis(len(c.shape)), clamp_index(
        c["start"], c.tensor("self").shape[c.axis(len(c.shape))], 0), c.shape[c.axis(len(c.shape))]),
    "split.Tensor": _split, "split_with_sizes.default": _split, "split_with_sizes_copy.default": _split,
    "chunk.default": _split, "tensor_split.sections": _split, "unsafe_split.Tensor": _split, "unbind.int": _unbind,
    "cat.default": _cat, "concat.default": _cat, "stack.default": _stack,
    "flip.default": _flip, "roll.default": _roll, "repeat.default": _repeat, "tile.default": _repeat,
    "constant_pad_nd.default": _constant_pad, "pad.default": _pad,
    **{f"reflection_pad{n}d.default": _mode_pad("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d.default": _mode_pad("edge") for n in (1, 2, 3)},
    "tril.default": _triangle(False), "triu.default": _triangle(True),
    "as_strided.default": _as_strided, "as_strided_copy.default": _as_strided, "diagonal.default": _diagonal,
    "diagonal_copy.default": _diagonal, "unfold.default": _unfold, "unfold_copy.default": _unfold,
    "slice_scatter.default": _slice_scatter, "select_scatter.default": _select_scatter,
    "pixel_shuffle.default": _pixel_shuffle, "pixel_unshuffle.default": _pixel_unshuffle,
    "copy.default": _copy, "broadcast_tensors.default": _broadcast_all,
}  # fmt: skip
