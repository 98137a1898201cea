"""Histograms of streamed numbers, and the ranges and integers that follow from them."""

import numpy as np
import pytest

from tilewright.core.types import i8, u8
from tilewright.graph.quantize.encoding import Range, encoding_of, weights_of
from tilewright.graph.quantize.observe import OBSERVERS, Histogram


def seen(*batches):
    found = Histogram()
    for batch in batches:
        found.add(np.asarray(batch, np.float32))
    return found


def test_batches_of_any_order_and_size_give_one_histogram():
    x = np.random.default_rng(0).standard_normal(10_000)
    x[0] = 8  # the limit at once in one order, and last in the other
    grown, whole = seen(x[:0:-1], x[:1]), seen(x)
    assert (grown.n, grown.low, grown.high) == (whole.n, whole.low, whole.high)
    assert grown.counts.sum() == x.size
    coarse = np.add.reduceat(whole.counts, np.arange(0, whole.counts.size, 64))
    step = whole.limit / 1024 * 64
    expected = np.histogram(x, np.arange(-16, 17) * step)[0]
    np.testing.assert_array_equal(coarse, expected)


def test_merged_histograms_count_what_both_have_seen():
    a, b = seen([1.0, 2.0]), seen([-5.0])
    a.merge(b)
    assert (a.n, a.low, a.high, a.counts.sum()) == (3, -5, 2, 3)


@pytest.mark.parametrize("dtype", [u8, i8])
@pytest.mark.parametrize("covered", [Range(-1, 3), Range(2, 3), Range(-3, -2), Range(0, 0)])
def test_an_encoding_has_an_integer_for_zero(covered, dtype):
    found = encoding_of(covered, dtype)
    assert found.rounded(np.zeros(1)) == 0
    ends = np.array([min(covered.low, 0), max(covered.high, 0)])
    assert np.abs(found.rounded(ends) - ends).max() <= found.scale


def test_observers_leave_out_an_outlier():
    x = np.random.default_rng(0).standard_normal(100_000)
    x[0] = 50
    widths = {name: observer(seen(x), i8).high for name, observer in OBSERVERS.items()}
    assert widths["minmax"] == 50
    assert widths["mse"] < 50
    assert max(widths["percentile"], widths["entropy"]) < 10
    found = seen(x)
    assert found.outside(Range(-6, 6)) == pytest.approx(1e-5)
    assert found.outside(Range(-60, 60)) == 0


def test_weights_have_a_scale_for_each_channel_and_fewer_bits_where_asked():
    w = np.array([[1.0, -100.0], [0.5, 50.0]], np.float32)
    np.testing.assert_array_equal(weights_of(w, 1).numbers, [[127, -127], [64, 64]])
    np.testing.assert_array_equal(weights_of(w, None).numbers, [[1, -127], [1, 64]])
    assert np.abs(weights_of(w, 1, bits=7).numbers).max() == 63
    np.testing.assert_array_equal(weights_of(np.zeros((2, 2), np.float32), 1).scale, [1, 1])
