"""Recurrent layers at sizes whose weights exceed a cache: right, vectors everywhere, the same bits on any threads."""

from dataclasses import replace

import numpy as np
import pytest

from codegen.native import innermost_loops
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.build.options import Options
from tilewright.build.passes import graph_passes
from tilewright.build.texts import kernel_texts
from tilewright.choose.default import schedule_with_steps
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Store, walk

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def weights(name, hidden, n_inputs, n_dirs):
    rng = np.random.default_rng(5)
    n = GATES[name] * hidden
    shapes = [(n_dirs, n, n_inputs), (n_dirs, n, hidden), (n_dirs, 2 * n)]
    return [(rng.standard_normal(s) / np.sqrt(hidden)).astype(np.float32) for s in shapes]


def graph_of(name, hidden, n_inputs, batch, direction, length=None, **attrs):
    """A layer whose weights are constants; its number of steps is known at run time unless ``length`` is given."""
    n_dirs = 2 if direction == "bidirectional" else 1
    pool = Pool()
    b = Builder(pool)
    x = pool.input("x", TensorType(types.f32, (length or Sym("T", 1), batch, n_inputs)))
    states = [pool.const(np.zeros((n_dirs, batch, hidden), np.float32)) for _ in range(2 if name == "lstm" else 1)]
    fixed = [pool.const(w) for w in weights(name, hidden, n_inputs, n_dirs)]
    results = b.results(b(ops.by_name(name), x, *fixed, *states, hidden=hidden, direction=direction, **attrs))
    return Graph(name, pool, (x,), results, tuple(f"y{k}" for k in range(len(results))))


def layer(name, hidden, n_inputs, batch, direction, threads, **options):
    """The layer, compiled."""
    return compile_graph(graph_of(name, hidden, n_inputs, batch, direction), threads=threads, **options)


def reference(name, x, hidden, direction):
    n_dirs, (_, batch, n_inputs) = (2 if direction == "bidirectional" else 1), x.shape
    op = ops.by_name(name)
    states = [np.zeros((n_dirs, batch, hidden), np.float32)] * (2 if name == "lstm" else 1)
    attrs = Attrs(op.complete_attrs({"hidden": hidden, "direction": direction}))
    return op.reference([x, *weights(name, hidden, n_inputs, n_dirs), *states], attrs)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize(("batch", "direction"), [(1, "forward"), (8, "reverse"), (3, "bidirectional")])
def test_any_number_of_steps_and_threads(name, batch, direction):
    one, two = (layer(name, 208, 20, batch, direction, threads) for threads in (1, 2))
    for n_steps in (1, 6, 37):
        x = np.random.default_rng(n_steps).standard_normal((n_steps, batch, 20)).astype(np.float32)
        got = one(x)
        for a, b, want in zip(got, two(x), reference(name, x, 208, direction), strict=True):
            np.testing.assert_allclose(a, want, rtol=1e-4, atol=1e-5)
            assert a.tobytes() == b.tobytes()


@pytest.mark.one_in(20)
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize(("hidden", "batch", "direction"), [(101, 3, "bidirectional"), (208, 1, "forward")])
def test_recurrent_weights_in_bf16(target, name, hidden, batch, direction):
    """Products read the state in bf16 as well; sums, cells and states stay in f32."""
    options = {"precision": "bf16", "target": target}
    one, two = (layer(name, hidden, 20, batch, direction, threads, **options) for threads in (1, 2))
    x = np.random.default_rng(3).standard_normal((17, batch, 20)).astype(np.float32)
    for a, b, want in zip(one(x), two(x), reference(name, x, hidden, direction), strict=True):
        np.testing.assert_allclose(a, want, rtol=0, atol=0.02 * np.abs(want).max())
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("attrs", [{"linear_before_reset": True}, {}], ids=["at once", "one after the other"])
def test_matrix_registers_take_what_sums_begin_with(attrs):
    """Of PyTorch's GRU that is a bias for one gate and the inputs' part for the others: computed, so not a load."""
    options = Options(target="sapphirerapids-amx", precision="bf16")
    graph = run_pipeline(graph_of("gru", 32, 4, 16, "reverse", 3, **attrs), graph_passes(options, options.machine))
    _, text = kernel_texts(graph, options, "llvm", "gru_scan")
    assert "llvm.x86.tdpbf16ps" in text


def scan(hidden, behind=0, panel=0, batch=1):
    """The recurrence of one LSTM layer, scheduled for one core with AVX-512, and its steps."""
    f, n_steps = types.f32, 5 * behind or 9
    weights = (hidden // panel, hidden, 4 * panel) if panel else (hidden, 4 * hidden)
    shapes = [(n_steps, batch, 4 * hidden), weights, (batch, hidden), (batch, hidden), (hidden, 4 * hidden)]
    ins = tuple(Buffer(f"x{k}", f, s) for k, s in enumerate(shapes))[: 5 if behind else 4]
    results = [(n_steps, batch, hidden), (batch, hidden), (batch, hidden), (n_steps, batch, 4 * hidden)]
    results = results[: 4 if behind else 3]
    outs = tuple(Buffer(f"y{k}", f, s) for k, s in enumerate(results))
    op = ops.by_name("lstm_scan")
    items = tuple(op.kernel(ins, outs, Attrs(op.complete_attrs({"behind": behind, "panel": panel}))))
    temps = dict.fromkeys(b for s in stages_of(items) for b in s.outs if b not in outs)
    computation = Computation(ins, outs, items, tuple(temps))
    machine = replace(Target.parse("x86-64-v4"), n_cores=1)
    return schedule_with_steps(computation, machine, constants=(ins[1], *ins[4:]))


def stages_of(items):
    for x in items:
        yield from stages_of(x.body) if hasattr(x, "body") else (x,)


def test_states_are_updated_in_vectors():
    kernel = scan(64).kernel
    plain = [s for s in walk(kernel.body) if isinstance(s, For) and any(isinstance(x, Store) for x in s.body)]
    assert plain and all(s.loop.kind is Kind.VECTOR for s in plain)


@pytest.mark.parametrize(("hidden", "alternates"), [(32, False), (64, True), (128, False), (512, True)])
def test_weights_that_exceed_the_cache_are_walked_back_and_forth(hidden, alternates):
    """The first level keeps 16 KB, a part of 64 KB, little of 256 KB, which the second keeps, and a part of 4 MB."""
    steps = [s.primitive for s in scan(hidden).schedule.steps]
    assert ("alternate" in steps) == alternates


def test_tiles_of_every_number_of_rows_walk_shared_panels_back_and_forth():
    """All of them are in one loop over panels, which turns once, with the loops over the panels of a group."""
    steps = [str(s) for s in scan(512, batch=Sym("batch", 1)).schedule.steps if s.primitive == "alternate"]
    assert steps and len(steps) == len(set(steps))


def test_weights_walked_back_and_forth_in_one_of_two_nests_are_packed_once():
    made = scan(512, behind=8)
    assert "alternate" in [s.primitive for s in made.schedule.steps]
    assert sorted(p.source.name for p in made.kernel.packed) == ["x1", "x4"]


def test_weights_in_panels_stay_as_they_lie_and_are_asked_for_ahead():
    """Seven nests read them: packed for each there would be as many copies, and a pass would find none in a cache."""
    made = scan(512, panel=16)
    assert not made.kernel.packed
    assert [s.primitive for s in made.schedule.steps].count("stream") == 7
    assert "stream" not in [s.primitive for s in scan(128, panel=16).schedule.steps]  # the second level has them all


def layers(name, hidden, n_inputs, batch, target, threads):
    """Two layers of two directions each, over a sequence whose length is known at run time."""
    pool = Pool()
    b = Builder(pool)
    t = Sym("T", 1)
    x = rows = pool.input("x", TensorType(types.f32, (t, batch, n_inputs)))
    for width in (n_inputs, 2 * hidden):
        states = [pool.const(np.zeros((2, batch, hidden), np.float32)) for _ in range(2 if name == "lstm" else 1)]
        fixed = [pool.const(w) for w in weights(name, hidden, width, 2)]
        more = {"linear_before_reset": True} if name == "gru" else {}
        op = ops.by_name(name)
        y = b.results(b(op, rows, *fixed, *states, hidden=hidden, direction="bidirectional", **more))[0]
        rows = b(ops.reshape, b(ops.transpose, y, perm=(0, 2, 1, 3)), shape=(t, batch, 2 * hidden))
    graph = Graph(name, pool, (x,), (rows,), ("y",))
    return graph, compile_graph(graph, threads=threads, target=target)


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", list(GATES))
@pytest.mark.parametrize("target", ["native", "haswell", "x86-64"])
def test_layers_that_project_ahead(name, target):
    (graph, one), (_, two) = (layers(name, 128, 20, 1, target, threads) for threads in (1, 2))
    for n_steps in (1, 8, 15, 16, 37):
        x = np.random.default_rng(n_steps).standard_normal((n_steps, 1, 20)).astype(np.float32)
        got, (want,) = one(x), evaluate_graph(graph, [x])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert got.tobytes() == two(x).tobytes()


@pytest.mark.parametrize("hidden", [96, 100, 257])
def test_the_sums_of_a_step_stay_in_registers(hidden):
    """What the cell needs, constants of exp and tanh above all, must not drive them out: a step has one of each loop,
    and LLVM takes them for equally frequent unless told.
    """
    options = Options(target="x86-64-v4")
    graph = graph_of("gru", hidden, 96, 3, "forward", 37, linear_before_reset=True)
    graph = run_pipeline(graph, graph_passes(options, options.machine))
    _, text = kernel_texts(graph, options, "asm", "gru_scan")
    loops = [x for x in innermost_loops(text) if sum("vfmadd" in line and "zmm" in line for line in x) >= 12]
    products = [x for x in loops if not any("vrndscale" in line or "vdivps" in line for line in x)]
    assert products and not any("(%rsp" in line and "mm" in line for x in products for line in x)
