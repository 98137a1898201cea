"""Options of ``torch.compile`` that this back end does not have: what is said of them.

In: a name. Out: the error, which tells TorchInductor's own options apart and says what stands for them here. Not its
business: the options that there are (``build.options``, ``torch_compile.backend``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from tilewright.core.diag import OptionError

LEAVE = "leave it out"
MEASURED = f"{LEAVE}: schedules come from a model of the machine, or by 'schedule' from a file of `tilewright tune`"
DUMPED = f"{LEAVE}, and set the variable TILEWRIGHT_DUMP=FOLDER, which has every stage of each compile written"
PASSES = f"{LEAVE}, or choose among the passes by 'optimize', from 0 to 3"
MACHINE = "use 'target', one of those that `tilewright targets` lists"

INSTEAD: Mapping[str, str] = {
    "freezing": "use 'freeze': True, which promises that weights never change",
    "max_autotune": MEASURED, "coordinate_descent": MEASURED, "autotune": MEASURED,
    "trace.": DUMPED, "debug": DUMPED,
    "fallback_random": f"{LEAVE}: random numbers come from PyTorch's generator here",
    "cpp.threads": "use 'threads'",
    "cpp.simdlen": MACHINE, "cpp.march": MACHINE,
    "epilogue_fusion": PASSES, "pattern_matcher": PASSES, "aggressive_fusion": PASSES,
    "layout_optimization": PASSES, "shape_padding": PASSES,
}  # fmt: skip
"""What stands here for TorchInductor's options whose names begin so."""


def unknown_option(name: object, known: Sequence[str]) -> OptionError:
    """The error for an option called ``name``, where ``known`` are those that there are."""
    from torch._inductor import list_options

    theirs = str(name).replace("-", "_")  # TorchInductor takes either
    if theirs in list_options():
        instead = next((text for begin, text in INSTEAD.items() if theirs.startswith(begin)), LEAVE)
        return OptionError(f"{name!r} is an option of TorchInductor, not of this back end", remedy=instead)
    near = get_close_matches(str(name), known, 1)
    remedy = f"use {near[0]!r}" if near else f"use some of {', '.join(known)}"
    return OptionError(f"there is no option {name!r} here", remedy=remedy)
