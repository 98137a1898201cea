"""What a model asks of the GPU's driver, and NVIDIA's own library as one who answers.

In: PTX, addresses, streams. Out: handles as integers; a :class:`DriverError` for every call that fails.
Not its business: what is launched when (``run``), which op was at fault (``model``).

``Driver`` is the whole protocol, so that tests can put a recorder in its place. ``CudaDriver`` is the only one that
runs on a GPU; it was never run on one yet (``docs/gpu.md``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.once import MAKING

Extents = tuple[int, int, int]
LOG_BYTES = 8192


class DriverError(Exception):
    """One call of the driver that failed: its function, the name of its status, what the driver says of it."""

    def __init__(self, call: str, status: str, said: str) -> None:
        self.call = call
        self.status = status
        self.said = said
        super().__init__(f"{call} returned {status}: {said}")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A GPU: its name, its compute capability, the bytes of its memory."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


class Driver(Protocol):
    """The calls that a model makes. Handles and device addresses are integers; every call may raise ``DriverError``."""

    def facts(self, device: int) -> DeviceFacts:
        """What GPU number ``device`` is."""

    def enter(self, device: int) -> None:
        """Let this thread's calls go to that GPU from now on."""

    def load(self, ptx: str) -> int:
        """A module of machine code, made of PTX."""

    def unload(self, module: int) -> None:
        """Forget a module."""

    def function(self, module: int, name: str, dynamic_shared_bytes: int) -> int:
        """An entry of a module, which may ask for so much shared memory at its launch."""

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory."""

    def free(self, address: int) -> None:
        """Give memory back, once all that uses it has run."""

    def to_device(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """Copy from the host's memory; the host's bytes may change once this returns."""

    def to_host(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """Copy to the host's memory; the bytes are there once the stream was waited for."""

    def on_device(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """Copy within the GPU's memory."""

    def new_stream(self) -> int:
        """A queue of work whose parts run in order."""

    def wait(self, stream: int) -> None:
        """Until all work of the stream has run; failures of any of it come to light here."""

    def launch(
        self, function: int, grid: Extents, block: Extents, shared_bytes: int, stream: int, arguments: Sequence[int]
    ) -> None:
        """Run an entry with arguments of 8 bytes each."""

    def begin_capture(self, stream: int) -> None:
        """Record what follows on the stream instead of running it."""

    def end_capture(self, stream: int) -> int:
        """What was recorded, ready to run as one; also where something in between failed."""

    def replay(self, graph: int, stream: int) -> None:
        """Run what was recorded."""

    def drop(self, graph: int) -> None:
        """Forget what was recorded."""


class CudaDriver:
    """NVIDIA's driver through ``cuda-bindings``; no toolkit is needed."""

    def __init__(self) -> None:
        """``NoGpuError`` where the bindings, the driver or a GPU are missing."""
        remedy = "install NVIDIA's driver and the extra: pip install tilewright[cuda]"
        try:
            with MAKING:
                self._cuda: Any = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise NoGpuError(f"there is no cuda-bindings: {error}", remedy=remedy) from error
        try:
            self._call("cuInit", 0)
            n_devices = self._call("cuDeviceGetCount")
        except (DriverError, RuntimeError, OSError) as error:  # without a driver the bindings find no library
            raise NoGpuError(f"there is no GPU that NVIDIA's driver knows: {error}", remedy=remedy) from error
        if not n_devices:
            raise NoGpuError("NVIDIA's driver knows no GPU", remedy=remedy)
        self._contexts: dict[int, Any] = {}

    def facts(self, device: int) -> DeviceFacts:
        """By the driver's attributes."""
        cuda, handle = self._cuda, self._device(device)
        attribute = cuda.CUdevice_attribute
        major, minor = (
            self._call("cuDeviceGetAttribute", a, handle)
            for a in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        name = self._call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(errors="replace")
        return DeviceFacts(name, (int(major), int(minor)), int(self._call("cuDeviceTotalMem", handle)))

    def enter(self, device: int) -> None:
        """By the device's primary context, which PyTorch and others use too."""
        if device not in self._contexts:
            self._contexts[device] = self._call("cuDevicePrimaryCtxRetain", self._device(device))
        self._call("cuCtxSetCurrent", self._contexts[device])

    def load(self, ptx: str) -> int:
        """By the driver's own assembler, whose complaint becomes part of the error."""
        cuda = self._cuda
        log = bytearray(LOG_BYTES)  # the bindings take the memory itself, and no address
        options = [
            cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
        ]  # fmt: skip
        values = [log, LOG_BYTES]
        try:
            return int(self._call("cuModuleLoadDataEx", ptx.encode() + b"\0", len(options), options, values))
        except DriverError as error:
            said = log.split(b"\0")[0].decode(errors="replace").strip()
            raise DriverError(error.call, error.status, f"{error.said}\n{said}" if said else error.said) from error

    def unload(self, module: int) -> None:
        """Its functions go with it."""
        self._call("cuModuleUnload", module)

    def function(self, module: int, name: str, dynamic_shared_bytes: int) -> int:
        """With more than the usual 48 KiB of shared memory only where the function's attribute says so."""
        found = self._call("cuModuleGetFunction", module, name.encode())
        if dynamic_shared_bytes:
            attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", found, attribute, dynamic_shared_bytes)
        return int(found)

    def allocate(self, n_bytes: int) -> int:
        """Aligned to 256 bytes, as the driver says."""
        return int(self._call("cuMemAlloc", n_bytes))

    def free(self, address: int) -> None:
        """The driver waits for what still runs."""
        self._call("cuMemFree", address)

    def to_device(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """From pageable memory the driver stages the bytes before it returns."""
        self._call("cuMemcpyHtoDAsync", target, source, n_bytes, stream)

    def to_host(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """In the stream's order."""
        self._call("cuMemcpyDtoHAsync", target, source, n_bytes, stream)

    def on_device(self, target: int, source: int, n_bytes: int, stream: int) -> None:
        """In the stream's order."""
        self._call("cuMemcpyDtoDAsync", target, source, n_bytes, stream)

    def new_stream(self) -> int:
        """One that does not wait for the default stream."""
        return int(self._call("cuStreamCreate", int(self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def wait(self, stream: int) -> None:
        """The interpreter's lock is released meanwhile."""
        self._call("cuStreamSynchronize", stream)

    def launch(
        self, function: int, grid: Extents, block: Extents, shared_bytes: int, stream: int, arguments: Sequence[int]
    ) -> None:
        """The driver copies the arguments before it returns."""
        values = (ctypes.c_uint64 * max(len(arguments), 1))(*arguments)
        start = ctypes.addressof(values)
        table = (ctypes.c_void_p * max(len(arguments), 1))(*[start + 8 * k for k in range(len(arguments))])
        self._call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, ctypes.addressof(table), 0)

    def begin_capture(self, stream: int) -> None:
        """Of this thread alone: another's calls to the driver do not spoil it."""
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        """The graph itself is no longer needed once it is instantiated."""
        graph = self._call("cuStreamEndCapture", stream)
        try:
            return int(self._call("cuGraphInstantiate", graph, 0))
        finally:
            self._call("cuGraphDestroy", graph)

    def replay(self, graph: int, stream: int) -> None:
        """One launch for all kernels."""
        self._call("cuGraphLaunch", graph, stream)

    def drop(self, graph: int) -> None:
        """The driver waits for what still runs."""
        self._call("cuGraphExecDestroy", graph)

    def _device(self, device: int) -> Any:
        return self._call("cuDeviceGet", device)

    def _call(self, name: str, *arguments: Any) -> Any:
        """The function's result; handles come and go as integers, which the bindings take for their own types."""
        status, *results = getattr(self._cuda, name)(*arguments)
        if int(status) != 0:
            _, text = self._cuda.cuGetErrorString(status)
            raise DriverError(name, status.name, (text or b"?").decode(errors="replace"))
        return results[0] if results else None
