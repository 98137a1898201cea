"""ATen's backward calls that PyTorch does not take apart: of convolutions and of attention.

In: calls of a backward graph. Out: gradients, made of forward ops. Not its business: backward calls for which PyTorch
has a decomposition (``torch_compile``).

A convolution's gradient by its input is a transposed convolution; that by its weight sums, for each tap, products of
what a window saw there with the gradient: one product with the windows' elements side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import floordiv
from tilewright.core.graph import Builder, Node
from tilewright.core.types import bool_, f32, product
from tilewright.frontend.nodes import dim_scalar, reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]


def _convolution_backward(c: AtenCall) -> Result:
    """Gradients by the input, the weight and the bias; those that ``output_mask`` wants."""
    grad, x, w = c.tensor("grad_output"), c.tensor("input"), c.tensor("weight")
    n = len(w.shape) - 2
    wants = list(c["output_mask"])
    by_input = _by_input(c, grad, x, w) if wants[0] else None
    by_weight = _by_weight(c, grad, x, w) if wants[1] else None
    by_bias = c.b(ops.reduce_sum, grad, axes=(0, *range(2, n + 2)), keepdims=False) if wants[2] else None
    return by_input, by_weight, by_bias


def _by_input(c: AtenCall, grad: Node, x: Node, w: Node) -> Node:
    """What the other kind of convolution gives, but for places that padding of the output added."""
    n = len(w.shape) - 2
    strides, pads, dilations = c.pair("stride", n), c.pair("padding", n), c.pair("dilation", n)
    window = {
        "strides": strides, "pads": tuple((p, p) for p in pads), "dilations": dilations, "groups": c.static("groups"),
        "layout": "NCHW",
    }  # fmt: skip
    if c["transposed"]:
        found = c.b(ops.conv, grad, w, **window)
    else:
        missing = [
            size - ((out - 1) * s + (k - 1) * d + 1 - 2 * p)
            for size, out, s, k, d, p in zip(
                x.shape[2:], grad.shape[2:], strides, w.shape[2:], dilations, pads, strict=True
            )
        ]
        most = tuple(m if is_known(m) else s - 1 for m, s in zip(missing, strides, strict=True))
        found = c.b(ops.conv_transpose, grad, w, **window, output_padding=most)
    for axis, size in enumerate(x.shape[2:], 2):
        found = slice_axis(c.b, found, axis, 0, size)
    return found


def _by_weight(c: AtenCall, grad: Node, x: Node, w: Node) -> Node:
    """``sum over places of what[place * stride + tap] * at[place]``: a transposed one slides over its gradient."""
    slid, at = (grad, x) if c["transposed"] else (x, grad)
    kernel = tuple(k for k in w.shape[2:] if is_known(k))
    channels = tuple(n for n in (slid.shape[1], at.shape[1]) if is_known(n))
    if len(kernel) < len(w.shape) - 2 or len(channels) < 2:
        return _by_weight_of_symbolic_size(c, slid, at, w)
    b, n, groups = c.b, len(kernel), c.static("groups")
    strides, pads, dilations = c.pair("stride", n), c.pair("padding", n), c.pair("dilation", n)
    depth, width = (size // groups for size in channels)
    batch, sizes = at.shape[0], at.shape[2:]
    rows = (0, *range(2, n + 2), 1)  # channels last: the sums run over places, and channels are next to each other
    padded = b(ops.pad, slid, b.const(0, slid.dtype), pads=((0, 0), (0, 0), *((p, p) for p in pads)), mode="constant")
    padded = transpose(b, padded, rows)
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        taken = padded
        for axis in range(n):
            taken = slice_axis(b, taken, axis + 1, tap[axis] * dilations[axis], sizes[axis], strides[axis])
        taps.append(reshape(b, taken, (batch, *sizes, groups, 1, depth)))
    n_places = product((batch, *sizes))
    windows = taps[0] if len(taps) == 1 else b(ops.concat, *taps, axis=n + 2)
    windows = reshape(b, windows, (n_places, groups, len(taps) * depth))
    marks = reshape(b, transpose(b, at, rows), (n_places, groups, width))
    found = b(ops.matmul, transpose(b, marks, (1, 2, 0)), transpose(b, windows, (1, 0, 2)))
    found = reshape(b, found, (groups * width, *kernel, depth))
    return transpose(b, found, (0, n + 1, *range(1, n + 1)))


def _by_weight_of_symbolic_size(c: AtenCall, slid: Node, at: Node, w: Node) -> Node:
    """The same sums as a convolution: samples are its channels, ``at`` its weight, and its taps lie strides apart."""
    b, n, groups = c.b, len(w.shape) - 2, c.static("groups")
    window = {
        "strides": c.pair("dilation", n), "pads": tuple((p, p) for p in c.pair("padding", n)),
        "dilations": c.pair("stride", n), "groups": groups, "layout": "NCHW",
    }  # fmt: skip
    axes = tuple(range(3, n + 3))
    samples, depth, width = at.shape[0], floordiv(slid.shape[1], groups), floordiv(at.shape[1], groups)
    apart = reshape(b, slid, (samples, groups, depth, *slid.shape[2:]))
    operand = reshape(b, transpose(b, apart, (2, 1, 0, *axes)), (depth, groups * samples, *slid.shape[2:]))
    apart = reshape(b, at, (samples, groups, width, *at.shape[2:]))
    weight = reshape(b, transpose(b, apart, (1, 2, 0, *axes)), (groups * width, samples, *at.shape[2:]))
    found = b(ops.conv, operand, weight, **window)
    for axis, size in enumerate(w.shape[2:], 2):  # what no window reached leaves room for further taps
        found = slice_axis(b, found, axis, 0, size)
    return transpose(b, found, (1, 0, *range(2, n + 2)))


# --- attention ------------------------------------------------------------------------------------------------------

LAST_SWAPPED = (0, 1, 3, 2)


def attention_scores(c: AtenCall, q: Node, k: Node) -> tuple[Node, Node]:
    """Scaled scores in f32 at least, with -inf where a query must not see a key; and the scale."""
    b, scale = c.b, c.args.get("scale")
    dtype = f32 if q.dtype.bits < 32 else q.dtype
    width = q.shape[3]
    if scale is None and is_known(width):
        scale = 1 / math.sqrt(width)
    if scale is None:
        factor = b(ops.reciprocal, b(ops.sqrt, dim_scalar(b, width, dtype)))
    else:
        factor = b.const(float(scale), dtype)
    scores = b(ops.matmul, _sharing(b, q, k), transpose(b, k, LAST_SWAPPED), out_dtype=dtype)
    scores = b(ops.mul, reshape(b, scores, (*q.shape[:3], k.shape[2])), factor)
    mask = c.optional("attn_mask")
    if mask is not None and mask.dtype is bool_:
        scores = b(ops.where, mask, scores, b.const(-math.inf, dtype))
    elif mask is not None:
        scores = b(ops.add, scores, cast(b, mask, dtype))
    if c["is_causal"]:
        scores = b(ops.trilu, scores, upper=False, fill=-math.inf)
    return scores, factor


def _sharing(b: Builder, x: Node, k: Node) -> Node:
    """``x`` of each query, those of the heads that share keys as further queries of one head: its rows as they are."""
    if x.shape[1] == k.shape[1]:
        return x
    return reshape(b, x, (x.shape[0], k.shape[1], floordiv(x.shape[1], k.shape[1]) * x.shape[2], x.shape[3]))


def log_sums(c: AtenCall, q: Node, k: Node) -> Node:
    """The logarithms of the sums of exponentials of each query's scores, which a backward call takes."""
    scores, _ = attention_scores(c, q, k)
    return c.b(ops.logsumexp, scores, axes=(3,), keepdims=False)


def _attention_backward(c: AtenCall) -> Result:
    """From ``weights = exp(scores - log_sums)``, as in FlashAttention (Dao et al., 2022)."""
    if c["dropout_p"] != 0:  # PyTorch takes attention with dropout apart; this call is never traced with it
        raise Unsupported("the gradient of attention with dropout", "set the dropout to 0")
    b = c.b
    q, k, v, grad, out = (c.tensor(name) for name in ("query", "key", "value", "grad_out", "out"))
    scores, scale = attention_scores(c, q, k)
    dtype = scores.dtype
    sums = cast(b, c.tensor("logsumexp"), dtype)
    weights = b(ops.exp, b(ops.sub, scores, reshape(b, sums, (*sums.shape, 1))))
    dead = b(ops.eq, sums, b.const(-math.inf, dtype))  # a query that sees no key
    weights = b(ops.where, reshape(b, dead, (*dead.shape, 1)), b.const(0, dtype), weights)
    wide_grad = cast(b, grad, dtype)
    by_weights = b(ops.matmul, _sharing(b, grad, k), transpose(b, v, LAST_SWAPPED), out_dtype=dtype)
    own = b(ops.reduce_sum, b(ops.mul, wide_grad, cast(b, out, dtype)), axes=(3,), keepdims=True)
    by_weights = b(ops.sub, reshape(b, by_weights, weights.shape), own)
    by_scores = _sharing(b, b(ops.mul, b(ops.mul, weights, by_weights), scale), k)
    by_query = reshape(b, b(ops.matmul, by_scores, cast(b, k, dtype)), q.shape)
    by_key = b(ops.matmul, transpose(b, by_scores, LAST_SWAPPED), cast(b, _sharing(b, q, k), dtype))
    by_value = b(ops.matmul, transpose(b, _sharing(b, weights, k), LAST_SWAPPED), _sharing(b, wide_grad, k))
    return tuple(cast(b, g, x.dtype) for g, x in ((by_query, q), (by_key, k), (by_value, v)))


TABLE: Mapping[str, Convert] = {
    "convolution_backward.default": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
}
