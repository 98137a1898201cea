"""Schedules near a given one: they differ, are legal, and compute the same."""

from itertools import islice
from random import Random

import numpy as np

from tile.kernels import arrays_of, elementwise, matmul
from tilewright.choose.default import schedule_by, schedule_with_steps
from tilewright.choose.mutations import FACTORS, mutations
from tilewright.target.target import Target
from tilewright.tile.interp import run
from tilewright.tile.schedule.book import Line

AVX2 = Target.parse("x86-64-v3")


def near(computation, n, seed=0):
    default = schedule_with_steps(computation, AVX2, (), "k").schedule
    found = mutations(computation, AVX2, (), "k", default, Random(seed))
    return default, [made.schedule for made in islice(found, n)]


def test_they_differ_by_factors_alone():
    default, found = near(matmul(12, 40, 9), 6)
    assert len({default, *found}) == len(found) + 1 > 3
    for made in found:
        changed = [(a, b) for a, b in zip(default.steps, made.steps, strict=True) if a != b]
        assert changed and all(a.primitive == b.primitive in FACTORS and a.args[0] == b.args[0] for a, b in changed)


def test_they_compute_the_same():
    computation = matmul(6, 20, 5)
    default, found = near(computation, 4)
    results = []
    for made in (default, *found):
        kernel = schedule_by(computation, AVX2, (), "k", [Line(0, s) for s in made.steps]).kernel
        results.append(run(kernel, arrays_of(computation, {}))[computation.outputs[0].name])
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-5)


def test_one_seed_gives_one_order_and_the_end_is_reached():
    assert near(matmul(12, 40, 9), 5, seed=3) == near(matmul(12, 40, 9), 5, seed=3)
    assert len(near(elementwise((3,)), 1000)[1]) < 1000
