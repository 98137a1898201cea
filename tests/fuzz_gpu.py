"""A suite of random graphs by seed: schedules for GPUs, emulated on this CPU, against the reference interpreter.

In: seeds. Out: passed, or an error that names the output and the place. Graphs are those of ``fuzz_graphs``, the GPUs
and SPIR-V in turn. Not its business: what a graph is made of (``graphs``, ``contractions``, ``networks``, ``edges``),
texts for the GPUs themselves (``tests/ptx``, ``tests/amd``, ``tests/spirv``).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz_graphs import FAMILIES, TURNS, family, run
from tilewright.target.gpu import named_gpus
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "gpu"
COUNT = 20_000
GPUS = tuple(gpu.name for gpu in named_gpus())


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), family(seed)) for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    seed = int(case.name)
    gpu = GPUS[seed // len(TURNS) % len(GPUS)]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TILEWRIGHT_LAPACK", "off")  # whose vectors have other signs
            run(FAMILIES[family(seed)](seed), threads=1, target=gpu, emulate=True)
    except Exception as e:
        e.add_note(f"seed {seed} ({family(seed)}), emulated {gpu}")
        raise
    return "passed", ""
