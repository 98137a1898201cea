"""What an exported model looks like from outside: its C names, its kinds of status, its texts.

In: a manifest and a name. Out: an ``Interface`` that the header, the glue and the report share, so that they agree.
Not its business: C text (``header``), LLVM text (``glue``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.core.diag import OptionError
from tilewright.runtime.library import ABI_VERSION, DTYPE_NAMES
from tilewright.runtime.manifest import Manifest

ALIGNMENT = 64
HANDLE_BYTES = 64
"""A handle's own fields; the tables of pointers and sizes and the arena follow it."""

STATUS = {
    "TW_OK": (0, "done"),
    "TW_ERROR_NULL": (1, "a pointer is NULL"),
    "TW_ERROR_SHAPE": (2, "a size is not one that the model is compiled for"),
    "TW_ERROR_MEMORY": (3, "there is too little memory"),
    "TW_ERROR_ALIGNMENT": (4, "memory or weights are not aligned"),
    "TW_ERROR_WEIGHTS": (5, "the weights are missing, or another model's"),
    "TW_ERROR_INDEX": (6, "there is no input or output of that number"),
    "TW_ERROR_RUN": (7, "the model's code reports a failure"),
    "TW_ERROR_CPU": (8, "this CPU lacks instructions that the code uses"),
}
DTYPES = {name: number for number, name in enumerate(DTYPE_NAMES) if name}
"""Numbers of ``tw_dtype``; they never change. Types narrower than a byte take a byte an element."""

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}")


@dataclass
class Interface:
    """``name`` begins every symbol. ``arena_bytes`` is a number, or a text over symbols.

    ``stack_bytes`` is the most stack that a call takes, without that of ``stack_foreign``, which the object does not
    hold; None where it cannot be told. ``is_source``: what is exported is C. ``rules[k]`` explains a status of which
    ``k + 1`` are the bits above the kind.
    """

    name: str
    manifest: Manifest
    max_threads: int
    weights_bytes: int
    embedded: bool
    arena_bytes: int | str
    fingerprint: str = ""
    stack_bytes: int | None = None
    stack_foreign: tuple[str, ...] = ()
    is_source: bool = False
    rules: list[tuple[str, str]] = field(default_factory=list)

    @property
    def workspace_bytes(self) -> int | None:
        """What a handle takes in all; None where that depends on symbols."""
        return self.arena_at + self.arena_bytes if isinstance(self.arena_bytes, int) else None

    @property
    def dims_at(self) -> int:
        """Where in a handle the table of dimensions begins; the table of arguments is before it."""
        return HANDLE_BYTES + 8 * (len(self.manifest.inputs) + len(self.manifest.outputs))

    @property
    def arena_at(self) -> int:
        """Where in a handle the arena begins, for a call with as many threads as there may be."""
        return self.scratch_at + self.scratch_bytes

    @property
    def scratch_at(self) -> int:
        """Where in a handle the kernels' scratch begins, and with it all that ``tw_run`` calls memory."""
        return -(-(self.dims_at + 8 * self.manifest.n_dims) // ALIGNMENT) * ALIGNMENT

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the kernels' scratch."""
        return self.manifest.scratch.n_bytes(self.max_threads)

    @property
    def state(self) -> list[tuple[int, int, int]]:
        """Of what the model keeps: its input, the output that is its new value, where in the weights it begins."""
        inputs, outputs = ([t.name for t in ts] for ts in (self.manifest.inputs, self.manifest.outputs))
        kept = self.manifest.convention.state
        return [(inputs.index(k.input), outputs.index(k.output), k.offset) for k in kept]

    def status(self, kind: str, text: str = "") -> int:
        """The number of a status; with ``text``, one that says which rule was broken."""
        if not text:
            return STATUS[kind][0]
        rule = (kind, text)
        if rule not in self.rules:
            self.rules.append(rule)
        return STATUS[kind][0] | (self.rules.index(rule) + 1) << 8


def c_name(text: str) -> str:
    """A C identifier like a text: a model's default name."""
    found = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:100] or "model"
    return found if found[0].isalpha() else f"m_{found}"


def checked_name(name: str) -> str:
    """The name, if it can begin C identifiers that nobody else owns; raises ``OptionError``."""
    if not _IDENTIFIER.fullmatch(name) or name.startswith(("tw_", "TW_")) or name in ("tw", "tilewright"):
        rule = f"{name!r} can't begin the names of C functions"
        raise OptionError(rule, remedy="use letters, digits and _, a letter first, and not tw")
    return name


def unique_macros(names: Iterable[str]) -> list[str]:
    """Upper-case C identifiers for names of any kind, all different."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Z0-9_]+", "_", name.upper()).strip("_") or "UNNAMED"
        made, k = stem, 2
        while made in found:
            made, k = f"{stem}_{k}", k + 1
        found.append(made)
    return found


__all__ = ["ABI_VERSION", "ALIGNMENT", "DTYPES", "STATUS", "Interface", "c_name", "checked_name", "unique_macros"]
