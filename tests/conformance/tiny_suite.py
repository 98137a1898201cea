"""A suite of six cases that end in every way that a case can, and of two for one process after the other."""

import ctypes
import os
import time

from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "tiny"
LEFT: list[str] = []
"""What a case has left in its process."""


def cases() -> list[Case]:
    return [
        Case(n, n[0], ("good",) if n == "right" else ()) for n in ("right", "wrong", "raises", "dies", "hangs", "last")
    ]


def run_case(case: Case) -> tuple[Status, str]:
    match case.name:
        case "wrong":
            return "wrong", "1, expected 2"
        case "raises":
            raise ValueError("an accident")
        case "leaves":
            LEFT.append(case.name)
            raise ValueError("the process is of no more use")
        case "clean" if LEFT:
            return "wrong", f"{LEFT} was here"
        case "dies":
            os.abort() if os.name == "nt" else ctypes.string_at(0)
        case "hangs":
            time.sleep(600)
    return "passed", ""


def run_case_for(case: Case, target: str) -> tuple[Status, str]:
    return "passed", f"for {target}"
