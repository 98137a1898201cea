"""Random graphs as native code, at every level and for every instruction set, against the reference interpreter.

``make fuzz`` runs the suite of which this is a part (``fuzz_graphs``) 20,000 seeds long. A failure names its seed:
reproduce it with ``fuzz_graphs.check(seed)``, shrink it by hand, and leave the smallest graph that still fails in
``test_regressions.py``.
"""

from __future__ import annotations

import pytest

from fuzz_graphs import LEVELS, check
from graphs import random_graph
from tilewright import ops
from tilewright.core.types import DTYPES

QUICK, BLOCK = 140, 10
SEED_OF_QUICK = 1_000_000  # apart from the seeds that `make fuzz` draws


@pytest.mark.one_in(24)
@pytest.mark.parametrize("block", range(QUICK // BLOCK))
def test_random_graphs(block: int) -> None:
    for k in range(BLOCK * block, BLOCK * (block + 1)):
        check(SEED_OF_QUICK + k, LEVELS)


@pytest.mark.slow
def test_the_generator_reaches_every_op_and_dtype() -> None:
    missing_ops, missing_dtypes = set(ops.ALL), set(DTYPES)
    for seed in range(6000):
        nodes = random_graph(seed, 8).graph.nodes()
        missing_ops -= {n.op for n in nodes}
        missing_dtypes -= {t.dtype for n in nodes for t in n.types}
        if not missing_ops and not missing_dtypes:
            break
    assert not missing_ops and not missing_dtypes
