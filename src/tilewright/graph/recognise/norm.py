"""Rules of ``recognise`` for softmax, layer norm and RMS norm.

In: the last node of a formula. Out: the composite. Not its business: activations and attention.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.rewrite import P, Rewriting, Rule, Var, const
from tilewright.core.types import product
from tilewright.graph.facts import array_of, factors, is_near, scalar, without

X = Var("x")
EPSILON = const("epsilon", lambda n: (scalar(n) or 0) > 0)
MAX = P(ops.reduce_max, X, name="max", where=lambda n: n.attrs["keepdims"] and len(n.attrs["axes"]) == 1)
SHIFTED = P(ops.sub, X, MAX)
EXP = P(ops.exp, SHIFTED)
BASE = const("base", lambda n: is_near(n, math.log2(math.e)))
EXP2 = P(ops.exp2, P(ops.mul, SHIFTED, BASE))


def _sum_over(total: Node, terms: Node, axes: tuple[int, ...]) -> bool:
    """Is ``total`` the sum of ``terms`` over ``axes``, dimensions kept?"""
    keeps = total.op is ops.reduce_sum and total.attrs["keepdims"]
    return keeps and total.inputs[0] is terms and total.attrs["axes"] == axes


def _softmax(b: Rewriting, node: Node) -> Node | None:
    """e / sum(e) with e = exp(x - max x), or the same to the base 2."""
    e, total = node.inputs
    if e.op not in (ops.exp, ops.exp2) or total.op is not ops.reduce_sum:
        return None
    m = EXP.match(e) or EXP2.match(e)
    if not m or not _sum_over(total, e, m["max"].attrs["axes"]):
        return None
    return b(ops.softmax, m["x"], axis=m["max"].attrs["axes"][0])


def _softmax_by_product(b: Rewriting, node: Node) -> Node | None:
    for e, inverse in (node.inputs, node.inputs[::-1]):
        if inverse.op is ops.reciprocal and e.op in (ops.exp, ops.exp2):
            m = EXP.match(e) or EXP2.match(e)
            if m and _sum_over(inverse.inputs[0], e, m["max"].attrs["axes"]):
                return b(ops.softmax, m["x"], axis=m["max"].attrs["axes"][0])
    return None


def _log_softmax(b: Rewriting, node: Node) -> Node | None:
    """z - log(sum(exp(z))) with z = x - max x."""
    z, log = node.inputs
    if log.op is not ops.log or log.inputs[0].op is not ops.reduce_sum:
        return None
    total = log.inputs[0]
    e = total.inputs[0]
    m = EXP.match(e) or EXP2.match(e)
    if not m or z is not (e if e.op is ops.exp else e.inputs[0]).inputs[0]:
        return None
    axes = m["max"].attrs["axes"]
    return b(ops.log_softmax, m["x"], axis=axes[0]) if _sum_over(total, e, axes) else None


def _log_of_softmax(b: Rewriting, node: Node) -> Node | None:
    x = node.inputs[0]
    return b(ops.log_softmax, x.inputs[0], axis=x.attrs["axis"]) if x.op is ops.softmax and b.read_once(x) else None


# --- layer norm and RMS norm ----------------------------------------------------------------------------------------

SQUARE_MEAN = P(ops.reduce_mean, P(ops.mul, X, X), name="mean", where=lambda n: n.attrs["keepdims"])
SPREAD = P(ops.add, SQUARE_MEAN, EPSILON)
VARIANCE = P(
    ops.variance, X, name="mean", where=lambda n: n.attrs["keepdims"] and n.attrs["correction"] == 0
)  # fmt: skip
VARIANCE_SPREAD = P(ops.add, VARIANCE, EPSILON)
CENTRED = P(ops.sub, X, P(ops.reduce_mean, X, name="mean", where=lambda n: n.attrs["keepdims"]))


def _first_axis(axes: tuple[int, ...], rank: int) -> int | None:
    """The first of ``axes`` when they are the last ones, in order."""
    first = rank - len(axes)
    return first if axes and axes == tuple(range(first, rank)) else None


def _normalised(b: Rewriting, x: Node, spread: Node) -> Node | None:
    """``x / sqrt(spread)`` as a layer norm, or as an RMS norm of scale one."""
    m = SPREAD.match(spread)
    if m and m["x"] is x:
        axis = _first_axis(m["mean"].attrs["axes"], x.type.rank)
        centred = CENTRED.match(x)
        if axis is None:
            return None
        epsilon = float(scalar(m["epsilon"]) or 0)
        if centred and centred["mean"].attrs["axes"] == m["mean"].attrs["axes"]:
            return b(ops.layer_norm, centred["x"], axis=axis, epsilon=epsilon)
        return b(ops.rms_norm, x, b.const(1.0, x.dtype), axis=axis, epsilon=epsilon)
    m, centred = VARIANCE_SPREAD.match(spread), CENTRED.match(x)
    if m and centred and m["x"] is centred["x"] and m["mean"].attrs["axes"] == centred["mean"].attrs["axes"]:
        axis = _first_axis(m["mean"].attrs["axes"], x.type.rank)
        if axis is not None:
            return b(ops.layer_norm, m["x"], axis=axis, epsilon=float(scalar(m["epsilon"]) or 0))
    return None


def _norm_by_product(b: Rewriting, node: Node) -> Node | None:
    """x * rsqrt(...) among other factors, which stay."""
    xs = factors(node, 4)
    for f in xs:
        if f.op is not ops.rsqrt:
            continue
        for x in xs:
            normal = _normalised(b, x, f.inputs[0]) if x is not f else None
            rest = without(xs, f, x)
            if normal is not None and rest is not None:
                for r in rest:
                    normal = b(ops.mul, normal, r)
                return normal
    return None


def _norm_by_division(b: Rewriting, node: Node) -> Node | None:
    x, root = node.inputs
    return _normalised(b, x, root.inputs[0]) if root.op is ops.sqrt else None


def _is_along_rows(param: Node, norm: Node) -> bool:
    """Does ``param`` vary along the normalised axes only?"""
    rank, axis = norm.type.rank, norm.attrs["axis"]
    lead = param.shape[: max(param.type.rank - (rank - axis), 0)]
    return param.type.rank <= rank and product(lead) == 1


def _row_param(b: Rewriting, param: Node, norm: Node) -> Node:
    """``param`` without leading dimensions of size 1."""
    extra = max(param.type.rank - (norm.type.rank - norm.attrs["axis"]), 0)
    return b(ops.reshape, param, shape=param.shape[extra:]) if extra else param


def _layer_norm_scale(b: Rewriting, node: Node) -> Node | None:
    return _with_param(b, node, 0)


def _layer_norm_bias(b: Rewriting, node: Node) -> Node | None:
    return _with_param(b, node, 1)


def _with_param(b: Rewriting, node: Node, n_params: int) -> Node | None:
    """The next parameter of a layer norm that has ``n_params``."""
    for norm, param in (node.inputs, node.inputs[::-1]):
        if norm.op is not ops.layer_norm or len(norm.inputs) != 1 + n_params or not b.read_once(norm):
            continue
        if norm.type == node.type and param.dtype is norm.dtype and _is_along_rows(param, norm):
            return b(ops.layer_norm, *norm.inputs, _row_param(b, param, norm), **norm.attrs)
    return None


def _rms_norm_scale(b: Rewriting, node: Node) -> Node | None:
    for norm, param in (node.inputs, node.inputs[::-1]):
        if norm.op is not ops.rms_norm or scalar(norm.inputs[1]) != 1 or not b.read_once(norm):
            continue
        if norm.type == node.type and param.dtype is norm.dtype and _is_along_rows(param, norm):
            return b(ops.rms_norm, norm.inputs[0], _row_param(b, param, norm), **norm.attrs)
    return None


def _group_norm(b: Rewriting, node: Node) -> Node | None:
    """Channels and positions merged by groups, an instance norm over them, and taken apart again."""
    norm = node.inputs[0]
    if norm.op is not ops.instance_norm or norm.inputs[0].op is not ops.reshape:
        return None
    x, arrays = norm.inputs[0].inputs[0], [array_of(p) for p in norm.inputs[1:]]
    if not x.shape[2:] or any(a is None for a in arrays):
        return None
    channels, groups = x.shape[1], norm.shape[1]
    if not is_known(channels) or not is_known(groups) or channels % groups or x.shape[0] != norm.shape[0]:
        return None
    params = [b.const(np.repeat(a, channels // groups)) for a in arrays if a is not None]
    normal = b(ops.group_norm, x, *params, groups=groups, epsilon=norm.attrs["epsilon"])
    return normal if normal.shape == node.shape else b(ops.reshape, normal, shape=node.shape)


RULES = (
    Rule("group-norm", (ops.reshape,), _group_norm, "an instance norm of groups of channels"),
    Rule("softmax", (ops.div,), _softmax, "its formula, shifted by the maximum"),
    Rule("softmax-by-product", (ops.mul,), _softmax_by_product, "its formula, shifted by the maximum"),
    Rule("log-softmax", (ops.sub,), _log_softmax, "its formula, shifted by the maximum"),
    Rule("log-of-softmax", (ops.log,), _log_of_softmax, "its definition, without the underflow"),
    Rule("norm-by-product", (ops.mul,), _norm_by_product, "layer or RMS norm: x rsqrt(mean square + epsilon)"),
    Rule("norm-by-division", (ops.div,), _norm_by_division, "layer or RMS norm: x / sqrt(mean square + epsilon)"),
    Rule("layer-norm-scale", (ops.mul,), _layer_norm_scale, "a layer norm's scale"),
    Rule("layer-norm-bias", (ops.add,), _layer_norm_bias, "a layer norm's bias, after its scale"),
    Rule("rms-norm-scale", (ops.mul,), _rms_norm_scale, "an RMS norm's scale"),
)
