"""Weights into an object file, without LLVM: bytes at the end of the file, and a section's header put right.

In: an object with a small section that stands for the weights, and the weights. Out: the pieces of a complete object.
Not its business: what else is in the object (``link``). Formats without a rule here carry weights as LLVM constants.
"""

from __future__ import annotations

from typing import Any

from tilewright.runtime.elf import ElfObject
from tilewright.runtime.errors import ArtifactError

WEIGHTS_SECTIONS = {
    "ELF": ".rodata.tw_weights", "COFF": ".rdata$tw", "MachO": "__TEXT,__tw_weights", "Wasm": ".rodata.tw_weights",
}  # fmt: skip
PAGE = 64


def as_constant(weights: Any) -> str:
    """Weights as an LLVM constant: for formats without a rule here, and small models."""
    view = memoryview(weights).cast("B")
    return f'[{len(view)} x i8] c"\\{view.hex(chr(92))}"'


def embed(data: bytes, weights: Any) -> list[Any]:
    """An ELF object's pieces with the placeholder's section replaced by ``weights``, which stay uncopied."""
    elf = ElfObject(data)
    index = elf.section_named(WEIGHTS_SECTIONS["ELF"])
    if index is None:
        raise ArtifactError("the object has no section for weights", remedy="report this with the model")
    size = memoryview(weights).nbytes
    patched = bytearray(data)
    start = -(-len(patched) // PAGE) * PAGE
    patched += bytes(start - len(patched))
    elf.put_section(patched, index, start, size)
    for symbol in elf.symbols:
        if symbol.section == index and symbol.size:
            elf.put_symbol_size(patched, symbol, size)
    return [bytes(patched), weights]
