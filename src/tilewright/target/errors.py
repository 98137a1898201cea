"""Errors of naming a machine, and of what is kept of one.

In: a name or a file. Out: a typed error with a stable code and a remedy. Not its business: what code generation
refuses.
"""

from __future__ import annotations

from tilewright.core.diag import OptionError
from tilewright.runtime.errors import TilewrightError


class UnknownTargetError(OptionError):
    """A target's name that is in no instruction set's table."""

    code = "TW0401"


class CalibrationError(TilewrightError):
    """A file of measured numbers that is damaged, or not for this CPU."""

    code = "TW0403"
