"""The pass ``depthwise-floats``: sums of a few products of bytes are computed in f32, where they are exact.

In: a graph in which depthwise convolutions of bytes add up in i32 and become floats (``integers``). Out: the same
numbers from convolutions in f32. Not its business: convolutions that mix channels, which have instructions for groups
of bytes.

Lanes of a depthwise convolution are channels, so no instruction that adds a group of bytes fits it, and a
multiplication of 32-bit integers takes a vector CPU two or three steps where a fused multiply-add of floats takes one.
Machines on which it takes one (``has_word_fma`` of a ``Target``) keep bytes, which need a quarter of the memory.
A sum of products of bytes is a whole number; while none of its parts reaches 2**24, f32 holds each exactly, whatever
the order. Nine products of bytes stay below 2**19.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.graph.facts import MANTISSA_BITS, array_of

BYTE = (types.i8, types.u8)


@dataclass(frozen=True)
class DepthwiseFloats(Pass):
    """``cast(conv(x, w) + c)`` of bytes becomes ``conv(cast(x), cast(w)) + cast(c)``, all in f32.

    It fires on convolutions of each channel with constant weights of its own, where no sum of a part of the products
    can reach ``exact_below``. It does not fire where the sums are read as integers.
    """

    name: ClassVar[str] = "depthwise-floats"
    exact_below: int = 1 << MANTISSA_BITS[types.f32]

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        why = "f32 holds every part of the sums exactly"
        rule = Rule("sums-in-floats", (ops.cast,), lambda b, node: _in_floats(b, node, self.exact_below), why)
        return rewrite(graph, RuleTable([rule]), journal)


def _in_floats(b: Rewriting, node: Node, exact_below: int) -> Node | None:
    sums = node.inputs[0]
    if node.dtype is not types.f32 or sums.dtype is not types.i32:
        return None
    added = array_of(sums.inputs[1]) if sums.op is ops.add else None
    convolution = sums if added is None else sums.inputs[0]
    if convolution.op is not ops.conv or convolution.shape != sums.shape:
        return None
    x, weights = convolution.inputs[0], array_of(convolution.inputs[1])
    if x.dtype not in BYTE or weights is None or weights.shape[1] != 1 or convolution.attrs["groups"] == 1:
        return None
    greatest = np.abs(weights.astype(np.int64)).sum(axis=tuple(range(1, weights.ndim))).max(initial=0)
    further = 0 if added is None else np.abs(added.astype(np.int64)).max(initial=0)
    if greatest * (1 << x.dtype.bits) + further >= exact_below:
        return None
    attrs = {**convolution.attrs, "out_dtype": None}
    y = b(ops.conv, b(ops.cast, x, dtype=types.f32), b.const(weights.astype(np.float32)), **attrs)
    return y if added is None else b(ops.add, y, b.const(added.astype(np.float32)))
