"""Rules of ``canonicalize`` for arithmetic on shapes: an integer tensor of known dimensions is a ``dim_values``.

In: small integer nodes over constants and ``dim_values``. Out: one ``dim_values`` node, or a constant when no symbol is
left. Not its business: floats, and tensors beyond ``EFFORT.listed`` elements.

The numbers are mathematical integers: sizes do not overflow 64 bits, and a cast of a size to a narrower integer that
holds it keeps its value, so casts between i32 and i64 pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import are_known, known_at_most, numbers
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim, bounds, is_nonneg, symbols
from tilewright.core.graph import CONST, Node
from tilewright.core.rewrite import Rewriting, Rule
from tilewright.core.types import product
from tilewright.ops.size_arithmetic import ARITHMETIC, COMPARISONS

SELECTING = (ops.slice, ops.gather, ops.transpose, ops.expand, ops.reverse)


def dims_of(node: Node) -> tuple[Dim, ...] | None:
    """The dimensions that an integer tensor holds, in row-major order, where they are known."""
    if node.op is ops.dim_values:
        dims: tuple[Dim, ...] = node.attrs["dims"]
        return dims
    if node.op is CONST and node.dtype.is_integer:
        array = node.attrs["data"].array
        return tuple(int(v) for v in array.reshape(-1)) if array.size <= EFFORT.listed else None
    if node.op is ops.reshape or (node.op is ops.cast and node.dtype is types.i64):
        return dims_of(node.inputs[0]) if node.inputs[0].dtype.is_integer else None
    return None


def _holds(b: Rewriting, node: Node, dims: Sequence[Dim]) -> Node | None:
    """``node`` as known dimensions; None where it already is in that form, or where data decide one of them."""
    if are_known(dims):
        return b.const(np.array(dims, np.int64).reshape([int(d) for d in _ints(node.shape)]))
    if not all(symbols(d) <= b.sizes for d in dims):
        return None
    made = b(ops.dim_values, dims=tuple(dims))
    result = made if made.shape == node.shape else b(ops.reshape, made, shape=node.shape)
    return None if result is node else result


def _ints(shape: Sequence[Dim]) -> list[int]:
    return numbers(shape)


def _is_known(node: Node) -> bool:
    """A small tensor with a symbolic dimension among its operands' elements; plain numbers are folded elsewhere."""
    n = product(node.shape)
    return known_at_most(n, EFFORT.listed) and any(_has_symbol(i) for i in node.inputs)


def _has_symbol(node: Node) -> bool:
    source = node
    while source.op in (ops.reshape, ops.cast):
        source = source.inputs[0]
    return source.op is ops.dim_values


def _dim_values(b: Rewriting, node: Node) -> Node | None:
    dims = node.attrs["dims"]
    return b.const(np.array(dims, np.int64)) if are_known(dims) else None


def _broadcast(node: Node, x: Node, dims: Sequence[Dim]) -> list[Dim]:
    """The dimensions of operand ``x`` stretched to the shape of ``node``."""
    at = np.arange(len(dims)).reshape(_ints(x.shape))
    return [dims[int(i)] for i in np.broadcast_to(at, _ints(node.shape)).reshape(-1)]


def _arithmetic(b: Rewriting, node: Node) -> Node | None:
    if node.dtype is not types.i64 or not _is_known(node):
        return None
    x, y = (dims_of(i) for i in node.inputs)
    if x is None or y is None:
        return None
    pairs = list(zip(_broadcast(node, node.inputs[0], x), _broadcast(node, node.inputs[1], y), strict=True))
    if node.op in (ops.floor_div, ops.mod) and not all(is_nonneg(d - 1) for _, d in pairs):
        return None
    return _holds(b, node, [ARITHMETIC[node.op](p, q) for p, q in pairs])


def _div(b: Rewriting, node: Node) -> Node | None:
    """Truncating division is flooring where nothing is negative."""
    if node.dtype is not types.i64 or not _is_known(node):
        return None
    x, y = (dims_of(i) for i in node.inputs)
    if x is None or y is None or not all(map(is_nonneg, x)) or not all(is_nonneg(d - 1) for d in y):
        return None
    return b(ops.floor_div, *node.inputs)


def _compare(b: Rewriting, node: Node) -> Node | None:
    if not node.inputs[0].dtype.is_integer or not _is_known(node):
        return None
    x, y = (dims_of(i) for i in node.inputs)
    if x is None or y is None:
        return None
    pairs = zip(_broadcast(node, node.inputs[0], x), _broadcast(node, node.inputs[1], y), strict=True)
    answers = [COMPARISONS[node.op](p, q) for p, q in pairs]
    return None if None in answers else b.const(np.array(answers, np.bool_).reshape(_ints(node.shape)))


def _select(b: Rewriting, node: Node) -> Node | None:
    """Slices, gathers, transposes and expands of dimensions: move their positions by the op's own reference."""
    x = node.inputs[0]
    if not _is_known(node) or any(i.op is not CONST for i in node.inputs[1:]) or not x.dtype.is_integer:
        return None
    dims = dims_of(x)
    if dims is None or x.dtype is not types.i64:
        return None
    at = np.arange(len(dims), dtype=np.int64).reshape(_ints(x.shape))
    moved = node.op.reference([at, *(i.attrs["data"].array for i in node.inputs[1:])], node.attrs)
    assert not isinstance(moved, tuple)
    return _holds(b, node, [dims[i] for i in moved.reshape(-1)])


def _concat(b: Rewriting, node: Node) -> Node | None:
    if node.dtype is not types.i64 or not _is_known(node):
        return None
    parts = [dims_of(x) for x in node.inputs]
    all_dims: list[Dim] = []
    numbered = []
    for x, part in zip(node.inputs, parts, strict=True):
        if part is None:
            return None
        numbered.append(np.arange(len(all_dims), len(all_dims) + len(part)).reshape(_ints(x.shape)))
        all_dims += part
    joined = np.concatenate(numbered, node.attrs["axis"])
    return _holds(b, node, [all_dims[i] for i in joined.reshape(-1)])


def _reduce(b: Rewriting, node: Node) -> Node | None:
    """The product, sum or extreme of all dimensions."""
    x = node.inputs[0]
    if node.dtype is not types.i64 or not _is_known(node) or len(node.attrs["axes"]) != x.type.rank:
        return None
    dims = dims_of(x)
    if not dims:
        return None
    result = dims[0]
    for d in dims[1:]:
        result = result * d if node.op is ops.reduce_prod else result + d
    return _holds(b, node, [result])


def _dynamic_slice(b: Rewriting, node: Node) -> Node | None:
    """A window at a known place that lies inside is a slice."""
    x, starts = node.inputs
    at, sizes = dims_of(starts), node.attrs["sizes"]
    if at is None or not all(symbols(s) <= b.sizes for s in at):
        return None
    if not all(is_nonneg(s) and is_nonneg(n - s - w) for s, n, w in zip(at, x.shape, sizes, strict=True)):
        return None
    stops = [s + w for s, w in zip(at, sizes, strict=True)]
    return b(ops.slice, x, starts=at, stops=stops, steps=[1] * len(at))


def _cast_back(b: Rewriting, node: Node) -> Node | None:
    """i64 dimensions through i32 and back; a dimension that i32 may not hold stays cast."""
    x = node.inputs[0]
    if node.dtype is not types.i64 or x.op is not ops.cast or not _has_symbol(x):
        return None
    dims = dims_of(x.inputs[0])
    if dims is None or x.inputs[0].dtype is not types.i64 or not x.dtype.is_integer:
        return None
    for d in dims:
        lo, hi = bounds(d)
        if lo is None or lo < x.dtype.min or hi is None or hi > x.dtype.max:
            return None
    return x.inputs[0]


RULES = (
    Rule("dim-values", (ops.dim_values,), _dim_values, "without symbols it is a constant"),
    Rule("dims-arithmetic", tuple(ARITHMETIC), _arithmetic, "index expressions are integer arithmetic"),
    Rule("dims-div", (ops.div,), _div, "truncation is flooring for what is not negative"),
    Rule("dims-compare", tuple(COMPARISONS), _compare, "bounds of symbols decide"),
    Rule("dims-select", SELECTING, _select, "elements move whole"),
    Rule("dims-concat", (ops.concat,), _concat, "elements move whole"),
    Rule("dims-reduce", (ops.reduce_prod, ops.reduce_sum), _reduce, "index expressions are integer arithmetic"),
    Rule("dims-cast", (ops.cast,), _cast_back, "the narrower integer held the value"),
    Rule("dynamic-slice", (ops.dynamic_slice,), _dynamic_slice, "the place is known and needs no clamping"),
)  # fmt: skip
