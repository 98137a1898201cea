"""A suite of damaged StableHLO programs by seed: a typed error or the right result (``damage_stablehlo``)."""

from __future__ import annotations

from collections.abc import Sequence

import damage_stablehlo
from fuzz_files import COUNT, limit_memory
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "programs"


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), "program") for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    limit_memory()
    ended = damage_stablehlo.check(int(case.name))
    return ("refused" if ended == "refused" else "passed"), ended
