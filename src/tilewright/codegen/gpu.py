"""Code for a GPU of any maker: the triple says whose back end makes it.

In: a kernel of flat grids, a ``Gpu``. Out: LLVM's text, or a :class:`GpuModule`. Not its business: how
(``codegen.ptx``, ``codegen.amd``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.amd import compile as amd
from tilewright.codegen.ptx import compile as ptx
from tilewright.codegen.ptx.compile import GpuText
from tilewright.codegen.ptx.launch import Launch
from tilewright.target.gpu import ROCM_TRIPLE, Gpu
from tilewright.tile.ir import Kernel


@dataclass(frozen=True)
class GpuModule:
    """A kernel's module as assembly for people, and its launches in their order.

    What a driver takes is the text itself, PTX, where there is no ``code_object``.
    """

    assembly: str
    code_object: bytes
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, gpu: Gpu) -> GpuText:
    """The module's LLVM text."""
    return amd.emit(kernel, gpu) if gpu.triple == ROCM_TRIPLE else ptx.emit(kernel, gpu)


def compile_kernel(kernel: Kernel, gpu: Gpu) -> GpuModule:
    """The module and its launches."""
    if gpu.triple == ROCM_TRIPLE:
        made = amd.compile_kernel(kernel, gpu)
        return GpuModule(made.assembly, made.code_object, made.launches)
    found = ptx.compile_kernel(kernel, gpu)
    return GpuModule(found.ptx, b"", found.launches)
