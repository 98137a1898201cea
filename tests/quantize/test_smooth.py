"""SmoothQuant: an equal function, with operands whose outlier channels cost the others no precision."""

import numpy as np
import pytest

import tilewright as tw
from small_models import numbers
from tilewright import ops
from tilewright.core.diag import Loc, OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.graph.quantize.places import layers_of
from tilewright.graph.quantize.smooth import smoothable, smoothed
from tilewright.runtime.errors import InputError

pytestmark = pytest.mark.usefixtures("shared_kernels")
DEPTH, OUTLIER = 32, 5


def two_readers():
    """A norm whose result two products read, and its rows; the gain makes one channel large."""
    gain = np.ones(DEPTH, np.float32)
    gain[OUTLIER] = 80
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (Sym("n", 1), DEPTH)), Loc("x"))
    y = b.at(Loc("norm"))(ops.layer_norm, x, b.const(gain), b.const(numbers(DEPTH, seed=4)), axis=1, epsilon=1e-5)
    heads = [b.at(Loc(f"product {k}"))(ops.matmul, y, b.const(numbers(DEPTH, 16, seed=k))) for k in range(2)]
    return Graph("heads", b.pool, (x,), (*heads, y), ("first", "second", "rows"))


def test_the_function_is_the_same():
    graph, x = two_readers(), numbers(9, DEPTH)
    layers = smoothable(layers_of(graph)[0])
    (operand,) = {layer.node.inputs[0] for layer in layers}
    peaks = np.abs(evaluate_graph(graph, [x])[2]).max(0)
    peaks[7] = 0  # as of a channel that no datum reaches
    after = smoothed(graph, layers, {operand: peaks}, 0.5)
    for a, b in zip(evaluate_graph(graph, [x]), evaluate_graph(after, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_an_outlier_channel_costs_the_others_no_precision(mode):
    graph, x = two_readers(), numbers(256, DEPTH)
    plain, smooth = (tw.quantize(graph, x, mode=mode, smooth=s).report.layers for s in (None, 0.5))
    for a, b in zip(plain, smooth, strict=True):
        assert b.sqnr_db > a.sqnr_db + 3
    wanted = evaluate_graph(graph, [x])
    found = tw.compile(tw.quantize(graph, x, mode=mode, smooth=0.5), cache=False)(x)
    for a, b in zip(wanted, found, strict=True):
        assert np.square(a - np.asarray(b)).sum() < 1e-3 * np.square(a).sum()


@pytest.mark.parametrize("smooth", [0, 1, -0.5, float("nan"), "a"])
def test_an_exponent_lies_between_0_and_1(smooth):
    with pytest.raises(OptionError, match="between 0 and 1"):
        tw.quantize(two_readers(), numbers(8, DEPTH), smooth=smooth)


def test_data_that_are_empty_or_not_finite_are_refused():
    with pytest.raises(InputError, match="empty"):
        tw.quantize(two_readers(), iter(()), smooth=0.5)
    x = numbers(8, DEPTH)
    x[3] = np.inf
    with pytest.raises(InputError, match="not finite"):
        tw.quantize(two_readers(), x, smooth=0.5)
