"""Text that LLVM's verifier passes and its code generator then aborts the process on.

In: LLVM text. Out: nothing, or a ``CodegenError`` that names the line. Not its business: what the verifier finds.

* Vectors of ``bfloat`` other than between an AVX512-BF16 instruction and a ``bitcast``. No machine computes with them,
  and once LLVM has made types legal it still folds a ``fptrunc`` of constants, or a shuffle of those, to such a vector,
  whose elements have a type that is not (``LegalizeDAG.cpp``, "Unexpected illegal type!").
"""

from __future__ import annotations

from tilewright.codegen.errors import CodegenError

_VECTOR = " x bfloat>"
_SAFE = (" = bitcast ", " @llvm.x86.avx512bf16.")


def refuse_fatal(text: str) -> None:
    """Raise ``CodegenError`` for text that would end the process."""
    if _VECTOR not in text:
        return
    for line in text.splitlines():
        if _VECTOR in line and not any(s in line for s in _SAFE):
            raise CodegenError(f"LLVM would abort on a vector of bfloat: {line.strip()}")
