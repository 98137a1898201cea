"""The pass ``fourier-blocks``: as many signals side by side as a vector and a line want, for each machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    def turned(b, x):
        return b(ops.transpose, b(ops.fourier, x, n=64, sign=-1), perm=(1, 2, 0))

    made = FourierBlocks(l1_bytes=16 << 10).run(graph_of(turned, TensorType(f32, (64, 64, 2))))
    assert [n.attrs["part"] for n in made.nodes() if n.op is ops.fourier] == [0]


@pytest.mark.parametrize(("form", "n", "kept"), [("complex", 64, 64), ("real", 64, 33), ("real", 256, 144)])
def test_rows_of_an_image_go_in_parts_before_its_columns(form, n, kept) -> None:
    """Longer ones of real numbers leave more than one half, so that the columns' vectors lie within lines."""

    def both_axes(b, x):
        if form == "complex":  # the columns come first here
            x = b(ops.transpose, b(ops.fourier, b(ops.transpose, x, perm=(1, 0, 2)), n=48, sign=-1), perm=(1, 0, 2))
            return b(ops.fourier, x, n=n, sign=-1)
        rows = b(ops.fourier, x, n=n, sign=-1, form="real")
        turned = b(ops.fourier, b(ops.transpose, rows, perm=(1, 0, 2)), n=48, sign=-1)
        return b(ops.transpose, turned, perm=(1, 0, 2))

    shape = (48, n, 2) if form == "complex" else (48, n)
    made = FourierBlocks(l1_bytes=n << 8).run(graph_of(both_axes, TensorType(f32, shape)))
    (rows,) = [n for n in made.nodes() if n.op is ops.map_parts]
    assert rows.attrs["n_parts"] == 3
    assert rows.shape == (48, 2, kept)  # parts of numbers apart, as the columns' passes read them
    (columns,) = [n for n in made.nodes() if n.op is ops.fourier]
    assert columns.attrs["inner"] == 1
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = np.fft.fft2(x[..., 0] + 1j * x[..., 1]) if form == "complex" else np.fft.rfft2(x)
    (found,) = evaluate_graph(Decompose(("fourier_pass",)).run(made), [x])
    assert np.abs(found[..., 0] + 1j * found[..., 1] - want).max() <= 1e-6 * np.abs(want).max()


def test_a_transform_along_an_axis_is_one_where_that_axis_lies() -> None:
    turn = (0, 3, 2, 1, 4)

    def along(b, x):
        return b(ops.transpose, b(ops.fourier, b(ops.transpose, x, perm=turn), n=12, sign=-1), perm=turn)

    graph = graph_of(along, TensorType(f32, (2, 12, 3, 5, 2)))
    made = FourierBlocks().run(graph)
    (node,) = [n for n in made.nodes() if n.inputs]
    assert node.op is ops.fourier and node.attrs["inner"] == 2
    x = np.random.default_rng(0).standard_normal((2, 12, 3, 5, 2)).astype(np.float32)
    (want,) = evaluate_graph(graph, [x])
    for found in (made, Decompose(("fourier_pass",)).run(made)):
        np.testing.assert_allclose(evaluate_graph(found, [x])[0], want, rtol=1e-5, atol=1e-5)


def test_few_numbers_behind_an_axis_are_no_lanes() -> None:
    def along(b, x):
        turned = b(ops.fourier, b(ops.transpose, x, perm=(0, 2, 1, 3)), n=12, sign=-1)
        return b(ops.transpose, turned, perm=(0, 2, 1, 3))

    made = FourierBlocks().run(graph_of(along, TensorType(f32, (4, 12, 3, 2))))
    assert [n.attrs["inner"] for n in made.nodes() if n.op is ops.fourier] == [0]


@pytest.mark.one_in(2)
@given(
    outer=st.lists(st.sampled_from([1, 2, 3, 5, 6]), max_size=3),
    image=st.lists(st.sampled_from([16, 18, 20, 33]), min_size=2, max_size=2),
    is_solid=st.booleans(),
    form=st.sampled_from(["complex", "real", "hermitian"]),
    is_wide=st.booleans(),
    l1_bytes=st.sampled_from([1 << 10, 1 << 15, 1 << 18]),
)
@settings(max_examples=25)
def test_images_go_through_the_transforms_of_all_axes(outer, image, is_solid, form, is_wide, l1_bytes) -> None:
    """Of two or three axes: the last one is of any form, the others are complex."""
    image = [3, *image] if is_solid else image
    dtype, rank, n = f64 if is_wide else f32, len(outer) + len(image), image[-1]
    stored = {"complex": (n, 2), "real": (n,), "hermitian": (n // 2 + 1, 2)}[form]

    def others(b, x):
        for axis in range(len(outer), rank - 1):
            perm = (*(k for k in range(rank) if k != axis), axis, rank)
            back = tuple(perm.index(k) for k in range(rank + 1))
            turned = b(ops.fourier, b(ops.transpose, x, perm=perm), n=image[axis - len(outer)], sign=1)
            x = b(ops.transpose, turned, perm=back)
        return x

    def all_axes(b, x):
        if form == "hermitian":
            return b(ops.fourier, others(b, x), n=n, sign=1, form=form)
        return others(b, b(ops.fourier, x, n=n, sign=1, form=form))

    graph = graph_of(all_axes, TensorType(dtype, (*outer, *image[:-1], *stored)))
    made = FourierBlocks(l1_bytes=l1_bytes, n_cores=2, wake_cycles=10).run(graph)
    x = np.random.default_rng(n).standard_normal(graph.inputs[0].shape).astype(dtype.numpy)
    axes = tuple(range(len(outer), rank))
    z = x.astype(np.float64) if form == "real" else x[..., 0] + 1j * x[..., 1].astype(np.float64)
    if form == "hermitian":
        want = np.fft.irfftn(z, image, axes, norm="forward")
    else:
        z = np.fft.ifftn(z, axes=axes, norm="forward")[..., : stored[0] if form == "complex" else n // 2 + 1]
        want = np.stack([z.real, z.imag], -1)
    limit = (2e-6 if dtype is f32 else 1e-14) * np.abs(want).max()
    for found in (made, Decompose(("fourier_pass",)).run(made)):
        assert np.abs(evaluate_graph(found, [x])[0] - want).max() <= limit


def test_images_are_cut_where_several_are_left() -> None:
    def both_axes(b, x):
        y = b(ops.fourier, x, n=32, sign=-1, form="real")
        perm = (0, 1, 3, 2, 4)
        return b(ops.transpose, b(ops.fourier, b(ops.transpose, y, perm=perm), n=16, sign=-1), perm=perm)

    graph = graph_of(both_axes, TensorType(f32, (3, 4, 16, 32)))
    found = {}
    for images in (0, 2, 4, 12):
        n_bytes = images * 4 * 16 * 17 * 2 * 4  # before a pass, behind it, and what comes and goes
        nodes = FourierBlocks(l1_bytes=n_bytes, n_cores=4, wake_cycles=100).run(graph).nodes()
        found[images] = [(n.attrs["n_parts"], n.attrs["n_threads"]) for n in nodes if n.op is ops.map_parts]
    # Threads take parts where there is one for each of them, else they share each.
    assert found == {0: [(12, 4)], 2: [(6, 4)], 4: [(3, 1)], 12: [(2, 1)]}


def test_images_of_any_number_are_cut() -> None:
    """Damaged files state such sizes; trying each number up to them would not end."""
    graph = graph_of(lambda b, x: b(ops.fourier, x, n=16, sign=-1, inner=1), TensorType(f32, (2**61 - 1, 16, 8, 2)))
    (made,) = FourierBlocks().run(graph).outputs
    assert made.shape == graph.outputs[0].shape


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
