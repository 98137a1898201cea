"""Bad models and bad calls: a typed error or the right result, never a crash or a hang."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from frontend.onnx_build import BOOL, F32, I64, answers, info, model, node
from tilewright.build import kernels
from tilewright.core.types import Array
from tilewright.frontend import source

ROOT = Path(__file__).parents[1]
QUICK, BLOCK = 14, 14
QUICK_PROGRAMS = 9  # one of each
SEED_OF_QUICK = 1_000_000  # apart from the seeds that `make fuzz` draws
rng = np.random.default_rng(0)


def check_damaged_files(module: str, first: int, last: int) -> None:
    """A module's ``main`` in its own process; the last seed that it names is the one that it died of."""
    where = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}  # noqa: TID251 - a child's, unchanged
    command = [sys.executable, "-X", "faulthandler", "-m", module, str(first), str(last)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == last - first


@pytest.mark.parametrize("block", range(QUICK // BLOCK))
def test_damaged_files(block: int) -> None:
    first = SEED_OF_QUICK + BLOCK * block
    check_damaged_files("damage", first, first + BLOCK)


@pytest.mark.slow
def test_damaged_stablehlo() -> None:
    check_damaged_files("damage_stablehlo", SEED_OF_QUICK, SEED_OF_QUICK + QUICK_PROGRAMS)


# --- models ---------------------------------------------------------------------------------------------------------


def compiled(m: onnx.ModelProto) -> tw.LoadedModel:
    return tw.compile(m, cache=False, threads=1)


def refused(m: onnx.ModelProto) -> str:
    with pytest.raises(tw.CompileError) as caught:
        compiled(m)
    return str(caught.value)


def unary(*nodes: onnx.NodeProto, shape: Sequence[int | str] = (2, 3), **constants: Array) -> onnx.ModelProto:
    return model(nodes, [info("x", shape)], ["y"], constants)


def test_all_unknown_ops_are_reported_at_once() -> None:
    text = refused(unary(node("Foo", ["x"], ["a"], name="first"), node("Bar", ["a"], ["y"], name="second")))
    assert "first" in text and "second" in text


def test_cycles() -> None:
    text = refused(unary(node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])))
    assert "cycle" in text


@pytest.mark.parametrize(
    "bad",
    [
        node("Softmax", ["x"], ["y"], axis=7),
        node("Transpose", ["x"], ["y"], perm=[0, 5]),
        node("Concat", ["x", "x"], ["y"], axis=-3),
        node("MaxPool", ["four"], ["y"], kernel_shape=[0, 1]),
        node("MaxPool", ["four"], ["y"], kernel_shape=[9, 9]),
        node("AveragePool", ["four"], ["y"], kernel_shape=[2, 2], strides=[0, 1]),
        node("Conv", ["four", "w"], ["y"], strides=[-1, 1]),
        node("Conv", ["four", "w"], ["y"], group=0),
        node("Conv", ["four", "w"], ["y"], group=2),
        node("Conv", ["four", "w"], ["y"], dilations=[0, 1]),
        node("Conv", ["four", "w"], ["y"], pads=[-9, 0, -9, 0]),
        node("DepthToSpace", ["four"], ["y"], blocksize=0),
        node("LSTM", ["x", "w", "w"], ["y"], hidden_size=-1),
        node("Cast", ["x"], ["y"], to=99),
        node("Flatten", ["x"], ["y"], axis=9),
        node("EyeLike", ["x"], ["y"], k=2**62, dtype=99),
        node("OneHot", ["x", "w", "x"], ["y"], axis=11),
        node("CumSum", ["x", "five"], ["y"]),
        node("TopK", ["x", "huge"], ["y", "z"]),
        node("Reshape", ["x", "huge"], ["y"]),
        node("Expand", ["x", "negative"], ["y"]),
        node("Tile", ["x", "negative"], ["y"]),
        node("Unsqueeze", ["x", "five"], ["y"]),
        node("Split", ["x"], ["y", "z"], num_outputs=0),
        node("Resize", ["four", "", "zeros"], ["y"]),
    ],
    ids=lambda n: f"{n.op_type}-{'-'.join(n.input)}-{'-'.join(a.name for a in n.attribute)}",
)
def test_attributes_out_of_range(bad: onnx.NodeProto) -> None:
    m = unary(
        node("Reshape", ["x", "to_four"], ["four"]), bad, to_four=np.array([1, 1, 2, 3]), w=np.ones((2, 1, 1, 1), "f"),
        five=np.array([5]), huge=np.array([2**40]), negative=np.array([-4, 2]), zeros=np.zeros(4, "f"),
    )  # fmt: skip
    assert refused(m)


def test_weights_of_nan_and_infinity() -> None:
    weights = np.array([[np.nan, 1, 2], [3, np.inf, 5], [6, 7, -np.inf]], np.float32)
    for nodes in (
        [node("MatMul", ["x", "w"], ["y"])],
        [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"])],
        [node("Mul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"]), node("ReduceMax", ["r"], ["y"])],
        [node("Max", ["x", "w"], ["m"]), node("Tanh", ["m"], ["y"])],
    ):
        m = unary(*nodes, shape=(3, 3), w=weights)
        x = rng.standard_normal((3, 3)).astype(np.float32)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(compiled(m)(x), answers(m, {"x": x})[0], rtol=1e-5)


EMPTIES = {
    "element-wise": [node("Add", ["x", "one"], ["a"]), node("Relu", ["a"], ["y"])],
    "matmul": [node("MatMul", ["x", "w"], ["y"])],
    "sum": [node("ReduceSum", ["x"], ["y"], keepdims=0)],
    "softmax": [node("Softmax", ["x"], ["y"], axis=0)],
    "concat": [node("Concat", ["x", "w"], ["y"], axis=0)],
    "transpose": [node("Transpose", ["x"], ["y"], perm=[1, 0])],
    "reshape": [node("Reshape", ["x", "minus"], ["y"])],
    "cumsum": [node("CumSum", ["x", "nought"], ["y"])],
    "norm": [node("LayerNormalization", ["x", "row"], ["y"])],
    "tile": [node("Tile", ["x", "twos"], ["y"])],
    "nonzero": [node("NonZero", ["x"], ["y"])],
    "pad": [node("Pad", ["x", "pads"], ["y"])],
    "gram": [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["t", "x"], ["y"])],
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", EMPTIES)
def test_tensors_of_no_elements(name: str, symbolic: bool) -> None:
    m = unary(
        *EMPTIES[name], shape=("n" if symbolic else 0, 3), one=np.ones((1, 3), "f"), w=np.ones((3, 3), "f"),
        minus=np.array([3, -1]), nought=np.array(0), row=np.ones(3, "f"), twos=np.array([2, 2]),
        pads=np.array([1, 0, 1, 1]),
    )  # fmt: skip
    x = np.zeros((0, 3), np.float32)
    try:
        expected = answers(m, {"x": x})[0]
        got = compiled(m)(x)
    except tw.TilewrightError as e:
        assert "0" in str(e), "a symbolic size may exclude 0, and then says so"
        return
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected)


# --- calls ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_inputs() -> tw.LoadedModel:
    inputs = [info("x", ["n", 3]), info("k", ["n"], I64)]
    nodes = [node("Cast", ["k"], ["f"], to=F32), node("MatMul", ["f", "x"], ["y"])]
    return compiled(model(nodes, inputs, ["y"]))


X, K = np.ones((4, 3), np.float32), np.arange(4)


@pytest.mark.parametrize(
    "arguments",
    [
        (), (X,), (X, K, K), (K, X), (X.T, K), (X[:3], K), (X.astype(np.float64), K), (X, K.astype(np.int32)),
        (X[0], K), (X, K[:, None]), (X, "four"), (X, None), (X, object()), ([["a", "b", "c"]], K), (X + 0j, K),
        (np.array([X, None], object), K), (X, [[1, 2], [3]]),
    ],
    ids=lambda a: "-".join(type(x).__name__ for x in a) or "none",
)  # fmt: skip
def test_arguments_that_do_not_fit(two_inputs: tw.LoadedModel, arguments: tuple[object, ...]) -> None:
    with pytest.raises(tw.InputError):
        two_inputs(*arguments)


def test_names_that_do_not_fit(two_inputs: tw.LoadedModel) -> None:
    with pytest.raises(tw.InputError):
        two_inputs(x=X, z=K)
    with pytest.raises(tw.InputError):
        two_inputs({"x": X})
    np.testing.assert_allclose(two_inputs({"k": K, "x": X}), [6, 6, 6])


def test_arrays_that_need_care(two_inputs: tw.LoadedModel) -> None:
    """Not contiguous, read-only, of the other byte order, negative strides: right, by a copy where need be."""
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    readonly = K.copy()
    readonly.flags.writeable = False
    for x in (wide[:, ::2], wide[:, :3], wide[::-1, 3:], np.asfortranarray(wide[:, :3])):
        for k in (readonly, K[::-1]):
            np.testing.assert_allclose(two_inputs(x, k), k.astype(np.float32) @ x)


def test_indices_out_of_range() -> None:
    """The reference refuses; native code stays inside of the table."""
    m = model([node("Gather", ["w", "k"], ["y"])], [info("k", ["n"], I64)], ["y"], {"w": np.ones((5, 2), "f")})
    for bad in ([5], [-6], [2**62], [-(2**63)], [0, 4, 10**12]):
        with contextlib.suppress(tw.ExecutionError):
            assert compiled(m)(np.array(bad)).shape == (len(bad), 2)


def test_loops_that_end() -> None:
    """A condition that is false at once, and a trip count below zero, run no iteration."""
    body = onnx.helper.make_graph(
        [node("Identity", ["go"], ["again"]), node("Add", ["v", "v"], ["w"])], "body",
        [info("i", [], I64), info("go", [], BOOL), info("v", [2])], [info("again", [], BOOL), info("w", [2])],
    )  # fmt: skip
    m = model([node("Loop", ["trips", "go", "x"], ["y"], body=body)],
              [info("x", [2]), info("trips", [], I64), info("go", [], BOOL)], ["y"])  # fmt: skip
    run, x = compiled(m), np.ones(2, np.float32)
    for trips, go, expected in ((3, True, 8), (0, True, 1), (-5, True, 1), (3, False, 1)):
        np.testing.assert_array_equal(run(x, np.array(trips), np.array(go)), [expected, expected])


@pytest.mark.parametrize("where", ["read_model", "optimised_and_split"])
def test_a_model_without_memory_for_it_is_told(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object, **options: object) -> None:
        raise MemoryError("8 GiB")

    if where == "read_model":
        monkeypatch.setattr(source.onnx_frontend, "import_onnx", none)
    else:
        monkeypatch.setattr(kernels, "run_pipeline", none)
    with pytest.raises(tw.TilewrightError, match="there is no memory for") as told:
        compiled(unary(node("Relu", ["x"], ["y"])))
    assert "8 GiB" in str(told.value) and told.value.remedy
