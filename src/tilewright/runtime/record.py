"""Reading ``NAME.json``, the record of an export: are the files that it names there, and as they were written?

In: a record's path. Out: its files, or an ``ArtifactError`` that names those that differ. Not its business: what else
is in a record (``aot.record`` writes it), who wrote it (``signature``).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.files import reason_of
from tilewright.runtime.plain import dataclass

RECORD_VERSION = 1
FORMAT = "tilewright-aot"


@dataclass(frozen=True)
class FileEntry:
    """A file of an export: ``role`` is object, header, weights, library or archive."""

    role: str
    name: str
    size: int
    sha256: str


def read_record(path: Path) -> Fields:
    """The record; ``ArtifactError`` when the file is none of ours or of a later version."""
    remedy = "export the model again"
    try:
        fields = Fields(decode_json(path.read_bytes()), path.name)
        if fields.any("format") != FORMAT:
            raise FieldError("not the record of an export")
        if fields.integer("format_version", 1) > RECORD_VERSION:
            raise FieldError(f"of a later version; this one reads up to {RECORD_VERSION}")
    except OSError as error:
        raise ArtifactError(f"can't read {str(path)!r}: {reason_of(error)}", remedy="check the path") from error
    except FieldError as error:
        raise ArtifactError(f"{path.name}: {error}", remedy=remedy) from error
    return fields


def check_files(record: Path) -> list[FileEntry]:
    """The files that a record names, all as they were written; else ``ArtifactError`` naming those that differ."""
    fields = read_record(record)
    try:
        entries = [
            FileEntry(f.text("role"), f.text("name"), f.integer("size", 0), f.digest("sha256"))
            for f in fields.children("files")
        ]
    except FieldError as error:
        raise ArtifactError(f"{record.name}: {error}", remedy="export the model again") from error
    wrong = [problem for entry in entries if (problem := _problem(record.parent, entry))]
    if wrong:
        raise ArtifactError(f"{record.name}: " + "; ".join(wrong), remedy="export the model again")
    return entries


def _problem(folder: Path, entry: FileEntry) -> str:
    if Path(entry.name).name != entry.name or entry.name in ("", ".", ".."):
        return f"{entry.name!r} is not the name of a file beside it"
    try:
        with (folder / entry.name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{entry.name} can't be read ({error.strerror})"
    return "" if digest == entry.sha256 else f"{entry.name} is not the file that was exported"
