"""The ``.tw`` file: a compiled model on disk, as a valid safetensors file.

In: a manifest, objects and weights; or any bytes at all. Out: a file; or an ``Artifact`` that passed every check, else
an ``ArtifactError``. Nothing of a file is executed here. Not its business: linking and running (``linker``, ``model``).

Layout: header length (8 bytes, little-endian), JSON header padded with spaces, data. ``__metadata__`` holds the
manifest as JSON text and that text's digest; tensor ``weights`` (U8) comes first and starts on a multiple of 64, so
that it can be used from a memory map; then ``object.<i>`` (U8). Everything outside the manifest's text follows from it:
the loader builds the header anew and wants the same bytes, so no byte of a file goes unchecked.
Files of every format version before are read, too; what is written has the newest (``docs/artifact.md`` tells them
apart).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.digest import checksum, checksum_of_format_1
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.files import map_file, open_regular, reason_of, write_atomically
from tilewright.runtime.formats import COMPILED, recognise
from tilewright.runtime.manifest import FORMAT_VERSION, Manifest, ObjectSpec, WeightsSpec
from tilewright.runtime.once import MAKING
from tilewright.runtime.plain import dataclass
from tilewright.runtime.values import aligned_buffer

ALIGNMENT = 64
COPIED_TO = 16 << 20
"""Bytes of a file up to which a loaded model has pages of its own, unless asked otherwise: a few milliseconds."""
MAX_HEADER = 100_000_000
"""The safetensors format's own limit."""


@dataclass(frozen=True, slots=True)
class ObjectImage:
    """A native object: a name for reports, and its bytes."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """A whole model. ``weights`` is a uint8 array; from ``load`` it is read-only and 64-byte aligned."""

    manifest: Manifest
    objects: tuple[ObjectImage, ...]
    weights: np.ndarray[Any, Any]


def save(path: str | os.PathLike[str], manifest: Manifest, objects: Sequence[ObjectImage], weights: Any) -> Manifest:
    """Write a model atomically; returns the manifest as written, with sizes and digests filled in.

    ``weights`` is anything with a contiguous buffer. ``OSError`` when the file can't be written.
    """
    sealed, pieces = pack(manifest, objects, weights)
    write_atomically(path, pieces, durable=True)
    return sealed


def load(
    path: str | os.PathLike[str], *, key: str | os.PathLike[str] | None = None, copy: bool | None = None
) -> Artifact:
    """Read and check a ``.tw`` file. Any defect is an ``ArtifactError``, also a file that can't be read.

    ``key`` is the public key (a PEM file) whose signature the file must have. With ``copy`` the weights have memory of
    their own, without it they lie in the mapped file; None decides by the size.
    """
    try:
        path = os.fspath(path)  # a number would be taken for an open file
        if copy is None:
            copy = os.stat(path).st_size <= COPIED_TO
        view = _read_aligned(path) if copy else map_file(path)[0]
    except (OSError, ValueError, TypeError) as error:
        raise ArtifactError(f"can't read {path!r}: {reason_of(error)}", remedy="check the path") from error
    if key is not None:
        with MAKING:
            from tilewright.runtime.signature import check_signature

        check_signature(path, key, view)
    return parse(view, os.fspath(path))


def _read_aligned(path: str | os.PathLike[str]) -> memoryview:
    """A file's bytes in memory of their own, which begins on a cache line."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        buffer, start = aligned_buffer(size)
        view = buffer.data[start : start + size]
        done = 0
        while done < size and (n := file.readinto(view[done:])):
            done += n
    return view[:done].toreadonly()


def pack(manifest: Manifest, objects: Sequence[ObjectImage], weights: Any) -> tuple[Manifest, list[Any]]:
    """The manifest with sizes and digests filled in, and the pieces of the file in order."""
    flat = memoryview(weights)
    blob = flat.cast("B") if flat.nbytes else memoryview(b"")
    specs = tuple(ObjectSpec(o.name, len(o.data), hashlib.sha256(o.data).hexdigest()) for o in objects)
    sealed = dataclasses.replace(
        manifest, objects=specs, weights=WeightsSpec(len(blob), checksum(blob)), format_version=FORMAT_VERSION
    )
    return sealed, [_header(sealed, sealed.to_json()), blob, *(o.data for o in objects)]


def parse(data: memoryview | bytes, name: str = "model") -> Artifact:
    """Check the bytes of a ``.tw`` file and take them apart; weights stay where they are in ``data``."""
    view = memoryview(data).cast("B")
    found = recognise(view)
    if found is not None and found is not COMPILED:
        raise ArtifactError(f"{name} is {found.what}, not a compiled model", remedy=found.remedy)
    try:
        manifest, start = _read_header(view)
        return _read_data(manifest, view[start:])
    except FieldError as error:
        raise ArtifactError(f"{name}: {error}", remedy="compile and save the model again") from error
    except ArtifactError as error:
        raise ArtifactError(f"{name}: {error.message}", remedy=error.remedy) from error


def _header(manifest: Manifest, text: str) -> bytes:
    """The only header that a file with this manifest may have."""
    meta = {"format": "tilewright", "digest": _digest(text), "manifest": text}
    header: dict[str, Any] = {"__metadata__": meta}
    offset = 0
    sizes = [manifest.weights.size, *(o.size for o in manifest.objects)]
    for key, size in zip(["weights", *(f"object.{i}" for i in range(len(sizes) - 1))], sizes, strict=True):
        header[key] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % ALIGNMENT)
    if len(raw) > MAX_HEADER:
        raise FieldError(f"a header of {len(raw)} bytes is over the format's limit")
    return len(raw).to_bytes(8, "little") + raw


def _read_header(view: memoryview) -> tuple[Manifest, int]:
    if len(view) < 8:
        raise FieldError(f"a file of {len(view)} bytes is too short")
    n_header = int.from_bytes(view[:8], "little")
    if n_header > min(MAX_HEADER, len(view) - 8):
        raise FieldError("the file is truncated, or not a compiled model (a source model goes to tilewright.compile)")
    raw = bytes(view[8 : 8 + n_header])
    meta = Fields(decode_json(raw), "header").child("__metadata__")
    if meta.any("format") != "tilewright":
        raise FieldError("the file is not a compiled model")
    text = meta.text("manifest")
    if meta.digest("digest") != _digest(text):
        raise FieldError("the manifest does not match its digest: the file is damaged")
    manifest = Manifest.from_json(text)
    if bytes(view[: 8 + n_header]) != _header(manifest, text):
        raise FieldError("the header does not follow from the manifest: the file is damaged")
    return manifest, 8 + n_header


def _read_data(manifest: Manifest, data: memoryview) -> Artifact:
    wanted = manifest.weights.size + sum(o.size for o in manifest.objects)
    if len(data) != wanted:
        raise FieldError(f"{len(data)} bytes of data where the manifest has {wanted}: the file is truncated or damaged")
    objects, start = [], manifest.weights.size
    for spec in manifest.objects:
        image = bytes(data[start : start + spec.size])
        if hashlib.sha256(image).hexdigest() != spec.sha256:
            raise FieldError(f"object {spec.name!r} does not match its digest: the file is damaged")
        objects.append(ObjectImage(spec.name, image))
        start += spec.size
    blob = data[: manifest.weights.size]
    found = checksum_of_format_1(blob) if manifest.format_version == 1 else checksum(blob)
    if found != manifest.weights.checksum:
        raise FieldError("the weights do not match their checksum: the file is damaged")
    weights = np.frombuffer(blob, np.uint8) if len(blob) else np.empty(0, np.uint8)
    return Artifact(manifest, tuple(objects), weights)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
