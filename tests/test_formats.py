"""Files that people have in a model's place: each is called what it is, with what its owner can do."""

from __future__ import annotations

import gzip
import io
import json
import pickle  # noqa: TID251 - to write what is refused, never to read
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.formats import recognise

torch = pytest.importorskip("torch")


def written(write: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def scripted() -> bytes:
    return written(lambda f: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), f))


def exported() -> bytes:
    return written(lambda f: torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), f))


FILES: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "gguf": (lambda: b"GGUF\x03\x00\x00\x00" + bytes(64), "a GGUF file", "tilewright.decoder"),
    "safetensors": (safetensors, "a safetensors file", "with_weights"),
    "stablehlo text": (
        lambda: b'#loc = loc("x")\nmodule @jit_f attributes {mhlo.num_replicas = 1 : i32} {\n}\n', "MLIR", ".mlir",
    ),
    "stablehlo plain": (lambda: b"// by hand\n\nmodule {\n  func.func @main() { return }\n}", "MLIR", ".mlir"),
    "stablehlo bytecode": (lambda: b"ML\xefR\x01StableHLO_v1" + bytes(64), "MLIR", ".mlirbc"),
    "checkpoint": (lambda: written(lambda f: torch.save({"w": torch.ones(2)}, f)), "checkpoint", "load_state_dict"),
    "old checkpoint": (
        lambda: written(lambda f: torch.save({"w": torch.ones(2)}, f, _use_new_zipfile_serialization=False)),
        "checkpoint", "load_state_dict",
    ),
    "torchscript": (scripted, "a TorchScript program", "scripted or traced"),
    "exported": (exported, "an exported PyTorch program", ".pt2"),
    "pickle": (lambda: pickle.dumps({"a": 1}, protocol=2), "a Python pickle", "trust"),
    "newer pickle": (lambda: pickle.dumps({"a": 1}), "a Python pickle", "trust"),
    "lfs": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "a Git LFS pointer", "git lfs",
    ),
    "html": (lambda: b"\n<!DOCTYPE html>\n<html><body>not found</body></html>", "a web page", "/resolve/"),
    "html without doctype": (lambda: b"<HTML><head>", "a web page", "download"),
    "server error": (lambda: b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML", "again"),
    "openvino": (lambda: b'<?xml version="1.0"?>\n<net name="m" version="11">', "an OpenVINO model", "ONNX"),
    "keras": (lambda: b"PK\x03\x04" + bytes(26) + b"config.json model.weights.h5", "a Keras model", "export"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5", "Keras"),
    "npy": (lambda: written(lambda f: np.save(f, np.ones(3))), "arrays of NumPy", "--input"),
    "npz": (lambda: written(lambda f: np.savez(f, a=np.ones(3))), "arrays of NumPy", "--input"),
    "gzip": (lambda: gzip.compress(b"model"), "a compressed file", "unpack"),
    "tar": (lambda: tarfile.TarInfo("m").tobuf() + bytes(1024), "an archive", "unpack"),
    "cut archive": (lambda: b"PK\x03\x04" + bytes(60), "an archive without an end", "again"),
    "json": (lambda: b'{\n  "architectures": ["Bert"]}', "JSON", ".onnx"),
    "empty": (lambda: b"", "an empty file", "again"),
    "ort": (lambda: b"\x18\x00\x00\x00ORTM" + bytes(64), "ONNX Runtime's own format", "converted from"),
    "png": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(64), "an image", "--input"),
    "jpeg": (lambda: b"\xff\xd8\xff\xe0" + bytes(64), "an image", "--input"),
    "python": (lambda: b"#!/usr/bin/python\n\nimport torch\n", "a Python program", "tilewright.compile(module"),
    "elf": (lambda: b"\x7fELF" + bytes(64), "machine code", "made of"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "what", "remedy"), FILES.values(), ids=FILES)
def test_a_file_is_called_what_it_is(make: Callable[[], bytes], what: str, remedy: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make())
    for call in (lambda: tw.compile(path), lambda: tw.compile(make()), lambda: tw.load(path)):
        with pytest.raises(TilewrightError) as caught:
            call()
        assert what in str(caught.value) and remedy in str(caught.value), str(caught.value)
        assert "damaged" not in str(caught.value)


def test_a_tflite_file_of_another_name_is_called_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(64))
    for call in (lambda: tw.compile(path), lambda: tw.load(path)):
        with pytest.raises(TilewrightError, match=r"a TensorFlow Lite model[^$]*\.tflite"):
            call()


def test_a_file_with_the_suffix_of_a_program_is_called_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(scripted())
    with pytest.raises(TilewrightError, match="no exported program: it is a TorchScript program"):
        tw.compile(path)
    path.write_bytes(exported())
    assert tw.compile(path, cache=False)(torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".tflite", ".gguf", ".safetensors"])
def test_a_file_with_the_suffix_of_another_format_is_called_what_it_is(suffix: str, tmp_path: Path) -> None:
    """Pointers of Git LFS and web pages, which have the name of what was asked for; and formats taken for another."""
    path, module = tmp_path / f"model{suffix}", torch.nn.Linear(2, 2)
    holds_weights = suffix in (".gguf", ".safetensors")
    for kind in ("lfs", "html", "gzip", "empty", *(["safetensors"] if suffix != ".safetensors" else [])):
        make, what, remedy = FILES[kind]
        path.write_bytes(make())
        with pytest.raises(TilewrightError) as caught:
            tw.with_weights(module, path) if holds_weights else tw.compile(path)
        assert f"it is {what}" in str(caught.value) and remedy in str(caught.value), str(caught.value)


def small_model(**fields: Any) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], **fields).SerializeToString()


@pytest.mark.parametrize("fields", [{}, {"producer_name": "<html>"}, {"doc_string": "module {"}])
def test_onnx_models_are_none_of_them(fields: dict[str, Any], tmp_path: Path) -> None:
    assert recognise(memoryview(small_model(**fields))) is None
    without_version = onnx.ModelProto.FromString(small_model(**fields))
    without_version.ClearField("ir_version")
    assert recognise(memoryview(without_version.SerializeToString())) is None


def test_a_compiled_model_is_one(tmp_path: Path) -> None:
    made = tw.compile(small_model(), cache=False)
    made.save(tmp_path / "m.tw")
    tw.load(tmp_path / "m.tw")
    with pytest.raises(TilewrightError, match="compiled by Tilewright already") as caught:
        tw.compile(tmp_path / "m.tw")
    assert "tilewright.load" in str(caught.value)


def test_short_and_empty_files_are_still_typed(tmp_path: Path) -> None:
    whole = [make() for make, _, _ in FILES.values()]
    for data in [b"", b"P", b"PK\x03\x04", b"\x80", bytes(8), bytes(7) + b"{", *(w[:9] for w in whole)]:
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        for read in (tw.compile, tw.load):
            with pytest.raises(TilewrightError):
                read(path)
