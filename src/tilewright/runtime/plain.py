"""``dataclass`` for what is imported whenever a model is loaded: the same classes, defined in a fraction of the time.

In: what ``dataclasses.dataclass`` takes. Out: what that makes. Not its business: classes that only the compiler loads.

Python writes the text of every method of a dataclass and compiles it when the class is defined; of the records that a
load needs that took longer than to read the model. Here all methods are functions that need no text: what differs
between classes is in the names that they hold. Making a record takes about a microsecond more for that.
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

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False) -> Any:
        """``dataclasses.dataclass`` with those of its options that the runtime's records have."""
        if cls is None:
            return lambda given: dataclass(given, frozen=frozen, slots=slots)
        written = {name for name, value in vars(cls).items() if (name, value) != ("__hash__", None)}
        # for the fields, their order and defaults, and the slots: none of that is compiled
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots)
        for name, method in _methods(made, frozen=frozen, slots=slots).items():
            if name not in written:
                setattr(made, name, method)
        return made


def _methods(cls: type, *, frozen: bool, slots: bool) -> dict[str, Any]:
    """What ``dataclasses`` would write for a class with these fields."""
    fields = dataclasses.fields(cls)
    assert all(f.init and not f.kw_only and f.hash is None for f in fields)
    values = _values([f.name for f in fields if f.compare])
    shown = [f.name for f in fields if f.repr]

    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    made: dict[str, Any] = {"__init__": _init(cls.__qualname__, fields), "__eq__": __eq__, "__repr__": __repr__}
    made["__hash__"] = __hash__ if frozen else None  # what changes is not to be found by what it was
    if frozen:
        made |= {"__setattr__": _forbid_set, "__delattr__": _forbid_delete}
    if frozen and slots:  # copying and pickling assign to slots one by one, unless told otherwise
        made |= {"__getstate__": _state, "__setstate__": _set_state}
    return made


def _init(title: str, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    names = tuple(f.name for f in fields)
    n, put = len(names), object.__setattr__

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        if named or len(given) != n:
            given = _completed(title, fields, given, named)
        for name, value in zip(names, given, strict=True):
            put(self, name, value)

    return __init__


def _completed(
    title: str, fields: tuple[dataclasses.Field[Any], ...], given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The value of each field, of arguments by position and by name; ``TypeError`` where they do not fit."""
    if len(given) > len(fields):
        raise TypeError(f"{title} takes {len(fields)} values, {len(given)} were given")
    values = list(given)
    for f in fields[len(given) :]:
        if f.name in named:
            values.append(named.pop(f.name))
        elif f.default is not dataclasses.MISSING:
            values.append(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            values.append(f.default_factory())
        else:
            raise TypeError(f"{title} lacks a value for {f.name!r}")
    if named:
        raise TypeError(f"{title} has no place for {sorted(named)}")
    return tuple(values)


def _forbid_set(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _forbid_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)
