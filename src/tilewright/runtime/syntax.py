"""Text in Python's syntax as a syntax tree, read by one thread at a time.

In: the text of one expression. Out: its tree of ``ast``; nothing is executed. Not its business: which nodes are
allowed, which every reader says for itself.

Python 3.11 counts the depth of all trees that are being made in one place, so two threads that parse at once can end in
``SystemError`` ("AST constructor recursion depth mismatch"), where a collection of garbage lets the second one run.
"""

from __future__ import annotations

import ast

from tilewright.runtime.once import ForkLock

ATTEMPTS = 100
"""Code that is not ours may parse at the same time, without our lock."""

_guard = ForkLock()


def parse_expression(text: str) -> ast.expr:
    """The tree of an expression; ``SyntaxError``, ``RecursionError`` or ``MemoryError`` where it has none."""
    with _guard.lock:
        for _ in range(ATTEMPTS):
            try:
                return ast.parse(text.strip(), mode="eval").body
            except SystemError as error:
                met = error
    raise met
