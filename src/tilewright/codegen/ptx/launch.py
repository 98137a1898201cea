"""How many blocks and threads a kernel's grid is launched with, and which of them a thread is.

In: the block and thread loops of a flat grid. Out: a :class:`Launch`, and LLVM text that finds a block's indices.
Not its business: what threads do (``function``), calling the driver.

Loops map to axes from the innermost one on: the last is x, which alone may have more than 65,535 blocks. So the other
two keep their axes where their extents are known to fit; otherwise all block loops are one long x, which each thread
takes apart by divisions of 32 bits, once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.writer import Val, Writer
from tilewright.codegen.ptx.dialect import Dialect
from tilewright.core.compute import Buffer
from tilewright.core.dims import numbers
from tilewright.core.expr import Dim, Sym, bounds
from tilewright.target.gpu import AXES, Gpu
from tilewright.tile.ir import Loop


@dataclass(frozen=True)
class Launch:
    """One grid of a kernel: the entry's name in the module, and what a launch of it says.

    ``grid`` and ``block`` are the extents along x, y and z; those of the grid are expressions of ``sizes``. The
    arguments are the addresses of ``params``, then ``sizes`` as 64-bit integers. ``dynamic_shared_bytes`` are asked for
    at the launch, because a module's own shared memory may not be more than the target says.
    """

    entry: str
    grid: tuple[Dim, Dim, Dim]
    block: tuple[int, int, int]
    params: tuple[Buffer, ...]
    sizes: tuple[Sym, ...]
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0


def block_of(threads: tuple[Loop, ...], gpu: Gpu, *, of_warps: bool = False) -> tuple[int, int, int]:
    """The block's extents, where thread loops count warps with the lanes along x; ``CodegenError`` for one that no GPU
    of the kind runs."""
    extents = [*([gpu.warp_lanes] if of_warps else []), *[loop.extent for loop in reversed(threads)]]
    if len(extents) > len(AXES):
        raise CodegenError(f"{len(threads)} thread loops count warps, whose lanes have an axis too; there are three")
    sizes = numbers(extents)
    if len(sizes) < len(extents):
        raise CodegenError(f"a block of {' by '.join(map(str, extents))} threads, not all of them numbers")
    padded = (*sizes, 1, 1, 1)
    x, y, z = padded[:3]
    is_long = any(n > most for n, most in zip((x, y, z), gpu.max_block_extents, strict=True))
    if is_long or x * y * z > gpu.max_block_threads:
        rule = f"{gpu.name} runs {gpu.max_block_threads} threads a block, up to {gpu.max_block_extents} along x, y, z"
        raise CodegenError(f"a block of {x} by {y} by {z} threads: {rule}", remedy="split a thread loop")
    return x, y, z


@dataclass(frozen=True)
class GridShape:
    """The axes of a grid's block loops: one each, or all of them along x."""

    loops: tuple[Loop, ...]
    is_flat: bool

    @property
    def extents(self) -> tuple[Dim, Dim, Dim]:
        """Blocks along x, y and z."""
        dims = [loop.extent for loop in reversed(self.loops)]
        if self.is_flat:
            total: Dim = 1
            for d in dims:
                total = total * d
            return total, 1, 1
        x, y, z = (*dims, 1, 1, 1)[:3]
        return x, y, z


def grid_of(loops: tuple[Loop, ...], gpu: Gpu) -> GridShape:
    """How the block loops, outermost first, lie along the axes."""
    most = [bounds(loop.extent)[1] for loop in reversed(loops)]
    fits = all(n is not None and n <= limit for n, limit in zip(most[1:], gpu.max_grid_extents[1:], strict=False))
    return GridShape(loops, not fits)


def thread_index(writer: Writer, dialect: Dialect, axis: int) -> Val:
    """A thread's place in its block along an axis, as an ``i64``."""
    return _widened(writer, writer.pure(dialect.thread.format(AXES[axis]), 0))


def block_indices(writer: Writer, dialect: Dialect, shape: GridShape, extents: list[Val]) -> list[Val]:
    """The values of the block loops' variables, outermost first; ``extents`` has theirs as ``i64``, for a flat grid."""
    if not shape.is_flat:
        axes = range(len(shape.loops) - 1, -1, -1)
        return [_widened(writer, writer.pure(dialect.block.format(AXES[axis]), 0)) for axis in axes]
    rest, found = writer.pure(dialect.block.format("x"), 0), list[Val]()
    for extent in reversed(extents[1:]):
        narrow = extent.text if extent.text[0] != "%" else writer.pure(f"trunc i64 {extent.text} to i32", 0)
        found.append(_widened(writer, writer.pure(f"urem i32 {rest}, {narrow}", 0)))
        rest = writer.pure(f"udiv i32 {rest}, {narrow}", 0)
    return [_widened(writer, rest), *reversed(found)]


def _widened(writer: Writer, name: str) -> Val:
    return Val(writer.pure(f"zext nneg i32 {name} to i64", 0), 0, 0)
