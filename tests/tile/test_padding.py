"""Taps of windows that lie in the padding are left out where that is a part worth asking for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SMALL, WIDE, F, check_default, convolution
from tilewright import ops
from tilewright.choose.default import schedule
from tilewright.core.compute import Buffer, Computation
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs
from tilewright.tile.ir import If, Kernel, walk


def n_asked(kernel: Kernel) -> int:
    return sum(isinstance(s, If) for s in walk(kernel.body))


@settings(max_examples=6)
@given(st.integers(3, 7), st.integers(1, 4), st.integers(0, 4), st.integers(1, 2), st.booleans())
def test_any_padding_gives_what_the_plain_loops_give(size: int, dilation: int, pad: int, stride: int, wide: bool):
    pad = max(pad, -(-(2 * dilation + 1 - size) // 2))
    computation = convolution((1, size, size, 16), 8, (3, 3), stride, pad, dilation=dilation)
    check_default(computation, "W", machine=WIDE if wide else SMALL)


@pytest.mark.parametrize(
    ("size", "pad", "dilation", "is_asked"),
    [(7, 4, 4, True), (7, 1, 1, True), (8, 0, 1, False), (70, 1, 1, False)],
)  # fmt: skip
def test_it_asks_where_that_pays(size: int, pad: int, dilation: int, is_asked: bool):
    computation = convolution((1, size, size, 32), 32, (3, 3), pad=pad, dilation=dilation)
    assert bool(n_asked(schedule(computation, WIDE, [computation.inputs[1]]))) is is_asked


def columns_alone(
    rows: int, columns: int, taps: int, pads: tuple[int, int], channels: int = 16, n_out: int = 8
) -> Computation:
    """A convolution of ``taps`` below each other: rows and columns of pixels become one axis."""
    out = rows + sum(pads) - taps + 1
    x, w = Buffer("X", F, (1, rows, columns, channels)), Buffer("W", F, (n_out, channels, taps, 1))
    y = Buffer("Y", F, (1, out, columns, n_out))
    attrs = {"strides": (1, 1), "pads": (pads, (0, 0)), "dilations": (1, 1), "layout": "NHWC", "groups": 1}
    return Computation((x, w), (y,), ops.conv.compute((x, w), (y,), Attrs(attrs)))


@settings(max_examples=6)
@given(st.integers(2, 6), st.integers(1, 9), st.integers(2, 7), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_rows_and_columns_as_one_axis(rows: int, columns: int, taps: int, lo: int, hi: int, wide: bool):
    lo = max(lo, taps - rows - hi)
    check_default(columns_alone(rows, columns, taps, (lo, hi)), "W", machine=WIDE if wide else SMALL)


def test_it_asks_for_rows_of_one_axis():
    for rows, taps, is_asked in ((5, 7, True), (5, 1, False), (200, 3, False)):
        computation = columns_alone(rows, 112, taps, (taps // 2, taps // 2), 64, 16)
        assert bool(n_asked(schedule(computation, WIDE, [computation.inputs[1]]))) is is_asked


def test_sizes_known_at_run_time():
    """How much of them is padding isn't known, so nothing is asked."""
    computation = convolution((1, Sym("H"), Sym("V"), 16), 8, (3, 3), pad=1)
    for h, w in ((1, 1), (5, 7)):
        check_default(computation, sizes={"H": h, "V": w})
