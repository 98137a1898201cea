"""Rewrites of statement trees: what they leave as it is stays itself, for what is known of it is kept with it."""

from __future__ import annotations

import pytest
from benchmarks.computations import layer_norm, matmul, softmax

from tile.kernels import WIDE
from tilewright.choose.default import schedule_with_steps
from tilewright.core.compute import Computation, Load
from tilewright.core.expr import Sym
from tilewright.tile.ir import walk
from tilewright.tile.rewrite import places_of, rewrite_accesses, rewrite_values, substitute_body


@pytest.mark.parametrize(
    "computation", [softmax(5, 37), layer_norm(5, 37), matmul(5, 37, 9)], ids=["max", "mean", "dot"]
)
def test_statements_that_do_not_change_stay_themselves(computation: Computation) -> None:
    body = schedule_with_steps(computation, WIDE).kernel.body
    assert rewrite_accesses(body, lambda buffer, index: None) is body
    assert rewrite_values(body, lambda value: None) is body
    assert substitute_body(body, {Sym("elsewhere"): 1}) is body
    # Of a change in one statement only it and those around it are new.
    for buffer in {b for s in walk(body) for b, _ in places_of(s)}:
        moved = rewrite_accesses(body, lambda b, index, buffer=buffer: Load(b, index) if b is buffer else None)
        for old, new in zip(body, moved, strict=True):
            within = [b for s in walk([old]) for b, _ in places_of(s)]
            assert new == old and (new is old or buffer in within)
