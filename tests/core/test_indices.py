"""What is asked of the parts of an index, for each of the cases that they may be."""

from tilewright.core.compute import Buffer, Load
from tilewright.core.expr import Sym, floordiv
from tilewright.core.indices import (
    at_first,
    chosen,
    lies_at,
    mentioned_at,
    placed,
    placed_by_dimension,
    symbols_at,
    symbols_in,
    terms_at,
)
from tilewright.core.types import f32, i64

ROW, COLUMN = Sym("i", 0, 7), Sym("j", 0, 3)
PICKED = Load(Buffer("picks", i64, (8,)), (ROW,))
"""An index that the data choose; what it is computed from is no symbol of the place."""
INDEX = (ROW + 2 * COLUMN, PICKED, 3)


def test_parts_of_an_index_are_placed_by_loops_or_chosen_by_data() -> None:
    assert placed(INDEX) == (ROW + 2 * COLUMN, 3) and chosen(INDEX) == (PICKED,)
    assert chosen((ROW, 0)) == () and placed(()) == ()
    assert list(placed_by_dimension(INDEX)) == [(0, ROW + 2 * COLUMN), (2, 3)]
    assert at_first(INDEX) == (ROW + 2 * COLUMN, 0, 3)


def test_symbols_and_terms_are_those_of_placed_parts() -> None:
    assert [symbols_at(i) for i in INDEX] == [{ROW, COLUMN}, set(), set()] and symbols_in(INDEX) == {ROW, COLUMN}
    assert symbols_in((PICKED, floordiv(COLUMN, 2))) == {COLUMN} and symbols_in(()) == set()
    assert [mentioned_at(i) for i in INDEX] == [{ROW, COLUMN}, {ROW}, set()]
    assert dict(terms_at(INDEX[0])) == {ROW: 1, COLUMN: 2} and terms_at(PICKED) == terms_at(3) == ()


def test_a_load_at_chosen_places_is_no_load_of_their_symbols() -> None:
    table = Buffer("table", f32, (9, 9))
    assert symbols_in(Load(table, (PICKED, COLUMN)).index) == {COLUMN}


def test_symbols_of_one_index_lie_where_loops_place_another() -> None:
    assert lies_at((ROW, COLUMN, 0), (3, ROW + 1, COLUMN)) == {ROW: 3, COLUMN: ROW + 1}
    assert lies_at((ROW, COLUMN), (PICKED, 2)) == {COLUMN: 2}
