"""Signatures: what the loader refuses when it wants one, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

import small_models
import tilewright as tw
from tilewright.runtime.signature import check_signature, sign_file, signature_path


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Files with a new private key and its public one."""
    made = ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))  # fmt: skip
    public.write_bytes(made.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))  # fmt: skip
    return private, public


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "net.tw"
    tw.compile(small_models.perceptron(), threads=1, cache=False).save(path)
    return path.read_bytes()


@pytest.fixture
def signed(model: bytes, tmp_path: Path) -> tuple[Path, Path]:
    """A signed model and the signer's public key."""
    path = tmp_path / "net.tw"
    path.write_bytes(model)
    private, public = key_pair(tmp_path, "ours")
    assert sign_file(path, private) == signature_path(path)
    return path, public


def test_a_signed_model_loads(signed: tuple[Path, Path]) -> None:
    path, public = signed
    assert tw.load(path, key=public)(np.zeros((2, 64), np.float32)).shape == (2, 64)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at", [8, 300, -1])
def test_a_changed_model_is_refused_before_it_is_read(at: int, signed: tuple[Path, Path]) -> None:
    path, public = signed
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(tw.ArtifactError, match=r"net\.tw is not what was signed"):
        tw.load(path, key=public)


def test_no_signature_another_key_another_file(signed: tuple[Path, Path], tmp_path: Path) -> None:
    path, public = signed
    other_private, other_public = key_pair(tmp_path, "other")
    with pytest.raises(tw.ArtifactError, match=r"net\.tw is signed with another key"):
        tw.load(path, key=other_public)
    lines = signature_path(path).read_text().splitlines()
    sign_file(path, other_private)
    forged = signature_path(path).read_text().splitlines()
    signature_path(path).write_text(f"{lines[0]}\n{lines[1]}\n{forged[2]}\n")  # says it is ours, and is not
    with pytest.raises(tw.ArtifactError, match="not what was signed"):
        tw.load(path, key=public)
    signature_path(path).unlink()
    with pytest.raises(tw.ArtifactError, match=r"net\.tw has no signature"):
        tw.load(path, key=public)
    tw.load(path)  # nobody asked for one


@pytest.mark.parametrize("text", ["", "x\ny\nz\n", "tilewright-signature 2\na\nb\n"])
def test_other_signature_files(text: str, signed: tuple[Path, Path]) -> None:
    path, public = signed
    signature_path(path).write_text(text)
    with pytest.raises(tw.ArtifactError, match=r"net\.tw\.sig is not a signature"):
        tw.load(path, key=public)


def test_a_signature_that_is_no_base64(signed: tuple[Path, Path]) -> None:
    path, public = signed
    lines = signature_path(path).read_text().splitlines()
    for wrong in ("?", "AAAA", ""):
        signature_path(path).write_text(f"{lines[0]}\n{lines[1]}\n{wrong}\n")
        with pytest.raises(tw.ArtifactError):
            tw.load(path, key=public)


def test_keys_that_are_none(signed: tuple[Path, Path], tmp_path: Path) -> None:
    path, public = signed
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))  # fmt: skip
    for key in (public, wrong, path):
        with pytest.raises(tw.ArtifactError, match="not a private key of Ed25519"):
            sign_file(path, key)
    with pytest.raises(tw.ArtifactError, match="not a public key of Ed25519"):
        check_signature(path, wrong)
