"""A second compile of the same model comes from the disk cache; any change of input misses."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from test_system import run_python
from tilewright import ops
from tilewright.build import driver
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.runtime import answers
from tilewright.runtime import cache as cache_module
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cache import Cache


def _graph(scale: float) -> Graph:
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(types.f32, (4, 64)))
    w = pool.const(np.full((64, 64), scale, np.float32))
    return Graph("net", pool, (x,), (b(ops.matmul, x, w),), ("y",))


def _onnx_model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 64)) for name in "xy")
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    return helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [w]))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of the graphs that were really compiled."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    names: list[str] = []
    real = driver.build

    def counting(graph: Graph, *args: object, **kwargs: object) -> object:
        names.append(graph.name)
        return real(graph, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "build", counting)
    return names


def test_equal_model_hits_and_changed_ones_miss(built: list[str]) -> None:
    x = np.ones((4, 64), np.float32)
    first, second = tw.compile(_graph(1.0)), tw.compile(_graph(1.0))
    assert len(built) == 1
    np.testing.assert_array_equal(first(x), second(x))
    assert tw.compile(_graph(2.0))(x)[0, 0] == 128 and len(built) == 2
    tw.compile(_graph(1.0), optimize=1)
    tw.compile(_graph(1.0), target="x86-64-v3")
    tw.compile(_graph(1.0), cache=False)
    assert len(built) == 5


@pytest.mark.parametrize("name", ["llvmlite", "llvm", "ml_dtypes", "numpy"])
def test_another_version_of_what_makes_the_code_misses(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a graph as of a file, whose key is found without the compiler."""
    file = tmp_path / "net.onnx"
    onnx.save(_onnx_model(), file)
    for _ in range(2):
        tw.compile(_graph(1.0))
        tw.compile(file)
    assert len(built) == 2
    facts = answers.host_facts()
    if name == "numpy":
        monkeypatch.setattr("numpy.__version__", "99.0")
    else:
        monkeypatch.setattr(answers, "host_facts", lambda: facts._replace(**{name: "99.0"}))
    tw.compile(_graph(1.0))
    tw.compile(file)
    assert len(built) == 4


def test_what_a_thread_writes_to_disk_is_no_longer_changed(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model is written while its compile goes on to link it and to note the seconds in its report."""
    given: list[tuple[Artifact, str]] = []
    monkeypatch.setattr(Cache, "put_artifact_soon", lambda _, __, made: given.append((made, made.manifest.to_json())))
    model = tw.compile(_graph(1.0))
    assert [artifact.manifest.to_json() == text for artifact, text in given] == [True]
    assert not model.report()["from_cache"] and model.report()["seconds"]


def test_a_damaged_entry_is_compiled_again(built: list[str], tmp_path: Path) -> None:
    tw.compile(_graph(1.0))
    assert Cache().entries()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(bytes(data))
    assert tw.compile(_graph(1.0))(np.ones((4, 64), np.float32))[0, 0] == 64
    assert len(built) == 2


def test_a_file_is_read_once(built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second compile of a file takes the digest and the answer about external tensors from the cache."""
    path = tmp_path / "model.onnx"
    onnx.save(_onnx_model(), path)
    monkeypatch.setattr(cache_module, "_SETTLED_NS", 0)  # a file that may still be changing is read again
    monkeypatch.setattr(cache_module, "file_system", lambda fd: 0xEF53)
    time.sleep(0.05)
    tw.compile(path)
    with monkeypatch.context() as patch:
        patch.setattr(answers, "_content", lambda data: pytest.fail("the file was read again"))
        tw.compile(path)
    assert len(built) == 1
    model = onnx.load(path)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, path)
    tw.compile(path)
    assert len(built) == 2


X = np.ones((4, 64), np.float32)


def _write_version(path: Path, k: int, *, is_external: bool) -> None:
    """A model whose results are ``64 * k``."""
    model = _onnx_model()
    weights = np.full((64, 64), k, np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    beside = {"save_as_external_data": True, "location": path.name + ".data", "size_threshold": 0}
    onnx.save(model, path, **(beside if is_external else {}))


def _replace(old: Path, new: Path) -> None:
    os.replace(new, old)


def _overwrite(old: Path, new: Path) -> None:
    with old.open("r+b") as file:
        file.write(new.read_bytes())


def _write_through_a_map(old: Path, new: Path) -> None:
    with old.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:] = new.read_bytes()


@pytest.mark.parametrize("change", [_replace, _overwrite, _write_through_a_map])
@pytest.mark.parametrize("is_external", [False, True])
@pytest.mark.parametrize("stage", ["import_called", "build"])
def test_a_file_that_changes_during_a_compile_poisons_nothing(
    stage: str,
    is_external: bool,
    change: Callable[[Path, Path], None],
    built: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the digest and the import, or between that and the layout of the weights."""
    path = tmp_path / "model.onnx"
    _write_version(path, 2, is_external=is_external)
    numbers = path.with_name("model.onnx.data") if is_external else path
    version_2 = numbers.read_bytes()
    real = getattr(driver, stage)

    def changed_before(*args: object, **kwargs: object) -> object:
        _write_version(path.with_name("other"), 3, is_external=is_external)
        change(numbers, path.with_name("other.data" if is_external else "other"))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(driver, stage, changed_before)
        tw.compile(path)
    assert tw.compile(path)(X)[0, 0] == 3 * 64
    numbers.write_bytes(version_2)
    assert tw.compile(path)(X)[0, 0] == 2 * 64


def test_each_version_has_its_own_answer_after_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread replaces the file while two compile it; then every version is asked for by itself."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path, stop = tmp_path / "model.onnx", threading.Event()
    _write_version(path, 1, is_external=False)

    def replacer() -> None:
        k = 0
        while not stop.is_set():
            k = k % 5 + 1
            _write_version(tmp_path / "next.onnx", k, is_external=False)
            _replace(path, tmp_path / "next.onnx")

    def compiler() -> None:
        for _ in range(8):
            tw.compile(path)

    replacing, *compiling = [threading.Thread(target=t) for t in (replacer, compiler, compiler)]
    replacing.start()
    for t in compiling:
        t.start()
    for t in compiling:
        t.join()
    stop.set()
    replacing.join()
    for k in range(1, 6):
        _write_version(path, k, is_external=False)
        assert tw.compile(path)(X)[0, 0] == 64 * k


def _in_a_process(path: Path, cache: Path, then: str = "") -> list[str]:
    """What a fresh process has imported of the compiler after a compile, or what ``then`` prints."""
    return run_python(
        f"""
import sys
import numpy as np
import tilewright as tw
m = tw.compile(sys.argv[1])
print(m(np.ones((4, 64), np.float32))[0, 0])
{then or 'print(*sorted(n[11:] for n in sys.modules if n.startswith("tilewright.") and "runtime" not in n))'}
print("tilewright.runtime.cpu.routines" in sys.modules)
""",
        path,
        TILEWRIGHT_CACHE=str(cache),
    ).splitlines()


def test_the_cache_answers_without_the_compiler(built: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _write_version(path, 2, is_external=False)
    tw.compile(path)
    # what writes calls of LAPACK has no business in a model without any
    assert _in_a_process(path, tmp_path) == ["128.0", "build build.later front", "False"]
    x = np.ones((4, 64), np.float32)
    model = tw.compile(path)
    assert model.report()["from_cache"] and model(x)[0, 0] == 128 and len(built) == 1
    assert tw.compile(path, optimize=0)(x)[0, 0] == 128 and len(built) == 2
    assert tw.compile(path, precision="bf16")(x)[0, 0] == 128 and len(built) == 3
    _write_version(path, 3, is_external=False)
    assert tw.compile(path)(x)[0, 0] == 192 and len(built) == 4
    assert _in_a_process(path, tmp_path, "print(m.export(sys.argv[1] + '.d').object.exists())")[:2] == ["192.0", "True"]


def test_a_cached_exported_program_is_called_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file's content does not tell, its calling convention, is not forgotten."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))

    class Doubled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, given: dict[str, Any]) -> dict[str, Any]:
            return {"y": given["a"] * 2}

    x = {"a": torch.ones(2)}
    torch.export.save(torch.export.export(Doubled(), (x,)), tmp_path / "m.pt2")
    for is_again in (False, True):
        model = tw.compile(tmp_path / "m.pt2")
        assert model.report()["from_cache"] == is_again
        assert torch.equal(model(x)["y"], torch.full((2,), 2.0))
