"""Quantised TFLite models: each operator gives LiteRT's reference kernels' codes, bit by bit."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tilewright as tw
from frontend.tflite_build import Codes, TfliteModel
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite import recurrent
from tilewright.frontend.tflite.importer import import_tflite
from tilewright.frontend.tflite.table import QUANTISED

RNG = np.random.default_rng(23)
I8, I16, F32 = np.int8, np.int16, np.float32


def codes(*shape: int, dtype: Any = I8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


@dataclass
class Operand:
    """Numbers with a quantisation; of a call, or, where ``known``, of the file."""

    array: np.ndarray
    codes: Codes | None = None
    known: bool = False


@dataclass
class Case:
    """An operator, and how its one result is quantised."""

    name: str
    operands: Sequence[Operand | None]
    made: Codes | None
    dtype: Any = I8
    options: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    def model(self) -> tuple[bytes, list[np.ndarray]]:
        model = TfliteModel()
        places = []
        for x in self.operands:
            if x is None:
                places.append(-1)
            else:
                places.append((model.const if x.known else model.input)(x.array, x.codes))
        result = ((), self.dtype) if self.made is None else ((), self.dtype, self.made)
        model.outputs = model.op(self.name, places, [result], self.options, **self.values)
        return model.bytes(), [x.array for x in self.operands if x is not None and not x.known]


REFERENCE, PLAINLY = OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES


def by_litert(content: bytes, arrays: Sequence[np.ndarray], kernels: OpResolverType) -> list[np.ndarray]:
    """What LiteRT gives; the reference kernels define the format, and others round in their own ways."""
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    for detail, a in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(detail["index"], a)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def check(case: Case, kernels: OpResolverType = REFERENCE) -> None:
    """Both the meaning of the graph and the code that is made of it give LiteRT's codes."""
    content, arrays = case.model()
    (theirs,) = by_litert(content, arrays, kernels)
    (meant,) = evaluate_graph(import_tflite(content, case.name).graph, arrays)
    ours = tw.compile(content, cache=False, threads=1)(*arrays)
    for found in (meant, ours):
        assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(found, theirs)


def x8(*shape: int, scale: float = 0.05, zero: int = 3) -> Operand:
    return Operand(codes(*shape), Codes(scale, zero))


def x16(*shape: int, scale: float = 0.0003) -> Operand:
    return Operand(codes(*shape, dtype=I16), Codes(scale))


def known(*values: Any, dtype: Any = np.int32) -> Operand:
    return Operand(np.array(values, dtype), None, True)


def weights(*shape: int, axis: int | None = 0, bias: float = 0.05, dtype: Any = np.int32) -> list[Operand]:
    """Weights with a scale for each channel, or for all where ``axis`` is None, and their bias."""
    n = shape[0 if axis is None else axis]
    scales = np.float32(0.01) if axis is None else RNG.uniform(0.001, 0.02, n).astype(F32)
    return [
        Operand(np.maximum(codes(*shape), -127), Codes(scales, 0, axis or 0), True),
        Operand(RNG.integers(-5000, 5000, n).astype(dtype), Codes(scales * np.float32(bias), 0, 0), True),
    ]


WINDOW = {"StrideH": 1, "StrideW": 1}
CONV = {**WINDOW, "DilationHFactor": 1, "DilationWFactor": 1}
POOL = {**WINDOW, "FilterHeight": 2, "FilterWidth": 3}
Y, Y16 = Codes(0.11, -7), Codes(0.0021)
BYTE_OF_UNIT = Codes(1 / 256, -128)


def fully(x: Operand, w: list[Operand], made: Codes, dtype: Any = I8, **values: Any) -> Case:
    return Case("FULLY_CONNECTED", [x, *w], made, dtype, "FullyConnectedOptions", values)


def conv(x: Operand, w: list[Operand], made: Codes, dtype: Any = I8, **values: Any) -> Case:
    return Case("CONV_2D", [x, *w], made, dtype, "Conv2DOptions", {**CONV, "Padding": 0, **values})


def pool(name: str, x: Operand, made: Codes, dtype: Any = I8, **values: Any) -> Case:
    return Case(name, [x], made, dtype, "Pool2DOptions", {**POOL, "Padding": 0, **values})


def plain(name: str, *operands: Operand, made: Codes | None = Y, dtype: Any = I8, options: str = "", **v: Any) -> Case:
    return Case(name, operands, made, dtype, options, v)


PLAIN = Codes(0.05, 3)
CASES: dict[str, Case] = {
    "fully": fully(x8(5, 19), weights(7, 19, axis=None), Y, FusedActivationFunction=1),
    "fully by channel": fully(x8(300, 24), weights(40, 24), Y, FusedActivationFunction=3),
    "fully kept": fully(x8(2, 3, 8), weights(5, 8), Y, KeepNumDims=True),
    "fully 16": fully(x16(5, 19), weights(7, 19, axis=None, bias=0.0003, dtype=np.int64), Y16, I16),
    "fully without bias": fully(x8(3, 300), weights(4, 300)[:1], Codes(0.9, 11)),
    "conv": conv(x8(2, 6, 7, 5), weights(8, 3, 3, 5), Y, FusedActivationFunction=1),
    "conv one scale": conv(x8(1, 6, 7, 5), weights(8, 3, 3, 5, axis=None), Y, StrideW=2, FusedActivationFunction=2),
    "conv valid dilated": conv(x8(1, 9, 9, 4), weights(6, 3, 2, 4), Y, Padding=1, DilationHFactor=2),
    "conv groups": conv(x8(1, 5, 5, 6), weights(4, 3, 3, 3), Y),
    "conv 16": conv(x16(1, 6, 7, 5), weights(8, 3, 3, 5, dtype=np.int64), Y16, I16),
    "conv 16, sums of 32 bits": conv(x16(1, 4, 4, 2), weights(3, 2, 2, 2), Y16, I16, QuantizedBiasType=2),
    "depthwise": Case("DEPTHWISE_CONV_2D", [x8(2, 6, 7, 4), *weights(1, 3, 3, 8, axis=3)], Y, I8,
                      "DepthwiseConv2DOptions", {**CONV, "Padding": 0, "DepthMultiplier": 2}),
    "transposed": Case("TRANSPOSE_CONV", [known(1, 10, 12, 3), weights(3, 3, 3, 4)[0], x8(1, 5, 6, 4)], Y, I8,
                       "TransposeConvOptions", {"Padding": 0, "StrideH": 2, "StrideW": 2}),
    "batched product": plain("BATCH_MATMUL", x8(2, 3, 4), x8(2, 5, 4), options="BatchMatMulOptions", AdjY=True),
    "batched product 16": plain("BATCH_MATMUL", x16(2, 3, 4), x16(2, 4, 5), made=Y16, dtype=I16,
                                options="BatchMatMulOptions"),
    **{name: plain(name, x8(3, 4, 5), x8(4, 1, scale=0.02, zero=-100), options=f"{name.title()}Options",
                   FusedActivationFunction=k) for k, name in enumerate(("ADD", "SUB", "MUL"))},
    **{f"{name} 16": plain(name, x16(3, 4, 5), x16(4, 1, scale=0.0004), made=Codes(0.0008), dtype=I16,
                           options=f"{name.title()}Options", **({} if name == "MUL" else {"PotScaleInt16": False}))
       for name in ("ADD", "SUB", "MUL")},
    "squared difference": plain("SQUARED_DIFFERENCE", x8(3, 4, 5), x8(4, 1, scale=0.02, zero=-100)),
    **{name: plain(name, x8(3, 40), x8(3, 40, scale=0.06, zero=1), made=None, dtype=np.bool_) for name in (
        "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")},
    **{f"{name} 16": plain(name, x16(3, 40), x16(3, 40, scale=0.0012), made=None, dtype=np.bool_) for name in (
        "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")},
    "NEG": plain("NEG", x8(3, 80), made=PLAIN),
    **{name: plain(name, x8(3, 40), x8(3, 40), made=PLAIN) for name in ("MINIMUM", "MAXIMUM")},
    **{f"DIV {np.dtype(t).name}": plain(
        "DIV", Operand(np.arange(256).reshape(-1, 1).astype(t), Codes(0.03, zero + 1)),
        Operand((np.arange(9, 48) + zero).astype(t), Codes(0.05, zero + 8)), made=Codes(0.02, zero), dtype=t,
        options="DivOptions", FusedActivationFunction=1) for t, zero in ((I8, 0), (np.uint8, 120))},
    "PRELU": plain("PRELU", x8(2, 3, 40), Operand(codes(1, 1, 40), Codes(0.01, 20), True)),
    "max pool": pool("MAX_POOL_2D", x8(2, 5, 6, 3), PLAIN, FusedActivationFunction=1),
    "average pool": pool("AVERAGE_POOL_2D", x8(2, 5, 6, 3), PLAIN, FusedActivationFunction=3),
    "average pool 16": pool("AVERAGE_POOL_2D", x16(2, 5, 6, 3), Codes(0.0003), I16, Padding=1),
    "MEAN": plain("MEAN", x8(16, 7, 5, 40), known(1, 2), options="ReducerOptions", KeepDims=True),
    "MEAN 16": plain("MEAN", x16(16, 7, 5, 40), known(1, 2), made=Codes(0.0002), dtype=I16, options="ReducerOptions"),
    "fully 16 by channel": fully(x16(5, 19), weights(7, 19, bias=0.0003, dtype=np.int64), Y16, I16),
    **{name: plain(name, x8(2, 7, 5), known(1), made=PLAIN, options="ReducerOptions") for name in (
        "REDUCE_MAX", "REDUCE_MIN")},
    "SOFTMAX": plain("SOFTMAX", x8(20, 30, scale=0.08), made=BYTE_OF_UNIT, options="SoftmaxOptions", Beta=1.0),
    "softmax wide": plain("SOFTMAX", x8(20, 30, scale=0.3), made=BYTE_OF_UNIT, options="SoftmaxOptions", Beta=0.7),
    **{f"log softmax of {n}": plain("LOG_SOFTMAX", x8(40, n, scale=scale), made=Codes(1 / 16, 127),
                                    options="LogSoftmaxOptions") for n, scale in ((30, 0.08), (7, 0.3), (300, 0.02))},
    "log softmax of bytes": plain("LOG_SOFTMAX", Operand(codes(40, 30, dtype=np.uint8), Codes(0.08, 99)),
                                  made=Codes(1 / 16, 255), dtype=np.uint8, options="LogSoftmaxOptions"),
    **{f"REDUCE_PROD {axes}": plain("REDUCE_PROD", x8(*shape, scale=scale, zero=1), known(*axes), made=made,
                                    options="ReducerOptions", KeepDims=len(axes) == 1)
       for axes, shape, scale, made in (((1,), (9, 5, 7), 0.1, Y), ((3, 0), (2, 9, 3, 4), 0.02, Codes(0.05, 9)),
                                        ((0,), (1, 40), 0.05, Y))},
    "product 16": plain("REDUCE_PROD", x16(40, 6, scale=0.01), known(1), made=Codes(100.0), dtype=I16,
                        options="ReducerOptions"),
    "softmax 16": plain("SOFTMAX", x16(20, 30), made=Codes(1 / 32768), dtype=I16, options="SoftmaxOptions", Beta=1.0),
    "bilinear": plain("RESIZE_BILINEAR", x8(2, 5, 6, 3), known(7, 4), made=PLAIN, options="ResizeBilinearOptions"),
    "bilinear centred": plain("RESIZE_BILINEAR", x8(2, 5, 6, 3), known(11, 13), made=PLAIN,
                              options="ResizeBilinearOptions", HalfPixelCenters=True),
    "bilinear aligned": plain("RESIZE_BILINEAR", x8(2, 5, 6, 3), known(9, 2), made=PLAIN,
                              options="ResizeBilinearOptions", AlignCorners=True),
    "bilinear 16": plain("RESIZE_BILINEAR", x16(2, 5, 6, 3), known(11, 13), made=Codes(0.0003), dtype=I16,
                         options="ResizeBilinearOptions", HalfPixelCenters=True),
    "L2_NORMALIZATION": plain("L2_NORMALIZATION", x8(7, 3, 40), made=Codes(1 / 128), options="L2NormOptions"),
    "norms of few": plain("L2_NORMALIZATION", Operand(codes(60, 2) // 64 + np.int8(3), Codes(0.1, 3)),
                          made=Codes(1 / 128), options="L2NormOptions"),
    "norms of bytes": plain("L2_NORMALIZATION", Operand(codes(9, 40, dtype=np.uint8), Codes(0.02, 99)),
                            made=Codes(1 / 128, 128), dtype=np.uint8, options="L2NormOptions"),
    "nearest": plain("RESIZE_NEAREST_NEIGHBOR", x8(2, 5, 6, 3), known(7, 4), made=PLAIN,
                     options="ResizeNearestNeighborOptions", HalfPixelCenters=True),
    "PAD": plain("PAD", x8(3, 4), known([1, 0], [0, 2]), made=PLAIN),
    "CONCATENATION": plain("CONCATENATION", x8(3, 4), x8(3, 2), made=PLAIN, options="ConcatenationOptions", Axis=1),
    "SPACE_TO_BATCH_ND": plain("SPACE_TO_BATCH_ND", x8(1, 5, 6, 4), known(2, 3), known([1, 0], [0, 0]), made=PLAIN),
    "TRANSPOSE": plain("TRANSPOSE", x8(3, 4, 5), known(2, 0, 1), made=PLAIN),
    "quantise": plain("QUANTIZE", Operand(RNG.normal(size=(40, 50)).astype(F32)), made=Codes(0.02, 5)),
    "quantise 16": plain("QUANTIZE", Operand(RNG.normal(size=(40, 50)).astype(F32)), made=Codes(0.0002), dtype=I16),
    "requantise": plain("QUANTIZE", x8(3, 400)),
    "requantise u8": plain("QUANTIZE", x8(3, 400), made=Codes(0.07, 130), dtype=np.uint8),
    "requantise 16": plain("QUANTIZE", x16(3, 400), made=Codes(0.1, 3)),
    "dequantise": plain("DEQUANTIZE", x8(3, 400), made=None, dtype=F32),
}  # fmt: skip
ALL_CODES = np.arange(-128, 128).astype(I8)
ALL_SHORT = np.arange(-32768, 32768).astype(I16)
CURVES: dict[str, Case] = {
    **{name: plain(name, Operand(ALL_CODES, Codes(0.05, 3)), made=Codes(0.03, -10)) for name in (
        "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ABS", "EXP", "HARD_SWISH")},
    "LOGISTIC": plain("LOGISTIC", Operand(ALL_CODES, Codes(0.05, 3)), made=BYTE_OF_UNIT),
    "TANH": plain("TANH", Operand(ALL_CODES, Codes(0.02, 3)), made=Codes(1 / 128)),
    "GELU": plain("GELU", Operand(ALL_CODES, Codes(0.03, 3)), options="GeluOptions", made=Codes(0.02, -100)),
    "gelu by tanh": plain("GELU", Operand(ALL_CODES, Codes(0.03, 3)), options="GeluOptions", made=Codes(0.02, -100),
                          Approximate=True),
    "LOG": plain("LOG", Operand(ALL_CODES, Codes(0.05, -100)), made=Codes(0.04, 10)),
    "SQRT": plain("SQRT", Operand(ALL_CODES, Codes(0.05, -128)), made=Codes(0.03, -128)),
    "RSQRT": plain("RSQRT", Operand(ALL_CODES, Codes(0.05, -128)), made=Codes(0.03, -128)),
    "LEAKY_RELU": plain("LEAKY_RELU", Operand(ALL_CODES, Codes(0.05, 3)), options="LeakyReluOptions", Alpha=0.2),
    "leaky downwards": plain("LEAKY_RELU", Operand(ALL_CODES, Codes(0.05, 3)), options="LeakyReluOptions", Alpha=-0.2),
    "hard swish wide": plain("HARD_SWISH", Operand(ALL_CODES, Codes(0.2, -3)), made=Codes(0.19, -128)),
    "hard swish fine": plain("HARD_SWISH", Operand(ALL_CODES, Codes(0.004, -3)), made=Codes(0.003, -3)),
    "logistic 16": plain("LOGISTIC", Operand(ALL_SHORT, Codes(0.0003)), made=Codes(1 / 32768), dtype=I16),
    "logistic 16 by shifts": plain("LOGISTIC", Operand(ALL_SHORT, Codes(1 / 4096)), made=Codes(1 / 32768), dtype=I16),
    "tanh 16": plain("TANH", Operand(ALL_SHORT, Codes(0.0003)), made=Codes(1 / 32768), dtype=I16),
    "tanh 16 by shifts": plain("TANH", Operand(ALL_SHORT, Codes(1 / 8192)), made=Codes(1 / 32768), dtype=I16),
    "exp 16": plain("EXP", Operand(ALL_SHORT, Codes(0.0002)), made=Codes(0.01), dtype=I16),
    "exp 16, rounded once": plain(
        "EXP", Operand(ALL_SHORT, Codes(2.7557643988984637e-05)), made=Codes(1.5404762962134555e-05), dtype=I16),
    "gelu 16": plain("GELU", Operand(ALL_SHORT, Codes(0.0002)), made=Codes(0.0002), dtype=I16, options="GeluOptions"),
    "relu 16": plain("RELU", Operand(ALL_SHORT, Codes(0.0002)), made=Codes(0.0003), dtype=I16),
    "leaky 16": plain("LEAKY_RELU", Operand(ALL_SHORT, Codes(0.0002)), made=Codes(0.0003), dtype=I16,
                      options="LeakyReluOptions", Alpha=0.1),
}  # fmt: skip
DEFAULT = {
    "SUM": plain("SUM", x8(20, 7, 5, 30), known(1), options="ReducerOptions", KeepDims=False, made=Codes(0.3, -2)),
    "ELU": plain("ELU", Operand(ALL_CODES, Codes(0.05, 3)), made=Codes(0.03, -10)),
}
"""Operators that the reference kernels lack, or, sums, get wrong."""


def floats(*shape: int) -> Operand:
    return Operand(RNG.normal(size=shape).astype(F32))


def no_bias(w: list[Operand], n: int) -> list[Operand]:
    return [w[0], Operand(RNG.normal(size=n).astype(F32), None, True)]


HYBRID = {
    "fully": fully(floats(5, 19), no_bias(weights(7, 19, axis=None), 7), None, F32),
    "fully, activated": fully(
        floats(5, 64), no_bias(weights(8, 64, axis=None), 8), None, F32, FusedActivationFunction=1),
    "fully by channel, off centre": fully(
        floats(200, 19), no_bias(weights(7, 19), 7), None, F32, AsymmetricQuantizeInputs=True),
    "conv": conv(floats(2, 6, 7, 5), no_bias(weights(8, 3, 3, 5, axis=None), 8), None, F32, StrideW=2),
    "conv by channel": conv(floats(2, 6, 7, 5), no_bias(weights(8, 3, 3, 5), 8), None, F32),
    "depthwise": Case("DEPTHWISE_CONV_2D", [floats(2, 6, 7, 4), *no_bias(weights(1, 3, 3, 8, axis=3), 8)], None, F32,
                      "DepthwiseConv2DOptions", {**CONV, "Padding": 0, "DepthMultiplier": 2}),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_on_codes_gives_what_litert_gives(name: str) -> None:
    check(CASES[name])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CURVES)
def test_a_function_of_codes_is_that_of_litert_for_every_code(name: str) -> None:
    check(CURVES[name])


@pytest.mark.parametrize("name", DEFAULT)
def test_an_operator_without_reference_gives_what_other_kernels_give(name: str) -> None:
    check(DEFAULT[name], PLAINLY)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", HYBRID)
def test_floats_by_codes_give_what_litert_gives(name: str) -> None:
    check(HYBRID[name])


@pytest.mark.parametrize("exponent", [16, 20, 25, 30])
def test_sums_that_are_shifted_out_of_32_bits_wrap_as_there(exponent: int) -> None:
    factors = [x8(3, 40, scale=2.0 ** (exponent / 2)) for _ in range(2)]
    check(plain("MUL", *factors, made=Codes(1.3), options="MulOptions"))
    for name, values in {"RELU": {}, "ABS": {}, "LEAKY_RELU": {"options": "LeakyReluOptions", "Alpha": 0.7}}.items():
        check(plain(name, x8(3, 40, scale=2.0**exponent), made=Codes(1.3), **values))


def test_a_row_whose_exponentials_leave_32_bits_is_that_of_literts_default_kernel() -> None:
    """Its reference kernel gives another result than the logarithm then, and ends the process for a softmax."""
    log = plain("LOG_SOFTMAX", Operand(codes(3, 4500) // 64, Codes(0.02, 3)), made=Codes(1 / 16, 127))
    check(log, PLAINLY)
    content, arrays = log.model()
    assert not np.array_equal(*by_litert(content, arrays, REFERENCE), *by_litert(content, arrays, PLAINLY))
    soft = plain("SOFTMAX", *log.operands, made=BYTE_OF_UNIT, options="SoftmaxOptions", Beta=1.0)
    check(soft, PLAINLY)


def test_every_quantised_operator_is_compared() -> None:
    compared = {case.name for group in (CASES, CURVES, DEFAULT) for case in group.values()}
    # PAD with a value is compared as of floats, and what keeps a state in the tests of recurrent layers.
    assert QUANTISED.keys() - compared == {"PADV2", *recurrent.TABLE}


def refused(case: Case, rule: str) -> None:
    with pytest.raises(tw.ImportFailed) as failed:
        import_tflite(case.model()[0], "net")
    assert [rule in p.rule for p in failed.value.problems] == [True]
    assert failed.value.problems[0].remedy


def test_codes_and_floats_are_not_mixed() -> None:
    refused(plain("ADD", x8(3, 4), floats(3, 4), options="AddOptions"), "operand 1, f32[3, 4], has no codes")
    refused(
        plain("ADD", x8(3, 4), x8(3, 4), made=None, dtype=F32, options="AddOptions"), "result 0, of f32, has no codes"
    )
    refused(plain("COS", x8(3, 4)), "COS of quantised tensors has no form here")


def test_scales_must_fit_their_tensor() -> None:
    refused(plain("ABS", Operand(codes(3, 4), Codes(np.ones(5, F32), 0, 1))), "5 scales along axis 1 of the shape")
    refused(plain("ABS", Operand(codes(3, 4), Codes(np.inf))), "its scales must be finite")
    refused(plain("ABS", Operand(codes(3, 4), Codes(0.1, 300))), "its zero points are no numbers of i8")
    refused(plain("MAXIMUM", x8(3, 4), x8(3, 4, scale=0.1), made=PLAIN), "must have one scale and zero point")
    product = plain("REDUCE_PROD", x8(3, 4, scale=2.0**14), known(1), made=Codes(1.0), options="ReducerOptions")
    refused(product, "by 2**14 or more")


def test_a_file_of_few_bytes_asks_for_no_gigabytes() -> None:
    """Neither by the size that it is resized to nor by a shape."""
    n = 2**31 - 1
    large = Operand(np.broadcast_to(I8(0), (1, n, 2, 2)), PLAIN)
    rule = "elements are more than the 134217728 that are read"
    refused(pool("AVERAGE_POOL_2D", large, PLAIN), rule)
    refused(plain("RESIZE_BILINEAR", x8(1, 2, 2, 3), known(n, 4), made=PLAIN, options="ResizeBilinearOptions"), rule)


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.made is not None and case.made.axis == 0]
)
@pytest.mark.filterwarnings("error")
def test_a_step_of_nothing_gives_no_warning(name: str) -> None:
    """A file may state a scale of 0: the codes are what they are, or it is told."""
    try:
        import_tflite(replace(CASES[name], made=replace(CASES[name].made, scale=F32(0))).model()[0], name)
    except tw.ImportFailed as failed:
        assert failed.problems
