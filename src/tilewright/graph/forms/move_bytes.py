"""The pass ``move-bytes``: ops that only move numbers, or take the greatest of them, work on the bytes that are stored.

In: a graph in which operands of such ops are dequantised. Out: an equal graph in which the op comes first and its
result is dequantised, so that what is written between kernels is a byte for each number, and a product behind it finds
its operand in bytes. Quantising what was dequantised by the same scale and zero point is nothing.
Not its business: products (``integers``), arithmetic on bytes of different scales (``requantise``).

``(k - zero) * scale`` grows with ``k`` for a positive scale, and rounding keeps the order. So the greatest number is
the one of the greatest byte, and no step of this pass changes a bit of any result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.dims import is_padded, known_under
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.graph.facts import array_of, scalar
from tilewright.ops.quant import QUANTISED

ONE_OPERAND = (
    ops.reshape, ops.transpose, ops.slice, ops.reverse, ops.roll, ops.depth_to_space, ops.space_to_depth, ops.gather,
    ops.resize, ops.max_pool,
)  # fmt: skip
"""Ops that move numbers of their first operand; ``concat`` and ``pad`` have rules of their own."""


@dataclass(frozen=True)
class MoveBytes(Pass):
    """``op(dequantize(x))`` becomes ``dequantize(op(x))``, and ``quantize(dequantize(x))`` becomes ``x``.

    It fires on one scale and zero point for the whole tensor, and for ``concat`` where all operands have the same ones.
    It does not fire on weights (constants), on scales for each channel or block, on resizing that interpolates or that
    fills in what lies outside, on pooling windows that may lie wholly in the padding, on padding with a number that has
    no byte, and on scales that are not positive normal numbers.
    """

    name: ClassVar[str] = "move-bytes"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


def _is_stored(node: Node) -> bool:
    """Is it a tensor that the call makes, in whole numbers of one scale and zero point?"""
    if node.op is not ops.dequantize_linear:
        return False
    x, scale, zero = node.inputs
    step = scalar(scale) if scale.type.rank == 0 else None
    is_known = step is not None and zero.op is CONST and scale.dtype is types.f32
    return bool(is_known and x.op is not CONST and x.dtype in QUANTISED and _is_normal(step))


def _is_normal(step: float | int | bool | None) -> bool:
    """Is every multiple of the step by a stored number a normal number, so that dividing gives the number back?"""
    info, most = np.finfo(np.float32), int(types.u16.max)
    return step is not None and float(info.tiny) <= step <= float(info.max) / most


def _dequantised(b: Rewriting, x: Node, like: Node) -> Node:
    return b(ops.dequantize_linear, x, *like.inputs[1:], axis=0)


def _moved(b: Rewriting, node: Node) -> Node | None:
    x, *rest = node.inputs
    if not _is_stored(x) or not _only_moves(node):
        return None
    return _dequantised(b, b(node.op, x.inputs[0], *rest, **node.attrs), x)


def _only_moves(node: Node) -> bool:
    a = node.attrs
    if node.op is ops.resize:
        return bool(a["mode"] == "nearest" and a["coordinate_mode"] != "tf_crop_and_resize")
    if node.op is ops.max_pool:
        # A window without a single number has -inf in floats and the least byte in bytes.
        if not is_padded(a["pads"]):
            return True
        meets = all(known_under(n, k) for pad, k in zip(a["pads"], a["kernel"], strict=True) for n in pad)
        return meets and all(d == 1 for d in a["dilations"] or ())
    return True


def _concat(b: Rewriting, node: Node) -> Node | None:
    first = node.inputs[0]
    if not all(_is_stored(x) and _same_steps(x, first) for x in node.inputs):
        return None
    return _dequantised(b, b(ops.concat, *[x.inputs[0] for x in node.inputs], **node.attrs), first)


def _same_steps(x: Node, y: Node) -> bool:
    same_type = x.inputs[0].dtype is y.inputs[0].dtype
    return same_type and all(scalar(p) == scalar(q) for p, q in zip(x.inputs[1:], y.inputs[1:], strict=True))


def _pad(b: Rewriting, node: Node) -> Node | None:
    x, value = node.inputs
    number = scalar(value)
    if not _is_stored(x):
        return None
    step, zero, dtype = scalar(x.inputs[1]), scalar(x.inputs[2]), x.inputs[0].dtype
    assert step is not None
    assert zero is not None
    if node.attrs["mode"] != "constant":
        number = 0.0  # is read nowhere
    if number is None:
        return None
    stored = int(np.rint(number / step)) + int(zero) if np.isfinite(number / step) else int(dtype.max) + 1
    if not dtype.min <= stored <= dtype.max or np.float32(stored - int(zero)) * np.float32(step) != np.float32(number):
        return None
    return _dequantised(b, b(ops.pad, x.inputs[0], b.const(stored, dtype), **node.attrs), x)


def _again(b: Rewriting, node: Node) -> Node | None:
    x, scale, zero = node.inputs
    if not _is_stored(x) or x.inputs[0].dtype is not node.dtype or scale.type.rank:
        return None
    same = scalar(scale) == scalar(x.inputs[1]) and scalar(zero) == scalar(x.inputs[2])
    return x.inputs[0] if same and array_of(zero) is not None else None


RULES = RuleTable(
    (
        Rule("move-stored", ONE_OPERAND, _moved, "the op chooses among numbers, and their order is that of the bytes"),
        Rule("join-stored", (ops.concat,), _concat, "operands of one scale are joined as they are stored"),
        Rule("pad-stored", (ops.pad,), _pad, "what is added around has a byte"),
        Rule("stored-again", (ops.quantize_linear,), _again, "rounding k * scale / scale gives k"),
    )
)
