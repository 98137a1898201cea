"""Operations that move elements to places known from sizes: broadcasts, reshapes, slices, pads, concatenations.

In: calls, also those whose sizes are operands: these must follow from the sizes of inputs. Out: nodes or pairs.
Not its business: places that the data choose (``index``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.moves import pad_real
from tilewright.frontend.stablehlo.operation import Operation, Result, Value
from tilewright.frontend.stablehlo.ops.elementwise import as_pair

Convert = Callable[[Operation], Result]
Move = Callable[[Operation, Node], Node]


def each(c: Operation, x: Value, move: Callable[[Node], Node]) -> Value:
    """A movement of a real tensor, or of both parts of a complex one."""
    return Pair(move(x.re), move(x.im)) if isinstance(x, Pair) else move(x)


def _moved(move: Move) -> Convert:
    """A movement of the first operand."""
    return lambda c: each(c, c.operands[0], partial(move, c))


# --- shapes ---------------------------------------------------------------------------------------------------------


def broadcast(c: Operation, x: Node, shape: Sequence[Dim], axes: Sequence[int]) -> Node:
    """``x``, its axes at places ``axes`` of ``shape``."""
    ones: list[Dim] = [1] * len(shape)
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    x = c.transpose(x, order)
    for k, axis in enumerate(sorted(axes)):
        ones[axis] = x.shape[k]
    return c.expand(c.reshape(x, ones), shape)


def _broadcast_in_dim(c: Operation, x: Node) -> Node:
    return broadcast(c, x, c.walker.static_shape(c), c.ints("broadcast_dimensions"))


def _dynamic_broadcast(c: Operation, x: Node) -> Node:
    return broadcast(c, x, c.sizes(1), c.ints("broadcast_dimensions"))


def _reshape(c: Operation, x: Node) -> Node:
    return c.reshape(x, c.walker.static_shape(c))


def _dynamic_reshape(c: Operation, x: Node) -> Node:
    return c.reshape(x, c.sizes(1))


def _transpose(c: Operation, x: Node) -> Node:
    return c.transpose(x, c.ints("permutation"))


def _size(c: Operation) -> Node:
    """A size as a number."""
    x = c.operands[0]
    return c.reshape(c.cast(c.dims([x.shape[c.integer("dimension")]]), c.type().dtype), ())


def _reverse(c: Operation, x: Node) -> Node:
    axes = c.ints("dimensions")
    return c.b(ops.reverse, x, axes=axes) if axes else x


# --- boxes ----------------------------------------------------------------------------------------------------------


def _slice(c: Operation, x: Node) -> Node:
    return strided(c, x, c.ints("start_indices"), c.ints("limit_indices"), c.ints("strides", (1,) * len(x.shape)))


def strided(c: Operation, x: Node, starts: Sequence[Dim], stops: Sequence[Dim], steps: Sequence[int]) -> Node:
    """Every step-th element of a box."""
    if all(s == 1 for s in steps) and all(n == 0 for n in starts) and tuple(stops) == x.shape:
        return x
    return c.b(ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def _real_dynamic_slice(c: Operation, x: Node) -> Node:
    steps = c.numbers(3, "a step that is not a number")
    return strided(c, x, c.sizes(1), c.sizes(2), steps)


def _pad(c: Operation) -> Value:
    low, high, between = (c.ints(f"{k}") for k in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return padded(c, c.operands[0], c.operands[1], list(zip(low, high, strict=True)), between)


def _dynamic_pad(c: Operation) -> Value:
    low, high, between = c.sizes(2), c.sizes(3), c.numbers(4, "padding between elements by a size")
    return padded(c, c.operands[0], c.operands[1], list(zip(low, high, strict=True)), between)


def padded(c: Operation, x: Value, value: Value, edges: Sequence[tuple[Dim, Dim]], between: Sequence[int]) -> Value:
    """``x`` with ``value`` between its elements and at its edges, where negative counts crop."""
    if isinstance(x, Pair) or isinstance(value, Pair):
        pair, filler = as_pair(c, x), as_pair(c, value)
        return Pair(pad_real(c, pair.re, filler.re, edges, between), pad_real(c, pair.im, filler.im, edges, between))
    return pad_real(c, x, value, edges, between)


def _concatenate(c: Operation) -> Value:
    axis = c.integer("dimension")
    if any(isinstance(x, Pair) for x in c.operands):
        pairs = [as_pair(c, x) for x in c.operands]
        parts = ([x.re for x in pairs], [x.im for x in pairs])
        return Pair(*(c.b(ops.concat, *part, axis=axis) for part in parts))
    nodes = c.nodes()
    return nodes[0] if len(nodes) == 1 else c.b(ops.concat, *nodes, axis=axis)


TABLE: Mapping[str, Convert] = {
    f"stablehlo.{name}": made
    for name, made in {
        "broadcast_in_dim": _moved(_broadcast_in_dim),
        "dynamic_broadcast_in_dim": _moved(_dynamic_broadcast),
        "reshape": _moved(_reshape),
        "dynamic_reshape": _moved(_dynamic_reshape),
        "transpose": _moved(_transpose),
        "get_dimension_size": _size,
        "reverse": _moved(_reverse),
        "slice": _moved(_slice),
        "real_dynamic_slice": _moved(_real_dynamic_slice),
        "pad": _pad,
        "dynamic_pad": _dynamic_pad,
        "concatenate": _concatenate,
    }.items()
}
