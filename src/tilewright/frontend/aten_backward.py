"""ATen's backward calls that PyTorch does not take apart: of convolutions and of attention.

In: calls of a backward graph. Out: gradients, made of forward ops. Not its business: backward calls for which PyTorch
has a decomposition (``dynamo``).

A convolution's gradient by its input is a transposed convolution; that by its weight sums, for each tap, products of
what a window saw there with the gradient: one product with the windows' elements side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import bool_, f32, product
from tilewright.frontend.aten_call import Call, Result, Unsupported, cast, reshape, slice_axis, transpose

Convert = Callable[[Call], Result]


def _static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    found = tuple(d for d in shape if isinstance(d, int))
    if len(found) != len(shape):
        raise Unsupported(f"the gradient of a convolution with symbolic {what}", "make its sizes static")
    return found


def _convolution_backward(c: Call) -> Result:
    """Gradients by the input, the weight and the bias; those that ``output_mask`` wants."""
    grad, x, w = c.tensor("grad_output"), c.tensor("input"), c.tensor("weight")
    n = len(w.shape) - 2
    wants = list(c["output_mask"])
    by_input = _by_input(c, grad, x, w) if wants[0] else None
    by_weight = _by_weight(c, grad, x, w) if wants[1] else None
    by_bias = c.b(ops.reduce_sum, grad, axes=(0, *range(2, n + 2)), keepdims=False) if wants[2] else None
    return by_input, by_weight, by_bias


def _by_input(c: Call, grad: Node, x: Node, w: Node) -> Node:
    n = len(w.shape) - 2
    strides, pads, dilations = c.pair("stride", n), c.pair("padding", n), c.pair("dilation", n)
    window = {
        "strides": strides, "pads": tuple((p, p) for p in pads), "dilations": dilations, "groups": c.static("groups"),
        "layout": "NCHW",
    }  # fmt: skip
    if c["transposed"]:
        return c.b(ops.conv, grad, w, **window)
    kernel = _static(w.shape[2:], "kernels")
    reached = [
        (out - 1) * s + (k - 1) * d + 1 - 2 * p
        for out, s, k, d, p in zip(grad.shape[2:], strides, kernel, dilations, pads, strict=True)
    ]
    missing = _static([size - r for size, r in zip(x.shape[2:], reached, strict=True)], "sizes")
    return c.b(ops.conv_transpose, grad, w, **window, output_padding=missing)


def _by_weight(c: Call, grad: Node, x: Node, w: Node) -> Node:
    """``sum over places of what[place * stride + tap] * at[place]``: a transposed one slides over its gradient."""
    b, n, groups = c.b, len(w.shape) - 2, c.static("groups")
    strides, pads, dilations = c.pair("stride", n), c.pair("padding", n), c.pair("dilation", n)
    slid, at = (grad, x) if c["transposed"] else (x, grad)
    kernel = _static(w.shape[2:], "kernels")
    batch, sizes = at.shape[0], at.shape[2:]
    rows = (0, *range(2, n + 2), 1)  # channels last: the sums run over places, and channels are next to each other
    padded = b(ops.pad, slid, b.const(0, slid.dtype), pads=((0, 0), (0, 0), *((p, p) for p in pads)), mode="constant")
    padded = transpose(b, padded, rows)
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        taken = padded
        for axis in range(n):
            taken = slice_axis(b, taken, axis + 1, tap[axis] * dilations[axis], sizes[axis], strides[axis])
        taps.append(reshape(b, taken, (batch, *sizes, groups, 1, _share(slid.shape[1], groups))))
    n_places = product((batch, *sizes))
    depth, width = _share(slid.shape[1], groups), _share(at.shape[1], groups)
    windows = taps[0] if len(taps) == 1 else b(ops.concat, *taps, axis=n + 2)
    windows = reshape(b, windows, (n_places, groups, len(taps) * depth))
    marks = reshape(b, transpose(b, at, rows), (n_places, groups, width))
    found = b(ops.matmul, transpose(b, marks, (1, 2, 0)), transpose(b, windows, (1, 0, 2)))
    found = reshape(b, found, (groups * width, *kernel, depth))
    return transpose(b, found, (0, n + 1, *range(1, n + 1)))


def _share(channels: Dim, groups: int) -> int:
    """Channels of a group."""
    if not isinstance(channels, int):
        raise Unsupported("the gradient of a convolution of symbolic channels", "make its channels static")
    return channels // groups


# --- attention ------------------------------------------------------------------------------------------------------


def attention_scores(c: Call, q: Node, k: Node) -> tuple[Node, float]:
    """Scaled scores in f32 at least, with -inf where a query must not see a key; and the scale."""
    b, width = c.b, q.shape[-1]
    scale = c.args.get("scale")
    if scale is None:
        if not isinstance(width, int):
            raise Unsupported("attention with a symbolic head width", "make the width static or pass scale")
        scale = 1 / math.sqrt(width)
    if q.shape[1] != k.shape[1]:
        raise Unsupported("the gradient of attention whose heads share keys", "repeat the keys and values")
    dtype = f32 if q.dtype.bits < 32 else q.dtype
    scores = b(ops.matmul, q, transpose(b, k, (0, 1, 3, 2)), out_dtype=dtype)
    scores = b(ops.mul, scores, b.const(float(scale), dtype))
    mask = c.optional("attn_mask")
    if mask is not None and mask.dtype is bool_:
        scores = b(ops.where, mask, scores, b.const(-math.inf, dtype))
    elif mask is not None:
        scores = b(ops.add, scores, cast(b, mask, dtype))
    if c["is_causal"]:
        scores = b(ops.trilu, scores, upper=False, fill=-math.inf)
    return scores, float(scale)


def log_sums(c: Call, q: Node, k: Node) -> Node:
    """The logarithms of the sums of exponentials of each query's scores, which a backward call takes."""
    scores, _ = attention_scores(c, q, k)
    return c.b(ops.logsumexp, scores, axes=(3,), keepdims=False)


def _attention_backward(c: Call) -> Result:
    """From ``weights = exp(scores - log_sums)``, as in FlashAttention (Dao et al., 2022)."""
    if c["dropout_p"] != 0:
        raise Unsupported("the gradient of attention with dropout", "set the dropout to 0")
    b = c.b
    q, k, v, grad, out = (c.tensor(name) for name in ("query", "key", "value", "grad_out", "out"))
    scores, scale = attention_scores(c, q, k)
    dtype, last = scores.dtype, (0, 1, 3, 2)
    sums = cast(b, c.tensor("logsumexp"), dtype)
    weights = b(ops.exp, b(ops.sub, scores, reshape(b, sums, (*sums.shape, 1))))
    dead = b(ops.eq, sums, b.const(-math.inf, dtype))  # a query that sees no key
    weights = b(ops.where, reshape(b, dead, (*dead.shape, 1)), b.const(0, dtype), weights)
    wide_grad = cast(b, grad, dtype)
    by_weights = b(ops.matmul, grad, transpose(b, v, last), out_dtype=dtype)
    own = b(ops.reduce_sum, b(ops.mul, wide_grad, cast(b, out, dtype)), axes=(3,), keepdims=True)
    by_scores = b(ops.mul, b(ops.mul, weights, b(ops.sub, by_weights, own)), b.const(scale, dtype))
    by_query = b(ops.matmul, by_scores, cast(b, k, dtype))
    by_key = b(ops.matmul, transpose(b, by_scores, last), cast(b, q, dtype))
    by_value = b(ops.matmul, transpose(b, weights, last), wide_grad)
    return tuple(cast(b, g, x.dtype) for g, x in ((by_query, q), (by_key, k), (by_value, v)))


TABLE: Mapping[str, Convert] = {
    "convolution_backward.default": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
}
