"""Copies that products read: a panel is transposed just before its rows are read, where that keeps it in the caches."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SMALL, WIDE, F, check_default
from tilewright import ops
from tilewright.choose.default import schedule
from tilewright.core.compute import Buffer, Computation, Stage, axes_for
from tilewright.core.graph import Attrs
from tilewright.tile.ir import Space


def turned(batch, rows, depth, columns):
    """``sum_k A[b, i, k] * B[b, j, k]``."""
    a, b = Buffer("A", F, (batch, rows, depth)), Buffer("B", F, (batch, columns, depth))
    b_t, y = Buffer("B_t", F, (batch, depth, columns)), Buffer("Y", F, (batch, rows, columns))
    axes = axes_for(b_t.shape)
    n, k, j = (x.sym for x in axes)
    stages = (
        Stage((b_t,), axes, (n, k, j), (b[n, j, k],)),
        *ops.matmul.compute((a, b_t), (y,), Attrs({"out_dtype": None})),
    )
    return Computation((a, b), (y,), stages, (b_t,))


def copy_of(computation, machine=WIDE):
    kernel = schedule(computation, machine)
    assert not kernel.notes
    (copy,) = [p for p in kernel.places if p.buffer.name.startswith("B_t")]
    return copy


@settings(max_examples=5)
@given(st.data())
def test_any_turned_product_is_what_the_plain_loops_give(data):
    batch, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(16, 20))
    depth, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(8, 40))
    machine = dataclasses.replace(data.draw(st.sampled_from([SMALL, WIDE])), l1_bytes=256)
    check_default(turned(batch, rows, depth, columns), machine=machine)


def test_a_panel_is_copied_where_it_is_read():
    copy = copy_of(turned(8, 32, 64, 256))
    assert copy.space is Space.LOCAL
    assert copy.buffer.shape[0] == 64
    assert copy.buffer.shape[1] < 256


def test_what_the_first_level_cache_holds_is_copied_as_a_whole():
    assert copy_of(turned(2, 32, 16, 32)).space is Space.GLOBAL
