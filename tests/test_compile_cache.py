"""A second compile of the same model comes from the disk cache; any change of input misses."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import driver, ops
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.frontend import source
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
    time.sleep(2.1)  # a file that may still be changing is read again
    tw.compile(path)
    with monkeypatch.context() as patch:
        patch.setattr(source, "_content", lambda path: pytest.fail("the file was read again"))
        tw.compile(path)
    assert len(built) == 1
    model = onnx.load(path)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, path)
    tw.compile(path)
    assert len(built) == 2
