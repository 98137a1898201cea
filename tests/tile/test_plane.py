"""Windows over planes: lanes along rows, planes padded one by one, in any stride that shuffles bring together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import Native
from tile.kernels import SMALL, WIDE, F, check_default
from tilewright import ops
from tilewright.choose.default import schedule, schedule_with_steps
from tilewright.codegen.cpu import llvm as codegen
from tilewright.core.compute import Buffer, Computation
from tilewright.core.graph import Attrs
from tilewright.ops.pool import pool_attrs
from tilewright.target.target import Target
from tilewright.tile.ir import Kind, Space
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule.tree import nest_of, writers


def depthwise(channels, size, kernel, stride=1, pad=0):
    """A depthwise convolution of images in N, C order."""
    return of_planes((1, channels), channels, size, kernel, stride, pad)


def of_planes(planes, channels, size, kernel, stride=1, pad=0):
    """A convolution of images in N, C order of which every channel reads one plane: its own, or the only one."""
    n = (size + 2 * pad - kernel) // stride + 1
    x, w = Buffer("X", F, (*planes, size, size)), Buffer("W", F, (channels, 1, kernel, kernel))
    y = Buffer("Y", F, (planes[0], channels, n, n))
    attrs = {"strides": (stride,) * 2, "pads": ((pad, pad),) * 2, "dilations": (1, 1), "layout": "NCHW"}
    return Computation((x, w), (y,), ops.conv.compute((x, w), (y,), Attrs({**attrs, "groups": planes[1]})))


def pool(channels, size, kernel, stride, pad=0):
    n = (size + 2 * pad - kernel) // stride + 1
    x, y = Buffer("X", F, (1, channels, size, size)), Buffer("Y", F, (1, channels, n, n))
    attrs = pool_attrs(2, kernel=kernel, strides=(stride,) * 2, pads=((pad, pad),) * 2, dilations=(1, 1))
    return Computation((x,), (y,), ops.max_pool.compute((x,), (y,), Attrs(attrs)))


@settings(max_examples=10)
@given(st.data())
def test_any_window_is_what_the_plain_loops_give(data):
    kernel, stride, pad = (data.draw(st.integers(*r)) for r in ((1, 4), (1, 4), (0, 2)))
    size, machine = data.draw(st.integers(kernel, 12)), data.draw(st.sampled_from([SMALL, WIDE]))
    channels = data.draw(st.integers(1, 3))
    check_default(depthwise(channels, size, kernel, stride, pad), "W", machine=machine)
    check_default(pool(channels, size, kernel, stride, pad), machine=machine)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_each_plane_is_padded_in_scratch(stride):
    computation = depthwise(24, 40, 3, stride, pad=1)
    kernel = schedule(computation, WIDE, [computation.inputs[1]])
    (padded,) = [p for p in kernel.places if p.buffer.name.startswith("X_pad")]
    assert padded.space is Space.LOCAL
    assert len(padded.buffer.shape) == 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_plane_that_all_channels_read_is_padded_once(batch):
    kernel = check_default(of_planes((batch, 1), 24, 40, 3, pad=1), "W", machine=WIDE)
    padded = next(p.buffer for p in kernel.places if p.buffer.name.startswith("X_pad"))
    home = kernel.body if batch == 1 else nest_of(kernel.body[0]).leaf
    (made,) = writers(home, padded)
    assert all(x.extent != 24 for x in nest_of(made).loops)


def test_rows_of_one_tile_read_each_row_of_a_plane_once():
    """Of seven taps and eight rows 14 vectors for each column of taps."""
    computation = depthwise(4, 30, 7)
    kernel = schedule(computation, WIDE, [computation.inputs[1]])
    text = codegen.emit_kernel(kernel, WIDE)
    assert text.count("llvm.fma") >= 2 * text.count("load <16 x float>") > 0


@settings(max_examples=10)
@given(st.integers(11, 40), st.sampled_from([2, 3, 5]), st.integers(1, 2))
def test_where_masks_cost_the_last_vector_begins_further_left(size, kernel, stride):
    computation = depthwise(2, size, kernel, stride)
    done = check_default(computation, "W", machine=Target.parse("x86-64-v3"))
    lanes = [x for x in loops_of(done.body) if x.kind is Kind.VECTOR]
    n = computation.outputs[0].shape[-1]
    assert all(x.extent == 8 for x in lanes) or n < 8


def test_planes_beyond_the_second_level_cache_are_padded_all_at_once():
    computation = depthwise(2, 300, 3, pad=1)
    kernel = schedule(computation, WIDE, [computation.inputs[1]])
    (padded,) = [p for p in kernel.places if p.buffer.name.startswith("X_pad")]
    assert padded.space is Space.GLOBAL


def test_rows_share_taps_and_lanes_are_columns():
    computation = depthwise(24, 30, 3)
    steps = schedule_with_steps(computation, WIDE, [computation.inputs[1]]).schedule.steps
    kinds = [s.args[1] for s in steps if s.primitive == "kind"]
    assert {"step", "unroll", "vector"} <= set(kinds)


@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3"])
def test_borders_of_strided_windows_gather_nothing(name):
    target = Target.parse(name)
    for size in (28, 56, 112):
        kernel = schedule(pool(4, size, 3, 2, pad=1), target)
        assert "gather" not in codegen.emit_kernel(kernel, target)
        x = np.random.default_rng(0).standard_normal((1, 4, size, size)).astype(np.float32)
        out = np.zeros((1, 4, size // 2, size // 2), np.float32)
        Native(kernel, target)(x, out)
        attrs = pool_attrs(2, kernel=3, strides=(2, 2), pads=((1, 1),) * 2, dilations=(1, 1))
        np.testing.assert_array_equal(out, ops.max_pool.reference((x,), Attrs(attrs)))


def test_channels_beside_unpadded_rows_are_no_taps():
    """Of windows of one row, rows are not padded, and one dimension with the channels that are summed."""
    x, w, y = Buffer("X", F, (1, 32, 28, 28)), Buffer("W", F, (24, 32, 1, 3)), Buffer("Y", F, (1, 24, 28, 28))
    attrs = {"strides": (1, 1), "pads": ((0, 0), (1, 1)), "dilations": (1, 1), "layout": "NCHW", "groups": 1}
    computation = Computation((x, w), (y,), ops.conv.compute((x, w), (y,), Attrs(attrs)))
    kernel = schedule(computation, WIDE, [w])
    (sums,) = [p for p in kernel.places if p.space is Space.REG]
    assert sums.buffer.shape == (12, 32), "output channels, which share vectors of a row"
    assert "gather" not in codegen.emit_kernel(kernel, WIDE)
