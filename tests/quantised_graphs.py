"""Random quantised ONNX models with inputs, by seed, and what each node gives by ONNX's own reference.

In: a seed. Out: a model, its inputs, and for each output what it must be. A model grows node by node among codes (of 2
to 16 bits, and floats of 8 or 4) and the reals that they stand for: layers on codes, layers between DequantizeLinear
and QuantizeLinear, moves of both. Scales are mostly powers of two, so that sums of products are the same in any order;
where they are not, a code may be one more or less, and nothing follows from it. Not its business: running
(``fuzz_quantised``), what a node means (``quantised_meaning``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from quantised_grower import (
    BYTES,
    FITS,
    MICROSOFT,
    NIBBLES,
    OPSETS,
    SHORTS,
    SINCE,
    SMALL_FLOATS,
    Array,
    Grower,
    Made,
    Unfit,
    Value,
    bounds,
    element_type,
    grains,
)

# --- between codes and reals ----------------------------------------------------------------------------------------


def parameters(g: Grower, dtype: Any, shape: Sequence[int], of: Any = np.float32) -> tuple[Any, Any, dict[str, int]]:
    """Names of a scale and of a zero point, or None, and the attributes that say how they lie along a tensor."""
    attrs: dict[str, int] = {}
    sizes: tuple[int, ...] = () if g.chance(0.8) else (1,)
    if shape and g.opset >= 13 and g.chance(0.3):
        axis = g.integer(0, len(shape) - 1)
        attrs, sizes = {"axis": axis - len(shape) if g.chance(0.3) else axis}, (shape[axis],)
        if g.opset >= 21 and g.chance(0.4):
            block = g.integer(1, shape[axis] + 1)
            attrs["block_size"] = block
            sizes = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    elif g.opset < 13:
        sizes = ()
    zero = g.zero(dtype, sizes)
    left_out = not zero.astype(np.float32).any() and g.chance(0.4)
    return g.known(g.scale(sizes, of)), None if left_out else g.known(zero), attrs


def real(g: Grower, keep: Callable[[Value], bool] = lambda v: True) -> Value:
    """A tensor of f32: one that there is, or one that codes stand for."""
    if g.chance(0.5):
        return g.pick(lambda v: v.dtype is np.float32 and keep(v))
    return dequantised(g, g.codes(keep, BYTES + SHORTS + NIBBLES if g.opset >= 21 else BYTES))


def dequantised(g: Grower, x: Value) -> Value:
    scale, zero, attrs = x.parameters or parameters(g, x.dtype, x.shape)
    if x.parameters is None or g.array_of(scale).shape not in ((), (1,)):
        scale, zero, attrs = parameters(g, x.dtype, x.shape)
    if x.dtype is np.int32:
        zero = None
    return g.rounded("DequantizeLinear", x, scale, zero, **attrs)


def quantised(g: Grower, x: Value, dtype: Any = None) -> Value:
    """To codes of some type; where the type is not 8 unsigned bits, a zero point or an attribute says so."""
    types = [t for t, since in SINCE.items() if since <= g.opset]
    dtype = dtype or (g.choose(BYTES) if g.chance(0.6) else g.choose(types))
    scale, zero, attrs = parameters(g, dtype, x.shape, x.dtype if g.opset >= 19 else np.float32)
    if zero is None and dtype is not np.uint8:
        if g.opset >= 21:
            attrs["output_dtype"] = element_type(dtype)
        else:
            zero = g.known(np.zeros(g.array_of(scale).shape, dtype))
    saturate = {"saturate": 0} if dtype in SMALL_FLOATS and g.chance(0.3) else {}
    made = g.add("QuantizeLinear", guarded(x), scale, zero, **attrs, **saturate)
    kept = {k: v for k, v in attrs.items() if k in ("axis", "block_size")}
    return g.replaced(made, parameters=(scale, zero, kept))


def guarded(x: Value) -> Value:
    """Numbers that no scale makes too large for i32, as which the reference rounds them."""
    if not (np.abs(x.array.astype(np.float64)) < 2.0**20).all():
        raise Unfit("too large a number")
    return x


def quantise(g: Grower) -> None:
    quantised(g, real(g))


def dequantise(g: Grower) -> None:
    types = BYTES if g.opset < 19 else [t for t, since in SINCE.items() if since <= g.opset]
    dequantised(g, g.codes(types=(*types, np.int32)))


def dynamic(g: Grower) -> None:
    """Range, zero point and codes that follow from the numbers."""
    x = real(g)
    if not x.array.any():
        raise Unfit("of zeros alone the reference has another scale than ONNX Runtime")
    g.add("DynamicQuantizeLinear", x, exact=False, n_results=3)


# --- layers ---------------------------------------------------------------------------------------------------------


def window(g: Grower, sizes: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """Strides, dilations and pads of a convolution."""
    attrs: dict[str, Any] = {"kernel_shape": list(kernel)}
    if g.chance(0.6):
        attrs["strides"] = [g.integer(1, 3) for _ in kernel]
    if g.chance(0.25):
        attrs["dilations"] = [g.integer(1, 2) for _ in kernel]
    if g.chance(0.6):
        attrs["pads"] = [g.integer(0, 2) for _ in (*kernel, *kernel)]
    elif g.chance(0.5):
        attrs["auto_pad"] = g.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    spread = [(k - 1) * d + 1 for k, d in zip(kernel, attrs.get("dilations", [1] * len(kernel)), strict=True)]
    pads = attrs.get("pads", [0] * 2 * len(kernel))
    if "SAME" not in attrs.get("auto_pad", "") and any(
        n + p + q < s for n, p, q, s in zip(sizes, pads, pads[len(kernel) :], spread, strict=False)
    ):
        raise Unfit("no window fits")
    return attrs


def weights(g: Grower, shape: Sequence[int], axis: int, types: Sequence[Any] = (np.int8, np.int8, np.uint8)) -> Any:
    """Codes of 8 bits or 7, scales and zero points of one axis or of all."""
    dtype = g.choose(types)
    sizes = (shape[axis],) if g.chance(0.5) else ()
    zeros = np.zeros(sizes, dtype) if g.chance(0.6) else g.zero(dtype, sizes)
    numbers = g.numbers(shape, dtype)
    stored = (numbers // 2).astype(dtype) if dtype in BYTES and g.chance(0.4) else numbers
    return g.known(stored), g.known(g.scale(sizes)), g.known(zeros)


def fits(*factors: Array, n_terms: int) -> bool:
    """Is a sum of so many products the same in any order?"""
    return float(np.prod([grains(f) for f in factors])) * n_terms * 4 < FITS


def convolution(g: Grower) -> None:
    """On codes or between codes, with groups, and now and then transposed."""
    form = g.choose(("q", "q", "integer", "qdq", "qdq", "qdq", "transposed"))
    x = (partial(real, g) if form in ("qdq", "transposed") else g.codes)(lambda v: v.rank >= 3 and 0 not in v.shape)
    channels, n = x.shape[1], x.rank - 2
    kernel = [g.choose((1, 1, 2, 3, 3)) for _ in range(n)]
    group = g.choose([d for d in (1, 1, 1, 2, channels) if channels % d == 0])
    attrs = {**window(g, x.shape[2:], kernel), "group": group}
    if form == "transposed" and "SAME" in attrs.get("auto_pad", ""):
        del attrs["auto_pad"]  # of strides beyond the kernel ONNX Runtime's results are smaller than the rule says
    out = group * g.integer(1, max(1, 24 // group))
    shape = (out, channels // group, *kernel) if form != "transposed" else (channels, out // group, *kernel)
    w = weights(g, shape, 0 if form != "transposed" else 1)
    n_terms = int(np.prod(shape[1:]))
    if form == "integer":
        zeros = (g.known(g.zero(x.dtype)), g.known(g.zero(g.array_of(w[0]).dtype.type)))[: g.integer(0, 2)]
        g.add("ConvInteger", x, w[0], *zeros, **attrs)
    elif form == "q":
        if "auto_pad" in attrs and g.chance(0.5):
            del attrs["auto_pad"]
        after = g.choose(BYTES)
        bias = [g.known(g.rng.integers(-2000, 2000, out), np.int32)] if g.chance(0.6) else []
        g.add("QLinearConv", x, g.known(g.scale()), g.known(g.zero(x.dtype)), *w, g.known(g.scale() * 4),
              g.known(g.zero(after)), *bias, **attrs)  # fmt: skip
    else:
        axis = 0 if form == "qdq" else 1
        w_real = g.add("DequantizeLinear", *w, axis=axis)
        bias = [g.known(g.rng.integers(-64, 64, out) / 16, np.float32)] if g.chance(0.6) else []
        op = "Conv" if form == "qdq" else "ConvTranspose"
        y = g.add(op, x, w_real, *bias, exact=fits(x.array, w_real.array, n_terms=n_terms), **attrs)
        after_layer(g, y)


def product(g: Grower) -> None:
    """MatMul or Gemm, on codes or between codes, of one or two activations."""
    form = g.choose(("q", "q", "integer", "qdq", "qdq", "gemm"))
    x = (partial(real, g) if form in ("qdq", "gemm") else g.codes)(lambda v: v.rank >= (2 if form == "gemm" else 1)
                                                        and 0 not in v.shape)  # fmt: skip
    if form == "gemm":
        x = x if x.rank == 2 else g.add("Flatten", x, axis=1)
    inner, out = x.shape[-1], g.integer(1, 40)
    shape = (*(x.shape[:-2] if g.chance(0.15) else ()), inner, out)
    if form == "gemm":
        turned = g.chance(0.5)
        w = weights(g, (out, inner) if turned else (inner, out), 0 if turned else 1)
        w_real = g.add("DequantizeLinear", *w, axis=0 if turned else 1)
        bias = [g.known(g.rng.integers(-64, 64, g.choose((out, 1))) / 16, np.float32)] if g.chance(0.7) else []
        y = g.add("Gemm", x, w_real, *bias, transB=int(turned), exact=fits(x.array, w_real.array, n_terms=inner))
        return after_layer(g, y)
    w = weights(g, shape, len(shape) - 1, BYTES if form != "qdq" or g.opset < 21 else BYTES + NIBBLES)
    if form == "integer":
        zeros = [g.known(g.zero(x.dtype)), g.known(g.zero(g.array_of(w[0]).dtype.type))][: g.integer(0, 2)]
        if len(zeros) == 2 and len(shape) == 2 and g.chance(0.4):
            zeros[1] = g.known(g.zero(g.array_of(w[0]).dtype.type, (out,)))
        if zeros and x.rank == 2 and g.chance(0.3):
            zeros[0] = g.known(g.zero(x.dtype, (x.shape[0],)))
        g.add("MatMulInteger", x, w[0], *zeros)
    elif form == "q":
        after = g.choose(BYTES)
        g.add("QLinearMatMul", x, g.known(g.scale()), g.known(g.zero(x.dtype)), *w, g.known(g.scale() * 4),
              g.known(g.zero(after)))  # fmt: skip
    else:
        w_real = g.add("DequantizeLinear", *w, axis=len(shape) - 1)
        y = g.add("MatMul", x, w_real, exact=fits(x.array, w_real.array, n_terms=inner))
        if g.chance(0.5):
            y = g.rounded("Add", y, g.known(g.rng.integers(-64, 64, out) / 16, np.float32))
        after_layer(g, y)


def attention(g: Grower) -> None:
    """The product of two activations."""
    x = real(g, lambda v: v.rank >= 2 and 0 not in v.shape)
    turned = g.add("Transpose", x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])
    y = g.add("MatMul", x, turned, exact=fits(x.array, x.array, n_terms=x.shape[-1]))
    after_layer(g, y)


def after_layer(g: Grower, y: Value) -> None:
    """Perhaps an activation, then codes again, whose steps are coarser as sums are larger."""
    if g.chance(0.5):
        y = g.add("Relu", y)
    elif g.chance(0.3):
        y = g.add("Clip", y, g.fixed(np.float32(g.choose((-1.0, 0.0)))), g.fixed(np.float32(6.0)))
    if g.chance(0.85):
        dtype = g.choose(BYTES)
        scale, zero = g.known(g.scale() * np.float32(16)), g.known(g.zero(dtype))
        made = g.add("QuantizeLinear", guarded(y), scale, zero)
        g.replaced(made, parameters=(scale, zero, {}))


# --- between layers -------------------------------------------------------------------------------------------------

EXACT_UNARY = ("Relu", "Neg", "Abs", "Identity", "Floor", "Ceil", "Round", "Sign")
ROUNDED_UNARY = ("Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Softplus", "Exp", "LeakyRelu", "Gelu", "Mish")
JUMPS = ("Floor", "Ceil", "Round", "Sign")


def function(g: Grower) -> None:
    x = real(g)
    if g.chance(0.5):
        op = g.choose(EXACT_UNARY)
        if op in JUMPS and not x.exact:
            raise Unfit("rounding would decide")
        g.add(op, x)
    else:
        g.rounded(g.choose(ROUNDED_UNARY), x)


def pair(g: Grower) -> None:
    """Two reals that broadcast: of a residual sum, of a gate."""
    x = real(g)
    y = real(g, lambda v: v.shape == x.shape or v.array.size == 1)
    g.rounded(g.choose(("Add", "Add", "Add", "Sub", "Mul", "Max", "Min")), *((x, y) if g.chance(0.7) else (y, x)))


def joined(g: Grower) -> None:
    x = g.codes(types=BYTES) if g.chance(0.5) else real(g)
    y = g.pick(lambda v: v.dtype is x.dtype and v.rank == x.rank > 0)
    axis = g.integer(0, x.rank - 1)
    if x.shape[:axis] + x.shape[axis + 1 :] != y.shape[:axis] + y.shape[axis + 1 :]:
        y = x
    g.add("Concat", x, y, axis=axis)


def pooled(g: Grower) -> None:
    """Of codes by their greatest, of reals by their greatest or mean."""
    by_codes = g.chance(0.4)
    x = (g.codes if by_codes else partial(real, g))(lambda v: v.rank >= 3 and 0 not in v.shape)
    n = x.rank - 2
    if g.chance(0.25):
        g.rounded(g.choose(("GlobalMaxPool", "GlobalAveragePool")) if not by_codes else "MaxPool", x,
                  **({"kernel_shape": list(x.shape[2:])} if by_codes else {}))  # fmt: skip
        return
    kernel = [g.integer(1, 3) for _ in range(n)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": [g.integer(1, 2)] * n}
    if g.chance(0.4):
        attrs["pads"] = [min(k - 1, 1) for k in kernel] * 2
    if any(s + 2 * p < k for s, k, p in zip(x.shape[2:], kernel, attrs.get("pads", [0] * n), strict=False)):
        raise Unfit("no window fits")
    if by_codes or g.chance(0.5):
        g.add("MaxPool", x, **attrs)
    else:
        g.rounded("AveragePool", x, count_include_pad=g.integer(0, 1), **attrs)


def reduced(g: Grower) -> None:
    x = real(g, lambda v: v.rank > 0 and 0 not in v.shape)
    axes = sorted(set(g.rng.integers(0, x.rank, g.integer(1, 2)).tolist()))
    op, keep = g.choose(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum")), g.integer(0, 1)
    if op == "ReduceSum" or g.opset >= 18:
        g.rounded(op, x, g.fixed(axes, np.int64), keepdims=keep)
    else:
        g.rounded(op, x, axes=axes, keepdims=keep)


def softmax(g: Grower) -> None:
    g.rounded("Softmax", real(g, lambda v: v.rank > 0), axis=-1)


def resized(g: Grower) -> None:
    by_codes = g.chance(0.4)
    x = (g.codes if by_codes else partial(real, g))(lambda v: v.rank == 4 and 0 not in v.shape)
    scales = g.fixed([1, 1, g.choose((1, 2, 0.5, 3)), g.choose((1, 2, 1.5))], np.float32)
    mode = "nearest" if by_codes or g.chance(0.5) else "linear"
    how = g.choose(("half_pixel", "asymmetric", "align_corners"))
    more = {"nearest_mode": g.choose(("floor", "round_prefer_floor", "ceil"))} if mode == "nearest" else {}
    g.rounded("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=how, **more)


def moved(g: Grower) -> None:
    """Transposes, slices, pads and the like, of codes or reals."""
    x = g.codes(lambda v: v.rank > 0) if g.chance(0.6) else real(g, lambda v: v.rank > 0)
    axis = g.integer(0, x.rank - 1)
    n = x.shape[axis]
    match g.integer(0, 8):
        case 0:
            g.add("Transpose", x, perm=g.rng.permutation(x.rank).tolist())
        case 1:
            g.add("Flatten", x, axis=g.integer(0, x.rank))
        case 2:
            step = g.choose((1, 1, 2, -1))
            ends = (n, -n - 1) if step < 0 else (g.integer(0, n), n)
            g.add("Slice", x, *(g.fixed([e], np.int64) for e in (*ends, axis - x.rank, step)))
        case 3:
            g.add("Gather", x, g.fixed(g.rng.integers(-n, n, (g.integer(1, 3),)) if n else [], np.int64), axis=axis)
        case 4:
            pads = g.rng.integers(0, 3, 2 * x.rank) * (g.rng.random(2 * x.rank) < 0.3)
            mode = g.choose(("constant", "edge"))
            value = [g.fixed(g.numbers((), x.dtype) if x.dtype in BYTES else np.float32(0.5))]
            g.add("Pad", x, g.fixed(pads, np.int64), *(value if mode == "constant" else []), mode=mode)
        case 5:
            g.add("Reshape", x, g.fixed([0, -1] if x.rank > 1 else [-1], np.int64))
        case 6:
            g.add("Unsqueeze", x, g.fixed([axis], np.int64))
        case 7 if x.rank == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0 and x.array.size:
            g.add("SpaceToDepth", x, blocksize=2)
        case _ if x.rank > 1 and n > 1:
            cut = g.integer(1, n - 1)
            g.add("Split", x, g.fixed([cut, n - cut], np.int64), axis=axis, n_results=2)


def of_codes(g: Grower) -> None:
    """Arithmetic on codes as they are: it wraps around, or takes the greater."""
    x = g.codes()
    y = g.codes(lambda v: v.dtype is x.dtype and v.shape == x.shape)
    match g.integer(0, 5):
        case 0:
            g.add(g.choose(("Max", "Min")), x, y)
        case 1:
            low, high = sorted(g.numbers((2,), x.dtype).tolist())
            g.add("Clip", x, g.fixed(low, x.dtype), g.fixed(high, x.dtype))
        case 2 if g.opset >= 14:
            g.add(g.choose(("Add", "Sub", "Mul")), x, y)
        case 3:
            g.add("Cast", x, to=g.choose((TensorProto.INT32, TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8)))
        case 4:
            axes = {"axes": [-1]} if g.opset < 18 else {}
            if x.rank and x.array.size:
                g.add("ReduceMax", x, *([] if axes else [g.fixed([-1], np.int64)]), **axes)
        case _:
            g.add("Where", g.known(g.rng.random(x.shape) < 0.5), x, y)


# --- ONNX Runtime's own layers ---------------------------------------------------------------------------------------


def of_runtime(g: Grower) -> None:
    """Layers that ONNX Runtime's quantiser writes; its own results may be one off."""
    op = g.choose(("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat", "QLinearSoftmax",
                   "QGemm", "QLinearGlobalAveragePool", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"))  # fmt: skip
    x = g.codes(lambda v: v.rank > 0 and 0 not in v.shape)

    def one() -> tuple[str, str]:
        return g.fixed(g.scale()), g.fixed(g.zero(x.dtype))

    def make(*operands: str | Value, **attrs: Any) -> None:
        g.add(op, *operands, exact=False, domain=MICROSOFT, **attrs)

    match op:
        case "QLinearAdd" | "QLinearMul":
            make(x, *one(), g.codes(lambda v: v.dtype is x.dtype and v.shape == x.shape), *one(), *one())
        case "QLinearSigmoid" | "QLinearLeakyRelu":
            make(x, *one(), *one())
        case "QLinearSoftmax":
            lowest = g.fixed(bounds(x.dtype)[0], x.dtype)  # ONNX Runtime's sums wrap around for others
            make(x, *one(), g.fixed(np.float32(1 / 128)), lowest, opset=13, axis=-1)
        case "QLinearConcat":
            make(*one(), x, *one(), x, *one(), axis=g.integer(0, x.rank - 1))
        case "QLinearGlobalAveragePool" if x.rank >= 3:
            make(x, *one(), *one())
        case "QGemm" if x.rank == 2:
            w = weights(g, (x.shape[1], g.integer(1, 30)), 1)
            bias = g.fixed(g.rng.integers(-500, 500, g.array_of(w[0]).shape[1]), np.int32)
            make(x, *one(), *w, bias, *one())
        case "MatMulIntegerToFloat" if x.rank >= 2:
            w = weights(g, (x.shape[-1], g.integer(1, 30)), 1)
            make(x, w[0], g.fixed(g.scale()), w[1], g.fixed(g.zero(x.dtype)), w[2])
        case "DynamicQuantizeMatMul" if x.rank >= 2:
            w = weights(g, (x.shape[-1], g.integer(1, 30)), 1)
            make(dequantised(g, x), *w)


MAKERS: tuple[Callable[[Grower], None], ...] = (
    quantise, quantise, quantise, dequantise, dequantise, dynamic, convolution, convolution, convolution, product,
    product, product, attention, function, function, pair, pair, joined, pooled, pooled, reduced, softmax, resized,
    moved, moved, of_codes, of_codes, of_runtime, of_runtime,
)  # fmt: skip


def quantised_graph(seed: int) -> Made:
    """A valid model of some layers; equal seeds give equal models."""
    rng = np.random.default_rng(seed)
    g = Grower(rng, OPSETS[seed % len(OPSETS)])
    for _ in range(g.integer(1, 2)):
        g.add_input()
    wanted = g.integer(2, 9)
    while len(g.nodes) < wanted:
        try:
            g.choose(MAKERS)(g)
        except Unfit:
            continue
    return g.finished()
