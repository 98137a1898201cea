"""WebAssembly, 32-bit memory, with 128-bit vectors.

In: a machine of which nothing is known. Out: rows of ``Target``.
Not its business: what hosts a module (a browser, node, wasmtime).

The features are those that every engine with ``simd128`` has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.target.dots import PAIRS_OF_WASM
from tilewright.target.lookups import LOOKUP_OF_WASM
from tilewright.target.sources import INSTRUCTION_SET

if TYPE_CHECKING:
    from tilewright.target.target import Target

_FEATURES = "+simd128,+bulk-memory,+nontrapping-fptoint,+sign-ext,+mutable-globals"


def machines(unknown: Target) -> dict[str, Target]:
    """Each machine by name: what is ``unknown`` with what is known."""
    return {
        "wasm32-simd128": replace(
            unknown, triple="wasm32-unknown-unknown", cpu="generic", features=_FEATURES, relocation="static",
            pointer_bytes=4, has_threads=False, has_round=True, word_pairs=PAIRS_OF_WASM,
            byte_lookup=LOOKUP_OF_WASM, aliases=("wasm32", "wasm"),
        ).known(INSTRUCTION_SET, vector_bytes=16),
    }  # fmt: skip
