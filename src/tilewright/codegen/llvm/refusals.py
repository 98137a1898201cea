"""Text that LLVM's verifier passes and its code generator then aborts the process on.

In: LLVM text, and what the target's code generator can't take. Out: nothing, or a ``CodegenError`` that names the line.
Not its business: what the verifier finds.

* Vectors of ``bfloat`` other than between an AVX512-BF16 instruction and a ``bitcast``. No machine computes with them,
  and once LLVM has made types legal it still folds a ``fptrunc`` of constants, or a shuffle of those, to such a vector,
  whose elements have a type that is not (``LegalizeDAG.cpp``, "Unexpected illegal type!").
* Gathers for Helium that may be dead. LLVM lists a function's gathers, replaces one after the other, and deletes in
  between what is dead, so that it may come to one that is no more (``MVEGatherScatterLowering.cpp``). Text that is
  dead only after folding, such as a choice by ``x < 0`` of unsigned numbers, is still there when the list is made.
  ``USE_GATHERED`` in the next line keeps a gather, and becomes no instruction.
"""

from __future__ import annotations

import re
from itertools import pairwise

from tilewright.codegen.errors import CodegenError

_VECTOR = " x bfloat>"
USE_GATHERED = "call void (...) @llvm.fake.use"
_GATHER = re.compile(r"(%\S+) = call (<.*?>) @llvm\.masked\.gather\.")
_SAFE = (" = bitcast ", " @llvm.x86.avx512bf16.")


def refuse_fatal(text: str, *, loses_gathers: bool) -> None:
    """Raise ``CodegenError`` for text that would end the process."""
    if _VECTOR in text:
        _refuse_vectors(text.splitlines())
    if loses_gathers:
        _refuse_gathers(text.splitlines())


def _refuse_vectors(lines: list[str]) -> None:
    for line in lines:
        if _VECTOR in line and not any(s in line for s in _SAFE):
            raise CodegenError(f"LLVM would abort on a vector of bfloat: {line.strip()}")


def _refuse_gathers(lines: list[str]) -> None:
    for line, following in pairwise(lines):
        found = _GATHER.search(line)
        if found is not None and following.strip() != f"{USE_GATHERED}({found[2]} {found[1]})":
            raise CodegenError(f"LLVM may abort on a gather that is dead: {line.strip()}")
