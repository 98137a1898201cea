"""Values of the tile language: equality of expressions that share parts."""

from __future__ import annotations

from tilewright.core.compute import Buffer, Load, Value
from tilewright.core.types import f32


def test_shared_parts_are_compared_once() -> None:
    """By paths there would be 2**200 comparisons."""

    def doubled(depth: int) -> Value:
        x: Value = Load(buffer, (0,))
        for _ in range(depth):
            x = x + x
        return x

    buffer = Buffer("x", f32, (1,))
    assert doubled(200) == doubled(200)
    assert doubled(200) != doubled(199)
    assert len({doubled(200), doubled(200), doubled(3)}) == 2
