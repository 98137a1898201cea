"""Reading untrusted JSON: every access names the field, its type and its range.

In: JSON text. Out: plain values that were checked. ``FieldError`` (a ``ValueError``) says which field is wrong.
Not its business: what the fields mean (``manifest``, ``artifact``, ``cache``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any, NoReturn, cast

MAX_INTEGER = (1 << 63) - 1
"""Sizes are i64 in the compiled code."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FieldError(ValueError):
    """A field is missing, unknown, of another type or out of range."""


def decode_json(text: str | bytes) -> Any:
    """JSON to values; refuses NaN, infinities, duplicate keys and nesting that would exhaust the stack."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:
        raise FieldError(f"not JSON: {error}") from error


class Fields:
    """The fields of one JSON object; ``finish`` refuses those that nobody asked for."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise FieldError(f"{path} is not an object")
        self._values: dict[str, Any] = value
        self._path = path
        self._read: set[str] = set()

    def any(self, key: str) -> Any:
        """The value as it is."""
        if key not in self._values:
            raise FieldError(f"{self._path}.{key} is missing")
        self._read.add(key)
        return self._values[key]

    def names(self) -> tuple[str, ...]:
        """The names of all fields, where the writer chooses them."""
        return tuple(self._values)

    def has(self, key: str) -> bool:
        """Is there such a field?"""
        return key in self._values

    def finish(self) -> None:
        """All fields must have been read."""
        if unknown := sorted(self._values.keys() - self._read):
            raise FieldError(f"{self._path} has unknown fields {unknown[:5]}")

    def integer(self, key: str, lo: int = -MAX_INTEGER, hi: int = MAX_INTEGER) -> int:
        """An integer within an inclusive range (never a bool or a float)."""
        value = self.any(key)
        if isinstance(value, int) and not isinstance(value, bool) and lo <= value <= hi:
            return value
        self._wrong(key, f"an integer in [{lo}, {hi}]")

    def text(self, key: str) -> str:
        """A string."""
        value = self.any(key)
        return value if isinstance(value, str) else self._wrong(key, "a string")

    def identifier(self, key: str) -> str:
        """A string that expressions can use as a name."""
        value = self.text(key)
        return value if _IDENTIFIER.fullmatch(value) else self._wrong(key, "an identifier")

    def digest(self, key: str) -> str:
        """64 hexadecimal digits."""
        value = self.text(key)
        return value if _DIGEST.fullmatch(value) else self._wrong(key, "64 hexadecimal digits")

    def choice(self, key: str, choices: Container[str]) -> str:
        """One of a set of strings."""
        value = self.text(key)
        return value if value in choices else self._wrong(key, "a known value")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._list(key)
        return tuple(value) if all(isinstance(v, str) for v in value) else self._wrong(key, "a list of strings")

    def sizes(self, key: str, most: int) -> tuple[int | str, ...]:
        """A list of at most ``most`` sizes: non-negative integers or expressions."""
        value = self._list(key)
        good = len(value) <= most and all(_is_size(v) for v in value)
        return tuple(value) if good else self._wrong(key, f"a list of at most {most} sizes")

    def optional_size(self, key: str) -> int | str | None:
        """An integer, an expression or null."""
        value = self.any(key)
        if value is None or _is_size(value):
            return cast(int | str | None, value)
        self._wrong(key, "a size or null")

    def child(self, key: str) -> Fields:
        """An object."""
        return Fields(self.any(key), f"{self._path}.{key}")

    def children(self, key: str) -> list[Fields]:
        """A list of objects."""
        return [Fields(v, f"{self._path}.{key}[{i}]") for i, v in enumerate(self._list(key))]

    def _list(self, key: str) -> list[Any]:
        value = self.any(key)
        return value if isinstance(value, list) else self._wrong(key, "a list")

    def _wrong(self, key: str, wanted: str) -> NoReturn:
        raise FieldError(f"{self._path}.{key} is {str(self._values[key])[:80]!r}, not {wanted}")


def _is_size(value: Any) -> bool:
    if isinstance(value, bool | float):
        return False
    return isinstance(value, str) or (isinstance(value, int) and 0 <= value <= MAX_INTEGER)


def _no_constant(name: str) -> NoReturn:
    raise FieldError(f"{name} is not allowed")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise FieldError("an object has a field twice")
    return made
