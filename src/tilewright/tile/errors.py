"""Typed errors of the tile level.

In: which loop, stage or statement broke which rule. Out: exceptions with a stable code and a remedy.
Not its business: catching them (``choose.default`` falls back to a simpler schedule).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.diag import CompileError, Problem
from tilewright.runtime.errors import TilewrightError


class ScheduleError(TilewrightError):
    """A schedule primitive's legality rule does not hold."""

    code = "TW0501"

    def __init__(self, primitive: str, where: str, rule: str, *, remedy: str = "") -> None:
        self.primitive, self.where, self.rule = primitive, where, rule
        remedy = remedy or f"change this step or leave it out; docs/schedules.md says what {primitive} needs"
        super().__init__(f"{primitive}({where}): {rule}", remedy=remedy)


class TileVerifyError(TilewrightError):
    """A kernel breaks the specification of the tile IR."""

    code = "TW0502"


class TileTextError(TilewrightError):
    """A kernel's or schedule's text form can't be read."""

    code = "TW0503"


class TileRunError(TilewrightError):
    """The interpreter met an access out of bounds or a wrong argument."""

    code = "TW0504"


class RuleBroke(TilewrightError):
    """A rule of the default schedule raised what no rule may: a mistake in it, which is no reason to refuse a model.

    ``cause`` is what it raised.
    """

    code = "TW0506"

    def __init__(self, kernel: str, root: str, cause: Exception) -> None:
        self.kernel, self.root, self.cause = kernel, root, cause
        remedy = "report the model; without TILEWRIGHT_STRICT it compiles, with plain loops here"
        super().__init__(f"kernel {kernel}, {root}: a rule broke: {type(cause).__name__}: {cause}", remedy=remedy)


class ScheduleFileError(CompileError):
    """A file of schedules can't be applied; ``problems`` names kernel, step, rule and remedy of each."""

    code = "TW0505"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("the schedules don't fit", problems)
