"""Errors of code generation.

In: what was asked for and what is possible. Out: typed errors with a stable code and a remedy.
Not its business: errors of the runtime (``tilewright.runtime.errors``), whose base class they share.
"""

from __future__ import annotations

from tilewright.runtime.errors import TilewrightError


class CodegenError(TilewrightError):
    """A kernel that breaks a rule of the tile IR, or text that LLVM refuses: a defect of the compiler itself."""

    code = "TW0402"
