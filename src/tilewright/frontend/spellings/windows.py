"""Convolutions and pools as formats have them: channels first, padding not negative, averages over what is there.

In: nodes of window ops. Out: the same ops in the common form, between transpositions, pads and divisions.
Not its business: forms that the common one holds already, which a writer writes itself.
"""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import f64
from tilewright.frontend.nodes import transpose
from tilewright.frontend.spellings.spelling import Spelling, number


def _channels_first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _channels_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _turned(b: Builder, node: Node) -> Node | tuple[Node, ...] | None:
    """The node over channels first, its results turned back; None where they are first already."""
    if node.attrs["layout"] == "NCHW":
        return None
    x, *others = node.inputs
    rank = len(x.shape)
    made = b(node.op, transpose(b, x, _channels_first(rank)), *others, **{**node.attrs, "layout": "NCHW"})
    results = tuple(transpose(b, r, _channels_last(rank)) for r in b.results(made))
    return results[0] if len(results) == 1 else results


def _padded(b: Builder, node: Node, outside: float) -> tuple[Node, dict[str, Any]] | None:
    """The operand with its padding as elements, and attributes without it; None where padding is plain."""
    pads = node.attrs["pads"]
    if all(is_known(p) and p >= 0 for pair in pads for p in pair):
        return None
    x = node.inputs[0]
    whole: list[tuple[Dim, Dim]] = [(0, 0), (0, 0), *pads]
    made = b(ops.pad, x, number(b, outside, x), pads=tuple(whole), mode="constant")
    return made, {**node.attrs, "pads": ((0, 0),) * len(pads)}


def _conv(b: Builder, node: Node) -> Node | tuple[Node, ...]:
    turned = _turned(b, node)
    if turned is not None:
        return turned
    padded = _padded(b, node, 0)
    if padded is not None:
        return b(ops.conv, padded[0], *node.inputs[1:], **padded[1])
    return _widened(b, node)


def _conv_transpose(b: Builder, node: Node) -> Node | tuple[Node, ...]:
    turned = _turned(b, node)
    if turned is not None:
        return turned
    pads = node.attrs["pads"]
    if any(not is_known(p) or p < 0 for pair in pads for p in pair):
        # Padding of a transposed convolution crops its result, so negative padding is what surrounds it.
        plain = b(ops.conv_transpose, *node.inputs, **{**node.attrs, "pads": ((0, 0),) * len(pads)})
        around = ((0, 0), (0, 0), *((-lo, -hi) for lo, hi in pads))
        return b(ops.pad, plain, number(b, 0, plain), pads=around, mode="constant")
    return _widened(b, node)


def _widened(b: Builder, node: Node) -> Node:
    """A product whose result is of another type than its operands: over operands of that type."""
    dtype, given = node.dtype, [x.dtype for x in node.inputs]
    if all(d is dtype for d in given):
        raise OpError(f"there is no {node.op.name} of this form")
    operands = [b(ops.cast, x, dtype=dtype) if x.dtype is not dtype else x for x in node.inputs]
    return b(node.op, *operands, **{**node.attrs, "out_dtype": None})


def _max_pool(b: Builder, node: Node) -> Node | tuple[Node, ...]:
    turned = _turned(b, node)
    if turned is not None:
        return turned
    x = node.inputs[0]
    if x.dtype.is_float or x.dtype.bits > 32:
        raise OpError(f"there is no maximum over windows of this form of {x.dtype}")
    # f64 holds every integer of 32 bits.
    value, *places = b.results(b(node.op, b(ops.cast, x, dtype=f64), **node.attrs))
    return (b(ops.cast, value, dtype=x.dtype), *places)


def _avg_pool(b: Builder, node: Node) -> Node | tuple[Node, ...]:
    """Sums, from averages that count the padding; divided by what the op counts."""
    turned = _turned(b, node)
    if turned is not None:
        return turned
    a, x = node.attrs, node.inputs[0]
    extra = a["ceil_pads"] or (0,) * len(a["pads"])
    if a["count_include_pad"] and not a["divisor"] and not any(extra):
        raise OpError("there is no average over whole windows of this form")  # of which all others are made
    pads = tuple((lo, hi + more) for (lo, hi), more in zip(a["pads"], extra, strict=True))
    n_taps = 1
    for k in a["kernel"]:
        if not is_known(k):
            raise OpError("the window's size is not known")
        n_taps *= k

    def average(of: Node, pads: tuple[tuple[Dim, Dim], ...]) -> Node:
        """The mean over whole windows of what is padded with zeros."""
        whole = {**a, "pads": pads, "ceil_pads": (), "divisor": 0, "count_include_pad": True}
        return b(ops.avg_pool, of, **whole)

    mean = average(x, pads)
    if a["divisor"]:
        return b(ops.mul, mean, number(b, n_taps / a["divisor"], x))
    # What counts is 1: the elements, and the padding itself where that is asked for, but never the end's extra.
    inside = (1, 1, *x.shape[2:])
    ones = b(ops.expand, number(b, 1, x), shape=inside)
    if a["count_include_pad"]:
        around = ((0, 0), (0, 0), *a["pads"])
        ones = b(ops.pad, ones, number(b, 1, x), pads=around, mode="constant")
        return b(ops.div, mean, average(ones, tuple((0, more) for more in extra)))
    return b(ops.div, mean, average(ones, pads))


def _batch_norm(b: Builder, node: Node) -> Node:
    """Over channels that come second."""
    axis, rank = node.attrs["axis"], len(node.inputs[0].shape)
    if axis == 1:
        raise OpError("there is no batch normalisation of this form")
    there = [axis, *(k for k in range(rank) if k != axis)]
    there = [there[1], there[0], *there[2:]] if rank > 1 else there
    x, *numbers = node.inputs
    made = b(ops.batch_norm, transpose(b, x, there), *numbers, **{**node.attrs, "axis": 1})
    return transpose(b, made, [there.index(k) for k in range(rank)])


SPELLINGS: dict[OpDef, Spelling] = {
    ops.conv: _conv, ops.conv_transpose: _conv_transpose, ops.matmul: _widened, ops.max_pool: _max_pool,
    ops.max_pool_indices: _max_pool, ops.avg_pool: _avg_pool, ops.batch_norm: _batch_norm,
}  # fmt: skip
