"""Detached Ed25519 signatures: was a file made by the holder of a key, and is it unchanged since?

In: a file's content and a key in PEM. Out: ``FILE.sig``, or an ``ArtifactError`` that says by name what is wrong.
Not its business: keeping keys; what the files are (``artifact``, and the compiler's ``aot.record``).

A signature file is three lines: its version, the key's fingerprint, the signature in base64. Signed is a fixed text and
the SHA-256 of the content, so that a signature of ours is never one of something else's.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.runtime.errors import ArtifactError, ResourceError
from tilewright.runtime.files import reason_of, write_atomically, writing
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

VERSION = "tilewright-signature 1"
MAX_BYTES = 1000


def signature_path(path: str | os.PathLike[str]) -> Path:
    """Where a file's signature lies."""
    file = Path(path)
    return file.with_name(file.name + ".sig")


def sign_file(path: str | os.PathLike[str], key: str | os.PathLike[str]) -> Path:
    """Write ``FILE.sig`` with a private key (PEM, not encrypted). ``ArtifactError`` for a key that is none."""
    digest = _digest_of(path, None)
    private = _private_key(key)
    signed = base64.b64encode(private.sign(_message(digest))).decode()
    text = f"{VERSION}\n{_fingerprint(private.public_key())}\n{signed}\n"
    with writing(signature_path(path)):
        write_atomically(signature_path(path), [text.encode()], durable=True)
    return signature_path(path)


def check_signature(path: str | os.PathLike[str], key: str | os.PathLike[str], content: Any = None) -> None:
    """``ArtifactError`` unless ``FILE.sig`` is this key's signature of the content (default: of the file)."""
    name, public = Path(path).name, _public_key(key)
    try:
        with signature_path(path).open("rb") as file:
            lines = file.read(MAX_BYTES).decode("ascii", "replace").splitlines()
    except OSError as error:
        remedy = "ask for the signature, or sign the file if you trust it"
        raise ArtifactError(f"{name} has no signature ({error.strerror})", remedy=remedy) from error
    if len(lines) != 3 or lines[0] != VERSION:
        raise ArtifactError(f"{name}.sig is not a signature that this release reads", remedy="sign the file again")
    if lines[1] != _fingerprint(public):
        rule = f"{name} is signed with another key ({lines[1][:16]}...)"
        raise ArtifactError(rule, remedy="do not use it, or check with that signer's key")
    if not _is_valid(public, lines[2], _message(_digest_of(path, content))):
        remedy = "do not use it; get it again from its signer"
        raise ArtifactError(f"{name} is not what was signed: it, or its signature, was changed", remedy=remedy)


def _digest_of(path: str | os.PathLike[str], content: Any) -> str:
    if content is not None:
        return hashlib.sha256(content).hexdigest()
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"can't read {os.fspath(path)!r}: {reason_of(error)}", remedy="check the path") from error


def _message(digest: str) -> bytes:
    return f"{VERSION}\n{digest}\n".encode()


def _is_valid(public: Ed25519PublicKey, text: str, message: bytes) -> bool:
    crypto = _cryptography()
    try:
        public.verify(base64.b64decode(text, validate=True), message)
    except (ValueError, crypto.InvalidSignature):
        return False
    return True


def _fingerprint(public: Ed25519PublicKey) -> str:
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()


def _private_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    crypto = _cryptography()
    try:
        found = crypto.load_pem_private_key(_key_bytes(path), password=None)
    except (ValueError, TypeError, crypto.UnsupportedAlgorithm) as error:
        raise _bad_key(path, "a private key") from error
    if not isinstance(found, crypto.Ed25519PrivateKey):
        raise _bad_key(path, "a private key")
    return found


def _public_key(path: str | os.PathLike[str]) -> Ed25519PublicKey:
    crypto = _cryptography()
    try:
        found = crypto.load_pem_public_key(_key_bytes(path))
    except (ValueError, crypto.UnsupportedAlgorithm) as error:
        raise _bad_key(path, "a public key") from error
    if not isinstance(found, crypto.Ed25519PublicKey):
        raise _bad_key(path, "a public key")
    return found


def _key_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        rule = f"can't read the key {str(path)!r:.200}: {reason_of(error)}"
        raise ArtifactError(rule, remedy="check the path") from error


def _bad_key(path: str | os.PathLike[str], kind: str) -> ArtifactError:
    rule = f"{os.fspath(path)} is not {kind} of Ed25519 in PEM without a password"
    return ArtifactError(rule, remedy="docs/artifact.md shows how to make a pair of keys")


class _Crypto:
    """What is used of ``cryptography``."""

    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

        self.InvalidSignature, self.UnsupportedAlgorithm = InvalidSignature, UnsupportedAlgorithm
        self.Ed25519PrivateKey, self.Ed25519PublicKey = Ed25519PrivateKey, Ed25519PublicKey
        self.load_pem_private_key, self.load_pem_public_key = load_pem_private_key, load_pem_public_key


def _cryptography() -> _Crypto:
    try:
        with MAKING:
            return _Crypto()
    except ImportError as error:
        remedy = 'pip install "tilewright[sign]"'
        raise ResourceError("signatures need the package cryptography", remedy=remedy) from error
