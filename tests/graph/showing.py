"""Graphs as one-line expressions, for before/after tests of passes."""

from dataclasses import replace

import numpy as np

from tilewright import ops
from tilewright.build.passes import FormPrices
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import CONST, INPUT, PROJ, Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, dtype_named
from tilewright.core.verify import verify
from tilewright.graph.pipeline import passes_for
from tilewright.target.target import Target

WIDE = replace(Target.parse("x86-64-v4"), n_cores=1)
"""The same on every host: what costs least depends on how many threads share it."""


def typed(text):
    """``f32[2,3]`` as a type."""
    dtype, _, dims = text.rstrip("]").partition("[")
    return TensorType(dtype_named(dtype), tuple(int(d) for d in dims.split(",") if d))


def graph_of(build, *types):
    """A graph over inputs x, y, z, ... of the given types, whose outputs ``build(builder, *inputs)`` makes."""
    b = Builder(Pool())
    inputs = [b.pool.input("xyzuvw"[k], typed(t) if isinstance(t, str) else t) for k, t in enumerate(types)]
    made = build(b, *inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    return Graph("g", b.pool, tuple(inputs), outputs, tuple(f"out{k}" for k in range(len(outputs))))


def show(graph):
    return "; ".join(_shown(n) for n in graph.outputs)


def _shown(n):
    if n.op is INPUT:
        return n.attrs["name"]
    if n.op is CONST:
        a = n.attrs["data"].array
        return str(a.item()) if a.size == 1 and a.ndim == 0 else f"{n.type}"
    if n.op is PROJ:
        return f"{_shown(n.inputs[0])}.{n.attrs['index']}"
    attrs = [f"{k}={v}" for k, v in n.attrs.items() if v != n.op.attrs[k].default]
    return f"{n.op.name}({', '.join([*map(_shown, n.inputs), *attrs])})".replace(",)", ")")


def random_inputs(graph, seed=0, low=-3.0):
    rng = np.random.default_rng(seed)
    arrays = []
    for n in graph.inputs:
        shape = [d if isinstance(d, int) else 3 for d in n.shape]
        if n.dtype.is_float:
            arrays.append(rng.uniform(low, 3, shape).astype(n.dtype.numpy))
        else:
            arrays.append(rng.integers(0, 2 if n.dtype.name == "bool" else 5, shape).astype(n.dtype.numpy))
    return arrays


def assert_same(before, after, *, rtol=1e-5, atol=1e-6, seed=0, low=-3.0):
    """Equal by the interpreter, in types too, and a graph that keeps the spec."""
    verify(after)
    assert [n.type for n in before.outputs] == [n.type for n in after.outputs]
    arrays = random_inputs(before, seed, low)
    with np.errstate(all="ignore"):
        pairs = zip(evaluate_graph(before, arrays), evaluate_graph(after, arrays), strict=True)
        for x, y in pairs:
            if x.dtype.kind in "iub":
                np.testing.assert_array_equal(x, y)
            else:
                np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=rtol, atol=atol)


def optimised(graph):
    """The graph behind all passes for a wide machine, forms chosen by price."""
    return run_pipeline(graph, FormPrices.on(WIDE).given_to(passes_for(2, target=WIDE)))


def n_of(graph, op):
    return sum(n.op is op for n in graph.nodes())


__all__ = ["assert_same", "graph_of", "n_of", "ops", "show", "typed"]
