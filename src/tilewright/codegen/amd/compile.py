"""A kernel to a code object for AMD's GPUs, in stages each of which can be read: LLVM's text, assembly, an object.

In: a ``tile.ir.Kernel`` of flat grids, a ``Gpu``. Out: an :class:`AmdKernel`. Not its business: schedules (``choose``),
linking the object to what a runtime loads (``ld.lld -shared`` does), running it.

LLVM's passes run here, with none that copies loops or makes vectors: on the way to AMD's instructions it finds out only
there which generic pointers lead to global and which to shared memory, and what a kernel does not ask of its launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm

from tilewright.codegen.amd.dialect import AMD
from tilewright.codegen.ptx.compile import GpuText, gpu_machine, verified
from tilewright.codegen.ptx.compile import emit as emit_grids
from tilewright.codegen.ptx.launch import Launch
from tilewright.target.gpu import Gpu
from tilewright.tile.ir import Kernel


@dataclass(frozen=True)
class AmdKernel:
    """Assembly of a kernel's module, the ELF object of the same, and its launches in their order."""

    assembly: str
    code_object: bytes
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, gpu: Gpu) -> GpuText:
    """The module's LLVM text; ``CodegenError`` for a kernel that is not one of flat grids, or does not fit the GPU."""
    return emit_grids(kernel, gpu, AMD)


def compile_kernel(kernel: Kernel, gpu: Gpu) -> AmdKernel:
    """Assembly and the object for the kernel, and its launches."""
    emitted = emit(kernel, gpu)
    return AmdKernel(*assembled(emitted.text, gpu), emitted.launches)


def assembled(text: str, gpu: Gpu) -> tuple[str, bytes]:
    """Assembly and the object of LLVM text."""
    machine = gpu_machine(gpu)
    module = verified(text, machine)
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = options.loop_interleaving = False
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    # Code generation changes the module, so the object is made of a copy.
    return str(machine.emit_assembly(module.clone())), bytes(machine.emit_object(module))
