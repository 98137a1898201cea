"""The price of kernels: what it adds up, and that it follows the machine's numbers."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks import computations

from tilewright.choose.candidates import candidates
from tilewright.choose.cost.price import FITTED, RESOURCES, price_of
from tilewright.choose.default import schedule, schedule_with_steps
from tilewright.core.compute import Computation
from tilewright.core.expr import Sym
from tilewright.core.types import Array
from tilewright.target.target import Target
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel
from tilewright.tile.pack import packed_array

ZEN = Target.parse("znver3")


def product(m: int, n: int, k: int) -> Computation:
    return computations.matmul(m, n, k)


def constants(c: Computation) -> list[object]:
    return [b for b in c.inputs if b.name in ("B", "W", "bias")]


def test_a_price_is_more_than_its_dearest_resource_and_less_than_all_of_them():
    c = product(128, 256, 512)
    price = price_of(schedule(c, ZEN, constants(c)), ZEN)
    assert set(price.by_resource) == set(RESOURCES)
    assert max(price.by_resource.values()) <= price.seconds <= sum(price.by_resource.values()) * 1.1
    assert price.bound == "arithmetic"


@pytest.mark.parametrize(
    ("numbers", "resource"),
    [
        ({"fma_ports": 1}, "arithmetic"), ({"load_ports": 1}, "loads"), ({"fma_latency": 40}, "chains"),
        ({"l1_bytes": 4096}, "L2"), ({"l2_bytes_per_cycle": 1.0}, "L2"), ({"n_vector_registers": 6}, "stores"),
        ({"issue_width": 1.0}, "issue"),
    ],
)  # fmt: skip
def test_a_slower_machine_costs_more_of_what_it_lacks(numbers, resource):
    c = product(128, 256, 512)
    kernel = schedule(c, ZEN, constants(c))
    now, then = price_of(kernel, ZEN), price_of(kernel, replace(ZEN, **numbers))
    assert then.by_resource[resource] > now.by_resource[resource]
    assert then.seconds > now.seconds


def test_threads_share_what_lies_in_parallel_loops_and_cost_a_fork():
    c = product(512, 512, 512)
    kernel = schedule(c, replace(ZEN, n_cores=2), constants(c))
    one, two = (price_of(kernel, ZEN, n_threads=n) for n in (1, 2))
    assert 0.5 < two.seconds / one.seconds < 0.6
    assert two.by_resource["forks"] > 0 == one.by_resource["forks"]


def test_a_price_is_a_function_of_sizes():
    n = Sym("n", 1, None)
    kernel = schedule(computations.softmax(n, 256), ZEN)
    seconds = [price_of(kernel, ZEN, {n: k}).seconds for k in (1, 10, 100, 1000)]
    assert seconds == sorted(seconds)
    assert 9 < seconds[3] / seconds[2] < 20  # a thousand rows leave the first-level cache


def test_coefficients_can_be_others():
    c = product(1, 64, 64)
    kernel = schedule(c, ZEN, constants(c))
    assert price_of(kernel, ZEN, coefficients=replace(FITTED, call=1e6)).seconds > 1e6 / (ZEN.ghz * 1e9)


@pytest.mark.parametrize(
    "c",
    [computations.convolution((1, 9, 9, 6), 10, (3, 3), 1, 1), product(9, 30, 20), computations.softmax(7, 33)],
    ids=["convolution", "product", "softmax"],
)
def test_candidates_differ_and_all_compute_the_same(c):
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.standard_normal([int(str(d)) for d in b.shape]).astype(np.float32) for b in c.inputs}
    found = list(candidates(c, ZEN, constants(c)))
    assert found[0].made == "default"
    assert len({x.scheduled.schedule for x in found}) == len(found) > 1
    results = [computed(x.scheduled.kernel, arrays)[c.outputs[0].name] for x in found]
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=1e-4, atol=1e-5)


def computed(kernel: Kernel, arrays: dict[str, Array]) -> dict[str, Array]:
    packed = {p.param.name: packed_array(p, arrays[p.source.name]) for p in kernel.packed}
    outputs = {b.name: np.zeros([int(str(d)) for d in b.shape], b.dtype.numpy) for b in kernel.params}
    return run(kernel, outputs | arrays | packed)


def test_a_strategy_may_come_first():
    """Each cluster says by what it could be scheduled; any of these can be asked for, and the rest stay behind it."""
    c = computations.softmax(7, 33)
    (tried,) = schedule_with_steps(c, ZEN).tried
    assert tried.taken in tried.strategies
    others = [s for s in tried.strategies if s != tried.taken]
    found = [schedule_with_steps(c, ZEN, first={tried.root: s}).tried[0] for s in others]
    assert any(t.taken != tried.taken for t in found)
