"""WebAssembly, 32-bit memory, with 128-bit vectors.

In: nothing. Out: ``Machine`` rows. Not its business: what hosts a module (a browser, node, wasmtime).

The features are those that every engine with ``simd128`` has.
"""

from __future__ import annotations

from tilewright.target.isa import Machine

_FEATURES = "+simd128,+bulk-memory,+nontrapping-fptoint,+sign-ext,+mutable-globals"

MACHINES: dict[str, Machine] = {
    "wasm32-simd128": Machine(
        "wasm32-unknown-unknown", "generic", _FEATURES, relocation="static", pointer_bytes=4, has_threads=False,
        has_round=True, aliases=("wasm32", "wasm"),
    ),
}  # fmt: skip
