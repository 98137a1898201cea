"""Images with a border that windows slide over are brought strip by strip where no near cache keeps the whole."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import check_default, convolution
from tilewright.target.target import Target
from tilewright.tile.ir import Space

SMALL = replace(Target.parse("znver3"), n_cores=1, l1_bytes=256, set_span=64, l2_bytes=4 << 10, llc_bytes=16 << 10)


@pytest.mark.parametrize(("l2_bytes", "space"), [(4 << 10, Space.LOCAL), (1 << 20, Space.GLOBAL)])
def test_a_ring_of_rows_holds_what_windows_read(l2_bytes, space):
    machine = replace(SMALL, l2_bytes=l2_bytes)
    kernel = check_default(convolution((2, 14, 14, 4), 8, (3, 3), 2, 1), machine=machine)
    (image,) = [p for p in kernel.places if "pad" in p.buffer.name]
    assert image.space is space
    assert space is Space.GLOBAL or image.buffer.shape[0] == 3


@pytest.mark.one_in(3)
@given(
    batch=st.integers(1, 2), side=st.integers(9, 13), channels=st.sampled_from([4, 8]), out=st.sampled_from([4, 8]),
    taps=st.sampled_from([2, 3]), stride=st.integers(1, 3), pad=st.integers(1, 2), groups=st.sampled_from([1, 2]),
    dilation=st.integers(1, 2), n_cores=st.sampled_from([1, 8]),
)  # fmt: skip
@settings(max_examples=5)
def test_any_window(batch, side, channels, out, taps, stride, pad, groups, dilation, n_cores):
    computation = convolution((batch, side, side, channels), out, (taps, taps), stride, pad, groups, dilation)
    check_default(computation, machine=replace(SMALL, n_cores=n_cores))
