"""A kernel to PTX, in stages each of which can be read: grids, LLVM's text, PTX.

In: a ``tile.ir.Kernel`` of flat grids, a ``Gpu``. Out: a :class:`PtxKernel`: one module, and a launch for each grid.
Not its business: schedules (``choose``), assembling PTX to machine code, which the driver does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import llvmlite.binding as llvm

from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.analysis import analyse
from tilewright.codegen.llvm.split import Splits
from tilewright.codegen.ptx.dialect import NVIDIA, Dialect
from tilewright.codegen.ptx.function import PtxFunction, PtxModule
from tilewright.codegen.ptx.instructions import ThreadInstructions
from tilewright.codegen.ptx.launch import Launch, grid_of
from tilewright.codegen.ptx.warps import own_registers
from tilewright.core.compute import Buffer
from tilewright.runtime.cpu.llvm_fork import check_llvm
from tilewright.runtime.once import once
from tilewright.target.gpu import Gpu
from tilewright.tile.grid import Grid, grids_of
from tilewright.tile.ir import For, Kernel, Kind, walk, written

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class GpuText:
    """LLVM's text of a kernel's module, and its launches in their order."""

    text: str
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class PtxKernel:
    """PTX of a kernel's module, and its launches in their order."""

    ptx: str
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, gpu: Gpu, dialect: Dialect = NVIDIA) -> GpuText:
    """The module's LLVM text in a maker's dialect.

    ``CodegenError`` for a kernel that is not one of flat grids, or does not fit the GPU.
    """
    has_warps = any(isinstance(s, For) and s.loop.kind is Kind.WARP for s in walk(kernel.body))
    if has_warps and kernel.lanes != gpu.warp_lanes:
        raise CodegenError(f"{kernel.name} is for warps of {kernel.lanes} lanes; {gpu.name} has {gpu.warp_lanes}")
    kernel = own_registers(kernel)
    target = ThreadInstructions(gpu, has_bf16=dialect.has_bfloat)
    splits = Splits(kernel.body, kernel.sizes)
    module = PtxModule(kernel, target, analyse(kernel, target), splits, dialect=dialect)
    grids = grids_of(kernel)
    launches = [_emit_grid(module, grid, n, len(grids)) for n, grid in enumerate(grids)]
    return GpuText(module.text() + dialect.footer, tuple(launches))


def _emit_grid(module: PtxModule, grid: Grid, number: int, n_grids: int) -> Launch:
    kernel, gpu = module.kernel, module.target.gpu
    # PTX has letters, digits and underscores in names; LLVM renames what is private, and leaves the rest as it is.
    name = NOT_IN_NAMES.sub("_", kernel.name)
    entry = name if n_grids == 1 else f"{name}_{number}"
    if not grid.is_flat:
        raise CodegenError(f"{entry}: its threads run in phases", remedy="call tile.flatten before code generation")
    fn = PtxFunction(module, grid, entry)
    block = fn.block
    outermost = kernel.body[number]
    assert isinstance(outermost, For)  # so says ``grids_of``
    changed: set[Buffer] = {b for s in walk((outermost,)) for b in written(s)}
    module.functions.append(fn.emit(outermost, changed))
    fn.check_shared()
    declaration, dynamic = fn.shared_text(gpu.static_shared_bytes)
    if declaration:
        module.globals[fn.shared.name] = declaration
    extents = grid_of(grid.blocks, gpu).extents
    return Launch(entry, extents, block, kernel.params, kernel.sizes, fn.shared.n_bytes, dynamic)


def compile_kernel(kernel: Kernel, gpu: Gpu) -> PtxKernel:
    """PTX for the kernel, and its launches."""
    emitted = emit(kernel, gpu)
    return PtxKernel(ptx_of_text(emitted.text, gpu), emitted.launches)


def ptx_of_text(text: str, gpu: Gpu) -> str:
    """PTX of LLVM text, in the oldest version of PTX that knows the GPU's instruction set, for the oldest driver."""
    machine = gpu_machine(gpu)
    return str(machine.emit_assembly(verified(text, machine)))


def verified(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """LLVM's module of the text, for the machine; ``CodegenError`` with LLVM's words where it is none."""
    try:
        module = llvm.parse_assembly(f'target datalayout = "{machine.target_data}"\n{text}')
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM refused the emitted text: {error}") from error
    return module


def gpu_machine(gpu: Gpu) -> llvm.TargetMachine:
    """LLVM's description of the GPU; one for each and process."""
    check_llvm()
    return _machine(gpu.triple, gpu.arch)


@once
def _machine(triple: str, arch: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(triple).create_target_machine(cpu=arch, opt=3)
