"""Matrix registers of CPUs: what one instruction multiplies, and what it costs.

In: nothing. Out: ``TileUnit`` and those that there are. Not its business: which a machine has (``target.target``), its
instructions (``codegen.cpu.tiles``), fragments of a GPU's warps (``target.matrices``).

Shapes are those of Intel's Architecture Instruction Set Extensions Programming Reference, chapter "Intel AMX": a
register holds 16 rows of 64 bytes. One instruction adds ``left @ right`` to ``sums``, where a row of ``left`` has up to
64 bytes, and ``right`` lies in groups: row ``g`` holds, for each column, the elements ``group * g ..`` that follow each
other along the sum. Cycles are of the Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter "Intel
AMX": products begin every 16 cycles whatever their rows are, the next one of the same sums waits for 52, and a register
is loaded in 8. It is stored in 16, as measured on a server of that family: 4.5 ns, where a product took 4.8 and setting
all shapes 47.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.core import types
from tilewright.core.types import DType


@dataclass(frozen=True)
class TileUnit:
    """``sums[m, n] += left[m, k] * right[k, n]`` on matrix registers, of up to ``rows`` by ``columns`` sums.

    ``group`` elements of ``right`` that follow each other along the sum lie together, and there are up to ``groups`` of
    them. All operands share ``n_registers``. ``cycles`` are those between two products, ``latency`` those until the
    sums may be added to again, ``load_cycles`` and ``store_cycles`` those of moving one register.
    """

    left: DType
    right: DType
    result: DType
    group: int
    rows: int = 16
    columns: int = 16
    groups: int = 16
    n_registers: int = 8
    cycles: float = 16.0
    latency: float = 52.0
    load_cycles: float = 8.0
    store_cycles: float = 16.0

    @property
    def name(self) -> str:
        """The types that it multiplies, as options of passes name them."""
        return f"{self.left.name}x{self.right.name}"

    @property
    def depth(self) -> int:
        """Steps of the sum that one instruction takes at most."""
        return self.groups * self.group

    def steps_at_once(self, n: int) -> int:
        """How many of ``n`` steps each of equal instructions takes at most, a whole number of groups; 0 where none."""
        return max((d for d in range(self.group, self.depth + 1, self.group) if n % d == 0), default=0)


AMX_BF16 = (TileUnit(types.bf16, types.bf16, types.f32, 2),)
AMX_INT8 = tuple(TileUnit(left, right, types.i32, 4) for left in (types.u8, types.i8) for right in (types.i8, types.u8))
"""Bytes with and without signs on either side."""

UNITS = {unit.name: unit for unit in (*AMX_BF16, *AMX_INT8)}
"""All that any machine has, by name."""


def unit_for(units: Iterable[TileUnit], left: DType, right: DType) -> TileUnit | None:
    """The one of ``units`` that multiplies these types; None where there is none."""
    return next((u for u in units if (u.left, u.right) == (left, right)), None)
