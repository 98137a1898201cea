"""Bugs planted in passes, ops, fusion, schedules, code generation and memory: the comparison names each one's place.

``planted.py`` lists them. The comparison knows nothing of them: it gets a graph, inputs and options.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from debug.planted import BUGS, Bug, Made, planted
from tilewright.build.options import Options
from tilewright.target.target import Target
from tilewright.tools.debug.flow import compare_graph
from tilewright.tools.debug.report import Fault

ENOUGH = 50


def fault_of(net: Made, options: Mapping[str, Any]) -> Fault | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare_graph(*net, Options(**options), threads=2).fault


@cache
def fault_untouched(net: Callable[[], Made], options: tuple[tuple[str, Any], ...]) -> Fault | None:
    return fault_of(net(), dict(options))


def test_there_are_enough_of_them_all_over_the_compiler() -> None:
    assert len(BUGS) >= ENOUGH
    assert len({(b.where, b.old, b.new) for b in BUGS}) == len(BUGS)
    assert len({b.where for b in BUGS}) >= 45
    assert min(Counter(b.stage for b in BUGS if b.stage in ("pass", "schedule", "codegen", "memory")).values()) >= 5


@pytest.mark.one_in(12)
@pytest.mark.parametrize("bug", BUGS, ids=[f"{k:02d}-{b.id}" for k, b in enumerate(BUGS)])
def test_is_found_by_name(bug: Bug) -> None:
    if bug.needs and not getattr(Target.host(), bug.needs):
        pytest.skip(f"this machine has no instruction for it ({bug.needs})")
    assert fault_untouched(bug.net, tuple(bug.options.items())) is None
    with planted(bug.where, bug.old, bug.new):
        fault = fault_of(bug.net(), bug.options)
    assert fault is not None
    words = f"{fault.name} {fault.rule} {fault.op}".replace("(", " ").split()
    assert (fault.stage, [w for w in bug.name.split() if w not in words]) == (bug.stage, []), fault
