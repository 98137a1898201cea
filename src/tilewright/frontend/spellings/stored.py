"""Products with weights of few bits or blocks, as products with what the weights stand for.

In: nodes whose weights are constants. Out: dequantised integers, or decoded and scaled floats, which formats have names
for. Not its business: which types of 4 bits a format stores numbers in.
"""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import numbers
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array
from tilewright.frontend.nodes import reshape
from tilewright.frontend.spellings.spelling import Spelling
from tilewright.ops.blocked import matrix_of
from tilewright.ops.coded import unpacked
from tilewright.ops.quads import matrix_of as matrix_of_quads
from tilewright.ops.scaled import HALVES


def _constants(node: Node) -> list[Array]:
    """The numbers of all operands but the first."""
    if any("data" not in x.attrs for x in node.inputs[1:]):
        raise OpError("codes that the call makes have no plainer form")
    return [x.attrs["data"].array for x in node.inputs[1:]]


def _scales(b: Builder, scales: Array) -> Node:
    """Scales as f32, stored in the type that they have."""
    return b(ops.cast, b.const(scales), dtype=types.f32) if scales.dtype != np.float32 else b.const(scales)


def _whole_scales(b: Builder, scales: Array, units: Array) -> Node:
    """Scales that are whole numbers of units, f32[groups, columns]."""
    whole = scales.reshape(len(scales), -1)
    each = _scales(b, units.reshape(len(units), -1))
    zeros = b.const(np.zeros((len(units), whole.shape[1]), np.int8))
    return b(ops.dequantize_linear, b.const(whole), each, zeros, axis=0, block_size=len(scales) // len(units))


def _coded_matmul(b: Builder, node: Node) -> Node:
    words, scales, zeros, *units = _constants(node)
    bits, levels, depth = node.attrs["bits"], node.attrs["levels"], len(words)
    codes = unpacked(words, bits).reshape(depth, -1).astype(np.uint8)
    stored = np.array(levels, np.uint8)[codes] if levels else codes
    n_groups = len(scales)
    points = np.broadcast_to(zeros, scales.shape).reshape(n_groups, -1)
    each = _scales(b, scales.reshape(n_groups, -1)) if not units else _whole_scales(b, scales, *units)
    w = b(
        ops.dequantize_linear, b.const(stored), each,
        b.const(np.ascontiguousarray(points)), axis=0, block_size=depth // n_groups,
    )  # fmt: skip
    return reshape(b, b(ops.matmul, node.inputs[0], w), node.shape)


def _scaled_matmul(b: Builder, node: Node) -> Node:
    w, scales = _constants(node)
    (depth, n), dtype = w.shape, node.attrs["dtype"]
    if dtype not in HALVES:
        numbers = b(ops.cast, b.const(w), dtype=types.f32)
    else:
        numbers = b(ops.decode, b.const(w.view(dtype.numpy)))
    if (scales != 1).any():
        apart = reshape(b, numbers, (len(scales), depth // len(scales), n))
        each = reshape(b, _scales(b, scales), (len(scales), 1, n))
        numbers = reshape(b, b(ops.mul, apart, each), (depth, n))
    return b(ops.matmul, node.inputs[0], numbers)


def _block_matmul(b: Builder, node: Node) -> Node:
    blocks, places = _constants(node)
    x = node.inputs[0]
    (depth,) = numbers(x.shape[1:])
    w = b.const(matrix_of(blocks, places, depth))
    return reshape(b, b(ops.matmul, x, w), node.shape)


def _quad_matmul(b: Builder, node: Node) -> Node:
    return reshape(b, b(ops.matmul, node.inputs[0], b.const(matrix_of_quads(*_constants(node)))), node.shape)


SPELLINGS: dict[OpDef, Spelling] = {
    ops.block_matmul: _block_matmul, ops.coded_matmul: _coded_matmul, ops.scaled_matmul: _scaled_matmul,
    ops.quad_matmul: _quad_matmul,
}  # fmt: skip
