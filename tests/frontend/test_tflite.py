"""TFLite models: each operator gives what LiteRT's interpreter gives, and whatever has no form is named."""

from pathlib import Path

import numpy as np
import pytest
import tflite
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tilewright as tw
from frontend.tflite_build import TfliteModel
from small_models import numbers
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite import boxes, draws, lookups, recurrent, spectra, stablehlo
from tilewright.frontend.tflite.importer import import_tflite
from tilewright.frontend.tflite.table import CONVERTERS, QUANTISED, REFUSED
from tilewright.frontend.tflite.walk import VARIABLES

RNG = np.random.default_rng(7)
IMAGE, OTHER, POSITIVE = numbers(1, 5, 6, 4), numbers(1, 5, 6, 4, seed=1), np.abs(numbers(2, 3, 4)) + 0.1
ROWS, FLAGS = numbers(3, 8), RNG.random((2, 3, 4)) < 0.5
WINDOW = {"StrideH": 1, "StrideW": 1}


def i32(*values):
    return np.array(values, np.int32)


class Const:
    """An operand whose numbers are in the file."""

    def __init__(self, *a) -> None:
        self.array = np.array(a, np.int32) if not isinstance(a[0], np.ndarray) else a[0]


def of(*operands, options="", n=1, shape=(), dtype=np.float32, **values):
    return operands, options, n, shape, dtype, values


POOL = {**WINDOW, "FilterHeight": 2, "FilterWidth": 3}
CONV = {**WINDOW, "DilationHFactor": 1, "DilationWFactor": 1}
VOLUME = numbers(1, 4, 5, 6, 3)
THREE = {"StrideD": 1, **CONV, "DilationDFactor": 1}
CASES = {
    **{name: of(POSITIVE) for name in ("EXP", "LOG", "SQRT", "RSQRT")},
    **{name: of(numbers(2, 3, 4)) for name in (
        "ABS", "NEG", "SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "TANH", "LOGISTIC", "RELU", "RELU6",
        "RELU_N1_TO_1", "RELU_0_TO_1", "ELU", "HARD_SWISH", "SQUARE", "ZEROS_LIKE",
    )},
    **{name: of(numbers(2, 3, 4), numbers(3, 1)) for name in (
        "MINIMUM", "MAXIMUM", "SQUARED_DIFFERENCE", "PRELU", "FLOOR_DIV", "FLOOR_MOD"
    )},
    "PRELU": of(numbers(2, 3, 4), Const(numbers(1, 4))), "POW": of(POSITIVE, numbers(2, 3, 4)),
    "ATAN2": of(numbers(2, 3, 4), numbers(2, 3, 4, seed=1)),
    **{name: of(ROWS, numbers(3, 8, seed=1), options=f"{name.title()}Options", FusedActivationFunction=k)
       for k, name in enumerate(("ADD", "SUB", "MUL", "DIV"))},
    **{name: of(ROWS.round(), numbers(3, 8, seed=1).round(), dtype=np.bool_) for name in (
        "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"
    )},
    "LOGICAL_NOT": of(FLAGS, dtype=np.bool_), "LOGICAL_AND": of(FLAGS, ~FLAGS, dtype=np.bool_),
    "LOGICAL_OR": of(FLAGS, ~FLAGS, dtype=np.bool_), "SELECT": of(FLAGS, POSITIVE, -POSITIVE),
    "SELECT_V2": of(FLAGS[:, :, :1], POSITIVE, numbers(4)), "ADD_N": of(ROWS, ROWS, ROWS, options="AddNOptions"),
    "GELU": of(ROWS, options="GeluOptions", Approximate=True),
    "LEAKY_RELU": of(ROWS, options="LeakyReluOptions", Alpha=0.1),
    "SOFTMAX": of(ROWS, options="SoftmaxOptions", Beta=0.5), "LOG_SOFTMAX": of(ROWS),
    "CAST": of(ROWS, options="CastOptions", dtype=np.int32),
    **{name: of(POSITIVE, Const(-1, 0), options="ReducerOptions", KeepDims=True) for name in (
        "SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"
    )},
    "REDUCE_ANY": of(FLAGS, Const(1), options="ReducerOptions", KeepDims=False, dtype=np.bool_),
    "REDUCE_ALL": of(FLAGS, Const(1), options="ReducerOptions", KeepDims=False, dtype=np.bool_),
    "ARG_MAX": of(ROWS, Const(1), options="ArgMaxOptions", OutputType=2, dtype=np.int32),
    "ARG_MIN": of(ROWS, Const(-1), options="ArgMinOptions", OutputType=2, dtype=np.int32),
    "CUMSUM": of(ROWS, Const(1), options="CumsumOptions", Exclusive=True, Reverse=True),
    "L2_NORMALIZATION": of(IMAGE, options="L2NormOptions"),
    "LOCAL_RESPONSE_NORMALIZATION": of(
        IMAGE, options="LocalResponseNormalizationOptions", Radius=1, Bias=1.0, Alpha=0.5, Beta=0.5
    ),
    "TOPK_V2": of(ROWS, Const(np.array(3, np.int32)), n=2), "WHERE": of(FLAGS, dtype=np.int64),
    "FAKE_QUANT": of(3 * ROWS, options="FakeQuantOptions", Min=-1.3, Max=2.0, NumBits=4),
    # windows
    "CONV_2D": of(
        IMAGE, Const(numbers(8, 3, 2, 4)), Const(numbers(8)), options="Conv2DOptions", Padding=0,
        FusedActivationFunction=3, **{**CONV, "StrideW": 2},
    ),
    "DEPTHWISE_CONV_2D": of(
        IMAGE, Const(numbers(1, 3, 3, 8)), Const(numbers(8)), options="DepthwiseConv2DOptions", Padding=1,
        DepthMultiplier=2, **CONV,
    ),
    "TRANSPOSE_CONV": of(
        Const(1, 10, 12, 3), Const(numbers(3, 3, 3, 4)), IMAGE, options="TransposeConvOptions", Padding=0, StrideH=2,
        StrideW=2,
    ),
    "FULLY_CONNECTED": of(ROWS, Const(numbers(5, 8)), Const(numbers(5)), options="FullyConnectedOptions",
                          FusedActivationFunction=1),
    "BATCH_MATMUL": of(numbers(2, 3, 4), numbers(2, 5, 4), options="BatchMatMulOptions", AdjY=True),
    "AVERAGE_POOL_2D": of(IMAGE, options="Pool2DOptions", Padding=0, **POOL),
    "MAX_POOL_2D": of(IMAGE, options="Pool2DOptions", Padding=1, FusedActivationFunction=1, **POOL),
    "L2_POOL_2D": of(IMAGE, options="Pool2DOptions", Padding=1, **POOL),
    "RESIZE_BILINEAR": of(IMAGE, Const(7, 4), options="ResizeBilinearOptions", HalfPixelCenters=True),
    "RESIZE_NEAREST_NEIGHBOR": of(IMAGE, Const(7, 4), options="ResizeNearestNeighborOptions", AlignCorners=True),
    # moves
    "RESHAPE": of(ROWS, Const(2, -1)), "SQUEEZE": of(numbers(1, 3, 1, 2), options="SqueezeOptions", shape=(3, 2)),
    "EXPAND_DIMS": of(ROWS, Const(np.array(1, np.int32)), shape=(3, 1, 8)), "TRANSPOSE": of(IMAGE, Const(3, 0, 2, 1)),
    "CONCATENATION": of(ROWS, ROWS, options="ConcatenationOptions", Axis=-1),
    "PACK": of(ROWS, ROWS, options="PackOptions", Axis=1, ValuesCount=2),
    "UNPACK": of(ROWS, options="UnpackOptions", Axis=0, Num=3, n=3),
    "SPLIT": of(Const(np.array(1, np.int32)), ROWS, options="SplitOptions", NumSplits=2, n=2),
    "SPLIT_V": of(ROWS, Const(3, 5), Const(np.array(1, np.int32)), options="SplitVOptions", NumSplits=2, n=2),
    "SLICE": of(ROWS, Const(1, 2), Const(2, -1)),
    "STRIDED_SLICE": of(
        IMAGE, Const(0, 4, -5, 1), Const(1, -7, 9, 2), Const(1, -2, 2, 1), options="StridedSliceOptions", BeginMask=1,
        EndMask=2, ShrinkAxisMask=8,
    ),
    "PAD": of(ROWS, Const(np.array([[1, 0], [0, 2]], np.int32))),
    "PADV2": of(ROWS, Const(np.array([[1, 0], [0, 2]], np.int32)), Const(np.array(3, np.float32))),
    "MIRROR_PAD": of(ROWS, Const(np.array([[1, 0], [0, 2]], np.int32)), options="MirrorPadOptions", Mode=1),
    "TILE": of(ROWS, Const(2, 3)), "BROADCAST_TO": of(ROWS[:, :1], Const(2, 3, 8)), "REVERSE_V2": of(ROWS, Const(1)),
    "GATHER": of(ROWS, i32(2, 0, 1), options="GatherOptions", Axis=0),
    "EMBEDDING_LOOKUP": of(i32(2, 0), ROWS), "GATHER_ND": of(ROWS, i32(2, 0, 1, 7).reshape(2, 2)),
    "SCATTER_ND": of(i32(2, 0, 2).reshape(3, 1), ROWS, Const(4, 8)),
    "ONE_HOT": of(i32(2, 0, 1), Const(np.array(4, np.int32)), Const(np.array(5, np.float32)),
                  Const(np.array(-1, np.float32)), options="OneHotOptions", Axis=-1),
    "RANGE": of(Const(np.array(1, np.int32)), Const(np.array(9, np.int32)), Const(np.array(3, np.int32)),
                dtype=np.int32),
    "FILL": of(Const(2, 3), Const(np.array(5, np.float32))), "SHAPE": of(ROWS, options="ShapeOptions", OutType=2,
                                                                        dtype=np.int32),
    "RANK": of(ROWS, dtype=np.int32),
    "DEPTH_TO_SPACE": of(IMAGE, options="DepthToSpaceOptions", BlockSize=2),
    "SPACE_TO_DEPTH": of(numbers(1, 4, 6, 3), options="SpaceToDepthOptions", BlockSize=2),
    "SPACE_TO_BATCH_ND": of(IMAGE, Const(2, 3), Const(np.array([[1, 0], [0, 0]], np.int32))),
    "BATCH_TO_SPACE_ND": of(numbers(6, 2, 2, 3), Const(2, 3), Const(np.array([[1, 0], [0, 2]], np.int32))),
    "DEQUANTIZE": of(numbers(3, 4).astype(np.float16)), "SEGMENT_SUM": of(ROWS, Const(0, 0, 1)),
    "DYNAMIC_UPDATE_SLICE": of(ROWS, numbers(2, 3), i32(2, 6)),
    # places
    "BITCAST": of(ROWS, shape=(3, 8), dtype=np.int32),
    "BROADCAST_ARGS": of(Const(3, 1, 5), Const(4, 1), dtype=np.int32),
    "BUCKETIZE": of(ROWS, options="BucketizeOptions", dtype=np.int32,
                    Boundaries=np.array([-1, 0, 0.5], np.float32)),
    "MATRIX_DIAG": of(ROWS), "MATRIX_SET_DIAG": of(numbers(2, 3, 4), numbers(2, 3)),
    "REVERSE_SEQUENCE": of(ROWS, i32(3, 0, 8), options="ReverseSequenceOptions", SeqDim=1, BatchDim=0),
    "SPARSE_TO_DENSE": of(i32(0, 1, 3, 2, 0, 1).reshape(3, 2), Const(4, 5), numbers(3), Const(np.array(7, np.float32))),
    **{name: of(ROWS, i32(2, -1, 2), Const(4), options=f"UnsortedSegment{name[17:].title()}Options") for name in (
        "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MIN", "UNSORTED_SEGMENT_MAX"
    )},
    "DILATE": of(ROWS, Const(2, 3), Const(np.array(-1, np.float32)), options="DilateOptions"),
    # volumes
    "CONV_3D": of(VOLUME, Const(numbers(2, 3, 2, 3, 4)), Const(numbers(4)), options="Conv3DOptions", Padding=0,
                  FusedActivationFunction=1, **THREE),
    "CONV_3D_TRANSPOSE": of(Const(1, 4, 10, 6, 3), Const(numbers(2, 3, 2, 3, 3)), VOLUME, options="Conv3DOptions",
                            Padding=0, **{**THREE, "StrideH": 2}),
    "REDUCE_WINDOW": of(numbers(6, 8), Const(np.array(0, np.float32)), *(Const(np.array(v)) for v in (
        [2, 3], [1, 2], [2, 1])), options="ReduceWindowOptions", ReduceFunction=1),
}  # fmt: skip


def model_of(name, operands, options, n, shape, dtype, values):
    """A file of one operator, and the arrays that it is called with."""
    model = TfliteModel()
    places = [model.const(x.array) if isinstance(x, Const) else model.input(x) for x in operands]
    results = [(shape, dtype), *[(shape, np.int32 if name == "TOPK_V2" else dtype)] * (n - 1)]
    model.outputs = model.op(name, places, results, options, **values)
    return model.bytes(), [x for x in operands if not isinstance(x, Const)]


def by_litert(content, arrays):
    """What LiteRT's own kernels give; its delegates would fuse and change them."""
    interpreter = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    interpreter.allocate_tensors()
    for detail, a in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(detail["index"], a)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_litert_gives(name: str) -> None:
    content, arrays = model_of(name, *CASES[name])
    found = evaluate_graph(import_tflite(content, name).graph, arrays)
    for ours, theirs in zip(found, by_litert(content, arrays), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_every_operator_of_the_schema_has_a_row() -> None:
    known = {n for n, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}
    converted = CONVERTERS.keys() | QUANTISED.keys() | VARIABLES.keys()
    assert converted | REFUSED.keys() == known and not converted & REFUSED.keys()
    # Of integers, as their ops are tested; with sub-graphs, in test_tflite_control; those with states, boxes and
    # lookups have a file, too.
    elsewhere = {"BITWISE_XOR", "RIGHT_SHIFT", "IF", "WHILE", "CALL", "DENSIFY"}
    elsewhere |= recurrent.TABLE.keys() | boxes.TABLE.keys() | lookups.TABLE.keys()
    elsewhere |= spectra.TABLE.keys() | stablehlo.TABLE.keys() | draws.TABLE.keys()
    assert CONVERTERS.keys() - CASES.keys() == elsewhere


def network() -> tuple[bytes, np.ndarray]:
    model, x = TfliteModel(), numbers(1, 8, 8, 3)
    at = model.input(x)
    operands = [at, model.const(numbers(8, 3, 3, 3) / 5), model.const(numbers(8))]
    image = [((1, 8, 8, 8), np.float32)]
    (at,) = model.op("CONV_2D", operands, image, "Conv2DOptions", Padding=0, FusedActivationFunction=1, **CONV)
    (at,) = model.op("MEAN", [at, model.const(i32(1, 2))], [((1, 8), np.float32)], "ReducerOptions", KeepDims=False)
    model.outputs = model.op("SOFTMAX", [at], [((1, 8), np.float32)], "SoftmaxOptions", Beta=1.0)
    return model.bytes(), x


def test_a_file_compiles(tmp_path: Path) -> None:
    content, x = network()
    (tmp_path / "net.tflite").write_bytes(content)
    (expected,) = by_litert(content, [x])
    for source in (tmp_path / "net.tflite", content):
        made = tw.compile(source, cache=False, threads=1)
        assert [s.name for s in made.inputs] == ["x0"]
        np.testing.assert_allclose(made(x), expected, rtol=1e-4, atol=1e-5)


def test_all_that_has_no_form_is_named_at_once() -> None:
    model = TfliteModel()
    at = model.input(ROWS)
    (one,) = model.op("SKIP_GRAM", [at], [((3, 8), np.float32)])
    (two,) = model.op("LSH_PROJECTION", [at], [((3, 8), np.float32)])
    model.outputs = model.op("ADD", [one, two], [((3, 8), np.float32)], "AddOptions")
    with pytest.raises(tw.ImportFailed) as failed:
        import_tflite(model.bytes(), "net")
    assert [p.op for p in failed.value.problems] == ["SKIP_GRAM", "LSH_PROJECTION"]
    assert "operator 0 (SKIP_GRAM): SKIP_GRAM: SKIP_GRAM works on text" in str(failed.value)


@pytest.mark.parametrize(("rule", "values"), [
    ("does not hold 0", {"Min": 1.0}), ("does not hold 0", {"Max": np.inf}), ("of 1 bits", {"NumBits": 1}),
    ("is for training alone", {"NarrowRange": True}),
])  # fmt: skip
def test_steps_that_no_codes_have_are_told(rule: str, values: dict[str, float]) -> None:
    content, _ = model_of("FAKE_QUANT", *of(ROWS, options="FakeQuantOptions", **{"Max": 2.0, "NumBits": 8, **values}))
    with pytest.raises(tw.ImportFailed, match=rule):
        import_tflite(content, "steps")


def reads_or_refuses(files: list[bytes], seeds: range) -> int:
    """How many of the files are refused with bytes changed or the end cut off; the others are read."""
    n_refused = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        content = files[seed % len(files)]
        damaged = bytearray(content if rng.random() < 0.8 else content[: rng.integers(8, len(content))])
        for _ in range(int(rng.integers(1, 6))):
            damaged[int(rng.integers(8, len(damaged)))] = int(rng.choice([0, 1, 127, 255, rng.integers(256)]))
        try:
            import_tflite(bytes(damaged), "damaged")
        except tw.ImportFailed:
            n_refused += 1
    return n_refused


def test_damaged_files_are_refused() -> None:
    assert reads_or_refuses([network()[0]], range(60)) >= 20


def test_a_file_is_said_to_end_early() -> None:
    content, _ = network()
    with pytest.raises(tw.ImportFailed, match="what it refers to lies behind its end"):
        import_tflite(content[: len(content) // 4], "cut")


HUGE = 2**31 - 1


def test_a_range_of_few_bytes_asks_for_no_gigabytes() -> None:
    (first, _, step), *rest = CASES["RANGE"]
    with pytest.raises(tw.ImportFailed, match="elements are more than"):
        import_tflite(model_of("RANGE", [first, Const(np.array(HUGE, np.int32)), step], *rest)[0], "huge")


@pytest.mark.parametrize(("mode", "most"), [(0, (2, 7)), (1, (3, 8))])
def test_no_more_is_mirrored_than_there_is(mode: int, most: tuple[int, int]) -> None:
    """The border element, which mode 1 repeats, is not mirrored in mode 0."""
    (x, _), options, n, shape, dtype, values = CASES["MIRROR_PAD"]

    def padded(pads: list[list[int]]) -> np.ndarray:
        operands = [x, Const(np.array(pads, np.int32))]
        content, _ = model_of("MIRROR_PAD", operands, options, n, shape, dtype, {**values, "Mode": mode})
        return evaluate_graph(import_tflite(content, "pads").graph, [x])[0]

    rows, columns = most
    found = padded([[rows, rows], [0, columns]])
    np.testing.assert_array_equal(found, np.pad(x, [(rows,) * 2, (0, columns)], ["reflect", "symmetric"][mode]))
    for pads in ([[rows + 1, 0], [0, 0]], [[0, 0], [0, columns + 1]], [[HUGE, 0], [0, 0]], [[-1, 0], [0, 0]]):
        with pytest.raises(tw.ImportFailed, match=r"mirrored pads of .* more than its"):
            padded(pads)


def test_a_range_has_an_end() -> None:
    ends = [Const(np.array(v, np.float32)) for v in (0, np.inf, 1)]
    with pytest.raises(tw.ImportFailed, match="has no end"):
        import_tflite(model_of("RANGE", ends, *CASES["RANGE"][1:])[0], "endless")


def test_parts_are_counted_before_they_are_made() -> None:
    (_, *case, values), many = CASES["UNPACK"], np.broadcast_to(np.float32(0), (HUGE, 8))
    with pytest.raises(tw.ImportFailed, match=f"{HUGE} parts are no 3 results"):
        import_tflite(model_of("UNPACK", [many], *case, values)[0], "parts")
    *case, values = CASES["SPLIT"]
    with pytest.raises(tw.ImportFailed, match=f"{HUGE} parts are no 2 results"):
        import_tflite(model_of("SPLIT", *case, {**values, "NumSplits": HUGE})[0], "parts")


def test_a_stride_of_any_size_takes_no_more_weights() -> None:
    *case, values = CASES["TRANSPOSE_CONV"]
    tw.compile(model_of("TRANSPOSE_CONV", *case, {**values, "StrideH": HUGE})[0], cache=False, threads=1)


@pytest.mark.parametrize("reach", [3, HUGE])
def test_a_norm_of_channels_reaches_no_further_than_they_do(reach: int) -> None:
    operands, options, n, shape, dtype, values = CASES["LOCAL_RESPONSE_NORMALIZATION"]
    contents = [
        model_of("LOCAL_RESPONSE_NORMALIZATION", operands, options, n, shape, dtype, {**values, "Radius": r})[0]
        for r in (IMAGE.shape[-1], reach, -1)
    ]
    whole, further = (evaluate_graph(import_tflite(c, "norm").graph, [IMAGE])[0] for c in contents[:2])
    np.testing.assert_array_equal(whole, further)
    with pytest.raises(tw.ImportFailed, match="a reach of -1 channels"):
        import_tflite(contents[2], "norm")


@pytest.mark.slow  # 2,000 files
def test_many_damaged_files_are_refused() -> None:
    assert reads_or_refuses([network()[0]], range(1000, 3000)) >= 500
