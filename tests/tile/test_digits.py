"""Indices that are digits of one number: what the number is, and what it decides."""

from __future__ import annotations

from itertools import product
from random import Random

from tilewright.core.compute import Value
from tilewright.core.expr import Dim, Sym, floordiv, mod, substitute
from tilewright.tile.schedule.digits import numbers_of_digits
from tilewright.tile.schedule.loops import apart


def test_a_number_of_digits_depends_on_them_alone() -> None:
    random, n_found = Random(0), 0
    for _ in range(200):
        extents = [random.choice((2, 3, 4, 8)) for _ in range(3)]
        syms = [Sym(f"i{k}", 0, n - 1) for k, n in enumerate(extents)]
        strides = [extents[1] * extents[2], extents[2], 1]
        number: Dim = sum(s * stride for s, stride in zip(syms, strides, strict=True))
        inner, outer = random.choice((2, 4, 6, 8)), random.choice((2, 3, 16))
        index = (floordiv(number, inner * outer), mod(floordiv(number, inner), outer), mod(number, inner))
        for (found,) in numbers_of_digits([index]):
            assert not isinstance(found, Value)
            n_found += 1
            numbers: dict[tuple[Dim, ...], Dim] = {}
            for values in product(*map(range, extents)):
                at = dict(zip(syms, values, strict=True))
                digits = tuple(substitute(i, at) for i in index)
                assert numbers.setdefault(digits, substitute(found, at)) == substitute(found, at)
    assert n_found > 100


def test_blocks_of_a_power_of_two_of_rows_are_apart() -> None:
    block, row = Sym("block", 0, 7), Sym("row", 0, 63)
    number = 64 * block + row
    index = (floordiv(number, 256), mod(floordiv(number, 16), 16), mod(number, 16))
    assert apart([index], [block], {row})
    turn, lane = Sym("turn", 0, 3), Sym("lane", 0, 15)
    number = 64 * block + 16 * turn + lane  # a split row, whose quotients are simpler than the number's
    index = (floordiv(number, 256), mod(floordiv(number, 16), 16), mod(number, 16))
    assert apart([index], [block], {turn, lane})
    assert not apart([index[1:]], [block], {turn, lane})


def test_blocks_of_rows_that_a_digit_is_no_multiple_of_are_apart() -> None:
    """Of 112 by 112 points, 64 a block: their quotients are in lowest terms, the number above is not."""
    block, turn, lane = Sym("block", 0, 6271), Sym("turn", 0, 3), Sym("lane", 0, 15)
    number = 64 * block + 16 * turn + lane
    index = (floordiv(number, 12544), mod(floordiv(number, 112), 112), mod(number, 112))
    assert apart([index], [block], {turn, lane})
    assert not apart([index[:2]], [block], {turn, lane})


def test_a_loop_of_one_iteration_is_a_number() -> None:
    """A quotient may have lost it where another one has it: rows of 80 places in blocks of 64, of one turn each."""
    block, turn, warp, lane = Sym("block", 0, 1599), Sym("turn", 0, 0), Sym("warp", 0, 3), Sym("lane", 0, 15)
    number = 4 * block + 4 * turn + warp
    index = (floordiv(block, 100), mod(floordiv(number, 5), 80), 16 * mod(number, 5) + lane)
    assert apart([index], [block], {turn, warp, lane}) and apart([index], [turn], set())
    assert not apart([index[:2]], [block], {turn, warp, lane})
