"""A suite of random graphs by seed: native code at every optimisation level against the reference interpreter.

In: seeds. Out: passed, or an error that names the output and the place. Each graph is compiled at levels 0, 1 and 2
for one target, all targets and all numbers of threads in turn. Not its business: what a graph is made of (``graphs``,
``contractions``, ``networks``, ``edges``), processes and counts (``fuzz``).

Kernels with equal texts are scheduled and compiled once in a process, as one compile does with its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar
from unittest import mock

import numpy as np
import pytest

from contractions import contraction
from edges import edge_graph
from graphs import RandomGraph, random_graph
from networks import network
from tilewright.build import assemble, driver, kernels, keys
from tilewright.choose import default
from tilewright.choose.default import RULE_BROKE, Scheduled
from tilewright.codegen.cpu.llvm import Emitted
from tilewright.core.graph import Graph
from tilewright.core.opdef import Trait
from tilewright.core.passes import run_pipeline
from tilewright.graph.pipeline import passes_for
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "graphs"
COUNT = 20_000
LEVELS = (0, 1, 2)
TARGETS = ("native", "native", "x86-64-v3", "x86-64")
FAMILIES = {
    "small": lambda seed: random_graph(seed, n_ops(seed)),
    "wide": lambda seed: random_graph(seed, n_ops(seed), wide=True),
    "contraction": contraction,
    "network": network,
    "edges": edge_graph,
}
TURNS = (
    "small", "wide", "contraction", "edges", "small", "wide", "edges", "small", "network", "wide", "contraction",
    "small", "edges", "wide", "small", "wide",
)  # fmt: skip


def family(seed: int) -> str:
    return TURNS[seed % len(TURNS)]


def n_ops(seed: int) -> int:
    """Mostly few: compiling one graph costs per kernel, and most mistakes need two or three ops."""
    return (1, 2, 3, 2, 4, 3, 5, 14)[seed // len(TURNS) % 8]


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), family(seed)) for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    with kernels_shared():
        check(int(case.name))
    return "passed", ""


def check(seed: int, levels: Sequence[int] = LEVELS) -> None:
    made = FAMILIES[family(seed)](seed)
    target = TARGETS[seed // len(TURNS) % len(TARGETS)]
    for optimize in levels:
        if optimize == 2 and 1 in levels and same_at_levels_1_and_2(made.graph):
            continue
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TILEWRIGHT_LAPACK", "off")  # whose vectors have other signs
                run(made, threads=1 + seed % 3, optimize=optimize, target=target)
        except Exception as e:
            e.add_note(f"seed {seed} ({family(seed)}), optimize={optimize}, target={target}")
            raise


def same_at_levels_1_and_2(graph: Graph) -> bool:
    """Do both levels' passes give one graph? Then all else that the compiler does is the same too."""
    if any(Trait.CONTROL in n.op.traits for n in graph.nodes()):
        return False
    one, two = (keys.graph_key(run_pipeline(graph, passes_for(level))) for level in (1, 2))
    return one == two


def run(case: RandomGraph, *, threads: int, **how: object) -> None:
    """Native code is close to the reference, and no scheduling rule made a mistake."""
    model = driver.compile_graph(case.graph, threads=threads, **how)
    notes = [n for kernel in model.report()["kernels"] for n in kernel["notes"]]
    assert not [n for n in notes if RULE_BROKE in n], f"a rule broke: {notes}"
    result = model(*case.arrays)
    got = result if isinstance(result, tuple) else (result,)
    case.assert_close([np.asarray(g) for g in got])


K, V = TypeVar("K"), TypeVar("V")
KEPT = 2000
"""Of so many kernels the schedules and texts are kept at once; those made first go first."""
_SCHEDULED: dict[tuple[str, Target], Scheduled] = {}
_TEXTS: dict[tuple[int, Target, bool, bool], tuple[Kernel, Emitted]] = {}
"""By the identity of a kernel, which lives as long as its text: one by steps of its own shares its name with others."""


def _made_once(table: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """What ``table`` has under ``key``, made where it is missing; the table never has many more than ``KEPT``."""
    if (made := table.get(key)) is None:
        made = table[key] = make()
        if len(table) > KEPT:
            table.pop(next(iter(table)), None)
    return made


@contextmanager
def kernels_shared() -> Iterator[None]:
    """While entered, equal kernels of different compiles of this process are made once.

    A kernel's name is the digest of its computation's text, of which everything after it is a function of an
    unchanged compiler.
    """
    schedule, emit = default.schedule_with_steps, kernels.emit

    def schedule_once(computation, machine, constants, name, on_broken):
        key = name, machine
        return _made_once(_SCHEDULED, key, lambda: schedule(computation, machine, constants, name, on_broken))

    def emit_once(kernel: Kernel, target: Target, *, part: bool = False, polls: bool = False) -> Emitted:
        key = id(kernel), target, part, polls
        return _made_once(_TEXTS, key, lambda: (kernel, emit(kernel, target, part=part, polls=polls)))[1]

    patched = (
        mock.patch.object(default, "schedule_with_steps", schedule_once),
        mock.patch.multiple(kernels, emit=emit_once, compile_text=_compiled_once),
        mock.patch.object(assemble, "compile_text", _compiled_once),
    )
    with patched[0], patched[1], patched[2]:
        yield


_compiled_once = functools.lru_cache(KEPT)(kernels.compile_text)
