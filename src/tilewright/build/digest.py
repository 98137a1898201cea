"""What decides a compiled model's code, as a digest.

In: a graph in kernels. Out: a text of hexadecimal digits. Not its business: weights, of which only the places count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

from tilewright.core.diag import Loc
from tilewright.partition.program import Program, SizedProgram


def digest_of(program: Program, exact: Iterable[SizedProgram], slots: Mapping[str, int]) -> str:
    """Equal for two programs of one compiler and one set of options whose machine code is equal.

    Kernels are called by the digests of what they compute, and pointers say where constants lie. Where in the source
    something comes from does not count.
    """
    return sha256(_text((program, tuple(exact), sorted(slots.items()))).encode()).hexdigest()[:32]


def _text(value: Any) -> str:
    """A record and what it is made of, without locations."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if is_dataclass(value):
        parts = (getattr(value, f.name) for f in fields(value))
        return f"{type(value).__name__}({', '.join(_text(v) for v in parts if not isinstance(v, Loc))})"
    return repr(value)
