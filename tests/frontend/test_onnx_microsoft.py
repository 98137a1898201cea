"""Ops of ONNX Runtime's own domain against ONNX Runtime, with fixed and with symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from frontend.onnx_build import answers, info, model, node, runtime_answers
from tilewright.core.diag import ImportFailed

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    """Of seven bits: on CPUs without VNNI ONNX Runtime's own sums of two products stop at 16 bits beyond them."""
    return RNG.integers(-64, 64, shape).astype(np.int8)


def i32(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def built(op: str, order: str, feeds: Mapping[str, Any], constants: Mapping[str, Any], n: int, **attrs: Any) -> Any:
    """A model of one node; ``order`` names its operands, ``-`` one that is left out; a feed may come with its dims."""
    names = ["" if name == "-" else name for name in order.split()]
    outputs = [f"y{k}" for k in range(n)]
    inputs = [info(k, dims, helper.np_dtype_to_tensor_dtype(x.dtype)) for k, (x, dims) in feeds.items()]
    opsets = [helper.make_opsetid(DOMAIN, 1)]
    return model([node(op, names, outputs, domain=DOMAIN, **attrs)], inputs, outputs, constants, 17, opsets=opsets)


def check(
    op: str,
    order: str,
    feeds: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[Any]] | None = None,
    n: int = 1,
    within: int = 0,
    rtol: float = 1e-3,
    **attrs: Any,
) -> None:
    """Once with fixed sizes, once with those in ``dims``; integers may differ by ``within``."""
    for symbols in ({}, dims) if dims else ({},):
        declared = {k: (x, (symbols or {}).get(k, x.shape)) for k, x in feeds.items()}
        m = built(op, order, declared, constants or {}, n, **attrs)
        compare(m, feeds, within, rtol)


def compare(m: onnx.ModelProto, feeds: Mapping[str, Any], within: int = 0, rtol: float = 1e-3) -> None:
    for got, wanted in zip(answers(m, feeds), runtime_answers(m, feeds), strict=True):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        if wanted.dtype.kind in "iu":
            assert np.abs(got.astype(int) - wanted.astype(int)).max(initial=0) <= within
        else:
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol / 10)


# --- fused ----------------------------------------------------------------------------------------------------------


def as_given(x: np.ndarray, batch: int, last: int) -> np.ndarray:
    """A tensor that ``transBatch`` and ``trans`` turn into ``x``."""
    axes = [0, 1, 2, 3]
    axes = [1, 2, 0, 3] if batch else axes
    axes = [axes[0], axes[1], axes[3], axes[2]] if last else axes
    return np.ascontiguousarray(np.transpose(x, np.argsort(axes)))


@pytest.mark.parametrize("batch", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("last", [(0, 0), (1, 1)])
def test_products_with_turned_operands(batch, last) -> None:
    a, b = as_given(f32(2, 3, 4, 5), batch[0], last[0]), as_given(f32(2, 3, 5, 6), batch[1], last[1])
    turns = {"transBatchA": batch[0], "transBatchB": batch[1], "transA": last[0], "transB": last[1]}
    check("FusedMatMul", "a b", {"a": a}, {"b": b}, alpha=0.5, **turns)


ACTIVATIONS = [
    ("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.3]), ("HardSigmoid", [0.3, 0.4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "numbers"), [*ACTIVATIONS, ("Clip", [-0.5, 0.6]), ("", [])])
def test_fused_conv(name, numbers) -> None:
    attrs: dict[str, Any] = {"activation": name} if name else {}
    attrs |= {"activation_params": numbers} if numbers else {}
    weights = {"w": f32(6, 2, 3, 3), "b": f32(6)}
    form = {"group": 2, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    x, more = f32(2, 4, 7, 6), f32(2, 6, 7, 6)
    check("FusedConv", "x w b", {"x": x}, weights, {"x": ["N", 4, "H", 6]}, strides=[2, 1], **form, **attrs)
    check("FusedConv", "x w b z", {"x": x, "z": more}, weights, **form, **attrs)


@pytest.mark.parametrize(
    ("name", "numbers"), [*ACTIVATIONS, ("Elu", [0.5]), ("Softplus", []), ("Softsign", []), ("ThresholdedRelu", [0.3])]
)
def test_fused_gemm(name, numbers) -> None:
    attrs = dict(zip(("activation_alpha", "activation_beta"), numbers, strict=False))
    constants = {"b": f32(5, 4), "c": f32(5)}
    check("FusedGemm", "a b c", {"a": f32(3, 4)}, constants, {"a": ["N", 4]}, transB=1, activation=name, alpha=0.5,
          beta=0.7, **attrs)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "constants", "attrs"),
    [
        ("Gelu", {}, {}),
        ("FastGelu", {"b": f32(4)}, {}),
        ("BiasGelu", {"b": f32(4)}, {}),
        ("QuickGelu", {}, {"alpha": 1.5}),
        ("ScaledSiLU", {}, {"alpha": 1.7}),
        ("SkipLayerNormalization", {"s": f32(1, 3, 4), "g": f32(4), "b": f32(4)}, {"epsilon": 1e-5}),
        ("SkipLayerNormalization", {"s": f32(3, 4), "g": f32(4)}, {}),
        ("SkipSimplifiedLayerNormalization", {"s": f32(2, 3, 4), "g": f32(4)}, {"epsilon": 1e-5}),
    ],
)
def test_activations_and_normalisations(op, constants, attrs) -> None:
    check(op, " ".join(["x", *constants]), {"x": f32(2, 3, 4)}, constants, **attrs)


def test_max_pool_channels_last() -> None:
    dims = {"x": ["N", "H", 8, 3]}
    check("NhwcMaxPool", "x", {"x": u8(2, 7, 8, 3)}, {}, dims, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    check("NhwcMaxPool", "x", {"x": i8(2, 7, 8, 3)}, {}, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


def test_embeddings_normalised() -> None:
    ids, mask = RNG.integers(0, 9, (2, 5)).astype(np.int32), i32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    tables = {"w": f32(9, 4), "p": f32(8, 4), "s": f32(2, 4), "g": f32(4), "b": f32(4)}
    dims = {k: ["B", "S"] for k in ("i", "k", "m", "q")}
    feeds = {"i": ids, "k": ids % 2, "m": mask}
    check("EmbedLayerNormalization", "i k w p s g b m", feeds, tables, dims, n=3, epsilon=1e-5)
    check("EmbedLayerNormalization", "i - w p - g b - q", {"i": ids, "q": ids % 8}, tables, dims, n=2)
    names = "wpsgb"
    packed = {n: u8(*tables[n].shape) for n in names}
    packed |= {n + "s": scale(RNG.uniform(0.01, 0.03)) for n in names} | {n + "z": u8(1)[0] for n in names}
    order = "i k w p s g b m " + " ".join(f"{n}s" for n in names) + " " + " ".join(f"{n}z" for n in names)
    check("QEmbedLayerNormalization", order, feeds, packed, dims, n=2)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crops(mode) -> None:
    feeds = {"x": f32(2, 3, 7, 9), "r": RNG.uniform(-0.2, 1.2, (4, 4)).astype(np.float32), "b": i32([0, 1, 1, 0])}
    dims = {"x": ["B", 3, "H", "W"], "r": ["N", 4], "b": ["N"]}
    for size in ([4, 5], [1, 3]):
        check("CropAndResize", "x r b c", feeds, {"c": i32(size)}, dims, mode=mode, extrapolation_value=0.5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_cubic_samples(padding) -> None:
    feeds = {"x": f32(2, 3, 4, 5), "g": RNG.uniform(-1.4, 1.4, (2, 3, 3, 2)).astype(np.float32)}
    check("GridSample", "x g", feeds, mode="bicubic", padding_mode=padding)


# --- attention ------------------------------------------------------------------------------------------------------

B, S, N, H = 2, 5, 3, 4
X = {"x": ["B", "S", 12], "m": ["B", "S"], "p": [2, "B", N, "P", H]}


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_masks(causal) -> None:
    weights = {"w": f32(12, 36) * 0.4, "b": f32(36)}
    kinds = {
        "ends": i32([3, 5]), "ends_and_starts": i32([3, 5, 1, 2]), "keys": i32([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]),
        "queries_and_keys": RNG.integers(0, 2, (B, S, S)).astype(np.int32), "nothing": np.zeros((B, S), np.int32),
    }  # fmt: skip
    for name, mask in kinds.items():
        feeds = {"x": f32(B, S, 12), "m": mask}
        dims = {**X, "m": mask.shape if len(mask) > B else ["B", *["S"] * (mask.ndim - 1)]}
        rough = 1e-2 if name == "nothing" else 1e-3  # scores beside -10000 have few digits left
        symbols = dims if name != "ends_and_starts" else None
        check("Attention", "x w b m", feeds, weights, symbols, num_heads=N, unidirectional=causal, rtol=rough)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_past(causal) -> None:
    weights = {"w": f32(12, 36) * 0.4, "b": f32(36)}
    feeds = {"x": f32(B, S, 12), "p": f32(2, B, N, 4, H)}
    check("Attention", "x w b - p", feeds, weights, X, n=2, num_heads=N, unidirectional=causal)
    narrow = {"w": f32(12, 30), "b": f32(30)}
    check("Attention", "x w b", {"x": f32(B, S, 12)}, narrow, X, num_heads=N, qkv_hidden_sizes=[12, 12, 6])


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("draw", [u8, i8])
def test_quantised_attention(draw, per_column) -> None:
    constants = {
        "w": draw(12, 36), "b": f32(36), "xs": scale(0.01), "xz": np.uint8(120),
        "ws": RNG.uniform(0.005, 0.01, 36).astype(np.float32) if per_column else scale(0.01),
        "wz": draw(36) if per_column else draw(1)[0],
    }  # fmt: skip
    feeds = {"x": u8(B, S, 12), "m": i32([3, 5])}
    check("QAttention", "x w b xs ws m xz wz", feeds, constants, {"x": X["x"], "m": ["B"]}, num_heads=N)


def test_multi_head_attention() -> None:
    def attend(order: str, feeds: dict[str, Any], n: int = 1, fixed: bool = False, **more: Any) -> None:
        given = {k: v for k, v in feeds.items() if k not in ("b", "c")}
        symbols = {
            "q": ["B", "S", 12], "k": ["B", "L", 12], "v": ["B", "L", 6], "e": ["B"], "m": ["B", "L"],
            "r": ["B", "S", "L"], "a": [1, N, "S", "L"],
        }  # fmt: skip
        rest = {k: v for k, v in feeds.items() if k not in given}
        check("MultiHeadAttention", order, given, rest, None if fixed else symbols, n, num_heads=N, **more)

    q, k, v = f32(B, S, 12), f32(B, 7, 12), f32(B, 7, 6)
    base = {"q": q, "k": k, "v": v}
    attend("q k v b", base | {"b": f32(30)}, scale=0.2)
    attend("q k v - e", base | {"e": i32([3, 7])})
    attend("q k v - m", base | {"m": RNG.integers(0, 2, (B, 7)).astype(np.int32)})
    attend("q k v - r", base | {"r": RNG.integers(0, 2, (B, S, 7)).astype(np.int32)})
    attend("q k v - - a", base | {"a": f32(1, N, S, 7)})
    cross = {"q": q, "k": f32(B, N, 7, H), "v": f32(B, N, 7, H)}
    attend("q k v b", cross | {"b": f32(36)}, fixed=True)
    own = {"q": q, "k": f32(B, S, 12), "v": f32(B, S, 12), "pk": f32(B, N, 3, H), "pv": f32(B, N, 3, H)}
    for causal in (0, 1):
        attend("q k v b - - pk pv", own | {"b": f32(36)}, n=3, fixed=True, unidirectional=causal)


def test_packed_heads_mean_the_same_as_heads_apart() -> None:
    x = f32(B, S, N, 3, H)
    q, k, v = (np.ascontiguousarray(x[:, :, :, i]).reshape(B, S, N * H) for i in range(3))
    pair = np.ascontiguousarray(x[:, :, :, 1:])
    apart = {"q": q, "k": k, "v": v}
    ways = [("q k v", apart), ("q", {"q": x}), ("q k", {"q": q, "k": pair})]
    made = [
        answers(built("MultiHeadAttention", order, {n: (t, t.shape) for n, t in f.items()}, {}, 1, num_heads=N), f)
        for order, f in ways
    ]
    np.testing.assert_array_equal(made[0][0], made[1][0])
    np.testing.assert_array_equal(made[0][0], made[2][0])


def test_decoder_attention_with_a_shared_cache() -> None:
    feeds = {"q": f32(B, 1, 12), "k": f32(B, 1, 12), "v": f32(B, 1, 12), "pk": f32(B, N, 9, H), "pv": f32(B, N, 9, H)}
    feeds["n"] = i32([4])
    check("DecoderMaskedMultiHeadAttention", "q k v - - pk pv n", feeds, n=3, num_heads=N, past_present_share_buffer=1)


HQ, HKV, SIZE = 4, 2, 16
STEPS = [  # queries, keys in the cache's buffer, keys of each row, attributes
    (5, 0, [5, 5], {"do_rotary": 1}),
    (5, 9, [5, 5], {"do_rotary": 1, "local_window_size": 2}),
    (1, 4, [5, 4], {"do_rotary": 1}),
    (1, 9, [5, 4], {"do_rotary": 1, "local_window_size": 3, "softcap": 3.0}),
    (1, 9, [5, 4], {"smooth_softmax": 1}),
    (3, 12, [7], {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.5}),
    (5, 0, [5, 5], {"causal": 0}),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("n", "room", "ends", "attrs"), STEPS)
def test_grouped_queries(n, room, ends, attrs, packed) -> None:
    b = len(ends)
    feeds = {"q": f32(b, n, (HQ + 2 * HKV) * SIZE)} if packed else {"q": f32(b, n, HQ * SIZE)}
    feeds |= {} if packed else {k: f32(b, n, HKV * SIZE) for k in "kv"}
    feeds |= {k: f32(b, HKV, room, SIZE) for k in ("pk", "pv")} if room else {}
    feeds["e"] = i32(ends) - 1
    constants = {"t": i32(max(ends)), "cos": f32(64, 8), "sin": f32(64, 8)}
    order = ["q", *("--" if packed else "kv"), *(("pk", "pv") if room else "--"), "e", "t", "cos", "sin"]
    order = order if attrs.get("do_rotary") else order[:7]
    dims = {k: ["B", "S", x.shape[2]] for k, x in feeds.items() if x.ndim == 3}
    dims |= {"e": ["B"], "pk": ["B", HKV, "P", SIZE], "pv": ["B", HKV, "P", SIZE]}
    form = {"num_heads": HQ, "kv_num_heads": HKV, **attrs}
    check("GroupQueryAttention", " ".join(order), feeds, constants, dims, n=3, **form)


def test_grouped_queries_with_bias_sink_and_half_floats() -> None:
    feeds = {"q": f32(2, 1, HQ * SIZE)} | {k: f32(2, 1, HKV * SIZE) for k in "kv"}
    feeds |= {k: f32(2, HKV, 9, SIZE) for k in ("pk", "pv")} | {"e": i32([4, 3])}
    form = {"num_heads": HQ, "kv_num_heads": HKV}
    t, names = {"t": i32(5)}, "q k v pk pv e t"
    check("GroupQueryAttention", names + " - - - a", feeds | {"a": f32(1, 1, 1, 5)}, t, n=3, **form)
    check("GroupQueryAttention", names + " - - - - s", feeds, t | {"s": f32(HQ)}, n=3, **form)
    half = {k: x.astype(np.float16) if x.dtype == np.float32 else x for k, x in feeds.items()}
    check("GroupQueryAttention", names, half, t, n=3, rtol=1e-2, **form)


def test_total_length_as_an_input_of_the_model() -> None:
    feeds = {"q": f32(2, 5, HQ * SIZE)} | {k: f32(2, 5, HKV * SIZE) for k in "kv"} | {"e": i32([4, 4]), "t": i32(5)}
    check("GroupQueryAttention", "q k v - - e t", feeds, n=3, num_heads=HQ, kv_num_heads=HKV)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary(interleaved) -> None:
    tables, at = {"c": f32(16, 2), "s": f32(16, 2)}, RNG.integers(0, 16, (B, S))
    dims = {"x": ["B", "S", 12], "p": ["B", "S"]}
    check("RotaryEmbedding", "x p c s", {"x": f32(B, S, 12), "p": at}, tables, dims, interleaved=interleaved)
    check("RotaryEmbedding", "x p c s", {"x": f32(B, S, 12), "p": np.array([3])}, tables, interleaved=interleaved)
    check("RotaryEmbedding", "x p c s", {"x": f32(B, N, S, H), "p": at}, tables, interleaved=interleaved)
    part = {"num_heads": 3, "rotary_embedding_dim": 4, "interleaved": interleaved}
    check("RotaryEmbedding", "x p c s", {"x": f32(B, S, 24), "p": at}, tables, **part)


# --- quantised ------------------------------------------------------------------------------------------------------

KINDS = pytest.mark.parametrize(("draw", "low"), [(u8, 0), (i8, -128)])


def quantisation(low: int, **places: tuple[float, int]) -> dict[str, np.ndarray]:
    """A scale ``<name>s`` and a zero point ``<name>z`` for each name, zero points counted from the lowest number."""
    dtype = np.uint8 if low == 0 else np.int8
    made = {f"{k}s": scale(s) for k, (s, _) in places.items()}
    return made | {f"{k}z": np.array(z + low, dtype) for k, (_, z) in places.items()}


@KINDS
def test_quantised_arithmetic(draw, low) -> None:
    numbers = quantisation(low, a=(0.02, 120), b=(0.03, 140), y=(0.04, 125))
    for op in ("QLinearAdd", "QLinearMul"):
        for shape in ((3, 5, 7), (7,), (5, 1)):
            constants = {**numbers, "b": draw(*shape)}
            check(op, "a as az b bs bz ys yz", {"a": draw(3, 5, 7)}, constants, {"a": ["N", 5, 7]})
    feeds = {"c": RNG.integers(0, 2, (3, 5)).astype(bool), "a": draw(5), "b": draw(3, 1)}
    check("QLinearWhere", "c a as az b bs bz ys yz", feeds, numbers, {"c": ["N", 5], "b": ["N", 1]}, within=1)
    check("QLinearConcat", "ys yz a as az b bs bz", {"a": draw(3, 5), "b": draw(3, 2)}, numbers, within=1, axis=1)


@KINDS
def test_quantised_functions(draw, low) -> None:
    numbers, dims = quantisation(low, x=(0.05, 120), y=(1 / 64, 100)), {"x": ["N", 5, 9]}
    order, feeds = "x xs xz ys yz", {"x": draw(3, 5, 9)}
    check("QLinearSigmoid", order, feeds, numbers, dims, within=1)
    check("QLinearLeakyRelu", order, feeds, numbers, dims, within=1, alpha=0.2)
    numbers = quantisation(low, x=(0.03, 120), y=(1 / 256, 0))
    for axis, opset in ((-1, 13), (1, 13), (1, 11)):
        made = {"x": (feeds["x"], dims["x"])}
        m = built("QLinearSoftmax", order, made, numbers, 1, axis=axis)
        m.graph.node[0].attribute.append(helper.make_attribute("opset", opset))
        compare(m, feeds, within=1)


@KINDS
@pytest.mark.parametrize("last", [0, 1])
def test_quantised_pools(draw, low, last) -> None:
    numbers = quantisation(low, x=(0.05, 120), y=(0.03, 120))
    order, feeds, dims = "x xs xz ys yz", {"x": draw(2, 7, 6, 5)}, {"x": ["N", 7, 6, 5]}
    check("QLinearGlobalAveragePool", order, feeds, numbers, dims, within=1, channels_last=last)
    form = {"channels_last": last, "kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}
    for counted in (0, 1):
        check("QLinearAveragePool", order, feeds, numbers, dims, within=1, count_include_pad=counted, **form)


@pytest.mark.parametrize("draw", [u8, i8])
def test_products_of_quantised_tensors(draw) -> None:
    each, zeros = RNG.uniform(0.01, 0.1, 5).astype(np.float32), draw(5)
    one = {"b": draw(7, 5), "as": scale(0.02), "az": np.uint8(120), "bs": scale(0.03), "bz": draw(1)[0], "c": f32(5)}
    for numbers in (one, one | {"bs": each, "bz": zeros}):
        dims = {"a": ["N", 4, 7]}
        check("MatMulIntegerToFloat", "a b as bs az bz c", {"a": u8(2, 4, 7)}, numbers, dims)
        check("DynamicQuantizeMatMul", "a b bs bz c", {"a": f32(2, 4, 7)}, numbers, dims)
        check("DynamicQuantizeMatMul", "a b bs bz", {"a": f32(2, 4, 7)}, numbers, dims)
        gemm = numbers | {"c": RNG.integers(-500, 500, 5).astype(np.int32)}
        check("QGemm", "a as az b bs bz", {"a": u8(4, 7)}, gemm, alpha=0.7)
        gemm |= {"b": np.ascontiguousarray(gemm["b"].T), "ys": scale(0.3), "yz": np.uint8(100)}
        if numbers is one:
            check("QGemm", "a as az b bs bz c ys yz", {"a": u8(7, 4)}, gemm, within=1, transA=1, transB=1, alpha=0.7)


@pytest.mark.parametrize("last", [0, 1])
def test_quantised_conv_channels_last(last) -> None:
    constants = {
        "w": i8(6, 2, 3, 3), "ws": RNG.uniform(0.01, 0.02, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
        "b": RNG.integers(-500, 500, 6).astype(np.int32), **quantisation(0, x=(0.02, 120), y=(0.1, 128)),
    }  # fmt: skip
    feeds = {"x": u8(2, 7, 6, 4) if last else u8(2, 4, 7, 6)}
    form = {"group": 2, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "channels_last": last}
    check("QLinearConv", "x xs xz w ws wz ys yz b", feeds, constants, within=1, **form)


def test_linear_quantisation_of_its_own_domain() -> None:
    check("QuantizeLinear", "x s z", {"x": f32(3, 5)}, {"s": scale(0.04), "z": np.uint8(110)}, {"x": ["N", 5]})
    rows = {"s": f32(3), "z": RNG.integers(0, 900, 3).astype(np.uint16)}
    check("DequantizeLinear", "x s z", {"x": RNG.integers(0, 900, (3, 4)).astype(np.uint16)}, rows, axis=0)
    check("DequantizeLinear", "x s", {"x": RNG.integers(-900, 900, (3, 4)).astype(np.int32)}, {"s": scale(0.03)})


# --- weights by bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("n", "k", "block"), [(16, 48, 16), (6, 33, 32)])
def test_product_with_weights_by_bits(bits, n, k, block) -> None:
    n_blocks = -(-k // block)
    constants = {"b": u8(n, n_blocks, block * bits // 8), "s": RNG.uniform(0.01, 0.1, (n, n_blocks)).astype(np.float32)}
    packed = {"z": u8(n * -(-n_blocks * bits // 8))}
    form: dict[str, Any] = {"N": n, "K": k, "block_size": block, "bits": bits, "rtol": 5e-3}  # rows of 16 bits
    feeds, dims = {"a": f32(2, 3, k)}, {"a": ["B", "S", k]}
    check("MatMulNBits", "a b s", feeds, constants, dims, **form)
    check("MatMulNBits", "a b s z", feeds, constants | packed, **form)
    if bits < 8:  # ONNX Runtime has no 8-bit form with these
        floats = {"z": RNG.uniform(1, 3, (n, n_blocks)).astype(np.float32), "c": f32(n)}
        check("MatMulNBits", "a b s z - c", feeds, constants | floats, **form)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_dealt_out", [True, False])
@pytest.mark.parametrize("zeros", [None, np.uint8, np.float32])
def test_product_whose_terms_say_which_scale_they_have(bits, is_dealt_out, zeros) -> None:
    """Where each scale has as many terms as a block they are put in their blocks' order; else each has its own."""
    n, k, block = 16, 48, 16
    constants = {"b": u8(n, 3, block * bits // 8), "s": RNG.uniform(0.01, 0.1, (n, 3)).astype(np.float32)}
    groups = RNG.permutation(np.repeat(np.arange(3), block)) if is_dealt_out else RNG.integers(0, 3, k)
    constants["g"] = groups.astype(np.int32)
    order = "a b s - g"
    if zeros is not None:
        constants["z"] = u8(n, -(-3 * bits // 8)) if zeros is np.uint8 else RNG.uniform(1, 9, (n, 3)).astype(zeros)
        order = "a b s z g"
    form = {"N": n, "K": k, "block_size": block, "bits": bits, "rtol": 5e-3}  # rows of 16 bits
    declared = {"a": (f32(2, 3, k), (2, 3, k))}
    m = built("MatMulNBits", order, declared, constants, 1, **{x: v for x, v in form.items() if x != "rtol"})
    codes = np.stack([constants["b"] >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -1).reshape(n, k)
    points = {None: lambda: np.full((n, 3), 1 << bits - 1), np.float32: lambda: constants["z"]}
    packed = {np.uint8: lambda: np.stack([constants["z"] >> s & (1 << bits) - 1 for s in range(0, 8, bits)], -1)}
    point = (points | packed)[zeros]().reshape(n, -1)[:, :3].astype(np.float32)
    real = (codes - point[:, groups]) * constants["s"][:, groups]
    (found,) = answers(m, {"a": declared["a"][0]})
    np.testing.assert_allclose(found, declared["a"][0] @ real.T, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("kind", [0, 1])
def test_product_with_weights_by_table(kind) -> None:
    constants = {"b": u8((6 * 33 + 1) // 2), "s": RNG.uniform(0.1, 1, (6 * 33 + 15) // 16).astype(np.float32)}
    check("MatMulBnb4", "a b s", {"a": f32(3, 33)}, constants, N=6, K=33, block_size=16, quant_type=kind)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_of_a_packed_table(bits) -> None:
    constants = {"d": u8(9, 48 * bits // 8), "s": RNG.uniform(0.01, 0.1, (9, 3)).astype(np.float32)}
    constants["z"] = u8(9, -(-3 * bits // 8))
    form: dict[str, Any] = {"bits": bits, "block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    feeds = {"i": RNG.integers(-9, 9, (2, 5))}
    check("GatherBlockQuantized", "d i s", feeds, constants, {"i": ["B", "S"]}, **form)
    check("GatherBlockQuantized", "d i s z", feeds, constants, **form)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize(("k", "normal"), [(1, 0), (2, 1)])
def test_mixture_of_experts(activation, k, normal) -> None:
    wide = 2 if activation == "swiglu" else 1
    constants = {"w1": f32(4, wide * 32, 16), "b1": f32(4, wide * 32), "w2": f32(4, 16, 32), "b2": f32(4, 16)}
    feeds, dims = {"x": f32(6, 16), "r": f32(6, 4)}, {"x": ["T", 16], "r": ["T", 4]}
    form = {"activation_type": activation, "k": k, "normalize_routing_weights": normal}
    gate: dict[str, Any] = {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 2.0}
    check("MoE", "x r w1 b1 w2 b2", feeds, constants, dims, **form, **(gate if wide == 2 else {}))


@pytest.mark.parametrize("block", [0, 16])
def test_mixture_of_quantised_experts(block) -> None:
    def scales(*shape: int) -> np.ndarray:
        return RNG.uniform(0.01, 0.1, (*shape[:2], shape[2] // block) if block else shape[:2]).astype(np.float32)

    constants = {"w1": u8(4, 32, 8), "s1": scales(4, 32, 16), "w2": u8(4, 16, 8), "s2": scales(4, 16, 16)}
    form = {"k": 2, "expert_weight_bits": 4, "activation_type": "swiglu", "swiglu_fusion": 1}
    form["normalize_routing_weights"] = 1  # without, ONNX Runtime's QMoE has other shares than its MoE and definition
    feeds = {"x": f32(6, 16), "r": f32(6, 4)}
    more = {"block_size": block} if block else {}
    check("QMoE", "x r w1 s1 - w2 s2", feeds, constants, rtol=1e-2, **form, **more)


# --- LSTM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("draw", "zero"), [(u8, np.uint8(120)), (i8, np.int8(0))])
def test_quantised_lstm(direction, draw, zero) -> None:
    n, steps, batch, wide, hidden = 2 if direction == "bidirectional" else 1, 5, 3, 6, 4
    each = RNG.uniform(0.003, 0.006, (n, 4 * hidden)).astype(np.float32)
    one = {"w": draw(n, wide, 4 * hidden), "r": draw(n, hidden, 4 * hidden), "b": f32(n, 8 * hidden) * 0.3}
    one |= {"ws": each[:, 0], "rs": each[:, 1], "wz": np.full(n, zero), "rz": np.full(n, zero)}
    rows = {"ws": each, "rs": each[:, ::-1].copy(), "wz": np.full(each.shape, zero), "rz": np.full(each.shape, zero)}
    feeds = {"x": f32(steps, batch, wide)}
    full = feeds | {"l": i32([5, 3, 0]), "h": f32(n, batch, hidden), "c": f32(n, batch, hidden)}
    form = {"n": 3, "rtol": 2e-2, "hidden_size": hidden, "direction": direction}
    dims = {"x": ["T", "B", wide], "l": ["B"], "h": [n, "B", hidden], "c": [n, "B", hidden]}
    check("DynamicQuantizeLSTM", "x w r b - - - - ws wz rs rz", feeds, one, dims, **form)
    constants = one | rows | {"p": f32(n, 3 * hidden)}
    check("DynamicQuantizeLSTM", "x w r b l h c p ws wz rs rz", full, constants, dims, **form)


def test_quantised_lstm_of_other_functions() -> None:
    constants = {"w": u8(1, 6, 16), "r": u8(1, 4, 16), "s": np.array([0.004], np.float32), "z": u8(1)}
    order, feeds = "x w r - - - - - s z s z", {"x": f32(5, 3, 6)}
    forms: list[dict[str, Any]] = [
        {"activations": ["HardSigmoid", "Relu", "Softsign"]},
        {"clip": 0.5, "input_forget": 1},
    ]
    for form in forms:
        check("DynamicQuantizeLSTM", order, feeds, constants, n=3, rtol=2e-2, hidden_size=4, **form)


# --- plain tensors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_repeated_grams(n) -> None:
    feeds, dims = {"i": RNG.integers(0, 3, (2, 9)), "s": f32(2, 5)}, {"i": ["B", "L"], "s": ["B", 5]}
    check("NGramRepeatBlock", "i s", feeds, {}, dims, ngram_size=n)


def test_older_spellings() -> None:
    check("Unique", "x", {"x": np.array([2, 1, 1, 3, 4, 3], np.float32)}, {}, {"x": ["N"]}, n=3)
    check("ExpandDims", "x a", {"x": f32(2, 3)}, {"a": i32(-1)}, {"x": ["N", 3]})
    check("UnfoldTensor", "x", {"x": f32(2, 9, 3)}, {}, {"x": ["B", "N", 3]}, dim=1, size=3, step=2)
    check("Pad", "x p v", {"x": f32(2, 3)}, {"p": np.array([[0, 1, 1, 2]]), "v": scale(0.5)}, {"x": ["N", 3]})
    check("Range", "s l", {"s": scale(1)}, {"l": scale(7)})
    check("Trilu", "x k", {"x": f32(2, 4, 5)}, {"k": np.array(1)}, upper=0)
    check("GatherND", "x i", {"x": f32(3, 4, 5)}, {"i": RNG.integers(0, 3, (2, 2))})
    check("Inverse", "x", {"x": f32(2, 5, 5) + 3 * np.eye(5, dtype=np.float32)}, {}, {"x": ["N", 5, 5]})
    for metric in ("euclidean", "sqeuclidean"):
        check("CDist", "a b", {"a": f32(3, 4)}, {"b": f32(5, 4)}, {"a": ["N", 4]}, metric=metric)


# --- ops that ONNX Runtime computes on GPUs only: their definitions in NumPy ----------------------------------------


def given(op: str, order: str, feeds: Mapping[str, np.ndarray], n: int = 1, **attrs: Any) -> tuple[np.ndarray, ...]:
    return answers(built(op, order, {k: (x, x.shape) for k, x in feeds.items()}, {}, n, **attrs), feeds)


def test_transforms_of_real_signals() -> None:
    x = f32(2, 3, 8)
    (y,) = given("Rfft", "x", {"x": x}, signal_ndim=1, normalized=0, onesided=1)
    wanted = np.fft.rfft(x)
    np.testing.assert_allclose(y, np.stack([wanted.real, wanted.imag], -1), rtol=1e-5, atol=1e-5)
    (back,) = given("Irfft", "x", {"x": y}, signal_ndim=1, normalized=0, onesided=1)
    np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-5)


def test_products_of_pairs() -> None:
    a, b = f32(3, 4, 2), f32(3, 4, 2)
    left, right = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for op, wanted in (("ComplexMul", left * right), ("ComplexMulConj", left * right.conj())):
        (y,) = given(op, "a b", {"a": a, "b": b})
        np.testing.assert_allclose(y, np.stack([wanted.real, wanted.imag], -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", [0, 1])
def test_group_norm_after_a_sum(last) -> None:
    x, skip, g, b = f32(2, 6, 4, 5), f32(2, 6, 4, 5), f32(6), f32(6)
    total = x + skip
    parts = total.reshape(2, 3, -1)
    normal = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    wanted = normal.reshape(x.shape) * g[:, None, None] + b[:, None, None]
    wanted = wanted / (1 + np.exp(-wanted))
    turn = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    feeds = {"x": x.transpose(turn), "g": g, "b": b, "s": skip.transpose(turn)}
    y, kept = given("SkipGroupNorm", "x g b s", feeds, 2, groups=3, activation=1, channels_last=last)
    np.testing.assert_allclose(y, wanted.transpose(turn), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(kept, total.transpose(turn))


def test_sums_with_what_follows() -> None:
    x, b, s = f32(2, 3, 8), f32(8), f32(2, 3, 8)
    np.testing.assert_array_equal(given("BiasAdd", "x b s", {"x": x, "b": b, "s": s})[0], x + b + s)
    e = np.exp(x + b - (x + b).max(-1, keepdims=True))
    (y,) = given("BiasSoftmax", "x b", {"x": x, "b": b}, axis=2, is_inner_broadcast=0)
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(given("BiasDropout", "x b s", {"x": x, "b": b, "s": s})[0], x + b + s)
    (split,) = given("BiasSplitGelu", "x b", {"x": x, "b": b})
    (gelu,) = given("Gelu", "x", {"x": (x + b)[..., 4:]})
    np.testing.assert_allclose(split, (x + b)[..., :4] * gelu, rtol=1e-5, atol=1e-6)


def test_blocked_layouts_are_refused_with_the_level_to_save_at() -> None:
    m = built("Conv", "x w", {"x": (f32(1, 16, 4, 4), [1, 16, 4, 4])}, {"w": f32(16, 16, 3, 3)}, 1)
    m.graph.node[0].domain = "com.microsoft.nchwc"
    m.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    with pytest.raises(ImportFailed, match="ORT_ENABLE_EXTENDED"):
        answers(m, {"x": f32(1, 16, 4, 4)})


def test_attention_of_a_width_that_calls_decide() -> None:
    """The default scale is a function of that."""
    feeds = {"q": f32(2, 3, 8), "k": f32(2, 5, 8), "v": f32(2, 5, 8)}
    dims = {"q": ["b", "n", "w"], "k": ["b", "m", "w"], "v": ["b", "m", "w"]}
    check("MultiHeadAttention", "q k v", feeds, dims=dims, num_heads=2)
