"""A reduction ends with the few ops and sizes that the failure needs; what it writes fails in the same way."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from debug.planted import Made, Net, planted
from tilewright import ops
from tilewright.build.options import Options
from tilewright.core.diag import OptionError
from tilewright.core.expr import Sym
from tilewright.tools.debug.compare import load_source
from tilewright.tools.debug.onnx_part import save_onnx
from tilewright.tools.debug.predicate import Failure
from tilewright.tools.debug.reduce import Reduced, checker

SIGN = ("graph.canonical.arithmetic:_sub", "b.const(np.negative(array))", "b.const(array)")
TAIL = ("tile.schedule.loops:split", "minimum(factor, n - base)", "minimum(factor, n - base - 1)")
REFUSAL = (
    "codegen.llvm.arith:Arith.fma",
    '"""``a * b + c``',
    'raise CodegenError("no products today")\n    """``a * b + c``',
)


def deep() -> Made:
    """Four layers, a subtraction behind the third, and an output that has nothing to do with them."""
    net = Net()
    n = Sym("rows", 1)
    x = net.input(n, 40, sizes={n: 7})
    for k in range(4):
        x = net(ops.maximum, net(ops.add, net(ops.matmul, x, net.const(40, 40)), net.const(40)), net.value(0.0))
        if k == 2:
            x = net(ops.sub, x, net.const(40))
    return net.done(x, net(ops.exp, net.input(3, 3)))


def reduced(bug: tuple[str, str, str], **options: object) -> Reduced:
    graph, arrays = deep()
    with planted(*bug):
        return tw.reduce(graph, arrays, isolate=False, **options)


def test_a_pass_that_is_wrong_leaves_one_op_of_one_element(tmp_path: Path) -> None:
    found = reduced(SIGN)
    assert (found.failure.kind, found.n_ops_before, found.n_ops) == ("differs", 14, 1)
    assert 'sub(%0, %1) : f32[1, 1] loc("line 10 (sub)")' in found.text
    assert found.n_tried < 60
    command = found.save(tmp_path)
    assert command == f"tilewright compare {tmp_path}/model.tw.txt --input {tmp_path}/inputs.npz"
    with np.load(tmp_path / "inputs.npz") as inputs, planted(*SIGN):
        again = tw.compare(tmp_path / "model.tw.txt", dict(inputs), isolate=False)
    assert again.fault is not None and (again.fault.rule, again.fault.loc.text) == ("sub", "line 10 (sub)")


def test_a_wrong_tail_keeps_the_sizes_that_have_one() -> None:
    found = reduced(TAIL)
    assert found.n_ops == 1 and "matmul" in found.text
    sizes = [d for n in found.candidate.graph.nodes() for d in n.shape]
    assert max(sizes) <= 20 and any(d % 16 for d in sizes)


def test_an_error_of_the_compiler_is_reduced_by_its_code() -> None:
    found = reduced(REFUSAL, optimize=1, threads=1)
    assert (found.failure.kind, found.failure.code, found.n_ops) == ("error", "TW0402", 1)
    assert found.command(Path("f")) == "tilewright compare f/model.tw.txt --input f/inputs.npz --optimize 1 --threads 1"


def test_what_does_not_fail_is_not_reduced() -> None:
    graph, arrays = deep()
    with pytest.raises(OptionError, match="the model does not fail"):
        tw.reduce(graph, arrays, isolate=False)


def test_a_hang_is_a_failure_and_the_limit_holds() -> None:
    net = Net()
    x = net.input(2, 2)
    graph, arrays = net.done(net(ops.exp, net(ops.neg, x)))
    found = tw.reduce(graph, arrays, seconds=0.001, limit=2)
    assert found.failure == Failure("crashes", detail="it ran longer than 0.001 s")
    assert found.n_tried == 2


def test_the_part_of_an_onnx_model_fails_too(tmp_path: Path) -> None:
    names = ["x", "a", "b", "c", "y"]
    kinds = ["Exp", "Sub", "Tanh", "Neg"]
    nodes = [
        helper.make_node(kind, [names[k], "w"] if kind == "Sub" else [names[k]], [names[k + 1]], name=f"n{k}")
        for k, kind in enumerate(kinds)
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 6]) for n in "xy")
    weight = numpy_helper.from_array(np.arange(1, 7, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "four", [x], [y], [weight])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    source, inputs = tmp_path / "four.onnx", {"x": np.ones((3, 6), np.float32)}
    onnx.save(model, source)
    with planted(*SIGN):
        found = tw.reduce(source, inputs, isolate=False)
        with checker(Options(), threads=None, isolate=False, seconds=60) as test:
            path = save_onnx(found, source, inputs, tmp_path, test)
            assert path is not None
            with np.load(tmp_path / "model-inputs.npz") as stored:
                given = dict(stored)
            assert compared(path, given).fault is not None
    part = onnx.load(path)
    assert [n.op_type for n in part.graph.node] == ["Sub"] and list(given) == ["a"]
    np.testing.assert_allclose(given["a"], np.exp(inputs["x"]), rtol=1e-6)


def compared(path: Path, inputs: dict[str, np.ndarray]):
    graph, arrays = load_source(path, inputs)
    return tw.compare(graph, arrays, isolate=False)
