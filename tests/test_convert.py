"""Models leave as files that other tools read: what `convert` and `tilewright export` write, and what they refuse."""

import ctypes
import json
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner

import tilewright as tw
from aot.programs import link, needs_cc
from small_models import numbers, perceptron
from tilewright.cli.main import app
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.text import save_graph
from tilewright.runtime.library import LibraryModel


def test_a_module_goes_out_and_comes_in(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    x = torch.from_numpy(numbers(2, 3, 8, 8))
    plain, small = (
        tw.convert(net, tmp_path / f"{flag}.onnx", example_inputs=(x,), optimize=flag) for flag in (False, True)
    )
    for path in (plain, small):
        onnx.checker.check_model(str(path), full_check=True)
        made = tw.compile(path, cache=False, threads=1)(x.numpy())
        np.testing.assert_allclose(made, net(x).detach(), rtol=1e-4, atol=1e-5)
    kinds = [[n.op_type for n in onnx.load(path).graph.node] for path in (plain, small)]
    assert "BatchNormalization" in kinds[0] and kinds[1] == ["Conv", "Relu"]


def test_llvm_ir_is_the_whole_model(tmp_path: Path) -> None:
    """What LLVM makes of the text has the header's functions, no other, and computes the model."""
    graph = perceptron()
    path = tw.convert(graph, tmp_path / "net.ll")
    header = (tmp_path / "net.h").read_text()
    module = llvm.parse_assembly(path.read_text())
    module.verify()
    public = {f.name for f in module.functions if not f.is_declaration and f.linkage == llvm.Linkage.external}
    assert public and all(f"{name}(" in header for name in public)
    machine = llvm.Target.from_triple(module.triple).create_target_machine(jit=True, cpu=llvm.get_host_cpu_name())
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()

    def call(name: str, *arguments: object) -> None:
        assert ctypes.CFUNCTYPE(ctypes.c_int32)(engine.get_function_address(f"net_{name}"))(*arguments) == 0

    x, y = numbers(3, 64), np.zeros((3, 64), np.float32)
    dims, n_bytes, handle = np.array([3]), np.zeros(1, np.int64), ctypes.c_void_p()
    call("workspace", ctypes.c_void_p(dims.ctypes.data), ctypes.c_void_p(n_bytes.ctypes.data))
    memory = np.zeros(int(n_bytes[0]) + 64, np.uint8)
    aligned = ctypes.c_void_p(-(-memory.ctypes.data // 64) * 64)
    call("create", ctypes.byref(handle), aligned, ctypes.c_int64(int(n_bytes[0])), None, ctypes.c_int32(1))
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    call("run", handle, ctypes.c_void_p(dims.ctypes.data), inputs, outputs)
    np.testing.assert_allclose(y, evaluate_graph(graph, [x])[0], rtol=1e-4, atol=1e-4)


@needs_cc
def test_a_c_file_includes_the_header_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name is; the file says itself how it is built."""
    monkeypatch.chdir(tmp_path)
    save_graph(perceptron(), tmp_path / "2 net.txt")
    ran = CliRunner().invoke(app, ["export", "2 net.txt", "--to", "c"])
    assert ran.exit_code == 0, ran.output
    link(["-shared", "-fPIC", "2 net.exported.c"], tmp_path / "net.so")
    x = numbers(3, 64)
    (expected,) = evaluate_graph(perceptron(), [x])
    np.testing.assert_allclose(LibraryModel("net.so", name="m_2_net_exported")(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("tw.c", "'tw' can't begin the names"), ('a"b.c', "C can't include"), ("a\\b.c", "C can't include"),
        ("net.h", "the name of the header"), ("", "names no file"),
    ],
)  # fmt: skip
def test_a_name_that_c_cannot_have_is_refused(
    name: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tw.OptionError, match=rule):
        tw.convert(perceptron(), name, to="c")
    assert not list(tmp_path.iterdir())


def test_c_for_a_gpu_is_refused_as_an_export_is(tmp_path: Path) -> None:
    with pytest.raises(tw.OptionError, match="for CPUs, and 'cuda-sm90a' is a GPU"):
        tw.convert(perceptron(), tmp_path / "net.c", target="cuda-sm90a")


def test_the_command_line_writes_graphs_of_text_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(perceptron(), tmp_path / "net.txt")
    ran = CliRunner().invoke(app, ["export", "net.txt", "--optimized", "--json"])
    assert ran.exit_code == 0, ran.output
    written = json.loads(ran.output)
    assert written == {"output": "net.exported.onnx", "bytes": Path("net.exported.onnx").stat().st_size}
    x = numbers(3, 64)
    (expected,) = evaluate_graph(perceptron(), [x])
    np.testing.assert_allclose(tw.compile("net.exported.onnx", cache=False)(x), expected, rtol=1e-4, atol=1e-4)


def test_the_command_line_writes_pytorch_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(perceptron(), tmp_path / "net.txt")
    ran = CliRunner().invoke(app, ["export", "net.txt", "--to", "torch"])
    assert ran.exit_code == 0, ran.output
    x = numbers(3, 64)
    (expected,) = evaluate_graph(perceptron(), [x])
    found = torch.export.load("net.exported.pt2").module()(torch.from_numpy(x))
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["net.onnx", "net.mlir", "net.pt2", "net.ll", "net.c"])
def test_a_missing_folder_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / name
    with pytest.raises(tw.TilewrightError, match=rf"nowhere/{name}'(?s:.*)make its folder first"):
        tw.convert(torch.nn.ReLU(), path, example_inputs=(torch.ones(2),))


def test_what_cannot_leave_is_named(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x + self.count

    with pytest.raises(tw.CompileError, match=r"keeps .*count.* from call to call"):
        tw.convert(Counting(), tmp_path / "net.onnx", example_inputs=(torch.ones(2),))
    with pytest.raises(tw.OptionError, match=r"suffix of 'net\.xyz' is no format"):
        tw.convert(perceptron(), tmp_path / "net.xyz")

    class Hermitian(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(x)

    with pytest.raises(tw.CompileError, match="cholesky: no op of ONNX's means this"):
        tw.convert(Hermitian(), tmp_path / "net.onnx", example_inputs=(torch.eye(3),))
    assert not (tmp_path / "net.onnx").exists()


def test_the_name_of_the_output_says_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tw.convert(perceptron(), tmp_path / "net.onnx")
    for name, begins in (("net.mlir", "module"), ("net.c", "/*"), ("net.ll", "")):
        ran = CliRunner().invoke(app, ["export", "net.onnx", "--fix", "rows=3", "-o", name])
        assert ran.exit_code == 0, ran.output
        assert (tmp_path / name).read_text().lstrip().startswith(begins)
    assert CliRunner().invoke(app, ["export", "net.onnx", "-o", "net.bin", "--to", "onnx"]).exit_code == 0
    assert (tmp_path / "net.bin").read_bytes()[:1] == b"\x08"
    for name in ("net.foo", "net"):
        ran = CliRunner().invoke(app, ["export", "net.onnx", "-o", name])
        assert ran.exit_code != 0 and not (tmp_path / name).exists()
        assert isinstance(ran.exception, tw.OptionError) and ".mlir (stablehlo)" in str(ran.exception)
