"""PyTorch's operator database, every sample of every entry: hours of work.

In: as ``tools.conformance.torch``. Out: an outcome for each entry and dtype. Not its business: what a case is (there).
"""

from __future__ import annotations

from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.torch import cases, run_entry
from tilewright.tools.conformance.workers import Case

NAME = "torch-all"
__all__ = ["NAME", "cases", "run_case", "run_case_for"]


def run_case(case: Case) -> tuple[Status, str]:
    """Run all samples of the entry."""
    return run_entry(case.name, None)


def run_case_for(case: Case, target: str) -> tuple[Status, str]:
    """The same by code for a target, which runs on this computer."""
    return run_entry(case.name, None, target)
