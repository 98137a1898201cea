"""What passes ask of a node before they rewrite it.

In: nodes. Out: constants' numbers, broadcast shapes, exactness of casts. Not its business: any rewrite.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import Array, DType

ELEMENTWISE = tuple(op for op in ops.ALL if Trait.ELEMENTWISE in op.traits)
MANTISSA_BITS = {types.f16: 11, types.bf16: 8, types.f32: 24, types.f64: 53}

Number = int | float | bool


def nodes_inside(graph: Graph) -> Iterator[Node]:
    """All nodes, those of graphs inside a node before it."""
    for node in graph.nodes():
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from nodes_inside(value)
        yield node


def array_of(node: Node) -> Array | None:
    """A constant's numbers, or None."""
    if node.op is not CONST:
        return None
    array: Array = node.attrs["data"].array
    return array


def scalar(node: Node) -> Number | None:
    """The number of a constant that has one element; None for anything else and for NaN."""
    if node.op is not CONST:
        return None
    array = node.attrs["data"].array
    if array.size != 1:
        return None
    value: Number = array.item()
    return value if value == value else None


def is_scalar(node: Node, value: Number) -> bool:
    """Is ``node`` a constant of one element, equal to ``value``?"""
    return scalar(node) == value


def is_near(node: Node, value: float) -> bool:
    """Is ``node`` a constant of one element that ``value`` rounds to, give or take the last bits of its dtype?

    For recognising published formulas, whose constants exporters write with 6 to 17 digits.
    """
    found = scalar(node)
    tolerance = 2.0 ** (1 - min(MANTISSA_BITS.get(node.dtype, 0), 20))
    return found is not None and abs(found - value) <= tolerance * abs(value)


def uniform(node: Node) -> Number | None:
    """The number that all elements of a constant of moderate size share, or None; NaN counts as no number."""
    array = array_of(node)
    if array is None or not 0 < array.size <= EFFORT.elements:
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if flat[-1] != first or not (flat == first).all():
        return None
    if first == 0 and node.dtype.is_float and (np.signbit(flat) != np.signbit(first)).any():
        return None
    value: Number = first.item()
    return value


def broadcast_shape(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...] | None:
    """NumPy's broadcast of shapes; None where symbolic dimensions leave it open."""
    rank = max(len(s) for s in shapes)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for k, d in enumerate(shape, rank - len(shape)):
            if result[k] == 1:
                result[k] = d
            elif d != 1 and d != result[k]:
                return None
    return tuple(result)


def is_lossless(source: DType, target: DType) -> bool:
    """Does ``target`` hold every value of ``source``?"""
    if source is target or source is types.bool_:
        return True
    if target is types.bool_:
        return False
    if source.is_float:
        wider = target.is_float and MANTISSA_BITS[target] >= MANTISSA_BITS[source] and target.max >= source.max
        return wider and {source, target} != {types.f16, types.bf16}
    if target.is_float:
        return source.bits - (source.kind == "int") <= MANTISSA_BITS[target] and source.max <= target.max
    return source.min >= target.min and source.max <= target.max


def has_symbols(value: Any) -> bool:
    """Does an attribute's value hold a symbolic dimension?"""
    if isinstance(value, tuple):
        return any(has_symbols(v) for v in value)
    return hasattr(value, "terms")


@functools.cache
def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes ``perm``."""
    result = [0] * len(perm)
    for k, p in enumerate(perm):
        result[p] = k
    return tuple(result)


def factors(node: Node, most: int = 8) -> list[Node]:
    """The operands of a product of products, at most ``most``; the node alone when it is no product."""
    found: list[Node] = []
    stack = [node]
    while stack:
        n = stack.pop()
        if n.op is ops.mul and len(found) + len(stack) + 2 <= most:
            stack += reversed(n.inputs)
        else:
            found.append(n)
    return found


def without(nodes: Sequence[Node], *taken: Node) -> list[Node] | None:
    """``nodes`` less each of ``taken`` once; None when one is not there."""
    rest = list(nodes)
    for t in taken:
        at = next((k for k, n in enumerate(rest) if n is t), None)
        if at is None:
            return None
        del rest[at]
    return rest
