"""A compiled model of any kind, from a file or from what the compiler made.

In: a path, or an ``Artifact``. Out: a model that runs on this machine's CPU, one for a GPU, or one to look at.
Not its business: the file (``artifact``), calls (``python``, ``cuda``).
"""

from __future__ import annotations

import dataclasses
import os

from tilewright.runtime import artifact
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.fields import FieldError
from tilewright.runtime.host import misfit
from tilewright.runtime.once import MAKING
from tilewright.runtime.python.model import CompiledModel, LoadedModel
from tilewright.runtime.threads import checked_threads, default_threads


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    key: str | os.PathLike[str] | None = None,
    copy: bool | None = None,
) -> CompiledModel:
    """Check, link and return the model of a ``.tw`` file. Any defect of the file is an ``ArtifactError``.

    Weights of a large file are used where they lie, in the page cache, which all processes share. Never write into such
    a file while it is loaded (``cp NEW FILE`` does): the model would compute with the new bytes, or die of SIGBUS where
    the file became shorter. Replace it: ``save``, ``mv`` and ``install`` do. With ``copy=True`` the model has memory of
    its own and does not care, with False it never has; by default up to 16 MiB.

    ``key`` is the PEM file of a public key whose signature (``FILE.sig``, by ``tilewright sign``) the file must have.
    Files come from people you trust as you trust a program's author: the checks find damage, not malice.

    A model for a GPU opens the driver when it is first called; it takes no ``threads``.
    """
    threads = checked_threads(threads)
    found = artifact.load(path, key=key, copy=copy)
    if found.manifest.text:
        return _with_text(found, threads)
    if found.manifest.target.is_gpu:
        return model_of(found)
    return LoadedModel(found.manifest, found.objects, found.weights, threads=threads)


def _with_text(found: Artifact, threads: int | None) -> CompiledModel:
    """A model whose part on text Python runs, and its code, where there is any."""
    with MAKING:
        from tilewright.runtime.python.text_model import TextModel
        from tilewright.runtime.texts import TextPart

    try:
        part = TextPart.from_json(found.manifest.text)
    except FieldError as error:
        raise ArtifactError(f"the part on text: {error}", remedy="compile and save the model again") from error
    rest = None
    if found.objects:
        plain = dataclasses.replace(found.manifest, text="")
        rest = LoadedModel(plain, found.objects, found.weights, threads=threads)
    return TextModel(part, rest, threads or default_threads())


def model_of(made: Artifact, *, threads: int | None = None) -> CompiledModel:
    """The model, ready to be called where this machine can run it; a GPU's machine is its driver's to know."""
    parts = (made.manifest, made.objects, made.weights)
    if made.manifest.target.is_gpu:
        with MAKING:
            from tilewright.runtime.cuda.compiled import CompiledGpuModel

        return CompiledGpuModel(*parts)
    return LoadedModel(*parts, threads=threads) if misfit(made.manifest.target) is None else CompiledModel(*parts)
