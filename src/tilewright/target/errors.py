"""Errors of naming a machine.

In: a name. Out: a typed error with a stable code and a remedy. Not its business: what code generation refuses.
"""

from __future__ import annotations

from tilewright.core.diag import OptionError


class UnknownTargetError(OptionError):
    """A target's name that is in no instruction set's table."""

    code = "TW0401"
