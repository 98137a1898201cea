"""The pass ``scan-panels``: which scans read each weight once for two steps, and that the results stay the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.showing import assert_same, graph_of
from graph.test_ahead import GATES, net
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32, f64
from tilewright.graph.forms.ahead import ProjectAhead
from tilewright.graph.forms.scan_panels import ScanPanels
from tilewright.graph.pipeline import passes_for
from tilewright.target.target import Target

WIDE = Target.parse("x86-64-v4")


def panels(graph, **options):
    after = ScanPanels(**options).run(graph)
    return [n.attrs["panel"] for n in after.nodes() if n.op.name.endswith("_scan")]


@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize(("lanes", "registers", "steps"), [(4, 16, 9), (4, 32, 9), (8, 16, 8), (16, 32, 41)])
def test_panels_give_the_same_results(name, lanes, registers, steps):
    hidden = {"lstm": 96, "gru": 128, "rnn": 256}[name]
    graph = net(name, hidden=hidden, steps=steps, widths=(16,))
    after = ScanPanels(lanes, registers=registers).run(graph)
    assert all(0 < n < hidden for n in panels(graph, lanes=lanes, registers=registers))
    assert_same(graph, after, rtol=1e-4, atol=1e-4)


def test_the_fewest_units_with_enough_sums_make_a_panel():
    assert panels(net(hidden=128)) == [16, 16]  # four gates, two steps: 8 vectors
    assert panels(net("gru", hidden=256)) == [32, 32]  # 12 vectors, where 16 units would be 6
    assert panels(net("gru", hidden=208)) == [26, 26]  # 78 columns of 80
    assert panels(net("rnn", hidden=256)) == [64, 64]
    assert panels(net(hidden=300)) == [20, 20]  # all gates of 20 units are five vectors
    assert panels(net("gru", hidden=300)) == [20, 20]  # 60 columns of 64
    assert panels(net(hidden=512, batch=2)) == [8, 8]  # four rows by two vectors
    assert panels(net(hidden=128, steps=Sym("T", 1))) == [16, 16]
    assert panels(net(hidden=257)) == [20, 20]  # 13 of them, of 260 units
    assert panels(net("gru", hidden=257)) == [37, 37]  # 7 of them, 111 columns of 112
    assert panels(net("gru", hidden=134)) == [20, 20]  # 7 of them, of 140 units


@pytest.mark.parametrize(
    "given",
    [
        {"hidden": 64}, {"name": "rnn", "hidden": 211}, {"hidden": 128, "batch": 2},
        {"hidden": 512, "batch": 4}, {"hidden": 128, "steps": 1}, {"hidden": 128, "dtype": f64},
        {"name": "gru", "hidden": 128, "before_reset": False},
    ],
)  # fmt: skip
def test_it_leaves(given):
    assert not any(panels(net(**given)))


SAFE = {"lstm": ("HardSigmoid", "Softsign", "Sigmoid"), "gru": ("HardSigmoid", "ScaledTanh"), "rnn": ("Sigmoid",)}
UNSAFE = {"lstm": ("Sigmoid", "Sigmoid", "Tanh"), "gru": ("Sigmoid", "HardSigmoid"), "rnn": ("Relu",)}


@pytest.mark.parametrize("name", list(GATES))
def test_units_of_zeros_must_stay_bounded_and_so_must_all_others(name):
    assert all(panels(layer(name, activations=SAFE[name])))
    assert not any(panels(layer(name, activations=UNSAFE[name])))


@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize("attrs", [{}, {"activations": SAFE}, {"clip": 0.3, "reverse": True}])
@pytest.mark.parametrize("how", ["product", "input", "twice"])
def test_units_of_zeros_change_no_result(name, attrs, how):
    graph = layer(name, how, **{k: v[name] if k == "activations" else v for k, v in attrs.items()})
    after = ScanPanels().run(graph)
    (scan,) = [n for n in after.nodes() if n.op.name.endswith("_scan")]
    assert scan.attrs["panel"] and scan.inputs[2].shape[1] > 409 - 278 * (name != "rnn")
    products = [n for n in after.nodes() if n.op is ops.matmul]
    wide = scan.inputs[0].shape[2]
    assert [n.shape[1] == wide for n in products] == {"product": [True], "input": [], "twice": [False]}[how]
    assert_same(graph, after, rtol=1e-4, atol=1e-5)


def layer(name, how="product", steps=7, inputs=5, **attrs):
    """A scan of a prime number of units with run-time states, whose input a product makes alone, or which comes in."""
    hidden, gates = 409 if name == "rnn" else 131, GATES[name]
    rng = np.random.default_rng(3)

    def draw(*shape):
        return (rng.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32)

    def build(b, x, *states):
        more = [b.const(draw(hidden))] if name == "gru" else [b.const(draw(3 * hidden))] if name == "lstm" else []
        product = x
        if how != "input":
            made = b(ops.add, b(ops.matmul, x, b.const(draw(inputs, gates * hidden))), b.const(draw(gates * hidden)))
            product = b(ops.reshape, made, shape=(steps, 1, gates * hidden))
        before = {"linear_before_reset": True} if name == "gru" else {}
        rt = b.const(draw(hidden, gates * hidden))
        results = b.results(b(ops.by_name(f"{name}_scan"), product, rt, *states, *more, **before, **attrs))
        return (*results, product) if how == "twice" else tuple(results)

    x = TensorType(f32, (steps, 1, gates * hidden) if how == "input" else (steps, inputs))
    return graph_of(build, x, *[TensorType(f32, (1, hidden))] * (2 if name == "lstm" else 1))


def test_a_core_that_multiplies_slowly_has_weights_from_beyond_its_cache():
    assert not any(panels(net(hidden=128), lanes=8, registers=16, multiplies=16))
    assert all(panels(net(hidden=256), lanes=8, registers=16, multiplies=16))
    assert not any(panels(net(hidden=512, batch=2), lanes=8, registers=16, multiplies=16))


def test_many_cores_share_a_large_scan_that_runs_alone():
    assert not any(panels(net(hidden=256, n_dirs=1), n_cores=4))
    assert all(panels(net(hidden=256, n_dirs=1), n_cores=2))
    assert all(panels(net(hidden=128, n_dirs=1), n_cores=4))
    assert not any(panels(net("gru", hidden=256, n_dirs=1), n_cores=2))  # each core keeps its half in its cache
    assert all(panels(net("gru", hidden=256, n_dirs=2), n_cores=2))


@pytest.mark.parametrize("target, registers", [("aarch64", 32), ("x86-64-v3", 16), ("x86-64-v4", 32)])
def test_registers_are_the_machines_however_wide_they_are(target, registers):
    machine = Target.parse(target)
    assert ScanPanels.on(machine).registers == ProjectAhead.on(machine).registers == registers


def test_the_default_passes_put_it_before_projecting_ahead():
    names = [p.name for p in passes_for(2, target=WIDE)]
    assert names.index("scan-panels") < names.index("project-ahead")
    assert "scan-panels" not in [p.name for p in (*passes_for(2), *passes_for(2, target=WIDE, per_lane=2))]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize("how", ["product", "input"])
def test_native_code_without_units_of_zeros(name, how):
    graph = layer(name, how)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs]
    want = compile_graph(graph, optimize=1)(*arrays)
    for got, wanted in zip(compile_graph(graph)(*arrays), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)


def scan(name, rng, hidden, panel, n_rows, length, lanes, **attrs):
    """A scan in panels, and the same one without; ``length`` is the number of steps, or a symbol for it."""
    op = ops.by_name(f"{name}_scan")

    def draw(*shape):
        return (rng.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32)

    weights, states = draw(hidden, GATES[name] * hidden), [draw(n_rows, hidden) for _ in range(1 + (name == "lstm"))]
    more = [draw(hidden)] if name == "gru" else [draw(3 * hidden)] if name == "lstm" and attrs.pop("sees") else []
    attrs |= {"linear_before_reset": True} if name == "gru" else {}

    def built(laid, **how):
        def build(b, x):
            return b.results(b(op, x, b.const(laid), *map(b.const, (*states, *more)), **attrs, **how))

        return graph_of(build, TensorType(f32, (length, n_rows, GATES[name] * hidden)))

    return built(ops.recurrence.in_panels(weights, panel, lanes), panel=panel), built(weights)


@settings(max_examples=5)
@given(
    st.sampled_from(list(GATES)), st.sampled_from([(12, 3), (16, 4), (40, 8), (48, 16), (50, 10), (6, 6)]),
    st.integers(0, 7), st.integers(1, 3), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_native_code_computes_what_the_scan_does(name, sizes, n_steps, n_rows, reverse, is_symbolic, seed):
    rng = np.random.default_rng(seed)
    attrs = {"reverse": reverse, **({"sees": bool(seed % 2)} if name == "lstm" else {})}
    length, lanes = Sym("T", 0) if is_symbolic else n_steps, 1 + 15 * (seed % 3)
    one, other = (compile_graph(g) for g in scan(name, rng, *sizes, n_rows, length, lanes, **attrs))
    x = rng.standard_normal((n_steps, n_rows, GATES[name] * sizes[0])).astype(np.float32)
    for got, want in zip(one(x), other(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
