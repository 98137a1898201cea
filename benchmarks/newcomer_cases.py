"""What a newcomer case is: a module or a function with inputs of several sizes, and the tables that hold such cases.

In: nothing. Out: ``Table``, whose decorators collect cases. Not its business: the cases (``newcomer_*.py``), running
them (``newcomer.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

Inputs = Callable[[int], tuple[Any, ...]]
Callee = TypeVar("Callee", bound=Callable[..., Any])


@dataclass(frozen=True)
class Newcomer:
    """A module or function to compile, as its author would hand it over.

    ``inputs(n)`` gives the arguments at size ``n``. A static entry point sees the first of ``sizes`` only; a dynamic
    one is compiled there and called at each: the axes whose lengths differ between two sizes are the dynamic ones.
    """

    make: Callable[[], Callable[..., Any]]
    inputs: Inputs
    sizes: tuple[int, ...]


class Table(dict[str, Newcomer]):
    """Cases by name, collected by decorators."""

    def module(self, inputs: Inputs, *sizes: int, **arguments: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
        """A class of modules, made with ``arguments`` and put into evaluation mode."""

        def add(kind: type[nn.Module]) -> type[nn.Module]:
            self._add(kind.__name__, Newcomer(lambda: kind(**arguments).eval(), inputs, sizes))
            return kind

        return add

    def function(self, inputs: Inputs, *sizes: int) -> Callable[[Callee], Callee]:
        """A function of tensors."""

        def add(function: Callee) -> Callee:
            self._add(getattr(function, "__name__", ""), Newcomer(lambda: function, inputs, sizes))
            return function

        return add

    def _add(self, name: str, case: Newcomer) -> None:
        if name in self or not case.sizes:
            raise ValueError(f"{name} needs a name of its own and a size")
        self[name] = case


def joined(tables: Sequence[Table]) -> dict[str, Newcomer]:
    """All cases; ``ValueError`` where two tables share a name."""
    found: dict[str, Newcomer] = {}
    for table in tables:
        if shared := found.keys() & table.keys():
            raise ValueError(f"two cases are named {', '.join(sorted(shared))}")
        found |= table
    return found
