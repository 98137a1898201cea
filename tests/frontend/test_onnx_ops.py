"""Forms of ops that changed between opsets, and attributes with many cases, against ONNX Runtime.

ONNX's own node tests, which cover the newest forms, run in ``tests/conformance/test_onnx_suite.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from frontend.onnx_build import F32, I64, answers, check_against_runtime, info, model, node, runtime_answers
from tilewright.core.diag import ImportFailed
from tilewright.runtime.errors import InputError

RNG = np.random.default_rng(7)
DTYPES = {np.dtype(np.float32): F32, np.dtype(np.int64): I64, np.dtype(np.uint8): TensorProto.UINT8}
DTYPES |= {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.int32): TensorProto.INT32, np.dtype(bool): TensorProto.BOOL}


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(
    opset: int,
    op: str,
    feeds: list[Any],
    constants: dict[str, Any] | None = None,
    n_outputs: int = 1,
    symbolic: bool = True,
    **attrs: Any,
) -> None:
    """One node; its operands are the feeds in order, then the constants; feeds have symbolic dims too."""
    names = [f"x{k}" for k in range(len(feeds))]
    operands = [*(n if f is not None else "" for n, f in zip(names, feeds, strict=True)), *(constants or {})]
    operands = ["" if n.startswith("none") else n for n in operands]
    given = {n: np.asarray(f) for n, f in zip(names, feeds, strict=True) if f is not None}
    kept = {k: v for k, v in (constants or {}).items() if not k.startswith("none")}
    outputs = [f"y{k}" for k in range(n_outputs)]
    for with_symbols in {False, symbolic}:
        inputs = []
        for n, f in given.items():
            shape: list[Any] = list(f.shape)
            if with_symbols and n == "x0" and shape:
                shape[0] = "N"
            inputs.append(info(n, shape, DTYPES[f.dtype]))
        m = model([node(op, operands, outputs, **attrs)], inputs, outputs, kept, opset=opset)
        check_against_runtime(m, given, rtol=1e-3)


ints = np.array


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_softmax_family(opset, op, axis) -> None:
    check(opset, op, [f32(2, 3, 4)], **({} if axis is None else {"axis": axis}))


def test_clip() -> None:
    check(7, "Clip", [f32(2, 3)], min=-0.5, max=0.25)
    check(10, "Clip", [f32(2, 3)], max=0.25)
    check(12, "Clip", [f32(2, 3)], {"low": np.float32(-0.5), "high": np.float32(0.25)})
    check(13, "Clip", [f32(2, 3)], {"none": 0, "high": np.float32(0.25)})
    check(13, "Clip", [f32(2, 3)], {"low": np.float32(0.5), "high": np.float32(-0.5)})


@pytest.mark.parametrize(
    "op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"]
)
def test_reductions(op) -> None:
    check(7, op, [f32(2, 3, 4)], axes=[1], keepdims=0)
    check(11, op, [f32(2, 3, 4)], axes=[-1, 0])
    check(11, op, [f32(2, 3, 4)])
    check(18, op, [f32(2, 3, 4)], {"axes": ints([-1])}, keepdims=0)
    check(18, op, [f32(2, 3, 4)], {"axes": ints([], np.int64)})


def test_reduce_nothing() -> None:
    check(18, "ReduceSum", [f32(2, 3)], {"axes": ints([], np.int64)}, noop_with_empty_axes=1)
    check(18, "ReduceMax", [f32(2, 3)], noop_with_empty_axes=1)


def test_slice() -> None:
    check(7, "Slice", [f32(5, 6)], starts=[1, -4], ends=[-1, 100])
    check(9, "Slice", [f32(5, 6)], starts=[2], ends=[5], axes=[1])
    check(10, "Slice", [f32(5, 6)], {"a": ints([-1, 1]), "b": ints([-100, 6]), "c": ints([0, 1]), "d": ints([-2, 3])})
    check(13, "Slice", [f32(5, 6)], {"a": ints([3]), "b": ints([1]), "c": ints([-1])})
    check(13, "Slice", [f32(5, 6)], {"a": ints([-100]), "b": ints([100]), "c": ints([1]), "d": ints([100])})


def test_pad() -> None:
    check(7, "Pad", [f32(2, 3)], pads=[0, 1, 2, 0], value=1.5)
    check(11, "Pad", [f32(2, 3)], {"p": ints([0, 1, 2, 0]), "v": np.float32(2)})
    check(13, "Pad", [f32(3, 4)], {"p": ints([0, 2, 0, 1])}, mode="reflect")
    check(13, "Pad", [f32(3, 4)], {"p": ints([0, 2, 0, 1])}, mode="edge")
    check(13, "Pad", [f32(3, 4)], {"p": ints([0, -1, 1, -2])})
    check(19, "Pad", [f32(5, 4)], {"p": ints([-1, -1, 3, 0])}, mode="wrap")
    check(19, "Pad", [f32(3, 4)], {"p": ints([2, 1]), "none": 0, "axes": ints([-1])}, mode="wrap")


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=2))
def test_pad_takes_away_before_it_repeats(mode: str, axes: list[tuple[int, int, int]]) -> None:
    """What negative pads take away is neither repeated nor mirrored; an axis of which nothing is left is refused."""
    shape, lows, highs = zip(*axes, strict=True)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    names = [f"n{k}" for k in range(len(shape))]
    kept = [n + min(lo, 0) + min(hi, 0) for n, lo, hi in axes]
    nothing = any(k < 1 and (lo, hi) != (0, 0) for k, (_, lo, hi) in zip(kept, axes, strict=True))
    for sizes in (shape, names):
        m = model([node("Pad", ["x", "p"], ["y"], mode=mode)], [info("x", sizes)], ["y"], {"p": ints([*lows, *highs])})
        if nothing:
            with pytest.raises((ImportFailed, InputError)):
                answers(m, {"x": x})
        else:
            left = x[tuple(slice(max(-lo, 0), n + min(hi, 0)) for n, lo, hi in axes)]
            wanted = np.pad(left, [(max(lo, 0), max(hi, 0)) for _, lo, hi in axes], mode=mode)
            np.testing.assert_array_equal(answers(m, {"x": x})[0], wanted)


def test_squeeze_split_and_topk() -> None:
    check(7, "Squeeze", [f32(2, 1, 3, 1)], axes=[1])
    check(7, "Unsqueeze", [f32(2, 3)], axes=[0, 3])
    check(11, "Unsqueeze", [f32(2, 3)], axes=[-1])
    check(13, "Squeeze", [f32(2, 1, 3, 1)], {"axes": ints([-1])})
    check(7, "Split", [f32(2, 6)], n_outputs=2, axis=1, split=[2, 4])
    check(11, "Split", [f32(2, 6)], n_outputs=3, axis=-1)
    check(13, "Split", [f32(2, 6)], {"s": ints([1, 5])}, n_outputs=2, axis=1)
    check(18, "Split", [f32(2, 7)], n_outputs=3, axis=1, num_outputs=3)
    check(7, "TopK", [f32(2, 6)], n_outputs=2, k=3)
    check(10, "TopK", [f32(2, 6)], {"k": ints([2])}, n_outputs=2, axis=0)
    check(11, "TopK", [f32(2, 6)], {"k": ints([2])}, n_outputs=2, largest=0)


def test_dropout_and_batch_normalization() -> None:
    check(7, "Dropout", [f32(2, 3)], ratio=0.9)
    check(10, "Dropout", [f32(2, 3)], n_outputs=2)
    check(13, "Dropout", [f32(2, 3)], {"r": np.float32(0.7)}, n_outputs=2)
    parameters = {"scale": f32(3), "bias": f32(3), "mean": f32(3), "var": f32(3) ** 2 + 0.1}
    for opset in (7, 9, 14, 15):
        check(opset, "BatchNormalization", [f32(2, 3, 4, 2)], parameters, epsilon=1e-3)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_auto_pad(auto_pad, stride) -> None:
    check(
        11,
        "Conv",
        [f32(2, 4, 7, 6)],
        {"w": f32(6, 2, 3, 2), "b": f32(6)},
        auto_pad=auto_pad,
        strides=[stride] * 2,
        group=2,
    )
    check(11, "MaxPool", [f32(2, 2, 7, 6)], kernel_shape=[3, 2], auto_pad=auto_pad, strides=[stride, 1])
    check(11, "AveragePool", [f32(2, 2, 7, 6)], kernel_shape=[3, 2], auto_pad=auto_pad, strides=[stride, 1])
    check(11, "ConvTranspose", [f32(1, 4, 5, 3)], {"w": f32(4, 2, 3, 4)}, auto_pad=auto_pad, strides=[stride] * 2)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_ranks(rank) -> None:
    x, w = f32(2, 2, *(6, 5, 7)[:rank]), f32(4, 2, *(3, 2, 3)[:rank])
    pads = [1, 0, 2][:rank] + [0, 1, 1][:rank]
    check(11, "Conv", [x], {"w": w}, pads=pads, dilations=[2, 1, 1][:rank], strides=[1, 2, 1][:rank])
    check(11, "ConvTranspose", [x], {"w": f32(2, 3, *(3, 2, 3)[:rank])}, pads=pads, strides=[2, 1, 1][:rank])
    check(11, "ConvTranspose", [x], {"w": f32(2, 3, *(3,) * rank)}, strides=[2] * rank, output_padding=[1] * rank)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_kernels_of_symbolic_sizes(op) -> None:
    """Weights that are inputs, without the attribute that repeats their sizes."""
    x, w = np.arange(84, dtype=np.float32).reshape(1, 2, 7, 6), np.arange(24, dtype=np.float32).reshape(2, 2, 3, 2)
    m = model([node(op, ["x", "w"], ["y"])], [info("x", x.shape), info("w", [2, 2, "k", "j"])], ["y"])
    check_against_runtime(m, {"x": x, "w": w})


def test_boxes_of_sizes_that_scores_have_too() -> None:
    """Boxes and scores are as many in every call, or boxes would be read that there are not."""
    nodes = [node("NonMaxSuppression", ["x", "s", "most", "overlap"], ["y"])]
    constants = {"most": [3], "overlap": np.float32(0.3)}
    inputs = [info("x", ["b", "n", "four"]), info("s", ["d", "c", "m"])]
    m = model(nodes, inputs, [info("y", None, TensorProto.INT64)], constants)
    draw = np.random.default_rng(0)
    x, s = draw.random((2, 5, 4), np.float32), draw.random((2, 3, 5), np.float32)
    check_against_runtime(m, {"x": x, "s": s})
    compiled = tw.compile(m, threads=1, cache=False)
    for shape in ((2, 3, 500), (9, 3, 5)):
        with pytest.raises(tw.InputError, match="pass inputs whose sizes agree"):
            compiled(x=x, s=draw.random(shape, np.float32))
    with pytest.raises(tw.ImportFailed, match="do not fit scores"):
        tw.compile(model(nodes, [info("x", x.shape), info("s", [2, 3, 6])], ["y"], constants))


def test_transposed_convolution_of_a_given_size() -> None:
    check(11, "ConvTranspose", [f32(1, 2, 3, 4)], {"w": f32(2, 3, 3, 3)}, strides=[3, 2], output_shape=[10, 8])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_of_the_same_size_times_the_stride(auto_pad) -> None:
    """Against the specification's reference, and ONNX Runtime where the kernel reaches as far as the stride."""
    draw = np.random.default_rng(5)
    for _ in range(60):
        (n, m), (k, j) = draw.integers(1, 6, 2), draw.integers(1, 5, 2)
        strides, dilations = draw.integers(1, 6, 2).tolist(), draw.integers(1, 3, 2).tolist()
        x, w = f32(1, 2, n, m), f32(2, 3, k, j)
        made = node("ConvTranspose", ["x", "w"], ["y"], auto_pad=auto_pad, strides=strides, dilations=dilations)
        m = model([made], [info("x", ["b", *x.shape[1:]])], ["y"], {"w": w}, opset=17)
        (got,) = answers(m, {"x": x})
        assert got.shape[2:] == tuple(d * s for d, s in zip(x.shape[2:], strides, strict=True))
        np.testing.assert_allclose(got, ReferenceEvaluator(m).run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        if all((a - 1) * d + 1 >= s for a, d, s in zip(w.shape[2:], dilations, strides, strict=True)):
            check_against_runtime(m, {"x": x})


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("count", [0, 1])
def test_pools(ceil, count) -> None:
    window = {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": ceil}
    check(19, "AveragePool", [f32(1, 2, 8, 7)], count_include_pad=count, pads=[1, 1, 1, 0], **window)
    check(12, "MaxPool", [f32(1, 2, 8, 7)], n_outputs=2, pads=[1, 1, 1, 0], storage_order=count, **window)
    check(12, "MaxPool", [f32(1, 2, 8, 7)], dilations=[2, 1], **window)
    check(11, "LpPool", [f32(1, 2, 8, 7)], kernel_shape=[3, 2], p=3, pads=[1, 1, 1, 0])
    check(11, "GlobalMaxPool", [f32(1, 2, 8, 7)])


@pytest.mark.parametrize("spatial", [(5,), (4, 5), (3, 4, 4)])
def test_the_first_of_equal_maxima_along_rows_is_counted_along_columns(spatial) -> None:
    """The interpreter's answer and the code's."""
    x = RNG.integers(0, 3, (2, 2, *spatial)).astype(np.float32)
    for pads in (0, 1):
        given = {"kernel_shape": [2] * len(spatial), "pads": [pads] * 2 * len(spatial), "storage_order": 1}
        m = model([node("MaxPool", ["x"], ["y", "at"], **given)], [info("x", x.shape)], ["y", "at"], opset=12)
        _, want = runtime_answers(m, {"x": x})
        np.testing.assert_array_equal(answers(m, {"x": x})[1], want)
        np.testing.assert_array_equal(np.asarray(tw.compile(m, cache=False)(x)[1]), want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_whole_numbers_between_others_lose_their_fraction(dtype) -> None:
    """As in ONNX Runtime; the reference rounds."""
    x = ints([0, 1, 3, 10, 100, 7, 90, 5], dtype).reshape(1, 1, 2, 4)
    for size in ([1, 1, 2, 8], [1, 1, 4, 2]):  # fractions that f32 has
        check(13, "Resize", [x, None, None], {"sizes": ints(size)}, mode="linear")
    check(9, "Upsample", [x], {"s": ints([1, 1, 2, 4], np.float32)}, mode="linear")


def test_resize_of_old_opsets() -> None:
    check(7, "Upsample", [f32(1, 1, 2, 3)], scales=[1.0, 1.0, 2.0, 1.5])
    check(9, "Upsample", [f32(1, 1, 2, 3)], {"s": ints([1, 1, 2, 3], np.float32)}, mode="linear")
    check(10, "Resize", [f32(1, 1, 4, 6)], {"s": ints([1, 1, 0.5, 0.6], np.float32)})
    check(
        11,
        "Resize",
        [f32(1, 1, 4, 6)],
        {"roi": ints([], np.float32), "s": ints([1, 1, 1.5, 2], np.float32)},
        mode="linear",
    )


def test_recurrences() -> None:
    for opset in (7, 14):
        weights = {"w": f32(2, 20, 4), "r": f32(2, 20, 5), "b": f32(2, 40)}
        check(opset, "LSTM", [f32(3, 2, 4)], weights, n_outputs=3, hidden_size=5, direction="bidirectional")
        weights = {"w": f32(1, 15, 4), "r": f32(1, 15, 5), "none_b": 0, "none_l": 0, "h": f32(1, 2, 5)}
        check(opset, "GRU", [f32(3, 2, 4)], weights, n_outputs=2, hidden_size=5, linear_before_reset=1)
        weights = {"w": f32(1, 5, 4), "r": f32(1, 5, 5), "none_b": 0, "l": ints([3, 2], np.int32)}
        check(opset, "RNN", [f32(3, 2, 4)], weights, n_outputs=2, hidden_size=5, direction="reverse")


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("name", "n_gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_sequence_without_steps_ends_with_zeros(name: str, n_gates: int, direction: str) -> None:
    """Whatever state it begins with: ONNX does not say, and ONNX Runtime has it so."""
    n, rows = 1 + (direction == "bidirectional"), 5 * n_gates
    weights = {"w": f32(n, rows, 4), "r": f32(n, rows, 5), "b": f32(n, 2 * rows), "l": ints([0, 3, 1], np.int32)}
    weights |= {"h": f32(n, 3, 5), **({"c": f32(n, 3, 5)} if name == "LSTM" else {})}
    n_outputs = 3 if name == "LSTM" else 2
    check(14, name, [f32(3, 3, 4)], weights, n_outputs=n_outputs, hidden_size=5, direction=direction)


def test_products() -> None:
    check(
        7, "Gemm", [f32(3, 2)], {"b": f32(4, 3), "c": f32(4)}, alpha=0.5, beta=2.0, transA=1, transB=1, symbolic=False
    )
    check(11, "Gemm", [f32(3, 2)], {"b": f32(2, 4)})
    for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 2))]:
        check(13, "MatMul", [f32(*a)], {"b": f32(*b)}, symbolic=len(a) > 1)
    for equation, a, b in [
        ("ij,jk", (2, 3), (3, 4)),
        ("...ij , kj -> ...ik", (5, 2, 3), (4, 3)),
        ("bi,bi->b", (2, 3), (2, 3)),
    ]:
        check(12, "Einsum", [f32(*a)], {"b": f32(*b)}, equation=equation)


def test_integer_products() -> None:
    """Weights of seven bits: without VNNI ONNX Runtime's own sums of two products stop at 16 bits beyond them."""
    a, b = RNG.integers(0, 255, (3, 4), np.uint8), RNG.integers(-64, 63, (4, 2), np.int8)
    check(10, "MatMulInteger", [a, b], {"za": np.uint8(7), "zb": np.int8(-3)})
    x, w = RNG.integers(0, 255, (1, 2, 5, 5), np.uint8), RNG.integers(0, 255, (3, 2, 3, 3), np.uint8)
    check(10, "ConvInteger", [x], {"w": w, "zx": np.uint8(9)}, pads=[1, 1, 1, 1])
    scale = np.float32
    constants = {
        "sx": scale(0.02), "zx": np.uint8(9), "w": w, "sw": ints([0.1, 0.2, 0.3], np.float32),
        "zw": np.zeros(3, np.uint8) + 5, "sy": scale(1.5), "zy": np.uint8(3), "b": ints([4, 5, -6], np.int32),
    }  # fmt: skip
    check(10, "QLinearConv", [x], constants)


def test_quantisation() -> None:
    for opset in (10, 13, 19):
        check(opset, "QuantizeLinear", [f32(2, 3)], {"s": np.float32(0.05), "z": np.int8(3)})
        check(opset, "DequantizeLinear", [RNG.integers(0, 255, (2, 3), np.uint8)], {"s": np.float32(0.05)})
        one = {"s": ints([0.05], np.float32), "z": np.uint8(3)}  # for all, whatever the axis
        check(opset, "DequantizeLinear", [RNG.integers(0, 255, 3, np.uint8)], one)
        check(opset, "DequantizeLinear", [RNG.integers(0, 255, 1, np.uint8)], one)
    check(
        13,
        "QuantizeLinear",
        [f32(2, 3)],
        {"s": ints([0.1, 0.2, 0.3], np.float32), "z": ints([1, 2, 3], np.uint8)},
        axis=-1,
    )
    check(11, "DynamicQuantizeLinear", [f32(2, 3)], n_outputs=3)


def test_indices() -> None:
    x, i = f32(3, 4), ints([[0, -1], [2, 1]])
    check(7, "Gather", [x], {"i": i}, axis=1)
    check(11, "GatherElements", [x], {"i": i}, axis=-1)
    check(12, "GatherND", [x], {"i": i[:, :1]})
    check(9, "Scatter", [x], {"i": np.abs(i), "u": f32(2, 2)}, axis=1)
    check(18, "ScatterElements", [x], {"i": i, "u": f32(2, 2)}, axis=1, reduction="max")
    check(18, "ScatterND", [x], {"i": ints([[1], [0]]), "u": f32(2, 4)}, reduction="add")
    check(11, "OneHot", [ints([0, 2, -1])], {"d": ints(3), "v": ints([-1, 4], np.float32)}, axis=0)
    check(11, "CumSum", [x], {"a": ints(-1)}, exclusive=1, reverse=1)
    check(12, "ArgMax", [ints([[1, 3, 3], [2, 2, 0]], np.float32)], axis=1, select_last_index=1, keepdims=0)
    check(10, "ReverseSequence", [f32(4, 3)], {"l": ints([4, 1, 2])})
    check(11, "Compress", [x], {"c": ints([True, False, True])}, axis=0)


def test_element_wise_corners() -> None:
    check(13, "Pow", [ints([[2, 3]])], {"e": ints([2, 0])})
    check(13, "Pow", [np.abs(f32(2, 3))], {"e": ints([2, 1, 0])})
    check(13, "Mod", [ints([[-7, 7, 5]])], {"d": ints([3, -3, 5])})
    check(13, "Mod", [f32(2, 3) * 5], {"d": ints([1.5, -2, 3], np.float32)}, fmod=1)
    check(13, "Div", [ints([[-7, 7, 5]])], {"d": ints([2, -2, 5])})
    check(11, "BitShift", [ints([[1, 200, 16]], np.uint8)], {"d": ints([1, 2, 4], np.uint8)}, direction="RIGHT")
    check(9, "Shrink", [f32(2, 3)], lambd=0.4, bias=0.1)
    check(10, "ThresholdedRelu", [f32(2, 3)], alpha=0.3)
    check(10, "IsInf", [ints([[np.inf, -np.inf, 1]], np.float32)], detect_negative=0)
    check(9, "PRelu", [f32(2, 3, 2)], {"s": f32(3, 1)})
    check(8, "Mean", [f32(2, 3), f32(1, 3), f32(3)])
    check(9, "EyeLike", [f32(3, 4)], k=1)
    check(14, "Trilu", [f32(4, 5)], {"k": ints(-1)}, upper=0)
    check(13, "DepthToSpace", [f32(1, 8, 2, 3)], blocksize=2, mode="CRD")
    check(8, "Expand", [f32(3, 1)], {"s": ints([2, 1, 4])})
    check(13, "Tile", [f32(2, 3)], {"r": ints([2, 3])})
    check(17, "LayerNormalization", [f32(2, 3, 4)], {"s": f32(4), "b": f32(4)}, n_outputs=3)
    check(22, "InstanceNormalization", [f32(2, 3, 4)], {"s": f32(3), "b": f32(3)})
    check(13, "LRN", [f32(2, 6, 3, 3)], size=3, alpha=0.1)
    check(22, "LpNormalization", [f32(2, 3)], axis=0, p=1)


@pytest.mark.parametrize("elem", [F32, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_mean_variance_normalization_of_every_width(elem: int) -> None:
    """ONNX's definition adds numbers of f32, also where the schema allows 16 bits. A row without a deviation is 0."""
    x = f32(2, 3, 4, 5)
    x[:, 1] = 3
    m = model([node("MeanVarianceNormalization", ["x"], ["y"])], [info("x", ["n", 3, 4, 5], elem)], ["y"], opset=13)
    dtype = np.dtype(tensor_dtype_to_np_dtype(elem))
    got = tw.compile(m, cache=False)(x.astype(dtype))
    apart = x - x.mean((0, 2, 3), keepdims=True)
    want = apart / (x.std((0, 2, 3), keepdims=True) + 1e-9)
    assert got.dtype == dtype and not got[:, 1].astype(np.float32).any()
    tolerance = {F32: 1e-5, TensorProto.FLOAT16: 4e-3, TensorProto.BFLOAT16: 4e-2}[elem]
    np.testing.assert_allclose(got.astype(np.float32), want, atol=tolerance)


def test_group_normalization_before_opset_21() -> None:
    check(18, "GroupNormalization", [f32(2, 6, 3)], {"s": f32(2), "b": f32(2)}, num_groups=2)
    check(21, "GroupNormalization", [f32(2, 6, 3)], {"s": f32(6), "b": f32(6)}, num_groups=2)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceLogSum"])
def test_reductions_of_integers_are_cut_towards_zero(op: str, opset: int) -> None:
    x = RNG.integers(1 if op == "ReduceLogSum" else -9, 20, (3, 4, 2)).astype(np.int32)
    check(opset, op, [x], keepdims=0)
    check(opset, op, [x], **({"constants": {"axes": ints([1])}} if opset == 18 else {"axes": [1]}))


def _regions(n: int) -> np.ndarray:
    """Corners of regions, some outside of an image of 9, some without an area."""
    corners = RNG.random((n, 4)).astype(np.float32) * 12 - 2
    corners[:, 2:] = corners[:, :2] + RNG.random((n, 2)).astype(np.float32) * 9 - 1
    return corners


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("form", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(mode: str, form: str, ratio: int) -> None:
    batches = RNG.integers(0, 2, 9)
    operands = [f32(2, 3, 7, 9), _regions(9), batches]
    check(
        16, "RoiAlign", operands, symbolic=ratio > 0, mode=mode, coordinate_transformation_mode=form, output_height=2,
        output_width=3, sampling_ratio=ratio, spatial_scale=0.75,
    )  # fmt: skip


def test_max_roi_pool() -> None:
    corners = np.array(
        [[0, 0, 0, 7, 5], [1, 2, 3, 2, 3], [1, 6, 6, 12, 12], [0, 5, 2, 3, 1], [0, 9, 9, 12, 12]], np.float32
    )
    for scale in (1.0, 0.5):
        check(11, "MaxRoiPool", [f32(2, 3, 7, 8), corners], pooled_shape=[2, 3], spatial_scale=scale)


@pytest.mark.parametrize(
    "form", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_with_antialiasing(mode: str, form: str) -> None:
    x = f32(1, 1, 7, 9)
    scales = np.array([1, 1, 0.45, 0.6], np.float32)
    m = model(
        [node("Resize", ["x", "", "scales"], ["y"], mode=mode, coordinate_transformation_mode=form, antialias=1)],
        [info("x", x.shape)], ["y"], {"scales": scales}, opset=19,
    )  # fmt: skip
    expected = ReferenceEvaluator(m).run(None, {"x": x})[0]
    np.testing.assert_allclose(answers(m, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_a_size_is_scaled_in_f32() -> None:
    """0.7 in f32 is a little less, but times 10 it is 7, in f32."""
    scales = np.array([1, 1, 0.7, 0.7], np.float32)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    m = model(
        [node("Resize", ["x", "", "scales"], ["y"], **attrs)], [info("x", [1, 1, 10, 20])], ["y"], {"scales": scales}
    )
    check_against_runtime(m, {"x": f32(1, 1, 10, 20)})


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling_rows_of_channels(mode: str, padding: str) -> None:
    """Two images of many channels, each read at more points than it has elements."""
    attrs = {"mode": mode, "padding_mode": padding}
    m = model(
        [node("GridSample", ["x", "g"], ["y"], **attrs)], [info("x", [2, 9, 4, 5]), info("g", [2, 6, 7, 2])], ["y"]
    )
    check_against_runtime(m, {"x": f32(2, 9, 4, 5), "g": (RNG.random((2, 6, 7, 2)) * 3 - 1.5).astype(np.float32)})


def test_sizes_that_a_node_fixes() -> None:
    """A grid's last axis is as long as the image has axes, a weight's as ``hidden_size`` says."""
    grid = info("grid", ["b", "h", "w", "n"])
    m = model([node("GridSample", ["x", "grid"], ["y"])], [info("x", ["a", 2, 5, 6]), grid], ["y"], opset=20)
    check_against_runtime(m, {"x": f32(2, 2, 5, 6), "grid": RNG.random((2, 3, 4, 2)).astype(np.float32)})
    m = model(
        [node("GRU", ["x", "w", "r"], ["y", "z"], hidden_size=3)],
        [info("x", ["s", "b", "i"]), info("w", ["d", "g", "j"]), info("r", ["e", "k", "h"])], ["y", "z"],
    )  # fmt: skip
    check_against_runtime(m, {"x": f32(4, 2, 5), "w": f32(1, 9, 5), "r": f32(1, 9, 3)})
