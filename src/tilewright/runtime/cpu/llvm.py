"""What of LLVM the runtime uses: an assembler for its own few texts, and a linker where ours does not do.

In: texts of modules, objects. Out: objects, addresses. Not its business: the cache, and which linker is asked first
(``linker``).

Importing this module imports llvmlite, which takes longer than to load a model: only who needs it does.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from tilewright.runtime.cpu.llvm_fork import check_llvm
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.once import MAKING, once

_names = itertools.count()


def compile_ir(text: str, features: str = "") -> bytes:
    """Object code of an LLVM module for any CPU of this machine's kind, without any optimisation pass."""
    check_llvm()
    with MAKING:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.get_process_triple()
        # what is placed together lies within 2 GiB, whichever linker does it
        machine = llvm.Target.from_triple(triple).create_target_machine(
            features=features, opt=3, reloc="pic", codemodel="small"
        )
        module = llvm.parse_assembly(text)
        module.triple = triple
        module.verify()
        return bytes(machine.emit_object(module))


def link_by_llvm(objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> Any:
    """A tracker of the linked code, which has addresses by name; ``ArtifactError`` for what does not link."""
    check_llvm()
    builder = llvm.JITLibraryBuilder().add_current_process()
    for data in objects:
        builder.add_object_img(data)
    for name in exports:
        builder.export_symbol(name)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    with MAKING:
        try:
            return builder.link(_linker(), f"tilewright.{next(_names)}")
        except RuntimeError as error:
            raise ArtifactError(f"the native objects do not link: {error}", remedy="compile the model again") from error


@once
def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()  # LLJIT asks for it even when it is given objects only
    # JITLink keeps an object's sections together. RuntimeDyld maps them one by one, and in a process with gigabytes
    # between two free places they lie too far apart for their relocations, which ends the process.
    return llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


@atexit.register
def _keep_linker() -> None:
    """The code that it linked stays where it is, the process is going away."""
    for made in _linker.made.values():
        made.detach()
