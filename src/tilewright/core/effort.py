"""How much work the compiler does for one question before it takes the answer that needs none.

In: nothing. Out: ``EFFORT``, the bounds that all passes share. Not its business: which code is fast
(``core.estimates``, ``target``, ``choose.cost``), and whether it is right: beyond a bound a pass leaves things as they
are, and never guesses.

A bound keeps the time of a compile, and the size of what it makes, in proportion to the model. It is a round power of
two of the right order of magnitude, and no choice between two forms of code rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Bounds on the answer to one question about a graph, a kernel or a schedule."""

    elements: int = 1 << 22
    """Numbers that NumPy looks at, or makes, in one pass over them: a few milliseconds."""
    points: int = 1 << 16
    """Points of a space that are visited with arithmetic on each: a tenth of a second of Python, or less by NumPy."""
    nodes: int = 512
    """Operations of one kernel's expression, or of the part of a graph that a rule walks: the code that is made of
    them, and the passes over it, grow with them."""
    listed: int = 64
    """Alternatives, elements or places that are held, compared or priced one by one."""
    attempts: int = 32
    """Times that a search begins again from something other than its best, or steps that it looks ahead, before it
    takes the best so far."""
    added_bytes: int = 1 << 20
    """Bytes that a form may take beside those that the program asks for: a folded table, a thread's scratch."""


EFFORT = Effort()
