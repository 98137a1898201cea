"""Models for GPUs as files and in the cache: what is read is what was written, and nothing else passes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from test_every_op import graph_of
from tilewright import ops
from tilewright.build import driver, kernels
from tilewright.core.diag import OptionError
from tilewright.core.opdef import OpDef
from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.cuda.compiled import CompiledGpuModel
from tilewright.runtime.cuda.files import PROGRAM, code_of, objects_of
from tilewright.runtime.errors import ArtifactError, InputError

OPS = (ops.softmax, ops.matmul, ops.nonzero, ops.if_, ops.loop, ops.map_parts)


def compiled(op: OpDef) -> CompiledGpuModel:
    sample = next(iter(op.samples(np.random.default_rng(0))))
    made = driver.compile_graph(graph_of(op, sample), target="cuda-sm90a")
    assert isinstance(made, CompiledGpuModel)
    return made


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_file_holds_the_whole_program(op: OpDef, tmp_path: Path) -> None:
    """Kernels, branches, loops, sizes that the data decide."""
    model = compiled(op)
    model.save(tmp_path / "model.tw")
    loaded = tw.load(tmp_path / "model.tw")
    assert isinstance(loaded, CompiledGpuModel)
    assert objects_of(loaded.code) == objects_of(model.code) and loaded.ptx == model.ptx
    assert (loaded.inputs, loaded.outputs, loaded.code.arch) == (model.inputs, model.outputs, "sm_90a")


def nest(program: dict[str, Any], depth: int, **launch: int) -> None:
    """Put the program's steps, the first of them changed, into so many branches, one in the other."""
    place = {"is": "DevicePlace", "base": "arena", "offset": 0}
    program["steps"][0].update(launch)
    for _ in range(depth):
        programs = [{"is": "GpuProgram", "steps": []}, {"is": "GpuProgram", "steps": program["steps"]}]
        choice = {"is": "ChooseStep", "cond": place, "programs": programs, "sizes": [[], []], "args": []}
        program["steps"] = [{**choice, "scratch": place}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("arch"), "has other fields than GpuCode"),
        (lambda p: p.update(arena_bytes="2 +"), "makes no sense"),
        (lambda p: p.update(arena_bytes=True), "is 'True', not one of"),
        (lambda p: p["program"]["steps"][0].update({"is": "RunStep"}), "not one of .*LaunchStep"),
        (lambda p: p["program"]["steps"][0]["args"][0].update(base="stack"), "not one of .*arena"),
        (lambda p: p["kernels"][0]["entries"][0].update(block=[64, 1]), "not a list of 3"),
        (lambda p: p["program"]["steps"][0].update({"is": ["LaunchStep"]}), "not one of .*LaunchStep"),
        (lambda p: p["program"]["steps"][0].update(kernel=99), "kernel 99 is launched, of 1"),
        (lambda p: p["program"]["steps"][0].update(kernel=-1), "kernel -1 is launched"),
        (lambda p: nest(p["program"], 200), "recursion"),
        (lambda p: nest(p["program"], 2, kernel=99), "kernel 99 is launched"),
        (lambda p: p["kernels"][0].update(name="other"), "objects .* where the program has kernels"),
    ],
)
def test_another_program_is_refused(change, message: str) -> None:
    first, *rest = objects_of(compiled(ops.softmax).code)
    program = json.loads(first.data)
    change(program)
    with pytest.raises(ArtifactError, match=message):
        code_of([ObjectImage(PROGRAM, json.dumps(program).encode()), *rest])
    with pytest.raises(ArtifactError, match=r"the first object is not program\.json"):
        code_of([replace(first, name="kernel.o"), *rest])


def test_a_compile_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["y"])], "g",
        [info("x", TensorProto.FLOAT, ["n", 4])], [info("y", TensorProto.FLOAT, ["n", 4])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    first, second = (tw.compile(tmp_path / "m.onnx", target="cuda-sm90a") for _ in range(2))
    other = tw.compile(tmp_path / "m.onnx", target="cuda-sm80")
    assert [m.report()["from_cache"] for m in (first, second, other)] == [False, True, False]
    assert first.report()["target"] == "cuda-sm90a"
    assert isinstance(second, CompiledGpuModel) and second.ptx == first.ptx
    assert isinstance(other, CompiledGpuModel) and other.code.arch == "sm_80"
    for model in (first, second):
        with pytest.raises(ArtifactError, match="a model for a GPU can't be exported"):
            model.export(tmp_path / "out")
        with pytest.raises(ArtifactError, match="a model for a GPU has no source to take weights from"):
            model.refit({})


@pytest.mark.parametrize("target", ["cuda-sm90a", "x86-64,cuda-sm90a"])
def test_an_export_for_a_gpu_is_refused(target: str, tmp_path: Path) -> None:
    sample = next(iter(ops.exp.samples(np.random.default_rng(0))))
    with pytest.raises(OptionError, match="'cuda-sm90a' is a GPU"):
        tw.export(graph_of(ops.exp, sample), tmp_path / "out", target=target)
    assert not (tmp_path / "out").exists()


def test_a_number_of_threads_is_checked_for_a_gpu_too(tmp_path: Path) -> None:
    compiled(ops.softmax).save(tmp_path / "model.tw")
    with pytest.raises(InputError, match="threads=-3"):
        tw.load(tmp_path / "model.tw", threads=-3)
    with pytest.raises(ArtifactError, match="holds no decoder"):
        tw.load_decoder(tmp_path / "model.tw")


def test_a_verified_graph_is_checked_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "default_checks", lambda: kernels.LENIENT)
    asked = []
    run = kernels.run_pipeline
    monkeypatch.setattr(kernels, "run_pipeline", lambda g, p, check: asked.append(check) or run(g, p, check=check))
    sample = next(iter(ops.exp.samples(np.random.default_rng(0))))
    driver.compile(graph_of(ops.exp, sample), target="cuda-sm90a", verify=True)
    assert set(asked) == {kernels.STRICT.verify}
