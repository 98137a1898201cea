"""Schedules that the price takes: the least one of all candidates, for the machine whose numbers it goes by."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks import computations

import small_models
import tilewright as tw
from tilewright.choose.candidates import candidates
from tilewright.choose.cheapest import cheapest
from tilewright.choose.cost.price import DOUBT, price_of
from tilewright.choose.default import schedule_with_steps
from tilewright.core.compute import Computation
from tilewright.core.expr import Sym
from tilewright.target.target import Target

ZEN = replace(Target.parse("znver3"), n_cores=1)
SLOW_MEMORY = replace(ZEN, memory_gb_per_s=0.5, memory_gb_per_s_all=0.5, l2_bytes_per_cycle=1.0)


def constants(c: Computation) -> list[object]:
    return [b for b in c.inputs if b.name in ("B", "W", "bias")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("machine", [ZEN, SLOW_MEMORY], ids=["as it is", "slow memory"])
@pytest.mark.parametrize("shape", [(64, 384, 1536), (512, 512, 64), (3, 100, 77), (128, 1024, 1024)])
def test_no_candidate_is_cheaper_by_more_than_a_price_is_in_doubt(shape, machine):
    c = computations.matmul(*shape)
    made = list(candidates(c, ZEN, constants(c)))
    taken = price_of(cheapest(iter(made), machine).kernel, machine).seconds
    prices = [price_of(x.scheduled.kernel, machine).seconds for x in made]
    assert taken <= prices[0] and taken * (1 - DOUBT) <= min(prices)


def test_what_is_taken_follows_the_numbers_of_the_machine():
    shapes = [(64, 384, 1536), (128, 1024, 1024), (256, 2048, 512), (512, 512, 64)]

    of = [computations.matmul(*s) for s in shapes]
    made = [list(candidates(c, ZEN, constants(c))) for c in of]

    def taken(machine: Target) -> list[object]:
        return [cheapest(iter(x), machine).schedule for x in made]

    assert taken(ZEN) == taken(ZEN)
    assert taken(ZEN) != taken(SLOW_MEMORY)


def test_sizes_of_a_call_keep_the_default_and_no_other_schedule_is_made():
    c = computations.matmul(Sym("n", 1), 256, 128)

    def only_first():
        yield next(candidates(c, ZEN, constants(c)))
        raise AssertionError("a second candidate was made")

    assert cheapest(only_first(), ZEN).schedule == schedule_with_steps(c, ZEN, constants(c)).schedule


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (small_models.perceptron, (7, 64)),
        pytest.param(small_models.convnet, (2, 3, 64, 64), marks=pytest.mark.slow),
    ],
)
def test_a_model_whose_schedules_are_chosen_by_price_computes_the_same(net, shape):
    by_rules, by_price = (tw.compile(net(), optimize=k, cache=False) for k in (2, 3))
    x = small_models.numbers(*shape)
    np.testing.assert_allclose(by_price(x), by_rules(x), rtol=1e-4, atol=1e-5)
    assert by_price.report()["options"]["optimize"] == 3
