"""The package's own source as text and as syntax trees, for tests that read all of it.

In: nothing. Out: where it lies, its files, and what Python's parser makes of each, which takes seconds and is done once
for all tests of a process: pytest gives a file of tests another name than those have for it that import from it, so
what such a file remembers is there twice. Not its business: what is asked of the trees.
"""

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "tilewright"
FILES = sorted(PACKAGE.rglob("*.py"))


def relative_path(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


BODIES = ("body", "handlers", "orelse", "finalbody", "cases")


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree's statements, those in others included, in the order of ``ast.walk``: a tenth of all that it visits."""
    ahead = deque([tree])
    while ahead:
        node = ahead.popleft()
        yield node
        for name in BODIES:
            inner = getattr(node, name, ())
            ahead += inner if isinstance(inner, list) else ()


@cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """A file's statements, those in others included."""
    return tuple(statements_of(parsed(path)))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
    return tuple(ast.walk(parsed(path)))
