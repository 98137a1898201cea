"""A kernel to a module of SPIR-V, in stages each of which can be read: LLVM's text, the module.

In: a ``tile.ir.Kernel`` of flat grids, a ``Gpu``. Out: a :class:`SpirvKernel`. Not its business: schedules
(``choose``), LLVM's target (``assemble``), running it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.ptx.compile import GpuText
from tilewright.codegen.ptx.compile import emit as emit_grids
from tilewright.codegen.ptx.launch import Launch
from tilewright.codegen.spirv import assemble
from tilewright.codegen.spirv.dialect import GENERIC, OPENCL
from tilewright.target.gpu import Gpu
from tilewright.tile.ir import Kernel

GENERIC_POINTER = re.compile(r"\bptr\b(?! addrspace\()")
MAGIC = (0x07230203).to_bytes(4, "little")
"""How a module begins."""
SAID = re.compile(r"LLVM ERROR|Assertion|Error: ")
"""In the line that says what is wrong, of all that a process which LLVM ends writes."""


@dataclass(frozen=True)
class SpirvKernel:
    """LLVM's text of a kernel's module, the module of SPIR-V, and its launches in their order."""

    text: str
    module: bytes
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, gpu: Gpu) -> GpuText:
    """The module's LLVM text; ``CodegenError`` for a kernel that is not one of flat grids, or does not fit the GPU."""
    made = emit_grids(kernel, gpu, OPENCL)
    return GpuText(GENERIC_POINTER.sub(f"ptr addrspace({GENERIC})", made.text), made.launches)


def compile_kernel(kernel: Kernel, gpu: Gpu) -> SpirvKernel:
    """The module for the kernel, and its launches."""
    emitted = emit(kernel, gpu)
    return SpirvKernel(emitted.text, module_of(emitted.text), emitted.launches)


def module_of(text: str) -> bytes:
    """SPIR-V of LLVM text; ``CodegenError`` with LLVM's words for what its target has no instructions for."""
    # LLVM is wherever this process found it; nothing of ours is loaded.
    code = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_path({assemble.__file__!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], input=text.encode(), capture_output=True, check=False)
    if done.returncode or not done.stdout.startswith(MAGIC):
        said = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        rule = next((line for line in said if SAID.search(line)), (said or ["nothing"])[-1])
        remedy = "compile for another target; the text of the kernel is what to report"
        raise CodegenError(f"LLVM makes no SPIR-V of this kernel, and says: {rule}", remedy=remedy)
    return done.stdout
