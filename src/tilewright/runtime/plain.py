"""``dataclass`` for what is imported whenever a model is loaded: the same classes, defined in half the time.

In: what ``dataclasses.dataclass`` takes. Out: what that makes. Not its business: classes that only the compiler loads.

Python writes the text of every method of a dataclass and compiles it when the class is defined; of the records that a
load needs that took longer than to read the model. Here comparison, hash and text of frozen classes are functions that
all of them share; only ``__init__`` and what forbids assignment is compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **options: Any) -> Any:
        """``dataclasses.dataclass``; its options but ``frozen`` and ``slots`` are for classes that are not frozen."""
        if cls is None:
            return lambda given: dataclass(given, frozen=frozen, **options)
        if not frozen:
            return dataclasses.dataclass(cls, **options)
        assert options.keys() <= {"slots"}
        written = {name for name, value in vars(cls).items() if (name, value) != ("__hash__", None)}
        made = dataclasses.dataclass(cls, frozen=True, eq=False, repr=False, **options)
        for name, method in _methods(made).items():
            if name not in written:
                setattr(made, name, method)
        return made


def _methods(cls: type) -> dict[str, Callable[..., Any]]:
    """What ``dataclasses`` would write for a frozen class with these fields."""
    fields = dataclasses.fields(cls)
    assert all(f.hash is None for f in fields)
    values = _values([f.name for f in fields if f.compare])
    shown = [f.name for f in fields if f.repr]

    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    return {m.__name__: m for m in (__eq__, __hash__, __repr__)}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)
