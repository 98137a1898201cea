"""LLVM text of one function, with value numbering by loop level and hoisting of pure values.

In: instructions as text, each pure one with the level of its deepest operand. Out: the function's body as lines.
Not its business: what the instructions mean.

A *scope* is the body of a loop or branch; scopes nest, and a value's *level* is the depth of the scope that defines
it. A pure instruction goes to the scope of its level, which is an outer one when no operand changes in the inner
loop: there it lands in the *hole* just before the construct that is open. Loads never move.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, Union

Lines: TypeAlias = list[Union[str, "Lines"]]


class Val(NamedTuple):
    """An SSA value or a literal: its text, the level of its scope, and its lanes (0 for a scalar)."""

    text: str
    level: int
    lanes: int


class OpenBlock:
    """One open loop body or branch."""

    __slots__ = ("indices", "known", "out", "sink")

    def __init__(self) -> None:
        self.out: Lines = []
        self.sink: Lines = self.out
        self.known: dict[str, str] = {}
        self.indices: dict[tuple[object, ...], Val] = {}


class Writer:
    """Collects the body of one function."""

    def __init__(self) -> None:
        self.root = OpenBlock()
        self.scopes: list[OpenBlock] = [self.root]
        self.entry: Lines = []
        self.block = self.region = "entry"
        self.n_lines = 0
        self._n_labels = 0

    @property
    def level(self) -> int:
        """The level of the innermost open scope."""
        return len(self.scopes) - 1

    def pure(self, rhs: str, level: int) -> str:
        """The name of ``rhs``, an instruction without effects whose operands live at ``level`` or above."""
        scope = self.scopes[level]
        name = scope.known.get(rhs)
        if name is None:
            self.n_lines += 1
            name = scope.known[rhs] = f"%v{self.n_lines}"
            scope.sink.append(f"  {name} = {rhs}")
        return name

    def fresh(self, rhs: str) -> str:
        """The name of a new value computed here and now: loads, calls, anything that must not move."""
        self.n_lines += 1
        name = f"%v{self.n_lines}"
        self.scopes[-1].out.append(f"  {name} = {rhs}")
        return name

    def emit(self, text: str) -> None:
        """An instruction without a result."""
        self.n_lines += 1
        self.scopes[-1].out.append(f"  {text}")

    def name(self) -> str:
        """An unused value name, for a phi that is written before its operands are known."""
        self.n_lines += 1
        return f"%v{self.n_lines}"

    def label(self, hint: str) -> str:
        """An unused label."""
        self._n_labels += 1
        return f"{hint}{self._n_labels}"

    def start_block(self, label: str, region: str = "") -> None:
        """Begin the basic block ``label``; the previous one must have ended.

        What was computed in a *region* has run wherever a later block of it does. Each block begins one of its own,
        but a block behind a branch may go on with the ``region`` that the branch began in.
        """
        self.scopes[-1].out.append(f"{label}:")
        self.block, self.region = label, region or label

    def placeholder(self) -> Lines:
        """A place in the current scope whose lines are filled in later."""
        lines: Lines = []
        self.scopes[-1].out.append(lines)
        return lines

    def open_scope(self) -> None:
        """Enter a loop body or branch; until it closes, pure values of outer scopes go in front of it."""
        outer = self.scopes[-1]
        outer.sink = []
        outer.out.append(outer.sink)
        self.scopes.append(OpenBlock())

    def close_scope(self) -> None:
        """Leave the innermost scope; its lines follow what the outer scope has so far."""
        inner = self.scopes.pop()
        outer = self.scopes[-1]
        outer.out.append(inner.out)
        outer.sink = outer.out

    def lines(self) -> list[str]:
        """All lines of the body, entry allocations first."""
        result: list[str] = ["entry:"]
        _flatten(self.entry, result)
        _flatten(self.root.out, result)
        return result


def _flatten(lines: Lines, into: list[str]) -> None:
    for line in lines:
        if isinstance(line, str):
            into.append(line)
        else:
            _flatten(line, into)
