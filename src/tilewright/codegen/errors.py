"""Errors of code generation.

In: what was asked for and what is possible. Out: typed errors with a stable code and a remedy.
Not its business: errors of the runtime (``tilewright.runtime.errors``), whose base class they share.
"""

from __future__ import annotations

from tilewright.core.diag import OptionError
from tilewright.runtime.errors import TilewrightError


class UnknownTargetError(OptionError):
    """A target's name that is in no instruction set's table."""

    code = "TW0401"


class CodegenError(TilewrightError):
    """A kernel that breaks a rule of the tile IR, or text that LLVM refuses: a defect of the compiler itself."""

    code = "TW0402"
