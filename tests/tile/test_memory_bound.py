"""Rows, transposes and sums on a GPU: every form of their kernels means the same, and memory is read once, in order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptx.threads import Threads
from tile.kernels import layer_norm, reduction, softmax, transpose
from tile.test_flatten import GPU, forms
from tile.test_simt import flat, observe
from tilewright.core.compute import Computation
from tilewright.core.types import DType, f64, i64
from tilewright.tile.ir import For, Kernel, Kind, Role, Space, Update, walk
from tilewright.tile.rewrite import loops_of


def spaces(kernel: Kernel) -> set[Space]:
    return {p.space for p in kernel.places if p.space is not Space.GLOBAL}


def exchanges(kernel: Kernel) -> int:
    """Loops of lanes around one update that all of them get."""
    loops = [s for s in walk(kernel.body) if isinstance(s, For) and s.loop.kind is Kind.WARP]
    return sum(len(s.body) == 1 and isinstance(s.body[0], Update) and s.loop.extent == 32 for s in loops)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("computation", [softmax(5, 40), softmax(2, 4096), softmax(1, 700), layer_norm(3, 96)])
def test_a_row_stays_in_registers(computation: Computation) -> None:
    kernel, taken = forms(computation)
    assert taken == ("rows",) and len(kernel.body) == 1
    assert spaces(kernel) <= {Space.REG, Space.SHARED} and exchanges(kernel) >= 2
    (warps,) = [x.extent for x in loops_of(kernel.body) if x.kind is Kind.THREAD]
    handed = [p.buffer.shape for p in kernel.places if p.space is Space.SHARED]  # what lanes have come to
    assert all(math.prod(shape) <= warps for shape in handed)
    seen = observe(flat(computation, GPU), computation, GPU)
    assert seen.faults == () and seen.traffic["X"].sectors <= 2 * seen.traffic["X"].least_sectors


def test_a_row_that_no_block_has_the_room_for_stays_in_memory() -> None:
    narrow = replace(GPU, sm_registers=8 << 10, max_block_shared_bytes=8 << 10, static_shared_bytes=8 << 10)
    kernel, taken = forms(softmax(1, 9_000), gpu=narrow)
    assert taken == ("rows",)
    assert any(p.space is Space.GLOBAL and p.role is Role.TMP for p in kernel.places)


@settings(max_examples=5)
@given(st.integers(1, 9), st.integers(1, 300))
def test_rows_of_all_sizes(m: int, n: int) -> None:
    forms(softmax(m, n))


@settings(max_examples=5)
@given(st.integers(2, 150), st.integers(2, 150))
def test_transposes_of_all_sizes(m: int, n: int) -> None:
    forms(transpose(m, n))


def test_a_transpose_moves_whole_sectors() -> None:
    computation = transpose(64, 128)
    kernel = flat(computation, GPU)
    seen = observe(kernel, computation, GPU)
    assert seen.faults == () and spaces(kernel) == {Space.SHARED}
    for name in ("X", "Y"):
        assert seen.traffic[name].sectors == seen.traffic[name].least_sectors
    (tile,) = [p.buffer.name for p in kernel.places if p.space is Space.SHARED]
    assert seen.traffic[tile].turns <= 2 * seen.traffic[tile].least_turns


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "computation, taken",
    [
        (reduction((4096, 40), 0, "add"), ("columns", "sums")), (reduction((4097, 33), 0, "max"), ("columns", "sums")),
        (reduction((100, 96), 0, "add"), ("columns",)), (reduction((300_000,), 0, "add"), ("rows", "rows")),
        (reduction((100_003,), 0, "max"), ("rows", "rows")), (reduction((3, 60_000), 1, "add"), ("rows", "sums")),
    ],
)  # fmt: skip
def test_long_sums_are_cut_into_parts(computation: Computation, taken: tuple[str, ...]) -> None:
    assert forms(computation)[1] == taken


@pytest.mark.parametrize("dtype", [f64, i64], ids=str)
def test_lanes_exchange_wide_elements_word_by_word(dtype: DType) -> None:
    computation = reduction((3, 100), 1, "add", dtype)
    kernel = flat(computation, GPU)
    x = np.arange(300).reshape(3, 100).astype(dtype.numpy) * 10_000_000_019
    y = np.zeros(3, dtype.numpy)
    Threads(kernel)({"X": x, "Y": y})
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-12)
