"""Modules of SPIR-V run through OpenCL, where PoCL and the translator from SPIR-V to LLVM's bitcode are installed.

In: a kernel's module and its launches, arrays. Out: what the kernel writes. Not its business: which results are right.

PoCL (Debian's `pocl-opencl-icd` 3.1) takes no SPIR-V, but the bitcode of LLVM that Khronos calls SPIR: Debian's
`llvm-spirv-15` translates one to the other, of the version of LLVM that PoCL has. It has no sub-groups, so kernels
whose lanes exchange what they have are not run.
"""

import ctypes
import ctypes.util
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tilewright.codegen.ptx.launch import Launch
from tilewright.core.expr import evaluate

TRANSLATOR = shutil.which("llvm-spirv-15")
PLATFORM_NAME, ALL_DEVICES, BUILD_LOG = 0x0902, 0xFFFFFFFF, 0x1183
"""`CL_PLATFORM_NAME`, `CL_DEVICE_TYPE_ALL` and `CL_PROGRAM_BUILD_LOG`."""
POCL, MOST_PLATFORMS = b"Portable Computing Language", 16
HANDLES = ("clCreateContext", "clCreateCommandQueue", "clCreateProgramWithBinary", "clCreateKernel")


class OpenClError(Exception):
    """A call that OpenCL refuses, with its status and what the compiler of it says."""


@cache
def library() -> ctypes.CDLL | None:
    found = ctypes.util.find_library("OpenCL")
    if found is None:
        return None
    made = ctypes.CDLL(found)
    for name in HANDLES:
        getattr(made, name).restype = ctypes.c_void_p
    return made


def is_installed() -> bool:
    """Is all here that runs a module?"""
    return TRANSLATOR is not None and platform() is not None


def platform() -> ctypes.c_void_p | None:
    """PoCL among the platforms of this machine."""
    cl = library()
    if cl is None:
        return None
    count, found = ctypes.c_uint(0), (ctypes.c_void_p * MOST_PLATFORMS)()
    cl.clGetPlatformIDs(MOST_PLATFORMS, found, ctypes.byref(count))
    for one in found[: min(count.value, MOST_PLATFORMS)]:
        name = ctypes.create_string_buffer(256)
        cl.clGetPlatformInfo(ctypes.c_void_p(one), PLATFORM_NAME, ctypes.c_size_t(len(name)), name, None)
        if name.value == POCL:
            return ctypes.c_void_p(one)
    return None


class Device:
    """PoCL's CPU: a context and a queue."""

    def __init__(self) -> None:
        self.cl = library()
        device, kind = ctypes.c_void_p(), ctypes.c_uint64(ALL_DEVICES)
        self.check(self.cl.clGetDeviceIDs(platform(), kind, 1, ctypes.byref(device), None), "clGetDeviceIDs")
        self.device = device
        self.context = self.made("clCreateContext", None, 1, ctypes.byref(device), None, None)
        self.queue = self.made("clCreateCommandQueue", self.context, device, ctypes.c_uint64(0))

    def check(self, status: int, what: str, said: str = "") -> None:
        if status:
            raise OpenClError(f"{what}: {status} {said}".strip())

    def made(self, name: str, *arguments) -> ctypes.c_void_p:
        status = ctypes.c_int(0)
        got = getattr(self.cl, name)(*arguments, ctypes.byref(status))
        self.check(status.value, name)
        return ctypes.c_void_p(got)

    def program(self, module: bytes) -> ctypes.c_void_p:
        bitcode = translated(module)
        text, size = ctypes.create_string_buffer(bitcode, len(bitcode)), ctypes.c_size_t(len(bitcode))
        pointers, loaded = (ctypes.c_void_p * 1)(ctypes.addressof(text)), ctypes.c_int(0)
        program = self.made(
            "clCreateProgramWithBinary", self.context, 1, ctypes.byref(self.device), ctypes.byref(size), pointers,
            ctypes.byref(loaded),
        )  # fmt: skip
        said = ctypes.create_string_buffer(1 << 16)
        options = b"-x spir -spir-std=1.2"
        status = self.cl.clBuildProgram(program, 1, ctypes.byref(self.device), options, None, None)
        if status:
            n_bytes = ctypes.c_size_t(len(said))
            self.cl.clGetProgramBuildInfo(program, self.device, BUILD_LOG, n_bytes, said, None)
        self.check(status, "clBuildProgram", said.value.decode(errors="replace"))
        return program

    def run(self, program: ctypes.c_void_p, launch: Launch, grid, block, given: list[int]) -> None:
        """One grid, on addresses of the host and sizes: this CPU is the device, which reads memory where it lies."""
        kernel = self.made("clCreateKernel", program, launch.entry.encode())
        for k, a in enumerate(given):
            word = ctypes.c_uint64(a)
            if k < len(launch.params):
                status = self.cl.clSetKernelArgSVMPointer(kernel, k, ctypes.c_void_p(a))
            else:
                status = self.cl.clSetKernelArg(kernel, k, ctypes.c_size_t(8), ctypes.byref(word))
            self.check(status, f"argument {k}")
        local = (ctypes.c_size_t * 3)(*block)
        whole = (ctypes.c_size_t * 3)(*(g * b for g, b in zip(grid, block, strict=True)))
        status = self.cl.clEnqueueNDRangeKernel(self.queue, kernel, 3, None, whole, local, 0, None, None)
        self.check(status, "clEnqueueNDRangeKernel")
        self.check(self.cl.clFinish(self.queue), "clFinish")
        self.cl.clReleaseKernel(kernel)


class Module:
    """A kernel's module on the device; what :class:`ptx.recorder.Recorder` runs an entry by."""

    def __init__(self, module: bytes, launches: tuple[Launch, ...]) -> None:
        self.device, self.launches = device(), {launch.entry: launch for launch in launches}
        self.program = self.device.program(module)

    def run(self, entry: str, grid, block, given: list[int]) -> None:
        self.device.run(self.program, self.launches[entry], grid, block, given)

    def __call__(self, arrays: dict[str, np.ndarray], sizes: dict[str, int] | None = None) -> None:
        for launch in self.launches.values():
            env = {s: (sizes or {})[s.name] for s in launch.sizes}
            given = [arrays[b.name].ctypes.data for b in launch.params] + list(env.values())
            self.run(launch.entry, [evaluate(d, env) for d in launch.grid], launch.block, given)


@cache
def device() -> Device:
    return Device()


TYPE_BOOL, TYPE_INT, TYPE_FLOAT, CONSTANT_FALSE, CONSTANT, CONSTANT_NULL = 20, 21, 22, 42, 43, 46
"""Operations of SPIR-V by their numbers."""


def with_zeros_spelled(module: bytes) -> bytes:
    """The module with `OpConstantNull` of numbers as `OpConstant`, since the translator's assertions refuse the former.

    SPIR-V's specification gives both one meaning: all bits of the number are 0.
    """
    words = np.frombuffer(module, np.uint32).tolist()
    n_words: dict[int, int] = {}  # of a number of each type, by the type's name
    made, at = words[:5], 5
    while at < len(words):
        length, operation = words[at] >> 16, words[at] & 0xFFFF
        held = words[at + 1 : at + length]
        if operation == TYPE_BOOL:
            n_words[held[0]] = 0
        elif operation in (TYPE_INT, TYPE_FLOAT):
            n_words[held[0]] = -(-held[1] // 32)
        if operation == CONSTANT_NULL and (n := n_words.get(held[0])) is not None:
            made += [(3 + n) << 16 | (CONSTANT if n else CONSTANT_FALSE), *held, *[0] * n]
        else:
            made += words[at : at + length]
        at += length
    return np.array(made, np.uint32).tobytes()


def translated(module: bytes) -> bytes:
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "k.spv", Path(folder) / "k.bc"
        source.write_bytes(with_zeros_spelled(module))
        done = subprocess.run(
            [str(TRANSLATOR), "-r", str(source), "-o", str(target)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return target.read_bytes()
