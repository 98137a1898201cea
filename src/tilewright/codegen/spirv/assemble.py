"""LLVM's SPIR-V target in a process of its own: ``python assemble.py`` reads LLVM text and writes a module.

In: text at the standard input. Out: words of SPIR-V at the standard output; what LLVM says against it at the standard
error, with an exit code that is not 0. Not its business: who asks (``compile``).

That target ends the process on what it can't select, and describes one module for each description of its machine, so
whoever asks for a second one in the same process may be given what is no module at all.
"""

from __future__ import annotations

import sys

import llvmlite.binding as llvm

TRIPLE, CHIP = "spirv64-unknown-unknown", "generic"


def main() -> None:
    """Text to a module. The only passes are those that leave no function but kernels."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=CHIP, opt=3)
    module = llvm.parse_assembly(f'target datalayout = "{machine.target_data}"\n{sys.stdin.read()}')
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    sys.stdout.buffer.write(machine.emit_object(module))


if __name__ == "__main__":
    main()
