"""Converters of ONNX Runtime's own fused ops: activations, products, normalisations and embeddings with what follows.

In: a ``Call``. Out: nodes of the graph IR. Not its business: images (``onnx.microsoft.image``), attention,
quantised tensors and packed weights (``onnx_ops_microsoft_*``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core import expr
from tilewright.core.graph import Node
from tilewright.core.types import bool_, f32, i32
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.frontend.onnx.ops.contract import gemm_of, matmul
from tilewright.frontend.onnx.ops.elementwise import SELU_ALPHA, SELU_GAMMA
from tilewright.frontend.onnx.ops.norm import from_axis_on, rms_norm, softmax
from tilewright.frontend.onnx.ops.quant import dequantized


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


def _fast_gelu_of_product(c: Call) -> Node:
    y, bias = matmul(c, c.x(0), c.x(1)), c.opt(2)
    return c(ops.gelu, y if bias is None else c(ops.add, y, bias), approximate="tanh")


def _split_gelu(c: Call) -> Node:
    """The first half of the columns times GELU of the second."""
    x = c(ops.add, c.x(0), c.x(1))
    last, width = len(x.shape) - 1, x.shape[-1]
    half = expr.floordiv(width, 2)
    left, right = c.slice_axis(x, last, 0, half), c.slice_axis(x, last, half, width)
    return c(ops.mul, left, c(ops.gelu, right, approximate="none"))


def _scaled_silu(c: Call) -> Node:
    x, scale, alpha = c.x(0), c.opt(1), c.float_("alpha", 1.0)
    z = c(ops.mul, x, c.const(alpha, x.dtype) if scale is None else c.cast(c.reshape(scale, ()), x.dtype))
    return c(ops.mul, z, c(ops.sigmoid, z))


def _bias_add(c: Call) -> Node:
    return c(ops.add, c(ops.add, c.x(0), c.x(1)), c.x(2))


def _bias_softmax(c: Call) -> Node:
    c.ignore("is_inner_broadcast")
    x = c(ops.add, c.x(0), c.x(1))
    return from_axis_on(c, x, c.axis(c.int_("axis", 1), len(x.shape)), softmax)


def _bias_dropout(c: Call) -> Results:
    """Nothing is dropped at inference."""
    c.ignore("seed")
    training, residual = c.opt(4), c.opt(2)
    if training is not None and c.number(training, "training_mode"):
        c.refuse("training_mode is set", "export the model for inference")
    x = c(ops.add, c.x(0), c.x(1))
    return x if residual is None else c(ops.add, x, residual), c.full(True, bool_, x.shape)


# --- products -------------------------------------------------------------------------------------------------------


def _fused_matmul(c: Call) -> Node:
    """``transBatch`` says that the first of the leading axes stands before the last one instead."""
    sides = [
        _turned(c, c.x(i), c.flag(f"transBatch{name}"), c.flag(f"trans{name}")) for i, name in ((0, "A"), (1, "B"))
    ]
    y, alpha = matmul(c, *sides), c.float_("alpha", 1.0)
    return y if alpha == 1.0 else c(ops.mul, y, c.const(alpha, y.dtype))


def _turned(c: Call, x: Node, batch: bool, last: bool) -> Node:
    axes = list(range(len(x.shape)))
    if batch and len(axes) > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if last and len(axes) > 1:
        axes = [*axes[:-2], axes[-1], axes[-2]]
    return c.transpose(x, axes)


def activated(c: Call, y: Node, numbers: list[float]) -> Node:
    """``y`` under the function that the attribute ``activation`` names, with its one or two ``numbers``."""
    name = c.str_("activation", "")
    if name in PLAIN:
        return c(PLAIN[name], y)
    if name == "Clip" and len(numbers) == 2:
        return c(ops.clamp, y, *(c.const(n, y.dtype) for n in numbers))
    if name not in PARAMETERS:
        c.refuse(f"activation={name!r} is not supported", f"supported: {', '.join([*PLAIN, 'Clip', *PARAMETERS])}")
    op, defaults = PARAMETERS[name]
    values = [*numbers[: len(defaults)], *list(defaults.values())[len(numbers) :]]
    if name == "ThresholdedRelu":
        return c(ops.where, c(ops.gt, y, c.const(values[0], y.dtype)), y, c.const(0, y.dtype))
    return c(op, y, **dict(zip(defaults, values, strict=True)))


PLAIN = {
    "HardSwish": ops.hard_swish,
    "Relu": ops.relu,
    "Sigmoid": ops.sigmoid,
    "Softplus": ops.softplus,
    "Softsign": ops.softsign,
    "Tanh": ops.tanh,
}
PARAMETERS = {
    "Celu": (ops.celu, {"alpha": 1.0}),
    "Elu": (ops.elu, {"alpha": 1.0}),
    "HardSigmoid": (ops.hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": (ops.leaky_relu, {"alpha": 0.01}),
    "Selu": (ops.selu, {"alpha": SELU_ALPHA, "gamma": SELU_GAMMA}),
    "ThresholdedRelu": (ops.relu, {"alpha": 1.0}),
}


def _fused_gemm(c: Call) -> Node:
    names = [f"activation_{n}" for n in (("alpha", "gamma") if c.str_("activation") == "Selu" else ("alpha", "beta"))]
    numbers = []
    for name in names:
        if not c.has(name):
            break
        numbers.append(c.float_(name))
    c.ignore("activation_alpha", "activation_beta", "activation_gamma")
    return activated(c, gemm_of(c), numbers)


# --- normalisation --------------------------------------------------------------------------------------------------


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


# --- embeddings -----------------------------------------------------------------------------------------------------


def _embedded(c: Call) -> Results:
    places = c.opt(8)
    tables = (c.x(2), c.x(3), c.opt(4))
    return _norm_of_embeddings(c, tables, (c.x(5), c.x(6)), c.opt(7), places)


def _quantised_embedded(c: Call) -> Results:
    word, place, gamma, beta = (dequantized(c, c.x(i), c.x(s), c.x(z)) for i, s, z in QUANTISED_PARTS)
    segment = None if c.opt(4) is None else dequantized(c, c.x(4), c.x(10), c.opt(15))
    return _norm_of_embeddings(c, (word, place, segment), (gamma, beta), c.opt(7), None)


QUANTISED_PARTS = ((2, 8, 13), (3, 9, 14), (5, 11, 16), (6, 12, 17))


def _norm_of_embeddings(
    c: Call, tables: tuple[Node, Node, Node | None], affine: tuple[Node, Node], mask: Node | None, places: Node | None
) -> Results:
    """Word, position and segment embeddings added and normalised; how many words the mask has; the sum."""
    m = Formula(c)
    ids, kinds = c.x(0), c.opt(1)
    word, place, segment = tables
    length = ids.shape[1]
    at = m.steps(length) if places is None else places
    total = c(ops.add, c(ops.gather, word, ids, axis=0), c(ops.gather, place, at, axis=0))
    if kinds is not None and segment is not None:
        total = c(ops.add, total, c(ops.gather, segment, kinds, axis=0))
    c.ignore("mask_index_type")
    y = c(ops.layer_norm, total, *affine, axis=2, epsilon=c.float_("epsilon", 1e-12))
    if mask is None:
        return y, c.full(0, i32, (ids.shape[0],)), total
    words = c(ops.reduce_sum, c.cast(m.eq(mask, 1), i32), axes=(1,), keepdims=False)
    return y, words, total


TABLE: Table = {
    "BiasAdd": _bias_add,
    "BiasDropout": _bias_dropout,
    "BiasGelu": _bias_gelu,
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _split_gelu,
    "EmbedLayerNormalization": _embedded,
    "FastGelu": _fast_gelu,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "GemmFastGelu": _fast_gelu_of_product,
    "QEmbedLayerNormalization": _quantised_embedded,
    "QuickGelu": _quick_gelu,
    "ScaledSiLU": _scaled_silu,
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "TransposeMatMul": _fused_matmul,
}
