"""From a graph in kernels to an artefact: machine code, the entry function, weights and manifest.

In: what ``kernels`` splits and schedules. Out: ``Parts`` for those who look inside, and an ``Artifact``.
Not its business: object files for programs without Python (``deploy``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.build.kernels import SplitGraph
from tilewright.build.manifest import manifest_of
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.llvm import compile_text
from tilewright.codegen.cpu.program import poll_slots
from tilewright.core.diag import within_memory
from tilewright.core.types import Array
from tilewright.runtime.artifact import Artifact, ObjectImage


@dataclass(frozen=True)
class Parts:
    """What an artefact is made of, for those who look inside: each kernel's machine code and the constants it reads."""

    split: SplitGraph
    objects: tuple[ObjectImage, ...]
    weights: Array


@within_memory("the model's weights")
def make_parts(split: SplitGraph, clock: Clock) -> Parts:
    """Compile the kernels and lay out the weights."""
    pending = split.kernels.start()
    with clock.stage("weights"):  # beside LLVM, which works in a thread of its own
        weights = split.planner.weights.blob()
    return Parts(split, tuple(split.kernels.finish(pending)), weights)


def assemble(parts: Parts, options: Options, clock: Clock, *, profile: bool = False) -> Artifact:
    """Parts with the entry function that runs them, a manifest and a report."""
    split = parts.split
    kernels, target = split.kernels, split.kernels.target
    with clock.stage("entry"):
        cycles = {name: len(split.slots) + k for k, name in enumerate(kernels.kernels)} if profile else None
        text = split.entry(cycles, split.routines, is_stoppable=not profile)
        entry = ObjectImage("entry", compile_text(text, target))
    n_dims = len(split.slots) + (len(kernels.kernels) if profile else poll_slots(text, len(split.slots)))
    manifest = replace(manifest_of(split, options, parts.weights.nbytes, n_dims), routines=split.routines)
    return Artifact(manifest, (entry, *parts.objects), parts.weights)
