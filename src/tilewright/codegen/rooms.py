"""How much room the buffers of a kernel's own want, whatever its code is written in.

In: buffers. Out: numbers of elements. Not its business: where they lie (``codegen.cpu.scratch``).
"""

from __future__ import annotations

from tilewright.codegen.errors import CodegenError
from tilewright.core.compute import Buffer
from tilewright.core.expr import bounds
from tilewright.core.types import product


def most_elements(buffer: Buffer) -> int:
    """The most elements that a buffer has, at least 1; ``CodegenError`` where nothing bounds them."""
    most = bounds(product(buffer.shape))[1]
    if most is None:
        raise CodegenError(f"scratch buffer {buffer.name} has no bounded size", remedy="give its dimensions bounds")
    return max(most, 1)
