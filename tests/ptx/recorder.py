"""A driver that is none: it checks the protocol of its calls, and runs kernels as threads of this CPU.

In: what a model asks of a driver. Out: the same effects on memory that stands for a GPU's, a record of the calls, and a
failure where one is planted. Not its business: PTX's meaning (`ptx.threads` runs the LLVM text that it was made of).

What NVIDIA's driver would refuse, or take and go wrong with later, is an `AssertionError`: addresses outside of
memory, memory given back twice or while a recording points to it, arguments that do not fit an entry's parameters, a
block other than the entry says, shared memory that the function was not allowed, work on no stream, other calls than
launches and copies within a recording.
"""

import ctypes
import re
from dataclasses import dataclass, field

import numpy as np

from tilewright.runtime.cuda.driver import DeviceFacts, DriverError


@dataclass
class Entry:
    """An entry of a loaded module."""

    name: str
    module: int
    n_params: int
    n_pointers: int
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0


@dataclass
class Recorder:
    """`threads` has what runs each entry, by its name; without one a launch is only checked."""

    threads: dict = field(default_factory=dict)
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 1 << 30
    fails: dict = field(default_factory=dict)
    """Calls that fail, by name: the status, and after how many calls that succeed."""

    calls: list = field(default_factory=list)
    memory: dict = field(default_factory=dict)
    modules: dict = field(default_factory=dict)
    functions: dict = field(default_factory=dict)
    graphs: dict = field(default_factory=dict)
    streams: list = field(default_factory=list)
    foreign: tuple = ()
    """Streams of another library, such as PyTorch's: they take all work, but none is recorded on them."""
    waited: list = field(default_factory=list)
    """Streams that the host waited for, in order."""
    recording: list | None = None
    entered: int | None = None
    n: int = 0

    def _next(self) -> int:
        self.n += 1
        return self.n

    def _call(self, name: str, *said) -> None:
        assert name in ("facts", "enter") or self.entered is not None, f"{name}: no device was entered"
        self.calls.append((name, *said))
        if name in self.fails:
            status, left = self.fails[name]
            self.fails[name] = (status, left - 1)
            if left == 0:
                raise DriverError(f"cu{name}", status, "planted")

    def named(self, *names: str) -> list[str]:
        """The names of the calls so far, of these alone where some are given."""
        return [c[0] for c in self.calls if not names or c[0] in names]

    def _knows(self, stream) -> bool:
        return stream in self.streams or stream in self.foreign

    # --- devices and code

    def facts(self, device):
        self._call("facts", device)
        return DeviceFacts("a recorder", self.capability, self.memory_bytes)

    def enter(self, device):
        self.entered = device
        self._call("enter", device)

    def load(self, ptx):
        self._call("load")
        assert ".version" in ptx and ".address_size 64" in ptx
        module = self._next()
        self.modules[module] = entries = {}
        for name, params, rest in re.findall(r"\.visible \.entry (\w+)\((.*?)\)(.*?)\{", ptx, re.S):
            found = re.search(r"\.reqntid (\d+)(?:, (\d+))?(?:, (\d+))?", rest)
            block = tuple(int(x or 1) for x in found.groups())
            entries[name] = Entry(name, module, params.count(".param"), params.count(".ptr"), block)
        return module

    def unload(self, module):
        self._call("unload", module)
        del self.modules[module]

    def function(self, module, name, dynamic_shared_bytes):
        self._call("function", name)
        entry = self.modules[module][name]
        entry.dynamic_shared_bytes = dynamic_shared_bytes
        handle = self._next()
        self.functions[handle] = entry
        return handle

    # --- memory

    def allocate(self, n_bytes):
        self._call("allocate", n_bytes)
        assert n_bytes > 0 and self.recording is None
        if sum(b.nbytes - 256 for b in self.memory.values()) + n_bytes > self.memory_bytes:
            raise DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        block = np.full(n_bytes + 256, 0xA5, np.uint8)  # what is never written is never right
        address = -(-block.ctypes.data // 256) * 256
        self.memory[address] = block
        return address

    def free(self, address):
        self._call("free", address)
        assert self.recording is None
        end = address + self.memory[address].nbytes - 256
        for graph in self.graphs.values():
            used = [a for _, *rest in graph for a in np.ravel([x for x in rest if not isinstance(x, str)])]
            assert not any(address <= a < end for a in used), "a recording points there"
        del self.memory[address]

    def _inside(self, address, n_bytes=1):
        ends = {start: start + b.nbytes - 256 for start, b in self.memory.items()}
        assert any(s <= address and address + n_bytes <= e for s, e in ends.items()), f"{address:#x} is not ours"

    def _copy(self, kind, target, source, n_bytes, stream):
        self._call(kind, n_bytes)
        assert n_bytes > 0 and self._knows(stream)
        if kind != "to_host":
            self._inside(target, n_bytes)
        if kind != "to_device":
            self._inside(source, n_bytes)
        if self.recording is not None:
            assert kind == "on_device", "a recording would hold an address of the host"
            self.recording.append((kind, target, source, n_bytes))
            return
        ctypes.memmove(target, source, n_bytes)

    def to_device(self, target, source, n_bytes, stream):
        self._copy("to_device", target, source, n_bytes, stream)

    def to_host(self, target, source, n_bytes, stream):
        self._copy("to_host", target, source, n_bytes, stream)

    def on_device(self, target, source, n_bytes, stream):
        self._copy("on_device", target, source, n_bytes, stream)

    # --- work

    def new_stream(self):
        self._call("new_stream")
        self.streams.append(self._next())
        return self.streams[-1]

    def wait(self, stream):
        self._call("wait")
        self.waited.append(stream)
        assert self._knows(stream) and self.recording is None

    def launch(self, function, grid, block, shared_bytes, stream, arguments):
        entry = self.functions[function]
        self._call("launch", entry.name, tuple(grid))
        assert self._knows(stream) and entry.module in self.modules
        assert min(grid) > 0 and tuple(block) == entry.block
        assert shared_bytes <= entry.dynamic_shared_bytes and len(arguments) == entry.n_params
        for address in arguments[: entry.n_pointers]:
            assert address % 16 == 0
            if address:  # nothing lies at zero but what has no bytes; who reads there dies here too
                self._inside(address, 0)
        if self.recording is not None:
            self.recording.append(("launch", entry.name, list(grid), list(block), list(arguments)))
            return
        self._run(entry.name, grid, block, arguments)

    def _run(self, name, grid, block, arguments):
        if name in self.threads:
            self.threads[name].run(name, grid, block, list(arguments))

    def begin_capture(self, stream):
        self._call("begin_capture")
        assert self.recording is None and stream in self.streams
        self.recording = []

    def end_capture(self, stream):
        self._call("end_capture")
        graph = self._next()
        self.graphs[graph], self.recording = self.recording, None
        return graph

    def replay(self, graph, stream):
        self._call("replay")
        assert self.recording is None and self._knows(stream)
        for kind, *rest in self.graphs[graph]:
            if kind == "launch":
                self._run(*rest)
            else:
                ctypes.memmove(*rest)

    def drop(self, graph):
        self._call("drop")
        del self.graphs[graph]
