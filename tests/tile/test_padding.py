"""Padded copies: in which order they lie; taps that lie in the padding are left out where that pays."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SMALL, WIDE, F, check_default, convolution
from tilewright import ops
from tilewright.choose.default import schedule
from tilewright.choose.normalize import normalize
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


def planes(channels: int, size: int, n_out: int = 3, width: int = 3) -> Computation:
    """A convolution of three rows of taps with its channels before the pixels."""
    shapes = ((1, channels, size, size), (n_out, channels, 3, width), (1, n_out, size, size))
    x, w, y = (Buffer(name, F, shape) for name, shape in zip("XWY", shapes, strict=True))
    pads = ((1, 1), (width // 2, width // 2))
    attrs = {"strides": (1, 1), "pads": pads, "dilations": (1, 1), "layout": "NCHW", "groups": 1}
    return Computation((x, w), (y,), ops.conv.compute((x, w), (y,), Attrs(attrs)))


@pytest.mark.parametrize(("channels", "size", "are_together"), [(96, 34, True), (48, 34, False), (96, 16, False)])
def test_rows_of_more_planes_than_a_core_knows_pages_lie_together(channels: int, size: int, are_together: bool):
    computation = planes(channels, size)
    (copy,) = normalize(computation, WIDE, [computation.inputs[1]]).temps
    width = size + 2
    assert copy.shape == ((1, width, channels, width) if are_together else (1, channels, width, width))


def test_rows_that_are_one_axis_with_their_columns_stay_so():
    computation = planes(96, 34, width=1)
    (copy,) = normalize(computation, WIDE, [computation.inputs[1]]).temps
    assert copy.shape == (1, 96, 36 * 34)


@settings(max_examples=4)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4))
def test_planes_whose_rows_lie_together_give_what_the_plain_loops_give(channels: int, size: int, n_out: int):
    machine = replace(WIDE, n_near_pages=1, page_bytes=4)
    check_default(planes(channels, size, n_out), "W", machine=machine)


def test_a_single_result_reads_padding_on_a_machine_without_masks():
    check_default(planes(3, 1, 1), "W", machine=replace(WIDE, has_masks=False))


def test_it_asks_for_rows_of_one_axis():
    for rows, taps, is_asked in ((5, 7, True), (5, 1, False), (200, 3, False)):
        computation = columns_alone(rows, 112, taps, (taps // 2, taps // 2), 64, 16)
        assert bool(n_asked(schedule(computation, WIDE, [computation.inputs[1]]))) is is_asked


def test_it_asks_for_rows_that_tiles_of_the_copy_do_not_divide():
    """A row of 33 columns and 32 channels is eight tiles and a quarter."""
    computation = columns_alone(5, 33, 7, (3, 3), 32, 16)
    assert n_asked(schedule(computation, WIDE, [computation.inputs[1]]))


def test_sizes_known_at_run_time():
    """How much of them is padding isn't known, so nothing is asked."""
    computation = convolution((1, Sym("H"), Sym("V"), 16), 8, (3, 3), pad=1)
    for h, w in ((1, 1), (5, 7)):
        check_default(computation, sizes={"H": h, "V": w})
