"""A suite of damaged ONNX files by seed: a typed error or the right result (``damage``)."""

from __future__ import annotations

import functools
import resource
from collections.abc import Sequence

import damage
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "files"
COUNT = 2_000


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), "file") for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    limit_memory()
    ended = damage.check(int(case.name))
    return ("refused" if ended == "refused" else "passed"), ended


@functools.cache
def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (damage.MEMORY, damage.MEMORY))
