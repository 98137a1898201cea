"""Windows of a reduction: which of its loops become copies, so that neighbours share what they read.

In: the reduction's loops, its operands, a tile. Out: loops to copy, each in a block of its own or together in one.
Not its business: the rest of the tile (``contract_plan``), writing steps (``contract_tile``).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.choose.cost.tile import MAX_UNROLLED, Box, Operand, Tile, choose_tile, distinct, estimate
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.affine import period
from tilewright.tile.ir import Loop


def copied_loops(
    reduced: list[Loop], operands: tuple[Operand, ...], lanes: Sym, machine: Target
) -> tuple[list[Loop], list[Loop]]:
    """Reduction loops of a window that become copies: (each in a block of its own, together in one block).

    The last tap's copies stand together, since neighbouring rows share what they read. With groups, every member of
    the group is another shuffle of the same vector; its copies stand apart, or too many vectors would be held.
    """
    is_grouped = any(op.lane_stride is None and period(op.offset, lanes) is not None for op in operands)
    stepped, slid = (reduced[-1:], reduced[-2:-1]) if is_grouped else ([], reduced[-1:])
    for choice in ((stepped, slid), (stepped, [])):
        sizes = [x.extent for part in choice for x in part]
        if are_known(sizes) and 1 < estimate(sizes) <= min(machine.max_copies, MAX_UNROLLED):
            return choice
    return [], []


def slides_over_plane(operands: tuple[Operand, ...], reduced: list[Loop], lanes: Loop) -> bool:
    """Is it a window that slides over one image, whose columns are lanes, with a constant weight for each tap?"""
    images = [op for op in operands if op.lane_stride != 0]
    weights = [op for op in operands if op.lane_stride == 0]
    if len(images) != 1 or images[0].lane_stride is None or len(weights) != 1 or not weights[0].is_constant:
        return False
    reach = images[0].step(reduced[-1].sym) * (estimate([reduced[-1].extent]) - 1)
    return all(images[0].step(x.sym) for x in reduced) and 0 < reach < images[0].lane_stride * estimate([lanes.extent])


def moves_weights(loop: Loop, operands: tuple[Operand, ...]) -> bool:
    return any(op.lane_stride == 0 and op.step(loop.sym) for op in operands)


def taps_of_plane(reduced: list[Loop], machine: Target) -> tuple[list[Loop], list[Loop]]:
    """Loops of such a window that become copies, of all rows of a tile: (each in a block of its own, together in one).

    Together are the taps of one column: what they read of a row serves the tile's neighbouring rows too, while the taps
    of another column read every row anew, an element further. A block for each column: with all of them in one, what is
    read for the last is held from the start.
    """
    column, row = reduced[-1:], reduced[-2:-1]
    for apart, together in ((column, row), ([], row), ([], column)):
        sizes = [x.extent for x in (*apart, *together)]
        if together and are_known(sizes) and 1 < estimate(sizes) <= min(machine.max_copies // 4, MAX_UNROLLED):
            return apart, together
    return [], []


def overlaps(loop: Loop, reduced: list[Loop], operands: tuple[Operand, ...]) -> bool:
    """Does the next iteration read again what taps have read, as the rows of a pool do?"""
    return any(0 < op.step(loop.sym) < op.step(r.sym) * estimate([r.extent]) for op in operands for r in reduced)


def in_plane(
    box: Box, machine: Target, width: int, tile: Tile, reduced: list[Loop], slid: list[Loop]
) -> tuple[Tile, list[Loop]]:
    """Rows and columns of the result at once, with copies of all taps: what a row of the tile reads serves the others.

    For windows whose rows leave the first-level cache before the next row of the result reads them again. As it was,
    when the tile's sums, the taps' weights and a row of what it reads are more than there are registers.
    """
    taps = [x.extent for x in reduced[-2:]]
    rows = (box.n_rows, box.n_rows2)
    if len(taps) < 2 or box.row2 is None or not are_known((*taps, *rows)):
        return tile, slid
    copied = tuple((x.sym, x.extent) for x in reduced[-2:] if is_known(x.extent))
    wide = choose_tile(replace(box, unrolled=copied), machine, width)
    one_row = replace(box, unrolled=copied[1:])
    held = wide.rows * wide.rows2 + estimate(taps) + max(distinct(one_row, op, wide.rows, 1) for op in box.operands)
    return (wide, reduced[-2:]) if wide.rows2 > 1 and held <= machine.n_vector_registers else (tile, slid)
