"""The pass ``project-ahead``: which scans take the next layer's projection, and that the results stay the same."""

import numpy as np
import pytest

from graph.showing import assert_same, graph_of
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32, f64
from tilewright.graph.forms.ahead import ProjectAhead, most_weights
from tilewright.graph.pipeline import passes_for
from tilewright.target.target import Target

WIDE = Target.parse("x86-64-v4")

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def net(name="lstm", *, steps=40, batch=1, hidden=64, dtype=f32, n_dirs=2, widths=(256, 256), before_reset=True):
    """Scans over one sequence, side by side, and the products of their results by constants."""
    rng = np.random.default_rng(3)

    def draw(*shape):
        return (rng.standard_normal(shape) / np.sqrt(hidden)).astype(dtype.numpy)

    def build(b, x):
        states = [b.const(draw(batch, hidden)) for _ in range(2 if name == "lstm" else 1)]
        more = [b.const(draw(hidden))] if name == "gru" else []
        attrs = {"linear_before_reset": before_reset} if name == "gru" else {}
        scan, ys = ops.by_name(f"{name}_scan"), []
        for reverse in (False, True)[:n_dirs]:
            rt = b.const(draw(hidden, GATES[name] * hidden))
            ys.append(b.results(b(scan, x, rt, *states, *more, reverse=reverse, **attrs))[0])
        apart = [b(ops.reshape, y, shape=(steps, 1, batch, hidden)) for y in ys]
        rows = b(ops.reshape, b(ops.concat, *apart, axis=1), shape=(steps * batch, n_dirs * hidden))
        products = [b(ops.matmul, rows, b.const(draw(n_dirs * hidden, n))) for n in widths]
        return products[0] if len(products) == 1 else b(ops.concat, *products, axis=1)

    return graph_of(build, TensorType(dtype, (steps, batch, GATES[name] * hidden)))


def blocks_of(graph, **options):
    after = ProjectAhead(**options).run(graph)
    assert (after is graph) == all(not n.attrs.get("behind") for n in after.nodes())
    return [n.attrs["behind"] for n in after.nodes() if n.op.name.endswith("_scan")]


@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize("lanes, registers, steps", [(4, 16, 4), (4, 32, 8), (16, 32, 8)])
def test_scans_project_for_the_next_layer(name, lanes, registers, steps):
    graph = net(name, hidden=128, widths=(128 * GATES[name],) * 2)
    after = ProjectAhead(lanes, registers=registers).run(graph)
    assert blocks_of(graph, lanes=lanes, registers=registers) == [steps] * 2
    assert all(n.op is not ops.matmul for n in after.nodes())
    assert_same(graph, after, rtol=1e-4, atol=1e-4)


def test_with_more_cores_two_directions_run_side_by_side_instead():
    graph = net()
    assert ProjectAhead(16, n_cores=2).run(graph) is graph
    graph = net(n_dirs=1)
    assert ProjectAhead(16, n_cores=2).run(graph) is not graph


def test_a_length_may_be_symbolic():
    assert blocks_of(net(steps=Sym("T", 1))) == [8, 8]


@pytest.mark.parametrize(
    "given",
    [
        {"batch": 2},
        {"steps": 8},
        {"dtype": f64},
        {"hidden": 32},
        {"hidden": 512, "widths": (2048, 2048, 2048, 2048)},
        {"widths": (20,)},
        {"name": "gru", "before_reset": False, "widths": (192,)},
    ],
)
def test_it_leaves(given):
    assert not any(blocks_of(net(**given)))


def test_machines_that_multiply_fast_do_so_beside_weights_in_the_second_level_cache():
    targets = [Target.parse(name).judged() for name in ("x86-64-v3", "znver4", "znver5")]
    assert [t.multiplies for t in targets] == [16, 16, 32]
    assert [most_weights(t) for t in targets] == [1 << 20, 1 << 22, 1 << 18]
    graph = net(hidden=128, widths=(512, 512))  # 0.25 MB and, of each direction, 0.5 MB
    assert ProjectAhead(16, most=3 << 16).run(graph) is not graph
    assert ProjectAhead(16, most=(3 << 16) - 1).run(graph) is graph


def test_it_is_for_machines_with_vectors_and_plain_products():
    assert any(isinstance(p, ProjectAhead) for p in passes_for(2, target=WIDE))
    assert not any(isinstance(p, ProjectAhead) for p in (*passes_for(2), *passes_for(2, target=WIDE, per_lane=2)))
