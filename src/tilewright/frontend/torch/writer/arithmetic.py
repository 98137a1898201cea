"""How arithmetic, reductions, products, windows and norms are written in PyTorch.

In: a node whose operands are tensors. Out: calls of PyTorch; ``OpError`` where this form of an op has none. Not its
business: moves, lookups and control (``writer.moves``), linear algebra (``writer.linalg``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.graph import Attrs, Node
from tilewright.core.types import DType
from tilewright.frontend.torch.writer.values import TorchValues, Writer
from tilewright.ops.common import lowest

if TYPE_CHECKING:
    from torch import Tensor


def one(name: str) -> Writer:
    """A function of PyTorch on the same operands."""

    def write(w: TorchValues, node: Node) -> None:
        w.give(node, getattr(w.torch, name)(*w.values(node)))

    return write


def special(name: str) -> Writer:
    """A function of ``torch.special``, which CPUs have for floats of 32 and 64 bits."""

    def write(w: TorchValues, node: Node) -> None:
        if node.dtype not in (types.f32, types.f64):
            raise OpError(f"PyTorch's {name} is of f32 and f64")
        w.give(node, getattr(w.torch.special, name)(*w.values(node)))

    return write


def activation(name: str, *attrs: str) -> Writer:
    """A function of ``torch.nn.functional`` whose parameters are these attributes."""

    def write(w: TorchValues, node: Node) -> None:
        given = [node.attrs[a] for a in attrs]
        w.give(node, getattr(w.functions, name)(w.value(node.inputs[0]), *given))

    return write


def gelu(w: TorchValues, node: Node) -> None:
    w.give(node, w.functions.gelu(w.value(node.inputs[0]), approximate=node.attrs["approximate"]))


_SOFTPLUS_IS_X = 40
"""From here on ``log(1 + exp(x))`` is x in f64 too."""


def softplus(w: TorchValues, node: Node) -> None:
    w.give(node, w.functions.softplus(w.value(node.inputs[0]), 1, _SOFTPLUS_IS_X))


def hard_sigmoid(w: TorchValues, node: Node) -> None:
    a = node.attrs
    if not (math.isclose(a["alpha"], 1 / 6, rel_tol=1e-7) and a["beta"] == 0.5):
        raise OpError("PyTorch's hardsigmoid has a slope of 1/6")
    w.give(node, w.functions.hardsigmoid(w.value(node.inputs[0])))


def div(w: TorchValues, node: Node) -> None:
    mode = None if node.dtype.is_float else "trunc"
    w.give(node, w.torch.div(*w.values(node), rounding_mode=mode))


def sign(w: TorchValues, node: Node) -> None:
    """PyTorch's sign of NaN is 0."""
    (x,) = w.values(node)
    made = w.torch.sgn(x)
    w.give(node, w.torch.where(w.torch.isnan(x), x, made) if node.dtype.is_float else made)


def cast(w: TorchValues, node: Node) -> None:
    """Floats beyond the range of integers, whose casts PyTorch leaves to the processor, become the nearest."""
    x, known = w.value(node.inputs[0]), node.dtype
    if not (node.inputs[0].dtype.is_float and known.is_integer):
        w.give(node, x.to(w.dtype(known)))
        return
    x = x if node.inputs[0].dtype is types.f64 else x.to(w.torch.float32)
    above, below = x >= float(known.max + 1), x < float(known.min)
    made = w.torch.where(w.torch.isnan(x) | above | below, 0.0, x).to(w.torch.int64)
    made = w.torch.where(above, int(known.max), w.torch.where(below, int(known.min), made))
    w.give(node, made.to(w.dtype(known)))


# --- reductions -----------------------------------------------------------------------------------------------------


def reduction(name: str, *, says_dtype: bool = False) -> Writer:
    """A fold over axes; no axis is no fold, where PyTorch would take all."""

    def write(w: TorchValues, node: Node) -> None:
        a, x = node.attrs, w.value(node.inputs[0])
        kind = {"dtype": x.dtype} if says_dtype else {}
        if a["axes"]:
            w.give(node, getattr(w.torch, name)(x, dim=list(a["axes"]), keepdim=a["keepdims"], **kind))
        else:
            w.give(node, w.torch.clone(x))

    return write


def reduce_prod(w: TorchValues, node: Node) -> None:
    """PyTorch multiplies along one axis at a time."""
    a, x = node.attrs, w.value(node.inputs[0])
    for axis in sorted(a["axes"], reverse=True):
        x = w.torch.prod(x, axis, keepdim=a["keepdims"], dtype=x.dtype)
    w.give(node, x)


def variance(w: TorchValues, node: Node) -> None:
    a = node.attrs
    if not a["axes"]:
        raise OpError("PyTorch takes no axis for all axes")
    x = w.value(node.inputs[0])
    w.give(node, w.torch.var(x, list(a["axes"]), correction=a["correction"], keepdim=a["keepdims"]))


def position(name: str) -> Writer:
    def write(w: TorchValues, node: Node) -> None:
        a = node.attrs
        if a["select_last"]:
            raise OpError(f"PyTorch's {name} gives the first of equals")
        w.give(node, getattr(w.torch, name)(w.value(node.inputs[0]), dim=a["axis"], keepdim=a["keepdims"]))

    return write


def cumulative(name: str) -> Writer:
    """A running fold, which PyTorch has forwards and with the element itself."""

    def write(w: TorchValues, node: Node) -> None:
        a, (x,) = node.attrs, w.values(node)
        if a["exclusive"]:
            raise OpError(f"PyTorch's {name} has the element itself")
        x = w.torch.flip(x, [a["axis"]]) if a["reverse"] else x
        if name in ("cummax", "cummin"):
            made = getattr(w.torch, name)(x, a["axis"])[0]
        else:
            over = x.dtype if a["accumulator"] is None else w.dtype(a["accumulator"])
            made = getattr(w.torch, name)(x, a["axis"], dtype=over).to(x.dtype)
        w.give(node, w.torch.flip(made, [a["axis"]]) if a["reverse"] else made)

    return write


# --- products and windows -------------------------------------------------------------------------------------------


def matmul(w: TorchValues, node: Node) -> None:
    """A product; one whose result is wider than its operands is one of wide operands."""
    a, b = (x.to(w.dtype(node.dtype)) for x in w.values(node))
    w.give(node, w.torch.matmul(a, b))


def einsum(w: TorchValues, node: Node) -> None:
    w.give(node, w.torch.einsum(node.attrs["equation"], *w.values(node)))


def _check_window(a: Attrs, dtype: DType, *, with_layout: bool = True) -> int:
    """How many axes windows have; ``OpError`` for what PyTorch's don't do."""
    rank = len(a["pads"])
    if with_layout and a["layout"] != "NCHW":
        raise OpError("PyTorch's windows have channels first")
    if not 1 <= rank <= 3:
        raise OpError(f"PyTorch has no windows over {rank} axes")
    if not dtype.is_float:
        raise OpError("PyTorch's windows are of floats")
    return rank


def flat_pads(w: TorchValues, pads: Any) -> list[Any]:
    """PyTorch's order: the last axis first."""
    return [w.size(d) for pair in reversed(pads) for d in pair]


def _even(pads: Any) -> list[int] | None:
    """Padding that is the same at both ends, which PyTorch's windows have of themselves."""
    known = [lo for lo, hi in pads if is_known(lo) and is_known(hi) and lo == hi and lo >= 0]
    return known if len(known) == len(pads) else None


def conv(w: TorchValues, node: Node) -> None:
    a, (x, kernel) = node.attrs, w.values(node)
    rank = _check_window(a, node.dtype)
    if any(t.dtype is not node.dtype for t in node.inputs):
        raise OpError(f"PyTorch's convolution of {node.inputs[0].dtype} has no result of {node.dtype}")
    pads = _even(a["pads"])
    x = x if pads is not None else w.functions.pad(x, flat_pads(w, a["pads"]))
    function = getattr(w.functions, f"conv{rank}d")
    w.give(node, function(x, kernel, None, list(a["strides"]), pads or 0, list(a["dilations"]), a["groups"]))


def conv_transpose(w: TorchValues, node: Node) -> None:
    """The whole result, of which padding cuts the ends off, unless PyTorch pads alike."""
    a, (x, kernel) = node.attrs, w.values(node)
    rank = _check_window(a, node.dtype)
    more = list(a["output_padding"])
    pads = _even(a["pads"])
    steps = zip(more, a["strides"], a["dilations"], strict=True)
    is_plain = pads is not None and all(m < max(s, d) for m, s, d in steps)
    function = getattr(w.functions, f"conv_transpose{rank}d")
    plain = {"stride": list(a["strides"]), "groups": a["groups"], "dilation": list(a["dilations"])}
    if is_plain:
        w.give(node, function(x, kernel, None, padding=pads, output_padding=more, **plain))
        return
    cut = [(-w.size(lo), m - w.size(hi)) for (lo, hi), m in zip(a["pads"], more, strict=True)]
    w.give(node, w.functions.pad(function(x, kernel, None, **plain), [d for pair in reversed(cut) for d in pair]))


def _fits(pads: list[int] | None, kernel: Any) -> bool:
    """PyTorch's pools pad by half a window at most."""
    return pads is not None and all(2 * p <= k for p, k in zip(pads, kernel, strict=True))


def max_pool(w: TorchValues, node: Node) -> None:
    a, (x,) = node.attrs, w.values(node)
    rank = _check_window(a, node.inputs[0].dtype)
    pads = _even(a["pads"])
    with_places = node.op is ops.max_pool_indices
    if not _fits(pads, a["kernel"]):
        if with_places:
            raise OpError("PyTorch's places are in padding of half a window at most")
        x = w.functions.pad(x, flat_pads(w, a["pads"]), value=lowest(node.dtype).value)
        pads = [0] * rank
    dilations = list(a["dilations"]) or 1
    function = getattr(w.functions, f"max_pool{rank}d")
    if not with_places:
        w.give(node, function(x, list(a["kernel"]), list(a["strides"]), pads, dilations))
        return
    if a["column_major"]:
        raise OpError("PyTorch's places are row-major")
    made, at = function(x, list(a["kernel"]), list(a["strides"]), pads, dilations, return_indices=True)
    n, c, *spatial = w.sizes(node.inputs[0].shape)
    room = math.prod(spatial)
    first = w.torch.arange(n * c, dtype=w.torch.int64).reshape([n, c, *[1] * rank]) * room
    w.give(node, made, at + first)


def avg_pool(w: TorchValues, node: Node) -> None:
    """PyTorch's own where it pads alike; else, of whole windows, over zeros that are put around first."""
    a, (x,) = node.attrs, w.values(node)
    rank = _check_window(a, node.dtype)
    if a["divisor"] or any(a["ceil_pads"]):
        raise OpError("PyTorch's mean of a window is over its elements")
    kernel, strides, pads = list(a["kernel"]), list(a["strides"]), _even(a["pads"])
    dilations = list(a["dilations"] or (1,) * rank)
    is_dilated = any(d != 1 for d in dilations)
    if is_dilated or not _fits(pads, kernel):
        if not a["count_include_pad"]:
            raise OpError("PyTorch counts elements without padding in windows that it pads itself")
        x, pads = w.functions.pad(x, flat_pads(w, a["pads"])), [0] * rank
    if not is_dilated:
        pool = getattr(w.functions, f"avg_pool{rank}d")
        w.give(node, pool(x, kernel, strides, pads, False, a["count_include_pad"]))
        return
    # PyTorch's windows with gaps are those of convolutions: one channel at a time.
    ones = w.torch.full([1, 1, *kernel], 1.0, dtype=x.dtype)
    apart = x.reshape([-1, 1, *x.shape[2:]])
    sums = getattr(w.functions, f"conv{rank}d")(apart, ones, None, strides, 0, dilations)
    w.give(node, (sums / math.prod(kernel)).reshape([*x.shape[:2], *sums.shape[2:]]))


# --- norms, softmax, attention --------------------------------------------------------------------------------------


def _check_alike(node: Node) -> None:
    if any(x.dtype is not node.dtype for x in node.inputs):
        raise OpError(f"PyTorch's {node.op.name} has operands of one type")


def batch_norm(w: TorchValues, node: Node) -> None:
    _check_alike(node)
    if node.attrs["axis"] != 1:
        raise OpError("PyTorch's batch_norm has channels first")
    x, scale, bias, mean, var = w.values(node)
    w.give(node, w.functions.batch_norm(x, mean, var, scale, bias, False, 0.0, node.attrs["epsilon"]))


def over_last(name: str) -> Writer:
    """``layer_norm`` or ``rms_norm``: weights have the shape of what is normalised."""

    def write(w: TorchValues, node: Node) -> None:
        _check_alike(node)
        x, *given = node.inputs
        shape = w.sizes(x.shape[node.attrs["axis"] :])
        weights: list[Tensor] = [w.value(p).expand(shape) for p in given]
        w.give(node, getattr(w.functions, name)(w.value(x), shape, *weights, eps=node.attrs["epsilon"]))

    return write


def group_norm(w: TorchValues, node: Node) -> None:
    _check_alike(node)
    x, scale, bias = w.values(node)
    w.give(node, w.functions.group_norm(x, node.attrs["groups"], scale, bias, node.attrs["epsilon"]))


def attention(w: TorchValues, node: Node) -> None:
    """A query without keys is NaN here and 0 there, so that only attention where each has one is written whole."""
    q, k, v = node.inputs[:3]
    a = node.attrs
    if len(node.inputs) > 3 or a["softcap"] or q.shape[1] != k.shape[1]:
        raise OpError("PyTorch's attention differs where a mask leaves a query no key")
    made = w.functions.scaled_dot_product_attention(
        *map(w.value, (q, k, v)), is_causal=a["causal"], scale=a["scale"]
    )  # fmt: skip
    w.give(node, made)


def softmax(name: str) -> Writer:
    def write(w: TorchValues, node: Node) -> None:
        w.give(node, getattr(w.torch, name)(w.value(node.inputs[0]), node.attrs["axis"]))

    return write


SAME = {
    ops.neg: "neg", ops.abs: "abs", ops.exp: "exp", ops.exp2: "exp2", ops.expm1: "expm1",
    ops.log: "log", ops.log2: "log2", ops.log1p: "log1p", ops.sqrt: "sqrt", ops.rsqrt: "rsqrt",
    ops.reciprocal: "reciprocal", ops.sin: "sin", ops.cos: "cos", ops.tan: "tan", ops.asin: "asin", ops.acos: "acos",
    ops.atan: "atan", ops.sinh: "sinh", ops.cosh: "cosh", ops.tanh: "tanh", ops.asinh: "asinh", ops.acosh: "acosh",
    ops.atanh: "atanh", ops.erf: "erf", ops.floor: "floor", ops.ceil: "ceil", ops.round: "round",
    ops.trunc: "trunc", ops.logical_not: "logical_not", ops.bitwise_not: "bitwise_not", ops.isnan: "isnan",
    ops.isinf: "isinf", ops.sigmoid: "sigmoid", ops.add: "add", ops.sub: "sub", ops.mul: "mul",
    ops.floor_div: "floor_divide", ops.mod: "remainder", ops.fmod: "fmod", ops.pow: "pow", ops.minimum: "minimum",
    ops.maximum: "maximum", ops.atan2: "atan2", ops.logical_and: "logical_and", ops.logical_or: "logical_or",
    ops.logical_xor: "logical_xor", ops.bitwise_and: "bitwise_and", ops.bitwise_or: "bitwise_or",
    ops.bitwise_xor: "bitwise_xor", ops.shift_left: "bitwise_left_shift", ops.shift_right: "bitwise_right_shift",
    ops.eq: "eq", ops.ne: "ne", ops.lt: "lt", ops.le: "le", ops.gt: "gt", ops.ge: "ge", ops.where: "where",
    ops.clamp: "clamp",
}  # fmt: skip
SPECIAL = {
    ops.erfc: "erfc", ops.erfcx: "erfcx", ops.erfinv: "erfinv", ops.ndtri: "ndtri", ops.lgamma: "gammaln",
    ops.digamma: "digamma", ops.zeta: "zeta", ops.bessel_i0: "i0", ops.bessel_i0e: "i0e", ops.bessel_i1: "i1",
    ops.bessel_i1e: "i1e", ops.bessel_k0: "modified_bessel_k0", ops.bessel_k0e: "scaled_modified_bessel_k0",
    ops.bessel_k1: "modified_bessel_k1", ops.bessel_k1e: "scaled_modified_bessel_k1", ops.bessel_j0: "bessel_j0",
    ops.bessel_j1: "bessel_j1", ops.bessel_y0: "bessel_y0", ops.bessel_y1: "bessel_y1",
    ops.spherical_j0: "spherical_bessel_j0", ops.airy_ai: "airy_ai",
}  # fmt: skip
ACTIVATIONS = {
    ops.relu: activation("relu"), ops.silu: activation("silu"), ops.mish: activation("mish"),
    ops.softsign: activation("softsign"), ops.hard_swish: activation("hardswish"), ops.selu: activation("selu"),
    ops.leaky_relu: activation("leaky_relu", "alpha"), ops.elu: activation("elu", "alpha"),
    ops.celu: activation("celu", "alpha"),
}  # fmt: skip
