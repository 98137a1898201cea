"""The pass ``fold-affine``: scales and shifts by constants go into the weights and biases of contractions.

In: a graph. Out: a graph where a batch norm after a convolution is a bias, and a scale beside a product of matrices is
in its weight. Not its business: constants beside constants (``canonical.fold``), and integer ops.

Weights change by one rounding of their dtype. A bias stays an addition after the contraction: it is an epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright import ops
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import Array
from tilewright.graph.facts import array_of

CONTRACTIONS = (ops.conv, ops.conv_transpose, ops.matmul)


def result_axis(node: Node) -> int:
    """The axis of a contraction's result along which its weight has a number each."""
    return node.type.rank - 1 if node.op is ops.matmul or node.attrs["layout"] == "NHWC" else 1


def along(c: Node, rank: int, axis: int) -> Array | None:
    """A constant that varies along ``axis`` of a tensor of ``rank`` only, as a vector; None otherwise."""
    array = array_of(c)
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    return array.reshape(-1) if all(d == 1 for k, d in enumerate(shape) if k != axis) else None


def spread(vector: Array, axis: int, rank: int) -> Array:
    """A number for each place along ``axis`` in a shape that broadcasts with a tensor of ``rank``."""
    return vector.reshape(-1, *[1] * (rank - axis - 1))


def _is_foldable(b: Rewriting, node: Node) -> bool:
    """A contraction in floats with a constant weight, read by one node only."""
    return (
        node.op in CONTRACTIONS
        and node.dtype.is_float
        and node.inputs[0].dtype is node.dtype
        and node.inputs[1].op is CONST
        and b.read_once(node)
    )


def _with_weight(b: Rewriting, node: Node, x: Node, weight: Array) -> Node:
    dtype = node.inputs[1].dtype.numpy
    return b.at(node.loc)(node.op, x, b.const(np.asarray(weight).astype(dtype, copy=False)), **node.attrs)


def _scaled_result(b: Rewriting, node: Node, scale: Array) -> Node | None:
    """The contraction with each column, or output channel, of its weight scaled."""
    weight = array_of(node.inputs[1])
    assert weight is not None
    if node.op is ops.matmul:
        return _with_weight(b, node, node.inputs[0], weight * scale)
    if node.op is ops.conv_transpose:
        if node.attrs["groups"] != 1 and scale.size != 1:
            return None
        return _with_weight(b, node, node.inputs[0], weight * scale.reshape(1, -1, *[1] * (weight.ndim - 2)))
    return _with_weight(b, node, node.inputs[0], weight * scale.reshape(-1, *[1] * (weight.ndim - 1)))


# --- rules ----------------------------------------------------------------------------------------------------------


def _batch_norm(b: Rewriting, node: Node) -> Node | None:
    """x * factor + shift, with both known."""
    x, *params = node.inputs
    arrays = [array_of(p) for p in params]
    if any(a is None for a in arrays):
        return None
    scale, bias, mean, var = (np.asarray(a, np.float64) for a in arrays)
    factor = scale / np.sqrt(var + node.attrs["epsilon"])
    shift = bias - mean * factor
    shape = [-1 if k == node.attrs["axis"] else 1 for k in range(node.type.rank)]
    factor, shift = (v.reshape(shape).astype(node.dtype.numpy) for v in (factor, shift))
    return b(ops.add, b(ops.mul, x, b.const(factor)), b.const(shift))


def _scale_result(b: Rewriting, node: Node) -> Node | None:
    """A constant scale after a contraction joins its weight; one after its bias scales that too."""
    inner, c = node.inputs
    if c.op is not CONST or inner.type != node.type:
        return None
    shift = None
    if inner.op is ops.add and inner.inputs[1].op is CONST and b.read_once(inner):
        inner, shift = inner.inputs
    if inner.type != node.type or not _is_foldable(b, inner):
        return None
    scale = along(c, node.type.rank, result_axis(inner))
    if scale is None:
        return None
    if node.op is ops.div:
        scale = 1 / scale.astype(np.float64)
    scaled = _scaled_result(b, inner, scale)
    if scaled is None or shift is None:
        return scaled
    return b(ops.add, scaled, b(node.op, shift, c))


def _merge_shifts(b: Rewriting, node: Node) -> Node | None:
    """Two constant shifts after a contraction are one."""
    inner, c = node.inputs
    if c.op is not CONST or inner.op is not ops.add or inner.inputs[1].op is not CONST or not b.read_once(inner):
        return None
    if inner.inputs[0].op not in CONTRACTIONS or inner.inputs[0].type != node.type:
        return None
    return b(ops.add, inner.inputs[0], b(ops.add, inner.inputs[1], c))


def _scale_operand(b: Rewriting, node: Node) -> Node | None:
    """A constant scale before a contraction joins its weight; zero padding stays zero."""
    x, w = node.inputs
    if x.op is not ops.mul or w.op is not CONST or not node.dtype.is_float or not b.read_once(x):
        return None
    if x.inputs[0].type != x.type or x.dtype is not node.dtype:
        return None
    axis = x.type.rank - 1 if node.op is ops.matmul or node.attrs["layout"] == "NHWC" else 1
    scale, weight = along(x.inputs[1], x.type.rank, axis), array_of(w)
    if scale is None or weight is None:
        return None
    if node.op is ops.matmul:
        return _with_weight(b, node, x.inputs[0], weight * scale.reshape(-1, 1))
    groups, n_out = node.attrs["groups"], weight.shape[0]
    if scale.size == 1:
        return _with_weight(b, node, x.inputs[0], weight * scale.reshape([1] * weight.ndim))
    per_out = np.repeat(scale.reshape(groups, -1), n_out // groups, axis=0)
    return _with_weight(b, node, x.inputs[0], weight * per_out.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)))


TABLE = RuleTable(
    (
        Rule("batch-norm", (ops.batch_norm,), _batch_norm, "known statistics make it one scale and one shift"),
        Rule("scale-result", (ops.mul, ops.div), _scale_result, "contractions are linear"),
        Rule("merge-shifts", (ops.add,), _merge_shifts, "addition is associative but for rounding"),
        Rule("scale-operand", (ops.conv, ops.matmul), _scale_operand, "contractions are linear"),
    )
)


@dataclass(frozen=True)
class FoldAffine(Pass):
    """Folds batch norms, scales and shifts by constants into contractions with constant weights.

    It does not fire on a contraction that something else reads too, on scales that vary along other axes than the
    weight, on shifts before a convolution (the padding would need them), or on integers.
    """

    name: ClassVar[str] = "fold-affine"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        with np.errstate(all="ignore"):  # weights of a trained model may hold anything
            return rewrite(graph, TABLE, journal)
