"""What the innermost of several vector loops does not enter is loaded once, also where a call's size cuts lanes off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.showing import graph_of
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph
from tilewright.core.types import DType, TensorType, f16, i16, u8

N = Sym("n", 1)


def beside(dtype: DType, width: int) -> Graph:
    """Two columns of ``n`` elements, each repeated or computed from the other: rows of ``width``."""

    def make(b: Any, x: Any, y: Any) -> Any:
        columns = [b(ops.add, x, y) if k % 2 else b(ops.mul, x, y) for k in range(width)]
        return b(ops.concat, *(b(ops.reshape, c, shape=(N, 1)) for c in (x, *columns)), axis=1)

    return graph_of(make, TensorType(dtype, (N,)), TensorType(dtype, (N,)))


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64"])
def test_no_gather_of_what_a_machine_does_not_gather(target: str) -> None:
    options = Options(target=target)
    made = optimise_and_split(beside(u8, 2), options, options.machine, Clock())
    assert not [text for text in made.kernels.texts().values() if "masked.gather" in text]


@pytest.mark.parametrize("dtype", [u8, i16, f16], ids=str)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_every_size_has_its_tail(dtype: DType, width: int) -> None:
    graph = beside(dtype, width)
    model = compile_graph(graph, threads=1)
    for n in (1, 2, 31, 63, 64, 65, 190, 300):
        x, y = np.random.default_rng(n).integers(0, 9, (2, n)).astype(dtype.numpy)
        (want,) = evaluate_graph(graph, [x, y])
        np.testing.assert_array_equal(model(x, y), want)
