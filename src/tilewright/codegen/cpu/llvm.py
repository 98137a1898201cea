"""A kernel to LLVM text, assembly, or an object file.

In: a scheduled ``tile.ir.Kernel`` and a ``Target``. Out: text or bytes. Not its business: whole programs
(``codegen.cpu.program``), loading what comes out (``runtime``).

The function is ``void NAME(ptr param..., i64 size..., i32 threads, ptr scratch)`` (``scratch``). A kernel that may run
beside others also has ``void NAME.part(ptr param..., i64 size..., i64 first, i64 end, ptr scratch)``, which never asks
for threads: iterations of the parallel loop that is the whole kernel, or, without such a loop, all of it.
LLVM parses, verifies and selects instructions; no optimisation pipeline runs, because its loop unrolling spills the
register tiles that the schedule chose.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm

from tilewright.choose.shares import whole_extent
from tilewright.codegen.cpu.function import CpuFunction, CpuModule
from tilewright.codegen.cpu.polls import ASK, DECLARATIONS, may_ask
from tilewright.codegen.cpu.scratch import FLAG_BYTES
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.analysis import analyse
from tilewright.codegen.llvm.refusals import refuse_fatal
from tilewright.codegen.llvm.registers import NarrowError
from tilewright.codegen.llvm.split import Splits
from tilewright.codegen.llvm.writer import Val
from tilewright.core.deep import deeply
from tilewright.runtime.cpu.llvm_fork import check_llvm
from tilewright.runtime.manifest import ScratchSpec
from tilewright.runtime.once import once
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel


@dataclass(frozen=True)
class Emitted:
    """A module with a kernel's function and what it calls, as LLVM text; and the memory that the function wants."""

    text: str
    scratch: ScratchSpec
    is_stoppable: bool
    """May the function return early?"""


def emit_kernel(kernel: Kernel, target: Target) -> str:
    """The LLVM text alone."""
    return emit(kernel, target).text


def emit(kernel: Kernel, target: Target, *, part: bool = False, polls: bool = False) -> Emitted:
    """A kernel's module; with ``part`` also ``NAME.part``, with ``polls`` a signal may stop what takes long."""
    return deeply(lambda: _emit_narrow(kernel, target, part, polls))


def _emit_narrow(kernel: Kernel, target: Target, part: bool, polls: bool) -> Emitted:
    """With ends of rows in smaller registers, where nothing needs those in full."""
    try:
        return _emit(kernel, target, narrow=target.has_masks, part=part, polls=polls)
    except NarrowError:
        return _emit(kernel, target, narrow=False, part=part, polls=polls)


def _emit(kernel: Kernel, target: Target, *, narrow: bool, part: bool, polls: bool) -> Emitted:
    splits = Splits(kernel.body, kernel.sizes)
    module = CpuModule(kernel, target, analyse(kernel, target), splits, has_narrow_tails=narrow)
    module.has_part = part and whole_extent(kernel) is not None
    is_whole = part and not module.has_part
    polls = polls and may_ask(module)
    own = _define(module, f'@"{kernel.name}"', "i32 %threads", in_task=False, polls=polls)
    if is_whole or module.has_part:  # all of it, on the thread that calls
        alone = _define(module, module.symbol("part"), "i64 %first, i64 %end", in_task=True, polls=False)
        module.task_bytes = max(module.task_bytes, alone)
    scratch = ScratchSpec(own, module.task_bytes and module.task_bytes + FLAG_BYTES)
    return Emitted(module.text(), scratch, DECLARATIONS[ASK] in module.declarations)


def _define(module: CpuModule, name: str, last: str, *, in_task: bool, polls: bool) -> int:
    """The kernel's body as a function, in a task with its parallel loops on one thread; returns its scratch's bytes."""
    fn = CpuFunction(module, in_task, polls)
    parameters = []
    for n, buffer in enumerate(module.kernel.params):
        fn.bases[id(buffer)] = Val(f"%p{n}", 0, 0)
        parameters.append(f"ptr noalias %p{n}")
    for n, sym in enumerate(module.kernel.sizes):
        fn.space.bind_run(sym, f"%n{n}", 0, (sym.lo, sym.hi))
        parameters.append(f"i64 %n{n}")
    for s in module.kernel.body:
        fn.outermost(s)
    fn.writer.emit("ret void")
    own = fn.locals.in_scratch
    if module.task_bytes and not in_task:
        fn.writer.entry.append(f"  %slots = getelementptr i8, ptr %scratch, i64 {own}")
    head = f"define void {name}({', '.join([*parameters, last, 'ptr noalias %scratch'])}) {module.attributes} {{"
    module.functions.append("\n".join([head, *fn.writer.lines(), "}"]))
    return own


def compile_kernel(kernel: Kernel, target: Target) -> bytes:
    """Position-independent object code for the kernel."""
    return compile_text(emit_kernel(kernel, target), target)


def assembly(kernel: Kernel, target: Target) -> str:
    """The kernel's assembly, to read and to test."""
    return assembly_of_text(emit_kernel(kernel, target), target)


def compile_text(text: str, target: Target) -> bytes:
    """Object code of LLVM text."""
    return bytes(target_machine(target).emit_object(_parsed(text, target)))


def assembly_of_text(text: str, target: Target) -> str:
    """Assembly of LLVM text."""
    return str(target_machine(target).emit_assembly(_parsed(text, target)))


def target_machine(target: Target) -> llvm.TargetMachine:
    """LLVM's description of the target; one per target and process."""
    check_llvm()
    return _machine(target.triple, target.cpu, target.features, target.abi, target.code_model, target.relocation)


@once
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@once
def _machine(triple: str, cpu: str, features: str, abi: str, code_model: str, relocation: str) -> llvm.TargetMachine:
    _initialise()
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc=relocation, codemodel=code_model, abiname=abi
    )


def _parsed(text: str, target: Target) -> llvm.ModuleRef:
    """The module; sizes of pointers and natural alignments are the target's from the start."""
    refuse_fatal(text, loses_gathers=target.loses_gathers)
    layout = str(target_machine(target).target_data)
    try:
        module = llvm.parse_assembly(f'target datalayout = "{layout}"\n{text}')
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM refused the emitted text: {error}") from error
    return module
