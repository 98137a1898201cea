"""How long work says what it is at: to whoever asked for it, or to nobody.

In: nothing. Out: a type and its silent form. Not its business: how a terminal shows it (``cli``).
"""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done, and how much there is; 0 where nobody knows."""


def silent(stage: str, done: int, total: int) -> None:
    """Tells nobody."""
