"""Artefacts of earlier versions, kept as they were written: this version loads them, and they answer as they did.

`python tests/aot/test_golden.py VERSION` writes a new folder beside the old ones, whose files are never written again.
Folders `format-N` hold models that states of main saved when `FORMAT_VERSION` was N, one for each part of a manifest
that not every model has.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import test_rings
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph
from tilewright.runtime import artifact
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import FORMAT_VERSION, Manifest
from tilewright.target.target import Target

FOLDER = Path(__file__).parent / "golden"
MODELS = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.glob("*/*.tw"))
VERSIONS = sorted(p.parent.name for p in FOLDER.glob("*/layer.json"))
GENERATED = [4, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 15]
"""What the decoder says to three tokens, as it said when it was written."""
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)

on_x86_linux = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="the artefacts are for x86-64 Linux"
)


def expected() -> np.ndarray:
    """relu(x @ w + b) with the weights that all versions have."""
    w, b = weights()
    return np.maximum(X @ w + b, 0)


def weights() -> tuple[np.ndarray, np.ndarray]:
    return np.cos(np.arange(32, dtype=np.float32)).reshape(8, 4), np.array([0.5, -0.5, 1, 0], np.float32)


def test_there_is_one_of_every_format() -> None:
    """A format's number is raised together with a golden file of it: `model.save` of the version that wrote it."""
    formats = {artifact.load(FOLDER / name).manifest.format_version for name in MODELS}
    assert VERSIONS and formats == set(range(1, FORMAT_VERSION + 1))


def test_there_is_one_of_every_part_of_a_manifest() -> None:
    """Also of those that are written only where a model needs them."""
    written = [set(json.loads(artifact.load(FOLDER / name).manifest.to_json())) for name in MODELS]
    assert set().union(*written) == {f.name for f in fields(Manifest)}


@on_x86_linux
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_saved_model_loads_and_answers(name: str, threads: int) -> None:
    check(FOLDER / name, threads)


@on_x86_linux
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_saved_again_in_the_newest_format(name: str, tmp_path: Path) -> None:
    import tilewright as tw

    again = tmp_path / Path(name).name
    tw.load(FOLDER / name, threads=1).save(again)
    assert artifact.load(again).manifest.format_version == FORMAT_VERSION
    check(again, 1)


@pytest.mark.parametrize("name", MODELS)
def test_damage_to_a_saved_model_is_found(name: str) -> None:
    """In each part: the header, the weights, the objects."""
    data = (FOLDER / name).read_bytes()
    n_header = int.from_bytes(data[:8], "little")
    weights = artifact.parse(data).manifest.weights.size
    for at in (20, 8 + n_header + weights // 2, 8 + n_header + weights + 70):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(ArtifactError):
            artifact.parse(bytes(damaged))


def check(file: Path, threads: int) -> None:
    """Does a model answer as its kind, which its file is named after, does?"""
    import tilewright as tw

    model = tw.load(file, threads=threads)
    if file.stem == "layer":
        np.testing.assert_allclose(model(X), expected(), rtol=1e-5, atol=1e-6)
    elif file.stem == "rows":
        check_rows(model)
    elif file.stem == "state":
        for calls in (1, 2):
            found = model({"a": X, "b": 2 * X})
            np.testing.assert_allclose(found["total"], calls * X.sum(0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found["sums"][0], 3 * X, rtol=1e-6)
    elif file.stem == "solve":
        matrices = np.random.default_rng(0).standard_normal((2, 16, 16))
        np.testing.assert_allclose(model(matrices, matrices[:, :, :1]), [np.eye(16)[:, :1]] * 2, atol=1e-9)
    elif file.stem == "text":
        found = model(np.array(["a", "b", "c", "?"], object), np.arange(4, dtype=np.float32))
        assert found[0].tolist() == [1, 3, 2, 3] and found[1].tolist() == ["a!", "b!", "c!", "?!"]
    elif file.stem == "ring":
        image = np.random.default_rng(0).standard_normal((1, 3, 9, 40)).astype(np.float32)
        (want,) = evaluate_graph(ring(), [image])
        np.testing.assert_allclose(model(image), want, rtol=1e-4, atol=1e-4)
    else:
        decoder = tw.load_decoder(file, threads=threads)
        assert decoder.generate([3, 1, 4], max_new_tokens=12).tolist() == [3, 1, 4, *GENERATED]


def check_rows(model: Any) -> None:
    rows = np.linspace(-3, 3, 64 * 1000, dtype=np.float32).reshape(1000, 64)
    mask = (np.arange(12) % 3).astype(np.float32)
    softmax, places = model(rows, mask)
    want = np.exp(rows.astype(float))
    np.testing.assert_allclose(softmax, 2 * want / want.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(places, np.argwhere(mask))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_export_is_as_it_was_signed(version: str) -> None:
    from tilewright.runtime.elf import ElfObject
    from tilewright.runtime.record import check_files
    from tilewright.runtime.signature import check_signature

    record = FOLDER / version / "layer.json"
    check_signature(record, FOLDER / version / "signer.pub")
    assert {e.role for e in check_files(record)} == {"object", "header", "archive"}
    assert "layer_run" in ElfObject((FOLDER / version / "layer.o").read_bytes()).defined()
    assert json.loads(record.read_text())["abi_version"] == 1


@on_x86_linux
@pytest.mark.parametrize("version", VERSIONS)
def test_an_exported_object_links_and_answers(version: str, tmp_path: Path) -> None:
    """Through the current loader and with the current examples."""
    from aot import programs
    from tilewright.aot.cc import link_shared
    from tilewright.aot.system import system_of
    from tilewright.runtime.library import LibraryModel

    if not programs.HAS_CC:
        pytest.skip("no C compiler (cc) here")
    triple = "x86_64-unknown-linux-gnu"
    link_shared(
        FOLDER / version / "layer.o", tmp_path / "liblayer.so", name="layer", triple=triple, system=system_of(triple),
        is_host=True, has_threads=True,
    )  # fmt: skip
    np.testing.assert_allclose(LibraryModel(tmp_path / "liblayer.so")(X), expected(), rtol=1e-5, atol=1e-6)


def ring() -> Graph:
    """Convolutions of which threads keep some rows, more than a stack holds."""
    return test_rings.net("depthwise", 1, 9, 40, 32, 3, 1)


def write(folder: Path) -> None:
    """The artefacts of this version, signed with a key that is thrown away."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    import tilewright as tw
    from tilewright import ops
    from tilewright.core.expr import Sym
    from tilewright.core.graph import Builder, Graph, Pool
    from tilewright.core.types import TensorType, f32
    from tilewright.runtime.signature import sign_file

    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (Sym("batch", 1, 64), 8)))
    w, bias = (b.const(a) for a in weights())
    graph = Graph("layer", b.pool, (x,), (b(ops.relu, b(ops.add, b(ops.matmul, x, w), bias)),), ("y",))
    folder.mkdir(parents=True)
    tw.compile(graph, target="x86-64", cache=False).save(folder / "layer.tw")
    made = tw.export(graph, folder, target="x86-64", threads=2, static=True)
    key = Ed25519PrivateKey.generate()
    secret, form = folder / "secret.pem", serialization.Encoding.PEM
    secret.write_bytes(key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    (folder / "signer.pub").write_bytes(
        key.public_key().public_bytes(form, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    sign_file(made.record, secret)
    secret.unlink()


def write_kinds(folder: Path) -> None:
    """Models with the parts of a manifest that others lack; weights of the decoder are in the file alone."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import tilewright as tw
    from tilewright.frontend.torch.decoder import decoder_step
    from tilewright.runtime.python.decoder import Decoder

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(8))

        def forward(self, parts: dict[str, torch.Tensor]) -> dict[str, Any]:
            self.total.add_(parts["a"].sum(0))
            return {"total": self.total.clone(), "sums": (parts["a"] + parts["b"],)}

    class Solve(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.linalg.solve(a, b)

    matrices = torch.zeros(2, 16, 16, dtype=torch.float64)
    made = [
        ("state", Counter(), ({"a": torch.zeros(3, 8), "b": torch.zeros(3, 8)},)),
        ("solve", Solve(), (matrices, matrices[:, :, :1].clone())),
    ]
    for name, module, inputs in made:
        tw.compile(module, inputs, target="x86-64", cache=False).save(folder / f"{name}.tw")
    with mock.patch.object(Target, "large_bytes", 0):  # else only large images are worth a ring
        tw.compile(ring(), target="x86-64", cache=False).save(folder / "ring.tw")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=32, initializer_range=0.6, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    step = decoder_step(GPT2LMHeadModel(config).eval(), 24, 4)
    compiled = tw.compile(
        step.module, step.arguments, dynamic_shapes=step.dynamic_shapes, target="x86-64", cache=False
    )  # fmt: skip
    decoder = Decoder(compiled, 4, 24)  # as `tw.decoder` makes it, for a CPU that others can stand in for
    decoder.save(folder / "decoder.tw")
    print(decoder.generate([3, 1, 4], max_new_tokens=12).tolist()[3:])


if __name__ == "__main__":
    write(FOLDER / sys.argv[1])
    write_kinds(FOLDER / sys.argv[1])
