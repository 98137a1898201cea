"""The primitive prefetch: which lines of the next panel are asked for, and how often."""

import pytest

from tile.kernels import matmul
from tile.test_schedule import same
from tilewright.core.expr import substitute
from tilewright.tile.ir import Prefetch, walk
from tilewright.tile.rewrite import loops_of


def test_prefetch_stays_inside_the_next_panel():
    same(
        matmul(6, 10, 4), ("split", "i1_1", 4), ("reorder", "i1_1_o", "i0_1", "k0", "i1_1_i"), ("pack", "B"),
        ("prefetch", "B_p", "i1_1_o", "k0", 4, "i0_1"), constants=["B"],
    )  # fmt: skip


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_prefetch_touches_every_line_of_the_next_panel(rows):
    """A panel of 5 by 4 in lines of 1: four lines a step, shared by the rows."""
    kernel = same(
        matmul(rows, 10, 5), ("split", "i1_1", 4), ("reorder", "i1_1_o", "i0_1", "k0", "i1_1_i"), ("pack", "B"),
        ("prefetch", "B_p", "i1_1_o", "k0", 1, "i0_1"), constants=["B"],
    )  # fmt: skip
    hints = [s for s in walk(kernel.body) if isinstance(s, Prefetch)]
    loops = {x.sym.name: x for x in loops_of(kernel.body)}
    points = [{loops["i0_1"].sym: i, loops["k0"].sym: k} for i in range(rows) for k in range(5)]
    assert {substitute(s.index[-1], at) for s in hints for at in points} == set(range(20))


@pytest.mark.parametrize("line", [4, 5, 16, 64])
def test_prefetch_asks_for_no_lines_behind_the_next_panel(line):
    """Five steps walk a panel of 20 elements, which has five lines or fewer."""
    kernel = same(
        matmul(3, 10, 5), ("split", "i1_1", 4), ("reorder", "i1_1_o", "i0_1", "k0", "i1_1_i"), ("pack", "B"),
        ("prefetch", "B_p", "i1_1_o", "k0", line, "i0_1"), constants=["B"],
    )  # fmt: skip
    (hint,) = [s for s in walk(kernel.body) if isinstance(s, Prefetch)]
    k = next(x for x in loops_of(kernel.body) if x.sym.name == "k0").sym
    assert [substitute(hint.index[-1], {k: n}) for n in range(5)] == [0, 4, 8, 12, 16]


def test_prefetch_of_a_reduction_in_parts_asks_for_each_line_once():
    """A panel of 6 by 4 in lines of 4: three rows of two parts each."""
    kernel = same(
        matmul(3, 10, 6), ("split", "i1_1", 4), ("reorder", "i1_1_o", "i0_1", "k0", "i1_1_i"), ("pack", "B"),
        ("split", "k0", 3), ("kind", "k0_i", "step"), ("prefetch", "B_p", "i1_1_o", "k0_o", 4, "i0_1"), constants=["B"],
    )  # fmt: skip
    (hint,) = [s for s in walk(kernel.body) if isinstance(s, Prefetch)]
    loops = {x.sym.name: x.sym for x in loops_of(kernel.body)}
    asked = [substitute(hint.index[-1], {loops["i0_1"]: i, loops["k0_o"]: k}) for i in range(3) for k in range(2)]
    assert sorted(asked) == [0, 4, 8, 12, 16, 20]
