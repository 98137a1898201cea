"""Swizzled memory: a bijection by which rows and columns of chunks lie in different banks."""

import numpy as np
import pytest

from tile.kernels import elementwise
from tile.test_schedule import rows_twice
from tilewright.core.compute import Buffer
from tilewright.core.expr import Sym, substitute
from tilewright.core.types import bf16, f32
from tilewright.tile.affine import coefficient
from tilewright.tile.errors import ScheduleError, TileVerifyError
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.swizzle import exchanged, in_panels, is_swizzlable
from tilewright.tile.text import parse_kernel
from tilewright.tile.verify import verify


def byte_of(buffer: Buffer, *index: int) -> int:
    place = in_panels(buffer, index)
    assert isinstance(place, int)
    return exchanged(place * buffer.dtype.n_bytes)


@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (16, 64), (64, 128)])
def test_every_element_has_a_place_of_its_own(rows: int, columns: int) -> None:
    b = Buffer("b", bf16, (2, rows, columns))
    places = {byte_of(b, p, r, c) for p in range(2) for r in range(rows) for c in range(columns)}
    assert places == set(range(0, 2 * rows * columns * 2, 2))


@pytest.mark.parametrize("n_beside", [2, 4, 8])
def test_neighbours_in_a_chunk_are_neighbours_by_any_width(n_beside: int) -> None:
    b = Buffer("b", bf16, (8, 128))
    access, element = Sym("access", 0, 128 // n_beside - 1), Sym("element", 0, n_beside - 1)
    place = in_panels(b, (3, n_beside * access + element))
    assert place is not None and coefficient(place, element) == 1
    for a, e in np.ndindex(128 // n_beside, n_beside):
        assert substitute(place, {access: a, element: e}) == in_panels(b, (3, n_beside * a + e))


def test_eights_of_chunks_lie_in_different_banks() -> None:
    b = Buffer("b", bf16, (64, 128))
    for r in range(0, 64, 8):
        for c in range(0, 128, 8):
            assert len({byte_of(b, r + k, c) % 128 // 16 for k in range(8)}) == 8
            assert [byte_of(b, r, c + k) - byte_of(b, r, c) for k in range(8)] == list(range(0, 16, 2))
    for r in range(64):
        assert len({byte_of(b, r, 8 * k) % 128 // 16 for k in range(8)}) == 8


@pytest.mark.parametrize("shape", [(8,), (8, 32), (4, 64), (12, 64), (8, 96)])
def test_what_has_no_eights_of_whole_rows_is_refused(shape: tuple[int, ...]) -> None:
    assert not is_swizzlable(Buffer("b", bf16, shape))
    text = f"""kernel k
  place x: bf16[8] global out
  place s: bf16[{", ".join(map(str, shape))}] shared tmp swizzled
  body
    for b[0:0] < 1 block
      for t[0:7] < 8 thread
        x[t] = 0.0:bf16
"""
    with pytest.raises(TileVerifyError, match="eights of them"):
        verify(parse_kernel(text))


def test_only_shared_memory_is_swizzled() -> None:
    b = ScheduleBuilder(lower(rows_twice(16, 32), "k", []))
    with pytest.raises(ScheduleError, match="in shared memory"):
        b.do("swizzle", "t")
    assert is_swizzlable(Buffer("t", f32, (16, 32)))
    with pytest.raises(ScheduleError):
        ScheduleBuilder(lower(elementwise((16, 32)), "k", [])).do("swizzle", "X")
