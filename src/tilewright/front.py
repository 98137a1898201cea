"""``tilewright.compile``: what an earlier compile has made is found by the runtime alone.

In: what the user wrote. Out: a compiled model, from the cache or by ``driver``, which is imported only then: the whole
compiler takes longer to import than a model takes to load. Not its business: anything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.build.later import Later
from tilewright.runtime.answers import Keyed, asked_sizes, find_answer, keyed_source, question, searches_text
from tilewright.runtime.cache import Cache
from tilewright.runtime.models import model_of
from tilewright.runtime.once import MAKING
from tilewright.runtime.python.model import CompiledModel
from tilewright.runtime.threads import checked_threads


def compile(
    source: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "native",
    precision: str = "fp32",
    optimize: int | str = 2,
    accuracy: str = "default",
    schedule: str | os.PathLike[str] | None = None,
    specialize: Mapping[str, Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
    emulate: bool = False,
    tuned: bool = True,
    anytime: bool | float = False,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> CompiledModel:
    """Compile a model to native code.

    ``source`` is the path, bytes or ``ModelProto`` of an ONNX model, a ``torch.nn.Module`` (with ``example_inputs``, in
    order or a dict by name, and, for symbolic sizes, ``dynamic_shapes`` as ``torch.export`` takes them), a function of
    tensors (with the same), an ``ExportedProgram`` or the path of one (``.pt2``), or a ``Graph``.
    ``input_shapes`` fixes or renames dimensions of an ONNX model's inputs; ``fix_dims`` gives symbolic dimensions a
    number. ``threads`` is the most threads a call uses (default: what affinity, container quota and
    ``TILEWRIGHT_THREADS`` allow). With ``precision="bf16"`` products and convolutions read operands rounded to bf16 and
    sum in f32; all else stays in f32. ``"int8"``, ``"int4"``, ``"nf4"``, ``"fp4"``, ``"fp8"`` and ``"fp8e5m2"``
    store the weights of products and embeddings in so many bits, with a scale for each group of 32 (``"int4-64"``,
    ``"int4-128"``: of so many), ``"fp16"`` as halves, and compute in f32.
    ``optimize="size"`` gives little code and small weights, at the cost of speed;
    ``optimize=3`` compares what the schedules of a kernel should cost, which takes two to three times as long to
    compile, for recurrences up to ten times.
    ``accuracy="exact"`` keeps every convolution a plain sum; the default takes Winograd's form where that pays and its
    error stays within 1e-4 of the largest output. ``schedule`` is a file of schedules (``docs/schedules.md``) for some
    or all kernels. ``specialize`` gives sizes that get code of their own beside the code for all sizes, in the same
    model: ``{"batch": [1, 8]}``, of several names every combination; or a list of combinations, ``[{"batch": 1,
    "length": 128}]``. A name is a symbolic dimension's, or ``"INPUT[AXIS]"``. With ``emulate=True`` and a
    GPU's name as the target, this machine's CPU runs the schedules made for that GPU (``docs/gpu.md``).
    With ``tuned`` kernels for which ``tune`` found a schedule on this machine, for as many threads and by this version,
    get that one, unless there is a ``schedule`` file or no cache; the report names them. ``anytime``, seconds or True
    for a minute, lets the first call start such a search in another process: the model, of fixed sizes, runs meanwhile,
    and changes to faster code between two calls (``docs/schedules.md``). ``progress`` is
    told a stage's name, steps done and steps in all, 0 where their number is not known.

    Raises ``CompileError`` listing every problem of the model, ``OptionError`` for an option.
    """
    asked: dict[str, Any] = {"example_inputs": example_inputs, "dynamic_shapes": dynamic_shapes}
    options: dict[str, Any] = {
        "target": target, "precision": precision, "optimize": optimize, "accuracy": accuracy, "schedule": schedule,
        "specialize": specialize,
    }  # fmt: skip
    sizes: dict[str, Any] = {"input_shapes": input_shapes, "fix_dims": fix_dims, "threads": threads}
    everything = {
        **asked, **sizes, **options, "cache": cache, "progress": progress, "emulate": emulate, "tuned": tuned
    }  # fmt: skip
    if anytime is not False:
        return _anytime(source, anytime, **everything)
    keyed = Keyed(source)
    may_ask = not emulate and schedule is None and example_inputs is None and dynamic_shapes is None
    if cache and may_ask and _are_flags(cache, tuned):
        choices = (target, precision, optimize, accuracy, *asked_sizes(specialize))
        keyed, found = _known(keyed, input_shapes, fix_dims, threads, choices, tuned=tuned)
        if found is not None:
            if found.manifest.target.is_gpu:
                return found  # as of a fresh compile: it has no exports, and no other weights
            found.exporter = partial(_export, source, **asked, **sizes, **options)
            found.origin = Later(source, {**asked, "input_shapes": input_shapes, "fix_dims": fix_dims}, options)
            return found
    with MAKING:
        from tilewright.build import driver

    return driver.compile(source, **everything, keyed=keyed)


def _are_flags(*values: Any) -> bool:
    """Other values are the driver's to refuse, which no answer from the cache may come before."""
    return all(isinstance(value, bool) for value in values)


def _known(
    keyed: Keyed,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    fix_dims: Mapping[str, int] | None,
    threads: int | None,
    options: tuple[object, ...],
    *,
    tuned: bool,
) -> tuple[Keyed, CompiledModel | None]:
    """What an earlier compile has stored; with what was found out about the source on the way."""
    start, store = time.perf_counter(), Cache()
    keyed = keyed_source(keyed.source, store, input_shapes, fix_dims)
    known = time.perf_counter()
    searches = searches_text(store, threads) if tuned else ()
    artifact = find_answer(store, question(keyed.key, *options, *searches)) if keyed.key else None
    if artifact is None:
        return keyed, None
    read = time.perf_counter()
    model = model_of(artifact, threads=checked_threads(threads))
    spent = {"key": known - start, "cache": read - known, "link": time.perf_counter() - read}
    seconds = {name: round(s, 6) for name, s in spent.items()}
    model.manifest = model.manifest.with_facts(seconds=seconds, from_cache=True)
    return keyed, model


def _export(source: Any, folder: str | os.PathLike[str], **options: Any) -> Any:
    """``tilewright.export``, loaded by the first export."""
    with MAKING:
        from tilewright.build.deploy import export

    return export(source, folder, **options)


def _anytime(source: Any, seconds: float, **options: Any) -> CompiledModel:
    """A model that a search of its own makes faster, which few ask for."""
    with MAKING:
        from tilewright.tools.anytime import compile_anytime

    return compile_anytime(source, anytime=seconds, **options)
