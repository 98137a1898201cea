"""The register tile that the cost model chooses: rows of one cache set, and how many fit."""

from __future__ import annotations

import pytest

from tilewright.choose.cost.tile import Box, Operand, choose_tile
from tilewright.choose.strategies.contract_caches import even_chunks
from tilewright.core.expr import Sym
from tilewright.target.target import Target

LANES, ROW, ROW2 = Sym("n", 0, 1023), Sym("x", 0, 13), Sym("y", 0, 13)
KIBIBYTE = 256
"""f32 elements."""


def tile(step: int, step2: int) -> tuple[int, int, int]:
    """Rows, second rows and vectors for 14 x 14 pixels ``step`` and ``step2`` elements apart, 1024 columns."""
    pixels = Operand(ROW * step + ROW2 * step2, 0)
    weights = Operand(LANES * 1, 1, is_constant=True)
    chosen = choose_tile(Box(LANES, 1024, ROW, 14, ROW2, 14, (), (pixels, weights)), Target.parse("x86-64-v4"), 16)
    return chosen.rows, chosen.rows2, chosen.vectors


@pytest.mark.parametrize(("step", "step2"), [(4 * KIBIBYTE, 112 * KIBIBYTE), (8 * KIBIBYTE, 4 * KIBIBYTE)])
def test_rows_that_fall_into_one_set_are_no_more_than_its_ways(step, step2):
    rows, rows2, vectors = tile(step, step2)
    assert 4 <= rows * rows2 <= 8 < rows * rows2 * vectors


@pytest.mark.parametrize(("step", "step2"), [(KIBIBYTE + 16, 28 * KIBIBYTE), (2 * KIBIBYTE, 28 * KIBIBYTE), (16, 224)])
def test_rows_of_several_sets_fill_the_registers(step, step2):
    rows, rows2, _ = tile(step, step2)
    assert rows * rows2 > 8


@pytest.mark.parametrize(("steps", "least", "cores"), [(125, 4, 2), (50, 5, 2), (63, 7, 3), (17, 4, 4), (8, 4, 1)])
def test_chunks_give_every_core_as_much(steps, least, cores):
    def most(n):
        size = -(-steps // n)
        sizes = [size] * (steps // size) + [steps % size] * (steps % size > 0)
        many = -(-len(sizes) // cores)
        return sum(sorted(sizes)[-many:])  # of the core that gets the most

    chunks = even_chunks(steps, least, cores)
    assert least <= chunks <= 2 * least
    assert most(chunks) <= most(least)
    assert even_chunks(125, 4, 2) == 6  # 63 and 62 tiles; four chunks give 64 and 61


@pytest.mark.parametrize("divisor", [1500, 3136, 196, 77])
def test_run_time_rows_of_a_known_divisor_leave_no_rest(divisor):
    """As 1500 places of each of so many series: tiles of twelve rows need no code for what they would leave."""
    pixels, weights = Operand(ROW * 264, 0), Operand(LANES * 1, 1, is_constant=True)
    box = Box(LANES, 1024, ROW, None, None, 1, (), (pixels, weights), row_divisor=divisor)
    rows = choose_tile(box, Target.parse("x86-64-v4"), 16).rows
    assert divisor % rows == 0 and rows > 1


@pytest.mark.parametrize("n_rows", [1500, 14, 7])
def test_images_of_which_there_may_be_one_are_no_rows_of_a_tile(n_rows):
    pixels, weights = Operand(ROW * 264 + ROW2 * 264 * n_rows, 0), Operand(LANES * 1, 1, is_constant=True)
    box = Box(LANES, 1024, ROW, n_rows, ROW2, None, (), (pixels, weights))
    assert choose_tile(box, Target.parse("x86-64-v4"), 16).rows2 == 1
