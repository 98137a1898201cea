"""Memory of a GPU that a model holds: weights, and for each stream an arena and room for arrays of the host.

In: a driver. Out: addresses. Not its business: what lies where in it (``partition``, ``model``).

Blocks grow and never shrink, so that calls of equal sizes find equal addresses, which recorded calls rely on. A block
that grows is given back only once its stream has run all work that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.cuda.driver import Driver, DriverError
from tilewright.runtime.cuda.errors import OUT_OF_MEMORY, GpuError, GpuMemoryError

ARGUMENT_ALIGNMENT = 16
"""What kernels rely on of their arguments' addresses (``codegen.ptx.memory``)."""
ALIGNMENT = 256
"""Every address is a multiple of this, as those of the driver are."""


def rounded(n_bytes: int) -> int:
    """Room for so many bytes."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def places(n_bytes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of arrays one behind the other, and the end of the last."""
    offsets, at = [], 0
    for n in n_bytes:
        offsets.append(at)
        at += rounded(n)
    return offsets, at


class Block:
    """Memory of one purpose."""

    def __init__(self, driver: Driver, purpose: str) -> None:
        self.driver = driver
        self.purpose = purpose
        self.address = 0
        self.n_bytes = 0

    def at_least(self, n_bytes: int, stream: int) -> bool:
        """Let it hold so many bytes; returns whether it moved. ``GpuMemoryError`` says what they are for."""
        if n_bytes <= self.n_bytes:
            return False
        self.release(stream)
        self.address = allocate(self.driver, rounded(n_bytes), self.purpose)
        self.n_bytes = rounded(n_bytes)
        return True

    def release(self, stream: int) -> None:
        """Give the memory back, once the stream has run."""
        if self.address:
            self.driver.wait(stream)
            self.driver.free(self.address)
        self.address = self.n_bytes = 0


def allocate(driver: Driver, n_bytes: int, purpose: str) -> int:
    """New memory, with an error that says what it is for."""
    try:
        return driver.allocate(n_bytes)
    except DriverError as error:
        if error.status == OUT_OF_MEMORY:
            remedy = "use smaller inputs, free other arrays of the GPU, or take a larger GPU"
            text = f"the GPU has no {n_bytes:,} bytes for {purpose}"
            raise GpuMemoryError(text, call=error.call, status=error.status, remedy=remedy) from error
        raise GpuError(f"no memory for {purpose}: {error}", call=error.call, status=error.status) from error
