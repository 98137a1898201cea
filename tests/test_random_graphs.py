"""Random graphs as native code, at every level and for every instruction set, against the reference interpreter.

A failure names its seed: reproduce it with ``random_graph(seed, n_ops, wide=...)`` or ``contraction(seed)``, shrink it
by hand, and leave the smallest graph that still fails in ``test_regressions.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from contractions import contraction
from graphs import RandomGraph, random_graph
from tilewright.driver import compile_graph
from tilewright.tile.default import RULE_BROKE

WAYS = (
    {"optimize": 2, "target": "native"},
    {"optimize": 0, "target": "x86-64"},
    {"optimize": 1, "target": "native"},
    {"optimize": 2, "target": "x86-64-v3"},
    {"optimize": 0, "target": "native"},
    {"optimize": 2, "target": "x86-64"},
    {"optimize": 1, "target": "x86-64-v3"},
)
QUICK, FUZZ, BLOCK = 300, 20_000, 20
SEED_OF_QUICK = 1_000_000  # apart from the seeds that `make fuzz` draws


def check(seed: int, n_ops: int, **how: object) -> None:
    run(random_graph(seed, n_ops, wide=seed % 2 == 0), **how)


def run(case: RandomGraph, **how: object) -> None:
    """Native code is close to the reference, and no scheduling rule made a mistake."""
    model = compile_graph(case.graph, threads=1 + case.seed % 2, **how)
    notes = [n for kernel in model.report()["kernels"] for n in kernel["notes"]]
    assert not [n for n in notes if RULE_BROKE in n], f"random graph {case.seed}"
    result = model(*case.arrays)
    got = result if isinstance(result, tuple) else (result,)
    case.assert_close([np.asarray(g) for g in got])


@pytest.mark.parametrize("block", range(QUICK // BLOCK))
def test_small_graphs(block: int) -> None:
    """Each graph one way, all ways in turn."""
    for k in range(BLOCK * block, BLOCK * (block + 1)):
        check(SEED_OF_QUICK + k, 2 + k % 5, **WAYS[k % len(WAYS)])


@pytest.mark.parametrize("block", range(5))
def test_products_and_convolutions(block: int) -> None:
    for k in range(BLOCK * block, BLOCK * (block + 1)):
        run(contraction(SEED_OF_QUICK + k), **WAYS[k // 2 % len(WAYS)])


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(FUZZ // BLOCK))
def test_graphs_by_the_thousand(block: int) -> None:
    for k in range(BLOCK * block, BLOCK * (block + 1)):
        check(k, 2 + k % 17, **WAYS[k % len(WAYS)])


@pytest.mark.fuzz
@pytest.mark.parametrize("block", range(FUZZ // BLOCK // 4))
def test_products_and_convolutions_by_the_thousand(block: int) -> None:
    for k in range(BLOCK * block, BLOCK * (block + 1)):
        run(contraction(k), **WAYS[k // 2 % len(WAYS)])
