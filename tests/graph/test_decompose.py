"""Decomposition leaves only ops that kernels are made of, each equal to what it replaces."""

import numpy as np
import pytest

from graph.showing import assert_same, graph_of, n_of
from tilewright import ops
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import tensor_type_of
from tilewright.graph.decompose import DECOMPOSABLE, Decompose


@pytest.mark.parametrize("op", DECOMPOSABLE, ids=lambda op: op.name)
def test_every_composite_by_its_samples(op):
    for sample in op.samples(np.random.default_rng(1)):
        b = Builder(Pool())
        inputs = [b.pool.input(f"x{k}", tensor_type_of(a)) for k, a in enumerate(sample.arrays)]
        outputs = b.results(b(op, *inputs, **sample.attrs))
        before = Graph("g", b.pool, tuple(inputs), outputs, tuple(f"out{k}" for k in range(len(outputs))))
        after = Decompose().run(before)
        assert all(n.op.decompose is None for n in after.nodes())
        assert [n.type for n in after.outputs] == [n.type for n in outputs]


def test_keep():
    before = graph_of(lambda b, x: b(ops.gelu, b(ops.silu, x)), "f32[4]")
    after = Decompose(keep=("gelu",)).run(before)
    assert n_of(after, ops.gelu) == 1
    assert n_of(after, ops.silu) == 0
    assert_same(before, after)
