"""Machines a little unlike those that they are named after, for tests of what a choice depends on.

In: fields of ``Target``. Out: compiles that see them. Not its business: what the fields mean (``target.target``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.build.options import Options


def change_machines(monkeypatch: pytest.MonkeyPatch, **numbers: Any) -> None:
    """From here on every compile of this test is for its target with other ``numbers``."""
    named = Options.machine.fget
    assert named is not None
    monkeypatch.setattr(Options, "machine", property(lambda options: replace(named(options), **numbers)))
