"""Code for a GPU of any maker: the triple says whose back end makes it.

In: a kernel of flat grids, a ``Gpu``. Out: LLVM's text, or a :class:`GpuModule`. Not its business: how
(``codegen.ptx``, ``codegen.amd``, ``codegen.spirv``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.amd import compile as amd
from tilewright.codegen.ptx import compile as ptx
from tilewright.codegen.ptx.compile import GpuText
from tilewright.codegen.ptx.launch import Launch
from tilewright.codegen.spirv import compile as spirv
from tilewright.core.deep import deeply
from tilewright.target.gpu import ROCM_TRIPLE, SPIRV_TRIPLE, Gpu
from tilewright.tile.ir import Kernel


@dataclass(frozen=True)
class GpuModule:
    """A kernel's module as assembly for people, and its launches in their order.

    What a driver takes is the text itself, PTX, where there is no ``code_object``. Of SPIR-V the text is LLVM's.
    """

    assembly: str
    code_object: bytes
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, gpu: Gpu) -> GpuText:
    """The module's LLVM text."""
    makers = {ROCM_TRIPLE: amd.emit, SPIRV_TRIPLE: spirv.emit}
    return deeply(lambda: makers.get(gpu.triple, ptx.emit)(kernel, gpu))


def compile_kernel(kernel: Kernel, gpu: Gpu) -> GpuModule:
    """The module and its launches."""
    return deeply(lambda: _compile_kernel(kernel, gpu))


def _compile_kernel(kernel: Kernel, gpu: Gpu) -> GpuModule:
    if gpu.triple == ROCM_TRIPLE:
        made = amd.compile_kernel(kernel, gpu)
        return GpuModule(made.assembly, made.code_object, made.launches)
    if gpu.triple == SPIRV_TRIPLE:
        module = spirv.compile_kernel(kernel, gpu)
        return GpuModule(module.text, module.module, module.launches)
    found = ptx.compile_kernel(kernel, gpu)
    return GpuModule(found.ptx, b"", found.launches)
