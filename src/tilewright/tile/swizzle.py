"""Where the elements of a swizzled buffer lie: rows of 128 bytes, whose eights of 16 bytes are exchanged.

In: buffers, indices. Out: places in elements. Not its business: which buffers are swizzled (``Place.swizzled``).

The last two dimensions are rows and columns. Rows are cut into pieces of 128 bytes, and all first pieces stand before
all second ones, each of these *panels* row below row. In row ``r`` of a panel chunk ``c`` of 16 bytes stands where
chunk ``c xor (r % 8)`` would. So eight rows of one chunk lie in different banks of shared memory, and so do eight
chunks of one row. It is what NVIDIA's Parallel Thread Execution ISA calls the 128-byte swizzling mode, of matrices
whose rows or whose columns are in order. Addresses show it by themselves, if the buffer begins at a multiple of 1,024
bytes: bits 4 to 6 are exchanged by bits 7 to 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv, mod
from tilewright.core.indices import is_chosen
from tilewright.target.matrices import CHUNK_BYTES, PIECE_BYTES


def is_swizzlable(buffer: Buffer) -> bool:
    """Has it eights of rows that are whole pieces?"""
    if len(buffer.shape) < 2:
        return False
    rows, columns = buffer.shape[-2:]
    n_piece = PIECE_BYTES // buffer.dtype.n_bytes
    return is_known(rows) and is_known(columns) and rows % 8 == 0 and columns % n_piece == 0


def in_panels(buffer: Buffer, index: Sequence[IndexLike]) -> Dim | None:
    """The element's place in panels, before chunks are exchanged; None where the data decide it."""
    rows, columns = buffer.shape[-2:]
    n_piece, n_chunk = (n // buffer.dtype.n_bytes for n in (PIECE_BYTES, CHUNK_BYTES))
    total: Dim = 0
    for i, d in zip(index[:-2], buffer.shape[:-2], strict=True):
        if is_chosen(i):
            return None
        total = total * d + i
    row, column = index[-2:]
    if is_chosen(row) or is_chosen(column):
        return None
    # By the runs that columns are made of, so that neighbours in one are neighbours whatever run it is.
    runs = (n for n in _halves(n_chunk) if n * floordiv(column, n) + mod(column, n) == column)
    n_run = next(runs, n_chunk)
    run, n_runs = floordiv(column, n_run), n_piece // n_run
    in_piece = n_run * mod(run, n_runs) + mod(column, n_run)
    return total * rows * columns + floordiv(run, n_runs) * (rows * n_piece) + row * n_piece + in_piece


def _halves(n: int) -> Iterator[int]:
    """``n``, its half and so on, down to 2."""
    while n > 1:
        yield n
        n //= 2


def exchanged(n_bytes: int) -> int:
    """Where the byte is that would be ``n_bytes`` from the buffer's start."""
    return n_bytes ^ (n_bytes // 8 & 7 * CHUNK_BYTES)
