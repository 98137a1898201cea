"""The pass ``fourier-blocks``: as many signals side by side as a vector and a line want, for each machine."""

import numpy as np
import pytest

from graph.showing import graph_of
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32, f64
from tilewright.graph.decompose import Decompose
from tilewright.graph.forms.fourier import FourierBlocks
from tilewright.target.target import Target


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("target", "dtype", "block"),
    [("x86-64-v4", f32, 16), ("x86-64-v3", f32, 8), ("x86-64", f32, 8), ("x86-64-v4", f64, 8), ("x86-64-v3", f64, 4)],
)
def test_a_line_holds_both_parts_of_what_a_vector_takes(target, dtype, block) -> None:
    graph = graph_of(lambda b, x: b(ops.fourier, x, n=12, sign=-1), TensorType(dtype, (32, 12, 2)))
    made = FourierBlocks.on(Target.parse(target)).run(graph)
    assert made.outputs[0].attrs["block"] == block
    x = np.random.default_rng(0).standard_normal((32, 12, 2)).astype(dtype.numpy)
    (found,) = evaluate_graph(made, [x])
    want = np.fft.fft(x[..., 0] + 1j * x[..., 1])
    np.testing.assert_allclose(found, np.stack([want.real, want.imag], -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["complex", "real", "hermitian"])
def test_a_cache_full_of_signals_goes_through_all_passes(form) -> None:
    shape = {"complex": (64, 2), "real": (64,), "hermitian": (33, 2)}[form]
    graph = graph_of(lambda b, x: b(ops.fourier, x, n=64, sign=-1, form=form), TensorType(f32, (4, 24, *shape)))
    signal = 2 * 4 * 64 * (2 if form == "complex" else 1)  # bytes before a pass and behind it
    found = {}
    for signals in (8, 64):
        made = FourierBlocks(l1_bytes=signals * signal, n_cores=2, wake_cycles=100).run(graph)
        (node,) = [node for node in made.nodes() if node.op is ops.fourier]
        found[signals] = (node.attrs["part"], node.attrs["n_threads"], node.attrs["by_rows"])
    # Two blocks of 16 fit twice; or not one, and then a few rows where they have elements enough for vectors, or one.
    assert found == {8: (4, 2, True) if form == "complex" else (16, 2, False), 64: (32, 2, False)}
    passes = Decompose(("fourier_pass",)).run(made)
    (parts,) = [node for node in passes.nodes() if node.op is ops.map_parts]
    assert parts.attrs["n_parts"] == 3
    x = np.random.default_rng(0).standard_normal((4, 24, *shape)).astype(np.float32)
    (want,) = evaluate_graph(graph, [x])
    np.testing.assert_allclose(evaluate_graph(passes, [x])[0], want, rtol=1e-5, atol=1e-5)


def test_what_is_turned_over_anyway_stays_whole() -> None:
    def both_axes(b, x):
        y = b(ops.fourier, x, n=64, sign=-1)
        turned = b(ops.fourier, b(ops.transpose, y, perm=(1, 0, 2)), n=64, sign=-1)
        return b(ops.transpose, turned, perm=(1, 0, 2))

    made = FourierBlocks(l1_bytes=16 << 10).run(graph_of(both_axes, TensorType(f32, (64, 64, 2))))
    assert [n.attrs["part"] for n in made.nodes() if n.op is ops.fourier] == [0, 0]


def test_a_batch_that_the_cache_holds_and_one_that_a_call_knows_stay_whole() -> None:
    for batch in (32, Sym("n", 1)):
        graph = graph_of(lambda b, x: b(ops.fourier, x, n=12, sign=-1), TensorType(f32, (batch, 12, 2)))
        (node,) = [node for node in FourierBlocks().run(graph).nodes() if node.op is ops.fourier]
        assert node.attrs["part"] == 0


@pytest.mark.parametrize("form", ["complex", "real", "hermitian"])
@pytest.mark.parametrize(("batch", "n"), [(32, 12), (9, 12), (2, 240), (16, 2)])
def test_a_product_with_a_number_is_scaled_in_the_passes(form, batch, n) -> None:
    shape = {"complex": (n, 2), "real": (n,), "hermitian": (n // 2 + 1, 2)}[form]
    graph = graph_of(
        lambda b, x: b(ops.mul, b(ops.fourier, x, n=n, sign=1, form=form), b.const(1 / n, f32)),
        TensorType(f32, (batch, *shape)),
    )
    made = FourierBlocks().run(graph)
    assert [node.op for node in made.nodes() if node.inputs] == [ops.fourier]
    passes = Decompose(("fourier_pass",)).run(made)
    x = np.random.default_rng(0).standard_normal((batch, *shape)).astype(np.float32)
    (want,) = evaluate_graph(graph, [x])
    for found in (made, passes):
        np.testing.assert_allclose(evaluate_graph(found, [x])[0], want, rtol=1e-5, atol=1e-6)


def test_a_transform_that_is_read_twice_is_not_scaled() -> None:
    def double(b, x):
        y = b(ops.fourier, x, n=12, sign=-1)
        return b(ops.add, b(ops.mul, y, b.const(0.5, f32)), y)

    graph = graph_of(double, TensorType(f32, (32, 12, 2)))
    assert any(node.op is ops.mul for node in FourierBlocks().run(graph).nodes())
