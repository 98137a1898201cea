"""The pass ``fourier-blocks``: as many signals side by side as a vector and a line want, for each machine."""

import numpy as np
import pytest

from graph.showing import graph_of
from tilewright import ops
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.types import TensorType, f32, f64
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
