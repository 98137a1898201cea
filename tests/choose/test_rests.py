"""Products whose number of rows a call brings: right for every number, and few rows read the weights once."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from benchmarks import computations
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.choose.cost.features import features_of
from tilewright.choose.default import schedule_with_steps
from tilewright.choose.strategies.contract_plan import _rests
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel

ROWS = Sym("rows", 1)


def product(target: Target, columns: int) -> Kernel:
    """Any number of rows by 64 rows of weights."""
    computation = computations.matmul(ROWS, columns, 64)
    return schedule_with_steps(computation, target, [b for b in computation.inputs if b.name == "B"]).kernel


@pytest.mark.parametrize("target", ["haswell", "x86-64-v4"])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5])
def test_a_few_rows_read_the_weights_once(target: str, n_rows: int) -> None:
    machine = Target.parse(target)
    found = features_of(product(machine, 128), machine, {ROWS: n_rows})
    multiplied = found.total("multiply")
    read = sum(r.counts.get("load", 0.0) * r.iterations for r in found.rows if r.counts.get("multiply"))
    weights, rows = 64 * 128 / (machine.vector_bytes / 4), multiplied / n_rows
    assert multiplied == pytest.approx(n_rows * weights)
    assert read < 1.6 * rows + n_rows * 64 * 8  # each vector of weights once, and each row's element for each block


@pytest.mark.one_in(4)
@pytest.mark.parametrize("target", ["haswell", "x86-64-v4"])
@pytest.mark.parametrize("columns", [64, 96, 128, 384])
@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_chains_of_few_rows_are_not_waited_for(target: str, columns: int, n_rows: int) -> None:
    """A step of the reduction has as many sums as keep the units busy for as long as one sum takes, or half of them."""
    machine = Target.parse(target)
    found = features_of(product(machine, columns), machine, {ROWS: n_rows})
    sums = max(r.counts.get("multiply", 0.0) for r in found.rows if r.iterations > 1)
    there = n_rows * columns / (machine.vector_bytes / 4)
    assert sums >= min(machine.fma_latency * machine.fmas_per_cycle, there) / 2


@pytest.mark.parametrize("columns", [32, 64, 96, 128, 160, 384])
def test_weights_are_packed_once_for_every_number_of_rows(columns: int) -> None:
    for target in ("haswell", "x86-64-v4"):
        assert len(product(Target.parse(target), columns).packed) == 1


@pytest.mark.parametrize("n_threads", [1, 2])
def test_every_number_of_rows_is_right(n_threads: int) -> None:
    """Two layers whose tiles leave every rest, with lanes that fill no vector."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 13)))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rests",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 13])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    compiled = tw.compile(model, threads=n_threads, cache=False)
    for n_rows in range(1, 41):
        x = rng.standard_normal((n_rows, 24)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), np.maximum(x @ first, 0) @ second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n_rows", [1, 2, 5, 15, 17, 33])
def test_tiles_of_every_number_of_rows_share_what_a_cache_holds(n_rows: int) -> None:
    """Weights larger than the second-level cache come from behind it once, not once for each tile of rows."""
    machine = Target.parse("x86-64-v4")
    computation = computations.matmul(ROWS, 2048, 512)
    kernel = schedule_with_steps(computation, machine, [b for b in computation.inputs if b.name == "B"]).kernel
    weights = 4 * 512 * 2048
    assert weights > machine.l2_bytes
    assert features_of(kernel, machine, {ROWS: n_rows}).moved(1) < 1.3 * weights + 4 * n_rows * 3 * 2048


def test_rests_of_equal_products_are_looked_for_once() -> None:
    """The tries grow with the rows of a tile to the fourth power, and a model has many equal products."""
    _rests.cache_clear()
    for columns in (128, 128, 128):
        product(Target.parse("x86-64-v4"), columns)
    found = _rests.cache_info()
    assert 0 < found.misses <= found.hits


@given(st.lists(st.floats(1, 9), min_size=1, max_size=9).map(tuple))
def test_rests_are_the_best_of_all_tries(cycles: tuple[float, ...]) -> None:
    """A try that is given up early was no better than one before it."""

    def over_own(sizes: tuple[int, ...]) -> list[float]:
        done = [0.0]
        for rows in range(1, len(cycles) + 1):
            size = max(n for n in (*sizes, 1) if n <= rows)
            done.append(cycles[size - 1] + done[rows - size])
        return [tiles / own for tiles, own in zip(done[1:], cycles, strict=True)]

    found = _rests.__wrapped__(cycles)
    tries = combinations(range(len(cycles), 1, -1), len(found))
    assert found == min(tries, key=lambda sizes: (max(over_own(sizes)), sum(over_own(sizes))))
