"""Many LLVM modules into one object, or one text, whose only global names are the C interface's.

In: texts of modules and a ``Target``. Out: the bytes of one object file, or the text of one module.
Not its business: what the modules hold.

LLVM merges the modules and renames private symbols that meet; no pass runs, so every function becomes the
instructions that it would become alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm

from tilewright.codegen.cpu.llvm import target_machine
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.llvm.refusals import refuse_fatal
from tilewright.target.target import Target


@dataclass(frozen=True)
class Linked:
    """An object file, and the assembly of the same instructions."""

    data: bytes
    assembly: str


def link_modules(texts: Sequence[str], target: Target, exported: Collection[str], *, features: str = "") -> Linked:
    """One object of all modules; only definitions in ``exported`` stay visible outside."""
    machine = _machine(target, features)
    try:
        whole = _merged(texts, target, exported, machine)
        again = whole.clone()  # what emits instructions also changes the module
        return Linked(bytes(machine.emit_object(whole)), str(machine.emit_assembly(again)))
    except RuntimeError as error:
        raise _refused(error) from error


def merged_text(texts: Sequence[str], target: Target, exported: Collection[str], *, features: str = "") -> str:
    """One module of all, as text that LLVM's tools read; only definitions in ``exported`` are visible outside."""
    try:
        return str(_merged(texts, target, exported, _machine(target, features)))
    except RuntimeError as error:
        raise _refused(error) from error


def _machine(target: Target, features: str) -> llvm.TargetMachine:
    joined = ",".join(f for f in (target.features, features) if f)
    return target_machine(replace(target, features=joined))


def _merged(texts: Sequence[str], target: Target, exported: Collection[str], machine: llvm.TargetMachine) -> Any:
    head = f'target datalayout = "{machine.target_data}"\ntarget triple = "{target.triple}"\n'
    whole = llvm.parse_assembly(head)
    for text in texts:
        refuse_fatal(text, loses_gathers=target.loses_gathers)
        whole.link_in(llvm.parse_assembly(head + _without_triple(text)))
    for symbol in (*whole.functions, *whole.global_variables):
        if not symbol.is_declaration and symbol.linkage == llvm.Linkage.external and symbol.name not in exported:
            symbol.linkage = "internal"
    whole.verify()
    return whole


def _refused(error: RuntimeError) -> CodegenError:
    return CodegenError(f"LLVM refused the modules of an export: {error}")


def _without_triple(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("target triple"))
