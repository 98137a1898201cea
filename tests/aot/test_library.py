"""Shared libraries through the Python loader: the same answers as the compiled model, and the same refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import small_models
import tilewright as tw
from aot import programs
from runtime.test_signature import key_pair
from tilewright.runtime.library import LibraryModel
from tilewright.runtime.signature import sign_file

Pair = tuple[tw.LoadedModel, LibraryModel, Path]
pytestmark = [programs.needs_cc, pytest.mark.usefixtures("shared_kernels")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    model = tw.compile(small_models.sequences(), threads=2, cache=False)
    made = model.export(tmp_path_factory.mktemp("lm"), name="lm", shared=True)
    yield model, LibraryModel(made.library), made.library


def test_answers_are_the_compiled_model_s(pair: Pair) -> None:
    model, library, _ = pair
    assert library.inputs == model.inputs and library.outputs == model.outputs and library.symbols == model.symbols
    for shape in ((1, 1, 64), (3, 40, 64), (2, 7, 64)):
        x = small_models.numbers(*shape)
        np.testing.assert_array_equal(library(x), model(x))
        np.testing.assert_array_equal(library.run({"x": x})[model.outputs[0].name], model(x))
    assert isinstance(library(torch.zeros(1, 2, 64)), torch.Tensor)


def test_wrong_inputs_are_refused(pair: Pair) -> None:
    model, library, _ = pair
    for wrong in (np.zeros((1, 2, 63), np.float32), np.zeros((1, 64), np.float32), np.zeros((1, 2, 64)), "x"):
        with pytest.raises(tw.InputError):
            library(wrong)
    assert library(np.zeros((0, 2, 64), np.float32)).shape == model(np.zeros((0, 2, 64), np.float32)).shape


def test_threads_call_at_once(pair: Pair) -> None:
    model, library, _ = pair
    inputs = [small_models.numbers(2, 30 + k, 64, seed=k) for k in range(4)]
    expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(20):
            if not np.array_equal(library(inputs[k]), expected[k]):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong == []


def test_weights_beside_the_library(tmp_path: Path) -> None:
    model = tw.compile(small_models.convnet(), threads=1, cache=False)
    made = model.export(tmp_path, name="net", shared=True, weights="file")
    x = small_models.numbers(2, 3, 64, 64)
    np.testing.assert_array_equal(LibraryModel(made.library)(x), model(x))
    data = bytearray(made.weights.read_bytes())
    data[100] ^= 1
    made.weights.unlink()  # it is mapped
    made.weights.write_bytes(data)
    with pytest.raises(tw.ArtifactError, match=r"net\.safetensors.*not net's weights"):
        LibraryModel(made.library)


def test_python_needs_numpy_alone(pair: Pair) -> None:
    """Types that NumPy lacks are loaded where arguments have them, and LLVM and the compiler never."""
    program = """
import sys
sys.modules.update(dict.fromkeys(("ml_dtypes", "llvmlite", "onnx", "torch", "tilewright.codegen", "tilewright.graph")))
import numpy
from tilewright.runtime.library import LibraryModel
print(LibraryModel(sys.argv[1])(numpy.zeros((1, 2, 64), numpy.float32)).shape)
"""
    ran = subprocess.run([sys.executable, "-c", program, pair[2]], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{pair[0](np.zeros((1, 2, 64), np.float32)).shape}\n"


def test_sizes_that_the_data_decide(tmp_path: Path) -> None:
    values = [[helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])], [
        helper.make_tensor_value_info("y", TensorProto.INT64, [1, "found"])]]  # fmt: skip
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "where", *values)
    source = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    onnx.checker.check_model(source)
    made = tw.export(source, tmp_path, shared=True)
    library = LibraryModel(made.library)
    x = np.array([0, 1, 0, 2, 3], np.float32)
    np.testing.assert_array_equal(library(x), [[1, 3, 4]])
    assert library(np.zeros(4, np.float32)).shape == (1, 0)


def test_a_signed_export_and_a_changed_one(tmp_path: Path) -> None:
    """The record vouches for the library and the weights: one flipped bit in either is refused by name."""
    private, public = key_pair(tmp_path, "ours")
    made = tw.export(small_models.convnet(), tmp_path, name="net", shared=True, weights="file", threads=1)
    with pytest.raises(tw.ArtifactError, match=r"net\.json has no signature"):
        LibraryModel(made.library, key=public)
    sign_file(made.record, private)
    LibraryModel(made.library, key=public)
    for path in (made.library, made.weights, made.record):
        original = path.read_bytes()
        path.unlink()  # it is mapped: a new file, not other bytes in the old one
        path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        with pytest.raises(tw.ArtifactError, match=path.name):
            LibraryModel(made.library, key=public)
        path.write_bytes(original)
    made.library.rename(tmp_path / "libother.so")
    with pytest.raises(tw.ArtifactError, match="can't be read"):
        LibraryModel(tmp_path / "libother.so", name="net", key=public)


def test_other_libraries_are_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(tw.ArtifactError, match="can't load"):
        LibraryModel(tmp_path / "libnone.so")
    with pytest.raises(tw.ArtifactError, match="has no model 'other'"):
        LibraryModel(pair[2], name="other")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(pair: Pair) -> None:
    _, library, _ = pair
    x = small_models.numbers(8, 100, 64)
    expected = library(x)
    pid = os.fork()
    if pid == 0:
        is_right = np.array_equal(library(x), expected)
        os._exit(0 if is_right and len(os.listdir("/proc/self/task")) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
