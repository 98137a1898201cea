"""What a model keeps in a GPU's memory from call to call.

In: a manifest, the weights with the start behind them, a driver. Out: addresses, which stay what they are, so that
recorded calls hold them. Not its business: calls (``model``), what may be put there (``python.kept``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.cuda.memory import Block, places
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.python.kept import state_at_start
from tilewright.runtime.shapes import Shape
from tilewright.runtime.values import Array, address_of


class KeptOnGpu:
    """The arrays of a model's state, in order; none for a model that keeps nothing."""

    def __init__(self, manifest: Manifest, weights: Array, driver: Driver, stream: int) -> None:
        """Room for them, and the start there; ``GpuMemoryError`` where there is none."""
        self._driver, self._stream = driver, stream
        start = state_at_start(manifest, weights, {})
        self.shapes: tuple[Shape, ...] = tuple(a.shape for a in start)
        self._dtypes = [a.dtype for a in start]
        self._n_bytes = [a.nbytes for a in start]
        offsets, total = places(self._n_bytes)
        self._block = Block(driver, "what the model keeps")
        self._block.at_least(total, stream)
        self.addresses = [self._block.address + at for at in offsets]
        self.put(start)

    def put(self, arrays: Sequence[Array]) -> None:
        """Let them be these arrays of the host."""
        for array, address in zip(arrays, self.addresses, strict=True):
            if array.nbytes:
                self._driver.to_device(address, address_of(array), array.nbytes, self._stream)
        if arrays:
            self._driver.wait(self._stream)

    def arrays(self) -> list[Array]:
        """Copies on the host."""
        made = [np.empty(s, t) for s, t in zip(self.shapes, self._dtypes, strict=True)]
        for array, address in zip(made, self.addresses, strict=True):
            if array.nbytes:
                self._driver.to_host(address_of(array), address, array.nbytes, self._stream)
        self._driver.wait(self._stream)
        return made

    def take(self, results: Sequence[int]) -> None:
        """Let them be what a call made at these addresses, once its work before on the stream has run."""
        for address, result, n_bytes in zip(self.addresses, results, self._n_bytes, strict=True):
            if n_bytes:
                self._driver.on_device(address, result, n_bytes, self._stream)

    def release(self) -> None:
        """Give the memory back."""
        self._block.release(self._stream)
