"""A comparison agrees where nothing is wrong, and says what is wrong where something is."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import ops
from tilewright.build.options import Options
from tilewright.core.diag import OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, bf16, f32, i64
from tilewright.frontend.onnx.table import CONVERTERS
from tilewright.tools.apart import Died
from tilewright.tools.debug.tolerance import judge, nudged
from tilewright.tools.debug.worker import Worker

RNG = np.random.default_rng(11)


def linear_model() -> onnx.ModelProto:
    """``relu(x @ w - b)``, two ops of which have a name."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Sub", ["p", "b"], ["s"], name="shift"),
        helper.make_node("Relu", ["s"], ["y"], name="gate"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 24])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 5])
    weight, bias = (RNG.standard_normal(s).astype(np.float32) for s in ((24, 5), (5,)))
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "linear", [x], [y], constants)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


X = RNG.standard_normal((7, 24)).astype(np.float32)


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
def test_an_onnx_model_agrees(against: str) -> None:
    found = tw.compare(linear_model(), {"x": X}, against=against, isolate=False)
    assert found.agrees and found.against == against
    assert [r.name for r in found.layers] == ["matmul add maximum"]
    assert [r.name for r in found.values] == (["p (matmul)", "s (sub)", "y (relu)"] if against == "onnxruntime" else [])
    assert [r.name for r in found.outputs] == ["y"]


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
def test_sizes_that_are_fixed_are_known_when_the_model_is_read(against: str) -> None:
    """Its two inputs add up for equal sizes only, which it does not say."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [n + "_rows", 3]) for n in "ab"]
    nodes = [
        helper.make_node("Concat", ["a", "a"], ["twice"], axis=0),
        helper.make_node("Add", ["twice", "b"], ["y"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "sums", inputs, [y])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    values = {"a": X[:2, :3], "b": X[:4, :3]}
    found = tw.compare(model, values, against=against, fix_dims={"a_rows": 2, "b_rows": 4}, isolate=False)
    assert found.agrees and [r.name for r in found.outputs] == ["y"]


def test_a_torch_module_agrees_in_a_process_of_its_own() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.GELU())
    found = tw.compare(module, (torch.randn(3, 8),), against="torch")
    assert found.agrees and [r.name for r in found.values] == ["linear (add)", "gelu (gelu)"]
    assert found == type(found).from_json(found.as_json())


def test_a_wrong_converter_is_the_frontends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONVERTERS, ("", "Sub"), CONVERTERS["", "Add"])
    found = tw.compare(linear_model(), [X], against="onnxruntime", isolate=False)
    assert found.fault is not None
    assert (found.fault.stage, found.fault.name, found.fault.loc.text) == ("import", "s", 'node "shift" (Sub)')
    assert [r.difference.is_bad for r in found.values] == [False, True]
    # against its own reference the model is what the frontend says it is
    assert tw.compare(linear_model(), [X], isolate=False).agrees


def test_control_flow_data_decided_sizes_and_integers_agree() -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (6, 4)))
    positive = b(ops.gt, x, b.const(0.0, f32))
    places = b.results(b(ops.nonzero, positive, count="found"))[0]
    body_pool = Pool()
    i, c, v = (body_pool.input(n, t) for n, t in (("i", TensorType(i64, ())), ("c", positive.type.with_shape(())),
                                                   ("v", x.type)))  # fmt: skip
    inner = Builder(body_pool)
    body = Graph(
        "body", body_pool, (i, c, v), (c, inner(ops.mul, inner(ops.exp, v), inner.const(0.5, f32))), ("a", "b")
    )
    go = b.const(np.asarray(True))
    looped = b.results(b(ops.loop, b.const(np.asarray(3)), go, x, body=body, n_carried=1))[0]
    graph = Graph("mixed", b.pool, (x,), (places, looped), ("places", "looped"))
    found = tw.compare(graph, [np.clip(RNG.standard_normal((6, 4)), -2, 0.5).astype(np.float32)], isolate=False)
    assert found.agrees, found.fault


@pytest.mark.parametrize("source", [linear_model(), torch.nn.Linear(24, 5)], ids=["onnx", "torch"])
def test_a_peer_that_can_not_run_the_source_is_refused(source: object) -> None:
    against = "torch" if isinstance(source, onnx.ModelProto) else "onnxruntime"
    with pytest.raises(OptionError, match="run in"):
        tw.compare(source, (torch.from_numpy(X),), against=against)


def test_inputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(tw.InputError, match="give x"):
        tw.compare(linear_model(), {"z": X})
    with pytest.raises(tw.InputError, match="takes x"):
        tw.compare(linear_model(), [X, X])
    with pytest.raises(tw.InputError, match="f32 was expected"):
        tw.compare(linear_model(), [X.astype(np.float64)])
    with pytest.raises(OptionError, match="reference"):
        tw.compare(linear_model(), [X], against="oracle")


def exponential() -> Graph:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (4,)))
    return Graph("g", b.pool, (x,), (b(ops.exp, x),), ("y",))


def test_lines_that_come_together_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines in one piece are announced once, and the second one must not be waited for."""
    lines = '{"at": ["op", 0, 1]}\\n{"failure": {}}\\n'
    script = f"import os, sys; sys.stdin.readline(); os.write(1, b'{lines}'); sys.stdin.readline()"
    start, told = subprocess.Popen, []
    monkeypatch.setattr(subprocess, "Popen", lambda args, **how: start([sys.executable, "-c", script], **how))

    def tell(stage: str, done: int, total: int) -> None:
        told.append((stage, done, total))

    with Worker() as worker:
        answer = worker.ask_about("check", exponential(), [np.zeros(4, np.float32)], Options(), seconds=30, tell=tell)
    assert answer == {"failure": {}} and told == [("op", 0, 1)]


def test_a_process_that_takes_too_long_or_dies_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = exponential()
    with Worker() as worker:
        with pytest.raises(Died, match="it ran longer"):
            worker.ask_about("check", graph, [np.zeros(4, np.float32)], Options(), seconds=0.01)
        assert worker.ask_about("check", graph, [np.zeros(4, np.float32)], Options())["failure"]["kind"] == "none"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Worker() as worker, pytest.raises(Died, match="ended with 1"):
        worker.ask_about("check", graph, [np.zeros(4, np.float32)], Options())


# --- tolerances -----------------------------------------------------------------------------------------------------


def test_rounding_is_no_difference_and_more_is() -> None:
    want = RNG.standard_normal(100).astype(np.float32)
    assert not judge(want, nudged(want), epsilon=2.0**-23, roundings=4).is_bad
    assert judge(want, nudged(want)).is_bad
    wrong = want.copy()
    wrong[17] += 1e-3
    found = judge(want, wrong, [nudged(want)], epsilon=2.0**-23, roundings=16)
    assert found.is_bad and found.index == (17,) and found.n_bad == 1
    assert found.max_abs == pytest.approx(1e-3, rel=1e-3)


def test_integers_are_equal_unless_rounding_decides_them() -> None:
    want, got = np.array([1, 2, 3]), np.array([1, 2, 4])
    assert judge(want, got).index == (2,)
    assert not judge(want, got, [np.array([1, 2, 5])]).is_bad
    assert judge(want, got, [np.array([7, 2, 3])]).is_bad
    big = np.array([2**63, 2**63 + 1], np.uint64)
    assert judge(big, big[::-1]).n_bad == 2


def test_nan_infinity_shape_and_dtype_count() -> None:
    nan = np.array([np.nan, np.inf, 1.0], np.float32)
    assert not judge(nan, nan.copy()).is_bad
    assert judge(nan, np.array([0.0, np.inf, 1.0], np.float32), epsilon=1.0, roundings=100).index == (0,)
    assert judge(nan, -nan, epsilon=1.0, roundings=100).n_bad == 1  # the sign of an infinity
    assert "expected float32[3]" in judge(nan, nan.astype(np.float64)).problem
    assert "expected float32[3]" in judge(nan, nan[:2]).problem


@pytest.mark.parametrize(("dtype", "one_up"), [(np.float32, 2.0**-23), (np.float16, 2.0**-10), (bf16.numpy, 2.0**-7)])
def test_ulps_count_representable_values(dtype: object, one_up: float) -> None:
    one = np.array([1.0, -1.0, 0.0], dtype)
    assert judge(one, np.array([1.0 + one_up, -1.0, -0.0], dtype)).max_ulp == 1


def test_places_of_equal_elements_are_told_from_wrong_ones() -> None:
    """PyTorch's topk keeps no order among equal elements: the op is named, and that what it found is right."""

    class Nearest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.topk(6, largest=False).indices + 1

    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    x = order.remainder(5).float().reshape(1, 50)
    assert not torch.equal(x.topk(6, largest=False).indices, x.sort(stable=True).indices[:, :6])
    fault = tw.compare(Nearest(), (x,), against="torch").fault
    assert fault is not None and (fault.stage, fault.op) == ("import", "top_k") and "equal" in fault.detail
