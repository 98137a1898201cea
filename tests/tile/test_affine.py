"""Reading index expressions: what loops decide of quotients and remainders."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.core.expr import Dim, Sym, bounds, ceildiv, evaluate, floordiv, minimum, mod, symbols
from tilewright.tile.affine import settled


def tiled(n: int, block: int, width: int) -> tuple[Dim, dict[Sym, Dim]]:
    """What walks 0 to n in blocks of vectors, the last ones ragged, and the loops' extents, outer ones first."""
    o, v, lane = Sym("o", 0, -(-n // block) - 1), Sym("v", 0, -(-block // width) - 1), Sym("i", 0, width - 1)
    rest = minimum(n - block * o, block)
    extents: dict[Sym, Dim] = {o: -(-n // block), v: ceildiv(rest, width), lane: minimum(rest - width * v, width)}
    return block * o + width * v + lane, extents


@given(n=st.integers(1, 60), vectors=st.integers(1, 3), width=st.integers(1, 5), size=st.integers(1, 70))
@example(n=7, vectors=3, width=2, size=8)  # the minimum lies within a quotient
def test_what_a_ragged_tile_decides_is_what_its_iterations_say(n, vectors, width, size):
    e, extents = tiled(n, vectors * width, width)
    whole = [floordiv(e, size) * 3 + 7, mod(e + 2, size), e - 5 * floordiv(mod(e, size), 4)]
    found = [settled(x, extents) for x in whole]
    syms = list(extents)
    for point in product(*(range(s.hi + 1) for s in syms if s.hi is not None)):
        at = dict(zip(syms, point, strict=True))
        if all(at[s] < evaluate(extents[s], at) for s in syms):
            assert [evaluate(x, at) for x in found] == [evaluate(x, at) for x in whole]
    if size >= max(n, vectors * width):
        assert bounds(found[0]) == (7, 7)
    assert all(symbols(x) <= set(syms) for x in found if not isinstance(x, int))
