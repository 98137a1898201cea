"""How deep brackets and names for types and attributes are nested in the text of an MLIR module.

In: a text. Out: ``too_deep``, the line where it is deeper than MLIR's reader survives, which recurses and has no limit
of its own: some thousands of levels end the process, and hundreds do in a thread with a small stack. Not its business:
whether the text is right. A type or an attribute that has a name is as deep as what the name stands for; a location is
left out, since tracebacks are long, and MLIR reads and prints chains of their names without recursion.
"""

from __future__ import annotations

import re

MOST_LEVELS = 200
"""MLIR takes some KiB of the stack for a level of regions, and threads have half a MiB of it on some systems."""

_TOKEN = re.compile(
    r"""
    "(?:[^"\\\n]|\\.)*" | //[^\n]*              # texts and remarks
  | (?P<arrow>->|[<>]=)                         # signs that are no brackets
  | (?P<open>[(\[{<]) | (?P<close>[)\]}>])
  | (?P<minus>-\s*(?:-\s*)+)                    # signs before a number of an affine map
  | ^(?P<defined>[\#!][\w$.-]+)\s*=(?P<location>\s*loc\b)?
  | (?P<named>[\#!][\w$.-]+)
    """,
    re.VERBOSE | re.MULTILINE,
)


def too_deep(text: str) -> int | None:
    """The number of the first line where more than ``MOST_LEVELS`` are open; None where there is none."""
    level = 0
    depths: dict[str, int] = {}
    name, end = "", 0  # what is being defined, and where the line ends at which its definition may be over
    for token in _TOKEN.finditer(text):
        if name and level == 0 and token.start() > end:
            name = ""
        if level == 0 and token["defined"]:
            name, end = "" if token["location"] else token["defined"], _line_end(text, token.end())
            continue
        reached = level
        if token["open"]:
            level = reached = level + 1
        elif token["close"]:
            level = max(level - 1, 0)
            end = _line_end(text, token.end()) if name and level == 0 else end
        elif token["minus"]:
            reached += token["minus"].count("-")
        elif token["named"]:
            reached += depths.get(token["named"], 0)
        if name:
            depths[name] = max(depths.get(name, 0), reached)
        if reached > MOST_LEVELS:
            return text.count("\n", 0, token.start()) + 1
    return None


def _line_end(text: str, start: int) -> int:
    found = text.find("\n", start)
    return len(text) if found < 0 else found
