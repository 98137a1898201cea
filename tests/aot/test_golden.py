"""Artefacts of earlier versions, kept as they were written: this version loads them, and they answer as they did.

`python tests/aot/test_golden.py VERSION` writes a new folder beside the old ones, which are never written again.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "golden"
VERSIONS = sorted(p.name for p in FOLDER.iterdir() if p.is_dir())
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


def test_there_are_some() -> None:
    assert VERSIONS


@on_x86_linux
@pytest.mark.parametrize("version", VERSIONS)
def test_a_saved_model_loads_and_answers(version: str) -> None:
    import tilewright as tw

    model = tw.load(FOLDER / version / "layer.tw", threads=1)
    np.testing.assert_allclose(model(X), expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_export_is_as_it_was_signed(version: str) -> None:
    from tilewright.aot.elf import ElfObject
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


if __name__ == "__main__":
    write(FOLDER / sys.argv[1])
