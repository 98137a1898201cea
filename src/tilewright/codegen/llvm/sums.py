"""Lanes of several registers folded together: the partial results of a register tile, one result each.

In: values of as many lanes, all of them partial results of one operation. Out: a vector that holds each one's result.
Not its business: when lanes are folded (``function``).

Folded one by one, 16 vectors of 16 lanes take 64 shuffles and 64 operations. Two at a time, the halves of both lie
beside each other after one step, as in a transposition: 30 shuffles and 15 operations, in the same order of halves.
"""

from __future__ import annotations

from tilewright.codegen.llvm.arith import Arith
from tilewright.codegen.llvm.lanes import lanes_of_register
from tilewright.codegen.llvm.types import VALUE_TYPE
from tilewright.codegen.llvm.writer import Val
from tilewright.core.types import DType

IN_PLACE_BYTES = 16
"""Shuffles are cheapest inside of parts of so many bytes; smaller groups of two vectors alternate there."""


def fold_together(arith: Arith, op: str, dtype: DType, values: list[Val]) -> tuple[Val, list[int]]:
    """``op`` over the lanes of each value, a power of two of them: the results, and in which lane each one lies."""
    width = values[0].lanes
    count = lanes_of_register(len(values))
    rows = [(v, [k]) for k, v in enumerate([*values, *[values[-1]] * (count - len(values))])]
    while width > 1:
        pairs = list(zip(rows[::2], rows[1::2], strict=True)) if len(rows) > 1 else [(row, None) for row in rows]
        rows = [_halved(arith, op, dtype, a, b, width) for a, b in pairs]
        width //= 2
    whole = arith.concat([v for v, _ in rows], VALUE_TYPE[dtype], sum(v.lanes for v, _ in rows))
    order = [k for _, owners in rows for k in owners]
    return whole, [order.index(k) for k in range(len(values))]


_Row = tuple[Val, list[int]]


def _halved(arith: Arith, op: str, dtype: DType, a: _Row, b: _Row | None, width: int) -> _Row:
    """Groups of ``width`` lanes of one or two vectors as groups of half as many, and whose results they become."""
    half, element = width // 2, VALUE_TYPE[dtype]
    groups = [(0, k) for k in range(len(a[1]))] + ([(1, k) for k in range(len(b[1]))] if b else [])
    if half * dtype.n_bytes < IN_PLACE_BYTES:
        groups.sort(key=lambda g: (g[1] * width * dtype.n_bytes // IN_PLACE_BYTES, g))
    starts = [side * a[0].lanes + k * width for side, k in groups]
    low, high = (
        arith.pick(a[0], element, [s + at + i for s in starts for i in range(half)], b[0] if b else None)
        for at in (0, half)
    )
    owners = [(a if side == 0 or b is None else b)[1][k] for side, k in groups]
    return arith.binary(op, dtype, low, high), owners
