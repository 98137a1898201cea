"""Converters of the few ops of ONNX Runtime's own domain that are plain formulas; the rest is refused by name.

In: a ``Call``. Out: nodes of the graph IR. Not its business: ops that only ONNX Runtime's optimiser writes.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import f32
from tilewright.frontend.onnx_call import Call, Results, Table
from tilewright.frontend.onnx_ops_contract import matmul
from tilewright.frontend.onnx_ops_norm import rms_norm


def _gelu(c: Call) -> Node:
    return c(ops.gelu, c.x(0), approximate="none")


def _fast_gelu(c: Call) -> Node:
    x, bias = c.x(0), c.opt(1)
    return c(ops.gelu, x if bias is None else c(ops.add, x, bias), approximate="tanh")


def _bias_gelu(c: Call) -> Node:
    return c(ops.gelu, c(ops.add, c.x(0), c.x(1)), approximate="none")


def _quick_gelu(c: Call) -> Node:
    x, alpha = c.x(0), c.float_("alpha", 1.702)
    return c(ops.mul, x, c(ops.sigmoid, c(ops.mul, x, c.const(alpha, x.dtype))))


def _fused_matmul(c: Call) -> Node:
    a, b = c.x(0), c.x(1)
    if c.flag("transBatchA") or c.flag("transBatchB"):
        c.refuse("transBatchA and transBatchB are not supported", "export without ONNX Runtime's optimisations")
    a = _swapped(c, a) if c.flag("transA") else a
    b = _swapped(c, b) if c.flag("transB") else b
    y, alpha = matmul(c, a, b), c.float_("alpha", 1.0)
    return y if alpha == 1.0 else c(ops.mul, y, c.const(alpha, y.dtype))


def _swapped(c: Call, x: Node) -> Node:
    rank = len(x.shape)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else x


def _skip_layer_norm(c: Call) -> Results:
    x, scale, shift, bias = c(ops.add, c.x(0), c.x(1)), c.x(2), c.opt(3), c.opt(4)
    total = x if bias is None else c(ops.add, x, bias)
    extra = [shift] if shift is not None else []
    y = c(ops.layer_norm, total, scale, *extra, axis=len(total.shape) - 1, epsilon=c.float_("epsilon", 1e-12))
    return y, None, None, total


def _skip_rms_norm(c: Call) -> Results:
    x, scale, bias = c(ops.add, c.x(0), c.x(1)), c.x(2), c.opt(3)
    total = x if bias is None else c(ops.add, x, bias)
    return rms_norm(c, total, scale, len(total.shape) - 1, c.float_("epsilon", 1e-12)), None, None, total


def simplified_layer_norm(c: Call) -> Node:
    """RMS normalisation as ONNX Runtime's exporters write it."""
    x, scale = c.x(0), c.x(1)
    c.dtype("stash_type", f32)
    return rms_norm(c, x, scale, c.axis(c.int_("axis", -1), len(x.shape)), c.float_("epsilon", 1e-5))


TABLE: Table = {
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
