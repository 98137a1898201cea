"""Errors of GPUs: none there, the driver refuses, no memory.

In: what was asked of the driver and what it said. Out: typed errors that name the kernel and the op where one is at
fault. Not its business: wrong arguments, which are an ``InputError`` as on a CPU.
"""

from __future__ import annotations

from tilewright.runtime.errors import ExecutionError, ResourceError


class NoGpuError(ResourceError):
    """There is no GPU here, no driver, or nothing that speaks with it."""

    code = "TW0106"


class GpuError(ExecutionError):
    """The driver reported a failure. ``call`` is its function, ``status`` the name of what it returned."""

    code = "TW0107"

    def __init__(self, message: str, *, call: str = "", status: str = "", remedy: str = "") -> None:
        self.call = call
        self.status = status
        super().__init__(message, remedy=remedy)


class GpuMemoryError(GpuError):
    """The GPU has not the memory that a call needs; the message says how much of it is for what."""

    code = "TW0108"


OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
