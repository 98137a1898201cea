"""Re-laid constants: strided copies give what the recipe says, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.compute import Buffer
from tilewright.core.expr import Dim, Sym, evaluate
from tilewright.core.types import f32
from tilewright.tile import pack
from tilewright.tile.ir import Packed

A, B, C, D = (Sym(name, 0, n - 1) for name, n in (("a", 3), ("b", 12), ("c", 4), ("d", 5)))
SIZES = {A: 3, B: 12, C: 4, D: 5}

RECIPES: dict[str, tuple[tuple[int, ...], tuple[Sym, ...], tuple[Dim, ...]]] = {
    "panels": ((12, 12), (A, B, C), (B, 4 * A + C)),
    "a ragged last panel": ((12, 10), (A, B, C), (B, 4 * A + C)),
    "ragged parts of a reduction": ((13, 12), (A, D, B), (5 * A + D, B)),
    "parts that begin outside": ((8, 12), (A, D, B), (5 * A + D, B)),
    "ragged both ways": ((13, 10), (A, D, B), (5 * A + D, B)),
    "windows of a convolution": ((4, 4, 3, 3), (A, B, C), (C, B % 4, A, B // 4)),
    "three quotients": ((2, 2, 3), (B, A), (B % 2, B // 2 % 2, B // 4)),
    "a quotient that does not divide": ((5, 3), (B, A), (B % 5, A)),
    "an offset": ((16, 3), (B, A), (B + 4, A)),
    "from outside": ((12, 3), (B, A), (B - 2, A)),
    "backwards": ((12, 3), (B, A), (11 - B, A)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_element_is_what_the_recipe_says(name: str) -> None:
    shape, grid, index = RECIPES[name]
    param_shape = tuple(SIZES[s] for s in grid)
    source = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    packed = Packed(Buffer("w'", f32, param_shape), Buffer("w", f32, shape), grid, index)
    made = pack.packed_array(packed, source)
    assert made.shape == param_shape
    for at in np.ndindex(*param_shape):
        values = dict(zip(grid, at, strict=True))
        place = tuple(evaluate(e, values) for e in index)
        inside = all(0 <= p < n for p, n in zip(place, shape, strict=True))
        assert made[at] == (source[place] if inside else 0), (at, place)


def test_quotients_that_divide_become_strided_copies() -> None:
    shape, grid, index = RECIPES["windows of a convolution"]
    packed = Packed(Buffer("w'", f32, (3, 12, 4)), Buffer("w", f32, shape), grid, index)
    split, lines, sizes = pack._without_quotients(packed, (3, 12, 4))
    assert sizes == (3, 3, 4, 4)
    assert all(pack._line_of(e, split) is not None for e in lines)
