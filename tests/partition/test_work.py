"""How much of a kernel's work no schedule leaves out."""

import pytest

from tile.kernels import ZERO, F, convolution, matmul
from tilewright.core.compute import Binary, Buffer, Computation, Inside, Select, Stage, axes_for, syms
from tilewright.partition.work import surely_done


@pytest.mark.parametrize(("pad", "dilation"), [(0, 1), (1, 1), (2, 2), (3, 1)])
def test_taps_outside_of_an_image_may_be_left_out(pad, dilation):
    n, k = 9, 3
    out = n + 2 * pad - dilation * (k - 1)
    inside = sum(0 <= i + dilation * t - pad < n for i in range(out) for t in range(k))
    found = surely_done(convolution((1, n, n, 4), 8, (k, k), pad=pad, dilation=dilation))
    assert found == pytest.approx((inside / (out * k)) ** 2)


def test_what_has_no_condition_is_done_and_what_hangs_on_data_may_not_be():
    assert surely_done(matmul(5, 6, 7)) == 1.0
    x, y, axes = Buffer("X", F, (9,)), Buffer("Y", F, (9,)), axes_for((9,))
    value = Select(Binary("gt", x[syms(axes)], ZERO), x[syms(axes)], ZERO)
    assert surely_done(Computation((x,), (y,), (Stage((y,), axes, syms(axes), (value,)),))) == 0.0


def test_of_two_sides_that_compute_a_point_needs_one():
    x, y, axes = Buffer("X", F, (10,)), Buffer("Y", F, (10,)), axes_for((10,))
    (i,) = syms(axes)
    value = Select(Inside((i - 1,)), x[i], x[i] * x[i] * x[i])
    assert surely_done(Computation((x,), (y,), (Stage((y,), axes, (i,), (value,)),))) == pytest.approx(0.1)
