"""The ops of StableHLO that LiteRT has kernels for, within TFLite.

In: calls. Out: nodes, by what StableHLO's own frontend is made of (``frontend.window_places``, ``window_folds``,
``random_bits``). Not its business: StableHLO programs of their own (``frontend.stablehlo``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.graph import Builder, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import TensorType
from tilewright.frontend.random_bits import drawn_bits
from tilewright.frontend.tflite.arithmetic import two
from tilewright.frontend.tflite.call import Converter, TfliteCall, check_size
from tilewright.frontend.tflite.segments import spread
from tilewright.frontend.window_folds import WindowSizes, windows_folded
from tilewright.frontend.window_places import (
    ScatterNumbers,
    Windows,
    gathered,
    index_shape_of,
    rows_inside,
    rows_of,
    scattered,
    starts_of,
)


def _composite(c: TfliteCall) -> list[Node]:
    """What the composite is made of: its name promises nothing else."""
    return c.inner(c.option("DecompositionSubgraphIndex"), c.b, [c.x(k) for k in range(len(c.inputs))])


def _stablehlo_pad(c: TfliteCall) -> Node:
    """A value around elements, and between them; negative sizes take elements away."""
    x, value = c.x(0), c.shaped(c.x(1), ())
    low, high, inner = (
        [int(n) for n in getattr(c.options, f"{name}AsNumpy")()]
        for name in ("EdgePaddingLow", "EdgePaddingHigh", "InteriorPadding")
    )
    if any(inner):
        apart = [gap + 1 if n > 1 else 1 for n, gap in zip(c.size(x), inner, strict=True)]
        check_size(max(n * d for n, d in zip(c.size(x), apart, strict=True)))
        x = spread(c, x, value, apart)
    return c.b(ops.pad, x, value, pads=tuple(zip(low, high, strict=True)), mode="constant")


def _distinct(axes: Sequence[int], n: int) -> bool:
    """Are these different axes of ``n``?"""
    return len({*axes}) == len(axes) and all(0 <= k < n for k in axes)


def _check(is_sound: bool, what: str, *operands: Node) -> None:
    if not is_sound:
        types_ = " and ".join(str(x.type) for x in operands)
        raise OpError(f"the dimensions of a {what} of {types_} do not fit", remedy="convert it anew")


def _stablehlo_gather(c: TfliteCall) -> Node:
    """A window of the operand for each vector of indices, which are brought inside where it would reach out."""
    x, indices = c.x(0), c.x(1)
    offsets, collapsed, start_map, sizes = (
        _ints(c, name) for name in ("OffsetDims", "CollapsedSliceDims", "StartIndexMap", "SliceSizes")
    )
    shape, index_shape, vector = c.size(x), c.size(indices), c.option("IndexVectorDim")
    rank, n_vector = len(shape), _vector_size(index_shape, vector)
    n_out = len(index_shape) - (vector < len(index_shape)) + rank - len(collapsed)
    is_sound = (
        len(sizes) == rank and all(0 <= n <= m for n, m in zip(sizes, shape, strict=True))
        and n_vector == len(start_map) and _distinct(start_map, rank) and _distinct(collapsed, rank)
        and all(sizes[k] == 1 for k in collapsed) and len(offsets) == rank - len(collapsed)
        and _distinct(offsets, n_out)
    )  # fmt: skip
    _check(is_sound, "gather", x, indices)
    check_size(prod(sizes))
    windows = Windows(shape, tuple(sizes), tuple(start_map), (), (), index_shape_of(indices, vector))
    rows = rows_of(c, starts_of(c, indices, vector, windows, clamp=True), windows)
    return gathered(c, x, windows, rows, collapsed, offsets)


def _vector_size(index_shape: Sequence[int], vector: int) -> int:
    """How many indices are a vector: one where they lie along no axis."""
    return index_shape[vector] if 0 <= vector < len(index_shape) else 1 if vector == len(index_shape) else -1


def _stablehlo_scatter(c: TfliteCall) -> Node:
    """Windows joined to what lies at places that are data; one that leaves the operand is not written."""
    x, indices, updates = c.x(0), c.x(1), c.x(2)
    window, inserted, to_operand = (
        _ints(c, name) for name in ("UpdateWindowDims", "InsertedWindowDims", "ScatterDimsToOperandDims")
    )
    shape, index_shape, update_shape = c.size(x), c.size(indices), c.size(updates)
    vector, rank = c.option("IndexVectorDim"), len(shape)
    outer = [n for k, n in enumerate(index_shape) if k != vector]
    is_sound = (
        _vector_size(index_shape, vector) == len(to_operand) and _distinct(to_operand, rank)
        and _distinct(inserted, rank) and _distinct(window, len(update_shape)) and window == sorted(window)
        and len(window) == rank - len(inserted)
        and [n for k, n in enumerate(update_shape) if k not in window] == outer
    )  # fmt: skip
    _check(is_sound, "scatter", x, indices, updates)
    numbers_ = ScatterNumbers(tuple(window), tuple(inserted), tuple(to_operand), vector)
    windows = numbers_.windows(shape, update_shape, indices)
    left = [n for k, n in enumerate(shape) if k not in inserted]
    _check(all(update_shape[k] <= n for k, n in zip(window, left, strict=True)), "scatter", x, updates)
    check_size(prod(update_shape))
    rows = rows_inside(c, starts_of(c, indices, vector, windows, clamp=False), windows, by_element=True)
    op = _combiner(c, c.option("UpdateComputationSubgraphIndex"), x)
    return scattered(c, x, numbers_.ordered(c, updates, windows), rows, windows, REDUCTIONS[op])


REDUCTIONS = {ops.add: "add", ops.mul: "mul", ops.minimum: "min", ops.maximum: "max", None: "none"}


def _combiner(c: TfliteCall, number: int, like: Node) -> OpDef | None:
    """The op by which a sub-graph joins two scalars; None where it gives the second one."""
    b = Builder(Pool(), c.b.loc)
    given = [b.pool.input(f"x{k}", TensorType(like.dtype, ())) for k in range(2)]
    made = c.inner(number, b, given)
    if made == given[1:]:
        return None
    (node, *others) = made or [given[0]]
    op = _OF_BOOLS.get(node.op, node.op)
    if others or op not in REDUCTIONS or sorted(n.serial for n in node.inputs) != [n.serial for n in given]:
        raise OpError(f"{c.name} by another computation than a sum, product, maximum or minimum", remedy="use these")
    return op


_OF_BOOLS = {ops.logical_or: ops.maximum, ops.logical_and: ops.minimum}


def _stablehlo_reduce_window(c: TfliteCall) -> Node:
    x, start = c.x(0), c.shaped(c.x(1), ())
    rank, shape = len(c.size(x)), c.size(x)
    sizes, strides, dilations, spread_ = (
        _ints(c, name) or [1] * rank
        for name in ("WindowDimensions", "WindowStrides", "WindowDilations", "BaseDilations")
    )
    pads = _ints(c, "Padding") or [0] * 2 * rank
    is_sound = all(len(v) == rank and min(v, default=1) >= 1 for v in (sizes, strides, dilations, spread_))
    _check(is_sound and len(pads) == 2 * rank, "reduction over windows", x)
    edges = tuple(zip(pads[::2], pads[1::2], strict=True))
    whole = [(n - 1) * d + 1 + lo + hi for n, d, (lo, hi) in zip(shape, spread_, edges, strict=True) if n]
    check_size(prod(max(n, 1) for n in whole) * prod(sizes))
    op = _combiner(c, c.option("BodySubgraphIndex"), x)
    w = WindowSizes(tuple(sizes), tuple(strides), tuple(dilations), tuple(spread_), edges)
    made = None if op is None else windows_folded(c, x, start, w, op, counts_edges=True)
    if made is None:
        raise OpError(f"{c.name} of {x.type} by a computation that reduces none", remedy="use a sum or a maximum")
    return made


GENERATORS = ("DEFAULT", "PHILOX", "THREE_FRY")


def _stablehlo_rng_bit_generator(c: TfliteCall) -> list[Node]:
    """The next state and the bits."""
    kind = c.option("Algorithm")
    if not 0 <= kind < len(GENERATORS):
        raise OpError(f"the generator {kind} is not known")
    check_size(prod(c.shapes[1]))
    return list(drawn_bits(c, GENERATORS[kind], c.x(), c.dtypes[1], tuple(c.shapes[1])))


def _ints(c: TfliteCall, name: str) -> list[int]:
    """A vector among the options; empty where it is left out."""
    return [int(n) for n in getattr(c.options, f"{name}AsNumpy")()] if c.option(f"{name}Length") else []


def _of_numbers(of_floats: Converter) -> Converter:
    def convert(c: TfliteCall) -> Node | Sequence[Node]:
        if c.x().dtype is types.bool_:
            raise OpError(f"{c.name} of bools has no form here", remedy="convert the model anew")
        return of_floats(c)

    return convert


TABLE: Mapping[str, Converter] = {
    "STABLEHLO_COMPOSITE": _composite, "STABLEHLO_PAD": _stablehlo_pad, "STABLEHLO_GATHER": _stablehlo_gather,
    "STABLEHLO_SCATTER": _stablehlo_scatter, "STABLEHLO_REDUCE_WINDOW": _stablehlo_reduce_window,
    "STABLEHLO_RNG_BIT_GENERATOR": _stablehlo_rng_bit_generator, "STABLEHLO_ADD": _of_numbers(two(ops.add)),
    "STABLEHLO_MULTIPLY": _of_numbers(two(ops.mul)), "STABLEHLO_MAXIMUM": _of_numbers(two(ops.maximum)),
    "STABLEHLO_MINIMUM": _of_numbers(two(ops.minimum)),
}  # fmt: skip
